// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A stream table on the fake driver, for the tests of what is noted there.
#ifndef KVCAST_TESTS_NATIVE_CUDA_STREAMS_H_
#define KVCAST_TESTS_NATIVE_CUDA_STREAMS_H_

#include <cstdint>
#include <memory>
#include <thread>

#include "cuda/src/stream_table.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {

// Repeats a question until the answer is yes; a test that never gets there is
// ended by the runner.
template <typename Question>
void Until(Question&& question) {
  while (!question()) std::this_thread::yield();
}

class CudaStreams : public CudaTest {
 protected:
  void Open() {
    context_ = std::make_unique<DeviceContext>(OpenDriver(), 0);
    events_ = std::make_unique<EventPool>(*context_);
    table_ = std::make_unique<StreamTable>(*context_, *events_);
  }
  // What Open has made goes; it can be opened again.
  void Close() {
    table_.reset();
    if (events_ != nullptr) {
      EXPECT_EQ(events_->in_use(), 0u);
    }
    events_.reset();
    context_.reset();
  }
  void TearDown() override {
    fakecuda_hold(0);
    Close();
    CudaTest::TearDown();
  }
  bool ReachedSoon(uint32_t slot, uint64_t position) {
    Until([&] {
      table_->Poll();
      return table_->Reached(slot, position) || table_->broken() != nullptr;
    });
    return table_->Reached(slot, position);
  }

  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<EventPool> events_;
  std::unique_ptr<StreamTable> table_;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_STREAMS_H_
