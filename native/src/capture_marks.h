// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which device streams are being captured into a graph, as the last looks found.
#ifndef KVCAST_NATIVE_SRC_CAPTURE_MARKS_H_
#define KVCAST_NATIVE_SRC_CAPTURE_MARKS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "native/src/fence_list.h"

namespace kvcast {

// Threads ask the device at their leisure and tell afterwards, so what one has to tell may
// be older than what another has told. What was found stays until somebody who began to
// ask later finds otherwise. Any thread; while nothing is captured a look is two loads.
class CaptureMarks {
 public:
  [[nodiscard]] bool Has(uint32_t slot) const {
    return (marks_.load(std::memory_order_relaxed) >> slot & 1) != 0;
  }
  // Before the device is asked; for End.
  [[nodiscard]] uint64_t Begin() const { return now_.load(std::memory_order_acquire); }
  // What the device has answered about the slots `asked` (a bit for each).
  void End(uint64_t begin, uint64_t asked, uint64_t found) {
    if (found == 0 && marks_.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t marks = marks_.load(std::memory_order_relaxed);
    uint64_t stale = 0;
    for (uint32_t slot = 0; slot < kDeviceSlots; ++slot) {
      const uint64_t bit = uint64_t{1} << slot;
      if ((found & bit) != 0) {
        found_at_[slot] = now_.fetch_add(1, std::memory_order_acq_rel) + 1;
      } else if ((asked & marks & bit) != 0 && found_at_[slot] <= begin) {
        stale |= bit;
      }
    }
    marks_.store((marks & ~stale) | found, std::memory_order_relaxed);
  }
  // The slot has another stream.
  void Clear(uint32_t slot) {
    if (!Has(slot)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    marks_.fetch_and(~(uint64_t{1} << slot), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> marks_{0};
  std::atomic<uint64_t> now_{0};  // grows with each finding
  std::mutex mutex_;              // of those who change marks_
  std::array<uint64_t, kDeviceSlots> found_at_{};
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_CAPTURE_MARKS_H_
