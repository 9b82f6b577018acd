// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A manager's whole life on a CUDA device with a stream attached, over and over, and each
// time the next call of the driver fails, or the device is lost there. Whatever happens,
// the manager's books are right, what a subscriber has been told is what there is,
// everything can be given back, and nothing is left behind. What fails for a reason that
// passes succeeds when the caller tries again; only a lost device is lost for good.

#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/cuda_told.h"
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
  kvc_manager* Create(uint32_t flags = 0, kvc_stream* stream = nullptr, uint32_t partial = 0) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.flags = flags;
    config.partial_reuse = partial;
    config.capacity_blocks = 16;
    config.page_bytes = 1000;  // no multiple of 16
    config.seed = 1;
    config.copies = KVC_COPY_PUBLISHED;  // a calibration makes as many calls as it has time for
    testing::OwnedManager manager;
    status_ = Again([&] { return kvc_manager_create(&config, stream, manager.out(), &error_); });
    return manager.Take();
  }
  // Makes a call. When it fails and the device is not lost the same call must succeed now.
  template <typename Call>
  kvc_status Again(Call&& call) {
    kvc_status status = call();
    if (status == KVC_OK) return status;
    ++told_;
    EXPECT_TRUE(status == KVC_DEVICE_ERROR || status == KVC_OUT_OF_MEMORY ||
                status == KVC_INVALID_ARGUMENT)
        << status << ": " << error_.message;
    if (!again_) return status;
    const std::string first = error_.message;
    status = call();
    EXPECT_EQ(status, KVC_OK) << error_.message << ", after " << first;
    return status;
  }
  kvc_status Sequence(kvc_manager* manager, uint64_t stream, uint32_t first, uint64_t* id) {
    std::vector<uint32_t> tokens(21);  // a block and a tail
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    kvc_status status = Again([&] {
      const kvc_status whole =
          kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                               nullptr, 0, &made, &error_);
      return whole != KVC_OK ? whole : made.status;
    });
    if (status != KVC_OK) return status;
    *id = made.sequence;
    if (const kvc_status grown = Grow(manager, *id, 32); grown != KVC_OK) return grown;
    kvc_commit_item commit{};
    commit.sequence = *id;
    commit.token_count = tokens.size();
    kvc_commit_result committed{};
    return Again([&] {
      status = kvc_sequences_commit(manager, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                    &committed, &error_);
      return status != KVC_OK ? status : committed.status;
    });
  }
  kvc_status Grow(kvc_manager* manager, uint64_t id, uint64_t tokens) {
    const kvc_grow_item item{id, tokens};
    kvc_grow_result grown{};
    return Again([&] {
      const kvc_status status =
          kvc_sequences_grow(manager, 1, &item, &grown, nullptr, 0, nullptr, &error_);
      return status != KVC_OK ? status : grown.status;
    });
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
        [&] {
          return kvc_device_table_update(manager, table, streams[0],
                                         static_cast<uint32_t>(deltas.size()), deltas.data(),
                                         &error_);
        },
        [&] {
          return kvc_device_table_write(manager, table, streams[1], 0, 1, 8, row.data(), &error_);
        },
        [&] { return kvc_step_done(manager, steps, 1, &error_); },
        [&] { return kvc_device_table_destroy(manager, table, &error_); },
    };
    const auto make = [&](size_t from, size_t to) -> kvc_status {
      for (size_t i = from; i < to; ++i) {
        if (const kvc_status status = Again(calls[i]); status != KVC_OK) return status;
        fakecuda_settle();  // so that each run makes the same calls
      }
      return KVC_OK;
    };
    if (const kvc_status status = make(0, 5); status != KVC_OK) return status;
    const uint64_t on[] = {streams[0], streams[1], steps, 0};
    for (uint32_t i = 0; i < std::size(on); ++i) {
      const kvc_status status = Open(manager, on[i], 100 * (i + 1), open);
      if (status != KVC_OK) return status;
      fakecuda_settle();
    }
    // Each is forked onto its own stream and the fork copies the tail.
    const kvc_status forked = ForkEach(manager, {on[0], on[1], on[2], on[3]}, open);
    if (forked != KVC_OK) return forked;
    fakecuda_settle();
    return make(5, std::size(calls));
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
      const kvc_status status = Again([&] {
        const kvc_status whole = kvc_sequences_fork(manager, 1, &item, &forked, &error_);
        return whole != KVC_OK ? whole : forked.status;
      });
      if (status != KVC_OK) return status;
      open->push_back(forked.sequence);
      if (const kvc_status grown = Grow(manager, forked.sequence, 40); grown != KVC_OK) {
        return grown;
      }
    }
    return KVC_OK;
  }
  // What is left of a manager must be in order, and go.
  void End(kvc_manager* manager, const std::vector<uint64_t>& open, Told* told = nullptr) {
    if (manager == nullptr) return;
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    for (const uint64_t id : open) {
      kvc_status status = KVC_INTERNAL;
      EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    }
    EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
    if (told != nullptr) {
      EXPECT_EQ(told->Wrong(manager), "");
    }
    EXPECT_EQ(kvc_manager_destroy(manager, &error_), KVC_OK) << error_.message;
  }
  // With a failure at each call, or with `times` of them from each call of a name on, and
  // once without.
  void EachCall(int code, bool loss, const char* call = nullptr, uint64_t times = 1) {
    uint64_t struck = 0;
    bool more = true;
    again_ = !loss;
    told_ = 0;
    const uint64_t stride = call == nullptr ? kStride : 1;
    for (uint64_t n = 1; more; n += stride) {
      SCOPED_TRACE("call " + std::to_string(n) + ", code " + std::to_string(code));
      Restart();
      void* const theirs = fakecuda_context_create(0);
      fakecuda_context_push(theirs);
      void* const callers = fakecuda_stream_create(theirs, 0);
      Told told;
      std::vector<uint64_t> open;
      if (loss) {
        fakecuda_inject_loss(n, code);
      } else {
        fakecuda_inject_many(call, n, times, code);
      }
      kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT, told.stream());
      EXPECT_EQ(manager != nullptr, status_ == KVC_OK);
      kvc_status status = status_;
      if (manager != nullptr) status = Live(manager, callers, &open);
      const std::string struck_call = fakecuda_injected_call();
      more = fakecuda_injected() != 0;
      struck += more ? 1 : 0;
      // A context that was not popped stays: the driver's failure, which nobody can mend.
      const bool stays = loss && struck_call == "cuCtxPopCurrent";
      EXPECT_TRUE(stays || fakecuda_context_depth() == 1) << struck_call;
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      if (!loss) {
        EXPECT_EQ(status, KVC_OK) << struck_call << ": " << error_.message;
        EXPECT_EQ(told.Wrong(manager), "") << struck_call;
        EXPECT_EQ(told.blocks(), 4u) << struck_call;
      } else if (manager != nullptr) {
        EXPECT_EQ(told.Wrong(manager), "") << struck_call;
      }
      End(manager, open, &told);
      while (fakecuda_context_depth() > 1) fakecuda_context_pop();
      fakecuda_inject(nullptr, 0, 0);
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
    std::printf("code %d%s: %llu failures, %llu told\n", code, loss ? ", lost" : "",
                static_cast<unsigned long long>(struck), static_cast<unsigned long long>(told_));
    // How many events are needed at once depends on how fast the device is: one at least.
    EXPECT_GE(struck, call == nullptr ? 200 / stride : 1);
    if (call == nullptr) {
      EXPECT_GT(told_, 20 / kStride);
    }
    Restart();
  }
  void Ask(kvc_manager* manager) {
    EXPECT_EQ(kvc_device_fences_query(manager, 0, nullptr, nullptr, &error_), KVC_OK);
  }
  kvc_stats Stats(kvc_manager* manager) {
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager, &stats, &error_), KVC_OK);
    return stats;
  }

  kvc_error error_{};
  kvc_status status_ = KVC_OK;
  bool again_ = false;
  uint64_t told_ = 0;
};

TEST_F(CudaFaults, AFailureOfEachCall) { EachCall(kErrorUnknown, false); }
TEST_F(CudaFaults, NoMemoryAtEachCall) { EachCall(kErrorOutOfMemory, false); }
TEST_F(CudaFaults, TheDeviceIsLostAtEachCall) { EachCall(kErrorIllegalAddress, true); }

// Longer than it is tried at once: what has been noted is left for the next call.
TEST_F(CudaFaults, EachRecordIsRefusedThreeTimes) {
  for (const char* call : {"cuEventRecord", "cuEventCreate", "cuEventQuery"}) {
    SCOPED_TRACE(call);
    EachCall(kErrorOutOfMemory, false, call, 3);
  }
}

// Each call that records, or makes what is recorded, is refused for a while, longer than
// anybody tries at once. Nothing is given out before its time and nothing is lost.
TEST_F(CudaFaults, RecordsThatAreRefusedForAWhile) {
  for (const char* call : {"cuEventRecord", "cuEventCreate"}) {
    for (const int code : {kErrorOutOfMemory, kErrorNotSupported, kErrorInvalidHandle}) {
      SCOPED_TRACE(std::string(call) + ", code " + std::to_string(code));
      Told told;
      kvc_manager* const manager = Create(0, told.stream());
      uint64_t streams[2] = {};
      for (uint64_t& stream : streams) {
        ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
      }
      fakecuda_inject_many(call, 1, UINT64_MAX, code);
      uint64_t id = 0;
      ASSERT_EQ(Sequence(manager, streams[0], 100, &id), KVC_OK);
      kvc_status released = KVC_INTERNAL;
      ASSERT_EQ(kvc_sequences_release(manager, 1, &id, &released, &error_), KVC_OK);
      ASSERT_EQ(released, KVC_OK) << error_.message;
      for (int i = 0; i < 3; ++i) {
        fakecuda_settle();
        EXPECT_EQ(Stats(manager).quarantined_pages, 1u) << "the tail's, whose fence is not there";
        EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
      }
      EXPECT_EQ(told.Wrong(manager), "");
      // A match tells of the fence, which is not there for anybody to wait for.
      uint64_t second = 0;
      std::vector<uint32_t> tokens(21);
      for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = 100 + i;
      kvc_prompt prompt{};
      prompt.token_count = tokens.size();
      prompt.device_stream = streams[1];
      prompt.scope = KVC_NO_SCOPE;
      kvc_create_result made{};
      ASSERT_EQ(kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                     nullptr, 0, &made, &error_),
                KVC_OK);
      ASSERT_EQ(made.status, KVC_OK);
      second = made.sequence;
      EXPECT_EQ(made.matched_tokens, 16u);
      ASSERT_EQ(made.wait_count, 1u);
      uint8_t done = 1;
      EXPECT_EQ(kvc_device_fences_query(manager, 1, made.waits, &done, &error_), KVC_OK);
      EXPECT_EQ(done, 0);
      EXPECT_EQ(kvc_device_stream_wait(manager, streams[1], 1, made.waits, &error_), KVC_NOT_NOW)
          << error_.message;
      // The driver comes round: the next call hands over what was left.
      fakecuda_inject(nullptr, 0, 0);
      EXPECT_EQ(kvc_device_fences_query(manager, 1, made.waits, &done, &error_), KVC_OK);
      fakecuda_settle();
      EXPECT_EQ(kvc_device_fences_query(manager, 1, made.waits, &done, &error_), KVC_OK);
      EXPECT_EQ(done, 1);
      EXPECT_EQ(kvc_device_stream_wait(manager, streams[1], 1, made.waits, &error_), KVC_OK);
      EXPECT_EQ(Stats(manager).quarantined_pages, 0u);
      EXPECT_EQ(told.Wrong(manager), "");
      End(manager, {second}, &told);
    }
  }
}

// Copies and uploads stay behind no record, and only what nobody can have launched behind
// is put off: the caller has been told that they are there.
TEST_F(CudaFaults, WorkDoesNotStayBehindARefusedRecord) {
  Told told;
  kvc_manager* const manager = Create(0, told.stream());
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, stream, 100, &open), KVC_OK);
  fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
  ASSERT_EQ(Open(manager, stream, 200, &open), KVC_OK);
  fakecuda_settle();
  fakecuda_clear_log();
  ASSERT_EQ(ForkEach(manager, {stream}, &open), KVC_OK);
  EXPECT_EQ(fakecuda_calls("cuMemcpyDtoDAsync") + fakecuda_calls("cuMemcpyBatchAsync") +
                fakecuda_calls("cuLaunchKernel"),
            1u)
      << "the copy of the fork's tail";
  // Refused time and again it is not there, and the caller launches behind it all the same.
  fakecuda_inject(nullptr, 0, 0);
  fakecuda_inject_many("cuMemcpyDtoDAsync", 1, UINT64_MAX, kErrorNotSupported);
  EXPECT_EQ(ForkEach(manager, {stream}, &open), KVC_DEVICE_ERROR) << "by the very call";
  EXPECT_EQ(error_.system_code, kErrorNotSupported);
  const kvc_grow_item item{open[0], 64};
  kvc_grow_result grown{};
  EXPECT_EQ(kvc_sequences_grow(manager, 1, &item, &grown, nullptr, 0, nullptr, &error_),
            KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorNotSupported);
  EXPECT_NE(std::string(error_.message).find("promised"), std::string::npos) << error_.message;
  fakecuda_inject(nullptr, 0, 0);
  End(manager, open, &told);
}

// What a call has promised and could not hand over it says itself: its caller would launch.
TEST_F(CudaFaults, TheCallThatIsRefusedSaysSo) {
  for (const bool upload : {false, true}) {
    kvc_manager* const manager = Create();
    uint64_t streams[2] = {};
    for (uint64_t& stream : streams) {
      ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
    }
    uint64_t table = 0;
    uint64_t address = 0;
    ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
    std::vector<uint64_t> open;
    fakecuda_hold(1);
    ASSERT_EQ(Open(manager, streams[0], 100, &open), KVC_OK);
    std::vector<uint32_t> tokens(21);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = 100 + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = streams[1];
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    ASSERT_EQ(kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK);
    open.push_back(made.sequence);
    ASSERT_EQ(made.wait_count, 1u);
    const kvc_table_delta delta{0, 0, 1};
    const char* const call = upload ? "cuLaunchKernel" : "cuStreamWaitEvent";
    fakecuda_inject_many(call, 1, UINT64_MAX, kErrorOutOfMemory);
    const kvc_status status =
        upload ? kvc_device_table_update(manager, table, streams[1], 1, &delta, &error_)
               : kvc_device_stream_wait(manager, streams[1], 1, made.waits, &error_);
    EXPECT_EQ(status, KVC_DEVICE_ERROR);
    EXPECT_EQ(error_.system_code, kErrorOutOfMemory);
    EXPECT_NE(std::string(error_.message).find("promised"), std::string::npos) << error_.message;
    (void)Stats(manager);  // calls that tell do so
    fakecuda_inject(nullptr, 0, 0);
    fakecuda_hold(0);
    End(manager, open);
  }
}

// It has been carried out in the books: what it has opened is named, and can be given back.
TEST_F(CudaFaults, WhatARefusedCallHasOpenedIsNamed) {
  kvc_manager* const other = Create();
  for (const bool step : {false, true}) {
    kvc_manager* const manager = Create(0, nullptr, 1);
    uint64_t stream = 0;
    ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
    std::vector<uint64_t> open;
    ASSERT_EQ(Open(manager, stream, 100, &open), KVC_OK);
    ASSERT_EQ(Open(manager, stream, 200, &open), KVC_OK);
    kvc_status released = KVC_INTERNAL;  // its tail can be matched now
    ASSERT_EQ(kvc_sequences_release(manager, 1, &open[0], &released, &error_), KVC_OK);
    open.erase(open.begin());
    std::vector<uint32_t> tokens(24);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = 100 + i;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    fakecuda_inject_many("cuMemcpyDtoDAsync", 1, UINT64_MAX, kErrorOutOfMemory);
    if (!step) {
      kvc_create_result made{};
      EXPECT_EQ(kvc_sequences_create(manager, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                     nullptr, 0, &made, &error_),
                KVC_DEVICE_ERROR);
      EXPECT_EQ(made.status, KVC_OK);
      EXPECT_EQ(made.copied_tokens, 5u);
      ASSERT_NE(made.sequence, 0u);
      open.push_back(made.sequence);
    } else {
      kvc_op ops[2] = {};
      ops[0].kind = KVC_OP_CREATE;
      ops[1].kind = KVC_OP_HOLD;
      ops[1].args.hold = {open[0], 1, 0};
      kvc_step_input in;
      kvc_step_input_init(&in);
      in.prompts = &prompt;
      in.prompt_count = 1;
      in.tokens = tokens.data();
      in.token_count = tokens.size();
      kvc_fence waits[8] = {};
      kvc_step_output out;
      kvc_step_output_init(&out);
      out.waits = waits;
      out.wait_capacity = 8;
      kvc_op_result results[2] = {};
      EXPECT_EQ(kvc_step(manager, 2, ops, &in, results, &out, &error_), KVC_DEVICE_ERROR);
      EXPECT_EQ(results[0].status, KVC_OK);
      ASSERT_NE(results[0].sequence, 0u);
      EXPECT_EQ(results[1].status, KVC_OK);
      open = {results[0].sequence};
      // A call that finds the device lost writes nothing.
      kvc_op_result none[2] = {};
      EXPECT_EQ(kvc_step(manager, 2, ops, &in, none, &out, &error_), KVC_DEVICE_ERROR);
      EXPECT_EQ(none[0].sequence, 0u);
      EXPECT_EQ(kvc_holds_release(manager, 1, &results[1].of.hold, &released, &error_), KVC_OK);
      EXPECT_EQ(released, KVC_OK);
    }
    EXPECT_EQ(error_.status, step ? KVC_OK : KVC_DEVICE_ERROR);
    fakecuda_inject(nullptr, 0, 0);
    // The thread's other managers are none of its business.
    uint64_t more = 0;
    EXPECT_EQ(kvc_device_stream_create(other, &more, &error_), KVC_OK) << error_.message;
    EXPECT_EQ(kvc_device_stream_destroy(other, more, &error_), KVC_OK);
    End(manager, open);
  }
  std::vector<uint64_t> open;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(other, &stream, &error_), KVC_OK);
  EXPECT_EQ(Open(other, stream, 100, &open), KVC_OK);
  EXPECT_EQ(ForkEach(other, {stream}, &open), KVC_OK) << "a copy";
  End(other, open);
}

// A caller's stream that is none any more takes its own sequences along, nothing else.
TEST_F(CudaFaults, AStreamThatIsNoneAnyMore) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  Told told;
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT, told.stream());
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager, &streams[1], &error_), KVC_OK);
  std::vector<uint64_t> open;
  ASSERT_EQ(Open(manager, streams[0], 100, &open), KVC_OK);
  fakecuda_settle();
  fakecuda_stream_destroy(callers);
  ASSERT_EQ(ForkEach(manager, {streams[0]}, &open), KVC_OK) << error_.message;
  for (const uint64_t id : open) {
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager, 1, &id, &status, &error_), KVC_OK);
    EXPECT_EQ(status, KVC_OK);
  }
  EXPECT_GT(Stats(manager).quarantined_pages, 0u);
  open.clear();
  for (uint32_t i = 2; i < 40; ++i) {  // in the pages that are left
    std::vector<uint64_t> one;
    ASSERT_EQ(Open(manager, streams[1], 100 * i, &one), KVC_OK) << error_.message;
    kvc_status status = KVC_INTERNAL;
    ASSERT_EQ(kvc_sequences_release(manager, 1, one.data(), &status, &error_), KVC_OK);
    fakecuda_settle();
  }
  EXPECT_EQ(told.Wrong(manager), "");
  EXPECT_EQ(kvc_device_stream_destroy(manager, streams[0], &error_), KVC_OK) << error_.message;
  End(manager, {}, &told);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

// An upload there is forgotten with the staging that it holds.
TEST_F(CudaFaults, AStreamThatIsNoneAnyMoreKeepsNoStaging) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const callers = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t streams[2] = {};
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_cuda_stream_adopt(manager, callers, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(manager, &streams[1], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_settle();
  fakecuda_stream_destroy(callers);
  const kvc_table_delta delta{0, 0, 1};
  EXPECT_EQ(kvc_device_table_update(manager, table, streams[0], 1, &delta, &error_), KVC_OK);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(kvc_device_table_update(manager, table, streams[1], 1, &delta, &error_), KVC_OK)
        << i << ": " << error_.message;
    fakecuda_settle();
  }
  EXPECT_EQ(kvc_device_stream_destroy(manager, streams[0], &error_), KVC_OK) << error_.message;
  fakecuda_settle();
  EXPECT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK) << error_.message;
  End(manager, {});
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

// To free memory waits for all that runs on the device, an engine's work as well, which may
// wait for the very thread that destroys the table.
TEST_F(CudaFaults, ATableGoesWithoutWaitingForTheDevice) {
  void* const theirs = fakecuda_context_create(0);
  fakecuda_context_push(theirs);
  void* const engines = fakecuda_stream_create(theirs, 0);
  kvc_manager* const manager = Create(KVC_CONFIG_CALLERS_CONTEXT);
  uint64_t table = 0;
  uint64_t address = 0;
  ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK);
  fakecuda_settle();
  const fakecuda_live before = fakecuda_live_objects();
  fakecuda_gate(engines);
  ASSERT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK);
  EXPECT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_STALE_HANDLE);
  // The next one like it takes its memory.
  uint64_t second = 0;
  uint64_t there = 0;
  ASSERT_EQ(kvc_device_table_create(manager, 2, 7, -1, 64, &second, &there, &error_), KVC_OK);
  EXPECT_NE(second, table);
  EXPECT_EQ(there, address);
  EXPECT_EQ(fakecuda_live_objects().allocations, before.allocations);
  EXPECT_EQ(fakecuda_live_objects().pinned, before.pinned);
  ASSERT_EQ(kvc_device_table_destroy(manager, second, &error_), KVC_OK);
  fakecuda_open_gate(engines);
  fakecuda_settle();
  // What is kept goes before the driver's refusal is told.
  fakecuda_inject("cuMemAlloc", 1, kErrorOutOfMemory);
  ASSERT_EQ(kvc_device_table_create(manager, 64, 64, -1, 64, &table, &address, &error_), KVC_OK)
      << error_.message;
  EXPECT_EQ(fakecuda_injected(), 1);
  EXPECT_EQ(fakecuda_live_objects().allocations, before.allocations);
  ASSERT_EQ(kvc_device_table_destroy(manager, table, &error_), KVC_OK);
  End(manager, {});
  fakecuda_stream_destroy(engines);
  (void)fakecuda_context_pop();
  fakecuda_context_destroy(theirs);
}

TEST_F(CudaFaults, AnOrdinalThatNoDeviceHas) {
  kvc_cuda_device device;
  uint64_t pages = 0;
  for (const uint32_t ordinal : {1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    EXPECT_EQ(kvc_cuda_device_get(ordinal, &device, &error_), KVC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find(std::to_string(ordinal)), std::string::npos)
        << error_.message;
    EXPECT_EQ(kvc_cuda_budget(ordinal, 1000, 0, 0.5, &pages, &error_), KVC_INVALID_ARGUMENT);
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.device_ordinal = ordinal;
    config.capacity_blocks = 16;
    testing::OwnedManager manager;
    EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
  }
}

// To learn which fences have been reached takes one question for each stream that has one
// outstanding, before the call and after it, and no other call that could wait.
TEST_F(CudaFaults, CallsAskOnlyForFences) {
  kvc_manager* const manager = Create();
  uint64_t streams[2] = {};
  std::vector<uint64_t> open;
  fakecuda_hold(1);
  for (uint64_t& stream : streams) {
    ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
    ASSERT_EQ(Open(manager, stream, 100 + 100 * static_cast<uint32_t>(&stream - streams), &open),
              KVC_OK);
  }
  fakecuda_clear_log();
  Ask(manager);
  // Once before the call and once after it.
  EXPECT_LE(fakecuda_calls("cuEventQuery"), 4u);
  EXPECT_LE(fakecuda_calls(nullptr), 4u + 2 * 4u) << "the context's, and nothing else";
  fakecuda_hold(0);
  fakecuda_settle();
  Ask(manager);
  fakecuda_clear_log();
  Ask(manager);
  EXPECT_EQ(kvc_manager_check(manager, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing outstanding";
  End(manager, open);
}

// A manager whose device is lost is of no more use; what else there is on the GPU is.
TEST_F(CudaFaults, OneManagersFailureIsNotTheOthers) {
  kvc_manager* const first = Create();
  kvc_manager* const second = Create();
  uint64_t streams[2] = {};
  ASSERT_EQ(kvc_device_stream_create(first, &streams[0], &error_), KVC_OK);
  ASSERT_EQ(kvc_device_stream_create(second, &streams[1], &error_), KVC_OK);
  uint64_t ids[2] = {};
  fakecuda_inject("cuEventCreate", 1, kErrorIllegalAddress);
  EXPECT_EQ(Sequence(first, streams[0], 100, &ids[0]), KVC_OK) << "noticed at its end";
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR) << "not something to try again";
  EXPECT_EQ(error_.system_code, kErrorIllegalAddress);
  EXPECT_NE(std::string(error_.message).find("lost"), std::string::npos) << error_.message;
  EXPECT_EQ(Sequence(second, streams[1], 100, &ids[1]), KVC_OK);
  EXPECT_EQ(Grow(second, ids[1], 48), KVC_OK);
  // The device itself breaks: each is told by itself.
  fakecuda_settle();
  fakecuda_break(0, kErrorLaunchFailed);
  uint64_t more = 0;
  EXPECT_EQ(kvc_device_stream_create(second, &more, &error_), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorLaunchFailed);
  EXPECT_EQ(Grow(first, ids[0], 48), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorIllegalAddress) << "the first error is what it was";
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

// What a broken manager has lent can be given back to it, by whichever call gives back.
TEST_F(CudaFaults, ABrokenManagerTakesBackPinsAndConversationsThatEnd) {
  again_ = false;
  kvc_manager* const manager = Create();
  ASSERT_NE(manager, nullptr) << error_.message;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK);
  uint64_t id = 0;
  ASSERT_EQ(Sequence(manager, stream, 1, &id), KVC_OK) << error_.message;
  kvc_pin_result pinned{};
  ASSERT_EQ(kvc_pin_sequences(manager, 1, &id, &pinned, &error_), KVC_OK);
  ASSERT_NE(pinned.pin, 0u);
  fakecuda_break(0, kErrorIllegalAddress);
  EXPECT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_DEVICE_ERROR);
  (void)kvc_device_fences_query(manager, 0, nullptr, nullptr, &error_);
  kvc_status item = KVC_INTERNAL;
  EXPECT_EQ(kvc_unpin(manager, 1, &pinned.pin, &item, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(item, KVC_OK);
  item = KVC_INTERNAL;
  EXPECT_EQ(kvc_sequences_end(manager, 1, &id, &item, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(item, KVC_OK);
  if (item != KVC_OK) (void)kvc_sequences_release(manager, 1, &id, &item, &error_);
  EXPECT_EQ(kvc_manager_destroy(manager, &error_), KVC_OK) << error_.message;
  fakecuda_reset(nullptr);
}

}  // namespace
}  // namespace kvcast::cuda
