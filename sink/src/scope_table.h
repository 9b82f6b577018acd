// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The scopes that announced blocks have, each kept once and counted.
#ifndef KVCAST_SINK_SRC_SCOPE_TABLE_H_
#define KVCAST_SINK_SRC_SCOPE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "native/src/block_key.h"

namespace kvcast {

// What of the scopes may go on the wire, by their index: a copy of its own.
struct WireScopes {
  struct Entry {
    uint32_t parts;
    uint32_t name_size;
    uint64_t lora_id;
    size_t name;  // in names
  };
  std::vector<Entry> entries;
  std::vector<char> names;
};

class ScopeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Entry {
    uint32_t parts = 0;
    uint64_t lora_id = 0;
    std::string lora_name;
    uint8_t root_key[kKeyBytes];
    std::string words;  // as in the record, the key of the lookup
    uint64_t users = 0;
    // Where the scope stands in the batch with this number.
    uint64_t batch = 0;
    uint32_t batch_index = 0;
  };

  ScopeTable() = default;
  ScopeTable(const ScopeTable&) = delete;
  ScopeTable& operator=(const ScopeTable&) = delete;

  // Finds or adds the scope with these record words and counts one user.
  // Strong guarantee; allocates only for a scope that is new.
  uint32_t Acquire(const uint32_t* words, uint32_t count);
  void AddUsers(uint32_t scope, uint32_t count) { entries_[scope].users += count; }
  void Release(uint32_t scope);
  // Forgets everything, whoever uses it.
  void Clear();

  // Stays where it is while it has users.
  [[nodiscard]] Entry& at(uint32_t scope) { return entries_[scope]; }
  [[nodiscard]] size_t size() const { return by_words_.size(); }
  // Those without users are there, too, so that the indexes are the same.
  [[nodiscard]] WireScopes Wire() const;

 private:
  std::deque<Entry> entries_;
  std::vector<uint32_t> free_;
  std::map<std::string_view, uint32_t> by_words_;  // views of Entry::words
  uint32_t last_ = kNone;  // most stores of a burst have the scope of the one before
};

}  // namespace kvcast

#endif  // KVCAST_SINK_SRC_SCOPE_TABLE_H_
