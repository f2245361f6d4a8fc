#include "client/cli/bench/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench/call.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

constexpr std::chrono::milliseconds kRedraw(200);
constexpr int kPlainLines = 10;  // of a run at most
constexpr std::size_t kPlainColumns = 120, kBarMax = 40;

std::size_t TerminalColumns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string ProgressLine(const std::string& label, const Recorded& r, std::int64_t now_ns, std::size_t columns) {
  const double whole = static_cast<double>(r.end_ns - r.begin_ns) / 1e9;
  const double passed = std::clamp(static_cast<double>(now_ns - r.begin_ns) / 1e9, 0.0, whole);
  std::string line = label;
  if (now_ns < r.begin_ns) {
    absl::StrAppend(&line, "  warming up");
  } else {
    absl::StrAppendFormat(&line, "  %.0f of %.3g s  %.0f/s", passed, whole,
                          static_cast<double>(r.answered) / std::max(passed, 1e-3));
    if (r.answered > 0) {
      absl::StrAppend(&line, "  p50 ", HumanMicroseconds(r.latency_ns.Percentile(50) / 1e3), "  p99 ",
                      HumanMicroseconds(r.latency_ns.Percentile(99) / 1e3));
    }
    if (r.refused > 0) absl::StrAppend(&line, "  ", r.refused, " refused");
    if (r.failures() > 0) absl::StrAppend(&line, "  ", r.failures(), " failed");
  }
  // A bar in what is left of the width.
  if (line.size() + 14 < columns && now_ns >= r.begin_ns) {
    const std::size_t bar = std::min(columns - line.size() - 4, kBarMax);
    const auto done = static_cast<std::size_t>(passed / whole * static_cast<double>(bar));
    absl::StrAppend(&line, "  [", std::string(done, '#'), std::string(bar - done, '.'), "]");
  }
  return line.substr(0, columns);
}

Progress::Progress(const Io& io, std::string label, const Recorder& recorder)
    : io_(io), label_(std::move(label)), recorder_(recorder), thread_([this] { Show(); }) {}

Progress::~Progress() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (io_.err_is_terminal) io_.err << "\r\033[K" << std::flush;
}

void Progress::Show() {
  const std::chrono::nanoseconds length(recorder_.end_ns() - recorder_.begin_ns());
  const auto pause = io_.err_is_terminal
                         ? std::chrono::nanoseconds(kRedraw)
                         : std::max(length / kPlainLines, std::chrono::nanoseconds(std::chrono::seconds(1)));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return over_; })) {
    const std::size_t columns = io_.err_is_terminal ? TerminalColumns() - 1 : kPlainColumns;
    const std::string line = ProgressLine(label_, recorder_.Snapshot(), NowNs(), columns);
    if (io_.err_is_terminal) {
      io_.err << "\r" << line << "\033[K" << std::flush;
    } else {
      io_.err << line << "\n" << std::flush;
    }
  }
}

}  // namespace attnd::client
