// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Writer, drainer and readers of statistics at the same time. Worth its time
// under ThreadSanitizer; elsewhere it shows that nothing is lost or reordered
// when the ring is small and both sides meet in it all the time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/sink_test_support.h"

namespace {

using kvcast::Scope;
using kvcast::SinkOptions;
using kvcast::StoreRun;
using kvcast::testing::Fact;
using kvcast::testing::Facts;

// A manager in miniature: one lock, chains of blocks, deferred heads.
class MiniManager final : public kvcast::SinkHost {
 public:
  static constexpr uint32_t kTokens = 4;
  static constexpr uint32_t kBlocks = 64;

  explicit MiniManager(std::shared_ptr<kvcast::StreamingEventSink> sink)
      : arena_(kTokens, kBlocks), sink_(std::move(sink)) {
    sink_->Attach(arena_.geometry(), this);
    for (uint32_t node = 0; node < kBlocks; ++node) free_.push_back(node);
  }

  uint32_t TryHeal(uint32_t max_blocks, uint64_t) noexcept override {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || sink_ == nullptr) return 0;
    return Heal(max_blocks);
  }
  void DetachSink() noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    sink_.reset();
  }

  void Step(std::mt19937_64& random) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (sink_ == nullptr) return;
    // By blocks stored and not by steps: between two clears more are stored than
    // the arena holds, so some are removed, however slow the drainer is.
    if (stored >= next_clear_) {
      next_clear_ = stored + 3 * kBlocks + random() % (3 * kBlocks);
      sink_->Clear();
      for (const auto& chain : chains_) free_.insert(free_.end(), chain.begin(), chain.end());
      chains_.clear();
      return;
    }
    const uint32_t length = 1 + static_cast<uint32_t>(random() % 5);
    if (free_.size() < length) {
      // Evict a chain, last block first.
      std::vector<uint32_t> going(chains_.front().rbegin(), chains_.front().rend());
      std::vector<uint8_t> reasons;
      for (const uint32_t node : going) reasons.push_back(static_cast<uint8_t>(1 + node % 4));
      sink_->Remove(going.data(), reasons.data(), static_cast<uint32_t>(going.size()));
      free_.insert(free_.end(), going.begin(), going.end());
      chains_.erase(chains_.begin());
      return;
    }
    std::vector<uint32_t> chain(free_.end() - length, free_.end());
    for (const uint32_t node : chain) arena_.Set(node, {++token_, token_, token_, token_});
    const Scope scope;
    StoreRun run;
    run.scope = &scope;
    run.nodes = chain.data();
    run.count = length;
    const uint32_t admitted = sink_->Store(run, false);
    chain.resize(admitted);
    // What was not admitted stays free here; only the number is of interest.
    if (admitted < length) {
      sink_->deferral_counters().pending_blocks = 1;
    }
    if (admitted != 0) {
      for (const uint32_t node : chain) {
        free_.erase(std::find(free_.begin(), free_.end(), node));
      }
      chains_.push_back(chain);
      stored += admitted;
    }
  }

  std::atomic<uint64_t> stored{0};
  [[nodiscard]] std::set<uint64_t> Announced() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::set<uint64_t> hashes;
    for (const auto& chain : chains_) {
      kvcast::testing::Key key = kvcast::testing::RootKeyOf(Scope());
      for (const uint32_t node : chain) {
        const uint32_t* tokens = arena_.geometry().Tokens(node);
        key = kvcast::testing::BlockKeyOf(key, std::vector<uint32_t>(tokens, tokens + kTokens));
        hashes.insert(kvcast::WireHash(key.data(), KVC_HASH_SIGNED64));
      }
    }
    return hashes;
  }

 private:
  uint32_t Heal(uint32_t) {
    sink_->deferral_counters().pending_blocks = 0;
    if (free_.empty()) return 0;
    const uint32_t node = free_.back();
    arena_.Set(node, {++token_, token_, token_, token_});
    const Scope scope;
    StoreRun run;
    run.scope = &scope;
    run.nodes = &node;
    run.count = 1;
    if (sink_->Store(run, true) == 0) return 0;
    free_.pop_back();
    chains_.push_back({node});
    ++stored;
    return 1;
  }

  std::mutex mutex_;
  kvcast::testing::Arena arena_;
  std::shared_ptr<kvcast::StreamingEventSink> sink_;
  std::vector<uint32_t> free_;
  std::vector<std::vector<uint32_t>> chains_;
  uint32_t token_ = 0;
  uint64_t next_clear_ = 3 * kBlocks;
};

// Applies batches as a subscriber would and notices what may not be.
struct Subscriber {
  std::set<uint64_t> mirror;

  void Apply(const kvc_borrowed_batch& batch) {
    for (const Fact& fact : Facts(batch)) {
      if (fact.kind == KVC_EVENT_CLEARED) {
        mirror.clear();
      } else if (fact.kind == KVC_EVENT_REMOVED) {
        EXPECT_EQ(mirror.erase(fact.hash), 1u) << "removed without having been stored";
      } else {
        if (fact.has_parent) {
          EXPECT_EQ(mirror.count(fact.parent), 1u) << "unknown parent";
        }
        EXPECT_TRUE(mirror.insert(fact.hash).second) << "stored twice";
      }
    }
  }
};

TEST(SinkThreads, WriterDrainerAndStatistics) {
  constexpr uint64_t kSeed = 11;
  for (const uint32_t entries : {1u, 7u, 40u}) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", entries " + std::to_string(entries));
    SinkOptions options;
    options.max_entries = entries;
    auto sink = std::make_shared<kvcast::StreamingEventSink>(options);
    std::atomic<bool> start{false};
    std::atomic<bool> written{false};
    MiniManager manager(sink);
    std::thread writer([&] {
      while (!start) std::this_thread::yield();
      std::mt19937_64 random(kSeed);
      while (manager.stored < 3000) manager.Step(random);
      written = true;
    });
    std::thread reader([&] {
      while (!start) std::this_thread::yield();
      while (!written) {
        kvc_stream_stats stats{};
        sink->GetStats(&stats);
        EXPECT_LE(stats.buffer_used_bytes, stats.buffer_bytes);
        EXPECT_LE(stats.announced_blocks, uint64_t{MiniManager::kBlocks});
      }
    });
    Subscriber subscriber;
    std::mt19937_64 random(kSeed + 1);
    start = true;
    for (bool last = false; !last;) {
      last = written;
      for (;;) {
        kvc_borrowed_batch batch;
        ASSERT_EQ(sink->Drain(random() % 3, random() % 9, &batch), KVC_OK);
        if (batch.event_count == 0 && batch.remaining_bytes == 0) break;
        subscriber.Apply(batch);
      }
    }
    writer.join();
    reader.join();
    EXPECT_EQ(subscriber.mirror, manager.Announced());
    kvc_stream_stats stats{};
    sink->GetStats(&stats);
    EXPECT_EQ(stats.stored_blocks, manager.stored);
    EXPECT_EQ(stats.announced_blocks, subscriber.mirror.size());
    EXPECT_EQ(stats.mirror_blocks, subscriber.mirror.size());
    EXPECT_GT(stats.removed_blocks, 0u);
    EXPECT_GT(stats.clears, 0u);
    sink->Detach();
  }
}

// Walkers read snapshots while the mirror goes on: each tells what the drained
// events made up when it was opened, and nothing is waited for.
TEST(SinkThreads, SnapshotsBesideDrainerAndWriter) {
  constexpr uint64_t kSeed = 21;
  SinkOptions options;
  options.max_entries = 40;
  auto sink = std::make_shared<kvcast::StreamingEventSink>(options);
  std::atomic<bool> written{false};
  MiniManager manager(sink);
  std::thread writer([&] {
    std::mt19937_64 random(kSeed);
    while (manager.stored < 2000) manager.Step(random);
    written = true;
  });
  // Handed over one at a time.
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<kvcast::Snapshot> snapshot;
  std::set<uint64_t> pinned;
  bool done = false;
  std::atomic<int> read{0};
  std::thread walker([&] {
    std::mt19937_64 random(kSeed + 1);
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return snapshot != nullptr || done; });
      if (snapshot == nullptr) return;
      const auto mine = std::move(snapshot);
      const auto want = pinned;
      lock.unlock();
      Subscriber told;
      kvc_borrowed_batch batch;
      while (mine->Next(0, 1 + random() % 20, &batch)) told.Apply(batch);
      EXPECT_EQ(told.mirror, want);
      ++read;
    }
  });
  Subscriber subscriber;
  std::mt19937_64 random(kSeed + 2);
  for (bool last = false; !last;) {
    last = written && read >= 20;
    kvc_borrowed_batch batch;
    ASSERT_EQ(sink->Drain(random() % 3, random() % 9, &batch), KVC_OK);
    subscriber.Apply(batch);
    const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
    if (!lock.owns_lock() || snapshot != nullptr) continue;
    std::unique_ptr<kvcast::Snapshot> next;
    // The walker may still have the one before.
    if (sink->Pin(&next) != kvcast::PinResult::kDone) continue;
    snapshot = std::move(next);
    pinned = subscriber.mirror;
    changed.notify_one();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
  }
  changed.notify_one();
  writer.join();
  walker.join();
  sink->Detach();
}

// A drainer must find the end of the stream even if the seal comes while it
// looks, and nothing recorded before the seal may be missing then.
TEST(SinkThreads, SealAgainstDrain) {
  for (int round = 0; round < 300; ++round) {
    SinkOptions options;
    options.max_entries = 40;
    auto sink = std::make_shared<kvcast::StreamingEventSink>(options);
    MiniManager manager(sink);
    std::atomic<bool> start{false};
    std::thread writer([&] {
      while (!start) std::this_thread::yield();
      std::mt19937_64 random(static_cast<uint64_t>(round));
      for (int step = 0; step < 20; ++step) manager.Step(random);
      sink->Seal();
    });
    Subscriber subscriber;
    start = true;
    kvc_status status = KVC_OK;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (status == KVC_OK && std::chrono::steady_clock::now() < deadline) {
      kvc_borrowed_batch batch;
      status = sink->Drain(0, 0, &batch);
      if (status == KVC_OK) subscriber.Apply(batch);
    }
    writer.join();
    ASSERT_EQ(status, KVC_END);
    ASSERT_EQ(subscriber.mirror, manager.Announced());
  }
}

// Taking the sink away while the writer is at work: it stops, nothing else.
TEST(SinkThreads, DetachAgainstWriter) {
  for (int round = 0; round < 100; ++round) {
    SinkOptions options;
    auto sink = std::make_shared<kvcast::StreamingEventSink>(options);
    MiniManager manager(sink);
    std::atomic<bool> start{false};
    std::thread writer([&] {
      while (!start) std::this_thread::yield();
      std::mt19937_64 random(static_cast<uint64_t>(round));
      for (int step = 0; step < 200; ++step) manager.Step(random);
    });
    start = true;
    sink->Detach();
    kvc_stream_stats stats{};
    sink->GetStats(&stats);
    const uint64_t stored = stats.stored_blocks;
    writer.join();
    sink->GetStats(&stats);
    EXPECT_EQ(stats.stored_blocks, stored) << "nothing is recorded after a detach";
    EXPECT_EQ(stats.attached, 0u);
  }
}

TEST(SinkThreads, ASecondDrainerIsBusy) {
  SinkOptions options;
  auto sink = std::make_shared<kvcast::StreamingEventSink>(options);
  kvcast::testing::Arena arena(2, 8);
  kvcast::testing::FakeHost host;
  sink->Attach(arena.geometry(), &host);
  sink->deferral_counters().pending_blocks = 1;
  kvc_status second = KVC_OK;
  // Called in the middle of the first drain.
  host.on_heal = [&](uint32_t) {
    std::thread other([&] {
      kvc_borrowed_batch batch;
      second = sink->Drain(0, 0, &batch);
    });
    other.join();
    return 0u;
  };
  kvc_borrowed_batch batch;
  EXPECT_EQ(sink->Drain(0, 0, &batch), KVC_OK);
  EXPECT_EQ(second, KVC_BUSY);
  host.on_heal = nullptr;
  EXPECT_EQ(sink->Drain(0, 0, &batch), KVC_OK);
}

}  // namespace
