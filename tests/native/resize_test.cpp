// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Elastic pools: memory comes and goes, pages that are doomed leave, blocks move.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/elastic_memory.h"
#include "native/src/manager.h"
#include "native/src/page_bits.h"
#include "tests/native/abi_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast {
namespace testing {

namespace {

constexpr uint32_t kBlock = 2;

std::vector<uint32_t> Text(uint32_t first, uint32_t blocks) {
  std::vector<uint32_t> tokens(blocks * kBlock);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
  return tokens;
}

class ResizeTest : public ::testing::Test {
 protected:
  void Open(uint32_t pages, uint32_t most, uint32_t least, uint64_t page_bytes = 16) {
    CacheOptions options;
    options.block = kBlock;
    options.pages = pages;
    options.most = most;
    options.least = least;
    options.sequences = 16;
    options.pins = pages;
    options.page_bytes = page_bytes;
    mirror_ = std::make_unique<WireMirror>(options.form, kBlock);
    cache_ = std::make_unique<Cache>(options);
  }
  // A sequence of so many new blocks, all of them committed.
  uint64_t Fill(uint32_t first, uint32_t blocks, uint64_t stream = 0) {
    const std::vector<uint32_t> text = Text(first, blocks);
    const kvc_create_result made = cache_->Create(text, {}, KVC_COMPUTE_NOTHING, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(made.matched_tokens, 0u);
    EXPECT_EQ(cache_->Grow(made.sequence, text.size()).status, KVC_OK);
    EXPECT_EQ(cache_->Commit(made.sequence, text.data(), text.size()).status, KVC_OK);
    return made.sequence;
  }
  // A sequence of so many pages with nothing in them.
  uint64_t Room(uint32_t blocks) {
    const kvc_create_result made = cache_->Create({});
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(cache_->Grow(made.sequence, uint64_t{blocks} * kBlock).status, KVC_OK);
    return made.sequence;
  }
  std::vector<uint32_t> PagesOf(uint64_t id) {
    kvc_sequence_info info{};
    std::vector<uint32_t> pages;
    EXPECT_EQ(cache_->Get(id, &info, &pages), KVC_OK);
    return pages;
  }
  void Check() {
    EXPECT_EQ(cache_->Check(), "");
    const kvc_stats s = cache_->Stats();
    EXPECT_EQ(s.live_pages + s.cached_pages + s.free_pages + s.quarantined_pages + s.leaving_pages,
              s.total_pages);
    kvc_borrowed_batch batch{};
    while (cache_->Drain(&batch) == KVC_OK && batch.event_count != 0) {
      EXPECT_EQ(mirror_->Apply(batch), "");
    }
    EXPECT_EQ(mirror_->Compare(cache_->Resident(), true), "");
  }

  std::unique_ptr<WireMirror> mirror_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(ResizeTest, FixedPoolsAndBadTargetsAreRefused) {
  Open(8, 0, 0);
  EXPECT_EQ(cache_->Resize(8).status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(cache_->Stats().target_pages, 8u);
  Open(8, 16, 4);
  EXPECT_EQ(cache_->Resize(3).status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(cache_->Resize(17).status, KVC_INVALID_ARGUMENT);
  const Resized same = cache_->Resize(8);
  EXPECT_EQ(same.status, KVC_OK);
  EXPECT_EQ(same.result.done, 1u);
  EXPECT_EQ(cache_->Stats().resizes, 0u);
  kvc_config config;
  kvc_config_init(&config);
  config.capacity_blocks = 8;
  OwnedManager m;
  for (const auto& [most, least] :
       std::vector<std::pair<uint32_t, uint32_t>>{{7, 0}, {(1u << 27) + 1, 0}, {16, 9}, {0, 4}}) {
    config.max_blocks = most;
    config.min_blocks = least;
    EXPECT_EQ(kvc_manager_create(&config, nullptr, m.out(), nullptr), KVC_INVALID_ARGUMENT);
  }
}

TEST_F(ResizeTest, GrowsWhenTheDeviceHasMemory) {
  Open(4, 4096, 0, 64);
  EXPECT_EQ(cache_->Stats().mapped_bytes, 4096u);
  const uint64_t one = Fill(1, 4);
  EXPECT_EQ(cache_->Grow(one, 5 * kBlock).status, KVC_NEVER_FITS);
  Resized grown = cache_->Resize(1000);
  EXPECT_EQ(grown.status, KVC_OK);
  EXPECT_EQ(grown.result.done, 0u);
  EXPECT_EQ(grown.result.total_pages, 4u);
  EXPECT_EQ(grown.result.growing_pages, 996u);
  // It will fit, so it is only a matter of time.
  EXPECT_EQ(cache_->Grow(one, 5 * kBlock).status, KVC_NOT_NOW);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Grow(one, 5 * kBlock).status, KVC_OK);
  EXPECT_EQ(PagesOf(one)[4], 4u);
  EXPECT_EQ(cache_->Grow(one, 1001 * kBlock).status, KVC_NEVER_FITS);
  EXPECT_EQ(cache_->Grow(one, 1000 * kBlock).status, KVC_OK);
  const kvc_stats s = cache_->Stats();
  EXPECT_EQ(s.total_pages, 1000u);
  EXPECT_EQ(s.target_pages, 1000u);
  EXPECT_EQ(s.mapped_bytes, 65536u);
  EXPECT_EQ(cache_->Resize(1000).result.done, 1u);
  Check();
}

TEST_F(ResizeTest, FreePagesAreWithdrawnAtOnce) {
  Open(1024, 1024, 8, 64);
  const uint64_t one = Fill(1, 4);
  EXPECT_EQ(cache_->Stats().mapped_bytes, 65536u);
  Resized shrunk = cache_->Resize(8);
  EXPECT_EQ(shrunk.status, KVC_OK);
  EXPECT_EQ(shrunk.result.doomed_pages, 0u);
  EXPECT_EQ(shrunk.result.leaving_pages, 1016u);
  EXPECT_EQ(shrunk.result.total_pages, 1024u);
  Check();
  EXPECT_EQ(cache_->Stats().free_pages, 4u);
  EXPECT_EQ(cache_->Grow(one, 9 * kBlock).status, KVC_NEVER_FITS);
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(8).result.done, 1u);
  const kvc_stats s = cache_->Stats();
  EXPECT_EQ(s.total_pages, 8u);
  EXPECT_EQ(s.leaving_pages, 0u);
  EXPECT_EQ(s.mapped_bytes, 4096u);
  Check();
}

TEST_F(ResizeTest, LivePagesStayUntilTheyAreReleased) {
  Open(8, 8, 2);
  const uint64_t low = Fill(1, 2);
  const uint64_t high = Fill(100, 6);
  const std::vector<uint32_t> before = PagesOf(high);
  Resized shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.doomed_pages, 4u);
  EXPECT_EQ(shrunk.result.held_pages, 4u);
  EXPECT_EQ(shrunk.result.total_pages, 8u);
  cache_->Advance();
  EXPECT_EQ(PagesOf(high), before);
  // Pages that it has count: it might have this many.
  EXPECT_EQ(cache_->Grow(high, 7 * kBlock).status, KVC_NOT_NOW);
  Check();
  EXPECT_EQ(cache_->Cancel(high), KVC_OK);
  // Six blocks were committed and stay, two of them in good places.
  EXPECT_EQ(cache_->Stats().cached_pages, 6u);
  EXPECT_EQ(cache_->Release(low), KVC_OK);
  shrunk = cache_->Resize(4);
  EXPECT_EQ(shrunk.result.moved_pages, 0u);
  EXPECT_EQ(shrunk.result.evicted_blocks, 4u);
  // The least recently used: the end of the longer one, wherever it is.
  EXPECT_EQ(shrunk.evicted[0].page, 7u);
  EXPECT_EQ(shrunk.result.doomed_pages, 0u);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(4).result.done, 1u);
  EXPECT_EQ(cache_->Stats().cached_pages, 4u);
  Check();
}

TEST_F(ResizeTest, WhatIsWorthKeepingMoves) {
  Open(8, 8, 4);
  const uint64_t first = Fill(1, 4);
  const uint64_t second = Fill(100, 4);
  // Before they let go: what is in the pages is to be found in the new ones.
  for (uint32_t page = 0; page < 8; ++page) {
    const kvc_host_fill fill{page, 0, 1000 + page};
    ASSERT_EQ(kvc_host_enqueue_fill(cache_->manager(), 0, 1, &fill, nullptr), KVC_OK);
  }
  EXPECT_EQ(cache_->Release(first), KVC_OK);
  EXPECT_EQ(cache_->Release(second), KVC_OK);
  // The first is the older one: it makes room for the second, which moves.
  Resized shrunk = cache_->Resize(4, 3);
  EXPECT_EQ(shrunk.result.evicted_blocks, 3u);
  EXPECT_EQ(shrunk.result.moved_pages, 0u);
  Check();
  shrunk = cache_->Resize(4, 3);
  EXPECT_EQ(shrunk.result.evicted_blocks, 1u);
  EXPECT_EQ(shrunk.result.moved_pages, 2u);
  EXPECT_EQ(shrunk.moves[0].from, 7u);
  EXPECT_EQ(shrunk.moves[0].to, 0u);
  EXPECT_EQ(shrunk.moves[0].tokens, kBlock);
  Check();
  // A matched block in its new place must be waited for.
  const kvc_create_result found = cache_->Create(Text(100, 4));
  EXPECT_EQ(found.matched_tokens, 4 * kBlock);
  EXPECT_EQ(found.wait_count, 1u);
  shrunk = cache_->Resize(4, 3);
  EXPECT_EQ(shrunk.result.moved_pages, 0u);
  EXPECT_EQ(shrunk.result.held_pages, 2u);
  EXPECT_EQ(cache_->Release(found.sequence), KVC_OK);
  shrunk = cache_->Resize(4, 3);
  EXPECT_EQ(shrunk.result.moved_pages, 2u);
  // Still being read by the copies.
  EXPECT_EQ(shrunk.result.doomed_pages, 4u);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(4).result.doomed_pages, 0u);
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(4).result.done, 1u);
  const kvc_create_result again = cache_->Create(Text(100, 4));
  EXPECT_EQ(again.matched_tokens, 4 * kBlock);
  EXPECT_EQ(again.wait_count, 0u);
  const std::vector<uint32_t> pages = PagesOf(again.sequence);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_LT(pages[i], 4u);
    uint64_t value = 0;
    ASSERT_EQ(kvc_host_read(cache_->manager(), pages[i], 8, 8, reinterpret_cast<uint8_t*>(&value),
                            nullptr),
              KVC_OK);
    EXPECT_EQ(value, 1004u + i);
  }
  const kvc_stats s = cache_->Stats();
  EXPECT_EQ(s.moved_pages, 4u);
  EXPECT_EQ(s.copied_pages, 4u);
  EXPECT_EQ(s.copied_bytes, 64u);
  Check();
}

TEST_F(ResizeTest, GrowingAgainTakesBackWhatWasDoomed) {
  Open(8, 8, 2);
  const uint64_t id = Fill(1, 6);
  EXPECT_EQ(cache_->Resize(3).result.leaving_pages, 2u);
  EXPECT_EQ(cache_->Stats().free_pages, 0u);
  Check();
  // The memory of the last two may have gone already; it has to come back first.
  Resized back = cache_->Resize(8);
  EXPECT_EQ(back.result.doomed_pages, 0u);
  EXPECT_EQ(back.result.leaving_pages, 2u);
  EXPECT_EQ(cache_->Stats().free_pages, 0u);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(8).result.done, 1u);
  EXPECT_EQ(cache_->Stats().free_pages, 2u);
  EXPECT_EQ(PagesOf(id).size(), 6u);
  Check();
}

TEST_F(ResizeTest, QuarantinedPagesChangeSides) {
  Open(8, 8, 2);
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(cache_->manager(), &stream, nullptr), KVC_OK);
  const kvc_create_result made = cache_->Create({}, {}, KVC_COMPUTE_NOTHING, stream);
  ASSERT_EQ(cache_->Grow(made.sequence, 8 * kBlock).status, KVC_OK);
  const kvc_host_fill fill{0, 0, 7};
  ASSERT_EQ(kvc_host_enqueue_fill(cache_->manager(), stream, 1, &fill, nullptr), KVC_OK);
  ASSERT_EQ(cache_->Cancel(made.sequence), KVC_OK);
  EXPECT_EQ(cache_->Stats().quarantined_pages, 8u);
  EXPECT_EQ(cache_->Resize(2).result.doomed_pages, 6u);
  // The stream itself could have all eight, but no longer the doomed ones.
  const kvc_create_result next = cache_->Create({}, {}, KVC_COMPUTE_NOTHING, stream);
  EXPECT_EQ(cache_->Grow(next.sequence, 3 * kBlock).status, KVC_NOT_NOW);
  EXPECT_EQ(cache_->Resize(5).result.doomed_pages, 3u);
  EXPECT_EQ(cache_->Grow(next.sequence, 5 * kBlock).status, KVC_OK);
  EXPECT_EQ(cache_->Stats().quarantined_pages, 3u);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(5).result.leaving_pages, 3u);
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(5).result.done, 1u);
  Check();
}

TEST_F(ResizeTest, GrowsEvictWhatIsDoomedOnTheWay) {
  Open(8, 8, 2);
  const uint64_t low = Fill(1, 4);
  const uint64_t high = Fill(100, 4);
  EXPECT_EQ(cache_->Release(high), KVC_OK);
  EXPECT_EQ(cache_->Release(low), KVC_OK);
  EXPECT_EQ(cache_->Resize(4, 0).result.doomed_pages, 4u);
  const kvc_create_result made = cache_->Create({});
  std::vector<kvc_evicted_block> told(8);
  const kvc_grow_result grown = cache_->Grow(made.sequence, kBlock, &told);
  EXPECT_EQ(grown.status, KVC_OK);
  // The four doomed ones stand first; the page comes from the fifth.
  EXPECT_EQ(grown.evicted_blocks, 5u);
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(PagesOf(made.sequence), std::vector<uint32_t>{told[4].page});
  EXPECT_EQ(cache_->Stats().evicted_blocks, 5u);
  EXPECT_EQ(cache_->Stats().leaving_pages, 4u);
  Check();
}

TEST_F(ResizeTest, BooksOnlyTellsTheEngineWhatToCopy) {
  Open(8, 8, 2, 0);
  const uint64_t low = Fill(1, 2);
  const uint64_t high = Fill(100, 6);
  EXPECT_EQ(cache_->Cancel(low), KVC_OK);
  EXPECT_EQ(cache_->Release(high), KVC_OK);
  kvc_resize_result result{};
  ASSERT_EQ(kvc_pool_resize(cache_->manager(), 6, 8, nullptr, 0, nullptr, 0, &result, nullptr),
            KVC_OK);
  EXPECT_EQ(result.moved_pages + result.evicted_blocks, 0u);
  EXPECT_EQ(result.doomed_pages, 2u);
  const Resized shrunk = cache_->Resize(6);
  EXPECT_EQ(shrunk.result.moved_pages, 2u);
  EXPECT_EQ(shrunk.result.evicted_blocks, 2u);
  // Nobody has to give memory back.
  EXPECT_EQ(shrunk.result.done, 1u);
  EXPECT_EQ(cache_->Create(Text(100, 6)).matched_tokens, 6 * kBlock);
  EXPECT_EQ(cache_->Stats().mapped_bytes, 0u);
  Check();
}

TEST_F(ResizeTest, OtherThingsHappenMeanwhile) {
  Open(16, 16, 2);
  const uint64_t one = Fill(1, 5);
  const uint64_t two = Fill(100, 5);
  const kvc_fork_result fork = cache_->Fork(one, 0);
  ASSERT_EQ(fork.status, KVC_OK);
  const kvc_pin_result pin = cache_->Pin(two);
  ASSERT_EQ(pin.status, KVC_OK);
  EXPECT_EQ(cache_->Resize(4).result.held_pages, 6u);
  EXPECT_EQ(cache_->Suspend(one, true), KVC_OK);
  EXPECT_EQ(cache_->Release(two), KVC_OK);
  Check();
  EXPECT_EQ(cache_->Resume(one).status, KVC_OK);
  EXPECT_EQ(PagesOf(one), PagesOf(fork.sequence));
  EXPECT_EQ(kvc_manager_reset(cache_->manager(), nullptr), KVC_OK);
  Check();
  EXPECT_EQ(cache_->Resize(4).result.held_pages, 6u);
  EXPECT_EQ(cache_->Release(one), KVC_OK);
  EXPECT_EQ(cache_->Release(fork.sequence), KVC_OK);
  EXPECT_EQ(cache_->Unpin(pin.pin), KVC_OK);
  Check();
  cache_->Advance();
  EXPECT_EQ(cache_->Resize(4).result.done, 1u);
  EXPECT_EQ(cache_->Stats().free_pages, 4u);
  Check();
}

// The manager's own device, which can be made to fail.
TEST_F(ResizeTest, GrowthThatFailsIsSaidOnce) {
  kvc_config config;
  kvc_config_init(&config);
  config.tokens_per_block = kBlock;
  config.capacity_blocks = 4;
  config.max_blocks = 100;
  config.min_blocks = 2;
  config.page_bytes = 8;
  Manager m(config, nullptr);
  kvc_resize_result result{};
  kvc_error error{};
  const auto resize = [&](uint32_t target) {
    error = {};
    return m.Resize(target, 100, nullptr, 0, nullptr, 0, &result, &error);
  };
  dynamic_cast<HostDevice&>(m.device()).FailGrowthAt(50);
  EXPECT_EQ(resize(80), KVC_OK);
  m.Advance(0, 1);
  EXPECT_EQ(m.Check(nullptr), KVC_OK);
  EXPECT_EQ(resize(80), KVC_OUT_OF_MEMORY);
  EXPECT_EQ(error.status, KVC_OUT_OF_MEMORY);
  EXPECT_EQ(result.target_pages, 50u);
  EXPECT_EQ(result.total_pages, 50u);
  EXPECT_EQ(result.done, 1u);
  EXPECT_EQ(resize(80), KVC_OK);  // tries again
  EXPECT_EQ(result.growing_pages, 30u);
  m.Advance(0, 1);
  EXPECT_EQ(resize(10), KVC_OK);  // wants no more of it
  EXPECT_EQ(result.leaving_pages, 40u);
  dynamic_cast<HostDevice&>(m.device()).FailGrowthAt(UINT32_MAX);
  EXPECT_EQ(resize(80), KVC_OK);
  m.Advance(0, 1);
  EXPECT_EQ(resize(80), KVC_OK);
  EXPECT_EQ(result.done, 1u);
  kvc_stats stats;
  kvc_stats_init(&stats);
  m.Stats(&stats);
  EXPECT_EQ(stats.failed_resizes, 2u);
  EXPECT_EQ(stats.total_pages, 80u);
  EXPECT_EQ(m.Check(nullptr), KVC_OK);
}

// A growth that fails while a call that wants less is under way: the target stays, and
// nothing has gone in vain.
TEST(ResizeRaces, AGrowthFailsWhileThePoolShrinks) {
  uint32_t met = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    kvc_config config;
    kvc_config_init(&config);
    config.tokens_per_block = 1;
    config.capacity_blocks = 2000;
    config.max_blocks = 4000;
    config.min_blocks = 8;
    config.page_bytes = 4096;
    Manager m(config, nullptr);
    auto& device = dynamic_cast<HostDevice&>(m.device());
    for (uint32_t i = 0; i < 2000; ++i) {
      kvc_prompt prompt{};
      prompt.token_count = 1;
      prompt.scope = KVC_NO_SCOPE;
      prompt.must_compute = KVC_COMPUTE_NOTHING;
      kvc_create_result made{};
      m.Create(1, &prompt, {&i, 1}, &made, nullptr);
      const kvc_grow_item room{made.sequence, 1};
      kvc_grow_result grown{};
      m.Grow(1, &room, &grown, nullptr);
      const kvc_commit_item item{made.sequence, 0, 1, 0, 0, {}, 0};
      kvc_commit_result committed{};
      m.Commit(1, &item, {&i, 1}, &committed, nullptr);
      kvc_status released = KVC_INTERNAL;
      m.Release(1, &made.sequence, &released, nullptr);
      ASSERT_EQ(released, KVC_OK);
    }
    kvc_resize_result result{};
    device.FailGrowthAt(2100);
    ASSERT_EQ(m.Resize(4000, 10, nullptr, 0, nullptr, 0, &result, nullptr), KVC_OK);
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) std::this_thread::yield();
      for (uint32_t i = 0; i < round * 50; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      (void)device.Advance(0, 0);
    });
    go = true;
    const kvc_status status = m.Resize(1000, UINT32_MAX, nullptr, 0, nullptr, 0, &result, nullptr);
    other.join();
    EXPECT_EQ(status, KVC_OK);
    EXPECT_EQ(result.target_pages, 1000u);
    kvc_error error{};
    EXPECT_EQ(m.Check(&error), KVC_OK) << error.message;
    met += result.evicted_blocks != 0 ? 1 : 0;
  }
  EXPECT_EQ(met, 40u);
}

// What waits for a step would make all later copies wait for it as well.
TEST_F(ResizeTest, WhatAStepFillsMovesAfterIt) {
  Open(16, 16, 4);
  uint64_t steps = 0;
  ASSERT_EQ(kvc_step_stream_create(cache_->manager(), &steps, nullptr), KVC_OK);
  ASSERT_EQ(kvc_step_begin(cache_->manager(), steps, 1, nullptr), KVC_OK);
  const uint64_t low = Room(8);
  const uint64_t high = Fill(100, 1, steps);
  EXPECT_EQ(cache_->Release(high), KVC_OK);
  EXPECT_EQ(cache_->Cancel(low), KVC_OK);
  Resized r = cache_->Resize(8, 64);
  EXPECT_EQ(r.result.moved_pages, 0u);
  EXPECT_EQ(r.result.evicted_blocks, 0u);
  EXPECT_EQ(r.result.doomed_pages, 1u);
  ASSERT_EQ(kvc_step_done(cache_->manager(), steps, 1, nullptr), KVC_OK);
  r = cache_->Resize(8, 64);
  EXPECT_EQ(r.result.moved_pages + r.result.evicted_blocks, 1u);
  Check();
}

TEST_F(ResizeTest, WithoutAStreamForCopiesTheCallerIsTold) {
  Open(16, 16, 4);
  uint64_t stream = 0;
  while (kvc_device_stream_create(cache_->manager(), &stream, nullptr) == KVC_OK) {
  }
  const uint64_t low = Room(8);
  const uint64_t high = Fill(100, 2);
  EXPECT_EQ(cache_->Release(high), KVC_OK);
  EXPECT_EQ(cache_->Cancel(low), KVC_OK);
  (void)cache_->Resize(8, 0);
  const Resized r = cache_->Resize(8, 64);
  EXPECT_EQ(r.status, KVC_NOT_NOW);
  EXPECT_EQ(r.result.target_pages, 8u);
  Check();
}

TEST(PageBits, AgainstASet) {
  std::mt19937_64 random(EnvNumber("KVC_TEST_SEED", 1));
  for (const uint32_t size : {1u, 63u, 64u, 65u, 4096u, 4097u, 300000u}) {
    PageBits bits(size);
    PageBits other(size);
    std::set<uint32_t> mine;
    std::set<uint32_t> others;
    for (int step = 0; step < 400; ++step) {
      const auto a = static_cast<uint32_t>(random() % size);
      const auto b = a + static_cast<uint32_t>(random() % (std::min(size - a, 200u) + 1));
      switch (random() % 5) {
        case 0:
          if (others.count(a) == 0) {
            bits.Add(a);
            mine.insert(a);
          }
          break;
        case 1:
          bits.Remove(a);
          mine.erase(a);
          break;
        case 2:
          for (uint32_t i = a; i < b; ++i) {
            other.Remove(i);
            others.erase(i);
            mine.insert(i);
          }
          bits.AddRange(a, b);
          break;
        case 3: {
          uint32_t count = 0;
          for (auto at = mine.lower_bound(a); at != mine.end() && *at < b; ++count) {
            others.insert(*at);
            at = mine.erase(at);
          }
          EXPECT_EQ(bits.MoveTo(&other, a, b), count);
          break;
        }
        default: {
          const auto next = mine.lower_bound(a);
          EXPECT_EQ(bits.Next(a), next != mine.end() ? *next : kNil);
          if (!mine.empty()) {
            EXPECT_EQ(bits.First(), *mine.begin());
          }
          EXPECT_EQ(bits.Count(a, b),
                    static_cast<uint32_t>(std::distance(next, mine.lower_bound(b))));
          uint32_t absent = kNil;
          for (uint32_t i = b; i-- > a && absent == kNil;) {
            if (mine.count(i) == 0) absent = i;
          }
          EXPECT_EQ(bits.LastAbsent(a, b), absent);
          EXPECT_EQ(bits.Has(a), mine.count(a) != 0);
          EXPECT_EQ(other.Has(a), others.count(a) != 0);
        }
      }
    }
    EXPECT_EQ(other.Count(0, size), others.size());
  }
}

TEST(ElasticMemory, ComesAndGoes) {
  ElasticMemory memory(size_t{1} << 30);
  memory.Resize(10000);
  EXPECT_EQ(memory.size(), 12288u);
  std::memset(memory.data(), 0x5A, memory.size());
  memory.Resize(4096);
  memory.Resize(3 * 4096);
  EXPECT_EQ(memory.data()[4095], std::byte{0x5A});
  for (size_t i = 4096; i < memory.size(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  memory.Resize(0);
  EXPECT_EQ(memory.size(), 0u);
}

TEST(ElasticMemoryDeathTest, StopsWhoeverReachesBeyond) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ElasticMemory memory(1 << 20);
  memory.Resize(8192);
  memory.Resize(4096);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(memory.data() + 4096) = std::byte{1}, "");
}

}  // namespace

}  // namespace testing
}  // namespace kvcast
