// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The model of what blocks are worth (model_scores.h) and the library's, value by value.
// Random operations hardly ever get to where a wrong constant would show in what is
// evicted: tens of thousands of uses, or uses that are just so many halvings apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "native/src/eviction_order.h"
#include "native/src/page.h"
#include "native/src/recency_frequency.h"
#include "tests/native/model_scores.h"

namespace kvcast {
namespace {

using testing::ModelScores;

constexpr uint32_t kUnit = RecencyFrequency::kUnit;

ModelScores::Key KeyOf(uint64_t block) {
  ModelScores::Key key{};
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<uint8_t>(block >> 8 * i);
  return key;
}

// A use now of whatever a block can be worth.
TEST(Scores, EachUse) {
  for (const uint32_t tau : {1u, 3u, 1000u}) {
    RecencyFrequency scores(tau, ModelScores::kOneSet);
    ModelScores model(true, tau, ModelScores::kOneSet);
    for (const uint64_t request : {uint64_t{0}, uint64_t{7} * tau, uint64_t{40} * tau + 1}) {
      scores.SetTime(request);
      model.SetTime(request);
      ASSERT_EQ(scores.now(), model.now());
      const uint32_t now = model.now();
      for (uint32_t score = now - std::min(now, 20 * kUnit); score <= now + 20 * kUnit; ++score) {
        ASSERT_EQ(scores.Used(score), model.Used(score)) << "at " << now;
      }
    }
  }
}

// So often at once that it can be worth no more.
TEST(Scores, ManyUses) {
  RecencyFrequency scores(1u << 20, ModelScores::kOneSet);
  ModelScores model(true, 1u << 20, ModelScores::kOneSet);
  uint32_t score = 0, want = 0;
  for (uint64_t use = 0; use < 2000; ++use) {
    scores.SetTime(use);
    model.SetTime(use);
    score = scores.Used(score);
    want = model.Used(want);
    ASSERT_EQ(score, want) << use;
  }
  EXPECT_EQ(score, scores.now() + 8 * kUnit) << "it has not got there";
}

// Blocks that go and return, in a set that is often full: the one that is worth least makes
// way, the first of equals, of which there are many where time passes slowly.
TEST(Scores, Ghosts) {
  std::mt19937_64 random(5);
  for (const uint32_t tau : {3u, 2000u}) {
    RecencyFrequency scores(tau, ModelScores::kOneSet);
    ModelScores model(true, tau, ModelScores::kOneSet);
    std::map<uint64_t, uint32_t> there;  // what each is worth
    for (uint64_t request = 0; request < 20000; ++request) {
      scores.SetTime(request);
      model.SetTime(request);
      const uint64_t block = 1 + random() % 24;
      const uint64_t hash = block * 0x9E3779B97F4A7C15u;
      if (const auto at = there.find(block); at == there.end()) {
        const uint32_t score = scores.Entered(hash);
        ASSERT_EQ(score, model.Entered(KeyOf(block))) << request << ", tau " << tau;
        there[block] = score;
      } else if (random() % 2 == 0) {
        at->second = scores.Used(at->second);
      } else {
        scores.Left(hash, at->second);
        model.Left(KeyOf(block), at->second);
        there.erase(at);
      }
    }
    EXPECT_GT(model.remembered, 1000u);
  }
}

// Which scores the order of eviction tells apart, and which come first, as time goes on.
TEST(Scores, Ranges) {
  std::mt19937_64 random(6);
  std::vector<Page> pages(1);
  EvictionOrder order(pages.data(), EvictionOrder::kScoreBuckets);
  ModelScores model(true, 1, ModelScores::kOneSet);
  for (uint64_t request = 0; request < 200; request += 1 + random() % 3) {
    model.SetTime(request);
    order.Advance(model.now());
    const uint32_t now = model.now();
    // From below what is told apart to what is worth most.
    const uint32_t first = now - std::min(now, 18 * kUnit), last = now + 8 * kUnit;
    for (int i = 0; i < 2000; ++i) {
      const uint32_t a = first + static_cast<uint32_t>(random() % (last - first + 1));
      const uint32_t b = std::min(last, a + static_cast<uint32_t>(random() % 24));
      const uint32_t key_a = order.KeyOf(kDefaultClass, a), key_b = order.KeyOf(kDefaultClass, b);
      ASSERT_LE(key_a, key_b);
      ASSERT_EQ(key_a == key_b, model.Range(a) == model.Range(b))
          << a << " and " << b << " at " << now;
      ASSERT_LT(key_b, order.KeyOf(kDefaultClass + 1, first));
    }
  }
}

}  // namespace
}  // namespace kvcast
