// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/driver_api.h"

#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace kvcast::cuda {

namespace driver_api {

constexpr const char* kLibraries[] = {"libcuda.so.1", "libcuda.so"};
constexpr const char* kSticks =
    "; a failed cuInit can stick to the process: start it anew after the cure";

// cuGetProcAddress_v2 (12.0 and later) and cuGetProcAddress (11.3).
using Lookup2 = Result (*)(const char* name, void** entry, int version, unsigned long long flags,
                           int* status);
using Lookup1 = Result (*)(const char* name, void** entry, int version, unsigned long long flags);

std::mutex mutex;
DriverApi table;      // guarded by mutex until `opened`, constant afterwards
bool opened = false;  // guarded by mutex
// Threads that are in OpenDriver, and one for each that has called cuInit.
std::atomic<int> begun{0};
std::atomic<bool> forked{false};

// The driver's threads do not exist in a child, its handles are the parent's, and a lock
// that another thread held at that moment is held for good.
void AfterFork() noexcept {
  if (begun.load() != 0) forked.store(true, std::memory_order_relaxed);
}

// At load: no thread can be forked away from half of it.
const int registered = pthread_atfork(nullptr, nullptr, AfterFork);

class Opening {
 public:
  Opening() { ++begun; }
  ~Opening() {
    if (!stays_) --begun;
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  void Stay() { stays_ = true; }

 private:
  bool stays_ = false;
};

// The calling thread in the C locale while it lives: what the loader says is told apart by its
// words, which it has in the language of the process.
class PlainWords {
 public:
  PlainWords() : plain_(newlocale(LC_ALL_MASK, "C", nullptr)) {
    if (plain_ != nullptr) before_ = uselocale(plain_);
  }
  ~PlainWords() {
    if (plain_ == nullptr) return;
    uselocale(before_);
    freelocale(plain_);
  }
  PlainWords(const PlainWords&) = delete;
  PlainWords& operator=(const PlainWords&) = delete;

 private:
  locale_t plain_;  // null for want of memory
  locale_t before_ = nullptr;
};

// What dlopen said, told apart: nothing there at all, or something that does not load.
[[noreturn]] void ThrowUnloadable(const std::string& first, const std::string& last) {
  const auto nothing = [](const std::string& text, const char* name) {
    return text.rfind(std::string(name) + ":", 0) == 0 &&
           text.find("No such file or directory") != std::string::npos;
  };
  const std::string& said = nothing(first, kLibraries[0]) ? last : first;
  if (said.find("Permission denied") != std::string::npos) {
    throw DriverError(Fault::kForbidden, "the NVIDIA driver may not be opened (" + said +
                                             "): let this user read the library");
  }
  if (nothing(first, kLibraries[0]) && nothing(last, kLibraries[1])) {
    throw DriverError(Fault::kAbsent,
                      "no NVIDIA driver: libcuda.so.1 was not found; install the driver, in a "
                      "container start it with the GPUs (--gpus)");
  }
  throw DriverError(Fault::kBroken, "the NVIDIA driver's libcuda does not load (" + said +
                                        "): reinstall the driver");
}

void* Load() {
  const PlainWords plain;
  std::string said[2];
  for (int i = 0; i < 2; ++i) {
    if (void* library = dlopen(kLibraries[i], RTLD_NOW | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    said[i] = text != nullptr ? text : "dlopen failed";
  }
  ThrowUnloadable(said[0], said[1]);
}

class Resolver {
 public:
  explicit Resolver(void* library)
      : lookup2_(reinterpret_cast<Lookup2>(dlsym(library, "cuGetProcAddress_v2"))),
        lookup1_(reinterpret_cast<Lookup1>(dlsym(library, "cuGetProcAddress"))) {}

  [[nodiscard]] bool usable() const { return lookup2_ != nullptr || lookup1_ != nullptr; }

  // Null when the driver has no such entry of that version or earlier.
  [[nodiscard]] void* Find(const char* name, int version) {
    void* entry = nullptr;
    int status = 0;
    const Result result = lookup2_ != nullptr
                              ? lookup2_(name, &entry, version, kProcAddressLegacyStream, &status)
                              : lookup1_(name, &entry, version, kProcAddressLegacyStream);
    stub_ = stub_ || result == kErrorStubLibrary;
    return result == kSuccess && status == 0 ? entry : nullptr;
  }
  // The stub of the toolkit answers every call, this one too, with one error.
  [[nodiscard]] bool stub() const { return stub_; }

 private:
  Lookup2 lookup2_;
  Lookup1 lookup1_;
  bool stub_ = false;
};

[[noreturn]] void ThrowStub() {
  throw DriverError(Fault::kStub,
                    "CUDA_ERROR_STUB_LIBRARY (34): the toolkit's stub libcuda was loaded instead "
                    "of the driver's; take its folder off the library path",
                    kErrorStubLibrary);
}

std::string ReleaseName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[noreturn]] void ThrowTooOld(const std::string& what) {
  throw DriverError(Fault::kTooOld, "the NVIDIA driver is too old: " + what + ", kvcast needs " +
                                        ReleaseName(kOldestDriver) + "; update the driver");
}

DriverApi Resolve(void* library) {
  Resolver resolver(library);
  if (!resolver.usable()) {
    if (dlsym(library, "cuInit") == nullptr) {
      throw DriverError(Fault::kBroken,
                        "libcuda has no cuInit: it is no NVIDIA driver; reinstall the driver");
    }
    ThrowTooOld("it has no cuGetProcAddress, so it is of a CUDA release before 11.3");
  }
  DriverApi api;
  const char* missing = nullptr;
#define KVCAST_CUDA_RESOLVE(field, name, since, parameters)                      \
  api.field = reinterpret_cast<decltype(api.field)>(resolver.Find(name, since)); \
  if (api.field == nullptr && missing == nullptr) missing = name;
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_RESOLVE)
  const char* missing_required = missing;
  KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_RESOLVE)
#undef KVCAST_CUDA_RESOLVE
  if (resolver.stub()) ThrowStub();
  // Asked before cuInit, which it does not need: an old driver is named as such,
  // whatever else is wrong with it.
  const Result told =
      api.driver_version != nullptr ? api.driver_version(&api.version) : kErrorNotFound;
  if (told == kErrorStubLibrary) ThrowStub();
  if (told != kSuccess) {
    throw DriverError(Fault::kBroken,
                      "the NVIDIA driver does not tell its version; reinstall the driver");
  }
  if (api.version < kOldestDriver) {
    ThrowTooOld("it supports CUDA " + ReleaseName(api.version));
  }
  if (missing_required != nullptr) {
    throw DriverError(Fault::kBroken, std::string("the NVIDIA driver lacks ") + missing_required +
                                          "; reinstall the driver");
  }
  return api;
}

[[noreturn]] void ThrowInit(const DriverApi& api, Result result) {
  const std::string said = Describe(api, "cuInit", result);
  switch (result) {
    case kErrorStubLibrary:
      ThrowStub();
    case kErrorNoDevice:
    case kErrorInvalidDevice:
      throw DriverError(Fault::kNoDevice,
                        said +
                            ": no GPU that this process may see; check nvidia-smi and "
                            "CUDA_VISIBLE_DEVICES" +
                            kSticks,
                        result);
    case kErrorNotPermitted:
    case kErrorOperatingSystem:
      throw DriverError(Fault::kForbidden,
                        said +
                            ": this process may not open /dev/nvidia*; check permissions and "
                            "the container's devices" +
                            kSticks,
                        result);
    case kErrorSystemNotReady:
      throw DriverError(Fault::kNotReady,
                        said + ": start the fabric manager (nvidia-fabricmanager)" + kSticks,
                        result);
    case kErrorSystemDriverMismatch:
      throw DriverError(Fault::kMismatch,
                        said +
                            ": libcuda and the kernel module are of different releases; reboot, "
                            "or reload the module" +
                            kSticks,
                        result);
    case kErrorCompatNotSupported:
      throw DriverError(Fault::kIncompatible,
                        said +
                            ": forward compatibility does not serve this GPU; take cuda-compat "
                            "off the library path" +
                            kSticks,
                        result);
    case kErrorMpsConnectionFailed:
    case kErrorMpsRpcFailure:
      throw DriverError(Fault::kMps,
                        said +
                            ": the MPS control daemon does not answer; start it anew "
                            "(nvidia-cuda-mps-control -d), or unset CUDA_MPS_PIPE_DIRECTORY" +
                            kSticks,
                        result);
    case kErrorMpsServerNotReady:
      throw DriverError(
          Fault::kMps,
          said + ": the MPS server is starting or recovering; try again later" + kSticks, result);
    case kErrorMpsMaxClientsReached:
    case kErrorMpsMaxConnectionsReached:
      throw DriverError(
          Fault::kMps,
          said + ": the MPS server has as many clients as it takes; end others" + kSticks, result);
    case kErrorUnknown:
      throw DriverError(Fault::kInitFailed,
                        said +
                            ": often a missing /dev/nvidia-uvm; run nvidia-modprobe -u, or "
                            "reload the module" +
                            kSticks,
                        result);
    default:
      throw DriverError(Fault::kInitFailed, said + kSticks, result);
  }
}

}  // namespace driver_api

const DriverApi& OpenDriver() {
  RequireSameProcess();  // before the lock, which nobody may be there to let go
  driver_api::Opening opening;
  std::lock_guard<std::mutex> lock(driver_api::mutex);
  if (driver_api::opened) return driver_api::table;
  // What fails below leaves the library loaded: a driver does not survive dlclose,
  // and the next try finds it again.
  DriverApi api = driver_api::Resolve(driver_api::Load());
  if (driver_api::registered != 0) {
    throw Error(KVC_OUT_OF_MEMORY, "out of host memory (pthread_atfork)");
  }
  opening.Stay();
  Result result = api.init(0);
  if (result != kSuccess) driver_api::ThrowInit(api, result);
  result = api.device_count(&api.devices);
  if (result != kSuccess) {
    throw DriverError(Fault::kInitFailed, Describe(api, "cuDeviceGetCount", result), result);
  }
  if (api.devices == 0) driver_api::ThrowInit(api, kErrorNoDevice);
  driver_api::table = api;
  driver_api::opened = true;
  return driver_api::table;
}

bool ForkedSinceOpen() noexcept { return driver_api::forked.load(std::memory_order_relaxed); }

void RequireSameProcess() {
  if (ForkedSinceOpen()) {
    throw DriverError(
        Fault::kForked,
        "this process was forked after its parent began to open the CUDA driver, which "
        "cannot be used here; fork first, or start a new program");
  }
}

bool Lasting(Result result) {
  switch (result) {
    case kErrorNotInitialized:
    case kErrorDeinitialized:
    case kErrorStubLibrary:
    case kErrorDeviceUnavailable:
    case kErrorNoDevice:
    case kErrorInvalidDevice:
    case kErrorInvalidContext:
    case kErrorUncorrectableEcc:
    case kErrorNvlinkUncorrectable:
    case kErrorIllegalAddress:
    case kErrorLaunchTimeout:
    case kErrorContextIsDestroyed:
    case kErrorAssert:
    case kErrorHardwareStack:
    case kErrorIllegalInstruction:
    case kErrorMisalignedAddress:
    case kErrorInvalidAddressSpace:
    case kErrorInvalidPc:
    case kErrorLaunchFailed:
    case kErrorMpsClientTerminated:
    case kErrorContained:
    case kErrorTensorMemoryLeak:
    case kErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

std::string Describe(const DriverApi& api, const char* call, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name != nullptr && api.error_name(result, &name) != kSuccess) name = nullptr;
  if (api.error_string != nullptr && api.error_string(result, &text) != kSuccess) text = nullptr;
  std::string line = std::string(call) + ": " + (name != nullptr ? name : "CUDA error") + " (" +
                     std::to_string(result) + ")";
  if (text != nullptr) line += std::string(": ") + text;
  return line;
}

void Check(const DriverApi& api, const char* call, Result result) {
  if (result == kSuccess) return;
  // Fields are named by purpose; messages should have the driver's own name.
  const char* said = call;
#define KVCAST_CUDA_NAME(field, name, version, parameters) \
  if (std::strcmp(call, #field) == 0) said = name;
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_NAME)
  KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_NAME)
#undef KVCAST_CUDA_NAME
  throw Error(result == kErrorOutOfMemory ? KVC_OUT_OF_MEMORY : KVC_DEVICE_ERROR,
              Describe(api, said, result), result);
}

}  // namespace kvcast::cuda
