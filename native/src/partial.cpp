// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Partly filled blocks that stay reusable: the tail of a released sequence becomes a
// node that nobody holds, and who shares its first tokens gets a copy of them.
#include <algorithm>
#include <cstring>

#include "native/src/manager.h"

namespace kvcast {

namespace partial {

// How many children are compared, the newest first: a block on which many prompts
// go on must not make each create a search.
constexpr uint32_t kMostCompared = 32;

uint32_t CommonTokens(const uint32_t* a, const uint32_t* b, uint64_t most) {
  uint32_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  return common;
}

}  // namespace partial

// The child of what was matched that has the most tokens of the prompt's next block, if
// a page for them can be had and a copy be made, or if it is a tail that has no more.
// Changes nothing, but may throw.
Manager::PartialHit Manager::FindPartial(const Match& match, const PromptView& view,
                                         uint32_t slot) {
  PartialHit hit;
  NodeId child = tree_.FirstChild(match.last);
  uint64_t first = match.blocks * block_size_;
  uint64_t most = std::min<uint64_t>(view.most - first, block_size_);
  if (child == kNil || most == 0) return hit;
  const uint32_t* text = view.tokens.tokens + first;
  if (view.tokens.digests != nullptr) {
    // The tail of the sequence that is about to be opened is free for it.
    uint32_t* translated = Tail(free_sequence_);
    most = Translate(view.tokens, first, most, translated);
    text = translated;
  }
  for (uint32_t i = 0; child != kNil && i < partial::kMostCompared; ++i) {
    const Node& n = tree_.node(child);
    if (n.older != kNil) __builtin_prefetch(&tree_.node(n.older));
    const uint32_t common = partial::CommonTokens(text, tree_.tokens(child),
                                                  std::min<uint64_t>(most, tree_.count(child)));
    if (common > hit.tokens) {
      hit.tokens = common;
      hit.node = child;
    }
    child = n.older;
  }
  if (hit.tokens == 0) return hit;
  // Nothing goes for the sake of a few tokens.
  pages_.Poll();
  if (pages_.Available(slot) == 0 && pages_.quarantine(0).size != 0) pages_.PollShared();
  const bool queued_by_engine = page_bytes_ == 0 && Queues(slot);
  if (queued_by_engine || pages_.Available(slot) == 0 || !pages_.NextAreIntact(slot, 1) ||
      PlanCopy(slot, tree_.node(hit.node).page, &hit.copy, nullptr) != KVC_OK) {
    hit.takes = tree_.node(hit.node).partial() && hit.tokens == tree_.count(hit.node);
    if (!hit.takes) return {};
  }
  return hit;
}

// The sequence holds what was matched before. Throws nothing.
void Manager::TakePartial(Sequence* seq, const PartialHit& hit, uint32_t slot, FenceList* waits,
                          kvc_create_result* result) {
  uint32_t* tail = Tail(static_cast<uint32_t>(seq - sequences_.data()));
  std::memcpy(tail, tree_.tokens(hit.node), size_t{hit.tokens} * sizeof(uint32_t));
  seq->tail_digests = tree_.node(hit.node).digests && AnyDigest(tail, hit.tokens);
  ++counters_.partial_hits;
  counters_.partial_hit_tokens += hit.tokens;
  if (hit.takes) {
    // The tail becomes the sequence's, with the uses of its digests. Copies of it that
    // are on their way read what is not written again.
    const PageId page = tree_.node(hit.node).page;
    fences_.Collect(pages_[page].ready, slot, waits);
    HoldBlock(page);
    tree_.node(hit.node).digests = false;
    ForgetNode(hit.node, KVC_EVICTED_CAPACITY);  // nobody is told
    pages_[page].node = kNil;
    seq->pages.push_back(page);
    return;
  }
  if (seq->tail_digests) digests_.RetainAll(tail, hit.tokens);
  const PageCopy copy{tree_.node(hit.node).page, pages_.Take(slot), hit.tokens};
  // It is used, and goes behind everything else in the order of eviction; the blocks
  // before it are held.
  HoldBlock(copy.from);
  if (scores_ != nullptr) UseBlock(copy.from);
  // The engine's own copy waits with everything else.
  if (page_bytes_ == 0) fences_.Collect(pages_[copy.from].ready, slot, waits);
  MakeCopy(hit.copy, slot, copy, waits);
  pages_.Drop(copy.from, 0);
  seq->pages.push_back(copy.to);
  result->copied_tokens = hit.tokens;
  result->copied_from = copy.from;
  result->copied_to = copy.to;
}

// Only what would have become a block: not behind one that is not in the tree, nor
// where the sequence has stopped. Forks go on writing behind a shared one.
bool Manager::KeepsTail(const Sequence& sequence, Closing how) const {
  if (!partial_reuse_ || how != Closing::kRelease || sequence.suspended || !Attached(sequence)) {
    return false;
  }
  const uint64_t full = sequence.committed / block_size_;
  return sequence.committed % block_size_ != 0 && sequence.linked == full &&
         sequence.stop_blocks > full && pages_[sequence.pages[full]].holders == 1;
}

// The sequence drops the page next. Nothing is kept twice: a tail that begins another
// child is not kept, one that begins this one goes.
void Manager::KeepTail(uint32_t index, FenceSetId fence) {
  Sequence& seq = sequences_[index];
  const uint32_t* text = Tail(index);
  const auto tokens = static_cast<uint32_t>(seq.committed % block_size_);
  NodeId shorter = kNil;
  NodeId child = tree_.FirstChild(seq.last);
  for (uint32_t i = 0; child != kNil && i < partial::kMostCompared; ++i) {
    const uint32_t has = tree_.count(child);
    const uint32_t common = partial::CommonTokens(text, tree_.tokens(child), std::min(tokens, has));
    if (common == tokens) return;
    if (common == has && shorter == kNil) shorter = child;
    child = tree_.node(child).older;
  }
  if (shorter != kNil) DropPartial(shorter);
  const PageId page = seq.pages[seq.linked];
  const NodeId added = tree_.InsertPartial(seq.last, text, tokens, page);
  pages_.Found(page, added);
  pages_.AddReady(page, At(FenceSite::kTailReady, fence));
  // It is worth what the block before it is, but no priority that may end.
  const PageId above = IsRoot(seq.last) ? kNil : tree_.node(seq.last).page;
  if (above != kNil) {
    pages_[page].own = pages_[page].listed = std::min(pages_[above].own, kDefaultClass);
  }
  if (scores_ != nullptr) {
    pages_[page].score = above != kNil ? pages_[above].score : scores_->now();
  }
  tree_.node(added).digests = seq.tail_digests;  // with the uses
  seq.tail_digests = false;
  ++counters_.kept_partial_blocks;
}

// A whole block has entered the tree: a tail that begins it says nothing more.
void Manager::Supersede(NodeId whole) {
  const uint32_t* text = tree_.tokens(whole);
  NodeId child = tree_.node(whole).older;
  for (uint32_t i = 1; child != kNil && i < partial::kMostCompared; ++i) {
    const uint32_t has = tree_.count(child);
    if (tree_.node(child).partial() &&
        partial::CommonTokens(text, tree_.tokens(child), has) == has) {
      DropPartial(child);
      return;
    }
    child = tree_.node(child).older;
  }
}

// Needs a set of fences.
void Manager::DropPartial(NodeId id) {
  const PageId page = tree_.node(id).page;
  ForgetNode(id, KVC_EVICTED_CAPACITY);  // nobody is told
  pages_.Discard(page);
}

}  // namespace kvcast
