// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The pool after a long day: nothing is lost, and each page is there once. And
// keys that collide: never a wrong match, and no standstill.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "native/src/manager.h"
#include "sink/src/streaming_event_sink.h"

namespace kvcast {
namespace {

constexpr uint32_t kBlock = 4;

class PoolTest : public ::testing::Test {
 protected:
  void Open(uint32_t pages, uint32_t hash_bits = 61) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = pages;
    config.max_sequences = 64;
    config.page_bytes = 16;
    config.flags = KVC_CONFIG_POISON;
    config.seed = 5;
    ManagerTestHooks hooks;
    hooks.hash_bits = hash_bits;
    sink_ = std::make_shared<StreamingEventSink>(SinkOptions{});
    m_ = std::make_unique<Manager>(config, sink_, hooks);
  }
  kvc_create_result Create(const std::vector<uint32_t>& tokens, uint64_t stream, uint32_t flags) {
    static const uint32_t kNone = 0;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    prompt.flags = flags;
    kvc_create_result made{};
    m_->Create(1, &prompt, {tokens.empty() ? &kNone : tokens.data(), tokens.size()}, &made,
               nullptr);
    return made;
  }
  kvc_status Grow(uint64_t id, uint64_t tokens) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    return result.status;
  }
  kvc_status Commit(uint64_t id, const std::vector<uint32_t>& tokens, uint64_t from) {
    const kvc_commit_item item{id, from, tokens.size() - from, 0, 0, {}, 0};
    kvc_commit_result result{};
    m_->Commit(1, &item, {tokens.data(), tokens.size()}, &result, nullptr);
    return result.status;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &id, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
  }
  kvc_stats Stats() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats;
  }
  void Check() {
    kvc_error error{};
    ASSERT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }

  std::shared_ptr<StreamingEventSink> sink_;
  std::unique_ptr<Manager> m_;
};

TEST_F(PoolTest, AfterTenThousandRequestsEachPageIsThereOnce) {
  constexpr uint32_t kPool = 60;
  Open(kPool);
  std::mt19937_64 random(11);
  const auto pick = [&](uint64_t n) { return random() % n; };
  const uint64_t streams[] = {0, m_->OpenDeviceStream(), m_->OpenDeviceStream(),
                              m_->OpenStepStream()};
  std::vector<uint64_t> open, holds;
  std::vector<uint64_t> asleep;
  uint64_t step = 0;
  for (int request = 0; request < 10000; ++request) {
    m_->BeginStep(streams[3], ++step);
    const uint64_t stream = streams[pick(4)];
    std::vector<uint32_t> tokens(1 + pick(6 * kBlock));
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(pick(2));
    const kvc_create_result made = Create(tokens, stream, pick(10) == 0 ? KVC_PROMPT_SUSPENDED : 0);
    if (made.status == KVC_OK) {
      kvc_sequence_info info{};
      uint32_t written = 0;
      m_->Get(made.sequence, 0, 0, nullptr, &written, &info, nullptr);
      if (info.state == KVC_SEQUENCE_SUSPENDED) {
        asleep.push_back(made.sequence);
      } else {
        open.push_back(made.sequence);
        if (Grow(made.sequence, tokens.size() + pick(kBlock)) == KVC_OK) {
          ASSERT_EQ(Commit(made.sequence, tokens, made.matched_tokens), KVC_OK);
          // A kernel that comes late.
          if (stream == streams[1] || stream == streams[2]) {
            uint32_t page = 0;
            m_->Get(made.sequence, static_cast<uint32_t>(tokens.size() / kBlock), 1, &page,
                    &written, nullptr, nullptr);
            const kvc_host_fill late{page, 0, 0};
            if (written == 1) m_->EnqueueFill(stream, 1, &late);
          }
        }
      }
    }
    while (open.size() > 12 || (!open.empty() && pick(2) == 0)) {
      const size_t at = pick(open.size());
      const uint64_t id = open[at];
      open.erase(open.begin() + static_cast<ptrdiff_t>(at));
      kvc_status status = KVC_OK;
      switch (pick(5)) {
        case 0: {
          const kvc_suspend_item item{id, static_cast<uint32_t>(pick(2)), 0};
          m_->Suspend(1, &item, &status, nullptr);
          asleep.push_back(id);
          break;
        }
        case 1: {
          const kvc_hold_item item{id, 1, 0};
          kvc_hold_result held{};
          m_->ReleaseHeld(1, &item, &held, nullptr);
          status = held.status;
          holds.push_back(held.hold);
          break;
        }
        case 2:
          m_->Cancel(1, &id, &status, nullptr);
          break;
        default:
          m_->Release(1, &id, &status, nullptr);
      }
      ASSERT_EQ(status, KVC_OK);
    }
    while (asleep.size() > 10) {
      kvc_resume_result resumed{};
      m_->Resume(1, &asleep.front(), &resumed, nullptr);
      if (resumed.status == KVC_NOT_NOW) break;  // the gate is closed
      ASSERT_EQ(resumed.status, KVC_OK);
      open.push_back(asleep.front());
      asleep.erase(asleep.begin());
    }
    while (holds.size() > 4) {
      kvc_status status = KVC_INTERNAL;
      m_->ReleaseHolds(1, &holds.front(), &status, nullptr);
      ASSERT_EQ(status, KVC_OK);
      holds.erase(holds.begin());
    }
    if (pick(3) == 0) (void)m_->Advance(0, pick(10));
    if (pick(4) == 0) m_->EndStep(streams[3], step - pick(2));
    if (request % 500 == 0) {
      Check();
      m_->Reset();
    }
  }
  for (const uint64_t id : open) Release(id);
  for (const uint64_t id : asleep) Release(id);
  for (const uint64_t id : holds) {
    kvc_status status = KVC_INTERNAL;
    m_->ReleaseHolds(1, &id, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
  }
  (void)m_->Advance(0, UINT64_MAX);
  m_->EndStep(0, UINT64_MAX);
  Check();
  const kvc_stats idle = Stats();
  EXPECT_EQ(idle.live_pages, 0u);
  EXPECT_EQ(idle.quarantined_pages, 0u);
  EXPECT_EQ(idle.holds, 0u);
  EXPECT_EQ(idle.kept_pages, 0u);
  EXPECT_EQ(idle.cached_pages + idle.free_pages, kPool);
  EXPECT_GT(idle.evicted_blocks, 1000u);
  EXPECT_GT(idle.reclaimed_pages + idle.refused_not_now, 0u);
  // The whole pool for one sequence, all pages different.
  const kvc_create_result all = Create({}, 0, 0);
  ASSERT_EQ(Grow(all.sequence, uint64_t{kPool} * kBlock), KVC_OK);
  std::vector<uint32_t> pages(kPool);
  uint32_t written = 0;
  ASSERT_EQ(m_->Get(all.sequence, 0, kPool, pages.data(), &written, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(std::set<uint32_t>(pages.begin(), pages.end()).size(), kPool);
  EXPECT_LT(*std::max_element(pages.begin(), pages.end()), kPool);
  EXPECT_EQ(Stats().blocks, 0u);
  Release(all.sequence);
  Check();
}

// With two bits of hash there are four values for all keys: each lookup meets
// thousands of blocks that are not the one it is after.
TEST_F(PoolTest, TenThousandCollidingKeysStayUsable) {
  constexpr uint32_t kKeys = 10000;
  Open(kKeys, /*hash_bits=*/2);
  const auto tokens = [](uint32_t key) { return std::vector<uint32_t>{key, key >> 3, 7, key % 5}; };
  for (uint32_t key = 0; key < kKeys; ++key) {
    const kvc_create_result made = Create(tokens(key), 0, 0);
    ASSERT_EQ(made.matched_tokens, 0u) << "a wrong match for key " << key;
    ASSERT_EQ(Grow(made.sequence, kBlock), KVC_OK);
    ASSERT_EQ(Commit(made.sequence, tokens(key), 0), KVC_OK);
    Release(made.sequence);
  }
  ASSERT_EQ(Stats().blocks, kKeys);
  for (uint32_t key = 0; key < kKeys; key += 97) {
    const kvc_create_result found = Create(tokens(key), 0, 0);
    EXPECT_EQ(found.matched_tokens, kBlock) << key;
    Release(found.sequence);
    const kvc_create_result unknown = Create(tokens(kKeys + key), 0, 0);
    EXPECT_EQ(unknown.matched_tokens, 0u) << key;
    Release(unknown.sequence);
  }
  // All of them can go again: the table has lost none.
  const kvc_create_result all = Create({}, 0, 0);
  EXPECT_EQ(Grow(all.sequence, uint64_t{kKeys} * kBlock), KVC_OK);
  EXPECT_EQ(Stats().blocks, 0u);
  Release(all.sequence);
  Check();
}

}  // namespace
}  // namespace kvcast
