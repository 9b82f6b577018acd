// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// kvc_config.copies: who makes the copies of a manager's forks.

#include <memory>
#include <set>
#include <vector>

#include "tests/native/abi_support.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

constexpr uint32_t kPages = 16;

class CudaCopyMethod : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  kvc_config Config() const {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = kPages;
    config.page_bytes = 4096;
    config.seed = 1;
    return config;
  }
  // Driver calls of making and destroying a manager.
  uint64_t CallsToCreate(const char* call, const kvc_config& config) {
    const uint64_t before = fakecuda_calls(call);
    testing::OwnedManager manager;
    EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OK)
        << error_.message;
    return fakecuda_calls(call) - before;
  }
  static kvc_status GrowAll(kvc_manager* manager, const std::vector<uint64_t>& sequences) {
    std::vector<kvc_grow_item> items;
    for (const uint64_t sequence : sequences) items.push_back({sequence, 32});
    std::vector<kvc_grow_result> results(items.size());
    return kvc_sequences_grow(manager, static_cast<uint32_t>(items.size()), items.data(),
                              results.data(), nullptr, 0, nullptr, nullptr);
  }
  // Pages of the pool whose bytes no page before them has.
  static size_t DifferentPages(const DeviceContext& context, uint64_t base, uint64_t page_bytes) {
    const std::vector<uint8_t> bytes = Download(context, base, kPages * page_bytes);
    std::set<std::vector<uint8_t>> pages;
    for (auto at = bytes.begin(); at != bytes.end(); at += static_cast<ptrdiff_t>(page_bytes)) {
      pages.emplace(at, at + static_cast<ptrdiff_t>(page_bytes));
    }
    return pages.size();
  }

  kvc_error error_{};
};

TEST_F(CudaCopyMethod, IsMeasuredByDefaultAndNotWhereItIsGiven) {
  kvc_config config = Config();
  ASSERT_EQ(config.copies, KVC_COPY_CALIBRATED);
  // What is timed is pinned memory besides the ring of the copies, and memory on the device.
  const uint64_t pinned = CallsToCreate("cuMemHostAlloc", config);
  const uint64_t memory = CallsToCreate("cuMemAlloc", config);
  for (const kvc_copy_method given : {KVC_COPY_PUBLISHED, KVC_COPY_ENGINE, KVC_COPY_KERNEL}) {
    SCOPED_TRACE(given);
    config.copies = given;
    EXPECT_EQ(CallsToCreate("cuMemHostAlloc", config) + 2, pinned);
    EXPECT_EQ(CallsToCreate("cuMemAlloc", config) + 1, memory);
    EXPECT_EQ(CallsToCreate("cuEventElapsedTime", config), 0u);
    EXPECT_EQ(CallsToCreate("cuLaunchKernel", config), 0u);
  }
}

TEST_F(CudaCopyMethod, IsKeptToByTheCopiesOfForks) {
  struct Case {
    kvc_copy_method method;
    uint64_t page_bytes;
    uint64_t single;  // launches of kernels for one copy
    uint64_t pair;    // and for two in one call
  };
  for (const Case& c : std::vector<Case>{{KVC_COPY_PUBLISHED, 4096, 0, 1},
                                         {KVC_COPY_PUBLISHED, 1000, 0, 0},
                                         {KVC_COPY_ENGINE, 4096, 0, 0},
                                         {KVC_COPY_ENGINE, 1000, 0, 0},
                                         {KVC_COPY_KERNEL, 4096, 1, 1},
                                         {KVC_COPY_KERNEL, 1000, 1, 1}}) {
    SCOPED_TRACE(::testing::Message() << "method " << c.method << ", " << c.page_bytes);
    testing::CacheOptions options;
    options.device = KVC_DEVICE_CUDA;
    options.copies = c.method;
    options.pages = kPages;
    options.page_bytes = c.page_bytes;
    options.block = 16;
    options.poison = false;
    testing::Cache cache(options);
    uint64_t stream = 0;
    ASSERT_EQ(kvc_device_stream_create(cache.manager(), &stream, &error_), KVC_OK);
    kvc_device_memory memory{};
    ASSERT_EQ(kvc_device_memory_get(cache.manager(), &memory, &error_), KVC_OK);
    const DeviceContext context(OpenDriver(), 0);
    std::vector<uint8_t> bytes(kPages * c.page_bytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
    Upload(context, memory.base, bytes);
    ASSERT_EQ(DifferentPages(context, memory.base, c.page_bytes), kPages);

    // A block and a tail, which each fork shares until it grows.
    std::vector<uint32_t> tokens(21, 5);
    const kvc_create_result parent = cache.Create(tokens, {}, KVC_COMPUTE_NOTHING, stream);
    ASSERT_EQ(GrowAll(cache.manager(), {parent.sequence}), KVC_OK);
    ASSERT_EQ(cache.Commit(parent.sequence, tokens.data(), tokens.size()).status, KVC_OK);
    std::vector<uint64_t> forks;
    for (int i = 0; i < 3; ++i) {
      const kvc_fork_result fork = cache.Fork(parent.sequence, stream);
      ASSERT_EQ(fork.status, KVC_OK);
      forks.push_back(fork.sequence);
    }
    uint64_t before = fakecuda_calls("cuLaunchKernel");
    ASSERT_EQ(GrowAll(cache.manager(), {forks[0]}), KVC_OK);
    EXPECT_EQ(fakecuda_calls("cuLaunchKernel") - before, c.single);
    before = fakecuda_calls("cuLaunchKernel");
    ASSERT_EQ(GrowAll(cache.manager(), {forks[1], forks[2]}), KVC_OK);
    EXPECT_EQ(fakecuda_calls("cuLaunchKernel") - before, c.pair);
    fakecuda_settle();
    EXPECT_EQ(DifferentPages(context, memory.base, c.page_bytes), kPages - 3) << "three copies";
  }
}

}  // namespace
}  // namespace kvcast::cuda
