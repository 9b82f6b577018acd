// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What is noted is handed to the driver: in order, once, and as promised, or it is said.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/src/stream_table.h"
#include "kvcast/kvcast.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

using CudaSubmission = CudaStreams;

// The caller has been told that its stream waits.
TEST_F(CudaSubmission, AWaitThatIsNotThereBreaksTheTable) {
  for (const char* call : {"cuStreamWaitEvent", "cuEventRecord"}) {
    SCOPED_TRACE(call);
    Open();
    const uint32_t first = table_->Open();
    const uint32_t second = table_->Open();
    const uint64_t position = table_->Record(first);
    table_->Wait(second, {first, position});
    bool behind = false;
    table_->Note(second, [&](StreamHandle) {
      behind = true;
      return true;
    });
    fakecuda_hold(1);
    fakecuda_inject_many(call, 1, UINT64_MAX, kErrorOutOfMemory);
    (void)table_->Submit();
    fakecuda_inject(nullptr, 0, 0);
    fakecuda_hold(0);
    ASSERT_NE(table_->broken(), nullptr);
    EXPECT_EQ(table_->broken()->status(), KVC_DEVICE_ERROR);
    EXPECT_FALSE(behind);
    Close();
  }
}

// What is left of a Submit is older than what is noted while it runs.
TEST_F(CudaSubmission, WhatIsLeftComesBeforeWhatIsNotedMeanwhile) {
  Open();
  const uint32_t steps = table_->OpenSteps();
  const uint32_t own = table_->OpenOwn();
  const uint32_t other = table_->Open();
  std::vector<PageId> copied;
  table_->SetCopier([&](StreamHandle, const std::vector<PageCopy>& copies) {
    for (const PageCopy& copy : copies) copied.push_back(copy.from);
  });
  table_->BeginStep(steps, 1);
  FenceList after;
  after.Add({steps, table_->Record(steps)});
  table_->ReserveCopies(2);
  table_->NoteCopy(own, {0, 1, 0}, after);
  table_->Note(other, [&](StreamHandle) {
    table_->NoteCopy(own, {2, 3, 0}, {});
    return true;
  });
  EXPECT_EQ(table_->Submit(), 2u) << "the wait for the step and the copy behind it";
  table_->EndStep(steps, 1);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(copied, (std::vector<PageId>{0, 2}));
}

// A record that was refused is tried once more when somebody has to wait for it.
TEST_F(CudaSubmission, ARefusedRecordIsMadeForWhoeverWaits) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  std::vector<StreamHandle> recorded;
  table_->SetRecorded([&](StreamHandle stream) { recorded.push_back(stream); });
  fakecuda_hold(1);
  const uint64_t position = table_->Record(first);
  table_->Wait(second, {first, position});
  bool behind = false;
  table_->Note(second, [&](StreamHandle) {
    behind = true;
    return true;
  });
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  fakecuda_clear_log();
  EXPECT_EQ(table_->Submit(), 1u) << "the record itself, which covers more when it is made";
  EXPECT_EQ(table_->broken(), nullptr);
  EXPECT_EQ(fakecuda_calls("cuStreamWaitEvent"), 1u);
  EXPECT_TRUE(behind);
  // Whoever has something owed of the stream is told of each record, and of no other.
  EXPECT_EQ(recorded, (std::vector<StreamHandle>{table_->handle(first)}));
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(recorded.size(), 2u);
  fakecuda_hold(0);
  EXPECT_TRUE(ReachedSoon(first, position));
}

// Nothing is promised for a stream of the caller's that is none any more.
TEST_F(CudaSubmission, NobodyIsToldThatAStreamWaitsThatIsNoneAnyMore) {
  void* const theirs = fakecuda_context_create(0);
  void* const stream = fakecuda_stream_create(theirs, 0);
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
    EventPool events(context);
    StreamTable table(context, events);
    std::vector<StreamHandle> gone;
    table.SetGone([&](StreamHandle which) { gone.push_back(which); });
    const uint32_t slot = table.Adopt(static_cast<StreamHandle>(stream));
    const uint32_t other = table.Open();
    fakecuda_hold(1);
    const Fence fence{other, table.Record(other)};
    EXPECT_EQ(table.Submit(), 0u);
    fakecuda_stream_destroy(stream);
    table.Wait(slot, fence);
    EXPECT_EQ(table.Submit(), 1u);
    EXPECT_EQ(gone, (std::vector<StreamHandle>{static_cast<StreamHandle>(stream)}));
    try {
      table.Wait(slot, fence);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_NOT_NOW);
    }
    EXPECT_EQ(table.broken(), nullptr);
    fakecuda_hold(0);
  }
  fakecuda_context_destroy(theirs);
}

TEST_F(CudaSubmission, AnEventThatCannotBeAskedKeepsNobodyElse) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  fakecuda_hold(1);
  const uint64_t one = table_->Record(first);
  const uint64_t two = table_->Record(second);
  EXPECT_EQ(table_->Submit(), 0u);
  fakecuda_hold(0);
  fakecuda_settle();
  fakecuda_inject("cuEventQuery", 1, kErrorStreamCaptureUnsupported);
  table_->Poll();
  EXPECT_FALSE(table_->Reached(first, one));
  EXPECT_TRUE(table_->Reached(second, two));
  table_->Poll();
  EXPECT_TRUE(table_->Reached(first, one));
  EXPECT_EQ(table_->broken(), nullptr);
}

TEST_F(CudaSubmission, ABatchOfCopiesEndsWhereOneWaits) {
  Open();
  const uint32_t other = table_->Open();
  const uint32_t slot = table_->Open();
  std::vector<uint64_t> waits_before;
  table_->SetCopier([&](StreamHandle, const std::vector<PageCopy>& copies) {
    for (size_t i = 0; i < copies.size(); ++i) {
      waits_before.push_back(fakecuda_calls("cuStreamWaitEvent"));
    }
  });
  fakecuda_hold(1);
  FenceList after;
  after.Add({other, table_->Record(other)});
  table_->ReserveCopies(3);
  table_->NoteCopy(slot, {0, 1, 0}, {});
  table_->NoteCopy(slot, {2, 3, 0}, {});
  table_->NoteCopy(slot, {4, 5, 0}, after);
  fakecuda_clear_log();
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(waits_before, (std::vector<uint64_t>{0, 0, 1}));
  fakecuda_hold(0);
}

// Nothing that has been promised is missing: the upload is queued, only its end is owed.
TEST_F(CudaSubmission, WhatIsOnlyOwedDoesNotBreakTheTable) {
  for (const char* call : {"cuCtxPushCurrent", "cuStreamIsCapturing"}) {
    SCOPED_TRACE(call);
    Open();
    const uint32_t slot = table_->Open();
    int owed = 0;
    table_->Note(slot, [&](StreamHandle) { return ++owed > 1; });
    EXPECT_EQ(table_->Submit(), 1u);
    bool behind = false;
    if (call == std::string("cuStreamIsCapturing")) {
      // What is asked once more fails, and keeps nothing back.
      table_->Note(slot, [&](StreamHandle) { return behind = true; });
    } else {
      (void)table_->Record(slot);
    }
    fakecuda_inject_many(call, 1, 3, kErrorOutOfMemory);
    (void)table_->Submit();
    fakecuda_inject(nullptr, 0, 0);
    ASSERT_EQ(table_->broken(), nullptr) << table_->broken()->what();
    EXPECT_EQ(owed, 1);
    EXPECT_EQ(behind, call == std::string("cuStreamIsCapturing"));
    EXPECT_EQ(table_->Submit(), 0u);
    EXPECT_EQ(owed, 2);
    table_->Note(slot, [](StreamHandle) { return true; });
    fakecuda_inject_many("cuCtxPushCurrent", 1, 3, kErrorOutOfMemory);
    (void)table_->Submit();
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_NE(table_->broken(), nullptr) << "work that has not been queued is promised";
    Close();
  }
}

// What was owed on a stream that is none any more is forgotten, also by the note.
TEST_F(CudaSubmission, ANoteThatIsUsedAgainOwesNothing) {
  void* const theirs = fakecuda_context_create(0);
  void* const stream = fakecuda_stream_create(theirs, 0);
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
    EventPool events(context);
    StreamTable table(context, events);
    const uint32_t slot = table.Adopt(static_cast<StreamHandle>(stream));
    const uint32_t other = table.Open();
    table.Note(slot, [](StreamHandle) { return false; });
    EXPECT_EQ(table.Submit(), 1u);
    fakecuda_stream_destroy(stream);
    EXPECT_EQ(table.Submit(), 0u);
    table.Note(other, [](StreamHandle) { return true; });
    fakecuda_inject_many("cuCtxPushCurrent", 1, 3, kErrorOutOfMemory);
    (void)table.Submit();
    fakecuda_inject(nullptr, 0, 0);
    EXPECT_NE(table.broken(), nullptr) << "the work is promised, and has not been queued";
  }
  fakecuda_context_destroy(theirs);
}

// A capture begins on the stream after we have asked, and the driver says so itself.
TEST_F(CudaSubmission, ACaptureThatBeginsBeforeAWaitDoesNotBreakTheTable) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  fakecuda_hold(1);
  const uint64_t fence = table_->Record(first);
  EXPECT_EQ(table_->Submit(), 0u);
  table_->Wait(second, {first, fence});
  bool behind = false;
  table_->Note(second, [&](StreamHandle) { return behind = true; });
  fakecuda_inject("cuStreamWaitEvent", 1, kErrorStreamCaptureIsolation);
  EXPECT_EQ(table_->Submit(), 2u);
  ASSERT_EQ(table_->broken(), nullptr) << table_->broken()->what();
  EXPECT_FALSE(behind);
  try {
    table_->Wait(second, {first, fence});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_BAD_STATE) << "as of a stream that is being captured";
  }
  fakecuda_clear_log();
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(fakecuda_calls("cuStreamWaitEvent"), 1u);
  EXPECT_TRUE(behind);
}

TEST_F(CudaSubmission, ACaptureThatBeginsBeforeAnUploadDoesNotBreakTheTable) {
  Open();
  const uint32_t slot = table_->Open();
  Result said = kErrorStreamCaptureUnsupported;
  int tries = 0;
  int behind = 0;
  for (; said <= kErrorStreamCaptureImplicit; ++said) {
    table_->Note(slot, [&, first = true](StreamHandle) mutable {
      ++tries;
      if (!std::exchange(first, false)) return true;
      throw Error(KVC_DEVICE_ERROR, "refused", said);
    });
    table_->Note(slot, [&](StreamHandle) { return ++behind > 0; });
    EXPECT_EQ(table_->Submit(), 2u) << said;
    ASSERT_EQ(table_->broken(), nullptr) << said << ": " << table_->broken()->what();
    EXPECT_EQ(table_->Submit(), 0u) << said;
  }
  EXPECT_EQ(tries, 14);
  EXPECT_EQ(behind, 7);
  // This one is of an event, not of the stream.
  table_->Note(slot, [](StreamHandle) -> bool {
    throw Error(KVC_DEVICE_ERROR, "refused", kErrorCapturedEvent);
  });
  (void)table_->Submit();
  EXPECT_NE(table_->broken(), nullptr);
}

// Of a batch the driver may have taken a part before it says so: that is not done twice.
TEST_F(CudaSubmission, CopiesThatACaptureRefusesBreakTheTable) {
  Open();
  const uint32_t slot = table_->Open();
  int batches = 0;
  table_->SetCopier([&](StreamHandle, const std::vector<PageCopy>&) {
    ++batches;
    throw Error(KVC_DEVICE_ERROR, "refused", kErrorStreamCaptureIsolation);
  });
  table_->ReserveCopies(1);
  table_->NoteCopy(slot, {0, 1, 0}, {});
  (void)table_->Submit();
  EXPECT_NE(table_->broken(), nullptr);
  (void)table_->Submit();
  EXPECT_EQ(batches, 1);
}

// What can only be done after a step, and waits for what is withheld, is withheld itself, also
// when it was noted in the meantime.
TEST_F(CudaSubmission, WhatIsNotedWhileASubmitRunsIsWithheldToo) {
  Open();
  const uint32_t steps = table_->OpenSteps();
  const uint32_t own = table_->OpenOwn();
  const uint32_t other = table_->Open();
  table_->SetCopier([](StreamHandle, const std::vector<PageCopy>&) {});
  table_->BeginStep(steps, 1);
  FenceList after;
  after.Add({steps, table_->Record(steps)});
  table_->ReserveCopies(2);
  Fence copied{};
  table_->Note(other, [&](StreamHandle) {
    table_->NoteCopy(own, {0, 1, 0}, after);
    copied = {own, table_->Record(own)};
    return true;
  });
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_TRUE(table_->Withheld(copied));
  EXPECT_THROW(table_->Wait(other, copied), Error);
  table_->EndStep(steps, 1);
  (void)table_->Submit();
}

// The record is older than all that is noted while it is missing.
TEST_F(CudaSubmission, WhatComesBehindARecordMadeAnewIsNotKeptWhenThatFails) {
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
  bool queued = false;
  table_->Note(second, [&](StreamHandle) { return queued = true; });
  std::thread([&] { table_->Poll(); }).join();
  fakecuda_inject("cuEventRecord", 1, kErrorIllegalAddress);
  (void)table_->Submit();
  EXPECT_NE(table_->broken(), nullptr);
  EXPECT_FALSE(queued);
  EXPECT_THROW(table_->RequireKept(), Error);
}

TEST_F(CudaSubmission, EachThreadFindsItsWorkDone) {
  options_.max_delay_us = 20;
  Restart();
  Open();
  const uint32_t slots[] = {table_->Open(), table_->Open()};
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (const uint32_t slot : slots) {
    threads.emplace_back([&, slot] {
      for (int i = 0; i < 3000; ++i) {
        const auto done = std::make_shared<std::atomic<bool>>(false);
        table_->Note(slot, [done](StreamHandle) {
          *done = true;
          return true;
        });
        (void)table_->Submit();
        if (!*done) ++early;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(early.load(), 0);
}

}  // namespace
}  // namespace kvcast::cuda
