// The server's flags under arbitrary lines of NAME=VALUE, as --flagfile has them. What comes out is a configuration
// that is within every range of the table, or INVALID_ARGUMENT in words that begin with a flag of the table; and
// written as text and read again it is the same.
#include <absl/flags/reflection.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/flags.h"

namespace {

using attnd::server::ServerConfig;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "flags_fuzz: %s\n", what.c_str());
  std::abort();
}

void CheckRanges(const ServerConfig& config) {
#define ATTND_RANGE(name, value, smallest, largest, meaning) \
  Check(config.name >= (smallest) && config.name <= (largest), #name);
  ATTND_NUMBER_FLAGS(ATTND_RANGE)
#undef ATTND_RANGE
  Check(!config.listen.empty(), "listens nowhere");
  for (const std::string& address : config.listen) Check(address.size() >= 3, "an address of nothing");
  const ServerConfig resolved = attnd::server::Resolve(config);
  Check(resolved.threads >= 1 && resolved.memory_bytes_max >= 1, "Resolve left a zero");
}

bool IsOurs(const absl::CommandLineFlag& flag) { return absl::EndsWith(flag.Filename(), "server/flags.cc"); }

// Sets the flags that the lines name.
void Set(absl::string_view lines) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(parts.first);
    std::string error;
    if (flag != nullptr && IsOurs(*flag)) flag->ParseFrom(parts.second, &error);
  }
}

using Texts = std::map<std::string, std::string>;

Texts Values() {
  Texts values;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag)) values[std::string(name)] = flag->CurrentValue();
  }
  return values;
}

void SetAll(const Texts& values) {
  for (const auto& [name, value] : values) {
    std::string error;
    Check(absl::FindCommandLineFlag(name)->ParseFrom(value, &error), error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto* const defaults = new Texts(Values());
  Set({reinterpret_cast<const char*>(data), size});
  const Texts values = Values();
  const absl::StatusOr<ServerConfig> config = attnd::server::ReadFlags();
  if (config.ok()) {
    CheckRanges(*config);
  } else {
    Check(absl::IsInvalidArgument(config.status()), config.status().ToString());
    absl::string_view name = config.status().message();
    Check(absl::ConsumePrefix(&name, "--") && values.count(std::string(name.substr(0, name.find_first_of(":,")))) == 1,
          config.status().ToString());
  }
  SetAll(*defaults);
  SetAll(values);
  Check(Values() == values, "written and read again, a flag has another value");
  SetAll(*defaults);
  return 0;
}
