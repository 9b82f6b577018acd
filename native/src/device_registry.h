// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which kinds of devices there are. The core brings the host device; the others
// register themselves when they are opened, so that the core knows none of them.
#ifndef KVCAST_NATIVE_SRC_DEVICE_REGISTRY_H_
#define KVCAST_NATIVE_SRC_DEVICE_REGISTRY_H_

#include <memory>

#include "kvcast/kvcast.h"
#include "native/src/device.h"

namespace kvcast {

// Throws Error.
using DeviceFactory = std::unique_ptr<Device> (*)(const kvc_config& config);

inline constexpr kvc_device_kind kDeviceKinds = 2;

// Any thread, any number of times; the host device cannot be replaced.
void RegisterDevice(kvc_device_kind kind, DeviceFactory factory);

// Makes a device of a kind other than the host's. KVC_NO_DEVICE when nobody has
// registered it.
[[nodiscard]] std::unique_ptr<Device> MakeRegisteredDevice(const kvc_config& config);

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_DEVICE_REGISTRY_H_
