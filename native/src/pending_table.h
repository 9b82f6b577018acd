// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which blocks are being computed, by which sequence, and which sequences wait for
// that. Ids and links only: what the blocks hold stands with the sequences.
#ifndef KVCAST_NATIVE_SRC_PENDING_TABLE_H_
#define KVCAST_NATIVE_SRC_PENDING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/mixed_hash.h"
#include "native/src/types.h"

namespace kvcast {

// A block that `owner` has said it will compute and commit.
struct PendingMark {
  uint64_t hash = 0;      // as the block's node will have
  uint32_t owner = kNil;  // index of its sequence
  uint32_t block = 0;     // of the owner's blocks
  uint32_t next_own = kNil;
  // Of marks in one bucket, in the order in which they were made; the first one's
  // `before` is the last. A free mark: `after` links it.
  uint32_t before = kNil;
  uint32_t after = kNil;
  uint32_t unused = 0;
};
static_assert(sizeof(PendingMark) == 32, "two marks to a cache line");

// What a sequence has marked, and what it waits for.
struct PendingSequence {
  // Its marks are those of the blocks begin..end-1, linked in this order.
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t first = kNil;
  uint32_t last = kNil;
  uint32_t waiter = kNil;  // the first that waits for it
  // While it waits for `owner`, and then until it has been told, it is on a list.
  enum class State : uint8_t { kNone, kWaiting, kTold };
  State state = State::kNone;
  bool committed = false;  // kTold: how the wait ended
  uint32_t owner = kNil;
  uint32_t from = 0;   // blocks that there were,
  uint32_t until = 0;  // and those it waits for
  uint32_t prev = kNil;
  uint32_t next = kNil;
};

// Used under the manager's lock; looking up under the shared one. Memory is taken
// when there are more marks than ever before.
class PendingTable {
 public:
  PendingTable(uint32_t max_marks, uint32_t max_sequences, const MixedHash& hash)
      : hash_(hash), max_marks_(max_marks), sequences_(max_sequences) {}

  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t waiting() const { return waiting_; }
  [[nodiscard]] uint32_t told_first() const { return told_head_; }
  [[nodiscard]] uint32_t max_marks() const { return max_marks_; }
  [[nodiscard]] PendingSequence& of(uint32_t sequence) { return sequences_[sequence]; }
  [[nodiscard]] const PendingSequence& of(uint32_t sequence) const { return sequences_[sequence]; }
  [[nodiscard]] const PendingMark& mark(uint32_t id) const { return marks_[id]; }
  [[nodiscard]] size_t bytes() const {
    return marks_.capacity() * sizeof(PendingMark) + heads_.capacity() * sizeof(uint32_t) +
           sequences_.capacity() * sizeof(PendingSequence);
  }

  // Makes room for `count` marks more, as far as max_marks allows. Throws with
  // nothing changed.
  void Reserve(uint64_t count);
  // How many marks can be made without taking memory.
  [[nodiscard]] uint32_t room() const { return static_cast<uint32_t>(marks_.size()) - size_; }
  // The sequence, which has no marks, will mark blocks from this one on.
  void Begin(uint32_t sequence, uint32_t block) {
    sequences_[sequence].begin = sequences_[sequence].end = block;
  }
  // A mark of the sequence's block `end`, which has no later ones.
  void Append(uint32_t sequence, uint64_t hash);
  // The first of the sequence's marks goes.
  void PopFirst(uint32_t sequence);
  // Those of block `keep` and later ones go; returns how many.
  uint32_t Shorten(uint32_t sequence, uint32_t keep);

  // The first mark with the hash for which accept(mark) is true, in the order in
  // which they were made; else kNil.
  template <typename Accept>
  [[nodiscard]] uint32_t Find(uint64_t hash, Accept&& accept) const {
    if (heads_.empty()) return kNil;
    for (uint32_t id = heads_[Bucket(hash)]; id != kNil; id = marks_[id].after) {
      if (marks_[id].hash == hash && accept(marks_[id])) return id;
    }
    return kNil;
  }

  // The sequence, which waits for nobody, waits until the owner has so many blocks.
  void Wait(uint32_t sequence, uint32_t owner, uint32_t from, uint32_t until);
  // A wait is over: the sequence joins those that are to be told.
  void Tell(uint32_t sequence, bool committed);
  // It waits no more and is not told.
  void Forget(uint32_t sequence);

 private:
  friend struct ManagerPeer;  // tests that break invariants on purpose

  [[nodiscard]] size_t Bucket(uint64_t hash) const {
    // The low bits of a hash can be chosen by whoever chooses the tokens, those of its
    // tag cannot.
    return hash_.Tag(hash) >> shift_;
  }
  void Link(uint32_t id);
  void Free(uint32_t id);

  const MixedHash& hash_;
  const uint32_t max_marks_;
  uint32_t shift_ = 31;
  uint32_t size_ = 0;
  uint32_t free_ = kNil;
  std::vector<PendingMark> marks_;
  std::vector<uint32_t> heads_;  // a power of two, at least as many as marks
  std::vector<PendingSequence> sequences_;
  uint32_t waiting_ = 0;
  uint32_t told_head_ = kNil;
  uint32_t told_tail_ = kNil;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PENDING_TABLE_H_
