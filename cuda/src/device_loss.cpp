// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/device_loss.h"

#include <cstdio>
#include <cstring>
#include <new>

namespace kvcast::cuda {

namespace device_loss {

// Whatever it was, it is not over with the next call: a caller who is told that memory is
// short would try again and again.
const char* Remedy(Result code, LostTask task) {
  if (Lasting(code)) {
    return ": the device or its context is lost; destroy the manager (the next one needs a "
           "context, or a process, of its own)";
  }
  switch (task) {
    case LostTask::kWork:
      return ": work that has been promised could not be handed over; destroy the manager and "
             "create another";
    case LostTask::kFence:
      return ": a fence could not be recorded; destroy the manager and create another";
    case LostTask::kQuestion:
      break;
  }
  return ": the driver could not be asked what it has done; destroy the manager and create "
         "another";
}

}  // namespace device_loss

void DeviceLoss::Set(const std::exception& cause, LostTask task) noexcept {
  const auto* error = dynamic_cast<const Error*>(&cause);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&cause) != nullptr;
  set_system_code(error != nullptr ? error->system_code() : 0);
  const char* const said = memory ? "out of host memory" : cause.what();
  const char* const remedy = device_loss::Remedy(system_code(), task);
  const size_t room = sizeof text_ - 1 - std::strlen(remedy);
  std::snprintf(text_, sizeof text_, "%.*s%s", static_cast<int>(room), said, remedy);
}

}  // namespace kvcast::cuda
