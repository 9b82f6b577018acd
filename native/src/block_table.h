// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Block tables: the pages of sequences as attention kernels want them named.
#ifndef KVCAST_NATIVE_SRC_BLOCK_TABLE_H_
#define KVCAST_NATIVE_SRC_BLOCK_TABLE_H_

#include <cstdint>

#include "kvcast/kvcast.h"
#include "native/src/types.h"

namespace kvcast {

// A kvc_table_format that has been checked: every entry fits an int32.
class TableFormat {
 public:
  // The default for NULL. Throws Error naming the field.
  TableFormat(const kvc_table_format* format, uint32_t pages, uint32_t block_size);

  [[nodiscard]] uint32_t expansion() const { return expansion_; }
  [[nodiscard]] uint32_t kernel_tokens() const { return kernel_tokens_; }
  [[nodiscard]] int32_t absent() const { return absent_; }

  // The first of a page's entries; the others follow it.
  [[nodiscard]] int32_t Entry(PageId page) const {
    return static_cast<int32_t>((page * scale_ + offset_) * expansion_);
  }
  // The first `entries` entries of a list of pages.
  void Write(const PageId* pages, uint64_t entries, int32_t* out) const;
  // Entries [first, end) of a list of pages, as triples.
  kvc_table_delta* Append(const PageId* pages, uint32_t first, uint32_t end, uint32_t row,
                          kvc_table_delta* out) const;

 private:
  uint32_t scale_ = 1;
  uint32_t offset_ = 0;
  uint32_t expansion_ = 1;
  int32_t absent_ = -1;
  uint32_t kernel_tokens_;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_BLOCK_TABLE_H_
