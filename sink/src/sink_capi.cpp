// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The stream part of the C ABI.

#include <cstddef>
#include <memory>
#include <string>

#include "kvcast/kvcast.h"
#include "native/src/handles.h"
#include "native/src/sha256.h"
#include "native/src/status.h"
#include "sink/src/streaming_event_sink.h"

namespace kvcast {
namespace sink_capi {

// What a kvc_stream* made here points to.
struct Stream final : kvc_stream {
  explicit Stream(const SinkOptions& options) {
    auto made = std::make_shared<StreamingEventSink>(options);
    streaming = made.get();
    sink = std::move(made);
    live_handles().streams.fetch_add(1, std::memory_order_relaxed);
  }
  ~Stream() override {
    streaming->Detach();
    live_handles().streams.fetch_sub(1, std::memory_order_relaxed);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamingEventSink* streaming;  // owned by `sink`
};

SinkOptions Check(const kvc_stream_config& config) {
  if (config.struct_size != sizeof config) {
    throw Error(KVC_INVALID_ARGUMENT, "kvc_stream_config.struct_size is " +
                                          std::to_string(config.struct_size) + ", not " +
                                          std::to_string(sizeof config) +
                                          ": call kvc_stream_config_init first");
  }
  if (config.hash_form > KVC_HASH_BYTES) {
    throw Error(KVC_INVALID_ARGUMENT, "hash_form " + std::to_string(config.hash_form) +
                                          " is unknown; it must be one of KVC_HASH_*");
  }
  if (config.max_entries == 0) {
    throw Error(KVC_INVALID_ARGUMENT, "max_entries is 0; it must be at least 1");
  }
  if (config.max_blocks_per_event > ProjectorOptions::kWireBlocksPerEvent) {
    throw Error(KVC_INVALID_ARGUMENT,
                "max_blocks_per_event is " + std::to_string(config.max_blocks_per_event) +
                    "; the wire allows " + std::to_string(ProjectorOptions::kWireBlocksPerEvent) +
                    " at most");
  }
  if (config.multimodal > KVC_MULTIMODAL_ANNOUNCE) {
    throw Error(KVC_INVALID_ARGUMENT, "multimodal " + std::to_string(config.multimodal) +
                                          " is unknown; it must be one of KVC_MULTIMODAL_*");
  }
  SinkOptions options;
  options.suppress_multimodal = config.multimodal == KVC_MULTIMODAL_SUPPRESS;
  options.max_entries = config.max_entries;
  options.projector.hash_form = config.hash_form;
  if (config.max_blocks_per_event != 0) {
    options.projector.max_blocks_per_event = config.max_blocks_per_event;
  }
  return options;
}

// The layouts are frozen within one KVC_ABI_VERSION; every binding relies on them.
#define KVC_LAYOUT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "." #member " has moved")

static_assert(sizeof(void*) == 8, "the layouts below are those of 64-bit platforms");

static_assert(sizeof(kvc_stream_config) == 20 && alignof(kvc_stream_config) == 4);
KVC_LAYOUT(kvc_stream_config, struct_size, 0);
KVC_LAYOUT(kvc_stream_config, hash_form, 4);
KVC_LAYOUT(kvc_stream_config, max_entries, 8);
KVC_LAYOUT(kvc_stream_config, max_blocks_per_event, 12);
KVC_LAYOUT(kvc_stream_config, multimodal, 16);

static_assert(sizeof(kvc_event) == 72 && alignof(kvc_event) == 8);
KVC_LAYOUT(kvc_event, kind, 0);
KVC_LAYOUT(kvc_event, flags, 4);
KVC_LAYOUT(kvc_event, scope, 8);
KVC_LAYOUT(kvc_event, block_size, 12);
KVC_LAYOUT(kvc_event, hash_offset, 16);
KVC_LAYOUT(kvc_event, hash_count, 24);
KVC_LAYOUT(kvc_event, token_offset, 32);
KVC_LAYOUT(kvc_event, token_count, 40);
KVC_LAYOUT(kvc_event, parent_hash, 48);
KVC_LAYOUT(kvc_event, group, 56);
KVC_LAYOUT(kvc_event, medium, 58);
KVC_LAYOUT(kvc_event, multimodal_count, 60);
KVC_LAYOUT(kvc_event, multimodal_offset, 64);

static_assert(sizeof(kvc_event_scope) == 24 && alignof(kvc_event_scope) == 8);
KVC_LAYOUT(kvc_event_scope, parts, 0);
KVC_LAYOUT(kvc_event_scope, lora_name_size, 4);
KVC_LAYOUT(kvc_event_scope, lora_name_offset, 8);
KVC_LAYOUT(kvc_event_scope, lora_id, 16);

static_assert(sizeof(kvc_borrowed_batch) == 136 && alignof(kvc_borrowed_batch) == 8);
KVC_LAYOUT(kvc_borrowed_batch, events, 0);
KVC_LAYOUT(kvc_borrowed_batch, hashes, 8);
KVC_LAYOUT(kvc_borrowed_batch, reasons, 16);
KVC_LAYOUT(kvc_borrowed_batch, digests, 24);
KVC_LAYOUT(kvc_borrowed_batch, parent_digests, 32);
KVC_LAYOUT(kvc_borrowed_batch, tokens, 40);
KVC_LAYOUT(kvc_borrowed_batch, scopes, 48);
KVC_LAYOUT(kvc_borrowed_batch, strings, 56);
KVC_LAYOUT(kvc_borrowed_batch, multimodal, 64);
KVC_LAYOUT(kvc_borrowed_batch, event_count, 72);
KVC_LAYOUT(kvc_borrowed_batch, hash_count, 80);
KVC_LAYOUT(kvc_borrowed_batch, token_count, 88);
KVC_LAYOUT(kvc_borrowed_batch, scope_count, 96);
KVC_LAYOUT(kvc_borrowed_batch, string_size, 104);
KVC_LAYOUT(kvc_borrowed_batch, multimodal_count, 112);
KVC_LAYOUT(kvc_borrowed_batch, remaining_bytes, 120);
KVC_LAYOUT(kvc_borrowed_batch, pending_blocks, 128);

static_assert(sizeof(kvc_stream_stats) == 232 && alignof(kvc_stream_stats) == 8);
KVC_LAYOUT(kvc_stream_stats, struct_size, 0);
KVC_LAYOUT(kvc_stream_stats, attached, 4);
KVC_LAYOUT(kvc_stream_stats, stored_blocks, 8);
KVC_LAYOUT(kvc_stream_stats, removed_blocks, 16);
KVC_LAYOUT(kvc_stream_stats, cleared_blocks, 24);
KVC_LAYOUT(kvc_stream_stats, clears, 32);
KVC_LAYOUT(kvc_stream_stats, dropped_events, 40);
KVC_LAYOUT(kvc_stream_stats, deferred_blocks, 48);
KVC_LAYOUT(kvc_stream_stats, healed_blocks, 56);
KVC_LAYOUT(kvc_stream_stats, deferred_evicted_blocks, 64);
KVC_LAYOUT(kvc_stream_stats, pending_blocks, 72);
KVC_LAYOUT(kvc_stream_stats, unannounced_removals, 80);
KVC_LAYOUT(kvc_stream_stats, partial_blocks_suppressed, 88);
KVC_LAYOUT(kvc_stream_stats, announced_blocks, 96);
KVC_LAYOUT(kvc_stream_stats, hash_collisions, 104);
KVC_LAYOUT(kvc_stream_stats, superseded_records, 112);
KVC_LAYOUT(kvc_stream_stats, drained_batches, 120);
KVC_LAYOUT(kvc_stream_stats, drained_events, 128);
KVC_LAYOUT(kvc_stream_stats, drained_stored_blocks, 136);
KVC_LAYOUT(kvc_stream_stats, drained_removed_blocks, 144);
KVC_LAYOUT(kvc_stream_stats, mirror_blocks, 152);
KVC_LAYOUT(kvc_stream_stats, buffer_bytes, 160);
KVC_LAYOUT(kvc_stream_stats, buffer_used_bytes, 168);
KVC_LAYOUT(kvc_stream_stats, multimodal_blocks_suppressed, 176);
KVC_LAYOUT(kvc_stream_stats, suppressed_blocks, 184);
KVC_LAYOUT(kvc_stream_stats, oldest_deferred_ns, 192);
KVC_LAYOUT(kvc_stream_stats, removed_capacity_blocks, 200);
KVC_LAYOUT(kvc_stream_stats, removed_ttl_blocks, 208);
KVC_LAYOUT(kvc_stream_stats, removed_ended_blocks, 216);
KVC_LAYOUT(kvc_stream_stats, removed_scope_blocks, 224);

#undef KVC_LAYOUT

}  // namespace sink_capi
}  // namespace kvcast

extern "C" {

const char* kvc_sha256_backend(void) KVC_NOEXCEPT { return kvcast::Sha256Best().name; }

void kvc_stream_config_init(kvc_stream_config* config) KVC_NOEXCEPT {
  if (config == nullptr) return;
  *config = {};
  config->struct_size = sizeof *config;
  config->hash_form = KVC_HASH_SIGNED64;
  config->max_entries = 50000;
}

kvc_status kvc_stream_create(const kvc_stream_config* config, kvc_stream** out,
                             kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return kvcast::Guard(error, [&] {
    if (config == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "config is NULL");
    if (out == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "out is NULL");
    const kvcast::SinkOptions options = kvcast::sink_capi::Check(*config);
    *out = std::make_unique<kvcast::sink_capi::Stream>(options).release();
    return kvc_status{KVC_OK};
  });
}

void kvc_stream_destroy(kvc_stream* stream) KVC_NOEXCEPT { delete stream; }

kvc_status kvc_stream_drain(kvc_stream* stream, uint64_t max_events, uint64_t max_blocks,
                            kvc_borrowed_batch* out, kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return kvcast::Guard(error, [&] {
    if (stream == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "stream is NULL");
    if (out == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "out is NULL");
    auto& sink = *static_cast<kvcast::sink_capi::Stream*>(stream)->streaming;
    const kvc_status status = sink.Drain(max_events, max_blocks, out);
    if (status == KVC_BUSY) {
      return kvcast::Fail(error, status, "another drain of this stream is running");
    }
    if (status == KVC_END) {
      return kvcast::Fail(error, status,
                          "the manager is gone and everything it recorded has been drained");
    }
    return status;
  });
}

void kvc_stream_stats_init(kvc_stream_stats* stats) KVC_NOEXCEPT {
  if (stats == nullptr) return;
  *stats = {};
  stats->struct_size = sizeof *stats;
}

kvc_status kvc_stream_stats_get(const kvc_stream* stream, kvc_stream_stats* out,
                                kvc_error* error) KVC_NOEXCEPT {
  kvcast::ClearError(error);
  return kvcast::Guard(error, [&] {
    if (stream == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "stream is NULL");
    if (out == nullptr) return kvcast::Fail(error, KVC_INVALID_ARGUMENT, "out is NULL");
    if (out->struct_size != sizeof *out) {
      throw kvcast::Error(KVC_INVALID_ARGUMENT, "kvc_stream_stats.struct_size is " +
                                                    std::to_string(out->struct_size) + ", not " +
                                                    std::to_string(sizeof *out) +
                                                    ": call kvc_stream_stats_init first");
    }
    static_cast<const kvcast::sink_capi::Stream*>(stream)->streaming->GetStats(out);
    return kvc_status{KVC_OK};
  });
}

}  // extern "C"
