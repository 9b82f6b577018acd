// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The staging of copies has a thread of its own, which a forked child has not.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/src/staging.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

using CudaStaging = CudaStreams;

// Whether the child ends well, and by itself.
void ExpectToEnd(pid_t child) {
  int status = 0;
  pid_t ended = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ended == 0 && std::chrono::steady_clock::now() < end) {
    ended = waitpid(child, &status, WNOHANG);
    std::this_thread::yield();
  }
  EXPECT_EQ(ended, child) << "the child hangs";
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Whatever the thread was doing when the child came to be: waiting for work, or for the driver
// with a job and another one behind it.
TEST_F(CudaStaging, AChildThatInheritsItCanEndIt) {
  Open();
  auto staging = std::make_unique<Staging>(*context_, 4096);
  std::vector<uint8_t> bytes(64);
  DevicePtr memory = 0;
  {
    const ContextScope scope(*context_);
    KVCAST_CUDA(context_->api(), memory_alloc, &memory, bytes.size());
  }
  const Staging::Job job{false, memory, bytes.data(), bytes.size(), nullptr};
  staging->WaitFor(staging->Submit(job));
  for (const bool busy : {false, true}) {
    SCOPED_TRACE(busy);
    if (busy) {
      fakecuda_stall("cuMemcpyHtoDAsync", 1);
      (void)staging->Submit(job);
      (void)staging->Submit(job);
      Until([] { return fakecuda_stalled() != 0; });
    }
    const pid_t child = fork();
    if (child == 0) {
      staging.reset();
      _exit(0);
    }
    ExpectToEnd(child);
  }
  fakecuda_let_go();
  staging.reset();
  const ContextScope scope(*context_);
  KVCAST_CUDA(context_->api(), memory_free, memory);
}

// With memory on the device, as much as a few halves.
class CudaStagedCopies : public CudaStreams {
 protected:
  static constexpr uint64_t kBytes = 20000;

  void OpenMemory() {
    Open();
    const ContextScope scope(*context_);
    KVCAST_CUDA(context_->api(), memory_alloc, &memory_, kBytes);
    bytes_.resize(kBytes);
    for (size_t i = 0; i < kBytes; ++i) bytes_[i] = static_cast<uint8_t>(i * 7 + i / 251);
  }
  void TearDown() override {
    if (memory_ != 0) {
      const ContextScope scope(*context_);
      context_->api().memory_free(memory_);
    }
    CudaStreams::TearDown();
  }
  Staging::Job In() { return {false, memory_, bytes_.data(), kBytes, nullptr}; }

  DevicePtr memory_ = 0;
  std::vector<uint8_t> bytes_;
};

TEST_F(CudaStagedCopies, AreMadeWithHoweverLittleRoom) {
  OpenMemory();
  Staging staging(*context_, 0);
  std::vector<uint8_t> back(kBytes);
  const uint64_t in = staging.Submit(In());
  const uint64_t out = staging.Submit({true, memory_, back.data(), kBytes, nullptr});
  staging.WaitFor(out);
  EXPECT_EQ(staging.Outcome(in), KVC_OK);
  EXPECT_EQ(staging.Outcome(out), KVC_OK);
  EXPECT_EQ(back, bytes_);
}

// Whichever call fails: CudaTest looks for what is left.
TEST_F(CudaStagedCopies, NothingIsLeftOfStagingThatCannotBeMade) {
  Open();
  bool made = false;
  int struck = 0;
  for (uint64_t n = 1; !made; ++n) {
    ASSERT_LT(n, 100u);
    const fakecuda_live before = fakecuda_live_objects();
    fakecuda_inject(nullptr, n, kErrorUnknown);
    try {
      const Staging staging(*context_, 8192);
      made = fakecuda_injected() == 0;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
      const fakecuda_live after = fakecuda_live_objects();
      EXPECT_EQ(after.pinned, before.pinned) << n;
      EXPECT_EQ(after.streams, before.streams) << n;
      EXPECT_EQ(after.events, before.events) << n;
      ++struck;
    }
    fakecuda_inject(nullptr, 0, 0);
    while (fakecuda_context_depth() > 0) fakecuda_context_pop();
  }
  EXPECT_GE(struck, 4) << "memory, a stream and two events";
}

TEST_F(CudaStagedCopies, DoNotWaitForTheNullStream) {
  OpenMemory();
  Staging staging(*context_, 8192);
  StreamHandle blocking = nullptr;
  const DriverApi& api = context_->api();
  {
    const ContextScope scope(*context_);
    ASSERT_EQ(api.stream_create(&blocking, 0), kSuccess);
    fakecuda_gate(blocking);
    ASSERT_EQ(api.fill_words(memory_, 0, 1, nullptr), kSuccess);  // behind the gate
  }
  std::vector<uint8_t> back(kBytes);
  const uint64_t out = staging.Submit({true, memory_, back.data(), kBytes, nullptr});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!staging.Done(out) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(staging.Done(out));
  fakecuda_open_gate(blocking);
  staging.WaitFor(out);
  const ContextScope scope(*context_);
  EXPECT_EQ(api.stream_synchronize(nullptr), kSuccess);
  EXPECT_EQ(api.stream_destroy(blocking), kSuccess);
}

TEST_F(CudaStagedCopies, ThatFailSayHowAndTheNextIsRight) {
  OpenMemory();
  Staging staging(*context_, 8192);
  for (const auto& [said, status] : {std::pair{kErrorOutOfMemory, KVC_OUT_OF_MEMORY},
                                     std::pair{kErrorNotSupported, KVC_DEVICE_ERROR}}) {
    fakecuda_inject("cuMemcpyHtoDAsync", 2, said);
    const uint64_t bad = staging.Submit(In());
    staging.WaitFor(bad);
    EXPECT_EQ(staging.Outcome(bad), status);
    std::vector<uint8_t> back(kBytes);
    const uint64_t in = staging.Submit(In());
    const uint64_t out = staging.Submit({true, memory_, back.data(), kBytes, nullptr});
    staging.WaitFor(out);
    EXPECT_EQ(staging.Outcome(in), KVC_OK);
    EXPECT_EQ(back, bytes_);
  }
}

// What a job that failed has queued still uses the halves.
TEST_F(CudaStagedCopies, ThatFailEndWhenWhatTheyHaveQueuedHasRun) {
  OpenMemory();
  Staging staging(*context_, 8192);
  fakecuda_hold(1);
  fakecuda_clear_log();
  fakecuda_inject("cuMemcpyHtoDAsync", 2, kErrorNotSupported);
  const uint64_t bad = staging.Submit(In());
  Until([&] { return staging.Done(bad) || fakecuda_calls("cuStreamSynchronize") != 0; });
  EXPECT_FALSE(staging.Done(bad));
  fakecuda_hold(0);
  staging.WaitFor(bad);
  EXPECT_EQ(staging.Outcome(bad), KVC_DEVICE_ERROR);
}

TEST_F(CudaStagedCopies, TheNewestFailuresAreKept) {
  OpenMemory();
  Staging staging(*context_, 8192);
  fakecuda_inject_many("cuMemcpyHtoDAsync", 1, 1025, kErrorNotSupported);
  for (uint64_t i = 1; i <= 1026; ++i) EXPECT_EQ(staging.Submit(In()), i);
  staging.WaitFor(1026);
  EXPECT_EQ(staging.Outcome(1), KVC_OK) << "forgotten";
  EXPECT_EQ(staging.Outcome(2), KVC_DEVICE_ERROR);
  EXPECT_EQ(staging.Outcome(1025), KVC_DEVICE_ERROR);
  EXPECT_EQ(staging.Outcome(1026), KVC_OK);
}

// Who waits for a job that is dropped is let go.
TEST_F(CudaStagedCopies, ThatHaveNotBegunAreDroppedAtTheEnd) {
  OpenMemory();
  auto staging = std::make_unique<Staging>(*context_, 8192);
  Staging* const raw = staging.get();
  fakecuda_clear_log();
  fakecuda_stall("cuMemcpyHtoDAsync", 1);
  const uint64_t first = staging->Submit(In());
  const uint64_t last = staging->Submit(In());
  Until([] { return fakecuda_stalled() != 0; });
  std::thread ender([&] { staging.reset(); });  // which waits for the stalled job
  raw->WaitFor(last);
  EXPECT_FALSE(raw->Done(first));
  fakecuda_let_go();
  ender.join();
  EXPECT_EQ(fakecuda_calls("cuMemcpyHtoDAsync"), (kBytes + 4095) / 4096) << "those of one job";
}

}  // namespace
}  // namespace kvcast::cuda
