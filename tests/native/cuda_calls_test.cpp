// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which calls of the ABI make calls of the driver: those that only keep the books or tell
// make none, whatever is outstanding, and all others ask for fences.

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <fstream>
#include <regex>
#include <sstream>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

struct AbiCall {
  std::string name;
  kvc_status expected;
  std::function<kvc_status()> call;
};

// Functions of the ABI that take a manager, as its header declares them.
std::set<std::string> Declared() {
  std::ifstream file("native/include/kvcast/kvcast.h");
  std::stringstream text;
  text << file.rdbuf();
  const std::string header = text.str();
  const std::regex function(R"(KVC_API kvc_status (kvc_\w+)\(\s*kvc_manager\* manager)");
  std::set<std::string> names;
  for (std::sregex_iterator at(header.begin(), header.end(), function), end; at != end; ++at) {
    names.insert((*at)[1]);
  }
  return names;
}

// A context of the caller's, on another GPU than the manager's and current as long as it lives.
class TheirContext {
 public:
  TheirContext() : handle_(fakecuda_context_create(1)) { fakecuda_context_push(handle_); }
  ~TheirContext() {
    EXPECT_EQ(fakecuda_context_pop(), handle_);
    fakecuda_context_destroy(handle_);
  }
  TheirContext(const TheirContext&) = delete;
  TheirContext& operator=(const TheirContext&) = delete;
  void ExpectCurrent(const std::string& after) const {
    EXPECT_EQ(fakecuda_context_current(), handle_) << after;
    EXPECT_EQ(fakecuda_context_depth(), 1) << after;
  }

 private:
  void* handle_;
};

// A manager with everything outstanding that can be, on a device where nothing runs.
class CudaCalls : public CudaTest {
 protected:
  void SetUp() override {
    options_.devices = 2;
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = 32;
    config.max_blocks = 64;
    config.page_bytes = 4096;
    config.copies = KVC_COPY_PUBLISHED;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, manager_.out(), &error_), KVC_OK)
        << error_.message;
    tokens_.resize(24);
    for (uint32_t i = 0; i < tokens_.size(); ++i) tokens_[i] = i;
    for (uint64_t& stream : streams_) {
      ASSERT_EQ(kvc_device_stream_create(manager(), &stream, &error_), KVC_OK);
    }
    ASSERT_EQ(kvc_step_stream_create(manager(), &steps_, &error_), KVC_OK);
    ASSERT_EQ(kvc_device_table_create(manager(), 2, 8, -1, 64, &table_, &address_, &error_),
              KVC_OK);
    fakecuda_hold(1);
    // Fences of a stream that commits, and a copy for a fork on another.
    first_ = Sequence(streams_[0], 0);
    const kvc_fork_item item{first_, streams_[1]};
    kvc_fork_result forked{};
    ASSERT_EQ(kvc_sequences_fork(manager(), 1, &item, &forked, &error_), KVC_OK);
    ASSERT_EQ(forked.status, KVC_OK) << error_.message;
    fork_ = forked.sequence;
    const kvc_grow_item grow{fork_, 32};
    kvc_grow_result grown{};
    ASSERT_EQ(kvc_sequences_grow(manager(), 1, &grow, &grown, nullptr, 0, nullptr, &error_),
              KVC_OK);
    ASSERT_NE(grown.copied_block, KVC_NO_COPY);
    // An upload, pages in quarantine, one who sleeps, and a record that was refused and is
    // to be made by the next call that calls the driver.
    const kvc_table_delta delta{0, 0, 1};
    ASSERT_EQ(kvc_device_table_update(manager(), table_, streams_[1], 1, &delta, &error_), KVC_OK);
    suspended_ = Sequence(streams_[0], 200);
    const kvc_suspend_item suspend{suspended_, KVC_SUSPEND_KEEP, 0};
    kvc_status status = KVC_INTERNAL;
    ASSERT_EQ(kvc_sequences_suspend(manager(), 1, &suspend, &status, &error_), KVC_OK);
    ASSERT_EQ(status, KVC_OK);
    held_ = Sequence(streams_[0], 300);
    ASSERT_EQ(kvc_pin_sequences(manager(), 1, &first_, &pin_, &error_), KVC_OK);
    const uint64_t gone[] = {Sequence(streams_[1], 400), Sequence(streams_[0], 500)};
    Release(gone[0]);
    fakecuda_inject_many("cuEventRecord", 1, UINT64_MAX, kErrorOutOfMemory);
    Release(gone[1]);
    fakecuda_inject(nullptr, 0, 0);
  }
  void TearDown() override {
    fakecuda_hold(0);
    fakecuda_settle();
    for (const uint64_t id : {first_, fork_, suspended_}) Release(id);
    for (const uint64_t id : made_) Release(id);
    if (hold_.hold != 0) {
      kvc_status status = KVC_INTERNAL;
      EXPECT_EQ(kvc_holds_release(manager(), 1, &hold_.hold, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    } else if (held_ != 0) {
      Release(held_);
    }
    EXPECT_EQ(kvc_manager_check(manager(), &error_), KVC_OK) << error_.message;
    EXPECT_EQ(kvc_manager_destroy(manager_.Take(), &error_), KVC_OK) << error_.message;
    CudaTest::TearDown();
  }
  [[nodiscard]] kvc_manager* manager() const { return manager_; }
  // A block and a tail, on a stream.
  uint64_t Sequence(uint64_t stream, uint32_t first) {
    std::vector<uint32_t> tokens(21);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first + i;
    kvc_prompt prompt = Prompt(tokens.size());
    prompt.device_stream = stream;
    kvc_create_result made{};
    EXPECT_EQ(kvc_sequences_create(manager(), 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                   nullptr, 0, &made, &error_),
              KVC_OK);
    const kvc_grow_item grow{made.sequence, 32};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(manager(), 1, &grow, &grown, nullptr, 0, nullptr, &error_),
              KVC_OK);
    EXPECT_EQ(grown.status, KVC_OK);
    kvc_commit_item commit{};
    commit.sequence = made.sequence;
    commit.token_count = tokens.size();
    kvc_commit_result committed{};
    EXPECT_EQ(kvc_sequences_commit(manager(), 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                   &committed, &error_),
              KVC_OK);
    EXPECT_EQ(committed.status, KVC_OK);
    return made.sequence;
  }
  void Release(uint64_t id) {
    kvc_status status = KVC_INTERNAL;
    EXPECT_EQ(kvc_sequences_release(manager(), 1, &id, &status, &error_), KVC_OK);
    EXPECT_EQ(status, KVC_OK) << error_.message;
  }
  static kvc_prompt Prompt(size_t tokens) {
    kvc_prompt prompt{};
    prompt.token_count = tokens;
    prompt.scope = KVC_NO_SCOPE;
    return prompt;
  }
  kvc_stats Stats() {
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(manager(), &stats, &error_), KVC_OK);
    return stats;
  }
  // Each of one item that is done.
  std::vector<AbiCall> Books();
  // The same, in this order. They take or give back pages behind fences, queue work, take what
  // fences make free, or are there to ask. All but the end of a manager, which waits.
  std::vector<AbiCall> WithTheDevice();

  kvc_error error_{};
  testing::OwnedManager manager_;
  std::vector<uint32_t> tokens_;
  uint64_t streams_[2] = {};
  uint64_t steps_ = 0;
  uint64_t table_ = 0;
  uint64_t address_ = 0;
  uint64_t first_ = 0;
  uint64_t fork_ = 0;
  uint64_t suspended_ = 0;
  uint64_t held_ = 0;
  std::vector<uint64_t> made_;  // more of them, by WithTheDevice
  uint64_t made_stream_ = 0;
  uint64_t made_table_ = 0;
  kvc_hold_result hold_{};
  kvc_pin_result pin_{};
};

std::vector<AbiCall> CudaCalls::Books() {
  const auto m = manager();
  kvc_error* const e = &error_;
  const kvc_prompt prompt = Prompt(tokens_.size());
  // Of the call, or else of its item.
  const auto either = [](kvc_status whole, const kvc_status& item) {
    return whole != KVC_OK ? whole : item;
  };
  return {
      {"kvc_probe", KVC_OK,
       [=] {
         kvc_probe_result result{};
         const kvc_status whole = kvc_probe(m, 1, &prompt, tokens_.data(), tokens_.size(), nullptr,
                                            0, nullptr, 0, &result, e);
         return either(whole, result.status);
       }},
      {"kvc_residency", KVC_OK,
       [=] {
         kvc_block_residency blocks[4];
         kvc_residency_result result{};
         const kvc_status whole = kvc_residency(m, 1, &prompt, tokens_.data(), tokens_.size(),
                                                nullptr, 0, nullptr, 0, 4, blocks, &result, e);
         EXPECT_EQ(result.resident_blocks, 1u);
         return either(whole, result.status);
       }},
      {"kvc_sequence_waits", KVC_OK,
       [=] {
         kvc_fence fences[4];
         uint32_t count = 0;
         return kvc_sequence_waits(m, fork_, 4, fences, &count, e);
       }},
      {"kvc_sequence_get", KVC_OK,
       [=] {
         uint32_t pages[4];
         uint32_t written = 0;
         kvc_sequence_info info{};
         return kvc_sequence_get(m, first_, 0, 4, pages, &written, &info, e);
       }},
      {"kvc_sequences_resume", KVC_OK,
       [=] {
         kvc_resume_result result{};
         const kvc_status whole = kvc_sequences_resume(m, 1, &suspended_, &result, e);
         return either(whole, result.status);
       }},
      {"kvc_sequences_stop", KVC_OK,
       [=] {
         const kvc_stop_item item{first_, 16};
         kvc_status status = KVC_INTERNAL;
         return either(kvc_sequences_stop(m, 1, &item, &status, e), status);
       }},
      {"kvc_sequences_retain", KVC_OK,
       [=] {
         const kvc_retain_item item{first_, 0, 16, 1, 80, 0};
         kvc_status status = KVC_INTERNAL;
         return either(kvc_sequences_retain(m, 1, &item, &status, e), status);
       }},
      {"kvc_expire", KVC_OK,
       [=] {
         uint32_t expired = 0;
         uint32_t more = 0;
         return kvc_expire(m, uint64_t{1} << 40, 0, &expired, &more, e);
       }},
      {"kvc_sequences_release_held", KVC_OK,
       [=] {
         const kvc_hold_item item{held_, 1, 0};
         return either(kvc_sequences_release_held(m, 1, &item, &hold_, e), hold_.status);
       }},
      {"kvc_waiters_take", KVC_OK,
       [=] {
         kvc_waiter waiters[4];
         uint32_t count = 0;
         return kvc_waiters_take(m, 4, waiters, &count, e);
       }},
      {"kvc_pin_prompts", KVC_OK,
       [=] {
         kvc_pin_result result{};
         const kvc_status whole = kvc_pin_prompts(m, 1, &prompt, tokens_.data(), tokens_.size(),
                                                  nullptr, 0, nullptr, 0, &result, e);
         EXPECT_EQ(result.pinned_blocks, 1u);
         return either(whole, result.status);
       }},
      {"kvc_pin_sequences", KVC_OK,
       [=] {
         kvc_pin_result result{};
         return either(kvc_pin_sequences(m, 1, &fork_, &result, e), result.status);
       }},
      {"kvc_unpin", KVC_OK,
       [=] {
         kvc_status status = KVC_INTERNAL;
         return either(kvc_unpin(m, 1, &pin_.pin, &status, e), status);
       }},
      {"kvc_manager_stats_get", KVC_OK, [=] { return Stats(), KVC_OK; }},
      {"kvc_manager_histograms_get", KVC_OK,
       [=] {
         kvc_histograms histograms;
         kvc_histograms_init(&histograms);
         return kvc_manager_histograms_get(m, &histograms, e);
       }},
      {"kvc_manager_check", KVC_OK, [=] { return kvc_manager_check(m, e); }},
      {"kvc_manager_resident", KVC_OK,
       [=] {
         kvc_resident_block blocks[16];
         uint64_t count = 0;
         return kvc_manager_resident(m, KVC_HASH_SIGNED64, 16, blocks, &count, e);
       }},
      {"kvc_device_memory_get", KVC_OK,
       [=] {
         kvc_device_memory memory{};
         return kvc_device_memory_get(m, &memory, e);
       }},
      {"kvc_cuda_stream_get", KVC_OK,
       [=] {
         void* stream = nullptr;
         return kvc_cuda_stream_get(m, streams_[0], &stream, e);
       }},
      {"kvc_tables_dense", KVC_OK,
       [=] {
         const kvc_table_item item{first_, 0, 0};
         int32_t table[8];
         int32_t length = 0;
         kvc_table_result result{};
         return either(kvc_tables_dense(m, nullptr, 1, &item, 8, 8, table, &length, &result, e),
                       result.status);
       }},
      {"kvc_tables_indexed", KVC_OK,
       [=] {
         const kvc_table_item item{first_, 0, 0};
         int32_t indptr[2];
         int32_t indices[8];
         int32_t last = 0;
         uint64_t needed = 0;
         kvc_table_result result{};
         return either(kvc_tables_indexed(m, nullptr, 1, &item, 8, indptr, indices, &last, &needed,
                                          &result, e),
                       result.status);
       }},
      {"kvc_tables_delta", KVC_OK,
       [=] {
         const kvc_table_delta_item item{fork_, 0, 0};
         kvc_table_cookie cookie{};
         kvc_table_delta deltas[8];
         uint32_t written = 0;
         kvc_table_result result{};
         return either(
             kvc_tables_delta(m, nullptr, 1, &item, 8, &cookie, 8, deltas, &written, &result, e),
             result.status);
       }},
      {"kvc_step_begin", KVC_OK, [=] { return kvc_step_begin(m, steps_, 1, e); }},
      // After a copy the layout is told too late, and that is all it says.
      {"kvc_page_layout_set", KVC_BAD_STATE,
       [=] {
         kvc_geometry_config config;
         kvc_geometry_config_init(&config);
         config.capacity_blocks = 64;
         kvc_buffer_spec spec{};
         spec.dtype = KVC_DTYPE_BF16;
         spec.heads = 1;
         spec.head_dim = 128;
         return kvc_page_layout_set(m, &config, 1, &spec, e);
       }},
      // Those of the host device are told so.
      {"kvc_host_enqueue_fill", KVC_INVALID_ARGUMENT,
       [=] { return kvc_host_enqueue_fill(m, streams_[0], 0, nullptr, e); }},
      {"kvc_host_advance", KVC_INVALID_ARGUMENT,
       [=] { return kvc_host_advance(m, 0, 1, nullptr, e); }},
      {"kvc_host_read", KVC_INVALID_ARGUMENT,
       [=] { return kvc_host_read(m, 0, 0, 0, nullptr, e); }},
      {"kvc_host_table_read", KVC_INVALID_ARGUMENT,
       [=] {
         int32_t out = 0;
         return kvc_host_table_read(m, table_, 0, 0, 1, &out, e);
       }},
      // They empty the tree, so they come last.
      {"kvc_drop_scopes", KVC_OK,
       [=] {
         const kvc_drop_item item{KVC_NO_SCOPE, 0};
         kvc_drop_result result{};
         const kvc_status whole =
             kvc_drop_scopes(m, 1, &item, nullptr, 0, nullptr, 0, &result, nullptr, 0, nullptr, e);
         EXPECT_GT(result.dropped_blocks, 0u);
         return either(whole, result.status);
       }},
      {"kvc_manager_reset", KVC_OK, [=] { return kvc_manager_reset(m, e); }},
  };
}

std::vector<AbiCall> CudaCalls::WithTheDevice() {
  const auto m = manager();
  kvc_error* const e = &error_;
  const auto either = [](kvc_status whole, const kvc_status& item) {
    return whole != KVC_OK ? whole : item;
  };
  // Of those that take the handle of one sequence.
  const auto single = [=](auto function, uint64_t sequence) {
    return [=] {
      kvc_status status = KVC_INTERNAL;
      const kvc_status whole = function(m, 1, &sequence, &status, e);
      made_.erase(std::remove(made_.begin(), made_.end(), sequence), made_.end());
      return either(whole, status);
    };
  };
  const kvc_hold_item hold{held_, 1, 0};
  EXPECT_EQ(kvc_sequences_release_held(m, 1, &hold, &hold_, e), KVC_OK);
  EXPECT_EQ(hold_.status, KVC_OK) << error_.message;
  EXPECT_EQ(kvc_step_begin(m, steps_, 1, e), KVC_OK);
  const uint64_t released = Sequence(streams_[0], 600);
  const uint64_t cancelled = Sequence(streams_[0], 700);
  const uint64_t ended = Sequence(streams_[1], 800);
  const uint64_t suspended = Sequence(streams_[1], 900);
  made_ = {suspended, released, cancelled, ended};
  return {
      {"kvc_device_fences_query", KVC_OK,
       [=] { return kvc_device_fences_query(m, 0, nullptr, nullptr, e); }},
      {"kvc_device_stream_create", KVC_OK,
       [=] { return kvc_device_stream_create(m, &made_stream_, e); }},
      {"kvc_device_stream_wait", KVC_OK,
       [=] {
         const kvc_fence fence{streams_[1], 1};
         return kvc_device_stream_wait(m, made_stream_, 1, &fence, e);
       }},
      {"kvc_device_stream_destroy", KVC_OK,
       [=] { return kvc_device_stream_destroy(m, made_stream_, e); }},
      {"kvc_cuda_stream_adopt", KVC_OK,
       [=] {
         uint64_t adopted = 0;
         return kvc_cuda_stream_adopt(m, nullptr, &adopted, e);
       }},
      {"kvc_step_stream_create", KVC_OK,
       [=] {
         uint64_t made = 0;
         return kvc_step_stream_create(m, &made, e);
       }},
      {"kvc_step_done", KVC_OK, [=] { return kvc_step_done(m, steps_, 1, e); }},
      {"kvc_step", KVC_OK, [=] { return kvc_step(m, 0, nullptr, nullptr, nullptr, nullptr, e); }},
      {"kvc_device_table_create", KVC_OK,
       [=] {
         uint64_t address = 0;
         return kvc_device_table_create(m, 2, 8, -1, 64, &made_table_, &address, e);
       }},
      {"kvc_device_table_update", KVC_OK,
       [=] {
         const kvc_table_delta delta{0, 0, 2};
         return kvc_device_table_update(m, table_, streams_[0], 1, &delta, e);
       }},
      {"kvc_device_table_write", KVC_OK,
       [=] {
         const int32_t row[8] = {};
         return kvc_device_table_write(m, table_, streams_[0], 0, 1, 8, row, e);
       }},
      {"kvc_device_table_destroy", KVC_OK,
       [=] { return kvc_device_table_destroy(m, made_table_, e); }},
      {"kvc_sequences_create", KVC_OK,
       [=] {
         const kvc_prompt prompt = Prompt(tokens_.size());
         kvc_create_result made{};
         const kvc_status whole = kvc_sequences_create(
             m, 1, &prompt, tokens_.data(), tokens_.size(), nullptr, 0, nullptr, 0, &made, e);
         made_.push_back(made.sequence);
         return either(whole, made.status);
       }},
      {"kvc_sequences_grow", KVC_OK,
       [=] {
         const kvc_grow_item item{suspended, 64};
         kvc_grow_result grown{};
         const kvc_status whole = kvc_sequences_grow(m, 1, &item, &grown, nullptr, 0, nullptr, e);
         EXPECT_GT(grown.added_pages, 0u);
         return either(whole, grown.status);
       }},
      {"kvc_sequences_commit", KVC_OK,
       [=] {
         kvc_commit_item item{};
         item.sequence = suspended;
         item.token_count = tokens_.size();
         kvc_commit_result committed{};
         const kvc_status whole = kvc_sequences_commit(m, 1, &item, tokens_.data(), tokens_.size(),
                                                       nullptr, 0, &committed, e);
         return either(whole, committed.status);
       }},
      {"kvc_sequences_truncate", KVC_OK,
       [=] {
         const kvc_truncate_item item{suspended, 48};
         kvc_truncate_result truncated{};
         const kvc_status whole = kvc_sequences_truncate(m, 1, &item, &truncated, e);
         EXPECT_GT(truncated.freed_pages, 0u);
         return either(whole, truncated.status);
       }},
      {"kvc_sequences_fork", KVC_OK,
       [=] {
         const kvc_fork_item item{suspended, streams_[0]};
         kvc_fork_result forked{};
         const kvc_status whole = kvc_sequences_fork(m, 1, &item, &forked, e);
         made_.push_back(forked.sequence);
         return either(whole, forked.status);
       }},
      {"kvc_sequences_suspend", KVC_OK,
       [=] {
         const kvc_suspend_item item{suspended, 0, 0};
         kvc_status status = KVC_INTERNAL;
         return either(kvc_sequences_suspend(m, 1, &item, &status, e), status);
       }},
      {"kvc_sequences_release", KVC_OK, single(kvc_sequences_release, released)},
      {"kvc_sequences_cancel", KVC_OK, single(kvc_sequences_cancel, cancelled)},
      {"kvc_sequences_end", KVC_OK, single(kvc_sequences_end, ended)},
      {"kvc_holds_release", KVC_OK,
       [=] {
         const kvc_status status = single(kvc_holds_release, hold_.hold)();
         held_ = hold_.hold = 0;
         return status;
       }},
      {"kvc_pool_resize", KVC_OK,
       [=] {
         kvc_resize_result result{};
         return kvc_pool_resize(m, 32, 0, nullptr, 0, nullptr, 0, &result, e);
       }},
  };
}

// A new function of the ABI is in one of the two lists.
TEST_F(CudaCalls, EachIsOneOfTheBooksOrOneWithTheDevice) {
  std::set<std::string> known = {"kvc_manager_destroy"};
  for (const std::vector<AbiCall>& calls : {Books(), WithTheDevice()}) {
    for (const AbiCall& call : calls) {
      EXPECT_TRUE(known.insert(call.name).second) << call.name << " is in the lists twice";
    }
  }
  const std::set<std::string> declared = Declared();
  EXPECT_GT(declared.size(), 40u) << "the header must be found, from the root of the sources";
  for (const std::string& name : declared) {
    EXPECT_EQ(known.count(name), 1u) << name << " is in no list: does it call the driver?";
  }
  for (const std::string& name : known) {
    EXPECT_EQ(declared.count(name), 1u) << name << " is not in the header";
  }
}

TEST_F(CudaCalls, ThoseThatKeepTheBooksMakeNone) {
  const TheirContext theirs;
  for (const AbiCall& books : Books()) {
    fakecuda_clear_log();
    EXPECT_EQ(books.call(), books.expected) << books.name << ": " << error_.message;
    EXPECT_EQ(fakecuda_calls(nullptr), 0u) << books.name;
    theirs.ExpectCurrent(books.name);
  }
}

// Whatever else they do: so fences are found reached, and what they keep comes back, also
// where a program only makes a few of them.
TEST_F(CudaCalls, AllOthersAskForFences) {
  // A table is filled before its call returns: so other streams than these run.
  void* streams[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(kvc_cuda_stream_get(manager(), streams_[i], &streams[i], &error_), KVC_OK);
    fakecuda_gate(streams[i]);
  }
  fakecuda_hold(0);
  const TheirContext theirs;
  for (const AbiCall& call : WithTheDevice()) {
    fakecuda_clear_log();
    EXPECT_EQ(call.call(), call.expected) << call.name << ": " << error_.message;
    EXPECT_GT(fakecuda_calls("cuEventQuery"), 0u) << call.name;
    EXPECT_EQ(fakecuda_calls("cuCtxPushCurrent"), fakecuda_calls("cuCtxPopCurrent")) << call.name;
    theirs.ExpectCurrent(call.name);
  }
  for (void* const stream : streams) fakecuda_open_gate(stream);
}

// Those without a manager, and the two that make and end one; good and refused ones.
TEST_F(CudaCalls, TheOthersLeaveTheCallersContextToo) {
  fakecuda_hold(0);  // making and ending a manager wait
  const TheirContext theirs;
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.capacity_blocks = 8;
  config.max_blocks = 16;
  config.page_bytes = 4096;
  testing::OwnedManager made;
  kvc_cuda_device device{};
  uint64_t pages = 0;
  const std::vector<AbiCall> calls = {
      {"kvc_cuda_open", KVC_OK, [&] { return kvc_cuda_open(nullptr, &error_); }},
      {"kvc_cuda_device_get", KVC_OK, [&] { return kvc_cuda_device_get(0, &device, &error_); }},
      {"kvc_cuda_device_get of none", KVC_INVALID_ARGUMENT,
       [&] { return kvc_cuda_device_get(2, &device, &error_); }},
      {"kvc_cuda_budget", KVC_OK,
       [&] { return kvc_cuda_budget(0, 4096, 4096, 0, &pages, &error_); }},
      {"kvc_cuda_budget of too much", KVC_OUT_OF_MEMORY,
       [&] { return kvc_cuda_budget(0, 4096, UINT64_MAX, 0, &pages, &error_); }},
      {"kvc_manager_create", KVC_OK,
       [&] { return kvc_manager_create(&config, nullptr, made.out(), &error_); }},
      {"kvc_manager_destroy", KVC_OK, [&] { return kvc_manager_destroy(made.Take(), &error_); }},
      {"kvc_manager_create that the driver refuses", KVC_DEVICE_ERROR,
       [&] {
         fakecuda_inject("cuMemAddressReserve", 1, kErrorUnknown);
         return kvc_manager_create(&config, nullptr, made.out(), &error_);
       }},
  };
  for (const AbiCall& call : calls) {
    EXPECT_EQ(call.call(), call.expected) << call.name << ": " << error_.message;
    theirs.ExpectCurrent(call.name);
  }
}

// The call to make when there is no other: it tries again what was refused, and asks.
TEST_F(CudaCalls, AQueryOfNoFencesAsks) {
  const uint64_t waiting = Stats().quarantined_pages;
  EXPECT_GT(waiting, 1u);
  fakecuda_hold(0);
  fakecuda_settle();
  EXPECT_EQ(Stats().quarantined_pages, waiting) << "nobody has asked";
  EXPECT_EQ(kvc_device_fences_query(manager(), 0, nullptr, nullptr, &error_), KVC_OK);
  EXPECT_LT(Stats().quarantined_pages, waiting) << "all but that of the record that was refused";
  fakecuda_settle();
  EXPECT_EQ(kvc_device_fences_query(manager(), 0, nullptr, nullptr, &error_), KVC_OK);
  EXPECT_EQ(Stats().quarantined_pages, 0u);
  fakecuda_clear_log();
  EXPECT_EQ(kvc_device_fences_query(manager(), 0, nullptr, nullptr, &error_), KVC_OK);
  EXPECT_EQ(fakecuda_calls(nullptr), 0u) << "nothing is outstanding";
}

}  // namespace
}  // namespace kvcast::cuda
