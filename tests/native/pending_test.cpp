// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Marks of blocks that are being computed, where the tree's hash says little: what is
// told must follow from the tokens alone, and from who came first.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "native/src/manager.h"
#include "native/src/mixed_hash.h"
#include "native/src/pending_table.h"

namespace kvcast {
namespace {

constexpr uint32_t kBlock = 2;

class Marks {
 public:
  explicit Marks(uint32_t hash_bits, uint32_t sequences = 64) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = 4096;
    config.max_sequences = sequences;
    config.seed = 1;
    config.resume_gate_permille = 1000;
    ManagerTestHooks hooks;
    hooks.hash_bits = hash_bits;
    m_ = std::make_unique<Manager>(config, nullptr, hooks);
  }
  ~Marks() {
    for (const uint64_t id : open_) Cancel(id);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  kvc_create_result Create(const std::vector<uint32_t>& tokens, uint32_t flags) {
    kvc_prompt prompt = Prompt(tokens);
    prompt.flags = flags;
    kvc_create_result made{};
    m_->Create(1, &prompt, {tokens.data(), tokens.size()}, &made, nullptr);
    EXPECT_EQ(made.status, KVC_OK);
    open_.push_back(made.sequence);
    return made;
  }
  uint64_t Pending(const std::vector<uint32_t>& tokens) {
    const kvc_prompt prompt = Prompt(tokens);
    kvc_probe_result result{};
    m_->Probe(1, &prompt, {tokens.data(), tokens.size()}, &result, nullptr);
    EXPECT_EQ(result.status, KVC_OK);
    return result.pending_tokens;
  }
  void Commit(uint64_t id, const std::vector<uint32_t>& tokens) {
    const kvc_grow_item grow{id, tokens.size()};
    kvc_grow_result grown{};
    m_->Grow(1, &grow, &grown, nullptr);
    EXPECT_EQ(grown.status, KVC_OK);
    const kvc_commit_item item{id, 0, tokens.size(), 0, 0, {}, 0};
    kvc_commit_result committed{};
    m_->Commit(1, &item, {tokens.data(), tokens.size()}, &committed, nullptr);
    EXPECT_EQ(committed.status, KVC_OK);
  }
  void Cancel(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Cancel(1, &id, &status, nullptr);
  }
  void Check() {
    kvc_error error{};
    EXPECT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }
  Manager& manager() { return *m_; }

 private:
  static kvc_prompt Prompt(const std::vector<uint32_t>& tokens) {
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    return prompt;
  }
  std::unique_ptr<Manager> m_;
  std::vector<uint64_t> open_;
};

std::vector<uint32_t> Numbered(uint32_t first, uint32_t blocks) {
  std::vector<uint32_t> tokens(size_t{blocks} * kBlock);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
  return tokens;
}

TEST(Pending, CollisionsChangeNothing) {
  for (const uint32_t bits : {0u, 2u, 61u}) {
    constexpr uint32_t kOwners = 30;
    constexpr uint32_t kBlocks = 8;
    Marks marks(bits);
    std::vector<uint64_t> owners;
    for (uint32_t i = 0; i < kOwners; ++i) {
      owners.push_back(marks.Create(Numbered(1000 * i, kBlocks), KVC_PROMPT_MARK).sequence);
    }
    marks.Check();
    for (uint32_t i = 0; i < kOwners; ++i) {
      for (uint32_t same = 0; same <= kBlocks; ++same) {
        std::vector<uint32_t> tokens = Numbered(1000 * i, kBlocks);
        if (same < kBlocks) tokens[size_t{same} * kBlock + 1] = 999999;
        EXPECT_EQ(marks.Pending(tokens), same * kBlock) << bits << " bits, owner " << i;
      }
    }
    // Another one's tokens are no answer, wherever they stand.
    EXPECT_EQ(marks.Pending(Numbered(2, kBlocks - 1)), 0u);
    for (uint32_t i = 0; i < kOwners; ++i) {
      const std::vector<uint32_t> tokens = Numbered(1000 * i, kBlocks);
      const kvc_create_result waiter = marks.Create(tokens, KVC_PROMPT_WAIT);
      EXPECT_EQ(waiter.pending_sequence, owners[i]);
      marks.Commit(owners[i], tokens);
      kvc_waiter over[2];
      ASSERT_EQ(marks.manager().Waiters(2, over), 1u);
      EXPECT_EQ(over[0].sequence, waiter.sequence);
      EXPECT_EQ(over[0].outcome, static_cast<kvc_pending_outcome>(KVC_PENDING_COMMITTED));
      EXPECT_EQ(marks.Pending(tokens), 0u);
      marks.Cancel(waiter.sequence);
    }
    marks.Check();
  }
}

// Of those who have marked the same, the one that came first is told, also when the
// table has grown in between.
TEST(Pending, TheOldestOwnerIsTold) {
  Marks marks(61);
  const std::vector<uint32_t> tokens = Numbered(5, 4);
  std::vector<uint64_t> owners;
  for (uint32_t i = 0; i < 10; ++i) {
    owners.push_back(marks.Create(tokens, KVC_PROMPT_MARK).sequence);
    (void)marks.Create(Numbered(10000 * (i + 1), 200), KVC_PROMPT_MARK);
  }
  marks.Check();
  for (const uint64_t owner : owners) {
    const kvc_create_result asked = marks.Create(tokens, 0);
    EXPECT_EQ(asked.pending_sequence, owner);
    EXPECT_EQ(asked.pending_tokens, tokens.size());
    marks.Cancel(asked.sequence);
    marks.Cancel(owner);
  }
  EXPECT_EQ(marks.Pending(tokens), 0u);
  marks.Check();
}

// An owner that has shown nothing yet may be overtaken: its marks stay, and so do
// those who wait for it, until it gets there or gives up.
TEST(Pending, AnOvertakenOwnerStillEndsTheWait) {
  Marks marks(61);
  const std::vector<uint32_t> tokens = Numbered(5, 4);
  const uint64_t slow = marks.Create(tokens, KVC_PROMPT_MARK).sequence;
  const uint64_t waiter = marks.Create(tokens, KVC_PROMPT_WAIT).sequence;
  const uint64_t fast = marks.Create(tokens, 0).sequence;
  marks.Commit(fast, tokens);
  marks.Check();
  kvc_waiter over[1];
  EXPECT_EQ(marks.manager().Waiters(1, over), 0u);
  // Whoever asks finds the blocks; nothing is pending behind them.
  EXPECT_EQ(marks.Pending(tokens), 0u);
  kvc_resume_result resumed{};
  marks.manager().Resume(1, &waiter, &resumed, nullptr);
  EXPECT_EQ(resumed.status, KVC_OK);
  EXPECT_EQ(resumed.committed_tokens, tokens.size());
  marks.Commit(slow, tokens);
  EXPECT_EQ(marks.manager().Waiters(1, over), 0u) << "it waits no more";
  marks.Check();
}

// Marks go from the front and from the back, in tables of any size, in any order.
TEST(Pending, TheTableKeepsItsChains) {
  const MixedHash hash(1, kBlock);
  PendingTable table(1000, 4, hash);
  table.Reserve(3);
  EXPECT_EQ(table.room(), 256u);
  table.Begin(0, 5);
  table.Begin(1, 7);
  for (uint64_t i = 0; i < 100; ++i) {
    table.Append(0, i % 3);
    table.Append(1, i % 3);
  }
  table.Reserve(900);
  EXPECT_EQ(table.room() + table.size(), 1000u);
  const auto of = [](uint32_t owner, uint32_t block) {
    return [=](const PendingMark& m) { return m.owner == owner && m.block == block; };
  };
  EXPECT_NE(table.Find(1, of(0, 6)), kNil);
  EXPECT_EQ(table.Find(2, of(0, 6)), kNil) << "it has another hash";
  table.PopFirst(0);
  EXPECT_EQ(table.Find(0, of(0, 5)), kNil);
  EXPECT_EQ(table.of(0).begin, 6u);
  EXPECT_EQ(table.Shorten(0, 50), 55u);
  EXPECT_EQ(table.Shorten(0, 50), 0u);
  EXPECT_NE(table.Find(44 % 3, of(0, 49)), kNil);
  table.Append(0, 1);
  EXPECT_NE(table.Find(1, of(0, 50)), kNil);
  // The first with a hash is the oldest of those that are left.
  const uint32_t oldest = table.Find(1, [](const PendingMark&) { return true; });
  EXPECT_EQ(table.mark(oldest).owner, 0u);
  EXPECT_EQ(table.Shorten(0, 0), 45u);
  EXPECT_EQ(table.mark(table.Find(1, [](const PendingMark&) { return true; })).block, 8u);
  EXPECT_EQ(table.Shorten(1, 0), 100u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.room(), 1000u);
}

}  // namespace
}  // namespace kvcast
