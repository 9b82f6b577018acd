// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the mirror is made of: chunks of blocks with their tokens, some of them
// shared with a version of it that somebody reads.
#ifndef KVCAST_SINK_SRC_MIRROR_CHUNKS_H_
#define KVCAST_SINK_SRC_MIRROR_CHUNKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/src/block_key.h"

namespace kvcast {

struct MirrorBlock {
  static constexpr uint32_t kAbsent = UINT32_MAX;

  uint8_t key[kKeyBytes];
  uint32_t parent;           // node id, or StoreRun::kRoot
  uint32_t scope = kAbsent;  // index of the chain's scope; kAbsent: no such block
};

// Where a block stands in a chunk: first all blocks, then all tokens. A chunk
// begins with a cache line, and so do its tokens: those of a block of 16 lie in
// one.
class ChunkLayout {
 public:
  // The first write to a chunk that a version shares copies it, in the middle of
  // a drain: 26 KiB with blocks of 16 tokens, some microseconds. Smaller chunks
  // make the list longer that a version copies at once (4096 entries for a
  // million blocks).
  static constexpr uint32_t kBlocks = 256;
  static constexpr size_t kLineBytes = 64;

  explicit ChunkLayout(uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  [[nodiscard]] uint32_t tokens_per_block() const { return tokens_per_block_; }
  [[nodiscard]] size_t bytes() const {
    return kTokensAt + size_t{kBlocks} * tokens_per_block_ * sizeof(uint32_t);
  }
  [[nodiscard]] static size_t Chunk(uint32_t node) { return node / kBlocks; }
  [[nodiscard]] static size_t Chunks(uint32_t max_blocks) {
    return (size_t{max_blocks} + kBlocks - 1) / kBlocks;
  }
  [[nodiscard]] static MirrorBlock* Block(std::byte* chunk, uint32_t node) {
    return reinterpret_cast<MirrorBlock*>(chunk) + node % kBlocks;
  }
  [[nodiscard]] static const MirrorBlock* Block(const std::byte* chunk, uint32_t node) {
    return reinterpret_cast<const MirrorBlock*>(chunk) + node % kBlocks;
  }
  [[nodiscard]] uint32_t* Tokens(std::byte* chunk, uint32_t node) const {
    return reinterpret_cast<uint32_t*>(chunk + kTokensAt) +
           size_t{node % kBlocks} * tokens_per_block_;
  }
  [[nodiscard]] const uint32_t* Tokens(const std::byte* chunk, uint32_t node) const {
    return reinterpret_cast<const uint32_t*>(chunk + kTokensAt) +
           size_t{node % kBlocks} * tokens_per_block_;
  }

 private:
  static constexpr size_t kTokensAt = kBlocks * sizeof(MirrorBlock);
  static_assert(kTokensAt % kLineBytes == 0);

  uint32_t tokens_per_block_;
};

// Memory for so many chunks. Not touched: what is never used takes none.
class ChunkMemory {
 public:
  void Allocate(size_t chunks, size_t chunk_bytes) {
    size_t space = chunks * chunk_bytes + ChunkLayout::kLineBytes;
    memory_ = std::unique_ptr<std::byte[]>(new std::byte[space]);
    void* start = memory_.get();
    start_ = static_cast<std::byte*>(
        std::align(ChunkLayout::kLineBytes, chunks * chunk_bytes, start, space));
    chunk_bytes_ = chunk_bytes;
  }
  [[nodiscard]] bool allocated() const { return memory_ != nullptr; }
  [[nodiscard]] std::byte* chunk(size_t i) const { return start_ + i * chunk_bytes_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* start_ = nullptr;
  size_t chunk_bytes_ = 0;
};

// The mirror as it was at one moment. Nothing in it changes until it has been
// released, whatever becomes of the mirror, so it is read without a lock.
struct MirrorVersion {
  explicit MirrorVersion(ChunkLayout chunk_layout) : layout(chunk_layout) {}

  [[nodiscard]] bool Has(uint32_t node) const {
    return node < max_blocks && at(node).scope != MirrorBlock::kAbsent;
  }
  [[nodiscard]] const MirrorBlock& at(uint32_t node) const {
    return *ChunkLayout::Block(chunks[ChunkLayout::Chunk(node)], node);
  }
  // Those with the digest bit stand for Digest().
  [[nodiscard]] const uint32_t* Tokens(uint32_t node) const {
    return layout.Tokens(chunks[ChunkLayout::Chunk(node)], node);
  }
  [[nodiscard]] const uint8_t* Digest(uint32_t token) const {
    return &digests[size_t{token & digest_slot_mask} * kDigestBytes];
  }

  ChunkLayout layout;
  uint32_t max_blocks = 0;
  uint64_t size = 0;               // blocks
  std::vector<std::byte*> chunks;  // never written to while this is read
  std::vector<uint8_t> digests;    // of all slots of the mirror's table
  uint32_t digest_slot_mask = 0;
  // By the last reader, when it will not look any more.
  std::atomic<bool> released{false};
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_MIRROR_CHUNKS_H_
