// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's exports of block tables. They share the lock, change nothing
// that a scheduler sees and allocate nothing.
#include "native/src/block_table.h"

#include <algorithm>
#include <shared_mutex>
#include <string>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace block_table {

// An export lets writers pass after this many entries: a few microseconds.
constexpr uint64_t kYieldEntries = 4096;
// And after this many sequences, each of which is at least a cache miss.
constexpr uint32_t kYieldItems = 64;

[[noreturn]] void Bad(const char* field, uint64_t value, const char* rule) {
  throw Error(KVC_INVALID_ARGUMENT, std::string("format.") + field + " is " +
                                        std::to_string(value) + ", must be " + rule);
}

// Steps out of the shared lock now and then, when a writer wants in.
class Turn {
 public:
  explicit Turn(WriterFirstMutex& mutex) : mutex_(mutex), lock_(mutex) {}
  void Did(uint64_t entries) {
    entries_ += entries;
    if (entries_ < kYieldEntries && ++items_ < kYieldItems) return;
    entries_ = 0;
    items_ = 0;
    if (!mutex_.writer_waiting()) return;
    lock_.unlock();
    lock_.lock();
  }

 private:
  WriterFirstMutex& mutex_;
  std::shared_lock<WriterFirstMutex> lock_;
  uint64_t entries_ = 0;
  uint32_t items_ = 0;
};

}  // namespace block_table

TableFormat::TableFormat(const kvc_table_format* format, uint32_t pages, uint32_t block_size)
    : kernel_tokens_(block_size) {
  if (format == nullptr) return;
  scale_ = format->index_scale;
  offset_ = format->index_offset;
  expansion_ = format->expansion;
  absent_ = format->absent;
  if (scale_ == 0) block_table::Bad("index_scale", scale_, "at least 1");
  if (expansion_ == 0 || block_size % expansion_ != 0) {
    block_table::Bad("expansion", expansion_, "a divisor of tokens_per_block");
  }
  kernel_tokens_ = block_size / expansion_;
  // pages <= 2^27 and expansion <= 4096: the products below stay under 2^64.
  const uint64_t last = uint64_t{pages - 1} * scale_ + offset_;
  if (last > INT32_MAX || last * expansion_ + (expansion_ - 1) > INT32_MAX) {
    block_table::Bad("index_scale", scale_,
                     "smaller: with index_offset and expansion an entry must fit an int32");
  }
}

void TableFormat::Write(const PageId* pages, uint64_t entries, int32_t* out) const {
  if (expansion_ == 1) {
    for (uint64_t i = 0; i < entries; ++i) out[i] = Entry(pages[i]);
    return;
  }
  for (uint64_t i = 0; i < entries; ++pages) {
    const int32_t first = Entry(*pages);
    for (uint32_t part = 0; part < expansion_ && i < entries; ++part, ++i) {
      out[i] = first + static_cast<int32_t>(part);
    }
  }
}

kvc_table_delta* TableFormat::Append(const PageId* pages, uint32_t first, uint32_t end,
                                     uint32_t row, kvc_table_delta* out) const {
  if (expansion_ == 1) {
    for (uint32_t i = first; i < end; ++i) *out++ = {row, i, Entry(pages[i])};
    return out;
  }
  for (uint32_t i = first; i < end; ++i) {
    const int32_t value = Entry(pages[i]);
    for (uint32_t part = 0; part < expansion_; ++part) {
      *out++ = {row, i * expansion_ + part, value + static_cast<int32_t>(part)};
    }
  }
  return out;
}

// The sequence of an item and the length of its table, or why there is none.
kvc_status Manager::TableOf(uint64_t sequence, uint32_t group, const Sequence** out,
                            kvc_error* error) const {
  if (group != 0) {
    return sequences::Item(error, KVC_INVALID_ARGUMENT, "an item's group has no pages");
  }
  const auto index = static_cast<uint32_t>(sequence);
  if (index < max_sequences_) {
    const Sequence& seq = sequences_[index];
    if (seq.open && seq.holds == 0 && seq.generation == static_cast<uint32_t>(sequence >> 32)) {
      *out = &seq;
      return KVC_OK;
    }
  }
  return sequences::Item(error, KVC_STALE_HANDLE,
                         "the sequence is not open (released, or never was)");
}

kvc_status Manager::TableLength(const kvc_table_item& item, const Sequence** out,
                                kvc_table_result* result, kvc_error* error) const {
  if (const kvc_status bad = TableOf(item.sequence, item.group, out, error); bad != KVC_OK) {
    return bad;
  }
  const Sequence& seq = **out;
  if (seq.suspended) return sequences::Suspended(error);
  result->kv_tokens = seq.committed + item.new_tokens;
  if (result->kv_tokens > uint64_t{seq.pages.size()} * block_size_) {
    return sequences::Item(error, KVC_BAD_STATE,
                           "new_tokens exceed the sequence's room; grow it first");
  }
  if (result->kv_tokens > INT32_MAX) {
    return sequences::Item(error, KVC_INVALID_ARGUMENT, "kv_tokens do not fit an int32");
  }
  return KVC_OK;
}

void Manager::TablesDense(const kvc_table_format* format, uint32_t count,
                          const kvc_table_item* items, uint32_t columns, uint64_t row_stride,
                          int32_t* table, int32_t* lengths, kvc_table_result* results,
                          kvc_error* error) {
  const TableFormat f(format, pages_.most(), block_size_);
  block_table::Turn turn(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    const Sequence* seq = nullptr;
    kvc_table_result& result = results[i];
    result = {};
    result.status = TableLength(items[i], &seq, &result, error);
    uint64_t written = 0;
    if (result.status == KVC_OK) {
      const uint64_t all = uint64_t{seq->pages.size()} * f.expansion();
      result.entries = static_cast<uint32_t>(all);
      written = std::min<uint64_t>(all, columns);
      const uint64_t needed = (result.kv_tokens + f.kernel_tokens() - 1) / f.kernel_tokens();
      if (needed > columns) {
        result.status =
            sequences::Item(error, KVC_INVALID_ARGUMENT, "columns are too few for kv_tokens");
        written = 0;
      }
    }
    int32_t* row = table + i * row_stride;
    if (written != 0) f.Write(seq->pages.data(), written, row);
    std::fill(row + written, row + columns, f.absent());
    if (result.status != KVC_OK) result.kv_tokens = 0;
    if (lengths != nullptr) lengths[i] = static_cast<int32_t>(result.kv_tokens);
    turn.Did(columns);
  }
}

kvc_status Manager::TablesIndexed(const kvc_table_format* format, uint32_t count,
                                  const kvc_table_item* items, uint64_t capacity, int32_t* indptr,
                                  int32_t* indices, int32_t* last_page_len, uint64_t* needed,
                                  kvc_table_result* results, kvc_error* error) {
  const TableFormat f(format, pages_.most(), block_size_);
  uint64_t end = 0;
  indptr[0] = 0;
  {
    block_table::Turn turn(mutex_);
    for (uint32_t i = 0; i < count; ++i) {
      const Sequence* seq = nullptr;
      kvc_table_result& result = results[i];
      result = {};
      result.status = TableLength(items[i], &seq, &result, error);
      uint64_t entries = 0;
      if (result.status == KVC_OK) {
        entries = (result.kv_tokens + f.kernel_tokens() - 1) / f.kernel_tokens();
        result.entries = static_cast<uint32_t>(entries);
        // Beyond the capacity they are only counted.
        if (end + entries <= capacity) f.Write(seq->pages.data(), entries, indices + end);
      } else {
        result.kv_tokens = 0;
      }
      last_page_len[i] = static_cast<int32_t>(
          entries == 0 ? 0 : result.kv_tokens - (entries - 1) * f.kernel_tokens());
      end += entries;
      indptr[i + 1] = static_cast<int32_t>(std::min<uint64_t>(end, INT32_MAX));
      turn.Did(entries);
    }
  }
  *needed = end;
  if (end > capacity) {
    return Fail(error, KVC_INVALID_ARGUMENT, "indices[] is too small; *needed says how many");
  }
  if (end > INT32_MAX) {
    return Fail(error, KVC_INVALID_ARGUMENT, "more entries than indptr[] can count");
  }
  return KVC_OK;
}

// How the row of a cookie becomes the table of `seq` (nullptr: an empty one).
// Needs the lock, shared or not; kvc_step calls it as well.
kvc_status Manager::TableDelta(const TableFormat& f, uint64_t id, const Sequence* seq, uint32_t row,
                               uint32_t columns, kvc_table_cookie* cookie, uint32_t room,
                               kvc_table_delta* out, uint32_t* entries, kvc_error* error) const {
  const uint32_t had = cookie->pages;
  // What a suspended sequence keeps has no place in a table.
  const auto has = seq == nullptr || seq->suspended ? 0 : static_cast<uint32_t>(seq->pages.size());
  // [0, has) entirely, or what has changed in it and what was appended.
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t appended = 0;
  if (seq != nullptr && cookie->sequence == id && seq->table.Knows(cookie->version)) {
    seq->table.Changed(cookie->version, &first, &end);
    appended = std::min(had, has);
    end = std::min(end, appended);
    first = std::min(first, end);
  }
  const uint32_t cleared = has < had ? had - has : 0;
  const uint64_t triples =
      (uint64_t{end} - first + has - appended + cleared) * uint64_t{f.expansion()};
  *entries = static_cast<uint32_t>(std::min<uint64_t>(triples, UINT32_MAX));
  if (uint64_t{std::max(has, had)} * f.expansion() > columns) {
    return sequences::Item(error, KVC_INVALID_ARGUMENT,
                           "the sequence has more entries than the table has columns");
  }
  if (triples > room) {
    return sequences::Item(error, KVC_NOT_NOW,
                           "deltas[] has no room for the item; repeat it with more");
  }
  const PageId* pages = seq == nullptr ? nullptr : seq->pages.data();
  if (first < end) out = f.Append(pages, first, end, row, out);
  out = f.Append(pages, appended, has, row, out);
  for (uint64_t i = uint64_t{has} * f.expansion(); i < uint64_t{had} * f.expansion(); ++i) {
    *out++ = {row, static_cast<uint32_t>(i), f.absent()};
  }
  *cookie = {};
  if (seq != nullptr) {
    seq->table.Exported();
    *cookie = {id, seq->table.version(), has};
  }
  return KVC_OK;
}

void Manager::TablesDelta(const kvc_table_format* format, uint32_t count,
                          const kvc_table_delta_item* items, uint32_t columns,
                          kvc_table_cookie* cookies, uint32_t capacity, kvc_table_delta* deltas,
                          uint32_t* written, kvc_table_result* results, kvc_error* error) {
  const TableFormat f(format, pages_.most(), block_size_);
  uint32_t used = 0;
  block_table::Turn turn(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    kvc_table_result& result = results[i];
    result = {};
    const Sequence* seq = nullptr;
    // A sequence that is gone leaves an empty row, and so does sequence 0.
    if (items[i].sequence != 0) {
      result.status = TableOf(items[i].sequence, items[i].group, &seq, error);
      if (result.status == KVC_INVALID_ARGUMENT) continue;
    }
    const kvc_status told =
        TableDelta(f, items[i].sequence, seq, items[i].row, columns, &cookies[i], capacity - used,
                   deltas + used, &result.entries, error);
    if (told != KVC_OK) {
      result.status = told;
    } else {
      used += result.entries;
      result.kv_tokens = seq == nullptr ? 0 : seq->committed;
    }
    turn.Did(result.entries);
  }
  *written = used;
}

}  // namespace kvcast
