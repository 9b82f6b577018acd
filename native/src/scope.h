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

// A view: the texts belong to somebody else. Absent parts are zero or empty.
struct ScopeView {
  uint32_t parts = 0;  // KVC_SCOPE_*
  uint64_t lora_id = 0;
  uint64_t salt = 0;
  std::string_view lora_name;
  std::string_view salt_bytes;

  // The parts that take part in keys: a LoRA name stands in for the id, so that
  // the order in which adapters are loaded does not change keys.
  [[nodiscard]] uint32_t key_parts() const {
    return (parts & KVC_SCOPE_LORA_NAME) != 0 ? parts & ~uint32_t{KVC_SCOPE_LORA_ID} : parts;
  }
  [[nodiscard]] uint64_t key_lora_id() const {
    return (key_parts() & KVC_SCOPE_LORA_ID) != 0 ? lora_id : 0;
  }
};

struct Scope {
  uint32_t parts = 0;
  uint64_t lora_id = 0;
  uint64_t salt = 0;
  std::string lora_name;
  std::string salt_bytes;

  [[nodiscard]] ScopeView view() const { return {parts, lora_id, salt, lora_name, salt_bytes}; }
};

// Presence and value of every part of the key: an absent part differs from a
// zero one. Equal scopes share blocks and have equal root keys.
inline bool operator==(const ScopeView& a, const ScopeView& b) {
  return a.key_parts() == b.key_parts() && a.key_lora_id() == b.key_lora_id() && a.salt == b.salt &&
         a.lora_name == b.lora_name && a.salt_bytes == b.salt_bytes;
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_SCOPE_H_
