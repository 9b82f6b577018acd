// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What threads find out about captures at the same time: who asked later knows better.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/capture_marks.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

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

using CudaCapture = CudaTest;

// A call has asked, and before it goes on a capture begins and another call finds it.
TEST_F(CudaCapture, ACallThatAskedBeforeDoesNotHideACaptureFromOneThatAskedAfter) {
  kvc_error error{};
  ASSERT_EQ(kvc_cuda_open(nullptr, &error), KVC_OK) << error.message;
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.flags = KVC_CONFIG_CALLERS_CONTEXT;
  config.capacity_blocks = 8;
  config.page_bytes = 256;
  config.copies = KVC_COPY_PUBLISHED;
  testing::OwnedManager manager;
  ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error), KVC_OK) << error.message;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &stream, &error), KVC_OK) << error.message;
  const auto use = [&] { return kvc_device_stream_wait(manager, stream, 0, nullptr, nullptr); };
  ASSERT_EQ(use(), KVC_OK);
  fakecuda_stall("cuCtxPopCurrent", 1);  // the end of asking
  kvc_status older = KVC_INTERNAL;
  std::thread thread([&] { older = use(); });
  while (fakecuda_stalled() == 0) std::this_thread::yield();
  fakecuda_stream_capture(callers, 1);
  EXPECT_EQ(use(), KVC_BAD_STATE);
  fakecuda_let_go();
  thread.join();
  EXPECT_EQ(older, KVC_BAD_STATE) << "it took the mark of the other one away";
  fakecuda_stream_capture(callers, 0);
  EXPECT_EQ(use(), KVC_OK);
  EXPECT_EQ(kvc_manager_destroy(manager.Take(), &error), KVC_OK);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
