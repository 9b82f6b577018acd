// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The image of a build with nvcc: the fat binary first, the PTX when it holds
// nothing for the GPU. The loader is compiled anew here, with a fat binary in it.

#define KVC_CUDA_FATBIN "tests/fakecuda/fatbin.inc"
#include "cuda/src/kernel_image.cpp"  // NOLINT: on purpose
#include "tests/native/cuda_support.h"

namespace kvcast::cuda {
namespace {

class CudaFatBinary : public CudaTest {};

TEST_F(CudaFatBinary, IsTakenFirst) {
  const DeviceContext context(OpenDriver(), 0);
  const KernelImage image(context);
  EXPECT_STREQ(image.source(), "fatbin");
  EXPECT_EQ(fakecuda_calls("cuModuleLoadDataEx"), 1u);
}

TEST_F(CudaFatBinary, GivesWayToThePtxOnAGpuItDoesNotKnow) {
  options_.refuse_fat_binary = 1;
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  const KernelImage image(context);
  EXPECT_STREQ(image.source(), "ptx");
  EXPECT_EQ(fakecuda_calls("cuModuleLoadDataEx"), 2u);
}

TEST_F(CudaFatBinary, NoImageAtAllIsAnErrorInWords) {
  options_.refuse_fat_binary = 1;
  Restart();
  const DeviceContext context(OpenDriver(), 0);
  fakecuda_inject("cuModuleLoadDataEx", 2, kErrorInvalidImage);
  try {
    const KernelImage image(context);
    FAIL() << "an image was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_DEVICE_ERROR);
    EXPECT_EQ(error.system_code(), kErrorInvalidImage);
  }
}

}  // namespace
}  // namespace kvcast::cuda
