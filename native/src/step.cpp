// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Steps: operations of many kinds on many sequences under one lock. Each is
// what its own call does with one item; here they are told apart, and what they
// have to tell is gathered in the arrays of the step.
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "native/src/block_table.h"
#include "native/src/manager.h"
#include "native/src/sequence_calls.h"
#include "native/src/status.h"

namespace kvcast {

namespace steps {

// So many operations ahead a sequence is fetched into the cache: most operations
// take less time than its cache misses would.
constexpr uint32_t kAhead = 6;
constexpr size_t kCacheLine = 64;

constexpr bool NamesSequence(kvc_op_kind kind) {
  return kind != KVC_OP_CREATE && kind != KVC_OP_RELEASE_HOLD && kind != KVC_OP_UNPIN;
}

}  // namespace steps

// All that the operations of one step share. `results` is read as well: an
// operation may name the sequence that an earlier one has opened.
struct Manager::StepCall {
  Turn turn;
  TableFormat format;
  const kvc_op* ops;
  const kvc_step_input& in;
  PromptArrays prompts;
  CommitArrays commits;
  const kvc_op_result* results;
  kvc_step_output* out;
  EvictedList evicted;
};

// An operation that has to tell up to one fence of each other stream is only
// done if they all have room: afterwards it would be too late to refuse it.
// `more` streams may be opened by the operation itself.
kvc_status Manager::WaitRoom(uint32_t own_slot, const StepCall& call, kvc_op_result* result,
                             kvc_error* error, uint32_t more) const {
  const uint32_t streams = top_slot_ + more - (own_slot != 0 && top_slot_ != 0 ? 1 : 0);
  if (streams == 0 || streams <= call.out->wait_capacity - call.out->wait_count) return KVC_OK;
  result->wait_count = streams;
  return sequences::Item(error, KVC_NOT_NOW,
                         "waits[] has no room for what the item may have to wait for; repeat it "
                         "with more");
}

// After WaitRoom: all fences that the sequence was told of just now.
void Manager::StepWaits(uint64_t sequence, StepCall* call, kvc_op_result* result) {
  kvc_step_output* out = call->out;
  result->first_wait = out->wait_count;
  fences_.ForEach(Find(sequence)->waits,
                  [&](const Fence& fence) { out->waits[out->wait_count++] = FromFence(fence); });
  result->wait_count = out->wait_count - result->first_wait;
}

kvc_status Manager::StepCreate(const kvc_prompt& prompt, StepCall* call, kvc_op_result* result,
                               kvc_error* error) {
  // A stream that is not open is refused by CreateOne.
  const uint32_t own_slot = prompt.device_stream != 0 ? 1 : 0;
  // The copy of a tail may be the first that the device makes on its own stream.
  const auto own = [](const DeviceStreamSlot& stream) { return stream.own; };
  const bool opens = partial_reuse_ && page_bytes_ != 0 &&
                     std::none_of(std::begin(streams_), std::end(streams_), own);
  if (const kvc_status full = WaitRoom(own_slot, *call, result, error, opens ? 1 : 0);
      full != KVC_OK) {
    return full;
  }
  kvc_create_result r{};
  if (const kvc_status status = CreateOne(prompt, call->prompts, &r, &call->turn, error);
      status != KVC_OK) {
    return status;
  }
  result->sequence = r.sequence;
  result->of.created = {r.matched_tokens,
                        r.pending_tokens,
                        r.pending_sequence,
                        r.copied_tokens,
                        r.copied_from,
                        r.copied_to,
                        0};
  if (r.wait_count != 0) StepWaits(r.sequence, call, result);
  return KVC_OK;
}

kvc_status Manager::StepGrow(const kvc_grow_item& item, StepCall* call, kvc_op_result* result,
                             kvc_error* error) {
  kvc_grow_result r{};
  r.first_evicted = KVC_NOT_TOLD;
  r.copied_block = KVC_NO_COPY;
  const Sequence* seq = Find(item.sequence);
  if (seq != nullptr && !seq->suspended && SharesTail(*seq) && !Queues(seq->slot) &&
      call->out->wait_count == call->out->wait_capacity) {
    result->wait_count = 1;
    return sequences::Item(error, KVC_NOT_NOW,
                           "waits[] has no room for the copy that the item may have to wait for; "
                           "repeat it with more");
  }
  EvictedList* told = call->evicted.capacity != 0 ? &call->evicted : nullptr;
  const kvc_status status =
      Guard(error, [&] { return GrowOne(item, &r, told, &call->turn, error); });
  result->of.grown = {r.added_pages,  r.evicted_blocks, r.leaving_pages, r.first_evicted,
                      r.copied_block, r.copied_from,    r.copied_to,     r.copied_tokens};
  if (r.wait_count != 0) StepWaits(item.sequence, call, result);
  return status;
}

kvc_status Manager::StepCommit(const kvc_commit_item& item, StepCall* call, kvc_op_result* result,
                               kvc_error* error) {
  // Only a block that becomes full can be found in the tree, and be waited for.
  const Sequence* seq = Find(item.sequence);
  if (seq != nullptr && item.token_count >= block_size_ - seq->committed % block_size_) {
    const kvc_status full = WaitRoom(seq->slot, *call, result, error);
    if (full != KVC_OK) return full;
  }
  kvc_commit_result r{};
  r.first_changed_block = UINT32_MAX;
  if (const kvc_status status = CommitItem(item, call->commits, &r, &call->turn, error);
      status != KVC_OK) {
    return status;
  }
  result->of.committed = {r.stored_blocks, r.deduplicated_blocks, r.first_changed_block, 0,
                          r.committed_tokens};
  if (r.wait_count != 0) StepWaits(item.sequence, call, result);
  return KVC_OK;
}

kvc_status Manager::StepFork(const kvc_fork_item& item, StepCall* call, kvc_op_result* result,
                             kvc_error* error) {
  result->sequence = 0;
  const uint32_t own_slot = item.device_stream != 0 ? 1 : 0;
  if (const kvc_status full = WaitRoom(own_slot, *call, result, error); full != KVC_OK) {
    return full;
  }
  kvc_fork_result r{};
  if (const kvc_status status = ForkOne(item, &r, &call->turn, error); status != KVC_OK) {
    return status;
  }
  result->sequence = r.sequence;
  result->of.forked_tokens = r.committed_tokens;
  if (r.wait_count != 0) StepWaits(r.sequence, call, result);
  return KVC_OK;
}

kvc_status Manager::StepResume(uint64_t sequence, StepCall* call, kvc_op_result* result,
                               kvc_error* error) {
  const Sequence* seq = Find(sequence);
  if (seq != nullptr) {
    const kvc_status full = WaitRoom(seq->slot, *call, result, error);
    if (full != KVC_OK) return full;
  }
  kvc_resume_result r{};
  const kvc_status status = ResumeOne(sequence, &r, &call->turn, error);
  result->of.resumed = {r.committed_tokens, r.lost_tokens, r.pending_tokens, r.pending_sequence};
  if (status != KVC_OK) return status;
  if (r.wait_count != 0) StepWaits(sequence, call, result);
  return KVC_OK;
}

kvc_status Manager::StepTable(const kvc_op_table& item, StepCall* call, kvc_op_result* result,
                              kvc_error* error) {
  kvc_step_output* out = call->out;
  kvc_op_tabled& tabled = result->of.tabled;
  if (item.cookie >= out->cookie_count) {
    return sequences::Item(error, KVC_INVALID_ARGUMENT,
                           "an operation's cookie is outside cookies[]");
  }
  const Sequence* seq = nullptr;
  kvc_status status = KVC_OK;
  // A sequence that is gone, or has not come about, leaves an empty row.
  if (item.sequence != 0 || call->ops[result - call->results].args.sequence != 0) {
    status = TableOf(item.sequence, item.group, &seq, error);
    if (status == KVC_INVALID_ARGUMENT) return status;
  }
  const kvc_status told =
      TableDelta(call->format, item.sequence, seq, item.row, call->in.columns,
                 &out->cookies[item.cookie], out->delta_capacity - out->delta_count,
                 out->deltas + out->delta_count, &tabled.entries, error);
  if (told != KVC_OK) return told;
  tabled.first_delta = out->delta_count;
  tabled.kv_tokens = seq == nullptr ? 0 : seq->committed;
  out->delta_count += tabled.entries;
  return status;
}

kvc_status Manager::StepOne(uint32_t index, StepCall* call, kvc_op_result* result,
                            kvc_error* error) {
  using sequences::Item;
  const kvc_op& op = call->ops[index];
  // Zero would be a place and a block.
  if (op.kind == KVC_OP_GROW) result->of.grown.first_evicted = KVC_NOT_TOLD;
  if (op.kind == KVC_OP_COMMIT) result->of.committed.first_changed_block = UINT32_MAX;
  if (op.kind == KVC_OP_TABLE) result->of.tabled.first_delta = KVC_NOT_TOLD;
  if (op.reserved != 0) {
    return Item(error, KVC_INVALID_ARGUMENT, "an operation's reserved field is not 0");
  }
  uint64_t id = 0;
  if (steps::NamesSequence(op.kind)) {
    id = op.args.sequence;  // what all these arguments begin with
    if (id / KVC_STEP_RESULT == 1) {
      const uint64_t at = id - KVC_STEP_RESULT;
      const bool opens =
          at < index && (call->ops[at].kind == KVC_OP_CREATE || call->ops[at].kind == KVC_OP_FORK);
      if (!opens) {
        return Item(error, KVC_INVALID_ARGUMENT,
                    "an operation refers to the result of what is no earlier create or fork");
      }
      id = call->results[at].sequence;  // 0, which is nobody's, if it failed
    }
    result->sequence = id;
  }
  Turn* turn = &call->turn;
  switch (op.kind) {
    case KVC_OP_CREATE:
      if (op.args.prompt >= call->in.prompt_count) {
        return Item(error, KVC_INVALID_ARGUMENT, "an operation's prompt is outside prompts[]");
      }
      return StepCreate(call->in.prompts[op.args.prompt], call, result, error);
    case KVC_OP_GROW:
      return StepGrow({id, op.args.grow.capacity_tokens}, call, result, error);
    case KVC_OP_COMMIT: {
      kvc_commit_item item = op.args.commit;
      item.sequence = id;
      return StepCommit(item, call, result, error);
    }
    case KVC_OP_TRUNCATE: {
      kvc_truncate_result r{};
      const kvc_status status =
          TruncateOne({id, op.args.truncate.capacity_tokens}, &r, turn, error);
      result->of.freed_pages = r.freed_pages;
      return status;
    }
    case KVC_OP_STOP:
      return StopOne({id, op.args.stop.stop_before}, turn, error);
    case KVC_OP_SUSPEND:
      return SuspendOne({id, op.args.suspend.flags, 0}, turn, error);
    case KVC_OP_RESUME:
      return StepResume(id, call, result, error);
    case KVC_OP_RELEASE:
      return ReleaseOne(id, Closing::kRelease, turn, error);
    case KVC_OP_CANCEL:
      return ReleaseOne(id, Closing::kCancel, turn, error);
    case KVC_OP_END:
      return ReleaseOne(id, Closing::kEnd, turn, error);
    case KVC_OP_HOLD: {
      kvc_hold_result r{};
      const kvc_status status =
          HoldOne({id, op.args.hold.count, op.args.hold.flags}, &r, turn, error);
      result->of.hold = r.hold;
      return status;
    }
    case KVC_OP_RELEASE_HOLD:
      return ReleaseHoldOne(op.args.handle, turn, error);
    case KVC_OP_RETAIN: {
      kvc_retain_item item = op.args.retain;
      item.sequence = id;
      return RetainOne(item, turn, error);
    }
    case KVC_OP_PIN: {
      kvc_pin_result r{};
      const kvc_status status = PinOne(id, &r, turn, error);
      result->of.pinned = {r.pin, r.pinned_blocks, 0};
      return status;
    }
    case KVC_OP_UNPIN:
      return UnpinOne(op.args.handle, turn, error);
    case KVC_OP_FORK:
      return StepFork({id, op.args.fork.device_stream}, call, result, error);
    case KVC_OP_TABLE: {
      kvc_op_table item = op.args.table;
      item.sequence = id;
      return StepTable(item, call, result, error);
    }
    default:
      return Item(error, KVC_INVALID_ARGUMENT, "an operation's kind is unknown");
  }
}

void Manager::FetchAhead(const kvc_op& op) const {
  const auto at = static_cast<uint32_t>(op.args.sequence);
  if (!steps::NamesSequence(op.kind) || at >= max_sequences_) return;
  const char* line = reinterpret_cast<const char*>(&sequences_[at]);
  for (size_t done = 0; done < sizeof(Sequence); done += steps::kCacheLine) {
    __builtin_prefetch(line + done, 1);
  }
}

void Manager::Step(uint32_t count, const kvc_op* ops, const kvc_step_input& in,
                   kvc_op_result* results, kvc_step_output* out, kvc_error* error) {
  static const uint32_t kNoTokens = 0;
  const uint32_t* tokens = in.tokens != nullptr ? in.tokens : &kNoTokens;
  StepCall call{Turn(this),
                TableFormat(in.format, pages_.most(), block_size_),
                ops,
                in,
                {tokens, in.token_count, in.scopes, in.scope_count, in.bytes, in.byte_count},
                {tokens, in.token_count, in.bytes, in.byte_count},
                results,
                out,
                {out->evicted, out->evicted_capacity, 0, true}};
  out->delta_count = out->evicted_count = out->wait_count = 0;
  call.turn.Lock();
  for (uint32_t i = 0; i < count; ++i) {
    if (i + steps::kAhead < count) FetchAhead(ops[i + steps::kAhead]);
    results[i] = {};
    kvc_error* story = error != nullptr && error->status == KVC_OK ? error : nullptr;
    results[i].status = Guard(story, [&] { return StepOne(i, &call, &results[i], story); });
  }
  out->evicted_count = call.evicted.count;
  out->waiter_count = TakeWaiters(out->waiter_capacity, out->waiters);
}

}  // namespace kvcast
