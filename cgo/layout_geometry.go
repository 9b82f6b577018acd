// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// As in layout.go: a difference between the Go and the C struct does not compile.
var (
	// kvc_geometry_config
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}) - unsafe.Sizeof(C.kvc_geometry_config{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.StructSize) - unsafe.Offsetof(C.kvc_geometry_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.StructSize) - unsafe.Sizeof(C.kvc_geometry_config{}.struct_size)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.Flags) - unsafe.Offsetof(C.kvc_geometry_config{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.Flags) - unsafe.Sizeof(C.kvc_geometry_config{}.flags)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.Layout) - unsafe.Offsetof(C.kvc_geometry_config{}.layout)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.Layout) - unsafe.Sizeof(C.kvc_geometry_config{}.layout)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.Order) - unsafe.Offsetof(C.kvc_geometry_config{}.order)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.Order) - unsafe.Sizeof(C.kvc_geometry_config{}.order)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.TokensPerBlock) - unsafe.Offsetof(C.kvc_geometry_config{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.TokensPerBlock) - unsafe.Sizeof(C.kvc_geometry_config{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.KernelTokens) - unsafe.Offsetof(C.kvc_geometry_config{}.kernel_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.KernelTokens) - unsafe.Sizeof(C.kvc_geometry_config{}.kernel_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.CapacityBlocks) - unsafe.Offsetof(C.kvc_geometry_config{}.capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.CapacityBlocks) - unsafe.Sizeof(C.kvc_geometry_config{}.capacity_blocks)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(GeometryConfig{}.Alignment) - unsafe.Offsetof(C.kvc_geometry_config{}.alignment)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(GeometryConfig{}.Alignment) - unsafe.Sizeof(C.kvc_geometry_config{}.alignment)]struct{}{}

	// kvc_buffer_spec
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}) - unsafe.Sizeof(C.kvc_buffer_spec{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.Layer) - unsafe.Offsetof(C.kvc_buffer_spec{}.layer)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.Layer) - unsafe.Sizeof(C.kvc_buffer_spec{}.layer)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.Group) - unsafe.Offsetof(C.kvc_buffer_spec{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.Group) - unsafe.Sizeof(C.kvc_buffer_spec{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.Role) - unsafe.Offsetof(C.kvc_buffer_spec{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.Role) - unsafe.Sizeof(C.kvc_buffer_spec{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.DType) - unsafe.Offsetof(C.kvc_buffer_spec{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.DType) - unsafe.Sizeof(C.kvc_buffer_spec{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.Heads) - unsafe.Offsetof(C.kvc_buffer_spec{}.heads)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.Heads) - unsafe.Sizeof(C.kvc_buffer_spec{}.heads)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.HeadDim) - unsafe.Offsetof(C.kvc_buffer_spec{}.head_dim)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.HeadDim) - unsafe.Sizeof(C.kvc_buffer_spec{}.head_dim)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.ScaleTokens) - unsafe.Offsetof(C.kvc_buffer_spec{}.scale_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.ScaleTokens) - unsafe.Sizeof(C.kvc_buffer_spec{}.scale_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(BufferSpec{}.ScaleElements) - unsafe.Offsetof(C.kvc_buffer_spec{}.scale_elements)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(BufferSpec{}.ScaleElements) - unsafe.Sizeof(C.kvc_buffer_spec{}.scale_elements)]struct{}{}

	// kvc_buffer
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}) - unsafe.Sizeof(C.kvc_buffer{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Layer) - unsafe.Offsetof(C.kvc_buffer{}.layer)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Layer) - unsafe.Sizeof(C.kvc_buffer{}.layer)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Group) - unsafe.Offsetof(C.kvc_buffer{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Group) - unsafe.Sizeof(C.kvc_buffer{}.group)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Role) - unsafe.Offsetof(C.kvc_buffer{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Role) - unsafe.Sizeof(C.kvc_buffer{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.DType) - unsafe.Offsetof(C.kvc_buffer{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.DType) - unsafe.Sizeof(C.kvc_buffer{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Heads) - unsafe.Offsetof(C.kvc_buffer{}.heads)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Heads) - unsafe.Sizeof(C.kvc_buffer{}.heads)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Dims) - unsafe.Offsetof(C.kvc_buffer{}.dims)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Dims) - unsafe.Sizeof(C.kvc_buffer{}.dims)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Rows) - unsafe.Offsetof(C.kvc_buffer{}.rows)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Rows) - unsafe.Sizeof(C.kvc_buffer{}.rows)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.ElementBits) - unsafe.Offsetof(C.kvc_buffer{}.element_bits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.ElementBits) - unsafe.Sizeof(C.kvc_buffer{}.element_bits)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.BaseOffset) - unsafe.Offsetof(C.kvc_buffer{}.base_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.BaseOffset) - unsafe.Sizeof(C.kvc_buffer{}.base_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.PageOffset) - unsafe.Offsetof(C.kvc_buffer{}.page_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.PageOffset) - unsafe.Sizeof(C.kvc_buffer{}.page_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.PageStride) - unsafe.Offsetof(C.kvc_buffer{}.page_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.PageStride) - unsafe.Sizeof(C.kvc_buffer{}.page_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.Bytes) - unsafe.Offsetof(C.kvc_buffer{}.bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.Bytes) - unsafe.Sizeof(C.kvc_buffer{}.bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.KernelBytes) - unsafe.Offsetof(C.kvc_buffer{}.kernel_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.KernelBytes) - unsafe.Sizeof(C.kvc_buffer{}.kernel_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.RowStride) - unsafe.Offsetof(C.kvc_buffer{}.row_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.RowStride) - unsafe.Sizeof(C.kvc_buffer{}.row_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.HeadStride) - unsafe.Offsetof(C.kvc_buffer{}.head_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.HeadStride) - unsafe.Sizeof(C.kvc_buffer{}.head_stride)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.IndexScale) - unsafe.Offsetof(C.kvc_buffer{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.IndexScale) - unsafe.Sizeof(C.kvc_buffer{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.IndexOffset) - unsafe.Offsetof(C.kvc_buffer{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.IndexOffset) - unsafe.Sizeof(C.kvc_buffer{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Buffer{}.IndexBound) - unsafe.Offsetof(C.kvc_buffer{}.index_bound)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Buffer{}.IndexBound) - unsafe.Sizeof(C.kvc_buffer{}.index_bound)]struct{}{}

	// kvc_geometry
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}) - unsafe.Sizeof(C.kvc_geometry{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.PageBytes) - unsafe.Offsetof(C.kvc_geometry{}.page_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.PageBytes) - unsafe.Sizeof(C.kvc_geometry{}.page_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.MemoryBytes) - unsafe.Offsetof(C.kvc_geometry{}.memory_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.MemoryBytes) - unsafe.Sizeof(C.kvc_geometry{}.memory_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.WastedBytes) - unsafe.Offsetof(C.kvc_geometry{}.wasted_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.WastedBytes) - unsafe.Sizeof(C.kvc_geometry{}.wasted_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.PaddingPage) - unsafe.Offsetof(C.kvc_geometry{}.padding_page)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.PaddingPage) - unsafe.Sizeof(C.kvc_geometry{}.padding_page)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.TokensPerBlock) - unsafe.Offsetof(C.kvc_geometry{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.TokensPerBlock) - unsafe.Sizeof(C.kvc_geometry{}.tokens_per_block)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.KernelTokens) - unsafe.Offsetof(C.kvc_geometry{}.kernel_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.KernelTokens) - unsafe.Sizeof(C.kvc_geometry{}.kernel_tokens)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.Expansion) - unsafe.Offsetof(C.kvc_geometry{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.Expansion) - unsafe.Sizeof(C.kvc_geometry{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.Layout) - unsafe.Offsetof(C.kvc_geometry{}.layout)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.Layout) - unsafe.Sizeof(C.kvc_geometry{}.layout)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.Order) - unsafe.Offsetof(C.kvc_geometry{}.order)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.Order) - unsafe.Sizeof(C.kvc_geometry{}.order)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.Groups) - unsafe.Offsetof(C.kvc_geometry{}.groups)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.Groups) - unsafe.Sizeof(C.kvc_geometry{}.groups)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Geometry{}.Pages) - unsafe.Offsetof(C.kvc_geometry{}.pages)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Geometry{}.Pages) - unsafe.Sizeof(C.kvc_geometry{}.pages)]struct{}{}

	// kvc_tensor_view
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}) - unsafe.Sizeof(C.kvc_tensor_view{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Role) - unsafe.Offsetof(C.kvc_tensor_view{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Role) - unsafe.Sizeof(C.kvc_tensor_view{}.role)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.DType) - unsafe.Offsetof(C.kvc_tensor_view{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.DType) - unsafe.Sizeof(C.kvc_tensor_view{}.dtype)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.ElementBits) - unsafe.Offsetof(C.kvc_tensor_view{}.element_bits)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.ElementBits) - unsafe.Sizeof(C.kvc_tensor_view{}.element_bits)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Rank) - unsafe.Offsetof(C.kvc_tensor_view{}.rank)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Rank) - unsafe.Sizeof(C.kvc_tensor_view{}.rank)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Dense) - unsafe.Offsetof(C.kvc_tensor_view{}.dense)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Dense) - unsafe.Sizeof(C.kvc_tensor_view{}.dense)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Expansion) - unsafe.Offsetof(C.kvc_tensor_view{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Expansion) - unsafe.Sizeof(C.kvc_tensor_view{}.expansion)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.BaseOffset) - unsafe.Offsetof(C.kvc_tensor_view{}.base_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.BaseOffset) - unsafe.Sizeof(C.kvc_tensor_view{}.base_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.IndexScale) - unsafe.Offsetof(C.kvc_tensor_view{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.IndexScale) - unsafe.Sizeof(C.kvc_tensor_view{}.index_scale)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.IndexOffset) - unsafe.Offsetof(C.kvc_tensor_view{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.IndexOffset) - unsafe.Sizeof(C.kvc_tensor_view{}.index_offset)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Shape) - unsafe.Offsetof(C.kvc_tensor_view{}.shape)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Shape) - unsafe.Sizeof(C.kvc_tensor_view{}.shape)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(TensorView{}.Stride) - unsafe.Offsetof(C.kvc_tensor_view{}.stride)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(TensorView{}.Stride) - unsafe.Sizeof(C.kvc_tensor_view{}.stride)]struct{}{}
)
