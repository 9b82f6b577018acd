// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A slow, obvious model of the manager: maps, vectors and searches from the
// start. It follows the rules as they are written down, not the library's code.
// model_test.cpp drives it in lock-step with the library through the C ABI.
#ifndef KVCAST_TESTS_NATIVE_MODEL_H_
#define KVCAST_TESTS_NATIVE_MODEL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_key.h"
#include "tests/native/abi_support.h"

namespace kvcast::testing {

using ModelKey = std::array<uint8_t, 32>;

// A point on a device stream, in operations submitted to it.
struct ModelFence {
  uint64_t stream = 0;
  uint64_t position = 0;
};

struct ModelBlock;
struct ModelPage {
  uint32_t id = UINT32_MAX;  // as the library reported it
  uint32_t holders = 0;
  ModelBlock* block = nullptr;    // none: private to its holder
  std::vector<ModelFence> ready;  // when what it holds has been written
  std::vector<ModelFence> used;   // when those who let it go have finished with it
};
using ModelPageRef = std::shared_ptr<ModelPage>;

struct ModelScope {
  ScopeSpec spec;
  ModelKey root{};
};

struct ModelBlock {
  ModelKey key{};
  std::shared_ptr<ModelBlock> parent;  // none: hangs on the root
  const ModelScope* scope = nullptr;
  uint32_t children = 0;
  ModelPageRef page;
  uint64_t id = KVC_NO_BLOCK;  // once it has been seen
};
using ModelBlockRef = std::shared_ptr<ModelBlock>;

struct ModelSequence {
  uint64_t id = 0;
  uint64_t stream = 0;
  const ModelScope* scope = nullptr;
  std::vector<uint32_t> tokens;  // committed
  std::vector<ModelBlockRef> blocks;
  std::vector<ModelPageRef> pages;
  uint64_t matched = 0;
  uint64_t epoch = 0;
};

// What is remembered of every block that ever existed, to judge events by.
struct ModelKnown {
  ModelKey parent{};
  bool root = false;
  std::vector<uint32_t> tokens;
  const ModelScope* scope = nullptr;
};

class Model {
 public:
  Model(uint32_t block, uint32_t total, uint32_t max_sequences)
      : block_(block), total_(total), max_sequences_(max_sequences), free_(total) {}

  // ------------------------------------------------------------------ device

  void OpenStream(uint64_t id) {
    streams_[id].open = true;
    order_.push_back(id);
  }
  void CloseStream(uint64_t id) { streams_.at(id).open = false; }
  [[nodiscard]] std::vector<uint64_t> OpenStreams() const {
    std::vector<uint64_t> open = {0};
    for (const uint64_t id : order_) {
      if (streams_.at(id).open) open.push_back(id);
    }
    return open;
  }
  void Fill(uint64_t stream) {
    if (stream != 0) Submit(stream, {});  // the host's own work is done at once
  }
  void StreamWait(uint64_t stream, const std::vector<ModelFence>& fences) {
    for (const ModelFence& fence : fences) {
      if (!Reached(fence) && fence.stream != stream) Submit(stream, {true, fence});
    }
  }
  // Up to `limit` fills of a stream and what they wait for.
  uint64_t Advance(uint64_t id, uint64_t limit) {
    uint64_t ran = 0;
    for (; ran < limit; ++ran) {
      Stream* stream = &streams_.at(id);
      while (!stream->queue.empty() && stream->queue.front().wait) {
        stream = &streams_.at(stream->queue.front().fence.stream);
      }
      if (stream->queue.empty()) break;
      stream->queue.pop_front();
      ++stream->executed;
      PassWaits();
    }
    return ran;
  }
  uint64_t AdvanceAll() {
    uint64_t ran = 0;
    for (const uint64_t id : order_) ran += Advance(id, UINT64_MAX);
    return ran;
  }

  // ------------------------------------------------------------------- calls

  [[nodiscard]] std::vector<ModelBlockRef> Match(const ModelScope& scope,
                                                 const std::vector<uint32_t>& tokens,
                                                 uint32_t must_compute) const {
    const uint64_t left = must_compute == 0                     ? 1
                          : must_compute == KVC_COMPUTE_NOTHING ? 0
                                                                : must_compute;
    std::vector<ModelBlockRef> found;
    ModelKey key = scope.root;
    for (uint64_t end = block_; end + left <= tokens.size(); end += block_) {
      key = KeyOf(key, &tokens[end - block_]);
      const auto at = resident_.find(key);
      if (at == resident_.end()) break;
      found.push_back(at->second);
    }
    return found;
  }

  // No sequence if too many are open.
  ModelSequence* Create(const ModelScope& scope, const std::vector<uint32_t>& tokens,
                        uint32_t must_compute, uint64_t stream, std::vector<ModelFence>* waits) {
    if (sequences_.size() >= max_sequences_) return nullptr;
    auto made = std::make_unique<ModelSequence>();
    made->stream = stream;
    made->scope = &scope;
    made->epoch = epoch_;
    made->blocks = Match(scope, tokens, must_compute);
    for (const ModelBlockRef& block : made->blocks) {
      Hold(*block->page);
      made->pages.push_back(block->page);
    }
    made->matched = made->blocks.size() * block_;
    made->tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(made->matched));
    ++counts.created_sequences;
    counts.asked_blocks += tokens.size() / block_;
    counts.matched_blocks += made->blocks.size();
    NotePeak();
    *waits = WaitsFor(made->pages, stream);
    sequences_.push_back(std::move(made));
    return sequences_.back().get();
  }

  struct Grown {
    kvc_status status = KVC_OK;
    uint32_t added = 0;
    uint32_t evicted = 0;
    uint32_t leaving_min = 0;  // bounds, NOT_NOW only
    uint32_t leaving_max = 0;
    std::vector<ModelBlockRef> victims;  // the blocks that went, in order
  };
  Grown Grow(ModelSequence& s, uint64_t capacity_tokens) {
    Grown result;
    const uint64_t target = (capacity_tokens + block_ - 1) / block_;
    if (target <= s.pages.size()) return result;
    if (target > total_) {
      ++counts.refused_never_fits;
      result.status = KVC_NEVER_FITS;
      return result;
    }
    const uint64_t need = target - s.pages.size();
    Poll();
    uint64_t own = 0;
    for (const ModelPageRef& page : quarantine_) own += UsableBy(page->used, s.stream) ? 1 : 0;
    const uint64_t demand = need > own + free_ ? need - own - free_ : 0;
    // From the list's head, passing over what another stream's fences guard and
    // what would leave a child behind.
    std::vector<ModelBlockRef> victims;
    std::map<const ModelBlock*, uint32_t> gone;
    for (const ModelBlockRef& block : lru_) {
      if (victims.size() == demand) break;
      if (block->children != gone[block.get()]) continue;
      if (!UsableBy(block->page->ready, s.stream) || !UsableBy(block->page->used, s.stream)) {
        continue;
      }
      victims.push_back(block);
      if (block->parent) ++gone[block->parent.get()];
    }
    if (victims.size() < demand) {
      ++counts.refused_not_now;
      result.status = KVC_NOT_NOW;
      result.leaving_min = static_cast<uint32_t>(quarantine_.size() - own);
      result.leaving_max = static_cast<uint32_t>(result.leaving_min + lru_.size() - victims.size());
      return result;
    }
    // First pages that only this stream may use, those with the oldest fences
    // before the others, then free ones, then those of the victims.
    for (uint64_t i = 0; i < need - demand; ++i) {
      auto oldest = quarantine_.end();
      uint64_t oldest_position = 0;
      for (auto page = quarantine_.begin(); page != quarantine_.end(); ++page) {
        if (!UsableBy((*page)->used, s.stream)) continue;
        uint64_t last = 0;
        for (const ModelFence& fence : (*page)->used) {
          if (fence.stream == s.stream) last = std::max(last, fence.position);
        }
        if (oldest == quarantine_.end() || last < oldest_position) {
          oldest = page;
          oldest_position = last;
        }
      }
      if (oldest != quarantine_.end()) {
        quarantine_.erase(oldest);
      } else {
        --free_;
      }
      s.pages.push_back(NewPage());
    }
    for (const ModelBlockRef& block : victims) {
      result.victims.push_back(block);
      Evict(block);
      s.pages.push_back(NewPage());
    }
    counts.evicted_blocks += demand;
    NotePeak();
    result.added = static_cast<uint32_t>(need);
    result.evicted = static_cast<uint32_t>(demand);
    return result;
  }

  struct Committed {
    kvc_status status = KVC_OK;
    uint32_t stored = 0;
    uint32_t deduplicated = 0;
    uint32_t first_changed = UINT32_MAX;
    std::vector<ModelFence> waits;
  };
  Committed Commit(ModelSequence& s, const std::vector<uint32_t>& tokens) {
    Committed result;
    if (s.tokens.size() + tokens.size() > s.pages.size() * block_) {
      result.status = KVC_BAD_STATE;
      return result;
    }
    const uint64_t first = s.tokens.size() / block_;
    s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
    if (s.epoch != epoch_) return result;  // detached by a reset
    std::vector<ModelPageRef> replaced;
    for (uint64_t i = first; i < s.tokens.size() / block_; ++i) {
      const ModelBlockRef parent = i == 0 ? nullptr : s.blocks[i - 1];
      const ModelKey parent_key = parent ? parent->key : s.scope->root;
      const uint32_t* text = &s.tokens[i * block_];
      const ModelKey key = KeyOf(parent_key, text);
      const auto found = resident_.find(key);
      if (found != resident_.end()) {
        // Somebody else was first: theirs for ours.
        const ModelBlockRef block = found->second;
        Hold(*block->page);
        const ModelPageRef ours = s.pages[i];
        s.pages[i] = block->page;
        Drop(ours, Record(s.stream));
        s.blocks.push_back(block);
        replaced.push_back(block->page);
        ++result.deduplicated;
        result.first_changed = std::min(result.first_changed, static_cast<uint32_t>(i));
        continue;
      }
      auto block = std::make_shared<ModelBlock>();
      block->key = key;
      block->parent = parent;
      block->scope = s.scope;
      block->page = s.pages[i];
      block->page->block = block.get();
      block->page->ready = Record(s.stream);
      if (parent) ++parent->children;
      resident_[key] = block;
      s.blocks.push_back(block);
      known[key] = {parent_key, !parent, {text, text + block_}, s.scope};
      ++result.stored;
    }
    counts.stored_blocks += result.stored;
    counts.deduplicated_blocks += result.deduplicated;
    result.waits = WaitsFor(replaced, s.stream);
    return result;
  }

  void Release(ModelSequence* s) {
    const std::vector<ModelFence> fences = Record(s->stream);
    for (size_t i = s->pages.size(); i-- > 0;) Drop(s->pages[i], fences);
    if (s->epoch == epoch_ && s->tokens.size() % block_ != 0) ++partial_blocks;
    sequences_.erase(std::find_if(sequences_.begin(), sequences_.end(),
                                  [s](const auto& other) { return other.get() == s; }));
  }

  void Reset() {
    ++counts.resets;
    counts.reset_blocks += resident_.size();
    ++epoch_;
    for (const ModelBlockRef& block : lru_) GiveUp(block->page);
    lru_.clear();
    for (const auto& [key, block] : resident_) block->page->block = nullptr;
    resident_.clear();
  }

  // ----------------------------------------------------------------- looking

  // Frees quarantined pages whose fences have been reached.
  void Poll() {
    for (auto page = quarantine_.begin(); page != quarantine_.end();) {
      if (UsableBy((*page)->used, 0)) {
        ++free_;
        page = quarantine_.erase(page);
      } else {
        ++page;
      }
    }
  }
  [[nodiscard]] uint64_t Live() const { return total_ - free_ - quarantine_.size() - lru_.size(); }
  [[nodiscard]] uint64_t Roots() const {
    std::set<ModelKey> roots;
    for (const auto& [key, block] : resident_) roots.insert(block->scope->root);
    for (const auto& s : sequences_) {
      if (s->epoch == epoch_) roots.insert(s->scope->root);
    }
    return roots.size();
  }
  [[nodiscard]] bool Detached(const ModelSequence& s) const { return s.epoch != epoch_; }
  [[nodiscard]] uint32_t block() const { return block_; }
  [[nodiscard]] uint32_t total() const { return total_; }
  [[nodiscard]] uint64_t free() const { return free_; }
  [[nodiscard]] uint64_t cached() const { return lru_.size(); }
  [[nodiscard]] uint64_t quarantined() const { return quarantine_.size(); }
  [[nodiscard]] const std::map<ModelKey, ModelBlockRef>& resident() const { return resident_; }
  [[nodiscard]] const std::vector<std::unique_ptr<ModelSequence>>& sequences() const {
    return sequences_;
  }
  [[nodiscard]] bool Full() const { return sequences_.size() >= max_sequences_; }
  [[nodiscard]] ModelKey KeyOf(const ModelKey& parent, const uint32_t* tokens) const {
    ModelKey key;
    BlockKey(parent.data(), tokens, block_, key.data());
    return key;
  }

  kvc_stats counts{};           // only those that the model counts
  uint64_t partial_blocks = 0;  // kvc_stream_stats.partial_blocks_suppressed
  std::map<ModelKey, ModelKnown> known;
  std::map<uint32_t, ModelPage*> owner;  // pages in use, by id

 private:
  struct Op {
    bool wait = false;
    ModelFence fence;
  };
  struct Stream {
    std::deque<Op> queue;
    uint64_t submitted = 0;
    uint64_t executed = 0;
    bool open = false;
  };

  [[nodiscard]] bool Reached(const ModelFence& fence) const {
    return fence.stream == 0 || streams_.at(fence.stream).executed >= fence.position;
  }
  [[nodiscard]] bool UsableBy(const std::vector<ModelFence>& fences, uint64_t stream) const {
    return std::all_of(fences.begin(), fences.end(), [&](const ModelFence& fence) {
      return Reached(fence) || (stream != 0 && fence.stream == stream);
    });
  }
  // A fence of everything submitted to the stream so far.
  [[nodiscard]] std::vector<ModelFence> Record(uint64_t stream) const {
    if (stream == 0) return {};
    return {{stream, streams_.at(stream).submitted}};
  }
  void Submit(uint64_t stream, const Op& op) {
    streams_.at(stream).queue.push_back(op);
    ++streams_.at(stream).submitted;
    PassWaits();
  }
  // Waits that have nothing to wait for take no time.
  void PassWaits() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [id, stream] : streams_) {
        while (!stream.queue.empty() && stream.queue.front().wait &&
               Reached(stream.queue.front().fence)) {
          stream.queue.pop_front();
          ++stream.executed;
          moved = true;
        }
      }
    }
  }
  // The latest fence of each other stream that has not been reached.
  [[nodiscard]] std::vector<ModelFence> WaitsFor(const std::vector<ModelPageRef>& pages,
                                                 uint64_t stream) const {
    std::map<uint64_t, uint64_t> latest;
    for (const ModelPageRef& page : pages) {
      for (const ModelFence& fence : page->ready) {
        if (Reached(fence) || fence.stream == stream) continue;
        latest[fence.stream] = std::max(latest[fence.stream], fence.position);
      }
    }
    std::vector<ModelFence> waits;
    for (const auto& [id, position] : latest) waits.push_back({id, position});
    return waits;
  }

  static ModelPageRef NewPage() {
    auto page = std::make_shared<ModelPage>();
    page->holders = 1;
    return page;
  }
  // A held block leaves the eviction list.
  void Hold(ModelPage& page) {
    if (page.holders++ != 0) return;
    lru_.erase(std::find_if(lru_.begin(), lru_.end(),
                            [&](const ModelBlockRef& b) { return b->page.get() == &page; }));
  }
  // Without holders a block joins the end of the eviction list; any other page
  // is given up.
  void Drop(const ModelPageRef& page, const std::vector<ModelFence>& fences) {
    page->used.insert(page->used.end(), fences.begin(), fences.end());
    if (--page->holders != 0) return;
    if (page->block != nullptr) {
      lru_.push_back(resident_.at(page->block->key));
    } else {
      GiveUp(page);
    }
  }
  void GiveUp(const ModelPageRef& page) {
    owner.erase(page->id);
    page->block = nullptr;
    page->used.insert(page->used.end(), page->ready.begin(), page->ready.end());
    page->ready.clear();
    quarantine_.push_back(page);
    Poll();
  }
  void Evict(const ModelBlockRef& block) {
    lru_.erase(std::find(lru_.begin(), lru_.end(), block));
    resident_.erase(block->key);
    owner.erase(block->page->id);
    if (block->parent) --block->parent->children;
  }
  void NotePeak() { counts.peak_live_pages = std::max(counts.peak_live_pages, Live()); }

  const uint32_t block_;
  const uint32_t total_;
  const uint32_t max_sequences_;
  uint64_t free_;
  uint64_t epoch_ = 0;
  std::map<ModelKey, ModelBlockRef> resident_;
  std::vector<ModelBlockRef> lru_;        // cached, least recently used first
  std::vector<ModelPageRef> quarantine_;  // in the order in which they were given up
  std::vector<std::unique_ptr<ModelSequence>> sequences_;
  std::map<uint64_t, Stream> streams_;
  std::vector<uint64_t> order_;  // of creation
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_H_
