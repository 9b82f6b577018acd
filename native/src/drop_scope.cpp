// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Everything of one adapter or tenant leaves the tree.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace drop_scope {

enum class Mark : uint8_t { kUnknown, kStays, kGoes };

// True if the root's scope has all the parts of the other, with their values. The
// id of an adapter that is named says nothing: a root has that of its first user.
bool Covers(const ScopeView& parts, const ScopeView& root) {
  const uint32_t wanted = parts.key_parts();
  if ((root.parts & wanted) != wanted) return false;
  return ((wanted & KVC_SCOPE_LORA_ID) == 0 || parts.lora_id == root.lora_id) &&
         ((parts.parts & KVC_SCOPE_SALT) == 0 || parts.salt == root.salt) &&
         ((parts.parts & KVC_SCOPE_LORA_NAME) == 0 || parts.lora_name == root.lora_name) &&
         ((parts.parts & KVC_SCOPE_SALT_BYTES) == 0 || parts.salt_bytes == root.salt_bytes);
}

}  // namespace drop_scope

kvc_status Manager::DropOne(const kvc_drop_item& item, const PromptArrays& in,
                            kvc_drop_result* result, EvictedList* told, kvc_error* error) {
  using drop_scope::Mark;
  using sequences::Item;
  ScopeView scope;
  if (const kvc_status bad = ValidateScope(item.scope, in, &scope, error); bad != KVC_OK) {
    return bad;
  }
  if ((item.flags & ~uint32_t{KVC_DROP_EVERY}) != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "a drop has unknown flags");
  }
  const bool every = (item.flags & KVC_DROP_EVERY) != 0;
  if (every && scope.parts == 0) {
    return Item(error, KVC_INVALID_ARGUMENT,
                "every scope has the parts of the empty one; use kvc_manager_reset");
  }

  // Plan. The memory is asked for and touched without the lock.
  uint32_t scopes = 0;
  std::vector<Mark> roots;
  std::vector<Mark> nodes(tree_.capacity());
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  roots.resize(tree_.root_slots());
  for (RootId id = 0; id < roots.size(); ++id) {
    const Root& root = tree_.root(id);
    const bool goes = root.refs != 0 && (every ? drop_scope::Covers(scope, root.scope.view())
                                               : root.scope.view() == scope);
    roots[id] = goes ? Mark::kGoes : Mark::kStays;
    if (goes) ++scopes;
  }
  if (scopes == 0) return KVC_OK;
  // Up to the first block that is known or to the root, and once more to note it:
  // each block is met a bounded number of times.
  uint32_t count = 0;
  for (NodeId start = 0; start < tree_.high_water(); ++start) {
    if (!tree_.alive(start) || nodes[start] != Mark::kUnknown) continue;
    ParentId at = start;
    while (!IsRoot(at) && nodes[at] == Mark::kUnknown) at = tree_.node(at).parent;
    const Mark mark = IsRoot(at) ? roots[ToRoot(at)] : nodes[at];
    for (at = start; !IsRoot(at) && nodes[at] == Mark::kUnknown; at = tree_.node(at).parent) {
      nodes[at] = mark;
      if (mark == Mark::kGoes) ++count;
    }
  }
  uint32_t partials = 0;
  // Reserve.
  pages_.PrepareToGiveUp(count, kept_pages_);
  kvc_evicted_block* tell = told != nullptr ? told->Room(count) : nullptr;
  if (tell != nullptr) {
    result->first_evicted = told->count;
    told->count += count;
  }
  // Apply; nothing throws. Each childless block goes, and then those before it as
  // long as that leaves them childless.
  for (NodeId start = 0; start < tree_.high_water(); ++start) {
    if (nodes[start] != Mark::kGoes || !tree_.alive(start)) continue;
    for (ParentId at = start; !IsRoot(at) && tree_.node(at).children == 0;) {
      const NodeId id = at;
      const PageId page = tree_.node(id).page;
      at = tree_.node(id).parent;
      if (tell != nullptr) Describe(id, KVC_EVICTED_SCOPE, tell++);
      if (tree_.node(id).partial()) ++partials;
      ForgetNode(id, KVC_EVICTED_SCOPE);
      if (pages_[page].state == PageState::kCached) {
        pages_.GiveUpBlock(page);
      } else {
        pages_[page].node = kNil;  // its holders keep it
      }
    }
  }
  FlushRemovals();
  pages_.DoneGivingUp();
  for (uint32_t i = 0; open_sequences_ != 0 && i < max_sequences_; ++i) {
    Sequence& seq = sequences_[i];
    if (!seq.open || !Attached(seq) || roots[seq.root] != Mark::kGoes) continue;
    if (seq.suspended) {
      StripKept(&seq);  // it goes on, and finds nothing
    } else {
      EndMarks(&seq, 0);
      seq.epoch = 0;  // of no tree
      tree_.ReleaseRoot(seq.root);
      if (seq.holds == 0) ++result->detached_sequences;
    }
  }
  result->dropped_scopes = scopes;
  result->dropped_blocks = count;
  counters_.dropped_blocks += count - partials;
  ++changes_;
  return KVC_OK;
}

void Manager::DropScopes(uint32_t count, const kvc_drop_item* items, const PromptArrays& in,
                         kvc_drop_result* results, EvictedList* told, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].first_evicted = KVC_NOT_TOLD;
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status =
        Guard(story, [&] { return DropOne(items[i], in, &results[i], told, story); });
  }
}

}  // namespace kvcast
