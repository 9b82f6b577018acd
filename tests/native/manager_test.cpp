// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's rules, one test each, with a sink that keeps everything.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/status.h"
#include "tests/native/recording_sink.h"

namespace kvcast {

struct ManagerPeer {
  static bool WriterWaiting(Manager& manager) { return manager.mutex_.writer_waiting(); }
};

namespace {

constexpr uint32_t kBlock = 4;

class ManagerTest : public ::testing::Test {
 protected:
  void Open(uint32_t pages, const ManagerTestHooks& hooks = {}, uint32_t sequences = 64) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = pages;
    config.max_sequences = sequences;
    config.page_bytes = 16;
    config.flags = KVC_CONFIG_POISON;
    config.seed = 3;
    config.resume_gate_permille = 1000;
    sink_ = std::make_shared<RecordingSink>();
    m_ = std::make_unique<Manager>(config, sink_, hooks);
  }
  void TearDown() override {
    m_.reset();
    EXPECT_EQ(live_handles().managers.load(), 0u);
    EXPECT_EQ(live_handles().sequences.load(), 0u);
  }

  // Blocks of one repeated token each: {1, 2} is the prompt 1111 2222.
  static std::vector<uint32_t> Tokens(const std::vector<uint32_t>& blocks) {
    std::vector<uint32_t> tokens;
    for (const uint32_t b : blocks) tokens.insert(tokens.end(), kBlock, b);
    return tokens;
  }
  kvc_create_result Create(const std::vector<uint32_t>& blocks, uint64_t stream = 0,
                           uint32_t must_compute = KVC_COMPUTE_NOTHING) {
    const std::vector<uint32_t> tokens = Tokens(blocks);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream;
    prompt.must_compute = must_compute;
    kvc_create_result result{};
    const uint32_t none = 0;
    m_->Create(1, &prompt, {tokens.empty() ? &none : tokens.data(), tokens.size()}, &result,
               nullptr);
    return result;
  }
  kvc_grow_result Grow(uint64_t id, uint64_t blocks) {
    const kvc_grow_item item{id, blocks * kBlock};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    return result;
  }
  kvc_commit_result CommitTokens(uint64_t id, const std::vector<uint32_t>& tokens) {
    const kvc_commit_item item{id, 0, tokens.size(), 0, 0, {}, 0};
    kvc_commit_result result{};
    m_->Commit(1, &item, {tokens.data(), tokens.size()}, &result, nullptr);
    return result;
  }
  kvc_commit_result Commit(uint64_t id, const std::vector<uint32_t>& blocks) {
    return CommitTokens(id, Tokens(blocks));
  }
  kvc_status Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &id, &status, nullptr);
    return status;
  }
  uint64_t Store(const std::vector<uint32_t>& blocks, uint64_t stream = 0) {
    const kvc_create_result made = Create(blocks, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(Grow(made.sequence, blocks.size()).status, KVC_OK);
    const std::vector<uint32_t> rest(
        blocks.begin() + static_cast<ptrdiff_t>(made.matched_tokens / kBlock), blocks.end());
    EXPECT_EQ(Commit(made.sequence, rest).status, KVC_OK);
    return made.sequence;
  }
  std::vector<PageId> Pages(uint64_t id) {
    std::vector<PageId> pages(64);
    uint32_t written = 0;
    EXPECT_EQ(m_->Get(id, 0, 64, pages.data(), &written, nullptr, nullptr), KVC_OK);
    pages.resize(written);
    return pages;
  }
  uint64_t Matched(const std::vector<uint32_t>& blocks) {
    const std::vector<uint32_t> tokens = Tokens(blocks);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_probe_result result{};
    m_->Probe(1, &prompt, {tokens.data(), tokens.size()}, &result, nullptr);
    EXPECT_EQ(result.status, KVC_OK);
    return result.matched_tokens / kBlock;
  }
  kvc_stats Stats() {
    kvc_stats stats{};
    kvc_stats_init(&stats);
    m_->Stats(&stats);
    EXPECT_EQ(stats.live_pages + stats.cached_pages + stats.free_pages + stats.quarantined_pages,
              stats.total_pages);
    return stats;
  }
  void Check() {
    kvc_error error{};
    ASSERT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }

  std::shared_ptr<RecordingSink> sink_;
  std::unique_ptr<Manager> m_;
};

using Log = std::vector<std::string>;

TEST_F(ManagerTest, MatchLeavesWhatMustBeComputed) {
  Open(8);
  EXPECT_EQ(Release(Store({1, 2, 3})), KVC_OK);
  for (const auto& [must, want] :
       std::vector<std::pair<uint32_t, uint64_t>>{{KVC_COMPUTE_NOTHING, 3},
                                                  {0, 2},
                                                  {1, 2},
                                                  {4, 2},
                                                  {5, 1},
                                                  {12, 0},
                                                  {13, 0},
                                                  {UINT32_MAX - 1, 0}}) {
    const kvc_create_result made = Create({1, 2, 3}, 0, must);
    EXPECT_EQ(made.matched_tokens / kBlock, want) << must;
    EXPECT_EQ(Release(made.sequence), KVC_OK);
  }
  Check();
}

TEST_F(ManagerTest, CommitInPiecesEqualsCommitAtOnce) {
  Open(8);
  const kvc_create_result made = Create({});
  ASSERT_EQ(Grow(made.sequence, 3).status, KVC_OK);
  const std::vector<uint32_t> tokens = Tokens({7, 8, 9});
  size_t at = 0;
  uint32_t stored = 0;
  for (const size_t piece : {1u, 2u, 3u, 5u, 0u, 1u}) {
    const kvc_commit_result c =
        CommitTokens(made.sequence, {tokens.begin() + static_cast<ptrdiff_t>(at),
                                     tokens.begin() + static_cast<ptrdiff_t>(at + piece)});
    ASSERT_EQ(c.status, KVC_OK);
    at += piece;
    EXPECT_EQ(c.committed_tokens, at);
    stored += c.stored_blocks;
    EXPECT_EQ(stored, at / kBlock);
    Check();
  }
  EXPECT_EQ(Matched({7, 8, 9}), 3u);
  EXPECT_EQ(sink_->log, (Log{"+7", "+8", "+9"}));
  EXPECT_EQ(Release(made.sequence), KVC_OK);
}

TEST_F(ManagerTest, SecondCommitOfTheSameBlocksSharesThePages) {
  Open(8);
  const uint64_t a = Create({1, 2}).sequence;
  const uint64_t b = Create({1, 2}).sequence;
  ASSERT_EQ(Grow(a, 3).status, KVC_OK);
  ASSERT_EQ(Grow(b, 3).status, KVC_OK);
  EXPECT_EQ(Commit(a, {1, 2}).stored_blocks, 2u);
  const kvc_commit_result c = Commit(b, {1, 2, 5});
  EXPECT_EQ(c.deduplicated_blocks, 2u);
  EXPECT_EQ(c.stored_blocks, 1u);
  EXPECT_EQ(c.first_changed_block, 0u);
  EXPECT_EQ(Pages(a)[0], Pages(b)[0]);
  EXPECT_EQ(Pages(a)[1], Pages(b)[1]);
  EXPECT_EQ(Stats().live_pages, 4u);
  EXPECT_EQ(sink_->log, (Log{"+1", "+2", "+5"}));
  Check();
  EXPECT_EQ(Release(a), KVC_OK);
  EXPECT_EQ(Stats().live_pages, 3u) << "b still holds the shared blocks";
  Check();
  EXPECT_EQ(Release(b), KVC_OK);
  EXPECT_EQ(Stats().cached_pages, 3u);
}

TEST_F(ManagerTest, EvictsLeastRecentlyUsedTailFirst) {
  Open(5);
  EXPECT_EQ(Release(Store({1, 2})), KVC_OK);
  EXPECT_EQ(Release(Store({3, 4})), KVC_OK);
  // A lookup that misses and a probe that hits touch nothing.
  EXPECT_EQ(Release(Create({9}).sequence), KVC_OK);
  EXPECT_EQ(Matched({1, 2}), 2u);
  const uint64_t next = Create({}).sequence;
  EXPECT_EQ(Grow(next, 1).evicted_blocks, 0u);
  EXPECT_EQ(Grow(next, 2).evicted_blocks, 1u);
  EXPECT_EQ(Matched({1, 2}), 1u) << "the tail of the older sequence went";
  // A hit makes the rest of it the most recently used.
  EXPECT_EQ(Release(Create({1}).sequence), KVC_OK);
  EXPECT_EQ(Grow(next, 4).evicted_blocks, 2u);
  EXPECT_EQ(Matched({3, 4}), 0u);
  EXPECT_EQ(Matched({1}), 1u);
  Check();
  EXPECT_EQ(Release(next), KVC_OK);
}

TEST_F(ManagerTest, AFailedGrowChangesNothing) {
  Open(6);
  EXPECT_EQ(Release(Store({1, 2, 3})), KVC_OK);
  const uint64_t holder = Store({1, 4});
  const Log before = sink_->log;
  const kvc_create_result made = Create({1, 2});
  EXPECT_EQ(made.matched_tokens, 2u * kBlock);
  // 6 pages: 1, 2 and 4 are held, 3 is cached, two are free. Three more fit, four do not.
  EXPECT_EQ(Grow(made.sequence, 6).status, KVC_NOT_NOW);
  EXPECT_EQ(Grow(made.sequence, 7).status, KVC_NEVER_FITS);
  EXPECT_EQ(Matched({1, 2, 3}), 3u);
  EXPECT_EQ(sink_->log, before);
  EXPECT_EQ(Pages(made.sequence).size(), 2u);
  Check();
  EXPECT_EQ(Grow(made.sequence, 5).status, KVC_OK);
  EXPECT_EQ(Stats().refused_not_now, 1u);
  EXPECT_EQ(Stats().refused_never_fits, 1u);
  EXPECT_EQ(Release(made.sequence), KVC_OK);
  EXPECT_EQ(Release(holder), KVC_OK);
  Check();
}

TEST_F(ManagerTest, CachedPagesBehindAFenceAreSkippedForOtherStreams) {
  Open(4);
  const uint64_t one = m_->OpenDeviceStream(), two = m_->OpenDeviceStream();
  const uint64_t a = Store({1, 2}, one);
  const kvc_host_fill fill{Pages(a)[0], 0, 1};
  m_->EnqueueFill(one, 1, &fill);
  EXPECT_EQ(Release(a), KVC_OK);
  EXPECT_EQ(Release(Store({3, 4}, two)), KVC_OK);
  // 1 and 2 are older but guarded; 4 and 3 are not.
  const uint64_t b = Create({}, two).sequence;
  EXPECT_EQ(Grow(b, 2).evicted_blocks, 2u);
  EXPECT_EQ(Matched({1, 2}), 2u);
  EXPECT_EQ(Matched({3}), 0u);
  const kvc_grow_result refused = Grow(b, 3);
  EXPECT_EQ(refused.status, KVC_NOT_NOW);
  EXPECT_EQ(refused.leaving_pages, 2u) << "2 waits for its fence, 1 for 2";
  EXPECT_EQ(Grow(b, 3).leaving_pages, 2u) << "asked again, told the same";
  // The stream itself may take them at once.
  const uint64_t c = Create({}, one).sequence;
  EXPECT_EQ(Grow(c, 1).evicted_blocks, 1u);
  EXPECT_EQ(m_->Advance(0, 100), 1u);
  EXPECT_EQ(Grow(b, 3).evicted_blocks, 1u);
  Check();
  EXPECT_THROW(m_->CloseDeviceStream(one), Error) << "a sequence runs on it";
  EXPECT_EQ(Release(b), KVC_OK);
  EXPECT_EQ(Release(c), KVC_OK);
  m_->CloseDeviceStream(one);
}

TEST_F(ManagerTest, AMatchNamesTheFencesOfOtherStreams) {
  Open(16);
  std::vector<uint64_t> streams;
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < 6; ++i) {
    streams.push_back(m_->OpenDeviceStream());
    std::vector<uint32_t> prompt;
    for (uint32_t k = 1; k <= i + 1; ++k) prompt.push_back(k);
    const kvc_create_result made = Create(prompt, streams[i]);
    ASSERT_EQ(Grow(made.sequence, i + 1).status, KVC_OK);
    const kvc_host_fill fill{Pages(made.sequence).back(), 0, 1};
    m_->EnqueueFill(streams[i], 1, &fill);
    ASSERT_EQ(Commit(made.sequence, {i + 1}).stored_blocks, 1u);
    ids.push_back(made.sequence);
  }
  const kvc_create_result three = Create({1, 2, 3}, streams[0]);
  ASSERT_EQ(three.wait_count, 2u) << "its own stream is in order anyway";
  EXPECT_EQ(three.waits[0].device_stream, streams[1]);
  EXPECT_EQ(three.waits[1].device_stream, streams[2]);
  const kvc_create_result all = Create({1, 2, 3, 4, 5, 6});
  ASSERT_EQ(all.wait_count, 6u);
  kvc_fence fences[8];
  uint32_t count = 0;
  EXPECT_EQ(m_->Waits(all.sequence, 5, fences, &count, nullptr), KVC_INVALID_ARGUMENT);
  ASSERT_EQ(m_->Waits(all.sequence, 8, fences, &count, nullptr), KVC_OK);
  ASSERT_EQ(count, 6u);
  for (uint32_t i = 0; i < KVC_MAX_WAITS; ++i) {
    EXPECT_EQ(all.waits[i].device_stream, fences[i].device_stream);
  }
  uint8_t done[6] = {};
  m_->StreamWait(streams[0], count, fences);
  while (m_->Advance(0, 1) == 1) {
    m_->QueryFences(count, fences, done);
  }
  for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(done[i], 1);
  EXPECT_EQ(Create({1, 2, 3}).wait_count, 0u);
  Check();
  m_->Reset();
  for (uint64_t id = 0; id < 64; ++id) (void)Release(uint64_t{1} << 32 | id);
  Check();
  EXPECT_EQ(Stats().free_pages, 16u);
}

TEST_F(ManagerTest, AWriteAfterGivingUpIsSeen) {
  Open(1);
  const uint64_t a = Create({}).sequence;
  ASSERT_EQ(Grow(a, 1).status, KVC_OK);
  EXPECT_EQ(Release(a), KVC_OK);
  const kvc_host_fill late{0, 0, 5};
  m_->EnqueueFill(0, 1, &late);
  const uint64_t b = Create({}).sequence;
  EXPECT_EQ(Grow(b, 1).status, KVC_DEVICE_ERROR);
  EXPECT_TRUE(Pages(b).empty());
  Check();
  EXPECT_EQ(Grow(b, 1).status, KVC_OK);
  EXPECT_EQ(Release(b), KVC_OK);
}

TEST_F(ManagerTest, WhatDoesNotFitIsDeferredAndHealedParentsFirst) {
  Open(16);
  sink_->room = 2;
  sink_->heal_room = 0;
  const uint64_t a = Store({1, 2, 3, 4});
  const uint64_t b = Store({5});
  EXPECT_EQ(sink_->log, (Log{"+1", "+2"}));
  EXPECT_EQ(sink_->counters.deferred_blocks.load(), 3u);
  EXPECT_EQ(sink_->counters.pending_blocks.load(), 3u);
  EXPECT_EQ(sink_->counters.dropped_events.load(), 3u);
  Check();
  // Room for new stores does not help a child of an unannounced block.
  sink_->room = 10;
  const uint64_t c = Store({1, 2, 3, 4, 6});
  EXPECT_EQ(sink_->log.size(), 2u);
  EXPECT_EQ(Matched({1, 2, 3, 4, 6}), 5u) << "deferred blocks are reusable all the same";
  sink_->heal_room = 1;
  EXPECT_EQ(sink_->host()->TryHeal(256, 1'000'000'000), 1u);
  EXPECT_EQ(sink_->log.back(), "+3");
  Check();
  sink_->heal_room = 100;
  EXPECT_EQ(Release(a), KVC_OK);  // a mutating call heals up to four
  EXPECT_EQ(sink_->log, (Log{"+1", "+2", "+3", "+4", "+5", "+6"}));
  EXPECT_EQ(sink_->counters.pending_blocks.load(), 0u);
  EXPECT_EQ(sink_->counters.healed_blocks.load(), 4u);
  Check();
  EXPECT_EQ(Release(b), KVC_OK);
  EXPECT_EQ(Release(c), KVC_OK);
}

// The scheduler pays for at most four healed blocks per call, an idle drainer
// for no more than one step after its time is over.
TEST_F(ManagerTest, HealingIsBounded) {
  Open(64);
  sink_->room = 0;
  sink_->heal_room = 0;
  std::vector<uint32_t> prompt;
  for (uint32_t i = 1; i <= 60; ++i) prompt.push_back(i);
  const uint64_t a = Store(prompt);
  sink_->heal_room = 100;
  EXPECT_EQ(Create({}).status, KVC_OK);
  EXPECT_EQ(sink_->log.size(), 4u) << "one call";
  EXPECT_EQ(Grow(a, 61).status, KVC_OK);
  EXPECT_EQ(sink_->log.size(), 8u) << "two calls";
  EXPECT_EQ(sink_->host()->TryHeal(256, 0), 16u) << "no time: one step";
  EXPECT_EQ(sink_->host()->TryHeal(5, UINT64_MAX), 5u);
  EXPECT_EQ(sink_->counters.pending_blocks.load(), 60u - 8 - 16 - 5);
  Check();
  EXPECT_EQ(Release(a), KVC_OK);
  EXPECT_EQ(Release(uint64_t{1} << 32 | 1), KVC_OK);
}

// What the suite would miss without it: a long probe must let a waiting writer
// in before it ends. At its first step a writer is made to wait; at the second
// it must have been in.
TEST_F(ManagerTest, AProbeStepsAsideForAWriter) {
  struct Scene {
    Manager* manager = nullptr;
    std::thread writer;
    std::atomic<bool> asked{false};
    std::atomic<bool> been_in{false};
    int steps = 0;
  } scene;
  ManagerTestHooks hooks;
  hooks.context = &scene;
  hooks.on_probe_step = [](void* context) {
    auto& s = *static_cast<Scene*>(context);
    if (++s.steps == 1) {
      s.writer = std::thread([&s] {
        s.asked.store(true);
        s.manager->Reset();  // any writer
        s.been_in.store(true);
      });
      while (!s.asked.load() || !ManagerPeer::WriterWaiting(*s.manager)) std::this_thread::yield();
    }
  };
  Open(1024, hooks);
  scene.manager = m_.get();
  std::vector<uint32_t> prompt(1000);
  for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = i;
  const uint64_t a = Store(prompt);
  const uint64_t matched = Matched(prompt);
  scene.writer.join();
  EXPECT_TRUE(scene.been_in.load());
  EXPECT_EQ(scene.steps, 1) << "the reset took the path away while the probe stood aside";
  EXPECT_EQ(matched, 256u) << "what had been seen until then";
  EXPECT_EQ(Release(a), KVC_OK);
}

TEST_F(ManagerTest, ADeferredBlockThatGoesSaysNothing) {
  Open(4);
  sink_->room = 1;
  sink_->heal_room = 0;
  EXPECT_EQ(Release(Store({1, 2, 3})), KVC_OK);
  const uint64_t b = Create({}).sequence;
  EXPECT_EQ(Grow(b, 4).evicted_blocks, 3u);
  EXPECT_EQ(sink_->log, (Log{"+1", "-"}));
  EXPECT_EQ(sink_->counters.deferred_evicted_blocks.load(), 2u);
  EXPECT_EQ(sink_->counters.unannounced_removals.load(), 2u);
  EXPECT_EQ(sink_->counters.pending_blocks.load(), 0u);
  Check();
  EXPECT_EQ(Release(b), KVC_OK);
}

TEST_F(ManagerTest, ResetDetachesOpenSequences) {
  Open(8);
  const uint64_t a = Store({1, 2});
  const uint64_t b = Create({1, 2}).sequence;
  ASSERT_EQ(Grow(b, 4).status, KVC_OK);
  EXPECT_EQ(Release(Store({5})), KVC_OK);
  m_->Reset();
  EXPECT_EQ(sink_->log.back(), "clear");
  const size_t logged = sink_->log.size();
  Check();
  kvc_stats stats = Stats();
  EXPECT_EQ(stats.blocks, 0u);
  EXPECT_EQ(stats.roots, 0u);
  EXPECT_EQ(stats.live_pages, 4u) << "shared pages stay with those who hold them";
  const kvc_commit_result c = Commit(b, {3, 4});
  EXPECT_EQ(c.status, KVC_OK);
  EXPECT_EQ(c.stored_blocks, 0u);
  EXPECT_EQ(c.committed_tokens, 4u * kBlock);
  EXPECT_EQ(sink_->log.size(), logged);
  // The same content can come back beside the detached ones.
  const uint64_t d = Store({1, 2});
  EXPECT_NE(Pages(d)[0], Pages(a)[0]);
  Check();
  EXPECT_EQ(Release(a), KVC_OK);
  EXPECT_EQ(Release(b), KVC_OK);
  EXPECT_EQ(Release(d), KVC_OK);
  stats = Stats();
  EXPECT_EQ(stats.cached_pages, 2u);
  EXPECT_EQ(stats.free_pages, 6u);
  Check();
}

// A reset gives up pages whose fences are older than those of pages given up
// before it: each must become free as soon as its own fence is reached.
TEST_F(ManagerTest, AQuarantineIsInTheOrderOfItsFences) {
  Open(6);
  const uint64_t s = m_->OpenDeviceStream();
  const auto work = [&] {
    const kvc_host_fill fill{0, 0, 1};
    m_->EnqueueFill(s, 1, &fill);
  };
  work();
  EXPECT_EQ(Release(Store({1, 2}, s)), KVC_OK);  // cached behind the first fence
  work();
  EXPECT_EQ(Release(Store({3}, s)), KVC_OK);  // cached behind the second
  work();
  const uint64_t a = Create({}, s).sequence;
  ASSERT_EQ(Grow(a, 3).status, KVC_OK);
  EXPECT_EQ(Release(a), KVC_OK);  // quarantined behind the third
  m_->Reset();
  Check();
  EXPECT_EQ(Stats().quarantined_pages, 6u);
  EXPECT_EQ(m_->Advance(s, 1), 1u);
  EXPECT_EQ(Stats().quarantined_pages, 4u);
  EXPECT_EQ(m_->Advance(s, 1), 1u);
  EXPECT_EQ(Stats().quarantined_pages, 3u);
  EXPECT_EQ(m_->Advance(s, 1), 1u);
  EXPECT_EQ(Stats().free_pages, 6u);
  Check();
}

TEST_F(ManagerTest, StaleIdsAreToldApart) {
  Open(4, {}, 2);
  const uint64_t a = Create({}).sequence;
  EXPECT_EQ(Release(a), KVC_OK);
  const uint64_t b = Create({}).sequence;
  EXPECT_NE(a, b) << "the slot is the same, the generation is not";
  EXPECT_EQ(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
  EXPECT_EQ(Release(a), KVC_STALE_HANDLE);
  EXPECT_EQ(Release(0), KVC_STALE_HANDLE);
  EXPECT_EQ(Release(UINT64_MAX), KVC_STALE_HANDLE);
  EXPECT_EQ(Create({}).status, KVC_OK);
  EXPECT_EQ(Create({}).status, KVC_NOT_NOW) << "max_sequences";
  EXPECT_EQ(Release(b), KVC_OK);
  EXPECT_EQ(Release(uint64_t{1} << 32 | 1), KVC_OK);
}

// The same operations with every hash colliding give the same results.
TEST_F(ManagerTest, CollisionsCostTimeAndNothingElse) {
  std::vector<std::vector<uint64_t>> outcomes;
  for (const uint32_t bits : {61u, 2u, 0u}) {
    ManagerTestHooks hooks;
    hooks.hash_bits = bits;
    Open(40, hooks);
    std::mt19937 random(5);
    std::vector<uint64_t> outcome;
    for (int i = 0; i < 400; ++i) {
      std::vector<uint32_t> prompt(1 + random() % 8);
      for (uint32_t& b : prompt) b = static_cast<uint32_t>(random() % 3);
      const kvc_create_result made = Create(prompt);
      outcome.push_back(made.matched_tokens);
      const kvc_grow_result grown = Grow(made.sequence, prompt.size());
      outcome.push_back(grown.evicted_blocks);
      const std::vector<uint32_t> rest(
          prompt.begin() + static_cast<ptrdiff_t>(made.matched_tokens / kBlock), prompt.end());
      outcome.push_back(Commit(made.sequence, rest).stored_blocks);
      EXPECT_EQ(Release(made.sequence), KVC_OK);
      if (i % 50 == 0) Check();
    }
    outcomes.push_back(outcome);
    m_.reset();
  }
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_EQ(outcomes[0], outcomes[2]);
}

// What the suite would miss without it: calls of all kinds at once. Under TSan
// this is the proof that everything shared is behind the lock.
TEST_F(ManagerTest, AllCallsFromManyThreads) {
  Open(64);
  std::atomic<int> ready{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      ++ready;
      while (ready.load() < 6) std::this_thread::yield();
      for (int i = 0; i < 300; ++i) {
        std::vector<uint32_t> prompt(1 + random() % 6);
        for (uint32_t& b : prompt) b = static_cast<uint32_t>(random() % 4);
        const kvc_create_result made = Create(prompt);
        if (made.status != KVC_OK) continue;
        if (Grow(made.sequence, prompt.size()).status == KVC_OK) {
          const std::vector<uint32_t> rest(
              prompt.begin() + static_cast<ptrdiff_t>(made.matched_tokens / kBlock), prompt.end());
          EXPECT_EQ(Commit(made.sequence, rest).status, KVC_OK);
        }
        EXPECT_EQ(Release(made.sequence), KVC_OK);
      }
    });
  }
  std::thread prober([&] {
    ++ready;
    while (!stop.load()) {
      EXPECT_LE(Matched({1, 2, 3, 0}), 4u);
      (void)Stats();
    }
  });
  std::thread keeper([&] {
    ++ready;
    while (ready.load() < 6) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) {
      Check();
      (void)sink_->host()->TryHeal(8, 1000);
      if (i % 5 == 4) m_->Reset();
    }
  });
  for (std::thread& t : threads) t.join();
  keeper.join();
  stop.store(true);
  prober.join();
  Check();
  EXPECT_EQ(Stats().live_pages, 0u);
}

TEST_F(ManagerTest, DetachingTheSinkEndsRecording) {
  Open(8);
  sink_->room = 1;
  sink_->heal_room = 0;
  const uint64_t a = Store({1, 2});
  const Log before = sink_->log;
  m_->DetachSink();
  EXPECT_EQ(sink_->counters.pending_blocks.load(), 0u);
  Check();
  const uint64_t b = Store({1, 2, 3});
  m_->Reset();
  EXPECT_EQ(sink_->log, before);
  EXPECT_EQ(m_->TryHeal(10, 1000), 0u);
  Check();
  EXPECT_EQ(Release(a), KVC_OK);
  EXPECT_EQ(Release(b), KVC_OK);
}

}  // namespace
}  // namespace kvcast
