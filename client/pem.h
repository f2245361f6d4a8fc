// What PEM texts hold, looked at before gRPC sees them: of a wrong one gRPC says only that no channel could be made.
// Errors begin with the name given and tell labels and counts, never contents.
// Thread rule: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attnd::client {

// INVALID_ARGUMENT unless `pem` holds at least one certificate and every certificate in it can be read.
absl::Status CheckCertificates(absl::string_view name, const std::string& pem);

// INVALID_ARGUMENT unless `key` holds a private key without passphrase that belongs to the first of `certificates`.
absl::Status CheckKeyPair(absl::string_view certificates_name, const std::string& certificates,
                          absl::string_view key_name, const std::string& key);

}  // namespace attnd::client
