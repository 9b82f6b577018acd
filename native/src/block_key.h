// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The keys by which blocks are known outside: a SHA-256 chain from a root that
// stands for the scope. With LoRA ids and numeric salts only they are equal to
// those of TensorRT-LLM's KVCacheManagerV2.
#ifndef KVCAST_NATIVE_SRC_BLOCK_KEY_H_
#define KVCAST_NATIVE_SRC_BLOCK_KEY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/scope.h"
#include "native/src/sha256.h"
#include "native/src/types.h"

namespace kvcast {

inline constexpr size_t kKeyBytes = kSha256Bytes;

// SHA-256 of a mask byte and each part that is present, in this order: LoRA id
// (mask bit 0, u64), numeric salt (bit 1, u64), LoRA name (bit 2), salt bytes
// (bit 3); both texts preceded by their length (u32); all little-endian. A LoRA
// name stands in for the id: bit 0 is then not set, so that the order in which
// adapters are loaded does not change keys.
void RootKey(const ScopeView& scope, uint8_t out[kKeyBytes]);

// SHA-256 of the parent's key and `n` tokens (u32, little-endian).
void BlockKey(const uint8_t parent[kKeyBytes], const uint32_t* tokens, uint32_t n,
              uint8_t out[kKeyBytes]);

// The same for a block with digest tokens: each contributes the 32 bytes at
// bytes_of(token) in place of its four.
template <typename BytesOf>
void BlockKey(const uint8_t parent[kKeyBytes], const uint32_t* tokens, uint32_t n,
              BytesOf&& bytes_of, uint8_t out[kKeyBytes],
              const Sha256Kernels& kernels = Sha256Best());

// Eight bytes as a big-endian number.
[[nodiscard]] inline uint64_t LoadBigEndian64(const uint8_t* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

// How a key is written on the wire, see kvc_hash_form.
[[nodiscard]] inline uint64_t WireHash(const uint8_t key[kKeyBytes], kvc_hash_form form) {
  if (form == KVC_HASH_UNSIGNED64) return LoadBigEndian64(key + kKeyBytes - 8);
  const uint64_t first = LoadBigEndian64(key);
  if (form != KVC_HASH_PORTABLE63) return first;
  // Positive for every reader, never 0 and nine bytes long in any msgpack width.
  const uint64_t value = first >> 1;
  return value < (uint64_t{1} << 32) ? value | uint64_t{1} << 62 : value;
}

// Block keys of up to four independent chains side by side. Owns the padded
// messages, whose layout is the same for all blocks of one token count. Not for
// two threads at once.
class ChainHasher {
 public:
  explicit ChainHasher(uint32_t tokens_per_block, const Sha256Kernels& kernels = Sha256Best());
  ChainHasher(const ChainHasher&) = delete;
  ChainHasher& operator=(const ChainHasher&) = delete;

  // One block in each of the lanes 0 .. lanes-1 (1 to kSha256Lanes): outs[i] =
  // key of tokens[i] under parents[i]. outs[i] may be parents[i].
  void Hash(uint32_t lanes, const uint8_t* const* parents, const uint32_t* const* tokens,
            uint8_t* const* outs);

  // The same for tokens that the caller writes itself: fill MessageTokens(lane)
  // first (tokens_per_block u32, little-endian), so that they are copied once.
  [[nodiscard]] uint8_t* MessageTokens(uint32_t lane) {
    return messages_.data() + lane * padded_ + kKeyBytes;
  }
  void HashMessages(uint32_t lanes, const uint8_t* const* parents, uint8_t* const* outs);

 private:
  const Sha256Kernels& kernels_;
  uint32_t tokens_per_block_;
  size_t padded_;
  std::vector<uint8_t> messages_;  // kSha256Lanes of padded_ bytes each
};

// Tokens as the key sees them.
inline void StoreTokens(uint8_t* out, const uint32_t* tokens, uint32_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (n == 16) {  // the common block size: a few moves instead of a call
    std::memcpy(out, tokens, 64);
    return;
  }
  std::memcpy(out, tokens, size_t{n} * 4);
#else
  for (uint32_t i = 0; i < n; ++i) {
    out[4 * size_t{i}] = static_cast<uint8_t>(tokens[i]);
    out[4 * size_t{i} + 1] = static_cast<uint8_t>(tokens[i] >> 8);
    out[4 * size_t{i} + 2] = static_cast<uint8_t>(tokens[i] >> 16);
    out[4 * size_t{i} + 3] = static_cast<uint8_t>(tokens[i] >> 24);
  }
#endif
}

template <typename BytesOf>
void BlockKey(const uint8_t parent[kKeyBytes], const uint32_t* tokens, uint32_t n,
              BytesOf&& bytes_of, uint8_t out[kKeyBytes], const Sha256Kernels& kernels) {
  Sha256 hash(kernels);
  hash.Update(parent, kKeyBytes);
  for (uint32_t i = 0; i < n;) {
    if ((tokens[i] & kDigestBit) != 0) {
      hash.Update(bytes_of(tokens[i++]), kDigestBytes);
      continue;
    }
    uint8_t piece[256];
    uint32_t count = 0;
    while (count < 64 && i + count < n && (tokens[i + count] & kDigestBit) == 0) ++count;
    StoreTokens(piece, tokens + i, count);
    hash.Update(piece, size_t{count} * 4);
    i += count;
  }
  hash.Final(out);
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_BLOCK_KEY_H_
