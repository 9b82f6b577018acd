// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A call that is refused leaves pages, tree, sequences and the stream's records as they
// were, to the byte: in pools of a fixed size, in elastic ones and while these grow or
// shrink, with room for records and without, alone and as one operation of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "native/src/manager.h"
#include "native/src/status.h"
#include "sink/src/streaming_event_sink.h"
#include "tests/native/state_dump.h"

namespace kvcast {
namespace {

constexpr uint32_t kBlock = 2;
constexpr uint32_t kPages = 12;
constexpr uint32_t kSequences = 10;

enum class Pool { kFixed, kElastic, kGrowing, kShrinking };

class RefusedTest : public ::testing::TestWithParam<std::tuple<Pool, uint32_t>> {
 protected:
  static Pool pool() { return std::get<0>(GetParam()); }

  void Open(uint32_t gate) {
    kvc_config config{};
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = kPages;
    if (pool() != Pool::kFixed) {
      config.max_blocks = kPages + 8;
      config.min_blocks = 2;
    }
    config.page_bytes = 16;
    config.max_sequences = kSequences;
    config.max_pinned_pages = 2;
    config.max_digests = 2;
    config.resume_gate_permille = gate;
    config.seed = 1;
    SinkOptions options;
    options.max_entries = std::get<1>(GetParam());
    sink_ = std::make_shared<StreamingEventSink>(options);
    m_ = std::make_unique<Manager>(config, sink_);
  }
  // The pool's target goes to where the case wants it.
  void Retarget() {
    if (pool() == Pool::kGrowing) Resize(kPages + 4);
    if (pool() == Pool::kShrinking) Resize(6);
  }
  kvc_status Resize(uint32_t target) {
    kvc_resize_result result{};
    try {
      return m_->Resize(target, 0, nullptr, 0, nullptr, 0, &result, nullptr);
    } catch (const Error& error) {
      return error.status();
    }
  }

  struct Asked {
    std::vector<uint32_t> tokens;
    kvc_prompt prompt{};
  };
  static Asked Prompt(const std::vector<uint32_t>& blocks, uint64_t stream = 0,
                      uint32_t flags = 0) {
    Asked asked;
    for (const uint32_t b : blocks) asked.tokens.insert(asked.tokens.end(), kBlock, b);
    asked.prompt.token_count = asked.tokens.size();
    asked.prompt.scope = KVC_NO_SCOPE;
    asked.prompt.device_stream = stream;
    asked.prompt.must_compute = KVC_COMPUTE_NOTHING;
    asked.prompt.flags = flags;
    return asked;
  }
  // A prompt of so many different digests.
  Asked Digests(uint32_t count, uint32_t flags) const {
    Asked asked = Prompt({}, 0, flags);
    for (uint32_t i = 0; i < count; ++i) {
      asked.tokens.push_back(KVC_DIGEST_TOKEN(i));
      asked.tokens.push_back(9);
    }
    asked.prompt.token_count = asked.tokens.size();
    asked.prompt.digest_count = count;
    return asked;
  }
  PromptArrays Arrays(const std::vector<uint32_t>& tokens) const {
    return {tokens.data(), tokens.size(), nullptr, 0, bytes_.data(), bytes_.size()};
  }
  kvc_create_result Create(const Asked& asked) {
    kvc_create_result made{};
    m_->Create(1, &asked.prompt, Arrays(asked.tokens), &made, nullptr);
    return made;
  }
  kvc_status Grow(uint64_t id, uint32_t blocks) {
    const kvc_grow_item item{id, uint64_t{blocks} * kBlock};
    kvc_grow_result result{};
    m_->Grow(1, &item, &result, nullptr);
    return result.status;
  }
  kvc_status Commit(uint64_t id, const std::vector<uint32_t>& tokens) {
    kvc_commit_item item{id, 0, tokens.size(), 0, 0, {}, 0};
    for (const uint32_t t : tokens) {
      if ((t & KVC_DIGEST_BIT) != 0) item.digest_count = 3;
    }
    kvc_commit_result result{};
    m_->Commit(1, &item, {tokens.data(), tokens.size(), bytes_.data(), bytes_.size()}, &result,
               nullptr);
    return result.status;
  }
  uint64_t Store(const std::vector<uint32_t>& blocks, uint64_t stream = 0) {
    const Asked asked = Prompt(blocks, stream);
    const kvc_create_result made = Create(asked);
    EXPECT_EQ(made.status, KVC_OK);
    EXPECT_EQ(Grow(made.sequence, static_cast<uint32_t>(blocks.size())), KVC_OK);
    const auto from = static_cast<ptrdiff_t>(made.matched_tokens);
    EXPECT_EQ(Commit(made.sequence, {asked.tokens.begin() + from, asked.tokens.end()}), KVC_OK);
    return made.sequence;
  }
  uint64_t Room(uint32_t blocks, uint64_t stream = 0) {
    const uint64_t id = Create(Prompt({}, stream)).sequence;
    EXPECT_EQ(Grow(id, blocks), KVC_OK);
    return id;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &id, &status, nullptr);
    EXPECT_EQ(status, KVC_OK);
  }
  kvc_status Suspend(uint64_t id, bool keep) {
    const kvc_suspend_item item{id, keep ? uint32_t{KVC_SUSPEND_KEEP} : 0, 0};
    kvc_status status = KVC_INTERNAL;
    m_->Suspend(1, &item, &status, nullptr);
    return status;
  }
  kvc_status Fork(uint64_t id) {
    const kvc_fork_item item{id, 0};
    kvc_fork_result result{};
    m_->Fork(1, &item, &result, nullptr);
    forked_ = result.sequence;
    return result.status;
  }
  kvc_status Resume(uint64_t id) {
    kvc_resume_result result{};
    m_->Resume(1, &id, &result, nullptr);
    return result.status;
  }
  void Kernel(uint64_t stream) {
    const kvc_host_fill fill{0, 0, 1};
    m_->EnqueueFill(stream, 1, &fill);
  }

  // The call is refused, more than once, and has changed nothing.
  void Refused(const char* what, kvc_status status, const std::function<kvc_status()>& call) {
    SCOPED_TRACE(what);
    // Whatever goes on without anybody's asking has gone on.
    kvc_stats stats{};
    kvc_stats_init(&stats);
    m_->Stats(&stats);
    kvc_error error{};
    ASSERT_EQ(m_->Check(&error), KVC_OK) << error.message;
    const std::string before = DumpState(*m_, *sink_);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(call(), status);
      EXPECT_EQ(FirstDifference(before, DumpState(*m_, *sink_)), "");
    }
    ASSERT_EQ(m_->Check(&error), KVC_OK) << error.message;
  }
  struct Rooms {
    uint32_t evicted = 64;
    uint32_t waits = 64;
  };
  kvc_status Step(const kvc_op& op, const Asked& asked, const Rooms& rooms) {
    kvc_step_input in;
    kvc_step_input_init(&in);
    in.tokens = asked.tokens.data();
    in.token_count = asked.tokens.size();
    in.bytes = bytes_.data();
    in.byte_count = bytes_.size();
    in.prompts = &asked.prompt;
    in.prompt_count = 1;
    kvc_step_output out;
    kvc_step_output_init(&out);
    std::vector<kvc_evicted_block> evicted(64);
    std::vector<kvc_fence> waits(64);
    out.evicted = evicted.data();
    out.evicted_capacity = rooms.evicted;
    out.waits = waits.data();
    out.wait_capacity = rooms.waits;
    kvc_op_result result{};
    m_->Step(1, &op, in, &result, &out, nullptr);
    return result.status;
  }
  // The same operation alone and in a step.
  void RefusedBoth(const char* what, kvc_status status, const kvc_op& op,
                   const std::function<kvc_status()>& call) {
    RefusedBoth(what, status, op, call, Prompt({}));
  }
  void RefusedBoth(const char* what, kvc_status status, const kvc_op& op,
                   const std::function<kvc_status()>& call, const Asked& asked) {
    Refused(what, status, call);
    Refused(what, status, [&] { return Step(op, asked, Rooms()); });
  }
  static kvc_op Op(kvc_op_kind kind, uint64_t id) {
    kvc_op op{};
    op.kind = kind;
    op.args.sequence = id;  // where each kind has it
    return op;
  }
  static kvc_op GrowOp(uint64_t id, uint32_t blocks) {
    kvc_op op = Op(KVC_OP_GROW, id);
    op.args.grow.capacity_tokens = uint64_t{blocks} * kBlock;
    return op;
  }
  void RefusedGrow(const char* what, kvc_status status, uint64_t id, uint32_t blocks) {
    RefusedBoth(what, status, GrowOp(id, blocks), [=] { return Grow(id, blocks); });
  }
  void RefusedCreate(const char* what, kvc_status status, const Asked& asked) {
    kvc_op op{};
    op.kind = KVC_OP_CREATE;
    RefusedBoth(
        what, status, op, [&] { return Create(asked).status; }, asked);
  }
  void RefusedCommit(const char* what, kvc_status status, uint64_t id,
                     const std::vector<uint32_t>& tokens) {
    kvc_op op = Op(KVC_OP_COMMIT, id);
    op.args.commit.token_count = tokens.size();
    for (const uint32_t t : tokens) {
      if ((t & KVC_DIGEST_BIT) != 0) op.args.commit.digest_count = 3;
    }
    Asked asked = Prompt({});
    asked.tokens = tokens;
    RefusedBoth(
        what, status, op, [&] { return Commit(id, tokens); }, asked);
  }

  std::shared_ptr<StreamingEventSink> sink_;
  std::unique_ptr<Manager> m_;
  uint64_t forked_ = 0;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(32, 1);
};

TEST_P(RefusedTest, ChangesNothing) {
  for (const uint8_t each : {uint8_t{2}, uint8_t{3}}) bytes_.insert(bytes_.end(), 32, each);
  Open(1000);
  const uint64_t one = m_->OpenDeviceStream(), two = m_->OpenDeviceStream();
  const uint64_t held = Store({1, 2, 3});
  Release(Store({1, 4, 5}));
  const uint64_t fenced = Store({6, 7}, one);
  Kernel(one);
  Release(fenced);  // cached, not to be had by others yet
  const uint64_t given_up = Room(2, one);
  Kernel(one);
  Release(given_up);  // quarantined
  const uint64_t sleeper = Room(1, two);
  EXPECT_EQ(Suspend(sleeper, true), KVC_OK);
  const uint64_t id = Create(Prompt({1, 2}, two)).sequence;
  const uint64_t gone = Create(Prompt({})).sequence;
  Release(gone);
  Retarget();

  const uint32_t reachable = ManagerPeer::Reachable(*m_);
  RefusedGrow("grow, not now", KVC_NOT_NOW, id, reachable);
  RefusedGrow("grow, never fits", KVC_NEVER_FITS, id, reachable + 1);
  RefusedGrow("grow, suspended", KVC_BAD_STATE, sleeper, 4);
  RefusedGrow("grow, stale", KVC_STALE_HANDLE, gone, 4);

  RefusedCreate("create, unknown stream", KVC_STALE_HANDLE, Prompt({1, 2}, 77));
  RefusedCreate("create, too many digests", KVC_NEVER_FITS, Digests(3, KVC_PROMPT_SUSPENDED));
  RefusedCreate("create, a digest that there is not", KVC_INVALID_ARGUMENT, [&] {
    Asked asked = Digests(2, 0);
    asked.prompt.digest_count = 1;
    return asked;
  }());
  RefusedCreate("create, unknown flags", KVC_INVALID_ARGUMENT, Prompt({1}, 0, 1u << 30));

  RefusedCommit("commit, no room", KVC_BAD_STATE, id, {8, 8});
  RefusedCommit("commit, suspended", KVC_BAD_STATE, sleeper, {8});
  RefusedCommit("commit, stale", KVC_STALE_HANDLE, gone, {8});
  RefusedCommit("commit, too large a token", KVC_INVALID_ARGUMENT, id, {1u << 31 | 7});

  for (const uint64_t target : {id, sleeper, gone}) {
    // The one has committed more, the others are not to be truncated at all.
    kvc_op op = Op(KVC_OP_TRUNCATE, target);
    op.args.truncate.capacity_tokens = 1;
    RefusedBoth("truncate", target == gone ? KVC_STALE_HANDLE : KVC_BAD_STATE, op, [=] {
      const kvc_truncate_item item{target, 1};
      kvc_truncate_result result{};
      m_->Truncate(1, &item, &result, nullptr);
      return result.status;
    });
  }
  RefusedBoth("suspend, suspended", KVC_BAD_STATE, Op(KVC_OP_SUSPEND, sleeper),
              [=] { return Suspend(sleeper, false); });
  RefusedBoth("resume, active", KVC_BAD_STATE, Op(KVC_OP_RESUME, id), [=] { return Resume(id); });
  RefusedBoth("resume, stale", KVC_STALE_HANDLE, Op(KVC_OP_RESUME, gone),
              [=] { return Resume(gone); });
  RefusedBoth("fork, suspended", KVC_BAD_STATE, Op(KVC_OP_FORK, sleeper),
              [=] { return Fork(sleeper); });
  RefusedBoth("stop, suspended", KVC_BAD_STATE, Op(KVC_OP_STOP, sleeper), [=] {
    const kvc_stop_item item{sleeper, 0};
    kvc_status status = KVC_INTERNAL;
    m_->Stop(1, &item, &status, nullptr);
    return status;
  });
  kvc_op hold = Op(KVC_OP_HOLD, sleeper);
  hold.args.hold.count = 1;
  RefusedBoth("hold, suspended", KVC_BAD_STATE, hold, [=] {
    const kvc_hold_item item{sleeper, 1, 0};
    kvc_hold_result result{};
    m_->ReleaseHeld(1, &item, &result, nullptr);
    return result.status;
  });
  RefusedBoth("release, stale", KVC_STALE_HANDLE, Op(KVC_OP_RELEASE, gone), [=] {
    kvc_status status = KVC_INTERNAL;
    m_->Release(1, &gone, &status, nullptr);
    return status;
  });
  RefusedBoth("pin, more than may be", KVC_NEVER_FITS, Op(KVC_OP_PIN, held), [=] {
    kvc_pin_result result{};
    m_->PinSequences(1, &held, &result, nullptr);
    return result.status;
  });
  kvc_op retain = Op(KVC_OP_RETAIN, held);
  retain.args.retain.end_token = 2;
  retain.args.retain.priority = 101;
  RefusedBoth("retain, no priority", KVC_INVALID_ARGUMENT, retain, [&] {
    kvc_status status = KVC_INTERNAL;
    m_->Retain(1, &retain.args.retain, &status, nullptr);
    return status;
  });
  Refused("drop, unknown flags", KVC_INVALID_ARGUMENT, [&] {
    const kvc_drop_item item{KVC_NO_SCOPE, 1u << 30};
    kvc_drop_result result{};
    m_->DropScopes(1, &item, Arrays({}), &result, nullptr, nullptr);
    return result.status;
  });
  Refused("resize, out of bounds", KVC_INVALID_ARGUMENT, [&] { return Resize(1); });
  Refused("step, unknown kind", KVC_INVALID_ARGUMENT,
          [&] { return Step(Op(static_cast<kvc_op_kind>(99), id), Prompt({}), Rooms()); });
  Refused("step, no room for fences", KVC_NOT_NOW, [&] {
    kvc_op op{};
    op.kind = KVC_OP_CREATE;
    return Step(op, Prompt({6, 7}, two), {64, 0});
  });

  // A shared block, digests that others use, and no sequence more.
  const uint64_t odd = Create(Prompt({1, 2})).sequence;
  if (Grow(odd, 3) == KVC_OK) {
    EXPECT_EQ(Commit(odd, {8}), KVC_OK);
    EXPECT_EQ(Fork(odd), KVC_OK);
    RefusedCommit("commit, shared", KVC_BAD_STATE, odd, {8});
    RefusedGrow("grow with a copy, never fits", KVC_NEVER_FITS, odd, reachable + 1);
    RefusedGrow("grow with a copy, not now", KVC_NOT_NOW, odd, reachable);
    Release(forked_);
  } else {
    EXPECT_EQ(pool(), Pool::kShrinking) << "there is room but for what has been withdrawn";
  }
  std::vector<uint64_t> open;
  open.push_back(Create(Digests(2, KVC_PROMPT_SUSPENDED)).sequence);
  Asked other = Digests(1, KVC_PROMPT_SUSPENDED);
  other.prompt.digest_offset = 64;
  RefusedCreate("create, digests of others", KVC_NOT_NOW, other);
  while (true) {
    const kvc_create_result made = Create(Prompt({}));
    if (made.status != KVC_OK) break;
    open.push_back(made.sequence);
  }
  RefusedCreate("create, no sequence more", KVC_NOT_NOW, Prompt({1, 2}));
  RefusedBoth("fork, no sequence more", KVC_NOT_NOW, Op(KVC_OP_FORK, id), [=] { return Fork(id); });
  for (const uint64_t each : {id, held, sleeper, odd}) open.push_back(each);
  for (const uint64_t each : open) Release(each);
}

// An operation that could not tell what it would evict evicts nothing.
TEST_P(RefusedTest, WhatCannotBeToldIsNotDone) {
  Open(1000);
  Release(Store({1, 2, 3, 4, 5, 6, 7, 8}));
  Retarget();
  const uint64_t id = Create(Prompt({1, 2})).sequence;
  const uint32_t blocks = ManagerPeer::Reachable(*m_);
  Refused("step, no room for what is evicted", KVC_NOT_NOW, [&] {
    return Step(GrowOp(id, std::min(blocks, 11u)), Prompt({}), {1, 64});
  });
  Release(id);
}

// The gate, and waits for what others compute.
TEST_P(RefusedTest, WhoMayNotBecomeActive) {
  Open(400);
  const uint64_t waits = [&] {
    const uint64_t owner = Create(Prompt({1, 2}, 0, KVC_PROMPT_MARK)).sequence;
    const uint64_t id = Create(Prompt({1, 2}, 0, KVC_PROMPT_WAIT)).sequence;
    RefusedBoth("resume, what it needs is computed", KVC_NOT_NOW, Op(KVC_OP_RESUME, id),
                [=] { return Resume(id); });
    Release(owner);
    return id;
  }();
  const uint64_t sleeper = Store({1, 2});
  EXPECT_EQ(Suspend(sleeper, true), KVC_OK);
  const uint64_t id = Store({3, 4, 5, 6, 7});
  Retarget();
  RefusedCreate("create, gate", KVC_NOT_NOW, Prompt({1, 2}));
  RefusedBoth("fork, gate", KVC_NOT_NOW, Op(KVC_OP_FORK, id), [=] { return Fork(id); });
  RefusedBoth("resume, gate", KVC_NOT_NOW, Op(KVC_OP_RESUME, sleeper),
              [=] { return Resume(sleeper); });
  for (const uint64_t each : {waits, sleeper, id}) Release(each);
}

// Records for all blocks, and a ring in which hardly any has room: then the rest is
// deferred, and no call may heal any of it.
INSTANTIATE_TEST_SUITE_P(Pools, RefusedTest,
                         ::testing::Combine(::testing::Values(Pool::kFixed, Pool::kElastic,
                                                              Pool::kGrowing, Pool::kShrinking),
                                            ::testing::Values(64u, 2u)));

}  // namespace
}  // namespace kvcast
