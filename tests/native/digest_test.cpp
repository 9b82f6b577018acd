// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Multimodal digests: the table that interns them, and the manager's uses of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "native/src/digest_table.h"
#include "native/src/manager.h"
#include "tests/native/abi_support.h"
#include "tests/native/recording_sink.h"

namespace kvcast {

struct DigestTablePeer {
  static uint64_t& uses(DigestTable& t, size_t slot) { return t.entries_[slot].uses; }
  static uint8_t& byte(DigestTable& t, size_t slot) { return t.entries_[slot].digest[0]; }
  static uint32_t& live(DigestTable& t) { return t.live_; }
  static uint32_t& idle_head(DigestTable& t) { return t.idle_head_; }
  static uint32_t& tag(DigestTable& t) {
    for (auto& place : t.index_) {
      if (place.slot != kNil) return place.tag;
    }
    return t.live_;
  }
};

struct ManagerPeer {
  static DigestTable& digests(Manager& m) { return m.digests_; }
  static Sequence& sequence(Manager& m, uint64_t id) {
    return m.sequences_[static_cast<uint32_t>(id)];
  }
  static Node& node(Manager& m, NodeId id) { return m.tree_.node(id); }
  static NodeId high_water(Manager& m) { return m.tree_.high_water(); }
};

namespace {

using testing::Cache;
using testing::CacheOptions;
using testing::DigestOf;
using testing::DigestText;
using testing::TestDigest;
using testing::WireMirror;

constexpr uint32_t D(uint32_t k) { return KVC_DIGEST_TOKEN(k); }

// ------------------------------------------------------------------- table

TEST(DigestTable, EqualDigestsAreEqualTokens) {
  DigestTable table(1, 100);
  const uint32_t a = table.Acquire(DigestOf(1).data());
  const uint32_t b = table.Acquire(DigestOf(2).data());
  EXPECT_NE(a, b);
  EXPECT_TRUE((a & kDigestBit) != 0 && (b & kDigestBit) != 0);
  EXPECT_EQ(table.Acquire(DigestOf(1).data()), a);
  EXPECT_EQ(table.Find(DigestOf(1).data()), a);
  EXPECT_EQ(table.Find(DigestOf(3).data()), DigestTable::kNone);
  EXPECT_EQ(DigestText(table.Bytes(b)), DigestText(DigestOf(2).data()));
  EXPECT_EQ(table.live(), 2u);
  const uint32_t mixed[] = {5, a, 6, a};
  table.ReleaseAll(mixed, 4);
  EXPECT_EQ(table.Find(DigestOf(1).data()), DigestTable::kNone) << "nobody uses it";
  EXPECT_EQ(table.live(), 1u);
  EXPECT_EQ(table.Acquire(DigestOf(1).data()), a) << "not forgotten yet";
  EXPECT_EQ(table.Check(), nullptr);
}

TEST(DigestTable, ASlotTakenAgainHasAnotherToken) {
  DigestTable table(1, 1);
  const uint32_t a = table.Acquire(DigestOf(1).data());
  EXPECT_EQ(table.Acquire(DigestOf(2).data()), DigestTable::kNone) << "full";
  table.ReleaseAll(&a, 1);
  const uint32_t b = table.Acquire(DigestOf(2).data());
  EXPECT_EQ(table.slots(), 1u);
  EXPECT_NE(a, b);
  EXPECT_TRUE(table.Valid(b));
  EXPECT_FALSE(table.Valid(a));
  table.ReleaseAll(&b, 1);
  EXPECT_NE(table.Acquire(DigestOf(1).data()), a) << "a third generation";
  EXPECT_EQ(table.Check(), nullptr);
}

// Against a map, with few hash bits and with all.
TEST(DigestTable, RandomUse) {
  for (const uint32_t bits : {2u, 61u}) {
    for (const uint32_t most : {3u, 40u, 1000u}) {
      constexpr uint64_t kSeed = 9101;
      std::mt19937_64 random(kSeed);
      DigestTable table(kSeed, most, bits);
      std::map<uint32_t, std::pair<uint32_t, uint64_t>> model;  // k -> token, uses
      for (int i = 0; i < 20000; ++i) {
        const auto k = static_cast<uint32_t>(random() % (most * 2));
        const auto at = model.find(k);
        if (random() % 2 == 0) {
          const uint32_t token = table.Acquire(DigestOf(k).data());
          if (at != model.end()) {
            ASSERT_EQ(token, at->second.first);
            ++at->second.second;
          } else if (model.size() == most) {
            ASSERT_EQ(token, DigestTable::kNone);
          } else {
            for (const auto& [other, entry] : model) ASSERT_NE(entry.first, token) << other;
            model[k] = {token, 1};
          }
        } else if (at != model.end()) {
          table.ReleaseAll(&at->second.first, 1);
          if (--at->second.second == 0) model.erase(at);
        } else {
          ASSERT_EQ(table.Find(DigestOf(k).data()), DigestTable::kNone);
        }
        ASSERT_EQ(table.live(), model.size());
      }
      for (const auto& [k, entry] : model) {
        EXPECT_EQ(table.Find(DigestOf(k).data()), entry.first);
        EXPECT_EQ(DigestText(table.Bytes(entry.first)), DigestText(DigestOf(k).data()));
        EXPECT_EQ(table.uses(table.slot_of(entry.first)), entry.second);
      }
      EXPECT_EQ(table.Check(), nullptr) << "seed " << kSeed;
      EXPECT_LE(table.slots(), most);
    }
  }
}

TEST(DigestTable, TheCheckCanFail) {
  DigestTable table(1, 100);
  const uint32_t a = table.Acquire(DigestOf(1).data());
  (void)table.Acquire(DigestOf(2).data());
  table.ReleaseAll(&a, 1);
  ASSERT_EQ(table.Check(), nullptr);
  const auto breaks = [&](auto& field, uint64_t value, const char* message) {
    const auto before = field;
    field = static_cast<std::decay_t<decltype(field)>>(value);
    EXPECT_STREQ(table.Check(), message);
    field = before;
    EXPECT_EQ(table.Check(), nullptr);
  };
  breaks(DigestTablePeer::byte(table, 1), 9, "a digest is not found by its bytes");
  breaks(DigestTablePeer::tag(table), DigestTablePeer::tag(table) ^ 1,
         "an entry of the digests' index is wrong");
  breaks(DigestTablePeer::live(table), 2, "the digests in use are miscounted");
  breaks(DigestTablePeer::uses(table, 1), 0, "the digests in use are miscounted");
  breaks(DigestTablePeer::idle_head(table), kNil, "the digests without a use are miscounted");
  breaks(DigestTablePeer::idle_head(table), 1, "the list of digests without a use is broken");
}

// ----------------------------------------------------------------- manager

CacheOptions Announcing() {
  CacheOptions options;
  options.block = 4;
  options.pages = 16;
  options.multimodal = KVC_MULTIMODAL_ANNOUNCE;
  return options;
}

uint64_t Store(Cache& cache, const std::vector<uint32_t>& tokens,
               const testing::ScopeSpec& scope = {}) {
  const kvc_create_result made = cache.Create(tokens, scope);
  EXPECT_EQ(made.status, KVC_OK);
  EXPECT_EQ(cache.Grow(made.sequence, tokens.size()).status, KVC_OK);
  EXPECT_EQ(cache
                .Commit(made.sequence, tokens.data() + made.matched_tokens,
                        tokens.size() - made.matched_tokens)
                .status,
            KVC_OK);
  return made.sequence;
}

TEST(Digests, AMatchNeedsTheSameDigests) {
  Cache cache(Announcing());
  Store(cache, {D(1), 5, 6, 7, 8, D(2), 9, 9});
  EXPECT_EQ(cache.Probe({D(1), 5, 6, 7, 8, D(2), 9, 9}).matched_tokens, 8u);
  EXPECT_EQ(cache.Probe({D(1), 5, 6, 7, 8, D(3), 9, 9}).matched_tokens, 4u);
  EXPECT_EQ(cache.Probe({D(2), 5, 6, 7, 8, D(2), 9, 9}).matched_tokens, 0u);
  EXPECT_EQ(cache.Probe({D(3), 5, 6, 7}).matched_tokens, 0u);
  EXPECT_EQ(cache.Probe({1, 5, 6, 7}).matched_tokens, 0u);
  EXPECT_EQ(cache.Stats().digests, 2u) << "a look interns nothing";
  // In other places of the call's arrays.
  kvc_prompt prompt{};
  const uint32_t tokens[] = {KVC_DIGEST_TOKEN(2), 5, 6, 7};
  std::vector<uint8_t> bytes(7);
  for (const uint32_t k : {3u, 2u, 1u}) {
    const TestDigest digest = DigestOf(k);
    bytes.insert(bytes.end(), digest.begin(), digest.end());
  }
  prompt.token_count = 4;
  prompt.scope = KVC_NO_SCOPE;
  prompt.must_compute = KVC_COMPUTE_NOTHING;
  prompt.digest_offset = 7;
  prompt.digest_count = 3;
  kvc_probe_result found{};
  ASSERT_EQ(kvc_probe(cache.manager(), 1, &prompt, tokens, 4, nullptr, 0, bytes.data(),
                      bytes.size(), &found, nullptr),
            KVC_OK);
  EXPECT_EQ(found.matched_tokens, 4u);
  WireMirror mirror(KVC_HASH_SIGNED64, 4);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
}

TEST(Digests, BadDigestsAreRefused) {
  Cache cache(Announcing());
  const auto probe = [&](uint32_t token, uint64_t offset, uint32_t count, uint64_t bytes) {
    kvc_prompt prompt{};
    const std::vector<uint8_t> memory(bytes + 1);
    prompt.token_count = 1;
    prompt.scope = KVC_NO_SCOPE;
    prompt.digest_offset = offset;
    prompt.digest_count = count;
    kvc_probe_result found{};
    EXPECT_EQ(kvc_probe(cache.manager(), 1, &prompt, &token, 1, nullptr, 0, memory.data(), bytes,
                        &found, nullptr),
              KVC_OK);
    return found.status;
  };
  EXPECT_EQ(probe(D(1), 0, 2, 64), KVC_OK);
  EXPECT_EQ(probe(D(2), 0, 2, 64), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(D(0), 0, 0, 64), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(UINT32_MAX, 0, 2, 64), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(1, 0, 2, 63), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(1, 1, 2, 64), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(1, UINT64_MAX, 2, 64), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(probe(1, 0, UINT32_MAX, 64), KVC_INVALID_ARGUMENT);

  const uint64_t id = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(id, 8).status, KVC_OK);
  const uint32_t token = D(1);
  kvc_commit_item item{id, 0, 1, 0, 1, {}, 0};
  const std::vector<uint8_t> bytes(64);
  kvc_commit_result result{};
  const auto commit = [&] {
    EXPECT_EQ(kvc_sequences_commit(cache.manager(), 1, &item, &token, 1, bytes.data(), bytes.size(),
                                   &result, nullptr),
              KVC_OK);
    return result.status;
  };
  EXPECT_EQ(commit(), KVC_INVALID_ARGUMENT) << "names none of its digests";
  item.digest_count = 3;
  EXPECT_EQ(commit(), KVC_INVALID_ARGUMENT) << "outside bytes[]";
  item.digest_count = 2;
  item.digest_offset = 1;
  EXPECT_EQ(commit(), KVC_INVALID_ARGUMENT) << "outside bytes[]";
  item.digest_offset = 0;
  EXPECT_EQ(cache.Stats().digests, 0u);
  EXPECT_EQ(commit(), KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 1u);
  EXPECT_EQ(cache.Check(), "");
}

// Uses are given up with the tail, the block, the path; whoever ends them.
TEST(Digests, UsesEnd) {
  Cache cache(Announcing());
  WireMirror mirror(KVC_HASH_SIGNED64, 4);
  const uint64_t tail = Store(cache, {1, 2, 3, 4, D(1), 6});
  EXPECT_EQ(cache.Stats().digests, 1u);
  ASSERT_EQ(cache.Release(tail), KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 0u) << "the tail is gone";

  const uint64_t first = Store(cache, {D(1), D(1), 3, 4, D(2)});
  EXPECT_EQ(cache.Stats().digests, 2u);
  const std::vector<uint32_t> same = {D(1), D(1), 3, 4};
  const uint64_t second = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(second, 4).status, KVC_OK);
  ASSERT_EQ(cache.Commit(second, same.data(), 2).status, KVC_OK);
  EXPECT_EQ(cache.Commit(second, same.data() + 2, 2).deduplicated_blocks, 1u);
  EXPECT_EQ(cache.Check(), "");
  ASSERT_EQ(cache.Release(first), KVC_OK);
  ASSERT_EQ(cache.Release(second), KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 1u) << "the block has it";
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  const uint64_t all = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(all, 16 * 4).status, KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 0u) << "the block was evicted";
  ASSERT_EQ(cache.Release(all), KVC_OK);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");

  const uint64_t detached = Store(cache, {D(1), 2, 3, 4, D(2)});
  ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 1u) << "that of the tail";
  EXPECT_EQ(cache.Check(), "");
  ASSERT_EQ(cache.Grow(detached, 16).status, KVC_OK);
  const std::vector<uint32_t> more = {1, D(3), 2, D(4), 5, 6, D(5)};
  ASSERT_EQ(cache.Commit(detached, more.data(), more.size()).status, KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 0u) << "no block, no tail";
  EXPECT_EQ(cache.Check(), "");
  ASSERT_EQ(cache.Commit(detached, more.data() + 6, 1).status, KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 1u);
  ASSERT_EQ(cache.Release(detached), KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 0u);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
}

TEST(Digests, SuspendedSequencesUseThoseOfTheirPath) {
  Cache cache(Announcing());
  WireMirror mirror(KVC_HASH_SIGNED64, 4);
  const std::vector<uint32_t> tokens = {D(1), 2, 3, 4, 5, 6, 7, 8, D(2)};
  const uint64_t id = Store(cache, tokens);
  ASSERT_EQ(cache.Suspend(id, true), KVC_OK);
  EXPECT_EQ(cache.Check(), "");
  ASSERT_EQ(cache.Resume(id).status, KVC_OK);
  EXPECT_EQ(cache.Stats().digests, 2u);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  ASSERT_EQ(cache.Suspend(id, false), KVC_OK);
  // Its blocks go, but the tokens by which it finds them stay.
  const uint64_t all = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(all, 16 * 4).status, KVC_OK);
  EXPECT_EQ(cache.Check(), "");
  EXPECT_EQ(cache.Stats().blocks, 0u);
  EXPECT_EQ(cache.Stats().digests, 2u);
  ASSERT_EQ(cache.Release(all), KVC_OK);
  const uint64_t other = Store(cache, {D(1), 2, 3, 4});
  const kvc_resume_result resumed = cache.Resume(id);
  EXPECT_EQ(resumed.committed_tokens, 4u) << "found again, by an equal digest";
  EXPECT_EQ(resumed.lost_tokens, 5u);
  EXPECT_EQ(cache.Stats().digests, 1u) << "the tail was lost";
  ASSERT_EQ(cache.Release(id), KVC_OK);
  ASSERT_EQ(cache.Release(other), KVC_OK);
  // One that begins suspended has its prompt's.
  testing::PromptOptions asleep;
  asleep.flags = KVC_PROMPT_SUSPENDED;
  const kvc_create_result fresh =
      cache.Create({D(1), 2, 3, 4, D(7), 6, 7, 8, D(8)}, {}, KVC_COMPUTE_NOTHING, 0, asleep);
  ASSERT_EQ(fresh.status, KVC_OK);
  EXPECT_EQ(fresh.matched_tokens, 4u);
  EXPECT_EQ(cache.Stats().digests, 2u) << "whole blocks only";
  EXPECT_EQ(cache.Check(), "");
  EXPECT_EQ(cache.Resume(fresh.sequence).committed_tokens, 4u);
  EXPECT_EQ(cache.Stats().digests, 1u);
  ASSERT_EQ(cache.Release(fresh.sequence), KVC_OK);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
}

TEST(Digests, TooManyChangeNothing) {
  CacheOptions options = Announcing();
  options.digests = 3;
  Cache cache(options);
  WireMirror mirror(KVC_HASH_SIGNED64, 4);
  const uint64_t holder = Store(cache, {D(1), 2, 3, 4});
  const uint64_t id = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(id, 16).status, KVC_OK);
  const std::vector<uint32_t> three = {D(2), D(1), D(3), D(4)};
  EXPECT_EQ(cache.Commit(id, three.data(), 4).status, KVC_NOT_NOW);
  EXPECT_EQ(cache.Stats().digests, 1u);
  EXPECT_EQ(cache.Stats().blocks, 1u);
  EXPECT_EQ(cache.Check(), "");
  EXPECT_EQ(cache.Commit(id, three.data(), 3).status, KVC_OK) << "with the one in use, three";
  EXPECT_EQ(cache.Commit(id, three.data() + 3, 1).status, KVC_NOT_NOW);
  ASSERT_EQ(cache.Release(id), KVC_OK);
  const uint64_t again = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(again, 16).status, KVC_OK);
  const std::vector<uint32_t> four = {D(2), D(5), D(3), D(4)};
  EXPECT_EQ(cache.Commit(again, four.data(), 4).status, KVC_NOT_NOW);
  ASSERT_EQ(cache.Release(holder), KVC_OK);
  ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
  EXPECT_EQ(cache.Commit(again, four.data(), 4).status, KVC_NEVER_FITS);
  EXPECT_EQ(cache.Commit(again, four.data(), 3).status, KVC_OK);
  EXPECT_EQ(cache.Check(), "");
  testing::PromptOptions asleep;
  asleep.flags = KVC_PROMPT_SUSPENDED;
  EXPECT_EQ(cache.Create({D(6), 2, 3, 4}, {}, KVC_COMPUTE_NOTHING, 0, asleep).status, KVC_NOT_NOW);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
}

// ------------------------------------------------------- the check can fail

TEST(Digests, TheManagersCheckCanFail) {
  kvc_config config{};
  kvc_config_init(&config);
  config.tokens_per_block = 2;
  config.capacity_blocks = 8;
  config.seed = 1;
  auto sink = std::make_shared<RecordingSink>();
  sink->suppress = true;
  Manager m(config, sink);
  const std::vector<uint32_t> given = {1, 2, D(1), 4, 5, 6, D(2)};
  const testing::ItemTokens item(given.data(), given.size());
  kvc_prompt prompt{};
  prompt.scope = KVC_NO_SCOPE;
  kvc_create_result made{};
  const uint32_t none = 0;
  m.Create(1, &prompt, {&none, 0}, &made, nullptr);
  const kvc_grow_item grow{made.sequence, 8};
  kvc_grow_result grown{};
  m.Grow(1, &grow, &grown, nullptr);
  const kvc_commit_item commit{made.sequence, 0, given.size(), 0, item.digest_count(), {}, 0};
  kvc_commit_result committed{};
  m.Commit(1, &commit,
           {item.tokens.data(), item.tokens.size(), item.digests.data(), item.digests.size()},
           &committed, nullptr);
  ASSERT_EQ(committed.status, KVC_OK);
  const auto expect = [&](const char* message) {
    kvc_error error{};
    const kvc_status status = m.Check(&error);
    EXPECT_EQ(status, message[0] == '\0' ? KVC_OK : KVC_CORRUPT);
    EXPECT_NE(std::string(error.message).find(message), std::string::npos) << error.message;
  };
  const auto breaks = [&](auto& field, auto value, const char* message) {
    const auto before = field;
    field = value;
    expect(message);
    field = before;
    expect("");
  };
  expect("");
  ASSERT_EQ(ManagerPeer::high_water(m), 3u);
  Node& text = ManagerPeer::node(m, 0);
  Node& image = ManagerPeer::node(m, 1);
  Node& below = ManagerPeer::node(m, 2);
  Sequence& seq = ManagerPeer::sequence(m, made.sequence);
  breaks(text.digests, true, "suppressed without a reason, or is not although it should be");
  breaks(image.digests, false, "suppressed without a reason, or is not although it should be");
  breaks(below.announce, Announce::kAnnounced,
         "suppressed without a reason, or is not although it should be");
  breaks(below.digests, true, "a block does not know whether it has digests");
  breaks(seq.tail_digests, false, "a sequence does not know whether its tail has digests");
  breaks(seq.path_digests, true, "does not know whether its path has digests");
  DigestTable& digests = ManagerPeer::digests(m);
  const uint32_t token = digests.Acquire(DigestOf(1).data());
  expect("the uses of a digest are miscounted");
  digests.ReleaseAll(&token, 1);
  expect("");
  digests.ReleaseAll(&token, 1);
  expect("a block has a digest that is not there");
  (void)digests.Acquire(DigestOf(1).data());
  expect("");
  const uint32_t in_tail = digests.Find(DigestOf(2).data());
  digests.ReleaseAll(&in_tail, 1);
  expect("a tail has a digest that is not there");
  (void)digests.Acquire(DigestOf(2).data());
  expect("");
  Bump(sink->counters.suppressed_blocks);
  expect("the suppressed blocks are miscounted");
  Drop(sink->counters.suppressed_blocks);
  breaks(DigestTablePeer::live(digests), 1u, "the digests in use are miscounted");
}

}  // namespace
}  // namespace kvcast
