// The auth file: who callers are and what each may do. JSON:
//
//   {"identities": [{"name": "platform",
//                    "tokens_sha256": ["<64 hex digits>"],           any of these bearer tokens, or
//                    "certificates": ["spiffe://cluster/platform"],  a client certificate with any of these as a
//                                                                    subject alternative name or common name
//                    ...policy...}],
//    "anonymous": {...policy...}}                                    callers with neither; absent: they are refused
//
//   policy: "methods": ["attnd.v1.AttentionService/Attend", "grpc.health.v1.Health/*", "*"],
//           "priority_max": "low" | "normal" | "high",  "requests_in_flight_max": N,  "bytes_in_flight_max": N,
//           "requests_per_second": N,  "store_bytes_max": N          all but methods may be left out: no limit
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::server {

// Of a token, which itself is kept nowhere.
using TokenDigest = std::array<unsigned char, 32>;
TokenDigest DigestOf(absl::string_view token);
// In a time that does not depend on where they differ.
bool SameDigest(const TokenDigest& one, const TokenDigest& other);

// 256 bits that nobody can guess, as 64 hex digits.
std::string NewSecret();

struct Policy {
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  std::vector<std::string> methods = {"*"};
  v1::Priority priority_max = v1::PRIORITY_HIGH;
  std::int64_t requests_in_flight_max = kNoLimit;  // calls, and problems of streams
  std::int64_t bytes_in_flight_max = kNoLimit;     // memory reserved for them
  std::int64_t requests_per_second = kNoLimit;     // as many may come at once
  std::int64_t store_bytes_max = kNoLimit;         // memory of named tensors and weight sets that it put

  // `method`: "package.Service/Method".
  bool Allows(absl::string_view method) const;
};

struct IdentityRule {
  std::string name;
  Policy policy;
  std::vector<TokenDigest> tokens;
  std::vector<std::string> certificates;
};

struct AuthRules {
  std::vector<IdentityRule> identities;
  std::optional<Policy> anonymous;
};

// INVALID_ARGUMENT names the place in the file, what came and what was expected.
absl::StatusOr<AuthRules> ParseAuth(absl::string_view json);

}  // namespace attnd::server
