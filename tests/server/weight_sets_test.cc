// Weight sets in memory: their form, their names and versions, whose they are, and that a set lives while it is used.
#include "server/weight_sets.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace attnd::server {
namespace {

InputTensor Shape(std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) { return {dtype, std::move(shape)}; }

// 2 query heads and 1 key head of width 3 on d_model = 4.
ProjectionInputs Weights(bool transposed = false) {
  ProjectionInputs weights;
  weights.q_heads = 2;
  weights.kv_heads = 1;
  weights.weights_transposed = transposed;
  weights.w_q = Shape(transposed ? std::vector<std::int64_t>{6, 4} : std::vector<std::int64_t>{4, 6});
  weights.w_k = weights.w_v = Shape(transposed ? std::vector<std::int64_t>{3, 4} : std::vector<std::int64_t>{4, 3});
  weights.b_q = Shape({6});
  return weights;
}
constexpr std::int64_t kBytes = 4 * (4 * 6 + 4 * 3 + 4 * 3 + 6);

class WeightSetsTest : public testing::Test {
 protected:
  absl::Status Put(const std::string& name, std::int64_t version = 0, const std::string& owner = "",
                   bool from_file = false) {
    absl::StatusOr<std::shared_ptr<WeightSet>> set =
        sets_.Make({name, version, owner, from_file}, Weights(), std::nullopt);
    if (set.ok()) sets_.Publish(*std::move(set));
    return set.status();
  }
  std::int64_t Newest(const std::string& name) {
    const absl::StatusOr<WeightSets::Listed> found = sets_.Find("name", name, 0);
    return found.ok() ? found->set->head.version : -1;
  }

  Budget budget_{{.bytes = 10000}};
  StoreBudget store_{budget_, 4 * kBytes};
  WeightSets sets_{store_, ProblemLimits{}};
};

// A matrix [rows, columns] of elements 0, 1, 2, ... that comes cut at `cuts`, and its columns one after another.
template <typename T>
void ExpectTurned(std::int64_t rows, std::int64_t columns, std::size_t cut) {
  std::vector<T> came(static_cast<std::size_t>(rows * columns)), turned(came.size());
  for (std::size_t i = 0; i < came.size(); ++i) came[i] = static_cast<T>(i);
  const InputTensor tensor = Shape({rows, columns}, sizeof(T) == 2 ? DType::kBFloat16 : DType::kFloat32);
  FormWriter writer(tensor, /*transposes=*/true, reinterpret_cast<std::byte*>(turned.data()));
  const absl::string_view bytes(reinterpret_cast<const char*>(came.data()), came.size() * sizeof(T));
  for (std::size_t at = 0; at < bytes.size(); at += cut) writer.Append(bytes.substr(at, cut));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      ASSERT_EQ(turned[static_cast<std::size_t>(column * rows + row)], static_cast<T>(row * columns + column))
          << rows << "x" << columns << " cut at " << cut;
    }
  }
}

TEST(FormWriterTest, MatricesAreTurnedWhereverTheirBytesAreCut) {
  for (const std::size_t cut : {1, 3, 7, 64, 4096}) {
    ExpectTurned<float>(5, 7, cut);
    ExpectTurned<std::uint16_t>(7, 5, cut);
    ExpectTurned<float>(1, 9, cut);
    ExpectTurned<std::uint16_t>(9, 1, cut);
  }
  // Rows of 400 KB, of which a block holds two: three blocks, the last one of one row; and a row larger than a block.
  ExpectTurned<float>(5, 100000, 999983);
  ExpectTurned<float>(2, 300000, 1 << 20);
}

TEST_F(WeightSetsTest, ASetIsInOutAndCountedOnce) {
  for (const bool transposed : {false, true}) {
    const absl::StatusOr<std::shared_ptr<WeightSet>> set = sets_.Make({"a", 0, {}}, Weights(transposed), std::nullopt);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->projection.w_q->shape, (std::vector<std::int64_t>{4, 6}));
    EXPECT_EQ((*set)->projection.w_k->shape, (std::vector<std::int64_t>{4, 3}));
    EXPECT_EQ((*set)->projection.b_q->shape, (std::vector<std::int64_t>{6}));
    EXPECT_FALSE((*set)->projection.weights_transposed);
    EXPECT_TRUE((*set)->projection.w_q->shared);
    EXPECT_EQ((*set)->bytes, kBytes);
    EXPECT_EQ(store_.bytes_used(), kBytes);
    EXPECT_EQ(sets_.size(), 0);  // nobody sees it
  }
  EXPECT_EQ(budget_.bytes_used(), 0);
}

TEST_F(WeightSetsTest, TheNewestIsTheLargestAndTheNextIsOneMore) {
  EXPECT_EQ(Newest("a"), -1);
  ASSERT_TRUE(Put("a", 5).ok());
  ASSERT_TRUE(Put("a", 2).ok());
  ASSERT_TRUE(Put("a").ok());
  EXPECT_EQ(Newest("a"), 6);
  EXPECT_EQ(Put("a", 5).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(sets_.Find("weight_set.name", "a", 4).status(),
            absl::NotFoundError("weight_set.name: no weight set a version 4"));
  sets_.Remove({"a", 6, {}});
  EXPECT_EQ(Newest("a"), 5);
  ASSERT_TRUE(Put("last", std::numeric_limits<std::int64_t>::max()).ok());
  EXPECT_EQ(Put("last").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sets_.List().size(), 3u);
  EXPECT_EQ(sets_.List("a").size(), 2u);
  EXPECT_EQ(sets_.List("a", 2).size(), 1u);
}

TEST_F(WeightSetsTest, WhoHoldsASetKeepsItAndItsMemory) {
  ASSERT_TRUE(Put("a").ok());
  absl::StatusOr<WeightSets::Listed> held = sets_.Find("name", "a", 0);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(held->calls, 0);
  EXPECT_EQ(sets_.List()[0].calls, 1);
  sets_.Remove(held->set->head);
  EXPECT_EQ(Newest("a"), -1);
  EXPECT_EQ(store_.bytes_used(), kBytes);
  std::memset(const_cast<std::byte*>(held->set->projection.w_q->data), 0, 4 * 4 * 6);  // it is there
  held = absl::NotFoundError("let go");
  EXPECT_EQ(store_.bytes_used(), 0);
}

TEST_F(WeightSetsTest, WhatDoesNotFitIsRefused) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put("a").ok());
  const absl::Status full = Put("a");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("weight set a version 5"), absl::string_view::npos) << full;
  EXPECT_EQ(sets_.size(), 4);
}

TEST_F(WeightSetsTest, ANameIsItsOwnersAndTheOperatorsIsNobodys) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  ASSERT_TRUE(Put("hers", 0, "alice").ok());
  ASSERT_TRUE(Put("ours", 0, "", /*from_file=*/true).ok());
  EXPECT_EQ(Put("hers", 0, "bob").code(), kDenied);
  EXPECT_EQ(Put("hers").code(), kDenied);
  EXPECT_EQ(Put("hers", 1, "", /*from_file=*/true).code(), kDenied);
  EXPECT_EQ(sets_.ToRemove("bob", "hers", 0).status().code(), kDenied);
  for (const char* const caller : {"", "alice"}) {
    EXPECT_EQ(Put("ours", 0, caller).code(), kDenied);
    EXPECT_EQ(sets_.ToRemove(caller, "ours", 1).status().code(), kDenied);
  }
  EXPECT_EQ(sets_.ToRemove("alice", "hers", 7).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sets_.ToRemove("alice", "hers", 0)->size(), 1u);
  ASSERT_TRUE(Put("ours", 1, "", /*from_file=*/true).ok());  // the operator's own again, in its place
  EXPECT_EQ(sets_.List("ours").size(), 1u);
  // What nobody put with a name of their own is everyone's.
  ASSERT_TRUE(Put("all").ok());
  EXPECT_TRUE(sets_.ToRemove("bob", "all", 0).ok());
}

}  // namespace
}  // namespace attnd::server
