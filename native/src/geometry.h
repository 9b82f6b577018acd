// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Where the bytes of a model's keys and values lie in the pool, and how
// attention kernels address them. Pure arithmetic, all of it 64-bit and checked.
#ifndef KVCAST_NATIVE_SRC_GEOMETRY_H_
#define KVCAST_NATIVE_SRC_GEOMETRY_H_

#include <cstdint>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/device.h"

namespace kvcast {

// Sums and products that throw when they leave 2^63 - 1: pointers into the pool
// are computed with signed offsets by most kernels.
[[nodiscard]] uint64_t CheckedAdd(uint64_t a, uint64_t b);
[[nodiscard]] uint64_t CheckedMul(uint64_t a, uint64_t b);

[[nodiscard]] uint32_t ElementBits(kvc_dtype dtype);  // 0 for what is no dtype

// See kvc_geometry_compute. Throws Error naming the field.
void ComputeGeometry(const kvc_geometry_config& config, uint32_t count,
                     const kvc_buffer_spec* specs, kvc_buffer* buffers, kvc_geometry* out);

// Where the first t tokens of a coalesced page are, for each t from 1 on, in the order
// of offsets and joined where they touch. Throws Error for what has too many pieces.
[[nodiscard]] std::vector<std::vector<PagePart>> PageParts(const kvc_geometry& geometry,
                                                           uint32_t count,
                                                           const kvc_buffer* buffers);

// See kvc_geometry_view. Throws Error naming what the consumer cannot express.
uint32_t ComputeView(const kvc_geometry& geometry, uint32_t count, const kvc_buffer* buffers,
                     uint32_t layer, kvc_view_kind kind, kvc_tensor_view* views);

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_GEOMETRY_H_
