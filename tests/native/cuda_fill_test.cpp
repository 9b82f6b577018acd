// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the copier does besides copying: pages that are filled, entries of block tables.

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tests/native/cuda_copies.h"

namespace kvcast::cuda {
namespace {

using kernels::TableEntry;
using CudaFill = CudaCopy;

TEST_F(CudaFill, FillsPagesWithAValue) {
  for (const uint64_t page_bytes : {uint64_t{16}, uint64_t{4096}, uint64_t{8 * 1027}}) {
    if (context_ != nullptr) TearDown();
    CudaFill::SetUp();
    Open(page_bytes % 16 == 0 ? page_bytes : page_bytes + 8);
    const std::vector<uint32_t> pages = {23, 0, 7};
    {
      const ContextScope scope(*context_);
      EXPECT_TRUE(
          copier_->FillPages(stream_, Pool(), page_bytes, 0x1122334455667788u, pages.data(), 3));
    }
    Wait();
    for (const uint32_t page : pages) {
      for (uint64_t at = 0; at < page_bytes; ++at) {
        shadow_[page * page_bytes_ + at] = static_cast<uint8_t>(0x1122334455667788u >> at % 8 * 8);
      }
    }
    EXPECT_EQ(PoolBytes(), shadow_) << page_bytes;
  }
}

TEST_F(CudaFill, WritesChangedEntriesOfABlockTableAndNothingElse) {
  Open(4096);
  // 5 rows of 100 columns, 128 apart, at an address that is a multiple of 4 only.
  const DevicePtr table = pool_ + 4;
  std::mt19937_64 random(TestSeed());
  std::vector<TableEntry> entries;
  for (uint32_t row = 0; row < 7; ++row) {
    for (uint32_t column = 0; column < 103; ++column) {
      if (random() % 3 == 0) entries.push_back({row, column, static_cast<int>(random())});
    }
  }
  entries.push_back({0xFFFFFFFFu, 3, 1});
  entries.push_back({3, 0xFFFFFFFFu, 1});
  std::shuffle(entries.begin(), entries.end(), random);
  {
    const ContextScope scope(*context_);
    EXPECT_TRUE(copier_->UpdateTable(stream_, table, 128, 5, 100, entries.data(),
                                     static_cast<uint32_t>(entries.size())));
  }
  Wait();
  for (const TableEntry& entry : entries) {
    if (entry.row >= 5 || entry.column >= 100) continue;
    std::memcpy(&shadow_[4 + (uint64_t{entry.row} * 128 + entry.column) * 4], &entry.value, 4);
  }
  EXPECT_EQ(PoolBytes(), shadow_);
}

// More entries than the launch has threads.
TEST_F(CudaFill, WritesEntriesOfABlockTableThatIsLongerThanTheGrid) {
  options_.multiprocessors = 1;
  Restart();
  Open(4096);
  constexpr uint32_t kColumns = 3000;  // 16 blocks of 128 threads are 2048
  std::vector<TableEntry> entries;
  for (uint32_t column = 0; column < kColumns; ++column) {
    entries.push_back({0, column, static_cast<int>(column * 7)});
    std::memcpy(&shadow_[column * 4], &entries.back().value, 4);
  }
  {
    const ContextScope scope(*context_);
    EXPECT_TRUE(
        copier_->UpdateTable(stream_, pool_, kColumns, 1, kColumns, entries.data(), kColumns));
  }
  Wait();
  EXPECT_EQ(PoolBytes(), shadow_);
}

// What can never be is no reason to come again.
TEST_F(CudaFill, FillsAndUpdatesThatCannotBeAreErrorsAndNothingIsQueued) {
  Open(4096, 256);
  const ContextScope scope(*context_);
  const std::vector<uint32_t> pages(65, 3);
  const std::vector<TableEntry> entries(22, TableEntry{0, 0, 1});
  ASSERT_LE(21 * sizeof entries[0], ring_->size());
  ASSERT_GT(entries.size() * sizeof entries[0], ring_->size());
  const PageSide odd_base{pool_ + 8, 4096};
  const PageSide odd_stride{pool_, 4096 + 8};
  const std::function<bool()> operations[] = {
      [&] { return copier_->FillPages(stream_, Pool(), 4096, 1, pages.data(), 65); },
      [&] { return copier_->FillPages(stream_, odd_base, 4096, 1, pages.data(), 1); },
      [&] { return copier_->FillPages(stream_, odd_stride, 4096, 1, pages.data(), 1); },
      [&] { return copier_->FillPages(stream_, Pool(), 4092, 1, pages.data(), 1); },
      [&] { return copier_->UpdateTable(stream_, pool_, 8, 1, 8, entries.data(), 22); },
      [&] { return copier_->UpdateTable(stream_, pool_ + 2, 8, 1, 8, entries.data(), 1); },
      [&] { return copier_->UpdateTable(stream_, pool_, 7, 1, 8, entries.data(), 1); },
  };
  for (const auto& operation : operations) {
    SCOPED_TRACE(&operation - operations);
    try {
      (void)operation();
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_INVALID_ARGUMENT);
    }
  }
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(copier_->counters().kernel_launches, 0u);
  EXPECT_EQ(PoolBytes(), shadow_);
  EXPECT_TRUE(copier_->FillPages(stream_, Pool(), 4096, 1, pages.data(), 64)) << "it is full then";
  Wait();
  EXPECT_TRUE(copier_->UpdateTable(stream_, pool_, 8, 1, 8, entries.data(), 21));
}

// The table of a kernel that the driver does not take goes back at once.
TEST_F(CudaFill, NoTableIsKeptForALaunchThatWasRefused) {
  Open(4096);
  const ContextScope scope(*context_);
  const uint32_t page = 1;
  const TableEntry entry{0, 0, 1};
  const std::function<void()> operations[] = {
      [&] { (void)copier_->FillPages(stream_, Pool(), 4096, 1, &page, 1); },
      [&] { (void)copier_->UpdateTable(stream_, pool_, 8, 1, 8, &entry, 1); },
  };
  for (const auto& operation : operations) {
    SCOPED_TRACE(&operation - operations);
    fakecuda_inject_many("cuLaunchKernel", 1, 1000, kErrorNotSupported);
    EXPECT_THROW(operation(), Error);
    EXPECT_EQ(fakecuda_injected(), 1);
    ring_->Poll();
    EXPECT_EQ(ring_->in_flight(), 0u);
    fakecuda_inject(nullptr, 0, 0);
  }
  // Copies are the engine's then.
  Force(Method::kKernel);
  fakecuda_inject_many("cuLaunchKernel", 1, 1000, kErrorNotSupported);
  CopyPages(Direction::kOnDevice, Pool(), Pool(), {{0, 10}, {2, 12}});
  ring_->Poll();
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(copier_->counters().refused_launches, 2u);
  fakecuda_inject(nullptr, 0, 0);
  Wait();
  std::copy_n(shadow_.begin(), 4096, shadow_.begin() + 10 * 4096);
  std::copy_n(shadow_.begin() + 2 * 4096, 4096, shadow_.begin() + 12 * 4096);
  EXPECT_EQ(PoolBytes(), shadow_);
}

}  // namespace
}  // namespace kvcast::cuda
