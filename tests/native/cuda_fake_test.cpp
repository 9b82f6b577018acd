// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The fake driver itself: what a real driver does to those who misuse it, it must
// do or report, else tests that run on it prove nothing.

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/src/kernel_image.h"
#include "cuda/src/pinned_ring.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

class FakeCuda : public CudaTest {
 protected:
  void Open() {
    context_ = std::make_unique<DeviceContext>(OpenDriver(), 0);
    scope_ = std::make_unique<ContextScope>(*context_);
    ASSERT_EQ(api_.stream_create(&a_, kStreamNonBlocking), kSuccess);
    ASSERT_EQ(api_.stream_create(&b_, kStreamNonBlocking), kSuccess);
    ASSERT_EQ(api_.memory_alloc(&memory_, kBytes), kSuccess);
  }
  void TearDown() override {
    fakecuda_hold(0);
    if (scope_ != nullptr) {
      api_.stream_destroy(a_);
      api_.stream_destroy(b_);
      if (memory_ != 0) api_.memory_free(memory_);
      scope_.reset();
      context_.reset();
    }
    CudaTest::TearDown();
  }
  // Misuse that this test commits on purpose: the fixture must not see it.
  void ExpectViolation(const char* what) {
    EXPECT_GT(fakecuda_violations(), 0u);
    EXPECT_NE(std::strstr(fakecuda_first_violation(), what), nullptr) << fakecuda_first_violation();
    fakecuda_forgive();
  }

  static constexpr size_t kBytes = 1 << 20;
  const DriverApi& api_ = OpenDriver();
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<ContextScope> scope_;
  StreamHandle a_ = nullptr;
  StreamHandle b_ = nullptr;
  DevicePtr memory_ = 0;
};

TEST_F(FakeCuda, WorkIsDoneLaterInTheOrderOfItsStream) {
  Open();
  fakecuda_hold(1);
  for (unsigned i = 1; i <= 20; ++i) ASSERT_EQ(api_.fill_words(memory_, i, 4, a_), kSuccess);
  EXPECT_EQ(api_.stream_query(a_), kErrorNotReady);
  EXPECT_EQ(fakecuda_executed(), 0u);
  fakecuda_hold(0);
  ASSERT_EQ(api_.stream_synchronize(a_), kSuccess);
  EXPECT_EQ(api_.stream_query(a_), kSuccess);
  unsigned word = 0;
  ASSERT_EQ(api_.copy_to_host(&word, memory_, 4, a_), kSuccess);
  EXPECT_EQ(word, 20u);
}

// (That both write one place would be a race, and ThreadSanitizer says so: a fence
// that is missing between streams is found there too.)
TEST_F(FakeCuda, StreamsRunInNoOrderOfTheirOwn) {
  Open();
  EventHandle done[2] = {};
  for (EventHandle& event : done) ASSERT_EQ(api_.event_create(&event, 0), kSuccess);
  int first[2] = {};
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(api_.fill_words(memory_, 1, 1024, a_), kSuccess);
    ASSERT_EQ(api_.event_record(done[0], a_), kSuccess);
    ASSERT_EQ(api_.fill_words(memory_ + 4096, 2, 1024, b_), kSuccess);
    ASSERT_EQ(api_.event_record(done[1], b_), kSuccess);
    ASSERT_EQ(api_.context_synchronize(), kSuccess);
    float later = 0;
    ASSERT_EQ(api_.event_elapsed(&later, done[0], done[1]), kSuccess);
    ++first[later < 0 ? 1 : 0];
  }
  EXPECT_GT(first[0], 5);
  EXPECT_GT(first[1], 5);
  for (const EventHandle event : done) EXPECT_EQ(api_.event_destroy(event), kSuccess);
}

TEST_F(FakeCuda, EventsBindWhenTheyAreRecordedAndWaitedFor) {
  Open();
  EventHandle event = nullptr;
  ASSERT_EQ(api_.event_create(&event, kEventDisableTiming), kSuccess);
  EXPECT_EQ(api_.event_query(event), kSuccess) << "never recorded is complete";
  EXPECT_EQ(api_.stream_wait_event(a_, event, 0), kSuccess);
  ASSERT_EQ(api_.stream_synchronize(a_), kSuccess) << "and nothing to wait for";
  fakecuda_hold(1);
  ASSERT_EQ(api_.fill_words(memory_, 1, 1, a_), kSuccess);
  ASSERT_EQ(api_.event_record(event, a_), kSuccess);
  ASSERT_EQ(api_.stream_wait_event(b_, event, 0), kSuccess);
  EXPECT_EQ(api_.event_query(event), kErrorNotReady);
  // Recorded again, behind more work: who waited before waits for the first record.
  ASSERT_EQ(api_.event_record(event, b_), kSuccess);
  fakecuda_hold(0);
  ASSERT_EQ(api_.event_synchronize(event), kSuccess);
  ASSERT_EQ(api_.event_destroy(event), kSuccess);
  EXPECT_EQ(api_.event_query(event), kErrorInvalidHandle);
}

TEST_F(FakeCuda, TheNullStreamAndBlockingStreamsWaitForEachOther) {
  Open();
  StreamHandle blocking = nullptr;
  ASSERT_EQ(api_.stream_create(&blocking, 0), kSuccess);
  for (unsigned round = 1; round < 60; ++round) {
    ASSERT_EQ(api_.fill_words(memory_, round * 3, 1024, blocking), kSuccess);
    ASSERT_EQ(api_.fill_words(memory_, round * 3 + 1, 1024, nullptr), kSuccess);
    ASSERT_EQ(api_.fill_words(memory_, round * 3 + 2, 1024, blocking), kSuccess);
    unsigned word = 0;
    ASSERT_EQ(api_.copy_to_host(&word, memory_, 4, nullptr), kSuccess);
    ASSERT_EQ(word, round * 3 + 2);
  }
  ASSERT_EQ(api_.stream_destroy(blocking), kSuccess);
}

TEST_F(FakeCuda, PageableMemoryIsReadAtOnceAndWrittenBeforeTheReturn) {
  Open();
  std::vector<uint8_t> bytes(4096, 7);
  fakecuda_hold(1);
  ASSERT_EQ(api_.copy_to_device(memory_, bytes.data(), bytes.size(), a_), kSuccess);
  std::fill(bytes.begin(), bytes.end(), uint8_t{9});
  fakecuda_hold(0);
  std::vector<uint8_t> back(4096);
  ASSERT_EQ(api_.copy_to_host(back.data(), memory_, back.size(), a_), kSuccess);
  EXPECT_EQ(back, std::vector<uint8_t>(4096, 7));
}

TEST_F(FakeCuda, PinnedMemoryIsReadWhenTheCopyRuns) {
  Open();
  void* pinned = nullptr;
  ASSERT_EQ(api_.host_alloc(&pinned, 4096, 0), kSuccess);
  std::memset(pinned, 7, 4096);
  fakecuda_hold(1);
  ASSERT_EQ(api_.copy_to_device(memory_, pinned, 4096, a_), kSuccess);
  std::memset(pinned, 9, 4096);  // too early: a real device would copy either
  fakecuda_hold(0);
  std::vector<uint8_t> back(4096);
  ASSERT_EQ(api_.copy_to_host(back.data(), memory_, 4096, a_), kSuccess);
  EXPECT_EQ(back[0], 9);
  ASSERT_EQ(api_.host_free(pinned), kSuccess);
}

TEST_F(FakeCuda, WithoutAContextNothingWorks) {
  Open();
  size_t free_bytes = 0;
  size_t total = 0;
  Result result = kSuccess;
  std::thread([&] { result = api_.memory_info(&free_bytes, &total); }).join();
  EXPECT_EQ(result, kErrorInvalidContext) << "a context is current on one thread only";
  EXPECT_EQ(api_.memory_info(&free_bytes, &total), kSuccess);
}

TEST_F(FakeCuda, AnErrorOfTheDeviceSticks) {
  Open();
  DevicePtr gone = 0;
  ASSERT_EQ(api_.memory_alloc(&gone, 4096), kSuccess);
  // The driver checks what it can when the call is made.
  EXPECT_EQ(api_.copy_on_device(memory_, gone + (kBytes << 10), 4096, a_), kErrorInvalidValue);
  fakecuda_break(0, kErrorIllegalAddress);
  EXPECT_EQ(api_.stream_synchronize(a_), kErrorIllegalAddress);
  EXPECT_EQ(api_.memory_alloc(&gone, 4096), kErrorIllegalAddress);
  EXPECT_EQ(api_.event_query(nullptr), kErrorInvalidHandle);
  memory_ = 0;  // what a broken context had goes with it
}

class FakeRange : public FakeCuda {
 protected:
  void Map() {
    Open();
    MemAllocationProp prop;
    ASSERT_EQ(api_.range_reserve(&range_, 4 * kChunk, 0, 0, 0), kSuccess);
    MemHandle chunk = 0;
    ASSERT_EQ(api_.chunk_create(&chunk, kChunk, &prop, 0), kSuccess);
    EXPECT_EQ(api_.chunk_map(range_, kChunk / 2, 0, chunk, 0), kErrorInvalidValue);
    ASSERT_EQ(api_.chunk_map(range_, kChunk, 0, chunk, 0), kSuccess);
    EXPECT_EQ(api_.chunk_map(range_, kChunk, 0, chunk, 0), kErrorInvalidValue) << "taken";
    ASSERT_EQ(api_.chunk_release(chunk), kSuccess);
  }
  void Access() {
    const MemAccess access;
    ASSERT_EQ(api_.set_access(range_, kChunk, &access, 1), kSuccess);
  }
  void Unmap() {
    EXPECT_EQ(api_.chunk_unmap(range_, kChunk / 2), kErrorInvalidValue) << "whole chunks only";
    EXPECT_EQ(api_.chunk_unmap(range_, kChunk), kSuccess);
    EXPECT_EQ(api_.range_free(range_, 4 * kChunk), kSuccess);
  }
  static constexpr size_t kChunk = size_t{2} << 20;
  DevicePtr range_ = 0;
};

TEST_F(FakeRange, WithoutAccessAnOperationFaults) {
  Map();
  ASSERT_EQ(api_.fill_words(range_, 1, 16, a_), kSuccess) << "found out when it runs";
  EXPECT_EQ(api_.stream_synchronize(a_), kErrorIllegalAddress);
  Unmap();
  memory_ = 0;
}

TEST_F(FakeRange, WithAccessItIsMemory) {
  Map();
  Access();
  ASSERT_EQ(api_.fill_words(range_, 0x01010101, kChunk / 4, a_), kSuccess);
  uint8_t last = 0;
  ASSERT_EQ(api_.copy_to_host(&last, range_ + kChunk - 1, 1, a_), kSuccess);
  EXPECT_EQ(last, 1);
  EXPECT_EQ(api_.fill_words(range_ + kChunk, 1, 16, a_), kErrorInvalidValue) << "not mapped";
  Unmap();
}

TEST_F(FakeRange, UnmappingWhatIsInUseIsReported) {
  Map();
  Access();
  fakecuda_hold(1);
  ASSERT_EQ(api_.fill_words(range_, 1, 16, a_), kSuccess);
  Unmap();
  ExpectViolation("cuMemUnmap of memory that queued work uses");
  fakecuda_hold(0);
  EXPECT_EQ(api_.stream_synchronize(a_), kErrorIllegalAddress);
  memory_ = 0;
}

// A kernel's memory is named by its tables only; those are read to find it.
TEST_F(FakeRange, UnmappingUnderAQueuedKernelIsReportedAtTheCallAndFaultsAtTheKernel) {
  Map();
  Access();
  {
    const KernelImage kernels(*context_);
    EventPool events(*context_);
    PinnedRing ring(*context_, events, 4096);
    const PinnedRing::Space table = ring.Take(2 * sizeof(uint32_t));
    const uint32_t pages[2] = {0, 3};
    std::memcpy(table.host, pages, sizeof pages);
    kernels::FillPagesArgs fill{};
    fill.base = range_;
    fill.stride = kChunk / 8;
    fill.pages = table.device;
    fill.words = 16;
    fill.count = 2;
    fakecuda_hold(1);
    kernels.FillPages(a_, fill);
    // Beside what the kernel writes nothing is busy; the pages are.
    EXPECT_EQ(fakecuda_violations(), 0u);
    Unmap();
    ExpectViolation("cuMemUnmap of memory that queued work uses");
    fakecuda_hold(0);
    EXPECT_EQ(api_.stream_synchronize(a_), kErrorIllegalAddress);
    ring.Release(table);
  }
  memory_ = 0;
}

TEST_F(FakeRange, UnmappingBesideAQueuedKernelIsNot) {
  Map();
  Access();
  {
    const KernelImage kernels(*context_);
    EventPool events(*context_);
    PinnedRing ring(*context_, events, 4096);
    const PinnedRing::Space table = ring.Take(sizeof(kernels::CopyRange));
    const kernels::CopyRange range{memory_, memory_ + kBytes / 2, 4096};
    std::memcpy(table.host, &range, sizeof range);
    kernels::CopyRangesArgs copy{};
    copy.ranges = table.device;
    copy.count = 1;
    fakecuda_hold(1);
    kernels.CopyRanges(a_, copy, range.bytes);
    Unmap();
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
    fakecuda_hold(0);
    EXPECT_EQ(api_.stream_synchronize(a_), kSuccess);
    ring.Release(table);
  }
}

TEST_F(FakeRange, FreeingARangeWithChunksIsReported) {
  Map();
  EXPECT_EQ(api_.range_free(range_, 4 * kChunk), kErrorInvalidValue);
  ExpectViolation("cuMemAddressFree of a range with chunks mapped");
  Unmap();
}

TEST_F(FakeCuda, BatchesRunInAnyOrderAndMustNotDependOnThemselves) {
  Open();
  DevicePtr to[2] = {memory_ + 4096, memory_ + 8192};
  DevicePtr from[2] = {memory_, memory_ + 4096};  // the second reads what the first writes
  size_t bytes[2] = {4096, 4096};
  MemcpyAttributes attributes;
  size_t start = 0;
  size_t failed = 0;
  EXPECT_EQ(api_.copy_batch(to, from, bytes, 2, &attributes, &start, 1, &failed, nullptr),
            kErrorInvalidHandle)
      << "not on the legacy NULL stream";
  EXPECT_EQ(api_.copy_batch(to, from, bytes, 2, &attributes, &start, 1, &failed, a_), kSuccess);
  ExpectViolation("depend on each other");
  fakecuda_capture_begin(a_, kCaptureRelaxed);
  from[1] = memory_ + 16384;
  EXPECT_EQ(api_.copy_batch(to, from, bytes, 2, &attributes, &start, 1, &failed, a_),
            kErrorStreamCaptureUnsupported);
  EXPECT_EQ(fakecuda_capture_end(a_), -1);
}

TEST_F(FakeCuda, WhatIsQueuedOnACapturedStreamGoesIntoItsGraph) {
  Open();
  EventHandle event = nullptr;
  ASSERT_EQ(api_.event_create(&event, kEventDisableTiming), kSuccess);
  int status = kCaptureNone;
  EXPECT_EQ(api_.stream_capturing(a_, &status), kSuccess);
  EXPECT_EQ(status, kCaptureNone);
  fakecuda_capture_begin(a_, kCaptureRelaxed);
  const uint64_t ran = fakecuda_executed();
  EXPECT_EQ(api_.fill_words(memory_, 1, 16, a_), kSuccess);
  EXPECT_EQ(api_.event_record(event, a_), kSuccess);
  EXPECT_EQ(api_.stream_capturing(a_, &status), kSuccess);
  EXPECT_NE(status, kCaptureNone);
  EXPECT_EQ(api_.event_query(event), kErrorCapturedEvent) << "it is in the graph, not in a stream";
  // Who waits for it is captured too.
  EXPECT_EQ(api_.stream_wait_event(b_, event, 0), kSuccess);
  EXPECT_EQ(api_.stream_capturing(b_, &status), kSuccess);
  EXPECT_NE(status, kCaptureNone);
  EXPECT_EQ(api_.fill_words(memory_, 2, 16, b_), kSuccess);
  fakecuda_settle();
  EXPECT_EQ(fakecuda_executed(), ran) << "nothing of it runs";
  EXPECT_EQ(fakecuda_capture_end(a_), 4);
  EXPECT_EQ(api_.stream_capturing(b_, &status), kSuccess);
  EXPECT_EQ(status, kCaptureNone);
  // Waiting for a stream that is being captured spoils the capture.
  fakecuda_capture_begin(a_, kCaptureRelaxed);
  EXPECT_EQ(api_.stream_synchronize(a_), kErrorStreamCaptureUnsupported);
  EXPECT_EQ(api_.fill_words(memory_, 1, 16, a_), kErrorStreamCaptureInvalidated);
  EXPECT_EQ(fakecuda_capture_end(a_), -1);
  EXPECT_EQ(api_.event_record(event, a_), kSuccess) << "recorded anew it is as any other";
  EXPECT_EQ(api_.event_synchronize(event), kSuccess);
  EXPECT_EQ(api_.event_destroy(event), kSuccess);
}

TEST_F(FakeCuda, TheNullStreamCannotBeUsedWhileABlockingStreamIsCaptured) {
  Open();
  StreamHandle blocking = nullptr;
  ASSERT_EQ(api_.stream_create(&blocking, 0), kSuccess);
  int status = kCaptureNone;
  fakecuda_capture_begin(a_, kCaptureRelaxed);  // not blocking: none of its business
  EXPECT_EQ(api_.fill_words(memory_, 1, 16, nullptr), kSuccess);
  EXPECT_EQ(fakecuda_capture_end(a_), 0);
  fakecuda_capture_begin(blocking, kCaptureRelaxed);
  EXPECT_EQ(api_.stream_capturing(nullptr, &status), kErrorStreamCaptureImplicit);
  EXPECT_EQ(api_.fill_words(memory_, 1, 16, nullptr), kErrorStreamCaptureImplicit);
  EXPECT_EQ(fakecuda_capture_end(blocking), -1);
  EXPECT_EQ(api_.stream_destroy(blocking), kSuccess);
}

TEST_F(FakeCuda, CallsThatCouldWaitAreRefusedWhileACaptureGoesOn) {
  Open();
  scope_.reset();  // in which the thread is relaxed
  ASSERT_EQ(api_.context_push(context_->handle()), kSuccess);
  EventHandle event = nullptr;
  ASSERT_EQ(api_.event_create(&event, kEventDisableTiming), kSuccess);
  const auto refused = [&](int mode, bool here) {
    if (here) {
      fakecuda_capture_begin(a_, mode);
    } else {
      std::thread([&] { fakecuda_capture_begin(a_, mode); }).join();
    }
    const Result result = api_.event_query(event);
    const bool spoilt = fakecuda_capture_end(a_) < 0;
    EXPECT_EQ(result, spoilt ? kErrorStreamCaptureUnsupported : kSuccess);
    return spoilt;
  };
  EXPECT_TRUE(refused(kCaptureGlobal, true));
  EXPECT_TRUE(refused(kCaptureGlobal, false)) << "on any thread";
  EXPECT_TRUE(refused(kCaptureThreadLocal, true));
  EXPECT_FALSE(refused(kCaptureThreadLocal, false));
  EXPECT_FALSE(refused(kCaptureRelaxed, true));
  int mode = kCaptureRelaxed;
  EXPECT_EQ(api_.capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, kCaptureGlobal) << "what threads are unless they say otherwise";
  EXPECT_FALSE(refused(kCaptureGlobal, true)) << "a relaxed thread may";
  EXPECT_EQ(api_.capture_mode(&mode), kSuccess);
  EXPECT_EQ(api_.event_destroy(event), kSuccess);
  scope_ = std::make_unique<ContextScope>(*context_);
  ContextHandle popped = nullptr;
  scope_.reset();
  EXPECT_EQ(api_.context_pop(&popped), kSuccess);
  scope_ = std::make_unique<ContextScope>(*context_);
}

TEST_F(FakeCuda, AGateHoldsOneStreamOnly) {
  Open();
  fakecuda_gate(a_);
  ASSERT_EQ(api_.fill_words(memory_, 1, 16, a_), kSuccess);
  fakecuda_gate(a_);
  ASSERT_EQ(api_.fill_words(memory_, 2, 16, a_), kSuccess);
  ASSERT_EQ(api_.fill_words(memory_ + 4096, 3, 16, b_), kSuccess);
  ASSERT_EQ(api_.stream_synchronize(b_), kSuccess);
  const auto word = [&] {
    unsigned value = 0;
    fakecuda_settle();
    EXPECT_EQ(api_.copy_to_host(&value, memory_, sizeof value, b_), kSuccess);
    return value;
  };
  EXPECT_EQ(word(), 0u);
  fakecuda_open_gate(a_);
  EXPECT_EQ(word(), 1u);
  EXPECT_EQ(api_.stream_query(a_), kErrorNotReady);
  fakecuda_open_gate(a_);
  EXPECT_EQ(word(), 2u);
  EXPECT_EQ(api_.stream_query(a_), kSuccess);
}

TEST_F(FakeCuda, CallsOfOtherThreadsAreHeldAndLetThrough) {
  Open();
  fakecuda_hold_others(1);
  fakecuda_clear_log();
  DevicePtr first = 0;
  DevicePtr second = 0;
  std::thread other([&] {
    const ContextScope scope(*context_);
    api_.memory_alloc(&first, 4096);
    api_.memory_alloc(&second, 4096);
  });
  EXPECT_EQ(fakecuda_await_others(), 1);
  EXPECT_EQ(api_.stream_query(a_), kSuccess) << "its own are not";
  EXPECT_EQ(fakecuda_live_objects().allocations, 1u);
  // The push alone; then with the first allocation, before the second.
  EXPECT_EQ(fakecuda_let_others(1), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, 1u);
  EXPECT_EQ(fakecuda_let_others(1), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, 2u);
  EXPECT_EQ(fakecuda_let_others(UINT64_MAX), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, 3u);
  EXPECT_EQ(fakecuda_calls("cuCtxPopCurrent"), 1u) << "the rest is over";
  other.join();
  fakecuda_hold_others(0);
  EXPECT_EQ(api_.memory_free(first), kSuccess);
  EXPECT_EQ(api_.memory_free(second), kSuccess);
}

// Two threads of one block, or of two, write one cell: either may be the last.
TEST_F(FakeCuda, TheThreadsOfAKernelRunInNoOrder) {
  Open();
  const KernelImage kernels(*context_);
  std::vector<kernels::TableEntry> entries(2 * kernels::kThreads);
  for (uint32_t i = 0; i < entries.size(); ++i) entries[i] = {0, i, 1};
  entries[5] = {1, 0, 5};
  entries[90] = {1, 0, 90};
  entries[6] = {1, 1, 6};
  entries[kernels::kThreads + 90] = {1, 1, 90};
  const DevicePtr at = memory_ + kBytes / 2;
  ASSERT_EQ(api_.copy_to_device(at, entries.data(), entries.size() * sizeof entries[0], a_),
            kSuccess);
  kernels::UpdateTableArgs args{};
  args.table = memory_;
  args.row_stride = args.columns = 2 * kernels::kThreads;
  args.entries = at;
  args.rows = 2;
  args.count = static_cast<uint32_t>(entries.size());
  int earlier[2] = {};
  for (int round = 0; round < 200; ++round) {
    kernels.UpdateTable(a_, args);
    int last[2] = {};
    ASSERT_EQ(api_.copy_to_host(last, memory_ + args.row_stride * sizeof(int), sizeof last, a_),
              kSuccess);
    for (int i = 0; i < 2; ++i) earlier[i] += last[i] != 90 ? 1 : 0;
  }
  for (const int count : earlier) {
    EXPECT_GT(count, 50);
    EXPECT_LT(count, 150);
  }
}

// To destroy a stream does not wait: its work goes on, and so does what waits for that.
TEST_F(FakeCuda, TheWorkOfADestroyedStreamGoesOn) {
  Open();
  StreamHandle gone = nullptr;
  EventHandle event = nullptr;
  ASSERT_EQ(api_.stream_create(&gone, kStreamNonBlocking), kSuccess);
  ASSERT_EQ(api_.event_create(&event, kEventDisableTiming), kSuccess);
  const uint64_t streams = fakecuda_live_objects().streams;
  fakecuda_gate(gone);
  ASSERT_EQ(api_.fill_words(memory_, 1, 4, gone), kSuccess);
  ASSERT_EQ(api_.event_record(event, gone), kSuccess);
  ASSERT_EQ(api_.stream_wait_event(a_, event, 0), kSuccess);
  ASSERT_EQ(api_.fill_words(memory_ + 4, 2, 1, a_), kSuccess);
  ASSERT_EQ(api_.stream_destroy(gone), kSuccess);
  EXPECT_EQ(fakecuda_live_objects().streams, streams - 1);
  EXPECT_EQ(api_.stream_query(gone), kErrorInvalidHandle);
  ExpectViolation("destroyed stream");
  EXPECT_EQ(api_.event_query(event), kErrorNotReady);
  EXPECT_EQ(api_.stream_query(a_), kErrorNotReady);
  void* host = nullptr;
  ASSERT_EQ(api_.host_alloc(&host, 16, kHostAllocPortable), kSuccess);
  ASSERT_EQ(api_.copy_to_device(memory_ + 64, host, 16, a_), kSuccess);
  fakecuda_open_gate(gone);
  EXPECT_EQ(api_.event_synchronize(event), kSuccess);
  EXPECT_EQ(api_.context_synchronize(), kSuccess);
  uint32_t words[4] = {};
  ASSERT_EQ(api_.copy_to_host(words, memory_, sizeof words, nullptr), kSuccess);
  EXPECT_EQ(words[0], 1u);
  EXPECT_EQ(words[1], 2u) << "behind the event";
  EXPECT_EQ(words[3], 1u);
  EXPECT_EQ(api_.host_free(host), kSuccess);
  EXPECT_EQ(api_.event_destroy(event), kSuccess);
}

// The context is waited for with the streams that have been destroyed.
TEST_F(FakeCuda, TheContextHasNotDoneBeforeItsDestroyedStreams) {
  options_.max_delay_us = 2000;
  Restart();
  Open();
  for (unsigned round = 1; round <= 10; ++round) {
    StreamHandle gone = nullptr;
    ASSERT_EQ(api_.stream_create(&gone, kStreamNonBlocking), kSuccess);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(api_.fill_words(memory_, round, 4, gone), kSuccess);
    ASSERT_EQ(api_.stream_destroy(gone), kSuccess);
    ASSERT_EQ(api_.context_synchronize(), kSuccess);
    EXPECT_EQ(fakecuda_executed(), 3 * round);
  }
}

TEST_F(FakeCuda, AShortQueueBlocksTheCaller) {
  options_.queue_depth = 2;
  Restart();
  Open();
  fakecuda_hold(1);
  ASSERT_EQ(api_.fill_words(memory_, 1, 1, a_), kSuccess);
  ASSERT_EQ(api_.fill_words(memory_, 2, 1, a_), kSuccess);
  EXPECT_EQ(fakecuda_blocked(), 0u);
  std::thread third([&] {
    const ContextScope scope(*context_);
    api_.fill_words(memory_, 3, 1, a_);
  });
  while (fakecuda_blocked() == 0) std::this_thread::yield();
  fakecuda_hold(0);
  third.join();
  unsigned word = 0;
  ASSERT_EQ(api_.copy_to_host(&word, memory_, 4, a_), kSuccess);
  EXPECT_EQ(word, 3u);
}

TEST_F(FakeCuda, AnInjectedFailureDoesNothingAndIsCounted) {
  Open();
  fakecuda_clear_log();
  fakecuda_inject("cuMemAlloc", 2, kErrorOutOfMemory);
  DevicePtr first = 0;
  DevicePtr second = 0;
  EXPECT_EQ(api_.memory_alloc(&first, 4096), kSuccess);
  EXPECT_EQ(api_.memory_alloc(&second, 4096), kErrorOutOfMemory);
  EXPECT_EQ(second, 0u);
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_STREQ(fakecuda_injected_call(), "cuMemAlloc");
  EXPECT_EQ(api_.memory_alloc(&second, 4096), kSuccess) << "once only";
  EXPECT_EQ(fakecuda_calls("cuMemAlloc"), 3u);
  EXPECT_EQ(fakecuda_calls(nullptr), 3u);
  EXPECT_EQ(api_.memory_free(first), kSuccess);
  EXPECT_EQ(api_.memory_free(second), kSuccess);
  EXPECT_EQ(api_.memory_free(second), kErrorInvalidValue) << "twice";
}

}  // namespace
}  // namespace kvcast::cuda
