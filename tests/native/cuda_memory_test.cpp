// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Budgets, and the memory of a pool: what is mapped when, and that nothing is
// lost when a call of the driver fails.

#include <cmath>
#include <memory>
#include <string>

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
  try {
    (void)PagesFor({0, 0, 0}, kMiB, kMiB);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("one of them"), std::string::npos) << error.what();
  }
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

// One that divides nothing: the last chunk of the base is a smaller one.
TEST_F(CudaMemory, ChunksAreMultiplesOfTheDriversGranularity) {
  options_.granularity = 12288;
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  const uint64_t before = FreeBytes(context);
  {
    PoolMemory pool(context, {30 * kMiB + 5, 40 * kMiB, 1, 33 * kMiB});
    EXPECT_EQ(pool.base_chunk(), 36864u) << "30720, rounded up";
    EXPECT_EQ(pool.tail_chunk(), 2101248u);
    EXPECT_EQ(pool.bytes(), 31469568u + 2 * 2101248);
    EXPECT_EQ(fakecuda_calls("cuMemMap"), 854u + 2);
    EXPECT_EQ(fakecuda_calls("cuMemSetAccess"), 1u);
    Upload(context, pool.base(), std::vector<uint8_t>(pool.bytes(), 0x11));
    (void)pool.Shrink(31 * kMiB, [] { return true; });
    EXPECT_EQ(pool.Collect(), 1u);
    EXPECT_TRUE(pool.Grow(34 * kMiB));
  }
  EXPECT_EQ(FreeBytes(context), before);
}

TEST_F(CudaMemory, AGranularityThatMakesNoPoolIsRefused) {
  const DriverApi& api = OpenDriver();
  for (const uint64_t granularity : {uint64_t{0}, uint64_t{1} << 63, UINT64_MAX}) {
    options_.granularity = granularity;
    Restart();
    const DeviceContext context(api, 0);
    try {
      const PoolMemory memory(context, {4 * kMiB, 16 * kMiB, 1});
      ADD_FAILURE() << granularity << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
      const std::string said = error.what();
      EXPECT_EQ(said.rfind("cuMemGetAllocationGranularity: ", 0), 0u) << said;
      EXPECT_NE(said.find(std::to_string(granularity)), std::string::npos) << said;
    }
    EXPECT_EQ(fakecuda_calls("cuMemAddressReserve"), 0u);
    // What maps nothing needs none.
    const PoolMemory plain(context, {4 * kMiB, 4 * kMiB, 0});
    EXPECT_EQ(plain.bytes(), 4 * kMiB);
  }
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
  EXPECT_EQ(pool.TakeBack(12 * kMiB), 6 * kMiB) << "nor taken back";
  second = true;
  EXPECT_EQ(pool.TakeBack(7 * kMiB), 8 * kMiB) << "no more than is wanted";
  EXPECT_EQ(pool.TakeBack(12 * kMiB), 10 * kMiB) << "but for what nobody uses any more";
  EXPECT_EQ(pool.Shrink(5 * kMiB, [&] { return second; }), 6 * kMiB);
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

// A growth that fails, and whose chunks the driver does not unmap either.
TEST_F(CudaMemory, WhatAGrowthCannotUndoIsGivenUp) {
  const DeviceContext context(OpenDriver(), 0);
  const uint64_t before = FreeBytes(context);
  {
    PoolMemory pool(context, {4 * kMiB, 24 * kMiB, 5});
    // Push, capture mode, three maps, access, and unmaps.
    fakecuda_inject_many(nullptr, 6, 2, kErrorUnknown);
    EXPECT_THROW((void)pool.Grow(10 * kMiB), Error);
    EXPECT_STREQ(fakecuda_injected_call(), "cuMemUnmap");
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_EQ(pool.bytes(), 4 * kMiB);
    EXPECT_EQ(pool.mapped_bytes(), 10 * kMiB);
    EXPECT_EQ(pool.given_up_bytes(), 6 * kMiB);
    EXPECT_EQ(pool.reserve(), 2u);
    EXPECT_FALSE(pool.Grow(6 * kMiB)) << "there is something in the way";
    EXPECT_EQ(pool.TakeBack(10 * kMiB), 4 * kMiB) << "nobody has access to it";
    EXPECT_EQ(pool.Collect(), 3u);
    EXPECT_EQ(pool.given_up_bytes(), 0u);
    EXPECT_EQ(pool.reserve(), 5u);
    EXPECT_TRUE(pool.Grow(14 * kMiB));
    Upload(context, pool.base(), std::vector<uint8_t>(14 * kMiB, 1));
    // And left like that to the end.
    pool.FillReserve();
    fakecuda_inject_many(nullptr, 6, 2, kErrorUnknown);
    EXPECT_THROW((void)pool.Grow(20 * kMiB), Error);
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_EQ(pool.given_up_bytes(), 6 * kMiB);
  }
  EXPECT_EQ(FreeBytes(context), before);
}

TEST_F(CudaMemory, FillingTheReserveStopsAtTheNextChunk) {
  const DeviceContext context(OpenDriver(), 0);
  PoolMemory pool(context, {4 * kMiB, 24 * kMiB, 5});
  ASSERT_TRUE(pool.Grow(14 * kMiB));
  int asked = 0;
  pool.FillReserve([&] { return ++asked > 2; });
  EXPECT_EQ(pool.reserve(), 2u);
  pool.FillReserve();
  EXPECT_EQ(pool.reserve(), 5u);
}

// A chunk that is not unmapped stops those below it; one that is not taken back serves again.
TEST_F(CudaMemory, WhatTheDriverRefusesIsTriedAgain) {
  const DeviceContext context(OpenDriver(), 0);
  PoolMemory pool(context, {4 * kMiB, 24 * kMiB, 2, 24 * kMiB});
  const uint64_t before = FreeBytes(context);
  EXPECT_EQ(pool.given_up_bytes(), 0u);
  (void)pool.Shrink(8 * kMiB, [] { return true; });
  EXPECT_EQ(pool.given_up_bytes(), 16 * kMiB) << "and nothing has been tried";
  fakecuda_inject_many("cuMemUnmap", 5, 1, kErrorUnknown);
  EXPECT_THROW((void)pool.Collect(), Error);
  EXPECT_EQ(pool.given_up_bytes(), 8 * kMiB);
  EXPECT_EQ(pool.mapped_bytes(), 16 * kMiB);
  EXPECT_EQ(pool.reserve(), 2u);
  EXPECT_EQ(FreeBytes(context) - before, 4 * kMiB) << "what could go has gone";
  fakecuda_inject_many("cuMemRelease", 1, UINT64_MAX, kErrorUnknown);
  EXPECT_THROW((void)pool.Collect(), Error) << "four are unmapped, none is taken back";
  EXPECT_EQ(pool.mapped_bytes(), 8 * kMiB);
  EXPECT_EQ(pool.reserve(), 6u);
  EXPECT_EQ(pool.given_up_bytes(), 8 * kMiB) << "the reserve is two";
  EXPECT_EQ(pool.leaving(), 0u);
  EXPECT_THROW((void)pool.Collect(), Error);
  fakecuda_clear_log();
  EXPECT_EQ(pool.Collect([] { return true; }), 0u);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "something else is wanted now";
  EXPECT_TRUE(pool.Grow(14 * kMiB)) << "of those";
  EXPECT_EQ(pool.given_up_bytes(), 2 * kMiB);
  fakecuda_inject(nullptr, 0, 0);
  EXPECT_EQ(pool.Collect(), 0u);
  EXPECT_EQ(pool.given_up_bytes(), 0u);
  EXPECT_EQ(pool.reserve(), 2u);
  EXPECT_EQ(FreeBytes(context) - before, 6 * kMiB) << "three chunks";
}

TEST_F(CudaMemory, WhatThereIsAtFirstHasOneAccessForAll) {
  const DeviceContext context(OpenDriver(), 0);
  const uint64_t before = FreeBytes(context);
  {
    PoolMemory pool(context, {5 * kMiB, 61 * kMiB, 3, 41 * kMiB});
    EXPECT_EQ(pool.bytes(), 42 * kMiB) << "6 and 18 chunks";
    EXPECT_EQ(pool.mapped_bytes(), 42 * kMiB);
    EXPECT_EQ(pool.limit(), 62 * kMiB);
    EXPECT_EQ(pool.reserve(), 3u) << "none of it has been used up";
    EXPECT_EQ(pool.leaving(), 0u);
    EXPECT_EQ(fakecuda_calls("cuMemSetAccess"), 1u);
    EXPECT_EQ(fakecuda_calls("cuMemMap"), 3u + 18);
    EXPECT_EQ(fakecuda_calls("cuMemCreate"), 3u + 18 + 3);
    EXPECT_EQ(before - FreeBytes(context), 48 * kMiB);
    const std::vector<uint8_t> live(42 * kMiB, 0x3C);
    Upload(context, pool.base(), live);
    EXPECT_EQ(Download(context, pool.base(), live.size()), live);
    EXPECT_TRUE(pool.Grow(47 * kMiB));
    EXPECT_EQ(pool.Shrink(1, [] { return true; }), 6 * kMiB) << "no more is for good";
    EXPECT_EQ(pool.Collect(), 21u);
    EXPECT_EQ(before - FreeBytes(context), 12 * kMiB);
    EXPECT_EQ(Download(context, pool.base(), 6 * kMiB), std::vector<uint8_t>(6 * kMiB, 0x3C));
  }
  EXPECT_EQ(FreeBytes(context), before);
  const PoolMemory least(context, {5 * kMiB, 61 * kMiB, 0, 5 * kMiB});
  EXPECT_EQ(least.bytes(), 6 * kMiB);
  const PoolMemory all(context, {5 * kMiB, 61 * kMiB, 4, 61 * kMiB});
  EXPECT_EQ(all.bytes(), 62 * kMiB);
  EXPECT_EQ(all.reserve(), 0u) << "there is no room for more";
}

TEST_F(CudaMemory, WithoutVirtualMemoryAnElasticPoolIsOneAllocation) {
  options_.virtual_memory = 0;
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  EXPECT_FALSE(context.virtual_memory());
  const uint64_t before = FreeBytes(context);
  PoolMemory pool(context, {4 * kMiB, 20 * kMiB, 3, 9 * kMiB});
  EXPECT_FALSE(pool.mapped());
  EXPECT_EQ(pool.bytes(), 9 * kMiB) << "what it is to have at first";
  EXPECT_EQ(pool.limit(), 9 * kMiB);
  EXPECT_EQ(before - FreeBytes(context), 9 * kMiB);
  EXPECT_EQ(fakecuda_calls("cuMemAlloc"), 1u);
  const std::vector<uint8_t> live(9 * kMiB, 0x42);
  Upload(context, pool.base(), live);
  fakecuda_clear_log();
  pool.FillReserve();
  EXPECT_EQ(pool.Shrink(4 * kMiB, [] { return true; }), 9 * kMiB);
  EXPECT_EQ(pool.Collect(), 0u);
  EXPECT_EQ(pool.TakeBack(20 * kMiB), 9 * kMiB);
  EXPECT_TRUE(pool.Grow(9 * kMiB));
  EXPECT_FALSE(pool.Grow(9 * kMiB + 1));
  EXPECT_EQ(pool.bytes(), 9 * kMiB);
  EXPECT_EQ(pool.mapped_bytes(), 9 * kMiB);
  EXPECT_EQ(pool.leaving(), 0u);
  EXPECT_EQ(pool.reserve(), 0u);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u);
  EXPECT_EQ(Download(context, pool.base(), live.size()), live);
  const PoolMemory least(context, {4 * kMiB, 8 * kMiB, 0});
  EXPECT_EQ(least.bytes(), 4 * kMiB);
}

// Whatever entry the driver lacks of those that map memory.
TEST_F(CudaMemory, WithoutAnEntryThereIsNoVirtualMemory) {
  const DriverApi whole = OpenDriver();
  EXPECT_TRUE(DeviceContext(whole, 0).virtual_memory());
  for (int entry = 0; entry < 8; ++entry) {
    SCOPED_TRACE(entry);
    DriverApi api = whole;
    if (entry == 0) api.range_reserve = nullptr;
    if (entry == 1) api.range_free = nullptr;
    if (entry == 2) api.chunk_create = nullptr;
    if (entry == 3) api.chunk_release = nullptr;
    if (entry == 4) api.chunk_map = nullptr;
    if (entry == 5) api.chunk_unmap = nullptr;
    if (entry == 6) api.set_access = nullptr;
    if (entry == 7) api.chunk_granularity = nullptr;
    const DeviceContext context(api, 0);
    EXPECT_FALSE(context.virtual_memory());
    const PoolMemory pool(context, {4 * kMiB, 8 * kMiB, 2, 6 * kMiB});
    EXPECT_FALSE(pool.mapped());
    EXPECT_EQ(pool.bytes(), 6 * kMiB);
  }
}

TEST_F(CudaMemory, TooLittleIsOutOfMemoryAndNothingIsKept) {
  const DeviceContext context(OpenDriver(), 0);
  const uint64_t before = FreeBytes(context);
  for (const PoolSize& size :
       {PoolSize{300 * kMiB, 300 * kMiB, 0}, PoolSize{300 * kMiB, 310 * kMiB, 0},
        PoolSize{250 * kMiB, 300 * kMiB, 10}, PoolSize{10 * kMiB, 300 * kMiB, 0, 260 * kMiB}}) {
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
    const uint64_t first = n % 2 == 0 ? 8 * kMiB : 4 * kMiB;  // with and without some of the tail
    SCOPED_TRACE("call " + std::to_string((n + 1) / 2));
    Restart();
    {
      const DeviceContext context(OpenDriver(), 0);
      const uint64_t before = FreeBytes(context);
      std::unique_ptr<PoolMemory> pool;
      fakecuda_inject(nullptr, (n + 1) / 2, kErrorOutOfMemory);
      // Each step may fail once; what holds afterwards, holds whether it did or not.
      const auto step = [&](auto&& body) {
        try {
          body();
        } catch (const Error&) {
          ++struck;
        }
        while (fakecuda_context_depth() > 0) fakecuda_context_pop();
      };
      step([&] {
        pool = std::make_unique<PoolMemory>(context, PoolSize{4 * kMiB, 12 * kMiB, 3, first});
      });
      if (pool != nullptr) {
        step([&] { (void)pool->Grow(9 * kMiB); });
        const uint64_t bytes = pool->bytes();
        EXPECT_TRUE(bytes == first || bytes == 10 * kMiB) << bytes;
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
      more = fakecuda_injected() != 0 || n % 2 != 0;
      const std::string call = fakecuda_injected_call();
      fakecuda_inject(nullptr, 0, 0);
      pool.reset();
      // What a failing release or unmap of the driver itself kept is out of our hands.
      if (call != "cuMemRelease" && call != "cuMemUnmap") {
        EXPECT_EQ(FreeBytes(context), before) << call;
      }
    }
    ASSERT_LT(n, 400u);
  }
  EXPECT_GT(struck, 40u);
}

}  // namespace
}  // namespace kvcast::cuda
