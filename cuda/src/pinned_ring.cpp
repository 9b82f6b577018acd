// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/pinned_ring.h"

#include <algorithm>
#include <cstddef>
#include <new>

namespace kvcast::cuda {

namespace pinned_ring {

constexpr uint64_t kAlignment = 16;

}  // namespace pinned_ring

PinnedRing::PinnedRing(const DeviceContext& context, EventPool& events, uint64_t bytes)
    : context_(context), events_(events), size_(SizeFor(bytes)) {
  const DriverApi& api = context.api();
  const ContextScope scope(context);
  KVCAST_CUDA(api, host_alloc, &host_, size_, kHostAllocPortable);
  const Result result = api.host_device_address(&device_, host_, 0);
  if (result != kSuccess) {
    api.host_free(host_);
    Check(api, "host_device_address", result);
  }
}

uint64_t PinnedRing::SizeFor(uint64_t bytes) {
  return (bytes + pinned_ring::kAlignment - 1) / pinned_ring::kAlignment * pinned_ring::kAlignment;
}

PinnedRing::~PinnedRing() {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    for (const Part& part : parts_) {
      if (part.event != nullptr) events_.Give(part.event);
    }
    context_.api().host_free(host_);
  } catch (const Error&) {
    // The context is gone, and with it what it had pinned.
  }
}

PinnedRing::Space PinnedRing::Take(uint64_t bytes, bool poll) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t need = (std::max<uint64_t>(bytes, 1) + pinned_ring::kAlignment - 1) /
                        pinned_ring::kAlignment * pinned_ring::kAlignment;
  if (need > size_) return {};
  // Never across the ring's end: a space is one piece.
  uint64_t start = end_;
  const uint64_t place = start % size_;
  if (place + need > size_) start += size_ - place;
  if (poll && start + need - begin_ > size_) PollLocked();
  if (parts_.empty()) {
    begin_ = end_ = start = 0;
  } else if (start + need - begin_ > size_) {
    return {};
  }
  parts_.push_back({next_ticket_, start + need});
  end_ = start + need;
  const uint64_t offset = start % size_;
  return {static_cast<std::byte*>(host_) + offset, device_ + offset, bytes, next_ticket_++};
}

bool PinnedRing::ReleaseAfter(const Space& space, StreamHandle stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Part& part : parts_) {
      if (part.ticket != space.ticket) continue;
      part.owed = true;
      part.release = ++releases_;
      part.stream = stream;
      owed_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return Settle(stream);
}

bool PinnedRing::Settle(StreamHandle stream) {
  if (owed_.load(std::memory_order_relaxed) == 0) return true;
  // The work of what is released from now on may come behind the event.
  uint64_t covered = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    covered = releases_;
  }
  EventHandle event = nullptr;
  try {
    event = events_.Take();
    KVCAST_CUDA_TRIED(context_.api(), event_record, event, stream);
  } catch (const Error& error) {
    if (event != nullptr) events_.Give(event);
    if (Lasting(error.system_code())) throw;
    return false;
  } catch (const std::bad_alloc&) {
    return false;  // no room in the host to keep an event
  }
  std::lock_guard<std::mutex> lock(mutex_);
  bool behind = false;
  for (Part& part : parts_) {
    if (!part.owed || part.stream != stream || part.release > covered) continue;
    owed_.fetch_sub(1, std::memory_order_relaxed);
    // The first gets the event. The others come back behind it, so they need none.
    part.owed = false;
    part.free = behind;
    if (!behind) part.event = event;
    behind = true;
  }
  if (!behind) events_.Give(event);  // others' were owed
  return true;
}

void PinnedRing::Release(const Space& space) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Part& part : parts_) part.free = part.free || part.ticket == space.ticket;
}

void PinnedRing::Poll() {
  std::lock_guard<std::mutex> lock(mutex_);
  PollLocked();
}

uint64_t PinnedRing::in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return parts_.empty() ? 0 : end_ - begin_;
}

void PinnedRing::PollLocked() {
  if (parts_.empty()) return;
  const ContextScope scope(context_);
  while (!parts_.empty()) {
    const Part& part = parts_.front();
    if (!part.free) {
      if (part.event == nullptr) return;
      const Result result = Tried([&] { return context_.api().event_query(part.event); });
      if (result != kSuccess && !Lasting(result)) return;  // not yet, or to be asked again
      Check(context_.api(), "event_query", result);
      events_.Give(part.event);
    }
    begin_ = part.end;
    parts_.pop_front();
  }
}

}  // namespace kvcast::cuda
