// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/host_tables.h"

#include <algorithm>
#include <string>
#include <utility>

#include "native/src/status.h"

namespace kvcast {

namespace host_tables {

constexpr uint32_t kMaxTables = 256;
constexpr uint64_t kIndexMask = kMaxTables - 1;
constexpr uint32_t kMaxUploads = 1024;        // of a table, waiting
constexpr uint64_t kMaxEntries = 1ull << 32;  // of a table: 16 GiB

constexpr uint64_t kTriple = 3;
static_assert(sizeof(kvc_table_delta) == kTriple * sizeof(int32_t));

// Copies out of a ring of int32s.
void Unstage(const std::vector<int32_t>& ring, uint64_t at, uint64_t count, int32_t* out) {
  while (count != 0) {
    const uint64_t place = at % ring.size();
    const uint64_t run = std::min<uint64_t>(count, ring.size() - place);
    std::copy_n(ring.data() + place, run, out);
    at += run;
    out += run;
    count -= run;
  }
}

void Stage(std::vector<int32_t>* ring, uint64_t at, uint64_t count, const int32_t* from) {
  while (count != 0) {
    const uint64_t place = at % ring->size();
    const uint64_t run = std::min<uint64_t>(count, ring->size() - place);
    std::copy_n(from, run, ring->data() + place);
    at += run;
    from += run;
    count -= run;
  }
}

}  // namespace host_tables

uint64_t HostTables::Open(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                          uint64_t* address) {
  if (rows == 0 || columns == 0 || uint64_t{rows} * columns > host_tables::kMaxEntries) {
    throw Error(
        KVC_INVALID_ARGUMENT,
        "rows x columns is " + std::to_string(uint64_t{rows} * columns) + ", must be 1 to 2^32");
  }
  if (staging == 0) throw Error(KVC_INVALID_ARGUMENT, "staging is 0, must be at least 1");
  auto made = std::make_unique<Table>();
  made->rows = rows;
  made->columns = columns;
  made->entries = Slab(uint64_t{rows} * columns * sizeof(int32_t), "a device table");
  std::fill_n(made->row(0), uint64_t{rows} * columns, absent);
  RequireHostMemory(uint64_t{staging} * sizeof(int32_t), "a device table's staging");
  made->staging.resize(staging);
  made->uploads.resize(host_tables::kMaxUploads);
  std::lock_guard<std::mutex> lock(mutex_);
  size_t index = 0;
  while (index < tables_.size() && tables_[index] != nullptr) ++index;
  if (index == host_tables::kMaxTables) {
    throw Error(KVC_NOT_NOW, "256 device tables are open; destroy one");
  }
  if (index == tables_.size()) tables_.emplace_back();
  made->id = next_generation_++ * host_tables::kMaxTables + index;
  *address = reinterpret_cast<uintptr_t>(made->row(0));
  tables_[index] = std::move(made);
  return tables_[index]->id;
}

HostTables::Table& HostTables::FindLocked(uint64_t id) const {
  const uint64_t index = id & host_tables::kIndexMask;
  if (index >= tables_.size() || tables_[index] == nullptr || tables_[index]->id != id) {
    throw Error(KVC_STALE_HANDLE, "the device table is not open (destroyed, or never was)");
  }
  return *tables_[index];
}

void HostTables::Close(uint64_t id) {
  std::unique_ptr<Table> closed;  // its memory goes without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = FindLocked(id);
  if (table.first_upload != table.next_upload) {
    throw Error(KVC_BUSY, "uploads to the device table have not been executed");
  }
  closed = std::move(tables_[id & host_tables::kIndexMask]);
}

// The record of the next upload; it counts when next_upload moves on.
HostTables::Upload& HostTables::ReserveLocked(Table* table, uint64_t size) {
  if (size > table->staging.size()) {
    throw Error(KVC_NEVER_FITS, "the upload takes " + std::to_string(size) +
                                    " int32s of staging and the table has " +
                                    std::to_string(table->staging.size()) + "; split it");
  }
  const bool none = table->first_upload == table->next_upload;
  const uint64_t end =
      none ? 0 : table->uploads[(table->next_upload - 1) % table->uploads.size()].end;
  const uint64_t begin =
      none ? 0 : table->uploads[table->first_upload % table->uploads.size()].begin;
  if (end - begin + size > table->staging.size() ||
      table->next_upload - table->first_upload == table->uploads.size()) {
    throw Error(KVC_NOT_NOW, "the table's staging is full; retry when fences have been reached");
  }
  Upload& upload = table->uploads[table->next_upload % table->uploads.size()];
  upload = {};
  upload.begin = end;
  upload.end = end + size;
  return upload;
}

uint64_t HostTables::Stage(uint64_t id, uint32_t count, const kvc_table_delta* deltas) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = FindLocked(id);
  for (uint32_t i = 0; i < count; ++i) {
    if (deltas[i].row >= table.rows || deltas[i].column >= table.columns) {
      throw Error(KVC_INVALID_ARGUMENT, "deltas[" + std::to_string(i) + "] is outside the table");
    }
  }
  Upload& upload = ReserveLocked(&table, count * host_tables::kTriple);
  upload.triples = true;
  host_tables::Stage(&table.staging, upload.begin, count * host_tables::kTriple,
                     reinterpret_cast<const int32_t*>(deltas));
  return table.next_upload++;
}

uint64_t HostTables::Stage(uint64_t id, const TableRows& rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = FindLocked(id);
  if (rows.first > table.rows || rows.count > table.rows - rows.first) {
    throw Error(KVC_INVALID_ARGUMENT, "the rows are outside the table");
  }
  if (rows.stride < table.columns) {
    throw Error(KVC_INVALID_ARGUMENT, "row_stride is less than the table's columns");
  }
  Upload& upload = ReserveLocked(&table, uint64_t{rows.count} * table.columns);
  upload.first_row = rows.first;
  for (uint32_t i = 0; i < rows.count; ++i) {
    host_tables::Stage(&table.staging, upload.begin + uint64_t{i} * table.columns, table.columns,
                       rows.entries + i * rows.stride);
  }
  return table.next_upload++;
}

void HostTables::Execute(uint64_t id, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = FindLocked(id);  // it is: a table with uploads cannot be closed
  Upload& upload = table.uploads[number % table.uploads.size()];
  if (upload.triples) {
    for (uint64_t at = upload.begin; at != upload.end; at += host_tables::kTriple) {
      int32_t triple[host_tables::kTriple];
      host_tables::Unstage(table.staging, at, host_tables::kTriple, triple);
      table.row(static_cast<uint32_t>(triple[0]))[static_cast<uint32_t>(triple[1])] = triple[2];
    }
  } else {
    host_tables::Unstage(table.staging, upload.begin, upload.end - upload.begin,
                         table.row(upload.first_row));
  }
  upload.executed = true;
  while (table.first_upload != table.next_upload &&
         table.uploads[table.first_upload % table.uploads.size()].executed) {
    ++table.first_upload;
  }
}

void HostTables::Read(uint64_t id, uint32_t row, uint32_t column, uint32_t count,
                      int32_t* out) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Table& table = FindLocked(id);
  if (row >= table.rows || column > table.columns || count > table.columns - column) {
    throw Error(KVC_INVALID_ARGUMENT, "the entries are outside the table");
  }
  if (count != 0) std::copy_n(table.row(row) + column, count, out);
}

}  // namespace kvcast
