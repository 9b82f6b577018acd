// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/src/copy_plan.h"

#include <algorithm>

namespace kvcast::cuda {

namespace copy_plan {

constexpr uint64_t kToDeviceBelow = 28 << 10;
constexpr uint32_t kToDevicePieces = 16;
// A single piece is one call of the engine, which needs no table.
constexpr uint32_t kOnDevicePieces = 2;

}  // namespace copy_plan

CopyPolicy PublishedPolicy(bool coherent_link) {
  CopyPolicy policy;
  Threshold& on = policy.kernel[static_cast<int>(Direction::kOnDevice)];
  Threshold& to_device = policy.kernel[static_cast<int>(Direction::kToDevice)];
  Threshold& to_host = policy.kernel[static_cast<int>(Direction::kToHost)];
  on = {UINT64_MAX, copy_plan::kOnDevicePieces};
  if (coherent_link) {
    to_device = to_host = {UINT64_MAX, 1};
  } else {
    to_device = {copy_plan::kToDeviceBelow, copy_plan::kToDevicePieces};
    to_host = {0, 0};
  }
  return policy;
}

Method Choose(const CopyPolicy& policy, Direction direction, uint64_t longest, size_t pieces,
              bool aligned) {
  if (policy.forced != Method::kAuto) return policy.forced;
  const Threshold& kernel = policy.kernel[static_cast<int>(direction)];
  return aligned && longest < kernel.below && pieces >= kernel.pieces ? Method::kKernel
                                                                      : Method::kEngine;
}

bool Independent(const std::vector<Piece>& pieces, std::vector<Piece>* scratch) {
  // Intervals in one list, sorted by their start; `to` says whether it is written.
  std::vector<Piece>& spans = *scratch;
  spans.clear();
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    spans.push_back({piece.from, 0, piece.bytes});
    spans.push_back({piece.to, 1, piece.bytes});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Piece& a, const Piece& b) { return a.from < b.from; });
  // How far what has been seen so far reaches, of all of it and of what is written.
  uint64_t all_end = 0;
  uint64_t written_end = 0;
  for (const Piece& span : spans) {
    const bool written = span.to != 0;
    if (span.from < (written ? all_end : written_end)) return false;
    all_end = std::max(all_end, span.from + span.bytes);
    if (written) written_end = std::max(written_end, span.from + span.bytes);
  }
  return true;
}

size_t MergeNeighbours(std::vector<Piece>* pieces) {
  if (pieces->size() < 2) return 0;
  const auto before = [](const Piece& a, const Piece& b) { return a.from < b.from; };
  // Usually they come sorted.
  if (!std::is_sorted(pieces->begin(), pieces->end(), before)) {
    std::sort(pieces->begin(), pieces->end(), before);
  }
  size_t kept = 0;
  for (size_t i = 1; i < pieces->size(); ++i) {
    Piece& last = (*pieces)[kept];
    const Piece& next = (*pieces)[i];
    if (last.from + last.bytes == next.from && last.to + last.bytes == next.to) {
      last.bytes += next.bytes;
    } else {
      (*pieces)[++kept] = next;
    }
  }
  const size_t saved = pieces->size() - kept - 1;
  pieces->resize(kept + 1);
  return saved;
}

bool Aligned(const std::vector<Piece>& pieces) {
  uint64_t bits = 0;
  for (const Piece& piece : pieces) bits |= piece.from | piece.to | piece.bytes;
  return bits % 16 == 0;
}

}  // namespace kvcast::cuda
