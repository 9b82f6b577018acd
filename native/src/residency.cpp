// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Where the blocks of prompts are.
#include <mutex>
#include <shared_mutex>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

void Manager::Residency(uint32_t count, const kvc_prompt* prompts, const PromptArrays& in,
                        uint64_t block_capacity, kvc_block_residency* blocks,
                        kvc_residency_result* results, kvc_error* error) {
  uint64_t written = 0;
  for (uint32_t i = 0; i < count; ++i) {
    kvc_residency_result& result = results[i];
    result = {};
    PromptView view;
    result.status = ValidatePrompt(prompts[i], in, &view, error);
    if (result.status != KVC_OK) continue;
    const uint64_t first = written;
    const uint64_t found = ProbeOne(view, [&](const NodeId* ids, uint32_t hits) {
      for (uint32_t k = 0; k < hits && written < block_capacity; ++k, ++written) {
        const Node& n = tree_.node(ids[k]);
        kvc_block_residency& out = blocks[written];
        out = {};
        out.block = BlockId(ids[k]);
        out.copies = 1;
        if (n.announce == Announce::kAnnounced) out.flags |= KVC_BLOCK_ANNOUNCED;
        if (pages_[n.page].holders != 0) out.flags |= KVC_BLOCK_HELD;
      }
    });
    result.resident_blocks = static_cast<uint32_t>(found);
    result.first_block = first;
    if (written - first == found) continue;
    written = first;
    result.status = sequences::Item(error, KVC_INVALID_ARGUMENT,
                                    "blocks[] has no room for the resident blocks of a prompt");
  }
}

}  // namespace kvcast
