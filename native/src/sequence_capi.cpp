// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of sequences beyond create, grow, commit and release.
#include <cstddef>
#include <cstdint>

#include "kvcast/kvcast.h"
#include "native/src/capi_call.h"
#include "native/src/manager.h"

static_assert(sizeof(kvc_fork_item) == 16 && sizeof(kvc_fork_result) == 88);
static_assert(offsetof(kvc_fork_result, waits) == 24);
static_assert(sizeof(kvc_hold_item) == 16 && sizeof(kvc_hold_result) == 16);
static_assert(sizeof(kvc_suspend_item) == 16);
static_assert(sizeof(kvc_resume_result) == 104 && offsetof(kvc_resume_result, waits) == 40);
static_assert(sizeof(kvc_truncate_item) == 16 && sizeof(kvc_truncate_result) == 8);
static_assert(sizeof(kvc_stop_item) == 16);
static_assert(sizeof(kvc_waiter) == 16 && offsetof(kvc_waiter, outcome) == 8);

extern "C" {

kvc_status kvc_sequences_fork(kvc_manager* manager, uint32_t count, const kvc_fork_item* items,
                              kvc_fork_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Fork(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_cancel(kvc_manager* manager, uint32_t count, const uint64_t* sequences,
                                kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCleanUp(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(sequences, count, "sequences[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Cancel(count, sequences, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_release_held(kvc_manager* manager, uint32_t count,
                                      const kvc_hold_item* items, kvc_hold_result* results,
                                      kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.ReleaseHeld(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_holds_release(kvc_manager* manager, uint32_t count, const uint64_t* holds,
                             kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCleanUp(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(holds, count, "holds[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.ReleaseHolds(count, holds, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_suspend(kvc_manager* manager, uint32_t count,
                                 const kvc_suspend_item* items, kvc_status* results,
                                 kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Suspend(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_resume(kvc_manager* manager, uint32_t count, const uint64_t* sequences,
                                kvc_resume_result* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(sequences, count, "sequences[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Resume(count, sequences, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_truncate(kvc_manager* manager, uint32_t count,
                                  const kvc_truncate_item* items, kvc_truncate_result* results,
                                  kvc_error* error) KVC_NOEXCEPT {
  return capi::QueueingCall(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Truncate(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_sequences_stop(kvc_manager* manager, uint32_t count, const kvc_stop_item* items,
                              kvc_status* results, kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(items, count, "items[] is NULL");
    capi::RequireArray(results, count, "results[] is NULL");
    core.Stop(count, items, results, error);
    return KVC_OK;
  });
}

kvc_status kvc_waiters_take(kvc_manager* manager, uint32_t capacity, kvc_waiter* waiters,
                            uint32_t* count, kvc_error* error) KVC_NOEXCEPT {
  return capi::Tell(manager, error, [&](kvcast::Manager& core) {
    capi::RequireArray(waiters, capacity, "waiters[] is NULL");
    capi::Require(count != nullptr, "count is NULL");
    *count = core.Waiters(capacity, waiters);
    return KVC_OK;
  });
}

}  // extern "C"
