// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Pages: who holds them, which fences guard them, which may be evicted.
#ifndef KVCAST_NATIVE_SRC_PAGE_POOL_H_
#define KVCAST_NATIVE_SRC_PAGE_POOL_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/device.h"
#include "native/src/eviction_order.h"
#include "native/src/fence_pool.h"
#include "native/src/page.h"
#include "native/src/page_bits.h"
#include "native/src/slab.h"
#include "native/src/types.h"

namespace kvcast {

// A doubly linked list through Page::prev and Page::next.
struct PageList {
  PageId head = kNil;
  PageId tail = kNil;
  uint32_t size = 0;
};

// Page records, the free pages, the quarantine and the order of eviction. Each page
// is in exactly one state, so live + cached + free + quarantined == total.
// Used under the manager's lock; never allocates after construction, but for Retarget.
//
// An elastic pool has records for more pages than there are. Those from its limit
// on are *doomed*: nobody is given one any more, and who gives one up withdraws it. A
// withdrawn page counts as leaving until the device has taken its memory back, so
// live + cached + free + quarantined + leaving == total. Free pages are a set there and
// not a stack, so that the lowest go first and withdrawing many is cheap.
class PagePool {
 public:
  // Ages in requests, and reuses, by powers of two: slot 0 is none, slot k is
  // 2^(k-1) to 2^k - 1.
  struct Ages {
    static constexpr uint32_t kSlots = 32;
    // One more, for values of 32 bits: the last two are told as one.
    uint64_t idle_at_reuse[kSlots + 1] = {};
    uint64_t idle_at_eviction[kSlots + 1] = {};
    uint64_t reuses_at_eviction[kSlots + 1] = {};

    [[nodiscard]] static uint32_t Slot(uint32_t value) {
      return 63 - static_cast<uint32_t>(__builtin_clzll(uint64_t{value} << 1 | 1));
    }
  };

  // `scored`: pages have scores (recency_frequency.h). `most` is 0, or the pool is
  // elastic and may grow to so many.
  PagePool(uint32_t count, uint32_t most, bool scored, Device& device, FencePool& fences);

  // Pages with memory: their ids are below this.
  [[nodiscard]] uint32_t total() const { return total_; }
  [[nodiscard]] uint32_t most() const { return most_; }
  [[nodiscard]] bool elastic() const { return elastic_; }
  // Pages from here on are doomed. More than total() while the pool grows.
  [[nodiscard]] uint32_t limit() const { return limit_; }
  [[nodiscard]] bool doomed(PageId id) const { return id >= limit_; }
  [[nodiscard]] uint32_t leaving() const { return leaving_; }
  // Doomed pages that have not been withdrawn: live, cached or quarantined.
  [[nodiscard]] uint32_t CountDoomed() const {
    return limit_ < total_ ? total_ - limit_ - out_.Count(limit_, total_) : 0;
  }
  // The highest of those below `end`, or kNil.
  [[nodiscard]] PageId LastDoomed(PageId end) const {
    return limit_ < end ? out_.LastAbsent(limit_, end) : kNil;
  }
  [[nodiscard]] bool IsOut(PageId id) const { return elastic_ && out_.Has(id); }
  // What one sequence could have in the end.
  [[nodiscard]] uint32_t Reachable() const { return std::max(limit_, total_ - leaving_); }

  // Moves the limit: free pages from there on are withdrawn. Those that were withdrawn
  // and are doomed no longer come back by SetTotal. Throws before the first change.
  // Looks at each quarantined page.
  void Retarget(uint32_t limit);
  // There is memory for so many pages: those below the limit that were withdrawn, or are
  // new, become free. No page from there on is anything but withdrawn.
  void SetTotal(uint32_t total);
  // What had been hoped for does not come.
  void LimitToTotal() { limit_ = total_; }
  // The block of a cached page goes to the lowest free page, there must be one, and
  // keeps its place in the order of eviction. The page that it leaves is nobody's until
  // GiveUpMoved, which needs a set of fences.
  [[nodiscard]] PageId MoveCached(PageId from);
  void GiveUpMoved(PageId id) { GiveUp(id); }
  // The same for a live page of one holder and no block.
  [[nodiscard]] PageId MoveLive(PageId from);

  [[nodiscard]] uint32_t live() const { return live_; }
  [[nodiscard]] uint32_t cached() const { return order_.size(); }
  [[nodiscard]] uint32_t free() const { return free_count_; }
  [[nodiscard]] uint32_t quarantined() const { return quarantined_; }
  [[nodiscard]] Page& operator[](PageId id) { return pages_[id]; }
  [[nodiscard]] const Page& operator[](PageId id) const { return pages_[id]; }
  [[nodiscard]] size_t bytes() const {
    return slab_.size() + order_.bytes() + stamps_.capacity() * sizeof(uint32_t) + sizeof ages_ +
           free_set_.bytes() + out_.bytes();
  }
  [[nodiscard]] uint32_t peak_quarantined() const { return peak_quarantined_; }
  [[nodiscard]] const Ages& ages() const { return ages_; }

  // The number of the request that is being served: what pages are aged by.
  void SetRequest(uint64_t request) { request_ = static_cast<uint32_t>(request); }
  // With scores: that of a first use now.
  void SetScoreNow(uint32_t score) { order_.Advance(score); }

  // Moves quarantined pages whose fences have been reached to the free pages;
  // looks at the head of each stream's list, so it costs next to nothing.
  void Poll();
  // The same for pages that several streams still use, all of which it has to
  // look at; those of which one stream is left go to that stream's list. May
  // throw for want of memory, with nothing lost.
  void PollShared();
  // Pages that work on `slot` may take without evicting anything.
  [[nodiscard]] uint32_t Available(uint32_t slot) const {
    return free_count_ + (slot == 0 ? 0 : quarantine_[slot].size);
  }
  // Takes one of those; the caller is its only holder.
  [[nodiscard]] PageId Take(uint32_t slot);
  // False if one of the next `count` pages that Take would give was written
  // after it had been given up.
  [[nodiscard]] bool NextAreIntact(uint32_t slot, uint32_t count);

  // One more holder; a cached page leaves the order of eviction. True if its
  // conversation was over and goes on: the block has the default priority now,
  // and the blocks before it must be listed accordingly.
  [[nodiscard]] bool Hold(PageId id) { return HoldPath(&id, 1).revived == 0; }
  struct Held {
    size_t revived;  // the first of those for which Hold would have returned true
    bool ready;      // one of them has a fence that says when it is ready
  };
  // The same for many pages of one path, first block first.
  Held HoldPath(const PageId* ids, size_t count) {
    return stamps_.empty() ? HoldPages<false>(ids, count) : HoldPages<true>(ids, count);
  }
  // The block was listed for the sake of children that are gone now.
  void ListUnderOwn(PageId id) {
    Page& page = pages_[id];
    if (page.listed == page.own) return;
    if (page.state == PageState::kCached) order_.Leave(id);
    page.listed = page.own;
    if (page.state == PageState::kCached) order_.Join(id);
  }
  // One more holder of a live page.
  void Share(PageId id) { ++pages_[id].holders; }
  // One holder less, whose last use ends at `fence` (a reference is taken).
  // The last one leaves a block's page cached, as the most recently used of its
  // class, and gives any other page up.
  void Drop(PageId id, FenceSetId fence) { DropPath(&id, 1, fence); }
  // The same for many pages of one path, last block first.
  void DropPath(const PageId* ids, size_t count, FenceSetId fence);
  // The page stays, but work until `fence` uses it (a reference is taken).
  void AddUse(PageId id, FenceSetId fence) {
    Page& page = pages_[id];
    if (fence != 0 && page.used != fence) {
      page.used = fences_.Merge(page.used, fences_.Retain(fence));
    }
  }
  // What the page holds is there when `fence` has been reached too (a reference
  // is taken).
  void AddReady(PageId id, FenceSetId fence) {
    Page& page = pages_[id];
    if (fence != 0 && page.ready != fence) {
      page.ready = fences_.Merge(page.ready, fences_.Retain(fence));
    }
  }
  // A cached page loses its block and goes to whoever works on `slot`, who
  // must be allowed to use it: it becomes live at once.
  void Seize(PageId id) {
    Page& page = pages_[id];
    order_.Leave(id);
    NoteEviction(id);
    fences_.Release(page.ready);
    fences_.Release(page.used);
    page.ready = 0;
    page.used = 0;
    page.node = kNil;
    page.holders = 1;
    page.state = PageState::kLive;
    ++live_;
  }
  // All cached pages lose their blocks and are given up. Throws before the first
  // change, or not at all.
  // Leaves room for `more` sets of fences to be made at once afterwards.
  void GiveUpCached(size_t more);
  // The same for so many single pages: PrepareToGiveUp, GiveUpBlock for each of
  // them, and then DoneGivingUp. Only the first may throw.
  void PrepareToGiveUp(size_t pages, size_t more);
  void GiveUpBlock(PageId id);
  void DoneGivingUp() { QuarantineInOrder(); }
  // The same because room is short.
  void Evict(PageId id) {
    NoteEviction(id);
    Discard(id);
  }
  // A cached page loses its block and is given up; needs a set of fences.
  void Discard(PageId id) {
    order_.Leave(id);
    pages_[id].node = kNil;
    GiveUp(id);
  }
  // The page becomes a new block's.
  void Found(PageId id, NodeId node) {
    Page& page = pages_[id];
    page.node = node;
    page.own = page.listed = kDefaultClass;
    page.marks = 0;
  }

  // True if a cached page could be seized for `slot` now.
  [[nodiscard]] bool UsableBy(const Page& page, uint32_t slot) const {
    return fences_.UsableBy(page.ready, slot) && fences_.UsableBy(page.used, slot);
  }
  [[nodiscard]] const EvictionOrder& order() const { return order_; }
  // List 0 is of pages that several streams still use, the others of a slot's; as many
  // follow for doomed pages.
  static constexpr uint32_t kQuarantines = 2 * kDeviceSlots;
  [[nodiscard]] const PageList& quarantine(uint32_t list) const { return quarantine_[list]; }
  // Pages that are left of those on list 0, which Poll does not look at.
  [[nodiscard]] uint32_t shared() const {
    return quarantine_[0].size + quarantine_[kDeviceSlots].size;
  }
  // Quarantined pages that can be had later.
  [[nodiscard]] uint32_t StayingQuarantined() const { return quarantined_ - doomed_quarantined_; }
  // The free pages, one after the other; kNil ends them.
  [[nodiscard]] PageId FirstFree() const {
    return elastic_ ? (free_count_ != 0 ? free_set_.First() : kNil) : free_;
  }
  [[nodiscard]] PageId NextFree(PageId id) const {
    return elastic_ ? free_set_.Next(id + 1) : pages_[id].next;
  }

 private:
  friend struct ManagerPeer;  // tests that break invariants on purpose

  static constexpr size_t kAhead = 8;  // pages that are fetched before they are dropped

  template <bool kStamps>
  Held HoldPages(const PageId* ids, size_t count);
  void Append(PageList& list, PageId id);
  void InsertAfter(PageList& list, PageId before, PageId id);
  void Unlink(PageList& list, PageId id);
  void Quarantine(PageId id);
  void LeaveQuarantine(PageId id);
  [[nodiscard]] bool ShouldSwitch(PageId id) const {
    return doomed(id) != (pages_[id].quarantine >= kDeviceSlots);
  }
  void PollLists(uint64_t slots, uint32_t first);
  void PollSharedList(PageList* list);
  void GiveUp(PageId id);
  // When a page was let go.
  [[nodiscard]] uint32_t& Stamp(PageId id) {
    return stamps_.empty() ? pages_[id].score : stamps_[id];
  }
  void NoteEviction(PageId id) {
    ++ages_.idle_at_eviction[Ages::Slot(request_ - Stamp(id))];
    ++ages_.reuses_at_eviction[Ages::Slot(pages_[id].reuses())];
  }
  void PushFree(PageId id);
  void QuarantineInOrder();

  uint32_t total_;
  const uint32_t most_;
  const bool elastic_;
  uint32_t limit_;
  uint32_t leaving_ = 0;
  uint32_t live_ = 0;
  uint32_t free_count_ = 0;
  uint32_t quarantined_ = 0;
  uint32_t doomed_quarantined_ = 0;
  PageId free_ = kNil;   // stack through Page::next, if not elastic
  PageBits free_set_;    // else this
  PageBits out_;         // of all that could be: withdrawn, or without memory
  uint32_t rejoin_ = 0;  // no page below this is out
  // A list for each stream, in the order of its fences.
  std::array<PageList, kQuarantines> quarantine_;
  // Where the last page went in: the next one's place is near it. Mostly that
  // is the tail; a reset gives up pages with older fences, in their order.
  std::array<PageId, kQuarantines> quarantined_last_;
  uint64_t quarantine_slots_[2] = {};  // bit per non-empty list
  // Pages on their way into quarantine, to be sorted first: going in one by one
  // in any order would cost a walk each.
  struct Entering {
    uint64_t position;
    uint32_t slot;
    PageId page;
  };
  std::vector<Entering> entering_;
  Device& device_;
  FencePool& fences_;
  Slab slab_;
  Page* pages_;
  EvictionOrder order_;
  uint32_t request_ = 0;
  uint32_t peak_quarantined_ = 0;
  std::vector<uint32_t> stamps_;  // if a page's record has its score instead
  Ages ages_;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PAGE_POOL_H_
