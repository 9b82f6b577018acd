// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Events are made once and used again.

#include <set>
#include <vector>

#include "cuda/src/event_pool.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

using CudaEventPool = CudaStreams;

TEST_F(CudaEventPool, MakesAsManyAsAreInUseAtOnce) {
  Open();
  const ContextScope scope(*context_);
  fakecuda_clear_log();
  std::set<EventHandle> seen;
  for (int round = 0; round < 100; ++round) {
    std::vector<EventHandle> taken;
    for (int i = 0; i < 10; ++i) taken.push_back(events_->Take());
    EXPECT_EQ(events_->in_use(), 10u);
    seen.insert(taken.begin(), taken.end());
    for (const EventHandle event : taken) events_->Give(event);
    EXPECT_EQ(events_->in_use(), 0u);
  }
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(events_->created(), 10u);
  EXPECT_EQ(fakecuda_calls("cuEventCreate"), 10u);
  const EventHandle dropped = events_->Take();
  events_->Drop(dropped);
  EXPECT_EQ(events_->created(), 9u);
  EXPECT_EQ(fakecuda_calls("cuEventDestroy"), 1u);
}

TEST_F(CudaEventPool, ServesAnyNumberOfFences) {
  Open();
  const uint32_t slot = table_->Open();
  fakecuda_clear_log();
  for (int i = 0; i < 1000; ++i) {
    const uint64_t fence = table_->Record(slot);
    ASSERT_EQ(table_->Submit(), 0u);
    ASSERT_TRUE(ReachedSoon(slot, fence));
  }
  EXPECT_EQ(fakecuda_calls("cuEventRecord"), 1000u);
  EXPECT_LE(fakecuda_calls("cuEventCreate"), 2u) << "one is outstanding at a time";
}

}  // namespace
}  // namespace kvcast::cuda
