// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Who copies faster on this machine: the copy engine or our kernel.
#ifndef KVCAST_CUDA_SRC_CALIBRATE_H_
#define KVCAST_CUDA_SRC_CALIBRATE_H_

#include <chrono>

#include "cuda/src/page_copier.h"

namespace kvcast::cuda {

inline constexpr std::chrono::milliseconds kCalibrationLimit{50};

struct Calibration {
  CopyPolicy policy;
  // Of the directions: 1 where the threshold was measured, 0 where the published one
  // stands, because time ran out or the device had no memory for it.
  bool measured[kDirections] = {};
  double milliseconds = 0;
};

// Times batches of pieces of growing size both ways, on the device and to it, and
// sets the thresholds at the largest size at which the kernel was faster. Copies to
// the host are the engine's without asking, as published (a coherent link: the
// kernel's). Uses a stream and memory of its own and ends within `limit`, but for
// the one copy that is under way then. Takes the published thresholds where it
// cannot measure; throws only when the device is broken.
[[nodiscard]] Calibration Calibrate(const DeviceContext& context, EventPool& events,
                                    const KernelImage& kernels,
                                    std::chrono::steady_clock::duration limit = kCalibrationLimit);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_CALIBRATE_H_
