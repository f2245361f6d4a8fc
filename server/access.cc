#include "server/access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "server/wire/status.h"

namespace attnd::server {
namespace {

absl::string_view NameOf(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW ? "low" : priority == v1::PRIORITY_HIGH ? "high" : "normal";
}

}  // namespace

Pass::~Pass() {
  if (standing_ == nullptr) return;
  const std::lock_guard lock(standing_->mutex);
  --standing_->in_flight;
}

absl::StatusOr<Pass> Caller::Enter() const {
  if (version_ != access_->version_.load(std::memory_order_acquire)) {
    const absl::StatusOr<Caller> now = access_->Identify(credentials_, method_);
    if (!now.ok()) return now.status();
    if (now->name_ != name_)
      return absl::UnauthenticatedError("the caller's identity is another one since the call began");
    return now->Enter();
  }
  if (standing_ == nullptr) return Pass();
  const std::lock_guard lock(standing_->mutex);
  if (standing_->in_flight >= policy_->requests_in_flight_max) {
    return WithRetryDelay(
        absl::ResourceExhaustedError(absl::StrCat("requests in flight of this identity: ", standing_->in_flight, " of ",
                                                  policy_->requests_in_flight_max, " (requests_in_flight_max)")),
        kRetryDelay);
  }
  if (policy_->requests_per_second != Policy::kNoLimit) {
    const double rate = static_cast<double>(policy_->requests_per_second);
    const absl::Time now = Now();
    const double elapsed = std::max(0.0, absl::ToDoubleSeconds(now - standing_->refilled));
    standing_->allowance = std::min(rate, standing_->allowance + rate * elapsed);
    standing_->refilled = now;
    if (standing_->allowance < 1) {
      return WithRetryDelay(
          absl::ResourceExhaustedError(absl::StrCat("requests a second of this identity: allowed ",
                                                    policy_->requests_per_second, " (requests_per_second)")),
          absl::Seconds((1 - standing_->allowance) / rate) + absl::Milliseconds(1));
    }
    standing_->allowance -= 1;
  }
  ++standing_->in_flight;
  return Pass(standing_);
}

std::string Caller::AccountName(absl::string_view peer) const {
  return name_.empty() ? std::string(peer) : absl::StrCat("identity:", name_);
}

absl::StatusOr<std::int64_t> Caller::WeightOf(v1::Priority asked) const {
  const v1::Priority most = policy_->priority_max;
  if (asked == v1::PRIORITY_UNSPECIFIED) asked = std::min(v1::PRIORITY_NORMAL, most);
  if (asked > most) {
    return absl::PermissionDeniedError(
        absl::StrCat("priority: ", NameOf(asked), ", this identity may ask for at most ", NameOf(most)));
  }
  return asked == v1::PRIORITY_LOW ? 1 : asked == v1::PRIORITY_HIGH ? 16 : 4;
}

Access::Access(std::optional<AuthRules> rules) : open_(!rules.has_value()) {
  AuthRules everyone;
  everyone.anonymous = Policy();
  rules_ = std::make_shared<const AuthRules>(rules.has_value() ? *std::move(rules) : std::move(everyone));
}

void Access::Replace(AuthRules rules) {
  const std::lock_guard lock(mutex_);
  rules_ = std::make_shared<const AuthRules>(std::move(rules));
  open_ = false;
  // Who left and has nothing in flight is forgotten.
  std::erase_if(standings_, [](const auto& entry) { return entry.second.use_count() == 1; });
  ++version_;
}

void Access::Add(IdentityRule rule) {
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(rule));
}

absl::StatusOr<Access::Found> Access::FindLocked(const Credentials& credentials) const {
  const IdentityRule* found = nullptr;
  std::shared_ptr<const void> owner = rules_;
  const auto look = [&](const std::vector<IdentityRule>& identities, auto matches) {
    for (const IdentityRule& rule : identities) {
      if (matches(rule)) found = &rule;  // all are compared, whichever it is
    }
  };
  if (credentials.token.has_value()) {
    const auto has_token = [&](const IdentityRule& rule) {
      bool has = false;
      for (const TokenDigest& token : rule.tokens) has |= SameDigest(token, *credentials.token);
      return has;
    };
    look(rules_->identities, has_token);
    look(added_, has_token);
    if (found == nullptr && !open_) return absl::UnauthenticatedError("authorization: a token that is nobody's");
    if (found != nullptr) return Found{found->name, IdentityClass::kToken, {owner, &found->policy}};
  }
  look(rules_->identities, [&](const IdentityRule& rule) {
    return std::any_of(credentials.certificates.begin(), credentials.certificates.end(), [&](const std::string& name) {
      return std::find(rule.certificates.begin(), rule.certificates.end(), name) != rule.certificates.end();
    });
  });
  if (found != nullptr) return Found{found->name, IdentityClass::kCertificate, {owner, &found->policy}};
  if (rules_->anonymous.has_value()) {
    const bool known = !credentials.certificates.empty();
    return Found{open_ && known ? credentials.certificates.front() : "",
                 known ? IdentityClass::kCertificate : IdentityClass::kAnonymous,
                 {owner, &*rules_->anonymous}};
  }
  return absl::UnauthenticatedError(
      credentials.certificates.empty()
          ? "authorization: absent, expected \"Bearer <token>\" or a client certificate that the server knows"
          : "client certificate: known to be good, but of no identity here");
}

absl::StatusOr<Caller> Access::Identify(Credentials credentials, absl::string_view method) {
  const std::lock_guard lock(mutex_);
  absl::StatusOr<Found> found = FindLocked(credentials);
  if (!found.ok()) return found.status();
  if (!found->policy->Allows(method)) {
    return absl::PermissionDeniedError(
        absl::StrCat(found->name.empty() ? "anonymous callers" : absl::StrCat("identity \"", found->name, "\""),
                     " may not call ", method));
  }
  Caller caller;
  caller.access_ = this;
  caller.version_ = version_;
  caller.credentials_ = std::move(credentials);
  caller.method_ = std::string(method);
  caller.name_ = std::move(found->name);
  caller.class_ = found->identity_class;
  caller.policy_ = std::move(found->policy);
  if (caller.policy_->requests_in_flight_max != Policy::kNoLimit ||
      caller.policy_->requests_per_second != Policy::kNoLimit) {
    std::shared_ptr<Standing>& standing = standings_[absl::StrCat(static_cast<int>(caller.class_), "/", caller.name_)];
    if (standing == nullptr) {
      standing = std::make_shared<Standing>();
      standing->allowance = static_cast<double>(caller.policy_->requests_per_second);
      standing->refilled = Now();
    }
    caller.standing_ = standing;
  }
  return caller;
}

}  // namespace attnd::server
