#include "client/cli/cli.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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

// How many letters one has to add, leave out, replace or swap with the next to make one word of the other.
std::size_t Distance(absl::string_view from, absl::string_view to) {
  std::vector<std::vector<std::size_t>> least(from.size() + 1, std::vector<std::size_t>(to.size() + 1));
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = least[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      least[i][j] = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
      }
    }
  }
  return least[from.size()][to.size()];
}

// "; did you mean run?": the name that is a third of its letters away or less.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& names) {
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const std::string& name : names) {
    const std::size_t distance = Distance(word, name);
    if (3 * distance > std::max<std::size_t>(name.size(), 3)) continue;
    if (nearest == nullptr || distance < least) std::tie(nearest, least) = std::pair(&name, distance);
  }
  return nearest == nullptr ? "" : absl::StrCat("; did you mean ", *nearest, "?");
}

// What the first word that is none of the command line's own is, and what it may have been meant to be; empty where
// there is no such word.
std::string UnknownWord(const CLI::App& app, int argc, const char* const* argv) {
  const std::vector<CLI::App*> called = app.get_subcommands();
  std::vector<std::string> names;
  if (called.empty()) {
    if (argc < 2 || argv[1][0] == '-') return "";
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return absl::StrCat("no command is called ", argv[1], DidYouMean(argv[1], names));
  }
  for (const CLI::Option* option : called.front()->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
  }
  for (int i = 2; i < argc; ++i) {
    const absl::string_view word = argv[i];
    const std::string flag(word.substr(0, word.find('=')));
    if (word == "--" || !absl::StartsWith(word, "--")) continue;
    if (std::find(names.begin(), names.end(), flag) != names.end()) continue;
    return absl::StrCat("no flag is called ", flag, DidYouMean(flag, names));
  }
  return "";
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
  AddStoreCommand(app, selected);
  AddInfoCommand(app, selected);
  AddHealthCommand(app, selected);
  AddCompletionCommand(app, selected);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked, io.out, io.err);
  } catch (const CLI::ParseError& error) {
    const std::string called = Called(app);
    const bool unknown = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                         error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
    std::string what = unknown ? UnknownWord(app, argc, argv) : "";
    if (what.empty()) what = error.what();
    io.err << called << ": " << OneLine(what) << "; try `" << called << " --help`\n";
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
