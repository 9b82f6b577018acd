// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Which bytes of a page belong to its first tokens.
#include <algorithm>

#include "native/src/geometry.h"
#include "native/src/status.h"

namespace kvcast {

namespace page_parts {

constexpr uint64_t kMostPieces = uint64_t{1} << 22;

// What a buffer's first `tokens` tokens take.
void Add(const kvc_geometry& geometry, const kvc_buffer& buffer, uint32_t tokens, uint64_t* pieces,
         std::vector<PagePart>* parts) {
  const uint64_t row_tokens = geometry.kernel_tokens / buffer.rows;  // scales: several
  const uint64_t head_bytes = (uint64_t{buffer.dims} * buffer.element_bits + 7) / 8;
  const bool dense = buffer.head_stride == head_bytes;  // the heads of a row touch
  for (uint32_t first = 0, block = 0; first < tokens; first += geometry.kernel_tokens, ++block) {
    const uint64_t here = std::min(geometry.kernel_tokens, tokens - first);
    const uint64_t rows = (here + row_tokens - 1) / row_tokens;
    const uint64_t heads = dense ? 1 : buffer.heads;
    if (rows > page_parts::kMostPieces / heads || (*pieces += rows * heads) > kMostPieces) {
      throw Error(KVC_INVALID_ARGUMENT,
                  "the tokens of a page lie in more than 2^22 pieces over all fillings");
    }
    const uint64_t bytes = dense ? buffer.heads * head_bytes : head_bytes;
    const uint64_t base = buffer.page_offset + block * buffer.kernel_bytes;
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t head = 0; head < heads; ++head) {
        parts->push_back({base + row * buffer.row_stride + head * buffer.head_stride, bytes});
      }
    }
  }
}

}  // namespace page_parts

std::vector<std::vector<PagePart>> PageParts(const kvc_geometry& geometry, uint32_t count,
                                             const kvc_buffer* buffers) {
  std::vector<std::vector<PagePart>> parts(geometry.tokens_per_block);
  uint64_t pieces = 0;
  for (uint32_t tokens = 1; tokens <= geometry.tokens_per_block; ++tokens) {
    std::vector<PagePart>& of = parts[tokens - 1];
    for (uint32_t i = 0; i < count; ++i) {
      page_parts::Add(geometry, buffers[i], tokens, &pieces, &of);
    }
    std::sort(of.begin(), of.end(),
              [](const PagePart& a, const PagePart& b) { return a.offset < b.offset; });
    size_t kept = 0;
    for (size_t i = 1; i < of.size(); ++i) {
      const bool touch = of[kept].offset + of[kept].bytes == of[i].offset;
      if (touch) {
        of[kept].bytes += of[i].bytes;
      } else {
        of[++kept] = of[i];
      }
    }
    of.resize(kept + 1);
    of.shrink_to_fit();
  }
  return parts;
}

}  // namespace kvcast
