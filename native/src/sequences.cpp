// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What is common to all calls on a sequence, and looking at one.
#include <algorithm>
#include <cstring>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

Sequence* Manager::Find(uint64_t id) {
  const auto index = static_cast<uint32_t>(id);
  if (index >= max_sequences_) return nullptr;
  Sequence& seq = sequences_[index];
  const bool mine = seq.open && seq.holds == 0;
  return mine && seq.generation == static_cast<uint32_t>(id >> 32) ? &seq : nullptr;
}

void Manager::ReservePages(Sequence* seq, size_t count) {
  const size_t before = seq->pages.capacity();
  if (before >= count) return;
  seq->pages.reserve(std::max(count, 2 * before));
  sequence_bytes_ += (seq->pages.capacity() - before) * sizeof(PageId);
}

FenceSetId Manager::RecordFence(uint32_t slot) {
  if (slot == 0) return 0;
  return fences_.Single({slot, device_.Record(slot)});
}

// Blocks that are found; `used` counts as a use of them, a resume of what was held
// before does not.
void Manager::HoldPath(const std::vector<PageId>& path, bool used, uint32_t slot,
                       FenceList* waits) {
  const PagePool::Held held = pages_.HoldPath(path.data(), path.size());
  for (size_t i = held.revived; i < path.size(); ++i) RaiseAbove(pages_[path[i]].node);
  if (held.ready && waits != nullptr) {
    for (const PageId id : path) {
      if (pages_[id].ready != 0) fences_.Collect(pages_[id].ready, slot, waits);
    }
  }
  if (used && scores_ != nullptr) {
    for (const PageId id : path) UseBlock(id);
  }
}

// Notes the fences with the sequence and tells the first of them.
uint32_t Manager::TellWaits(Sequence* seq, const FenceList& list, kvc_fence* waits) {
  const FenceSetId before = seq->waits;
  seq->waits = fences_.Make(list);
  fences_.Release(before);
  uint32_t told = 0;
  list.ForEach([&](const Fence& fence) {
    if (told < KVC_MAX_WAITS) waits[told++] = FromFence(fence);
  });
  return list.size();
}

kvc_status Manager::Waits(uint64_t sequence, uint32_t capacity, kvc_fence* fences, uint32_t* count,
                          kvc_error* error) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const Sequence* seq = Find(sequence);
  if (seq == nullptr) {
    return Fail(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
  uint32_t needed = 0;
  fences_.ForEach(seq->waits, [&](const Fence&) { ++needed; });
  *count = needed;
  if (needed > capacity) {
    return Fail(error, KVC_INVALID_ARGUMENT, "fences[] is too small; 63 entries always suffice");
  }
  fences_.ForEach(seq->waits, [&](const Fence& fence) { *fences++ = FromFence(fence); });
  return KVC_OK;
}

kvc_status Manager::Get(uint64_t sequence, uint32_t first_block, uint32_t capacity, PageId* pages,
                        uint32_t* written, kvc_sequence_info* info, kvc_error* error) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const Sequence* seq = Find(sequence);
  if (seq == nullptr) {
    return Fail(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
  const auto has = static_cast<uint32_t>(seq->pages.size());
  const uint32_t blocks = seq->suspended ? 0 : has;
  const uint32_t from = std::min(first_block, blocks);
  const uint32_t count = std::min(capacity, blocks - from);
  if (count != 0) std::memcpy(pages, seq->pages.data() + from, size_t{count} * sizeof(PageId));
  *written = count;
  if (info != nullptr) {
    *info = {};
    info->committed_tokens = seq->committed;
    info->matched_tokens = seq->matched;
    info->capacity_tokens = uint64_t{blocks} * block_size_;
    info->device_stream = seq->device_stream;
    info->page_count = has;
    info->detached = Attached(*seq) ? 0 : 1;
    info->state = seq->suspended ? KVC_SEQUENCE_SUSPENDED : KVC_SEQUENCE_ACTIVE;
    info->reusable_blocks = Linked(*seq);
  }
  return KVC_OK;
}

}  // namespace kvcast
