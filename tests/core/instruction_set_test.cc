// ATTND_TEST_INSTRUCTION_SET=avx2 runs every test of this binary on AVX2, whatever the machine has.
#include "tests/core/instruction_set.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

bool is_limited = false;

class InstructionSet : public ::testing::Environment {
 public:
  void SetUp() override { is_limited = LimitToInstructionSetOfTest(); }
};
const ::testing::Environment* const kEnvironment = ::testing::AddGlobalTestEnvironment(new InstructionSet);

TEST(AttentionKernelTest, UsesTheInstructionSetThatWasAsked) {
  ASSERT_NE(kEnvironment, nullptr);
  const KernelInfo info = GetKernelInfo();
  EXPECT_FALSE(info.instruction_sets_found.empty());
  EXPECT_TRUE(!is_limited || info.instruction_set_used.starts_with("AVX2")) << info.instruction_set_used;
}

}  // namespace
}  // namespace attnd
