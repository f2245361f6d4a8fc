// Logits, biases and sinks far beyond what e^x can hold, against closed forms, in both modes and both ways of reading K
// and V; and random ones against the float64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/core/compare.h"
#include "tests/core/random_problem.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One head whose rows are all alike: q . k of key j is dots[j], its value is j.
struct Keys {
  std::vector<double> dots;
  std::vector<double> bias;     // none, or one a key
  std::vector<float> sinks;     // none, or one
  std::vector<double> weights;  // the right ones
  double lse = 0;
};

void ExpectAnswer(const Keys& keys) {
  const auto count = static_cast<std::int64_t>(keys.dots.size());
  double output = 0;
  for (std::size_t j = 0; j < keys.dots.size(); ++j) output += keys.weights[j] * static_cast<double>(j);
  for (const bool reference : {false, true}) {
    for (const std::int64_t rows : {1, 4, 5, 70}) {
      SCOPED_TRACE(std::to_string(rows) + (reference ? " rows in reference mode" : " rows"));
      TensorStore store;
      ProblemInputs inputs;
      std::vector<double> values;
      for (std::int64_t j = 0; j < count; ++j) values.push_back(static_cast<double>(j));
      inputs.q = store.Filled({1, 1, rows, 1}, 1, DType::kFloat32);
      inputs.k = store.Floats({1, 1, count, 1}, keys.dots, DType::kFloat32);
      inputs.v = store.Floats({1, 1, count, 1}, values, DType::kFloat32);
      if (!keys.bias.empty()) inputs.options.bias = store.Floats({count}, keys.bias, DType::kFloat32);
      inputs.options.sinks = keys.sinks;
      inputs.options.reference = reference;
      const Answered got = Answer(WithEveryOutput(inputs));
      EXPECT_EQ(got.answer.nonfinite_rows, 0);
      for (const std::int64_t i : {std::int64_t{0}, rows - 1}) {
        EXPECT_NEAR(got.At(OutputKind::kOutput, 0, 0, i, 0), output, 1e-6 * (1 + output));
        EXPECT_NEAR(got.At(OutputKind::kLse, 0, 0, i, 0), keys.lse, 1e-6 * (1 + std::abs(keys.lse)));
        for (std::int64_t j = 0; j < count; ++j) {
          const double want = keys.weights[static_cast<std::size_t>(j)],
                       weight = got.At(OutputKind::kWeights, 0, 0, i, j);
          EXPECT_NEAR(weight, want, 1e-6 * want) << j;  // a weight of 0 is exactly 0
        }
      }
    }
  }
}

TEST(AttentionLargeLogitsTest, LogitsOfEitherSign) {
  const double e = std::exp(1.0);
  for (const double size : {200.0, 20000.0, 3e38}) {
    SCOPED_TRACE(size);
    ExpectAnswer({{size, size, -size, 0}, {}, {}, {0.5, 0.5, 0, 0}, size + std::log(2.0)});
    ExpectAnswer({{-size, -size, -size}, {}, {}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, -size + std::log(3.0)});
    if (size > 1e6) continue;  // where a difference of 1 is not lost
    ExpectAnswer({{size, size - 1, -size}, {}, {}, {e / (e + 1), 1 / (e + 1), 0}, size + std::log(1 + 1 / e)});
    ExpectAnswer({{-size, -size - 1}, {}, {}, {e / (e + 1), 1 / (e + 1)}, -size + std::log(1 + 1 / e)});
  }
}

// A finite bias is a value and excludes nothing, however large.
TEST(AttentionLargeLogitsTest, BiasesOfEitherSign) {
  constexpr double kHuge = 3.4e38;
  ExpectAnswer({{1, 1, 1}, {0, kHuge, 0}, {}, {0, 1, 0}, kHuge});
  ExpectAnswer({{1, 1, 1}, {0, -kHuge, 0}, {}, {0.5, 0, 0.5}, 1 + std::log(2.0)});
  ExpectAnswer({{1, 1, 1}, {kHuge, -kHuge, 0}, {}, {1, 0, 0}, kHuge});
  ExpectAnswer({{1, 1, 1}, {-kInfinity, -kHuge, -kInfinity}, {}, {0, 1, 0}, -kHuge});
  // What q . k adds is less than half of the last place of 3.4e38.
  ExpectAnswer({{3, 7}, {-kHuge, -kHuge}, {}, {0.5, 0.5}, -kHuge});
  ExpectAnswer({{200, 20000}, {kHuge, kHuge}, {}, {0.5, 0.5}, kHuge});
}

TEST(AttentionLargeLogitsTest, SinksOfEitherSign) {
  ExpectAnswer({{0, 0}, {}, {100}, {0, 0}, 100});  // e^-100 would be subnormal
  ExpectAnswer({{0, 0}, {}, {-100}, {0.5, 0.5}, std::log(2.0)});
  ExpectAnswer({{100, 100}, {}, {100}, {1.0 / 3, 1.0 / 3}, 100 + std::log(3.0)});
  ExpectAnswer({{-100}, {}, {-100}, {0.5}, -100 + std::log(2.0)});
  ExpectAnswer({{-20000, -200}, {}, {-100}, {0, 0}, -100});
  ExpectAnswer({{20000, 200}, {}, {100}, {1, 0}, 20000});
  ExpectAnswer({{1, 1}, {-3.4e38, -3.4e38}, {-100}, {0, 0}, -100});
}

TEST(AttentionLargeLogitsTest, RandomOnesMatchTheReference) {
  std::mt19937 generator(5);
  for (const double scale : {200.0, -200.0, 20000.0}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t rows : {3, 20}) {
        for (const float sink : {100.0F, -100.0F}) {
          TensorStore store;
          ProblemInputs inputs = RandomInputs({1, 1, 1, rows, 300, 8, 8}, store, generator, dtype);
          inputs.options.scale = scale;
          inputs.options.causal = true;
          if (scale > 0) inputs.options.sinks = {sink};
          EXPECT_EQ(DifferenceFromReference(WithEveryOutput(inputs)), "") << scale << " " << rows << " " << Name(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd
