// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// One request's view of the pages.
#ifndef KVCAST_NATIVE_SRC_SEQUENCE_H_
#define KVCAST_NATIVE_SRC_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "native/src/page.h"
#include "native/src/table_state.h"
#include "native/src/types.h"

namespace kvcast {

// The class of blocks whose first token is at or after `from`, and when it ends (0:
// never).
struct RetentionRule {
  uint64_t from;
  uint64_t expires_ns;
  uint8_t own;
};

// A slot of the manager's array; its vectors keep their memory from user to
// user, so that opening a sequence allocates nothing in the steady state.
//
// While active: blocks in the tree come first in `pages` (`linked` of them;
// their nodes are the pages'), then what is the sequence's own. While
// suspended: `path` has the tokens of the former, `pages` those of the latter
// that were kept. Fresh: `path` has the prompt's.
struct Sequence {
  uint32_t generation = 1;
  bool open = false;
  bool suspended = false;
  bool cancelled = false;  // what a hold ends in
  bool marking = false;    // it has marks; `path` has the tokens of its prompt until they end
  uint32_t holds = 0;      // not 0: released, and held for a transfer this often
  bool fresh = false;      // began suspended, not resumed yet
  bool rest_kept = false;  // suspended: nothing of `pages` has been taken away
  bool will_mark = false;  // fresh: marks what it is going to compute
  bool awaits = false;     // fresh: not resumed while others compute what it needs
  uint32_t slot = 0;       // of its device stream; 0 = none
  uint64_t device_stream = 0;
  uint64_t epoch = 0;    // of the tree it belongs to; an older one: detached
  RootId root = kNil;    // held while attached
  ParentId last = kNil;  // block or root on which the next block hangs
  uint64_t last_hash = 0;
  uint64_t committed = 0;     // tokens, the partly filled tail included
  bool path_digests = false;  // the path has digest tokens, interned
  bool tail_digests = false;  // the tail has digest tokens, interned
  uint32_t match_blocks = 0;  // fresh: of its path, to be matched
  uint64_t matched = 0;
  uint32_t backoff = 0;         // fresh: what its match leaves out
  uint32_t linked = 0;          // leading blocks in the tree, while attached
  uint32_t stop_blocks = kNil;  // no block from this one on enters the tree
  uint64_t suspended_at = 0;    // number of the suspension
  // What is said of blocks yet to be committed, in the order of their positions: each
  // holds up to the next.
  std::vector<RetentionRule> rules;
  FenceSetId waits = 0;  // what the last create or commit told to wait for
  std::vector<PageId> pages;
  std::vector<uint32_t> path;
  TableState table;  // told of every page of `pages` that is replaced or taken away
  uint32_t next_free = kNil;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SEQUENCE_H_
