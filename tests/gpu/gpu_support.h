// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the checks and the benchmarks on a GPU share.
#ifndef KVCAST_TESTS_GPU_GPU_SUPPORT_H_
#define KVCAST_TESTS_GPU_GPU_SUPPORT_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/src/page_copier.h"

namespace kvcast::gpu {

struct Options {
  bool quick = false;  // sizes for the fake driver and for the sanitizers
  uint64_t seed = 1;
  uint64_t operations = 0;  // of the model; 0 = as many as suit
  uint64_t large_gib = 20;  // of the pool with offsets beyond 2^32
};

// Device, kernels and a stream, as the CUDA device of the library has them.
struct Gpu {
  explicit Gpu(int ordinal = 0, uint64_t ring_bytes = 4 << 20)
      : api(cuda::OpenDriver()),
        context(api, ordinal),
        events(context),
        kernels(context),
        ring(context, events, ring_bytes),
        copier(context, kernels, ring, cuda::PublishedPolicy(context.coherent_link())),
        scope(context) {
    KVCAST_CUDA(api, stream_create, &stream, cuda::kStreamNonBlocking);
  }
  ~Gpu() {
    api.stream_synchronize(stream);
    api.stream_destroy(stream);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void Wait() const { KVCAST_CUDA(api, stream_synchronize, stream); }
  void Force(cuda::Method method) {
    cuda::CopyPolicy policy = cuda::PublishedPolicy(context.coherent_link());
    policy.forced = method;
    copier.set_policy(policy);
  }

  const cuda::DriverApi& api;
  cuda::DeviceContext context;
  cuda::EventPool events;
  cuda::KernelImage kernels;
  cuda::PinnedRing ring;
  cuda::PageCopier copier;
  cuda::ContextScope scope;  // the program's one thread lives in it
  cuda::StreamHandle stream = nullptr;
};

// Memory of either kind, given back at the end of its scope.
class DeviceBlock {
 public:
  DeviceBlock(const Gpu& gpu, uint64_t bytes) : gpu_(gpu) {
    KVCAST_CUDA(gpu.api, memory_alloc, &address_, bytes);
  }
  ~DeviceBlock() { gpu_.api.memory_free(address_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  [[nodiscard]] cuda::DevicePtr address() const { return address_; }

 private:
  const Gpu& gpu_;
  cuda::DevicePtr address_ = 0;
};

class PinnedBlock {
 public:
  PinnedBlock(const Gpu& gpu, uint64_t bytes) : gpu_(gpu) {
    void* memory = nullptr;
    KVCAST_CUDA(gpu.api, host_alloc, &memory, bytes, cuda::kHostAllocPortable);
    bytes_ = static_cast<uint8_t*>(memory);
  }
  ~PinnedBlock() { gpu_.api.host_free(bytes_); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  [[nodiscard]] uint8_t* bytes() const { return bytes_; }
  [[nodiscard]] uint64_t address() const { return reinterpret_cast<uint64_t>(bytes_); }

 private:
  const Gpu& gpu_;
  uint8_t* bytes_ = nullptr;
};

// gpu_model.cpp: the lock-step model, through the C ABI. Throws std::runtime_error.
void CheckModel(const Options& options);

// gpu_content.cpp: what pages hold, through the C ABI. Throws std::runtime_error.
void CheckContent(const Options& options);

// gpu_bench.cpp: prints the figures, a line each.
void Bench(const Options& options);

}  // namespace kvcast::gpu

#endif  // KVCAST_TESTS_GPU_GPU_SUPPORT_H_
