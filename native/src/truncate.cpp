// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Giving room back, and ending the making of reusable blocks.
#include <algorithm>
#include <cstddef>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

kvc_status Manager::TruncateOne(const kvc_truncate_item& item, kvc_truncate_result* result,
                                Turn* turn, kvc_error* error) {
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  if (item.capacity_tokens < seq->committed) {
    return sequences::Item(error, KVC_BAD_STATE,
                           "committed tokens cannot be taken back; truncate to at least those");
  }
  const uint64_t target =
      item.capacity_tokens / block_size_ + (item.capacity_tokens % block_size_ != 0 ? 1 : 0);
  if (target >= seq->pages.size()) return KVC_OK;
  if (!TakesWork(seq->slot)) return sequences::Captured(error);
  const size_t freed = seq->pages.size() - static_cast<size_t>(target);
  fences_.Reserve(freed + 4);
  // From here on nothing throws.
  const FenceSetId fence = RecordFence(seq->slot);
  pages_.DropPath(seq->pages.data() + target, freed, At(FenceSite::kTruncate, fence));
  fences_.Release(fence);
  // What was being computed there is gone.
  EndMarks(seq, static_cast<uint32_t>(target));
  seq->table.Touch(static_cast<uint32_t>(target), static_cast<uint32_t>(seq->pages.size()));
  seq->pages.resize(static_cast<size_t>(target));
  ++changes_;
  result->freed_pages = static_cast<uint32_t>(freed);
  return KVC_OK;
}

void Manager::Truncate(uint32_t count, const kvc_truncate_item* items, kvc_truncate_result* results,
                       kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return TruncateOne(items[i], &results[i], &turn, story);
    });
  }
}

kvc_status Manager::StopOne(const kvc_stop_item& item, Turn* turn, kvc_error* error) {
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  seq->stop_blocks = std::min(seq->stop_blocks, StopBlocks(item.stop_before));
  EndMarks(seq, seq->stop_blocks);
  return KVC_OK;
}

void Manager::Stop(uint32_t count, const kvc_stop_item* items, kvc_status* results,
                   kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return StopOne(items[i], &turn, story);
    });
  }
}

}  // namespace kvcast
