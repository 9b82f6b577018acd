// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// How much memory this process may still take.
#ifndef KVCAST_NATIVE_SRC_HOST_MEMORY_H_
#define KVCAST_NATIVE_SRC_HOST_MEMORY_H_

#include <cstdint>

namespace kvcast {

// What the kernel calls available, and no more than what the control group has
// left. UINT64_MAX where neither can be read.
[[nodiscard]] uint64_t AvailableHostBytes();

// Throws Error(KVC_OUT_OF_MEMORY) that names `what` if `bytes` are not to be had.
// Arenas are touched at creation, and a kernel that overcommits answers too large
// a demand by killing the process, not with an error: so we ask before.
void RequireHostMemory(uint64_t bytes, const char* what);

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_HOST_MEMORY_H_
