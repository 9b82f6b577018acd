// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A pool and a copier on the fake driver, for the tests of copies.
#ifndef KVCAST_TESTS_NATIVE_CUDA_COPIES_H_
#define KVCAST_TESTS_NATIVE_CUDA_COPIES_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cuda/src/page_copier.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {

using kernels::PagePair;

// A device with a pool, pinned memory and a copier.
class CudaCopy : public CudaTest {
 protected:
  static constexpr uint64_t kPages = 24;

  void Open(uint64_t page_bytes, uint64_t ring_bytes = 64 << 10) {
    page_bytes_ = page_bytes;
    api_ = OpenDriver();
    if (!batch_) api_.copy_batch = nullptr;
    context_ = std::make_unique<DeviceContext>(api_, 0);
    events_ = std::make_unique<EventPool>(*context_);
    kernels_ = std::make_unique<KernelImage>(*context_);
    ring_ = std::make_unique<PinnedRing>(*context_, *events_, ring_bytes);
    copier_ = std::make_unique<PageCopier>(*context_, *kernels_, *ring_, PublishedPolicy(false));
    const ContextScope scope(*context_);
    const DriverApi& api = context_->api();
    KVCAST_CUDA(api, memory_alloc, &pool_, kPages * page_bytes);
    void* host = nullptr;
    KVCAST_CUDA(api, host_alloc, &host, kPages * page_bytes, kHostAllocPortable);
    host_ = static_cast<uint8_t*>(host);
    KVCAST_CUDA(api, stream_create, &stream_, kStreamNonBlocking);
    shadow_.resize(kPages * page_bytes);
    std::mt19937_64 random(TestSeed());
    for (uint8_t& byte : shadow_) byte = static_cast<uint8_t>(random());
    Upload(*context_, pool_, shadow_);
  }
  void Close() {
    if (context_ == nullptr) return;
    {
      const ContextScope scope(*context_);
      const DriverApi& api = context_->api();
      api.stream_synchronize(stream_);
      api.stream_destroy(stream_);
      api.memory_free(pool_);
      api.host_free(host_);
    }
    copier_.reset();
    ring_.reset();
    kernels_.reset();
    events_.reset();
    context_.reset();
  }
  void TearDown() override {
    fakecuda_hold(0);
    Close();
    CudaTest::TearDown();
  }

  [[nodiscard]] PageSide Pool() const { return {pool_, page_bytes_}; }
  [[nodiscard]] PageSide Host() const { return {reinterpret_cast<uint64_t>(host_), page_bytes_}; }
  void Force(Method method) {
    CopyPolicy policy = PublishedPolicy(false);
    policy.forced = method;
    copier_->set_policy(policy);
  }
  void Wait() {
    const ContextScope scope(*context_);
    KVCAST_CUDA(context_->api(), stream_synchronize, stream_);
  }
  void CopyPages(Direction direction, const PageSide& from, const PageSide& to,
                 const std::vector<PagePair>& pairs, bool stable = false) {
    const ContextScope scope(*context_);
    copier_->CopyPages(stream_, direction, from, to, page_bytes_, pairs.data(),
                       static_cast<uint32_t>(pairs.size()), stable);
  }
  [[nodiscard]] std::vector<uint8_t> PoolBytes() const {
    return Download(*context_, pool_, kPages * page_bytes_);
  }

  bool batch_ = true;
  DriverApi api_;  // the driver's, or as an older one's
  uint64_t page_bytes_ = 0;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<EventPool> events_;
  std::unique_ptr<KernelImage> kernels_;
  std::unique_ptr<PinnedRing> ring_;
  std::unique_ptr<PageCopier> copier_;
  StreamHandle stream_ = nullptr;
  DevicePtr pool_ = 0;
  uint8_t* host_ = nullptr;
  std::vector<uint8_t> shadow_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_COPIES_H_
