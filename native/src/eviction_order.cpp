// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/eviction_order.h"

namespace kvcast {

uint32_t EvictionOrder::Find(uint32_t from, uint32_t to) const {
  if (from >= to) return kNil;
  uint32_t word = from / 64;
  uint64_t bits = words_[word] & (~uint64_t{0} << from % 64);
  if (bits == 0) {
    ++word;
    uint32_t group = word / 64;
    if (group >= words_of_words_.size()) return kNil;
    uint64_t words = words_of_words_[group] & (~uint64_t{0} << word % 64);
    while (words == 0) {
      if (++group >= words_of_words_.size()) return kNil;
      words = words_of_words_[group];
    }
    word = group * 64 + static_cast<uint32_t>(__builtin_ctzll(words));
    bits = words_[word];
  }
  const uint32_t found = word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
  return found < to ? found : kNil;
}

uint32_t EvictionOrder::NextKey(uint32_t key) const {
  const auto all = static_cast<uint32_t>(lists_.size());
  if (buckets_ == 1) return Find(key, all);
  const uint32_t start = base_ & mask_;
  while (key < all) {
    // What is left of the class: its ring from the key's place round to its start.
    const uint32_t first = key & ~mask_;
    const uint32_t at = AtKey(key) & mask_;
    uint32_t found = Find(first + at, first + (at >= start ? buckets_ : start));
    if (found == kNil && at >= start) found = Find(first, first + start);
    if (found != kNil) return first + ((found - start) & mask_);
    const uint32_t next = Find(first + buckets_, all);
    if (next == kNil) return kNil;
    key = next & ~mask_;
  }
  return kNil;
}

void EvictionOrder::Advance(uint32_t score) {
  if (buckets_ == 1) return;
  // Half of the ring is for what is worth more than one use now.
  const uint32_t bucket = score >> kBucketShift;
  const uint32_t base = bucket > buckets_ / 2 ? bucket - buckets_ / 2 : 0;
  for (; base_ < base; ++base_) {
    for (uint32_t first = 0; first < lists_.size(); first += buckets_) {
      const uint32_t from = first + (base_ & mask_);
      const uint32_t to = first + ((base_ + 1) & mask_);
      List& lower = lists_[from];
      List& upper = lists_[to];
      if (lower.head == kNil) continue;
      if (upper.head == kNil) {
        upper.tail = lower.tail;
        Mark(to);
      } else {
        pages_[lower.tail].next = upper.head;
        pages_[upper.head].prev = lower.tail;
      }
      upper.head = lower.head;
      lower = {};
      Unmark(from);
    }
  }
}

}  // namespace kvcast
