// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The CUDA device behind the C ABI: the conformance suite that the host device and
// GPUs run too, the caller's context, calls that must make no driver call, and
// what happens when the device breaks.

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/gpu/conformance.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

using kvcast::testing::Backend;
using kvcast::testing::Conformance;
using kvcast::testing::OwnedManager;

Backend HostBackend() {
  Backend backend;
  backend.pump = [](kvc_manager* manager) {
    uint64_t executed = 0;
    kvc_host_advance(manager, 0, 5, &executed, nullptr);
  };
  backend.read = [](uint64_t address, uint64_t count) {
    const auto* at = reinterpret_cast<const int32_t*>(address);
    return std::vector<int32_t>(at, at + count);
  };
  backend.write = [](uint64_t address, const std::vector<int32_t>& values) {
    std::memcpy(reinterpret_cast<void*>(address), values.data(), values.size() * sizeof(int32_t));
  };
  return backend;
}

// Reads device memory in a context of its own making, as an engine would.
std::vector<int32_t> ReadDevice(uint64_t address, uint64_t count) {
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  const ContextScope scope(context);
  KVCAST_CUDA(api, context_synchronize, );
  std::vector<int32_t> out(count);
  KVCAST_CUDA(api, copy_to_host, out.data(), address, count * sizeof(int32_t), nullptr);
  KVCAST_CUDA(api, stream_synchronize, nullptr);
  return out;
}

void WriteDevice(uint64_t address, const std::vector<int32_t>& values) {
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  const ContextScope scope(context);
  KVCAST_CUDA(api, copy_to_device, address, values.data(), values.size() * sizeof(int32_t),
              nullptr);
  KVCAST_CUDA(api, stream_synchronize, nullptr);
}

Backend CudaBackend() {
  Backend backend;
  backend.device = KVC_DEVICE_CUDA;
  backend.read = ReadDevice;
  backend.write = WriteDevice;
  return backend;
}

TEST(Conformance, HostDevice) {
  const Backend backend = HostBackend();
  EXPECT_EQ(Conformance(backend, TestSeed()).Run(), "");
}

class CudaManager : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  void TearDown() override {
    EXPECT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK) << error_.message;
    CudaTest::TearDown();
  }
  void Open(uint32_t flags = 0, uint64_t page_bytes = 4096) {
    kvc_config_init(&config_);
    config_.device = KVC_DEVICE_CUDA;
    config_.flags = flags;
    config_.capacity_blocks = 32;
    config_.page_bytes = page_bytes;
    config_.seed = 1;
    ASSERT_EQ(kvc_manager_create(&config_, nullptr, &manager_, &error_), KVC_OK) << error_.message;
  }
  // A sequence with one full block, on a stream.
  uint64_t Sequence(uint64_t stream, uint32_t first) {
    std::vector<uint32_t> tokens(16);
    for (uint32_t i = 0; i < 16; ++i) tokens[i] = first + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    EXPECT_EQ(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), 16, nullptr, 0, nullptr, 0,
                                   &made, &error_),
              KVC_OK);
    EXPECT_EQ(made.status, KVC_OK);
    kvc_grow_item grow{};
    grow.sequence = made.sequence;
    grow.capacity_tokens = 16;
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    EXPECT_EQ(grown.status, KVC_OK);
    kvc_commit_item commit{};
    commit.sequence = made.sequence;
    commit.token_count = 16;
    kvc_commit_result committed{};
    EXPECT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens.data(), 16, nullptr, 0, &committed,
                                   &error_),
              KVC_OK);
    return made.sequence;
  }
  kvc_status Release(uint64_t sequence) {
    kvc_status result = KVC_OK;
    const kvc_status status = kvc_sequences_release(manager_, 1, &sequence, &result, &error_);
    return status != KVC_OK ? status : result;
  }

  kvc_error error_{};
  kvc_config config_{};
  kvc_manager* manager_ = nullptr;
};

TEST_F(CudaManager, Conforms) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 4; ++seed) {
    options_.seed = seed;
    Restart();
    Backend backend = CudaBackend();
    if (seed % 2 == 0) backend.page_bytes = 4100;  // no multiple of 16
    // Nothing waits for a whole device, not even a manager that ends: the test does, when it reads.
    uint64_t reads = 0;
    backend.read = [&reads](uint64_t address, uint64_t count) {
      ++reads;
      return ReadDevice(address, count);
    };
    EXPECT_EQ(Conformance(backend, seed).Run(), "") << "seed " << seed;
    EXPECT_GT(reads, 0u);
    EXPECT_EQ(fakecuda_calls("cuCtxSynchronize"), reads);
  }
}

TEST_F(CudaManager, ConformsWhenTheDriversQueueIsShort) {
  options_.queue_depth = 3;
  Restart();
  const Backend backend = CudaBackend();
  EXPECT_EQ(Conformance(backend, TestSeed()).Run(), "");
  EXPECT_GT(fakecuda_blocked(), 0u);
}

// After each call the caller has the context that they had, and nothing more.
TEST_F(CudaManager, LeavesTheCallersContextCurrent) {
  void* const theirs = fakecuda_context_create(0);
  void* const other = fakecuda_context_create(0);
  for (const uint32_t flags : {0u, uint32_t{KVC_CONFIG_CALLERS_CONTEXT}}) {
    fakecuda_context_push(other);
    fakecuda_context_push(theirs);
    Backend backend = CudaBackend();
    backend.flags = flags;
    backend.read = [&](uint64_t address, uint64_t count) {
      const DriverApi& api = OpenDriver();
      // The memory is of whichever context the manager works in.
      if (flags == 0) return ReadDevice(address, count);
      KVCAST_CUDA(api, context_synchronize, );
      std::vector<int32_t> out(count);
      KVCAST_CUDA(api, copy_to_host, out.data(), address, count * sizeof(int32_t), nullptr);
      KVCAST_CUDA(api, stream_synchronize, nullptr);
      return out;
    };
    backend.after_call = [&]() -> std::string {
      return fakecuda_context_current() == theirs && fakecuda_context_depth() == 2
                 ? ""
                 : "the caller's context has changed";
    };
    EXPECT_EQ(Conformance(backend, TestSeed()).Run(), "") << "flags " << flags;
    EXPECT_EQ(fakecuda_context_pop(), theirs);
    EXPECT_EQ(fakecuda_context_pop(), other);
  }
  fakecuda_context_destroy(theirs);
  fakecuda_context_destroy(other);
}

TEST_F(CudaManager, KeepingTheBooksMakesNoDriverCall) {
  Open();
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK);
  fakecuda_clear_log();
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(Release(Sequence(0, 100)), KVC_OK);
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
    EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK);
    EXPECT_EQ(kvc_manager_reset(manager_, &error_), KVC_OK);
  }
  EXPECT_EQ(fakecuda_calls(nullptr), 0u);
  EXPECT_EQ(Release(Sequence(stream, 100)), KVC_OK);
  EXPECT_GT(fakecuda_calls("cuEventRecord"), 0u) << "a fence is the device's";
  for (const char* wait : {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"}) {
    EXPECT_EQ(fakecuda_calls(wait), 0u) << wait;
  }
}

TEST_F(CudaManager, WorksOnTheCallersStream) {
  void* const theirs = fakecuda_context_create(0);
  void* const cuda_stream = fakecuda_stream_create(theirs, 0);
  fakecuda_context_push(theirs);
  Open(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t stream = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager_, cuda_stream, &stream, &error_), KVC_OK)
      << error_.message;
  void* told = nullptr;
  EXPECT_EQ(kvc_cuda_stream_get(manager_, stream, &told, &error_), KVC_OK);
  EXPECT_EQ(told, cuda_stream);
  EXPECT_EQ(Release(Sequence(stream, 7)), KVC_OK);
  fakecuda_stream_capture(cuda_stream, 1);
  uint64_t again = 0;
  EXPECT_EQ(kvc_cuda_stream_adopt(manager_, cuda_stream, &again, &error_), KVC_BAD_STATE);
  fakecuda_stream_capture(cuda_stream, 0);
  void* const gone = fakecuda_stream_create(theirs, 0);
  fakecuda_stream_destroy(gone);
  EXPECT_EQ(kvc_cuda_stream_adopt(manager_, gone, &again, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error_.message, "no such CUDA stream"), nullptr) << error_.message;
  EXPECT_EQ(kvc_device_stream_destroy(manager_, stream, &error_), KVC_OK);
  EXPECT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
  manager_ = nullptr;
  EXPECT_EQ(fakecuda_context_pop(), theirs);
  fakecuda_context_destroy(theirs);
}

// All calls that would record a fence on a stream that is being captured, or queue
// work there, are refused with nothing changed, and are accepted when it has ended. The
// capture itself is not disturbed, whoever makes it in whatever mode.
TEST_F(CudaManager, AStreamThatIsCapturedTakesNoWork) {
  for (int mode = kCaptureGlobal; mode <= kCaptureRelaxed; ++mode) {
    SCOPED_TRACE("capture mode " + std::to_string(mode));
    Restart();
    config_.flags = 0;
    Open(0, 64);
    uint64_t stream = 0;
    uint64_t other = 0;
    ASSERT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK);
    ASSERT_EQ(kvc_device_stream_create(manager_, &other, &error_), KVC_OK);
    void* cuda_stream = nullptr;
    ASSERT_EQ(kvc_cuda_stream_get(manager_, stream, &cuda_stream, &error_), KVC_OK);
    uint64_t table = 0;
    uint64_t address = 0;
    ASSERT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
    // Sequences to suspend, to truncate, to fork, to commit to, to end, and so on.
    uint64_t ids[8];
    for (uint32_t i = 0; i < 8; ++i) ids[i] = Sequence(stream, 100 + i);
    // One with a tail that a fork shares: its next grow copies.
    const kvc_grow_item room{ids[0], 32};
    kvc_grow_result grown{};
    ASSERT_EQ(kvc_sequences_grow(manager_, 1, &room, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    const std::vector<uint32_t> five(5, 7);
    kvc_commit_item commit{};
    commit.sequence = ids[0];
    commit.token_count = five.size();
    kvc_commit_result committed{};
    ASSERT_EQ(kvc_sequences_commit(manager_, 1, &commit, five.data(), five.size(), nullptr, 0,
                                   &committed, &error_),
              KVC_OK);
    kvc_fork_item fork{ids[0], stream};
    kvc_fork_result forked{};
    ASSERT_EQ(kvc_sequences_fork(manager_, 1, &fork, &forked, &error_), KVC_OK);
    ASSERT_EQ(forked.status, KVC_OK);
    const kvc_grow_item more{ids[1], 32};
    ASSERT_EQ(kvc_sequences_grow(manager_, 1, &more, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    const kvc_hold_item hold{ids[7], 1, 0};
    kvc_hold_result held{};
    ASSERT_EQ(kvc_sequences_release_held(manager_, 1, &hold, &held, &error_), KVC_OK);
    // A fence that is outstanding all the time, so that each call asks for it.
    fakecuda_gate(cuda_stream);
    const uint64_t waits_for = Sequence(stream, 200);
    const kvc_fence last{stream, 1};
    const kvc_fence never{other, 1};
    const uint64_t on_other = Sequence(other, 300);
    fakecuda_settle();

    const std::vector<uint32_t> whole(16, 9);
    commit.sequence = ids[1];
    commit.token_count = whole.size();
    const kvc_suspend_item suspend{ids[2], 0, 0};
    const kvc_truncate_item truncate{waits_for, 16};
    fork = {ids[3], other};
    const kvc_table_delta delta{0, 0, 1};
    const int32_t row[8] = {};
    kvc_op op{};
    op.kind = KVC_OP_RELEASE;
    op.args.sequence = ids[6];
    const kvc_grow_item wider{waits_for, 32};
    ASSERT_EQ(kvc_sequences_grow(manager_, 1, &wider, &grown, nullptr, 0, nullptr, &error_),
              KVC_OK);
    const kvc_grow_item copies{forked.sequence, 32};
    kvc_status result = KVC_OK;
    kvc_op_result stepped{};
    kvc_truncate_result truncated{};
    kvc_fork_result apart{};
    const struct {
      const char* name;
      std::function<kvc_status()> call;
    } kCalls[] = {
        {"wait", [&] { return kvc_device_stream_wait(manager_, stream, 1, &never, &error_); }},
        {"update",
         [&] { return kvc_device_table_update(manager_, table, stream, 1, &delta, &error_); }},
        {"write",
         [&] { return kvc_device_table_write(manager_, table, stream, 0, 1, 8, row, &error_); }},
        {"commit",
         [&] {
           kvc_sequences_commit(manager_, 1, &commit, whole.data(), whole.size(), nullptr, 0,
                                &committed, &error_);
           return committed.status;
         }},
        {"copy",
         [&] {
           kvc_sequences_grow(manager_, 1, &copies, &grown, nullptr, 0, nullptr, &error_);
           return grown.status;
         }},
        {"fork",
         [&] {
           kvc_sequences_fork(manager_, 1, &fork, &apart, &error_);
           return apart.status;
         }},
        {"truncate",
         [&] {
           kvc_sequences_truncate(manager_, 1, &truncate, &truncated, &error_);
           return truncated.status;
         }},
        {"suspend",
         [&] {
           kvc_sequences_suspend(manager_, 1, &suspend, &result, &error_);
           return result;
         }},
        {"release",
         [&] {
           kvc_sequences_release(manager_, 1, &ids[4], &result, &error_);
           return result;
         }},
        {"cancel",
         [&] {
           kvc_sequences_cancel(manager_, 1, &ids[5], &result, &error_);
           return result;
         }},
        {"end",
         [&] {
           kvc_sequences_end(manager_, 1, &ids[3], &result, &error_);
           return result;
         }},
        {"hold",
         [&] {
           kvc_holds_release(manager_, 1, &held.hold, &result, &error_);
           return result;
         }},
        {"step",
         [&] {
           kvc_step(manager_, 1, &op, nullptr, &stepped, nullptr, &error_);
           return stepped.status;
         }},
    };
    fakecuda_capture_begin(cuda_stream, mode);
    const auto stats = [&] {
      kvc_stats now;
      kvc_stats_init(&now);
      EXPECT_EQ(kvc_manager_stats_get(manager_, &now, &error_), KVC_OK);
      return std::vector<uint64_t>{now.free_pages,        now.live_pages, now.cached_pages,
                                   now.quarantined_pages, now.sequences,  now.stored_blocks};
    };
    const std::vector<uint64_t> before = stats();
    for (const auto& it : kCalls) {
      EXPECT_EQ(it.call(), KVC_BAD_STATE) << it.name;
      EXPECT_NE(std::strstr(error_.message, "captured"), nullptr) << error_.message;
      EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << it.name << ": " << error_.message;
    }
    EXPECT_EQ(stats(), before);
    // What does not touch the stream goes on.
    EXPECT_EQ(Release(on_other), KVC_OK);
    EXPECT_EQ(Release(Sequence(0, 400)), KVC_OK);
    uint64_t third = 0;
    EXPECT_EQ(kvc_device_stream_create(manager_, &third, &error_), KVC_OK);
    EXPECT_EQ(fakecuda_capture_end(cuda_stream), 0) << "nothing of ours is in the graph";
    for (const auto& it : kCalls) EXPECT_EQ(it.call(), KVC_OK) << it.name << ": " << error_.message;
    fakecuda_open_gate(cuda_stream);
    for (const uint64_t id : {ids[0], ids[1], ids[2], waits_for, forked.sequence, apart.sequence}) {
      EXPECT_EQ(Release(id), KVC_OK);
    }
    uint8_t done = 0;
    while (done == 0) {
      ASSERT_EQ(kvc_device_fences_query(manager_, 1, &last, &done, &error_), KVC_OK);
      std::this_thread::yield();
    }
    kvc_status closed = KVC_BUSY;
    while (closed == KVC_BUSY) {
      closed = kvc_device_table_destroy(manager_, table, &error_);
      std::this_thread::yield();
    }
    EXPECT_EQ(closed, KVC_OK);
    EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message;
    EXPECT_EQ(kvc_manager_destroy(manager_, &error_), KVC_OK);
    manager_ = nullptr;
  }
}

// The copy of a fork of steps is held back until the step is done, and is not on the device
// meanwhile: no stream may be let go on as if it were.
TEST_F(CudaManager, AStreamDoesNotGoOnBeforeACopyThatWaitsForAStep) {
  Open();
  uint64_t steps = 0;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_step_stream_create(manager_, &steps, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK);
  ASSERT_EQ(kvc_step_begin(manager_, steps, 1, &error_), KVC_OK);
  const uint64_t first = Sequence(steps, 100);
  const auto grow = [&](uint64_t sequence, uint64_t tokens) {
    const kvc_grow_item item{sequence, tokens};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager_, 1, &item, &grown, nullptr, 0, nullptr, &error_), KVC_OK);
    return grown;
  };
  const auto fork = [&](uint64_t sequence, uint64_t on) {
    const kvc_fork_item item{sequence, on};
    kvc_fork_result forked{};
    EXPECT_EQ(kvc_sequences_fork(manager_, 1, &item, &forked, &error_), KVC_OK);
    EXPECT_EQ(forked.status, KVC_OK);
    return forked;
  };
  EXPECT_EQ(grow(first, 32).status, KVC_OK);
  kvc_commit_item commit{};
  commit.sequence = first;
  commit.token_count = 5;
  const uint32_t tokens[5] = {1, 2, 3, 4, 5};
  kvc_commit_result committed{};
  ASSERT_EQ(kvc_sequences_commit(manager_, 1, &commit, tokens, 5, nullptr, 0, &committed, &error_),
            KVC_OK);
  const kvc_fork_result second = fork(first, steps);
  const kvc_grow_result copy = grow(second.sequence, 32);
  EXPECT_EQ(copy.status, KVC_OK);
  ASSERT_EQ(copy.copied_block, 1u);
  ASSERT_EQ(copy.wait_count, 1u);
  kvc_device_memory memory{};
  ASSERT_EQ(kvc_device_memory_get(manager_, &memory, &error_), KVC_OK);
  const std::vector<int32_t> bytes(1024, 0x5A5A5A5A);
  WriteDevice(memory.base + copy.copied_from * memory.page_bytes, bytes);
  // The third is on a stream, and would read what has not been copied yet.
  const kvc_fork_result third = fork(second.sequence, stream);
  ASSERT_GT(third.wait_count, 0u);
  EXPECT_EQ(kvc_device_stream_wait(manager_, stream, third.wait_count, third.waits, &error_),
            KVC_NOT_NOW);
  EXPECT_EQ(kvc_device_stream_wait(manager_, stream, 1, &copy.wait, &error_), KVC_NOT_NOW);
  EXPECT_EQ(grow(third.sequence, 32).status, KVC_NOT_NOW) << "a copy of the copy";
  EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK) << error_.message;
  ASSERT_EQ(kvc_step_done(manager_, steps, 1, &error_), KVC_OK);
  EXPECT_EQ(kvc_device_stream_wait(manager_, stream, third.wait_count, third.waits, &error_),
            KVC_OK);
  const kvc_grow_result again = grow(third.sequence, 32);
  EXPECT_EQ(again.status, KVC_OK);
  EXPECT_EQ(again.copied_from, copy.copied_to);
  EXPECT_EQ(ReadDevice(memory.base + again.copied_to * memory.page_bytes, bytes.size()), bytes);
  for (const uint64_t id : {first, second.sequence, third.sequence}) {
    EXPECT_EQ(Release(id), KVC_OK);
  }
}

// Somebody else's capture, in another manager's stream or none of ours: a query of one of
// our events must neither be refused nor spoil it.
TEST_F(CudaManager, CapturesOfOthersAreLeftAlone) {
  Open();
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK);
  const DriverApi& api = OpenDriver();
  const DeviceContext context(api, 0);
  void* const theirs = fakecuda_stream_create(context.handle(), 0);
  int mode = kCaptureGlobal;
  std::thread([&] { fakecuda_capture_begin(theirs, kCaptureGlobal); }).join();
  EXPECT_EQ(Release(Sequence(stream, 7)), KVC_OK);
  const kvc_fence fence{stream, 1};
  uint8_t done = 0;
  while (done == 0 && error_.status == KVC_OK) {
    ASSERT_EQ(kvc_device_fences_query(manager_, 1, &fence, &done, &error_), KVC_OK);
    std::this_thread::yield();
  }
  uint64_t table = 0;
  uint64_t address = 0;
  EXPECT_EQ(kvc_device_table_create(manager_, 2, 8, -1, 64, &table, &address, &error_), KVC_OK)
      << error_.message;
  EXPECT_EQ(kvc_device_table_destroy(manager_, table, &error_), KVC_OK);
  EXPECT_EQ(fakecuda_capture_end(theirs), 0) << "the capture was spoilt";
  // The thread has the mode that it had.
  EXPECT_EQ(api.capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, kCaptureGlobal);
  mode = kCaptureGlobal;
  EXPECT_EQ(api.capture_mode(&mode), kSuccess);
  const ContextScope scope(context);
  EXPECT_EQ(api.stream_destroy(static_cast<StreamHandle>(theirs)), kSuccess);
}

TEST_F(CudaManager, ABrokenDeviceIsAnErrorThatStaysAndCanBeCleanedUp) {
  Open();
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager_, &stream, &error_), KVC_OK);
  const uint64_t sequence = Sequence(stream, 7);
  fakecuda_break(0, kErrorIllegalAddress);
  // It is noticed when the driver is next asked: the release of a sequence asks.
  EXPECT_EQ(Release(sequence), KVC_OK);
  for (int i = 0; i < 3; ++i) {
    uint64_t another = 0;
    EXPECT_EQ(kvc_device_stream_create(manager_, &another, &error_), KVC_DEVICE_ERROR);
    EXPECT_EQ(error_.system_code, kErrorIllegalAddress);
    EXPECT_NE(std::strstr(error_.message, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"), nullptr)
        << error_.message;
  }
  kvc_stats stats;
  kvc_stats_init(&stats);
  EXPECT_EQ(kvc_manager_stats_get(manager_, &stats, &error_), KVC_OK);
  EXPECT_EQ(kvc_manager_check(manager_, &error_), KVC_OK);
}

TEST_F(CudaManager, WhatCannotBeIsRefused) {
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.capacity_blocks = 32;
  OwnedManager manager;
  config.device_ordinal = 1;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
  config.device_ordinal = 0;
  config.flags = KVC_CONFIG_POISON;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
  config.flags = KVC_CONFIG_CALLERS_CONTEXT;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT)
      << "no context is current";
  config.flags = 0;
  config.page_bytes = uint64_t{1} << 30;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OUT_OF_MEMORY);
  Open();
  uint64_t executed = 0;
  EXPECT_EQ(kvc_host_advance(manager_, 0, 1, &executed, &error_), KVC_INVALID_ARGUMENT);
  uint8_t byte = 0;
  EXPECT_EQ(kvc_host_read(manager_, 0, 0, 1, &byte, &error_), KVC_INVALID_ARGUMENT);
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_device_table_create(manager_, 1, 8, -1, 8, &table, &address, &error_), KVC_OK);
  const kvc_table_delta delta{0, 0, 1};
  EXPECT_EQ(kvc_device_table_update(manager_, table, 0, 1, &delta, &error_), KVC_INVALID_ARGUMENT)
      << "the host has no order with kernels";
  EXPECT_EQ(kvc_device_table_destroy(manager_, table, &error_), KVC_OK);
}

TEST_F(CudaManager, TellsOfTheDeviceAndItsBudget) {
  kvc_cuda_device device{};
  ASSERT_EQ(kvc_cuda_device_get(0, &device, &error_), KVC_OK);
  EXPECT_STREQ(device.name, "fake CUDA device");
  EXPECT_EQ(device.total_bytes, options_.memory_bytes);
  EXPECT_EQ(device.capability, 90u);
  EXPECT_EQ(device.virtual_memory, 1u);
  EXPECT_EQ(kvc_cuda_device_get(1, &device, &error_), KVC_INVALID_ARGUMENT);
  uint64_t pages = 0;
  EXPECT_EQ(kvc_cuda_budget(0, 1 << 20, 0, 0.5, &pages, &error_), KVC_OK);
  EXPECT_EQ(pages, (options_.memory_bytes >> 20) / 2);
  EXPECT_EQ(kvc_cuda_budget(0, 1 << 20, 7 << 20, 0, &pages, &error_), KVC_OK);
  EXPECT_EQ(pages, 7u);
  EXPECT_EQ(kvc_cuda_budget(0, 1 << 20, 1, 0, &pages, &error_), KVC_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvcast::cuda
