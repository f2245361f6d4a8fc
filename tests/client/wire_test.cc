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

TEST_F(SendOrderTest, KAndVAndThenTheRowsComeWhenEverythingElseIsThere) {
  const std::vector<std::string> last = {"k", "v", "q", "x"};
  for (const std::string& path : paths_) {
    if (std::find(last.begin(), last.end(), path) != last.end()) continue;
    for (const std::string& later : last) EXPECT_LT(Place(path), Place(later)) << path << ", " << later;
  }
  // Keys are packed before values are met, and a row is answered when both are whole.
  EXPECT_LT(Place("k"), Place("v"));
  EXPECT_LT(Place("v"), Place("q"));
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
