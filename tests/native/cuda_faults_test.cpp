// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's whole life on a CUDA device, over and over, and each time the next call of
// the driver fails, or the device is lost there. Whatever happens, the manager's books
// are right, everything can be given back, and nothing is left behind.

#include <atomic>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

// Sanitizers are slow, and find what they can in some of the places.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStride = 7;
#else
constexpr uint64_t kStride = 1;
#endif

class CudaFaults : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  kvc_manager* Create(uint32_t flags = 0) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.flags = flags;
    config.capacity_blocks = 16;
    config.page_bytes = 1000;  // no multiple of 16
    config.seed = 1;
    config.copies = KVC_COPY_PUBLISHED;  // a calibration makes as many calls as it has time for
    testing::OwnedManager manager;
    status_ = kvc_manager_create(&config, nullptr, manager.out(), &error_);
    return manager.Take();
  }
  kvc_status Sequence(kvc_manager* manager, uint64_t stream, uint32_t first, uint64_t* id) {
    std::vector<uint32_t> tokens(21);  // a block and a tail
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    kvc_status status = kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(),
                                             nullptr, 0, nullptr, 0, &made, &error_);
    if (status != KVC_OK || made.status != KVC_OK) return status != KVC_OK ? status : made.status;
    *id = made.sequence;
    if (const kvc_status grown = Grow(manager, *id, 32); grown != KVC_OK) return grown;
    kvc_commit_item commit{};
    commit.sequence = *id;
    commit.token_count = tokens.size();
    kvc_commit_result committed{};
    status = kvc_sequences_commit(manager, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                  &committed, &error_);
    return status != KVC_OK ? status : committed.status;
  }
  kvc_status Grow(kvc_manager* manager, uint64_t id, uint64_t tokens) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result grown{};
    const kvc_status status =
        kvc_sequences_grow(manager, 1, &item, &grown, nullptr, 0, nullptr, &error_);
    return status != KVC_OK ? status : grown.status;
  }
  // Everything a manager does with a device. Stops where something fails.
  kvc_status Live(kvc_manager* manager, void* callers, std::vector<uint64_t>* open) {
    uint64_t streams[2] = {};
    uint64_t steps = 0;
    uint64_t table = 0;
    uint64_t address = 0;
    const std::vector<kvc_table_delta> deltas = {{0, 0, 1}, {1, 3, 2}, {0, 0, 3}};
    const std::vector<int32_t> row(8, 5);
    const std::function<kvc_status()> calls[] = {
        [&] { return kvc_device_stream_create(manager, &streams[0], &error_); },
        [&] { return kvc_cuda_stream_adopt(manager, callers, &streams[1], &error_); },
        [&] { return kvc_step_stream_create(manager, &steps, &error_); },
        [&] { return kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_); },
        [&] { return kvc_step_begin(manager, steps, 1, &error_); },
        [&] { return Open(manager, streams[0], 100, open); },
        [&] { return Open(manager, streams[1], 200, open); },
        [&] { return Open(manager, steps, 300, open); },
        [&] { return Open(manager, 0, 400, open); },
        // Each is forked onto its own stream and the fork copies the tail.
        [&] {
          return ForkEach(manager, {streams[0], streams[1], steps, 0}, open);
        },
        [&] {
          return kvc_device_table_update(manager, table, streams[0],
                                         static_cast<uint32_t>(deltas.size()), deltas.data(),
                                         &error_);
        },
        [&] {
          return kvc_device_table_write(manager, table, streams[1], 0, 1, 8, row.data(), &error_);
        },
        [&] { return kvc_step_done(manager, steps, 1, &error_); },
        // Settled, so that each run makes the same calls.
        [&] {
          fakecuda_settle();
          return kvc_device_table_destroy(manager, table, &error_);
        },
    };
    for (const auto& call : calls) {
      if (const kvc_status status = call(); status != KVC_OK) return status;
      fakecuda_settle();
    }
    return KVC_OK;
  }
  kvc_status Open(kvc_manager* manager, uint64_t stream, uint32_t first,
                  std::vector<uint64_t>* open) {
    uint64_t id = 0;
    const kvc_status status = Sequence(manager, stream, first, &id);
    if (id != 0) open->push_back(id);
    return status;
  }
  kvc_status ForkEach(kvc_manager* manager, const std::vector<uint64_t>& streams,
                      std::vector<uint64_t>* open) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const kvc_fork_item item{(*open)[i], streams[i]};
      kvc_fork_result forked{};
      const kvc_status status = kvc_sequences_fork(manager, 1, &item, &forked, &error_);
      if (status != KVC_OK || forked.status != KVC_OK) {
        return status != KVC_OK ? status : forked.status;
      }
      open->push_back(forked.sequence);
      if (const kvc_status grown = Grow(manager, forked.sequence, 40); grown != KVC_OK) {
        return grown;
      }
    }
    return KVC_OK;
  }
  // What is left of a manager must be in order, and go.
  void End(kvc_manager* manager, const std::vector<uint64_t>& open) {
    if (manager == nullptr) return;
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    for (const uint64_t id : open) {
      kvc_status status = KVC_INTERNAL;
      EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    }
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    EXPECT_EQ(kvc_manager_destroy(manager, &error_), KVC_OK) << error_.message;
  }
  // Once without a failure, then with one at each call.
  void EachCall(int code, bool loss) {
    uint64_t struck = 0;
    bool more = true;
    for (uint64_t n = 1; more; n += kStride) {
      SCOPED_TRACE("call " + std::to_string(n) + ", code " + std::to_string(code));
      Restart();
      void* const theirs = fakecuda_context_create(0);
      fakecuda_context_push(theirs);
      void* const callers = fakecuda_stream_create(theirs, 0);
      std::vector<uint64_t> open;
      if (loss) {
        fakecuda_inject_loss(n, code);
      } else {
        fakecuda_inject(nullptr, n, code);
      }
      kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
      EXPECT_EQ(manager != nullptr, status_ == KVC_OK);
      kvc_status status = status_;
      if (manager != nullptr) status = Live(manager, callers, &open);
      const std::string call = fakecuda_injected_call();
      const bool stays = call == "cuCtxPopCurrent";
      // A context that was not popped stays: the driver's failure, which nobody can mend.
      const int depth = fakecuda_context_depth();
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      EXPECT_TRUE(stays || depth == 1) << call << " left " << depth;
      End(manager, open);
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      more = fakecuda_injected() != 0;
      const std::string struck_call = fakecuda_injected_call();
      fakecuda_inject(nullptr, 0, 0);
      if (more) {
        struck += status != KVC_OK ? 1 : 0;
        EXPECT_TRUE(status == KVC_OK || status == KVC_DEVICE_ERROR || status == KVC_OUT_OF_MEMORY ||
                    status == KVC_INVALID_ARGUMENT)
            << status << ": " << error_.message;
      } else {
        EXPECT_EQ(status, KVC_OK) << error_.message;
      }
      // What a failing call of the driver itself kept is out of our hands, and with a
      // context that cannot be made current nothing can be given back.
      static const std::set<std::string> kGiveBack = {
          "cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamDestroy", "cuEventDestroy",
          "cuMemFree",        "cuMemFreeHost",   "cuModuleUnload"};
      const fakecuda_live live = fakecuda_live_objects();
      const bool kept = kGiveBack.count(struck_call) != 0;
      if (!kept) {
        EXPECT_EQ(live.streams, 1u) << struck_call;
        EXPECT_EQ(live.events, 0u) << struck_call;
        EXPECT_EQ(live.modules, 0u) << struck_call;
      }
      if (!kept && !loss) {  // a broken context keeps its memory until it goes
        EXPECT_EQ(live.allocations, 0u) << struck_call;
        EXPECT_EQ(live.pinned, 0u) << struck_call;
      }
      EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
      (void)fakecuda_context_pop();
      fakecuda_context_destroy(theirs);
      ASSERT_LT(n, 2000u);
    }
    std::printf("code %d%s: %llu failures told\n", code, loss ? ", lost" : "",
                static_cast<unsigned long long>(struck));
    EXPECT_GT(struck, 100 / kStride);
    Restart();
  }

  kvc_error error_{};
  kvc_status status_ = KVC_OK;
};

TEST_F(CudaFaults, AFailureOfEachCall) { EachCall(kErrorUnknown, false); }
TEST_F(CudaFaults, NoMemoryAtEachCall) { EachCall(kErrorOutOfMemory, false); }
TEST_F(CudaFaults, TheDeviceIsLostAtEachCall) { EachCall(kErrorIllegalAddress, true); }

// A manager that met a failure is of no more use; what else there is on the device is.
TEST_F(CudaFaults, OneManagersFailureIsNotTheOthers) {
  kvc_manager* const first = Create();
  kvc_manager* const second = Create();
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_device_stream_create(first, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(second, &streams[1], &error_), KVC_OK);
  uint64_t ids[2] = {};
  fakecuda_inject("cuEventCreate", 1, kErrorOutOfMemory);
  EXPECT_EQ(Sequence(first, streams[0], 100, &ids[0]), KVC_OK) << "noticed at its end";
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR) << "not something to try again";
  EXPECT_EQ(error_.system_code, kErrorOutOfMemory);
  EXPECT_EQ(Sequence(second, streams[1], 100, &ids[1]), KVC_OK);
  EXPECT_EQ(Grow(second, ids[1], 48), KVC_OK);
  // The device itself breaks: each is told by itself.
  fakecuda_settle();
  fakecuda_break(0, kErrorLaunchFailed);
  uint64_t more = 0;
  EXPECT_EQ(kvc_device_stream_create(second, &more, &error_), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorLaunchFailed);
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorOutOfMemory) << "the first error is what it was";
  End(first, {ids[0]});
  End(second, {ids[1]});
}

// A manager may go while its copies and uploads are under way: it waits for them.
TEST_F(CudaFaults, AManagerGoesAfterWhatIsUnderWay) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  ASSERT_NE(manager, nullptr);
  uint64_t stream = 0;
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &stream, &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_gate(callers);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, stream, 100, &open), KVC_OK);
  ASSERT_EQ(ForkEach(manager, {stream}, &open), KVC_OK);
  const kvc_table_delta delta{0, 0, 1};
  ASSERT_EQ(kvc_device_table_update(manager, table, stream, 1, &delta, &error_), KVC_OK);
  for (const uint64_t id : open) {
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
  }
  std::atomic<bool> gone{false};
  std::thread destroyer([&] {
    EXPECT_EQ(kvc_manager_destroy(manager, nullptr), KVC_OK);
    gone.store(true);
  });
  while (fakecuda_calls("cuEventSynchronize") + fakecuda_calls("cuMemFree") == 0) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(gone.load()) << "it went while the device used its memory";
  fakecuda_open_gate(callers);
  destroyer.join();
  EXPECT_EQ(fakecuda_violations(), 0u) << fakecuda_first_violation();
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
