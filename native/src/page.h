// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The record of a page.
#ifndef KVCAST_NATIVE_SRC_PAGE_H_
#define KVCAST_NATIVE_SRC_PAGE_H_

#include <cstdint>

#include "native/src/types.h"

namespace kvcast {

enum class PageState : uint8_t {
  kFree,         // on the free stack
  kLive,         // held by at least one sequence or pin
  kCached,       // reusable, held by nobody: in the order of eviction
  kQuarantined,  // given up, guarded by fences not known to be reached
};

// What goes first when pages are short: class 0 are blocks whose conversation
// is over, then come the priorities 0 to 100.
inline constexpr uint32_t kMaxPriority = 100;
inline constexpr uint32_t kDefaultPriority = 35;
inline constexpr uint32_t kClasses = kMaxPriority + 2;
inline constexpr uint8_t kEndedClass = 0;
[[nodiscard]] constexpr uint8_t ClassOf(uint32_t priority) {
  return static_cast<uint8_t>(priority + 1);
}
[[nodiscard]] constexpr uint32_t PriorityOf(uint32_t class_) {
  return class_ == kEndedClass ? 0 : class_ - 1;
}
inline constexpr uint8_t kDefaultClass = ClassOf(kDefaultPriority);

struct Page {
  NodeId node = kNil;  // the block it belongs to; kNil: private to its holder
  uint32_t holders = 0;
  PageId prev = kNil;
  PageId next = kNil;
  FenceSetId ready = 0;  // when the KV values it holds have been written
  FenceSetId used = 0;   // when nobody who gave it up can still touch it
  PageState state = PageState::kFree;
  // A block's own class, and the one it is listed under: at least its own and
  // those of its children. A block goes after its children anyway, so the second
  // matters only in that it keeps blocks that cannot go out of the way of those
  // that can; it may be too high, but not for a block without children.
  uint8_t own = kDefaultClass;
  uint8_t listed = kDefaultClass;
  uint8_t marks = 0;  // bit 0: expired, the rest: reuses
  union {
    uint32_t quarantine;  // kQuarantined: the list it is on
    // A block's page: its score (recency_frequency.h); with plain recency the
    // request at which the page was let go.
    uint32_t score;
  };

  Page() : quarantine(0) {}

  // It had a higher priority once, for a time.
  [[nodiscard]] bool expired() const { return (marks & 1) != 0; }
  void SetExpired(bool value) { marks = static_cast<uint8_t>((marks & ~1) | (value ? 1 : 0)); }
  // How often the block was found, as far as 127.
  [[nodiscard]] uint32_t reuses() const { return marks >> 1; }
  void CountReuse() {
    const auto more = static_cast<uint8_t>(marks + 2);
    if (more > 1) marks = more;
  }
};
static_assert(sizeof(Page) == 32, "two pages to a cache line");

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PAGE_H_
