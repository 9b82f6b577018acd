// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Bytes become calls of the C ABI, sensible ones and hostile ones: ids that
// name nothing, offsets beyond the arrays, NULL where it hurts. Nothing may
// crash, no call may say "corrupt" or "internal error", and in the end the
// invariants hold and a mirror made of the drained events is the resident set.
//
// Compiled with clang's -fsanitize=fuzzer this is a libFuzzer program (KVC_FUZZ,
// `make fuzz`). CMake also makes it a test (KVC_FUZZ_AS_TEST), which runs
// everywhere: the inputs of testdata/fuzz_abi and as many random ones as
// KVC_INPUTS says; KVC_SEED repeats a run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"
#include "tests/native/owned_handle.h"

namespace {

using kvcast::testing::OwnedSnapshot;
using kvcast::testing::WireMirror;

[[noreturn]] void Broken(const std::string& what) {
  std::fprintf(stderr, "fuzz_abi: %s\n", what.c_str());
  std::abort();
}
void Require(bool condition, const char* what) {
  if (!condition) Broken(what);
}
void Good(const std::string& wrong) {
  if (!wrong.empty()) Broken(wrong);
}

// What every status must be: a number of the list, and never a defect.
kvc_status Sane(kvc_status status, const kvc_error* error = nullptr) {
  if (status < KVC_OK || (status >= KVC_CORRUPT && status != KVC_NO_DEVICE)) {
    Broken("status " + std::to_string(status) + ": " +
           (error != nullptr ? error->message : "no message"));
  }
  if (error != nullptr && status != KVC_OK) {
    Require(std::memchr(error->message, 0, sizeof error->message) != nullptr, "endless message");
    Require(error->status == status, "the error's status is not the call's");
    Require(error->message[0] != '\0', "an error without a message");
    Require((error->cause != KVC_CAUSE_NONE) == (status == KVC_NO_DEVICE),
            "a cause without a missing device, or the reverse");
  }
  return status;
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  [[nodiscard]] bool empty() const { return left_ == 0; }
  uint8_t U8() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint32_t Below(uint32_t n) { return U8() % n; }
  bool OneIn(uint32_t n) { return Below(n) == n - 1; }
  uint64_t U64() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | U8();
    return value;
  }
  // Numbers that are near something: 0, a power of two, the largest.
  uint64_t Nasty() {
    const uint64_t base = uint64_t{1} << Below(64);
    switch (Below(4)) {
      case 0:
        return base - 1;
      case 1:
        return base + Below(4);
      case 2:
        return UINT64_MAX - Below(16);
      default:
        return U64();
    }
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Arrays for a call that takes prompts. Each comes from the heap by itself and
// is exactly as long as it says, so that a sanitizer sees a step too far.
struct Prompts {
  std::vector<kvc_prompt> prompts;
  std::vector<uint32_t> tokens;
  std::vector<kvc_scope> scopes;
  std::vector<uint8_t> bytes;
};

class Session {
 public:
  explicit Session(Input& in) : in_(in) {}
  ~Session() {
    for (const uint64_t id : open_) {
      kvc_status status = KVC_OK;
      Sane(kvc_sequences_release(manager_, 1, &id, &status, nullptr));
      Require(status == KVC_OK, "an open sequence cannot be released");
    }
    for (const uint64_t id : holds_) {
      kvc_status status = KVC_OK;
      Sane(kvc_holds_release(manager_, 1, &id, &status, nullptr));
      Require(status == KVC_OK, "a hold cannot be released");
    }
    if (manager_ != nullptr) {
      Require(kvc_manager_destroy(manager_, nullptr) == KVC_OK, "the manager cannot be destroyed");
    }
    kvc_stream_destroy(stream_);
    kvc_stream_snapshot_close(snapshot_);
    kvc_live_handles live;
    kvc_live_handles_get(&live);
    Require(live.managers == 0 && live.sequences == 0 && live.streams == 0 && live.snapshots == 0,
            "a handle is left");
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void Run() {
    if (!Open()) return;
    for (int step = 0; step < 400 && !in_.empty(); ++step) {
      Step();
      if (step % 16 == 15) Check();
    }
    if (stream_ == nullptr || drained_wrong_) {
      Check();
      return;
    }
    Finish();
  }

 private:
  bool Open() {
    kvc_error error{};
    kvc_stream_config stream_config;
    kvc_stream_config_init(&stream_config);
    stream_config.hash_form = in_.Below(4);
    stream_config.max_entries = 1 + in_.Below(12);
    stream_config.max_blocks_per_event = in_.Below(4);
    stream_config.multimodal = in_.Below(2);
    if (in_.OneIn(64)) stream_config.multimodal = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) stream_config.hash_form = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) stream_config.struct_size = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) stream_config.max_blocks_per_event = static_cast<uint32_t>(in_.Nasty());
    if (!in_.OneIn(16) &&
        Sane(kvc_stream_create(&stream_config, &stream_, &error), &error) != KVC_OK) {
      return false;
    }
    form_ = stream_config.hash_form;
    kvc_config config;
    kvc_config_init(&config);
    config.flags = in_.Below(2);
    config.tokens_per_block = block_ = 1 + in_.Below(4);
    config.capacity_blocks = pages_ = 1 + in_.Below(24);
    config.max_sequences = 1 + in_.Below(5);
    config.page_bytes = 8 * in_.Below(3);
    config.seed = 1 + in_.Below(4);
    config.max_digests = in_.Below(5);
    config.max_pending_blocks = in_.Below(7);
    config.partial_reuse = in_.Below(2);
    const uint32_t capacity = pages_;
    if (in_.OneIn(2)) {
      config.max_blocks = pages_ += in_.Below(20);
      config.min_blocks = in_.Below(capacity + 1);
    }
    if (in_.OneIn(64)) config.max_blocks = static_cast<uint32_t>(in_.Nasty()) | 1u << 28;
    if (in_.OneIn(64)) config.min_blocks = capacity + 1 + static_cast<uint32_t>(in_.Nasty()) % 9;
    if (in_.OneIn(64)) config.partial_reuse = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) config.max_pending_blocks = static_cast<uint32_t>(in_.Nasty()) | 1u << 28;
    if (in_.OneIn(64)) config.max_digests = static_cast<uint32_t>(in_.Nasty()) | 1u << 25;
    config.resume_gate_permille = in_.OneIn(3) ? 1000 : 1 + 4 * in_.U8() % 1000;
    if (in_.OneIn(64)) config.resume_gate_permille = in_.OneIn(2) ? 0 : 1001;
    // Values that are refused before anything large is asked for.
    if (in_.OneIn(64)) config.flags = static_cast<uint32_t>(in_.Nasty()) | 2;
    if (in_.OneIn(64)) config.device = static_cast<uint32_t>(in_.Nasty()) | 1;
    if (in_.OneIn(64)) config.tokens_per_block = in_.OneIn(2) ? 0 : 4097 + in_.Below(9);
    if (in_.OneIn(64)) config.capacity_blocks = in_.OneIn(2) ? 0 : UINT32_MAX - in_.Below(9);
    if (in_.OneIn(64)) config.max_sequences = in_.OneIn(2) ? 0 : UINT32_MAX - in_.Below(9);
    if (in_.OneIn(64)) config.page_bytes = in_.Nasty() | uint64_t{1} << 62 | 1;
    config.policy = in_.Below(2);
    config.lrfu_tau = 1 + in_.Below(40);
    config.max_pinned_pages = in_.Below(12);
    if (in_.OneIn(64)) config.policy = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) config.lrfu_tau = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(64)) config.max_pinned_pages = static_cast<uint32_t>(in_.Nasty()) | 1u << 31;
    if (in_.OneIn(64)) config.struct_size = static_cast<uint32_t>(in_.Nasty());
    if (Sane(kvc_manager_create(&config, stream_, &manager_, &error), &error) != KVC_OK) {
      return false;
    }
    // A smaller struct_size leaves the members behind it at their defaults.
    if (config.struct_size != sizeof config) {
      drained_wrong_ = true;
      pages_ = 20000;
    }
    mirror_ = std::make_unique<WireMirror>(form_, block_);
    return true;
  }

  void Step() {
    switch (in_.Below(28)) {
      case 26:
      case 27:
        return Snapshots();
      case 24:
      case 25:
        return Together();
      case 0:
      case 1:
      case 2:
        return Create();
      case 3:
        return Probe();
      case 4:
      case 5:
      case 6:
        return Grow();
      case 7:
      case 8:
      case 9:
        return Commit();
      case 10:
      case 11:
        return Release();
      case 12:
        if (in_.OneIn(3)) return Waiters();
        if (in_.OneIn(2)) return Resize();
        return Get();
      case 13:
        if (!in_.OneIn(4)) return Retention();
        Sane(kvc_manager_reset(manager_, nullptr));
        return;
      case 14:
      case 15:
        return Drain();
      case 16:
        return DeviceStreams();
      case 17:
        return Fences();
      case 18:
        return Host();
      case 19:
      case 20:
      case 21:
        return Lifecycle();
      case 22:
        return Reading();
      default:
        return Tables();
    }
  }
  // Block tables into memory with sentinels behind it, tables on the device, and
  // geometries, which need no manager.
  void Tables() {
    constexpr int32_t kGuard = 0x5A5A5A5A;
    kvc_error* error = MaybeError();
    kvc_table_format format{1 + in_.Below(3), in_.Below(3), 1 + in_.Below(2), -1};
    if (in_.OneIn(8)) format.index_scale = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(8)) format.expansion = static_cast<uint32_t>(in_.Nasty());
    const kvc_table_format* how = in_.OneIn(2) ? nullptr : &format;
    const uint32_t count = in_.Below(4);
    const uint32_t columns = in_.Below(20);
    std::vector<kvc_table_result> results(count);
    std::vector<kvc_table_item> items;
    for (uint32_t i = 0; i < count; ++i) items.push_back({Sequence(), in_.OneIn(16), in_.Below(4)});
    switch (in_.Below(5)) {
      case 0: {
        std::vector<int32_t> table(count * columns + 1, kGuard), lengths(count + 1, kGuard);
        Sane(kvc_tables_dense(manager_, how, count, items.data(), columns,
                              in_.OneIn(8) ? in_.Below(20) % (columns + 1) : columns, table.data(),
                              lengths.data(), results.data(), error),
             error);
        Require(table.back() == kGuard && lengths.back() == kGuard, "a dense table ran over");
        return;
      }
      case 1: {
        std::vector<int32_t> indptr(count + 2, kGuard), indices(columns + 1, kGuard);
        std::vector<int32_t> last(count + 1, kGuard);
        uint64_t needed = 0;
        const kvc_status status =
            Sane(kvc_tables_indexed(manager_, how, count, items.data(), columns, indptr.data(),
                                    indices.data(), last.data(), &needed, results.data(), error),
                 error);
        Require(indptr.back() == kGuard && indices.back() == kGuard && last.back() == kGuard,
                "an indexed table ran over");
        Require(status != KVC_OK || needed <= columns, "more entries than there was room for");
        return;
      }
      case 2: {
        std::vector<kvc_table_delta_item> rows;
        std::vector<kvc_table_cookie> cookies;
        for (const kvc_table_item& item : items) {
          rows.push_back({in_.OneIn(8) ? 0 : item.sequence, item.group, in_.Below(4)});
          kvc_table_cookie cookie = cookies_[in_.Below(4)];
          if (in_.OneIn(16))
            cookie = {Sequence(), in_.Below(4), static_cast<uint32_t>(in_.Nasty())};
          cookies.push_back(cookie);
        }
        const uint32_t room = in_.Below(24);
        std::vector<kvc_table_delta> deltas(room + 1, {7, 7, kGuard});
        uint32_t written = 0;
        Sane(kvc_tables_delta(manager_, how, count, rows.data(), columns, cookies.data(), room,
                              deltas.data(), &written, results.data(), error),
             error);
        Require(written <= room && deltas.back().value == kGuard, "a delta ran over");
        for (uint32_t i = 0; i < written; ++i) {
          Require(deltas[i].column < columns, "a delta outside the table");
        }
        for (uint32_t i = 0; i < count; ++i) cookies_[rows[i].row] = cookies[i];
        return;
      }
      case 3:
        return DeviceTable(error);
      default:
        return Geometry(error);
    }
  }
  void DeviceTable(kvc_error* error) {
    uint64_t address = 0;
    if (table_ == 0) {
      Sane(kvc_device_table_create(manager_, in_.Below(4), in_.Below(4), -1, in_.Below(16), &table_,
                                   &address, error),
           error);
      return;
    }
    switch (in_.Below(4)) {
      case 0: {
        std::vector<kvc_table_delta> deltas(in_.Below(5));
        for (kvc_table_delta& d : deltas) d = {in_.Below(4), in_.Below(4), in_.U8()};
        Sane(kvc_device_table_update(manager_, table_, DeviceStream(),
                                     static_cast<uint32_t>(deltas.size()), deltas.data(), error),
             error);
        return;
      }
      case 1: {
        const uint32_t rows = in_.Below(4);
        const std::vector<int32_t> entries(rows * 4, in_.U8());
        Sane(kvc_device_table_write(manager_, table_, DeviceStream(), in_.Below(4), rows, 4,
                                    entries.data(), error),
             error);
        return;
      }
      case 2: {
        int32_t out[4];
        Sane(kvc_host_table_read(manager_, table_, in_.Below(5), in_.Below(5), in_.Below(5), out,
                                 error),
             error);
        return;
      }
      default:
        if (Sane(kvc_device_table_destroy(manager_, table_, error), error) == KVC_OK) table_ = 0;
    }
  }
  void Geometry(kvc_error* error) {
    kvc_geometry_config config;
    kvc_geometry_config_init(&config);
    config.flags = in_.Below(8);
    config.layout = in_.Below(3);
    config.order = in_.Below(2);
    config.tokens_per_block = 1u << in_.Below(9);
    config.kernel_tokens = in_.OneIn(2) ? 0 : 1u << in_.Below(9);
    if (in_.OneIn(8)) config.capacity_blocks = static_cast<uint32_t>(in_.Nasty());
    if (in_.OneIn(8)) config.alignment = static_cast<uint32_t>(in_.Nasty());
    const uint32_t count = in_.Below(5);
    std::vector<kvc_buffer_spec> specs(count);
    for (kvc_buffer_spec& s : specs) {
      s = {in_.Below(2),
           0,
           in_.Below(8),
           in_.Below(9),
           1 + in_.Below(4),
           8 * (1 + in_.Below(32)),
           0,
           0};
      if (in_.OneIn(16)) s.heads = static_cast<uint32_t>(in_.Nasty());
      if (in_.OneIn(16)) s.head_dim = static_cast<uint32_t>(in_.Nasty());
      if (in_.OneIn(16)) s.scale_elements = static_cast<uint32_t>(in_.Nasty());
    }
    std::vector<kvc_buffer> buffers(count);
    kvc_geometry geometry{};
    if (Sane(kvc_geometry_compute(&config, count, specs.data(), buffers.data(), &geometry, error),
             error) != KVC_OK) {
      return;
    }
    kvc_tensor_view views[KVC_VIEW_TENSORS];
    uint32_t written = 0;
    Sane(kvc_geometry_view(&geometry, count, buffers.data(), in_.Below(3), in_.Below(10), views,
                           &written, error),
         error);
    Require(written <= KVC_VIEW_TENSORS, "a view has too many tensors");
    if (in_.OneIn(2)) {
      config.tokens_per_block = block_;
      config.layout = KVC_LAYOUT_COALESCED;
    }
    Sane(kvc_page_layout_set(manager_, &config, count, specs.data(), error), error);
  }
  void Lifecycle() {
    kvc_error* error = MaybeError();
    const uint64_t id = Sequence();
    kvc_status status = KVC_OK;
    switch (in_.Below(12)) {
      case 9:
      case 10:
      case 11: {
        const kvc_fork_item item{id, in_.OneIn(2) ? DeviceStream() : 0};
        kvc_fork_result result{};
        Sane(kvc_sequences_fork(manager_, 1, &item, &result, error), error);
        if (Sane(result.status) != KVC_OK) return;
        Require(std::find(open_.begin(), open_.end(), result.sequence) == open_.end(),
                "a fork is a sequence that was open");
        ids_.push_back(result.sequence);
        open_.push_back(result.sequence);
        Keep(result.waits, result.wait_count);
        return;
      }
      case 6: {
        const kvc_hold_item item{id, in_.Below(3), in_.Below(2)};
        kvc_hold_result result{};
        Sane(kvc_sequences_release_held(manager_, 1, &item, &result, error), error);
        if (Sane(result.status) != KVC_OK) return;
        open_.erase(std::find(open_.begin(), open_.end(), id));
        holds_.insert(holds_.end(), item.count, result.hold);
        return;
      }
      case 7: {
        const uint64_t hold =
            holds_.empty() || in_.OneIn(8) ? id : holds_[in_.U8() % holds_.size()];
        Sane(kvc_holds_release(manager_, 1, &hold, &status, error), error);
        const auto at = std::find(holds_.begin(), holds_.end(), hold);
        Require((Sane(status) == KVC_OK) == (at != holds_.end()), "released a hold that was none");
        if (at != holds_.end()) holds_.erase(at);
        return;
      }
      case 8: {
        const uint64_t step = in_.OneIn(8) ? in_.Nasty() : ++steps_ - in_.Below(3);
        if (in_.OneIn(2)) {
          Sane(kvc_step_begin(manager_, DeviceStream(), step, error), error);
        } else {
          Sane(kvc_step_done(manager_, DeviceStream(), step, error), error);
        }
        return;
      }
      case 0:
      case 1: {
        kvc_suspend_item item{id, in_.Below(2), 0};
        if (in_.OneIn(32)) item.flags = static_cast<uint32_t>(in_.Nasty());
        Sane(kvc_sequences_suspend(manager_, 1, &item, &status, error), error);
        Sane(status);
        return;
      }
      case 2: {
        kvc_resume_result result{};
        Sane(kvc_sequences_resume(manager_, 1, &id, &result, error), error);
        if (Sane(result.status) == KVC_OK) Keep(result.waits, result.wait_count);
        return;
      }
      case 3: {
        kvc_truncate_item item{id, in_.OneIn(16) ? in_.Nasty() : in_.Below(40)};
        kvc_truncate_result result{};
        Sane(kvc_sequences_truncate(manager_, 1, &item, &result, error), error);
        Sane(result.status);
        return;
      }
      case 4: {
        const kvc_stop_item item{id, in_.OneIn(16) ? in_.Nasty() : in_.Below(40)};
        Sane(kvc_sequences_stop(manager_, 1, &item, &status, error), error);
        Sane(status);
        return;
      }
      default: {
        Sane(kvc_sequences_cancel(manager_, 1, &id, &status, error), error);
        const auto at = std::find(open_.begin(), open_.end(), id);
        Require((Sane(status) == KVC_OK) == (at != open_.end()), "cancelled what was not open");
        if (at != open_.end()) open_.erase(at);
      }
    }
  }

  // Mostly an id that was handed out, open or not.
  uint64_t Sequence() {
    if (in_.OneIn(16)) return in_.Nasty();
    if (!open_.empty() && !in_.OneIn(8))
      return open_[in_.Below(static_cast<uint32_t>(open_.size()))];
    return ids_.empty() ? in_.U8() : ids_[in_.U8() % ids_.size()];
  }
  uint64_t DeviceStream() {
    if (in_.OneIn(32)) return in_.Nasty();
    if (streams_.empty() || in_.OneIn(2)) return 0;
    return streams_[in_.U8() % streams_.size()];
  }
  kvc_error* MaybeError() { return in_.OneIn(4) ? nullptr : &error_; }

  std::vector<uint32_t> Tokens(uint32_t count) {
    std::vector<uint32_t> tokens(count);
    const uint32_t common = in_.Below(3);
    for (uint32_t& token : tokens) token = common == 2 ? in_.Below(3) : common;
    if (count != 0 && in_.OneIn(32)) tokens[in_.U8() % count] = static_cast<uint32_t>(in_.Nasty());
    return tokens;
  }

  // Some of the tokens become digests, which are added to `bytes`; sometimes not
  // as they should be.
  void AddDigests(std::vector<uint32_t>* tokens, std::vector<uint8_t>* bytes, uint64_t* offset,
                  uint32_t* count) {
    *offset = bytes->size();
    *count = 0;
    if (tokens->empty() || !in_.OneIn(3)) return;
    *count = 1 + in_.Below(2);
    for (uint32_t i = 0; i < *count; ++i) {
      const kvcast::testing::TestDigest digest = kvcast::testing::DigestOf(1 + in_.Below(4));
      bytes->insert(bytes->end(), digest.begin(), digest.end());
    }
    for (uint32_t i = in_.Below(3); i > 0; --i) {
      (*tokens)[in_.U8() % tokens->size()] = KVC_DIGEST_TOKEN(in_.Below(*count));
    }
    // Outside the array for certain: other bytes are no digests of these tests.
    if (in_.OneIn(16)) *offset = in_.Nasty() | uint64_t{1} << 40;
    if (in_.OneIn(16)) *count = in_.OneIn(2) ? 0 : UINT32_MAX - in_.Below(9);
  }

  Prompts MakePrompts() {
    Prompts p;
    for (uint32_t i = in_.Below(4); i > 0; --i) {
      kvc_prompt prompt{};
      std::vector<uint32_t> tokens = Tokens(in_.Below(10) * block_ + in_.Below(2));
      AddDigests(&tokens, &p.bytes, &prompt.digest_offset, &prompt.digest_count);
      prompt.token_offset = p.tokens.size();
      prompt.token_count = tokens.size();
      prompt.device_stream = DeviceStream();
      prompt.scope = KVC_NO_SCOPE;
      prompt.must_compute = in_.Below(4);
      prompt.flags = in_.OneIn(4) ? in_.Below(16) : in_.Below(4) * KVC_PROMPT_MARK;
      prompt.stop_before = in_.Below(40);
      prompt.match_backoff = in_.OneIn(32) ? static_cast<uint32_t>(in_.Nasty()) : in_.Below(4);
      if (in_.OneIn(64)) prompt.flags = static_cast<uint32_t>(in_.Nasty());
      p.tokens.insert(p.tokens.end(), tokens.begin(), tokens.end());
      if (in_.OneIn(3)) {
        kvc_scope scope{};
        scope.parts = in_.Below(16);
        scope.lora_id = in_.Below(3);
        scope.salt = in_.Below(2);
        scope.lora_name_offset = p.bytes.size();
        scope.lora_name_size = 1 + in_.Below(3);
        p.bytes.insert(p.bytes.end(), scope.lora_name_size,
                       static_cast<uint8_t>('a' + in_.Below(3)));
        scope.salt_bytes_offset = p.bytes.size();
        scope.salt_bytes_size = 1 + in_.Below(2);
        p.bytes.insert(p.bytes.end(), scope.salt_bytes_size, in_.U8());
        if (in_.OneIn(16)) {
          switch (in_.Below(6)) {
            case 0:
              scope.parts = static_cast<uint32_t>(in_.Nasty());
              break;
            case 1:
              scope.lora_id = in_.Nasty();
              break;
            case 2:
              scope.lora_name_offset = in_.Nasty();
              break;
            case 3:
              scope.lora_name_size = static_cast<uint32_t>(in_.Nasty());
              break;
            case 4:
              scope.salt_bytes_offset = in_.Nasty();
              break;
            default:
              p.bytes.back() = in_.U8();
              p.bytes.front() = in_.U8();
          }
        }
        prompt.scope = static_cast<uint32_t>(p.scopes.size());
        p.scopes.push_back(scope);
      }
      if (in_.OneIn(16)) prompt.scope = static_cast<uint32_t>(in_.Nasty());
      if (in_.OneIn(16)) prompt.must_compute = static_cast<uint32_t>(in_.Nasty());
      if (in_.OneIn(32)) prompt.token_offset = in_.Nasty();
      if (in_.OneIn(32)) prompt.token_count = in_.Nasty();
      p.prompts.push_back(prompt);
    }
    p.prompts.shrink_to_fit();
    p.tokens.shrink_to_fit();
    p.scopes.shrink_to_fit();
    p.bytes.shrink_to_fit();
    return p;
  }

  void Create() {
    const Prompts p = MakePrompts();
    const auto count = static_cast<uint32_t>(p.prompts.size());
    std::vector<kvc_create_result> results(count);
    kvc_error* error = MaybeError();
    const bool no_results = in_.OneIn(64);
    const kvc_status status =
        Sane(kvc_sequences_create(manager_, count, p.prompts.data(), p.tokens.data(),
                                  p.tokens.size(), p.scopes.data(),
                                  static_cast<uint32_t>(p.scopes.size()), p.bytes.data(),
                                  p.bytes.size(), no_results ? nullptr : results.data(), error),
             error);
    if (status != KVC_OK || no_results) return;
    for (uint32_t i = 0; i < count; ++i) {
      const kvc_create_result& r = results[i];
      Sane(r.status);
      if (r.status != KVC_OK) continue;
      Require(r.matched_tokens <= p.prompts[i].token_count, "matched more than was asked");
      Require(r.copied_tokens == 0 ||
                  (r.copied_tokens == r.matched_tokens % block_ && r.copied_from < pages_ &&
                   r.copied_to < pages_ && r.copied_from != r.copied_to),
              "a copy of a tail that cannot be");
      ids_.push_back(r.sequence);
      open_.push_back(r.sequence);
      Keep(r.waits, r.wait_count);
    }
  }
  void Probe() {
    const Prompts p = MakePrompts();
    const auto count = static_cast<uint32_t>(p.prompts.size());
    std::vector<kvc_probe_result> results(count);
    kvc_error* error = MaybeError();
    Sane(kvc_probe(manager_, count, p.prompts.data(), p.tokens.data(), p.tokens.size(),
                   p.scopes.data(), static_cast<uint32_t>(p.scopes.size()), p.bytes.data(),
                   p.bytes.size(), results.data(), error),
         error);
    for (uint32_t i = 0; i < count; ++i) {
      Sane(results[i].status);
      Require(results[i].status != KVC_OK || results[i].matched_tokens <= p.prompts[i].token_count,
              "found more than was asked");
    }
  }
  void Grow() {
    std::vector<kvc_grow_item> items(in_.Below(3));
    for (kvc_grow_item& item : items) {
      item = {Sequence(), uint64_t{in_.Below(26)} * block_};
      if (in_.OneIn(16)) item.capacity_tokens = in_.Nasty();
    }
    std::vector<kvc_grow_result> results(items.size());
    std::vector<kvc_evicted_block> evicted(in_.Below(8));
    const auto room = static_cast<uint32_t>(evicted.size());
    uint32_t told = 0;
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_sequences_grow(manager_, static_cast<uint32_t>(items.size()), items.data(),
                                results.data(), evicted.data(), room, &told, error),
             error);
    if (status != KVC_OK) return;
    uint32_t next = 0;
    for (const kvc_grow_result& r : results) {
      Sane(r.status);
      if (r.first_evicted == KVC_NOT_TOLD) {
        Require(r.evicted_blocks == 0 || r.evicted_blocks > room - next, "evicted and not told");
      } else {
        Require(r.evicted_blocks != 0 && r.first_evicted == next, "told in the wrong place");
        next += r.evicted_blocks;
      }
      Require(r.copied_block == KVC_NO_COPY ||
                  (r.status == KVC_OK && r.added_pages != 0 && r.copied_from < pages_ &&
                   r.copied_to < pages_ && r.copied_from != r.copied_to && r.copied_tokens != 0 &&
                   r.copied_tokens < block_),
              "an odd copy");
      Keep(&r.wait, r.wait_count);
    }
    Require(told == next && told <= room, "told another number of blocks");
    for (uint32_t i = 0; i < told; ++i) {
      Require(evicted[i].page < pages_ && evicted[i].block != evicted[i].parent, "an odd block");
    }
  }
  void Resize() {
    std::vector<kvc_page_move> moves(in_.Below(8));
    std::vector<kvc_evicted_block> evicted(in_.Below(8));
    const bool move = in_.OneIn(2);
    const bool tell = in_.OneIn(2);
    uint32_t target = 1 + in_.Below(44);
    if (in_.OneIn(16)) target = static_cast<uint32_t>(in_.Nasty());
    const uint32_t most = in_.OneIn(4) ? UINT32_MAX : in_.Below(12);
    kvc_resize_result r{};
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_pool_resize(manager_, target, most, move ? moves.data() : nullptr,
                             move ? static_cast<uint32_t>(moves.size()) : 0,
                             tell ? evicted.data() : nullptr,
                             tell ? static_cast<uint32_t>(evicted.size()) : 0, &r, error),
             error);
    if (status != KVC_OK) return;
    Require(r.target_pages == target && r.total_pages <= pages_, "resized to somewhere else");
    Require(r.moved_pages + uint64_t{r.evicted_blocks} <= most, "more was done than was allowed");
    Require(!move || r.moved_pages <= moves.size(), "more was moved than could be told");
    Require(!tell || r.evicted_blocks <= evicted.size(), "more went than could be told");
    Require(r.held_pages <= r.doomed_pages, "more pages are held than there are");
    Require(r.done == 0 || (r.total_pages == target && r.doomed_pages == 0 && r.leaving_pages == 0),
            "done, and yet not");
    for (uint32_t i = 0; move && i < r.moved_pages; ++i) {
      Require(moves[i].from >= target && moves[i].to < target && moves[i].tokens != 0 &&
                  moves[i].tokens <= block_,
              "an odd move");
    }
    const kvc_fence copied = r.copied;
    Keep(&copied, copied.device_stream != 0 ? 1 : 0);
  }
  // Where blocks are, and how long they stay.
  void Retention() {
    switch (in_.Below(7)) {
      case 0:
        return Residency();
      case 4:
        return Pin();
      case 5:
        return Unpin();
      case 6:
        return Drop();
      case 1:
        return Release(true);
      case 2: {
        uint32_t expired = 0;
        uint32_t more = 0;
        kvc_error* error = MaybeError();
        now_ += uint64_t{in_.U8()} << 26;
        Sane(kvc_expire(manager_, in_.OneIn(32) ? in_.Nasty() : now_, in_.Below(6), &expired, &more,
                        error),
             error);
        Require(expired <= pages_, "more blocks expired than there are");
        return;
      }
      default: {
        std::vector<kvc_retain_item> items(in_.Below(4));
        for (kvc_retain_item& item : items) {
          item = {Sequence(),
                  uint64_t{in_.Below(6)} * block_,
                  in_.OneIn(2) ? KVC_TO_THE_END : uint64_t{in_.Below(12)} * block_,
                  in_.OneIn(2) ? 0 : now_ + (uint64_t{in_.U8()} << 26),
                  in_.Below(104),
                  0};
          if (in_.OneIn(32)) item.first_token = in_.Nasty();
          if (in_.OneIn(32)) item.end_token = in_.Nasty();
          if (in_.OneIn(32)) item.expires_ns = in_.Nasty();
        }
        std::vector<kvc_status> results(items.size());
        kvc_error* error = MaybeError();
        Sane(kvc_sequences_retain(manager_, static_cast<uint32_t>(items.size()), items.data(),
                                  results.data(), error),
             error);
        for (const kvc_status status : results) Sane(status);
      }
    }
  }
  void Pin() {
    if (in_.OneIn(2)) {
      const uint64_t id = Sequence();
      kvc_pin_result result{};
      Sane(kvc_pin_sequences(manager_, 1, &id, &result, nullptr));
      if (Sane(result.status) == KVC_OK && result.pin != 0) pins_.push_back(result.pin);
      return;
    }
    const Prompts p = MakePrompts();
    const auto count = static_cast<uint32_t>(p.prompts.size());
    std::vector<kvc_pin_result> results(count);
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_pin_prompts(manager_, count, p.prompts.data(), p.tokens.data(), p.tokens.size(),
                             p.scopes.data(), static_cast<uint32_t>(p.scopes.size()),
                             p.bytes.data(), p.bytes.size(), results.data(), error),
             error);
    if (status != KVC_OK) return;
    for (const kvc_pin_result& r : results) {
      if (Sane(r.status) == KVC_OK && r.pin != 0) pins_.push_back(r.pin);
    }
  }
  void Unpin() {
    const bool known = !pins_.empty() && !in_.OneIn(8);
    const size_t at = known ? in_.U8() % pins_.size() : 0;
    const uint64_t pin = known ? pins_[at] : in_.Nasty();
    kvc_status result = KVC_OK;
    Sane(kvc_unpin(manager_, 1, &pin, &result, nullptr));
    Require(!known || Sane(result) == KVC_OK, "a pin was lost");
    if (!known) return;
    pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(at));
    Sane(kvc_unpin(manager_, 1, &pin, &result, nullptr));
    Require(result == KVC_STALE_HANDLE, "a pin ended twice");
  }
  void Drop() {
    const Prompts p = MakePrompts();
    std::vector<kvc_drop_item> items(in_.Below(3));
    for (kvc_drop_item& item : items) {
      item = {in_.OneIn(3) ? KVC_NO_SCOPE : in_.Below(3), in_.Below(2)};
      if (in_.OneIn(16)) item = {static_cast<uint32_t>(in_.Nasty()), in_.U8()};
    }
    std::vector<kvc_drop_result> results(items.size());
    std::vector<kvc_evicted_block> evicted(in_.Below(8));
    uint32_t told = 0;
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_drop_scopes(manager_, static_cast<uint32_t>(items.size()), items.data(),
                             p.scopes.data(), static_cast<uint32_t>(p.scopes.size()),
                             p.bytes.data(), p.bytes.size(), results.data(), evicted.data(),
                             static_cast<uint32_t>(evicted.size()), &told, error),
             error);
    if (status != KVC_OK) return;
    Require(told <= evicted.size(), "told more blocks than there is room");
    for (const kvc_drop_result& r : results) Sane(r.status);
    kvc_histograms ages;
    kvc_histograms_init(&ages);
    if (in_.OneIn(4)) ages.struct_size = static_cast<uint32_t>(in_.Nasty());
    Sane(kvc_manager_histograms_get(manager_, &ages, error), error);
  }
  void Residency() {
    const Prompts p = MakePrompts();
    const auto count = static_cast<uint32_t>(p.prompts.size());
    std::vector<kvc_residency_result> results(count);
    std::vector<kvc_block_residency> blocks(in_.Below(20));
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_residency(manager_, count, p.prompts.data(), p.tokens.data(), p.tokens.size(),
                           p.scopes.data(), static_cast<uint32_t>(p.scopes.size()), p.bytes.data(),
                           p.bytes.size(), blocks.size(), blocks.data(), results.data(), error),
             error);
    if (status != KVC_OK) return;
    for (const kvc_residency_result& r : results) {
      if (Sane(r.status) != KVC_OK) continue;
      Require(r.first_block + r.resident_blocks <= blocks.size(), "more blocks than there is room");
      for (uint32_t i = 0; i < r.resident_blocks; ++i) {
        Require(blocks[r.first_block + i].copies == 1, "a resident block without a copy");
      }
    }
  }
  void Commit() {
    std::vector<kvc_commit_item> items(in_.Below(3));
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> bytes;
    for (kvc_commit_item& item : items) {
      std::vector<uint32_t> more = Tokens(in_.Below(8) * block_ + in_.Below(2));
      item = {Sequence(), tokens.size(), more.size(), 0, 0, {}, 0};
      AddDigests(&more, &bytes, &item.digest_offset, &item.digest_count);
      tokens.insert(tokens.end(), more.begin(), more.end());
      if (in_.OneIn(6)) {
        item.flags =
            in_.OneIn(16) ? static_cast<uint32_t>(in_.Nasty()) : uint32_t{KVC_COMMIT_FENCE};
        item.fence = {DeviceStream(), in_.OneIn(16) ? in_.Nasty() : in_.Below(6)};
      }
      if (in_.OneIn(32)) item.token_offset = in_.Nasty();
      if (in_.OneIn(32)) item.token_count = in_.Nasty();
    }
    tokens.shrink_to_fit();
    bytes.shrink_to_fit();
    std::vector<kvc_commit_result> results(items.size());
    kvc_error* error = MaybeError();
    Sane(kvc_sequences_commit(manager_, static_cast<uint32_t>(items.size()), items.data(),
                              tokens.data(), tokens.size(), bytes.data(), bytes.size(),
                              results.data(), error),
         error);
    for (const kvc_commit_result& r : results) {
      Sane(r.status);
      if (r.status == KVC_OK) Keep(r.waits, r.wait_count);
    }
  }
  // Operations of any kinds, their fields often nonsense, in arrays that are often
  // too small.
  void Together() {
    const Prompts p = MakePrompts();
    std::vector<kvc_op> ops(in_.Below(9));
    for (kvc_op& op : ops) {
      op.kind = in_.OneIn(16) ? static_cast<uint32_t>(in_.Nasty()) : 1 + in_.Below(KVC_OP_FORK);
      op.args.sequence = in_.OneIn(2) ? KVC_STEP_RESULT | in_.Below(8) : Sequence();
      op.args.room[1] = uint64_t{in_.Below(26)} * block_;
      op.args.room[2] = in_.OneIn(4) ? in_.Nasty() : in_.Below(4);
      if (op.kind == KVC_OP_CREATE) {
        op.args.prompt = in_.OneIn(32) ? in_.Nasty() : in_.Below(3);
      } else if (op.kind == KVC_OP_RELEASE_HOLD || op.kind == KVC_OP_UNPIN) {
        const std::vector<uint64_t>& known = op.kind == KVC_OP_UNPIN ? pins_ : holds_;
        op.args.handle =
            known.empty() || in_.OneIn(4) ? in_.Nasty() : known[in_.U8() % known.size()];
      } else if (op.kind == KVC_OP_TABLE) {
        op.args.table.group = in_.OneIn(16) ? 1 : 0;
        op.args.table.cookie = in_.Below(5);
      } else if (op.kind == KVC_OP_COMMIT) {
        op.args.commit.token_offset = in_.Below(2);
        op.args.commit.token_count = in_.OneIn(16) ? in_.Nasty() : in_.Below(4) * block_;
        op.args.commit.flags = in_.OneIn(8) ? uint32_t{KVC_COMMIT_FENCE} : 0;
        op.args.commit.fence = {DeviceStream(), in_.Below(6)};
      } else if (op.kind == KVC_OP_HOLD || op.kind == KVC_OP_PIN) {
        op.kind = KVC_OP_RELEASE;  // have calls of their own here, which note them
      }
      if (in_.OneIn(32)) op.reserved = in_.U8();
    }
    std::vector<kvc_op_result> results(ops.size());
    std::vector<kvc_table_cookie> cookies(in_.Below(5));
    std::vector<kvc_table_delta> deltas(in_.Below(12));
    std::vector<kvc_evicted_block> evicted(in_.Below(8));
    std::vector<kvc_fence> waits(in_.OneIn(3) ? in_.Below(8) : 600);
    kvc_step_input input;
    kvc_step_input_init(&input);
    input.tokens = p.tokens.data();
    input.token_count = p.tokens.size();
    input.scopes = p.scopes.data();
    input.scope_count = static_cast<uint32_t>(p.scopes.size());
    input.bytes = p.bytes.data();
    input.byte_count = p.bytes.size();
    input.prompts = p.prompts.data();
    input.prompt_count = static_cast<uint32_t>(p.prompts.size());
    input.columns = in_.Below(30);
    kvc_step_output output;
    kvc_step_output_init(&output);
    output.cookies = cookies.data();
    output.cookie_count = static_cast<uint32_t>(cookies.size());
    output.deltas = deltas.data();
    output.delta_capacity = static_cast<uint32_t>(deltas.size());
    output.evicted = evicted.data();
    output.evicted_capacity = static_cast<uint32_t>(evicted.size());
    output.waits = waits.data();
    output.wait_capacity = static_cast<uint32_t>(waits.size());
    std::vector<kvc_waiter> waiters(in_.Below(4));
    output.waiters = waiters.data();
    output.waiter_capacity = static_cast<uint32_t>(waiters.size());
    if (in_.OneIn(32)) input.struct_size = static_cast<uint32_t>(in_.Nasty());
    kvc_error* error = MaybeError();
    const kvc_status status = Sane(kvc_step(manager_, static_cast<uint32_t>(ops.size()), ops.data(),
                                            &input, results.data(), &output, error),
                                   error);
    if (status != KVC_OK) return;
    Require(output.delta_count <= deltas.size() && output.evicted_count <= evicted.size() &&
                output.wait_count <= waits.size(),
            "more was told than there is room");
    uint32_t told = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      const kvc_op_result& r = results[i];
      Sane(r.status);
      const uint64_t id = r.sequence;
      const auto at = std::find(open_.begin(), open_.end(), id);
      switch (ops[i].kind) {
        case KVC_OP_CREATE:
        case KVC_OP_FORK:
          if (r.status == KVC_OK) open_.push_back(id);
          break;
        case KVC_OP_GROW:
          if (r.of.grown.first_evicted == KVC_NOT_TOLD) {
            Require(r.status != KVC_OK || r.of.grown.evicted_blocks == 0 || evicted.empty(),
                    "evicted and not told");
          } else {
            Require(r.of.grown.first_evicted == told, "told in the wrong place");
            told += r.of.grown.evicted_blocks;
          }
          break;
        case KVC_OP_RELEASE:
        case KVC_OP_CANCEL:
        case KVC_OP_END:
          Require((r.status == KVC_OK) == (at != open_.end()) || r.status == KVC_INVALID_ARGUMENT,
                  "closed what was not open");
          if (r.status == KVC_OK) open_.erase(at);
          break;
        case KVC_OP_RELEASE_HOLD:
        case KVC_OP_UNPIN: {
          std::vector<uint64_t>& known = ops[i].kind == KVC_OP_UNPIN ? pins_ : holds_;
          const auto handle = std::find(known.begin(), known.end(), ops[i].args.handle);
          Require(
              (r.status == KVC_OK) == (handle != known.end()) || r.status == KVC_INVALID_ARGUMENT,
              "ended a hold or a pin that was none");
          if (r.status == KVC_OK) known.erase(handle);
          break;
        }
        default:
          break;
      }
      const bool waits_too = ops[i].kind == KVC_OP_CREATE || ops[i].kind == KVC_OP_COMMIT ||
                             ops[i].kind == KVC_OP_GROW || ops[i].kind == KVC_OP_FORK ||
                             ops[i].kind == KVC_OP_RESUME;
      if (r.status == KVC_OK && waits_too) {
        Require(r.first_wait + r.wait_count <= output.wait_count, "fences beyond those told");
        for (uint32_t k = 0; k < r.wait_count; ++k) Keep(&waits[r.first_wait + k], 1);
      }
    }
    Require(told == output.evicted_count, "told another number of blocks");
    Judge(waiters, output.waiter_count);
  }
  void Waiters() {
    std::vector<kvc_waiter> waiters(in_.Below(4));
    uint32_t count = 0;
    kvc_error* error = MaybeError();
    Sane(kvc_waiters_take(manager_, static_cast<uint32_t>(waiters.size()), waiters.data(), &count,
                          error),
         error);
    Judge(waiters, count);
  }
  // Only open sequences wait.
  void Judge(const std::vector<kvc_waiter>& waiters, uint32_t count) {
    Require(count <= waiters.size(), "more waiters than there is room");
    for (uint32_t i = 0; i < count; ++i) {
      Require(std::find(open_.begin(), open_.end(), waiters[i].sequence) != open_.end(),
              "a wait of no sequence is over");
      Require(
          waiters[i].outcome == KVC_PENDING_COMMITTED || waiters[i].outcome == KVC_PENDING_GIVEN_UP,
          "a wait ended in no way");
    }
  }
  void Release(bool ended = false) {
    std::vector<uint64_t> ids(in_.Below(3));
    for (uint64_t& id : ids) id = Sequence();
    std::vector<kvc_status> results(ids.size());
    const auto call = ended ? kvc_sequences_end : kvc_sequences_release;
    Sane(call(manager_, static_cast<uint32_t>(ids.size()), ids.data(), results.data(), nullptr));
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto at = std::find(open_.begin(), open_.end(), ids[i]);
      Require((Sane(results[i]) == KVC_OK) == (at != open_.end()), "released what was not open");
      if (at != open_.end()) open_.erase(at);
    }
  }
  void Get() {
    std::vector<uint32_t> pages(in_.Below(30));
    uint32_t written = 0;
    kvc_sequence_info info;
    const uint32_t first = in_.OneIn(8) ? static_cast<uint32_t>(in_.Nasty()) : in_.Below(8);
    kvc_error* error = MaybeError();
    const kvc_status status =
        Sane(kvc_sequence_get(manager_, Sequence(), first, static_cast<uint32_t>(pages.size()),
                              pages.data(), &written, in_.OneIn(2) ? &info : nullptr, error),
             error);
    if (status != KVC_OK) return;
    Require(written <= pages.size(), "more pages than there was room for");
    for (uint32_t i = 0; i < written; ++i) Require(pages[i] < pages_, "a page beyond the pool");
  }
  void Keep(const kvc_fence* fences, uint32_t count) {
    for (uint32_t i = 0; i < count && i < KVC_MAX_WAITS; ++i) fences_.push_back(fences[i]);
  }
  void Drain() {
    if (stream_ == nullptr || drained_wrong_) return;
    kvc_borrowed_batch batch;
    kvc_error* error = MaybeError();
    const uint64_t max_events = in_.Below(4);
    const uint64_t max_blocks = in_.OneIn(8) ? in_.Nasty() : in_.Below(6);
    if (Sane(kvc_stream_drain(stream_, max_events, max_blocks, &batch, error), error) != KVC_OK) {
      Broken("a drain failed");
    }
    Good(mirror_->Apply(batch));
    Require(max_events == 0 || batch.event_count <= max_events, "too many events in a batch");
  }
  // One snapshot at a time, kept open over other calls, which change what it was
  // made of.
  void Snapshots() {
    if (stream_ == nullptr || drained_wrong_) return;
    if (snapshot_ == nullptr) {
      if (Sane(kvc_stream_snapshot_open(stream_, &snapshot_, nullptr)) != KVC_OK) {
        Broken("a snapshot cannot be opened");
      }
      pinned_ = std::make_unique<WireMirror>(*mirror_);
      read_ = std::make_unique<WireMirror>(form_, block_);
      return;
    }
    OwnedSnapshot other;
    Require(kvc_stream_snapshot_open(stream_, other.out(), nullptr) == KVC_BUSY, "two snapshots");
    kvc_borrowed_batch batch;
    const uint64_t max_blocks = in_.OneIn(8) ? in_.Nasty() : in_.Below(6);
    const kvc_status status =
        kvc_stream_snapshot_next(snapshot_, in_.Below(4), max_blocks, &batch, nullptr);
    if (status == KVC_OK) {
      Good(read_->Apply(batch));
      if (!in_.OneIn(16)) return;
    } else {
      Require(status == KVC_END, "a snapshot cannot be read");
      Require(read_->blocks() == pinned_->blocks(), "a snapshot has changed");
    }
    kvc_stream_snapshot_close(snapshot_);
    snapshot_ = nullptr;
  }
  void DeviceStreams() {
    if (in_.OneIn(3)) {
      Sane(kvc_device_stream_destroy(manager_, DeviceStream(), nullptr));
      return;
    }
    uint64_t id = 0;
    const kvc_status made = in_.OneIn(3) ? kvc_step_stream_create(manager_, &id, nullptr)
                                         : kvc_device_stream_create(manager_, &id, nullptr);
    if (Sane(made) == KVC_OK) streams_.push_back(id);
  }
  void Fences() {
    std::vector<kvc_fence> fences(in_.Below(6));
    for (kvc_fence& fence : fences) {
      if (!fences_.empty() && !in_.OneIn(4)) {
        fence = fences_[in_.U8() % fences_.size()];
      } else {
        fence = {DeviceStream(), in_.OneIn(4) ? in_.Nasty() : in_.Below(8)};
      }
    }
    const auto count = static_cast<uint32_t>(fences.size());
    kvc_error* error = MaybeError();
    if (in_.OneIn(2)) {
      std::vector<uint8_t> done(count);
      Sane(kvc_device_fences_query(manager_, count, fences.data(), done.data(), error), error);
    } else {
      Sane(kvc_device_stream_wait(manager_, DeviceStream(), count, fences.data(), error), error);
    }
  }
  void Host() {
    kvc_error* error = MaybeError();
    switch (in_.Below(4)) {
      case 0: {
        std::vector<uint8_t> bytes(in_.Below(20));
        Sane(kvc_host_read(
                 manager_, in_.OneIn(4) ? static_cast<uint32_t>(in_.Nasty()) : in_.Below(32),
                 in_.OneIn(4) ? in_.Nasty() : in_.Below(20), bytes.size(), bytes.data(), error),
             error);
        return;
      }
      case 1: {
        std::vector<kvc_host_fill> fills(in_.Below(4));
        for (kvc_host_fill& fill : fills) {
          fill = {in_.OneIn(8) ? static_cast<uint32_t>(in_.Nasty()) : in_.Below(32), 0, in_.U8()};
        }
        Sane(kvc_host_enqueue_fill(manager_, DeviceStream(), static_cast<uint32_t>(fills.size()),
                                   fills.data(), error),
             error);
        return;
      }
      default: {
        uint64_t executed = 0;
        Sane(kvc_host_advance(manager_, DeviceStream(), in_.OneIn(8) ? UINT64_MAX : in_.Below(8),
                              &executed, error),
             error);
      }
    }
  }
  // Calls that only look, also with bad sizes and without memory to write to.
  void Reading() {
    kvc_error* error = MaybeError();
    switch (in_.Below(8)) {
      case 0: {
        kvc_stats stats;
        kvc_stats_init(&stats);
        if (in_.OneIn(2)) stats.struct_size = static_cast<uint32_t>(in_.Nasty());
        Sane(kvc_manager_stats_get(manager_, &stats, error), error);
        return;
      }
      case 1: {
        std::vector<kvc_resident_block> blocks(in_.Below(32));
        uint64_t count = 0;
        Sane(kvc_manager_resident(manager_,
                                  in_.OneIn(4) ? static_cast<uint32_t>(in_.Nasty()) : form_,
                                  blocks.size(), blocks.data(), &count, error),
             error);
        return;
      }
      case 2: {
        if (stream_ == nullptr) return;
        kvc_stream_stats stats;
        kvc_stream_stats_init(&stats);
        if (in_.OneIn(2)) stats.struct_size = static_cast<uint32_t>(in_.Nasty());
        Sane(kvc_stream_stats_get(stream_, &stats, error), error);
        return;
      }
      case 3:
        Require(Sane(kvc_sequences_grow(manager_, 1, nullptr, nullptr, nullptr, 0, nullptr, error),
                     error) == KVC_INVALID_ARGUMENT,
                "NULL items");
        return;
      case 4:
        Require(
            Sane(kvc_sequences_commit(manager_, 0, nullptr, nullptr, 1, nullptr, 0, nullptr, error),
                 error) == KVC_INVALID_ARGUMENT,
            "NULL tokens");
        return;
      case 5:
        Require(
            Sane(kvc_manager_stats_get(manager_, nullptr, error), error) == KVC_INVALID_ARGUMENT,
            "NULL stats");
        return;
      case 6:
        Require(Sane(kvc_sequence_get(manager_, Sequence(), 0, 1, nullptr, nullptr, nullptr, error),
                     error) != KVC_OK,
                "NULL pages");
        return;
      default:
        // In use, so that the manager must refuse to go.
        if (!open_.empty()) {
          Require(Sane(kvc_manager_destroy(manager_, error), error) == KVC_BUSY,
                  "destroyed with open sequences");
        }
    }
  }

  void Check() {
    kvc_error error{};
    if (kvc_manager_check(manager_, &error) != KVC_OK) Broken(error.message);
  }
  void Finish() {
    Check();
    for (int round = 0;; ++round) {
      Require(round < 100000, "the stream does not come to rest");
      kvc_borrowed_batch batch;
      Require(kvc_stream_drain(stream_, 0, 0, &batch, nullptr) == KVC_OK, "a drain failed");
      Good(mirror_->Apply(batch));
      if (batch.event_count == 0 && batch.pending_blocks == 0 && batch.remaining_bytes == 0) break;
    }
    std::vector<kvc_resident_block> resident(pages_);
    uint64_t count = 0;
    Require(kvc_manager_resident(manager_, form_, resident.size(), resident.data(), &count,
                                 nullptr) == KVC_OK,
            "resident failed");
    resident.resize(count);
    kvc_stream_stats stats;
    kvc_stream_stats_init(&stats);
    Require(kvc_stream_stats_get(stream_, &stats, nullptr) == KVC_OK, "no stream statistics");
    Good(mirror_->Compare(resident, stats.suppressed_blocks == 0));
    Check();
  }

  Input& in_;
  kvc_table_cookie cookies_[4] = {};
  uint64_t table_ = 0;
  kvc_stream* stream_ = nullptr;
  kvc_snapshot* snapshot_ = nullptr;
  std::unique_ptr<WireMirror> pinned_;  // what it must tell
  std::unique_ptr<WireMirror> read_;    // and has told
  kvc_manager* manager_ = nullptr;
  kvc_hash_form form_ = 0;
  uint32_t block_ = 1;
  uint32_t pages_ = 1;
  bool drained_wrong_ = false;  // the sizes are not those that this program thinks
  std::unique_ptr<WireMirror> mirror_;
  std::vector<uint64_t> ids_;  // all that were ever handed out
  std::vector<uint64_t> open_;
  std::vector<uint64_t> streams_;
  std::vector<uint64_t> holds_;  // as often as they must be released
  uint64_t steps_ = 0;
  std::vector<kvc_fence> fences_;
  uint64_t now_ = 0;
  std::vector<uint64_t> pins_;
  kvc_error error_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  Session(in).Run();
  return 0;
}

#if defined(KVC_FUZZ_AS_TEST)

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace {

// What the fuzzer found worth keeping.
TEST(FuzzAbi, Corpus) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/native/testdata/fuzz_abi")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), {});
    ASSERT_TRUE(file) << entry.path();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    ++inputs;
  }
  EXPECT_GE(inputs, 20) << "the corpus is missing";
}

TEST(FuzzAbi, RandomInputs) {
  const uint64_t seed = kvcast::testing::EnvNumber("KVC_SEED", 1);
  const uint64_t inputs =
      kvcast::testing::EnvNumber("KVC_INPUTS", kvcast::testing::kSanitized ? 1500 : 10000);
  std::printf("KVC_SEED=%llu KVC_INPUTS=%llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(inputs));
  for (uint64_t i = 0; i < inputs; ++i) {
    // Each by itself, so that a failing one is KVC_SEED=seed+i KVC_INPUTS=1.
    std::mt19937_64 random(seed + i);
    std::vector<uint8_t> input(16 + random() % 3000);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
}

}  // namespace

#endif  // KVC_FUZZ_AS_TEST
