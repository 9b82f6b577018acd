// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What pages hold, on a GPU: a fake engine on streams that race writes a stamp for each
// token, which follows from all tokens before it, into pages that the manager gives it;
// whatever it is given to read is read on the sequence's stream, late, and compared. A
// fence that is missing, a page that is given too early or a copy that is wrong shows as
// a stamp of something else. Between, all pages are read back in each of the ways there are.

#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>

#include "cuda/src/staging.h"
#include "kvcast/kvcast.h"
#include "tests/gpu/gpu_support.h"

namespace kvcast::gpu {
namespace {

constexpr uint32_t kBlock = 4;
constexpr uint32_t kPages = 40;
constexpr uint32_t kStreams = 4;
constexpr uint32_t kReads = 512;  // outstanding at most

// Pages into host memory that is pinned, by the copier, and that is not, by staging; and back.
// The driver's plain copy says what is right.
class ReadBack {
 public:
  ReadBack(Gpu& gpu, uint64_t page_bytes, uint64_t staging_bytes)
      : gpu_(gpu),
        page_bytes_(page_bytes),
        staging_(gpu.context, staging_bytes),
        pinned_(gpu, kPages * page_bytes),
        scratch_(gpu, kPages * page_bytes) {
    for (uint32_t page = 0; page < kPages; ++page) all_.push_back({page, page});
  }
  // Nothing may be queued that writes the pages.
  void Check(cuda::DevicePtr pages) {
    const std::vector<uint8_t> plain = Plain(pages);
    gpu_.copier.CopyPages(gpu_.stream, cuda::Direction::kToHost, {pages, page_bytes_},
                          {pinned_.address(), page_bytes_}, page_bytes_, all_.data(), kPages,
                          /*stable_source=*/false);
    gpu_.Wait();
    Must(std::memcmp(pinned_.bytes(), plain.data(), plain.size()) == 0, "the copier read back");
    std::vector<uint8_t> staged(plain.size());
    Stage({true, pages, staged.data(), staged.size(), nullptr});
    Must(staged == plain, "staging read back");
    Stage({false, scratch_.address(), staged.data(), staged.size(), nullptr});
    Must(Plain(scratch_.address()) == plain, "staging wrote");
    // Behind an event: neither before what is queued already, nor with a part of it missing.
    const uint32_t word = ++words_ * 0x9E3779B9u;
    KVCAST_CUDA(gpu_.api, fill_words, scratch_.address(), word, plain.size() / sizeof word,
                gpu_.stream);
    const cuda::EventHandle event = gpu_.events.Take();
    KVCAST_CUDA(gpu_.api, event_record, event, gpu_.stream);
    std::vector<uint32_t> words(plain.size() / sizeof word);
    Stage({true, scratch_.address(), words.data(), plain.size(), event});
    gpu_.events.Give(event);
    Must(words == std::vector<uint32_t>(words.size(), word), "staging read behind an event");
  }

 private:
  static void Must(bool right, const char* what) {
    if (!right) throw std::runtime_error(std::string(what) + " something else");
  }
  [[nodiscard]] std::vector<uint8_t> Plain(cuda::DevicePtr from) const {
    std::vector<uint8_t> bytes(kPages * page_bytes_);
    KVCAST_CUDA(gpu_.api, copy_to_host, bytes.data(), from, bytes.size(), gpu_.stream);
    gpu_.Wait();
    return bytes;
  }
  void Stage(const cuda::Staging::Job& job) {
    const uint64_t ticket = staging_.Submit(job);
    staging_.WaitFor(ticket);
    Must(staging_.Outcome(ticket) == KVC_OK, "staging failed and has copied");
  }

  Gpu& gpu_;
  const uint64_t page_bytes_;
  cuda::Staging staging_;
  const PinnedBlock pinned_;
  const DeviceBlock scratch_;
  std::vector<kernels::PagePair> all_;
  uint32_t words_ = 0;
};

class Engine {
 public:
  Engine(Gpu& gpu, uint64_t page_bytes, uint64_t seed)
      : gpu_(gpu),
        random_(seed),
        page_bytes_(page_bytes),
        row_(page_bytes / 2 / kBlock),
        seen_(gpu, kReads * page_bytes),
        back_(gpu, page_bytes, 4 * page_bytes) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.tokens_per_block = kBlock;
    config.capacity_blocks = kPages;
    config.max_sequences = 10;
    config.page_bytes = page_bytes;
    config.seed = 1 + seed;
    config.partial_reuse = seed % 2;
    config.resume_gate_permille = 1000;
    config.copies = seed % 4 < 2 ? KVC_COPY_KERNEL : KVC_COPY_ENGINE;
    Must(kvc_manager_create(&config, nullptr, &manager_, &error_));
    // Keys and values of one layer. With this, copies move what tokens take; whole pages
    // would be read where others write.
    kvc_geometry_config layout;
    kvc_geometry_config_init(&layout);
    layout.tokens_per_block = kBlock;
    layout.capacity_blocks = kPages;
    const auto dim = static_cast<uint32_t>(row_);
    const kvc_buffer_spec specs[] = {{0, 0, KVC_ROLE_KEY, KVC_DTYPE_UINT8, 1, dim, 0, 0},
                                     {0, 0, KVC_ROLE_VALUE, KVC_DTYPE_UINT8, 1, dim, 0, 0}};
    Must(kvc_page_layout_set(manager_, &layout, 2, specs, &error_));
    kvc_device_memory memory{};
    Must(kvc_device_memory_get(manager_, &memory, &error_));
    base_ = memory.base;
    for (uint32_t i = 0; i < kStreams; ++i) {
      Must(kvc_device_stream_create(manager_, &streams_[i], &error_));
      void* handle = nullptr;
      Must(kvc_cuda_stream_get(manager_, streams_[i], &handle, &error_));
      handles_[i] = static_cast<cuda::StreamHandle>(handle);
    }
  }
  ~Engine() {
    for (const Sequence& s : open_) {
      kvc_status status = KVC_OK;
      kvc_sequences_release(manager_, 1, &s.id, &status, nullptr);
    }
    gpu_.api.context_synchronize();
    kvc_manager_destroy(manager_, nullptr);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Step() {
    const uint64_t draw = Below(12);
    if (open_.empty() || (draw < 4 && open_.size() < 8)) {
      Open();
    } else {
      Sequence& s = open_[Below(open_.size())];
      if (draw < 8) {
        Compute(s, 1 + Below(2 * kBlock));
      } else if (draw == 8) {
        Speculate(s);
      } else if (draw == 9) {
        Fork(s);
      } else {
        Close(static_cast<size_t>(&s - open_.data()), draw == 10);
      }
    }
    if (expected_.size() + 40 > kReads) Verify();
  }
  // Lets all run, and compares what has been read.
  void Verify() {
    KVCAST_CUDA(gpu_.api, context_synchronize, );
    for (const Read& read : expected_) {
      for (uint64_t at = 0; at < read.stamps.size() * 2 * row_; at += sizeof(uint32_t)) {
        // Keys, then values, of the tokens that have been read.
        const uint64_t value_at = read.stamps.size() * row_;
        const uint64_t token = at % value_at / row_;
        const uint64_t place = at < value_at ? at : page_bytes_ / 2 + at - value_at;
        uint32_t value = 0;
        std::memcpy(&value, seen_.bytes() + read.place * page_bytes_ + place, sizeof value);
        if (value == read.stamps[token]) continue;
        throw std::runtime_error(std::string(read.what) + ": page " + std::to_string(read.page) +
                                 ", token " + std::to_string(token) + ": another stamp");
      }
    }
    expected_.clear();
    back_.Check(base_);
    kvc_error error{};
    if (kvc_manager_check(manager_, &error) != KVC_OK) throw std::runtime_error(error.message);
  }
  kvc_stats Stats() {
    kvc_stats stats;
    kvc_stats_init(&stats);
    Must(kvc_manager_stats_get(manager_, &stats, &error_));
    return stats;
  }
  uint64_t hits = 0;

 private:
  struct Sequence {
    uint64_t id = 0;
    uint32_t stream = 0;
    uint32_t salt = 0;
    std::vector<uint32_t> tokens;  // committed
  };
  struct Read {
    const char* what;
    uint64_t place;
    uint32_t page;
    std::vector<uint32_t> stamps;  // of its first tokens
  };

  void Must(kvc_status status) {
    if (status != KVC_OK) throw std::runtime_error(error_.message);
  }
  uint64_t Below(uint64_t n) { return random_() % n; }
  std::vector<uint32_t> Tokens(uint64_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t& token : tokens) token = Below(3) == 0 ? 1 : 0;
    return tokens;
  }
  static std::vector<uint32_t> Stamps(uint32_t salt, const std::vector<uint32_t>& tokens) {
    std::vector<uint32_t> stamps;
    uint64_t history = salt;
    for (const uint32_t token : tokens) {
      history = (history ^ (token + 1)) * 0x9E3779B97F4A7C15u;
      history ^= history >> 29;
      stamps.push_back(static_cast<uint32_t>(history >> 32) | 1);
    }
    return stamps;
  }
  std::vector<uint32_t> PagesOf(const Sequence& s) {
    std::vector<uint32_t> pages(kPages);
    uint32_t written = 0;
    Must(kvc_sequence_get(manager_, s.id, 0, kPages, pages.data(), &written, nullptr, &error_));
    pages.resize(written);
    return pages;
  }
  void Wait(const Sequence& s) {
    kvc_fence fences[63];
    uint32_t count = 0;
    Must(kvc_sequence_waits(manager_, s.id, 63, fences, &count, &error_));
    Must(kvc_device_stream_wait(manager_, streams_[s.stream], count, fences, &error_));
  }
  // Kernels that write the stamps of tokens [from, to).
  void Write(const Sequence& s, const std::vector<uint32_t>& tokens, size_t from, size_t to) {
    const std::vector<uint32_t> pages = PagesOf(s);
    const std::vector<uint32_t> stamps = Stamps(s.salt, tokens);
    for (size_t at = from; at < to; ++at) {
      for (const uint64_t half : {uint64_t{0}, page_bytes_ / 2}) {
        KVCAST_CUDA(gpu_.api, fill_words,
                    base_ + pages.at(at / kBlock) * page_bytes_ + half + at % kBlock * row_,
                    stamps[at], row_ / sizeof(uint32_t), handles_[s.stream]);
      }
    }
  }
  // Kernels that read all committed tokens.
  void ReadAll(const char* what, const Sequence& s) {
    const std::vector<uint32_t> pages = PagesOf(s);
    const std::vector<uint32_t> stamps = Stamps(s.salt, s.tokens);
    for (size_t block = 0; block * kBlock < stamps.size() && expected_.size() < kReads; ++block) {
      const auto first = stamps.begin() + static_cast<ptrdiff_t>(block * kBlock);
      const size_t count = std::min<size_t>(kBlock, stamps.size() - block * kBlock);
      const uint64_t place = expected_.size();
      expected_.push_back(
          {what, place, pages.at(block), {first, first + static_cast<ptrdiff_t>(count)}});
      // No more than these: what lies behind may be written meanwhile, by another sequence.
      for (const uint64_t half : {uint64_t{0}, page_bytes_ / 2}) {
        KVCAST_CUDA(gpu_.api, copy_to_host, seen_.bytes() + place * page_bytes_ + half,
                    base_ + pages[block] * page_bytes_ + half, count * row_, handles_[s.stream]);
      }
    }
  }
  // False when there is no room now; what was given up may come back.
  bool Grow(const Sequence& s, uint64_t tokens) {
    const kvc_grow_item item{s.id, tokens};
    kvc_grow_result result{};
    Must(kvc_sequences_grow(manager_, 1, &item, &result, nullptr, 0, nullptr, &error_));
    if (result.status == KVC_OK && result.copied_block != KVC_NO_COPY) ReadAll("a copy", s);
    return result.status == KVC_OK;
  }

  void Open() {
    Sequence s;
    const std::vector<uint32_t> tokens = Tokens(1 + Below(5 * kBlock));
    s.stream = static_cast<uint32_t>(Below(kStreams));
    s.salt = static_cast<uint32_t>(1 + Below(2));
    kvc_scope scope{};
    scope.parts = KVC_SCOPE_SALT;
    scope.salt = s.salt;
    kvc_prompt prompt{};
    prompt.token_count = tokens.size();
    prompt.device_stream = streams_[s.stream];
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    kvc_create_result result{};
    Must(kvc_sequences_create(manager_, 1, &prompt, tokens.data(), tokens.size(), &scope, 1,
                              nullptr, 0, &result, &error_));
    if (result.status != KVC_OK) return;
    s.id = result.sequence;
    s.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(result.matched_tokens));
    open_.push_back(s);
    Wait(s);
    ReadAll("a hit", s);
    hits += s.tokens.size() / kBlock;
    Append(open_.back(), {tokens.begin() + static_cast<ptrdiff_t>(s.tokens.size()), tokens.end()});
  }
  void Compute(Sequence& s, uint64_t count) { Append(s, Tokens(count)); }
  void Append(Sequence& s, const std::vector<uint32_t>& more) {
    if (more.empty() || !Grow(s, s.tokens.size() + more.size())) return;
    std::vector<uint32_t> all = s.tokens;
    all.insert(all.end(), more.begin(), more.end());
    Write(s, all, s.tokens.size(), all.size());
    kvc_commit_item item{};
    item.sequence = s.id;
    item.token_count = more.size();
    kvc_commit_result result{};
    Must(kvc_sequences_commit(manager_, 1, &item, more.data(), more.size(), nullptr, 0, &result,
                              &error_));
    Must(result.status);
    s.tokens = all;
    if (result.deduplicated_blocks == 0) return;
    Wait(s);  // others' pages have taken the place of ours
    ReadAll("a block of another's", s);
  }
  // Tokens that are computed and taken back.
  void Speculate(const Sequence& s) {
    if (!Grow(s, s.tokens.size() + 6)) return;
    std::vector<uint32_t> all = s.tokens;
    all.insert(all.end(), 6, 2);
    Write(s, all, s.tokens.size(), all.size());
    const kvc_truncate_item item{s.id, s.tokens.size()};
    kvc_truncate_result result{};
    Must(kvc_sequences_truncate(manager_, 1, &item, &result, &error_));
    Must(result.status);
  }
  void Fork(const Sequence& s) {
    if (open_.size() >= 8) return;
    Sequence made = s;
    made.stream = static_cast<uint32_t>(Below(kStreams));
    const kvc_fork_item item{s.id, streams_[made.stream]};
    kvc_fork_result result{};
    Must(kvc_sequences_fork(manager_, 1, &item, &result, &error_));
    if (result.status != KVC_OK) return;
    made.id = result.sequence;
    Wait(made);
    ReadAll("a fork", made);
    open_.push_back(made);
    Compute(open_.back(), 1 + Below(kBlock));
  }
  void Close(size_t which, bool cancel) {
    // It still reads while its pages go.
    ReadAll("a release", open_[which]);
    kvc_status status = KVC_OK;
    Must(cancel ? kvc_sequences_cancel(manager_, 1, &open_[which].id, &status, &error_)
                : kvc_sequences_release(manager_, 1, &open_[which].id, &status, &error_));
    Must(status);
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(which));
  }

  Gpu& gpu_;
  std::mt19937_64 random_;
  const uint64_t page_bytes_;
  const uint64_t row_;  // bytes of a token's keys, and of its values
  const PinnedBlock seen_;
  ReadBack back_;
  kvc_manager* manager_ = nullptr;
  kvc_error error_{};
  cuda::DevicePtr base_ = 0;
  uint64_t streams_[kStreams] = {};
  cuda::StreamHandle handles_[kStreams] = {};
  std::vector<Sequence> open_;
  std::deque<Read> expected_;
};

}  // namespace

void CheckContent(const Options& options) {
  kvc_error error{};
  if (kvc_cuda_open(nullptr, &error) != KVC_OK) throw std::runtime_error(error.message);
  Gpu gpu;
  uint64_t hits = 0;
  uint64_t copied = 0;
  uint64_t evicted = 0;
  for (uint64_t run = 0; run < (options.quick ? 8u : 40u); ++run) {
    try {
      Engine engine(gpu, options.quick ? 256 : 64 << 10, options.seed + run);
      for (int step = 0; step < (options.quick ? 250 : 2000); ++step) engine.Step();
      engine.Verify();
      hits += engine.hits;
      copied += engine.Stats().copied_pages;
      evicted += engine.Stats().evicted_blocks;
    } catch (const std::exception& wrong) {
      throw std::runtime_error(std::string(wrong.what()) + ", seed " +
                               std::to_string(options.seed + run));
    }
  }
  if (hits < 40 || copied < 20 || evicted < 20) {
    throw std::runtime_error("hardly anything was tried: " + std::to_string(hits) + " hits, " +
                             std::to_string(copied) + " copies, " + std::to_string(evicted) +
                             " evictions");
  }
}

}  // namespace kvcast::gpu
