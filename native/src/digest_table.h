// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The 32-byte digests of multimodal items, each kept once and counted.
#ifndef KVCAST_NATIVE_SRC_DIGEST_TABLE_H_
#define KVCAST_NATIVE_SRC_DIGEST_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/mixed_hash.h"
#include "native/src/types.h"

namespace kvcast {

// True if any of the tokens stands for a digest.
[[nodiscard]] inline bool AnyDigest(const uint32_t* tokens, uint64_t count) {
  uint32_t all = 0;
  for (uint64_t i = 0; i < count; ++i) all |= tokens[i];
  return (all & kDigestBit) != 0;
}

// Turns digests into tokens with the digest bit, so that blocks with digests are
// compared and hashed like all others: among the digests in use, equal tokens
// <=> equal digests. A token is the digest bit, a generation and a slot.
//
// A digest that nobody uses any more stays findable until its slot is needed:
// what is cached again soon gets its old token back. A slot that is taken for
// another digest gets the next generation, so that whoever remembers a hash over
// the old token does not mistake the new one for it.
//
// Takes memory as the number of digests in use grows beyond all before, never in
// the steady state. Lookups may run side by side.
class DigestTable {
 public:
  static constexpr uint32_t kNone = 0;  // no digest's token
  static constexpr uint32_t kMaxDigests = 1u << 24;

  // Up to max_digests (1 to kMaxDigests) in use at once. `hash_bits` is for
  // tests that want collisions.
  DigestTable(uint64_t seed, uint32_t max_digests, uint32_t hash_bits = 61);
  DigestTable(const DigestTable&) = delete;
  DigestTable& operator=(const DigestTable&) = delete;

  [[nodiscard]] uint32_t live() const { return live_; }  // digests in use
  [[nodiscard]] uint32_t max_digests() const { return max_digests_; }
  [[nodiscard]] size_t bytes() const {
    return entries_.capacity() * sizeof(Entry) + index_.capacity() * sizeof(Place);
  }

  // The token of a digest in use, or kNone.
  [[nodiscard]] uint32_t Find(const uint8_t* digest) const;
  // Finds or adds the digest and counts one use of it. kNone if max_digests
  // others are in use. Throws bad_alloc with nothing changed.
  [[nodiscard]] uint32_t Acquire(const uint8_t* digest);
  // Makes sure that so many Acquire calls do not throw.
  void Reserve(size_t more);
  // Forgets everything, whoever uses it.
  void Clear();

  // One use more or less of each digest among the tokens; others are passed over.
  void RetainAll(const uint32_t* tokens, uint64_t count);
  void ReleaseAll(const uint32_t* tokens, uint64_t count);

  // The 32 bytes; until the digest is given up or another one is acquired.
  [[nodiscard]] const uint8_t* Bytes(uint32_t token) const {
    return entries_[token & slot_mask_].digest;
  }

  // For the manager's check: slots so far, and what is behind a token.
  [[nodiscard]] size_t slots() const { return entries_.size(); }
  [[nodiscard]] uint64_t uses(size_t slot) const { return entries_[slot].uses; }
  [[nodiscard]] size_t slot_of(uint32_t token) const { return token & slot_mask_; }
  [[nodiscard]] uint32_t slot_mask() const { return slot_mask_; }  // never changes
  [[nodiscard]] bool Valid(uint32_t token) const;
  // Writes the bytes of all slots.
  void CopyTo(uint8_t* out) const;
  // nullptr, or what is wrong (static text).
  [[nodiscard]] const char* Check() const;

 private:
  friend struct DigestTablePeer;  // tests that break it on purpose

  struct Entry {
    uint8_t digest[kDigestBytes];
    uint64_t uses;
    uint32_t generation;
    uint32_t prev;  // on the list of digests without a use, the oldest first
    uint32_t next;
    uint32_t tag;
  };
  struct Place {
    uint32_t tag;
    uint32_t slot;  // kNil: empty
  };

  [[nodiscard]] uint32_t Tag(const uint8_t* digest) const;
  [[nodiscard]] uint32_t Lookup(const uint8_t* digest, uint32_t tag) const;  // slot or kNil
  [[nodiscard]] size_t Home(uint32_t tag) const { return tag & (index_.size() - 1); }
  [[nodiscard]] uint32_t Token(uint32_t slot) const {
    return kDigestBit | (entries_[slot].generation & generation_mask_) << slot_bits_ | slot;
  }
  [[nodiscard]] uint32_t TakeSlot();
  void Grow(size_t slots);
  void Enter(uint32_t tag, uint32_t slot);
  void Displace(uint32_t slot);
  void AppendIdle(uint32_t slot);
  void UnlinkIdle(uint32_t slot);

  const uint32_t max_digests_;
  uint32_t slot_bits_ = 0;
  uint32_t slot_mask_ = 0;
  uint32_t generation_mask_ = 0;
  MixedHash hash_;  // over the eight words of a digest
  std::vector<Entry> entries_;
  std::vector<Place> index_;  // open addressing, a power of two, load <= 1/2
  uint32_t live_ = 0;
  uint32_t idle_head_ = kNil;
  uint32_t idle_tail_ = kNil;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_DIGEST_TABLE_H_
