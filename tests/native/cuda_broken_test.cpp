// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager whose device is lost: who is told, what can be given back, and what of others is not
// touched.

#include <cstring>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_life.h"

namespace kvcast::cuda {
namespace {

using CudaBroken = CudaLife;

// A manager whose device is lost is of no more use; what else there is on the GPU is.
TEST_F(CudaBroken, OneManagersFailureIsNotTheOthers) {
  kvc_manager* const first = Create();
  kvc_manager* const second = Create();
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_device_stream_create(first, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(second, &streams[1], &error_), KVC_OK);
  uint64_t ids[2] = {};
  fakecuda_inject("cuEventCreate", 1, kErrorIllegalAddress);
  EXPECT_EQ(Sequence(first, streams[0], 100, &ids[0]), KVC_OK) << "noticed at its end";
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR) << "not something to try again";
  EXPECT_EQ(error_.system_code, kErrorIllegalAddress);
  EXPECT_NE(std::string(error_.message).find("lost"), std::string::npos) << error_.message;
  EXPECT_EQ(Sequence(second, streams[1], 100, &ids[1]), KVC_OK);
  EXPECT_EQ(Grow(second, ids[1], 48), KVC_OK);
  // The device itself breaks: each is told by itself.
  fakecuda_settle();
  fakecuda_break(0, kErrorLaunchFailed);
  uint64_t more = 0;
  EXPECT_EQ(kvc_device_stream_create(second, &more, &error_), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorLaunchFailed);
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorIllegalAddress) << "the first error is what it was";
  End(first, {ids[0]});
  End(second, {ids[1]});
}

// What a broken manager has lent can be given back to it, by whichever call gives back.
TEST_F(CudaBroken, ABrokenManagerTakesBackPinsAndConversationsThatEnd) {
  again_ = false;
  kvc_manager* const manager = Create();
  ASSERT_NE(manager, nullptr) << error_.message;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
  uint64_t id = 0;
  ASSERT_EQ(Sequence(manager, stream, 1, &id), KVC_OK) << error_.message;
  kvc_pin_result pinned{};
  ASSERT_EQ(kvc_pin_sequences(manager, 1, &id, &pinned, &error_), KVC_OK);
  ASSERT_NE(pinned.pin, 0u);
  fakecuda_break(0, kErrorIllegalAddress);
  EXPECT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_DEVICE_ERROR);
  (void)kvc_device_fences_query(manager, 0, nullptr, nullptr, &error_);
  kvc_status item = KVC_INTERNAL;
  EXPECT_EQ(kvc_unpin(manager, 1, &pinned.pin, &item, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(item, KVC_OK);
  item = KVC_INTERNAL;
  EXPECT_EQ(kvc_sequences_end(manager, 1, &id, &item, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(item, KVC_OK);
  if (item != KVC_OK) (void)kvc_sequences_release(manager, 1, &id, &item, &error_);
  EXPECT_EQ(kvc_manager_destroy(manager, &error_), KVC_OK) << error_.message;
  fakecuda_reset(nullptr);
}

// A call asks whether its stream is being captured, and learns that the device is lost: it is told
// so, and has done nothing.
TEST_F(CudaBroken, ACallThatLearnsOfTheLossWhenItAsksDoesNothing) {
  again_ = false;
  kvc_manager* const manager = Create();
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, stream, 100, &open), KVC_OK);
  fakecuda_settle();
  Ask(manager);
  std::vector<uint32_t> tokens(11, 7);  // the second block becomes full
  kvc_commit_item commit{};
  commit.sequence = open[0];
  commit.token_count = tokens.size();
  kvc_commit_result committed;
  std::memset(&committed, 0x5a, sizeof committed);
  const kvc_commit_result before = committed;
  fakecuda_inject("cuStreamIsCapturing", 1, kErrorIllegalAddress);
  EXPECT_EQ(kvc_sequences_commit(manager, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                 &committed, &error_),
            KVC_DEVICE_ERROR);
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(error_.system_code, kErrorIllegalAddress);
  EXPECT_NE(std::string(error_.message).find("cuStreamIsCapturing"), std::string::npos);
  EXPECT_EQ(std::memcmp(&committed, &before, sizeof committed), 0);
  EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
  End(manager, open);
}

}  // namespace
}  // namespace kvcast::cuda
