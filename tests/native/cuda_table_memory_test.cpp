// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Whose the memory of a device table and of its staging is, when tables are closed, cannot
// be made or have lost something; and memory for what a call records.

#include "tests/native/failing_allocator.h"  // first: it replaces operator new

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/src/cuda_tables.h"
#include "kvcast/kvcast.h"
#include "tests/native/cuda_callers.h"
#include "tests/native/cuda_open_table.h"

namespace kvcast::cuda {
namespace {

using CudaTableMemory = CudaOpenTable;

// Two threads destroy one table: one of them does, the other is told that it is stale; and
// no two later tables get the same memory.
TEST_F(CudaTableMemory, ATableIsDestroyedOnce) {
  uint64_t address = 0;
  for (int round = 0; round < 20; ++round) {
    const uint64_t id = tables_->Open(2, 8, -1, 64, &address);
    const kvc_table_delta delta{0, 0, 1};
    tables_->Update(On(), id, 1, &delta);
    (void)table_->Submit();
    fakecuda_settle();
    std::atomic<int> began{0};
    std::atomic<int> closed{0};
    const auto close = [&] {
      ++began;
      try {
        tables_->Close(id);
        ++closed;
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), KVC_STALE_HANDLE);
      }
    };
    fakecuda_stall("cuEventQuery", 1);
    std::thread first(close);
    Until([] { return fakecuda_stalled() != 0; });
    std::thread second(close);
    Until([&] { return began == 2; });
    for (int i = 0; i < 100; ++i) std::this_thread::yield();  // mostly it has found the table
    fakecuda_let_go();
    first.join();
    second.join();
    EXPECT_EQ(closed.load(), 1);
  }
  uint64_t one = 0;
  uint64_t other = 0;
  (void)tables_->Open(2, 8, -1, 64, &one);
  (void)tables_->Open(2, 8, -1, 64, &other);
  EXPECT_NE(one, other) << "two open tables in the same memory";
}

// A table that is closed while an upload to it is being asked for takes the upload or is stale.
TEST_F(CudaTableMemory, NothingIsStagedOnAClosedTable) {
  const kvc_table_delta delta{0, 0, 1};
  tables_->Update(
      [&] {
        try {
          tables_->Close(id_);
          ADD_FAILURE() << "closed while an upload is staged";
        } catch (const Error& error) {
          EXPECT_EQ(error.status(), KVC_BUSY);
        }
        return slot_;
      },
      id_, 1, &delta);
  (void)table_->Submit();
  fakecuda_settle();
  EXPECT_NO_THROW(tables_->Close(id_));
  EXPECT_THROW(Update(), Error);
}

// A fill that has been queued and could not be waited for still runs, though its stream has been
// destroyed: its memory must not be another table's meanwhile.
TEST_F(CudaTableMemory, WhatAnUnfinishedCreateFillsIsNobodysYet) {
  CloseAll();
  options_.max_delay_us = 50000;
  Restart();
  OpenAll();
  const fakecuda_live before = fakecuda_live_objects();
  uint64_t address = 0;
  fakecuda_inject("cuStreamSynchronize", 1, kErrorUnknown);
  EXPECT_THROW((void)tables_->Open(4, 8, -7, 64, &address), Error);
  ASSERT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(fakecuda_live_objects().streams, before.streams);
  const uint64_t id = tables_->Open(4, 8, -9, 64, &address);
  fakecuda_settle();
  int32_t first = 0;
  const std::vector<uint8_t> bytes = Download(*context_, address, sizeof first);
  std::memcpy(&first, bytes.data(), sizeof first);
  EXPECT_EQ(first, -9);
  EXPECT_EQ(fakecuda_live_objects().allocations, before.allocations + 2)
      << "of the fill that may still run, too";
  tables_->Close(id);
}

TEST_F(CudaCallers, LostStagingIsNotWaitedForForEver) {
  Make();
  uint64_t ours = 0;
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_device_stream_create(manager_, &ours, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 16, &table, &address, &error_), KVC_OK);
  const std::vector<int32_t> rows(16, 3);
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  ASSERT_EQ(kvc_device_table_write(manager_, table, stream_, 0, 1, 8, rows.data(), &error_),
            KVC_OK);
  fakecuda_stream_destroy(callers_);
  fakecuda_settle();
  kvc_status status = KVC_NOT_NOW;
  for (int i = 0; i < 100 && status == KVC_NOT_NOW; ++i) {
    fakecuda_settle();
    EXPECT_EQ(kvc_device_fences_query(manager_, 0, nullptr, nullptr, &error_), KVC_OK);
    status = kvc_device_table_write(manager_, table, ours, 0, 2, 8, rows.data(), &error_);
  }
  EXPECT_EQ(status, KVC_NEVER_FITS) << "nothing is outstanding: " << error_.message;
  EXPECT_EQ(kvc_device_table_write(manager_, table, ours, 0, 1, 8, rows.data(), &error_), KVC_OK)
      << "what is left serves: " << error_.message;
  Destroy();
}

// For every n the n-th note that a call which gives back needs memory for has none: it
// fails whole, not half way through.
TEST_F(CudaCallers, AHoldThatEndsWithoutHostMemoryIsThereStill) {
  for (uint64_t n = 0; n < 3; ++n) {
    SCOPED_TRACE(n);
    Make();
    {
      // What a note takes.
      const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs_));
      EventPool events(context);
      StreamTable table(context, events);
      const uint32_t slot = table.Open();
      counting = true;
      (void)table.Record(slot);
      counting = false;
      (void)table.Submit();
      only_size = last_size;
      fakecuda_settle();
      table.Poll();
    }
    const std::vector<uint32_t> tokens(21, 7);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream_;
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    ASSERT_EQ(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK);
    const kvc_grow_item grow{made.sequence, 21};
    kvc_grow_result grown{};
    ASSERT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    const kvc_hold_item item{made.sequence, 1, 0};
    kvc_hold_result hold{};
    ASSERT_EQ(kvc_sequences_release_held(manager_, 1, &item, &hold, &error_), KVC_OK);
    kvc_status status = KVC_INTERNAL;
    allocations = 0;
    fail_at = n;
    counting = true;
    const kvc_status whole = kvc_holds_release(manager_, 1, &hold.hold, &status, &error_);
    counting = false;
    fail_at = UINT64_MAX;
    only_size = 0;
    EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message;
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
    if (whole != KVC_OK || status != KVC_OK) {
      EXPECT_EQ(stats.holds, 1u);
      EXPECT_EQ(kvc_holds_release(manager_, 1, &hold.hold, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    }
    EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message;
    EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
    EXPECT_EQ(stats.holds, 0u);
    Destroy();
  }
}

// A call has the notes that its fences take before it begins.
TEST_F(CudaTableMemory, RecordsTakeNoMemory) {
  std::vector<uint32_t> slots = {slot_};
  for (uint32_t slot = table_->Open(); slot != 0; slot = table_->Open()) slots.push_back(slot);
  ASSERT_EQ(slots.size(), kDeviceSlots - 1);
  table_->ReserveRecords();
  allocations = 0;
  fail_at = 0;
  counting = true;
  for (const uint32_t slot : slots) EXPECT_NE(table_->Record(slot), 0u);
  counting = false;
  fail_at = UINT64_MAX;
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(table_->Submit(), 0u);
  fakecuda_settle();
  table_->Poll();
}

}  // namespace
}  // namespace kvcast::cuda
