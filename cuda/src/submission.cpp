// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What has been noted in a stream table is handed to the driver, and its fences are asked for.
#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>

#include "cuda/src/stream_table.h"

namespace kvcast::cuda {

// The first time counts.
void StreamTable::Break(const std::exception& cause, LostTask task) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (broken() != nullptr) return;
  loss_.Set(cause, task);
  broken_.store(true, std::memory_order_release);
}

// A caller launches behind what it has noted as soon as its call returns, so it waits for
// whoever has taken its notes along. One that has noted nothing waits for nobody.
uint32_t StreamTable::Submit() noexcept {
  uint32_t left = 0;
  OwnNote& own = Own();
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

// Whoever has noted nothing, and everybody while the table is whole, looks at nothing else.
void StreamTable::RequireKept() const {
  const OwnNote& own = Own();
  if (own.table != this || own.handed == 0 || broken() == nullptr) return;
  const auto mine = [&](const Noted& noted) {
    return noted.call == own.handed && IsPromise(noted);
  };
  std::lock_guard<std::mutex> turn(submit_mutex_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::any_of(lost_.begin(), lost_.end(), mine) ||
      std::any_of(noted_list_.begin(), noted_list_.end(), mine)) {
    throw DeviceLoss(*broken());
  }
}

// With submit_mutex_. What has not been done of doing_, and never will be, is kept for those who
// ask whether theirs was.
void StreamTable::LoseRest() noexcept {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    while (at_ != doing_.end()) {
      const auto next = std::next(at_);
      if (IsPromise(*at_)) {
        --slots_[at_->slot].notes;
        lost_.splice(lost_.end(), doing_, at_);
      }
      at_ = next;
    }
  }
  for (Noted& noted : lost_) noted.work = nullptr;
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
  at_ = doing_.begin();
  if (!doing_.empty() && broken() == nullptr) {
    try {
      DoAll();
      at_ = doing_.end();  // whoever breaks the table from now on, these are done or left
    } catch (const std::exception& cause) {
      const bool promised = std::any_of(at_, doing_.end(), IsPromise);
      Break(cause, promised ? LostTask::kWork : LostTask::kFence);
    }
  }
  if (at_ != doing_.end()) LoseRest();
  for (Noted& noted : doing_) {
    noted.work = nullptr;
    noted.owed = false;
  }
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
    const bool stays =
        Passing(error) && std::all_of(doing_.begin(), doing_.end(), [](const Noted& n) {
          return n.what == What::kRecord || n.owed;
        });
    if (!stays) throw;
    for (const Noted& noted : doing_) leaves_[noted.slot] = true;
    left_.splice(left_.end(), doing_);
    return;
  }
  for (auto first = doing_.begin(); first != doing_.end();) {
    at_ = first;
    const auto end = BatchEnd(first);
    const uint32_t slot = first->slot;
    Outcome outcome = blocked_[slot];
    if (outcome == Outcome::kDone) {
      try {
        outcome = Do(*first);
      } catch (const Error& error) {
        if (!MayStay(*first, error)) throw;
        outcome = Outcome::kRefused;
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
      const bool passed = first->what == What::kRecord || first->owed;
      if (!passed || outcome == Outcome::kNotYet) blocked_[slot] = outcome;
      left_.splice(left_.end(), doing_, first, end);
    }
    first = end;
  }
}

// Whether what the driver has refused can be handed over later as well: nobody has
// launched anything in the belief that it is there.
bool StreamTable::MayStay(const Noted& noted, const Error& error) const {
  if (!Passing(error)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot& slot = slots_[noted.slot];
  if (noted.what == What::kRecord || noted.owed) return true;
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
StreamTable::Outcome StreamTable::Do(Noted& noted) {
  StreamHandle stream = nullptr;
  try {
    MakeStream(noted.slot);
  } catch (const Error& error) {
    if (!Passing(error)) throw;
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
    case What::kWait:
      try {
        if (noted.what == What::kWait) return DoWait(stream, noted);
        noted.owed = !noted.work(stream);
        return noted.owed ? Outcome::kRefused : Outcome::kDone;
      } catch (const Error& error) {
        // A capture has begun since we asked.
        if (OfACapture(error.system_code())) return Outcome::kNotYet;
        throw;
      }
    case What::kCopy:
      try {
        copier_(stream, batch_);
      } catch (const Error& error) {
        // The same, of a batch that may be made as a whole later. Otherwise a part of it may have
        // been queued that is not to be done twice: what the driver says of a capture is not
        // enough.
        if (error.status() == KVC_BAD_STATE) return Outcome::kNotYet;
        throw;
      }
      return Outcome::kDone;
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
    if (!Passing(error)) throw;
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
    if (!Passing(error)) Break(error, LostTask::kQuestion);  // else the next Poll asks again
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
      if (!Passing(error)) throw;
      if (!passing) passing.emplace(error);
    }
  }
  if (passing) throw Error(*passing);
}

void StreamTable::PollSlot(uint32_t index) {
  Slot& slot = slots_[index];
  // Only who submits changes these, which is us: to read them takes no lock.
  while (!slot.pending.empty()) {
    const Pending head = slot.pending.front();
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
