// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/pinned_ring.h"

#include <algorithm>
#include <cstddef>
#include <exception>
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
    // Its streams may have been destroyed, which does not wait for their work.
    bool unknown = !lost_.empty() || owed_ != 0;
    for (const Part& part : parts_) {
      unknown = unknown || part.lost;
      if (part.event == nullptr) continue;
      unknown = unknown || context_.api().event_synchronize(part.event) != kSuccess;
      events_.Give(part.event);
    }
    if (unknown) context_.api().context_synchronize();
    context_.api().host_free(host_);
  } catch (const std::exception&) {
    // The context is gone, and with it what it had pinned.
  }
}

PinnedRing::Space PinnedRing::Take(uint64_t bytes, bool poll) {
  if (bytes > size_) return {};
  const uint64_t need = SizeFor(std::max<uint64_t>(bytes, 1));
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool polled = !poll;; polled = true) {
    const std::optional<uint64_t> start = Fit(end_, need);
    if (!start) return {};  // what is lost is in the way, for ever
    if (parts_.empty()) begin_ = *start;
    if (*start + need - begin_ <= size_) {
      parts_.push_back({next_ticket_, *start, *start + need});
      end_ = *start + need;
      const uint64_t offset = *start % size_;
      return {static_cast<std::byte*>(host_) + offset, device_ + offset, bytes, next_ticket_++};
    }
    if (polled) return {};
    lock.unlock();
    Poll();
    lock.lock();
  }
}

// The first position from `start` on where a space can lie: never across the ring's end, as
// it is one piece, nor on what is lost.
std::optional<uint64_t> PinnedRing::Fit(uint64_t start, uint64_t need) const {
  const uint64_t once_around = start + size_;
  while (start < once_around) {
    const uint64_t at = start % size_;
    if (at + need > size_) {
      start += size_ - at;
      continue;
    }
    const auto lost = std::find_if(lost_.begin(), lost_.end(), [&](const Range& range) {
      return range.begin < at + need && at < range.end;
    });
    if (lost == lost_.end()) return start;
    start += lost->end - at;
  }
  return std::nullopt;
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
  uint64_t first = 0;
  for (Part& part : parts_) {
    if (!part.owed || part.stream != stream || part.release > covered) continue;
    owed_.fetch_sub(1, std::memory_order_relaxed);
    // The first gets the event. The others come back behind it, so they need none.
    part.owed = false;
    part.free = first != 0;
    part.behind = first;
    if (first != 0) continue;
    part.event = event;
    first = part.ticket;
  }
  if (first == 0) events_.Give(event);  // others' were owed
  return true;
}

void PinnedRing::Abandon(StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Part& part : parts_) {
    if (!part.owed || part.stream != stream) continue;
    owed_.fetch_sub(1, std::memory_order_relaxed);
    part.owed = false;
    part.lost = true;
  }
}

void PinnedRing::Release(const Space& space) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Part& part : parts_) part.free = part.free || part.ticket == space.ticket;
}

// The driver is asked without the mutex: it may take its time, and an upload need not wait for
// that. Only who has the turn takes parts away, so the event stays what it is meanwhile.
void PinnedRing::Poll() {
  std::lock_guard<std::mutex> turn(poll_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  EventHandle event = TakeBackLocked();
  if (event == nullptr) return;
  lock.unlock();
  const ContextScope scope(context_);
  while (event != nullptr) {
    const Result result = Tried([&] { return context_.api().event_query(event); });
    const bool captured = result == kErrorCapturedEvent;
    if (!captured) {
      if (result != kSuccess && !Lasting(result)) return;  // not yet, or to be asked again
      Check(context_.api(), "event_query", result);
    }
    lock.lock();
    const EventHandle asked = event;
    if (captured) {
      LoseLocked();
    } else {
      parts_.front().event = nullptr;
      parts_.front().free = true;
    }
    event = TakeBackLocked();
    lock.unlock();
    if (captured) {
      events_.Drop(asked);
    } else {
      events_.Give(asked);
    }
  }
}

uint64_t PinnedRing::in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return parts_.empty() ? 0 : end_ - begin_;
}

bool PinnedRing::has_lost() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !lost_.empty();
}

// With the mutex. What at the front needs no event is taken back; returns the event that what is
// there then is in use until, or null when there is none.
EventHandle PinnedRing::TakeBackLocked() {
  while (!parts_.empty()) {
    const Part& part = parts_.front();
    if (part.lost) {
      lost_.push_back({part.begin % size_, part.begin % size_ + (part.end - part.begin)});
    } else if (!part.free) {
      return part.event;
    }
    parts_.pop_front();
    if (!parts_.empty()) begin_ = parts_.front().begin;
  }
  return nullptr;
}

// With the mutex. The event of the part at the front has gone into a graph, and so may have all
// that it serves.
void PinnedRing::LoseLocked() {
  const uint64_t ticket = parts_.front().ticket;
  parts_.front().event = nullptr;
  for (Part& part : parts_) {
    part.lost = part.lost || part.ticket == ticket || part.behind == ticket;
  }
}

}  // namespace kvcast::cuda
