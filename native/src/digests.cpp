// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Multimodal digests: from the caller's tokens to interned ones, and what they
// mean for announcements.
#include <cstddef>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

// Writes tokens first .. first + count - 1 as the tree knows them, up to the
// first digest that no block has: nothing can match from there on. Interns
// nothing. Returns how many were written.
uint64_t Manager::Translate(const TokenView& from, uint64_t first, uint64_t count,
                            uint32_t* to) const {
  const uint32_t* tokens = from.tokens + first;
  for (uint64_t i = 0; i < count; ++i) {
    to[i] = tokens[i];
    if ((tokens[i] & kDigestBit) == 0) continue;
    to[i] = digests_.Find(from.digests + size_t{tokens[i] & ~kDigestBit} * kDigestBytes);
    if (to[i] == DigestTable::kNone) return i;
  }
  return count;
}

// Writes the tokens with interned digests into interned_, with a use of each:
// all or nothing.
kvc_status Manager::Intern(const TokenView& from, uint64_t count, kvc_error* error) {
  interned_.resize(count);
  uint64_t done = 0;
  try {
    for (; done < count; ++done) {
      uint32_t token = from.tokens[done];
      if ((token & kDigestBit) != 0) {
        token = digests_.Acquire(from.digests + size_t{token & ~kDigestBit} * kDigestBytes);
        if (token == DigestTable::kNone) break;
      }
      interned_[done] = token;
    }
  } catch (...) {
    digests_.ReleaseAll(interned_.data(), done);
    throw;
  }
  if (done == count) return KVC_OK;
  const uint32_t before = digests_.live();
  digests_.ReleaseAll(interned_.data(), done);
  const bool alone = before - digests_.live() == digests_.max_digests();
  return alone ? sequences::Item(error, KVC_NEVER_FITS,
                                 "the item has more than max_digests digests; raise the limit")
               : sequences::Item(error, KVC_NOT_NOW,
                                 "max_digests digests are in use; retry when blocks or sequences "
                                 "that have some are gone");
}

// Before the tail goes.
void Manager::ForgetTailDigests(Sequence* seq) {
  if (!seq->tail_digests) return;
  const auto index = static_cast<uint32_t>(seq - sequences_.data());
  digests_.ReleaseAll(Tail(index), seq->committed % block_size_);
  seq->tail_digests = false;
}

bool Manager::AnyDigestBlock(const NodeId* nodes, uint32_t count) const {
  if (digests_.live() == 0) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (tree_.node(nodes[i]).digests) return true;
  }
  return false;
}

// Suppresses the blocks of a new chain below `parent` from the first one on that
// must not be announced. Returns how many come before it.
uint32_t Manager::Suppress(ParentId parent, const NodeId* nodes, uint32_t count) {
  uint32_t first = 0;
  if (IsRoot(parent) || tree_.node(parent).announce != Announce::kSuppressed) {
    while (first < count && !tree_.node(nodes[first]).digests) ++first;
  }
  for (uint32_t i = first; i < count; ++i) {
    tree_.node(nodes[i]).announce = Announce::kSuppressed;
  }
  Bump(deferral_->suppressed_blocks, count - first);
  Bump(deferral_->multimodal_blocks_suppressed, count - first);
  return first;
}

}  // namespace kvcast
