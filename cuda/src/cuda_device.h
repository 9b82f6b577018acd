// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A GPU as a device of the core.
#ifndef KVCAST_CUDA_SRC_CUDA_DEVICE_H_
#define KVCAST_CUDA_SRC_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/src/cuda_tables.h"
#include "cuda/src/page_copier.h"
#include "cuda/src/pool_memory.h"
#include "cuda/src/pool_worker.h"
#include "cuda/src/stream_table.h"
#include "native/src/device.h"

namespace kvcast::cuda {

// What the core calls under its lock only takes notes (StreamTable); EndCall, at the
// end of each call of the ABI that can have told us anything, hands them to the driver.
class CudaDevice final : public Device {
 public:
  // The driver has been opened. Throws Error: the config, the memory, the driver.
  CudaDevice(const DriverApi& api, const kvc_config& config);
  // Waits for what is under way: it uses memory that goes.
  ~CudaDevice() override { streams_.Drain(); }

  void BeginCall() override;
  void EndCall() noexcept override;
  void RequireUsable() const override;
  void RequireKept() const override { streams_.RequireKept(); }
  DeviceMemory memory() const override;
  void AskForPages(uint64_t request, uint32_t pages) override;
  Backing backing() const override;
  uint64_t mapped_bytes() const override;
  uint64_t unreturned_bytes() const override {
    return worker_ != nullptr ? worker_->unreturned_bytes() : 0;
  }

  uint32_t OpenStream() override { return streams_.Open(); }
  uint32_t OpenStepStream() override { return streams_.OpenSteps(); }
  bool IsStepStream(uint32_t slot) const override { return streams_.IsSteps(slot); }
  void BeginStep(uint32_t slot, uint64_t step) override { streams_.BeginStep(slot, step); }
  void EndStep(uint32_t slot, uint64_t step) override { streams_.EndStep(slot, step); }
  void CloseStream(uint32_t slot) override { streams_.Close(slot); }
  uint64_t Record(uint32_t slot) override { return streams_.Record(slot); }
  bool Reached(uint32_t slot, uint64_t position) const override {
    return streams_.Reached(slot, position);
  }
  uint64_t Submitted(uint32_t slot) const override { return streams_.Submitted(slot); }
  uint32_t BusyStreams() const override { return streams_.BusyStreams(); }
  uint64_t Progress() const override { return streams_.Progress(); }
  void Wait(uint32_t slot, Fence fence) override { streams_.Wait(slot, fence); }
  bool Withheld(const Fence& fence) const override { return streams_.Withheld(fence); }
  uint64_t Capturing(uint64_t among) noexcept override {
    return ForkedSinceOpen() ? 0 : streams_.Capturing(among);
  }

  uint32_t CopySlot(uint32_t slot) override;
  void ReserveCopies(uint32_t count) override { streams_.ReserveCopies(count); }
  uint64_t Copy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept override;
  void SetParts(std::vector<std::vector<PagePart>> parts) override;

  uint64_t OpenTable(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                     uint64_t* address) override {
    return tables_.Open(rows, columns, absent, staging, address);
  }
  void CloseTable(uint64_t table) override { tables_.Close(table); }
  void UpdateTable(const SlotNow& slot, uint64_t table, uint32_t count,
                   const kvc_table_delta* deltas) override {
    tables_.Update(slot, table, count, deltas);
  }
  void WriteTable(const SlotNow& slot, uint64_t table, const TableRows& rows) override {
    tables_.Write(slot, table, rows);
  }

  // Poisoning would make each release a kernel: the host device does it.
  void EnterPool(PageId) override {}
  bool Intact(PageId) override { return true; }
  bool poisons() const override { return false; }

  // A slot on a stream of the caller's.
  [[nodiscard]] uint32_t AdoptStream(StreamHandle stream) { return streams_.Adopt(stream); }
  [[nodiscard]] StreamHandle stream(uint32_t slot) const { return streams_.handle(slot); }
  [[nodiscard]] const DeviceContext& context() const { return context_; }
  // Null when the pool keeps the books only.
  [[nodiscard]] PageCopier* copier() { return copier_.get(); }

 private:
  static DeviceContext MakeContext(const DriverApi& api, const kvc_config& config);

  void MakeElastic(const kvc_config& config, uint64_t free_bytes);
  void CopyBatch(StreamHandle stream, const std::vector<PageCopy>& copies);

  // In the order in which they need each other.
  DeviceContext context_;
  EventPool events_;
  std::unique_ptr<PoolMemory> memory_;  // null when the pool keeps the books only
  std::unique_ptr<PoolWorker> worker_;  // of a pool whose memory can grow and shrink
  Backing books_;                       // of any other: under the manager's lock
  uint64_t bytes_ = 0;                  // of addresses
  uint64_t page_bytes_ = 0;
  KernelImage kernels_;
  std::unique_ptr<PinnedRing> copy_ring_;  // as is its user
  std::unique_ptr<PageCopier> copier_;
  std::vector<std::vector<PagePart>> parts_;
  uint32_t copy_slot_ = 0;                // under the manager's lock
  std::vector<kernels::PagePair> pairs_;  // of a batch; submitters take turns
  std::vector<Piece> pieces_;
  StreamTable streams_;
  CudaTables tables_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_CUDA_DEVICE_H_
