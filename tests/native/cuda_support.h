// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the tests of the CUDA device share: a fresh fake driver for each test, and
// a look afterwards whether it was misused.
#ifndef KVCAST_TESTS_NATIVE_CUDA_SUPPORT_H_
#define KVCAST_TESTS_NATIVE_CUDA_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cuda/src/context.h"
#include "tests/fakecuda/fakecuda.h"

namespace kvcast::cuda {

// The seed of all random choices, printed with a failure; KVC_SEED repeats it.
inline uint64_t TestSeed() {
  const char* text = std::getenv("KVC_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20240817;
}

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.seed = TestSeed();
    fakecuda_reset(&options_);
  }
  void TearDown() override {
    fakecuda_hold(0);
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
    EXPECT_EQ(fakecuda_context_depth(), 0) << "a context was left current";
    const fakecuda_live live = fakecuda_live_objects();
    EXPECT_EQ(live.contexts, 0u);
    EXPECT_EQ(live.streams, 0u);
    EXPECT_EQ(live.events, 0u);
    EXPECT_EQ(live.modules, 0u);
    EXPECT_EQ(live.allocations, 0u);
    EXPECT_EQ(live.ranges, 0u);
    EXPECT_EQ(live.chunks, 0u);
    EXPECT_EQ(live.pinned, 0u);
    if (HasFailure()) std::fprintf(stderr, "KVC_SEED=%llu\n", (unsigned long long)options_.seed);
  }
  // With other options than the defaults, before anything is opened.
  void Restart() { fakecuda_reset(&options_); }

  fakecuda_options options_;
};

// Writes and reads device memory through the driver, as on a real one.
inline void Upload(const DeviceContext& context, DevicePtr to, const std::vector<uint8_t>& bytes) {
  const ContextScope scope(context);
  KVCAST_CUDA(context.api(), copy_to_device, to, bytes.data(), bytes.size(), nullptr);
  KVCAST_CUDA(context.api(), stream_synchronize, nullptr);
}
inline std::vector<uint8_t> Download(const DeviceContext& context, DevicePtr from, size_t bytes) {
  const ContextScope scope(context);
  std::vector<uint8_t> out(bytes);
  KVCAST_CUDA(context.api(), copy_to_host, out.data(), from, bytes, nullptr);
  KVCAST_CUDA(context.api(), stream_synchronize, nullptr);
  return out;
}

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_SUPPORT_H_
