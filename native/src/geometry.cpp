// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/geometry.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "native/src/status.h"
#include "native/src/types.h"

namespace kvcast {

namespace geometry {

constexpr uint32_t kMaxGroups = 64;
constexpr uint32_t kMaxBuffers = 1u << 20;
constexpr uint32_t kMaxSide =
    65536;  // heads, head_dim: beyond every model, and products stay small
constexpr uint32_t kMaxAlignment = 2u << 20;  // the granularity of device memory
constexpr uint64_t kPageMultiple = 8;         // what kvc_config.page_bytes must be a multiple of
constexpr uint32_t kLastRole = KVC_ROLE_CUSTOM + 15;

[[noreturn]] void Bad(const std::string& field, uint64_t value, const std::string& rule) {
  throw Error(KVC_INVALID_ARGUMENT, field + " is " + std::to_string(value) + ", must be " + rule);
}

std::string Field(uint32_t index, const char* name) {
  return "specs[" + std::to_string(index) + "]." + name;
}

bool IsScale(kvc_role role) {
  return role == KVC_ROLE_KEY_SCALE || role == KVC_ROLE_VALUE_SCALE ||
         role == KVC_ROLE_LATENT_SCALE;
}

// What a scale buffer scales.
kvc_role Scaled(kvc_role role) {
  return role == KVC_ROLE_KEY_SCALE     ? KVC_ROLE_KEY
         : role == KVC_ROLE_VALUE_SCALE ? KVC_ROLE_VALUE
                                        : KVC_ROLE_LATENT;
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  const uint64_t over = value % multiple;
  return over == 0 ? value : CheckedAdd(value, multiple - over);
}

uint64_t Lcm(uint64_t a, uint64_t b) { return CheckedMul(a / std::gcd(a, b), b); }

// What lies in one run: a buffer, or a latent with its rope.
struct Unit {
  uint32_t first = 0;
  uint32_t second = kNil;
  uint32_t layer = 0;  // its ordinal, in the order of the specs
  uint32_t group = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the page
};

class Layout {
 public:
  Layout(const kvc_geometry_config& config, uint32_t count, const kvc_buffer_spec* specs,
         kvc_buffer* buffers)
      : config_(config), count_(count), specs_(specs), buffers_(buffers) {}

  void Compute(kvc_geometry* out) {
    ValidateConfig();
    expansion_ = config_.tokens_per_block / config_.kernel_tokens;
    pages_ = uint64_t{config_.capacity_blocks} +
             ((config_.flags & KVC_GEOMETRY_PADDING_PAGE) != 0 ? 1 : 0);
    for (uint32_t i = 0; i < count_; ++i) ValidateSpec(i);
    for (uint32_t i = 0; i < count_; ++i) ValidateScale(i);
    for (uint32_t i = 0; i < count_; ++i) MakeUnit(i);
    kvc_geometry made{};
    if (config_.layout == KVC_LAYOUT_COALESCED) {
      Coalesce(&made);
    } else {
      Separate(&made);
    }
    made.padding_page =
        (config_.flags & KVC_GEOMETRY_PADDING_PAGE) != 0 ? config_.capacity_blocks : UINT32_MAX;
    made.tokens_per_block = config_.tokens_per_block;
    made.kernel_tokens = config_.kernel_tokens;
    made.expansion = expansion_;
    made.layout = config_.layout;
    made.order = config_.order;
    made.pages = static_cast<uint32_t>(pages_);
    uint64_t groups = 0;
    for (const auto& [layer, at] : layers_) groups |= uint64_t{1} << at.group;
    for (; groups != 0; groups &= groups - 1) ++made.groups;
    *out = made;
  }

 private:
  struct LayerFacts {
    uint32_t group = 0;
    uint32_t ordinal = 0;
    std::map<kvc_role, uint32_t> roles;  // to the index of the spec
  };

  void ValidateConfig() {
    constexpr uint32_t kFlags =
        KVC_GEOMETRY_INDEXABLE | KVC_GEOMETRY_PADDING_PAGE | KVC_GEOMETRY_SPLIT_ROPE;
    if ((config_.flags & ~kFlags) != 0) Bad("flags", config_.flags, "a sum of KVC_GEOMETRY_*");
    if (config_.layout > KVC_LAYOUT_PER_BUFFER) Bad("layout", config_.layout, "a kvc_layout");
    if (config_.order > KVC_ORDER_HND) Bad("order", config_.order, "a kvc_order");
    if (config_.tokens_per_block == 0 || config_.tokens_per_block > kMaxTokensPerBlock) {
      Bad("tokens_per_block", config_.tokens_per_block, "1 to 4096");
    }
    if (config_.kernel_tokens == 0) config_.kernel_tokens = config_.tokens_per_block;
    if (config_.tokens_per_block % config_.kernel_tokens != 0) {
      Bad("kernel_tokens", config_.kernel_tokens, "a divisor of tokens_per_block");
    }
    if (config_.capacity_blocks == 0 || config_.capacity_blocks > kMaxPages) {
      Bad("capacity_blocks", config_.capacity_blocks, "1 to 2^27");
    }
    if (config_.alignment == 0 || config_.alignment > kMaxAlignment ||
        (config_.alignment & (config_.alignment - 1)) != 0) {
      Bad("alignment", config_.alignment, "a power of two from 1 to 2 MiB");
    }
  }

  void ValidateSpec(uint32_t i) {
    const kvc_buffer_spec& s = specs_[i];
    if (s.group >= kMaxGroups) Bad(Field(i, "group"), s.group, "below 64");
    if (s.role > kLastRole || (s.role > KVC_ROLE_ROPE && s.role < KVC_ROLE_CUSTOM)) {
      Bad(Field(i, "role"), s.role, "a kvc_role");
    }
    if (ElementBits(s.dtype) == 0) Bad(Field(i, "dtype"), s.dtype, "a kvc_dtype");
    if (s.heads == 0 || s.heads > kMaxSide) Bad(Field(i, "heads"), s.heads, "1 to 65536");
    const bool latent = s.role == KVC_ROLE_LATENT || s.role == KVC_ROLE_ROPE;
    if (latent && s.heads != 1) Bad(Field(i, "heads"), s.heads, "1 for a latent or a rope");
    if (s.head_dim == 0 || s.head_dim > kMaxSide) {
      Bad(Field(i, "head_dim"), s.head_dim, "1 to 65536");
    }
    kvc_buffer& b = buffers_[i];
    b = {};
    b.layer = s.layer;
    b.group = s.group;
    b.role = s.role;
    b.dtype = s.dtype;
    b.heads = s.heads;
    b.dims = s.head_dim;
    b.rows = config_.kernel_tokens;
    b.element_bits = ElementBits(s.dtype);
    if (IsScale(s.role)) {
      const uint32_t tokens = s.scale_tokens == 0 ? 1 : s.scale_tokens;
      const uint32_t elements = s.scale_elements == 0 ? s.head_dim : s.scale_elements;
      if (config_.kernel_tokens % tokens != 0) {
        Bad(Field(i, "scale_tokens"), tokens, "a divisor of kernel_tokens");
      }
      if (s.head_dim % elements != 0) {
        Bad(Field(i, "scale_elements"), elements, "a divisor of head_dim");
      }
      b.rows = config_.kernel_tokens / tokens;
      b.dims = s.head_dim / elements;
    } else {
      if (s.scale_tokens != 0)
        Bad(Field(i, "scale_tokens"), s.scale_tokens, "0 for what is no scale");
      if (s.scale_elements != 0) {
        Bad(Field(i, "scale_elements"), s.scale_elements, "0 for what is no scale");
      }
    }
    if (uint64_t{b.dims} * b.element_bits % 8 != 0) {
      Bad(Field(i, "head_dim"), s.head_dim, "even: a head's 4-bit elements must fill whole bytes");
    }
    const auto ordinal = static_cast<uint32_t>(layers_.size());
    LayerFacts& layer =
        layers_.try_emplace(s.layer, LayerFacts{s.group, ordinal, {}}).first->second;
    if (layer.group != s.group) {
      Bad(Field(i, "group"), s.group, "that of the layer's other buffers");
    }
    if (!layer.roles.emplace(s.role, i).second) {
      Bad(Field(i, "role"), s.role, "one the layer has not yet");
    }
  }

  void ValidateScale(uint32_t i) {
    const kvc_buffer_spec& s = specs_[i];
    if (!IsScale(s.role)) return;
    const LayerFacts& layer = layers_.at(s.layer);
    const auto at = layer.roles.find(Scaled(s.role));
    if (at == layer.roles.end()) {
      Bad(Field(i, "role"), s.role, "that of a scale whose keys, values or latents the layer has");
    }
    if (specs_[at->second].heads != s.heads) {
      Bad(Field(i, "heads"), s.heads, "those of the buffer it scales");
    }
    if (specs_[at->second].head_dim != s.head_dim) {
      Bad(Field(i, "head_dim"), s.head_dim, "that of the buffer it scales");
    }
  }

  void MakeUnit(uint32_t i) {
    const LayerFacts& layer = layers_.at(specs_[i].layer);
    Unit unit;
    unit.first = i;
    unit.layer = layer.ordinal;
    unit.group = layer.group;
    if ((config_.flags & KVC_GEOMETRY_SPLIT_ROPE) == 0) {
      const auto latent = layer.roles.find(KVC_ROLE_LATENT);
      const auto rope = layer.roles.find(KVC_ROLE_ROPE);
      if (latent != layer.roles.end() && rope != layer.roles.end()) {
        if (specs_[i].role == KVC_ROLE_ROPE) return;  // in the latent's unit
        if (specs_[i].role == KVC_ROLE_LATENT) unit.second = rope->second;
      }
    }
    kvc_buffer& b = buffers_[i];
    const auto head = [](const kvc_buffer& of) { return uint64_t{of.dims} * of.element_bits / 8; };
    if (unit.second != kNil) {
      kvc_buffer& rope = buffers_[unit.second];
      const uint64_t row = head(b) + head(rope);
      for (kvc_buffer* part : {&b, &rope}) {
        part->row_stride = row;
        part->head_stride = row;
        part->kernel_bytes = CheckedMul(row, part->rows);
      }
      rope.page_offset = head(b);  // for now: its place in the row
    } else if (config_.order == KVC_ORDER_NHD) {
      b.head_stride = head(b);
      b.row_stride = CheckedMul(b.head_stride, b.heads);
      b.kernel_bytes = CheckedMul(b.row_stride, b.rows);
    } else {
      b.row_stride = head(b);
      b.head_stride = CheckedMul(b.row_stride, b.rows);
      b.kernel_bytes = CheckedMul(b.head_stride, b.heads);
    }
    unit.bytes = CheckedMul(b.kernel_bytes, expansion_);
    units_.push_back(unit);
  }

  [[nodiscard]] bool indexable() const { return (config_.flags & KVC_GEOMETRY_INDEXABLE) != 0; }

  // One after the other; returns where the last one ends.
  uint64_t Place(const std::vector<Unit*>& units) {
    uint64_t end = 0;
    for (Unit* unit : units) {
      end = RoundUp(end, config_.alignment);
      if (indexable()) end = RoundUp(end, Lcm(unit->bytes, config_.alignment));
      unit->offset = end;
      end = CheckedAdd(end, unit->bytes);
    }
    return end;
  }

  // What a page of these units must be a multiple of.
  uint64_t Multiple(const std::vector<Unit*>& units) {
    uint64_t multiple = std::max<uint64_t>(config_.alignment, kPageMultiple);
    if (indexable()) {
      for (const Unit* unit : units) multiple = Lcm(multiple, unit->bytes);
    }
    return multiple;
  }

  // The largest first: equal sizes come together, so that they are multiples of
  // themselves apart, and a layer's values stay right behind its keys.
  static void LargestFirst(std::vector<Unit*>* units) {
    std::stable_sort(units->begin(), units->end(),
                     [](const Unit* a, const Unit* b) { return a->bytes > b->bytes; });
  }

  void Coalesce(kvc_geometry* out) {
    std::map<uint32_t, std::vector<Unit*>> groups;
    for (Unit& unit : units_) groups[unit.group].push_back(&unit);
    uint64_t page = 0;
    uint64_t multiple = 1;
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (auto& [group, units] : groups) {
      LargestFirst(&units);
      page = std::max(page, Place(units));
      multiple = Lcm(multiple, Multiple(units));
      uint64_t used = 0;
      for (const Unit* unit : units) used += unit->bytes;
      least = std::min(least, used);
    }
    page = RoundUp(page, multiple);
    out->page_bytes = page;
    out->wasted_bytes = page - least;
    out->memory_bytes = CheckedMul(page, pages_);
    for (const Unit& unit : units_) Finish(unit, 0, page);
  }

  void Separate(kvc_geometry* out) {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Unit*>> regions;
    for (uint32_t i = 0; i < units_.size(); ++i) {
      const uint32_t part = config_.layout == KVC_LAYOUT_PER_BUFFER ? i : 0;
      regions[{units_[i].layer, part}].push_back(&units_[i]);
    }
    uint64_t base = 0;
    for (auto& [key, units] : regions) {
      LargestFirst(&units);
      const uint64_t end = Place(units);
      const uint64_t stride = RoundUp(end, Multiple(units));
      for (const Unit* unit : units) {
        Finish(*unit, base, stride);
        out->wasted_bytes += 0 - unit->bytes;  // modulo 2^64; the stride follows
      }
      out->wasted_bytes += stride;
      out->page_bytes = CheckedAdd(out->page_bytes, stride);
      base = CheckedAdd(base, CheckedMul(stride, pages_));
    }
    out->memory_bytes = base;
  }

  void Finish(const Unit& unit, uint64_t region, uint64_t stride) {
    for (const uint32_t i : {unit.first, unit.second}) {
      if (i == kNil) continue;
      kvc_buffer& b = buffers_[i];
      const uint64_t in_row = i == unit.second ? b.page_offset : 0;
      b.page_offset = unit.offset + in_row;
      b.base_offset = region + b.page_offset;
      b.page_stride = stride;
      b.bytes = unit.bytes;
      b.index_offset = KVC_NO_INDEX;
      if (stride % unit.bytes != 0) continue;
      b.index_scale = stride / unit.bytes;
      if (b.page_offset % unit.bytes == 0) b.index_offset = b.page_offset / unit.bytes;
      b.index_bound =
          CheckedMul((CheckedMul(stride, pages_) - unit.offset) / unit.bytes, expansion_);
    }
  }

  kvc_geometry_config config_;
  const uint32_t count_;
  const kvc_buffer_spec* specs_;
  kvc_buffer* buffers_;
  uint32_t expansion_ = 1;
  uint64_t pages_ = 0;
  std::map<uint32_t, LayerFacts> layers_;
  std::vector<Unit> units_;
};

}  // namespace geometry

uint64_t CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > INT64_MAX) {
    throw Error(KVC_INVALID_ARGUMENT,
                "capacity_blocks and the buffers' sizes: the pool would not fit 2^63 bytes");
  }
  return sum;
}

uint64_t CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > INT64_MAX) {
    throw Error(KVC_INVALID_ARGUMENT,
                "capacity_blocks and the buffers' sizes: the pool would not fit 2^63 bytes");
  }
  return product;
}

uint32_t ElementBits(kvc_dtype dtype) {
  switch (dtype) {
    case KVC_DTYPE_FP32:
      return 32;
    case KVC_DTYPE_BF16:
    case KVC_DTYPE_FP16:
      return 16;
    case KVC_DTYPE_FP8_E4M3:
    case KVC_DTYPE_FP8_E5M2:
    case KVC_DTYPE_INT8:
    case KVC_DTYPE_FP8_UE8M0:
    case KVC_DTYPE_UINT8:
      return 8;
    case KVC_DTYPE_FP4_E2M1:
      return 4;
    default:
      return 0;
  }
}

void ComputeGeometry(const kvc_geometry_config& config, uint32_t count,
                     const kvc_buffer_spec* specs, kvc_buffer* buffers, kvc_geometry* out) {
  if (count == 0 || count > geometry::kMaxBuffers) geometry::Bad("count", count, "1 to 2^20");
  // Into memory of our own first: out-parameters are written only on success.
  std::vector<kvc_buffer> mine(count);
  geometry::Layout(config, count, specs, mine.data()).Compute(out);
  std::copy(mine.begin(), mine.end(), buffers);
}

}  // namespace kvcast
