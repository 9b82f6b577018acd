// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/stream_table.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

namespace kvcast::cuda {

namespace stream_table {

// Whether what has failed may well succeed another time. An error that the driver itself
// cannot explain is not believed to, after all the tries.
bool Passing(const Error& error) {
  const Result code = error.system_code();
  return code != kSuccess && code != kErrorUnknown && !Lasting(code);
}

// What the calling thread has noted last: a call of the ABI notes and submits on one
// thread, one after the other.
struct OwnNote {
  const StreamTable* table = nullptr;
  uint64_t number = 0;
  uint64_t promised = 0;  // the newest that is no record
  uint64_t handed = 0;    // of those, what the last Submit was for
};
thread_local OwnNote own_note;

}  // namespace stream_table

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

// Under a ContextScope. A stream is destroyed when its last fence has been reached and no
// note names it, so that what was noted for it, and is perhaps being done now, finds it.
void StreamTable::DestroyDoomed() noexcept {
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    StreamHandle gone = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Slot& slot = slots_[i];
      if (!slot.doomed || slot.notes != 0) continue;
      if (slot.reached.load(std::memory_order_relaxed) < slot.submitted) continue;
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
  ++slots_[slot].notes;
  noted.number = ++noted_last_;
  stream_table::OwnNote& own = stream_table::own_note;
  if (own.table != this) own = {this, 0, 0, 0};
  own.number = noted.number;
  if (what != What::kRecord) own.promised = noted.number;
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

const Error* StreamTable::broken() const {
  return broken_.load(std::memory_order_acquire) ? error_.data() : nullptr;
}

void StreamTable::Break(const Error& error) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!error_.empty()) return;
  // Whatever it was, it is not over with the next call: a caller who is told that memory
  // is short would try again and again.
  std::string what = error.what();
  what += Lasting(error.system_code())
              ? ": the device or its context is lost; destroy the manager"
              : ": work that has been promised could not be handed over; destroy the manager";
  error_.emplace_back(KVC_DEVICE_ERROR, what, error.system_code());
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
      if ((asked >> i & 1) == 0) continue;
      try {
        if (BeingCaptured(streams[i])) captured |= uint64_t{1} << i;
      } catch (const Error& error) {
        // One that cannot be asked is asked again before anything is queued there.
        if (!stream_table::Passing(error)) throw;
      }
    }
  } catch (const Error& error) {
    if (!stream_table::Passing(error)) Break(error);
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

// A caller launches behind what it has noted as soon as its call returns, so it waits for
// whoever has taken its notes along. One that has noted nothing waits for nobody.
uint32_t StreamTable::Submit() noexcept {
  uint32_t left = 0;
  stream_table::OwnNote& own = stream_table::own_note;
  const bool mine = own.table == this && own.number > done_last_.load(std::memory_order_acquire);
  own.number = 0;
  own.handed = own.table == this ? own.promised : 0;
  own.promised = 0;
  std::unique_lock<std::mutex> turn(submit_mutex_, std::defer_lock);
  if (mine) {
    turn.lock();
  } else if (has_noted()) {
    (void)turn.try_lock();
  }
  if (turn.owns_lock()) {
    if (has_noted()) left = SubmitLocked();
    turn.unlock();
  }
  Poll();
  return left;
}

void StreamTable::RequireKept() const {
  const stream_table::OwnNote& own = stream_table::own_note;
  if (own.table != this || own.handed == 0) return;
  if (own.handed >= failed_from_.load(std::memory_order_acquire)) throw *broken();
}

// With submit_mutex_.
uint32_t StreamTable::SubmitLocked() noexcept {
  uint64_t last = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    doing_.swap(noted_list_);
    last = noted_last_;
    // What is noted from now on comes after what is being submitted.
    for (Slot& slot : slots_) slot.record_last = false;
    noted_.store(false, std::memory_order_release);
  }
  leaves_.fill(false);
  blocked_.fill(Outcome::kDone);
  gone_.fill(false);
  if (!doing_.empty()) at_ = doing_.front().number;
  if (!doing_.empty() && broken() == nullptr) {
    try {
      DoAll();
      at_ = UINT64_MAX;  // whoever breaks the table from now on, these are done or left
    } catch (const Error& error) {
      Break(error);
    } catch (const std::exception& error) {
      Break(Error(KVC_INTERNAL, error.what()));
    }
  }
  if (!doing_.empty() && broken() != nullptr) {
    failed_from_.store(std::min(failed_from_.load(std::memory_order_relaxed), at_),
                       std::memory_order_release);
  }
  for (Noted& noted : doing_) noted.work = nullptr;
  const auto left = static_cast<uint32_t>(left_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    slots_[i].withheld = leaves_[i];
    slots_[i].blocked = blocked_[i];
  }
  for (const Noted& noted : noted_list_) {  // what has come in the meantime
    if (noted.what == What::kWait && WithheldLocked(noted.fence)) {
      slots_[noted.slot].withheld = true;
    }
  }
  for (const Noted& noted : doing_) --slots_[noted.slot].notes;
  spare_.splice(spare_.end(), doing_);
  if (left != 0) {
    noted_list_.splice(noted_list_.begin(), left_);
    noted_.store(true, std::memory_order_release);
  }
  done_last_.store(last, std::memory_order_release);
  return left;
}

// With submit_mutex_: what is noted in doing_, of which some comes to be in left_.
void StreamTable::DoAll() {
  std::optional<ContextScope> scope;
  try {
    scope.emplace(context_);
  } catch (const Error& error) {
    const bool stays = stream_table::Passing(error) &&
                       std::all_of(doing_.begin(), doing_.end(),
                                   [](const Noted& n) { return n.what == What::kRecord; });
    if (!stays) throw;
    for (const Noted& noted : doing_) leaves_[noted.slot] = true;
    left_.splice(left_.end(), doing_);
    return;
  }
  for (auto first = doing_.begin(); first != doing_.end();) {
    at_ = first->number;
    const auto end = BatchEnd(first);
    const uint32_t slot = first->slot;
    Outcome outcome = blocked_[slot];
    bool threw = false;
    if (outcome == Outcome::kDone) {
      try {
        outcome = Do(*first);
      } catch (const Error& error) {
        if (!MayStay(*first, error)) throw;
        outcome = Outcome::kRefused;
        threw = true;
      }
    }
    // Work for a stream that is none any more is forgotten, with what it holds.
    if (outcome != Outcome::kDone && first->what == What::kWork && gone_[slot]) {
      outcome = Outcome::kDone;
    }
    if (outcome != Outcome::kDone) {
      leaves_[slot] = true;
      // Other work need not stay behind a record that has been refused, nor behind work
      // that has been queued.
      const bool passed = first->what == What::kRecord || (first->what == What::kWork && !threw);
      if (!passed || outcome == Outcome::kNotYet) blocked_[slot] = outcome;
      left_.splice(left_.end(), doing_, first, end);
    }
    first = end;
  }
}

// Whether what the driver has refused can be handed over later as well: nobody has
// launched anything in the belief that it is there.
bool StreamTable::MayStay(const Noted& noted, const Error& error) const {
  if (!stream_table::Passing(error)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot& slot = slots_[noted.slot];
  if (noted.what == What::kRecord) return true;
  if (noted.what == What::kWait && slot.own) return true;
  return !slot.ours && error.system_code() == kErrorInvalidHandle;
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
  KVCAST_CUDA_TRIED(context_.api(), stream_create, &stream, kStreamNonBlocking);
  std::lock_guard<std::mutex> lock(mutex_);
  slots_[index].stream = stream;
  slots_[index].unmade = false;
}

// Of copies: all of batch_. Throws what the driver says in the end.
StreamTable::Outcome StreamTable::Do(const Noted& noted) {
  StreamHandle stream = nullptr;
  try {
    MakeStream(noted.slot);
  } catch (const Error& error) {
    if (!stream_table::Passing(error)) throw;
    return Outcome::kRefused;  // of the device's own
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stream = slots_[noted.slot].stream;
  }
  try {
    if (BeingCaptured(stream)) return Outcome::kNotYet;
  } catch (const Error& error) {
    if (error.system_code() == kErrorInvalidHandle && IsCallers(noted.slot) && !gone_[noted.slot]) {
      gone_[noted.slot] = true;
      if (lost_stream_) lost_stream_(stream);
    }
    throw;
  }
  switch (noted.what) {
    case What::kWork:
      return noted.work(stream) ? Outcome::kDone : Outcome::kRefused;
    case What::kCopy:
      try {
        copier_(stream, batch_);
      } catch (const Error& error) {
        // A capture has begun since we asked, and nothing has been queued.
        if (error.status() == KVC_BAD_STATE) return Outcome::kNotYet;
        throw;
      }
      return Outcome::kDone;
    case What::kWait:
      return DoWait(stream, noted);
    case What::kRecord:
      return DoRecord(stream, noted.slot, noted.position);
  }
  return Outcome::kDone;
}

StreamTable::Outcome StreamTable::DoWait(StreamHandle stream, const Noted& noted) {
  for (bool again : {false, true}) {
    EventHandle event = nullptr;
    StreamHandle others = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const Slot& other = slots_[noted.fence.slot];
      if (other.reached.load(std::memory_order_relaxed) >= noted.fence.position) break;
      others = other.stream;
      for (const Pending& pending : other.pending) {
        if (pending.position < noted.fence.position) continue;
        event = pending.event;
        break;
      }
    }
    const uint32_t whose = noted.fence.slot;
    if (event != nullptr && IsCaptured(event)) {
      // To wait for it would draw the stream into the capture.
      DropCaptured(whose, event, &left_);
      leaves_[whose] = true;
      if (BeingCaptured(others)) blocked_[whose] = Outcome::kNotYet;
      event = nullptr;
    }
    if (event != nullptr) {
      KVCAST_CUDA_TRIED(context_.api(), stream_wait_event, stream, event, 0);
      break;
    }
    // A fence without an event is one whose record was left: the host must do something
    // first, or the driver has refused it. Then it is tried now, as it is needed.
    if (blocked_[whose] == Outcome::kNotYet || (!leaves_[whose] && !again)) {
      return Outcome::kNotYet;
    }
    const bool tried = !again && blocked_[whose] == Outcome::kDone && Recorded(others, noted.fence);
    if (tried) continue;
    if (SlotIsOwn(noted.slot)) return Outcome::kRefused;
    throw Error(KVC_DEVICE_ERROR, "no fence could be recorded that a stream has to wait for");
  }
  return Outcome::kDone;
}

bool StreamTable::Recorded(StreamHandle stream, const Fence& fence) {
  try {
    return DoRecord(stream, fence.slot, fence.position) == Outcome::kDone;
  } catch (const Error& error) {
    if (!stream_table::Passing(error)) throw;
    return false;
  }
}

bool StreamTable::IsCallers(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !slots_[slot].ours;
}

bool StreamTable::SlotIsOwn(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_[slot].own;
}

StreamTable::Outcome StreamTable::DoRecord(StreamHandle stream, uint32_t index, uint64_t position) {
  Slot& slot = slots_[index];
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    slot.pending.push_back({position, nullptr});  // what can fail comes first
  } catch (const std::bad_alloc&) {
    return Outcome::kRefused;
  }
  EventHandle event = nullptr;
  try {
    event = events_.Take();
    KVCAST_CUDA_TRIED(context_.api(), event_record, event, stream);
  } catch (const std::exception& failed) {
    if (event != nullptr) events_.Give(event);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      slot.pending.pop_back();
    }
    if (dynamic_cast<const std::bad_alloc*>(&failed) == nullptr) throw;
    return Outcome::kRefused;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    slot.pending.back().event = event;
    slot.handed = std::max(slot.handed, position);
    outstanding_.fetch_add(1, std::memory_order_release);
  }
  if (recorded_) recorded_(stream);
  return Outcome::kDone;
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
    if (!stream_table::Passing(error)) Break(error);  // else the next Poll asks again
  } catch (const std::bad_alloc&) {
    // A fence that is to be recorded anew could not be noted: it is asked for again.
  }
}

// With submit_mutex_: nobody else takes from or adds to the pending events. A slot whose
// event cannot be asked does not keep the others: what passes is told when all have been.
void StreamTable::PollLocked() {
  std::optional<Error> passing;
  for (uint32_t i = 1; i < kDeviceSlots; ++i) {
    try {
      PollSlot(i);
    } catch (const Error& error) {
      if (!stream_table::Passing(error)) throw;
      if (!passing) passing.emplace(error);
    }
  }
  if (passing) throw Error(*passing);
}

void StreamTable::PollSlot(uint32_t index) {
  Slot& slot = slots_[index];
  for (;;) {
    Pending head{};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (slot.pending.empty()) return;
      head = slot.pending.front();
    }
    const Result result = Tried([&] { return context_.api().event_query(head.event); });
    if (result == kErrorNotReady) return;
    if (result == kErrorCapturedEvent) {
      DropCaptured(index, head.event, &noted_list_);
      continue;
    }
    Check(context_.api(), "event_query", result);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      slot.pending.pop_front();
      // A record that was left may have been made twice.
      const uint64_t reached = slot.reached.load(std::memory_order_relaxed);
      slot.reached.store(std::max(reached, head.position), std::memory_order_release);
    }
    events_.Give(head.event);
    outstanding_.fetch_sub(1, std::memory_order_release);
    progress_.fetch_add(1, std::memory_order_acq_rel);
  }
}

bool StreamTable::IsCaptured(EventHandle event) const {
  return Tried([&] { return context_.api().event_query(event); }) == kErrorCapturedEvent;
}

// With submit_mutex_. A later event covers the fence, or else it is noted anew at the front of
// `notes`, before whatever may wait for it. Throws when there is no memory for that; nothing
// has changed then.
void StreamTable::DropCaptured(uint32_t index, EventHandle event, Notes* notes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Slot& slot = slots_[index];
    const auto captured =
        std::find_if(slot.pending.begin(), slot.pending.end(),
                     [&](const Pending& pending) { return pending.event == event; });
    const uint64_t position = captured->position;
    uint64_t handed = slot.reached.load(std::memory_order_relaxed);
    for (const Pending& pending : slot.pending) {
      if (pending.event != event) handed = std::max(handed, pending.position);
    }
    if (handed < position) {
      Noted& noted = AppendLocked(index, What::kRecord);
      noted.position = position;
      noted.number = 0;  // older than all that waits
      notes->splice(notes->begin(), noted_list_, std::prev(noted_list_.end()));
      slot.withheld = true;
    }
    slot.handed = handed;
    slot.pending.erase(captured);
  }
  events_.Drop(event);
  outstanding_.fetch_sub(1, std::memory_order_release);
}

}  // namespace kvcast::cuda
