// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Where buffers lie: each bit of the pool belongs to one element at most, sizes
// and offsets are those that can be computed by hand, also where they no longer
// fit 32 bits, and wrong numbers are refused by name.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "native/src/geometry.h"
#include "tests/native/abi_support.h"
#include "tests/native/geometry_support.h"

namespace kvcast {
namespace {

using testing::Model;
using testing::Wide;

TEST(Geometry, LlamaPageByHand) {
  Model m;
  m.AddLayers(32, KVC_DTYPE_BF16, 8, 128);
  ASSERT_EQ(m.Compute(), "");
  const uint64_t buffer = 16 * 8 * 128 * 2;
  EXPECT_EQ(m.geometry.page_bytes, 64 * buffer);
  EXPECT_EQ(m.geometry.memory_bytes, 20000 * 64 * buffer);
  EXPECT_EQ(m.geometry.wasted_bytes, 0u);
  EXPECT_EQ(m.geometry.padding_page, UINT32_MAX);
  EXPECT_EQ(m.geometry.pages, 20000u);
  EXPECT_EQ(m.geometry.groups, 1u);
  const kvc_buffer& value = m.buffers[m.Index(5, KVC_ROLE_VALUE)];
  EXPECT_EQ(value.base_offset, 11 * buffer);
  EXPECT_EQ(value.page_offset, 11 * buffer);
  EXPECT_EQ(value.page_stride, 64 * buffer);
  EXPECT_EQ(value.bytes, buffer);
  EXPECT_EQ(value.kernel_bytes, buffer);
  EXPECT_EQ(value.row_stride, 8u * 128 * 2);
  EXPECT_EQ(value.head_stride, 128u * 2);
  EXPECT_EQ(value.index_scale, 64u);
  EXPECT_EQ(value.index_offset, 11u);
  EXPECT_EQ(value.index_bound, 64u * 20000 - 11);
}

TEST(Geometry, LatentAndRopeShareRows) {
  Model m;
  m.AddLatentLayers(61, KVC_DTYPE_BF16, 512, 64);
  m.config.tokens_per_block = 64;
  ASSERT_EQ(m.Compute(), "");
  EXPECT_EQ(m.geometry.page_bytes, 61u * 64 * 576 * 2);
  const kvc_buffer& latent = m.buffers[m.Index(2, KVC_ROLE_LATENT)];
  const kvc_buffer& rope = m.buffers[m.Index(2, KVC_ROLE_ROPE)];
  EXPECT_EQ(latent.row_stride, 576u * 2);
  EXPECT_EQ(latent.dims, 512u);
  EXPECT_EQ(rope.row_stride, 576u * 2);
  EXPECT_EQ(rope.dims, 64u);
  EXPECT_EQ(rope.base_offset, latent.base_offset + 512 * 2);
  EXPECT_EQ(latent.bytes, 64u * 576 * 2);
  EXPECT_EQ(latent.index_offset, 2u);
  EXPECT_EQ(rope.index_offset, KVC_NO_INDEX) << "it does not begin where an index leads";

  m.config.flags = KVC_GEOMETRY_SPLIT_ROPE;
  ASSERT_EQ(m.Compute(), "");
  EXPECT_EQ(m.geometry.page_bytes, 61u * 64 * 576 * 2);
  EXPECT_EQ(m.buffers[m.Index(2, KVC_ROLE_LATENT)].row_stride, 512u * 2);
  EXPECT_EQ(m.buffers[m.Index(2, KVC_ROLE_ROPE)].row_stride, 64u * 2);
}

TEST(Geometry, OffsetsBeyond32Bits) {
  // 80 layers of a large model, a million blocks: 5 TiB that nobody allocates.
  for (const kvc_layout layout :
       {KVC_LAYOUT_COALESCED, KVC_LAYOUT_PER_LAYER, KVC_LAYOUT_PER_BUFFER}) {
    Model m;
    m.AddLayers(80, KVC_DTYPE_FP16, 8, 128);
    m.config.layout = layout;
    m.config.capacity_blocks = 1000000;
    ASSERT_EQ(m.Compute(), "");
    const uint64_t buffer = 16 * 8 * 128 * 2;
    EXPECT_EQ(m.geometry.page_bytes, 160 * buffer);
    EXPECT_EQ(m.geometry.memory_bytes, 160 * buffer * 1000000);
    const kvc_buffer& value = m.buffers[m.Index(79, KVC_ROLE_VALUE)];
    const uint64_t first = layout == KVC_LAYOUT_COALESCED   ? 159 * buffer
                           : layout == KVC_LAYOUT_PER_LAYER ? 158 * buffer * 1000000 + buffer
                                                            : 159 * buffer * 1000000;
    const uint64_t stride = layout == KVC_LAYOUT_COALESCED   ? 160 * buffer
                            : layout == KVC_LAYOUT_PER_LAYER ? 2 * buffer
                                                             : buffer;
    EXPECT_EQ(value.base_offset, first);
    EXPECT_EQ(value.page_stride, stride);
    EXPECT_EQ(value.base_offset + 999999 * value.page_stride + value.bytes, m.geometry.memory_bytes)
        << "the last buffer of the last page ends the pool";
    // Beyond 2^31 and 2^32 bytes on the way.
    for (const uint64_t bytes : {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 40}) {
      const uint64_t page = bytes > first ? (bytes - first) / stride + 1 : 0;
      ASSERT_LT(page, 1000000u);
      const Wide at = m.Bit(m.Index(79, KVC_ROLE_VALUE), page, 15, 7, 127);
      EXPECT_GT(at, Wide{bytes} * 8);
      EXPECT_EQ(at, 8 * (Wide{first} + Wide{page} * stride) + 16 * (15 * 8 * 128 + 7 * 128 + 127));
    }
  }
}

TEST(Geometry, SizesThatDoNotFitAreRefused) {
  Model m;
  m.config.tokens_per_block = 4096;
  m.config.capacity_blocks = 1u << 27;
  m.Add(0, KVC_ROLE_KEY, KVC_DTYPE_FP32, 65536, 65536);
  EXPECT_NE(m.Compute().find("2^63"), std::string::npos) << "2^73 bytes";
  m.specs[0].heads = 1;
  EXPECT_EQ(m.Compute(), "") << "2^57 bytes";
  for (uint32_t layer = 1; layer < 70; ++layer) {
    m.Add(layer, KVC_ROLE_KEY, KVC_DTYPE_FP32, 1, 65536);
  }
  EXPECT_NE(m.Compute().find("2^63"), std::string::npos) << "70 times 2^57 bytes";
  m.config.layout = KVC_LAYOUT_PER_LAYER;
  EXPECT_NE(m.Compute().find("2^63"), std::string::npos);
  m.specs.resize(63);
  EXPECT_EQ(m.Compute(), "") << "63 times 2^57 bytes";
}

TEST(Geometry, WrongNumbersAreNamed) {
  const auto refused = [](const char* field, const std::function<void(Model&)>& spoil) {
    Model m;
    m.AddLayers(2, KVC_DTYPE_FP8_E4M3, 4, 64);
    m.Add(1, KVC_ROLE_KEY_SCALE, KVC_DTYPE_FP32, 4, 64);
    ASSERT_EQ(m.Compute(), "") << "good before it is spoilt";
    const kvc_geometry before = m.geometry;
    spoil(m);
    const std::string message = m.Compute();
    EXPECT_EQ(message.substr(0, std::string(field).size()), field) << message;
    EXPECT_EQ(m.geometry.page_bytes, before.page_bytes) << "out is written on success only";
  };
  refused("flags", [](Model& m) { m.config.flags = 8; });
  refused("layout", [](Model& m) { m.config.layout = 3; });
  refused("order", [](Model& m) { m.config.order = 2; });
  refused("tokens_per_block", [](Model& m) { m.config.tokens_per_block = 0; });
  refused("tokens_per_block", [](Model& m) { m.config.tokens_per_block = 4097; });
  refused("kernel_tokens", [](Model& m) { m.config.kernel_tokens = 5; });
  refused("kernel_tokens", [](Model& m) { m.config.kernel_tokens = 32; });
  refused("capacity_blocks", [](Model& m) { m.config.capacity_blocks = 0; });
  refused("capacity_blocks", [](Model& m) { m.config.capacity_blocks = (1u << 27) + 1; });
  refused("alignment", [](Model& m) { m.config.alignment = 24; });
  refused("alignment", [](Model& m) { m.config.alignment = 0; });
  refused("alignment", [](Model& m) { m.config.alignment = 4u << 20; });
  refused("count", [](Model& m) { m.specs.clear(); });
  refused("specs[1].group", [](Model& m) { m.specs[1].group = 64; });
  refused("specs[1].group", [](Model& m) { m.specs[1].group = 1; });
  refused("specs[2].role", [](Model& m) { m.specs[2].role = 7; });
  refused("specs[2].role", [](Model& m) { m.specs[2].role = 32; });
  refused("specs[3].role", [](Model& m) { m.specs[3].role = KVC_ROLE_KEY; });
  refused("specs[4].role", [](Model& m) { m.specs[4].role = KVC_ROLE_LATENT_SCALE; });
  refused("specs[0].dtype", [](Model& m) { m.specs[0].dtype = 9; });
  refused("specs[0].heads", [](Model& m) { m.specs[0].heads = 0; });
  refused("specs[0].heads", [](Model& m) { m.specs[0].heads = 65537; });
  refused("specs[0].heads", [](Model& m) { m.specs[0].role = KVC_ROLE_LATENT; });
  refused("specs[0].head_dim", [](Model& m) { m.specs[0].head_dim = 0; });
  refused("specs[0].head_dim", [](Model& m) { m.specs[0].head_dim = 65537; });
  refused("specs[0].head_dim", [](Model& m) {
    m.specs[0].dtype = KVC_DTYPE_FP4_E2M1;
    m.specs[0].head_dim = 63;
  });
  refused("specs[0].scale_tokens", [](Model& m) { m.specs[0].scale_tokens = 1; });
  refused("specs[0].scale_elements", [](Model& m) { m.specs[0].scale_elements = 1; });
  refused("specs[4].scale_tokens", [](Model& m) { m.specs[4].scale_tokens = 3; });
  refused("specs[4].scale_elements", [](Model& m) { m.specs[4].scale_elements = 48; });
  refused("specs[4].heads", [](Model& m) { m.specs[4].heads = 2; });
  refused("specs[4].head_dim", [](Model& m) { m.specs[4].head_dim = 32; });

  kvc_geometry out{};
  kvc_buffer buffer{};
  kvc_error error{};
  Model m;
  m.AddLayers(1, KVC_DTYPE_BF16, 1, 8);
  EXPECT_EQ(kvc_geometry_compute(nullptr, 1, m.specs.data(), &buffer, &out, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_compute(&m.config, 1, nullptr, &buffer, &out, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_compute(&m.config, 1, m.specs.data(), nullptr, &out, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_compute(&m.config, 1, m.specs.data(), &buffer, nullptr, &error),
            KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_geometry_compute(&m.config, UINT32_MAX, m.specs.data(), &buffer, &out, &error),
            KVC_INVALID_ARGUMENT);
  m.config.struct_size = sizeof m.config + 1;
  EXPECT_EQ(kvc_geometry_compute(&m.config, 1, m.specs.data(), &buffer, &out, &error),
            KVC_INVALID_ARGUMENT);
}

// A small model of random shape.
Model RandomModel(std::mt19937_64* random) {
  const auto pick = [&](std::initializer_list<uint32_t> from) {
    return *(from.begin() + (*random)() % from.size());
  };
  Model m;
  m.config.tokens_per_block = pick({1, 4, 6, 8, 16});
  m.config.kernel_tokens = m.config.tokens_per_block % 2 == 0 && (*random)() % 2 == 0
                               ? m.config.tokens_per_block / 2
                               : 0;
  m.config.capacity_blocks = pick({1, 2, 3, 7});
  m.config.alignment = pick({1, 2, 16, 64});
  m.config.layout = pick({KVC_LAYOUT_COALESCED, KVC_LAYOUT_PER_LAYER, KVC_LAYOUT_PER_BUFFER});
  m.config.order = pick({KVC_ORDER_NHD, KVC_ORDER_HND});
  m.config.flags = static_cast<uint32_t>((*random)() % 8);
  const uint32_t kernel =
      m.config.kernel_tokens == 0 ? m.config.tokens_per_block : m.config.kernel_tokens;
  const uint32_t layers = pick({1, 2, 3, 5});
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const uint32_t id = 100 - layer;  // ids need no order
    const uint32_t group = static_cast<uint32_t>((*random)() % 3);
    const kvc_dtype dtype = pick({KVC_DTYPE_BF16, KVC_DTYPE_FP8_E4M3, KVC_DTYPE_FP4_E2M1});
    const uint32_t dims = pick({2, 8, 16});
    const uint32_t scale_tokens = pick({0, 1, kernel});
    if ((*random)() % 3 == 0) {
      m.Add(id, KVC_ROLE_LATENT, dtype, 1, dims * 4, group);
      m.Add(id, KVC_ROLE_LATENT_SCALE, KVC_DTYPE_FP32, 1, dims * 4, group, scale_tokens, dims);
      m.Add(id, KVC_ROLE_ROPE, KVC_DTYPE_BF16, 1, dims, group);
    } else {
      const uint32_t heads = pick({1, 2, 3});
      m.Add(id, KVC_ROLE_KEY, dtype, heads, dims, group);
      m.Add(id, KVC_ROLE_VALUE, dtype, heads, dims * pick({1, 2}), group);
      m.Add(id, KVC_ROLE_KEY_SCALE, KVC_DTYPE_UINT8, heads, dims, group, scale_tokens,
            pick({0, 2}));
    }
    if ((*random)() % 4 == 0) m.Add(id, KVC_ROLE_CUSTOM + 3, KVC_DTYPE_UINT8, 1, 5, group);
  }
  return m;
}

TEST(Geometry, EachBitBelongsToOneElement) {
  const uint64_t seed = testing::EnvNumber("KVC_SEED", 20240607);
  std::mt19937_64 random(seed);
  uint32_t indexed = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    Model m = RandomModel(&random);
    ASSERT_EQ(m.Compute(), "");
    const kvc_geometry& g = m.geometry;
    std::vector<uint8_t> group_of(g.memory_bytes * 8, 0);  // 1 + the group that has the bit
    std::vector<uint64_t> used(3, 0);
    for (size_t i = 0; i < m.specs.size(); ++i) {
      const kvc_buffer& b = m.buffers[i];
      const bool in_row =
          b.role == KVC_ROLE_ROPE && (m.config.flags & KVC_GEOMETRY_SPLIT_ROPE) == 0;
      if (!in_row) {
        ASSERT_EQ(b.base_offset % m.config.alignment, 0u);
      }
      ASSERT_EQ(b.page_stride % std::max(m.config.alignment, 8u), 0u);
      for (uint64_t page = 0; page < g.pages; ++page) {
        for (uint64_t token = 0; token < g.tokens_per_block; ++token) {
          for (uint64_t head = 0; head < b.heads; ++head) {
            for (uint64_t dim = 0; dim < m.specs[i].head_dim; ++dim) {
              // Elements that share a scale have it at one place: painted once, by the first.
              const uint32_t share = m.specs[i].scale_tokens == 0 ? 1 : m.specs[i].scale_tokens;
              if (token % g.kernel_tokens % share != 0) continue;
              if (dim % (m.specs[i].head_dim / b.dims) != 0) continue;
              const auto at = static_cast<uint64_t>(m.Bit(i, page, token, head, dim));
              ASSERT_LE(at + b.element_bits, g.memory_bytes * 8);
              if (m.config.layout == KVC_LAYOUT_COALESCED) {
                ASSERT_EQ(at / 8 / g.page_bytes, page) << "a page is one run";
              }
              for (uint64_t bit = at; bit < at + b.element_bits; ++bit) {
                // A page belongs to one group at a time, so what groups see in it may overlap.
                const bool apart = m.config.layout != KVC_LAYOUT_COALESCED;
                const auto mark = static_cast<uint8_t>(apart ? 1u : 1u << b.group);
                ASSERT_EQ(group_of[bit] & mark, 0) << "two elements in bit " << bit;
                group_of[bit] = static_cast<uint8_t>(group_of[bit] | mark);
              }
              used[b.group] += b.element_bits;
            }
          }
        }
      }
    }
    // What no element has is what is said to be wasted.
    uint64_t least = UINT64_MAX;
    uint64_t all = 0;
    for (const uint64_t bits : used) {
      all += bits / 8 / g.pages;
      if (bits != 0) least = std::min(least, bits / 8 / g.pages);
    }
    EXPECT_EQ(g.wasted_bytes,
              g.page_bytes - (m.config.layout == KVC_LAYOUT_COALESCED ? least : all));
    EXPECT_EQ(g.memory_bytes, g.page_bytes * g.pages);
    EXPECT_EQ(g.pages, m.config.capacity_blocks + ((m.config.flags & 2) != 0 ? 1 : 0));
    EXPECT_EQ(g.padding_page, (m.config.flags & 2) != 0 ? m.config.capacity_blocks : UINT32_MAX);

    // An index leads where the page stride leads, from either base, and stays inside.
    for (const kvc_buffer& b : m.buffers) {
      if ((m.config.flags & KVC_GEOMETRY_INDEXABLE) != 0) {
        ASSERT_NE(b.index_scale, 0u);
        ASSERT_TRUE(b.index_offset != KVC_NO_INDEX || b.role == KVC_ROLE_ROPE);
      }
      if (b.index_scale == 0) continue;
      ++indexed;
      for (uint64_t page = 0; page < g.pages; ++page) {
        for (uint64_t part = 0; part < g.expansion; ++part) {
          const uint64_t want = b.base_offset + page * b.page_stride + part * b.kernel_bytes;
          const uint64_t index = page * b.index_scale * g.expansion + part;
          EXPECT_LT(index, b.index_bound);
          EXPECT_EQ(b.base_offset + index * b.kernel_bytes, want);
          if (b.index_offset != KVC_NO_INDEX) {
            const uint64_t own = (page * b.index_scale + b.index_offset) * g.expansion + part;
            EXPECT_EQ(b.base_offset - b.page_offset + own * b.kernel_bytes, want);
          }
        }
      }
    }
  }
  EXPECT_GT(indexed, 500u);
}

// The parts of a page that its first t tokens take are, byte for byte, those that the
// formula of the header gives for them.
TEST(Geometry, PartsOfAPageAreTheBytesOfItsTokens) {
  for (const kvc_order order : {KVC_ORDER_NHD, KVC_ORDER_HND}) {
    for (const uint32_t kernel_tokens : {0u, 4u}) {
      SCOPED_TRACE(std::to_string(order) + " " + std::to_string(kernel_tokens));
      Model model;
      model.config.order = order;
      model.config.kernel_tokens = kernel_tokens;
      model.AddLayers(2, KVC_DTYPE_FP8_E4M3, 3, 8);
      model.Add(0, KVC_ROLE_KEY_SCALE, KVC_DTYPE_FP32, 3, 8, 0, 4, 0);
      model.Add(1, KVC_ROLE_VALUE_SCALE, KVC_DTYPE_FP16, 3, 8, 0, 1, 4);
      model.AddLatentLayers(1, KVC_DTYPE_BF16, 16, 4);
      model.specs[model.specs.size() - 2].layer = model.specs.back().layer = 2;
      ASSERT_EQ(model.Compute(), "");
      const std::vector<std::vector<PagePart>> parts = PageParts(
          model.geometry, static_cast<uint32_t>(model.buffers.size()), model.buffers.data());
      ASSERT_EQ(parts.size(), model.config.tokens_per_block);
      std::vector<bool> want(model.geometry.page_bytes);
      for (uint32_t token = 0; token < model.config.tokens_per_block; ++token) {
        for (size_t i = 0; i < model.specs.size(); ++i) {
          for (uint32_t head = 0; head < model.specs[i].heads; ++head) {
            for (uint32_t dim = 0; dim < model.specs[i].head_dim; ++dim) {
              const auto bit = static_cast<uint64_t>(model.Bit(i, 0, token, head, dim));
              const uint32_t bits = model.buffers[i].element_bits;
              for (uint64_t b = bit / 8; b <= (bit + bits - 1) / 8; ++b) want[b] = true;
            }
          }
        }
        std::vector<bool> got(model.geometry.page_bytes);
        uint64_t end = 0;
        for (const PagePart& part : parts[token]) {
          ASSERT_TRUE(part.offset > end || end == 0) << "in order, and joined where they touch";
          end = part.offset + part.bytes;
          ASSERT_LE(end, got.size());
          for (uint64_t b = part.offset; b < end; ++b) got[b] = true;
        }
        ASSERT_EQ(got, want) << token + 1 << " tokens";
      }
    }
  }
}

}  // namespace
}  // namespace kvcast
