// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Where two features meet, or a number is as large as it may be: what no random
// walk of the model comes to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <limits>
#include <numeric>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace {

using kvcast::testing::PromptList;
using kvcast::testing::ScopeSpec;

constexpr uint32_t kBlock = 4;

std::vector<uint32_t> Tokens(uint32_t count, uint32_t first) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class EdgesTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (m_ == nullptr) return;
    Check();
    for (const uint64_t id : open_) {
      kvc_status status = KVC_OK;
      kvc_sequences_release(m_, 1, &id, &status, nullptr);
    }
    EXPECT_EQ(kvc_manager_destroy(m_, nullptr), KVC_OK);
  }
  void Open(uint32_t pages, uint32_t sequences = 64) {
    kvc_config config;
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = pages;
    config.max_sequences = sequences;
    config.resume_gate_permille = 1000;
    config.seed = 3;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, &m_, nullptr), KVC_OK);
  }
  void Check() {
    kvc_error error{};
    ASSERT_EQ(kvc_manager_check(m_, &error), KVC_OK) << error.message;
  }
  kvc_create_result Create(const std::vector<uint32_t>& tokens, const ScopeSpec& scope = {},
                           uint64_t stream = 0) {
    PromptList list;
    list.Add(tokens, scope, KVC_COMPUTE_NOTHING, stream);
    kvc_create_result made{};
    EXPECT_EQ(list.Create(m_, &made, nullptr), KVC_OK);
    EXPECT_EQ(made.status, KVC_OK);
    open_.push_back(made.sequence);
    return made;
  }
  kvc_grow_result Grow(uint64_t id, uint64_t tokens,
                       std::vector<kvc_evicted_block>* told = nullptr) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result result{};
    uint32_t count = 0;
    EXPECT_EQ(kvc_sequences_grow(m_, 1, &item, &result, told == nullptr ? nullptr : told->data(),
                                 told == nullptr ? 0 : static_cast<uint32_t>(told->size()), &count,
                                 nullptr),
              KVC_OK);
    if (told != nullptr) told->resize(count);
    return result;
  }
  void Commit(uint64_t id, const std::vector<uint32_t>& tokens) {
    const kvc_commit_item item{id, 0, tokens.size(), 0, 0, {}, 0};
    kvc_commit_result result{};
    ASSERT_EQ(kvc_sequences_commit(m_, 1, &item, tokens.data(), tokens.size(), nullptr, 0, &result,
                                   nullptr),
              KVC_OK);
    ASSERT_EQ(result.status, KVC_OK);
  }
  // A sequence with these tokens committed.
  uint64_t Run(const std::vector<uint32_t>& tokens, const ScopeSpec& scope = {},
               uint64_t stream = 0) {
    const kvc_create_result made = Create(tokens, scope, stream);
    EXPECT_EQ(Grow(made.sequence, tokens.size()).status, KVC_OK);
    const auto from = static_cast<ptrdiff_t>(made.matched_tokens);
    Commit(made.sequence, {tokens.begin() + from, tokens.end()});
    return made.sequence;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    kvc_sequences_release(m_, 1, &id, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
    for (uint64_t& open : open_) {
      if (open == id) {
        open = open_.back();
        open_.pop_back();
        return;
      }
    }
  }
  void Suspend(uint64_t id, uint32_t flags) {
    const kvc_suspend_item item{id, flags, 0};
    kvc_status status = KVC_INTERNAL;
    kvc_sequences_suspend(m_, 1, &item, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
  }
  kvc_status Retain(uint64_t id, uint64_t first, uint64_t end, uint32_t priority,
                    uint64_t expires_ns = 0) {
    const kvc_retain_item item{id, first, end, expires_ns, priority, 0};
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_retain(m_, 1, &item, &status, nullptr), KVC_OK);
    return status;
  }
  kvc_stats Stats() {
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(m_, &stats, nullptr), KVC_OK);
    return stats;
  }
  bool Reached(uint64_t stream, uint64_t position) {
    const kvc_fence fence{stream, position};
    uint8_t done = 0;
    EXPECT_EQ(kvc_device_fences_query(m_, 1, &fence, &done, nullptr), KVC_OK);
    return done != 0;
  }

  kvc_manager* m_ = nullptr;
  std::vector<uint64_t> open_;
};

// An upload would count as a step of its own, and its execution as the end of one
// whose kernels still run.
TEST_F(EdgesTest, NothingIsUploadedOnAStreamOfSteps) {
  Open(8);
  uint64_t steps = 0, table = 0, address = 0;
  ASSERT_EQ(kvc_step_stream_create(m_, &steps, nullptr), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(m_, 2, 4, -1, 64, &table, &address, nullptr), KVC_OK);
  ASSERT_EQ(kvc_step_begin(m_, steps, 1, nullptr), KVC_OK);
  const kvc_table_delta delta{0, 0, 7};
  const int32_t rows[8] = {};
  EXPECT_EQ(kvc_device_table_update(m_, table, steps, 1, &delta, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_write(m_, table, steps, 0, 2, 4, rows, nullptr), KVC_INVALID_ARGUMENT);
  uint64_t ran = 0;
  ASSERT_EQ(kvc_host_advance(m_, 0, 100, &ran, nullptr), KVC_OK);
  EXPECT_EQ(ran, 0u);
  EXPECT_FALSE(Reached(steps, 1));
  EXPECT_EQ(kvc_step_done(m_, steps, 1, nullptr), KVC_OK);
  EXPECT_TRUE(Reached(steps, 1));
  EXPECT_EQ(kvc_device_table_destroy(m_, table, nullptr), KVC_OK);
}

// After a reset two sequences may share what they keep. Either alone would free
// nothing, both together free all.
TEST_F(EdgesTest, SuspendedSequencesThatShareKeptPagesStandInNobodysWay) {
  Open(4);
  const std::vector<uint32_t> tokens = Tokens(4 * kBlock, 1);
  const uint64_t a = Run(tokens);
  const uint64_t b = Run(tokens);
  ASSERT_EQ(kvc_manager_reset(m_, nullptr), KVC_OK);
  Suspend(a, KVC_SUSPEND_KEEP);
  Suspend(b, KVC_SUSPEND_KEEP);
  ASSERT_EQ(Stats().kept_pages, 8u);
  const uint64_t c = Create(Tokens(kBlock, 100)).sequence;
  EXPECT_EQ(Grow(c, 4 * kBlock).status, KVC_OK);
  Check();
  EXPECT_EQ(Stats().kept_pages, 0u);
  EXPECT_EQ(Stats().live_pages, 4u);
}

TEST_F(EdgesTest, ATimeFarAheadIsNotDue) {
  Open(8);
  constexpr uint64_t kNow = 1'780'000'000'000'000'000;  // nanoseconds since 1970
  const uint64_t id = Run(Tokens(3 * kBlock, 1));
  ASSERT_EQ(Retain(id, 0, kBlock, 90, INT64_MAX), KVC_OK);
  ASSERT_EQ(Retain(id, kBlock, 2 * kBlock, 80, UINT64_MAX), KVC_OK);
  // Ten years, of which the half is more than 31 bits of ticks.
  const uint64_t years = kNow + uint64_t{10} * 365 * 86400 * 1'000'000'000;
  ASSERT_EQ(Retain(id, 2 * kBlock, 3 * kBlock, 70, years), KVC_OK);
  uint32_t expired = 0, more = 0;
  for (uint64_t minute = 0; minute < 20; ++minute) {
    ASSERT_EQ(kvc_expire(m_, kNow + minute * 60'000'000'000, 0, &expired, &more, nullptr), KVC_OK);
    ASSERT_EQ(expired, 0u) << "minute " << minute;
  }
  Check();
  ASSERT_EQ(kvc_expire(m_, years, 0, &expired, &more, nullptr), KVC_OK);
  EXPECT_EQ(expired, 1u);
  ASSERT_EQ(kvc_expire(m_, INT64_MAX - (uint64_t{1} << 28), 0, &expired, &more, nullptr), KVC_OK);
  EXPECT_EQ(expired, 0u);
  ASSERT_EQ(kvc_expire(m_, INT64_MAX, 0, &expired, &more, nullptr), KVC_OK);
  EXPECT_EQ(expired, 2u);
}

TEST_F(EdgesTest, AHoldIsNoSequenceOfATable) {
  Open(8);
  const uint64_t id = Run(Tokens(2 * kBlock, 1));
  const kvc_hold_item item{id, 1, 0};
  kvc_hold_result held{};
  ASSERT_EQ(kvc_sequences_release_held(m_, 1, &item, &held, nullptr), KVC_OK);
  open_.clear();
  int32_t row[4];
  kvc_table_result result{};
  const kvc_table_item of{held.hold, 0, 0};
  ASSERT_EQ(kvc_tables_dense(m_, nullptr, 1, &of, 4, 4, row, nullptr, &result, nullptr), KVC_OK);
  EXPECT_EQ(result.status, KVC_STALE_HANDLE);
  EXPECT_EQ(row[0], -1);
  kvc_status status = KVC_INTERNAL;
  ASSERT_EQ(kvc_holds_release(m_, 1, &held.hold, &status, nullptr), KVC_OK);
  EXPECT_EQ(status, KVC_OK);
}

// What a sequence was told to wait for may be older than the stream that has the
// slot now.
TEST_F(EdgesTest, OldFencesStayValidOverANewStreamOfSteps) {
  Open(8);
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(m_, &stream, nullptr), KVC_OK);
  const kvc_host_fill fill{0, 0, 0};
  for (int i = 0; i < 5; ++i) kvc_host_enqueue_fill(m_, stream, 1, &fill, nullptr);
  const std::vector<uint32_t> tokens = Tokens(2 * kBlock, 1);
  const uint64_t first = Run(tokens, {}, stream);
  kvc_host_enqueue_fill(m_, stream, 1, &fill, nullptr);
  const kvc_create_result made = Create(tokens);
  ASSERT_EQ(made.wait_count, 1u);
  Release(first);
  uint64_t ran = 0;
  ASSERT_EQ(kvc_host_advance(m_, 0, 100, &ran, nullptr), KVC_OK);
  ASSERT_EQ(kvc_device_stream_destroy(m_, stream, nullptr), KVC_OK);
  uint64_t steps = 0;
  ASSERT_EQ(kvc_step_stream_create(m_, &steps, nullptr), KVC_OK);
  ASSERT_EQ(kvc_step_begin(m_, steps, 1, nullptr), KVC_OK);
  kvc_fence waits[KVC_MAX_WAITS]{};
  uint32_t count = 0;
  ASSERT_EQ(kvc_sequence_waits(m_, made.sequence, KVC_MAX_WAITS, waits, &count, nullptr), KVC_OK);
  ASSERT_EQ(count, 1u);
  kvc_error error{};
  uint8_t done = 0;
  EXPECT_EQ(kvc_device_fences_query(m_, 1, waits, &done, &error), KVC_OK) << error.message;
  EXPECT_EQ(done, 1);
  ASSERT_EQ(kvc_step_done(m_, 0, 1, nullptr), KVC_OK);
}

// Positions of a slot grow from stream to stream; there is an end to them.
TEST_F(EdgesTest, TheLargestStepsNeverBeginUnseen) {
  Open(8);
  for (int round = 0; round < 4; ++round) {
    uint64_t steps = 0;
    ASSERT_EQ(kvc_step_stream_create(m_, &steps, nullptr), KVC_OK);
    const kvc_status begun = kvc_step_begin(m_, steps, INT64_MAX, nullptr);
    if (begun == KVC_OK) {
      ASSERT_FALSE(Reached(steps, INT64_MAX)) << "round " << round;
      ASSERT_EQ(kvc_step_done(m_, steps, INT64_MAX, nullptr), KVC_OK);
      ASSERT_TRUE(Reached(steps, INT64_MAX));
    } else {
      ASSERT_EQ(begun, KVC_INVALID_ARGUMENT) << "round " << round;
      ASSERT_GE(round, 2);
    }
    ASSERT_EQ(kvc_device_stream_destroy(m_, steps, nullptr), KVC_OK);
  }
}

// An adapter that was loaded again has another id and the same name, which is
// what its scope is known by.
TEST_F(EdgesTest, DroppingEveryScopeOfANameDoesNotAskForTheId) {
  Open(8);
  ScopeSpec loaded;
  loaded.lora_name = "adapter";
  loaded.lora_id = 7;
  loaded.salt = 1;
  Release(Run(Tokens(kBlock, 1), loaded));
  ScopeSpec again;
  again.lora_name = "adapter";
  again.lora_id = 9;
  PromptList list;
  list.Add({1}, again, 0, 0);
  std::vector<kvc_evicted_block> told(8);
  kvc_drop_result result{};
  ASSERT_EQ(list.DropFirstScope(m_, true, &told, &result), KVC_OK);
  EXPECT_EQ(result.dropped_blocks, 1u);
}

// The last word counts where ranges overlap, and only there, also for blocks that
// are yet to be committed.
TEST_F(EdgesTest, WhatIsSaidOfLaterBlocksHoldsPieceByPiece) {
  Open(8);
  const std::vector<uint32_t> tokens = Tokens(6 * kBlock, 1);
  const uint64_t id = Create(tokens).sequence;
  ASSERT_EQ(Grow(id, tokens.size()).status, KVC_OK);
  // The prompt, then what is generated, then what follows from there.
  ASSERT_EQ(Retain(id, 0, KVC_TO_THE_END, 80), KVC_OK);
  ASSERT_EQ(Retain(id, 2 * kBlock, KVC_TO_THE_END, 20), KVC_OK);
  ASSERT_EQ(Retain(id, 5 * kBlock, KVC_TO_THE_END, 50), KVC_OK);
  ASSERT_EQ(Retain(id, 4 * kBlock, KVC_TO_THE_END, 60), KVC_OK);  // over the one before
  Commit(id, {tokens.begin(), tokens.begin() + kBlock});
  Commit(id, {tokens.begin() + kBlock, tokens.begin() + 3 * kBlock});
  Commit(id, {tokens.begin() + 3 * kBlock, tokens.end()});
  Check();
  Release(id);
  const uint64_t other = Create({1000}).sequence;
  std::vector<kvc_evicted_block> told(8);
  ASSERT_EQ(Grow(other, 8 * kBlock, &told).status, KVC_OK);
  ASSERT_EQ(told.size(), 6u);
  const uint32_t wanted[] = {60, 60, 20, 20, 80, 80};  // the last block first
  for (int i = 0; i < 6; ++i) EXPECT_EQ(told[static_cast<size_t>(i)].priority, wanted[i]) << i;
}

TEST_F(EdgesTest, PiecesAreBoundedAndForgottenOnceTheyArePassed) {
  Open(8);
  const std::vector<uint32_t> tokens = Tokens(4 * kBlock, 1);
  const uint64_t id = Create(tokens).sequence;
  ASSERT_EQ(Grow(id, tokens.size()).status, KVC_OK);
  kvc_status status = KVC_OK;
  uint64_t said = 0;
  while (said < 1000 && status == KVC_OK) status = Retain(id, said++, KVC_TO_THE_END, 40);
  EXPECT_EQ(status, KVC_NOT_NOW);
  EXPECT_LT(said, 100u);
  Commit(id, tokens);
  EXPECT_EQ(Retain(id, said, KVC_TO_THE_END, 40), KVC_OK);
}

// Blocks of a low priority are listed under the default when others are committed behind
// them. As each of these leaves, the one before it joins the list that is being looked at:
// that must not cost more, the more have joined it.
TEST_F(EdgesTest, ManyShortPathsOfALowPriorityAreEvictedInLinearTime) {
  constexpr uint32_t kDepth = 2;
  // The shortest of three evictions of that many paths, in processor time per path: others may be
  // busy beside this.
  const auto cost = [this](uint32_t paths) {
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    for (int round = 0; round < 3; ++round) {
      Open(paths * kDepth, 4);
      for (uint32_t path = 0; path < paths; ++path) {
        const std::vector<uint32_t> tokens = Tokens(kDepth * kBlock, 1 + path * kDepth * kBlock);
        const uint64_t id = Create(tokens).sequence;
        EXPECT_EQ(Grow(id, tokens.size()).status, KVC_OK);
        EXPECT_EQ(Retain(id, 0, KVC_TO_THE_END, 10), KVC_OK);
        for (uint32_t block = 0; block < kDepth; ++block) {
          const auto at = static_cast<ptrdiff_t>(block * kBlock);
          Commit(id, {tokens.begin() + at, tokens.begin() + at + kBlock});
        }
        Release(id);
      }
      const uint64_t all = Create({1u << 30}).sequence;
      const std::clock_t begin = std::clock();
      EXPECT_EQ(Grow(all, uint64_t{paths} * kDepth * kBlock).status, KVC_OK);
      least = std::min(least, std::clock() - begin);
      Release(all);
      EXPECT_EQ(kvc_manager_destroy(m_, nullptr), KVC_OK);
      m_ = nullptr;
      open_.clear();
    }
    return 1e9 * static_cast<double>(least) / CLOCKS_PER_SEC / paths;
  };
  const double few = cost(1000);
  const double many = cost(16000);
  std::printf("%.0f ns per path of 1,000, %.0f of 16,000\n", few, many);
  // Sixteen where each path costs a look at all others, two or three where caches do not suffice.
  EXPECT_LT(many, 8 * few);
}

}  // namespace
