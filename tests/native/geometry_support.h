// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Models' geometries for tests, made through the C ABI, and the address of an
// element as kvcast.h gives it, in 128-bit arithmetic: a sum that wraps in the
// library does not wrap here.
#ifndef KVCAST_TESTS_NATIVE_GEOMETRY_SUPPORT_H_
#define KVCAST_TESTS_NATIVE_GEOMETRY_SUPPORT_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"

namespace kvcast::testing {

__extension__ using Wide = unsigned __int128;

struct Model {
  kvc_geometry_config config{};
  std::vector<kvc_buffer_spec> specs;
  std::vector<kvc_buffer> buffers;
  kvc_geometry geometry{};

  Model() { kvc_geometry_config_init(&config); }

  void Add(uint32_t layer, kvc_role role, kvc_dtype dtype, uint32_t heads, uint32_t head_dim,
           uint32_t group = 0, uint32_t scale_tokens = 0, uint32_t scale_elements = 0) {
    specs.push_back({layer, group, role, dtype, heads, head_dim, scale_tokens, scale_elements});
  }
  // Keys and values, as most models have them.
  void AddLayers(uint32_t layers, kvc_dtype dtype, uint32_t heads, uint32_t head_dim) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      Add(layer, KVC_ROLE_KEY, dtype, heads, head_dim);
      Add(layer, KVC_ROLE_VALUE, dtype, heads, head_dim);
    }
  }
  void AddLatentLayers(uint32_t layers, kvc_dtype dtype, uint32_t latent, uint32_t rope) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      Add(layer, KVC_ROLE_LATENT, dtype, 1, latent);
      Add(layer, KVC_ROLE_ROPE, dtype, 1, rope);
    }
  }

  // "" or the message of the refusal.
  std::string Compute() {
    kvc_error error{};
    buffers.assign(specs.size(), {});
    const kvc_status status = kvc_geometry_compute(&config, static_cast<uint32_t>(specs.size()),
                                                   specs.data(), buffers.data(), &geometry, &error);
    return status == KVC_OK ? "" : error.message;
  }
  std::string View(uint32_t layer, kvc_view_kind kind, std::vector<kvc_tensor_view>* views) const {
    kvc_error error{};
    uint32_t written = 0;
    views->assign(KVC_VIEW_TENSORS, {});
    const kvc_status status =
        kvc_geometry_view(&geometry, static_cast<uint32_t>(buffers.size()), buffers.data(), layer,
                          kind, views->data(), &written, &error);
    views->resize(status == KVC_OK ? written : 0);
    return status == KVC_OK ? "" : error.message;
  }

  [[nodiscard]] size_t Index(uint32_t layer, kvc_role role) const {
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].layer == layer && specs[i].role == role) return i;
    }
    return specs.size();
  }
  // In bits from the start of the pool, by the formula of kvcast.h.
  [[nodiscard]] Wide Bit(size_t i, uint64_t page, uint64_t token, uint64_t head,
                         uint64_t dim) const {
    const kvc_buffer& b = buffers[i];
    const uint64_t scale_tokens = specs[i].scale_tokens == 0 ? 1 : specs[i].scale_tokens;
    uint64_t scale_elements = 1;
    if (b.dims != specs[i].head_dim) scale_elements = specs[i].head_dim / b.dims;
    const uint64_t kernel = geometry.kernel_tokens;
    return 8 * (Wide{b.base_offset} + Wide{page} * b.page_stride +
                Wide{token / kernel} * b.kernel_bytes +
                Wide{token % kernel / scale_tokens} * b.row_stride + Wide{head} * b.head_stride) +
           Wide{dim / scale_elements} * b.element_bits;
  }
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_GEOMETRY_SUPPORT_H_
