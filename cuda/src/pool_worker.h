// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Grows and shrinks a pool's memory on a thread of its own.
#ifndef KVCAST_CUDA_SRC_POOL_WORKER_H_
#define KVCAST_CUDA_SRC_POOL_WORKER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/src/pool_memory.h"
#include "native/src/device.h"

namespace kvcast::cuda {

// Mapping and unmapping take tens of microseconds a chunk, creating hundreds: none of it
// happens on a scheduler's thread. A request that comes while another one is being worked on
// takes its place at the next chunk that is created, mapped or unmapped, and gets what is
// still mapped. Ask, backing and mapped_bytes: any thread, at
// once; the thread holds their lock only to take up a request and to tell of it.
class PoolWorker {
 public:
  // `memory` outlives the worker and has the first `pages` pages already.
  PoolWorker(PoolMemory& memory, uint64_t page_bytes, uint32_t pages);
  // Waits for the chunk that is being created, mapped or unmapped.
  ~PoolWorker();
  PoolWorker(const PoolWorker&) = delete;
  PoolWorker& operator=(const PoolWorker&) = delete;

  // As Device::AskForPages.
  void Ask(uint64_t request, uint32_t pages);
  [[nodiscard]] Backing backing() const;
  // What is still mapped, though given up, included.
  [[nodiscard]] uint64_t mapped_bytes() const { return mapped_bytes_; }
  // What has been given up, and the driver has refused to unmap or to take back.
  [[nodiscard]] uint64_t unreturned_bytes() const { return unreturned_bytes_; }
  // Any thread, at once: has the thread unmap what the driver has refused to, if anything.
  void RetryUnmapping() {
    if (unreturned_bytes_.load(std::memory_order_acquire) != 0) Retry();
  }

 private:
  // Takes from the reserve and fills it, chunk by chunk, until there are `bytes` or
  // stop() says so; false if the driver has no more memory.
  template <typename Stop>
  static bool GrowTo(PoolMemory& memory, uint64_t bytes, Stop&& stop);
  void Run();
  void WorkOff();
  bool WorkOne();
  void Serve(uint64_t request, uint32_t pages);
  void Tell(uint64_t request, uint32_t pages, bool done, bool failed);
  void Retry();
  void Unmap(uint64_t request);

  // What a forked child must leave alone, as the thread is not there: it is given up there.
  struct Shared {
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::thread thread;
  };

  PoolMemory& memory_;
  const uint64_t page_bytes_;
  std::unique_ptr<Shared> shared_;
  std::atomic<uint64_t> newest_{0};  // request
  uint32_t wanted_ = 0;              // under the mutex, like the rest
  bool ends_ = false;
  bool retry_ = false;
  Backing backing_;
  uint64_t served_ = 0;  // the thread's own: the request taken up last
  std::atomic<uint64_t> mapped_bytes_;
  std::atomic<uint64_t> unreturned_bytes_{0};
};

template <typename Stop>
bool PoolWorker::GrowTo(PoolMemory& memory, uint64_t bytes, Stop&& stop) {
  while (memory.bytes() < bytes && !stop()) {
    bool full = true;
    try {
      memory.FillReserve(stop);
    } catch (const Error&) {
      full = false;  // what has been created still serves
    }
    const uint64_t chunks = memory.reserve();
    if (chunks == 0) return false;
    const uint64_t next = memory.bytes() + chunks * memory.tail_chunk();
    if (!memory.Grow(next < bytes ? next : bytes)) return false;
    if (!full && memory.reserve() == 0 && memory.bytes() < bytes) return false;
  }
  return true;
}

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_POOL_WORKER_H_
