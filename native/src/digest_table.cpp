// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/digest_table.h"

#include <algorithm>
#include <cstring>

namespace kvcast {

namespace digest_table {

constexpr uint32_t kDigestWords = kDigestBytes / sizeof(uint32_t);
constexpr size_t kFirstSlots = 64;

}  // namespace digest_table

DigestTable::DigestTable(uint64_t seed, uint32_t max_digests, uint32_t hash_bits)
    : max_digests_(max_digests), hash_(seed, digest_table::kDigestWords, hash_bits) {
  while ((uint32_t{1} << slot_bits_) < max_digests) ++slot_bits_;
  slot_mask_ = (uint32_t{1} << slot_bits_) - 1;
  generation_mask_ = (kDigestBit >> slot_bits_) - 1;
}

uint32_t DigestTable::Tag(const uint8_t* digest) const {
  uint32_t words[digest_table::kDigestWords];
  std::memcpy(words, digest, kDigestBytes);
  return hash_.Tag(hash_.Block(0, words));
}

uint32_t DigestTable::Lookup(const uint8_t* digest, uint32_t tag) const {
  if (index_.empty()) return kNil;
  for (size_t i = Home(tag); index_[i].slot != kNil; i = (i + 1) & (index_.size() - 1)) {
    if (index_[i].tag == tag &&
        std::memcmp(entries_[index_[i].slot].digest, digest, kDigestBytes) == 0) {
      return index_[i].slot;
    }
  }
  return kNil;
}

uint32_t DigestTable::Find(const uint8_t* digest) const {
  const uint32_t slot = Lookup(digest, Tag(digest));
  return slot != kNil && entries_[slot].uses != 0 ? Token(slot) : kNone;
}

uint32_t DigestTable::Acquire(const uint8_t* digest) {
  const uint32_t tag = Tag(digest);
  uint32_t slot = Lookup(digest, tag);
  if (slot == kNil) {
    slot = TakeSlot();
    if (slot == kNil) return kNone;
    Entry& entry = entries_[slot];
    std::memcpy(entry.digest, digest, kDigestBytes);
    entry.tag = tag;
    Enter(tag, slot);
    ++live_;
  } else if (entries_[slot].uses == 0) {
    UnlinkIdle(slot);
    ++live_;
  }
  ++entries_[slot].uses;
  return Token(slot);
}

// A slot that is in neither the index nor the idle list, or kNil.
uint32_t DigestTable::TakeSlot() {
  if (entries_.size() == index_.size() / 2 && idle_head_ == kNil) {
    if (live_ >= max_digests_) return kNil;
    Grow(std::max(digest_table::kFirstSlots, 2 * entries_.size()));
  }
  if (entries_.size() < std::min<size_t>(index_.size() / 2, max_digests_)) {
    entries_.push_back({});
    return static_cast<uint32_t>(entries_.size() - 1);
  }
  const uint32_t slot = idle_head_;
  if (slot == kNil) return kNil;
  UnlinkIdle(slot);
  Displace(slot);
  ++entries_[slot].generation;
  return slot;
}

// Makes `slots` slots possible, of which no more than max_digests are ever used.
void DigestTable::Grow(size_t slots) {
  size_t places = std::max<size_t>(index_.size(), 2);
  while (places / 2 < std::min<size_t>(slots, max_digests_)) places *= 2;
  if (places == index_.size()) return;
  std::vector<Place> wider(places, Place{0, kNil});
  entries_.reserve(std::min<size_t>(places / 2, max_digests_));
  index_.swap(wider);
  for (const Place& place : wider) {
    if (place.slot != kNil) Enter(place.tag, place.slot);
  }
}

void DigestTable::Reserve(size_t more) { Grow(entries_.size() + more); }

void DigestTable::Clear() {
  entries_.clear();
  std::fill(index_.begin(), index_.end(), Place{0, kNil});
  live_ = 0;
  idle_head_ = idle_tail_ = kNil;
}

void DigestTable::Enter(uint32_t tag, uint32_t slot) {
  size_t i = Home(tag);
  while (index_[i].slot != kNil) i = (i + 1) & (index_.size() - 1);
  index_[i] = {tag, slot};
}

// Out of the index, by shifting back what follows.
void DigestTable::Displace(uint32_t slot) {
  const size_t mask = index_.size() - 1;
  size_t hole = Home(entries_[slot].tag);
  while (index_[hole].slot != slot) hole = (hole + 1) & mask;
  for (size_t i = (hole + 1) & mask; index_[i].slot != kNil; i = (i + 1) & mask) {
    // An entry may move back only as far as its home.
    if (((i - Home(index_[i].tag)) & mask) < ((i - hole) & mask)) continue;
    index_[hole] = index_[i];
    hole = i;
  }
  index_[hole] = {0, kNil};
}

void DigestTable::AppendIdle(uint32_t slot) {
  Entry& entry = entries_[slot];
  entry.prev = idle_tail_;
  entry.next = kNil;
  (idle_tail_ != kNil ? entries_[idle_tail_].next : idle_head_) = slot;
  idle_tail_ = slot;
}

void DigestTable::UnlinkIdle(uint32_t slot) {
  const Entry& entry = entries_[slot];
  (entry.prev != kNil ? entries_[entry.prev].next : idle_head_) = entry.next;
  (entry.next != kNil ? entries_[entry.next].prev : idle_tail_) = entry.prev;
}

void DigestTable::RetainAll(const uint32_t* tokens, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if ((tokens[i] & kDigestBit) != 0) ++entries_[tokens[i] & slot_mask_].uses;
  }
}

void DigestTable::ReleaseAll(const uint32_t* tokens, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if ((tokens[i] & kDigestBit) == 0) continue;
    const uint32_t slot = tokens[i] & slot_mask_;
    if (--entries_[slot].uses != 0) continue;
    AppendIdle(slot);
    --live_;
  }
}

bool DigestTable::Valid(uint32_t token) const {
  const uint32_t slot = token & slot_mask_;
  return (token & kDigestBit) != 0 && slot < entries_.size() && entries_[slot].uses != 0 &&
         Token(slot) == token;
}

void DigestTable::CopyTo(uint8_t* out) const {
  for (size_t slot = 0; slot < entries_.size(); ++slot) {
    std::memcpy(out + slot * kDigestBytes, entries_[slot].digest, kDigestBytes);
  }
}

const char* DigestTable::Check() const {
  size_t places = 0;
  for (const Place& place : index_) {
    if (place.slot == kNil) continue;
    ++places;
    if (place.slot >= entries_.size() || entries_[place.slot].tag != place.tag) {
      return "an entry of the digests' index is wrong";
    }
  }
  if (places != entries_.size()) return "the digests' index and the digests differ";
  uint32_t live = 0;
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.tag != Tag(entry.digest) || Lookup(entry.digest, entry.tag) != slot) {
      return "a digest is not found by its bytes";
    }
    live += entry.uses != 0 ? 1 : 0;
  }
  if (live != live_ || live > max_digests_) return "the digests in use are miscounted";
  size_t idle = 0;
  uint32_t before = kNil;
  for (uint32_t slot = idle_head_; slot != kNil; slot = entries_[slot].next) {
    if (slot >= entries_.size() || entries_[slot].uses != 0 || entries_[slot].prev != before ||
        ++idle > entries_.size()) {
      return "the list of digests without a use is broken";
    }
    before = slot;
  }
  if (idle_tail_ != before || idle + live != entries_.size()) {
    return "the digests without a use are miscounted";
  }
  return nullptr;
}

}  // namespace kvcast
