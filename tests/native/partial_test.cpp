// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Partly filled blocks that are reused, case by case: who makes the copy and waits for
// what, when there is none, and how long a tail is kept.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/native/abi_support.h"

namespace kvcast::testing {
namespace {

class PartialTest : public ::testing::Test {
 protected:
  static CacheOptions Options(uint32_t pages = 8) {
    CacheOptions options;
    options.block = 4;
    options.pages = pages;
    options.sequences = 8;
    options.partial = true;
    return options;
  }
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
  static std::vector<uint32_t> Text(uint32_t first, uint32_t count) {
    std::vector<uint32_t> text(count);
    std::iota(text.begin(), text.end(), first);
    return text;
  }
  uint64_t Open(const std::vector<uint32_t>& text, uint64_t stream = 0) {
    const kvc_create_result made = cache_->Create(text, {}, KVC_COMPUTE_NOTHING, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(cache_->Grow(made.sequence, text.size()).status, KVC_OK);
    const std::vector<uint32_t> rest(text.begin() + static_cast<ptrdiff_t>(made.matched_tokens),
                                     text.end());
    EXPECT_EQ(cache_->Commit(made.sequence, rest.data(), rest.size()).status, KVC_OK);
    return made.sequence;
  }
  // A sequence that has come and gone.
  void Store(const std::vector<uint32_t>& text, uint64_t stream = 0) {
    EXPECT_EQ(cache_->Release(Open(text, stream)), KVC_OK);
  }
  kvc_create_result Create(const std::vector<uint32_t>& text, uint64_t stream = 0) {
    const kvc_create_result made = cache_->Create(text, {}, KVC_COMPUTE_NOTHING, stream);
    EXPECT_EQ(made.status, KVC_OK);
    if (made.status == KVC_OK) open_.push_back(made.sequence);
    return made;
  }
  void CloseAll() {
    for (const uint64_t id : open_) EXPECT_EQ(cache_->Cancel(id), KVC_OK);
    open_.clear();
  }
  uint64_t Stream(bool steps = false) {
    uint64_t stream = 0;
    EXPECT_EQ(steps ? kvc_step_stream_create(cache_->manager(), &stream, nullptr)
                    : kvc_device_stream_create(cache_->manager(), &stream, nullptr),
              KVC_OK);
    return stream;
  }
  void Begin(uint64_t stream, uint64_t step) {
    EXPECT_EQ(kvc_step_begin(cache_->manager(), stream, step, nullptr), KVC_OK);
  }
  void Done(uint64_t stream, uint64_t step) {
    EXPECT_EQ(kvc_step_done(cache_->manager(), stream, step, nullptr), KVC_OK);
  }
  void Fill(uint64_t stream, uint32_t page, uint64_t value) {
    const kvc_host_fill fill{page, 0, value};
    ASSERT_EQ(kvc_host_enqueue_fill(cache_->manager(), stream, 1, &fill, nullptr), KVC_OK);
  }
  void Advance() {
    uint64_t ran = 0;
    EXPECT_EQ(kvc_host_advance(cache_->manager(), 0, UINT64_MAX, &ran, nullptr), KVC_OK);
  }
  uint64_t Word(uint32_t page) {
    uint64_t word = 0;
    EXPECT_EQ(
        kvc_host_read(cache_->manager(), page, 0, 8, reinterpret_cast<uint8_t*>(&word), nullptr),
        KVC_OK);
    return word;
  }

  std::unique_ptr<Cache> cache_;
  std::vector<uint64_t> open_;
};

// Who released the tail may still be writing it, and who reads it may be late: the copy
// is made after the one, and the page is nobody else's before the other.
TEST_F(PartialTest, ACopyWaitsForTheWriter) {
  Make(Options(2));
  const uint64_t writer = Stream(), reader = Stream();
  const uint64_t id = Open(Text(1, 2), writer);
  kvc_sequence_info info{};
  std::vector<uint32_t> pages;
  ASSERT_EQ(cache_->Get(id, &info, &pages), KVC_OK);
  Fill(writer, pages[0], 77);
  EXPECT_EQ(cache_->Release(id), KVC_OK);
  const kvc_create_result made = Create(Text(1, 3), reader);
  EXPECT_EQ(made.copied_tokens, 2u);
  EXPECT_EQ(made.copied_from, pages[0]);
  EXPECT_EQ(made.wait_count, 0u) << "the copy is in the reader's own stream";
  // The tail cannot be evicted: what reads it has not run.
  EXPECT_EQ(cache_->Grow(made.sequence, 8).status, KVC_NOT_NOW);
  Advance();
  EXPECT_EQ(Word(made.copied_to), 77u);
  EXPECT_EQ(cache_->Grow(made.sequence, 8).status, KVC_OK);
  EXPECT_EQ(cache_->Stats().partial_blocks, 0u);
  EXPECT_EQ(cache_->Stats().evicted_blocks, 0u) << "no whole block went";
}

// Where no page can be had for a copy, a tail of which all is in common is taken as it is.
TEST_F(PartialTest, ATailIsTaken) {
  Make(Options(1));
  const uint64_t writer = Stream(), reader = Stream();
  Store({1, 2}, writer);
  EXPECT_EQ(Create({1, 3}, reader).matched_tokens, 0u) << "not for a part of it";
  const kvc_create_result made = Create({1, 2, 3}, reader);
  EXPECT_EQ(made.matched_tokens, 2u);
  EXPECT_EQ(made.copied_tokens, 0u);
  EXPECT_EQ(cache_->Stats().partial_blocks, 0u);
  EXPECT_EQ(cache_->Stats().partial_hits, 1u);
  EXPECT_EQ(Create({1, 2, 3}).matched_tokens, 0u) << "it is somebody's";
  EXPECT_EQ(cache_->Grow(made.sequence, 3).added_pages, 0u);
  const uint32_t more = 3;
  EXPECT_EQ(cache_->Commit(made.sequence, &more, 1).status, KVC_OK);
  EXPECT_EQ(cache_->Release(made.sequence), KVC_OK);
  EXPECT_EQ(Create({1, 2, 3, 4}).matched_tokens, 3u);
}

// Without memory of its own the library leaves the copy to the engine.
TEST_F(PartialTest, TheEngineCopies) {
  CacheOptions options = Options(2);
  options.page_bytes = 0;
  options.poison = false;
  Make(options);
  const uint64_t queue = Stream(), first = Stream(true), second = Stream(true);
  Begin(first, 1);
  Store(Text(1, 2), first);
  EXPECT_EQ(Create({1, 9}, queue).matched_tokens, 0u) << "it cannot be queued";
  CloseAll();
  Begin(second, 1);
  const kvc_create_result made = Create(Text(1, 3), second);
  EXPECT_EQ(made.copied_tokens, 2u);
  ASSERT_EQ(made.wait_count, 1u) << "the engine waits before it copies";
  EXPECT_EQ(made.waits[0].device_stream, first);
  Done(first, 1);
  EXPECT_EQ(cache_->Grow(made.sequence, 8).status, KVC_OK)
      << "the tail may go: what is written to it comes after the copy in the same steps";
  CloseAll();
  Done(second, 1);
  Store(Text(1, 2));
  const kvc_create_result again = Create(Text(1, 3));
  EXPECT_EQ(again.copied_tokens, 2u);
  EXPECT_EQ(again.wait_count, 0u);
  EXPECT_EQ(cache_->Stats().copied_bytes, 0u);
}

// A device stream cannot wait for a step.
TEST_F(PartialTest, NoCopyThatWouldWaitForAStep) {
  Make(Options());
  const uint64_t queue = Stream(), steps = Stream(true);
  Begin(steps, 1);
  Store(Text(1, 2), steps);
  EXPECT_EQ(Create({1, 9}, queue).matched_tokens, 0u);
  Done(steps, 1);
  EXPECT_EQ(Create({1, 9}, queue).copied_tokens, 1u);
}

// The newest 32 are compared.
TEST_F(PartialTest, NotMoreThan32AreCompared) {
  Make(Options(64));
  for (uint32_t i = 0; i < 33; ++i) Store({100 + i, 1});
  EXPECT_EQ(cache_->Stats().partial_blocks, 33u);
  EXPECT_EQ(Create({100, 1, 2}).copied_tokens, 0u);
  EXPECT_EQ(Create({101, 1, 2}).copied_tokens, 2u);
  EXPECT_EQ(Create({132, 1, 2}).copied_tokens, 2u);
}

// A tail is worth what the block before it is, but not more than the default: it goes
// before that block, and no priority that ends stays behind with it.
TEST_F(PartialTest, Priorities) {
  Make(Options(3));
  for (const uint32_t priority : {10u, 80u}) {
    const uint64_t id = Open(Text(1, 6));
    EXPECT_EQ(cache_->Retain(id, 0, KVC_TO_THE_END, priority, 0), KVC_OK);
    EXPECT_EQ(cache_->Release(id), KVC_OK);
    EXPECT_EQ(cache_->Stats().partial_blocks, 1u);
    std::vector<kvc_evicted_block> told(2);
    const uint64_t other = cache_->Create({50}).sequence;
    EXPECT_EQ(cache_->Grow(other, 12, &told).evicted_blocks, 2u);
    ASSERT_EQ(told.size(), 2u);
    EXPECT_EQ(told[0].priority, priority == 10 ? 10u : KVC_DEFAULT_PRIORITY);
    EXPECT_EQ(told[0].announced, 0u);
    EXPECT_EQ(told[0].parent, told[1].block);
    EXPECT_EQ(told[1].priority, priority);
    EXPECT_EQ(told[1].announced, 1u);
    EXPECT_EQ(cache_->Cancel(other), KVC_OK);
  }
}

// Digests of a tail are in use as long as it is kept, and of the copy.
TEST_F(PartialTest, Digests) {
  Make(Options(4));
  Store({KVC_DIGEST_TOKEN(1), 5});
  EXPECT_EQ(cache_->Stats().digests, 1u);
  EXPECT_EQ(Create({KVC_DIGEST_TOKEN(2), 5}).copied_tokens, 0u);
  EXPECT_EQ(Create({KVC_DIGEST_TOKEN(1), 5, 6}).copied_tokens, 2u);
  CloseAll();
  Advance();
  EXPECT_EQ(cache_->Stats().digests, 1u);
  const kvc_create_result made = Create({9});
  EXPECT_EQ(cache_->Grow(made.sequence, 16).evicted_blocks, 1u);
  EXPECT_EQ(cache_->Stats().digests, 0u);
}

// With the recency-frequency policy a tail that is used often outlives whole blocks.
TEST_F(PartialTest, Scores) {
  CacheOptions options = Options(6);
  options.policy = KVC_POLICY_LRFU;
  options.tau = 4;
  Make(options);
  Store({1, 2});
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(Create({1, 2, 3}).copied_tokens, 2u);
    CloseAll();
    Advance();
  }
  for (uint32_t i = 0; i < 4; ++i) Store(Text(100 + 10 * i, 4));
  EXPECT_EQ(cache_->Check(), "");
  const kvc_create_result made = Create({9});
  EXPECT_EQ(cache_->Grow(made.sequence, 20).evicted_blocks, 4u);
  EXPECT_EQ(cache_->Stats().partial_blocks, 1u);
  EXPECT_EQ(cache_->Stats().evicted_blocks, 4u);
}

// A block that a kept tail follows does not end: its conversation has another turn to come.
TEST_F(PartialTest, ABlockBeforeATailDoesNotEnd) {
  Make(Options());
  Store(Text(1, 6));
  const uint64_t id = cache_->Create(Text(1, 4)).sequence;
  EXPECT_EQ(cache_->End(id), KVC_OK);
  std::vector<kvc_evicted_block> told(8);
  const kvc_create_result made = Create({50});
  EXPECT_EQ(cache_->Grow(made.sequence, 32, &told).evicted_blocks, 2u);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].reason, KVC_EVICTED_CAPACITY);
}

// In a step there must be room for the fence of a copy before it is made.
TEST_F(PartialTest, AStepHasRoomForTheFence) {
  Make(Options());
  Store(Text(1, 2));
  const std::vector<uint32_t> text = Text(1, 3);
  kvc_prompt prompt{};
  prompt.token_count = text.size();
  prompt.scope = KVC_NO_SCOPE;
  kvc_op op{};
  op.kind = KVC_OP_CREATE;
  kvc_step_input in{};
  kvc_step_output out{};
  kvc_step_input_init(&in);
  kvc_step_output_init(&out);
  in.tokens = text.data();
  in.token_count = text.size();
  in.prompts = &prompt;
  in.prompt_count = 1;
  kvc_op_result result{};
  ASSERT_EQ(kvc_step(cache_->manager(), 1, &op, &in, &result, &out, nullptr), KVC_OK);
  EXPECT_EQ(result.status, KVC_NOT_NOW);
  EXPECT_EQ(result.wait_count, 1u);
  EXPECT_EQ(cache_->Stats().partial_hits, 0u);
  kvc_fence wait{};
  kvc_step_output_init(&out);
  out.waits = &wait;
  out.wait_capacity = 1;
  ASSERT_EQ(kvc_step(cache_->manager(), 1, &op, &in, &result, &out, nullptr), KVC_OK);
  EXPECT_EQ(result.status, KVC_OK);
  EXPECT_EQ(result.of.created.copied_tokens, 2u);
  EXPECT_NE(result.of.created.copied_from, result.of.created.copied_to);
  EXPECT_EQ(out.wait_count, 1u);
  EXPECT_EQ(cache_->Cancel(result.sequence), KVC_OK);
}

}  // namespace
}  // namespace kvcast::testing
