#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

namespace attnd::server {
namespace {

using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr absl::string_view kMethods[] = {"Attend",
                                          "AttendStream",
                                          "ModelInfer",
                                          "ModelStreamInfer",
                                          "Plan",
                                          "Info",
                                          "PutTensor",
                                          "AppendTensors",
                                          "GetTensor",
                                          "ListTensors",
                                          "DeleteTensor",
                                          "PutWeightSet",
                                          "GetWeightSet",
                                          "ListWeightSets",
                                          "DeleteWeightSet",
                                          "ServerLive",
                                          "ServerReady",
                                          "ModelReady",
                                          "ServerMetadata",
                                          "ModelMetadata",
                                          "ModelConfig",
                                          "ModelStatistics",
                                          "RepositoryIndex",
                                          "Check",
                                          "Watch",
                                          "ServerReflectionInfo",
                                          "other"};
constexpr std::size_t kMethodCount = std::size(kMethods);
constexpr std::size_t kProblemMethodCount = 4;  // the first of them carry problems
constexpr absl::string_view kIdentityClasses[] = {"anonymous", "token", "certificate"};
constexpr std::size_t kCodeCount = 17;  // 0 to UNAUTHENTICATED, as gRPC numbers them
constexpr absl::string_view kPaths[] = {"/metrics", "/healthz", "/readyz", "/statusz", "/loglevel", "other"};
constexpr absl::string_view kStages[] = {"receive", "queue", "compute", "send"};

// FLOPs of a problem from which on what it reached says something about the machine, not about a microsecond's
// overhead.
constexpr std::int64_t kRateFlopsMin = 10'000'000;

const Histogram::BucketBoundaries kSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                              0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    120,  600};
const Histogram::BucketBoundaries kBytes = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20,
                                            1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30, 17179869184.0};
const Histogram::BucketBoundaries kFlops = {1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};
const Histogram::BucketBoundaries kFlopRates = {1e8, 1e9, 5e9, 1e10, 2e10, 5e10, 1e11, 2e11, 5e11, 1e12, 2e12, 5e12};
const Histogram::BucketBoundaries kRatios = {0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.5};

std::size_t MethodIndex(absl::string_view method) {
  const auto* const found = std::find(std::begin(kMethods), std::end(kMethods) - 1, method);
  return static_cast<std::size_t>(found - std::begin(kMethods));
}

std::string Text(absl::string_view text) { return std::string(text); }

// A family whose values are read when a page is made.
struct Read {
  MetricType type;
  std::string name, help;
  struct One {
    Metrics::Labels labels;
    std::function<double()> read;
  };
  std::vector<One> each;
};

MetricFamily Collect(const Read& family) {
  MetricFamily collected{family.name, family.help, family.type, {}};
  for (const Read::One& one : family.each) {
    ClientMetric metric;
    for (const auto& [name, value] : one.labels) metric.label.push_back({name, value});
    metric.gauge.value = metric.counter.value = one.read();
    collected.metric.push_back(std::move(metric));
  }
  return collected;
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  std::vector<Read> read;
  double peak_flops_per_thread = 0;

  Family<Counter>& Counters(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  Family<Histogram>& Histograms(const std::string& name, const std::string& help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  // One counter for each of `values` of a label.
  template <std::size_t kCount>
  std::array<Counter*, kCount> CountersBy(const std::string& label, const absl::string_view (&values)[kCount],
                                          const std::string& name, const std::string& help) {
    Family<Counter>& family = Counters(name, help);
    std::array<Counter*, kCount> counters{};
    for (std::size_t i = 0; i < kCount; ++i) counters[i] = &family.Add({{label, Text(values[i])}});
    return counters;
  }
  // The same for methods, the first kCount of them.
  template <std::size_t kCount>
  std::array<Histogram*, kCount> HistogramsByMethod(const Histogram::BucketBoundaries& buckets, const std::string& name,
                                                    const std::string& help) {
    Family<Histogram>& family = Histograms(name, help);
    std::array<Histogram*, kCount> histograms{};
    for (std::size_t i = 0; i < kCount; ++i) histograms[i] = &family.Add({{"method", Text(kMethods[i])}}, buckets);
    return histograms;
  }

  static constexpr absl::string_view kResults[] = {"failed", "ok"};
  static constexpr absl::string_view kTiles[] = {"run", "skipped", "cancelled"};
  static constexpr absl::string_view kRefusals[] = {"limit", "descriptors"};

  Family<Counter>& requests =
      Counters("attnd_requests_total", "Requests that ended: calls, and problems of streams, by gRPC status code.");
  // Each made when it is first needed: most of the combinations never come.
  std::array<std::array<std::array<std::atomic<Counter*>, std::size(kIdentityClasses)>, kCodeCount>, kMethodCount>
      requests_by{};
  std::array<Histogram*, kMethodCount> duration = HistogramsByMethod<kMethodCount>(
      kSeconds, "attnd_request_duration_seconds", "From the last byte of a request to the end of its answer.");
  std::array<std::array<Histogram*, std::size(kStages)>, kProblemMethodCount> stages{};
  std::array<Histogram*, kMethodCount> request_bytes =
      HistogramsByMethod<kMethodCount>(kBytes, "attnd_request_size_bytes", "Bytes of a request.");
  std::array<Histogram*, kMethodCount> reply_bytes =
      HistogramsByMethod<kMethodCount>(kBytes, "attnd_reply_size_bytes", "Bytes of an answer.");
  std::array<Histogram*, kProblemMethodCount> problem_flops = HistogramsByMethod<kProblemMethodCount>(
      kFlops, "attnd_problem_flops",
      "Floating-point operations of a problem that came to computing, without what is excluded.");
  std::array<Histogram*, kProblemMethodCount> problem_bytes = HistogramsByMethod<kProblemMethodCount>(
      kBytes, "attnd_problem_memory_bytes", "Memory that was reserved for such a problem.");
  Counter& flops =
      Counters("attnd_compute_flops_total", "Floating-point operations done for problems, without what is excluded.")
          .Add({});
  Counter& cpu_seconds =
      Counters("attnd_compute_cpu_seconds_total", "CPU time that compute threads spent on problems.").Add({});
  Counter& given_back_seconds =
      Counters("attnd_compute_given_back_seconds_total",
               "CPU time that problems did not take because they were cancelled or ran out of time.")
          .Add({});
  std::array<Counter*, 3> tiles = CountersBy("outcome", kTiles, "attnd_compute_tiles_total",
                                             "Tiles of scores: run, skipped since all of it is excluded, or cancelled "
                                             "with their problem.");
  Counter& weight_blocks_shared =
      Counters("attnd_compute_weight_blocks_shared_total",
               "Blocks of weights that were multiplied with rows of several problems at once, one for each of these.")
          .Add({});
  Histogram& flop_rate =
      Histograms("attnd_compute_flops_per_second", "What a problem of 1e7 or more FLOPs reached while it computed.")
          .Add({}, kFlopRates);
  Histogram& peak_ratio = Histograms("attnd_compute_peak_ratio",
                                     "The same by the CPU time that it took, as a share of what as many threads reach "
                                     "in float32 multiply-adds, measured at start.")
                              .Add({}, kRatios);
  Counter& accepted = Counters("attnd_connections_accepted_total", "Connections that were accepted.").Add({});
  std::array<Counter*, 2> refused =
      CountersBy("reason", kRefusals, "attnd_connections_refused_total",
                 "Connections that were closed at once (limit: connections_max), and times that accepting paused for "
                 "lack of descriptors.");
  std::array<Counter*, 2> tls_reloads =
      CountersBy("result", kResults, "attnd_tls_reloads_total",
                 "Times that changed certificate files were read; failed: the ones before stay in use.");
  std::array<Counter*, 2> auth_reloads =
      CountersBy("result", kResults, "attnd_auth_reloads_total",
                 "Times that a changed file of identities was read; failed: the one before stays in use.");
  std::array<Counter*, 2> readiness =
      CountersBy("result", kResults, "attnd_readiness_checks_total", "Tiny attentions computed for /readyz.");
  Family<Counter>& admin = Counters("attnd_admin_requests_total", "Requests to the admin port, by HTTP status code.");

  Families() {
    Family<Histogram>& family =
        Histograms("attnd_request_stage_duration_seconds",
                   "Parts of a request's time: receive (its bytes), queue (until it computes), compute, send.");
    for (std::size_t method = 0; method < stages.size(); ++method) {
      for (std::size_t stage = 0; stage < std::size(kStages); ++stage) {
        stages[method][stage] =
            &family.Add({{"method", Text(kMethods[method])}, {"stage", Text(kStages[stage])}}, kSeconds);
      }
    }
    // What a rate or an alert looks at should be there before it counts.
    for (const absl::string_view path : kPaths) Admin(path, path == "other" ? 404 : 200);
    for (std::size_t method = 0; method < kProblemMethodCount; ++method) {
      for (const absl::StatusCode code :
           {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument, absl::StatusCode::kDeadlineExceeded,
            absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal, absl::StatusCode::kUnavailable}) {
        Requests(method, static_cast<std::size_t>(code), 0);
      }
    }
  }

  Counter& Admin(absl::string_view path, int code) {
    return admin.Add({{"path", Text(path)}, {"code", std::to_string(code)}});
  }

  Counter& Requests(std::size_t method, std::size_t code, std::size_t identity) {
    std::atomic<Counter*>& known = requests_by[method][code][identity];
    Counter* counter = known.load(std::memory_order_acquire);
    if (counter == nullptr) {
      counter = &requests.Add({{"method", Text(kMethods[method])},
                               {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))},
                               {"identity_class", Text(kIdentityClasses[identity])}});  // the same one for all who ask
      known.store(counter, std::memory_order_release);
    }
    return *counter;
  }

  void AddRead(MetricType type, const std::string& name, const std::string& help, std::function<double()> value,
               const Labels& labels) {
    auto family = std::find_if(read.begin(), read.end(), [&](const Read& other) { return other.name == name; });
    if (family == read.end()) family = read.insert(read.end(), {type, name, help, {}});
    family->each.push_back({labels, std::move(value)});
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::Count(const RequestRecord& record) {
  Families& all = *families_;
  const std::size_t method = MethodIndex(record.method);
  const int raw = record.status.raw_code();
  const std::size_t code = raw >= 0 && raw < static_cast<int>(kCodeCount)
                               ? static_cast<std::size_t>(raw)
                               : static_cast<std::size_t>(absl::StatusCode::kUnknown);
  all.Requests(method, code, static_cast<std::size_t>(record.identity_class)).Increment();
  all.duration[method]->Observe(absl::ToDoubleSeconds(record.total));
  all.request_bytes[method]->Observe(static_cast<double>(record.request_bytes));
  all.reply_bytes[method]->Observe(static_cast<double>(record.reply_bytes));
  if (method >= kProblemMethodCount || record.flops == 0) return;  // the rest is of problems that came to computing

  const absl::Duration parts[] = {record.received, record.queued, record.computed, record.sent};
  for (std::size_t stage = 0; stage < std::size(kStages); ++stage) {
    all.stages[method][stage]->Observe(absl::ToDoubleSeconds(parts[stage]));
  }
  all.problem_flops[method]->Observe(static_cast<double>(record.flops));
  all.problem_bytes[method]->Observe(static_cast<double>(record.memory_bytes));
  const double done = static_cast<double>(record.flops) * record.done;
  const double computed = absl::ToDoubleSeconds(record.computed), worked = absl::ToDoubleSeconds(record.worked);
  all.flops.Increment(done);
  all.cpu_seconds.Increment(worked);
  all.given_back_seconds.Increment(absl::ToDoubleSeconds(record.given_back));
  const std::int64_t tiles[] = {record.tiles_run, record.tiles_skipped, record.tiles_cancelled};
  for (std::size_t i = 0; i < std::size(tiles); ++i) all.tiles[i]->Increment(static_cast<double>(tiles[i]));
  all.weight_blocks_shared.Increment(static_cast<double>(record.weight_blocks_shared));
  if (record.tiles_run == 0 || done < static_cast<double>(kRateFlopsMin) || computed <= 0 || worked <= 0) return;
  all.flop_rate.Observe(done / computed);
  if (all.peak_flops_per_thread > 0) all.peak_ratio.Observe(done / worked / all.peak_flops_per_thread);
}

void Metrics::SetPeak(double flops_per_second, std::int64_t threads) {
  families_->peak_flops_per_thread = flops_per_second / static_cast<double>(threads);
  AddGauge("attnd_compute_peak_flops_per_second",
           "Float32 multiply-adds of all compute threads, counted twice, measured at start.",
           [flops_per_second] { return flops_per_second; });
  AddGauge("attnd_compute_threads", "Compute threads.", [threads] { return static_cast<double>(threads); });
}

void Metrics::ConnectionAccepted() { families_->accepted.Increment(); }
void Metrics::ConnectionRefused(ConnectionRefusal reason) {
  families_->refused[static_cast<std::size_t>(reason)]->Increment();
}
void Metrics::TlsReload(bool ok) { families_->tls_reloads[ok]->Increment(); }
void Metrics::AuthReload(bool ok) { families_->auth_reloads[ok]->Increment(); }
void Metrics::ReadinessCheck(bool ok) { families_->readiness[ok]->Increment(); }

void Metrics::AdminRequest(absl::string_view path, int code) {
  const auto* const known = std::find(std::begin(kPaths), std::end(kPaths) - 1, path);
  families_->Admin(*known, code).Increment();
}

void Metrics::AddGauge(const std::string& name, const std::string& help, std::function<double()> read,
                       const Labels& labels) {
  families_->AddRead(MetricType::Gauge, name, help, std::move(read), labels);
}

void Metrics::AddCounter(const std::string& name, const std::string& help, std::function<double()> read,
                         const Labels& labels) {
  families_->AddRead(MetricType::Counter, name, help, std::move(read), labels);
}

std::string Metrics::Page() const {
  std::vector<MetricFamily> collected = families_->registry.Collect();
  for (const Read& family : families_->read) collected.push_back(Collect(family));
  return prometheus::TextSerializer().Serialize(collected);
}

std::vector<LatencyBucket> Metrics::Latency(absl::string_view method) const {
  std::vector<LatencyBucket> buckets;
  std::uint64_t before = 0;
  for (const ClientMetric::Bucket& bucket : families_->duration[MethodIndex(method)]->Collect().histogram.bucket) {
    buckets.push_back({bucket.upper_bound, static_cast<std::int64_t>(bucket.cumulative_count - before)});
    before = bucket.cumulative_count;
  }
  return buckets;
}

absl::string_view MethodLabel(absl::string_view method) { return kMethods[MethodIndex(method)]; }

std::vector<absl::string_view> MethodLabels() { return {std::begin(kMethods), std::end(kMethods)}; }

absl::string_view IdentityClassLabel(IdentityClass identity_class) {
  return kIdentityClasses[static_cast<std::size_t>(identity_class)];
}

}  // namespace attnd::server
