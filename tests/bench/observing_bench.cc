// What it costs a request that it is observed: its row in the table of what runs, its share of the metrics, its line in
// the log. Prints nanoseconds of CPU each; standard error gets the lines. tests/bench/observing.py asks it.
#include <cstdio>
#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "core/executor.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/request_table.h"

namespace attnd::server {
namespace {

RequestRecord Typical() {
  RequestRecord record;
  record.method = "Attend";
  record.peer = "ipv4:127.0.0.1:43210";
  record.identity_class = IdentityClass::kToken;
  record.identity = "platform";
  record.request_id = "0af7651916cd43dd8448eb211c80319c";
  record.shape = "B1 Hq1 Hkv1 Nq5 Nk5 dk64 dv64";
  record.queued = absl::Microseconds(20);
  record.computed = record.worked = absl::Microseconds(3);
  record.total = absl::Microseconds(60);
  record.request_bytes = 3900;
  record.reply_bytes = 1300;
  record.memory_bytes = 20000;
  record.slices = record.threads = 1;
  record.flops = 12800;
  record.tiles_run = 1;
  return record;
}

double Nanoseconds(int times, const std::function<void()>& work) {
  work();
  const absl::Duration start = ThreadCpuTime();
  for (int n = 0; n < times; ++n) work();
  return absl::ToDoubleNanoseconds(ThreadCpuTime() - start) / times;
}

}  // namespace
}  // namespace attnd::server

int main() {
  using namespace attnd::server;
  InitLog(LogFormat::kText, "info");
  Metrics metrics;
  metrics.SetPeak(1e11, 2);
  RequestTable table;
  const RequestRecord record = Typical();
  const double row = Nanoseconds(200000, [&] {
    RequestTable::Row running(table, record.method, record.peer, record.identity);
    running.SetShape(record.shape);
    running.SetStage(Stage::kComputing);
    running.SetStage(Stage::kSending);
    running.Leave();
    table.Ended(record, absl::Now());
  });
  const double counted = Nanoseconds(200000, [&] { metrics.Count(record); });
  const double logged = Nanoseconds(50000, [&] { LogRequest(record); });
  std::printf("{\"row_ns\": %.0f, \"metrics_ns\": %.0f, \"log_ns\": %.0f}\n", row, counted, logged);
  return 0;
}
