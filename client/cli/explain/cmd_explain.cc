// attn explain: the steps of attention for one row, as tables that one can follow on paper; or what the weights of a
// problem of any size look like; as tables, as JSON and as a page.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/explain/steps.h"
#include "client/cli/explain/summary_text.h"
#include "client/cli/explain/why_scale.h"
#include "client/cli/flags.h"
#include "client/cli/page.h"
#include "client/file.h"

namespace attnd::client {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kScoresSpeltMax = 64 * 64;  // of a head; more are summarised unless a row is chosen
constexpr std::int64_t kRowsListed = 64;

// The three tokens of the lesson.
absl::StatusOr<Problem> BuiltIn() {
  return Problem::FromQkv(Array::Of({1, 4}, std::vector<double>{1, 0, .5, 1}),
                          Array::Of({3, 4}, std::vector<double>{1, 0, .8, 1, 0, 1, .2, 0, .2, .2, .4, .1}),
                          Array::Of({3, 4}, std::vector<double>{.9, .1, .7, .8, .1, .9, .2, .1, .3, .3, .5, .2}));
}

// Fewer cells a head where there are many heads, so that a page stays one that a browser opens at once.
std::int64_t CellsMax(std::int64_t heads) { return heads <= 4 ? 128 : heads <= 16 ? 64 : 32; }

struct ExplainCommand {
  ServerFlags server;
  ProblemFlags problem_flags;
  std::string labels, html;
  std::optional<std::int64_t> row;
  std::int64_t head = 0, sequence = 0;
  bool json = false, summary = false, why_scale = false;

  absl::Status Run(const Io& io) const {
    if (const absl::Status writable = html.empty() ? absl::OkStatus() : CheckWritable(html); !writable.ok()) {
      return writable;
    }
    absl::StatusOr<Problem> problem = problem_flags.AnyInput() ? problem_flags.Load() : BuiltIn();
    if (!problem.ok()) return problem.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = server.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<OutputLayout> scores = problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS);
    if (!scores.ok()) return scores.status();
    const std::int64_t i = row.value_or(scores->rows - 1);
    if (i < 0 || i >= scores->rows || head < 0 || head >= scores->heads || sequence < 0 || sequence >= scores->batch) {
      return UsageError(absl::StrCat("--row ", i, " --head ", head, " --sequence ", sequence, ": the problem has ",
                                     scores->rows, " rows, ", scores->heads, " heads and ", scores->batch,
                                     " sequences, counted from 0"));
    }
    const std::int64_t of_head = scores->elements / scores->batch / scores->heads;
    const bool summarise = summary || (!row && of_head > kScoresSpeltMax);
    std::ostream* text = json || !html.empty() ? nullptr : &io.out;
    Json data = Json::object();
    absl::Status status;
    if (summarise) status = Summarise(**client, *problem, *scores, text, &data);
    if (status.ok() && (!summarise || row)) status = Spell(**client, *problem, {i, head, sequence}, text, &data);
    if (status.ok() && why_scale) status = WhyScale(**client, text, &data);
    if (!status.ok()) return server.Explain(status);
    if (!html.empty()) {
      const absl::Status written =
          WriteFile(html, MakePage(summarise ? "Where the weights are" : "Attention, step by step", "explain", data));
      if (!written.ok()) return written;
      if (!json) io.out << "page written to " << html << "\n";
    }
    if (json) io.out << data.dump() << "\n";
    return absl::OkStatus();
  }

  std::vector<std::string> Names() const {
    if (!labels.empty()) return absl::StrSplit(labels, ',');
    if (!problem_flags.AnyInput()) return {"server", "request", "it"};
    return {};
  }

  absl::Status Spell(Client& client, const Problem& problem, const ChosenRow& chosen, std::ostream* text,
                     Json* data) const {
    const absl::StatusOr<LessonGrid> grid = FetchSteps(client, problem, chosen, Names(), server.server);
    if (!grid.ok()) return grid.status();
    if (text != nullptr) {
      Section(*data, *text);
      Lesson lesson = grid->Chosen();
      lesson.shown = ShownKeys(lesson.weights);
      PrintLesson(lesson, *text);
    }
    (*data)["lesson"] = LessonJson(*grid);
    return absl::OkStatus();
  }

  absl::Status Summarise(Client& client, Problem problem, const OutputLayout& scores, std::ostream* text,
                         Json* data) const {
    problem.Want(v1::OUTPUT_KIND_WEIGHTS);
    const std::int64_t position = PositionOf(problem, sequence, 0);
    WeightsSummary weights(scores, sequence, position, CellsMax(scores.heads), kRowsListed);
    StreamCall call;
    call.by_block = {v1::OUTPUT_KIND_WEIGHTS};
    call.on_block = [&](const v1::Block& block) { return weights.Take(block); };
    const absl::StatusOr<Answer> answer = client.AttendStream(problem, call);
    if (!answer.ok()) return answer.status();
    (*data)["summary"] =
        SummaryJson(weights, {server.server, sequence, position, Names(), static_cast<std::size_t>(head)});
    if (text != nullptr) PrintSummary((*data)["summary"], *text);
    return absl::OkStatus();
  }

  static absl::Status WhyScale(Client& client, std::ostream* text, Json* data) {
    const absl::StatusOr<Json> measured = MeasureWhyScale(client);
    if (!measured.ok()) return measured.status();
    if (text != nullptr) {
      Section(*data, *text);
      PrintWhyScale(*measured, *text);
    }
    (*data)["why_scale"] = *measured;
    return absl::OkStatus();
  }

  // A line between what was printed and what comes.
  static void Section(const Json& data, std::ostream& text) {
    if (!data.empty()) text << "\n";
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
  const std::string group = "What to show, and how";
  sub->add_flag("--summary", command->summary,
                "what the weights of every head look like: heat map, entropy, distances, sinks; default for a head of "
                "more than 4096 scores without --row")
      ->group(group);
  sub->add_flag("--why_scale", command->why_scale, "measure what the division by √d is for, too")->group(group);
  sub->add_option("--html", command->html, "write it as a page that needs no other file and no network")->group(group);
  sub->add_flag("--json", command->json, "print the page's numbers as JSON")->group(group);
  command->problem_flags.AddTo(*sub);
  sub->footer(
      "Without tensors: the three tokens \"server\", \"request\" and \"it\".\n\n"
      "Examples:\n  attn explain\n  attn explain --q q.npy --k k.npy --v v.npy --labels the,cat,sat --row 2 --causal\n"
      "  attn explain --why_scale --html lesson.html\n  attn explain --npz layer.npz --summary --html weights.html");
  sub->callback([command, &selected] { selected = [command](const Io& io) { return command->Run(io); }; });
}

}  // namespace attnd::client
