// attn plan: what a problem would cost, without running it; also as it gets longer.
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/json.h"
#include "client/cli/page.h"
#include "client/cli/plan_sweep.h"
#include "client/cli/text.h"
#include "client/file.h"

namespace attnd::client {

namespace {

// A tensor without its bytes.
void SetBare(v1::Tensor* tensor, DType dtype, std::initializer_list<std::int64_t> shape) {
  tensor->set_dtype(static_cast<v1::DataType>(dtype));
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
}

struct PlanCommand {
  ServerFlags server;
  OptionFlags options;
  std::string shape_text, dtype_name = "float32", html;
  std::optional<std::int64_t> batch, q_heads, kv_heads, nq, nk, d_k, d_v;
  std::int64_t layers = 1;
  bool weights = false, lse = false, json = false, sweep = false;

  absl::StatusOr<ShapeFlag> Shape() const {
    ShapeFlag shape;
    if (!shape_text.empty()) {
      const absl::StatusOr<ShapeFlag> parsed = ShapeFlag::Parse("--shape", shape_text);
      if (!parsed.ok()) return parsed.status();
      shape = *parsed;
    } else if (Sweeps()) {  // one head of the width that lessons count with
      shape.nq = shape.nk = 1;
      shape.d_k = shape.d_v = 128;
    } else if (!nq || !d_k) {
      return UsageError("--shape is missing (or --nq and --d_k), as --shape 1,8,2048,64");
    }
    shape.batch = batch.value_or(shape.batch);
    shape.q_heads = q_heads.value_or(shape.q_heads);
    shape.kv_heads = kv_heads.value_or(q_heads && shape_text.empty() ? shape.q_heads : shape.kv_heads);
    shape.nq = nq.value_or(shape.nq);
    shape.nk = nk.value_or(shape_text.empty() ? shape.nq : shape.nk);
    shape.d_k = d_k.value_or(shape.d_k);
    shape.d_v = d_v.value_or(shape_text.empty() ? shape.d_k : shape.d_v);
    return shape;
  }

  bool Sweeps() const { return sweep || !html.empty(); }

  absl::StatusOr<v1::PlanRequest> RequestOf(const ShapeFlag& shape) const {
    const absl::StatusOr<DType> dtype = DTypeByName(dtype_name);
    if (!dtype.ok()) return UsageError(absl::StrCat("--dtype: ", dtype.status().message()));
    const absl::StatusOr<v1::Layout> layout = options.Layout();
    if (!layout.ok()) return layout.status();
    v1::PlanRequest request;
    request.set_layers(layers);
    v1::AttendRequest& problem = *request.mutable_problem();
    const bool bnhd = *layout == v1::LAYOUT_BNHD;
    const auto set = [&](v1::Tensor* tensor, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
      SetBare(tensor, *dtype, {shape.batch, bnhd ? rows : heads, bnhd ? heads : rows, columns});
    };
    set(problem.mutable_q(), shape.q_heads, shape.nq, shape.d_k);
    set(problem.mutable_k(), shape.kv_heads, shape.nk, shape.d_k);
    set(problem.mutable_v(), shape.kv_heads, shape.nk, shape.d_v);
    const absl::Status applied = options.Apply(shape.batch, shape.d_k, problem.mutable_options());
    if (!applied.ok()) return applied;
    problem.mutable_options()->set_layout(*layout);
    if (weights) problem.add_outputs(v1::OUTPUT_KIND_WEIGHTS);
    if (lse) problem.add_outputs(v1::OUTPUT_KIND_LSE);
    return request;
  }

  absl::Status Run(const Io& io) const {
    const absl::StatusOr<ShapeFlag> shape = Shape();
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<v1::PlanRequest> request = RequestOf(*shape);
    if (!request.ok()) return request.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    if (const absl::Status writable = html.empty() ? absl::OkStatus() : CheckWritable(html); !writable.ok()) {
      return writable;
    }
    if (Sweeps()) return Sweep(io, **client, *shape);
    const absl::StatusOr<v1::PlanResponse> plan = (*client)->Plan(*request);
    if (!plan.ok()) return server.Explain(plan.status());
    if (json) {
      io.out << ToJson(*plan).dump(2) << "\n";
    } else {
      Print(*shape, *plan, io.out);
    }
    return absl::OkStatus();
  }

  absl::Status Sweep(const Io& io, Client& asked, const ShapeFlag& shape) const {
    const absl::StatusOr<nlohmann::ordered_json> lengths = PlanLengths(asked, [&](std::int64_t tokens) {
      ShapeFlag longer = shape;
      longer.nq = longer.nk = tokens;
      return RequestOf(longer);
    });
    if (!lengths.ok()) return server.Explain(lengths.status());
    nlohmann::ordered_json data = {
        {"server", server.server},    {"sequences", shape.batch}, {"q_heads", shape.q_heads},
        {"kv_heads", shape.kv_heads}, {"d_k", shape.d_k},         {"d_v", shape.d_v},
        {"layers", layers},           {"dtype", dtype_name},      {"causal", options.causal}};
    data.update(*lengths);
    if (!html.empty()) {
      const absl::Status written = WriteFile(html, MakePage("What attention costs", "plan", data));
      if (!written.ok()) return written;
      if (!json) io.out << "page written to " << html << "\n";
    } else if (!json) {
      PrintLengths(data, io.out);
    }
    if (json) io.out << data.dump(2) << "\n";
    return absl::OkStatus();
  }

  void Print(const ShapeFlag& shape, const v1::PlanResponse& plan, std::ostream& out) const {
    out << "q " << ShapeText({shape.batch, shape.q_heads, shape.nq, shape.d_k}) << ", k "
        << ShapeText({shape.batch, shape.kv_heads, shape.nk, shape.d_k}) << ", v "
        << ShapeText({shape.batch, shape.kv_heads, shape.nk, shape.d_v}) << " " << dtype_name << ", " << layers
        << (layers == 1 ? " layer\n\n" : " layers\n\n");
    Table table;
    const auto count = [&table](const std::string& name, std::int64_t value) {
      table.Row({name, HumanCount(static_cast<double>(value)), absl::StrCat(value)});
    };
    const auto bytes = [&table](const std::string& name, std::int64_t value) {
      table.Row({name, HumanBytes(static_cast<double>(value)), absl::StrCat(value)});
    };
    table.Row({"compute", "about", "exactly"});
    count("  scores a head (Nq·Nk)", plan.scores_per_head());
    count("  multiply-adds for the scores of a head", plan.score_multiply_adds_per_head());
    count("  multiply-adds a head, both products", plan.multiply_adds_per_head());
    count("  multiply-adds in all", plan.multiply_adds());
    count("  FLOPs in all", plan.flops());
    count("  FLOPs without excluded keys", plan.flops_after_exclusion());
    table.Row({"wire, one layer"});
    bytes("  request", plan.request_bytes());
    bytes("  reply", plan.reply_bytes());
    table.Row({"memory here, in tiles, one layer"});
    for (const v1::MemoryItem& item : plan.memory()) bytes(absl::StrCat("  ", item.name()), item.bytes());
    bytes("  together", plan.memory_bytes());
    table.Row({"memory of the naive method (whole float32 scores)"});
    bytes("  a head", plan.naive_score_bytes_per_head());
    bytes("  all sequences, heads and layers", plan.naive_score_bytes());
    out << table.Text()
        << "\npredicted compute time here: " << HumanMicroseconds(static_cast<double>(plan.predicted_compute_us()))
        << "\n";
    if (plan.admitted()) {
      out << "this server would take it\n";
    } else {
      out << "this server would refuse it: " << plan.refusal() << "\n";
    }
  }
};

}  // namespace

void AddPlanCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* sub = app.add_subcommand("plan", "Show what a problem would cost, without running it");
  command->server.AddTo(*sub);
  sub->add_option("--shape", command->shape_text, "B,H,N,d or B,H,Nq,Nk,d; H may be Hq/Hkv, d may be d_k/d_v");
  sub->add_option("--batch", command->batch, "sequences");
  sub->add_option("--q_heads", command->q_heads, "query heads");
  sub->add_option("--kv_heads", command->kv_heads, "key and value heads; default: q_heads");
  sub->add_option("--nq", command->nq, "query rows");
  sub->add_option("--nk", command->nk, "keys; default: nq");
  sub->add_option("--d_k", command->d_k, "width of queries and keys");
  sub->add_option("--d_v", command->d_v, "width of values; default: d_k");
  sub->add_option("--layers", command->layers, "multiplies the totals")->capture_default_str();
  sub->add_option("--dtype", command->dtype_name, "of q, k and v")->capture_default_str()->type_name(kFloatTypes);
  sub->add_flag("--weights", command->weights, "count the softmax weights as an answer too");
  sub->add_flag("--lse", command->lse, "count log-sum-exp as an answer too");
  sub->add_flag("--sweep", command->sweep,
                "the same problem at every power of two from 1024 to 1048576 tokens; without --shape, one head of 128");
  sub->add_option("--html", command->html, "write the sweep as a page with charts that needs no other file");
  sub->add_flag("--json", command->json, "print JSON");
  command->options.AddTo(*sub);
  sub->footer(
      "Examples:\n  attn plan --shape 1,32/8,4096,128 --layers 32 --causal\n"
      "  attn plan --sweep\n  attn plan --shape 1,32/8,4096,128 --layers 32 --html plan.html");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
