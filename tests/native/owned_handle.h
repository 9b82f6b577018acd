// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Handles of the C ABI that end with the scope they are made in: a check that
// fails in between would else leave them behind, and the leak would be told
// besides what failed. No GoogleTest here.
#ifndef KVCAST_TESTS_NATIVE_OWNED_HANDLE_H_
#define KVCAST_TESTS_NATIVE_OWNED_HANDLE_H_

#include "kvcast/kvcast.h"

namespace kvcast::testing {

// Declared before the call that makes the handle, which gets out(). A test that
// says itself when the handle ends, and perhaps looks at the answer, passes
// Take() to the call that ends it.
template <typename T, auto End>
class OwnedHandle {
 public:
  OwnedHandle() = default;
  OwnedHandle(const OwnedHandle&) = delete;
  OwnedHandle& operator=(const OwnedHandle&) = delete;
  ~OwnedHandle() {
    if (handle_ != nullptr) End(handle_);
  }

  T** out() { return &handle_; }
  T* Take() {
    T* handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  operator T*() const { return handle_; }  // as the calls take it
  T* operator->() const { return handle_; }

 private:
  T* handle_ = nullptr;
};

inline void EndManager(kvc_manager* manager) { kvc_manager_destroy(manager, nullptr); }

// A manager is declared behind its stream and so ends before it.
using OwnedStream = OwnedHandle<kvc_stream, &kvc_stream_destroy>;
using OwnedManager = OwnedHandle<kvc_manager, &EndManager>;
using OwnedSnapshot = OwnedHandle<kvc_snapshot, &kvc_stream_snapshot_close>;

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_OWNED_HANDLE_H_
