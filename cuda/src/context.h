// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A GPU and the context that we work in.
#ifndef KVCAST_CUDA_SRC_CONTEXT_H_
#define KVCAST_CUDA_SRC_CONTEXT_H_

#include <cstdint>
#include <string>

#include "cuda/src/driver_api.h"

namespace kvcast::cuda {

// The primary context of a GPU, which the CUDA runtime, and so every framework,
// uses too; or one that the caller made. It is current only while we call the
// driver (ContextScope): what the calling thread had comes back.
class DeviceContext {
 public:
  // Retains the primary context of GPU `ordinal`.
  DeviceContext(const DriverApi& api, int ordinal);
  // Borrows the caller's; it must outlive this object.
  DeviceContext(const DriverApi& api, ContextHandle callers);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  [[nodiscard]] const DriverApi& api() const { return api_; }
  [[nodiscard]] ContextHandle handle() const { return handle_; }
  [[nodiscard]] DeviceId device() const { return device_; }
  [[nodiscard]] bool primary() const { return primary_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // 10 x major + minor.
  [[nodiscard]] int capability() const { return capability_; }
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  // The driver and the GPU can map memory chunk by chunk.
  [[nodiscard]] bool virtual_memory() const { return virtual_memory_; }
  // Host memory is reached over a coherent link (NVLink-C2C), not PCIe.
  [[nodiscard]] bool coherent_link() const { return coherent_link_; }

 private:
  void ReadFacts();
  [[nodiscard]] int Attribute(int attribute) const;

  const DriverApi& api_;
  ContextHandle handle_ = nullptr;
  DeviceId device_ = 0;
  bool primary_;
  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  bool virtual_memory_ = false;
  bool coherent_link_ = false;
};

// The driver's number of a GPU. KVC_INVALID_ARGUMENT for one that it cannot have.
[[nodiscard]] int Ordinal(uint32_t ordinal);

// Makes a context current on this thread for as long as it lives, and the thread relaxed
// about captures: what we call does not touch streams that are being captured, and must
// neither be refused because somebody, on whatever thread, captures one, nor spoil that.
class ContextScope {
 public:
  // Throws DriverError(kForked) in a forked child, Error when the driver refuses.
  explicit ContextScope(const DeviceContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const DriverApi& api_;
  int capture_mode_ = kCaptureRelaxed;  // meanwhile: the thread's own
  bool relaxed_ = false;
};

// Under a ContextScope, before what its work uses goes: waits until all that is queued on the
// stream has run. To destroy it would not wait. Where the driver does not wait for the stream it
// is asked to for the context; errors are not told, as one that is lost runs nothing.
void WaitForStream(const DriverApi& api, StreamHandle stream) noexcept;

// The calling thread's context; throws when it has none.
[[nodiscard]] ContextHandle CallersContext(const DriverApi& api);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_CONTEXT_H_
