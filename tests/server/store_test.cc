#include "server/store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/clock.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kBytes = 1 << 20;

class StoreTest : public ::testing::Test {
 protected:
  // [2, 3, 4] float32 of which each holds its dense index, with room for `capacity` along dimension 1.
  InputTensor PutCounting(std::int64_t capacity, Held& held) {
    StoredSpec spec;
    spec.name = "t";
    spec.shape = {2, 3, 4};
    spec.append_axis = 1;
    spec.capacity = capacity;
    spec.ttl = absl::Seconds(10);
    absl::StatusOr<std::shared_ptr<StoredTensor>> tensor = store_.Make(spec);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    std::vector<DataCopy> copies;
    (*tensor)->AddCopies({0, (*tensor)->data_bytes()}, 0, copies);
    Copy(copies, 0);
    store_.Publish(*std::move(tensor));
    return *Names().Tensor("t", held);
  }

  // As RawMessage::CopyOut of a message whose floats count from `first`.
  static void Copy(const std::vector<DataCopy>& copies, float first) {
    for (const DataCopy& copy : copies) {
      for (std::int64_t i = 0; i < copy.from.bytes / 4; ++i) {
        const std::int64_t index = copy.from.offset_bytes / 4 + i;
        const float value = first + static_cast<float>(index);
        std::memcpy(copy.to + i * 4, &value, sizeof(value));
      }
    }
  }

  static float At(const InputTensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c) {
    const std::vector<std::int64_t>& room = tensor.room.empty() ? tensor.shape : tensor.room;
    float value = 0;
    std::memcpy(&value, tensor.data + ((a * room[1] + b) * room[2] + c) * 4, sizeof(value));
    return value;
  }

  StoredNames Names() { return StoredNames(store_, ""); }

  Budget budget_{{kBytes, 10, kBytes, 100}};
  StoreBudget store_budget_{budget_, kBytes};
  TensorStore store_{store_budget_, absl::Seconds(100)};
};

TEST_F(StoreTest, RowsLieAsInATensorOfItsCapacity) {
  Held held;
  const InputTensor before = PutCounting(5, held);
  EXPECT_EQ(before.shape, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(before.room, (std::vector<std::int64_t>{2, 5, 4}));
  TensorStore::Rows rows{"t", {}, {0, 2 * 2 * 4 * 4}};
  rows.rows.shape = {2, 2, 4};
  const auto infos = store_.Append("", {rows}, [](std::vector<DataCopy> copies) { Copy(copies, 100); });
  ASSERT_TRUE(infos.ok()) << infos.status();
  EXPECT_EQ((*infos)[0].spec.shape, (std::vector<std::int64_t>{2, 5, 4}));
  const InputTensor after = *Names().Tensor("t", held);
  for (std::int64_t a = 0; a < 2; ++a) {
    for (std::int64_t b = 0; b < 5; ++b) {
      const auto right = static_cast<float>(b < 3 ? (a * 3 + b) * 4 : 100 + (a * 2 + b - 3) * 4);
      for (std::int64_t c = 0; c < 4; ++c) EXPECT_EQ(At(after, a, b, c), right + static_cast<float>(c));
    }
  }
  EXPECT_EQ(before.shape[1], 3);  // what began before sees no more
}

TEST_F(StoreTest, WithoutMoreRoomItIsDense) {
  Held held;
  StoredSpec spec;
  spec.name = "t";
  spec.shape = {1, 2, 2};
  spec.append_axis = 1;
  spec.capacity = 9;
  store_.Publish(*store_.Make(spec));
  EXPECT_TRUE(Names().Tensor("t", held)->room.empty());  // one run: rows lie together
}

TEST_F(StoreTest, WhatNobodyUsesGoes) {
  Held held;
  PutCounting(3, held);
  const absl::Time start = Now();
  store_.Tick(start + absl::Seconds(60));
  EXPECT_EQ(store_.Get("", "t")->calls, 1);
  held.clear();
  EXPECT_EQ(store_.Get("", "t")->calls, 0);
  store_.Tick(start + absl::Seconds(69));  // from when it was last seen in use
  EXPECT_EQ(store_.tensors(), 1);
  store_.Tick(start + absl::Seconds(71));
  EXPECT_EQ(store_.tensors(), 0);
  EXPECT_EQ(budget_.bytes_used(), 0);
}

TEST_F(StoreTest, BytesAreCountedUntilTheLastCallEnds) {
  Held held;
  PutCounting(3, held);
  const std::int64_t used = budget_.bytes_used();
  EXPECT_GE(used, 2 * 3 * 4 * 4);
  EXPECT_TRUE(store_.Delete("", "t").ok());
  EXPECT_EQ(budget_.bytes_used(), used);
  held.clear();
  EXPECT_EQ(budget_.bytes_used(), 0);
}

TEST_F(StoreTest, SizesThatCannotBe) {
  const auto check = [](std::vector<std::int64_t> shape, std::int64_t axis, std::int64_t capacity) {
    StoredSpec spec;
    spec.name = "t";
    spec.shape = std::move(shape);
    spec.append_axis = axis;
    spec.capacity = capacity;
    return CheckSpec(spec).status().code();
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(check({2, 0}, 1, kMost), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({1, 0}, 1, kMost / 4), absl::StatusCode::kInvalidArgument);  // with what it takes beside
  EXPECT_EQ(check({}, 0, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({kMost, kMost, 0}, 2, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({0, kMost, 1}, 2, 1), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace attnd::server
