// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager in a caller's context on the fake driver, and a stream of the caller's there.
#ifndef KVCAST_TESTS_NATIVE_CUDA_CALLERS_H_
#define KVCAST_TESTS_NATIVE_CUDA_CALLERS_H_

#include <cstdint>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {

class CudaCallers : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
    theirs_ = fakecuda_context_create(0);
    fakecuda_context_push(theirs_);
    callers_ = fakecuda_stream_create(theirs_, 0);
    kvc_config_init(&config_);
    config_.device = KVC_DEVICE_CUDA;
    config_.flags = KVC_CONFIG_CALLERS_CONTEXT;
    config_.capacity_blocks = 16;
    config_.page_bytes = 1024;
    config_.copies = KVC_COPY_PUBLISHED;
  }
  void TearDown() override {
    fakecuda_inject(nullptr, 0, 0);
    fakecuda_settle();
    (void)fakecuda_context_pop();
    fakecuda_context_destroy(theirs_);
    CudaTest::TearDown();
  }
  // Of config_; stream_ is the caller's.
  void Make() {
    ASSERT_EQ(kvc_manager_create(&config_, nullptr, manager_.out(), &error_), KVC_OK)
        << error_.message;
    ASSERT_EQ(kvc_cuda_stream_adopt(manager_, callers_, &stream_, &error_), KVC_OK)
        << error_.message;
  }
  void Destroy() {
    EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
  }

  kvc_config config_{};
  kvc_error error_{};
  void* theirs_ = nullptr;
  void* callers_ = nullptr;
  uint64_t stream_ = 0;
  testing::OwnedManager manager_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_CALLERS_H_
