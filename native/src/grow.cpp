// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Growing sequences: pages are taken, and blocks evicted for them.
#include <algorithm>
#include <cstddef>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

// As refused_ says.
kvc_status Manager::NotNow(kvc_grow_result* result, kvc_error* error) {
  result->leaving_pages = refused_.leaving;
  ++counters_.refused_not_now;
  return sequences::Item(error, KVC_NOT_NOW,
                         "not enough pages at this moment; retry after a release, or when fences "
                         "have been reached");
}

kvc_status Manager::GrowOne(const kvc_grow_item& item, kvc_grow_result* result, EvictedList* told,
                            Turn* turn, kvc_error* error) {
  using sequences::Item;
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  const uint64_t target =
      item.capacity_tokens / block_size_ + (item.capacity_tokens % block_size_ != 0 ? 1 : 0);
  if (target <= seq->pages.size()) return KVC_OK;
  if (target > pages_.total()) {
    ++counters_.refused_never_fits;
    return Item(error, KVC_NEVER_FITS,
                "the sequence would need more pages than the pool has; shorten it or enlarge "
                "capacity_blocks");
  }
  const auto need = static_cast<uint32_t>(target - seq->pages.size());

  // Plan.
  pages_.Poll();
  if (need > pages_.Available(seq->slot) && pages_.quarantine(0).size != 0) pages_.PollShared();
  const uint32_t available = pages_.Available(seq->slot);
  uint32_t demand = need > available ? need - available : 0;
  if (demand != 0) {
    const uint64_t progress = device_.Progress();
    if (refused_.changes == changes_ && refused_.progress == progress &&
        refused_.slot == seq->slot && refused_.demand <= demand) {
      return NotNow(result, error);
    }
    uint32_t planned = PlanVictims(demand, seq->slot);
    if (planned < demand && kept_pages_ != 0) {
      // Nobody uses what suspended sequences keep, so it is the last resort.
      const uint32_t gain = PlanStrip(demand - planned, seq->slot);
      if (planned + gain >= demand) {
        demand = demand > gain ? demand - gain : 0;
        planned = PlanVictims(demand, seq->slot);
      }
    }
    if (planned < demand) {
      // What is cached or quarantined and cannot be had now waits for fences.
      const uint32_t own = seq->slot == 0 ? 0 : pages_.quarantine(seq->slot).size;
      const uint32_t leaving = pages_.cached() - planned + pages_.quarantined() - own;
      refused_ = {changes_, progress, seq->slot, demand, leaving};
      return NotNow(result, error);
    }
  }
  if (told != nullptr && told->whole && demand > told->capacity - told->count) {
    victims_.clear();
    strip_.clear();
    result->evicted_blocks = demand;
    return Item(error, KVC_NOT_NOW,
                "evicted[] has no room for what the item would evict; repeat it with more");
  }
  if (!pages_.NextAreIntact(seq->slot, std::min(need - demand, available))) {
    victims_.clear();
    strip_.clear();
    return Item(error, KVC_DEVICE_ERROR,
                "a page was written after it had been given up: a fence is missing in the host");
  }
  // Reserve.
  try {
    ReservePages(seq, target);
    if (!strip_.empty()) fences_.Reserve(kept_pages_ + 2);
  } catch (...) {
    victims_.clear();
    strip_.clear();
    throw;
  }
  kvc_evicted_block* tell = told != nullptr ? told->Room(demand) : nullptr;
  if (tell != nullptr) {
    result->first_evicted = told->count;
    told->count += demand;
  }
  // From here on nothing throws.
  for (const uint32_t index : strip_) {
    counters_.reclaimed_pages += sequences_[index].pages.size();
    StripKept(&sequences_[index]);
  }
  strip_.clear();
  // Apply. Pages that need no eviction come first: their ids are older.
  for (uint32_t i = 0; i < need - demand; ++i) seq->pages.push_back(pages_.Take(seq->slot));
  for (size_t i = 0; i < victims_.size(); ++i) {
    if (i + sequences::kPrefetchAhead < victims_.size()) {
      const Node& ahead = tree_.node(victims_[i + sequences::kPrefetchAhead]);
      tree_.PrefetchInsert(ahead.hash);
      if (scores_ != nullptr) scores_->Prefetch(ahead.hash);
      if (!IsRoot(ahead.parent)) __builtin_prefetch(&tree_.node(ahead.parent), 1);
    }
    const PageId page = tree_.node(victims_[i]).page;
    const kvc_evicted_reason reason = ReasonOf(page);
    if (reason == KVC_EVICTED_TTL) ++counters_.evicted_ttl_blocks;
    if (reason == KVC_EVICTED_ENDED) ++counters_.evicted_ended_blocks;
    if (tell != nullptr) Describe(victims_[i], reason, tell++);
    if (scores_ != nullptr) scores_->Left(tree_.node(victims_[i]).hash, pages_[page].score);
    ForgetNode(victims_[i]);
    pages_.Seize(page);
    seq->pages.push_back(page);
  }
  victims_.clear();
  FlushRemovals();
  counters_.evicted_blocks += demand;
  counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());
  ++changes_;
  result->added_pages = need;
  result->evicted_blocks = demand;
  return KVC_OK;
}

void Manager::Grow(uint32_t count, const kvc_grow_item* items, kvc_grow_result* results,
                   kvc_error* error, EvictedList* told) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].first_evicted = KVC_NOT_TOLD;
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return GrowOne(items[i], &results[i], told, &turn, story);
    });
  }
}

}  // namespace kvcast
