// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Of a table that has broken: whose promise it has not kept, and whose it has.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/src/stream_table.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

class CudaPromises : public CudaStreams {
 protected:
  // Whether the thread's last Submit has kept what the thread had noted.
  static bool Kept(const StreamTable& table) {
    try {
      table.RequireKept();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
      return false;
    }
    return true;
  }
  static void Fail() { throw Error(KVC_DEVICE_ERROR, "refused", kErrorIllegalAddress); }
};

TEST_F(CudaPromises, WhatWasDoneBeforeTheFailureIsKept) {
  Open();
  const uint32_t slot = table_->Open();
  std::atomic<int> turn{0};
  bool kept = false;
  std::thread first([&] {
    table_->Note(slot, [](StreamHandle) { return true; });
    turn = 1;
    Until([&] { return turn == 2; });
    (void)table_->Submit();
    kept = Kept(*table_);
  });
  Until([&] { return turn == 1; });
  table_->Note(slot, [](StreamHandle) -> bool {
    Fail();
    return true;
  });
  (void)table_->Submit();
  EXPECT_NE(table_->broken(), nullptr);
  EXPECT_FALSE(Kept(*table_));
  turn = 2;
  first.join();
  EXPECT_TRUE(kept) << "its work is on the stream";
  // And nothing that comes later is.
  table_->Note(slot, [](StreamHandle) { return true; });
  (void)table_->Submit();
  EXPECT_FALSE(Kept(*table_));
  (void)table_->Record(slot);
  (void)table_->Submit();
  EXPECT_TRUE(Kept(*table_)) << "a record is no promise";
  (void)table_->Submit();
  EXPECT_TRUE(Kept(*table_)) << "nothing was noted";
}

// The table breaks while work is being done, by somebody else's question.
TEST_F(CudaPromises, WhatIsDoneWhileTheTableBreaksIsKept) {
  Open();
  const uint32_t slot = table_->Open();
  table_->Note(slot, [&](StreamHandle) {
    fakecuda_inject("cuStreamIsCapturing", 1, kErrorIllegalAddress);
    (void)table_->Capturing(uint64_t{1} << slot);
    return true;
  });
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_NE(table_->broken(), nullptr);
  EXPECT_TRUE(Kept(*table_));
}

TEST_F(CudaPromises, OfOneTableAreNotAnothers) {
  Open();
  StreamTable other(*context_, *events_);
  other.Note(other.Open(), [](StreamHandle) { return true; });  // and nobody submits it
  const uint32_t slot = table_->Open();
  (void)table_->Record(slot);
  fakecuda_inject("cuEventRecord", 1, kErrorIllegalAddress);
  (void)table_->Submit();
  EXPECT_NE(table_->broken(), nullptr);
  EXPECT_TRUE(Kept(*table_)) << "a record is no promise";
  EXPECT_TRUE(Kept(other));
}

// What breaks the table is older than what has been handed over since: it was left.
TEST_F(CudaPromises, WhatIsOlderAndFailsLaterIsNobodyElses) {
  Open();
  const uint32_t captured = table_->Open();
  const uint32_t slot = table_->Open();
  fakecuda_stream_capture(table_->handle(captured), 1);
  std::thread([&] {
    table_->Note(captured, [](StreamHandle) -> bool {
      Fail();
      return true;
    });
    EXPECT_EQ(table_->Submit(), 1u);
    EXPECT_TRUE(Kept(*table_)) << "it is to be done when the capture has ended";
  }).join();
  table_->Note(slot, [](StreamHandle) { return true; });
  EXPECT_EQ(table_->Submit(), 1u);
  fakecuda_stream_capture(table_->handle(captured), 0);
  std::thread([&] { (void)table_->Submit(); }).join();
  ASSERT_NE(table_->broken(), nullptr);
  EXPECT_TRUE(Kept(*table_)) << "its work is on the stream";
}

// And what is only left will never be handed over, though what broke the table is younger.
TEST_F(CudaPromises, WhatWasLeftWhenTheTableBrokeIsNotKept) {
  Open();
  const uint32_t captured = table_->Open();
  const uint32_t slot = table_->Open();
  fakecuda_stream_capture(table_->handle(captured), 1);
  table_->Note(captured, [](StreamHandle) { return true; });
  EXPECT_EQ(table_->Submit(), 1u);
  std::thread([&] {
    table_->Note(slot, [](StreamHandle) -> bool {
      Fail();
      return true;
    });
    (void)table_->Submit();
    EXPECT_FALSE(Kept(*table_));
  }).join();
  EXPECT_FALSE(Kept(*table_)) << "left, and the table is broken";
  fakecuda_stream_capture(table_->handle(captured), 0);
  std::thread([&] { (void)table_->Submit(); }).join();
  EXPECT_FALSE(Kept(*table_)) << "nobody has handed it over since";
}

// The other way round: the older part of a call is on its stream, the younger part is not.
TEST_F(CudaPromises, APartIsNotTheWhole) {
  Open();
  const uint32_t slots[] = {table_->Open(), table_->Open()};
  std::atomic<int> turn{0};
  bool kept = true;
  std::thread first([&] {
    table_->Note(slots[0], [](StreamHandle) { return true; });
    turn = 1;
    Until([&] { return turn == 2; });
    table_->Note(slots[0], [](StreamHandle) { return true; });
    (void)table_->Record(slots[0]);
    turn = 3;
    Until([&] { return turn == 4; });
    (void)table_->Submit();
    kept = Kept(*table_);
  });
  Until([&] { return turn == 1; });
  table_->Note(slots[1], [](StreamHandle) -> bool {
    Fail();
    return true;
  });
  turn = 2;
  Until([&] { return turn == 3; });
  (void)table_->Submit();
  EXPECT_FALSE(Kept(*table_));
  turn = 4;
  first.join();
  EXPECT_FALSE(kept);
}

// A fence that is recorded anew is older than all that is noted: nobody's work fails with it.
TEST_F(CudaPromises, AFenceMadeAnewThatFailsIsNobodysWork) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  (void)table_->Record(first);
  fakecuda_inject_many("cuEventQuery", 1, 3, kErrorOutOfMemory);  // nobody finds it at once
  fakecuda_stall("cuEventRecord", 1);
  std::thread submitter([&] { (void)table_->Submit(); });
  Until([] { return fakecuda_stalled() != 0; });
  fakecuda_stream_capture(table_->handle(first), 1);
  fakecuda_let_go();
  submitter.join();
  fakecuda_stream_capture(table_->handle(first), 0);
  table_->Note(second, [](StreamHandle) { return true; });
  (void)table_->Submit();  // and then asks for the fence, which is noted anew
  ASSERT_EQ(table_->broken(), nullptr);
  fakecuda_inject("cuEventRecord", 1, kErrorIllegalAddress);
  std::thread([&] { (void)table_->Submit(); }).join();
  ASSERT_NE(table_->broken(), nullptr);
  EXPECT_TRUE(Kept(*table_)) << "its work is on the stream";
}

// An upload that is queued, and whose end is all that is missing, has been kept.
TEST_F(CudaPromises, WhatIsOnlyOwedWhenTheTableBreaksIsKept) {
  Open();
  const uint32_t slot = table_->Open();
  const uint32_t other = table_->Open();
  table_->Note(slot, [](StreamHandle) { return false; });
  EXPECT_EQ(table_->Submit(), 1u);
  std::thread([&] {
    table_->Note(other, [](StreamHandle) -> bool {
      Fail();
      return true;
    });
    (void)table_->Submit();
    (void)table_->Submit();
  }).join();
  ASSERT_NE(table_->broken(), nullptr);
  EXPECT_TRUE(Kept(*table_));
}

// Many threads on streams of their own, one of which breaks the table: whose work was called
// has been kept, and nobody else's.
TEST_F(CudaPromises, EachOfManyThreadsIsToldOfItsOwnWork) {
  for (int round = 0; round < 50; ++round) {
    Open();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      const uint32_t slot = table_->Open();
      threads.emplace_back([&, t, slot] {
        for (int i = 0; i < 50; ++i) {
          const auto done = std::make_shared<std::atomic<int>>(0);
          for (int part = 0; part < 2; ++part) {
            table_->Note(slot, [&, t, i, done](StreamHandle) {
              if (t == 0 && i == 25) Fail();
              ++*done;
              return true;
            });
          }
          (void)table_->Submit();
          if (Kept(*table_) != (*done == 2)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_NE(table_->broken(), nullptr);
    EXPECT_EQ(wrong.load(), 0);
    Close();
  }
}

}  // namespace
}  // namespace kvcast::cuda
