// attn info: what a server is, has and allows.
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/json.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

struct InfoCommand {
  ServerFlags server;
  bool json = false;

  absl::Status Run(const Io& io) const {
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::InfoResponse> info = (*client)->Info();
    if (!info.ok()) return server.Explain(info.status());
    if (json) {
      io.out << ToJson(*info).dump(2) << "\n";
    } else {
      Print(*info, io.out);
    }
    return absl::OkStatus();
  }

  void Print(const v1::InfoResponse& info, std::ostream& out) const {
    std::vector<std::string> dtypes;
    for (const int dtype : info.dtypes()) dtypes.emplace_back(Name(static_cast<DType>(dtype)));
    Table table({true, true});
    table.Row({"server", absl::StrCat("attnd ", info.version(), " at ", server.server)});
    table.Row({"instruction sets", absl::StrCat(info.instruction_set_used(), " used; found ",
                                                absl::StrJoin(info.instruction_sets_found(), ", "))});
    table.Row({"compute threads", absl::StrCat(info.threads())});
    table.Row({"dtypes", absl::StrJoin(dtypes, ", ")});
    table.Row({"options", absl::StrJoin(info.options(), ", ")});
    table.Row({"memory reserved now", HumanBytes(static_cast<double>(info.memory_bytes_used()))});
    table.Row({"peak resident memory", HumanBytes(static_cast<double>(info.memory_peak_resident_bytes()))});
    table.Row({"compute given back", absl::StrCat(HumanMicroseconds(static_cast<double>(info.compute_given_back_us())),
                                                  " of all threads, by problems that stopped early")});
    out << table.Text();
    Table limits({true, false, true});
    for (const v1::Limit& limit : info.limits()) {
      const auto value = static_cast<double>(limit.value());
      const bool bytes = limit.flag().find("bytes") != std::string::npos;
      limits.Row({absl::StrCat("--", limit.flag()), absl::StrCat(limit.value()), bytes ? HumanBytes(value) : ""});
    }
    out << "limits, by the server's flags\n" << limits.Text(2);
  }
};

}  // namespace

void AddInfoCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<InfoCommand>();
  CLI::App* sub = app.add_subcommand("info", "Show the server's version, instruction sets, limits and options");
  command->server.AddTo(*sub);
  sub->add_flag("--json", command->json, "print JSON");
  sub->footer("Example:\n  attn info --server 127.0.0.1:50051 --json");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
