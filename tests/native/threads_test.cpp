// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Eight threads on one manager through the C ABI: create, grow, commit, suspend,
// resume, truncate, stop, release, cancel, holds, steps, probe, reset, drops of scopes,
// a pool that grows and shrinks, drain and device work, all at once; owners stamp the
// pages that are theirs alone. Under ThreadSanitizer it finds races; everywhere it shows
// that each call is atomic: afterwards the invariants hold, what the calls told adds up to
// the statistics, and a mirror made of the drained events is the resident set.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;
using kvcast::testing::EnvNumber;
using kvcast::testing::PromptList;
using kvcast::testing::Resized;
using kvcast::testing::ScopeSpec;
using kvcast::testing::WireMirror;

// Starts all of them at once; a watchdog ends a run that hangs, with a name.
void Together(const std::vector<std::function<void()>>& work) {
  std::atomic<size_t> ready{0};
  std::atomic<bool> done{false};
  std::thread watchdog([&done] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(240);
    while (!done && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (!done) {
      std::fprintf(stderr, "threads_test: still running after 240 s\n");
      std::abort();
    }
  });
  std::vector<std::thread> threads;
  for (const auto& body : work) {
    threads.emplace_back([&ready, &work, &body] {
      ++ready;
      while (ready < work.size()) std::this_thread::yield();
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  watchdog.join();
}

// What all engines did to the pool and to scopes, as their calls told it.
class Shared {
 public:
  explicit Shared(Cache* cache)
      : cache_(cache), target_(cache->options().pages), settled_(cache->options().pages) {}

  // One step towards the size that all go for. Whoever read it before another retargeted
  // turns the pool back for a moment, which is allowed.
  void Nudge(uint32_t max_pages) {
    const Resized made = cache_->Resize(target_, max_pages);
    ASSERT_EQ(made.status, KVC_OK);
    ASSERT_LE(made.moves.size() + made.evicted.size(), max_pages);
    for (const kvc_page_move& move : made.moves) {
      ASSERT_LT(move.to, made.result.target_pages);
      ASSERT_GE(move.from, made.result.target_pages);
    }
    moved += made.moves.size();
    evicted += made.evicted.size();
    if (made.result.done == 0) return;
    const uint32_t total = made.result.total_pages;
    ASSERT_EQ(total, made.result.target_pages);
    const uint32_t before = settled_.exchange(total);
    grown += total > before ? 1 : 0;
    shrunk += total < before ? 1 : 0;
  }
  void Retarget(uint32_t target) { target_ = target; }
  void Drop(const ScopeSpec& scope, bool every) {
    std::vector<kvc_evicted_block> told(cache_->options().MostPages());
    const kvc_drop_result result = cache_->DropScope(scope, every, &told);
    ASSERT_EQ(result.status, KVC_OK);
    ASSERT_EQ(told.size(), result.dropped_blocks);
    for (const kvc_evicted_block& block : told) {
      ASSERT_LT(block.page, cache_->options().MostPages());
    }
    dropped += result.dropped_blocks;
    detached += result.detached_sequences;
  }

  std::atomic<uint64_t> moved{0};
  std::atomic<uint64_t> evicted{0};  // by resizes
  std::atomic<uint64_t> grown{0};    // ways up and down that came to their end
  std::atomic<uint64_t> shrunk{0};
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> detached{0};  // by drops

 private:
  Cache* cache_;
  std::atomic<uint32_t> target_;
  std::atomic<uint32_t> settled_;
};

// One engine: requests on a device stream of its own. Prompts of few distinct
// tokens, so that all engines meet in the same blocks.
class Engine {
 public:
  enum class Kind { kHost, kStream, kSteps };
  Engine(Cache* cache, Shared* shared, uint64_t seed, int requests, Kind kind)
      : cache_(cache),
        shared_(shared),
        manager_(cache->manager()),
        random_(seed),
        requests_(requests),
        kind_(kind),
        stamp_(seed << 32) {}

  void Run() {
    if (kind_ == Kind::kStream) {
      ASSERT_EQ(kvc_device_stream_create(manager_, &stream_, nullptr), KVC_OK);
    } else if (kind_ == Kind::kSteps) {
      ASSERT_EQ(kvc_step_stream_create(manager_, &stream_, nullptr), KVC_OK);
    }
    for (int i = 0; i < requests_; ++i) {
      if (kind_ == Kind::kSteps) {
        ASSERT_EQ(kvc_step_begin(manager_, stream_, ++step_, nullptr), KVC_OK);
      }
      Request();
      Rearrange();
      if (kind_ == Kind::kSteps && (i % 2 == 1 || i + 1 == requests_)) {
        ASSERT_EQ(kvc_step_done(manager_, stream_, step_, nullptr), KVC_OK);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    if (stream_ != 0) {
      ASSERT_EQ(kvc_device_stream_destroy(manager_, stream_, nullptr), KVC_OK);
    }
  }

 private:
  uint64_t Pick(uint64_t n) { return random_() % n; }

  // Those of the adapter go together when each scope that has its name is dropped.
  ScopeSpec PickScope() {
    ScopeSpec scope;
    const uint64_t which = Pick(8);
    if (which < 2) scope.lora_name = "adapter";
    if (which == 1) scope.salt = 1;
    if (which == 2) scope.salt_bytes = "tenant";
    return scope;
  }

  // What a scheduler does between its requests.
  void Rearrange() {
    const CacheOptions& options = cache_->options();
    if (Pick(60) == 0) {
      shared_->Retarget(options.least +
                        static_cast<uint32_t>(Pick(options.most - options.least + 1)));
    }
    if (Pick(2) == 0) shared_->Nudge(static_cast<uint32_t>(Pick(32)));
    if (Pick(40) == 0) {
      const ScopeSpec scope = PickScope();
      shared_->Drop(scope, scope.parts() != 0 && Pick(2) == 0);
    }
    if (Pick(400) == 0) {
      ASSERT_EQ(kvc_manager_reset(manager_, nullptr), KVC_OK);
    }
  }

  void Request() {
    // Two prompts in one call, and a batch for everything that follows.
    constexpr uint32_t kPrompts = 2;
    PromptList prompts;
    std::vector<uint32_t> tokens[kPrompts];
    const ScopeSpec scope = PickScope();
    for (auto& list : tokens) {
      for (uint64_t i = Pick(40); i > 0; --i) list.push_back(static_cast<uint32_t>(Pick(2)));
      prompts.Add(list, scope, 0, stream_);
    }
    kvc_create_result made[kPrompts]{};
    ASSERT_EQ(prompts.Create(manager_, made, nullptr), KVC_OK);
    for (uint32_t i = 0; i < kPrompts; ++i) {
      if (made[i].status == KVC_NOT_NOW) continue;
      ASSERT_EQ(made[i].status, KVC_OK);
      const uint64_t id = made[i].sequence;
      if (kind_ == Kind::kStream) Wait(made[i].waits, made[i].wait_count);
      const kvc_grow_item grow{id, tokens[i].size()};
      kvc_grow_result grown{};
      ASSERT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, nullptr),
                KVC_OK);
      if (grown.status == KVC_OK) {
        if (kind_ == Kind::kStream) Kernels(id);
        const kvc_commit_item commit{
            id, made[i].matched_tokens, tokens[i].size() - made[i].matched_tokens, 0, 0, {}, 0};
        kvc_commit_result committed{};
        ASSERT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens[i].data(), tokens[i].size(),
                                       nullptr, 0, &committed, nullptr),
                  KVC_OK);
        ASSERT_EQ(committed.status, KVC_OK);
        if (kind_ == Kind::kStream) Wait(committed.waits, committed.wait_count);
      } else {
        ASSERT_TRUE(grown.status == KVC_NOT_NOW || grown.status == KVC_NEVER_FITS)
            << kvc_status_name(grown.status);
      }
      if (grown.status == KVC_OK && Pick(4) == 0) Own(id, tokens[i].size());
      if (Pick(3) == 0) Preempt(id);
      Close(id);
    }
  }

  // Room beyond what is committed is the sequence's alone: what its owner writes
  // there stays, whatever the others do.
  void Own(uint64_t id, uint64_t committed) {
    const kvc_grow_item grow{id, committed + Pick(8)};
    kvc_grow_result grown{};
    ASSERT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, nullptr), KVC_OK);
    uint32_t pages[64];
    uint32_t written = 0;
    kvc_sequence_info info;
    ASSERT_EQ(kvc_sequence_get(manager_, id, 0, 64, pages, &written, &info, nullptr), KVC_OK);
    const auto first = static_cast<uint32_t>((info.committed_tokens + 1) / 2);
    const uint64_t kernels = kind_ == Kind::kStream ? stream_ : 0;
    ++stamp_;
    for (uint32_t i = first; i < written; ++i) {
      const kvc_host_fill fill{pages[i], 0, stamp_};
      ASSERT_EQ(kvc_host_enqueue_fill(manager_, kernels, 1, &fill, nullptr), KVC_OK);
    }
    const auto stamped = [&](uint32_t page) {
      uint64_t found = 0;
      uint8_t bytes[sizeof found];
      EXPECT_EQ(kvc_host_read(manager_, page, 8, sizeof bytes, bytes, nullptr), KVC_OK);
      std::memcpy(&found, bytes, sizeof found);
      return found == stamp_;
    };
    // The stream may have to wait for another engine's step.
    for (uint32_t i = first; i < written;) {
      uint64_t executed = 0;
      ASSERT_EQ(
          kvc_host_advance(manager_, kernels, kernels == 0 ? 0 : UINT64_MAX, &executed, nullptr),
          KVC_OK);
      if (stamped(pages[i])) {
        ++i;
      } else {
        if (::testing::Test::HasFailure()) return;  // a page that cannot be read never has it
        std::this_thread::yield();
      }
    }
    for (int round = 0; round < 2; ++round) {
      std::this_thread::yield();
      for (uint32_t i = first; i < written; ++i) {
        ASSERT_TRUE(stamped(pages[i])) << "somebody else has written to this engine's own page";
      }
    }
    const kvc_truncate_item cut{id, info.committed_tokens};
    kvc_truncate_result freed{};
    ASSERT_EQ(kvc_sequences_truncate(manager_, 1, &cut, &freed, nullptr), KVC_OK);
    ASSERT_EQ(freed.status, KVC_OK);
  }
  void Preempt(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    if (Pick(4) == 0) {
      const kvc_stop_item stop{id, Pick(20)};
      ASSERT_EQ(kvc_sequences_stop(manager_, 1, &stop, &status, nullptr), KVC_OK);
      ASSERT_EQ(status, KVC_OK);
    }
    const kvc_suspend_item item{id, static_cast<uint32_t>(Pick(2)), 0};
    ASSERT_EQ(kvc_sequences_suspend(manager_, 1, &item, &status, nullptr), KVC_OK);
    ASSERT_EQ(status, KVC_OK);
    std::this_thread::yield();
    if (Pick(4) == 0) return;  // closed while it is suspended
    kvc_resume_result resumed{};
    ASSERT_EQ(kvc_sequences_resume(manager_, 1, &id, &resumed, nullptr), KVC_OK);
    ASSERT_EQ(resumed.status, KVC_OK);
    if (kind_ == Kind::kStream) Wait(resumed.waits, resumed.wait_count);
  }
  void Close(uint64_t id) {
    if (Pick(5) == 0) {
      const kvc_hold_item item{id, 2, 0};
      kvc_hold_result held{};
      ASSERT_EQ(kvc_sequences_release_held(manager_, 1, &item, &held, nullptr), KVC_OK);
      if (held.status == KVC_OK) {
        kvc_status ended[3];
        const uint64_t holds[3] = {held.hold, held.hold, held.hold};
        ASSERT_EQ(kvc_holds_release(manager_, 3, holds, ended, nullptr), KVC_OK);
        ASSERT_EQ(ended[0], KVC_OK);
        ASSERT_EQ(ended[1], KVC_OK);
        ASSERT_EQ(ended[2], KVC_STALE_HANDLE);
        return;
      }
      ASSERT_EQ(held.status, KVC_BAD_STATE) << "suspended";
    }
    kvc_status released[2];
    const uint64_t ids[2] = {id, id};
    if (Pick(4) == 0) {
      ASSERT_EQ(kvc_sequences_cancel(manager_, 2, ids, released, nullptr), KVC_OK);
    } else {
      ASSERT_EQ(kvc_sequences_release(manager_, 2, ids, released, nullptr), KVC_OK);
    }
    ASSERT_EQ(released[0], KVC_OK);
    ASSERT_EQ(released[1], KVC_STALE_HANDLE);
  }

  void Wait(const kvc_fence* fences, uint32_t count) {
    count = std::min<uint32_t>(count, KVC_MAX_WAITS);
    ASSERT_EQ(kvc_device_stream_wait(manager_, stream_, count, fences, nullptr), KVC_OK);
  }
  void Kernels(uint64_t id) {
    uint32_t pages[64];
    uint32_t written = 0;
    kvc_sequence_info info;
    ASSERT_EQ(kvc_sequence_get(manager_, id, 0, 64, pages, &written, &info, nullptr), KVC_OK);
    const auto first = static_cast<uint32_t>(info.committed_tokens / 2);
    for (uint32_t i = first; i < written; ++i) {
      const kvc_host_fill fill{pages[i], 0, random_()};
      ASSERT_EQ(kvc_host_enqueue_fill(manager_, stream_, 1, &fill, nullptr), KVC_OK);
    }
    if (Pick(2) == 0) {
      uint64_t executed = 0;
      ASSERT_EQ(kvc_host_advance(manager_, stream_, Pick(20), &executed, nullptr), KVC_OK);
    }
  }

  Cache* cache_;
  Shared* shared_;
  kvc_manager* manager_;
  std::mt19937_64 random_;
  int requests_;
  Kind kind_;
  uint64_t stamp_;
  uint64_t step_ = 0;
  uint64_t stream_ = 0;
};

TEST(Threads, EightAtOnce) {
  const uint64_t seed = EnvNumber("KVC_SEED", 17);
  const int requests =
      static_cast<int>(EnvNumber("KVC_REQUESTS", kvcast::testing::kSanitized ? 600 : 2000));
  for (const uint32_t entries : {1u, 16u, 50000u}) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", entries " + std::to_string(entries));
    CacheOptions options;
    options.block = 2;
    options.pages = 96;
    options.most = 160;
    options.least = 24;
    options.page_bytes = 512;  // eight to a page of the system: memory does come and go
    options.sequences = 16;
    options.entries = entries;
    options.seed = seed;
    Cache cache(options);
    kvc_manager* manager = cache.manager();
    WireMirror mirror(options.form, options.block);
    Shared shared(&cache);
    std::atomic<int> running{4};

    std::vector<std::function<void()>> work;
    for (uint64_t engine = 0; engine < 4; ++engine) {
      work.emplace_back([&, engine] {
        const auto kind = engine % 2 == 0 ? Engine::Kind::kStream
                          : engine == 1   ? Engine::Kind::kHost
                                          : Engine::Kind::kSteps;
        Engine(&cache, &shared, seed + engine, requests, kind).Run();
        --running;
      });
    }
    // A router's probes.
    work.emplace_back([&] {
      std::mt19937_64 random(seed + 10);
      do {
        PromptList prompts;
        for (int i = 0; i < 3; ++i) {
          std::vector<uint32_t> tokens(60);
          for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % 2);
          prompts.Add(tokens, {}, 0, 0);
        }
        kvc_probe_result results[3];
        ASSERT_EQ(prompts.Probe(manager, results, nullptr), KVC_OK);
        for (const auto& result : results) ASSERT_EQ(result.status, KVC_OK);
      } while (running > 0);
    });
    // The drainer builds the mirror.
    uint64_t batches = 0;
    work.emplace_back([&] {
      std::mt19937_64 random(seed + 11);
      do {
        kvc_borrowed_batch batch;
        ASSERT_EQ(cache.Drain(&batch, random() % 5, random() % 50), KVC_OK);
        ASSERT_EQ(mirror.Apply(batch), "");
        if (batch.event_count == 0) std::this_thread::yield();
        ++batches;
      } while (running > 0);
    });
    // Resets, statistics and the whole check.
    work.emplace_back([&] {
      uint64_t rounds = 0;
      do {
        if (rounds++ % 8 == 0) {
          ASSERT_EQ(kvc_manager_reset(manager, nullptr), KVC_OK);
        }
        ASSERT_EQ(cache.Check(), "");
        const kvc_stats stats = cache.Stats();
        ASSERT_EQ(stats.live_pages + stats.cached_pages + stats.free_pages +
                      stats.quarantined_pages + stats.leaving_pages,
                  stats.total_pages);
        (void)cache.StreamStats();
        for (int i = 0; i < 20; ++i) std::this_thread::yield();
      } while (running > 0);
    });
    // The device does its work beside all this, and gives and takes memory.
    work.emplace_back([&] {
      uint64_t executed = 0;
      do {
        ASSERT_EQ(kvc_host_advance(manager, 0, 3, &executed, nullptr), KVC_OK);
        std::this_thread::yield();
      } while (running > 0);
      ASSERT_EQ(kvc_host_advance(manager, 0, UINT64_MAX, &executed, nullptr), KVC_OK);
    });
    Together(work);
    if (HasFailure()) return;

    EXPECT_EQ(kvcast::testing::Quiet(cache, mirror), "");
    const kvc_stats stats = cache.Stats();
    EXPECT_EQ(stats.sequences, 0u);
    EXPECT_EQ(stats.live_pages, 0u);
    EXPECT_EQ(stats.quarantined_pages, 0u) << "the device has done everything";
    // It must have been worth it.
    EXPECT_GT(stats.evicted_blocks, shared.evicted) << "grows evict too";
    EXPECT_GT(stats.stored_blocks, 0u);
    EXPECT_GT(stats.matched_blocks, 0u);
    EXPECT_GT(stats.deduplicated_blocks, 0u);
    EXPECT_GT(stats.cancelled_sequences, 0u);
    EXPECT_GT(stats.reset_blocks, 0u);
    EXPECT_GT(shared.dropped, 0u);
    EXPECT_GT(shared.detached, 0u);
    EXPECT_GT(shared.moved, 0u);
    EXPECT_GT(shared.evicted, 0u);
    EXPECT_GT(shared.grown, 0u);
    EXPECT_GT(shared.shrunk, 0u);
    EXPECT_EQ(stats.dropped_blocks, shared.dropped);
    EXPECT_EQ(stats.moved_pages, shared.moved);
    EXPECT_EQ(stats.failed_resizes, 0u);
    const kvc_stream_stats told = cache.StreamStats();
    EXPECT_GT(told.drained_stored_blocks, 0u);
    if (entries == 1) {
      EXPECT_GT(told.healed_blocks, 0u);
    }
    // With nobody else there the pool comes to both of its ends.
    for (const uint32_t end : {options.least, options.most}) {
      Resized made = cache.Resize(end);
      for (int calls = 1; made.result.done == 0 && calls < 8; ++calls) {
        cache.Advance();
        made = cache.Resize(end);
      }
      EXPECT_EQ(made.status, KVC_OK);
      EXPECT_EQ(made.result.done, 1u) << end;
      EXPECT_EQ(cache.Stats().total_pages, end);
    }
    EXPECT_EQ(kvcast::testing::Quiet(cache, mirror), "");
  }
}

}  // namespace
