// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's life on a CUDA device: what it asks, what it waits for, and what it does not.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_life.h"

namespace kvcast::cuda {
namespace {

TEST_F(CudaLife, AnOrdinalThatNoDeviceHas) {
  kvc_cuda_device device;
  uint64_t pages = 0;
  for (const uint32_t ordinal : {1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    EXPECT_EQ(kvc_cuda_device_get(ordinal, &device, &error_), KVC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find(std::to_string(ordinal)), std::string::npos)
        << error_.message;
    EXPECT_EQ(kvc_cuda_budget(ordinal, 1000, 0, 0.5, &pages, &error_), KVC_INVALID_ARGUMENT);
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.device_ordinal = ordinal;
    config.capacity_blocks = 16;
    testing::OwnedManager manager;
    EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
  }
}

// To learn which fences have been reached takes one question for each stream that has one
// outstanding, before the call and after it, and no other call that could wait.
TEST_F(CudaLife, CallsAskOnlyForFences) {
  kvc_manager* const manager = Create();
  uint64_t streams[2] = {};
  std::vector<uint64_t> open;
  fakecuda_hold(1);
  for (uint64_t& stream : streams) {
    ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
    ASSERT_EQ(Open(manager, stream, 100 + 100 * static_cast<uint32_t>(&stream - streams), &open),
              KVC_OK);
  }
  fakecuda_clear_log();
  Ask(manager);
  // Once before the call and once after it.
  EXPECT_LE(fakecuda_calls("cuEventQuery"), 4u);
  EXPECT_LE(fakecuda_calls(nullptr), 4u + 2 * 4u) << "the context's, and nothing else";
  fakecuda_hold(0);
  fakecuda_settle();
  Ask(manager);
  fakecuda_clear_log();
  Ask(manager);
  EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing outstanding";
  End(manager, open);
}

// To free memory waits for all that runs on the device, an engine's work as well, which may
// wait for the very thread that destroys the table.
TEST_F(CudaLife, ATableGoesWithoutWaitingForTheDevice) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const engines = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_settle();
  const fakecuda_live before = fakecuda_live_objects();
  fakecuda_gate(engines);
  ASSERT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK);
  EXPECT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_STALE_HANDLE);
  // The next one like it takes its memory.
  uint64_t second = 0;
  uint64_t there = 0;
  ASSERT_EQ(kvc_device_table_create(manager, 2, 7, -1, 64, &second, &there, &error_), KVC_OK);
  EXPECT_NE(second, table);
  EXPECT_EQ(there, address);
  EXPECT_EQ(fakecuda_live_objects().allocations, before.allocations);
  EXPECT_EQ(fakecuda_live_objects().pinned, before.pinned);
  ASSERT_EQ(kvc_device_table_destroy(manager, second, &error_), KVC_OK);
  fakecuda_open_gate(engines);
  fakecuda_settle();
  // What is kept goes before the driver's refusal is told.
  fakecuda_inject("cuMemAlloc", 1, kErrorOutOfMemory);
  ASSERT_EQ(kvc_device_table_create(manager, 64, 64, -1, 64, &table, &address, &error_), KVC_OK)
      << error_.message;
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, before.allocations);
  ASSERT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK);
  End(manager, {});
  fakecuda_stream_destroy(engines);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

// A manager may go while its copies and uploads are under way: it waits for them.
TEST_F(CudaLife, AManagerGoesAfterWhatIsUnderWay) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  ASSERT_NE(manager, nullptr);
  uint64_t stream = 0;
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &stream, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_gate(callers);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, stream, 100, &open), KVC_OK);
  ASSERT_EQ(ForkEach(manager, {stream}, &open), KVC_OK);
  const kvc_table_delta delta{0, 0, 1};
  ASSERT_EQ(kvc_device_table_update(manager, table, stream, 1, &delta, &error_), KVC_OK);
  for (const uint64_t id : open) {
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
  }
  std::atomic<bool> gone{false};
  std::thread destroyer([&] {
    EXPECT_EQ(kvc_manager_destroy(manager, nullptr), KVC_OK);
    gone.store(true);
  });
  while (fakecuda_calls("cuEventSynchronize") + fakecuda_calls("cuMemFree") == 0) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(gone.load()) << "it went while the device used its memory";
  fakecuda_open_gate(callers);
  destroyer.join();
  EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
