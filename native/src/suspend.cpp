// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Suspending sequences and resuming them, and the gate in front of becoming active.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

// Somebody must always get on, or a pool full of live pages would stay so.
bool Manager::GateIsOpen() const {
  return active_sequences_ == 0 || resume_gate_permille_ == 1000 ||
         uint64_t{pages_.live()} * 1000 <=
             uint64_t{resume_gate_permille_} * std::min(pages_.limit(), pages_.total());
}

kvc_status Manager::GateClosed(kvc_error* error) {
  ++counters_.refused_gate;
  return sequences::Item(error, KVC_NOT_NOW,
                         "too much of the pool is live (resume_gate_permille); retry after a "
                         "release, or open the sequence suspended");
}

void Manager::ReservePath(Sequence* seq, size_t tokens) {
  const size_t before = seq->path.capacity();
  if (before >= tokens) return;
  seq->path.reserve(std::max(tokens, 2 * before));
  sequence_bytes_ += (seq->path.capacity() - before) * sizeof(uint32_t);
}

void Manager::ForgetPath(Sequence* seq) {
  if (seq->path_digests) digests_.ReleaseAll(seq->path.data(), seq->path.size());
  seq->path_digests = false;
  seq->path.clear();
  if (seq->path.capacity() <= sequences::kKeptTokens) return;
  sequence_bytes_ -= seq->path.capacity() * sizeof(uint32_t);
  std::vector<uint32_t>().swap(seq->path);
}

kvc_status Manager::SuspendOne(const kvc_suspend_item& item, Turn* turn, kvc_error* error) {
  using sequences::Item;
  if ((item.flags & ~uint32_t{KVC_SUSPEND_KEEP}) != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "a suspend item has unknown flags");
  }
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  if (!TakesWork(seq->slot)) return sequences::Captured(error);
  const bool keep = (item.flags & KVC_SUSPEND_KEEP) != 0;
  const size_t linked = Linked(*seq);
  ReservePath(seq, linked * block_size_);
  fences_.Reserve(seq->pages.size() + 4);
  // From here on nothing throws.
  if (seq->marking) {
    // The path of the marks makes way for that of the blocks, in memory that stays.
    std::vector<uint32_t> path;
    path.swap(seq->path);
    if (seq->path_digests) digests_.ReleaseAll(path.data(), path.size());
    seq->path_digests = false;
    EndMarks(seq, 0);
    path.swap(seq->path);
  }
  seq->path.resize(linked * block_size_);
  for (size_t i = 0; i < linked; ++i) {
    std::memcpy(&seq->path[i * block_size_], tree_.tokens(pages_[seq->pages[i]].node),
                size_t{block_size_} * sizeof(uint32_t));
  }
  seq->table.Touch(0, static_cast<uint32_t>(seq->pages.size()));
  seq->path_digests = digests_.live() != 0 && AnyDigest(seq->path.data(), seq->path.size());
  if (seq->path_digests) digests_.RetainAll(seq->path.data(), seq->path.size());
  const FenceSetId fence = RecordFence(seq->slot);
  const size_t dropped = keep ? linked : seq->pages.size();
  for (size_t i = dropped; i < seq->pages.size(); ++i) {
    pages_.AddUse(seq->pages[i], At(FenceSite::kSuspendKept, fence));
  }
  pages_.DropPath(seq->pages.data(), dropped, At(FenceSite::kSuspend, fence));
  fences_.Release(fence);
  if (keep) {
    seq->pages.erase(seq->pages.begin(), seq->pages.begin() + static_cast<ptrdiff_t>(linked));
  } else {
    seq->pages.clear();
  }
  kept_pages_ += seq->pages.size();
  fences_.Release(seq->waits);
  seq->waits = 0;
  FallAsleep(seq);
  seq->rest_kept = keep;
  ++changes_;
  return KVC_OK;
}

// The sequence goes to the root of its path. It was not suspended.
void Manager::FallAsleep(Sequence* seq) {
  seq->suspended = true;
  seq->suspended_at = ++suspensions_;
  seq->linked = 0;
  if (Attached(*seq)) {
    seq->last = RootParent(seq->root);
    seq->last_hash = tree_.root(seq->root).hash;
    tree_.SleepOn(seq->root);
  }
  --active_sequences_;
}

// Gives up the pages that a suspended sequence keeps. Takes no memory if as many
// sets of fences have been reserved.
void Manager::StripKept(Sequence* seq) {
  pages_.DropPath(seq->pages.data(), seq->pages.size(), 0);
  kept_pages_ -= seq->pages.size();
  seq->pages.clear();
  seq->rest_kept = false;
}

kvc_status Manager::ResumeOne(uint64_t id, kvc_resume_result* result, Turn* turn,
                              kvc_error* error) {
  using sequences::Item;
  turn->Enter();
  Sequence* seq = Find(id);
  if (seq == nullptr) return sequences::Stale(error);
  if (!seq->suspended) {
    return Item(error, KVC_BAD_STATE, "the sequence is active; only suspended ones are resumed");
  }
  if (!GateIsOpen()) return GateClosed(error);
  const bool attached = Attached(*seq);
  const uint64_t blocks = seq->fresh ? seq->match_blocks : seq->path.size() / block_size_;
  Match match;
  std::vector<PageId>& found_pages = victims_;  // lends its memory, see CreateOne
  if (attached) {
    match.root = seq->root;
    match.last = seq->last;
    match.last_hash = seq->last_hash;
    Walk(&match, seq->path.data(), blocks, [&](const NodeId* found, uint32_t count) {
      for (uint32_t i = 0; i < count; ++i) found_pages.push_back(tree_.node(found[i]).page);
    });
    if (seq->fresh) {
      uint32_t owner = kNil;
      const uint32_t pending = FindPending(match, {seq->path.data(), nullptr}, blocks, &owner);
      if (pending != 0) {
        result->pending_tokens = uint64_t{pending} * block_size_;
        result->pending_sequence = IdOf(owner);
        if (seq->awaits) {
          found_pages.clear();
          WaitFor(static_cast<uint32_t>(id), owner, match.blocks, pending);
          return Item(error, KVC_NOT_NOW,
                      "an older sequence computes what the prompt needs next; resume when it is "
                      "told that the wait is over");
        }
      }
      BackOff(&match, seq->backoff);
      found_pages.resize(match.blocks);
    }
  }
  const bool marks = seq->fresh && seq->will_mark && attached;
  try {
    ReservePages(seq, found_pages.size() + seq->pages.size());
    fences_.Reserve(seq->pages.size() + 2);
    if (marks) pending_.Reserve(seq->path.size() / block_size_ - match.blocks);
  } catch (...) {
    found_pages.clear();
    throw;
  }
  // From here on nothing throws.
  if (seq->fresh) pending_.Forget(static_cast<uint32_t>(id));
  const bool whole = match.blocks == blocks && !seq->fresh;
  const bool rest = whole && seq->rest_kept;
  // Nobody can write behind a gap: what was kept goes with the first lost block.
  if (!rest) StripKept(seq);
  kept_pages_ -= seq->pages.size();
  FenceList waits;
  for (const PageId id_kept : seq->pages) {
    if (pages_[id_kept].ready != 0) fences_.Collect(pages_[id_kept].ready, seq->slot, &waits);
  }
  HoldPath(found_pages, seq->fresh, seq->slot, &waits);
  seq->pages.insert(seq->pages.begin(), found_pages.begin(), found_pages.end());
  found_pages.clear();
  const uint64_t before = seq->committed;
  if (!rest) {
    ForgetTailDigests(seq);
    seq->committed = match.blocks * block_size_;
  }
  if (seq->fresh) {
    seq->matched = seq->committed;
    counters_.matched_blocks += match.blocks;
  } else {
    result->lost_tokens = before - seq->committed;
    seq->matched = std::min(seq->matched, seq->committed);
  }
  if (attached) {
    seq->last = match.last;
    seq->last_hash = match.last_hash;
    seq->linked = static_cast<uint32_t>(match.blocks);
    tree_.WakeOn(seq->root);
  }
  seq->suspended = false;
  seq->fresh = false;
  seq->rest_kept = false;
  if (marks) {
    MarkPath(seq);
  } else {
    ForgetPath(seq);
  }
  ++active_sequences_;
  ++changes_;
  counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());
  result->committed_tokens = seq->committed;
  if (hooks_.without == FenceSite::kResumeWait) waits = {};
  result->wait_count = TellWaits(seq, waits, result->waits);
  return KVC_OK;
}

// Chooses suspended sequences whose kept pages give `slot` at least `demand`
// pages, those suspended last first, but for those that give none now; whoever keeps
// `unshare` in any case. With all of the demand strip_ holds them, else it is empty.
// Returns how many pages there would be.
uint32_t Manager::PlanStrip(uint32_t demand, uint32_t slot, PageId unshare) {
  for (uint32_t i = 0; i < max_sequences_; ++i) {
    const Sequence& seq = sequences_[i];
    if (seq.open && seq.suspended && !seq.pages.empty()) strip_.push_back(i);
  }
  std::sort(strip_.begin(), strip_.end(), [this](uint32_t a, uint32_t b) {
    return sequences_[a].suspended_at > sequences_[b].suspended_at;
  });
  const auto keeps = [&](uint32_t index) {
    const std::vector<PageId>& pages = sequences_[index].pages;
    return unshare != kNil && std::find(pages.begin(), pages.end(), unshare) != pages.end();
  };
  size_t musts = 0;
  for (size_t i = 0; unshare != kNil && i < strip_.size(); ++i) {
    if (!keeps(strip_[i])) continue;
    const auto at = strip_.begin() + static_cast<ptrdiff_t>(i);
    std::rotate(strip_.begin() + static_cast<ptrdiff_t>(musts++), at, at + 1);
  }
  const auto gives = [&](PageId id) {
    const Page& page = pages_[id];
    return page.holders == 0 && !pages_.doomed(id) && pages_.UsableBy(page, slot);
  };
  uint32_t gain = 0;
  size_t taken = 0;
  // Detached sequences may share what they keep: a page is free when the last of
  // those who keep it is taken. For the plan its holders are counted down.
  for (; taken < strip_.size() && (taken < musts || gain < demand); ++taken) {
    for (const PageId id : sequences_[strip_[taken]].pages) {
      --pages_[id].holders;
      if (gives(id)) ++gain;
    }
  }
  // Whoever has nothing that is free then keeps what it has: it is not missed.
  size_t useful = musts;
  for (size_t i = musts; i < taken; ++i) {
    const std::vector<PageId>& pages = sequences_[strip_[i]].pages;
    if (std::any_of(pages.begin(), pages.end(), gives)) std::swap(strip_[useful++], strip_[i]);
  }
  for (size_t i = 0; i < taken; ++i) {
    for (const PageId id : sequences_[strip_[i]].pages) ++pages_[id].holders;
  }
  strip_.resize(gain < demand ? 0 : useful);
  return gain;
}

void Manager::Suspend(uint32_t count, const kvc_suspend_item* items, kvc_status* results,
                      kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return SuspendOne(items[i], &turn, story);
    });
  }
}

void Manager::Resume(uint32_t count, const uint64_t* sequences, kvc_resume_result* results,
                     kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return ResumeOne(sequences[i], &results[i], &turn, story);
    });
  }
}

}  // namespace kvcast
