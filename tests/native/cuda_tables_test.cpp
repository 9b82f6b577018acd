// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Tables in a GPU's memory: what is uploaded there, once and in order, and whose the staging is.

#include "tests/native/failing_allocator.h"  // first: it replaces operator new

#include <algorithm>
#include <thread>
#include <vector>

#include "cuda/src/cuda_tables.h"
#include "kvcast/kvcast.h"
#include "tests/native/cuda_callers.h"
#include "tests/native/cuda_open_table.h"

namespace kvcast::cuda {
namespace {

using CudaTable = CudaOpenTable;

// For every n the n-th allocation of an upload fails: its staging comes back.
TEST_F(CudaTable, AnUploadWithoutHostMemoryKeepsNoStaging) {
  const std::vector<int32_t> row(8, 1);
  const TableRows rows{0, 1, 8, row.data()};
  const CudaTables::SlotNow on = On();
  int failed = 0;
  for (uint64_t n = 0;; ++n) {
    ASSERT_LT(n, 50u);
    bool bad = false;
    allocations = 0;
    fail_at = n;
    counting = true;
    try {
      tables_->Write(on, id_, rows);
    } catch (const std::bad_alloc&) {
      bad = true;
    }
    counting = false;
    SubmitAndSettle();
    failed += bad ? 1 : 0;
    if (allocations <= n) break;
  }
  fail_at = UINT64_MAX;
  EXPECT_GT(failed, 1);
  for (int i = 0; i < 60; ++i) {
    EXPECT_NO_THROW(tables_->Write(on, id_, rows)) << i;
    SubmitAndSettle();
  }
  EXPECT_NO_THROW(tables_->Close(id_));
}

// The manager's lock, which the stream is looked up under, is not held while entries are
// copied and sorted.
TEST_F(CudaTable, AnUploadIsStagedBeforeItsStreamIsAskedFor) {
  constexpr uint32_t kRows = 8;
  constexpr uint32_t kColumns = 16;
  constexpr uint32_t kEntries = kRows * kColumns;
  uint64_t address = 0;
  const uint64_t id = tables_->Open(kRows, kColumns, -1, 3 * kEntries, &address);
  std::vector<kvc_table_delta> deltas(kEntries);
  std::vector<int32_t> rows(kEntries);
  const auto fill = [&](bool ascending, int32_t first) {
    for (uint32_t i = 0; i < kEntries; ++i) {
      const uint32_t at = ascending ? i : kEntries - 1 - i;
      deltas[at] = {i / kColumns, i % kColumns, first + static_cast<int32_t>(i)};
      rows[i] = first + static_cast<int32_t>(i);
    }
  };
  const CudaTables::SlotNow late = [&] {
    std::fill(deltas.begin(), deltas.end(), kvc_table_delta{0, 0, -7});
    std::fill(rows.begin(), rows.end(), -7);
    return slot_;
  };
  const CudaTables::SlotNow none = []() -> uint32_t {
    throw Error(KVC_STALE_HANDLE, "there is no such stream");
  };
  for (int kind = 0; kind < 3; ++kind) {  // triples that ascend, that descend, rows
    const auto upload = [&](const CudaTables::SlotNow& on) {
      fill(kind == 0, 1000 * (kind + 1));
      const uint32_t count = kind == 2 ? kRows : kEntries;
      if (kind == 2) {
        tables_->Write(on, id, {0, count, kColumns, rows.data()});
      } else {
        tables_->Update(on, id, count, deltas.data());
      }
    };
    for (int i = 0; i < 5; ++i) {
      try {
        upload(none);
        ADD_FAILURE() << "uploaded nowhere";
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), KVC_STALE_HANDLE);
      }
      tables_->Poll();
    }
    upload(late);
    SubmitAndSettle();
    const ContextScope scope(*context_);
    std::vector<int32_t> held(kEntries);
    KVCAST_CUDA(context_->api(), copy_to_host, held.data(), address, 4 * kEntries, nullptr);
    fakecuda_settle();
    for (uint32_t i = 0; i < kEntries; ++i) {
      ASSERT_EQ(held[i], 1000 * (kind + 1) + static_cast<int32_t>(i)) << kind;
    }
  }
  EXPECT_NO_THROW(tables_->Close(id));
}

TEST_F(CudaTable, AnUploadIsQueuedOnce) {
  fakecuda_clear_log();
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  Update();
  EXPECT_EQ(table_->Submit(), 1u) << "when its staging is free again";
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(fakecuda_calls("cuLaunchKernel"), 1u);
  Settle();
  EXPECT_NO_THROW(tables_->Close(id_));
}

// What a capture has refused has not been queued: it is when the capture has ended.
TEST_F(CudaTable, AnUploadThatACaptureRefusesIsMadeAfterIt) {
  Update(7);
  fakecuda_inject("cuLaunchKernel", 1, kErrorStreamCaptureUnsupported);
  EXPECT_EQ(table_->Submit(), 1u);
  Settle();
  EXPECT_EQ(First(), -1);
  SubmitAndSettle();
  EXPECT_EQ(First(), 7);
  EXPECT_NO_THROW(tables_->Close(id_));
}

// Nor what is refused on a stream of the caller's, as if that were none.
TEST_F(CudaTable, AnUploadThatTheDriverDoesNotTakeIsMadeLater) {
  void* const theirs = fakecuda_context_create(0);
  void* const callers = fakecuda_stream_create(theirs, 0);
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
    EventPool events(context);
    const KernelImage kernels(context);
    StreamTable streams(context, events);
    CudaTables tables(context, events, kernels, streams);
    const uint32_t slot = streams.Adopt(static_cast<StreamHandle>(callers));
    uint64_t address = 0;
    const uint64_t id = tables.Open(2, 8, -1, 4, &address);
    const kvc_table_delta delta{0, 0, 1};
    for (int i = 0; i < 3; ++i) {
      fakecuda_inject_many("cuLaunchKernel", 1, 3, kErrorInvalidHandle);
      EXPECT_NO_THROW(tables.Update([&] { return slot; }, id, 1, &delta)) << i;
      EXPECT_EQ(streams.Submit(), 1u) << "nobody knows yet that it is none any more";
      fakecuda_inject(nullptr, 0, 0);
      EXPECT_EQ(streams.Submit(), 0u);
      fakecuda_settle();
      tables.Poll();
    }
    EXPECT_NO_THROW(tables.Close(id));
  }
  fakecuda_context_destroy(theirs);
}

// Somebody asks too early, and nobody uploads in between: the next who asks finds it.
TEST_F(CudaTable, StagingThatIsNotBackYetIsAskedForAgain) {
  fakecuda_hold(1);
  Write(2, 3);
  Write(2, 4);
  Write(2, 5);
  Write(2, 6);
  EXPECT_EQ(table_->Submit(), 0u);
  tables_->Poll();
  EXPECT_THROW(Write(1, 7), Error) << "all of it is in use";
  tables_->Poll();
  fakecuda_hold(0);
  Settle();
  EXPECT_NO_THROW(Write(2, 8)) << "it is back, at the first try";
  SubmitAndSettle();
  EXPECT_EQ(First(), 8);
  fakecuda_clear_log();
  tables_->Poll();
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing is staged";
  EXPECT_NO_THROW(tables_->Close(id_));
}

// An upload that begins when somebody has just asked for all of them is asked for by the next.
TEST_F(CudaTable, StagingThatIsTakenWhileSomebodyAsksIsAskedForToo) {
  fakecuda_hold(1);
  Write(2, 3);
  EXPECT_EQ(table_->Submit(), 0u);
  fakecuda_hold(0);
  fakecuda_settle();
  fakecuda_stall("cuEventQuery", 1);
  std::thread asking([&] { tables_->Poll(); });
  Until([] { return fakecuda_stalled() != 0; });
  for (int32_t i = 0; i < 3; ++i) Write(2, i);
  EXPECT_EQ(table_->Submit(), 0u);
  fakecuda_let_go();
  asking.join();
  Settle();
  for (int32_t i = 0; i < 4; ++i) EXPECT_NO_THROW(Write(2, 10 + i)) << i;
  SubmitAndSettle();
  EXPECT_EQ(First(), 13);
  EXPECT_NO_THROW(tables_->Close(id_));
}

TEST_F(CudaTable, ATableWithUploadsUnderWayStays) {
  fakecuda_hold(1);
  Update();
  (void)table_->Submit();
  for (int i = 0; i < 2; ++i) {
    try {
      tables_->Close(id_);
      fakecuda_hold(0);
      FAIL() << "closed";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_BUSY);
    }
    Update();  // it is open still
    (void)table_->Submit();
  }
  fakecuda_hold(0);
  fakecuda_settle();
  EXPECT_NO_THROW(tables_->Close(id_));
}

// A caller destroys its stream before anybody could be told of an upload's end there. The
// table is used on another stream, and can be destroyed, without anybody's meeting that one.
TEST_F(CudaCallers, AStreamThatIsNoneAnyMoreTakesItsStagingAlong) {
  config_.capacity_blocks = 4;
  Make();
  uint64_t streams[2] = {};
  uint64_t table = 0;
  uint64_t address = 0;
  streams[0] = stream_;
  ASSERT_EQ(kvc_device_stream_create(manager_, &streams[1], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 16, &table, &address, &error_), KVC_OK);
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  const kvc_table_delta lost{0, 0, 7};
  ASSERT_EQ(kvc_device_table_update(manager_, table, streams[0], 1, &lost, &error_), KVC_OK);
  ASSERT_EQ(fakecuda_injected(), 1);
  fakecuda_stream_destroy(callers_);
  fakecuda_hold(1);
  // 64 bytes of staging, of which 16 are lost.
  kvc_table_delta others{1, 0, 0};
  const auto update = [&] {
    ++others.value;
    return kvc_device_table_update(manager_, table, streams[1], 1, &others, &error_);
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(update(), KVC_OK) << error_.message;
  EXPECT_EQ(update(), KVC_NOT_NOW);
  fakecuda_hold(0);
  for (int i = 0; i < 30; ++i) {
    fakecuda_settle();
    EXPECT_EQ(update(), KVC_OK) << error_.message;
  }
  fakecuda_settle();
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs_));
    const std::vector<uint8_t> bytes = Download(context, address, 2 * 8 * sizeof(int32_t));
    EXPECT_EQ(bytes[0], 7) << "what was staged";
    EXPECT_EQ(bytes[8 * sizeof(int32_t)], others.value);
  }
  // Its memory is not given to another table: who knows what is still to come.
  EXPECT_EQ(kvc_device_table_destroy(manager_, table, &error_), KVC_OK) << error_.message;
  uint64_t next = 0;
  uint64_t elsewhere = 0;
  ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 16, &next, &elsewhere, &error_), KVC_OK);
  EXPECT_NE(elsewhere, address);
  EXPECT_EQ(kvc_device_table_destroy(manager_, next, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 16, &next, &elsewhere, &error_), KVC_OK);
  EXPECT_NE(elsewhere, address);
  // Not even when the driver has no other: what is free goes, and that stays.
  EXPECT_EQ(kvc_device_table_destroy(manager_, next, &error_), KVC_OK);
  const uint64_t allocations_before = fakecuda_live_objects().allocations;
  fakecuda_inject("cuMemAlloc", 1, kErrorOutOfMemory);
  ASSERT_EQ(kvc_device_table_create(manager_, 64, 64, -1, 16, &next, &elsewhere, &error_), KVC_OK);
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, allocations_before) << "one for the free one";
  Destroy();
}

// What is owed when everything goes may still have to run: only then is the device waited for.
TEST_F(CudaTable, WhatNobodyCanWaitForHasRunBeforeItsMemoryGoes) {
  void* const theirs = fakecuda_context_create(0);
  void* const callers = fakecuda_stream_create(theirs, 0);
  for (const bool owed : {false, true}) {
    {
      const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
      EventPool events(context);
      const KernelImage kernels(context);
      StreamTable streams(context, events);
      CudaTables tables(context, events, kernels, streams);
      const uint32_t slot = streams.Adopt(static_cast<StreamHandle>(callers));
      uint64_t address = 0;
      const uint64_t id = tables.Open(2, 8, -1, 64, &address);
      const kvc_table_delta delta{0, 0, 1};
      fakecuda_gate(callers);
      if (owed) fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
      tables.Update([&] { return slot; }, id, 1, &delta);
      EXPECT_EQ(streams.Submit(), owed ? 1u : 0u);
      fakecuda_inject(nullptr, 0, 0);
      fakecuda_open_gate(callers);
      if (!owed) fakecuda_settle();
      fakecuda_clear_log();
    }
    EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), owed ? 1u : 0u);
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
  }
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
