// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Forks and their copies, case by case: who shares what with whom, who is given a
// copy and who writes in place, on which stream, and what is refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/native/abi_support.h"

namespace kvcast::testing {
namespace {

class ForkTest : public ::testing::Test {
 protected:
  static CacheOptions Options(uint32_t pages = 8) {
    CacheOptions options;
    options.block = 4;
    options.pages = pages;
    options.sequences = 8;
    return options;
  }
  // Everything that was opened is released, and the manager closes.
  void TearDown() override {
    if (cache_ == nullptr) return;
    for (const uint64_t id : open_) (void)cache_->Release(id);
    EXPECT_EQ(cache_->Check(), "");
    EXPECT_EQ(cache_->Close(), KVC_OK);
  }
  Cache& Make(const CacheOptions& options) {
    cache_ = std::make_unique<Cache>(options);
    return *cache_;
  }
  kvc_fork_result Fork(uint64_t id, uint64_t stream) {
    const kvc_fork_result fork = cache_->Fork(id, stream);
    if (fork.status == KVC_OK) open_.push_back(fork.sequence);
    return fork;
  }
  // A sequence of `tokens` tokens that begin with `first`.
  uint64_t Open(Cache& cache, uint32_t tokens, uint64_t stream = 0, uint32_t first = 1) {
    std::vector<uint32_t> text(tokens);
    std::iota(text.begin(), text.end(), first);
    const kvc_create_result made = cache.Create(text, {}, 0, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(cache.Grow(made.sequence, tokens).status, KVC_OK);
    EXPECT_EQ(Commit(cache, made.sequence, text), KVC_OK);
    open_.push_back(made.sequence);
    return made.sequence;
  }
  static kvc_status Commit(Cache& cache, uint64_t id, const std::vector<uint32_t>& tokens) {
    return cache.Commit(id, tokens.data(), tokens.size()).status;
  }
  static std::vector<uint32_t> Pages(Cache& cache, uint64_t id) {
    kvc_sequence_info info{};
    std::vector<uint32_t> pages;
    EXPECT_EQ(cache.Get(id, &info, &pages), KVC_OK);
    return pages;
  }
  static uint64_t Stream(Cache& cache) {
    uint64_t stream = 0;
    EXPECT_EQ(kvc_device_stream_create(cache.manager(), &stream, nullptr), KVC_OK);
    return stream;
  }
  static void Fill(Cache& cache, uint64_t stream, uint32_t page, uint64_t value) {
    const kvc_host_fill fill{page, 0, value};
    ASSERT_EQ(kvc_host_enqueue_fill(cache.manager(), stream, 1, &fill, nullptr), KVC_OK);
  }
  static uint64_t Word(Cache& cache, uint32_t page) {
    uint64_t word = 0;
    EXPECT_EQ(
        kvc_host_read(cache.manager(), page, 0, 8, reinterpret_cast<uint8_t*>(&word), nullptr),
        KVC_OK);
    return word;
  }
  static uint64_t Advance(Cache& cache, uint64_t stream = 0) {
    uint64_t executed = 0;
    EXPECT_EQ(kvc_host_advance(cache.manager(), stream, UINT64_MAX, &executed, nullptr), KVC_OK);
    return executed;
  }
  static void Sound(Cache& cache) { ASSERT_EQ(cache.Check(), ""); }

  std::unique_ptr<Cache> cache_;
  std::vector<uint64_t> open_;
};

TEST_F(ForkTest, BeamsShareUntilTheyWriteAndTheLastWritesInPlace) {
  Cache& cache = Make(Options());
  const uint64_t parent = Open(cache, 6);
  const std::vector<uint32_t> pages = Pages(cache, parent);
  std::vector<uint64_t> beams;
  for (int i = 0; i < 3; ++i) {
    const kvc_fork_result fork = Fork(parent, 0);
    ASSERT_EQ(fork.status, KVC_OK);
    EXPECT_EQ(fork.committed_tokens, 6u);
    EXPECT_EQ(fork.wait_count, 0u);
    EXPECT_EQ(Pages(cache, fork.sequence), pages);
    beams.push_back(fork.sequence);
  }
  EXPECT_EQ(cache.Stats().live_pages, 2u);
  // The one from which they came goes first; that changes nothing for the others.
  EXPECT_EQ(cache.Release(parent), KVC_OK);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Commit(cache, beams[i], {100}), i < 2 ? KVC_BAD_STATE : KVC_OK)
        << "who shares must grow first";
    const kvc_grow_result grown = cache.Grow(beams[i], 8);
    ASSERT_EQ(grown.status, KVC_OK);
    if (i < 2) {
      EXPECT_EQ(grown.added_pages, 1u);
      EXPECT_EQ(grown.copied_block, 1u);
      EXPECT_EQ(grown.copied_from, pages[1]);
      EXPECT_EQ(grown.copied_to, Pages(cache, beams[i])[1]);
      EXPECT_EQ(grown.copied_tokens, 2u);
      EXPECT_EQ(Commit(cache, beams[i], {100, 101u + i}), KVC_OK);
    } else {
      EXPECT_EQ(grown.copied_block, KVC_NO_COPY) << "the last one";
      EXPECT_EQ(Commit(cache, beams[i], {7}), KVC_OK);
      EXPECT_EQ(Pages(cache, beams[i]), pages);
    }
    Sound(cache);
  }
  EXPECT_EQ(cache.Stats().copied_pages, 2u);
  EXPECT_EQ(cache.Stats().copied_bytes, 32u);
  EXPECT_EQ(cache.Stats().forked_sequences, 3u);
  EXPECT_EQ(cache.Stats().blocks, 4u);
  for (const uint64_t beam : beams) EXPECT_EQ(cache.Release(beam), KVC_OK);
  Advance(cache);
  EXPECT_EQ(cache.Stats().live_pages, 0u);
  Sound(cache);
}

TEST_F(ForkTest, AskingForNoMoreThanIsCommittedCopiesNothing) {
  Cache& cache = Make(Options());
  const uint64_t parent = Open(cache, 6);
  const uint64_t fork = Fork(parent, 0).sequence;
  EXPECT_EQ(cache.Grow(fork, 6).copied_block, KVC_NO_COPY);
  EXPECT_EQ(cache.Grow(fork, 7).copied_block, 1u);
  // Whole blocks are never written again.
  const uint64_t whole = Open(cache, 8, 0, 50);
  const uint64_t other = Fork(whole, 0).sequence;
  const kvc_grow_result grown = cache.Grow(other, 9);
  EXPECT_EQ(grown.status, KVC_OK);
  EXPECT_EQ(grown.copied_block, KVC_NO_COPY);
  EXPECT_EQ(grown.added_pages, 1u);
  EXPECT_EQ(Pages(cache, whole).size(), 2u) << "room is nobody else's";
  Sound(cache);
}

TEST_F(ForkTest, TheCopyIsOnTheStreamOfWhoeverWritesBehindWhatItReads) {
  Cache& cache = Make(Options());
  const uint64_t a = Stream(cache), b = Stream(cache);
  const uint64_t parent = Open(cache, 6, a);
  const uint32_t tail = Pages(cache, parent)[1];
  Fill(cache, a, tail, 11);
  const kvc_fork_result fork = Fork(parent, b);
  ASSERT_EQ(fork.status, KVC_OK);
  ASSERT_EQ(fork.wait_count, 1u);
  EXPECT_EQ(fork.waits[0].device_stream, a);
  const kvc_grow_result grown = cache.Grow(fork.sequence, 8);
  ASSERT_EQ(grown.copied_block, 1u);
  EXPECT_EQ(grown.wait_count, 0u) << "the sequence's own stream has it in order";
  EXPECT_EQ(Advance(cache, b), 2u) << "the fill that the copy waits for, and the copy";
  EXPECT_EQ(Word(cache, grown.copied_to), 11u);
  // The page that was read is not handed out to others while it may be read.
  EXPECT_EQ(cache.Release(parent), KVC_OK);
  EXPECT_EQ(cache.Release(fork.sequence), KVC_OK);
  Sound(cache);
}

TEST_F(ForkTest, TheHostAndStepsAreToldWhenTheCopyIsDone) {
  Cache& cache = Make(Options());
  uint64_t steps = 0;
  ASSERT_EQ(kvc_step_stream_create(cache.manager(), &steps, nullptr), KVC_OK);
  ASSERT_EQ(kvc_step_begin(cache.manager(), steps, 1, nullptr), KVC_OK);
  const uint64_t parent = Open(cache, 6, steps);
  Fill(cache, 0, Pages(cache, parent)[1], 5);
  const uint64_t fork = Fork(parent, steps).sequence;
  const kvc_grow_result grown = cache.Grow(fork, 8);
  ASSERT_EQ(grown.copied_block, 1u);
  ASSERT_EQ(grown.wait_count, 1u);
  EXPECT_EQ(Advance(cache), 0u) << "step 1 may still write what is to be copied";
  ASSERT_EQ(kvc_step_done(cache.manager(), steps, 1, nullptr), KVC_OK);
  uint8_t done = 1;
  ASSERT_EQ(kvc_device_fences_query(cache.manager(), 1, &grown.wait, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(Advance(cache, grown.wait.device_stream), 1u);
  ASSERT_EQ(kvc_device_fences_query(cache.manager(), 1, &grown.wait, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(Word(cache, grown.copied_to), 5u);
  // The stream is the library's own.
  EXPECT_EQ(kvc_device_stream_destroy(cache.manager(), grown.wait.device_stream, nullptr),
            KVC_STALE_HANDLE);
  Sound(cache);
}

TEST_F(ForkTest, AStreamThatWouldHaveToWaitForAStepIsRefused) {
  Cache& cache = Make(Options());
  uint64_t steps = 0;
  ASSERT_EQ(kvc_step_stream_create(cache.manager(), &steps, nullptr), KVC_OK);
  ASSERT_EQ(kvc_step_begin(cache.manager(), steps, 1, nullptr), KVC_OK);
  const uint64_t parent = Open(cache, 6, steps);
  const uint64_t fork = Fork(parent, Stream(cache)).sequence;
  const kvc_stats before = cache.Stats();
  EXPECT_EQ(cache.Grow(fork, 8).status, KVC_NOT_NOW);
  EXPECT_EQ(cache.Stats().free_pages, before.free_pages);
  ASSERT_EQ(kvc_step_done(cache.manager(), steps, 1, nullptr), KVC_OK);
  EXPECT_EQ(cache.Grow(fork, 8).copied_block, 1u);
  Sound(cache);
}

TEST_F(ForkTest, NoPageForTheCopyChangesNothing) {
  Cache& cache = Make(Options(2));
  const uint64_t parent = Open(cache, 6);
  const uint64_t fork = Fork(parent, 0).sequence;
  const std::vector<uint32_t> pages = Pages(cache, fork);
  for (const uint64_t id : {parent, fork}) {
    EXPECT_EQ(cache.Grow(id, 8).status, KVC_NOT_NOW);
    EXPECT_EQ(Pages(cache, id), pages);
  }
  EXPECT_EQ(cache.Release(parent), KVC_OK);
  const kvc_grow_result grown = cache.Grow(fork, 8);
  EXPECT_EQ(grown.status, KVC_OK);
  EXPECT_EQ(grown.added_pages, 0u);
  Sound(cache);
}

// Suspended sequences never stand in anybody's way, whatever they share.
TEST_F(ForkTest, AShareThatOnlySuspendedOnesKeepIsTakenFromThem) {
  Cache& cache = Make(Options(2));
  const uint64_t parent = Open(cache, 6);
  const uint64_t fork = Fork(parent, 0).sequence;
  ASSERT_EQ(cache.Suspend(parent, true), KVC_OK);
  const kvc_grow_result grown = cache.Grow(fork, 8);
  EXPECT_EQ(grown.status, KVC_OK);
  EXPECT_EQ(grown.added_pages, 0u);
  EXPECT_EQ(grown.copied_block, KVC_NO_COPY);
  EXPECT_EQ(cache.Stats().reclaimed_pages, 1u);
  Sound(cache);
  EXPECT_EQ(cache.Resume(parent).lost_tokens, 2u);
  Sound(cache);
}

TEST_F(ForkTest, WhatAForkInheritsAndWhatIsRefused) {
  Cache& cache = Make(Options());
  const uint64_t parent = Open(cache, 6);
  ASSERT_EQ(cache.Stop(parent, 4), KVC_OK);
  const uint64_t fork = Fork(parent, 0).sequence;
  ASSERT_EQ(cache.Grow(fork, 8).status, KVC_OK);
  ASSERT_EQ(Commit(cache, fork, {1, 2}), KVC_OK);
  EXPECT_EQ(cache.Stats().blocks, 1u) << "stopped, like the other";
  ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
  const kvc_fork_result detached = Fork(fork, 0);
  ASSERT_EQ(detached.status, KVC_OK);
  kvc_sequence_info info{};
  std::vector<uint32_t> pages;
  ASSERT_EQ(cache.Get(detached.sequence, &info, &pages), KVC_OK);
  EXPECT_EQ(info.detached, 1u);
  EXPECT_EQ(info.committed_tokens, 8u);
  ASSERT_EQ(cache.Suspend(parent, true), KVC_OK);
  EXPECT_EQ(Fork(parent, 0).status, KVC_BAD_STATE);
  EXPECT_EQ(Fork(fork, 12345).status, KVC_STALE_HANDLE) << "no such stream";
  ASSERT_EQ(cache.Release(fork), KVC_OK);
  EXPECT_EQ(Fork(fork, 0).status, KVC_STALE_HANDLE);
  Sound(cache);
}

TEST_F(ForkTest, WithALayoutOnlyWhatTheTokensTakeIsCopied) {
  kvc_geometry_config config;
  kvc_geometry_config_init(&config);
  config.tokens_per_block = 4;
  config.capacity_blocks = 8;
  // Keys and values of one layer, 16 bytes a token each.
  const kvc_buffer_spec specs[] = {{0, 0, KVC_ROLE_KEY, KVC_DTYPE_BF16, 1, 8, 0, 0},
                                   {0, 0, KVC_ROLE_VALUE, KVC_DTYPE_BF16, 1, 8, 0, 0}};
  CacheOptions options = Options();
  options.page_bytes = 128;
  options.poison = false;
  Cache& cache = Make(options);
  kvc_error error{};
  const auto set = [&] { return kvc_page_layout_set(cache.manager(), &config, 2, specs, &error); };
  config.tokens_per_block = 8;
  EXPECT_EQ(set(), KVC_INVALID_ARGUMENT) << error.message;
  config.tokens_per_block = 4;
  config.layout = KVC_LAYOUT_PER_LAYER;
  EXPECT_EQ(set(), KVC_INVALID_ARGUMENT) << error.message;
  config.layout = KVC_LAYOUT_COALESCED;
  config.alignment = 512;
  EXPECT_EQ(set(), KVC_INVALID_ARGUMENT) << error.message;
  config.alignment = 16;
  ASSERT_EQ(set(), KVC_OK) << error.message;
  EXPECT_EQ(set(), KVC_BAD_STATE) << "once";
  const uint64_t stream = Stream(cache);
  const uint64_t parent = Open(cache, 6, stream);
  Fill(cache, stream, Pages(cache, parent)[1], 9);
  const uint64_t fork = Fork(parent, stream).sequence;
  const kvc_grow_result grown = cache.Grow(fork, 8);
  ASSERT_EQ(grown.copied_tokens, 2u);
  EXPECT_EQ(cache.Stats().copied_bytes, 2u * 2 * 16);
  Advance(cache);
  std::vector<uint64_t> words(16);
  ASSERT_EQ(kvc_host_read(cache.manager(), grown.copied_to, 0, 128,
                          reinterpret_cast<uint8_t*>(words.data()), nullptr),
            KVC_OK);
  for (size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(words[i], i % 8 < 4 ? 9u : 0u) << "word " << i;
  }
}

TEST_F(ForkTest, WithoutMemoryTheEngineCopies) {
  CacheOptions options = Options();
  options.page_bytes = 0;
  Cache& cache = Make(options);
  const uint64_t parent = Open(cache, 6);
  EXPECT_EQ(Fork(parent, Stream(cache)).status, KVC_INVALID_ARGUMENT);
  const uint64_t fork = Fork(parent, 0).sequence;
  const kvc_grow_result grown = cache.Grow(fork, 8);
  EXPECT_EQ(grown.copied_block, 1u);
  EXPECT_EQ(grown.copied_from, Pages(cache, parent)[1]);
  EXPECT_EQ(grown.wait_count, 0u);
  EXPECT_EQ(cache.Stats().copied_pages, 1u);
  EXPECT_EQ(cache.Stats().copied_bytes, 0u);
  Sound(cache);
}

}  // namespace
}  // namespace kvcast::testing
