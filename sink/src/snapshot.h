// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Tells what a mirror held at one moment, as stored events: each block once,
// parents before their children, in as few events as there are chains' ends.
//
// From every block without children (in the order of the ids) the chain goes up
// to the first block that has been told of, and is told from there down. So each
// event is the longest there can be, nothing is visited more than twice, and the
// memory is two bits per block and the list of one chain.
#ifndef KVCAST_SINK_SRC_SNAPSHOT_H_
#define KVCAST_SINK_SRC_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_key.h"
#include "sink/src/batch_arrays.h"
#include "sink/src/mirror_chunks.h"
#include "sink/src/scope_table.h"

namespace kvcast {

// How the stream's events look.
struct SnapshotForm {
  kvc_hash_form hash_form;
  uint32_t max_blocks_per_event;
  uint64_t hash_mask;
  // Some blocks have a wire hash in common: subscribers know it once.
  bool doubles;
};

// Used by one thread at a time, beside the drainer.
class Snapshot {
 public:
  Snapshot(const SnapshotForm& form, WireScopes scopes);
  ~Snapshot() {
    if (version_ != nullptr) version_->released.store(true, std::memory_order_release);
  }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // What to tell of; without a version there is nothing.
  void Read(std::shared_ptr<MirrorVersion> version) noexcept { version_ = std::move(version); }

  // Lends the next batch, within the limits (0 = none); what the previous call
  // lent is invalid. False when all has been told. Throws bad_alloc with nothing
  // lost: the next call goes on where this one was.
  [[nodiscard]] bool Next(uint64_t max_events, uint64_t max_blocks, kvc_borrowed_batch* out);

  // Blocks in the version.
  [[nodiscard]] uint64_t blocks() const { return version_ == nullptr ? 0 : version_->size; }

 private:
  // A bit per block.
  class Bits {
   public:
    void Resize(size_t bits) { words_.assign((bits + 63) / 64, 0); }
    [[nodiscard]] bool Has(uint32_t i) const { return (words_[i / 64] >> i % 64 & 1) != 0; }
    void Set(uint32_t i) { words_[i / 64] |= uint64_t{1} << i % 64; }

   private:
    std::vector<uint64_t> words_;
  };

  void Prepare();
  void Fill(uint64_t max_events, uint64_t max_blocks);
  bool NextChain();
  void Begin(uint32_t parent, uint32_t scope);
  [[nodiscard]] uint32_t BatchScope(uint32_t scope);
  void PutTokens(uint32_t node);
  [[nodiscard]] uint64_t Hash(const uint8_t* key) const {
    return WireHash(key, form_.hash_form) & form_.hash_mask;
  }

  const SnapshotForm form_;
  const WireScopes scopes_;
  std::shared_ptr<MirrorVersion> version_;
  bool prepared_ = false;

  Bits parents_;  // blocks with children
  Bits told_;
  uint32_t next_leaf_ = 0;               // no leaf below it is untold, but for the chain's
  std::vector<uint32_t> chain_;          // what is told next, from the back
  std::unordered_set<uint64_t> hashes_;  // told, if there are doubles

  uint64_t batch_ = 0;
  struct Place {
    uint64_t batch = 0;
    uint32_t index = 0;
  };
  std::vector<Place> places_;  // of the scopes in the batch
  BatchArrays arrays_;
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_SNAPSHOT_H_
