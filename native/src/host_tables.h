// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Block tables in the host device's memory, and the uploads on their way there.
#ifndef KVCAST_NATIVE_SRC_HOST_TABLES_H_
#define KVCAST_NATIVE_SRC_HOST_TABLES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/device.h"
#include "native/src/slab.h"

namespace kvcast {

// Has a mutex of its own, the last of the device's; it is held while entries are
// copied. An upload is staged (copied into the table's ring) when it is queued
// and executed later, on whatever stream it went to; what it takes of the ring is
// free again when it and all that were staged before it have been executed.
class HostTables {
 public:
  // All throw Error, those with an id for a stale one too.
  uint64_t Open(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                uint64_t* address);
  void Close(uint64_t id);
  // Both return the number of the upload, for Execute.
  uint64_t Stage(uint64_t id, uint32_t count, const kvc_table_delta* deltas);
  uint64_t Stage(uint64_t id, const TableRows& rows);
  void Execute(uint64_t id, uint64_t upload);
  void Read(uint64_t id, uint32_t row, uint32_t column, uint32_t count, int32_t* out) const;

 private:
  struct Upload {
    uint64_t begin = 0;  // in the ring, in int32s that ever went through it
    uint64_t end = 0;
    uint32_t first_row = 0;
    bool triples = false;
    bool executed = false;
  };
  struct Table {
    uint64_t id = 0;
    uint32_t rows = 0;
    uint32_t columns = 0;
    Slab entries;
    std::vector<int32_t> staging;
    std::vector<Upload> uploads;  // a ring
    uint64_t first_upload = 0;    // numbers of those that have not been executed, or
    uint64_t next_upload = 0;     // stand behind one that has not
    [[nodiscard]] int32_t* row(uint32_t index) const {
      return reinterpret_cast<int32_t*>(entries.data()) + uint64_t{index} * columns;
    }
  };

  [[nodiscard]] Table& FindLocked(uint64_t id) const;
  static Upload& ReserveLocked(Table* table, uint64_t size);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_;
  uint64_t next_generation_ = 1;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_HOST_TABLES_H_
