// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/elastic_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "native/src/host_memory.h"
#include "native/src/status.h"

namespace kvcast {

namespace elastic_memory {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace elastic_memory

ElasticMemory::ElasticMemory(size_t most) : most_(elastic_memory::RoundUp(most)) {
  if (most_ == 0) return;
  void* p = ::mmap(nullptr, most_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(p);
  if (most_ >= elastic_memory::kHugePage) (void)::madvise(p, most_, MADV_HUGEPAGE);
}

ElasticMemory::~ElasticMemory() {
  if (data_ != nullptr) (void)::munmap(data_, most_);
}

void ElasticMemory::Resize(size_t bytes) {
  using elastic_memory::kPage;
  bytes = elastic_memory::RoundUp(bytes);
  if (bytes < bytes_) {
    // In this order: a page that can be touched is never one that is gone.
    (void)::mprotect(data_ + bytes, bytes_ - bytes, PROT_NONE);
    (void)::madvise(data_ + bytes, bytes_ - bytes, MADV_DONTNEED);
    bytes_ = bytes;
    return;
  }
  if (bytes == bytes_) return;
  RequireHostMemory(bytes - bytes_, "the pages (max_blocks x page_bytes)");
  if (::mprotect(data_ + bytes_, bytes - bytes_, PROT_READ | PROT_WRITE) != 0) {
    throw Error(KVC_OUT_OF_MEMORY, std::string("the system gives no more memory to the pool: ") +
                                       std::strerror(errno));
  }
  for (size_t at = bytes_; at < bytes; at += kPage) {
    *reinterpret_cast<volatile std::byte*>(data_ + at) = std::byte{0};
  }
  bytes_ = bytes;
}

}  // namespace kvcast
