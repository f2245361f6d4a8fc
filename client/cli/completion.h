// Scripts with which shells complete a command line, made of the command line's own description: its subcommands, their
// options, and the words that an option takes where its type_name lists them in braces. Other text may be a file.
// Thread rule: pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace attnd::client {

std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);
std::string FishCompletion(const CLI::App& app);

}  // namespace attnd::client
