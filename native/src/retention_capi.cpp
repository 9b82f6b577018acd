// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of what is kept and what goes.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvcast/kvcast.h"
#include "native/src/capi_call.h"
#include "native/src/manager.h"

static_assert(sizeof(kvc_evicted_block) == 40 && offsetof(kvc_evicted_block, page) == 16);
static_assert(sizeof(kvc_residency_result) == 16 && sizeof(kvc_block_residency) == 16);
static_assert(sizeof(kvc_retain_item) == 40 && offsetof(kvc_retain_item, priority) == 32);
static_assert(sizeof(kvc_pin_result) == 16);
static_assert(sizeof(kvc_drop_item) == 8 && sizeof(kvc_drop_result) == 24);
static_assert(sizeof(kvc_histograms) == 8 + 3 * 8 * KVC_HISTOGRAM_SLOTS &&
              KVC_HISTOGRAM_SLOTS == kvcast::PagePool::Ages::kSlots);
static_assert(KVC_MAX_PRIORITY == kvcast::kMaxPriority &&
              KVC_DEFAULT_PRIORITY == kvcast::kDefaultPriority);

extern "C" {

kvc_status kvc_residency(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                         const uint32_t* tokens, uint64_t token_count, const kvc_scope* scopes,
                         uint32_t scope_count, const uint8_t* bytes, uint64_t byte_count,
                         uint64_t block_capacity, kvc_block_residency* blocks,
                         kvc_residency_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    const auto in =
        capi::Arrays(prompts, count, tokens, token_count, scopes, scope_count, bytes, byte_count);
    capi::RequireArray(blocks, block_capacity, "blocks[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Residency(count, prompts, in, block_capacity, blocks, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_end(kvc_manager* manager, uint32_t count, const uint64_t* sequences,
                             kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCleanUp(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(sequences, count, "sequences[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.End(count, sequences, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_retain(kvc_manager* manager, uint32_t count, const kvc_retain_item* items,
                                kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Retain(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_expire(kvc_manager* manager, uint64_t now_ns, uint32_t max_blocks, uint32_t* expired,
                      uint32_t* more, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    bool rest = false;
    const uint32_t count = core.Expire(now_ns, max_blocks, &rest);
    if (expired != nullptr) *expired = count;
    if (more != nullptr) *more = rest ? 1 : 0;
    return KVC_OK;
  });
}

kvc_status kvc_pin_prompts(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                           const uint32_t* tokens, uint64_t token_count, const kvc_scope* scopes,
                           uint32_t scope_count, const uint8_t* bytes, uint64_t byte_count,
                           kvc_pin_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    const auto in =
        capi::Arrays(prompts, count, tokens, token_count, scopes, scope_count, bytes, byte_count);
    capi::RequireArray(results, count, "results[] is NULL");
    core.PinPrompts(count, prompts, in, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_pin_sequences(kvc_manager* manager, uint32_t count, const uint64_t* sequences,
                             kvc_pin_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(sequences, count, "sequences[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.PinSequences(count, sequences, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_unpin(kvc_manager* manager, uint32_t count, const uint64_t* pins,
                     kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(pins, count, "pins[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Unpin(count, pins, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_drop_scopes(kvc_manager* manager, uint32_t count, const kvc_drop_item* items,
                           const kvc_scope* scopes, uint32_t scope_count, const uint8_t* bytes,
                           uint64_t byte_count, kvc_drop_result* results,
                           kvc_evicted_block* evicted, uint32_t evicted_capacity,
                           uint32_t* evicted_count, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    const auto in = capi::Arrays(nullptr, 0, nullptr, 0, scopes, scope_count, bytes, byte_count);
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    capi::RequireArray(evicted, evicted_capacity, "evicted[] is NULL");
    capi::RequireArray(evicted_count, evicted_capacity, "evicted_count is NULL");
    kvcast::EvictedList told{evicted, evicted_capacity};
    core.DropScopes(count, items, in, results, &told, error);
    if (evicted_count != nullptr) *evicted_count = told.count;
    return KVC_OK;
  });
}

void kvc_histograms_init(kvc_histograms* histograms) KVC_NOEXCEPT {
  if (histograms == nullptr) return;
  *histograms = {};
  histograms->struct_size = sizeof *histograms;
}

kvc_status kvc_manager_histograms_get(kvc_manager* manager, kvc_histograms* out,
                                      kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr && out->struct_size >= 2 * sizeof(uint32_t) &&
                      out->struct_size <= sizeof *out,
                  "out is NULL or its struct_size is wrong; use kvc_histograms_init");
    kvc_histograms mine{};
    mine.struct_size = out->struct_size;
    core.Histograms(&mine);
    std::memcpy(out, &mine, out->struct_size);
    return KVC_OK;
  });
}

}  // extern "C"
