// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// SHA-256 (FIPS 180-4): a plain hash of any message, and compression of up to
// four messages side by side. One chain of blocks is bound by the latency of
// its rounds; two to four independent ones share the execution units and cost
// about half as much each.
#ifndef KVCAST_NATIVE_SRC_SHA256_H_
#define KVCAST_NATIVE_SRC_SHA256_H_

#include <cstddef>
#include <cstdint>

namespace kvcast {

inline constexpr size_t kSha256Bytes = 32;
inline constexpr size_t kSha256BlockBytes = 64;
inline constexpr uint32_t kSha256Lanes = 4;  // at most, side by side

// Runs the compression function over `blocks` consecutive 64-byte blocks.
using Sha256Compress = void (*)(uint32_t state[8], const uint8_t* message, size_t blocks);
// Hashes one whole, padded message of `blocks` blocks in each lane.
using Sha256Hash = void (*)(const uint8_t* const* messages, size_t blocks, uint8_t* const* outs);

struct Sha256Kernels {
  const char* name;
  Sha256Compress compress;
  Sha256Hash one;   // 1 lane
  Sha256Hash two;   // 2 lanes
  Sha256Hash four;  // 4 lanes
};

// Works everywhere.
const Sha256Kernels& Sha256Portable();
// The SHA instructions of x86, or nullptr if this processor lacks them.
const Sha256Kernels* Sha256ShaNi();
// The fastest of them here; chosen once.
const Sha256Kernels& Sha256Best();

// Bytes of a message of `size` bytes after padding: a multiple of 64.
[[nodiscard]] constexpr size_t Sha256PaddedBytes(size_t size) {
  return (size + 9 + kSha256BlockBytes - 1) / kSha256BlockBytes * kSha256BlockBytes;
}
// Writes the padding behind the first `size` bytes of a buffer of Sha256PaddedBytes(size).
void Sha256Pad(uint8_t* buffer, size_t size);

// Hashes a message that comes in pieces. No allocation.
class Sha256 {
 public:
  explicit Sha256(const Sha256Kernels& kernels = Sha256Best());
  void Update(const void* data, size_t size);
  // Once, at the end.
  void Final(uint8_t out[kSha256Bytes]);

 private:
  const Sha256Kernels& kernels_;
  uint32_t state_[8];
  uint64_t size_ = 0;
  uint8_t buffer_[kSha256BlockBytes];
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SHA256_H_
