// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/stream_table.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

namespace kvcast::cuda {

StreamTable::OwnNote& StreamTable::Own() {
  thread_local OwnNote own;
  return own;
}

// What this thread has noted here: of another table it matters no more.
StreamTable::OwnNote& StreamTable::OwnHere() {
  OwnNote& own = Own();
  if (own.table != this) {
    own = OwnNote();
    own.table = this;
  }
  return own;
}

// An error that the driver itself cannot explain is not believed to pass, after all the tries.
bool StreamTable::Passing(const Error& error) {
  const Result code = error.system_code();
  return code != kSuccess && code != kErrorUnknown && !Lasting(code);
}

StreamTable::StreamTable(const DeviceContext& context, EventPool& events)
    : context_(context), events_(events) {
  slots_[0].open = true;  // the host: nothing is ever outstanding on it
}

StreamTable::~StreamTable() {
  if (ForkedSinceOpen()) return;
  Drain();
  try {
    const ContextScope scope(context_);
    for (Slot& slot : slots_) {
      if (slot.stream != nullptr && slot.ours) context_.api().stream_destroy(slot.stream);
    }
  } catch (const std::exception&) {
    // The context is gone, and with it its streams.
  }
}

void StreamTable::Drain() noexcept {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    for (Slot& slot : slots_) {
      if (slot.stream != nullptr && slot.ours) WaitForStream(context_.api(), slot.stream);
    }
    WaitForCallers();
  } catch (const std::exception&) {
    // The context is gone, and nothing runs in it.
  }
  for (Slot& slot : slots_) {
    for (const Pending& pending : slot.pending) events_.Give(pending.event);
    slot.pending.clear();
    slot.handed = slot.submitted;
  }
}

// Under a ContextScope. A fence that the driver has not recorded stands for work that may run
// all the same, on a stream that may be none any more, or whose handle is another's now: only
// the context as a whole can be asked to have done with it.
void StreamTable::WaitForCallers() noexcept {
  std::array<bool, kDeviceSlots> unknown{};
  bool any = false;
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    const Slot& slot = slots_[i];
    if (slot.ours || slot.steps) continue;
    unknown[i] = slot.handed < slot.submitted;
    for (const Pending& pending : slot.pending) {
      if (context_.api().event_synchronize(pending.event) != kSuccess) unknown[i] = true;
    }
    any = any || unknown[i];
  }
  if (!any || context_.api().context_synchronize() == kSuccess) return;
  // It is refused while another stream is being captured, for one.
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    if (unknown[i]) context_.api().stream_synchronize(slots_[i].stream);
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
  if (callers == kStreamLegacy || callers == kStreamPerThread) {
    throw Error(KVC_INVALID_ARGUMENT,
                "CU_STREAM_LEGACY and CU_STREAM_PER_THREAD stand for streams that depend on the "
                "calling thread: pass a stream that has been created, or null for the legacy NULL "
                "stream");
  }
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
    if (slot.open || slot.doomed || slot.notes != 0) continue;
    if (slot.reached.load(std::memory_order_relaxed) < slot.submitted) continue;
    slot.stream = stream;
    slot.ours = ours;
    slot.steps = steps;
    slot.open = true;
    slot.own = slot.record_last = slot.withheld = false;
    slot.blocked = Outcome::kDone;
    slot.handed = slot.submitted;
    return i;
  }
  return 0;
}

void StreamTable::Close(uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  slot.open = false;
  if (slot.steps || slot.doomed) return;  // steps have no stream to destroy
  slot.doomed = true;
  doomed_.fetch_add(1, std::memory_order_release);
  if (!slot.ours) OwnHere().closed |= uint64_t{1} << index;
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

// A stream is destroyed when its last fence has been reached, no note names it and nobody
// asks about it, so that what was noted for it, and is perhaps being done now, finds it.
bool StreamTable::GoesLocked(const Slot& slot) {
  return slot.doomed && slot.notes == 0 && slot.asked == 0 &&
         slot.reached.load(std::memory_order_relaxed) >= slot.submitted;
}

// Under a ContextScope.
void StreamTable::DestroyDoomed() noexcept {
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    StreamHandle gone = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Slot& slot = slots_[i];
      if (!GoesLocked(slot)) continue;
      if (slot.ours) gone = slot.stream;
      slot.stream = nullptr;
      slot.ours = slot.doomed = false;
      doomed_.fetch_sub(1, std::memory_order_release);
    }
    if (gone != nullptr) context_.api().stream_destroy(gone);
  }
}

// A closed slot is not asked about anew, so whoever waits here waits for questions of before.
void StreamTable::FreeClosed() noexcept {
  OwnNote& own = Own();
  const uint64_t closed = own.table == this ? own.closed : 0;
  if (closed != 0) own.closed = 0;
  if (doomed_.load(std::memory_order_acquire) == 0) return;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint32_t i = 1; closed != 0 && i < kDeviceSlots; ++i) {
      if ((closed >> i & 1) == 0) continue;
      answered_.wait(lock, [&] { return !slots_[i].doomed || slots_[i].asked == 0; });
    }
    if (std::none_of(slots_.begin(), slots_.end(), GoesLocked)) return;
  }
  if (broken() != nullptr) return;  // the destructor does what can be done then
  try {
    const ContextScope scope(context_);
    DestroyDoomed();
  } catch (const Error& error) {
    if (!Passing(error)) Break(error, LostTask::kQuestion);  // else a later call tries again
  } catch (const std::bad_alloc&) {
    // What the driver has said could not be told: a later call tries again.
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

// A call records once for each stream it works on, unless it notes something else between.
// Twice as much, as others may take of it meanwhile.
void StreamTable::ReserveRecords() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (spare_.size() < 2 * kDeviceSlots) spare_.emplace_back();
}

// With the mutex. Takes memory only when no spare note is left.
StreamTable::Noted& StreamTable::AppendLocked(uint32_t slot, What what) {
  if (spare_.empty()) spare_.emplace_back();
  noted_list_.splice(noted_list_.end(), spare_, spare_.begin());
  Noted& noted = noted_list_.back();
  noted.what = what;
  noted.slot = slot;
  slots_[slot].record_last = false;
  ++slots_[slot].notes;
  const uint64_t number = ++noted_last_;
  OwnNote& own = OwnHere();
  if (own.number == 0) own.call = number;
  own.number = number;
  noted.call = own.call;
  if (what != What::kRecord) own.promised = own.call;
  noted_.store(true, std::memory_order_release);
  return noted;
}

uint32_t StreamTable::OpenOwn() {
  const uint32_t slot = Take(nullptr, true);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot != 0) slots_[slot].own = slots_[slot].unmade = true;
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
                "a CUDA stream cannot wait for a step of the host, for what waits for one, nor "
                "for a fence that the driver has not recorded: retry when that is over");
  }
  if (slots_[index].blocked == Outcome::kNotYet) {
    throw Error(KVC_BAD_STATE, "the CUDA stream is being captured into a graph");
  }
  if (slots_[index].blocked == Outcome::kRefused) {
    throw Error(KVC_NOT_NOW, "the driver has refused earlier work of the CUDA stream: retry");
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

void StreamTable::Note(uint32_t index, Work work) {
  std::lock_guard<std::mutex> lock(mutex_);
  AppendLocked(index, What::kWork).work = std::move(work);
}

StreamHandle StreamTable::handle(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_[slot].stream;
}

const DeviceLoss* StreamTable::broken() const {
  return broken_.load(std::memory_order_acquire) ? &loss_ : nullptr;
}

uint64_t StreamTable::Capturing(uint64_t among) noexcept {
  if (broken() != nullptr) return 0;
  uint64_t asked = 0;
  std::array<StreamHandle, kDeviceSlots> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t i = 1; i < kDeviceSlots; ++i) {
      Slot& slot = slots_[i];
      if ((among >> i & 1) == 0 || !slot.open || slot.steps || slot.unmade) continue;
      asked |= uint64_t{1} << i;
      streams[i] = slot.stream;
      ++slot.asked;
    }
  }
  if (asked == 0) return 0;
  uint64_t captured = 0;
  try {
    const ContextScope scope(context_);
    for (uint32_t i = 1; i < kDeviceSlots; ++i) {
      if ((asked >> i & 1) == 0) continue;
      try {
        if (BeingCaptured(streams[i])) captured |= uint64_t{1} << i;
      } catch (const Error& error) {
        // One that cannot be asked is asked again before anything is queued there.
        if (!Passing(error)) throw;
      }
    }
  } catch (const Error& error) {
    if (!Passing(error)) Break(error, LostTask::kQuestion);
  } catch (const std::bad_alloc&) {
    // What the driver has said could not be told: it is asked again before anything is queued.
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    if ((asked >> i & 1) == 0) continue;
    if (--slots_[i].asked == 0 && slots_[i].doomed) answered_.notify_all();
  }
  return captured;
}

bool StreamTable::BeingCaptured(StreamHandle stream) const {
  int status = kCaptureNone;
  const Result result = Tried([&] { return context_.api().stream_capturing(stream, &status); });
  // The NULL stream cannot be asked while another stream, which it would join, is.
  if (result == kErrorStreamCaptureImplicit) return true;
  Check(context_.api(), "stream_capturing", result);
  return status != kCaptureNone;
}

}  // namespace kvcast::cuda
