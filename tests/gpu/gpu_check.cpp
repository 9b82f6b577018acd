// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// gpu_check [--quick] [--seed N] [--operations N] [--large-gib N] CHECK...: proves the CUDA device
// on whatever driver there is. Each check prints one line; exit status 1 when one
// fails, 2 when there is no device or no such check.
//   conformance  what every device must do, through the C ABI
//   model        random operations in lock-step with a model, through the C ABI
//   content      stamps of an engine on racing streams, read at every hit
//   copies       1 byte to 4 MiB, odd alignments, each method, against the bytes
//   stamps       racing streams, pages reused behind fences only
//   large        offsets beyond 2^32
//   elastic      a pool that grows and shrinks with live data in it
//   bench        figures (gpu_bench.cpp)
//   all          all of these

#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>

#include "cuda/src/pool_memory.h"
#include "cuda/src/stream_table.h"
#include "tests/gpu/conformance.h"
#include "tests/gpu/conformance_elastic.h"
#include "tests/gpu/gpu_support.h"

namespace kvcast::gpu {
namespace {

void Require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

testing::Backend CudaBackend() {
  testing::Backend backend;
  backend.device = KVC_DEVICE_CUDA;
  kvc_error error{};
  Require(kvc_cuda_open(nullptr, &error) == KVC_OK, error.message);
  backend.read = [](uint64_t address, uint64_t count) {
    const cuda::DriverApi& api = cuda::OpenDriver();
    const cuda::DeviceContext context(api, 0);
    const cuda::ContextScope scope(context);
    api.context_synchronize();
    std::vector<int32_t> out(count);
    KVCAST_CUDA(api, copy_to_host, out.data(), address, count * sizeof(int32_t), nullptr);
    KVCAST_CUDA(api, stream_synchronize, nullptr);
    return out;
  };
  backend.write = [](uint64_t address, const std::vector<int32_t>& values) {
    const cuda::DriverApi& api = cuda::OpenDriver();
    const cuda::DeviceContext context(api, 0);
    const cuda::ContextScope scope(context);
    KVCAST_CUDA(api, copy_to_device, address, values.data(), values.size() * sizeof(int32_t),
                nullptr);
    KVCAST_CUDA(api, stream_synchronize, nullptr);
  };
  return backend;
}

void CheckConformance(const Options& options) {
  const testing::Backend backend = CudaBackend();
  for (uint64_t round = 0; round < (options.quick ? 2u : 20u); ++round) {
    const std::string wrong = testing::Conformance(backend, options.seed + round).Run();
    Require(wrong.empty(), wrong + ", seed " + std::to_string(options.seed + round));
  }
}

void CheckCopies(const Options& options) {
  Gpu gpu;
  std::mt19937_64 random(options.seed);
  const uint64_t half = options.quick ? 1 << 20 : 64 << 20;
  const DeviceBlock device(gpu, 2 * half);
  const PinnedBlock host(gpu, half);
  const PinnedBlock back(gpu, half);
  for (uint64_t i = 0; i < half; i += 8) {
    const uint64_t value = random();
    std::memcpy(host.bytes() + i, &value, 8);
  }
  std::vector<uint64_t> sizes = {1, 2, 3, 15, 16, 17, 31, 100, 4095, 4096, 4097, 28 << 10, 65536};
  if (!options.quick) sizes.insert(sizes.end(), {(1 << 20) - 3, 1 << 20, 4 << 20});
  for (const cuda::Method method :
       {cuda::Method::kAuto, cuda::Method::kEngine, cuda::Method::kKernel}) {
    gpu.Force(method);
    for (const uint64_t size : sizes) {
      for (uint64_t shift = 0; shift < 20; shift += 5) {
        // Pieces at odd places: host -> device -> device -> host.
        std::vector<cuda::Piece> in;
        std::vector<cuda::Piece> about;
        std::vector<cuda::Piece> out;
        const uint64_t room = size + 64;
        for (uint64_t i = 0; i < 40 && (i + 1) * room < half; ++i) {
          const uint64_t at = i * room;
          in.push_back({host.address() + at + shift, device.address() + at + 3 * shift, size});
          about.push_back(
              {device.address() + at + 3 * shift, device.address() + half + at + 2 * shift, size});
          out.push_back({device.address() + half + at + 2 * shift, back.address() + at, size});
        }
        const auto count = static_cast<uint32_t>(in.size());
        gpu.copier.CopyPieces(gpu.stream, cuda::Direction::kToDevice, in.data(), count, true);
        gpu.copier.CopyPieces(gpu.stream, cuda::Direction::kOnDevice, about.data(), count, false);
        gpu.copier.CopyPieces(gpu.stream, cuda::Direction::kToHost, out.data(), count, false);
        gpu.Wait();
        for (uint64_t i = 0; i < count; ++i) {
          Require(std::memcmp(host.bytes() + i * room + shift, back.bytes() + i * room, size) == 0,
                  "piece " + std::to_string(i) + " of " + std::to_string(size) + " bytes, shift " +
                      std::to_string(shift) + ", method " +
                      std::to_string(static_cast<int>(method)));
        }
        std::memset(back.bytes(), 0, std::min(half, count * room));
      }
    }
  }
}

// Each round takes a page that another stream may still use, reads what the last
// user stamped and stamps it anew. A fence that is missing shows as a wrong stamp.
void CheckStamps(const Options& options) {
  constexpr uint32_t kPages = 48;
  constexpr uint32_t kStreams = 6;
  const uint64_t page_bytes = options.quick ? 8192 : 1 << 20;
  const uint32_t rounds = options.quick ? 300 : 20000;
  constexpr uint32_t kBatch = 100;
  Gpu gpu;
  const DeviceBlock pool(gpu, kPages * page_bytes);
  const PinnedBlock seen(gpu, kBatch * page_bytes);
  cuda::StreamTable streams(gpu.context, gpu.events);
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < kStreams; ++i) slots.push_back(streams.Open());
  std::vector<Fence> last(kPages);
  std::vector<uint64_t> stamp(kPages, 0);
  std::mt19937_64 random(options.seed);
  const cuda::PageSide side{pool.address(), page_bytes};
  std::vector<uint32_t> all(kPages);
  for (uint32_t p = 0; p < kPages; ++p) all[p] = p;
  Require(gpu.copier.FillPages(gpu.stream, side, page_bytes, 0, all.data(), kPages), "no ring");
  gpu.Wait();
  for (uint32_t done = 0; done < rounds; done += kBatch) {
    std::vector<uint64_t> expected;
    for (uint32_t k = 0; k < kBatch; ++k) {
      const auto page = static_cast<uint32_t>(random() % kPages);
      const uint32_t slot = slots[random() % kStreams];
      if (last[page].slot != 0 && last[page].slot != slot) streams.Wait(slot, last[page]);
      expected.push_back(stamp[page]);
      stamp[page] = random();
      const kernels::PagePair out{page, k};
      const uint64_t value = stamp[page];
      streams.Note(
          slot, [&gpu, &seen, side, out, page, value, page_bytes](cuda::StreamHandle stream) {
            gpu.copier.CopyPages(stream, cuda::Direction::kToHost, side,
                                 {seen.address(), page_bytes}, page_bytes, &out, 1, false);
            Require(gpu.copier.FillPages(stream, side, page_bytes, value, &page, 1), "no ring");
            return true;
          });
      last[page] = {slot, streams.Record(slot)};
      if (random() % 4 == 0) streams.Submit();
    }
    streams.Submit();
    for (const uint32_t slot : slots) {
      const uint64_t end = streams.Submitted(slot);
      while (!streams.Reached(slot, end)) {
        streams.Poll();
        Require(streams.broken() == nullptr,
                streams.broken() != nullptr ? streams.broken()->what() : "");
      }
    }
    for (uint32_t k = 0; k < kBatch; ++k) {
      for (uint64_t at = 0; at < page_bytes; at += 8) {
        uint64_t value = 0;
        std::memcpy(&value, seen.bytes() + k * page_bytes + at, 8);
        Require(value == expected[k], "round " + std::to_string(done + k) + ": stamp " +
                                          std::to_string(value) + " at byte " + std::to_string(at) +
                                          ", want " + std::to_string(expected[k]));
      }
    }
  }
}

void CheckLarge(const Options& options) {
  const uint64_t page_bytes = uint64_t{options.quick ? 1u : 2u} << 20;
  const uint64_t bytes = options.quick ? 32 << 20 : options.large_gib << 30;
  const auto pages = static_cast<uint32_t>(bytes / page_bytes);
  Gpu gpu;
  const cuda::PoolMemory pool(gpu.context, {bytes, bytes, 0});
  const cuda::PageSide side{pool.base(), page_bytes};
  for (uint32_t page = 0; page < pages; ++page) {
    const uint64_t value = 0xABCD000000000000u + page;
    while (!gpu.copier.FillPages(gpu.stream, side, page_bytes, value, &page, 1)) gpu.Wait();
  }
  // Each page of the first half takes what is in the second, 2^32 bytes and more above.
  std::vector<kernels::PagePair> pairs;
  for (uint32_t page = 0; page < pages / 2; ++page) pairs.push_back({pages - 1 - page, page});
  gpu.copier.CopyPages(gpu.stream, cuda::Direction::kOnDevice, side, side, page_bytes, pairs.data(),
                       static_cast<uint32_t>(pairs.size()), false);
  const PinnedBlock host(gpu, page_bytes);
  for (uint32_t page = 0; page < pages; ++page) {
    const kernels::PagePair out{page, 0};
    gpu.copier.CopyPages(gpu.stream, cuda::Direction::kToHost, side, {host.address(), page_bytes},
                         page_bytes, &out, 1, false);
    gpu.Wait();
    const uint64_t from = page < pages / 2 ? pages - 1 - page : page;
    for (uint64_t at = 0; at < page_bytes; at += 8) {
      uint64_t value = 0;
      std::memcpy(&value, host.bytes() + at, 8);
      Require(value == 0xABCD000000000000u + from,
              "page " + std::to_string(page) + " of " + std::to_string(pages));
    }
  }
}

void CheckElastic(const Options& options) {
  Gpu gpu;
  if (!gpu.context.virtual_memory()) {
    std::printf("  (elastic: this device cannot map memory chunk by chunk: nothing to check)\n");
    return;
  }
  const uint64_t mib = uint64_t{1} << 20;
  const uint64_t base = options.quick ? 8 * mib : 1024 * mib;
  const uint64_t most = options.quick ? 24 * mib : 2048 * mib;
  const uint64_t page_bytes = mib / 2;
  cuda::PoolMemory pool(gpu.context, {base, most, static_cast<uint32_t>((most - base) / mib / 2)});
  const cuda::PageSide side{pool.base(), page_bytes};
  const PinnedBlock host(gpu, page_bytes);
  std::mt19937_64 random(options.seed);
  std::vector<uint64_t> stamp(pool.limit() / page_bytes, 0);
  for (int round = 0; round < (options.quick ? 12 : 60); ++round) {
    // Up, stamp what is new, look at all, and down again behind the stream's event.
    const uint64_t want = base + random() % (most - base);
    while (!pool.Grow(want)) {
      (void)pool.Collect();
      pool.FillReserve();
    }
    const auto pages = static_cast<uint32_t>(pool.bytes() / page_bytes);
    for (uint32_t page = 0; page < pages; ++page) {
      if (stamp[page] != 0) continue;
      stamp[page] = random() | 1;
      while (!gpu.copier.FillPages(gpu.stream, side, page_bytes, stamp[page], &page, 1)) {
        gpu.Wait();
      }
    }
    for (int look = 0; look < 30; ++look) {
      const auto page = static_cast<uint32_t>(random() % pages);
      const kernels::PagePair out{page, 0};
      gpu.copier.CopyPages(gpu.stream, cuda::Direction::kToHost, side, {host.address(), page_bytes},
                           page_bytes, &out, 1, false);
      gpu.Wait();
      uint64_t value = 0;
      std::memcpy(&value, host.bytes() + (random() % (page_bytes / 8)) * 8, 8);
      Require(value == stamp[page], "page " + std::to_string(page) + " lost its data");
    }
    const cuda::EventHandle event = gpu.events.Take();
    KVCAST_CUDA(gpu.api, event_record, event, gpu.stream);
    const uint64_t left = pool.Shrink(base + random() % (most - base), [&gpu, event] {
      return gpu.api.event_query(event) == cuda::kSuccess;
    });
    for (uint64_t page = left / page_bytes; page < stamp.size(); ++page) stamp[page] = 0;
    while (pool.leaving() != 0) (void)pool.Collect();
    gpu.events.Give(event);
  }
  // The same through the manager, which moves what is worth keeping.
  const testing::Backend backend = CudaBackend();
  for (uint64_t round = 0; round < (options.quick ? 1u : 8u); ++round) {
    const std::string wrong =
        testing::ElasticConformance(backend, options.seed + round, options.quick ? 4 : 20).Run();
    Require(wrong.empty(), wrong + ", seed " + std::to_string(options.seed + round));
  }
}

struct Check {
  const char* name;
  void (*run)(const Options&);
};
constexpr Check kChecks[] = {
    {"conformance", CheckConformance}, {"model", CheckModel},   {"content", CheckContent},
    {"copies", CheckCopies},           {"stamps", CheckStamps}, {"large", CheckLarge},
    {"elastic", CheckElastic},         {"bench", Bench},
};

int Run(const Check& check, const Options& options) {
  const auto began = std::chrono::steady_clock::now();
  std::string wrong;
  try {
    check.run(options);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%-12s %-6s %6.1f s  %s\n", check.name, wrong.empty() ? "ok" : "FAILED", seconds,
              wrong.c_str());
  std::fflush(stdout);
  return wrong.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--seed" && i + 1 < argc) {
      options.seed = std::strtoull(argv[++i], nullptr, 0);
    } else if (word == "--operations" && i + 1 < argc) {
      options.operations = std::strtoull(argv[++i], nullptr, 0);
    } else if (word == "--large-gib" && i + 1 < argc) {
      options.large_gib = std::strtoull(argv[++i], nullptr, 0);
    } else {
      names.push_back(word);
    }
  }
  try {
    const cuda::DriverApi& api = cuda::OpenDriver();
    const cuda::DeviceContext context(api, 0);
    std::printf("device: %s, compute capability %d.%d, driver of CUDA %d.%d, batch copies %s\n",
                context.name().c_str(), context.capability() / 10, context.capability() % 10,
                api.version / 1000, api.version % 1000 / 10,
                api.copy_batch != nullptr ? "yes" : "no");
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return 2;
  }
  int failed = 0;
  for (const std::string& name : names) {
    bool known = false;
    for (const Check& check : kChecks) {
      if (name != "all" && name != check.name) continue;
      known = true;
      failed |= Run(check, options);
    }
    if (!known) {
      std::fprintf(stderr, "gpu_check: no check %s\n", name.c_str());
      return 2;
    }
  }
  return failed;
}

}  // namespace
}  // namespace kvcast::gpu

int main(int argc, char** argv) { return kvcast::gpu::Main(argc, argv); }
