// ATTND_TEST_INSTRUCTION_SET=avx2 runs every test of this binary on AVX2, whatever the machine has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/attention.h"

namespace attnd {
namespace {

bool IsLimited() {
  const char* const asked = std::getenv("ATTND_TEST_INSTRUCTION_SET");
  return asked != nullptr && std::string(asked) == "avx2";
}

class InstructionSet : public ::testing::Environment {
 public:
  void SetUp() override {
    if (IsLimited()) LimitToAvx2();
  }
};
const ::testing::Environment* const kEnvironment = ::testing::AddGlobalTestEnvironment(new InstructionSet);

TEST(AttentionKernelTest, UsesTheInstructionSetThatWasAsked) {
  ASSERT_NE(kEnvironment, nullptr);
  const KernelInfo info = GetKernelInfo();
  EXPECT_FALSE(info.instruction_sets_found.empty());
  EXPECT_TRUE(!IsLimited() || info.instruction_set_used.starts_with("AVX2")) << info.instruction_set_used;
}

}  // namespace
}  // namespace attnd
