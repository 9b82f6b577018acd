// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's work on sequences: create, probe, grow, commit, release.
#include <algorithm>
#include <cstring>

#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/status.h"
#include "native/src/utf8.h"

namespace kvcast {

namespace sequences {

// Blocks are looked up in chunks: hash all, touch the table, touch the nodes,
// then compare, so that the cache misses of a chunk overlap. 64 blocks of 16
// tokens keep about 1,000 tokens of hashing ahead of the first miss.
constexpr uint32_t kMaxChunk = 64;
constexpr uint32_t kFirstChunk = 8;
constexpr uint32_t kChunkTokens = 1024;

uint32_t ChunkBlocks(uint32_t block_size) {
  return std::clamp(kChunkTokens / block_size, 4u, kMaxChunk);
}

// A probe lets writers pass after this many blocks, or after the blocks that
// hold this many tokens: hashing them is what takes the time.
constexpr uint64_t kProbeYield = 256;
constexpr uint64_t kProbeYieldTokens = 16 * kProbeYield;

// New blocks are offered to the sink in runs of this many.
constexpr uint32_t kRun = 256;

// A sequence slot keeps the memory of its list of pages for its next user, up
// to this many entries (131,072 tokens at 16 per block): more would add up.
constexpr size_t kKeptPages = 8192;

// Removals, releases and holds run over page records at random places.
constexpr size_t kPrefetchAhead = 8;

bool TokensInRange(const uint32_t* tokens, uint64_t count) {
  uint32_t all = 0;
  for (uint64_t i = 0; i < count; ++i) all |= tokens[i];
  return all < kTokenLimit;
}

bool Inside(uint64_t offset, uint64_t size, uint64_t whole) {
  return offset <= whole && size <= whole - offset;
}

// The first failed item of a call tells its story; the rest have their status.
kvc_status Item(kvc_error* error, kvc_status status, const char* message) {
  if (error != nullptr && error->status == KVC_OK) Fail(error, status, message);
  return status;
}

}  // namespace sequences

// ------------------------------------------------------------ create, probe

kvc_status Manager::ValidatePrompt(const kvc_prompt& prompt, const PromptArrays& in,
                                   ScopeView* scope, uint64_t* blocks, kvc_error* error) const {
  using sequences::Inside;
  using sequences::Item;
  if (!Inside(prompt.token_offset, prompt.token_count, in.token_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "a prompt's tokens are outside tokens[]");
  }
  const uint32_t* tokens = in.tokens + prompt.token_offset;
  if (!sequences::TokensInRange(tokens, prompt.token_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "a prompt holds a token of 2^31 or more");
  }
  *scope = {};
  if (prompt.scope != KVC_NO_SCOPE) {
    if (prompt.scope >= in.scope_count) {
      return Item(error, KVC_INVALID_ARGUMENT, "a prompt's scope is outside scopes[]");
    }
    const kvc_scope& s = in.scopes[prompt.scope];
    constexpr uint32_t kAll =
        KVC_SCOPE_LORA_ID | KVC_SCOPE_SALT | KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES;
    if ((s.parts & ~kAll) != 0) {
      return Item(error, KVC_INVALID_ARGUMENT, "a scope has unknown parts");
    }
    scope->parts = s.parts;
    if ((s.parts & KVC_SCOPE_LORA_ID) != 0) {
      if (s.lora_id > INT64_MAX) {
        return Item(error, KVC_INVALID_ARGUMENT, "a LoRA id is above 2^63 - 1");
      }
      scope->lora_id = s.lora_id;
    }
    if ((s.parts & KVC_SCOPE_SALT) != 0) scope->salt = s.salt;
    const char* text = reinterpret_cast<const char*>(in.bytes);
    if ((s.parts & KVC_SCOPE_LORA_NAME) != 0) {
      if (s.lora_name_size == 0 || s.lora_name_size > kMaxScopeText ||
          !Inside(s.lora_name_offset, s.lora_name_size, in.byte_count)) {
        return Item(error, KVC_INVALID_ARGUMENT,
                    "a LoRA name must have 1 to 255 bytes inside bytes[]");
      }
      scope->lora_name = {text + s.lora_name_offset, s.lora_name_size};
      if (!IsUtf8(scope->lora_name)) {
        return Item(error, KVC_INVALID_ARGUMENT, "a LoRA name is not valid UTF-8");
      }
    }
    if ((s.parts & KVC_SCOPE_SALT_BYTES) != 0) {
      if (s.salt_bytes_size == 0 || s.salt_bytes_size > kMaxScopeText ||
          !Inside(s.salt_bytes_offset, s.salt_bytes_size, in.byte_count)) {
        return Item(error, KVC_INVALID_ARGUMENT,
                    "a byte salt must have 1 to 255 bytes inside bytes[]");
      }
      scope->salt_bytes = {text + s.salt_bytes_offset, s.salt_bytes_size};
    }
  }
  const uint64_t left = prompt.must_compute == 0                     ? 1
                        : prompt.must_compute == KVC_COMPUTE_NOTHING ? 0
                                                                     : prompt.must_compute;
  *blocks = prompt.token_count < left ? 0 : (prompt.token_count - left) / block_size_;
  return KVC_OK;
}

// Follows the prompt from match->last on, for up to `blocks` blocks; hands what
// it finds to visit(ids, count), a chunk at a time.
template <typename Visit>
void Manager::Walk(Match* match, const uint32_t* tokens, uint64_t blocks, Visit&& visit) const {
  uint64_t hashes[sequences::kMaxChunk];
  NodeId found[sequences::kMaxChunk];
  const uint32_t full_chunk = sequences::ChunkBlocks(block_size_);
  uint32_t chunk = std::min(full_chunk, sequences::kFirstChunk);
  uint64_t hash = match->last_hash;
  for (uint64_t done = 0; done < blocks;) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(chunk, blocks - done));
    const uint32_t* block = tokens + done * block_size_;
    for (uint32_t i = 0; i < count; ++i) {
      hash = hash_.Block(hash, block + size_t{i} * block_size_);
      hashes[i] = hash;
      tree_.PrefetchSlot(hash);
    }
    for (uint32_t i = 0; i < count; ++i) tree_.PrefetchNode(hashes[i]);
    uint32_t hits = 0;
    for (; hits < count; ++hits) {
      const NodeId id = tree_.Find(hashes[hits], match->last, block + size_t{hits} * block_size_);
      if (id == kNil) break;
      found[hits] = id;
      match->last = id;
      match->last_hash = hashes[hits];
    }
    match->blocks += hits;
    if (hits != 0) visit(found, hits);
    if (hits < count) return;
    done += count;
    chunk = full_chunk;
  }
}

kvc_status Manager::CreateOne(const kvc_prompt& prompt, const PromptArrays& in,
                              kvc_create_result* result, kvc_error* error) {
  ScopeView scope;
  uint64_t blocks = 0;
  if (const kvc_status bad = ValidatePrompt(prompt, in, &scope, &blocks, error); bad != KVC_OK) {
    return bad;
  }
  const uint32_t* tokens = in.tokens + prompt.token_offset;

  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  const uint32_t slot = SlotOf(prompt.device_stream);
  if (free_sequence_ == kNil) {
    return sequences::Item(error, KVC_NOT_NOW, "max_sequences are open; release one");
  }
  Sequence& seq = sequences_[free_sequence_];
  Match match;
  match.root = tree_.AcquireRoot(scope);
  match.last = RootParent(match.root);
  match.last_hash = tree_.root(match.root).hash;
  // What is found is noted first and held when nothing can fail any more. The
  // plan of victims lends its memory: a path is no longer than the pool.
  std::vector<PageId>& found_pages = victims_;
  Walk(&match, tokens, blocks, [&](const NodeId* found, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const PageId id = tree_.node(found[i]).page;
      __builtin_prefetch(&pages_[id], 1);
      found_pages.push_back(id);
    }
  });
  try {
    ReservePages(&seq, found_pages.size());
    fences_.Reserve(2);
  } catch (...) {
    found_pages.clear();
    tree_.ReleaseRoot(match.root);
    throw;
  }
  // From here on nothing throws.
  FenceList waits;
  for (const PageId id : found_pages) {
    pages_.Hold(id);
    if (pages_[id].ready != 0) fences_.Collect(pages_[id].ready, slot, &waits);
    seq.pages.push_back(id);
  }
  found_pages.clear();

  const uint32_t index = free_sequence_;
  free_sequence_ = seq.next_free;
  seq.open = true;
  seq.slot = slot;
  seq.device_stream = prompt.device_stream;
  seq.epoch = epoch_;
  seq.root = match.root;
  seq.last = match.last;
  seq.last_hash = match.last_hash;
  seq.matched = match.blocks * block_size_;
  seq.committed = seq.matched;
  if (slot != 0) ++streams_[slot].sequences;
  ++open_sequences_;
  ++changes_;
  ++live_handles().sequences;
  ++counters_.created_sequences;
  counters_.asked_blocks += prompt.token_count / block_size_;
  counters_.matched_blocks += match.blocks;
  counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());

  result->wait_count = TellWaits(&seq, waits, result->waits);
  result->sequence = uint64_t{seq.generation} << 32 | index;
  result->matched_tokens = seq.matched;
  return KVC_OK;
}

uint64_t Manager::ProbeOne(const uint32_t* tokens, uint64_t blocks, const ScopeView& scope) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  Match match;
  match.root = tree_.FindRoot(scope);
  if (match.root == kNil) return 0;
  match.last = RootParent(match.root);
  match.last_hash = tree_.root(match.root).hash;
  while (match.blocks < blocks) {
    const uint64_t before = match.blocks;
    const uint64_t step =
        std::min(blocks - before, std::clamp(sequences::kProbeYieldTokens / block_size_,
                                             uint64_t{1}, sequences::kProbeYield));
    Walk(&match, tokens + before * block_size_, step, [](const NodeId*, uint32_t) {});
    if (match.blocks - before < step || match.blocks == blocks) break;
    if (hooks_.on_probe_step != nullptr) hooks_.on_probe_step(hooks_.context);
    if (!mutex_.writer_waiting()) continue;
    const uint32_t generation = tree_.node(match.last).generation;
    lock.unlock();
    lock.lock();
    // A node that is still the same still has the whole path before it.
    if (!tree_.alive(match.last) || tree_.node(match.last).generation != generation) break;
  }
  return match.blocks;
}

void Manager::Create(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                     kvc_create_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] { return CreateOne(prompts[i], in, &results[i], story); });
  }
}

void Manager::Probe(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                    kvc_probe_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    ScopeView scope;
    uint64_t blocks = 0;
    results[i].status = ValidatePrompt(prompts[i], in, &scope, &blocks, error);
    if (results[i].status != KVC_OK) continue;
    results[i].matched_tokens =
        ProbeOne(in.tokens + prompts[i].token_offset, blocks, scope) * block_size_;
  }
}

// -------------------------------------------------------------------- grow

Sequence* Manager::Find(uint64_t id) {
  const auto index = static_cast<uint32_t>(id);
  if (index >= max_sequences_) return nullptr;
  Sequence& seq = sequences_[index];
  return seq.open && seq.generation == static_cast<uint32_t>(id >> 32) ? &seq : nullptr;
}

void Manager::ReservePages(Sequence* seq, size_t count) {
  const size_t before = seq->pages.capacity();
  if (before >= count) return;
  seq->pages.reserve(std::max(count, 2 * before));
  page_lists_bytes_ += (seq->pages.capacity() - before) * sizeof(PageId);
}

// Notes the fences with the sequence and tells the first of them.
uint32_t Manager::TellWaits(Sequence* seq, const FenceList& list, kvc_fence* waits) {
  const FenceSetId before = seq->waits;
  seq->waits = fences_.Make(list);
  fences_.Release(before);
  uint32_t told = 0;
  list.ForEach([&](const Fence& fence) {
    if (told < KVC_MAX_WAITS) waits[told++] = FromFence(fence);
  });
  return list.size();
}

kvc_status Manager::Waits(uint64_t sequence, uint32_t capacity, kvc_fence* fences, uint32_t* count,
                          kvc_error* error) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const Sequence* seq = Find(sequence);
  if (seq == nullptr) {
    return Fail(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
  uint32_t needed = 0;
  fences_.ForEach(seq->waits, [&](const Fence&) { ++needed; });
  *count = needed;
  if (needed > capacity) {
    return Fail(error, KVC_INVALID_ARGUMENT, "fences[] is too small; 63 entries always suffice");
  }
  fences_.ForEach(seq->waits, [&](const Fence& fence) { *fences++ = FromFence(fence); });
  return KVC_OK;
}

// Chooses cached pages that `slot` may use at once, least recently used first,
// children before parents. With all of the demand victims_ holds them, else it
// is empty; no mark is left. Returns how many there are.
uint32_t Manager::PlanVictims(uint32_t demand, uint32_t slot) {
  for (PageId id = pages_.FirstEvictable(); id != kNil && victims_.size() < demand;
       id = pages_[id].next) {
    const Page& page = pages_[id];
    if (page.next != kNil) {
      __builtin_prefetch(&pages_[page.next]);
      if (pages_[page.next].node != kNil) __builtin_prefetch(&tree_.node(pages_[page.next].node));
    }
    const Node& n = tree_.node(page.node);
    if (n.children != n.victims) continue;  // a child stays, so this one stays
    if (!pages_.UsableBy(page, slot)) continue;
    victims_.push_back(page.node);
    if (!IsRoot(n.parent)) ++tree_.node(n.parent).victims;
  }
  const auto planned = static_cast<uint32_t>(victims_.size());
  // The marks have served; parents that are victims too go after their children.
  for (const NodeId id : victims_) {
    const ParentId parent = tree_.node(id).parent;
    if (!IsRoot(parent)) tree_.node(parent).victims = 0;
  }
  if (planned < demand) victims_.clear();
  return planned;
}

// As refused_ says.
kvc_status Manager::NotNow(kvc_grow_result* result, kvc_error* error) {
  result->leaving_pages = refused_.leaving;
  ++counters_.refused_not_now;
  return sequences::Item(error, KVC_NOT_NOW,
                         "not enough pages at this moment; retry after a release, or when fences "
                         "have been reached");
}

kvc_status Manager::GrowOne(const kvc_grow_item& item, kvc_grow_result* result, kvc_error* error) {
  using sequences::Item;
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) {
    return Item(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
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
  const uint32_t demand = need > available ? need - available : 0;
  if (demand != 0) {
    const uint64_t progress = device_.Progress();
    if (refused_.changes == changes_ && refused_.progress == progress &&
        refused_.slot == seq->slot && refused_.demand <= demand) {
      return NotNow(result, error);
    }
    const uint32_t planned = PlanVictims(demand, seq->slot);
    if (planned < demand) {
      // What is cached or quarantined and cannot be had now waits for fences.
      const uint32_t own = seq->slot == 0 ? 0 : pages_.quarantine(seq->slot).size;
      const uint32_t leaving = pages_.cached() - planned + pages_.quarantined() - own;
      refused_ = {changes_, progress, seq->slot, demand, leaving};
      return NotNow(result, error);
    }
  }
  if (!pages_.NextAreIntact(seq->slot, need - demand)) {
    victims_.clear();
    return Item(error, KVC_DEVICE_ERROR,
                "a page was written after it had been given up: a fence is missing in the host");
  }
  // Reserve.
  try {
    ReservePages(seq, target);
  } catch (...) {
    victims_.clear();
    throw;
  }
  // Apply. Pages that need no eviction come first: their ids are older.
  for (uint32_t i = 0; i < need - demand; ++i) seq->pages.push_back(pages_.Take(seq->slot));
  for (size_t i = 0; i < victims_.size(); ++i) {
    if (i + sequences::kPrefetchAhead < victims_.size()) {
      const Node& ahead = tree_.node(victims_[i + sequences::kPrefetchAhead]);
      tree_.PrefetchInsert(ahead.hash);
      if (!IsRoot(ahead.parent)) __builtin_prefetch(&tree_.node(ahead.parent), 1);
    }
    const PageId page = tree_.node(victims_[i]).page;
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
                   kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] { return GrowOne(items[i], &results[i], story); });
  }
}

// ------------------------------------------------------------------ commit

FenceSetId Manager::RecordFence(uint32_t slot) {
  if (slot == 0) return 0;
  return fences_.Single({slot, device_.Record(slot)});
}

kvc_status Manager::CommitOne(const kvc_commit_item& item, const uint32_t* tokens,
                              kvc_commit_result* result, kvc_error* error) {
  using sequences::Item;
  if (!sequences::TokensInRange(tokens, item.token_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "a committed token is 2^31 or more");
  }
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) {
    return Item(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
  if (item.token_count > uint64_t{seq->pages.size()} * block_size_ - seq->committed) {
    return Item(error, KVC_BAD_STATE,
                "more tokens committed than the sequence has room for; grow it first");
  }
  const auto index = static_cast<uint32_t>(item.sequence);
  const uint64_t first = seq->committed / block_size_;
  const auto in_tail = static_cast<uint32_t>(seq->committed % block_size_);
  const uint64_t blocks = (seq->committed + item.token_count) / block_size_ - first;
  const bool attached = Attached(*seq);
  fences_.Reserve(blocks + 4);

  // From here on nothing throws.
  uint32_t* tail = Tail(index);
  const uint32_t* next = tokens;
  uint64_t left = item.token_count;
  uint64_t from_tail = 0;  // blocks whose tokens stand in the tail buffer: 0 or 1
  if (in_tail != 0 && blocks != 0) {
    std::memcpy(tail + in_tail, next, size_t{block_size_ - in_tail} * sizeof(uint32_t));
    next += block_size_ - in_tail;
    left -= block_size_ - in_tail;
    from_tail = 1;
  }
  result->first_changed_block = UINT32_MAX;
  if (attached && blocks != 0) {
    const FenceSetId fence = RecordFence(seq->slot);
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
    for (uint64_t done = 0; done < blocks;) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(chunk, blocks - done));
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
          pages_[ours].node = added;
          pages_[ours].ready = fences_.Retain(fence);
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
          pages_.Hold(theirs);
          if (pages_[theirs].ready != 0) {
            fences_.Collect(pages_[theirs].ready, seq->slot, &waits);
          }
          seq->pages[at] = theirs;
          pages_.Drop(ours, fence);
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
    seq->last_hash = hash;
    fences_.Release(fence);
    counters_.stored_blocks += result->stored_blocks;
    counters_.deduplicated_blocks += result->deduplicated_blocks;
    result->wait_count = TellWaits(seq, waits, result->waits);
    ++changes_;
  }
  const uint64_t direct = blocks - from_tail;
  next += direct * block_size_;
  left -= direct * block_size_;
  if (left != 0) std::memcpy(tail + (blocks != 0 ? 0 : in_tail), next, left * sizeof(uint32_t));
  seq->committed += item.token_count;
  result->committed_tokens = seq->committed;
  return KVC_OK;
}

void Manager::Commit(uint32_t count, const kvc_commit_item* items, const uint32_t* tokens,
                     uint64_t token_count, kvc_commit_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].first_changed_block = UINT32_MAX;
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    if (!sequences::Inside(items[i].token_offset, items[i].token_count, token_count)) {
      results[i].status =
          sequences::Item(story, KVC_INVALID_ARGUMENT, "an item's tokens are outside tokens[]");
      continue;
    }
    results[i].status = Guard(story, [&] {
      return CommitOne(items[i], tokens + items[i].token_offset, &results[i], story);
    });
  }
}

// ----------------------------------------------------------- release, get

kvc_status Manager::ReleaseOne(uint64_t id, kvc_error* error) {
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  Heal(4);
  Sequence* seq = Find(id);
  if (seq == nullptr) {
    return sequences::Item(error, KVC_STALE_HANDLE,
                           "the sequence is not open (released already, or never was)");
  }
  fences_.Reserve(seq->pages.size() + 4);
  // From here on nothing throws.
  const FenceSetId fence = RecordFence(seq->slot);
  // Last block first: a prefix outlives what was built on it.
  for (size_t i = seq->pages.size(); i-- > 0;) {
    if (i >= sequences::kPrefetchAhead) {
      __builtin_prefetch(&pages_[seq->pages[i - sequences::kPrefetchAhead]], 1);
    }
    pages_.Drop(seq->pages[i], fence);
  }
  fences_.Release(fence);
  if (Attached(*seq)) {
    if (sink_attached_ && seq->committed % block_size_ != 0) {
      Bump(deferral_->partial_blocks_suppressed);
    }
    tree_.ReleaseRoot(seq->root);
  }
  seq->pages.clear();
  if (seq->pages.capacity() > sequences::kKeptPages) {
    page_lists_bytes_ -= seq->pages.capacity() * sizeof(PageId);
    std::vector<PageId>().swap(seq->pages);
  }
  fences_.Release(seq->waits);
  seq->waits = 0;
  if (seq->slot != 0) --streams_[seq->slot].sequences;
  ++changes_;
  seq->open = false;
  seq->generation = seq->generation == UINT32_MAX ? 1 : seq->generation + 1;
  seq->next_free = free_sequence_;
  free_sequence_ = static_cast<uint32_t>(id);
  --open_sequences_;
  --live_handles().sequences;
  return KVC_OK;
}

void Manager::Release(uint32_t count, const uint64_t* sequences, kvc_status* results,
                      kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] { return ReleaseOne(sequences[i], story); });
  }
}

kvc_status Manager::Get(uint64_t sequence, uint32_t first_block, uint32_t capacity, PageId* pages,
                        uint32_t* written, kvc_sequence_info* info, kvc_error* error) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const Sequence* seq = Find(sequence);
  if (seq == nullptr) {
    return Fail(error, KVC_STALE_HANDLE, "the sequence is not open (released, or never was)");
  }
  const auto blocks = static_cast<uint32_t>(seq->pages.size());
  const uint32_t from = std::min(first_block, blocks);
  const uint32_t count = std::min(capacity, blocks - from);
  if (count != 0) std::memcpy(pages, seq->pages.data() + from, size_t{count} * sizeof(PageId));
  *written = count;
  if (info != nullptr) {
    *info = {};
    info->committed_tokens = seq->committed;
    info->matched_tokens = seq->matched;
    info->capacity_tokens = uint64_t{blocks} * block_size_;
    info->device_stream = seq->device_stream;
    info->page_count = blocks;
    info->detached = Attached(*seq) ? 0 : 1;
  }
  return KVC_OK;
}

}  // namespace kvcast
