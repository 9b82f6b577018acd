// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Entries under the names by which programs find them that are linked with the driver, as
// those of gorgonia.org/cu are: what its tests with us call. Ours asks cuGetProcAddress.

#include "tests/fakecuda/declarations.h"
#include "tests/fakecuda/state.h"

namespace fakecuda {

extern "C" {
Result fake_cuDeviceGet(DeviceId* device, int ordinal);
Result fake_cuCtxPushCurrent(ContextHandle context);
Result fake_cuCtxPopCurrent(ContextHandle* context);
}

#pragma GCC visibility push(default)
extern "C" {

Result cuDeviceGet(DeviceId* device, int ordinal) { return fake_cuDeviceGet(device, ordinal); }
Result cuCtxCreate_v2(ContextHandle* context, unsigned, DeviceId device) {
  World& world = TheWorld();
  {
    Lock lock(world.mutex);
    if (const Result entered = Enter(world, "cuCtxCreate", true); entered != 0) return entered;
  }
  if (device < 0 || device >= world.options.devices) return kvcast::cuda::kErrorInvalidDevice;
  *context = static_cast<ContextHandle>(fakecuda_context_create(device));
  fakecuda_context_push(*context);  // it is current, until it is popped
  return 0;
}
Result cuCtxDestroy_v2(ContextHandle context) {
  fakecuda_context_destroy(context);
  return 0;
}
Result cuCtxPushCurrent_v2(ContextHandle context) { return fake_cuCtxPushCurrent(context); }
Result cuCtxPopCurrent_v2(ContextHandle* context) { return fake_cuCtxPopCurrent(context); }
Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  return fake_cuStreamCreate(stream, flags);
}
Result cuStreamDestroy_v2(StreamHandle stream) { return fake_cuStreamDestroy(stream); }
Result cuStreamSynchronize(StreamHandle stream) { return fake_cuStreamSynchronize(stream); }
Result cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, StreamHandle stream) {
  return fake_cuMemcpyHtoDAsync(to, from, bytes, stream);
}
Result cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, StreamHandle stream) {
  return fake_cuMemcpyDtoHAsync(to, from, bytes, stream);
}

}  // extern "C"
#pragma GCC visibility pop

}  // namespace fakecuda
