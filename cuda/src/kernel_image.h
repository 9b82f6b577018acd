// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Our kernels on a device, and their launches.
#ifndef KVCAST_CUDA_SRC_KERNEL_IMAGE_H_
#define KVCAST_CUDA_SRC_KERNEL_IMAGE_H_

#include <cstdint>

#include "cuda/kernels/page_index.h"
#include "cuda/src/context.h"

namespace kvcast::cuda {

// A fat binary, where the build had nvcc, is tried first; the PTX, which every
// build has, is translated by the driver (once per machine: it keeps a cache).
class KernelImage {
 public:
  // Throws Error, with the translator's own words where it has any.
  explicit KernelImage(const DeviceContext& context);
  ~KernelImage();
  KernelImage(const KernelImage&) = delete;
  KernelImage& operator=(const KernelImage&) = delete;

  // All under a ContextScope; nothing is waited for. Counts of 0 launch nothing.
  void CopyPages(StreamHandle stream, const kernels::CopyPagesArgs& args) const;
  // `longest`: bytes of the longest range, from which the grid is chosen.
  void CopyRanges(StreamHandle stream, const kernels::CopyRangesArgs& args, uint64_t longest) const;
  void FillPages(StreamHandle stream, const kernels::FillPagesArgs& args) const;
  void UpdateTable(StreamHandle stream, const kernels::UpdateTableArgs& args) const;

  // The image that was taken: "fatbin" or "ptx".
  [[nodiscard]] const char* source() const { return source_; }

 private:
  void Load();
  void Launch(FunctionHandle function, StreamHandle stream, uint64_t blocks_x, uint32_t blocks_y,
              const void* args) const;

  const DeviceContext& context_;
  ModuleHandle module_ = nullptr;
  const char* source_ = "ptx";
  uint32_t most_blocks_ = 0;
  FunctionHandle copy_pages_ = nullptr;
  FunctionHandle copy_ranges_ = nullptr;
  FunctionHandle fill_pages_ = nullptr;
  FunctionHandle update_table_ = nullptr;
};

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_KERNEL_IMAGE_H_
