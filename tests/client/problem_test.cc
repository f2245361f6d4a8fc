#include "client/problem.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "client/cli/slice.h"
#include "client/wire.h"

namespace attnd::client {
namespace {

using Shape = std::vector<std::int64_t>;

Array Ones(Shape shape) {
  Array array = *Array::Zeros(DType::kFloat32, std::move(shape));
  for (std::int64_t i = 0; i < array.elements(); ++i) array.Set(i, 1);
  return array;
}

Shape WireShape(const v1::Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

TEST(ProblemTest, RankTwoIsOneSequenceAndOneHead) {
  const absl::StatusOr<Problem> problem = Problem::FromQkv(Ones({5, 4}), Ones({3, 4}), Ones({3, 2}));
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(WireShape(problem->request().q()), (Shape{1, 1, 5, 4}));
  EXPECT_EQ(WireShape(problem->request().v()), (Shape{1, 1, 3, 2}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{5, 2}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS)->shape, (Shape{5, 3}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_LSE)->shape, (Shape{5}));
}

TEST(ProblemTest, RankThreeIsOneHead) {
  absl::StatusOr<Problem> problem = Problem::FromQkv(Ones({2, 5, 4}), Ones({2, 3, 4}), Ones({2, 3, 4}));
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(WireShape(problem->request().k()), (Shape{2, 1, 3, 4}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS)->shape, (Shape{2, 5, 3}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_LSE)->shape, (Shape{2, 5}));
  problem->SetMask(*Array::Zeros(DType::kBool, {2, 5, 3}));
  EXPECT_EQ(WireShape(problem->request().options().mask()), (Shape{2, 1, 5, 3}));
  problem->SetBias(Ones({5, 3}));
  EXPECT_EQ(WireShape(problem->request().options().bias()), (Shape{5, 3}));
}

// On the wire a stored tensor is its name alone; what answers are like is known from what was given for it.
TEST(ProblemTest, WhatTheServerHasTravelsAsItsName) {
  const auto bare = [](Shape shape) { return Array{DType::kFloat32, std::move(shape), {}}; };
  absl::StatusOr<Problem> problem = Problem::FromQkv(Ones({2, 6, 5, 4}), bare({2, 3, 7, 4}), bare({2, 3, 7, 8}));
  ASSERT_TRUE(problem.ok());
  EXPECT_FALSE(problem->uses_stored());
  ASSERT_TRUE(problem->UseStored("k", "chat.k").ok());
  ASSERT_TRUE(problem->UseStored("v", "chat.v").ok());
  problem->SetMask(Array{DType::kBool, {5, 7}, {}});
  ASSERT_TRUE(problem->UseStored("options.mask", "chat.mask").ok());
  EXPECT_TRUE(problem->uses_stored());
  v1::Tensor name;
  name.set_name("chat.k");
  EXPECT_EQ(problem->request().k().SerializeAsString(), name.SerializeAsString());
  name.set_name("chat.mask");
  EXPECT_EQ(problem->request().options().mask().SerializeAsString(), name.SerializeAsString());
  EXPECT_EQ(problem->ShapeOf("v"), (Shape{2, 3, 7, 8}));
  EXPECT_EQ(problem->ShapeOf("options.bias"), Shape());
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{2, 6, 5, 8}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS)->shape, (Shape{2, 6, 5, 7}));
  EXPECT_EQ(problem->request_bytes(), 4 * 2 * 6 * 5 * 4);
  ASSERT_TRUE(problem->SetWireDType(DType::kFloat16).ok());  // of what is here
  EXPECT_EQ(problem->request().v().name(), "chat.v");
  EXPECT_EQ(problem->request().q().dtype(), v1::DATA_TYPE_FLOAT16);
  EXPECT_FALSE(problem->UseStored("options.bias", "b").ok());
  EXPECT_FALSE(problem->UseStored("options.scale", "s").ok());
  EXPECT_FALSE(SliceRows(*problem, 0, 0, {0}, {2, 2}).ok());
}

TEST(ProblemTest, AWeightSetStandsForTheProjection) {
  v1::Projection projection;
  projection.set_q_heads(4);
  projection.set_kv_heads(2);
  const auto set = [](v1::Tensor* tensor, Shape shape) { *tensor = ToTensor({DType::kFloat32, std::move(shape), {}}); };
  set(projection.mutable_w_q(), {6, 12});
  set(projection.mutable_w_k(), {6, 6});
  set(projection.mutable_w_v(), {6, 10});
  set(projection.mutable_w_o(), {20, 7});
  absl::StatusOr<Problem> problem = Problem::FromX(Ones({5, 6}), projection);
  ASSERT_TRUE(problem.ok());
  problem->UseWeightSet("layer0", 3);
  EXPECT_FALSE(problem->request().has_projection());
  EXPECT_EQ(problem->request().weight_set().name(), "layer0");
  EXPECT_EQ(problem->request().weight_set().version(), 3);
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{5, 7}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_PROJECTED_V)->shape, (Shape{2, 5, 5}));
}

TEST(ProblemTest, RankFourKeepsAllAndFollowsTheLayout) {
  const absl::StatusOr<Problem> bhnd = Problem::FromQkv(Ones({2, 6, 5, 4}), Ones({2, 3, 7, 4}), Ones({2, 3, 7, 8}));
  ASSERT_TRUE(bhnd.ok());
  EXPECT_EQ(bhnd->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{2, 6, 5, 8}));
  const absl::StatusOr<Problem> bnhd =
      Problem::FromQkv(Ones({2, 5, 6, 4}), Ones({2, 7, 3, 4}), Ones({2, 7, 3, 8}), v1::LAYOUT_BNHD);
  ASSERT_TRUE(bnhd.ok());
  const OutputLayout output = *bnhd->LayoutOf(v1::OUTPUT_KIND_OUTPUT);
  EXPECT_EQ(output.shape, (Shape{2, 5, 6, 8}));
  EXPECT_EQ(output.batch_stride, 240);
  EXPECT_EQ(output.row_stride, 48);
  EXPECT_EQ(output.head_stride, 8);
  EXPECT_EQ(bnhd->LayoutOf(v1::OUTPUT_KIND_WEIGHTS)->shape, (Shape{2, 6, 5, 7}));
}

TEST(ProblemTest, LayoutAtLowerRanksChangesNothingForTheCaller) {
  const absl::StatusOr<Problem> problem =
      Problem::FromQkv(Ones({2, 5, 4}), Ones({2, 3, 4}), Ones({2, 3, 4}), v1::LAYOUT_BNHD);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(WireShape(problem->request().q()), (Shape{2, 5, 1, 4}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{2, 5, 4}));
}

TEST(ProblemTest, WrongRanksAreNamed) {
  EXPECT_EQ(Problem::FromQkv(Ones({4}), Ones({4}), Ones({4})).status().message(),
            "q: shape [4], expected rank 2 [N,d], 3 [B,N,d] or 4 [B,H,N,d]");
  EXPECT_EQ(Problem::FromQkv(Ones({5, 4}), Ones({1, 3, 4}), Ones({3, 4})).status().message(),
            "k: shape [1,3,4], expected rank 2 as in q");
  EXPECT_EQ(Problem::FromX(Ones({1, 1, 5, 4}), {}).status().message(),
            "x: shape [1,1,5,4], expected rank 2 [N,d_model] or 3 [B,N,d_model]");
}

TEST(ProblemTest, XOfRankTwoLosesTheSequenceOnly) {
  v1::Projection projection;
  projection.set_q_heads(4);
  projection.set_kv_heads(2);
  *projection.mutable_w_q() = ToTensor(Ones({8, 12}));
  *projection.mutable_w_k() = ToTensor(Ones({8, 6}));
  *projection.mutable_w_v() = ToTensor(Ones({8, 10}));
  absl::StatusOr<Problem> problem = Problem::FromX(Ones({3, 8}), projection);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{4, 3, 5}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_PROJECTED_K)->shape, (Shape{2, 3, 3}));
  *projection.mutable_w_o() = ToTensor(Ones({20, 7}));
  problem = Problem::FromX(Ones({1, 3, 8}), projection);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_OUTPUT)->shape, (Shape{1, 3, 7}));
  EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_LSE)->shape, (Shape{1, 4, 3}));
}

TEST(ProblemTest, SplitTakesTheBytesAndNothingElse) {
  absl::StatusOr<Problem> problem = Problem::FromQkv(Ones({2, 3, 4}), Ones({2, 5, 4}), Ones({2, 5, 4}));
  ASSERT_TRUE(problem.ok());
  problem->SetMask(*Array::Zeros(DType::kBool, {3, 5}));
  problem->options().set_scale(0);  // present, though the default
  problem->options().set_causal(true);
  problem->options().add_kv_len(4);
  problem->options().add_kv_len(5);
  problem->options().mutable_rotary();  // present, though empty
  problem->Want(v1::OUTPUT_KIND_LSE);
  problem->Want(v1::OUTPUT_KIND_LSE);
  const SplitRequest split = Split(problem->request());
  std::vector<std::string> paths;
  for (const auto& [path, data] : split.tensors) paths.push_back(path);
  EXPECT_EQ(paths, (std::vector<std::string>{"options.mask", "k", "v", "q"}));
  v1::AttendRequest expected = problem->request();
  expected.mutable_q()->clear_data();
  expected.mutable_k()->clear_data();
  expected.mutable_v()->clear_data();
  expected.mutable_options()->mutable_mask()->clear_data();
  EXPECT_EQ(split.header.SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(split.header.outputs_size(), 1);
}

// B 2, Hq 4, Hkv 1, P 3, R 2, T 2.
absl::StatusOr<Problem> InPages(v1::Layout layout = v1::LAYOUT_BHND) {
  Array k = *Array::Zeros(DType::kFloat32, layout == v1::LAYOUT_BNHD ? Shape{3, 2, 1, 1} : Shape{3, 1, 2, 1});
  for (int n = 0; n < 6; ++n) k.Set(n, n);
  const Shape q = layout == v1::LAYOUT_BNHD ? Shape{2, 5, 4, 1} : Shape{2, 4, 5, 1};
  absl::StatusOr<Problem> problem = Problem::FromQkv(Ones(q), k, k, layout);
  if (!problem.ok()) return problem;
  Array table = *Array::Zeros(DType::kInt64, {2, 2});
  const std::int64_t pages[] = {2, -1, 1, 2};
  std::memcpy(table.bytes.data(), pages, sizeof(pages));
  *problem->options().mutable_page_table() = ToTensor(table);
  for (const int keys : {2, 3}) problem->options().add_kv_len(keys);
  return problem;
}

TEST(ProblemTest, PagesMakeAsManyKeysAsTheTableHasRows) {
  for (const v1::Layout layout : {v1::LAYOUT_BHND, v1::LAYOUT_BNHD}) {
    absl::StatusOr<Problem> problem = InPages(layout);
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS)->shape, (Shape{2, 4, 5, 4}));
    EXPECT_EQ(problem->request_bytes(), 4 * (2 * 4 * 5 + 2 * 3 * 2) + 8 * 4);
    EXPECT_EQ(Split(problem->request()).tensors.front().first, "options.page_table");
    problem->options().mutable_page_table()->add_shape(1);
    EXPECT_EQ(problem->LayoutOf(v1::OUTPUT_KIND_WEIGHTS).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ProblemTest, SlicedRowsGatherTheirPages) {
  for (const v1::Layout layout : {v1::LAYOUT_BHND, v1::LAYOUT_BNHD}) {
    const absl::StatusOr<Problem> problem = InPages(layout);
    ASSERT_TRUE(problem.ok()) << problem.status();
    const absl::StatusOr<RowSlice> slice = SliceRows(*problem, 1, 3, {0}, {0, 0});
    ASSERT_TRUE(slice.ok()) << slice.status();
    const v1::AttendRequest& request = slice->problem.request();
    EXPECT_FALSE(request.options().has_page_table());
    EXPECT_EQ(WireShape(request.v()), (Shape{1, 1, 4, 1}));
    const TensorRead keys = TensorRead::Heads(request.k(), v1::LAYOUT_BHND);
    for (int j = 0; j < 4; ++j) EXPECT_EQ(keys.At(0, 0, j, 0), (std::vector<double>{2, 3, 4, 5})[j]);
    EXPECT_EQ(request.options().mask().data(), std::string("\1\1\1\0", 4));
    EXPECT_EQ(slice->bounds[0].value_max, 4);
    const absl::StatusOr<RowSlice> other = SliceRows(*problem, 0, 0, {0}, {0, 0});
    EXPECT_EQ(other->problem.request().options().mask().data(), std::string("\1\1\0\0", 4));
    EXPECT_EQ(other->bounds[0].value_max, 5);
  }
}

// A head's rows cut out of a problem see the same keys: mask, causal frontier, window, lengths and bias in one.
TEST(ProblemTest, SlicedRowsKeepTheirMeaning) {
  absl::StatusOr<Problem> problem = Problem::FromQkv(Ones({1, 4, 6, 2}), Ones({1, 2, 6, 2}), Ones({1, 2, 6, 3}));
  ASSERT_TRUE(problem.ok());
  problem->options().set_causal(true);
  problem->options().set_window_left(2);
  problem->options().add_kv_len(5);
  problem->options().add_q_len(5);
  problem->options().set_scale(0.5);
  for (const float slope : {0.F, 1.F, 2.F, 4.F}) problem->options().add_alibi_slopes(slope);
  Array mask = *Array::Zeros(DType::kBool, {6});
  for (const int key : {0, 1, 2, 4, 5}) mask.Set(key, 1);
  problem->SetMask(mask);
  const absl::StatusOr<RowSlice> slice = SliceRows(*problem, 0, 3, {1, 4, 5}, {0});
  ASSERT_TRUE(slice.ok()) << slice.status();
  const v1::Options& options = slice->problem.request().options();
  EXPECT_EQ(options.mask().data(), std::string("\1\1\0\0\0\0"   // row 1: keys 0, 1
                                               "\0\0\1\0\1\0"   // row 4: keys 2 to 4 but the masked 3
                                               "\0\0\0\0\0\0",  // row 5 lies beyond q_len
                                               18));
  const TensorRead bias = TensorRead::Broadcast(options.bias());
  EXPECT_EQ(bias.At(0, 0, 0, 0), -4);  // slope 4, one key back
  EXPECT_EQ(bias.At(0, 0, 1, 2), -8);
  EXPECT_EQ(bias.At(0, 0, 1, 4), 0);
  EXPECT_EQ(options.mode(), v1::COMPUTE_MODE_REFERENCE);
  EXPECT_FALSE(options.causal() || options.has_window_left() || options.kv_len_size() > 0);
  EXPECT_FALSE(slice->bounds[0].beyond);
  EXPECT_TRUE(slice->bounds[2].beyond);
  EXPECT_EQ(slice->bounds[1].a, 0.5 * 2 + 8);
  EXPECT_EQ(slice->bounds[1].value_max, 1);
}

TEST(ProblemTest, WireDTypeTakesTheFloatTensorsAndLeavesTheRest) {
  const Array tensor = Array::Of({1, 2}, std::vector<float>{0.1F, -3});
  Problem problem = *Problem::FromQkv(tensor, tensor, *Convert(tensor, DType::kFloat64));
  problem.SetMask(*Array::Zeros(DType::kBool, {1, 1}));
  problem.SetBias(Array::Of({1, 1}, std::vector<float>{0.1F}));
  ASSERT_TRUE(problem.SetWireDType(DType::kBFloat16).ok());
  const v1::AttendRequest& request = problem.request();
  for (const v1::Tensor* sent : {&request.q(), &request.k(), &request.v()}) {
    EXPECT_EQ(sent->dtype(), v1::DATA_TYPE_BFLOAT16);
    EXPECT_EQ(sent->shape_size(), 4);
    EXPECT_EQ(sent->data(), std::string("\xcd\x3d\x40\xc0", 4));  // 0.1 with 8 significant bits, and -3
  }
  EXPECT_EQ(request.options().mask().dtype(), v1::DATA_TYPE_BOOL);
  EXPECT_EQ(request.options().bias().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_FALSE(request.has_x());
  EXPECT_FALSE(request.has_projection());

  v1::Projection projection;
  projection.set_q_heads(1);
  projection.set_kv_heads(1);
  for (v1::Tensor* weight : {projection.mutable_w_q(), projection.mutable_w_k(), projection.mutable_w_v(),
                             projection.mutable_b_v(), projection.mutable_w_o()}) {
    *weight = ToTensor(Array::Of({1, 1}, std::vector<float>{0.1F}));
  }
  Problem projected = *Problem::FromX(Array::Of({1, 1}, std::vector<double>{0.1}), projection);
  ASSERT_TRUE(projected.SetWireDType(DType::kFloat16).ok());
  EXPECT_EQ(projected.request_bytes(), 2 * 6);
  EXPECT_EQ(projected.request().x().data(), projected.request().projection().w_o().data());
  EXPECT_FALSE(projected.request().projection().has_b_q());
  EXPECT_EQ(projected.AnswerDType(v1::OUTPUT_KIND_OUTPUT, DType::kFloat16), DType::kFloat64);
}

TEST(ProblemTest, AnswersGoBackToTheCallersTypeOnlyWhereThatIsWider) {
  const auto with = [](DType callers, DType wire) {
    const Array tensor = *Array::Zeros(callers, {1, 2});
    Problem problem = *Problem::FromQkv(tensor, tensor, tensor);
    EXPECT_TRUE(problem.SetWireDType(wire).ok());
    return problem;
  };
  const auto output = [](const Problem& problem) {
    return problem.AnswerDType(v1::OUTPUT_KIND_OUTPUT, problem.output_dtype());
  };
  EXPECT_EQ(output(with(DType::kFloat32, DType::kFloat16)), DType::kFloat32);
  EXPECT_EQ(output(with(DType::kFloat64, DType::kFloat32)), DType::kFloat64);
  EXPECT_EQ(output(with(DType::kFloat16, DType::kFloat32)), DType::kFloat32);
  EXPECT_EQ(output(with(DType::kFloat16, DType::kBFloat16)), DType::kBFloat16);
  const Problem half = with(DType::kFloat32, DType::kFloat16);
  EXPECT_EQ(half.output_dtype(), DType::kFloat16);
  EXPECT_EQ(half.AnswerDType(v1::OUTPUT_KIND_LSE, DType::kFloat32), DType::kFloat32);
  Problem asked = half;
  asked.options().set_output_dtype(v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(output(asked), DType::kBFloat16);
  // A second conversion remembers what the caller had at first.
  Problem twice = half;
  ASSERT_TRUE(twice.SetWireDType(DType::kBFloat16).ok());
  EXPECT_EQ(output(twice), DType::kFloat32);
}

TEST(ProblemTest, ARequestThatIsHeldDoesNotChangeAndOneThatIsNotIsNotCopied) {
  Problem problem =
      *Problem::FromQkv(Array::Of({1, 1}, std::vector<float>{1}), Array::Of({1, 1}, std::vector<float>{2}),
                        Array::Of({1, 1}, std::vector<float>{3}));
  const v1::AttendRequest* const first = &problem.request();
  problem.options().set_causal(true);
  EXPECT_EQ(&problem.request(), first);
  const std::function<void(Problem&)> changes[] = {
      [](Problem& p) { p.options().set_scale(2); },
      [](Problem& p) {
        p.SetMask(Array{DType::kBool, {1}, "\1"});
      },
      [](Problem& p) { p.SetBias(Array::Of({1}, std::vector<float>{1})); },
      [](Problem& p) { p.SetPriority(v1::PRIORITY_LOW); },
      [](Problem& p) { p.Want(v1::OUTPUT_KIND_LSE); },
      [](Problem& p) { EXPECT_TRUE(p.SetWireDType(DType::kFloat16).ok()); },
  };
  for (const auto& change : changes) {
    const Problem before = problem;
    EXPECT_EQ(&before.request(), &problem.request());
    const std::shared_ptr<const v1::AttendRequest> held = problem.shared_request();
    const std::string bytes = held->SerializeAsString();
    change(problem);
    EXPECT_EQ(held->SerializeAsString(), bytes);
    EXPECT_EQ(before.request().SerializeAsString(), bytes);
    EXPECT_NE(problem.request().SerializeAsString(), bytes);
  }
}

TEST(ProblemTest, WireDTypeNamesTheTensorThatHoldsNoFloats) {
  const Array tensor = *Array::Zeros(DType::kFloat32, {1, 2});
  Problem problem = *Problem::FromQkv(tensor, *Array::Zeros(DType::kInt64, {1, 2}), tensor);
  EXPECT_EQ(problem.SetWireDType(DType::kFloat16), absl::InvalidArgumentError("k: cannot convert int64 to float16"));
}

}  // namespace
}  // namespace attnd::client
