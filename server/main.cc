// attnd: parse the flags, build the server, wait for a signal, drain.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/kernel_info.h"
#include "server/flags.h"
#include "server/lifecycle.h"
#include "server/log.h"
#include "server/server.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "attnd: %s\n", std::string(status.message()).c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace attnd::server;
  BlockSignals();
  const absl::StatusOr<ServerConfig> config = ParseFlags(argc, argv);
  if (!config.ok()) return Fail(config.status());
  if (const absl::Status machine = attnd::CheckMachine(); !machine.ok()) return Fail(machine);
  InitLog(config->log_format == "json" ? LogFormat::kJson : LogFormat::kText, config->log_level);
  SetUpProcess(*config);
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*config);
  if (!server.ok()) return Fail(server.status());
  AwaitSignal();
  StartWatchdog(absl::Milliseconds(config->drain_ms) + absl::Seconds(2));
  (*server)->Drain();
  return 0;
}
