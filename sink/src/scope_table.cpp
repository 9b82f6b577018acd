// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "sink/src/scope_table.h"

#include "sink/src/event_record.h"

namespace kvcast {

uint32_t ScopeTable::Acquire(const uint32_t* words, uint32_t count) {
  const std::string_view key(reinterpret_cast<const char*>(words), size_t{count} * sizeof *words);
  if (last_ != kNone && entries_[last_].words == key) {
    ++entries_[last_].users;
    return last_;
  }
  if (const auto found = by_words_.find(key); found != by_words_.end()) {
    last_ = found->second;
    ++entries_[last_].users;
    return last_;
  }
  if (free_.empty()) {
    // Room to free the entry later is taken now, when failing is still allowed.
    if (free_.capacity() == entries_.size()) free_.reserve(2 * entries_.size() + 4);
    entries_.emplace_back();
    free_.push_back(static_cast<uint32_t>(entries_.size() - 1));
  }
  const uint32_t scope = free_.back();
  Entry& entry = entries_[scope];
  const ScopeView view = ScopeWords::Decode(words);
  entry.parts = view.parts & (KVC_SCOPE_LORA_ID | KVC_SCOPE_LORA_NAME);
  entry.lora_id = view.lora_id;
  entry.lora_name.assign(view.lora_name);
  entry.words.assign(key);
  entry.batch = 0;
  RootKey(view, entry.root_key);
  by_words_.emplace(entry.words, scope);
  free_.pop_back();
  entry.users = 1;
  last_ = scope;
  return scope;
}

void ScopeTable::Release(uint32_t scope) {
  Entry& entry = entries_[scope];
  if (--entry.users != 0) return;
  by_words_.erase(entry.words);
  free_.push_back(scope);
  if (last_ == scope) last_ = kNone;
}

WireScopes ScopeTable::Wire() const {
  WireScopes wire;
  wire.entries.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    const bool named = entry.users != 0 && !entry.lora_name.empty();
    wire.entries.push_back({entry.parts, named ? static_cast<uint32_t>(entry.lora_name.size()) : 0,
                            entry.lora_id, wire.names.size()});
    if (named) {
      wire.names.insert(wire.names.end(), entry.lora_name.begin(), entry.lora_name.end());
    }
  }
  return wire;
}

void ScopeTable::Clear() {
  by_words_.clear();
  entries_.clear();
  free_.clear();
  last_ = kNone;
}

}  // namespace kvcast
