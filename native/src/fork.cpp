// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Forking sequences: pages are shared, and a partly filled last block is copied by
// the grow of whoever is the first to write into it.
#include <algorithm>
#include <cstring>

#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

kvc_status Manager::ForkOne(const kvc_fork_item& item, kvc_fork_result* result, Turn* turn,
                            kvc_error* error) {
  using sequences::Item;
  turn->Enter();
  const Sequence* parent = Find(item.sequence);
  if (parent == nullptr) return sequences::Stale(error);
  if (parent->suspended) return sequences::Suspended(error);
  const uint32_t slot = SlotOf(item.device_stream);
  if (page_bytes_ == 0 && (Queues(slot) || Queues(parent->slot))) {
    return Item(error, KVC_INVALID_ARGUMENT,
                "pages without memory are copied by the engine, which device streams cannot be "
                "made to wait for: fork on the host's stream or on one of steps");
  }
  if (free_sequence_ == kNil) {
    return Item(error, KVC_NOT_NOW, "max_sequences are open; release one");
  }
  if (!GateIsOpen()) return GateClosed(error);
  // To the streams of others it tells a fence, which is recorded now.
  if (slot != parent->slot && !TakesWork(parent->slot)) return sequences::Captured(error);
  const uint32_t index = free_sequence_;
  Sequence& seq = sequences_[index];
  const uint64_t blocks = (parent->committed + block_size_ - 1) / block_size_;
  const uint64_t linked = Linked(*parent);
  ReservePages(&seq, blocks);
  if (!parent->rules.empty()) ReserveRule(&seq);
  // Outside the tree each page may need a set of its own.
  const bool apart = slot != parent->slot;
  fences_.Reserve((apart ? blocks - linked : 0) + 3);
  // From here on nothing throws.
  const FenceSetId fence = apart ? RecordFence(parent->slot) : 0;
  FenceList waits;
  fences_.Collect(fence, slot, &waits);
  seq.pages.assign(parent->pages.begin(), parent->pages.begin() + static_cast<ptrdiff_t>(blocks));
  for (uint64_t i = 0; i < blocks; ++i) {
    if (i + sequences::kPrefetchAhead < blocks) {
      __builtin_prefetch(&pages_[seq.pages[i + sequences::kPrefetchAhead]], 1);
    }
    const PageId id = seq.pages[i];
    pages_.Share(id);
    if (i >= linked) pages_.AddReady(id, At(FenceSite::kForkReady, fence));
    if (pages_[id].ready != 0) fences_.Collect(pages_[id].ready, slot, &waits);
  }
  fences_.Release(fence);

  free_sequence_ = seq.next_free;
  seq.open = true;
  seq.slot = slot;
  seq.device_stream = item.device_stream;
  seq.epoch = parent->epoch;
  seq.root = parent->root;
  if (Attached(*parent)) tree_.ShareRoot(seq.root);
  seq.rules.assign(parent->rules.begin(), parent->rules.end());
  seq.last = parent->last;
  seq.last_hash = parent->last_hash;
  seq.linked = parent->linked;
  seq.stop_blocks = parent->stop_blocks;
  seq.matched = parent->matched;
  seq.committed = parent->committed;
  const uint64_t in_tail = seq.committed % block_size_;
  std::memcpy(Tail(index), Tail(static_cast<uint32_t>(item.sequence)), in_tail * sizeof(uint32_t));
  seq.tail_digests = parent->tail_digests;
  if (seq.tail_digests) digests_.RetainAll(Tail(index), in_tail);
  ++active_sequences_;
  EnterStream(slot);
  ++open_sequences_;
  ++changes_;
  ++live_handles().sequences;
  ++counters_.forked_sequences;

  if (hooks_.without == FenceSite::kForkWait) waits = {};
  result->wait_count = TellWaits(&seq, waits, result->waits);
  result->sequence = uint64_t{seq.generation} << 32 | index;
  result->committed_tokens = seq.committed;
  return KVC_OK;
}

// `page` takes the place of the last block's, which is shared.
void Manager::TakeCopy(Sequence* seq, const CopyPlan& plan, PageId page, kvc_grow_result* result) {
  const auto block = static_cast<uint32_t>(seq->committed / block_size_);
  const PageCopy copy{seq->pages[block], page, static_cast<uint32_t>(seq->committed % block_size_)};
  FenceList waits;
  MakeCopy(plan, seq->slot, copy, &waits);
  pages_.Drop(copy.from, 0);
  seq->pages[block] = page;
  seq->table.Touch(block, block + 1);
  result->copied_block = block;
  result->copied_from = copy.from;
  result->copied_to = copy.to;
  result->copied_tokens = copy.tokens;
  if (waits.size() == 0) return;
  result->wait_count = TellWaits(seq, waits, &result->wait);
}

// How many suspended sequences keep the page.
uint32_t Manager::Keepers(PageId page) const {
  uint32_t keepers = 0;
  for (const Sequence& seq : sequences_) {
    if (!seq.open || !seq.suspended) continue;
    keepers += std::find(seq.pages.begin(), seq.pages.end(), page) != seq.pages.end() ? 1 : 0;
  }
  return keepers;
}

void Manager::Fork(uint32_t count, const kvc_fork_item* items, kvc_fork_result* results,
                   kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return ForkOne(items[i], &results[i], &turn, story);
    });
  }
}

}  // namespace kvcast
