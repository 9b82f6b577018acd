// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Memory of the core: none is taken in the steady state, and when none is to be
// had a call fails whole.
#include "tests/native/failing_allocator.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <random>
#include <vector>

#include "native/src/manager.h"
#include "native/src/status.h"
#include "sink/src/streaming_event_sink.h"
#include "tests/native/abi_support.h"
#include "tests/native/digest_support.h"

namespace kvcast {
namespace {

constexpr uint32_t kBlock = 4;

class Engine {
 public:
  explicit Engine(uint64_t seed, kvc_policy policy = KVC_POLICY_LRU, bool partial = false,
                  uint32_t pages = 64, bool elastic = false)
      : random_(seed), partial_(partial), pages_(pages), elastic_(elastic) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = pages;
    if (elastic) {
      config.max_blocks = pages + pages / 4;
      config.min_blocks = pages / 2;
    }
    config.policy = policy;
    config.lrfu_tau = 20;
    config.max_sequences = 8;
    config.seed = 1;
    config.page_bytes = 16;
    config.partial_reuse = partial ? 1 : 0;
    config.resume_gate_permille = 1000;
    SinkOptions options;
    options.max_entries = 16;
    options.suppress_multimodal = false;
    sink_ = std::make_shared<StreamingEventSink>(options);
    m_ = std::make_unique<Manager>(config, sink_);
    for (uint64_t& s : streams_) s = m_->OpenDeviceStream();
    bytes_.assign(kName, kName + sizeof kName - 1);
    for (uint32_t k = 0; k < kDigests; ++k) {
      const testing::TestDigest digest = testing::DigestOf(k);
      bytes_.insert(bytes_.end(), digest.begin(), digest.end());
    }
    tokens_.reserve(1024);  // the test's own memory is not what it is about
  }

  // As many scopes at once as there can be, so that the place of each has held the
  // long name before anything is counted.
  void WarmScopes() {
    std::vector<uint64_t> open;
    for (uint64_t salt = 0; salt < 8; ++salt) {
      kvc_scope scope{};
      scope.parts = KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT;
      scope.lora_name_size = sizeof kName - 1;
      scope.salt = salt;
      kvc_prompt prompt{};
      kvc_create_result made{};
      m_->Create(1, &prompt, {tokens_.data(), 0, &scope, 1, bytes_.data(), bytes_.size()}, &made,
                 nullptr);
      ASSERT_EQ(made.status, KVC_OK);
      open.push_back(made.sequence);
    }
    std::vector<kvc_status> released(open.size());
    m_->Release(static_cast<uint32_t>(open.size()), open.data(), released.data(), nullptr);
  }

  uint64_t PartialHits() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.partial_hits;
  }
  // One random request; every call may fail for want of memory and is repeated.
  void Request() {
    const uint32_t blocks = 1 + static_cast<uint32_t>(random_() % 12);
    // A partly filled tail.
    tokens_.resize(size_t{blocks} * kBlock + 1 + (partial_ ? random_() % (kBlock - 1) : 0));
    for (uint32_t& t : tokens_) {
      t = static_cast<uint32_t>(random_() % 3);
      if (random_() % 8 == 0) t = KVC_DIGEST_TOKEN(random_() % kDigests);
    }
    if (elastic_) Resize();
    if (random_() % 3 == 0) return StepRequest();
    kvc_prompt prompt{};
    prompt.token_count = tokens_.size();
    prompt.scope = random_() % 2 == 0 ? 0 : KVC_NO_SCOPE;
    prompt.device_stream = streams_[random_() % kStreams];
    kvc_scope scope{};
    scope.parts = KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT;
    scope.lora_name_size = sizeof kName - 1;
    prompt.digest_offset = sizeof kName - 1;
    prompt.digest_count = kDigests;
    scope.salt = random_() % 4;
    // Some say what they compute, and some wait for those who did.
    if (random_() % 2 == 0) prompt.flags = KVC_PROMPT_MARK;
    if (random_() % 2 == 0) prompt.flags |= KVC_PROMPT_SUSPENDED;
    PromptArrays in{tokens_.data(), tokens_.size(), &scope, 1, bytes_.data(), bytes_.size()};
    kvc_create_result made{};
    Try([&] {
      m_->Create(1, &prompt, in, &made, nullptr);
      return made.status;
    });
    prompt.flags |= KVC_PROMPT_WAIT;
    kvc_create_result waits{};
    Try([&] {
      m_->Create(1, &prompt, in, &waits, nullptr);
      return waits.status;
    });
    EXPECT_EQ(waits.status, KVC_OK);
    if ((prompt.flags & KVC_PROMPT_SUSPENDED) != 0) {
      kvc_resume_result resumed{};
      Try([&] {
        m_->Resume(1, &made.sequence, &resumed, nullptr);
        return resumed.status;
      });
      EXPECT_EQ(resumed.status, KVC_OK);
      made.matched_tokens = resumed.committed_tokens;
    }
    const kvc_grow_item grow{made.sequence, tokens_.size()};
    kvc_grow_result grown{};
    Try([&] {
      m_->Grow(1, &grow, &grown, nullptr);
      return grown.status;
    });
    // A kernel that runs late, so that pages carry fences of many streams.
    if (kernels && grown.status == KVC_OK) {
      const bool was_counting = counting;
      counting = false;  // the fake device's queue is not what it is about
      const kvc_host_fill fill{0, 0, 1};
      m_->EnqueueFill(prompt.device_stream, 1, &fill);
      if (random_() % 4 == 0) (void)m_->Advance(0, random_() % 8);
      counting = was_counting;
    }
    if (grown.status == KVC_OK) {
      kvc_commit_item commit{made.sequence,
                             made.matched_tokens,
                             tokens_.size() - made.matched_tokens,
                             0,
                             kDigests,
                             {},
                             sizeof kName - 1};
      if (kernels && random_() % 4 == 0) {
        commit.flags = KVC_COMMIT_FENCE;
        commit.fence = {prompt.device_stream, 1};
      }
      kvc_commit_result committed{};
      Try([&] {
        m_->Commit(1, &commit, {tokens_.data(), tokens_.size(), bytes_.data(), bytes_.size()},
                   &committed, nullptr);
        return committed.status;
      });
      EXPECT_EQ(committed.status, KVC_OK);
      if (random_() % 3 == 0) Fork(made.sequence);
    }
    kvc_waiter over[2];
    waited += m_->Waiters(2, over);
    kvc_status cancelled = KVC_INTERNAL;
    Try([&] {
      m_->Cancel(1, &waits.sequence, &cancelled, nullptr);
      return cancelled;
    });
    EXPECT_EQ(cancelled, KVC_OK);
    // Now and then the request is preempted for a while.
    if (random_() % 4 == 0) {
      const kvc_truncate_item cut{made.sequence, tokens_.size() + kBlock};
      kvc_truncate_result freed{};
      Try([&] {
        m_->Truncate(1, &cut, &freed, nullptr);
        return freed.status;
      });
      const kvc_suspend_item item{made.sequence, static_cast<uint32_t>(random_() % 2), 0};
      kvc_status suspended = KVC_INTERNAL;
      Try([&] {
        m_->Suspend(1, &item, &suspended, nullptr);
        return suspended;
      });
      EXPECT_EQ(suspended, KVC_OK);
      if (elastic_) Resize();  // what is kept moves
      kvc_resume_result resumed{};
      Try([&] {
        m_->Resume(1, &made.sequence, &resumed, nullptr);
        return resumed.status;
      });
      EXPECT_EQ(resumed.status, KVC_OK);
    }
    const uint64_t from = random_() % (tokens_.size() + 1);
    const kvc_retain_item retain{made.sequence,
                                 from,
                                 KVC_TO_THE_END,
                                 random_() % 2 * (now_ + random_() % 40 * 1000000000),
                                 static_cast<uint32_t>(36 + random_() % 60),
                                 0};
    kvc_status retained = KVC_INTERNAL;
    Try([&] {
      m_->Retain(1, &retain, &retained, nullptr);
      return retained;
    });
    EXPECT_EQ(retained, KVC_OK);
    bool more = false;
    now_ += 1000000000;
    (void)m_->Expire(now_, 5, &more);
    const bool ended = random_() % 4 == 0;
    // Tables take no memory at all, so that of a test that counts none.
    const kvc_table_delta_item row{made.sequence, 0, 0};
    kvc_table_delta deltas[64];
    kvc_table_result told{};
    uint32_t written = 0;
    m_->TablesDelta(nullptr, 1, &row, 64, &cookie_, 64, deltas, &written, &told, nullptr);
    EXPECT_EQ(told.status, made.status == KVC_OK ? KVC_OK : KVC_STALE_HANDLE);
    kvc_pin_result pinned{};
    Try([&] {
      m_->PinSequences(1, &made.sequence, &pinned, nullptr);
      return pinned.status;
    });
    if (pin_ != 0) {
      kvc_status unpinned = KVC_INTERNAL;
      Try([&] {
        m_->Unpin(1, &pin_, &unpinned, nullptr);
        return unpinned;
      });
      EXPECT_EQ(unpinned, KVC_OK);
    }
    pin_ = pinned.status == KVC_OK ? pinned.pin : 0;
    if (drops && random_() % 8 == 0) {
      const kvc_drop_item drop{0, random_() % 2 == 0 ? uint32_t{KVC_DROP_EVERY} : 0};
      kvc_drop_result dropped{};
      Try([&] {
        m_->DropScopes(1, &drop, in, &dropped, nullptr, nullptr);
        return dropped.status;
      });
      EXPECT_EQ(dropped.status, KVC_OK);
    }
    if (random_() % 8 == 0) {
      const kvc_hold_item item{made.sequence, 1, 0};
      kvc_hold_result held{};
      Try([&] {
        m_->ReleaseHeld(1, &item, &held, nullptr);
        return held.status;
      });
      kvc_status let_go = KVC_INTERNAL;
      Try([&] {
        m_->ReleaseHolds(1, &held.hold, &let_go, nullptr);
        return let_go;
      });
      EXPECT_EQ(let_go, KVC_OK);
      return;
    }
    kvc_status released = KVC_INTERNAL;
    Try([&] {
      if (ended) {
        m_->End(1, &made.sequence, &released, nullptr);
      } else {
        m_->Release(1, &made.sequence, &released, nullptr);
      }
      return released;
    });
    EXPECT_EQ(released, KVC_OK);
  }
  // Another goes on from what has been committed, with a token of its own: it is given
  // a copy of the last block.
  void Fork(uint64_t id) {
    const kvc_fork_item item{id, streams_[random_() % kStreams]};
    kvc_fork_result forked{};
    Try([&] {
      m_->Fork(1, &item, &forked, nullptr);
      return forked.status;
    });
    EXPECT_EQ(forked.status, KVC_OK);
    const kvc_grow_item grow{forked.sequence, forked.committed_tokens + 1};
    kvc_grow_result grown{};
    Try([&] {
      m_->Grow(1, &grow, &grown, nullptr);
      return grown.status;
    });
    if (grown.status == KVC_OK) {
      EXPECT_NE(grown.copied_block, KVC_NO_COPY);
      const uint32_t token = 3;
      const kvc_commit_item commit{forked.sequence, 0, 1, 0, 0, {}, 0};
      kvc_commit_result committed{};
      Try([&] {
        m_->Commit(1, &commit, {&token, 1, nullptr, 0}, &committed, nullptr);
        return committed.status;
      });
      EXPECT_EQ(committed.status, KVC_OK);
    }
    kvc_status released = KVC_INTERNAL;
    Try([&] {
      m_->Release(1, &forked.sequence, &released, nullptr);
      return released;
    });
    EXPECT_EQ(released, KVC_OK);
    // Nothing else executes what is queued, which would be more and more.
    if (!kernels) (void)m_->Advance(0, UINT64_MAX);
  }
  // The same in one step: every operation may fail for want of memory, alone.
  void StepRequest() {
    enum { kCreate, kGrow, kCommit, kTable, kSuspend, kResume, kRetain, kPin, kClose, kOps };
    kvc_op ops[kOps] = {};
    kvc_op_result results[kOps] = {};
    kvc_step_input in;
    kvc_step_input_init(&in);
    in.tokens = tokens_.data();
    in.token_count = tokens_.size();
    in.columns = 64;
    kvc_table_delta deltas[64];
    kvc_evicted_block evicted[64];
    kvc_fence waits[3 * kStreams];
    kvc_step_output out;
    kvc_step_output_init(&out);
    out.cookies = &cookie_;
    out.cookie_count = 1;
    out.deltas = deltas;
    out.delta_capacity = 64;
    out.evicted = evicted;
    out.evicted_capacity = 64;
    out.waits = waits;
    out.wait_capacity = 3 * kStreams;
    ops[kCreate].kind = KVC_OP_CREATE;
    kvc_prompt prompt{};
    prompt.token_count = tokens_.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.device_stream = streams_[random_() % kStreams];
    prompt.must_compute = static_cast<uint32_t>(tokens_.size());  // no match
    prompt.digest_offset = sizeof kName - 1;
    prompt.digest_count = kDigests;
    in.bytes = bytes_.data();
    in.byte_count = bytes_.size();
    in.prompts = &prompt;
    in.prompt_count = 1;
    for (uint32_t i = 1; i < kOps; ++i) ops[i].args.sequence = KVC_STEP_RESULT | kCreate;
    ops[kGrow].kind = KVC_OP_GROW;
    ops[kGrow].args.grow.capacity_tokens = tokens_.size();
    ops[kCommit].kind = KVC_OP_COMMIT;
    ops[kCommit].args.commit.token_count = tokens_.size();
    ops[kCommit].args.commit.digest_offset = sizeof kName - 1;
    ops[kCommit].args.commit.digest_count = kDigests;
    ops[kTable].kind = KVC_OP_TABLE;
    ops[kSuspend].kind = KVC_OP_SUSPEND;
    ops[kSuspend].args.suspend.flags = static_cast<uint32_t>(random_() % 2);
    ops[kResume].kind = KVC_OP_RESUME;
    ops[kRetain].kind = KVC_OP_RETAIN;
    ops[kRetain].args.retain.end_token = KVC_TO_THE_END;
    ops[kRetain].args.retain.priority = 50;
    ops[kPin].kind = KVC_OP_PIN;
    ops[kClose].kind = random_() % 2 == 0 ? uint32_t{KVC_OP_RELEASE} : uint32_t{KVC_OP_CANCEL};
    m_->Step(kOps, ops, in, results, &out, nullptr);
    const bool none = results[kCreate].status == KVC_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < kOps; ++i) {
      if (results[i].status != KVC_OUT_OF_MEMORY) {
        // Without a sequence the others had nothing to work on.
        EXPECT_TRUE(!none || results[i].status == KVC_STALE_HANDLE) << i;
        continue;
      }
      ++failures;
      const bool was_counting = counting;
      Check();
      counting = was_counting;
      if (none) {
        m_->Step(kOps, ops, in, results, &out, nullptr);
        break;
      }
      // What came after it has been done; a closed sequence stays so.
      ops[i].args.sequence = results[kCreate].sequence;
      m_->Step(1, ops + i, in, results + i, &out, nullptr);
      EXPECT_NE(results[i].status, KVC_OUT_OF_MEMORY) << "there is memory again";
    }
    const uint64_t pin = results[kPin].status == KVC_OK ? results[kPin].of.pinned.pin : 0;
    EXPECT_EQ(results[kClose].status, KVC_OK);
    EXPECT_NE(results[kClose].sequence, 0u);
    if (pin == 0) return;
    kvc_status unpinned = KVC_INTERNAL;
    Try([&] {
      m_->Unpin(1, &pin, &unpinned, nullptr);
      return unpinned;
    });
    EXPECT_EQ(unpinned, KVC_OK);
  }
  // The pool is on its way to somewhere all the time.
  void Resize() {
    if (random_() % 8 == 0) {
      target_ = random_() % 2 == 0 ? pages_ + pages_ / 4
                                   : pages_ / 2 + static_cast<uint32_t>(random_() % pages_) / 2;
    }
    const auto most = static_cast<uint32_t>(random_() % 20);
    kvc_resize_result result{};
    Try([&] {
      return Guard(nullptr, [&] {
        return m_->Resize(target_, most, nullptr, 0, nullptr, 0, &result, nullptr);
      });
    });
    if (!kernels && random_() % 4 == 0) {
      const bool was_counting = counting;
      counting = false;
      (void)m_->Advance(0, random_() % 8);
      counting = was_counting;
    }
  }
  uint64_t MovedPages() {
    kvc_stats stats{};
    m_->Stats(&stats);
    return stats.moved_pages;
  }
  // Returns whether there was something, or is.
  bool Drain() {
    kvc_borrowed_batch batch{};
    Try([&] {
      try {
        const kvc_status status = sink_->Drain(0, 0, &batch);
        const bool was_counting = counting;
        counting = false;
        if (status == KVC_OK) {
          EXPECT_EQ(mirror_.Apply(batch), "");
        }
        counting = was_counting;
        return status;
      } catch (const std::bad_alloc&) {
        return kvc_status{KVC_OUT_OF_MEMORY};
      }
    });
    return batch.event_count + batch.remaining_bytes + batch.pending_blocks != 0;
  }
  void Check() {
    counting = false;
    kvc_error error{};
    EXPECT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }
  // What a subscriber knows now is what the tree has, after whatever failed.
  void CompareStream() {
    uint32_t drains = 0;
    while (Drain()) ASSERT_LT(++drains, 1000u);
    uint64_t count = 0;
    kvc_error error{};
    (void)m_->Resident(KVC_HASH_SIGNED64, 0, nullptr, &count, &error);
    std::vector<kvc_resident_block> resident(count);
    EXPECT_EQ(m_->Resident(KVC_HASH_SIGNED64, count, resident.data(), &count, &error), KVC_OK);
    EXPECT_EQ(mirror_.Compare(resident, true), "");
  }
  Manager& manager() { return *m_; }
  uint64_t failures = 0;
  uint64_t waited = 0;
  bool kernels = false;
  bool drops = false;  // which take memory for their plan

 private:
  // Repeats a call that memory failed, and looks at everything in between.
  template <typename Call>
  void Try(Call&& call) {
    const kvc_status first = call();
    if (first != KVC_OUT_OF_MEMORY && first != KVC_DEVICE_ERROR) return;
    ++failures;
    const bool was_counting = counting;
    Check();
    const kvc_status again = call();
    EXPECT_NE(again, KVC_OUT_OF_MEMORY) << "there is memory again";
    EXPECT_NE(again, KVC_DEVICE_ERROR) << "and the device works again";
    counting = was_counting;
  }

  static constexpr char kName[] = "an adapter whose name does not fit a short string";
  testing::WireMirror mirror_{KVC_HASH_SIGNED64, kBlock};
  std::mt19937_64 random_;
  const bool partial_;
  const uint32_t pages_;
  const bool elastic_;
  uint32_t target_ = pages_;
  std::shared_ptr<StreamingEventSink> sink_;
  std::unique_ptr<Manager> m_;
  static constexpr uint32_t kDigests = 5;
  std::vector<uint32_t> tokens_;
  uint64_t now_ = 1;
  kvc_table_cookie cookie_{};
  uint64_t pin_ = 0;
  std::vector<uint8_t> bytes_;  // the name and the digests
  static constexpr uint32_t kStreams = 7;
  uint64_t streams_[kStreams] = {};
};

void SteadyState(kvc_policy policy, bool partial = false, bool elastic = false) {
  Engine engine(1, policy, partial, 64, elastic);
  engine.WarmScopes();
  // Only the scheduler's side counts here; the drain side (where a scope that
  // comes anew takes memory) has a test of its own.
  const auto round = [&](bool counted) {
    for (int i = 0; i < 2000; ++i) {
      counting = counted;
      engine.Request();
      counting = false;
      if (i % 3 == 0) engine.Drain();
    }
  };
  for (int i = 0; i < 4; ++i) round(false);
  allocations = 0;
  round(true);
  EXPECT_EQ(allocations, 0u);
  EXPECT_GT(
      [&] {
        kvc_stats stats{};
        engine.manager().Stats(&stats);
        return stats.evicted_blocks;
      }(),
      100u);
  EXPECT_GT(engine.waited, 100u);
  EXPECT_EQ(engine.PartialHits() > 100, partial);
  engine.Check();
  engine.CompareStream();
}

TEST(CoreFaults, TheSteadyStateTakesNoMemory) { SteadyState(KVC_POLICY_LRU); }
TEST(CoreFaults, TheSteadyStateTakesNoMemoryWithScores) { SteadyState(KVC_POLICY_LRFU); }
TEST(CoreFaults, TheSteadyStateTakesNoMemoryWithTails) { SteadyState(KVC_POLICY_LRU, true); }
TEST(CoreFaults, TheSteadyStateTakesNoMemoryWithTailsAndScores) {
  SteadyState(KVC_POLICY_LRFU, true);
}
TEST(CoreFaults, TheSteadyStateTakesNoMemoryWhileThePoolIsResized) {
  SteadyState(KVC_POLICY_LRU, false, true);
}

// For every n the n-th allocation fails; the failing call changes nothing and
// succeeds when it is repeated.
void EveryAllocation(bool partial, bool elastic = false) {
  uint64_t failed = 0;
  uint64_t hits = 0;
  for (uint64_t n = 0;; ++n) {
    // A pool that is not full, so that there are pages for copies of tails.
    Engine engine(7, KVC_POLICY_LRU, partial, partial ? 256 : 64, elastic);
    engine.kernels = true;
    engine.drops = true;
    allocations = 0;
    fail_at = n;
    counting = true;
    for (int i = 0; i < 60; ++i) {
      engine.Request();
      if (i % 3 == 0) engine.Drain();
    }
    counting = false;
    fail_at = UINT64_MAX;
    engine.Check();
    engine.CompareStream();
    failed += engine.failures;
    hits += engine.PartialHits();
    if (allocations <= n) break;
    ASSERT_LT(n, 2000u);
  }
  EXPECT_GT(failed, 10u) << "the test must reach the allocations it is about";
  EXPECT_EQ(hits > 0, partial);
}
TEST(CoreFaults, EveryAllocationMayFail) { EveryAllocation(false); }
TEST(CoreFaults, EveryAllocationMayFailWithTails) { EveryAllocation(true); }
TEST(CoreFaults, EveryAllocationMayFailWhileThePoolIsResized) { EveryAllocation(false, true); }

// For every n the n-th copy is refused by the device.
void EveryCopy(bool partial) {
  for (uint64_t n = 1;; ++n) {
    Engine engine(9, KVC_POLICY_LRU, partial, partial ? 512 : 64);
    engine.kernels = true;
    static_cast<HostDevice&>(engine.manager().device()).FailReservation(n);
    for (int i = 0; i < 200; ++i) {
      engine.Request();
      if (i % 3 == 0) engine.Drain();
    }
    engine.Check();
    engine.CompareStream();
    if (engine.failures == 0) {
      EXPECT_EQ(engine.PartialHits() > 8, partial);
      EXPECT_GT(n, 8u) << "the test must reach the copies it is about";
      break;
    }
    EXPECT_EQ(engine.failures, 1u);
  }
}
TEST(CoreFaults, EveryCopyMayFail) { EveryCopy(false); }
TEST(CoreFaults, EveryCopyMayFailWithTails) { EveryCopy(true); }

// For every n the n-th copy of a shrink is refused by the device: what has moved before it
// has moved, and the next call goes on.
TEST(CoreFaults, EveryMoveMayFail) {
  for (uint64_t n = 1;; ++n) {
    Engine engine(11, KVC_POLICY_LRU, false, 64, true);
    engine.kernels = true;
    static_cast<HostDevice&>(engine.manager().device()).FailReservation(n);
    for (int i = 0; i < 300; ++i) {
      engine.Request();
      if (i % 3 == 0) engine.Drain();
    }
    engine.Check();
    engine.CompareStream();
    if (engine.failures == 0) {
      EXPECT_GT(engine.MovedPages(), 8u) << "the test must reach the copies it is about";
      break;
    }
    EXPECT_EQ(engine.failures, 1u);
    ASSERT_LT(n, 500u);
  }
}

}  // namespace
}  // namespace kvcast
