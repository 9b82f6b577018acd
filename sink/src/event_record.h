// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// How records look in the ring, in 32-bit words:
//
//   store under a block  [header] [parent node] [node x count] [token x count x tokens per block]
//   store under the root [header] [scope ...]   [node x count] [token x count x tokens per block]
//   multimodal store     the same, with the flag in the header and two parts more:
//                        [header] [parent or scope] [node x count] [digests]
//                        [token x count x tokens per block] [8 words x digests]
//   removal              [header, with the reason] [node x count]
//   removal, mixed       [header] [node x count] [reason x count, a byte each]
//   clear                [header] [records before it: 2] [stored blocks before it: 2]
//
// A record is at most kMaxRunBlocks long, so that what the drainer works on at a
// time is bounded. The tokens are a copy: the block may be gone before the drain.
// So are the digests: the drainer never looks at the manager's table. Every block
// of a multimodal store has digest tokens; each names its digest by its place in
// the record, and they stand in the tokens' order.
//
// A removal for several reasons is still one record, so that the reasons cannot
// change where events and batches end. Two blocks or more, it has room for them.
#ifndef KVCAST_SINK_SRC_EVENT_RECORD_H_
#define KVCAST_SINK_SRC_EVENT_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kvcast/kvcast.h"
#include "native/src/scope.h"
#include "native/src/types.h"

namespace kvcast {

enum class RecordKind : uint32_t { kStoreChild = 1, kStoreRoot = 2, kRemove = 3, kClear = 4 };

inline constexpr uint32_t kMaxRunBlocks = 256;
inline constexpr uint32_t kRecordCountBits = 16;
inline constexpr uint32_t kRecordReasonShift = kRecordCountBits;
inline constexpr uint32_t kRecordReasonMask = 0xff;
inline constexpr uint32_t kRecordDigests = 1u << 27;  // a multimodal store
inline constexpr uint32_t kRecordKindShift = 28;
inline constexpr uint32_t kDigestWords = kDigestBytes / sizeof(uint32_t);
// Why blocks are removed: 1 to kRemovalReasons. In a header, 0 is "see behind the nodes".
inline constexpr uint32_t kRemovalReasons = KVC_EVICTED_SCOPE;
inline constexpr uint32_t kMixedReasons = 0;

[[nodiscard]] constexpr uint32_t RecordHeader(RecordKind kind, uint32_t count) {
  return static_cast<uint32_t>(kind) << kRecordKindShift | count;
}
[[nodiscard]] constexpr RecordKind RecordKindOf(uint32_t header) {
  return static_cast<RecordKind>(header >> kRecordKindShift);
}
[[nodiscard]] constexpr uint32_t RecordCountOf(uint32_t header) {
  return header & ((1u << kRecordCountBits) - 1);
}
[[nodiscard]] constexpr uint32_t RemovalHeader(uint32_t reason, uint32_t count) {
  return RecordHeader(RecordKind::kRemove, count) | reason << kRecordReasonShift;
}
[[nodiscard]] constexpr uint32_t RemovalReasonOf(uint32_t header) {
  return header >> kRecordReasonShift & kRecordReasonMask;
}
// Words that the reasons of a mixed removal take.
[[nodiscard]] constexpr uint32_t ReasonWords(uint32_t count) { return (count + 3) / 4; }

inline constexpr uint64_t kClearWords = 5;
// A single removal; n of them in one record take at most n times as many: n - 1
// words are enough for the reasons of n > 1 blocks.
inline constexpr uint64_t kRemovalWords = 2;
// Header and parent; what a store of one block takes besides node and tokens.
inline constexpr uint64_t kStoreChildWords = 2;

// A scope in words: parts and text sizes in the first, then what is present.
inline constexpr size_t kMaxScopeWords = 1 + 2 + 2 + 2 * ((kMaxScopeText + 3) / 4);

struct ScopeWords {
  uint32_t words[kMaxScopeWords];
  uint32_t count = 0;

  explicit ScopeWords(const ScopeView& scope) {
    const auto name_size = HasName(scope.parts) ? static_cast<uint32_t>(scope.lora_name.size()) : 0;
    const auto salt_size =
        HasSaltBytes(scope.parts) ? static_cast<uint32_t>(scope.salt_bytes.size()) : 0;
    words[count++] = scope.parts | name_size << 8 | salt_size << 16;
    if ((scope.parts & KVC_SCOPE_LORA_ID) != 0) PutU64(scope.lora_id);
    if ((scope.parts & KVC_SCOPE_SALT) != 0) PutU64(scope.salt);
    if (name_size != 0) PutText(scope.lora_name);
    if (salt_size != 0) PutText(scope.salt_bytes);
  }

  // Words of a scope, from its first one.
  [[nodiscard]] static uint32_t Count(uint32_t first) {
    return 1 + ((first & KVC_SCOPE_LORA_ID) != 0 ? 2 : 0) +
           ((first & KVC_SCOPE_SALT) != 0 ? 2 : 0) + TextWords(NameSize(first)) +
           TextWords(SaltSize(first));
  }

  // The scope back; its texts point into `words`.
  [[nodiscard]] static ScopeView Decode(const uint32_t* words) {
    ScopeView scope;
    const uint32_t first = *words++;
    scope.parts = first & 0xff;
    if ((first & KVC_SCOPE_LORA_ID) != 0) {
      scope.lora_id = words[0] | uint64_t{words[1]} << 32;
      words += 2;
    }
    if ((first & KVC_SCOPE_SALT) != 0) {
      scope.salt = words[0] | uint64_t{words[1]} << 32;
      words += 2;
    }
    scope.lora_name = {reinterpret_cast<const char*>(words), NameSize(first)};
    words += TextWords(NameSize(first));
    scope.salt_bytes = {reinterpret_cast<const char*>(words), SaltSize(first)};
    return scope;
  }

 private:
  static bool HasName(uint32_t parts) { return (parts & KVC_SCOPE_LORA_NAME) != 0; }
  static bool HasSaltBytes(uint32_t parts) { return (parts & KVC_SCOPE_SALT_BYTES) != 0; }
  static uint32_t NameSize(uint32_t first) { return first >> 8 & 0xff; }
  static uint32_t SaltSize(uint32_t first) { return first >> 16 & 0xff; }
  static uint32_t TextWords(uint32_t size) { return (size + 3) / 4; }

  void PutU64(uint64_t value) {
    words[count++] = static_cast<uint32_t>(value);
    words[count++] = static_cast<uint32_t>(value >> 32);
  }
  void PutText(std::string_view text) {
    // Equal scopes must be equal word by word, padding included.
    words[count + (text.size() - 1) / 4] = 0;
    std::memcpy(&words[count], text.data(), text.size());
    count += TextWords(static_cast<uint32_t>(text.size()));
  }
};

static_assert(kMaxRunBlocks < 1u << kRecordCountBits && kRemovalReasons <= kRecordReasonMask);
// The longest scope's text sizes must fit their eight bits.
static_assert(kMaxScopeText <= 0xff);

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_EVENT_RECORD_H_
