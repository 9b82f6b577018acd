// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Elastic pools on the CUDA device: the suite that the host device and GPUs run too,
// memory that is not to be had, and each driver call failing once.

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "kvcast/kvcast.h"
#include "tests/gpu/conformance_elastic.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

using kvcast::testing::Backend;
using kvcast::testing::ElasticConformance;

constexpr uint64_t kPageBytes = uint64_t{1} << 20;  // two to a chunk

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
    return kvc_manager_create(&config, nullptr, &manager_, &error_);
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
  kvc_stats Stats() {
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
    return stats;
  }
  void Check() { EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message; }

  kvc_error error_{};
  kvc_resize_result result_{};
  kvc_manager* manager_ = nullptr;
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

TEST_F(CudaElastic, WithoutVirtualMemory) {
  options_.virtual_memory = 0;
  Restart();
  EXPECT_EQ(Open(8, 16, 4), KVC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("elastic"), std::string::npos) << error_.message;
}

// For every n the n-th driver call of a growth and of a shrink fails once.
TEST_F(CudaElastic, EachDriverCallMayFail) {
  uint64_t struck = 0;
  for (uint64_t n = 1;; ++n) {
    ASSERT_EQ(Open(8, 40, 4), KVC_OK) << error_.message;
    fakecuda_inject(nullptr, n, 2);
    const kvc_status up = ResizeAll(30);
    EXPECT_TRUE(up == KVC_OK || up == KVC_OUT_OF_MEMORY) << n << ": " << error_.message;
    Check();
    EXPECT_EQ(ResizeAll(6), KVC_OK) << n << ": " << error_.message;
    Check();
    const bool met = fakecuda_injected() != 0;
    struck += met ? 1 : 0;
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_EQ(ResizeAll(36), KVC_OK) << n << ": " << error_.message;
    EXPECT_EQ(Stats().free_pages, 36u);
    Check();
    ASSERT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
    manager_ = nullptr;
    if (!met) break;
    ASSERT_LT(n, 1000u);
  }
  EXPECT_GT(struck, 30u) << "the test must reach the calls it is about";
}

}  // namespace
}  // namespace kvcast::cuda
