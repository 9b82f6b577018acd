// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Copies of pages by the CUDA device, as the core asks for them: noted without a
// call of the driver, made in order when the call ends.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/src/cuda_device.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kPages = 16;

class CudaDeviceCopies : public CudaTest {
 protected:
  void Open(kvc_copy_method copies = KVC_COPY_PUBLISHED) {
    kvc_config config{};
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = kPages;
    config.page_bytes = kPageBytes;
    config.copies = copies;
    device_ = std::make_unique<CudaDevice>(OpenDriver(), config);
    bytes_.resize(kPages * kPageBytes);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<uint8_t>(i * 7 + i / 251);
    Upload(device_->context(), device_->memory().base, bytes_);
  }
  void TearDown() override {
    fakecuda_hold(0);
    device_.reset();
    CudaTest::TearDown();
  }
  // As the core does it: with room reserved, and a fence behind it.
  uint64_t Copy(uint32_t slot, const PageCopy& copy, const FenceList& after = {}) {
    device_->ReserveCopies(1);
    EXPECT_GT(device_->Copy(slot, copy, after), 0u);
    return device_->Record(slot);
  }
  // What the pool is to hold after whole pages, or parts of them, have been copied.
  void Expect(const PageCopy& copy, const std::vector<PagePart>& parts = {{0, kPageBytes}}) {
    for (const PagePart& part : parts) {
      std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(copy.from * kPageBytes + part.offset),
                  part.bytes,
                  bytes_.begin() + static_cast<ptrdiff_t>(copy.to * kPageBytes + part.offset));
    }
  }
  void Settle(uint32_t slot, uint64_t position) {
    while (!device_->Reached(slot, position)) {
      ASSERT_NO_THROW(device_->RequireUsable());
      std::this_thread::yield();
      device_->BeginCall();
    }
  }
  bool Right() {
    return Download(device_->context(), device_->memory().base, bytes_.size()) == bytes_;
  }

  std::unique_ptr<CudaDevice> device_;
  std::vector<uint8_t> bytes_;
};

TEST_F(CudaDeviceCopies, AreNotedFirstAndGoInOneBatchWithOneEvent) {
  for (const kvc_copy_method method : {KVC_COPY_ENGINE, KVC_COPY_KERNEL, KVC_COPY_CALIBRATED}) {
    SCOPED_TRACE(method);
    device_.reset();
    Restart();
    Open(method);
    const uint32_t slot = device_->OpenStream();
    EXPECT_EQ(device_->CopySlot(slot), slot);
    fakecuda_clear_log();
    uint64_t last = 0;
    for (PageId page = 0; page < 6; ++page) {
      const PageCopy copy{page, kPages - 1 - page, 0};  // no neighbours to merge
      last = Copy(slot, copy);
      EXPECT_EQ(last, page + 1u);
      Expect(copy);
    }
    EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "under the lock nothing is called";
    device_->EndCall();
    EXPECT_EQ(fakecuda_calls("cuEventRecord") - (method == KVC_COPY_ENGINE ? 0 : 1), 1u)
        << "one for all fences, and one for a kernel's table";
    if (method == KVC_COPY_ENGINE) {
      EXPECT_EQ(fakecuda_calls("cuMemcpyBatchAsync"), 1u);
    }
    if (method == KVC_COPY_KERNEL) {
      EXPECT_EQ(fakecuda_calls("cuLaunchKernel"), 1u);
    }
    Settle(slot, last);
    EXPECT_TRUE(Right());
  }
}

TEST_F(CudaDeviceCopies, ThatDependOnEachOtherKeepTheirOrder) {
  Open();
  const uint32_t slot = device_->OpenStream();
  uint64_t last = 0;
  for (PageId page = 0; page + 1 < kPages; ++page) {
    last = Copy(slot, {page, page + 1, 0});
    Expect({page, page + 1, 0});
  }
  device_->EndCall();
  Settle(slot, last);
  EXPECT_TRUE(Right());
}

TEST_F(CudaDeviceCopies, MoveOnlyWhatTheTokensTake) {
  Open();
  // Two buffers of eight tokens in a page, one of 32 bytes a token and one of 3.
  std::vector<std::vector<PagePart>> parts;
  for (uint32_t tokens = 1; tokens <= 8; ++tokens) {
    parts.push_back({{64, uint64_t{32} * tokens}, {2048, uint64_t{3} * tokens}});
  }
  device_->SetParts(parts);
  const uint32_t slot = device_->OpenStream();
  device_->ReserveCopies(3);
  const FenceList none{};
  EXPECT_EQ(device_->Copy(slot, {1, 9, 3}, none), 3u * 35);
  EXPECT_EQ(device_->Copy(slot, {2, 10, 8}, none), 8u * 35);
  EXPECT_EQ(device_->Copy(slot, {3, 11, 0}, none), kPageBytes);
  const uint64_t last = device_->Record(slot);
  Expect({1, 9, 3}, parts[2]);
  Expect({2, 10, 8}, parts[7]);
  Expect({3, 11, 0});
  device_->EndCall();
  Settle(slot, last);
  EXPECT_TRUE(Right());
}

TEST_F(CudaDeviceCopies, WaitForTheFencesOfTheSource) {
  Open();
  const uint32_t writer = device_->OpenStream();
  const uint32_t reader = device_->OpenStream();
  // The writer's own copy is the write: it is held, and so is what waits for it.
  const uint64_t written = Copy(writer, {0, 5, 0});
  FenceList after;
  after.Add({writer, written});
  const uint64_t read = Copy(reader, {5, 6, 0}, after);
  Expect({0, 5, 0});
  Expect({5, 6, 0});
  fakecuda_clear_log();
  device_->EndCall();
  EXPECT_EQ(fakecuda_calls("cuStreamWaitEvent"), 1u);
  Settle(reader, read);
  EXPECT_TRUE(device_->Reached(writer, written));
  EXPECT_TRUE(Right());
}

TEST_F(CudaDeviceCopies, ForTheHostAndForStepsAreOnAStreamOfTheDevicesOwn) {
  Open();
  const uint32_t steps = device_->OpenStepStream();
  fakecuda_clear_log();
  const uint32_t slot = device_->CopySlot(0);
  ASSERT_NE(slot, 0u);
  EXPECT_NE(slot, steps);
  EXPECT_EQ(device_->CopySlot(steps), slot);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "the stream is made when it gets work";
  device_->BeginStep(steps, 1);
  FenceList after;
  after.Add({steps, device_->Record(steps)});
  const uint64_t copied = Copy(slot, {2, 3, 0}, after);
  device_->EndCall();
  device_->BeginCall();
  device_->EndCall();
  EXPECT_FALSE(device_->Reached(slot, copied)) << "the step still writes the page";
  EXPECT_EQ(device_->BusyStreams(), 2u);
  device_->EndStep(steps, 1);
  Expect({2, 3, 0});
  device_->EndCall();
  Settle(slot, copied);
  EXPECT_TRUE(Right());
}

// Not one that passes, and not a stream of the device's own that cannot be made for now.
TEST_F(CudaDeviceCopies, WhatIsRefusedForGoodBreaksTheDevice) {
  struct Case {
    const char* call;
    int code;
    uint64_t times;
    bool breaks;
  };
  for (const Case& c : std::vector<Case>{{"cuMemcpyBatchAsync", kErrorUnknown, 2, false},
                                         {"cuMemcpyBatchAsync", kErrorUnknown, 3, true},
                                         {"cuMemcpyBatchAsync", kErrorNotSupported, 3, true},
                                         {"cuMemcpyBatchAsync", kErrorLaunchFailed, 1, true},
                                         {"cuStreamCreate", kErrorOutOfMemory, 3, false},
                                         {"cuStreamCreate", kErrorUnknown, 3, true}}) {
    SCOPED_TRACE(std::string(c.call) + ", code " + std::to_string(c.code) + ", times " +
                 std::to_string(c.times));
    device_.reset();
    Restart();
    Open(KVC_COPY_ENGINE);
    const uint32_t slot = device_->CopySlot(0);
    (void)Copy(slot, {0, 9, 0});
    (void)Copy(slot, {1, 8, 0});
    fakecuda_inject_many(c.call, 1, c.times, c.code);
    device_->EndCall();
    EXPECT_TRUE(fakecuda_injected());
    fakecuda_inject(nullptr, 0, 0);
    device_->EndCall();  // what was left
    if (c.breaks) {
      EXPECT_THROW(device_->RequireUsable(), Error);
      continue;
    }
    EXPECT_NO_THROW(device_->RequireUsable());
    fakecuda_settle();
    EXPECT_EQ(fakecuda_calls("cuMemcpyBatchAsync"), c.call[2] == 'M' ? 3u : 1u);
  }
}

}  // namespace
}  // namespace kvcast::cuda
