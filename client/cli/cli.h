// The command line as a function, so that tests call it without a process.
// Thread rule: one call at a time.
#pragma once

#include <ostream>

namespace attnd::client {

// Where a command writes. Progress goes to `err`: drawn over when that is a terminal, else few lines or none.
struct Io {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;
};

// Exit codes: 0 done (--help too), 1 it failed (or is not serving), 2 the command line itself was wrong.
int RunCommandLine(int argc, const char* const* argv, Io io);

}  // namespace attnd::client
