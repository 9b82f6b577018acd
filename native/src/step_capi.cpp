// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of steps: argument checks, the exception guard, nothing else.
#include <cstddef>
#include <cstring>

#include "kvcast/kvcast.h"
#include "native/src/capi_call.h"

static_assert(sizeof(kvc_op) == 64 && offsetof(kvc_op, args) == 8);
static_assert(offsetof(kvc_grow_item, sequence) == 0 && offsetof(kvc_commit_item, sequence) == 0 &&
              offsetof(kvc_truncate_item, sequence) == 0 &&
              offsetof(kvc_stop_item, sequence) == 0 && offsetof(kvc_suspend_item, sequence) == 0 &&
              offsetof(kvc_hold_item, sequence) == 0 && offsetof(kvc_retain_item, sequence) == 0 &&
              offsetof(kvc_op_table, sequence) == 0);
static_assert(sizeof(kvc_op_table) == 24 && offsetof(kvc_op_table, cookie) == 16);
static_assert(sizeof(kvc_op_grown) == 32 && offsetof(kvc_op_grown, first_evicted) == 12);
static_assert(sizeof(kvc_op_committed) == 24 && offsetof(kvc_op_committed, committed_tokens) == 16);
static_assert(sizeof(kvc_op_created) == 40 && offsetof(kvc_op_created, pending_sequence) == 16);
static_assert(sizeof(kvc_op_resumed) == 32 && offsetof(kvc_op_resumed, pending_sequence) == 24);
static_assert(sizeof(kvc_op_pinned) == 16);
static_assert(sizeof(kvc_op_tabled) == 16 && offsetof(kvc_op_tabled, kv_tokens) == 8);
static_assert(sizeof(kvc_op_result) == 64 && offsetof(kvc_op_result, of) == 24);

namespace step_capi {

void CheckArrays(const kvc_step_input& in, const kvc_step_output& out) {
  capi::RequireArray(in.prompts, in.prompt_count, "input.prompts is NULL");
  capi::RequireArray(in.tokens, in.token_count, "input.tokens is NULL");
  capi::RequireArray(in.scopes, in.scope_count, "input.scopes is NULL");
  capi::RequireArray(in.bytes, in.byte_count, "input.bytes is NULL");
  capi::RequireArray(out.cookies, out.cookie_count, "output.cookies is NULL");
  capi::RequireArray(out.deltas, out.delta_capacity, "output.deltas is NULL");
  capi::RequireArray(out.evicted, out.evicted_capacity, "output.evicted is NULL");
  capi::RequireArray(out.waits, out.wait_capacity, "output.waits is NULL");
  capi::RequireArray(out.waiters, out.waiter_capacity, "output.waiters is NULL");
}

}  // namespace step_capi

extern "C" {

void kvc_step_input_init(kvc_step_input* input) KVC_NOEXCEPT {
  if (input == nullptr) return;
  *input = {};
  input->struct_size = sizeof *input;
}

void kvc_step_output_init(kvc_step_output* output) KVC_NOEXCEPT {
  if (output == nullptr) return;
  *output = {};
  output->struct_size = sizeof *output;
}

kvc_status kvc_step(kvc_manager* manager, uint32_t count, const kvc_op* ops,
                    const kvc_step_input* input, kvc_op_result* results, kvc_step_output* output,
                    kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(
      manager, error,
      [&](kvcast::Manager& core) {
        capi::RequireArray(ops, count, "ops[] is NULL");
        capi::RequireArray(results, count, "results[] is NULL");
        kvc_step_input in;
        kvc_step_input_init(&in);
        if (input != nullptr) {
          capi::ReadSized(&in, input, "input's struct_size is wrong; use kvc_step_input_init");
        }
        kvc_step_output out;
        kvc_step_output_init(&out);
        if (output != nullptr) {
          capi::ReadSized(&out, output, "output's struct_size is wrong; use kvc_step_output_init");
        }
        step_capi::CheckArrays(in, out);
        core.Step(count, ops, in, results, &out, error);
        if (output != nullptr) {
          out.struct_size = output->struct_size;
          std::memcpy(output, &out, out.struct_size);
        }
        return KVC_OK;
      },
      input == nullptr ? 0 : capi::SlotBits(input->prompts, input->prompt_count));
}

}  // extern "C"
