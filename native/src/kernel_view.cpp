// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// How attention kernels address a geometry. docs/kernel-views.md has their
// formulas and where these are written down; what a kernel cannot express is
// refused here, because it would read other bytes without a word.
#include <algorithm>
#include <string>

#include "native/src/geometry.h"
#include "native/src/status.h"

namespace kvcast {

namespace kernel_view {

// All of these kernels load 16 bytes at a time.
constexpr uint64_t kLoadBytes = 16;
constexpr uint64_t kMaxIndex = INT32_MAX;  // of entries of an int32 table

[[noreturn]] void Refuse(const std::string& why) { throw Error(KVC_INVALID_ARGUMENT, why); }

const char* Name(kvc_role role) {
  switch (role) {
    case KVC_ROLE_KEY:
      return "key";
    case KVC_ROLE_VALUE:
      return "value";
    case KVC_ROLE_LATENT:
      return "latent";
    default:
      return "rope";
  }
}

class View {
 public:
  View(const kvc_geometry& geometry, uint32_t count, const kvc_buffer* buffers, uint32_t layer)
      : geometry_(geometry), count_(count), buffers_(buffers), layer_(layer) {}

  uint32_t FlashInfer(kvc_tensor_view* views) {
    uint32_t written = 0;
    for (const kvc_role role : {KVC_ROLE_KEY, KVC_ROLE_VALUE}) {
      kvc_tensor_view& v = views[written++];
      v = Paged(Need(role), geometry_.order == KVC_ORDER_HND);
      NarrowStrides(v);
    }
    return written;
  }
  uint32_t FlashInferCombined(kvc_tensor_view* views) {
    views[0] = Combined(geometry_.order == KVC_ORDER_HND, false);
    NarrowStrides(views[0], 1);  // which tells two pointers apart and goes no further
    return 1;
  }
  uint32_t FlashInferMla(kvc_tensor_view* views) {
    views[0] = Rows(Need(KVC_ROLE_LATENT), 0);
    views[1] = Rows(Need(KVC_ROLE_ROPE), 0);
    if (views[0].dtype != views[1].dtype) Refuse("latent and rope must have one dtype");
    for (int i = 0; i < 2; ++i) NarrowStrides(views[i]);
    return 2;
  }
  uint32_t FlashAttention(kvc_tensor_view* views, bool second) {
    const kvc_buffer& key = Need(KVC_ROLE_KEY);
    const kvc_buffer& value = Need(KVC_ROLE_VALUE);
    if (key.dtype != value.dtype) Refuse("FlashAttention takes keys and values of one dtype");
    const bool half = key.dtype == KVC_DTYPE_BF16 || key.dtype == KVC_DTYPE_FP16;
    if (!half && (second || key.dtype != KVC_DTYPE_FP8_E4M3)) {
      Refuse(second ? "FlashAttention 2 takes bf16 and fp16 only"
                    : "FlashAttention takes bf16, fp16 and fp8 e4m3 only");
    }
    if (key.heads != value.heads) Refuse("FlashAttention takes as many value heads as key heads");
    if (second && key.dims != value.dims) {
      Refuse("FlashAttention 2 takes keys and values of one head_dim");
    }
    if (key.dims > 256 || value.dims > 512) {
      Refuse("FlashAttention takes a head_dim up to 256 for keys, up to 512 for values");
    }
    if (second && geometry_.kernel_tokens % 256 != 0) {
      Refuse("FlashAttention 2 takes blocks of a multiple of 256 tokens: kernel_tokens is " +
             std::to_string(geometry_.kernel_tokens));
    }
    views[0] = Paged(key, false);
    views[1] = Paged(value, false);
    return 2;
  }
  uint32_t Vllm(kvc_tensor_view* views, bool kv_first) {
    if (geometry_.kernel_tokens % 16 != 0) {
      Refuse("vLLM takes blocks of a multiple of 16 tokens: kernel_tokens is " +
             std::to_string(geometry_.kernel_tokens));
    }
    views[0] = Combined(false, kv_first);
    return 1;
  }
  uint32_t VllmMla(kvc_tensor_view* views) {
    const kvc_buffer& latent = Need(KVC_ROLE_LATENT);
    const kvc_buffer* rope = Find(KVC_ROLE_ROPE);
    uint32_t more = 0;
    if (rope != nullptr) {
      if (rope->base_offset != latent.base_offset + HeadBytes(latent) ||
          rope->row_stride != latent.row_stride) {
        Refuse("vLLM reads latent and rope in one row: drop KVC_GEOMETRY_SPLIT_ROPE");
      }
      if (rope->dtype != latent.dtype) Refuse("latent and rope must have one dtype");
      more = rope->dims;
    }
    views[0] = Rows(latent, more);
    return 1;
  }
  // One pool pointer for keys and values; the table names blocks of the
  // buffer's size, one after the other.
  uint32_t TensorRtLlm(kvc_tensor_view* views) {
    if (geometry_.order != KVC_ORDER_HND) {
      Refuse("TensorRT-LLM reads [head][token][dim]: set order to KVC_ORDER_HND");
    }
    if ((geometry_.kernel_tokens & (geometry_.kernel_tokens - 1)) != 0) {
      Refuse("TensorRT-LLM takes blocks of a power of two of tokens: kernel_tokens is " +
             std::to_string(geometry_.kernel_tokens));
    }
    const kvc_buffer& key = Need(KVC_ROLE_KEY);
    const kvc_buffer& value = Need(KVC_ROLE_VALUE);
    if (key.dtype != value.dtype || key.kernel_bytes != value.kernel_bytes) {
      Refuse("TensorRT-LLM takes keys and values of one dtype and size");
    }
    if (key.kernel_bytes > INT32_MAX) {
      Refuse("TensorRT-LLM keeps a block's bytes in 32 bits: kernel_bytes is " +
             std::to_string(key.kernel_bytes));
    }
    const uint64_t pool = key.base_offset - key.page_offset;
    uint32_t written = 0;
    for (const kvc_buffer* b : {&key, &value}) {
      if (b->base_offset < pool || b->index_scale == 0 || (b->base_offset - pool) % b->bytes != 0) {
        Refuse(std::string("TensorRT-LLM reaches blocks by their index alone, and the ") +
               Name(b->role) + " buffer is no multiple of its size from the pool's start: set " +
               "KVC_GEOMETRY_INDEXABLE");
      }
      kvc_tensor_view v = Tensor(*b);
      v.base_offset = pool;
      v.index_scale = b->index_scale;
      v.index_offset = (b->base_offset - pool) / b->bytes;
      const uint64_t bound =
          CheckedAdd(CheckedMul(v.index_offset, geometry_.expansion), b->index_bound);
      Append(&v, bound, b->kernel_bytes);
      Append(&v, b->heads, b->head_stride);
      Append(&v, b->rows, b->row_stride);
      AppendDims(&v, b->dims, b->element_bits);
      CheckIndex(bound);
      views[written++] = v;
    }
    return written;
  }

 private:
  [[nodiscard]] const kvc_buffer* Find(kvc_role role) const {
    for (uint32_t i = 0; i < count_; ++i) {
      if (buffers_[i].layer == layer_ && buffers_[i].role == role) return &buffers_[i];
    }
    return nullptr;
  }
  [[nodiscard]] const kvc_buffer& Need(kvc_role role) const {
    const kvc_buffer* found = Find(role);
    if (found == nullptr) {
      Refuse("layer " + std::to_string(layer_) + " has no " + Name(role) + " buffer");
    }
    const kvc_buffer& b = *found;
    // What kvc_geometry_compute never writes, and a division would not survive.
    if (b.element_bits == 0 || b.bytes == 0 || b.dims == 0 || b.rows == 0 || b.heads == 0) {
      Refuse("buffers[] was not written by kvc_geometry_compute");
    }
    return b;
  }

  static uint64_t HeadBytes(const kvc_buffer& b) { return uint64_t{b.dims} * b.element_bits / 8; }

  [[nodiscard]] kvc_tensor_view Tensor(const kvc_buffer& b) const {
    kvc_tensor_view v{};
    v.role = b.role;
    v.dtype = b.dtype;
    v.element_bits = std::max(b.element_bits, 8u);  // 4-bit elements travel in pairs
    v.expansion = geometry_.expansion;
    v.base_offset = b.base_offset;
    return v;
  }
  // A dimension whose step is given in bytes.
  static void Append(kvc_tensor_view* v, uint64_t extent, uint64_t step) {
    const uint64_t element = v->element_bits / 8;
    if (step % element != 0) {
      Refuse("a stride of " + std::to_string(step) + " bytes is no whole number of elements");
    }
    v->shape[v->rank] = extent;
    v->stride[v->rank] = step / element;
    ++v->rank;
  }
  static void AppendDims(kvc_tensor_view* v, uint32_t dims, uint32_t element_bits) {
    Append(v, uint64_t{dims} * element_bits / v->element_bits, v->element_bits / 8);
    uint64_t step = 1;
    v->dense = 1;
    for (uint32_t i = v->rank; i-- > 0;) {
      if (v->stride[i] != step) v->dense = 0;
      step = CheckedMul(step, v->shape[i]);
    }
    const uint64_t element = v->element_bits / 8;
    bool aligned = v->base_offset % kLoadBytes == 0;
    for (uint32_t i = 0; i + 1 < v->rank; ++i) {
      aligned = aligned && v->stride[i] * element % kLoadBytes == 0;
    }
    if (!aligned) {
      Refuse(std::string("the kernels load 16 bytes at a time, and the ") + Name(v->role) +
             " buffer is not aligned to that: see head_dim and alignment");
    }
  }
  static void CheckIndex(uint64_t bound) {
    if (bound > kMaxIndex + 1) {
      Refuse("an index up to " + std::to_string(bound - 1) + " does not fit an int32 table");
    }
  }
  // FlashInfer's page, token and head strides are 32-bit.
  static void NarrowStrides(const kvc_tensor_view& v, uint32_t except = KVC_VIEW_RANK) {
    for (uint32_t i = 0; i < v.rank; ++i) {
      if (i != except && v.stride[i] > UINT32_MAX) {
        Refuse("FlashInfer keeps strides in 32 bits: " + std::to_string(v.stride[i]) +
               " elements from a page to the next are too many; use KVC_LAYOUT_PER_LAYER");
      }
    }
  }

  // The first dimension: pages, or kernel blocks when a page has several.
  void Blocks(kvc_tensor_view* v, const kvc_buffer& b) const {
    if (geometry_.expansion == 1) {
      v->index_scale = 1;
      CheckIndex(geometry_.pages);
      Append(v, geometry_.pages, b.page_stride);
      return;
    }
    if (b.index_scale == 0) {
      Refuse(
          std::string("kernel_tokens differs from tokens_per_block, and a page is no multiple ") +
          "of the " + Name(b.role) + " buffer: set KVC_GEOMETRY_INDEXABLE");
    }
    v->index_scale = b.index_scale;
    CheckIndex(b.index_bound);
    Append(v, b.index_bound, b.kernel_bytes);
  }

  kvc_tensor_view Paged(const kvc_buffer& b, bool heads_first) const {
    kvc_tensor_view v = Tensor(b);
    Blocks(&v, b);
    AppendBlock(&v, b, heads_first);
    return v;
  }
  static void AppendBlock(kvc_tensor_view* v, const kvc_buffer& b, bool heads_first) {
    if (heads_first) Append(v, b.heads, b.head_stride);
    Append(v, b.rows, b.row_stride);
    if (!heads_first) Append(v, b.heads, b.head_stride);
    AppendDims(v, b.dims, b.element_bits);
  }

  // Keys and values in one tensor: as far apart in every block, and alike.
  kvc_tensor_view Combined(bool heads_first, bool kv_first) const {
    const kvc_buffer& key = Need(KVC_ROLE_KEY);
    const kvc_buffer& value = Need(KVC_ROLE_VALUE);
    if (key.dtype != value.dtype || key.heads != value.heads || key.dims != value.dims) {
      Refuse("one tensor for keys and values needs them of one dtype, heads and head_dim");
    }
    if (value.base_offset <= key.base_offset || value.page_stride != key.page_stride) {
      Refuse(
          "one tensor for keys and values needs the values behind the keys: name the key "
          "buffer first in specs[]");
    }
    kvc_tensor_view v = Tensor(key);
    if (kv_first) Append(&v, 2, value.base_offset - key.base_offset);
    Blocks(&v, key.index_bound > value.index_bound ? value : key);
    if (!kv_first) Append(&v, 2, value.base_offset - key.base_offset);
    AppendBlock(&v, key, heads_first);
    return v;
  }

  // [pages][tokens][dims]; `more` dims of the same row belong to it.
  kvc_tensor_view Rows(const kvc_buffer& b, uint32_t more) const {
    kvc_tensor_view v = Tensor(b);
    Blocks(&v, b);
    Append(&v, b.rows, b.row_stride);
    AppendDims(&v, b.dims + more, b.element_bits);
    return v;
  }

  const kvc_geometry& geometry_;
  const uint32_t count_;
  const kvc_buffer* buffers_;
  const uint32_t layer_;
};

}  // namespace kernel_view

uint32_t ComputeView(const kvc_geometry& geometry, uint32_t count, const kvc_buffer* buffers,
                     uint32_t layer, kvc_view_kind kind, kvc_tensor_view* views) {
  kernel_view::View view(geometry, count, buffers, layer);
  switch (kind) {
    case KVC_VIEW_FLASHINFER:
      return view.FlashInfer(views);
    case KVC_VIEW_FLASHINFER_COMBINED:
      return view.FlashInferCombined(views);
    case KVC_VIEW_FLASHINFER_MLA:
      return view.FlashInferMla(views);
    case KVC_VIEW_FLASH_ATTENTION:
      return view.FlashAttention(views, false);
    case KVC_VIEW_FLASH_ATTENTION_2:
      return view.FlashAttention(views, true);
    case KVC_VIEW_VLLM_KV_FIRST:
      return view.Vllm(views, true);
    case KVC_VIEW_VLLM_BLOCKS_FIRST:
      return view.Vllm(views, false);
    case KVC_VIEW_VLLM_MLA:
      return view.VllmMla(views);
    case KVC_VIEW_TENSORRT_LLM:
      return view.TensorRtLlm(views);
    default:
      throw Error(KVC_INVALID_ARGUMENT,
                  "kind is " + std::to_string(kind) + ", must be a kvc_view_kind");
  }
}

}  // namespace kvcast
