// attn bench: how much a server answers, and how late, under a closed loop.
#include <ostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/load.h"
#include "client/cli/text.h"
#include "nlohmann/json.hpp"

namespace attnd::client {

namespace {

constexpr double kPercents[] = {50, 90, 99};

struct BenchCommand {
  ServerFlags server;
  OptionFlags options;
  LoadOptions load;
  double duration_s = 5;
  std::string shape_text = "1,8,512,64", dtype_name = "float32", wire_dtype;
  std::uint64_t seed = 0;
  bool json = false;

  // Normal numbers from the seed; the same on every machine.
  static absl::StatusOr<Array> Random(std::mt19937_64& generator, DType dtype, std::vector<std::int64_t> shape) {
    absl::StatusOr<Array> array = Array::Zeros(dtype, std::move(shape));
    if (!array.ok()) return array;
    const std::int64_t count = array->elements();
    // The sum of four uniform numbers in (-1/2, 1/2), scaled to variance 1: normal enough, and not a library's choice.
    for (std::int64_t i = 0; i < count; ++i) {
      double sum = -2;
      for (int u = 0; u < 4; ++u) sum += static_cast<double>(generator() >> 11) * 0x1p-53;
      array->Set(i, sum * 1.7320508075688772);
    }
    return array;
  }

  absl::StatusOr<Problem> Make() const {
    const absl::StatusOr<ShapeFlag> shape = ShapeFlag::Parse("--shape", shape_text);
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<DType> dtype = DTypeByName(dtype_name);
    if (!dtype.ok()) return UsageError(absl::StrCat("--dtype: ", dtype.status().message()));
    const absl::StatusOr<v1::Layout> layout = options.Layout();
    if (!layout.ok()) return layout.status();
    const absl::StatusOr<v1::Priority> priority = options.Priority();
    if (!priority.ok()) return priority.status();
    const bool bnhd = *layout == v1::LAYOUT_BNHD;
    std::mt19937_64 generator(seed);
    const auto random = [&](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
      return Random(generator, *dtype, {shape->batch, bnhd ? rows : heads, bnhd ? heads : rows, columns});
    };
    absl::StatusOr<Array> q = random(shape->q_heads, shape->nq, shape->d_k);
    if (!q.ok()) return UsageError(absl::StrCat("--shape: ", q.status().message()));
    absl::StatusOr<Array> k = random(shape->kv_heads, shape->nk, shape->d_k);
    if (!k.ok()) return UsageError(absl::StrCat("--shape: ", k.status().message()));
    absl::StatusOr<Array> v = random(shape->kv_heads, shape->nk, shape->d_v);
    if (!v.ok()) return UsageError(absl::StrCat("--shape: ", v.status().message()));
    absl::StatusOr<Problem> problem = Problem::FromQkv(*std::move(q), *std::move(k), *std::move(v), *layout);
    if (!problem.ok()) return problem;
    const absl::Status applied = options.Apply(shape->batch, shape->d_k, &problem->options());
    if (!applied.ok()) return applied;
    problem->SetPriority(*priority);
    return problem;
  }

  absl::Status Run(const Io& io) const {
    const absl::StatusOr<Problem> problem = Make();
    if (!problem.ok()) return problem.status();
    LoadOptions asked = load;
    asked.duration = absl::Seconds(duration_s);
    const absl::StatusOr<std::optional<DType>> wire = ParseWireDType(wire_dtype);
    if (!wire.ok()) return wire.status();
    asked.wire_dtype = *wire;
    const absl::StatusOr<LoadResult> result = RunLoad(server, *problem, asked);
    if (!result.ok()) return result.status();
    if (json) {
      io.out << ToJson(*result).dump(2) << "\n";
    } else {
      Print(*result, io.out);
    }
    if (!result->first_failure.ok()) {
      return server.Explain(absl::Status(result->first_failure.code(),
                                         absl::StrCat("calls failed; the first: ", result->first_failure.message())));
    }
    if (result->requests == 0) {
      return absl::ResourceExhaustedError(
          "no call was answered: all were refused; a smaller --shape or --concurrency may fit");
    }
    return absl::OkStatus();
  }

  nlohmann::ordered_json ToJson(const LoadResult& r) const {
    nlohmann::ordered_json json_out;
    json_out["shape"] = shape_text;
    json_out["dtype"] = dtype_name;
    json_out["wire_dtype"] = WireDType();
    json_out["call"] = load.stream ? "stream" : "unary";
    json_out["concurrency"] = load.concurrency;
    json_out["seconds"] = r.seconds;
    json_out["requests"] = r.requests;
    json_out["refused"] = r.refused;
    json_out["failed"] = nlohmann::ordered_json::object();
    for (const auto& [code, count] : r.failed) json_out["failed"][absl::StatusCodeToString(code)] = count;
    json_out["requests_per_second"] = static_cast<double>(r.requests) / r.seconds;
    json_out["gflops_per_second"] = r.flops / r.seconds / 1e9;
    json_out["bytes_per_second"] = r.bytes / r.seconds;
    for (const double percent : kPercents) {
      json_out["latency_us"][absl::StrFormat("p%g", percent)] = r.latency_ns.Percentile(percent) / 1e3;
    }
    json_out["latency_us"]["max"] = static_cast<double>(r.latency_ns.max()) / 1e3;
    json_out["latency_us"]["mean"] = r.latency_ns.mean() / 1e3;
    json_out["queue_us_mean"] = Mean(r.queue_us, r.requests);
    json_out["compute_us_mean"] = r.compute_us.mean();
    json_out["compute_us_p50"] = r.compute_us.Percentile(50);
    return json_out;
  }

  const std::string& WireDType() const { return wire_dtype.empty() ? dtype_name : wire_dtype; }

  static double Mean(double sum, std::int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

  void Print(const LoadResult& r, std::ostream& out) const {
    out << "shape " << shape_text << " " << dtype_name;
    if (!wire_dtype.empty()) out << " sent as " << wire_dtype;
    out << (load.stream ? ", streams, " : ", unary, ") << load.concurrency << " at a time, " << Fixed(r.seconds, 1)
        << " s\n";
    Table table({true, true});
    table.Row({"throughput", absl::StrFormat("%.1f requests/s, %.1f GF/s, %s/s of tensors",
                                             static_cast<double>(r.requests) / r.seconds, r.flops / r.seconds / 1e9,
                                             HumanBytes(r.bytes / r.seconds))});
    std::string latency;
    for (const double percent : kPercents) {
      absl::StrAppend(&latency, absl::StrFormat("p%g ", percent),
                      HumanMicroseconds(r.latency_ns.Percentile(percent) / 1e3), ", ");
    }
    table.Row(
        {"latency", absl::StrCat(latency, "max ", HumanMicroseconds(static_cast<double>(r.latency_ns.max()) / 1e3))});
    table.Row({"in the server", absl::StrCat("queue ", HumanMicroseconds(Mean(r.queue_us, r.requests)), ", compute ",
                                             HumanMicroseconds(r.compute_us.mean()), " on average")});
    std::string calls = absl::StrCat(r.requests, " answered, ", r.refused, " refused");
    std::int64_t failures = 0;
    for (const auto& [code, count] : r.failed) failures += count;
    absl::StrAppend(&calls, ", ", failures, " failed");
    for (const auto& [code, count] : r.failed)
      absl::StrAppend(&calls, " (", absl::StatusCodeToString(code), " ", count, ")");
    table.Row({"calls", calls});
    out << table.Text();
  }
};

}  // namespace

void AddBenchCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* sub =
      app.add_subcommand("bench", "Measure throughput and latency: workers that each ask again when answered");
  command->server.AddTo(*sub);
  sub->add_option("--concurrency", command->load.concurrency, "workers, each with its connection")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}));
  sub->add_option("--warm_up_calls", command->load.warm_up_calls, "calls of each worker that do not count, at first")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20));
  sub->add_option("--duration_s", command->duration_s, "seconds after that, and until every worker made a call")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1e6));
  sub->add_option("--shape", command->shape_text, "B,H,N,d or B,H,Nq,Nk,d; H may be Hq/Hkv, d may be d_k/d_v")
      ->capture_default_str();
  sub->add_option("--dtype", command->dtype_name, "of q, k and v")->capture_default_str();
  sub->add_option("--wire_dtype", command->wire_dtype,
                  "send tensors and get the output as this; every call converts both ways");
  sub->add_option("--seed", command->seed, "of the random tensors")->capture_default_str();
  sub->add_flag("--stream", command->load.stream,
                "one problem after another on an open stream a worker, instead of unary calls");
  sub->add_flag("--json", command->json, "print JSON");
  command->options.AddTo(*sub);
  sub->footer("Example:\n  attn bench --shape 1,8,2048,64 --concurrency 4 --duration_s 10 --stream");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
