// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A capture begins on a stream when a batch of copies is being handed over there, and the driver
// refuses the rest of it: the batch is made after the capture, with all that comes behind it, or
// nobody is told that it has been.

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/src/stream_table.h"
#include "tests/native/cuda_copies.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

constexpr uint64_t kPage = 256;

// A table whose copies are made in the pool of the copier.
class CudaCapturedCopy : public CudaCopy {
 protected:
  void OpenTable() {
    Open(kPage);
    table_ = std::make_unique<StreamTable>(*context_, *events_);
    table_->SetCopier([this](StreamHandle stream, const std::vector<PageCopy>& copies) {
      std::vector<PagePair> pairs;
      for (const PageCopy& copy : copies) pairs.push_back({copy.from, copy.to});
      copier_->CopyPages(stream, Direction::kOnDevice, Pool(), Pool(), kPage, pairs.data(),
                         static_cast<uint32_t>(pairs.size()), /*stable_source=*/false);
    });
    slot_ = table_->Open();
  }
  void TearDown() override {
    fakecuda_inject(nullptr, 0, 0);
    table_.reset();
    CudaCopy::TearDown();
  }
  // Also in what the pool should hold then.
  void Note(const std::vector<PagePair>& pairs) {
    table_->ReserveCopies(static_cast<uint32_t>(pairs.size()));
    for (const PagePair& pair : pairs) {
      table_->NoteCopy(slot_, {pair.from, pair.to, 0}, {});
      std::copy_n(shadow_.begin() + pair.from * kPage, kPage, shadow_.begin() + pair.to * kPage);
    }
  }
  void ExpectMadeInTheEnd(const char* what) {
    EXPECT_EQ(table_->Submit(), 0u) << what;
    ASSERT_EQ(table_->broken(), nullptr) << table_->broken()->what();
    fakecuda_settle();
    EXPECT_EQ(PoolBytes(), shadow_) << what;
  }
  bool Kept() const {
    try {
      table_->RequireKept();
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  std::unique_ptr<StreamTable> table_;
  uint32_t slot_ = 0;
};

TEST_F(CudaCapturedCopy, IsMadeAfterTheCaptureAndBeforeWhatComesBehind) {
  OpenTable();
  Force(Method::kEngine);
  const uint32_t other = table_->Open();
  Note({{0, 10}, {2, 12}});
  const uint64_t fence = table_->Record(slot_);
  bool behind = false;
  bool elsewhere = false;
  table_->Note(slot_, [&](StreamHandle) { return behind = true; });
  table_->Note(other, [&](StreamHandle) { return elsewhere = true; });
  fakecuda_stall("cuMemcpyBatchAsync", 1);
  uint32_t left = 0;
  bool kept = false;
  std::thread submitter([&] {
    // On this thread the copies are nobody's; the upload is its own.
    table_->Note(other, [](StreamHandle) { return true; });
    left = table_->Submit();
    kept = Kept();
  });
  Until([] { return fakecuda_stalled() != 0; });
  fakecuda_stream_capture(table_->handle(slot_), 1);
  fakecuda_let_go();
  submitter.join();
  ASSERT_EQ(table_->broken(), nullptr) << table_->broken()->what();
  EXPECT_TRUE(kept);
  EXPECT_EQ(left, 4u) << "two copies, the fence and the work behind them";
  EXPECT_FALSE(behind);
  EXPECT_TRUE(elsewhere);
  EXPECT_TRUE(table_->Withheld({slot_, fence}));
  EXPECT_EQ(table_->Submit(), 4u) << "the capture goes on";
  EXPECT_TRUE(Kept()) << "what is put off is not broken";
  fakecuda_stream_capture(table_->handle(slot_), 0);
  ExpectMadeInTheEnd("after the capture");
  EXPECT_TRUE(behind);
  table_->Poll();
  EXPECT_TRUE(table_->Reached(slot_, fence));
}

// Whichever copy of those that do not depend on each other is refused, with whatever the driver
// says of captures.
TEST_F(CudaCapturedCopy, IsMadeWholeWhicheverPartIsRefused) {
  batch_ = false;
  OpenTable();
  Force(Method::kEngine);
  for (Result said = kErrorStreamCaptureUnsupported; said <= kErrorStreamCaptureImplicit; ++said) {
    for (uint64_t n = 1; n <= 3; ++n) {
      SCOPED_TRACE(n);
      const uint32_t to = 10 + static_cast<uint32_t>(n);
      Note({{0, to}, {2, to + 4}, {4, to + 8}});
      fakecuda_inject("cuMemcpyDtoDAsync", n, said);
      EXPECT_EQ(table_->Submit(), 3u);
      EXPECT_EQ(fakecuda_injected(), 1);
      EXPECT_TRUE(Kept());
      ExpectMadeInTheEnd("once more");
    }
  }
}

// A kernel that is refused is the engine's work, and what that is refused is made later.
TEST_F(CudaCapturedCopy, OfAKernelIsMadeByWhoeverCanLater) {
  batch_ = false;
  OpenTable();
  Force(Method::kKernel);
  const uint32_t count = 3;
  Note({{0, 10}, {2, 12}, {4, 14}});
  fakecuda_inject_many(nullptr, 0, 0, 0);
  fakecuda_stall("cuLaunchKernel", 1);
  uint32_t left = 0;
  std::thread submitter([&] { left = table_->Submit(); });
  Until([] { return fakecuda_stalled() != 0; });
  fakecuda_inject_many(nullptr, 1, count, kErrorStreamCaptureUnsupported);
  fakecuda_let_go();
  submitter.join();
  ASSERT_EQ(table_->broken(), nullptr) << table_->broken()->what();
  fakecuda_inject(nullptr, 0, 0);
  EXPECT_EQ(left, count);
  ExpectMadeInTheEnd("after it");
}

// Of copies that depend on each other what has been made must not be made again: the first may
// have read what the last has written since.
TEST_F(CudaCapturedCopy, ThatDependsOnWhatHasBeenMadeIsNotMadeTwice) {
  for (uint64_t n = 1; n <= 2; ++n) {
    SCOPED_TRACE(n);
    OpenTable();
    Force(Method::kEngine);
    Note({{0, 10}, {2, 0}});
    fakecuda_inject("cuMemcpyDtoDAsync", n, kErrorStreamCaptureUnsupported);
    (void)table_->Submit();
    if (n == 1) {
      EXPECT_TRUE(Kept());
      ExpectMadeInTheEnd("nothing had been queued");
    } else {
      ASSERT_NE(table_->broken(), nullptr);
      EXPECT_FALSE(Kept());
    }
    fakecuda_settle();
    table_.reset();
    CudaCopy::Close();
  }
}

}  // namespace
}  // namespace kvcast::cuda
