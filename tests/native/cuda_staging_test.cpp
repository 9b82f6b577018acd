// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The staging of copies has a thread of its own, which a forked child has not.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/src/staging.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {
namespace {

using CudaStaging = CudaStreams;

// Whether the child ends well, and by itself.
void ExpectToEnd(pid_t child) {
  int status = 0;
  pid_t ended = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ended == 0 && std::chrono::steady_clock::now() < end) {
    ended = waitpid(child, &status, WNOHANG);
    std::this_thread::yield();
  }
  EXPECT_EQ(ended, child) << "the child hangs";
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Whatever the thread was doing when the child came to be: waiting for work, or for the driver
// with a job and another one behind it.
TEST_F(CudaStaging, AChildThatInheritsItCanEndIt) {
  Open();
  auto staging = std::make_unique<Staging>(*context_, 4096);
  std::vector<uint8_t> bytes(64);
  DevicePtr memory = 0;
  {
    const ContextScope scope(*context_);
    KVCAST_CUDA(context_->api(), memory_alloc, &memory, bytes.size());
  }
  const Staging::Job job{false, memory, bytes.data(), bytes.size(), nullptr};
  staging->WaitFor(staging->Submit(job));
  for (const bool busy : {false, true}) {
    SCOPED_TRACE(busy);
    if (busy) {
      fakecuda_stall("cuMemcpyHtoDAsync", 1);
      (void)staging->Submit(job);
      (void)staging->Submit(job);
      Until([] { return fakecuda_stalled() != 0; });
    }
    const pid_t child = fork();
    if (child == 0) {
      staging.reset();
      _exit(0);
    }
    ExpectToEnd(child);
  }
  fakecuda_let_go();
  staging.reset();
  const ContextScope scope(*context_);
  KVCAST_CUDA(context_->api(), memory_free, memory);
}

}  // namespace
}  // namespace kvcast::cuda
