// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Budgets, and the memory of a pool: what is mapped when, and that nothing is
// lost when a call of the driver fails.

#include <cmath>
#include <memory>

#include "cuda/src/budget.h"
#include "cuda/src/pool_memory.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(CudaBudget, BytesPagesOrAFractionOfWhatIsFree) {
  EXPECT_EQ(PagesFor({100 * kMiB, 0, 0}, 3 * kMiB, 200 * kMiB), 33u);
  EXPECT_EQ(PagesFor({0, 20, 0}, 3 * kMiB, 200 * kMiB), 20u);
  EXPECT_EQ(PagesFor({0, 0, 0.5}, kMiB, 200 * kMiB), 100u);
  EXPECT_EQ(PagesFor({0, 0, 1}, kMiB, 200 * kMiB), 200u);
}

kvc_status Refused(const Budget& budget, uint64_t page_bytes, uint64_t free_bytes) {
  try {
    (void)PagesFor(budget, page_bytes, free_bytes);
  } catch (const Error& error) {
    return error.status();
  }
  return KVC_OK;
}

TEST(CudaBudget, WhatCannotBeIsRefused) {
  EXPECT_EQ(Refused({0, 0, 0}, kMiB, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({kMiB, 1, 0}, kMiB, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({0, 0, 1.01}, kMiB, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({0, 0, -0.5}, kMiB, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({0, 0, std::nan("")}, kMiB, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({kMiB, 0, 0}, 0, kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({kMiB - 1, 0, 0}, kMiB, 2 * kMiB), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(Refused({3 * kMiB, 0, 0}, kMiB, 2 * kMiB), KVC_OUT_OF_MEMORY);
  // Pages times their size would wrap around.
  EXPECT_EQ(Refused({0, UINT64_MAX / 2, 0}, kMiB, 2 * kMiB), KVC_OUT_OF_MEMORY);
}

class CudaMemory : public CudaTest {};

uint64_t FreeBytes(const DeviceContext& context) {
  const ContextScope scope(context);
  size_t free_bytes = 0;
  size_t total = 0;
  KVCAST_CUDA(context.api(), memory_info, &free_bytes, &total);
  return free_bytes;
}

TEST_F(CudaMemory, IsOneAllocationWhenNothingIsElastic) {
  const DeviceContext context(OpenDriver(), 0);
  const PoolMemory pool(context, {10 * kMiB, 10 * kMiB, 0});
  EXPECT_FALSE(pool.mapped());
  EXPECT_EQ(fakecuda_calls("cuMemAlloc"), 1u);
  EXPECT_EQ(fakecuda_calls("cuMemAddressReserve"), 0u);
  EXPECT_EQ(pool.bytes(), 10 * kMiB);
  EXPECT_EQ(pool.limit(), 10 * kMiB);
}

TEST_F(CudaMemory, BaseChunksArePoolOver1024RoundedUpWithOneAccessForAll) {
  options_.granularity = 4096;  // so that the rule shows in a small pool
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  const PoolMemory pool(context, {24 * kMiB, 32 * kMiB, 2});
  EXPECT_EQ(pool.base_chunk(), 24 * kMiB / 1024);
  EXPECT_EQ(fakecuda_calls("cuMemMap"), 1024u);
  EXPECT_EQ(fakecuda_calls("cuMemSetAccess"), 1u);
  EXPECT_EQ(fakecuda_calls("cuMemAddressReserve"), 1u);
  EXPECT_EQ(pool.tail_chunk(), 2 * kMiB);
  EXPECT_EQ(pool.reserve(), 2u);
}

TEST_F(CudaMemory, ChunksAreNoSmallerThanTheDriversGranularity) {
  const DeviceContext context(OpenDriver(), 0);
  const PoolMemory pool(context, {5 * kMiB, 9 * kMiB, 0});
  EXPECT_EQ(pool.base_chunk(), 2 * kMiB);
  EXPECT_EQ(pool.bytes(), 6 * kMiB) << "rounded up";
  EXPECT_EQ(pool.limit(), 10 * kMiB);
}

TEST_F(CudaMemory, GrowsFromItsReserveAndKeepsWhatIsInIt) {
  const DeviceContext context(OpenDriver(), 0);
  PoolMemory pool(context, {4 * kMiB, 20 * kMiB, 3});
  const std::vector<uint8_t> live(4 * kMiB, 0x5A);
  Upload(context, pool.base(), live);
  const DevicePtr base = pool.base();
  EXPECT_TRUE(pool.Grow(4 * kMiB)) << "it has that";
  fakecuda_clear_log();
  EXPECT_FALSE(pool.Grow(12 * kMiB)) << "the reserve has 3 chunks, 4 are wanted";
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "an empty reserve is no driver call";
  EXPECT_TRUE(pool.Grow(9 * kMiB));
  EXPECT_EQ(fakecuda_calls("cuMemCreate"), 0u) << "growing creates nothing";
  EXPECT_EQ(fakecuda_calls("cuMemSetAccess"), 1u) << "one for the whole new range";
  EXPECT_EQ(pool.bytes(), 10 * kMiB);
  EXPECT_EQ(pool.base(), base);
  Upload(context, base + 4 * kMiB, std::vector<uint8_t>(6 * kMiB, 0xA5));
  EXPECT_EQ(Download(context, base, 4 * kMiB), live);
  EXPECT_EQ(Download(context, base + 9 * kMiB, kMiB), std::vector<uint8_t>(kMiB, 0xA5));
  pool.FillReserve();
  EXPECT_EQ(pool.reserve(), 3u);
  EXPECT_TRUE(pool.Grow(16 * kMiB));
  pool.FillReserve();
  EXPECT_EQ(pool.reserve(), 2u) << "no more than the range has room for";
  EXPECT_FALSE(pool.Grow(21 * kMiB)) << "beyond the limit";
  EXPECT_TRUE(pool.Grow(20 * kMiB));
}

TEST_F(CudaMemory, ShrinksOnlyBehindItsFences) {
  const DeviceContext context(OpenDriver(), 0);
  PoolMemory pool(context, {4 * kMiB, 20 * kMiB, 4});
  ASSERT_TRUE(pool.Grow(12 * kMiB));
  const std::vector<uint8_t> live(6 * kMiB, 0x77);
  Upload(context, pool.base(), live);
  const uint64_t before = FreeBytes(context);
  bool first = false;
  bool second = false;
  EXPECT_EQ(pool.Shrink(9 * kMiB, [&] { return first; }), 10 * kMiB) << "whole chunks only";
  EXPECT_EQ(pool.Shrink(5 * kMiB, [&] { return second; }), 6 * kMiB);
  EXPECT_EQ(pool.leaving(), 3u);
  fakecuda_clear_log();
  EXPECT_EQ(pool.Collect(), 0u);
  EXPECT_EQ(fakecuda_calls("cuMemUnmap"), 0u);
  EXPECT_FALSE(pool.Grow(7 * kMiB)) << "what is leaving is not given again";
  second = true;
  EXPECT_EQ(pool.Collect(), 0u) << "the end of the range goes first";
  first = true;
  EXPECT_EQ(pool.Collect(), 3u);
  EXPECT_EQ(pool.leaving(), 0u);
  EXPECT_EQ(pool.bytes(), 6 * kMiB);
  EXPECT_EQ(pool.reserve(), 3u) << "given-up chunks are the next reserve";
  EXPECT_EQ(FreeBytes(context), before);
  EXPECT_EQ(Download(context, pool.base(), 6 * kMiB), live);
  EXPECT_TRUE(pool.Grow(12 * kMiB));
  EXPECT_EQ(Download(context, pool.base(), 6 * kMiB), live);
  EXPECT_EQ(pool.Shrink(0, [] { return true; }), 4 * kMiB) << "the base part stays";
  EXPECT_EQ(pool.Collect(), 4u);
  EXPECT_EQ(pool.reserve(), 4u);
}

TEST_F(CudaMemory, WithoutVirtualMemoryThereIsNoElasticPool) {
  options_.virtual_memory = 0;
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  EXPECT_FALSE(context.virtual_memory());
  EXPECT_THROW(PoolMemory(context, {4 * kMiB, 8 * kMiB, 0}), Error);
  const PoolMemory plain(context, {4 * kMiB, 4 * kMiB, 0});
  EXPECT_FALSE(plain.mapped());
}

TEST_F(CudaMemory, TooLittleIsOutOfMemoryAndNothingIsKept) {
  const DeviceContext context(OpenDriver(), 0);
  const uint64_t before = FreeBytes(context);
  for (const PoolSize& size :
       {PoolSize{300 * kMiB, 300 * kMiB, 0}, PoolSize{300 * kMiB, 310 * kMiB, 0},
        PoolSize{250 * kMiB, 300 * kMiB, 10}}) {
    try {
      const PoolMemory pool(context, size);
      FAIL() << "more than the device has was given";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_OUT_OF_MEMORY);
      EXPECT_EQ(error.system_code(), kErrorOutOfMemory);
    }
    EXPECT_EQ(FreeBytes(context), before);
  }
}

TEST_F(CudaMemory, AFailureOfEachCallLosesNothing) {
  uint64_t struck = 0;
  bool more = true;
  for (uint64_t n = 1; more; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    Restart();
    {
      const DeviceContext context(OpenDriver(), 0);
      const uint64_t before = FreeBytes(context);
      std::unique_ptr<PoolMemory> pool;
      fakecuda_inject(nullptr, n, kErrorOutOfMemory);
      // Each step may fail once; what holds afterwards, holds whether it did or not.
      const auto step = [&](auto&& body) {
        try {
          body();
        } catch (const Error&) {
          ++struck;
        }
        while (fakecuda_context_depth() > 0) fakecuda_context_pop();
      };
      step([&] { pool = std::make_unique<PoolMemory>(context, PoolSize{4 * kMiB, 12 * kMiB, 3}); });
      if (pool != nullptr) {
        step([&] { (void)pool->Grow(9 * kMiB); });
        const uint64_t bytes = pool->bytes();
        EXPECT_TRUE(bytes == 4 * kMiB || bytes == 10 * kMiB) << bytes;
        step([&] { Upload(context, pool->base() + bytes - 4096, std::vector<uint8_t>(4096, 1)); });
        // A failed wait leaves the copy under way.
        step([&] { (void)Download(context, pool->base(), 1); });
        step([&] { pool->FillReserve(); });
        (void)pool->Shrink(6 * kMiB, [] { return true; });
        step([&] { (void)pool->Collect(); });
        step([&] { (void)pool->Collect(); });
        EXPECT_LE(pool->bytes(), 6 * kMiB);
        EXPECT_EQ(pool->leaving(), 0u);
      }
      more = fakecuda_injected() != 0;
      const std::string call = fakecuda_injected_call();
      fakecuda_inject(nullptr, 0, 0);
      pool.reset();
      // What a failing release or unmap of the driver itself kept is out of our hands.
      if (call != "cuMemRelease" && call != "cuMemUnmap") {
        EXPECT_EQ(FreeBytes(context), before) << call;
      }
    }
    ASSERT_LT(n, 200u);
  }
  EXPECT_GT(struck, 15u);
}

}  // namespace
}  // namespace kvcast::cuda
