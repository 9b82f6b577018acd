// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The driver's entry points that we call: X(field, name, version, parameters).
// The version is the CUDA release that introduced the prototype given here. The
// driver is asked for that version of the entry, never for its own: the same name
// has other parameters in other releases (cuMemcpyBatchAsync, cuCtxSynchronize).
#ifndef KVCAST_CUDA_SRC_DRIVER_ENTRIES_H_
#define KVCAST_CUDA_SRC_DRIVER_ENTRIES_H_

#include "cuda/src/driver_types.h"

// clang-format off
#define KVCAST_CUDA_REQUIRED_ENTRIES(X)                                                          \
  X(init, "cuInit", 2000, (unsigned flags))                                                      \
  X(driver_version, "cuDriverGetVersion", 2020, (int* version))                                  \
  X(error_name, "cuGetErrorName", 6000, (Result error, const char** name))                       \
  X(error_string, "cuGetErrorString", 6000, (Result error, const char** text))                   \
  X(device_count, "cuDeviceGetCount", 2000, (int* count))                                        \
  X(device_get, "cuDeviceGet", 2000, (DeviceId* device, int ordinal))                            \
  X(device_name, "cuDeviceGetName", 2000, (char* name, int length, DeviceId device))             \
  X(device_total_memory, "cuDeviceTotalMem", 3020, (size_t* bytes, DeviceId device))             \
  X(device_attribute, "cuDeviceGetAttribute", 2000, (int* value, int attribute, DeviceId device))\
  X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, (ContextHandle* context, DeviceId device)) \
  X(primary_release, "cuDevicePrimaryCtxRelease", 11000, (DeviceId device))                      \
  X(context_push, "cuCtxPushCurrent", 4000, (ContextHandle context))                             \
  X(context_pop, "cuCtxPopCurrent", 4000, (ContextHandle* context))                              \
  X(context_current, "cuCtxGetCurrent", 4000, (ContextHandle* context))                          \
  X(context_device, "cuCtxGetDevice", 2000, (DeviceId* device))                                  \
  X(context_synchronize, "cuCtxSynchronize", 2000, ())                                           \
  X(memory_info, "cuMemGetInfo", 3020, (size_t* free_bytes, size_t* total_bytes))                \
  X(memory_alloc, "cuMemAlloc", 3020, (DevicePtr* address, size_t bytes))                        \
  X(memory_free, "cuMemFree", 3020, (DevicePtr address))                                         \
  X(host_alloc, "cuMemHostAlloc", 2020, (void** address, size_t bytes, unsigned flags))          \
  X(host_free, "cuMemFreeHost", 2000, (void* address))                                           \
  X(host_register, "cuMemHostRegister", 6050, (void* address, size_t bytes, unsigned flags))     \
  X(host_unregister, "cuMemHostUnregister", 4000, (void* address))                               \
  X(host_device_address, "cuMemHostGetDevicePointer", 3020,                                      \
    (DevicePtr* address, void* host, unsigned flags))                                            \
  X(pointer_attribute, "cuPointerGetAttribute", 4000,                                            \
    (void* value, int attribute, DevicePtr address))                                             \
  X(copy_to_device, "cuMemcpyHtoDAsync", 3020,                                                   \
    (DevicePtr to, const void* from, size_t bytes, StreamHandle stream))                         \
  X(copy_to_host, "cuMemcpyDtoHAsync", 3020,                                                     \
    (void* to, DevicePtr from, size_t bytes, StreamHandle stream))                               \
  X(copy_on_device, "cuMemcpyDtoDAsync", 3020,                                                   \
    (DevicePtr to, DevicePtr from, size_t bytes, StreamHandle stream))                           \
  X(fill_words, "cuMemsetD32Async", 3020,                                                        \
    (DevicePtr to, unsigned value, size_t words, StreamHandle stream))                           \
  X(stream_create, "cuStreamCreate", 2000, (StreamHandle* stream, unsigned flags))               \
  X(stream_destroy, "cuStreamDestroy", 4000, (StreamHandle stream))                              \
  X(stream_synchronize, "cuStreamSynchronize", 2000, (StreamHandle stream))                      \
  X(stream_query, "cuStreamQuery", 2000, (StreamHandle stream))                                  \
  X(stream_wait_event, "cuStreamWaitEvent", 3020,                                                \
    (StreamHandle stream, EventHandle event, unsigned flags))                                    \
  X(stream_capturing, "cuStreamIsCapturing", 10000, (StreamHandle stream, int* status))          \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, (int* mode))                       \
  X(stream_context, "cuStreamGetCtx", 9020, (StreamHandle stream, ContextHandle* context))       \
  X(event_create, "cuEventCreate", 2000, (EventHandle* event, unsigned flags))                   \
  X(event_record, "cuEventRecord", 2000, (EventHandle event, StreamHandle stream))               \
  X(event_query, "cuEventQuery", 2000, (EventHandle event))                                      \
  X(event_synchronize, "cuEventSynchronize", 2000, (EventHandle event))                          \
  X(event_elapsed, "cuEventElapsedTime", 2000,                                                   \
    (float* milliseconds, EventHandle start, EventHandle end))                                   \
  X(event_destroy, "cuEventDestroy", 4000, (EventHandle event))                                  \
  X(module_load, "cuModuleLoadDataEx", 2010,                                                     \
    (ModuleHandle* module, const void* image, unsigned count, int* options, void** values))      \
  X(module_unload, "cuModuleUnload", 2000, (ModuleHandle module))                                \
  X(module_function, "cuModuleGetFunction", 2000,                                                \
    (FunctionHandle* function, ModuleHandle module, const char* name))                           \
  X(launch, "cuLaunchKernel", 4000,                                                              \
    (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
     StreamHandle stream, void** parameters, void** extra))

// Absent from some drivers that we support, or from some platforms: null then.
#define KVCAST_CUDA_OPTIONAL_ENTRIES(X)                                                          \
  X(range_reserve, "cuMemAddressReserve", 10020,                                                 \
    (DevicePtr* address, size_t bytes, size_t alignment, DevicePtr hint,                         \
     unsigned long long flags))                                                                  \
  X(range_free, "cuMemAddressFree", 10020, (DevicePtr address, size_t bytes))                    \
  X(chunk_create, "cuMemCreate", 10020,                                                          \
    (MemHandle* handle, size_t bytes, const MemAllocationProp* prop, unsigned long long flags))  \
  X(chunk_release, "cuMemRelease", 10020, (MemHandle handle))                                    \
  X(chunk_map, "cuMemMap", 10020,                                                                \
    (DevicePtr address, size_t bytes, size_t offset, MemHandle handle,                           \
     unsigned long long flags))                                                                  \
  X(chunk_unmap, "cuMemUnmap", 10020, (DevicePtr address, size_t bytes))                         \
  X(set_access, "cuMemSetAccess", 10020,                                                         \
    (DevicePtr address, size_t bytes, const MemAccess* access, size_t count))                    \
  X(chunk_granularity, "cuMemGetAllocationGranularity", 10020,                                   \
    (size_t* bytes, const MemAllocationProp* prop, int option))                                  \
  X(copy_batch, "cuMemcpyBatchAsync", 12080,                                                     \
    (DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count, MemcpyAttributes* attributes,  \
     size_t* attribute_starts, size_t attribute_count, size_t* failed, StreamHandle stream))
// clang-format on

#endif  // KVCAST_CUDA_SRC_DRIVER_ENTRIES_H_
