// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Elastic pools on the CUDA device: the suite that the host device and GPUs run too,
// memory that is not to be had, requests that overtake each other, and each driver call
// failing once with a subscriber watching.

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "cuda/src/cuda_device.h"
#include "kvcast/kvcast.h"
#include "native/src/device_registry.h"
#include "tests/gpu/conformance_elastic.h"
#include "tests/native/cuda_support.h"
#include "tests/native/cuda_told.h"

namespace kvcast::cuda {
namespace {

using kvcast::testing::Backend;
using kvcast::testing::ElasticConformance;

constexpr uint64_t kPageBytes = uint64_t{1} << 20;  // two to a chunk

// Sanitizers are slow, and find what they can in some of the places.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStride = 7;
#else
constexpr uint64_t kStride = 1;
#endif

// Reads device memory in a context of its own making, as an engine would.
std::vector<int32_t> ReadDevice(uint64_t address, uint64_t count) {
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  const std::vector<uint8_t> bytes = Download(context, address, count * sizeof(int32_t));
  std::vector<int32_t> out(count);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void WriteDevice(uint64_t address, const std::vector<int32_t>& values) {
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  std::vector<uint8_t> bytes(values.size() * sizeof(int32_t));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  Upload(context, address, bytes);
}

TEST(ElasticConformance, HostDevice) {
  Backend backend;
  backend.pump = [](kvc_manager* manager) { kvc_host_advance(manager, 0, 5, nullptr, nullptr); };
  backend.read = [](uint64_t address, uint64_t count) {
    const auto* at = reinterpret_cast<const int32_t*>(address);
    return std::vector<int32_t>(at, at + count);
  };
  backend.write = [](uint64_t address, const std::vector<int32_t>& values) {
    std::memcpy(reinterpret_cast<void*>(address), values.data(), values.size() * sizeof(int32_t));
  };
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 4; ++seed) {
    EXPECT_EQ(ElasticConformance(backend, seed, 10).Run(), "") << "seed " << seed;
  }
}

class CudaElastic : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  void TearDown() override {
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK) << error_.message;
    CudaTest::TearDown();
  }
  kvc_status Open(uint32_t pages, uint32_t most, uint32_t least) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = pages;
    config.max_blocks = most;
    config.min_blocks = least;
    config.page_bytes = kPageBytes;
    config.copies = KVC_COPY_ENGINE;
    config.seed = 1;
    return kvc_manager_create(&config, stream_, &manager_, &error_);
  }
  // Blocks that nobody holds, of a text.
  kvc_status Store(uint32_t text, uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks * Told::kBlock);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = text * 10000 + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    EXPECT_EQ(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK);
    if (made.status != KVC_OK) return made.status;
    const kvc_grow_item grow{made.sequence, tokens.size()};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    kvc_commit_result committed{};
    if (grown.status == KVC_OK) {
      const uint64_t from = made.matched_tokens;
      const kvc_commit_item commit{made.sequence, from, tokens.size() - from, 0, 0, {}, 0};
      EXPECT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                     &committed, &error_),
                KVC_OK);
    }
    kvc_status released = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager_, 1, &made.sequence, &released, &error_), KVC_OK);
    EXPECT_EQ(released, KVC_OK);
    return grown.status != KVC_OK ? grown.status : committed.status;
  }
  kvc_status Resize(uint32_t target) {
    return kvc_pool_resize(manager_, target, 100, nullptr, 0, nullptr, 0, &result_, &error_);
  }
  // Until nothing is on its way; the first status that is not OK.
  kvc_status ResizeAll(uint32_t target) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      if (const kvc_status status = Resize(target); status != KVC_OK) return status;
      if (result_.done != 0) return KVC_OK;
      if (std::chrono::steady_clock::now() > until) return KVC_INTERNAL;
      std::this_thread::yield();
    }
  }
  // After a call that uses the device, which statistics do not.
  kvc_stats Stats() {
    EXPECT_EQ(kvc_device_fences_query(manager_, 0, nullptr, nullptr, &error_), KVC_OK);
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
    return stats;
  }
  void Check() { EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message; }

  kvc_error error_{};
  kvc_resize_result result_{};
  kvc_manager* manager_ = nullptr;
  kvc_stream* stream_ = nullptr;  // whoever sets it keeps it
};

TEST_F(CudaElastic, Conforms) {
  Backend backend;
  backend.device = KVC_DEVICE_CUDA;
  backend.read = ReadDevice;
  backend.write = WriteDevice;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 3; ++seed) {
    options_.seed = seed;
    Restart();
    EXPECT_EQ(ElasticConformance(backend, seed, 6).Run(), "") << "seed " << seed;
  }
}

TEST_F(CudaElastic, TheCallerNeverMaps) {
  ASSERT_EQ(Open(8, 64, 8), KVC_OK) << error_.message;
  const kvc_stats before = Stats();
  EXPECT_EQ(before.mapped_bytes, 8 * kPageBytes);
  // Nothing that is queued runs; memory comes all the same, on a thread of its own.
  fakecuda_hold(1);
  EXPECT_EQ(ResizeAll(64), KVC_OK);
  EXPECT_EQ(Stats().mapped_bytes, 64 * kPageBytes);
  EXPECT_EQ(ResizeAll(13), KVC_OK);
  EXPECT_EQ(Stats().mapped_bytes, 14 * kPageBytes);
  EXPECT_EQ(Stats().total_pages, 13u);
  fakecuda_hold(0);
  // One request takes the place of the one before it.
  for (const uint32_t target : {64u, 8u, 50u, 9u, 30u}) EXPECT_EQ(Resize(target), KVC_OK);
  EXPECT_EQ(ResizeAll(31), KVC_OK);
  EXPECT_EQ(Stats().free_pages, 31u);
  Check();
}

TEST_F(CudaElastic, MemoryThatIsNotToBeHad) {
  options_.memory_bytes = uint64_t{96} << 20;
  Restart();
  ASSERT_EQ(Open(8, 256, 4), KVC_OK) << error_.message;
  EXPECT_EQ(ResizeAll(256), KVC_OUT_OF_MEMORY);
  // What could be had has stayed.
  EXPECT_GT(result_.total_pages, 60u);
  EXPECT_LE(result_.total_pages, 96u);
  EXPECT_EQ(result_.target_pages, result_.total_pages);
  EXPECT_EQ(Stats().failed_resizes, 1u);
  EXPECT_EQ(Stats().free_pages, result_.total_pages);
  Check();
  EXPECT_EQ(ResizeAll(4), KVC_OK);
  EXPECT_EQ(ResizeAll(40), KVC_OK);
  Check();
}

std::set<std::string> Threads() {
  std::set<std::string> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(task.path().filename());
  }
  return ids;
}

// What the driver may not do is made by hiding it, on the device or in the driver itself.
class CudaPlain : public CudaElastic, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    CudaElastic::SetUp();
    if (GetParam()) {
      RegisterDevice(KVC_DEVICE_CUDA, [](const kvc_config& config) -> std::unique_ptr<Device> {
        static const DriverApi api = [] {
          DriverApi lacking = OpenDriver();
          lacking.range_reserve = nullptr;
          lacking.range_free = nullptr;
          lacking.chunk_create = nullptr;
          lacking.chunk_release = nullptr;
          lacking.chunk_map = nullptr;
          lacking.chunk_unmap = nullptr;
          lacking.set_access = nullptr;
          lacking.chunk_granularity = nullptr;
          return lacking;
        }();
        return std::make_unique<CudaDevice>(api, config);
      });
    } else {
      options_.virtual_memory = 0;
      Restart();
    }
  }
  kvc_device_memory Memory() {
    kvc_device_memory memory{};
    EXPECT_EQ(kvc_device_memory_get(manager_, &memory, &error_), KVC_OK);
    return memory;
  }
};
INSTANTIATE_TEST_SUITE_P(, CudaPlain, ::testing::Bool(), [](const auto& hidden) {
  return hidden.param ? "TheDriverLacksTheEntries" : "TheDeviceHasNone";
});

TEST_P(CudaPlain, APoolHasWhatItHadAtFirst) {
  ASSERT_EQ(Open(24, 64, 8), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_live_objects().ranges + fakecuda_live_objects().chunks, 0u);
  EXPECT_EQ(Stats().mapped_bytes, 24 * kPageBytes);
  EXPECT_EQ(Memory().bytes, 24 * kPageBytes) << "beyond it is not ours";
  // Down and up again: the books say so, the memory stays, and nobody is waited for.
  EXPECT_EQ(Store(1, 20), KVC_OK);
  for (const uint32_t target : {8u, 24u, 9u, 23u, 8u}) {
    kvc_status status = Resize(target);
    for (int call = 0; status == KVC_OK && result_.done == 0 && call < 100; ++call) {
      fakecuda_settle();  // moves
      status = Resize(target);
    }
    EXPECT_EQ(status, KVC_OK) << error_.message;
    EXPECT_EQ(result_.done, 1u) << target;
    EXPECT_EQ(Stats().total_pages, target);
    EXPECT_EQ(Stats().free_pages + Stats().cached_pages, target);
    EXPECT_EQ(Stats().mapped_bytes, 24 * kPageBytes) << "it does not go back";
    Check();
  }
  EXPECT_EQ(Stats().cached_pages, 8u);
  EXPECT_EQ(Resize(7), KVC_INVALID_ARGUMENT) << "min_blocks";
  EXPECT_EQ(Resize(65), KVC_INVALID_ARGUMENT) << "max_blocks";
}

TEST_P(CudaPlain, GrowingBeyondThatIsAGrowthForWhichThereIsNoMemory) {
  ASSERT_EQ(Open(24, 64, 8), KVC_OK) << error_.message;
  ASSERT_EQ(ResizeAll(10), KVC_OK);
  for (uint64_t failed = 1; failed < 4; ++failed) {
    fakecuda_clear_log();
    EXPECT_EQ(Resize(25), KVC_OUT_OF_MEMORY) << "at once, and whenever it is asked for";
    EXPECT_EQ(result_.target_pages, 24u);
    EXPECT_EQ(result_.total_pages, 24u) << "what could be had has stayed";
    EXPECT_EQ(result_.growing_pages, 0u);
    EXPECT_EQ(result_.done, 1u);
    EXPECT_EQ(fakecuda_calls(nullptr), 0u);
    EXPECT_EQ(Stats().failed_resizes, failed);
    EXPECT_EQ(Stats().free_pages, 24u);
    EXPECT_EQ(Stats().mapped_bytes, 24 * kPageBytes);
    Check();
  }
  // It has been said; nothing is left of it.
  EXPECT_EQ(Resize(24), KVC_OK);
  EXPECT_EQ(result_.done, 1u);
  EXPECT_EQ(Store(1, 24), KVC_OK);
  EXPECT_EQ(Store(2, 25), KVC_NEVER_FITS);
  // Beyond it in the midst of a shrink: the shrink is over.
  EXPECT_EQ(kvc_pool_resize(manager_, 8, 1, nullptr, 0, nullptr, 0, &result_, &error_), KVC_OK);
  EXPECT_EQ(result_.done, 0u);
  EXPECT_EQ(Resize(64), KVC_OUT_OF_MEMORY);
  EXPECT_EQ(result_.target_pages, 24u);
  EXPECT_EQ(ResizeAll(8), KVC_OK);
  EXPECT_EQ(Stats().failed_resizes, 4u);
  Check();
}

TEST_P(CudaPlain, HasNoThread) {
  // Those that have come with a manager; the fake driver has some of its own.
  const auto with = [&](uint32_t most) {
    const std::set<std::string> before = Threads();
    EXPECT_EQ(Open(8, most, 0), KVC_OK) << error_.message;
    uint64_t threads = 0;
    for (const std::string& id : Threads()) threads += 1 - before.count(id);
    EXPECT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
    manager_ = nullptr;
    return threads;
  };
  (void)with(0);  // the first thread of a program may bring one of a sanitizer's along
  const uint64_t fixed = with(0);
  EXPECT_EQ(with(16), fixed);
  options_.virtual_memory = 1;
  Restart();
  ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK);
  EXPECT_EQ(with(16), fixed + 1) << "of a pool whose memory comes and goes";
}

TEST_F(CudaElastic, IsToldBeforehand) {
  for (const int has : {0, 1}) {
    options_.virtual_memory = has;
    Restart();
    kvc_cuda_device device{};
    ASSERT_EQ(kvc_cuda_device_get(0, &device, &error_), KVC_OK);
    EXPECT_EQ(device.virtual_memory, static_cast<uint32_t>(has));
  }
}

TEST_P(CudaPlain, Conforms) {
  Backend backend;
  backend.device = KVC_DEVICE_CUDA;
  backend.read = ReadDevice;
  backend.write = WriteDevice;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 3; ++seed) {
    options_.seed = seed;
    Restart();
    EXPECT_EQ(ElasticConformance(backend, seed, 6, /*plain=*/true).Run(), "") << "seed " << seed;
  }
}

// One call gives access to all that a pool has when it is made, however small its least is.
TEST_F(CudaElastic, CreationGivesAccessOnce) {
  fakecuda_clear_log();
  ASSERT_EQ(Open(96, 128, 6), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_calls("cuMemSetAccess"), 1u);
  EXPECT_EQ(fakecuda_calls("cuMemMap"), 48u);
  EXPECT_EQ(fakecuda_calls("cuMemCreate"), 56u) << "and eight in reserve";
  EXPECT_EQ(Stats().mapped_bytes, 96 * kPageBytes);
  EXPECT_EQ(ResizeAll(6), KVC_OK);
  EXPECT_EQ(Stats().mapped_bytes, 6 * kPageBytes);
  EXPECT_EQ(fakecuda_live_objects().chunks, 3u + 8);
  Check();
}

// A growth that comes while a shrink is being carried out waits for the chunk that is being
// unmapped, not for all of them, and gets what is still there.
TEST_F(CudaElastic, AGrowthDoesNotWaitForAShrink) {
  ASSERT_EQ(Open(8, 160, 8), KVC_OK) << error_.message;
  ASSERT_EQ(ResizeAll(120), KVC_OK);
  fakecuda_clear_log();
  fakecuda_stall("cuMemUnmap", 1);
  EXPECT_EQ(Resize(8), KVC_OK);
  while (fakecuda_stalled() == 0) std::this_thread::yield();
  EXPECT_EQ(Resize(100), KVC_OK);
  fakecuda_let_go();
  EXPECT_EQ(ResizeAll(100), KVC_OK);
  EXPECT_EQ(Stats().free_pages, 100u);
  EXPECT_EQ(fakecuda_calls("cuMemUnmap"), 10u) << "what 100 pages do not need";
  EXPECT_EQ(fakecuda_calls("cuMemMap"), 0u);
  Check();
  // The rest is given back when it is asked for the next time.
  EXPECT_EQ(ResizeAll(8), KVC_OK);
  EXPECT_EQ(Stats().mapped_bytes, 8 * kPageBytes);
  EXPECT_EQ(fakecuda_calls("cuMemUnmap"), 56u);
  EXPECT_EQ(ResizeAll(120), KVC_OK);
  EXPECT_EQ(Stats().free_pages, 120u);
  Check();
}

// What the driver does not unmap stays mapped, is said to be, and is tried again with the
// next call that uses the device, on the thread that maps.
TEST_F(CudaElastic, ARefusedUnmapIsTriedAgain) {
  ASSERT_EQ(Open(8, 64, 8), KVC_OK) << error_.message;
  ASSERT_EQ(ResizeAll(64), KVC_OK);
  fakecuda_inject_many("cuMemUnmap", 1, UINT64_MAX, 2);
  EXPECT_EQ(ResizeAll(8), KVC_OK) << "nobody has a page there any more";
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Stats().mapped_bytes, 64 * kPageBytes);
    EXPECT_EQ(Stats().unreturned_bytes, 56 * kPageBytes);
  }
  Check();
  fakecuda_inject(nullptr, 0, 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (Stats().mapped_bytes != 8 * kPageBytes && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(Stats().mapped_bytes, 8 * kPageBytes);
  EXPECT_EQ(Stats().unreturned_bytes, 0u);
  EXPECT_LE(fakecuda_live_objects().chunks, 16u) << "the base's and the reserve's";
  // The same, and a growth takes it back.
  ASSERT_EQ(ResizeAll(64), KVC_OK);
  fakecuda_inject_many("cuMemUnmap", 1, UINT64_MAX, 2);
  EXPECT_EQ(ResizeAll(8), KVC_OK);
  EXPECT_EQ(Stats().unreturned_bytes, 56 * kPageBytes);
  EXPECT_EQ(ResizeAll(40), KVC_OK) << error_.message;
  EXPECT_EQ(Stats().unreturned_bytes, 24 * kPageBytes);
  EXPECT_EQ(ResizeAll(64), KVC_OK) << error_.message;
  EXPECT_EQ(Stats().free_pages, 64u);
  EXPECT_EQ(Stats().unreturned_bytes, 0u);
  EXPECT_EQ(Stats().failed_resizes, 0u) << "of growths";
  fakecuda_inject(nullptr, 0, 0);
  Check();
}

// A chunk that has been unmapped and is not taken back is memory that is missing elsewhere.
TEST_F(CudaElastic, WhatTheDriverDoesNotTakeBackIsTold) {
  ASSERT_EQ(Open(64, 64, 8), KVC_OK) << error_.message;
  fakecuda_inject_many("cuMemRelease", 1, UINT64_MAX, 2);
  EXPECT_EQ(ResizeAll(8), KVC_OK);
  EXPECT_EQ(Stats().mapped_bytes, 8 * kPageBytes);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Stats().unreturned_bytes, 40 * kPageBytes) << "28 less 8";
  EXPECT_EQ(fakecuda_live_objects().chunks, 32u);
  fakecuda_inject(nullptr, 0, 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (Stats().unreturned_bytes != 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(Stats().unreturned_bytes, 0u);
  EXPECT_EQ(fakecuda_live_objects().chunks, 4u + 8);
  Check();
}

// Without memory there is nothing to wait for, with or without virtual memory management.
TEST_F(CudaElastic, ThatKeepsTheBooksOnly) {
  for (const int has : {0, 1}) {
    options_.virtual_memory = has;
    Restart();
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = 8;
    config.max_blocks = 64;
    config.min_blocks = 2;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, &manager_, &error_), KVC_OK) << error_.message;
    fakecuda_clear_log();
    for (const uint32_t target : {64u, 2u, 9u, 8u, 63u}) {
      EXPECT_EQ(Resize(target), KVC_OK) << error_.message;
      EXPECT_EQ(result_.done, 1u);
      EXPECT_EQ(Stats().free_pages, target);
      EXPECT_EQ(Stats().mapped_bytes + Stats().unreturned_bytes, 0u);
    }
    EXPECT_EQ(fakecuda_calls(nullptr), 0u);
    Check();
    ASSERT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
    manager_ = nullptr;
  }
}

// The driver is not asked for what is more than it calls free, nor for what does not fit a
// number of bytes.
TEST_F(CudaElastic, MoreThanThereIs) {
  const auto open = [&](uint32_t pages, uint32_t most, uint64_t page_bytes) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = pages;
    config.max_blocks = most;
    config.page_bytes = page_bytes;
    return kvc_manager_create(&config, nullptr, &manager_, &error_);
  };
  EXPECT_EQ(open(257, 300, kPageBytes), KVC_OUT_OF_MEMORY);
  EXPECT_NE(std::string(error_.message)
                .find("257 pages of 1048576 bytes are more than the "
                      "268435456 bytes that are free"),
            std::string::npos)
      << error_.message;
  // There is room for the pages, but not for what is kept ready for growing.
  EXPECT_EQ(open(250, 300, kPageBytes), KVC_OUT_OF_MEMORY);
  EXPECT_STREQ(error_.message,
               "250 pages of 1048576 bytes, and up to 8 chunks of 2 MiB in reserve for growing, do "
               "not fit the 268435456 bytes that are free on the device (cuMemCreate: "
               "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory)");
  EXPECT_EQ(error_.system_code, kErrorOutOfMemory);
  EXPECT_EQ(fakecuda_live_objects().chunks, 0u);
  fakecuda_clear_log();
  // As a number of 64 bits that would be 8 MiB.
  for (const uint32_t most : {0u, 1u << 20, 1u << 21}) {
    EXPECT_EQ(open(1 << 20, most, (uint64_t{1} << 44) + 8), KVC_OUT_OF_MEMORY);
  }
  options_.memory_bytes = uint64_t{1} << 62;
  Restart();
  EXPECT_EQ(open(1, 1 << 27, (uint64_t{1} << 37) + 8), KVC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("max_blocks x page_bytes"), std::string::npos)
      << error_.message;
  EXPECT_EQ(fakecuda_calls("cuMemAlloc") + fakecuda_calls("cuMemAddressReserve"), 0u);
}

// A request that comes while the reserve is being filled waits for the chunk that is being
// created, not for all of them.
TEST_F(CudaElastic, NobodyWaitsForTheReserve) {
  ASSERT_EQ(Open(8, 64, 8), KVC_OK) << error_.message;
  fakecuda_clear_log();
  fakecuda_stall("cuMemCreate", 1);
  ASSERT_EQ(ResizeAll(24), KVC_OK) << "from the reserve";
  while (fakecuda_stalled() == 0) std::this_thread::yield();
  EXPECT_EQ(Resize(8), KVC_OK);
  fakecuda_let_go();
  ASSERT_EQ(ResizeAll(8), KVC_OK);
  EXPECT_EQ(fakecuda_calls("cuMemCreate"), 1u);
  EXPECT_EQ(fakecuda_calls("cuMemRelease"), 1u) << "those that were mapped are the reserve now";
  EXPECT_EQ(fakecuda_live_objects().chunks, 4u + 8);
  Check();
}

// A growth that fails, while the driver unmaps nothing either: what it could not undo is told.
TEST_F(CudaElastic, WhatAGrowthCannotUndoIsTold) {
  ASSERT_EQ(Open(8, 64, 8), KVC_OK) << error_.message;
  // The thread begins with push and capture mode, and the look at the reserve takes four calls;
  // then push, capture mode, eight maps, access.
  fakecuda_inject_many(nullptr, 2 + 4 + 2 + 8 + 1, 2, kErrorUnknown);
  fakecuda_stall("cuMemUnmap", 2);
  EXPECT_EQ(ResizeAll(24), KVC_OUT_OF_MEMORY);
  EXPECT_STREQ(fakecuda_injected_call(), "cuMemUnmap");
  // The next call has had it tried again; until that is done it is missing.
  EXPECT_EQ(Stats().unreturned_bytes, 16 * kPageBytes);
  while (fakecuda_stalled() == 0) std::this_thread::yield();
  EXPECT_EQ(Stats().unreturned_bytes, 16 * kPageBytes);
  EXPECT_EQ(Stats().mapped_bytes, 24 * kPageBytes);
  fakecuda_let_go();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (Stats().mapped_bytes != 8 * kPageBytes && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(Stats().mapped_bytes, 8 * kPageBytes);
  EXPECT_EQ(Stats().unreturned_bytes, 0u);
  EXPECT_EQ(ResizeAll(24), KVC_OK);
  Check();
}

// For every n the n-th driver call of a growth and of a shrink that evicts fails once.
TEST_F(CudaElastic, EachDriverCallMayFail) {
  uint64_t struck = 0;
  for (uint64_t n = 1;; n += kStride) {
    Told told;
    stream_ = told.stream();
    ASSERT_EQ(Open(8, 40, 4), KVC_OK) << error_.message;
    fakecuda_inject(nullptr, n, 2);
    EXPECT_EQ(Store(1, 2), KVC_OK);
    const kvc_status up = ResizeAll(30);
    EXPECT_TRUE(up == KVC_OK || up == KVC_OUT_OF_MEMORY) << n << ": " << error_.message;
    Check();
    if (up == KVC_OK) {
      EXPECT_EQ(Store(2, 6), KVC_OK);
    }
    EXPECT_EQ(ResizeAll(6), KVC_OK) << n << ": " << error_.message;
    Check();
    EXPECT_EQ(told.Wrong(manager_), "") << n;
    EXPECT_LE(told.blocks(), 6u);
    const bool met = fakecuda_injected() != 0;
    struck += met ? 1 : 0;
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_EQ(ResizeAll(36), KVC_OK) << n << ": " << error_.message;
    EXPECT_EQ(Store(3, 7), KVC_OK);
    EXPECT_EQ(told.Wrong(manager_), "") << n;
    EXPECT_GE(told.blocks(), 7u);
    EXPECT_EQ(Stats().free_pages + Stats().cached_pages, 36u);
    Check();
    ASSERT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
    manager_ = nullptr;
    stream_ = nullptr;
    if (!met) break;
    ASSERT_LT(n, 1000u);
  }
  EXPECT_GT(struck, 30 / kStride) << "the test must reach the calls it is about";
}

}  // namespace
}  // namespace kvcast::cuda
