#include "client/cli/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/cli/ask.h"
#include "client/cli/slice.h"

namespace attnd::client {

namespace {

// Half a unit in the last place of a number stored in `dtype`: what the last rounding may add.
double Rounding(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat16: return std::max(std::fabs(value) * std::ldexp(1.0, -11), std::ldexp(1.0, -25));
    case DType::kBFloat16: return std::fabs(value) * std::ldexp(1.0, -8);
    default: return 0;
  }
}

// Updates the largest error and share. Two NaN agree, so do equal infinities.
void Compare(double got, double right, double tolerance, double* error, double* share) {
  if ((std::isnan(got) && std::isnan(right)) || got == right) return;
  const double difference = std::fabs(got - right);
  const double of_tolerance = difference / tolerance;
  *error = std::isnan(difference) ? difference : std::max(*error, difference);
  *share = std::isnan(of_tolerance) ? HUGE_VAL : std::max(*share, of_tolerance);
}

}  // namespace

SampledRows SampleRows(const OutputLayout& layout, std::int64_t count) {
  SampledRows rows;
  if (layout.batch == 0 || layout.heads == 0 || layout.rows == 0) return rows;
  const std::int64_t all = layout.batch * layout.heads * layout.rows;
  count = std::min(count, all);
  for (std::int64_t s = 0; s < count; ++s) {
    // In floating point: s * all may not fit.
    const double at =
        count == 1 ? 0 : static_cast<double>(all - 1) * static_cast<double>(s) / static_cast<double>(count - 1);
    const std::int64_t row = std::min(static_cast<std::int64_t>(at), all - 1);
    rows[{row / layout.rows / layout.heads, row / layout.rows % layout.heads}].push_back(row % layout.rows);
  }
  return rows;
}

KeptRows::KeptRows(const SampledRows& rows, std::int64_t columns) : rows_(rows), columns_(columns) {
  for (const auto& [head, list] : rows) values_[head].resize(list.size() * static_cast<std::size_t>(columns));
}

void KeptRows::Take(const v1::Block& block) {
  const auto found = rows_.find({block.batch(), block.head()});
  if (found == rows_.end()) return;
  std::vector<float>& values = values_.at(found->first);
  for (std::size_t r = 0; r < found->second.size(); ++r) {
    const std::int64_t row = found->second[r] - block.first_row();
    if (row < 0 || row >= block.rows()) continue;
    std::memcpy(values.data() + static_cast<std::int64_t>(r) * columns_ + block.first_column(),
                block.data().data() + row * block.columns() * 4, static_cast<std::size_t>(block.columns()) * 4);
  }
}

absl::StatusOr<CheckResult> CheckRows(Client& client, const Problem& problem, const Answer& answer,
                                      const SampledRows& rows, const KeptRows* weights) {
  const absl::StatusOr<OutputLayout> layout = problem.LayoutOf(v1::OUTPUT_KIND_OUTPUT);
  if (!layout.ok()) return layout.status();
  const std::vector<std::int64_t> q_offset(answer.statistics.q_offset().begin(), answer.statistics.q_offset().end());
  if (static_cast<std::int64_t>(q_offset.size()) != layout->batch) {
    return absl::InternalError("the server did not say which q_offset it used");
  }
  CheckResult result;
  result.with_weights = weights != nullptr;
  for (const auto& [head, list] : rows) {
    const auto [b, h] = head;
    absl::StatusOr<RowSlice> slice = SliceRows(problem, b, h, list, q_offset);
    if (!slice.ok()) return slice.status();
    const absl::StatusOr<Answer> right = Ask(client, slice->problem);
    if (!right.ok()) return right.status();
    const Array& right_weights = *right->Find(v1::OUTPUT_KIND_WEIGHTS);
    const std::int64_t keys = right_weights.shape.back();
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(list.size()); ++r) {
      const RowBound& bound = slice->bounds[static_cast<std::size_t>(r)];
      const std::int64_t first =
          b * layout->batch_stride + h * layout->head_stride + list[static_cast<std::size_t>(r)] * layout->row_stride;
      for (std::int64_t c = 0; c < layout->columns; ++c) {
        const double value = bound.beyond ? 0 : right->output.At(r * layout->columns + c);
        Compare(answer.output.At(first + c), value,
                Tolerance(bound.a, bound.value_max) + Rounding(problem.output_dtype(), value), &result.output_error,
                &result.output_share);
      }
      for (std::int64_t j = 0; weights != nullptr && j < keys; ++j) {
        Compare(weights->Head(b, h)[static_cast<std::size_t>(r * keys + j)],
                bound.beyond ? 0 : right_weights.At(r * keys + j), Tolerance(bound.a, 1), &result.weights_error,
                &result.weights_share);
      }
      ++result.rows;
    }
  }
  return result;
}

}  // namespace attnd::client
