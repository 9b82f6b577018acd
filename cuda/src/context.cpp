// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/context.h"

#include <cstdint>
#include <string>

namespace kvcast::cuda {

DeviceContext::DeviceContext(const DriverApi& api, int ordinal) : api_(api), primary_(true) {
  RequireSameProcess();
  if (ordinal < 0 || ordinal >= api.devices) {
    throw Error(KVC_INVALID_ARGUMENT, "there is no CUDA device " + std::to_string(ordinal) +
                                          ": this process sees " + std::to_string(api.devices));
  }
  KVCAST_CUDA(api, device_get, &device_, ordinal);
  ReadFacts();
  const Result result = api.primary_retain(&handle_, device_);
  if (result == kErrorDeviceUnavailable) {
    throw Error(KVC_DEVICE_ERROR,
                Describe(api, "cuDevicePrimaryCtxRetain", result) +
                    ": another process holds the GPU, or its compute mode forbids contexts "
                    "(nvidia-smi -q -d COMPUTE)",
                result);
  }
  Check(api, "primary_retain", result);
}

DeviceContext::DeviceContext(const DriverApi& api, ContextHandle callers)
    : api_(api), handle_(callers), primary_(false) {
  const ContextScope scope(*this);
  KVCAST_CUDA(api, context_device, &device_);
  ReadFacts();
}

DeviceContext::~DeviceContext() {
  // The driver may have gone before us, or broken: there is nobody to tell.
  if (primary_ && handle_ != nullptr && !ForkedSinceOpen()) api_.primary_release(device_);
}

int DeviceContext::Attribute(int attribute) const {
  int value = 0;
  KVCAST_CUDA(api_, device_attribute, &value, attribute, device_);
  return value;
}

void DeviceContext::ReadFacts() {
  char name[128] = {};
  KVCAST_CUDA(api_, device_name, name, static_cast<int>(sizeof name), device_);
  name_ = name;
  capability_ = 10 * Attribute(kAttributeCapabilityMajor) + Attribute(kAttributeCapabilityMinor);
  multiprocessors_ = Attribute(kAttributeMultiprocessors);
  virtual_memory_ = api_.has_virtual_memory() && Attribute(kAttributeVirtualMemory) != 0;
  coherent_link_ = Attribute(kAttributeHostPageTables) != 0;
  if (Attribute(kAttributeUnifiedAddressing) == 0) {
    throw Error(KVC_DEVICE_ERROR, name_ + " has no unified addressing with the host");
  }
  // What kernels.ptx is made for.
  if (capability_ < 80) {
    throw Error(KVC_DEVICE_ERROR, name_ + " has compute capability " +
                                      std::to_string(capability_ / 10) + "." +
                                      std::to_string(capability_ % 10) +
                                      ", kvcast needs 8.0: choose another GPU or the host device");
  }
}

int Ordinal(uint32_t ordinal) {
  if (ordinal > INT32_MAX) {
    throw Error(KVC_INVALID_ARGUMENT, "there is no CUDA device " + std::to_string(ordinal));
  }
  return static_cast<int>(ordinal);
}

ContextScope::ContextScope(const DeviceContext& context) : api_(context.api()) {
  RequireSameProcess();
  KVCAST_CUDA_TRIED(api_, context_push, context.handle());
  // Nobody is worse off without: what then fails says so itself.
  relaxed_ = api_.capture_mode(&capture_mode_) == kSuccess;
}

ContextScope::~ContextScope() {
  if (ForkedSinceOpen()) return;
  ContextHandle ours = nullptr;
  if (relaxed_) (void)Tried([&] { return api_.capture_mode(&capture_mode_); });
  (void)Tried([&] { return api_.context_pop(&ours); });
}

void WaitForStream(const DriverApi& api, StreamHandle stream) noexcept {
  if (api.stream_synchronize(stream) != kSuccess) api.context_synchronize();
}

ContextHandle CallersContext(const DriverApi& api) {
  RequireSameProcess();
  ContextHandle current = nullptr;
  KVCAST_CUDA(api, context_current, &current);
  if (current == nullptr) {
    throw Error(KVC_INVALID_ARGUMENT,
                "the calling thread has no CUDA context; make one current, or let kvcast use the "
                "primary one");
  }
  return current;
}

}  // namespace kvcast::cuda
