// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The order in which cached pages are evicted.
#ifndef KVCAST_NATIVE_SRC_EVICTION_ORDER_H_
#define KVCAST_NATIVE_SRC_EVICTION_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/page.h"

namespace kvcast {

// Lists of pages, one for each class, or one for each class and range of scores
// (recency_frequency.h); within a list the least recently used page comes first.
// A bit per list that is not empty, and bits over those bits, make joining,
// leaving and finding the next list take a few steps, however many pages there
// are. Lists have keys, which grow in the order of eviction.
//
// Children stand before their parents: whoever holds a block holds those before
// it, lets them go last block first, and a block is listed under no lower class
// than its children, and has no lower score.
class EvictionOrder {
 public:
  // Scores are in parts of 1/128 of a halving of worth; a list takes 8 of them.
  static constexpr uint32_t kBucketShift = 3;
  // Enough for 32 halvings, told apart by 1/16 of one.
  static constexpr uint32_t kScoreBuckets = 512;

  // `buckets`, a power of two: ranges of scores that are told apart; 1 is none.
  EvictionOrder(Page* pages, uint32_t buckets)
      : pages_(pages),
        buckets_(buckets),
        mask_(buckets - 1),
        lists_(size_t{kClasses} * buckets),
        words_((lists_.size() + 63) / 64),
        words_of_words_((words_.size() + 63) / 64) {}

  [[nodiscard]] uint32_t size() const { return size_; }

  // To the end of its list.
  void Join(PageId id) {
    Page& page = pages_[id];
    const uint32_t at = ListOf(page);
    List& list = lists_[at];
    page.prev = list.tail;
    page.next = kNil;
    if (list.tail != kNil) {
      pages_[list.tail].next = id;
    } else {
      list.head = id;
      Mark(at);
    }
    list.tail = id;
    ++size_;
  }
  // To the ends of their lists, in the order added: those that follow each other into
  // one list are linked to each other first, and to the list when the next list begins,
  // or at the end of all. Until then nobody else uses the order.
  class Joining {
   public:
    explicit Joining(EvictionOrder* order) : order_(*order) {}
    ~Joining() { Link(); }
    Joining(const Joining&) = delete;
    Joining& operator=(const Joining&) = delete;

    void Add(PageId id) {
      Page& page = order_.pages_[id];
      const uint32_t at = order_.ListOf(page);
      if (at == at_) {
        page.prev = last_;
        order_.pages_[last_].next = id;
      } else {
        Link();
        at_ = at;
        first_ = id;
      }
      last_ = id;
      ++count_;
    }

   private:
    void Link() {
      if (count_ == 0) return;
      List& list = order_.lists_[at_];
      order_.pages_[first_].prev = list.tail;
      order_.pages_[last_].next = kNil;
      if (list.tail != kNil) {
        order_.pages_[list.tail].next = first_;
      } else {
        list.head = first_;
        order_.Mark(at_);
      }
      list.tail = last_;
      order_.size_ += count_;
      count_ = 0;
    }

    EvictionOrder& order_;
    uint32_t at_ = kNil;  // of lists_
    PageId first_ = kNil;
    PageId last_ = kNil;
    uint32_t count_ = 0;
  };
  void Leave(PageId id) {
    Leave(pages_[id], pages_[id]);
    Left(1);
  }
  // The same for pages that follow one another; how many is told to Left.
  void Leave(const Page& first, const Page& last) {
    if (first.prev != kNil && last.next != kNil) {
      // In the middle, as nearly always: the list need not be known.
      pages_[first.prev].next = last.next;
      pages_[last.next].prev = first.prev;
      return;
    }
    const uint32_t at = ListOf(first);
    List& list = lists_[at];
    (first.prev != kNil ? pages_[first.prev].next : list.head) = last.next;
    (last.next != kNil ? pages_[last.next].prev : list.tail) = first.prev;
    if (list.head == kNil) Unmark(at);
  }
  void Left(uint32_t count) { size_ -= count; }
  // `to`, with the class and score of `from`, takes its place.
  void Replace(PageId from, PageId to) {
    const Page& old = pages_[from];
    pages_[to].prev = old.prev;
    pages_[to].next = old.next;
    List& list = lists_[ListOf(old)];
    (old.prev != kNil ? pages_[old.prev].next : list.head) = to;
    (old.next != kNil ? pages_[old.next].prev : list.tail) = to;
  }
  // The score that a page would have now for the first use of its life. What is
  // far below it is told apart no longer.
  void Advance(uint32_t score);

  // The key of the list for a class and a score.
  [[nodiscard]] uint32_t KeyOf(uint32_t class_, uint32_t score) const {
    return class_ * buckets_ + (Bucket(score) - base_);
  }
  // The first list at or after `key` that is not empty, or kNil.
  [[nodiscard]] uint32_t NextKey(uint32_t key) const;
  // Within a list the pages follow one another through Page::next.
  [[nodiscard]] PageId Head(uint32_t key) const { return lists_[AtKey(key)].head; }
  [[nodiscard]] PageId Tail(uint32_t key) const { return lists_[AtKey(key)].tail; }

  // The whole order, for those who do not mind how long it takes.
  [[nodiscard]] PageId First() const {
    const uint32_t key = NextKey(0);
    return key == kNil ? kNil : Head(key);
  }

  [[nodiscard]] size_t bytes() const {
    return lists_.capacity() * sizeof(List) +
           (words_.capacity() + words_of_words_.capacity()) * sizeof(uint64_t);
  }

 private:
  struct List {
    PageId head = kNil;
    PageId tail = kNil;
  };

  // Buckets are a ring: base_ is the lowest, and takes whatever is lower.
  [[nodiscard]] uint32_t Bucket(uint32_t score) const {
    return buckets_ == 1 ? 0 : std::clamp(score >> kBucketShift, base_, base_ + mask_);
  }
  [[nodiscard]] uint32_t ListOf(const Page& page) const {
    return page.listed * buckets_ + (Bucket(page.score) & mask_);
  }
  [[nodiscard]] uint32_t AtKey(uint32_t key) const {
    return (key & ~mask_) | ((key + base_) & mask_);
  }
  void Mark(uint32_t at) {
    words_[at / 64] |= uint64_t{1} << at % 64;
    words_of_words_[at / 4096] |= uint64_t{1} << at / 64 % 64;
  }
  void Unmark(uint32_t at) {
    words_[at / 64] &= ~(uint64_t{1} << at % 64);
    if (words_[at / 64] == 0) words_of_words_[at / 4096] &= ~(uint64_t{1} << at / 64 % 64);
  }
  // The first list in [from, to) that is not empty, or kNil.
  [[nodiscard]] uint32_t Find(uint32_t from, uint32_t to) const;

  Page* pages_;
  uint32_t buckets_;
  uint32_t mask_;
  uint32_t base_ = 0;
  uint32_t size_ = 0;
  std::vector<List> lists_;
  std::vector<uint64_t> words_;           // bit per list
  std::vector<uint64_t> words_of_words_;  // bit per word that is not 0
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_EVICTION_ORDER_H_
