// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What a sequence remembers, so that its block table can be told as a delta.
#ifndef KVCAST_NATIVE_SRC_TABLE_STATE_H_
#define KVCAST_NATIVE_SRC_TABLE_STATE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace kvcast {

// Whoever keeps a copy of the table keeps a cookie beside it: the version and
// the length that the copy has. Pages that were appended since then are known
// from the length; pages that were *replaced or taken away* are what Touch
// notes, as one range of all that has changed since the newest export. A copy
// that is older than that export is told everything anew.
//
// Touch needs the manager's lock; exports share it, and those that run at the
// same time store the same number.
class TableState {
 public:
  TableState() = default;
  // Sequences move only while the manager makes its array, before any export.
  TableState(const TableState& other)
      : version_(other.version_),
        exported_(other.exported_.load(std::memory_order_relaxed)),
        first_(other.first_),
        end_(other.end_) {}
  TableState& operator=(const TableState&) = delete;

  // The pages [first, end) of the list are, or may be, no longer the same.
  // Appending needs no touch; shortening touches what goes, and so does suspending
  // (a suspended sequence has an empty table; resuming fills it anew).
  void Touch(uint32_t first, uint32_t end) {
    if (first >= end) return;
    if (exported_.load(std::memory_order_relaxed) == version_) {
      first_ = first;
      end_ = end;
    } else {
      first_ = std::min(first_, first);
      end_ = std::max(end_, end);
    }
    ++version_;
  }

  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] bool Knows(uint32_t version) const {
    return version == version_ || version == exported_.load(std::memory_order_relaxed);
  }
  // With Knows(version): what differs from a copy of that version, appended
  // pages apart. Empty when first >= end.
  void Changed(uint32_t version, uint32_t* first, uint32_t* end) const {
    *first = version == version_ ? 0 : first_;
    *end = version == version_ ? 0 : end_;
  }
  void Exported() const {
    if (exported_.load(std::memory_order_relaxed) != version_) {
      exported_.store(version_, std::memory_order_relaxed);
    }
  }

  // For Manager::Check: what has been noted since an export is something.
  [[nodiscard]] bool Sound() const {
    return exported_.load(std::memory_order_relaxed) == version_ || first_ < end_;
  }

 private:
  friend struct ManagerPeer;  // tests that break invariants on purpose

  uint32_t version_ = 0;
  mutable std::atomic<uint32_t> exported_{0};
  uint32_t first_ = 0;
  uint32_t end_ = 0;
};

static_assert(sizeof(TableState) == 16);

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_TABLE_STATE_H_
