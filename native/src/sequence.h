// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// One request's view of the pages.
#ifndef KVCAST_NATIVE_SRC_SEQUENCE_H_
#define KVCAST_NATIVE_SRC_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "native/src/types.h"

namespace kvcast {

// A slot of the manager's array; its vector keeps its memory from user to
// user, so that opening a sequence allocates nothing in the steady state.
// Committed full blocks come first in `pages`; their nodes are the pages'.
struct Sequence {
  uint32_t generation = 1;
  bool open = false;
  uint32_t slot = 0;  // of its device stream; 0 = none
  uint64_t device_stream = 0;
  uint64_t epoch = 0;    // of the tree it belongs to; an older one: detached
  RootId root = kNil;    // held while attached
  ParentId last = kNil;  // block or root on which the next block hangs
  uint64_t last_hash = 0;
  uint64_t committed = 0;  // tokens, the partly filled tail included
  uint64_t matched = 0;
  FenceSetId waits = 0;  // what the last create or commit told to wait for
  std::vector<PageId> pages;
  uint32_t next_free = kNil;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SEQUENCE_H_
