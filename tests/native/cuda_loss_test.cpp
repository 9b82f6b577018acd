// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What a table says when it breaks, and that it can say so when there is no memory.

#include "tests/native/failing_allocator.h"  // first: it replaces operator new

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cuda/src/device_loss.h"
#include "cuda/src/pinned_ring.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

bool Says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DeviceLoss, TheRemedyIsWholeHoweverLongTheCause) {
  for (const LostTask task : {LostTask::kWork, LostTask::kFence, LostTask::kQuestion}) {
    for (const Result code : {kErrorUnknown, kErrorIllegalAddress}) {
      DeviceLoss loss;
      loss.Set(Error(KVC_OUT_OF_MEMORY, "cuCall: " + std::string(1000, 'x'), code), task);
      EXPECT_EQ(loss.status(), KVC_DEVICE_ERROR);
      EXPECT_EQ(loss.system_code(), code);
      const std::string text = loss.what();
      EXPECT_LT(text.size(), sizeof(kvc_error::message));
      EXPECT_EQ(text.rfind("cuCall: xxx", 0), 0u) << text;
      EXPECT_TRUE(Says(text, "destroy the manager")) << text;
      EXPECT_EQ(Says(text, "promised"), task == LostTask::kWork && code == kErrorUnknown) << text;
      const DeviceLoss copy(loss);
      EXPECT_EQ(text, copy.what());
    }
  }
  DeviceLoss loss;
  loss.Set(std::bad_alloc(), LostTask::kWork);
  EXPECT_EQ(loss.system_code(), 0);
  EXPECT_EQ(std::string(loss.what()).rfind("out of host memory: ", 0), 0u) << loss.what();
}

// The driver's entries, whose own allocations do not count.
DriverApi real;
template <auto Field>
struct Uncounted;
template <typename... Parameters, Result (*DriverApi::*Field)(Parameters...)>
struct Uncounted<Field> {
  static Result Call(Parameters... parameters) {
    const bool before = std::exchange(counting, false);
    const Result result = (real.*Field)(parameters...);
    counting = before;
    return result;
  }
};

const DriverApi& UncountedDriver() {
  real = OpenDriver();
  static DriverApi uncounted;
  uncounted = real;
#define KVCAST_UNCOUNTED(field, name, version, parameters) \
  if (real.field != nullptr) uncounted.field = Uncounted<&DriverApi::field>::Call;
  KVCAST_CUDA_REQUIRED_ENTRIES(KVCAST_UNCOUNTED)
  KVCAST_CUDA_OPTIONAL_ENTRIES(KVCAST_UNCOUNTED)
#undef KVCAST_UNCOUNTED
  return uncounted;
}

class CudaLoss : public CudaStreams {
 protected:
  void Open() {
    context_ = std::make_unique<DeviceContext>(UncountedDriver(), 0);
    events_ = std::make_unique<EventPool>(*context_);
    table_ = std::make_unique<StreamTable>(*context_, *events_);
  }
  // Has a fresh table do what the driver refuses for good, and again without memory: for each n
  // the n-th allocation of it fails. It breaks, or tries again, and nobody dies of it.
  void BreakWithoutMemory(const char* call, const std::function<void(uint32_t slot)>& prepare,
                          const std::function<void(uint32_t slot)>& act) {
    bool more = true;
    for (uint64_t n = 0; more; ++n) {
      ASSERT_LT(n, 100u);
      SCOPED_TRACE(n);
      Open();
      const uint32_t slot = table_->Open();
      prepare(slot);
      fakecuda_inject_many(call, 1, UINT64_MAX, kErrorUnknown);
      allocations = 0;
      fail_at = n;
      counting = true;
      act(slot);
      counting = false;
      more = allocations > n;
      fail_at = UINT64_MAX;
      if (table_->broken() == nullptr) act(slot);
      fakecuda_inject(nullptr, 0, 0);
      ASSERT_NE(table_->broken(), nullptr);
      EXPECT_EQ(table_->broken()->status(), KVC_DEVICE_ERROR);
      text_ = table_->broken()->what();
      if (!more) {
        EXPECT_EQ(table_->broken()->system_code(), kErrorUnknown) << text_;
        EXPECT_TRUE(Says(text_, call)) << text_;
        EXPECT_TRUE(Says(text_, "(999)")) << text_;
      }
      EXPECT_TRUE(Says(text_, "destroy the manager")) << text_;
      fakecuda_settle();
      Close();
    }
  }

  std::string text_;
};

TEST_F(CudaLoss, AQuestionAboutFences) {
  BreakWithoutMemory(
      "cuEventQuery",
      [&](uint32_t slot) {
        fakecuda_hold(1);
        (void)table_->Record(slot);
        EXPECT_EQ(table_->Submit(), 0u);
        fakecuda_hold(0);
      },
      [&](uint32_t) { table_->Poll(); });
  EXPECT_TRUE(Says(text_, "could not be asked")) << text_;
  EXPECT_FALSE(Says(text_, "promised")) << text_;
}

TEST_F(CudaLoss, AQuestionAboutCaptures) {
  BreakWithoutMemory(
      "cuStreamIsCapturing", [](uint32_t) {},
      [&](uint32_t slot) { (void)table_->Capturing(uint64_t{1} << slot); });
  EXPECT_FALSE(Says(text_, "promised")) << text_;
}

TEST_F(CudaLoss, AStreamThatIsToGo) {
  BreakWithoutMemory(
      "cuCtxPushCurrent", [&](uint32_t slot) { table_->Close(slot); },
      [&](uint32_t) { table_->FreeClosed(); });
  EXPECT_FALSE(Says(text_, "promised")) << text_;
}

TEST_F(CudaLoss, AFence) {
  BreakWithoutMemory(
      "cuEventRecord", [&](uint32_t slot) { (void)table_->Record(slot); },
      [&](uint32_t) { (void)table_->Submit(); });
  EXPECT_TRUE(Says(text_, "a fence could not be recorded")) << text_;
  EXPECT_FALSE(Says(text_, "promised")) << text_;
}

TEST_F(CudaLoss, AWait) {
  BreakWithoutMemory(
      "cuStreamWaitEvent",
      [&](uint32_t slot) {
        fakecuda_hold(1);
        const uint32_t other = table_->Open();
        const Fence fence{other, table_->Record(other)};
        (void)table_->Submit();
        table_->Wait(slot, fence);
        fakecuda_hold(0);
      },
      [&](uint32_t) { (void)table_->Submit(); });
  EXPECT_TRUE(Says(text_, "promised")) << text_;
}

// Nobody dies of an end that cannot be recorded for want of memory: it is owed.
TEST_F(CudaLoss, AnEndOfStagingIsNone) {
  Open();
  PinnedRing ring(*context_, *events_, 64);
  const ContextScope scope(*context_);
  const StreamHandle stream = table_->handle(table_->Open());
  const PinnedRing::Space space = ring.Take(16);
  allocations = 0;
  fail_at = 0;
  counting = true;
  const bool recorded = ring.ReleaseAfter(space, stream);
  counting = false;
  fail_at = UINT64_MAX;
  EXPECT_GT(allocations, 0u);
  EXPECT_FALSE(recorded);
  EXPECT_TRUE(ring.Settle(stream));
  fakecuda_settle();
  ring.Poll();
  EXPECT_EQ(ring.in_flight(), 0u);
}

// Whoever is told needs no memory for it either, but for the exception itself.
TEST_F(CudaLoss, IsToldWithoutMemory) {
  Open();
  const uint32_t slot = table_->Open();
  table_->Note(slot, [](StreamHandle) -> bool {
    throw Error(KVC_DEVICE_ERROR, "refused", kErrorIllegalAddress);
  });
  (void)table_->Submit();
  ASSERT_NE(table_->broken(), nullptr);
  allocations = 0;
  counting = true;
  char text[sizeof(kvc_error::message)] = {};
  int32_t code = 0;
  try {
    table_->RequireKept();
  } catch (const Error& error) {
    std::strncpy(text, error.what(), sizeof text - 1);
    code = error.system_code();
  }
  counting = false;
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(code, kErrorIllegalAddress);
  EXPECT_TRUE(Says(text, "the device or its context is lost; destroy the manager")) << text;
}

}  // namespace
}  // namespace kvcast::cuda
