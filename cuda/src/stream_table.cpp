// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/stream_table.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace kvcast::cuda {

StreamTable::StreamTable(const DeviceContext& context, EventPool& events)
    : context_(context), events_(events) {
  slots_[0].open = true;  // the host: nothing is ever outstanding on it
  error_.reserve(1);
}

StreamTable::~StreamTable() {
  if (ForkedSinceOpen()) return;
  Drain();
  try {
    const ContextScope scope(context_);
    for (Slot& slot : slots_) {
      if (slot.stream != nullptr && slot.ours) context_.api().stream_destroy(slot.stream);
    }
  } catch (const Error&) {
    // The context is gone, and with it its streams.
  }
}

void StreamTable::Drain() noexcept {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    for (Slot& slot : slots_) {
      if (slot.stream != nullptr && slot.ours) context_.api().stream_synchronize(slot.stream);
      for (const Pending& pending : slot.pending) {
        if (!slot.ours) context_.api().event_synchronize(pending.event);
      }
    }
  } catch (const Error&) {
    // The context is gone, and nothing runs in it.
  }
  for (Slot& slot : slots_) {
    for (const Pending& pending : slot.pending) events_.Give(pending.event);
    slot.pending.clear();
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
  if (BeingCaptured(callers)) {
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
    slot.record_last = slot.withheld = false;
    slot.handed = slot.submitted;
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
    AppendLocked(index, What::kRecord).position = slot.submitted + 1;
    ++slot.submitted;
    slot.record_last = true;
  }
  return slot.submitted;
}

// With the mutex. Takes memory only when no spare note is left.
StreamTable::Noted& StreamTable::AppendLocked(uint32_t slot, What what) {
  if (spare_.empty()) spare_.emplace_back();
  noted_list_.splice(noted_list_.end(), spare_, spare_.begin());
  Noted& noted = noted_list_.back();
  noted.what = what;
  noted.slot = slot;
  slots_[slot].record_last = false;
  noted_.store(true, std::memory_order_release);
  return noted;
}

uint32_t StreamTable::OpenOwn() {
  const uint32_t slot = Take(nullptr, true);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot != 0) slots_[slot].unmade = true;
  return slot;
}

void StreamTable::ReserveCopies(uint32_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Each may wait for all other streams; the copy and the record make two more.
  while (spare_.size() < size_t{count} * (kDeviceSlots + 1)) spare_.emplace_back();
}

void StreamTable::NoteCopy(uint32_t index, const PageCopy& copy, const FenceList& after) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  after.ForEach([&](const Fence& fence) {
    if (fence.slot == index) return;
    if (slots_[fence.slot].reached.load(std::memory_order_relaxed) >= fence.position) return;
    slots_[index].withheld = slots_[index].withheld || WithheldLocked(fence);
    AppendLocked(index, What::kWait).fence = fence;
  });
  AppendLocked(index, What::kCopy).copy = copy;
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
  if (slots_[fence.slot].reached.load(std::memory_order_relaxed) >= fence.position) return;
  if (WithheldLocked(fence)) {
    throw Error(KVC_NOT_NOW,
                "a CUDA stream cannot wait for a step of the host, nor for what waits for one: "
                "retry when it is done");
  }
  if (slots_[index].withheld) {
    throw Error(KVC_BAD_STATE, "the CUDA stream is being captured into a graph");
  }
  AppendLocked(index, What::kWait).fence = fence;
}

bool StreamTable::Withheld(const Fence& fence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return WithheldLocked(fence);
}

bool StreamTable::WithheldLocked(const Fence& fence) const {
  const Slot& slot = slots_[fence.slot];
  if (slot.reached.load(std::memory_order_relaxed) >= fence.position) return false;
  return slot.steps || (slot.withheld && fence.position > slot.handed);
}

void StreamTable::Note(uint32_t index, std::function<void(StreamHandle)> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  AppendLocked(index, What::kWork).work = std::move(work);
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
  // Whatever it was, it is not over with the next call: a caller who is told that memory
  // is short would try again and again.
  error_.emplace_back(KVC_DEVICE_ERROR, error.what(), error.system_code());
  broken_.store(true, std::memory_order_release);
}

uint64_t StreamTable::Capturing(uint64_t among) noexcept {
  uint64_t asked = 0;
  std::array<StreamHandle, kDeviceSlots> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t i = 1; i < kDeviceSlots; ++i) {
      const Slot& slot = slots_[i];
      if ((among >> i & 1) == 0 || !slot.open || slot.steps || slot.unmade) continue;
      asked |= uint64_t{1} << i;
      streams[i] = slot.stream;
    }
  }
  if (asked == 0 || broken() != nullptr) return 0;
  uint64_t captured = 0;
  try {
    const ContextScope scope(context_);
    for (uint32_t i = 1; i < kDeviceSlots; ++i) {
      if ((asked >> i & 1) != 0 && BeingCaptured(streams[i])) captured |= uint64_t{1} << i;
    }
  } catch (const Error& error) {
    Break(error);
  }
  return captured;
}

bool StreamTable::BeingCaptured(StreamHandle stream) const {
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
    leaves_.fill(false);
    if (!doing_.empty() && broken() == nullptr) {
      try {
        const ContextScope scope(context_);
        for (auto first = doing_.begin(); first != doing_.end();) {
          const auto end = BatchEnd(first);
          if (leaves_[first->slot] || !Do(*first)) {
            leaves_[first->slot] = true;
            left_.splice(left_.end(), doing_, first, end);
          }
          first = end;
        }
      } catch (const Error& error) {
        Break(error);
      } catch (const std::exception& error) {
        Break(Error(KVC_INTERNAL, error.what()));
      }
    }
    for (Noted& noted : doing_) noted.work = nullptr;
    left = static_cast<uint32_t>(left_.size());
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t i = 1; i < kDeviceSlots; ++i) slots_[i].withheld = leaves_[i];
    for (const Noted& noted : noted_list_) {  // what has come in the meantime
      if (noted.what == What::kWait && WithheldLocked(noted.fence)) {
        slots_[noted.slot].withheld = true;
      }
    }
    spare_.splice(spare_.end(), doing_);
    if (left != 0) {
      noted_list_.splice(noted_list_.begin(), left_);
      noted_.store(true, std::memory_order_release);
    }
  }
  Poll();
  return left;
}

// Copies that follow each other on one stream go to the driver as one batch, in
// batch_; the next note to be done is returned. Records between them are passed over
// where a later one covers them.
StreamTable::Notes::iterator StreamTable::BatchEnd(Notes::iterator first) {
  batch_.clear();
  auto end = std::next(first);
  if (first->what != What::kCopy) return end;
  batch_.push_back(first->copy);
  size_t whole = 1;
  bool recorded = false;
  for (auto at = end; at != doing_.end() && at->slot == first->slot; ++at) {
    if (at->what == What::kCopy) {
      batch_.push_back(at->copy);
      if (recorded) continue;
      end = std::next(at);
    } else if (at->what == What::kRecord) {
      recorded = true;
      end = at;
    } else {
      break;
    }
    whole = batch_.size();
  }
  batch_.resize(whole);
  return end;
}

// Under a ContextScope, with submit_mutex_.
void StreamTable::MakeStream(uint32_t index) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!slots_[index].unmade) return;
  }
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_.api(), stream_create, &stream, kStreamNonBlocking);
  std::lock_guard<std::mutex> lock(mutex_);
  slots_[index].stream = stream;
  slots_[index].unmade = false;
}

// False when it cannot be done yet. Of copies: all of batch_.
bool StreamTable::Do(const Noted& noted) {
  const DriverApi& api = context_.api();
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  bool reached = true;
  MakeStream(noted.slot);
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
  if (BeingCaptured(stream)) return false;
  switch (noted.what) {
    case What::kWork:
      noted.work(stream);
      break;
    case What::kCopy:
      try {
        copier_(stream, batch_);
      } catch (const Error& error) {
        // A capture has begun since we asked, and nothing has been queued.
        if (error.status() == KVC_BAD_STATE) return false;
        throw;
      }
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
      slots_[noted.slot].handed = noted.position;
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
