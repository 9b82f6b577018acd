// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "sink/src/projector.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "native/src/status.h"

namespace kvcast {
namespace projector {

[[noreturn]] void Contradiction(const char* what) { throw Error(KVC_INTERNAL, what); }

}  // namespace projector

Projector::Projector(const ProjectorOptions& options, uint32_t tokens_per_block,
                     uint32_t max_blocks, RecordRing& ring, const RecordCounters& recorded,
                     DrainCounters& drained)
    : options_(options),
      tokens_per_block_(tokens_per_block),
      ring_(ring),
      recorded_(recorded),
      drained_(drained),
      mirror_(max_blocks, tokens_per_block),
      index_(max_blocks),
      hasher_(tokens_per_block),
      wave_nodes_(kWaveBlocks),
      wave_reasons_(kWaveBlocks),
      wave_keys_(size_t{kWaveBlocks} * kKeyBytes),
      block_tokens_(tokens_per_block) {
  wave_.reserve(kWaveRecords);
}

bool Projector::Drained() const {
  return wave_next_ == wave_.size() && ring_.read_position() == ring_.ReadableEnd();
}

void Projector::BeginBatch() {
  if constexpr (kPoisonDrain) {
    arrays().Poison();
    current_ ^= 1;
  }
  arrays().Clear();
  ++batch_;
  last_node_ = kNoNode;
}

void Projector::Drain(uint64_t max_events, uint64_t max_blocks) {
  mirror_.Unpin();
  BeginBatch();
  try {
    Fill(max_events == 0 ? UINT64_MAX : max_events, max_blocks == 0 ? UINT64_MAX : max_blocks);
  } catch (...) {
    // What is in the batch already is good; the trouble will show again next time.
    if (batch_empty()) throw;
  }
  uint64_t stored = 0;
  uint64_t removed = 0;
  for (const kvc_event& event : arrays().events) {
    (event.kind == KVC_EVENT_STORED ? stored : removed) += event.hash_count;
  }
  if (!batch_empty()) Bump(drained_.batches);
  Bump(drained_.events, arrays().events.size());
  Bump(drained_.stored_blocks, stored);
  Bump(drained_.removed_blocks, removed);
  drained_.mirror_blocks.store(mirror_.size(), std::memory_order_relaxed);
}

void Projector::Fill(uint64_t max_events, uint64_t max_blocks) {
  // What is recorded while we work is for the next drain: beside a writer that
  // refills what is given back, a drain without limits would never end.
  end_ = ring_.ReadableEnd();
  for (;;) {
    const uint64_t clear_position = recorded_.clear_position.load(std::memory_order_acquire);
    if (clear_position != RecordCounters::kNoClear && clear_position > ring_.read_position()) {
      if (!batch_empty()) return;
      SkipSuperseded(clear_position);
      end_ = std::max(end_, clear_position + kClearWords);
    }
    if (wave_next_ == wave_.size() && !BuildWave()) return;
    while (wave_next_ < wave_.size()) {
      const Job& job = wave_[wave_next_];
      if (job.kind == RecordKind::kClear) {
        if (!batch_empty()) return;
        ProjectClear();
      } else if (job.kind == RecordKind::kRemove) {
        if (!ProjectRemove(job, max_events, max_blocks)) return;
      } else {
        if (!ProjectStore(job, max_events, max_blocks)) return;
        if (job.kind == RecordKind::kStoreRoot) scopes_.Release(job.scope);
        Bump(drained_.consumed_blocks, job.count);
      }
      ++records_read_;
      ++wave_next_;
      wave_block_ = 0;
      // After everything that was read from the record.
      ring_.Release(job.end);
      if (job.kind == RecordKind::kClear) return;
    }
  }
}

// Goes to a clear record that lies ahead without looking at what is before it.
void Projector::SkipSuperseded(uint64_t clear_position) {
  DropWave();
  const size_t index = ring_.Index(clear_position);
  uint32_t words[kClearWords];
  ring_.Read(index, words, kClearWords);
  const uint64_t records = words[1] | uint64_t{words[2]} << 32;
  const uint64_t blocks = words[3] | uint64_t{words[4]} << 32;
  Bump(drained_.superseded_records, records - records_read_);
  records_read_ = records;
  drained_.consumed_blocks.store(blocks, std::memory_order_relaxed);
  ring_.Release(clear_position);
}

void Projector::DropWave() {
  for (size_t i = wave_next_; i < wave_.size(); ++i) {
    if (wave_[i].kind == RecordKind::kStoreRoot) scopes_.Release(wave_[i].scope);
  }
  wave_.clear();
  wave_next_ = 0;
  wave_block_ = 0;
}

// Reads the next records and computes their keys. False if there are none.
bool Projector::BuildWave() {
  wave_.clear();
  wave_next_ = 0;
  uint64_t position = ring_.read_position();
  uint32_t blocks = 0;
  try {
    while (position < end_ && wave_.size() < kWaveRecords) {
      size_t index = ring_.Index(position);
      const uint32_t header = ring_.At(index);
      index = ring_.Advance(index, 1);
      Job job{};
      job.kind = RecordKindOf(header);
      job.count = RecordCountOf(header);
      job.parent = StoreRun::kRoot;
      job.scope = ScopeTable::kNone;
      job.first = blocks;
      job.waits_for = kNoJob;
      if (job.kind == RecordKind::kClear) {
        job.end = position + kClearWords;
        wave_.push_back(job);
        // Its own wave's keys were computed from the mirror before it.
        break;
      }
      if (job.count == 0 || job.count > kMaxRunBlocks ||
          (job.kind != RecordKind::kStoreChild && job.kind != RecordKind::kStoreRoot &&
           job.kind != RecordKind::kRemove)) {
        projector::Contradiction("the record buffer holds something that is not a record");
      }
      if (blocks + job.count > kWaveBlocks) break;
      uint64_t words = 1 + uint64_t{job.count};
      uint32_t scope_words[kMaxScopeWords];
      uint32_t scope_count = 0;
      if (job.kind == RecordKind::kStoreChild) {
        job.parent = ring_.At(index);
        index = ring_.Advance(index, 1);
        ++words;
      } else if (job.kind == RecordKind::kStoreRoot) {
        scope_count = ScopeWords::Count(ring_.At(index));
        ring_.Read(index, scope_words, scope_count);
        index = ring_.Advance(index, scope_count);
        words += scope_count;
      }
      ring_.Read(index, &wave_nodes_[blocks], job.count);
      index = ring_.Advance(index, job.count);
      if ((header & kRecordDigests) != 0) {
        job.digests = ring_.At(index);
        index = ring_.Advance(index, 1);
        words += 1 + uint64_t{job.digests} * kDigestWords;
      }
      job.low = UINT32_MAX;
      for (uint32_t i = 0; i < job.count; ++i) {
        const uint32_t node = wave_nodes_[blocks + i];
        job.low = std::min(job.low, node);
        job.high = std::max(job.high, node);
      }
      if (job.high >= mirror_.max_blocks()) {
        projector::Contradiction("a record names a block that cannot exist");
      }
      if (job.kind == RecordKind::kRemove) {
        job.reason = RemovalReasonOf(header);
        if (job.reason > kRemovalReasons) {
          projector::Contradiction("a removal has a reason that does not exist");
        }
        if (job.reason == kMixedReasons) {
          ReadReasons(job, index);
          words += ReasonWords(job.count);
        }
        for (uint32_t i = 0; i < job.count; ++i) mirror_.Prefetch(wave_nodes_[blocks + i]);
      } else {
        job.token_index = index;
        job.digest_index = ring_.Advance(index, size_t{job.count} * tokens_per_block_);
        words += uint64_t{job.count} * tokens_per_block_;
        if (job.kind == RecordKind::kStoreRoot) {
          job.scope = scopes_.Acquire(scope_words, scope_count);
          job.parent_key = scopes_.at(job.scope).root_key;
        } else {
          FindParent(job);
        }
      }
      position += words;
      job.end = position;
      blocks += job.count;
      wave_.push_back(job);
    }
  } catch (...) {
    DropWave();
    throw;
  }
  HashWave();
  // Where removed blocks stand in the index; the mirror's lines were asked for
  // above, and blocks stored in this very wave have had their turn. (Not in a
  // function of its own: compilers take one that only prefetches for useless.)
  for (const Job& job : wave_) {
    if (job.kind != RecordKind::kRemove) continue;
    for (uint32_t i = job.first; i < job.first + job.count; ++i) {
      const uint32_t node = wave_nodes_[i];
      if (mirror_.Has(node)) index_.Prefetch(Hash(mirror_.at(node).key));
    }
  }
  return !wave_.empty();
}

// Why the blocks of a mixed removal went.
void Projector::ReadReasons(const Job& job, size_t index) {
  uint32_t words[ReasonWords(kMaxRunBlocks)];
  ring_.Read(index, words, ReasonWords(job.count));
  std::memcpy(&wave_reasons_[job.first], words, job.count);
}

// The newest store of the parent: in the wave, else in the mirror, which shows
// the state just before the wave.
void Projector::FindParent(Job& job) {
  for (size_t i = wave_.size(); i-- > 0;) {
    const Job& other = wave_[i];
    if (job.parent < other.low || job.parent > other.high) continue;
    const uint32_t* nodes = &wave_nodes_[other.first];
    // From the end: a run mostly continues where another one ended.
    for (uint32_t block = other.count; block-- > 0;) {
      if (nodes[block] != job.parent) continue;
      if (other.kind == RecordKind::kRemove) {
        projector::Contradiction("a block was stored under a parent that had been removed");
      }
      job.waits_for = i;
      job.waits_for_block = block;
      job.parent_key = WaveKey(other, block);
      return;
    }
  }
  if (!mirror_.Has(job.parent)) {
    projector::Contradiction("a block was stored under a parent that is not announced");
  }
  job.parent_key = mirror_.at(job.parent).key;
}

// The first store, in record order, that nobody works on and whose parent's key
// is known. All jobs before first_waiting are taken.
size_t Projector::NextReadyJob(size_t& first_waiting) {
  while (first_waiting < wave_.size() && wave_[first_waiting].started) ++first_waiting;
  for (size_t i = first_waiting; i < wave_.size(); ++i) {
    const Job& job = wave_[i];
    if (job.started) continue;
    if (job.waits_for == kNoJob || wave_[job.waits_for].hashed > job.waits_for_block) return i;
  }
  return kNoJob;
}

void Projector::HashWave() {
  for (Job& job : wave_) {
    job.started = job.kind != RecordKind::kStoreChild && job.kind != RecordKind::kStoreRoot;
  }
  size_t first_waiting = 0;
  size_t lane_jobs[kSha256Lanes];
  uint32_t lanes = 0;
  for (;;) {
    while (lanes < kSha256Lanes) {
      const size_t next = NextReadyJob(first_waiting);
      if (next == kNoJob) break;
      wave_[next].started = true;
      if (wave_[next].digests != 0) {
        HashDigestBlocks(wave_[next]);
      } else {
        lane_jobs[lanes++] = next;
      }
    }
    if (lanes == 0) return;
    const uint8_t* parents[kSha256Lanes];
    uint8_t* outs[kSha256Lanes];
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const Job& job = wave_[lane_jobs[lane]];
      parents[lane] = job.hashed == 0 ? job.parent_key : WaveKey(job, job.hashed - 1);
      outs[lane] = WaveKey(job, job.hashed);
      uint8_t* message = hasher_.MessageTokens(lane);
      ring_.Visit(ring_.Advance(job.token_index, size_t{job.hashed} * tokens_per_block_),
                  tokens_per_block_, [&message](const uint32_t* tokens, size_t n) {
                    StoreTokens(message, tokens, static_cast<uint32_t>(n));
                    message += n * sizeof *tokens;
                  });
    }
    hasher_.HashMessages(lanes, parents, outs);
    for (uint32_t lane = lanes; lane-- > 0;) {
      Job& job = wave_[lane_jobs[lane]];
      // Where the block will go, while the next ones are being hashed.
      const uint32_t node = wave_nodes_[job.first + job.hashed];
      index_.Prefetch(Hash(outs[lane]));
      mirror_.Prefetch(node);
      mirror_.PrefetchTokens(node);
      if (++job.hashed == job.count) lane_jobs[lane] = lane_jobs[--lanes];
    }
  }
}

// Messages of lanes have one length; those of blocks with digests have many. They
// are few: one per image and as many as it has digests.
void Projector::HashDigestBlocks(Job& job) {
  const uint8_t* above = job.parent_key;
  for (uint32_t block = 0; block < job.count; ++block) {
    ring_.Read(ring_.Advance(job.token_index, size_t{block} * tokens_per_block_),
               block_tokens_.data(), tokens_per_block_);
    uint8_t* key = WaveKey(job, block);
    BlockKey(
        above, block_tokens_.data(), tokens_per_block_,
        [&](uint32_t token) { return RecordDigest(job, token); }, key);
    above = key;
  }
  job.hashed = job.count;
}

// Tokens of a multimodal store, to the end of the batch's last event.
void Projector::PutDigestTokens(const Job& job, size_t token_index, uint32_t blocks) {
  BatchArrays& batch = arrays();
  kvc_event& event = batch.events.back();
  ring_.Visit(token_index, size_t{blocks} * tokens_per_block_,
              [&](const uint32_t* tokens, size_t n) {
                for (size_t i = 0; i < n; ++i) {
                  if ((tokens[i] & kDigestBit) == 0) {
                    batch.tokens.push_back(tokens[i]);
                    continue;
                  }
                  const uint8_t* digest = RecordDigest(job, tokens[i]);
                  batch.tokens.push_back(kDigestBit | event.multimodal_count++);
                  batch.multimodal.insert(batch.multimodal.end(), digest, digest + kDigestBytes);
                }
              });
}

bool Projector::SameHash(uint32_t node, const uint8_t* key, uint64_t hash) const {
  const uint8_t* other = mirror_.at(node).key;
  if (options_.hash_form == KVC_HASH_BYTES) return std::memcmp(other, key, kKeyBytes) == 0;
  return Hash(other) == hash;
}

// The batch's index of a scope. The room has been taken already.
uint32_t Projector::BatchScope(uint32_t scope) {
  ScopeTable::Entry& entry = scopes_.at(scope);
  if (entry.batch != batch_) {
    BatchArrays& batch = arrays();
    kvc_event_scope out{};
    out.parts = entry.parts;
    out.lora_id = entry.lora_id;
    out.lora_name_offset = batch.strings.size();
    out.lora_name_size = static_cast<uint32_t>(entry.lora_name.size());
    batch.strings.insert(batch.strings.end(), entry.lora_name.begin(), entry.lora_name.end());
    entry.batch = batch_;
    entry.batch_index = static_cast<uint32_t>(batch.scopes.size());
    batch.scopes.push_back(out);
  }
  return entry.batch_index;
}

void Projector::BeginStored(uint32_t parent, uint32_t scope) {
  BatchArrays& batch = arrays();
  kvc_event event{};
  event.kind = KVC_EVENT_STORED;
  event.scope = BatchScope(scope);
  event.block_size = tokens_per_block_;
  event.hash_offset = batch.hashes.size();
  event.token_offset = batch.tokens.size();
  event.multimodal_offset = batch.multimodal.size() / kDigestBytes;
  event.medium = KVC_MEDIUM_GPU;
  const uint8_t* parent_key = nullptr;
  if (parent != StoreRun::kRoot) {
    parent_key = mirror_.at(parent).key;
    event.flags = KVC_EVENT_HAS_PARENT;
    event.parent_hash = Hash(parent_key);
  }
  batch.events.push_back(event);
  if (options_.hash_form == KVC_HASH_BYTES) {
    const size_t at = batch.parent_digests.size();
    batch.parent_digests.resize(at + kKeyBytes);
    if (parent_key != nullptr) std::memcpy(&batch.parent_digests[at], parent_key, kKeyBytes);
  }
}

bool Projector::ProjectStore(const Job& job, uint64_t max_events, uint64_t max_blocks) {
  BatchArrays& batch = arrays();
  const uint32_t* nodes = &wave_nodes_[job.first];
  const bool bytes = options_.hash_form == KVC_HASH_BYTES;
  while (wave_block_ < job.count) {
    const uint32_t parent = wave_block_ == 0 ? job.parent : nodes[wave_block_ - 1];
    if (parent != StoreRun::kRoot && !mirror_.Has(parent)) {
      projector::Contradiction("a block was stored under a parent that is not announced");
    }
    const uint32_t scope = parent == StoreRun::kRoot ? job.scope : mirror_.at(parent).scope;
    bool open = parent != StoreRun::kRoot && last_node_ == parent &&
                batch.events.back().hash_count < options_.max_blocks_per_event;
    const uint64_t room =
        options_.max_blocks_per_event - (open ? batch.events.back().hash_count : 0);
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(room, job.count - wave_block_));
    if (!batch_empty() && (batch.hashes.size() + piece > max_blocks ||
                           (!open && batch.events.size() >= max_events))) {
      return false;
    }
    // All that can fail comes before all that changes anything.
    BatchArrays::Grow(batch.hashes, piece);
    batch.GrowReasons(piece);
    BatchArrays::Grow(batch.tokens, size_t{piece} * tokens_per_block_);
    if (bytes) BatchArrays::Grow(batch.digests, size_t{piece} * kKeyBytes);
    if (job.digests != 0) {
      BatchArrays::Grow(batch.multimodal, size_t{job.digests} * kDigestBytes);
      mirror_.ReserveDigests(job.digests);
    }
    if (!open) {
      BatchArrays::Grow(batch.events, 1);
      BatchArrays::Grow(batch.scopes, 1);
      BatchArrays::Grow(batch.strings, kMaxScopeText);
      if (bytes) BatchArrays::Grow(batch.parent_digests, kKeyBytes);
    }
    const uint32_t end = wave_block_ + piece;
    uint32_t sent = 0;
    size_t token_index = ring_.Advance(job.token_index, size_t{wave_block_} * tokens_per_block_);
    const size_t sent_index = token_index;
    uint32_t above = parent;
    bool contradiction = false;
    bool taken = false;
    while (wave_block_ < end && !taken) {
      const uint32_t node = nodes[wave_block_];
      contradiction = mirror_.Has(node);
      if (contradiction) break;
      const uint8_t* key = WaveKey(job, wave_block_);
      const uint64_t hash = Hash(key);
      taken = index_.Insert(hash, node, [&](uint32_t other) { return SameHash(other, key, hash); });
      mirror_.Put(node, key, above, scope, ring_, token_index);
      if (job.digests != 0) {
        mirror_.OwnDigests(node, [&](uint32_t token) { return RecordDigest(job, token); });
      }
      ++wave_block_;
      if (taken) break;
      if (!open) {
        BeginStored(above, scope);
        open = true;
      }
      batch.hashes.push_back(hash);
      if (bytes) batch.digests.insert(batch.digests.end(), key, key + kKeyBytes);
      ++sent;
      above = node;
      token_index = ring_.Advance(token_index, tokens_per_block_);
    }
    scopes_.AddUsers(scope, sent + (taken ? 1 : 0));
    if (sent != 0) {
      if (job.digests != 0) {
        PutDigestTokens(job, sent_index, sent);
      } else {
        ring_.Visit(sent_index, size_t{sent} * tokens_per_block_,
                    [&batch](const uint32_t* tokens, size_t n) {
                      batch.tokens.insert(batch.tokens.end(), tokens, tokens + n);
                    });
      }
      kvc_event& event = batch.events.back();
      event.hash_count += sent;
      std::memset(&batch.reasons[batch.hashes.size() - sent], 0, sent);
      event.token_count += uint64_t{sent} * tokens_per_block_;
      last_node_ = above;
    }
    // Subscribers know this hash already. What follows hangs on it in an event of
    // its own, since its parent is not the event's last block.
    if (taken) Bump(drained_.hash_collisions);
    if (contradiction) projector::Contradiction("a block was stored that is announced already");
  }
  return true;
}

bool Projector::ProjectRemove(const Job& job, uint64_t max_events, uint64_t max_blocks) {
  BatchArrays& batch = arrays();
  const uint32_t* nodes = &wave_nodes_[job.first];
  const bool bytes = options_.hash_form == KVC_HASH_BYTES;
  bool open = !batch_empty() && batch.events.back().kind == KVC_EVENT_REMOVED &&
              batch.events.back().hash_count + job.count <= ProjectorOptions::kWireBlocksPerEvent;
  if (!batch_empty() && (batch.hashes.size() + job.count > max_blocks ||
                         (!open && batch.events.size() >= max_events))) {
    return false;
  }
  BatchArrays::Grow(batch.hashes, job.count);
  batch.GrowReasons(job.count);
  BatchArrays::Grow(batch.events, 1);
  if (bytes) {
    BatchArrays::Grow(batch.digests, size_t{job.count} * kKeyBytes);
    BatchArrays::Grow(batch.parent_digests, kKeyBytes);
  }
  while (wave_block_ < job.count) {
    const uint32_t node = nodes[wave_block_];
    if (!mirror_.Has(node)) {
      projector::Contradiction("a block was removed that is not announced");
    }
    const Mirror::Block& block = mirror_.at(node);
    const uint64_t hash = Hash(block.key);
    const bool remains =
        index_.Erase(hash, node, [&](uint32_t other) { return SameHash(other, block.key, hash); });
    if (!remains) {
      if (!open) {
        kvc_event event{};
        event.kind = KVC_EVENT_REMOVED;
        event.hash_offset = batch.hashes.size();
        event.token_offset = batch.tokens.size();
        event.medium = KVC_MEDIUM_GPU;
        batch.events.push_back(event);
        if (bytes) batch.parent_digests.resize(batch.parent_digests.size() + kKeyBytes);
        open = true;
      }
      batch.reasons[batch.hashes.size()] = job.reason != kMixedReasons
                                               ? static_cast<uint8_t>(job.reason)
                                               : wave_reasons_[job.first + wave_block_];
      batch.hashes.push_back(hash);
      if (bytes) batch.digests.insert(batch.digests.end(), block.key, block.key + kKeyBytes);
      ++batch.events.back().hash_count;
    }
    scopes_.Release(block.scope);
    mirror_.Erase(node);
    ++wave_block_;
  }
  // Also when nothing was sent: the id may come back as another block.
  last_node_ = kNoNode;
  return true;
}

void Projector::ProjectClear() {
  BatchArrays& batch = arrays();
  BatchArrays::Grow(batch.events, 1);
  if (options_.hash_form == KVC_HASH_BYTES) BatchArrays::Grow(batch.parent_digests, kKeyBytes);
  kvc_event event{};
  event.kind = KVC_EVENT_CLEARED;
  event.medium = KVC_MEDIUM_GPU;
  batch.events.push_back(event);
  if (options_.hash_form == KVC_HASH_BYTES) batch.parent_digests.resize(kKeyBytes);
  if (mirror_.size() != 0) index_.Clear();
  mirror_.Clear();
  scopes_.Clear();
}

void Projector::Lend(kvc_borrowed_batch* out) const {
  arrays().Lend(options_.hash_form == KVC_HASH_BYTES, out);
}

std::unique_ptr<Snapshot> Projector::Pin() {
  auto scopes = scopes_.Wire();
  const SnapshotForm form{options_.hash_form, options_.max_blocks_per_event, options_.hash_mask,
                          index_.has_doubles()};
  auto snapshot = std::make_unique<Snapshot>(form, std::move(scopes));
  snapshot->Read(mirror_.Pin());
  return snapshot;
}

}  // namespace kvcast
