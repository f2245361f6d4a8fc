#include "core/projection_share.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

namespace attnd {

// Those that entered, the oldest first, by the address of their first weights: a meeting place has its own mutex.
struct SharedRows::Meeting {
  std::mutex mutex;
  std::list<SharedRows*> entered;

  static Meeting& Of(const std::byte* weights) {
    constexpr int kBits = 6;
    static auto* const meetings = new std::array<Meeting, 1 << kBits>;  // outlives every thread that may still compute
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(weights) * 0x9e3779b97f4a7c15ULL;
    return (*meetings)[mixed >> (64 - kBits)];
  }
};

SharedRows::SharedRows(const ProjectionRows& x, const std::vector<Product>& products, const CancelToken& cancel,
                       std::function<bool()> is_there)
    : cancel_(cancel),
      is_there_(std::move(is_there)),
      meeting_(Meeting::Of(products.front().linear->weight)),
      rows_(x.rows),
      place_{this} {
  for (const Product& product : products) {
    linears_.push_back(product.linear);
    for (std::int64_t column = 0; column < product.linear->out; column += kProjectionColumns) {
      Block block{x};
      block.rows.linear = product.linear;
      block.rows.out = product.out;
      block.rows.out_stride = product.linear->out;
      block.rows.column = column;
      block.rows.end_column = std::min(column + kProjectionColumns, product.linear->out);
      blocks_.push_back(block);
    }
  }
}

std::int64_t SharedRows::blocks_shared() const {
  return std::count_if(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.shared; });
}

void SharedRows::Enter(Executor& executor, std::shared_ptr<Job> job, std::int64_t weight) {
  const std::lock_guard lock(meeting_.mutex);
  executor_ = &executor;
  job_ = std::move(job);
  weight_ = weight;
  meeting_.entered.splice(meeting_.entered.end(), place_);
}

void SharedRows::Leave() {
  if (job_ == nullptr) return;
  const std::lock_guard lock(meeting_.mutex);
  place_.splice(place_.end(), meeting_.entered, std::find(meeting_.entered.begin(), meeting_.entered.end(), this));
  job_.reset();
}

bool SharedRows::IsKin(const SharedRows& other) const {
  return &other != this && other.is_open_ && other.executor_ == executor_ && other.weight_ == weight_ &&
         std::equal(linears_.begin(), linears_.end(), other.linears_.begin(), other.linears_.end(),
                    [](const Linear* a, const Linear* b) { return *a == *b; });
}

bool SharedRows::Waits(std::size_t block, std::int64_t depth) const {
  return block < blocks_.size() && blocks_[block].state == State::kFree && blocks_[block].rows.depth == depth &&
         IsThere();
}

bool SharedRows::BringOthers(WorkerContext& context) {
  std::array<std::shared_ptr<Job>, kRowsTogetherMax> jobs;
  std::size_t count = 0;
  {
    const std::lock_guard lock(meeting_.mutex);
    std::int64_t rows = rows_;
    for (const SharedRows* const other : meeting_.entered) {
      if (rows >= kRowsTogetherMax) break;
      if (!IsKin(*other)) continue;
      rows += other->rows_;
      if (!other->IsThere()) jobs[count++] = other->job_;
    }
  }
  for (std::size_t n = 0; n < count && !cancel_.ShouldStop(); ++n) {
    executor_->BringOn(*jobs[n], context);
    if (context.ShouldPause()) return false;
  }
  return true;
}

std::optional<std::size_t> SharedRows::Take() {
  const std::lock_guard lock(meeting_.mutex);
  std::optional<std::size_t> most;
  std::int64_t most_rows = 0;
  for (std::size_t block = 0; block < blocks_.size() && most_rows < kRowsTogetherMax; ++block) {
    if (blocks_[block].state != State::kFree) continue;
    std::int64_t rows = rows_;
    for (const SharedRows* const other : meeting_.entered) {
      if (rows >= kRowsTogetherMax) break;
      if (other->Waits(block, blocks_[block].rows.depth) && IsKin(*other)) rows += other->rows_;
    }
    if (rows <= most_rows) continue;
    most = block;
    most_rows = rows;
  }
  if (most.has_value()) {
    blocks_[*most].state = State::kTaken;
  } else {
    is_open_ = false;
  }
  return most;
}

// A block of one job's rows and those that it takes along, until they are given back.
class SharedRows::Company {
 public:
  Company(SharedRows& own, std::size_t block, const WorkerContext& context)
      : own_(own), block_(block), context_(context) {
    const std::lock_guard lock(own_.meeting_.mutex);
    Add(own);
    std::int64_t rows = own.rows_;
    for (SharedRows* const other : own_.meeting_.entered) {
      if (rows == kRowsTogetherMax) break;
      if (rows + other->rows_ > kRowsTogetherMax || !other->Waits(block, own.blocks_[block].rows.depth) ||
          !own.IsKin(*other) || !own.executor_->Hold(*other->job_))
        continue;
      other->blocks_[block].state = State::kTaken;
      other->blocks_[block].shared = own.blocks_[block].shared = true;
      Add(*other);
      rows += other->rows_;
    }
    if (count_ > 1) start_ = ThreadCpuTime();
  }
  ~Company() {
    Settle();
    while (count_ > 1) GiveBack(count_ - 1);
  }
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

  // The rows of all that are not stopped; the own ones come first.
  std::span<ProjectionRows* const> Going() {
    for (std::size_t n = count_; n-- > 1;) {
      if (!members_[n]->cancel_.ShouldStop()) continue;
      Settle();
      GiveBack(n);
    }
    return {rows_.data(), count_};
  }

 private:
  void Add(SharedRows& member) {
    members_[count_] = &member;
    rows_[count_] = &member.blocks_[block_].rows;
    ++count_;
  }
  // Takes the time since it was last taken into what a row has cost.
  void Settle() {
    if (count_ == 1) return;
    std::int64_t rows = 0;
    for (std::size_t n = 0; n < count_; ++n) rows += members_[n]->rows_;
    const absl::Duration now = ThreadCpuTime();
    row_time_ += (now - start_) / rows;
    start_ = now;
  }
  void GiveBack(std::size_t n) {
    SharedRows& member = *members_[n];
    Executor& executor = *own_.executor_;
    Job& job = *member.job_;
    const bool done = rows_[n]->done();
    const absl::Duration worked = row_time_ * member.rows_;
    {
      const std::lock_guard lock(own_.meeting_.mutex);
      member.blocks_[block_].state = done ? State::kDone : State::kFree;
    }
    --count_;
    members_[n] = members_[count_];
    rows_[n] = rows_[count_];
    executor.Release(job, done, worked, context_);  // from here on the job may be gone
  }

  SharedRows& own_;
  const std::size_t block_;
  const WorkerContext& context_;
  std::size_t count_ = 0;
  std::array<SharedRows*, kRowsTogetherMax> members_{};
  std::array<ProjectionRows*, kRowsTogetherMax> rows_{};
  absl::Duration start_, row_time_;
};

bool SharedRows::Project(std::size_t block, std::byte* scratch, const WorkerContext& context) {
  Company company(*this, block, context);
  while (!blocks_[block].rows.done()) {
    if (cancel_.ShouldStop()) return true;
    if (context.ShouldPause()) return false;
    ProjectBlock(company.Going(), scratch);
  }
  const std::lock_guard lock(meeting_.mutex);
  blocks_[block].state = State::kDone;
  return true;
}

}  // namespace attnd
