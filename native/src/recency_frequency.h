// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What blocks are worth by how often and how lately they were used, and the
// memory of blocks that went.
#ifndef KVCAST_NATIVE_SRC_RECENCY_FREQUENCY_H_
#define KVCAST_NATIVE_SRC_RECENCY_FREQUENCY_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "native/src/slab.h"

namespace kvcast {

// Each use of a block is worth 1 and loses half of it every tau requests (LRFU,
// Lee et al. 2001). The score is the logarithm of the sum, counted from the
// first request on: it does not change while the block is not used, so nothing
// has to age. A use at time t makes of the score s
//   max(s, t / tau) + log2(1 + 2^-|s - t / tau|).
// Fixed point, 1/128, 32 bits: enough for 33 million tau, and the same on every
// machine.
//
// Blocks that went are remembered as ghosts, until they return: without that
// nothing would ever come to be worth more than its last stay. Sets of eight, found
// by the tree's keyed hash; a set that is full forgets what is worth least. Two
// blocks taken for one another cost a wrong score, nothing else.
class RecencyFrequency {
 public:
  static constexpr uint32_t kUnit = 128;

  RecencyFrequency(uint32_t tau, uint32_t ghosts)
      : tau_(tau),
        sets_(std::max(1u, ghosts / kWays)),
        slab_(size_t{sets_} * kWays * sizeof(Ghost), "the ghosts (lrfu_ghosts)"),
        ghosts_(reinterpret_cast<Ghost*>(slab_.data())) {
    for (uint32_t d = 0; d < kGains; ++d) {
      const double apart = static_cast<double>(d) / kUnit;
      gain_[d] = static_cast<uint8_t>(std::lround(kUnit * std::log2(1 + std::exp2(-apart))));
    }
  }

  // The time, in requests.
  void SetTime(uint64_t requests) {
    // Room above for what has been used often.
    constexpr uint64_t kLast = UINT32_MAX - 64 * kUnit;
    now_ = static_cast<uint32_t>(std::min<uint64_t>(requests * kUnit / tau_, kLast));
  }
  [[nodiscard]] uint32_t now() const { return now_; }

  [[nodiscard]] uint32_t Used(uint32_t score) const {
    const uint32_t high = std::max(score, now_);
    const uint32_t apart = high - std::min(score, now_);
    return high + (apart < kGains ? gain_[apart] : 0);
  }
  // The score of a block that enters the tree; its ghost is forgotten.
  [[nodiscard]] uint32_t Entered(uint64_t hash) {
    const Place at = PlaceOf(hash);
    for (uint32_t i = 0; i < kWays; ++i) {
      if (at.set[i].tag != at.tag) continue;
      at.set[i].tag = 0;
      return Used(at.set[i].score);
    }
    return now_;
  }
  void Left(uint64_t hash, uint32_t score) {
    const Place at = PlaceOf(hash);
    Ghost* least = at.set;
    for (uint32_t i = 0; i < kWays && least->tag != 0; ++i) {
      if (at.set[i].tag == 0 || at.set[i].score < least->score) least = &at.set[i];
    }
    *least = {at.tag, score};
  }
  void Prefetch(uint64_t hash) const { __builtin_prefetch(PlaceOf(hash).set, 1); }

  [[nodiscard]] size_t bytes() const { return slab_.size() + sizeof *this; }

 private:
  friend struct ManagerPeer;  // tests that compare all of it

  struct Ghost {
    uint32_t tag;  // 0: none
    uint32_t score;
  };
  struct Place {
    Ghost* set;
    uint32_t tag;
  };
  static constexpr uint32_t kWays = 8;  // a cache line
  // Beyond eight halvings a use adds less than 1/128. So no block is ever worth more than
  // that above a use now: 256 uses at once count as much as any more.
  static constexpr uint32_t kGains = 8 * kUnit;

  [[nodiscard]] Place PlaceOf(uint64_t hash) const {
    uint64_t x = hash * 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    const uint64_t set = ((x >> 32) * sets_) >> 32;
    return {ghosts_ + set * kWays, static_cast<uint32_t>(x) | 1};
  }

  uint32_t tau_;
  uint32_t now_ = 0;
  uint32_t sets_;
  Slab slab_;
  Ghost* ghosts_;
  uint8_t gain_[kGains];
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_RECENCY_FREQUENCY_H_
