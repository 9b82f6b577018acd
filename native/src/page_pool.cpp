// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/page_pool.h"

#include <new>

namespace kvcast {

PagePool::PagePool(uint32_t count, Device& device, FencePool& fences)
    : total_(count),
      device_(device),
      fences_(fences),
      slab_(size_t{count} * sizeof(Page), "the page records (capacity_blocks)"),
      pages_(reinterpret_cast<Page*>(slab_.data())) {
  quarantined_last_.fill(kNil);
  for (PageId id = count; id-- > 0;) {
    new (&pages_[id]) Page;
    pages_[id].next = free_;  // page 0 comes out first
    free_ = id;
  }
  free_count_ = count;
}

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
  page.next = free_;
  free_ = id;
  ++free_count_;
  device_.EnterPool(id);
}

void PagePool::PollList(PageList& list, bool in_order) {
  for (PageId id = list.head; id != kNil;) {
    const PageId next = pages_[id].next;
    if (fences_.Reached(pages_[id].used)) {
      LeaveQuarantine(id);
      PushFree(id);
    } else if (in_order) {
      break;  // the later ones of the stream have not been reached either
    } else {
      // Of several streams one may be left: to that one the page is as good as free.
      pages_[id].used = fences_.Prune(pages_[id].used);
      if (fences_.SingleSlot(pages_[id].used) != 0) {
        LeaveQuarantine(id);
        Quarantine(id);
      }
    }
    id = next;
  }
}

void PagePool::Poll() {
  for (uint64_t rest = quarantine_slots_; rest != 0; rest &= rest - 1) {
    const auto slot = static_cast<uint32_t>(__builtin_ctzll(rest));
    PollList(quarantine_[slot], slot != 0);
  }
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
  PageId id = free_;
  for (uint32_t i = own; i < count; ++i, id = pages_[id].next) {
    intact = device_.Intact(id) && intact;
  }
  return intact;
}

void PagePool::Drop(PageId id, FenceSetId fence) {
  Page& page = pages_[id];
  if (fence != 0 && page.used != fence) page.used = fences_.Merge(page.used, fences_.Retain(fence));
  if (--page.holders != 0) return;
  --live_;
  if (page.node != kNil) {
    page.state = PageState::kCached;
    Append(evictable_, id);
  } else {
    GiveUp(id);
  }
}

void PagePool::Seize(PageId id) {
  Page& page = pages_[id];
  Unlink(evictable_, id);
  fences_.Release(page.ready);
  fences_.Release(page.used);
  page.ready = 0;
  page.used = 0;
  page.node = kNil;
  page.holders = 1;
  page.state = PageState::kLive;
  ++live_;
}

void PagePool::GiveUpCached(PageId id) {
  Unlink(evictable_, id);
  pages_[id].node = kNil;
  GiveUp(id);
}

// The page is on no list and has no holder.
void PagePool::GiveUp(PageId id) {
  Page& page = pages_[id];
  page.used = fences_.Prune(fences_.Merge(page.used, page.ready));
  page.ready = 0;
  if (fences_.Reached(page.used)) {
    PushFree(id);
    return;
  }
  Quarantine(id);
}

void PagePool::Quarantine(PageId id) {
  Page& page = pages_[id];
  const uint32_t slot = fences_.SingleSlot(page.used);
  PageList& list = quarantine_[slot];
  PageId before = list.tail;
  if (slot != 0) {
    const auto position = [this](PageId at) {
      return fences_.Get(pages_[at].used).fences[0].position;
    };
    const uint64_t mine = position(id);
    if (quarantined_last_[slot] != kNil) before = quarantined_last_[slot];
    while (before != kNil && position(before) > mine) before = pages_[before].prev;
    for (PageId next = before != kNil ? pages_[before].next : list.head;
         next != kNil && position(next) <= mine; next = pages_[next].next) {
      before = next;
    }
  }
  page.state = PageState::kQuarantined;
  page.quarantine = slot;
  InsertAfter(list, before, id);
  quarantined_last_[slot] = id;
  quarantine_slots_ |= uint64_t{1} << slot;
  ++quarantined_;
}

void PagePool::LeaveQuarantine(PageId id) {
  const uint32_t slot = pages_[id].quarantine;
  if (quarantined_last_[slot] == id) quarantined_last_[slot] = pages_[id].prev;
  Unlink(quarantine_[slot], id);
  if (quarantine_[slot].size == 0) quarantine_slots_ &= ~(uint64_t{1} << slot);
  --quarantined_;
}

}  // namespace kvcast
