// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A set of pages, of which the lowest is found in a few steps.
#ifndef KVCAST_NATIVE_SRC_PAGE_BITS_H_
#define KVCAST_NATIVE_SRC_PAGE_BITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/types.h"

namespace kvcast {

// A bit per page, a bit per word that is not 0, and so on up: five levels are enough
// for 2^30 pages. Ranges are handled word by word: a million pages take some 10 us.
class PageBits {
 public:
  PageBits() = default;
  explicit PageBits(uint32_t pages) {
    for (size_t count = pages; levels_.empty() || count > 1;) {
      count = (count + 63) / 64;
      levels_.emplace_back(count, 0);
    }
  }

  [[nodiscard]] bool Has(PageId id) const { return (levels_[0][id / 64] >> id % 64 & 1) != 0; }
  void Add(PageId id) {
    for (auto& level : levels_) {
      uint64_t& word = level[id / 64];
      const bool known = word != 0;
      word |= uint64_t{1} << id % 64;
      if (known) return;
      id /= 64;
    }
  }
  void Remove(PageId id) {
    for (auto& level : levels_) {
      uint64_t& word = level[id / 64];
      word &= ~(uint64_t{1} << id % 64);
      if (word != 0) return;
      id /= 64;
    }
  }
  // The lowest page; there must be one.
  [[nodiscard]] PageId First() const {
    PageId at = 0;
    for (size_t i = levels_.size(); i-- > 0;) {
      at = at * 64 + static_cast<uint32_t>(__builtin_ctzll(levels_[i][at]));
    }
    return at;
  }
  // The lowest page from `from` on, or kNil.
  [[nodiscard]] PageId Next(PageId from) const {
    size_t up = 0;
    for (; up < levels_.size(); ++up, from = from / 64 + 1) {
      if (from / 64 >= levels_[up].size()) return kNil;
      const uint64_t rest = levels_[up][from / 64] & ~uint64_t{0} << from % 64;
      if (rest == 0) continue;
      PageId at = from / 64 * 64 + static_cast<uint32_t>(__builtin_ctzll(rest));
      while (up-- > 0) at = at * 64 + static_cast<uint32_t>(__builtin_ctzll(levels_[up][at]));
      return at;
    }
    return kNil;
  }
  // The highest page of [first, end) that is not in the set, or kNil.
  [[nodiscard]] PageId LastAbsent(PageId first, PageId end) const {
    while (end > first) {
      const PageId word = (end - 1) / 64;
      uint64_t absent = ~levels_[0][word];
      if (end % 64 != 0) absent &= (uint64_t{1} << end % 64) - 1;
      if (absent != 0) {
        const PageId at = word * 64 + 63 - static_cast<uint32_t>(__builtin_clzll(absent));
        return at >= first ? at : kNil;
      }
      end = word * 64;
    }
    return kNil;
  }
  [[nodiscard]] uint32_t Count(PageId first, PageId end) const {
    uint32_t count = 0;
    ForWords(first, end, [&](PageId word, uint64_t mask) {
      count += static_cast<uint32_t>(__builtin_popcountll(levels_[0][word] & mask));
    });
    return count;
  }
  // Moves the pages of [first, end) that are in the set into another one of the same
  // size. Returns how many there were.
  uint32_t MoveTo(PageBits* other, PageId first, PageId end) {
    uint32_t count = 0;
    ForWords(first, end, [&](PageId word, uint64_t mask) {
      const uint64_t moving = levels_[0][word] & mask;
      if (moving == 0) return;
      count += static_cast<uint32_t>(__builtin_popcountll(moving));
      // Through one of them, so that the levels above are right.
      const PageId one = word * 64 + static_cast<uint32_t>(__builtin_ctzll(moving));
      levels_[0][word] &= ~moving | uint64_t{1} << one % 64;
      Remove(one);
      other->Add(one);
      other->levels_[0][word] |= moving;
    });
    return count;
  }
  void AddRange(PageId first, PageId end) {
    ForWords(first, end, [&](PageId word, uint64_t mask) {
      Add(word * 64 + static_cast<uint32_t>(__builtin_ctzll(mask)));
      levels_[0][word] |= mask;
    });
  }

  [[nodiscard]] size_t bytes() const {
    size_t words = 0;
    for (const auto& level : levels_) words += level.capacity();
    return words * sizeof(uint64_t);
  }

 private:
  template <typename Visit>
  static void ForWords(PageId first, PageId end, Visit&& visit) {
    while (first < end) {
      const PageId word = first / 64;
      const PageId next = end / 64 > word ? (word + 1) * 64 : end;
      uint64_t mask = ~uint64_t{0} << first % 64;
      if (next % 64 != 0) mask &= (uint64_t{1} << next % 64) - 1;
      visit(word, mask);
      first = next;
    }
  }

  std::vector<std::vector<uint64_t>> levels_;  // [0]: the pages
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PAGE_BITS_H_
