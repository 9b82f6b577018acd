// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies between a device and host memory that is not pinned, through pinned
// staging, on a worker thread.
#ifndef KVCAST_CUDA_SRC_STAGING_H_
#define KVCAST_CUDA_SRC_STAGING_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/src/context.h"

namespace kvcast::cuda {

// The driver copies to pageable memory synchronously; here that waiting is the
// worker's. Two halves of the staging memory take turns, so that the device works
// while the host copies, and its size bounds the bytes in flight. A forked child may
// only destroy one.
class Staging {
 public:
  struct Job {
    bool to_host = false;
    DevicePtr device = 0;
    void* host = nullptr;  // valid and untouched by others until the job is done
    uint64_t bytes = 0;
    EventHandle after = nullptr;  // recorded; what the copy must wait for, or null
  };

  // Throws Error when the driver has no pinned memory, stream or event to give.
  Staging(const DeviceContext& context, uint64_t bytes);
  // Jobs not begun are dropped; the one that runs is finished.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Queues a job and returns its ticket: 1, 2, 3, ... `after` must stay as it is
  // until the job is done.
  [[nodiscard]] uint64_t Submit(const Job& job);
  // Jobs end in order. True when the job has ended, well or badly.
  [[nodiscard]] bool Done(uint64_t ticket) const;
  // The error of a job that has ended badly, as of kvc_status; KVC_OK otherwise.
  // A failed job may have copied a part. Kept for the newest 1024 failures.
  [[nodiscard]] kvc_status Outcome(uint64_t ticket) const;
  // Blocks until the job has ended: not for the scheduler's thread.
  void WaitFor(uint64_t ticket) const;

 private:
  void Serve();
  void Run(const Job& job);
  void ToDevice(const Job& job);
  void ToHost(const Job& job);
  void GiveBack() noexcept;

  // What a forked child must leave alone, as the thread is not there and may have been in
  // the midst of any of it: it is given up there.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    std::vector<std::pair<uint64_t, kvc_status>> failed;
    std::thread worker;
  };

  const DeviceContext& context_;
  uint64_t half_;
  uint8_t* memory_ = nullptr;
  StreamHandle stream_ = nullptr;
  EventHandle halves_[2] = {};  // of a kind that lets the waiting thread sleep
  std::unique_ptr<Shared> shared_;
  uint64_t submitted_ = 0;  // under the mutex, like the rest
  uint64_t done_ = 0;
  bool stop_ = false;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_STAGING_H_
