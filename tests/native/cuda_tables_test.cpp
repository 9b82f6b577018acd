// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Tables in a GPU's memory, and the pinned ring from which their uploads are staged: what
// comes back, when, and what never does.

#include "tests/native/failing_allocator.h"  // first: it replaces operator new

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/src/cuda_tables.h"
#include "cuda/src/pinned_ring.h"
#include "kvcast/kvcast.h"
#include "tests/native/cuda_streams.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

using CudaTable = CudaStreams;

CudaTables::SlotNow On(uint32_t slot) {
  return [slot] { return slot; };
}

// For every n the n-th allocation of an upload fails: its staging comes back.
TEST_F(CudaTable, AnUploadWithoutHostMemoryKeepsNoStaging) {
  Open();
  const KernelImage kernels(*context_);
  {
    CudaTables tables(*context_, *events_, kernels, *table_);
    const uint32_t slot = table_->Open();
    uint64_t address = 0;
    const uint64_t id = tables.Open(2, 8, -1, 64, &address);
    const std::vector<int32_t> row(8, 1);
    const TableRows rows{0, 1, 8, row.data()};
    int failed = 0;
    for (uint64_t n = 0;; ++n) {
      ASSERT_LT(n, 50u);
      bool bad = false;
      allocations = 0;
      fail_at = n;
      counting = true;
      try {
        tables.Write(On(slot), id, rows);
      } catch (const std::bad_alloc&) {
        bad = true;
      }
      counting = false;
      (void)table_->Submit();
      fakecuda_settle();
      tables.Poll();
      failed += bad ? 1 : 0;
      if (allocations <= n) break;
    }
    fail_at = UINT64_MAX;
    EXPECT_GT(failed, 1);
    for (int i = 0; i < 60; ++i) {
      EXPECT_NO_THROW(tables.Write(On(slot), id, rows)) << i;
      (void)table_->Submit();
      fakecuda_settle();
      tables.Poll();
    }
    EXPECT_NO_THROW(tables.Close(id));
  }
}

// The manager's lock, which the stream is looked up under, is not held while entries are
// copied and sorted.
TEST_F(CudaTable, AnUploadIsStagedBeforeItsStreamIsAskedFor) {
  Open();
  const KernelImage kernels(*context_);
  {
    CudaTables tables(*context_, *events_, kernels, *table_);
    const uint32_t slot = table_->Open();
    uint64_t address = 0;
    constexpr uint32_t kRows = 8;
    constexpr uint32_t kColumns = 16;
    constexpr uint32_t kEntries = kRows * kColumns;
    const uint64_t id = tables.Open(kRows, kColumns, -1, 3 * kEntries, &address);
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
      return slot;
    };
    const CudaTables::SlotNow none = []() -> uint32_t {
      throw Error(KVC_STALE_HANDLE, "there is no such stream");
    };
    for (int kind = 0; kind < 3; ++kind) {  // triples that ascend, that descend, rows
      const auto upload = [&](const CudaTables::SlotNow& on) {
        fill(kind == 0, 1000 * (kind + 1));
        const uint32_t count = kind == 2 ? kRows : kEntries;
        if (kind == 2) {
          tables.Write(on, id, {0, count, kColumns, rows.data()});
        } else {
          tables.Update(on, id, count, deltas.data());
        }
      };
      for (int i = 0; i < 5; ++i) {
        try {
          upload(none);
          ADD_FAILURE() << "uploaded nowhere";
        } catch (const Error& error) {
          EXPECT_EQ(error.status(), KVC_STALE_HANDLE);
        }
        tables.Poll();
      }
      upload(late);
      EXPECT_EQ(table_->Submit(), 0u);
      fakecuda_settle();
      tables.Poll();
      const ContextScope scope(*context_);
      std::vector<int32_t> held(kEntries);
      KVCAST_CUDA(context_->api(), copy_to_host, held.data(), address, 4 * kEntries, nullptr);
      fakecuda_settle();
      for (uint32_t i = 0; i < kEntries; ++i) {
        ASSERT_EQ(held[i], 1000 * (kind + 1) + static_cast<int32_t>(i)) << kind;
      }
    }
    EXPECT_NO_THROW(tables.Close(id));
  }
}

TEST_F(CudaTable, TheRingKeepsWhatNoEventStandsBehind) {
  Open();
  PinnedRing ring(*context_, *events_, 256);
  const ContextScope scope(*context_);
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
  const PinnedRing::Space space = ring.Take(256);
  ASSERT_NE(space.host, nullptr);
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  EXPECT_FALSE(ring.ReleaseAfter(space, stream));
  EXPECT_FALSE(ring.Settle(stream));
  ring.Poll();
  EXPECT_EQ(ring.Take(16).host, nullptr) << "its work may not have run";
  fakecuda_inject(nullptr, 0, 0);
  EXPECT_TRUE(ring.Settle(stream));
  KVCAST_CUDA(context_->api(), stream_synchronize, stream);
  EXPECT_NE(ring.Take(256).host, nullptr);
  KVCAST_CUDA(context_->api(), stream_destroy, stream);
}

TEST_F(CudaTable, TheRingNeverGivesOutWhatIsInUse) {
  Open();
  PinnedRing ring(*context_, *events_, 4096);
  const ContextScope scope(*context_);
  const DriverApi& api = context_->api();
  StreamHandle stream = nullptr;
  KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
  DevicePtr memory = 0;
  KVCAST_CUDA(api, memory_alloc, &memory, size_t{4096});
  std::mt19937_64 random(TestSeed());
  int full = 0;
  std::vector<std::vector<uint8_t>> expected;
  for (int round = 0; round < 400; ++round) {
    const uint64_t bytes = 1 + random() % 1500;
    const PinnedRing::Space space = ring.Take(bytes);
    if (space.host == nullptr) {
      ++full;
      KVCAST_CUDA(api, stream_synchronize, stream);
      continue;
    }
    EXPECT_EQ(reinterpret_cast<uint64_t>(space.host) % 16, 0u);
    // Bytes that are overwritten before the copy has read them would show.
    std::vector<uint8_t> bytes_in(bytes, static_cast<uint8_t>(round));
    std::copy(bytes_in.begin(), bytes_in.end(), static_cast<uint8_t*>(space.host));
    if (round % 7 == 0) {
      ring.Release(space);
      continue;
    }
    KVCAST_CUDA(api, copy_to_device, memory, space.host, bytes, stream);
    ring.ReleaseAfter(space, stream);
    if (round % 5 == 0) {
      std::vector<uint8_t> out(bytes);
      KVCAST_CUDA(api, copy_to_host, out.data(), memory, bytes, stream);
      ASSERT_EQ(out, bytes_in) << "round " << round;
    }
    EXPECT_LE(ring.in_flight(), ring.size());
  }
  EXPECT_GT(full, 10);
  EXPECT_EQ(ring.Take(4097).host, nullptr) << "more than it has";
  KVCAST_CUDA(api, stream_synchronize, stream);
  KVCAST_CUDA(api, stream_destroy, stream);
  KVCAST_CUDA(api, memory_free, memory);
}

TEST_F(CudaTable, AnUploadIsQueuedOnce) {
  Open();
  const KernelImage kernels(*context_);
  CudaTables tables(*context_, *events_, kernels, *table_);
  const uint32_t slot = table_->Open();
  uint64_t address = 0;
  const uint64_t id = tables.Open(2, 8, -1, 64, &address);
  const kvc_table_delta delta{0, 0, 1};
  fakecuda_clear_log();
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  tables.Update(On(slot), id, 1, &delta);
  EXPECT_EQ(table_->Submit(), 1u) << "when its staging is free again";
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(fakecuda_calls("cuLaunchKernel"), 1u);
  fakecuda_settle();
  tables.Poll();
  EXPECT_NO_THROW(tables.Close(id));
}

TEST_F(CudaTable, ATableWithUploadsUnderWayStays) {
  Open();
  const KernelImage kernels(*context_);
  CudaTables tables(*context_, *events_, kernels, *table_);
  const uint32_t slot = table_->Open();
  uint64_t address = 0;
  const uint64_t id = tables.Open(2, 8, -1, 64, &address);
  const kvc_table_delta delta{0, 0, 1};
  fakecuda_hold(1);
  tables.Update(On(slot), id, 1, &delta);
  (void)table_->Submit();
  for (int i = 0; i < 2; ++i) {
    try {
      tables.Close(id);
      fakecuda_hold(0);
      FAIL() << "closed";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_BUSY);
    }
    tables.Update(On(slot), id, 1, &delta);  // it is open still
    (void)table_->Submit();
  }
  fakecuda_hold(0);
  fakecuda_settle();
  EXPECT_NO_THROW(tables.Close(id));
}

// All that shares an event with what went into a graph may have gone there as well.
TEST_F(CudaTable, TheRingGoesOnWithoutWhatIsInAGraph) {
  Open();
  PinnedRing ring(*context_, *events_, 80);
  const ContextScope scope(*context_);
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
  const PinnedRing::Space before = ring.Take(16);
  const PinnedRing::Space first = ring.Take(16);
  const PinnedRing::Space second = ring.Take(16);
  EXPECT_TRUE(ring.ReleaseAfter(before, stream));
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  EXPECT_FALSE(ring.ReleaseAfter(first, stream));
  fakecuda_stream_capture(stream, 1);
  EXPECT_TRUE(ring.ReleaseAfter(second, stream)) << "the driver says so";
  fakecuda_stream_capture(stream, 0);
  const PinnedRing::Space behind = ring.Take(16);
  EXPECT_TRUE(ring.ReleaseAfter(behind, stream));
  KVCAST_CUDA(context_->api(), stream_synchronize, stream);
  ring.Poll();
  EXPECT_EQ(ring.in_flight(), 0u);
  EXPECT_TRUE(ring.has_lost());
  EXPECT_EQ(events_->in_use(), 0u);
  // Of 80 bytes there are those of `before`, and all behind `second`.
  const auto* const base = static_cast<const std::byte*>(before.host);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(ring.Take(33).host, nullptr) << "in one piece";
    const PinnedRing::Space wide = ring.Take(32);
    EXPECT_EQ(wide.host, base + 48);
    const PinnedRing::Space narrow = ring.Take(16);
    EXPECT_EQ(narrow.host, base) << "behind the ring's end";
    EXPECT_EQ(ring.Take(1).host, nullptr);
    ring.Release(wide);
    ring.Release(narrow);
    ring.Poll();
  }
  KVCAST_CUDA(context_->api(), stream_destroy, stream);
}

// A caller destroys its stream before anybody could be told of an upload's end there. The
// table is used on another stream, and can be destroyed, without anybody's meeting that one.
TEST_F(CudaTable, AStreamThatIsNoneAnyMoreTakesItsStagingAlong) {
  kvc_error error{};
  ASSERT_EQ(kvc_cuda_open(nullptr, &error), KVC_OK) << error.message;
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  testing::OwnedManager manager;
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.flags = KVC_CONFIG_CALLERS_CONTEXT;
  config.capacity_blocks = 4;
  config.page_bytes = 1024;
  config.copies = KVC_COPY_PUBLISHED;
  ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error), KVC_OK) << error.message;
  uint64_t streams[2] = {};
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &streams[0], &error), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager, &streams[1], &error), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 16, &table, &address, &error), KVC_OK);
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  const kvc_table_delta lost{0, 0, 7};
  ASSERT_EQ(kvc_device_table_update(manager, table, streams[0], 1, &lost, &error), KVC_OK);
  ASSERT_EQ(fakecuda_injected(), 1);
  fakecuda_stream_destroy(callers);
  fakecuda_hold(1);
  // 64 bytes of staging, of which 16 are lost.
  kvc_table_delta others{1, 0, 0};
  const auto update = [&] {
    ++others.value;
    return kvc_device_table_update(manager, table, streams[1], 1, &others, &error);
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(update(), KVC_OK) << error.message;
  EXPECT_EQ(update(), KVC_NOT_NOW);
  fakecuda_hold(0);
  for (int i = 0; i < 30; ++i) {
    fakecuda_settle();
    EXPECT_EQ(update(), KVC_OK) << error.message;
  }
  fakecuda_settle();
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
    const std::vector<uint8_t> bytes = Download(context, address, 2 * 8 * sizeof(int32_t));
    EXPECT_EQ(bytes[0], 7) << "what was staged";
    EXPECT_EQ(bytes[8 * sizeof(int32_t)], others.value);
  }
  // Its memory is not given to another table: who knows what is still to come.
  EXPECT_EQ(kvc_device_table_destroy(manager, table, &error), KVC_OK) << error.message;
  uint64_t next = 0;
  uint64_t elsewhere = 0;
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 16, &next, &elsewhere, &error), KVC_OK);
  EXPECT_NE(elsewhere, address);
  EXPECT_EQ(kvc_device_table_destroy(manager, next, &error), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 16, &next, &elsewhere, &error), KVC_OK);
  EXPECT_NE(elsewhere, address);
  // Not even when the driver has no other: what is free goes, and that stays.
  EXPECT_EQ(kvc_device_table_destroy(manager, next, &error), KVC_OK);
  const uint64_t allocations_before = fakecuda_live_objects().allocations;
  fakecuda_inject("cuMemAlloc", 1, kErrorOutOfMemory);
  ASSERT_EQ(kvc_device_table_create(manager, 64, 64, -1, 16, &next, &elsewhere, &error), KVC_OK);
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, allocations_before) << "one for the free one";
  EXPECT_EQ(kvc_manager_destroy(manager.Take(), &error), KVC_OK);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
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
      tables.Update(On(slot), id, 1, &delta);
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
