// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the core asks of a device.
#ifndef KVCAST_NATIVE_SRC_DEVICE_H_
#define KVCAST_NATIVE_SRC_DEVICE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/fence_list.h"
#include "native/src/types.h"

namespace kvcast {

// Whole rows of a table, in the caller's memory.
struct TableRows {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t stride = 0;
  const int32_t* entries = nullptr;
};

// The pool's memory, as kernels address it.
struct DeviceMemory {
  uint64_t base = 0;
  uint64_t bytes = 0;
};

// One page of the pool into another: what its first `tokens` tokens take, if the
// device knows where that is (SetParts), else all of it.
struct PageCopy {
  PageId from = 0;
  PageId to = 0;
  uint32_t tokens = 0;
};

// A part of a page.
struct PagePart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// How far the memory behind the pool's pages has come.
struct Backing {
  uint64_t request = 0;  // of AskForPages
  uint32_t pages = 0;    // with memory, for that request
  bool done = false;     // no more comes of it
  bool failed = false;   // and not all of it did
};

// Called under the manager's lock, but for what says otherwise: implementations must
// not wait, and take no lock that is held while work runs on another thread for long.
class Device {
 public:
  virtual ~Device() = default;

  // Around each call of the ABI that uses the device (capi_call.h), without the manager's
  // lock. At its beginning a device may look which fences have been reached, at its end it
  // does what it was told under the lock: nothing, by the calls that only keep the books.
  // What it will need to record fences, which must not fail, it takes at the beginning:
  // std::bad_alloc, with nothing changed and no end.
  virtual void BeginCall() {}
  virtual void EndCall() noexcept {}
  // After EndCall, on its thread: throws Error when copies, waits or uploads that the call
  // has told it, and the caller relies on, could not be done.
  virtual void RequireKept() const {}
  // Throws Error when the device is of no more use.
  virtual void RequireUsable() const {}
  [[nodiscard]] virtual DeviceMemory memory() const = 0;

  // Elastic pools only. Asks for memory behind the first `pages` pages and none beyond, as
  // far as whole chunks allow: of those beyond nobody has been given one, and all fences of
  // theirs have been reached. The device sees to it later and elsewhere, a new request takes the
  // place of one that is not done. Addresses do not move. `request` grows.
  virtual void AskForPages(uint64_t request, uint32_t pages) = 0;
  // Of the request that the device has taken up last.
  [[nodiscard]] virtual Backing backing() const = 0;
  // Behind pages; what is kept in reserve is not.
  [[nodiscard]] virtual uint64_t mapped_bytes() const = 0;
  // Given up, but whoever the memory is from did not take it back when it was to.
  [[nodiscard]] virtual uint64_t unreturned_bytes() const { return 0; }

  // Takes a slot for a new stream, or returns 0 when all are in use. Without the
  // manager's lock: a driver makes it. Throws Error.
  virtual uint32_t OpenStream() = 0;
  // The same for a stream whose work is steps that the host counts.
  virtual uint32_t OpenStepStream() = 0;
  [[nodiscard]] virtual bool IsStepStream(uint32_t slot) const = 0;
  // Sets what has been submitted to a step stream, and what of it is done; both
  // only grow.
  virtual void BeginStep(uint32_t slot, uint64_t step) = 0;
  virtual void EndStep(uint32_t slot, uint64_t step) = 0;
  // Work that is queued still runs; the slot is taken again only after it has.
  virtual void CloseStream(uint32_t slot) = 0;

  // The position of all work submitted to the slot so far; 0 when nothing of
  // it is outstanding.
  [[nodiscard]] virtual uint64_t Record(uint32_t slot) = 0;
  [[nodiscard]] virtual bool Reached(uint32_t slot, uint64_t position) const = 0;
  // Everything submitted so far, reached or not: the largest legal position.
  [[nodiscard]] virtual uint64_t Submitted(uint32_t slot) const = 0;
  // Streams with fences outstanding.
  [[nodiscard]] virtual uint32_t BusyStreams() const = 0;
  // Grows whenever a fence may have been reached.
  [[nodiscard]] virtual uint64_t Progress() const = 0;
  // Later work of `slot` waits for `fence`.
  virtual void Wait(uint32_t slot, Fence fence) = 0;
  // Whether a stream cannot be made to wait for the fence now, because what it stands
  // for is not on the device yet.
  [[nodiscard]] virtual bool Withheld(const Fence&) const { return false; }
  // The slots of `among` (a bit for each) whose streams are being captured into a
  // graph: they take no work. Without the manager's lock, a driver is asked.
  [[nodiscard]] virtual uint64_t Capturing(uint64_t /*among*/) noexcept { return 0; }

  // Copies inside the pool. They are queued on the stream that the work they are for
  // is on; work of the host and of step streams has no queue, its copies go to a
  // stream of the device's own, which takes a slot at first need.
  // The slot where copies for `slot` are queued; 0 when all slots are in use.
  [[nodiscard]] virtual uint32_t CopySlot(uint32_t slot) = 0;
  // Makes room for `count` calls of Copy, and for a Record after each, which
  // then cannot fail. Throws Error with nothing changed. Room that is not used stays.
  virtual void ReserveCopies(uint32_t count) = 0;
  // Queues a copy on a slot that CopySlot named, behind the fences `after`; those of
  // steps may hold up a stream of the device's own only. Returns the bytes to be copied.
  virtual uint64_t Copy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept = 0;
  // Where the first t tokens of a page are: parts[t - 1], disjoint and inside the page.
  // Once, before the first copy. Throws Error.
  virtual void SetParts(std::vector<std::vector<PagePart>> parts) = 0;

  // Block tables in the device's memory: see kvc_device_table_*. All throw Error.
  // An upload is copied into the table's staging and executed in order with the
  // stream's other work.
  [[nodiscard]] virtual uint64_t OpenTable(uint32_t rows, uint32_t columns, int32_t absent,
                                           uint32_t staging, uint64_t* address) = 0;
  virtual void CloseTable(uint64_t table) = 0;
  // Not under the manager's lock: whoever has many entries to copy or to sort does so
  // before it asks for the slot, which takes the lock, shared, for the rest of the call.
  // It throws Error.
  using SlotNow = std::function<uint32_t()>;
  virtual void UpdateTable(const SlotNow& slot, uint64_t table, uint32_t count,
                           const kvc_table_delta* deltas) = 0;
  virtual void WriteTable(const SlotNow& slot, uint64_t table, const TableRows& rows) = 0;

  // A page went back to the pool, all its fences reached: it is poisoned.
  virtual void EnterPool(PageId page) = 0;
  // Before it leaves the pool: false if it was written in between (said once,
  // it is good again then). Always true without poisoning.
  [[nodiscard]] virtual bool Intact(PageId page) = 0;
  [[nodiscard]] virtual bool poisons() const = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_DEVICE_H_
