// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/pending_table.h"

#include <algorithm>

namespace kvcast {

namespace pending_table {

constexpr uint64_t kFirstMarks = 256;

}  // namespace pending_table

void PendingTable::Reserve(uint64_t count) {
  const uint64_t wanted = std::min<uint64_t>(max_marks_, size_ + count);
  if (wanted <= marks_.size()) return;
  const uint64_t grown = std::min<uint64_t>(
      max_marks_, std::max({wanted, 2 * uint64_t{marks_.size()}, pending_table::kFirstMarks}));
  uint32_t shift = shift_;
  while ((uint64_t{1} << (32 - shift)) < grown) --shift;
  std::vector<uint32_t> old(size_t{1} << (32 - shift), kNil);
  const auto before = static_cast<uint32_t>(marks_.size());
  marks_.resize(grown);
  // From here on nothing throws.
  old.swap(heads_);
  shift_ = shift;
  for (const uint32_t head : old) {
    for (uint32_t id = head; id != kNil;) {
      const uint32_t after = marks_[id].after;
      Link(id);
      id = after;
    }
  }
  for (auto id = static_cast<uint32_t>(grown); id-- > before;) {
    marks_[id].after = free_;
    free_ = id;
  }
}

// Behind the last one of its bucket.
void PendingTable::Link(uint32_t id) {
  uint32_t& head = heads_[Bucket(marks_[id].hash)];
  marks_[id].after = kNil;
  if (head == kNil) {
    head = marks_[id].before = id;
    return;
  }
  const uint32_t last = marks_[head].before;
  marks_[last].after = id;
  marks_[id].before = last;
  marks_[head].before = id;
}

void PendingTable::Free(uint32_t id) {
  PendingMark& m = marks_[id];
  uint32_t& head = heads_[Bucket(m.hash)];
  if (head == id) {
    head = m.after;
  } else {
    marks_[m.before].after = m.after;
  }
  if (m.after != kNil) {
    marks_[m.after].before = m.before;
  } else if (head != kNil) {
    marks_[head].before = m.before;
  }
  m.owner = kNil;
  m.after = free_;
  free_ = id;
  --size_;
}

void PendingTable::Append(uint32_t sequence, uint64_t hash) {
  PendingSequence& s = sequences_[sequence];
  const uint32_t id = free_;
  free_ = marks_[id].after;
  marks_[id] = {hash, sequence, s.end, kNil, kNil, kNil, 0};
  Link(id);
  (s.first == kNil ? s.first : marks_[s.last].next_own) = id;
  s.last = id;
  ++s.end;
  ++size_;
}

void PendingTable::PopFirst(uint32_t sequence) {
  PendingSequence& s = sequences_[sequence];
  const uint32_t id = s.first;
  s.first = marks_[id].next_own;
  ++s.begin;
  if (s.first == kNil) s.last = kNil;
  Free(id);
}

uint32_t PendingTable::Shorten(uint32_t sequence, uint32_t keep) {
  PendingSequence& s = sequences_[sequence];
  keep = std::max(keep, s.begin);
  if (keep >= s.end) return 0;
  uint32_t last = kNil;
  uint32_t id = s.first;
  for (uint32_t block = s.begin; block < keep; ++block) {
    last = id;
    id = marks_[id].next_own;
  }
  const uint32_t gone = s.end - keep;
  while (id != kNil) {
    const uint32_t next = marks_[id].next_own;
    Free(id);
    id = next;
  }
  (last == kNil ? s.first : marks_[last].next_own) = kNil;
  s.last = last;
  s.end = keep;
  return gone;
}

void PendingTable::Wait(uint32_t sequence, uint32_t owner, uint32_t from, uint32_t until) {
  PendingSequence& s = sequences_[sequence];
  s.state = PendingSequence::State::kWaiting;
  s.owner = owner;
  s.from = from;
  s.until = until;
  // In a ring, as the marks of a bucket are, so that they are told in their order.
  PendingSequence& o = sequences_[owner];
  s.next = kNil;
  if (o.waiter == kNil) {
    o.waiter = s.prev = sequence;
  } else {
    const uint32_t last = sequences_[o.waiter].prev;
    sequences_[last].next = sequence;
    s.prev = last;
    sequences_[o.waiter].prev = sequence;
  }
  ++waiting_;
}

void PendingTable::Tell(uint32_t sequence, bool committed) {
  Forget(sequence);
  PendingSequence& s = sequences_[sequence];
  s.state = PendingSequence::State::kTold;
  s.committed = committed;
  s.prev = told_tail_;
  s.next = kNil;
  (told_tail_ != kNil ? sequences_[told_tail_].next : told_head_) = sequence;
  told_tail_ = sequence;
}

void PendingTable::Forget(uint32_t sequence) {
  PendingSequence& s = sequences_[sequence];
  if (s.state == PendingSequence::State::kTold) {
    (s.prev != kNil ? sequences_[s.prev].next : told_head_) = s.next;
    (s.next != kNil ? sequences_[s.next].prev : told_tail_) = s.prev;
  } else if (s.state == PendingSequence::State::kWaiting) {
    uint32_t& head = sequences_[s.owner].waiter;
    if (head == sequence) {
      head = s.next;
    } else {
      sequences_[s.prev].next = s.next;
    }
    if (s.next != kNil) {
      sequences_[s.next].prev = s.prev;
    } else if (head != kNil) {
      sequences_[head].prev = s.prev;
    }
    --waiting_;
  } else {
    return;
  }
  s.state = PendingSequence::State::kNone;
  s.owner = s.prev = s.next = kNil;
}

}  // namespace kvcast
