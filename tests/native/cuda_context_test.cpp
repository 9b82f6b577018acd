// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Contexts on the fake driver.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda/src/context.h"
#include "tests/fakecuda/fakecuda.h"

namespace kvcast::cuda {
namespace {

class CudaContext : public ::testing::Test {
 protected:
  void SetUp() override { fakecuda_reset(nullptr); }
  void TearDown() override {
    EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
    EXPECT_EQ(fakecuda_context_depth(), 0) << "a context was left current";
  }
};

TEST_F(CudaContext, BytesGoThroughADeviceAndBack) {
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  EXPECT_EQ(fakecuda_context_depth(), 0) << "opening leaves nothing current";
  EXPECT_EQ(context.capability(), 90);
  {
    const ContextScope scope(context);
    StreamHandle stream = nullptr;
    KVCAST_CUDA(api, stream_create, &stream, kStreamNonBlocking);
    DevicePtr memory = 0;
    KVCAST_CUDA(api, memory_alloc, &memory, size_t{1} << 20);
    std::vector<uint8_t> out(1 << 20, 7);
    std::vector<uint8_t> back(1 << 20, 0);
    KVCAST_CUDA(api, copy_to_device, memory, out.data(), out.size(), stream);
    KVCAST_CUDA(api, copy_to_host, back.data(), memory, back.size(), stream);
    KVCAST_CUDA(api, stream_synchronize, stream);
    EXPECT_EQ(out, back);
    KVCAST_CUDA(api, memory_free, memory);
    KVCAST_CUDA(api, stream_destroy, stream);
  }
  EXPECT_EQ(fakecuda_live_objects().streams, 0u);
  EXPECT_EQ(fakecuda_live_objects().allocations, 0u);
}

TEST_F(CudaContext, ThePrimaryOneIsGivenBack) {
  {
    const DeviceContext context(OpenDriver(), 0);
    EXPECT_EQ(fakecuda_live_objects().contexts, 1u);
  }
  EXPECT_EQ(fakecuda_live_objects().contexts, 0u);
}

TEST_F(CudaContext, TheCallersStaysTheirsAndCurrent) {
  const DriverApi& api = OpenDriver();
  EXPECT_THROW((void)CallersContext(api), Error) << "there is none";
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  {
    const DeviceContext context(api, CallersContext(api));
    EXPECT_EQ(fakecuda_context_current(), theirs);
    EXPECT_EQ(fakecuda_context_depth(), 1);
    const ContextScope scope(context);
    EXPECT_EQ(fakecuda_context_depth(), 2);
  }
  EXPECT_EQ(fakecuda_context_pop(), theirs);
  EXPECT_EQ(fakecuda_live_objects().contexts, 1u);
  fakecuda_context_destroy(theirs);
}

// While the last release of the primary context waits for what is queued there, whoever asks
// for it gets another one, which lives.
TEST_F(CudaContext, ThePrimaryOneThatIsGoingIsNobodysAnyMore) {
  const DriverApi& api = OpenDriver();
  ContextHandle going = nullptr;
  ContextHandle popped = nullptr;
  DevicePtr memory = 0;
  ASSERT_EQ(api.primary_retain(&going, 0), kSuccess);
  ASSERT_EQ(api.context_push(going), kSuccess);
  ASSERT_EQ(api.memory_alloc(&memory, 4096), kSuccess);
  fakecuda_hold(1);
  ASSERT_EQ(api.fill_words(memory, 1, 16, nullptr), kSuccess);
  ASSERT_EQ(api.context_pop(&popped), kSuccess);
  std::thread release([&] { EXPECT_EQ(api.primary_release(0), kSuccess); });
  while (fakecuda_live_objects().contexts != 0) std::this_thread::yield();
  {
    const DeviceContext next(api, 0);
    EXPECT_NE(next.handle(), going);
    const ContextScope scope(next);
    EXPECT_EQ(fakecuda_live_objects().contexts, 1u);
    EXPECT_EQ(api.context_push(going), kErrorInvalidContext);
    fakecuda_hold(0);
    release.join();
    EXPECT_EQ(api.memory_free(memory), kSuccess);
  }
  EXPECT_EQ(fakecuda_live_objects().contexts, 0u);
}

TEST_F(CudaContext, ReleasingThePrimaryOneTooOftenIsReported) {
  const DriverApi& api = OpenDriver();
  EXPECT_EQ(api.primary_release(0), kErrorInvalidContext);
  EXPECT_EQ(fakecuda_violations(), 1u);
  fakecuda_forgive();
}

TEST_F(CudaContext, WhatCannotServeIsRefusedInWords) {
  const DriverApi& api = OpenDriver();
  EXPECT_THROW(DeviceContext(api, 1), Error);
  EXPECT_THROW(DeviceContext(api, -1), Error);
  fakecuda_options old;
  old.capability = 75;
  fakecuda_reset(&old);
  try {
    const DeviceContext context(api, 0);
    FAIL() << "compute capability 7.5 was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "fake CUDA device has compute capability 7.5, kvcast needs 8.0: choose another "
                 "GPU or the host device");
  }
}

TEST_F(CudaContext, TheOldestCapabilityServes) {
  fakecuda_options oldest;
  oldest.capability = 80;
  fakecuda_reset(&oldest);
  EXPECT_EQ(DeviceContext(OpenDriver(), 0).capability(), 80);
}

TEST_F(CudaContext, AGpuWithoutUnifiedAddressingIsRefusedInWords) {
  fakecuda_options apart;
  apart.unified_addressing = 0;
  fakecuda_reset(&apart);
  try {
    const DeviceContext context(OpenDriver(), 0);
    FAIL() << "a GPU without unified addressing was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_STREQ(error.what(), "fake CUDA device has no unified addressing with the host");
  }
  EXPECT_EQ(fakecuda_live_objects().contexts, 0u);
}

TEST_F(CudaContext, AGpuThatSomebodyElseHoldsIsToldAsThat) {
  fakecuda_inject("cuDevicePrimaryCtxRetain", 1, kErrorDeviceUnavailable);
  try {
    const DeviceContext context(OpenDriver(), 0);
    FAIL() << "the driver's refusal was not noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_EQ(error.system_code(), kErrorDeviceUnavailable);
    const std::string said = error.what();
    EXPECT_EQ(said.rfind("cuDevicePrimaryCtxRetain: ", 0), 0u) << said;
    EXPECT_NE(said.find("(46)"), std::string::npos) << said;
    EXPECT_NE(said.find("another process holds the GPU"), std::string::npos) << said;
    EXPECT_NE(said.find("nvidia-smi -q -d COMPUTE"), std::string::npos) << said;
  }
}

TEST_F(CudaContext, EachFailingCallIsAnErrorThatNamesIt) {
  const DriverApi& api = OpenDriver();
  int struck = 0;
  for (uint64_t n = 1; struck == 0 || fakecuda_injected() != 0; ++n) {
    fakecuda_reset(nullptr);
    fakecuda_inject(nullptr, n, kErrorUnknown);
    try {
      const DeviceContext context(api, 0);
      const ContextScope scope(context);
    } catch (const Error& error) {
      ++struck;
      EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
      EXPECT_EQ(error.system_code(), kErrorUnknown);
      EXPECT_EQ(std::strncmp(error.what(), "cu", 2), 0) << error.what();
      EXPECT_NE(std::strstr(error.what(), "CUDA_ERROR_UNKNOWN (999)"), nullptr) << error.what();
    }
    // A pop that fails cannot be mended: the test takes the context off itself.
    while (fakecuda_context_depth() > 0) fakecuda_context_pop();
    ASSERT_LT(n, 100u);
  }
  EXPECT_GT(struck, 5);
}

}  // namespace
}  // namespace kvcast::cuda
