#include "client/cli/load.h"

#include <chrono>
#include <latch>
#include <thread>

#include "absl/time/clock.h"

namespace attnd::client {

namespace {

// After a refusal or an error, so that a server in trouble is not asked in a tight loop.
constexpr absl::Duration kPauseAfterError = absl::Milliseconds(5);

class Worker {
 public:
  Worker(const ServerFlags& server, const Problem& problem, const LoadOptions& options)
      : server_(server), problem_(problem), options_(options) {}

  absl::Status Connect() {
    absl::StatusOr<std::unique_ptr<Client>> client = server_.Connect();
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    return absl::OkStatus();
  }

  void WarmUp() { Call().status().IgnoreError(); }

  void Loop(absl::Time end) {
    while (absl::Now() < end) {
      const auto start = std::chrono::steady_clock::now();
      const absl::StatusOr<Answer> answer = Call();
      const std::int64_t took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
      if (answer.ok()) {
        Count(*answer, took_ns);
        continue;
      }
      if (absl::IsResourceExhausted(answer.status())) {
        ++result.refused;
      } else {
        ++result.failed[answer.status().code()];
        if (result.first_failure.ok()) result.first_failure = answer.status();
      }
      absl::SleepFor(kPauseAfterError);
    }
  }

  LoadResult result;

 private:
  absl::StatusOr<Answer> Call() {
    if (!options_.stream) return client_->Attend(problem_);
    if (stream_ == nullptr || !stream_->alive()) {
      stream_ = client_->OpenStream({options_.duration + 2 * absl::Milliseconds(server_.timeout_ms)});
    }
    return stream_->Attend(problem_);
  }

  void Count(const Answer& answer, std::int64_t took_ns) {
    ++result.requests;
    result.latency_ns.Add(took_ns);
    result.flops += static_cast<double>(answer.statistics.flops());
    result.bytes += static_cast<double>(problem_.request_bytes()) + static_cast<double>(answer.output.bytes.size());
    result.queue_us += static_cast<double>(answer.statistics.queue_us());
    result.compute_us += static_cast<double>(answer.statistics.compute_us());
  }

  const ServerFlags& server_;
  const Problem& problem_;
  const LoadOptions& options_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

void LoadResult::Merge(const LoadResult& other) {
  requests += other.requests;
  refused += other.refused;
  for (const auto& [code, count] : other.failed) failed[code] += count;
  first_failure.Update(other.first_failure);
  latency_ns.Merge(other.latency_ns);
  flops += other.flops;
  bytes += other.bytes;
  queue_us += other.queue_us;
  compute_us += other.compute_us;
}

absl::StatusOr<LoadResult> RunLoad(const ServerFlags& server, const Problem& problem, const LoadOptions& options) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::int64_t w = 0; w < options.concurrency; ++w) {
    workers.push_back(std::make_unique<Worker>(server, problem, options));
    const absl::Status status = workers.back()->Connect();
    if (!status.ok()) return status;
  }
  // All begin to count at once, after everyone is warm.
  std::latch warm(static_cast<std::ptrdiff_t>(options.concurrency) + 1);
  std::latch go(1);
  absl::Time end;
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Worker>& worker : workers) {
    threads.emplace_back([&warm, &go, &end, &worker] {
      worker->WarmUp();
      warm.count_down();
      go.wait();
      worker->Loop(end);
    });
  }
  warm.arrive_and_wait();
  const absl::Time start = absl::Now();
  end = start + options.duration;
  go.count_down();
  for (std::thread& thread : threads) thread.join();
  LoadResult total;
  for (const std::unique_ptr<Worker>& worker : workers) total.Merge(worker->result);
  total.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return total;
}

}  // namespace attnd::client
