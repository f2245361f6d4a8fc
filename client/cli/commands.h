// The commands of attn. Each adds its subcommand with its flags to `app`, and sets `selected` when it is the one
// called. Thread rule: one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/status.h"
#include "client/cli/cli.h"

namespace attnd::client {

using Command = std::function<absl::Status(const Io&)>;

void AddRunCommand(CLI::App& app, Command& selected);
void AddExplainCommand(CLI::App& app, Command& selected);
void AddPlanCommand(CLI::App& app, Command& selected);
void AddBenchCommand(CLI::App& app, Command& selected);
void AddStoreCommand(CLI::App& app, Command& selected);
void AddInfoCommand(CLI::App& app, Command& selected);
void AddHealthCommand(CLI::App& app, Command& selected);
// What shells complete is all that `app` has when this command runs.
void AddCompletionCommand(CLI::App& app, Command& selected);

}  // namespace attnd::client
