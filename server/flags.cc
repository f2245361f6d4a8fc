#include "server/flags.h"

#include <arpa/inet.h>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/executor.h"

#define ATTND_DEFINE(name, value, smallest, largest, meaning) ABSL_FLAG(std::int64_t, name, value, meaning);
ATTND_NUMBER_FLAGS(ATTND_DEFINE)
#undef ATTND_DEFINE

ABSL_FLAG(std::string, listen, "127.0.0.1:50051",
          "where to listen, comma separated: host:port (port 0: any), unix:path");
ABSL_FLAG(std::string, port_file, "", "file that gets the first TCP port that was bound");
ABSL_FLAG(std::string, admin_listen, "127.0.0.1:9090",
          "host:port of the admin port: /metrics, /healthz, /readyz, /statusz, /loglevel (port 0: any); empty: none");
ABSL_FLAG(std::string, admin_port_file, "", "file that gets the admin port that was bound");
ABSL_FLAG(std::string, tls_certificate, "",
          "PEM file with the server's certificate and its chain; read again when it changes");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the certificate's private key");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file of authorities; with it every client needs a certificate of theirs");
ABSL_FLAG(std::string, auth_file, "", "JSON file of identities and what each may do; read again when it changes");
ABSL_FLAG(bool, insecure, false, "listen beyond this machine without TLS");
ABSL_FLAG(std::string, log_format, "text", "text or json, on stderr");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning, error or off");
ABSL_FLAG(std::string, weights_dir, "",
          "folder of weight sets: manifests (*.json) with safetensors files, read again when a manifest changes, and "
          "put/, where sets that callers put survive a restart; empty: none");
ABSL_FLAG(std::string, instruction_set, "auto", "auto, or avx2 so that answers are the same bytes on every machine");
ABSL_FLAG(bool, reflection, false, "serve gRPC reflection, so that grpcurl needs no .proto");

namespace attnd::server {
namespace {

bool OneOf(const std::string& word, std::initializer_list<const char*> choices) {
  for (const char* choice : choices) {
    if (word == choice) return true;
  }
  return false;
}

// gRPC would listen on port 99999 modulo 65536.
bool IsAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return address.size() > std::string("unix:").size();
  const std::size_t colon = address.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
         port <= 65535;
}

// Reached from this machine alone: 127.0.0.0/8, ::1, localhost, or a Unix socket.
bool IsLocal(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr ip{};
  if (inet_pton(AF_INET, host.c_str(), &ip) == 1) return ntohl(ip.s_addr) >> 24 == 127;
  return host == "[::1]" || host == "::1" || host == "localhost";
}

absl::Status CheckTls(const ServerConfig& config) {
  if (config.tls_certificate.empty() != config.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_certificate, --tls_key: one of them is empty, expected both or none");
  }
  if (!config.tls_client_ca.empty() && config.tls_certificate.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca: expected with --tls_certificate and --tls_key only");
  }
  if (!config.tls_certificate.empty() || config.insecure) return absl::OkStatus();
  for (const std::string& address : config.listen) {
    if (IsLocal(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen: \"", address,
        "\" is reached from beyond this machine, expected --tls_certificate and --tls_key, or --insecure"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagValue> NumberFlags(const ServerConfig& config) {
  std::vector<FlagValue> values;
#define ATTND_VALUE(name, value, smallest, largest, meaning) values.push_back({#name, config.name});
  ATTND_NUMBER_FLAGS(ATTND_VALUE)
#undef ATTND_VALUE
  return values;
}

absl::StatusOr<ServerConfig> ParseFlags(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "attnd: exact attention over gRPC.\n\n  attnd --listen=127.0.0.1:50051,unix:/run/attnd.sock");
  absl::FlagsUsageConfig usage;
  // All of ours stand in this file; those of libraries are shown by --helpfull.
  usage.contains_help_flags =
      usage.contains_helpshort_flags = [](absl::string_view file) { return absl::EndsWith(file, "server/flags.cc"); };
  usage.version_string = [] { return std::string("attnd " ATTND_VERSION "\n"); };
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("argument \"", rest[1], "\": expected flags only, see --help"));
  }
  return ReadFlags();
}

absl::StatusOr<ServerConfig> ReadFlags() {
  ServerConfig config;
#define ATTND_READ(name, value, smallest, largest, meaning) config.name = absl::GetFlag(FLAGS_##name);
  ATTND_NUMBER_FLAGS(ATTND_READ)
#undef ATTND_READ
  config.listen = absl::StrSplit(absl::GetFlag(FLAGS_listen), ',', absl::SkipWhitespace());
  config.port_file = absl::GetFlag(FLAGS_port_file);
  config.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  config.admin_port_file = absl::GetFlag(FLAGS_admin_port_file);
  config.tls_certificate = absl::GetFlag(FLAGS_tls_certificate);
  config.tls_key = absl::GetFlag(FLAGS_tls_key);
  config.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  config.auth_file = absl::GetFlag(FLAGS_auth_file);
  config.insecure = absl::GetFlag(FLAGS_insecure);
  config.log_format = absl::GetFlag(FLAGS_log_format);
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.weights_dir = absl::GetFlag(FLAGS_weights_dir);
  config.instruction_set = absl::GetFlag(FLAGS_instruction_set);
  config.reflection = absl::GetFlag(FLAGS_reflection);
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  return config;
}

absl::Status CheckConfig(const ServerConfig& config) {
#define ATTND_RANGE(name, value, smallest, largest, meaning)                                       \
  if (config.name < (smallest) || config.name > (largest)) {                                       \
    return absl::InvalidArgumentError(                                                             \
        absl::StrCat("--" #name ": ", config.name, ", expected ", (smallest), " to ", (largest))); \
  }
  ATTND_NUMBER_FLAGS(ATTND_RANGE)
#undef ATTND_RANGE
  if (config.listen.empty()) return absl::InvalidArgumentError("--listen: empty, expected host:port or unix:path");
  for (const std::string& address : config.listen) {
    if (IsAddress(address)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: \"", address, "\", expected host:port with a port of 0 to 65535, or unix:path"));
  }
  if (!config.admin_listen.empty() &&
      (absl::StartsWith(config.admin_listen, "unix:") || !IsAddress(config.admin_listen))) {
    return absl::InvalidArgumentError(absl::StrCat("--admin_listen: \"", config.admin_listen,
                                                   "\", expected host:port with a port of 0 to 65535, or nothing"));
  }
  if (absl::Status status = CheckTls(config); !status.ok()) return status;
  if (!OneOf(config.log_format, {"text", "json"})) {
    return absl::InvalidArgumentError(absl::StrCat("--log_format: \"", config.log_format, "\", expected text or json"));
  }
  if (!OneOf(config.instruction_set, {"auto", "avx2"})) {
    return absl::InvalidArgumentError(
        absl::StrCat("--instruction_set: \"", config.instruction_set, "\", expected auto or avx2"));
  }
  if (!OneOf(config.log_level, {"trace", "debug", "info", "warning", "error", "off"})) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level: \"", config.log_level, "\", expected trace, debug, info, warning, error or off"));
  }
  return absl::OkStatus();
}

ServerConfig Resolve(ServerConfig config) {
  if (config.threads == 0) config.threads = UsableCpus();
  if (config.memory_bytes_max == 0) config.memory_bytes_max = UsableMemoryBytes() / 2;
  if (config.pool_bytes_max == 0) config.pool_bytes_max = config.memory_bytes_max / 16;
  if (config.queue_bytes_max == 0) config.queue_bytes_max = config.memory_bytes_max / 2;
  if (config.store_bytes_max == 0) config.store_bytes_max = config.memory_bytes_max / 4;
  return config;
}

}  // namespace attnd::server
