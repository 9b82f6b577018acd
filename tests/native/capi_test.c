/* SPDX-FileCopyrightText: The kvcast authors */
/* SPDX-License-Identifier: Apache-2.0 */

/* The C ABI as a C program uses it. No C++, no test framework: it proves that
 * the header is enough. One phase per part of the ABI; the first failed check
 * names its line and ends the program. */
#include "kvcast/kvcast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* phase = "start";
#define PHASE(name) (phase = (name))
#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: phase %s: %s\n", __FILE__, __LINE__, phase, #condition); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)
#define CHECK_OK(call)                                                                   \
  do {                                                                                   \
    kvc_status status_ = (call);                                                         \
    if (status_ != KVC_OK) {                                                             \
      fprintf(stderr, "%s:%d: phase %s: %s: %s: %s\n", __FILE__, __LINE__, phase, #call, \
              kvc_status_name(status_), err.message);                                    \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

enum { kBlock = 4 };

static kvc_error err;

static kvc_manager* new_manager(uint32_t pages, kvc_stream* stream) {
  kvc_config config;
  kvc_manager* manager = NULL;
  kvc_config_init(&config);
  config.tokens_per_block = kBlock;
  config.capacity_blocks = pages;
  config.max_sequences = 8;
  config.page_bytes = 64;
  config.flags = KVC_CONFIG_POISON;
  config.seed = 7;
  config.resume_gate_permille = 1000;
  CHECK_OK(kvc_manager_create(&config, stream, &manager, &err));
  return manager;
}

static kvc_create_result create(kvc_manager* m, const uint32_t* tokens, uint64_t count,
                                uint64_t device_stream) {
  kvc_prompt prompt;
  kvc_create_result result;
  memset(&prompt, 0, sizeof prompt);
  prompt.token_count = count;
  prompt.scope = KVC_NO_SCOPE;
  prompt.device_stream = device_stream;
  CHECK_OK(kvc_sequences_create(m, 1, &prompt, tokens, count, NULL, 0, NULL, 0, &result, &err));
  CHECK(result.status == KVC_OK);
  return result;
}

static kvc_grow_result grow(kvc_manager* m, uint64_t sequence, uint64_t tokens) {
  kvc_grow_item item;
  kvc_grow_result result;
  item.sequence = sequence;
  item.capacity_tokens = tokens;
  CHECK_OK(kvc_sequences_grow(m, 1, &item, &result, NULL, 0, NULL, &err));
  CHECK(result.status == KVC_OK || err.status == result.status);
  return result;
}

static kvc_commit_result commit(kvc_manager* m, uint64_t sequence, const uint32_t* tokens,
                                uint64_t count) {
  kvc_commit_item item;
  kvc_commit_result result;
  memset(&item, 0, sizeof item);
  item.sequence = sequence;
  item.token_offset = 0;
  item.token_count = count;
  item.digest_offset = 0;
  item.digest_count = 0;
  CHECK_OK(kvc_sequences_commit(m, 1, &item, tokens, count, NULL, 0, &result, &err));
  return result;
}

static kvc_status release(kvc_manager* m, uint64_t sequence) {
  kvc_status status;
  CHECK_OK(kvc_sequences_release(m, 1, &sequence, &status, &err));
  return status;
}

static kvc_status suspend(kvc_manager* m, uint64_t sequence, uint32_t flags) {
  kvc_suspend_item item;
  kvc_status status;
  memset(&item, 0, sizeof item);
  item.sequence = sequence;
  item.flags = flags;
  CHECK_OK(kvc_sequences_suspend(m, 1, &item, &status, &err));
  return status;
}

static kvc_stats stats(kvc_manager* m) {
  kvc_stats s;
  kvc_stats_init(&s);
  CHECK_OK(kvc_manager_stats_get(m, &s, &err));
  CHECK(s.live_pages + s.cached_pages + s.free_pages + s.quarantined_pages + s.leaving_pages ==
        s.total_pages);
  CHECK_OK(kvc_manager_check(m, &err));
  return s;
}

int main(void) {
  uint32_t tokens[40];
  kvc_stream_config stream_config;
  kvc_stream* stream = NULL;
  kvc_manager* m = NULL;
  kvc_live_handles live;
  uint32_t i;
  for (i = 0; i < 40; ++i) tokens[i] = i;

  PHASE("versions");
  CHECK(kvc_abi_version() == KVC_ABI_VERSION);
  CHECK(strcmp(kvc_version(), "0.1.0") == 0);
  CHECK(strcmp(kvc_status_name(KVC_NOT_NOW), "not now") == 0);
  CHECK(strcmp(kvc_status_name(12345), "unknown status") == 0);
  CHECK(strlen(kvc_sha256_backend()) > 0);

  PHASE("bad configs");
  {
    kvc_config config;
    kvc_config_init(&config);
    config.tokens_per_block = 0;
    CHECK(kvc_manager_create(&config, NULL, &m, &err) == KVC_INVALID_ARGUMENT);
    CHECK(strstr(err.message, "tokens_per_block") != NULL);
    kvc_config_init(&config);
    config.capacity_blocks = 1u << 28;
    CHECK(kvc_manager_create(&config, NULL, &m, NULL) == KVC_INVALID_ARGUMENT);
    kvc_config_init(&config);
    config.page_bytes = UINT64_C(1) << 40; /* more than any machine has */
    CHECK(kvc_manager_create(&config, NULL, &m, &err) == KVC_OUT_OF_MEMORY);
    CHECK(strstr(err.message, "page_bytes") != NULL);
    kvc_config_init(&config);
    config.struct_size = 4096;
    CHECK(kvc_manager_create(&config, NULL, &m, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_manager_create(NULL, NULL, &m, &err) == KVC_INVALID_ARGUMENT);
    CHECK(m == NULL);
    CHECK(kvc_manager_destroy(NULL, &err) == KVC_OK);
  }

  PHASE("store, share, drain");
  kvc_stream_config_init(&stream_config);
  CHECK_OK(kvc_stream_create(&stream_config, &stream, &err));
  m = new_manager(8, stream);
  {
    kvc_create_result a = create(m, tokens, 10, 0);
    kvc_create_result b = create(m, tokens, 10, 0);
    kvc_commit_result c;
    kvc_borrowed_batch batch;
    uint32_t pages_a[4], pages_b[4], written = 0;
    CHECK(a.matched_tokens == 0 && b.matched_tokens == 0 && a.sequence != b.sequence);
    CHECK(grow(m, a.sequence, 10).added_pages == 3);
    CHECK(grow(m, b.sequence, 10).added_pages == 3);
    c = commit(m, a.sequence, tokens, 10);
    CHECK(c.status == KVC_OK && c.stored_blocks == 2 && c.committed_tokens == 10);
    c = commit(m, b.sequence, tokens, 10);
    CHECK(c.stored_blocks == 0 && c.deduplicated_blocks == 2 && c.first_changed_block == 0);
    CHECK_OK(kvc_sequence_get(m, a.sequence, 0, 4, pages_a, &written, NULL, &err));
    CHECK(written == 3);
    CHECK_OK(kvc_sequence_get(m, b.sequence, 0, 4, pages_b, &written, NULL, &err));
    CHECK(pages_a[0] == pages_b[0] && pages_a[1] == pages_b[1] && pages_a[2] != pages_b[2]);
    CHECK(stats(m).live_pages == 4);

    CHECK_OK(kvc_stream_drain(stream, 0, 0, &batch, &err));
    CHECK(batch.event_count == 1 && batch.events[0].kind == KVC_EVENT_STORED);
    CHECK(batch.events[0].hash_count == 2 && batch.events[0].token_count == 8);
    CHECK(batch.events[0].block_size == kBlock && batch.events[0].flags == 0);
    /* TensorRT-LLM's values for the blocks 0..3 and 4..7 of the empty scope. */
    CHECK((int64_t)batch.hashes[0] == INT64_C(8901721255985266736));
    CHECK((int64_t)batch.hashes[1] == INT64_C(1735720619063549889));
    CHECK(batch.tokens[0] == 0 && batch.tokens[7] == 7);

    {
      kvc_snapshot* snapshot = NULL;
      kvc_snapshot* other = NULL;
      CHECK_OK(kvc_stream_snapshot_open(stream, &snapshot, &err));
      CHECK(kvc_stream_snapshot_open(stream, &other, &err) == KVC_BUSY && other == NULL);
      CHECK(kvc_stream_snapshot_open(NULL, &other, &err) == KVC_INVALID_ARGUMENT);
      CHECK(kvc_stream_snapshot_open(stream, NULL, &err) == KVC_INVALID_ARGUMENT);
      CHECK(kvc_stream_snapshot_next(NULL, 0, 0, &batch, &err) == KVC_INVALID_ARGUMENT);
      CHECK(kvc_stream_snapshot_next(snapshot, 0, 0, NULL, &err) == KVC_INVALID_ARGUMENT);
      CHECK_OK(kvc_stream_snapshot_next(snapshot, 0, 1, &batch, &err));
      CHECK(batch.event_count == 1 && batch.events[0].flags == 0 && batch.hash_count == 1);
      CHECK((int64_t)batch.hashes[0] == INT64_C(8901721255985266736));
      CHECK_OK(kvc_stream_snapshot_next(snapshot, 0, 0, &batch, &err));
      CHECK(batch.event_count == 1 && batch.events[0].flags == KVC_EVENT_HAS_PARENT);
      CHECK((int64_t)batch.events[0].parent_hash == INT64_C(8901721255985266736));
      CHECK((int64_t)batch.hashes[0] == INT64_C(1735720619063549889));
      CHECK(batch.tokens[0] == 4 && batch.token_count == 4);
      CHECK(kvc_stream_snapshot_next(snapshot, 0, 0, &batch, &err) == KVC_END);
      kvc_stream_snapshot_close(snapshot);
      kvc_stream_snapshot_close(NULL);
    }

    {
      kvc_prompt prompt;
      kvc_probe_result probed;
      kvc_stream_stats st;
      memset(&prompt, 0, sizeof prompt);
      prompt.token_count = 8;
      prompt.scope = KVC_NO_SCOPE;
      CHECK_OK(kvc_probe(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, &probed, &err));
      CHECK(probed.status == KVC_OK && probed.matched_tokens == 4); /* one token is left */
      prompt.must_compute = KVC_COMPUTE_NOTHING;
      CHECK_OK(kvc_probe(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, &probed, &err));
      CHECK(probed.matched_tokens == 8);
      prompt.match_backoff = 1;
      CHECK_OK(kvc_probe(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, &probed, &err));
      CHECK(probed.matched_tokens == 4); /* the block that holds the last one is left out */
      prompt.match_backoff = 0;
      prompt.token_offset = UINT64_MAX;
      CHECK_OK(kvc_probe(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, &probed, &err));
      CHECK(probed.status == KVC_INVALID_ARGUMENT);

      kvc_stream_stats_init(&st);
      CHECK_OK(kvc_stream_stats_get(stream, &st, &err));
      CHECK(st.attached == 1 && st.stored_blocks == 2 && st.announced_blocks == 2);
      CHECK(st.deferred_blocks ==
            st.healed_blocks + st.deferred_evicted_blocks + st.pending_blocks);
      CHECK(st.drained_stored_blocks == 2 && st.mirror_blocks == 2);
      st.struct_size = 3;
      CHECK(kvc_stream_stats_get(stream, &st, &err) == KVC_INVALID_ARGUMENT);
    }

    CHECK(kvc_manager_destroy(m, &err) == KVC_BUSY);
    CHECK(release(m, a.sequence) == KVC_OK);
    CHECK(release(m, a.sequence) == KVC_STALE_HANDLE);
    CHECK(release(m, b.sequence) == KVC_OK);
    CHECK(grow(m, a.sequence, 4).status == KVC_STALE_HANDLE);
    CHECK(commit(m, a.sequence, tokens, 1).status == KVC_STALE_HANDLE);
    CHECK(stats(m).cached_pages == 2);
  }

  PHASE("statuses");
  {
    kvc_create_result a = create(m, tokens, 0, 0);
    kvc_create_result b = create(m, tokens, 0, 0);
    uint32_t bad = 1u << 31;
    CHECK(grow(m, a.sequence, 9 * kBlock).status == KVC_NEVER_FITS);
    CHECK(grow(m, a.sequence, UINT64_MAX).status == KVC_NEVER_FITS);
    CHECK(stats(m).cached_pages == 2);
    CHECK(grow(m, a.sequence, 7 * kBlock).evicted_blocks == 1);
    CHECK(grow(m, b.sequence, 2 * kBlock).status == KVC_NOT_NOW);
    CHECK(stats(m).cached_pages == 1);
    CHECK(commit(m, b.sequence, tokens, 1).status == KVC_BAD_STATE);
    CHECK(commit(m, a.sequence, &bad, 1).status == KVC_INVALID_ARGUMENT);
    CHECK(release(m, a.sequence) == KVC_OK && release(m, b.sequence) == KVC_OK);
  }

  PHASE("where blocks are, and which were evicted");
  {
    kvc_prompt prompt;
    kvc_residency_result where;
    kvc_block_residency block;
    kvc_evicted_block evicted;
    kvc_grow_item item;
    kvc_grow_result result;
    uint32_t told = 9;
    kvc_create_result a = create(m, NULL, 0, 0);
    memset(&prompt, 0, sizeof prompt);
    prompt.token_count = 8;
    prompt.scope = KVC_NO_SCOPE;
    CHECK_OK(kvc_residency(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, 0, NULL, &where, &err));
    CHECK(where.status == KVC_INVALID_ARGUMENT && where.resident_blocks == 1);
    CHECK_OK(kvc_residency(m, 1, &prompt, tokens, 8, NULL, 0, NULL, 0, 1, &block, &where, &err));
    CHECK(where.status == KVC_OK && where.resident_blocks == 1 && where.first_block == 0);
    CHECK(block.copies == 1 && block.flags == KVC_BLOCK_ANNOUNCED);
    item.sequence = a.sequence;
    item.capacity_tokens = 8 * kBlock;
    CHECK(kvc_sequences_grow(m, 1, &item, &result, NULL, 1, &told, &err) == KVC_INVALID_ARGUMENT);
    CHECK_OK(kvc_sequences_grow(m, 1, &item, &result, &evicted, 1, &told, &err));
    CHECK(result.evicted_blocks == 1 && result.first_evicted == 0 && told == 1);
    CHECK(evicted.block == block.block && evicted.parent == KVC_NO_BLOCK);
    CHECK(evicted.reason == KVC_EVICTED_CAPACITY && evicted.copies == 0 && evicted.announced == 1);
    CHECK(evicted.priority == KVC_DEFAULT_PRIORITY);
    CHECK(release(m, a.sequence) == KVC_OK);
  }

  PHASE("retention");
  {
    kvc_retain_item item;
    kvc_status status = KVC_INTERNAL;
    uint32_t expired = 9, more = 9;
    kvc_create_result a = create(m, NULL, 0, 0);
    CHECK(grow(m, a.sequence, kBlock).status == KVC_OK);
    CHECK(commit(m, a.sequence, tokens, kBlock).stored_blocks == 1);
    memset(&item, 0, sizeof item);
    item.sequence = a.sequence;
    item.end_token = KVC_TO_THE_END;
    item.priority = KVC_MAX_PRIORITY + 1;
    CHECK_OK(kvc_sequences_retain(m, 1, &item, &status, &err));
    CHECK(status == KVC_INVALID_ARGUMENT && err.status == status);
    item.priority = KVC_MAX_PRIORITY;
    item.expires_ns = UINT64_C(5000000000);
    CHECK_OK(kvc_sequences_retain(m, 1, &item, &status, &err));
    CHECK(status == KVC_OK);
    CHECK_OK(kvc_expire(m, UINT64_C(4000000000), 0, &expired, &more, &err));
    CHECK(expired == 0 && more == 0);
    CHECK_OK(kvc_expire(m, UINT64_C(6000000000), 0, &expired, NULL, &err));
    CHECK(expired == 1 && stats(m).expired_blocks == 1);
    CHECK_OK(kvc_sequences_end(m, 1, &a.sequence, &status, &err));
    CHECK(status == KVC_OK);
    CHECK_OK(kvc_sequences_end(m, 1, &a.sequence, &status, &err));
    CHECK(status == KVC_STALE_HANDLE);
    a = create(m, NULL, 0, 0);
    CHECK(grow(m, a.sequence, 8 * kBlock).evicted_blocks == 1);
    CHECK(stats(m).evicted_ended_blocks == 1);
    CHECK(release(m, a.sequence) == KVC_OK);
  }

  PHASE("pins, scopes, histograms");
  {
    kvc_prompt prompt;
    kvc_pin_result pins[2];
    kvc_status status = KVC_INTERNAL;
    kvc_scope scope;
    kvc_drop_item drop;
    kvc_drop_result dropped;
    kvc_evicted_block evicted;
    kvc_histograms ages;
    uint32_t told = 9;
    kvc_create_result a = create(m, NULL, 0, 0);
    CHECK(grow(m, a.sequence, kBlock).status == KVC_OK);
    CHECK(commit(m, a.sequence, tokens, kBlock).stored_blocks == 1);
    memset(&prompt, 0, sizeof prompt);
    prompt.token_count = kBlock;
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    CHECK_OK(kvc_pin_prompts(m, 1, &prompt, tokens, kBlock, NULL, 0, NULL, 0, &pins[0], &err));
    CHECK(pins[0].status == KVC_OK && pins[0].pinned_blocks == 1 && pins[0].pin != 0);
    CHECK_OK(kvc_pin_sequences(m, 1, &a.sequence, &pins[1], &err));
    CHECK(pins[1].pinned_blocks == 1 && pins[1].pin != pins[0].pin);
    CHECK(stats(m).pinned_pages == 2 && stats(m).pins == 2);
    CHECK(release(m, a.sequence) == KVC_OK);
    CHECK(stats(m).live_pages == 1 && stats(m).cached_pages == 0);
    CHECK_OK(kvc_unpin(m, 1, &pins[0].pin, &status, &err));
    CHECK(status == KVC_OK);
    CHECK_OK(kvc_unpin(m, 1, &pins[0].pin, &status, &err));
    CHECK(status == KVC_STALE_HANDLE);
    memset(&scope, 0, sizeof scope);
    scope.parts = KVC_SCOPE_SALT;
    drop.scope = 0;
    drop.flags = KVC_DROP_EVERY;
    CHECK_OK(kvc_drop_scopes(m, 1, &drop, &scope, 1, NULL, 0, &dropped, NULL, 0, NULL, &err));
    CHECK(dropped.status == KVC_OK && dropped.dropped_blocks == 0);
    drop.scope = KVC_NO_SCOPE;
    CHECK_OK(kvc_drop_scopes(m, 1, &drop, &scope, 1, NULL, 0, &dropped, NULL, 0, NULL, &err));
    CHECK(dropped.status == KVC_INVALID_ARGUMENT);
    drop.flags = 0;
    CHECK_OK(kvc_drop_scopes(m, 1, &drop, NULL, 0, NULL, 0, &dropped, &evicted, 1, &told, &err));
    CHECK(dropped.status == KVC_OK && dropped.dropped_blocks == 1 && told == 1);
    CHECK(dropped.first_evicted == 0 && evicted.reason == KVC_EVICTED_SCOPE);
    CHECK_OK(kvc_unpin(m, 1, &pins[1].pin, &status, &err));
    CHECK(status == KVC_OK && stats(m).free_pages == 8);
    kvc_histograms_init(&ages);
    CHECK_OK(kvc_manager_histograms_get(m, &ages, &err));
    CHECK(ages.reuses_at_eviction[0] >= 1);
    ages.struct_size = 3;
    CHECK(kvc_manager_histograms_get(m, &ages, &err) == KVC_INVALID_ARGUMENT);
  }

  PHASE("removals and reset");
  {
    kvc_borrowed_batch batch;
    CHECK_OK(kvc_stream_drain(stream, 0, 0, &batch, &err));
    CHECK(batch.event_count == 5 && batch.events[0].kind == KVC_EVENT_REMOVED);
    CHECK(batch.hash_count == 6 && (int64_t)batch.hashes[0] == INT64_C(1735720619063549889));
    CHECK(batch.reasons[0] == KVC_EVICTED_CAPACITY &&
          batch.reasons[batch.events[1].hash_offset] == 0);
    CHECK_OK(kvc_manager_reset(m, &err));
    CHECK_OK(kvc_stream_drain(stream, 0, 0, &batch, &err));
    CHECK(batch.event_count == 1 && batch.events[0].kind == KVC_EVENT_CLEARED);
    CHECK_OK(kvc_stream_drain(stream, 0, 0, &batch, &err));
    CHECK(batch.event_count == 0);
    CHECK(stats(m).free_pages == 8 && stats(m).blocks == 0);
  }

  PHASE("scopes");
  {
    const uint8_t bytes[] = "adaptersalt";
    kvc_scope scopes[3];
    kvc_prompt prompts[3];
    kvc_create_result results[3];
    uint64_t ids[3];
    kvc_status statuses[3];
    kvc_resident_block blocks[8];
    uint64_t count = 0;
    memset(scopes, 0, sizeof scopes);
    memset(prompts, 0, sizeof prompts);
    scopes[0].parts = KVC_SCOPE_LORA_ID;
    scopes[0].lora_id = 7;
    scopes[1].parts = KVC_SCOPE_LORA_ID | KVC_SCOPE_SALT;
    scopes[1].lora_id = 7;
    scopes[1].salt = 5;
    scopes[2].parts = KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES;
    scopes[2].lora_name_size = 7;
    scopes[2].salt_bytes_offset = 7;
    scopes[2].salt_bytes_size = 4;
    for (i = 0; i < 3; ++i) {
      prompts[i].token_count = kBlock;
      prompts[i].scope = i;
    }
    CHECK_OK(
        kvc_sequences_create(m, 3, prompts, tokens, kBlock, scopes, 3, bytes, 11, results, &err));
    for (i = 0; i < 3; ++i) {
      CHECK(results[i].status == KVC_OK && results[i].matched_tokens == 0);
      CHECK(grow(m, results[i].sequence, kBlock).status == KVC_OK);
      CHECK(commit(m, results[i].sequence, tokens, kBlock).stored_blocks == 1);
      ids[i] = results[i].sequence;
    }
    CHECK_OK(kvc_sequences_release(m, 3, ids, statuses, &err));
    CHECK_OK(kvc_manager_resident(m, KVC_HASH_BYTES, 8, blocks, &count, &err));
    CHECK(count == 3);
    CHECK(memcmp(blocks[0].digest, blocks[1].digest, 32) != 0);
    CHECK(kvc_manager_resident(m, KVC_HASH_BYTES, 2, blocks, &count, &err) == KVC_INVALID_ARGUMENT);
    scopes[2].lora_name_size = 300;
    CHECK_OK(kvc_sequences_create(m, 1, &prompts[2], tokens, kBlock, scopes, 3, bytes, 11, results,
                                  &err));
    CHECK(results[0].status == KVC_INVALID_ARGUMENT && strstr(err.message, "LoRA name") != NULL);
  }

  PHASE("multimodal digests");
  CHECK_OK(kvc_manager_reset(m, &err));
  {
    uint8_t digest[32];
    uint32_t image[4];
    kvc_prompt prompt;
    kvc_commit_item item;
    kvc_commit_result result;
    kvc_probe_result probed;
    kvc_stream_stats told;
    kvc_borrowed_batch batch;
    kvc_create_result a = create(m, NULL, 0, 0);
    CHECK(grow(m, a.sequence, kBlock).status == KVC_OK);
    memset(digest, 7, sizeof digest);
    memset(&item, 0, sizeof item);
    memset(&prompt, 0, sizeof prompt);
    for (i = 0; i < kBlock; ++i) image[i] = i == 0 ? KVC_DIGEST_TOKEN(0) : i;
    item.sequence = a.sequence;
    item.token_count = kBlock;
    CHECK_OK(kvc_sequences_commit(m, 1, &item, image, kBlock, digest, 32, &result, &err));
    CHECK(result.status == KVC_INVALID_ARGUMENT && strstr(err.message, "digests") != NULL);
    item.digest_count = 1;
    CHECK(kvc_sequences_commit(m, 1, &item, image, kBlock, NULL, 32, &result, &err) ==
          KVC_INVALID_ARGUMENT);
    CHECK_OK(kvc_sequences_commit(m, 1, &item, image, kBlock, digest, 32, &result, &err));
    CHECK(result.status == KVC_OK && result.stored_blocks == 1);
    CHECK(stats(m).digests == 1);
    prompt.token_count = kBlock;
    prompt.scope = KVC_NO_SCOPE;
    prompt.must_compute = KVC_COMPUTE_NOTHING;
    prompt.digest_count = 1;
    CHECK_OK(kvc_probe(m, 1, &prompt, image, kBlock, NULL, 0, digest, 32, &probed, &err));
    CHECK(probed.status == KVC_OK && probed.matched_tokens == kBlock);
    digest[31] ^= 1;
    CHECK_OK(kvc_probe(m, 1, &prompt, image, kBlock, NULL, 0, digest, 32, &probed, &err));
    CHECK(probed.status == KVC_OK && probed.matched_tokens == 0);
    CHECK(release(m, a.sequence) == KVC_OK);
    /* The default: a stream does not tell of such blocks. */
    do {
      CHECK_OK(kvc_stream_drain(stream, 0, 0, &batch, &err));
      CHECK(batch.multimodal_count == 0 && (batch.event_count == 0 || batch.token_count == 0));
    } while (batch.event_count != 0);
    kvc_stream_stats_init(&told);
    CHECK_OK(kvc_stream_stats_get(stream, &told, &err));
    CHECK(told.multimodal_blocks_suppressed == 1 && told.suppressed_blocks == 1);
    CHECK_OK(kvc_manager_reset(m, &err));
    CHECK(stats(m).digests == 0);
  }

  PHASE("fences and quarantine");
  CHECK_OK(kvc_manager_reset(m, &err));
  {
    uint64_t one = 0, two = 0, ran = 0;
    uint32_t page = 0, written = 0;
    uint8_t byte = 0;
    kvc_host_fill fill;
    kvc_create_result a, b;
    CHECK_OK(kvc_device_stream_create(m, &one, &err));
    CHECK_OK(kvc_device_stream_create(m, &two, &err));
    a = create(m, tokens, 0, one);
    CHECK(grow(m, a.sequence, 8 * kBlock).added_pages == 8);
    CHECK_OK(kvc_sequence_get(m, a.sequence, 0, 1, &page, &written, NULL, &err));
    memset(&fill, 0, sizeof fill);
    fill.page = page;
    fill.value = UINT64_C(0x1111111111111111);
    CHECK_OK(kvc_host_enqueue_fill(m, one, 1, &fill, &err));
    CHECK(release(m, a.sequence) == KVC_OK);
    CHECK(stats(m).quarantined_pages == 8);
    b = create(m, tokens, 0, two);
    CHECK(grow(m, b.sequence, kBlock).leaving_pages == 8); /* another stream has to wait */
    a = create(m, tokens, 0, one);
    CHECK(grow(m, a.sequence, kBlock).status == KVC_OK); /* the same stream has not */
    {
      kvc_fence fence;
      uint8_t done = 1;
      fence.device_stream = one;
      fence.position = 1;
      CHECK_OK(kvc_device_fences_query(m, 1, &fence, &done, &err));
      CHECK(done == 0);
      CHECK_OK(kvc_device_stream_wait(m, two, 1, &fence, &err));
      CHECK_OK(kvc_host_advance(m, two, 1, &ran, &err)); /* runs what it waits for */
      CHECK(ran == 1);
      CHECK_OK(kvc_device_fences_query(m, 1, &fence, &done, &err));
      CHECK(done == 1);
      fence.position = 2;
      CHECK(kvc_device_fences_query(m, 1, &fence, &done, &err) == KVC_INVALID_ARGUMENT);
      CHECK(kvc_device_stream_wait(m, two, 1, &fence, &err) == KVC_INVALID_ARGUMENT);
    }
    CHECK_OK(kvc_host_advance(m, 0, 10, &ran, &err));
    CHECK(ran == 0);
    CHECK(grow(m, b.sequence, 7 * kBlock).status == KVC_OK);
    CHECK_OK(kvc_host_read(m, page, 0, 1, &byte, &err));
    CHECK(kvc_host_read(m, page, 60, 8, &byte, &err) == KVC_INVALID_ARGUMENT);
    CHECK(release(m, a.sequence) == KVC_OK && release(m, b.sequence) == KVC_OK);
    CHECK(stats(m).free_pages == 8);
    {
      kvc_create_result c;
      kvc_fence fences[2];
      uint32_t count = 9;
      c = create(m, tokens, 0, two);
      CHECK(c.wait_count == 0);
      CHECK_OK(kvc_sequence_waits(m, c.sequence, 2, fences, &count, &err));
      CHECK(count == 0);
      CHECK(kvc_device_stream_destroy(m, two, &err) == KVC_BUSY);
      CHECK(release(m, c.sequence) == KVC_OK);
      CHECK(kvc_sequence_waits(m, c.sequence, 2, fences, &count, &err) == KVC_STALE_HANDLE);
    }
    CHECK_OK(kvc_device_stream_destroy(m, two, &err));
    CHECK(kvc_device_stream_destroy(m, two, &err) == KVC_STALE_HANDLE);
  }

  PHASE("block tables");
  {
    kvc_create_result a;
    kvc_table_format format;
    kvc_table_item item;
    kvc_table_delta_item row;
    kvc_table_cookie cookie;
    kvc_table_delta deltas[8];
    kvc_table_result result;
    int32_t entries[4], indptr[2], indices[4], last = 0, length = 0;
    uint32_t pages[2], written = 0;
    uint64_t needed = 0, table = 0, address = 0;
    a = create(m, tokens, 0, 0);
    CHECK(grow(m, a.sequence, 2 * kBlock).status == KVC_OK);
    CHECK_OK(kvc_sequence_get(m, a.sequence, 0, 2, pages, &written, NULL, &err));
    kvc_table_format_init(&format);
    CHECK(format.index_scale == 1 && format.expansion == 1 && format.absent == -1);
    format.index_scale = 3;
    memset(&item, 0, sizeof item);
    item.sequence = a.sequence;
    item.new_tokens = kBlock + 1;
    CHECK_OK(kvc_tables_dense(m, &format, 1, &item, 4, 4, entries, &length, &result, &err));
    CHECK(result.status == KVC_OK && result.entries == 2 && length == kBlock + 1);
    CHECK(entries[1] == 3 * (int32_t)pages[1] && entries[2] == -1);
    CHECK_OK(kvc_tables_indexed(m, &format, 1, &item, 4, indptr, indices, &last, &needed, &result,
                                &err));
    CHECK(needed == 2 && indptr[1] == 2 && indices[1] == entries[1] && last == 1);
    memset(&row, 0, sizeof row);
    memset(&cookie, 0, sizeof cookie);
    row.sequence = a.sequence;
    row.row = 1;
    CHECK_OK(kvc_tables_delta(m, &format, 1, &row, 4, &cookie, 8, deltas, &written, &result, &err));
    CHECK(written == 2 && deltas[1].row == 1 && deltas[1].column == 1);
    CHECK_OK(kvc_device_table_create(m, 2, 4, -1, 24, &table, &address, &err));
    CHECK(address != 0);
    CHECK_OK(kvc_device_table_update(m, table, 0, written, deltas, &err));
    CHECK_OK(kvc_host_table_read(m, table, 1, 0, 4, indices, &err));
    CHECK(memcmp(indices, entries, sizeof entries) == 0);
    CHECK_OK(kvc_device_table_write(m, table, 0, 0, 1, 4, entries, &err));
    CHECK_OK(kvc_host_table_read(m, table, 0, 0, 4, indices, &err));
    CHECK(memcmp(indices, entries, sizeof entries) == 0);
    CHECK_OK(kvc_device_table_destroy(m, table, &err));
    CHECK(kvc_device_table_destroy(m, table, &err) == KVC_STALE_HANDLE);
    CHECK(release(m, a.sequence) == KVC_OK);
    CHECK_OK(kvc_tables_delta(m, &format, 1, &row, 4, &cookie, 8, deltas, &written, &result, &err));
    CHECK(result.status == KVC_STALE_HANDLE && written == 2 && deltas[1].value == -1);
  }

  PHASE("geometry");
  {
    kvc_geometry_config config;
    kvc_buffer_spec specs[2];
    kvc_buffer buffers[2];
    kvc_geometry geometry;
    kvc_tensor_view views[KVC_VIEW_TENSORS];
    uint32_t written = 0;
    kvc_geometry_config_init(&config);
    memset(specs, 0, sizeof specs);
    specs[0].role = KVC_ROLE_KEY;
    specs[1].role = KVC_ROLE_VALUE;
    specs[0].heads = specs[1].heads = 8;
    specs[0].head_dim = specs[1].head_dim = 128;
    CHECK_OK(kvc_geometry_compute(&config, 2, specs, buffers, &geometry, &err));
    CHECK(geometry.page_bytes == 2 * 16 * 8 * 128 * 2);
    CHECK(buffers[1].base_offset == 16 * 8 * 128 * 2 && buffers[1].index_offset == 1);
    CHECK_OK(kvc_geometry_view(&geometry, 2, buffers, 0, KVC_VIEW_VLLM_BLOCKS_FIRST, views,
                               &written, &err));
    CHECK(written == 1 && views[0].rank == 5 && views[0].shape[1] == 2 && views[0].dense == 1);
    CHECK(kvc_geometry_view(&geometry, 2, buffers, 1, KVC_VIEW_FLASHINFER, views, &written, &err) ==
          KVC_INVALID_ARGUMENT);
    config.alignment = 3;
    CHECK(kvc_geometry_compute(&config, 2, specs, buffers, &geometry, &err) ==
          KVC_INVALID_ARGUMENT);
    CHECK(strncmp(err.message, "alignment", 9) == 0);
  }

  PHASE("states and endings");
  CHECK_OK(kvc_manager_reset(m, &err));
  {
    kvc_create_result a = create(m, tokens, 0, 0);
    kvc_resume_result resumed;
    kvc_truncate_item cut;
    kvc_truncate_result freed;
    kvc_stop_item stop;
    kvc_sequence_info info;
    kvc_status status;
    CHECK(grow(m, a.sequence, 6 * kBlock).added_pages == 6);
    CHECK(commit(m, a.sequence, tokens, 2 * kBlock + 1).stored_blocks == 2);
    cut.sequence = a.sequence;
    cut.capacity_tokens = 2 * kBlock;
    CHECK_OK(kvc_sequences_truncate(m, 1, &cut, &freed, &err));
    CHECK(freed.status == KVC_BAD_STATE);
    cut.capacity_tokens = 4 * kBlock;
    CHECK_OK(kvc_sequences_truncate(m, 1, &cut, &freed, &err));
    CHECK(freed.status == KVC_OK && freed.freed_pages == 2);
    CHECK(suspend(m, a.sequence, 8) == KVC_INVALID_ARGUMENT);
    CHECK(suspend(m, a.sequence, KVC_SUSPEND_KEEP) == KVC_OK);
    CHECK(suspend(m, a.sequence, KVC_SUSPEND_KEEP) == KVC_BAD_STATE);
    CHECK(stats(m).kept_pages == 2 && stats(m).cached_pages == 2);
    CHECK_OK(kvc_sequence_get(m, a.sequence, 0, 0, NULL, NULL, &info, &err));
    CHECK(info.state == KVC_SEQUENCE_SUSPENDED && info.page_count == 2);
    CHECK_OK(kvc_sequences_resume(m, 1, &a.sequence, &resumed, &err));
    CHECK(resumed.status == KVC_OK && resumed.committed_tokens == 2 * kBlock + 1);
    CHECK(resumed.lost_tokens == 0);
    CHECK_OK(kvc_sequences_resume(m, 1, &a.sequence, &resumed, &err));
    CHECK(resumed.status == KVC_BAD_STATE);
    stop.sequence = a.sequence;
    stop.stop_before = 0;
    CHECK_OK(kvc_sequences_stop(m, 1, &stop, &status, &err));
    CHECK(status == KVC_OK);
    CHECK(commit(m, a.sequence, tokens, kBlock).stored_blocks == 0);
    CHECK_OK(kvc_sequence_get(m, a.sequence, 0, 0, NULL, NULL, &info, &err));
    CHECK(info.state == KVC_SEQUENCE_ACTIVE && info.reusable_blocks == 2);
    CHECK_OK(kvc_sequences_cancel(m, 1, &a.sequence, &status, &err));
    CHECK(status == KVC_OK && stats(m).cached_pages == 2);
    CHECK_OK(kvc_sequences_cancel(m, 1, &a.sequence, &status, &err));
    CHECK(status == KVC_STALE_HANDLE && stats(m).cancelled_sequences == 1);
  }

  PHASE("forks");
  {
    kvc_create_result a = create(m, tokens, 0, 0);
    kvc_fork_item item;
    kvc_fork_result fork;
    kvc_grow_result grown;
    kvc_status status;
    CHECK(grow(m, a.sequence, kBlock + 1).copied_block == KVC_NO_COPY);
    CHECK(commit(m, a.sequence, tokens, kBlock + 1).status == KVC_OK);
    item.sequence = a.sequence;
    item.device_stream = 0;
    CHECK_OK(kvc_sequences_fork(m, 1, &item, &fork, &err));
    CHECK(fork.status == KVC_OK && fork.committed_tokens == kBlock + 1 && fork.wait_count == 0);
    CHECK(commit(m, fork.sequence, tokens, 1).status == KVC_BAD_STATE);
    grown = grow(m, fork.sequence, kBlock + 2);
    CHECK(grown.status == KVC_OK && grown.added_pages == 1 && grown.copied_block == 1);
    CHECK(grown.copied_from != grown.copied_to && grown.copied_tokens == 1);
    CHECK(stats(m).forked_sequences == 1 && stats(m).copied_pages == 1);
    CHECK(grow(m, a.sequence, kBlock + 2).copied_block == KVC_NO_COPY);
    CHECK_OK(kvc_sequences_cancel(m, 1, &a.sequence, &status, &err));
    CHECK_OK(kvc_sequences_cancel(m, 1, &fork.sequence, &status, &err));
    CHECK_OK(kvc_sequences_fork(m, 1, &item, &fork, &err));
    CHECK(fork.status == KVC_STALE_HANDLE);
    CHECK(kvc_sequences_fork(m, 1, NULL, &fork, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_page_layout_set(m, NULL, 0, NULL, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_sequences_fork(m, 1, &item, NULL, &err) == KVC_INVALID_ARGUMENT);
  }

  PHASE("elastic pools");
  {
    kvc_config config;
    kvc_manager* other = NULL;
    kvc_resize_result result;
    kvc_page_move moves[4];
    kvc_evicted_block evicted[4];
    kvc_config_init(&config);
    CHECK(config.max_blocks == 0 && config.min_blocks == 0);
    CHECK(kvc_pool_resize(m, 8, 4, NULL, 0, NULL, 0, &result, &err) == KVC_INVALID_ARGUMENT);
    config.capacity_blocks = 4;
    config.max_blocks = 8;
    config.min_blocks = 2;
    config.page_bytes = 8;
    CHECK_OK(kvc_manager_create(&config, NULL, &other, &err));
    CHECK_OK(kvc_pool_resize(other, 8, 4, moves, 4, evicted, 4, &result, &err));
    CHECK(result.target_pages == 8 && result.total_pages == 4 && result.done == 0);
    CHECK(result.growing_pages == 4);
    CHECK_OK(kvc_host_advance(other, 0, 1, NULL, &err));
    CHECK_OK(kvc_pool_resize(other, 8, 4, NULL, 0, NULL, 0, &result, &err));
    CHECK(result.total_pages == 8 && result.done == 1);
    CHECK_OK(kvc_pool_resize(other, 2, 4, NULL, 0, NULL, 0, &result, &err));
    CHECK(result.leaving_pages == 6 && result.doomed_pages == 0);
    CHECK_OK(kvc_host_advance(other, 0, 1, NULL, &err));
    CHECK(stats(other).total_pages == 2 && stats(other).target_pages == 2);
    CHECK(kvc_pool_resize(other, 9, 4, NULL, 0, NULL, 0, &result, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_pool_resize(other, 2, 4, NULL, 1, NULL, 0, &result, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_pool_resize(other, 2, 4, NULL, 0, NULL, 1, &result, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_pool_resize(other, 2, 4, NULL, 0, NULL, 0, NULL, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_pool_resize(NULL, 2, 4, NULL, 0, NULL, 0, &result, &err) == KVC_INVALID_ARGUMENT);
    CHECK_OK(kvc_manager_destroy(other, &err));
  }

  PHASE("partly filled blocks");
  {
    kvc_config config;
    kvc_manager* other = NULL;
    kvc_create_result a;
    kvc_create_result b;
    kvc_status status;
    kvc_config_init(&config);
    CHECK(config.partial_reuse == 0);
    config.tokens_per_block = kBlock;
    config.capacity_blocks = 4;
    config.page_bytes = 64;
    config.partial_reuse = 2;
    CHECK(kvc_manager_create(&config, NULL, &other, &err) == KVC_INVALID_ARGUMENT);
    CHECK(strstr(err.message, "partial_reuse") != NULL);
    config.partial_reuse = 1;
    CHECK_OK(kvc_manager_create(&config, NULL, &other, &err));
    a = create(other, tokens, 0, 0);
    CHECK(grow(other, a.sequence, kBlock + 1).status == KVC_OK);
    CHECK(commit(other, a.sequence, tokens, kBlock + 1).status == KVC_OK);
    CHECK_OK(kvc_sequences_release(other, 1, &a.sequence, &status, &err));
    CHECK(stats(other).blocks == 1 && stats(other).partial_blocks == 1);
    b = create(other, tokens, kBlock + 2, 0);
    CHECK(b.matched_tokens == kBlock + 1 && b.copied_tokens == 1);
    CHECK(b.copied_from != b.copied_to && b.wait_count == 1);
    CHECK(stats(other).partial_hits == 1 && stats(other).partial_hit_tokens == 1);
    CHECK(stats(other).kept_partial_blocks == 1 && stats(other).copied_pages == 1);
    CHECK_OK(kvc_sequences_release(other, 1, &b.sequence, &status, &err));
    CHECK_OK(kvc_manager_check(other, &err));
    CHECK_OK(kvc_manager_destroy(other, &err));
  }

  PHASE("blocks that are being computed");
  CHECK_OK(kvc_manager_reset(m, &err));
  {
    kvc_prompt prompts[2];
    kvc_create_result made[2];
    kvc_probe_result probed;
    kvc_resume_result resumed;
    kvc_waiter waiters[2];
    kvc_op op;
    kvc_op_result result;
    kvc_step_output output;
    kvc_status status;
    uint32_t count = 7;
    memset(prompts, 0, sizeof prompts);
    prompts[0].token_count = prompts[1].token_count = 2 * kBlock + 1;
    prompts[0].scope = prompts[1].scope = KVC_NO_SCOPE;
    prompts[0].flags = KVC_PROMPT_MARK;
    prompts[1].flags = KVC_PROMPT_WAIT;
    CHECK_OK(
        kvc_sequences_create(m, 2, prompts, tokens, 2 * kBlock + 1, NULL, 0, NULL, 0, made, &err));
    CHECK(made[0].status == KVC_OK && made[0].pending_tokens == 0);
    CHECK(made[1].status == KVC_OK && made[1].pending_tokens == 2 * kBlock);
    CHECK(made[1].pending_sequence == made[0].sequence);
    CHECK_OK(kvc_probe(m, 1, prompts, tokens, 2 * kBlock + 1, NULL, 0, NULL, 0, &probed, &err));
    CHECK(probed.matched_tokens == 0 && probed.pending_tokens == 2 * kBlock);
    CHECK(stats(m).pending_blocks == 2 && stats(m).waiting_sequences == 1);
    CHECK_OK(kvc_sequences_resume(m, 1, &made[1].sequence, &resumed, &err));
    CHECK(resumed.status == KVC_NOT_NOW && resumed.pending_tokens == 2 * kBlock);
    CHECK_OK(kvc_waiters_take(m, 2, waiters, &count, &err));
    CHECK(count == 0);
    CHECK(kvc_waiters_take(m, 2, NULL, &count, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_waiters_take(m, 2, waiters, NULL, &err) == KVC_INVALID_ARGUMENT);
    /* A step tells whose wait is over when all its operations have been done. */
    CHECK(grow(m, made[0].sequence, 2 * kBlock).status == KVC_OK);
    memset(&op, 0, sizeof op);
    op.kind = KVC_OP_SUSPEND;
    op.args.suspend.sequence = made[0].sequence;
    kvc_step_output_init(&output);
    output.waiters = waiters;
    output.waiter_capacity = 2;
    CHECK_OK(kvc_step(m, 1, &op, NULL, &result, &output, &err));
    CHECK(result.status == KVC_OK && output.waiter_count == 1);
    CHECK(waiters[0].sequence == made[1].sequence && waiters[0].outcome == KVC_PENDING_GIVEN_UP);
    CHECK_OK(kvc_sequences_resume(m, 1, &made[1].sequence, &resumed, &err));
    CHECK(resumed.status == KVC_OK && resumed.pending_tokens == 0);
    CHECK(release(m, made[0].sequence) == KVC_OK);
    CHECK(release(m, made[1].sequence) == KVC_OK);
    CHECK(stats(m).marked_blocks == 2 && stats(m).given_up_marks == 2 && stats(m).waits == 1);
    /* Kept. */
    CHECK_OK(
        kvc_sequences_create(m, 2, prompts, tokens, 2 * kBlock + 1, NULL, 0, NULL, 0, made, &err));
    CHECK(grow(m, made[0].sequence, 2 * kBlock).status == KVC_OK);
    CHECK(commit(m, made[0].sequence, tokens, 2 * kBlock).stored_blocks == 2);
    CHECK_OK(kvc_waiters_take(m, 2, waiters, &count, &err));
    CHECK(count == 1 && waiters[0].outcome == KVC_PENDING_COMMITTED);
    CHECK_OK(kvc_sequences_resume(m, 1, &made[1].sequence, &resumed, &err));
    CHECK(resumed.status == KVC_OK && resumed.committed_tokens == 2 * kBlock);
    CHECK(release(m, made[0].sequence) == KVC_OK);
    CHECK_OK(kvc_sequences_cancel(m, 1, &made[1].sequence, &status, &err));
    CHECK(status == KVC_OK && stats(m).committed_marks == 2);
  }

  PHASE("operations of a step in one call");
  {
    kvc_op ops[4];
    kvc_op_result results[4];
    kvc_step_input input;
    kvc_prompt prompt;
    kvc_step_output output;
    kvc_table_cookie cookie;
    kvc_table_delta deltas[4];
    kvc_fence waits[8];
    memset(ops, 0, sizeof ops);
    memset(&cookie, 0, sizeof cookie);
    kvc_step_input_init(&input);
    input.tokens = tokens;
    input.token_count = kBlock;
    input.columns = 4;
    kvc_step_output_init(&output);
    output.cookies = &cookie;
    output.cookie_count = 1;
    output.deltas = deltas;
    output.delta_capacity = 4;
    output.waits = waits; /* there have been device streams */
    output.wait_capacity = 8;
    ops[0].kind = KVC_OP_CREATE;
    memset(&prompt, 0, sizeof prompt);
    prompt.scope = KVC_NO_SCOPE;
    input.prompts = &prompt;
    input.prompt_count = 1;
    ops[1].kind = KVC_OP_GROW;
    ops[1].args.grow.sequence = KVC_STEP_RESULT | 0;
    ops[1].args.grow.capacity_tokens = kBlock;
    ops[2].kind = KVC_OP_TABLE;
    ops[2].args.table.sequence = KVC_STEP_RESULT | 0;
    ops[3].kind = KVC_OP_CANCEL;
    ops[3].args.sequence = KVC_STEP_RESULT | 0;
    CHECK_OK(kvc_step(m, 4, ops, &input, results, &output, &err));
    CHECK(results[0].status == KVC_OK && results[1].status == KVC_OK);
    CHECK(results[1].of.grown.added_pages == 1);
    CHECK(results[2].of.tabled.entries == 1 && output.delta_count == 1);
    CHECK(deltas[0].row == 0 && deltas[0].column == 0 && deltas[0].value >= 0);
    CHECK(results[3].status == KVC_OK && results[3].sequence == results[0].sequence);
    CHECK_OK(kvc_step(m, 1, &ops[1], NULL, results, NULL, &err));
    CHECK(results[0].status == KVC_INVALID_ARGUMENT); /* refers to itself */
  }

  PHASE("steps, imports, holds");
  CHECK_OK(kvc_manager_reset(m, &err));
  {
    uint64_t steps = 0;
    kvc_create_result a, b;
    kvc_commit_item item;
    kvc_commit_result committed;
    kvc_hold_item hold;
    kvc_hold_result held;
    kvc_status status;
    CHECK_OK(kvc_step_stream_create(m, &steps, &err));
    CHECK_OK(kvc_step_begin(m, steps, 7, &err));
    CHECK(kvc_step_begin(m, steps, 6, &err) == KVC_INVALID_ARGUMENT);
    CHECK(kvc_step_done(m, steps, 8, &err) == KVC_INVALID_ARGUMENT);
    a = create(m, tokens, 0, 0);
    CHECK(grow(m, a.sequence, 2 * kBlock).status == KVC_OK);
    memset(&item, 0, sizeof item);
    item.sequence = a.sequence;
    item.token_count = kBlock;
    item.flags = KVC_COMMIT_FENCE;
    item.fence.device_stream = steps;
    item.fence.position = 8;
    CHECK_OK(kvc_sequences_commit(m, 1, &item, tokens, kBlock, NULL, 0, &committed, &err));
    CHECK(committed.status == KVC_INVALID_ARGUMENT); /* the step has not begun */
    item.fence.position = 7;
    CHECK_OK(kvc_sequences_commit(m, 1, &item, tokens, kBlock, NULL, 0, &committed, &err));
    CHECK(committed.status == KVC_OK && committed.stored_blocks == 1);
    b = create(m, tokens, kBlock + 1, 0);
    CHECK(b.matched_tokens == kBlock && b.wait_count == 1);
    CHECK(b.waits[0].device_stream == steps && b.waits[0].position == 7);
    CHECK(release(m, b.sequence) == KVC_OK);
    CHECK(kvc_device_stream_destroy(m, steps, &err) == KVC_BUSY);
    CHECK_OK(kvc_step_done(m, 0, 7, &err));
    CHECK_OK(kvc_device_stream_destroy(m, steps, &err));
    CHECK(kvc_step_done(m, steps, 7, &err) == KVC_STALE_HANDLE);
    memset(&hold, 0, sizeof hold);
    hold.sequence = a.sequence;
    CHECK_OK(kvc_sequences_release_held(m, 1, &hold, &held, &err));
    CHECK(held.status == KVC_INVALID_ARGUMENT);
    hold.count = 1;
    CHECK_OK(kvc_sequences_release_held(m, 1, &hold, &held, &err));
    CHECK(held.status == KVC_OK && stats(m).holds == 1 && stats(m).held_pages == 2);
    CHECK(release(m, a.sequence) == KVC_STALE_HANDLE);
    CHECK(kvc_manager_destroy(m, &err) == KVC_BUSY);
    CHECK_OK(kvc_holds_release(m, 1, &held.hold, &status, &err));
    CHECK(status == KVC_OK && stats(m).holds == 0 && stats(m).cached_pages == 1);
    CHECK_OK(kvc_holds_release(m, 1, &held.hold, &status, &err));
    CHECK(status == KVC_STALE_HANDLE);
  }

  PHASE("devices");
  {
    kvc_device_memory memory;
    kvc_cuda_device gpu;
    kvc_config other;
    kvc_manager* none = NULL;
    uint32_t devices = 0;
    uint64_t pages = 0, id = 0;
    void* handle = NULL;
    kvc_status opened;
    CHECK_OK(kvc_device_memory_get(m, &memory, &err));
    kvc_config_init(&other);
    other.device = KVC_DEVICE_CUDA;
    CHECK(kvc_manager_create(&other, NULL, &none, &err) == KVC_NO_DEVICE);
    CHECK(err.cause == KVC_CAUSE_NOT_OPENED);
    CHECK(kvc_cuda_stream_adopt(m, NULL, &id, &err) == KVC_INVALID_ARGUMENT);
    CHECK(err.cause == KVC_CAUSE_NONE);
    CHECK(kvc_cuda_stream_get(m, 0, &handle, &err) == KVC_INVALID_ARGUMENT);
    /* Whether there is a GPU here or not, it is said in words. */
    opened = kvc_cuda_open(&devices, &err);
    CHECK(opened == KVC_OK ? devices > 0 : opened == KVC_NO_DEVICE && err.message[0] != '\0');
    CHECK((opened == KVC_OK) == (err.cause == KVC_CAUSE_NONE));
    CHECK(err.cause != KVC_CAUSE_NOT_OPENED);
    CHECK(kvc_cuda_device_get(0, &gpu, &err) == opened);
    CHECK(kvc_cuda_budget(0, 4096, 0, 2.0, &pages, &err) != KVC_OK);
  }

  PHASE("end of the stream");
  CHECK_OK(kvc_manager_destroy(m, &err));
  {
    kvc_borrowed_batch batch;
    kvc_status status;
    int batches = 0;
    while ((status = kvc_stream_drain(stream, 0, 0, &batch, &err)) == KVC_OK) {
      CHECK(++batches < 10);
    }
    CHECK(status == KVC_END);
  }
  kvc_stream_destroy(stream);
  kvc_stream_destroy(NULL);

  PHASE("nothing is left");
  kvc_live_handles_get(&live);
  CHECK(live.managers == 0 && live.sequences == 0 && live.streams == 0 && live.snapshots == 0);
  printf("capi_test: 1 passed, 0 failed\n");
  return 0;
}
