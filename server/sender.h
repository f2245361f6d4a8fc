// The thread that sends what compute threads finished. They stand behind all others, so an answer would leave late by
// them, and what sending takes would be nobody's share: with 16 callers of 1,8,64,64 this answers an eighth more.
// Thread rule: every function from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace attnd::server {

class Sender {
 public:
  Sender();
  // Does first what it still has.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // At once where the caller is no compute thread, else soon, in the order asked.
  void Do(std::function<void()> task);
  // Soon, on this thread, in the order asked.
  void Later(std::function<void()> task);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace attnd::server
