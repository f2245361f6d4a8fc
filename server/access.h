// Who is calling, what that caller may do, and what of it is in use now.
//
// The rules come from the auth file and are replaced as a whole; what is in flight is counted through the change. A
// stream that stays open asks anew for each problem: whoever lost the right since then is refused.
// Thread rule: every function from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/auth.h"
#include "server/request_record.h"

namespace attnd::server {

// What a call shows of its caller.
struct Credentials {
  std::optional<TokenDigest> token;
  std::vector<std::string> certificates;  // names in the client certificate that TLS has verified
};

class Access;

// What one identity has in flight. Those without a name share one of each class.
struct Standing {
  std::mutex mutex;
  std::int64_t in_flight = 0;
  double allowance = 0;  // requests that may come now; grows with time up to requests_per_second
  absl::Time refilled;
};

// A request in flight, until it is destroyed.
class Pass {
 public:
  Pass() = default;
  explicit Pass(std::shared_ptr<Standing> standing) : standing_(std::move(standing)) {}
  Pass(Pass&& other) noexcept = default;
  Pass& operator=(Pass&& other) noexcept {
    std::swap(standing_, other.standing_);
    return *this;
  }
  ~Pass();

 private:
  std::shared_ptr<Standing> standing_;  // null where nothing is counted
};

// A caller as a call found it. Copies are the same caller.
class Caller {
 public:
  Caller() = default;  // nobody yet: has a name and a class, and nothing else may be asked

  const std::string& name() const { return name_; }  // empty: anonymous
  IdentityClass identity_class() const { return class_; }
  const Policy& policy() const { return *policy_; }

  // Before each call and each problem of a stream. UNAUTHENTICATED or PERMISSION_DENIED when it lost the right,
  // RESOURCE_EXHAUSTED with a retry delay when it has or asks for too much.
  absl::StatusOr<Pass> Enter() const;

  // Under what its memory and its share of compute are counted: its identity, or the connection it comes by.
  std::string AccountName(absl::string_view peer) const;

  // The share of compute of a problem that asks for `asked`. PERMISSION_DENIED above priority_max; what asks for none
  // gets normal, or less where that is the most.
  absl::StatusOr<std::int64_t> WeightOf(v1::Priority asked) const;

 private:
  friend class Access;
  Access* access_ = nullptr;
  std::int64_t version_ = 0;  // of the rules
  Credentials credentials_;
  std::string method_, name_;
  IdentityClass class_ = IdentityClass::kAnonymous;
  std::shared_ptr<const Policy> policy_;
  std::shared_ptr<Standing> standing_;  // null: nothing is limited, nothing is counted
};

class Access {
 public:
  // Without rules everyone may do everything.
  explicit Access(std::optional<AuthRules> rules = std::nullopt);

  void Replace(AuthRules rules);

  // One more identity, in no file. Before the first Identify.
  void Add(IdentityRule rule);

  // UNAUTHENTICATED: a token or certificate that is nobody's, or none where one is needed. PERMISSION_DENIED: this
  // caller may not call `method` ("package.Service/Method").
  absl::StatusOr<Caller> Identify(Credentials credentials, absl::string_view method);

 private:
  friend class Caller;
  struct Found {
    std::string name;
    IdentityClass identity_class = IdentityClass::kAnonymous;
    std::shared_ptr<const Policy> policy;
  };
  absl::StatusOr<Found> FindLocked(const Credentials& credentials) const;

  std::mutex mutex_;
  bool open_ = false;  // no rules
  std::shared_ptr<const AuthRules> rules_;
  std::vector<IdentityRule> added_;
  std::map<std::string, std::shared_ptr<Standing>> standings_;
  std::atomic<std::int64_t> version_{0};
};

}  // namespace attnd::server
