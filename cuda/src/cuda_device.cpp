// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/src/budget.h"
#include "cuda/src/calibrate.h"

namespace kvcast::cuda {

namespace cuda_device {

// Tables of the copies in flight, a quarter of it at most for one batch: 8 bytes a page,
// 24 a part of one. Without room in it the copy engine does the work.
constexpr uint64_t kCopyRingBytes = 256 << 10;

// Chunks that an elastic pool keeps ready: creating one takes five times as long as mapping it.
constexpr uint32_t kReserveChunks = 8;

}  // namespace cuda_device

DeviceContext CudaDevice::MakeContext(const DriverApi& api, const kvc_config& config) {
  if ((config.flags & KVC_CONFIG_POISON) != 0) {
    throw Error(KVC_INVALID_ARGUMENT, "KVC_CONFIG_POISON is for the host device");
  }
  if ((config.flags & KVC_CONFIG_CALLERS_CONTEXT) != 0) {
    return DeviceContext(api, CallersContext(api));
  }
  return DeviceContext(api, Ordinal(config.device_ordinal));
}

CudaDevice::CudaDevice(const DriverApi& api, const kvc_config& config)
    : context_(MakeContext(api, config)),
      events_(context_),
      kernels_(context_),
      streams_(context_, events_),
      tables_(context_, events_, kernels_, streams_) {
  streams_.SetGone([this](StreamHandle stream) {
    tables_.Abandon(stream);
    if (copy_ring_ != nullptr) copy_ring_->Abandon(stream);
  });
  books_ = {0, config.capacity_blocks, true, false};
  if (config.page_bytes == 0) return;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  {
    const ContextScope scope(context_);
    KVCAST_CUDA(api, memory_info, &free_bytes, &total_bytes);
  }
  bytes_ =
      PagesFor({0, config.capacity_blocks, 0}, config.page_bytes, free_bytes) * config.page_bytes;
  page_bytes_ = config.page_bytes;
  if (config.max_blocks == 0) {
    memory_ = std::make_unique<PoolMemory>(context_, PoolSize{bytes_, bytes_, 0});
  } else {
    MakeElastic(config, free_bytes);
  }
  copy_ring_ = std::make_unique<PinnedRing>(context_, events_, cuda_device::kCopyRingBytes);
  CopyPolicy policy = config.copies == KVC_COPY_CALIBRATED
                          ? Calibrate(context_, events_, kernels_).policy
                          : PublishedPolicy(context_.coherent_link());
  if (config.copies == KVC_COPY_ENGINE) policy.forced = Method::kEngine;
  if (config.copies == KVC_COPY_KERNEL) policy.forced = Method::kKernel;
  copier_ = std::make_unique<PageCopier>(context_, kernels_, *copy_ring_, policy);
  streams_.SetCopier([this](StreamHandle stream, const std::vector<PageCopy>& copies) {
    CopyBatch(stream, copies);
  });
  streams_.SetRecorded([this](StreamHandle stream) { (void)copy_ring_->Settle(stream); });
}

void CudaDevice::MakeElastic(const kvc_config& config, uint64_t free_bytes) {
  const uint64_t at_first = bytes_;
  if (config.max_blocks > UINT64_MAX / 2 / page_bytes_) {
    throw Error(KVC_INVALID_ARGUMENT, "max_blocks x page_bytes does not fit the address space");
  }
  bytes_ = config.max_blocks * page_bytes_;
  const uint64_t never_less =
      (config.min_blocks != 0 ? config.min_blocks : config.capacity_blocks) * page_bytes_;
  try {
    memory_ = std::make_unique<PoolMemory>(
        context_, PoolSize{never_less, bytes_, cuda_device::kReserveChunks, at_first});
  } catch (const Error& error) {
    if (error.status() != KVC_OUT_OF_MEMORY) throw;
    throw Error(KVC_OUT_OF_MEMORY,
                std::to_string(at_first / page_bytes_) + " pages of " +
                    std::to_string(page_bytes_) + " bytes, and up to " +
                    std::to_string(cuda_device::kReserveChunks) +
                    " chunks of 2 MiB in reserve for growing, do not fit the " +
                    std::to_string(free_bytes) + " bytes that are free on the device (" +
                    error.what() + ")",
                error.system_code());
  }
  if (!memory_->mapped()) {  // what is there at first is all that there ever is
    bytes_ = at_first;
    return;
  }
  worker_ = std::make_unique<PoolWorker>(*memory_, page_bytes_, config.capacity_blocks);
}

void CudaDevice::AskForPages(uint64_t request, uint32_t pages) {
  if (worker_ != nullptr) {
    worker_->Ask(request, pages);
  } else {
    const uint64_t most = memory_ != nullptr ? bytes_ / page_bytes_ : pages;
    const auto there = static_cast<uint32_t>(std::min<uint64_t>(pages, most));
    books_ = {request, there, true, there < pages};
  }
}

Backing CudaDevice::backing() const { return worker_ != nullptr ? worker_->backing() : books_; }

uint64_t CudaDevice::mapped_bytes() const {
  if (worker_ != nullptr) return worker_->mapped_bytes();
  return memory_ != nullptr ? memory_->bytes() : 0;
}

uint32_t CudaDevice::CopySlot(uint32_t slot) {
  if (slot != 0 && !streams_.IsSteps(slot)) return slot;
  if (copy_slot_ == 0) copy_slot_ = streams_.OpenOwn();
  return copy_slot_;
}

uint64_t CudaDevice::Copy(uint32_t slot, const PageCopy& copy, const FenceList& after) noexcept {
  streams_.NoteCopy(slot, copy, after);
  if (copy.tokens == 0 || parts_.empty()) return page_bytes_;
  uint64_t bytes = 0;
  for (const PagePart& part : parts_[copy.tokens - 1]) bytes += part.bytes;
  return bytes;
}

void CudaDevice::SetParts(std::vector<std::vector<PagePart>> parts) { parts_ = std::move(parts); }

// Under a ContextScope, one at a time.
void CudaDevice::CopyBatch(StreamHandle stream, const std::vector<PageCopy>& copies) {
  const uint64_t base = memory_->base();
  if (parts_.empty()) {
    pairs_.clear();
    for (const PageCopy& copy : copies) pairs_.push_back({copy.from, copy.to});
    const PageSide pool{base, page_bytes_};
    copier_->CopyPages(stream, Direction::kOnDevice, pool, pool, page_bytes_, pairs_.data(),
                       static_cast<uint32_t>(pairs_.size()), /*stable_source=*/false);
    return;
  }
  pieces_.clear();
  for (const PageCopy& copy : copies) {
    const uint64_t from = base + copy.from * page_bytes_;
    const uint64_t to = base + copy.to * page_bytes_;
    if (copy.tokens == 0) {
      pieces_.push_back({from, to, page_bytes_});
      continue;
    }
    for (const PagePart& part : parts_[copy.tokens - 1]) {
      pieces_.push_back({from + part.offset, to + part.offset, part.bytes});
    }
  }
  copier_->CopyPieces(stream, Direction::kOnDevice, pieces_.data(),
                      static_cast<uint32_t>(pieces_.size()), /*stable_source=*/false);
}

void CudaDevice::BeginCall() {
  if (ForkedSinceOpen()) return;
  streams_.ReserveRecords();
  streams_.Poll();
  streams_.FreeClosed();  // what the call needs a slot for may have one
  tables_.Poll();
  if (worker_ != nullptr) worker_->RetryUnmapping();
}

void CudaDevice::RequireUsable() const {
  RequireSameProcess();
  if (const DeviceLoss* loss = streams_.broken()) throw *loss;
}

void CudaDevice::EndCall() noexcept {
  if (ForkedSinceOpen()) return;
  (void)streams_.Submit();
  streams_.FreeClosed();
}

DeviceMemory CudaDevice::memory() const {
  return {memory_ != nullptr ? memory_->base() : 0, bytes_};
}

}  // namespace kvcast::cuda
