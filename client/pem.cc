#include "client/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace attnd::client {

namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Read(const std::string& text) { return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free}; }

// OpenSSL would ask a terminal for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

// What a text is, without showing it: its first PEM label, or that it has none.
std::string WhatCame(absl::string_view text) {
  constexpr absl::string_view kBegin = "-----BEGIN ", kEnd = "-----";
  if (text.empty()) return "is empty";
  const std::size_t begin = text.find(kBegin);
  if (begin == absl::string_view::npos) return absl::StrCat("holds ", text.size(), " bytes without a PEM block");
  const absl::string_view label = text.substr(begin + kBegin.size(), 40);
  const std::size_t end = label.find(kEnd);
  // A label is capitals and spaces; whatever else stands there is not repeated.
  if (end == absl::string_view::npos ||
      label.substr(0, end).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ") != absl::string_view::npos) {
    return "holds a broken PEM block";
  }
  return absl::StrCat("holds PEM of '", label.substr(0, end), "'");
}

absl::Status Wrong(absl::string_view name, const std::string& text, absl::string_view expected) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", WhatCame(text), ", expected ", expected));
}

constexpr char kCertificate[] = "-----BEGIN CERTIFICATE-----";

}  // namespace

absl::Status CheckCertificates(absl::string_view name, const std::string& pem) {
  std::size_t blocks = 0;
  for (std::size_t at = pem.find(kCertificate); at != std::string::npos; at = pem.find(kCertificate, at + 1)) ++blocks;
  if (blocks == 0) return Wrong(name, pem, "PEM of 'CERTIFICATE'");
  const Bio bio = Read(pem);
  for (std::size_t number = 1; number <= blocks; ++number) {
    const Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr), X509_free);
    if (certificate != nullptr) continue;
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": certificate ", number, " of ", blocks, " cannot be read, expected whole PEM"));
  }
  return absl::OkStatus();
}

absl::Status CheckKeyPair(absl::string_view certificates_name, const std::string& certificates,
                          absl::string_view key_name, const std::string& key) {
  absl::Status status = CheckCertificates(certificates_name, certificates);
  if (!status.ok()) return status;
  const Bio certificate_bio = Read(certificates);
  const Certificate certificate(PEM_read_bio_X509(certificate_bio.get(), nullptr, NoPassphrase, nullptr), X509_free);
  const Bio key_bio = Read(key);
  const Key parsed(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, NoPassphrase, nullptr), EVP_PKEY_free);
  if (parsed == nullptr) {
    return Wrong(key_name, key, "PEM of a whole 'PRIVATE KEY' without passphrase");
  }
  if (certificate == nullptr || X509_check_private_key(certificate.get(), parsed.get()) != 1) {
    status = absl::InvalidArgumentError(absl::StrCat(key_name, ": is not the key of the certificate in ",
                                                     certificates_name, ", expected the one it was made with"));
  }
  ERR_clear_error();
  return status;
}

}  // namespace attnd::client
