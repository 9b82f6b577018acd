// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// An open device table on the fake driver, for the tests of what is uploaded there.
#ifndef KVCAST_TESTS_NATIVE_CUDA_OPEN_TABLE_H_
#define KVCAST_TESTS_NATIVE_CUDA_OPEN_TABLE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/src/cuda_tables.h"
#include "tests/native/cuda_streams.h"

namespace kvcast::cuda {

// A table of 2 rows and 8 columns with 64 entries of staging, and a stream to upload on.
class CudaOpenTable : public CudaStreams {
 protected:
  void SetUp() override {
    CudaStreams::SetUp();
    OpenAll();
  }
  void TearDown() override {
    fakecuda_inject(nullptr, 0, 0);
    CloseAll();
    CudaStreams::TearDown();
  }
  void OpenAll() {
    Open();
    kernels_ = std::make_unique<KernelImage>(*context_);
    tables_ = std::make_unique<CudaTables>(*context_, *events_, *kernels_, *table_);
    slot_ = table_->Open();
    id_ = tables_->Open(2, 8, -1, 64, &address_);
  }
  void CloseAll() {
    tables_.reset();
    table_.reset();  // its notes hold what is staged
    kernels_.reset();
    Close();
  }
  [[nodiscard]] CudaTables::SlotNow On() const {
    return [this] { return slot_; };
  }
  void Update(int32_t value = 1) {
    const kvc_table_delta delta{0, 0, value};
    tables_->Update(On(), id_, 1, &delta);
  }
  void Write(uint32_t rows, int32_t value) {
    const std::vector<int32_t> entries(size_t{rows} * 8, value);
    tables_->Write(On(), id_, {0, rows, 8, entries.data()});
  }
  // All that can run has run, and its staging is back.
  void Settle() {
    fakecuda_settle();
    tables_->Poll();
  }
  void SubmitAndSettle() {
    EXPECT_EQ(table_->Submit(), 0u);
    Settle();
  }
  [[nodiscard]] int32_t First() const {
    int32_t first = 0;
    const std::vector<uint8_t> bytes = Download(*context_, address_, sizeof first);
    std::memcpy(&first, bytes.data(), sizeof first);
    return first;
  }

  std::unique_ptr<KernelImage> kernels_;
  std::unique_ptr<CudaTables> tables_;
  uint32_t slot_ = 0;
  uint64_t id_ = 0;
  uint64_t address_ = 0;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_TESTS_NATIVE_CUDA_OPEN_TABLE_H_
