// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Block tables in a GPU's memory.
#ifndef KVCAST_CUDA_SRC_CUDA_TABLES_H_
#define KVCAST_CUDA_SRC_CUDA_TABLES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/src/page_copier.h"
#include "cuda/src/stream_table.h"
#include "native/src/device.h"

namespace kvcast::cuda {

// What the core asks of a device's tables (native/src/device.h). The staging of a
// table is a pinned ring of its own, which the kernel or the copy engine reads; an
// upload is copied there when it is asked for and queued by StreamTable::Submit.
class CudaTables {
 public:
  CudaTables(const DeviceContext& context, EventPool& events, const KernelImage& kernels,
             StreamTable& streams);
  // No work may use a table any more, but for what is lost.
  ~CudaTables();
  CudaTables(const CudaTables&) = delete;
  CudaTables& operator=(const CudaTables&) = delete;

  // Takes back the staging of uploads that have been executed. Calls the driver only if
  // some have not; not under the core's lock. Throws nothing: an error of the device shows
  // elsewhere, too.
  void Poll() noexcept;
  // The stream is none any more: staging of uploads there whose end nobody has been told
  // is lost, and with it the table's memory until we go, once it is closed.
  void Abandon(StreamHandle stream) noexcept;
  // Calls the driver, and waits until the table has been filled.
  uint64_t Open(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                uint64_t* address);
  // Makes no call of the driver that waits. KVC_BUSY while uploads have not been executed.
  void Close(uint64_t id);
  // The slot is asked for when all has been staged.
  using SlotNow = Device::SlotNow;
  void Update(const SlotNow& slot, uint64_t id, uint32_t count, const kvc_table_delta* deltas);
  void Write(const SlotNow& slot, uint64_t id, const TableRows& rows);

 private:
  struct Memory {
    DevicePtr address = 0;
    uint64_t bytes = 0;  // of its size class
    std::shared_ptr<PinnedRing> ring;
    bool filling = false;  // by what nobody has seen the end of
  };
  struct Table {
    uint64_t id = 0;
    uint32_t rows = 0;
    uint32_t columns = 0;
    Memory memory;
  };
  struct Staged;

  [[nodiscard]] std::shared_ptr<Table> Find(uint64_t id) const;
  [[nodiscard]] const std::shared_ptr<Table>& FindLocked(uint64_t id) const;

  template <typename Visit>
  void ForEach(Visit&& visit);  // the ring of each open table
  template <typename Queue>
  void NoteUpload(const SlotNow& slot, std::shared_ptr<Staged> staged, Queue&& queue);
  [[nodiscard]] std::shared_ptr<Staged> Stage(std::shared_ptr<Table> table, uint64_t entries);
  [[nodiscard]] Memory TakeMemory(uint64_t bytes, uint64_t staging);
  [[nodiscard]] Memory Allocate(uint64_t bytes, uint64_t staging);
  void Keep(Memory memory) noexcept;
  void FreeSpare(bool all) noexcept;

  const DeviceContext& context_;
  EventPool& events_;
  const KernelImage& kernels_;
  StreamTable& streams_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Table>> tables_;
  // Of tables that are closed. To free it would wait for all that runs on the device, so
  // it serves later tables like them, and goes when the driver has no other; or never before
  // we do, if an upload may still be to come.
  std::vector<Memory> spare_;  // capacity for that of all tables
  uint64_t allocated_ = 0;     // how many there are, spare or not
  uint64_t next_generation_ = 1;
  std::atomic<bool> staged_{false};  // some staging may have to be taken back
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_CUDA_TABLES_H_
