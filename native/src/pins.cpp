// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Pinning blocks and letting them go.
#include <algorithm>
#include <mutex>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

// Pins the path whose pages stand in victims_, which lends its memory.
kvc_status Manager::Pin(kvc_pin_result* result, kvc_error* error) {
  using sequences::Item;
  std::vector<PageId>& path = victims_;
  const auto count = static_cast<uint32_t>(path.size());
  kvc_status status = KVC_OK;
  if (count > pins_.capacity()) {
    status = Item(error, KVC_NEVER_FITS, "more blocks than may be pinned (max_pinned_pages)");
  } else if (count > pins_.capacity() - pins_.pages()) {
    status = Item(error, KVC_NOT_NOW, "too much is pinned (max_pinned_pages); unpin something");
  } else if (count != 0) {
    HoldPath(path, false, 0, nullptr);
    result->pin = pins_.Add(path.data(), count);
    ++changes_;
    counters_.peak_pinned_pages = std::max<uint64_t>(counters_.peak_pinned_pages, pins_.pages());
    counters_.peak_live_pages = std::max<uint64_t>(counters_.peak_live_pages, pages_.live());
  }
  if (status == KVC_OK) result->pinned_blocks = count;
  path.clear();
  return status;
}

void Manager::PinPrompts(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                         kvc_pin_result* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    PromptView view;
    results[i].status = ValidatePrompt(prompts[i], in, &view, error);
    if (results[i].status != KVC_OK) continue;
    std::unique_lock<WriterFirstMutex> lock(mutex_);
    Heal(4);
    Match match;
    match.root = tree_.FindRoot(view.scope);
    if (match.root == kNil) continue;
    match.last = RootParent(match.root);
    match.last_hash = tree_.root(match.root).hash;
    WalkItem(&match, view.tokens, 0, view.blocks, [&](const NodeId* ids, uint32_t n) {
      for (uint32_t k = 0; k < n; ++k) victims_.push_back(tree_.node(ids[k]).page);
    });
    results[i].status = Pin(&results[i], error);
  }
}

void Manager::PinSequences(uint32_t count, const uint64_t* sequences, kvc_pin_result* results,
                           kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    Turn turn(this);
    results[i].status = PinOne(sequences[i], &results[i], &turn, error);
  }
}

kvc_status Manager::PinOne(uint64_t sequence, kvc_pin_result* result, Turn* turn,
                           kvc_error* error) {
  turn->Enter();
  const Sequence* seq = Find(sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  victims_.assign(seq->pages.begin(), seq->pages.begin() + Linked(*seq));
  return Pin(result, error);
}

kvc_status Manager::UnpinOne(uint64_t pin, Turn* turn, kvc_error* error) {
  turn->Enter();
  const uint32_t pages = pins_.Count(pin);
  if (pages == 0) {
    return sequences::Item(error, KVC_STALE_HANDLE, "there is no such pin (any more)");
  }
  fences_.Reserve(size_t{pages} + 2);
  // From here on nothing throws. Last block first, as in a release.
  victims_.resize(pages);
  pins_.Remove(pin, victims_.data());
  pages_.DropPath(victims_.data(), pages, 0);
  victims_.clear();
  ++changes_;
  return KVC_OK;
}

void Manager::Unpin(uint32_t count, const uint64_t* pins, kvc_status* results, kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return UnpinOne(pins[i], &turn, story);
    });
  }
}

}  // namespace kvcast
