// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Releasing sequences: their pages become evictable or are given up.
#include <cstddef>
#include <vector>

#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

kvc_status Manager::ReleaseOne(uint64_t id, Closing how, Turn* turn, kvc_error* error) {
  turn->Enter();
  const Sequence* seq = Find(id);
  if (seq == nullptr) {
    return sequences::Item(error, KVC_STALE_HANDLE,
                           "the sequence is not open (released already, or never was)");
  }
  if (!TakesWork(seq->slot)) return sequences::Captured(error);
  fences_.Reserve(seq->pages.size() + 6);
  // From here on nothing throws.
  CloseSequence(static_cast<uint32_t>(id), how, FenceSite::kRelease);
  return KVC_OK;
}

// Needs as many sets of fences as the sequence has pages, and a few.
void Manager::CloseSequence(uint32_t index, Closing how, FenceSite site) {
  Sequence* seq = &sequences_[index];
  EndMarks(seq, 0);
  if (seq->fresh) pending_.Forget(index);
  const FenceSetId fence = RecordFence(seq->slot);
  if (how == Closing::kEnd && Attached(*seq)) EndTail(*seq);
  const size_t tail = KeepsTail(*seq, how) ? seq->linked : SIZE_MAX;
  // Last block first: a prefix outlives what was built on it.
  const PageId* const pages = seq->pages.data();
  size_t count = seq->pages.size();
  if (tail < count) {
    pages_.DropPath(pages + tail + 1, count - tail - 1, At(site, fence));
    KeepTail(index, fence);
    count = tail + 1;
  }
  pages_.DropPath(pages, count, At(site, fence));
  fences_.Release(fence);
  ForgetTailDigests(seq);
  if (Attached(*seq)) {
    if (sink_attached_ && how != Closing::kCancel && HasTail(*seq))
      Bump(deferral_->partial_blocks_suppressed);
    if (seq->suspended) tree_.WakeOn(seq->root);
    tree_.ReleaseRoot(seq->root);
  }
  if (seq->suspended) {
    kept_pages_ -= seq->pages.size();
    ForgetPath(seq);
  } else if (seq->holds == 0) {
    --active_sequences_;
  }
  counters_.cancelled_sequences += how == Closing::kCancel ? 1 : 0;
  seq->pages.clear();
  if (seq->pages.capacity() > sequences::kKeptPages) {
    sequence_bytes_ -= seq->pages.capacity() * sizeof(PageId);
    std::vector<PageId>().swap(seq->pages);
  }
  fences_.Release(seq->waits);
  seq->waits = 0;
  LeaveStream(seq->slot);
  ++changes_;
  seq->open = false;
  seq->suspended = false;
  seq->fresh = false;
  seq->rest_kept = false;
  seq->holds = 0;
  seq->generation = sequences::NextGeneration(seq->generation);
  seq->next_free = free_sequence_;
  free_sequence_ = index;
  --open_sequences_;
  --live_handles().sequences;
}

void Manager::Release(uint32_t count, const uint64_t* sequences, kvc_status* results,
                      kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return ReleaseOne(sequences[i], Closing::kRelease, &turn, story);
    });
  }
}

void Manager::Cancel(uint32_t count, const uint64_t* sequences, kvc_status* results,
                     kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return ReleaseOne(sequences[i], Closing::kCancel, &turn, story);
    });
  }
}

}  // namespace kvcast
