#include "client/cli/bench/driver.h"

#include <grpcpp/alarm.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "client/cli/bench/call.h"

namespace attnd::client {

namespace {

// After a refusal or an error a caller of a closed loop waits, so that a server in trouble is not asked in a tight
// loop.
constexpr std::chrono::milliseconds kPauseAfterError(5);
// An open loop's problems that one stream carries at once.
constexpr std::int64_t kPerStream = 32;
// How long after its end an open loop goes on sending what was due.
constexpr std::int64_t kGraceNs = 1'000'000'000;

double CpuSeconds(clockid_t clock) {
  timespec used{};
  clock_gettime(clock, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Reads a completion queue until it is shut down.
class Poller {
 public:
  Poller() : thread_([this] { Read(); }) { pthread_getcpuclockid(thread_.native_handle(), &cpu_clock_); }
  ~Poller() {
    queue_.Shutdown();
    thread_.join();
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue& queue() { return queue_; }
  clockid_t cpu_clock() const { return cpu_clock_; }

 private:
  void Read() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) static_cast<Event*>(tag)->Happened(ok);
  }

  grpc::CompletionQueue queue_;
  std::thread thread_;
  clockid_t cpu_clock_ = 0;
};

// A connection with its stream, where streams are asked for.
struct Line {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::GenericStub> stub;
  Poller* poller = nullptr;
  std::unique_ptr<StreamLine> stream;
};

// How much CPU threads take from its making on.
class CpuMeter {
 public:
  explicit CpuMeter(std::vector<clockid_t> threads) : threads_(std::move(threads)), begin_ns_(NowNs()) {
    for (const clockid_t thread : threads_) begin_.push_back(CpuSeconds(thread));
    process_ = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
  }

  OwnCpu Read() const {
    const double seconds = static_cast<double>(std::max<std::int64_t>(NowNs() - begin_ns_, 1)) / 1e9;
    OwnCpu cpu;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      cpu.busiest_thread = std::max(cpu.busiest_thread, (CpuSeconds(threads_[t]) - begin_[t]) / seconds);
    }
    cpu.process = (CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - process_) / seconds;
    return cpu;
  }

 private:
  const std::vector<clockid_t> threads_;
  const std::int64_t begin_ns_;
  std::vector<double> begin_;
  double process_ = 0;
};

// While it lives, its thread is woken when it asked to be: not 50 us later, and before others where the system allows a
// real-time priority.
class Punctual {
 public:
  Punctual() : slack_(prctl(PR_GET_TIMERSLACK)) {
    prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds
    pthread_getschedparam(pthread_self(), &policy_, &scheduling_);
    sched_param first{};
    first.sched_priority = 1;
    pthread_setschedparam(pthread_self(), SCHED_RR, &first);
  }
  ~Punctual() {
    pthread_setschedparam(pthread_self(), policy_, &scheduling_);
    prctl(PR_SET_TIMERSLACK, slack_);
  }
  Punctual(const Punctual&) = delete;
  Punctual& operator=(const Punctual&) = delete;

 private:
  const int slack_;
  int policy_ = 0;
  sched_param scheduling_{};
};

class GrpcDriver : public Driver {
 public:
  GrpcDriver(const ServerFlags& server, const Workload& workload, const DriverOptions& options)
      : timeout_(absl::Milliseconds(server.timeout_ms)),
        workload_(workload),
        options_(options),
        kept_(workload.items.size()),
        replies_(workload.items.size()) {
    for (std::int64_t t = 0; t < options.threads; ++t) pollers_.push_back(std::make_unique<Poller>());
  }

  ~GrpcDriver() override { pollers_.clear(); }

  absl::Status Connect(const ServerFlags& server) {
    const auto channels = server.ConnectChannels(static_cast<int>(options_.connections));
    if (!channels.ok()) return channels.status();
    for (const std::shared_ptr<grpc::Channel>& channel : *channels) {
      Line line;
      line.channel = channel;
      line.stub = std::make_unique<grpc::GenericStub>(line.channel);
      line.poller = pollers_[lines_.size() % pollers_.size()].get();
      if (options_.stream) {
        line.stream = std::make_unique<StreamLine>(*line.stub, line.poller->queue());
      }
      lines_.push_back(std::move(line));
    }
    return absl::OkStatus();
  }

  OwnCpu RunOpen(const Arrivals& arrivals, Recorder& recorder) override;
  OwnCpu RunClosed(std::int64_t callers, Recorder& recorder) override {
    Open(absl::Nanoseconds(recorder.end_ns() - NowNs()) + 2 * timeout_);
    const CpuMeter meter(Clocks());
    Callers(callers, &recorder, 0);
    const OwnCpu cpu = meter.Read();
    Close();
    return cpu;
  }
  void WarmUp(std::int64_t callers, std::int64_t calls) override {
    Open(calls * timeout_);
    Callers(callers, nullptr, calls);
    Close();
  }
  std::vector<grpc::ByteBuffer> TakeReplies() override {
    const std::scoped_lock lock(replies_mutex_);
    return std::exchange(replies_, std::vector<grpc::ByteBuffer>(workload_.items.size()));
  }

  // A request for the item; what every call converts is copied before, and converted as part of the call.
  void Send(Line& line, Request request) {
    if (workload_.convert) request.own->SetWireDType(*workload_.convert).IgnoreError();  // Workload::Make tried it
    if (line.stream != nullptr) {
      line.stream->Send(std::move(request));
    } else {
      StartUnary(std::move(request), *line.stub, line.poller->queue(), timeout_, see_);
    }
  }
  Request Make(const WorkItem& item) const {
    Request request;
    request.item = &item;
    if (workload_.convert) {
      request.own = item.problem;
      request.own->options();  // a copy to change, of every tensor
    }
    return request;
  }
  std::vector<Line>& lines() { return lines_; }
  const DriverOptions& options() const { return options_; }
  const Workload& workload() const { return workload_; }

 private:
  std::vector<clockid_t> Clocks() const {
    std::vector<clockid_t> clocks;
    for (const auto& poller : pollers_) clocks.push_back(poller->cpu_clock());
    return clocks;
  }
  void Open(absl::Duration deadline) {
    for (Line& line : lines_) {
      if (line.stream != nullptr) line.stream->SetDeadline(absl::Now() + deadline);
    }
  }
  void Close() {
    for (Line& line : lines_) {
      if (line.stream != nullptr) line.stream->Close();
    }
  }
  // Until the recorder's end, or so many calls each where there is none.
  void Callers(std::int64_t callers, Recorder* recorder, std::int64_t calls);

  void Keep(const WorkItem& item, const grpc::ByteBuffer& reply) {
    const auto index = static_cast<std::size_t>(&item - workload_.items.data());
    if (kept_[index].exchange(true, std::memory_order_relaxed)) return;
    const std::scoped_lock lock(replies_mutex_);
    replies_[index] = reply;
  }

  const absl::Duration timeout_;
  const Workload& workload_;
  const DriverOptions options_;
  std::vector<std::atomic<bool>> kept_;
  std::mutex replies_mutex_;
  std::vector<grpc::ByteBuffer> replies_;
  const SeeReply see_ = [this](const WorkItem& item, const grpc::ByteBuffer& reply) { Keep(item, reply); };
  std::vector<std::unique_ptr<Poller>> pollers_;  // their threads use all of the above
  std::vector<Line> lines_;
};

// One caller of a closed loop.
class Caller {
 public:
  Caller(GrpcDriver& driver, Line& line, std::uint64_t seed, Recorder* recorder, std::int64_t calls, std::latch& ended)
      : driver_(driver),
        line_(line),
        picker_(driver.workload(), seed),
        recorder_(recorder),
        calls_(calls),
        ended_(ended),
        paused_([this](bool) { Again(); }) {}

  void Ask() {
    Request request = driver_.Make(picker_.Next());
    request.done = [this](const Outcome& outcome) { Done(outcome); };
    request.due_ns = NowNs();
    driver_.Send(line_, std::move(request));
  }

 private:
  void Done(const Outcome& outcome) {
    if (recorder_ != nullptr) {
      recorder_->Done(outcome);
      recorder_->Late(outcome.due_ns, outcome.sent_ns - outcome.due_ns, false);
    }
    if (outcome.status.ok()) {
      Again();
    } else {
      pause_.Set(&line_.poller->queue(), std::chrono::system_clock::now() + kPauseAfterError, &paused_);
    }
  }
  void Again() {
    if (recorder_ != nullptr ? NowNs() < recorder_->end_ns() : --calls_ > 0) {
      Ask();
    } else {
      ended_.count_down();
    }
  }

  GrpcDriver& driver_;
  Line& line_;
  Picker picker_;
  Recorder* const recorder_;
  std::int64_t calls_;
  std::latch& ended_;
  Hook paused_;
  grpc::Alarm pause_;
};

void GrpcDriver::Callers(std::int64_t callers, Recorder* recorder, std::int64_t calls) {
  std::latch ended(static_cast<std::ptrdiff_t>(callers));
  std::vector<std::unique_ptr<Caller>> all;
  for (std::int64_t c = 0; c < callers; ++c) {
    all.push_back(std::make_unique<Caller>(*this, lines_[static_cast<std::size_t>(c) % lines_.size()],
                                           options_.seed + static_cast<std::uint64_t>(c), recorder, calls, ended));
  }
  for (const auto& caller : all) caller->Ask();
  ended.wait();
}

// The open loop's end of the schedule: connections in turn, and a bound on what is in flight.
class OpenLoop : public Sender {
 public:
  OpenLoop(GrpcDriver& driver, Recorder& recorder)
      : driver_(driver), recorder_(recorder), picker_(driver.workload(), driver.options().seed) {
    const auto lines = static_cast<std::int64_t>(driver.lines().size());
    most_ = driver.options().stream ? std::min(driver.options().in_flight_max, kPerStream * lines)
                                    : driver.options().in_flight_max;
  }

  bool WaitForRoom() override {
    std::unique_lock lock(mutex_);
    if (in_flight_ < most_) return false;
    waiting_ = true;
    changed_.wait(lock, [&] { return in_flight_ < most_; });
    waiting_ = false;
    return true;
  }

  void Send(std::int64_t due_ns) override {
    {
      const std::scoped_lock lock(mutex_);
      ++in_flight_;
    }
    Request request = driver_.Make(picker_.Next());
    request.due_ns = due_ns;
    request.done = [this](const Outcome& outcome) {
      recorder_.Done(outcome);
      const std::scoped_lock lock(mutex_);
      --in_flight_;
      if (waiting_) changed_.notify_all();
    };
    driver_.Send(driver_.lines()[next_++ % driver_.lines().size()], std::move(request));
  }

  bool Stopped() override { return recorder_.stopped(); }

  void Late(std::int64_t due_ns, std::int64_t room_ns, std::int64_t sent_ns) override {
    recorder_.Late(due_ns, sent_ns - std::max(due_ns, room_ns), room_ns > due_ns);
  }

  void WaitForAll() {
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.wait(lock, [&] { return in_flight_ == 0; });
  }

 private:
  GrpcDriver& driver_;
  Recorder& recorder_;
  Picker picker_;
  std::int64_t most_ = 0;
  std::size_t next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t in_flight_ = 0;
  bool waiting_ = false;  // someone waits for fewer
};

OwnCpu GrpcDriver::RunOpen(const Arrivals& arrivals, Recorder& recorder) {
  Open(absl::Nanoseconds(recorder.end_ns() - NowNs()) + 2 * timeout_);
  std::vector<clockid_t> clocks = Clocks();
  clocks.push_back(CLOCK_THREAD_CPUTIME_ID);
  const CpuMeter meter(clocks);
  OpenLoop loop(*this, recorder);
  SteadyClock clock;
  {
    const Punctual punctual;
    recorder.Unsent(Pace(arrivals, clock, NowNs(), recorder.end_ns(), kGraceNs, loop));
  }
  const OwnCpu cpu = meter.Read();
  loop.WaitForAll();
  Close();
  return cpu;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Connect(const ServerFlags& server, const Workload& workload,
                                                        const DriverOptions& options) {
  auto driver = std::make_unique<GrpcDriver>(server, workload, options);
  const absl::Status connected = driver->Connect(server);
  if (!connected.ok()) return connected;
  return driver;
}

}  // namespace attnd::client
