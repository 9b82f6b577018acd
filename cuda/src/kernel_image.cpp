// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/kernel_image.h"

#include <algorithm>
#include <exception>
#include <string>

namespace kvcast::cuda {

namespace kernel_image {

constexpr char kPtx[] = {
#include "cuda/kernels/kernels_ptx.inc"
};
#if defined(KVC_CUDA_FATBIN)
// A build with nvcc makes it and names the file; see cuda/cmake/fatbin.cmake.
alignas(16) constexpr unsigned char kFatBinary[] = {
#include KVC_CUDA_FATBIN
};
#endif

// Blocks per multiprocessor at most. Registers (`make cuda-check` tells how many) and, on sm_86,
// sm_89 and sm_120, room for 1536 threads let 11 or 12 of them run at a time: with 16 there are
// others to take the place of those that are done first.
constexpr uint32_t kBlocksPerMultiprocessor = 16;
// What no GPU has. Their product is far from overflow.
constexpr int kTooManyMultiprocessors = 1 << 16;

uint32_t MostBlocks(const DeviceContext& context) {
  const int multiprocessors = context.multiprocessors();
  if (multiprocessors <= 0 || multiprocessors >= kTooManyMultiprocessors) {
    throw Error(KVC_DEVICE_ERROR, "the driver says that the device has " +
                                      std::to_string(multiprocessors) + " multiprocessors");
  }
  return static_cast<uint32_t>(multiprocessors) * kBlocksPerMultiprocessor;
}
// The hardware's limit on gridDim.y.
constexpr uint32_t kMostRows = 65535;

// What helps, where the driver does not translate.
const char* Remedy(Result code) {
  switch (code) {
    case kErrorJitCompilerNotFound:
      return " (the driver's translator is missing: bring libnvidia-ptxjitcompiler.so.1 of the "
             "same "
             "release into the container, or build with nvcc, see KVC_CUDA_FATBIN)";
    case kErrorJitCompilationDisabled:
      return " (translation has been switched off: unset CUDA_DISABLE_PTX_JIT and "
             "CUDA_DISABLE_JIT, "
             "or build with nvcc, see KVC_CUDA_FATBIN)";
    case kErrorUnsupportedPtxVersion:
      return " (the driver is older than CUDA 11.8: install a newer one)";
    default:
      return "";
  }
}

}  // namespace kernel_image

KernelImage::KernelImage(const DeviceContext& context)
    : context_(context), most_blocks_(kernel_image::MostBlocks(context)) {
  const ContextScope scope(context);
  Load();
  const DriverApi& api = context.api();
  try {
    KVCAST_CUDA(api, module_function, &copy_pages_, module_, "kvcast_copy_pages");
    KVCAST_CUDA(api, module_function, &copy_ranges_, module_, "kvcast_copy_ranges");
    KVCAST_CUDA(api, module_function, &fill_pages_, module_, "kvcast_fill_pages");
    KVCAST_CUDA(api, module_function, &update_table_, module_, "kvcast_update_table");
  } catch (...) {
    api.module_unload(module_);
    throw;
  }
}

KernelImage::~KernelImage() {
  if (ForkedSinceOpen()) return;
  try {
    const ContextScope scope(context_);
    context_.api().module_unload(module_);
  } catch (const std::exception&) {
    // The context is gone, and with it its modules.
  }
}

void KernelImage::Load() {
  const DriverApi& api = context_.api();
#if defined(KVC_CUDA_FATBIN)
  // Refused when it holds nothing for this GPU: the PTX serves newer ones too.
  if (api.module_load(&module_, kernel_image::kFatBinary, 0, nullptr, nullptr) == kSuccess) {
    source_ = "fatbin";
    return;
  }
#endif
  char log[1024] = {};
  int options[] = {kJitErrorLogBuffer, kJitErrorLogBufferSize};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  const Result result = api.module_load(&module_, kernel_image::kPtx, 2, options, values);
  if (result != kSuccess) {
    throw Error(result == kErrorOutOfMemory ? KVC_OUT_OF_MEMORY : KVC_DEVICE_ERROR,
                Describe(api, "cuModuleLoadDataEx", result) + (log[0] != '\0' ? ": " : "") + log +
                    kernel_image::Remedy(result),
                result);
  }
}

void KernelImage::Launch(FunctionHandle function, StreamHandle stream, uint64_t blocks_x,
                         uint32_t blocks_y, const void* args) const {
  const auto x = static_cast<unsigned>(std::clamp<uint64_t>(blocks_x, 1, most_blocks_));
  void* parameters[] = {const_cast<void*>(args)};
  KVCAST_CUDA_TRIED(context_.api(), launch, function, x, blocks_y, 1, kernels::kThreads, 1, 1, 0,
                    stream, parameters, nullptr);
}

void KernelImage::CopyPages(StreamHandle stream, const kernels::CopyPagesArgs& args) const {
  if (args.count == 0 || args.vectors == 0) return;
  Launch(copy_pages_, stream, kernels::TilesOf(args.vectors) * args.count, 1, &args);
}

void KernelImage::CopyRanges(StreamHandle stream, const kernels::CopyRangesArgs& args,
                             uint64_t longest) const {
  if (args.count == 0 || longest == 0) return;
  const uint32_t rows = std::min({args.count, most_blocks_, kernel_image::kMostRows});
  const uint64_t across = std::min<uint64_t>(kernels::TilesOf(longest / 16 + 1),
                                             std::max<uint32_t>(most_blocks_ / rows, 1));
  Launch(copy_ranges_, stream, across, rows, &args);
}

void KernelImage::FillPages(StreamHandle stream, const kernels::FillPagesArgs& args) const {
  if (args.count == 0 || args.words == 0) return;
  Launch(fill_pages_, stream, kernels::TilesOf((args.words + 1) / 2) * args.count, 1, &args);
}

void KernelImage::UpdateTable(StreamHandle stream, const kernels::UpdateTableArgs& args) const {
  if (args.count == 0) return;
  Launch(update_table_, stream, (args.count + kernels::kThreads - 1) / kernels::kThreads, 1, &args);
}

}  // namespace kvcast::cuda
