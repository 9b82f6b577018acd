// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/cuda_device.h"

#include "cuda/src/budget.h"

namespace kvcast::cuda {

DeviceContext CudaDevice::MakeContext(const DriverApi& api, const kvc_config& config) {
  if ((config.flags & KVC_CONFIG_POISON) != 0) {
    throw Error(KVC_INVALID_ARGUMENT, "KVC_CONFIG_POISON is for the host device");
  }
  if ((config.flags & KVC_CONFIG_CALLERS_CONTEXT) != 0) {
    return DeviceContext(api, CallersContext(api));
  }
  return DeviceContext(api, static_cast<int>(config.device_ordinal & INT32_MAX));
}

CudaDevice::CudaDevice(const DriverApi& api, const kvc_config& config)
    : context_(MakeContext(api, config)),
      events_(context_),
      kernels_(context_),
      streams_(context_, events_),
      tables_(context_, events_, kernels_, streams_) {
  if (config.page_bytes == 0) return;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  {
    const ContextScope scope(context_);
    KVCAST_CUDA(api, memory_info, &free_bytes, &total_bytes);
  }
  bytes_ =
      PagesFor({0, config.capacity_blocks, 0}, config.page_bytes, free_bytes) * config.page_bytes;
  memory_ = std::make_unique<PoolMemory>(context_, PoolSize{bytes_, bytes_, 0});
}

void CudaDevice::BeginCall() noexcept {
  if (!ForkedSinceOpen()) streams_.Poll();
}

void CudaDevice::RequireUsable() const {
  RequireSameProcess();
  if (const Error* error = streams_.broken()) throw *error;
}

void CudaDevice::EndCall() noexcept {
  if (!ForkedSinceOpen()) (void)streams_.Submit();
}

DeviceMemory CudaDevice::memory() const {
  return {memory_ != nullptr ? memory_->base() : 0, bytes_};
}

}  // namespace kvcast::cuda
