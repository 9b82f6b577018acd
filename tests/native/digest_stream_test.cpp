// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Multimodal digests on their way out: keys (golden values of Python's hashlib),
// records, events, the mirror; and what a suppressing stream keeps to itself.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/manager.h"
#include "sink/src/streaming_event_sink.h"
#include "tests/native/abi_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast {
namespace {

using testing::Cache;
using testing::CacheOptions;
using testing::DigestFromText;
using testing::DigestOf;
using testing::DigestText;
using testing::OwnedManager;
using testing::OwnedStream;
using testing::TestDigest;
using testing::WireMirror;

constexpr uint32_t D(uint32_t k) { return KVC_DIGEST_TOKEN(k); }

// -------------------------------------------------------------------- keys

struct Golden {
  const char* what;
  std::vector<std::string> tokens;  // "a" and "b" are digests
  const char* key;                  // of the chain up to this block
};

// SHA-256("image a") and of "image b"; the chain, from the root of the empty
// scope, with hashlib: sha256(parent + b"".join(digest or 4 bytes LE)).
const char* const kImageA = "a854f481d4cb2479ff869f3a33763e4c3e8d6b5727f909d774fdd5f37690baeb";
const char* const kImageB = "02ebd76c882f25c48508f105a5ed4f86512d0fc0da800ddd7c9d47c6a9ee80bf";
const std::vector<Golden> kChain = {
    {"first",
     {"a", "101", "102", "103"},
     "06a29fa4dbb9c01be1e70854c2b0ad6afba066777e0c5cd36efda472995d2fff"},
    {"text",
     {"0", "1", "2", "3"},
     "535a9e1d52414562476738eb32125df0760ab09c8bdfb6f96e4a6e4e4ad9a594"},
    {"middle",
     {"4", "a", "101", "5"},
     "8a7bf22350089148cc7997ef98e6ebb5301a8655c32d1748d41886950cac9fee"},
    {"last",
     {"6", "7", "8", "b"},
     "2c64d13f762ec07c5e2153920c503810cedb0e0ac4f85c99e6427587e4e25387"},
    {"several",
     {"a", "b", "a", "9"},
     "15c36d594c69ceeaef3b743f6331138b2532565ed2f9db576488e5782f7167ba"},
    {"all",
     {"b", "b", "a", "a"},
     "6bff2d1583b207336a19f6e6efa04448b4c8626f7e584f4ce570adb6560f8764"},
};

std::vector<uint32_t> TokensOf(const Golden& block) {
  std::vector<uint32_t> tokens;
  for (const std::string& t : block.tokens) {
    tokens.push_back(t == "a"   ? KVC_DIGEST_TOKEN(0)
                     : t == "b" ? KVC_DIGEST_TOKEN(1)
                                : static_cast<uint32_t>(std::stoul(t)));
  }
  return tokens;
}

TEST(DigestKeys, GoldenChainOnEveryPath) {
  const TestDigest images[] = {DigestFromText(kImageA), DigestFromText(kImageB)};
  std::vector<const Sha256Kernels*> all = {&Sha256Portable()};
  if (Sha256ShaNi() != nullptr) all.push_back(Sha256ShaNi());
  for (const Sha256Kernels* kernels : all) {
    uint8_t key[kKeyBytes];
    RootKey({}, key);
    for (const Golden& block : kChain) {
      const std::vector<uint32_t> tokens = TokensOf(block);
      BlockKey(
          key, tokens.data(), 4, [&](uint32_t t) { return images[t & ~kDigestBit].data(); }, key,
          *kernels);
      EXPECT_EQ(DigestText(key), block.key) << block.what << ", " << kernels->name;
    }
  }
}

// Long runs of text around a digest: more than one piece of the hasher.
TEST(DigestKeys, ManyTokens) {
  constexpr uint64_t kSeed = 9102;
  std::mt19937_64 random(kSeed);
  for (const uint32_t n : {1u, 63u, 64u, 65u, 128u, 300u, 4096u}) {
    std::vector<uint32_t> tokens(n);
    std::vector<uint8_t> message(kKeyBytes, 7);
    for (uint32_t& t : tokens) {
      const bool digest = random() % 70 == 0;
      t = digest ? D(static_cast<uint32_t>(random() % 9)) : static_cast<uint32_t>(random() >> 33);
      if (digest) {
        const TestDigest bytes = DigestOf(t & ~kDigestBit);
        message.insert(message.end(), bytes.begin(), bytes.end());
      } else {
        for (int i = 0; i < 4; ++i) message.push_back(static_cast<uint8_t>(t >> (8 * i)));
      }
    }
    Sha256 hash(Sha256Portable());
    hash.Update(message.data(), message.size());
    uint8_t expected[kKeyBytes], key[kKeyBytes];
    hash.Final(expected);
    TestDigest bytes;
    BlockKey(
        message.data(), tokens.data(), n,
        [&](uint32_t t) {
          bytes = DigestOf(t & ~kDigestBit);
          return bytes.data();
        },
        key);
    EXPECT_EQ(DigestText(key), DigestText(expected)) << n << " tokens, seed " << kSeed;
  }
}

// The golden chain through allocator, sink and projector, between other chains
// that keep all lanes of the hasher busy.
TEST(Digests, GoldenChainThroughTheStream) {
  kvc_stream_config stream_config;
  kvc_stream_config_init(&stream_config);
  stream_config.hash_form = KVC_HASH_BYTES;
  stream_config.multimodal = KVC_MULTIMODAL_ANNOUNCE;
  OwnedStream stream;
  ASSERT_EQ(kvc_stream_create(&stream_config, stream.out(), nullptr), KVC_OK);
  kvc_config config;
  kvc_config_init(&config);
  config.tokens_per_block = 4;
  config.capacity_blocks = 100;
  OwnedManager m;
  ASSERT_EQ(kvc_manager_create(&config, stream, m.out(), nullptr), KVC_OK);

  std::vector<uint64_t> open;
  const auto store = [&](const std::vector<uint32_t>& tokens, const std::vector<uint8_t>& bytes) {
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.digest_count = static_cast<uint32_t>(bytes.size() / 32);
    kvc_create_result made{};
    ASSERT_EQ(kvc_sequences_create(m, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   bytes.data(), bytes.size(), &made, nullptr),
              KVC_OK);
    const kvc_grow_item grow{made.sequence, tokens.size()};
    kvc_grow_result grown{};
    ASSERT_EQ(kvc_sequences_grow(m, 1, &grow, &grown, nullptr, 0, nullptr, nullptr), KVC_OK);
    kvc_commit_item item{};
    item.sequence = made.sequence;
    item.token_count = tokens.size();
    item.digest_count = prompt.digest_count;
    kvc_commit_result committed{};
    ASSERT_EQ(kvc_sequences_commit(m, 1, &item, tokens.data(), tokens.size(), bytes.data(),
                                   bytes.size(), &committed, nullptr),
              KVC_OK);
    ASSERT_EQ(committed.status, KVC_OK);
    open.push_back(made.sequence);
  };
  std::vector<uint32_t> tokens;
  for (const Golden& block : kChain) {
    const std::vector<uint32_t> more = TokensOf(block);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  std::vector<uint8_t> bytes;
  for (const char* image : {kImageA, kImageB}) {
    const TestDigest digest = DigestFromText(image);
    bytes.insert(bytes.end(), digest.begin(), digest.end());
  }
  for (uint32_t i = 0; i < 4; ++i) {
    if (i == 2) store(tokens, bytes);
    store(std::vector<uint32_t>(16, 1000 + i), {});
  }

  kvc_borrowed_batch batch;
  ASSERT_EQ(kvc_stream_drain(stream, 0, 0, &batch, nullptr), KVC_OK);
  ASSERT_EQ(batch.event_count, 5u);
  const kvc_event& event = batch.events[2];
  ASSERT_EQ(event.hash_count, kChain.size());
  for (size_t i = 0; i < kChain.size(); ++i) {
    EXPECT_EQ(DigestText(batch.digests + 32 * (event.hash_offset + i)), kChain[i].key)
        << kChain[i].what;
  }
  const std::string order =
      "aababab"
      "baa";
  EXPECT_EQ(event.multimodal_count, 10u);
  EXPECT_EQ(batch.multimodal_count, 10u);
  const std::string expected_order =
      "aa"
      "b"
      "aba"
      "bbaa";
  uint32_t next = 0;
  for (uint64_t i = 0; i < event.token_count; ++i) {
    const uint32_t token = batch.tokens[event.token_offset + i];
    if ((tokens[i] & KVC_DIGEST_BIT) == 0) {
      EXPECT_EQ(token, tokens[i]);
      continue;
    }
    EXPECT_EQ(token, KVC_DIGEST_TOKEN(next));
    EXPECT_EQ(DigestText(batch.multimodal + 32 * (event.multimodal_offset + next)),
              expected_order[next] == 'a' ? kImageA : kImageB);
    ++next;
  }
  EXPECT_EQ(next, 10u);

  // And read from the tree itself.
  std::vector<kvc_resident_block> blocks(100);
  uint64_t count = 0;
  ASSERT_EQ(kvc_manager_resident(m, KVC_HASH_BYTES, 100, blocks.data(), &count, nullptr), KVC_OK);
  ASSERT_EQ(count, 22u);
  std::map<std::string, bool> resident;
  for (uint64_t i = 0; i < count; ++i) resident[DigestText(blocks[i].digest)] = true;
  for (const Golden& block : kChain) EXPECT_EQ(resident.count(block.key), 1u) << block.what;

  std::vector<kvc_status> released(open.size());
  ASSERT_EQ(kvc_sequences_release(m, static_cast<uint32_t>(open.size()), open.data(),
                                  released.data(), nullptr),
            KVC_OK);
  EXPECT_EQ(kvc_manager_destroy(m.Take(), nullptr), KVC_OK);
}

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

// ----------------------------------------------------------------- streams

TEST(Digests, ASuppressingStreamTellsNothingBelowADigest) {
  CacheOptions options = Announcing();
  options.multimodal = KVC_MULTIMODAL_SUPPRESS;
  Cache cache(options);
  WireMirror mirror(KVC_HASH_SIGNED64, 4);
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, D(1), 6, 7, 8, 9, 10, 11, 12};
  ASSERT_EQ(cache.Release(Store(cache, tokens)), KVC_OK);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  EXPECT_EQ(mirror.blocks().size(), 1u);
  EXPECT_EQ(cache.StreamStats().multimodal_blocks_suppressed, 2u);
  // A text branch below the text block is told, one below the image is not.
  ASSERT_EQ(cache.Release(Store(cache, {1, 2, 3, 4, 5, 5, 5, 5})), KVC_OK);
  ASSERT_EQ(cache.Release(Store(cache, {1, 2, 3, 4, D(1), 6, 7, 8, 5, 5, 5, 5})), KVC_OK);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  EXPECT_EQ(mirror.blocks().size(), 2u);
  kvc_stream_stats stats = cache.StreamStats();
  EXPECT_EQ(stats.multimodal_blocks_suppressed, 3u);
  EXPECT_EQ(stats.suppressed_blocks, 3u);
  EXPECT_EQ(stats.deferred_blocks, 0u) << "suppressed is not deferred";
  EXPECT_EQ(cache.Probe(tokens).matched_tokens, 12u) << "reused like all others";
  // Their removal is silent.
  const uint64_t all = cache.Create({}).sequence;
  ASSERT_EQ(cache.Grow(all, 16 * 4).status, KVC_OK);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
  stats = cache.StreamStats();
  EXPECT_EQ(stats.removed_blocks, 2u);
  EXPECT_EQ(stats.unannounced_removals, 3u);
  EXPECT_EQ(stats.suppressed_blocks, 0u);
  ASSERT_EQ(cache.Release(all), KVC_OK);
  // Nor does a clear tell of them.
  ASSERT_EQ(cache.Release(Store(cache, {D(1), 2, 3, 4})), KVC_OK);
  EXPECT_EQ(cache.StreamStats().suppressed_blocks, 1u);
  ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
  EXPECT_EQ(cache.StreamStats().suppressed_blocks, 0u);
  EXPECT_EQ(cache.StreamStats().unannounced_removals, 4u);
  EXPECT_EQ(testing::Quiet(cache, mirror), "");
}

// The smallest buffer takes the largest block: with nothing but digests.
TEST(Digests, ABlockOfDigestsFitsTheSmallestBuffer) {
  for (const uint32_t entries : {1u, 2u, 3u, 4u, 8u}) {
    CacheOptions options = Announcing();
    options.entries = entries;
    Cache cache(options);
    WireMirror mirror(KVC_HASH_SIGNED64, 4);
    testing::ScopeSpec scope;
    scope.lora_name.assign(255, 'n');
    scope.salt_bytes.assign(255, 's');
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < 40; ++i) tokens.push_back(D(1 + i % 13));
    ASSERT_EQ(cache.Release(Store(cache, tokens, scope)), KVC_OK);
    ASSERT_EQ(testing::Quiet(cache, mirror), "") << entries << " entries";
    EXPECT_EQ(mirror.blocks().size(), 10u);
    EXPECT_GT(cache.StreamStats().healed_blocks, 0u) << "the test must defer";
  }
}

// Whatever is drained, at whatever limits, is right, also when the buffer wraps
// in the middle of digests; the manager's digests may be gone by then.
TEST(Digests, RandomStream) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    CacheOptions options = Announcing();
    options.entries = 8;
    options.pages = 24;
    options.run = seed % 3 == 0 ? 2 : 0;
    options.form = seed % 2 == 0 ? KVC_HASH_BYTES : KVC_HASH_SIGNED64;
    Cache cache(options);
    WireMirror mirror(options.form, 4);
    for (int i = 0; i < 1500; ++i) {
      std::vector<uint32_t> tokens(4 * (1 + random() % 5) + random() % 4);
      for (uint32_t& t : tokens) {
        const auto k = static_cast<uint32_t>(random() % 3);
        t = random() % 3 == 0 ? D(1 + k) : k;
      }
      const uint64_t id = Store(cache, tokens);
      if (random() % 3 == 0) {
        kvc_borrowed_batch batch;
        ASSERT_EQ(kvc_stream_drain(cache.stream(), random() % 3, random() % 6, &batch, nullptr),
                  KVC_OK);
        ASSERT_EQ(mirror.Apply(batch), "") << "seed " << seed;
      }
      ASSERT_EQ(cache.Release(id), KVC_OK);
      if (random() % 200 == 0) {
        ASSERT_EQ(kvc_manager_reset(cache.manager(), nullptr), KVC_OK);
      }
      if (i % 50 == 0) {
        ASSERT_EQ(testing::Quiet(cache, mirror), "") << "seed " << seed;
      }
    }
    ASSERT_EQ(testing::Quiet(cache, mirror), "") << "seed " << seed;
    EXPECT_GT(cache.StreamStats().healed_blocks, 0u);
    EXPECT_GT(cache.Stats().evicted_blocks, 100u);
  }
}

// The mirror has the digests itself, and as many uses as its blocks.
TEST(Digests, TheMirrorKeepsItsOwn) {
  kvc_config config{};
  kvc_config_init(&config);
  config.tokens_per_block = 2;
  config.capacity_blocks = 8;
  config.seed = 1;
  SinkOptions options;
  options.suppress_multimodal = false;
  auto sink = std::make_shared<StreamingEventSink>(options);
  Manager m(config, sink);
  const auto store = [&](const std::vector<uint32_t>& given) {
    const testing::ItemTokens item(given.data(), given.size());
    kvc_prompt prompt{};
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    const uint32_t none = 0;
    m.Create(1, &prompt, {&none, 0}, &made, nullptr);
    const kvc_grow_item grow{made.sequence, given.size()};
    kvc_grow_result grown{};
    m.Grow(1, &grow, &grown, nullptr);
    const kvc_commit_item commit{made.sequence, 0, given.size(), 0, item.digest_count(), {}, 0};
    kvc_commit_result committed{};
    m.Commit(1, &commit,
             {item.tokens.data(), item.tokens.size(), item.digests.data(), item.digests.size()},
             &committed, nullptr);
    EXPECT_EQ(committed.status, KVC_OK);
    kvc_status released = KVC_INTERNAL;
    m.Release(1, &made.sequence, &released, nullptr);
  };
  const auto drain = [&] {
    kvc_borrowed_batch batch{};
    ASSERT_EQ(sink->Drain(0, 0, &batch), KVC_OK);
  };
  store({D(1), 2, 3, D(2), D(2), D(1)});
  store({D(3), D(3)});
  drain();
  const Mirror& mirror = sink->projector()->mirror();
  EXPECT_EQ(mirror.digests().live(), 3u);
  EXPECT_EQ(mirror.digests().Check(), nullptr);
  uint64_t uses = 0;
  for (uint32_t node = 0; node < 8; ++node) {
    if (!mirror.Has(node)) continue;
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t token = mirror.Tokens(node)[i];
      if ((token & kDigestBit) == 0) continue;
      ++uses;
      ASSERT_TRUE(mirror.digests().Valid(token));
      const uint8_t* bytes = mirror.digests().Bytes(token);
      EXPECT_EQ(DigestText(bytes), DigestText(DigestOf(bytes[0]).data()));
    }
  }
  EXPECT_EQ(uses, 6u);
  // All blocks are evicted for others without digests, then everything is cleared.
  store({1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8});
  drain();
  EXPECT_EQ(mirror.digests().live(), 0u);
  EXPECT_EQ(mirror.digests().Check(), nullptr);
  store({D(1), 2});
  drain();
  EXPECT_EQ(mirror.digests().live(), 1u);
  m.Reset();
  drain();
  EXPECT_EQ(mirror.digests().live(), 0u);
  EXPECT_EQ(mirror.size(), 0u);
}

}  // namespace
}  // namespace kvcast
