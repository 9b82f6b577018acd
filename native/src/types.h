// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Small types that every part of the core uses.
#ifndef KVCAST_NATIVE_SRC_TYPES_H_
#define KVCAST_NATIVE_SRC_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace kvcast {

// Ids are 32-bit indices into arenas: half the size of a pointer, and two
// thirds of a node are links. Aliases, not classes: they live in packed records.
using PageId = uint32_t;
using NodeId = uint32_t;
using RootId = uint32_t;
using FenceSetId = uint32_t;
inline constexpr uint32_t kNil = UINT32_MAX;

// The parent of a node is a node or a root, in one word.
inline constexpr uint32_t kRootBit = 0x80000000u;
using ParentId = uint32_t;
[[nodiscard]] constexpr bool IsRoot(ParentId parent) { return (parent & kRootBit) != 0; }
[[nodiscard]] constexpr ParentId RootParent(RootId root) { return root | kRootBit; }
[[nodiscard]] constexpr RootId ToRoot(ParentId parent) { return parent & ~kRootBit; }

inline constexpr uint32_t kMaxPages = 1u << 27;
inline constexpr uint32_t kMaxTokensPerBlock = 4096;
inline constexpr uint32_t kMaxSequences = 1u << 20;
// Tokens are below this on the wire of every reader; TensorRT-LLM uses the
// high bit of its 32-bit tokens for multimodal digests.
inline constexpr uint32_t kTokenLimit = 1u << 31;
// The rest of a token with this bit names a digest: in a caller's tokens one of
// those that come with them, inside the manager an interned one (digest_table.h).
inline constexpr uint32_t kDigestBit = 1u << 31;
inline constexpr size_t kDigestBytes = 32;

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_TYPES_H_
