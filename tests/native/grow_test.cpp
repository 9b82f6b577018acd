// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A grow that is refused leaves everything as it was, also when the answer is one that
// is remembered (other calls: refused_test.cpp). Beside that, what a grow counts: own hits
// are neither free nor victims.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/src/manager.h"
#include "sink/src/streaming_event_sink.h"
#include "tests/native/state_dump.h"

namespace kvcast {

namespace {

constexpr uint32_t kBlock = 2;

class GrowTest : public ::testing::Test {
 protected:
  void Open(uint32_t pages) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = pages;
    config.max_sequences = 8;
    config.resume_gate_permille = 1000;
    config.seed = 1;
    SinkOptions options;
    options.max_entries = 64;
    sink_ = std::make_shared<StreamingEventSink>(options);
    m_ = std::make_unique<Manager>(config, sink_);
  }
  // Blocks of one repeated token each.
  uint64_t Create(const std::vector<uint32_t>& blocks, uint64_t stream = 0) {
    Tokens(blocks);
    kvc_prompt prompt{};
    prompt.token_count = tokens_.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_create_result made{};
    m_->Create(1, &prompt, {Data(), tokens_.size()}, &made, nullptr);
    EXPECT_EQ(made.status, KVC_OK);
    matched_ = made.matched_tokens;
    return made.sequence;
  }
  kvc_grow_result Grow(uint64_t id, uint32_t blocks) {
    const kvc_grow_item item{id, uint64_t{blocks} * kBlock};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    return result;
  }
  uint64_t Store(const std::vector<uint32_t>& blocks, uint64_t stream = 0) {
    const uint64_t id = Create(blocks, stream);
    EXPECT_EQ(Grow(id, static_cast<uint32_t>(blocks.size())).status, KVC_OK);
    const kvc_commit_item item{id, matched_, tokens_.size() - matched_, 0, 0, {}, 0};
    kvc_commit_result result{};
    m_->Commit(1, &item, {Data(), tokens_.size()}, &result, nullptr);
    EXPECT_EQ(result.status, KVC_OK);
    return id;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &id, &status, nullptr);
    EXPECT_EQ(status, KVC_OK);
  }
  void Suspend(uint64_t id) {
    const kvc_suspend_item item{id, KVC_SUSPEND_KEEP, 0};
    kvc_status status = KVC_INTERNAL;
    m_->Suspend(1, &item, &status, nullptr);
    EXPECT_EQ(status, KVC_OK);
  }
  void Kernel(uint64_t stream) {
    const kvc_host_fill fill{0, 0, 1};
    m_->EnqueueFill(stream, 1, &fill);
  }
  void Check() {
    kvc_error error{};
    EXPECT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }
  // A refused grow, and the same again: the answer that is remembered.
  void Refused(uint64_t id, uint32_t blocks, kvc_status status) {
    Check();  // pages whose fences have been reached are free from here on
    const std::string before = DumpState(*m_, *sink_);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Grow(id, blocks).status, status);
      EXPECT_EQ(FirstDifference(before, DumpState(*m_, *sink_)), "");
    }
    Check();
  }

  std::shared_ptr<StreamingEventSink> sink_;
  std::unique_ptr<Manager> m_;
  uint64_t matched_ = 0;

 private:
  void Tokens(const std::vector<uint32_t>& blocks) {
    tokens_.clear();
    for (const uint32_t b : blocks) tokens_.insert(tokens_.end(), kBlock, b);
  }
  const uint32_t* Data() const {
    static const uint32_t kNone = 0;
    return tokens_.empty() ? &kNone : tokens_.data();
  }
  std::vector<uint32_t> tokens_;
};

TEST_F(GrowTest, RefusedChangesNothing) {
  Open(12);
  const uint64_t one = m_->OpenDeviceStream(), two = m_->OpenDeviceStream();
  const uint64_t held = Store({1, 2, 3});
  Release(Store({1, 4, 5}));
  const uint64_t fenced = Store({6, 7}, one);
  Kernel(one);
  Release(fenced);  // cached, not to be had by others yet
  const uint64_t given_up = Create({}, one);
  EXPECT_EQ(Grow(given_up, 2).status, KVC_OK);
  Kernel(one);
  Release(given_up);  // quarantined
  const uint64_t sleeper = Create({}, two);
  EXPECT_EQ(Grow(sleeper, 1).status, KVC_OK);
  Suspend(sleeper);
  // 12 pages: 1 2 3 held, 4 5 cached, 6 7 behind the fence, two quarantined,
  // one kept, two free.
  const uint64_t id = Create({1, 2}, two);
  EXPECT_EQ(matched_, 2u * kBlock);
  Refused(id, 8, KVC_NOT_NOW);
  Refused(id, 13, KVC_NEVER_FITS);
  // Two free ones, 4, 5 and the kept one: five and not one more.
  EXPECT_EQ(Grow(id, 7).evicted_blocks, 2u);
  Refused(id, 8, KVC_NOT_NOW);
  for (const uint64_t open : {id, held, sleeper}) Release(open);
  Check();
}

// The prompt's own hits are held: they neither count as free nor are evicted.
TEST_F(GrowTest, OwnHitsAreNeitherFreeNorVictims) {
  Open(6);
  Release(Store({1, 2, 3, 4}));
  const uint64_t id = Create({1, 2, 3});
  EXPECT_EQ(matched_, 3u * kBlock);
  // Two free, 4 to evict: room for six blocks with the three that were hit.
  const kvc_grow_result grown = Grow(id, 6);
  EXPECT_EQ(grown.status, KVC_OK);
  EXPECT_EQ(grown.added_pages, 3u);
  EXPECT_EQ(grown.evicted_blocks, 1u);
  Refused(id, 7, KVC_NEVER_FITS);
  const uint64_t other = Create({1, 2, 3});
  EXPECT_EQ(matched_, 3u * kBlock) << "its hits are there still";
  Refused(other, 4, KVC_NOT_NOW);
  Release(other);
  Release(id);
}

// Added pages are exactly those that are missing, also for a part of a block.
TEST_F(GrowTest, TheExactPageCount) {
  Open(8);
  const uint64_t id = Create({});
  uint32_t has = 0;
  for (const uint64_t tokens : {0u, 1u, 2u, 3u, 3u, 8u, 1u, 9u, 16u}) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    const auto wanted = static_cast<uint32_t>((tokens + kBlock - 1) / kBlock);
    EXPECT_EQ(result.status, KVC_OK);
    EXPECT_EQ(result.added_pages, wanted > has ? wanted - has : 0) << tokens;
    has = std::max(has, wanted);
  }
  Release(id);
}

}  // namespace
}  // namespace kvcast
