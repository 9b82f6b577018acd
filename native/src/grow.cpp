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

// What a grow is to do. victims_ and strip_ are part of it.
struct Manager::GrowPlan {
  uint32_t need = 0;       // pages
  uint32_t available = 0;  // of these, without taking any from somebody
  uint32_t demand = 0;     // of these, from blocks that are evicted
  PageId shared = kNil;    // the last block's page, if it is shared: one of `need` replaces it
};

// False if there are not enough pages now; then nothing is planned.
bool Manager::PlanPages(const Sequence& seq, GrowPlan* plan) {
  pages_.Poll();
  if (plan->need > pages_.Available(seq.slot) && pages_.quarantine(0).size != 0) {
    pages_.PollShared();
  }
  const uint32_t available = plan->available = pages_.Available(seq.slot);
  const auto beyond = [available](uint32_t need) {
    return need > available ? need - available : 0;
  };
  plan->demand = beyond(plan->need);
  if (plan->demand == 0) return true;
  // If only suspended sequences keep the other shares of the last block, it need not
  // be copied: they are taken what they keep before a grow is refused.
  const bool alone = plan->shared != kNil && kept_pages_ != 0 &&
                     Keepers(plan->shared) + 1 == pages_[plan->shared].holders;
  const uint64_t progress = device_.Progress();
  if (!alone && refused_.changes == changes_ && refused_.progress == progress &&
      refused_.slot == seq.slot && refused_.demand <= plan->demand) {
    return false;
  }
  uint32_t planned = PlanVictims(plan->demand, seq.slot);
  if (planned == plan->demand) return true;
  const auto strip = [&](uint32_t demand, PageId unshare) {
    // Nobody uses what suspended sequences keep, so it is the last resort.
    const uint32_t gain = PlanStrip(demand > planned ? demand - planned : 0, seq.slot, unshare);
    if (planned + gain < demand) return false;
    plan->demand = demand > gain ? demand - gain : 0;
    victims_.clear();
    planned = PlanVictims(plan->demand, seq.slot);
    return planned == plan->demand;
  };
  if (kept_pages_ != 0 && strip(plan->demand, kNil)) return true;
  if (alone) {
    const uint32_t demand = beyond(plan->need - 1);
    planned = PlanVictims(demand, seq.slot);
    const PageId shared = plan->shared;
    plan->shared = kNil;
    --plan->need;
    if (strip(demand, shared)) return true;
    plan->demand = beyond(plan->need + 1);
    planned = PlanVictims(plan->demand, seq.slot);
  }
  // What is cached or quarantined and cannot be had now waits for fences, but for what is
  // doomed: that is waited for in vain.
  const uint32_t own = seq.slot == 0 ? 0 : pages_.quarantine(seq.slot).size;
  const uint32_t leaving =
      pages_.cached() - doomed_cached_ - planned + pages_.StayingQuarantined() - own;
  refused_ = {changes_, progress, seq.slot, plan->demand, leaving};
  return false;
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
  // Whoever asks for more than what is committed is going to write into the last block.
  const bool copies = item.capacity_tokens > seq->committed && SharesTail(*seq);
  if (target <= seq->pages.size() && !copies) return KVC_OK;
  if (target > pages_.Reachable()) {
    ++counters_.refused_never_fits;
    return Item(error, KVC_NEVER_FITS,
                "the sequence would need more pages than the pool has; shorten it or enlarge "
                "the pool");
  }

  // Plan.
  GrowPlan plan;
  plan.need = static_cast<uint32_t>(target > seq->pages.size() ? target - seq->pages.size() : 0);
  if (copies) {
    plan.shared = seq->pages[seq->committed / block_size_];
    ++plan.need;
  }
  if (!PlanPages(*seq, &plan)) return NotNow(result, error);
  const uint32_t need = plan.need;
  const uint32_t demand = plan.demand;
  const auto victims = static_cast<uint32_t>(victims_.size());
  if (told != nullptr && told->whole && victims > told->capacity - told->count) {
    victims_.clear();
    strip_.clear();
    result->evicted_blocks = victims;
    return Item(error, KVC_NOT_NOW,
                "evicted[] has no room for what the item would evict; repeat it with more");
  }
  if (!pages_.NextAreIntact(seq->slot, std::min(need - demand, plan.available))) {
    victims_.clear();
    strip_.clear();
    return Item(error, KVC_DEVICE_ERROR,
                "a page was written after it had been given up: a fence is missing in the host");
  }
  // Reserve.
  CopyPlan copy;
  try {
    ReservePages(seq, target);
    // The copy's fence, those of its pages, and of the page that is shared no more.
    const size_t sets = plan.shared != kNil ? 6 : 0;
    if (!strip_.empty() || sets != 0 || victims != demand) {
      fences_.Reserve(kept_pages_ + 2 + sets + (victims - demand));
    }
    if (plan.shared != kNil) {
      if (const kvc_status bad = PlanCopy(seq->slot, plan.shared, &copy, error); bad != KVC_OK) {
        victims_.clear();
        strip_.clear();
        return bad;
      }
    }
  } catch (...) {
    victims_.clear();
    strip_.clear();
    throw;
  }
  kvc_evicted_block* tell = told != nullptr ? told->Room(victims) : nullptr;
  if (tell != nullptr) {
    result->first_evicted = told->count;
    told->count += victims;
  }
  // From here on nothing throws.
  for (const uint32_t index : strip_) {
    counters_.reclaimed_pages += sequences_[index].pages.size();
    StripKept(&sequences_[index]);
  }
  strip_.clear();
  // Apply. Pages that need no eviction come first: their ids are older. The first of
  // all takes the place of the one that is shared.
  const auto give = [&](PageId page) {
    if (plan.shared == kNil) {
      seq->pages.push_back(page);
      return;
    }
    TakeCopy(seq, copy, page, result);
    plan.shared = kNil;
  };
  for (uint32_t i = 0; i < need - demand; ++i) give(pages_.Take(seq->slot));
  uint32_t partials = 0;
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
    if (tree_.node(victims_[i]).partial()) {
      ++partials;
    } else if (scores_ != nullptr) {
      scores_->Left(tree_.node(victims_[i]).hash, pages_[page].score);
    }
    ForgetNode(victims_[i], reason);
    if (pages_.doomed(page)) {
      pages_.Evict(page);
      continue;
    }
    pages_.Seize(page);
    give(page);
  }
  victims_.clear();
  FlushRemovals();
  counters_.evicted_blocks += victims - partials;
  counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());
  ++changes_;
  result->added_pages = need;
  result->evicted_blocks = victims;
  return KVC_OK;
}

void Manager::Grow(uint32_t count, const kvc_grow_item* items, kvc_grow_result* results,
                   kvc_error* error, EvictedList* told) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].first_evicted = KVC_NOT_TOLD;
    results[i].copied_block = KVC_NO_COPY;
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return GrowOne(items[i], &results[i], told, &turn, story);
    });
  }
}

}  // namespace kvcast
