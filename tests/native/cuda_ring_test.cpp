// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The pinned ring from which work in flight takes what it needs on the host: what comes back,
// when, what never does, and who waits for whom.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/src/pinned_ring.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

using CudaRing = CudaStreams;

TEST_F(CudaRing, KeepsWhatNoEventStandsBehind) {
  Open();
  PinnedRing ring(*context_, *events_, 256);
  const ContextScope scope(*context_);
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
  const PinnedRing::Space space = ring.Take(256);
  ASSERT_NE(space.host, nullptr);
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  EXPECT_FALSE(ring.ReleaseAfter(space, stream));
  EXPECT_FALSE(ring.Settle(stream));
  ring.Poll();
  EXPECT_EQ(ring.Take(16).host, nullptr) << "its work may not have run";
  fakecuda_inject(nullptr, 0, 0);
  EXPECT_TRUE(ring.Settle(stream));
  KVCAST_CUDA(context_->api(), stream_synchronize, stream);
  EXPECT_NE(ring.Take(256).host, nullptr);
  KVCAST_CUDA(context_->api(), stream_destroy, stream);
}

TEST_F(CudaRing, NeverGivesOutWhatIsInUse) {
  Open();
  PinnedRing ring(*context_, *events_, 4096);
  const ContextScope scope(*context_);
  const DriverApi& api = context_->api();
  StreamHandle stream = nullptr;
  KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
  DevicePtr memory = 0;
  KVCAST_CUDA(api, memory_alloc, &memory, size_t{4096});
  std::mt19937_64 random(TestSeed());
  int full = 0;
  std::vector<std::vector<uint8_t>> expected;
  for (int round = 0; round < 400; ++round) {
    const uint64_t bytes = 1 + random() % 1500;
    const PinnedRing::Space space = ring.Take(bytes);
    if (space.host == nullptr) {
      ++full;
      KVCAST_CUDA(api, stream_synchronize, stream);
      continue;
    }
    EXPECT_EQ(reinterpret_cast<uint64_t>(space.host) % 16, 0u);
    // Bytes that are overwritten before the copy has read them would show.
    std::vector<uint8_t> bytes_in(bytes, static_cast<uint8_t>(round));
    std::copy(bytes_in.begin(), bytes_in.end(), static_cast<uint8_t*>(space.host));
    if (round % 7 == 0) {
      ring.Release(space);
      continue;
    }
    KVCAST_CUDA(api, copy_to_device, memory, space.host, bytes, stream);
    ring.ReleaseAfter(space, stream);
    if (round % 5 == 0) {
      std::vector<uint8_t> out(bytes);
      KVCAST_CUDA(api, copy_to_host, out.data(), memory, bytes, stream);
      ASSERT_EQ(out, bytes_in) << "round " << round;
    }
    EXPECT_LE(ring.in_flight(), ring.size());
  }
  EXPECT_GT(full, 10);
  fakecuda_clear_log();
  EXPECT_EQ(ring.Take(4097).host, nullptr) << "more than it has";
  EXPECT_EQ(ring.Take(UINT64_MAX).host, nullptr);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "and no question helps";
  KVCAST_CUDA(api, stream_synchronize, stream);
  KVCAST_CUDA(api, stream_destroy, stream);
  KVCAST_CUDA(api, memory_free, memory);
}

// All that shares an event with what went into a graph may have gone there as well.
TEST_F(CudaRing, GoesOnWithoutWhatIsInAGraph) {
  Open();
  PinnedRing ring(*context_, *events_, 80);
  const ContextScope scope(*context_);
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
  const PinnedRing::Space before = ring.Take(16);
  const PinnedRing::Space first = ring.Take(16);
  const PinnedRing::Space second = ring.Take(16);
  EXPECT_TRUE(ring.ReleaseAfter(before, stream));
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  EXPECT_FALSE(ring.ReleaseAfter(first, stream));
  fakecuda_stream_capture(stream, 1);
  EXPECT_TRUE(ring.ReleaseAfter(second, stream)) << "the driver says so";
  fakecuda_stream_capture(stream, 0);
  const PinnedRing::Space behind = ring.Take(16);
  EXPECT_TRUE(ring.ReleaseAfter(behind, stream));
  KVCAST_CUDA(context_->api(), stream_synchronize, stream);
  ring.Poll();
  EXPECT_EQ(ring.in_flight(), 0u);
  EXPECT_TRUE(ring.has_lost());
  EXPECT_EQ(events_->in_use(), 0u);
  // Of 80 bytes there are those of `before`, and all behind `second`.
  const auto* const base = static_cast<const std::byte*>(before.host);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(ring.Take(33).host, nullptr) << "in one piece";
    const PinnedRing::Space wide = ring.Take(32);
    EXPECT_EQ(wide.host, base + 48);
    const PinnedRing::Space narrow = ring.Take(16);
    EXPECT_EQ(narrow.host, base) << "behind the ring's end";
    EXPECT_EQ(ring.Take(1).host, nullptr);
    ring.Release(wide);
    ring.Release(narrow);
    ring.Poll();
  }
  KVCAST_CUDA(context_->api(), stream_destroy, stream);
}

// Two streams, and space whose end the driver has refused to record there.
class CudaRingOwing : public CudaRing {
 protected:
  void SetUp() override {
    CudaRing::SetUp();
    Open();
    ring_ = std::make_unique<PinnedRing>(*context_, *events_, 128);
    scope_ = std::make_unique<ContextScope>(*context_);
    for (StreamHandle& stream : streams_) {
      ASSERT_EQ(context_->api().stream_create(&stream, kStreamNonBlocking), kSuccess);
    }
  }
  void TearDown() override {
    ring_.reset();
    for (StreamHandle stream : streams_) (void)context_->api().stream_destroy(stream);
    scope_.reset();
    CudaRing::TearDown();
  }
  void Owe(StreamHandle stream) {
    const PinnedRing::Space space = ring_->Take(16);
    ASSERT_NE(space.host, nullptr);
    fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
    EXPECT_FALSE(ring_->ReleaseAfter(space, stream));
  }
  void Settle() {
    fakecuda_settle();
    ring_->Poll();
  }

  std::unique_ptr<PinnedRing> ring_;
  std::unique_ptr<ContextScope> scope_;
  StreamHandle streams_[2] = {};
};

TEST_F(CudaRingOwing, WhatIsOwedOfOneStreamIsNotOfAnother) {
  Owe(streams_[0]);
  EXPECT_TRUE(ring_->Settle(streams_[1]));
  EXPECT_EQ(events_->in_use(), 0u) << "of the other there is nothing to show";
  ring_->Abandon(streams_[1]);
  Settle();
  EXPECT_EQ(ring_->in_flight(), 16u);
  EXPECT_FALSE(ring_->has_lost());
  Owe(streams_[1]);
  ring_->Abandon(streams_[1]);
  EXPECT_TRUE(ring_->Settle(streams_[0]));
  Settle();
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_TRUE(ring_->has_lost());
  EXPECT_EQ(events_->in_use(), 0u);
}

TEST_F(CudaRingOwing, OneEventServesAllThatIsOwed) {
  Owe(streams_[0]);
  Owe(streams_[0]);
  EXPECT_TRUE(ring_->Settle(streams_[0]));
  EXPECT_EQ(events_->in_use(), 1u);
  Settle();
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(events_->in_use(), 0u);
}

// A stream with the handle of one that is gone has nothing to do with what that has lost.
TEST_F(CudaRingOwing, WhatIsLostIsOwedNoMore) {
  Owe(streams_[0]);
  ring_->Abandon(streams_[0]);
  fakecuda_clear_log();
  EXPECT_TRUE(ring_->Settle(streams_[0]));
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing is owed, and that is known";
  Owe(streams_[0]);
  EXPECT_TRUE(ring_->Settle(streams_[0]));
  Settle();
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(events_->in_use(), 0u);
}

// Nor does what goes into a graph take back what has been lost before.
TEST_F(CudaRingOwing, WhatIsLostStaysLost) {
  const PinnedRing::Space first = ring_->Take(16);
  fakecuda_stream_capture(streams_[0], 1);
  EXPECT_TRUE(ring_->ReleaseAfter(first, streams_[0])) << "the driver says so";
  fakecuda_stream_capture(streams_[0], 0);
  Owe(streams_[1]);
  ring_->Abandon(streams_[1]);
  Settle();
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(ring_->Take(112).host, nullptr);
  EXPECT_NE(ring_->Take(96).host, nullptr) << "behind both";
  EXPECT_EQ(events_->created(), 1u) << "an event in a graph serves nobody any more";
}

// An error that passes is no answer: what is in use is asked for again.
TEST_F(CudaRingOwing, AQuestionThatFailsIsAskedAgain) {
  const PinnedRing::Space space = ring_->Take(16);
  EXPECT_TRUE(ring_->ReleaseAfter(space, streams_[0]));
  fakecuda_settle();
  fakecuda_inject_many("cuEventQuery", 1, 3, kErrorOutOfMemory);
  EXPECT_NO_THROW(ring_->Poll());
  EXPECT_EQ(ring_->in_flight(), 16u);
  EXPECT_NO_THROW(ring_->Poll());
  EXPECT_EQ(ring_->in_flight(), 0u);
}

TEST_F(CudaRingOwing, MemoryThatADeviceCannotAddressGoesBack) {
  const uint64_t before = fakecuda_live_objects().pinned;
  fakecuda_inject("cuMemHostGetDevicePointer", 1, kErrorUnknown);
  EXPECT_THROW(PinnedRing(*context_, *events_, 64), Error);
  EXPECT_EQ(fakecuda_live_objects().pinned, before);
}

TEST_F(CudaRingOwing, ALostDeviceIsNoRefusal) {
  const PinnedRing::Space space = ring_->Take(16);
  fakecuda_inject("cuEventRecord", 1, kErrorIllegalAddress);
  EXPECT_THROW((void)ring_->ReleaseAfter(space, streams_[0]), Error);
  EXPECT_EQ(events_->in_use(), 0u);
}

// The driver may take its time to say what has been reached: nobody who takes or gives back waits.
TEST_F(CudaRing, NobodyWaitsForAQuestion) {
  Open();
  PinnedRing ring(*context_, *events_, 256);
  const ContextScope scope(*context_);
  StreamHandle stream = nullptr;
  KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
  const PinnedRing::Space first = ring.Take(64);
  const PinnedRing::Space second = ring.Take(64);
  EXPECT_TRUE(ring.ReleaseAfter(first, stream));
  KVCAST_CUDA(context_->api(), stream_synchronize, stream);
  fakecuda_stall("cuEventQuery", 1);
  std::thread asking([&] { ring.Poll(); });
  Until([] { return fakecuda_stalled() != 0; });
  auto others = std::async(std::launch::async, [&] {
    const PinnedRing::Space third = ring.TryTake(64);
    ring.Release(second);
    return third.host != nullptr && ring.in_flight() == 192;
  });
  const bool waited = others.wait_for(std::chrono::seconds(20)) != std::future_status::ready;
  EXPECT_FALSE(waited);
  fakecuda_let_go();
  asking.join();
  EXPECT_TRUE(others.get());
  EXPECT_EQ(ring.in_flight(), 64u) << "the first and the second are back";
  EXPECT_EQ(events_->in_use(), 0u);
  KVCAST_CUDA(context_->api(), stream_destroy, stream);
}

// Two who ask at the same time do not take back twice, nor what is in use.
TEST_F(CudaRing, ManyAskAndTake) {
  options_.max_delay_us = 5;
  Restart();
  Open();
  PinnedRing ring(*context_, *events_, 1024);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const ContextScope scope(*context_);
      StreamHandle stream = nullptr;
      KVCAST_CUDA(context_->api(), stream_create, &stream, kStreamNonBlocking);
      for (int round = 0; round < 300; ++round) {
        const PinnedRing::Space space = ring.Take(64);
        if (space.host == nullptr) {
          ring.Poll();
          continue;
        }
        auto* const bytes = static_cast<uint8_t*>(space.host);
        std::fill_n(bytes, space.bytes, static_cast<uint8_t>(t));
        std::this_thread::yield();
        for (uint64_t i = 0; i < space.bytes; ++i) wrong += bytes[i] == t ? 0 : 1;
        if (round % 3 == 0) {
          ring.Release(space);
        } else if (!ring.ReleaseAfter(space, stream)) {
          ++wrong;
        }
        if (round % 5 == 0) ring.Poll();
      }
      KVCAST_CUDA(context_->api(), stream_synchronize, stream);
      KVCAST_CUDA(context_->api(), stream_destroy, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  ring.Poll();
  EXPECT_EQ(ring.in_flight(), 0u);
  EXPECT_EQ(events_->in_use(), 0u);
}

// A stream that is destroyed goes on with its work: the ring goes after that.
TEST_F(CudaRing, GoesAfterTheWorkOfAStreamThatHasBeenDestroyed) {
  Open();
  const DriverApi& api = context_->api();
  DevicePtr memory = 0;
  for (const bool asked : {true, false}) {  // whether its event can be waited for
    auto ring = std::make_unique<PinnedRing>(*context_, *events_, 256);
    const ContextScope scope(*context_);
    StreamHandle stream = nullptr;
    KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
    KVCAST_CUDA(api, memory_alloc, &memory, size_t{256});
    const PinnedRing::Space space = ring->Take(256);
    fakecuda_gate(stream);
    KVCAST_CUDA(api, copy_to_device, memory, space.host, size_t{256}, stream);
    EXPECT_TRUE(ring->ReleaseAfter(space, stream));
    KVCAST_CUDA(api, stream_destroy, stream);
    fakecuda_clear_log();
    if (!asked) fakecuda_inject("cuEventSynchronize", 1, kErrorUnknown);
    std::thread opener([&] {
      Until([&] {
        return fakecuda_calls(asked ? "cuEventSynchronize" : "cuCtxSynchronize") != 0 ||
               fakecuda_calls("cuMemFreeHost") != 0;
      });
      fakecuda_open_gate(stream);
    });
    ring.reset();
    opener.join();
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
    KVCAST_CUDA(api, memory_free, memory);
  }
}

// What was owed of a stream that is none any more may run still, asked for since or not.
TEST_F(CudaRing, GoesAfterTheWorkThatNoEventStandsBehind) {
  Open();
  const DriverApi& api = context_->api();
  DevicePtr memory = 0;
  for (const bool polled : {true, false}) {
    auto ring = std::make_unique<PinnedRing>(*context_, *events_, 256);
    const ContextScope scope(*context_);
    StreamHandle stream = nullptr;
    KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
    KVCAST_CUDA(api, memory_alloc, &memory, size_t{256});
    const PinnedRing::Space space = ring->Take(256);
    fakecuda_gate(stream);
    KVCAST_CUDA(api, copy_to_device, memory, space.host, size_t{256}, stream);
    fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
    EXPECT_FALSE(ring->ReleaseAfter(space, stream));
    KVCAST_CUDA(api, stream_destroy, stream);
    ring->Abandon(stream);
    if (polled) ring->Poll();
    EXPECT_EQ(ring->has_lost(), polled);
    fakecuda_clear_log();
    std::thread opener([&] {
      Until([&] {
        return fakecuda_calls("cuCtxSynchronize") != 0 || fakecuda_calls("cuMemFreeHost") != 0;
      });
      fakecuda_open_gate(stream);
    });
    ring.reset();
    opener.join();
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
    KVCAST_CUDA(api, memory_free, memory);
  }
}

}  // namespace
}  // namespace kvcast::cuda
