// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/pool_worker.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "cuda/src/thread_start.h"

namespace kvcast::cuda {

PoolWorker::PoolWorker(PoolMemory& memory, uint64_t page_bytes, uint32_t pages)
    : memory_(memory),
      page_bytes_(page_bytes),
      shared_(std::make_unique<Shared>()),
      backing_{0, pages, true, false},
      mapped_bytes_(memory.bytes()) {
  shared_->thread = StartThread("to grow and shrink the pool's memory", [this] { Run(); });
}

PoolWorker::~PoolWorker() {
  if (ForkedSinceOpen()) {
    (void)shared_.release();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    ends_ = true;
    ++newest_;  // so that it stops at the next chunk
  }
  shared_->changed.notify_one();
  shared_->thread.join();
}

void PoolWorker::Ask(uint64_t request, uint32_t pages) {
  if (ForkedSinceOpen()) return;
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    newest_ = request;
    wanted_ = pages;
  }
  shared_->changed.notify_one();
}

Backing PoolWorker::backing() const {
  if (ForkedSinceOpen()) return {};
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return backing_;
}

void PoolWorker::Tell(uint64_t request, uint32_t pages, bool done, bool failed) {
  mapped_bytes_ = memory_.mapped_bytes();
  std::lock_guard<std::mutex> lock(shared_->mutex);
  backing_ = {request, pages, done, failed};
}

void PoolWorker::Retry() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    retry_ = true;
  }
  shared_->changed.notify_one();
}

// Until a newer request comes, or the driver refuses.
void PoolWorker::Unmap(uint64_t request) {
  try {
    (void)memory_.Collect([&] { return newest_ != request; });
    unreturned_bytes_ = 0;
  } catch (...) {  // also for want of host memory
    unreturned_bytes_ = memory_.given_up_bytes();
  }
}

void PoolWorker::Run() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(shared_->mutex);
      shared_->changed.wait(lock, [&] { return ends_ || newest_ != served_ || retry_; });
      if (ends_) return;
    }
    WorkOff();
  }
}

// The context is current from before the first of it until after the last: so whoever
// watches the driver's calls can tell whether a request is being worked on.
void PoolWorker::WorkOff() {
  std::optional<ContextScope> scope;
  try {
    scope.emplace(memory_.context());
  } catch (const std::exception&) {
    // What needs it fails by itself.
  }
  while (WorkOne()) {
  }
}

// False when there is nothing to do, or it is to end.
bool PoolWorker::WorkOne() {
  uint32_t pages = 0;
  bool asked = false;
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    asked = newest_ != served_;
    if (ends_ || (!asked && !retry_)) return false;
    retry_ = false;
    served_ = newest_;
    pages = wanted_;
  }
  if (asked) {
    Serve(served_, pages);
  } else {
    Unmap(served_);
    mapped_bytes_ = memory_.mapped_bytes();
  }
  return true;
}

void PoolWorker::Serve(uint64_t request, uint32_t pages) {
  const uint64_t bytes = pages * page_bytes_;
  // No more than was asked for, as the rest of a chunk is nobody's.
  const auto there = [&] {
    return static_cast<uint32_t>(std::min<uint64_t>(memory_.bytes() / page_bytes_, pages));
  };
  const auto stop = [&] {
    if (newest_ != request) return true;
    if (memory_.bytes() < bytes) Tell(request, there(), false, false);
    return false;
  };
  bool good = true;
  try {
    // The fences of all that is beyond have been reached. What is still mapped of an
    // earlier shrink need not be unmapped to be mapped again.
    (void)memory_.TakeBack(bytes);
    (void)memory_.Shrink(bytes, [] { return true; });
    Unmap(request);
    good = GrowTo(memory_, bytes, stop);
  } catch (...) {  // also for want of host memory
    good = false;
    unreturned_bytes_ = memory_.given_up_bytes();
  }
  if (newest_ != request) return;
  Tell(request, there(), true, !good && there() < pages);
  if (!good) return;
  try {
    memory_.FillReserve([&] { return newest_ != request; });
  } catch (...) {
    // The next growth tries again.
  }
}

}  // namespace kvcast::cuda
