// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager that goes waits for what still uses its memory, also on callers' streams.

#include <cstdint>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_streams.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

// An elastic pool in a caller's context, and a stream of the caller's there.
class CudaTeardown : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
    theirs_ = fakecuda_context_create(0);
    fakecuda_context_push(theirs_);
    callers_ = fakecuda_stream_create(theirs_, 0);
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.flags = KVC_CONFIG_CALLERS_CONTEXT;
    config.capacity_blocks = 8;
    config.max_blocks = 16;
    config.page_bytes = uint64_t{1} << 20;
    config.copies = KVC_COPY_ENGINE;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, manager_.out(), &error_), KVC_OK)
        << error_.message;
    ASSERT_EQ(kvc_cuda_stream_adopt(manager_, callers_, &stream_, &error_), KVC_OK);
  }
  void TearDown() override {
    fakecuda_inject(nullptr, 0, 0);
    fakecuda_settle();
    (void)fakecuda_context_pop();
    fakecuda_context_destroy(theirs_);
    CudaTest::TearDown();
  }
  uint64_t Grow(uint64_t sequence) {
    const kvc_grow_item grow{sequence, 16};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    EXPECT_EQ(grown.status, KVC_OK);
    return grown.copied_block;
  }
  // Has the page of a fork copied on the caller's stream, behind a closed gate, and gives all
  // of it back.
  void LeaveACopyRunning() {
    const std::vector<uint32_t> tokens(5, 3);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = stream_;
    kvc_create_result made{};
    ASSERT_EQ(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK);
    (void)Grow(made.sequence);
    kvc_commit_item commit{};
    commit.sequence = made.sequence;
    commit.token_count = tokens.size();
    kvc_commit_result committed{};
    ASSERT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                   &committed, &error_),
              KVC_OK);
    const kvc_fork_item item{made.sequence, stream_};
    kvc_fork_result forked{};
    ASSERT_EQ(kvc_sequences_fork(manager_, 1, &item, &forked, &error_), KVC_OK);
    ASSERT_EQ(forked.status, KVC_OK) << error_.message;
    fakecuda_gate(callers_);
    ASSERT_NE(Grow(forked.sequence), KVC_NO_COPY);
    const uint64_t ids[] = {made.sequence, forked.sequence};
    kvc_status released[2] = {};
    ASSERT_EQ(kvc_sequences_release(manager_, 2, ids, released, &error_), KVC_OK);
  }
  // The gate opens when the manager waits by that call, or else unmaps.
  void DestroyAndOpenAt(const char* call) {
    fakecuda_clear_log();
    std::thread opener([&] {
      Until([&] { return fakecuda_calls(call) != 0 || fakecuda_calls("cuMemUnmap") != 0; });
      fakecuda_open_gate(callers_);
    });
    EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
    opener.join();
    EXPECT_NE(fakecuda_calls("cuMemUnmap"), 0u) << "the pool is not elastic";
  }

  kvc_error error_{};
  void* theirs_ = nullptr;
  void* callers_ = nullptr;
  uint64_t stream_ = 0;
  testing::OwnedManager manager_;
};

TEST_F(CudaTeardown, WaitsForNoMoreThanFencesWhereAllAreRecorded) {
  LeaveACopyRunning();
  DestroyAndOpenAt("cuEventSynchronize");
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 0u);
}

TEST_F(CudaTeardown, WaitsForACopyWhoseFenceWasRefused) {
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  LeaveACopyRunning();
  DestroyAndOpenAt("cuCtxSynchronize");
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 1u);
}

// Its handle may be none any more, or another stream's.
TEST_F(CudaTeardown, AsksNoStreamOfTheCallers) {
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  LeaveACopyRunning();
  fakecuda_open_gate(callers_);
  fakecuda_stream_destroy(callers_);
  fakecuda_clear_log();
  EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 1u);
  EXPECT_EQ(fakecuda_calls("cuStreamSynchronize"), 0u);
}

TEST_F(CudaTeardown, WaitsForACopyWhoseFenceCannotBeAsked) {
  LeaveACopyRunning();
  fakecuda_inject_many("cuEventSynchronize", 1, UINT64_MAX, kErrorUnknown);
  DestroyAndOpenAt("cuCtxSynchronize");
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 1u);
}

// A capture elsewhere has the driver refuse to wait for the whole context.
TEST_F(CudaTeardown, WaitsForTheStreamWhereTheContextCannotBeWaitedFor) {
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  LeaveACopyRunning();
  fakecuda_inject("cuCtxSynchronize", 1, kErrorStreamCaptureUnsupported);
  DestroyAndOpenAt("cuStreamSynchronize");
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 1u);
}

}  // namespace
}  // namespace kvcast::cuda
