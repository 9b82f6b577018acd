// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Streams and fences as the core sees them, and staging.

#include "tests/native/failing_allocator.h"  // first: it replaces operator new

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "cuda/src/staging.h"
#include "cuda/src/stream_table.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

TEST_F(CudaStreams, AFenceIsReachedWhenTheWorkBeforeItHasRun) {
  Open();
  const uint32_t slot = table_->Open();
  ASSERT_NE(slot, 0u);
  fakecuda_hold(1);
  const uint64_t position = table_->Record(slot);
  EXPECT_EQ(position, 1u);
  EXPECT_EQ(table_->Submitted(slot), 1u);
  EXPECT_EQ(table_->Submit(), 0u);
  table_->Poll();
  EXPECT_FALSE(table_->Reached(slot, position));
  EXPECT_EQ(table_->BusyStreams(), 1u);
  EXPECT_TRUE(table_->Reached(slot, 0));
  const uint64_t progress = table_->Progress();
  fakecuda_hold(0);
  EXPECT_TRUE(ReachedSoon(slot, position));
  EXPECT_GT(table_->Progress(), progress);
  EXPECT_EQ(table_->BusyStreams(), 0u);
  EXPECT_EQ(events_->in_use(), 0u) << "the event went back to the pool";
}

TEST_F(CudaStreams, UnderTheCoresLockTheDriverIsNotCalled) {
  Open();
  const uint32_t a = table_->Open();
  const uint32_t b = table_->Open();
  (void)table_->Record(a);
  table_->Submit();
  fakecuda_clear_log();
  const uint64_t position = table_->Record(a);
  table_->Wait(b, {a, position});
  (void)table_->Record(b);
  (void)table_->Reached(a, position);
  (void)table_->Submitted(b);
  (void)table_->BusyStreams();
  (void)table_->Progress();
  table_->Close(a);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u);
  table_->Submit();
  EXPECT_GT(fakecuda_calls(nullptr), 0u);
  EXPECT_TRUE(ReachedSoon(b, 1));
  fakecuda_clear_log();
  table_->Submit();
  table_->Poll();
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing noted, nothing outstanding";
}

TEST_F(CudaStreams, OneEventServesAllFencesOfABatch) {
  Open();
  const uint32_t slot = table_->Open();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(table_->Record(slot), 1u);
  fakecuda_clear_log();
  table_->Submit();
  EXPECT_EQ(fakecuda_calls("cuEventRecord"), 1u);
  EXPECT_EQ(events_->created(), 1u);
  EXPECT_EQ(table_->Record(slot), 2u) << "work may have been queued since";
  table_->Note(slot, [](StreamHandle) { return true; });
  EXPECT_EQ(table_->Record(slot), 3u) << "the fence must cover the work";
  table_->Submit();
  EXPECT_TRUE(ReachedSoon(slot, 3));
  EXPECT_LE(events_->created(), 3u);
}

TEST_F(CudaStreams, WorkWaitsForTheFencesOfOthers) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  const ContextScope scope(*context_);
  DevicePtr memory = 0;
  KVCAST_CUDA(context_->api(), memory_alloc, &memory, size_t{4096});
  const DriverApi& api = context_->api();
  for (unsigned round = 1; round <= 60; ++round) {
    // A write on one stream, then, behind its fence, another on the other.
    table_->Note(first, [&, round](StreamHandle stream) {
      KVCAST_CUDA(api, fill_words, memory, round * 2, 1024, stream);
      return true;
    });
    const uint64_t written = table_->Record(first);
    table_->Wait(second, {first, written});
    table_->Note(second, [&, round](StreamHandle stream) {
      KVCAST_CUDA(api, fill_words, memory, round * 2 + 1, 1024, stream);
      return true;
    });
    const uint64_t again = table_->Record(second);
    table_->Wait(first, {second, again});
    table_->Submit();
    ASSERT_TRUE(ReachedSoon(second, again));
    unsigned value = 0;
    KVCAST_CUDA(api, copy_to_host, &value, memory, sizeof value, table_->handle(second));
    ASSERT_EQ(value, round * 2 + 1);
  }
  KVCAST_CUDA(api, memory_free, memory);
}

TEST_F(CudaStreams, SlotsRunOutAndComeBack) {
  Open();
  std::vector<uint32_t> slots;
  for (uint32_t slot = table_->Open(); slot != 0; slot = table_->Open()) slots.push_back(slot);
  EXPECT_EQ(slots.size(), kDeviceSlots - 1);
  EXPECT_EQ(fakecuda_live_objects().streams, kDeviceSlots - 1);
  fakecuda_hold(1);
  const uint64_t position = table_->Record(slots[5]);
  table_->Submit();
  table_->Close(slots[5]);
  EXPECT_EQ(table_->Open(), 0u) << "its work has not run";
  fakecuda_hold(0);
  EXPECT_TRUE(ReachedSoon(slots[5], position));
  EXPECT_EQ(table_->Open(), slots[5]);
  EXPECT_EQ(table_->Record(slots[5]), position + 1) << "positions go on";
  table_->Submit();
  EXPECT_TRUE(ReachedSoon(slots[5], position + 1));
}

TEST_F(CudaStreams, ACallersStreamIsUsedAndNotDestroyed) {
  void* const theirs = fakecuda_context_create(0);
  void* const stream = fakecuda_stream_create(theirs, 1);
  {
    const DeviceContext context(OpenDriver(), static_cast<ContextHandle>(theirs));
    EventPool events(context);
    StreamTable table(context, events);
    const uint32_t slot = table.Adopt(static_cast<StreamHandle>(stream));
    ASSERT_NE(slot, 0u);
    EXPECT_EQ(table.handle(slot), stream);
    const uint64_t position = table.Record(slot);
    table.Submit();
    Until([&] {
      table.Poll();
      return table.Reached(slot, position);
    });
    table.Close(slot);
    // Another context's, and one that is being captured.
    void* const other = fakecuda_context_create(0);
    void* const foreign = fakecuda_stream_create(other, 1);
    EXPECT_THROW((void)table.Adopt(static_cast<StreamHandle>(foreign)), Error);
    fakecuda_context_destroy(other);
    fakecuda_stream_capture(stream, 1);
    try {
      (void)table.Adopt(static_cast<StreamHandle>(stream));
      ADD_FAILURE() << "a captured stream was adopted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_BAD_STATE);
    }
    fakecuda_stream_capture(stream, 0);
    const uint32_t null_slot = table.Adopt(nullptr);
    EXPECT_NE(null_slot, 0u);
    (void)table.Record(null_slot);
    table.Submit();
  }
  EXPECT_EQ(fakecuda_live_objects().streams, 1u) << "the caller's stream is theirs";
  fakecuda_context_destroy(theirs);
}

TEST_F(CudaStreams, WhatIsForACapturedStreamComesAfterTheCapture) {
  Open();
  const uint32_t a = table_->Open();
  const uint32_t b = table_->Open();
  fakecuda_stream_capture(table_->handle(a), 1);
  const uint64_t held = table_->Record(a);
  table_->Wait(b, {a, held});
  const uint64_t behind = table_->Record(b);
  EXPECT_EQ(table_->Submit(), 3u) << "the record, the wait for it, and what follows the wait";
  EXPECT_FALSE(table_->Reached(a, held));
  EXPECT_FALSE(table_->Reached(b, behind));
  EXPECT_EQ(table_->broken(), nullptr);
  EXPECT_EQ(table_->Capturing(~uint64_t{0}), uint64_t{1} << a);
  EXPECT_TRUE(table_->Withheld({a, held}));
  EXPECT_THROW(table_->Wait(a, {b, behind}), Error) << "what waits is being captured";
  EXPECT_THROW(table_->Wait(b, {a, held}), Error) << "and so is what is waited for";
  fakecuda_stream_capture(table_->handle(a), 0);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_TRUE(ReachedSoon(a, held));
  EXPECT_TRUE(ReachedSoon(b, behind));
}

// An engine launches on its stream without telling: a wait that it was told has been
// accepted must be on the stream before that, or not be accepted.
TEST_F(CudaStreams, NobodyIsMadeToWaitForWhatIsNotOnTheDevice) {
  Open();
  const uint32_t steps = table_->OpenSteps();
  const uint32_t own = table_->OpenOwn();
  const uint32_t stream = table_->Open();
  int copied = 0;
  table_->SetCopier([&](StreamHandle, const std::vector<PageCopy>&) { ++copied; });
  const auto refused = [&](uint32_t slot, const Fence& fence) -> kvc_status {
    try {
      table_->Wait(slot, fence);
    } catch (const Error& error) {
      return error.status();
    }
    return KVC_OK;
  };
  table_->BeginStep(steps, 1);
  FenceList after;
  after.Add({steps, table_->Record(steps)});
  table_->ReserveCopies(2);
  table_->NoteCopy(own, {0, 1, 0}, after);
  const Fence held{own, table_->Record(own)};
  EXPECT_TRUE(table_->Withheld(held));
  EXPECT_EQ(refused(stream, held), KVC_NOT_NOW) << "before it is submitted";
  EXPECT_GT(table_->Submit(), 0u);
  EXPECT_EQ(copied, 0);
  EXPECT_TRUE(table_->Withheld(held));
  EXPECT_EQ(refused(stream, held), KVC_NOT_NOW);
  EXPECT_EQ(refused(stream, {steps, 1}), KVC_NOT_NOW);
  // What another copy waits for is withheld as well, and with it that copy.
  const uint32_t second = table_->OpenOwn();
  FenceList behind;
  behind.Add(held);
  table_->NoteCopy(second, {2, 3, 0}, behind);
  const Fence later{second, table_->Record(second)};
  EXPECT_EQ(refused(stream, later), KVC_NOT_NOW);
  table_->Submit();
  EXPECT_EQ(refused(stream, later), KVC_NOT_NOW);
  const Fence mine{stream, table_->Record(stream)};
  table_->Submit();
  EXPECT_FALSE(table_->Withheld(mine));
  table_->EndStep(steps, 1);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(copied, 2);
  EXPECT_FALSE(table_->Withheld(held));
  EXPECT_EQ(refused(stream, held), KVC_OK);
  EXPECT_EQ(refused(stream, later), KVC_OK);
  const uint64_t last = table_->Record(stream);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_TRUE(ReachedSoon(stream, last));
  EXPECT_TRUE(table_->Reached(second, later.position));
}

TEST_F(CudaStreams, AFullQueueOfTheDriverIsWaitedOut) {
  options_.queue_depth = 4;
  options_.max_delay_us = 200;
  Restart();
  Open();
  const uint32_t slot = table_->Open();
  uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    table_->Note(slot, [](StreamHandle) { return true; });
    last = table_->Record(slot);
    table_->Submit();
  }
  EXPECT_GT(fakecuda_blocked(), 0u);
  EXPECT_TRUE(ReachedSoon(slot, last));
}

TEST_F(CudaStreams, ALastingFailureOfEachCallBreaksTheTableAndSaysWhy) {
  int struck = 0;
  bool more = true;
  for (uint64_t n = 1; more; ++n) {
    Restart();
    Open();
    const uint32_t slot = table_->Open();
    const uint32_t other = table_->Open();
    fakecuda_inject(nullptr, n, kErrorLaunchFailed);
    const uint64_t position = table_->Record(slot);
    table_->Wait(other, {slot, position});
    const uint64_t behind = table_->Record(other);
    table_->Submit();
    while (fakecuda_context_depth() > 0) fakecuda_context_pop();
    fakecuda_settle();  // so that one look is enough, and each run makes the same calls
    const bool reached = ReachedSoon(other, behind);
    while (fakecuda_context_depth() > 0) fakecuda_context_pop();
    more = fakecuda_injected() != 0;
    if (more && table_->broken() != nullptr) {
      ++struck;
      EXPECT_EQ(table_->broken()->status(), KVC_DEVICE_ERROR);
      EXPECT_EQ(table_->broken()->system_code(), kErrorLaunchFailed);
      fakecuda_clear_log();
      (void)table_->Record(slot);
      table_->Submit();
      EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "a broken device is left alone";
    } else {
      EXPECT_TRUE(reached);
    }
    fakecuda_inject(nullptr, 0, 0);
    table_.reset();
    EXPECT_EQ(events_->in_use(), 0u);
    events_.reset();
    context_.reset();
    ASSERT_LT(n, 100u);
  }
  EXPECT_GT(struck, 6);
}

TEST_F(CudaStreams, ThreadsMayNoteSubmitAndAskAtOnce) {
  Open();
  constexpr size_t kThreads = 3;
  std::vector<uint32_t> slots;
  for (size_t i = 0; i < kThreads; ++i) slots.push_back(table_->Open());
  std::atomic<uint64_t> last[kThreads] = {};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 60; ++round) {
        const uint64_t position = table_->Record(slots[i]);
        last[i].store(position);
        const size_t neighbour = (i + 1) % kThreads;
        const uint64_t theirs = last[neighbour].load();
        if (theirs != 0) table_->Wait(slots[i], {slots[neighbour], theirs});
        table_->Submit();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kThreads; ++i) EXPECT_TRUE(ReachedSoon(slots[i], last[i].load()));
  EXPECT_EQ(table_->broken(), nullptr);
}

// The caller launches as soon as its call has returned: what the call has noted must be on
// the stream by then, also when another thread has taken it along and is still at it.
TEST_F(CudaStreams, ACallReturnsWhenWhatItNotedIsOnTheStream) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  std::atomic<bool> noted{false};
  std::atomic<bool> busy{false};
  std::atomic<bool> go{false};
  std::atomic<bool> returned{false};
  bool queued = false;
  table_->Note(first, [&](StreamHandle) {
    busy = true;
    Until([&] { return go.load(); });
    return true;
  });
  std::thread caller([&] {
    table_->Note(second, [&](StreamHandle) {
      queued = true;
      return true;
    });
    noted = true;
    Until([&] { return busy.load(); });
    (void)table_->Submit();
    EXPECT_TRUE(queued) << "the call returned before its work was on the stream";
    returned = true;
  });
  Until([&] { return noted.load(); });
  std::thread submitter([&] {
    table_->Note(first, [](StreamHandle) { return true; });
    (void)table_->Submit();
  });
  Until([&] { return busy.load(); });
  // One that has noted nothing waits for nobody: this would never return.
  std::thread bystander([&] { (void)table_->Submit(); });
  bystander.join();
  for (int i = 0; i < 2000 && !returned; ++i) std::this_thread::yield();
  EXPECT_FALSE(returned.load());
  go = true;
  caller.join();
  submitter.join();
}

// A closed stream is there for what has been noted for it, done now or left.
TEST_F(CudaStreams, AClosedStreamGoesAfterWhatIsNotedForIt) {
  Open();
  const uint32_t first = table_->Open();
  const uint32_t second = table_->Open();
  std::atomic<bool> busy{false};
  std::atomic<bool> go{false};
  StreamHandle const was = table_->handle(second);
  StreamHandle got = nullptr;
  const auto work = [&](StreamHandle stream) {
    got = stream;
    return true;
  };
  table_->Note(first, [&](StreamHandle) {
    busy = true;
    Until([&] { return go.load(); });
    return true;
  });
  table_->Note(second, work);
  std::thread submitter([&] {
    table_->Note(first, [](StreamHandle) { return true; });
    (void)table_->Submit();
  });
  Until([&] { return busy.load(); });
  table_->Close(second);
  const uint32_t third = table_->Open();
  EXPECT_NE(third, second) << "its work is being done";
  go = true;
  submitter.join();
  EXPECT_EQ(got, was);
  EXPECT_EQ(table_->Open(), second);
  // Left because of a capture, and no fence stands for it.
  got = nullptr;
  StreamHandle const captured = table_->handle(third);
  fakecuda_stream_capture(captured, 1);
  table_->Note(third, work);
  EXPECT_EQ(table_->Submit(), 1u);
  table_->Close(third);
  const uint64_t streams = fakecuda_live_objects().streams;
  EXPECT_NE(table_->Open(), third);
  EXPECT_EQ(fakecuda_live_objects().streams, streams + 1);
  fakecuda_stream_capture(captured, 0);
  EXPECT_EQ(table_->Submit(), 0u);
  EXPECT_EQ(got, captured);
  EXPECT_EQ(table_->Open(), third);
  // A slot of steps that are not done.
  const uint32_t steps = table_->OpenSteps();
  table_->BeginStep(steps, 1);
  table_->Close(steps);
  EXPECT_NE(table_->OpenSteps(), steps);
  table_->EndStep(steps, 1);
  EXPECT_EQ(table_->OpenSteps(), steps);
}

TEST_F(CudaStreams, RoomForCopiesIsRoomForAllTheirFences) {
  Open();
  const uint32_t own = table_->OpenOwn();
  table_->SetCopier([](StreamHandle, const std::vector<PageCopy>&) {});
  fakecuda_hold(1);
  FenceList after;
  for (uint32_t slot = table_->Open(); slot != 0; slot = table_->Open()) {
    after.Add({slot, table_->Record(slot)});
  }
  EXPECT_EQ(table_->Submit(), 0u);
  constexpr uint32_t kCopies = 5;
  table_->ReserveCopies(kCopies);
  allocations = 0;
  counting = true;
  for (uint32_t i = 0; i < kCopies; ++i) {
    table_->NoteCopy(own, {2 * i, 2 * i + 1, 0}, after);
    (void)table_->Record(own);
  }
  counting = false;
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(table_->Submit(), 0u);
}

TEST_F(CudaStreams, HandlesThatStandForAThreadsStreamAreRefused) {
  Open();
  for (StreamHandle const handle : {kStreamLegacy, kStreamPerThread}) {
    {
      const ContextScope scope(*context_);
      int status = -1;
      EXPECT_EQ(context_->api().stream_capturing(handle, &status), kSuccess) << "the driver's";
    }
    try {
      (void)table_->Adopt(handle);
      ADD_FAILURE() << "adopted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_INVALID_ARGUMENT);
      EXPECT_NE(std::string(error.what()).find("created"), std::string::npos) << error.what();
    }
  }
}

TEST_F(CudaStreams, StagingMovesUnpinnedMemoryInBoundedPieces) {
  Open();
  {
    Staging staging(*context_, 16 << 10);
    const ContextScope scope(*context_);
    const DriverApi& api = context_->api();
    StreamHandle stream = nullptr;
    KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
    DevicePtr memory = 0;
    KVCAST_CUDA(api, memory_alloc, &memory, size_t{1} << 20);
    std::mt19937_64 random(TestSeed());
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{8192}, uint64_t{8193}, uint64_t{300001}}) {
      std::vector<uint8_t> out(bytes);
      for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
      std::vector<uint8_t> back(bytes);
      const uint64_t to = staging.Submit({false, memory, out.data(), bytes, nullptr});
      const uint64_t from = staging.Submit({true, memory, back.data(), bytes, nullptr});
      EXPECT_EQ(from, to + 1);
      staging.WaitFor(from);
      EXPECT_TRUE(staging.Done(to));
      EXPECT_EQ(staging.Outcome(from), KVC_OK);
      EXPECT_EQ(out, back) << bytes;
    }
    // Behind a fence: what the job reads is written late, on another stream.
    const EventHandle event = events_->Take();
    fakecuda_hold(1);
    KVCAST_CUDA(api, fill_words, memory, 0xABABABABu, 1024, stream);
    KVCAST_CUDA(api, event_record, event, stream);
    std::vector<uint8_t> back(4096, 0);
    const uint64_t ticket = staging.Submit({true, memory, back.data(), 4096, event});
    EXPECT_FALSE(staging.Done(ticket));
    fakecuda_hold(0);
    staging.WaitFor(ticket);
    EXPECT_EQ(back, std::vector<uint8_t>(4096, 0xAB));
    events_->Give(event);
    // A job that fails says so, and the next one is served.
    const uint64_t bad = staging.Submit({true, memory + (1 << 20), back.data(), 64, nullptr});
    const uint64_t good = staging.Submit({true, memory, back.data(), 64, nullptr});
    staging.WaitFor(good);
    EXPECT_EQ(staging.Outcome(bad), KVC_DEVICE_ERROR);
    EXPECT_EQ(staging.Outcome(good), KVC_OK);
    KVCAST_CUDA(api, stream_destroy, stream);
    KVCAST_CUDA(api, memory_free, memory);
  }
}

}  // namespace
}  // namespace kvcast::cuda
