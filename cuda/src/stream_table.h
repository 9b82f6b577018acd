// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The streams of a device as the core sees them: slots, positions, fences. What
// the core asks for under its lock makes no call of the driver; it is noted, and
// Submit does it before the core's call returns.
#ifndef KVCAST_CUDA_SRC_STREAM_TABLE_H_
#define KVCAST_CUDA_SRC_STREAM_TABLE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/src/device_loss.h"
#include "cuda/src/event_pool.h"
#include "native/src/device.h"

namespace kvcast::cuda {

// A position of a slot is an event on its stream, recorded once for all that was
// noted in between: one event per batch. The event lives from its record until it
// has been reached.
//
// Locks, in this order: submit_mutex_ makes submitters take turns, and is held
// while the driver is called, which may wait when a stream's queue is full; mutex_
// guards the slots and what is noted, and is never held over a call of the driver.
// Whoever has noted nothing does not wait for submit_mutex_.
class StreamTable {
 public:
  StreamTable(const DeviceContext& context, EventPool& events);
  ~StreamTable();  // after Drain, unless nothing uses what would go before it
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  // ---- with the driver: not under the core's lock
  // A slot on a stream of our own, which does not wait for the NULL stream; 0 when
  // all are in use.
  [[nodiscard]] uint32_t Open();
  // A slot on the caller's stream, which must live until the slot is closed and its
  // fences are reached; null is the legacy NULL stream. KVC_INVALID_ARGUMENT for a
  // stream of another context and for the handles that stand for a thread's stream,
  // KVC_BAD_STATE for one that is being captured.
  [[nodiscard]] uint32_t Adopt(StreamHandle callers);
  // Does what has been noted, in the order noted, and polls. Throws nothing. Returns when
  // all that the calling thread has noted has been done or left, by whomever; and at once
  // when that is nothing and another thread is submitting. What is
  // for a stream that is being captured into a graph, or waits for such, is left for the
  // next Submit: its fences are reached only after the capture has ended. An event that
  // went into a graph all the same, as the capture began meanwhile, is dropped when it is
  // asked for, and its fence recorded anew by a later Submit. Left are also records
  // that the driver refuses: until one is taken the fence is outstanding, whatever has
  // run, and as a late record covers more, other work of the stream need not stay
  // behind. Work that the driver refuses time and again breaks the table (broken()), as
  // its caller launches behind it; unless it is for a caller's stream that is none any
  // more, where nobody does. Returns how much was left.
  uint32_t Submit() noexcept;
  // After a Submit, on its thread: throws the table's error if it has broken before all work
  // was on its stream that the thread had noted since the Submit before: copies, waits, uploads;
  // also what was only left. Records do not count, and nobody else's failure does.
  void RequireKept() const;
  // Asks the driver which of these slots' streams (a bit for each) are being captured
  // into a graph. Steps, and slots that are closed, are not. A stream that is closed
  // meanwhile is not destroyed before its answer has come.
  [[nodiscard]] uint64_t Capturing(uint64_t among) noexcept;
  // Destroys streams that have been closed and have nothing outstanding any more, so that
  // their slots are there for others. First it waits for questions about callers' streams
  // that the calling thread has closed, which are answered without waiting: their owner may
  // destroy them now. No driver call when there are none.
  void FreeClosed() noexcept;
  // Asks the driver which fences have been reached. No driver call when none is
  // outstanding.
  void Poll() noexcept;

  // Memory for the records of one call, which must not fail. Throws std::bad_alloc.
  void ReserveRecords();

  // For teardown: waits until what is queued on our streams has run, and on the caller's
  // what is to have a fence; where the driver has not recorded one, for all of the context.
  // What has only been noted is forgotten; nothing may be noted any more.
  void Drain() noexcept;

  // ---- without the driver
  // A slot whose work is steps that the host counts; 0 when all are in use.
  [[nodiscard]] uint32_t OpenSteps();
  [[nodiscard]] bool IsSteps(uint32_t slot) const;
  // What has begun, and what of it is done; both only grow.
  void BeginStep(uint32_t slot, uint64_t step);
  void EndStep(uint32_t slot, uint64_t step);
  // Queued work still runs; the slot is taken again only after it has and FreeClosed (or Open,
  // or Adopt) has found that.
  void Close(uint32_t slot);
  // The position of all work submitted to the slot so far. Unlike the host device
  // we cannot know that nothing is outstanding: others submit there too. Of steps: 0
  // when all that have begun are done.
  [[nodiscard]] uint64_t Record(uint32_t slot);
  [[nodiscard]] bool Reached(uint32_t slot, uint64_t position) const;
  [[nodiscard]] uint64_t Submitted(uint32_t slot) const;
  [[nodiscard]] uint32_t BusyStreams() const;
  // Grows whenever a fence has been reached.
  [[nodiscard]] uint64_t Progress() const { return progress_.load(std::memory_order_acquire); }
  // Throws KVC_NOT_NOW for a fence that is withheld, and KVC_BAD_STATE (captured) or
  // KVC_NOT_NOW (refused) on a stream that takes no work: what is launched there next
  // would not be behind the wait.
  void Wait(uint32_t slot, Fence fence);
  // Whether the fence stands for what only the host can bring about: a step that is not
  // done, or work that Submit leaves because of such, of a capture or of the driver.
  [[nodiscard]] bool Withheld(const Fence& fence) const;
  // Work that Submit does on the slot's stream, under a ContextScope; a copy, say.
  // Fences recorded later cover it. It throws when it could not be queued, and is called
  // again then by the next Submit if a capture was the reason; it returns false when it has
  // been, but is to be called again all the same. It is destroyed
  // when it is done, and uncalled when the table breaks or the caller's stream is none any
  // more: what it holds must come back then. The same if this throws.
  using Work = std::function<bool(StreamHandle)>;
  void Note(uint32_t slot, Work work);

  // What makes the copies of one batch: all on one stream, in the order given where
  // they depend on each other. Set before the first copy.
  using Copier = std::function<void(StreamHandle, const std::vector<PageCopy>&)>;
  void SetCopier(Copier copier) { copier_ = std::move(copier); }
  // Called when a record has been made on a stream: what was refused may be taken now.
  void SetRecorded(std::function<void(StreamHandle)> recorded) { recorded_ = std::move(recorded); }
  // Called when a caller's stream is none any more: nothing will be recorded there.
  void SetGone(std::function<void(StreamHandle)> gone) { lost_stream_ = std::move(gone); }
  // A slot for work of the device's own, on a stream that the first Submit with work
  // for it makes; 0 when all are in use.
  [[nodiscard]] uint32_t OpenOwn();
  // Room for `count` calls of NoteCopy, each with a Record after it. Throws, and
  // then nothing has changed.
  void ReserveCopies(uint32_t count);
  // Notes a copy behind the fences `after`. Those of steps keep back all that is
  // noted for the slot, until the host has ended them: so they are for slots of
  // the device's own.
  void NoteCopy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept;

  // The first error of the driver that is not over with the call that met it, or null:
  // then fences may never be reached, and the device is of no more use to us.
  [[nodiscard]] const DeviceLoss* broken() const;
  [[nodiscard]] StreamHandle handle(uint32_t slot) const;
  // Whether a Submit would call the driver.
  [[nodiscard]] bool has_noted() const { return noted_.load(std::memory_order_acquire); }

 private:
  // Of what has been noted: done, to be done when something else is over (a capture, a
  // step), or refused by the driver.
  enum class Outcome { kDone, kNotYet, kRefused };
  struct Pending {
    uint64_t position;
    EventHandle event;
  };
  struct Slot {
    StreamHandle stream = nullptr;
    bool open = false;
    bool ours = false;
    bool steps = false;
    bool own = false;                  // for work of the device's own, nobody else launches there
    bool unmade = false;               // its stream is to be made when it gets work
    bool doomed = false;               // closed: the stream is to be destroyed
    bool record_last = false;          // the newest note is a record, which serves later ones too
    bool withheld = false;             // not all that has been noted could be handed over
    Outcome blocked = Outcome::kDone;  // why no more work can be
    uint32_t notes = 0;                // that name it, being done or not: then it is kept
    uint32_t asked = 0;                // threads that ask the driver about it: the same
    uint64_t handed = 0;               // the newest record that has been
    uint64_t submitted = 0;
    std::atomic<uint64_t> reached{0};
    std::deque<Pending> pending;  // oldest first; guarded by mutex_
  };
  enum class What { kRecord, kWait, kWork, kCopy };
  struct Noted {
    What what = What::kRecord;
    uint32_t slot = 0;
    uint64_t position = 0;
    uint64_t call = 0;  // whose it is: as of OwnNote
    Fence fence;
    PageCopy copy;
    Work work;
    bool owed = false;  // work that has been queued, and is to be called again
  };

  // What a thread has noted last: a call of the ABI notes and submits on one thread, one
  // after the other.
  struct OwnNote {
    const StreamTable* table = nullptr;
    uint64_t number = 0;    // of all that have been noted
    uint64_t call = 0;      // the number of the first since the last Submit names them all
    uint64_t promised = 0;  // the same if there is more than records among them, else 0
    uint64_t handed = 0;    // what that was at the last Submit
    uint64_t closed = 0;    // callers' streams since the last FreeClosed, a bit for each slot
  };
  [[nodiscard]] static OwnNote& Own();
  [[nodiscard]] OwnNote& OwnHere();
  // Whether what has failed may well succeed another time.
  [[nodiscard]] static bool Passing(const Error& error);
  [[nodiscard]] uint32_t Take(StreamHandle stream, bool ours, bool steps = false);
  [[nodiscard]] bool BeingCaptured(StreamHandle stream) const;
  [[nodiscard]] bool WithheldLocked(const Fence& fence) const;
  using Notes = std::list<Noted>;
  Noted& AppendLocked(uint32_t slot, What what);
  void MakeStream(uint32_t slot);
  [[nodiscard]] Notes::iterator BatchEnd(Notes::iterator first);
  [[nodiscard]] uint32_t SubmitLocked() noexcept;
  void DoAll();
  [[nodiscard]] Outcome Do(Noted& noted);
  [[nodiscard]] Outcome DoWait(StreamHandle stream, const Noted& noted);
  [[nodiscard]] Outcome DoRecord(StreamHandle stream, uint32_t slot, uint64_t position);
  [[nodiscard]] bool Recorded(StreamHandle stream, const Fence& fence);
  [[nodiscard]] bool SlotIsOwn(uint32_t slot) const;
  [[nodiscard]] bool IsCallers(uint32_t slot) const;
  [[nodiscard]] bool MayStay(const Noted& noted, const Error& error) const;
  void Break(const std::exception& cause, LostTask task) noexcept;
  [[nodiscard]] static bool IsPromise(const Noted& noted) {
    return noted.what != What::kRecord && !noted.owed;
  }
  void LoseRest() noexcept;
  void PollLocked();
  void PollSlot(uint32_t index);
  void DropCaptured(uint32_t index, EventHandle event, Notes* notes);
  [[nodiscard]] bool IsCaptured(EventHandle event) const;
  [[nodiscard]] static bool GoesLocked(const Slot& slot);
  void DestroyDoomed() noexcept;
  void WaitForCallers() noexcept;

  const DeviceContext& context_;
  EventPool& events_;
  mutable std::mutex submit_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;  // with mutex_: nobody asks about a doomed stream now
  std::array<Slot, kDeviceSlots> slots_;
  Notes noted_list_;
  Notes spare_;  // notes that have been done, to be used again
  Notes doing_;  // submit_mutex_, as the next four
  Notes left_;
  Notes lost_;  // promises that the table has broken
  std::vector<PageCopy> batch_;
  Copier copier_;
  std::function<void(StreamHandle)> recorded_;
  std::function<void(StreamHandle)> lost_stream_;
  std::array<bool, kDeviceSlots> leaves_{};  // slots with something left
  std::array<Outcome, kDeviceSlots> blocked_{};
  Notes::iterator at_;                     // of doing_, that is being done: all before it are
  std::array<bool, kDeviceSlots> gone_{};  // streams of callers that are none any more
  uint64_t noted_last_ = 0;                // notes so far; mutex_
  std::atomic<uint64_t> done_last_{0};     // of those, up to here all are done or left
  std::atomic<bool> noted_{false};
  std::atomic<uint32_t> doomed_{0};       // slots
  std::atomic<uint64_t> outstanding_{0};  // events recorded and not reached
  std::atomic<uint64_t> progress_{0};
  std::atomic<bool> broken_{false};
  DeviceLoss loss_;  // written once, before broken_
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_STREAM_TABLE_H_
