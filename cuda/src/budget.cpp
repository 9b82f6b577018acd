// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/budget.h"

#include <string>

namespace kvcast::cuda {

uint64_t PagesFor(const Budget& budget, uint64_t page_bytes, uint64_t free_bytes) {
  const int kinds = (budget.bytes != 0 ? 1 : 0) + (budget.pages != 0 ? 1 : 0) +
                    (budget.free_fraction != 0 ? 1 : 0);
  // Written so that a NaN is refused too.
  const bool fraction_ok = budget.free_fraction >= 0 && budget.free_fraction <= 1;
  if (kinds != 1 || !fraction_ok || page_bytes == 0) {
    throw Error(KVC_INVALID_ARGUMENT,
                "a budget is bytes, pages or a fraction of free memory in (0, 1], one of them");
  }
  uint64_t pages = budget.pages;
  if (budget.bytes != 0) pages = budget.bytes / page_bytes;
  if (budget.free_fraction != 0) {
    pages =
        static_cast<uint64_t>(static_cast<double>(free_bytes) * budget.free_fraction) / page_bytes;
  }
  if (pages == 0) {
    throw Error(KVC_INVALID_ARGUMENT, "the budget buys no page of " + std::to_string(page_bytes) +
                                          " bytes (" + std::to_string(free_bytes) +
                                          " bytes are free on the device)");
  }
  if (pages > free_bytes / page_bytes) {
    throw Error(KVC_OUT_OF_MEMORY, std::to_string(pages) + " pages of " +
                                       std::to_string(page_bytes) + " bytes are more than the " +
                                       std::to_string(free_bytes) +
                                       " bytes that are free on the device");
  }
  return pages;
}

}  // namespace kvcast::cuda
