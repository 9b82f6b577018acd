// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Memory runs out at every allocation of an attach and of a drain in turn:
// nothing may be lost, and trying again must succeed. And in steady state there
// is no allocation at all.
#include "tests/native/failing_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "native/src/status.h"
#include "tests/native/sink_test_support.h"

namespace {

struct Counting {
  explicit Counting(uint64_t fail = UINT64_MAX) {
    allocations = 0;
    fail_at = fail;
    counting = true;
  }
  ~Counting() { counting = false; }
};

using kvcast::Scope;
using kvcast::SinkOptions;
using kvcast::StoreRun;
using kvcast::testing::Facts;
using kvcast::testing::Harness;

SinkOptions Options(kvc_hash_form form) {
  SinkOptions options;
  options.max_entries = 300;
  options.projector.hash_form = form;
  options.projector.max_blocks_per_event = 20;
  return options;
}

Scope Lora(uint64_t id) {
  Scope scope;
  scope.parts = KVC_SCOPE_LORA_ID | KVC_SCOPE_LORA_NAME;
  scope.lora_id = id;
  scope.lora_name = "an adapter whose name is no short string " + std::to_string(id);
  return scope;
}

TEST(SinkFaults, AttachIsAllOrNothing) {
  uint64_t failures = 0;
  for (uint64_t n = 0;; ++n) {
    kvcast::testing::Arena arena(4, 8);
    kvcast::testing::FakeHost host;
    kvcast::StreamingEventSink sink(Options(KVC_HASH_SIGNED64));
    bool failed = false;
    try {
      const Counting count(n);
      sink.Attach(arena.geometry(), &host);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    kvc_stream_stats stats{};
    sink.GetStats(&stats);
    EXPECT_EQ(stats.attached, failed ? 0u : 1u);
    EXPECT_EQ(stats.buffer_bytes != 0, !failed);
    if (!failed) break;
    ++failures;
    kvc_borrowed_batch batch;
    EXPECT_EQ(sink.Drain(0, 0, &batch), KVC_OK);
    EXPECT_EQ(batch.event_count, 0u);
    sink.Attach(arena.geometry(), &host);
    sink.Detach();
    EXPECT_EQ(host.detaches, 1);
  }
  EXPECT_GE(failures, 5u);
}

TEST(SinkFaults, ADrainThatFailsLosesNothing) {
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_BYTES}) {
    uint64_t failures = 0;
    for (uint64_t n = 0;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      Harness harness(4, 300, Options(form));
      const auto a = harness.Store(StoreRun::kRoot, 70, Lora(1));
      const auto b = harness.Store(StoreRun::kRoot, 30, Lora(2));
      harness.Store(a.back(), 10);
      harness.Remove({b[29], b[28], b[27]});
      harness.Store(b[26], 3);
      harness.Store(StoreRun::kRoot, 5);
      bool failed = false;
      kvc_borrowed_batch batch{};
      try {
        const Counting count(n);
        if (harness.sink().Drain(0, 0, &batch) != KVC_OK) ADD_FAILURE();
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      const bool reached = allocations > n;
      // What came in spite of it is the beginning; the rest comes afterwards.
      if (!failed) harness.Check(batch);
      harness.DrainAll();
      EXPECT_EQ(harness.stats().mirror_blocks, harness.nodes().size());
      EXPECT_EQ(harness.sink().projector()->scope_count(), 3u);
      if (::testing::Test::HasFailure()) return;
      if (!reached) break;
      ++failures;
    }
    EXPECT_GE(failures, 8u);
  }
}

TEST(SinkFaults, ASnapshotIsAllOrNothing) {
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_BYTES}) {
    uint64_t open_failures = 0;
    uint64_t read_failures = 0;
    for (uint64_t n = 0;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      SinkOptions options = Options(form);
      // Some hashes are shared, so that a list of those told of is kept.
      if (form != KVC_HASH_BYTES) options.projector.hash_mask = 0x7f;
      Harness harness(4, 300, options);
      const auto a = harness.Store(StoreRun::kRoot, 70, Lora(1));
      harness.Store(a[20], 30);
      harness.Store(StoreRun::kRoot, 30, Lora(2));
      harness.DrainAll();
      bool failed = false;
      std::unique_ptr<kvcast::Snapshot> snapshot;
      {
        const Counting count(n);
        try {
          EXPECT_EQ(harness.sink().Pin(&snapshot), kvcast::PinResult::kDone);
        } catch (const std::bad_alloc&) {
          failed = true;
        }
      }
      if (failed) {
        ++open_failures;
        // It is as if it had not been tried.
        EXPECT_EQ(snapshot, nullptr);
        ASSERT_EQ(harness.sink().Pin(&snapshot), kvcast::PinResult::kDone);
      }
      // The drain goes on whatever becomes of the snapshot.
      harness.Remove({a[69], a[68]});
      {
        // The arrays have been filled before, so this one needs no memory.
        const Counting count(0);
        kvc_borrowed_batch batch{};
        EXPECT_EQ(harness.sink().Drain(0, 0, &batch), KVC_OK);
        EXPECT_TRUE(form != KVC_HASH_BYTES || batch.hash_count == 2);
        counting = false;
        harness.Check(batch);
      }
      // Reading: what a failed call did not tell, the next one does.
      uint64_t blocks = 0;
      bool reached = false;
      for (uint64_t at = failed ? UINT64_MAX : n;;) {
        kvc_borrowed_batch batch{};
        bool more = false;
        try {
          const Counting count(at);
          more = snapshot->Next(0, 0, &batch);
        } catch (const std::bad_alloc&) {
          ++read_failures;
          reached = true;
          at = UINT64_MAX;
          continue;
        }
        if (allocations > at) reached = true;
        at = UINT64_MAX;
        if (!more) break;
        blocks += Facts(batch).size();
      }
      EXPECT_GT(blocks, 60u);
      EXPECT_EQ(blocks, form == KVC_HASH_BYTES ? 130 : 130 - harness.stats().hash_collisions);
      if (::testing::Test::HasFailure()) return;
      if (!failed && !reached) break;
    }
    EXPECT_GE(open_failures, 5u);
    EXPECT_GE(read_failures, 3u);
  }
}

TEST(SinkFaults, SteadyStateAllocatesNothing) {
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_BYTES}) {
    kvcast::testing::Arena arena(16, 200);
    kvcast::testing::FakeHost host;
    SinkOptions options = Options(form);
    kvcast::StreamingEventSink sink(options);
    sink.Attach(arena.geometry(), &host);
    std::vector<uint32_t> nodes;
    for (uint32_t node = 0; node < 100; ++node) {
      nodes.push_back(node);
      arena.Set(node, std::vector<uint32_t>(16, node));
    }
    const std::vector<uint32_t> going(nodes.rbegin(), nodes.rend());
    std::vector<uint8_t> reasons;
    for (uint32_t i = 0; i < 100; ++i) reasons.push_back(static_cast<uint8_t>(1 + i % 4));
    const Scope scope = Lora(1);
    const uint32_t stays = 150;
    arena.Set(stays, std::vector<uint32_t>(16, stays));
    StoreRun keep;
    keep.scope = &scope;
    keep.nodes = &stays;
    keep.count = 1;
    ASSERT_EQ(sink.Store(keep, false), 1u);
    StoreRun run;
    run.scope = &scope;
    run.nodes = nodes.data();
    run.count = 100;
    for (int round = 0; round < 10; ++round) {
      kvc_borrowed_batch batch;
      uint32_t admitted = 0;
      uint64_t events = 0;
      uint64_t used = 0;
      {
        const Counting count;
        admitted = sink.Store(run, false);
        sink.Remove(going.data(), reasons.data(), 100);
        do {
          if (sink.Drain(3, 0, &batch) != KVC_OK) break;
          events += batch.event_count;
        } while (batch.event_count != 0);
        used = allocations;
      }
      ASSERT_EQ(admitted, 100u);
      EXPECT_GE(events, 6u);
      if (round >= 4) {
        EXPECT_EQ(used, 0u) << "round " << round;
      }
    }
  }
}

}  // namespace
