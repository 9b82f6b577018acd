// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The system starts no more threads for us: that is said, with what helps, and nothing stays.

#include <cerrno>
#include <string>

#include "cuda/src/pool_worker.h"
#include "cuda/src/staging.h"
#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/failing_threads.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

class CudaThreadStart : public CudaTest {
 protected:
  void TearDown() override {
    refuse_thread = 0;
    CudaTest::TearDown();
  }
  template <typename Make>
  static void ExpectRefused(Make&& make) {
    refuse_thread = 1;
    try {
      make();
      ADD_FAILURE() << "made";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), KVC_OUT_OF_MEMORY);
      EXPECT_EQ(error.system_code(), EAGAIN);
      const std::string text = error.what();
      EXPECT_NE(text.find("thread"), std::string::npos) << text;
      EXPECT_NE(text.find("ulimit -u"), std::string::npos) << text;
      EXPECT_LT(text.size(), sizeof(kvc_error::message)) << "it is cut";
    }
    EXPECT_EQ(refuse_thread.load(), 0u);
  }
};

TEST_F(CudaThreadStart, OfAPoolsMemory) {
  const DeviceContext context(OpenDriver(), 0);
  PoolMemory memory(context, PoolSize{uint64_t{2} << 20, uint64_t{8} << 20, 1});
  ExpectRefused([&] { const PoolWorker worker(memory, uint64_t{1} << 20, 2); });
  const PoolWorker worker(memory, uint64_t{1} << 20, 2);
  EXPECT_EQ(worker.backing().pages, 2u);
}

TEST_F(CudaThreadStart, OfStaging) {
  const DeviceContext context(OpenDriver(), 0);
  // Its stream has a thread of the fake driver's, which is started before.
  refuse_thread = 0;
  const uint64_t before = threads_started;
  { const Staging staging(context, 4096); }
  ASSERT_EQ(threads_started - before, 2u);
  refuse_thread = 2;
  try {
    const Staging staging(context, 4096);
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_OUT_OF_MEMORY);
    EXPECT_EQ(error.system_code(), EAGAIN);
    EXPECT_NE(std::string(error.what()).find("ulimit -u"), std::string::npos) << error.what();
  }
  EXPECT_EQ(fakecuda_live_objects().streams, 0u);
  EXPECT_EQ(fakecuda_live_objects().pinned, 0u);
}

// Whichever thread it is, one of the driver's or ours: the manager is not made, and the same call
// succeeds when there are threads again.
TEST_F(CudaThreadStart, OfAManager) {
  kvc_error error{};
  ASSERT_EQ(kvc_cuda_open(nullptr, &error), KVC_OK) << error.message;
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.capacity_blocks = 8;
  config.max_blocks = 16;
  config.page_bytes = uint64_t{1} << 20;
  config.copies = KVC_COPY_PUBLISHED;
  int ours = 0;
  for (uint64_t n = 1;; ++n) {
    ASSERT_LT(n, 20u);
    testing::OwnedManager manager;
    refuse_thread = n;
    const kvc_status status = kvc_manager_create(&config, nullptr, manager.out(), &error);
    const bool struck = refuse_thread.exchange(0) == 0;
    if (!struck) {
      EXPECT_EQ(status, KVC_OK) << error.message;
      EXPECT_EQ(kvc_manager_destroy(manager.Take(), &error), KVC_OK) << error.message;
      break;
    }
    EXPECT_EQ(status, KVC_OUT_OF_MEMORY) << error.message;
    ours += std::string(error.message).find("pids.max") != std::string::npos ? 1 : 0;
    EXPECT_EQ(error.system_code == EAGAIN, ours != 0) << error.message;
    const fakecuda_live live = fakecuda_live_objects();
    EXPECT_EQ(live.contexts, 0u);
    EXPECT_EQ(live.allocations + live.chunks + live.ranges + live.pinned, 0u);
    EXPECT_EQ(live.events + live.modules, 0u);
  }
  EXPECT_EQ(ours, 1);
}

}  // namespace
}  // namespace kvcast::cuda
