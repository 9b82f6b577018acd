// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/host_device.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "native/src/mixed_hash.h"
#include "native/src/status.h"

namespace kvcast {

namespace host_device {
// What a freed page is filled with: a NaN in every float format, an index far
// out of range in every integer one.
constexpr uint64_t kPoison = 0xFFF7DBDBFFF7DBDBu;

size_t Checked(uint64_t page_bytes, uint32_t pages) {
  if (page_bytes % sizeof(uint64_t) != 0) {
    throw Error(KVC_INVALID_ARGUMENT, "page_bytes must be a multiple of 8");
  }
  if (page_bytes > std::numeric_limits<size_t>::max() / 2 / pages) {
    throw Error(KVC_INVALID_ARGUMENT,
                "capacity_blocks or max_blocks x page_bytes does not fit the address space");
  }
  return static_cast<size_t>(page_bytes);
}

}  // namespace host_device

HostDevice::HostDevice(uint32_t pages, uint32_t most, uint64_t page_bytes, uint64_t seed,
                       bool poison)
    : page_bytes_(page_bytes),
      most_(most != 0 ? most : pages),
      random_(seed),
      poison_(poison && page_bytes > 0),
      elastic_(size_t{most} * host_device::Checked(page_bytes, most_)),
      base_(elastic_.data()),
      backed_(pages),
      wanted_(pages),
      backing_{0, pages, true, false} {
  if (most == 0) {
    memory_ = Slab(size_t{pages} * page_bytes, "the pages (capacity_blocks x page_bytes)");
    base_ = memory_.data();
  } else {
    elastic_.Resize(size_t{pages} * page_bytes);
  }
  mapped_bytes_ = memory_.size() + elastic_.size();
  streams_[0].open = true;
  if (poison_) {
    for (PageId page = 0; page < pages; ++page) Fill(page, host_device::kPoison);
  }
}

void HostDevice::AskForPages(uint64_t request, uint32_t pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  request_ = request;
  wanted_ = pages;
  if (page_bytes_ != 0) return;
  const bool fails = pages > backed_ && pages > growth_ends_at_;
  if (fails) pages = std::max(backed_, growth_ends_at_);
  {
    std::lock_guard<std::mutex> memory(memory_mutex_);
    backed_ = pages;
  }
  backing_ = {request, pages, true, fails};
}

Backing HostDevice::backing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return backing_;
}

uint64_t HostDevice::lost_operations() const {
  std::lock_guard<std::mutex> lock(memory_mutex_);
  return lost_;
}

// Under advance_mutex_: one at a time, and no operation is being executed.
void HostDevice::Remap() {
  uint64_t request = 0;
  uint32_t wanted = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (backing_.request == request_) return;
    request = request_;
    wanted = wanted_;
  }
  bool failed = false;
  uint32_t before = 0;
  uint32_t pages = wanted;
  {
    std::lock_guard<std::mutex> memory(memory_mutex_);
    before = backed_;
    if (wanted > backed_ && wanted > growth_ends_at_) {
      pages = std::max(backed_, growth_ends_at_);
      failed = true;
    }
    try {
      elastic_.Resize(size_t{pages} * page_bytes_);
    } catch (const Error&) {
      pages = backed_;
      failed = true;
    }
    backed_ = pages;
    mapped_bytes_ = elastic_.size();
  }
  if (poison_) {
    for (PageId page = before; page < pages; ++page) Fill(page, host_device::kPoison);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  backing_ = {request, pages, true, failed};
}

uint32_t HostDevice::OpenLocked(bool steps) {
  for (uint32_t slot = 1; slot < kDeviceSlots; ++slot) {
    Stream& stream = streams_[slot];
    if (!stream.open && stream.queue.empty()) {
      stream.open = true;
      stream.steps = steps;
      return slot;
    }
  }
  return 0;
}

uint32_t HostDevice::OpenStream() {
  std::lock_guard<std::mutex> lock(mutex_);
  return OpenLocked(false);
}

uint32_t HostDevice::OpenStepStream() {
  std::lock_guard<std::mutex> lock(mutex_);
  return OpenLocked(true);
}

bool HostDevice::IsStepStream(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return streams_[slot].steps;
}

void HostDevice::BeginStep(uint32_t slot, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_[slot].submitted = std::max(streams_[slot].submitted, step);
}

void HostDevice::EndStep(uint32_t slot, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_[slot].executed = std::max(streams_[slot].executed, step);
  PassWaitsLocked();
}

void HostDevice::CloseStream(uint32_t slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_[slot].open = false;
}

uint64_t HostDevice::Record(uint32_t slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Stream& stream = streams_[slot];
  return stream.executed == stream.submitted ? 0 : stream.submitted;
}

bool HostDevice::Reached(uint32_t slot, uint64_t position) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return streams_[slot].executed >= position;
}

uint64_t HostDevice::Submitted(uint32_t slot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return streams_[slot].submitted;
}

uint32_t HostDevice::BusyStreams() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint32_t busy = 0;
  for (const Stream& stream : streams_) busy += stream.executed != stream.submitted ? 1 : 0;
  return busy;
}

uint64_t HostDevice::Progress() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t executed = 0;
  for (const Stream& stream : streams_) executed += stream.executed;
  return executed;
}

void HostDevice::Wait(uint32_t slot, Fence fence) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& stream = streams_[slot];
  Op& op = PushLocked(&stream);
  op.what = What::kWait;
  op.fence = fence;
  PassWaitsLocked();
}

HostDevice::Op& HostDevice::PushLocked(Stream* stream) {
  if (spare_.empty()) spare_.emplace_back();
  stream->queue.splice(stream->queue.end(), spare_, spare_.begin());
  stream->queue.back() = {};
  ++stream->submitted;
  return stream->queue.back();
}

void HostDevice::PopLocked(Stream* stream) {
  spare_.splice(spare_.end(), stream->queue, stream->queue.begin());
  ++stream->executed;
}

uint32_t HostDevice::CopySlot(uint32_t slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot != 0 && !streams_[slot].steps) return slot;
  if (copy_slot_ == 0) copy_slot_ = OpenLocked(false);
  return copy_slot_;
}

void HostDevice::ReserveCopies(uint32_t count) {
  if (fail_reservation_ != 0 && --fail_reservation_ == 0) {
    throw Error(KVC_DEVICE_ERROR, "a copy was made to fail");
  }
  // Each may wait for every other stream.
  std::lock_guard<std::mutex> lock(mutex_);
  while (spare_.size() < size_t{count} * kDeviceSlots) spare_.emplace_back();
}

uint64_t HostDevice::Copy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& stream = streams_[slot];
  after.ForEach([&](const Fence& fence) {
    if (fence.slot == slot || streams_[fence.slot].executed >= fence.position) return;
    Op& wait = PushLocked(&stream);
    wait.what = What::kWait;
    wait.fence = fence;
  });
  Op& op = PushLocked(&stream);
  op.what = What::kCopy;
  op.copy = copy;
  PassWaitsLocked();
  if (copy.tokens == 0 || parts_.empty()) return page_bytes_;
  uint64_t bytes = 0;
  for (const PagePart& part : parts_[copy.tokens - 1]) bytes += part.bytes;
  return bytes;
}

void HostDevice::EnterPool(PageId page) {
  if (poison_) Fill(page, host_device::kPoison);
}

bool HostDevice::Intact(PageId page) {
  if (!poison_) return true;
  bool intact = true;
  {
    std::lock_guard<std::mutex> lock(memory_mutex_);
    const std::byte* bytes = base_ + size_t{page} * page_bytes_;
    for (uint64_t i = 0; i < page_bytes_; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, sizeof word);
      intact = intact && word == host_device::kPoison;
    }
  }
  // Said once: the next user of the page starts from a clean one.
  if (!intact) Fill(page, host_device::kPoison);
  return intact;
}

void HostDevice::EnqueueFill(uint32_t slot, PageId page, uint64_t value) {
  if (slot == 0) {  // the host's own work does not wait
    Fill(page, value);
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Op& op = PushLocked(&streams_[slot]);
  op.page = page;
  op.value = value;
}

uint64_t HostDevice::OpenTable(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                               uint64_t* address) {
  return tables_.Open(rows, columns, absent, staging, address);
}

void HostDevice::CloseTable(uint64_t table) { tables_.Close(table); }

template <typename Stage>
void HostDevice::Upload(uint32_t slot, uint64_t table, Stage&& stage) {
  if (slot == 0) {
    tables_.Execute(table, stage());
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (spare_.empty()) spare_.emplace_back();  // what is staged must find its place
  const uint64_t upload = stage();
  Op& op = PushLocked(&streams_[slot]);
  op.what = What::kUpload;
  op.table = table;
  op.upload = upload;
}

void HostDevice::UpdateTable(const SlotNow& slot, uint64_t table, uint32_t count,
                             const kvc_table_delta* deltas) {
  Upload(slot(), table, [&] { return tables_.Stage(table, count, deltas); });
}

void HostDevice::WriteTable(const SlotNow& slot, uint64_t table, const TableRows& rows) {
  Upload(slot(), table, [&] { return tables_.Stage(table, rows); });
}

void HostDevice::EnqueueCall(uint32_t slot, PageId page, Call call, void* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  Op& op = PushLocked(&streams_[slot]);
  op.what = What::kCall;
  op.page = page;
  op.call = call;
  op.context = context;
}

uint64_t HostDevice::Advance(uint32_t slot, uint64_t max_ops) {
  std::lock_guard<std::mutex> turn(advance_mutex_);
  if (slot == 0) Remap();
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t ran = 0;
  PassWaitsLocked();
  while (ran < max_ops) {
    const uint32_t next = NextLocked(slot);
    if (next == 0) break;
    Stream& stream = streams_[next];
    const Op op = stream.queue.front();
    if (op.what != What::kWait) {
      // Only advances take from a queue's head, and this is the only one.
      lock.unlock();
      Execute(op);
      lock.lock();
    }
    PopLocked(&stream);
    ++ran;
    PassWaitsLocked();
  }
  return ran;
}

void HostDevice::Execute(const Op& op) {
  switch (op.what) {
    case What::kWait:
      break;
    case What::kUpload:
      tables_.Execute(op.table, op.upload);
      break;
    case What::kCall: {
      std::lock_guard<std::mutex> memory(memory_mutex_);
      if (!HasMemory(op.page)) break;
      op.call(op.context, base_ + size_t{op.page} * page_bytes_);
      break;
    }
    case What::kCopy:
      CopyNow(op.copy);
      break;
    case What::kFill:
      Fill(op.page, op.value);
      break;
  }
}

uint32_t HostDevice::NextLocked(uint32_t slot) {
  if (slot != 0) {
    // Down the chain of what the stream waits for. It ends: a wait names only
    // work that had been submitted before it.
    while (!streams_[slot].queue.empty() && !RunnableLocked(streams_[slot])) {
      slot = streams_[slot].queue.front().fence.slot;
    }
    return streams_[slot].queue.empty() ? 0 : slot;
  }
  uint32_t runnable = 0;
  for (uint32_t s = 1; s < kDeviceSlots; ++s) runnable += RunnableLocked(streams_[s]) ? 1 : 0;
  if (runnable == 0) return 0;
  random_ = MixedHash::SplitMix64(random_);
  auto pick = static_cast<uint32_t>(random_ % runnable);
  uint32_t next = 1;
  while (!RunnableLocked(streams_[next]) || pick-- != 0) ++next;
  return next;
}

bool HostDevice::Read(PageId page, uint64_t offset, uint64_t size, uint8_t* out) const {
  std::lock_guard<std::mutex> lock(memory_mutex_);
  if (page_bytes_ == 0 || page >= backed_) return false;
  if (offset > page_bytes_ || size > page_bytes_ - offset) return false;
  if (size == 0) return true;
  std::memcpy(out, base_ + size_t{page} * page_bytes_ + offset, size);
  return true;
}

bool HostDevice::RunnableLocked(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Op& op = stream.queue.front();
  return op.what != What::kWait || streams_[op.fence.slot].executed >= op.fence.position;
}

// A wait takes no time of its own: as soon as it can pass, it has passed.
void HostDevice::PassWaitsLocked() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream& stream : streams_) {
      while (!stream.queue.empty() && stream.queue.front().what == What::kWait &&
             RunnableLocked(stream)) {
        PopLocked(&stream);
        moved = true;
      }
    }
  }
}

void HostDevice::Fill(PageId page, uint64_t value) {
  std::lock_guard<std::mutex> lock(memory_mutex_);
  if (!HasMemory(page)) return;
  std::byte* bytes = base_ + size_t{page} * page_bytes_;
  for (uint64_t i = 0; i < page_bytes_; i += sizeof value) {
    std::memcpy(bytes + i, &value, sizeof value);
  }
}

void HostDevice::CopyNow(const PageCopy& copy) {
  std::lock_guard<std::mutex> lock(memory_mutex_);
  if (!HasMemory(copy.from) || !HasMemory(copy.to)) return;
  const std::byte* from = base_ + size_t{copy.from} * page_bytes_;
  std::byte* to = base_ + size_t{copy.to} * page_bytes_;
  if (copy.tokens == 0 || parts_.empty()) {
    std::memcpy(to, from, page_bytes_);
    return;
  }
  for (const PagePart& part : parts_[copy.tokens - 1]) {
    std::memcpy(to + part.offset, from + part.offset, part.bytes);
  }
}

}  // namespace kvcast
