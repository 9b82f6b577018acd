// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The model's part that knows which blocks are being computed and who waits for them:
// lists in the order in which things were said, searched from the start.
#ifndef KVCAST_TESTS_NATIVE_MODEL_PENDING_H_
#define KVCAST_TESTS_NATIVE_MODEL_PENDING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

struct ModelSequence;

class ModelPending {
 public:
  using Root = std::array<uint8_t, 32>;
  struct Promise {
    ModelSequence* owner;
    Root root;
    std::vector<uint32_t> tokens;  // from the first one of the prompt on
    uint64_t begin;                // blocks
    uint64_t end;
  };
  struct Wait {
    ModelSequence* who;
    ModelSequence* owner;
    uint64_t from;
    uint64_t until;
  };
  struct Found {
    ModelSequence* owner = nullptr;
    uint64_t blocks = 0;
  };

  ModelPending(uint32_t block, uint64_t most) : block_(block), most_(most) {}

  // The first promise of block `at` of these tokens, and how far it goes.
  [[nodiscard]] Found Find(const Root& root, const std::vector<uint32_t>& tokens, uint64_t at,
                           uint64_t limit) const {
    Found found;
    for (const Promise& p : promises) {
      if (p.root != root || at < p.begin || at >= p.end) continue;
      uint64_t end = at;
      while (end < std::min(limit, p.end) && SameStart(tokens, p.tokens, end + 1)) ++end;
      if (end == at) continue;
      found.owner = p.owner;
      found.blocks = end - at;
      break;
    }
    return found;
  }
  [[nodiscard]] Promise* Of(const ModelSequence* owner) {
    for (Promise& p : promises) {
      if (p.owner == owner) return &p;
    }
    return nullptr;
  }
  [[nodiscard]] uint64_t size() const {
    uint64_t all = 0;
    for (const Promise& p : promises) all += p.end - p.begin;
    return all;
  }

  // Of blocks begin..end-1, as many as there is room for.
  void Make(ModelSequence* owner, const Root& root, std::vector<uint32_t> tokens, uint64_t begin,
            uint64_t end) {
    end = std::max(begin, end);
    const uint64_t count = std::min(end - begin, most_ - size());
    marked += count;
    unmarked += end - begin - count;
    if (count != 0) promises.push_back({owner, root, std::move(tokens), begin, begin + count});
  }
  // The owner has so many blocks in the tree now; these are its tokens.
  void Commit(ModelSequence* owner, uint64_t linked, const std::vector<uint32_t>& tokens) {
    Promise* p = Of(owner);
    if (p == nullptr) return;
    while (p->begin < std::min(linked, p->end) && SameStart(tokens, p->tokens, p->begin + 1)) {
      ++p->begin;
      ++committed;
    }
    for (const Wait& w : std::vector<Wait>(waits)) {
      if (w.owner == owner && w.until <= p->begin) Tell(w.who, true);
    }
    if (p->begin < std::min(linked, p->end)) {
      End(owner, p->begin);
    } else {
      Prune(owner);
    }
  }
  // Block `keep` and those behind it will not come.
  void End(ModelSequence* owner, uint64_t keep) {
    Promise* p = Of(owner);
    if (p == nullptr) return;
    const uint64_t end = std::min(p->end, std::max(keep, p->begin));
    given_up += p->end - end;
    p->end = end;
    for (Wait& w : std::vector<Wait>(waits)) {
      if (w.owner != owner || w.until <= end) continue;
      if (p->begin == end || end <= w.from) {
        Tell(w.who, false);
      } else {
        std::find_if(waits.begin(), waits.end(), [&](const Wait& x) {
          return x.who == w.who;
        })->until = end;
      }
    }
    Prune(owner);
  }
  void Await(ModelSequence* who, const Found& found, uint64_t from) {
    for (const Wait& w : waits) {
      if (w.who == who && w.owner == found.owner && w.until == from + found.blocks) return;
    }
    Forget(who);
    waits.push_back({who, found.owner, from, from + found.blocks});
    ++begun;
  }
  void Forget(const ModelSequence* who) {
    waits.erase(
        std::remove_if(waits.begin(), waits.end(), [&](const Wait& w) { return w.who == who; }),
        waits.end());
    told.erase(
        std::remove_if(told.begin(), told.end(), [&](const auto& t) { return t.first == who; }),
        told.end());
  }

  std::vector<Promise> promises;  // in the order in which they were made
  std::vector<Wait> waits;
  std::vector<std::pair<ModelSequence*, bool>> told;  // to be
  uint64_t marked = 0, committed = 0, given_up = 0, unmarked = 0, begun = 0;

 private:
  [[nodiscard]] bool SameStart(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b,
                               uint64_t blocks) const {
    const auto n = static_cast<std::ptrdiff_t>(blocks * block_);
    return static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())) >= n &&
           std::equal(a.begin(), a.begin() + n, b.begin());
  }
  void Tell(ModelSequence* who, bool kept) {
    Forget(who);
    told.emplace_back(who, kept);
  }
  void Prune(const ModelSequence* owner) {
    promises.erase(
        std::remove_if(promises.begin(), promises.end(),
                       [&](const Promise& p) { return p.owner == owner && p.begin == p.end; }),
        promises.end());
  }

  const uint32_t block_;
  const uint64_t most_;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_PENDING_H_
