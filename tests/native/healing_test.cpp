// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Overload ends: a scheduler stores twice as much as the drainer takes, then half
// of it, counted in steps and not in time. Whatever the size of the record buffer,
// the backlog goes within the steps that the spare half needs, and all figures
// about it are exact at each step, without a drain.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/native/abi_support.h"

namespace kvcast {
namespace {

using testing::Cache;
using testing::CacheOptions;
using testing::WireMirror;

constexpr uint32_t kRate = 8;  // blocks that the drainer takes in a step
constexpr int kOverload = 100;

class Load {
 public:
  explicit Load(uint32_t entries)
      : options_(Options(entries)), cache_(options_), mirror_(options_.form, options_.block) {}

  // Stores so many blocks, and lets the drainer take what it can.
  void Step(uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks);
    for (uint32_t& token : tokens) token = next_++;
    const kvc_create_result made = cache_.Create(tokens);
    ASSERT_EQ(made.status, KVC_OK);
    ASSERT_EQ(cache_.Grow(made.sequence, blocks).status, KVC_OK);
    ASSERT_EQ(cache_.Commit(made.sequence, tokens.data(), blocks).status, KVC_OK);
    ASSERT_EQ(cache_.Release(made.sequence), KVC_OK);
    stored_ += blocks;
    Exact();
    for (uint32_t taken = 0, idle = 0; taken < kRate && idle < 2;) {
      kvc_borrowed_batch batch;
      ASSERT_EQ(kvc_stream_drain(cache_.stream(), 0, kRate - taken, &batch, nullptr), KVC_OK);
      ASSERT_EQ(mirror_.Apply(batch), "");
      taken += static_cast<uint32_t>(batch.hash_count);
      // An empty drain heals, and what it has healed comes with the next one.
      idle = batch.hash_count == 0 ? idle + 1 : 0;
      Exact();
    }
  }

  void Exact() {
    const kvc_stream_stats s = stats();
    ASSERT_EQ(s.deferred_blocks, s.healed_blocks + s.deferred_evicted_blocks + s.pending_blocks);
    ASSERT_EQ(s.stored_blocks + s.pending_blocks, stored_);
    ASSERT_EQ(s.dropped_events, s.deferred_blocks);
    ASSERT_EQ(s.oldest_deferred_ns != 0, s.pending_blocks != 0);
  }

  [[nodiscard]] kvc_stream_stats stats() const { return cache_.StreamStats(); }
  [[nodiscard]] std::string Quiet() { return testing::Quiet(cache_, mirror_); }

 private:
  static CacheOptions Options(uint32_t entries) {
    CacheOptions options;
    options.block = 1;
    options.pages = 16384;
    options.entries = entries;
    // An event that is larger than a drain's limit would come alone all the same.
    options.run = 1;
    return options;
  }

  CacheOptions options_;
  Cache cache_;
  WireMirror mirror_;
  uint32_t next_ = 1;
  uint64_t stored_ = 0;
};

TEST(Healing, OverloadEnds) {
  for (const uint32_t entries : {1u, 2u, 3u, 4u, 5u, 16u, 64u, 1000u}) {
    SCOPED_TRACE("entries " + std::to_string(entries));
    Load load(entries);
    for (int step = 0; step < kOverload; ++step) {
      ASSERT_NO_FATAL_FAILURE(load.Step(2 * kRate));
    }
    const kvc_stream_stats full = load.stats();
    const uint64_t waiting = full.pending_blocks + full.stored_blocks - full.drained_stored_blocks;
    // Nothing is lost and nothing taken for granted: it is what could not be drained.
    EXPECT_GE(waiting, uint64_t{kRate} * kOverload);
    EXPECT_TRUE(entries == 1000 || full.pending_blocks > 0);
    // Half of what the drainer takes is spare now. A few steps more for what is in
    // the buffer already.
    const uint64_t bound = waiting / (kRate / 2) + 16;
    uint64_t steps = 0;
    uint64_t before = full.pending_blocks;
    while (load.stats().pending_blocks != 0) {
      ASSERT_LE(++steps, bound) << load.stats().pending_blocks << " of " << full.pending_blocks;
      ASSERT_NO_FATAL_FAILURE(load.Step(kRate / 2));
      if (steps % 32 == 0) {
        EXPECT_LT(load.stats().pending_blocks, before) << "it does not end";
        before = load.stats().pending_blocks;
      }
    }
    EXPECT_EQ(load.stats().healed_blocks, load.stats().deferred_blocks);
    EXPECT_EQ(load.stats().oldest_deferred_ns, 0u);
    EXPECT_EQ(load.Quiet(), "");
  }
}

// The age is that of the oldest: it grows while that waits, and falls when it has
// been healed or has gone.
TEST(Healing, TheOldestAgeIsThatOfTheOldest) {
  CacheOptions options;
  options.entries = 2;
  options.pages = 8;
  Cache cache(options);
  WireMirror mirror(options.form, options.block);
  const auto use = [&](std::vector<uint32_t> tokens) {
    const kvc_create_result made = cache.Create(tokens);
    ASSERT_EQ(cache.Grow(made.sequence, tokens.size()).status, KVC_OK);
    ASSERT_EQ(cache.Commit(made.sequence, tokens.data(), tokens.size()).status, KVC_OK);
    ASSERT_EQ(cache.Release(made.sequence), KVC_OK);
  };
  EXPECT_EQ(cache.StreamStats().oldest_deferred_ns, 0u);
  use({1, 1, 2, 2});
  EXPECT_EQ(cache.StreamStats().oldest_deferred_ns, 0u);
  use({3, 3, 4, 4});
  const uint64_t one = cache.StreamStats().oldest_deferred_ns;
  ASSERT_GT(one, 0u);
  use({5, 5});
  const kvc_stream_stats three = cache.StreamStats();
  EXPECT_EQ(three.pending_blocks, 3u);
  EXPECT_GE(three.oldest_deferred_ns, one) << "the oldest is still there";
  // A reset ends all of them.
  ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
  EXPECT_EQ(cache.StreamStats().oldest_deferred_ns, 0u);
  use({6, 6, 7, 7, 8, 8, 9, 9});
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  EXPECT_EQ(cache.StreamStats().oldest_deferred_ns, 0u);
}

}  // namespace
}  // namespace kvcast
