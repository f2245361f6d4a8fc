#include "client/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Gives every tensor of the message two bytes, and lists their paths.
void FillTensors(Message* message, const std::string& prefix, std::vector<std::string>* paths) {
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor* field = type.field(f);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) continue;
    Message* inner = message->GetReflection()->MutableMessage(message, field);
    const std::string path = absl::StrCat(prefix, field->name());
    if (auto* tensor = dynamic_cast<v1::Tensor*>(inner)) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT16);
      tensor->add_shape(1);
      tensor->set_data("xy");
      paths->push_back(path);
    } else {
      FillTensors(inner, absl::StrCat(path, "."), paths);
    }
  }
}

class SendOrderTest : public testing::Test {
 protected:
  void SetUp() override { FillTensors(&request_, "", &paths_); }
  // Where a tensor stands in the order of pieces.
  std::ptrdiff_t Place(const std::string& path) {
    const SplitRequest split = Split(request_);
    const auto found = std::find_if(split.tensors.begin(), split.tensors.end(),
                                    [&](const auto& tensor) { return tensor.first == path; });
    EXPECT_NE(found, split.tensors.end()) << path;
    return found - split.tensors.begin();
  }
  v1::AttendRequest request_;
  std::vector<std::string> paths_;
};

TEST_F(SendOrderTest, EveryTensorOfTheContractHasItsPlace) {
  std::vector<std::string> ordered(SendOrder().begin(), SendOrder().end());
  EXPECT_THAT(ordered, testing::UnorderedElementsAreArray(paths_));
  std::vector<std::string> sent;
  const SplitRequest split = Split(request_);
  for (const auto& [path, data] : split.tensors) sent.push_back(path);
  EXPECT_EQ(sent, ordered);
}

TEST_F(SendOrderTest, WhatATensorNeedsComesBeforeIt) {
  const std::pair<const char*, const char*> needs[] = {
      // To place and turn keys; k is packed before v is met; both are whole before a row is finished.
      {"options.page_table", "k"},
      {"options.rotary.k_positions", "k"},
      {"k", "v"},
      {"v", "q"},
      // Rows can be answered while they arrive only when all they need is there.
      {"options.mask", "q"},
      {"options.bias", "q"},
      {"options.rotary.q_positions", "q"},
      {"projection.w_k", "projection.w_v"},
      {"projection.w_v", "projection.w_q"},
      {"projection.w_q", "x"},
      {"projection.b_k", "x"},
      {"projection.b_v", "x"},
      {"projection.b_q", "x"},
      {"options.rotary.q_positions", "x"},
      {"options.mask", "x"},
      // Only finished rows are multiplied by it.
      {"x", "projection.w_o"},
  };
  for (const auto& [first, second] : needs) EXPECT_LT(Place(first), Place(second)) << first << ", " << second;
}

TEST_F(SendOrderTest, TheHeaderKeepsEverythingButBytes) {
  const SplitRequest split = Split(request_);
  EXPECT_EQ(split.header.q().dtype(), v1::DATA_TYPE_FLOAT16);
  EXPECT_EQ(split.header.projection().w_o().shape_size(), 1);
  EXPECT_EQ(split.header.options().rotary().k_positions().data(), "");
  for (const auto& [path, data] : split.tensors) EXPECT_EQ(*data, "xy") << path;
}

}  // namespace
}  // namespace attnd::client
