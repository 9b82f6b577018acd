// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which copies may go together, which become one, and who makes them. Pure
// arithmetic: no driver.
#ifndef KVCAST_CUDA_SRC_COPY_PLAN_H_
#define KVCAST_CUDA_SRC_COPY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcast::cuda {

enum class Direction { kOnDevice = 0, kToDevice = 1, kToHost = 2 };
inline constexpr int kDirections = 3;

enum class Method { kAuto, kEngine, kKernel };

struct Piece {
  uint64_t from;
  uint64_t to;
  uint64_t bytes;
};

// When the kernel makes a batch of copies, per direction: pieces shorter than
// `below` bytes, at least `pieces` of them.
struct Threshold {
  uint64_t below = 0;
  uint32_t pieces = 0;
};

struct CopyPolicy {
  // Other than kAuto: that one, however large and aligned the pieces are (tests, and users
  // who know better).
  Method forced = Method::kAuto;
  Threshold kernel[kDirections];
};

// Before calibration, by what has been published:
// - On the device the kernel, always.
// - To the device the copy engine from 28 KiB a piece, below it the kernel if there
//   are 16 pieces (vLLM's rule; #57555 saw the crossover at 32-64 pieces of up to
//   24 KiB on an A30).
// - To the host the copy engine, always: stores of an H100 to host memory stay near
//   8.5 GiB/s, its engine reaches 17.5 over PCIe 4.
// - Over a coherent link (NVLink-C2C) the kernel, both ways.
[[nodiscard]] CopyPolicy PublishedPolicy(bool coherent_link);

// `longest` of `pieces` equal or shorter pieces. Unless a method is forced, pieces that are
// not `aligned` (see Aligned) go to the engine: a kernel would move bytes one by one, all of
// a piece where source and destination are not equally far from a multiple of 16.
[[nodiscard]] Method Choose(const CopyPolicy& policy, Direction direction, uint64_t longest,
                            size_t pieces, bool aligned);

// No piece reads or writes what another one writes: any order gives the same.
// `scratch` is working memory, kept by the caller so that none is allocated.
[[nodiscard]] bool Independent(const std::vector<Piece>& pieces, std::vector<Piece>* scratch);

// Sorts independent pieces and joins those that continue each other on both
// sides. Returns how many were saved.
size_t MergeNeighbours(std::vector<Piece>* pieces);

// Sources and destinations of all pieces, and their lengths, are multiples of 16.
[[nodiscard]] bool Aligned(const std::vector<Piece>& pieces);

}  // namespace kvcast::cuda

#endif  // KVCAST_CUDA_SRC_COPY_PLAN_H_
