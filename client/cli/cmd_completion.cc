// attn completion: what shells need to complete attn's own command line.
#include <ostream>

#include "client/cli/commands.h"
#include "client/cli/completion.h"

namespace attnd::client {

void AddCompletionCommand(CLI::App& app, Command& selected) {
  auto shell = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("completion", "Print a script with which a shell completes attn's command line");
  sub->add_option("shell", *shell, "the shell")
      ->type_name("{bash,zsh,fish}")
      ->required()
      ->check([](const std::string& name) {
        return name == "bash" || name == "zsh" || name == "fish" ? "" : "'" + name + "', expected bash, zsh or fish";
      });
  sub->footer("Example:\n  attn completion bash > ~/.local/share/bash-completion/completions/attn");
  sub->callback([shell, &app, &selected] {
    selected = [shell, &app](const Io& io) {
      io.out << (*shell == "bash" ? BashCompletion(app) : *shell == "zsh" ? ZshCompletion(app) : FishCompletion(app));
      return absl::OkStatus();
    };
  });
}

}  // namespace attnd::client
