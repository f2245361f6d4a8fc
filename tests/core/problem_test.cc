#include "core/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/core/inputs.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// B 2, Hq 4, Hkv 2, Nq 3, Nk 5, d_k 8, d_v 6.
ProblemInputs Qkv() { return ShapedInputs({2, 4, 3, 8}, {2, 2, 5, 8}, {2, 2, 5, 6}); }

// B 2, N 3, d_model 10, and the same heads.
ProblemInputs WithX() {
  ProblemInputs inputs;
  inputs.x = Shaped({2, 3, 10});
  ProjectionInputs& projection = inputs.projection.emplace();
  projection.q_heads = 4;
  projection.kv_heads = 2;
  projection.w_q = Shaped({10, 32});
  projection.w_k = Shaped({10, 16});
  projection.w_v = Shaped({10, 12});
  projection.b_q = Shaped({32});
  projection.w_o = Shaped({24, 7});
  projection.b_o = Shaped({7});
  return inputs;
}

struct Refusal {
  std::function<void(ProblemInputs&)> spoil;
  std::string message;
};

void ExpectRefused(const ProblemInputs& base, const std::vector<Refusal>& refusals) {
  ASSERT_TRUE(Problem::Create(base, {}).ok());
  for (const Refusal& refusal : refusals) {
    ProblemInputs inputs = base;
    refusal.spoil(inputs);
    const absl::Status status = Problem::Create(inputs, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_EQ(std::string(status.message()), refusal.message);
  }
}

TEST(Problem, RefusesTensorsByName) {
  const std::string whole = "a size in bytes that fits a signed 64-bit integer";
  ExpectRefused(
      Qkv(),
      {
          {[](auto& in) { in.q.reset(); }, "q: missing, expected q, k and v, or x with projection"},
          {[](auto& in) { in.k.reset(); }, "k: missing, expected q, k and v, or x with projection"},
          {[](auto& in) { in.v.reset(); }, "v: missing, expected q, k and v, or x with projection"},
          {[](auto& in) { in.projection.emplace(); }, "projection: given without x"},
          {[](auto& in) {
             in.x = Shaped({2, 3, 10});
           },
           "q: given together with x, expected either q, k and v, or x with projection"},
          {[](auto& in) {
             in.q->shape = {2, 3, 8};
           },
           "q: shape [2,3,8], expected 4 dimensions [B, Hq, Nq, d_k]"},
          {[](auto& in) { in.q->shape = {}; }, "q: shape [], expected 4 dimensions [B, Hq, Nq, d_k]"},
          {[](auto& in) { in.k->shape.push_back(1); }, "k: shape [2,2,5,8,1], expected 4 dimensions [B, Hkv, Nk, d_k]"},
          {[](auto& in) {
             in.options.layout = Layout::kBNHD;
             in.v->shape = {5, 6};
           },
           "v: shape [5,6], expected 4 dimensions [B, Nk, Hkv, d_v]"},
          {[](auto& in) { in.q->shape[2] = -1; }, "q: shape [2,4,-1,8], expected no negative dimension"},
          {[](auto& in) { in.v->shape[0] = -kMax - 1; },
           "v: shape [-9223372036854775808,2,5,6], expected no negative dimension"},
          {[](auto& in) { in.q->dtype = DType::kFloat64; },
           "q: dtype float64 outside reference mode, expected float32, float16 or bfloat16"},
          {[](auto& in) { in.k->dtype = DType::kInt64; }, "k: dtype int64, expected float32, float16 or bfloat16"},
          {[](auto& in) { in.v->dtype = DType::kBool; }, "v: dtype bool, expected float32, float16 or bfloat16"},
          {[](auto& in) {
             in.options.reference = true;
             in.v->dtype = DType::kBool;
           },
           "v: dtype bool, expected float32, float16, bfloat16 or float64"},
          {[](auto& in) { in.q->shape[1] = 0; }, "q: shape [2,0,3,8], expected Hq of at least 1"},
          {[](auto& in) { in.q->shape[3] = 0; }, "q: shape [2,4,3,0], expected d_k of at least 1"},
          {[](auto& in) { in.k->shape[0] = 3; }, "k: shape [3,2,5,8], expected B = 2 as in q"},
          {[](auto& in) { in.k->shape[1] = 0; }, "k: shape [2,0,5,8], expected Hkv of at least 1"},
          {[](auto& in) { in.k->shape[1] = 3; }, "k: shape [2,3,5,8], expected Hkv to divide Hq = 4 of q"},
          {[](auto& in) { in.k->shape[1] = 8; }, "k: shape [2,8,5,8], expected Hkv to divide Hq = 4 of q"},
          {[](auto& in) { in.k->shape[3] = 9; }, "k: shape [2,2,5,9], expected d_k = 8 as in q"},
          {[](auto& in) { in.v->shape[0] = 1; }, "v: shape [1,2,5,6], expected B = 2 as in q"},
          {[](auto& in) { in.v->shape[1] = 4; }, "v: shape [2,4,5,6], expected Hkv = 2 as in k"},
          {[](auto& in) { in.v->shape[2] = 6; }, "v: shape [2,2,6,6], expected Nk = 5 as in k"},
          {[](auto& in) { in.v->shape[3] = 0; }, "v: shape [2,2,5,0], expected d_v of at least 1"},
          {[](auto& in) {
             in.q->shape = {1 << 20, 1 << 20, 1 << 20, 8};
           },
           "q: shape [1048576,1048576,1048576,8], expected " + whole},
          {[](auto& in) {
             in.k->shape = {1, 1, std::int64_t{1} << 61, 1};
           },
           "k: shape [1,1,2305843009213693952,1], expected " + whole},
          {[](auto& in) {
             in.v->shape = {0, 1, kMax, 1};
           },
           "v: shape [0,1,9223372036854775807,1], expected " + whole},
          {[](auto& in) {
             in.q->shape = {1, 1, std::int64_t{1} << 60, 1};
             in.k->shape = {1, 1, std::int64_t{1} << 60, 1};
           },
           "k: shape [1,1,1152921504606846976,1], expected all tensors together to fit a signed 64-bit integer of "
           "bytes"},
      });
}

TEST(Problem, RefusesProjectionsByName) {
  ExpectRefused(
      WithX(),
      {
          {[](auto& in) { in.projection.reset(); }, "projection: missing, expected with x"},
          {[](auto& in) {
             in.v = Shaped({1, 1, 1, 1});
           },
           "v: given together with x, expected either q, k and v, or x with projection"},
          {[](auto& in) {
             in.x->shape = {2, 1, 3, 10};
           },
           "x: shape [2,1,3,10], expected 3 dimensions [B, N, d_model]"},
          {[](auto& in) { in.x->shape[2] = 0; }, "x: shape [2,3,0], expected d_model of at least 1"},
          {[](auto& in) { in.x->dtype = DType::kFloat64; },
           "x: dtype float64 outside reference mode, expected float32, float16 or bfloat16"},
          {[](auto& in) { in.projection->q_heads = 0; }, "projection.q_heads: 0, expected at least 1"},
          {[](auto& in) { in.projection->kv_heads = -2; }, "projection.kv_heads: -2, expected at least 1"},
          {[](auto& in) { in.projection->kv_heads = 3; }, "projection.kv_heads: 3, expected a divisor of q_heads = 4"},
          {[](auto& in) { in.projection->w_q.reset(); }, "projection.w_q: missing"},
          {[](auto& in) { in.projection->w_v.reset(); }, "projection.w_v: missing"},
          {[](auto& in) {
             in.projection->w_q->shape = {11, 32};
           },
           "projection.w_q: shape [11,32], expected d_model = 10 inputs"},
          {[](auto& in) { in.projection->w_q->shape = {10}; },
           "projection.w_q: shape [10], expected 2 dimensions [in, out]"},
          {[](auto& in) { in.projection->weights_transposed = true; },
           "projection.w_q: shape [10,32], expected d_model = 10 inputs (weights_transposed: [out, in])"},
          {[](auto& in) { in.projection->w_q->dtype = DType::kInt64; },
           "projection.w_q: dtype int64, expected float32, float16 or bfloat16"},
          {[](auto& in) {
             in.projection->w_q->shape = {10, 30};
             in.projection->b_q.reset();
           },
           "projection.w_q: shape [10,30], expected outputs a multiple of q_heads = 4"},
          {[](auto& in) {
             in.projection->w_k->shape = {10, 15};
           },
           "projection.w_k: shape [10,15], expected outputs a multiple of kv_heads = 2"},
          {[](auto& in) {
             in.projection->w_k->shape = {10, 18};
           },
           "projection.w_k: shape [10,18], expected 2 heads of d_k = 8 as in projection.w_q"},
          {[](auto& in) {
             in.projection->w_v->shape = {10, 0};
           },
           "projection.w_v: shape [10,0], expected at least 1 output"},
          {[](auto& in) { in.projection->b_q->shape = {31}; },
           "projection.b_q: shape [31], expected [32] as in projection.w_q"},
          {[](auto& in) {
             in.projection->b_q->shape = {1, 32};
           },
           "projection.b_q: shape [1,32], expected 1 dimension [out]"},
          {[](auto& in) {
             in.projection->w_o->shape = {23, 7};
           },
           "projection.w_o: shape [23,7], expected Hq * d_v = 24 inputs"},
          {[](auto& in) {
             in.projection->w_o->shape = {24, 0};
           },
           "projection.w_o: shape [24,0], expected at least 1 output"},
          {[](auto& in) { in.projection->w_o.reset(); }, "projection.b_o: given without projection.w_o"},
          {[](auto& in) { in.projection->b_o->shape = {8}; },
           "projection.b_o: shape [8], expected [7] as in projection.w_o"},
          {[](auto& in) {
             in.options.lengths = {3, 4};
           },
           "options.lengths: 4 for sequence 1, expected 0 to 3"},
          {[](auto& in) { in.options.lengths = {3}; }, "options.lengths: 1 values, expected B = 2 or none"},
          {[](auto& in) {
             in.options.lengths = {3, 3};
             in.options.q_len = {3, 3};
           },
           "options.q_len: given together with lengths, which sets it"},
          {[](auto& in) {
             in.options.lengths = {3, 3};
             in.options.kv_len = {3, 3};
           },
           "options.kv_len: given together with lengths, which sets it"},
      });
}

TEST(Problem, RefusesOptionsByName) {
  const auto rotary = [](std::int64_t dim) {
    RotaryInputs inputs;
    inputs.rotary_dim = dim;
    return inputs;
  };
  ExpectRefused(
      Qkv(),
      {
          {[](auto& in) { in.options.scale = kNaN; }, "options.scale: nan, expected a finite number"},
          {[](auto& in) { in.options.scale = -kInfinity; }, "options.scale: -inf, expected a finite number"},
          {[](auto& in) { in.options.scale = 1e39; },
           "options.scale: 1e+39, expected a number that float32 holds outside reference mode"},
          {[](auto& in) { in.options.window_left = -1; }, "options.window_left: -1, expected at least 0"},
          {[](auto& in) { in.options.window_right = -7; }, "options.window_right: -7, expected at least 0"},
          {[](auto& in) {
             in.options.q_offset = {1, 2, 3};
           },
           "options.q_offset: 3 values, expected B = 2 or none"},
          {[](auto& in) {
             in.options.q_offset = {0, (std::int64_t{1} << 40) + 1};
           },
           "options.q_offset: 1099511627777 for sequence 1, expected -1099511627776 to 1099511627776"},
          {[](auto& in) {
             in.options.q_offset = {-kMax - 1, 0};
           },
           "options.q_offset: -9223372036854775808 for sequence 0, expected -1099511627776 to 1099511627776"},
          {[](auto& in) { in.options.q_len = {1}; }, "options.q_len: 1 values, expected B = 2 or none"},
          {[](auto& in) {
             in.options.q_len = {3, 4};
           },
           "options.q_len: 4 for sequence 1, expected 0 to 3"},
          {[](auto& in) {
             in.options.kv_len = {-1, 5};
           },
           "options.kv_len: -1 for sequence 0, expected 0 to 5"},
          {[](auto& in) {
             in.options.kv_len = {5, 6};
           },
           "options.kv_len: 6 for sequence 1, expected 0 to 5"},
          {[](auto& in) {
             in.options.lengths = {1, 1};
           },
           "options.lengths: given without x, expected q_len and kv_len"},
          {[](auto& in) { in.options.softcap = 0.0; }, "options.softcap: 0, expected a finite number over 0"},
          {[](auto& in) { in.options.softcap = -1.0; }, "options.softcap: -1, expected a finite number over 0"},
          {[](auto& in) { in.options.softcap = kNaN; }, "options.softcap: nan, expected a finite number over 0"},
          {[](auto& in) { in.options.softcap = kInfinity; }, "options.softcap: inf, expected a finite number over 0"},
          {[](auto& in) {
             in.options.alibi_slopes = {1, 2};
           },
           "options.alibi_slopes: 2 values, expected Hq = 4 or none"},
          {[](auto& in) {
             in.options.alibi_slopes = {1, 2, -std::numeric_limits<float>::infinity(), 4};
           },
           "options.alibi_slopes: -inf for head 2, expected a finite number"},
          {[](auto& in) {
             in.options.sinks = {1, 2, 3, 4, 5};
           },
           "options.sinks: 5 values, expected Hq = 4 or none"},
          {[](auto& in) {
             in.options.sinks = {1, 2, 3, std::numeric_limits<float>::infinity()};
           },
           "options.sinks: inf for head 3, expected a finite number, or -inf for none"},
          {[](auto& in) {
             in.options.sinks = {std::numeric_limits<float>::quiet_NaN(), 2, 3, 4};
           },
           "options.sinks: nan for head 0, expected a finite number, or -inf for none"},
          {[](auto& in) {
             in.options.mask = Shaped({3, 5});
           },
           "options.mask: dtype float32, expected bool (a float mask is options.bias)"},
          {[](auto& in) { in.options.mask = Shaped({}, DType::kBool); },
           "options.mask: shape [], expected 1 to 4 dimensions, broadcast to [B, Hq, Nq, Nk]"},
          {[](auto& in) {
             in.options.mask = Shaped({1, 2, 4, 3, 5}, DType::kBool);
           },
           "options.mask: shape [1,2,4,3,5], expected 1 to 4 dimensions, broadcast to [B, Hq, Nq, Nk]"},
          {[](auto& in) {
             in.options.mask = Shaped({3, 4}, DType::kBool);
           },
           "options.mask: shape [3,4], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,5]"},
          {[](auto& in) {
             in.options.mask = Shaped({2, 3, 5}, DType::kBool);
           },
           "options.mask: shape [2,3,5], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,5]"},
          {[](auto& in) { in.options.mask = Shaped({0}, DType::kBool); },
           "options.mask: shape [0], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,5]"},
          {[](auto& in) {
             in.options.mask = Shaped({3, -5}, DType::kBool);
           },
           "options.mask: shape [3,-5], expected no negative dimension"},
          {[](auto& in) {
             in.options.bias = Shaped({3, 5}, DType::kBool);
           },
           "options.bias: dtype bool, expected float32, float16 or bfloat16"},
          {[](auto& in) {
             in.options.bias = Shaped({3, 5}, DType::kFloat64);
           },
           "options.bias: dtype float64 outside reference mode, expected float32, float16 or bfloat16"},
          {[](auto& in) {
             in.options.bias = Shaped({1, 2, 3, 5});
           },
           "options.bias: shape [1,2,3,5], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,5]"},
          {[](auto& in) { in.options.output_dtype = DType::kFloat64; },
           "options.output_dtype: dtype float64 outside reference mode, expected float32, float16 or bfloat16"},
          {[](auto& in) { in.options.output_dtype = DType::kInt64; },
           "options.output_dtype: dtype int64, expected float32, float16 or bfloat16"},
          {[&](auto& in) { in.options.rotary = rotary(0); },
           "options.rotary.rotary_dim: 0, expected an even number from 2 to d_k = 8"},
          {[&](auto& in) { in.options.rotary = rotary(3); },
           "options.rotary.rotary_dim: 3, expected an even number from 2 to d_k = 8"},
          {[&](auto& in) { in.options.rotary = rotary(10); },
           "options.rotary.rotary_dim: 10, expected an even number from 2 to d_k = 8"},
          {[&](auto& in) { in.options.rotary = rotary(-2); },
           "options.rotary.rotary_dim: -2, expected an even number from 2 to d_k = 8"},
          {[&](auto& in) {
             in.options.rotary = rotary(8);
             in.options.rotary->rope_base = 0.0;
           },
           "options.rotary.rope_base: 0, expected a finite number over 0"},
          {[&](auto& in) {
             in.options.rotary = rotary(8);
             in.options.rotary->rope_base = kNaN;
           },
           "options.rotary.rope_base: nan, expected a finite number over 0"},
          {[&](auto& in) {
             in.options.rotary = rotary(8);
             in.options.rotary->q_positions = Shaped({2, 3});
           },
           "options.rotary.q_positions: dtype float32, expected int64"},
          {[&](auto& in) {
             in.options.rotary = rotary(8);
             in.options.rotary->q_positions = Shaped({2, 5}, DType::kInt64);
           },
           "options.rotary.q_positions: shape [2,5], expected [B, Nq] = [2,3]"},
          {[&](auto& in) {
             in.options.rotary = rotary(8);
             in.options.rotary->k_positions = Shaped({5}, DType::kInt64);
           },
           "options.rotary.k_positions: shape [5], expected [B, Nk] = [2,5]"},
      });
}

TEST(Problem, RefusesOutputsByName) {
  ExpectRefused(Qkv(), {
                           {[](auto& in) {
                              in.outputs = {OutputKind::kLse, OutputKind::kWeights, OutputKind::kLse};
                            },
                            "outputs: OUTPUT_KIND_LSE twice, expected each at most once"},
                           {[](auto& in) {
                              in.outputs = {OutputKind::kOutput, OutputKind::kOutput};
                            },
                            "outputs: OUTPUT_KIND_OUTPUT twice, expected each at most once"},
                           {[](auto& in) { in.outputs = {OutputKind::kProjectedK}; },
                            "outputs: OUTPUT_KIND_PROJECTED_K without x, expected with x only"},
                           {[](auto& in) { in.outputs = {static_cast<OutputKind>(0)}; }, "outputs: unknown kind 0"},
                           {[](auto& in) { in.outputs = {static_cast<OutputKind>(11)}; }, "outputs: unknown kind 11"},
                       });
}

// Right-padded self-attention with kv_len alone would be shifted by the default q_offset.
TEST(Problem, AsksForQLenOrQOffsetWherePositionsMatter) {
  const std::string message =
      "options.kv_len: given without q_len and q_offset for Nq = 3 rows whose positions matter, expected one of the "
      "two: by "
      "default the last row would stand at the last key, which is wrong for right-padded self-attention";
  ProblemInputs base = Qkv();
  base.options.kv_len = {5, 4};
  const auto with_rotary = [](ProblemInputs& in) { in.options.rotary.emplace().rotary_dim = 8; };
  ExpectRefused(base, {{[](auto& in) { in.options.causal = true; }, message},
                       {[](auto& in) { in.options.window_left = 2; }, message},
                       {[](auto& in) { in.options.window_right = 2; }, message},
                       {[](auto& in) {
                          in.options.alibi_slopes = {1, 1, 1, 1};
                        },
                        message},
                       {with_rotary, message}});

  base.options.causal = true;
  ProblemInputs with_q_len = base, with_q_offset = base, one_row = base, without_kv_len = base, positions = base;
  with_q_len.options.q_len = {3, 2};
  EXPECT_EQ(Made(with_q_len).q_offset, (std::vector<std::int64_t>{2, 2}));
  with_q_offset.options.q_offset = {0, -1};
  EXPECT_EQ(Made(with_q_offset).q_offset, (std::vector<std::int64_t>{0, -1}));
  one_row.q->shape[2] = 1;
  EXPECT_EQ(Made(one_row).q_offset, (std::vector<std::int64_t>{4, 3}));
  without_kv_len.options.kv_len.clear();
  EXPECT_EQ(Made(without_kv_len).q_offset, (std::vector<std::int64_t>{2, 2}));
  positions.options.causal = false;
  positions.options.rotary.emplace().rotary_dim = 8;
  positions.options.rotary->q_positions = Shaped({2, 3}, DType::kInt64);
  EXPECT_TRUE(Made(positions).rotary->has_q_positions);

  ProblemInputs lengths = WithX();
  lengths.options.causal = true;
  lengths.options.lengths = {2, 3};
  const Problem problem = Made(lengths);
  EXPECT_EQ(problem.q_len, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(problem.kv_len, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(problem.q_offset, (std::vector<std::int64_t>{0, 0}));
}

TEST(Problem, WhatCannotFitALimitNamesNeedAllowanceAndFlag) {
  const auto refused = [](const ProblemInputs& inputs) {
    const absl::Status status = Problem::Create(inputs, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    return std::string(status.message());
  };
  // No bytes at all, but 2^40 lengths and offsets if anyone allocated them.
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(refused(ShapedInputs({huge, 1, 0, 64}, {huge, 1, 0, 64}, {huge, 1, 0, 64})),
            "problem: B * Hq = 1099511627776, allowed 2097152 (flag sequence_heads_max)");
  EXPECT_EQ(refused(ShapedInputs({1, 1, huge, 1}, {1, 1, 1, 1}, {1, 1, 1, 1})),
            "problem: B * Hq * (Nq + Nk) = 1099511627777, allowed 268435456 (flag rows_max)");
  EXPECT_EQ(refused(ShapedInputs({1, 1 << 21, 1, 1}, {1, 1, 8 * huge, 1}, {1, 1, 8 * huge, 1})),
            "problem: B * Hq * (Nq + Nk) = more than 2^63, allowed 268435456 (flag rows_max)");
  EXPECT_EQ(refused(ShapedInputs({1, 1, 1, huge}, {1, 1, 1, huge}, {1, 1, 1, 1})),
            "problem: d_k = 1099511627776, allowed 1048576 (flag width_max)");
  ProblemInputs x = WithX();
  x.projection->w_o->shape[1] = x.projection->b_o->shape[0] = 1 << 21;
  EXPECT_EQ(refused(x), "problem: d_out = 2097152, allowed 1048576 (flag width_max)");

  ProblemLimits limits;
  limits.sequence_heads_max = 7;
  EXPECT_EQ(Problem::Create(Qkv(), limits).status().message(),
            "problem: B * Hq = 8, allowed 7 (flag sequence_heads_max)");
  limits.sequence_heads_max = 8;
  limits.rows_max = 63;
  EXPECT_EQ(Problem::Create(Qkv(), limits).status().message(),
            "problem: B * Hq * (Nq + Nk) = 64, allowed 63 (flag rows_max)");
  limits.rows_max = 64;
  EXPECT_TRUE(Problem::Create(Qkv(), limits).ok());
}

TEST(Problem, AnAnswerWhoseBytesDoNotFitInt64IsRefused) {
  ProblemLimits open;
  open.rows_max = kMax;
  ProblemInputs inputs = ShapedInputs({1, 1, std::int64_t{1} << 40, 1}, {1, 1, std::int64_t{1} << 40, 1},
                                      {1, 1, std::int64_t{1} << 40, 1});
  EXPECT_TRUE(Problem::Create(inputs, open).ok());
  inputs.outputs = {OutputKind::kWeights};
  const absl::Status status = Problem::Create(inputs, open).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "outputs: OUTPUT_KIND_WEIGHTS of shape [1,1,1099511627776,1099511627776], expected a size in bytes that fits a "
      "signed 64-bit integer");
}

TEST(Problem, ZeroSizesThatMeanSomethingAreTaken) {
  EXPECT_EQ(Made(ShapedInputs({0, 4, 3, 8}, {0, 2, 5, 8}, {0, 2, 5, 6})).batch, 0);
  EXPECT_EQ(Made(ShapedInputs({2, 4, 0, 8}, {2, 2, 5, 8}, {2, 2, 5, 6})).q_rows, 0);
  const Problem no_keys = Made(ShapedInputs({2, 4, 3, 8}, {2, 2, 0, 8}, {2, 2, 0, 6}));
  EXPECT_EQ(no_keys.q_offset, (std::vector<std::int64_t>{-3, -3}));
  EXPECT_EQ(no_keys.ReplyShape(OutputKind::kWeights), (std::vector<std::int64_t>{2, 4, 3, 0}));
}

TEST(Problem, ResolvesDefaultsAndShapes) {
  ProblemInputs inputs = Qkv();
  inputs.q->dtype = DType::kBFloat16;
  inputs.outputs = {OutputKind::kLse, OutputKind::kOutput, OutputKind::kWeights};
  Problem problem = Made(inputs);
  EXPECT_EQ(problem.scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(problem.q_len, (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(problem.kv_len, (std::vector<std::int64_t>{5, 5}));
  EXPECT_EQ(problem.q_offset, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(problem.extras, (std::vector<OutputKind>{OutputKind::kLse, OutputKind::kWeights}));
  EXPECT_TRUE(problem.Wants(OutputKind::kOutput));
  EXPECT_FALSE(problem.Wants(OutputKind::kScoresDot));
  EXPECT_EQ(problem.input_bytes, 2 * 4 * 3 * 8 * 2 + 2 * 2 * 5 * (8 + 6) * 4);
  EXPECT_EQ(problem.OutputDType(OutputKind::kOutput), DType::kBFloat16);
  EXPECT_EQ(problem.OutputDType(OutputKind::kLse), DType::kFloat32);
  EXPECT_EQ(problem.OutputShape(OutputKind::kOutput), (std::array<std::int64_t, 4>{2, 4, 3, 6}));
  EXPECT_EQ(problem.OutputShape(OutputKind::kLse), (std::array<std::int64_t, 4>{2, 4, 3, 1}));
  EXPECT_EQ(problem.ReplyShape(OutputKind::kLse), (std::vector<std::int64_t>{2, 4, 3}));

  inputs.options.scale = 0.0;
  EXPECT_EQ(Made(inputs).scale, 0);
  inputs.options.output_dtype = DType::kFloat16;
  EXPECT_EQ(Made(inputs).output_dtype, DType::kFloat16);
  inputs.options.reference = true;
  inputs.options.output_dtype = DType::kFloat64;
  EXPECT_EQ(Made(inputs).OutputDType(OutputKind::kLse), DType::kFloat64);
}

TEST(Problem, BothLayoutsAreViewsOfTheSameMeaning) {
  ProblemInputs inputs = ShapedInputs({2, 3, 4, 8}, {2, 5, 2, 8}, {2, 5, 2, 6});
  inputs.options.layout = Layout::kBNHD;
  const Problem problem = Made(inputs);
  EXPECT_EQ(problem.q_heads, 4);
  EXPECT_EQ(problem.kv_rows, 5);
  EXPECT_EQ(problem.q.shape, (std::array<std::int64_t, 4>{2, 4, 3, 8}));
  EXPECT_EQ(problem.q.stride, (std::array<std::int64_t, 4>{96, 8, 32, 1}));
  EXPECT_EQ(problem.OutputShape(OutputKind::kOutput), (std::array<std::int64_t, 4>{2, 4, 3, 6}));
  EXPECT_EQ(problem.ReplyShape(OutputKind::kOutput), (std::vector<std::int64_t>{2, 3, 4, 6}));
  EXPECT_EQ(Made(Qkv()).q.stride, (std::array<std::int64_t, 4>{96, 24, 8, 1}));
}

TEST(Problem, ProjectionsResolveWidthsInBothOrders) {
  ProblemInputs inputs = WithX();
  inputs.outputs = {OutputKind::kProjectedQ, OutputKind::kProjectedV};
  const Problem problem = Made(inputs);
  EXPECT_EQ(problem.d_k, 8);
  EXPECT_EQ(problem.d_v, 6);
  EXPECT_EQ(problem.d_out, 7);
  EXPECT_EQ(problem.q_rows, 3);
  EXPECT_EQ(problem.kv_rows, 3);
  EXPECT_EQ(problem.ReplyShape(OutputKind::kOutput), (std::vector<std::int64_t>{2, 3, 7}));
  EXPECT_EQ(problem.OutputShape(OutputKind::kOutput), (std::array<std::int64_t, 4>{2, 1, 3, 7}));
  EXPECT_EQ(problem.ReplyShape(OutputKind::kProjectedQ), (std::vector<std::int64_t>{2, 4, 3, 8}));
  EXPECT_EQ(problem.ReplyShape(OutputKind::kProjectedV), (std::vector<std::int64_t>{2, 2, 3, 6}));
  EXPECT_EQ(problem.projection->q.in, 10);
  EXPECT_EQ(problem.projection->q.out, 32);

  for (auto* weight :
       {&inputs.projection->w_q, &inputs.projection->w_k, &inputs.projection->w_v, &inputs.projection->w_o}) {
    std::swap((*weight)->shape[0], (*weight)->shape[1]);
  }
  inputs.projection->weights_transposed = true;
  EXPECT_EQ(Made(inputs).d_v, 6);
}

TEST(Problem, MasksBroadcastFromTheRight) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::array<std::int64_t, 4>>> strides = {
      {{5}, {0, 0, 0, 1}},          {{1}, {0, 0, 0, 0}},
      {{3, 5}, {0, 0, 5, 1}},       {{3, 1}, {0, 0, 1, 0}},
      {{4, 3, 5}, {0, 15, 5, 1}},   {{4, 1, 5}, {0, 5, 0, 1}},
      {{2, 1, 1, 5}, {5, 0, 0, 1}}, {{2, 4, 3, 5}, {60, 15, 5, 1}},
      {{1, 4, 1, 1}, {0, 1, 0, 0}},
  };
  for (const auto& [shape, expected] : strides) {
    ProblemInputs inputs = Qkv();
    inputs.options.mask = Shaped(shape, DType::kBool);
    inputs.options.bias = Shaped(shape, DType::kFloat16);
    const Problem problem = Made(inputs);
    EXPECT_EQ(problem.mask->shape, (std::array<std::int64_t, 4>{2, 4, 3, 5}));
    EXPECT_EQ(problem.mask->stride, expected) << ShapeText(shape);
    EXPECT_EQ(problem.bias->stride, expected) << ShapeText(shape);
    EXPECT_EQ(problem.bias->dtype, DType::kFloat16);
  }
}

TEST(Problem, MaskBytesOtherThanZeroAndOneAreFoundWhereverTheyStand) {
  for (int where = 0; where < 60; ++where) {
    for (const int value : {2, 128, 255}) {
      TensorStore store;
      ProblemInputs inputs = Qkv();
      std::vector<int> bytes(60);
      for (int n = 0; n < 60; ++n) bytes[n] = n % 2;
      inputs.options.mask = store.Bools({4, 3, 5}, bytes);
      EXPECT_TRUE(Made(inputs).CheckContents().ok());
      bytes[where] = value;
      inputs.options.mask = store.Bools({4, 3, 5}, bytes);
      const absl::Status status = Made(inputs).CheckContents();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(), "options.mask: byte " + std::to_string(value) + " at index " + std::to_string(where) +
                                      ", expected 0 or 1");
    }
  }
}

// B 2, Hq 4, Hkv 2, Nq 3, P 12, R 5, T 4, d_k 8, d_v 6.
ProblemInputs InPages() {
  ProblemInputs inputs = ShapedInputs({2, 4, 3, 8}, {12, 2, 5, 8}, {12, 2, 5, 6});
  inputs.options.page_table = Shaped({2, 4}, DType::kInt64);
  return inputs;
}

TEST(Problem, PagesAreViewsOfAsManyKeysAsTheTableHasRows) {
  ProblemInputs inputs = InPages();
  const Problem problem = Made(inputs);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.kv_rows, 20);
  EXPECT_EQ(problem.kv_len, (std::vector<std::int64_t>{20, 20}));
  EXPECT_EQ(problem.q_offset, (std::vector<std::int64_t>{17, 17}));
  EXPECT_EQ(problem.k.shape, (std::array<std::int64_t, 4>{2, 2, 20, 8}));
  EXPECT_EQ(problem.v.shape, (std::array<std::int64_t, 4>{2, 2, 20, 6}));
  EXPECT_EQ(problem.input_bytes, 4 * (2 * 4 * 3 * 8 + 12 * 2 * 5 * (8 + 6)) + 8 * 2 * 4);
  EXPECT_EQ(problem.OutputShape(OutputKind::kWeights), (std::array<std::int64_t, 4>{2, 4, 3, 20}));
  inputs.options.mask = Shaped({3, 20}, DType::kBool);
  EXPECT_EQ(Made(inputs).mask->shape, (std::array<std::int64_t, 4>{2, 4, 3, 20}));
  inputs = InPages();
  inputs.options.layout = Layout::kBNHD;
  inputs.q->shape = {2, 3, 4, 8};
  inputs.k->shape = {12, 5, 2, 8};
  inputs.v->shape = {12, 5, 2, 6};
  EXPECT_EQ(Made(inputs).k.shape, problem.k.shape);
}

TEST(Problem, RefusesPagesByName) {
  ExpectRefused(
      InPages(),
      {
          {[](auto& in) { in.options.page_table->dtype = DType::kFloat32; },
           "options.page_table: dtype float32, expected int64"},
          {[](auto& in) { in.options.page_table->shape = {8}; },
           "options.page_table: shape [8], expected 2 dimensions [B, T]"},
          {[](auto& in) {
             in.options.page_table->shape = {3, 4};
           },
           "options.page_table: shape [3,4], expected B = 2 as in q"},
          {[](auto& in) {
             in.options.page_table->shape = {2, -4};
           },
           "options.page_table: shape [2,-4], expected no negative dimension"},
          {[](auto& in) {
             in.options.page_table->shape = {2, std::int64_t{1} << 58};
           },
           "options.page_table: shape [2,288230376151711744], expected a k of T * R keys whose bytes fit a signed "
           "64-bit"
           " integer, with R = 5"},
          {[](auto& in) { in.k->shape.pop_back(); }, "k: shape [12,2,5], expected 4 dimensions [P, Hkv, R, d_k]"},
          {[](auto& in) { in.v->shape[0] = 11; }, "v: shape [11,2,5,6], expected P = 12 as in k"},
          {[](auto& in) { in.v->shape[1] = 1; }, "v: shape [12,1,5,6], expected Hkv = 2 as in k"},
          {[](auto& in) { in.v->shape[2] = 4; }, "v: shape [12,2,4,6], expected R = 5 as in k"},
          {[](auto& in) { in.k->shape[2] = in.v->shape[2] = 0; },
           "k: shape [12,2,0,8], expected R of at least 1 where page_table has T = 4"},
          {[](auto& in) { in.k->shape[0] = in.v->shape[0] = 0; },
           "options.page_table: sequence 0 has 20 keys, expected none (k has 0 pages)"},
          {[](auto& in) { in.options.mask = Shaped({5}, DType::kBool); },
           "options.mask: shape [5], expected to broadcast to [B, Hq, Nq, Nk] = [2,4,3,20]"},
          {[](auto& in) {
             in.options.kv_len = {20, 21};
             in.options.q_len = {3, 3};
           },
           "options.kv_len: 21 for sequence 1, expected 0 to 20"},
          {[](auto& in) {
             in.q->pages = {nullptr, nullptr};
           },
           "q: pages one by one, expected for k and v with options.page_table only"},
          {[](auto& in) { in.v->pages = {nullptr}; }, "v: shape [12,2,5,6], expected P = 1 as pages came"},
      });
  ProblemInputs inputs = WithX();
  inputs.options.page_table = Shaped({2, 4}, DType::kInt64);
  EXPECT_EQ(Problem::Create(inputs, {}).status().message(),
            "options.page_table: given with x, expected with q, k and v only");
  inputs = Qkv();
  inputs.k->pages = {nullptr, nullptr};
  EXPECT_EQ(Problem::Create(inputs, {}).status().message(),
            "k: pages one by one, expected for k and v with options.page_table only");
}

TEST(Problem, NoPagesAreTakenWhereNoKeyNeedsOne) {
  ProblemInputs inputs = InPages();
  inputs.options.page_table->shape = {2, 0};
  EXPECT_EQ(Made(inputs).kv_rows, 0);
  inputs.k->shape[2] = inputs.v->shape[2] = 0;
  EXPECT_EQ(Made(inputs).kv_rows, 0);
  inputs = InPages();
  inputs.k->shape[0] = inputs.v->shape[0] = 0;
  inputs.options.kv_len = {0, 0};
  EXPECT_EQ(Made(inputs).kv_rows, 20);
}

TEST(Problem, EntriesThatAKeyNeedsArePages) {
  const auto check = [](const std::vector<std::int64_t>& table) {
    TensorStore store;
    ProblemInputs inputs = InPages();
    inputs.options.page_table = store.Ints({2, 4}, table);
    inputs.options.kv_len = {6, 16};  // 2 entries, and 4
    return Made(inputs).CheckContents();
  };
  EXPECT_TRUE(check({0, 11, -1, 99, 11, 11, 0, 3}).ok());
  EXPECT_EQ(check({0, 12, -1, -1, 0, 0, 0, 0}).message(),
            "options.page_table: entry [0,1] is 12, expected 0 to 11 (k has 12 pages)");
  EXPECT_EQ(check({0, 0, -1, -1, 0, 0, 0, 17}).message(),
            "options.page_table: entry [1,3] is 17, expected 0 to 11 (k has 12 pages)");
  const absl::Status negative = check({0, 0, -1, -1, -1, 0, 0, 0});
  EXPECT_EQ(negative.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(negative.message(), "options.page_table: entry [1,0] is -1, expected 0 to 11 (k has 12 pages)");
}

TEST(Problem, VisibleKeysFollowTheRulesKeyByKey) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, kMax}) {
      for (const std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, kMax}) {
        for (const std::int64_t offset :
             {-(std::int64_t{1} << 40), std::int64_t{-2}, std::int64_t{0}, std::int64_t{3}, std::int64_t{1} << 40}) {
          ProblemInputs inputs = Qkv();
          inputs.options.causal = causal;
          if (left >= 0) inputs.options.window_left = left;
          if (right >= 0) inputs.options.window_right = right;
          inputs.options.q_offset = {offset, offset};
          inputs.options.q_len = {3, 2};
          inputs.options.kv_len = {5, 4};
          const Problem problem = Made(inputs);
          for (std::int64_t b = 0; b < 2; ++b) {
            for (std::int64_t i = 0; i < 3; ++i) {
              const Problem::KeyRange range = problem.VisibleKeys(b, i);
              for (std::int64_t j = 0; j < 5; ++j) {
                const long double distance = static_cast<long double>(j) - static_cast<long double>(i + offset);
                const bool expected = i < problem.q_len[b] && j < problem.kv_len[b] && (!causal || distance <= 0) &&
                                      (left < 0 || distance >= -static_cast<long double>(left)) &&
                                      (right < 0 || distance <= static_cast<long double>(right));
                ASSERT_EQ(range.first <= j && j < range.end, expected)
                    << causal << " " << left << " " << right << " " << offset << " row " << i << " key " << j;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd
