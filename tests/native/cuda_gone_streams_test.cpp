// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A caller's stream that has been destroyed while it was adopted.

#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_life.h"

namespace kvcast::cuda {
namespace {

using CudaGoneStreams = CudaLife;

// A caller's stream that is none any more takes its own sequences along, nothing else.
TEST_F(CudaGoneStreams, AStreamThatIsNoneAnyMore) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  Told told;
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT, told.stream());
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager, &streams[1], &error_), KVC_OK);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, streams[0], 100, &open), KVC_OK);
  fakecuda_settle();
  fakecuda_stream_destroy(callers);
  ASSERT_EQ(ForkEach(manager, {streams[0]}, &open), KVC_OK) << error_.message;
  for (const uint64_t id : open) {
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
    EXPECT_EQ(status, KVC_OK);
  }
  EXPECT_GT(Stats(manager).quarantined_pages, 0u);
  open.clear();
  for (uint32_t i = 2; i < 40; ++i) {  // in the pages that are left
    std::vector<uint64_t> one;
    ASSERT_EQ(Open(manager, streams[1], 100 * i, &one), KVC_OK) << error_.message;
    kvc_status status = KVC_INTERNAL;
    ASSERT_EQ(kvc_sequences_release(manager, 1, one.data(), &status, &error_), KVC_OK);
    fakecuda_settle();
  }
  EXPECT_EQ(told.Wrong(manager), "");
  EXPECT_EQ(kvc_device_stream_destroy(manager, streams[0], &error_), KVC_OK) << error_.message;
  End(manager, {}, &told);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

// An upload there is forgotten with the staging that it holds.
TEST_F(CudaGoneStreams, AStreamThatIsNoneAnyMoreKeepsNoStaging) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t streams[2] = {};
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager, &streams[1], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_settle();
  fakecuda_stream_destroy(callers);
  const kvc_table_delta delta{0, 0, 1};
  EXPECT_EQ(kvc_device_table_update(manager, table, streams[0], 1, &delta, &error_), KVC_OK);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(kvc_device_table_update(manager, table, streams[1], 1, &delta, &error_), KVC_OK)
        << i << ": " << error_.message;
    fakecuda_settle();
  }
  EXPECT_EQ(kvc_device_stream_destroy(manager, streams[0], &error_), KVC_OK) << error_.message;
  fakecuda_settle();
  EXPECT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK) << error_.message;
  End(manager, {});
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
