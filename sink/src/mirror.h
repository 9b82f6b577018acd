// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the subscribers have been told is there: one entry per announced block,
// exactly as of the last drained event, built from records alone.
#ifndef KVCAST_SINK_SRC_MIRROR_H_
#define KVCAST_SINK_SRC_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/digest_table.h"
#include "native/src/host_memory.h"
#include "sink/src/mirror_chunks.h"
#include "sink/src/prefetch.h"
#include "sink/src/record_ring.h"

namespace kvcast {

// Versions. Pin makes the mirror as it is now last, beside the one that goes on:
// the two share all chunks, and the first write to one of them since copies it.
// Memory for all such copies is taken at the first Pin, and used again by later
// ones: no write can fail for want of it. One version at a time.
class Mirror {
 public:
  using Block = MirrorBlock;

  // Takes and touches the memory for node ids below max_blocks.
  Mirror(uint32_t max_blocks, uint32_t tokens_per_block)
      : max_blocks_(max_blocks),
        layout_(tokens_per_block),
        chunks_(ChunkLayout::Chunks(max_blocks)),
        shared_(chunks_.size()),
        digests_(std::random_device{}(), DigestTable::kMaxDigests),
        has_digests_(max_blocks) {
    memory_.Allocate(chunks_.size(), layout_.bytes());
    for (size_t i = 0; i < chunks_.size(); ++i) {
      chunks_[i] = memory_.chunk(i);
      std::memset(chunks_[i], 0, layout_.bytes());
      Empty(chunks_[i]);
    }
  }
  // Memory that each block which can exist takes.
  [[nodiscard]] static constexpr uint64_t BytesPerBlock(uint32_t tokens_per_block) {
    return sizeof(Block) + sizeof(uint32_t) * uint64_t{tokens_per_block};
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  [[nodiscard]] bool Has(uint32_t node) const {
    return node < max_blocks_ && at(node).scope != Block::kAbsent;
  }
  // As it is until the block is put or erased.
  [[nodiscard]] const Block& at(uint32_t node) const {
    return *ChunkLayout::Block(chunks_[ChunkLayout::Chunk(node)], node);
  }
  // Those with the digest bit are of the mirror's own digests.
  [[nodiscard]] const uint32_t* Tokens(uint32_t node) const {
    return layout_.Tokens(chunks_[ChunkLayout::Chunk(node)], node);
  }
  [[nodiscard]] const DigestTable& digests() const { return digests_; }
  [[nodiscard]] size_t max_blocks() const { return max_blocks_; }
  [[nodiscard]] uint64_t size() const { return size_; }

  // `token_index` is where the block's tokens are in the ring.
  void Put(uint32_t node, const uint8_t* key, uint32_t parent, uint32_t scope,
           const RecordRing& ring, size_t token_index) {
    std::byte* chunk = Own(node);
    Block& block = *ChunkLayout::Block(chunk, node);
    std::memcpy(block.key, key, kKeyBytes);
    block.parent = parent;
    block.scope = scope;
    ring.Read(token_index, layout_.Tokens(chunk, node), layout_.tokens_per_block());
    ++size_;
  }
  // Before blocks with so many digest tokens are put: takes the memory for them.
  void ReserveDigests(size_t count) { digests_.Reserve(count); }
  // The digest tokens of a block just put get the mirror's own: the bytes of
  // each are at bytes_of(token).
  template <typename BytesOf>
  void OwnDigests(uint32_t node, BytesOf&& bytes_of) {
    uint32_t* tokens = layout_.Tokens(Own(node), node);
    for (uint32_t i = 0; i < layout_.tokens_per_block(); ++i) {
      if ((tokens[i] & kDigestBit) != 0) tokens[i] = digests_.Acquire(bytes_of(tokens[i]));
    }
    has_digests_[node] = true;
  }
  void Erase(uint32_t node) {
    if (digests_.live() != 0 && has_digests_[node]) {
      digests_.ReleaseAll(Tokens(node), layout_.tokens_per_block());
      has_digests_[node] = false;
    }
    ChunkLayout::Block(Own(node), node)->scope = Block::kAbsent;
    --size_;
  }
  void Clear() {
    if (size_ == 0) return;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (shared_count_ != 0 && shared_[i] != 0) Replace(i);
      Empty(chunks_[i]);
    }
    if (digests_.live() != 0) has_digests_.assign(has_digests_.size(), false);
    digests_.Clear();
    size_ = 0;
  }

  KVC_PREFETCHING void Prefetch(uint32_t node) const {
    // An entry may lie across two cache lines.
    const Block* block = &at(node);
    PrefetchForWrite(block);
    PrefetchForWrite(&block->scope);
  }
  KVC_PREFETCHING void PrefetchTokens(uint32_t node) const { PrefetchForWrite(Tokens(node)); }

  // Not if pinned(). Strong guarantee; throws bad_alloc or
  // Error(KVC_OUT_OF_MEMORY). Costs a copy of the list of chunks, and of the
  // digests that are or have been in use.
  [[nodiscard]] std::shared_ptr<MirrorVersion> Pin() {
    auto version = std::make_shared<MirrorVersion>(layout_);
    version->max_blocks = max_blocks_;
    version->size = size_;
    version->chunks = chunks_;
    version->digests.resize(digests_.slots() * kDigestBytes);
    digests_.CopyTo(version->digests.data());
    version->digest_slot_mask = digests_.slot_mask();
    if (!copies_.allocated()) {
      RequireHostMemory(chunks_.size() * layout_.bytes(), "a snapshot of the stream's mirror");
      spare_.reserve(chunks_.size());
      copies_.Allocate(chunks_.size(), layout_.bytes());
      for (size_t i = chunks_.size(); i-- > 0;) spare_.push_back(copies_.chunk(i));
    }
    shared_.assign(shared_.size(), 1);
    shared_count_ = shared_.size();
    pinned_ = version;
    return version;
  }
  // Takes back what a version that has been released had for itself.
  void Unpin() {
    if (pinned_ == nullptr || !pinned_->released.load(std::memory_order_acquire)) return;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (pinned_->chunks[i] != chunks_[i]) spare_.push_back(pinned_->chunks[i]);
    }
    shared_count_ = 0;
    pinned_.reset();
  }
  [[nodiscard]] bool pinned() const { return pinned_ != nullptr; }
  // Of the mirror's size at most: chunks that copies may go to.
  [[nodiscard]] size_t spare_chunks() const { return spare_.size(); }

 private:
  static void Empty(std::byte* chunk) {
    for (uint32_t i = 0; i < ChunkLayout::kBlocks; ++i) {
      ChunkLayout::Block(chunk, i)->scope = Block::kAbsent;
    }
  }
  // The block's chunk, to write to.
  [[nodiscard]] std::byte* Own(uint32_t node) {
    const size_t i = ChunkLayout::Chunk(node);
    if (shared_count_ != 0 && shared_[i] != 0) {
      const std::byte* old = chunks_[i];
      Replace(i);
      std::memcpy(chunks_[i], old, layout_.bytes());
    }
    return chunks_[i];
  }
  // Another chunk in place of a shared one. There is one: a version has at most
  // as many for itself as there are copies.
  void Replace(size_t i) {
    chunks_[i] = spare_.back();
    spare_.pop_back();
    shared_[i] = 0;
    --shared_count_;
  }

  const uint32_t max_blocks_;
  const ChunkLayout layout_;
  ChunkMemory memory_;
  ChunkMemory copies_;
  std::vector<std::byte*> chunks_;
  std::vector<std::byte*> spare_;
  // Whether chunk i is the pinned version's as well, and how many are.
  std::vector<uint8_t> shared_;
  size_t shared_count_ = 0;
  std::shared_ptr<MirrorVersion> pinned_;
  // The mirror's own, not the manager's: it must not look at those. What is
  // announced at one moment never has more of them than the manager had.
  DigestTable digests_;
  std::vector<bool> has_digests_;
  uint64_t size_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_MIRROR_H_
