// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Replaces pthread_create for one test program, so that the n-th thread that is started there,
// by whomever, can be refused. Included by one file of the program.
#ifndef KVCAST_TESTS_NATIVE_FAILING_THREADS_H_
#define KVCAST_TESTS_NATIVE_FAILING_THREADS_H_

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace {

std::atomic<uint64_t> threads_started{0};
std::atomic<uint64_t> refuse_thread{0};  // 1 = the next one; 0 = none

}  // namespace

// NOLINTBEGIN: the system's own name. A sanitizer's comes behind it and is called as ever.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (refuse_thread.load() != 0 && refuse_thread.fetch_sub(1) == 1) return EAGAIN;
  ++threads_started;
  return create(thread, attributes, run, argument);
}
// NOLINTEND

#endif  // KVCAST_TESTS_NATIVE_FAILING_THREADS_H_
