// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The operations of the scripts that have to do with block tables. What a table
// says is compared with the pages of its sequence, and told without their ids.
#ifndef KVCAST_TESTS_NATIVE_TABLE_SCRIPT_H_
#define KVCAST_TESTS_NATIVE_TABLE_SCRIPT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/stepper.h"

namespace kvcast::testing {

inline constexpr uint32_t kTableRows = 4;
inline constexpr uint32_t kTableColumns = 8;

class TableScript {
 public:
  static std::string Dense(kvc_manager* manager, const kvc_table_format& format,
                           const kvc_table_item& item, uint32_t columns) {
    std::vector<int32_t> row(columns);
    int32_t length = 0;
    kvc_table_result result{};
    const kvc_status status = kvc_tables_dense(manager, &format, 1, &item, columns, columns,
                                               row.data(), &length, &result, nullptr);
    if (status != KVC_OK) return kvc_status_name(status);
    if (result.status != KVC_OK) return kvc_status_name(result.status);
    return "entries " + std::to_string(result.entries) + ", length " + std::to_string(length) +
           ", " +
           (row == Expected(manager, format, item.sequence, columns) ? "equal" : "different");
  }

  static std::string Indexed(kvc_manager* manager, const kvc_table_format& format,
                             const std::vector<kvc_table_item>& items) {
    const auto count = static_cast<uint32_t>(items.size());
    std::vector<int32_t> indptr(count + 1), indices(64), last(count);
    std::vector<kvc_table_result> results(count);
    uint64_t needed = 0;
    const kvc_status status =
        kvc_tables_indexed(manager, &format, count, items.data(), indices.size(), indptr.data(),
                           indices.data(), last.data(), &needed, results.data(), nullptr);
    if (status != KVC_OK) return kvc_status_name(status);
    bool equal = true;
    std::string text = "indptr";
    for (const int32_t at : indptr) text += " " + std::to_string(at);
    text += ", last";
    for (uint32_t i = 0; i < count; ++i) {
      text += " " + std::to_string(last[i]);
      const std::vector<int32_t> got(indices.begin() + indptr[i], indices.begin() + indptr[i + 1]);
      equal = equal && got == Expected(manager, format, items[i].sequence,
                                       static_cast<uint32_t>(got.size()));
      if (results[i].status != KVC_OK) {
        text += " (" + std::string(kvc_status_name(results[i].status)) + ")";
      }
    }
    return text + (equal ? ", equal" : ", different");
  }

  // Brings a row of the script's own table up to date and names the columns that
  // came, those without a page with a minus.
  std::string Delta(kvc_manager* manager, const kvc_table_format& format, uint32_t row, uint64_t id,
                    uint32_t room, Stepper* step) {
    const kvc_table_delta_item item{id, 0, row};
    kvc_table_result result{};
    if (step != nullptr) {
      result = step->Delta(format, kTableColumns, item, &cookies_.at(row), &deltas_);
      if (step->noting()) return "";
    } else {
      deltas_.resize(room);
      uint32_t told = 0;
      const kvc_status status =
          kvc_tables_delta(manager, &format, 1, &item, kTableColumns, &cookies_.at(row), room,
                           deltas_.data(), &told, &result, nullptr);
      if (status != KVC_OK) return kvc_status_name(status);
      deltas_.resize(told);
    }
    const size_t written = deltas_.size();
    std::string text;
    if (result.status != KVC_OK) text = std::string(kvc_status_name(result.status)) + ": ";
    text += "columns";
    for (const kvc_table_delta& d : deltas_) {
      text += " " + std::to_string(d.column) + (d.value < 0 ? "-" : "");
      rows_.at(d.row).at(d.column) = d.value;
    }
    if (written == 0) text += " none";
    if (result.entries != written) text += " of " + std::to_string(result.entries);
    const bool equal = rows_.at(row) == Expected(manager, format, id, kTableColumns);
    return text + (equal ? ", equal" : ", different");
  }

  // Queues what the last delta told for the table in the device's memory.
  std::string Upload(kvc_manager* manager, uint64_t stream) {
    return kvc_status_name(kvc_device_table_update(manager, Device(manager), stream,
                                                   static_cast<uint32_t>(deltas_.size()),
                                                   deltas_.data(), nullptr));
  }
  std::string DeviceRows(kvc_manager* manager) {
    std::string text = "rows";
    std::vector<int32_t> row(kTableColumns);
    for (uint32_t r = 0; r < kTableRows; ++r) {
      const kvc_status status =
          kvc_host_table_read(manager, Device(manager), r, 0, kTableColumns, row.data(), nullptr);
      if (status != KVC_OK) return kvc_status_name(status);
      text += row == rows_[r] ? " equal" : " behind";
    }
    return text;
  }

 private:
  static std::vector<int32_t> Expected(kvc_manager* manager, const kvc_table_format& format,
                                       uint64_t id, uint32_t columns) {
    std::vector<uint32_t> pages(64);
    uint32_t written = 0;
    if (kvc_sequence_get(manager, id, 0, 64, pages.data(), &written, nullptr, nullptr) != KVC_OK) {
      written = 0;
    }
    std::vector<int32_t> row;
    for (uint32_t p = 0; p < written; ++p) {
      for (uint32_t i = 0; i < format.expansion; ++i) {
        row.push_back(static_cast<int32_t>(
            (pages[p] * format.index_scale + format.index_offset) * format.expansion + i));
      }
    }
    row.resize(columns, format.absent);
    return row;
  }
  uint64_t Device(kvc_manager* manager) {
    uint64_t address = 0;
    if (device_ == 0) {
      kvc_device_table_create(manager, kTableRows, kTableColumns, -1,
                              3 * kTableRows * kTableColumns, &device_, &address, nullptr);
    }
    return device_;
  }

  std::vector<std::vector<int32_t>> rows_{kTableRows, std::vector<int32_t>(kTableColumns, -1)};
  std::vector<kvc_table_cookie> cookies_ = std::vector<kvc_table_cookie>(kTableRows);
  std::vector<kvc_table_delta> deltas_;
  uint64_t device_ = 0;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_TABLE_SCRIPT_H_
