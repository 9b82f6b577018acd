// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Two things that must not happen, measured:
//  1. Probes keep the scheduler waiting. The time of one create + grow + commit +
//     release of a small prompt, alone and beside two threads that probe a long
//     prompt without pause: requests one after the other, and one each 100 us, at
//     moments that do not depend on how long the one before had to wait.
//  2. A publisher that pauses slows the scheduler down. Slices of commit + evict
//     cycles, in pairs: one with a drainer at work after it, one without, until
//     the paused stream has missed a million cycles. What each slice costs the
//     scheduler, the ratio in pairs, the memory, and that the stream heals.
//
// Plain program: `stress_bench [seconds of each latency run] [paused cycles]`. It fails if
// the median ratio of the pairs or the memory is beyond its bound; the wait of the
// scheduler depends on who else is at work and is only told.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;

constexpr uint32_t kBlock = 16;
// What a paused publisher may cost the scheduler, as the median of many pairs of slices by
// the processor time of its thread, so that other work on the machine hardly shows.
constexpr double kMaxPauseRatio = 1.2;
// What the process may grow by meanwhile: some huge pages of what was reserved before and is
// touched for the first time. A million cycles that leave 5 bytes each are beyond it.
constexpr uint64_t kMaxGrowthKiB = 4 << 10;

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
// Processor time of this thread: what the scheduler spends, whoever else is busy.
uint64_t ThreadNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "stress_bench: %s\n", what);
  std::exit(1);
}

// A request of `blocks` new blocks: the cache is full, so each evicts as many.
class Scheduler {
 public:
  Scheduler(kvc_manager* manager, uint32_t blocks)
      : manager_(manager), tokens_(size_t{blocks} * kBlock) {}

  void Request() {
    for (uint32_t& token : tokens_) token = static_cast<uint32_t>(next_++ % 128256);
    tokens_[0] = static_cast<uint32_t>(next_ & 0x7fffffff);
    kvc_prompt prompt{};
    prompt.token_count = tokens_.size();
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    kvc_sequences_create(manager_, 1, &prompt, tokens_.data(), tokens_.size(), nullptr, 0, nullptr,
                         0, &made, nullptr);
    Require(made.status == KVC_OK, "create failed");
    const kvc_grow_item grow{made.sequence, tokens_.size()};
    kvc_grow_result grown{};
    kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, nullptr);
    Require(grown.status == KVC_OK, "grow failed");
    const kvc_commit_item commit{
        made.sequence, made.matched_tokens, tokens_.size() - made.matched_tokens, 0, 0, {}, 0};
    kvc_commit_result committed{};
    kvc_sequences_commit(manager_, 1, &commit, tokens_.data(), tokens_.size(), nullptr, 0,
                         &committed, nullptr);
    Require(committed.status == KVC_OK, "commit failed");
    stored_ += committed.stored_blocks;
    kvc_status released = KVC_OK;
    kvc_sequences_release(manager_, 1, &made.sequence, &released, nullptr);
  }
  [[nodiscard]] uint64_t stored() const { return stored_; }

 private:
  kvc_manager* manager_;
  std::vector<uint32_t> tokens_;
  uint64_t next_ = 1;
  uint64_t stored_ = 0;
};

void Latency(double seconds, int probers, bool paced) {
  CacheOptions options;
  options.block = kBlock;
  options.pages = 20000;
  options.sequences = 64;
  options.page_bytes = 0;
  options.stream = false;
  Cache cache(options);
  // What is probed: a prompt of 4,000 blocks that an open sequence holds.
  std::vector<uint32_t> long_prompt(size_t{4000} * kBlock);
  for (size_t i = 0; i < long_prompt.size(); ++i) long_prompt[i] = static_cast<uint32_t>(i % 1000);
  const uint64_t holder = cache.Create({}).sequence;
  Require(cache.Grow(holder, long_prompt.size()).status == KVC_OK, "grow failed");
  Require(cache.Commit(holder, long_prompt.data(), long_prompt.size()).stored_blocks == 4000,
          "commit failed");

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> probes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < probers; ++i) {
    threads.emplace_back([&] {
      kvc_prompt prompt{};
      prompt.token_count = long_prompt.size();
      prompt.scope = KVC_NO_SCOPE;
      while (!stop) {
        kvc_probe_result result{};
        kvc_probe(cache.manager(), 1, &prompt, long_prompt.data(), long_prompt.size(), nullptr, 0,
                  nullptr, 0, &result, nullptr);
        probes.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  Scheduler scheduler(cache.manager(), 4);
  for (int i = 0; i < 6000; ++i) scheduler.Request();  // until it evicts
  std::vector<uint32_t> ns;
  ns.reserve(static_cast<size_t>(seconds * 1e6));
  const uint64_t begin = NowNs();
  const auto end = begin + static_cast<uint64_t>(seconds * 1e9);
  auto next = std::chrono::steady_clock::now();
  for (uint64_t now = begin; now < end;) {
    if (paced) {
      std::this_thread::sleep_until(next += std::chrono::microseconds(100));
      now = NowNs();
    }
    scheduler.Request();
    const uint64_t then = NowNs();
    ns.push_back(static_cast<uint32_t>(std::min<uint64_t>(then - now, UINT32_MAX)));
    now = then;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::sort(ns.begin(), ns.end());
  const auto at = [&ns](double q) {
    return ns[std::min(ns.size() - 1, static_cast<size_t>(q * static_cast<double>(ns.size())))] /
           1e3;
  };
  std::printf(
      "create+grow+commit+release of 4 blocks, %s, %d probing threads: %zu requests, p50 %.1f us, "
      "p99 %.1f us, p99.9 %.1f us, max %.1f us; %.0f probes/s of 4000 blocks\n",
      paced ? "one each 100 us" : "back to back", probers, ns.size(), at(0.5), at(0.99), at(0.999),
      at(1), static_cast<double>(probes.load()) / seconds);
}

// Drains everything, healing included.
uint64_t DrainAll(kvc_stream* stream) {
  uint64_t blocks = 0;
  for (int empty = 0; empty < 100000; ++empty) {
    kvc_borrowed_batch batch;
    Require(kvc_stream_drain(stream, 0, 8192, &batch, nullptr) == KVC_OK, "drain failed");
    blocks += batch.hash_count;
    if (batch.event_count != 0) empty = 0;
    if (batch.event_count == 0 && batch.pending_blocks == 0 && batch.remaining_bytes == 0) {
      return blocks;
    }
  }
  Require(false, "the stream does not come to rest");
  return 0;
}

uint64_t PeakRssKiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss);
}

void Pause(uint64_t cycles) {
  constexpr uint32_t kBlocks = 8;   // of a request
  constexpr uint64_t kSlice = 200;  // requests
  CacheOptions options;
  options.block = kBlock;
  options.pages = 20000;
  options.sequences = 64;
  options.page_bytes = 0;
  options.entries = 5000;
  Cache drained(options);
  Cache paused(options);
  Scheduler with(drained.manager(), kBlocks);
  Scheduler without(paused.manager(), kBlocks);
  // Both full and evicting, everything announced; then one publisher pauses.
  for (uint32_t i = 0; i < 2 * options.pages / kBlocks; ++i) {
    with.Request();
    without.Request();
    if (i % 100 == 0) {
      DrainAll(drained.stream());
      DrainAll(paused.stream());
    }
  }
  DrainAll(drained.stream());
  DrainAll(paused.stream());
  const uint64_t rss = PeakRssKiB();
  const uint64_t metadata = paused.Stats().metadata_bytes;
  std::vector<double> ratios, drained_ns, paused_ns;
  const uint64_t goal = without.stored() + cycles;
  for (uint64_t pair = 0; without.stored() < goal; ++pair) {
    double cost[2] = {};
    for (uint64_t half = 0; half < 2; ++half) {
      // Who begins changes from pair to pair.
      const bool is_paused = (half + pair) % 2 != 0;
      Scheduler& scheduler = is_paused ? without : with;
      const uint64_t begin = ThreadNs();
      for (uint64_t i = 0; i < kSlice; ++i) scheduler.Request();
      cost[is_paused ? 1 : 0] =
          static_cast<double>(ThreadNs() - begin) / static_cast<double>(kSlice * kBlocks);
      if (!is_paused) DrainAll(drained.stream());
    }
    drained_ns.push_back(cost[0]);
    paused_ns.push_back(cost[1]);
    ratios.push_back(cost[1] / cost[0]);
  }
  const auto median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  };
  const kvc_stream_stats before = paused.StreamStats();
  Require(before.deferred_blocks != 0, "nothing was deferred: the pause was too short");
  Require(paused.Stats().metadata_bytes == metadata, "the manager's memory has grown");
  const uint64_t grown = PeakRssKiB() - rss;
  const uint64_t begin = NowNs();
  const uint64_t told = DrainAll(paused.stream());
  const double healing = static_cast<double>(NowNs() - begin) / 1e6;
  const kvc_stream_stats after = paused.StreamStats();
  Require(after.pending_blocks == 0, "blocks are still deferred");
  Require(after.mirror_blocks == paused.Stats().blocks, "the mirror is not the resident set");
  std::printf(
      "publisher paused for %llu commit+evict cycles: %.1f ns/block paused, %.1f drained, median "
      "ratio of %zu pairs %.3f (p10 %.3f, p90 %.3f)\n"
      "  deferred %llu, pending %llu, peak RSS grew by %llu KiB, record buffer %llu of %llu bytes\n"
      "  afterwards: %llu blocks told in %.1f ms, pending %llu, mirror %llu == resident %llu\n",
      static_cast<unsigned long long>(cycles), median(paused_ns), median(drained_ns), ratios.size(),
      median(ratios),
      [&] {
        std::vector<double> sorted = ratios;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 10];
      }(),
      [&] {
        std::vector<double> sorted = ratios;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() * 9 / 10];
      }(),
      static_cast<unsigned long long>(before.deferred_blocks),
      static_cast<unsigned long long>(before.pending_blocks),
      static_cast<unsigned long long>(grown),
      static_cast<unsigned long long>(before.buffer_used_bytes),
      static_cast<unsigned long long>(before.buffer_bytes), static_cast<unsigned long long>(told),
      healing, static_cast<unsigned long long>(after.pending_blocks),
      static_cast<unsigned long long>(after.mirror_blocks),
      static_cast<unsigned long long>(paused.Stats().blocks));
  Require(median(ratios) <= kMaxPauseRatio, "a paused publisher slows the scheduler down");
  Require(grown <= kMaxGrowthKiB, "a paused publisher makes the process grow");
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 5;
  const uint64_t cycles = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000000;
  Require(seconds > 0 && cycles > 0, "usage: stress_bench [seconds] [paused cycles]");
  for (const bool paced : {false, true}) {
    Latency(seconds, 0, paced);
    Latency(seconds, 2, paced);
  }
  Pause(cycles);
  return 0;
}
