#include "server/levels.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <string>

#include "core/buffer_pool.h"
#include "core/clock.h"
#include "core/kernel_info.h"
#include "server/log.h"

namespace attnd::server {
namespace {

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;  // the second is what is resident
  return pages * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

double OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  double count = -3;  // ".", ".." and the folder's own
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

double DescriptorsMax() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

double Number(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

void AddLevels(Engine& engine) {
  Metrics& metrics = engine.metrics;
  metrics.AddGauge("attnd_build_info", "1, with what runs as labels.", [] { return 1.0; },
                   {{"version", ATTND_VERSION}, {"instruction_set", GetKernelInfo().instruction_set_used}});
  for (const absl::string_view method : MethodLabels()) {
    metrics.AddGauge("attnd_requests_in_flight", "Requests that run now: calls, and problems of streams.",
                     [&engine, method] { return Number(engine.requests.CountRunning(method)); },
                     {{"method", std::string(method)}});
  }
  metrics.AddGauge("attnd_streams_open", "AttendStream and ModelStreamInfer calls that are open.",
                   [&engine] { return Number(engine.open_streams.open()); });
  metrics.AddGauge("attnd_memory_allowed_bytes",
                   "What all problems may hold together: memory_bytes_max without gRPC's and the pool's shares.",
                   [&engine] { return Number(engine.budget.bytes_allowed()); });
  metrics.AddGauge("attnd_memory_used_bytes", "Memory that is reserved for problems now.",
                   [&engine] { return Number(engine.budget.bytes_used()); });
  metrics.AddCounter("attnd_memory_refusals_total",
                     "Reservations of memory that were refused since too much of it was taken.",
                     [&engine] { return Number(engine.budget.memory_refusals()); });
  metrics.AddGauge("attnd_store_allowed_bytes", "The flag store_bytes_max.",
                   [&engine] { return Number(engine.store_budget.bytes_max()); });
  metrics.AddGauge("attnd_store_used_bytes", "Memory of named tensors and weight sets.",
                   [&engine] { return Number(engine.store_budget.bytes_used()); });
  metrics.AddGauge("attnd_store_tensors", "Named tensors.", [&engine] { return Number(engine.tensors->tensors()); });
  metrics.AddGauge("attnd_queue_problems", "Problems that compute or wait for it.",
                   [&engine] { return Number(engine.budget.queue_problems()); });
  metrics.AddGauge("attnd_queue_problems_allowed", "The flag queue_problems_max.",
                   [&engine] { return Number(engine.config.queue_problems_max); });
  metrics.AddGauge("attnd_queue_bytes", "Memory of the problems that compute or wait.",
                   [&engine] { return Number(engine.budget.queue_bytes()); });
  metrics.AddCounter("attnd_queue_refusals_total", "Problems that found no place in the queue.",
                     [&engine] { return Number(engine.budget.queue_refusals()); });
  metrics.AddGauge("attnd_compute_jobs", "Jobs of the compute pool: they run, or wait for their turn.",
                   [&engine] { return Number(engine.executor.jobs_in_flight()); });
  metrics.AddGauge("attnd_compute_units", "Units of these jobs that run or wait, of the phase that each is in.",
                   [&engine] { return Number(engine.executor.units_in_flight()); });
  metrics.AddGauge("attnd_buffer_pool_bytes", "Freed buffers that stay resident for the next problem.",
                   [] { return Number(BufferPool::Global().bytes_kept()); });
  metrics.AddGauge("attnd_weight_sets", "Weight sets that are live, each version one.",
                   [&engine] { return Number(engine.weight_sets.size()); });
  const std::string loads = "attnd_weight_set_loads_total";
  const std::string loads_help = "Weight sets that files of weights_dir gave; failed: those that were refused.";
  metrics.AddCounter(loads, loads_help, [&engine] { return Number(engine.weight_files->loads()); }, {{"result", "ok"}});
  metrics.AddCounter(loads, loads_help, [&engine] { return Number(engine.weight_files->refusals()); },
                     {{"result", "failed"}});
  metrics.AddGauge("attnd_connections_open", "Connections that are open.",
                   [&engine] { return static_cast<double>(engine.connections.size()); });
  metrics.AddGauge("attnd_connections_allowed", "The flag connections_max.",
                   [&engine] { return Number(engine.config.connections_max); });
  metrics.AddCounter("attnd_connections_used_total",
                     "Connections on which a call came; with TLS, handshakes that succeeded and were made use of.",
                     [&engine] { return Number(engine.connections.used()); });
  metrics.AddCounter("attnd_tls_handshake_failures_total", "TLS handshakes that failed.",
                     [] { return Number(HandshakeFailures()); });
  metrics.AddGauge("attnd_draining", "1 from the first signal on.",
                   [&engine] { return engine.lifecycle.draining() ? 1.0 : 0.0; });

  metrics.AddGauge("process_resident_memory_bytes", "Resident memory.", &ResidentBytes);
  metrics.AddCounter("process_cpu_seconds_total", "CPU time of all threads.", &CpuSeconds);
  metrics.AddGauge("process_open_fds", "Open descriptors.", &OpenDescriptors);
  metrics.AddGauge("process_max_fds", "Descriptors that may be open.", &DescriptorsMax);
  metrics.AddGauge("process_start_time_seconds", "When the process started, in seconds since 1970.",
                   [start = absl::ToDoubleSeconds(Now() - absl::UnixEpoch())] { return start; });
}

}  // namespace attnd::server
