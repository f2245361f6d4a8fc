// attn run: a problem from files, its answers to files.
#include <unistd.h>

#include <chrono>
#include <map>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/ask.h"
#include "client/cli/check.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"
#include "client/file.h"
#include "client/join.h"
#include "client/npy.h"

namespace attnd::client {

namespace {

// Writes an output to its .npy file while its blocks arrive, in any order.
class NpyBlockWriter {
 public:
  NpyBlockWriter(const Problem& problem, v1::OutputKind kind, std::string path)
      : placer_(problem), kind_(kind), path_(std::move(path)) {}

  absl::Status Write(const v1::Block& block) {
    const absl::string_view data = block.data();
    const absl::StatusOr<BlockPlace> place = placer_.Place(block, static_cast<std::int64_t>(data.size()));
    if (!place.ok()) return place.status();
    absl::Status status = Open(*place->layout, place->dtype);
    const std::int64_t element = ElementBytes(place->dtype);
    // Rows that lie one behind another are one run.
    const bool dense = place->row_stride == block.columns();
    const std::int64_t run_bytes = (dense ? block.rows() : 1) * block.columns() * element;
    for (std::int64_t run = 0; status.ok() && run * run_bytes < static_cast<std::int64_t>(data.size()); ++run) {
      const std::int64_t offset_bytes = (place->first + run * place->row_stride) * element;
      status = file_->WriteAt(data_offset_ + offset_bytes, data.substr(static_cast<std::size_t>(run * run_bytes),
                                                                       static_cast<std::size_t>(run_bytes)));
    }
    return status;
  }

  // An output without elements had no block.
  absl::Status Close(const Problem& problem) {
    if (!file_) {
      const absl::StatusOr<OutputLayout> layout = problem.LayoutOf(kind_);
      if (!layout.ok()) return layout.status();
      const absl::Status opened = Open(*layout, DType::kFloat32);
      if (!opened.ok()) return opened;
    }
    return file_->Close();
  }

 private:
  absl::Status Open(const OutputLayout& layout, DType dtype) {
    if (file_) return absl::OkStatus();
    absl::StatusOr<FileWriter> file = FileWriter::Create(path_);
    if (!file.ok()) return file.status();
    file_.emplace(*std::move(file));
    const std::string header = NpyHeader(dtype, layout.shape);
    data_offset_ = static_cast<std::int64_t>(header.size());
    const absl::Status status = file_->WriteAt(0, header);
    // Its full length now: a disk that is too small says so before the work is done.
    return status.ok() ? file_->Resize(data_offset_ + layout.elements * ElementBytes(dtype)) : status;
  }

  BlockPlacer placer_;
  v1::OutputKind kind_;
  std::string path_;
  std::optional<FileWriter> file_;
  std::int64_t data_offset_ = 0;
};

// One line that is rewritten, on a terminal only.
class ProgressLine {
 public:
  ProgressLine(const Io& io, std::int64_t out_bytes, std::int64_t in_bytes)
      : io_(io), out_bytes_(out_bytes), in_bytes_(in_bytes) {}

  void Update(std::int64_t sent, std::int64_t received) {
    const auto now = std::chrono::steady_clock::now();
    if (!io_.err_is_terminal || now - shown_ < std::chrono::milliseconds(200)) return;
    shown_ = now;
    any_ = true;
    io_.err << absl::StrFormat("\rsent %s of %s, received %s of %s\x1b[K", HumanBytes(static_cast<double>(sent)),
                               HumanBytes(static_cast<double>(out_bytes_)), HumanBytes(static_cast<double>(received)),
                               HumanBytes(static_cast<double>(in_bytes_)))
            << std::flush;
  }
  void Clear() {
    if (any_) io_.err << "\r\x1b[K" << std::flush;
  }

 private:
  const Io& io_;
  std::int64_t out_bytes_, in_bytes_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
  bool any_ = false;
};

struct RunCommand {
  ServerFlags server;
  ProblemFlags problem_flags;
  std::string output, weights, lse;
  std::vector<std::string> scores, projected;
  std::int64_t check_rows = 0;
  bool stream = false, unary = false, report = false;

  // Which output goes to which file.
  absl::StatusOr<std::map<v1::OutputKind, std::string>> Files() const {
    std::map<v1::OutputKind, std::string> files;
    if (!output.empty()) files[v1::OUTPUT_KIND_OUTPUT] = output;
    if (!weights.empty()) files[v1::OUTPUT_KIND_WEIGHTS] = weights;
    if (!lse.empty()) files[v1::OUTPUT_KIND_LSE] = lse;
    const auto add = [&files](absl::string_view flag, const std::string& text,
                              const std::map<std::string, v1::OutputKind>& names) -> absl::Status {
      const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
      const auto found = names.find(parts.front());
      if (parts.size() == 2 && found != names.end() && !parts[1].empty()) {
        files[found->second] = parts[1];
        return absl::OkStatus();
      }
      std::string expected;
      for (const auto& [name, kind] : names)
        absl::StrAppend(&expected, expected.empty() ? "" : ", ", name, "=FILE.npy");
      return UsageError(absl::StrCat(flag, ": '", text, "', expected one of ", expected));
    };
    absl::Status status;
    for (const std::string& text : scores) {
      status.Update(add("--scores", text,
                        {{"dot", v1::OUTPUT_KIND_SCORES_DOT},
                         {"scaled", v1::OUTPUT_KIND_SCORES_SCALED},
                         {"capped", v1::OUTPUT_KIND_SCORES_CAPPED},
                         {"biased", v1::OUTPUT_KIND_SCORES_BIASED}}));
    }
    for (const std::string& text : projected) {
      status.Update(add("--projected", text,
                        {{"q", v1::OUTPUT_KIND_PROJECTED_Q},
                         {"k", v1::OUTPUT_KIND_PROJECTED_K},
                         {"v", v1::OUTPUT_KIND_PROJECTED_V}}));
    }
    if (!status.ok()) return status;
    return files;
  }

  absl::Status Run(const Io& io) const {
    const absl::StatusOr<std::map<v1::OutputKind, std::string>> files = Files();
    if (!files.ok()) return files.status();
    if (stream && unary) return UsageError("--stream and --unary exclude each other");
    for (const auto& [kind, path] : *files) {
      const absl::Status writable = CheckWritable(path);
      if (!writable.ok()) return writable;
    }
    absl::StatusOr<std::unique_ptr<Client>> client = nullptr;
    if (problem_flags.NamesStored()) client = server.Connect();
    if (!client.ok()) return client.status();
    absl::StatusOr<Problem> problem = problem_flags.Load(client->get());
    if (!problem.ok()) return server.Explain(problem.status());
    for (const auto& [kind, path] : *files) problem->Want(kind);
    if (*client == nullptr) client = server.Connect();
    if (!client.ok()) return client.status();

    SampledRows rows;
    std::optional<KeptRows> kept;
    if (check_rows > 0) {
      const absl::StatusOr<OutputLayout> layout = problem->LayoutOf(v1::OUTPUT_KIND_LSE);
      const absl::StatusOr<OutputLayout> of_weights = problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
      // Shapes that contradict each other are refused by the server in better words.
      if (layout.ok() && of_weights.ok()) {
        rows = SampleRows(*layout, check_rows);
        if (problem->Wants(v1::OUTPUT_KIND_WEIGHTS)) kept.emplace(rows, of_weights->columns);
      }
    }
    const absl::Time start = absl::Now();
    absl::StatusOr<Answer> answer = Compute(io, **client, *problem, *files, kept);
    if (!answer.ok()) return server.Explain(WithDTypeHint(*problem, answer.status()));
    const absl::Duration took = absl::Now() - start;
    PrintSummary(*answer, took, io.out);
    if (report) {
      const absl::StatusOr<v1::InfoResponse> info = (*client)->Info();
      if (!info.ok()) return server.Explain(info.status());
      io.out << "server's peak memory: " << HumanBytes(static_cast<double>(info->memory_peak_resident_bytes()))
             << " resident\n";
    }
    for (const auto& [kind, path] : *files) io.out << Name(kind) << " written to " << path << "\n";
    if (check_rows <= 0) return absl::OkStatus();
    return Check(io, **client, *problem, *answer, rows, kept);
  }

  // float64 is what NumPy makes unless told otherwise.
  static absl::Status WithDTypeHint(const Problem& problem, const absl::Status& status) {
    const v1::AttendRequest& request = problem.request();
    const bool reference = request.options().mode() == v1::COMPUTE_MODE_REFERENCE;
    for (const v1::Tensor* tensor :
         {&request.q(), &request.k(), &request.v(), &request.x(), &request.projection().w_q()}) {
      if (absl::IsInvalidArgument(status) && !reference && tensor->dtype() == v1::DATA_TYPE_FLOAT64) {
        return absl::InvalidArgumentError(
            absl::StrCat(status.message(), "; --wire_dtype float32 converts, --mode reference takes float64"));
      }
    }
    return status;
  }

  // Asks, and writes the files.
  absl::StatusOr<Answer> Compute(const Io& io, Client& client, const Problem& problem,
                                 const std::map<v1::OutputKind, std::string>& files,
                                 std::optional<KeptRows>& kept) const {
    absl::StatusOr<Answer> answer;
    std::map<v1::OutputKind, NpyBlockWriter> writers;
    if (stream || (!unary && WantsStream(problem))) {
      StreamCall call;
      // The [Nq, Nk] ones go straight to their files; what is needed later or is small is kept.
      for (const auto& [kind, path] : files) {
        if (kind == v1::OUTPUT_KIND_OUTPUT || kind == v1::OUTPUT_KIND_LSE) continue;
        call.by_block.push_back(kind);
        writers.emplace(std::piecewise_construct, std::forward_as_tuple(kind),
                        std::forward_as_tuple(problem, kind, path));
      }
      call.on_block = [&](const v1::Block& block) {
        if (kept && block.kind() == v1::OUTPUT_KIND_WEIGHTS) kept->Take(block);
        return writers.at(block.kind()).Write(block);
      };
      ProgressLine progress(io, problem.request_bytes(), problem.reply_bytes().value_or(0));
      call.on_progress = [&](std::int64_t sent, std::int64_t received) { progress.Update(sent, received); };
      answer = client.AttendStream(problem, call);
      progress.Clear();
    } else {
      answer = client.Attend(problem);
      if (answer.ok() && kept) KeepWhole(problem, *answer, *kept);
    }
    if (!answer.ok()) return answer;
    for (const auto& [kind, path] : files) {
      const auto writer = writers.find(kind);
      const Array* array = answer->Find(kind);
      if (writer == writers.end() && array == nullptr) {
        return absl::InternalError(absl::StrCat("the server left out ", Name(kind)));
      }
      const absl::Status written = writer != writers.end() ? writer->second.Close(problem) : WriteNpy(path, *array);
      if (!written.ok()) return written;
    }
    return answer;
  }

  // A whole answer's weights, as if they had come in blocks of a head.
  static void KeepWhole(const Problem& problem, const Answer& answer, KeptRows& kept) {
    const Array* array = answer.Find(v1::OUTPUT_KIND_WEIGHTS);
    const absl::StatusOr<OutputLayout> layout = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
    if (array == nullptr || !layout.ok() || array->dtype != DType::kFloat32) return;
    for (std::int64_t b = 0; b < layout->batch; ++b) {
      for (std::int64_t h = 0; h < layout->heads; ++h) {
        v1::Block block;
        block.set_batch(b);
        block.set_head(h);
        block.set_rows(layout->rows);
        block.set_columns(layout->columns);
        block.set_data(
            array->bytes.substr(static_cast<std::size_t>(4 * (b * layout->batch_stride + h * layout->head_stride)),
                                static_cast<std::size_t>(4 * layout->rows * layout->columns)));
        kept.Take(block);
      }
    }
  }

  void PrintSummary(const Answer& answer, absl::Duration took, std::ostream& out) const {
    const v1::Statistics& s = answer.statistics;
    out << "output " << ShapeText(answer.output.shape) << " " << Name(answer.output.dtype) << " in "
        << HumanMicroseconds(absl::ToDoubleMicroseconds(took));
    // flops / microseconds / 1000 = GF/s
    if (s.compute_us() > 0) {
      out << ", " << Short(std::round(static_cast<double>(s.flops()) / static_cast<double>(s.compute_us()) / 100) / 10)
          << " GF/s";
    }
    out << "\nserver: queue " << HumanMicroseconds(static_cast<double>(s.queue_us())) << ", compute "
        << HumanMicroseconds(static_cast<double>(s.compute_us())) << ", total "
        << HumanMicroseconds(static_cast<double>(s.total_us())) << ", " << s.threads() << " threads, "
        << HumanBytes(static_cast<double>(s.memory_bytes())) << " reserved\n";
    out << "nonfinite_rows: " << s.nonfinite_rows() << "\n";
  }

  absl::Status Check(const Io& io, Client& client, const Problem& problem, const Answer& answer,
                     const SampledRows& rows, const std::optional<KeptRows>& kept) const {
    const absl::StatusOr<CheckResult> result = CheckRows(client, problem, answer, rows, kept ? &*kept : nullptr);
    if (!result.ok())
      return server.Explain(
          absl::Status(result.status().code(), absl::StrCat("--check_rows: ", result.status().message())));
    const auto line = [&](const char* name, double error, double share) {
      io.out << absl::StrFormat(
          "check: %d rows of %s against float64: largest error %.3g, which is %.2g of the tolerance\n", result->rows,
          name, error, share);
    };
    line("output", result->output_error, result->output_share);
    if (result->with_weights) line("weights", result->weights_error, result->weights_share);
    if (!result->passed())
      return absl::DataLossError("--check_rows: the answer is outside the tolerance; do not use it");
    return absl::OkStatus();
  }
};

}  // namespace

void AddRunCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* sub = app.add_subcommand("run", "Compute attention of .npy, .npz or safetensors files");
  command->server.AddTo(*sub);
  command->problem_flags.AddTo(*sub);
  command->problem_flags.AddStoredTo(*sub);
  const std::string group = "Answers";
  sub->add_option("--output", command->output, "write the output to this .npy file")->group(group);
  sub->add_option("--weights", command->weights, "ask for the softmax weights [B,Hq,Nq,Nk] and write them")
      ->group(group);
  sub->add_option("--lse", command->lse, "ask for log-sum-exp [B,Hq,Nq] and write it")->group(group);
  sub->add_option("--scores", command->scores, "dot=FILE, scaled=FILE, capped=FILE or biased=FILE; may be repeated")
      ->group(group);
  sub->add_option("--projected", command->projected, "with --x: q=FILE, k=FILE or v=FILE; may be repeated")
      ->group(group);
  sub->add_option("--check_rows", command->check_rows,
                  "recompute this many rows in the server's float64 mode and compare")
      ->group(group);
  sub->add_flag("--report", command->report, "print the server's peak memory too")->group(group);
  sub->add_flag("--stream", command->stream, "send in pieces; default above 2 MiB")->group(group);
  sub->add_flag("--unary", command->unary, "send as one message, whatever its size")->group(group);
  sub->footer(
      "Example:\n  attn run --q q.npy --k k.npy --v v.npy --causal --output o.npy --weights w.npy --check_rows 16\n"
      "  attn run --npz layer.npz --q_heads 8 --kv_heads 2 --output o.npy\n"
      "  attn run --q q.npy --k stored:chat.k --v stored:chat.v --output o.npy");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
