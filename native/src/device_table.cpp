// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The manager's hand in tables that live on the device: streams are looked up
// under the shared lock, so that none is closed while an upload is queued on it.
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

void Manager::UpdateDeviceTable(uint64_t table, uint64_t device_stream, uint32_t count,
                                const kvc_table_delta* deltas) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = QueueOf(device_stream);
  if (!TakesWork(slot)) throw Error(KVC_BAD_STATE, sequences::kCaptured);
  device_.UpdateTable(slot, table, count, deltas);
}

void Manager::WriteDeviceTable(uint64_t table, uint64_t device_stream, const TableRows& rows) {
  std::shared_lock<WriterFirstMutex> lock(mutex_);
  const uint32_t slot = QueueOf(device_stream);
  if (!TakesWork(slot)) throw Error(KVC_BAD_STATE, sequences::kCaptured);
  device_.WriteTable(slot, table, rows);
}

void Manager::ReadDeviceTable(uint64_t table, uint32_t row, uint32_t column, uint32_t count,
                              int32_t* out) {
  Host().ReadTable(table, row, column, count, out);
}

}  // namespace kvcast
