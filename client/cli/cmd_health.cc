// attn health: for probes, by exit code.
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"

namespace attnd::client {

namespace {

struct HealthCommand {
  ServerFlags server;
  std::string service;

  absl::Status Run(const Io& io) const {
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<bool> serving = (*client)->Health(service);
    if (!serving.ok()) return server.Explain(serving.status());
    if (!*serving)
      return absl::FailedPreconditionError(absl::StrCat("not serving: ", server.server, " is starting or draining"));
    io.out << "serving\n";
    return absl::OkStatus();
  }
};

}  // namespace

void AddHealthCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<HealthCommand>();
  command->server.timeout_ms = 5000;
  CLI::App* sub = app.add_subcommand("health", "Ask whether the server is ready: exit code 0 when it is, 1 when not");
  command->server.AddTo(*sub);
  sub->add_option("--service", command->service, "a service by its full name; default: the whole server");
  sub->footer("Example:\n  attn health --server 127.0.0.1:50051 && echo ready");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
