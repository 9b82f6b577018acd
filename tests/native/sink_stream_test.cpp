// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The sink from record to batch: what comes out is what went in, in order, cut
// and joined by the rules, and removals always fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/native/sink_test_support.h"

namespace {

using kvcast::Scope;
using kvcast::SinkOptions;
using kvcast::StoreRun;
using kvcast::testing::Facts;
using kvcast::testing::Harness;
using kvcast::testing::Key;

SinkOptions Options(uint32_t max_entries, uint32_t max_blocks_per_event = 65536) {
  SinkOptions options;
  options.max_entries = max_entries;
  options.projector.max_blocks_per_event = max_blocks_per_event;
  return options;
}

Scope LoraScope(uint64_t id, const std::string& name = "") {
  Scope scope;
  scope.parts = KVC_SCOPE_LORA_ID;
  scope.lora_id = id;
  if (!name.empty()) {
    scope.parts |= KVC_SCOPE_LORA_NAME;
    scope.lora_name = name;
  }
  return scope;
}

Scope LongestScope() {
  Scope scope = LoraScope(9, std::string(255, 'n'));
  scope.parts |= KVC_SCOPE_SALT | KVC_SCOPE_SALT_BYTES;
  scope.salt = 77;
  scope.salt_bytes = std::string(255, 's');
  return scope;
}

std::vector<uint64_t> EventSizes(const kvc_borrowed_batch& batch) {
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < batch.event_count; ++i) sizes.push_back(batch.events[i].hash_count);
  return sizes;
}
using Sizes = std::vector<uint64_t>;

TEST(SinkStream, GoldenChain) {
  Harness harness(4, 8, Options(8));
  const uint32_t nodes[2] = {5, 2};
  harness.arena().Set(5, {0, 1, 2, 3});
  harness.arena().Set(2, {4, 5, 6, 7});
  const Scope scope;
  StoreRun run;
  run.scope = &scope;
  run.nodes = nodes;
  run.count = 2;
  ASSERT_EQ(harness.sink().Store(run, false), 2u);
  kvc_borrowed_batch batch;
  ASSERT_EQ(harness.sink().Drain(0, 0, &batch), KVC_OK);
  ASSERT_EQ(batch.event_count, 1u);
  ASSERT_EQ(batch.hash_count, 2u);
  EXPECT_EQ(batch.hashes[0], 8901721255985266736u);
  EXPECT_EQ(batch.hashes[1], 1735720619063549889u);
  EXPECT_EQ(batch.events[0].flags, 0u);
  EXPECT_EQ(batch.events[0].block_size, 4u);
  EXPECT_EQ(batch.digests, nullptr);
  EXPECT_EQ(batch.parent_digests, nullptr);
}

TEST(SinkStream, BeforeAttachThereIsNothing) {
  kvcast::StreamingEventSink sink(Options(4));
  kvc_borrowed_batch batch;
  EXPECT_EQ(sink.Drain(0, 0, &batch), KVC_OK);
  EXPECT_EQ(batch.event_count, 0u);
  kvc_stream_stats stats{};
  sink.GetStats(&stats);
  EXPECT_EQ(stats.attached, 0u);
  EXPECT_EQ(stats.buffer_bytes, 0u);
}

TEST(SinkStream, RunsLongerThanARecordJoinAgain) {
  Harness harness(2, 2000, Options(2000));
  ASSERT_EQ(harness.Store(StoreRun::kRoot, 1000).size(), 1000u);
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{1000}));
  harness.DrainAll();
}

TEST(SinkStream, CoalescingFollowsTheParentOnly) {
  Harness harness(2, 64, Options(64));
  const auto a = harness.Store(StoreRun::kRoot, 3);
  const auto b = harness.Store(a.back(), 2);  // continues
  harness.Store(a[1], 1);                     // a branch: its parent is not the last block
  const auto c = harness.Store(StoreRun::kRoot, 1, LoraScope(3));
  harness.Store(c.back(), 1);         // continues under the adapter
  harness.Store(b.back(), 1);         // back to the first chain: a new event
  harness.Store(StoreRun::kRoot, 1);  // a second root block never joins
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{5, 1, 2, 1, 1}));
  harness.DrainAll();
}

TEST(SinkStream, RemovalsJoinAndNothingCrossesAnotherEvent) {
  Harness harness(2, 64, Options(64));
  const auto a = harness.Store(StoreRun::kRoot, 4);
  const auto b = harness.Store(StoreRun::kRoot, 2);
  harness.Remove({a[3], a[2]});
  harness.Remove({b[1]});
  harness.Store(a[1], 1);  // its parent is no longer the end of the last store
  harness.Remove({b[0]});
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{4, 2, 3, 1, 1}));
  harness.DrainAll();
}

TEST(SinkStream, StoreAfterADrainHangsOnTheLastHash) {
  Harness harness(2, 64, Options(64));
  const auto a = harness.Store(StoreRun::kRoot, 2);
  harness.Drain();
  harness.Store(a.back(), 1);
  const kvc_borrowed_batch batch = harness.Drain();
  ASSERT_EQ(batch.event_count, 1u);
  EXPECT_EQ(batch.events[0].flags, uint32_t{KVC_EVENT_HAS_PARENT});
  harness.DrainAll();
}

TEST(SinkStream, AnIdComesBackAsAnotherBlockInOneDrain) {
  Harness harness(2, 4, Options(100));
  for (int i = 0; i < 12; ++i) {
    const auto a = harness.Store(StoreRun::kRoot, 2);
    const auto b = harness.Store(a.back(), 2);
    harness.Remove({b[1], b[0], a[1], a[0]});
    const auto c = harness.Store(StoreRun::kRoot, 1);
    harness.Remove({c[0]});
  }
  harness.DrainAll();
  EXPECT_EQ(harness.stats().mirror_blocks, 0u);
}

TEST(SinkStream, EventsAreCutAtTheLimitWhereverRecordsEnd) {
  Harness harness(2, 1000, Options(1000, 100));
  const auto a = harness.Store(StoreRun::kRoot, 300);
  const auto b = harness.Store(a.back(), 30);
  harness.Store(b.back(), 80);
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{100, 100, 100, 100, 10}));
  harness.DrainAll();
}

TEST(SinkStream, OneBlockPerEvent) {
  Harness harness(2, 600, Options(600, 1));
  harness.Store(StoreRun::kRoot, 300);
  const kvc_borrowed_batch batch = harness.Drain(7, 0);
  EXPECT_EQ(batch.event_count, 7u);
  EXPECT_EQ(harness.Drain(0, 5).event_count, 5u);
  EXPECT_EQ(harness.Drain().event_count, 288u);
  harness.DrainAll();
}

TEST(SinkStream, BatchLimits) {
  Harness harness(2, 1000, Options(1000));
  for (int i = 0; i < 5; ++i) harness.Store(StoreRun::kRoot, 10);
  EXPECT_EQ(EventSizes(harness.Drain(2, 0)), (Sizes{10, 10}));
  EXPECT_EQ(EventSizes(harness.Drain(0, 25)), (Sizes{10, 10}));
  // One larger event comes alone and whole.
  EXPECT_EQ(EventSizes(harness.Drain(0, 4)), (Sizes{10}));
  EXPECT_EQ(harness.Drain().event_count, 0u);
  // Another event may still be joined when the number of events is reached.
  const auto a = harness.Store(StoreRun::kRoot, 3);
  harness.Store(a.back(), 3);
  harness.Store(StoreRun::kRoot, 1);
  EXPECT_EQ(EventSizes(harness.Drain(1, 0)), (Sizes{6}));
  EXPECT_EQ(EventSizes(harness.Drain(1, 0)), (Sizes{1}));
  // But not past the number of blocks.
  const auto b = harness.Store(StoreRun::kRoot, 3);
  harness.Store(b.back(), 3);
  EXPECT_EQ(EventSizes(harness.Drain(0, 5)), (Sizes{3}));
  const kvc_borrowed_batch rest = harness.Drain(0, 5);
  EXPECT_EQ(EventSizes(rest), (Sizes{3}));
  EXPECT_EQ(rest.events[0].flags, uint32_t{KVC_EVENT_HAS_PARENT});
  EXPECT_EQ(rest.remaining_bytes, 0u);
  harness.DrainAll();
}

TEST(SinkStream, RemainingBytesAreThoseOfTheRing) {
  Harness harness(2, 100, Options(100));
  harness.Store(StoreRun::kRoot, 3);
  harness.Store(StoreRun::kRoot, 1);
  EXPECT_EQ(harness.stats().buffer_used_bytes, 4u * ((2 + 3 * 3) + (2 + 3)));
  EXPECT_EQ(harness.Drain(1, 0).remaining_bytes, 4u * (2 + 3));
  EXPECT_EQ(harness.Drain(1, 0).remaining_bytes, 0u);
}

TEST(SinkStream, ClearIsAloneAndSupersedes) {
  Harness harness(2, 64, Options(64));
  const auto a = harness.Store(StoreRun::kRoot, 4);
  harness.Drain();
  harness.Remove({a[3]});
  harness.Store(StoreRun::kRoot, 5, LoraScope(1));
  harness.Clear();
  harness.Store(StoreRun::kRoot, 2);
  const kvc_borrowed_batch first = harness.Drain();
  ASSERT_EQ(first.event_count, 1u);
  EXPECT_EQ(first.events[0].kind, uint32_t{KVC_EVENT_CLEARED});
  EXPECT_EQ(harness.stats().mirror_blocks, 0u);
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{2}));
  harness.DrainAll();
  const kvc_stream_stats stats = harness.stats();
  EXPECT_EQ(stats.superseded_records, 2u);  // the removal and one store
  EXPECT_EQ(stats.clears, 1u);
  EXPECT_EQ(stats.cleared_blocks, 8u);
  EXPECT_EQ(stats.announced_blocks, 2u);
  EXPECT_EQ(stats.mirror_blocks, 2u);
  EXPECT_EQ(stats.announced_blocks,
            stats.stored_blocks - stats.removed_blocks - stats.cleared_blocks);
}

TEST(SinkStream, ClearIsRecordedOncePerStores) {
  Harness harness(2, 64, Options(64));
  harness.Clear();
  EXPECT_EQ(harness.stats().clears, 0u);
  const auto a = harness.Store(StoreRun::kRoot, 1);
  harness.Remove(a);
  harness.Clear();
  harness.Clear();
  EXPECT_EQ(harness.stats().clears, 1u);
  harness.Store(StoreRun::kRoot, 1);
  harness.Clear();
  EXPECT_EQ(harness.stats().clears, 2u);
  harness.DrainAll();
  // store, removal, clear and store were passed over.
  EXPECT_EQ(harness.stats().superseded_records, 4u);
  EXPECT_EQ(harness.stats().drained_batches, 1u);
}

TEST(SinkStream, ClearWhileARecordIsHalfHandedOut) {
  Harness harness(2, 600, Options(600, 10));
  harness.Store(StoreRun::kRoot, 100);
  EXPECT_EQ(harness.Drain(3, 0).event_count, 3u);
  harness.Store(StoreRun::kRoot, 100, LoraScope(5));
  harness.Clear();
  harness.Store(StoreRun::kRoot, 7, LoraScope(5));
  harness.DrainAll();
  EXPECT_EQ(harness.stats().superseded_records, 2u);
  EXPECT_EQ(harness.stats().mirror_blocks, 7u);
  EXPECT_EQ(harness.sink().projector()->scope_count(), 1u);
}

TEST(SinkStream, SkippedBlocksGiveTheirEntriesBack) {
  Harness harness(2, 64, Options(8));
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(harness.Store(StoreRun::kRoot, 6).size(), 6u) << "round " << i;
    harness.Clear();
    harness.DrainAll();
  }
}

TEST(SinkStream, ScopesAreToldApartAndSaltsStayInside) {
  Harness harness(2, 64, Options(64));
  Scope salted = LoraScope(4, "adapter");
  salted.parts |= KVC_SCOPE_SALT | KVC_SCOPE_SALT_BYTES;
  salted.salt = 123;
  salted.salt_bytes = "secret";
  harness.Store(StoreRun::kRoot, 2, LoraScope(4, "adapter"));
  harness.Store(StoreRun::kRoot, 2, salted);
  harness.Store(StoreRun::kRoot, 2, LoraScope(4));
  harness.Store(StoreRun::kRoot, 2);
  harness.Store(StoreRun::kRoot, 1, LoraScope(4, "adapter"));
  const kvc_borrowed_batch batch = harness.Drain();
  EXPECT_EQ(batch.event_count, 5u);
  EXPECT_EQ(batch.scope_count, 4u);  // each scope once
  EXPECT_EQ(std::string(batch.strings, batch.string_size), "adapteradapter");
  EXPECT_EQ(harness.sink().projector()->scope_count(), 4u);
  harness.DrainAll();
}

TEST(SinkStream, ScopesGoWithTheirLastBlock) {
  Harness harness(2, 64, Options(64));
  for (uint64_t id = 0; id < 200; ++id) {
    const auto a = harness.Store(StoreRun::kRoot, 2, LoraScope(id, "a" + std::to_string(id)));
    if (id % 3 == 0) harness.DrainAll();
    harness.Remove({a[1], a[0]});
    if (id % 7 == 0) harness.DrainAll();
  }
  harness.DrainAll();
  EXPECT_EQ(harness.sink().projector()->scope_count(), 0u);
}

TEST(SinkStream, EqualKeysOfTwoScopesAreOneBlockOutside) {
  // A LoRA name stands in for the id, so these scopes have one root key but
  // are two trees.
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_BYTES}) {
    SinkOptions options = Options(64);
    options.projector.hash_form = form;
    kvcast::testing::Arena arena(2, 8);
    for (uint32_t node = 0; node < 4; ++node) arena.Set(node, {node % 2, 7});
    kvcast::StreamingEventSink sink(options);
    kvcast::testing::FakeHost host;
    sink.Attach(arena.geometry(), &host);
    const Scope scopes[2] = {LoraScope(1, "same"), LoraScope(2, "same")};
    const uint32_t nodes[2][2] = {{0, 1}, {2, 3}};
    for (int i = 0; i < 2; ++i) {
      StoreRun run;
      run.scope = &scopes[i];
      run.nodes = nodes[i];
      run.count = 2;
      ASSERT_EQ(sink.Store(run, false), 2u);
    }
    kvc_borrowed_batch batch;
    ASSERT_EQ(sink.Drain(0, 0, &batch), KVC_OK);
    EXPECT_EQ(batch.hash_count, 2u);
    const uint32_t first[2] = {1, 0};
    const uint8_t reasons[2] = {KVC_EVICTED_CAPACITY, KVC_EVICTED_CAPACITY};
    sink.Remove(first, reasons, 2);
    ASSERT_EQ(sink.Drain(0, 0, &batch), KVC_OK);
    EXPECT_EQ(batch.hash_count, 0u) << "the other copy is still there";
    const uint32_t second[2] = {3, 2};
    sink.Remove(second, reasons, 2);
    ASSERT_EQ(sink.Drain(0, 0, &batch), KVC_OK);
    EXPECT_EQ(batch.hash_count, 2u);
    kvc_stream_stats stats{};
    sink.GetStats(&stats);
    EXPECT_EQ(stats.hash_collisions, 2u);
  }
}

TEST(SinkStream, WholeDigests) {
  SinkOptions options = Options(64, 3);
  options.projector.hash_form = KVC_HASH_BYTES;
  Harness harness(4, 16, options);
  const auto a = harness.Store(StoreRun::kRoot, 5);
  harness.Remove({a[4]});
  std::vector<Key> keys;
  for (int i = 0; i < 4; ++i) keys.push_back(harness.nodes().at(a[static_cast<size_t>(i)]).key);
  const kvc_borrowed_batch batch = harness.Drain();
  ASSERT_EQ(EventSizes(batch), (Sizes{3, 2, 1}));
  ASSERT_NE(batch.digests, nullptr);
  ASSERT_NE(batch.parent_digests, nullptr);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::memcmp(batch.digests + i * 32, keys[i].data(), 32), 0) << i;
  }
  EXPECT_EQ(std::memcmp(batch.digests + 4 * 32, batch.digests + 5 * 32, 32), 0);
  const std::vector<uint8_t> zero(32);
  EXPECT_EQ(std::memcmp(batch.parent_digests, zero.data(), 32), 0);
  EXPECT_EQ(std::memcmp(batch.parent_digests + 32, keys[2].data(), 32), 0);
  EXPECT_EQ(std::memcmp(batch.parent_digests + 64, zero.data(), 32), 0);
}

TEST(SinkStream, TinyRingTakesOneBlockOfTheLongestScope) {
  for (uint32_t entries = 1; entries <= 8; ++entries) {
    for (const uint32_t tokens_per_block : {1u, 2u, 16u, 128u}) {
      Harness harness(tokens_per_block, 32, Options(entries));
      // Full of announced blocks, all of them drained: the rooms of their
      // removals must not be in the way.
      uint32_t parent = StoreRun::kRoot;
      while (harness.free_nodes() != 0) {
        const auto a = harness.Store(parent, 1, LongestScope());
        ASSERT_EQ(a.size(), 1u) << entries << " entries";
        parent = a[0];
        harness.DrainAll();
      }
    }
  }
}

TEST(SinkStream, APrefixIsAdmittedWhenOnlyThatFits) {
  Harness harness(16, 64, Options(8));
  EXPECT_EQ(harness.Store(StoreRun::kRoot, 20).size(), 6u);
  EXPECT_EQ(harness.Store(StoreRun::kRoot, 20).size(), 0u);
  // The last quarter is for healing.
  EXPECT_EQ(harness.Store(StoreRun::kRoot, 20, {}, true).size(), 2u);
  EXPECT_EQ(harness.Store(StoreRun::kRoot, 1, {}, true).size(), 0u);
  harness.DrainAll();
  EXPECT_EQ(harness.Store(StoreRun::kRoot, 20, {}, true).size(), 8u);
  harness.DrainAll();
}

TEST(SinkStream, RandomLoad) {
  // Tiny to roomy, with every mix of operations; what is drained must be what
  // the model says, the room rules must hold after every step, and each store
  // must have been as long as they allow.
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&random](uint64_t n) { return static_cast<uint32_t>(random() % n); };
    const uint32_t entries = std::array<uint32_t, 8>{1, 2, 3, 4, 5, 16, 64, 1000}[pick(8)];
    const uint32_t blocks = std::array<uint32_t, 4>{1, 7, 60, 700}[pick(4)];
    const uint32_t tokens = std::array<uint32_t, 4>{1, 3, 4, 16}[pick(4)];
    SinkOptions options = Options(entries, std::array<uint32_t, 4>{65536, 1, 3, 50}[pick(4)]);
    options.projector.hash_form = static_cast<kvc_hash_form>(pick(4));
    if (options.projector.hash_form != KVC_HASH_BYTES && pick(3) == 0) {
      options.projector.hash_mask = 0x1f;  // collisions all the time
    }
    Harness harness(tokens, blocks, options);
    const uint64_t capacity = harness.sink().capacity_words();
    const uint64_t block_words = 1 + tokens + kvcast::kRemovalWords;
    for (int step = 0; step < 1500; ++step) {
      const uint32_t what = pick(100);
      if (what < 50) {
        uint32_t parent = StoreRun::kRoot;
        if (!harness.nodes().empty() && pick(4) != 0) {
          auto at = harness.nodes().begin();
          std::advance(at, pick(harness.nodes().size()));
          parent = at->first;
        }
        const uint32_t count = 1 + (pick(10) == 0 ? pick(600) : pick(6));
        const bool healing = pick(4) == 0;
        const Scope scope = pick(8) == 0   ? LongestScope()
                            : pick(2) == 0 ? LoraScope(pick(3), pick(2) == 0 ? "n" : "")
                                           : Scope();
        const kvc_stream_stats before = harness.stats();
        const size_t room = harness.free_nodes();
        const auto admitted = harness.Store(parent, count, scope, healing);
        const kvc_stream_stats after = harness.stats();
        ASSERT_EQ(after.stored_blocks, before.stored_blocks + admitted.size());
        if (room == 0) continue;
        if (before.buffer_used_bytes == 0) {
          ASSERT_GE(admitted.size(), 1u) << "an empty ring takes a block";
        }
        const uint64_t heal_entries = entries / 4;
        const uint64_t kept = healing ? 0 : heal_entries * (kvcast::kStoreChildWords + 1 + tokens);
        const uint64_t free = capacity - after.buffer_used_bytes / 4;
        if (!admitted.empty()) {
          ASSERT_GE(free,
                    kvcast::kRemovalWords * after.announced_blocks + kvcast::kClearWords + kept);
        }
        if (admitted.size() < harness.asked()) {
          // One more block, in a record of its own if need be, would not fit.
          const bool new_record = admitted.size() % kvcast::kMaxRunBlocks == 0;
          kvcast::ScopeWords words(scope.view());
          const uint64_t head = !new_record ? 0
                                : admitted.empty() && parent == StoreRun::kRoot
                                    ? 1 + words.count
                                    : kvcast::kStoreChildWords;
          const bool no_room = free < kvcast::kRemovalWords * after.announced_blocks +
                                          kvcast::kClearWords + kept + head + block_words;
          const uint64_t cap = healing ? entries : entries - heal_entries;
          const bool no_entries = harness.sink().waiting_blocks() >= cap;
          ASSERT_TRUE(no_room || no_entries);
        }
      } else if (what < 75) {
        // A leaf, or a whole path from a leaf upwards, children first.
        std::vector<uint32_t> going;
        for (const auto& [id, node] : harness.nodes()) {
          if (node.children == 0 && pick(3) == 0) {
            going.push_back(id);
            break;
          }
        }
        if (going.empty()) continue;
        while (pick(3) != 0) {
          const uint32_t parent = harness.nodes().at(going.back()).parent;
          if (parent == StoreRun::kRoot || harness.nodes().at(parent).children != 1) break;
          going.push_back(parent);
        }
        std::vector<uint8_t> reasons(going.size(), static_cast<uint8_t>(1 + pick(4)));
        if (pick(2) == 0) reasons[pick(going.size())] = static_cast<uint8_t>(1 + pick(4));
        harness.Remove(going, reasons);
      } else if (what < 77) {
        harness.Clear();
      } else {
        harness.Drain(pick(3) == 0 ? 0 : 1 + pick(4), pick(3) == 0 ? 0 : 1 + pick(40));
      }
      const kvc_stream_stats stats = harness.stats();
      ASSERT_EQ(stats.announced_blocks, harness.nodes().size());
      ASSERT_EQ(stats.announced_blocks,
                stats.stored_blocks - stats.removed_blocks - stats.cleared_blocks);
      ASSERT_LE(stats.buffer_used_bytes / 4, capacity);
      ASSERT_LE(harness.sink().waiting_blocks(), entries);
      if (::testing::Test::HasFailure()) FAIL();
    }
    harness.DrainAll();
    const kvc_stream_stats stats = harness.stats();
    EXPECT_EQ(stats.mirror_blocks, harness.nodes().size());
    EXPECT_EQ(stats.buffer_used_bytes, 0u);
    const kvcast::Mirror& mirror = harness.sink().projector()->mirror();
    for (const auto& [id, node] : harness.nodes()) {
      ASSERT_TRUE(mirror.Has(id));
      EXPECT_EQ(std::memcmp(mirror.at(id).key, node.key.data(), 32), 0);
      EXPECT_EQ(mirror.at(id).parent, node.parent);
      EXPECT_EQ(std::memcmp(mirror.Tokens(id), node.tokens.data(), node.tokens.size() * 4), 0);
    }
    if (::testing::Test::HasFailure()) FAIL();
  }
}

TEST(SinkStream, AllRemovalsFitInAFullRing) {
  // The worst case: every block that can exist is announced, the store room is
  // full, and then everything goes, block by block, without a drain.
  Harness harness(4, 100, Options(10));
  std::vector<uint32_t> all;
  while (harness.free_nodes() > 7) {
    const auto a = harness.Store(StoreRun::kRoot, 1);
    all.insert(all.end(), a.begin(), a.end());
    harness.DrainAll();
  }
  for (int i = 0; i < 7; ++i) {
    const auto a = harness.Store(StoreRun::kRoot, 1, LongestScope());
    all.insert(all.end(), a.begin(), a.end());
  }
  EXPECT_GT(all.size(), 93u);
  while (!all.empty()) {
    harness.Remove({all.back()});
    all.pop_back();
    const kvc_stream_stats stats = harness.stats();
    ASSERT_GE(harness.sink().capacity_words() - stats.buffer_used_bytes / 4,
              2 * stats.announced_blocks + kvcast::kClearWords);
  }
  harness.Clear();
  EXPECT_EQ(harness.stats().clears, 1u);
  harness.DrainAll();
}

TEST(SinkStream, CollisionsGiveOneStoreAndOneRemoval) {
  SinkOptions options = Options(64);
  options.projector.hash_mask = 0;  // every hash is 0
  Harness harness(2, 16, options);
  const auto a = harness.Store(StoreRun::kRoot, 3);
  const auto b = harness.Store(StoreRun::kRoot, 1);
  kvc_borrowed_batch batch = harness.Drain();
  EXPECT_EQ(EventSizes(batch), (Sizes{1}));
  EXPECT_EQ(harness.stats().hash_collisions, 3u);
  EXPECT_EQ(harness.stats().mirror_blocks, 4u);
  harness.Remove({a[2], a[1], a[0]});
  batch = harness.Drain();
  EXPECT_EQ(batch.event_count, 0u);
  harness.Remove({b[0]});
  batch = harness.Drain();
  EXPECT_EQ(EventSizes(batch), (Sizes{1}));
  EXPECT_EQ(harness.stats().drained_stored_blocks, 1u);
  EXPECT_EQ(harness.stats().drained_removed_blocks, 1u);
  EXPECT_EQ(harness.stats().drained_batches, 2u);
}

TEST(SinkStream, TheChainGoesOnBehindACollision) {
  SinkOptions options = Options(600);
  options.projector.hash_mask = 0x3f;
  Harness harness(2, 300, options);
  harness.Store(StoreRun::kRoot, 300);
  harness.DrainAll();
  EXPECT_GE(harness.stats().hash_collisions, 236u);
  EXPECT_EQ(harness.stats().hash_collisions + harness.stats().drained_stored_blocks, 300u);
}

TEST(SinkStream, HealsWhenNothingIsLeft) {
  Harness harness(2, 16, Options(16));
  harness.Drain();
  EXPECT_EQ(harness.host().heals, 0) << "nothing is pending";
  harness.sink().deferral_counters().pending_blocks = 3;
  harness.Store(StoreRun::kRoot, 1);
  EXPECT_EQ(harness.Drain().pending_blocks, 3u);
  EXPECT_EQ(harness.host().heals, 0) << "something was left to drain";
  harness.host().on_heal = [&harness](uint32_t) {
    harness.Store(StoreRun::kRoot, 2, {}, true);
    harness.sink().deferral_counters().pending_blocks = 1;
    return 2u;
  };
  const kvc_borrowed_batch healed = harness.Drain();
  EXPECT_EQ(healed.event_count, 0u);
  EXPECT_EQ(healed.pending_blocks, 1u);
  EXPECT_GT(healed.remaining_bytes, 0u);
  EXPECT_EQ(harness.host().heals, 1);
  EXPECT_EQ(harness.host().last_max_blocks, 256u);
  EXPECT_EQ(harness.host().last_max_ns, 50000u);
  harness.host().on_heal = nullptr;
  EXPECT_EQ(EventSizes(harness.Drain()), (Sizes{2}));
}

TEST(SinkStream, SealedEndsWhenDrained) {
  Harness harness(2, 16, Options(16));
  harness.Store(StoreRun::kRoot, 2);
  harness.sink().deferral_counters().pending_blocks = 1;
  harness.sink().Seal();
  EXPECT_EQ(harness.stats().attached, 0u);
  EXPECT_EQ(harness.Drain().event_count, 1u);
  kvc_borrowed_batch batch;
  EXPECT_EQ(harness.sink().Drain(0, 0, &batch), KVC_END);
  EXPECT_EQ(harness.sink().Drain(0, 0, &batch), KVC_END);
  EXPECT_EQ(harness.host().heals, 0);
  harness.sink().Detach();
  EXPECT_EQ(harness.host().detaches, 0) << "the manager is gone";
}

TEST(SinkStream, DetachTellsTheManagerOnce) {
  Harness harness(2, 16, Options(16));
  harness.sink().Detach();
  harness.sink().Detach();
  EXPECT_EQ(harness.host().detaches, 1);
  EXPECT_EQ(harness.stats().attached, 0u);
}

TEST(SinkStream, AStaleBatchIsPoisoned) {
  if (!kvcast::kPoisonDrain) GTEST_SKIP() << "built without KVC_POISON_DRAIN";
  Harness harness(2, 64, Options(64));
  harness.Store(StoreRun::kRoot, 4);
  const kvc_borrowed_batch first = harness.Drain();
  harness.Store(StoreRun::kRoot, 4);
  harness.Drain();
  // Still allocated, so it may be looked at; nothing of the old batch is left.
  const auto* bytes = reinterpret_cast<const uint8_t*>(first.hashes);
  for (size_t i = 0; i < 4 * sizeof(uint64_t); ++i) EXPECT_EQ(bytes[i], kvcast::kDrainPoison);
  EXPECT_EQ(first.tokens[0], 0xDBDBDBDBu);
  EXPECT_EQ(first.events[0].kind, 0xDBDBDBDBu);
}

TEST(SinkStream, NoAllocationInSteadyStateShowsInTheArrays) {
  Harness harness(4, 256, Options(256));
  std::set<const void*> seen;
  for (int round = 0; round < 20; ++round) {
    const auto a = harness.Store(StoreRun::kRoot, 200);
    const kvc_borrowed_batch batch = harness.Drain();
    if (round >= 2) {
      EXPECT_TRUE(seen.count(batch.hashes) != 0 && seen.count(batch.tokens) != 0) << round;
    }
    seen.insert({batch.hashes, batch.tokens});
    std::vector<uint32_t> going(a.rbegin(), a.rend());
    harness.Remove(going);
    harness.DrainAll();
    harness.DrainAll();
  }
}

}  // namespace
