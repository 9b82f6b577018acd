// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/block_key.h"

#include <string_view>

namespace kvcast {
namespace block_key {

void UpdateU64(Sha256& hash, uint64_t value) {
  uint8_t bytes[8];
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
  hash.Update(bytes, sizeof bytes);
}

void UpdateText(Sha256& hash, std::string_view text) {
  const auto size = static_cast<uint32_t>(text.size());
  uint8_t bytes[4];
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(size >> (8 * i));
  hash.Update(bytes, sizeof bytes);
  hash.Update(text.data(), text.size());
}

}  // namespace block_key

void RootKey(const ScopeView& scope, uint8_t out[kKeyBytes]) {
  const uint32_t known =
      KVC_SCOPE_LORA_ID | KVC_SCOPE_SALT | KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES;
  uint32_t mask = scope.parts & known;
  if ((mask & KVC_SCOPE_LORA_NAME) != 0) mask &= ~uint32_t{KVC_SCOPE_LORA_ID};
  Sha256 hash;
  const auto mask_byte = static_cast<uint8_t>(mask);
  hash.Update(&mask_byte, 1);
  if ((mask & KVC_SCOPE_LORA_ID) != 0) block_key::UpdateU64(hash, scope.lora_id);
  if ((mask & KVC_SCOPE_SALT) != 0) block_key::UpdateU64(hash, scope.salt);
  if ((mask & KVC_SCOPE_LORA_NAME) != 0) block_key::UpdateText(hash, scope.lora_name);
  if ((mask & KVC_SCOPE_SALT_BYTES) != 0) block_key::UpdateText(hash, scope.salt_bytes);
  hash.Final(out);
}

void BlockKey(const uint8_t parent[kKeyBytes], const uint32_t* tokens, uint32_t n,
              uint8_t out[kKeyBytes]) {
  Sha256 hash;
  hash.Update(parent, kKeyBytes);
  for (uint32_t done = 0; done < n;) {
    uint8_t piece[256];
    const uint32_t count = n - done < 64 ? n - done : 64;
    StoreTokens(piece, tokens + done, count);
    hash.Update(piece, size_t{count} * 4);
    done += count;
  }
  hash.Final(out);
}

ChainHasher::ChainHasher(uint32_t tokens_per_block, const Sha256Kernels& kernels)
    : kernels_(kernels),
      tokens_per_block_(tokens_per_block),
      padded_(Sha256PaddedBytes(kKeyBytes + size_t{tokens_per_block} * 4)),
      messages_(kSha256Lanes * padded_) {
  for (size_t lane = 0; lane < kSha256Lanes; ++lane) {
    Sha256Pad(messages_.data() + lane * padded_, kKeyBytes + size_t{tokens_per_block} * 4);
  }
}

void ChainHasher::Hash(uint32_t lanes, const uint8_t* const* parents, const uint32_t* const* tokens,
                       uint8_t* const* outs) {
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    StoreTokens(MessageTokens(lane), tokens[lane], tokens_per_block_);
  }
  HashMessages(lanes, parents, outs);
}

void ChainHasher::HashMessages(uint32_t lanes, const uint8_t* const* parents,
                               uint8_t* const* outs) {
  const uint8_t* messages[kSha256Lanes];
  uint8_t* digests[kSha256Lanes];
  uint8_t unused[kKeyBytes];
  for (uint32_t lane = 0; lane < kSha256Lanes; ++lane) {
    messages[lane] = messages_.data() + lane * padded_;
    digests[lane] = lane < lanes ? outs[lane] : unused;
  }
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    std::memcpy(messages_.data() + lane * padded_, parents[lane], kKeyBytes);
  }
  // Three lanes run as four: the idle one costs less than a second pass.
  const Sha256Hash hash = lanes == 1 ? kernels_.one : lanes == 2 ? kernels_.two : kernels_.four;
  hash(messages, padded_ / kSha256BlockBytes, digests);
}

}  // namespace kvcast
