// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What must be equal for reuse besides the tokens.
#ifndef KVCAST_NATIVE_SRC_SCOPE_H_
#define KVCAST_NATIVE_SRC_SCOPE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcast/kvcast.h"

namespace kvcast {

inline constexpr uint32_t kMaxScopeText = 255;  // bytes of a LoRA name or byte salt

// A view: the texts belong to somebody else.
struct ScopeView {
  uint32_t parts = 0;  // KVC_SCOPE_*
  uint64_t lora_id = 0;
  uint64_t salt = 0;
  std::string_view lora_name;
  std::string_view salt_bytes;
};

struct Scope {
  uint32_t parts = 0;
  uint64_t lora_id = 0;
  uint64_t salt = 0;
  std::string lora_name;
  std::string salt_bytes;

  [[nodiscard]] ScopeView view() const { return {parts, lora_id, salt, lora_name, salt_bytes}; }
};

// Presence and value of every part: an absent part differs from a zero one.
inline bool operator==(const ScopeView& a, const ScopeView& b) {
  return a.parts == b.parts && a.lora_id == b.lora_id && a.salt == b.salt &&
         a.lora_name == b.lora_name && a.salt_bytes == b.salt_bytes;
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SCOPE_H_
