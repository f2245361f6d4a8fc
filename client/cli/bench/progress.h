// How far a load is, while it runs: a line that is drawn over on a terminal, plain lines elsewhere.
// Thread rule: a thread of its own between making and destroying.
#pragma once

#include <condition_variable>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

#include "client/cli/bench/recorder.h"
#include "client/cli/cli.h"

namespace attnd::client {

// The line for what was recorded until `now_ns`, no wider than `columns`.
std::string ProgressLine(const std::string& label, const Recorded& recorded, std::int64_t now_ns, std::size_t columns);

class Progress {
 public:
  // `label` says which load it is; the recorder lives longer.
  Progress(const Io& io, std::string label, const Recorder& recorder);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Show();

  const Io io_;
  const std::string label_;
  const Recorder& recorder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace attnd::client
