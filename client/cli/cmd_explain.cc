// attn explain: the steps of attention for one row, as tables that one can follow on paper.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/ask.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/lesson.h"
#include "client/cli/slice.h"

namespace attnd::client {

namespace {

constexpr std::int64_t kWholeScoresMax = 1 << 16;  // above, only the row is sent

std::vector<double> Take(const Array& array, std::int64_t first, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(array.At(first + i));
  return values;
}

// The three tokens of the lesson.
absl::StatusOr<Problem> BuiltIn() {
  return Problem::FromQkv(Array::Of({1, 4}, std::vector<double>{1, 0, .5, 1}),
                          Array::Of({3, 4}, std::vector<double>{1, 0, .8, 1, 0, 1, .2, 0, .2, .2, .4, .1}),
                          Array::Of({3, 4}, std::vector<double>{.9, .1, .7, .8, .1, .9, .2, .1, .3, .3, .5, .2}));
}

struct ExplainCommand {
  ServerFlags server;
  ProblemFlags problem_flags;
  std::string labels;
  std::optional<std::int64_t> row;
  std::int64_t head = 0, sequence = 0;

  absl::Status Run(const Io& io) const {
    absl::StatusOr<Problem> problem = problem_flags.AnyInput() ? problem_flags.Load() : BuiltIn();
    if (!problem.ok()) return problem.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    absl::StatusOr<Lesson> lesson = Compute(**client, *problem);
    if (!lesson.ok()) return server.Explain(lesson.status());
    PrintLesson(*lesson, io.out);
    return absl::OkStatus();
  }

  // Asks for the steps of the chosen row.
  absl::StatusOr<Lesson> Compute(Client& client, Problem& problem) const {
    const absl::StatusOr<OutputLayout> scores = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
    if (!scores.ok()) return scores.status();
    const std::int64_t i = row.value_or(scores->rows - 1);
    if (i < 0 || i >= scores->rows || head < 0 || head >= scores->heads || sequence < 0 || sequence >= scores->batch) {
      return UsageError(absl::StrCat("--row ", i, " --head ", head, " --sequence ", sequence, ": the problem has ",
                                     scores->rows, " rows, ", scores->heads, " heads and ", scores->batch,
                                     " sequences, counted from 0"));
    }
    if (scores->columns == 0) return absl::InvalidArgumentError("there are no keys to explain");
    problem.options().set_mode(v1::COMPUTE_MODE_REFERENCE);
    problem.options().clear_output_dtype();
    const v1::AttendRequest& request = problem.request();
    // Of a large problem only the row is asked for, with the same meaning; of a small one all of it.
    if (scores->elements <= kWholeScoresMax || request.has_x() || request.options().has_rotary()) {
      return Fetch(client, problem, sequence, head, i, Position(problem, i), problem);
    }
    std::vector<std::int64_t> offsets;
    for (std::int64_t b = 0; b < scores->batch; ++b) offsets.push_back(Position(problem, 0, b));
    absl::StatusOr<RowSlice> slice = SliceRows(problem, sequence, head, {i}, offsets);
    if (!slice.ok()) return slice.status();
    return Fetch(client, slice->problem, 0, 0, 0, Position(problem, i), problem);
  }

  // Where row i of the sequence stands among the keys.
  std::int64_t Position(const Problem& problem, std::int64_t i) const { return Position(problem, i, sequence); }
  static std::int64_t Position(const Problem& problem, std::int64_t i, std::int64_t b) {
    const v1::Options& options = problem.request().options();
    const absl::StatusOr<OutputLayout> scores = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
    const auto given = [b](const auto& values, std::int64_t otherwise) {
      return b < values.size() ? values.Get(static_cast<int>(b)) : otherwise;
    };
    const auto& lengths = options.lengths();
    const std::int64_t q_len = given(options.q_len(), given(lengths, scores->rows));
    const std::int64_t kv_len = given(options.kv_len(), given(lengths, scores->columns));
    return i + given(options.q_offset(), kv_len - q_len);
  }

  // Row i of head h of sequence b of `asked`, as a lesson about `whole`.
  absl::StatusOr<Lesson> Fetch(Client& client, Problem& asked, std::int64_t b, std::int64_t h, std::int64_t i,
                               std::int64_t position, const Problem& whole) const {
    const v1::AttendRequest& request = asked.request();
    const v1::Options& options = request.options();
    std::vector<v1::OutputKind> kinds = {v1::OUTPUT_KIND_SCORES_DOT, v1::OUTPUT_KIND_SCORES_SCALED,
                                         v1::OUTPUT_KIND_WEIGHTS};
    if (options.has_softcap()) kinds.push_back(v1::OUTPUT_KIND_SCORES_CAPPED);
    if (options.has_bias() || options.alibi_slopes_size() > 0) kinds.push_back(v1::OUTPUT_KIND_SCORES_BIASED);
    if (request.has_x()) {
      for (const auto kind : {v1::OUTPUT_KIND_PROJECTED_Q, v1::OUTPUT_KIND_PROJECTED_K, v1::OUTPUT_KIND_PROJECTED_V}) {
        kinds.push_back(kind);
      }
    }
    for (const v1::OutputKind kind : kinds) asked.Want(kind);
    const absl::StatusOr<Answer> answer = Ask(client, asked);
    if (!answer.ok()) return answer.status();
    Lesson lesson;
    lesson.source = server.server;
    lesson.scale = options.scale();
    lesson.scale_given = options.has_scale();
    lesson.rotary = options.has_rotary();
    const auto row_of = [&](v1::OutputKind kind) -> std::vector<double> {
      const Array* array = answer->Find(kind);
      const absl::StatusOr<OutputLayout> layout = asked.LayoutOf(kind);
      if (array == nullptr || !layout.ok()) return {};
      const std::int64_t of_head = layout->heads == 1 ? 0 : h;  // with w_o the output has no heads
      return Take(*array, b * layout->batch_stride + of_head * layout->head_stride + i * layout->row_stride,
                  layout->columns);
    };
    lesson.dot = row_of(v1::OUTPUT_KIND_SCORES_DOT);
    lesson.scaled = row_of(v1::OUTPUT_KIND_SCORES_SCALED);
    lesson.capped = row_of(v1::OUTPUT_KIND_SCORES_CAPPED);
    lesson.biased = row_of(v1::OUTPUT_KIND_SCORES_BIASED);
    lesson.weights = row_of(v1::OUTPUT_KIND_WEIGHTS);
    lesson.after = row_of(v1::OUTPUT_KIND_OUTPUT);
    lesson.shown = ShownKeys(lesson.weights);
    lesson.output_projection = request.projection().has_w_o();
    if (h < options.sinks_size()) lesson.sink = options.sinks(static_cast<int>(h));
    FillVectors(asked, *answer, b, h, i, &lesson);
    lesson.mixed = lesson.after;
    if (lesson.output_projection) {
      lesson.mixed.assign(lesson.values.front().size(), 0);
      for (std::size_t j = 0; j < lesson.values.size(); ++j) {
        for (std::size_t c = 0; c < lesson.mixed.size(); ++c)
          lesson.mixed[c] += lesson.weights[j] * lesson.values[j][c];
      }
    }
    Label(whole, position, &lesson);
    return lesson;
  }

  // Query, keys and values of the row's head, as they came or as the server projected them.
  static void FillVectors(const Problem& asked, const Answer& answer, std::int64_t b, std::int64_t h, std::int64_t i,
                          Lesson* lesson) {
    const v1::AttendRequest& request = asked.request();
    const bool projected = request.has_x();
    v1::Tensor q, k, v;
    if (projected) {
      const std::pair<v1::OutputKind, v1::Tensor*> tensors[] = {
          {v1::OUTPUT_KIND_PROJECTED_Q, &q}, {v1::OUTPUT_KIND_PROJECTED_K, &k}, {v1::OUTPUT_KIND_PROJECTED_V, &v}};
      for (const auto& [kind, tensor] : tensors) {
        const OutputLayout layout = *asked.LayoutOf(kind);
        Array array = *answer.Find(kind);
        array.shape = {layout.batch, layout.heads, layout.rows, layout.columns};
        *tensor = ToTensor(std::move(array));
      }
    }
    const v1::Options options = projected ? v1::Options() : request.options();
    const TensorRead queries = TensorRead::Heads(projected ? q : request.q(), options.layout());
    const TensorRead keys = TensorRead::Keys(projected ? k : request.k(), options);
    const TensorRead values = TensorRead::Keys(projected ? v : request.v(), options);
    const std::int64_t kv_head = h / (queries.shape[1] / keys.shape[1]);
    const auto row_of = [](const TensorRead& tensor, std::int64_t in_sequence, std::int64_t in_head, std::int64_t n) {
      std::vector<double> numbers;
      for (std::int64_t c = 0; c < tensor.shape[3]; ++c) numbers.push_back(tensor.At(in_sequence, in_head, n, c));
      return numbers;
    };
    lesson->query = row_of(queries, b, h, i);
    for (std::int64_t j = 0; j < keys.shape[2]; ++j) {
      lesson->keys.push_back(row_of(keys, b, kv_head, j));
      lesson->values.push_back(row_of(values, b, kv_head, j));
    }
    if (projected) {
      const std::int64_t d_model = request.x().shape(2);
      const absl::StatusOr<Array> x = ToArray(request.x());
      if (x.ok()) lesson->before = Take(*x, (b * request.x().shape(1) + i) * d_model, d_model);
    }
  }

  void Label(const Problem& whole, std::int64_t position, Lesson* lesson) const {
    std::vector<std::string> names;
    if (!labels.empty()) names = absl::StrSplit(labels, ',');
    if (labels.empty() && !problem_flags.AnyInput()) names = {"server", "request", "it"};
    const bool named = !names.empty();
    for (std::size_t j = names.size(); j < lesson->keys.size(); ++j) names.push_back(absl::StrCat("token ", j));
    lesson->labels = names;
    const bool own = position >= 0 && position < static_cast<std::int64_t>(lesson->keys.size());
    const auto p = static_cast<std::size_t>(position);
    lesson->row_name = !own    ? absl::StrCat("position ", position)
                       : named ? absl::StrCat("\"", names[p], "\"")
                               : names[p];
    if (own && !whole.request().has_x()) lesson->before = lesson->values[p];
  }
};

}  // namespace

void AddExplainCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<ExplainCommand>();
  CLI::App* sub =
      app.add_subcommand("explain", "Show attention step by step, with the arithmetic spelt out for one row");
  command->server.AddTo(*sub);
  sub->add_option("--labels", command->labels, "the tokens' names with commas between them");
  sub->add_option("--row", command->row, "the row to spell out, from 0; default: the last");
  sub->add_option("--head", command->head, "its head")->capture_default_str();
  sub->add_option("--sequence", command->sequence, "its sequence")->capture_default_str();
  command->problem_flags.AddTo(*sub);
  sub->footer(
      "Without tensors: the three tokens \"server\", \"request\" and \"it\".\n\n"
      "Examples:\n  attn explain\n  attn explain --q q.npy --k k.npy --v v.npy --labels the,cat,sat --row 2 --causal");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
