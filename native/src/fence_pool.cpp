// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/fence_pool.h"

namespace kvcast {

void FencePool::Reserve(size_t count) {
  if (free_count_ >= count) return;
  const size_t needed = sets_.size() + (count - free_count_);
  if (needed > sets_.capacity()) sets_.reserve(needed + sets_.capacity());
}

FenceSetId FencePool::Take() {
  ++live_;
  if (free_ != 0) {
    const FenceSetId id = free_;
    free_ = sets_[id].count;
    --free_count_;
    sets_[id].count = 0;
    sets_[id].refs = 1;
    return id;
  }
  sets_.emplace_back();
  sets_.back().refs = 1;
  return static_cast<FenceSetId>(sets_.size() - 1);
}

FenceSetId FencePool::Single(Fence fence) {
  if (fence.slot == 0 || fence.position == 0) return 0;
  const FenceSetId id = Take();
  sets_[id].count = 1;
  sets_[id].fences[0] = fence;
  return id;
}

FenceSetId FencePool::Merge(FenceSetId a, FenceSetId b) {
  if (a == b || a == 0 || b == 0) {
    if (a == b) Release(b);
    return a == 0 ? b : a;
  }
  // The common case: a later fence of the same stream takes the older one's place.
  const uint32_t slot = SingleSlot(a);
  if (slot != 0 && slot == SingleSlot(b)) {
    const bool a_later = sets_[a].fences[0].position >= sets_[b].fences[0].position;
    Release(a_later ? b : a);
    return a_later ? a : b;
  }
  WaitList list(device_);
  list.Add(sets_[a], 0);
  list.Add(sets_[b], 0);
  Release(a);
  Release(b);
  Fence fences[kMax];
  const uint32_t count = list.Finish(fences);
  if (count == 0) return 0;
  const FenceSetId id = Take();
  sets_[id].count = count;
  for (uint32_t i = 0; i < count; ++i) sets_[id].fences[i] = fences[i];
  return id;
}

FenceSetId FencePool::Prune(FenceSetId id) {
  Fence waiting[kMax];
  uint32_t count = 0;
  for (uint32_t i = 0; i < sets_[id].count; ++i) {
    const Fence fence = sets_[id].fences[i];
    if (!device_.Reached(fence.slot, fence.position)) waiting[count++] = fence;
  }
  if (id == 0 || count == sets_[id].count) return id;
  // Others may share the set, so it is not changed in place.
  const FenceSetId pruned = count == 0 ? 0 : Take();
  for (uint32_t i = 0; i < count; ++i) sets_[pruned].fences[i] = waiting[i];
  if (count != 0) sets_[pruned].count = count;
  Release(id);
  return pruned;
}

void FencePool::Release(FenceSetId id) {
  if (id == 0 || --sets_[id].refs != 0) return;
  sets_[id].count = free_;
  free_ = id;
  ++free_count_;
  --live_;
}

bool FencePool::Reached(FenceSetId id) const { return UsableBy(id, 0); }

bool FencePool::UsableBy(FenceSetId id, uint32_t slot) const {
  if (id == 0) return true;
  const Set& set = sets_[id];
  for (uint32_t i = 0; i < set.count; ++i) {
    const Fence& fence = set.fences[i];
    if (fence.slot != slot && !device_.Reached(fence.slot, fence.position)) return false;
  }
  return true;
}

void WaitList::Add(const FencePool::Set& set, uint32_t own_slot) {
  for (uint32_t i = 0; i < set.count; ++i) {
    const Fence& fence = set.fences[i];
    if (fence.slot == own_slot || device_.Reached(fence.slot, fence.position)) continue;
    const uint64_t bit = uint64_t{1} << fence.slot;
    if ((slots_ & bit) == 0 || position_[fence.slot] < fence.position) {
      position_[fence.slot] = fence.position;
    }
    slots_ |= bit;
  }
}

uint32_t WaitList::Finish(Fence out[FencePool::kMax]) {
  uint32_t count = 0;
  if (__builtin_popcountll(slots_) <= static_cast<int>(FencePool::kMax)) {
    for (uint64_t rest = slots_; rest != 0; rest &= rest - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(rest));
      out[count++] = {slot, position_[slot]};
    }
    return count;
  }
  for (uint64_t rest = slots_; rest != 0; rest &= rest - 1) {
    const auto slot = static_cast<uint32_t>(__builtin_ctzll(rest));
    if (slot != kJoinSlot) device_.Wait(kJoinSlot, {slot, position_[slot]});
  }
  const uint64_t position = device_.Record(kJoinSlot);
  if (position == 0) return 0;
  out[0] = {kJoinSlot, position};
  return 1;
}

}  // namespace kvcast
