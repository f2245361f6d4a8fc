#include "client/cli/cli.h"

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"

namespace attnd::client {

namespace {

// One line, whatever the message held: errors may carry text from a server or a file.
std::string OneLine(absl::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    line.push_back(byte < 0x20 || byte == 0x7f ? ' ' : c);
  }
  return line;
}

std::string Called(const CLI::App& app) {
  std::string name = "attn";
  for (const CLI::App* command : app.get_subcommands()) absl::StrAppend(&name, " ", command->get_name());
  return name;
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv, Io io) {
  CLI::App app{"attn: ask an attnd server for attention, and see what it did."};
  app.name("attn");
  app.set_version_flag("--version", absl::StrCat("attn ", ATTND_VERSION));
  app.require_subcommand(1);
  app.footer("Example:\n  attn explain\n\n`attn COMMAND --help` shows a command's flags and an example.");
  Command selected;
  AddRunCommand(app, selected);
  AddExplainCommand(app, selected);
  AddPlanCommand(app, selected);
  AddBenchCommand(app, selected);
  AddInfoCommand(app, selected);
  AddHealthCommand(app, selected);
  AddCompletionCommand(app, selected);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked, io.out, io.err);
  } catch (const CLI::ParseError& error) {
    const std::string called = Called(app);
    io.err << called << ": " << OneLine(error.what()) << "; try `" << called << " --help`\n";
    return 2;
  }
  const absl::Status status = selected(io);
  if (status.ok()) return 0;
  const std::string called = Called(app);
  io.err << called << ": " << OneLine(status.message());
  if (IsUsageError(status)) io.err << "; try `" << called << " --help`";
  io.err << "\n";
  return IsUsageError(status) ? 2 : 1;
}

}  // namespace attnd::client
