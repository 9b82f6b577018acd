// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What the driver refuses for a while or for good: what stays behind it, and who is told.

#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_life.h"

namespace kvcast::cuda {
namespace {

using CudaRefused = CudaLife;

// Each call that records, or makes what is recorded, is refused for a while, longer than
// anybody tries at once. Nothing is given out before its time and nothing is lost.
TEST_F(CudaRefused, RecordsThatAreRefusedForAWhile) {
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
TEST_F(CudaRefused, WorkDoesNotStayBehindARefusedRecord) {
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
TEST_F(CudaRefused, TheCallThatIsRefusedSaysSo) {
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
TEST_F(CudaRefused, WhatARefusedCallHasOpenedIsNamed) {
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

}  // namespace
}  // namespace kvcast::cuda
