// Certificates of the server and of those it trusts, as gRPC's credentials, exchanged while it runs.
//
// gRPC reloads from files only, and serves a pair that does not match, so that every handshake fails. Here a pair is
// checked before gRPC can see it, and shown to it as a file in memory that holds key and chain together: both are
// exchanged in one step, and no key is written to a disk. Handshakes see a new pair within two seconds.
// Thread rule: Set from one thread at a time, Expires from any; everything else before the server starts.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace attnd::server {

// PEM.
struct CertificatePair {
  std::string key, chain;
};

// A certificate that only this process knows the key of, and the authority that signed it.
struct OwnCertificate {
  CertificatePair pair;
  std::string authority;
};
absl::StatusOr<OwnCertificate> MakeOwnCertificate();

// INVALID_ARGUMENT: not PEM, a key that is not the first certificate's, a certificate that has expired.
absl::Status CheckPair(const CertificatePair& pair);
// When the first of a chain's certificates that will, expires. Of a pair that CheckPair takes.
absl::Time ExpiryOf(const std::string& chain);
absl::Status CheckAuthorities(const std::string& pem);

class Tls {
 public:
  Tls() = default;
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // `client_authorities`: PEM of those whose clients are let in; empty: clients need no certificate. INVALID_ARGUMENT
  // as above, and then nothing changes.
  absl::Status Set(const CertificatePair& pair, const std::string& client_authorities);

  // Of what is served now; 1970 before the first Set.
  absl::Time Expires() const { return absl::FromUnixSeconds(expires_); }

  // After the first Set.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials() const;

 private:
  absl::Status Show(const std::string& contents, int& fd);

  int pair_fd_ = -1, authorities_fd_ = -1;
  std::int64_t shown_ = 0;
  std::atomic<std::int64_t> expires_{0};  // seconds since 1970
};

// What the self-probe calls its own server with, as the owner of `pair` if it is not empty: the certificate is not
// asked for its name, since the call must not leave this machine.
std::shared_ptr<grpc::ChannelCredentials> OwnChannelCredentials(const CertificatePair& pair);

}  // namespace attnd::server
