// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The cheap hash that finds a block's slot in the tree.
#ifndef KVCAST_NATIVE_SRC_MIXED_HASH_H_
#define KVCAST_NATIVE_SRC_MIXED_HASH_H_

#include <cstdint>
#include <vector>

#include "native/src/scope.h"
#include "native/src/types.h"

namespace kvcast {

// A polynomial modulo the Mersenne prime 2^61 - 1, evaluated at a secret point,
// chained over the parent's hash. Two different chains of n tokens collide for
// at most n of the 2^61 points, whatever they are: clients choose the tokens
// but not the point, so they cannot aim for collisions (SipHash would do too,
// but is serial; here all products of a block are independent, about 5 ns per
// 16 tokens). A collision costs time only: the tree compares parent and tokens.
class MixedHash {
 public:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

  // `kept_bits` below 61 is for tests that want collisions.
  MixedHash(uint64_t seed, uint32_t tokens_per_block, uint32_t kept_bits = 61)
      : mask_(kept_bits >= 61 ? ~uint64_t{0} : (uint64_t{1} << kept_bits) - 1),
        powers_(tokens_per_block) {
    const uint64_t point = 256 + SplitMix64(seed) % (kPrime - 512);
    spread_ = SplitMix64(seed ^ 0x6b76636173742121u) | 1;
    // powers_[i] belongs to token i: the point to the power (count - i), so that
    // the sum has no bare constant.
    uint64_t power = 1;
    for (uint32_t i = tokens_per_block; i-- > 0;) {
      power = Reduce(static_cast<unsigned __int128>(power) * point);
      powers_[i] = power;
    }
    chain_ = Reduce(static_cast<unsigned __int128>(power) * point);
    point_ = point;
  }

  // Hash of a block below `parent`; reads tokens_per_block tokens.
  [[nodiscard]] uint64_t Block(uint64_t parent, const uint32_t* tokens) const {
    const size_t count = powers_.size();
    unsigned __int128 sum = static_cast<unsigned __int128>(parent) * chain_;
    for (size_t i = 0; i < count; ++i) {
      sum += static_cast<unsigned __int128>(powers_[i]) * (uint64_t{tokens[i]} + 1);
    }
    return Reduce(sum) & mask_;
  }

  [[nodiscard]] uint64_t Root(const ScopeView& scope) const {
    uint64_t h = Absorb(1, scope.key_parts());
    h = Absorb(Absorb(h, scope.key_lora_id() >> 32), scope.key_lora_id() & UINT32_MAX);
    h = Absorb(Absorb(h, scope.salt >> 32), scope.salt & UINT32_MAX);
    h = AbsorbText(h, scope.lora_name);
    return AbsorbText(h, scope.salt_bytes);
  }

  // 32 well-mixed bits; the table takes its slot from the top of them.
  [[nodiscard]] uint32_t Tag(uint64_t hash) const {
    return static_cast<uint32_t>((hash * spread_) >> 32);
  }

  static uint64_t SplitMix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

 private:
  // Below 2^125 to below the prime. The largest sum is 2^122 from the parent
  // plus 4096 products below 2^93.
  static uint64_t Reduce(unsigned __int128 x) {
    const uint64_t low = static_cast<uint64_t>(x) & kPrime;
    const unsigned __int128 high = x >> 61;  // below 2^64
    const uint64_t high_low = static_cast<uint64_t>(high) & kPrime;
    const uint64_t high_high = static_cast<uint64_t>(high >> 61);
    uint64_t sum = low + high_low + high_high;  // below 2^62 + 8
    sum = (sum & kPrime) + (sum >> 61);
    return sum >= kPrime ? sum - kPrime : sum;
  }
  [[nodiscard]] uint64_t Absorb(uint64_t h, uint64_t word32) const {
    return Reduce(static_cast<unsigned __int128>(h) * point_ + word32 + 1);
  }
  [[nodiscard]] uint64_t AbsorbText(uint64_t h, std::string_view text) const {
    h = Absorb(h, text.size());
    for (const char c : text) h = Absorb(h, static_cast<unsigned char>(c));
    return h;
  }

  uint64_t mask_;
  uint64_t point_ = 0;
  uint64_t chain_ = 0;   // the point to the power (tokens per block + 1)
  uint64_t spread_ = 0;  // odd multiplier behind Tag
  std::vector<uint64_t> powers_;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_MIXED_HASH_H_
