// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Sets of fences, shared by the pages that one call gave up or published.
#ifndef KVCAST_NATIVE_SRC_FENCE_POOL_H_
#define KVCAST_NATIVE_SRC_FENCE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/device.h"
#include "native/src/fence_list.h"
#include "native/src/types.h"

namespace kvcast {

// A page may have to wait for kernels on several streams. One immutable,
// counted set serves all pages of a call; id 0 is the empty set. A set holds
// at most one fence per stream, in a chain of pieces of which nearly all sets
// need one. Used under the manager's lock.
//
// Making a set takes pieces. Callers that must not fail reserve first:
// Reserve(n) makes room for n sets made one after another, each of which may
// take the place of others that are released only then.
class FencePool {
 public:
  explicit FencePool(Device& device) : device_(device), pieces_(1) { pieces_.reserve(1024); }

  void Reserve(size_t sets);

  // These return a set with one reference for the caller. If they throw, the
  // sets that they would have consumed are as before.
  [[nodiscard]] FenceSetId Single(Fence fence);
  [[nodiscard]] FenceSetId Make(const FenceList& list);
  // Consumes a reference to `a` and one to `b`; drops what has been reached.
  [[nodiscard]] FenceSetId Merge(FenceSetId a, FenceSetId b);
  // Consumes a reference to `id`; drops what has been reached.
  [[nodiscard]] FenceSetId Prune(FenceSetId id);

  FenceSetId Retain(FenceSetId id) {
    if (id != 0) ++pieces_[id].refs;
    return id;
  }
  void Release(FenceSetId id) {
    if (id != 0 && --pieces_[id].refs == 0) Free(id);
  }

  // True if whoever works on `slot` may use the page: all fences have been
  // reached or are on that very stream. Slot 0, the host, needs all reached.
  [[nodiscard]] bool UsableBy(FenceSetId id, uint32_t slot) const {
    return id == 0 || AllUsableBy(id, slot);
  }
  [[nodiscard]] bool Reached(FenceSetId id) const { return UsableBy(id, 0); }
  // The one slot of a single fence, else 0; and its position.
  [[nodiscard]] uint32_t SingleSlot(FenceSetId id) const {
    const Piece& piece = pieces_[id];
    return piece.count == 1 && piece.next == 0 ? piece.fences[0].slot : 0;
  }
  [[nodiscard]] uint64_t FirstPosition(FenceSetId id) const {
    return pieces_[id].fences[0].position;
  }
  // Adds the fences that have not been reached, those of `own_slot` left out.
  void Collect(FenceSetId id, uint32_t own_slot, FenceList* list) const;
  template <typename Visit>
  void ForEach(FenceSetId id, Visit&& visit) const {
    for (; id != 0; id = pieces_[id].next) {
      for (uint32_t i = 0; i < pieces_[id].count; ++i) visit(pieces_[id].fences[i]);
    }
  }

  [[nodiscard]] uint32_t refs(FenceSetId id) const { return pieces_[id].refs; }
  [[nodiscard]] size_t live() const { return live_; }
  [[nodiscard]] size_t bytes() const { return pieces_.capacity() * sizeof(Piece); }

 private:
  static constexpr uint32_t kPerPiece = 4;
  struct Piece {
    uint32_t refs = 0;  // of the set; only its first piece counts
    uint32_t count = 0;
    FenceSetId next = 0;  // the rest of the set; while free: the next free piece
    uint32_t reserved = 0;
    Fence fences[kPerPiece];
  };
  // Pieces of the largest set of so many streams, and of the few that a call may add.
  [[nodiscard]] static size_t PiecesFor(uint32_t streams) {
    return (streams + kPerPiece - 1) / kPerPiece + 1;
  }
  FenceSetId TakePiece();
  void Free(FenceSetId id);
  [[nodiscard]] bool AllUsableBy(FenceSetId id, uint32_t slot) const;

  Device& device_;
  std::vector<Piece> pieces_;  // [0] is the empty set
  FenceSetId free_ = 0;
  size_t free_count_ = 0;
  size_t live_ = 0;    // sets
  uint64_t seen_ = 0;  // streams that Single has had a fence of, a bit for each slot
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_FENCE_POOL_H_
