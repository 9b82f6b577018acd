// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The parts of the sink one by one: ring, scope words, scope table, hash index.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sink/src/event_record.h"
#include "sink/src/hash_index.h"
#include "sink/src/record_ring.h"
#include "sink/src/scope_table.h"

namespace {

TEST(RecordRing, WrapsAtEveryOffset) {
  for (size_t capacity = 1; capacity <= 40; ++capacity) {
    kvcast::RecordRing ring;
    ring.Allocate(capacity);
    std::mt19937_64 random(capacity);
    std::deque<uint32_t> model;
    uint32_t next = 1;
    for (int step = 0; step < 2000; ++step) {
      const auto wanted = 1 + static_cast<size_t>(random() % capacity);
      if (ring.KnownFree() < wanted) {
        ASSERT_EQ(ring.Free(), capacity - model.size());
      }
      if (random() % 2 == 0 && ring.KnownFree() >= wanted) {
        std::vector<uint32_t> words(wanted);
        for (uint32_t& word : words) model.push_back(word = next++);
        if (wanted == 1) {
          ring.Put(words[0]);
        } else {
          ring.Put(words.data(), words.size());
        }
        ASSERT_EQ(ring.ReadableEnd() + wanted, ring.write_position()) << "not published yet";
        ring.Publish();
      } else {
        const size_t count = std::min(wanted, model.size());
        if (count == 0) continue;
        std::vector<uint32_t> out(count);
        const size_t index = ring.Index(ring.read_position());
        ring.Read(index, out.data(), count);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], model.front()) << "capacity " << capacity;
          ASSERT_EQ(ring.At(ring.Advance(index, i)), out[i]);
          model.pop_front();
        }
        ring.Release(ring.read_position() + count);
      }
      ASSERT_EQ(ring.Used(), model.size());
    }
  }
}

TEST(ScopeWords, ComeBackAsTheyWere) {
  for (uint32_t parts = 0; parts < 16; ++parts) {
    for (const size_t size : {1u, 2u, 3u, 4u, 5u, 254u, 255u}) {
      kvcast::Scope scope;
      scope.parts = parts;
      if ((parts & KVC_SCOPE_LORA_ID) != 0) scope.lora_id = 0x1122334455667788;
      if ((parts & KVC_SCOPE_SALT) != 0) scope.salt = 0x99aabbccddeeff00;
      if ((parts & KVC_SCOPE_LORA_NAME) != 0) scope.lora_name = std::string(size, 'l');
      if ((parts & KVC_SCOPE_SALT_BYTES) != 0) scope.salt_bytes = std::string(size, '\0');
      const kvcast::ScopeWords words(scope.view());
      EXPECT_EQ(kvcast::ScopeWords::Count(words.words[0]), words.count);
      EXPECT_LE(words.count, kvcast::kMaxScopeWords);
      EXPECT_TRUE(kvcast::ScopeWords::Decode(words.words) == scope.view()) << parts << ", " << size;
    }
  }
}

TEST(ScopeWords, PaddingIsPartOfNothing) {
  // Equal scopes must give equal words whatever was in the memory before.
  kvcast::Scope scope;
  scope.parts = KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES;
  scope.lora_name = "abcde";
  scope.salt_bytes = "x";
  alignas(kvcast::ScopeWords) unsigned char memory[2][sizeof(kvcast::ScopeWords)];
  std::fill(std::begin(memory[0]), std::end(memory[0]), static_cast<unsigned char>(0x00));
  std::fill(std::begin(memory[1]), std::end(memory[1]), static_cast<unsigned char>(0xff));
  const auto* a = new (memory[0]) kvcast::ScopeWords(scope.view());
  const auto* b = new (memory[1]) kvcast::ScopeWords(scope.view());
  ASSERT_EQ(a->count, b->count);
  EXPECT_TRUE(std::equal(a->words, a->words + a->count, b->words));
}

TEST(ScopeTable, KeepsEachScopeOnceWhileItIsUsed) {
  kvcast::ScopeTable table;
  std::mt19937_64 random(5);
  std::map<uint64_t, std::vector<uint32_t>> users;  // by LoRA id
  const auto acquire = [&](uint64_t id) {
    kvcast::Scope scope;
    scope.parts = KVC_SCOPE_LORA_ID | KVC_SCOPE_LORA_NAME;
    scope.lora_id = id;
    scope.lora_name = std::string(1 + id % 30, 'x');
    const kvcast::ScopeWords words(scope.view());
    const uint32_t at = table.Acquire(words.words, words.count);
    EXPECT_EQ(table.at(at).lora_id, id);
    EXPECT_EQ(table.at(at).lora_name, scope.lora_name);
    uint8_t key[32];
    kvcast::RootKey(scope.view(), key);
    EXPECT_EQ(std::memcmp(table.at(at).root_key, key, 32), 0);
    if (!users[id].empty()) {
      EXPECT_EQ(users[id].front(), at);
    }
    users[id].push_back(at);
  };
  for (int step = 0; step < 5000; ++step) {
    const uint64_t id = random() % 40;
    if (random() % 2 == 0) {
      acquire(id);
    } else if (!users[id].empty()) {
      table.Release(users[id].back());
      users[id].pop_back();
    }
    size_t used = 0;
    for (const auto& [unused, list] : users) used += list.empty() ? 0 : 1;
    ASSERT_EQ(table.size(), used) << "step " << step;
  }
  table.Clear();
  users.clear();
  EXPECT_EQ(table.size(), 0u);
  acquire(3);
}

TEST(HashIndex, AgreesWithAnObviousOne) {
  // With few distinct hashes and a table that is as full as it gets.
  for (const uint64_t distinct : {1u, 3u, 20u, 100000u}) {
    SCOPED_TRACE(distinct);
    constexpr uint32_t kBlocks = 50;
    kvcast::HashIndex index(kBlocks);
    std::map<uint32_t, uint64_t> model;
    std::mt19937_64 random(distinct);
    const auto holders = [&model](uint64_t hash) {
      return std::count_if(model.begin(), model.end(),
                           [hash](const auto& entry) { return entry.second == hash; });
    };
    for (int step = 0; step < 20000; ++step) {
      const auto node = static_cast<uint32_t>(random() % kBlocks);
      const auto found = model.find(node);
      if (found == model.end()) {
        const uint64_t hash = random() % distinct;
        const bool taken =
            index.Insert(hash, node, [&](uint32_t other) { return model.at(other) == hash; });
        ASSERT_EQ(taken, holders(hash) != 0);
        model[node] = hash;
      } else {
        const uint64_t hash = found->second;
        const bool remains =
            index.Erase(hash, node, [&](uint32_t other) { return model.at(other) == hash; });
        model.erase(found);
        ASSERT_EQ(remains, holders(hash) != 0);
      }
      if (step % 5000 == 4999) {
        index.Clear();
        model.clear();
      }
    }
  }
}

}  // namespace
