// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Releasing sequences whose pages others still read: the hold stays in the
// sequence's slot, under an id of the next generation, until its last count goes.
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

kvc_status Manager::HoldOne(const kvc_hold_item& item, kvc_hold_result* result, Turn* turn,
                            kvc_error* error) {
  using sequences::Item;
  if ((item.flags & ~uint32_t{KVC_HOLD_CANCEL}) != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "a hold item has unknown flags");
  }
  if (item.count == 0) return Item(error, KVC_INVALID_ARGUMENT, "a hold of count 0 holds nothing");
  turn->Enter();
  Sequence* seq = Find(item.sequence);
  if (seq == nullptr) return sequences::Stale(error);
  if (seq->suspended) return sequences::Suspended(error);
  EndMarks(seq, 0);
  seq->holds = item.count;
  seq->cancelled = (item.flags & KVC_HOLD_CANCEL) != 0;
  seq->generation = sequences::NextGeneration(seq->generation);
  --active_sequences_;
  ++holds_;
  held_pages_ += seq->pages.size();
  result->hold = uint64_t{seq->generation} << 32 | static_cast<uint32_t>(item.sequence);
  return KVC_OK;
}

kvc_status Manager::ReleaseHoldOne(uint64_t id, Turn* turn, kvc_error* error) {
  turn->Enter();
  const auto index = static_cast<uint32_t>(id);
  Sequence* seq = index < max_sequences_ ? &sequences_[index] : nullptr;
  if (seq == nullptr || !seq->open || seq->holds == 0 ||
      seq->generation != static_cast<uint32_t>(id >> 32)) {
    return sequences::Item(error, KVC_STALE_HANDLE,
                           "no such hold: released as often as it was counted, or never was");
  }
  if (seq->holds == 1 && !TakesWork(seq->slot)) return sequences::Captured(error);
  if (seq->holds == 1) fences_.Reserve(seq->pages.size() + 6);
  // From here on nothing throws.
  if (seq->holds > 1) {
    --seq->holds;
    return KVC_OK;
  }
  --holds_;
  held_pages_ -= seq->pages.size();
  CloseSequence(index, seq->cancelled ? Closing::kCancel : Closing::kRelease, FenceSite::kHoldEnd);
  return KVC_OK;
}

void Manager::ReleaseHeld(uint32_t count, const kvc_hold_item* items, kvc_hold_result* results,
                          kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] {
      Turn turn(this);
      return HoldOne(items[i], &results[i], &turn, story);
    });
  }
}

void Manager::ReleaseHolds(uint32_t count, const uint64_t* holds, kvc_status* results,
                           kvc_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i] = Guard(story, [&] {
      Turn turn(this);
      return ReleaseHoldOne(holds[i], &turn, story);
    });
  }
}

}  // namespace kvcast
