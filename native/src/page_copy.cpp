// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies of pages that sequences share: planned before anything changes, and noted
// with the device when nothing can fail any more. The device makes them later.
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"

namespace kvcast {

// For a sequence on `slot`. Makes room for the copy; the caller reserves two more sets
// of fences.
kvc_status Manager::PlanCopy(uint32_t slot, PageId from, CopyPlan* plan, kvc_error* error) {
  *plan = {};
  if (page_bytes_ == 0) return KVC_OK;  // the engine has the memory, and makes the copy
  plan->slot = device_.CopySlot(slot);
  if (plan->slot == 0) {
    return sequences::Item(error, KVC_NOT_NOW,
                           "a page must be copied and all device streams are open; destroy one");
  }
  NoteOwnStream(plan->slot);
  fences_.Collect(pages_[from].ready, plan->slot, &plan->after);
  if (plan->slot != slot) {
    // A step that has begun may still write the page, or use the one that it goes to.
    if (slot != 0 && device_.Record(slot) != 0) plan->after.Add({slot, device_.Record(slot)});
  } else {
    bool steps = false;
    plan->after.ForEach([&](const Fence& f) { steps = steps || device_.IsStepStream(f.slot); });
    if (steps) {
      return sequences::Item(error, KVC_NOT_NOW,
                             "a page must be copied on a device stream, which cannot wait for the "
                             "step that fills it: retry when the step is done");
    }
  }
  device_.ReserveCopies(1);
  return KVC_OK;
}

// After PlanCopy, with the same slot and page. The source is guarded until it has been
// read; *waits gets the fence of a copy that the sequence's own stream does not make.
void Manager::MakeCopy(const CopyPlan& plan, uint32_t slot, const PageCopy& copy,
                       FenceList* waits) {
  ++counters_.copied_pages;
  if (plan.slot == 0) return;
  counters_.copied_bytes += device_.Copy(plan.slot, copy, plan.after);
  const Fence fence{plan.slot, device_.Record(plan.slot)};
  const FenceSetId set = fences_.Single(fence);
  pages_.AddUse(copy.from, set);
  if (plan.slot != slot && set != 0) {
    pages_.AddReady(copy.to, set);
    waits->Add(fence);
  }
  fences_.Release(set);
}

// The device's own stream must have an id by which its fences are told.
void Manager::NoteOwnStream(uint32_t slot) {
  if (streams_[slot].open || streams_[slot].own) return;
  NewStreamId(slot, false);
  streams_[slot].open = false;  // nobody may use or close it
  streams_[slot].own = true;
}

}  // namespace kvcast
