// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the tests of the sink share: an arena and a host that stand in for a
// manager, and a model that knows, block by block, what subscribers must hear.
#ifndef KVCAST_TESTS_NATIVE_SINK_TEST_SUPPORT_H_
#define KVCAST_TESTS_NATIVE_SINK_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/event_sink.h"
#include "sink/src/streaming_event_sink.h"

namespace kvcast::testing {

using Key = std::array<uint8_t, kKeyBytes>;

inline Key RootKeyOf(const Scope& scope) {
  Key key{};
  RootKey(scope.view(), key.data());
  return key;
}
inline Key BlockKeyOf(const Key& parent, const std::vector<uint32_t>& tokens) {
  Key key{};
  BlockKey(parent.data(), tokens.data(), static_cast<uint32_t>(tokens.size()), key.data());
  return key;
}

// Tokens with something else around them, as beside a node.
class Arena {
 public:
  Arena(uint32_t tokens_per_block, uint32_t max_blocks)
      : tokens_per_block_(tokens_per_block),
        max_blocks_(max_blocks),
        stride_((size_t{tokens_per_block} + 3) * 4),
        memory_(stride_ * max_blocks / 4 + 2) {}

  [[nodiscard]] SinkGeometry geometry() const {
    SinkGeometry geometry;
    geometry.tokens_per_block = tokens_per_block_;
    geometry.max_blocks = max_blocks_;
    geometry.tokens_base = reinterpret_cast<const std::byte*>(memory_.data() + 2);
    geometry.node_stride = stride_;
    return geometry;
  }
  void Set(uint32_t node, const std::vector<uint32_t>& tokens) {
    ASSERT_EQ(tokens.size(), tokens_per_block_);
    std::memcpy(memory_.data() + 2 + node * stride_ / 4, tokens.data(), tokens.size() * 4);
  }
  // As a node that is reused would.
  void Scribble(uint32_t node) {
    std::memset(memory_.data() + 2 + node * stride_ / 4, 0xEE, size_t{tokens_per_block_} * 4);
  }

 private:
  uint32_t tokens_per_block_;
  uint32_t max_blocks_;
  size_t stride_;
  std::vector<uint32_t> memory_;
};

class FakeHost final : public SinkHost {
 public:
  uint32_t TryHeal(uint32_t max_blocks, uint64_t max_ns) noexcept override {
    ++heals;
    last_max_blocks = max_blocks;
    last_max_ns = max_ns;
    return on_heal ? on_heal(max_blocks) : 0;
  }
  void DetachSink() noexcept override { ++detaches; }

  int heals = 0;
  int detaches = 0;
  uint32_t last_max_blocks = 0;
  uint64_t last_max_ns = 0;
  std::function<uint32_t(uint32_t)> on_heal;
};

// One thing that a subscriber hears about one block.
struct Fact {
  kvc_event_kind kind = 0;
  uint64_t hash = 0;
  bool has_parent = false;
  uint64_t parent = 0;
  std::vector<uint32_t> tokens;
  uint32_t parts = 0;
  uint64_t lora_id = 0;
  std::string lora_name;
  uint8_t reason = 0;

  friend bool operator==(const Fact& a, const Fact& b) {
    return a.kind == b.kind && a.hash == b.hash && a.has_parent == b.has_parent &&
           a.parent == b.parent && a.tokens == b.tokens && a.parts == b.parts &&
           a.lora_id == b.lora_id && a.lora_name == b.lora_name && a.reason == b.reason;
  }
  friend std::ostream& operator<<(std::ostream& out, const Fact& fact) {
    out << (fact.kind == KVC_EVENT_STORED    ? "store "
            : fact.kind == KVC_EVENT_REMOVED ? "remove "
                                             : "clear ")
        << fact.hash;
    if (fact.has_parent) out << " under " << fact.parent;
    if (fact.reason != 0) out << " for reason " << int{fact.reason};
    return out << " (" << fact.tokens.size() << " tokens, parts " << fact.parts << ", LoRA "
               << fact.lora_id << " '" << fact.lora_name << "')";
  }
};

// Takes a batch apart block by block and checks what holds in every batch.
inline std::vector<Fact> Facts(const kvc_borrowed_batch& batch) {
  std::vector<Fact> facts;
  uint64_t hashes = 0;
  uint64_t tokens = 0;
  for (uint64_t e = 0; e < batch.event_count; ++e) {
    const kvc_event& event = batch.events[e];
    EXPECT_EQ(event.hash_offset, hashes);
    EXPECT_EQ(event.token_offset, tokens);
    EXPECT_EQ(event.group, 0);
    EXPECT_EQ(event.medium, KVC_MEDIUM_GPU);
    EXPECT_EQ(event.multimodal_offset, 0u);
    EXPECT_EQ(event.multimodal_count, 0u);
    hashes += event.hash_count;
    tokens += event.token_count;
    if (event.kind == KVC_EVENT_CLEARED) {
      EXPECT_EQ(batch.event_count, 1u) << "a cleared event must be alone";
      EXPECT_EQ(event.hash_count, 0u);
      facts.emplace_back().kind = event.kind;
      continue;
    }
    EXPECT_GT(event.hash_count, 0u);
    std::set<uint64_t> seen;
    if ((event.flags & KVC_EVENT_HAS_PARENT) != 0) seen.insert(event.parent_hash);
    for (uint64_t i = 0; i < event.hash_count; ++i) {
      Fact& fact = facts.emplace_back();
      fact.kind = event.kind;
      fact.hash = batch.hashes[event.hash_offset + i];
      fact.reason = batch.reasons[event.hash_offset + i];
      EXPECT_TRUE(seen.insert(fact.hash).second) << "a hash twice in one event";
      if (event.kind == KVC_EVENT_REMOVED) continue;
      EXPECT_EQ(event.token_count, event.hash_count * event.block_size);
      EXPECT_LT(event.scope, batch.scope_count);
      const kvc_event_scope& scope = batch.scopes[event.scope];
      fact.parts = scope.parts;
      fact.lora_id = scope.lora_id;
      EXPECT_LE(scope.lora_name_offset + scope.lora_name_size, batch.string_size);
      fact.lora_name.assign(batch.strings + scope.lora_name_offset, scope.lora_name_size);
      fact.has_parent = i > 0 || (event.flags & KVC_EVENT_HAS_PARENT) != 0;
      fact.parent = i > 0             ? batch.hashes[event.hash_offset + i - 1]
                    : fact.has_parent ? event.parent_hash
                                      : 0;
      const uint32_t* begin = batch.tokens + event.token_offset + i * event.block_size;
      fact.tokens.assign(begin, begin + event.block_size);
    }
  }
  EXPECT_EQ(hashes, batch.hash_count);
  EXPECT_EQ(tokens, batch.token_count);
  return facts;
}

// A manager's tree as the sink sees it, with a model beside it that expects
// each block's events one by one.
class Harness {
 public:
  Harness(uint32_t tokens_per_block, uint32_t max_blocks, const SinkOptions& options)
      : tokens_per_block_(tokens_per_block),
        options_(options),
        arena_(tokens_per_block, max_blocks),
        sink_(options) {
    sink_.Attach(arena_.geometry(), &host_);
    for (uint32_t node = max_blocks; node-- > 0;) free_.push_back(node);
  }

  struct Node {
    uint32_t parent = StoreRun::kRoot;
    Scope scope;  // of the chain
    Key key{};
    std::vector<uint32_t> tokens;
    uint32_t children = 0;
  };

  std::vector<uint32_t> Tokens(uint32_t seed) const {
    std::vector<uint32_t> tokens(tokens_per_block_);
    for (uint32_t i = 0; i < tokens_per_block_; ++i) tokens[i] = seed * 977 + i;
    return tokens;
  }

  // Stores a chain of `count` new blocks and returns the nodes that were
  // admitted; the others are as if they had never been.
  std::vector<uint32_t> Store(uint32_t parent, uint32_t count, const Scope& scope = {},
                              bool healing = false) {
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < count && !free_.empty(); ++i) {
      ids.push_back(free_.back());
      free_.pop_back();
    }
    std::vector<std::vector<uint32_t>> tokens;
    for (const uint32_t node : ids) {
      tokens.push_back(Tokens(next_token_seed_++));
      arena_.Set(node, tokens.back());
    }
    StoreRun run;
    run.parent = parent;
    run.scope = parent == StoreRun::kRoot ? &scope : nullptr;
    run.nodes = ids.data();
    run.count = static_cast<uint32_t>(ids.size());
    const uint32_t admitted = ids.empty() ? 0 : sink_.Store(run, healing);
    EXPECT_LE(admitted, ids.size());
    asked_ = static_cast<uint32_t>(ids.size());
    for (uint32_t i = 0; i < ids.size(); ++i) {
      arena_.Scribble(ids[i]);
      if (i >= admitted) continue;
      Node node;
      node.parent = i == 0 ? parent : ids[i - 1];
      node.tokens = tokens[i];
      const bool root = node.parent == StoreRun::kRoot;
      node.scope = root ? scope : nodes_.at(node.parent).scope;
      node.key = BlockKeyOf(root ? RootKeyOf(scope) : nodes_.at(node.parent).key, tokens[i]);
      if (!root) ++nodes_.at(node.parent).children;
      nodes_[ids[i]] = node;
      Expect(ids[i], KVC_EVENT_STORED);
    }
    for (size_t i = ids.size(); i-- > admitted;) free_.push_back(ids[i]);
    ids.resize(admitted);
    return ids;
  }

  // For one reason, or for one each.
  void Remove(const std::vector<uint32_t>& ids, uint8_t reason = KVC_EVICTED_CAPACITY) {
    Remove(ids, std::vector<uint8_t>(ids.size(), reason));
  }
  void Remove(const std::vector<uint32_t>& ids, const std::vector<uint8_t>& reasons) {
    sink_.Remove(ids.data(), reasons.data(), static_cast<uint32_t>(ids.size()));
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t node = ids[i];
      Expect(node, KVC_EVENT_REMOVED, reasons[i]);
      if (nodes_.at(node).parent != StoreRun::kRoot) --nodes_.at(nodes_.at(node).parent).children;
      nodes_.erase(node);
      free_.push_back(node);
    }
  }

  void Clear() {
    sink_.Clear();
    if (stored_since_clear_) {
      expected_.clear();
      expected_.emplace_back().kind = KVC_EVENT_CLEARED;
    }
    stored_since_clear_ = false;
    for (const auto& [node, unused] : nodes_) free_.push_back(node);
    nodes_.clear();
    announced_.clear();
  }

  // Drains once and compares with the model; returns the batch.
  kvc_borrowed_batch Drain(uint64_t max_events = 0, uint64_t max_blocks = 0) {
    kvc_borrowed_batch batch;
    EXPECT_EQ(sink_.Drain(max_events, max_blocks, &batch), KVC_OK);
    Check(batch);
    return batch;
  }
  // Compares a batch with what the model expects next.
  void Check(const kvc_borrowed_batch& batch) {
    for (const Fact& fact : Facts(batch)) {
      if (expected_.empty()) {
        ADD_FAILURE() << "nothing was left to hear, but: " << fact;
        break;
      }
      EXPECT_EQ(fact, expected_.front());
      expected_.pop_front();
    }
  }
  void DrainAll() {
    while (Drain().event_count != 0) {
    }
    EXPECT_TRUE(expected_.empty())
        << expected_.size() << " blocks were never heard of, first: " << expected_.front();
  }

  [[nodiscard]] kvc_stream_stats stats() const {
    kvc_stream_stats stats{};
    sink_.GetStats(&stats);
    return stats;
  }
  [[nodiscard]] uint64_t Hash(const Key& key) const {
    return WireHash(key.data(), options_.projector.hash_form) & options_.projector.hash_mask;
  }

  StreamingEventSink& sink() { return sink_; }
  FakeHost& host() { return host_; }
  Arena& arena() { return arena_; }
  const std::map<uint32_t, Node>& nodes() const { return nodes_; }
  size_t free_nodes() const { return free_.size(); }
  size_t expected() const { return expected_.size(); }
  uint32_t asked() const { return asked_; }

 private:
  void Expect(uint32_t id, kvc_event_kind kind, uint8_t reason = 0) {
    const Node& node = nodes_.at(id);
    // What counts as the same block outside.
    const std::string identity = options_.projector.hash_form == KVC_HASH_BYTES
                                     ? std::string(node.key.begin(), node.key.end())
                                     : std::to_string(Hash(node.key));
    Fact fact;
    fact.kind = kind;
    fact.hash = Hash(node.key);
    fact.reason = reason;
    if (kind == KVC_EVENT_STORED) {
      stored_since_clear_ = true;
      if (announced_[identity]++ != 0) return;
      fact.has_parent = node.parent != StoreRun::kRoot;
      if (fact.has_parent) fact.parent = Hash(nodes_.at(node.parent).key);
      fact.tokens = node.tokens;
      fact.parts = node.scope.parts & (KVC_SCOPE_LORA_ID | KVC_SCOPE_LORA_NAME);
      fact.lora_id = (fact.parts & KVC_SCOPE_LORA_ID) != 0 ? node.scope.lora_id : 0;
      fact.lora_name = (fact.parts & KVC_SCOPE_LORA_NAME) != 0 ? node.scope.lora_name : "";
    } else {
      if (--announced_[identity] != 0) return;
      announced_.erase(identity);
    }
    expected_.push_back(fact);
  }

  uint32_t tokens_per_block_;
  SinkOptions options_;
  Arena arena_;
  FakeHost host_;
  StreamingEventSink sink_;
  std::vector<uint32_t> free_;
  std::map<uint32_t, Node> nodes_;
  std::map<std::string, uint32_t> announced_;
  std::deque<Fact> expected_;
  bool stored_since_clear_ = false;
  uint32_t next_token_seed_ = 1;
  uint32_t asked_ = 0;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_SINK_TEST_SUPPORT_H_
