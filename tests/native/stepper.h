// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Lets tests that make calls one by one have them made by one kvc_step.
#ifndef KVCAST_TESTS_NATIVE_STEPPER_H_
#define KVCAST_TESTS_NATIVE_STEPPER_H_

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

// The calls are made twice: the first time they are only noted, each said to
// have been done; after Run the second time, which must be the same, gives their results.
// So a sequence that a create has opened is a reference at first, then an id.
class Stepper {
 public:
  struct Room {
    uint32_t deltas = 1024;
    uint32_t evicted = 1024;
    uint32_t waits = 4096;
    uint32_t waiters = 0;
  };

  explicit Stepper(kvc_manager* manager) : manager_(manager) {}
  Stepper(kvc_manager* manager, const Room& room) : manager_(manager), room_(room) {}

  [[nodiscard]] bool noting() const { return !done_; }
  // Those whose waits were over, after Run.
  [[nodiscard]] const std::vector<kvc_waiter>& waiters() const { return waiters_; }

  kvc_create_result Create(kvc_prompt prompt, const std::vector<uint32_t>& tokens,
                           const std::vector<kvc_scope>& scopes,
                           const std::vector<uint8_t>& bytes) {
    kvc_op op{};
    if (noting()) {
      prompt.token_offset = Append(&tokens_, tokens.data(), tokens.size());
      const uint64_t base = Append(&bytes_, bytes.data(), bytes.size());
      prompt.digest_offset += base;
      if (prompt.scope != KVC_NO_SCOPE) {
        kvc_scope scope = scopes.at(prompt.scope);
        prompt.scope = static_cast<uint32_t>(scopes_.size());
        scope.lora_name_offset += base;
        scope.salt_bytes_offset += base;
        scopes_.push_back(scope);
      }
      op.args.prompt = prompts_.size();
      prompts_.push_back(prompt);
    }
    const kvc_op_result r = Take(KVC_OP_CREATE, op);
    kvc_create_result result{};
    result.status = r.status;
    result.sequence = r.sequence;
    result.matched_tokens = r.of.created.matched_tokens;
    result.pending_tokens = r.of.created.pending_tokens;
    result.pending_sequence = r.of.created.pending_sequence;
    result.copied_tokens = r.of.created.copied_tokens;
    result.copied_from = r.of.created.copied_from;
    result.copied_to = r.of.created.copied_to;
    result.wait_count = Waits(r, result.waits);
    return result;
  }
  // What there would have been no room for in `told` is not told.
  kvc_grow_result Grow(uint64_t id, uint64_t capacity_tokens,
                       std::vector<kvc_evicted_block>* told) {
    kvc_op op{};
    op.args.grow = {id, capacity_tokens};
    const bool first = noting();
    const kvc_op_result r = Take(KVC_OP_GROW, op);
    const kvc_op_grown& g = r.of.grown;
    kvc_grow_result result{};
    result.status = r.status;
    result.added_pages = g.added_pages;
    result.evicted_blocks = g.evicted_blocks;
    result.leaving_pages = g.leaving_pages;
    result.first_evicted = KVC_NOT_TOLD;
    result.copied_block = g.copied_block;
    result.copied_from = g.copied_from;
    result.copied_to = g.copied_to;
    result.copied_tokens = g.copied_tokens;
    result.wait_count = Waits(r, &result.wait);
    if (told == nullptr || first) return result;
    if (r.status == KVC_OK && g.evicted_blocks != 0 && g.evicted_blocks <= told->size()) {
      const auto begin = evicted_.begin() + g.first_evicted;
      told->assign(begin, begin + g.evicted_blocks);
      result.first_evicted = 0;
    } else {
      told->clear();
    }
    return result;
  }
  kvc_commit_result Commit(kvc_commit_item item, const uint32_t* tokens, const uint8_t* digests) {
    if (noting()) {
      item.token_offset = Append(&tokens_, tokens, item.token_count);
      item.digest_offset = Append(&bytes_, digests, uint64_t{item.digest_count} * 32);
    }
    kvc_op op{};
    op.args.commit = item;
    const kvc_op_result r = Take(KVC_OP_COMMIT, op);
    const kvc_op_committed& c = r.of.committed;
    kvc_commit_result result{};
    result.status = r.status;
    result.stored_blocks = c.stored_blocks;
    result.deduplicated_blocks = c.deduplicated_blocks;
    result.first_changed_block = c.first_changed_block;
    result.committed_tokens = c.committed_tokens;
    result.wait_count = Waits(r, result.waits);
    return result;
  }
  kvc_fork_result Fork(const kvc_fork_item& item) {
    kvc_op op{};
    op.args.fork = item;
    const kvc_op_result r = Take(KVC_OP_FORK, op);
    kvc_fork_result result{};
    result.status = r.status;
    result.sequence = r.sequence;
    result.committed_tokens = r.of.forked_tokens;
    result.wait_count = Waits(r, result.waits);
    return result;
  }
  kvc_truncate_result Truncate(const kvc_truncate_item& item) {
    kvc_op op{};
    op.args.truncate = item;
    const kvc_op_result r = Take(KVC_OP_TRUNCATE, op);
    return {r.status, static_cast<uint32_t>(r.of.freed_pages)};
  }
  kvc_status Stop(const kvc_stop_item& item) {
    kvc_op op{};
    op.args.stop = item;
    return Take(KVC_OP_STOP, op).status;
  }
  kvc_status Suspend(const kvc_suspend_item& item) {
    kvc_op op{};
    op.args.suspend = item;
    return Take(KVC_OP_SUSPEND, op).status;
  }
  kvc_resume_result Resume(uint64_t id) {
    const kvc_op_result r = Take(KVC_OP_RESUME, Of(id));
    kvc_resume_result result{};
    result.status = r.status;
    result.committed_tokens = r.of.resumed.committed_tokens;
    result.lost_tokens = r.of.resumed.lost_tokens;
    result.pending_tokens = r.of.resumed.pending_tokens;
    result.pending_sequence = r.of.resumed.pending_sequence;
    result.wait_count = Waits(r, result.waits);
    return result;
  }
  // Release, cancel and end; of holds and pins as well.
  kvc_status Close(kvc_op_kind kind, uint64_t id) { return Take(kind, Of(id)).status; }
  kvc_hold_result Hold(const kvc_hold_item& item) {
    kvc_op op{};
    op.args.hold = item;
    const kvc_op_result r = Take(KVC_OP_HOLD, op);
    return {r.status, 0, r.of.hold};
  }
  kvc_status Retain(const kvc_retain_item& item) {
    kvc_op op{};
    op.args.retain = item;
    return Take(KVC_OP_RETAIN, op).status;
  }
  kvc_pin_result Pin(uint64_t id) {
    const kvc_op_result r = Take(KVC_OP_PIN, Of(id));
    return {r.status, r.of.pinned.pinned_blocks, r.of.pinned.pin};
  }
  // One format and one width serve all rows of a step.
  kvc_table_result Delta(const kvc_table_format& format, uint32_t columns,
                         const kvc_table_delta_item& item, kvc_table_cookie* cookie,
                         std::vector<kvc_table_delta>* deltas) {
    kvc_op op{};
    if (noting()) {
      format_ = format;
      columns_ = columns;
      cookies_.push_back(*cookie);
      op.args.table = {item.sequence, item.group, item.row,
                       static_cast<uint32_t>(cookies_.size() - 1), 0};
    }
    const size_t at = next_;
    const kvc_op_result r = Take(KVC_OP_TABLE, op);
    if (at < next_) *cookie = cookies_.at(ops_[at].args.table.cookie);
    const kvc_op_tabled& t = r.of.tabled;
    deltas->clear();
    if (done_ && t.first_delta != KVC_NOT_TOLD) {
      const auto begin = deltas_.begin() + t.first_delta;
      deltas->assign(begin, begin + t.entries);
    }
    return {r.status, t.entries, t.kv_tokens};
  }

  void Run() {
    results_.resize(ops_.size());
    deltas_.resize(room_.deltas);
    evicted_.resize(room_.evicted);
    waits_.resize(room_.waits);
    waiters_.resize(room_.waiters);
    kvc_step_input in;
    kvc_step_input_init(&in);
    in.tokens = tokens_.data();
    in.token_count = tokens_.size();
    in.scopes = scopes_.data();
    in.scope_count = static_cast<uint32_t>(scopes_.size());
    in.bytes = bytes_.data();
    in.byte_count = bytes_.size();
    in.prompts = prompts_.data();
    in.prompt_count = static_cast<uint32_t>(prompts_.size());
    in.format = &format_;
    in.columns = columns_;
    kvc_step_output out;
    kvc_step_output_init(&out);
    out.cookies = cookies_.data();
    out.cookie_count = static_cast<uint32_t>(cookies_.size());
    out.deltas = deltas_.data();
    out.delta_capacity = room_.deltas;
    out.evicted = evicted_.data();
    out.evicted_capacity = room_.evicted;
    out.waits = waits_.data();
    out.wait_capacity = room_.waits;
    out.waiters = waiters_.data();
    out.waiter_capacity = room_.waiters;
    kvc_error error{};
    if (kvc_step(manager_, static_cast<uint32_t>(ops_.size()), ops_.data(), &in, results_.data(),
                 &out, &error) != KVC_OK) {
      throw std::runtime_error(error.message);
    }
    waiters_.resize(out.waiter_count);
    done_ = true;
  }

 private:
  template <typename T>
  static uint64_t Append(std::vector<T>* list, const T* items, uint64_t count) {
    const uint64_t at = list->size();
    list->insert(list->end(), items, items + count);
    return at;
  }
  static kvc_op Of(uint64_t id) {
    kvc_op op{};
    op.args.sequence = id;
    return op;
  }
  kvc_op_result Take(kvc_op_kind kind, kvc_op op) {
    if (done_) {
      if (next_ >= ops_.size() || ops_[next_].kind != kind) {
        throw std::runtime_error("the second time other calls were made");
      }
      return results_[next_++];
    }
    op.kind = kind;
    kvc_op_result result{};
    if (kind == KVC_OP_CREATE || kind == KVC_OP_FORK)
      result.sequence = KVC_STEP_RESULT | ops_.size();
    ops_.push_back(op);
    return result;
  }
  uint32_t Waits(const kvc_op_result& r, kvc_fence* waits) const {
    if (r.status != KVC_OK) return 0;
    for (uint32_t i = 0; i < std::min<uint32_t>(r.wait_count, KVC_MAX_WAITS); ++i) {
      waits[i] = waits_.at(r.first_wait + i);
    }
    return r.wait_count;
  }

  kvc_manager* manager_;
  Room room_;
  bool done_ = false;
  size_t next_ = 0;
  std::vector<kvc_op> ops_;
  std::vector<kvc_op_result> results_;
  std::vector<kvc_prompt> prompts_;
  std::vector<uint32_t> tokens_;
  std::vector<kvc_scope> scopes_;
  std::vector<uint8_t> bytes_;
  std::vector<kvc_table_cookie> cookies_;
  std::vector<kvc_table_delta> deltas_;
  std::vector<kvc_evicted_block> evicted_;
  std::vector<kvc_fence> waits_;
  std::vector<kvc_waiter> waiters_;
  kvc_table_format format_{1, 0, 1, -1};
  uint32_t columns_ = 0;
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_STEPPER_H_
