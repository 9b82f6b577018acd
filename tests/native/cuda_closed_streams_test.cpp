// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What becomes of a device stream that is destroyed: the driver is not asked about it any more,
// and its slot is there for others.

#include <atomic>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_streams.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

class CudaClosedStreams : public CudaTest {
 protected:
  void Make(uint32_t flags = 0) {
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.flags = flags;
    config.capacity_blocks = 16;
    config.page_bytes = 4096;
    config.copies = KVC_COPY_PUBLISHED;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, manager_.out(), &error_), KVC_OK)
        << error_.message;
    before_ = fakecuda_live_objects().streams;
  }
  void TearDown() override {
    EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
    CudaTest::TearDown();
  }
  uint64_t Stream() {
    uint64_t stream = 0;
    EXPECT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK) << error_.message;
    return stream;
  }
  // All streams that there can be.
  std::vector<uint64_t> AllStreams() {
    std::vector<uint64_t> streams;
    uint64_t stream = 0;
    while (kvc_device_stream_create(manager_, &stream, &error_) == KVC_OK) {
      streams.push_back(stream);
    }
    EXPECT_EQ(error_.status, KVC_NOT_NOW) << error_.message;
    EXPECT_EQ(streams.size(), kDeviceSlots - 1);
    return streams;
  }
  void Destroy(uint64_t stream) {
    EXPECT_EQ(kvc_device_stream_destroy(manager_, stream, &error_), KVC_OK) << error_.message;
  }
  void DestroyAll(const std::vector<uint64_t>& streams) {
    for (const uint64_t stream : streams) Destroy(stream);
  }
  uint64_t Sequence(uint64_t stream) {
    kvc_prompt prompt{};
    prompt.token_count = tokens_.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream;
    kvc_create_result made{};
    EXPECT_EQ(kvc_sequences_create(manager_, 1, &prompt, tokens_.data(), tokens_.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK)
        << error_.message;
    return made.sequence;
  }
  // On any thread.
  kvc_status Grow(uint64_t sequence) {
    const kvc_grow_item item{sequence, 16};
    kvc_grow_result grown{};
    const kvc_status status =
        kvc_sequences_grow(manager_, 1, &item, &grown, nullptr, 0, nullptr, nullptr);
    return status != KVC_OK ? status : grown.status;
  }
  void Release(uint64_t sequence) {
    kvc_status released = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager_, 1, &sequence, &released, &error_), KVC_OK);
    EXPECT_EQ(released, KVC_OK);
  }
  kvc_status Query() { return kvc_device_fences_query(manager_, 0, nullptr, nullptr, &error_); }
  uint64_t Streams() { return fakecuda_live_objects().streams - before_; }

  const std::vector<uint32_t> tokens_ = std::vector<uint32_t>(5, 3);
  kvc_error error_{};
  testing::OwnedManager manager_;
  uint64_t before_ = 0;
};

TEST_F(CudaClosedStreams, GoAtOnceWhenNothingIsOutstanding) {
  Make();
  const uint64_t first = Stream();
  const uint64_t second = Stream();
  EXPECT_EQ(Streams(), 2u);
  Destroy(first);
  EXPECT_EQ(Streams(), 1u);
  Destroy(second);
  EXPECT_EQ(Streams(), 0u);
  fakecuda_clear_log();
  EXPECT_EQ(Query(), KVC_OK);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "there is nothing to be destroyed";
}

TEST_F(CudaClosedStreams, GoWithTheFirstCallThatFindsTheirWorkDone) {
  Make();
  const uint64_t stream = Stream();
  const uint64_t sequence = Sequence(stream);
  EXPECT_EQ(Grow(sequence), KVC_OK);
  fakecuda_hold(1);
  Release(sequence);
  Destroy(stream);
  EXPECT_EQ(Query(), KVC_OK);
  EXPECT_EQ(Streams(), 1u) << "its fence has not been reached";
  fakecuda_hold(0);
  fakecuda_settle();
  // Calls that only keep the books destroy nothing.
  fakecuda_clear_log();
  EXPECT_EQ(kvc_step_begin(manager_, 0, 1, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_calls(nullptr), 0u);
  EXPECT_EQ(Query(), KVC_OK);
  EXPECT_EQ(Streams(), 0u);
}

TEST_F(CudaClosedStreams, AStreamOfStepsTakesTheSlotOfOneThatIsGone) {
  Make();
  const std::vector<uint64_t> streams = AllStreams();
  const uint64_t sequence = Sequence(streams.back());
  EXPECT_EQ(Grow(sequence), KVC_OK);
  fakecuda_hold(1);
  Release(sequence);
  Destroy(streams.back());
  uint64_t steps = 0;
  EXPECT_EQ(kvc_step_stream_create(manager_, &steps, &error_), KVC_NOT_NOW);
  fakecuda_hold(0);
  fakecuda_settle();
  EXPECT_EQ(kvc_step_stream_create(manager_, &steps, &error_), KVC_OK) << error_.message;
  DestroyAll({streams.begin(), streams.end() - 1});
  EXPECT_EQ(Streams(), 0u);
  for (size_t i = 1; i < kDeviceSlots - 1; ++i) {
    ASSERT_EQ(kvc_step_stream_create(manager_, &steps, &error_), KVC_OK) << error_.message;
  }
  EXPECT_EQ(kvc_step_stream_create(manager_, &steps, &error_), KVC_NOT_NOW);
}

TEST_F(CudaClosedStreams, ACopyOfTheDevicesOwnTakesTheSlotOfOneThatIsGone) {
  Make();
  DestroyAll(AllStreams());
  const uint64_t sequence = Sequence(0);
  ASSERT_EQ(Grow(sequence), KVC_OK);
  kvc_commit_item commit{};
  commit.sequence = sequence;
  commit.token_count = tokens_.size();
  kvc_commit_result committed{};
  ASSERT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens_.data(), tokens_.size(), nullptr, 0,
                                 &committed, &error_),
            KVC_OK);
  const kvc_fork_item item{sequence, 0};
  kvc_fork_result forked{};
  ASSERT_EQ(kvc_sequences_fork(manager_, 1, &item, &forked, &error_), KVC_OK);
  EXPECT_EQ(Grow(forked.sequence), KVC_OK);
  fakecuda_settle();
  Release(sequence);
  Release(forked.sequence);
}

// A driver that has no room for the call now is asked again, one that is lost is not.
TEST_F(CudaClosedStreams, StayWhileTheDriverRefusesAndAreForgottenWithTheDevice) {
  Make();
  const uint64_t first = Stream();
  const uint64_t second = Stream();
  fakecuda_inject_many("cuCtxPushCurrent", 1, 1000, kErrorOutOfMemory);
  Destroy(first);
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(Streams(), 2u);
  fakecuda_inject("", 0, 0);
  EXPECT_EQ(Query(), KVC_OK);
  EXPECT_EQ(Streams(), 1u);
  fakecuda_inject_many("cuCtxPushCurrent", 1, 1000, kErrorIllegalAddress);
  Destroy(second);
  fakecuda_inject("", 0, 0);
  uint64_t third = 0;
  EXPECT_EQ(kvc_device_stream_create(manager_, &third, &error_), KVC_DEVICE_ERROR);
  EXPECT_EQ(Query(), KVC_OK);
  EXPECT_EQ(Streams(), 1u) << "the manager's end takes it along";
}

// A call on one stream looks which are being captured, while another thread ends the last
// sequence of another stream, destroys that and makes a new one.
TEST_F(CudaClosedStreams, AreNotDestroyedWhileTheDriverIsAskedAboutThem) {
  Make();
  const uint64_t streams[] = {Stream(), Stream()};
  const uint64_t sequences[] = {Sequence(streams[0]), Sequence(streams[1])};
  fakecuda_stall("cuStreamIsCapturing", 1);
  std::thread asks([&] { EXPECT_EQ(Grow(sequences[1]), KVC_OK); });
  Until([] { return fakecuda_stalled() != 0; });
  Release(sequences[0]);
  fakecuda_settle();
  EXPECT_EQ(Query(), KVC_OK);
  Destroy(streams[0]);
  const uint64_t next = Stream();
  EXPECT_EQ(Streams(), 3u);
  fakecuda_let_go();
  asks.join();
  EXPECT_EQ(Streams(), 2u) << "the call that has asked ends after the question";
  Release(sequences[1]);
  fakecuda_settle();
  Destroy(next);
}

// The owner of a stream may destroy it as soon as kvc_device_stream_destroy has returned.
TEST_F(CudaClosedStreams, OfTheCallerAreNotAskedAfterTheCallThatDestroysThem) {
  void* const theirs = fakecuda_context_create(0);
  void* const callers = fakecuda_stream_create(theirs, 0);
  fakecuda_context_push(theirs);
  Make(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_cuda_stream_adopt(manager_, callers, &streams[0], &error_), KVC_OK)
      << error_.message;
  streams[1] = Stream();
  const uint64_t sequences[] = {Sequence(streams[0]), Sequence(streams[1])};
  fakecuda_stall("cuStreamIsCapturing", 1);
  std::thread asks([&] { EXPECT_EQ(Grow(sequences[1]), KVC_OK); });
  Until([] { return fakecuda_stalled() != 0; });
  Release(sequences[0]);
  fakecuda_settle();
  EXPECT_EQ(Query(), KVC_OK);
  std::atomic<bool> goes_on{false};
  std::atomic<bool> closed{false};
  std::thread closes([&] {
    kvc_error error{};
    EXPECT_EQ(kvc_device_stream_destroy(manager_, streams[0], &error), KVC_OK) << error.message;
    EXPECT_TRUE(goes_on.load()) << "the driver is still being asked about the stream";
    fakecuda_stream_destroy(callers);
    closed = true;
  });
  // The manager knows the stream no more, and takes other calls, while the one that has closed
  // it waits. That it does is seen only if it does not: it has had time enough then.
  void* handle = nullptr;
  Until([&] {
    return kvc_cuda_stream_get(manager_, streams[0], &handle, nullptr) == KVC_STALE_HANDLE;
  });
  for (int i = 0; i < 1000 && !closed; ++i) {
    EXPECT_EQ(Query(), KVC_OK);
    std::this_thread::yield();
  }
  goes_on = true;
  fakecuda_let_go();
  asks.join();
  closes.join();
  EXPECT_EQ(Grow(sequences[1]), KVC_OK);
  Release(sequences[1]);
  fakecuda_settle();
  EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
  fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
