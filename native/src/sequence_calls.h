// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the manager's calls on sequences share: sizes, small checks, the walk.
#ifndef KVCAST_NATIVE_SRC_SEQUENCE_CALLS_H_
#define KVCAST_NATIVE_SRC_SEQUENCE_CALLS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>

#include "native/src/manager.h"
#include "native/src/status.h"

namespace kvcast {

namespace sequences {

// Blocks are looked up in chunks: hash all, touch the table, touch the nodes,
// then compare, so that the cache misses of a chunk overlap. 64 blocks of 16
// tokens keep about 1,000 tokens of hashing ahead of the first miss.
inline constexpr uint32_t kMaxChunk = 64;
inline constexpr uint32_t kFirstChunk = 8;
inline constexpr uint32_t kChunkTokens = 1024;

inline uint32_t ChunkBlocks(uint32_t block_size) {
  return std::clamp(kChunkTokens / block_size, 4u, kMaxChunk);
}

// A probe lets writers pass after this many blocks, or after the blocks that
// hold this many tokens: hashing them is what takes the time.
inline constexpr uint64_t kProbeYield = 256;
inline constexpr uint64_t kProbeYieldTokens = 16 * kProbeYield;

// New blocks are offered to the sink in runs of this many.
inline constexpr uint32_t kRun = 256;

// A sequence slot keeps the memory of its list of pages for its next user, up
// to this many entries (131,072 tokens at 16 per block): more would add up.
inline constexpr size_t kKeptPages = 8192;

// Likewise the memory for the tokens of a suspended sequence: 128 KiB each.
inline constexpr size_t kKeptTokens = 32768;

// Removals, releases and holds run over page records at random places.
inline constexpr size_t kPrefetchAhead = 8;

// Digest tokens must name one of `digests` digests. *any says that there are some.
inline bool TokensInRange(const uint32_t* tokens, uint64_t count, uint32_t digests, bool* any) {
  *any = AnyDigest(tokens, count);
  if (!*any) return true;
  for (uint64_t i = 0; i < count; ++i) {
    if ((tokens[i] & kDigestBit) != 0 && (tokens[i] & ~kDigestBit) >= digests) return false;
  }
  return true;
}

inline bool Inside(uint64_t offset, uint64_t size, uint64_t whole) {
  return offset <= whole && size <= whole - offset;
}

// The first failed item of a call tells its story; the rest have their status.
inline kvc_status Item(kvc_error* error, kvc_status status, const char* message) {
  if (error != nullptr && error->status == KVC_OK) Fail(error, status, message);
  return status;
}

inline uint32_t NextGeneration(uint32_t generation) {
  return generation == UINT32_MAX ? 1 : generation + 1;
}

inline kvc_status Stale(kvc_error* error) {
  return Item(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
}

inline kvc_status Suspended(kvc_error* error) {
  return Item(error, KVC_BAD_STATE, "the sequence is suspended; resume it first");
}

inline constexpr const char* kCaptured =
    "the device stream is being captured into a graph, where the call's work would run again and "
    "again: repeat the call when the capture has ended";
inline kvc_status Captured(kvc_error* error) { return Item(error, KVC_BAD_STATE, kCaptured); }

}  // namespace sequences

// Follows the prompt from match->last on, for up to `blocks` blocks; hands what
// it finds to visit(ids, count), a chunk at a time.
template <typename Visit>
void Manager::Walk(Match* match, const uint32_t* tokens, uint64_t blocks, Visit&& visit) const {
  uint64_t hashes[sequences::kMaxChunk];
  NodeId found[sequences::kMaxChunk];
  const uint32_t full_chunk = sequences::ChunkBlocks(block_size_);
  uint32_t chunk = std::min(full_chunk, sequences::kFirstChunk);
  uint64_t hash = match->last_hash;
  for (uint64_t done = 0; done < blocks;) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(chunk, blocks - done));
    const uint32_t* block = tokens + done * block_size_;
    for (uint32_t i = 0; i < count; ++i) {
      hash = hash_.Block(hash, block + size_t{i} * block_size_);
      hashes[i] = hash;
      tree_.PrefetchSlot(hash);
    }
    for (uint32_t i = 0; i < count; ++i) tree_.PrefetchNode(hashes[i]);
    uint32_t hits = 0;
    for (; hits < count; ++hits) {
      const NodeId id = tree_.Find(hashes[hits], match->last, block + size_t{hits} * block_size_);
      if (id == kNil) break;
      found[hits] = id;
      match->last = id;
      match->last_hash = hashes[hits];
    }
    match->blocks += hits;
    if (hits != 0) visit(found, hits);
    if (hits < count) return;
    done += count;
    chunk = full_chunk;
  }
}

// Walk over the tokens of an item from block `first` on, as the caller gave them.
template <typename Visit>
void Manager::WalkItem(Match* match, const TokenView& tokens, uint64_t first, uint64_t blocks,
                       Visit&& visit) const {
  if (tokens.digests == nullptr) {
    Walk(match, tokens.tokens + first * block_size_, blocks, visit);
    return;
  }
  // Piece by piece through memory on the stack: probes run side by side.
  uint32_t piece[kMaxTokensPerBlock];
  const uint64_t fitting = kMaxTokensPerBlock / block_size_;
  for (uint64_t done = 0; done < blocks;) {
    const uint64_t count = std::min(fitting, blocks - done);
    const uint64_t known =
        Translate(tokens, (first + done) * block_size_, count * block_size_, piece) / block_size_;
    const uint64_t before = match->blocks;
    Walk(match, piece, known, visit);
    if (match->blocks - before < count) return;
    done += count;
  }
}

// Looks the prompt up under the shared lock, which writers may take in between;
// hands what it finds to visit(ids, count). *pending is the number of blocks behind
// them that are being computed.
template <typename Visit>
uint64_t Manager::ProbeOne(const PromptView& prompt, Visit&& visit, uint64_t* pending) const {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  Match match;
  match.root = tree_.FindRoot(prompt.scope);
  if (match.root == kNil) return 0;
  match.last = RootParent(match.root);
  match.last_hash = tree_.root(match.root).hash;
  while (match.blocks < prompt.blocks) {
    const uint64_t before = match.blocks;
    const uint64_t step =
        std::min(prompt.blocks - before, std::clamp(sequences::kProbeYieldTokens / block_size_,
                                                    uint64_t{1}, sequences::kProbeYield));
    WalkItem(&match, prompt.tokens, before, step, visit);
    if (match.blocks - before < step || match.blocks == prompt.blocks) break;
    if (hooks_.on_probe_step != nullptr) hooks_.on_probe_step(hooks_.context);
    if (!mutex_.writer_waiting()) continue;
    const uint32_t generation = tree_.node(match.last).generation;
    lock.unlock();
    lock.lock();
    // A node that is still the same still has the whole path before it.
    if (!tree_.alive(match.last) || tree_.node(match.last).generation != generation) {
      return match.blocks;
    }
  }
  uint32_t owner = kNil;
  if (pending != nullptr) *pending = FindPending(match, prompt.tokens, prompt.blocks, &owner);
  return match.blocks;
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SEQUENCE_CALLS_H_
