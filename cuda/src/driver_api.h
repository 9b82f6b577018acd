// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The CUDA driver, found at run time.
#ifndef KVCAST_CUDA_SRC_DRIVER_API_H_
#define KVCAST_CUDA_SRC_DRIVER_API_H_

#include <string>

#include "cuda/src/driver_entries.h"
#include "native/src/status.h"

namespace kvcast::cuda {

// CUDA 11.8: the first driver that translates the PTX we carry (ISA 7.8).
inline constexpr int kOldestDriver = 11080;

// Why there is no usable driver, by the numbers of the ABI.
enum class Fault : kvc_cause {
  kAbsent = KVC_CAUSE_ABSENT,
  kBroken = KVC_CAUSE_BROKEN,
  kTooOld = KVC_CAUSE_TOO_OLD,  // older than kOldestDriver
  kStub = KVC_CAUSE_STUB,
  kForbidden = KVC_CAUSE_FORBIDDEN,
  kNotReady = KVC_CAUSE_NOT_READY,
  kMismatch = KVC_CAUSE_MISMATCH,
  kIncompatible = KVC_CAUSE_INCOMPATIBLE,
  kNoDevice = KVC_CAUSE_NO_GPU,
  kMps = KVC_CAUSE_MPS,
  kInitFailed = KVC_CAUSE_INIT_FAILED,
  kForked = KVC_CAUSE_FORKED,
};

// The message says what is wrong and what helps.
class DriverError : public Error {
 public:
  DriverError(Fault fault, const std::string& message, Result code = 0)
      : Error(KVC_NO_DEVICE, message, code, static_cast<kvc_cause>(fault)) {}
  [[nodiscard]] Fault fault() const { return static_cast<Fault>(cause()); }
};

struct DriverApi {
#define KVCAST_CUDA_FIELD(field, name, version, parameters) Result(*field) parameters = nullptr;
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_CUDA_FIELD)
  KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_CUDA_FIELD)
#undef KVCAST_CUDA_FIELD

  int version = 0;  // 1000 x major + 10 x minor, of the driver
  int devices = 0;

  [[nodiscard]] bool has_virtual_memory() const {
    return range_reserve != nullptr && range_free != nullptr && chunk_create != nullptr &&
           chunk_release != nullptr && chunk_map != nullptr && chunk_unmap != nullptr &&
           set_access != nullptr && chunk_granularity != nullptr;
  }
};

// Opens libcuda.so.1, else libcuda.so, resolves the entries and initialises the
// driver; later calls give the same table. No call of the driver, not even its
// dlopen, happens before the first call of this. Throws DriverError. After a
// failure the next call tries anew, but a driver may answer a second cuInit with
// the first one's failure for the life of the process: the message says so.
// Any thread. The library stays loaded until the process ends: a driver has
// threads and exit handlers of its own.
const DriverApi& OpenDriver();

// Throws DriverError(kForked) in a child of the process that opened the driver.
void RequireSameProcess();
// The same as a question, for clean-up code, which must then leave the driver alone.
[[nodiscard]] bool ForkedSinceOpen() noexcept;

// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
[[nodiscard]] std::string Describe(const DriverApi& api, const char* call, Result result);

// Throws for anything but success: KVC_OUT_OF_MEMORY when the driver said so,
// else KVC_DEVICE_ERROR, with the driver's number as the system code.
void Check(const DriverApi& api, const char* call, Result result);

// Whether an error is of the device or its context, which then answer every later call
// so: a kernel that faulted, memory that failed, a context that is gone. All others
// (no memory, a handle that is none, not supported) are of the one call.
[[nodiscard]] bool Lasting(Result result);

// Whether a call has been refused because of a capture, and will not be when that is over.
[[nodiscard]] constexpr bool OfACapture(Result result) {
  return result >= kErrorStreamCaptureUnsupported && result <= kErrorStreamCaptureImplicit;
}

// What a call that is to be repeated has said in the end. A call that fails has done
// nothing; what will not last is met by trying a few times more.
template <typename Call>
[[nodiscard]] Result Tried(Call&& call) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    const Result result = call();
    const bool answer = result == kSuccess || result == kErrorNotReady ||
                        (result >= kErrorStreamCaptureUnsupported && result <= kErrorCapturedEvent);
    if (answer || Lasting(result) || tries == kTries) return result;
  }
}

// The driver's call `field` of `api` with what follows; throws as Check. One
// macro, so that each error names the call.
#define KVCAST_CUDA(api, field, ...) ::kvcast::cuda::Check((api), #field, (api).field(__VA_ARGS__))
// The same for calls that the host cannot take back when they fail, as others have been
// told already: work for streams, and what it takes to hand that over. They are Tried.
#define KVCAST_CUDA_TRIED(api, field, ...) \
  ::kvcast::cuda::Check((api), #field,     \
                        ::kvcast::cuda::Tried([&] { return (api).field(__VA_ARGS__); }))

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_DRIVER_API_H_
