// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What is a step's own: references, arrays that are too small, one lock. That its
// operations do what their own calls do is shown by scripts and the model.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"

namespace kvcast::testing {
namespace {

constexpr uint32_t kBlock = 4;

class StepTest : public ::testing::Test {
 protected:
  StepTest() : cache_(Options()) {
    kvc_step_input_init(&in);
    kvc_step_output_init(&out);
    in.tokens = tokens.data();
    in.token_count = tokens.size();
    in.columns = 8;
    out.cookies = cookies.data();
    out.cookie_count = static_cast<uint32_t>(cookies.size());
    out.deltas = deltas.data();
    out.delta_capacity = static_cast<uint32_t>(deltas.size());
    out.evicted = evicted.data();
    out.waits = waits.data();
  }
  static CacheOptions Options() {
    CacheOptions options;
    options.block = kBlock;
    options.pages = 8;
    return options;
  }

  static kvc_op Op(kvc_op_kind kind, uint64_t sequence) {
    kvc_op op{};
    op.kind = kind;
    op.args.sequence = sequence;
    return op;
  }
  kvc_op Create(uint64_t count, uint64_t stream = 0, uint32_t scope = KVC_NO_SCOPE) {
    kvc_prompt prompt{};
    prompt.token_count = count;
    prompt.device_stream = stream;
    prompt.scope = scope;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    prompts.push_back(prompt);
    kvc_op op{};
    op.kind = KVC_OP_CREATE;
    op.args.prompt = prompts.size() - 1;
    return op;
  }
  static kvc_op Grow(uint64_t sequence, uint64_t capacity) {
    kvc_op op = Op(KVC_OP_GROW, sequence);
    op.args.grow.capacity_tokens = capacity;
    return op;
  }
  static kvc_op Commit(uint64_t sequence, uint64_t count) {
    kvc_op op = Op(KVC_OP_COMMIT, sequence);
    op.args.commit.token_count = count;
    return op;
  }
  static kvc_op Table(uint64_t sequence, uint32_t row) {
    kvc_op op = Op(KVC_OP_TABLE, sequence);
    op.args.table.row = row;
    op.args.table.cookie = row;
    return op;
  }
  const std::vector<kvc_op_result>& Run(const std::vector<kvc_op>& ops) {
    results.assign(ops.size(), {});
    in.prompts = prompts.data();
    in.prompt_count = static_cast<uint32_t>(prompts.size());
    error = {};
    EXPECT_EQ(kvc_step(cache_.manager(), static_cast<uint32_t>(ops.size()), ops.data(), &in,
                       results.data(), &out, &error),
              KVC_OK)
        << error.message;
    EXPECT_EQ(cache_.Check(), "");
    for (const kvc_op_result& r : results) opened_.push_back(r.sequence);
    return results;
  }
  void TearDown() override {
    for (const uint64_t id : opened_) cache_.Release(id);
  }

  Cache cache_;
  std::vector<uint32_t> tokens = std::vector<uint32_t>(32, 7);
  std::vector<kvc_prompt> prompts;
  std::vector<kvc_table_cookie> cookies = std::vector<kvc_table_cookie>(2);
  std::vector<kvc_table_delta> deltas = std::vector<kvc_table_delta>(64);
  std::vector<kvc_evicted_block> evicted = std::vector<kvc_evicted_block>(8);
  std::vector<kvc_fence> waits = std::vector<kvc_fence>(8);
  std::vector<kvc_op_result> results;
  kvc_step_input in;
  kvc_step_output out;
  kvc_error error{};

 private:
  std::vector<uint64_t> opened_;  // or already closed
};

TEST_F(StepTest, ReferencesNameEarlierCreatesOnly) {
  const uint64_t first = KVC_STEP_RESULT;
  const auto& r =
      Run({Grow(first + 1, 4), Create(4), Grow(first + 1, 8), Commit(first + 1, 8), Grow(first, 4),
           Grow(first + 5, 4), Grow(first + 6, 4), Grow(UINT64_C(0x100000000) | KVC_STEP_RESULT, 4),
           Op(KVC_OP_CANCEL, first + 1)});
  const std::vector<kvc_status> want = {KVC_INVALID_ARGUMENT,
                                        KVC_OK,
                                        KVC_OK,
                                        KVC_OK,
                                        KVC_INVALID_ARGUMENT,
                                        KVC_INVALID_ARGUMENT,
                                        KVC_INVALID_ARGUMENT,
                                        KVC_STALE_HANDLE,
                                        KVC_OK};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(r[i].status, want[i]) << i;
  EXPECT_NE(r[1].sequence, 0u);
  EXPECT_EQ(r[2].sequence, r[1].sequence);
  EXPECT_EQ(r[8].sequence, r[1].sequence);
  EXPECT_EQ(r[3].of.committed.stored_blocks, 2u);
  EXPECT_EQ(error.status, KVC_INVALID_ARGUMENT) << "the story of the first that failed";
}

TEST_F(StepTest, OperationsThatCannotBeAreRefusedAlone) {
  kvc_op strange = Op(KVC_OP_RELEASE, 1);
  strange.reserved = 1;
  kvc_op beyond = Commit(KVC_STEP_RESULT | 0, 1);
  beyond.args.commit.token_offset = UINT64_MAX;
  kvc_op group = Table(KVC_STEP_RESULT | 0, 0);
  group.args.table.group = 1;
  kvc_op prompt = Create(0);
  prompt.args.prompt = 7;
  const auto& r = Run({Create(0), strange, Op(0, 1), Op(KVC_OP_FORK + 1, 1), Op(UINT32_MAX, 1),
                       beyond, Table(KVC_STEP_RESULT | 0, 2), group, Create(1, 0, 0), prompt,
                       Grow(KVC_STEP_RESULT, 4)});
  for (size_t i = 1; i + 1 < r.size(); ++i) EXPECT_EQ(r[i].status, KVC_INVALID_ARGUMENT) << i;
  EXPECT_EQ(r.back().status, KVC_OK);
}

TEST_F(StepTest, ATableThatFindsNoRoomIsToldByTheNextStep) {
  out.delta_capacity = 3;
  const uint64_t ref = KVC_STEP_RESULT;
  auto r = Run({Create(0), Grow(ref, 8), Table(ref, 0), Grow(ref, 16), Table(ref, 0),
                Op(KVC_OP_TRUNCATE, ref), Table(ref, 0)});
  EXPECT_EQ(r[2].status, KVC_OK);
  EXPECT_EQ(r[2].of.tabled.entries, 2u);
  EXPECT_EQ(r[4].status, KVC_NOT_NOW);
  EXPECT_EQ(r[4].of.tabled.entries, 2u);
  EXPECT_EQ(r[4].of.tabled.first_delta, KVC_NOT_TOLD);
  EXPECT_EQ(cookies[0].pages, 2u) << "as it was";
  EXPECT_EQ(r[6].status, KVC_NOT_NOW) << "two entries to clear, and room for one";
  EXPECT_EQ(out.delta_count, 2u);
  const uint64_t id = r[0].sequence;
  r = Run({Table(id, 0), Op(KVC_OP_RELEASE, id), Table(id, 0)});
  EXPECT_EQ(r[0].status, KVC_OK);
  EXPECT_EQ(r[0].of.tabled.entries, 2u);
  EXPECT_EQ(out.deltas[0].value, -1);
  EXPECT_EQ(r[2].status, KVC_STALE_HANDLE);
  EXPECT_EQ(r[2].of.tabled.entries, 0u);
  EXPECT_EQ(cookies[0].pages, 0u);
}

// A create that fails leaves an empty row, as a sequence that is gone does.
TEST_F(StepTest, ARowOfNoSequenceIsEmptied) {
  auto r = Run({Create(0), Grow(KVC_STEP_RESULT, 8), Table(KVC_STEP_RESULT, 0)});
  EXPECT_EQ(r[2].of.tabled.entries, 2u);
  const uint64_t id = r[0].sequence;
  r = Run({Create(64), Table(KVC_STEP_RESULT, 0), Table(0, 1)});
  EXPECT_EQ(r[0].status, KVC_INVALID_ARGUMENT);
  EXPECT_EQ(r[1].status, KVC_STALE_HANDLE);
  EXPECT_EQ(r[1].of.tabled.entries, 2u);
  EXPECT_EQ(r[2].status, KVC_OK) << "no sequence: an empty row";
  EXPECT_EQ(cache_.Release(id), KVC_OK);
}

TEST_F(StepTest, FencesThatMightNotBeToldKeepAnOperationBack) {
  uint64_t streams[3];
  for (uint64_t& s : streams) {
    ASSERT_EQ(kvc_device_stream_create(cache_.manager(), &s, nullptr), KVC_OK);
  }
  auto r = Run({Create(8), Create(8, streams[0]), Create(0, streams[0])});
  for (const kvc_op_result& each : r) {
    EXPECT_EQ(each.status, KVC_NOT_NOW);
    EXPECT_EQ(each.sequence, 0u);
  }
  EXPECT_EQ(r[0].wait_count, 3u);
  EXPECT_EQ(r[1].wait_count, 2u) << "not its own";
  out.wait_capacity = 6;
  // Two streams hold what the third then matches.
  r = Run({Create(0, streams[0]), Grow(KVC_STEP_RESULT | 0, 4)});
  const uint64_t a = r[0].sequence;
  kvc_sequence_info info;
  std::vector<uint32_t> pages;
  ASSERT_EQ(cache_.Get(a, &info, &pages), KVC_OK);
  const kvc_host_fill fill{pages[0], 0, 1};
  ASSERT_EQ(kvc_host_enqueue_fill(cache_.manager(), streams[0], 1, &fill, nullptr), KVC_OK);
  r = Run({Commit(a, 4), Create(4, streams[1]), Op(KVC_OP_SUSPEND, KVC_STEP_RESULT | 1),
           Op(KVC_OP_RESUME, KVC_STEP_RESULT | 1), Create(4, streams[1])});
  EXPECT_EQ(r[0].status, KVC_OK);
  ASSERT_EQ(r[1].wait_count, 1u);
  EXPECT_EQ(waits[r[1].first_wait].device_stream, streams[0]);
  ASSERT_EQ(r[3].wait_count, 1u);
  EXPECT_EQ(waits[r[3].first_wait].device_stream, streams[0]);
  EXPECT_EQ(out.wait_count, 3u);
  // A commit that fills no block finds nothing to wait for.
  out.wait_capacity = 0;
  const uint64_t b = r[1].sequence;
  r = Run({Grow(b, 8), Commit(b, 3), Commit(b, 1), Op(KVC_OP_SUSPEND, b), Op(KVC_OP_RESUME, b)});
  EXPECT_EQ(r[1].status, KVC_OK);
  EXPECT_EQ(r[2].status, KVC_NOT_NOW);
  EXPECT_EQ(r[2].wait_count, 2u);
  EXPECT_EQ(r[3].status, KVC_OK);
  EXPECT_EQ(r[4].status, KVC_NOT_NOW);
  EXPECT_EQ(cache_.Stats().suspended_sequences, 1u);
}

TEST_F(StepTest, ArraysAndSizesAreChecked) {
  const kvc_op op = Create(0);
  in.prompts = prompts.data();
  in.prompt_count = 1;
  kvc_op_result r;
  kvc_manager* m = cache_.manager();
  EXPECT_EQ(kvc_step(m, 0, nullptr, nullptr, nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(kvc_step(m, 1, nullptr, nullptr, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_step(m, 1, &op, nullptr, nullptr, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  in.struct_size += 8;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  in.struct_size -= 8;
  for (const uint32_t within : {1u, 4u}) {
    kvc_step_input cut = in;  // within the place of prompts[], which would be half a pointer
    cut.struct_size = offsetof(kvc_step_input, prompts) + within;
    EXPECT_EQ(kvc_step(m, 1, &op, &cut, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT) << within;
  }
  in.tokens = nullptr;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  in.token_count = 0;
  out.struct_size = 0;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, &out, nullptr), KVC_INVALID_ARGUMENT);
  kvc_step_output_init(&out);
  out.delta_capacity = 1;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, &out, nullptr), KVC_INVALID_ARGUMENT);
  kvc_table_format format{0, 0, 1, -1};
  in.format = &format;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(cache_.Stats().sequences, 0u) << "nothing was done";
  in.format = nullptr;
  in.prompts = nullptr;
  EXPECT_EQ(kvc_step(m, 1, &op, &in, &r, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  in.prompts = prompts.data();
  ASSERT_EQ(kvc_step(m, 1, &op, nullptr, &r, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(r.status, KVC_INVALID_ARGUMENT) << "there are no prompts";
  ASSERT_EQ(kvc_step(m, 1, &op, &in, &r, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(cache_.Release(r.sequence), KVC_OK);
}

// Others see all of a step or nothing: each opens a sequence and closes it.
TEST_F(StepTest, NobodySeesHalfAStep) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> looked{0};
  std::thread other([&] {
    while (!stop.load()) {
      const kvc_stats stats = cache_.Stats();
      EXPECT_EQ(stats.sequences, 0u);
      EXPECT_EQ(stats.live_pages, 0u);
      ++looked;
    }
  });
  const uint64_t ref = KVC_STEP_RESULT;
  const std::vector<kvc_op> ops = {Create(0), Grow(ref, 32), Commit(ref, 1),
                                   Op(KVC_OP_CANCEL, ref)};
  in.prompts = prompts.data();
  in.prompt_count = static_cast<uint32_t>(prompts.size());
  std::vector<kvc_op_result> r(ops.size());
  for (int i = 0; i < 2000 || looked.load() < 50; ++i) {
    ASSERT_EQ(kvc_step(cache_.manager(), static_cast<uint32_t>(ops.size()), ops.data(), &in,
                       r.data(), &out, nullptr),
              KVC_OK);
    ASSERT_EQ(r[3].status, KVC_OK);
  }
  stop.store(true);
  other.join();
}

}  // namespace
}  // namespace kvcast::testing
