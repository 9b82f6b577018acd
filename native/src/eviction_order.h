// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The order in which cached pages are evicted.
#ifndef KVCAST_NATIVE_SRC_EVICTION_ORDER_H_
#define KVCAST_NATIVE_SRC_EVICTION_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "native/src/page.h"

namespace kvcast {

// A list per class, least recently used first, and a bit per list that is not
// empty: joining, leaving and finding the next list take a few steps, however
// many pages there are. Lists have keys, which grow in the order of eviction.
//
// Children stand before their parents: whoever holds a block holds those before
// it, lets them go last block first, and a block is listed under no lower class
// than its children.
class EvictionOrder {
 public:
  explicit EvictionOrder(Page* pages) : pages_(pages) {}

  [[nodiscard]] uint32_t size() const { return size_; }

  // To the end of the list of page.listed.
  void Join(PageId id) {
    Page& page = pages_[id];
    List& list = lists_[KeyOf(page.listed)];
    page.prev = list.tail;
    page.next = kNil;
    if (list.tail != kNil) {
      pages_[list.tail].next = id;
    } else {
      list.head = id;
      words_[page.listed / 64] |= uint64_t{1} << page.listed % 64;
    }
    list.tail = id;
    ++size_;
  }
  void Leave(PageId id) {
    const Page& page = pages_[id];
    List& list = lists_[KeyOf(page.listed)];
    (page.prev != kNil ? pages_[page.prev].next : list.head) = page.next;
    (page.next != kNil ? pages_[page.next].prev : list.tail) = page.prev;
    if (list.head == kNil) words_[page.listed / 64] &= ~(uint64_t{1} << page.listed % 64);
    --size_;
  }

  // The key of the list that a page of this class belongs to.
  [[nodiscard]] uint32_t KeyOf(uint32_t class_) const { return class_; }
  // The first list at or after `key` that is not empty, or kNil.
  [[nodiscard]] uint32_t NextKey(uint32_t key) const {
    for (uint32_t word = key / 64; word < kWords; ++word, key = word * 64) {
      const uint64_t rest = words_[word] & (~uint64_t{0} << key % 64);
      if (rest != 0) return word * 64 + static_cast<uint32_t>(__builtin_ctzll(rest));
    }
    return kNil;
  }
  // Within a list the pages follow one another through Page::next.
  [[nodiscard]] PageId Head(uint32_t key) const { return lists_[key].head; }
  [[nodiscard]] PageId Tail(uint32_t key) const { return lists_[key].tail; }

  // The whole order, for those who do not mind how long it takes.
  [[nodiscard]] PageId First() const {
    const uint32_t key = NextKey(0);
    return key == kNil ? kNil : Head(key);
  }
  [[nodiscard]] PageId After(PageId id) const {
    if (pages_[id].next != kNil) return pages_[id].next;
    const uint32_t key = NextKey(KeyOf(pages_[id].listed) + 1);
    return key == kNil ? kNil : Head(key);
  }

 private:
  struct List {
    PageId head = kNil;
    PageId tail = kNil;
  };
  static constexpr uint32_t kWords = (kClasses + 63) / 64;

  Page* pages_;
  uint32_t size_ = 0;
  uint64_t words_[kWords] = {};
  List lists_[kClasses];
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_EVICTION_ORDER_H_
