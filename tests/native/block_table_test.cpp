// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Block tables through the C ABI: each form against the pages that
// kvc_sequence_get tells, deltas against whole tables after every operation, and
// uploads that a device executes late.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace kvcast {
namespace {

using testing::Cache;
using testing::CacheOptions;

constexpr uint32_t kColumns = 12;

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

class BlockTable : public ::testing::Test {
 protected:
  BlockTable() { kvc_table_format_init(&format_); }
  void Open(uint32_t pages, uint32_t sequences = 8, uint32_t block = 4) {
    CacheOptions options;
    options.block = block;
    options.pages = pages;
    options.sequences = sequences;
    options.stream = false;
    cache_ = std::make_unique<Cache>(options);
  }
  uint64_t New(const std::vector<uint32_t>& tokens, uint64_t capacity, uint64_t stream = 0) {
    const kvc_create_result made = cache_->Create(tokens, {}, KVC_COMPUTE_NOTHING, stream);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(cache_->Grow(made.sequence, capacity).status, KVC_OK);
    return made.sequence;
  }
  std::vector<uint32_t> Pages(uint64_t id) {
    kvc_sequence_info info{};
    std::vector<uint32_t> pages;
    EXPECT_EQ(cache_->Get(id, &info, &pages), KVC_OK);
    return pages;
  }
  // What stands in a row, from the pages and the formula of kvcast.h.
  std::vector<int32_t> Expected(const std::vector<uint32_t>& pages, uint32_t columns) const {
    std::vector<int32_t> row;
    for (const uint64_t page : pages) {
      for (uint64_t i = 0; i < format_.expansion; ++i) {
        row.push_back(static_cast<int32_t>(
            (page * format_.index_scale + format_.index_offset) * format_.expansion + i));
      }
    }
    row.resize(columns, format_.absent);
    return row;
  }
  kvc_manager* m() { return cache_->manager(); }

  std::unique_ptr<Cache> cache_;
  kvc_table_format format_;
  kvc_error error_{};
};

TEST_F(BlockTable, DenseRows) {
  Open(32);
  const uint64_t a = New({}, 9);
  const uint64_t b = New({}, 20);
  const std::vector<uint32_t> tokens = Tokens(0, 6);
  ASSERT_EQ(cache_->Commit(a, tokens.data(), 6).status, KVC_OK);
  for (const bool scaled : {false, true}) {
    if (scaled) format_ = {7, 3, 2, -5};
    const kvc_table_item items[] = {
        {a, 0, 2}, {b, 0, 0}, {a + (uint64_t{1} << 32), 0, 0}, {a, 1, 0}, {a, 0, 7}};
    constexpr uint32_t kStride = kColumns + 3;
    std::vector<int32_t> table(5 * kStride, 99);
    int32_t lengths[5];
    kvc_table_result results[5];
    ASSERT_EQ(kvc_tables_dense(m(), &format_, 5, items, kColumns, kStride, table.data(), lengths,
                               results, &error_),
              KVC_OK);
    const kvc_status want[] = {KVC_OK, KVC_OK, KVC_STALE_HANDLE, KVC_INVALID_ARGUMENT,
                               KVC_BAD_STATE};
    const int32_t length[] = {8, 0, 0, 0, 0};
    for (uint32_t i = 0; i < 5; ++i) {
      EXPECT_EQ(results[i].status, want[i]) << i;
      EXPECT_EQ(lengths[i], length[i]) << i;
      EXPECT_EQ(results[i].kv_tokens, static_cast<uint64_t>(length[i])) << i;
      const auto* row = &table[i * kStride];
      EXPECT_EQ(std::vector<int32_t>(row, row + kColumns),
                Expected(i < 2 ? Pages(items[i].sequence) : std::vector<uint32_t>{}, kColumns))
          << i;
      for (uint32_t c = kColumns; c < kStride; ++c) EXPECT_EQ(row[c], 99) << "not ours";
    }
    EXPECT_EQ(results[0].entries, 3 * format_.expansion);
    EXPECT_EQ(results[1].entries, 5 * format_.expansion);
    EXPECT_EQ(error_.status, KVC_STALE_HANDLE) << "the first story";
  }
  // Columns that end before the capacity cut; before the tokens they are too few.
  format_ = {1, 0, 1, -1};
  const kvc_table_item item{a, 0, 2};
  kvc_table_result result;
  int32_t cut[2], length;
  ASSERT_EQ(kvc_tables_dense(m(), nullptr, 1, &item, 2, 2, cut, &length, &result, &error_), KVC_OK);
  EXPECT_EQ(result.status, KVC_OK);
  EXPECT_EQ(result.entries, 3u) << "more than there were columns";
  EXPECT_EQ(std::vector<int32_t>(cut, cut + 2), Expected({Pages(a)[0], Pages(a)[1]}, 2));
  ASSERT_EQ(kvc_tables_dense(m(), nullptr, 1, &item, 1, 1, cut, nullptr, &result, &error_), KVC_OK);
  EXPECT_EQ(result.status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(cut[0], -1);
}

TEST_F(BlockTable, IndexedAsFlashInferReadsIt) {
  Open(32);
  std::vector<uint64_t> ids;
  std::vector<kvc_table_item> items;
  const uint32_t committed[] = {0, 4, 5, 8, 11};
  for (const uint32_t count : committed) {
    ids.push_back(New({}, 12));
    const std::vector<uint32_t> tokens = Tokens(100 * count, count);
    ASSERT_EQ(cache_->Commit(ids.back(), tokens.data(), count).status, KVC_OK);
    items.push_back({ids.back(), 0, 0});
  }
  items[0].new_tokens = 3;
  items[1].new_tokens = 1;
  items.push_back({12345, 0, 0});
  const auto count = static_cast<uint32_t>(items.size());
  for (const uint32_t expansion : {1u, 2u, 4u}) {
    format_.expansion = expansion;
    const uint32_t page_size = 4 / expansion;
    std::vector<int32_t> indptr(count + 1), last(count), indices(100, 99);
    std::vector<kvc_table_result> results(count);
    uint64_t needed = 0;
    ASSERT_EQ(kvc_tables_indexed(m(), &format_, count, items.data(), indices.size(), indptr.data(),
                                 indices.data(), last.data(), &needed, results.data(), &error_),
              KVC_OK);
    EXPECT_EQ(results[5].status, KVC_STALE_HANDLE);
    for (uint32_t i = 0; i < count; ++i) {
      // paged_kv_t::get_length of include/flashinfer/page.cuh.
      const int32_t length =
          indptr[i + 1] == indptr[i]
              ? 0
              : (indptr[i + 1] - indptr[i] - 1) * static_cast<int32_t>(page_size) + last[i];
      const uint64_t want = i < 5 ? committed[i] + items[i].new_tokens : 0;
      EXPECT_EQ(static_cast<uint64_t>(length), want) << i;
      EXPECT_EQ(results[i].kv_tokens, want);
      if (length == 0) continue;
      EXPECT_GE(last[i], 1);
      EXPECT_LE(last[i], static_cast<int32_t>(page_size));
      const auto used = static_cast<uint32_t>(indptr[i + 1] - indptr[i]);
      std::vector<int32_t> row = Expected(Pages(ids[i]), 12);
      row.resize(used);
      EXPECT_EQ(std::vector<int32_t>(indices.begin() + indptr[i], indices.begin() + indptr[i + 1]),
                row)
          << i;
    }
    EXPECT_EQ(needed, static_cast<uint64_t>(indptr[count]));
    EXPECT_EQ(indices[needed], 99) << "nothing beyond the entries";
    uint64_t again = 0;
    EXPECT_EQ(kvc_tables_indexed(m(), &format_, count, items.data(), needed - 1, indptr.data(),
                                 indices.data(), last.data(), &again, results.data(), &error_),
              KVC_INVALID_ARGUMENT);
    EXPECT_EQ(again, needed) << "told although it did not fit";
  }
}

TEST_F(BlockTable, FormatsAreChecked) {
  Open(1000, 2, 6);
  const kvc_table_item item{0, 0, 0};
  kvc_table_result result;
  int32_t entry = 0;
  const auto refused = [&](kvc_table_format format, const char* field) {
    EXPECT_EQ(kvc_tables_dense(m(), &format, 1, &item, 1, 1, &entry, nullptr, &result, &error_),
              KVC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find(field), std::string::npos) << error_.message;
  };
  refused({0, 0, 1, -1}, "index_scale");
  refused({1, 0, 0, -1}, "expansion");
  refused({1, 0, 4, -1}, "expansion");
  refused({1, UINT32_MAX, 1, -1}, "int32");
  refused({2200000, 0, 1, -1}, "int32");
  refused({UINT32_MAX, UINT32_MAX, 6, -1}, "int32");
  // 999 x 1,074,816 x 2 + 1 is the last that fits.
  kvc_table_format most{1074815, 0, 2, -1};
  EXPECT_EQ(kvc_tables_dense(m(), &most, 1, &item, 1, 1, &entry, nullptr, &result, &error_),
            KVC_OK);
}

// The caller's side: rows, their cookies, and what deltas did to them.
struct Copy {
  explicit Copy(uint32_t rows, int32_t absent)
      : entries(rows, std::vector<int32_t>(kColumns, absent)), cookies(rows) {}
  std::vector<std::vector<int32_t>> entries;
  std::vector<kvc_table_cookie> cookies;
};

TEST_F(BlockTable, DeltasTellWhatChanged) {
  Open(32);
  const std::vector<uint32_t> text = Tokens(0, 16);
  const uint64_t a = New({}, 8);
  const uint64_t b = New({}, 16);
  Copy copy(1, -1);
  const auto delta = [&](uint64_t id) {
    const kvc_table_delta_item item{id, 0, 0};
    kvc_table_delta deltas[kColumns + 1];
    uint32_t written = 99;
    kvc_table_result result;
    EXPECT_EQ(kvc_tables_delta(m(), &format_, 1, &item, kColumns, copy.cookies.data(), kColumns,
                               deltas, &written, &result, &error_),
              KVC_OK);
    std::string text_of;
    for (uint32_t i = 0; i < written; ++i) {
      EXPECT_EQ(deltas[i].row, 0u);
      text_of += std::to_string(deltas[i].column) + (deltas[i].value < 0 ? "- " : " ");
      copy.entries[0].at(deltas[i].column) = deltas[i].value;
    }
    EXPECT_EQ(result.entries, written);
    return text_of;
  };
  EXPECT_EQ(delta(b), "0 1 2 3 ") << "all of it at first";
  EXPECT_EQ(delta(b), "");
  ASSERT_EQ(cache_->Grow(b, 24).status, KVC_OK);
  EXPECT_EQ(delta(b), "4 5 ") << "what was appended";
  ASSERT_EQ(cache_->Commit(b, text.data(), 4).status, KVC_OK);
  EXPECT_EQ(delta(b), "") << "a commit that replaces no page changes no entry";
  // Another computes the next block; ours is given up for it.
  ASSERT_EQ(cache_->Commit(a, text.data(), 8).status, KVC_OK);
  EXPECT_EQ(cache_->Commit(b, text.data() + 4, 8).first_changed_block, 1u);
  EXPECT_EQ(delta(b), "1 ");
  EXPECT_EQ(copy.entries[0], Expected(Pages(b), kColumns));
  // The row goes to a shorter sequence: replaced, and emptied behind it.
  EXPECT_EQ(delta(a), "0 1 2- 3- 4- 5- ");
  EXPECT_EQ(copy.entries[0], Expected(Pages(a), kColumns));
  ASSERT_EQ(cache_->Release(a), KVC_OK);
  EXPECT_EQ(delta(a), "0- 1- ") << "a sequence that is gone leaves an empty row";
  EXPECT_EQ(error_.status, KVC_STALE_HANDLE);
  EXPECT_EQ(delta(a), "");
  EXPECT_EQ(delta(b), "0 1 2 3 4 5 ");
  EXPECT_EQ(delta(0), "0- 1- 2- 3- 4- 5- ") << "and so does none";
  EXPECT_EQ(error_.status, KVC_OK);
}

TEST_F(BlockTable, DeltasThatDoNotFitAreSeen) {
  Open(32);
  const uint64_t a = New({}, 12);
  const uint64_t b = New({}, 16);
  const uint64_t c = New({}, 4);
  const kvc_table_delta_item items[] = {{a, 0, 0}, {b, 0, 1}, {c, 0, 2}, {c, 3, 3}};
  kvc_table_cookie cookies[4] = {};
  kvc_table_delta deltas[8];
  kvc_table_result results[4];
  uint32_t written = 0;
  deltas[5].value = 77;
  ASSERT_EQ(kvc_tables_delta(m(), nullptr, 4, items, kColumns, cookies, 5, deltas, &written,
                             results, &error_),
            KVC_OK);
  EXPECT_EQ(written, 4u);
  EXPECT_EQ(results[0].status, KVC_OK);
  EXPECT_EQ(results[1].status, KVC_NOT_NOW);
  EXPECT_EQ(results[1].entries, 4u) << "what it takes";
  EXPECT_EQ(cookies[1].sequence, 0u) << "as it was";
  EXPECT_EQ(results[2].status, KVC_OK) << "a smaller one behind it still fits";
  EXPECT_EQ(results[3].status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(deltas[5].value, 77);
  ASSERT_EQ(kvc_tables_delta(m(), nullptr, 4, items, kColumns, cookies, 8, deltas, &written,
                             results, &error_),
            KVC_OK);
  EXPECT_EQ(written, 4u) << "only what had not been told";
  EXPECT_EQ(deltas[0].row, 1u);
  // Fewer columns than the sequence has entries.
  cookies[1] = {};
  ASSERT_EQ(
      kvc_tables_delta(m(), nullptr, 2, items, 3, cookies, 8, deltas, &written, results, &error_),
      KVC_OK);
  EXPECT_EQ(results[0].status, KVC_OK);
  EXPECT_EQ(results[1].status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(written, 0u);
  // A cookie that nobody wrote cannot make it write more than there is room for.
  kvc_table_cookie forged{b, 0, UINT32_MAX};
  ASSERT_EQ(kvc_tables_delta(m(), nullptr, 1, &items[1], UINT32_MAX, &forged, 8, deltas, &written,
                             results, &error_),
            KVC_OK);
  EXPECT_EQ(results[0].status, KVC_NOT_NOW);
  EXPECT_EQ(written, 0u);
}

// Pages that went while nobody looked, and others that came in their places.
TEST_F(BlockTable, DeltasAfterWhatNobodySaw) {
  for (const bool suspend : {false, true}) {
    Open(32);
    const uint64_t a = New({}, 20);
    const std::vector<uint32_t> text = Tokens(0, 4);
    ASSERT_EQ(cache_->Commit(a, text.data(), 4).status, KVC_OK);
    Copy copy(1, -1);
    const auto delta = [&] {
      const kvc_table_delta_item item{a, 0, 0};
      kvc_table_delta deltas[kColumns];
      uint32_t written = 0;
      kvc_table_result result;
      EXPECT_EQ(kvc_tables_delta(m(), nullptr, 1, &item, kColumns, copy.cookies.data(), kColumns,
                                 deltas, &written, &result, &error_),
                KVC_OK);
      for (uint32_t i = 0; i < written; ++i) copy.entries[0][deltas[i].column] = deltas[i].value;
      EXPECT_EQ(copy.entries[0], Expected(Pages(a), kColumns));
      return written;
    };
    EXPECT_EQ(delta(), 5u);
    const std::vector<uint32_t> before = Pages(a);
    if (suspend) {
      ASSERT_EQ(cache_->Suspend(a, false), KVC_OK);
    } else {
      ASSERT_EQ(cache_->Truncate(a, 4).status, KVC_OK);
    }
    New({}, 8);  // takes pages of ours
    if (suspend) {
      ASSERT_EQ(cache_->Resume(a).status, KVC_OK);
    }
    ASSERT_EQ(cache_->Grow(a, 16).status, KVC_OK);
    ASSERT_NE(Pages(a)[1], before[1]) << "the test must meet other pages";
    // The one entry that goes, and those that were taken away; suspending also
    // touches the block that came back.
    EXPECT_EQ(delta(), suspend ? 5u : 4u);
    EXPECT_EQ(delta(), 0u);
  }
}

// Two callers with copies of their own, one of which looks seldom and has little
// room: whatever happens, deltas make them equal to the whole tables.
TEST_F(BlockTable, DeltasKeepCopiesEqual) {
  const uint64_t seed = testing::EnvNumber("KVC_SEED", 99);
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  uint64_t triples = 0;
  uint64_t full = 0;
  uint64_t deduplicated = 0;
  for (const uint32_t expansion : {1u, 2u}) {
    format_ = {3, 1, expansion, -1};
    Open(64, 16, 2);
    constexpr uint32_t kRows = 6;
    std::vector<uint64_t> rows(kRows, 0);  // the sequence in each
    std::map<uint64_t, uint32_t> committed;
    Copy often(kRows, -1), seldom(kRows, -1);
    const auto update = [&](Copy* copy, uint32_t room) {
      std::vector<kvc_table_delta_item> items;
      for (uint32_t r = 0; r < kRows; ++r) items.push_back({rows[r], 0, r});
      std::vector<kvc_table_delta> deltas(room);
      std::vector<kvc_table_result> results(kRows);
      for (;;) {
        uint32_t written = 0;
        ASSERT_EQ(
            kvc_tables_delta(m(), &format_, kRows, items.data(), kColumns, copy->cookies.data(),
                             room, deltas.data(), &written, results.data(), &error_),
            KVC_OK);
        for (uint32_t i = 0; i < written; ++i) {
          copy->entries.at(deltas[i].row).at(deltas[i].column) = deltas[i].value;
        }
        triples += written;
        bool again = false;
        for (const kvc_table_result& result : results) again |= result.status == KVC_NOT_NOW;
        if (!again) return;
        ASSERT_GT(written, 0u);
      }
    };
    const auto compare = [&](const Copy& copy) {
      for (uint32_t r = 0; r < kRows; ++r) {
        const bool open = cache_->open().count(rows[r]) != 0;
        ASSERT_EQ(copy.entries[r],
                  Expected(open ? Pages(rows[r]) : std::vector<uint32_t>{}, kColumns))
            << "row " << r;
      }
    };
    for (int step = 0; step < 12000; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const uint32_t r = static_cast<uint32_t>(random() % kRows);
      const bool open = cache_->open().count(rows[r]) != 0;
      switch (random() % 9) {
        case 0:  // another sequence comes into the row
          if (open) {
            ASSERT_EQ(cache_->Release(rows[r]), KVC_OK);
          }
          rows[r] = random() % 8 == 0 ? 0 : cache_->Create({}).sequence;
          committed[rows[r]] = 0;
          break;
        case 1:
          if (open && random() % 3 == 0) {
            ASSERT_EQ(cache_->Release(rows[r]), KVC_OK);
          }
          break;
        case 2:
        case 3:
          if (open) cache_->Grow(rows[r], random() % (2 * kColumns / expansion));
          break;
        case 4:
          if (open) cache_->Truncate(rows[r], committed[rows[r]]);
          break;
        case 5:
          if (open) cache_->Suspend(rows[r], random() % 2 == 0);
          break;
        case 6:
          if (open) {
            const kvc_resume_result resumed = cache_->Resume(rows[r]);
            if (resumed.status == KVC_OK) {
              committed[rows[r]] = static_cast<uint32_t>(resumed.committed_tokens);
            }
          }
          break;
        default: {
          if (!open) break;
          // Few texts, so that sequences meet and give pages up for each other's.
          const uint32_t at = committed[rows[r]];
          const uint32_t count = 1 + static_cast<uint32_t>(random() % 4);
          const std::vector<uint32_t> tokens = Tokens(at, count);
          const kvc_commit_result done = cache_->Commit(rows[r], tokens.data(), count);
          if (done.status == KVC_OK) committed[rows[r]] += count;
          deduplicated += done.status == KVC_OK ? done.deduplicated_blocks : 0;
        }
      }
      if (random() % 4 == 0) {
        update(&often, 64);
        compare(often);
      }
      if (random() % 16 == 0) {
        update(&seldom, kColumns);
        compare(seldom);
      }
      full += kRows * kColumns;
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(cache_->Check(), "");
  }
  EXPECT_GT(deduplicated, 300u) << "pages must be replaced";
  EXPECT_LT(triples * 10, full) << "deltas must be small";
}

TEST_F(BlockTable, UploadsAreExecutedLateAndInOrder) {
  Open(16);
  uint64_t one = 0, two = 0, table = 0, address = 0;
  ASSERT_EQ(kvc_device_stream_create(m(), &one, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(m(), &two, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(m(), 3, 4, -1, 18, &table, &address, &error_), KVC_OK);
  EXPECT_NE(address, 0u);
  const auto row = [&](uint32_t r) {
    std::vector<int32_t> entries(4);
    EXPECT_EQ(kvc_host_table_read(m(), table, r, 0, 4, entries.data(), &error_), KVC_OK);
    return entries;
  };
  using Row = std::vector<int32_t>;
  const kvc_table_delta first[] = {{0, 1, 5}, {2, 3, 6}};
  ASSERT_EQ(kvc_device_table_update(m(), table, one, 2, first, &error_), KVC_OK);
  const kvc_table_delta second[] = {{0, 1, 7}};
  ASSERT_EQ(kvc_device_table_update(m(), table, one, 1, second, &error_), KVC_OK);
  EXPECT_EQ(row(0), (Row{-1, -1, -1, -1})) << "a device works late";
  EXPECT_EQ(kvc_device_table_destroy(m(), table, &error_), KVC_BUSY);
  uint64_t ran = 0;
  ASSERT_EQ(kvc_host_advance(m(), one, 1, &ran, &error_), KVC_OK);
  EXPECT_EQ(row(0), (Row{-1, 5, -1, -1}));
  EXPECT_EQ(row(2), (Row{-1, -1, -1, 6}));
  ASSERT_EQ(kvc_host_advance(m(), one, 1, &ran, &error_), KVC_OK);
  EXPECT_EQ(row(0), (Row{-1, 7, -1, -1}));

  // Rows, and the array is the caller's again at once. The ring wraps here.
  int32_t rows[] = {1, 2, 3, 4, 99, 5, 6, 7, 8, 99};
  ASSERT_EQ(kvc_device_table_write(m(), table, two, 0, 2, 5, rows, &error_), KVC_OK);
  for (int32_t& entry : rows) entry = 77;
  const kvc_table_delta third[] = {{1, 0, 50}, {1, 1, 51}, {1, 2, 52}};
  ASSERT_EQ(kvc_device_table_update(m(), table, one, 3, third, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_update(m(), table, two, 1, second, &error_), KVC_NOT_NOW)
      << "17 of 18 are taken";
  // The younger upload first: its room is not free before that of the older one.
  ASSERT_EQ(kvc_host_advance(m(), one, 1, &ran, &error_), KVC_OK);
  EXPECT_EQ(row(1), (Row{50, 51, 52, -1}));
  EXPECT_EQ(kvc_device_table_update(m(), table, two, 1, second, &error_), KVC_NOT_NOW);
  ASSERT_EQ(kvc_host_advance(m(), two, 1, &ran, &error_), KVC_OK);
  EXPECT_EQ(row(0), (Row{1, 2, 3, 4}));
  EXPECT_EQ(row(1), (Row{5, 6, 7, 8}));
  ASSERT_EQ(kvc_device_table_update(m(), table, 0, 1, second, &error_), KVC_OK);
  EXPECT_EQ(row(0), (Row{1, 7, 3, 4})) << "the host's own work is done at once";

  // An upload waits for what its stream waits for.
  ASSERT_EQ(kvc_device_table_update(m(), table, one, 1, first, &error_), KVC_OK);
  const kvc_fence fence{one, 4};
  ASSERT_EQ(kvc_device_stream_wait(m(), two, 1, &fence, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_update(m(), table, two, 1, second, &error_), KVC_OK);
  ASSERT_EQ(kvc_host_advance(m(), two, 10, &ran, &error_), KVC_OK);
  EXPECT_EQ(ran, 2u);
  EXPECT_EQ(row(0), (Row{1, 7, 3, 4}));

  int32_t out[8];
  kvc_table_delta wrong[] = {{0, 0, 1}, {3, 0, 1}};
  EXPECT_EQ(kvc_device_table_update(m(), table, one, 2, wrong, &error_), KVC_INVALID_ARGUMENT);
  wrong[1] = {0, 4, 1};
  EXPECT_EQ(kvc_device_table_update(m(), table, one, 2, wrong, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_write(m(), table, one, 2, 2, 4, rows, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_write(m(), table, one, 4, 0, 4, rows, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_write(m(), table, one, 0, 2, 3, rows, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_host_table_read(m(), table, 3, 0, 1, out, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_host_table_read(m(), table, 0, 3, 2, out, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_update(m(), table, 12345, 1, second, &error_), KVC_STALE_HANDLE);
  const std::vector<kvc_table_delta> seven(7, kvc_table_delta{0, 0, 1});
  EXPECT_EQ(kvc_device_table_update(m(), table, one, 7, seven.data(), &error_), KVC_NEVER_FITS);
  ASSERT_EQ(kvc_host_advance(m(), 0, 10, &ran, &error_), KVC_OK);
  EXPECT_EQ(ran, 0u) << "what was refused has not been queued";
  EXPECT_EQ(row(0), (Row{1, 7, 3, 4}));

  ASSERT_EQ(kvc_device_table_destroy(m(), table, &error_), KVC_OK);
  EXPECT_EQ(kvc_device_table_destroy(m(), table, &error_), KVC_STALE_HANDLE);
  EXPECT_EQ(kvc_device_table_update(m(), table, one, 1, second, &error_), KVC_STALE_HANDLE);
  ASSERT_EQ(kvc_host_advance(m(), 0, 10, &ran, &error_), KVC_OK);
  EXPECT_EQ(ran, 0u);
  const uint64_t stale = table;
  for (int i = 0; i < 256; ++i) {
    ASSERT_EQ(kvc_device_table_create(m(), 1, 1, 0, 1, &table, &address, &error_), KVC_OK);
    EXPECT_NE(table, stale);
  }
  EXPECT_EQ(kvc_device_table_create(m(), 1, 1, 0, 1, &table, &address, &error_), KVC_NOT_NOW);
  EXPECT_EQ(kvc_device_table_create(m(), 0, 1, 0, 1, &table, &address, &error_),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_create(m(), UINT32_MAX, UINT32_MAX, 0, 1, &table, &address, &error_),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_device_table_create(m(), 1, 1, 0, 0, &table, &address, &error_),
            KVC_INVALID_ARGUMENT);
}

TEST_F(BlockTable, ArraysAreChecked) {
  Open(4);
  const kvc_table_item item{};
  const kvc_table_delta_item delta_item{};
  kvc_table_cookie cookie{};
  kvc_table_delta delta{};
  kvc_table_result result{};
  int32_t entry[2] = {};
  uint32_t written = 0;
  uint64_t needed = 0, id = 0;
  const auto bad = [](kvc_status status) { EXPECT_EQ(status, KVC_INVALID_ARGUMENT); };
  bad(kvc_tables_dense(nullptr, nullptr, 0, nullptr, 0, 0, nullptr, nullptr, nullptr, &error_));
  bad(kvc_tables_dense(m(), nullptr, 1, nullptr, 1, 1, entry, nullptr, &result, &error_));
  bad(kvc_tables_dense(m(), nullptr, 1, &item, 1, 1, nullptr, nullptr, &result, &error_));
  bad(kvc_tables_dense(m(), nullptr, 1, &item, 1, 1, entry, nullptr, nullptr, &error_));
  bad(kvc_tables_dense(m(), nullptr, 1, &item, 2, 1, entry, nullptr, &result, &error_));
  bad(kvc_tables_indexed(m(), nullptr, 1, &item, 1, nullptr, entry, entry, &needed, &result,
                         &error_));
  bad(kvc_tables_indexed(m(), nullptr, 1, &item, 1, entry, nullptr, entry, &needed, &result,
                         &error_));
  bad(kvc_tables_indexed(m(), nullptr, 1, &item, 1, entry, entry, nullptr, &needed, &result,
                         &error_));
  bad(kvc_tables_indexed(m(), nullptr, 1, &item, 1, entry, entry, entry, nullptr, &result,
                         &error_));
  bad(kvc_tables_delta(m(), nullptr, 1, nullptr, 1, &cookie, 1, &delta, &written, &result,
                       &error_));
  bad(kvc_tables_delta(m(), nullptr, 1, &delta_item, 1, nullptr, 1, &delta, &written, &result,
                       &error_));
  bad(kvc_tables_delta(m(), nullptr, 1, &delta_item, 1, &cookie, 1, nullptr, &written, &result,
                       &error_));
  bad(kvc_tables_delta(m(), nullptr, 1, &delta_item, 1, &cookie, 1, &delta, nullptr, &result,
                       &error_));
  bad(kvc_device_table_create(m(), 1, 1, 0, 1, nullptr, &id, &error_));
  bad(kvc_device_table_create(m(), 1, 1, 0, 1, &id, nullptr, &error_));
  EXPECT_EQ(kvc_tables_dense(m(), nullptr, 0, nullptr, 0, 0, nullptr, nullptr, nullptr, &error_),
            KVC_OK);
}

// Exports beside a scheduler: each copy is a table that the sequence had.
TEST_F(BlockTable, ExportsBesideAScheduler) {
  Open(64, 8, 2);
  const uint64_t shared = New({}, 2);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> exports{0};
  const auto reader = [&] {
    Copy copy(1, -1);
    std::vector<kvc_table_delta> deltas(kColumns);
    while (!stop) {
      const kvc_table_delta_item item{shared, 0, 0};
      kvc_table_result result{};
      uint32_t written = 0;
      ASSERT_EQ(kvc_tables_delta(m(), nullptr, 1, &item, kColumns, copy.cookies.data(), kColumns,
                                 deltas.data(), &written, &result, nullptr),
                KVC_OK);
      ASSERT_EQ(result.status, KVC_OK);
      for (uint32_t i = 0; i < written; ++i) copy.entries[0].at(deltas[i].column) = deltas[i].value;
      uint32_t present = 0;
      for (const int32_t entry : copy.entries[0]) present += entry >= 0 ? 1 : 0;
      ASSERT_EQ(present, copy.cookies[0].pages);
      ++exports;
    }
    // At rest every copy is the whole table.
    const kvc_table_delta_item item{shared, 0, 0};
    kvc_table_result result{};
    uint32_t written = 0;
    ASSERT_EQ(kvc_tables_delta(m(), nullptr, 1, &item, kColumns, copy.cookies.data(), kColumns,
                               deltas.data(), &written, &result, nullptr),
              KVC_OK);
    for (uint32_t i = 0; i < written; ++i) copy.entries[0].at(deltas[i].column) = deltas[i].value;
    const kvc_table_item whole{shared, 0, 0};
    std::vector<int32_t> row(kColumns);
    ASSERT_EQ(kvc_tables_dense(m(), nullptr, 1, &whole, kColumns, kColumns, row.data(), nullptr,
                               &result, nullptr),
              KVC_OK);
    ASSERT_EQ(copy.entries[0], row);
  };
  std::thread one(reader), two(reader);
  uint32_t committed = 0;
  for (uint32_t round = 0; round < 2000; ++round) {
    // Others compute the same text first, so that the shared sequence's pages are replaced.
    if (committed < 2 * kColumns) {
      cache_->Grow(shared, committed + 2);
      const uint64_t other = New(Tokens(0, committed), committed + 2);
      const std::vector<uint32_t> next = Tokens(committed, 2);
      const kvc_create_result made = cache_->Create(Tokens(0, committed + 2));
      if (made.status == KVC_OK) cache_->Release(made.sequence);
      EXPECT_EQ(cache_->Commit(other, next.data(), 2).status, KVC_OK);
      EXPECT_EQ(cache_->Commit(shared, next.data(), 2).status, KVC_OK);
      cache_->Release(other);
      committed += 2;
    } else {
      cache_->Release(cache_->Create(Tokens(0, 8)).sequence);
    }
  }
  while (exports < 100) std::this_thread::yield();
  stop = true;
  one.join();
  two.join();
}

}  // namespace
}  // namespace kvcast
