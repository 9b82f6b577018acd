// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The sink that a stream is: records on the scheduler's side, hands out batches
// on the drain side.
//
// Locks. host_mutex_ comes before the manager's lock: the drain side takes it to
// call the manager (heal, detach). What the manager calls under its own lock
// (Store, Remove, Clear) takes no lock at all.
#ifndef KVCAST_SINK_SRC_STREAMING_EVENT_SINK_H_
#define KVCAST_SINK_SRC_STREAMING_EVENT_SINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kvcast/kvcast.h"
#include "native/src/event_sink.h"
#include "sink/src/event_record.h"
#include "sink/src/projector.h"
#include "sink/src/record_ring.h"
#include "sink/src/sink_counters.h"
#include "sink/src/snapshot.h"

namespace kvcast {

struct SinkOptions {
  uint32_t max_entries = 50000;  // stored blocks that may wait undrained, > 0
  bool suppress_multimodal = true;
  ProjectorOptions projector;
};

enum class PinResult { kDone, kDraining, kPinned };

// Room. The ring holds room for a removal of every block that can exist, for
// one clear, and for stores: max_entries blocks in records of one block each,
// plus the longest scope, plus, if multimodal blocks are announced, a block's
// worth of digests. A store is admitted only if afterwards
//
//   free words >= 2 x announced blocks + one clear [+ the healing share]
//
// so a removal, which takes at most 2 words per block, always fits, and so does
// a clear: a second one is recorded only after another store has been admitted.
// An empty ring admits at least one block. A quarter of the store room is the
// healing share, which only healing stores may use; with fewer than four
// entries there is none.
class StreamingEventSink final : public EventSink {
 public:
  explicit StreamingEventSink(const SinkOptions& options) : options_(options) {}
  StreamingEventSink(const StreamingEventSink&) = delete;
  StreamingEventSink& operator=(const StreamingEventSink&) = delete;

  // ---- the manager's side
  void Attach(const SinkGeometry& geometry, SinkHost* host) override;
  [[nodiscard]] uint32_t Store(const StoreRun& run, bool healing) noexcept override;
  void Remove(const uint32_t* nodes, const uint8_t* reasons, uint32_t count) noexcept override;
  void Clear() noexcept override;
  void Seal() noexcept override;
  DeferralCounters& deferral_counters() noexcept override { return deferral_; }
  [[nodiscard]] bool suppresses_multimodal() const noexcept override {
    return options_.suppress_multimodal;
  }
  [[nodiscard]] uint64_t announced_blocks() const noexcept override {
    return recorded_.announced_blocks.load(std::memory_order_relaxed);
  }

  // ---- the drain side

  // As kvc_stream_drain: KVC_OK, KVC_BUSY or KVC_END; throws bad_alloc or Error.
  kvc_status Drain(uint64_t max_events, uint64_t max_blocks, kvc_borrowed_batch* out);
  // A snapshot of the mirror as of the last drain, empty before Attach; not
  // beside a drain or while there is another one. Throws bad_alloc or Error.
  [[nodiscard]] PinResult Pin(std::unique_ptr<Snapshot>* out);
  // Makes the manager forget this sink. Not beside a drain.
  void Detach() noexcept;

  // ---- anyone
  void GetStats(kvc_stream_stats* out) const noexcept;

  // For tests: what is behind the drain. Only while nothing drains.
  [[nodiscard]] const Projector* projector() const { return projector_.get(); }
  // Words of the ring; 0 before Attach.
  [[nodiscard]] uint64_t capacity_words() const { return ring_.capacity(); }
  // The ring itself, to be compared. Only while nobody writes or drains.
  [[nodiscard]] const RecordRing& ring() const { return ring_; }
  // Stored blocks whose records wait for the drainer: what max_entries caps.
  [[nodiscard]] uint64_t waiting_blocks() const {
    const uint64_t consumed = drained_.consumed_blocks.load(std::memory_order_relaxed);
    return recorded_.stored_blocks.load(std::memory_order_relaxed) - consumed;
  }

 private:
  static constexpr uint32_t kHealBlocks = 256;
  static constexpr uint64_t kHealNs = 50000;

  // A run whose blocks all have digest tokens, or all have none.
  uint32_t StorePlain(const StoreRun& run, bool healing) noexcept;
  uint32_t StoreDigests(const StoreRun& run, bool healing) noexcept;
  // How many of `count` blocks the cap on undrained blocks admits.
  uint32_t Admitted(uint32_t count, bool healing) noexcept;
  // Words that a store may take, at least min(needed, what there is).
  uint64_t Room(uint64_t needed, bool healing) noexcept;
  void Count(uint32_t stored) noexcept;

  const SinkOptions options_;
  SinkGeometry geometry_;
  uint64_t healing_words_ = 0;
  uint32_t healing_entries_ = 0;

  RecordRing ring_;
  RecordCounters recorded_;
  DrainCounters drained_;
  DeferralCounters deferral_;

  // Writer only, under the manager's lock.
  uint64_t records_written_ = 0;
  uint64_t known_consumed_ = 0;
  bool stored_since_clear_ = false;

  std::unique_ptr<Projector> projector_;
  // The snapshot opened before Attach, which may be open still. Drainer only.
  std::shared_ptr<MirrorVersion> of_nothing_;
  std::mutex host_mutex_;
  SinkHost* host_ = nullptr;  // under host_mutex_
  // Attached once and for all (ready_), written by a manager now (attached_),
  // abandoned by it (sealed_).
  std::atomic<bool> ready_{false};
  std::atomic<bool> attached_{false};
  std::atomic<bool> sealed_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_STREAMING_EVENT_SINK_H_
