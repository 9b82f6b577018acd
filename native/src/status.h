// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// One exception type inside the library and one guard at its boundary.
#ifndef KVCAST_NATIVE_SRC_STATUS_H_
#define KVCAST_NATIVE_SRC_STATUS_H_

#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvcast/kvcast.h"

namespace kvcast {

class Error : public std::runtime_error {
 public:
  Error(kvc_status status, const std::string& message, int32_t system_code = 0,
        kvc_cause cause = KVC_CAUSE_NONE)
      : std::runtime_error(message), status_(status), system_code_(system_code), cause_(cause) {}
  [[nodiscard]] kvc_status status() const { return status_; }
  [[nodiscard]] int32_t system_code() const { return system_code_; }
  [[nodiscard]] kvc_cause cause() const { return cause_; }

 protected:
  // For an error that is made before anybody knows what it will tell.
  void set_system_code(int32_t code) noexcept { system_code_ = code; }

 private:
  kvc_status status_;
  int32_t system_code_;
  kvc_cause cause_;
};

inline kvc_status Fail(kvc_error* error, kvc_status status, const char* message,
                       int32_t system_code = 0, kvc_cause cause = KVC_CAUSE_NONE) noexcept {
  if (error != nullptr) {
    error->status = status;
    error->system_code = system_code;
    error->cause = cause;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return status;
}

// At the start of every call, so that an old story is not taken for a new one.
inline void ClearError(kvc_error* error) noexcept {
  if (error == nullptr) return;
  error->status = KVC_OK;
  error->system_code = 0;
  error->cause = KVC_CAUSE_NONE;
  error->message[0] = '\0';
}

// Runs `body` (which returns a kvc_status) and turns whatever leaves it into a
// status and a text. Every ABI function that can fail goes through here: an
// exception that reached a C or Go caller would abort the process.
template <typename Body>
kvc_status Guard(kvc_error* error, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& e) {
    return Fail(error, e.status(), e.what(), e.system_code(), e.cause());
  } catch (const std::bad_alloc&) {
    return Fail(error, KVC_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return Fail(error, KVC_INTERNAL, e.what());
  } catch (...) {
    return Fail(error, KVC_INTERNAL, "unknown exception");
  }
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_STATUS_H_
