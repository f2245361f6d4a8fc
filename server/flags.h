// Every flag of the server with its default, unit and range, in one table; and what they say together, ServerConfig.
// Thread rule: ParseFlags once, from main, before any thread starts; a ServerConfig never changes afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnd::server {

// X(name, default, smallest, largest, meaning). The unit is in the name. Info reports each of them as a limit.
#define ATTND_NUMBER_FLAGS(X)                                                                                         \
  X(threads, 0, 0, 1024, "compute threads; 0 takes what the affinity mask and the cgroup's CPU quota allow")          \
  X(memory_bytes_max, 0, 0, std::int64_t{1} << 50, "memory for all problems and gRPC; 0 takes half of the machine")   \
  X(pool_bytes_max, 0, 0, std::int64_t{1} << 50,                                                                      \
    "freed buffers that stay resident for the next problem; 0 takes a sixteenth of memory_bytes_max")                 \
  X(message_bytes_max, 256 << 20, 1 << 16, 2147483647, "largest single message, both ways")                           \
  X(reply_bytes_max, std::int64_t{8} << 30, 1, std::int64_t{1} << 50, "tensors of one answer on a stream")            \
  X(problems_in_flight_max, 64, 1, 1 << 20, "open problems of one stream")                                            \
  X(queue_problems_max, 4096, 1, 1 << 20, "problems of all callers that compute or wait for it")                      \
  X(queue_bytes_max, 0, 0, std::int64_t{1} << 50,                                                                     \
    "memory of problems that compute or wait, but for a lone one; 0 takes half of memory_bytes_max")                  \
  X(store_bytes_max, 0, 0, std::int64_t{1} << 50,                                                                     \
    "named tensors and weight sets, together; 0 takes a quarter of memory_bytes_max, of which it is a part")          \
  X(store_ttl_ms, 3600000, 1, std::int64_t{1} << 40, "a named tensor that no call used for so long goes")             \
  X(connection_percent_max, 50, 1, 100,                                                                               \
    "share of each queue limit, of the memory and of streams_max that one connection may hold, but for its only one") \
  X(streams_max, 1000, 1, 1 << 20, "calls of one connection, and streams of the whole server")                        \
  X(calls_max, 10000, 1, 1 << 24, "calls of all connections that are open, but for health checks")                    \
  X(connections_max, 1000, 1, 1 << 20, "open connections; one more is closed at once")                                \
  X(compute_ms_max, 600000, 1, std::int64_t{1} << 40, "predicted and real compute time of one problem")               \
  X(deadline_default_ms, 60000, 1, std::int64_t{1} << 40, "deadline of a call that has none")                         \
  X(send_stall_ms, 30000, 1, std::int64_t{1} << 40, "how long one write may wait for a peer that does not read")      \
  X(receive_stall_ms, 30000, 1, std::int64_t{1} << 40, "how long an open problem may wait for its next piece")        \
  X(peer_silence_ms, 40000, 1000, 2147483647, "a connection whose peer answers nothing for so long is closed")        \
  X(handshake_ms, 10000, 100, 2147483647, "TLS and HTTP/2 must be agreed upon within")                                \
  X(connection_idle_ms, 3600000, 1000, 2147483647,                                                                    \
    "a connection without a call, and a stream without a message, for so long is closed")                             \
  X(connection_age_ms, 3600000, 1000, 2147483647, "a connection takes no new calls after; open ones go on")           \
  X(metadata_bytes_max, 8192, 1024, 1 << 20, "metadata of one call")                                                  \
  X(self_probe_ms, 10000, 0, std::int64_t{1} << 40, "how often the server calls itself; 0: never")                    \
  X(drain_ms, 10000, 0, std::int64_t{1} << 40, "after SIGTERM, how long accepted work may go on")                     \
  X(block_bytes, 1 << 20, 4096, 1 << 30, "data of one block of an answer on a stream")                                \
  X(kernel_cache_max, 1024, 1, 1 << 20, "generated kernels that are kept")                                            \
  X(sequence_heads_max, 1 << 21, 1, std::int64_t{1} << 40, "B * Hq of one problem")                                   \
  X(rows_max, 1 << 28, 1, std::int64_t{1} << 50, "B * Hq * (Nq + Nk) of one problem")                                 \
  X(width_max, 1 << 20, 1, 1 << 30, "each of d_k, d_v, d_model and d_out of one problem")                             \
  X(tiles_max, 1 << 28, 1, std::int64_t{1} << 50, "tiles of one problem over all heads")

struct ServerConfig {
#define ATTND_FIELD(name, value, smallest, largest, meaning) std::int64_t name = value;
  ATTND_NUMBER_FLAGS(ATTND_FIELD)
#undef ATTND_FIELD
  std::vector<std::string> listen = {"127.0.0.1:50051"};  // host:port or unix:path
  std::string port_file;                                  // the first TCP port that was bound is written here
  std::string admin_listen = "127.0.0.1:9090";            // host:port of the admin port; empty: none
  std::string admin_port_file;                            // the admin port's number is written here
  std::string tls_certificate, tls_key;                   // PEM files; empty: no TLS
  std::string tls_client_ca;                              // PEM file; with it clients need a certificate
  std::string auth_file;                                  // see auth.h; empty: everyone may do everything
  bool insecure = false;                                  // may listen beyond loopback without TLS
  std::string log_format = "text";                        // text or json
  std::string log_level = "info";                         // trace, debug, info, warning, error, off
  std::string weights_dir;                                // see weight_files.h; empty: sets live in memory only
  std::string instruction_set = "auto";                   // auto or avx2
  bool reflection = false;
};

struct FlagValue {
  std::string flag;
  std::int64_t value = 0;
};
// The table's flags in the table's order.
std::vector<FlagValue> NumberFlags(const ServerConfig& config);

// Reads the command line (--flagfile too). INVALID_ARGUMENT names the flag, what came and what was expected. --help
// prints the table and ends the process.
absl::StatusOr<ServerConfig> ParseFlags(int argc, char** argv);

// What the flags say now, checked.
absl::StatusOr<ServerConfig> ReadFlags();

// Every number within its range, every word one of its choices.
absl::Status CheckConfig(const ServerConfig& config);

// Replaces the zeros that mean "what the machine has".
ServerConfig Resolve(ServerConfig config);

}  // namespace attnd::server
