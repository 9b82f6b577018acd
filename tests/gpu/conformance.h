// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What every device must do, seen through the C ABI. The same suite runs on the
// host device, on the fake CUDA driver and on a GPU. No GoogleTest here: a machine
// with a GPU need not have it. What is wrong comes back as text, "" being good.
#ifndef KVCAST_TESTS_GPU_CONFORMANCE_H_
#define KVCAST_TESTS_GPU_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

struct Backend {
  kvc_device_kind device = KVC_DEVICE_HOST;
  uint32_t flags = 0;
  uint64_t page_bytes = 4096;
  // Lets queued work run on a device that does not do so by itself.
  std::function<void(kvc_manager*)> pump = [](kvc_manager*) {};
  // `count` int32s of device memory, all queued work having run.
  std::function<std::vector<int32_t>(uint64_t address, uint64_t count)> read;
  // The same, written; nothing may be queued that uses it.
  std::function<void(uint64_t address, const std::vector<int32_t>& values)> write;
  // Looked at after each call: for what a device must leave alone.
  std::function<std::string()> after_call = [] { return std::string(); };
};

class Conformance {
 public:
  Conformance(const Backend& backend, uint64_t seed) : backend_(backend), random_(seed) {}
  ~Conformance() {
    if (manager_ == nullptr) return;
    for (const uint64_t sequence : open_) {
      kvc_status status = KVC_OK;
      kvc_sequences_release(manager_, 1, &sequence, &status, nullptr);
    }
    kvc_manager_destroy(manager_, nullptr);
  }
  Conformance(const Conformance&) = delete;
  Conformance& operator=(const Conformance&) = delete;

  std::string Run() {
    for (const auto& [name, part] :
         std::map<std::string, std::string (Conformance::*)()>{{"1 create", &Conformance::Create},
                                                               {"2 fences", &Conformance::Fences},
                                                               {"3 steps", &Conformance::Steps},
                                                               {"4 tables", &Conformance::Tables},
                                                               {"5 updates", &Conformance::Updates},
                                                               {"6 forks", &Conformance::Forks},
                                                               {"7 streams", &Conformance::Streams},
                                                               {"8 life", &Conformance::Life},
                                                               {"9 end", &Conformance::End}}) {
      const std::string wrong = (this->*part)();
      if (!wrong.empty()) return name + ": " + wrong + " (" + error_.message + ")";
    }
    return "";
  }

 private:
  static constexpr uint32_t kPages = 64;
  static constexpr uint32_t kBlock = 16;

// NOLINTBEGIN: a macro, as it returns
#define KVC_CONFORM(condition)                                                     \
  do {                                                                             \
    if (!(condition)) return "line " + std::to_string(__LINE__) + ": " #condition; \
    const std::string after = backend_.after_call();                               \
    if (!after.empty()) return "line " + std::to_string(__LINE__) + ": " + after;  \
  } while (false)
  // NOLINTEND

  bool Reached(const kvc_fence& fence) {
    uint8_t done = 0;
    return kvc_device_fences_query(manager_, 1, &fence, &done, &error_) == KVC_OK && done != 0;
  }
  void WaitFor(const kvc_fence& fence) {
    while (!Reached(fence)) {
      backend_.pump(manager_);
      std::this_thread::yield();
      if (error_.status != KVC_OK) return;
    }
  }
  // A sequence of `blocks` blocks that begins with `first` and has a page for each.
  kvc_create_result Open(const std::vector<uint32_t>& tokens, uint64_t stream) {
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = stream;
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_create_result result{};
    result.status = kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(),
                                         nullptr, 0, nullptr, 0, &result, &error_);
    if (result.status == KVC_OK && result.sequence != 0) open_.push_back(result.sequence);
    return result;
  }
  kvc_status Grow(uint64_t sequence, uint64_t tokens) {
    kvc_grow_item item{};
    item.sequence = sequence;
    item.capacity_tokens = tokens;
    kvc_grow_result result{};
    const kvc_status status =
        kvc_sequences_grow(manager_, 1, &item, &result, nullptr, 0, nullptr, &error_);
    return status != KVC_OK ? status : result.status;
  }
  // Asks until the fences that keep pages from the stream have been reached.
  kvc_status GrowSoon(uint64_t sequence, uint64_t tokens) {
    for (;;) {
      const kvc_status status = Grow(sequence, tokens);
      if (status != KVC_NOT_NOW) return status;
      backend_.pump(manager_);
      std::this_thread::yield();
    }
  }
  kvc_status Commit(uint64_t sequence, const std::vector<uint32_t>& tokens) {
    kvc_commit_item item{};
    item.sequence = sequence;
    item.token_count = tokens.size();
    kvc_commit_result result{};
    const kvc_status status = kvc_sequences_commit(manager_, 1, &item, tokens.data(), tokens.size(),
                                                   nullptr, 0, &result, &error_);
    return status != KVC_OK ? status : result.status;
  }
  kvc_status Release(uint64_t sequence) {
    kvc_status result = KVC_OK;
    const kvc_status status = kvc_sequences_release(manager_, 1, &sequence, &result, &error_);
    open_.erase(std::remove(open_.begin(), open_.end(), sequence), open_.end());
    return status != KVC_OK ? status : result;
  }
  std::vector<uint32_t> Tokens(uint32_t blocks, uint32_t first) {
    std::vector<uint32_t> tokens(blocks * kBlock);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = first * 1000 + i;
    return tokens;
  }

  std::string Create() {
    kvc_config config;
    kvc_config_init(&config);
    config.device = backend_.device;
    config.flags = backend_.flags;
    config.capacity_blocks = kPages;
    config.page_bytes = backend_.page_bytes;
    config.seed = 1;
    KVC_CONFORM(kvc_manager_create(&config, nullptr, &manager_, &error_) == KVC_OK);
    kvc_device_memory memory{};
    KVC_CONFORM(kvc_device_memory_get(manager_, &memory, &error_) == KVC_OK);
    KVC_CONFORM(memory.base != 0 && memory.base % 16 == 0);
    KVC_CONFORM(memory.page_bytes == backend_.page_bytes);
    KVC_CONFORM(memory.bytes >= kPages * backend_.page_bytes);
    for (uint64_t& stream : streams_) {
      KVC_CONFORM(kvc_device_stream_create(manager_, &stream, &error_) == KVC_OK);
      KVC_CONFORM(stream != 0);
    }
    return "";
  }

  // Pages that are given up on one stream go to another only behind a fence.
  std::string Fences() {
    const std::vector<uint32_t> tokens = Tokens(kPages, 1);
    for (int round = 0; round < 10; ++round) {
      const kvc_create_result a = Open(Tokens(1, 900 + static_cast<uint32_t>(round)), streams_[0]);
      KVC_CONFORM(a.status == KVC_OK);
      KVC_CONFORM(GrowSoon(a.sequence, kPages * kBlock) == KVC_OK);
      KVC_CONFORM(Commit(a.sequence, tokens) == KVC_OK);
      KVC_CONFORM(Release(a.sequence) == KVC_OK);
      // Another stream reads what the first one wrote: it is told what to wait for, or
      // it has run.
      const kvc_create_result b = Open(tokens, streams_[1]);
      KVC_CONFORM(b.status == KVC_OK);
      KVC_CONFORM(b.matched_tokens == kPages * kBlock);
      for (uint32_t i = 0; i < b.wait_count; ++i) {
        KVC_CONFORM(b.waits[i].device_stream == streams_[0]);
        KVC_CONFORM(b.waits[i].position != 0);
      }
      KVC_CONFORM(kvc_device_stream_wait(manager_, streams_[1], b.wait_count, b.waits, &error_) ==
                  KVC_OK);
      KVC_CONFORM(Release(b.sequence) == KVC_OK);
      for (uint32_t i = 0; i < b.wait_count; ++i) WaitFor(b.waits[i]);
      KVC_CONFORM(error_.status == KVC_OK);
      KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
      KVC_CONFORM(kvc_manager_reset(manager_, &error_) == KVC_OK);
    }
    const kvc_fence never{streams_[0], UINT64_MAX};
    uint8_t done = 0;
    KVC_CONFORM(kvc_device_fences_query(manager_, 1, &never, &done, &error_) ==
                KVC_INVALID_ARGUMENT);
    return "";
  }

  std::string Steps() {
    uint64_t steps = 0;
    KVC_CONFORM(kvc_step_stream_create(manager_, &steps, &error_) == KVC_OK);
    KVC_CONFORM(kvc_step_begin(manager_, steps, 3, &error_) == KVC_OK);
    const kvc_create_result a = Open(Tokens(1, 50), steps);
    KVC_CONFORM(a.status == KVC_OK);
    KVC_CONFORM(GrowSoon(a.sequence, kBlock) == KVC_OK);
    KVC_CONFORM(Commit(a.sequence, Tokens(1, 50)) == KVC_OK);
    KVC_CONFORM(Release(a.sequence) == KVC_OK);
    const kvc_fence fence{steps, 3};
    KVC_CONFORM(!Reached(fence));
    KVC_CONFORM(kvc_device_stream_destroy(manager_, steps, &error_) == KVC_BUSY);
    KVC_CONFORM(kvc_step_done(manager_, steps, 3, &error_) == KVC_OK);
    KVC_CONFORM(Reached(fence));
    KVC_CONFORM(kvc_device_stream_destroy(manager_, steps, &error_) == KVC_OK);
    return "";
  }

  std::string Tables() {
    constexpr uint32_t kRows = 7;
    constexpr uint32_t kColumns = 33;
    uint64_t table = 0;
    uint64_t address = 0;
    KVC_CONFORM(kvc_device_table_create(manager_, kRows, kColumns, -1, 3 * 64, &table, &address,
                                        &error_) == KVC_OK);
    std::vector<int32_t> shadow(kRows * kColumns, -1);
    KVC_CONFORM(backend_.read(address, shadow.size()) == shadow);
    for (int round = 0; round < 60; ++round) {
      const uint64_t stream = streams_[0];
      kvc_status status = KVC_OK;
      do {
        if (round % 3 != 2) {
          // With cells that are named twice: the later entry counts.
          std::vector<kvc_table_delta> deltas(1 + random_() % 64);
          for (kvc_table_delta& d : deltas) {
            d.row = static_cast<uint32_t>(random_() % kRows);
            d.column = static_cast<uint32_t>(random_() % 9);
            d.value = static_cast<int32_t>(random_());
          }
          status =
              kvc_device_table_update(manager_, table, stream, static_cast<uint32_t>(deltas.size()),
                                      deltas.data(), &error_);
          for (const kvc_table_delta& d : deltas) {
            if (status == KVC_OK) shadow[d.row * kColumns + d.column] = d.value;
          }
        } else {
          const uint32_t first = static_cast<uint32_t>(random_() % (kRows - 1));
          std::vector<int32_t> rows(2 * 40);
          for (int32_t& v : rows) v = static_cast<int32_t>(random_());
          status =
              kvc_device_table_write(manager_, table, stream, first, 2, 40, rows.data(), &error_);
          for (uint32_t r = 0; status == KVC_OK && r < 2; ++r) {
            std::copy_n(rows.begin() + r * 40, kColumns, shadow.begin() + (first + r) * kColumns);
          }
        }
        if (status == KVC_NOT_NOW) {
          backend_.pump(manager_);
          std::this_thread::yield();
        }
      } while (status == KVC_NOT_NOW);
      KVC_CONFORM(status == KVC_OK);
    }
    const kvc_table_delta outside{kRows, 0, 1};
    KVC_CONFORM(kvc_device_table_update(manager_, table, streams_[0], 1, &outside, &error_) ==
                KVC_INVALID_ARGUMENT);
    const std::vector<kvc_table_delta> many(65, kvc_table_delta{0, 0, 0});
    KVC_CONFORM(kvc_device_table_update(manager_, table, streams_[0], 65, many.data(), &error_) ==
                KVC_NEVER_FITS);
    kvc_status status = KVC_BUSY;
    std::vector<int32_t> now;
    while (status == KVC_BUSY) {
      backend_.pump(manager_);
      now = backend_.read(address, shadow.size());
      status = kvc_device_table_destroy(manager_, table, &error_);
    }
    KVC_CONFORM(status == KVC_OK);
    KVC_CONFORM(now == shadow);
    KVC_CONFORM(kvc_device_table_destroy(manager_, table, &error_) == KVC_STALE_HANDLE);
    return "";
  }

  // One update names its cells many times, far apart from each other: the last entry counts,
  // whatever order a device takes them in.
  std::string Updates() {
    constexpr uint32_t kRows = 3;
    constexpr uint32_t kColumns = 50;
    constexpr uint32_t kMost = 1500;
    uint64_t table = 0;
    uint64_t address = 0;
    KVC_CONFORM(kvc_device_table_create(manager_, kRows, kColumns, -1, 3 * kMost, &table, &address,
                                        &error_) == KVC_OK);
    std::vector<int32_t> shadow(kRows * kColumns, -1);
    for (const uint32_t count : {2u, 100u, 129u, 600u, kMost, kMost, kMost}) {
      std::vector<kvc_table_delta> deltas(count);
      for (kvc_table_delta& d : deltas) {
        const uint64_t cell = random_() % std::min(count / 2, kRows * kColumns);
        d.row = static_cast<uint32_t>(cell / kColumns);
        d.column = static_cast<uint32_t>(cell % kColumns);
        d.value = static_cast<int32_t>(random_());
        shadow[cell] = d.value;
      }
      kvc_status status = KVC_NOT_NOW;
      while (status == KVC_NOT_NOW) {
        backend_.pump(manager_);
        status =
            kvc_device_table_update(manager_, table, streams_[1], count, deltas.data(), &error_);
        std::this_thread::yield();
      }
      KVC_CONFORM(status == KVC_OK);
      backend_.pump(manager_);
      KVC_CONFORM(backend_.read(address, shadow.size()) == shadow);
    }
    kvc_status status = KVC_BUSY;
    while (status == KVC_BUSY) {
      backend_.pump(manager_);
      status = kvc_device_table_destroy(manager_, table, &error_);
    }
    KVC_CONFORM(status == KVC_OK);
    return "";
  }

  // Forks whose last block is copied, for the host, for steps and on a stream.
  std::string Forks() {
    uint64_t steps = 0;
    kvc_device_memory memory{};
    KVC_CONFORM(kvc_device_memory_get(manager_, &memory, &error_) == KVC_OK);
    KVC_CONFORM(kvc_step_stream_create(manager_, &steps, &error_) == KVC_OK);
    for (const uint64_t stream : {uint64_t{0}, steps, streams_[2]}) {
      if (stream == steps) KVC_CONFORM(kvc_step_begin(manager_, steps, 1, &error_) == KVC_OK);
      std::vector<uint32_t> tokens = Tokens(2, 80);
      tokens.resize(kBlock + 5);
      const kvc_create_result a = Open(tokens, stream);
      KVC_CONFORM(a.status == KVC_OK);
      KVC_CONFORM(GrowSoon(a.sequence, tokens.size()) == KVC_OK);
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(a.matched_tokens));
      KVC_CONFORM(Commit(a.sequence, tokens) == KVC_OK);
      uint32_t pages[2] = {};
      uint32_t written = 0;
      KVC_CONFORM(kvc_sequence_get(manager_, a.sequence, 0, 2, pages, &written, nullptr, &error_) ==
                  KVC_OK);
      std::vector<int32_t> values(backend_.page_bytes / sizeof(int32_t));
      for (int32_t& value : values) value = static_cast<int32_t>(random_());
      backend_.write(memory.base + pages[1] * backend_.page_bytes, values);
      const kvc_fork_item item{a.sequence, stream};
      kvc_fork_result fork{};
      KVC_CONFORM(kvc_sequences_fork(manager_, 1, &item, &fork, &error_) == KVC_OK);
      KVC_CONFORM(fork.status == KVC_OK);
      open_.push_back(fork.sequence);
      const kvc_grow_item grow{fork.sequence, kBlock + 6};
      kvc_grow_result grown{};
      KVC_CONFORM(kvc_sequences_grow(manager_, 1, &grow, &grown, nullptr, 0, nullptr, &error_) ==
                  KVC_OK);
      KVC_CONFORM(grown.status == KVC_OK && grown.copied_block == 1);
      KVC_CONFORM(grown.copied_from == pages[1] && grown.copied_tokens == 5);
      KVC_CONFORM((grown.wait_count != 0) == (stream == 0 || stream == steps));
      if (stream == steps) {
        // The step that has begun may still write what is copied.
        KVC_CONFORM(!Reached(grown.wait));
        KVC_CONFORM(kvc_step_done(manager_, steps, 1, &error_) == KVC_OK);
      }
      if (grown.wait_count != 0) WaitFor(grown.wait);
      for (const uint64_t sequence : {a.sequence, fork.sequence}) {
        KVC_CONFORM(Release(sequence) == KVC_OK);
      }
      // The stream's own copy has been made when the pages are free again.
      for (kvc_stats stats{};;) {
        stats.struct_size = sizeof stats;
        KVC_CONFORM(kvc_manager_stats_get(manager_, &stats, &error_) == KVC_OK);
        if (stats.quarantined_pages == 0) break;
        backend_.pump(manager_);
        KVC_CONFORM(kvc_device_fences_query(manager_, 0, nullptr, nullptr, &error_) == KVC_OK);
        std::this_thread::yield();
      }
      KVC_CONFORM(backend_.read(memory.base + grown.copied_to * backend_.page_bytes,
                                values.size()) == values);
      KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
    }
    KVC_CONFORM(kvc_device_stream_destroy(manager_, steps, &error_) == KVC_OK);
    return "";
  }

  std::string Streams() {
    std::vector<uint64_t> more;
    uint64_t stream = 0;
    while (kvc_device_stream_create(manager_, &stream, &error_) == KVC_OK) more.push_back(stream);
    KVC_CONFORM(error_.status == KVC_NOT_NOW);
    KVC_CONFORM(more.size() >= 50);
    const kvc_create_result a = Open(Tokens(1, 70), more[0]);
    KVC_CONFORM(a.status == KVC_OK);
    KVC_CONFORM(kvc_device_stream_destroy(manager_, more[0], &error_) == KVC_BUSY);
    KVC_CONFORM(Release(a.sequence) == KVC_OK);
    for (const uint64_t gone : more) {
      KVC_CONFORM(kvc_device_stream_destroy(manager_, gone, &error_) == KVC_OK);
      KVC_CONFORM(kvc_device_stream_destroy(manager_, gone, &error_) == KVC_STALE_HANDLE);
    }
    KVC_CONFORM(kvc_device_stream_destroy(manager_, 0, &error_) == KVC_INVALID_ARGUMENT);
    return "";
  }

  // Sequences come and go on three streams, in a pool that is too small for them.
  std::string Life() {
    struct Live {
      uint64_t sequence;
      uint32_t blocks;
      uint32_t committed;
      uint32_t seed;
    };
    std::vector<Live> live;
    int grown = 0;
    for (int step = 0; step < 1500; ++step) {
      const uint64_t draw = random_();
      if (live.size() < 6 && draw % 4 == 0) {
        const auto seed = static_cast<uint32_t>(100 + random_() % 20);
        const uint32_t blocks = 1 + static_cast<uint32_t>(random_() % 12);
        const kvc_create_result made = Open(Tokens(blocks, seed), streams_[random_() % 3]);
        KVC_CONFORM(made.status == KVC_OK);
        live.push_back(
            {made.sequence, blocks, static_cast<uint32_t>(made.matched_tokens / kBlock), seed});
      } else if (!live.empty()) {
        const size_t which = random_() % live.size();
        Live& it = live[which];
        const kvc_status status = Grow(it.sequence, uint64_t{it.blocks} * kBlock);
        KVC_CONFORM(status == KVC_OK || status == KVC_NOT_NOW);
        if (status == KVC_NOT_NOW) {
          backend_.pump(manager_);
          std::this_thread::yield();
        }
        if (status == KVC_NOT_NOW ? draw % 16 == 0 : draw % 3 == 0) {
          KVC_CONFORM(Release(it.sequence) == KVC_OK);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
          backend_.pump(manager_);
        } else if (status == KVC_OK && it.committed < it.blocks) {
          ++grown;
          const std::vector<uint32_t> all = Tokens(it.blocks, it.seed);
          KVC_CONFORM(Commit(it.sequence, {all.begin() + it.committed * kBlock, all.end()}) ==
                      KVC_OK);
          it.committed = it.blocks;
        }
      }
      if (step % 100 == 0) KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
    }
    KVC_CONFORM(grown > 50);
    while (!live.empty()) {
      KVC_CONFORM(Release(live.back().sequence) == KVC_OK);
      live.pop_back();
    }
    return "";
  }

  std::string End() {
    KVC_CONFORM(kvc_manager_reset(manager_, &error_) == KVC_OK);
    kvc_stats stats;
    kvc_stats_init(&stats);
    // All pages come home: a demand for the whole pool looks at every fence.
    for (;;) {
      const kvc_create_result a = Open(Tokens(1, 5), streams_[2]);
      KVC_CONFORM(a.status == KVC_OK);
      const kvc_status status = Grow(a.sequence, kPages * kBlock);
      KVC_CONFORM(status == KVC_OK || status == KVC_NOT_NOW);
      KVC_CONFORM(Release(a.sequence) == KVC_OK);
      if (status == KVC_OK) break;
      backend_.pump(manager_);
      std::this_thread::yield();
    }
    KVC_CONFORM(kvc_manager_stats_get(manager_, &stats, &error_) == KVC_OK);
    KVC_CONFORM(stats.free_pages + stats.quarantined_pages == kPages);
    KVC_CONFORM(kvc_manager_check(manager_, &error_) == KVC_OK);
    for (const uint64_t stream : streams_) {
      KVC_CONFORM(kvc_device_stream_destroy(manager_, stream, &error_) == KVC_OK);
    }
    kvc_manager* const gone = manager_;
    manager_ = nullptr;
    KVC_CONFORM(kvc_manager_destroy(gone, &error_) == KVC_OK);
    return "";
  }
#undef KVC_CONFORM

  const Backend& backend_;
  std::mt19937_64 random_;
  kvc_manager* manager_ = nullptr;
  kvc_error error_{};
  uint64_t streams_[3] = {};
  std::vector<uint64_t> open_;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_GPU_CONFORMANCE_H_
