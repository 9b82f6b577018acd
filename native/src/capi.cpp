// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of the core: argument checks, the exception guard, nothing else.
#include "kvcast/kvcast.h"

#include <cstddef>
#include <cstring>

#include "native/src/capi_call.h"
#include "native/src/handles.h"
#include "native/src/manager.h"
#include "native/src/status.h"

// Layouts are part of the ABI: Go mirrors them byte by byte.
static_assert(sizeof(kvc_error) == 256 && offsetof(kvc_error, message) == 12);
static_assert(sizeof(kvc_live_handles) == 32);
static_assert(sizeof(kvc_config) == 88 && offsetof(kvc_config, max_blocks) == 80);
static_assert(sizeof(kvc_scope) == 48 && offsetof(kvc_scope, lora_name_offset) == 24);
static_assert(sizeof(kvc_fence) == 16);
static_assert(sizeof(kvc_prompt) == 64 && offsetof(kvc_prompt, digest_offset) == 48);
static_assert(sizeof(kvc_create_result) == 120 && offsetof(kvc_create_result, waits) == 56);
static_assert(sizeof(kvc_probe_result) == 24);
static_assert(sizeof(kvc_grow_item) == 16 && sizeof(kvc_grow_result) == 56);
static_assert(sizeof(kvc_commit_item) == 56 && offsetof(kvc_commit_item, digest_offset) == 48);
static_assert(sizeof(kvc_commit_result) == 96 && offsetof(kvc_commit_result, waits) == 32);
static_assert(sizeof(kvc_sequence_info) == 48);
static_assert(sizeof(kvc_stats) == 8 + 59 * 8);
static_assert(sizeof(kvc_page_move) == 16 && sizeof(kvc_resize_result) == 56);
static_assert(sizeof(kvc_resident_block) == 48 && offsetof(kvc_resident_block, digest) == 16);
static_assert(sizeof(kvc_host_fill) == 16);

extern "C" {

uint32_t kvc_abi_version(void) KVC_NOEXCEPT { return KVC_ABI_VERSION; }

#define KVC_STRING_(x) #x
#define KVC_STRING(x) KVC_STRING_(x)
const char* kvc_version(void) KVC_NOEXCEPT {
  return KVC_STRING(KVC_VERSION_MAJOR) "." KVC_STRING(KVC_VERSION_MINOR) "." KVC_STRING(
      KVC_VERSION_PATCH);
}
#undef KVC_STRING
#undef KVC_STRING_

const char* kvc_status_name(kvc_status status) KVC_NOEXCEPT {
  switch (status) {
    case KVC_OK:
      return "ok";
    case KVC_INVALID_ARGUMENT:
      return "invalid argument";
    case KVC_BAD_STATE:
      return "bad state";
    case KVC_STALE_HANDLE:
      return "stale handle";
    case KVC_NEVER_FITS:
      return "never fits";
    case KVC_NOT_NOW:
      return "not now";
    case KVC_BUSY:
      return "busy";
    case KVC_END:
      return "end of stream";
    case KVC_OUT_OF_MEMORY:
      return "out of memory";
    case KVC_DEVICE_ERROR:
      return "device error";
    case KVC_CORRUPT:
      return "corrupt";
    case KVC_INTERNAL:
      return "internal error";
    case KVC_NO_DEVICE:
      return "no device";
    default:
      return "unknown status";
  }
}

void kvc_live_handles_get(kvc_live_handles* out) KVC_NOEXCEPT {
  if (out == nullptr) return;
  const kvcast::LiveHandles& live = kvcast::live_handles();
  out->managers = live.managers.load();
  out->sequences = live.sequences.load();
  out->streams = live.streams.load();
  out->snapshots = live.snapshots.load();
}

void kvc_config_init(kvc_config* config) KVC_NOEXCEPT {
  if (config == nullptr) return;
  *config = {};
  config->struct_size = sizeof *config;
  config->device = KVC_DEVICE_HOST;
  config->tokens_per_block = 16;
  config->capacity_blocks = 20000;
  config->max_sequences = 4096;
  config->resume_gate_permille = 970;
  config->lrfu_tau = 1000;
}

kvc_status kvc_manager_create(const kvc_config* config, kvc_stream* stream, kvc_manager** out,
                              kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return capi::Guard(error, [&]() -> kvc_status {
    capi::Require(out != nullptr, "out is NULL");
    kvc_config mine;
    kvc_config_init(&mine);
    capi::ReadSized(&mine, config,
                    "config is NULL or its struct_size is wrong; use kvc_config_init");
    if (stream == nullptr) {
      *out = new kvc_manager(mine, nullptr);
      return KVC_OK;
    }
    if (stream->used.exchange(true)) {
      return capi::Fail(error, KVC_BUSY,
                        "the stream has had a manager already; create another stream");
    }
    try {
      *out = new kvc_manager(mine, stream->sink);
    } catch (...) {
      stream->used.store(false);  // Attach comes last and undoes itself
      throw;
    }
    return KVC_OK;
  });
}

kvc_status kvc_manager_destroy(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  if (manager == nullptr) return KVC_OK;
  return capi::Guard(error, [&]() -> kvc_status {
    if (manager->core.open_sequences() != 0) {
      return capi::Fail(error, KVC_BUSY, "sequences are still open; release them first");
    }
    manager->core.SealSink();
    delete manager;
    return KVC_OK;
  });
}

kvc_status kvc_sequences_create(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                                const uint32_t* tokens, uint64_t token_count,
                                const kvc_scope* scopes, uint32_t scope_count, const uint8_t* bytes,
                                uint64_t byte_count, kvc_create_result* results,
                                kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(
      manager, error,
      [&](kvcast::Manager& core) {
        const auto in = capi::Arrays(prompts, count, tokens, token_count, scopes, scope_count,
                                     bytes, byte_count);
        capi::RequireArray(results, count, "results[] is NULL");
        core.Create(count, prompts, in, results, error);
        return KVC_OK;
      },
      capi::SlotBits(prompts, count));
}

kvc_status kvc_probe(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                     const uint32_t* tokens, uint64_t token_count, const kvc_scope* scopes,
                     uint32_t scope_count, const uint8_t* bytes, uint64_t byte_count,
                     kvc_probe_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    const auto in =
        capi::Arrays(prompts, count, tokens, token_count, scopes, scope_count, bytes, byte_count);
    capi::RequireArray(results, count, "results[] is NULL");
    core.Probe(count, prompts, in, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_grow(kvc_manager* manager, uint32_t count, const kvc_grow_item* items,
                              kvc_grow_result* results, kvc_evicted_block* evicted,
                              uint32_t evicted_capacity, uint32_t* evicted_count,
                              kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    capi::RequireArray(evicted, evicted_capacity, "evicted[] is NULL");
    capi::RequireArray(evicted_count, evicted_capacity, "evicted_count is NULL");
    kvcast::EvictedList told{evicted, evicted_capacity};
    core.Grow(count, items, results, error, &told);
    if (evicted_count != nullptr) *evicted_count = told.count;
    return KVC_OK;
  });
}

kvc_status kvc_sequences_commit(kvc_manager* manager, uint32_t count, const kvc_commit_item* items,
                                const uint32_t* tokens, uint64_t token_count, const uint8_t* bytes,
                                uint64_t byte_count, kvc_commit_result* results,
                                kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(tokens, token_count, "tokens[] is NULL");
    capi::RequireArray(bytes, byte_count, "bytes[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    static const uint32_t kNoTokens = 0;
    core.Commit(count, items,
                {tokens != nullptr ? tokens : &kNoTokens, token_count, bytes, byte_count}, results,
                error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_release(kvc_manager* manager, uint32_t count, const uint64_t* sequences,
                                 kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCleanUp(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(sequences, count, "sequences[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Release(count, sequences, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequence_waits(kvc_manager* manager, uint64_t sequence, uint32_t capacity,
                              kvc_fence* fences, uint32_t* count, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(fences, capacity, "fences[] is NULL");
    capi::Require(count != nullptr, "count is NULL");
    return core.Waits(sequence, capacity, fences, count, error);
  });
}

kvc_status kvc_sequence_get(kvc_manager* manager, uint64_t sequence, uint32_t first_block,
                            uint32_t capacity, uint32_t* pages, uint32_t* written,
                            kvc_sequence_info* info, kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(pages, capacity, "pages[] is NULL");
    uint32_t count = 0;
    const kvc_status status = core.Get(sequence, first_block, capacity, pages, &count, info, error);
    if (status == KVC_OK && written != nullptr) *written = count;
    return status;
  });
}

kvc_status kvc_manager_reset(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    core.Reset();
    return KVC_OK;
  });
}

kvc_status kvc_pool_resize(kvc_manager* manager, uint32_t target_pages, uint32_t max_pages,
                           kvc_page_move* moves, uint32_t move_capacity, kvc_evicted_block* evicted,
                           uint32_t evicted_capacity, kvc_resize_result* result,
                           kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(moves, move_capacity, "moves[] is NULL");
    capi::RequireArray(evicted, evicted_capacity, "evicted[] is NULL");
    capi::Require(result != nullptr, "result is NULL");
    return core.Resize(target_pages, max_pages, moves, move_capacity, evicted, evicted_capacity,
                       result, error);
  });
}

void kvc_stats_init(kvc_stats* stats) KVC_NOEXCEPT {
  if (stats == nullptr) return;
  *stats = {};
  stats->struct_size = sizeof *stats;
}

kvc_status kvc_manager_stats_get(kvc_manager* manager, kvc_stats* out,
                                 kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr && out->struct_size >= 2 * sizeof(uint32_t) &&
                      out->struct_size <= sizeof *out,
                  "out is NULL or its struct_size is wrong; use kvc_stats_init");
    kvc_stats mine{};
    mine.struct_size = out->struct_size;
    core.Stats(&mine);
    std::memcpy(out, &mine, out->struct_size);
    return KVC_OK;
  });
}

kvc_status kvc_manager_check(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) { return core.Check(error); });
}

kvc_status kvc_manager_resident(kvc_manager* manager, kvc_hash_form form, uint64_t capacity,
                                kvc_resident_block* blocks, uint64_t* count,
                                kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(blocks, capacity, "blocks[] is NULL");
    capi::Require(count != nullptr, "count is NULL");
    capi::Require(form <= KVC_HASH_BYTES, "form is not a kvc_hash_form");
    return core.Resident(form, capacity, blocks, count, error);
  });
}

kvc_status kvc_device_memory_get(kvc_manager* manager, kvc_device_memory* out,
                                 kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr, "out is NULL");
    *out = core.Memory();
    return KVC_OK;
  });
}

kvc_status kvc_device_stream_create(kvc_manager* manager, uint64_t* out,
                                    kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr, "out is NULL");
    *out = core.OpenDeviceStream();
    return KVC_OK;
  });
}

kvc_status kvc_step_stream_create(kvc_manager* manager, uint64_t* out,
                                  kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    capi::Require(out != nullptr, "out is NULL");
    *out = core.OpenStepStream();
    return KVC_OK;
  });
}

kvc_status kvc_step_begin(kvc_manager* manager, uint64_t device_stream, uint64_t step,
                          kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    core.BeginStep(device_stream, step);
    return KVC_OK;
  });
}

kvc_status kvc_step_done(kvc_manager* manager, uint64_t device_stream, uint64_t step,
                         kvc_error* error) KVC_NOEXCEPT {
  return capi::Call(manager, error, [&](kvcast::Manager& core) {
    core.EndStep(device_stream, step);
    return KVC_OK;
  });
}

kvc_status kvc_device_stream_destroy(kvc_manager* manager, uint64_t device_stream,
                                     kvc_error* error) KVC_NOEXCEPT {
  return capi::CleanUp(manager, error, [&](kvcast::Manager& core) {
    core.CloseDeviceStream(device_stream);
    return KVC_OK;
  });
}

kvc_status kvc_device_fences_query(kvc_manager* manager, uint32_t count, const kvc_fence* fences,
                                   uint8_t* done, kvc_error* error) KVC_NOEXCEPT {
  return capi::CleanUp(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(fences, count, "fences[] is NULL");
    capi::RequireArray(done, count, "done[] is NULL");
    core.QueryFences(count, fences, done);
    return KVC_OK;
  });
}

kvc_status kvc_device_stream_wait(kvc_manager* manager, uint64_t device_stream, uint32_t count,
                                  const kvc_fence* fences, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(
      manager, error,
      [&](kvcast::Manager& core) {
        capi::RequireArray(fences, count, "fences[] is NULL");
        core.StreamWait(device_stream, count, fences);
        return KVC_OK;
      },
      kvcast::Manager::SlotBit(device_stream));
}

kvc_status kvc_host_enqueue_fill(kvc_manager* manager, uint64_t device_stream, uint32_t count,
                                 const kvc_host_fill* fills, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(fills, count, "fills[] is NULL");
    core.EnqueueFill(device_stream, count, fills);
    return KVC_OK;
  });
}

kvc_status kvc_host_advance(kvc_manager* manager, uint64_t device_stream, uint64_t max_ops,
                            uint64_t* executed, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    const uint64_t ran = core.Advance(device_stream, max_ops);
    if (executed != nullptr) *executed = ran;
    return KVC_OK;
  });
}

kvc_status kvc_host_read(kvc_manager* manager, uint32_t page, uint64_t offset, uint64_t size,
                         uint8_t* out, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(out, size, "out is NULL");
    core.ReadPage(page, offset, size, out);
    return KVC_OK;
  });
}

}  // extern "C"
