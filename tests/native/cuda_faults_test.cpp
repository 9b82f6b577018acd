// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's whole life on a CUDA device with a stream attached, over and over, and each
// time the next call of the driver fails, or the device is lost there. Whatever happens,
// the manager's books are right, what a subscriber has been told is what there is,
// everything can be given back, and nothing is left behind. What fails for a reason that
// passes succeeds when the caller tries again; only a lost device is lost for good.

#include <set>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_life.h"

namespace kvcast::cuda {
namespace {

// Sanitizers are slow, and find what they can in some of the places.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStride = 7;
#else
constexpr uint64_t kStride = 1;
#endif

class CudaFaults : public CudaLife {
 protected:
  // With a failure at each call, or with `times` of them from each call of a name on, and
  // once without.
  void EachCall(int code, bool loss, const char* call = nullptr, uint64_t times = 1) {
    uint64_t struck = 0;
    bool more = true;
    again_ = !loss;
    told_ = 0;
    const uint64_t stride = call == nullptr ? kStride : 1;
    for (uint64_t n = 1; more; n += stride) {
      SCOPED_TRACE("call " + std::to_string(n) + ", code " + std::to_string(code));
      Restart();
      void* const theirs = fakecuda_context_create(0);
      fakecuda_context_push(theirs);
      void* const callers = fakecuda_stream_create(theirs, 0);
      Told told;
      std::vector<uint64_t> open;
      if (loss) {
        fakecuda_inject_loss(n, code);
      } else {
        fakecuda_inject_many(call, n, times, code);
      }
      kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT, told.stream());
      EXPECT_EQ(manager != nullptr, status_ == KVC_OK);
      kvc_status status = status_;
      if (manager != nullptr) status = Live(manager, callers, &open);
      const std::string struck_call = fakecuda_injected_call();
      more = fakecuda_injected() != 0;
      struck += more ? 1 : 0;
      // A context that was not popped stays: the driver's failure, which nobody can mend.
      const bool stays = loss && struck_call == "cuCtxPopCurrent";
      EXPECT_TRUE(stays || fakecuda_context_depth() == 1) << struck_call;
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      if (!loss) {
        EXPECT_EQ(status, KVC_OK) << struck_call << ": " << error_.message;
        EXPECT_EQ(told.Wrong(manager), "") << struck_call;
        EXPECT_EQ(told.blocks(), 4u) << struck_call;
      } else if (manager != nullptr) {
        EXPECT_EQ(told.Wrong(manager), "") << struck_call;
      }
      End(manager, open, &told);
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      fakecuda_inject(nullptr, 0, 0);
      // What a failing call of the driver itself kept is out of our hands, and with a
      // context that cannot be made current nothing can be given back.
      static const std::set<std::string> kGiveBack = {
          "cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamDestroy", "cuEventDestroy",
          "cuMemFree",        "cuMemFreeHost",   "cuModuleUnload"};
      const fakecuda_live live = fakecuda_live_objects();
      const bool kept = kGiveBack.count(struck_call) != 0;
      if (!kept) {
        EXPECT_EQ(live.streams, 1u) << struck_call;
        EXPECT_EQ(live.events, 0u) << struck_call;
        EXPECT_EQ(live.modules, 0u) << struck_call;
      }
      if (!kept && !loss) {  // a broken context keeps its memory until it goes
        EXPECT_EQ(live.allocations, 0u) << struck_call;
        EXPECT_EQ(live.pinned, 0u) << struck_call;
      }
      EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
      (void)fakecuda_context_pop();
      fakecuda_context_destroy(theirs);
      ASSERT_LT(n, 2000u);
    }
    std::printf("code %d%s: %llu failures, %llu told\n", code, loss ? ", lost" : "",
                static_cast<unsigned long long>(struck), static_cast<unsigned long long>(told_));
    // How many events are needed at once depends on how fast the device is: one at least.
    EXPECT_GE(struck, call == nullptr ? 200 / stride : 1);
    if (call == nullptr) {
      EXPECT_GT(told_, 20 / kStride);
    }
    Restart();
  }
};

TEST_F(CudaFaults, AFailureOfEachCall) { EachCall(kErrorUnknown, false); }
TEST_F(CudaFaults, NoMemoryAtEachCall) { EachCall(kErrorOutOfMemory, false); }
TEST_F(CudaFaults, TheDeviceIsLostAtEachCall) { EachCall(kErrorIllegalAddress, true); }

// Longer than it is tried at once: what has been noted is left for the next call.
TEST_F(CudaFaults, EachRecordIsRefusedThreeTimes) {
  for (const char* call : {"cuEventRecord", "cuEventCreate", "cuEventQuery"}) {
    SCOPED_TRACE(call);
    EachCall(kErrorOutOfMemory, false, call, 3);
  }
}

}  // namespace
}  // namespace kvcast::cuda
