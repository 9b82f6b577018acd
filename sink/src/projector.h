// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The drain side of a sink: turns records into events. It computes the keys,
// joins and cuts events, keeps the mirror and fills the arrays that a batch is
// lent from.
//
// Work goes in waves. A wave is a bounded stretch of records (at most
// kWaveRecords, kWaveBlocks); its block keys are computed first, up to four
// chains side by side, then its records are projected one after the other,
// over as many drains as it takes.
//
// Where a batch ends, exactly. A *piece* is what one record adds to one event:
// a record's blocks, cut where the event has reached max_blocks_per_event (or
// where a wire hash was taken). Pieces are taken in order. A piece joins the
// last event if it may, else it begins a new one. It is taken if the batch is
// empty, or if afterwards the batch has at most max_blocks hashes and at most
// max_events events. A record has at most 256 blocks, so a batch of one piece
// has at most 256 hashes. Where the next batch begins with a run's
// continuation, its parent is the hash before it.
#ifndef KVCAST_SINK_SRC_PROJECTOR_H_
#define KVCAST_SINK_SRC_PROJECTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_key.h"
#include "native/src/event_sink.h"
#include "sink/src/batch_arrays.h"
#include "sink/src/event_record.h"
#include "sink/src/hash_index.h"
#include "sink/src/mirror.h"
#include "sink/src/record_ring.h"
#include "sink/src/scope_table.h"
#include "sink/src/sink_counters.h"
#include "sink/src/snapshot.h"

namespace kvcast {

struct ProjectorOptions {
  // sgl-router takes no more hashes per event.
  static constexpr uint32_t kWireBlocksPerEvent = 65536;

  kvc_hash_form hash_form = KVC_HASH_SIGNED64;
  uint32_t max_blocks_per_event = kWireBlocksPerEvent;
  // For tests: the bits of a wire hash that are kept, so that hashes collide.
  uint64_t hash_mask = UINT64_MAX;
};

// Used by one drainer at a time.
class Projector {
 public:
  // Takes and touches all memory that depends on the geometry.
  Projector(const ProjectorOptions& options, uint32_t tokens_per_block, uint32_t max_blocks,
            RecordRing& ring, const RecordCounters& recorded, DrainCounters& drained);
  Projector(const Projector&) = delete;
  Projector& operator=(const Projector&) = delete;

  // Fills the arrays with the next batch (0 = no limit). Whatever the previous
  // call lent is invalid afterwards. Throws with nothing lost: bad_alloc, or
  // Error(KVC_INTERNAL) if the records contradict the mirror.
  void Drain(uint64_t max_events, uint64_t max_blocks);

  // The batch of the last Drain; remaining_bytes and pending_blocks are not set.
  void Lend(kvc_borrowed_batch* out) const;
  [[nodiscard]] bool batch_empty() const { return arrays().events.empty(); }

  // The mirror as it is now, to be read while drains go on. Not if Pinned().
  // Strong guarantee; throws as Mirror::Pin.
  [[nodiscard]] std::unique_ptr<Snapshot> Pin();
  // A snapshot of before is still being read.
  [[nodiscard]] bool Pinned() {
    mirror_.Unpin();
    return mirror_.pinned();
  }

  // All records have been projected.
  [[nodiscard]] bool Drained() const;

  [[nodiscard]] const Mirror& mirror() const { return mirror_; }
  [[nodiscard]] size_t scope_count() const { return scopes_.size(); }

 private:
  static constexpr size_t kWaveRecords = 64;
  static constexpr uint32_t kWaveBlocks = 1024;
  static constexpr size_t kNoJob = SIZE_MAX;

  // A record of the wave.
  struct Job {
    RecordKind kind;
    uint32_t count;
    uint32_t parent;  // store: node id or kRoot
    uint32_t scope;   // store under the root: index, with a user of its own
    uint32_t first;   // of the record's nodes in wave_nodes_ (and keys in wave_keys_)
    uint32_t low;     // smallest and largest node id
    uint32_t high;
    uint32_t hashed;  // keys computed so far
    uint32_t reason;  // removal: of all its blocks, or kMixedReasons
    bool started;
    size_t token_index;   // in the ring
    uint32_t digests;     // store: digest tokens; with any, each block has some
    size_t digest_index;  // of their digests in the ring
    uint64_t end;         // position behind the record
    // The parent's key is here, once job `waits_for` has hashed more than
    // `waits_for_block` blocks.
    const uint8_t* parent_key;
    size_t waits_for;
    uint32_t waits_for_block;
  };

  [[nodiscard]] BatchArrays& arrays() { return arrays_[current_]; }
  [[nodiscard]] const BatchArrays& arrays() const { return arrays_[current_]; }

  void BeginBatch();
  void Fill(uint64_t max_events, uint64_t max_blocks);
  void SkipSuperseded(uint64_t clear_position);
  bool BuildWave();
  void DropWave();
  void ReadReasons(const Job& job, size_t index);
  void FindParent(Job& job);
  void HashWave();
  void HashDigestBlocks(Job& job);
  void PutDigestTokens(const Job& job, size_t token_index, uint32_t blocks);
  // The digest of a record's token, until the next call.
  [[nodiscard]] const uint8_t* RecordDigest(const Job& job, uint32_t token) {
    ring_.Read(ring_.Advance(job.digest_index, size_t{token & ~kDigestBit} * kDigestWords),
               digest_words_, kDigestWords);
    return reinterpret_cast<const uint8_t*>(digest_words_);
  }
  size_t NextReadyJob(size_t& first_waiting);
  bool ProjectStore(const Job& job, uint64_t max_events, uint64_t max_blocks);
  bool ProjectRemove(const Job& job, uint64_t max_events, uint64_t max_blocks);
  void ProjectClear();
  void BeginStored(uint32_t parent, uint32_t scope);
  uint32_t BatchScope(uint32_t scope);

  [[nodiscard]] uint8_t* WaveKey(const Job& job, uint32_t block) {
    return &wave_keys_[(size_t{job.first} + block) * kKeyBytes];
  }
  [[nodiscard]] const uint8_t* WaveKey(const Job& job, uint32_t block) const {
    return &wave_keys_[(size_t{job.first} + block) * kKeyBytes];
  }
  [[nodiscard]] uint64_t Hash(const uint8_t* key) const {
    return WireHash(key, options_.hash_form) & options_.hash_mask;
  }
  [[nodiscard]] bool SameHash(uint32_t node, const uint8_t* key, uint64_t hash) const;

  const ProjectorOptions options_;
  const uint32_t tokens_per_block_;
  RecordRing& ring_;
  const RecordCounters& recorded_;
  DrainCounters& drained_;

  Mirror mirror_;
  HashIndex index_;
  ScopeTable scopes_;
  ChainHasher hasher_;

  std::vector<Job> wave_;
  size_t wave_next_ = 0;     // the job that is projected next
  uint32_t wave_block_ = 0;  // and how much of it has been
  std::vector<uint32_t> wave_nodes_;
  std::vector<uint8_t> wave_reasons_;  // of mixed removals
  std::vector<uint8_t> wave_keys_;
  std::vector<uint32_t> block_tokens_;  // of a block with digests that is being hashed
  uint32_t digest_words_[kDigestWords] = {};
  uint64_t records_read_ = 0;
  uint64_t end_ = 0;  // of what this drain looks at

  // The node whose block ends the last event, kNoNode if nothing may join it.
  static constexpr uint32_t kNoNode = UINT32_MAX;
  uint32_t last_node_ = kNoNode;
  uint64_t batch_ = 0;
  size_t current_ = 0;
  BatchArrays arrays_[2];  // the second only with poisoning
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_PROJECTOR_H_
