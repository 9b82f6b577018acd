// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which announced blocks share a wire hash.
#ifndef KVCAST_SINK_SRC_HASH_INDEX_H_
#define KVCAST_SINK_SRC_HASH_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "sink/src/prefetch.h"

namespace kvcast {

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
  // Some block is there besides another one with an equal hash.
  [[nodiscard]] bool has_doubles() const { return doubles_ != 0; }
  KVC_PREFETCHING void Prefetch(uint64_t hash) const { PrefetchForWrite(&slots_[Home(Tag(hash))]); }

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

#endif  // KVCAST_SINK_SRC_HASH_INDEX_H_
