// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/calibrate.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace kvcast::cuda {

namespace calibrate {

using Clock = std::chrono::steady_clock;
using Now = std::function<Clock::time_point()>;

// As many pieces as make the difference plain (crossovers are published at 16 to
// 64 pieces), at sizes around the published one of 28 KiB.
constexpr uint32_t kPieces = 32;
constexpr uint64_t kSizes[] = {8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10};
constexpr uint64_t kLargest = kSizes[std::size(kSizes) - 1];
// The first of them warms up, the fastest counts.
constexpr int kRounds = 3;

// The rest of the time, or as much as the taking took if that was longer, is for giving
// back what the measurement took.
constexpr int kMeasuringTenths = 8;

// When no more may be begun. What is begun is taken to last as long as the longest yet.
struct Budget {
  const Now& now;
  Clock::time_point deadline;
  Clock::duration longest{0};

  [[nodiscard]] bool HasRoom() const { return now() + longest <= deadline; }
};

// What the measurement needs, given back whatever happens.
class Bench {
 public:
  explicit Bench(const DeviceContext& context) : api_(context.api()) {}
  ~Bench() {
    if (stream_ != nullptr) {
      WaitForStream(api_, stream_);
      api_.stream_destroy(stream_);
    }
    if (start_ != nullptr) api_.event_destroy(start_);
    if (end_ != nullptr) api_.event_destroy(end_);
    if (device_ != 0) api_.memory_free(device_);
    if (host_ != nullptr) api_.host_free(host_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // False when there is no memory to spare: no reason to fail.
  [[nodiscard]] bool Prepare() {
    // Twice the pieces: sources and destinations; gaps keep neighbours apart.
    const uint64_t bytes = 2 * kPieces * 2 * kLargest;
    return api_.stream_create(&stream_, kStreamNonBlocking) == kSuccess &&
           api_.event_create(&start_, 0) == kSuccess && api_.event_create(&end_, 0) == kSuccess &&
           api_.memory_alloc(&device_, bytes) == kSuccess &&
           api_.host_alloc(&host_, bytes / 2, kHostAllocPortable) == kSuccess &&
           api_.host_device_address(&host_address_, host_, 0) == kSuccess;
  }

  // Milliseconds of the fastest round, or nothing when there is no time for all rounds.
  [[nodiscard]] std::optional<double> Time(PageCopier& copier, Direction direction, uint64_t size,
                                           Budget* budget) {
    std::vector<kernels::PagePair> pairs;
    for (uint32_t i = 0; i < kPieces; ++i) pairs.push_back({i, i});
    const PageSide to{device_, 2 * size};
    const PageSide from{
        direction == Direction::kOnDevice ? device_ + kPieces * 2 * kLargest : host_address_,
        2 * size};
    std::optional<double> best;
    for (int round = 0; round < kRounds; ++round) {
      if (!budget->HasRoom()) return std::nullopt;
      const Clock::time_point began = budget->now();
      KVCAST_CUDA(api_, event_record, start_, stream_);
      copier.CopyPages(stream_, direction, from, to, size, pairs.data(), kPieces, true);
      KVCAST_CUDA(api_, event_record, end_, stream_);
      for (;;) {
        const Result result = api_.event_query(end_);
        if (result == kSuccess) break;
        if (result != kErrorNotReady) Check(api_, "event_query", result);
        if (budget->now() > budget->deadline) return std::nullopt;
        std::this_thread::yield();
      }
      float milliseconds = 0;
      KVCAST_CUDA(api_, event_elapsed, &milliseconds, start_, end_);
      if (round > 0 && (!best || milliseconds < *best)) best = milliseconds;
      budget->longest = std::max(budget->longest, budget->now() - began);
    }
    return best;
  }

 private:
  const DriverApi& api_;
  StreamHandle stream_ = nullptr;
  EventHandle start_ = nullptr;
  EventHandle end_ = nullptr;
  DevicePtr device_ = 0;
  void* host_ = nullptr;
  DevicePtr host_address_ = 0;
};

}  // namespace calibrate

Calibration Calibrate(const DeviceContext& context, EventPool& events, const KernelImage& kernels,
                      std::chrono::steady_clock::duration limit,
                      const std::function<std::chrono::steady_clock::time_point()>& now) {
  const auto began = now();
  Calibration result;
  result.policy = PublishedPolicy(context.coherent_link());
  const ContextScope scope(context);
  {
    PinnedRing ring(context, events, 64 << 10);
    PageCopier copier(context, kernels, ring, result.policy);
    calibrate::Bench bench(context);
    const bool prepared = bench.Prepare();
    const auto taking = now() - began;
    calibrate::Budget budget{
        now, std::min(began + limit * calibrate::kMeasuringTenths / 10, began + limit - taking)};
    const auto time = [&](Method method, Direction direction, uint64_t size) {
      CopyPolicy policy = result.policy;
      policy.forced = method;
      copier.set_policy(policy);
      return bench.Time(copier, direction, size, &budget);
    };
    // To the device first: there the published figures differ most.
    const Direction directions[] = {Direction::kToDevice, Direction::kOnDevice};
    if (prepared) {
      for (const Direction direction : directions) {
        uint64_t below = 0;
        bool whole = true;
        for (const uint64_t size : calibrate::kSizes) {
          const auto engine = time(Method::kEngine, direction, size);
          const auto kernel = engine ? time(Method::kKernel, direction, size) : std::nullopt;
          if (!kernel) {
            whole = false;
            break;
          }
          // Faster at the largest size means faster beyond it as well.
          if (*kernel < *engine) below = size == calibrate::kLargest ? UINT64_MAX : size + 1;
        }
        if (!whole) break;
        const auto index = static_cast<int>(direction);
        result.policy.kernel[index].below = below;
        result.measured[index] = true;
      }
    }
  }
  result.milliseconds = std::chrono::duration<double, std::milli>(now() - began).count();
  return result;
}

}  // namespace kvcast::cuda
