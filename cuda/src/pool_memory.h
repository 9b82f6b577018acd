// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The memory of a page pool on a GPU: one range of addresses that never moves,
// backed by chunks of physical memory, the tail of which can grow and shrink. Without an
// elastic tail, or where the device cannot map memory chunk by chunk, one plain allocation.
#ifndef KVCAST_CUDA_SRC_POOL_MEMORY_H_
#define KVCAST_CUDA_SRC_POOL_MEMORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "cuda/src/context.h"

namespace kvcast::cuda {

struct PoolSize {
  uint64_t bytes = 0;      // backed from the start, never given up
  uint64_t max_bytes = 0;  // reserved; more than `bytes` asks for an elastic tail
  // Physical chunks kept ready for growing, so that growing creates none.
  uint32_t reserve_chunks = 0;
  // Backed from the start, `bytes` to `max_bytes`, what is beyond `bytes` as the tail is;
  // less than `bytes` stands for these.
  uint64_t first_bytes = 0;
};

// Creating a chunk takes hundreds of microseconds (kvcached on an A100: mean 193,
// p99 381), giving access 36, unmapping 26. So: the base part has few, large
// chunks; one call gives access to all that there is at first; 2 MiB chunks are only in the
// tail; growing takes chunks from a reserve that FillReserve creates beforehand.
//
// Grow, Collect and FillReserve call the driver: not for the scheduler's
// thread. Any thread, at any time; bytes() is exact when none of them runs.
class PoolMemory {
 public:
  // Throws Error: KVC_OUT_OF_MEMORY as the driver says, for want of the reserve too. On a
  // device without virtual memory management an elastic pool is one plain allocation of
  // first_bytes, which is its limit(): it neither grows nor shrinks.
  PoolMemory(const DeviceContext& context, const PoolSize& size);
  // Nothing may use the memory any more.
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  [[nodiscard]] const DeviceContext& context() const { return context_; }
  [[nodiscard]] DevicePtr base() const { return base_; }
  // Backed and accessible from base() on.
  [[nodiscard]] uint64_t bytes() const;
  // The same and what has been given up, but is still mapped.
  [[nodiscard]] uint64_t mapped_bytes() const;
  // Where bytes() can grow to: max_bytes, rounded up to whole chunks.
  [[nodiscard]] uint64_t limit() const { return base_bytes_ + tail_limit_; }
  [[nodiscard]] bool mapped() const { return mapped_; }  // else a plain allocation
  [[nodiscard]] uint64_t base_chunk() const { return base_chunk_; }
  [[nodiscard]] uint64_t tail_chunk() const { return tail_chunk_; }
  [[nodiscard]] uint32_t reserve() const;
  // Given up, but not back with the driver: what is still mapped, and chunks beyond the reserve.
  [[nodiscard]] uint64_t given_up_bytes() const;
  // Chunks that have been given up but wait for their fences.
  [[nodiscard]] uint32_t leaving() const;

  // Creates chunks until the reserve is full again or stop() says so, which is asked before
  // each. Throws when the driver has no more; what was created stays.
  void FillReserve(const std::function<bool()>& stop = [] { return false; });
  // Backs at least `bytes` from base() on, with chunks of the reserve. False, with
  // nothing changed, when the reserve has too few, chunks below the new end are
  // still leaving, or the limit is less. Throws when the driver refuses; a chunk that it does
  // not let go of again is given up, for the next Collect.
  [[nodiscard]] bool Grow(uint64_t bytes);
  // Gives up whole chunks from `bytes` on (rounded up), never of the base part.
  // They stay mapped until a Collect finds that `reached` is true: all that still
  // reads or writes there has run. Returns the new bytes().
  uint64_t Shrink(uint64_t bytes, std::function<bool()> reached);
  // Unmaps what has been given up and is no longer used, until stop() says so, which is
  // asked before each chunk; the chunks go to the reserve, beyond its size back to the
  // driver. Returns how many were unmapped. Throws when the driver refuses to unmap one, it
  // and the rest stay mapped and given up, or, at the end, to take one back: the next Collect
  // tries again.
  uint32_t Collect(const std::function<bool()>& stop = [] { return false; });
  // Up to `bytes` (rounded up), takes back what has been given up, is no longer used and
  // has not been unmapped yet. Makes no driver call. Returns the new bytes().
  uint64_t TakeBack(uint64_t bytes);

 private:
  struct Leaving {
    uint64_t from;  // bytes from base()
    uint64_t to;
    std::function<bool()> reached;
  };

  void MapFirst(uint64_t bytes);
  void Unwind() noexcept;
  [[nodiscard]] Result TrimReserve();
  [[nodiscard]] MemHandle CreateChunk(uint64_t bytes) const;
  [[nodiscard]] uint64_t TailFor(uint64_t bytes) const;
  void GiveAccess(uint64_t from, uint64_t bytes) const;

  const DeviceContext& context_;
  bool mapped_ = false;
  DevicePtr base_ = 0;
  uint64_t reserved_ = 0;
  uint64_t base_chunk_ = 0;
  uint64_t base_bytes_ = 0;
  uint64_t tail_chunk_ = 0;
  uint64_t tail_limit_ = 0;
  uint32_t reserve_target_ = 0;

  mutable std::mutex mutex_;
  uint64_t base_mapped_ = 0;     // how far MapFirst came
  std::vector<MemHandle> tail_;  // mapped, the leaving ones included
  uint64_t tail_bytes_ = 0;      // accessible and not given up
  std::vector<MemHandle> reserve_;
  std::deque<Leaving> leaving_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_POOL_MEMORY_H_
