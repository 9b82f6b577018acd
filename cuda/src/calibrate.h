// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Who copies faster on this machine: the copy engine or our kernel.
#ifndef KVCAST_CUDA_SRC_CALIBRATE_H_
#define KVCAST_CUDA_SRC_CALIBRATE_H_

#include <chrono>
#include <functional>

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
// kernel's). Uses a stream and memory of its own, begins no batch that would not end
// within four fifths of `limit` if it took as long as the longest so far, and leaves as
// much time for giving back its memory as it took to get it. So it ends within `limit`,
// unless a single batch takes longer than any before it by more than the rest. Takes the
// published thresholds where it cannot measure; throws only when the device is broken.
// `now` is the clock.
[[nodiscard]] Calibration Calibrate(const DeviceContext& context, EventPool& events,
                                    const KernelImage& kernels,
                                    std::chrono::steady_clock::duration limit = kCalibrationLimit,
                                    const std::function<std::chrono::steady_clock::time_point()>&
                                        now = std::chrono::steady_clock::now);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_CALIBRATE_H_
