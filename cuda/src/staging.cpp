// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/staging.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "cuda/src/thread_start.h"

namespace kvcast::cuda {

namespace staging {

constexpr size_t kKeptFailures = 1024;
constexpr uint64_t kLeast = 2 * 4096;

}  // namespace staging

Staging::Staging(const DeviceContext& context, uint64_t bytes)
    : context_(context),
      half_(std::max(bytes, staging::kLeast) / 2),
      shared_(std::make_unique<Shared>()) {
  shared_->failed.reserve(staging::kKeptFailures);  // so that to keep one needs no memory
  const DriverApi& api = context.api();
  const ContextScope scope(context);
  try {
    void* memory = nullptr;
    KVCAST_CUDA(api, host_alloc, &memory, 2 * half_, kHostAllocPortable);
    memory_ = static_cast<uint8_t*>(memory);
    KVCAST_CUDA(api, stream_create, &stream_, kStreamNonBlocking);
    for (EventHandle& event : halves_) {
      KVCAST_CUDA(api, event_create, &event, kEventBlockingSync | kEventDisableTiming);
    }
    shared_->worker = StartThread("to copy through pinned memory", [this] { Serve(); });
  } catch (...) {
    GiveBack();
    throw;
  }
}

Staging::~Staging() {
  if (ForkedSinceOpen()) {
    (void)shared_.release();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    stop_ = true;
    shared_->changed.notify_all();
  }
  shared_->worker.join();
  try {
    const ContextScope scope(context_);
    GiveBack();
  } catch (const std::exception&) {
    // The context is gone, and with it all of these.
  }
}

// Under a ContextScope.
void Staging::GiveBack() noexcept {
  const DriverApi& api = context_.api();
  if (stream_ != nullptr) {
    WaitForStream(api, stream_);
    api.stream_destroy(stream_);
  }
  for (const EventHandle event : halves_) {
    if (event != nullptr) api.event_destroy(event);
  }
  if (memory_ != nullptr) api.host_free(memory_);
}

uint64_t Staging::Submit(const Job& job) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->jobs.push_back(job);
  shared_->changed.notify_all();
  return ++submitted_;
}

bool Staging::Done(uint64_t ticket) const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return done_ >= ticket;
}

kvc_status Staging::Outcome(uint64_t ticket) const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  for (const auto& [failed, status] : shared_->failed) {
    if (failed == ticket) return status;
  }
  return KVC_OK;
}

void Staging::WaitFor(uint64_t ticket) const {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return done_ >= ticket || stop_; });
}

void Staging::Serve() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  for (;;) {
    shared_->changed.wait(lock, [&] { return stop_ || !shared_->jobs.empty(); });
    if (stop_) return;
    const Job job = shared_->jobs.front();
    shared_->jobs.pop_front();
    lock.unlock();
    kvc_status status = KVC_OK;
    try {
      const ContextScope scope(context_);
      try {
        Run(job);
      } catch (...) {
        // What has been queued uses the halves, which the next job takes.
        WaitForStream(context_.api(), stream_);
        throw;
      }
    } catch (const Error& error) {
      status = error.status();
    } catch (const std::bad_alloc&) {
      status = KVC_OUT_OF_MEMORY;
    } catch (...) {
      status = KVC_INTERNAL;
    }
    lock.lock();
    ++done_;
    if (status != KVC_OK) {
      auto& failed = shared_->failed;
      if (failed.size() == staging::kKeptFailures) failed.erase(failed.begin());
      failed.emplace_back(done_, status);
    }
    shared_->changed.notify_all();
  }
}

void Staging::Run(const Job& job) {
  if (job.after != nullptr) {
    KVCAST_CUDA(context_.api(), stream_wait_event, stream_, job.after, 0);
  }
  if (job.to_host) {
    ToHost(job);
  } else {
    ToDevice(job);
  }
}

void Staging::ToDevice(const Job& job) {
  const DriverApi& api = context_.api();
  const auto* from = static_cast<const uint8_t*>(job.host);
  bool used[2] = {};
  int turn = 0;
  for (uint64_t at = 0; at < job.bytes; turn ^= 1) {
    const uint64_t bytes = std::min(half_, job.bytes - at);
    uint8_t* const half = memory_ + static_cast<uint64_t>(turn) * half_;
    // The copy that had this half before must have read it.
    if (used[turn]) KVCAST_CUDA(api, event_synchronize, halves_[turn]);
    std::memcpy(half, from + at, bytes);
    KVCAST_CUDA(api, copy_to_device, job.device + at, half, bytes, stream_);
    KVCAST_CUDA(api, event_record, halves_[turn], stream_);
    used[turn] = true;
    at += bytes;
  }
  for (int half = 0; half < 2; ++half) {
    if (used[half]) KVCAST_CUDA(api, event_synchronize, halves_[half]);
  }
}

void Staging::ToHost(const Job& job) {
  const DriverApi& api = context_.api();
  auto* const to = static_cast<uint8_t*>(job.host);
  uint64_t asked = 0;
  uint64_t taken = 0;
  for (int turn = 0; taken < job.bytes; turn ^= 1) {
    // One half ahead: the device fills it while we empty the other.
    while (asked < job.bytes && asked < taken + 2 * half_) {
      const int half = static_cast<int>(asked / half_ % 2);
      const uint64_t bytes = std::min(half_, job.bytes - asked);
      KVCAST_CUDA(api, copy_to_host, memory_ + static_cast<uint64_t>(half) * half_,
                  job.device + asked, bytes, stream_);
      KVCAST_CUDA(api, event_record, halves_[half], stream_);
      asked += bytes;
    }
    const uint64_t bytes = std::min(half_, job.bytes - taken);
    KVCAST_CUDA(api, event_synchronize, halves_[turn]);
    std::memcpy(to + taken, memory_ + static_cast<uint64_t>(turn) * half_, bytes);
    taken += bytes;
  }
}

}  // namespace kvcast::cuda
