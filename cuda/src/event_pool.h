// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// CUDA events, used again and again, and counted.
#ifndef KVCAST_CUDA_SRC_EVENT_POOL_H_
#define KVCAST_CUDA_SRC_EVENT_POOL_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/src/context.h"

namespace kvcast::cuda {

// Any thread, under a ContextScope.
class EventPool {
 public:
  explicit EventPool(const DeviceContext& context) : context_(context) {}
  // Under a ContextScope or not; all events must have been given back.
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // An event without timing. Throws when the driver has none to give.
  [[nodiscard]] EventHandle Take();
  // Its record may still be outstanding: recording it anew does not disturb those
  // who wait, they are bound to the record that they saw.
  void Give(EventHandle event) noexcept;
  // Instead of Give, for an event that is not to be used again.
  void Drop(EventHandle event) noexcept;

  [[nodiscard]] uint64_t created() const;
  [[nodiscard]] uint64_t in_use() const;

 private:
  const DeviceContext& context_;
  mutable std::mutex mutex_;
  std::vector<EventHandle> free_;  // capacity for all that have been created
  uint64_t created_ = 0;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_EVENT_POOL_H_
