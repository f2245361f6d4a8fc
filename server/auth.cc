#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/json_fields.h"

namespace attnd::server {
namespace {

using nlohmann::json;

constexpr std::size_t kIdentitiesMax = 10000, kListMax = 1000, kNameBytesMax = 64, kTextBytesMax = 1024;
constexpr absl::string_view kNameLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

// The strings of object[key]; none when it is absent.
absl::StatusOr<std::vector<std::string>> Strings(const json& object, const std::string& path, const char* key) {
  std::vector<std::string> strings;
  const auto found = object.find(key);
  if (found == object.end()) return strings;
  const std::string list = absl::StrCat(path, ".", key);
  if (!found->is_array() || found->size() > kListMax) {
    return Wrong(list, found->is_array() ? absl::StrCat(found->size(), " entries") : Came(*found),
                 absl::StrCat("a list of at most ", kListMax, " strings"));
  }
  for (std::size_t i = 0; i < found->size(); ++i) {
    const json& entry = (*found)[i];
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty() ||
        entry.get_ref<const std::string&>().size() > kTextBytesMax) {
      return Wrong(absl::StrCat(list, "[", i, "]"), Came(entry),
                   absl::StrCat("a string of 1 to ", kTextBytesMax, " bytes"));
    }
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

absl::Status ReadLimit(const json& object, const std::string& path, const char* key, std::int64_t& limit) {
  const auto found = object.find(key);
  if (found == object.end()) return absl::OkStatus();
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() < 1 ||
      found->get<std::uint64_t>() > static_cast<std::uint64_t>(Policy::kNoLimit)) {
    return Wrong(absl::StrCat(path, ".", key), Came(*found), "a whole number of at least 1");
  }
  limit = found->get<std::int64_t>();
  return absl::OkStatus();
}

absl::StatusOr<Policy> ReadPolicy(const json& object, const std::string& path) {
  Policy policy;
  absl::StatusOr<std::vector<std::string>> methods = Strings(object, path, "methods");
  if (!methods.ok()) return methods.status();
  if (!object.contains("methods")) return Wrong(absl::StrCat(path, ".methods"), "absent", "a list of methods");
  for (const std::string& method : *methods) {
    if (method == "*" || absl::StrContains(method, '/')) continue;
    return Wrong(absl::StrCat(path, ".methods"), absl::StrCat("\"", absl::CEscape(method), "\""),
                 "\"package.Service/Method\", \"package.Service/*\" or \"*\"");
  }
  policy.methods = *std::move(methods);
  if (const auto found = object.find("priority_max"); found != object.end()) {
    static const std::map<std::string, v1::Priority> kPriorities = {
        {"low", v1::PRIORITY_LOW}, {"normal", v1::PRIORITY_NORMAL}, {"high", v1::PRIORITY_HIGH}};
    const auto priority = found->is_string() ? kPriorities.find(found->get<std::string>()) : kPriorities.end();
    if (priority == kPriorities.end()) {
      return Wrong(absl::StrCat(path, ".priority_max"), Came(*found), "\"low\", \"normal\" or \"high\"");
    }
    policy.priority_max = priority->second;
  }
  for (const auto& [key, limit] : {std::pair{"requests_in_flight_max", &policy.requests_in_flight_max},
                                   std::pair{"bytes_in_flight_max", &policy.bytes_in_flight_max},
                                   std::pair{"requests_per_second", &policy.requests_per_second},
                                   std::pair{"store_bytes_max", &policy.store_bytes_max}}) {
    if (absl::Status status = ReadLimit(object, path, key, *limit); !status.ok()) return status;
  }
  return policy;
}

absl::StatusOr<IdentityRule> ReadIdentity(const json& object, const std::string& path) {
  absl::Status status =
      CheckKeys(object, path,
                {"name", "tokens_sha256", "certificates", "methods", "priority_max", "requests_in_flight_max",
                 "bytes_in_flight_max", "requests_per_second", "store_bytes_max"});
  if (!status.ok()) return status;
  IdentityRule rule;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string()) {
    return Wrong(absl::StrCat(path, ".name"), name == object.end() ? "absent" : Came(*name), "a string");
  }
  rule.name = name->get<std::string>();
  if (rule.name.empty() || rule.name.size() > kNameBytesMax ||
      rule.name.find_first_not_of(kNameLetters.data(), 0, kNameLetters.size()) != std::string::npos) {
    return Wrong(absl::StrCat(path, ".name"), Came(*name),
                 absl::StrCat("1 to ", kNameBytesMax, " letters, digits, dots, dashes and underscores"));
  }
  absl::StatusOr<std::vector<std::string>> tokens = Strings(object, path, "tokens_sha256");
  if (!tokens.ok()) return tokens.status();
  for (const std::string& token : *tokens) {
    TokenDigest digest;
    if (token.size() != 2 * digest.size() || token.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      // What came may be a token itself: it is not repeated.
      return Wrong(absl::StrCat(path, ".tokens_sha256"), absl::StrCat("a string of ", token.size(), " bytes"),
                   "the 64 hex digits of a token's SHA-256");
    }
    for (std::size_t i = 0; i < digest.size(); ++i) {
      const char* const digits = token.data() + 2 * i;
      std::from_chars(digits, digits + 2, digest[i], 16);
    }
    rule.tokens.push_back(digest);
  }
  absl::StatusOr<std::vector<std::string>> certificates = Strings(object, path, "certificates");
  if (!certificates.ok()) return certificates.status();
  rule.certificates = *std::move(certificates);
  if (rule.tokens.empty() && rule.certificates.empty()) {
    return Wrong(path, "neither tokens_sha256 nor certificates", "at least one of them");
  }
  absl::StatusOr<Policy> policy = ReadPolicy(object, path);
  if (!policy.ok()) return policy.status();
  rule.policy = *std::move(policy);
  return rule;
}

// Nobody is two people.
absl::Status CheckDistinct(const std::vector<IdentityRule>& identities) {
  std::set<std::string> names, certificates;
  std::set<TokenDigest> tokens;
  for (const IdentityRule& rule : identities) {
    bool fresh = names.insert(rule.name).second;
    for (const TokenDigest& token : rule.tokens) fresh = tokens.insert(token).second && fresh;
    for (const std::string& certificate : rule.certificates) fresh = certificates.insert(certificate).second && fresh;
    if (!fresh) {
      return Wrong(absl::StrCat("identities: ", rule.name), "its name, a token or a certificate is there twice",
                   "each once in the file");
    }
  }
  return absl::OkStatus();
}

}  // namespace

TokenDigest DigestOf(absl::string_view token) {
  TokenDigest digest{};
  EVP_Digest(token.data(), token.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

bool SameDigest(const TokenDigest& one, const TokenDigest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string NewSecret() {
  unsigned char bytes[32];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) std::abort();  // nothing is safe without
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes), sizeof(bytes)});
}

bool Policy::Allows(absl::string_view method) const {
  return std::any_of(methods.begin(), methods.end(), [&](absl::string_view pattern) {
    if (pattern == "*" || pattern == method) return true;
    return absl::ConsumeSuffix(&pattern, "*") && absl::EndsWith(pattern, "/") && absl::StartsWith(method, pattern);
  });
}

absl::StatusOr<AuthRules> ParseAuth(absl::string_view text) {
  // What is nested deeper than anything of ours is left out: words about it are made by recursion.
  int depth = 0;
  const auto shallow = [&depth](int, json::parse_event_t event, json&) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) ++depth;
    if (event == Event::object_end || event == Event::array_end) --depth;
    return depth <= 8;
  };
  const json file = json::parse(text.begin(), text.end(), shallow, /*allow_exceptions=*/false);
  if (file.is_discarded()) return Wrong("auth file", absl::StrCat(text.size(), " bytes that are not JSON"), "JSON");
  if (absl::Status status = CheckKeys(file, "auth file", {"identities", "anonymous"}); !status.ok()) return status;
  AuthRules rules;
  if (const auto identities = file.find("identities"); identities != file.end()) {
    if (!identities->is_array() || identities->size() > kIdentitiesMax) {
      return Wrong("identities",
                   identities->is_array() ? absl::StrCat(identities->size(), " entries") : Came(*identities),
                   absl::StrCat("a list of at most ", kIdentitiesMax));
    }
    for (std::size_t i = 0; i < identities->size(); ++i) {
      absl::StatusOr<IdentityRule> rule = ReadIdentity((*identities)[i], absl::StrCat("identities[", i, "]"));
      if (!rule.ok()) return rule.status();
      rules.identities.push_back(*std::move(rule));
    }
  }
  if (const auto anonymous = file.find("anonymous"); anonymous != file.end()) {
    absl::Status status = CheckKeys(*anonymous, "anonymous",
                                    {"methods", "priority_max", "requests_in_flight_max", "bytes_in_flight_max",
                                     "requests_per_second", "store_bytes_max"});
    if (!status.ok()) return status;
    absl::StatusOr<Policy> policy = ReadPolicy(*anonymous, "anonymous");
    if (!policy.ok()) return policy.status();
    rules.anonymous = *std::move(policy);
  }
  if (absl::Status status = CheckDistinct(rules.identities); !status.ok()) return status;
  return rules;
}

}  // namespace attnd::server
