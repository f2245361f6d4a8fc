#include "client/credentials.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/file.h"
#include "client/pem.h"

namespace attnd::client {

namespace {

// How errors call a source: by its file where it has one.
std::string NameOf(const Source& source, absl::string_view what) {
  return source.file.empty() ? std::string(what) : source.file;
}

absl::Status ReadSource(absl::string_view what, Source* source) {
  if (source->file.empty()) return absl::OkStatus();
  if (!source->text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": a text and a file (", source->file, "), expected one"));
  }
  absl::StatusOr<std::string> text = ReadFile(source->file);
  if (!text.ok()) return text.status();
  source->text = *std::move(text);
  return absl::OkStatus();
}

absl::Status CheckToken(Source* token) {
  const std::string name = NameOf(*token, "token");
  token->text = std::string(absl::StripAsciiWhitespace(token->text));
  const std::string& text = token->text;
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": is empty, expected a token on one line"));
  if (text.size() > kTokenCharactersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": holds ", text.size(), " bytes, expected a token of at most ", kTokenCharactersMax));
  }
  if (text.find('\n') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": has ", 1 + std::count(text.begin(), text.end(), '\n'),
                                                   " lines, expected a token on one line"));
  }
  const auto bad = std::find_if_not(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (bad == text.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": character ", bad - text.begin() + 1,
                                                 " is no visible ASCII, expected a token without blanks in it"));
}

// host, host:port, [v6] or [v6]:port.
bool IsLoopback(absl::string_view address) {
  absl::string_view host = address;
  if (absl::ConsumePrefix(&host, "[")) {
    host = host.substr(0, host.find(']'));
  } else if (std::count(host.begin(), host.end(), ':') == 1) {
    host = host.substr(0, host.find(':'));
  }
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  const std::string text(host);
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

bool IsLocalTarget(const std::string& target) {
  absl::string_view rest = target;
  if (absl::StartsWith(rest, "unix:") || absl::StartsWith(rest, "unix-abstract:")) return true;
  // dns://authority/host asks another name server, which may answer anything.
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) {
    if (!absl::ConsumePrefix(&rest, "dns:///")) absl::ConsumePrefix(&rest, "dns:");
  }
  const std::vector<absl::string_view> addresses = absl::StrSplit(rest, ',');
  return std::all_of(addresses.begin(), addresses.end(), IsLoopback);
}

absl::StatusOr<Credentials> LoadCredentials(const Credentials& given, const std::string& target) {
  Credentials loaded = given;
  absl::Status status;
  if (given.certificate.empty() != given.key.empty()) {
    const bool has_key = given.certificate.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        NameOf(has_key ? given.key : given.certificate, has_key ? "key" : "certificate"), ": a ",
        has_key ? "key without its certificate" : "certificate without its key", ", expected both or neither"));
  }
  status.Update(ReadSource("CA", &loaded.ca));
  status.Update(ReadSource("certificate", &loaded.certificate));
  status.Update(ReadSource("key", &loaded.key));
  status.Update(ReadSource("token", &loaded.token));
  if (!status.ok()) return status;
  if (!given.ca.empty()) status.Update(CheckCertificates(NameOf(given.ca, "CA"), loaded.ca.text));
  if (!given.certificate.empty()) {
    status.Update(CheckKeyPair(NameOf(given.certificate, "certificate"), loaded.certificate.text,
                               NameOf(given.key, "key"), loaded.key.text));
  }
  if (given.token.empty()) return status.ok() ? absl::StatusOr<Credentials>(loaded) : status;
  status.Update(CheckToken(&loaded.token));
  if (!status.ok()) return status;
  if (!given.UsesTls() && !given.allow_plaintext_token && !IsLocalTarget(target)) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(given.token, "token"), ": the token is not sent to ", target,
                     " without TLS, where others can read it; expected TLS, a Unix socket or loopback"));
  }
  return loaded;
}

}  // namespace attnd::client
