// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The device that the lock-step model runs on, when it is another than the host's:
// where the fake engine's kernels are queued, and when they run.
#ifndef KVCAST_TESTS_NATIVE_MODEL_WORKS_H_
#define KVCAST_TESTS_NATIVE_MODEL_WORKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

// Throws std::exception when the device does not do what it must.
class ModelWorks {
 public:
  ModelWorks() = default;
  virtual ~ModelWorks() = default;
  ModelWorks(const ModelWorks&) = delete;
  ModelWorks& operator=(const ModelWorks&) = delete;

  // Whether kernels wait until they are advanced; else they run as soon as they can.
  [[nodiscard]] virtual bool gated() const = 0;
  // A kernel on a device stream, or made by the host now (0), that writes `value` to the
  // second 8 bytes of a page of 16.
  virtual void Fill(uint64_t stream, uint32_t page, uint64_t value) = 0;
  // Lets the oldest kernel of each of these streams run, a stream once for each time it
  // is named.
  virtual void Advance(const std::vector<uint64_t>& streams) = 0;
  // Returns when all has run that can.
  virtual void Settle() = 0;
  // The second 8 bytes of a page, when nothing is queued.
  [[nodiscard]] virtual uint64_t Read(uint32_t page) = 0;
};

using ModelWorksFactory = std::function<std::unique_ptr<ModelWorks>(kvc_manager*)>;

// Random operations on managers of a kind of device, against the model. What is wrong,
// shrunk, with the seed, or "".
[[nodiscard]] std::string RunModel(uint64_t seed, uint64_t operations, kvc_device_kind device,
                                   const ModelWorksFactory& works);

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_WORKS_H_
