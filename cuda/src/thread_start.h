// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Threads of our own, which the system may refuse.
#ifndef KVCAST_CUDA_SRC_THREAD_START_H_
#define KVCAST_CUDA_SRC_THREAD_START_H_

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "native/src/status.h"

namespace kvcast::cuda {

// A thread that runs `body`. KVC_OUT_OF_MEMORY, with the system's number and what helps, when
// there is none to be had; `purpose` says what for.
template <typename Body>
[[nodiscard]] std::thread StartThread(const char* purpose, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(KVC_OUT_OF_MEMORY,
                std::string("the system starts no thread ") + purpose + " (" + error.what() +
                    "): raise the limit of processes (ulimit -u) or of the control group "
                    "(pids.max), or end others",
                error.code().value());
  }
}

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_THREAD_START_H_
