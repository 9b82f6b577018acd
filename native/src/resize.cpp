// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Growing and shrinking the pool: what is doomed leaves its pages, and memory follows.
#include <algorithm>
#include <string>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace resize {

// Doomed pages that one call looks at: some 100 us.
constexpr uint32_t kLook = 65536;
// Suspended sequences, and pages that they keep, that one call looks at: these are found
// and put in order.
constexpr uint32_t kLookKept = 8192;
// A move needs sets of fences for the copy, its two pages, and the page that is given up.
constexpr size_t kSets = 6;
// Evictions that are planned at once, if so many may be: at least, and at most.
constexpr uint32_t kPlanned = 64;
constexpr uint32_t kMostPlanned = 4096;

}  // namespace resize

// `out` and what follows are of one call.
struct Manager::ResizeCall {
  uint32_t max_pages;
  kvc_page_move* moves;
  uint32_t move_capacity;
  kvc_evicted_block* evicted;
  uint32_t evicted_capacity;
  kvc_resize_result* out;

  [[nodiscard]] uint32_t Budget() const {
    return max_pages - out->moved_pages - out->evicted_blocks;
  }
};

void Manager::AskForPages(uint32_t pages) {
  asked_pages_ = pages;
  settled_ = false;
  device_.AskForPages(++asked_, pages);
}

// What the device has done of what it was asked last.
void Manager::TakeIn() {
  const Backing now = device_.backing();
  if (settled_ || now.request != asked_) return;
  settled_ = now.done;
  const uint32_t free = pages_.free();
  pages_.SetTotal(now.pages);
  if (pages_.free() != free) ++changes_;
  if (!now.failed) return;
  asked_pages_ = now.pages;
  if (pages_.limit() <= pages_.total()) return;  // nobody wants as many any more
  pages_.LimitToTotal();
  growth_failed_ = true;
  ++counters_.failed_resizes;
}

// Whatever can go on without anybody's asking.
void Manager::Settle() {
  if (!resizing_) return;
  TakeIn();
  // What is behind those that were asked for has been withdrawn, and goes.
  const uint32_t last = pages_.LastDoomed(std::min(pages_.total(), asked_pages_));
  const uint32_t end = last != kNil ? last + 1 : pages_.limit();
  if (end < asked_pages_) {
    AskForPages(end);
    TakeIn();
  }
  if (settled_ && pages_.total() == pages_.limit()) resizing_ = false;
}

void Manager::Retarget(uint32_t target) {
  pages_.Retarget(target);
  // From here on nothing throws.
  ++counters_.resizes;
  ++changes_;
  resizing_ = true;
  resize_scan_ = kNil;
  kept_scan_ = {};
  if (target > asked_pages_) {
    AskForPages(target);
  } else if (settled_) {
    pages_.SetTotal(pages_.total());  // nothing has been taken from behind these
  }
}

// What suspended sequences keep in doomed pages, but for what somebody else holds as well:
// some of it, from kept_scan_ on. Returns where the next call goes on.
Manager::KeptScan Manager::FindKept() {
  kept_.clear();
  if (kept_pages_ == 0) return {};
  kept_.reserve(std::min<uint64_t>(kept_pages_, resize::kLookKept));
  KeptScan scan = kept_scan_;
  for (uint32_t looks = resize::kLookKept; scan.sequence < max_sequences_; --looks) {
    if (looks == 0) break;
    const Sequence& seq = sequences_[scan.sequence];
    if (!seq.open || !seq.suspended || scan.index >= seq.pages.size()) {
      scan = {scan.sequence + 1, 0};
      continue;
    }
    const PageId id = seq.pages[scan.index];
    const Page& page = pages_[id];
    if (pages_.doomed(id) && page.holders == 1 && page.node == kNil) {
      kept_.push_back({id, scan.sequence, scan.index});
    }
    ++scan.index;
  }
  if (scan.sequence == max_sequences_) scan = {};
  std::sort(kept_.begin(), kept_.end(),
            [](const KeptPage& a, const KeptPage& b) { return a.page > b.page; });
  return scan;
}

// What is in a doomed page, a block or what a suspended sequence keeps, to a free one, if
// that can be now. Else a status, if nothing can move before the caller does something
// about it.
kvc_status Manager::MoveOne(PageId from, const KeptPage* kept, ResizeCall* call, kvc_error* error) {
  // A block is written when it is ready. What is kept may still be written by its
  // sequence's stream, which has been noted as a use.
  const FenceSetId written = kept != nullptr ? pages_[from].used : 0;
  // The engine copies what is there.
  if (page_bytes_ == 0 && !(fences_.Reached(pages_[from].ready) && fences_.Reached(written))) {
    return KVC_OK;
  }
  // What waits for the host to do something would make all later copies wait for it, too.
  FenceList filled;
  fences_.Collect(pages_[from].ready, 0, &filled);
  fences_.Collect(written, 0, &filled);
  bool held_back = false;
  filled.ForEach([&](const Fence& fence) {
    held_back = held_back || device_.IsStepStream(fence.slot) || device_.Withheld(fence);
  });
  if (held_back) return KVC_OK;
  fences_.Reserve(resize::kSets);
  CopyPlan plan;
  if (const kvc_status bad = PlanCopy(0, from, &plan, error); bad != KVC_OK) return bad;
  plan.move = true;
  if (hooks_.without == FenceSite::kMoveAfter) plan.after = {};
  if (plan.slot != 0 && hooks_.without != FenceSite::kMoveKeptAfter) {
    fences_.Collect(written, plan.slot, &plan.after);
  }
  if (!pages_.NextAreIntact(0, 1)) {
    throw Error(KVC_DEVICE_ERROR,
                "a page was written after it had been given up: a fence is missing in the host");
  }
  // From here on nothing throws.
  PageCopy copy{from, kNil, 0};
  uint32_t tokens = block_size_;
  if (kept != nullptr) {
    // The whole page: what has not been committed may be written already.
    copy.to = pages_.MoveLive(from);
    sequences_[kept->sequence].pages[kept->index] = copy.to;
  } else {
    const NodeId node = pages_[from].node;
    if (tree_.node(node).partial()) copy.tokens = tokens = tree_.count(node);
    copy.to = pages_.MoveCached(from);
    tree_.node(node).page = copy.to;
  }
  FenceList copied;
  MakeCopy(plan, 0, copy, &copied);
  copied.ForEach([&](const Fence& fence) { call->out->copied = FromFence(fence); });
  pages_.GiveUpMoved(from);
  if (call->moves != nullptr) {
    call->moves[call->out->moved_pages] = {copy.from, copy.to, tokens, 0};
  }
  ++call->out->moved_pages;
  ++counters_.moved_pages;
  return KVC_OK;
}

// Plans which blocks go, the least valuable of all first; at most so many, and any first
// ones of them can go without the others. With their fences.
void Manager::PlanEvictions(uint32_t most) {
  fences_.Reserve(size_t{2} * most);
  const uint32_t there = PlanVictims(most, 0, /*any=*/true);
  if (there < most && there != 0) (void)PlanVictims(there, 0, /*any=*/true);
}

// Returns the page that the block leaves.
PageId Manager::EvictPlanned(NodeId id, ResizeCall* call) {
  const PageId page = tree_.node(id).page;
  const kvc_evicted_reason reason = ReasonOf(page);
  if (call->evicted != nullptr) Describe(id, reason, call->evicted + call->out->evicted_blocks);
  ++call->out->evicted_blocks;
  if (reason == KVC_EVICTED_TTL) ++counters_.evicted_ttl_blocks;
  if (reason == KVC_EVICTED_ENDED) ++counters_.evicted_ended_blocks;
  if (!tree_.node(id).partial()) {
    ++counters_.evicted_blocks;
    if (scores_ != nullptr) scores_->Left(tree_.node(id).hash, pages_[page].score);
  }
  ForgetNode(id, reason);
  pages_.Evict(page);
  return page;
}

// Cached blocks, and what suspended sequences keep, leave doomed pages, the last ones first.
kvc_status Manager::ClearDoomed(ResizeCall* call, kvc_error* error) {
  const uint32_t total = pages_.total();
  if (resize_scan_ == kNil || resize_scan_ > total) resize_scan_ = total;
  const KeptScan kept_end = FindKept();
  uint32_t looks = resize::kLook;
  auto movable = static_cast<uint32_t>(kept_.size());
  size_t kept = 0;  // of those, the first that may be at or before the page
  PageId end = resize_scan_;
  PageId at = end;
  for (; looks != 0; --looks) {
    const PageId id = pages_.LastDoomed(at);
    if (id == kNil) {
      at = kNil;
      break;
    }
    at = id;
    const PageState state = pages_[id].state;
    while (kept < kept_.size() && kept_[kept].page > id) ++kept;
    const bool is_kept = kept < kept_.size() && kept_[kept].page == id;
    movable += state == PageState::kCached ? 1 : 0;
    call->out->held_pages += state == PageState::kLive && !is_kept ? 1 : 0;
  }
  // The engine could not be told what to copy.
  const bool untold = call->moves == nullptr && page_bytes_ != 0;
  const uint32_t most = untold ? UINT32_MAX : call->move_capacity;
  if (most == 0 || call->max_pages == 0) return KVC_OK;
  // First what has to go, so that it is not copied before: as many as find no room, now
  // or when fences have been reached.
  const auto short_by = [&] {
    const uint64_t room = uint64_t{pages_.free()} + pages_.StayingQuarantined();
    return movable > room ? static_cast<uint32_t>(movable - room) : 0;
  };
  const uint32_t told = call->evicted != nullptr ? call->evicted_capacity : UINT32_MAX;
  const auto may_go = [&] {
    return std::min(call->Budget(), told - std::min(told, call->out->evicted_blocks));
  };
  // A plan looks at all that stays for the time being, so it is for many at once: some
  // may go elsewhere and make no room here.
  for (uint32_t lack = short_by(); lack != 0 && may_go() != 0; lack = short_by()) {
    PlanEvictions(std::min(
        {std::clamp(lack, resize::kPlanned, resize::kMostPlanned), may_go(), pages_.cached()}));
    // From here on nothing throws.
    const bool any = !victims_.empty();
    for (size_t i = 0; i < victims_.size() && short_by() != 0; ++i) {
      const PageId page = EvictPlanned(victims_[i], call);
      if (pages_.doomed(page) && page < end && (at == kNil || page >= at)) --movable;
    }
    victims_.clear();
    FlushRemovals();
    if (!any) break;
  }
  const auto cached_below = [&](PageId id) {
    do id = pages_.LastDoomed(id);
    while (id != kNil && (at == kNil || id >= at) && pages_[id].state != PageState::kCached);
    return id != kNil && (at == kNil || id >= at) ? id : kNil;
  };
  kept = 0;
  bool room = true;
  for (PageId next = cached_below(end); next != kNil || kept < kept_.size();) {
    if (call->Budget() == 0 || call->out->moved_pages == most) return KVC_OK;
    const bool is_kept = next == kNil || (kept < kept_.size() && kept_[kept].page > next);
    const PageId id = is_kept ? kept_[kept].page : next;
    const uint32_t moved = call->out->moved_pages;
    room = room && pages_.free() != 0;
    if (room) {
      const kvc_status bad = MoveOne(id, is_kept ? &kept_[kept] : nullptr, call, error);
      if (bad != KVC_OK) return bad;
    }
    call->out->held_pages += call->out->moved_pages == moved ? 1 : 0;
    if (is_kept) {
      ++kept;
    } else {
      next = cached_below(id);
    }
  }
  if (!room) return KVC_OK;
  resize_scan_ = at;
  kept_scan_ = kept_end;
  return KVC_OK;
}

void Manager::TellResize(kvc_resize_result* out) const {
  out->target_pages = pages_.limit();
  out->total_pages = pages_.total();
  out->growing_pages = pages_.limit() > pages_.total() ? pages_.limit() - pages_.total() : 0;
  out->doomed_pages = pages_.CountDoomed();
  out->leaving_pages = pages_.leaving();
  out->done = resizing_ ? 0 : 1;
}

// Said once.
kvc_status Manager::GrowthFailed(kvc_resize_result* out, kvc_error* error) {
  growth_failed_ = false;
  TellResize(out);
  return sequences::Item(error, KVC_OUT_OF_MEMORY,
                         "the device had no memory for as many pages as were asked for; the "
                         "target has gone back to those that there are");
}

kvc_status Manager::Resize(uint32_t target, uint32_t max_pages, kvc_page_move* moves,
                           uint32_t move_capacity, kvc_evicted_block* evicted,
                           uint32_t evicted_capacity, kvc_resize_result* out, kvc_error* error) {
  *out = {};
  if (!pages_.elastic()) {
    throw Error(KVC_INVALID_ARGUMENT, "the pool is of a fixed size; set kvc_config.max_blocks");
  }
  if (target < min_pages_ || target > pages_.most()) {
    throw Error(KVC_INVALID_ARGUMENT, "target_pages is " + std::to_string(target) + ", must be " +
                                          std::to_string(min_pages_) + " to " +
                                          std::to_string(pages_.most()) +
                                          " (kvc_config.min_blocks, max_blocks)");
  }
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  ResizeCall call{max_pages, moves, move_capacity, evicted, evicted_capacity, out};
  try {
    Settle();
    if (growth_failed_ && target > pages_.total()) return GrowthFailed(out, error);
    growth_failed_ = false;
    if (target != pages_.limit()) Retarget(target);
    if (resizing_) {
      pages_.Poll();
      if (pages_.shared() != 0) pages_.PollShared();
      kvc_status moved = KVC_OK;
      if (pages_.limit() < pages_.total()) moved = ClearDoomed(&call, error);
      Settle();
      if (out->moved_pages + out->evicted_blocks != 0) ++changes_;
      // The device may have given up since the call began. `done` would be the last that
      // the caller asks for.
      if (growth_failed_ && target > pages_.total()) return GrowthFailed(out, error);
      if (moved != KVC_OK) {
        TellResize(out);
        return moved;
      }
    }
  } catch (...) {
    ++changes_;
    TellResize(out);
    throw;
  }
  TellResize(out);
  return KVC_OK;
}

}  // namespace kvcast
