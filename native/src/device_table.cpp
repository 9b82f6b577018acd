// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's hand in tables that live on the device: streams are looked up
// under the shared lock, so that none is closed while an upload is queued on it.
#include <functional>
#include <mutex>
#include <shared_mutex>

#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

uint64_t Manager::OpenDeviceTable(uint32_t rows, uint32_t columns, int32_t absent, uint32_t staging,
                                  uint64_t* address) {
  return device_.OpenTable(rows, columns, absent, staging, address);
}

void Manager::CloseDeviceTable(uint64_t table) { device_.CloseTable(table); }

// The stream of an upload, looked up when it is noted.
class Manager::UploadSlot {
 public:
  UploadSlot(Manager* manager, uint64_t device_stream)
      : manager_(*manager), stream_(device_stream), lock_(manager->mutex_, std::defer_lock) {}
  uint32_t operator()() {
    lock_.lock();
    const uint32_t slot = manager_.QueueOf(stream_);
    if (!manager_.TakesWork(slot)) throw Error(KVC_BAD_STATE, sequences::kCaptured);
    return slot;
  }

 private:
  const Manager& manager_;
  uint64_t stream_;
  std::shared_lock<WriterFirstMutex> lock_;
};

void Manager::UpdateDeviceTable(uint64_t table, uint64_t device_stream, uint32_t count,
                                const kvc_table_delta* deltas) {
  UploadSlot slot(this, device_stream);
  device_.UpdateTable(std::ref(slot), table, count, deltas);
}

void Manager::WriteDeviceTable(uint64_t table, uint64_t device_stream, const TableRows& rows) {
  UploadSlot slot(this, device_stream);
  device_.WriteTable(std::ref(slot), table, rows);
}

void Manager::ReadDeviceTable(uint64_t table, uint32_t row, uint32_t column, uint32_t count,
                              int32_t* out) {
  Host().ReadTable(table, row, column, count, out);
}

}  // namespace kvcast
