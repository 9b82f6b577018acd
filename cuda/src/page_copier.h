// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies of pages and parts of pages, and what else our kernels do, on a stream.
#ifndef KVCAST_CUDA_SRC_PAGE_COPIER_H_
#define KVCAST_CUDA_SRC_PAGE_COPIER_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/src/copy_plan.h"
#include "cuda/src/kernel_image.h"
#include "cuda/src/pinned_ring.h"

namespace kvcast::cuda {

// One side of a copy of whole pages: page p is at base + p * stride. On the host
// that is pinned memory.
struct PageSide {
  uint64_t base = 0;
  uint64_t stride = 0;
};

struct CopyCounters {
  uint64_t pieces = 0;        // asked for
  uint64_t merged = 0;        // of those, joined to a neighbour
  uint64_t engine_calls = 0;  // single copies
  uint64_t batch_calls = 0;   // cuMemcpyBatchAsync
  uint64_t kernel_launches = 0;
  uint64_t dependent = 0;         // batches whose copies had to keep their order
  uint64_t without_table = 0;     // the engine's because the ring was full
  uint64_t refused_launches = 0;  // the engine's because the driver took no kernel
  uint64_t bytes = 0;
};

// Any thread; calls for one stream must not race if their order matters. All
// under a ContextScope. Everything is queued; only the driver may make the caller
// wait, when a stream's queue is full. Errors are thrown, and then a part of the
// copies may have been queued: the device's state is the caller's to give up.
// KVC_BAD_STATE, of a stream that is being captured: nothing has been queued, or of
// copies that do not depend on each other a part, which may be made again. So the
// same call is right when the capture has ended.
class PageCopier {
 public:
  PageCopier(const DeviceContext& context, const KernelImage& kernels, PinnedRing& ring,
             const CopyPolicy& policy);

  // pairs[i].from of one side to pairs[i].to of the other, `bytes` of each page.
  // stable_source: nobody writes the source between this call and the copy, so it
  // may be read at any time (copies from host memory gain by it; vLLM #39306 is
  // what happens when it is claimed of device memory).
  void CopyPages(StreamHandle stream, Direction direction, const PageSide& from, const PageSide& to,
                 uint64_t bytes, const kernels::PagePair* pairs, uint32_t count,
                 bool stable_source);
  // Parts of pages, of any size and alignment. Copies that depend on each other
  // are made in the order given.
  void CopyPieces(StreamHandle stream, Direction direction, const Piece* pieces, uint32_t count,
                  bool stable_source);
  // Writes `value` to each 8 bytes of pages. False, with nothing queued, when the
  // ring has no room for the list now; KVC_INVALID_ARGUMENT of a list that is longer
  // than the whole ring, for which it never has.
  [[nodiscard]] bool FillPages(StreamHandle stream, const PageSide& pool, uint64_t bytes,
                               uint64_t value, const uint32_t* pages, uint32_t count);
  // Writes entries of a block table of `rows` x `columns` int32 in device memory;
  // each (row, column) at most once, others outside the table are passed over.
  // False as above.
  [[nodiscard]] bool UpdateTable(StreamHandle stream, DevicePtr table, uint64_t row_stride,
                                 uint32_t rows, uint32_t columns,
                                 const kernels::TableEntry* entries, uint32_t count);

  void set_policy(const CopyPolicy& policy);
  [[nodiscard]] CopyPolicy policy() const;
  [[nodiscard]] CopyCounters counters() const;

 private:
  void RequireNotCapturing(StreamHandle stream) const;
  template <typename Body>
  void Whole(Body&& body);
  void Submit(StreamHandle stream, Direction direction, bool stable_source);
  [[nodiscard]] bool KernelLocked(StreamHandle stream);
  void EngineLocked(StreamHandle stream, Direction direction, bool stable_source, bool independent);
  void CopyOne(StreamHandle stream, Direction direction, const Piece& piece);

  const DeviceContext& context_;
  const KernelImage& kernels_;
  PinnedRing& ring_;
  mutable std::mutex mutex_;  // the working arrays below, and the counters
  CopyPolicy policy_;
  CopyCounters counters_;
  uint64_t queued_ = 0;   // by the call under way: copies and launches
  bool ordered_ = false;  // its copies depend on each other
  std::vector<Piece> pieces_;
  std::vector<Piece> scratch_;
  std::vector<DevicePtr> batch_to_;
  std::vector<DevicePtr> batch_from_;
  std::vector<size_t> batch_bytes_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_PAGE_COPIER_H_
