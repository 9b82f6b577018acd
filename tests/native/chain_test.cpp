// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A chain of a million blocks on a thread with a 256 KiB stack: whatever walks
// the tree by recursion, one frame a block, ends here.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"
#include "tests/native/owned_handle.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;
using kvcast::testing::EnvNumber;
using kvcast::testing::OwnedManager;
using kvcast::testing::OwnedStream;

constexpr size_t kStackBytes = 256 * 1024;

// Runs `body` on a small stack; a body that overruns it hits the guard page.
template <typename Body>
void OnSmallStack(Body body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
  pthread_t thread;
  const int failed = pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        (*static_cast<Body*>(argument))();
        return nullptr;
      },
      &body);
  pthread_attr_destroy(&attributes);
  ASSERT_EQ(failed, 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
}

// The sum of what was stored and removed; a map of a million blocks would take
// longer than everything else.
struct Told {
  uint64_t stored = 0;
  uint64_t removed = 0;
  uint64_t clears = 0;
  uint64_t last_hash = 0;
  bool chained = true;
};

void Drain(Cache& cache, Told* told) {
  for (;;) {
    kvc_borrowed_batch batch;
    ASSERT_EQ(cache.Drain(&batch, 0, 8192), KVC_OK);
    for (uint64_t e = 0; e < batch.event_count; ++e) {
      const kvc_event& event = batch.events[e];
      if (event.kind == KVC_EVENT_STORED) {
        // Each event hangs on the last block of the one before.
        const bool root = (event.flags & KVC_EVENT_HAS_PARENT) == 0;
        told->chained &= root ? told->stored == 0 : event.parent_hash == told->last_hash;
        told->stored += event.hash_count;
        told->last_hash = batch.hashes[event.hash_offset + event.hash_count - 1];
      } else if (event.kind == KVC_EVENT_REMOVED) {
        told->removed += event.hash_count;
      } else {
        ++told->clears;
      }
    }
    if (batch.event_count == 0 && batch.remaining_bytes == 0 && batch.pending_blocks == 0) return;
  }
}

TEST(Chain, AMillionBlocksOnASmallStack) {
  const auto blocks = static_cast<uint32_t>(
      EnvNumber("KVC_CHAIN_BLOCKS", kvcast::testing::kSanitized ? 100000 : 1000000));
  OnSmallStack([blocks] {
    CacheOptions options;
    options.block = 1;
    options.pages = blocks + 8;
    options.page_bytes = 0;
    options.poison = false;
    options.entries = blocks / 4;  // three quarters of the chain are deferred and healed
    Cache cache(options);
    std::vector<uint32_t> tokens(blocks);
    for (uint32_t i = 0; i < blocks; ++i) tokens[i] = i % 1000;
    Told told;

    // Built, and drained while three quarters of it are deferred.
    uint64_t id = cache.Create({}).sequence;
    ASSERT_EQ(cache.Grow(id, blocks).status, KVC_OK);
    ASSERT_EQ(cache.Commit(id, tokens.data(), blocks).stored_blocks, blocks);
    EXPECT_GT(cache.StreamStats().pending_blocks, blocks / 2);
    Drain(cache, &told);
    EXPECT_EQ(told.stored, blocks);
    EXPECT_TRUE(told.chained);
    ASSERT_EQ(cache.Release(id), KVC_OK);

    // Matched.
    EXPECT_EQ(cache.Probe(tokens).matched_tokens, blocks);
    const kvc_create_result hit = cache.Create(tokens);
    EXPECT_EQ(hit.matched_tokens, blocks);
    ASSERT_EQ(cache.Release(hit.sequence), KVC_OK);
    EXPECT_EQ(cache.Check(), "");
    EXPECT_EQ(cache.Resident().size(), blocks);

    // Evicted by one grow, children before parents.
    id = cache.Create({}).sequence;
    EXPECT_EQ(cache.Grow(id, blocks + 8).evicted_blocks, blocks);
    Drain(cache, &told);
    EXPECT_EQ(told.removed, blocks);
    EXPECT_EQ(cache.Check(), "");

    // Built again in the same pages, reset while its sequence is open.
    told = {};
    ASSERT_EQ(cache.Commit(id, tokens.data(), blocks).stored_blocks, blocks);
    Drain(cache, &told);
    EXPECT_EQ(told.stored, blocks);
    ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
    Drain(cache, &told);
    EXPECT_EQ(told.clears, 1u);
    EXPECT_EQ(told.removed, 0u);
    EXPECT_EQ(cache.Stats().blocks, 0u);
    EXPECT_EQ(cache.Check(), "");
    ASSERT_EQ(cache.Release(id), KVC_OK);

    // Destroyed, with the chain in the tree and most of it deferred.
    id = cache.Create({}).sequence;
    ASSERT_EQ(cache.Grow(id, blocks).status, KVC_OK);
    ASSERT_EQ(cache.Commit(id, tokens.data(), blocks).stored_blocks, blocks);
    ASSERT_EQ(cache.Release(id), KVC_OK);
    EXPECT_EQ(cache.Close(), KVC_OK);
    kvc_borrowed_batch batch;
    uint64_t stored = 0;
    kvc_status status = KVC_OK;
    while ((status = cache.Drain(&batch, 0, 8192)) == KVC_OK) {
      for (uint64_t e = 0; e < batch.event_count; ++e) stored += batch.events[e].hash_count;
    }
    EXPECT_EQ(status, KVC_END);
    EXPECT_GT(stored, 0u);
    EXPECT_LT(stored, blocks) << "what was deferred when the manager went cannot be announced";
  });
}

// A stream that is taken away from a manager with a long chain, most of it deferred.
TEST(Chain, DetachOnASmallStack) {
  OnSmallStack([] {
    constexpr uint32_t kBlocks = 100000;
    CacheOptions options;
    options.block = 1;
    options.pages = kBlocks;
    options.page_bytes = 0;
    options.entries = 100;
    kvc_stream_config stream_config;
    kvc_stream_config_init(&stream_config);
    stream_config.max_entries = 100;
    OwnedStream stream;
    ASSERT_EQ(kvc_stream_create(&stream_config, stream.out(), nullptr), KVC_OK);
    kvc_config config;
    kvc_config_init(&config);
    config.tokens_per_block = 1;
    config.capacity_blocks = kBlocks;
    OwnedManager manager;
    ASSERT_EQ(kvc_manager_create(&config, stream, manager.out(), nullptr), KVC_OK);
    std::vector<uint32_t> tokens(kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) tokens[i] = i;
    kvc_prompt prompt{};
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    EXPECT_EQ(kvc_sequences_create(manager, 1, &prompt, nullptr, 0, nullptr, 0, nullptr, 0, &made,
                                   nullptr),
              KVC_OK);
    const kvc_grow_item grow{made.sequence, kBlocks};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager, 1, &grow, &grown, nullptr, 0, nullptr, nullptr), KVC_OK);
    const kvc_commit_item commit{made.sequence, 0, kBlocks, 0, 0, {}, 0};
    kvc_commit_result committed{};
    EXPECT_EQ(kvc_sequences_commit(manager, 1, &commit, tokens.data(), kBlocks, nullptr, 0,
                                   &committed, nullptr),
              KVC_OK);
    EXPECT_EQ(committed.stored_blocks, kBlocks);
    kvc_stream_destroy(stream.Take());
    EXPECT_EQ(kvc_manager_check(manager, nullptr), KVC_OK);
    kvc_status released = KVC_OK;
    EXPECT_EQ(kvc_sequences_release(manager, 1, &made.sequence, &released, nullptr), KVC_OK);
    EXPECT_EQ(kvc_manager_reset(manager, nullptr), KVC_OK);
    EXPECT_EQ(kvc_manager_destroy(manager.Take(), nullptr), KVC_OK);
  });
}

}  // namespace
