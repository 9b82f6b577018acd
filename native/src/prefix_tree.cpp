// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/prefix_tree.h"

#include <cstring>
#include <new>

namespace kvcast {

namespace prefix_tree {

constexpr size_t kCacheLine = 64;

// Tables of a power of two with load at most one half: linear probing then
// looks at 1.5 entries for a hit on average.
uint32_t TableBits(uint32_t entries) {
  uint32_t bits = 4;
  while ((uint64_t{1} << bits) < uint64_t{2} * entries) ++bits;
  return bits;
}

}  // namespace prefix_tree

PrefixTree::PrefixTree(uint32_t max_nodes, uint32_t tokens_per_block, const MixedHash& hash,
                       bool lists)
    : hash_(hash),
      capacity_(max_nodes),
      tokens_per_block_(tokens_per_block),
      stride_((sizeof(Node) + size_t{tokens_per_block} * sizeof(uint32_t) +
               prefix_tree::kCacheLine - 1) /
              prefix_tree::kCacheLine * prefix_tree::kCacheLine),
      lists_(lists),
      slab_(stride_ * max_nodes, "the prefix tree (capacity_blocks x tokens_per_block)"),
      root_table_(16, kNil) {
  const uint32_t bits = prefix_tree::TableBits(max_nodes);
  shift_ = 32 - bits;
  mask_ = (uint32_t{1} << bits) - 1;
  table_slab_ =
      Slab((size_t{mask_} + 1) * sizeof(Entry), "the table of the prefix tree (capacity_blocks)");
  table_ = reinterpret_cast<Entry*>(table_slab_.data());
  std::memset(table_, 0xff, table_slab_.size());
}

size_t PrefixTree::bytes() const {
  return slab_.size() + table_slab_.size() + roots_.capacity() * sizeof(Root) +
         root_table_.capacity() * sizeof(RootId);
}

bool PrefixTree::Equal(NodeId id, uint64_t hash, ParentId parent, const uint32_t* block) const {
  const Node& n = node(id);
  return n.hash == hash && n.parent == parent &&
         std::memcmp(tokens(id), block, size_t{tokens_per_block_} * sizeof(uint32_t)) == 0;
}

void PrefixTree::PrefetchNode(uint64_t hash) const {
  const uint32_t tag = hash_.Tag(hash);
  const Entry entry = table_[Home(tag)];
  if (entry.id == kNil) return;
  const std::byte* slot = Slot(entry.id);
  __builtin_prefetch(slot);
  __builtin_prefetch(slot + prefix_tree::kCacheLine);
}

// A node of its own for a new child. Part of Insert, which is hot: a call by itself, and code
// for lists that nearly no tree has, were a tenth of its instructions.
__attribute__((always_inline)) inline NodeId PrefixTree::Place(ParentId parent, PageId page) {
  NodeId id = free_;
  uint32_t generation = 1;
  if (id != kNil) {
    free_ = node(id).deferred_next;
    generation = node(id).generation;
  } else {
    id = high_water_++;
  }
  Node& n = *new (Slot(id)) Node;
  n.generation = generation;
  n.parent = parent;
  n.page = page;
  if (IsRoot(parent)) {
    ++roots_[ToRoot(parent)].refs;
  } else {
    ++node(parent).children;
  }
  if (lists_) JoinList(id);
  return id;
}

void PrefixTree::JoinList(NodeId id) {
  Node& n = node(id);
  NodeId& first = ChildList(n.parent);
  n.older = first;
  if (first != kNil) node(first).newer = id;
  first = id;
}

void PrefixTree::LeaveList(NodeId id) {
  const Node& n = node(id);
  (n.newer != kNil ? node(n.newer).older : ChildList(n.parent)) = n.older;
  if (n.older != kNil) node(n.older).newer = n.newer;
}

NodeId PrefixTree::InsertPartial(ParentId parent, const uint32_t* tokens_of, uint32_t count,
                                 PageId page) {
  const NodeId id = Place(parent, page);
  node(id).hash = count;
  node(id).announce = Announce::kPartial;
  std::memcpy(tokens(id), tokens_of, size_t{count} * sizeof(uint32_t));
  ++partials_;
  return id;
}

NodeId PrefixTree::Insert(uint64_t hash, ParentId parent, const uint32_t* block, PageId page) {
  const NodeId id = Place(parent, page);
  node(id).hash = hash;
  std::memcpy(tokens(id), block, size_t{tokens_per_block_} * sizeof(uint32_t));
  const uint32_t tag = hash_.Tag(hash);
  uint32_t i = Home(tag);
  while (table_[i].id != kNil) i = (i + 1) & mask_;
  table_[i] = {tag, id};
  ++size_;
  return id;
}

// Backward-shift deletion: no tombstones, so the table never has to be rebuilt.
void PrefixTree::EraseEntry(NodeId id) {
  uint32_t hole = Home(hash_.Tag(node(id).hash));
  while (table_[hole].id != id) hole = (hole + 1) & mask_;
  for (uint32_t i = (hole + 1) & mask_; table_[i].id != kNil; i = (i + 1) & mask_) {
    // An entry may move back only as far as its home.
    const uint32_t from_home = (i - Home(table_[i].tag)) & mask_;
    const uint32_t from_hole = (i - hole) & mask_;
    if (from_home < from_hole) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = {0, kNil};
}

void PrefixTree::Erase(NodeId id) {
  if (node(id).partial()) {
    --partials_;
  } else {
    EraseEntry(id);
    --size_;
  }
  if (lists_) LeaveList(id);
  Node& n = node(id);
  const ParentId parent = n.parent;
  n.parent = kNil;
  ++n.generation;
  n.deferred_next = free_;
  free_ = id;
  if (IsRoot(parent)) {
    ReleaseRoot(ToRoot(parent));
  } else {
    --node(parent).children;
  }
}

void PrefixTree::Clear() {
  std::memset(table_, 0xff, table_slab_.size());
  free_ = kNil;
  for (NodeId id = high_water_; id-- > 0;) {
    Node& n = node(id);
    if (n.parent != kNil) ++n.generation;
    n.parent = kNil;
    n.deferred_next = free_;
    free_ = id;
  }
  size_ = partials_ = 0;
  for (RootId id = 0; id < roots_.size(); ++id) {
    if (roots_[id].refs == 0) continue;
    roots_[id].first_child = kNil;
    roots_[id].refs = roots_[id].sleepers;
    if (roots_[id].refs == 0) UnlinkRoot(id);
  }
}

RootId PrefixTree::FindRoot(const ScopeView& scope) const {
  const uint64_t hash = hash_.Root(scope);
  const size_t mask = root_table_.size() - 1;
  for (size_t i = hash_.Tag(hash) & mask;; i = (i + 1) & mask) {
    const RootId id = root_table_[i];
    if (id == kNil) return kNil;
    if (roots_[id].hash == hash && roots_[id].scope.view() == scope) return id;
  }
}

RootId PrefixTree::AcquireRoot(const ScopeView& scope) {
  if (const RootId found = FindRoot(scope); found != kNil) {
    ++roots_[found].refs;
    return found;
  }
  // Everything that can throw comes before the first change.
  if (2 * (size_t{root_count_} + 1) > root_table_.size()) GrowRootTable();
  if (free_root_ == kNil) {
    roots_.emplace_back();
    free_root_ = static_cast<RootId>(roots_.size() - 1);
  }
  Root& added = roots_[free_root_];
  added.scope.lora_name.assign(scope.lora_name);
  added.scope.salt_bytes.assign(scope.salt_bytes);
  added.scope.parts = scope.parts;
  added.scope.lora_id = scope.lora_id;
  added.scope.salt = scope.salt;
  added.hash = hash_.Root(scope);
  added.refs = 1;
  const RootId id = free_root_;
  free_root_ = added.next_free;
  ++root_count_;
  const size_t mask = root_table_.size() - 1;
  size_t i = hash_.Tag(added.hash) & mask;
  while (root_table_[i] != kNil) i = (i + 1) & mask;
  root_table_[i] = id;
  return id;
}

void PrefixTree::ReleaseRoot(RootId id) {
  if (--roots_[id].refs == 0) UnlinkRoot(id);
}

void PrefixTree::UnlinkRoot(RootId id) {
  const size_t mask = root_table_.size() - 1;
  size_t hole = hash_.Tag(roots_[id].hash) & mask;
  while (root_table_[hole] != id) hole = (hole + 1) & mask;
  for (size_t i = (hole + 1) & mask; root_table_[i] != kNil; i = (i + 1) & mask) {
    const size_t home = hash_.Tag(roots_[root_table_[i]].hash) & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    root_table_[hole] = root_table_[i];
    hole = i;
  }
  root_table_[hole] = kNil;
  roots_[id].next_free = free_root_;
  free_root_ = id;
  --root_count_;
}

void PrefixTree::GrowRootTable() {
  std::vector<RootId> wider(root_table_.size() * 2, kNil);
  const size_t mask = wider.size() - 1;
  for (const RootId id : root_table_) {
    if (id == kNil) continue;
    size_t i = hash_.Tag(roots_[id].hash) & mask;
    while (wider[i] != kNil) i = (i + 1) & mask;
    wider[i] = id;
  }
  root_table_.swap(wider);
}

const char* PrefixTree::Check(NodeId* where) const {
  uint32_t entries = 0;
  for (uint32_t i = 0; i <= mask_; ++i) {
    const NodeId id = table_[i].id;
    if (id == kNil) continue;
    *where = id;
    ++entries;
    if (id >= high_water_ || !alive(id)) return "a table entry names a node that is not there";
    if (table_[i].tag != hash_.Tag(node(id).hash)) return "a table entry has a wrong tag";
  }
  uint32_t living = 0;
  uint32_t partials = 0;
  for (NodeId id = 0; id < high_water_; ++id) {
    if (!alive(id)) continue;
    *where = id;
    const Node& n = node(id);
    if (n.victims != 0) return "an eviction plan was not cleared";
    if (n.partial()) {
      ++partials;
      if (!lists_) return "a tail is kept in a tree that keeps none";
      if (n.hash == 0 || n.hash >= tokens_per_block_) return "a kept tail is not partly filled";
      if (n.children != 0) return "a kept tail has children";
      if (!IsRoot(n.parent) &&
          (n.parent >= high_water_ || !alive(n.parent) || node(n.parent).partial())) {
        return "a kept tail does not follow a block";
      }
      continue;
    }
    ++living;
    if (Find(n.hash, n.parent, tokens(id)) != id) return "a node is not found by its content";
    uint64_t parent_hash = 0;
    if (IsRoot(n.parent)) {
      if (ToRoot(n.parent) >= roots_.size()) return "a node has a root that never was";
      if (roots_[ToRoot(n.parent)].refs == 0) return "a node hangs on a free root";
      parent_hash = roots_[ToRoot(n.parent)].hash;
    } else {
      if (n.parent >= high_water_ || !alive(n.parent)) return "a node's parent is not there";
      parent_hash = node(n.parent).hash;
    }
    if (hash_.Block(parent_hash, tokens(id)) != n.hash) return "a node's hash is not its content's";
  }
  *where = kNil;
  if (entries != size_ || living != size_ || partials != partials_) {
    return "table, arena and count differ";
  }
  uint32_t roots = 0;
  for (const Root& r : roots_) roots += r.refs != 0 ? 1 : 0;
  if (roots != root_count_) return "the count of roots is wrong";
  return lists_ ? CheckLists(where) : nullptr;
}

// Each node is on its parent's list, once.
const char* PrefixTree::CheckLists(NodeId* where) const {
  uint32_t listed = 0;
  const auto walk = [&](ParentId parent) {
    NodeId newer = kNil;
    for (NodeId id = FirstChild(parent); id != kNil; id = node(id).older) {
      *where = id;
      if (id >= high_water_ || !alive(id) || node(id).parent != parent || node(id).newer != newer ||
          ++listed > size_ + partials_) {
        return false;
      }
      newer = id;
    }
    return true;
  };
  for (NodeId id = 0; id < high_water_; ++id) {
    if (alive(id) && !walk(id)) return "a list of children is broken";
  }
  for (RootId id = 0; id < roots_.size(); ++id) {
    if (roots_[id].refs != 0 && !walk(RootParent(id))) return "a list of children is broken";
  }
  *where = kNil;
  return listed == size_ + partials_ ? nullptr : "the lists of children are miscounted";
}

}  // namespace kvcast
