// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager that goes waits for what still uses its memory, also on callers' streams.

#include <cstdint>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_callers.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

// An elastic pool in a caller's context, and a stream of the caller's there.
class CudaTeardown : public CudaCallers {
 protected:
  void SetUp() override {
    CudaCallers::SetUp();
    config_.capacity_blocks = 8;
    config_.max_blocks = 16;
    config_.page_bytes = uint64_t{1} << 20;
    config_.copies = KVC_COPY_ENGINE;
    Make();
  }
  uint64_t Grow(uint64_t sequence) {
    const kvc_grow_item grow{sequence, 16};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    EXPECT_EQ(grown.status, KVC_OK);
    return grown.copied_block;
  }
  // A sequence whose tail its fork has to copy before it writes.
  void Fork() {
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
    forked_[0] = made.sequence;
    forked_[1] = forked.sequence;
  }
  void CopyAndRelease() {
    ASSERT_NE(Grow(forked_[1]), KVC_NO_COPY);
    kvc_status released[2] = {};
    ASSERT_EQ(kvc_sequences_release(manager_, 2, forked_, released, &error_), KVC_OK);
  }
  // The copy is on the stream, the caller's unless another is named, behind a closed gate.
  void LeaveACopyRunning(void* gated = nullptr) {
    Fork();
    fakecuda_gate(gated != nullptr ? gated : callers_);
    CopyAndRelease();
  }
  // The gate opens when the manager waits by that call, or else lets memory go.
  void DestroyAndOpenAt(const char* call, void* gated = nullptr) {
    fakecuda_clear_log();
    std::thread opener([&] {
      Until([&] {
        return fakecuda_calls(call) + fakecuda_calls("cuMemUnmap") +
                   fakecuda_calls("cuMemFreeHost") !=
               0;
      });
      fakecuda_open_gate(gated != nullptr ? gated : callers_);
    });
    Destroy();
    opener.join();
    EXPECT_NE(fakecuda_calls("cuMemUnmap"), 0u) << "the pool is not elastic";
  }

  uint64_t forked_[2] = {};
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
  Destroy();
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

// A stream of ours where an upload is queued goes at once; the upload runs, and reads its staging.
// To free the table's memory waits for it.
TEST_F(CudaTeardown, WaitsForAnUploadWhoseStreamHasBeenDestroyed) {
  uint64_t ours = 0;
  uint64_t table = 0;
  uint64_t address = 0;
  void* handle = nullptr;
  ASSERT_EQ(kvc_device_stream_create(manager_, &ours, &error_), KVC_OK);
  ASSERT_EQ(kvc_cuda_stream_get(manager_, ours, &handle, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_gate(handle);
  const kvc_table_delta delta{0, 0, 1};
  ASSERT_EQ(kvc_device_table_update(manager_, table, ours, 1, &delta, &error_), KVC_OK);
  fakecuda_clear_log();
  ASSERT_EQ(kvc_device_stream_destroy(manager_, ours, &error_), KVC_OK);
  ASSERT_EQ(fakecuda_calls("cuStreamDestroy"), 1u);
  DestroyAndOpenAt("cuMemFree", handle);
  EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
}

// To destroy a stream would not wait for it.
TEST_F(CudaTeardown, WaitsForWorkOnAStreamOfOursThatCannotBeWaitedFor) {
  ASSERT_EQ(kvc_device_stream_create(manager_, &stream_, &error_), KVC_OK);
  void* handle = nullptr;
  ASSERT_EQ(kvc_cuda_stream_get(manager_, stream_, &handle, &error_), KVC_OK);
  LeaveACopyRunning(handle);
  fakecuda_inject("cuStreamSynchronize", 1, kErrorUnknown);
  DestroyAndOpenAt("cuCtxSynchronize", handle);
  EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
}

// The end of what a copy's kernel reads was not recorded, and a later record shows it.
TEST_F(CudaTeardown, DoesNotWaitForATableThatALaterRecordHasSettled) {
  Destroy();
  config_.copies = KVC_COPY_KERNEL;
  Make();
  Fork();
  fakecuda_clear_log();
  fakecuda_inject_many("cuEventRecord", 1, 3, kErrorOutOfMemory);
  CopyAndRelease();
  ASSERT_EQ(fakecuda_injected(), 1);
  ASSERT_EQ(fakecuda_calls("cuLaunchKernel"), 1u);
  fakecuda_settle();
  fakecuda_clear_log();
  Destroy();
  EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), 0u);
}

}  // namespace
}  // namespace kvcast::cuda
