// Rows of different problems that meet the same weights share one product: a block of weights is read from memory once
// for all of them, and a row's bytes are those that it has alone.
//
// The products of one problem's rows are cut into blocks of columns. A worker that takes up a block of one problem
// takes along the rows of others that have the same block of the same weights at the same depth before them, as many as
// share a product; nobody is waited for. When it is done, gives way or is stopped it gives them back as far as they
// came: whoever takes them up next goes on from there. Problems share when they are of one executor and one weight
// there, so that none carries another that stands behind it; each pays for its own rows. Thread rule: every public
// function may be called from any thread; a block is computed by who took it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "core/executor.h"
#include "core/projection.h"

namespace attnd {

// A problem of at most this many rows shares its products; with more the work outweighs what is read.
constexpr std::int64_t kSharingRowsMax = kRowsTogetherMax / 2;
// And of more elements of weights than this: fewer stay near the core, and meeting costs more than reading them.
constexpr double kSharingWeightsMin = 1 << 17;

// The rows of one problem in their products with one matrix or several.
class SharedRows {
 public:
  // x times the matrix, into out [x.rows, linear->out].
  struct Product {
    const Linear* linear = nullptr;
    float* out = nullptr;
  };

  // x says where the rows are: x_dtype, x, x_stride, rows. `is_there` says whether all of them have come; null when
  // they have. Everything that is pointed to stays until Leave.
  SharedRows(const ProjectionRows& x, const std::vector<Product>& products, const CancelToken& cancel,
             std::function<bool()> is_there);
  ~SharedRows() { Leave(); }
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;

  std::int64_t rows() const { return rows_; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  // Of these, how many were taken up together with other problems' rows. After the last one is done.
  std::int64_t blocks_shared() const;

  // From now on units of other jobs may take blocks along, while `job` is submitted and not stopped. `weight` is the
  // job's.
  void Enter(Executor& executor, std::shared_ptr<Job> job, std::int64_t weight);
  // Before the job is gone; no effect without Enter.
  void Leave();

  // Runs what stands between other jobs and the products that they share with this one, where their rows have nothing
  // before them that takes long: most of them then come along. From a unit of the own job that needs no scratch. False
  // when it gave way: call again to go on.
  bool BringOthers(WorkerContext& context);

  // A block to be computed by a unit of the own job: where most rows come along. None when all are done or taken; what
  // is given back after that is left to the own job.
  std::optional<std::size_t> Take();
  // Goes on with a block that Take gave. True when it is done or `cancel` stopped it, false when it gave way: call
  // again to go on. The scratch is ProjectionScratchBytes.
  bool Project(std::size_t block, std::byte* scratch, const WorkerContext& context);

 private:
  enum class State { kFree, kTaken, kDone };
  struct Block {
    ProjectionRows rows;
    State state = State::kFree;
    bool shared = false;
  };
  struct Meeting;
  class Company;

  // Whether the other's rows go through the same products, when they are there.
  bool IsKin(const SharedRows& other) const;
  bool IsThere() const { return is_there_ == nullptr || is_there_(); }
  // Whether a unit of another job that stands at the same depth of the same block may take it along.
  bool Waits(std::size_t block, std::int64_t depth) const;

  const CancelToken& cancel_;
  const std::function<bool()> is_there_;
  Meeting& meeting_;
  Executor* executor_ = nullptr;
  std::shared_ptr<Job> job_;
  std::int64_t weight_ = 0;
  std::int64_t rows_ = 0;
  std::vector<const Linear*> linears_;
  // Below: guarded by the meeting's mutex. A block that is taken belongs to who took it, but for its state.
  std::vector<Block> blocks_;
  bool is_open_ = true;
  std::list<SharedRows*> place_;  // holds this while it is not among those that entered
};

}  // namespace attnd
