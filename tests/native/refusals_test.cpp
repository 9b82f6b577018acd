// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What would break a rule of the wire is refused where it enters the library, by
// each call through which it could, with the same words, and changes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/owned_handle.h"

namespace {

using kvcast::testing::OwnedManager;
using kvcast::testing::OwnedStream;

constexpr uint32_t kBlock = 4;
constexpr uint32_t kTokenBase = 500;

// What a call is given; right as it begins.
struct Input {
  std::vector<uint32_t> tokens{1, 2, 3, 4, 5, 6, 7, KVC_DIGEST_TOKEN(0)};
  std::string bytes = "adapter" + std::string("\0\xff", 2) + std::string(32, 'd');
  kvc_scope scope{};
  kvc_prompt prompt{};
  kvc_drop_item drop{};
  kvc_commit_item commit{};

  Input() {
    scope.parts = KVC_SCOPE_LORA_ID | KVC_SCOPE_SALT | KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES;
    scope.lora_id = INT64_MAX;
    scope.salt = UINT64_MAX;
    scope.lora_name_size = 7;
    scope.salt_bytes_offset = 7;  // which need not be text
    scope.salt_bytes_size = 2;
    prompt.token_count = tokens.size();
    prompt.digest_offset = 9;
    prompt.digest_count = 1;
    commit.token_count = 2;
    commit.token_offset = 6;
    commit.digest_offset = 9;
    commit.digest_count = 1;
  }
  void Name(const std::string& name) {
    scope.lora_name_offset = bytes.size();
    scope.lora_name_size = static_cast<uint32_t>(name.size());
    bytes += name;
  }
  [[nodiscard]] const uint8_t* raw() const {
    return reinterpret_cast<const uint8_t*>(bytes.data());
  }
};

struct Answer {
  kvc_status status;
  std::string message;
};

class RefusalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kvc_stream_config stream_config;
    kvc_stream_config_init(&stream_config);
    stream_config.multimodal = KVC_MULTIMODAL_ANNOUNCE;
    ASSERT_EQ(kvc_stream_create(&stream_config, &stream_, nullptr), KVC_OK);
    kvc_config config;
    kvc_config_init(&config);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = 32;
    config.seed = 1;
    ASSERT_EQ(kvc_manager_create(&config, stream_, &m_, nullptr), KVC_OK);
    // A closed sequence whose blocks stay, an open one with a partly filled block, and
    // a suspended one.
    closed_ = Run(3 * kBlock, 3 * kBlock);
    kvc_status status = KVC_INTERNAL;
    ASSERT_EQ(kvc_sequences_release(m_, 1, &closed_, &status, nullptr), KVC_OK);
    open_ = Run(2 * kBlock + 1, 3 * kBlock);
    suspended_ = Run(kBlock, kBlock);
    const kvc_suspend_item item{suspended_, 0, 0};
    ASSERT_EQ(kvc_sequences_suspend(m_, 1, &item, &status, nullptr), KVC_OK);
    ASSERT_EQ(status, KVC_OK);
  }
  void TearDown() override {
    const uint64_t ids[] = {open_, suspended_};
    kvc_status status[2];
    kvc_sequences_release(m_, 2, ids, status, nullptr);
    EXPECT_EQ(kvc_manager_destroy(m_, nullptr), KVC_OK);
    kvc_stream_destroy(stream_);
  }

  // An open sequence with so many tokens committed and so much room.
  uint64_t Run(uint32_t committed, uint32_t room) {
    kvc_prompt prompt{};
    prompt.scope = KVC_NO_SCOPE;
    kvc_create_result made{};
    EXPECT_EQ(
        kvc_sequences_create(m_, 1, &prompt, nullptr, 0, nullptr, 0, nullptr, 0, &made, nullptr),
        KVC_OK);
    const kvc_grow_item grow{made.sequence, room};
    kvc_grow_result grown{};
    EXPECT_EQ(kvc_sequences_grow(m_, 1, &grow, &grown, nullptr, 0, nullptr, nullptr), KVC_OK);
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < committed; ++i) tokens.push_back(next_token_++);
    const kvc_commit_item item{made.sequence, 0, committed, 0, 0, {}, 0};
    kvc_commit_result result{};
    EXPECT_EQ(
        kvc_sequences_commit(m_, 1, &item, tokens.data(), committed, nullptr, 0, &result, nullptr),
        KVC_OK);
    EXPECT_EQ(result.status, KVC_OK);
    return made.sequence;
  }

  // Everything that can be seen of manager and stream.
  std::string State() {
    std::string all;
    const auto add = [&all](const void* data, size_t size) {
      all.append(static_cast<const char*>(data), size);
    };
    kvc_error error{};
    EXPECT_EQ(kvc_manager_check(m_, &error), KVC_OK) << error.message;
    kvc_stats stats;
    kvc_stats_init(&stats);
    EXPECT_EQ(kvc_manager_stats_get(m_, &stats, nullptr), KVC_OK);
    add(&stats, sizeof stats);
    kvc_stream_stats sink;
    kvc_stream_stats_init(&sink);
    EXPECT_EQ(kvc_stream_stats_get(stream_, &sink, nullptr), KVC_OK);
    add(&sink, sizeof sink);
    kvc_histograms ages;
    kvc_histograms_init(&ages);
    EXPECT_EQ(kvc_manager_histograms_get(m_, &ages, nullptr), KVC_OK);
    add(&ages, sizeof ages);
    std::vector<kvc_resident_block> blocks(32);
    uint64_t count = 0;
    EXPECT_EQ(kvc_manager_resident(m_, KVC_HASH_BYTES, 32, blocks.data(), &count, nullptr), KVC_OK);
    add(blocks.data(), count * sizeof blocks[0]);
    for (const uint64_t id : {open_, suspended_}) {
      kvc_sequence_info info{};
      uint32_t pages[8] = {}, written = 0;
      EXPECT_EQ(kvc_sequence_get(m_, id, 0, 8, pages, &written, &info, nullptr), KVC_OK);
      add(&info, sizeof info);
      add(pages, sizeof pages);
    }
    return all;
  }

  // Makes the call, which is to be refused, and looks whether anything has changed.
  template <typename Call>
  void Refused(const std::string& what, kvc_status status, const char* message, Call&& call) {
    SCOPED_TRACE(what);
    const std::string before = State();
    const Answer got = call();
    EXPECT_EQ(got.status, status) << got.message;
    EXPECT_EQ(got.message, message);
    EXPECT_TRUE(State() == before) << "something has changed";
  }

  // One operation in a step.
  Answer Step(const kvc_op& op, const Input& in) {
    kvc_step_input input;
    kvc_step_input_init(&input);
    input.tokens = in.tokens.data();
    input.token_count = in.tokens.size();
    input.scopes = &in.scope;
    input.scope_count = 1;
    input.bytes = in.raw();
    input.byte_count = in.bytes.size();
    input.prompts = &in.prompt;
    input.prompt_count = 1;
    kvc_step_output output;
    kvc_step_output_init(&output);
    std::vector<kvc_fence> waits(64);
    output.waits = waits.data();
    output.wait_capacity = 64;
    kvc_op_result result{};
    kvc_error error{};
    EXPECT_EQ(kvc_step(m_, 1, &op, &input, &result, &output, &error), KVC_OK) << error.message;
    if (op.kind == KVC_OP_CREATE && result.status == KVC_OK) {
      kvc_status status = KVC_INTERNAL;
      kvc_sequences_cancel(m_, 1, &result.sequence, &status, nullptr);
    }
    return {result.status, error.message};
  }

  struct Entry {
    const char* name;
    std::function<Answer(const Input&)> call;
  };
  // All calls that take prompts.
  std::vector<Entry> Prompts() {
    return {
        {"create",
         [this](const Input& in) {
           kvc_error error{};
           kvc_create_result r{};
           EXPECT_EQ(kvc_sequences_create(m_, 1, &in.prompt, in.tokens.data(), in.tokens.size(),
                                          &in.scope, 1, in.raw(), in.bytes.size(), &r, &error),
                     KVC_OK);
           if (r.status == KVC_OK) {
             kvc_status status = KVC_INTERNAL;
             kvc_sequences_cancel(m_, 1, &r.sequence, &status, nullptr);
           }
           return Answer{r.status, error.message};
         }},
        {"probe",
         [this](const Input& in) {
           kvc_error error{};
           kvc_probe_result r{};
           EXPECT_EQ(kvc_probe(m_, 1, &in.prompt, in.tokens.data(), in.tokens.size(), &in.scope, 1,
                               in.raw(), in.bytes.size(), &r, &error),
                     KVC_OK);
           return Answer{r.status, error.message};
         }},
        {"residency",
         [this](const Input& in) {
           kvc_error error{};
           kvc_residency_result r{};
           kvc_block_residency blocks[8];
           EXPECT_EQ(kvc_residency(m_, 1, &in.prompt, in.tokens.data(), in.tokens.size(), &in.scope,
                                   1, in.raw(), in.bytes.size(), 8, blocks, &r, &error),
                     KVC_OK);
           return Answer{r.status, error.message};
         }},
        {"pin",
         [this](const Input& in) {
           kvc_error error{};
           kvc_pin_result r{};
           EXPECT_EQ(kvc_pin_prompts(m_, 1, &in.prompt, in.tokens.data(), in.tokens.size(),
                                     &in.scope, 1, in.raw(), in.bytes.size(), &r, &error),
                     KVC_OK);
           return Answer{r.status, error.message};
         }},
        {"create in a step",
         [this](const Input& in) {
           kvc_op op{};
           op.kind = KVC_OP_CREATE;
           return Step(op, in);
         }},
    };
  }
  Answer Drop(const Input& in) {
    kvc_error error{};
    kvc_drop_result r{};
    EXPECT_EQ(kvc_drop_scopes(m_, 1, &in.drop, &in.scope, 1, in.raw(), in.bytes.size(), &r, nullptr,
                              0, nullptr, &error),
              KVC_OK);
    return {r.status, error.message};
  }
  std::vector<Entry> Commits() {
    return {{"commit",
             [this](const Input& in) {
               kvc_error error{};
               kvc_commit_result r{};
               EXPECT_EQ(kvc_sequences_commit(m_, 1, &in.commit, in.tokens.data(), in.tokens.size(),
                                              in.raw(), in.bytes.size(), &r, &error),
                         KVC_OK);
               return Answer{r.status, error.message};
             }},
            {"commit in a step", [this](const Input& in) {
               kvc_op op{};
               op.kind = KVC_OP_COMMIT;
               op.args.commit = in.commit;
               return Step(op, in);
             }}};
  }

  kvc_stream* stream_ = nullptr;
  kvc_manager* m_ = nullptr;
  uint32_t next_token_ = kTokenBase;
  uint64_t closed_ = 0, open_ = 0, suspended_ = 0;
};

constexpr char kNameSize[] = "a LoRA name must have 1 to 255 bytes inside bytes[]";
constexpr char kNameText[] = "a LoRA name is not valid UTF-8";
constexpr char kSaltSize[] = "a byte salt must have 1 to 255 bytes inside bytes[]";
constexpr char kPromptToken[] =
    "a prompt holds a token of 2^31 or more that names none of its digests";

struct Wrong {
  const char* name;
  const char* message;
  void (*make)(Input&);
};

const Wrong kScopes[] = {
    {"not among the scopes", "a scope is outside scopes[]",
     [](Input& in) { in.prompt.scope = in.drop.scope = 1; }},
    {"unknown part", "a scope has unknown parts", [](Input& in) { in.scope.parts |= 16; }},
    {"LoRA id of 2^63", "a LoRA id is above 2^63 - 1",
     [](Input& in) { in.scope.lora_id = uint64_t{1} << 63; }},
    {"LoRA id of 2^64 - 1", "a LoRA id is above 2^63 - 1",
     [](Input& in) { in.scope.lora_id = UINT64_MAX; }},
    {"no name", kNameSize, [](Input& in) { in.scope.lora_name_size = 0; }},
    {"name of 256 bytes", kNameSize, [](Input& in) { in.Name(std::string(256, 'n')); }},
    {"name beyond the bytes", kNameSize,
     [](Input& in) { in.scope.lora_name_offset = in.bytes.size() - 6; }},
    {"name at the end of time", kNameSize,
     [](Input& in) { in.scope.lora_name_offset = UINT64_MAX; }},
    {"name of all bytes there can be", kNameSize,
     [](Input& in) { in.scope.lora_name_size = UINT32_MAX; }},
    {"lone continuation", kNameText, [](Input& in) { in.Name("a\x80"); }},
    {"cut off at the end", kNameText, [](Input& in) { in.Name("a\xe2\x82"); }},
    {"overlong", kNameText, [](Input& in) { in.Name("\xc0\xaf"); }},
    {"overlong in three", kNameText, [](Input& in) { in.Name("\xe0\x80\xaf"); }},
    {"surrogate", kNameText, [](Input& in) { in.Name("\xed\xa0\x80"); }},
    {"above U+10FFFF", kNameText, [](Input& in) { in.Name("\xf4\x90\x80\x80"); }},
    {"five bytes", kNameText, [](Input& in) { in.Name("\xf8\x88\x80\x80\x80"); }},
    {"no such byte", kNameText, [](Input& in) { in.Name("\xff"); }},
    {"Latin-1", kNameText, [](Input& in) { in.Name("caf\xe9"); }},
    {"no salt", kSaltSize, [](Input& in) { in.scope.salt_bytes_size = 0; }},
    {"salt of 256 bytes", kSaltSize,
     [](Input& in) {
       in.scope.salt_bytes_offset = in.bytes.size();
       in.scope.salt_bytes_size = 256;
       in.bytes += std::string(256, 's');
     }},
    {"salt beyond the bytes", kSaltSize,
     [](Input& in) { in.scope.salt_bytes_offset = in.bytes.size() - 1; }},
    {"salt at the end of time", kSaltSize,
     [](Input& in) { in.scope.salt_bytes_offset = UINT64_MAX; }},
};

const Wrong kPrompts[] = {
    {"token of 2^31", kPromptToken, [](Input& in) { in.prompt.digest_count = 0; }},
    {"digest that is not there", kPromptToken,
     [](Input& in) { in.tokens[2] = KVC_DIGEST_TOKEN(1); }},
    {"token of 2^32 - 1", kPromptToken, [](Input& in) { in.tokens[0] = UINT32_MAX; }},
    {"digests beyond the bytes", "a prompt's digests are outside bytes[]",
     [](Input& in) { in.prompt.digest_offset = 10; }},
    {"more digests than bytes", "a prompt's digests are outside bytes[]",
     [](Input& in) { in.prompt.digest_count = 2; }},
    {"as many digests as there can be", "a prompt's digests are outside bytes[]",
     [](Input& in) { in.prompt.digest_count = UINT32_MAX; }},
    {"digests at the end of time", "a prompt's digests are outside bytes[]",
     [](Input& in) { in.prompt.digest_offset = UINT64_MAX; }},
    {"tokens beyond the tokens", "a prompt's tokens are outside tokens[]",
     [](Input& in) { in.prompt.token_offset = 1; }},
    {"more tokens than there are", "a prompt's tokens are outside tokens[]",
     [](Input& in) { in.prompt.token_count = UINT64_MAX; }},
    {"unknown flag", "a prompt has unknown flags", [](Input& in) { in.prompt.flags = 16; }},
};

// Names, ids, salts and tokens that no batch may hold, by every call that takes prompts.
TEST_F(RefusalsTest, Prompts) {
  const auto entries = Prompts();
  for (const Entry& entry : entries) {
    EXPECT_EQ(entry.call(Input()).status, KVC_OK) << entry.name << ": nothing is wrong";
    Input longest;
    longest.Name(std::string(251, 'n') + "\xf4\x8f\xbf\xbf");  // U+10FFFF, and 255 bytes
    EXPECT_EQ(entry.call(longest).status, KVC_OK) << entry.name << ": the longest name";
  }
  const auto check = [&](const Wrong& wrong) {
    for (const Entry& entry : entries) {
      Input in;
      wrong.make(in);
      Refused(std::string(entry.name) + ": " + wrong.name, KVC_INVALID_ARGUMENT, wrong.message,
              [&] { return entry.call(in); });
    }
  };
  for (const Wrong& wrong : kScopes) check(wrong);
  for (const Wrong& wrong : kPrompts) check(wrong);
  for (const Wrong& wrong : kScopes) {
    Input in;
    wrong.make(in);
    Refused(std::string("drop: ") + wrong.name, KVC_INVALID_ARGUMENT, wrong.message,
            [&] { return Drop(in); });
  }
  // The device stream is looked at by what opens a sequence.
  for (const Entry* entry : {&entries.front(), &entries.back()}) {
    Input in;
    in.prompt.device_stream = 65;
    Refused(std::string(entry->name) + ": device stream", KVC_STALE_HANDLE,
            "device stream 65 is not open; create it with kvc_device_stream_create",
            [&] { return entry->call(in); });
  }
  Input in;
  in.drop.scope = KVC_NO_SCOPE;
  in.drop.flags = KVC_DROP_EVERY;
  Refused("drop: everything", KVC_INVALID_ARGUMENT,
          "every scope has the parts of the empty one; use kvc_manager_reset",
          [&] { return Drop(in); });
  in.drop.flags = 2;
  Refused("drop: flag", KVC_INVALID_ARGUMENT, "a drop has unknown flags", [&] { return Drop(in); });
}

// Blocks that nobody could have computed, or that say what no reader takes.
TEST_F(RefusalsTest, Commits) {
  constexpr char kToken[] =
      "a committed token is 2^31 or more and names none of the item's digests";
  constexpr char kRoom[] = "more tokens committed than the sequence has room for; grow it first";
  const struct {
    const char* name;
    kvc_status status;
    const char* message;
    void (*make)(Input&);
  } cases[] = {
      {"token of 2^31", KVC_INVALID_ARGUMENT, kToken,
       [](Input& in) { in.commit.digest_count = 0; }},
      {"token of 2^32 - 1", KVC_INVALID_ARGUMENT, kToken,
       [](Input& in) { in.tokens[6] = UINT32_MAX; }},
      {"digest that is not there", KVC_INVALID_ARGUMENT, kToken,
       [](Input& in) { in.tokens[7] = KVC_DIGEST_TOKEN(1); }},
      {"digests beyond the bytes", KVC_INVALID_ARGUMENT, "an item's digests are outside bytes[]",
       [](Input& in) { in.commit.digest_offset = 10; }},
      {"as many digests as there can be", KVC_INVALID_ARGUMENT,
       "an item's digests are outside bytes[]",
       [](Input& in) { in.commit.digest_count = UINT32_MAX; }},
      {"tokens beyond the tokens", KVC_INVALID_ARGUMENT, "an item's tokens are outside tokens[]",
       [](Input& in) { in.commit.token_offset = 7; }},
      {"more tokens than there are", KVC_INVALID_ARGUMENT, "an item's tokens are outside tokens[]",
       [](Input& in) { in.commit.token_count = UINT64_MAX; }},
      {"unknown flag", KVC_INVALID_ARGUMENT, "a commit item has unknown flags",
       [](Input& in) { in.commit.flags = 2; }},
      {"fence that nobody has", KVC_INVALID_ARGUMENT, "fence (65, 1) was never handed out",
       [](Input& in) {
         in.commit.flags = KVC_COMMIT_FENCE;
         in.commit.fence = {65, 1};
       }},
      {"beyond its room", KVC_BAD_STATE, kRoom,
       [](Input& in) {
         in.commit.token_offset = 0;
         in.commit.token_count = 4;
       }},
  };
  const auto entries = Commits();
  for (const auto& wrong : cases) {
    for (const Entry& entry : entries) {
      Input in;
      in.commit.sequence = open_;
      wrong.make(in);
      Refused(std::string(entry.name) + ": " + wrong.name, wrong.status, wrong.message,
              [&] { return entry.call(in); });
    }
  }
  for (const Entry& entry : entries) {
    Input in;
    in.commit.sequence = suspended_;
    Refused(std::string(entry.name) + ": suspended", KVC_BAD_STATE,
            "the sequence is suspended; resume it first", [&] { return entry.call(in); });
    in.commit.sequence = open_;
    in.commit.token_count = 1;
    EXPECT_EQ(entry.call(in).status, KVC_OK) << entry.name << ": nothing is wrong";
  }
}

// Ids of sequences that are not open, by every call that takes one, also in a step.
TEST_F(RefusalsTest, Ids) {
  constexpr char kStale[] = "the sequence is not open (released, or never was)";
  constexpr char kGone[] = "the sequence is not open (released already, or never was)";
  using Statuses = kvc_status (*)(kvc_manager*, uint32_t, const uint64_t*, kvc_status*, kvc_error*);
  const struct {
    const char* name;
    Statuses call;
  } lists[] = {{"release", kvc_sequences_release},
               {"cancel", kvc_sequences_cancel},
               {"end", kvc_sequences_end}};
  const uint64_t ids[] = {0,
                          7,
                          closed_,
                          open_ + (uint64_t{1} << 32),
                          open_ - (uint64_t{1} << 32),
                          open_ | 1u << 20,
                          UINT64_MAX};
  for (const uint64_t id : ids) {
    const std::string of = " of " + std::to_string(id);
    for (const auto& list : lists) {
      Refused(list.name + of, KVC_STALE_HANDLE, kGone, [&] {
        kvc_error error{};
        kvc_status status = KVC_INTERNAL;
        EXPECT_EQ(list.call(m_, 1, &id, &status, &error), KVC_OK);
        return Answer{status, error.message};
      });
    }
    for (const kvc_op_kind kind : std::initializer_list<kvc_op_kind>{
             KVC_OP_GROW, KVC_OP_COMMIT, KVC_OP_TRUNCATE, KVC_OP_STOP, KVC_OP_SUSPEND,
             KVC_OP_RESUME, KVC_OP_RELEASE, KVC_OP_CANCEL, KVC_OP_END, KVC_OP_RETAIN, KVC_OP_PIN,
             KVC_OP_FORK}) {
      const bool closes = kind >= KVC_OP_RELEASE && kind <= KVC_OP_END;
      const char* message = closes ? kGone : kStale;
      Refused("operation " + std::to_string(kind) + of, KVC_STALE_HANDLE, message, [&] {
        kvc_op op{};
        op.kind = kind;
        op.args.sequence = id;  // which stands first in all of them
        return Step(op, Input());
      });
    }
    const auto one = [&](const char* name, auto call, auto item, auto result) {
      Refused(name + of, KVC_STALE_HANDLE, kStale, [&] {
        kvc_error error{};
        item.sequence = id;
        EXPECT_EQ(call(m_, 1, &item, &result, &error), KVC_OK);
        kvc_status status = KVC_INTERNAL;  // first in each result, or all of it
        std::memcpy(&status, &result, sizeof status);
        return Answer{status, error.message};
      });
    };
    one("truncate", kvc_sequences_truncate, kvc_truncate_item{}, kvc_truncate_result{});
    one("stop", kvc_sequences_stop, kvc_stop_item{}, kvc_status{});
    one("suspend", kvc_sequences_suspend, kvc_suspend_item{}, kvc_status{});
    one("retain", kvc_sequences_retain, kvc_retain_item{}, kvc_status{});
    one("fork", kvc_sequences_fork, kvc_fork_item{}, kvc_fork_result{});
    kvc_hold_item hold{};
    hold.count = 1;
    one("hold", kvc_sequences_release_held, hold, kvc_hold_result{});
    Refused("grow" + of, KVC_STALE_HANDLE, kStale, [&] {
      kvc_error error{};
      const kvc_grow_item item{id, kBlock};
      kvc_grow_result r{};
      EXPECT_EQ(kvc_sequences_grow(m_, 1, &item, &r, nullptr, 0, nullptr, &error), KVC_OK);
      return Answer{r.status, error.message};
    });
    Refused("resume" + of, KVC_STALE_HANDLE, kStale, [&] {
      kvc_error error{};
      kvc_resume_result r{};
      EXPECT_EQ(kvc_sequences_resume(m_, 1, &id, &r, &error), KVC_OK);
      return Answer{r.status, error.message};
    });
    Refused("pin" + of, KVC_STALE_HANDLE, kStale, [&] {
      kvc_error error{};
      kvc_pin_result r{};
      EXPECT_EQ(kvc_pin_sequences(m_, 1, &id, &r, &error), KVC_OK);
      return Answer{r.status, error.message};
    });
    Refused("get" + of, KVC_STALE_HANDLE, kStale, [&] {
      kvc_error error{};
      uint32_t written = 0;
      kvc_sequence_info info{};
      const kvc_status status = kvc_sequence_get(m_, id, 0, 0, nullptr, &written, &info, &error);
      return Answer{status, error.message};
    });
  }
}

// Streams that could not keep the rules, and streams that have a manager already.
TEST(Refusals, Streams) {
  const struct {
    const char* message;
    void (*make)(kvc_stream_config&);
  } cases[] = {
      {"kvc_stream_config.struct_size is 19, not 20: call kvc_stream_config_init first",
       [](kvc_stream_config& c) { c.struct_size = 19; }},
      {"hash_form 4 is unknown; it must be one of KVC_HASH_*",
       [](kvc_stream_config& c) { c.hash_form = 4; }},
      {"max_entries is 0; it must be at least 1", [](kvc_stream_config& c) { c.max_entries = 0; }},
      {"max_blocks_per_event is 65537; the wire allows 65536 at most",
       [](kvc_stream_config& c) { c.max_blocks_per_event = 65537; }},
      {"multimodal 2 is unknown; it must be one of KVC_MULTIMODAL_*",
       [](kvc_stream_config& c) { c.multimodal = 2; }},
  };
  kvc_error error{};
  OwnedStream stream;
  for (const auto& wrong : cases) {
    kvc_stream_config config;
    kvc_stream_config_init(&config);
    wrong.make(config);
    EXPECT_EQ(kvc_stream_create(&config, stream.out(), &error), KVC_INVALID_ARGUMENT);
    EXPECT_STREQ(error.message, wrong.message);
    EXPECT_EQ(stream, nullptr);
  }
  kvc_stream_config config;
  kvc_stream_config_init(&config);
  ASSERT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_OK);
  kvc_config of;
  kvc_config_init(&of);
  of.capacity_blocks = 4;
  OwnedManager manager;
  // A block size of 0, or one that no event could hold, never gets near a stream.
  for (const uint32_t size : {0u, 4097u, UINT32_MAX}) {
    of.tokens_per_block = size;
    EXPECT_EQ(kvc_manager_create(&of, stream, manager.out(), &error), KVC_INVALID_ARGUMENT);
    EXPECT_EQ(error.message, "tokens_per_block is " + std::to_string(size) + ", must be 1 to 4096");
  }
  of.tokens_per_block = 4;
  ASSERT_EQ(kvc_manager_create(&of, stream, manager.out(), &error), KVC_OK) << error.message;
  // Two that store the same: a block would be stored twice.
  OwnedManager other;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(kvc_manager_create(&of, stream, other.out(), &error), KVC_BUSY);
    EXPECT_STREQ(error.message, "the stream has had a manager already; create another stream");
    EXPECT_EQ(other, nullptr);
    if (manager != nullptr) {
      EXPECT_EQ(kvc_manager_destroy(manager.Take(), nullptr), KVC_OK);
    }
  }
}

}  // namespace
