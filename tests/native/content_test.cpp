// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What pages hold. A fake engine computes (layer, role, position) stamps that
// follow from the tokens before them, by kernels that run late, on streams that
// race; every hit is read back by kernels that run late too, and each byte is
// compared. Then one fence after the other is taken away, and the same test must
// fail: so each of them is needed, and the test would see it missing.
//
// KVC_SEED and KVC_OPERATIONS repeat and prolong the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "native/src/manager.h"
#include "native/src/mixed_hash.h"
#include "native/src/status.h"
#include "tests/native/abi_support.h"
#include "tests/native/run_length.h"

namespace kvcast {

struct ManagerPeer {
  static HostDevice& Device(Manager& m) { return m.Host(); }
  static uint32_t Slot(const Manager& m, uint64_t stream) { return m.SlotOf(stream); }
};

namespace {

constexpr uint32_t kBlock = 3;
constexpr uint32_t kLayers = 2;
constexpr uint32_t kRoles = 2;  // keys and values
constexpr uint32_t kWords = kLayers * kRoles * kBlock;
constexpr uint32_t kPages = 14;
constexpr uint32_t kFewest = 8;

// A kernel that writes or reads positions [from, to) of one block.
struct Kernel {
  bool write = false;
  uint32_t from = 0;
  uint32_t to = 0;
  uint64_t history[kBlock] = {};  // of each position: all tokens up to it
  uint64_t* wrong = nullptr;      // counts readers that found something else

  static uint64_t Stamp(uint64_t history, uint32_t layer, uint32_t role) {
    return MixedHash::SplitMix64(history + layer * kRoles + role + 1);
  }
  static void Run(void* context, std::byte* page) {
    const Kernel& k = *static_cast<const Kernel*>(context);
    bool good = true;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t role = 0; role < kRoles; ++role) {
        for (uint32_t at = k.from; at < k.to; ++at) {
          std::byte* word = page + ((layer * kRoles + role) * kBlock + at) * sizeof(uint64_t);
          const uint64_t stamp = Stamp(k.history[at], layer, role);
          if (k.write) {
            std::memcpy(word, &stamp, sizeof stamp);
          } else {
            good = good && std::memcmp(word, &stamp, sizeof stamp) == 0;
          }
        }
      }
    }
    if (!good) ++*k.wrong;
  }
};

class Engine {
 public:
  Engine(uint64_t seed, FenceSite without) : random_(seed) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = kPages;
    config.max_sequences = 12;
    config.page_bytes = kWords * sizeof(uint64_t);
    config.flags = KVC_CONFIG_POISON;
    config.resume_gate_permille = 1000;
    config.seed = 1 + seed % 1000;
    config.partial_reuse = MixedHash::SplitMix64(seed) % 2;
    elastic_ = MixedHash::SplitMix64(seed + 1) % 2 == 0;
    if (elastic_) {
      config.max_blocks = kPages;
      config.min_blocks = kFewest;
    }
    ManagerTestHooks hooks;
    hooks.without = without;
    m_ = std::make_unique<Manager>(config, nullptr, hooks);
    for (int i = 0; i < 3; ++i) {
      const uint64_t id = m_->OpenDeviceStream();
      streams_.push_back({id, id, 0, {}});
    }
    // An engine that counts steps: its kernels run on a stream of its own, of
    // which the manager learns only that steps are done.
    streams_.push_back({m_->OpenStepStream(), m_->OpenDeviceStream(), 0, {}});
    network_ = m_->OpenDeviceStream();
  }
  ~Engine() {
    for (uint64_t hold : holds_) EndHold(hold);
    while (!open_.empty()) Close(0, false);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Wrong bytes that readers have found, pages written after they were given up, and work
  // on those whose memory has gone.
  [[nodiscard]] uint64_t wrong() const {
    return wrong_ + ManagerPeer::Device(*m_).lost_operations();
  }
  uint64_t moved() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.moved_pages;
  }
  uint64_t hits = 0;
  uint64_t copied() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.copied_pages;
  }
  uint64_t partial_hits() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.partial_hits;
  }
  uint64_t reclaimed() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.reclaimed_pages;
  }

  void Step() {
    switch (Below(elastic_ ? 24 : 20)) {
      case 20:
      case 21:
      case 22:
      case 23:
        Resize();
        break;
      case 0:
      case 1:
      case 2:
      case 3:
        Open();
        break;
      case 4:
      case 5:
      case 6:
        if (Sequence* s = Pick()) Compute(s, 1 + Below(2 * kBlock));
        break;
      case 7:
        if (Sequence* s = Pick()) Speculate(s);
        break;
      case 8:
      case 9:
        if (!open_.empty()) Close(Below(open_.size()), OneIn(4));
        break;
      case 10:
        Suspend();
        break;
      case 11:
        Resume();
        break;
      case 12:
        Hold();
        break;
      case 13:
        if (OneIn(12)) m_->Reset();
        break;
      case 14:
      case 15:
        Fork();
        break;
      case 16:
      case 17:
        if (!open_.empty()) Close(Below(open_.size()), OneIn(4));
        break;
      default:
        (void)m_->Advance(0, Below(6));
        Steps();
    }
  }
  // Everything runs; then each prompt that is still known is read once more.
  void Finish() {
    Settle();
    while (!open_.empty()) Close(0, false);
    for (uint32_t i = 0; i < 64; ++i) Open();
    while (!open_.empty()) Close(0, false);
    Settle();
    kvc_error error{};
    EXPECT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }

 private:
  struct Stream {
    uint64_t id = 0;             // as the manager knows it
    uint64_t kernels = 0;        // where its kernels run
    uint64_t step = 0;           // begun
    std::vector<uint64_t> ends;  // of each step: its place on `kernels`
  };
  struct Sequence {
    uint64_t id = 0;
    Stream* stream = nullptr;
    std::vector<uint32_t> tokens;  // committed
    uint64_t root = 0;             // history before the first token
    bool suspended = false;
    bool fresh = false;
    kvc_fence copied{};  // a copy that its kernels have not waited for yet
  };

  uint64_t Next() { return random_ = MixedHash::SplitMix64(random_); }
  uint64_t Below(uint64_t n) { return Next() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  Sequence* Pick() {
    if (open_.empty()) return nullptr;
    Sequence* s = open_[Below(open_.size())].get();
    return s->suspended ? nullptr : s;
  }

  std::vector<uint32_t> Prompt() {
    std::vector<uint32_t> tokens(1 + Below(4 * kBlock));
    for (uint32_t& t : tokens) t = OneIn(3) ? 1 : 0;
    return tokens;
  }
  static std::vector<uint64_t> History(uint64_t root, const std::vector<uint32_t>& tokens) {
    std::vector<uint64_t> history;
    for (const uint32_t token : tokens) {
      root = MixedHash::SplitMix64(root ^ (token + 1));
      history.push_back(root);
    }
    return history;
  }
  // Kernels for positions [from, to) of the sequence, on a stream of the device.
  void Launch(const Sequence& s, const std::vector<uint32_t>& tokens, uint64_t from, uint64_t to,
              bool write, uint64_t on) {
    std::vector<uint32_t> pages(kPages);
    uint32_t written = 0;
    ASSERT_EQ(m_->Get(s.id, 0, kPages, pages.data(), &written, nullptr, nullptr), KVC_OK);
    const std::vector<uint64_t> history = History(s.root, tokens);
    for (uint64_t block = from / kBlock; block * kBlock < to; ++block) {
      ASSERT_LT(block, written);
      kernels_.emplace_back();
      Kernel& k = kernels_.back();
      k.write = write;
      k.wrong = &wrong_;
      k.from = static_cast<uint32_t>(std::max(from, block * kBlock) - block * kBlock);
      k.to = static_cast<uint32_t>(std::min(to, (block + 1) * kBlock) - block * kBlock);
      for (uint32_t at = k.from; at < k.to; ++at) k.history[at] = history[block * kBlock + at];
      ManagerPeer::Device(*m_).EnqueueCall(ManagerPeer::Slot(*m_, on), pages[block], Kernel::Run,
                                           &k);
    }
  }
  // The engine's own stream: for one that counts steps the step begins before
  // and its end is noted.
  void Kernels(const Sequence& s, const std::vector<uint32_t>& tokens, uint64_t from, uint64_t to,
               bool write) {
    if (from == to) return;
    Begin(s.stream);
    Launch(s, tokens, from, to, write, s.stream->kernels);
    End(s.stream);
  }
  void Begin(Stream* stream) {
    if (stream->id != stream->kernels) m_->BeginStep(stream->id, ++stream->step);
  }
  void End(Stream* stream) {
    if (stream->id != stream->kernels) stream->ends.push_back(Position(stream->kernels));
  }
  uint64_t Position(uint64_t stream) {
    return ManagerPeer::Device(*m_).Submitted(ManagerPeer::Slot(*m_, stream));
  }
  void Settle() {
    // What waits for a step goes on once the manager knows that it is done.
    for (uint64_t ran = 1; ran != 0;) {
      ran = m_->Advance(0, UINT64_MAX);
      Steps();
    }
  }
  // Tells the manager of the steps that are done.
  void Steps() {
    for (Stream& stream : streams_) {
      uint64_t done = 0;
      while (done < stream.ends.size() &&
             ManagerPeer::Device(*m_).Reached(ManagerPeer::Slot(*m_, stream.kernels),
                                              stream.ends[done])) {
        ++done;
      }
      if (done != 0) m_->EndStep(stream.id, done);
    }
  }
  void Wait(const Sequence& s, const kvc_fence* waits, uint32_t count) {
    ASSERT_LE(count, uint32_t{KVC_MAX_WAITS} + 1);
    std::vector<kvc_fence> all(64);
    ASSERT_EQ(m_->Waits(s.id, 64, all.data(), &count, nullptr), KVC_OK);
    (void)waits;
    m_->StreamWait(s.stream->kernels, count, all.data());
  }

  void Open() {
    auto made = std::make_unique<Sequence>();
    std::vector<uint32_t> tokens = Prompt();
    made->stream = &streams_[Below(streams_.size())];
    made->root = 1 + Below(2);
    kvc_scope scope{};
    scope.parts = KVC_SCOPE_SALT;
    scope.salt = made->root;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = made->stream->id;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    if (OneIn(8)) prompt.flags = KVC_PROMPT_SUSPENDED;
    kvc_create_result result{};
    m_->Create(1, &prompt, {tokens.data(), tokens.size(), &scope, 1}, &result, nullptr);
    if (result.status != KVC_OK) return;
    made->id = result.sequence;
    made->suspended = made->fresh = prompt.flags != 0;
    if (made->fresh) {
      made->tokens = tokens;  // what may be matched later
    } else {
      made->tokens.assign(tokens.begin(),
                          tokens.begin() + static_cast<ptrdiff_t>(result.matched_tokens));
      ReadAll(*made, result.waits, result.wait_count);
    }
    open_.push_back(std::move(made));
    Sequence* s = open_.back().get();
    if (!s->suspended) {
      ComputeTokens(s, {tokens.begin() + static_cast<ptrdiff_t>(s->tokens.size()), tokens.end()});
    }
  }
  void ReadAll(const Sequence& s, const kvc_fence* waits, uint32_t count) {
    Wait(s, waits, count);
    Kernels(s, s.tokens, 0, s.tokens.size(), false);
    hits += s.tokens.size() / kBlock;
  }
  bool Grow(Sequence* s, uint64_t tokens) {
    const kvc_grow_item item{s->id, tokens};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    // A page that had been given up was written: a fence was missing.
    if (result.status == KVC_DEVICE_ERROR) ++wrong_;
    if (result.status != KVC_OK) return false;
    if (result.wait_count != 0) s->copied = result.wait;
    if (result.copied_block != KVC_NO_COPY && OneIn(4)) return false;  // not used for now
    WaitForCopy(s);
    if (result.copied_block != KVC_NO_COPY) {
      Kernels(*s, s->tokens, s->tokens.size() / kBlock * kBlock, s->tokens.size(), false);
    }
    return true;
  }
  void WaitForCopy(Sequence* s) {
    if (s->copied.device_stream != 0) m_->StreamWait(s->stream->kernels, 1, &s->copied);
    s->copied = {};
  }
  // Both go on, each with tokens of its own.
  void Fork() {
    Sequence* s = Pick();
    if (s == nullptr) return;
    auto made = std::make_unique<Sequence>(*s);
    made->copied = {};
    if (OneIn(2)) made->stream = &streams_[Below(streams_.size())];
    const kvc_fork_item item{s->id, made->stream->id};
    kvc_fork_result result{};
    m_->Fork(1, &item, &result, nullptr);
    if (result.status != KVC_OK) return;
    made->id = result.sequence;
    if (OneIn(2)) {
      ReadAll(*made, result.waits, result.wait_count);
    } else {
      Wait(*made, result.waits, result.wait_count);  // its first kernels come later
    }
    open_.push_back(std::move(made));
    Sequence* fork = open_.back().get();
    if (OneIn(2)) Compute(fork, 1 + Below(kBlock));
    if (OneIn(2)) Compute(s, 1 + Below(kBlock));
  }
  void Compute(Sequence* s, uint64_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t& t : tokens) t = OneIn(3) ? 1 : 0;
    ComputeTokens(s, tokens);
  }
  void ComputeTokens(Sequence* s, const std::vector<uint32_t>& more) {
    if (more.empty() || !Grow(s, s->tokens.size() + more.size())) return;
    WaitForCopy(s);
    std::vector<uint32_t> all = s->tokens;
    all.insert(all.end(), more.begin(), more.end());
    kvc_commit_item item{s->id, 0, more.size(), 0, 0, {}, 0};
    if (OneIn(4)) {  // the values come from another engine
      // The pages are the sequence's stream's at once, anybody else's later.
      const kvc_fence mine{s->stream->kernels, Position(s->stream->kernels)};
      m_->StreamWait(network_, 1, &mine);
      Launch(*s, all, s->tokens.size(), all.size(), true, network_);
      item.flags = KVC_COMMIT_FENCE;
      item.fence = {network_, Position(network_)};
    } else {
      Kernels(*s, all, s->tokens.size(), all.size(), true);
    }
    kvc_commit_result result{};
    m_->Commit(1, &item, {more.data(), more.size()}, &result, nullptr);
    ASSERT_EQ(result.status, KVC_OK);
    s->tokens = all;
    if (result.wait_count != 0 || result.deduplicated_blocks != 0) {
      // Somebody else's pages took the place of ours. Those are read, and ours,
      // where they stayed, only if they were not filled from outside.
      Wait(*s, result.waits, result.wait_count);
      if (item.flags == 0) Kernels(*s, s->tokens, 0, s->tokens.size() / kBlock * kBlock, false);
    }
    if (item.flags != 0) m_->StreamWait(s->stream->kernels, 1, &item.fence);
  }
  // Computes tokens that turn out to be wrong, and takes the room back.
  void Speculate(Sequence* s) {
    const uint64_t count = 1 + Below(2 * kBlock);
    if (!Grow(s, s->tokens.size() + count)) return;
    WaitForCopy(s);
    std::vector<uint32_t> all = s->tokens;
    all.insert(all.end(), count, 2);
    Kernels(*s, all, s->tokens.size(), all.size(), true);
    const kvc_truncate_item item{s->id, s->tokens.size()};
    kvc_truncate_result result{};
    m_->Truncate(1, &item, &result, nullptr);
    ASSERT_EQ(result.status, KVC_OK);
  }
  void Close(size_t index, bool cancel) {
    const std::unique_ptr<Sequence> s = std::move(open_[index]);
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(index));
    // Kernels may still read all of it while it goes.
    const bool used = !s->suspended && s->copied.device_stream == 0;
    if (used) Kernels(*s, s->tokens, 0, s->tokens.size(), false);
    kvc_status status = KVC_INTERNAL;
    if (cancel) {
      m_->Cancel(1, &s->id, &status, nullptr);
    } else {
      m_->Release(1, &s->id, &status, nullptr);
    }
    ASSERT_EQ(status, KVC_OK);
  }
  void Suspend() {
    Sequence* s = Pick();
    if (s == nullptr) return;
    const bool grown = OneIn(2) && Grow(s, s->tokens.size() + 3 * kBlock);
    WaitForCopy(s);
    if (grown) {
      // Much to keep, with writes on their way to all of it.
      std::vector<uint32_t> all = s->tokens;
      all.insert(all.end(), 3 * kBlock, 3);
      Kernels(*s, all, s->tokens.size(), all.size(), true);
    }
    Kernels(*s, s->tokens, 0, s->tokens.size(), false);
    const kvc_suspend_item item{s->id, OneIn(3) ? 0 : uint32_t{KVC_SUSPEND_KEEP}, 0};
    kvc_status status = KVC_INTERNAL;
    m_->Suspend(1, &item, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
    s->suspended = true;
  }
  void Resume() {
    if (open_.empty()) return;
    Sequence* s = open_[Below(open_.size())].get();
    if (!s->suspended) return;
    kvc_resume_result result{};
    m_->Resume(1, &s->id, &result, nullptr);
    ASSERT_EQ(result.status, KVC_OK);
    s->suspended = s->fresh = false;
    ASSERT_LE(result.committed_tokens, s->tokens.size());
    s->tokens.resize(result.committed_tokens);
    ReadAll(*s, result.waits, result.wait_count);
  }
  // Another engine reads the pages after the sequence has gone.
  void Hold() {
    if (!holds_.empty() && OneIn(2)) {
      const uint64_t end = Position(network_);  // of the transfer
      while (!ManagerPeer::Device(*m_).Reached(ManagerPeer::Slot(*m_, network_), end)) {
        // The network may wait for a step, and that for any other stream.
        (void)m_->Advance(0, 4);
        Steps();
      }
      EndHold(holds_.front());
      holds_.erase(holds_.begin());
      return;
    }
    if (holds_.size() >= 2) return;
    Sequence* s = Pick();
    if (s == nullptr || s->tokens.empty()) return;
    WaitForCopy(s);
    // It reads when they have been written; our own kernels may read on.
    Begin(s->stream);
    const kvc_fence fence{s->stream->kernels, Position(s->stream->kernels)};
    m_->StreamWait(network_, 1, &fence);
    Launch(*s, s->tokens, 0, s->tokens.size(), false, network_);
    Launch(*s, s->tokens, 0, s->tokens.size(), false, s->stream->kernels);
    End(s->stream);
    const kvc_hold_item item{s->id, 1, 0};
    kvc_hold_result result{};
    m_->ReleaseHeld(1, &item, &result, nullptr);
    ASSERT_EQ(result.status, KVC_OK);
    holds_.push_back(result.hold);
    for (size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].get() != s) continue;
      open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
  }
  // Down, with everything else going on, and up again.
  void Resize() {
    const uint32_t target = OneIn(3) ? kPages : kFewest + static_cast<uint32_t>(Below(4));
    kvc_resize_result result{};
    const kvc_status status = Guard(nullptr, [&] {
      return m_->Resize(target, static_cast<uint32_t>(Below(5)), nullptr, 0, nullptr, 0, &result,
                        nullptr);
    });
    if (status == KVC_DEVICE_ERROR) ++wrong_;
  }
  void EndHold(uint64_t hold) {
    kvc_status status = KVC_INTERNAL;
    m_->ReleaseHolds(1, &hold, &status, nullptr);
    ASSERT_EQ(status, KVC_OK);
  }

  uint64_t random_;
  std::unique_ptr<Manager> m_;
  std::deque<Stream> streams_;
  uint64_t network_ = 0;
  std::deque<Kernel> kernels_;  // until the end: the device points to them
  std::vector<std::unique_ptr<Sequence>> open_;
  std::vector<uint64_t> holds_;
  uint64_t wrong_ = 0;
  bool elastic_ = false;
};

TEST(Content, EveryByteOfEveryHit) {
  constexpr testing::RunLength kUsual{1, testing::kSanitized ? 5000 : 50000, 50000};
  const uint64_t seed = testing::EnvNumber("KVC_SEED", kUsual.seed);
  const uint64_t operations = testing::EnvNumber("KVC_OPERATIONS", kUsual.operations);
  std::printf("KVC_SEED=%llu KVC_OPERATIONS=%llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(operations));
  constexpr uint64_t kRun = 500;
  uint64_t hits = 0, reclaimed = 0, copied = 0, partial = 0, moved = 0;
  for (uint64_t done = 0; done < operations; done += kRun) {
    Engine engine(seed + done, FenceSite::kNone);
    for (uint64_t i = 0; i < kRun; ++i) engine.Step();
    engine.Finish();
    hits += engine.hits;
    reclaimed += engine.reclaimed();
    copied += engine.copied();
    partial += engine.partial_hits();
    moved += engine.moved();
    ASSERT_EQ(engine.wrong(), 0u) << "KVC_SEED=" << seed + done << " KVC_OPERATIONS=" << kRun;
  }
  if (!kUsual.Judged(seed, operations)) {
    std::printf("  too short a run to judge it by what it met\n");
    return;
  }
  EXPECT_GT(hits, operations / 50);
  EXPECT_GT(reclaimed, operations / 5000);
  EXPECT_GT(copied, operations / 200);
  EXPECT_GT(partial, operations / 500);
  EXPECT_GT(moved, operations / 2000);
}

// Without any one of them some reader finds something else.
TEST(Content, EachFenceIsNeeded) {
  for (uint32_t site = 1; site < static_cast<uint32_t>(FenceSite::kCount); ++site) {
    uint64_t runs = 0;
    uint64_t wrong = 0;
    for (; wrong == 0 && runs < 2000; ++runs) {
      Engine engine(77 + runs, static_cast<FenceSite>(site));
      for (uint64_t i = 0; i < 300 && engine.wrong() == 0; ++i) engine.Step();
      engine.Finish();
      wrong = engine.wrong();
    }
    std::printf("  fence %u: missed after %llu runs\n", site,
                static_cast<unsigned long long>(runs));
    EXPECT_NE(wrong, 0u) << "nobody misses fence " << site;
  }
}

}  // namespace
}  // namespace kvcast
