// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Opening sequences and probing: a prompt is followed through the tree.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"
#include "native/src/utf8.h"

namespace kvcast {

kvc_status Manager::ValidateScope(uint32_t index, const PromptArrays& in, ScopeView* scope,
                                  kvc_error* error) {
  using sequences::Inside;
  using sequences::Item;
  *scope = {};
  if (index != KVC_NO_SCOPE) {
    if (index >= in.scope_count) {
      return Item(error, KVC_INVALID_ARGUMENT, "a scope is outside scopes[]");
    }
    const kvc_scope& s = in.scopes[index];
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
  return KVC_OK;
}

kvc_status Manager::ValidatePrompt(const kvc_prompt& prompt, const PromptArrays& in,
                                   PromptView* out, kvc_error* error) const {
  using sequences::Inside;
  using sequences::Item;
  if (!Inside(prompt.token_offset, prompt.token_count, in.token_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "a prompt's tokens are outside tokens[]");
  }
  const uint32_t* tokens = in.tokens + prompt.token_offset;
  if (!Inside(prompt.digest_offset, uint64_t{prompt.digest_count} * kDigestBytes, in.byte_count)) {
    return Item(error, KVC_INVALID_ARGUMENT, "a prompt's digests are outside bytes[]");
  }
  if ((prompt.flags & ~uint32_t{KVC_PROMPT_SUSPENDED | KVC_PROMPT_STOP_BEFORE | KVC_PROMPT_MARK |
                                KVC_PROMPT_WAIT}) != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "a prompt has unknown flags");
  }
  bool digests = false;
  if (!sequences::TokensInRange(tokens, prompt.token_count, prompt.digest_count, &digests)) {
    return Item(error, KVC_INVALID_ARGUMENT,
                "a prompt holds a token of 2^31 or more that names none of its digests");
  }
  *out = {};
  out->tokens.tokens = tokens;
  if (digests) out->tokens.digests = in.bytes + prompt.digest_offset;
  if (const kvc_status bad = ValidateScope(prompt.scope, in, &out->scope, error); bad != KVC_OK) {
    return bad;
  }
  const uint64_t left = prompt.must_compute == 0                     ? 1
                        : prompt.must_compute == KVC_COMPUTE_NOTHING ? 0
                                                                     : prompt.must_compute;
  out->most = prompt.token_count < left ? 0 : prompt.token_count - left;
  out->blocks = out->most / block_size_;
  out->whole = prompt.token_count / block_size_;
  return KVC_OK;
}

// Leaves out the blocks that hold the last `tokens` of a match.
void Manager::BackOff(Match* match, uint32_t tokens) const {
  if (tokens == 0) return;
  const uint64_t blocks = (uint64_t{tokens} + block_size_ - 1) / block_size_;
  for (uint64_t i = std::min(blocks, match->blocks); i > 0; --i) {
    match->last = tree_.node(match->last).parent;
    --match->blocks;
  }
  match->last_hash =
      IsRoot(match->last) ? tree_.root(match->root).hash : tree_.node(match->last).hash;
}

kvc_status Manager::CreateOne(const kvc_prompt& prompt, const PromptArrays& in,
                              kvc_create_result* result, Turn* turn, kvc_error* error) {
  PromptView view;
  if (const kvc_status bad = ValidatePrompt(prompt, in, &view, error); bad != KVC_OK) return bad;

  turn->Enter();
  const uint32_t slot = SlotOf(prompt.device_stream);
  if (free_sequence_ == kNil) {
    return sequences::Item(error, KVC_NOT_NOW, "max_sequences are open; release one");
  }
  bool suspended = (prompt.flags & KVC_PROMPT_SUSPENDED) != 0;
  const bool awaits = (prompt.flags & KVC_PROMPT_WAIT) != 0;
  if (!suspended && !awaits && !GateIsOpen()) return GateClosed(error);
  Sequence& seq = sequences_[free_sequence_];
  Match match;
  match.root = tree_.AcquireRoot(view.scope);
  match.last = RootParent(match.root);
  match.last_hash = tree_.root(match.root).hash;
  // What is found is noted first and held when nothing can fail any more. The
  // plan of victims lends its memory: a path is no longer than the pool.
  std::vector<PageId>& found_pages = victims_;
  WalkItem(&match, view.tokens, 0, view.blocks, [&](const NodeId* found, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const PageId id = tree_.node(found[i]).page;
      __builtin_prefetch(&pages_[id], 1);
      found_pages.push_back(id);
    }
  });
  const uint64_t resident = match.blocks;
  uint32_t owner = kNil;
  const uint32_t pending = FindPending(match, view.tokens, view.blocks, &owner);
  if (awaits && !suspended) {
    suspended = pending != 0;
    if (!suspended && !GateIsOpen()) {
      found_pages.clear();
      tree_.ReleaseRoot(match.root);
      return GateClosed(error);
    }
  }
  BackOff(&match, prompt.match_backoff);
  found_pages.resize(suspended ? 0 : match.blocks);
  bool marks = (prompt.flags & KVC_PROMPT_MARK) != 0 && (suspended || view.whole > match.blocks);
  uint64_t path_tokens = marks       ? view.whole * block_size_
                         : suspended ? view.blocks * block_size_
                                     : 0;
  bool path_digests = view.tokens.digests != nullptr && AnyDigest(view.tokens.tokens, path_tokens);
  kvc_status full = KVC_OK;
  PartialHit hit;
  try {
    if (partial_reuse_ && !suspended && prompt.match_backoff == 0) {
      hit = FindPartial(match, view, slot);
    }
    ReservePages(&seq, found_pages.size() + (hit.tokens != 0 ? 1 : 0));
    ReservePath(&seq, path_tokens);
    // The waits; with a copy its fence, and those of its two pages.
    fences_.Reserve(hit.tokens != 0 ? 6 : 2);
    if (marks && !suspended) pending_.Reserve(view.whole - match.blocks);
    if (path_digests) full = Intern(view.tokens, path_tokens, suspended ? error : nullptr);
  } catch (...) {
    found_pages.clear();
    tree_.ReleaseRoot(match.root);
    throw;
  }
  if (full != KVC_OK && !suspended) {
    // A mark is only a hint.
    counters_.unmarked_blocks += view.whole - match.blocks;
    marks = path_digests = false;
    path_tokens = 0;
  } else if (full != KVC_OK) {
    tree_.ReleaseRoot(match.root);
    return full;
  }
  // From here on nothing throws.
  CountRequest();
  FenceList waits;
  HoldPath(found_pages, true, slot, &waits);
  seq.pages.assign(found_pages.begin(), found_pages.end());
  found_pages.clear();

  const uint32_t index = free_sequence_;
  free_sequence_ = seq.next_free;
  seq.open = true;
  seq.slot = slot;
  seq.device_stream = prompt.device_stream;
  seq.epoch = epoch_;
  seq.root = match.root;
  seq.rules.clear();
  seq.last = match.last;
  seq.last_hash = match.last_hash;
  seq.linked = static_cast<uint32_t>(match.blocks);
  seq.stop_blocks =
      (prompt.flags & KVC_PROMPT_STOP_BEFORE) != 0 ? StopBlocks(prompt.stop_before) : kNil;
  seq.matched = match.blocks * block_size_ + hit.tokens;
  seq.committed = seq.matched;
  if (hit.tokens != 0) TakePartial(&seq, hit, slot, &waits, result);
  ++active_sequences_;
  const uint32_t* tokens = path_digests ? interned_.data() : view.tokens.tokens;
  seq.path.assign(tokens, tokens + path_tokens);
  seq.path_digests = path_digests;
  if (suspended) {
    seq.matched = seq.committed = 0;
    seq.fresh = true;
    seq.backoff = prompt.match_backoff;
    seq.match_blocks = static_cast<uint32_t>(view.blocks);
    seq.will_mark = marks;
    seq.awaits = awaits;
    FallAsleep(&seq);
    if (awaits && pending != 0) WaitFor(index, owner, resident, pending);
  } else {
    counters_.matched_blocks += match.blocks;
    if (marks) MarkPath(&seq);
  }
  EnterStream(slot);
  ++open_sequences_;
  ++changes_;
  ++live_handles().sequences;
  counters_.asked_blocks += prompt.token_count / block_size_;
  counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());

  if (hooks_.without == FenceSite::kCreateWait) waits = {};
  result->wait_count = TellWaits(&seq, waits, result->waits);
  result->sequence = IdOf(index);
  result->matched_tokens = match.blocks * block_size_ + hit.tokens;
  if (pending != 0) {
    result->pending_tokens = uint64_t{pending} * block_size_;
    result->pending_sequence = IdOf(owner);
  }
  return KVC_OK;
}

void Manager::Create(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                     kvc_create_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return CreateOne(prompts[i], in, &results[i], &turn, story);
    });
  }
}

void Manager::Probe(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                    kvc_probe_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    PromptView view;
    results[i].status = ValidatePrompt(prompts[i], in, &view, error);
    if (results[i].status != KVC_OK) continue;
    uint64_t pending = 0;
    const uint64_t found = ProbeOne(
        view, [](const NodeId*, uint32_t) {}, &pending);
    const uint64_t left_out = (uint64_t{prompts[i].match_backoff} + block_size_ - 1) / block_size_;
    results[i].matched_tokens = (found - std::min(found, left_out)) * block_size_;
    results[i].pending_tokens = pending * block_size_;
  }
}

}  // namespace kvcast
