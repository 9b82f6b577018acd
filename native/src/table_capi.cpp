// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of block tables: argument checks, the exception guard, nothing else.
#include <cstddef>

#include "kvcast/kvcast.h"
#include "native/src/capi_call.h"

static_assert(sizeof(kvc_table_format) == 16 && offsetof(kvc_table_format, absent) == 12);
static_assert(sizeof(kvc_table_item) == 16 && offsetof(kvc_table_item, new_tokens) == 12);
static_assert(sizeof(kvc_table_result) == 16 && offsetof(kvc_table_result, kv_tokens) == 8);
static_assert(sizeof(kvc_table_cookie) == 16 && offsetof(kvc_table_cookie, pages) == 12);
static_assert(sizeof(kvc_table_delta_item) == 16 && offsetof(kvc_table_delta_item, row) == 12);
static_assert(sizeof(kvc_table_delta) == 12 && offsetof(kvc_table_delta, value) == 8);

extern "C" {

void kvc_table_format_init(kvc_table_format* format) KVC_NOEXCEPT {
  if (format != nullptr) *format = {1, 0, 1, -1};
}

kvc_status kvc_tables_dense(kvc_manager* manager, const kvc_table_format* format, uint32_t count,
                            const kvc_table_item* items, uint32_t columns, uint64_t row_stride,
                            int32_t* table, int32_t* lengths, kvc_table_result* results,
                            kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(table, uint64_t{count} * columns, "table is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    capi::Require(row_stride >= columns, "row_stride is less than columns: rows would overlap");
    core.TablesDense(format, count, items, columns, row_stride, table, lengths, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_tables_indexed(kvc_manager* manager, const kvc_table_format* format, uint32_t count,
                              const kvc_table_item* items, uint64_t capacity, int32_t* indptr,
                              int32_t* indices, int32_t* last_page_len, uint64_t* needed,
                              kvc_table_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::Require(indptr != nullptr, "indptr[] is NULL");
    capi::RequireArray(indices, capacity, "indices[] is NULL");
    capi::RequireArray(last_page_len, count, "last_page_len[] is NULL");
    capi::Require(needed != nullptr, "needed is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    return core.TablesIndexed(format, count, items, capacity, indptr, indices, last_page_len,
                              needed, results, error);
  });
}

kvc_status kvc_tables_delta(kvc_manager* manager, const kvc_table_format* format, uint32_t count,
                            const kvc_table_delta_item* items, uint32_t columns,
                            kvc_table_cookie* cookies, uint32_t capacity, kvc_table_delta* deltas,
                            uint32_t* written, kvc_table_result* results,
                            kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(cookies, count, "cookies[] is NULL");
    capi::RequireArray(deltas, capacity, "deltas[] is NULL");
    capi::Require(written != nullptr, "written is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.TablesDelta(format, count, items, columns, cookies, capacity, deltas, written, results,
                     error);
    return KVC_OK;
  });
}

kvc_status kvc_device_table_create(kvc_manager* manager, uint32_t rows, uint32_t columns,
                                   int32_t absent, uint32_t staging, uint64_t* table,
                                   uint64_t* address, kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    capi::Require(table != nullptr, "table is NULL");
    capi::Require(address != nullptr, "address is NULL");
    *table = core.OpenDeviceTable(rows, columns, absent, staging, address);
    return KVC_OK;
  });
}

kvc_status kvc_device_table_destroy(kvc_manager* manager, uint64_t table,
                                    kvc_error* error) KVC_NOEXCEPT {
  return capi::CleanUp(manager, error, [&](kvcast::Manager& core) {
    core.CloseDeviceTable(table);
    return KVC_OK;
  });
}

kvc_status kvc_device_table_update(kvc_manager* manager, uint64_t table, uint64_t device_stream,
                                   uint32_t count, const kvc_table_delta* deltas,
                                   kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(
      manager, error,
      [&](kvcast::Manager& core) {
        capi::RequireArray(deltas, count, "deltas[] is NULL");
        core.UpdateDeviceTable(table, device_stream, count, deltas);
        return KVC_OK;
      },
      kvcast::Manager::SlotBit(device_stream));
}

kvc_status kvc_device_table_write(kvc_manager* manager, uint64_t table, uint64_t device_stream,
                                  uint32_t first_row, uint32_t row_count, uint64_t row_stride,
                                  const int32_t* entries, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(
      manager, error,
      [&](kvcast::Manager& core) {
        capi::RequireArray(entries, row_count, "entries[] is NULL");
        core.WriteDeviceTable(table, device_stream, {first_row, row_count, row_stride, entries});
        return KVC_OK;
      },
      kvcast::Manager::SlotBit(device_stream));
}

kvc_status kvc_host_table_read(kvc_manager* manager, uint64_t table, uint32_t row, uint32_t column,
                               uint32_t count, int32_t* out, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(out, count, "out[] is NULL");
    core.ReadDeviceTable(table, row, column, count, out);
    return KVC_OK;
  });
}

}  // extern "C"
