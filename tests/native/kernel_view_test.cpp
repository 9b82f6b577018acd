// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The views of attention kernels, each against the formula of its consumer:
// written here as docs/kernel-views.md quotes it, with the consumer's own types,
// and fed with what the view hands over and with a block table. The address must
// be the element's by the formula of kvcast.h, for random elements, also beyond
// 2^31 and 2^32 bytes and elements.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/native/abi_support.h"
#include "tests/native/geometry_support.h"

namespace kvcast {
namespace {

using testing::Model;
using testing::Wide;

// One element of one sequence: the page of its block, and its token in the block.
struct Element {
  uint64_t page = 0;
  uint32_t token = 0;
  uint32_t head = 0;
  uint32_t dim = 0;
};

class KernelView : public ::testing::Test {
 protected:
  void SetUp() override { SCOPED_TRACE("seed " + std::to_string(seed_)); }

  std::vector<kvc_tensor_view> View(const Model& m, uint32_t layer, kvc_view_kind kind) {
    std::vector<kvc_tensor_view> views;
    EXPECT_EQ(m.View(layer, kind, &views), "") << "kind " << kind;
    return views;
  }
  uint32_t Below(uint64_t bound) { return static_cast<uint32_t>(random_() % bound); }

  // Elements all over the pool: its first and last page, and at random.
  template <typename Check>
  void ForElements(const Model& m, size_t buffer, Check&& check) {
    const kvc_buffer& b = m.buffers[buffer];
    Wide farthest = 0;
    for (int i = 0; i < 2000; ++i) {
      Element e;
      e.page = i < 100 ? 0 : i < 200 ? m.geometry.pages - 1 : Below(m.geometry.pages);
      e.token = Below(m.geometry.tokens_per_block);
      e.head = Below(b.heads);
      e.dim = Below(b.dims);
      const Wide want = m.Bit(buffer, e.page, e.token, e.head, e.dim);
      farthest = std::max(farthest, want / 8);
      check(e, want);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
    if (far_) {
      EXPECT_GT(farthest, Wide{1} << 33) << "2^32 elements of 2 bytes must be passed";
    }
  }
  // The entry that a block table has for the kernel block of the element.
  static int32_t Entry(const Model& m, const kvc_tensor_view& v, const Element& e) {
    const uint64_t entry = (e.page * v.index_scale + v.index_offset) * v.expansion +
                           e.token / m.geometry.kernel_tokens;
    EXPECT_LE(entry, uint64_t{INT32_MAX});
    EXPECT_LT(entry, v.shape[v.shape[0] == 2 && v.rank == 5 ? 1 : 0]);
    return static_cast<int32_t>(entry);
  }
  // Elements narrower than a byte travel in pairs: the container and the place in it.
  static Wide InBits(const kvc_tensor_view& v, Wide containers, uint32_t dim,
                     uint32_t element_bits) {
    const uint32_t per = v.element_bits / element_bits;
    return Wide{v.base_offset} * 8 + containers * v.element_bits + dim % per * element_bits;
  }
  static uint32_t Container(const kvc_tensor_view& v, uint32_t dim, uint32_t element_bits) {
    return dim / (v.element_bits / element_bits);
  }

  std::vector<Model> Models() {
    std::vector<Model> models;
    for (const kvc_layout layout :
         {KVC_LAYOUT_COALESCED, KVC_LAYOUT_PER_LAYER, KVC_LAYOUT_PER_BUFFER}) {
      for (const kvc_order order : {KVC_ORDER_NHD, KVC_ORDER_HND}) {
        for (const uint32_t kernel : {0u, 32u}) {
          for (const kvc_dtype dtype : {KVC_DTYPE_BF16, KVC_DTYPE_FP8_E4M3, KVC_DTYPE_FP4_E2M1}) {
            Model m;
            m.AddLayers(4, dtype, 8, 128);
            if (dtype == KVC_DTYPE_FP4_E2M1) {
              m.config.flags = KVC_GEOMETRY_INDEXABLE;
              for (uint32_t layer = 0; layer < 4; ++layer) {
                m.Add(layer, KVC_ROLE_KEY_SCALE, KVC_DTYPE_FP8_E4M3, 8, 128, 0, 1, 16);
              }
            }
            m.config.layout = layout;
            m.config.order = order;
            m.config.tokens_per_block = 64;
            m.config.kernel_tokens = kernel;
            m.config.capacity_blocks = 200000;
            EXPECT_EQ(m.Compute(), "");
            EXPECT_GT(m.geometry.memory_bytes, uint64_t{1} << 34);
            models.push_back(m);
          }
        }
      }
    }
    return models;
  }

  const uint64_t seed_ = testing::EnvNumber("KVC_SEED", 7);
  std::mt19937_64 random_{seed_};
  bool far_ = false;
};

// include/flashinfer/page.cuh: paged_kv_t, with its 32-bit strides.
struct FlashInferPaged {
  uint32_t stride_page, stride_n, stride_h;
  FlashInferPaged(const uint64_t* kv_strides, bool hnd)
      : stride_page(static_cast<uint32_t>(kv_strides[0])),
        stride_n(static_cast<uint32_t>(hnd ? kv_strides[2] : kv_strides[1])),
        stride_h(static_cast<uint32_t>(hnd ? kv_strides[1] : kv_strides[2])) {}
  [[nodiscard]] Wide Offset(size_t page_idx, size_t head_idx, size_t entry_idx,
                            size_t feat_idx) const {
    return page_idx * stride_page + head_idx * stride_h + entry_idx * stride_n + feat_idx;
  }
};

TEST_F(KernelView, FlashInfer) {
  for (const Model& m : Models()) {
    const uint32_t layer = Below(4);
    const auto views = View(m, layer, KVC_VIEW_FLASHINFER);
    ASSERT_EQ(views.size(), 2u);
    for (const kvc_tensor_view& v : views) {
      const size_t i = m.Index(layer, v.role);
      const bool hnd = m.config.order == KVC_ORDER_HND;
      ASSERT_EQ(v.rank, 4u);
      ASSERT_EQ(v.shape[hnd ? 1 : 2], 8u);
      ASSERT_EQ(v.shape[hnd ? 2 : 1], m.geometry.kernel_tokens);
      const FlashInferPaged paged(v.stride, hnd);
      const uint32_t bits = m.buffers[i].element_bits;
      ForElements(m, i, [&](const Element& e, Wide want) {
        const Wide at = paged.Offset(static_cast<size_t>(Entry(m, v, e)), e.head,
                                     e.token % m.geometry.kernel_tokens, Container(v, e.dim, bits));
        ASSERT_EQ(InBits(v, at, e.dim, bits), want);
      });
    }
  }
}

TEST_F(KernelView, FlashInferCombined) {
  for (const Model& m : Models()) {
    const uint32_t layer = Below(4);
    const auto views = View(m, layer, KVC_VIEW_FLASHINFER_COMBINED);
    ASSERT_EQ(views.size(), 1u);
    const kvc_tensor_view& v = views[0];
    ASSERT_EQ(v.rank, 5u);
    ASSERT_EQ(v.shape[1], 2u);
    // kv_data[:, 0] and kv_data[:, 1]: the first dimension's stride and the last three.
    const uint64_t strides[4] = {v.stride[0], v.stride[2], v.stride[3], v.stride[4]};
    const FlashInferPaged paged(strides, m.config.order == KVC_ORDER_HND);
    for (const kvc_role role : {KVC_ROLE_KEY, KVC_ROLE_VALUE}) {
      const size_t i = m.Index(layer, role);
      const uint32_t bits = m.buffers[i].element_bits;
      ForElements(m, i, [&](const Element& e, Wide want) {
        Wide at = paged.Offset(static_cast<size_t>(Entry(m, v, e)), e.head,
                               e.token % m.geometry.kernel_tokens, Container(v, e.dim, bits));
        if (role == KVC_ROLE_VALUE) at += v.stride[1];
        ASSERT_EQ(InBits(v, at, e.dim, bits), want);
      });
    }
  }
}

// csrc/flash_attn/src/flash_fwd_kernel.h, row_offset_k; hopper/paged_kv.h, mK_paged.
TEST_F(KernelView, FlashAttention) {
  for (const Model& m : Models()) {
    std::vector<kvc_tensor_view> views;
    if (m.specs[0].dtype == KVC_DTYPE_FP4_E2M1) {
      EXPECT_NE(m.View(0, KVC_VIEW_FLASH_ATTENTION, &views).find("bf16"), std::string::npos);
      continue;
    }
    const uint32_t layer = Below(4);
    views = View(m, layer, KVC_VIEW_FLASH_ATTENTION);
    ASSERT_EQ(views.size(), 2u);
    for (const kvc_tensor_view& v : views) {
      ASSERT_EQ(v.rank, 4u);
      ASSERT_EQ(v.shape[1], m.geometry.kernel_tokens);
      ASSERT_EQ(v.shape[2], 8u);
      ASSERT_EQ(v.shape[3], 128u);
      ASSERT_EQ(v.stride[3], 1u);
      const auto k_batch_stride = static_cast<int64_t>(v.stride[0]);
      const auto k_row_stride = static_cast<int64_t>(v.stride[1]);
      const auto k_head_stride = static_cast<int64_t>(v.stride[2]);
      const int page_block_size = static_cast<int>(v.shape[1]);
      const size_t i = m.Index(layer, v.role);
      ForElements(m, i, [&](const Element& e, Wide want) {
        const int block_table_entry = Entry(m, v, e);
        const int block_table_offset = static_cast<int>(e.token) % page_block_size;
        const int64_t row_offset = block_table_entry * k_batch_stride +
                                   block_table_offset * k_row_stride + e.head * k_head_stride;
        ASSERT_EQ(InBits(v, static_cast<Wide>(row_offset + e.dim), e.dim, v.element_bits), want);
      });
    }
  }
}

TEST_F(KernelView, FlashAttention2TakesLargeBlocksOnly) {
  Model m;
  m.AddLayers(2, KVC_DTYPE_BF16, 2, 64);
  m.config.tokens_per_block = 512;
  m.config.kernel_tokens = 256;
  m.config.capacity_blocks = 10;
  ASSERT_EQ(m.Compute(), "");
  const auto views = View(m, 1, KVC_VIEW_FLASH_ATTENTION_2);
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[1].shape[1], 256u);
  m.config.kernel_tokens = 128;
  ASSERT_EQ(m.Compute(), "");
  std::vector<kvc_tensor_view> none;
  EXPECT_NE(m.View(1, KVC_VIEW_FLASH_ATTENTION_2, &none).find("256"), std::string::npos);
}

// csrc/cache_kernels.cu, reshape_and_cache_flash_kernel.
TEST_F(KernelView, Vllm) {
  for (const Model& m : Models()) {
    const uint32_t layer = Below(4);
    for (const kvc_view_kind kind : {KVC_VIEW_VLLM_KV_FIRST, KVC_VIEW_VLLM_BLOCKS_FIRST}) {
      const auto views = View(m, layer, kind);
      ASSERT_EQ(views.size(), 1u);
      const kvc_tensor_view& v = views[0];
      const int kv = kind == KVC_VIEW_VLLM_KV_FIRST ? 0 : 1;
      ASSERT_EQ(v.rank, 5u);
      ASSERT_EQ(v.shape[kv], 2u);
      ASSERT_EQ(v.shape[2], m.geometry.kernel_tokens);
      ASSERT_EQ(v.shape[3], 8u);
      const auto block_size = static_cast<int64_t>(v.shape[2]);
      const auto block_stride = static_cast<int64_t>(v.stride[1 - kv]);
      const auto page_stride = static_cast<int64_t>(v.stride[2]);
      const auto head_stride = static_cast<int64_t>(v.stride[3]);
      for (const kvc_role role : {KVC_ROLE_KEY, KVC_ROLE_VALUE}) {
        const size_t i = m.Index(layer, role);
        const uint32_t bits = m.buffers[i].element_bits;
        ForElements(m, i, [&](const Element& e, Wide want) {
          const int64_t slot_idx =
              int64_t{Entry(m, v, e)} * block_size + e.token % static_cast<uint32_t>(block_size);
          const int64_t block_idx = slot_idx / block_size;
          const int64_t block_offset = slot_idx % block_size;
          int64_t at = block_idx * block_stride + block_offset * page_stride +
                       e.head * head_stride + Container(v, e.dim, bits);
          if (role == KVC_ROLE_VALUE) at += static_cast<int64_t>(v.stride[kv]);
          ASSERT_EQ(InBits(v, static_cast<Wide>(at), e.dim, bits), want);
        });
      }
      // Only what vLLM would allocate itself is contiguous.
      const bool dense =
          m.config.order == KVC_ORDER_NHD && m.specs.size() == 8 &&
          m.config.layout == (kv == 0 ? KVC_LAYOUT_PER_BUFFER : KVC_LAYOUT_PER_LAYER) &&
          (kv == 0 || m.geometry.expansion == 1);
      if (m.specs.size() == 8) {
        EXPECT_EQ(v.dense != 0, dense) << m.config.layout << kind;
      }
    }
  }
}

TEST_F(KernelView, LatentAttention) {
  for (const uint32_t flags : {0u, uint32_t{KVC_GEOMETRY_SPLIT_ROPE}}) {
    for (const kvc_layout layout : {KVC_LAYOUT_COALESCED, KVC_LAYOUT_PER_BUFFER}) {
      Model m;
      m.AddLatentLayers(61, KVC_DTYPE_BF16, 512, 64);
      m.config.tokens_per_block = 64;
      m.config.capacity_blocks = 100000;
      m.config.flags = flags;
      m.config.layout = layout;
      ASSERT_EQ(m.Compute(), "");
      const uint32_t layer = 60;
      const size_t ckv = m.Index(layer, KVC_ROLE_LATENT);
      const size_t kpe = m.Index(layer, KVC_ROLE_ROPE);
      far_ = true;

      // docs/tutorials/kv_layout.rst of FlashInfer: ckv and kpe, slices of one tensor or two
      // tensors.
      const auto views = View(m, layer, KVC_VIEW_FLASHINFER_MLA);
      ASSERT_EQ(views.size(), 2u);
      for (const kvc_tensor_view& v : views) {
        ASSERT_EQ(v.rank, 3u);
        ASSERT_EQ(v.shape[2], v.role == KVC_ROLE_LATENT ? 512u : 64u);
        ForElements(m, v.role == KVC_ROLE_LATENT ? ckv : kpe, [&](const Element& e, Wide want) {
          const Wide at = Wide{static_cast<uint32_t>(Entry(m, v, e))} * v.stride[0] +
                          Wide{e.token} * v.stride[1] + e.dim * v.stride[2];
          ASSERT_EQ(InBits(v, at, e.dim, 16), want);
        });
      }

      // csrc/cache_kernels.cu of vLLM, concat_and_cache_mla_kernel: rows of 576.
      std::vector<kvc_tensor_view> rows;
      const std::string refusal = m.View(layer, KVC_VIEW_VLLM_MLA, &rows);
      if (flags != 0) {
        EXPECT_NE(refusal.find("SPLIT_ROPE"), std::string::npos) << refusal;
        continue;
      }
      ASSERT_EQ(refusal, "");
      const kvc_tensor_view& v = rows[0];
      ASSERT_EQ(v.rank, 3u);
      ASSERT_EQ(v.shape[2], 576u);
      const auto block_stride = static_cast<int64_t>(v.stride[0]);
      const auto entry_stride = static_cast<int64_t>(v.stride[1]);
      for (const size_t i : {ckv, kpe}) {
        ForElements(m, i, [&](const Element& e, Wide want) {
          const int64_t offset = i == kpe ? 512 : 0;
          const int64_t dst_idx =
              Entry(m, v, e) * block_stride + e.token * entry_stride + e.dim + offset;
          ASSERT_EQ(InBits(v, static_cast<Wide>(dst_idx), e.dim, 16), want);
        });
      }
      EXPECT_EQ(v.dense != 0, layout == KVC_LAYOUT_PER_BUFFER);
    }
  }
}

// cpp/tensorrt_llm/kernels/kvCacheUtils.h, getBlockPtr and getKVLocalIdx, with
// the size of a block computed from the model.
TEST_F(KernelView, TensorRtLlm) {
  for (const Model& m : Models()) {
    const uint32_t layer = Below(4);
    if (m.config.order == KVC_ORDER_NHD) {
      std::vector<kvc_tensor_view> none;
      EXPECT_NE(m.View(layer, KVC_VIEW_TENSORRT_LLM, &none).find("HND"), std::string::npos);
      continue;
    }
    const auto views = View(m, layer, KVC_VIEW_TENSORRT_LLM);
    ASSERT_EQ(views.size(), 2u);
    ASSERT_EQ(views[0].base_offset, views[1].base_offset) << "one pool pointer for both";
    for (const kvc_tensor_view& v : views) {
      const size_t i = m.Index(layer, v.role);
      const uint32_t bits = m.buffers[i].element_bits;
      const auto tokens = static_cast<int32_t>(m.geometry.kernel_tokens);
      const int32_t dims_per_head = 128;
      const int32_t bytes_per_block = tokens * 8 * dims_per_head * static_cast<int32_t>(bits) / 8;
      ForElements(m, i, [&](const Element& e, Wide want) {
        const int32_t offset = Entry(m, v, e);
        const uint64_t block =
            static_cast<uint64_t>(offset) * static_cast<uint64_t>(bytes_per_block);
        const int32_t local = static_cast<int32_t>(e.head) * tokens * dims_per_head +
                              (static_cast<int32_t>(e.token) & (tokens - 1)) * dims_per_head +
                              static_cast<int32_t>(e.dim);
        const Wide at =
            (Wide{v.base_offset} + block) * 8 + Wide{static_cast<uint32_t>(local)} * bits;
        ASSERT_EQ(at, want);
      });
    }
  }
}

TEST_F(KernelView, ManyLayersFarIntoThePool) {
  far_ = true;
  Model m;
  m.AddLayers(80, KVC_DTYPE_BF16, 8, 128);
  m.config.capacity_blocks = 500000;  // 2.4 TiB
  m.config.order = KVC_ORDER_HND;
  ASSERT_EQ(m.Compute(), "");
  for (const uint32_t layer : {0u, 79u}) {
    const auto fi = View(m, layer, KVC_VIEW_FLASHINFER);
    const auto trt = View(m, layer, KVC_VIEW_TENSORRT_LLM);
    for (size_t part = 0; part < 2; ++part) {
      const FlashInferPaged paged(fi[part].stride, true);
      const kvc_tensor_view& t = trt[part];
      ForElements(m, m.Index(layer, fi[part].role), [&](const Element& e, Wide want) {
        const Wide at = paged.Offset(e.page, e.head, e.token, e.dim);
        ASSERT_EQ(InBits(fi[part], at, e.dim, 16), want);
        const Wide block = Wide{static_cast<uint32_t>(Entry(m, t, e))} * (16 * 8 * 128 * 2);
        ASSERT_EQ(8 * (t.base_offset + block) + 16 * (e.head * 16 * 128 + e.token * 128 + e.dim),
                  want);
      });
    }
  }
}

TEST_F(KernelView, WhatCannotBeExpressedIsRefused) {
  const auto refused = [](Model m, kvc_view_kind kind, const char* why) {
    ASSERT_EQ(m.Compute(), "");
    std::vector<kvc_tensor_view> views;
    const std::string message = m.View(0, kind, &views);
    EXPECT_NE(message.find(why), std::string::npos) << kind << ": " << message;
  };
  Model plain;
  plain.AddLayers(2, KVC_DTYPE_BF16, 2, 64);
  Model latent;
  latent.AddLatentLayers(2, KVC_DTYPE_BF16, 512, 64);

  refused(latent, KVC_VIEW_FLASHINFER, "no key");
  refused(plain, KVC_VIEW_FLASHINFER_MLA, "no latent");
  refused(plain, KVC_VIEW_VLLM_MLA, "no latent");
  refused(plain, 9, "kvc_view_kind");

  Model m = plain;  // a page of 3 rows is no multiple of a key buffer
  m.Add(0, KVC_ROLE_CUSTOM, KVC_DTYPE_UINT8, 1, 48);
  m.config.order = KVC_ORDER_HND;
  refused(m, KVC_VIEW_TENSORRT_LLM, "KVC_GEOMETRY_INDEXABLE");
  m.config.kernel_tokens = 8;
  refused(m, KVC_VIEW_FLASHINFER, "KVC_GEOMETRY_INDEXABLE");
  m.config.flags = KVC_GEOMETRY_INDEXABLE;
  ASSERT_EQ(m.Compute(), "");
  std::vector<kvc_tensor_view> views;
  EXPECT_EQ(m.View(0, KVC_VIEW_TENSORRT_LLM, &views), "");
  EXPECT_EQ(m.View(0, KVC_VIEW_FLASHINFER, &views), "");

  m = plain;
  m.config.tokens_per_block = 24;
  refused(m, KVC_VIEW_VLLM_KV_FIRST, "multiple of 16");
  m.config.order = KVC_ORDER_HND;
  refused(m, KVC_VIEW_TENSORRT_LLM, "power of two");

  m = plain;  // values before keys
  std::swap(m.specs[0], m.specs[1]);
  refused(m, KVC_VIEW_VLLM_BLOCKS_FIRST, "behind the keys");
  m = plain;
  m.specs[1].head_dim = 128;
  refused(m, KVC_VIEW_FLASHINFER_COMBINED, "one dtype, heads and head_dim");
  m.config.order = KVC_ORDER_HND;
  refused(m, KVC_VIEW_TENSORRT_LLM, "one dtype and size");
  m = plain;
  m.specs[0].head_dim = m.specs[1].head_dim = 4;
  refused(m, KVC_VIEW_FLASHINFER, "16 bytes at a time");
  m = plain;
  m.specs[0].head_dim = m.specs[1].head_dim = 264;
  refused(m, KVC_VIEW_FLASH_ATTENTION, "up to 256");
  m = plain;
  m.specs[0].dtype = KVC_DTYPE_FP16;
  refused(m, KVC_VIEW_FLASH_ATTENTION, "one dtype");

  // More elements from a page to the next than FlashInfer's 32 bits hold.
  m = Model();
  m.AddLayers(40, KVC_DTYPE_FP8_E4M3, 64, 256);
  m.config.tokens_per_block = 4096;
  m.config.capacity_blocks = 4;
  refused(m, KVC_VIEW_FLASHINFER, "32 bits");
  m.config.layout = KVC_LAYOUT_PER_LAYER;
  ASSERT_EQ(m.Compute(), "");
  EXPECT_EQ(m.View(39, KVC_VIEW_FLASHINFER, &views), "");

  // More blocks than an int32 table can name.
  m = Model();
  m.AddLayers(80, KVC_DTYPE_FP8_E4M3, 1, 16);
  m.config.capacity_blocks = 1u << 27;
  m.config.order = KVC_ORDER_HND;
  refused(m, KVC_VIEW_TENSORRT_LLM, "int32 table");

  kvc_error error{};
  uint32_t written = 0;
  kvc_tensor_view out[KVC_VIEW_TENSORS];
  ASSERT_EQ(plain.Compute(), "");
  const auto count = static_cast<uint32_t>(plain.buffers.size());
  const kvc_geometry empty{};
  EXPECT_EQ(kvc_geometry_view(nullptr, count, plain.buffers.data(), 0, 0, out, &written, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_view(&empty, count, plain.buffers.data(), 0, 0, out, &written, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_view(&plain.geometry, count, nullptr, 0, 0, out, &written, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_view(&plain.geometry, count, plain.buffers.data(), 0, 0, nullptr, &written,
                              &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(
      kvc_geometry_view(&plain.geometry, count, plain.buffers.data(), 0, 0, out, nullptr, &error),
      KVC_INVALID_ARGUMENT);
  plain.buffers[0].element_bits = 0;
  EXPECT_EQ(
      kvc_geometry_view(&plain.geometry, count, plain.buffers.data(), 0, 0, out, &written, &error),
      KVC_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvcast
