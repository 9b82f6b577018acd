// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// How much of a GPU's memory a pool may take.
#ifndef KVCAST_CUDA_SRC_BUDGET_H_
#define KVCAST_CUDA_SRC_BUDGET_H_

#include <cstdint>

#include "native/src/status.h"

namespace kvcast::cuda {

// One of the three is set, the others are 0.
struct Budget {
  uint64_t bytes = 0;
  uint64_t pages = 0;
  double free_fraction = 0;  // of what the driver calls free at that moment, up to 1
};

// The pages that a budget buys. Throws Error: a budget of none or several kinds,
// one that buys no page, more than the driver calls free.
[[nodiscard]] uint64_t PagesFor(const Budget& budget, uint64_t page_bytes, uint64_t free_bytes);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_BUDGET_H_
