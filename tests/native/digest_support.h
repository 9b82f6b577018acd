// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Digest tokens as tests write them: KVC_DIGEST_TOKEN(k) stands for the k-th
// test digest, wherever it occurs, and KVC_DIGEST_TOKEN(0) for a token that names
// no digest of its call. So models and scripts treat digests like any other
// token; here they are turned into what a call takes and back.
#ifndef KVCAST_TESTS_NATIVE_DIGEST_SUPPORT_H_
#define KVCAST_TESTS_NATIVE_DIGEST_SUPPORT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

using TestDigest = std::array<uint8_t, 32>;

// The k-th test digest: k (little-endian) and bytes that follow from it. The Go
// tests make the same ones.
inline TestDigest DigestOf(uint32_t k) {
  TestDigest digest{};
  for (uint32_t i = 0; i < 32; ++i) {
    digest[i] = static_cast<uint8_t>(i < 4 ? k >> (8 * i) : k * 31 + i * 7);
  }
  return digest;
}

// Tokens as a call takes them: each digest token names one of the digests, which
// stand in the order of their first use.
struct ItemTokens {
  explicit ItemTokens(const uint32_t* given, uint64_t count) : tokens(given, given + count) {
    std::vector<uint32_t> names;
    for (uint32_t& token : tokens) {
      if ((token & KVC_DIGEST_BIT) == 0) continue;
      if (token == KVC_DIGEST_TOKEN(0)) {
        token = UINT32_MAX;
        continue;
      }
      const auto at = std::find(names.begin(), names.end(), token);
      const auto index = static_cast<uint32_t>(at - names.begin());
      if (at == names.end()) {
        names.push_back(token);
        const TestDigest digest = DigestOf(token & ~KVC_DIGEST_BIT);
        digests.insert(digests.end(), digest.begin(), digest.end());
      }
      token = KVC_DIGEST_TOKEN(index);
    }
  }
  [[nodiscard]] uint32_t digest_count() const { return static_cast<uint32_t>(digests.size() / 32); }

  std::vector<uint32_t> tokens;
  std::vector<uint8_t> digests;
};

// The tokens of a drained event as tests write them; says in *wrong what breaks
// the contract.
inline std::vector<uint32_t> EventTokens(const kvc_borrowed_batch& batch, const kvc_event& event,
                                         std::string* wrong) {
  const uint32_t* first = batch.tokens + event.token_offset;
  std::vector<uint32_t> tokens(first, first + event.token_count);
  if (event.multimodal_offset > batch.multimodal_count ||
      event.multimodal_count > batch.multimodal_count - event.multimodal_offset) {
    *wrong = "an event's digests are outside multimodal[]";
    return tokens;
  }
  uint32_t next = 0;
  for (uint32_t& token : tokens) {
    if ((token & KVC_DIGEST_BIT) == 0) continue;
    if (token != KVC_DIGEST_TOKEN(next) || next >= event.multimodal_count) {
      *wrong = "an event's digest tokens do not name its digests in order";
      return tokens;
    }
    TestDigest digest;
    std::memcpy(digest.data(), batch.multimodal + 32 * (event.multimodal_offset + next), 32);
    uint32_t k = 0;
    for (uint32_t i = 0; i < 4; ++i) k |= uint32_t{digest[i]} << (8 * i);
    if (digest != DigestOf(k)) *wrong = "an event has a digest that nobody committed";
    token = KVC_DIGEST_TOKEN(k);
    ++next;
  }
  if (next != event.multimodal_count) *wrong = "an event has digests that no token names";
  return tokens;
}

// As hexadecimal digits, and back.
inline std::string DigestText(const uint8_t* bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < 32; ++i) {
    out += digits[bytes[i] >> 4];
    out += digits[bytes[i] & 15];
  }
  return out;
}
inline TestDigest DigestFromText(const std::string& text) {
  TestDigest out{};
  for (size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return out;
}

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_DIGEST_SUPPORT_H_
