// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the two sides of a sink count and tell each other. Each value has one
// writer (Bump and Drop of event_sink.h are enough) and may be read by anyone.
#ifndef KVCAST_SINK_SRC_SINK_COUNTERS_H_
#define KVCAST_SINK_SRC_SINK_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "sink/src/event_record.h"

namespace kvcast {

// Written by whoever holds the manager's lock.
struct alignas(64) RecordCounters {
  static constexpr uint64_t kNoClear = UINT64_MAX;

  std::atomic<uint64_t> stored_blocks{0};
  std::atomic<uint64_t> announced_blocks{0};
  // Ring position of the newest clear record: what lies before it need not be read.
  std::atomic<uint64_t> clear_position{kNoClear};
  std::atomic<uint64_t> removed_blocks[kRemovalReasons] = {};
  std::atomic<uint64_t> cleared_blocks{0};
  std::atomic<uint64_t> clears{0};

  // Those removed for one reason.
  [[nodiscard]] std::atomic<uint64_t>& removed(uint32_t reason) {
    return removed_blocks[reason - 1];
  }
  [[nodiscard]] const std::atomic<uint64_t>& removed(uint32_t reason) const {
    return removed_blocks[reason - 1];
  }
};

// Written by the drainer.
struct alignas(64) DrainCounters {
  // Stored blocks whose records have been read or skipped: what the cap on
  // undrained blocks is reckoned from.
  std::atomic<uint64_t> consumed_blocks{0};
  std::atomic<uint64_t> hash_collisions{0};
  std::atomic<uint64_t> superseded_records{0};
  std::atomic<uint64_t> batches{0};
  std::atomic<uint64_t> events{0};
  std::atomic<uint64_t> stored_blocks{0};
  std::atomic<uint64_t> removed_blocks{0};
  std::atomic<uint64_t> mirror_blocks{0};
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_SINK_COUNTERS_H_
