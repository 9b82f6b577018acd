// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Memory of the process that grows and shrinks in place.
#ifndef KVCAST_NATIVE_SRC_ELASTIC_MEMORY_H_
#define KVCAST_NATIVE_SRC_ELASTIC_MEMORY_H_

#include <cstddef>

namespace kvcast {

// Owns a range of addresses, of which the first part is memory. Beyond it nothing
// can be read or written: whoever does is stopped there and then.
class ElasticMemory {
 public:
  ElasticMemory() = default;
  // Reserves addresses only. Throws std::bad_alloc.
  explicit ElasticMemory(size_t most);
  ~ElasticMemory();
  ElasticMemory(const ElasticMemory&) = delete;
  ElasticMemory& operator=(const ElasticMemory&) = delete;

  // Makes the first `bytes` (rounded up to whole pages of the system) memory: what is new is
  // zero and has been touched, what is beyond goes back to the system. Throws
  // Error(KVC_OUT_OF_MEMORY) with nothing changed.
  void Resize(size_t bytes);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }  // of memory

 private:
  std::byte* data_ = nullptr;
  size_t most_ = 0;
  size_t bytes_ = 0;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_ELASTIC_MEMORY_H_
