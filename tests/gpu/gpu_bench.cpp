// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Figures of copies on a GPU, each against the best the device does for one large
// copy of the same kind, and the latency of a table update. On the fake driver the
// program runs, and its figures mean nothing.

#include <algorithm>
#include <chrono>
#include <random>

#include "cuda/src/calibrate.h"
#include "tests/gpu/gpu_support.h"

namespace kvcast::gpu {
namespace {

constexpr int kRounds = 7;  // the median counts, the first warms up

class Timer {
 public:
  explicit Timer(const Gpu& gpu) : gpu_(gpu) {
    KVCAST_CUDA(gpu.api, event_create, &start_, 0);
    KVCAST_CUDA(gpu.api, event_create, &end_, 0);
  }
  ~Timer() {
    gpu_.api.event_destroy(start_);
    gpu_.api.event_destroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Median milliseconds of a body that queues work on the stream.
  template <typename Body>
  double Median(Body&& body) {
    std::vector<double> times;
    for (int round = 0; round <= kRounds; ++round) {
      KVCAST_CUDA(gpu_.api, event_record, start_, gpu_.stream);
      body();
      KVCAST_CUDA(gpu_.api, event_record, end_, gpu_.stream);
      gpu_.Wait();
      float milliseconds = 0;
      KVCAST_CUDA(gpu_.api, event_elapsed, &milliseconds, start_, end_);
      if (round > 0) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  const Gpu& gpu_;
  cuda::EventHandle start_ = nullptr;
  cuda::EventHandle end_ = nullptr;
};

double GibPerSecond(uint64_t bytes, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(bytes) / milliseconds * 1000 / (1 << 30) : 0;
}

void Line(const std::string& what, double value, const char* unit, double ratio, double goal) {
  std::printf("  %-40s %10.2f %-6s", what.c_str(), value, unit);
  if (ratio > 0) std::printf(" %5.2f of the best", ratio);
  if (goal > 0) std::printf(" (goal %.2f: %s)", goal, ratio >= goal ? "met" : "MISSED");
  std::printf("\n");
}

// Pages in a random order, so that neighbours do not merge.
std::vector<kernels::PagePair> Scattered(uint32_t from_pages, uint32_t to_first, uint32_t count,
                                         uint64_t seed) {
  std::vector<uint32_t> pages(from_pages);
  for (uint32_t p = 0; p < from_pages; ++p) pages[p] = p;
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(seed));
  std::vector<kernels::PagePair> pairs;
  for (uint32_t i = 0; i < count; ++i) pairs.push_back({pages[i], to_first + i});
  return pairs;
}

std::string Name(const char* what, uint64_t page_bytes, const char* method) {
  return std::string(what) + ", pages of " + std::to_string(page_bytes >> 10) + " KiB, " + method;
}

}  // namespace

void Bench(const Options& options) {
  Gpu gpu;
  Timer timer(gpu);
  const uint64_t device_bytes = options.quick ? 4 << 20 : uint64_t{8} << 30;
  const uint64_t host_bytes = options.quick ? 1 << 20 : 512 << 20;
  const DeviceBlock pool(gpu, device_bytes);
  const PinnedBlock host(gpu, host_bytes);
  const uint64_t half = device_bytes / 2;
  const uint64_t seed = options.seed;
  if (gpu.context.name().rfind("fake", 0) == 0) {
    std::printf("  on a fake device: these figures say nothing of a GPU\n");
  }

  // What is chosen is chosen as a manager does by default.
  const cuda::Calibration calibration = cuda::Calibrate(gpu.context, gpu.events, gpu.kernels);
  const auto use = [&](cuda::Method method) {
    cuda::CopyPolicy policy = calibration.policy;
    policy.forced = method;
    gpu.copier.set_policy(policy);
  };

  // On the device: read and written bytes both count, as everybody does.
  const double best_on = GibPerSecond(2 * half, timer.Median([&] {
    KVCAST_CUDA(gpu.api, copy_on_device, pool.address() + half, pool.address(), half, gpu.stream);
  }));
  Line("on the device, one copy", best_on, "GiB/s", 0, 0);
  for (const uint64_t page : {uint64_t{64} << 10, uint64_t{256} << 10, uint64_t{1} << 20}) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(half / page, 1 << 16));
    const auto pairs = Scattered(static_cast<uint32_t>(half / page),
                                 static_cast<uint32_t>(half / page), count, seed);
    for (const cuda::Method method : {cuda::Method::kAuto, cuda::Method::kEngine}) {
      use(method);
      const double rate = GibPerSecond(2 * count * page, timer.Median([&] {
        gpu.copier.CopyPages(gpu.stream, cuda::Direction::kOnDevice, {pool.address(), page},
                             {pool.address(), page}, page, pairs.data(), count, false);
      }));
      const bool is_auto = method == cuda::Method::kAuto;
      Line(Name("on the device", page, is_auto ? "chosen" : "engine"), rate, "GiB/s",
           rate / best_on, is_auto ? 0.9 : 0);
    }
  }

  // Between host and device.
  for (const cuda::Direction direction : {cuda::Direction::kToHost, cuda::Direction::kToDevice}) {
    const bool to_host = direction == cuda::Direction::kToHost;
    const char* const what = to_host ? "to the host" : "to the device";
    const double best = GibPerSecond(host_bytes, timer.Median([&] {
      if (to_host) {
        KVCAST_CUDA(gpu.api, copy_to_host, host.bytes(), pool.address(), host_bytes, gpu.stream);
      } else {
        KVCAST_CUDA(gpu.api, copy_to_device, pool.address(), host.bytes(), host_bytes, gpu.stream);
      }
    }));
    Line(std::string(what) + ", one pinned copy", best, "GiB/s", 0, 0);
    for (const uint64_t page : {uint64_t{8} << 10, uint64_t{16} << 10, uint64_t{64} << 10,
                                uint64_t{256} << 10, uint64_t{1} << 20}) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(host_bytes / page, 4096));
      std::vector<kernels::PagePair> pairs =
          Scattered(static_cast<uint32_t>(device_bytes / page), 0, count, seed);
      if (!to_host) {
        for (kernels::PagePair& pair : pairs) std::swap(pair.from, pair.to);
      }
      const cuda::PageSide device_side{pool.address(), page};
      const cuda::PageSide host_side{host.address(), page};
      for (const cuda::Method method :
           {cuda::Method::kAuto, cuda::Method::kEngine, cuda::Method::kKernel}) {
        use(method);
        const double rate = GibPerSecond(count * page, timer.Median([&] {
          gpu.copier.CopyPages(gpu.stream, direction, to_host ? device_side : host_side,
                               to_host ? host_side : device_side, page, pairs.data(), count, true);
        }));
        const bool is_auto = method == cuda::Method::kAuto;
        const char* const names[] = {"chosen", "engine", "kernel"};
        Line(Name(what, page, names[static_cast<int>(method)]), rate, "GiB/s", rate / best,
             is_auto && page >= (64 << 10) ? 0.95 : 0);
      }
    }
  }

  // A step of a scheduler: the entries that 256 sequences changed.
  std::vector<kernels::TableEntry> entries;
  for (uint32_t row = 0; row < 256; ++row) entries.push_back({row, row % 7, 1});
  std::vector<double> queued;
  std::vector<double> done;
  for (int round = 0; round < (options.quick ? 20 : 500); ++round) {
    const auto began = std::chrono::steady_clock::now();
    while (
        !gpu.copier.UpdateTable(gpu.stream, pool.address(), 1024, 256, 1024, entries.data(), 256)) {
    }
    const auto in_queue = std::chrono::steady_clock::now();
    gpu.Wait();
    const auto end = std::chrono::steady_clock::now();
    queued.push_back(std::chrono::duration<double, std::micro>(in_queue - began).count());
    done.push_back(std::chrono::duration<double, std::micro>(end - began).count());
  }
  std::sort(queued.begin(), queued.end());
  std::sort(done.begin(), done.end());
  Line("table update of 256 entries, queueing, p50", queued[queued.size() / 2], "us", 0, 0);
  Line("table update of 256 entries, to its end, p50", done[done.size() / 2], "us", 0, 0);
  Line("table update of 256 entries, to its end, p99", done[done.size() * 99 / 100], "us", 0, 0);

  Line("calibration", calibration.milliseconds, "ms", 0, 0);
  for (const cuda::Direction direction : {cuda::Direction::kOnDevice, cuda::Direction::kToDevice}) {
    const auto index = static_cast<int>(direction);
    const uint64_t below = calibration.policy.kernel[index].below;
    std::printf("  kernel %s below %s (%s)\n",
                direction == cuda::Direction::kOnDevice ? "on the device" : "to the device",
                below == UINT64_MAX ? "any size" : (std::to_string(below) + " bytes").c_str(),
                calibration.measured[index] ? "measured" : "published");
  }
  std::printf("  kernels from the %s\n", gpu.kernels.source());
}

}  // namespace kvcast::gpu
