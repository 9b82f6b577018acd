// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The arrays that a drained batch is lent from, reused from drain to drain.
#ifndef KVCAST_SINK_SRC_BATCH_ARRAYS_H_
#define KVCAST_SINK_SRC_BATCH_ARRAYS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/block_key.h"
#include "native/src/types.h"

namespace kvcast {

// With poisoning, a batch that is used after the next drain shows: it is
// overwritten, and the new batch lies in other memory.
#if defined(KVC_POISON_DRAIN) || !defined(NDEBUG)
inline constexpr bool kPoisonDrain = true;
#else
inline constexpr bool kPoisonDrain = false;
#endif
inline constexpr uint8_t kDrainPoison = 0xDB;

struct BatchArrays {
  std::vector<kvc_event> events;
  std::vector<uint64_t> hashes;
  std::vector<uint8_t> reasons;  // a place for each hash, and more
  std::vector<uint8_t> digests;
  std::vector<uint8_t> parent_digests;
  std::vector<uint32_t> tokens;
  std::vector<kvc_event_scope> scopes;
  std::vector<char> strings;
  std::vector<uint8_t> multimodal;

  void Clear() {
    events.clear();
    hashes.clear();
    digests.clear();
    parent_digests.clear();
    tokens.clear();
    scopes.clear();
    strings.clear();
    multimodal.clear();
  }
  void Poison() {
    Fill(events);
    Fill(hashes);
    Fill(reasons);
    Fill(digests);
    Fill(parent_digests);
    Fill(tokens);
    Fill(scopes);
    Fill(strings);
    Fill(multimodal);
  }

  // Lends them; `bytes` is for the form with whole keys.
  void Lend(bool bytes, kvc_borrowed_batch* out) const {
    *out = {};
    out->events = events.data();
    out->hashes = hashes.data();
    out->reasons = reasons.data();
    out->digests = bytes ? digests.data() : nullptr;
    out->parent_digests = bytes ? parent_digests.data() : nullptr;
    out->tokens = tokens.data();
    out->scopes = scopes.data();
    out->strings = strings.data();
    out->multimodal = multimodal.data();
    out->multimodal_count = multimodal.size() / kDigestBytes;
    out->event_count = events.size();
    out->hash_count = hashes.size();
    out->token_count = tokens.size();
    out->scope_count = scopes.size();
    out->string_size = strings.size();
  }

  // Makes room for so many more without losing geometric growth.
  template <typename T>
  static void Grow(std::vector<T>& array, size_t more) {
    const size_t need = array.size() + more;
    if (need > array.capacity()) array.reserve(std::max(need, 2 * array.capacity()));
  }

  // Makes room for the reasons of so many more hashes.
  void GrowReasons(size_t more) {
    const size_t need = hashes.size() + more;
    if (need > reasons.size()) reasons.resize(std::max(need, 2 * reasons.size()));
  }

 private:
  template <typename T>
  static void Fill(std::vector<T>& array) {
    if (!array.empty()) std::memset(array.data(), kDrainPoison, array.size() * sizeof(T));
  }
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_BATCH_ARRAYS_H_
