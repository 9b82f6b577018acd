// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Block tables as callers keep them, two at once: one brought up to date after
// every operation, one seldom and with little room. Both must always become what
// the model says, and so must whole tables.
#ifndef KVCAST_TESTS_NATIVE_TABLE_COPIES_H_
#define KVCAST_TESTS_NATIVE_TABLE_COPIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

// What a sequence's table must be: its pages, none while it is suspended.
struct WantedTable {
  uint64_t sequence = 0;
  bool suspended = false;
  std::vector<uint32_t> pages;
};

class TableCopies {
 public:
  TableCopies(uint32_t rows, uint32_t columns)
      : columns_(columns), rows_(rows), often_(rows, columns), seldom_(rows, columns) {}

  // A sequence's row is the index in its id, so rows change hands as slots do.
  // "" or what is wrong.
  std::string Check(kvc_manager* manager, const std::vector<WantedTable>& open) {
    std::vector<std::vector<int32_t>> want(rows_.size(), std::vector<int32_t>(columns_, -1));
    std::vector<kvc_table_item> items;
    for (const WantedTable& table : open) {
      const auto row = static_cast<uint32_t>(table.sequence);
      rows_.at(row) = table.sequence;  // stays behind when the sequence has gone
      for (size_t i = 0; i < table.pages.size(); ++i) {
        want[row].at(i) = static_cast<int32_t>(table.pages[i]);
      }
      if (!table.suspended) items.push_back({table.sequence, 0, 0});
    }
    std::vector<int32_t> table(items.size() * columns_);
    std::vector<kvc_table_result> results(items.size());
    if (kvc_tables_dense(manager, nullptr, static_cast<uint32_t>(items.size()), items.data(),
                         columns_, columns_, table.data(), nullptr, results.data(),
                         nullptr) != KVC_OK) {
      return "dense tables are refused";
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const int32_t* row = table.data() + i * columns_;
      if (results[i].status != KVC_OK || std::vector<int32_t>(row, row + columns_) !=
                                             want[static_cast<uint32_t>(items[i].sequence)]) {
        return "a sequence's dense table differs from its pages";
      }
    }
    std::string wrong = often_.Update(manager, rows_, columns_, columns_ * 4);
    if (!wrong.empty()) return wrong;
    if (often_.rows != want) return "a table made of deltas differs from the whole one";
    if (++calls_ % 9 != 0) return "";
    wrong = seldom_.Update(manager, rows_, columns_, columns_);
    if (!wrong.empty()) return wrong;
    return seldom_.rows == want ? ""
                                : "a table that is seldom looked at differs from the whole one";
  }
  [[nodiscard]] uint64_t triples() const { return often_.triples; }

 private:
  struct Copy {
    Copy(uint32_t count, uint32_t columns)
        : rows(count, std::vector<int32_t>(columns, -1)), cookies(count) {}
    std::string Update(kvc_manager* manager, const std::vector<uint64_t>& sequences,
                       uint32_t columns, uint32_t room) {
      std::vector<kvc_table_delta_item> items;
      for (uint32_t row = 0; row < sequences.size(); ++row)
        items.push_back({sequences[row], 0, row});
      std::vector<kvc_table_delta> deltas(room);
      std::vector<kvc_table_result> results(items.size());
      for (bool again = true; again;) {
        uint32_t written = 0;
        if (kvc_tables_delta(manager, nullptr, static_cast<uint32_t>(items.size()), items.data(),
                             columns, cookies.data(), room, deltas.data(), &written, results.data(),
                             nullptr) != KVC_OK) {
          return "deltas are refused";
        }
        again = false;
        for (const kvc_table_result& result : results) again |= result.status == KVC_NOT_NOW;
        if (again && written == 0) return "a delta does not fit where a whole row does";
        for (uint32_t i = 0; i < written; ++i) {
          rows.at(deltas[i].row).at(deltas[i].column) = deltas[i].value;
        }
        triples += written;
      }
      return "";
    }
    std::vector<std::vector<int32_t>> rows;
    std::vector<kvc_table_cookie> cookies;
    uint64_t triples = 0;
  };

  const uint32_t columns_;
  std::vector<uint64_t> rows_;  // the newest sequence of each
  Copy often_, seldom_;
  uint64_t calls_ = 0;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_TABLE_COPIES_H_
