// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/stream_table.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvcast::cuda {

StreamTable::StreamTable(const DeviceContext& context, EventPool& events)
    : context_(context), events_(events) {
  slots_[0].open = true;  // the host: nothing is ever outstanding on it
  error_.reserve(1);
}

StreamTable::~StreamTable() {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    for (Slot& slot : slots_) {
      // Teardown may wait: what our streams still do uses memory that goes next.
      if (slot.stream != nullptr && slot.ours) {
        context_.api().stream_synchronize(slot.stream);
        context_.api().stream_destroy(slot.stream);
      }
      for (const Pending& pending : slot.pending) {
        if (!slot.ours) context_.api().event_synchronize(pending.event);
        events_.Give(pending.event);
      }
    }
  } catch (const Error&) {
    // The context is gone, and with it its streams.
  }
}

uint32_t StreamTable::Open() {
  const ContextScope scope(context_);
  DestroyDoomed();
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_.api(), stream_create, &stream, kStreamNonBlocking);
  const uint32_t slot = Take(stream, true);
  if (slot == 0) context_.api().stream_destroy(stream);
  return slot;
}

uint32_t StreamTable::Adopt(StreamHandle callers) {
  const ContextScope scope(context_);
  DestroyDoomed();
  if (Capturing(callers)) {
    throw Error(KVC_BAD_STATE, "the CUDA stream is being captured into a graph");
  }
  if (callers != nullptr) {  // the NULL stream is of whatever context is current: ours
    ContextHandle theirs = nullptr;
    KVCAST_CUDA(context_.api(), stream_context, callers, &theirs);
    if (theirs != context_.handle()) {
      throw Error(KVC_INVALID_ARGUMENT,
                  "the CUDA stream belongs to another context than the manager's");
    }
  }
  return Take(callers, false);
}

uint32_t StreamTable::Take(StreamHandle stream, bool ours, bool steps) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.open || slot.doomed) continue;
    if (slot.reached.load(std::memory_order_relaxed) < slot.submitted) continue;
    slot.stream = stream;
    slot.ours = ours;
    slot.steps = steps;
    slot.open = true;
    slot.record_last = false;
    return i;
  }
  return 0;
}

void StreamTable::Close(uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  slot.open = false;
  slot.doomed = !slot.steps;  // steps have no stream to destroy
}

uint32_t StreamTable::OpenSteps() { return Take(nullptr, false, true); }

bool StreamTable::IsSteps(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_[slot].steps;
}

void StreamTable::BeginStep(uint32_t index, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  slots_[index].submitted = std::max(slots_[index].submitted, step);
}

void StreamTable::EndStep(uint32_t index, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  if (step <= slot.reached.load(std::memory_order_relaxed)) return;
  slot.reached.store(step, std::memory_order_release);
  progress_.fetch_add(1, std::memory_order_acq_rel);
}

// Under a ContextScope. A stream is destroyed when its last fence has been
// reached, so that what was noted for it still finds it.
void StreamTable::DestroyDoomed() noexcept {
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    StreamHandle gone = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Slot& slot = slots_[i];
      if (!slot.doomed || slot.reached.load(std::memory_order_relaxed) < slot.submitted) continue;
      if (slot.ours) gone = slot.stream;
      slot.stream = nullptr;
      slot.ours = slot.doomed = false;
    }
    if (gone != nullptr) context_.api().stream_destroy(gone);
  }
}

uint64_t StreamTable::Record(uint32_t index) {
  if (index == 0) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  if (slot.steps) {
    return slot.reached.load(std::memory_order_relaxed) < slot.submitted ? slot.submitted : 0;
  }
  if (!slot.record_last) {
    Noted noted;
    noted.slot = index;
    noted.position = slot.submitted + 1;
    noted_list_.push_back(std::move(noted));
    ++slot.submitted;
    slot.record_last = true;
    noted_.store(true, std::memory_order_release);
  }
  return slot.submitted;
}

bool StreamTable::Reached(uint32_t slot, uint64_t position) const {
  return slots_[slot].reached.load(std::memory_order_acquire) >= position;
}

uint64_t StreamTable::Submitted(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_[slot].submitted;
}

uint32_t StreamTable::BusyStreams() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint32_t busy = 0;
  for (const Slot& slot : slots_) {
    busy += slot.reached.load(std::memory_order_relaxed) < slot.submitted ? 1 : 0;
  }
  return busy;
}

void StreamTable::Wait(uint32_t index, Fence fence) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot& other = slots_[fence.slot];
  if (other.reached.load(std::memory_order_relaxed) >= fence.position) return;
  if (other.steps) {
    throw Error(KVC_NOT_NOW,
                "a CUDA stream cannot wait for a step of the host: retry when it is done");
  }
  Noted noted;
  noted.what = What::kWait;
  noted.slot = index;
  noted.fence = fence;
  noted_list_.push_back(std::move(noted));
  slots_[index].record_last = false;
  noted_.store(true, std::memory_order_release);
}

void StreamTable::Note(uint32_t index, std::function<void(StreamHandle)> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  Noted noted;
  noted.what = What::kWork;
  noted.slot = index;
  noted.work = std::move(work);
  noted_list_.push_back(std::move(noted));
  slots_[index].record_last = false;
  noted_.store(true, std::memory_order_release);
}

StreamHandle StreamTable::handle(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_[slot].stream;
}

const Error* StreamTable::broken() const {
  return broken_.load(std::memory_order_acquire) ? error_.data() : nullptr;
}

void StreamTable::Break(const Error& error) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!error_.empty()) return;
  error_.push_back(error);
  broken_.store(true, std::memory_order_release);
}

bool StreamTable::Capturing(StreamHandle stream) const {
  int status = kCaptureNone;
  const Result result = context_.api().stream_capturing(stream, &status);
  // The NULL stream cannot be asked while another stream, which it would join, is.
  if (result == kErrorStreamCaptureImplicit) return true;
  Check(context_.api(), "stream_capturing", result);
  return status != kCaptureNone;
}

uint32_t StreamTable::Submit() noexcept {
  uint32_t left = 0;
  if (has_noted()) {
    std::lock_guard<std::mutex> turn(submit_mutex_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      doing_.swap(noted_list_);
      // What is noted from now on comes after what is being submitted.
      for (Slot& slot : slots_) slot.record_last = false;
      noted_.store(false, std::memory_order_release);
    }
    if (!doing_.empty() && broken() == nullptr) {
      try {
        leaves_.fill(false);
        const ContextScope scope(context_);
        for (Noted& noted : doing_) {
          if (leaves_[noted.slot] || !Do(noted)) {
            leaves_[noted.slot] = true;
            left_.push_back(std::move(noted));
          }
        }
      } catch (const Error& error) {
        Break(error);
      } catch (const std::exception& error) {
        Break(Error(KVC_INTERNAL, error.what()));
      }
    }
    doing_.clear();
    if (!left_.empty()) {
      left = static_cast<uint32_t>(left_.size());
      std::lock_guard<std::mutex> lock(mutex_);
      for (Noted& later : noted_list_) left_.push_back(std::move(later));
      noted_list_.swap(left_);
      left_.clear();
      noted_.store(true, std::memory_order_release);
    }
  }
  Poll();
  return left;
}

// False when it cannot be done yet.
bool StreamTable::Do(const Noted& noted) {
  const DriverApi& api = context_.api();
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  bool reached = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stream = slots_[noted.slot].stream;
    if (noted.what == What::kWait) {
      const Slot& other = slots_[noted.fence.slot];
      reached = other.reached.load(std::memory_order_relaxed) >= noted.fence.position;
      for (const Pending& pending : other.pending) {
        if (reached || pending.position < noted.fence.position) continue;
        event = pending.event;
        break;
      }
    }
  }
  if (Capturing(stream)) return false;
  switch (noted.what) {
    case What::kWork:
      noted.work(stream);
      break;
    case What::kWait:
      // A fence without an event is one whose record was left.
      if (!reached && event == nullptr) return false;
      if (!reached) KVCAST_CUDA(api, stream_wait_event, stream, event, 0);
      break;
    case What::kRecord: {
      event = events_.Take();
      const Result result = api.event_record(event, stream);
      if (result != kSuccess) {
        events_.Give(event);
        Check(api, "event_record", result);
      }
      std::lock_guard<std::mutex> lock(mutex_);
      slots_[noted.slot].pending.push_back({noted.position, event});
      outstanding_.fetch_add(1, std::memory_order_release);
      break;
    }
  }
  return true;
}

void StreamTable::Poll() noexcept {
  if (outstanding_.load(std::memory_order_acquire) == 0 || broken() != nullptr) return;
  // Somebody who submits polls afterwards.
  std::unique_lock<std::mutex> turn(submit_mutex_, std::try_to_lock);
  if (!turn.owns_lock()) return;
  try {
    const ContextScope scope(context_);
    PollLocked();
  } catch (const Error& error) {
    Break(error);
  }
}

// With submit_mutex_: nobody else takes from or adds to the pending events.
void StreamTable::PollLocked() {
  for (Slot& slot : slots_) {
    for (;;) {
      Pending head{};
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (slot.pending.empty()) break;
        head = slot.pending.front();
      }
      const Result result = context_.api().event_query(head.event);
      if (result == kErrorNotReady) break;
      Check(context_.api(), "event_query", result);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        slot.pending.pop_front();
        slot.reached.store(head.position, std::memory_order_release);
      }
      events_.Give(head.event);
      outstanding_.fetch_sub(1, std::memory_order_release);
      progress_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
}

}  // namespace kvcast::cuda
