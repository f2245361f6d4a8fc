#include "client/cli/explain/steps.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/ask.h"
#include "client/cli/slice.h"

namespace attnd::client {

namespace {

constexpr std::int64_t kWholeScoresMax = 1 << 16;  // above, only the row is sent

std::vector<double> Take(const Array& array, std::int64_t first, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(array.At(first + i));
  return values;
}

// A problem that was asked, with its answer, and what of the caller's problem it is.
struct Asked {
  const Problem& whole;
  Problem problem;
  Answer answer;
  const std::vector<std::string>& names;
  const std::string& source;
};

// Every step of the problem.
absl::StatusOr<Answer> AskSteps(Client& client, Problem& problem) {
  const v1::Options& options = problem.request().options();
  std::vector<v1::OutputKind> kinds = {v1::OUTPUT_KIND_SCORES_DOT, v1::OUTPUT_KIND_SCORES_SCALED,
                                       v1::OUTPUT_KIND_WEIGHTS};
  if (options.has_softcap()) kinds.push_back(v1::OUTPUT_KIND_SCORES_CAPPED);
  if (options.has_bias() || options.alibi_slopes_size() > 0) kinds.push_back(v1::OUTPUT_KIND_SCORES_BIASED);
  if (problem.request().has_x()) {
    for (const auto kind : {v1::OUTPUT_KIND_PROJECTED_Q, v1::OUTPUT_KIND_PROJECTED_K, v1::OUTPUT_KIND_PROJECTED_V}) {
      kinds.push_back(kind);
    }
  }
  for (const v1::OutputKind kind : kinds) problem.Want(kind);
  return Ask(client, problem);
}

// Query, keys and values of a row's head, as they came or as the server projected them.
void FillVectors(const Asked& asked, std::int64_t b, std::int64_t h, std::int64_t i, Lesson* lesson) {
  const v1::AttendRequest& request = asked.problem.request();
  const bool projected = request.has_x();
  v1::Tensor q, k, v;
  if (projected) {
    const std::pair<v1::OutputKind, v1::Tensor*> tensors[] = {
        {v1::OUTPUT_KIND_PROJECTED_Q, &q}, {v1::OUTPUT_KIND_PROJECTED_K, &k}, {v1::OUTPUT_KIND_PROJECTED_V, &v}};
    for (const auto& [kind, tensor] : tensors) {
      const OutputLayout layout = *asked.problem.LayoutOf(kind);
      Array array = *asked.answer.Find(kind);
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

void Label(const Asked& asked, std::int64_t position, Lesson* lesson) {
  lesson->labels = asked.names;
  const bool named = !asked.names.empty();
  for (std::size_t j = lesson->labels.size(); j < lesson->keys.size(); ++j) {
    lesson->labels.push_back(absl::StrCat("token ", j));
  }
  const bool own = position >= 0 && position < static_cast<std::int64_t>(lesson->keys.size());
  const auto p = static_cast<std::size_t>(position);
  lesson->row_label = own ? lesson->labels[p] : absl::StrCat("position ", position);
  lesson->row_name = own && named ? absl::StrCat("\"", lesson->row_label, "\"") : lesson->row_label;
  if (own && !asked.whole.request().has_x()) lesson->before = lesson->values[p];
}

// Row i of head h of sequence b of what was asked, which is `chosen` of the caller's problem.
Lesson LessonOf(const Asked& asked, std::int64_t b, std::int64_t h, std::int64_t i, const ChosenRow& chosen) {
  const v1::AttendRequest& request = asked.problem.request();
  const v1::Options& options = request.options();
  Lesson lesson;
  lesson.source = asked.source;
  lesson.row = chosen.row;
  lesson.scale = options.scale();
  lesson.scale_given = options.has_scale();
  lesson.rotary = options.has_rotary();
  const auto row_of = [&](v1::OutputKind kind) -> std::vector<double> {
    const Array* array = asked.answer.Find(kind);
    const absl::StatusOr<OutputLayout> layout = asked.problem.LayoutOf(kind);
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
  FillVectors(asked, b, h, i, &lesson);
  lesson.head = chosen.head;
  const absl::StatusOr<OutputLayout> queries = asked.whole.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
  const absl::StatusOr<OutputLayout> keys = asked.whole.LayoutOf(v1::OUTPUT_KIND_PROJECTED_K);
  if (queries.ok() && keys.ok()) lesson.kv_head = chosen.head / (queries->heads / keys->heads);
  lesson.mixed = lesson.after;
  if (lesson.output_projection) {
    lesson.mixed.assign(lesson.values.front().size(), 0);
    for (std::size_t j = 0; j < lesson.values.size(); ++j) {
      for (std::size_t c = 0; c < lesson.mixed.size(); ++c) lesson.mixed[c] += lesson.weights[j] * lesson.values[j][c];
    }
  }
  Label(asked, PositionOf(asked.whole, chosen.sequence, chosen.row), &lesson);
  return lesson;
}

// Every row and head of the sequence, or the chosen row alone.
LessonGrid GridOf(const Asked& asked, const OutputLayout& scores, const ChosenRow& chosen) {
  LessonGrid grid;
  grid.sequence = chosen.sequence;
  if (scores.rows > kGridRowsMax || scores.columns > kGridRowsMax || scores.heads > kGridHeadsMax) {
    grid.heads = {{LessonOf(asked, chosen.sequence, chosen.head, chosen.row, chosen)}};
    return grid;
  }
  grid.row = static_cast<std::size_t>(chosen.row);
  grid.head = static_cast<std::size_t>(chosen.head);
  for (std::int64_t h = 0; h < scores.heads; ++h) {
    std::vector<Lesson>& rows = grid.heads.emplace_back();
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      rows.push_back(LessonOf(asked, chosen.sequence, h, i, {i, h, chosen.sequence}));
      rows.back().shown.resize(rows.back().keys.size());
      std::iota(rows.back().shown.begin(), rows.back().shown.end(), 0);
    }
  }
  return grid;
}

}  // namespace

std::int64_t PositionOf(const Problem& problem, std::int64_t b, std::int64_t i) {
  const v1::Options& options = problem.request().options();
  const absl::StatusOr<OutputLayout> scores = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
  if (!scores.ok()) return i;
  const auto given = [b](const auto& values, std::int64_t otherwise) {
    return b < values.size() ? values.Get(static_cast<int>(b)) : otherwise;
  };
  const auto& lengths = options.lengths();
  const std::int64_t q_len = given(options.q_len(), given(lengths, scores->rows));
  const std::int64_t kv_len = given(options.kv_len(), given(lengths, scores->columns));
  return i + given(options.q_offset(), kv_len - q_len);
}

absl::StatusOr<LessonGrid> FetchSteps(Client& client, Problem problem, const ChosenRow& chosen,
                                      const std::vector<std::string>& names, const std::string& source) {
  const absl::StatusOr<OutputLayout> scores = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
  if (!scores.ok()) return scores.status();
  if (scores->columns == 0) return absl::InvalidArgumentError("there are no keys to explain");
  const Problem whole = problem;
  problem.options().set_mode(v1::COMPUTE_MODE_REFERENCE);
  problem.options().clear_output_dtype();
  const v1::AttendRequest& request = problem.request();
  // Of a large problem only the row is asked for, with the same meaning; of a small one all of it.
  const bool all = scores->elements <= kWholeScoresMax || request.has_x() || request.options().has_rotary();
  Problem asked = problem;
  if (!all) {
    std::vector<std::int64_t> offsets;
    for (std::int64_t b = 0; b < scores->batch; ++b) offsets.push_back(PositionOf(problem, b, 0));
    absl::StatusOr<RowSlice> slice = SliceRows(problem, chosen.sequence, chosen.head, {chosen.row}, offsets);
    if (!slice.ok()) return slice.status();
    asked = std::move(slice->problem);
  }
  absl::StatusOr<Answer> answer = AskSteps(client, asked);
  if (!answer.ok()) return answer.status();
  const Asked fetched{whole, std::move(asked), *std::move(answer), names, source};
  if (all) return GridOf(fetched, *scores, chosen);
  LessonGrid grid;
  grid.sequence = chosen.sequence;
  grid.heads = {{LessonOf(fetched, 0, 0, 0, chosen)}};
  return grid;
}

}  // namespace attnd::client
