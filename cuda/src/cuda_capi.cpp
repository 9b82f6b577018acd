// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The functions of the ABI that only a CUDA device has.

#include <cstdio>
#include <memory>
#include <string>

#include "cuda/src/budget.h"
#include "cuda/src/cuda_device.h"
#include "native/src/capi_call.h"
#include "native/src/device_registry.h"

namespace kvcast::cuda {

namespace cuda_capi {

std::unique_ptr<Device> Make(const kvc_config& config) {
  return std::make_unique<CudaDevice>(OpenDriver(), config);
}

// Of a handle that the caller made up, or has destroyed, the driver says what it says of
// handles, and that is no fault of the device.
uint32_t Adopt(CudaDevice& device, StreamHandle stream) {
  try {
    return device.AdoptStream(stream);
  } catch (const Error& error) {
    if (error.system_code() != kErrorInvalidHandle) throw;
    throw Error(KVC_INVALID_ARGUMENT,
                std::string("the driver knows no such CUDA stream (") + error.what() + ")",
                error.system_code());
  }
}

CudaDevice& DeviceOf(Manager& core) {
  auto* device = dynamic_cast<CudaDevice*>(&core.device());
  if (device == nullptr) {
    throw Error(KVC_INVALID_ARGUMENT, "the manager's device is not KVC_DEVICE_CUDA");
  }
  return *device;
}

}  // namespace cuda_capi

}  // namespace kvcast::cuda

extern "C" {

kvc_status kvc_cuda_open(uint32_t* devices, kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return capi::Guard(error, [&]() -> kvc_status {
    const kvcast::cuda::DriverApi& api = kvcast::cuda::OpenDriver();
    kvcast::RegisterDevice(KVC_DEVICE_CUDA, kvcast::cuda::cuda_capi::Make);
    if (devices != nullptr) *devices = static_cast<uint32_t>(api.devices);
    return KVC_OK;
  });
}

kvc_status kvc_cuda_device_get(uint32_t ordinal, kvc_cuda_device* out,
                               kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return capi::Guard(error, [&]() -> kvc_status {
    capi::Require(out != nullptr, "out is NULL");
    const kvcast::cuda::DriverApi& api = kvcast::cuda::OpenDriver();
    const kvcast::cuda::DeviceContext context(api, kvcast::cuda::Ordinal(ordinal));
    const kvcast::cuda::ContextScope scope(context);
    kvc_cuda_device device{};
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    KVCAST_CUDA(api, memory_info, &free_bytes, &total_bytes);
    device.free_bytes = free_bytes;
    device.total_bytes = total_bytes;
    device.driver_version = static_cast<uint32_t>(api.version);
    device.capability = static_cast<uint32_t>(context.capability());
    device.multiprocessors = static_cast<uint32_t>(context.multiprocessors());
    device.batch_copies = api.copy_batch != nullptr ? 1 : 0;
    device.virtual_memory = context.virtual_memory() ? 1 : 0;
    std::snprintf(device.name, sizeof device.name, "%s", context.name().c_str());
    *out = device;
    return KVC_OK;
  });
}

kvc_status kvc_cuda_budget(uint32_t ordinal, uint64_t page_bytes, uint64_t bytes,
                           double free_fraction, uint64_t* pages, kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return capi::Guard(error, [&]() -> kvc_status {
    capi::Require(pages != nullptr, "pages is NULL");
    const kvcast::cuda::DriverApi& api = kvcast::cuda::OpenDriver();
    const kvcast::cuda::DeviceContext context(api, kvcast::cuda::Ordinal(ordinal));
    const kvcast::cuda::ContextScope scope(context);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    KVCAST_CUDA(api, memory_info, &free_bytes, &total_bytes);
    *pages = kvcast::cuda::PagesFor({bytes, 0, free_fraction}, page_bytes, free_bytes);
    return KVC_OK;
  });
}

kvc_status kvc_cuda_stream_adopt(kvc_manager* manager, void* cuda_stream, uint64_t* out,
                                 kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr, "out is NULL");
    auto& device = kvcast::cuda::cuda_capi::DeviceOf(core);
    *out = core.AddDeviceStream(kvcast::cuda::cuda_capi::Adopt(
        device, static_cast<kvcast::cuda::StreamHandle>(cuda_stream)));
    return KVC_OK;
  });
}

kvc_status kvc_cuda_stream_get(kvc_manager* manager, uint64_t device_stream, void** cuda_stream,
                               kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::Require(cuda_stream != nullptr, "cuda_stream is NULL");
    auto& device = kvcast::cuda::cuda_capi::DeviceOf(core);
    *cuda_stream = device.stream(core.DeviceSlot(device_stream));
    return KVC_OK;
  });
}

}  // extern "C"
