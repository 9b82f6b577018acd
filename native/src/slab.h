// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Zeroed, page-aligned memory of a fixed size, touched before first use.
#ifndef KVCAST_NATIVE_SRC_SLAB_H_
#define KVCAST_NATIVE_SRC_SLAB_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "native/src/host_memory.h"

namespace kvcast {

// Owns one anonymous mapping. Arenas come from here and not from the heap so
// that they can be backed by huge pages (a tree of a million blocks is walked
// at random: with 4 KiB pages each step also misses the TLB) and so that all
// page faults happen at creation, never on the scheduler's path.
class Slab {
 public:
  Slab() = default;
  // `what` names the memory in the error if there is not enough of it.
  Slab(size_t bytes, const char* what) : bytes_(bytes) {
    if (bytes == 0) return;
    RequireHostMemory(bytes, what);
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(p);
    if (bytes >= kHugePage) (void)::madvise(p, bytes, MADV_HUGEPAGE);  // a wish, not a need
    for (size_t i = 0; i < bytes; i += kSmallPage) {
      *reinterpret_cast<volatile std::byte*>(data_ + i) = std::byte{0};
    }
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  Slab(Slab&& other) noexcept { swap(other); }
  Slab& operator=(Slab&& other) noexcept {
    Slab moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Slab() {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
  }

  void swap(Slab& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }

 private:
  static constexpr size_t kSmallPage = 4096;
  static constexpr size_t kHugePage = size_t{2} << 20;

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SLAB_H_
