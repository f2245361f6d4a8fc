// Which instruction set a binary of tests is to use: ATTND_TEST_INSTRUCTION_SET=avx2 is AVX2, whatever the machine has.
// Thread rule: before any work of the core.
#pragma once

#include <cstdlib>
#include <string>

#include "core/kernel_info.h"

namespace attnd {

// True when AVX2 was asked for; it is then all that the core uses.
inline bool LimitToInstructionSetOfTest() {
  const char* const asked = std::getenv("ATTND_TEST_INSTRUCTION_SET");
  const bool limited = asked != nullptr && std::string(asked) == "avx2";
  if (limited) LimitToAvx2();
  return limited;
}

}  // namespace attnd
