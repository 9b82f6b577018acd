// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Sets of fences, shared by the pages that one call gave up or published.
#ifndef KVCAST_NATIVE_SRC_FENCE_POOL_H_
#define KVCAST_NATIVE_SRC_FENCE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/device.h"
#include "native/src/types.h"

namespace kvcast {

// A page may have to wait for kernels on several streams. One immutable,
// counted set serves all pages of a call; id 0 is the empty set. A set holds
// at most one fence per stream and at most kMax; more are joined on the
// device into one. Used under the manager's lock.
class FencePool {
 public:
  static constexpr uint32_t kMax = 4;
  struct Set {
    uint32_t refs = 0;
    uint32_t count = 0;  // while free: id of the next free set
    Fence fences[kMax];
  };

  explicit FencePool(Device& device) : device_(device), sets_(1) { sets_.reserve(1024); }

  // Makes sure that the next `count` new sets need no allocation.
  void Reserve(size_t count);

  // All of these return a set with one reference for the caller.
  [[nodiscard]] FenceSetId Single(Fence fence);
  // Consumes a reference to `a` and one to `b`; drops what has been reached.
  [[nodiscard]] FenceSetId Merge(FenceSetId a, FenceSetId b);
  // Consumes a reference to `id`; drops what has been reached.
  [[nodiscard]] FenceSetId Prune(FenceSetId id);

  FenceSetId Retain(FenceSetId id) {
    if (id != 0) ++sets_[id].refs;
    return id;
  }
  void Release(FenceSetId id);

  [[nodiscard]] bool Reached(FenceSetId id) const;
  // True if whoever works on `slot` may use the page: all fences have been
  // reached or are on that very stream.
  [[nodiscard]] bool UsableBy(FenceSetId id, uint32_t slot) const;
  // The one slot of a single fence, else 0.
  [[nodiscard]] uint32_t SingleSlot(FenceSetId id) const {
    return id != 0 && sets_[id].count == 1 ? sets_[id].fences[0].slot : 0;
  }
  [[nodiscard]] const Set& Get(FenceSetId id) const { return sets_[id]; }
  [[nodiscard]] size_t live() const { return live_; }
  [[nodiscard]] size_t bytes() const { return sets_.capacity() * sizeof(Set); }

 private:
  FenceSetId Take();

  Device& device_;
  std::vector<Set> sets_;  // [0] is the empty set
  FenceSetId free_ = 0;
  size_t free_count_ = 0;
  size_t live_ = 0;
};

// Gathers the fences that one result has to name: the latest of each stream.
class WaitList {
 public:
  explicit WaitList(Device& device) : device_(device) {}
  void Add(const FencePool::Set& set, uint32_t own_slot);
  // Up to FencePool::kMax fences; more are joined on the device into one.
  [[nodiscard]] uint32_t Finish(Fence out[FencePool::kMax]);

 private:
  Device& device_;
  uint64_t slots_ = 0;  // bit per slot in use
  uint64_t position_[kDeviceSlots];
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_FENCE_POOL_H_
