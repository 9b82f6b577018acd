// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The prefix tree: nodes with their tokens, roots with their scopes, and the
// one table that finds a child.
#ifndef KVCAST_NATIVE_SRC_PREFIX_TREE_H_
#define KVCAST_NATIVE_SRC_PREFIX_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/src/mixed_hash.h"
#include "native/src/scope.h"
#include "native/src/slab.h"
#include "native/src/types.h"

namespace kvcast {

enum class Announce : uint8_t {
  kNone,        // no stream is attached
  kAnnounced,   // recorded as stored
  kDeferred,    // on the deferred list, to be announced later
  kSuppressed,  // never announced: multimodal, or below such a block
  kPartial,     // no whole block, so nobody is told of it
};

struct Node {
  uint64_t hash = 0;        // mixed, chained over the parent's; kPartial: how many tokens it has
  uint32_t generation = 0;  // grows with each use of the arena slot
  ParentId parent = kNil;   // kNil: the slot is free, deferred_next links it
  uint32_t children = 0;
  PageId page = kNil;
  NodeId deferred_prev = kNil;
  NodeId deferred_next = kNil;
  uint32_t victims = 0;  // children that the eviction being planned takes
  Announce announce = Announce::kNone;
  bool digests = false;     // among the tokens: interned, with a use of each
  uint16_t timer_slot = 0;  // with `due`: where on the timer wheel the block is, and more of due
  uint32_t due = 0;         // the tick when its priority ends, its low bits; 0: never
  NodeId timer_prev = kNil;
  NodeId timer_next = kNil;
  // Kept if the tree lists children: the newest child, and the next newer and older ones.
  NodeId first_child = kNil;
  NodeId newer = kNil;
  NodeId older = kNil;
  [[nodiscard]] bool partial() const { return announce == Announce::kPartial; }
};
static_assert(sizeof(Node) == 64, "one cache line, the tokens follow in the next");

struct Root {
  Scope scope;
  uint64_t hash = 0;
  uint32_t refs = 0;      // children and attached sequences; 0 = free slot
  uint32_t sleepers = 0;  // of those: suspended sequences, which outlive a Clear
  RootId next_free = kNil;
  NodeId first_child = kNil;  // as in a node
};

// Arenas and ids, no pointers between nodes, no allocation after construction
// except for roots of new scopes. Used under the manager's lock; lookups may
// run in parallel under the shared one.
class PrefixTree {
 public:
  // `lists`: parents list their children, so that tails can be kept (InsertPartial).
  PrefixTree(uint32_t max_nodes, uint32_t tokens_per_block, const MixedHash& hash, bool lists);

  // Whole blocks.
  [[nodiscard]] uint32_t size() const { return size_; }
  // Partly filled ones.
  [[nodiscard]] uint32_t partials() const { return partials_; }
  [[nodiscard]] uint32_t root_count() const { return root_count_; }
  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  [[nodiscard]] size_t bytes() const;

  [[nodiscard]] Node& node(NodeId id) { return *reinterpret_cast<Node*>(Slot(id)); }
  [[nodiscard]] const Node& node(NodeId id) const {
    return *reinterpret_cast<const Node*>(Slot(id));
  }
  [[nodiscard]] uint32_t* tokens(NodeId id) {
    return reinterpret_cast<uint32_t*>(Slot(id) + sizeof(Node));
  }
  [[nodiscard]] const uint32_t* tokens(NodeId id) const {
    return reinterpret_cast<const uint32_t*>(Slot(id) + sizeof(Node));
  }
  [[nodiscard]] const std::byte* tokens_base() const { return slab_.data() + sizeof(Node); }
  [[nodiscard]] size_t stride() const { return stride_; }
  [[nodiscard]] bool alive(NodeId id) const { return node(id).parent != kNil; }
  // Ids at and above this have never been used.
  [[nodiscard]] NodeId high_water() const { return high_water_; }

  // The child of `parent` with these tokens, or kNil. The hash only finds the
  // slot; parent and all tokens are compared.
  [[nodiscard]] NodeId Find(uint64_t hash, ParentId parent, const uint32_t* block) const {
    const uint32_t tag = hash_.Tag(hash);
    for (uint32_t i = Home(tag);; i = (i + 1) & mask_) {
      const Entry entry = table_[i];
      if (entry.id == kNil) return kNil;
      if (entry.tag == tag && Equal(entry.id, hash, parent, block)) return entry.id;
    }
  }
  // The three steps of a prefetched lookup, each for many blocks before the next.
  void PrefetchSlot(uint64_t hash) const { __builtin_prefetch(&table_[Home(hash_.Tag(hash))]); }
  void PrefetchNode(uint64_t hash) const;

  // Adds a child that Find does not know. The arena has a slot for each page,
  // so there is always one for a block that has a page.
  NodeId Insert(uint64_t hash, ParentId parent, const uint32_t* block, PageId page);
  // Adds a block that is partly filled. Find does not know it, and it has no children.
  NodeId InsertPartial(ParentId parent, const uint32_t* tokens, uint32_t count, PageId page);
  // If the tree lists children: the newest, from which Node::older leads to the others.
  [[nodiscard]] NodeId FirstChild(ParentId parent) const {
    return IsRoot(parent) ? roots_[ToRoot(parent)].first_child : node(parent).first_child;
  }
  // How many tokens a node has.
  [[nodiscard]] uint32_t count(NodeId id) const {
    return node(id).partial() ? static_cast<uint32_t>(node(id).hash) : tokens_per_block_;
  }
  // Touches what the next inserts will write.
  void PrefetchInsert(uint64_t hash) const {
    __builtin_prefetch(&table_[Home(hash_.Tag(hash))], 1);
  }
  // Takes a childless node out.
  void Erase(NodeId id);
  // Takes everything out. Roots go with the nodes, except those of sleepers, who
  // keep their references; other sequences must not drop theirs any more.
  void Clear();

  // Finds or adds the root of a scope and takes a reference to it.
  [[nodiscard]] RootId AcquireRoot(const ScopeView& scope);
  void ReleaseRoot(RootId id);
  // One more reference to a root that has some.
  void ShareRoot(RootId id) { ++roots_[id].refs; }
  // The holder of a reference falls asleep, or wakes up.
  void SleepOn(RootId id) { ++roots_[id].sleepers; }
  void WakeOn(RootId id) { --roots_[id].sleepers; }
  [[nodiscard]] RootId FindRoot(const ScopeView& scope) const;
  [[nodiscard]] const Root& root(RootId id) const { return roots_[id]; }
  [[nodiscard]] size_t root_slots() const { return roots_.size(); }

  // Table and arena, as far as the tree alone can check itself: nullptr, or
  // what is wrong (static text) and where.
  [[nodiscard]] const char* Check(NodeId* where) const;

 private:
  struct Entry {
    uint32_t tag;
    NodeId id;  // kNil: empty
  };

  [[nodiscard]] std::byte* Slot(NodeId id) const { return slab_.data() + size_t{id} * stride_; }
  [[nodiscard]] uint32_t Home(uint32_t tag) const { return tag >> shift_; }
  [[nodiscard]] bool Equal(NodeId id, uint64_t hash, ParentId parent, const uint32_t* block) const;
  void EraseEntry(NodeId id);
  NodeId Place(ParentId parent, PageId page);
  // Of the children of its parent, with `lists`.
  __attribute__((noinline)) void JoinList(NodeId id);
  __attribute__((noinline)) void LeaveList(NodeId id);
  [[nodiscard]] const char* CheckLists(NodeId* where) const;
  NodeId& ChildList(ParentId parent) {
    return IsRoot(parent) ? roots_[ToRoot(parent)].first_child : node(parent).first_child;
  }
  void UnlinkRoot(RootId id);
  void GrowRootTable();

  const MixedHash& hash_;
  uint32_t capacity_;
  uint32_t tokens_per_block_;
  size_t stride_;
  const bool lists_;
  uint32_t size_ = 0;
  uint32_t partials_ = 0;
  NodeId high_water_ = 0;
  NodeId free_ = kNil;
  uint32_t shift_ = 0;
  uint32_t mask_ = 0;
  Slab slab_;
  Slab table_slab_;
  Entry* table_ = nullptr;

  std::vector<Root> roots_;
  std::vector<RootId> root_table_;  // open addressing, load <= 1/2
  RootId free_root_ = kNil;
  uint32_t root_count_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_PREFIX_TREE_H_
