// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What every function of the C ABI that takes a manager begins with.
#ifndef KVCAST_NATIVE_SRC_CAPI_CALL_H_
#define KVCAST_NATIVE_SRC_CAPI_CALL_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "kvcast/kvcast.h"
#include "native/src/manager.h"
#include "native/src/status.h"

struct kvc_manager {
  explicit kvc_manager(const kvc_config& config, std::shared_ptr<kvcast::EventSink> sink)
      : core(config, std::move(sink)) {}
  kvcast::Manager core;
};

namespace capi {

using kvcast::ClearError;
using kvcast::Error;
using kvcast::Fail;
using kvcast::Guard;

inline void Require(bool condition, const char* message) {
  if (!condition) throw Error(KVC_INVALID_ARGUMENT, message);
}

template <typename T>
void RequireArray(const T* array, uint64_t count, const char* message) {
  Require(array != nullptr || count == 0, message);
}

// Copies the part of a caller's struct that both sides know. An older caller
// leaves the rest at its defaults; a newer one knows things we cannot do. A size that no
// compiler gives a struct would end within a member: half of a pointer is nobody's default.
template <typename T>
void ReadSized(T* mine, const T* theirs, const char* what) {
  Require(theirs != nullptr, what);
  Require(theirs->struct_size >= sizeof(uint32_t) && theirs->struct_size <= sizeof(T) &&
              theirs->struct_size % alignof(T) == 0,
          what);
  std::memcpy(mine, theirs, theirs->struct_size);
  mine->struct_size = sizeof(T);
}

inline kvcast::PromptArrays Arrays(const kvc_prompt* prompts, uint32_t count,
                                   const uint32_t* tokens, uint64_t token_count,
                                   const kvc_scope* scopes, uint32_t scope_count,
                                   const uint8_t* bytes, uint64_t byte_count) {
  RequireArray(prompts, count, "prompts[] is NULL");
  RequireArray(tokens, token_count, "tokens[] is NULL");
  RequireArray(scopes, scope_count, "scopes[] is NULL");
  RequireArray(bytes, byte_count, "bytes[] is NULL");
  static const uint32_t kNoTokens = 0;
  return {
      tokens != nullptr ? tokens : &kNoTokens, token_count, scopes, scope_count, bytes, byte_count};
}

// The slots of the streams that prompts name, a bit for each.
inline uint64_t SlotBits(const kvc_prompt* prompts, uint32_t count) {
  uint64_t bits = 0;
  for (uint32_t i = 0; prompts != nullptr && i < count; ++i) {
    bits |= kvcast::Manager::SlotBit(prompts[i].device_stream);
  }
  return bits;
}

// The device's hand in a call: at its end whatever the call has told it goes on its way,
// also when the call failed half way.
class DeviceCall {
 public:
  explicit DeviceCall(kvcast::Device& device) : device_(device) { device_.BeginCall(); }
  ~DeviceCall() {
    if (!ended_) device_.EndCall();
  }
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  // What the destructor does, and throws Error when work that this call has promised could
  // not be handed over: what it has told in the books stands, but its caller must not
  // launch behind it. Fences are not promised: calls that give back do not fail by this.
  void End() {
    ended_ = true;
    device_.EndCall();
    device_.RequireKept();
  }

 private:
  kvcast::Device& device_;
  bool ended_ = false;
};

// Every function of the ABI that takes a manager is one of these. Without the device: the
// books are read or kept, nothing is asked of a driver and nothing handed over.

// Calls that tell, or give back what only the books know of: on a device that has broken, too.
template <typename Body>
kvc_status Tell(kvc_manager* manager, kvc_error* error, Body&& body) noexcept {
  ClearError(error);
  return Guard(error, [&] {
    Require(manager != nullptr, "the manager is NULL");
    return body(manager->core);
  });
}

template <typename Body>
kvc_status Books(kvc_manager* manager, kvc_error* error, Body&& body) noexcept {
  return Tell(manager, error, [&](kvcast::Manager& core) {
    core.device().RequireUsable();
    return body(core);
  });
}

// With the device: who takes or gives back pages behind fences, queues work, or is to learn
// which fences have been reached.

// Calls that only give back or tell: on a device that has broken, too.
template <typename Body>
kvc_status CleanUp(kvc_manager* manager, kvc_error* error, Body&& body) noexcept {
  return Tell(manager, error, [&](kvcast::Manager& core) {
    DeviceCall call(core.device());
    const kvc_status status = body(core);
    call.End();
    return status;
  });
}

// Those of them that may queue work, or record a fence, on streams of sequences, and on
// `named`.
template <typename Body>
kvc_status QueueingCleanUp(kvc_manager* manager, kvc_error* error, Body&& body,
                           uint64_t named = 0) noexcept {
  return CleanUp(manager, error, [&](kvcast::Manager& core) {
    core.LookForCaptures(named);
    return body(core);
  });
}

template <typename Body>
kvc_status Call(kvc_manager* manager, kvc_error* error, Body&& body) noexcept {
  return CleanUp(manager, error, [&](kvcast::Manager& core) {
    core.device().RequireUsable();
    return body(core);
  });
}

template <typename Body>
kvc_status QueueingCall(kvc_manager* manager, kvc_error* error, Body&& body,
                        uint64_t named = 0) noexcept {
  return Call(manager, error, [&](kvcast::Manager& core) {
    core.LookForCaptures(named);
    core.device().RequireUsable();  // asking may have shown that it is not
    return body(core);
  });
}

}  // namespace capi

#endif  // KVCAST_NATIVE_SRC_CAPI_CALL_H_
