// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/fence_pool.h"

namespace kvcast {

void FencePool::Reserve(size_t sets) {
  // Each fence came by Single once, so nothing but these streams is in a set, and mostly
  // there is room for all of them: then the device need not be asked which are busy.
  const size_t room = free_count_ + (pieces_.capacity() - pieces_.size());
  if (room >= sets * PiecesFor(static_cast<uint32_t>(__builtin_popcountll(seen_)))) return;
  const size_t wanted = sets * PiecesFor(device_.BusyStreams());
  if (free_count_ >= wanted) return;
  const size_t needed = pieces_.size() + (wanted - free_count_);
  if (needed > pieces_.capacity()) pieces_.reserve(needed + pieces_.capacity());
}

FenceSetId FencePool::TakePiece() {
  if (free_ != 0) {
    const FenceSetId id = free_;
    free_ = pieces_[id].next;
    --free_count_;
    pieces_[id] = Piece{};
    return id;
  }
  pieces_.emplace_back();
  return static_cast<FenceSetId>(pieces_.size() - 1);
}

FenceSetId FencePool::Single(Fence fence) {
  if (fence.slot == 0 || fence.position == 0) return 0;
  const FenceSetId id = TakePiece();
  seen_ |= uint64_t{1} << fence.slot;
  pieces_[id].refs = 1;
  pieces_[id].count = 1;
  pieces_[id].fences[0] = fence;
  ++live_;
  return id;
}

FenceSetId FencePool::Make(const FenceList& list) {
  if (list.size() == 0) return 0;
  // All pieces first: taking one may throw.
  FenceSetId first = 0;
  try {
    for (uint32_t have = 0; have < list.size(); have += kPerPiece) {
      const FenceSetId piece = TakePiece();
      pieces_[piece].next = first;
      first = piece;
    }
  } catch (...) {
    while (first != 0) {
      const FenceSetId rest = pieces_[first].next;
      pieces_[first].next = free_;
      free_ = first;
      ++free_count_;
      first = rest;
    }
    throw;
  }
  FenceSetId at = first;
  list.ForEach([&](const Fence& fence) {
    if (pieces_[at].count == kPerPiece) at = pieces_[at].next;
    pieces_[at].fences[pieces_[at].count++] = fence;
  });
  pieces_[first].refs = 1;
  ++live_;
  return first;
}

FenceSetId FencePool::Merge(FenceSetId a, FenceSetId b) {
  if (a == b || a == 0 || b == 0) {
    if (a == b) Release(b);
    return a == 0 ? b : a;
  }
  // The common case: a later fence of the same stream takes the older one's place.
  const uint32_t slot = SingleSlot(a);
  if (slot != 0 && slot == SingleSlot(b)) {
    const bool a_later = FirstPosition(a) >= FirstPosition(b);
    Release(a_later ? b : a);
    return a_later ? a : b;
  }
  FenceList list;
  Collect(a, 0, &list);
  Collect(b, 0, &list);
  const FenceSetId merged = Make(list);
  Release(a);
  Release(b);
  return merged;
}

FenceSetId FencePool::Prune(FenceSetId id) {
  if (id == 0) return 0;
  FenceList list;
  Collect(id, 0, &list);
  uint32_t count = 0;
  for (FenceSetId piece = id; piece != 0; piece = pieces_[piece].next) {
    count += pieces_[piece].count;
  }
  if (list.size() == count) return id;
  // Others may share the set, so it is not changed in place.
  const FenceSetId pruned = Make(list);
  Release(id);
  return pruned;
}

// The set's last reference is gone.
void FencePool::Free(FenceSetId id) {
  --live_;
  while (id != 0) {
    const FenceSetId rest = pieces_[id].next;
    pieces_[id].next = free_;
    free_ = id;
    ++free_count_;
    id = rest;
  }
}

bool FencePool::AllUsableBy(FenceSetId id, uint32_t slot) const {
  bool usable = true;
  ForEach(id, [&](const Fence& fence) {
    usable = usable && (fence.slot == slot || device_.Reached(fence.slot, fence.position));
  });
  return usable;
}

void FencePool::Collect(FenceSetId id, uint32_t own_slot, FenceList* list) const {
  ForEach(id, [&](const Fence& fence) {
    if (fence.slot != own_slot && !device_.Reached(fence.slot, fence.position)) list->Add(fence);
  });
}

}  // namespace kvcast
