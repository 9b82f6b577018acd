// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/event_pool.h"

#include <exception>

namespace kvcast::cuda {

EventPool::~EventPool() {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    for (const EventHandle event : free_) context_.api().event_destroy(event);
  } catch (const std::exception&) {
    // The context is gone, and with it its events.
  }
}

EventHandle EventPool::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!free_.empty()) {
    const EventHandle event = free_.back();
    free_.pop_back();
    return event;
  }
  free_.reserve(created_ + 1);  // so that Give never allocates
  EventHandle event = nullptr;
  KVCAST_CUDA_TRIED(context_.api(), event_create, &event, kEventDisableTiming);
  ++created_;
  return event;
}

void EventPool::Give(EventHandle event) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

void EventPool::Drop(EventHandle event) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  context_.api().event_destroy(event);
  --created_;
}

uint64_t EventPool::created() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return created_;
}

uint64_t EventPool::in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return created_ - free_.size();
}

}  // namespace kvcast::cuda
