// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Loads and stores of the kernels. On the CPU each is first shown to
// KvcastKernelAccess, which the fake driver defines: it knows what a device
// would fault on.
#ifndef KVCAST_CUDA_KERNELS_ACCESS_H_
#define KVCAST_CUDA_KERNELS_ACCESS_H_

#include "cuda/kernels/page_index.h"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// Throws if the device may not touch the bytes.
void KvcastKernelAccess(unsigned long long address, unsigned long long bytes, bool write);
#endif

namespace kvcast::kernels {

template <typename T>
KVCAST_KERNEL_INLINE T Load(u64 address) {
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
  KvcastKernelAccess(address, sizeof(T), false);
#endif
  return *reinterpret_cast<const T*>(address);
}

template <typename T>
KVCAST_KERNEL_INLINE void Store(u64 address, T value) {
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
  KvcastKernelAccess(address, sizeof(T), true);
#endif
  *reinterpret_cast<T*>(address) = value;
}

}  // namespace kvcast::kernels

#endif  // KVCAST_CUDA_KERNELS_ACCESS_H_
