#include "core/problem.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/checked.h"
#include "core/problem_checks.h"

namespace attnd {
namespace {

// More than a limit allows: no retry can help, only a smaller problem or another flag.
absl::Status CheckLimit(absl::string_view what, std::optional<std::int64_t> needed, std::int64_t allowed,
                        absl::string_view flag) {
  if (needed && *needed <= allowed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("problem: ", what, " = ",
                                                   needed ? absl::StrCat(*needed) : std::string("more than 2^63"),
                                                   ", allowed ", allowed, " (flag ", flag, ")"));
}

absl::Status CheckLimits(const Problem& problem, const ProblemLimits& limits) {
  ATTND_RETURN_IF_ERROR(CheckLimit("B * Hq", CheckedProduct({problem.batch, problem.q_heads}),
                                   limits.sequence_heads_max, "sequence_heads_max"));
  const std::optional<std::int64_t> rows = CheckedSum({problem.q_rows, problem.kv_rows});
  ATTND_RETURN_IF_ERROR(CheckLimit("B * Hq * (Nq + Nk)",
                                   rows ? CheckedProduct({problem.batch, problem.q_heads, *rows}) : rows,
                                   limits.rows_max, "rows_max"));
  const std::int64_t d_model = problem.projection ? problem.projection->d_model : 0;
  for (const auto& [what, width] :
       {std::pair{"d_k", problem.d_k}, {"d_v", problem.d_v}, {"d_model", d_model}, {"d_out", problem.d_out}}) {
    ATTND_RETURN_IF_ERROR(CheckLimit(what, width, limits.width_max, "width_max"));
  }
  return absl::OkStatus();
}

absl::Status ResolveOutputs(const std::vector<OutputKind>& outputs, Problem& problem) {
  std::array<bool, kOutputKindCount> seen{};
  for (const OutputKind kind : outputs) {
    const int number = static_cast<int>(kind);
    if (number < 1 || number >= kOutputKindCount) return Refuse("outputs", "unknown kind ", number);
    if (std::exchange(seen[number], true)) return Refuse("outputs", Name(kind), " twice, expected each at most once");
    if (IsProjected(kind) && !problem.projection)
      return Refuse("outputs", Name(kind), " without x, expected with x only");
    if (kind != OutputKind::kOutput) problem.extras.push_back(kind);
  }
  problem.wanted = seen;
  problem.wanted[static_cast<int>(OutputKind::kOutput)] = true;
  return absl::OkStatus();
}

// Every wanted tensor, and all of them together, can be counted in bytes.
absl::Status CheckReplySize(const Problem& problem) {
  std::int64_t total = 0;
  for (int number = 1; number < kOutputKindCount; ++number) {
    const OutputKind kind = static_cast<OutputKind>(number);
    if (!problem.Wants(kind)) continue;
    const auto [b, h, rows, columns] = problem.OutputShape(kind);
    const auto bytes = CheckedProduct({b, h, rows, columns, ElementBytes(problem.OutputDType(kind))});
    const auto sum = bytes ? CheckedSum({total, *bytes}) : bytes;
    if (!sum) {
      return Refuse("outputs", Name(kind), " of shape ", ShapeText(problem.ReplyShape(kind)),
                    ", expected a size in bytes that fits a signed 64-bit integer");
    }
    total = *sum;
  }
  return absl::OkStatus();
}

absl::Status CheckMaskBytes(const std::byte* bytes, std::int64_t count) {
  std::int64_t index = 0;
  for (; index + 8 <= count; index += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, bytes + index, sizeof(eight));
    if ((eight & 0xFEFEFEFEFEFEFEFE) != 0) break;
  }
  for (; index < count; ++index) {
    const int value = static_cast<int>(bytes[index]);
    if (value > 1) return Refuse("options.mask", "byte ", value, " at index ", index, ", expected 0 or 1");
  }
  return absl::OkStatus();
}

// Entries that no key below kv_len needs may be anything.
absl::Status CheckPageTable(const Pages& pages, const std::vector<std::int64_t>& kv_len) {
  for (std::size_t b = 0; b < kv_len.size(); ++b) {
    const std::int64_t first = static_cast<std::int64_t>(b) * pages.per_sequence;
    for (std::int64_t t = 0; t < CeilDiv(kv_len[b], pages.rows); ++t) {
      const std::int64_t page = LoadInt64(pages.table, first + t);
      if (page >= 0 && page < pages.count) continue;
      return Refuse("options.page_table", "entry [", b, ",", t, "] is ", page, ", expected 0 to ", pages.count - 1,
                    " (k has ", pages.count, " pages)");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(OutputKind kind) {
  switch (kind) {
    case OutputKind::kOutput: return "OUTPUT_KIND_OUTPUT";
    case OutputKind::kWeights: return "OUTPUT_KIND_WEIGHTS";
    case OutputKind::kLse: return "OUTPUT_KIND_LSE";
    case OutputKind::kScoresDot: return "OUTPUT_KIND_SCORES_DOT";
    case OutputKind::kScoresScaled: return "OUTPUT_KIND_SCORES_SCALED";
    case OutputKind::kScoresCapped: return "OUTPUT_KIND_SCORES_CAPPED";
    case OutputKind::kScoresBiased: return "OUTPUT_KIND_SCORES_BIASED";
    case OutputKind::kProjectedQ: return "OUTPUT_KIND_PROJECTED_Q";
    case OutputKind::kProjectedK: return "OUTPUT_KIND_PROJECTED_K";
    case OutputKind::kProjectedV: return "OUTPUT_KIND_PROJECTED_V";
  }
  return "OUTPUT_KIND_UNSPECIFIED";
}

absl::StatusOr<Problem> Problem::Create(const ProblemInputs& inputs, const ProblemLimits& limits) {
  Problem problem;
  ATTND_RETURN_IF_ERROR(ResolveTensors(inputs, problem));
  ATTND_RETURN_IF_ERROR(CheckLimits(problem, limits));  // before anything of size B exists
  ATTND_RETURN_IF_ERROR(ResolveOptions(inputs.options, problem));
  ATTND_RETURN_IF_ERROR(ResolveOutputs(inputs.outputs, problem));
  ATTND_RETURN_IF_ERROR(CheckReplySize(problem));
  return problem;
}

absl::Status Problem::CheckContents() const {
  if (mask) ATTND_RETURN_IF_ERROR(CheckMaskBytes(mask->data, mask_elements));
  if (k.paged()) ATTND_RETURN_IF_ERROR(CheckPageTable(k.pages, kv_len));
  return absl::OkStatus();
}

std::array<std::int64_t, 4> Problem::OutputShape(OutputKind kind) const {
  switch (kind) {
    case OutputKind::kOutput:
      if (d_out > 0) return {batch, 1, q_rows, d_out};
      return {batch, q_heads, q_rows, d_v};
    case OutputKind::kLse: return {batch, q_heads, q_rows, 1};
    case OutputKind::kProjectedQ: return {batch, q_heads, q_rows, d_k};
    case OutputKind::kProjectedK: return {batch, kv_heads, kv_rows, d_k};
    case OutputKind::kProjectedV: return {batch, kv_heads, kv_rows, d_v};
    default: return {batch, q_heads, q_rows, kv_rows};
  }
}

std::vector<std::int64_t> Problem::ReplyShape(OutputKind kind) const {
  const auto [b, h, rows, columns] = OutputShape(kind);
  if (kind == OutputKind::kLse) return {b, h, rows};
  if (kind == OutputKind::kOutput && d_out > 0) return {b, rows, columns};
  if (kind == OutputKind::kOutput && layout == Layout::kBNHD) return {b, rows, h, columns};
  return {b, h, rows, columns};
}

DType Problem::OutputDType(OutputKind kind) const {
  if (kind == OutputKind::kOutput) return output_dtype;
  if (kind == OutputKind::kLse && reference) return DType::kFloat64;
  return DType::kFloat32;
}

Problem::KeyRange Problem::VisibleKeys(std::int64_t b, std::int64_t i) const {
  if (i >= q_len[b]) return {};
  const __int128 p = static_cast<__int128>(i) + q_offset[b];  // a window may be as wide as int64
  __int128 first = 0, end = kv_len[b];
  if (causal) end = std::min(end, p + 1);
  if (window_left) first = std::max(first, p - *window_left);
  if (window_right) end = std::min(end, p + *window_right + 1);
  if (first >= end) return {};
  return {static_cast<std::int64_t>(first), static_cast<std::int64_t>(end)};
}

}  // namespace attnd
