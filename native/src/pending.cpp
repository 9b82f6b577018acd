// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Blocks that are being computed: who has marked them, who waits for them, and how
// that ends. A mark is a promise of its owner; nobody is ever made to wait in here.
#include <algorithm>
#include <cstring>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

// Whether `count` tokens of a caller's, from `first` on, are these interned ones.
bool Manager::SameTokens(const TokenView& view, uint64_t first, uint64_t count,
                         const uint32_t* interned) const {
  const uint32_t* tokens = view.tokens + first;
  if (view.digests == nullptr) {
    return std::memcmp(tokens, interned, count * sizeof(uint32_t)) == 0;
  }
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t token = tokens[i];
    if ((token & kDigestBit) != 0) {
      token = digests_.Find(view.digests + size_t{token & ~kDigestBit} * kDigestBytes);
      if (token == DigestTable::kNone) return false;
    }
    if (token != interned[i]) return false;
  }
  return true;
}

// How many blocks behind a match, up to block `limit` of the prompt, an open sequence
// has marked: the one that marked the first of them first. All tokens are compared.
uint32_t Manager::FindPending(const Match& match, const TokenView& view, uint64_t limit,
                              uint32_t* owner) const {
  if (pending_.size() == 0 || match.root == kNil || match.blocks >= limit) return 0;
  uint32_t piece[kMaxTokensPerBlock];
  const uint32_t* block = view.tokens + match.blocks * block_size_;
  if (view.digests != nullptr) {
    if (Translate(view, match.blocks * block_size_, block_size_, piece) < block_size_) return 0;
    block = piece;
  }
  const uint32_t found =
      pending_.Find(hash_.Block(match.last_hash, block), [&](const PendingMark& mark) {
        const Sequence& seq = sequences_[mark.owner];
        return mark.block == match.blocks && seq.root == match.root &&
               SameTokens(view, 0, (match.blocks + 1) * block_size_, seq.path.data());
      });
  if (found == kNil) return 0;
  *owner = pending_.mark(found).owner;
  const uint64_t end = std::min<uint64_t>(limit, pending_.of(*owner).end);
  uint64_t at = match.blocks + 1;
  while (at < end && SameTokens(view, at * block_size_, block_size_,
                                &sequences_[*owner].path[at * block_size_])) {
    ++at;
  }
  return static_cast<uint32_t>(at - match.blocks);
}

// Marks what the sequence, which has just become active, is going to compute: the
// blocks of `path` behind those it has. As far as Reserve has made room.
void Manager::MarkPath(Sequence* seq) {
  const auto index = static_cast<uint32_t>(seq - sequences_.data());
  const uint64_t blocks = std::min<uint64_t>(seq->path.size() / block_size_, seq->stop_blocks);
  const uint64_t wanted = blocks - std::min<uint64_t>(blocks, seq->linked);
  const uint64_t count = std::min<uint64_t>(wanted, pending_.room());
  pending_.Begin(index, seq->linked);
  uint64_t hash = seq->last_hash;
  for (uint64_t i = 0; i < count; ++i) {
    hash = hash_.Block(hash, &seq->path[(seq->linked + i) * block_size_]);
    pending_.Append(index, hash);
  }
  counters_.marked_blocks += count;
  counters_.unmarked_blocks += wanted - count;
  seq->marking = count != 0;
  if (!seq->marking) ForgetPath(seq);
}

// The owner has committed: what it has kept of its promise is told to those who
// waited for it, and what it has broken as well.
void Manager::CommitMarks(Sequence* seq) {
  const auto index = static_cast<uint32_t>(seq - sequences_.data());
  const PendingSequence& marks = pending_.of(index);
  const uint32_t linked = std::min(marks.end, seq->linked);
  while (marks.begin < linked && std::memcmp(tree_.tokens(pages_[seq->pages[marks.begin]].node),
                                             &seq->path[size_t{marks.begin} * block_size_],
                                             size_t{block_size_} * sizeof(uint32_t)) == 0) {
    pending_.PopFirst(index);
    ++counters_.committed_marks;
  }
  for (uint32_t id = marks.waiter; id != kNil;) {
    const uint32_t next = pending_.of(id).next;
    if (pending_.of(id).until <= marks.begin) pending_.Tell(id, true);
    id = next;
  }
  if (marks.begin < linked) {
    EndMarks(seq, marks.begin);
  } else if (marks.begin == marks.end) {
    seq->marking = false;
    ForgetPath(seq);
  }
}

// The owner will not compute its block `keep` nor those behind it. Takes and frees
// no memory but that of a long path.
void Manager::EndMarks(Sequence* seq, uint32_t keep) {
  if (!seq->marking) return;
  const auto index = static_cast<uint32_t>(seq - sequences_.data());
  const PendingSequence& marks = pending_.of(index);
  counters_.given_up_marks += pending_.Shorten(index, keep);
  for (uint32_t id = marks.waiter; id != kNil;) {
    PendingSequence& waiter = pending_.of(id);
    const uint32_t next = waiter.next;
    if (waiter.until > marks.end) {
      waiter.until = marks.end;
      // Of what it waits for nothing is left to come.
      if (marks.end == marks.begin || marks.end <= waiter.from) pending_.Tell(id, false);
    }
    id = next;
  }
  if (marks.begin != marks.end) return;
  seq->marking = false;
  ForgetPath(seq);
}

void Manager::EndAllMarks() {
  for (uint32_t i = 0; pending_.size() != 0 && i < max_sequences_; ++i) {
    EndMarks(&sequences_[i], 0);
  }
}

// Up to `capacity` sequences whose waits are over, in the order in which they ended.
uint32_t Manager::TakeWaiters(uint32_t capacity, kvc_waiter* out) {
  uint32_t count = 0;
  while (count < capacity && pending_.told_first() != kNil) {
    const uint32_t index = pending_.told_first();
    out[count++] = {
        IdOf(index),
        static_cast<kvc_pending_outcome>(pending_.of(index).committed ? KVC_PENDING_COMMITTED
                                                                      : KVC_PENDING_GIVEN_UP),
        0};
    pending_.Forget(index);
  }
  return count;
}

uint32_t Manager::Waiters(uint32_t capacity, kvc_waiter* out) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  return TakeWaiters(capacity, out);
}

// Notes that a suspended sequence waits for what FindPending has found.
void Manager::WaitFor(uint32_t index, uint32_t owner, uint64_t from, uint32_t blocks) {
  const PendingSequence& now = pending_.of(index);
  const auto until = static_cast<uint32_t>(from + blocks);
  if (now.state == PendingSequence::State::kWaiting && now.owner == owner && now.until == until) {
    return;
  }
  pending_.Forget(index);
  pending_.Wait(index, owner, static_cast<uint32_t>(from), until);
  ++counters_.waits;
}

const char* Manager::CheckPending(uint32_t* where) {
  using State = PendingSequence::State;
  uint64_t marks = 0;
  uint32_t waiting = 0;
  uint32_t told = 0;
  for (uint32_t index = 0; index < max_sequences_; ++index) {
    const Sequence& seq = sequences_[index];
    const PendingSequence& p = pending_.of(index);
    *where = index;
    if (seq.marking != (p.first != kNil)) return "a sequence does not know that it has marks";
    uint32_t block = p.begin;
    uint32_t last = kNil;
    uint64_t hash = seq.last_hash;
    if (seq.marking) {
      if (!seq.open || seq.suspended || seq.holds != 0 || !Attached(seq)) {
        return "a sequence has marks that computes nothing";
      }
      if (p.begin != seq.linked || p.end > seq.stop_blocks ||
          seq.path.size() < size_t{p.end} * block_size_) {
        return "a sequence's marks are not of its next blocks";
      }
    }
    for (uint32_t id = p.first; id != kNil; id = pending_.mark(id).next_own) {
      const PendingMark& mark = pending_.mark(id);
      if (mark.owner != index || mark.block != block) return "a sequence's marks are broken";
      hash = hash_.Block(hash, &seq.path[size_t{block} * block_size_]);
      if (mark.hash != hash) return "a mark's hash is not its content's";
      const auto same = [&](const PendingMark& other) { return &other == &mark; };
      if (pending_.Find(mark.hash, same) != id) return "a mark is not found by its hash";
      last = id;
      ++block;
      ++marks;
    }
    if (block != p.end || last != p.last) return "a sequence's marks are miscounted";
    uint32_t before = kNil;
    for (uint32_t id = p.waiter; id != kNil; id = pending_.of(id).next) {
      const PendingSequence& w = pending_.of(id);
      if (w.state != State::kWaiting || w.owner != index || ++waiting > max_sequences_) {
        return "a list of waiting sequences is broken";
      }
      if (before != kNil && w.prev != before) return "a list of waiting sequences is broken";
      if (w.until <= p.begin || w.until > p.end || w.from >= w.until) {
        return "a sequence waits for what nobody computes";
      }
      if (sequences_[id].root != seq.root ||
          sequences_[id].path.size() < size_t{w.until} * block_size_ ||
          std::memcmp(sequences_[id].path.data(), seq.path.data(),
                      size_t{w.until} * block_size_ * sizeof(uint32_t)) != 0) {
        return "a sequence waits for other blocks than its own";
      }
      before = id;
    }
    if (p.waiter != kNil && pending_.of(p.waiter).prev != before) {
      return "a list of waiting sequences is broken";
    }
    if (p.state == State::kNone) continue;
    if (!seq.open || !seq.suspended || !seq.fresh) return "a sequence waits that is not suspended";
    told += p.state == State::kTold ? 1 : 0;
  }
  *where = kNil;
  if (marks != pending_.size()) return "the marks are miscounted";
  if (waiting != pending_.waiting()) return "the waiting sequences are miscounted";
  if (counters_.marked_blocks !=
      counters_.committed_marks + counters_.given_up_marks + pending_.size()) {
    return "marked differs from committed + given up + pending";
  }
  for (uint32_t id = pending_.told_first(); id != kNil; id = pending_.of(id).next) {
    *where = id;
    if (pending_.of(id).state != State::kTold || told-- == 0) {
      return "the list of those to be told is broken";
    }
  }
  return told == 0 ? nullptr : "the list of those to be told is broken";
}

}  // namespace kvcast
