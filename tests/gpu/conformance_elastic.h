// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A pool that grows and shrinks with live data in it, on every device that the rest of
// the conformance suite runs on, through the C ABI alone. Where memory does not come and
// go (`plain`) the pool has what it had at first, and does the same within that.
#ifndef KVCAST_TESTS_GPU_CONFORMANCE_ELASTIC_H_
#define KVCAST_TESTS_GPU_CONFORMANCE_ELASTIC_H_

#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/gpu/conformance.h"

namespace kvcast::testing {

class ElasticConformance {
 public:
  ElasticConformance(const Backend& backend, uint64_t seed, uint32_t rounds, bool plain = false)
      : backend_(backend), random_(seed), rounds_(rounds), plain_(plain) {}
  ~ElasticConformance() {
    for (const Live& it : live_) (void)Release(it.sequence);
    kvc_manager_destroy(manager_, nullptr);
  }
  ElasticConformance(const ElasticConformance&) = delete;
  ElasticConformance& operator=(const ElasticConformance&) = delete;

  std::string Run() {
    const std::string wrong = RunAll();
    return wrong.empty() ? "" : wrong + " (" + error_.message + ")";
  }

 private:
  static constexpr uint32_t kBlock = 16;
  static constexpr uint32_t kPages = 40;
  static constexpr uint32_t kMost = 96;
  static constexpr uint32_t kLeast = 16;
  static constexpr uint64_t kPageBytes = 128 << 10;  // 16 of them to a chunk
  static constexpr uint64_t kWords = 32;             // stamped at both ends of a page

  struct Live {
    uint64_t sequence;
    uint32_t text;
    uint32_t blocks;
  };

// NOLINTBEGIN: a macro, as it returns
#define KVC_CONFORM(condition)                                                     \
  do {                                                                             \
    if (!(condition)) return "line " + std::to_string(__LINE__) + ": " #condition; \
  } while (false)
  // NOLINTEND

  [[nodiscard]] uint32_t Most() const { return plain_ ? kPages : kMost; }
  kvc_status Release(uint64_t sequence) {
    kvc_status result = KVC_OK;
    const kvc_status status = kvc_sequences_release(manager_, 1, &sequence, &result, &error_);
    return status != KVC_OK ? status : result;
  }
  std::string Resize(uint32_t target, uint32_t most, kvc_resize_result* result) {
    KVC_CONFORM(kvc_pool_resize(manager_, target, most, nullptr, 0, nullptr, 0, result, &error_) ==
                KVC_OK);
    moved_ += result->moved_pages;
    backend_.pump(manager_);
    std::this_thread::yield();
    return "";
  }
  static std::vector<uint32_t> Text(uint32_t text, uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks * kBlock);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = text * 1000 + i;
    return tokens;
  }
  static std::vector<int32_t> Stamp(uint32_t text, uint32_t block) {
    std::vector<int32_t> words(kWords);
    for (uint32_t i = 0; i < kWords; ++i) {
      words[i] = static_cast<int32_t>((text * 64 + block) * kWords + i);
    }
    return words;
  }
  [[nodiscard]] uint64_t Ends(uint32_t page, bool last) const {
    return base_ + page * kPageBytes + (last ? kPageBytes - kWords * sizeof(int32_t) : 0);
  }
  std::string Pages(uint64_t sequence, std::vector<uint32_t>* pages) {
    pages->resize(kMost);
    uint32_t written = 0;
    KVC_CONFORM(kvc_sequence_get(manager_, sequence, 0, kMost, pages->data(), &written, nullptr,
                                 &error_) == KVC_OK);
    pages->resize(written);
    return "";
  }
  // What a prompt finds must be what has been written for it.
  std::string Look(uint64_t sequence, uint32_t text, uint32_t blocks) {
    std::vector<uint32_t> pages;
    if (const std::string wrong = Pages(sequence, &pages); !wrong.empty()) return wrong;
    for (uint32_t block = 0; block < blocks; ++block) {
      for (const bool last : {false, true}) {
        KVC_CONFORM(backend_.read(Ends(pages[block], last), kWords) == Stamp(text, block));
      }
      ++looked_;
    }
    return "";
  }
  std::string Open(uint32_t text) {
    const auto blocks = 1 + static_cast<uint32_t>(random_() % 8);
    const std::vector<uint32_t> tokens = Text(text, blocks);
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_create_result made{};
    KVC_CONFORM(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                                     nullptr, 0, &made, &error_) == KVC_OK);
    if (made.status == KVC_NOT_NOW) return "";  // too much is live
    KVC_CONFORM(made.status == KVC_OK);
    for (uint32_t i = 0; i < made.wait_count; ++i) {
      for (uint8_t done = 0; done == 0;) {
        KVC_CONFORM(kvc_device_fences_query(manager_, 1, &made.waits[i], &done, &error_) == KVC_OK);
        backend_.pump(manager_);
        std::this_thread::yield();
      }
    }
    const auto found = static_cast<uint32_t>(made.matched_tokens / kBlock);
    std::string wrong = Look(made.sequence, text, found);
    const kvc_grow_item grow{made.sequence, tokens.size()};
    kvc_grow_result grown{};
    if (wrong.empty() &&
        (kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_) != KVC_OK ||
         (grown.status != KVC_OK && grown.status != KVC_NOT_NOW))) {
      wrong = "a grow failed";
    }
    if (!wrong.empty() || grown.status == KVC_NOT_NOW) {
      (void)Release(made.sequence);
      return wrong;
    }
    live_.push_back({made.sequence, text, blocks});
    std::vector<uint32_t> pages;
    if (wrong = Pages(made.sequence, &pages); !wrong.empty()) return wrong;
    for (uint32_t block = found; block < blocks; ++block) {
      KVC_CONFORM(pages[block] < target_);
      for (const bool last : {false, true}) {
        backend_.write(Ends(pages[block], last), Stamp(text, block));
      }
    }
    const kvc_commit_item commit{
        made.sequence, made.matched_tokens, tokens.size() - made.matched_tokens, 0, 0, {}, 0};
    kvc_commit_result committed{};
    KVC_CONFORM(kvc_sequences_commit(manager_, 1, &commit, tokens.data(), tokens.size(), nullptr, 0,
                                     &committed, &error_) == KVC_OK);
    KVC_CONFORM(committed.status == KVC_OK);
    return "";
  }
  std::string Close(size_t which) {
    const Live it = live_[which];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
    std::string wrong = Look(it.sequence, it.text, it.blocks);
    if (Release(it.sequence) != KVC_OK && wrong.empty()) wrong = "a release failed";
    return wrong;
  }
  // Until it is done; whatever is held must have been released.
  std::string Finish(uint32_t target) {
    target_ = target;
    for (kvc_resize_result result{}; result.done == 0;) {
      if (const std::string wrong = Resize(target, 8, &result); !wrong.empty()) return wrong;
      KVC_CONFORM(result.target_pages == target);
    }
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    KVC_CONFORM(kvc_manager_stats_get(manager_, &stats, &error_) == KVC_OK);
    KVC_CONFORM(stats.total_pages == target && stats.leaving_pages == 0);
    const uint64_t mapped = plain_ ? kPages : target;
    KVC_CONFORM(stats.mapped_bytes >= mapped * kPageBytes);
    KVC_CONFORM(stats.mapped_bytes < mapped * kPageBytes + (plain_ ? 1 : 4 << 20));
    KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
    return "";
  }
  std::string RunAll() {
    kvc_config config;
    kvc_config_init(&config);
    config.device = backend_.device;
    config.flags = backend_.flags;
    config.capacity_blocks = kPages;
    config.max_blocks = kMost;
    config.min_blocks = kLeast;
    config.page_bytes = kPageBytes;
    config.seed = 1;
    KVC_CONFORM(kvc_manager_create(&config, nullptr, &manager_, &error_) == KVC_OK);
    kvc_device_memory memory{};
    KVC_CONFORM(kvc_device_memory_get(manager_, &memory, &error_) == KVC_OK);
    KVC_CONFORM(memory.base != 0 && memory.bytes == Most() * kPageBytes);
    base_ = memory.base;
    for (uint32_t round = 0; round < rounds_; ++round) {
      target_ = kLeast + static_cast<uint32_t>(random_() % (Most() - kLeast + 1));
      for (int step = 0; step < 30; ++step) {
        kvc_resize_result result{};
        std::string wrong = Resize(target_, static_cast<uint32_t>(random_() % 5), &result);
        if (wrong.empty() && live_.size() < 6) {
          wrong = Open(static_cast<uint32_t>(random_() % 12));
        } else if (wrong.empty()) {
          wrong = Close(random_() % live_.size());
        }
        if (!wrong.empty()) return wrong;
      }
      KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
    }
    while (!live_.empty()) {
      if (const std::string wrong = Close(0); !wrong.empty()) return wrong;
    }
    for (const uint32_t target : {kLeast, Most(), kPages, kLeast}) {
      if (const std::string wrong = Finish(target); !wrong.empty()) return wrong;
    }
    KVC_CONFORM(moved_ != 0 && looked_ != 0);
    return "";
  }
#undef KVC_CONFORM

  const Backend& backend_;
  std::mt19937_64 random_;
  const uint32_t rounds_;
  const bool plain_;
  kvc_manager* manager_ = nullptr;
  kvc_error error_{};
  uint64_t base_ = 0;
  uint32_t target_ = kPages;
  uint64_t moved_ = 0;
  uint64_t looked_ = 0;
  std::vector<Live> live_;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_GPU_CONFORMANCE_ELASTIC_H_
