// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "sink/src/snapshot.h"

#include <algorithm>
#include <utility>

#include "native/src/digest_table.h"
#include "native/src/event_sink.h"
#include "sink/src/prefetch.h"

namespace kvcast {
namespace snapshot {

constexpr size_t kPrefetchBlocks = 8;

}  // namespace snapshot

Snapshot::Snapshot(const SnapshotForm& form, WireScopes scopes)
    : form_(form), scopes_(std::move(scopes)) {}

bool Snapshot::Next(uint64_t max_events, uint64_t max_blocks, kvc_borrowed_batch* out) {
  if (kPoisonDrain) arrays_.Poison();
  arrays_.Clear();
  ++batch_;
  try {
    if (!prepared_) Prepare();
    if (blocks() != 0) {
      Fill(max_events == 0 ? UINT64_MAX : max_events, max_blocks == 0 ? UINT64_MAX : max_blocks);
    }
  } catch (...) {
    // What is in the batch already is good; the trouble will show again next time.
    if (arrays_.events.empty()) throw;
  }
  arrays_.Lend(form_.hash_form == KVC_HASH_BYTES, out);
  return !arrays_.events.empty();
}

// Not when the version is made: whoever makes it is to be held up no longer than
// it takes to copy some lists.
void Snapshot::Prepare() {
  places_.resize(scopes_.entries.size());
  if (blocks() != 0) {
    const uint32_t max_blocks = version_->max_blocks;
    told_.Resize(max_blocks);
    parents_.Resize(max_blocks);
    for (uint32_t node = 0; node < max_blocks; ++node) {
      const MirrorBlock& block = version_->at(node);
      if (block.scope != MirrorBlock::kAbsent && block.parent != StoreRun::kRoot) {
        parents_.Set(block.parent);
      }
    }
  }
  prepared_ = true;
}

// Fills chain_ with the way to the next untold leaf. False if there is none.
bool Snapshot::NextChain() {
  for (; next_leaf_ < version_->max_blocks; ++next_leaf_) {
    if (!version_->Has(next_leaf_) || parents_.Has(next_leaf_) || told_.Has(next_leaf_)) continue;
    try {
      uint32_t node = next_leaf_;
      do {
        chain_.push_back(node);
        node = version_->at(node).parent;
      } while (node != StoreRun::kRoot && !told_.Has(node));
    } catch (...) {
      chain_.clear();
      throw;
    }
    ++next_leaf_;
    return true;
  }
  return false;
}

void Snapshot::Fill(uint64_t max_events, uint64_t max_blocks) {
  BatchArrays& batch = arrays_;
  const bool bytes = form_.hash_form == KVC_HASH_BYTES;
  const uint32_t tokens_per_block = version_->layout.tokens_per_block();
  bool open = false;  // the next block of the chain may join the last event
  for (;;) {
    if (chain_.empty()) {
      open = false;
      if (!NextChain()) return;
    }
    while (!chain_.empty()) {
      if (open && batch.events.back().hash_count >= form_.max_blocks_per_event) open = false;
      if (batch.hashes.size() >= max_blocks || (!open && batch.events.size() >= max_events)) return;
      const uint32_t node = chain_.back();
      if (chain_.size() > snapshot::kPrefetchBlocks) {
        const uint32_t ahead = chain_[chain_.size() - 1 - snapshot::kPrefetchBlocks];
        PrefetchForRead(&version_->at(ahead));
        PrefetchForRead(version_->Tokens(ahead));
      }
      const MirrorBlock& block = version_->at(node);
      const uint32_t* tokens = version_->Tokens(node);
      const uint64_t hash = Hash(block.key);
      // All that can fail comes before all that changes anything.
      BatchArrays::Grow(batch.hashes, 1);
      batch.GrowReasons(1);
      BatchArrays::Grow(batch.tokens, tokens_per_block);
      if (bytes) BatchArrays::Grow(batch.digests, kKeyBytes);
      if (AnyDigest(tokens, tokens_per_block)) {
        BatchArrays::Grow(batch.multimodal, size_t{tokens_per_block} * kDigestBytes);
      }
      if (!open) {
        BatchArrays::Grow(batch.events, 1);
        BatchArrays::Grow(batch.scopes, 1);
        BatchArrays::Grow(batch.strings, scopes_.entries[block.scope].name_size);
        if (bytes) BatchArrays::Grow(batch.parent_digests, kKeyBytes);
      }
      const bool known = form_.doubles && !bytes && !hashes_.insert(hash).second;
      told_.Set(node);
      chain_.pop_back();
      if (known) {
        // What follows hangs on it in an event of its own, as it did live.
        open = false;
        continue;
      }
      if (!open) {
        Begin(block.parent, block.scope);
        open = true;
      }
      kvc_event& event = batch.events.back();
      batch.reasons[batch.hashes.size()] = 0;
      batch.hashes.push_back(hash);
      if (bytes) batch.digests.insert(batch.digests.end(), block.key, block.key + kKeyBytes);
      PutTokens(node);
      ++event.hash_count;
      event.token_count += tokens_per_block;
    }
  }
}

void Snapshot::Begin(uint32_t parent, uint32_t scope) {
  BatchArrays& batch = arrays_;
  kvc_event event{};
  event.kind = KVC_EVENT_STORED;
  event.scope = BatchScope(scope);
  event.block_size = version_->layout.tokens_per_block();
  event.hash_offset = batch.hashes.size();
  event.token_offset = batch.tokens.size();
  event.multimodal_offset = batch.multimodal.size() / kDigestBytes;
  event.medium = KVC_MEDIUM_GPU;
  const uint8_t* parent_key = nullptr;
  if (parent != StoreRun::kRoot) {
    parent_key = version_->at(parent).key;
    event.flags = KVC_EVENT_HAS_PARENT;
    event.parent_hash = Hash(parent_key);
  }
  batch.events.push_back(event);
  if (form_.hash_form == KVC_HASH_BYTES) {
    const size_t at = batch.parent_digests.size();
    batch.parent_digests.resize(at + kKeyBytes);
    if (parent_key != nullptr) std::copy_n(parent_key, kKeyBytes, &batch.parent_digests[at]);
  }
}

// The batch's index of a scope. The room has been taken already.
uint32_t Snapshot::BatchScope(uint32_t scope) {
  Place& place = places_[scope];
  if (place.batch != batch_) {
    BatchArrays& batch = arrays_;
    const WireScopes::Entry& entry = scopes_.entries[scope];
    kvc_event_scope out{};
    out.parts = entry.parts;
    out.lora_id = entry.lora_id;
    out.lora_name_offset = batch.strings.size();
    out.lora_name_size = entry.name_size;
    const char* name = scopes_.names.data() + entry.name;
    batch.strings.insert(batch.strings.end(), name, name + entry.name_size);
    place.batch = batch_;
    place.index = static_cast<uint32_t>(batch.scopes.size());
    batch.scopes.push_back(out);
  }
  return place.index;
}

// To the end of the last event; the room has been taken already.
void Snapshot::PutTokens(uint32_t node) {
  BatchArrays& batch = arrays_;
  kvc_event& event = batch.events.back();
  const uint32_t* tokens = version_->Tokens(node);
  for (uint32_t i = 0; i < version_->layout.tokens_per_block(); ++i) {
    if ((tokens[i] & kDigestBit) == 0) {
      batch.tokens.push_back(tokens[i]);
      continue;
    }
    const uint8_t* digest = version_->Digest(tokens[i]);
    batch.tokens.push_back(kDigestBit | event.multimodal_count++);
    batch.multimodal.insert(batch.multimodal.end(), digest, digest + kDigestBytes);
  }
}

}  // namespace kvcast
