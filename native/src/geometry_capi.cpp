// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI of the geometry: argument checks, the exception guard, nothing else.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kvcast/kvcast.h"
#include "native/src/capi_call.h"
#include "native/src/geometry.h"

static_assert(sizeof(kvc_geometry_config) == 32 && offsetof(kvc_geometry_config, alignment) == 28);
static_assert(sizeof(kvc_buffer_spec) == 32);
static_assert(sizeof(kvc_buffer) == 112 && offsetof(kvc_buffer, index_bound) == 104);
static_assert(sizeof(kvc_geometry) == 56 && offsetof(kvc_geometry, pages) == 52);
static_assert(sizeof(kvc_tensor_view) == 128 && offsetof(kvc_tensor_view, stride) == 88);

extern "C" {

void kvc_geometry_config_init(kvc_geometry_config* config) KVC_NOEXCEPT {
  if (config == nullptr) return;
  *config = {};
  config->struct_size = sizeof *config;
  config->tokens_per_block = 16;
  config->capacity_blocks = 20000;
  config->alignment = 16;
}

kvc_status kvc_geometry_compute(const kvc_geometry_config* config, uint32_t count,
                                const kvc_buffer_spec* specs, kvc_buffer* buffers,
                                kvc_geometry* out, kvc_error* error) KVC_NOEXCEPT {
  capi::ClearError(error);
  return capi::Guard(error, [&] {
    kvc_geometry_config mine;
    kvc_geometry_config_init(&mine);
    capi::ReadSized(&mine, config,
                    "config is NULL or its struct_size is wrong; use kvc_geometry_config_init");
    capi::RequireArray(specs, count, "specs[] is NULL");
    capi::RequireArray(buffers, count, "buffers[] is NULL");
    capi::Require(out != nullptr, "out is NULL");
    kvcast::ComputeGeometry(mine, count, specs, buffers, out);
    return KVC_OK;
  });
}

kvc_status kvc_page_layout_set(kvc_manager* manager, const kvc_geometry_config* config,
                               uint32_t count, const kvc_buffer_spec* specs,
                               kvc_error* error) KVC_NOEXCEPT {
  return capi::Books(manager, error, [&](kvcast::Manager& core) {
    kvc_geometry_config mine;
    kvc_geometry_config_init(&mine);
    capi::ReadSized(&mine, config,
                    "config is NULL or its struct_size is wrong; use kvc_geometry_config_init");
    capi::RequireArray(specs, count, "specs[] is NULL");
    capi::Require(count <= uint32_t{1} << 20, "count is above 2^20");
    std::vector<kvc_buffer> buffers(count);
    kvc_geometry geometry{};
    kvcast::ComputeGeometry(mine, count, specs, buffers.data(), &geometry);
    core.SetPageLayout(geometry, count, buffers.data());
    return KVC_OK;
  });
}

kvc_status kvc_geometry_view(const kvc_geometry* geometry, uint32_t count,
                             const kvc_buffer* buffers, uint32_t layer, kvc_view_kind kind,
                             kvc_tensor_view views[KVC_VIEW_TENSORS], uint32_t* written,
                             kvc_error* error) KVC_NOEXCEPT {
  capi::ClearError(error);
  return capi::Guard(error, [&] {
    capi::Require(geometry != nullptr, "geometry is NULL");
    capi::Require(geometry->expansion != 0 && geometry->kernel_tokens != 0 && geometry->pages != 0,
                  "geometry was not written by kvc_geometry_compute");
    capi::RequireArray(buffers, count, "buffers[] is NULL");
    capi::Require(views != nullptr, "views is NULL");
    capi::Require(written != nullptr, "written is NULL");
    kvc_tensor_view mine[KVC_VIEW_TENSORS]{};
    *written = kvcast::ComputeView(*geometry, count, buffers, layer, kind, mine);
    std::copy(mine, mine + *written, views);
    return KVC_OK;
  });
}

}  // extern "C"
