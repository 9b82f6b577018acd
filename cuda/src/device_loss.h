// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The error after which a device is of no more use to us.
#ifndef KVCAST_CUDA_SRC_DEVICE_LOSS_H_
#define KVCAST_CUDA_SRC_DEVICE_LOSS_H_

#include <exception>

#include "cuda/src/driver_api.h"

namespace kvcast::cuda {

// What could not be done for good when the device was lost.
enum class LostTask {
  kWork,      // a copy, a wait, an upload that a call has promised
  kFence,     // an event that was to be recorded
  kQuestion,  // whatever the driver was asked; no work was refused
};

// Its text lies in itself, so that neither to set it nor to throw a copy takes memory: the
// shortage of it may be what there is to tell.
class DeviceLoss final : public Error {
 public:
  DeviceLoss() : Error(KVC_DEVICE_ERROR, "") {}
  // The cause in the driver's words and with its number, what it was that failed, and what to
  // do: all of the last, and of the first what there is room for.
  void Set(const std::exception& cause, LostTask task) noexcept;
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  char text_[sizeof(kvc_error::message)] = {};
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_DEVICE_LOSS_H_
