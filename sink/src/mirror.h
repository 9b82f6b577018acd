// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the subscribers have been told is there: one entry per announced block,
// exactly as of the last drained event, built from records alone.
#ifndef KVCAST_SINK_SRC_MIRROR_H_
#define KVCAST_SINK_SRC_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/digest_table.h"
#include "sink/src/record_ring.h"

namespace kvcast {

inline void PrefetchForWrite([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 1);
#endif
}

class Mirror {
  static constexpr size_t kLineBytes = 64;

 public:
  static constexpr uint32_t kAbsent = UINT32_MAX;

  struct Block {
    uint8_t key[kKeyBytes];
    uint32_t parent;           // node id, or StoreRun::kRoot
    uint32_t scope = kAbsent;  // index of the chain's scope; kAbsent: no such block
  };

  // Takes and touches the memory for node ids below max_blocks.
  Mirror(uint32_t max_blocks, uint32_t tokens_per_block)
      : tokens_per_block_(tokens_per_block),
        blocks_(max_blocks),
        token_memory_(size_t{max_blocks} * tokens_per_block + kLineBytes / 4),
        digests_(std::random_device{}(), DigestTable::kMaxDigests),
        has_digests_(max_blocks) {
    // From a cache line's start: a block of 16 tokens then lies in one.
    void* start = token_memory_.data();
    size_t space = token_memory_.size() * 4;
    tokens_ = static_cast<uint32_t*>(std::align(kLineBytes, 4, start, space));
  }
  // Memory that each block which can exist takes.
  [[nodiscard]] static constexpr uint64_t BytesPerBlock(uint32_t tokens_per_block) {
    return sizeof(Block) + sizeof(uint32_t) * uint64_t{tokens_per_block};
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  [[nodiscard]] bool Has(uint32_t node) const {
    return node < blocks_.size() && blocks_[node].scope != kAbsent;
  }
  [[nodiscard]] const Block& at(uint32_t node) const { return blocks_[node]; }
  // Those with the digest bit are of the mirror's own digests.
  [[nodiscard]] const uint32_t* Tokens(uint32_t node) const {
    return tokens_ + size_t{node} * tokens_per_block_;
  }
  [[nodiscard]] const DigestTable& digests() const { return digests_; }
  [[nodiscard]] size_t max_blocks() const { return blocks_.size(); }
  [[nodiscard]] uint64_t size() const { return size_; }

  // `token_index` is where the block's tokens are in the ring.
  void Put(uint32_t node, const uint8_t* key, uint32_t parent, uint32_t scope,
           const RecordRing& ring, size_t token_index) {
    Block& block = blocks_[node];
    std::memcpy(block.key, key, kKeyBytes);
    block.parent = parent;
    block.scope = scope;
    ring.Read(token_index, tokens_ + size_t{node} * tokens_per_block_, tokens_per_block_);
    ++size_;
  }
  // Before blocks with so many digest tokens are put: takes the memory for them.
  void ReserveDigests(size_t count) { digests_.Reserve(count); }
  // The digest tokens of a block just put get the mirror's own: the bytes of
  // each are at bytes_of(token).
  template <typename BytesOf>
  void OwnDigests(uint32_t node, BytesOf&& bytes_of) {
    uint32_t* tokens = tokens_ + size_t{node} * tokens_per_block_;
    for (uint32_t i = 0; i < tokens_per_block_; ++i) {
      if ((tokens[i] & kDigestBit) != 0) tokens[i] = digests_.Acquire(bytes_of(tokens[i]));
    }
    has_digests_[node] = true;
  }
  void Erase(uint32_t node) {
    if (digests_.live() != 0 && has_digests_[node]) {
      digests_.ReleaseAll(Tokens(node), tokens_per_block_);
      has_digests_[node] = false;
    }
    blocks_[node].scope = kAbsent;
    --size_;
  }
  void Clear() {
    if (size_ == 0) return;
    for (Block& block : blocks_) block.scope = kAbsent;
    if (digests_.live() != 0) has_digests_.assign(has_digests_.size(), false);
    digests_.Clear();
    size_ = 0;
  }

  void Prefetch(uint32_t node) const {
    // An entry may lie across two cache lines.
    PrefetchForWrite(&blocks_[node]);
    PrefetchForWrite(&blocks_[node].scope);
  }
  void PrefetchTokens(uint32_t node) const { PrefetchForWrite(Tokens(node)); }

 private:
  uint32_t tokens_per_block_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> token_memory_;
  uint32_t* tokens_;  // into it
  // The mirror's own, not the manager's: it must not look at those. What is
  // announced at one moment never has more of them than the manager had.
  DigestTable digests_;
  std::vector<bool> has_digests_;
  uint64_t size_ = 0;
};

// Which announced blocks have which wire hash: 64 bits can meet by chance. Open
// addressing over (tag, node), linear probing, deletion by shifting back.
class HashIndex {
 public:
  // Three slots per block: with two, walking the longer clusters cost more than
  // the smaller table saved (removal of a block 37 against 30 ns).
  explicit HashIndex(uint32_t max_blocks) : slots_(size_t{max_blocks} * kSlotsPerBlock + 1) {
    std::random_device device;
    factor_ = (uint64_t{device()} << 32 | device()) | 1;
  }
  [[nodiscard]] static constexpr uint64_t BytesPerBlock() { return kSlotsPerBlock * sizeof(Slot); }

  // Adds a block. `same(node)` says whether that block's hash is equal to the
  // new one's. True if there was one.
  template <typename Same>
  bool Insert(uint64_t hash, uint32_t node, Same&& same) {
    const uint32_t tag = Tag(hash);
    bool found = false;
    size_t i = Home(tag);
    for (; slots_[i].node != kEmpty; i = Next(i)) {
      if (slots_[i].tag == tag && !found) found = same(slots_[i].node);
    }
    slots_[i] = {tag, node};
    if (found) ++doubles_;
    return found;
  }

  // Takes a block out. True if another one has an equal hash.
  template <typename Same>
  bool Erase(uint64_t hash, uint32_t node, Same&& same) {
    const uint32_t tag = Tag(hash);
    const size_t home = Home(tag);
    size_t hole = home;
    while (slots_[hole].node != node) {
      if (slots_[hole].node == kEmpty) return false;
      hole = Next(hole);
    }
    bool found = false;
    if (doubles_ != 0) {
      for (size_t i = home; slots_[i].node != kEmpty && !found; i = Next(i)) {
        found = i != hole && slots_[i].tag == tag && same(slots_[i].node);
      }
      if (found) --doubles_;
    }
    for (size_t i = Next(hole); slots_[i].node != kEmpty; i = Next(i)) {
      // An entry may move back to the hole unless that lies before its home.
      if (Distance(Home(slots_[i].tag), i) < Distance(hole, i)) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole].node = kEmpty;
    return found;
  }

  void Clear() {
    for (Slot& slot : slots_) slot.node = kEmpty;
    doubles_ = 0;
  }
  void Prefetch(uint64_t hash) const { PrefetchForWrite(&slots_[Home(Tag(hash))]); }

 private:
  static constexpr size_t kSlotsPerBlock = 3;
  static constexpr uint32_t kEmpty = UINT32_MAX;
  struct Slot {
    uint32_t tag = 0;
    uint32_t node = kEmpty;
  };

  // The forms leave some bits constant; the product spreads what varies. The
  // factor is drawn, because clients choose the tokens and could look for blocks
  // that share a slot.
  [[nodiscard]] uint32_t Tag(uint64_t hash) const {
    return static_cast<uint32_t>(hash * factor_ >> 32);
  }
  [[nodiscard]] size_t Home(uint32_t tag) const {
    return static_cast<size_t>(uint64_t{tag} * slots_.size() >> 32);
  }
  [[nodiscard]] size_t Next(size_t i) const { return i + 1 == slots_.size() ? 0 : i + 1; }
  [[nodiscard]] size_t Distance(size_t from, size_t to) const {
    return to >= from ? to - from : to + slots_.size() - from;
  }

  std::vector<Slot> slots_;
  uint64_t factor_ = 1;
  // Blocks that are there besides another one with an equal hash.
  uint64_t doubles_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_MIRROR_H_
