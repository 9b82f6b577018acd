// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Pins: paths that stay although no sequence holds them.
#ifndef KVCAST_NATIVE_SRC_PIN_TABLE_H_
#define KVCAST_NATIVE_SRC_PIN_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "native/src/slab.h"
#include "native/src/types.h"

namespace kvcast {

// A pin is a chain of entries, one for each page, taken from an arena that is as
// large as pins may ever be together; a page that is pinned twice has two. The
// first entry is the pin's name and carries its generation.
class PinTable {
 public:
  explicit PinTable(uint32_t capacity)
      : capacity_(capacity),
        slab_(size_t{capacity} * sizeof(Entry), "the pins (max_pinned_pages)"),
        entries_(reinterpret_cast<Entry*>(slab_.data())) {
    for (uint32_t i = capacity; i-- > 0;) {
      entries_[i] = {kNil, free_, 1, 0};
      free_ = i;
    }
  }

  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  [[nodiscard]] uint32_t pages() const { return pages_; }
  [[nodiscard]] uint32_t pins() const { return pins_; }
  [[nodiscard]] size_t bytes() const { return slab_.size(); }

  // At least one page, and no more than there is room for.
  uint64_t Add(const PageId* pages, uint32_t count) {
    const uint32_t first = free_;
    uint32_t last = kNil;
    for (uint32_t i = 0; i < count; ++i) {
      last = free_;
      entries_[last].page = pages[i];
      free_ = entries_[last].next;
    }
    entries_[last].next = kNil;
    entries_[first].count = count;
    pages_ += count;
    ++pins_;
    return uint64_t{entries_[first].generation} << 32 | first;
  }
  // How many pages a pin has; 0 if there is no such pin.
  [[nodiscard]] uint32_t Count(uint64_t pin) const {
    const auto first = static_cast<uint32_t>(pin);
    if (first >= capacity_ || entries_[first].generation != static_cast<uint32_t>(pin >> 32)) {
      return 0;
    }
    return entries_[first].count;
  }
  // Writes the pages of a pin that is there, in order, and ends it.
  void Remove(uint64_t pin, PageId* pages) {
    const auto first = static_cast<uint32_t>(pin);
    Entry& head = entries_[first];
    uint32_t last = first;
    for (uint32_t at = first; at != kNil; at = entries_[at].next) {
      *pages++ = entries_[at].page;
      last = at;
    }
    entries_[last].next = free_;
    free_ = first;
    pages_ -= head.count;
    --pins_;
    head.count = 0;
    head.generation = head.generation == UINT32_MAX ? 1 : head.generation + 1;
  }
  // For Check.
  template <typename Visit>
  void ForEachPage(Visit&& visit) const {
    for (uint32_t first = 0; first < capacity_; ++first) {
      if (entries_[first].count == 0) continue;
      for (uint32_t at = first; at != kNil; at = entries_[at].next) visit(entries_[at].page);
    }
  }
  [[nodiscard]] uint32_t CountFree() const {
    uint32_t count = 0;
    for (uint32_t at = free_; at != kNil && count <= capacity_; at = entries_[at].next) ++count;
    return count;
  }

 private:
  friend struct ManagerPeer;  // tests that break invariants on purpose

  struct Entry {
    PageId page;
    uint32_t next;  // of the pin, or free
    uint32_t generation;
    uint32_t count;  // first entry of a pin: its pages; else 0
  };

  uint32_t capacity_;
  uint32_t pages_ = 0;
  uint32_t pins_ = 0;
  uint32_t free_ = kNil;
  Slab slab_;
  Entry* entries_;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PIN_TABLE_H_
