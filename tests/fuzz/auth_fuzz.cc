// The auth file under arbitrary bytes. It is refused as INVALID_ARGUMENT in one printable line, or taken; then each
// identity has a name of its own and a way to show who it is, every limit is at least 1, and methods are allowed as
// their patterns say.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "server/auth.h"

namespace {

using attnd::server::AuthRules;
using attnd::server::Policy;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "auth_fuzz: %s\n", what.c_str());
  std::abort();
}

// "*", the method itself, or "package.Service/*" with what begins so.
bool AllowsByHand(const Policy& policy, const std::string& method) {
  for (const std::string& pattern : policy.methods) {
    const std::size_t slash = pattern.rfind("/*");
    const bool all_of = slash != std::string::npos && slash + 2 == pattern.size();
    if (pattern == "*" || pattern == method || (all_of && method.compare(0, slash + 1, pattern, 0, slash + 1) == 0)) {
      return true;
    }
  }
  return false;
}

void CheckPolicy(const Policy& policy) {
  for (const std::int64_t limit : {policy.requests_in_flight_max, policy.bytes_in_flight_max,
                                   policy.requests_per_second, policy.store_bytes_max}) {
    Check(limit >= 1, "a limit below 1");
  }
  Check(policy.priority_max >= attnd::v1::PRIORITY_LOW && policy.priority_max <= attnd::v1::PRIORITY_HIGH,
        "a priority");
  for (const char* method : {"attnd.v1.AttentionService/Attend", "grpc.health.v1.Health/Check", "/", "a/b/c"}) {
    Check(policy.Allows(method) == AllowsByHand(policy, method), method);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::StatusOr<AuthRules> rules = attnd::server::ParseAuth({reinterpret_cast<const char*>(data), size});
  if (!rules.ok()) {
    Check(absl::IsInvalidArgument(rules.status()) && !rules.status().message().empty(), rules.status().ToString());
    for (const char c : rules.status().message()) Check(c >= 0x20 && c < 0x7f, "words that are not one printable line");
    return 0;
  }
  std::set<std::string> names;
  for (const attnd::server::IdentityRule& identity : rules->identities) {
    Check(!identity.name.empty() && names.insert(identity.name).second, "a name that is none, or is there twice");
    Check(!identity.tokens.empty() || !identity.certificates.empty(), "nothing to know an identity by");
    CheckPolicy(identity.policy);
  }
  if (rules->anonymous) CheckPolicy(*rules->anonymous);
  return 0;
}
