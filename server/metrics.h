// What this server counts, as Prometheus reads it: names, units and labels in one place. A label's values are a closed
// set, so that no peer can make series. Sums and histograms are kept here; levels that someone else keeps are read when
// a page is made (levels.h). Thread rule: AddGauge and AddCounter before the first Page; all else from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/request_record.h"

namespace attnd::server {

enum class ConnectionRefusal { kLimit, kDescriptors };

// How many requests took at most upper_bound_seconds, and longer than the bound before it.
struct LatencyBucket {
  double upper_bound_seconds = 0;  // the last: infinity
  std::int64_t requests = 0;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Once a request, at its end.
  void Count(const RequestRecord& record);

  // FLOP/s of all compute threads at best, of which peak ratios are shares; and how many threads these are.
  void SetPeak(double flops_per_second, std::int64_t threads);

  void ConnectionAccepted();
  void ConnectionRefused(ConnectionRefusal reason);
  void TlsReload(bool ok);   // certificate, key and client CA
  void AuthReload(bool ok);  // identities and policies
  void AdminRequest(absl::string_view path, int code);
  void ReadinessCheck(bool ok);

  using Labels = std::map<std::string, std::string>;
  // A level, or a sum, that `read` knows.
  void AddGauge(const std::string& name, const std::string& help, std::function<double()> read,
                const Labels& labels = {});
  void AddCounter(const std::string& name, const std::string& help, std::function<double()> read,
                  const Labels& labels = {});

  // The page in Prometheus's text format 0.0.4.
  std::string Page() const;

  // Of all requests of a method so far.
  std::vector<LatencyBucket> Latency(absl::string_view method) const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

// "Attend", "Plan", ...: what `method` is called in a label; "other" for what is not among them.
absl::string_view MethodLabel(absl::string_view method);
// Every value of it.
std::vector<absl::string_view> MethodLabels();
absl::string_view IdentityClassLabel(IdentityClass identity_class);

}  // namespace attnd::server
