// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's look at itself: invariants, and the resident set.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/manager.h"
#include "native/src/status.h"

namespace kvcast {

namespace check {

// Walks a page list both ways; true if it is whole and all its pages are in `state`.
bool ListIsWhole(const PagePool& pages, const PageList& list, PageState state) {
  uint32_t count = 0;
  PageId before = kNil;
  for (PageId id = list.head; id != kNil; id = pages[id].next) {
    if (id >= pages.total() || ++count > pages.total()) return false;
    if (pages[id].prev != before || pages[id].state != state) return false;
    before = id;
  }
  return list.tail == before && count == list.size;
}

}  // namespace check

const char* Manager::CheckPages(uint32_t* where) {
  const uint32_t total = pages_.total();
  const uint32_t most = pages_.most();
  *where = kNil;
  if (uint64_t{pages_.live()} + pages_.cached() + pages_.free() + pages_.quarantined() +
          pages_.leaving() !=
      total) {
    return "live + cached + free + quarantined + leaving differ from the total";
  }
  std::vector<uint32_t> holders(most, 0);
  for (const Sequence& seq : sequences_) {
    if (!seq.open) continue;
    for (const PageId id : seq.pages) {
      if (id >= total) return "a sequence holds a page beyond the pool";
      ++holders[id];
    }
  }
  uint32_t pinned = 0;
  bool pins_good = true;
  pins_.ForEachPage([&](PageId id) {
    pins_good = pins_good && id < total;
    if (id < total) ++holders[id];
    ++pinned;
  });
  if (!pins_good) return "a pin holds a page beyond the pool";
  if (pinned != pins_.pages() || pins_.CountFree() != pins_.capacity() - pinned) {
    return "the pinned pages are miscounted";
  }
  std::array<uint32_t, 4> states{};
  std::vector<uint32_t> fence_refs;
  uint32_t leaving = 0;
  uint32_t absent = 0;
  uint32_t doomed = 0;
  for (PageId id = 0; id < most; ++id) {
    *where = id;
    const Page& page = pages_[id];
    if (pages_.IsOut(id)) {
      // Its record is that of a free page.
      if (page.state != PageState::kFree) return "a page was withdrawn and is in use";
      if (id < pages_.limit() && id < total && settled_) return "a page stays out of the pool";
      ++(id < total ? leaving : absent);
    } else if (id >= total) {
      return "a page is in the pool without memory";
    } else if (pages_.doomed(id)) {
      if (page.state == PageState::kFree) return "a doomed page is free";
      ++doomed;
    }
    const auto state = static_cast<uint32_t>(page.state);
    if (state >= states.size()) return "a page has an unknown state";
    ++states[state];
    const bool held = holders[id] != 0;
    if ((page.state == PageState::kLive) != held)
      return "a page is live without a holder, or held without being live";
    if (held && page.holders != holders[id]) return "a page's holders are miscounted";
    if (page.state == PageState::kCached && page.node == kNil) return "a cached page has no block";
    if (!held && page.state != PageState::kCached && page.node != kNil)
      return "a page given up has a block";
    if (page.state == PageState::kFree && (page.used != 0 || page.ready != 0))
      return "a free page has fences";
    if (page.state == PageState::kQuarantined && page.ready != 0)
      return "a quarantined page kept its ready fence apart";
    if (page.node != kNil && (page.node >= tree_.high_water() || !tree_.alive(page.node) ||
                              tree_.node(page.node).page != id)) {
      return "a page and its block do not name each other";
    }
    for (const FenceSetId set : {page.ready, page.used}) {
      if (set == 0) continue;
      if (set >= fence_refs.size()) fence_refs.resize(size_t{set} + 1, 0);
      ++fence_refs[set];
    }
  }
  for (const Sequence& seq : sequences_) {
    if (seq.waits == 0) continue;
    if (seq.waits >= fence_refs.size()) fence_refs.resize(size_t{seq.waits} + 1, 0);
    ++fence_refs[seq.waits];
  }
  *where = kNil;
  size_t sets = 0;
  for (FenceSetId set = 1; set < fence_refs.size(); ++set) {
    if (fence_refs[set] == 0) continue;
    ++sets;
    if (fences_.refs(set) != fence_refs[set]) return "a set of fences is miscounted";
  }
  if (sets != fences_.live()) return "a set of fences has leaked";
  if (leaving != pages_.leaving() || doomed != pages_.CountDoomed()) {
    return "the pages that leave are miscounted";
  }
  if (states[0] != pages_.free() + leaving + absent || states[1] != pages_.live() ||
      states[2] != pages_.cached() || states[3] != pages_.quarantined()) {
    return "the counts of page states are wrong";
  }
  uint32_t quarantined = 0;
  uint32_t staying = 0;
  for (uint32_t list = 0; list < PagePool::kQuarantines; ++list) {
    const uint32_t slot = list % kDeviceSlots;
    if (list < kDeviceSlots) staying += pages_.quarantine(list).size;
    quarantined += pages_.quarantine(list).size;
    if (!check::ListIsWhole(pages_, pages_.quarantine(list), PageState::kQuarantined)) {
      return "a quarantine list is broken";
    }
    for (PageId id = pages_.quarantine(list).head; id != kNil; id = pages_[id].next) {
      *where = id;
      if (pages_[id].quarantine != list || fences_.SingleSlot(pages_[id].used) != slot ||
          pages_.doomed(id) != (list >= kDeviceSlots)) {
        return "a page is in the wrong quarantine";
      }
      const PageId before = pages_[id].prev;
      if (slot != 0 && before != kNil &&
          fences_.FirstPosition(pages_[before].used) > fences_.FirstPosition(pages_[id].used)) {
        return "a quarantine is not in the order of its fences";
      }
    }
  }
  *where = kNil;
  if (quarantined != pages_.quarantined() || staying != pages_.StayingQuarantined())
    return "the quarantine is miscounted";
  uint32_t free = 0;
  for (PageId id = pages_.FirstFree(); id != kNil; id = pages_.NextFree(id)) {
    if (id >= total || pages_[id].state != PageState::kFree || ++free > total || pages_.IsOut(id)) {
      return "the free pages are broken";
    }
  }
  if (free != pages_.free()) return "the free pages are miscounted";
  if (!resizing_ && (pages_.leaving() != 0 || pages_.limit() != total)) {
    return "the pool is not as large as it was to be";
  }
  return nullptr;
}

// The order of eviction, and the classes it follows.
const char* Manager::CheckOrder(uint32_t* where) {
  const EvictionOrder& order = pages_.order();
  std::vector<uint32_t> rank(pages_.most(), 0);
  uint32_t next = 0;
  for (uint32_t key = order.NextKey(0); key != kNil; key = order.NextKey(key + 1)) {
    PageId before = kNil;
    for (PageId id = order.Head(key); id != kNil; id = pages_[id].next) {
      if (id >= pages_.total() || rank[id] != 0) return "the order of eviction is broken";
      *where = id;
      const Page& page = pages_[id];
      if (page.prev != before || page.state != PageState::kCached) {
        return "the order of eviction is broken";
      }
      if (order.KeyOf(page.listed, page.score) != key)
        return "a page is in the list of another class";
      rank[id] = ++next;
      before = id;
    }
    if (order.Tail(key) != before) return "the order of eviction is broken";
  }
  *where = kNil;
  if (next != order.size()) return "the order of eviction is miscounted";
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    if (!tree_.alive(id)) continue;
    *where = id;
    const Node& n = tree_.node(id);
    const Page& page = pages_[n.page];
    if (page.own >= kClasses || page.listed < page.own || page.listed >= kClasses ||
        (n.children == 0 && page.listed != page.own)) {
      return "a block is listed under a wrong class";
    }
    if (page.own == kEndedClass && page.holders != 0) return "a held block counts as ended";
    if (n.due != 0 && page.own <= kDefaultClass) {
      return "a priority that is not above the default has an end";
    }
    if (IsRoot(n.parent)) continue;
    const PageId above = tree_.node(n.parent).page;
    if (pages_[above].listed < page.listed)
      return "a block is listed under a higher class than its parent";
    if (scores_ != nullptr && pages_[above].score < page.score) {
      return "a block is worth more than the one before it";
    }
    if (rank[above] != 0 && rank[above] < rank[n.page]) {
      return "a parent stands before its child in the order of eviction";
    }
  }
  uint32_t timers = 0;
  const char* wrong = nullptr;
  timers_.ForEach([&](NodeId id, uint32_t slot) {
    ++timers;
    if (id >= tree_.high_water() || !tree_.alive(id) || tree_.node(id).due == 0 ||
        TimerWheel::SlotOf(tree_.node(id)) != slot) {
      wrong = "a timer is not its block's";
      *where = id;
    }
  });
  if (wrong != nullptr) return wrong;
  uint32_t due = 0;
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    if (tree_.alive(id) && tree_.node(id).due != 0) ++due;
  }
  *where = kNil;
  return timers == due && due == timers_.size() ? nullptr : "the timers are miscounted";
}

const char* Manager::CheckNodes(uint32_t* where) {
  if (const char* wrong = tree_.Check(where); wrong != nullptr) return wrong;
  std::vector<uint32_t> children(tree_.high_water(), 0);
  std::vector<uint32_t> root_refs(tree_.root_slots(), 0);
  for (const Sequence& seq : sequences_) {
    if (!seq.open || !Attached(seq)) continue;
    if (seq.root >= root_refs.size()) return "a sequence hangs on a root that never was";
    ++root_refs[seq.root];
  }
  uint64_t announced = 0;
  uint64_t deferred = 0;
  uint64_t suppressed = 0;
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    if (!tree_.alive(id)) continue;
    *where = id;
    const Node& n = tree_.node(id);
    if (n.page >= pages_.total() || pages_[n.page].node != id) {
      return "a block and its page do not name each other";
    }
    if (IsRoot(n.parent)) {
      ++root_refs[ToRoot(n.parent)];
    } else {
      ++children[n.parent];
      if (pages_[n.page].holders > pages_[tree_.node(n.parent).page].holders) {
        return "a block has more holders than the block before it";
      }
    }
    if (n.partial()) {
      if (pages_[n.page].holders != 0) return "a kept tail is held";
      continue;
    }
    const bool parent_told =
        IsRoot(n.parent) || tree_.node(n.parent).announce == Announce::kAnnounced;
    const bool silent = sink_attached_ && suppress_multimodal_ &&
                        (n.digests || (!IsRoot(n.parent) &&
                                       tree_.node(n.parent).announce == Announce::kSuppressed));
    if (silent != (n.announce == Announce::kSuppressed)) {
      return "a block is suppressed without a reason, or is not although it should be";
    }
    switch (n.announce) {
      case Announce::kAnnounced:
        ++announced;
        if (!parent_told) return "a block was announced before its parent";
        break;
      case Announce::kDeferred:
        ++deferred;
        break;
      case Announce::kSuppressed:
        ++suppressed;
        break;
      case Announce::kPartial:
        break;
      case Announce::kNone:
        if (sink_attached_) return "a block is neither announced nor deferred nor suppressed";
        break;
    }
    if (!sink_attached_ && n.announce != Announce::kNone) {
      return "a block is announced without a stream";
    }
  }
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    *where = id;
    if (tree_.alive(id) && tree_.node(id).children != children[id]) {
      return "a block's children are miscounted";
    }
  }
  for (RootId id = 0; id < tree_.root_slots(); ++id) {
    *where = id;
    if (tree_.root(id).refs != root_refs[id]) return "a root's references are miscounted";
  }
  *where = kNil;
  std::vector<uint8_t> seen(tree_.high_water(), 0);
  uint64_t listed = 0;
  NodeId before = kNil;
  for (NodeId id = deferred_head_; id != kNil; id = tree_.node(id).deferred_next) {
    *where = id;
    if (before != kNil && deferred_at_[id] < deferred_at_[before]) {
      return "the deferred list is not in the order of time";
    }
    if (++listed > deferred) return "the deferred list is longer than the deferred blocks";
    const Node& n = tree_.node(id);
    if (n.announce != Announce::kDeferred || n.deferred_prev != before) {
      return "the deferred list is broken";
    }
    if (!IsRoot(n.parent) && tree_.node(n.parent).announce == Announce::kDeferred &&
        seen[n.parent] == 0) {
      return "a deferred block stands before its parent on the list";
    }
    seen[id] = 1;
    before = id;
  }
  if (listed != deferred || deferred_count_ != deferred || deferred_tail_ != before) {
    return "the deferred blocks are miscounted";
  }
  if (!removals_.empty() || !reasons_.empty() || !victims_.empty() || !strip_.empty()) {
    return "a step left work undone";
  }
  if (sink_attached_) {
    const DeferralCounters& c = *deferral_;
    if (c.suppressed_blocks.load() != suppressed) return "the suppressed blocks are miscounted";
    if (c.pending_blocks.load() != deferred ||
        c.deferred_blocks.load() !=
            c.healed_blocks.load() + c.deferred_evicted_blocks.load() + deferred) {
      return "deferred differs from healed + deferred evicted + pending";
    }
    if (c.oldest_deferred_ns.load() !=
        (deferred_head_ == kNil ? 0 : deferred_at_[deferred_head_])) {
      return "the oldest deferred block is another one";
    }
    if (sink_->announced_blocks() != announced) return "the sink counts other announced blocks";
  }
  return nullptr;
}

// Forks share what has been committed; what is still to be written is nobody else's.
// `before` blocks stand before the first page.
bool Manager::SharesRoom(const Sequence& seq, uint64_t before) const {
  const uint64_t committed = (seq.committed + block_size_ - 1) / block_size_;
  for (uint64_t i = committed > before ? committed - before : 0; i < seq.pages.size(); ++i) {
    if (pages_[seq.pages[i]].holders > 1) return true;
  }
  return false;
}

const char* Manager::CheckSequences(uint32_t* where) {
  uint32_t open = 0;
  uint32_t suspended = 0;
  uint32_t holds = 0;
  uint64_t held = 0;
  uint64_t kept = 0;
  std::vector<uint32_t> sleepers(tree_.root_slots(), 0);
  for (uint32_t index = 0; index < max_sequences_; ++index) {
    const Sequence& seq = sequences_[index];
    if (!seq.open) {
      if (!seq.pages.empty()) return "a closed sequence holds pages";
      if (!seq.path.empty()) return "a closed sequence has a path";
      continue;
    }
    *where = index;
    ++open;
    if (!seq.table.Sound()) return "a sequence's table has changed nowhere";
    if (seq.holds != 0) {
      if (seq.suspended) return "a hold of a suspended sequence";
      ++holds;
      held += seq.pages.size();
    }
    if (seq.suspended) {
      ++suspended;
      kept += seq.pages.size();
      if (seq.matched > seq.committed || seq.path.size() % block_size_ != 0) {
        return "a suspended sequence's path is no whole blocks";
      }
      for (const PageId id : seq.pages) {
        if (pages_[id].node != kNil) return "a suspended sequence keeps a block of the tree";
      }
      const uint64_t before = seq.path.size() / block_size_;
      if (seq.rest_kept && SharesRoom(seq, before)) return "a sequence shares room";
      if (!seq.pages.empty() && !seq.rest_kept) return "a suspended sequence keeps a torn rest";
      if (!Attached(seq)) continue;
      if (seq.last != RootParent(seq.root) || seq.linked != 0) {
        return "a suspended sequence has blocks in the tree";
      }
      ++sleepers[seq.root];
      continue;
    }
    if (!seq.path.empty() && !seq.marking) return "an active sequence has a path";
    if (seq.committed > uint64_t{seq.pages.size()} * block_size_ || seq.matched > seq.committed) {
      return "matched <= committed <= capacity does not hold";
    }
    if (SharesRoom(seq, 0)) return "a sequence shares room";
    if (!Attached(seq)) continue;
    ParentId parent = RootParent(seq.root);
    const uint64_t full = seq.committed / block_size_;
    if (seq.linked > full) return "more blocks in the tree than were committed";
    for (uint64_t i = 0; i < seq.pages.size(); ++i) {
      const NodeId node = pages_[seq.pages[i]].node;
      if (i >= seq.linked) {
        if (node != kNil) return "an uncommitted block has a place in the tree";
        continue;
      }
      if (node == kNil || tree_.node(node).parent != parent) {
        return "a sequence's blocks are no path in the tree";
      }
      parent = node;
    }
    if (seq.last != parent) return "a sequence does not end where its last block does";
  }
  *where = kNil;
  if (open != open_sequences_) return "the open sequences are miscounted";
  if (holds != holds_ || held != held_pages_) return "the holds are miscounted";
  if (open - suspended - holds != active_sequences_) return "the active sequences are miscounted";
  if (kept != kept_pages_) return "the kept pages are miscounted";
  for (RootId id = 0; id < tree_.root_slots(); ++id) {
    *where = id;
    if (tree_.root(id).sleepers != sleepers[id]) return "a root's sleepers are miscounted";
  }
  *where = kNil;
  uint32_t slots = 0;
  for (uint32_t i = free_sequence_; i != kNil; i = sequences_[i].next_free) {
    if (sequences_[i].open || ++slots > max_sequences_) return "the free sequences are broken";
  }
  return slots + open == max_sequences_ ? nullptr : "the free sequences are miscounted";
}

const char* Manager::CheckDigests(uint32_t* where) {
  *where = kNil;
  if (const char* wrong = digests_.Check(); wrong != nullptr) return wrong;
  std::vector<uint64_t> uses(digests_.slots(), 0);
  const auto count = [&](const uint32_t* tokens, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      if ((tokens[i] & kDigestBit) == 0) continue;
      if (!digests_.Valid(tokens[i])) return false;
      ++uses[digests_.slot_of(tokens[i])];
    }
    return true;
  };
  for (NodeId id = 0; id < tree_.high_water(); ++id) {
    if (!tree_.alive(id)) continue;
    *where = id;
    if (tree_.node(id).digests != AnyDigest(tree_.tokens(id), tree_.count(id))) {
      return "a block does not know whether it has digests";
    }
    if (!count(tree_.tokens(id), tree_.count(id))) return "a block has a digest that is not there";
  }
  for (uint32_t index = 0; index < max_sequences_; ++index) {
    const Sequence& seq = sequences_[index];
    *where = index;
    if (seq.path_digests != AnyDigest(seq.path.data(), seq.path.size())) {
      return "a sequence does not know whether its path has digests";
    }
    if (!count(seq.path.data(), seq.path.size())) return "a path has a digest that is not there";
    const uint64_t in_tail = seq.open ? seq.committed % block_size_ : 0;
    if (seq.tail_digests != AnyDigest(Tail(index), in_tail)) {
      return "a sequence does not know whether its tail has digests";
    }
    if (!count(Tail(index), in_tail)) return "a tail has a digest that is not there";
  }
  for (size_t slot = 0; slot < uses.size(); ++slot) {
    *where = static_cast<uint32_t>(slot);
    if (digests_.uses(slot) != uses[slot]) return "the uses of a digest are miscounted";
  }
  *where = kNil;
  return nullptr;
}

kvc_status Manager::Check(kvc_error* error) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  pages_.Poll();
  pages_.PollShared();
  uint32_t where = kNil;
  const char* wrong = CheckPages(&where);
  if (wrong == nullptr) wrong = CheckNodes(&where);
  if (wrong == nullptr) wrong = CheckOrder(&where);
  if (wrong == nullptr) wrong = CheckSequences(&where);
  if (wrong == nullptr) wrong = CheckDigests(&where);
  if (wrong == nullptr) wrong = CheckPending(&where);
  if (wrong == nullptr) return KVC_OK;
  std::string text = wrong;
  if (where != kNil) text += " (at " + std::to_string(where) + ")";
  return Fail(error, KVC_CORRUPT, text.c_str());
}

kvc_status Manager::Resident(kvc_hash_form form, uint64_t capacity, kvc_resident_block* blocks,
                             uint64_t* count, kvc_error* error) {
  struct Copy {
    ParentId parent;
    uint32_t announced;
    uint32_t written;
    uint64_t at;  // index into blocks[] once written
  };
  std::vector<Copy> copies;
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> digests;  // by slot
  std::vector<Scope> scopes;
  // Memory is taken and touched without the lock; under it there is only the
  // copying. If the tree has outgrown it meanwhile, again with more.
  for (size_t nodes = 0, roots = 0, slots = 0;;) {
    copies.resize(nodes);
    tokens.resize(nodes * block_size_);
    digests.resize(slots * kDigestBytes);
    scopes.resize(roots);
    std::shared_lock<WriterFirstMutex> lock(mutex_);
    if (tree_.size() > capacity) {
      *count = tree_.size();
      return Fail(error, KVC_INVALID_ARGUMENT, "blocks[] is too small for the resident set");
    }
    if (tree_.high_water() > nodes || tree_.root_slots() > roots || digests_.slots() > slots) {
      nodes = tree_.high_water();
      roots = tree_.root_slots();
      slots = digests_.slots();
      continue;
    }
    copies.resize(tree_.high_water());
    for (NodeId id = 0; id < copies.size(); ++id) {
      const Node& n = tree_.node(id);
      copies[id] = {n.partial() ? kNil : n.parent, n.announce == Announce::kAnnounced ? 1u : 0u, 0,
                    0};
      std::memcpy(&tokens[size_t{id} * block_size_], tree_.tokens(id),
                  size_t{block_size_} * sizeof(uint32_t));
    }
    digests_.CopyTo(digests.data());
    for (RootId id = 0; id < tree_.root_slots(); ++id) scopes[id] = tree_.root(id).scope;
    break;
  }
  uint64_t written = 0;
  std::vector<NodeId> path;
  for (NodeId start = 0; start < copies.size(); ++start) {
    if (copies[start].parent == kNil) continue;
    // Up to the first ancestor that has been written, then down again.
    path.clear();
    for (NodeId id = start; copies[id].written == 0;) {
      path.push_back(id);
      if (IsRoot(copies[id].parent)) break;
      id = copies[id].parent;
    }
    while (!path.empty()) {
      const NodeId id = path.back();
      path.pop_back();
      uint8_t parent_key[kKeyBytes];
      if (IsRoot(copies[id].parent)) {
        RootKey(scopes[ToRoot(copies[id].parent)].view(), parent_key);
      } else {
        std::memcpy(parent_key, blocks[copies[copies[id].parent].at].digest, sizeof parent_key);
      }
      kvc_resident_block& out = blocks[written];
      BlockKey(
          parent_key, &tokens[size_t{id} * block_size_], block_size_,
          [&](uint32_t token) { return &digests[digests_.slot_of(token) * kDigestBytes]; },
          out.digest);
      out.hash = WireHash(out.digest, form);
      out.announced = copies[id].announced;
      out.reserved = 0;
      copies[id].written = 1;
      copies[id].at = written++;
    }
  }
  *count = written;
  return KVC_OK;
}

}  // namespace kvcast
