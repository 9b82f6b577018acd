// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which blocks go when pages are short.
#include <algorithm>
#include <cstddef>

#include "native/src/manager.h"

namespace kvcast {

// Chooses cached pages that `slot` may use at once, one by one: of those whose
// children have all been chosen, the first in the order of eviction. A block that
// was listed under a higher class than its own for the sake of its last child
// joins the end of its own class's list when that child is chosen. Doomed pages do not
// meet the demand, unless `any` do: they go as well where they stand first, as there is no
// free page that their blocks could move to. With all of the demand victims_ holds them,
// else it is empty, and doomed_cached_ counts all cached pages that are doomed; no mark
// is left. Returns how many meet it.
uint32_t Manager::PlanVictims(uint32_t demand, uint32_t slot, bool any) {
  const EvictionOrder& order = pages_.order();
  // Blocks that join a list at or after the one that is being looked at. Between
  // steps nobody uses that memory.
  std::vector<NodeId>& joining = removals_;
  uint32_t planned = 0;
  doomed_cached_ = 0;
  const auto key_of = [&](NodeId id) {
    const Page& page = pages_[tree_.node(id).page];
    return order.KeyOf(page.own, page.score);
  };
  const auto choose = [&](NodeId id, uint32_t key) {
    while (planned < demand) {
      const Node& n = tree_.node(id);
      if (!pages_.UsableBy(pages_[n.page], slot)) return;
      victims_.push_back(id);
      if (any || !pages_.doomed(n.page)) ++planned;
      if (IsRoot(n.parent)) return;
      Node& parent = tree_.node(n.parent);
      if (++parent.victims != parent.children) return;
      const Page& above = pages_[parent.page];
      if (above.state != PageState::kCached || above.listed == above.own) return;
      if (key_of(n.parent) >= key) {
        joining.push_back(n.parent);
        return;
      }
      id = n.parent;  // nothing that can go stands before it
    }
  };
  for (uint32_t key = 0; planned < demand; ++key) {
    uint32_t next = order.NextKey(key);
    for (const NodeId id : joining) next = std::min(next, key_of(id));
    if (next == kNil) break;
    key = next;
    for (PageId id = order.Head(key); id != kNil && planned < demand;) {
      const Page& page = pages_[id];
      doomed_cached_ += pages_.doomed(id) ? 1 : 0;
      if (page.next != kNil) {
        __builtin_prefetch(&pages_[page.next]);
        if (pages_[page.next].node != kNil) __builtin_prefetch(&tree_.node(pages_[page.next].node));
      }
      const Node& n = tree_.node(page.node);
      // With a child that stays this one stays; without one it goes by its own class.
      if (n.children == n.victims && page.listed == page.own) choose(page.node, key);
      id = page.next;
    }
    // Those of this list, while others may still join its end; the rest moves up.
    size_t rest = 0;
    for (size_t i = 0; i < joining.size() && planned < demand; ++i) {
      const NodeId id = joining[i];
      if (key_of(id) == key) {
        choose(id, key);
      } else {
        joining[rest++] = id;
      }
    }
    if (planned < demand) joining.resize(rest);
  }
  joining.clear();
  // The marks have served; parents that are victims too go after their children.
  for (const NodeId id : victims_) {
    const ParentId parent = tree_.node(id).parent;
    if (!IsRoot(parent)) tree_.node(parent).victims = 0;
  }
  if (planned < demand) victims_.clear();
  return planned;
}

// Before the node is forgotten: afterwards there is nothing to tell of.
void Manager::Describe(NodeId id, kvc_evicted_reason reason, kvc_evicted_block* out) const {
  const Node& n = tree_.node(id);
  *out = {};
  out->block = BlockId(id);
  out->parent = IsRoot(n.parent) ? KVC_NO_BLOCK : BlockId(n.parent);
  out->page = n.page;
  out->reason = reason;
  out->priority = PriorityOf(pages_[n.page].own);
  out->announced = n.announce == Announce::kAnnounced ? 1 : 0;
}

}  // namespace kvcast
