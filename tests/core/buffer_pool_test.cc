// What the pool keeps, hands out again and gives back, by a clock that the test turns.
#include "core/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/buffer.h"

namespace attnd {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::int64_t kKeepAll = std::int64_t{1} << 40;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(BufferPoolTest, ABlockIsAtMostAnEighthLarger) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    const std::size_t bytes = kPooledBytesMin + (random() >> (24 + random() % 22));
    const std::size_t block = BufferPool::BlockBytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block - bytes, bytes / 8);
    EXPECT_EQ(block % 4096, 0u);
    EXPECT_EQ(BufferPool::BlockBytes(block), block);
  }
  EXPECT_EQ(BufferPool::BlockBytes(kMiB), kMiB);
  EXPECT_EQ(BufferPool::BlockBytes(kMiB + 1), kMiB + kMiB / 8);
}

TEST(BufferPoolTest, ABlockThatCameBackIsTheNextOfItsSize) {
  BufferPool pool;
  pool.SetBytesMax(kKeepAll);
  void* first = pool.Take(kMiB);
  std::memset(first, 1, kMiB);
  pool.Give(first, kMiB, At(0));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(kMiB));
  void* other = pool.Take(2 * kMiB);
  EXPECT_NE(other, first);
  void* again = pool.Take(kMiB - 1000);  // of the same class
  EXPECT_EQ(again, first);
  EXPECT_EQ(pool.bytes_kept(), 0);
  pool.Give(again, kMiB - 1000, At(1));
  pool.Give(other, 2 * kMiB, At(2));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(3 * kMiB));
}

// Pages of [block, block + bytes) that the system holds in memory, by its own word.
std::ptrdiff_t ResidentPages(void* block, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(mincore(block, bytes, pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(BufferPoolTest, ASmallerBufferHoldsNoPagesOfTheLargerOneBefore) {
  BufferPool pool;
  pool.SetBytesMax(kKeepAll);
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t full = 9 * kMiB, small = 8 * kMiB + 2 * page + 1;
  ASSERT_EQ(BufferPool::BlockBytes(small), full);
  auto* const block = static_cast<unsigned char*>(pool.Take(full));
  EXPECT_EQ(ResidentPages(block, full), 0);
  std::memset(block, 1, full);
  EXPECT_EQ(ResidentPages(block, full), static_cast<std::ptrdiff_t>(full / page));
  pool.Give(block, full, At(0));

  // Its own pages stay, with what is in them: they are neither fetched nor cleared again.
  for (int time = 1; time <= 3; ++time) {
    ASSERT_EQ(pool.Take(small), block);
    EXPECT_EQ(ResidentPages(block, full), static_cast<std::ptrdiff_t>(small / page) + 1);
    EXPECT_EQ(std::count(block, block + small, 1), static_cast<std::ptrdiff_t>(small));
    pool.Give(block, small, At(time));
  }
  // Larger again: the pages that left come as fresh ones.
  ASSERT_EQ(pool.Take(full), block);
  EXPECT_EQ(ResidentPages(block, full), static_cast<std::ptrdiff_t>(small / page) + 1);
  EXPECT_EQ(std::count(block + small + page, block + full, 0), static_cast<std::ptrdiff_t>(full - small - page));
  pool.Give(block, full, At(4));
}

TEST(BufferPoolTest, TheLimitHoldsAndTheOldestLeavesFirst) {
  BufferPool pool;
  pool.SetBytesMax(static_cast<std::int64_t>(3 * kMiB));
  void* a = pool.Take(kMiB);
  void* b = pool.Take(2 * kMiB);
  void* c = pool.Take(kMiB);
  void* giant = pool.Take(4 * kMiB);
  pool.Give(a, kMiB, At(0));
  pool.Give(b, 2 * kMiB, At(1));
  pool.Give(c, kMiB, At(2));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(3 * kMiB));
  pool.Give(giant, 4 * kMiB, At(3));  // never fits, and drives nothing out
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(3 * kMiB));
  EXPECT_EQ(pool.Take(kMiB), c);
  EXPECT_EQ(pool.Take(2 * kMiB), b);
  EXPECT_EQ(pool.bytes_kept(), 0);
  pool.Give(b, 2 * kMiB, At(4));
  pool.Give(c, kMiB, At(5));
  pool.SetBytesMax(static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(pool.Take(kMiB), c);
  pool.Give(c, kMiB, At(6));
}

TEST(BufferPoolTest, WhatNobodyTookForAWhileGoesBack) {
  BufferPool pool;
  pool.SetBytesMax(kKeepAll);
  void* early = pool.Take(kMiB);
  void* late = pool.Take(kMiB);
  pool.Give(early, kMiB, At(10));
  pool.Give(late, kMiB, At(20));
  pool.ReleaseOlderThan(At(10));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(2 * kMiB));
  pool.ReleaseOlderThan(At(11));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(kMiB));
  // The one that is in use is young when it comes back.
  EXPECT_EQ(pool.Take(kMiB), late);
  pool.Give(late, kMiB, At(30));
  pool.ReleaseOlderThan(At(30));
  EXPECT_EQ(pool.bytes_kept(), static_cast<std::int64_t>(kMiB));
  pool.ReleaseOlderThan(At(31));
  EXPECT_EQ(pool.bytes_kept(), 0);
}

TEST(BufferPoolTest, ManyThreadsNeverShareABlock) {
  BufferPool pool;
  pool.SetBytesMax(static_cast<std::int64_t>(4 * kMiB));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t self = 0; self < wrong.size(); ++self) {
    threads.emplace_back([&, self] {
      std::mt19937_64 random(self);
      for (int i = 0; i < 300; ++i) {
        const std::size_t bytes = kPooledBytesMin + random() % kMiB;
        auto* block = static_cast<unsigned char*>(pool.Take(bytes));
        for (std::size_t at = 0; at < bytes; at += 4096) block[at] = static_cast<unsigned char>(self);
        if (i % 7 == 0) pool.ReleaseOlderThan(absl::Now());
        for (std::size_t at = 0; at < bytes; at += 4096) wrong[self] += block[at] != self;
        pool.Give(block, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::vector<int>(4, 0)));
  EXPECT_LE(pool.bytes_kept(), static_cast<std::int64_t>(4 * kMiB));
}

TEST(BufferPoolTest, LargeBuffersAreItsBlocksAndSmallOnesAreNot) {
  BufferPool& pool = BufferPool::Global();
  pool.SetBytesMax(kKeepAll);
  const std::int64_t before = pool.bytes_kept();
  { const AlignedBuffer<float> small(static_cast<std::int64_t>(kPooledBytesMin / sizeof(float)) - 1); }
  EXPECT_EQ(pool.bytes_kept(), before);
  const float* first = nullptr;
  {
    AlignedBuffer<float> large(3 << 20);
    first = large.data();
    AlignedBuffer<float> moved = std::move(large);
    EXPECT_EQ(moved.data(), first);
  }
  EXPECT_EQ(pool.bytes_kept() - before, std::int64_t{12} << 20);
  EXPECT_EQ(AlignedBuffer<double>((3 << 20) / 2).data(), reinterpret_cast<const double*>(first));
  pool.SetBytesMax(0);
  EXPECT_EQ(pool.bytes_kept(), 0);
}

// In builds that poison: nothing of what was there before can be read, from large buffers, small ones or scratch.
TEST(BufferPoolTest, PoisonStandsWhereAnotherBufferWas) {
  if (!kPoisons) {
    std::vector<unsigned char> bytes(16, 7);
    Poison(bytes.data(), bytes.size());
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 7), 16);  // what is shipped pays nothing
    return;
  }
  BufferPool::Global().SetBytesMax(kKeepAll);
  for (const std::int64_t count : {1, 1000, 1 << 20}) {
    const void* first = nullptr;
    for (int time = 0; time < 3; ++time) {
      const AlignedBuffer<unsigned char> buffer(count);
      EXPECT_EQ(std::count(buffer.data(), buffer.data() + count, kPoison), count);
      if (time > 0 && count == 1 << 20) {
        EXPECT_EQ(buffer.data(), first);  // the same pages
      }
      first = buffer.data();
      std::memset(buffer.data(), 'S', static_cast<std::size_t>(count));
    }
  }
  BufferPool::Global().SetBytesMax(0);
  Scratch scratch;
  std::memset(scratch.Reserve(5000), 'S', 5000);
  const std::byte* const again = scratch.Reserve(100);
  EXPECT_EQ(std::count(again, again + 100, std::byte{kPoison}), 100);
}

}  // namespace
}  // namespace attnd
