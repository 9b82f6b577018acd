// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The lock-step model of tests/native on the CUDA device. On the fake driver the fake
// engine's kernels wait at gates, so that fences stay outstanding as long as the model
// wants; a GPU has no gates, there all that can run has run after each call.

#include <dlfcn.h>

#include <map>
#include <stdexcept>

#include "tests/gpu/gpu_support.h"
#include "tests/native/abi_support.h"
#include "tests/native/model_works.h"

namespace kvcast::gpu {
namespace {

// The calls of the fake driver, or nulls.
struct Gates {
  explicit Gates(bool use) {
    if (!use) return;
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return;
    gate = reinterpret_cast<void (*)(void*)>(dlsym(driver, "fakecuda_gate"));
    open = reinterpret_cast<void (*)(void*)>(dlsym(driver, "fakecuda_open_gate"));
    settle = reinterpret_cast<void (*)()>(dlsym(driver, "fakecuda_settle"));
    dlclose(driver);  // it stays: OpenDriver holds it
  }
  void (*gate)(void*) = nullptr;
  void (*open)(void*) = nullptr;
  void (*settle)() = nullptr;
};

class Works final : public testing::ModelWorks {
 public:
  Works(kvc_manager* manager, bool gates)
      : gates_(gates),
        api_(cuda::OpenDriver()),
        manager_(manager),
        context_(api_, 0),
        scope_(context_) {
    kvc_error error{};
    if (kvc_device_memory_get(manager, &memory_, &error) != KVC_OK) {
      throw std::runtime_error(error.message);
    }
    KVCAST_CUDA(api_, stream_create, &mine_, cuda::kStreamNonBlocking);
  }
  ~Works() override { api_.stream_destroy(mine_); }

  [[nodiscard]] bool gated() const override { return gates_.gate != nullptr; }
  void Fill(uint64_t stream, uint32_t page, uint64_t value) override {
    // From pageable memory: the driver has taken the bytes when the call returns.
    cuda::StreamHandle on = stream == 0 ? mine_ : HandleOf(stream);
    if (stream != 0 && gated()) gates_.gate(on);
    KVCAST_CUDA(api_, copy_to_device, memory_.base + page * memory_.page_bytes + sizeof value,
                &value, sizeof value, on);
    if (stream == 0) KVCAST_CUDA(api_, stream_synchronize, mine_);
  }
  void Advance(const std::vector<uint64_t>& streams) override {
    if (!gated()) return;
    for (const uint64_t stream : streams) gates_.open(handles_.at(stream));
  }
  void Settle() override {
    if (gated()) {
      gates_.settle();
    } else {
      KVCAST_CUDA(api_, context_synchronize, );
    }
  }
  [[nodiscard]] uint64_t Read(uint32_t page) override {
    uint64_t value = 0;
    KVCAST_CUDA(api_, copy_to_host, &value, memory_.base + page * memory_.page_bytes + sizeof value,
                sizeof value, mine_);
    KVCAST_CUDA(api_, stream_synchronize, mine_);
    return value;
  }

 private:
  cuda::StreamHandle HandleOf(uint64_t stream) {
    const auto found = handles_.find(stream);
    if (found != handles_.end()) return found->second;
    void* handle = nullptr;
    kvc_error error{};
    if (kvc_cuda_stream_get(manager_, stream, &handle, &error) != KVC_OK) {
      throw std::runtime_error(error.message);
    }
    return handles_[stream] = static_cast<cuda::StreamHandle>(handle);
  }

  const Gates gates_;
  const cuda::DriverApi& api_;
  kvc_manager* const manager_;
  const cuda::DeviceContext context_;
  const cuda::ContextScope scope_;  // the program's one thread lives in it
  kvc_device_memory memory_{};
  cuda::StreamHandle mine_ = nullptr;
  std::map<uint64_t, cuda::StreamHandle> handles_;
};

}  // namespace

void CheckModel(const Options& options) {
  kvc_error error{};
  if (kvc_cuda_open(nullptr, &error) != KVC_OK) throw std::runtime_error(error.message);
  const uint64_t suits = !options.quick ? 40000 : testing::kSanitized ? 2000 : 5000;
  const uint64_t operations = options.operations != 0 ? options.operations : suits;
  // On the fake driver both ways, so that the GPU's has been tried.
  for (const bool gates : {true, false}) {
    if (gates && Gates(true).gate == nullptr) continue;
    const std::string wrong = testing::RunModel(
        options.seed, operations, KVC_DEVICE_CUDA,
        [gates](kvc_manager* manager) { return std::make_unique<Works>(manager, gates); });
    if (!wrong.empty()) throw std::runtime_error(wrong);
  }
}

}  // namespace kvcast::gpu
