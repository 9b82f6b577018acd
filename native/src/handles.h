// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What stands behind the opaque handles, and the process-wide counts of them.
#ifndef KVCAST_NATIVE_SRC_HANDLES_H_
#define KVCAST_NATIVE_SRC_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "kvcast/kvcast.h"
#include "native/src/event_sink.h"

namespace kvcast {

struct LiveHandles {
  std::atomic<uint64_t> managers{0};
  std::atomic<uint64_t> sequences{0};
  std::atomic<uint64_t> streams{0};
  std::atomic<uint64_t> snapshots{0};
};

inline LiveHandles& live_handles() {
  static LiveHandles handles;
  return handles;
}

}  // namespace kvcast

// The core sees of a stream only that it holds a sink. sink/ derives its own
// from this; a manager shares the sink, so either may be destroyed first.
struct kvc_stream {
  virtual ~kvc_stream() = default;
  std::shared_ptr<kvcast::EventSink> sink;
  std::atomic<bool> used{false};  // a manager has been created on it
};

#endif  // KVCAST_NATIVE_SRC_HANDLES_H_
