// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/device_registry.h"

#include <atomic>

#include "native/src/status.h"

namespace kvcast {

namespace device_registry {

std::atomic<DeviceFactory> factories[kDeviceKinds];

}  // namespace device_registry

void RegisterDevice(kvc_device_kind kind, DeviceFactory factory) {
  if (kind == KVC_DEVICE_HOST || kind >= kDeviceKinds) return;
  device_registry::factories[kind].store(factory, std::memory_order_release);
}

std::unique_ptr<Device> MakeRegisteredDevice(const kvc_config& config) {
  const DeviceFactory factory =
      device_registry::factories[config.device].load(std::memory_order_acquire);
  if (factory == nullptr) {
    throw Error(KVC_NO_DEVICE, "the CUDA device has not been opened; call kvc_cuda_open first", 0,
                KVC_CAUSE_NOT_OPENED);
  }
  return factory(config);
}

}  // namespace kvcast
