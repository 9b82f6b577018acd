// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The model's part that knows what blocks are worth under KVC_POLICY_LRFU, as
// docs/allocator.md defines it: logarithms, and ghosts searched from the start.
#ifndef KVCAST_TESTS_NATIVE_MODEL_SCORES_H_
#define KVCAST_TESTS_NATIVE_MODEL_SCORES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

class ModelScores {
 public:
  using Key = std::array<uint8_t, 32>;
  // Ghosts are in sets of eight. The model does not know which set a block belongs to: there
  // is one, or there are so many that none is ever full.
  static constexpr uint32_t kOneSet = 8, kAmple = 1u << 16;

  ModelScores(bool on, uint32_t tau, uint32_t ghosts) : on_(on), tau_(tau), most_(ghosts) {}

  // So many requests have come.
  void SetTime(uint64_t requests) { now_ = static_cast<uint32_t>(requests * kUnit / tau_); }
  [[nodiscard]] uint32_t now() const { return now_; }

  // Two sums of powers of two add up; what is eight halvings smaller adds nothing.
  [[nodiscard]] uint32_t Used(uint32_t score) const {
    const uint32_t most = std::max(score, now_);
    const double apart = static_cast<double>(most - std::min(score, now_)) / kUnit;
    const double gain = apart < 8 ? kUnit * std::log2(1 + std::exp2(-apart)) : 0;
    return most + static_cast<uint32_t>(std::lround(gain));
  }
  // The score of a block that enters the tree; its ghost is one no more.
  uint32_t Entered(const Key& key) {
    for (Ghost& ghost : ghosts_) {
      if (!ghost.there || ghost.key != key) continue;
      ghost.there = false;
      ++remembered;
      return Used(ghost.score);
    }
    return now_;
  }
  // A block went: its ghost takes the first free place, or that of the ghost worth least.
  void Left(const Key& key, uint32_t score) {
    if (!on_) return;
    auto place = std::find_if(ghosts_.begin(), ghosts_.end(), [](auto& g) { return !g.there; });
    if (place == ghosts_.end() && ghosts_.size() < most_) {
      place = ghosts_.insert(place, Ghost{});
    } else if (place == ghosts_.end()) {
      place = std::min_element(ghosts_.begin(), ghosts_.end(),
                               [](auto& a, auto& b) { return a.score < b.score; });
    }
    *place = {key, score, true};
  }
  [[nodiscard]] bool Remembers(const Key& key) const {
    return std::any_of(ghosts_.begin(), ghosts_.end(),
                       [&](const Ghost& ghost) { return ghost.there && ghost.key == key; });
  }
  // Scores of one range are not told apart: a sixteenth of a halving, and all that is more than
  // sixteen halvings below a use now.
  [[nodiscard]] uint32_t Range(uint32_t score) const {
    constexpr uint32_t kSixteenth = kUnit / 16, kBelow = 16 * 16;
    const uint32_t present = now_ / kSixteenth;
    return on_ ? std::max(score / kSixteenth, present - std::min(present, kBelow)) : 0;
  }

  uint64_t remembered = 0;  // blocks that returned

 private:
  static constexpr uint32_t kUnit = 128;  // scores are in parts of a halving
  struct Ghost {
    Key key{};
    uint32_t score = 0;
    bool there = false;
  };
  const bool on_;
  const uint32_t tau_;
  const uint32_t most_;
  uint32_t now_ = 0;
  std::vector<Ghost> ghosts_;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_SCORES_H_
