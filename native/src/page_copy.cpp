// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies of pages that sequences share: planned before anything changes, and noted
// with the device when nothing can fail any more. The device makes them later.
#include <mutex>
#include <utility>
#include <vector>

#include "native/src/geometry.h"
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

void Manager::SetPageLayout(const kvc_geometry& geometry, uint32_t count,
                            const kvc_buffer* buffers) {
  const auto require = [](bool good, const char* message) {
    if (!good) throw Error(KVC_INVALID_ARGUMENT, message);
  };
  require(geometry.layout == KVC_LAYOUT_COALESCED, "layout must be KVC_LAYOUT_COALESCED");
  require(geometry.groups == 1, "the buffers must be of one group");
  require(geometry.tokens_per_block == block_size_, "tokens_per_block is not the manager's");
  require(geometry.page_bytes == page_bytes_, "the geometry's page_bytes are not the manager's");
  std::vector<std::vector<PagePart>> parts = PageParts(geometry, count, buffers);
  std::unique_lock<WriterFirstMutex> lock(mutex_);
  if (page_layout_ || counters_.copied_pages != 0) {
    throw Error(KVC_BAD_STATE, "the page layout is set once, before the first copy");
  }
  device_.SetParts(std::move(parts));
  page_layout_ = true;
}

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
  if (!TakesWork(plan->slot)) return sequences::Captured(error);
  NoteOwnStream(plan->slot);
  const bool own = plan->slot == slot;
  fences_.Collect(pages_[from].ready, plan->slot, &plan->after);
  if (!own) {
    // A step that has begun may still write the page, or use the one that it goes to.
    if (slot != 0 && device_.Record(slot) != 0) plan->after.Add({slot, device_.Record(slot)});
  } else {
    bool steps = false;
    plan->after.ForEach([&](const Fence& f) {
      steps = steps || device_.IsStepStream(f.slot) || device_.Withheld(f);
    });
    if (steps) {
      return sequences::Item(error, KVC_NOT_NOW,
                             "a page must be copied on a device stream, which cannot wait for the "
                             "step that fills it: retry when the step is done");
    }
  }
  if (hooks_.without == FenceSite::kCopyAfter) plan->after = {};
  device_.ReserveCopies(1);
  return KVC_OK;
}

// After PlanCopy, with the same slot and page, which the sequence lets go next: its
// kernels have used it before the copy does. *waits gets the fence of a copy that the
// sequence's own stream does not make.
void Manager::MakeCopy(const CopyPlan& plan, uint32_t slot, const PageCopy& copy,
                       FenceList* waits) {
  ++counters_.copied_pages;
  uint32_t on = slot;  // of the engine's copy, which belongs to the step that has begun
  if (plan.slot != 0) {
    on = plan.slot;
    counters_.copied_bytes += device_.Copy(on, copy, plan.after);
  }
  if (on == 0) return;
  const Fence fence{on, device_.Record(on)};
  const FenceSetId set = fences_.Single(fence);
  pages_.AddUse(copy.from, At(plan.move ? FenceSite::kMoveRead : FenceSite::kCopyRead, set));
  if (on != slot) {
    pages_.AddReady(copy.to, At(plan.move ? FenceSite::kMoveReady : FenceSite::kCopyReady, set));
    if (hooks_.without != FenceSite::kCopyWait) waits->Add(fence);
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
