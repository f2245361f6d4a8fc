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

  void WarmUp() {
    for (std::int64_t call = 0; call < options_.warm_up_calls; ++call) {
      std::optional<Problem> own = OwnCopy();
      Call(own).status().IgnoreError();
    }
  }

  // At least one call, however late this thread gets to run.
  void Loop(absl::Time end) {
    do {
      std::optional<Problem> own = OwnCopy();  // to convert it is part of the call, to have it is not
      const auto start = std::chrono::steady_clock::now();
      const absl::StatusOr<Answer> answer = Call(own);
      const std::int64_t took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
      if (answer.ok()) {
        Count(own ? *own : problem_, *answer, took_ns);
        continue;
      }
      if (absl::IsResourceExhausted(answer.status())) {
        ++result.refused;
      } else {
        ++result.failed[answer.status().code()];
        if (result.first_failure.ok()) result.first_failure = answer.status();
      }
      absl::SleepFor(kPauseAfterError);
    } while (absl::Now() < end);
  }

  LoadResult result;

 private:
  // The problem to make narrower, where calls do that.
  std::optional<Problem> OwnCopy() const {
    if (!options_.wire_dtype) return std::nullopt;
    std::optional<Problem> own = problem_;
    own->options();  // a copy to change, of every tensor
    return own;
  }

  absl::StatusOr<Answer> Call(std::optional<Problem>& own) {
    if (own) {
      const absl::Status converted = own->SetWireDType(*options_.wire_dtype);
      if (!converted.ok()) return converted;
    }
    const Problem& problem = own ? *own : problem_;
    if (!options_.stream) return client_->Attend(problem);
    if (stream_ == nullptr || !stream_->alive()) {
      const std::int64_t calls = options_.warm_up_calls + 1;  // the last may begin as the time ends
      stream_ = client_->OpenStream({options_.duration + calls * absl::Milliseconds(server_.timeout_ms)});
    }
    return stream_->Attend(problem);
  }

  void Count(const Problem& sent, const Answer& answer, std::int64_t took_ns) {
    ++result.requests;
    result.latency_ns.Add(took_ns);
    result.flops += static_cast<double>(answer.statistics.flops());
    result.bytes += static_cast<double>(sent.request_bytes() + sent.reply_bytes().value_or(0));
    result.queue_us += static_cast<double>(answer.statistics.queue_us());
    result.compute_us.Add(answer.statistics.compute_us());
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
  compute_us.Merge(other.compute_us);
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
