// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A hint to the processor, where the compiler has one.
#ifndef KVCAST_SINK_SRC_PREFETCH_H_
#define KVCAST_SINK_SRC_PREFETCH_H_

namespace kvcast {

// For functions that do nothing but prefetch: GCC takes a call of one that it has
// not inlined for useless and leaves it out.
#if defined(__GNUC__)
#define KVC_PREFETCHING __attribute__((always_inline)) inline
#else
#define KVC_PREFETCHING inline
#endif

KVC_PREFETCHING void PrefetchForWrite([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 1);
#endif
}

KVC_PREFETCHING void PrefetchForRead([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0);
#endif
}

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_PREFETCH_H_
