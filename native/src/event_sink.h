// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The seam between the allocator and whatever records what it does. The core
// knows only this; the real sink is in sink/, tests bring their own.
#ifndef KVCAST_NATIVE_SRC_EVENT_SINK_H_
#define KVCAST_NATIVE_SRC_EVENT_SINK_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "native/src/digest_table.h"
#include "native/src/scope.h"

namespace kvcast {

// Where a sink finds the tokens of a block: in the arena, beside its node.
struct SinkGeometry {
  uint32_t tokens_per_block = 0;
  uint32_t max_blocks = 0;  // node ids are below this
  const std::byte* tokens_base = nullptr;
  size_t node_stride = 0;
  const DigestTable* digests = nullptr;  // of tokens with the digest bit; under the lock only

  [[nodiscard]] const uint32_t* Tokens(uint32_t node) const {
    return reinterpret_cast<const uint32_t*>(tokens_base + size_t{node} * node_stride);
  }
};

// A chain of blocks, each the parent of the next.
struct StoreRun {
  static constexpr uint32_t kRoot = UINT32_MAX;
  uint32_t parent = kRoot;       // node id of the block before the first one
  const Scope* scope = nullptr;  // set if and only if parent is kRoot
  const uint32_t* nodes = nullptr;
  uint32_t count = 0;
  bool digests = false;  // some of the nodes have digest tokens
};

// Kept by the manager under its lock, readable by anyone at any time. They live
// in the sink so that they outlive the manager.
struct DeferralCounters {
  std::atomic<uint64_t> dropped_events{0};
  std::atomic<uint64_t> deferred_blocks{0};
  std::atomic<uint64_t> healed_blocks{0};
  std::atomic<uint64_t> deferred_evicted_blocks{0};
  std::atomic<uint64_t> pending_blocks{0};
  std::atomic<uint64_t> unannounced_removals{0};
  std::atomic<uint64_t> partial_blocks_suppressed{0};
  std::atomic<uint64_t> multimodal_blocks_suppressed{0};
  std::atomic<uint64_t> suppressed_blocks{0};
  // When the first of the pending blocks was deferred, as SteadyNs(); 0: none is.
  std::atomic<uint64_t> oldest_deferred_ns{0};
};

// The clock that ages are measured with.
[[nodiscard]] inline uint64_t SteadyNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Single-writer increment: the writer holds the manager's lock, so a plain
// load and store is enough and no locked instruction is paid.
inline void Bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
inline void Drop(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) - by, std::memory_order_relaxed);
}

// What a sink may ask of its manager, from the drain side.
class SinkHost {
 public:
  // Announces up to max_blocks deferred blocks if the manager's lock is free
  // at once, for at most max_ns. Returns how many.
  virtual uint32_t TryHeal(uint32_t max_blocks, uint64_t max_ns) noexcept = 0;
  // Takes the lock; afterwards the manager never calls the sink again.
  virtual void DetachSink() noexcept = 0;

 protected:
  ~SinkHost() = default;
};

// Write side. All of it but Attach and Seal is called under the manager's
// exclusive lock: it must not wait, allocate, hash or call the manager.
class EventSink {
 public:
  virtual ~EventSink() = default;

  // Once, at the manager's creation, before any other call; may allocate and
  // throw, and is then as if it had not been called. `host` stays valid until Seal returns or
  // DetachSink was called.
  virtual void Attach(const SinkGeometry& geometry, SinkHost* host) = 0;

  // Records blocks that became reusable. Admits a prefix of the run (its
  // length is returned) such that afterwards there is still room for one
  // removal of each announced block and one clear. The rest stays unannounced.
  // The caller guarantees that the parent is announced or the root, and that
  // no node of the run is. `healing` may use the room kept for healing.
  [[nodiscard]] virtual uint32_t Store(const StoreRun& run, bool healing) noexcept = 0;

  // Records that announced blocks went, children before parents, and why each of
  // them did (KVC_EVICTED_*). Cannot fail.
  virtual void Remove(const uint32_t* nodes, const uint8_t* reasons, uint32_t count) noexcept = 0;

  // Records that all announced blocks went. Nothing is recorded if nothing has
  // been stored since the last clear.
  virtual void Clear() noexcept = 0;

  // From the manager's destroy, without its lock: `host` is not used after it returns.
  virtual void Seal() noexcept = 0;

  virtual DeferralCounters& deferral_counters() noexcept = 0;

  // Blocks with digest tokens, and all blocks below them, are never offered.
  [[nodiscard]] virtual bool suppresses_multimodal() const noexcept = 0;

  // Blocks announced at this instant, for the manager's check.
  [[nodiscard]] virtual uint64_t announced_blocks() const noexcept = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_EVENT_SINK_H_
