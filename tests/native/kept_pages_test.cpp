// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What suspended sequences keep while the pool shrinks, and when others run short.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace kvcast {
namespace testing {

namespace {

constexpr uint32_t kBlock = 2;

class KeptPages : public ::testing::Test {
 protected:
  void Open(uint32_t pages, uint32_t most = 0, uint32_t least = 0, uint64_t page_bytes = 16) {
    CacheOptions options;
    options.block = kBlock;
    options.pages = pages;
    options.most = most;
    options.least = least;
    options.sequences = 16;
    options.page_bytes = page_bytes;
    cache_ = std::make_unique<Cache>(options);
  }
  uint64_t Stream() {
    uint64_t stream = 0;
    EXPECT_EQ(kvc_device_stream_create(cache_->manager(), &stream, nullptr), KVC_OK);
    return stream;
  }
  // Room for so many blocks, and what is committed of it.
  uint64_t Room(uint32_t blocks, const std::vector<uint32_t>& tokens = {}, uint64_t stream = 0) {
    const kvc_create_result made = cache_->Create({}, {}, KVC_COMPUTE_NOTHING, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(cache_->Grow(made.sequence, uint64_t{blocks} * kBlock).status, KVC_OK);
    if (!tokens.empty()) {
      EXPECT_EQ(cache_->Commit(made.sequence, tokens.data(), tokens.size()).status, KVC_OK);
    }
    return made.sequence;
  }
  void Write(uint64_t stream, uint32_t page) {
    const kvc_host_fill fill{page, 0, 7};
    EXPECT_EQ(kvc_host_enqueue_fill(cache_->manager(), stream, 1, &fill, nullptr), KVC_OK);
  }
  uint32_t FirstPage(uint64_t sequence) {
    kvc_sequence_info info{};
    std::vector<uint32_t> pages;
    EXPECT_EQ(cache_->Get(sequence, &info, &pages), KVC_OK);
    return pages.at(0);
  }

  std::unique_ptr<Cache> cache_;
};

TEST_F(KeptPages, WhatAStepWritesStays) {
  Open(8, 8, 2);
  uint64_t steps = 0;
  ASSERT_EQ(kvc_step_stream_create(cache_->manager(), &steps, nullptr), KVC_OK);
  const uint64_t low = Room(6);
  const uint64_t sleeper = Room(2, {}, steps);
  ASSERT_EQ(kvc_step_begin(cache_->manager(), steps, 1, nullptr), KVC_OK);
  ASSERT_EQ(cache_->Suspend(sleeper, true), KVC_OK);
  ASSERT_EQ(cache_->Cancel(low), KVC_OK);
  Resized shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.moved_pages, 0u);
  EXPECT_EQ(shrunk.result.held_pages, 2u);
  ASSERT_EQ(kvc_step_done(cache_->manager(), steps, 1, nullptr), KVC_OK);
  shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.moved_pages, 2u);
  EXPECT_EQ(shrunk.result.held_pages, 0u);
  EXPECT_EQ(cache_->Check(), "");
}

// The engine, who would be told to copy, could not wait for it.
TEST_F(KeptPages, WithoutMemoryWhatIsInUseStays) {
  Open(8, 8, 2, 0);
  const uint64_t stream = Stream();
  const uint64_t low = Room(6);
  const uint64_t sleeper = Room(2, {}, stream);
  Write(stream, FirstPage(sleeper));
  ASSERT_EQ(cache_->Suspend(sleeper, true), KVC_OK);
  ASSERT_EQ(cache_->Cancel(low), KVC_OK);
  Resized shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.moved_pages, 0u);
  EXPECT_EQ(shrunk.result.held_pages, 2u);
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(4).result.moved_pages, 2u);
  EXPECT_EQ(cache_->Check(), "");
}

// A grow takes from those who have something to give, not from whoever fell asleep last.
TEST_F(KeptPages, WhoHasNothingToGiveKeepsIt) {
  for (const bool doomed : {false, true}) {
    Open(8, doomed ? 8 : 0, doomed ? 2 : 0);
    const uint64_t other = doomed ? 0 : Stream();
    const uint64_t giver = Room(2, {1});
    const uint64_t needy = Room(4);
    const uint64_t useless = Room(2, {9}, other);
    if (!doomed) Write(other, FirstPage(useless));
    ASSERT_EQ(cache_->Suspend(giver, true), KVC_OK);
    ASSERT_EQ(cache_->Suspend(useless, true), KVC_OK);
    if (doomed) {
      EXPECT_EQ(cache_->Resize(6).result.held_pages, 2u);
    }
    EXPECT_EQ(cache_->Grow(needy, 5 * kBlock).status, KVC_OK);
    EXPECT_EQ(cache_->Stats().reclaimed_pages, 2u);
    EXPECT_EQ(cache_->Resume(useless).lost_tokens, 0u);
    EXPECT_EQ(cache_->Resume(giver).lost_tokens, 1u);
    EXPECT_EQ(cache_->Check(), "");
  }
}

// Whoever shares what it keeps with one who sleeps on gives nothing alone.
TEST_F(KeptPages, SharedOnesAreTakenFromAllWhoKeepThem) {
  Open(6);
  const uint64_t giver = Room(2, {1});
  const uint64_t shares = Room(1, {2});
  const kvc_fork_result fork = cache_->Fork(shares, 0);
  ASSERT_EQ(fork.status, KVC_OK);
  ASSERT_EQ(cache_->Suspend(fork.sequence, true), KVC_OK);
  ASSERT_EQ(cache_->Suspend(giver, true), KVC_OK);
  ASSERT_EQ(cache_->Suspend(shares, true), KVC_OK);
  const uint64_t needy = Room(5);
  EXPECT_EQ(cache_->Stats().reclaimed_pages, 2u);
  EXPECT_EQ(cache_->Resume(shares).lost_tokens, 0u);
  EXPECT_EQ(cache_->Suspend(shares, true), KVC_OK);
  EXPECT_EQ(cache_->Grow(needy, 6 * kBlock).status, KVC_OK);
  EXPECT_EQ(cache_->Stats().reclaimed_pages, 4u);
  EXPECT_EQ(cache_->Resume(shares).lost_tokens, 1u);
  EXPECT_EQ(cache_->Resume(fork.sequence).lost_tokens, 1u);
  EXPECT_EQ(cache_->Check(), "");
}

// A shrink that only sleepers hold up says so: with no page that theirs could move to, or
// because several keep it.
TEST_F(KeptPages, AShrinkSaysWhatHoldsItUp) {
  Open(8, 8, 2);
  const uint64_t large = Room(6, {1});
  ASSERT_EQ(cache_->Suspend(large, true), KVC_OK);
  Resized shrunk;
  for (int i = 0; i < 3; ++i) {
    shrunk = cache_->Resize(4);
    EXPECT_EQ(shrunk.result.moved_pages, 0u);
    EXPECT_EQ(shrunk.result.doomed_pages, 2u);
    EXPECT_EQ(shrunk.result.held_pages, 2u);
    EXPECT_EQ(shrunk.result.done, 0u);
    cache_->Advance();
  }
  // It is a matter of the target, and of who sleeps.
  ASSERT_EQ(cache_->Cancel(large), KVC_OK);
  EXPECT_EQ(cache_->Resize(4).result.doomed_pages, 0u);

  Open(8, 8, 2);
  const uint64_t low = Room(7);
  const uint64_t one = Room(1, {1});
  const kvc_fork_result fork = cache_->Fork(one, 0);
  ASSERT_EQ(cache_->Suspend(one, true), KVC_OK);
  ASSERT_EQ(cache_->Suspend(fork.sequence, true), KVC_OK);
  ASSERT_EQ(cache_->Cancel(low), KVC_OK);
  shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.doomed_pages, 1u);
  EXPECT_EQ(shrunk.result.held_pages, 1u);
  ASSERT_EQ(cache_->Cancel(one), KVC_OK);
  shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.moved_pages, 1u);
  EXPECT_EQ(shrunk.result.held_pages, 0u);
  EXPECT_EQ(cache_->Check(), "");
}

// Pages that a shrink takes when their fences are reached do not come, so nobody waits
// for them.
TEST_F(KeptPages, ARefusedGrowDoesNotHopeForWhatIsDoomed) {
  Open(8, 8, 2);
  const uint64_t stream = Stream();
  const uint64_t needy = Room(4);
  const uint64_t other = Room(4, {1, 2, 3, 4, 5, 6, 7, 8}, stream);
  Write(stream, FirstPage(other));
  ASSERT_EQ(cache_->Release(other), KVC_OK);
  kvc_grow_result grown = cache_->Grow(needy, 5 * kBlock);
  EXPECT_EQ(grown.status, KVC_NOT_NOW);
  EXPECT_EQ(grown.leaving_pages, 4u);
  EXPECT_EQ(cache_->Resize(6, 0).result.doomed_pages, 2u);
  grown = cache_->Grow(needy, 5 * kBlock);
  EXPECT_EQ(grown.status, KVC_NOT_NOW);
  EXPECT_EQ(grown.leaving_pages, 2u);
  (void)cache_->Resize(4, 0);
  grown = cache_->Grow(needy, 5 * kBlock);
  EXPECT_EQ(grown.status, KVC_NOT_NOW);
  EXPECT_EQ(grown.leaving_pages, 0u);
  cache_->Advance();
  EXPECT_EQ(cache_->Grow(needy, 5 * kBlock).leaving_pages, 0u);
}

// One call looks at so much of what is kept, the next goes on behind it; memory for more
// is not taken.
TEST(KeptPagesMany, AreLookedAtAPartACall) {
  constexpr uint32_t kPages = 40000;
  constexpr uint32_t kEach = 1000;
  CacheOptions options;
  options.block = 1;
  options.pages = options.most = kPages;
  options.least = 2;
  options.sequences = 64;
  options.page_bytes = 0;
  options.entries = 1000;
  Cache cache(options);
  const auto room = [&](uint32_t pages) {
    const uint64_t id = cache.Create({}).sequence;
    EXPECT_EQ(cache.Grow(id, pages).status, KVC_OK);
    return id;
  };
  const uint64_t low = room(kPages / 2);
  std::vector<uint64_t> sleepers;
  for (uint32_t i = 0; i < 20; ++i) sleepers.push_back(room(kEach));
  for (const uint64_t id : sleepers) EXPECT_EQ(cache.Suspend(id, true), KVC_OK);
  EXPECT_EQ(cache.Cancel(low), KVC_OK);
  const uint64_t before = cache.Stats().metadata_bytes;
  uint32_t moved = 0, calls = 0;
  for (Resized r; r.result.done == 0 && calls < 10; ++calls) {
    r = cache.Resize(kPages / 2, kPages);
    ASSERT_EQ(r.status, KVC_OK);
    EXPECT_LE(r.result.moved_pages, 8192u);
    EXPECT_GE(r.result.moved_pages, 1u);
    moved += r.result.moved_pages;
    // What waits for its turn counts as held.
    EXPECT_EQ(r.result.held_pages, kPages / 2 - moved);
  }
  EXPECT_EQ(moved, kPages / 2);
  EXPECT_EQ(calls, 3u);
  const uint64_t more = cache.Stats().metadata_bytes - before;
  EXPECT_GT(more, 8192u * sizeof(uint32_t));
  EXPECT_LT(more, 8192u * 16);
  EXPECT_EQ(cache.Check(), "");
}

}  // namespace

}  // namespace testing
}  // namespace kvcast
