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
  // second 8 bytes of a page.
  virtual void Fill(uint64_t stream, uint32_t page, uint64_t value) = 0;
  // Lets the oldest kernel of each of these streams run, a stream once for each time it
  // is named.
  virtual void Advance(const std::vector<uint64_t>& streams) = 0;
  // Returns when all has run that can.
  virtual void Settle() = 0;
  // Memory that a resize asks for comes on a thread of the device's. Whether that waits
  // until it is let; else the memory comes by itself, at any time.
  [[nodiscard]] virtual bool holds_memory() const = 0;
  // Lets the thread make so many driver calls, if it has work for them, and returns when it
  // waits again, or has done all that it was asked.
  virtual void LetMemory(uint64_t calls) = 0;
  // From now on the driver creates no memory, or again.
  virtual void RefuseMemory(bool refuse) = 0;
  // From now on memory comes by itself.
  virtual void FreeMemory() = 0;
  // What chunks of memory are multiples of.
  [[nodiscard]] virtual uint64_t granularity() const = 0;
  // The second 8 bytes of a page, when nothing is queued.
  [[nodiscard]] virtual uint64_t Read(uint32_t page) = 0;
};

using ModelWorksFactory = std::function<std::unique_ptr<ModelWorks>(kvc_manager*)>;

// A kind of devices, and whether the pools there grow and shrink.
struct ModelTarget {
  kvc_device_kind device = KVC_DEVICE_HOST;
  ModelWorksFactory works;
  bool elastic = false;
};

// Random operations on managers of a kind of device, against the model. What is wrong,
// shrunk, with the seed, or "". A run that is judged (run_length.h) must also meet all
// that the device has a part in.
[[nodiscard]] std::string RunModel(uint64_t seed, uint64_t operations, bool judged,
                                   const ModelTarget& target);

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_WORKS_H_
