// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The entries of the fake driver that memory.cpp and copies.cpp define.
#ifndef KVCAST_TESTS_FAKECUDA_DECLARATIONS_H_
#define KVCAST_TESTS_FAKECUDA_DECLARATIONS_H_

#include "tests/fakecuda/state.h"

namespace fakecuda {

using namespace kvcast::cuda;  // NOLINT: numbers of the driver, in these declarations

extern "C" {
Result fake_cuMemGetInfo(size_t* free_bytes, size_t* total);
Result fake_cuMemAlloc(DevicePtr* address, size_t bytes);
Result fake_cuMemFree(DevicePtr address);
Result fake_cuMemHostAlloc(void** address, size_t bytes, unsigned);
Result fake_cuMemFreeHost(void* address);
Result fake_cuMemHostRegister(void* address, size_t bytes, unsigned);
Result fake_cuMemHostUnregister(void* address);
Result fake_cuMemHostGetDevicePointer(DevicePtr* address, void* host, unsigned flags);
Result fake_cuPointerGetAttribute(void* value, int attribute, DevicePtr address);
Result fake_cuMemGetAllocationGranularity(size_t* bytes, const MemAllocationProp* prop, int);
Result fake_cuMemAddressReserve(DevicePtr* address, size_t bytes, size_t alignment, DevicePtr,
                                unsigned long long flags);
Result fake_cuMemAddressFree(DevicePtr address, size_t bytes);
Result fake_cuMemCreate(MemHandle* handle, size_t bytes, const MemAllocationProp* prop,
                        unsigned long long flags);
Result fake_cuMemRelease(MemHandle handle);
Result fake_cuMemMap(DevicePtr address, size_t bytes, size_t offset, MemHandle handle,
                     unsigned long long flags);
Result fake_cuMemSetAccess(DevicePtr address, size_t bytes, const MemAccess* access, size_t count);
Result fake_cuMemUnmap(DevicePtr address, size_t bytes);
Result fake_cuMemcpyHtoDAsync(DevicePtr to, const void* from, size_t bytes, StreamHandle stream);
Result fake_cuMemcpyDtoHAsync(void* to, DevicePtr from, size_t bytes, StreamHandle stream);
Result fake_cuMemcpyDtoDAsync(DevicePtr to, DevicePtr from, size_t bytes, StreamHandle stream);
Result fake_cuMemcpyBatchAsync(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                               MemcpyAttributes* attributes, size_t* starts, size_t attribute_count,
                               size_t* failed, StreamHandle stream);
Result fake_cuMemcpyBatchAsync_13(DevicePtr*, DevicePtr*, size_t*, size_t, MemcpyAttributes*,
                                  size_t*, size_t, StreamHandle);
Result fake_cuCtxSynchronize_13(ContextHandle);
Result fake_cuCtxGetDevice_13(DeviceId*, ContextHandle);
Result fake_cuMemsetD32Async(DevicePtr to, unsigned value, size_t words, StreamHandle stream);
Result fake_cuStreamCreate(StreamHandle* stream, unsigned flags);
Result fake_cuStreamDestroy(StreamHandle stream);
Result fake_cuStreamSynchronize(StreamHandle stream);
Result fake_cuStreamQuery(StreamHandle stream);
Result fake_cuStreamIsCapturing(StreamHandle stream, int* status);
Result fake_cuThreadExchangeStreamCaptureMode(int* mode);
Result fake_cuStreamGetCtx(StreamHandle stream, ContextHandle* context);
Result fake_cuEventCreate(EventHandle* event, unsigned flags);
Result fake_cuEventRecord(EventHandle event, StreamHandle stream);
Result fake_cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned);
Result fake_cuEventQuery(EventHandle event);
Result fake_cuEventSynchronize(EventHandle event);
Result fake_cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end);
Result fake_cuEventDestroy(EventHandle event);
}

}  // namespace fakecuda

#endif  // KVCAST_TESTS_FAKECUDA_DECLARATIONS_H_
