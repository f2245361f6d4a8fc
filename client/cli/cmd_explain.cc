// attn explain: the steps of attention for one row, as tables that one can follow on paper.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/ask.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/slice.h"
#include "client/cli/text.h"

namespace attnd::client {

namespace {

constexpr std::size_t kKeysShown = 12;
constexpr std::size_t kColumnsShown = 8;
constexpr std::int64_t kWholeScoresMax = 1 << 16;  // above, only the row is sent

// Everything the page shows: one row of one head, and what each key brings.
struct Lesson {
  std::string source;
  std::vector<std::string> labels;       // by key
  std::string row_name;                  // quoted label, or "row 5"
  std::vector<double> query;             // d_k
  std::vector<std::vector<double>> keys, values;
  std::vector<double> dot, scaled, capped, biased, weights;  // by key; capped and biased may be empty
  std::vector<double> before, after;
  double scale = 1;
  bool scale_given = false;
  bool rotary = false;
  std::vector<std::size_t> shown;        // keys, in order
};

std::vector<double> Take(const Array& array, std::int64_t first, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(array.At(first + i));
  return values;
}

std::string Factor(double value) { return value < 0 ? absl::StrCat("(", Short(value), ")") : Short(value); }

// "1·2 + 3·4 + … + 5·6"
std::string SumOfProducts(const std::vector<std::string>& left, const std::vector<std::string>& right) {
  std::vector<std::string> terms;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left.size() > kColumnsShown && i >= kColumnsShown - 2 && i + 1 < left.size()) {
      if (i == kColumnsShown - 2) terms.emplace_back("…");
      continue;
    }
    terms.push_back(absl::StrCat(left[i], "·", right[i]));
  }
  return absl::StrJoin(terms, " + ");
}

std::vector<std::string> Factors(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(Factor(value));
  return texts;
}

std::string Vector(const std::vector<double>& values, int digits) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(values.size(), kColumnsShown); ++i) {
    texts.push_back(digits < 0 ? Short(values[i]) : Fixed(values[i], digits));
  }
  if (values.size() > kColumnsShown) texts.push_back(absl::StrCat("… (", values.size(), " numbers)"));
  return absl::StrJoin(texts, " ");
}

// Two digits where they say all there is, else four.
int Digits(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double v) { return std::isinf(v) || std::fabs(v * 100 - std::round(v * 100)) < 1e-4; })
             ? 2
             : 4;
}

// The keys with the largest weights where there are many.
std::vector<std::size_t> ShownKeys(const std::vector<double>& weights) {
  std::vector<std::size_t> keys(weights.size());
  std::iota(keys.begin(), keys.end(), 0);
  if (keys.size() <= kKeysShown) return keys;
  std::stable_sort(keys.begin(), keys.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  keys.resize(kKeysShown);
  std::sort(keys.begin(), keys.end());
  return keys;
}

void PrintInputs(const Lesson& lesson, std::ostream& out) {
  out << "Attention for " << lesson.row_name << ", step by step, computed by " << lesson.source
      << " in float64 (reference mode).\n";
  if (lesson.shown.size() < lesson.keys.size()) {
    out << "Shown are the " << lesson.shown.size() << " of " << lesson.keys.size() << " keys with the largest weights.\n";
  }
  out << "\nWhat each token brings\n";
  Table table({true, true, true});
  table.Row({"", "key (what it offers)", "value (what it hands on)"});
  for (const std::size_t j : lesson.shown) {
    table.Row({lesson.labels[j], Vector(lesson.keys[j], -1), Vector(lesson.values[j], -1)});
  }
  out << table.Text(2) << "\nThe query of " << lesson.row_name << " (what it looks for): " << Vector(lesson.query, -1) << "\n";
}

void PrintScores(const Lesson& lesson, std::ostream& out) {
  const int digits = Digits(lesson.dot);
  out << "\n1. Score: query times key, number by number, added up\n";
  Table scores;
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(lesson.dot[j])) {
      scores.Row({lesson.labels[j], "excluded"});
    } else if (lesson.rotary) {
      scores.Row({lesson.labels[j], absl::StrCat("(after the rotary turn) ", Fixed(lesson.dot[j], digits))});
    } else {
      scores.Row({lesson.labels[j], absl::StrCat(SumOfProducts(Factors(lesson.query), Factors(lesson.keys[j])), " = ",
                                                 Fixed(lesson.dot[j], digits))});
    }
  }
  out << scores.Text(2);
  const double root = std::sqrt(static_cast<double>(lesson.query.size()));
  if (lesson.scale_given) {
    out << "\n2. Scale: times " << Short(lesson.scale) << "\n";
  } else {
    out << "\n2. Scale: divide by √d_k = √" << lesson.query.size() << " = " << Short(root)
        << ", so that scores do not grow with the length of the vectors\n";
  }
  const int scaled_digits = Digits(lesson.scaled);
  Table scaled;
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(lesson.scaled[j])) {
      scaled.Row({lesson.labels[j], "excluded"});
      continue;
    }
    const std::string step = lesson.scale_given ? absl::StrCat(" · ", Factor(lesson.scale)) : absl::StrCat(" / ", Short(root));
    scaled.Row({lesson.labels[j], absl::StrCat(Fixed(lesson.dot[j], digits), step, " = ", Fixed(lesson.scaled[j], scaled_digits))});
  }
  out << scaled.Text(2);
  for (const auto& [name, values] : {std::pair("Soft cap: cap · tanh(score / cap)", &lesson.capped),
                                     std::pair("Bias: added to the score", &lesson.biased)}) {
    if (values->empty()) continue;
    out << "\n   " << name << "\n";
    Table table;
    for (const std::size_t j : lesson.shown) {
      table.Row({lesson.labels[j], std::isinf((*values)[j]) ? "excluded" : Fixed((*values)[j], 4)});
    }
    out << table.Text(2);
  }
}

void PrintSoftmax(const Lesson& lesson, std::ostream& out) {
  const std::vector<double>& logits = !lesson.biased.empty()   ? lesson.biased
                                      : !lesson.capped.empty() ? lesson.capped
                                                               : lesson.scaled;
  const double most = *std::max_element(logits.begin(), logits.end());
  // Large logits are shown relative to the largest: the shares are the same, and e^100 is no number for paper.
  const double shift = most > 10 || most < -10 ? most : 0;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - shift);
  out << "\n3. Softmax: e to the power of each, as a share of the sum " << Fixed(sum, 4);
  if (shift != 0) out << " (after taking the largest, " << Fixed(shift, 4) << ", away from each)";
  out << "\n";
  Table table;
  const int digits = Digits(logits);
  for (const std::size_t j : lesson.shown) {
    if (std::isinf(logits[j])) {
      table.Row({lesson.labels[j], "excluded", absl::StrCat("weight ", Fixed(lesson.weights[j], 4))});
      continue;
    }
    const std::string power = Fixed(std::exp(logits[j] - shift), 4);
    table.Row({lesson.labels[j], absl::StrCat("e^", Factor(std::strtod(Fixed(logits[j] - shift, digits).c_str(), nullptr)), " = ", power),
               absl::StrCat(power, " / ", Fixed(sum, 4), " = ", Fixed(lesson.weights[j], 4))});
  }
  out << table.Text(2);
}

void PrintSum(const Lesson& lesson, std::ostream& out) {
  out << "\n4. Weighted sum: each number of the values, mixed by the weights\n";
  std::vector<std::string> weights;
  for (const double weight : lesson.weights) weights.push_back(Fixed(weight, 4));
  Table table;
  for (std::size_t c = 0; c < std::min(lesson.after.size(), kColumnsShown) && c < lesson.values.front().size(); ++c) {
    std::vector<std::string> of_keys;
    for (const std::vector<double>& value : lesson.values) of_keys.push_back(Factor(value[c]));
    table.Row({absl::StrCat("number ", c + 1), absl::StrCat(SumOfProducts(weights, of_keys), " = ", Fixed(lesson.after[c], 4))});
  }
  if (lesson.after.size() > kColumnsShown) table.Row({"…", absl::StrCat(lesson.after.size(), " numbers in all")});
  out << table.Text(2);
}

void PrintSummary(const Lesson& lesson, std::ostream& out) {
  out << "\nAll steps at once\n";
  Table table;
  std::vector<std::string> labels = {""};
  for (const std::size_t j : lesson.shown) labels.push_back(lesson.labels[j]);
  table.Row(labels);
  const auto row = [&](const std::string& name, const std::vector<double>& values, int digits) {
    if (values.empty()) return;
    std::vector<std::string> cells = {name};
    for (const std::size_t j : lesson.shown) cells.push_back(std::isinf(values[j]) ? "excluded" : Fixed(values[j], digits));
    table.Row(cells);
  };
  row("score", lesson.dot, Digits(lesson.dot));
  row("scaled", lesson.scaled, Digits(lesson.scaled));
  row("capped", lesson.capped, 4);
  row("biased", lesson.biased, 4);
  row("weight", lesson.weights, 4);
  out << table.Text(2) << "\n";
  if (!lesson.before.empty()) out << lesson.row_name << " before: " << Vector(lesson.before, -1) << "\n";
  out << lesson.row_name << " after:  " << Vector(lesson.after, 4) << "\n";
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
    PrintInputs(*lesson, io.out);
    PrintScores(*lesson, io.out);
    PrintSoftmax(*lesson, io.out);
    PrintSum(*lesson, io.out);
    PrintSummary(*lesson, io.out);
    return absl::OkStatus();
  }

  // Asks for the steps of the chosen row.
  absl::StatusOr<Lesson> Compute(Client& client, Problem& problem) const {
    const absl::StatusOr<OutputLayout> scores = problem.LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
    if (!scores.ok()) return scores.status();
    const std::int64_t i = row.value_or(scores->rows - 1);
    if (i < 0 || i >= scores->rows || head < 0 || head >= scores->heads || sequence < 0 || sequence >= scores->batch) {
      return UsageError(absl::StrCat("--row ", i, " --head ", head, " --sequence ", sequence, ": the problem has ", scores->rows,
                                     " rows, ", scores->heads, " heads and ", scores->batch, " sequences, counted from 0"));
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
    std::vector<v1::OutputKind> kinds = {v1::OUTPUT_KIND_SCORES_DOT, v1::OUTPUT_KIND_SCORES_SCALED, v1::OUTPUT_KIND_WEIGHTS};
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
      return Take(*array, b * layout->batch_stride + of_head * layout->head_stride + i * layout->row_stride, layout->columns);
    };
    lesson.dot = row_of(v1::OUTPUT_KIND_SCORES_DOT);
    lesson.scaled = row_of(v1::OUTPUT_KIND_SCORES_SCALED);
    lesson.capped = row_of(v1::OUTPUT_KIND_SCORES_CAPPED);
    lesson.biased = row_of(v1::OUTPUT_KIND_SCORES_BIASED);
    lesson.weights = row_of(v1::OUTPUT_KIND_WEIGHTS);
    lesson.after = row_of(v1::OUTPUT_KIND_OUTPUT);
    lesson.shown = ShownKeys(lesson.weights);
    FillVectors(asked, *answer, b, h, i, &lesson);
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
    const v1::Layout layout = projected ? v1::LAYOUT_BHND : request.options().layout();
    const TensorRead queries = TensorRead::Heads(projected ? q : request.q(), layout);
    const TensorRead keys = TensorRead::Heads(projected ? k : request.k(), layout);
    const TensorRead values = TensorRead::Heads(projected ? v : request.v(), layout);
    const std::int64_t kv_head = h / (queries.shape[1] / keys.shape[1]);
    const auto row_of = [](const TensorRead& tensor, std::int64_t sequence, std::int64_t head, std::int64_t n) {
      std::vector<double> numbers;
      for (std::int64_t c = 0; c < tensor.shape[3]; ++c) numbers.push_back(tensor.At(sequence, head, n, c));
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
    lesson->row_name = !own ? absl::StrCat("position ", position) : named ? absl::StrCat("\"", names[p], "\"") : names[p];
    if (own && !whole.request().has_x()) lesson->before = lesson->values[p];
  }
};

}  // namespace

void AddExplainCommand(CLI::App& app, Command& selected) {
  auto command = std::make_shared<ExplainCommand>();
  CLI::App* sub = app.add_subcommand("explain", "Show attention step by step, with the arithmetic spelt out for one row");
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
