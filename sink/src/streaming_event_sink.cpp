// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "sink/src/streaming_event_sink.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "native/src/host_memory.h"
#include "native/src/status.h"

namespace kvcast {
namespace streaming_event_sink {

constexpr uint32_t kPrefetchBlocks = 4;

inline void PrefetchForRead([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0);
#endif
}

// Clears the flag that keeps a second drainer out.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& busy)
      : busy_(busy), mine_(!busy.exchange(true, std::memory_order_acquire)) {}
  ~Turn() {
    if (mine_) busy_.store(false, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  std::atomic<bool>& busy_;
  const bool mine_;
};

}  // namespace streaming_event_sink

void StreamingEventSink::Attach(const SinkGeometry& geometry, SinkHost* host) {
  // Words of a block in a record of its own, its removal not included.
  const uint64_t store_words = kStoreChildWords + 1 + geometry.tokens_per_block;
  const uint64_t capacity =
      kRemovalWords * geometry.max_blocks + kClearWords + options_.max_entries * store_words +
      kMaxScopeWords +
      (options_.suppress_multimodal ? 0 : 1 + uint64_t{geometry.tokens_per_block} * kDigestWords);
  RequireHostMemory(capacity * sizeof(uint32_t), "the record buffer (max_entries)");
  RequireHostMemory(geometry.max_blocks * (Mirror::BytesPerBlock(geometry.tokens_per_block) +
                                           HashIndex::BytesPerBlock()),
                    "the stream's mirror (capacity_blocks)");
  auto projector = std::make_unique<Projector>(options_.projector, geometry.tokens_per_block,
                                               geometry.max_blocks, ring_, recorded_, drained_);
  ring_.Allocate(capacity);
  geometry_ = geometry;
  healing_entries_ = options_.max_entries / 4;
  healing_words_ = healing_entries_ * store_words;
  projector_ = std::move(projector);
  {
    const std::lock_guard<std::mutex> lock(host_mutex_);
    host_ = host;
  }
  attached_.store(true, std::memory_order_relaxed);
  ready_.store(true, std::memory_order_release);
}

uint32_t StreamingEventSink::Store(const StoreRun& run, bool healing) noexcept {
  assert((run.parent == StoreRun::kRoot) == (run.scope != nullptr));
  if (!run.digests) return StorePlain(run, healing);
  // Cut into stretches with and without digests: the drainer hashes plain
  // records several side by side.
  uint32_t done = 0;
  while (done < run.count) {
    const bool digests = AnyDigest(geometry_.Tokens(run.nodes[done]), geometry_.tokens_per_block);
    StoreRun piece;
    if (done == 0) {
      piece.parent = run.parent;
      piece.scope = run.scope;
    } else {
      piece.parent = run.nodes[done - 1];
    }
    piece.nodes = run.nodes + done;
    piece.count = 1;
    while (done + piece.count < run.count && AnyDigest(geometry_.Tokens(piece.nodes[piece.count]),
                                                       geometry_.tokens_per_block) == digests) {
      ++piece.count;
    }
    const uint32_t stored = digests ? StoreDigests(piece, healing) : StorePlain(piece, healing);
    done += stored;
    if (stored < piece.count) break;
  }
  return done;
}

uint32_t StreamingEventSink::Admitted(uint32_t count, bool healing) noexcept {
  const uint64_t stored = recorded_.stored_blocks.load(std::memory_order_relaxed);
  const uint64_t entries = options_.max_entries - (healing ? 0 : healing_entries_);
  if (stored + count - known_consumed_ > entries) {
    known_consumed_ = drained_.consumed_blocks.load(std::memory_order_relaxed);
  }
  const uint64_t waiting = stored - known_consumed_;
  return static_cast<uint32_t>(
      std::min<uint64_t>(count, waiting < entries ? entries - waiting : 0));
}

uint64_t StreamingEventSink::Room(uint64_t needed, bool healing) noexcept {
  const uint64_t announced = recorded_.announced_blocks.load(std::memory_order_relaxed);
  const uint64_t kept = kRemovalWords * announced + kClearWords + (healing ? 0 : healing_words_);
  uint64_t free = ring_.KnownFree();
  if (free < kept + needed) free = ring_.Free();
  return free > kept ? free - kept : 0;
}

// What has been put becomes a record or several.
void StreamingEventSink::Count(uint32_t stored) noexcept {
  stored_since_clear_ = true;
  Bump(recorded_.stored_blocks, stored);
  Bump(recorded_.announced_blocks, stored);
  ring_.Publish();
}

uint32_t StreamingEventSink::StorePlain(const StoreRun& run, bool healing) noexcept {
  const uint32_t wanted = Admitted(run.count, healing);
  if (wanted == 0) return 0;

  // Each block takes its record's words and keeps those of its removal free.
  const uint32_t tokens_per_block = geometry_.tokens_per_block;
  const uint64_t block_words = 1 + uint64_t{tokens_per_block};
  ScopeWords scope{run.scope != nullptr ? run.scope->view() : ScopeView{}};
  const bool root = run.parent == StoreRun::kRoot;
  const uint64_t records = (uint64_t{wanted} + kMaxRunBlocks - 1) / kMaxRunBlocks;
  uint64_t free = Room(wanted * (block_words + kRemovalWords) + records * kStoreChildWords +
                           (root ? scope.count : 0),
                       healing);

  uint32_t done = 0;
  while (done < wanted) {
    const bool with_scope = root && done == 0;
    const uint64_t head_words = with_scope ? 1 + uint64_t{scope.count} : kStoreChildWords;
    if (free < head_words) break;
    const auto count =
        static_cast<uint32_t>(std::min({uint64_t{wanted - done}, uint64_t{kMaxRunBlocks},
                                        (free - head_words) / (block_words + kRemovalWords)}));
    if (count == 0) break;
    free -= head_words + count * (block_words + kRemovalWords);
    const uint32_t* nodes = run.nodes + done;
    ring_.Put(RecordHeader(with_scope ? RecordKind::kStoreRoot : RecordKind::kStoreChild, count));
    if (with_scope) {
      ring_.Put(scope.words, scope.count);
    } else {
      ring_.Put(done == 0 ? run.parent : nodes[-1]);
    }
    ring_.Put(nodes, count);
    for (uint32_t i = 0; i < count; ++i) {
      if (i + streaming_event_sink::kPrefetchBlocks < count) {
        streaming_event_sink::PrefetchForRead(
            geometry_.Tokens(nodes[i + streaming_event_sink::kPrefetchBlocks]));
      }
      ring_.Put(geometry_.Tokens(nodes[i]), tokens_per_block);
    }
    ++records_written_;
    done += count;
  }
  if (done != 0) Count(done);
  return done;
}

uint32_t StreamingEventSink::StoreDigests(const StoreRun& run, bool healing) noexcept {
  const uint32_t wanted = Admitted(run.count, healing);
  const uint32_t tokens_per_block = geometry_.tokens_per_block;
  ScopeWords scope{run.scope != nullptr ? run.scope->view() : ScopeView{}};
  const bool root = run.parent == StoreRun::kRoot;
  uint32_t done = 0;
  while (done < wanted) {
    const bool with_scope = root && done == 0;
    // How many blocks fit: they differ in size.
    uint64_t words = (with_scope ? 1 + uint64_t{scope.count} : kStoreChildWords) + 1;
    uint32_t count = 0;
    uint32_t digests = 0;
    for (; count < std::min(wanted - done, kMaxRunBlocks); ++count) {
      const uint32_t* tokens = geometry_.Tokens(run.nodes[done + count]);
      uint32_t here = 0;
      for (uint32_t i = 0; i < tokens_per_block; ++i) here += tokens[i] >> 31;
      const uint64_t more =
          1 + uint64_t{tokens_per_block} + uint64_t{here} * kDigestWords + kRemovalWords;
      if (Room(words + more, healing) < words + more) break;
      words += more;
      digests += here;
    }
    if (count == 0) break;
    const uint32_t* nodes = run.nodes + done;
    ring_.Put(RecordHeader(with_scope ? RecordKind::kStoreRoot : RecordKind::kStoreChild, count) |
              kRecordDigests);
    if (with_scope) {
      ring_.Put(scope.words, scope.count);
    } else {
      ring_.Put(done == 0 ? run.parent : nodes[-1]);
    }
    ring_.Put(nodes, count);
    ring_.Put(digests);
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t* tokens = geometry_.Tokens(nodes[i]);
      for (uint32_t k = 0; k < tokens_per_block; ++k) {
        ring_.Put((tokens[k] & kDigestBit) != 0 ? kDigestBit | next++ : tokens[k]);
      }
    }
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t* tokens = geometry_.Tokens(nodes[i]);
      for (uint32_t k = 0; k < tokens_per_block; ++k) {
        if ((tokens[k] & kDigestBit) == 0) continue;
        uint32_t digest[kDigestWords];
        std::memcpy(digest, geometry_.digests->Bytes(tokens[k]), kDigestBytes);
        // A word at a time: the copy for runs of sixteen words looks to the compiler
        // like one that reads past these eight.
        for (const uint32_t word : digest) ring_.Put(word);
      }
    }
    ++records_written_;
    done += count;
    // Before the next record's room is reckoned: these blocks are announced now.
    Count(count);
  }
  return done;
}

void StreamingEventSink::Remove(const uint32_t* nodes, const uint8_t* reasons,
                                uint32_t count) noexcept {
  if (count == 0) return;
  for (uint32_t done = 0; done < count;) {
    const uint32_t piece = std::min(count - done, kMaxRunBlocks);
    const uint8_t* why = reasons + done;
    // There is room: it was kept when the blocks were stored.
    if (piece == 1 || std::memcmp(why, why + 1, piece - 1) == 0) {
      assert(ring_.Free() >= 1 + uint64_t{piece});
      ring_.Put(RemovalHeader(why[0], piece));
      ring_.Put(nodes + done, piece);
      Bump(recorded_.removed(why[0]), piece);
    } else {
      assert(ring_.Free() >= 1 + uint64_t{piece} + ReasonWords(piece));
      uint32_t words[ReasonWords(kMaxRunBlocks)];
      words[ReasonWords(piece) - 1] = 0;
      std::memcpy(words, why, piece);
      ring_.Put(RemovalHeader(kMixedReasons, piece));
      ring_.Put(nodes + done, piece);
      ring_.Put(words, ReasonWords(piece));
      for (uint32_t i = 0; i < piece; ++i) Bump(recorded_.removed(why[i]));
    }
    ++records_written_;
    done += piece;
  }
  Drop(recorded_.announced_blocks, count);
  ring_.Publish();
}

void StreamingEventSink::Clear() noexcept {
  if (!stored_since_clear_) return;
  stored_since_clear_ = false;
  assert(ring_.Free() >= kClearWords);
  const uint64_t position = ring_.write_position();
  const uint64_t stored = recorded_.stored_blocks.load(std::memory_order_relaxed);
  ring_.Put(RecordHeader(RecordKind::kClear, 0));
  ring_.Put(static_cast<uint32_t>(records_written_));
  ring_.Put(static_cast<uint32_t>(records_written_ >> 32));
  ring_.Put(static_cast<uint32_t>(stored));
  ring_.Put(static_cast<uint32_t>(stored >> 32));
  ++records_written_;
  Bump(recorded_.clears);
  Bump(recorded_.cleared_blocks, recorded_.announced_blocks.load(std::memory_order_relaxed));
  recorded_.announced_blocks.store(0, std::memory_order_relaxed);
  ring_.Publish();
  // Only now: who sees the position finds the record.
  recorded_.clear_position.store(position, std::memory_order_release);
}

void StreamingEventSink::Seal() noexcept {
  {
    const std::lock_guard<std::mutex> lock(host_mutex_);
    host_ = nullptr;
  }
  attached_.store(false, std::memory_order_relaxed);
  sealed_.store(true, std::memory_order_release);
}

void StreamingEventSink::Detach() noexcept {
  const std::lock_guard<std::mutex> lock(host_mutex_);
  if (host_ != nullptr) host_->DetachSink();
  host_ = nullptr;
  attached_.store(false, std::memory_order_relaxed);
}

kvc_status StreamingEventSink::Drain(uint64_t max_events, uint64_t max_blocks,
                                     kvc_borrowed_batch* out) {
  const streaming_event_sink::Turn turn(draining_);
  if (!turn.mine()) return KVC_BUSY;
  if (!ready_.load(std::memory_order_acquire)) {
    *out = {};
    return KVC_OK;
  }
  // Before the drain: what was recorded before the sealing is then seen by it.
  const bool sealed = sealed_.load(std::memory_order_acquire);
  projector_->Drain(max_events, max_blocks);
  if (projector_->batch_empty()) {
    if (sealed && projector_->Drained()) return KVC_END;
    const std::lock_guard<std::mutex> lock(host_mutex_);
    if (host_ != nullptr && deferral_.pending_blocks.load(std::memory_order_relaxed) != 0) {
      host_->TryHeal(kHealBlocks, kHealNs);
    }
  }
  projector_->Lend(out);
  out->remaining_bytes = ring_.Used() * sizeof(uint32_t);
  out->pending_blocks = deferral_.pending_blocks.load(std::memory_order_relaxed);
  return KVC_OK;
}

PinResult StreamingEventSink::Pin(std::unique_ptr<Snapshot>* out) {
  const streaming_event_sink::Turn turn(draining_);
  if (!turn.mine()) return PinResult::kDraining;
  if (of_nothing_ != nullptr && !of_nothing_->released.load(std::memory_order_acquire)) {
    return PinResult::kPinned;
  }
  of_nothing_.reset();
  if (!ready_.load(std::memory_order_acquire)) {
    auto snapshot = std::make_unique<Snapshot>(
        SnapshotForm{options_.projector.hash_form, 1, 0, false}, WireScopes{});
    of_nothing_ = std::make_shared<MirrorVersion>(ChunkLayout(1));
    snapshot->Read(of_nothing_);
    *out = std::move(snapshot);
    return PinResult::kDone;
  }
  if (projector_->Pinned()) return PinResult::kPinned;
  *out = projector_->Pin();
  return PinResult::kDone;
}

void StreamingEventSink::GetStats(kvc_stream_stats* out) const noexcept {
  const auto get = [](const std::atomic<uint64_t>& value) {
    return value.load(std::memory_order_relaxed);
  };
  out->attached = attached_.load(std::memory_order_relaxed) ? 1 : 0;
  out->stored_blocks = get(recorded_.stored_blocks);
  out->removed_capacity_blocks = get(recorded_.removed(KVC_EVICTED_CAPACITY));
  out->removed_ttl_blocks = get(recorded_.removed(KVC_EVICTED_TTL));
  out->removed_ended_blocks = get(recorded_.removed(KVC_EVICTED_ENDED));
  out->removed_scope_blocks = get(recorded_.removed(KVC_EVICTED_SCOPE));
  out->removed_blocks = out->removed_capacity_blocks + out->removed_ttl_blocks +
                        out->removed_ended_blocks + out->removed_scope_blocks;
  out->cleared_blocks = get(recorded_.cleared_blocks);
  out->clears = get(recorded_.clears);
  out->dropped_events = get(deferral_.dropped_events);
  out->deferred_blocks = get(deferral_.deferred_blocks);
  out->healed_blocks = get(deferral_.healed_blocks);
  out->deferred_evicted_blocks = get(deferral_.deferred_evicted_blocks);
  out->pending_blocks = get(deferral_.pending_blocks);
  const uint64_t oldest = get(deferral_.oldest_deferred_ns);
  out->oldest_deferred_ns = oldest == 0 ? 0 : SteadyNs() - oldest;
  out->unannounced_removals = get(deferral_.unannounced_removals);
  out->partial_blocks_suppressed = get(deferral_.partial_blocks_suppressed);
  out->announced_blocks = get(recorded_.announced_blocks);
  out->hash_collisions = get(drained_.hash_collisions);
  out->superseded_records = get(drained_.superseded_records);
  out->drained_batches = get(drained_.batches);
  out->drained_events = get(drained_.events);
  out->drained_stored_blocks = get(drained_.stored_blocks);
  out->multimodal_blocks_suppressed = get(deferral_.multimodal_blocks_suppressed);
  out->suppressed_blocks = get(deferral_.suppressed_blocks);
  out->drained_removed_blocks = get(drained_.removed_blocks);
  out->mirror_blocks = get(drained_.mirror_blocks);
  // The ring's size is known to others once the sink is ready.
  const bool ready = ready_.load(std::memory_order_acquire);
  out->buffer_bytes = ready ? ring_.capacity() * sizeof(uint32_t) : 0;
  out->buffer_used_bytes = ready ? ring_.Used() * sizeof(uint32_t) : 0;
}

}  // namespace kvcast
