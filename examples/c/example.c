/* SPDX-FileCopyrightText: The kvcast authors */
/* SPDX-License-Identifier: Apache-2.0 */

/* Stores a prompt of three blocks and prints the event that tells of them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvcast/kvcast.h"

static kvc_error err;

/* Ends the program unless the call, and the one sequence that it was about, went well. */
static void check(kvc_status status, const kvc_status* item) {
  if (status == KVC_OK && item != NULL) status = *item;
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err.message);
  exit(1);
}

static void run(kvc_manager* pool, kvc_stream* stream) {
  const uint32_t tokens[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  kvc_prompt prompt = {.token_count = 12, .scope = KVC_NO_SCOPE};
  kvc_create_result seq;
  check(kvc_sequences_create(pool, 1, &prompt, tokens, 12, NULL, 0, NULL, 0, &seq, &err),
        &seq.status);
  kvc_grow_item room = {.sequence = seq.sequence, .capacity_tokens = 12};
  kvc_grow_result grown;
  check(kvc_sequences_grow(pool, 1, &room, &grown, NULL, 0, NULL, &err), &grown.status);
  kvc_commit_item computed = {.sequence = seq.sequence, .token_count = 12};
  kvc_commit_result stored;
  check(kvc_sequences_commit(pool, 1, &computed, tokens, 12, NULL, 0, &stored, &err),
        &stored.status);
  kvc_status released;
  check(kvc_sequences_release(pool, 1, &seq.sequence, &released, &err), &released);

  kvc_borrowed_batch batch; /* valid until the next drain; its events point into its arrays */
  check(kvc_stream_drain(stream, 0, 0, &batch, &err), NULL);
  for (uint64_t i = 0; i < batch.hash_count; ++i)
    printf("stored block %" PRIu64 "\n", batch.hashes[i]);
}

int main(void) {
  kvc_stream_config stream_config;
  kvc_stream_config_init(&stream_config);
  kvc_stream* stream;
  check(kvc_stream_create(&stream_config, &stream, &err), NULL);
  kvc_config config;
  kvc_config_init(&config);
  config.tokens_per_block = 4;
  kvc_manager* pool;
  check(kvc_manager_create(&config, stream, &pool, &err), NULL);
  run(pool, stream);
  check(kvc_manager_destroy(pool, &err), NULL);
  kvc_stream_destroy(stream);
  return 0;
}
