// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Scopes: different ones never share a block, whatever their strings; equal ones
// do, in every process and run, as golden keys show.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/scope.h"
#include "tests/native/abi_support.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;
using kvcast::testing::DigestText;
using kvcast::testing::ScopeSpec;

std::string RootText(const ScopeSpec& spec) {
  kvcast::ScopeView view;
  view.parts = spec.parts();
  view.lora_id = spec.lora_id.value_or(0);
  view.salt = spec.salt.value_or(0);
  view.lora_name = spec.lora_name;
  view.salt_bytes = spec.salt_bytes;
  uint8_t key[32];
  kvcast::RootKey(view, key);
  return DigestText(key);
}

// With hashlib: sha256(mask byte + each part), and sha256(that + tokens 0..3 as
// u32 LE). The first four roots are TensorRT-LLM's.
struct Golden {
  const char* what;
  ScopeSpec scope;
  const char* root;
  const char* block;
};
const std::vector<Golden>& Goldens() {
  static const std::vector<Golden> kGoldens = {
      {"none",
       {},
       "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
       "7b894451a88bc03088bd0c44f01139922b089a1ab691d157c273185c78ca83b2"},
      {"id 7",
       {7, {}, "", ""},
       "bf20e9c9b8addef74f91d399e9ebb5bc7778de38c127e968d34d1ba3dea17cb2",
       "2f256eb3521127c3a74b7d5d368975c94f9f0902471ec7b25595db7bc74df9e8"},
      {"salt 5",
       {{}, 5, "", ""},
       "054cf7d9d119099e90e449f8448d9b53e00b51508f5f56a2dfd58151ffdbe8ce",
       "8d83ea74c5fe9cf40c7674bb12d217a621773ae2dd83c09ddfcc428751e19387"},
      {"id 7, salt 5",
       {7, 5, "", ""},
       "0efe4cc8f2450f4cb5bfc8bddf7a146df8b33e6e5dd795ad0baf627eff1432f3",
       "92d3bd357522faf9c95e6c05064bd4374a3dc3ca2252da392dd045ff611883e0"},
      {"id 0",
       {0, {}, "", ""},
       "a536aa3cede6ea3c1f3e0357c3c60e0f216a8c89b853df13b29daa8f85065dfb",
       "1173cc4374e856f597121b437aa881a6da8fe87ce99a24a214aa60df1c93540d"},
      {"salt 7",
       {{}, 7, "", ""},
       "95d6f8b53c8e5c1d2e3c443dfee0705a7ebdff9f6442377ef935ecc87dd1695a",
       "5fd069509373deed40a0dd2a274a3d14fad3aa7c7126c6d5e23deef033e6a321"},
      {"name",
       {{}, {}, "tenant", ""},
       "63e9c2b8fd03c3025d9d274c19bb69d07f2ced3afbb839b537f9454a71101abb",
       "a73c3f3c481005428d4f41bcb075ebb56bcad49b78c0372054710d63670e9fb1"},
      {"salt bytes like the name",
       {{}, {}, "", "tenant"},
       "ee9e7d660e0af169eef8d9726ff2b535b76ea5ce415d60f0a5bddcf1b49712d2",
       "201a37dff69082874ab560b1389c5bbdff2a1acdd09a25dea4ef34c235d5600c"},
      {"name and equal salt bytes",
       {{}, {}, "tenant", "tenant"},
       "445a91a244483f730a1f446c303c0d0c76cb07c7c2cf2d8be3ad69db8e0405ef",
       "1797b039a855839e0d12e04a67a98f6c5bf5ff5f51ab848d2894f362f19e91e5"},
      {"the same text cut elsewhere",
       {{}, {}, "ten", "ant"},
       "fa1fe117063434d2f7f6fc538269c45b3e3169d42decd4ffb06c4e24cb842e61",
       "646023c0e0f52f58c98f159cbe953af0af3a316871b91bdff9490226cffae802"},
      {"all parts",
       {7, 5, "tenant", std::string("\0\xff", 2)},
       "4639df40b020b895af669fb8041b148b93950c5004b458ae305663618f72aeaf",
       "4a9801f1c974757ba3a341f11dfa09c21194c0b8934569a7c8ca0282e1957f82"},
  };
  return kGoldens;
}

uint64_t Store(Cache& cache, const ScopeSpec& scope, const std::vector<uint32_t>& tokens) {
  const kvc_create_result made = cache.Create(tokens, scope);
  EXPECT_EQ(made.status, KVC_OK);
  EXPECT_EQ(cache.Grow(made.sequence, tokens.size()).status, KVC_OK);
  EXPECT_EQ(cache
                .Commit(made.sequence, tokens.data() + made.matched_tokens,
                        tokens.size() - made.matched_tokens)
                .status,
            KVC_OK);
  EXPECT_EQ(cache.Release(made.sequence), KVC_OK);
  return made.matched_tokens;
}

// Two processes that see this agree on every key, and so do two runs.
TEST(Scopes, GoldenKeys) {
  for (const uint64_t seed : {1u, 77u}) {  // the tree's own hash has no part in them
    for (const Golden& golden : Goldens()) {
      CacheOptions options;
      options.block = 4;
      options.seed = seed;
      options.form = KVC_HASH_BYTES;
      Cache cache(options);
      EXPECT_EQ(RootText(golden.scope), golden.root) << golden.what;
      EXPECT_EQ(Store(cache, golden.scope, {0, 1, 2, 3}), 0u);
      kvc_borrowed_batch batch;
      ASSERT_EQ(cache.Drain(&batch), KVC_OK);
      ASSERT_EQ(batch.hash_count, 1u);
      EXPECT_EQ(DigestText(batch.digests), golden.block) << golden.what;
      EXPECT_EQ(DigestText(cache.Resident().at(0).digest), golden.block) << golden.what;
    }
  }
}

// Random scopes of few and similar strings, so that equal ones and near misses
// are common: a name that is another's salt bytes, texts cut elsewhere, an id that
// is another's salt, zero against absent.
TEST(Scopes, OnlyEqualOnesShare) {
  constexpr uint64_t kSeed = 9201;
  std::mt19937_64 random(kSeed);
  const std::vector<std::string> texts = {"", "a", "ab", "b", "aa", "\x01", "1", "ba"};
  const auto draw = [&] {
    ScopeSpec scope;
    if (random() % 2 == 0) scope.lora_id = random() % 3;
    if (random() % 2 == 0) scope.salt = random() % 3;
    scope.lora_name = texts[random() % texts.size()];
    scope.salt_bytes = texts[random() % texts.size()];
    return scope;
  };
  // What the rule says is the same scope: every part, present or not; a name
  // stands in for the id.
  using Identity = std::tuple<int64_t, int64_t, std::string, std::string>;
  const auto identity = [](const ScopeSpec& s) -> Identity {
    return {s.lora_id.has_value() && s.lora_name.empty() ? static_cast<int64_t>(*s.lora_id) : -1,
            s.salt.has_value() ? static_cast<int64_t>(*s.salt) : -1, s.lora_name, s.salt_bytes};
  };
  CacheOptions options;
  options.block = 2;
  options.pages = 2048;
  Cache cache(options);
  std::map<Identity, std::string> roots;
  std::set<std::string> keys;
  uint64_t shared = 0;
  for (int i = 0; i < 6000; ++i) {
    const ScopeSpec scope = draw();
    const bool known = roots.count(identity(scope)) != 0;
    ASSERT_EQ(Store(cache, scope, {1, 2}), known ? 2u : 0u)
        << "seed " << kSeed << ", scope " << i << ": name '" << scope.lora_name << "', salt bytes '"
        << scope.salt_bytes << "'";
    shared += known ? 1 : 0;
    const std::string root = RootText(scope);
    if (known) {
      ASSERT_EQ(roots.at(identity(scope)), root);
    } else {
      roots[identity(scope)] = root;
      ASSERT_TRUE(keys.insert(root).second) << "two scopes with one key";
    }
  }
  EXPECT_GT(roots.size(), 300u) << "of 352 that there are";
  EXPECT_GT(shared, 500u);
  EXPECT_EQ(cache.Stats().blocks, roots.size());
  EXPECT_EQ(cache.Stats().roots, roots.size());
  EXPECT_EQ(cache.Check(), "");
}

}  // namespace
