// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Replaces operator new for one test program, so that its allocations can be
// counted and the n-th of them can fail. Included by one file of the program,
// before anything else: the pragma must come first.
#ifndef KVCAST_TESTS_NATIVE_FAILING_ALLOCATOR_H_
#define KVCAST_TESTS_NATIVE_FAILING_ALLOCATOR_H_

#if defined(__GNUC__) && !defined(__clang__)
// With -fsanitize=thread GCC 12 inlines the replaced operators halfway and then
// takes the free in ours for a mismatch with the new that it still sees.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

// Only what the test's own thread allocates while `counting` is on.
thread_local bool counting = false;
thread_local uint64_t allocations = 0;
thread_local uint64_t fail_at = UINT64_MAX;
thread_local size_t only_size = 0;  // of these only, unless 0
thread_local size_t last_size = 0;  // counted

void* Allocate(size_t size) {
  if (counting && (only_size == 0 || size == only_size)) {
    last_size = size;
    if (allocations++ == fail_at) throw std::bad_alloc();
  }
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// NOLINTBEGIN: the language's own signatures.
void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
// Whoever asks like this (std::stable_sort) has another way; only its end is ours, too.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return std::malloc(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

#endif  // KVCAST_TESTS_NATIVE_FAILING_ALLOCATOR_H_
