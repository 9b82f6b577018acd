// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Devices, contexts, modules, launches, and the way to all entries. The table of
// versions is cudaTypedefs.h's, written down a second time on purpose: it judges
// the versions that cuda/src asks for.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fakecuda/declarations.h"
#include "tests/fakecuda/state.h"

namespace fakecuda {

using namespace kvcast::cuda;  // NOLINT: numbers of the driver, in this file's calls

extern "C" {

__attribute__((visibility("default"))) Result cuInit(unsigned flags) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (const Result entered = Enter(world, "cuInit", false); entered != 0) return entered;
  if (flags != 0) return kErrorInvalidValue;
  if (world.options.init_result != 0) return world.options.init_result;
  if (world.options.devices == 0) return kErrorNoDevice;
  world.initialised = true;
  return 0;
}

Result fake_cuDriverGetVersion(int* version) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (const Result entered = Enter(world, "cuDriverGetVersion", false); entered != 0) {
    return entered;
  }
  *version = world.options.driver_version;
  return 0;
}

// The two that describe errors are logged as nothing: they are never a cause.
Result fake_cuGetErrorName(Result error, const char** name) {
  switch (error) {
    case kErrorInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return 0;
    case kErrorOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case kErrorNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      return 0;
    case kErrorIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return 0;
    case kErrorSystemNotReady:
      *name = "CUDA_ERROR_SYSTEM_NOT_READY";
      return 0;
    case kErrorSystemDriverMismatch:
      *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      return 0;
    case kErrorCompatNotSupported:
      *name = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE";
      return 0;
    case kErrorUnknown:
      *name = "CUDA_ERROR_UNKNOWN";
      return 0;
    default:
      *name = nullptr;
      return kErrorInvalidValue;
  }
}
Result fake_cuGetErrorString(Result error, const char** text) {
  *text = error == kErrorOutOfMemory ? "out of memory" : nullptr;
  return *text != nullptr ? 0 : kErrorInvalidValue;
}

Result fake_cuDeviceGetCount(int* count) {
  FAKE_ENTER("cuDeviceGetCount");
  *count = world.options.counted >= 0 ? world.options.counted : world.options.devices;
  return 0;
}

Result fake_cuDeviceGet(DeviceId* device, int ordinal) {
  FAKE_ENTER("cuDeviceGet");
  if (ordinal < 0 || ordinal >= world.options.devices) return kErrorInvalidDevice;
  *device = ordinal;
  return 0;
}

Result fake_cuDeviceGetName(char* name, int length, DeviceId device) {
  FAKE_ENTER("cuDeviceGetName");
  if (device < 0 || device >= world.options.devices) return kErrorInvalidDevice;
  const std::string number = device != 0 ? " " + std::to_string(device) : "";
  std::snprintf(name, static_cast<size_t>(length), "fake CUDA device%s", number.c_str());
  return 0;
}

Result fake_cuDeviceTotalMem(size_t* bytes, DeviceId device) {
  FAKE_ENTER("cuDeviceTotalMem");
  if (device < 0 || device >= world.options.devices) return kErrorInvalidDevice;
  *bytes = world.options.memory_bytes;
  return 0;
}

Result fake_cuDeviceGetAttribute(int* value, int attribute, DeviceId device) {
  FAKE_ENTER("cuDeviceGetAttribute");
  if (device < 0 || device >= world.options.devices) return kErrorInvalidDevice;
  switch (attribute) {
    case kAttributeMultiprocessors:
      *value = world.options.multiprocessors + device;
      return 0;
    case kAttributeComputeMode:
      *value = 0;
      return 0;
    case kAttributeAsyncEngines:
      *value = 2;
      return 0;
    case kAttributeUnifiedAddressing:
      *value = world.options.unified_addressing;
      return 0;
    case kAttributeCapabilityMajor:
      *value = world.options.capability / 10;
      return 0;
    case kAttributeCapabilityMinor:
      *value = world.options.capability % 10;
      return 0;
    case kAttributeHostPageTables:
      *value = world.options.host_page_tables;
      return 0;
    case kAttributeVirtualMemory:
      *value = world.options.virtual_memory;
      return 0;
    default:
      return kErrorInvalidValue;
  }
}

Result fake_cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceId device) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= world.options.devices) return kErrorInvalidDevice;
  uint64_t id = 0;
  for (auto& [other, state] : world.contexts) {
    if (state.primary && !state.going && state.device == device) id = other;
  }
  if (id == 0) id = NewPrimaryOrCreated(world, device, true);
  if (id == 0) return kErrorOutOfMemory;
  ++world.contexts[id].retained;
  *context = ToHandle<ContextHandle>(id);
  return 0;
}

Result fake_cuDevicePrimaryCtxRelease(DeviceId device) {
  FAKE_ENTER("cuDevicePrimaryCtxRelease");
  for (auto& [id, state] : world.contexts) {
    if (!state.primary || state.going || state.device != device) continue;
    if (--state.retained == 0) DestroyContext(world, lock, uint64_t{id});
    return 0;
  }
  Violation(world, "a primary context is released more often than retained");
  return kErrorInvalidContext;
}

Result fake_cuCtxPushCurrent(ContextHandle context) {
  FAKE_ENTER("cuCtxPushCurrent");
  if (FindContext(world, Id(context)) == nullptr) return kErrorInvalidContext;
  ContextStack().push_back(Id(context));
  NoteDepth(world, 1);
  return 0;
}

Result fake_cuCtxPopCurrent(ContextHandle* context) {
  FAKE_ENTER("cuCtxPopCurrent");
  if (ContextStack().empty()) return kErrorInvalidContext;
  if (context != nullptr) *context = ToHandle<ContextHandle>(ContextStack().back());
  ContextStack().pop_back();
  NoteDepth(world, -1);
  return 0;
}

Result fake_cuCtxGetCurrent(ContextHandle* context) {
  FAKE_ENTER("cuCtxGetCurrent");
  *context = ContextStack().empty() ? nullptr : ToHandle<ContextHandle>(ContextStack().back());
  return 0;
}

Result fake_cuCtxGetDevice(DeviceId* device) {
  FAKE_ENTER("cuCtxGetDevice");
  FAKE_CONTEXT();
  *device = context->device;
  return 0;
}

Result fake_cuCtxSynchronize() {
  FAKE_ENTER_WAITING("cuCtxSynchronize");
  uint64_t id = 0;
  Context* context = nullptr;
  if (const Result current = Current(world, &context, &id); current != 0) return current;
  Drain(world, lock, id);
  return Current(world, &context);
}

Result fake_cuModuleLoadDataEx(ModuleHandle* module, const void* image, unsigned, int*, void**) {
  FAKE_ENTER_WAITING("cuModuleLoadDataEx");
  Context* context = nullptr;
  uint64_t id = 0;
  if (const Result current = Current(world, &context, &id); current != 0) return current;
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  Module made{id, ""};
  if (magic == 0xBA55ED50u) {
    if (world.options.refuse_fat_binary != 0) return kErrorNoBinaryForGpu;
  } else {
    const std::string text = static_cast<const char*>(image);
    const size_t version = text.find("\n.version ");
    if (version == std::string::npos) return kErrorInvalidImage;
    // ISA 7.8 came with 11.8, 8.0 with 12.0: later than the driver's is refused.
    const int major = std::atoi(text.c_str() + version + 10);
    if (major + 4 > world.options.driver_version / 1000) return kErrorUnsupportedPtxVersion;
    for (size_t at = text.find(".entry "); at != std::string::npos;
         at = text.find(".entry ", at + 1)) {
      made.functions += " " + text.substr(at + 7, text.find('(', at) - at - 7) + " ";
    }
  }
  const uint64_t handle = NewId(world, Kind::kModule);
  world.modules[handle] = std::move(made);
  *module = ToHandle<ModuleHandle>(handle);
  return 0;
}

Result fake_cuModuleUnload(ModuleHandle module) {
  FAKE_ENTER_WAITING("cuModuleUnload");
  return world.modules.erase(Id(module)) != 0 ? 0 : kErrorInvalidHandle;
}

Result fake_cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
  FAKE_ENTER("cuModuleGetFunction");
  FAKE_CONTEXT();
  const auto found = world.modules.find(Id(module));
  if (found == world.modules.end()) return kErrorInvalidHandle;
  const std::string& listed = found->second.functions;
  if ((!listed.empty() && listed.find(" " + std::string(name) + " ") == std::string::npos) ||
      KernelArgumentBytes(name) == 0) {
    return kErrorNotFound;
  }
  const uint64_t handle = NewId(world, Kind::kFunction);
  world.functions[handle] = name;
  *function = ToHandle<FunctionHandle>(handle);
  return 0;
}

Result fake_cuLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned, StreamHandle stream, void** parameters, void** extra) {
  FAKE_ENTER("cuLaunchKernel");
  Stream* queue = nullptr;
  if (const Result found = FindStream(world, Id(stream), &queue); found != 0) return found;
  const auto found = world.functions.find(Id(function));
  if (found == world.functions.end()) return kErrorInvalidHandle;
  if (grid_x == 0 || grid_y == 0 || grid_z != 1 || grid_y > 65535 || block_x == 0 ||
      block_x > 1024 || block_y != 1 || block_z != 1 || extra != nullptr) {
    return kErrorInvalidValue;
  }
  const auto* argument = static_cast<const uint8_t*>(parameters[0]);
  std::vector<uint8_t> held(argument, argument + KernelArgumentBytes(found->second));
  Op op;
  op.kernel_touches = [name = found->second, held] { return KernelTouches(name, held.data()); };
  op.run = [name = found->second, held, grid_x, grid_y, block_x,
            seed = world.options.seed + world.all_calls] {
    const unsigned grid[3] = {grid_x, grid_y, 1};
    return WithMemory([&] { RunKernel(name, held.data(), grid, block_x, seed); });
  };
  return Enqueue(world, lock, queue, std::move(op));
}

}  // extern "C"

namespace {

struct Entry {
  const char* name;
  int version;
  void* function;
};

#define ENTRY(name, version) \
  { #name, version, reinterpret_cast < void*>(fake_##name) }

[[maybe_unused]] const Entry kEntries[] = {
    {"cuInit", 2000, reinterpret_cast<void*>(cuInit)},
    ENTRY(cuDriverGetVersion, 2020),
    ENTRY(cuGetErrorName, 6000),
    ENTRY(cuGetErrorString, 6000),
    ENTRY(cuDeviceGetCount, 2000),
    ENTRY(cuDeviceGet, 2000),
    ENTRY(cuDeviceGetName, 2000),
    ENTRY(cuDeviceTotalMem, 3020),
    ENTRY(cuDeviceGetAttribute, 2000),
    ENTRY(cuDevicePrimaryCtxRetain, 7000),
    ENTRY(cuDevicePrimaryCtxRelease, 11000),
    ENTRY(cuCtxPushCurrent, 4000),
    ENTRY(cuCtxPopCurrent, 4000),
    ENTRY(cuCtxGetCurrent, 4000),
    ENTRY(cuCtxGetDevice, 2000),
    {"cuCtxGetDevice", 13000, reinterpret_cast<void*>(fake_cuCtxGetDevice_13)},
    ENTRY(cuCtxSynchronize, 2000),
    {"cuCtxSynchronize", 13000, reinterpret_cast<void*>(fake_cuCtxSynchronize_13)},
    ENTRY(cuMemGetInfo, 3020),
    ENTRY(cuMemAlloc, 3020),
    ENTRY(cuMemFree, 3020),
    ENTRY(cuMemHostAlloc, 2020),
    ENTRY(cuMemFreeHost, 2000),
    ENTRY(cuMemHostRegister, 6050),
    ENTRY(cuMemHostUnregister, 4000),
    ENTRY(cuMemHostGetDevicePointer, 3020),
    ENTRY(cuPointerGetAttribute, 4000),
    ENTRY(cuMemcpyHtoDAsync, 3020),
    ENTRY(cuMemcpyDtoHAsync, 3020),
    ENTRY(cuMemcpyDtoDAsync, 3020),
    ENTRY(cuMemsetD32Async, 3020),
    ENTRY(cuMemcpyBatchAsync, 12080),
    {"cuMemcpyBatchAsync", 13000, reinterpret_cast<void*>(fake_cuMemcpyBatchAsync_13)},
    ENTRY(cuStreamCreate, 2000),
    ENTRY(cuStreamDestroy, 4000),
    ENTRY(cuStreamSynchronize, 2000),
    ENTRY(cuStreamQuery, 2000),
    ENTRY(cuStreamWaitEvent, 3020),
    ENTRY(cuStreamIsCapturing, 10000),
    ENTRY(cuThreadExchangeStreamCaptureMode, 10010),
    ENTRY(cuStreamGetCtx, 9020),
    ENTRY(cuEventCreate, 2000),
    ENTRY(cuEventRecord, 2000),
    ENTRY(cuEventQuery, 2000),
    ENTRY(cuEventSynchronize, 2000),
    ENTRY(cuEventElapsedTime, 2000),
    ENTRY(cuEventDestroy, 4000),
    ENTRY(cuModuleLoadDataEx, 2010),
    ENTRY(cuModuleUnload, 2000),
    ENTRY(cuModuleGetFunction, 2000),
    ENTRY(cuLaunchKernel, 4000),
    ENTRY(cuMemAddressReserve, 10020),
    ENTRY(cuMemAddressFree, 10020),
    ENTRY(cuMemCreate, 10020),
    ENTRY(cuMemRelease, 10020),
    ENTRY(cuMemMap, 10020),
    ENTRY(cuMemUnmap, 10020),
    ENTRY(cuMemSetAccess, 10020),
    ENTRY(cuMemGetAllocationGranularity, 10020),
};

#if !defined(KVC_FAKECUDA_ANCIENT)
enum { kFound = 0, kNoSymbol = 1, kNoVersion = 2 };

// The newest prototype that is no newer than asked for, nor than the driver.
int Lookup(const World& world, const char* name, int version, void** entry) {
  *entry = nullptr;
  if (world.lacks == name) return kNoSymbol;
  bool named = false;
  int best = 0;
  for (const Entry& candidate : kEntries) {
    if (std::strcmp(candidate.name, name) != 0) continue;
    if (candidate.version > world.options.driver_version) continue;
    named = true;
    if (candidate.version <= version && candidate.version > best) {
      best = candidate.version;
      *entry = candidate.function;
    }
  }
  return *entry != nullptr ? kFound : named ? kNoVersion : kNoSymbol;
}

// What makes a lookup answer nothing: it is neither counted nor in the log.
Result RefusedLookup(World& world, const char* call, unsigned long long flags) {
  if (world.options.stub == 1) return kErrorStubLibrary;
  if (world.inject_in != 0 && world.inject_call == call) return world.inject_code;
  // Entries of the other kind take the NULL stream for the calling thread's.
  if (flags != kProcAddressLegacyStream) Violation(world, std::string(call) + " with other flags");
  return 0;
}
#endif

}  // namespace

extern "C" {

#if !defined(KVC_FAKECUDA_ANCIENT)
__attribute__((visibility("default"))) Result cuGetProcAddress(const char* name, void** entry,
                                                               int version,
                                                               unsigned long long flags) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (const Result refused = RefusedLookup(world, "cuGetProcAddress", flags); refused != 0) {
    return refused;
  }
  return Lookup(world, name, version, entry) == kFound ? 0 : kErrorNotFound;
}

#if !defined(KVC_FAKECUDA_BEFORE_12)
__attribute__((visibility("default"))) Result cuGetProcAddress_v2(const char* name, void** entry,
                                                                  int version,
                                                                  unsigned long long flags,
                                                                  int* status) {
  World& world = TheWorld();
  Lock lock(world.mutex);
  if (const Result refused = RefusedLookup(world, "cuGetProcAddress_v2", flags); refused != 0) {
    return refused;
  }
  const int found = Lookup(world, name, version, entry);
  if (status != nullptr) *status = found;
  return 0;
}
#endif
#endif

}  // extern "C"

}  // namespace fakecuda
