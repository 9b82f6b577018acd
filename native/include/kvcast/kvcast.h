/* SPDX-FileCopyrightText: The kvcast authors */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcast: KV-cache page allocator and event stream. The whole C ABI.
 *
 * Conventions
 *  1. Names begin with kvc_ (functions, types) or KVC_ (constants). The header
 *     is C11 and compiles as C and as C++.
 *  2. Fallible functions return a kvc_status, KVC_OK being 0, and take an
 *     optional kvc_error* (NULL is allowed) owned by the caller. No call depends
 *     on what its thread has called before, and there is no memory the caller
 *     would have to free.
 *  3. Calls take and give arrays, many items at once. The function's own status
 *     speaks of the call as a whole (malformed arrays, out of memory); each
 *     item has a status of its own in its result. An item that fails leaves
 *     pages, tree and records as they were and does not stop the others.
 *  4. Out-parameters come last and are written only on KVC_OK, results[] as
 *     soon as the arrays themselves are well formed. (A GPU that refuses what a
 *     call has promised is the exception: see "CUDA".)
 *  5. Handles (kvc_manager*, kvc_stream*, kvc_snapshot*) are owned by the caller
 *     until the matching _destroy or _close, which accepts NULL. Sequences are 64-bit ids with a
 *     generation: a stale one is KVC_STALE_HANDLE, never a crash.
 *  6. Functions that take a kvc_manager* may be called from any thread at any
 *     time between its create and its destroy. Nothing waits inside the
 *     library for a device, a subscriber or a drainer.
 *  7. Config and stats structs begin with struct_size; set it with the _init
 *     function. Records have fixed-width integers, explicit padding and no
 *     pointers; their layout never changes within one KVC_ABI_VERSION.
 *  8. "Borrowed" memory belongs to the library and stays valid until the event
 *     named with it.
 *  9. No exception and no longjmp crosses the ABI; there are no callbacks.
 *
 * Words have one meaning each: a page is a physical slot of KV memory, a block
 * a run of tokens_per_block tokens with a place in the prefix tree, a sequence
 * one request's view of both, a record what the sink notes, an event what goes
 * on the wire, a batch the events that become one message there.
 */
#ifndef KVCAST_KVCAST_H_
#define KVCAST_KVCAST_H_

#include <stdint.h>

#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_VERSION_PATCH 0
/* Raised whenever a struct's layout or a function's meaning changes. */
#define KVC_ABI_VERSION 1

#if defined(_WIN32)
#define KVC_API
#elif defined(__GNUC__)
#define KVC_API __attribute__((visibility("default")))
#else
#define KVC_API
#endif

#if defined(__cplusplus)
#define KVC_NOEXCEPT noexcept
extern "C" {
#else
#define KVC_NOEXCEPT
#endif

/* ------------------------------------------------------------------ status */

typedef int32_t kvc_status;
/* The numbers never change. */
enum {
  KVC_OK = 0,
  /* An argument can never be right; the message names it. */
  KVC_INVALID_ARGUMENT = 1,
  /* The call does not fit the object's state (for example, more tokens
   * committed than the sequence has room for). */
  KVC_BAD_STATE = 2,
  /* The id names nothing, or something that has been released. */
  KVC_STALE_HANDLE = 3,
  /* The demand exceeds the whole pool: waiting cannot help. */
  KVC_NEVER_FITS = 4,
  /* The demand does not fit at this moment; retry after a release or a fence. */
  KVC_NOT_NOW = 5,
  /* Another user holds the object (sequences still open, a second drainer). */
  KVC_BUSY = 6,
  /* The stream is sealed and everything in it has been drained. */
  KVC_END = 7,
  /* Host memory is exhausted, or the device's, or the threads that the system allows a
   * process (system_code EAGAIN then): the message says which, and what helps. */
  KVC_OUT_OF_MEMORY = 8,
  /* The device reported an error or was misused. */
  KVC_DEVICE_ERROR = 9,
  /* kvc_manager_check found a broken invariant; the message names it. */
  KVC_CORRUPT = 10,
  /* A defect in the library. */
  KVC_INTERNAL = 11,
  /* No driver that can be used, none opened yet (kvc_cuda_open), or it sees no device; the
   * message says why and what helps, kvc_error.cause the former as a number. A wrong ordinal
   * is KVC_INVALID_ARGUMENT. */
  KVC_NO_DEVICE = 12
};

typedef uint32_t kvc_cause;
/* Why a call is KVC_NO_DEVICE. The numbers never change; others may be added. Where the driver
 * has refused to be initialised its number is kvc_error.system_code. */
enum {
  KVC_CAUSE_NONE = 0,         /* the status says it all */
  KVC_CAUSE_NOT_OPENED = 1,   /* kvc_cuda_open has not been called with success */
  KVC_CAUSE_ABSENT = 2,       /* no libcuda on this machine */
  KVC_CAUSE_BROKEN = 3,       /* a libcuda that does not load, or is no driver */
  KVC_CAUSE_TOO_OLD = 4,      /* a driver older than CUDA 11.8 */
  KVC_CAUSE_STUB = 5,         /* the toolkit's stub library in the driver's place */
  KVC_CAUSE_FORBIDDEN = 6,    /* this process may not open the library, or /dev/nvidia* */
  KVC_CAUSE_NOT_READY = 7,    /* 802: the fabric manager is not up */
  KVC_CAUSE_MISMATCH = 8,     /* 803: library and kernel module are of different releases */
  KVC_CAUSE_INCOMPATIBLE = 9, /* 804: forward compatibility on a GPU that has none */
  KVC_CAUSE_NO_GPU = 10,      /* a driver, but no GPU that this process may see */
  KVC_CAUSE_MPS = 11,         /* 805 to 809: the Multi-Process Service does not serve us */
  KVC_CAUSE_INIT_FAILED = 12, /* cuInit has failed otherwise */
  KVC_CAUSE_FORKED = 13       /* the driver was opened by the process that this one was forked
                                 from */
};

/* Caller-owned. Filled when a call does not return KVC_OK, and with the story of
 * the first item that failed when one does but an item's status is not KVC_OK;
 * otherwise status is KVC_OK afterwards and the message empty. */
typedef struct kvc_error {
  kvc_status status;
  int32_t system_code; /* errno or driver code behind it, or 0 */
  kvc_cause cause;     /* of KVC_NO_DEVICE, else KVC_CAUSE_NONE */
  char message[244];   /* one line, NUL-terminated, UTF-8 */
} kvc_error;

/* The ABI version the library was built with; compare with KVC_ABI_VERSION. */
KVC_API uint32_t kvc_abi_version(void) KVC_NOEXCEPT;
/* "MAJOR.MINOR.PATCH", static storage. */
KVC_API const char* kvc_version(void) KVC_NOEXCEPT;
/* A short static name such as "not now"; "unknown status" for other numbers. */
KVC_API const char* kvc_status_name(kvc_status status) KVC_NOEXCEPT;
/* Static name of the SHA-256 code chosen at run time: "sha-ni" or "portable". */
KVC_API const char* kvc_sha256_backend(void) KVC_NOEXCEPT;

/* What is alive in the process; zero at the end of a clean program. */
typedef struct kvc_live_handles {
  uint64_t managers;
  uint64_t sequences;
  uint64_t streams;
  uint64_t snapshots;
} kvc_live_handles;
KVC_API void kvc_live_handles_get(kvc_live_handles* out) KVC_NOEXCEPT;

/* ------------------------------------------------------------------ stream */

/* How a 32-byte block key becomes the hash on the wire. */
typedef uint32_t kvc_hash_form;
enum {
  KVC_HASH_SIGNED64 = 0,   /* first 8 bytes, big-endian, two's complement */
  KVC_HASH_UNSIGNED64 = 1, /* last 8 bytes, big-endian */
  KVC_HASH_PORTABLE63 = 2, /* first8 >> 1; if below 2^32, bit 62 is set */
  KVC_HASH_BYTES = 3       /* the whole key; hashes[] then holds its first 8 */
};

/* What a stream tells of blocks with digest tokens (see KVC_DIGEST_TOKEN). */
typedef uint32_t kvc_multimodal;
enum {
  /* Nothing, nor of the blocks below them: multimodal_blocks_suppressed counts
   * them. They are reused like all others. */
  KVC_MULTIMODAL_SUPPRESS = 0,
  /* The same as of others; the digests come in multimodal[]. For drainers that have
   * words for them. */
  KVC_MULTIMODAL_ANNOUNCE = 1
};

typedef struct kvc_stream_config {
  uint32_t struct_size;
  kvc_hash_form hash_form;       /* default KVC_HASH_SIGNED64 */
  uint32_t max_entries;          /* stored blocks that may wait undrained, > 0; default 50000 */
  uint32_t max_blocks_per_event; /* 0 = as many as the wire allows (65536) */
  kvc_multimodal multimodal;     /* default KVC_MULTIMODAL_SUPPRESS */
} kvc_stream_config;

/* The event stream of one manager: a sink that the manager writes and a
 * projector that one drainer reads. */
typedef struct kvc_stream kvc_stream;

KVC_API void kvc_stream_config_init(kvc_stream_config* config) KVC_NOEXCEPT;

/* Creates a stream that is not attached yet. Memory for its record buffer is
 * taken when a manager is created on it. */
KVC_API kvc_status kvc_stream_create(const kvc_stream_config* config, kvc_stream** out,
                                     kvc_error* error) KVC_NOEXCEPT;

/* Detaches the stream from its manager (which then records nothing any more)
 * and frees it. Any batch borrowed from it becomes invalid. Must not run
 * beside a kvc_stream_drain of the same stream. NULL is allowed. */
KVC_API void kvc_stream_destroy(kvc_stream* stream) KVC_NOEXCEPT;

typedef uint32_t kvc_event_kind;
enum { KVC_EVENT_STORED = 1, KVC_EVENT_REMOVED = 2, KVC_EVENT_CLEARED = 3 };

enum {
  KVC_EVENT_HAS_PARENT = 1u, /* else the first block hangs on the root */
};

/* The tier a block is reusable in: device, host or disk, in the wire's words. */
typedef uint16_t kvc_medium;
enum { KVC_MEDIUM_GPU = 0, KVC_MEDIUM_CPU = 1, KVC_MEDIUM_STORAGE = 2 };

/* One event of a drained batch. Offsets and counts are in elements. */
typedef struct kvc_event {
  kvc_event_kind kind;
  uint32_t flags;       /* KVC_EVENT_HAS_PARENT */
  uint32_t scope;       /* stored: index into scopes[]; else 0 */
  uint32_t block_size;  /* stored: tokens per block; else 0 */
  uint64_t hash_offset; /* into hashes[] (and digests[], 32 bytes each) */
  uint64_t hash_count;
  uint64_t token_offset; /* stored: into tokens[]; block_size x hash_count of them */
  uint64_t token_count;
  uint64_t parent_hash; /* with KVC_EVENT_HAS_PARENT, in the stream's form */
  uint16_t group;
  kvc_medium medium;
  uint32_t multimodal_count;  /* stored: digest tokens among the event's tokens */
  uint64_t multimodal_offset; /* of their digests in multimodal[], in the tokens' order */
} kvc_event;

/* Which parts of a scope are present. The numbers are the mask bits of the root
 * key (TensorRT-LLM: LoRA id and salt; the others extend it). */
enum {
  KVC_SCOPE_LORA_ID = 1u,
  KVC_SCOPE_SALT = 2u, /* numeric */
  KVC_SCOPE_LORA_NAME = 4u,
  KVC_SCOPE_SALT_BYTES = 8u
};

/* What of a scope may go on the wire: salts never do. */
typedef struct kvc_event_scope {
  uint32_t parts; /* KVC_SCOPE_LORA_ID, KVC_SCOPE_LORA_NAME or both or none */
  uint32_t lora_name_size;
  uint64_t lora_name_offset; /* into strings[], UTF-8, not NUL-terminated */
  uint64_t lora_id;
} kvc_event_scope;

/* A drained batch, structure of arrays, all borrowed until the next
 * kvc_stream_drain or kvc_stream_destroy on the same stream. */
typedef struct kvc_borrowed_batch {
  const kvc_event* events;
  const uint64_t* hashes;
  const uint8_t* reasons;        /* per hash: KVC_EVICTED_* of a removed block, 0 of a stored one */
  const uint8_t* digests;        /* KVC_HASH_BYTES: 32 bytes per hash, else NULL */
  const uint8_t* parent_digests; /* KVC_HASH_BYTES: 32 bytes per event, else NULL */
  const uint32_t* tokens;        /* KVC_DIGEST_TOKEN(i): the event's i-th digest */
  const kvc_event_scope* scopes;
  const char* strings;
  const uint8_t* multimodal; /* 32 bytes per digest token */
  uint64_t event_count;
  uint64_t hash_count;
  uint64_t token_count;
  uint64_t scope_count;
  uint64_t string_size;
  uint64_t multimodal_count;
  uint64_t remaining_bytes; /* record bytes that wait behind this batch */
  uint64_t pending_blocks;  /* deferred blocks that have not been announced yet */
} kvc_borrowed_batch;

/*
 * Drains one batch: whole events only, up to max_events events and max_blocks
 * block hashes (0 = no limit; one larger event comes alone). A cleared event
 * always comes alone. Records that a later clear supersedes are skipped.
 *
 * When nothing is left to drain, up to 256 deferred blocks are healed if the
 * manager's lock is free at that moment, for at most 50 us; what was healed
 * comes with the next drain.
 *
 * KVC_OK with event_count 0 means "nothing now", KVC_END that the manager is
 * gone and everything has been drained. Never waits. One drainer at a time: a
 * second one gets KVC_BUSY.
 */
KVC_API kvc_status kvc_stream_drain(kvc_stream* stream, uint64_t max_events, uint64_t max_blocks,
                                    kvc_borrowed_batch* out, kvc_error* error) KVC_NOEXCEPT;

/* What a stream had announced at one moment. */
typedef struct kvc_snapshot kvc_snapshot;

/*
 * Opens a snapshot: all blocks that are announced as of the last drain of the
 * stream, neither more nor less, whatever is recorded and drained afterwards. It
 * is made at once (some lists are copied, the blocks are not), by the drainer or
 * by whoever knows that no drain is running.
 *
 * As long as it is open, drains copy what they change of it, at most once: never
 * more than the size of the mirror in all, taken here the first time (untouched)
 * and used again. KVC_BUSY: a drain is running, or another snapshot of the stream
 * is open; KVC_OUT_OF_MEMORY: nothing has changed. The snapshot outlives its stream
 * and manager. To be closed.
 */
KVC_API kvc_status kvc_stream_snapshot_open(kvc_stream* stream, kvc_snapshot** out,
                                            kvc_error* error) KVC_NOEXCEPT;

/*
 * Lends the next batch of it, of at most max_events events and max_blocks block
 * hashes (0 = no limit). There are only stored events, in the stream's form: each
 * announced wire hash once, a parent before its children. A subscriber that begins
 * with a cleared event and hears all of it knows what the stream's subscribers knew
 * at that moment.
 *
 * The batch is borrowed until the next call or kvc_stream_snapshot_close on the
 * same snapshot, not by what happens to the stream; remaining_bytes and
 * pending_blocks are 0. KVC_END: all has been told; KVC_OUT_OF_MEMORY: nothing is
 * lost, a later call goes on. One thread at a time; beside drains, and without
 * holding them up.
 */
KVC_API kvc_status kvc_stream_snapshot_next(kvc_snapshot* snapshot, uint64_t max_events,
                                            uint64_t max_blocks, kvc_borrowed_batch* out,
                                            kvc_error* error) KVC_NOEXCEPT;

/* From any thread, but not beside kvc_stream_snapshot_next; never waits. NULL is
 * allowed. */
KVC_API void kvc_stream_snapshot_close(kvc_snapshot* snapshot) KVC_NOEXCEPT;

/* Counters of a stream. Names that TensorRT-LLM's streaming sink has too mean
 * the same. At each instant
 *   deferred_blocks == healed_blocks + deferred_evicted_blocks + pending_blocks,
 *   announced_blocks == stored_blocks - removed_blocks - cleared_blocks. */
typedef struct kvc_stream_stats {
  uint32_t struct_size;
  uint32_t attached;                  /* 1 while a manager writes it */
  uint64_t stored_blocks;             /* recorded as stored, healed ones included */
  uint64_t removed_blocks;            /* recorded as removed */
  uint64_t cleared_blocks;            /* announced blocks that a clear ended */
  uint64_t clears;                    /* clear records */
  uint64_t dropped_events;            /* stores that did not fit or whose parent was unannounced */
  uint64_t deferred_blocks;           /* of those: put on the list to be announced later */
  uint64_t healed_blocks;             /* deferred, later announced */
  uint64_t deferred_evicted_blocks;   /* deferred, gone before they could be announced */
  uint64_t pending_blocks;            /* deferred at this instant */
  uint64_t unannounced_removals;      /* blocks that went without having been announced */
  uint64_t partial_blocks_suppressed; /* partly filled last blocks of released sequences */
  uint64_t announced_blocks;          /* announced at this instant */
  uint64_t hash_collisions;           /* announced blocks whose 64-bit wire hash was taken */
  uint64_t superseded_records;        /* records skipped because a clear followed */
  uint64_t drained_batches;           /* non-empty batches handed out */
  uint64_t drained_events;
  uint64_t drained_stored_blocks;        /* block hashes in drained stored events */
  uint64_t drained_removed_blocks;       /* block hashes in drained removed events */
  uint64_t mirror_blocks;                /* blocks in the projector's mirror */
  uint64_t buffer_bytes;                 /* size of the record buffer */
  uint64_t buffer_used_bytes;            /* of that, waiting for the drainer */
  uint64_t multimodal_blocks_suppressed; /* stored, but not told of: KVC_MULTIMODAL_SUPPRESS */
  uint64_t suppressed_blocks;            /* such blocks in the tree at this instant */
  uint64_t oldest_deferred_ns; /* how long the oldest of pending_blocks has waited; 0: none has */
  /* removed_blocks by reason (kvc_evicted_reason), their sum */
  uint64_t removed_capacity_blocks;
  uint64_t removed_ttl_blocks;
  uint64_t removed_ended_blocks;
  uint64_t removed_scope_blocks;
} kvc_stream_stats;

KVC_API void kvc_stream_stats_init(kvc_stream_stats* stats) KVC_NOEXCEPT;
/* Lock-free; may run beside a drain. Each value is exact, the set of them is
 * taken while the manager may be running: exact as a set when it is not. */
KVC_API kvc_status kvc_stream_stats_get(const kvc_stream* stream, kvc_stream_stats* out,
                                        kvc_error* error) KVC_NOEXCEPT;

/* ----------------------------------------------------------------- manager */

typedef uint32_t kvc_device_kind;
enum {
  KVC_DEVICE_HOST = 0,
  KVC_DEVICE_CUDA = 1 /* after kvc_cuda_open */
};

enum {
  /* Host device: freed pages are filled with a pattern and checked before they
   * are handed out again, so that a late write shows. */
  KVC_CONFIG_POISON = 1u,
  /* CUDA: the context that is current on the thread that creates the manager, and
   * that outlives it, instead of the primary one of device_ordinal. */
  KVC_CONFIG_CALLERS_CONTEXT = 2u
};

/* Which of the blocks of one priority goes first. */
typedef uint32_t kvc_policy;
enum {
  KVC_POLICY_LRU = 0, /* the least recently used */
  /* The one that is worth least, each use being worth 1 at first and half of it
   * lrfu_tau requests later. Blocks that went are remembered (lrfu_ghosts). Better
   * when pages are scarce; takes 4 bytes more for each page and 8 for each ghost. */
  KVC_POLICY_LRFU = 1
};

/* CUDA: who copies pages (forks, partly filled blocks that were matched). */
typedef uint32_t kvc_copy_method;
enum {
  KVC_COPY_CALIBRATED = 0, /* whoever was faster when the manager was made: takes up to 50 ms */
  KVC_COPY_PUBLISHED = 1,  /* by figures that others have published, without measuring */
  KVC_COPY_ENGINE = 2,     /* always the copy engine */
  KVC_COPY_KERNEL = 3      /* a kernel, however the pieces lie, if it can be (docs/gpu.md) */
};

typedef struct kvc_config {
  uint32_t struct_size;
  uint32_t flags;                /* KVC_CONFIG_* */
  kvc_device_kind device;        /* default KVC_DEVICE_HOST */
  uint32_t tokens_per_block;     /* 1..4096; default 16 */
  uint32_t capacity_blocks;      /* pages in the pool, 1..2^27; default 20000 */
  uint32_t max_sequences;        /* open at once, 1..2^20; default 4096 */
  uint64_t page_bytes;           /* device bytes per page; 0 = bookkeeping only (default) */
  uint64_t seed;                 /* of the tree's hash and of the host device's order;
                                    0 = random (default; clients choose the tokens) */
  uint32_t resume_gate_permille; /* no sequence becomes active while more than this share of the
                                    pool is live, unless none is; 1..1000 (1000 = no gate);
                                    default 970, as TensorRT-LLM's 0.97 */
  kvc_policy policy;             /* default KVC_POLICY_LRU */
  uint32_t lrfu_tau;             /* KVC_POLICY_LRFU: requests in which a use loses half of its
                                    worth, at least 1; default 1000 */
  uint32_t max_pinned_pages;     /* of all pins together, a page counting once for each;
                                    0 = a quarter of capacity_blocks (default) */
  uint32_t lrfu_ghosts;          /* KVC_POLICY_LRFU: blocks to remember that went, 8 bytes each,
                                    in sets of eight: rounded down to these, at least one; 0 = as
                                    many as the pool can have pages (default): max_blocks of an
                                    elastic one, else capacity_blocks */
  uint32_t device_ordinal;       /* which of the device's kind; default 0 */
  uint32_t max_digests;          /* different multimodal digests in use at once, up to 2^24;
                                    0 = as many as blocks and tails can hold (default). Memory
                                    (72 bytes each) is taken as they come */
  kvc_copy_method copies;        /* default KVC_COPY_CALIBRATED; of CUDA devices with memory */
  uint32_t max_pending_blocks;   /* marked at once, see KVC_PROMPT_MARK, up to 2^27; 0 = as many as
                                    the pool can have pages (default), as lrfu_ghosts. Memory (40
                                    bytes each) is taken as they come */
  uint32_t partial_reuse;        /* 1: partly filled blocks are reused too, see
                                    kvc_sequences_create; 0 = whole blocks only (default) */
  uint32_t max_blocks;           /* pages that kvc_pool_resize can grow the pool to, up to 2^27:
                                    arenas and addresses are for so many from the start;
                                    0 = capacity_blocks for ever (default). Memory for more
                                    than capacity_blocks needs a device that can map it, see
                                    kvc_cuda_device.virtual_memory */
  uint32_t min_blocks;           /* with max_blocks: what it can shrink to; the memory of so many
                                    pages is never given back; 0 = capacity_blocks (default) */
} kvc_config;

typedef struct kvc_manager kvc_manager;

KVC_API void kvc_config_init(kvc_config* config) KVC_NOEXCEPT;

/* Creates a manager with all its arenas allocated and touched. `stream` may be
 * NULL (no events) or a stream no manager has used before, else KVC_BUSY. An elastic pool
 * on a GPU has a thread of its own: KVC_OUT_OF_MEMORY, with nothing left behind, where the
 * system starts none. */
KVC_API kvc_status kvc_manager_create(const kvc_config* config, kvc_stream* stream,
                                      kvc_manager** out, kvc_error* error) KVC_NOEXCEPT;

/* Seals the stream (what was recorded can still be drained, then KVC_END) and
 * frees the manager. KVC_BUSY, with nothing changed, while sequences are open.
 * Must not run beside any other call on the manager. NULL is allowed. */
KVC_API kvc_status kvc_manager_destroy(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT;

/* What must be equal for reuse besides the tokens. Offsets are into the bytes[]
 * array of the call. Names and salts: 1..255 bytes, names valid UTF-8. A LoRA
 * name, when given, takes the id's place in the key (the id still goes on the
 * wire), so that the order in which adapters are loaded does not change keys. */
typedef struct kvc_scope {
  uint32_t parts; /* KVC_SCOPE_* */
  uint32_t reserved;
  uint64_t lora_id; /* 0..2^63-1 */
  uint64_t salt;
  uint64_t lora_name_offset;
  uint64_t salt_bytes_offset;
  uint32_t lora_name_size;
  uint32_t salt_bytes_size;
} kvc_scope;

/* Tokens of prompts and commits are below 2^31, or stand for the 32-byte digest
 * of a multimodal item (an image, say): this is the token of the i-th of the
 * digests that come with the prompt or commit, in bytes[] of the call. Equal digests are
 * equal tokens, whatever their places in the arrays; in the block's key a digest
 * contributes its 32 bytes. A prompt with a digest that no block has matches up
 * to the block before. */
#define KVC_DIGEST_BIT 0x80000000u
#define KVC_DIGEST_TOKEN(i) (KVC_DIGEST_BIT | (uint32_t)(i))

/* kvc_prompt.scope: the empty scope. */
#define KVC_NO_SCOPE UINT32_MAX
/* kvc_prompt.must_compute: a full hit may leave nothing to compute. */
#define KVC_COMPUTE_NOTHING UINT32_MAX

/* A point on a device stream; reached when all work submitted to the stream
 * before it has been executed. Stream 0 is the host itself: always reached. */
typedef struct kvc_fence {
  uint64_t device_stream;
  uint64_t position;
} kvc_fence;

/* A result names the first so many fences; kvc_sequence_waits gives all of them. */
#define KVC_MAX_WAITS 4

/* kvc_prompt.flags */
enum {
  /* The sequence begins suspended: it holds nothing until kvc_sequences_resume
   * matches the prompt. */
  KVC_PROMPT_SUSPENDED = 1u,
  /* stop_before counts. */
  KVC_PROMPT_STOP_BEFORE = 2u,
  /* Whoever asks for the same blocks learns that the sequence computes them: from when
   * it becomes active its whole blocks behind the match are marked as pending. */
  KVC_PROMPT_MARK = 4u,
  /* If an older sequence has marked the block behind the match, the sequence begins
   * suspended, as with KVC_PROMPT_SUSPENDED, and waits; else it is active. */
  KVC_PROMPT_WAIT = 8u
};

typedef struct kvc_prompt {
  uint64_t token_offset;  /* into tokens[] of the call */
  uint64_t token_count;   /* each token below 2^31, or KVC_DIGEST_TOKEN */
  uint64_t device_stream; /* where the sequence's kernels will run; 0 = none */
  uint32_t scope;         /* index into scopes[], or KVC_NO_SCOPE */
  uint32_t must_compute;  /* tokens at the end that a match must leave to compute, so that a
                             full hit has something to run; 0 = the default, 1 */
  uint32_t flags;         /* KVC_PROMPT_* */
  uint32_t match_backoff; /* tokens that a create, its resume or a probe leaves out at the end of
                             what it matches, whole blocks going: for drafts that need the last ones
                             computed anew */
  uint64_t stop_before;   /* with KVC_PROMPT_STOP_BEFORE: no block that holds the token at this
                             position (from 0) or a later one is made reusable by the sequence */
  uint64_t digest_offset; /* of its digests in bytes[] of the call, 32 bytes each */
  uint32_t digest_count;
  uint32_t reserved;
} kvc_prompt;

typedef struct kvc_create_result {
  kvc_status status;
  uint32_t wait_count; /* fences the device stream must wait for before it reads; waits[] has the
                          first KVC_MAX_WAITS, kvc_sequence_waits all of them */
  uint64_t sequence;
  uint64_t matched_tokens;   /* already committed; a multiple of tokens_per_block, unless
                                partial_reuse found more */
  uint64_t pending_tokens;   /* behind what is resident, that an older sequence computes; whole
                                blocks, no more than a match could use */
  uint64_t pending_sequence; /* that sequence, or 0 */
  uint32_t copied_tokens;    /* partial_reuse: of matched_tokens, the last ones, which are copied to
                                a page of the sequence's own; else 0 */
  uint32_t copied_from;      /* the page they are copied from */
  uint32_t copied_to;        /* the sequence's last page */
  uint32_t reserved;
  kvc_fence waits[KVC_MAX_WAITS];
} kvc_create_result;

/* Opens sequences: matches the prompt against the tree and holds what was
 * found. Takes no page from the pool, but for one with partial_reuse. Per item:
 * INVALID_ARGUMENT, NOT_NOW (max_sequences are open, or the gate of
 * resume_gate_permille is closed), STALE_HANDLE (the device stream), DEVICE_ERROR (a copy
 * could not be queued), OUT_OF_MEMORY.
 *
 * A sequence is active, suspended or, once released, closed: then its id is
 * stale. Grow, commit, truncate and stop need an active one, else BAD_STATE.
 * With KVC_PROMPT_SUSPENDED nothing is held and matched_tokens says what a
 * resume would find now. The gate: while another sequence is active and
 * live_pages x 1000 > resume_gate_permille x total_pages no sequence becomes
 * active. The first one always may, so that a full pool cannot stay so.
 *
 * With kvc_config.partial_reuse the partly filled last block of a sequence that is
 * released stays reusable as whole blocks do (not if it was cancelled, ended, stopped or is
 * shared): its *tail*. A sequence that begins active and without match_backoff may then
 * match tokens behind the last whole block: of the newest 32 tails and blocks that
 * follow it, those that it has in common with the one that agrees longest. They
 * are copied to a page of its own (copied_tokens), as a grow copies for forks (what of the
 * page lies behind them, too, see kvc_sequences_fork): without
 * page_bytes the engine does it after the waits, before anything that it does with pages
 * of later calls. Nothing is evicted for a copy, and none is made that would have to
 * wait on a device stream for a step, or that would be the engine's on one. Where there can be
 * none, a tail of which all is in common becomes the sequence's as it is (copied_tokens 0);
 * anything else is not matched. Tails are evicted and dropped like blocks, stand in
 * evicted[] and the counts beside it (announced: 0), and in no event, pin, probe or
 * resident set. */
KVC_API kvc_status kvc_sequences_create(kvc_manager* manager, uint32_t count,
                                        const kvc_prompt* prompts, const uint32_t* tokens,
                                        uint64_t token_count, const kvc_scope* scopes,
                                        uint32_t scope_count, const uint8_t* bytes,
                                        uint64_t byte_count, kvc_create_result* results,
                                        kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_probe_result {
  kvc_status status;
  uint32_t reserved;
  uint64_t matched_tokens;
  uint64_t pending_tokens; /* as in kvc_create_result */
} kvc_probe_result;

/* As kvc_sequences_create, but only looks: changes nothing, not even the order
 * of eviction, and lets writers pass every 256 blocks. A hint: the tree may
 * change while it looks. */
KVC_API kvc_status kvc_probe(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                             const uint32_t* tokens, uint64_t token_count, const kvc_scope* scopes,
                             uint32_t scope_count, const uint8_t* bytes, uint64_t byte_count,
                             kvc_probe_result* results, kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_residency_result {
  kvc_status status;
  uint32_t resident_blocks; /* of the prompt's first blocks, told in blocks[] */
  uint64_t first_block;     /* where they begin in blocks[] */
} kvc_residency_result;

enum {
  KVC_BLOCK_ANNOUNCED = 1u, /* the stream has told of it */
  KVC_BLOCK_HELD = 2u       /* somebody holds it: it cannot be evicted */
};

/* A block of a prompt that is resident. */
typedef struct kvc_block_residency {
  uint64_t block;  /* id; see KVC_NO_BLOCK */
  uint32_t copies; /* that hold its content, over all tiers: 1 with one tier */
  uint32_t flags;  /* KVC_BLOCK_* */
} kvc_block_residency;

/* As kvc_probe, block by block: where the blocks of prompts are. What is not
 * found has no copy and no entry, and no block after it has. Per item besides:
 * INVALID_ARGUMENT when blocks[] has no room for what was found, resident_blocks
 * being the room it needs. */
KVC_API kvc_status kvc_residency(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                                 const uint32_t* tokens, uint64_t token_count,
                                 const kvc_scope* scopes, uint32_t scope_count,
                                 const uint8_t* bytes, uint64_t byte_count, uint64_t block_capacity,
                                 kvc_block_residency* blocks, kvc_residency_result* results,
                                 kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_grow_item {
  uint64_t sequence;
  uint64_t capacity_tokens; /* room the sequence must have; less than it has = no-op */
} kvc_grow_item;

typedef struct kvc_grow_result {
  kvc_status status;
  uint32_t added_pages;
  uint32_t evicted_blocks;
  uint32_t leaving_pages; /* NOT_NOW: pages that nobody holds, but that fences keep from this
                             sequence's stream, directly or through a block built on theirs; not
                             doomed ones (kvc_pool_resize): these do not come */
  uint32_t first_evicted; /* where the item's blocks begin in evicted[], or KVC_NOT_TOLD */
  uint32_t copied_block;  /* the block whose page was shared with a fork and is a copy now; else
                             KVC_NO_COPY, and what follows is 0 */
  uint32_t copied_from;   /* the page that was shared */
  uint32_t copied_to;     /* the sequence's own now; one of added_pages */
  uint32_t copied_tokens; /* that they have in common, from the first one on */
  uint32_t wait_count;    /* 1 if `wait` is to be waited for before the copy is used: it was not
                             made on the sequence's own device stream */
  kvc_fence wait;
} kvc_grow_result;

/* kvc_grow_result.copied_block: nothing was copied. */
#define KVC_NO_COPY UINT32_MAX

/* A block's id is its generation << 32 | its place in the tree: never used twice
 * by one manager. */
#define KVC_NO_BLOCK UINT64_MAX
/* kvc_grow_result.first_evicted: nothing was evicted, or evicted[] had no room. */
#define KVC_NOT_TOLD UINT32_MAX

typedef uint32_t kvc_evicted_reason;
enum {
  KVC_EVICTED_CAPACITY = 1, /* its page was needed */
  KVC_EVICTED_TTL = 2,      /* so, and the time of a higher priority was up */
  KVC_EVICTED_ENDED = 3,    /* so, and its conversation was over */
  KVC_EVICTED_SCOPE = 4     /* its scope was dropped */
};

/* A block that left the tree. */
typedef struct kvc_evicted_block {
  uint64_t block;
  uint64_t parent; /* the block before it, or KVC_NO_BLOCK: it was a prompt's first */
  uint32_t page;   /* that held it; whoever evicted it has it now */
  kvc_evicted_reason reason;
  uint32_t copies;    /* that hold its content still, over all tiers: 0 with one tier */
  uint32_t announced; /* 1 if the stream had told of it, and tells of its removal */
  uint32_t priority;  /* its own; 0 for KVC_EVICTED_ENDED */
  uint32_t reserved;
} kvc_evicted_block;

/* Gives sequences room, all or nothing for each item, evicting blocks that nobody
 * holds: those of ended conversations, then those of the lowest priority, and of
 * these the least recently used. A block never goes before its children. Per item: NEVER_FITS (more
 * than the whole pool), NOT_NOW, STALE_HANDLE, DEVICE_ERROR (KVC_CONFIG_POISON: a page was written
 * after it had been given up, or no copy could be queued), OUT_OF_MEMORY. Nothing is evicted unless
 * the demand is met.
 *
 * Room is what a sequence may write. So whoever shares a partly filled last block
 * with a fork (kvc_sequences_fork) grows before it writes, also into a block that it
 * has: an item that asks for more than what is committed gets a page of its own in the
 * shared one's place, with a copy of what is committed in it; the last who holds it
 * writes in place. The copy is queued on the sequence's device stream; for the host
 * (stream 0) and streams of steps on one of the library's own, and result.wait says
 * when it is done. Pages without memory (page_bytes 0) are copied by the engine, as
 * result says, before anything else that it does with pages of later calls. NOT_NOW also
 * when a device stream would have to wait for a step of the host to make the copy.
 *
 * What was evicted is told in evicted[0..evicted_capacity), item by item, children
 * before parents; *evicted_count is the number of entries written. The blocks of an
 * item are told whole or not at all: the item's evicted_blocks with first_evicted
 * KVC_NOT_TOLD says that they did not fit. As many entries as the items ask for
 * pages always suffice, but while the pool shrinks: blocks in doomed pages may have
 * to go first. NULL, 0, NULL: not wanted. */
KVC_API kvc_status kvc_sequences_grow(kvc_manager* manager, uint32_t count,
                                      const kvc_grow_item* items, kvc_grow_result* results,
                                      kvc_evicted_block* evicted, uint32_t evicted_capacity,
                                      uint32_t* evicted_count, kvc_error* error) KVC_NOEXCEPT;

/* kvc_commit_item.flags */
enum {
  /* The pages were filled from outside (by a transfer, say): they are ready at
   * `fence`, not where the sequence's device stream stands. Who takes the blocks, or moves
   * them, waits for `fence` alone: it must come after all that this stream has been given
   * to write into them. */
  KVC_COMMIT_FENCE = 1u
};

typedef struct kvc_commit_item {
  uint64_t sequence;
  uint64_t token_offset;
  uint64_t token_count;
  uint32_t flags; /* KVC_COMMIT_* */
  uint32_t digest_count;
  kvc_fence fence;        /* with KVC_COMMIT_FENCE; stream 0: ready now */
  uint64_t digest_offset; /* of the digests in bytes[] of the call, 32 bytes each */
} kvc_commit_item;

typedef struct kvc_commit_result {
  kvc_status status;
  uint32_t stored_blocks;       /* new in the tree */
  uint32_t deduplicated_blocks; /* found in the tree; our page was given back for theirs */
  uint32_t first_changed_block; /* lowest block whose page changed, or UINT32_MAX */
  uint64_t committed_tokens;    /* in all, the partly filled tail included */
  uint32_t wait_count;          /* fences of the pages that replaced ours */
  uint32_t reserved;
  kvc_fence waits[KVC_MAX_WAITS];
} kvc_commit_result;

/* Appends tokens whose KV values have been (or, on the sequence's device
 * stream, will be) computed; each block that becomes full becomes reusable.
 * Records a fence on the sequence's device stream for the pages published or
 * given back. Per item: BAD_STATE (more than the capacity), STALE_HANDLE,
 * INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_NOW (max_digests different digests are in
 * use), NEVER_FITS (the item alone has more). BAD_STATE also for tokens in a last block
 * that a fork shares: grow first. */
KVC_API kvc_status kvc_sequences_commit(kvc_manager* manager, uint32_t count,
                                        const kvc_commit_item* items, const uint32_t* tokens,
                                        uint64_t token_count, const uint8_t* bytes,
                                        uint64_t byte_count, kvc_commit_result* results,
                                        kvc_error* error) KVC_NOEXCEPT;

/* Writes all fences that the last create, fork, resume, commit or copying grow of the sequence
 * named, into fences[0..capacity). *count is their number, at most 63, also when it exceeds
 * `capacity` (then KVC_INVALID_ARGUMENT and nothing else is written). */
KVC_API kvc_status kvc_sequence_waits(kvc_manager* manager, uint64_t sequence, uint32_t capacity,
                                      kvc_fence* fences, uint32_t* count,
                                      kvc_error* error) KVC_NOEXCEPT;

/* Closes sequences. Committed blocks stay reusable and join the eviction list,
 * last block first; other pages go back to the pool behind a fence on the
 * sequence's device stream. results[i]: OK or STALE_HANDLE. */
KVC_API kvc_status kvc_sequences_release(kvc_manager* manager, uint32_t count,
                                         const uint64_t* sequences, kvc_status* results,
                                         kvc_error* error) KVC_NOEXCEPT;

/* Closes sequences whose requests were given up. As kvc_sequences_release, but
 * nothing becomes reusable by it: blocks that have been committed stay, a partly
 * filled one is not kept. Cancelled before its first commit a sequence leaves no
 * block and no event behind. results[i]: OK or STALE_HANDLE. */
KVC_API kvc_status kvc_sequences_cancel(kvc_manager* manager, uint32_t count,
                                        const uint64_t* sequences, kvc_status* results,
                                        kvc_error* error) KVC_NOEXCEPT;

/* kvc_hold_item.flags */
enum {
  /* As kvc_sequences_cancel, not kvc_sequences_release, once the hold ends. */
  KVC_HOLD_CANCEL = 1u
};

typedef struct kvc_hold_item {
  uint64_t sequence;
  uint32_t count; /* how often the hold must be released, > 0 */
  uint32_t flags; /* KVC_HOLD_CANCEL */
} kvc_hold_item;

typedef struct kvc_hold_result {
  kvc_status status;
  uint32_t reserved;
  uint64_t hold;
} kvc_hold_result;

/* Closes active sequences whose pages are still to be read, or written, from
 * outside: by a transfer to another engine, say, one count for each peer. The
 * sequence's id is stale at once; its pages stay where they are until the hold
 * has been released `count` times, and only then follows what a release does. A
 * hold takes the sequence's place among max_sequences. Per item: BAD_STATE
 * (suspended), STALE_HANDLE, INVALID_ARGUMENT. */
KVC_API kvc_status kvc_sequences_release_held(kvc_manager* manager, uint32_t count,
                                              const kvc_hold_item* items, kvc_hold_result* results,
                                              kvc_error* error) KVC_NOEXCEPT;

/* Releases each hold once. results[i]: OK, STALE_HANDLE (released as often as it
 * was counted, or never a hold), OUT_OF_MEMORY (nothing was released). */
KVC_API kvc_status kvc_holds_release(kvc_manager* manager, uint32_t count, const uint64_t* holds,
                                     kvc_status* results, kvc_error* error) KVC_NOEXCEPT;

/* kvc_suspend_item.flags */
enum {
  /* The pages that are not in the tree (the partly filled last block, room, and
   * blocks that are not to be reused) stay with the sequence, unless others need
   * them; else they are given up. */
  KVC_SUSPEND_KEEP = 1u
};

typedef struct kvc_suspend_item {
  uint64_t sequence;
  uint32_t flags; /* KVC_SUSPEND_KEEP */
  uint32_t reserved;
} kvc_suspend_item;

/* Suspends active sequences: their blocks in the tree can be evicted, and the
 * sequence remembers their tokens. Kept pages can be taken too, those of the
 * sequence suspended last first, but for whoever has none that the grow could use
 * now, once a grow finds nothing else: suspended sequences never stand in the way of
 * who needs room. A shrink moves kept pages (kvc_pool_resize), after what has been
 * submitted to the sequence's own device stream: whoever else writes them, a transfer, say,
 * has ended, or has told its fence (KVC_COMMIT_FENCE), before the sequence is suspended,
 * or what it writes then is lost. A reset takes kept pages as well (what
 * they hold is of the old weights), but not those of a sequence that was detached
 * before it was suspended.
 * results[i]: OK, BAD_STATE (suspended already), STALE_HANDLE, INVALID_ARGUMENT,
 * OUT_OF_MEMORY. */
KVC_API kvc_status kvc_sequences_suspend(kvc_manager* manager, uint32_t count,
                                         const kvc_suspend_item* items, kvc_status* results,
                                         kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_resume_result {
  kvc_status status;
  uint32_t wait_count;       /* as in kvc_create_result */
  uint64_t committed_tokens; /* that survived: the sequence goes on behind them */
  uint64_t lost_tokens;      /* committed before, to be computed anew */
  uint64_t pending_tokens;   /* of one that began suspended: as in kvc_create_result */
  uint64_t pending_sequence;
  kvc_fence waits[KVC_MAX_WAITS];
} kvc_resume_result;

/* Makes suspended sequences active again: matches what they had committed (or
 * their prompt, if they began suspended) and holds what is found. Kept pages
 * survive if all blocks before them did. Takes no page from the pool. Per item:
 * NOT_NOW (the gate, see kvc_sequences_create), BAD_STATE (active already),
 * STALE_HANDLE, OUT_OF_MEMORY. */
KVC_API kvc_status kvc_sequences_resume(kvc_manager* manager, uint32_t count,
                                        const uint64_t* sequences, kvc_resume_result* results,
                                        kvc_error* error) KVC_NOEXCEPT;

/*
 * Pending blocks: two requests with the same prefix need not both compute it.
 *
 * KVC_PROMPT_MARK is a promise: the sequence will compute and commit the whole blocks
 * of its prompt behind the match, as far as stop_before lets them be reused. Until it
 * has, whoever creates, probes or resumes a prompt that needs them is told so
 * (pending_tokens) and may wait or compute; the library makes nobody wait.
 *
 * With KVC_PROMPT_WAIT a sequence that would have to wait begins suspended, holds
 * nothing and is noted with the owner of the marks. When its wait is over it is told,
 * once, by kvc_step (output.waiters) or kvc_waiters_take; then resume it. While
 * an older sequence has marked the block behind its match, its resume is KVC_NOT_NOW and it
 * waits for that one: of many that waited for a sequence that has given up, the first
 * to be resumed computes, if it has KVC_PROMPT_MARK too. To compute nevertheless,
 * cancel the sequence and create it without KVC_PROMPT_WAIT.
 *
 * A mark ends when its owner has committed the block, commits something else in its
 * place, is released, held, cancelled, ended or suspended, stops before the block,
 * gives its room back (kvc_sequences_truncate), or is detached by a reset or a dropped scope.
 * A commit that keeps the promise up to the block that a sequence waits for ends the
 * wait as KVC_PENDING_COMMITTED; when nothing of it is left to come, it ends as
 * KVC_PENDING_GIVEN_UP. There is no time-out: the library has no clock. Only suspended
 * sequences wait and only active ones have marks, so no two wait for each other.
 *
 * When max_pending_blocks are marked, or there are too many digests, the rest stays
 * unmarked, which costs nothing but the knowledge (kvc_stats.unmarked_blocks).
 */
typedef uint32_t kvc_pending_outcome;
enum {
  KVC_PENDING_COMMITTED = 1, /* what it waited for is reusable, or was a moment ago */
  KVC_PENDING_GIVEN_UP = 2   /* nobody computes it any more, or not all of it */
};

/* A sequence whose wait is over. */
typedef struct kvc_waiter {
  uint64_t sequence;
  kvc_pending_outcome outcome;
  uint32_t reserved;
} kvc_waiter;

/* Takes up to `capacity` sequences whose waits are over and that have not been told,
 * in the order in which the waits ended; *count is their number. Those that are
 * resumed, released or cancelled before are not told. */
KVC_API kvc_status kvc_waiters_take(kvc_manager* manager, uint32_t capacity, kvc_waiter* waiters,
                                    uint32_t* count, kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_truncate_item {
  uint64_t sequence;
  uint64_t capacity_tokens; /* room to keep, at least what is committed */
} kvc_truncate_item;

typedef struct kvc_truncate_result {
  kvc_status status;
  uint32_t freed_pages;
} kvc_truncate_result;

/* Gives back room that was not committed (rejected speculative tokens), behind a
 * fence on the sequence's device stream. Per item: BAD_STATE (less than what is
 * committed, or suspended), STALE_HANDLE, OUT_OF_MEMORY. */
KVC_API kvc_status kvc_sequences_truncate(kvc_manager* manager, uint32_t count,
                                          const kvc_truncate_item* items,
                                          kvc_truncate_result* results,
                                          kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_stop_item {
  uint64_t sequence;
  uint64_t stop_before; /* as in kvc_prompt; 0: no further block is made reusable */
} kvc_stop_item;

/* Ends, from a position on, the making of reusable blocks; later commits beyond
 * it succeed and create no block. The lowest position given to a sequence counts;
 * blocks that are reusable already stay so. results[i]: OK, BAD_STATE (suspended),
 * STALE_HANDLE. */
KVC_API kvc_status kvc_sequences_stop(kvc_manager* manager, uint32_t count,
                                      const kvc_stop_item* items, kvc_status* results,
                                      kvc_error* error) KVC_NOEXCEPT;

typedef uint32_t kvc_sequence_state;
enum { KVC_SEQUENCE_SUSPENDED = 1, KVC_SEQUENCE_ACTIVE = 2 };
/* As kvc_sequences_release, for conversations that are over: the last blocks of
 * a sequence that nobody else holds and that nothing else is built on go before all
 * others when pages are short. What it shares with others stays as it was. If the
 * conversation does go on, a match gives its blocks the default priority again. */
KVC_API kvc_status kvc_sequences_end(kvc_manager* manager, uint32_t count,
                                     const uint64_t* sequences, kvc_status* results,
                                     kvc_error* error) KVC_NOEXCEPT;

/* Priorities are 0 to 100, larger ones being kept longer. A block is evicted only
 * after its children, so that it counts as much as the largest of them. */
#define KVC_DEFAULT_PRIORITY 35
#define KVC_MAX_PRIORITY 100
/* kvc_retain_item.end_token: blocks that are committed later as well. */
#define KVC_TO_THE_END UINT64_MAX

typedef struct kvc_retain_item {
  uint64_t sequence;
  uint64_t first_token; /* blocks whose first token is in [first_token, end_token) */
  uint64_t end_token;   /* at most what is committed, or KVC_TO_THE_END */
  uint64_t expires_ns;  /* when the blocks return to the default priority, on the clock
                           that kvc_expire is told; 0 = never; beyond 2^63 - 1: as that */
  uint32_t priority;
  uint32_t reserved;
} kvc_retain_item;

/* Says how long blocks of open sequences are worth keeping. The last word counts,
 * whoever shares a block. Later items of a call and later calls go over earlier
 * ones where they overlap. Takes as long as the ranges have blocks; has no effect
 * on a detached sequence. Per item: INVALID_ARGUMENT (also an expires_ns with
 * a priority that is not above the default), BAD_STATE (the range ends beyond what is
 * committed, or the sequence is suspended), NOT_NOW (16 ranges to the end that begin
 * before this one are still ahead), STALE_HANDLE, OUT_OF_MEMORY. */
KVC_API kvc_status kvc_sequences_retain(kvc_manager* manager, uint32_t count,
                                        const kvc_retain_item* items, kvc_status* results,
                                        kvc_error* error) KVC_NOEXCEPT;

/* Tells what time it is: blocks whose time is up return to the default priority,
 * those without children as the most recently used of it. The library has no clock
 * of its own; now_ns is on the one that expires_ns was on. A block is due at its
 * time or up to 134 ms before it; an earlier time than before does nothing. *expired is the number
 * of such blocks. Looks at no more than max_blocks blocks (0 = no limit); then *more is 1 if there
 * may be others, and the next call goes on there. */
KVC_API kvc_status kvc_expire(kvc_manager* manager, uint64_t now_ns, uint32_t max_blocks,
                              uint32_t* expired, uint32_t* more, kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_fork_item {
  uint64_t sequence;
  uint64_t device_stream; /* of the fork; 0 = the host itself */
} kvc_fork_item;

typedef struct kvc_fork_result {
  kvc_status status;
  uint32_t wait_count;       /* as in kvc_create_result */
  uint64_t sequence;         /* the fork */
  uint64_t committed_tokens; /* that it has in common with the other */
  kvc_fence waits[KVC_MAX_WAITS];
} kvc_fork_result;

/* Opens sequences that go on from what others have committed: beams, several
 * answers to one prompt. A fork shares the pages of all committed tokens, the
 * partly filled last block included, and takes none; room that was not committed
 * stays the other's. It has the same scope, stop position and retention of later
 * blocks, is detached if the other is, and from then on they go separate ways, in
 * any order: whoever is the first to write into the shared last block is given a copy
 * by the grow that asks for the room (see kvc_sequences_grow). What had been written but
 * not committed is not shared and must be written anew after that grow. The copy is of the
 * whole page, unless kvc_page_layout_set was called: also of what lies behind copied_tokens,
 * which another holder may be writing at that moment; those bytes mean nothing. Per item: BAD_STATE
 * (suspended), STALE_HANDLE, NOT_NOW (max_sequences are open, or the gate, see
 * kvc_sequences_create), INVALID_ARGUMENT (also device streams, steps apart, of pages without
 * memory: the library cannot guard what the engine copies), OUT_OF_MEMORY. */
KVC_API kvc_status kvc_sequences_fork(kvc_manager* manager, uint32_t count,
                                      const kvc_fork_item* items, kvc_fork_result* results,
                                      kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_pin_result {
  kvc_status status;
  uint32_t pinned_blocks;
  uint64_t pin; /* with a generation; 0 if there was nothing to pin */
} kvc_pin_result;

/* Pins the resident blocks of prompts (as a match would find them), or those of
 * open sequences that are in the tree: until they are unpinned they are neither
 * evicted nor counted as available. Pins are counted: a block stays until all its
 * pins are gone. After a reset, or when its scope is dropped, a pinned page is no
 * block any more and is given up when it is unpinned. Pins end with the manager. Per
 * item: INVALID_ARGUMENT, STALE_HANDLE or BAD_STATE (a suspended sequence),
 * NEVER_FITS (more than max_pinned_pages), NOT_NOW (more than is left of them). */
KVC_API kvc_status kvc_pin_prompts(kvc_manager* manager, uint32_t count, const kvc_prompt* prompts,
                                   const uint32_t* tokens, uint64_t token_count,
                                   const kvc_scope* scopes, uint32_t scope_count,
                                   const uint8_t* bytes, uint64_t byte_count,
                                   kvc_pin_result* results, kvc_error* error) KVC_NOEXCEPT;
KVC_API kvc_status kvc_pin_sequences(kvc_manager* manager, uint32_t count,
                                     const uint64_t* sequences, kvc_pin_result* results,
                                     kvc_error* error) KVC_NOEXCEPT;
/* results[i]: OK, STALE_HANDLE (unpinned already, or never was), OUT_OF_MEMORY. */
KVC_API kvc_status kvc_unpin(kvc_manager* manager, uint32_t count, const uint64_t* pins,
                             kvc_status* results, kvc_error* error) KVC_NOEXCEPT;

/* kvc_drop_item.flags */
enum {
  /* Every scope that has the parts of this one, with their values, and perhaps
   * others: all of an adapter, whatever the salts. Beside a LoRA name an id says
   * nothing; alone it means scopes whose first user gave it. Else this very scope. */
  KVC_DROP_EVERY = 1u
};

typedef struct kvc_drop_item {
  uint32_t scope; /* index into scopes[]; KVC_NO_SCOPE is the empty scope */
  uint32_t flags; /* KVC_DROP_EVERY */
} kvc_drop_item;

typedef struct kvc_drop_result {
  kvc_status status;
  uint32_t dropped_scopes;
  uint32_t dropped_blocks;
  uint32_t detached_sequences;
  uint32_t first_evicted; /* as in kvc_grow_result */
  uint32_t reserved;
} kvc_drop_result;

/* Takes all blocks of scopes out of the tree, children first, and records their
 * removals (an adapter was unloaded, a tenant has left). Open sequences of the
 * scopes are detached as by a reset; suspended ones go on and find nothing. The lock
 * is held throughout, which takes time in proportion to the whole tree. Per item:
 * INVALID_ARGUMENT, OUT_OF_MEMORY. evicted[] as in kvc_sequences_grow. */
KVC_API kvc_status kvc_drop_scopes(kvc_manager* manager, uint32_t count, const kvc_drop_item* items,
                                   const kvc_scope* scopes, uint32_t scope_count,
                                   const uint8_t* bytes, uint64_t byte_count,
                                   kvc_drop_result* results, kvc_evicted_block* evicted,
                                   uint32_t evicted_capacity, uint32_t* evicted_count,
                                   kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_sequence_info {
  uint64_t committed_tokens;
  uint64_t matched_tokens;
  uint64_t capacity_tokens;
  uint64_t device_stream;
  uint32_t page_count; /* pages the sequence has; suspended: pages it has kept */
  uint32_t detached;   /* 1 after a reset: later commits create no block */
  kvc_sequence_state state;
  uint32_t reusable_blocks; /* leading blocks that are in the tree */
} kvc_sequence_info;

/* Writes the sequence's pages, in order, into pages[0..capacity), from block
 * first_block on, and the facts into info. `*written` is the number of entries
 * written: a suspended sequence shows none. pages may be NULL when capacity is
 * 0. */
KVC_API kvc_status kvc_sequence_get(kvc_manager* manager, uint64_t sequence, uint32_t first_block,
                                    uint32_t capacity, uint32_t* pages, uint32_t* written,
                                    kvc_sequence_info* info, kvc_error* error) KVC_NOEXCEPT;

/* Empties the tree (usually: new weights). Active sequences keep their pages but
 * are detached: later commits succeed and create no block and no event.
 * Suspended ones have no pages left to them and are matched anew when they are
 * resumed. */
KVC_API kvc_status kvc_manager_reset(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT;

/* live + cached + free + quarantined + leaving == total at each instant, also while
 * the pool is resized: kvc_pool_resize says what is in total then. */
typedef struct kvc_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t total_pages;
  uint64_t live_pages;   /* held by open sequences or pins */
  uint64_t cached_pages; /* reusable, held by nobody: what can be evicted */
  uint64_t free_pages;
  uint64_t quarantined_pages; /* given up, fence not reached yet */
  uint64_t leaving_pages;     /* withdrawn by a shrink, their memory not given back yet */
  uint64_t peak_live_pages;
  uint64_t blocks;    /* in the tree */
  uint64_t roots;     /* scopes in the tree */
  uint64_t sequences; /* open */
  uint64_t created_sequences;
  uint64_t asked_blocks;   /* full blocks of the prompts given to create */
  uint64_t matched_blocks; /* of those, found */
  uint64_t stored_blocks;  /* blocks that entered the tree */
  uint64_t deduplicated_blocks;
  uint64_t evicted_blocks; /* whole ones, as in the next lines */
  uint64_t reset_blocks;   /* blocks that resets took out of the tree */
  uint64_t resets;
  uint64_t refused_not_now; /* grow items */
  uint64_t refused_never_fits;
  uint64_t metadata_bytes;      /* host memory of arenas and tables */
  uint64_t prefault_ns;         /* time that touching them took at create */
  uint64_t suspended_sequences; /* of the open ones */
  uint64_t kept_pages;          /* pages in the keeping of suspended sequences */
  uint64_t reclaimed_pages;     /* of those, taken because others needed them */
  uint64_t refused_gate;        /* create and resume items that the gate refused */
  uint64_t cancelled_sequences;
  uint64_t expired_blocks;     /* returned to the default priority */
  uint64_t evicted_ttl_blocks; /* of evicted_blocks, by reason; the rest: capacity */
  uint64_t evicted_ended_blocks;
  uint64_t holds;          /* of released sequences, not ended yet */
  uint64_t held_pages;     /* pages in those */
  uint64_t dropped_blocks; /* that kvc_drop_scopes took out of the tree */
  uint64_t pins;
  uint64_t pinned_pages; /* a page counts once for each of its pins; they are live */
  uint64_t peak_pinned_pages;
  uint64_t peak_quarantined_pages;
  uint64_t forked_sequences;
  uint64_t digests;           /* different multimodal digests in use */
  uint64_t copied_pages;      /* inside the pool: of forks, partial_hits and moved_pages */
  uint64_t copied_bytes;      /* of these, by the device; 0 where the engine has the memory */
  uint64_t pending_blocks;    /* marked at this instant */
  uint64_t waiting_sequences; /* whose wait is not over */
  uint64_t marked_blocks;     /* == committed_marks + given_up_marks + pending_blocks */
  uint64_t committed_marks;
  uint64_t given_up_marks;
  uint64_t unmarked_blocks;     /* that were to be marked and found no room */
  uint64_t waits;               /* begun */
  uint64_t partial_blocks;      /* tails in the tree, kvc_config.partial_reuse; not of blocks */
  uint64_t kept_partial_blocks; /* tails that entered it */
  uint64_t partial_hits;        /* sequences that matched tokens behind the last whole block */
  uint64_t partial_hit_tokens;
  uint64_t target_pages;     /* what kvc_pool_resize was told last; total_pages of a fixed pool */
  uint64_t doomed_pages;     /* live, cached or quarantined at or above it */
  uint64_t moved_pages;      /* that a shrink gave another page: blocks, and what is kept */
  uint64_t resizes;          /* changes of target_pages */
  uint64_t failed_resizes;   /* growths that did not come to their end */
  uint64_t mapped_bytes;     /* of memory behind pages, whole chunks; 0 with page_bytes 0. What a
                                shrink gave up is in it until it has been unmapped */
  uint64_t unreturned_bytes; /* given up by a shrink, and refused by the driver when it was to be
                                unmapped or taken back; each later call that uses the device has it
                                tried again, a growth takes it back. 0 unless something is wrong
                                there */
} kvc_stats;

KVC_API void kvc_stats_init(kvc_stats* stats) KVC_NOEXCEPT;
/* Takes the manager's lock; all values are of one instant. A GPU is not asked for fences
 * (kvc_device_fences_query does). Struct members beyond the caller's struct_size are not
 * written. */
KVC_API kvc_status kvc_manager_stats_get(kvc_manager* manager, kvc_stats* out,
                                         kvc_error* error) KVC_NOEXCEPT;

/* A block, or what a suspended sequence keeps, that a shrink gave another page. */
typedef struct kvc_page_move {
  uint32_t from;
  uint32_t to;
  uint32_t tokens; /* to be copied: tokens_per_block, or fewer (kvc_config.partial_reuse) */
  uint32_t reserved;
} kvc_page_move;

/* How far a pool is on its way to its target. */
typedef struct kvc_resize_result {
  uint32_t target_pages;
  uint32_t total_pages;   /* as in kvc_stats: with memory that may be used or is being given back */
  uint32_t growing_pages; /* asked of the device and not there yet: target - total */
  uint32_t doomed_pages;  /* at or above the target and not withdrawn yet */
  uint32_t held_pages;    /* of these, those that more calls alone do not clear: held by active
                             sequences, holds, pins or by several; or met by this call and not
                             moved, for want of a page to move to or because of what still writes
                             them. Exact if fewer than 65,536 are doomed and the call came to all
                             that suspended sequences keep; what it did not come to counts */
  uint32_t leaving_pages; /* withdrawn; the device has not taken their memory back yet */
  uint32_t moved_pages;   /* by this call, each told in moves[] if that was given */
  uint32_t evicted_blocks; /* by this call, each told in evicted[] if that was given */
  uint32_t done;           /* 1: total is the target, and nothing is on its way */
  uint32_t reserved;
  kvc_fence copied; /* all that moved by this call has been copied when it is reached; stream 0 if
                       the device copies nothing */
} kvc_resize_result;

/*
 * Grows or shrinks the pool to `target_pages`, min_blocks to max_blocks of the config
 * (else KVC_INVALID_ARGUMENT, as on a fixed pool). Returns at once with what is so far;
 * never waits, and neither maps nor unmaps memory on the caller's thread: the device
 * does, the host device when kvc_host_advance is called for all streams. The pages keep their
 * ids and addresses, whatever comes and goes behind them.
 *
 * *Growing*: pages whose memory has come join the free ones in a later call that
 * creates, grows, commits, ..., or in this one called again. If there is not memory
 * enough, those stay that could be had, the target goes back to that, and
 * the call that finds it, or the next one that asks for more pages than there are, says
 * so, once: KVC_OUT_OF_MEMORY, with result, and nothing else done. (One that asks for no more
 * than there are says nothing of it.)
 *
 * *Without virtual memory management* (kvc_cuda_device.virtual_memory 0) a pool with memory has
 * that of capacity_blocks pages for good, and resizing is book-keeping at once: a shrink takes
 * pages out of use, but gives nothing back (mapped_bytes of kvc_stats stays what it was when the
 * manager was made), a growth up to capacity_blocks takes them into use again, one beyond is a
 * growth for which there is not memory enough, each time.
 *
 * *Shrinking*: pages at or above the target are *doomed*. No new allocation takes one
 * from now on, free ones are withdrawn at once, others when they are given up and
 * their fences have been reached. Of cached blocks in doomed pages those that are worth
 * keeping move: to free pages below the target, by a copy on a stream of the device's own
 * whose fence goes with the page as always; streams are not told, a block keeps its id. For
 * what finds no room, blocks are evicted as for a grow, wherever they are, and told as usual.
 * What suspended sequences keep moves as well, unless somebody else holds it too, and blocks go
 * for it: it is told when the sequence is resumed (its table, the fences to wait for).
 * One call moves and evicts at most `max_pages` pages together (0: none) and looks at
 * 65,536 doomed pages, the last ones first, and at 8,192 suspended sequences and pages that they
 * keep, the next ones each time; so whoever shrinks calls again, say once a step,
 * until `done`. Nothing is taken from suspended sequences: what they keep and cannot move holds
 * the shrink up (held_pages) until one of them is resumed, closed, or has to give it to a grow.
 * Other live pages stay until they are released: a table never changes by it.
 * The memory of the last pages goes back when all of them, and all of a chunk of the
 * device's (2 MiB), have been withdrawn.
 *
 * total_pages, in transition: the pages up to the last one whose memory the pool answers
 * for. A new page counts from when it is free, a withdrawn one (leaving) until its memory
 * has gone. A grow that needs more pages than the target and than those of the pool which have
 * not been withdrawn is NEVER_FITS; the resume gate looks at the lesser of target and total.
 *
 * moves[0..move_capacity) and evicted[0..evicted_capacity) are told what moved and what was
 * evicted, and no more is than they have room for; NULL, 0: not wanted, no bound. With
 * page_bytes 0 moves[] is needed: the engine makes the copies before anything that it does
 * with pages of later calls; without room nothing moves, and nothing is evicted either.
 * result says how many there are, also when the call fails half way: what has moved by
 * then has moved whole. A block whose page is not filled before the host does something, say ends
 * a step, moves when it is. KVC_NOT_NOW: something is to be moved and all device streams are
 * open, so that the device has none for copies. KVC_DEVICE_ERROR: no copy could be queued, or
 * (KVC_CONFIG_POISON) a page was written after it had been given up. KVC_OUT_OF_MEMORY as
 * above, or for want of host memory.
 */
KVC_API kvc_status kvc_pool_resize(kvc_manager* manager, uint32_t target_pages, uint32_t max_pages,
                                   kvc_page_move* moves, uint32_t move_capacity,
                                   kvc_evicted_block* evicted, uint32_t evicted_capacity,
                                   kvc_resize_result* result, kvc_error* error) KVC_NOEXCEPT;

/* Counts by powers of two: [0] of value 0, [k] of 2^(k-1) to 2^k - 1, the last one
 * of all above. Time is counted in requests (sequences created). */
#define KVC_HISTOGRAM_SLOTS 32
typedef struct kvc_histograms {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t idle_at_reuse[KVC_HISTOGRAM_SLOTS];      /* since the page was let go; of blocks found
                                                       while nobody held them */
  uint64_t idle_at_eviction[KVC_HISTOGRAM_SLOTS];   /* of blocks evicted for their pages */
  uint64_t reuses_at_eviction[KVC_HISTOGRAM_SLOTS]; /* of these, how often they had been found */
} kvc_histograms;

KVC_API void kvc_histograms_init(kvc_histograms* histograms) KVC_NOEXCEPT;
/* As kvc_manager_stats_get: all values are of one instant. */
KVC_API kvc_status kvc_manager_histograms_get(kvc_manager* manager, kvc_histograms* out,
                                              kvc_error* error) KVC_NOEXCEPT;

/* Verifies every invariant between pages, tree, table, lists, sequences and
 * announcements. For tests: time and memory grow with the pool and the lock is held
 * throughout. KVC_CORRUPT names the first breach. */
KVC_API kvc_status kvc_manager_check(kvc_manager* manager, kvc_error* error) KVC_NOEXCEPT;

/* One reusable block, read from the tree itself. */
typedef struct kvc_resident_block {
  uint64_t hash;      /* in the form asked for (KVC_HASH_BYTES: its first 8 bytes) */
  uint32_t announced; /* 1 if the stream has recorded it as stored */
  uint32_t reserved;
  uint8_t digest[32];
} kvc_resident_block;

/* Walks the tree and writes up to `capacity` blocks, parents before children;
 * *count is the number of blocks in the tree, also when it exceeds `capacity`
 * (then KVC_INVALID_ARGUMENT and nothing else is written). The keys are computed
 * anew from the tokens, independently of the stream. The manager's lock is held only
 * while the tree is copied. For tests and tools. */
KVC_API kvc_status kvc_manager_resident(kvc_manager* manager, kvc_hash_form form, uint64_t capacity,
                                        kvc_resident_block* blocks, uint64_t* count,
                                        kvc_error* error) KVC_NOEXCEPT;

/* ------------------------------------------------------------------ device */

/* Streams of the manager's device, at most 63 at once (else KVC_NOT_NOW). Ids are
 * never reused. Destroying one runs or waits for nothing: its remaining work is
 * executed by later advances, its fences stay valid; KVC_BUSY while a sequence
 * runs on it. */
KVC_API kvc_status kvc_device_stream_create(kvc_manager* manager, uint64_t* out,
                                            kvc_error* error) KVC_NOEXCEPT;
KVC_API kvc_status kvc_device_stream_destroy(kvc_manager* manager, uint64_t device_stream,
                                             kvc_error* error) KVC_NOEXCEPT;
/* done[i] = 1 if fences[i] has been reached, else 0. A GPU is asked, and what its driver has
 * refused before is tried again; with count 0 that is all. Whoever waits for pages (for
 * quarantined_pages to go, say) and has no other call to make calls this. */
KVC_API kvc_status kvc_device_fences_query(kvc_manager* manager, uint32_t count,
                                           const kvc_fence* fences, uint8_t* done,
                                           kvc_error* error) KVC_NOEXCEPT;
/* A device stream whose fences are steps, for engines that know of their kernels
 * no more than that a step has been completed. (stream, step) is reached by
 * kvc_step_done. Nothing can be queued on it, and it cannot be made to wait: the
 * engine waits itself for the fences it is told. It is one of the 63 streams;
 * kvc_device_stream_destroy is KVC_BUSY as long as a step is not done. */
KVC_API kvc_status kvc_step_stream_create(kvc_manager* manager, uint64_t* out,
                                          kvc_error* error) KVC_NOEXCEPT;
/* From now on the stream's fences are of this step, > 0: call it before the
 * step's calls. Steps are at most 2^63 - 1 and never go back (else
 * INVALID_ARGUMENT). Stream 0: all step streams that are not beyond this step. */
KVC_API kvc_status kvc_step_begin(kvc_manager* manager, uint64_t device_stream, uint64_t step,
                                  kvc_error* error) KVC_NOEXCEPT;
/* All kernels of this step and those before it have been executed. Again, or for
 * an older one: nothing. INVALID_ARGUMENT for a step that has not begun. Stream
 * 0: all step streams, up to what each of them has begun. */
KVC_API kvc_status kvc_step_done(kvc_manager* manager, uint64_t device_stream, uint64_t step,
                                 kvc_error* error) KVC_NOEXCEPT;

/* Makes later work of a device stream wait for fences of others, for all or none.
 * KVC_NOT_NOW on a CUDA device: a fence of a step that is not done, or of a copy that
 * waits for such a step; the work that a stream would have to wait for is not on the
 * device yet. Retry when the step is done. */
KVC_API kvc_status kvc_device_stream_wait(kvc_manager* manager, uint64_t device_stream,
                                          uint32_t count, const kvc_fence* fences,
                                          kvc_error* error) KVC_NOEXCEPT;

/* The host device stands in for a GPU: work is queued by enqueue and executed,
 * late, by advance, in an order among the streams that is drawn from the seed
 * and respects waits. */
typedef struct kvc_host_fill {
  uint32_t page;
  uint32_t reserved;
  uint64_t value; /* written to each 8 bytes of the page, little-endian */
} kvc_host_fill;
/* A fake kernel for each item. With page_bytes 0 it only takes its time. */
KVC_API kvc_status kvc_host_enqueue_fill(kvc_manager* manager, uint64_t device_stream,
                                         uint32_t count, const kvc_host_fill* fills,
                                         kvc_error* error) KVC_NOEXCEPT;
/* Executes up to max_ops queued operations of one stream (and what they wait
 * for), or of all streams in random legal order when device_stream is 0; then memory
 * that a kvc_pool_resize has asked for, or given back, comes and goes first. */
KVC_API kvc_status kvc_host_advance(kvc_manager* manager, uint64_t device_stream, uint64_t max_ops,
                                    uint64_t* executed, kvc_error* error) KVC_NOEXCEPT;
/* Reads `size` bytes of a page at `offset`, without ordering against queued work. */
KVC_API kvc_status kvc_host_read(kvc_manager* manager, uint32_t page, uint64_t offset,
                                 uint64_t size, uint8_t* out, kvc_error* error) KVC_NOEXCEPT;

/* The pool's memory as kernels address it: page p is at base + p * page_bytes.
 * `bytes` are the addresses: those of max_blocks pages, if the pool is elastic, but of
 * capacity_blocks pages if the device cannot map more (kvc_cuda_device.virtual_memory 0). base is 0
 * when the manager keeps the books only (kvc_config.page_bytes 0). */
typedef struct kvc_device_memory {
  uint64_t base;
  uint64_t bytes;
  uint64_t page_bytes;
} kvc_device_memory;
KVC_API kvc_status kvc_device_memory_get(kvc_manager* manager, kvc_device_memory* out,
                                         kvc_error* error) KVC_NOEXCEPT;

/* -------------------------------------------------------------------- CUDA */

/*
 * GPUs are used through the CUDA driver (libcuda.so.1, CUDA 11.8 or later, compute
 * capability 8.0 or later), which is looked for at run time, by the first of these
 * calls; before it nothing of CUDA happens. What a driver call needs current on a
 * thread is made current for it and taken back, so the caller's context stays.
 * Calls that only keep the books or tell make no driver call, whatever is outstanding:
 * probe, residency, resume, stop, retain, expire, pins, holds that begin, drop_scopes,
 * reset, waiters, statistics and what else reads the manager, tables in the caller's
 * memory, kvc_step_begin, kvc_page_layout_set, kvc_cuda_stream_get. What they know of
 * fences is as old as the last of the other calls, all of which ask the driver;
 * kvc_device_fences_query does nothing else. Asking never waits.
 *
 * After a fork the child cannot use what the parent has opened: KVC_NO_DEVICE. After an
 * error of the device itself (a kernel that faulted) every call that is not for giving back
 * or telling is KVC_DEVICE_ERROR.
 *
 * A call that has promised the device's work (a copy, a wait, an upload) which the driver
 * then refuses, time and again, is KVC_DEVICE_ERROR itself: launch nothing behind it. As
 * for the books it has been carried out: results[] and the other out-parameters are
 * written as on KVC_OK, and sequences, holds and pins that they name are there, to be given
 * back before the manager can be destroyed. A call that finds the device lost when it
 * begins writes nothing: results[] that were zero are zero afterwards. The calls that can
 * promise are create, grow, resize, step, the waits of streams and the uploads to tables;
 * fences are no promise, so no call that gives back fails by it.
 *
 * On a stream of a CUDA manager fences are never known to be reached when they are
 * asked for: others may have queued work there. A stream that is being captured into
 * a graph is KVC_BAD_STATE, with nothing changed: to adopt, to wait, to upload on, and,
 * per item, for what would record a fence of a sequence there or copy for it (commits
 * that fill blocks, grows and creates that copy, forks to other streams, truncate,
 * suspend, release, cancel, end); when the capture has ended they are accepted again.
 * Such calls ask the driver, those on other streams do not. To begin the capture on one
 * thread while another is in such a call is the caller's race.
 */

/* Opens the driver, once for the process, and makes KVC_DEVICE_CUDA known to
 * kvc_manager_create. *devices, unless NULL, is the number of GPUs that the process
 * sees, at least 1. KVC_NO_DEVICE: no driver, or none that can be used; error->cause says
 * which. After a failure the next call tries anew, but one of cuInit may stick to the process. */
KVC_API kvc_status kvc_cuda_open(uint32_t* devices, kvc_error* error) KVC_NOEXCEPT;

typedef struct kvc_cuda_device {
  uint64_t total_bytes;
  uint64_t free_bytes;     /* as the driver says at this moment */
  uint32_t driver_version; /* 1000 x major + 10 x minor of the CUDA release it supports */
  uint32_t capability;     /* 10 x major + minor */
  uint32_t multiprocessors;
  uint32_t virtual_memory; /* 1 = memory can be mapped chunk by chunk: that of a pool can grow and
                              shrink; 0 = it stays, see kvc_pool_resize */
  uint32_t batch_copies;   /* 1 = many copies in one call */
  uint32_t reserved;
  char name[96]; /* NUL-terminated */
} kvc_cuda_device;
/* Opens the driver too. KVC_INVALID_ARGUMENT when there is no such ordinal. */
KVC_API kvc_status kvc_cuda_device_get(uint32_t ordinal, kvc_cuda_device* out,
                                       kvc_error* error) KVC_NOEXCEPT;
/* The pages that `bytes` of a GPU's memory hold, or a fraction in (0, 1] of what is
 * free there at this moment; the other of the two is 0. INVALID_ARGUMENT when that
 * buys no page, OUT_OF_MEMORY when it is more than is free. Opens the driver too. */
KVC_API kvc_status kvc_cuda_budget(uint32_t ordinal, uint64_t page_bytes, uint64_t bytes,
                                   double free_fraction, uint64_t* pages,
                                   kvc_error* error) KVC_NOEXCEPT;

/* A device stream on the caller's CUstream (a cudaStream_t is the same), which must
 * live until kvc_device_stream_destroy and until its fences have been reached. NULL is
 * the legacy NULL stream. INVALID_ARGUMENT for what is no stream to the driver, which need not
 * notice, for a stream of another context, and for CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, which
 * depend on the calling thread: pass a stream that has been created. */
KVC_API kvc_status kvc_cuda_stream_adopt(kvc_manager* manager, void* cuda_stream, uint64_t* out,
                                         kvc_error* error) KVC_NOEXCEPT;
/* The CUstream of a device stream, on which the caller launches its kernels. */
KVC_API kvc_status kvc_cuda_stream_get(kvc_manager* manager, uint64_t device_stream,
                                       void** cuda_stream, kvc_error* error) KVC_NOEXCEPT;

/* ---------------------------------------------------------------- geometry */

/* Where the bytes of a model's keys and values lie. Two pure functions: they
 * touch no manager, allocate nothing that outlives them and may be called from
 * any thread. Offsets are in bytes from the start of the pool's memory. */

/* What a buffer holds. A layer has each role at most once. */
typedef uint32_t kvc_role;
enum {
  KVC_ROLE_KEY = 0,
  KVC_ROLE_VALUE = 1,
  KVC_ROLE_KEY_SCALE = 2,   /* of quantised keys, values and latents: */
  KVC_ROLE_VALUE_SCALE = 3, /* heads and head_dim are those of the buffer they scale */
  KVC_ROLE_LATENT = 4,      /* multi-head latent attention: compressed keys and values */
  KVC_ROLE_LATENT_SCALE = 5,
  KVC_ROLE_ROPE = 6,   /* and the rotary part of its keys */
  KVC_ROLE_CUSTOM = 16 /* this and the 15 numbers after it: the engine's own (an index cache) */
};

typedef uint32_t kvc_dtype;
enum {
  KVC_DTYPE_BF16 = 0,
  KVC_DTYPE_FP16 = 1,
  KVC_DTYPE_FP32 = 2,
  KVC_DTYPE_FP8_E4M3 = 3,
  KVC_DTYPE_FP8_E5M2 = 4,
  KVC_DTYPE_INT8 = 5,
  KVC_DTYPE_FP4_E2M1 = 6,  /* two elements to a byte */
  KVC_DTYPE_FP8_UE8M0 = 7, /* scales that are powers of two */
  KVC_DTYPE_UINT8 = 8      /* bytes without a meaning of their own */
};

/* How the buffers of all layers share the memory of the pool. */
typedef uint32_t kvc_layout;
enum {
  /* A page is one run of page_bytes with the buffers of all layers of a group,
   * the largest first, so that a block moves to another tier in one copy. The
   * only layout of memory that a manager owns (kvc_config.page_bytes). */
  KVC_LAYOUT_COALESCED = 0,
  /* [layer][page][the layer's buffers]. */
  KVC_LAYOUT_PER_LAYER = 1,
  /* [layer][buffer][page]. */
  KVC_LAYOUT_PER_BUFFER = 2
};

/* Order of the dimensions inside a buffer of one page. */
typedef uint32_t kvc_order;
enum {
  KVC_ORDER_NHD = 0, /* [token][head][dim] */
  KVC_ORDER_HND = 1  /* [head][token][dim] */
};

enum {
  /* Pads, so that each buffer's place in the page and the page itself are
   * multiples of the buffer's size: then every buffer can be reached with an
   * index scale alone (kvc_buffer.index_scale). */
  KVC_GEOMETRY_INDEXABLE = 1u,
  /* One more page behind the pool, for the entries of tables that must name a
   * page although there is none. Its owner keeps it zero. */
  KVC_GEOMETRY_PADDING_PAGE = 2u,
  /* A layer's rope buffer stands by itself. Otherwise each token's row is its
   * latent followed by its rope, as kernels of multi-head latent attention read it. */
  KVC_GEOMETRY_SPLIT_ROPE = 4u
};

typedef struct kvc_geometry_config {
  uint32_t struct_size;
  uint32_t flags; /* KVC_GEOMETRY_* */
  kvc_layout layout;
  kvc_order order;
  uint32_t tokens_per_block; /* the manager's; 1..4096; default 16 */
  uint32_t kernel_tokens;    /* tokens of a block as kernels see it, a divisor of
                                tokens_per_block; 0 = tokens_per_block */
  uint32_t capacity_blocks;  /* the manager's, or its max_blocks; 1..2^27; default 20000 */
  uint32_t alignment;        /* of each buffer and page, a power of two up to 2 MiB; default 16,
                                what kernels load at a time; 1 = packed */
} kvc_geometry_config;

/* One buffer of one layer. */
typedef struct kvc_buffer_spec {
  uint32_t layer; /* the engine's id of it */
  uint32_t group; /* below 64; the same for all buffers of a layer */
  kvc_role role;
  kvc_dtype dtype;
  uint32_t heads;          /* of keys and values; 1..65536; 1 for latents and their rope */
  uint32_t head_dim;       /* elements; 1..65536 */
  uint32_t scale_tokens;   /* scales: tokens that share one, a divisor of kernel_tokens; 0 = 1 */
  uint32_t scale_elements; /* scales: elements of a head that share one, a divisor of head_dim;
                              0 = head_dim */
} kvc_buffer_spec;

/* kvc_buffer.index_offset: no index reaches the buffer from the pool's start. */
#define KVC_NO_INDEX UINT64_MAX

/*
 * Where a buffer is. Element `dim` of head `head` of the token `t` of a block in
 * page `p` is at bit
 *   8 * (base_offset + p * page_stride + t / kernel_tokens * kernel_bytes
 *        + t % kernel_tokens / scale_tokens * row_stride + head * head_stride)
 *   + dim / scale_elements * element_bits
 * (scale_tokens and scale_elements are 1 for what is no scale).
 *
 * Kernels that know no page stride, only blocks of kernel_bytes one after the
 * other, find the i-th kernel block of page p at index
 *   (p * index_scale) * expansion + i                   from base_offset, or
 *   (p * index_scale + index_offset) * expansion + i    from base_offset - page_offset.
 */
typedef struct kvc_buffer {
  uint32_t layer;
  uint32_t group;
  kvc_role role;
  kvc_dtype dtype;
  uint32_t heads;
  uint32_t dims; /* elements of a head in a row */
  uint32_t rows; /* of a kernel block */
  uint32_t element_bits;
  uint64_t base_offset;  /* of the buffer in page 0 */
  uint64_t page_offset;  /* the part of it that is the place in the page */
  uint64_t page_stride;  /* from a page to the next */
  uint64_t bytes;        /* in one page; a latent and its rope in one row: of both */
  uint64_t kernel_bytes; /* of these, of one kernel block */
  uint64_t row_stride;
  uint64_t head_stride;
  uint64_t index_scale;  /* 0 = page_stride is no multiple of bytes: no scale will do */
  uint64_t index_offset; /* or KVC_NO_INDEX */
  uint64_t index_bound;  /* kernel blocks from base_offset to the end of the pool: indices are
                            below; 0 with index_scale 0 */
} kvc_buffer;

typedef struct kvc_geometry {
  uint64_t page_bytes;   /* memory per page; with KVC_LAYOUT_COALESCED kvc_config.page_bytes */
  uint64_t memory_bytes; /* of the pool, the padding page included */
  uint64_t wasted_bytes; /* of a page of the group that wastes most: alignment, padding, and the
                            difference to the largest group, as all groups' pages are equal */
  uint32_t padding_page; /* its id, or UINT32_MAX */
  uint32_t tokens_per_block;
  uint32_t kernel_tokens;
  uint32_t expansion; /* kernel blocks per page */
  kvc_layout layout;
  kvc_order order;
  uint32_t groups; /* that have a buffer */
  uint32_t pages;  /* capacity_blocks, and the padding page */
} kvc_geometry;

KVC_API void kvc_geometry_config_init(kvc_geometry_config* config) KVC_NOEXCEPT;

/* Writes the place of specs[i] into buffers[i], count of each, 1..2^20.
 * KVC_INVALID_ARGUMENT names the field that cannot be; sizes that do not fit
 * 2^63 bytes are among them. */
KVC_API kvc_status kvc_geometry_compute(const kvc_geometry_config* config, uint32_t count,
                                        const kvc_buffer_spec* specs, kvc_buffer* buffers,
                                        kvc_geometry* out, kvc_error* error) KVC_NOEXCEPT;

/* Tells a manager where the tokens of its pages lie, as kvc_geometry_compute would
 * place them, so that a copy of a partly filled page moves what its tokens take and
 * not all of it. Once, before the first copy (else BAD_STATE). INVALID_ARGUMENT: layouts
 * that are not coalesced, several groups, another tokens_per_block or page_bytes than the
 * manager's, more than 2^22 pieces over all fillings, and what kvc_geometry_compute refuses. */
KVC_API kvc_status kvc_page_layout_set(kvc_manager* manager, const kvc_geometry_config* config,
                                       uint32_t count, const kvc_buffer_spec* specs,
                                       kvc_error* error) KVC_NOEXCEPT;

/* Tensors as consumers address them; docs/kernel-views.md has their formulas. */
typedef uint32_t kvc_view_kind;
enum {
  KVC_VIEW_FLASHINFER = 0,          /* k and v: [pages, ...NHD or HND] with strides */
  KVC_VIEW_FLASHINFER_COMBINED = 1, /* one tensor [pages, 2, ...] */
  KVC_VIEW_FLASHINFER_MLA = 2,      /* ckv and kpe: [pages, tokens, dim] */
  KVC_VIEW_FLASH_ATTENTION = 3,     /* k and v: [blocks, tokens, heads, dim]; any block size */
  KVC_VIEW_FLASH_ATTENTION_2 = 4,   /* the same; blocks of a multiple of 256 tokens */
  KVC_VIEW_VLLM_KV_FIRST = 5,       /* [2, blocks, tokens, heads, dim] */
  KVC_VIEW_VLLM_BLOCKS_FIRST = 6,   /* [blocks, 2, tokens, heads, dim] */
  KVC_VIEW_VLLM_MLA = 7,            /* [blocks, tokens, latent + rope] */
  KVC_VIEW_TENSORRT_LLM = 8         /* k and v: [index, heads, tokens, dim], dense */
};

#define KVC_VIEW_TENSORS 2
#define KVC_VIEW_RANK 5

/* A tensor over the pool's memory, and what stands in the block table: page p
 * becomes (p * index_scale + index_offset) * expansion + i for its kernel block
 * i. Strides are in elements of element_bits (two FP4 values are one of 8). */
typedef struct kvc_tensor_view {
  kvc_role role; /* combined tensors: KVC_ROLE_KEY, or KVC_ROLE_LATENT */
  kvc_dtype dtype;
  uint32_t element_bits;
  uint32_t rank;
  uint32_t dense; /* 1 = the strides are those of a contiguous tensor */
  uint32_t expansion;
  uint64_t base_offset;
  uint64_t index_scale;
  uint64_t index_offset;
  uint64_t shape[KVC_VIEW_RANK];
  uint64_t stride[KVC_VIEW_RANK];
} kvc_tensor_view;

/* The view of one layer: one or two tensors, *written of them.
 * KVC_INVALID_ARGUMENT when the layer lacks a role or the consumer cannot
 * express the geometry; the message says what to change. */
KVC_API kvc_status kvc_geometry_view(const kvc_geometry* geometry, uint32_t count,
                                     const kvc_buffer* buffers, uint32_t layer, kvc_view_kind kind,
                                     kvc_tensor_view views[KVC_VIEW_TENSORS], uint32_t* written,
                                     kvc_error* error) KVC_NOEXCEPT;

/* ------------------------------------------------------------ block tables */

/* The pages of sequences as attention kernels want them named, into memory of
 * the caller. The calls share the manager's lock with each other and with
 * probes, let writers pass in between, allocate nothing and change nothing that
 * a scheduler sees. A page of a sequence stays where a table says until a call
 * on that sequence reports otherwise. */

/* Kernel block i of page p becomes (p * index_scale + index_offset) * expansion + i:
 * see kvc_tensor_view. */
typedef struct kvc_table_format {
  uint32_t index_scale; /* at least 1; default 1 */
  uint32_t index_offset;
  uint32_t expansion; /* entries per page, a divisor of tokens_per_block; default 1 */
  int32_t absent;     /* what stands where there is no page; default -1 */
} kvc_table_format;

KVC_API void kvc_table_format_init(kvc_table_format* format) KVC_NOEXCEPT;

typedef struct kvc_table_item {
  uint64_t sequence;
  uint32_t group;      /* 0 */
  uint32_t new_tokens; /* that this step computes, behind the committed ones */
} kvc_table_item;

typedef struct kvc_table_result {
  kvc_status status;
  uint32_t entries;   /* dense: of the whole sequence, perhaps more than columns; indexed: of its
                         kv_tokens; delta: triples, perhaps more than there was room for */
  uint64_t kv_tokens; /* committed, and new_tokens */
} kvc_table_result;

/* Row i = table + i * row_stride gets all entries of items[i]'s sequence, as far
 * as `columns` go, and `absent` up to there; lengths[i] (or NULL) its kv_tokens:
 * block_table and seqlens of FlashAttention and vLLM. The row of an item that
 * fails is `absent`, its length 0. format NULL = the defaults. Per item:
 * STALE_HANDLE, BAD_STATE (new_tokens exceed the capacity; suspended),
 * INVALID_ARGUMENT (the group; fewer columns than kv_tokens take). */
KVC_API kvc_status kvc_tables_dense(kvc_manager* manager, const kvc_table_format* format,
                                    uint32_t count, const kvc_table_item* items, uint32_t columns,
                                    uint64_t row_stride, int32_t* table, int32_t* lengths,
                                    kvc_table_result* results, kvc_error* error) KVC_NOEXCEPT;

/* The entries of the items' kv_tokens one behind the other: those of items[i] are
 * indices[indptr[i]..indptr[i + 1]), and the last of them holds last_page_len[i]
 * tokens: kv_indptr, kv_indices and kv_last_page_len of FlashInfer. indptr has
 * count + 1 entries. An item that fails, as above, has none. *needed is the number
 * of entries also when `capacity` is less (then KVC_INVALID_ARGUMENT, and what
 * the arrays hold is undefined). */
KVC_API kvc_status kvc_tables_indexed(kvc_manager* manager, const kvc_table_format* format,
                                      uint32_t count, const kvc_table_item* items,
                                      uint64_t capacity, int32_t* indptr, int32_t* indices,
                                      int32_t* last_page_len, uint64_t* needed,
                                      kvc_table_result* results, kvc_error* error) KVC_NOEXCEPT;

/* What a row of the caller's table holds. Zero: nothing, all entries absent. It
 * belongs to the row, not to a sequence: with another sequence than before, the
 * delta replaces one by the other. Kept by the caller, written by
 * kvc_tables_delta; a row keeps to one format. */
typedef struct kvc_table_cookie {
  uint64_t sequence;
  uint32_t version;
  uint32_t pages;
} kvc_table_cookie;

typedef struct kvc_table_delta_item {
  uint64_t sequence; /* 0 = none: empties the row */
  uint32_t group;    /* 0 */
  uint32_t row;
} kvc_table_delta_item;

typedef struct kvc_table_delta {
  uint32_t row;
  uint32_t column;
  int32_t value;
} kvc_table_delta;

/* Appends to deltas[0..capacity) what makes the row of cookies[i] the table of
 * items[i]'s sequence: all of it for a row that held none or another, else what has
 * been appended, taken away or replaced (one range of all that was replaced since the
 * newest delta of the sequence; a row that is older than that gets everything). The
 * row of a suspended sequence is empty.
 * *written is their number. Each row once in a call. Per item: STALE_HANDLE (the
 * row is emptied), NOT_NOW (no room left for the item; entries says how much it
 * takes, its cookie stands as it was: repeat it with room), INVALID_ARGUMENT
 * (the group; more entries than columns). */
KVC_API kvc_status kvc_tables_delta(kvc_manager* manager, const kvc_table_format* format,
                                    uint32_t count, const kvc_table_delta_item* items,
                                    uint32_t columns, kvc_table_cookie* cookies, uint32_t capacity,
                                    kvc_table_delta* deltas, uint32_t* written,
                                    kvc_table_result* results, kvc_error* error) KVC_NOEXCEPT;

/* A table in the memory of the manager's device: int32[rows][columns], filled with
 * `absent`. Uploads are staged in `staging` int32s of host memory (3 for a triple, a
 * row's columns for a row) until the device has executed them; everything is
 * allocated here. *address is where kernels find it. Ids are never reused; at most
 * 256 tables at once. INVALID_ARGUMENT, NOT_NOW (256 are open), OUT_OF_MEMORY. */
KVC_API kvc_status kvc_device_table_create(kvc_manager* manager, uint32_t rows, uint32_t columns,
                                           int32_t absent, uint32_t staging, uint64_t* table,
                                           uint64_t* address, kvc_error* error) KVC_NOEXCEPT;
/* KVC_BUSY while uploads have not been executed. What else uses the table must have run:
 * on a GPU its memory is kept for later tables, as freeing it would wait for the device. */
KVC_API kvc_status kvc_device_table_destroy(kvc_manager* manager, uint64_t table,
                                            kvc_error* error) KVC_NOEXCEPT;
/* Queues the triples, or whole rows from first_row on (row_stride int32s apart), on a
 * device stream that is not one of steps (0 = the host: at once), in order with its
 * kernels. The arrays may be reused when the call returns. All or nothing: INVALID_ARGUMENT (an
 * entry outside the table), STALE_HANDLE, NOT_NOW (staging is full; retry after fences have been
 * reached), and more than staging can ever hold is NEVER_FITS. The last of several triples
 * for one entry counts; those that ascend by row and column, as kvc_tables_delta tells them
 * for items of ascending rows, cost least. A GPU's are copied without the manager's lock. */
KVC_API kvc_status kvc_device_table_update(kvc_manager* manager, uint64_t table,
                                           uint64_t device_stream, uint32_t count,
                                           const kvc_table_delta* deltas,
                                           kvc_error* error) KVC_NOEXCEPT;
KVC_API kvc_status kvc_device_table_write(kvc_manager* manager, uint64_t table,
                                          uint64_t device_stream, uint32_t first_row,
                                          uint32_t row_count, uint64_t row_stride,
                                          const int32_t* entries, kvc_error* error) KVC_NOEXCEPT;
/* Reads `count` entries of a row from `column` on, without ordering against queued
 * work. Host device only. */
KVC_API kvc_status kvc_host_table_read(kvc_manager* manager, uint64_t table, uint32_t row,
                                       uint32_t column, uint32_t count, int32_t* out,
                                       kvc_error* error) KVC_NOEXCEPT;

/* ------------------------------------------------------------------- steps */

/* What a scheduler does in one step, in one call: operations of any kinds for any
 * sequences, executed in order. Each does what its own call does with one item,
 * with the same arguments and errors; one that fails changes nothing and does not
 * stop the others. The manager's lock is held throughout: other threads see all of
 * a step or nothing of it, and wait for it. Nothing is allocated in the steady state. */

typedef uint32_t kvc_op_kind;
enum {
  KVC_OP_CREATE = 1,        /* prompt */
  KVC_OP_GROW = 2,          /* grow */
  KVC_OP_COMMIT = 3,        /* commit */
  KVC_OP_TRUNCATE = 4,      /* truncate */
  KVC_OP_STOP = 5,          /* stop */
  KVC_OP_SUSPEND = 6,       /* suspend */
  KVC_OP_RESUME = 7,        /* sequence */
  KVC_OP_RELEASE = 8,       /* sequence */
  KVC_OP_CANCEL = 9,        /* sequence */
  KVC_OP_END = 10,          /* sequence */
  KVC_OP_HOLD = 11,         /* hold */
  KVC_OP_RELEASE_HOLD = 12, /* handle */
  KVC_OP_RETAIN = 13,       /* retain */
  KVC_OP_PIN = 14,          /* sequence */
  KVC_OP_UNPIN = 15,        /* handle */
  KVC_OP_TABLE = 16,        /* table */
  KVC_OP_FORK = 17          /* fork */
};

/* KVC_STEP_RESULT | i in place of a sequence's id: the one that the operation i, an
 * earlier KVC_OP_CREATE or KVC_OP_FORK of the same step, has opened. INVALID_ARGUMENT if there is
 * no such operation, STALE_HANDLE if it failed. No id has this form. */
#define KVC_STEP_RESULT (UINT64_C(1) << 31)

/* An item of kvc_tables_delta; the row is that of cookies[cookie]. */
typedef struct kvc_op_table {
  uint64_t sequence; /* 0 = none: empties the row */
  uint32_t group;    /* 0 */
  uint32_t row;
  uint32_t cookie;
  uint32_t reserved;
} kvc_op_table;

typedef struct kvc_op {
  kvc_op_kind kind;
  uint32_t reserved; /* 0 */
  union {
    uint64_t prompt; /* index into input.prompts[] */
    kvc_grow_item grow;
    kvc_commit_item commit;
    kvc_truncate_item truncate;
    kvc_stop_item stop;
    kvc_suspend_item suspend;
    kvc_hold_item hold;
    kvc_retain_item retain;
    kvc_op_table table;
    kvc_fork_item fork;
    uint64_t sequence;
    uint64_t handle; /* of a hold or a pin */
    uint64_t room[7];
  } args; /* the member that stands beside the kind */
} kvc_op;

typedef struct kvc_op_created {
  uint64_t matched_tokens;
  uint64_t pending_tokens;
  uint64_t pending_sequence;
  uint32_t copied_tokens; /* as in kvc_create_result, like all that follow */
  uint32_t copied_from;
  uint32_t copied_to;
  uint32_t reserved;
} kvc_op_created;

typedef struct kvc_op_grown {
  uint32_t added_pages;
  uint32_t evicted_blocks; /* NOT_NOW: as many entries evicted[] would have needed, or 0 */
  uint32_t leaving_pages;
  uint32_t first_evicted; /* as in kvc_grow_result, like all that follow */
  uint32_t copied_block;
  uint32_t copied_from;
  uint32_t copied_to;
  uint32_t copied_tokens;
} kvc_op_grown;

typedef struct kvc_op_committed {
  uint32_t stored_blocks;
  uint32_t deduplicated_blocks;
  uint32_t first_changed_block; /* or UINT32_MAX */
  uint32_t reserved;
  uint64_t committed_tokens;
} kvc_op_committed;

typedef struct kvc_op_resumed {
  uint64_t committed_tokens;
  uint64_t lost_tokens;
  uint64_t pending_tokens; /* also with NOT_NOW */
  uint64_t pending_sequence;
} kvc_op_resumed;

typedef struct kvc_op_pinned {
  uint64_t pin;
  uint32_t pinned_blocks;
  uint32_t reserved;
} kvc_op_pinned;

typedef struct kvc_op_tabled {
  uint32_t entries;     /* triples; NOT_NOW: as many as deltas[] would have needed */
  uint32_t first_delta; /* where they begin in deltas[] */
  uint64_t kv_tokens;
} kvc_op_tabled;

typedef struct kvc_op_result {
  kvc_status status;
  uint32_t first_wait; /* where the fences begin in waits[] */
  uint32_t wait_count; /* create, fork, resume, commit, grow; NOT_NOW: as many as the operation
                          might have had to tell, if waits[] has no room for them, else 0 */
  uint32_t reserved;
  uint64_t
      sequence; /* create, fork: the new one, or 0; of the others that take one: which it was */
  union {
    kvc_op_created created;     /* create */
    kvc_op_grown grown;         /* grow */
    kvc_op_committed committed; /* commit */
    kvc_op_resumed resumed;     /* resume */
    uint64_t freed_pages;       /* truncate */
    uint64_t hold;              /* hold */
    kvc_op_pinned pinned;       /* pin */
    kvc_op_tabled tabled;       /* table */
    uint64_t forked_tokens;     /* fork: that it has in common with the other */
    uint64_t room[5];           /* all zero where nothing else is named */
  } of;
} kvc_op_result;

/* What the operations point into. */
typedef struct kvc_step_input {
  uint32_t struct_size;
  uint32_t scope_count;
  const uint32_t* tokens;
  uint64_t token_count;
  const kvc_scope* scopes;
  const uint8_t* bytes;
  uint64_t byte_count;
  const kvc_table_format* format; /* of the tables; NULL = the defaults */
  uint32_t columns;               /* of the tables */
  uint32_t prompt_count;
  const kvc_prompt* prompts;
} kvc_step_input;

/* What the operations write into: arrays of the caller, with the room they have and
 * how much of it was used. An operation whose output might not fit is NOT_NOW and
 * changes nothing, and its result says what it needs: so nothing is ever lost. */
typedef struct kvc_step_output {
  uint32_t struct_size;
  uint32_t cookie_count;
  kvc_table_cookie* cookies; /* read and written; as in kvc_tables_delta */
  kvc_table_delta* deltas;
  uint32_t delta_capacity;
  uint32_t delta_count;
  kvc_evicted_block* evicted; /* as in kvc_sequences_grow; capacity 0: not wanted */
  uint32_t evicted_capacity;
  uint32_t evicted_count;
  kvc_fence* waits; /* all fences, not only the first few; a create, resume or commit needs
                       room for one of each device stream there has been but its own */
  uint32_t wait_capacity;
  uint32_t wait_count;
  kvc_waiter* waiters; /* as kvc_waiters_take, after all operations; those without room are told
                          by the next step */
  uint32_t waiter_capacity;
  uint32_t waiter_count;
} kvc_step_output;

KVC_API void kvc_step_input_init(kvc_step_input* input) KVC_NOEXCEPT;
KVC_API void kvc_step_output_init(kvc_step_output* output) KVC_NOEXCEPT;

/* Executes ops[0..count) in order; results[i] is what became of ops[i]. input or
 * output NULL: all its arrays are empty. Per item, besides what the kind's own call
 * says: INVALID_ARGUMENT (an unknown kind, `reserved`, a reference, an index beyond
 * its array), NOT_NOW (no room for what it would tell). A step that opens long
 * prompts holds the lock as long as matching them takes. */
KVC_API kvc_status kvc_step(kvc_manager* manager, uint32_t count, const kvc_op* ops,
                            const kvc_step_input* input, kvc_op_result* results,
                            kvc_step_output* output, kvc_error* error) KVC_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif /* KVCAST_KVCAST_H_ */
