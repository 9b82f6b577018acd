// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Points on device streams, at most one of each.
#ifndef KVCAST_NATIVE_SRC_FENCE_LIST_H_
#define KVCAST_NATIVE_SRC_FENCE_LIST_H_

#include <cstdint>

namespace kvcast {

// Slot 0 is the host itself: nothing is ever outstanding on it.
inline constexpr uint32_t kDeviceSlots = 64;

// A point on the device stream in a slot. Positions of a slot only grow, also
// over the streams that use it one after another, so a fence needs no life of
// its own: whoever keeps the two numbers can ask at any later time.
struct Fence {
  uint32_t slot = 0;
  uint64_t position = 0;
};

// The latest fence of each of some streams.
class FenceList {
 public:
  void Add(const Fence& fence) {
    const uint64_t bit = uint64_t{1} << fence.slot;
    if ((slots_ & bit) == 0 || position_[fence.slot] < fence.position) {
      position_[fence.slot] = fence.position;
    }
    slots_ |= bit;
  }
  [[nodiscard]] uint32_t size() const {
    return static_cast<uint32_t>(__builtin_popcountll(slots_));
  }
  // Calls visit(fence) in the order of slots.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (uint64_t rest = slots_; rest != 0; rest &= rest - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(rest));
      visit(Fence{slot, position_[slot]});
    }
  }

 private:
  uint64_t slots_ = 0;  // bit per slot in use
  uint64_t position_[kDeviceSlots];
};
static_assert(kDeviceSlots == 64, "a bit per slot");

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_FENCE_LIST_H_
