// Whom a client trusts and how it says who it is: TLS, certificates and a bearer token.
//
//   options.credentials.tls = true;                    // the system's roots
//   options.credentials.ca.file = "ca.pem";            // or these instead
//   options.credentials.certificate.file = "me.pem";   // mutual TLS, with key
//   options.credentials.key.file = "me.key";
//   options.credentials.token.file = "token";          // `authorization: Bearer ...` on every call
//
// Thread rule: as any value.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace attnd::client {

// Most characters of a token; servers take only a few KiB of metadata.
constexpr std::size_t kTokenCharactersMax = 4096;

// A text, or the file that it is read from when a client connects.
struct Source {
  std::string text, file;

  bool empty() const { return text.empty() && file.empty(); }
};

struct Credentials {
  bool tls = false;         // also on when any of the next four is given
  Source ca;                // PEM certificates that the server's must come from; empty: the system's roots
  Source certificate, key;  // PEM, of this client: its chain and its private key without passphrase; both or neither
  std::string server_name;  // what the server's certificate must name instead of the target's host
  Source token;             // one line of visible ASCII; blanks and line ends around it are dropped
  // A token is sent over TLS, Unix sockets and loopback only; with this also where anyone on the way can read it.
  bool allow_plaintext_token = false;

  bool UsesTls() const { return tls || !ca.empty() || !certificate.empty() || !key.empty() || !server_name.empty(); }
};

// The same with every file read and everything checked: PEM that holds what it should, a key that fits its certificate,
// a token that can be sent to `target`. Errors name the file, what came and what was expected, and never show a secret.
// INVALID_ARGUMENT for contents and combinations; FAILED_PRECONDITION for a token that would travel in plaintext; a
// file's own code (NOT_FOUND, PERMISSION_DENIED) where it cannot be read.
absl::StatusOr<Credentials> LoadCredentials(const Credentials& given, const std::string& target);

// Whether every address of a gRPC target is a Unix socket or loopback.
bool IsLocalTarget(const std::string& target);

}  // namespace attnd::client
