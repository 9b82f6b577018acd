// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which calls of the ABI make calls of the driver: those that only keep the books or tell
// make none, whatever is outstanding.

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

// They take or give back pages behind fences, queue work, take what fences make free, or
// are there to ask.
const std::set<std::string> kWithTheDevice = {"kvc_cuda_stream_adopt",
                                              "kvc_device_fences_query",
                                              "kvc_device_stream_create",
                                              "kvc_device_stream_wait",
                                              "kvc_device_stream_destroy",
                                              "kvc_device_table_create",
                                              "kvc_device_table_destroy",
                                              "kvc_device_table_update",
                                              "kvc_device_table_write",
                                              "kvc_holds_release",
                                              "kvc_manager_destroy",
                                              "kvc_pool_resize",
                                              "kvc_sequences_cancel",
                                              "kvc_sequences_commit",
                                              "kvc_sequences_create",
                                              "kvc_sequences_end",
                                              "kvc_sequences_fork",
                                              "kvc_sequences_grow",
                                              "kvc_sequences_release",
                                              "kvc_sequences_suspend",
                                              "kvc_sequences_truncate",
                                              "kvc_step",
                                              "kvc_step_done",
                                              "kvc_step_stream_create"};

struct BooksCall {
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

// A manager with everything outstanding that can be, on a device where nothing runs.
class CudaCalls : public CudaTest {
 protected:
  void SetUp() override {
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
    if (hold_.hold != 0) {
      kvc_status status = KVC_INTERNAL;
      EXPECT_EQ(kvc_holds_release(manager(), 1, &hold_.hold, &status, &error_), KVC_OK);
      EXPECT_EQ(status, KVC_OK);
    } else {
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
  std::vector<BooksCall> Books();

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
  kvc_hold_result hold_{};
  kvc_pin_result pin_{};
};

std::vector<BooksCall> CudaCalls::Books() {
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

// A new function of the ABI is in one of the two lists.
TEST_F(CudaCalls, EachIsOneOfTheBooksOrOneWithTheDevice) {
  std::set<std::string> known = kWithTheDevice;
  for (const BooksCall& books : Books()) {
    EXPECT_TRUE(known.insert(books.name).second) << books.name << " is in the lists twice";
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
  for (const BooksCall& books : Books()) {
    fakecuda_clear_log();
    EXPECT_EQ(books.call(), books.expected) << books.name << ": " << error_.message;
    EXPECT_EQ(fakecuda_calls(nullptr), 0u) << books.name;
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
