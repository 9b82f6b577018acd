// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/page_pool.h"

#include <algorithm>
#include <new>

namespace kvcast {

PagePool::PagePool(uint32_t count, uint32_t most, bool scored, Device& device, FencePool& fences)
    : total_(count),
      most_(most != 0 ? most : count),
      elastic_(most != 0),
      limit_(count),
      device_(device),
      fences_(fences),
      slab_(size_t{most_} * sizeof(Page), "the page records (capacity_blocks, max_blocks)"),
      pages_(reinterpret_cast<Page*>(slab_.data())),
      order_(pages_, scored ? EvictionOrder::kScoreBuckets : 1),
      stamps_(scored ? most_ : 0) {
  quarantined_last_.fill(kNil);
  free_count_ = count;
  if (elastic_) {
    for (PageId id = 0; id < most; ++id) new (&pages_[id]) Page;
    free_set_ = PageBits(most);
    free_set_.AddRange(0, count);
    out_ = PageBits(most);
    out_.AddRange(count, most);
    rejoin_ = count;
    return;
  }
  for (PageId id = count; id-- > 0;) {
    new (&pages_[id]) Page;
    pages_[id].next = free_;  // page 0 comes out first
    free_ = id;
  }
}

void PagePool::Retarget(uint32_t limit) {
  const uint32_t before = limit_;
  entering_.clear();
  entering_.reserve(quarantined_);
  // From here on nothing throws.
  limit_ = limit;
  rejoin_ = std::min(rejoin_, limit);
  if (limit < before) {
    const uint32_t gone = free_set_.MoveTo(&out_, limit, std::min(before, total_));
    free_count_ -= gone;
    leaving_ += gone;
  }
  for (PageList& list : quarantine_) {
    for (PageId id = list.head; id != kNil;) {
      const PageId next = pages_[id].next;
      if (ShouldSwitch(id)) {
        const uint32_t slot = fences_.SingleSlot(pages_[id].used);
        LeaveQuarantine(id);
        entering_.push_back({slot != 0 ? fences_.FirstPosition(pages_[id].used) : 0, slot, id});
      }
      id = next;
    }
  }
  QuarantineInOrder();
}

void PagePool::SetTotal(uint32_t total) {
  leaving_ = leaving_ + total - total_;
  total_ = total;
  const uint32_t end = std::min(limit_, total_);
  if (rejoin_ >= end) return;
  const uint32_t back = out_.MoveTo(&free_set_, rejoin_, end);
  leaving_ -= back;
  free_count_ += back;
  rejoin_ = end;
}

PageId PagePool::MoveCached(PageId from) {
  const PageId to = free_set_.First();
  free_set_.Remove(to);
  --free_count_;
  Page& old = pages_[from];
  Page& page = pages_[to];
  page.node = old.node;
  page.holders = 0;
  page.state = PageState::kCached;
  page.own = old.own;
  page.listed = old.listed;
  page.marks = old.marks;
  page.score = old.score;
  if (!stamps_.empty()) stamps_[to] = stamps_[from];
  order_.Replace(from, to);
  old.node = kNil;
  return to;
}

PageId PagePool::MoveLive(PageId from) {
  const PageId to = free_set_.First();
  free_set_.Remove(to);
  --free_count_;
  Page& old = pages_[from];
  Page& page = pages_[to];
  page.node = kNil;
  page.holders = old.holders;
  page.state = PageState::kLive;
  page.own = old.own;
  page.listed = old.listed;
  page.marks = old.marks;
  page.score = old.score;
  old.holders = 0;
  return to;
}

template <bool kStamps>
PagePool::Held PagePool::HoldPages(const PageId* ids, size_t count) {
  Page* const pages = pages_;
  Held held{count, false};
  FenceSetId ready = 0;
  uint32_t left = 0, counted = 0, stamp = 0;
  // Pages that were let go together are counted together.
  const auto count_idle = [&] {
    ages_.idle_at_reuse[Ages::Slot(request_ - stamp)] += left - counted;
    counted = left;
  };
  for (size_t i = 0; i < count;) {
    Page* page = &pages[ids[i]];
    if (page->holders != 0) {
      page->CountReuse();
      ++page->holders;
      ready |= page->ready;
      ++i;
      continue;
    }
    // A path that was let go as a whole stands in the order as a whole, its last
    // block first, and leaves it at once.
    const Page* const first = page;
    for (;;) {
      page->CountReuse();
      page->holders = 1;
      page->state = PageState::kLive;
      ready |= page->ready;
      const uint32_t mine = kStamps ? stamps_[ids[i]] : page->score;
      if (mine != stamp) {
        count_idle();
        stamp = mine;
      }
      ++left;
      if (page->own == kEndedClass) held.revived = std::min(held.revived, i);
      if (++i == count || page->prev != ids[i]) break;
      page = &pages[ids[i]];
    }
    order_.Leave(*page, *first);
  }
  count_idle();
  order_.Left(left);
  live_ += left;
  for (size_t i = held.revived; i < count; ++i) {
    Page& page = pages[ids[i]];
    if (page.own != kEndedClass) continue;
    page.own = kDefaultClass;
    page.listed = std::max(page.listed, kDefaultClass);
  }
  held.ready = ready != 0;
  return held;
}

template PagePool::Held PagePool::HoldPages<false>(const PageId* ids, size_t count);
template PagePool::Held PagePool::HoldPages<true>(const PageId* ids, size_t count);

void PagePool::Append(PageList& list, PageId id) { InsertAfter(list, list.tail, id); }

// `before` is kNil for the first place.
void PagePool::InsertAfter(PageList& list, PageId before, PageId id) {
  Page& page = pages_[id];
  page.prev = before;
  page.next = before != kNil ? pages_[before].next : list.head;
  (page.prev != kNil ? pages_[page.prev].next : list.head) = id;
  (page.next != kNil ? pages_[page.next].prev : list.tail) = id;
  ++list.size;
}

void PagePool::Unlink(PageList& list, PageId id) {
  const Page& page = pages_[id];
  (page.prev != kNil ? pages_[page.prev].next : list.head) = page.next;
  (page.next != kNil ? pages_[page.next].prev : list.tail) = page.prev;
  --list.size;
}

void PagePool::PushFree(PageId id) {
  Page& page = pages_[id];
  fences_.Release(page.used);
  page.used = 0;
  page.state = PageState::kFree;
  if (!elastic_) {
    page.next = free_;
    free_ = id;
    ++free_count_;
  } else if (doomed(id)) {
    out_.Add(id);
    ++leaving_;
  } else {
    free_set_.Add(id);
    ++free_count_;
  }
  device_.EnterPool(id);
}

void PagePool::PollLists(uint64_t slots, uint32_t first) {
  for (uint64_t rest = slots & ~uint64_t{1}; rest != 0; rest &= rest - 1) {
    const PageList& list = quarantine_[first + static_cast<uint32_t>(__builtin_ctzll(rest))];
    while (list.head != kNil && fences_.Reached(pages_[list.head].used)) {
      const PageId id = list.head;
      LeaveQuarantine(id);
      PushFree(id);
    }
  }
}

void PagePool::Poll() {
  PollLists(quarantine_slots_[0], 0);
  if (quarantine_slots_[1] != 0) PollLists(quarantine_slots_[1], kDeviceSlots);
}

void PagePool::PollShared() {
  entering_.clear();
  entering_.reserve(shared());
  fences_.Reserve(size_t{shared()} + 2);
  // From here on nothing throws.
  PollSharedList(&quarantine_[0]);
  PollSharedList(&quarantine_[kDeviceSlots]);
  QuarantineInOrder();
}

void PagePool::PollSharedList(PageList* list) {
  for (PageId id = list->head; id != kNil;) {
    Page& page = pages_[id];
    const PageId next = page.next;
    page.used = fences_.Prune(page.used);
    if (page.used == 0) {
      LeaveQuarantine(id);
      PushFree(id);
    } else if (const uint32_t slot = fences_.SingleSlot(page.used); slot != 0) {
      // To the one stream that is left the page is as good as free.
      LeaveQuarantine(id);
      entering_.push_back({fences_.FirstPosition(page.used), slot, id});
    }
    id = next;
  }
}

void PagePool::QuarantineInOrder() {
  std::sort(entering_.begin(), entering_.end(), [](const Entering& a, const Entering& b) {
    if (a.slot != b.slot) return a.slot < b.slot;
    return a.position != b.position ? a.position < b.position : a.page < b.page;
  });
  for (const Entering& entry : entering_) Quarantine(entry.page);
  entering_.clear();
}

PageId PagePool::Take(uint32_t slot) {
  PageId id = kNil;
  const PageList& own = quarantine_[slot];
  if (slot != 0 && own.size != 0) {
    // Oldest first. Its fence is on the taker's stream, where later work runs
    // later; the taker's own fence will stand in for it when it lets go.
    id = own.head;
    LeaveQuarantine(id);
    fences_.Release(pages_[id].used);
    pages_[id].used = 0;
  } else if (elastic_) {
    id = free_set_.First();
    free_set_.Remove(id);
    --free_count_;
  } else {
    id = free_;
    free_ = pages_[id].next;
    --free_count_;
  }
  pages_[id].state = PageState::kLive;
  pages_[id].holders = 1;
  ++live_;
  return id;
}

bool PagePool::NextAreIntact(uint32_t slot, uint32_t count) {
  if (!device_.poisons()) return true;
  // Pages of the own quarantine come first and may still be written.
  const uint32_t own = slot == 0 ? 0 : quarantine_[slot].size;
  bool intact = true;
  PageId id = FirstFree();
  for (uint32_t i = own; i < count; ++i, id = NextFree(id)) {
    intact = device_.Intact(id) && intact;
  }
  return intact;
}

void PagePool::DropPath(const PageId* ids, size_t count, FenceSetId fence) {
  EvictionOrder::Joining joining(&order_);
  const bool scores = !stamps_.empty();
  uint32_t dropped = 0;
  for (size_t i = count; i-- > 0;) {
    if (i >= kAhead) __builtin_prefetch(&pages_[ids[i - kAhead]], 1);
    const PageId id = ids[i];
    Page& page = pages_[id];
    AddUse(id, fence);
    if (--page.holders != 0) continue;
    ++dropped;
    if (page.node == kNil) {
      GiveUp(id);
      continue;
    }
    page.state = PageState::kCached;
    (scores ? stamps_[id] : page.score) = request_;
    joining.Add(id);
  }
  live_ -= dropped;
}

void PagePool::GiveUpCached(size_t more) {
  PrepareToGiveUp(order_.size(), more);
  while (order_.size() != 0) GiveUpBlock(order_.First());
  DoneGivingUp();
}

void PagePool::PrepareToGiveUp(size_t pages, size_t more) {
  entering_.clear();
  entering_.reserve(pages);
  // In the worst case each page needs a set of its own.
  fences_.Reserve(pages + more + 2);
}

void PagePool::GiveUpBlock(PageId id) {
  Page& page = pages_[id];
  order_.Leave(id);
  page.node = kNil;
  page.used = fences_.Prune(fences_.Merge(page.used, page.ready));
  page.ready = 0;
  if (page.used == 0) {
    PushFree(id);
  } else {
    const uint32_t slot = fences_.SingleSlot(page.used);
    entering_.push_back({slot != 0 ? fences_.FirstPosition(page.used) : 0, slot, id});
  }
}

// The page is on no list and has no holder.
void PagePool::GiveUp(PageId id) {
  Page& page = pages_[id];
  page.used = fences_.Prune(fences_.Merge(page.used, page.ready));
  page.ready = 0;
  if (page.used == 0) {
    PushFree(id);
  } else {
    Quarantine(id);
  }
}

void PagePool::Quarantine(PageId id) {
  Page& page = pages_[id];
  const uint32_t slot = fences_.SingleSlot(page.used);
  const bool gone = doomed(id);
  const uint32_t at = slot + (gone ? kDeviceSlots : 0);
  PageList& list = quarantine_[at];
  PageId before = list.tail;
  if (slot != 0) {
    const auto position = [this](PageId of) { return fences_.FirstPosition(pages_[of].used); };
    const uint64_t mine = position(id);
    if (quarantined_last_[at] != kNil) before = quarantined_last_[at];
    while (before != kNil && position(before) > mine) before = pages_[before].prev;
    for (PageId next = before != kNil ? pages_[before].next : list.head;
         next != kNil && position(next) <= mine; next = pages_[next].next) {
      before = next;
    }
  }
  page.state = PageState::kQuarantined;
  page.quarantine = at;
  InsertAfter(list, before, id);
  quarantined_last_[at] = id;
  quarantine_slots_[gone ? 1 : 0] |= uint64_t{1} << slot;
  if (gone) ++doomed_quarantined_;
  ++quarantined_;
  peak_quarantined_ = std::max(peak_quarantined_, quarantined_);
}

void PagePool::LeaveQuarantine(PageId id) {
  const uint32_t at = pages_[id].quarantine;
  const bool gone = at >= kDeviceSlots;
  if (quarantined_last_[at] == id) quarantined_last_[at] = pages_[id].prev;
  Unlink(quarantine_[at], id);
  if (quarantine_[at].size == 0) {
    quarantine_slots_[gone ? 1 : 0] &= ~(uint64_t{1} << (gone ? at - kDeviceSlots : at));
  }
  if (gone) --doomed_quarantined_;
  --quarantined_;
}

}  // namespace kvcast
