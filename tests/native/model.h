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
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_key.h"
#include "tests/native/abi_support.h"
#include "tests/native/model_device.h"
#include "tests/native/model_pending.h"
#include "tests/native/model_scores.h"

namespace kvcast::testing {

using ModelKey = std::array<uint8_t, 32>;

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
  uint64_t id = KVC_NO_BLOCK;         // once it has been seen
  int own = KVC_DEFAULT_PRIORITY;     // its priority; -1: its conversation is over
  int listed = KVC_DEFAULT_PRIORITY;  // the priority it is listed under
  bool timed = false;                 // its priority ends
  bool expired = false;               // it did
  std::vector<uint32_t> tail;         // a tail that was kept: its tokens, and no key
  uint64_t born = 0;                  // the later the newer
  uint32_t score = 0;                 // what it is worth
};
using ModelBlockRef = std::shared_ptr<ModelBlock>;

struct ModelPin {
  uint64_t id = 0;
  std::vector<ModelPageRef> pages;
};

struct ModelSequence {
  uint64_t id = 0;
  uint64_t stream = 0;
  const ModelScope* scope = nullptr;
  std::vector<uint32_t> tokens;  // committed
  std::vector<ModelBlockRef> blocks;
  std::vector<ModelPageRef> pages;
  uint64_t matched = 0;
  uint64_t epoch = 0;
  // Of blocks to be committed whose first token is at or after the key.
  struct Rule {
    int priority;
    uint64_t tick;
  };
  std::map<uint64_t, Rule> rules;
  uint64_t stop_blocks = UINT64_MAX;  // none from this one on becomes reusable
  // While suspended `path` has the tokens of the blocks in the tree and `pages`
  // what is kept of the rest.
  bool suspended = false;
  bool fresh = false;
  bool rest_kept = false;
  uint64_t suspended_at = 0;
  uint32_t backoff = 0;
  std::vector<uint32_t> path;
  uint64_t match_blocks = 0;  // fresh: of the path, that may be matched
  bool will_mark = false;
  bool awaits = false;
};

struct ModelPrompt {
  const ModelScope* scope = nullptr;
  std::vector<uint32_t> tokens;
  uint32_t must_compute = 0;
  uint64_t stream = 0;
  PromptOptions options;
};

// What is remembered of every block that ever existed, to judge events by.
struct ModelKnown {
  ModelKey parent{};
  bool root = false;
  std::vector<uint32_t> tokens;
  const ModelScope* scope = nullptr;
};

class Model : public ModelDevice {
 public:
  explicit Model(const CacheOptions& options)
      : block_(options.block),
        total_(options.pages),
        limit_(options.pages),
        max_sequences_(options.sequences),
        gate_(options.gate),
        // By default as blocks and tails can hold; what suspended sequences remember counts too.
        max_digests_(options.digests != 0
                         ? options.digests
                         : (options.MostPages() + options.sequences) * options.block),
        suppress_(options.multimodal == KVC_MULTIMODAL_SUPPRESS),
        partial_(options.partial),
        free_(options.pages),
        asked_(options.pages),
        scores(options.policy == KVC_POLICY_LRFU, options.tau, options.ghosts),
        pending(options.block, options.pending != 0 ? options.pending : options.MostPages()) {}

  // ------------------------------------------------------------------- calls

  static uint64_t Left(uint32_t must_compute) {
    if (must_compute == 0) return 1;
    return must_compute == KVC_COMPUTE_NOTHING ? 0 : must_compute;
  }
  [[nodiscard]] bool GateOpen() const {
    if (gate_ == 1000) return true;
    for (const auto& s : sequences_) {
      if (!s->suspended) return Live() * 1000 <= uint64_t{gate_} * std::min(limit_, total_);
    }
    return true;
  }
  [[nodiscard]] std::vector<ModelBlockRef> Match(const ModelScope& scope,
                                                 const std::vector<uint32_t>& tokens,
                                                 uint32_t must_compute,
                                                 uint32_t backoff = 0) const {
    const uint64_t left = Left(must_compute);
    std::vector<ModelBlockRef> found;
    ModelKey key = scope.root;
    for (uint64_t end = block_; end + left <= tokens.size(); end += block_) {
      key = KeyOf(key, &tokens[end - block_]);
      const auto at = resident_.find(key);
      if (at == resident_.end()) break;
      found.push_back(at->second);
    }
    found.resize(found.size() - std::min<size_t>(found.size(), (backoff + block_ - 1) / block_));
    return found;
  }

  // Tokens behind the last whole block that was found, and their copy.
  struct PartialHit {
    ModelBlockRef from;
    uint64_t tokens = 0;
    bool takes = false;  // its page itself
    std::vector<ModelFence> after;
  };
  // No sequence if too many are open, the gate is closed or there are too many digests.
  // A copy that is not made on the sequence's stream is made on the device's own, `copies`.
  ModelSequence* Create(const ModelPrompt& prompt, uint64_t* matched,
                        std::vector<ModelFence>* waits, kvc_status* why, uint64_t copies) {
    SettleMemory();
    last_hit = {};
    *why = KVC_NOT_NOW;
    if (Full()) return nullptr;
    bool suspended = (prompt.options.flags & KVC_PROMPT_SUSPENDED) != 0;
    const bool waits_too = (prompt.options.flags & KVC_PROMPT_WAIT) != 0;
    if (!suspended && !waits_too && !GateOpen()) {
      ++counts.refused_gate;
      return nullptr;
    }
    const std::vector<uint32_t>& tokens = prompt.tokens;
    const uint64_t left = Left(prompt.must_compute);
    const uint64_t whole = tokens.size() < left ? 0 : (tokens.size() - left) / block_ * block_;
    const uint64_t full = tokens.size() / block_;
    const uint64_t resident = Match(*prompt.scope, tokens, prompt.must_compute).size();
    const ModelPending::Found computed =
        pending.Find(prompt.scope->root, tokens, resident, whole / block_);
    if (waits_too && !suspended) {
      suspended = computed.blocks != 0;
      if (!suspended && !GateOpen()) {
        ++counts.refused_gate;
        return nullptr;
      }
    }
    const std::vector<ModelBlockRef> found =
        Match(*prompt.scope, tokens, prompt.must_compute, prompt.options.match_backoff);
    bool marks =
        (prompt.options.flags & KVC_PROMPT_MARK) != 0 && (suspended || full > found.size());
    std::vector<uint32_t> path(tokens.begin(),
                               tokens.begin() + static_cast<ptrdiff_t>(marks       ? full * block_
                                                                       : suspended ? whole
                                                                                   : 0));
    if (DigestsFit(path) != KVC_OK) {
      if (suspended) {
        *why = DigestsFit(path);
        return nullptr;
      }
      // A mark is only a hint.
      marks = false;
      path.clear();
      pending.unmarked += full - found.size();
    }
    *why = KVC_OK;
    auto made = std::make_unique<ModelSequence>();
    made->stream = prompt.stream;
    made->scope = prompt.scope;
    made->epoch = epoch_;
    if ((prompt.options.flags & KVC_PROMPT_STOP_BEFORE) != 0) {
      made->stop_blocks = prompt.options.stop_before / block_;
    }
    CountRequest();
    counts.asked_blocks += tokens.size() / block_;
    *matched = found.size() * block_;
    if (suspended) {
      made->suspended = true;
      made->fresh = true;
      made->backoff = prompt.options.match_backoff;
      made->suspended_at = ++suspensions_;
      made->path = path;
      made->match_blocks = whole / block_;
      made->will_mark = marks;
      made->awaits = waits_too;
      if (waits_too && computed.blocks != 0) pending.Await(made.get(), computed, resident);
    } else {
      const PartialHit hit = FindPartial(prompt, found, copies);
      last_hit = hit;
      *matched += hit.tokens;
      Take(*made, found, true);
      if (hit.tokens != 0) TakePartial(*made, hit, copies);
      made->matched = *matched;
      made->tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(*matched));
      counts.matched_blocks += found.size();
      *waits = WaitsFor(made->pages, made->stream);
      if (marks) MakePromise(made.get(), path);
    }
    last_pending = computed;
    sequences_.push_back(std::move(made));
    return sequences_.back().get();
  }

  // What a sequence shares with a fork, though it is not in the tree.
  [[nodiscard]] bool SharesTail(const ModelSequence& s) const {
    const size_t full = s.tokens.size() / block_;
    return !s.suspended && s.tokens.size() % block_ != 0 && s.pages[full]->holders > 1;
  }

  struct Forked {
    kvc_status status = KVC_OK;
    ModelSequence* sequence = nullptr;
    std::vector<ModelFence> waits;
  };
  Forked Fork(const ModelSequence& s, uint64_t stream) {
    SettleMemory();
    Forked result;
    result.status = s.suspended ? KVC_BAD_STATE : Full() ? KVC_NOT_NOW : KVC_OK;
    if (result.status == KVC_OK && !GateOpen()) {
      ++counts.refused_gate;
      result.status = KVC_NOT_NOW;
    }
    if (result.status != KVC_OK) return result;
    auto made = std::make_unique<ModelSequence>(s);
    made->stream = stream;
    made->will_mark = made->awaits = false;  // marks stay with whoever made them
    made->path.clear();
    made->pages.resize((s.tokens.size() + block_ - 1) / block_);
    const std::vector<ModelFence> fences =
        stream == s.stream ? std::vector<ModelFence>{} : Record(s.stream);
    std::vector<ModelPageRef> written = made->pages;
    for (size_t i = 0; i < made->pages.size(); ++i) {
      ModelPage& page = *made->pages[i];
      ++page.holders;
      if (page.block != nullptr && s.epoch == epoch_) continue;
      page.ready.insert(page.ready.end(), fences.begin(), fences.end());
    }
    auto all = std::make_shared<ModelPage>();
    all->ready = fences;  // also if nothing is shared
    written.push_back(all);
    result.waits = WaitsFor(written, stream);
    ++counts.forked_sequences;
    sequences_.push_back(std::move(made));
    result.sequence = sequences_.back().get();
    return result;
  }

  struct Grown {
    kvc_status status = KVC_OK;
    uint32_t copied_block = KVC_NO_COPY;
    uint32_t copied_from = 0;
    uint32_t copied_tokens = 0;
    ModelFence wait;  // stream 0: none
    uint32_t added = 0;
    uint32_t evicted = 0;
    uint32_t leaving = 0;                // NOT_NOW only
    std::vector<ModelBlockRef> victims;  // the blocks that went, in order
  };
  // A copy that is not made on the sequence's stream is made on the device's own,
  // `copies`.
  Grown Grow(ModelSequence& s, uint64_t capacity_tokens, uint64_t copies) {
    SettleMemory();
    Grown result;
    if (s.suspended) {
      result.status = KVC_BAD_STATE;
      return result;
    }
    const uint64_t target = (capacity_tokens + block_ - 1) / block_;
    bool shared = capacity_tokens > s.tokens.size() && SharesTail(s);
    if (target <= s.pages.size() && !shared) return result;
    if (target > std::max<uint64_t>(limit_, total_ - out_.size())) {
      ++counts.refused_never_fits;
      result.status = KVC_NEVER_FITS;
      return result;
    }
    uint64_t need = target > s.pages.size() ? target - s.pages.size() : 0;
    const size_t tail = s.tokens.size() / block_;
    if (shared) ++need;
    const uint64_t available = Available(s.stream);
    uint64_t demand = 0;
    std::vector<ModelBlockRef> victims;
    std::vector<ModelSequence*> stripped;
    // With `unshare`: whoever keeps that page gives up what it keeps in any case.
    const auto plan = [&](const ModelPageRef& unshare) {
      demand = need > available ? need - available : 0;
      victims = Victims(demand, s.stream);
      stripped.clear();
      if (Gain(victims) == demand && unshare == nullptr) return true;
      // The last resort: what suspended sequences keep, the latest first.
      std::vector<ModelSequence*> keepers;
      for (const auto& other : sequences_) {
        if (other->suspended && !other->pages.empty()) keepers.push_back(other.get());
      }
      std::sort(keepers.begin(), keepers.end(),
                [](auto* a, auto* b) { return a->suspended_at > b->suspended_at; });
      const auto free_from = std::stable_partition(keepers.begin(), keepers.end(), [&](auto* k) {
        return unshare != nullptr && Has(*k, unshare);
      });
      uint64_t gain = 0;
      std::map<const ModelPage*, uint32_t> less;
      const auto gives = [&](const ModelPageRef& page) {
        return page->holders == less[page.get()] && !Doomed(*page) &&
               UsableBy(page->ready, s.stream) && UsableBy(page->used, s.stream);
      };
      auto taken = keepers.begin();
      for (; taken != keepers.end(); ++taken) {
        if (taken >= free_from && Gain(victims) + gain >= demand) break;
        for (const ModelPageRef& page : (*taken)->pages) {
          ++less[page.get()];
          gain += gives(page) ? 1 : 0;
        }
      }
      // Not who gives nothing.
      std::copy_if(keepers.begin(), taken, std::back_inserter(stripped), [&](auto* k) {
        return (unshare != nullptr && Has(*k, unshare)) ||
               std::any_of(k->pages.begin(), k->pages.end(), gives);
      });
      spared += static_cast<uint64_t>(taken - keepers.begin()) - stripped.size();
      if (Gain(victims) + gain < demand) return false;
      demand = demand > gain ? demand - gain : 0;
      victims = Victims(demand, s.stream);
      return true;
    };
    bool enough = plan(nullptr);
    if (!enough && shared) {
      uint32_t kept = 0;
      for (const auto& other : sequences_) {
        kept += other->suspended && Has(*other, s.pages[tail]) ? 1 : 0;
      }
      if (kept + 1 == s.pages[tail]->holders) {
        --need;
        enough = plan(s.pages[tail]);
        shared = !enough;
        if (!enough) ++need;
      }
    }
    if (!enough) {
      demand = need > available ? need - available : 0;
      ++counts.refused_not_now;
      result.status = KVC_NOT_NOW;
      uint64_t staying = Staying();
      for (const auto& [priority, list] : lists_) {
        for (const ModelBlockRef& block : list) staying += Doomed(*block->page) ? 0 : 1;
      }
      result.leaving =
          static_cast<uint32_t>(staying + free_ - available - Gain(Victims(demand, s.stream)));
      return result;
    }
    // A stream waits for other streams, not for steps; the device's own for both.
    const bool queues = s.stream != 0 && !IsSteps(s.stream);
    std::vector<ModelFence> after;
    if (shared) {
      if (!queues) OpenOwn(copies);
      const uint64_t on = queues ? s.stream : copies;
      after = WaitsFor({s.pages[tail]}, on);
      const auto steps = [&](const ModelFence& fence) { return Withheld(fence); };
      if (queues && std::any_of(after.begin(), after.end(), steps)) {
        result.status = KVC_NOT_NOW;
        return result;
      }
      if (!queues && s.stream != 0 && !Idle(s.stream)) {
        after.erase(std::remove_if(after.begin(), after.end(),
                                   [&](const ModelFence& f) { return f.stream == s.stream; }),
                    after.end());
        after.push_back(Record(s.stream).front());
      }
    }
    for (ModelSequence* keeper : stripped) {
      counts.reclaimed_pages += keeper->pages.size();
      Strip(*keeper);
    }
    // The first of all takes the place of the one that is shared. That one may have no holder
    // left, of those that were stripped, and then it can be the next.
    bool copy = shared;
    const auto give = [&](const ModelPageRef& page) {
      if (!copy) {
        s.pages.push_back(page);
        return;
      }
      copy = false;
      const uint64_t on = queues ? s.stream : copies;
      const ModelPageRef old = s.pages[tail];
      result.copied_block = static_cast<uint32_t>(tail);
      result.copied_from = old->id;
      result.copied_tokens = static_cast<uint32_t>(s.tokens.size() % block_);
      Copy(on, after);
      const ModelFence fence = Record(on).front();
      old->used.push_back(fence);
      if (!queues) {
        page->ready.push_back(fence);
        result.wait = fence;
      }
      s.pages[tail] = page;
      Drop(old, {});
      ++counts.copied_pages;
    };
    // First pages that only this stream may use, those with the oldest fences
    // before the others, then free ones, then those of the victims.
    for (uint64_t i = 0; i < need - demand; ++i) give(TakePage(s.stream));
    for (const ModelBlockRef& block : victims) {
      result.victims.push_back(block);
      if (block->tail.empty()) scores.Left(block->key, block->score);
      Evict(block);
      if (Doomed(*block->page)) {
        GiveUp(block->page);
      } else {
        give(NewPage());
      }
    }
    for (const ModelBlockRef& block : victims) {
      counts.evicted_ended_blocks += block->own < 0 ? 1 : 0;
      counts.evicted_ttl_blocks += block->expired ? 1 : 0;
    }
    for (const ModelBlockRef& block : victims) counts.evicted_blocks += block->tail.empty() ? 1 : 0;
    NotePeak();
    result.added = static_cast<uint32_t>(need);
    result.evicted = static_cast<uint32_t>(victims.size());
    return result;
  }

  struct Committed {
    kvc_status status = KVC_OK;
    uint32_t stored = 0;
    uint32_t deduplicated = 0;
    uint32_t first_changed = UINT32_MAX;
    std::vector<ModelFence> waits;
  };
  // With `fence`: the pages were filled from outside.
  Committed Commit(ModelSequence& s, const std::vector<uint32_t>& tokens,
                   const ModelFence* fence = nullptr) {
    SettleMemory();
    Committed result;
    if (s.suspended || s.tokens.size() + tokens.size() > s.pages.size() * block_ ||
        (!tokens.empty() && SharesTail(s))) {
      result.status = KVC_BAD_STATE;
      return result;
    }
    result.status = DigestsFit(tokens);
    if (result.status != KVC_OK) return result;
    const uint64_t first = s.tokens.size() / block_;
    const bool in_tail = s.tokens.size() % block_ != 0;
    s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
    for (uint64_t i = first;
         fence != nullptr && !tokens.empty() && !Reached(*fence) && i * block_ < s.tokens.size();
         ++i) {
      s.pages[i]->ready.push_back(*fence);
    }
    if (s.epoch != epoch_) return result;  // detached by a reset
    std::vector<ModelPageRef> replaced;
    for (uint64_t i = first; i < s.tokens.size() / block_; ++i) {
      // Behind a block that is not reusable none can be.
      if (s.blocks.size() != i || i >= s.stop_blocks) break;
      const ModelBlockRef parent = i == 0 ? nullptr : s.blocks[i - 1];
      const ModelKey parent_key = parent ? parent->key : s.scope->root;
      const uint32_t* text = &s.tokens[i * block_];
      const ModelKey key = KeyOf(parent_key, text);
      const auto found = resident_.find(key);
      if (found != resident_.end()) {
        // Somebody else was first: theirs for ours.
        const ModelBlockRef block = found->second;
        Hold(*block->page);
        block->score = scores.Used(block->score);
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
      if (fence == nullptr || (i == first && in_tail)) {
        for (const ModelFence& own : Record(s.stream)) block->page->ready.push_back(own);
      }
      if (parent) ++parent->children;
      block->born = ++born_;
      block->score = scores.Entered(key);
      resident_[key] = block;
      s.blocks.push_back(block);
      Raise(*block);
      // What began as it does says nothing more.
      for (const ModelBlockRef& child : Newest(parent, s.scope)) {
        if (child->tail.empty() || !std::equal(child->tail.begin(), child->tail.end(), text)) {
          continue;
        }
        Evict(child);
        GiveUp(child->page);
        break;
      }
      known[key] = {parent_key, !parent, {text, text + block_}, s.scope};
      if (Suppressed(block.get())) ++suppressed_ever;
      ++result.stored;
    }
    // Whatever used a block has used those before it.
    for (size_t i = s.blocks.size(); i > 1; --i) {
      s.blocks[i - 2]->score = std::max(s.blocks[i - 2]->score, s.blocks[i - 1]->score);
    }
    for (uint64_t i = s.blocks.size(); i > first; --i) {
      auto rule = s.rules.upper_bound((i - 1) * block_);
      if (rule == s.rules.begin()) break;
      --rule;
      SetPriority(s.blocks[i - 1], rule->second.priority, rule->second.tick);
    }
    pending.Commit(&s, s.blocks.size(), s.tokens);
    counts.stored_blocks += result.stored;
    counts.deduplicated_blocks += result.deduplicated;
    result.waits = WaitsFor(replaced, s.stream);
    return result;
  }

  // `ended`: the conversation is over.
  void Release(ModelSequence* s, bool cancel = false, bool ended = false) {
    SettleMemory();
    pending.End(s, 0);
    pending.Forget(s);
    const std::vector<ModelFence> fences = Record(s->stream);
    if (ended && s->epoch == epoch_ && !s->suspended) {
      for (size_t i = s->blocks.size(); i-- > 0;) {
        ModelBlock& block = *s->blocks[i];
        if (block.page->holders != 1 || block.children != (i + 1 == s->blocks.size() ? 0u : 1u)) {
          break;
        }
        SetTimer(s->blocks[i], 0);
        block.own = block.listed = -1;
        block.expired = false;
      }
    }
    const size_t full = s->tokens.size() / block_;
    const bool keeps = partial_ && !cancel && !ended && !s->suspended && s->epoch == epoch_ &&
                       s->tokens.size() % block_ != 0 && s->blocks.size() == full &&
                       s->stop_blocks > full && s->pages[full]->holders == 1;
    for (size_t i = s->pages.size(); i-- > 0;) {
      if (keeps && i == full) KeepTail(*s, fences);
      Drop(s->pages[i], fences);
    }
    const bool tail = s->tokens.size() % block_ != 0 && (!s->suspended || s->rest_kept);
    if (s->epoch == epoch_ && tail && !cancel) ++partial_blocks;
    if (cancel) ++counts.cancelled_sequences;
    sequences_.erase(std::find_if(sequences_.begin(), sequences_.end(),
                                  [s](const auto& other) { return other.get() == s; }));
  }

  // The sequence becomes a hold; it goes when that has been released often enough.
  kvc_status ReleaseHeld(ModelSequence* s, uint32_t count, bool cancel, uint64_t hold) {
    SettleMemory();
    if (s->suspended) return KVC_BAD_STATE;
    pending.End(s, 0);
    const auto at = std::find_if(sequences_.begin(), sequences_.end(),
                                 [s](const auto& other) { return other.get() == s; });
    holds[hold] = {std::move(*at), count, cancel};
    sequences_.erase(at);
    return KVC_OK;
  }
  kvc_status ReleaseHold(uint64_t id) {
    SettleMemory();
    const auto at = holds.find(id);
    if (at == holds.end()) return KVC_STALE_HANDLE;
    if (--at->second.count != 0) return KVC_OK;
    const bool cancel = at->second.cancel;
    sequences_.push_back(std::move(at->second.sequence));
    holds.erase(at);
    Release(sequences_.back().get(), cancel);
    return KVC_OK;
  }

  kvc_status Suspend(ModelSequence& s, bool keep) {
    SettleMemory();
    if (s.suspended) return KVC_BAD_STATE;
    pending.End(&s, 0);
    const size_t linked = s.epoch == epoch_ ? s.blocks.size() : 0;
    const std::vector<ModelFence> fences = Record(s.stream);
    std::vector<ModelPageRef> rest;
    for (size_t i = s.pages.size(); i-- > 0;) {
      if (keep && i >= linked) {
        s.pages[i]->used.insert(s.pages[i]->used.end(), fences.begin(), fences.end());
        rest.insert(rest.begin(), s.pages[i]);
      } else {
        Drop(s.pages[i], fences);
      }
    }
    s.pages = rest;
    s.path.assign(s.tokens.begin(), s.tokens.begin() + static_cast<ptrdiff_t>(linked * block_));
    s.blocks.clear();
    s.suspended = true;
    s.rest_kept = keep;
    s.suspended_at = ++suspensions_;
    return KVC_OK;
  }
  struct Resumed {
    kvc_status status = KVC_OK;
    uint64_t lost = 0;
    ModelPending::Found computed;
    std::vector<ModelFence> waits;
  };
  Resumed Resume(ModelSequence& s) {
    SettleMemory();
    Resumed result;
    if (!s.suspended) result.status = KVC_BAD_STATE;
    if (s.suspended && !GateOpen()) {
      ++counts.refused_gate;
      result.status = KVC_NOT_NOW;
    }
    if (result.status != KVC_OK) return result;
    const std::vector<uint32_t> whole_path = s.path;
    if (s.fresh) {
      s.path.resize(s.match_blocks * block_);
      const uint64_t resident = Match(*s.scope, s.path, KVC_COMPUTE_NOTHING).size();
      result.computed = pending.Find(s.scope->root, s.path, resident, s.match_blocks);
      if (s.awaits && result.computed.blocks != 0) {
        pending.Await(&s, result.computed, resident);
        s.path = whole_path;
        result.status = KVC_NOT_NOW;
        return result;
      }
      pending.Forget(&s);
    }
    std::vector<ModelBlockRef> found;
    if (s.epoch == epoch_)
      found = Match(*s.scope, s.path, KVC_COMPUTE_NOTHING, s.fresh ? s.backoff : 0);
    const bool whole = !s.fresh && found.size() * block_ == s.path.size();
    if (!whole || !s.rest_kept) {
      Strip(s);
      const uint64_t before = s.tokens.size();
      s.tokens = s.path;
      s.tokens.resize(found.size() * block_);
      if (!s.fresh) result.lost = before - s.tokens.size();
    }
    const std::vector<ModelPageRef> rest = s.pages;
    s.pages.clear();
    Take(s, found, s.fresh);
    s.pages.insert(s.pages.end(), rest.begin(), rest.end());
    if (s.fresh) {
      s.matched = s.tokens.size();
      counts.matched_blocks += found.size();
    }
    s.matched = std::min<uint64_t>(s.matched, s.tokens.size());
    const bool marks = s.fresh && s.will_mark;
    s.suspended = s.fresh = s.rest_kept = false;
    s.path.clear();
    if (marks) MakePromise(&s, whole_path);
    NotePeak();
    result.waits = WaitsFor(s.pages, s.stream);
    return result;
  }
  kvc_status Truncate(ModelSequence& s, uint64_t capacity, uint32_t* freed) {
    SettleMemory();
    *freed = 0;
    if (s.suspended || capacity < s.tokens.size()) return KVC_BAD_STATE;
    const uint64_t target = (capacity + block_ - 1) / block_;
    const std::vector<ModelFence> fences = Record(s.stream);
    if (s.pages.size() > target) pending.End(&s, target);
    for (; s.pages.size() > target; ++*freed) {
      Drop(s.pages.back(), fences);
      s.pages.pop_back();
    }
    return KVC_OK;
  }
  kvc_status Stop(ModelSequence& s, uint64_t position) {
    SettleMemory();
    if (s.suspended) return KVC_BAD_STATE;
    s.stop_blocks = std::min<uint64_t>(s.stop_blocks, position / block_);
    pending.End(&s, s.stop_blocks);
    return KVC_OK;
  }

  void Reset() {
    ++counts.resets;
    counts.reset_blocks += resident_.size();
    for (ModelSequence* s : ByPlace()) pending.End(s, 0);
    // Suspended sequences go on in the new tree, without what they kept.
    for (const auto& s : sequences_) {
      if (!s->suspended || s->epoch != epoch_) continue;
      s->epoch = epoch_ + 1;
      Strip(*s);
    }
    ++epoch_;
    for (auto& [place, list] : lists_) {
      for (const ModelBlockRef& block : list) GiveUp(block->page);
    }
    lists_.clear();
    timers_.clear();
    for (const auto& [key, block] : resident_) {
      block->page->block = nullptr;
      if (Suppressed(block.get())) ++silent_removals;
    }
    resident_.clear();
    tails_.clear();
  }

  // -------------------------------------------------------------- retention

  // Times are in ticks of the library's clock. False if too much is said of later blocks.
  bool Retain(ModelSequence& s, uint64_t first, uint64_t end, int priority, uint64_t tick) {
    SettleMemory();
    if (s.epoch != epoch_) return true;
    if (end == KVC_TO_THE_END) {
      auto rules = s.rules;
      rules.erase(rules.lower_bound(first), rules.end());
      if (rules.size() == 16) {
        auto here = rules.upper_bound(s.blocks.size() * block_);
        if (here != rules.begin()) rules.erase(rules.begin(), --here);
      }
      if (rules.size() == 16) return false;
      rules[first] = {priority, tick};
      s.rules = rules;
    }
    for (size_t i = s.blocks.size(); i-- > 0;) {
      if (i * block_ >= first && i * block_ < end) SetPriority(s.blocks[i], priority, tick);
    }
    return true;
  }
  // The pages of a path; the status says whether they fit.
  kvc_status Pin(const std::vector<ModelBlockRef>& path, uint32_t limit, ModelPin* pin) {
    SettleMemory();
    if (path.size() > limit) return KVC_NEVER_FITS;
    if (path.size() + pinned() > limit) return KVC_NOT_NOW;
    for (const ModelBlockRef& block : path) {
      Hold(*block->page);
      pin->pages.push_back(block->page);
    }
    NotePeak();
    counts.peak_pinned_pages = std::max<uint64_t>(counts.peak_pinned_pages, pinned() + path.size());
    return KVC_OK;
  }
  void Unpin(size_t index) {
    SettleMemory();
    const ModelPin pin = pins[index];
    pins.erase(pins.begin() + static_cast<ptrdiff_t>(index));
    for (size_t i = pin.pages.size(); i-- > 0;) Drop(pin.pages[i], {});
  }
  [[nodiscard]] uint64_t pinned() const {
    uint64_t all = 0;
    for (const ModelPin& pin : pins) all += pin.pages.size();
    return all;
  }
  // Everything of the scopes with these roots goes; which blocks did is returned.
  std::vector<ModelBlockRef> DropRoots(const std::set<ModelKey>& roots, uint32_t* detached) {
    std::vector<ModelBlockRef> gone;
    for (bool more = true; more;) {
      more = false;
      std::vector<ModelBlockRef> all = tails_;
      for (const auto& [key, block] : resident_) all.push_back(block);
      for (const ModelBlockRef& block : all) {
        if (roots.count(block->scope->root) == 0 || block->children != 0) continue;
        more = true;
        gone.push_back(block);
        const bool held = block->page->holders != 0;
        const uint32_t page = block->page->id;
        Evict(block);
        if (held) {
          owner[page] = block->page.get();
          block->page->block = nullptr;
        } else {
          GiveUp(block->page);
        }
      }
    }
    for (ModelSequence* s : ByPlace()) {
      if (s->epoch != epoch_ || roots.count(s->scope->root) == 0) continue;
      pending.End(s, 0);
      if (s->suspended) {
        Strip(*s);
      } else {
        s->epoch = UINT64_MAX;  // of no tree
        ++*detached;
      }
    }
    for (auto& [id, hold] : holds) {
      ModelSequence& s = *hold.sequence;
      if (s.epoch == epoch_ && roots.count(s.scope->root) != 0) s.epoch = UINT64_MAX;
    }
    for (const ModelBlockRef& block : gone) counts.dropped_blocks += block->tail.empty() ? 1 : 0;
    return gone;
  }
  uint32_t Expire(uint64_t tick) {
    if (tick <= now_) {
      now_known_ = true;
      return 0;
    }
    now_ = tick;
    now_known_ = true;
    std::vector<ModelTimer> due;
    for (const ModelTimer& timer : timers_) {
      if (timer.tick <= tick) due.push_back(timer);
    }
    timers_.erase(std::remove_if(timers_.begin(), timers_.end(),
                                 [&](const ModelTimer& timer) { return timer.tick <= tick; }),
                  timers_.end());
    std::stable_sort(due.begin(), due.end(),
                     [](const ModelTimer& a, const ModelTimer& b) { return a.tick < b.tick; });
    for (const ModelTimer& timer : due) {
      timer.block->timed = false;
      timer.block->expired = true;
      timer.block->own = KVC_DEFAULT_PRIORITY;
      Settle(*timer.block);
    }
    counts.expired_blocks += due.size();
    return static_cast<uint32_t>(due.size());
  }
  [[nodiscard]] uint64_t now() const { return now_; }

  // ------------------------------------------------------------ elastic pools

  struct Resized {
    kvc_status status = KVC_OK;
    kvc_resize_result told{};
    std::vector<kvc_page_move> moves;
    std::vector<ModelBlockRef> victims;
  };
  // Moves are copied on the device's own stream, `copies`.
  Resized Resize(uint32_t target, uint32_t max_pages, uint64_t copies) {
    Resized result;
    SettleMemory();
    const bool failed = growth_failed_ && target > total_;
    growth_failed_ = false;
    if (failed) {
      result.status = KVC_OUT_OF_MEMORY;
      Tell(&result);
      return result;
    }
    if (target != limit_) {
      ++counts.resizes;
      const std::set<uint32_t> used = InUse();
      for (uint32_t id = target; id < std::min(limit_, total_); ++id) {
        if (used.count(id) == 0 && out_.insert(id).second) --free_;
      }
      limit_ = target;
      resizing_ = true;
      if (target > asked_) {
        Ask(target);
      } else if (done_) {
        SetTotal(total_);
      }
    }
    if (resizing_) {
      Poll();
      if (limit_ < total_) ClearDoomed(max_pages, copies, &result);
      SettleMemory();
    }
    Tell(&result);
    return result;
  }
  void Tell(Resized* result) const {
    kvc_resize_result& told = result->told;
    told.target_pages = limit_;
    told.total_pages = total_;
    told.growing_pages = limit_ > total_ ? limit_ - total_ : 0;
    told.doomed_pages = CountDoomed();
    told.leaving_pages = static_cast<uint32_t>(out_.size());
    told.moved_pages = static_cast<uint32_t>(result->moves.size());
    told.evicted_blocks = static_cast<uint32_t>(result->victims.size());
    told.done = resizing_ ? 0 : 1;
  }
  // What the library does about memory at the beginning of most calls, and of each
  // operation of those that make several: what one of them has given up is not asked for
  // any more when the next one begins.
  void SettleMemory() {
    if (!resizing_) return;
    if (done_) SetTotal(asked_);
    const uint32_t end = std::max(limit_, EndOfUse());
    if (end < asked_) Ask(end);
    if (done_ && total_ == limit_) resizing_ = false;
  }
  // All streams are advanced; the next call sees to the rest.
  void MemoryComes() {
    done_ = true;
    SettleMemory();
  }
  // So much is there, and more comes.
  void MemoryReaches(uint32_t pages) {
    SetTotal(pages);
    SettleMemory();
  }
  // So much is there, and no more comes: if anybody still wants it, that was a failure.
  void MemoryFails(uint32_t pages) {
    done_ = mapped_roughly_ = true;
    asked_ = pages;
    SetTotal(pages);
    if (limit_ > total_) {
      limit_ = total_;
      growth_failed_ = true;
      ++counts.failed_resizes;
    }
    SettleMemory();
  }
  [[nodiscard]] bool memory_outstanding() const { return !done_; }
  [[nodiscard]] uint32_t asked() const { return asked_; }
  // Whether the number of pages shows that what was asked for last is there.
  [[nodiscard]] bool total_tells() const { return asked_from_ != asked_; }
  // Some of a page that could not be had whole is mapped, perhaps.
  [[nodiscard]] bool mapped_roughly() const { return mapped_roughly_; }
  // Behind all pages that hold anything.
  [[nodiscard]] uint32_t EndOfUse() const {
    uint32_t end = 0;
    for (const uint32_t id : InUse()) {
      if (id != UINT32_MAX) end = std::max(end, id + 1);
    }
    return end;
  }
  [[nodiscard]] uint64_t leaving() const { return out_.size(); }
  [[nodiscard]] uint32_t limit() const { return limit_; }
  [[nodiscard]] uint32_t CountDoomed() const {
    uint32_t count = 0;
    for (const uint32_t id : InUse()) count += id >= limit_ && id != UINT32_MAX ? 1 : 0;
    return count;
  }
  // The library has said which page it is. Of several that a stream could have it may have
  // taken another one than the model did: which one is left is not known then.
  [[nodiscard]] bool Learn(ModelPage* page, uint32_t id) {
    page->id = id;
    for (const ModelPageRef& other : quarantine_) {
      if (other->id == id) other->id = UINT32_MAX;
    }
    return owner.emplace(id, page).second && id < limit_;
  }
  // Nor is a page that was taken and given up within one step.
  [[nodiscard]] bool KnowsAllPages() const { return InUse().count(UINT32_MAX) == 0; }

  // ----------------------------------------------------------------- looking

  // Frees quarantined pages whose fences have been reached.
  void Poll() {
    for (auto page = quarantine_.begin(); page != quarantine_.end();) {
      if (UsableBy((*page)->used, 0)) {
        if (Doomed(**page)) {
          out_.insert((*page)->id);
        } else {
          ++free_;
        }
        page = quarantine_.erase(page);
      } else {
        ++page;
      }
    }
  }
  // Pages that work on the stream can have without an eviction.
  [[nodiscard]] uint64_t Available(uint64_t stream) {
    Poll();
    return CountAvailable(stream);
  }
  // The same without a look by the library.
  [[nodiscard]] uint64_t CountAvailable(uint64_t stream) const {
    uint64_t own = 0;
    for (const ModelPageRef& page : quarantine_) {
      own += !Doomed(*page) && UsableBy(page->used, stream) ? 1 : 0;
    }
    return free_ + own;
  }
  [[nodiscard]] uint64_t Live() const {
    return total_ - free_ - quarantine_.size() - cached() - out_.size();
  }
  [[nodiscard]] uint64_t Roots() const { return RootKeys().size(); }
  [[nodiscard]] std::set<ModelKey> RootKeys() const {
    std::set<ModelKey> roots;
    for (const auto& [key, block] : resident_) roots.insert(block->scope->root);
    for (const ModelBlockRef& block : tails_) roots.insert(block->scope->root);
    for (const auto& s : sequences_) {
      if (s->epoch == epoch_) roots.insert(s->scope->root);
    }
    for (const auto& [id, hold] : holds) {
      if (hold.sequence->epoch == epoch_) roots.insert(hold.sequence->scope->root);
    }
    return roots;
  }
  [[nodiscard]] bool Detached(const ModelSequence& s) const { return s.epoch != epoch_; }
  [[nodiscard]] uint32_t block() const { return block_; }
  [[nodiscard]] uint32_t total() const { return total_; }
  [[nodiscard]] uint64_t free() const { return free_; }
  [[nodiscard]] uint64_t cached() const {
    uint64_t all = 0;
    for (const auto& [place, list] : lists_) all += list.size();
    return all;
  }
  [[nodiscard]] uint64_t quarantined() const { return quarantine_.size(); }
  [[nodiscard]] const std::map<ModelKey, ModelBlockRef>& resident() const { return resident_; }
  [[nodiscard]] const std::vector<ModelBlockRef>& tails() const { return tails_; }
  [[nodiscard]] const std::vector<std::unique_ptr<ModelSequence>>& sequences() const {
    return sequences_;
  }
  [[nodiscard]] bool Full() const { return sequences_.size() + holds.size() >= max_sequences_; }
  [[nodiscard]] ModelKey KeyOf(const ModelKey& parent, const uint32_t* tokens) const {
    ModelKey key;
    TestDigest digest;
    BlockKey(
        parent.data(), tokens, block_,
        [&digest](uint32_t token) {
          digest = DigestOf(token & ~KVC_DIGEST_BIT);
          return digest.data();
        },
        key.data());
    return key;
  }
  // Digests in use: of blocks, partly filled tails and paths of suspended sequences.
  [[nodiscard]] std::set<uint32_t> Digests() const {
    std::set<uint32_t> all;
    for (const auto& [key, block] : resident_) AddDigests(known.at(key).tokens, 0, &all);
    for (const ModelBlockRef& block : tails_) AddDigests(block->tail, 0, &all);
    for (const auto& s : sequences_) {
      AddDigests(s->tokens, s->tokens.size() / block_ * block_, &all);
      AddDigests(s->path, 0, &all);
    }
    for (const ModelPending::Promise& p : pending.promises) AddDigests(p.tokens, 0, &all);
    for (const auto& [id, hold] : holds) {
      const ModelSequence& s = *hold.sequence;
      AddDigests(s.tokens, s.tokens.size() / block_ * block_, &all);
      AddDigests(s.path, 0, &all);
    }
    return all;
  }
  // The stream does not tell of it.
  [[nodiscard]] bool Suppressed(const ModelBlock* block) const {
    for (; suppress_ && block != nullptr; block = block->parent.get()) {
      std::set<uint32_t> own;
      AddDigests(known.at(block->key).tokens, 0, &own);
      if (!own.empty()) return true;
    }
    return false;
  }

  ModelPending::Found last_pending;  // what the last create was told
  PartialHit last_hit;               // and what it got of a partly filled block
  std::vector<ModelPin> pins;
  uint64_t kept_moves = 0;      // of what suspended sequences kept
  uint64_t spared = 0;          // of those, who would have given a grow nothing
  kvc_stats counts{};           // only those that the model counts
  uint64_t partial_blocks = 0;  // kvc_stream_stats.partial_blocks_suppressed
  struct Hold {
    std::unique_ptr<ModelSequence> sequence;
    uint32_t count = 0;
    bool cancel = false;
  };
  std::map<uint64_t, Hold> holds;
  uint64_t suppressed_ever = 0;
  uint64_t silent_removals = 0;
  std::map<ModelKey, ModelKnown> known;
  std::map<uint32_t, ModelPage*> owner;  // pages in use, by id

 private:
  [[nodiscard]] bool Doomed(const ModelPage& page) const {
    return page.id != UINT32_MAX && page.id >= limit_;
  }
  // Quarantined pages that can be had later.
  [[nodiscard]] uint64_t Staying() const {
    uint64_t staying = 0;
    for (const ModelPageRef& page : quarantine_) staying += Doomed(*page) ? 0 : 1;
    return staying;
  }
  [[nodiscard]] uint64_t Gain(const std::vector<ModelBlockRef>& victims) const {
    uint64_t gain = 0;
    for (const ModelBlockRef& block : victims) gain += Doomed(*block->page) ? 0 : 1;
    return gain;
  }
  // By id: live, cached and quarantined pages.
  [[nodiscard]] std::set<uint32_t> InUse() const {
    std::set<uint32_t> used;
    for (const auto& [id, page] : owner) used.insert(id);
    for (const ModelPageRef& page : quarantine_) used.insert(page->id);
    for (const auto& [key, block] : resident_) used.insert(block->page->id);
    for (const auto& s : sequences_) {
      for (const ModelPageRef& page : s->pages) used.insert(page->id);
    }
    for (const auto& [id, hold] : holds) {
      for (const ModelPageRef& page : hold.sequence->pages) used.insert(page->id);
    }
    for (const ModelPin& pin : pins) {
      for (const ModelPageRef& page : pin.pages) used.insert(page->id);
    }
    return used;
  }
  void Ask(uint32_t pages) {
    asked_ = pages;
    asked_from_ = total_;
    done_ = mapped_roughly_ = false;
  }
  void SetTotal(uint32_t total) {
    for (uint32_t id = total_; id < total; ++id) out_.insert(id);
    out_.erase(out_.lower_bound(total), out_.end());
    total_ = total;
    while (!out_.empty() && *out_.begin() < std::min(limit_, total_)) {
      out_.erase(out_.begin());
      ++free_;
    }
  }
  void ClearDoomed(uint32_t max_pages, uint64_t copies, Resized* result) {
    // By page, the last one first.
    std::map<uint32_t, ModelBlockRef, std::greater<>> cached;
    for (const auto& [priority, list] : lists_) {
      for (const ModelBlockRef& block : list) {
        if (Doomed(*block->page)) cached.emplace(block->page->id, block);
      }
    }
    // What suspended sequences keep, and nobody else holds.
    std::map<uint32_t, std::pair<ModelSequence*, size_t>, std::greater<>> kept;
    for (const auto& s : sequences_) {
      for (size_t i = 0; s->suspended && i < s->pages.size(); ++i) {
        const ModelPage& page = *s->pages[i];
        if (Doomed(page) && page.holders == 1) kept[page.id] = {s.get(), i};
      }
    }
    uint32_t quarantined = 0;
    for (const ModelPageRef& page : quarantine_) quarantined += Doomed(*page) ? 1 : 0;
    result->told.held_pages =
        CountDoomed() - static_cast<uint32_t>(cached.size() + kept.size()) - quarantined;
    const auto budget = [&] { return max_pages - result->moves.size() - result->victims.size(); };
    while (cached.size() + kept.size() > free_ + Staying() && budget() != 0) {
      const std::vector<ModelBlockRef> victims = Victims(1, 0, true);
      if (victims.empty()) break;
      const ModelBlockRef block = victims.front();
      counts.evicted_ended_blocks += block->own < 0 ? 1 : 0;
      counts.evicted_ttl_blocks += block->expired ? 1 : 0;
      counts.evicted_blocks += block->tail.empty() ? 1 : 0;
      result->victims.push_back(block);
      cached.erase(block->page->id);
      if (block->tail.empty()) scores.Left(block->key, block->score);
      Evict(block);
      GiveUp(block->page);
    }
    std::set<uint32_t, std::greater<>> all;
    for (const auto& [id, block] : cached) all.insert(id);
    for (const auto& [id, place] : kept) all.insert(id);
    for (const uint32_t id : all) {
      if (budget() == 0) return;
      if (free_ == 0) {
        ++result->told.held_pages;
        continue;
      }
      const auto keeper = kept.find(id);
      const bool is_kept = keeper != kept.end();
      const ModelBlockRef block = is_kept ? nullptr : cached.at(id);
      const ModelPageRef old =
          is_kept ? keeper->second.first->pages[keeper->second.second] : block->page;
      // What is kept may still be written by those who used it.
      auto written = std::make_shared<ModelPage>();
      if (is_kept) written->ready = old->used;
      const std::vector<ModelFence> filled = WaitsFor({old, written}, 0);
      // What fills it waits for the host.
      if (std::any_of(filled.begin(), filled.end(),
                      [&](const ModelFence& fence) { return Withheld(fence); })) {
        ++result->told.held_pages;
        continue;
      }
      OpenOwn(copies);
      Copy(copies, WaitsFor({old, written}, copies));
      const ModelFence fence = Record(copies).front();
      uint32_t to = 0;
      for (const std::set<uint32_t> used = InUse(); used.count(to) + out_.count(to) != 0;) ++to;
      auto page = std::make_shared<ModelPage>();
      page->id = to;
      page->block = block.get();
      page->ready.push_back(fence);
      owner[to] = page.get();
      uint32_t tokens = block_;
      if (is_kept) {
        ++kept_moves;
        page->holders = 1;
        old->holders = 0;
        keeper->second.first->pages[keeper->second.second] = page;
      } else {
        block->page = page;
        if (!block->tail.empty()) tokens = static_cast<uint32_t>(block->tail.size());
      }
      old->used.push_back(fence);
      GiveUp(old);
      --free_;
      ++counts.copied_pages;
      ++counts.moved_pages;
      result->moves.push_back({id, to, tokens, 0});
    }
  }
  static void AddDigests(const std::vector<uint32_t>& tokens, size_t from,
                         std::set<uint32_t>* all) {
    for (size_t i = from; i < tokens.size(); ++i) {
      if ((tokens[i] & KVC_DIGEST_BIT) != 0) all->insert(tokens[i]);
    }
  }
  // Whether the digests of an item fit beside those in use.
  [[nodiscard]] kvc_status DigestsFit(const std::vector<uint32_t>& tokens) const {
    std::set<uint32_t> all = Digests();
    const bool alone = all.empty();
    AddDigests(tokens, 0, &all);
    if (all.size() <= max_digests_) return KVC_OK;
    return alone ? KVC_NEVER_FITS : KVC_NOT_NOW;
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

  // The sequences by their places in the library, in which it goes through them.
  [[nodiscard]] std::vector<ModelSequence*> ByPlace() const {
    std::vector<ModelSequence*> all;
    for (const auto& s : sequences_) all.push_back(s.get());
    std::sort(all.begin(), all.end(), [](const ModelSequence* a, const ModelSequence* b) {
      return static_cast<uint32_t>(a->id) < static_cast<uint32_t>(b->id);
    });
    return all;
  }
  void MakePromise(ModelSequence* s, const std::vector<uint32_t>& prompt) {
    pending.Make(s, s->scope->root, prompt, s->blocks.size(),
                 std::min<uint64_t>(prompt.size() / block_, s->stop_blocks));
  }

  static ModelPageRef NewPage() {
    auto page = std::make_shared<ModelPage>();
    page->holders = 1;
    return page;
  }
  // For work on the stream, without evicting anything.
  ModelPageRef TakePage(uint64_t stream) {
    auto oldest = quarantine_.end();
    uint64_t oldest_position = 0;
    for (auto page = quarantine_.begin(); page != quarantine_.end(); ++page) {
      if (Doomed(**page) || !UsableBy((*page)->used, stream)) continue;
      uint64_t last = 0;
      for (const ModelFence& fence : (*page)->used) {
        if (fence.stream == stream) last = std::max(last, fence.position);
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
    return NewPage();
  }

  // The 32 newest that follow a block, whole ones and tails, or that begin a scope.
  [[nodiscard]] std::vector<ModelBlockRef> Newest(const ModelBlockRef& parent,
                                                  const ModelScope* scope) const {
    std::vector<ModelBlockRef> all = tails_;
    for (const auto& [key, block] : resident_) all.push_back(block);
    const auto other = [&](const ModelBlockRef& block) {
      return block->parent != parent || block->scope->root != scope->root;
    };
    all.erase(std::remove_if(all.begin(), all.end(), other), all.end());
    std::sort(all.begin(), all.end(),
              [](const ModelBlockRef& a, const ModelBlockRef& b) { return a->born > b->born; });
    if (all.size() > 32) all.resize(32);
    return all;
  }
  [[nodiscard]] const std::vector<uint32_t>& TokensOf(const ModelBlock& block) const {
    return block.tail.empty() ? known.at(block.key).tokens : block.tail;
  }
  [[nodiscard]] PartialHit FindPartial(const ModelPrompt& prompt,
                                       const std::vector<ModelBlockRef>& found, uint64_t copies) {
    PartialHit hit;
    const std::vector<uint32_t>& tokens = prompt.tokens;
    const uint64_t first = found.size() * block_;
    const uint64_t left = Left(prompt.must_compute);
    if (!partial_ || prompt.options.match_backoff != 0) return hit;
    for (const ModelBlockRef& child :
         Newest(found.empty() ? nullptr : found.back(), prompt.scope)) {
      const std::vector<uint32_t>& its = TokensOf(*child);
      uint64_t common = 0;
      while (common < its.size() && first + common + left < tokens.size() &&
             its[common] == tokens[first + common]) {
        ++common;
      }
      if (common > hit.tokens) hit = {child, common, false, {}};
    }
    if (hit.tokens == 0) return hit;
    Poll();
    const uint64_t stream = prompt.stream;
    const auto usable = [&](const ModelPageRef& page) {
      return !Doomed(*page) && UsableBy(page->used, stream);
    };
    // Without a copy there is still the tail itself, if that is all of it.
    PartialHit tail{hit.from, hit.tokens, true, {}};
    if (hit.from->tail.size() != hit.tokens) tail = {};
    if (free_ == 0 && std::none_of(quarantine_.begin(), quarantine_.end(), usable)) return tail;
    const bool queues = stream != 0 && !IsSteps(stream);
    if (!queues) OpenOwn(copies);
    hit.after = WaitsFor({hit.from->page}, queues ? stream : copies);
    const auto steps = [&](const ModelFence& fence) { return Withheld(fence); };
    if (queues && std::any_of(hit.after.begin(), hit.after.end(), steps)) return tail;
    if (!queues && stream != 0 && !Idle(stream)) {
      hit.after.erase(std::remove_if(hit.after.begin(), hit.after.end(),
                                     [&](const ModelFence& f) { return f.stream == stream; }),
                      hit.after.end());
      hit.after.push_back(Record(stream).front());
    }
    return hit;
  }
  void TakePartial(ModelSequence& s, const PartialHit& hit, uint64_t copies) {
    ++counts.partial_hits;
    counts.partial_hit_tokens += hit.tokens;
    if (hit.takes) {
      const ModelPageRef page = hit.from->page;
      Hold(*page);
      Evict(hit.from);
      page->block = nullptr;
      owner[page->id] = page.get();
      s.pages.push_back(page);
      NotePeak();
      return;
    }
    const bool queues = s.stream != 0 && !IsSteps(s.stream);
    const uint64_t on = queues ? s.stream : copies;
    const ModelPageRef from = hit.from->page;
    const ModelPageRef to = TakePage(s.stream);
    Copy(on, hit.after);
    const ModelFence fence = Record(on).front();
    from->used.push_back(fence);
    if (!queues) to->ready.push_back(fence);
    s.pages.push_back(to);
    // It has been used.
    Hold(*from);
    hit.from->score = scores.Used(hit.from->score);
    Drop(from, {});
    NotePeak();
    ++counts.copied_pages;
  }
  // Before its page is dropped.
  void KeepTail(const ModelSequence& s, const std::vector<ModelFence>& fences) {
    const size_t full = s.blocks.size();
    const ModelBlockRef parent = full == 0 ? nullptr : s.blocks.back();
    auto made = std::make_shared<ModelBlock>();
    made->tail.assign(s.tokens.begin() + static_cast<ptrdiff_t>(full * block_), s.tokens.end());
    const auto begins = [](const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
      return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
    };
    ModelBlockRef shorter;
    for (const ModelBlockRef& child : Newest(parent, s.scope)) {
      if (begins(made->tail, TokensOf(*child))) return;
      if (shorter == nullptr && begins(TokensOf(*child), made->tail)) shorter = child;
    }
    if (shorter != nullptr) {
      Evict(shorter);
      GiveUp(shorter->page);
    }
    made->parent = parent;
    made->scope = s.scope;
    made->page = s.pages[full];
    made->page->block = made.get();
    made->page->ready.insert(made->page->ready.end(), fences.begin(), fences.end());
    made->born = ++born_;
    made->score = parent != nullptr ? parent->score : scores.now();
    if (parent != nullptr) {
      made->own = made->listed = std::min<int>(parent->own, KVC_DEFAULT_PRIORITY);
      ++parent->children;
    }
    tails_.push_back(made);
    ++counts.kept_partial_blocks;
  }

  static bool Has(const ModelSequence& s, const ModelPageRef& page) {
    return std::find(s.pages.begin(), s.pages.end(), page) != s.pages.end();
  }
  // Lists of cached blocks by the priority they are listed under and what they are worth, the
  // least recently used first.
  using Place = std::pair<int, uint32_t>;
  using Order = std::map<Place, std::vector<ModelBlockRef>>;
  [[nodiscard]] Place PlaceOf(const ModelBlock& block, int priority) const {
    return {priority, scores.Range(block.score)};
  }
  void CountRequest() {
    scores.SetTime(++counts.created_sequences);
    // Lists whose scores are told apart no longer become one, what was worth least first.
    Order lists;
    for (const auto& [place, list] : lists_) {
      for (const ModelBlockRef& block : list) lists[PlaceOf(*block, place.first)].push_back(block);
    }
    lists_ = lists;
  }
  struct ModelTimer {
    uint64_t tick;
    ModelBlockRef block;
  };

  // One by one: the first that may go, in the order of the lists. A block whose
  // last child has been chosen and that was listed for its sake joins its own list.
  // Those in doomed pages do not meet the demand, unless `any` do.
  [[nodiscard]] std::vector<ModelBlockRef> Victims(uint64_t demand, uint64_t stream,
                                                   bool any = false) const {
    Order order = lists_;
    std::map<const ModelBlock*, uint32_t> gone;
    std::vector<ModelBlockRef> victims;
    const auto next = [&]() -> ModelBlockRef {
      for (auto& [place, list] : order) {
        for (const ModelBlockRef& block : list) {
          if (block->children == gone[block.get()] && UsableBy(block->page->ready, stream) &&
              UsableBy(block->page->used, stream)) {
            return block;
          }
        }
      }
      return nullptr;
    };
    while ((any ? victims.size() : Gain(victims)) < demand) {
      const ModelBlockRef block = next();
      if (!block) break;
      for (auto& [place, list] : order) {
        list.erase(std::remove(list.begin(), list.end(), block), list.end());
      }
      victims.push_back(block);
      const ModelBlockRef parent = block->parent;
      if (!parent || ++gone[parent.get()] != parent->children || parent->page->holders != 0 ||
          parent->listed == parent->own) {
        continue;
      }
      std::vector<ModelBlockRef>& before = order[PlaceOf(*parent, parent->listed)];
      before.erase(std::find(before.begin(), before.end(), parent));
      order[PlaceOf(*parent, parent->own)].push_back(parent);
    }
    return victims;
  }
  [[nodiscard]] ModelBlockRef Ref(const ModelBlock& block) const {
    if (block.tail.empty()) return resident_.at(block.key);
    return *std::find_if(tails_.begin(), tails_.end(),
                         [&](const ModelBlockRef& other) { return other.get() == &block; });
  }
  void Join(ModelBlock& block) { lists_[PlaceOf(block, block.listed)].push_back(Ref(block)); }
  void Leave(ModelBlock& block) {
    std::vector<ModelBlockRef>& list = lists_[PlaceOf(block, block.listed)];
    list.erase(std::find(list.begin(), list.end(), Ref(block)));
  }
  // A block without children is listed under its own priority.
  void Settle(ModelBlock& block) {
    if (block.children != 0 || block.listed == block.own) return;
    if (block.page->holders == 0) Leave(block);
    block.listed = block.own;
    if (block.page->holders == 0) Join(block);
  }
  // The blocks before one are listed under no lower priority.
  static void Raise(const ModelBlock& block) {
    for (ModelBlock* above = block.parent.get(); above != nullptr; above = above->parent.get()) {
      above->listed = std::max(above->listed, block.listed);
    }
  }
  void SetTimer(const ModelBlockRef& block, uint64_t tick) {
    timers_.erase(std::remove_if(timers_.begin(), timers_.end(),
                                 [&](const ModelTimer& timer) { return timer.block == block; }),
                  timers_.end());
    block->timed = tick != 0;
    if (tick == 0) return;
    timers_.push_back({now_known_ ? std::max(tick, now_ + 1) : tick, block});
  }
  void SetPriority(const ModelBlockRef& block, int priority, uint64_t tick) {
    SetTimer(block, tick);
    block->own = priority;
    block->expired = false;
    block->listed = block->children == 0 ? priority : std::max(block->listed, priority);
    Raise(*block);
  }

  // A held block leaves the order of eviction. If its conversation was over, it
  // has begun again.
  void Hold(ModelPage& page) {
    if (page.holders++ != 0) return;
    ModelBlock& block = *page.block;
    Leave(block);
    if (block.own >= 0) return;
    block.own = KVC_DEFAULT_PRIORITY;
    block.listed = std::max(block.listed, block.own);
    Raise(block);
  }
  // Blocks that a sequence finds, or finds again.
  void Take(ModelSequence& s, const std::vector<ModelBlockRef>& found, bool used) {
    s.blocks = found;
    for (const ModelBlockRef& block : found) {
      Hold(*block->page);
      if (used) block->score = scores.Used(block->score);
      s.pages.push_back(block->page);
    }
    NotePeak();
  }
  void Strip(ModelSequence& s) {
    for (size_t i = s.pages.size(); i-- > 0;) Drop(s.pages[i], {});
    s.pages.clear();
    s.rest_kept = false;
  }
  // Without holders a block joins the end of its list; any other page is given
  // up.
  void Drop(const ModelPageRef& page, const std::vector<ModelFence>& fences) {
    page->used.insert(page->used.end(), fences.begin(), fences.end());
    if (--page->holders != 0) return;
    if (page->block != nullptr) {
      Join(*page->block);
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
    if (block->tail.empty() && Suppressed(block.get())) ++silent_removals;
    if (block->page->holders == 0) Leave(*block);
    SetTimer(block, 0);
    if (block->tail.empty()) {
      resident_.erase(block->key);
    } else {
      tails_.erase(std::find(tails_.begin(), tails_.end(), block));
    }
    owner.erase(block->page->id);
    if (!block->parent) return;
    --block->parent->children;
    Settle(*block->parent);
  }
  void NotePeak() { counts.peak_live_pages = std::max(counts.peak_live_pages, Live()); }

  const uint32_t block_;
  uint32_t total_;
  uint32_t limit_;  // pages from here on are doomed
  const uint32_t max_sequences_;
  const uint32_t gate_;
  const uint32_t max_digests_;
  const bool suppress_;
  const bool partial_;
  uint64_t born_ = 0;
  std::vector<ModelBlockRef> tails_;
  uint64_t suspensions_ = 0;
  uint64_t free_;
  std::set<uint32_t> out_;  // pages that were withdrawn, below total_
  bool resizing_ = false;
  uint32_t asked_;              // for how many pages the device is to have memory
  uint32_t asked_from_ = 0;     // the total then
  bool done_ = true;            // and it has
  bool growth_failed_ = false;  // which has not been told
  bool mapped_roughly_ = false;
  uint64_t epoch_ = 0;
  std::map<ModelKey, ModelBlockRef> resident_;
  Order lists_;
  std::vector<ModelTimer> timers_;  // in the order in which they were set
  uint64_t now_ = 0;
  bool now_known_ = false;
  std::vector<ModelPageRef> quarantine_;  // in the order in which they were given up
  std::vector<std::unique_ptr<ModelSequence>> sequences_;

 public:
  ModelScores scores;
  ModelPending pending;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_H_
