// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Compiled where there is a cuda.h (make cuda-check, tests/gpu/run.sh): our
// prototypes, numbers and structs of the driver are the real ones. Compiling is
// the test. Elsewhere there is nothing in it.

#if __has_include(<cudaTypedefs.h>)
#include <cudaTypedefs.h>
#elif defined(KVC_REQUIRE_CUDA_HEADER)
#error no cudaTypedefs.h on the include path
#endif

#if __has_include(<cudaTypedefs.h>)
#include <cstddef>
#include <type_traits>

#include "cuda/src/driver_entries.h"

namespace kvcast::cuda {

// Ours and theirs are the same to a caller: enums are ints, handles pointers.
template <typename Ours, typename Theirs>
constexpr bool SameParameter() {
  if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_cv_t<std::remove_pointer_t<Ours>>;
    using B = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
    if constexpr (std::is_void_v<A> || std::is_void_v<B> || std::is_function_v<B>) {
      return std::is_void_v<A> && std::is_void_v<B>;
    } else if constexpr (std::is_class_v<A> || std::is_class_v<B>) {
      return std::is_class_v<A> && std::is_class_v<B>;  // layouts are compared below
    } else {
      return SameParameter<A, B>();
    }
  } else {
    return std::is_same_v<Ours, Theirs> ||
           (std::is_integral_v<Ours> && std::is_integral_v<Theirs> &&
            sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>);
  }
}

template <typename Ours, typename Theirs>
struct Same : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return SameParameter<R, S>() && (SameParameter<A, B>() && ...);
    } else {
      return false;
    }
  }();
};

struct Entries {
#define KVCAST_CUDA_FIELD(field, name, version, parameters) Result(*field) parameters;
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_FIELD)
  KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_FIELD)
#undef KVCAST_CUDA_FIELD
};
inline constexpr int kAsked[] = {
#define KVCAST_CUDA_VERSION(field, name, version, parameters) version,
    KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_VERSION)
        KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_VERSION)
#undef KVCAST_CUDA_VERSION
};
enum Index {
#define KVCAST_CUDA_INDEX(field, name, version, parameters) index_##field,
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_INDEX) KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_INDEX)
#undef KVCAST_CUDA_INDEX
};

#define SAME(field, type, version)                                        \
  static_assert(Same<decltype(Entries::field), type##_v##version>::value, \
                #type " has another prototype");                          \
  static_assert(kAsked[index_##field] == version, #type " is asked for at another version")

SAME(init, PFN_cuInit, 2000);
SAME(driver_version, PFN_cuDriverGetVersion, 2020);
SAME(error_name, PFN_cuGetErrorName, 6000);
SAME(error_string, PFN_cuGetErrorString, 6000);
SAME(device_count, PFN_cuDeviceGetCount, 2000);
SAME(device_get, PFN_cuDeviceGet, 2000);
SAME(device_name, PFN_cuDeviceGetName, 2000);
SAME(device_total_memory, PFN_cuDeviceTotalMem, 3020);
SAME(device_attribute, PFN_cuDeviceGetAttribute, 2000);
SAME(primary_retain, PFN_cuDevicePrimaryCtxRetain, 7000);
SAME(primary_release, PFN_cuDevicePrimaryCtxRelease, 11000);
SAME(context_push, PFN_cuCtxPushCurrent, 4000);
SAME(context_pop, PFN_cuCtxPopCurrent, 4000);
SAME(context_current, PFN_cuCtxGetCurrent, 4000);
SAME(context_device, PFN_cuCtxGetDevice, 2000);
SAME(context_synchronize, PFN_cuCtxSynchronize, 2000);
SAME(memory_info, PFN_cuMemGetInfo, 3020);
SAME(memory_alloc, PFN_cuMemAlloc, 3020);
SAME(memory_free, PFN_cuMemFree, 3020);
SAME(host_alloc, PFN_cuMemHostAlloc, 2020);
SAME(host_free, PFN_cuMemFreeHost, 2000);
SAME(host_register, PFN_cuMemHostRegister, 6050);
SAME(host_unregister, PFN_cuMemHostUnregister, 4000);
SAME(host_device_address, PFN_cuMemHostGetDevicePointer, 3020);
SAME(pointer_attribute, PFN_cuPointerGetAttribute, 4000);
SAME(copy_to_device, PFN_cuMemcpyHtoDAsync, 3020);
SAME(copy_to_host, PFN_cuMemcpyDtoHAsync, 3020);
SAME(copy_on_device, PFN_cuMemcpyDtoDAsync, 3020);
SAME(fill_words, PFN_cuMemsetD32Async, 3020);
SAME(stream_create, PFN_cuStreamCreate, 2000);
SAME(stream_destroy, PFN_cuStreamDestroy, 4000);
SAME(stream_synchronize, PFN_cuStreamSynchronize, 2000);
SAME(stream_query, PFN_cuStreamQuery, 2000);
SAME(stream_wait_event, PFN_cuStreamWaitEvent, 3020);
SAME(stream_capturing, PFN_cuStreamIsCapturing, 10000);
SAME(capture_mode, PFN_cuThreadExchangeStreamCaptureMode, 10010);
SAME(stream_context, PFN_cuStreamGetCtx, 9020);
SAME(event_create, PFN_cuEventCreate, 2000);
SAME(event_record, PFN_cuEventRecord, 2000);
SAME(event_query, PFN_cuEventQuery, 2000);
SAME(event_synchronize, PFN_cuEventSynchronize, 2000);
SAME(event_elapsed, PFN_cuEventElapsedTime, 2000);
SAME(event_destroy, PFN_cuEventDestroy, 4000);
SAME(module_load, PFN_cuModuleLoadDataEx, 2010);
SAME(module_unload, PFN_cuModuleUnload, 2000);
SAME(module_function, PFN_cuModuleGetFunction, 2000);
SAME(launch, PFN_cuLaunchKernel, 4000);
SAME(range_reserve, PFN_cuMemAddressReserve, 10020);
SAME(range_free, PFN_cuMemAddressFree, 10020);
SAME(chunk_create, PFN_cuMemCreate, 10020);
SAME(chunk_release, PFN_cuMemRelease, 10020);
SAME(chunk_map, PFN_cuMemMap, 10020);
SAME(chunk_unmap, PFN_cuMemUnmap, 10020);
SAME(set_access, PFN_cuMemSetAccess, 10020);
SAME(chunk_granularity, PFN_cuMemGetAllocationGranularity, 10020);
#if CUDA_VERSION >= 12080
SAME(copy_batch, PFN_cuMemcpyBatchAsync, 12080);
#endif
#undef SAME

static_assert(kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kErrorNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kErrorDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kErrorStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kErrorDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE);
static_assert(kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kErrorInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(kErrorInvalidImage == CUDA_ERROR_INVALID_IMAGE);
static_assert(kErrorInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kErrorNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kErrorJitCompilerNotFound == CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
static_assert(kErrorJitCompilationDisabled == CUDA_ERROR_JIT_COMPILATION_DISABLED);
static_assert(kErrorUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kErrorOperatingSystem == CUDA_ERROR_OPERATING_SYSTEM);
static_assert(kErrorInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kErrorNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(kErrorIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kErrorLaunchTimeout == CUDA_ERROR_LAUNCH_TIMEOUT);
static_assert(kErrorContextIsDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kErrorAssert == CUDA_ERROR_ASSERT);
static_assert(kErrorHardwareStack == CUDA_ERROR_HARDWARE_STACK_ERROR);
static_assert(kErrorIllegalInstruction == CUDA_ERROR_ILLEGAL_INSTRUCTION);
static_assert(kErrorMisalignedAddress == CUDA_ERROR_MISALIGNED_ADDRESS);
static_assert(kErrorInvalidAddressSpace == CUDA_ERROR_INVALID_ADDRESS_SPACE);
static_assert(kErrorInvalidPc == CUDA_ERROR_INVALID_PC);
static_assert(kErrorLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
static_assert(kErrorUncorrectableEcc == CUDA_ERROR_ECC_UNCORRECTABLE);
static_assert(kErrorNvlinkUncorrectable == CUDA_ERROR_NVLINK_UNCORRECTABLE);
static_assert(kErrorMpsConnectionFailed == CUDA_ERROR_MPS_CONNECTION_FAILED);
static_assert(kErrorMpsRpcFailure == CUDA_ERROR_MPS_RPC_FAILURE);
static_assert(kErrorMpsServerNotReady == CUDA_ERROR_MPS_SERVER_NOT_READY);
static_assert(kErrorMpsMaxClientsReached == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
static_assert(kErrorMpsMaxConnectionsReached == CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
static_assert(kErrorMpsClientTerminated == CUDA_ERROR_MPS_CLIENT_TERMINATED);
static_assert(kErrorExternalDevice == CUDA_ERROR_EXTERNAL_DEVICE);
#if CUDA_VERSION >= 13000
static_assert(kErrorContained == CUDA_ERROR_CONTAINED);
static_assert(kErrorTensorMemoryLeak == CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
static_assert(kErrorNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kErrorNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kErrorSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(kErrorSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kErrorCompatNotSupported == CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
static_assert(kErrorStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kErrorStreamCaptureInvalidated == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
static_assert(kErrorCapturedEvent == CUDA_ERROR_CAPTURED_EVENT);
static_assert(kErrorStreamCaptureIsolation == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
static_assert(kErrorStreamCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(kErrorUnknown == CUDA_ERROR_UNKNOWN);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeComputeMode == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
static_assert(kAttributeAsyncEngines == CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
static_assert(kAttributeUnifiedAddressing == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
static_assert(kAttributeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeHostPageTables ==
              CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
static_assert(kAttributeVirtualMemory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureGlobal == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(kCaptureThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kMemoryTypeHost == CU_MEMORYTYPE_HOST);
static_assert(kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kJitErrorLogBuffer == CU_JIT_ERROR_LOG_BUFFER);
static_assert(kJitErrorLogBufferSize == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
static_assert(kProcAddressLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kLocationHost == CU_MEM_LOCATION_TYPE_HOST);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
#if CUDA_VERSION >= 12080
static_assert(kSourceOrderStream == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(kSourceOrderAny == CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
static_assert(sizeof(MemcpyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(MemcpyAttributes, source_order) ==
              offsetof(CUmemcpyAttributes, srcAccessOrder));
static_assert(offsetof(MemcpyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(MemcpyAttributes, destination_hint) ==
              offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(MemcpyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
#endif
static_assert(sizeof(MemLocation) == sizeof(CUmemLocation));
static_assert(offsetof(MemLocation, type) == offsetof(CUmemLocation, type));
static_assert(offsetof(MemLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(MemAllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(MemAllocationProp, type) == offsetof(CUmemAllocationProp, type));
static_assert(offsetof(MemAllocationProp, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(MemAllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(MemAllocationProp, compression) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(MemAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(MemAccess, location) == offsetof(CUmemAccessDesc, location));
static_assert(offsetof(MemAccess, flags) == offsetof(CUmemAccessDesc, flags));

}  // namespace kvcast::cuda
#endif
