// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Why removed blocks went: from the record to the batch and the statistics, and
// that it changes nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "sink/src/event_record.h"
#include "tests/native/sink_test_support.h"

namespace kvcast::testing {
namespace {

SinkOptions Options(uint32_t max_entries, kvc_hash_form form = KVC_HASH_SIGNED64) {
  SinkOptions options;
  options.max_entries = max_entries;
  options.projector.hash_form = form;
  return options;
}

std::vector<uint32_t> Reversed(const std::vector<uint32_t>& nodes) {
  return {nodes.rbegin(), nodes.rend()};
}

TEST(SinkReasons, EachRemovedBlockSaysWhyItWent) {
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_PORTABLE63, KVC_HASH_BYTES}) {
    Harness harness(2, 64, Options(64, form));
    const auto a = harness.Store(StoreRun::kRoot, 6);
    harness.DrainAll();
    harness.Remove({a[5], a[4]}, std::vector<uint8_t>{KVC_EVICTED_ENDED, KVC_EVICTED_TTL});
    harness.Remove({a[3]}, KVC_EVICTED_CAPACITY);
    harness.Remove({a[2], a[1], a[0]}, KVC_EVICTED_SCOPE);
    const auto b = harness.Store(StoreRun::kRoot, 2);
    harness.Remove(Reversed(b), KVC_EVICTED_TTL);
    const kvc_borrowed_batch batch = harness.Drain();  // compares each block's reason
    ASSERT_EQ(batch.event_count, 3u) << "one removal, whatever the reasons; a store; a removal";
    EXPECT_EQ(batch.events[0].hash_count, 6u);
    harness.DrainAll();
    const kvc_stream_stats stats = harness.stats();
    EXPECT_EQ(stats.removed_blocks, 8u);
    EXPECT_EQ(stats.removed_capacity_blocks, 1u);
    EXPECT_EQ(stats.removed_ttl_blocks, 3u);
    EXPECT_EQ(stats.removed_ended_blocks, 1u);
    EXPECT_EQ(stats.removed_scope_blocks, 3u);
  }
}

// Two blocks whose wire hash is the same are one outside: it goes when the last
// copy goes, and for the reason of that one.
TEST(SinkReasons, TheLastCopyGivesTheReason) {
  SinkOptions options = Options(64);
  options.projector.hash_mask = 0;
  Harness harness(2, 64, options);
  const auto a = harness.Store(StoreRun::kRoot, 1);
  const auto b = harness.Store(StoreRun::kRoot, 1);
  harness.DrainAll();
  harness.Remove(a, KVC_EVICTED_CAPACITY);
  harness.Remove(b, KVC_EVICTED_SCOPE);
  const kvc_borrowed_batch batch = harness.Drain();
  ASSERT_EQ(batch.hash_count, 1u);
  EXPECT_EQ(batch.reasons[0], KVC_EVICTED_SCOPE);
}

// The room that is kept for removals does not grow by the reasons: of every
// length, wherever the ring ends.
TEST(SinkReasons, MixedReasonsFitTheRoomOfRemovals) {
  for (uint32_t count = 1; count <= 2 * kMaxRunBlocks + 2; ++count) {
    Harness harness(1, count, Options(1));
    std::vector<uint32_t> nodes;
    while (nodes.size() < count) {
      const uint32_t parent = nodes.empty() ? StoreRun::kRoot : nodes.back();
      const auto more = harness.Store(parent, 1);
      ASSERT_EQ(more.size(), 1u);
      nodes.push_back(more[0]);
      harness.DrainAll();
    }
    std::vector<uint8_t> reasons;
    for (uint32_t i = 0; i < count; ++i) reasons.push_back(static_cast<uint8_t>(1 + i % 4));
    harness.Remove(Reversed(nodes), reasons);
    ASSERT_LE(harness.stats().buffer_used_bytes, uint64_t{4} * kRemovalWords * count) << count;
    harness.DrainAll();
    ASSERT_EQ(harness.stats().mirror_blocks, 0u);
  }
}

// What a subscriber gets is the same, event by event and batch by batch.
TEST(SinkReasons, EventsAndBatchesEndWhereTheyDoWithOneReason) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<uint64_t> ends[2];
    for (const bool mixed : {false, true}) {
      std::mt19937_64 random(seed);
      const auto pick = [&random](uint64_t n) { return random() % n; };
      std::mt19937_64 reasons_of(seed + 1000);
      Harness harness(2, 2000, Options(2000));
      std::vector<std::vector<uint32_t>> chains;
      for (int step = 0; step < 120; ++step) {
        const uint64_t what = pick(10);
        if (what < 4) {
          const auto length = static_cast<uint32_t>(1 + pick(pick(4) == 0 ? 300 : 8));
          if (harness.free_nodes() < length) continue;
          const auto chain = harness.Store(StoreRun::kRoot, length);
          if (!chain.empty()) chains.push_back(chain);
        } else if (what < 8) {
          if (chains.empty()) continue;
          std::swap(chains[pick(chains.size())], chains.back());
          std::vector<uint8_t> reasons(chains.back().size(), KVC_EVICTED_CAPACITY);
          if (mixed) {
            for (uint8_t& reason : reasons) reason = static_cast<uint8_t>(1 + reasons_of() % 4);
          }
          harness.Remove(Reversed(chains.back()), reasons);
          chains.pop_back();
        } else {
          const kvc_borrowed_batch batch = harness.Drain(pick(6), pick(2) * pick(400));
          ends[mixed ? 1 : 0].push_back(UINT64_MAX);
          for (uint64_t e = 0; e < batch.event_count; ++e) {
            ends[mixed ? 1 : 0].push_back(batch.events[e].hash_count);
          }
        }
      }
      ends[mixed ? 1 : 0].push_back(harness.stats().buffer_used_bytes == 0 ? 1 : 0);
      harness.DrainAll();
      harness.Store(StoreRun::kRoot, 1);
      harness.Clear();
      harness.DrainAll();
      ends[mixed ? 1 : 0].push_back(harness.stats().superseded_records);
    }
    ASSERT_EQ(ends[0], ends[1]);
  }
}

}  // namespace
}  // namespace kvcast::testing
