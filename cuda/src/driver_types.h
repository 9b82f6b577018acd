// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The few types and numbers of the CUDA driver's binary interface that we use,
// declared here so that no CUDA header is needed to build. The numbers are those
// of cuda.h, which never renumbers; tests/gpu/header_check.cpp compares every one
// of them, and every prototype, with a real cuda.h where there is one.
#ifndef KVCAST_CUDA_SRC_DRIVER_TYPES_H_
#define KVCAST_CUDA_SRC_DRIVER_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace kvcast::cuda {

using Result = int;  // CUresult
using DeviceId = int;
using DevicePtr = unsigned long long;
using MemHandle = unsigned long long;
using ContextHandle = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using ModuleHandle = struct ModuleTag*;
using FunctionHandle = struct FunctionTag*;

// CUresult.
inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorDeinitialized = 4;
inline constexpr Result kErrorStubLibrary = 34;
inline constexpr Result kErrorDeviceUnavailable = 46;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidDevice = 101;
inline constexpr Result kErrorInvalidImage = 200;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNoBinaryForGpu = 209;
inline constexpr Result kErrorUncorrectableEcc = 214;
inline constexpr Result kErrorNvlinkUncorrectable = 220;
inline constexpr Result kErrorJitCompilerNotFound = 221;
inline constexpr Result kErrorContained = 226;
inline constexpr Result kErrorUnsupportedPtxVersion = 222;
inline constexpr Result kErrorJitCompilationDisabled = 223;
inline constexpr Result kErrorOperatingSystem = 304;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorNotFound = 500;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorIllegalAddress = 700;
inline constexpr Result kErrorLaunchTimeout = 702;
inline constexpr Result kErrorContextIsDestroyed = 709;
inline constexpr Result kErrorAssert = 710;
inline constexpr Result kErrorHardwareStack = 714;
inline constexpr Result kErrorIllegalInstruction = 715;
inline constexpr Result kErrorMisalignedAddress = 716;
inline constexpr Result kErrorInvalidAddressSpace = 717;
inline constexpr Result kErrorInvalidPc = 718;
inline constexpr Result kErrorLaunchFailed = 719;
inline constexpr Result kErrorTensorMemoryLeak = 721;
inline constexpr Result kErrorNotPermitted = 800;
inline constexpr Result kErrorNotSupported = 801;
inline constexpr Result kErrorSystemNotReady = 802;
inline constexpr Result kErrorSystemDriverMismatch = 803;
inline constexpr Result kErrorCompatNotSupported = 804;
inline constexpr Result kErrorMpsConnectionFailed = 805;
inline constexpr Result kErrorMpsRpcFailure = 806;
inline constexpr Result kErrorMpsServerNotReady = 807;
inline constexpr Result kErrorMpsMaxClientsReached = 808;
inline constexpr Result kErrorMpsMaxConnectionsReached = 809;
inline constexpr Result kErrorMpsClientTerminated = 810;
inline constexpr Result kErrorStreamCaptureUnsupported = 900;
inline constexpr Result kErrorStreamCaptureInvalidated = 901;
inline constexpr Result kErrorStreamCaptureIsolation = 905;
inline constexpr Result kErrorStreamCaptureImplicit = 906;
inline constexpr Result kErrorCapturedEvent = 907;
inline constexpr Result kErrorExternalDevice = 911;
inline constexpr Result kErrorUnknown = 999;

// CUdevice_attribute.
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeComputeMode = 20;
inline constexpr int kAttributeAsyncEngines = 40;
inline constexpr int kAttributeUnifiedAddressing = 41;
inline constexpr int kAttributeCapabilityMajor = 75;
inline constexpr int kAttributeCapabilityMinor = 76;
// Host page tables are the device's too: a coherent link such as NVLink-C2C.
inline constexpr int kAttributeHostPageTables = 100;
inline constexpr int kAttributeVirtualMemory = 102;

inline constexpr unsigned kStreamNonBlocking = 1;
// Handles that stand for the calling thread's idea of a default stream.
inline const StreamHandle kStreamLegacy = reinterpret_cast<StreamHandle>(1);
inline const StreamHandle kStreamPerThread = reinterpret_cast<StreamHandle>(2);
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kCaptureNone = 0;
// CUstreamCaptureMode.
inline constexpr int kCaptureGlobal = 0;
inline constexpr int kCaptureThreadLocal = 1;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kPointerMemoryType = 2;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

// CUjit_option.
inline constexpr int kJitErrorLogBuffer = 5;
inline constexpr int kJitErrorLogBufferSize = 6;

// cuGetProcAddress.
inline constexpr unsigned long long kProcAddressLegacyStream = 1;

inline constexpr int kLocationDevice = 1;
inline constexpr int kLocationHost = 2;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;

struct MemLocation {
  int type = kLocationDevice;
  int id = 0;
};

struct MemAllocationProp {
  int type = kAllocationPinned;
  int handle_types = 0;
  MemLocation location;
  void* win32_metadata = nullptr;
  unsigned char compression = 0;
  unsigned char rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};

struct MemAccess {
  MemLocation location;
  int flags = kAccessReadWrite;
};

// When a batch copy may read its sources.
inline constexpr int kSourceOrderStream = 1;
inline constexpr int kSourceOrderAny = 3;

struct MemcpyAttributes {
  int source_order = kSourceOrderStream;
  MemLocation source_hint{0, 0};
  MemLocation destination_hint{0, 0};
  unsigned flags = 0;
};

static_assert(sizeof(MemLocation) == 8);
static_assert(sizeof(MemAllocationProp) == 32);
static_assert(sizeof(MemAccess) == 12);
static_assert(sizeof(MemcpyAttributes) == 24);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_DRIVER_TYPES_H_
