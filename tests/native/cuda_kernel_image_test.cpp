// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// What our kernels' loader says when they cannot be had.

#include <cstring>
#include <string>

#include "cuda/src/kernel_image.h"
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

class CudaKernelImage : public CudaTest {
 protected:
  // The error of loading with that table, which must be one.
  static Error Refused(const DriverApi& api) {
    const DeviceContext context(api, 0);
    try {
      const KernelImage image(context);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "kernels were loaded";
    return Error(KVC_OK, "");
  }
};

TEST_F(CudaKernelImage, ANumberOfMultiprocessorsThatCannotBeIsAnError) {
  for (const int number : {0, -1, 1 << 16, 0x7FFFFFFF}) {
    options_.multiprocessors = number;
    Restart();
    const Error error = Refused(OpenDriver());
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_NE(std::string(error.what()).find(std::to_string(number) + " multiprocessors"),
              std::string::npos)
        << error.what();
    EXPECT_EQ(fakecuda_calls("cuModuleLoadDataEx"), 0u);
  }
}

TEST_F(CudaKernelImage, TheTranslatorsWordsAreInTheError) {
  DriverApi api = OpenDriver();
  api.module_load = [](ModuleHandle*, const void*, unsigned count, int* options,
                       void** values) -> Result {
    char* log = nullptr;
    size_t room = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == kJitErrorLogBuffer) log = static_cast<char*>(values[i]);
      if (options[i] == kJitErrorLogBufferSize) room = reinterpret_cast<size_t>(values[i]);
    }
    const char said[] = "ptxas: not in this dialect";
    if (room < sizeof said) return kErrorInvalidValue;
    std::memcpy(log, said, sizeof said);
    return kErrorInvalidImage;
  };
  const Error error = Refused(api);
  EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
  EXPECT_EQ(error.system_code(), kErrorInvalidImage);
  EXPECT_NE(std::string(error.what()).find(": ptxas: not in this dialect"), std::string::npos)
      << error.what();
}

TEST_F(CudaKernelImage, NoMemoryForTheKernelsIsNotABrokenDevice) {
  fakecuda_inject("cuModuleLoadDataEx", 1, kErrorOutOfMemory);
  const Error error = Refused(OpenDriver());
  EXPECT_EQ(error.status(), KVC_OUT_OF_MEMORY);
  EXPECT_EQ(error.system_code(), kErrorOutOfMemory);
}

// A container may have the driver without its translator.
TEST_F(CudaKernelImage, WhatHelpsIsSaidWhereTheDriverDoesNotTranslate) {
  struct Case {
    Result code;
    const char* helps;
  };
  for (const Case& c : {Case{kErrorJitCompilerNotFound, "libnvidia-ptxjitcompiler.so.1"},
                        Case{kErrorJitCompilationDisabled, "CUDA_DISABLE_PTX_JIT"},
                        Case{kErrorUnsupportedPtxVersion, "11.8"}}) {
    fakecuda_inject("cuModuleLoadDataEx", 1, c.code);
    const Error error = Refused(OpenDriver());
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_EQ(error.system_code(), c.code);
    EXPECT_NE(std::string(error.what()).find(c.helps), std::string::npos) << error.what();
  }
}

TEST_F(CudaKernelImage, AKernelThatIsMissingLeavesNoModuleBehind) {
  for (uint64_t n = 1; n <= 4; ++n) {
    fakecuda_inject("cuModuleGetFunction", n, kErrorNotFound);
    const Error error = Refused(OpenDriver());
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_EQ(fakecuda_live_objects().modules, 0u);
  }
}

}  // namespace
}  // namespace kvcast::cuda
