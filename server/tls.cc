#include "server/tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

constexpr unsigned kRefreshSeconds = 1;  // the shortest that gRPC takes

Bio Reader(const std::string& pem) { return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all}; }

// A key that wants a passphrase is no key: there is nobody to ask.
int NoPassphrase(char*, int, int, void*) { return -1; }

Certificate NextCertificate(const Bio& reader) {
  return {PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr), X509_free};
}

absl::Status CheckTime(const X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) <= 0) {
    return absl::InvalidArgumentError("certificate: expired");
  }
  return absl::OkStatus();
}

std::string WrittenBy(int (*write)(BIO*, const void*), const void* what) {
  const Bio out(BIO_new(BIO_s_mem()), BIO_free_all);
  write(out.get(), what);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string KeyPem(const Key& key) {
  return WrittenBy(
      [](BIO* out, const void* what) {
        return PEM_write_bio_PrivateKey(out, static_cast<const EVP_PKEY*>(what), nullptr, nullptr, 0, nullptr, nullptr);
      },
      key.get());
}

std::string CertificatePem(const Certificate& certificate) {
  return WrittenBy([](BIO* out, const void* what) { return PEM_write_bio_X509(out, static_cast<const X509*>(what)); },
                   certificate.get());
}

// Of `subject`, signed by `issuer` with its key; for ten years, since it dies with the process.
Certificate Sign(const char* subject, const Key& key, const X509* issuer, const Key& issuer_key,
                 const char* constraints, const char* names) {
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -24L * 3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 10L * 365 * 24 * 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(subject), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer == nullptr ? certificate.get() : issuer));
  const std::pair<int, const char*> extensions[] = {{NID_basic_constraints, constraints},
                                                    {NID_subject_alt_name, names}};
  for (const auto& [id, value] : extensions) {
    if (value == nullptr) continue;
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
    X509_add_ext(certificate.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }
  if (X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) == 0) certificate.reset();
  return certificate;
}

}  // namespace

absl::StatusOr<OwnCertificate> MakeOwnCertificate() {
  const Key authority_key(EVP_EC_gen("P-256"), EVP_PKEY_free), key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  if (authority_key == nullptr || key == nullptr) return absl::InternalError("OpenSSL made no key");
  const Certificate authority =
      Sign("attnd self-probe authority", authority_key, nullptr, authority_key, "critical,CA:TRUE,pathlen:0", nullptr);
  if (authority == nullptr) return absl::InternalError("OpenSSL made no certificate");
  const Certificate certificate =
      Sign("attnd self-probe", key, authority.get(), authority_key, nullptr, "URI:attnd:self-probe");
  if (certificate == nullptr) return absl::InternalError("OpenSSL made no certificate");
  return OwnCertificate{{KeyPem(key), CertificatePem(certificate)}, CertificatePem(authority)};
}

absl::Status CheckPair(const CertificatePair& pair) {
  const Bio key_reader = Reader(pair.key);
  const Key key(PEM_read_bio_PrivateKey(key_reader.get(), nullptr, NoPassphrase, nullptr), EVP_PKEY_free);
  if (key == nullptr) return absl::InvalidArgumentError("private key: none in PEM without a passphrase");
  const Bio chain_reader = Reader(pair.chain);
  const Certificate first = NextCertificate(chain_reader);
  if (first == nullptr) return absl::InvalidArgumentError("certificate: none in PEM");
  if (X509_check_private_key(first.get(), key.get()) != 1) {
    return absl::InvalidArgumentError("the private key is not the certificate's");
  }
  return CheckTime(*first);
}

absl::Time ExpiryOf(const std::string& chain) {
  absl::Time first = absl::InfiniteFuture();
  const Bio reader = Reader(chain);
  while (const Certificate certificate = NextCertificate(reader)) {
    std::tm parts{};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &parts) != 1) continue;
    first = std::min(first, absl::FromTM(parts, absl::UTCTimeZone()));
  }
  return first;
}

absl::Status CheckAuthorities(const std::string& pem) {
  const Bio reader = Reader(pem);
  if (NextCertificate(reader) == nullptr) return absl::InvalidArgumentError("authorities of clients: none in PEM");
  return absl::OkStatus();
}

Tls::~Tls() {
  for (const int fd : {pair_fd_, authorities_fd_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status Tls::Set(const CertificatePair& pair, const std::string& client_authorities) {
  absl::Status status = CheckPair(pair);
  if (status.ok() && !client_authorities.empty()) status = CheckAuthorities(client_authorities);
  if (!status.ok()) return status;
  if (!client_authorities.empty()) status = Show(client_authorities, authorities_fd_);
  if (status.ok()) status = Show(absl::StrCat(pair.key, "\n", pair.chain), pair_fd_);
  if (status.ok()) expires_ = absl::ToUnixSeconds(ExpiryOf(pair.chain));
  return status;
}

// The file behind `fd`, which gRPC knows by its number, becomes another one.
absl::Status Tls::Show(const std::string& contents, int& fd) {
  const int fresh = memfd_create("attnd-tls", MFD_CLOEXEC);
  std::size_t written = 0;
  while (fresh >= 0 && written < contents.size()) {
    const ssize_t bytes = write(fresh, contents.data() + written, contents.size() - written);
    if (bytes < 0 && errno != EINTR) break;
    written += static_cast<std::size_t>(std::max<ssize_t>(bytes, 0));
  }
  // gRPC reads key and chain one after the other and begins anew when the file's time, in seconds, has changed.
  timespec times[2] = {};
  times[0].tv_sec = times[1].tv_sec = 1'000'000'000 + ++shown_;
  if (fresh < 0 || written < contents.size() || futimens(fresh, times) != 0 ||
      (fd >= 0 && dup3(fresh, fd, O_CLOEXEC) < 0)) {
    const absl::Status status = absl::UnavailableError(absl::StrCat("memory file: ", std::strerror(errno)));
    if (fresh >= 0) close(fresh);
    return status;
  }
  if (fd >= 0) {
    close(fresh);
  } else {
    fd = fresh;
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Tls::ServerCredentials() const {
  namespace tls = grpc::experimental;
  const auto path = [](int fd) { return fd < 0 ? std::string() : absl::StrCat("/proc/self/fd/", fd); };
  const auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(path(pair_fd_), path(pair_fd_),
                                                                              path(authorities_fd_), kRefreshSeconds);
  tls::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (authorities_fd_ >= 0) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  } else {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  }
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> OwnChannelCredentials(const CertificatePair& pair) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  if (!pair.key.empty()) {
    options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
        std::vector<tls::IdentityKeyCertPair>{{pair.key, pair.chain}}));
    options.watch_identity_key_cert_pairs();
  }
  return tls::TlsCredentials(options);
}

}  // namespace attnd::server
