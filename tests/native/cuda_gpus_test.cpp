// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Two GPUs of which others hold some of the memory: what is told of the second is its own, a
// pool for it takes its memory and no other's, whoever made the context, and a budget is of
// what is free.

#include <cstring>
#include <string>

#include "kvcast/kvcast.h"
#include "tests/native/cuda_support.h"
#include "tests/native/owned_handle.h"

namespace kvcast::cuda {
namespace {

using kvcast::testing::OwnedManager;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTotal = 256 * kMiB;
constexpr uint64_t kFree = 192 * kMiB;
constexpr uint32_t kPages = 16;

// What makes the pool's memory, and whose context it is.
struct Way {
  bool elastic;
  bool callers;
};

std::string Name(const ::testing::TestParamInfo<Way>& info) {
  return std::string(info.param.elastic ? "InChunks" : "InOne") +
         (info.param.callers ? "OfTheCallers" : "OfThePrimary");
}

class CudaGpus : public CudaTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    options_.devices = 2;
    options_.memory_bytes = kTotal;
    options_.reserved_bytes = kTotal - kFree;
    CudaTest::SetUp();
    ASSERT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << error_.message;
  }
  [[nodiscard]] kvc_cuda_device Device(uint32_t ordinal) {
    kvc_cuda_device device{};
    EXPECT_EQ(kvc_cuda_device_get(ordinal, &device, &error_), KVC_OK) << error_.message;
    return device;
  }
  [[nodiscard]] static kvc_config Config(uint32_t pages) {
    kvc_config config;
    kvc_config_init(&config);
    config.device = KVC_DEVICE_CUDA;
    config.capacity_blocks = pages;
    config.page_bytes = kMiB;
    config.copies = KVC_COPY_PUBLISHED;
    return config;
  }

  kvc_error error_{};
};

TEST_F(CudaGpus, EachIsToldOfByItself) {
  for (uint32_t ordinal = 0; ordinal < 2; ++ordinal) {
    const kvc_cuda_device device = Device(ordinal);
    EXPECT_STREQ(device.name, ordinal == 0 ? "fake CUDA device" : "fake CUDA device 1");
    EXPECT_EQ(device.total_bytes, kTotal);
    EXPECT_EQ(device.free_bytes, kFree);
    EXPECT_EQ(device.driver_version, 13000u);
    EXPECT_EQ(device.capability, 90u);
    EXPECT_EQ(device.multiprocessors, 2 + ordinal);
    EXPECT_EQ(device.virtual_memory, 1u);
    EXPECT_EQ(device.batch_copies, 1u);
  }
  kvc_cuda_device device{};
  EXPECT_EQ(kvc_cuda_device_get(2, &device, &error_), KVC_INVALID_ARGUMENT);
}

TEST_F(CudaGpus, OneWithoutVirtualMemoryManagementIsToldAsThat) {
  options_.virtual_memory = 0;
  Restart();
  EXPECT_EQ(Device(1).virtual_memory, 0u);
}

TEST_F(CudaGpus, ABudgetIsOfWhatIsFree) {
  uint64_t pages = 0;
  EXPECT_EQ(kvc_cuda_budget(1, kMiB, 0, 0.5, &pages, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(pages, kFree / kMiB / 2);
  EXPECT_EQ(kvc_cuda_budget(1, kMiB, kFree, 0, &pages, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(pages, kFree / kMiB);
  EXPECT_EQ(kvc_cuda_budget(1, kMiB, kFree + kMiB, 0, &pages, &error_), KVC_OUT_OF_MEMORY);
  // Of the GPU that is asked for.
  kvc_config config = Config(kPages);
  config.device_ordinal = 1;
  OwnedManager manager;
  ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OK) << error_.message;
  EXPECT_EQ(kvc_cuda_budget(0, kMiB, 0, 1, &pages, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(pages, kFree / kMiB);
  EXPECT_EQ(kvc_cuda_budget(1, kMiB, 0, 1, &pages, &error_), KVC_OK) << error_.message;
  EXPECT_LE(pages, kFree / kMiB - kPages);
}

TEST_F(CudaGpus, WhatFitsTheTotalButNotWhatIsFreeIsRefused) {
  for (const uint32_t ordinal : {0u, 1u}) {
    kvc_config config = Config(static_cast<uint32_t>(kFree / kMiB) + 1);
    config.device_ordinal = ordinal;
    OwnedManager manager;
    EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OUT_OF_MEMORY);
    const std::string said = std::to_string(kFree) + " bytes that are free";
    EXPECT_NE(std::strstr(error_.message, said.c_str()), nullptr) << error_.message;
  }
}

TEST_F(CudaGpus, OneThatIsNotThereIsRefused) {
  kvc_config config = Config(kPages);
  config.device_ordinal = 2;
  OwnedManager manager;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
}

TEST_P(CudaGpus, APoolTakesTheMemoryOfItsOwn) {
  kvc_config config = Config(kPages);
  if (GetParam().elastic) config.max_blocks = 4 * kPages;
  void* const theirs = fakecuda_context_create(1);
  if (GetParam().callers) {
    config.flags = KVC_CONFIG_CALLERS_CONTEXT;  // which says what GPU it is: not the ordinal
    fakecuda_context_push(theirs);
  } else {
    config.device_ordinal = 1;
  }
  {
    OwnedManager manager;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OK)
        << error_.message;
    EXPECT_EQ(fakecuda_calls("cuMemCreate") > 0, GetParam().elastic);
    EXPECT_EQ(Device(0).free_bytes, kFree);
    EXPECT_LE(Device(1).free_bytes, kFree - kPages * kMiB);
    // Work of the pool runs there.
    uint64_t table = 0;
    uint64_t address = 0;
    ASSERT_EQ(kvc_device_table_create(manager, 2, 8, -1, 64, &table, &address, &error_), KVC_OK)
        << error_.message;
    uint64_t stream = 0;
    ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK) << error_.message;
    const kvc_table_delta delta{1, 3, 7};
    ASSERT_EQ(kvc_device_table_update(manager, table, stream, 1, &delta, &error_), KVC_OK)
        << error_.message;
    EXPECT_GT(fakecuda_calls("cuLaunchKernel"), 0u);
    fakecuda_settle();
    if (GetParam().callers) {
      EXPECT_EQ(fakecuda_context_current(), theirs);
    }
    ASSERT_EQ(kvc_manager_destroy(manager.Take(), &error_), KVC_OK) << error_.message;
  }
  EXPECT_EQ(Device(0).free_bytes, kFree);
  EXPECT_EQ(Device(1).free_bytes, kFree);
  if (GetParam().callers) {
    EXPECT_EQ(fakecuda_context_pop(), theirs);
  }
  fakecuda_context_destroy(theirs);
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaGpus,
                         ::testing::Values(Way{false, false}, Way{false, true}, Way{true, false},
                                           Way{true, true}),
                         Name);

// Nothing is written, and nobody's memory is, where there is no place for the answer.
TEST_F(CudaGpus, NoPlaceForTheAnswerIsRefused) {
  EXPECT_EQ(kvc_cuda_open(nullptr, &error_), KVC_OK) << "the number of GPUs need not be told";
  EXPECT_EQ(kvc_cuda_device_get(0, nullptr, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_cuda_budget(0, kMiB, kMiB, 0, nullptr, &error_), KVC_INVALID_ARGUMENT);
  const kvc_config config = Config(kPages);
  OwnedManager manager;
  ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OK) << error_.message;
  uint64_t stream = 0;
  ASSERT_EQ(kvc_device_stream_create(manager, &stream, &error_), KVC_OK) << error_.message;
  EXPECT_EQ(kvc_cuda_stream_adopt(manager, nullptr, nullptr, &error_), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_cuda_stream_get(manager, stream, nullptr, &error_), KVC_INVALID_ARGUMENT);
}

TEST_F(CudaGpus, PoisonIsForTheHostDevice) {
  kvc_config config = Config(kPages);
  config.flags = KVC_CONFIG_POISON;
  OwnedManager manager;
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error_.message, "KVC_CONFIG_POISON"), nullptr) << error_.message;
}

// Only want of memory is told as that: what else the driver says of an elastic pool is its own.
TEST_F(CudaGpus, AnElasticPoolThatTheDriverRefusesIsADeviceError) {
  kvc_config config = Config(kPages);
  config.max_blocks = 4 * kPages;
  OwnedManager manager;
  fakecuda_inject("cuMemAddressReserve", 1, kErrorInvalidValue);
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_DEVICE_ERROR);
  EXPECT_EQ(error_.system_code, kErrorInvalidValue);
  fakecuda_inject("cuMemAddressReserve", 1, kErrorOutOfMemory);
  EXPECT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OUT_OF_MEMORY);
  EXPECT_NE(std::strstr(error_.message, "2 MiB in reserve"), nullptr) << error_.message;
}

// Nothing of the primary context is retained, and so nothing released, for a caller's.
TEST_F(CudaGpus, AContextOfTheCallersLeavesThePrimaryOneAlone) {
  const DeviceContext primary(OpenDriver(), 1);
  void* const theirs = fakecuda_context_create(1);
  fakecuda_context_push(theirs);
  for (int i = 0; i < 2; ++i) {
    kvc_config config = Config(kPages);
    config.flags = KVC_CONFIG_CALLERS_CONTEXT;
    OwnedManager manager;
    ASSERT_EQ(kvc_manager_create(&config, nullptr, manager.out(), &error_), KVC_OK)
        << error_.message;
  }
  EXPECT_EQ(fakecuda_calls("cuDevicePrimaryCtxRelease"), 0u);
  EXPECT_EQ(fakecuda_context_pop(), theirs);
  fakecuda_context_destroy(theirs);
}

}  // namespace
}  // namespace kvcast::cuda
