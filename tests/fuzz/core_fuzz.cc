// The tiled path of the core under problems that the bytes choose: every option, any small shape. For each
//
//   - every output is within the contract's bounds of the formula in float64 (core/reference);
//   - its bytes are the same on 1, 2 and 3 threads, alone and in the batch, and whatever else is wanted.
//
// ATTND_TEST_INSTRUCTION_SET=avx2 holds it to AVX2. The reference is the yardstick of every instruction set: two runs
// within a bound of it are within twice that bound of each other.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "tests/core/compare.h"
#include "tests/core/instruction_set.h"
#include "tests/core/random_problem.h"

namespace {

using attnd::InputTensor;
using attnd::OutputKind;
using attnd::ProblemInputs;

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "core_fuzz: %s\n", what.c_str());
  std::abort();
}

// Choices by the bytes, the plainest when they have run out.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::int64_t Pick(std::int64_t low, std::int64_t high) {
    std::uint64_t number = 0;
    for (std::int64_t range = high - low; range > 0 && size_ > 0; range >>= 8, ++data_, --size_) {
      number = number << 8 | *data_;
    }
    return low + static_cast<std::int64_t>(number % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

attnd::Executor& Threads(int count) {
  static auto* const one = new attnd::Executor(1);
  static auto* const two = new attnd::Executor(2);
  static auto* const three = new attnd::Executor(3);
  return count == 1 ? *one : count == 2 ? *two : *three;
}

void CheckThreads(const ProblemInputs& inputs, const attnd::DenseAnswer& answer) {
  for (const int count : {2, 3}) {
    const attnd::DenseAnswer other = attnd::Answer(inputs, Threads(count)).answer;
    Check(other.tensors == answer.tensors && other.nonfinite_rows == answer.nonfinite_rows,
          "other bytes on " + std::to_string(count) + " threads than on 1");
  }
}

void CheckWantedOutputs(ProblemInputs inputs, const attnd::DenseAnswer& answer) {
  inputs.outputs.clear();
  const auto output = static_cast<std::size_t>(OutputKind::kOutput);
  Check(attnd::Answer(inputs, Threads(1)).answer.tensors[output] == answer.tensors[output],
        "other bytes of the output when nothing else is wanted");
}

// Sequence b of a tensor whose first dimension is B, or the whole of one that serves every sequence.
void TakeSequence(std::optional<InputTensor>& tensor, std::int64_t b, std::size_t rank) {
  if (!tensor || tensor->shape.size() < rank || tensor->shape[0] == 1) return;
  tensor->shape[0] = 1;
  tensor->data += b * attnd::CheckedProduct(tensor->shape).value() * attnd::ElementBytes(tensor->dtype);
}

void TakeSequence(std::vector<std::int64_t>& values, std::int64_t b) {
  if (!values.empty()) values = {values[static_cast<std::size_t>(b)]};
}

void CheckBatch(const ProblemInputs& inputs, const attnd::Answered& all) {
  for (std::int64_t b = 0; b < all.problem.batch && all.problem.batch > 1; ++b) {
    ProblemInputs alone = inputs;
    for (auto* const tensor : {&alone.q, &alone.k, &alone.v, &alone.options.mask, &alone.options.bias}) {
      TakeSequence(*tensor, b, 4);
    }
    TakeSequence(alone.x, b, 3);
    attnd::OptionInputs& options = alone.options;
    if (options.rotary) TakeSequence(options.rotary->q_positions, b, 2);
    if (options.rotary) TakeSequence(options.rotary->k_positions, b, 2);
    for (auto* const values : {&options.q_offset, &options.q_len, &options.kv_len, &options.lengths}) {
      TakeSequence(*values, b);
    }
    const attnd::DenseAnswer one = attnd::Answer(alone, Threads(1)).answer;
    for (std::size_t kind = 0; kind < one.tensors.size(); ++kind) {
      const std::vector<std::byte>&part = one.tensors[kind], &whole = all.answer.tensors[kind];
      Check(part.size() * static_cast<std::size_t>(all.problem.batch) == whole.size() &&
                std::equal(part.begin(), part.end(), whole.begin() + b * static_cast<std::ptrdiff_t>(part.size())),
            "other bytes of output " + std::to_string(kind) + " of sequence " + std::to_string(b) + " alone");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool limited = attnd::LimitToInstructionSetOfTest();
  Bytes bytes(data, size);
  const attnd::Pick pick = [&bytes](std::int64_t low, std::int64_t high) { return bytes.Pick(low, high); };
  attnd::TensorStore store;
  const attnd::Shape shape = attnd::RandomShape(pick);
  const ProblemInputs inputs = attnd::RandomProblem(pick, shape, store);

  const std::string difference = attnd::DifferenceFromReference(inputs, Threads(1));
  Check(difference.empty(), difference);
  const attnd::Answered answered = attnd::Answer(inputs, Threads(1));
  CheckThreads(inputs, answered.answer);
  CheckWantedOutputs(inputs, answered.answer);
  CheckBatch(inputs, answered);
  return 0;
}
