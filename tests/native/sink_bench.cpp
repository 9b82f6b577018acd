// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Costs of the sink per block of 16 tokens, with the mirror full: recording a
// store and a removal on the scheduler's side, and draining them (keys,
// joining, mirror, arrays). Blocks are replaced run by run, as eviction and
// commit would. Plain program: `sink_bench [blocks...]`.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "native/src/block_key.h"
#include "sink/src/streaming_event_sink.h"

namespace {

constexpr uint32_t kTokens = 16;
constexpr size_t kStride = 128;  // a node and its tokens, as in the core

double Nanoseconds() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class NoHost final : public kvcast::SinkHost {
 public:
  uint32_t TryHeal(uint32_t, uint64_t) noexcept override { return 0; }
  void DetachSink() noexcept override {}
};

// Nanoseconds per block of each stretch between two drains; the median is
// reported, so that a busy machine disturbs less.
struct Costs {
  std::vector<double> store;
  std::vector<double> remove;
  std::vector<double> drain_store;
  std::vector<double> drain_remove;
};

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// `one_chain`: all runs between two drains continue one another, so that their
// keys depend on each other; else they are independent.
Costs Measure(uint32_t blocks, uint32_t run, bool scattered, bool one_chain) {
  std::vector<uint64_t> memory(size_t{blocks} * kStride / 8 + 8);
  auto* base = reinterpret_cast<std::byte*>(memory.data());
  kvcast::SinkGeometry geometry;
  geometry.tokens_per_block = kTokens;
  geometry.max_blocks = blocks;
  geometry.tokens_base = base + 64;
  geometry.node_stride = kStride;
  NoHost host;
  auto sink = std::make_unique<kvcast::StreamingEventSink>(kvcast::SinkOptions{});
  sink->Attach(geometry, &host);

  std::mt19937_64 random(1);
  std::vector<uint32_t> ids(blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  if (scattered) std::shuffle(ids.begin(), ids.end(), random);
  const uint32_t runs = blocks / run;
  std::vector<uint32_t> order(runs);
  std::iota(order.begin(), order.end(), 0u);

  const uint32_t per_drain = std::max(1u, std::min(2048 / run, runs));
  const kvcast::Scope scope;
  std::vector<uint32_t> nodes(size_t{per_drain} * run);
  std::vector<uint32_t> reversed(nodes.size());
  const std::vector<uint8_t> reasons(run, KVC_EVICTED_CAPACITY);
  kvc_borrowed_batch batch;
  Costs costs;
  const auto drain = [&] {
    const double begin = Nanoseconds();
    do {
      if (sink->Drain(128, 8192, &batch) != KVC_OK) std::abort();
    } while (batch.event_count != 0);
    return Nanoseconds() - begin;
  };
  const int rounds = static_cast<int>(std::max(2.0, 2e6 / blocks)) + 1;
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (uint32_t at = 0; at < runs; at += per_drain) {
      const uint32_t end = std::min(runs, at + per_drain);
      const double n = static_cast<double>(end - at) * run;
      for (uint32_t r = at; r < end; ++r) {
        const auto from = ids.begin() + static_cast<std::ptrdiff_t>(size_t{order[r]} * run);
        const auto to = static_cast<std::ptrdiff_t>(size_t{r - at} * run);
        std::copy_n(from, run, nodes.begin() + to);
        std::reverse_copy(from, from + run, reversed.begin() + to);
      }
      double remove = 0;
      double drain_remove = 0;
      if (round != 0) {
        const double begin = Nanoseconds();
        for (uint32_t r = 0; r < end - at; ++r) {
          sink->Remove(&reversed[size_t{r} * run], reasons.data(), run);
        }
        remove = Nanoseconds() - begin;
        drain_remove = drain();
      }
      for (uint32_t i = 0; i < (end - at) * run; ++i) {  // as commits just have
        auto* tokens = const_cast<uint32_t*>(geometry.Tokens(nodes[i]));
        for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = static_cast<uint32_t>(random() >> 34);
      }
      uint32_t parent = kvcast::StoreRun::kRoot;
      const double begin = Nanoseconds();
      for (uint32_t r = 0; r < end - at; ++r) {
        kvcast::StoreRun stored;
        stored.parent = one_chain ? parent : kvcast::StoreRun::kRoot;
        stored.scope = stored.parent == kvcast::StoreRun::kRoot ? &scope : nullptr;
        stored.nodes = &nodes[size_t{r} * run];
        stored.count = run;
        if (sink->Store(stored, false) != run) std::abort();
        parent = stored.nodes[run - 1];
      }
      const double store = Nanoseconds() - begin;
      const double drain_store = drain();
      if (round == 0) continue;  // that one fills the mirror and the arrays
      costs.store.push_back(store / n);
      costs.remove.push_back(remove / n);
      costs.drain_store.push_back(drain_store / n);
      costs.drain_remove.push_back(drain_remove / n);
    }
  }
  return costs;
}

void Report(uint32_t blocks, uint32_t run, bool scattered, bool one_chain) {
  Costs costs = Measure(blocks, run, scattered, one_chain);
  std::printf(
      "%8u blocks, runs of %3u, %s, %s: record %5.1f stored %5.1f removed, "
      "drain %6.1f stored %5.1f removed (ns/block)\n",
      blocks, run, scattered ? "scattered" : "adjacent ", one_chain ? "one chain " : "many chains",
      Median(costs.store), Median(costs.remove), Median(costs.drain_store),
      Median(costs.drain_remove));
}

// A snapshot of chains of 64 blocks: pinning it, reading it to its end, and what
// replacing all blocks costs beside it, where each chunk is copied once.
void Snapshots(uint32_t blocks) {
  constexpr uint32_t kRun = 64;
  std::vector<uint64_t> memory(size_t{blocks} * kStride / 8 + 8);
  kvcast::SinkGeometry geometry;
  geometry.tokens_per_block = kTokens;
  geometry.max_blocks = blocks;
  geometry.tokens_base = reinterpret_cast<std::byte*>(memory.data()) + 64;
  geometry.node_stride = kStride;
  NoHost host;
  auto sink = std::make_unique<kvcast::StreamingEventSink>(kvcast::SinkOptions{});
  sink->Attach(geometry, &host);
  std::mt19937_64 random(1);
  const std::vector<uint8_t> reasons(kRun, KVC_EVICTED_CAPACITY);
  std::vector<uint32_t> ids(blocks / kRun * kRun);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), random);
  for (const uint32_t id : ids) {
    auto* tokens = const_cast<uint32_t*>(geometry.Tokens(id));
    for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = static_cast<uint32_t>(random() >> 34);
  }
  const kvcast::Scope scope;
  kvc_borrowed_batch batch;
  // Takes out what is there, if anything is, and stores it anew; returns the time.
  const auto replace = [&](bool remove) {
    const double begin = Nanoseconds();
    for (size_t at = 0; at < ids.size(); at += kRun) {
      if (remove) {
        const std::vector<uint32_t> going(ids.rend() - static_cast<std::ptrdiff_t>(at + kRun),
                                          ids.rend() - static_cast<std::ptrdiff_t>(at));
        sink->Remove(going.data(), reasons.data(), kRun);
      }
      kvcast::StoreRun run;
      run.scope = &scope;
      run.nodes = &ids[at];
      run.count = kRun;
      if (sink->Store(run, false) != kRun) std::abort();
      do {
        if (sink->Drain(128, 8192, &batch) != KVC_OK) std::abort();
      } while (batch.event_count != 0);
    }
    return (Nanoseconds() - begin) / static_cast<double>(ids.size());
  };
  replace(false);
  const double alone = replace(true);
  double pin[2];
  double read = 0;
  double beside = 0;
  for (double& time : pin) {
    std::unique_ptr<kvcast::Snapshot> snapshot;
    double begin = Nanoseconds();
    if (sink->Pin(&snapshot) != kvcast::PinResult::kDone) std::abort();
    time = Nanoseconds() - begin;
    beside = replace(true);
    begin = Nanoseconds();
    while (snapshot->Next(1024, 8192, &batch)) {
    }
    read = (Nanoseconds() - begin) / static_cast<double>(ids.size());
  }
  std::printf(
      "%8u blocks, snapshot: pin %.0f us first, %.0f us later, read %.1f ns/block, "
      "replace a block %.1f ns alone, %.1f ns beside it\n",
      blocks, pin[0] / 1e3, pin[1] / 1e3, read, alone, beside);
}

void Keys() {
  const kvcast::Sha256Kernels* all[2] = {&kvcast::Sha256Portable(), kvcast::Sha256ShaNi()};
  for (const auto* kernels : all) {
    if (kernels == nullptr) continue;
    for (const uint32_t lanes : {1u, 2u, 4u}) {
      kvcast::ChainHasher hasher(kTokens, *kernels);
      uint8_t keys[4][kvcast::kKeyBytes] = {};
      const uint32_t tokens[kTokens] = {};
      const uint8_t* parents[4] = {keys[0], keys[1], keys[2], keys[3]};
      uint8_t* outs[4] = {keys[0], keys[1], keys[2], keys[3]};
      const uint32_t* inputs[4] = {tokens, tokens, tokens, tokens};
      constexpr int kRounds = 200000;
      const double begin = Nanoseconds();
      for (int i = 0; i < kRounds; ++i) hasher.Hash(lanes, parents, inputs, outs);
      std::printf("key, %-8s, %u chains: %6.1f ns/block\n", kernels->name, lanes,
                  (Nanoseconds() - begin) / kRounds / lanes);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<uint32_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)));
  }
  if (sizes.empty()) sizes = {20000, 200000};
  Keys();
  for (const uint32_t blocks : sizes) {
    for (const bool scattered : {false, true}) {
      for (const bool one_chain : {false, true}) Report(blocks, 64, scattered, one_chain);
    }
    Report(blocks, 1, true, false);
    Snapshots(blocks);
  }
  return 0;
}
