// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The thread that maps and unmaps a pool's memory, its driver calls let through one by one:
// what it says while it works, and what a newer request does to it.

#include <cstdint>
#include <memory>

#include "cuda/src/pool_worker.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

constexpr uint64_t kPageBytes = uint64_t{1} << 20;  // two to a chunk
constexpr uint64_t kChunk = uint64_t{2} << 20;
constexpr uint32_t kReserve = 2;
constexpr uint32_t kFirst = 2;  // pages
constexpr uint32_t kMost = 42;

class CudaWorker : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    context_ = std::make_unique<DeviceContext>(OpenDriver(), 0);
    memory_ = std::make_unique<PoolMemory>(
        *context_, PoolSize{kFirst * kPageBytes, kMost * kPageBytes, kReserve});
    worker_ = std::make_unique<PoolWorker>(*memory_, kPageBytes, kFirst);
    fakecuda_clear_log();
    fakecuda_hold_others(1);
  }
  void TearDown() override {
    fakecuda_hold_others(0);
    worker_.reset();
    memory_.reset();
    context_.reset();
    CudaTest::TearDown();
  }
  // Lets the thread go on until it has made so many calls of a kind.
  void LetUntil(const char* call, uint64_t calls) {
    ASSERT_EQ(fakecuda_await_others(), 1);
    while (fakecuda_calls(call) < calls) ASSERT_EQ(fakecuda_let_others(1), 1);
  }
  void LetAll() { ASSERT_EQ(fakecuda_let_others(UINT64_MAX), 1); }
  void ExpectBacking(uint64_t request, uint32_t pages, bool done) const {
    const Backing now = worker_->backing();
    EXPECT_EQ(now.request, request);
    EXPECT_EQ(now.pages, pages);
    EXPECT_EQ(now.done, done);
    EXPECT_FALSE(now.failed);
  }

  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<PoolWorker> worker_;
};

TEST_F(CudaWorker, AGrowthIsToldPieceByPiece) {
  worker_->Ask(1, kMost);
  ExpectBacking(0, kFirst, true);
  // What the reserve has is mapped first; then more is created, and what there is told.
  LetUntil("cuMemCreate", 1);
  ExpectBacking(1, kFirst + kReserve * kChunk / kPageBytes, false);
  EXPECT_EQ(worker_->mapped_bytes(), (1 + kReserve) * kChunk);
  LetAll();
  ExpectBacking(1, kMost, true);
  EXPECT_EQ(worker_->mapped_bytes(), kMost * kPageBytes);
}

TEST_F(CudaWorker, AGrowthEndsWithThePieceThatIsBeingMappedWhenSomebodyAsksAnew) {
  worker_->Ask(1, kMost);
  LetUntil("cuMemMap", 1);
  worker_->Ask(2, kFirst);
  LetAll();
  ExpectBacking(2, kFirst, true);
  EXPECT_EQ(fakecuda_calls("cuMemMap"), kReserve);
  EXPECT_EQ(fakecuda_calls("cuMemUnmap"), kReserve);
  EXPECT_EQ(worker_->mapped_bytes(), kChunk);
}

TEST_F(CudaWorker, ARequestThatHasBeenOvertakenIsNotToldAsDone) {
  worker_->Ask(1, kMost);
  LetUntil("cuMemMap", 1);
  worker_->Ask(2, kFirst);
  while (fakecuda_calls("cuMemUnmap") == 0) {
    ASSERT_EQ(fakecuda_let_others(1), 1);
    const Backing now = worker_->backing();
    EXPECT_FALSE(now.request == 1 && now.done);
  }
  LetAll();
  ExpectBacking(2, kFirst, true);
}

// The driver is not asked for a reserve where it has just had nothing for the pool.
TEST_F(CudaWorker, AGrowthForWhichThereIsNoMemoryFillsNoReserve) {
  fakecuda_inject_many("cuMemCreate", 1, UINT64_MAX, kErrorOutOfMemory);
  worker_->Ask(1, kMost);
  ASSERT_EQ(fakecuda_await_others(), 1);
  LetAll();
  const Backing now = worker_->backing();
  EXPECT_EQ(now.request, 1u);
  EXPECT_EQ(now.pages, kFirst + kReserve * kChunk / kPageBytes);
  EXPECT_TRUE(now.done);
  EXPECT_TRUE(now.failed);
  EXPECT_EQ(fakecuda_calls("cuMemCreate"), 1u);
  fakecuda_inject(nullptr, 0, 0);
}

// Nothing is unmapped that is to be mapped again.
TEST_F(CudaWorker, AShrinkEndsWithTheChunkThatIsBeingUnmappedWhenSomebodyAsksAnew) {
  worker_->Ask(1, kMost);
  ASSERT_EQ(fakecuda_await_others(), 1);
  LetAll();
  const uint64_t mapped = fakecuda_calls("cuMemMap");
  worker_->Ask(2, kFirst);
  LetUntil("cuMemUnmap", 1);
  worker_->Ask(3, kMost);
  LetAll();
  ExpectBacking(3, kMost, true);
  EXPECT_EQ(fakecuda_calls("cuMemUnmap"), 1u);
  EXPECT_EQ(fakecuda_calls("cuMemMap"), mapped + 1);
  EXPECT_EQ(worker_->mapped_bytes(), kMost * kPageBytes);
}

}  // namespace
}  // namespace kvcast::cuda
