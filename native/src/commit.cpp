// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Committing tokens: full blocks enter the tree.
#include <algorithm>
#include <cstring>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

kvc_status Manager::CommitOne(const kvc_commit_item& item, const TokenView& view,
                              kvc_commit_result* result, Turn* turn, kvc_error* error) {
  using sequences::Item;
  if ((item.flags & ~uint32_t{KVC_COMMIT_FENCE}) != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "a commit item has unknown flags");
  }
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  if (item.token_count > uint64_t{seq->pages.size()} * block_size_ - seq->committed) {
    return Item(error, KVC_BAD_STATE,
                "more tokens committed than the sequence has room for; grow it first");
  }
  if (item.token_count != 0 && SharesTail(*seq)) {
    return Item(error, KVC_BAD_STATE,
                "the last block is shared with a fork; grow the sequence before it writes");
  }
  const auto index = static_cast<uint32_t>(item.sequence);
  const uint64_t first = seq->committed / block_size_;
  const auto in_tail = static_cast<uint32_t>(seq->committed % block_size_);
  const uint64_t blocks = (seq->committed + item.token_count) / block_size_ - first;
  // Blocks that enter the tree: those that follow what is in it already, up to
  // where the sequence stops.
  const uint64_t links = !Attached(*seq) || seq->linked != first || seq->stop_blocks <= first
                             ? 0
                             : std::min(blocks, seq->stop_blocks - first);
  if (links != 0 && !TakesWork(seq->slot)) return sequences::Captured(error);
  const bool import = (item.flags & KVC_COMMIT_FENCE) != 0;
  const Fence given = import ? ToFence(item.fence) : Fence{};
  const uint64_t touched =
      item.token_count == 0 ? 0 : (seq->committed + item.token_count - 1) / block_size_ + 1 - first;
  // Most commits of a decoding sequence fill no block and note no fence.
  if (links != 0 || import) {
    fences_.Reserve((partial_reuse_ ? 2 * links : links) + (import ? touched : 0) + 5);
  }
  if (view.digests != nullptr) {
    if (const kvc_status full = Intern(view, item.token_count, error); full != KVC_OK) return full;
  }

  // From here on nothing throws.
  uint32_t* tail = Tail(index);
  const uint32_t* next = view.digests != nullptr ? interned_.data() : view.tokens;
  // The call, or the tail, uses the digests among the tokens; each block that
  // becomes full takes its uses over or gives them up.
  const bool digests = view.digests != nullptr || seq->tail_digests;
  uint64_t left = item.token_count;
  uint64_t from_tail = 0;  // blocks whose tokens stand in the tail buffer: 0 or 1
  if (in_tail != 0 && blocks != 0) {
    std::memcpy(tail + in_tail, next, size_t{block_size_ - in_tail} * sizeof(uint32_t));
    next += block_size_ - in_tail;
    left -= block_size_ - in_tail;
    from_tail = 1;
  }
  result->first_changed_block = UINT32_MAX;
  const FenceSetId fence = links != 0 ? RecordFence(seq->slot) : 0;
  // What a page holds may come from several fills, each with its own fence.
  if (import && hooks_.without != FenceSite::kImportReady) {
    const FenceSetId filled =
        device_.Reached(given.slot, given.position) ? 0 : fences_.Single(given);
    for (uint64_t i = 0; i < touched && filled != 0; ++i) {
      pages_.AddReady(seq->pages[first + i], filled);
    }
    fences_.Release(filled);
  }
  if (import && in_tail != 0 && links != 0) {  // the block's first tokens are the stream's
    pages_.AddReady(seq->pages[first], At(FenceSite::kCommitReady, fence));
  }
  const FenceSetId ready = import ? 0 : At(FenceSite::kCommitReady, fence);
  if (links != 0) {
    FenceList waits;
    NodeId run[sequences::kRun];
    uint32_t run_count = 0;
    ParentId run_parent = seq->last;
    const uint32_t chunk = sequences::ChunkBlocks(block_size_);
    uint64_t hashes[sequences::kMaxChunk];
    uint64_t hash = seq->last_hash;
    const auto block_at = [&](uint64_t k) {
      return k < from_tail ? tail : next + (k - from_tail) * block_size_;
    };
    // The class under which the block before the next one is listed.
    uint8_t above = first == 0 ? UINT8_MAX : pages_[seq->pages[first - 1]].listed;
    for (uint64_t done = 0; done < links;) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(chunk, links - done));
      for (uint32_t i = 0; i < count; ++i) {
        hash = hash_.Block(hash, block_at(done + i));
        hashes[i] = hash;
        tree_.PrefetchInsert(hash);
        __builtin_prefetch(&pages_[seq->pages[first + done + i]], 1);
      }
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t at = first + done + i;
        const uint32_t* block = block_at(done + i);
        const PageId ours = seq->pages[at];
        const NodeId found = tree_.Find(hashes[i], seq->last, block);
        if (found == kNil) {
          const NodeId added = tree_.Insert(hashes[i], seq->last, block, ours);
          pages_.Found(ours, added);
          pages_.AddReady(ours, ready);
          if (digests) tree_.node(added).digests = AnyDigest(block, block_size_);
          if (partial_reuse_) Supersede(added);
          if (scores_ != nullptr) EnterBlock(ours);
          if (above < kDefaultClass) RaiseAbove(added);
          above = kDefaultClass;
          if (run_count == sequences::kRun) {
            Announce(run_parent, run, run_count);
            run_parent = run[run_count - 1];
            run_count = 0;
          }
          run[run_count++] = added;
          seq->last = added;
          ++result->stored_blocks;
        } else {
          // Somebody else was first: take theirs, give ours back.
          Announce(run_parent, run, run_count);
          run_count = 0;
          run_parent = found;
          const PageId theirs = tree_.node(found).page;
          HoldBlock(theirs);
          if (scores_ != nullptr) UseBlock(theirs);
          if (pages_[theirs].ready != 0) {
            fences_.Collect(pages_[theirs].ready, seq->slot, &waits);
          }
          above = pages_[theirs].listed;
          if (digests) digests_.ReleaseAll(block, block_size_);
          seq->pages[at] = theirs;
          seq->table.Touch(static_cast<uint32_t>(at), static_cast<uint32_t>(at) + 1);
          pages_.Drop(ours, At(FenceSite::kCommitGivenBack, fence));
          if (result->first_changed_block == UINT32_MAX) {
            result->first_changed_block = static_cast<uint32_t>(at);
          }
          seq->last = found;
          ++result->deduplicated_blocks;
        }
      }
      done += count;
    }
    Announce(run_parent, run, run_count);
    if (scores_ != nullptr) LevelScores(*seq, first, first + links);
    if (!seq->rules.empty()) FollowRules(*seq, first, first + links);
    seq->last_hash = hash;
    seq->linked += static_cast<uint32_t>(links);
    if (seq->marking) CommitMarks(seq);
    if (hooks_.without == FenceSite::kCommitWait) waits = {};
    counters_.stored_blocks += result->stored_blocks;
    counters_.deduplicated_blocks += result->deduplicated_blocks;
    result->wait_count = TellWaits(seq, waits, result->waits);
    ++changes_;
  }
  fences_.Release(fence);
  const uint64_t direct = blocks - from_tail;
  for (uint64_t k = links; digests && k < blocks; ++k) {
    digests_.ReleaseAll(k < from_tail ? tail : next + (k - from_tail) * block_size_, block_size_);
  }
  next += direct * block_size_;
  left -= direct * block_size_;
  if (left != 0) std::memcpy(tail + (blocks != 0 ? 0 : in_tail), next, left * sizeof(uint32_t));
  if (digests) {
    seq->tail_digests = (blocks == 0 && seq->tail_digests) || AnyDigest(next, left);
  }
  seq->committed += item.token_count;
  result->committed_tokens = seq->committed;
  return KVC_OK;
}

kvc_status Manager::CommitItem(const kvc_commit_item& item, const CommitArrays& in,
                               kvc_commit_result* result, Turn* turn, kvc_error* error) {
  using sequences::Inside;
  using sequences::Item;
  if (!Inside(item.token_offset, item.token_count, in.token_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "an item's tokens are outside tokens[]");
  }
  if (!Inside(item.digest_offset, uint64_t{item.digest_count} * kDigestBytes, in.byte_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "an item's digests are outside bytes[]");
  }
  TokenView given{in.tokens + item.token_offset, nullptr};
  bool digests = false;
  if (!sequences::TokensInRange(given.tokens, item.token_count, item.digest_count, &digests)) {
    return Item(error, KVC_INVALID_ARGUMENT,
                "a committed token is 2^31 or more and names none of the item's digests");
  }
  if (digests) given.digests = in.bytes + item.digest_offset;
  return CommitOne(item, given, result, turn, error);
}

void Manager::Commit(uint32_t count, const kvc_commit_item* items, const CommitArrays& in,
                     kvc_commit_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].first_changed_block = UINT32_MAX;
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return CommitItem(items[i], in, &results[i], &turn, story);
    });
  }
}

}  // namespace kvcast
