// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Snapshots: what the stream had announced at one moment, whatever happens to it
// afterwards, in few events and with bounded memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/native/abi_support.h"
#include "tests/native/digest_support.h"
#include "tests/native/owned_handle.h"
#include "tests/native/sink_test_support.h"

namespace kvcast {
namespace {

using testing::Cache;
using testing::CacheOptions;
using testing::Fact;
using testing::Harness;
using testing::OwnedManager;
using testing::OwnedSnapshot;
using testing::OwnedStream;
using testing::ScopeSpec;
using testing::WireMirror;

constexpr uint32_t D(uint32_t k) { return KVC_DIGEST_TOKEN(k); }

// Commits a prompt and lets go of it.
void Use(Cache& cache, const std::vector<uint32_t>& tokens, const ScopeSpec& scope) {
  const kvc_create_result made = cache.Create(tokens, scope);
  if (made.status != KVC_OK) return;
  if (cache.Grow(made.sequence, tokens.size()).status == KVC_OK) {
    cache.Commit(made.sequence, tokens.data() + made.matched_tokens,
                 tokens.size() - made.matched_tokens);
  }
  ASSERT_EQ(cache.Release(made.sequence), KVC_OK);
}

// A snapshot that is read a batch now and then, over drains, evictions and
// resets, tells what there was when it was opened.
TEST(Snapshots, DoNotSeeWhatComesLater) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    CacheOptions options;
    options.block = 4;
    // More than a chunk of the mirror, less than three.
    options.pages = 600;
    options.sequences = 8;
    options.entries = seed % 2 == 0 ? 50 : 50000;
    options.run = seed % 3 == 0 ? 3 : 0;
    options.form = static_cast<kvc_hash_form>(seed % 4);
    options.multimodal = KVC_MULTIMODAL_ANNOUNCE;
    Cache cache(options);
    WireMirror mirror(options.form, 4);
    OwnedSnapshot snapshot;
    std::unique_ptr<WireMirror> pinned;
    std::unique_ptr<WireMirror> told;
    int finished = 0;
    uint64_t largest = 0;
    for (int i = 0; i < 6000; ++i) {
      std::vector<uint32_t> tokens(4 * (1 + random() % 20));
      const bool images = random() % 8 == 0;
      for (size_t k = 0; k < tokens.size(); ++k) {
        // Near the root the chains are few, so that they branch.
        tokens[k] = static_cast<uint32_t>(k < 8 ? random() % 2 : random() % 50);
        if (images && random() % 4 == 0) tokens[k] = D(static_cast<uint32_t>(1 + random() % 40));
      }
      ScopeSpec scope;
      if (random() % 4 == 0) {
        scope.lora_id = random() % 5;
        scope.lora_name = "adapter " + std::to_string(*scope.lora_id);
        scope.salt = random() % 3;
      }
      Use(cache, tokens, scope);
      if (random() % 2 == 0) {
        kvc_borrowed_batch batch;
        ASSERT_EQ(kvc_stream_drain(cache.stream(), random() % 20, random() % 80, &batch, nullptr),
                  KVC_OK);
        ASSERT_EQ(mirror.Apply(batch), "");
      }
      if (random() % 1500 == 0) {
        ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
      }
      if (snapshot == nullptr) {
        if (random() % 40 != 0) continue;
        ASSERT_EQ(kvc_stream_snapshot_open(cache.stream(), snapshot.out(), nullptr), KVC_OK);
        pinned = std::make_unique<WireMirror>(mirror);
        told = std::make_unique<WireMirror>(options.form, 4);
        largest = std::max(largest, uint64_t{mirror.blocks().size()});
      } else if (random() % 3 == 0) {
        kvc_borrowed_batch batch;
        const kvc_status status = kvc_stream_snapshot_next(snapshot, 1 + random() % 9,
                                                           1 + random() % 60, &batch, nullptr);
        if (status == KVC_OK) {
          ASSERT_EQ(told->Apply(batch), "");
          continue;
        }
        ASSERT_EQ(status, KVC_END);
        ASSERT_TRUE(told->blocks() == pinned->blocks());
        kvc_stream_snapshot_close(snapshot.Take());
        ++finished;
      }
    }
    kvc_stream_snapshot_close(snapshot.Take());
    EXPECT_GE(finished, 10);
    EXPECT_GT(largest, 300u);
    ASSERT_EQ(testing::Quiet(cache, mirror), "");
  }
}

SinkOptions Options(uint32_t entries) {
  SinkOptions options;
  options.max_entries = entries;
  return options;
}

std::unique_ptr<Snapshot> Pin(StreamingEventSink& sink) {
  std::unique_ptr<Snapshot> snapshot;
  EXPECT_EQ(sink.Pin(&snapshot), PinResult::kDone);
  return snapshot;
}

// One event for each block without children, and none more.
TEST(Snapshots, HaveAsFewEventsAsThereAreLeaves) {
  std::mt19937_64 random(5);
  Harness harness(2, 3000, Options(5000));
  std::vector<uint32_t> all;
  while (harness.free_nodes() > 40) {
    const uint32_t parent =
        all.empty() || random() % 10 == 0 ? StoreRun::kRoot : all[random() % all.size()];
    const auto run = harness.Store(parent, 1 + static_cast<uint32_t>(random() % 30));
    all.insert(all.end(), run.begin(), run.end());
  }
  harness.DrainAll();
  size_t leaves = 0;
  for (const auto& [id, node] : harness.nodes()) leaves += node.children == 0 ? 1 : 0;
  const auto snapshot = Pin(harness.sink());
  kvc_borrowed_batch batch;
  ASSERT_TRUE(snapshot->Next(0, 0, &batch));
  EXPECT_EQ(batch.event_count, leaves);
  EXPECT_EQ(batch.hash_count, harness.nodes().size());
  EXPECT_EQ(snapshot->blocks(), harness.nodes().size());
  std::set<uint64_t> known;
  for (const Fact& fact : testing::Facts(batch)) {
    EXPECT_TRUE(!fact.has_parent || known.count(fact.parent) == 1);
    EXPECT_TRUE(known.insert(fact.hash).second);
  }
  EXPECT_FALSE(snapshot->Next(0, 0, &batch));
}

// No recursion, and no memory but a list of it.
TEST(Snapshots, OfAVeryLongChain) {
  constexpr uint32_t kBlocks = 140000;
  Harness harness(1, kBlocks, Options(2 * kBlocks));
  uint32_t parent = StoreRun::kRoot;
  for (uint32_t i = 0; i < kBlocks; i += 1000) parent = harness.Store(parent, 1000).back();
  harness.DrainAll();
  const auto snapshot = Pin(harness.sink());
  uint64_t blocks = 0;
  uint64_t events = 0;
  uint64_t last = 0;
  kvc_borrowed_batch batch;
  while (snapshot->Next(0, 100000, &batch)) {
    ASSERT_EQ(batch.events[0].parent_hash, last);
    for (uint64_t e = 0; e < batch.event_count; ++e) {
      ASSERT_LE(batch.events[e].hash_count, ProjectorOptions::kWireBlocksPerEvent);
    }
    last = batch.hashes[batch.hash_count - 1];
    blocks += batch.hash_count;
    events += batch.event_count;
  }
  EXPECT_EQ(blocks, kBlocks);
  EXPECT_EQ(events, 3u) << "two batches, the first one cut at 65536 blocks";
}

// Subscribers know a hash that two blocks share once, and so does who begins with
// a snapshot; one removal of it is right then, too.
TEST(Snapshots, TellASharedHashOnce) {
  SinkOptions options = Options(600);
  options.projector.hash_mask = 0x3f;
  Harness harness(2, 300, options);
  harness.Store(harness.Store(StoreRun::kRoot, 100)[40], 100);
  harness.DrainAll();
  ASSERT_GT(harness.stats().hash_collisions, 100u);
  const auto snapshot = Pin(harness.sink());
  std::set<uint64_t> told;
  kvc_borrowed_batch batch;
  while (snapshot->Next(2, 5, &batch)) {
    for (const Fact& fact : testing::Facts(batch)) {
      EXPECT_TRUE(!fact.has_parent || told.count(fact.parent) == 1);
      EXPECT_TRUE(told.insert(fact.hash).second);
    }
  }
  std::set<uint64_t> announced;
  for (const auto& [id, node] : harness.nodes()) announced.insert(harness.Hash(node.key));
  EXPECT_EQ(told, announced);
}

TEST(Snapshots, OfAStreamThatHasNothing) {
  kvc_stream_config config;
  kvc_stream_config_init(&config);
  OwnedStream stream;
  ASSERT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_OK);
  OwnedSnapshot snapshot;
  kvc_borrowed_batch batch;
  ASSERT_EQ(kvc_stream_snapshot_open(stream, snapshot.out(), nullptr), KVC_OK);
  EXPECT_EQ(kvc_stream_snapshot_next(snapshot, 0, 0, &batch, nullptr), KVC_END);
  kvc_stream_snapshot_close(snapshot.Take());
  // There is one at a time here, too, also when a manager has come meanwhile.
  const auto second = [&stream] {
    OwnedSnapshot other;
    kvc_error error;
    const kvc_status status = kvc_stream_snapshot_open(stream, other.out(), &error);
    if (status == KVC_BUSY) {
      EXPECT_STREQ(error.message, "another snapshot of this stream is open");
    }
    EXPECT_EQ(other == nullptr, status != KVC_OK);
    return status;
  };
  ASSERT_EQ(kvc_stream_snapshot_open(stream, snapshot.out(), nullptr), KVC_OK);
  EXPECT_EQ(second(), KVC_BUSY);
  kvc_config manager_config;
  kvc_config_init(&manager_config);
  manager_config.tokens_per_block = 2;
  manager_config.capacity_blocks = 4;
  OwnedManager manager;
  ASSERT_EQ(kvc_manager_create(&manager_config, stream, manager.out(), nullptr), KVC_OK);
  EXPECT_EQ(second(), KVC_BUSY);
  EXPECT_EQ(kvc_stream_snapshot_next(snapshot, 0, 0, &batch, nullptr), KVC_END);
  kvc_stream_snapshot_close(snapshot.Take());
  EXPECT_EQ(second(), KVC_OK);
  ASSERT_EQ(kvc_manager_destroy(manager.Take(), nullptr), KVC_OK);
  kvc_stream_destroy(stream.Take());
  // Attached, and still nothing.
  Harness harness(2, 16, Options(16));
  EXPECT_FALSE(Pin(harness.sink())->Next(0, 0, &batch));
}

TEST(Snapshots, OutliveTheirStream) {
  CacheOptions options;
  OwnedSnapshot snapshot;
  WireMirror mirror(options.form, options.block);
  {
    Cache cache(options);
    Use(cache, {1, 2, 3, 4, 5, 6}, {});
    ASSERT_EQ(testing::Quiet(cache, mirror), "");
    ASSERT_EQ(kvc_stream_snapshot_open(cache.stream(), snapshot.out(), nullptr), KVC_OK);
  }
  WireMirror told(options.form, options.block);
  EXPECT_EQ(testing::ReadSnapshot(snapshot, 0, 2, told), "");
  EXPECT_EQ(told.blocks().size(), 3u);
  EXPECT_TRUE(told.blocks() == mirror.blocks());
  kvc_stream_snapshot_close(snapshot.Take());
}

TEST(Snapshots, OneAtATimeAndNotBesideADrain) {
  Harness harness(2, 600, Options(600));
  const auto a = harness.Store(StoreRun::kRoot, 600);
  harness.DrainAll();
  auto first = Pin(harness.sink());
  std::unique_ptr<Snapshot> second;
  EXPECT_EQ(harness.sink().Pin(&second), PinResult::kPinned);
  first.reset();
  second = Pin(harness.sink());
  second.reset();
  harness.sink().deferral_counters().pending_blocks = 1;
  PinResult beside = PinResult::kDone;
  harness.host().on_heal = [&](uint32_t) {
    beside = harness.sink().Pin(&second);
    return 0u;
  };
  harness.Drain();
  EXPECT_EQ(beside, PinResult::kDraining);
}

// A snapshot costs a copy of what is changed meanwhile, once, and what it has
// cost is used again.
TEST(Snapshots, CopyAtMostAMirror) {
  constexpr uint32_t kBlocks = 5 * ChunkLayout::kBlocks;
  Harness harness(2, kBlocks, Options(2 * kBlocks));
  const Mirror& mirror = harness.sink().projector()->mirror();
  std::vector<uint32_t> all = harness.Store(StoreRun::kRoot, kBlocks);
  harness.DrainAll();
  EXPECT_EQ(mirror.spare_chunks(), 0u) << "nothing is taken before it is needed";
  for (int round = 0; round < 4; ++round) {
    auto snapshot = Pin(harness.sink());
    EXPECT_EQ(mirror.spare_chunks(), 5u);
    // The last ones stored: node ids were given from the lowest.
    const auto take = [&](size_t n) {
      std::vector<uint32_t> going(all.rbegin(), all.rbegin() + static_cast<std::ptrdiff_t>(n));
      all.resize(all.size() - n);
      harness.Remove(going);
      harness.DrainAll();
    };
    take(3);
    EXPECT_EQ(mirror.spare_chunks(), 4u);
    take(ChunkLayout::kBlocks);
    EXPECT_EQ(mirror.spare_chunks(), 3u);
    if (round % 2 == 0) {
      harness.Clear();
      harness.DrainAll();
      EXPECT_EQ(mirror.spare_chunks(), 0u);
      all = harness.Store(StoreRun::kRoot, kBlocks);
      harness.DrainAll();
      EXPECT_EQ(mirror.spare_chunks(), 0u);
    } else {
      const auto more = harness.Store(all.back(), ChunkLayout::kBlocks + 3);
      all.insert(all.end(), more.begin(), more.end());
      harness.DrainAll();
    }
    kvc_borrowed_batch batch;
    ASSERT_TRUE(snapshot->Next(0, 0, &batch));
    EXPECT_EQ(batch.hash_count, kBlocks);
    EXPECT_EQ(testing::Facts(batch).size(), kBlocks);
    snapshot.reset();
    harness.Drain();
    EXPECT_EQ(mirror.spare_chunks(), 5u);
  }
}

}  // namespace
}  // namespace kvcast
