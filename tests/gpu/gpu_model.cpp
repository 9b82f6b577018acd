// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The lock-step model of tests/native on the CUDA device, with pools of a fixed size and
// with elastic ones. On the fake driver the fake engine's kernels wait at gates, so that
// fences stay outstanding as long as the model wants, and the thread that maps and unmaps
// memory waits with each driver call until it is let; a GPU has neither, there all that can
// run has run after each call, and memory is waited for where it matters.

#include <dlfcn.h>

#include <map>
#include <stdexcept>

#include "tests/gpu/gpu_support.h"
#include "tests/native/abi_support.h"
#include "tests/native/model_works.h"
#include "tests/native/run_length.h"

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
    hold_others = reinterpret_cast<void (*)(int)>(dlsym(driver, "fakecuda_hold_others"));
    await_others = reinterpret_cast<int (*)()>(dlsym(driver, "fakecuda_await_others"));
    let_others = reinterpret_cast<int (*)(uint64_t)>(dlsym(driver, "fakecuda_let_others"));
    refuse = reinterpret_cast<void (*)(const char*, uint64_t, uint64_t, int)>(
        dlsym(driver, "fakecuda_inject_many"));
    dlclose(driver);  // it stays: OpenDriver holds it
  }
  void (*gate)(void*) = nullptr;
  void (*open)(void*) = nullptr;
  void (*settle)() = nullptr;
  void (*hold_others)(int) = nullptr;
  int (*await_others)() = nullptr;
  int (*let_others)(uint64_t) = nullptr;
  void (*refuse)(const char*, uint64_t, uint64_t, int) = nullptr;
};

std::string Misuse() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return "";
  const auto first = reinterpret_cast<const char* (*)()>(dlsym(driver, "fakecuda_first_violation"));
  dlclose(driver);
  return first != nullptr ? first() : "";
}

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
    if (gated()) gates_.hold_others(1);
  }
  ~Works() override {
    FreeMemory();
    api_.stream_destroy(mine_);
  }

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
  [[nodiscard]] bool holds_memory() const override { return gated(); }
  void LetMemory(uint64_t calls) override {
    if (gates_.await_others() == 0) {
      throw std::runtime_error("the device makes no driver call for the memory it was asked for");
    }
    if (gates_.let_others(calls) == 0) {
      throw std::runtime_error("the device does not come to an end with the memory");
    }
  }
  void RefuseMemory(bool refuse) override {
    gates_.refuse("cuMemCreate", 1, refuse ? UINT64_MAX : 0, cuda::kErrorOutOfMemory);
  }
  void FreeMemory() override {
    if (gated()) gates_.hold_others(0);
  }
  [[nodiscard]] uint64_t granularity() const override {
    cuda::MemAllocationProp prop;
    prop.location = {cuda::kLocationDevice, context_.device()};
    size_t bytes = 0;
    KVCAST_CUDA(api_, chunk_granularity, &bytes, &prop, cuda::kGranularityMinimum);
    return bytes;
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
  constexpr uint64_t kLong = 40000;
  const testing::RunLength usual{Options{}.seed,
                                 !options.quick        ? kLong
                                 : testing::kSanitized ? 2000
                                                       : 5000u,
                                 kLong};
  const uint64_t operations = options.operations != 0 ? options.operations : usual.operations;
  const bool judged = usual.Judged(options.seed, operations);
  const bool can_grow = cuda::DeviceContext(cuda::OpenDriver(), 0).virtual_memory();
  std::printf("KVC_SEED=%llu\n", static_cast<unsigned long long>(options.seed));
  for (const bool elastic : {false, true}) {
    if (elastic && !can_grow) continue;
    // On the fake driver both ways, so that the GPU's has been tried.
    for (const bool gates : {true, false}) {
      if (gates && Gates(true).gate == nullptr) continue;
      testing::ModelTarget target{KVC_DEVICE_CUDA, {}, elastic};
      target.works = [gates](kvc_manager* manager) {
        return std::make_unique<Works>(manager, gates);
      };
      const std::string wrong = testing::RunModel(options.seed, operations, judged, target);
      if (!wrong.empty()) throw std::runtime_error(wrong);
      if (!Misuse().empty()) throw std::runtime_error("the driver was misused: " + Misuse());
    }
  }
}

}  // namespace kvcast::gpu
