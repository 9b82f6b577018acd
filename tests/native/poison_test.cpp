// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Debug builds overwrite a batch that has been taken back, so that whoever still
// uses it notices. These tests are that careless user.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "sink/src/batch_arrays.h"
#include "tests/native/abi_support.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;
using kvcast::testing::WireMirror;

bool Poisoned(const void* memory, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(memory);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != kvcast::kDrainPoison) return false;
  }
  return bytes != 0;
}

void Store(Cache& cache, const std::vector<uint32_t>& tokens) {
  kvcast::testing::ScopeSpec scope;
  scope.lora_name = "adapter";
  const uint64_t id = cache.Create({}, scope).sequence;
  ASSERT_EQ(cache.Grow(id, tokens.size()).status, KVC_OK);
  ASSERT_EQ(cache.Commit(id, tokens.data(), tokens.size()).status, KVC_OK);
  ASSERT_EQ(cache.Release(id), KVC_OK);
}

TEST(Poison, AStaleBatchIsOverwritten) {
  if (!kvcast::kPoisonDrain) GTEST_SKIP() << "built with NDEBUG and without KVC_POISON_DRAIN";
  for (const kvc_hash_form form : {KVC_HASH_SIGNED64, KVC_HASH_BYTES}) {
    SCOPED_TRACE(form);
    CacheOptions options;
    options.form = form;
    Cache cache(options);
    Store(cache, {1, 2, 3, 4});
    kvc_borrowed_batch stale;
    ASSERT_EQ(cache.Drain(&stale), KVC_OK);
    ASSERT_EQ(stale.event_count, 1u);
    ASSERT_EQ(stale.hash_count, 2u);
    ASSERT_EQ(WireMirror(form, 2).Apply(stale), "") << "it is good as long as it is borrowed";

    // Taken back by a drain that has something to say, and by one that has not.
    Store(cache, {5, 6});
    kvc_borrowed_batch fresh;
    ASSERT_EQ(cache.Drain(&fresh), KVC_OK);
    ASSERT_EQ(fresh.event_count, 1u);
    EXPECT_NE(fresh.hashes, stale.hashes) << "the new batch must lie in other memory";
    EXPECT_TRUE(Poisoned(stale.events, sizeof(kvc_event)));
    EXPECT_TRUE(Poisoned(stale.hashes, 2 * sizeof(uint64_t)));
    EXPECT_TRUE(Poisoned(stale.tokens, 4 * sizeof(uint32_t)));
    EXPECT_TRUE(Poisoned(stale.scopes, sizeof(kvc_event_scope)));
    EXPECT_TRUE(Poisoned(stale.strings, std::strlen("adapter")));
    if (form == KVC_HASH_BYTES) {
      EXPECT_TRUE(Poisoned(stale.digests, 64));
      EXPECT_TRUE(Poisoned(stale.parent_digests, 32));
    }
    EXPECT_NE(WireMirror(form, 2).Apply(stale), "") << "a subscriber's checks refuse it";
    EXPECT_EQ(fresh.tokens[0], 5u) << "what is borrowed now is untouched";

    kvc_borrowed_batch nothing;
    ASSERT_EQ(cache.Drain(&nothing), KVC_OK);
    EXPECT_EQ(nothing.event_count, 0u);
    EXPECT_TRUE(Poisoned(fresh.hashes, sizeof(uint64_t)));
    EXPECT_TRUE(Poisoned(fresh.tokens, 2 * sizeof(uint32_t)));
  }
}

}  // namespace
