// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What tests need that see the library as its users do, through the C ABI
// alone: a manager with its stream, and a subscriber's mirror. No GoogleTest
// here, so that fuzzers and measuring programs can use it too: what is wrong
// comes back as text, "" being good.
#ifndef KVCAST_TESTS_NATIVE_ABI_SUPPORT_H_
#define KVCAST_TESTS_NATIVE_ABI_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/digest_support.h"
#include "tests/native/owned_handle.h"
#include "tests/native/stepper.h"

namespace kvcast::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

// A number from the environment, so that a run can be repeated or prolonged.
inline uint64_t EnvNumber(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

// A scope as a test writes it.
struct ScopeSpec {
  std::optional<uint64_t> lora_id;
  std::optional<uint64_t> salt;
  std::string lora_name;
  std::string salt_bytes;

  [[nodiscard]] uint32_t parts() const {
    uint32_t all = 0;
    if (lora_id) all |= KVC_SCOPE_LORA_ID;
    if (salt) all |= KVC_SCOPE_SALT;
    if (!lora_name.empty()) all |= KVC_SCOPE_LORA_NAME;
    if (!salt_bytes.empty()) all |= KVC_SCOPE_SALT_BYTES;
    return all;
  }
};

// What else a prompt may say.
struct PromptOptions {
  uint32_t flags = 0;
  uint64_t stop_before = 0;
  uint32_t match_backoff = 0;
};

// Prompts with everything that the arrays of a call need.
class PromptList {
 public:
  void Add(const std::vector<uint32_t>& tokens, const ScopeSpec& scope, uint32_t must_compute,
           uint64_t device_stream, const PromptOptions& options = {}) {
    kvc_prompt prompt{};
    prompt.flags = options.flags;
    prompt.stop_before = options.stop_before;
    prompt.match_backoff = options.match_backoff;
    const ItemTokens item(tokens.data(), tokens.size());
    prompt.token_offset = tokens_.size();
    prompt.token_count = tokens.size();
    prompt.digest_offset = bytes_.size();
    prompt.digest_count = item.digest_count();
    bytes_.insert(bytes_.end(), item.digests.begin(), item.digests.end());
    prompt.device_stream = device_stream;
    prompt.must_compute = must_compute;
    prompt.scope = KVC_NO_SCOPE;
    tokens_.insert(tokens_.end(), item.tokens.begin(), item.tokens.end());
    if (scope.parts() != 0) {
      kvc_scope raw{};
      raw.parts = scope.parts();
      raw.lora_id = scope.lora_id.value_or(0);
      raw.salt = scope.salt.value_or(0);
      raw.lora_name_offset = bytes_.size();
      raw.lora_name_size = static_cast<uint32_t>(scope.lora_name.size());
      bytes_.insert(bytes_.end(), scope.lora_name.begin(), scope.lora_name.end());
      raw.salt_bytes_offset = bytes_.size();
      raw.salt_bytes_size = static_cast<uint32_t>(scope.salt_bytes.size());
      bytes_.insert(bytes_.end(), scope.salt_bytes.begin(), scope.salt_bytes.end());
      prompt.scope = static_cast<uint32_t>(scopes_.size());
      scopes_.push_back(raw);
    }
    prompts_.push_back(prompt);
  }
  kvc_status Create(kvc_manager* manager, kvc_create_result* results, kvc_error* error) const {
    return kvc_sequences_create(manager, count(), prompts_.data(), tokens_.data(), tokens_.size(),
                                scopes_.data(), static_cast<uint32_t>(scopes_.size()),
                                bytes_.data(), bytes_.size(), results, error);
  }
  [[nodiscard]] kvc_create_result CreateFirst(Stepper* step) const {
    return step->Create(prompts_[0], tokens_, scopes_, bytes_);
  }
  kvc_status Probe(kvc_manager* manager, kvc_probe_result* results, kvc_error* error) const {
    return kvc_probe(manager, count(), prompts_.data(), tokens_.data(), tokens_.size(),
                     scopes_.data(), static_cast<uint32_t>(scopes_.size()), bytes_.data(),
                     bytes_.size(), results, error);
  }
  kvc_status Pin(kvc_manager* manager, kvc_pin_result* results, kvc_error* error) const {
    return kvc_pin_prompts(manager, count(), prompts_.data(), tokens_.data(), tokens_.size(),
                           scopes_.data(), static_cast<uint32_t>(scopes_.size()), bytes_.data(),
                           bytes_.size(), results, error);
  }
  kvc_status DropFirstScope(kvc_manager* manager, bool every, std::vector<kvc_evicted_block>* told,
                            kvc_drop_result* result) const {
    const kvc_drop_item item{prompts_[0].scope, every ? uint32_t{KVC_DROP_EVERY} : 0};
    uint32_t count = 0;
    const kvc_status status = kvc_drop_scopes(
        manager, 1, &item, scopes_.data(), static_cast<uint32_t>(scopes_.size()), bytes_.data(),
        bytes_.size(), result, told->data(), static_cast<uint32_t>(told->size()), &count, nullptr);
    told->resize(count);
    return status;
  }
  kvc_status Residency(kvc_manager* manager, std::vector<kvc_block_residency>* blocks,
                       kvc_residency_result* results, kvc_error* error) const {
    return kvc_residency(manager, count(), prompts_.data(), tokens_.data(), tokens_.size(),
                         scopes_.data(), static_cast<uint32_t>(scopes_.size()), bytes_.data(),
                         bytes_.size(), blocks->size(), blocks->data(), results, error);
  }

 private:
  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(prompts_.size()); }

  std::vector<kvc_prompt> prompts_;
  std::vector<uint32_t> tokens_;
  std::vector<kvc_scope> scopes_;
  std::vector<uint8_t> bytes_;
};

struct CacheOptions {
  uint32_t block = 2;
  uint32_t pages = 8;
  uint32_t sequences = 4;
  uint64_t page_bytes = 16;
  bool poison = true;
  uint64_t seed = 1;
  bool stream = true;
  uint32_t entries = 50000;
  kvc_hash_form form = KVC_HASH_SIGNED64;
  uint32_t run = 0;   // blocks per event
  uint32_t pins = 0;  // max_pinned_pages
  kvc_policy policy = KVC_POLICY_LRU;
  uint32_t tau = 1000;
  uint32_t ghosts = 0;  // lrfu_ghosts
  kvc_multimodal multimodal = KVC_MULTIMODAL_SUPPRESS;
  uint32_t digests = 0;  // at most; 0 = as many as fit
  uint32_t gate = 1000;  // none, unless a test is about it
  uint32_t pending = 0;  // max_pending_blocks
  bool partial = false;  // partial_reuse
  kvc_device_kind device = KVC_DEVICE_HOST;
  kvc_copy_method copies = KVC_COPY_PUBLISHED;  // of a GPU
  uint32_t most = 0;                            // max_blocks
  uint32_t least = 0;                           // min_blocks

  [[nodiscard]] uint32_t MostPages() const { return most != 0 ? most : pages; }
};

// What a resize told.
struct Resized {
  kvc_status status = KVC_OK;
  kvc_resize_result result{};
  std::vector<kvc_page_move> moves;
  std::vector<kvc_evicted_block> evicted;
};

// A manager with a stream. Its destructor cleans up whatever the test left
// behind, so that a failing test fails for one reason only.
class Cache {
 public:
  explicit Cache(const CacheOptions& options) : options_(options) {
    kvc_error error{};
    if (options.stream) {
      kvc_stream_config config;
      kvc_stream_config_init(&config);
      config.hash_form = options.form;
      config.max_entries = options.entries;
      config.max_blocks_per_event = options.run;
      config.multimodal = options.multimodal;
      if (kvc_stream_create(&config, &stream_, &error) != KVC_OK) {
        throw std::runtime_error(error.message);
      }
    }
    kvc_config config;
    kvc_config_init(&config);
    config.flags = options.poison ? KVC_CONFIG_POISON : 0;
    config.tokens_per_block = options.block;
    config.capacity_blocks = options.pages;
    config.max_sequences = options.sequences;
    config.page_bytes = options.page_bytes;
    config.seed = options.seed;
    config.max_pinned_pages = options.pins;
    config.policy = options.policy;
    config.lrfu_tau = options.tau;
    config.lrfu_ghosts = options.ghosts;
    config.resume_gate_permille = options.gate;
    config.max_digests = options.digests;
    config.max_pending_blocks = options.pending;
    config.partial_reuse = options.partial ? 1 : 0;
    config.device = options.device;
    config.copies = options.copies;
    config.max_blocks = options.most;
    config.min_blocks = options.least;
    if (kvc_manager_create(&config, stream_, &manager_, &error) != KVC_OK) {
      kvc_stream_destroy(stream_);
      throw std::runtime_error(error.message);
    }
  }
  ~Cache() {
    for (const uint64_t id : open_) {
      kvc_status status = KVC_OK;
      kvc_sequences_release(manager_, 1, &id, &status, nullptr);
    }
    for (const uint64_t id : holds_) {
      kvc_status status = KVC_OK;
      kvc_holds_release(manager_, 1, &id, &status, nullptr);
    }
    kvc_manager_destroy(manager_, nullptr);
    kvc_stream_destroy(stream_);
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  [[nodiscard]] kvc_manager* manager() const { return manager_; }
  [[nodiscard]] kvc_stream* stream() const { return stream_; }
  [[nodiscard]] const CacheOptions& options() const { return options_; }
  [[nodiscard]] const std::set<uint64_t>& open() const { return open_; }

  kvc_create_result Create(const std::vector<uint32_t>& tokens, const ScopeSpec& scope = {},
                           uint32_t must_compute = KVC_COMPUTE_NOTHING, uint64_t device_stream = 0,
                           const PromptOptions& options = {}) {
    PromptList prompts;
    prompts.Add(tokens, scope, must_compute, device_stream, options);
    kvc_create_result result{};
    if (Stepped([&](Stepper* step) { result = prompts.CreateFirst(step); })) {
      if (noting()) return result;
    } else {
      const kvc_status status = prompts.Create(manager_, &result, nullptr);
      if (status != KVC_OK) result.status = status;
    }
    if (result.status == KVC_OK) open_.insert(result.sequence);
    return result;
  }
  kvc_probe_result Probe(const std::vector<uint32_t>& tokens, const ScopeSpec& scope = {},
                         uint32_t must_compute = KVC_COMPUTE_NOTHING,
                         const PromptOptions& options = {}) {
    PromptList prompts;
    prompts.Add(tokens, scope, must_compute, 0, options);
    kvc_probe_result result{};
    const kvc_status status = prompts.Probe(manager_, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  // The resident blocks of a prompt.
  kvc_residency_result Residency(const std::vector<uint32_t>& tokens, const ScopeSpec& scope,
                                 uint32_t must_compute, std::vector<kvc_block_residency>* blocks) {
    PromptList prompts;
    prompts.Add(tokens, scope, must_compute, 0);
    kvc_residency_result result{};
    blocks->resize(tokens.size() / options_.block);
    const kvc_status status = prompts.Residency(manager_, blocks, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    blocks->resize(result.status == KVC_OK ? result.resident_blocks : 0);
    return result;
  }
  // `told`, as long as it comes, takes what was evicted.
  kvc_grow_result Grow(uint64_t id, uint64_t capacity_tokens,
                       std::vector<kvc_evicted_block>* told = nullptr) {
    const kvc_grow_item item{id, capacity_tokens};
    kvc_grow_result result{};
    if (Stepped([&](Stepper* step) { result = step->Grow(id, capacity_tokens, told); })) {
      return result;
    }
    uint32_t count = 0;
    const kvc_status status = kvc_sequences_grow(
        manager_, 1, &item, &result, told != nullptr ? told->data() : nullptr,
        told != nullptr ? static_cast<uint32_t>(told->size()) : 0, &count, nullptr);
    if (status != KVC_OK) result.status = status;
    if (told != nullptr) told->resize(count);
    return result;
  }
  kvc_commit_result Commit(uint64_t id, const uint32_t* tokens, uint64_t count,
                           const kvc_fence* fence = nullptr) {
    const ItemTokens given(tokens, count);
    kvc_commit_item item{id, 0, count, 0, given.digest_count(), {}, 0};
    if (fence != nullptr) {
      item.flags = KVC_COMMIT_FENCE;
      item.fence = *fence;
    }
    kvc_commit_result result{};
    if (Stepped([&](Stepper* step) {
          result = step->Commit(item, given.tokens.data(), given.digests.data());
        }))
      return result;
    const kvc_status status =
        kvc_sequences_commit(manager_, 1, &item, given.tokens.data(), count, given.digests.data(),
                             given.digests.size(), &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  kvc_status Release(uint64_t id) {
    kvc_status result = KVC_OK;
    kvc_status status = KVC_OK;
    if (!Stepped([&](Stepper* step) { result = step->Close(KVC_OP_RELEASE, id); })) {
      status = kvc_sequences_release(manager_, 1, &id, &result, nullptr);
    }
    if (status == KVC_OK && result == KVC_OK) open_.erase(id);
    return status != KVC_OK ? status : result;
  }
  kvc_status Cancel(uint64_t id) {
    kvc_status result = KVC_OK;
    kvc_status status = KVC_OK;
    if (!Stepped([&](Stepper* step) { result = step->Close(KVC_OP_CANCEL, id); })) {
      status = kvc_sequences_cancel(manager_, 1, &id, &result, nullptr);
    }
    if (status == KVC_OK && result == KVC_OK) open_.erase(id);
    return status != KVC_OK ? status : result;
  }
  kvc_hold_result ReleaseHeld(uint64_t id, uint32_t count, bool cancel) {
    const kvc_hold_item item{id, count, cancel ? uint32_t{KVC_HOLD_CANCEL} : 0};
    kvc_hold_result result{};
    if (Stepped([&](Stepper* step) { result = step->Hold(item); })) {
      if (noting()) return result;
    } else {
      const kvc_status status = kvc_sequences_release_held(manager_, 1, &item, &result, nullptr);
      if (status != KVC_OK) result.status = status;
    }
    if (result.status == KVC_OK) {
      open_.erase(id);
      for (uint32_t i = 0; i < count; ++i) holds_.insert(result.hold);
    }
    return result;
  }
  kvc_status ReleaseHold(uint64_t hold) {
    kvc_status result = KVC_OK;
    kvc_status status = KVC_OK;
    if (Stepped([&](Stepper* step) { result = step->Close(KVC_OP_RELEASE_HOLD, hold); })) {
      if (noting()) return result;
    } else {
      status = kvc_holds_release(manager_, 1, &hold, &result, nullptr);
    }
    const auto at = holds_.find(hold);
    if (status == KVC_OK && result == KVC_OK && at != holds_.end()) holds_.erase(at);
    return status != KVC_OK ? status : result;
  }
  kvc_status Suspend(uint64_t id, bool keep) {
    const kvc_suspend_item item{id, keep ? uint32_t{KVC_SUSPEND_KEEP} : 0, 0};
    kvc_status result = KVC_OK;
    if (Stepped([&](Stepper* step) { result = step->Suspend(item); })) return result;
    const kvc_status status = kvc_sequences_suspend(manager_, 1, &item, &result, nullptr);
    return status != KVC_OK ? status : result;
  }
  // Up to `capacity` of those whose waits are over.
  std::vector<kvc_waiter> TakeWaiters(size_t capacity) {
    std::vector<kvc_waiter> all(capacity);
    uint32_t count = 0;
    if (kvc_waiters_take(manager_, static_cast<uint32_t>(capacity), all.data(), &count, nullptr) !=
        KVC_OK) {
      throw std::runtime_error("the waiters cannot be taken");
    }
    all.resize(count);
    return all;
  }
  kvc_resume_result Resume(uint64_t id) {
    kvc_resume_result result{};
    if (Stepped([&](Stepper* step) { result = step->Resume(id); })) return result;
    const kvc_status status = kvc_sequences_resume(manager_, 1, &id, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  kvc_fork_result Fork(uint64_t id, uint64_t device_stream) {
    const kvc_fork_item item{id, device_stream};
    kvc_fork_result result{};
    if (Stepped([&](Stepper* step) { result = step->Fork(item); })) {
      if (noting()) return result;
    } else {
      const kvc_status status = kvc_sequences_fork(manager_, 1, &item, &result, nullptr);
      if (status != KVC_OK) result.status = status;
    }
    if (result.status == KVC_OK) open_.insert(result.sequence);
    return result;
  }
  kvc_truncate_result Truncate(uint64_t id, uint64_t capacity_tokens) {
    const kvc_truncate_item item{id, capacity_tokens};
    kvc_truncate_result result{};
    if (Stepped([&](Stepper* step) { result = step->Truncate(item); })) return result;
    const kvc_status status = kvc_sequences_truncate(manager_, 1, &item, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  kvc_status Stop(uint64_t id, uint64_t stop_before) {
    const kvc_stop_item item{id, stop_before};
    kvc_status result = KVC_OK;
    if (Stepped([&](Stepper* step) { result = step->Stop(item); })) return result;
    const kvc_status status = kvc_sequences_stop(manager_, 1, &item, &result, nullptr);
    return status != KVC_OK ? status : result;
  }
  kvc_pin_result Pin(uint64_t id) {
    kvc_pin_result result{};
    if (Stepped([&](Stepper* step) { result = step->Pin(id); })) return result;
    const kvc_status status = kvc_pin_sequences(manager_, 1, &id, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  kvc_pin_result PinPrompt(const std::vector<uint32_t>& tokens, const ScopeSpec& scope,
                           uint32_t must_compute) {
    PromptList prompts;
    prompts.Add(tokens, scope, must_compute, 0);
    kvc_pin_result result{};
    const kvc_status status = prompts.Pin(manager_, &result, nullptr);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  kvc_status Unpin(uint64_t pin) {
    kvc_status result = KVC_OK;
    if (Stepped([&](Stepper* step) { result = step->Close(KVC_OP_UNPIN, pin); })) return result;
    const kvc_status status = kvc_unpin(manager_, 1, &pin, &result, nullptr);
    return status != KVC_OK ? status : result;
  }
  // `told`, as long as it comes, takes what left the tree.
  kvc_drop_result DropScope(const ScopeSpec& scope, bool every,
                            std::vector<kvc_evicted_block>* told) {
    PromptList prompts;
    prompts.Add({}, scope, 0, 0);
    kvc_drop_result result{};
    const kvc_status status = prompts.DropFirstScope(manager_, every, told, &result);
    if (status != KVC_OK) result.status = status;
    return result;
  }
  // As Release, for a conversation that is over.
  kvc_status End(uint64_t id) {
    kvc_status result = KVC_OK;
    kvc_status status = KVC_OK;
    if (!Stepped([&](Stepper* step) { result = step->Close(KVC_OP_END, id); })) {
      status = kvc_sequences_end(manager_, 1, &id, &result, nullptr);
    }
    if (status == KVC_OK && result == KVC_OK) open_.erase(id);
    return status != KVC_OK ? status : result;
  }
  kvc_status Retain(uint64_t id, uint64_t first, uint64_t end, uint32_t priority,
                    uint64_t expires_ns) {
    const kvc_retain_item item{id, first, end, expires_ns, priority, 0};
    kvc_status result = KVC_OK;
    if (Stepped([&](Stepper* step) { result = step->Retain(item); })) return result;
    const kvc_status status = kvc_sequences_retain(manager_, 1, &item, &result, nullptr);
    return status != KVC_OK ? status : result;
  }
  kvc_status Get(uint64_t id, kvc_sequence_info* info, std::vector<uint32_t>* pages) {
    uint32_t written = 0;
    pages->resize(options_.MostPages());
    const kvc_status status = kvc_sequence_get(manager_, id, 0, options_.MostPages(), pages->data(),
                                               &written, info, nullptr);
    pages->resize(status == KVC_OK ? written : 0);
    return status;
  }
  // With room to tell everything.
  Resized Resize(uint32_t target, uint32_t max_pages = UINT32_MAX) {
    Resized made;
    const uint32_t room = std::min(max_pages, options_.MostPages());
    made.moves.resize(room);
    made.evicted.resize(room);
    made.status = kvc_pool_resize(manager_, target, max_pages, made.moves.data(), room,
                                  made.evicted.data(), room, &made.result, nullptr);
    made.moves.resize(made.result.moved_pages);
    made.evicted.resize(made.result.evicted_blocks);
    return made;
  }
  // Lets the host device do all that has been queued, memory included.
  void Advance() { (void)kvc_host_advance(manager_, 0, UINT64_MAX, nullptr, nullptr); }
  // Ends the manager early; the stream can still be drained.
  kvc_status Close(kvc_error* error = nullptr) {
    const kvc_status status = kvc_manager_destroy(manager_, error);
    if (status == KVC_OK) manager_ = nullptr;
    return status;
  }
  kvc_status Drain(kvc_borrowed_batch* batch, uint64_t max_events = 0, uint64_t max_blocks = 0) {
    return kvc_stream_drain(stream_, max_events, max_blocks, batch, nullptr);
  }
  [[nodiscard]] std::string Check() const {
    kvc_error error{};
    return kvc_manager_check(manager_, &error) == KVC_OK ? "" : std::string(error.message);
  }
  [[nodiscard]] kvc_stats Stats() const {
    kvc_stats stats;
    kvc_stats_init(&stats);
    if (kvc_manager_stats_get(manager_, &stats, nullptr) != KVC_OK) stats = {};
    return stats;
  }
  [[nodiscard]] kvc_stream_stats StreamStats() const {
    kvc_stream_stats stats;
    kvc_stream_stats_init(&stats);
    if (kvc_stream_stats_get(stream_, &stats, nullptr) != KVC_OK) stats = {};
    return stats;
  }
  [[nodiscard]] std::vector<kvc_resident_block> Resident() const {
    std::vector<kvc_resident_block> blocks(Stats().blocks);
    uint64_t count = 0;
    const kvc_status status = kvc_manager_resident(manager_, options_.form, blocks.size(),
                                                   blocks.data(), &count, nullptr);
    if (status != KVC_OK || count != blocks.size()) throw std::runtime_error("resident failed");
    return blocks;
  }

  // From now on the calls of sequences are noted and answered by the step; nullptr: no more.
  void Through(Stepper* step) { step_ = step; }
  [[nodiscard]] Stepper* step() const { return step_; }
  // Each such call is made as a step of one operation.
  void ThroughSteps(bool on) { alone_ = on; }

 private:
  [[nodiscard]] bool noting() const { return step_ != nullptr && step_->noting(); }
  // Whether the call was made by a step.
  template <typename Call>
  bool Stepped(Call&& call) {
    if (step_ != nullptr) {
      call(step_);
      return true;
    }
    if (!alone_) return false;
    Stepper step(manager_);
    call(&step);
    step.Run();
    call(&step);
    return true;
  }

  CacheOptions options_;
  kvc_stream* stream_ = nullptr;
  kvc_manager* manager_ = nullptr;
  std::set<uint64_t> open_;
  std::multiset<uint64_t> holds_;
  Stepper* step_ = nullptr;
  bool alone_ = false;
};

// How a block is named on the wire: 8 bytes of hash or 32 of digest.
using WireKey = std::string;

inline WireKey HashKey(uint64_t hash) {
  return {reinterpret_cast<const char*>(&hash), sizeof hash};
}

// What a subscriber knows, from events alone.
class WireMirror {
 public:
  struct Block {
    WireKey parent;  // "" is a root
    std::vector<uint32_t> tokens;
    uint32_t children = 0;
    uint32_t parts = 0;  // of the scope, as far as it goes on the wire
    uint64_t lora_id = 0;
    std::string lora_name;

    friend bool operator==(const Block& a, const Block& b) {
      return a.parent == b.parent && a.tokens == b.tokens && a.children == b.children &&
             a.parts == b.parts && a.lora_id == b.lora_id && a.lora_name == b.lora_name;
    }
  };

  // Hears of each removal and says what is wrong with it; may be empty.
  std::function<std::string(const WireKey&, kvc_evicted_reason)> on_removed;

  WireMirror(kvc_hash_form form, uint32_t block_size) : form_(form), block_size_(block_size) {}

  [[nodiscard]] const std::map<WireKey, Block>& blocks() const { return blocks_; }

  [[nodiscard]] WireKey KeyOf(const kvc_borrowed_batch& batch, uint64_t index) const {
    if (form_ != KVC_HASH_BYTES) return HashKey(batch.hashes[index]);
    return {reinterpret_cast<const char*>(batch.digests) + 32 * index, 32};
  }
  [[nodiscard]] WireKey ParentOf(const kvc_borrowed_batch& batch, uint64_t event) const {
    if ((batch.events[event].flags & KVC_EVENT_HAS_PARENT) == 0) return "";
    if (form_ != KVC_HASH_BYTES) return HashKey(batch.events[event].parent_hash);
    return {reinterpret_cast<const char*>(batch.parent_digests) + 32 * event, 32};
  }

  // Applies a batch; says what in it breaks the contract.
  [[nodiscard]] std::string Apply(const kvc_borrowed_batch& batch) {
    uint64_t hashes = 0;
    uint64_t tokens = 0;
    for (uint64_t e = 0; e < batch.event_count; ++e) {
      const kvc_event& event = batch.events[e];
      if (event.hash_offset != hashes || event.token_offset != tokens) {
        return "an event's arrays do not follow those of the event before it";
      }
      hashes += event.hash_count;
      tokens += event.token_count;
      if (hashes > batch.hash_count || tokens > batch.token_count) {
        return "an event reaches beyond the batch";
      }
      std::string wrong;
      if (event.kind == KVC_EVENT_CLEARED) {
        if (batch.event_count != 1) wrong = "a clear is not alone in its batch";
        blocks_.clear();
      } else if (event.hash_count == 0) {
        wrong = "an event without blocks";
      } else if (event.kind == KVC_EVENT_STORED) {
        wrong = Stored(batch, e);
      } else if (event.kind == KVC_EVENT_REMOVED) {
        wrong = Removed(batch, event);
      } else {
        wrong = "an event of an unknown kind";
      }
      if (!wrong.empty()) return wrong;
    }
    if (hashes != batch.hash_count || tokens != batch.token_count) {
      return "the batch holds blocks or tokens of no event";
    }
    return "";
  }

  // Compares with what the tree itself says is announced.
  [[nodiscard]] std::string Compare(const std::vector<kvc_resident_block>& resident,
                                    bool all_announced) const {
    std::set<WireKey> announced;
    for (const kvc_resident_block& block : resident) {
      if (block.announced != 0) {
        announced.insert(form_ == KVC_HASH_BYTES
                             ? WireKey(reinterpret_cast<const char*>(block.digest), 32)
                             : HashKey(block.hash));
      } else if (all_announced) {
        return "a resident block has not been announced";
      }
    }
    if (announced.size() != blocks_.size()) {
      return "the mirror has " + std::to_string(blocks_.size()) + " blocks, the tree " +
             std::to_string(announced.size());
    }
    for (const WireKey& key : announced) {
      if (blocks_.count(key) == 0) return "a resident block is not in the mirror";
    }
    return "";
  }

 private:
  std::string Stored(const kvc_borrowed_batch& batch, uint64_t index) {
    const kvc_event& event = batch.events[index];
    if (event.block_size != block_size_ || event.token_count != event.hash_count * block_size_) {
      return "a store's tokens do not fit its blocks";
    }
    if (event.scope >= batch.scope_count) return "a store's scope is outside scopes[]";
    for (uint64_t i = 0; i < event.hash_count; ++i) {
      if (batch.reasons[event.hash_offset + i] != 0) return "a stored block has a reason to go";
    }
    const kvc_event_scope& scope = batch.scopes[event.scope];
    if ((scope.parts & ~uint32_t{KVC_SCOPE_LORA_ID | KVC_SCOPE_LORA_NAME}) != 0) {
      return "a salt in a batch";
    }
    if (scope.lora_name_offset > batch.string_size ||
        scope.lora_name_size > batch.string_size - scope.lora_name_offset) {
      return "a LoRA name is outside strings[]";
    }
    WireKey parent = ParentOf(batch, index);
    if (!parent.empty() && blocks_.count(parent) == 0) return "stored under an unknown parent";
    std::string wrong;
    const std::vector<uint32_t> all_tokens = EventTokens(batch, event, &wrong);
    if (!wrong.empty()) return wrong;
    for (uint64_t i = 0; i < event.hash_count; ++i) {
      const WireKey key = KeyOf(batch, event.hash_offset + i);
      Block block;
      block.parent = parent;
      const uint32_t* tokens = all_tokens.data() + i * block_size_;
      block.tokens.assign(tokens, tokens + block_size_);
      block.parts = scope.parts;
      block.lora_id = (scope.parts & KVC_SCOPE_LORA_ID) != 0 ? scope.lora_id : 0;
      block.lora_name.assign(batch.strings + scope.lora_name_offset, scope.lora_name_size);
      if (!blocks_.emplace(key, std::move(block)).second) return "a block was stored twice";
      if (!parent.empty()) ++blocks_.at(parent).children;
      parent = key;
    }
    return "";
  }
  std::string Removed(const kvc_borrowed_batch& batch, const kvc_event& event) {
    for (uint64_t i = 0; i < event.hash_count; ++i) {
      const WireKey key = KeyOf(batch, event.hash_offset + i);
      const auto at = blocks_.find(key);
      if (at == blocks_.end()) return "removed without having been stored";
      const kvc_evicted_reason reason = batch.reasons[event.hash_offset + i];
      if (reason < KVC_EVICTED_CAPACITY || reason > KVC_EVICTED_SCOPE) {
        return "removed for no reason";
      }
      if (on_removed) {
        if (const std::string wrong = on_removed(key, reason); !wrong.empty()) return wrong;
      }
      if (at->second.children != 0) return "removed before its children";
      if (!at->second.parent.empty()) --blocks_.at(at->second.parent).children;
      blocks_.erase(at);
    }
    return "";
  }

  kvc_hash_form form_;
  uint32_t block_size_;
  std::map<WireKey, Block> blocks_;
};

// Drains until nothing is left and nothing is deferred. Healing comes at up to
// 256 blocks a drain but is bounded by time, so the bound on rounds is ample.
inline std::string DrainAll(Cache& cache, WireMirror& mirror) {
  for (int round = 0; round < 100000; ++round) {
    kvc_borrowed_batch batch;
    const kvc_status status = cache.Drain(&batch);
    if (status == KVC_END) return "";
    if (status != KVC_OK) return std::string("drain: ") + kvc_status_name(status);
    std::string wrong = mirror.Apply(batch);
    if (!wrong.empty()) return wrong;
    if (batch.event_count == 0 && batch.pending_blocks == 0 && batch.remaining_bytes == 0) {
      return "";
    }
  }
  return "the stream does not come to rest";
}

// Reads a snapshot to its end.
inline std::string ReadSnapshot(kvc_snapshot* snapshot, uint64_t max_events, uint64_t max_blocks,
                                WireMirror& mirror) {
  for (;;) {
    kvc_borrowed_batch batch;
    const kvc_status status =
        kvc_stream_snapshot_next(snapshot, max_events, max_blocks, &batch, nullptr);
    if (status == KVC_END) return "";
    if (status != KVC_OK) return std::string("snapshot: ") + kvc_status_name(status);
    if (batch.event_count == 0) return "an empty batch of a snapshot";
    if (max_events != 0 && batch.event_count > max_events) return "too many events in a batch";
    if (max_blocks != 0 && batch.hash_count > max_blocks) return "too many blocks in a batch";
    for (uint64_t e = 0; e < batch.event_count; ++e) {
      if (batch.events[e].kind != KVC_EVENT_STORED) return "a snapshot does not only store";
    }
    std::string wrong = mirror.Apply(batch);
    if (!wrong.empty()) return "snapshot: " + wrong;
  }
}

// Who begins with a snapshot knows what `mirror` knows, which has seen all that
// has been drained.
inline std::string SnapshotIs(kvc_stream* stream, const WireMirror& mirror, kvc_hash_form form,
                              uint32_t block_size) {
  OwnedSnapshot snapshot;
  kvc_error error{};
  if (kvc_stream_snapshot_open(stream, snapshot.out(), &error) != KVC_OK) return error.message;
  WireMirror other(form, block_size);
  std::string wrong =
      ReadSnapshot(snapshot, mirror.blocks().size() % 4, mirror.blocks().size() % 7, other);
  if (wrong.empty() && !(other.blocks() == mirror.blocks())) {
    wrong = "a snapshot is not what has been drained";
  }
  return wrong;
}

// What must hold between the counters at any quiet point.
inline std::string Balance(const Cache& cache) {
  const kvc_stats m = cache.Stats();
  if (m.live_pages + m.cached_pages + m.free_pages + m.quarantined_pages + m.leaving_pages !=
      m.total_pages) {
    return "the pages do not add up";
  }
  if (m.blocks != m.stored_blocks - m.evicted_blocks - m.reset_blocks - m.dropped_blocks) {
    return "the blocks do not add up";
  }
  if (!cache.options().stream) return "";
  const kvc_stream_stats s = cache.StreamStats();
  if (s.deferred_blocks != s.healed_blocks + s.deferred_evicted_blocks + s.pending_blocks) {
    return "deferred != healed + evicted + pending";
  }
  if (s.announced_blocks != s.stored_blocks - s.removed_blocks - s.cleared_blocks) {
    return "announced != stored - removed - cleared";
  }
  if (s.removed_blocks != s.removed_capacity_blocks + s.removed_ttl_blocks +
                              s.removed_ended_blocks + s.removed_scope_blocks) {
    return "removed != the sum of its reasons";
  }
  if (s.removed_ttl_blocks > m.evicted_ttl_blocks ||
      s.removed_ended_blocks > m.evicted_ended_blocks ||
      s.removed_scope_blocks > m.dropped_blocks) {
    return "more blocks were removed for a reason than went for it";
  }
  if (s.announced_blocks + s.pending_blocks + s.suppressed_blocks != m.blocks) {
    return "announced + pending + suppressed != blocks";
  }
  return "";
}

// Everything at once, with the stream drained.
inline std::string Quiet(Cache& cache, WireMirror& mirror) {
  std::string wrong = DrainAll(cache, mirror);
  if (wrong.empty()) wrong = cache.Check();
  if (wrong.empty()) wrong = Balance(cache);
  if (wrong.empty()) {
    wrong = mirror.Compare(cache.Resident(), cache.StreamStats().suppressed_blocks == 0);
  }
  if (wrong.empty() && cache.options().stream) {
    wrong = SnapshotIs(cache.stream(), mirror, cache.options().form, cache.options().block);
  }
  return wrong;
}

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_ABI_SUPPORT_H_
