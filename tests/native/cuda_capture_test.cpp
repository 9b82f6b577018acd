// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What threads find out about captures at the same time: who asked later knows better.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/capture_marks.h"
#include "tests/native/cuda_callers.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

TEST(CaptureMarks, AnAnswerOlderThanWhatWasFoundTakesNothingBack) {
  CaptureMarks marks;
  const uint64_t asked = 1 << 3 | 1 << 4;
  const uint64_t first = marks.Begin();
  const uint64_t second = marks.Begin();
  marks.End(second, asked, 1 << 3);
  marks.End(first, asked, 0);
  EXPECT_TRUE(marks.Has(3)) << "the first one asked before the capture began";
  EXPECT_FALSE(marks.Has(4));
  // What is found counts, however old: nobody can be sure that it is over.
  marks.End(first, asked, 1 << 4);
  EXPECT_TRUE(marks.Has(4));
  // One who asks after that knows that it is. What was not asked about stays.
  marks.End(marks.Begin(), 1 << 4, 0);
  EXPECT_FALSE(marks.Has(4));
  EXPECT_TRUE(marks.Has(3));
  marks.Clear(3);
  EXPECT_FALSE(marks.Has(3));
}

// Under TSan as well: nobody who finds its stream captured is told otherwise by those who
// do not, and at the end nothing is left.
TEST(CaptureMarks, ManyThreads) {
  CaptureMarks marks;
  std::atomic<bool> captured[4] = {};
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t asked = 0xf0;
      const auto look = [&] {
        const uint64_t begin = marks.Begin();
        uint64_t found = 0;
        for (uint32_t i = 0; i < 4; ++i) found |= uint64_t{captured[i].load()} << (4 + i);
        marks.End(begin, asked, found);
      };
      for (int round = 0; round < 2000; ++round) {
        captured[t].store(true);
        look();
        wrong += marks.Has(4 + t) ? 0 : 1;
        captured[t].store(false);
        look();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  marks.End(marks.Begin(), 0xf0, 0);
  for (uint32_t slot = 0; slot < kDeviceSlots; ++slot) EXPECT_FALSE(marks.Has(slot));
}

using CudaCapture = CudaCallers;

// A call has asked, and before it goes on a capture begins and another call finds it.
TEST_F(CudaCapture, ACallThatAskedBeforeDoesNotHideACaptureFromOneThatAskedAfter) {
  Make();
  const auto use = [&] { return kvc_device_stream_wait(manager_, stream_, 0, nullptr, nullptr); };
  ASSERT_EQ(use(), KVC_OK);
  fakecuda_stall("cuCtxPopCurrent", 1);  // the end of asking
  kvc_status older = KVC_INTERNAL;
  std::thread thread([&] { older = use(); });
  while (fakecuda_stalled() == 0) std::this_thread::yield();
  fakecuda_stream_capture(callers_, 1);
  EXPECT_EQ(use(), KVC_BAD_STATE);
  fakecuda_let_go();
  thread.join();
  EXPECT_EQ(older, KVC_BAD_STATE) << "it took the mark of the other one away";
  fakecuda_stream_capture(callers_, 0);
  EXPECT_EQ(use(), KVC_OK);
  Destroy();
}

// A capture that begins between our question and our record takes the record along.
class CudaCaptureRace : public CudaStreams {
 protected:
  // A Submit, and when it is about to record on the stream a capture begins there.
  uint32_t SubmitAndCapture(StreamHandle stream) {
    fakecuda_stall("cuEventRecord", 1);
    uint32_t left = 0;
    std::thread submitter([&] { left = table_->Submit(); });
    while (fakecuda_stalled() == 0) std::this_thread::yield();
    fakecuda_stream_capture(stream, 1);
    fakecuda_let_go();
    submitter.join();
    return left;
  }
};

TEST_F(CudaCaptureRace, AFenceInAGraphIsRecordedAnew) {
  Open();
  const uint32_t a = table_->Open();
  const uint32_t b = table_->Open();
  const uint64_t fence = table_->Record(a);
  (void)SubmitAndCapture(table_->handle(a));
  table_->Poll();
  EXPECT_EQ(events_->in_use(), 0u) << "that one will never be reached";
  EXPECT_FALSE(table_->Reached(a, fence));
  EXPECT_TRUE(table_->Withheld({a, fence}));
  EXPECT_THROW(table_->Wait(b, {a, fence}), Error);
  EXPECT_EQ(table_->Submit(), 1u) << "the capture goes on";
  EXPECT_FALSE(table_->Reached(a, fence));
  fakecuda_stream_capture(table_->handle(a), 0);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_TRUE(ReachedSoon(a, fence));
  EXPECT_EQ(table_->broken(), nullptr);
}

TEST_F(CudaCaptureRace, ALaterRecordServesAFenceInAGraph) {
  Open();
  const uint32_t a = table_->Open();
  const uint64_t fence = table_->Record(a);
  // The capture is over when the next record is made, before anybody has asked.
  table_->SetRecorded([&](StreamHandle stream) { fakecuda_stream_capture(stream, 0); });
  table_->Note(a, [](StreamHandle) { return true; });
  fakecuda_hold(1);
  const uint64_t later = table_->Record(a);
  EXPECT_EQ(SubmitAndCapture(table_->handle(a)), 0u);
  table_->Poll();
  fakecuda_clear_log();
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(fakecuda_calls("cuEventRecord"), 0u) << "nothing is recorded anew";
  EXPECT_FALSE(table_->Reached(a, fence));
  fakecuda_hold(0);
  EXPECT_TRUE(ReachedSoon(a, later));
  EXPECT_TRUE(table_->Reached(a, fence));
}

// Somebody has been told to wait for it before it is found: the new record comes first.
TEST_F(CudaCaptureRace, ARecordMadeAnewComesBeforeWhoeverWaits) {
  Open();
  const uint32_t a = table_->Open();
  const uint32_t b = table_->Open();
  const uint64_t fence = table_->Record(a);
  fakecuda_inject_many("cuEventQuery", 1, 3, kErrorOutOfMemory);  // nobody finds it at once
  EXPECT_EQ(SubmitAndCapture(table_->handle(a)), 0u);
  ASSERT_EQ(fakecuda_injected(), 1);
  table_->Wait(b, {a, fence});
  table_->Poll();
  EXPECT_TRUE(table_->Withheld({a, fence}));
  fakecuda_stream_capture(table_->handle(a), 0);
  fakecuda_clear_log();
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(fakecuda_calls("cuStreamWaitEvent"), 1u);
  EXPECT_TRUE(ReachedSoon(a, fence));
  EXPECT_EQ(table_->broken(), nullptr);
}

// Whoever waits for such a fence is not drawn into the capture.
TEST_F(CudaCaptureRace, NobodyJoinsACaptureByWaiting) {
  for (const bool over : {false, true}) {
    Open();
    const uint32_t a = table_->Open();
    const uint32_t b = table_->Open();
    const uint64_t fence = table_->Record(a);
    table_->Wait(b, {a, fence});
    bool behind = false;
    table_->Note(b, [&](StreamHandle) {
      behind = true;
      return true;
    });
    bool first = true;
    table_->SetRecorded([&](StreamHandle stream) {
      if (over && first) fakecuda_stream_capture(stream, 0);
      first = false;
    });
    const uint32_t left = SubmitAndCapture(table_->handle(a));
    EXPECT_EQ(table_->Capturing(~uint64_t{0}), over ? 0u : uint64_t{1} << a);
    EXPECT_EQ(behind, over) << "with a record of its own when the capture is over";
    EXPECT_EQ(left, over ? 1u : 3u) << "the record, the wait for it and the work behind it";
    fakecuda_stream_capture(table_->handle(a), 0);
    EXPECT_EQ(table_->Submit(), 0u);
    EXPECT_TRUE(behind);
    EXPECT_TRUE(ReachedSoon(a, fence));
    EXPECT_EQ(table_->broken(), nullptr);
    Close();
  }
}

}  // namespace
}  // namespace kvcast::cuda
