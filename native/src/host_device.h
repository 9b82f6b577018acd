// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The device of machines without a GPU, and of tests: memory of the process
// and streams whose work runs when the host says so.
#ifndef KVCAST_NATIVE_SRC_HOST_DEVICE_H_
#define KVCAST_NATIVE_SRC_HOST_DEVICE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "native/src/device.h"
#include "native/src/elastic_memory.h"
#include "native/src/host_tables.h"
#include "native/src/slab.h"

namespace kvcast {

// Work is queued by Enqueue and executed, late, by Advance: a page that is
// handed out before its last user has run becomes a test that fails.
//
// Locks, in this order, inside the manager's: advance_mutex_ makes advances
// take turns and is not taken by anything else; mutex_ guards the queues and is
// never held while work runs; memory_mutex_ guards the pages' bytes, so that a
// poisoning beside a fill waits for that one fill (without poisoning nobody does), as
// memory that comes and goes does; tables_ has one of its own.
class HostDevice final : public Device {
 public:
  // `most` is 0, or the pool is elastic and may grow to so many pages.
  HostDevice(uint32_t pages, uint32_t most, uint64_t page_bytes, uint64_t seed, bool poison);

  DeviceMemory memory() const override {
    return {reinterpret_cast<uintptr_t>(base_), page_bytes_ * most_};
  }
  // Done by advances of all streams, like work that is queued; without memory at once.
  void AskForPages(uint64_t request, uint32_t pages) override;
  Backing backing() const override;
  uint64_t mapped_bytes() const override { return mapped_bytes_; }
  uint32_t OpenStream() override;
  uint32_t OpenStepStream() override;
  bool IsStepStream(uint32_t slot) const override;
  void BeginStep(uint32_t slot, uint64_t step) override;
  void EndStep(uint32_t slot, uint64_t step) override;
  void CloseStream(uint32_t slot) override;
  uint64_t Record(uint32_t slot) override;
  bool Reached(uint32_t slot, uint64_t position) const override;
  uint64_t Submitted(uint32_t slot) const override;
  uint32_t BusyStreams() const override;
  uint64_t Progress() const override;
  void Wait(uint32_t slot, Fence fence) override;
  uint32_t CopySlot(uint32_t slot) override;
  void ReserveCopies(uint32_t count) override;
  uint64_t Copy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept override;
  void SetParts(std::vector<std::vector<PagePart>> parts) override { parts_ = std::move(parts); }
  uint64_t OpenTable(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                     uint64_t* address) override;
  void CloseTable(uint64_t table) override;
  void UpdateTable(const SlotNow& slot, uint64_t table, uint32_t count,
                   const kvc_table_delta* deltas) override;
  void WriteTable(const SlotNow& slot, uint64_t table, const TableRows& rows) override;
  void EnterPool(PageId page) override;
  bool Intact(PageId page) override;
  bool poisons() const override { return poison_; }

  void EnqueueFill(uint32_t slot, PageId page, uint64_t value);
  // A fake kernel of a test's own: call(context, the page's bytes), late, while
  // nobody else reads or writes pages. Not for slot 0.
  using Call = void (*)(void* context, std::byte* page);
  void EnqueueCall(uint32_t slot, PageId page, Call call, void* context);
  // A test's: the n-th reservation of copies from now on fails (0: none).
  void FailReservation(uint64_t n) { fail_reservation_ = n; }
  // A test's: growing ends when there is memory for so many pages.
  void FailGrowthAt(uint32_t pages) { growth_ends_at_ = pages; }
  // Work on pages whose memory was gone: somebody did not wait for a fence.
  [[nodiscard]] uint64_t lost_operations() const;
  // Runs up to max_ops operations of one stream and what they wait for, or of
  // all streams in an order drawn from the seed (slot 0). Returns how many ran.
  uint64_t Advance(uint32_t slot, uint64_t max_ops);
  // Copies out of a page; false when the range is outside it.
  bool Read(PageId page, uint64_t offset, uint64_t size, uint8_t* out) const;
  void ReadTable(uint64_t table, uint32_t row, uint32_t column, uint32_t count,
                 int32_t* out) const {
    tables_.Read(table, row, column, count, out);
  }
  [[nodiscard]] uint64_t page_bytes() const { return page_bytes_; }

 private:
  enum class What : uint8_t { kFill, kWait, kUpload, kCopy, kCall };
  struct Op {
    What what = What::kFill;
    PageId page = 0;
    uint64_t value = 0;
    Fence fence;
    PageCopy copy;
    uint64_t table = 0;
    uint64_t upload = 0;
    Call call = nullptr;
    void* context = nullptr;
  };
  struct Stream {
    std::list<Op> queue;
    uint64_t submitted = 0;
    uint64_t executed = 0;
    bool open = false;
    bool steps = false;
  };

  uint32_t OpenLocked(bool steps);
  [[nodiscard]] bool RunnableLocked(const Stream& stream) const;
  // The stream whose head may run next towards `slot` (0: drawn), or 0.
  [[nodiscard]] uint32_t NextLocked(uint32_t slot);
  void PassWaitsLocked();
  // At the end of a queue, and back from its head: from spare_ and to it.
  Op& PushLocked(Stream* stream);
  void PopLocked(Stream* stream);
  void Execute(const Op& op);
  void Remap();
  // Under memory_mutex_.
  [[nodiscard]] bool HasMemory(PageId page) {
    if (page < backed_) return true;
    ++lost_;
    return false;
  }
  void Fill(PageId page, uint64_t value);
  void CopyNow(const PageCopy& copy);
  template <typename Stage>
  void Upload(uint32_t slot, uint64_t table, Stage&& stage);

  std::mutex advance_mutex_;
  mutable std::mutex mutex_;
  mutable std::mutex memory_mutex_;
  std::array<Stream, kDeviceSlots> streams_;
  std::list<Op> spare_;  // operations that have been executed, to be used again
  uint32_t copy_slot_ = 0;
  uint64_t fail_reservation_ = 0;
  std::vector<std::vector<PagePart>> parts_;
  HostTables tables_;
  uint64_t page_bytes_;
  uint32_t most_;
  uint64_t random_;
  bool poison_;
  Slab memory_;            // of a pool that is not elastic
  ElasticMemory elastic_;  // else this
  std::byte* base_;        // of the one or the other
  uint32_t backed_;        // pages with memory; under memory_mutex_
  uint32_t wanted_;        // as it is to be; under mutex_, like what follows
  uint64_t request_ = 0;
  Backing backing_;
  uint32_t growth_ends_at_ = UINT32_MAX;
  uint64_t lost_ = 0;  // under memory_mutex_
  std::atomic<uint64_t> mapped_bytes_{0};
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_HOST_DEVICE_H_
