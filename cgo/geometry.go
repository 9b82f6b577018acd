// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// Limits and marks of the geometry.
const (
	// ViewTensors is how many tensors a view has at most.
	ViewTensors = C.KVC_VIEW_TENSORS
	// ViewRank is how many dimensions a tensor has at most.
	ViewRank = C.KVC_VIEW_RANK
	// NoIndex in Buffer.IndexOffset: no index reaches the buffer from the pool's start.
	NoIndex uint64 = C.KVC_NO_INDEX
	// NoPage in Geometry.PaddingPage: there is none.
	NoPage uint32 = 1<<32 - 1
)

// Flags of a GeometryConfig.
const (
	GeometryIndexable   = C.KVC_GEOMETRY_INDEXABLE
	GeometryPaddingPage = C.KVC_GEOMETRY_PADDING_PAGE
	GeometrySplitRope   = C.KVC_GEOMETRY_SPLIT_ROPE
)

// The roles of buffers.
const (
	RoleKey         = C.KVC_ROLE_KEY
	RoleValue       = C.KVC_ROLE_VALUE
	RoleKeyScale    = C.KVC_ROLE_KEY_SCALE
	RoleValueScale  = C.KVC_ROLE_VALUE_SCALE
	RoleLatent      = C.KVC_ROLE_LATENT
	RoleLatentScale = C.KVC_ROLE_LATENT_SCALE
	RoleRope        = C.KVC_ROLE_ROPE
	RoleCustom      = C.KVC_ROLE_CUSTOM
)

// The types of elements.
const (
	BF16     = C.KVC_DTYPE_BF16
	FP16     = C.KVC_DTYPE_FP16
	FP32     = C.KVC_DTYPE_FP32
	FP8E4M3  = C.KVC_DTYPE_FP8_E4M3
	FP8E5M2  = C.KVC_DTYPE_FP8_E5M2
	Int8     = C.KVC_DTYPE_INT8
	FP4E2M1  = C.KVC_DTYPE_FP4_E2M1
	FP8UE8M0 = C.KVC_DTYPE_FP8_UE8M0
	Uint8    = C.KVC_DTYPE_UINT8
)

// Layouts of the pool and orders inside a buffer.
const (
	LayoutCoalesced = C.KVC_LAYOUT_COALESCED
	LayoutPerLayer  = C.KVC_LAYOUT_PER_LAYER
	LayoutPerBuffer = C.KVC_LAYOUT_PER_BUFFER
	OrderNHD        = C.KVC_ORDER_NHD
	OrderHND        = C.KVC_ORDER_HND
)

// The views of attention kernels.
const (
	ViewFlashInfer         = C.KVC_VIEW_FLASHINFER
	ViewFlashInferCombined = C.KVC_VIEW_FLASHINFER_COMBINED
	ViewFlashInferMLA      = C.KVC_VIEW_FLASHINFER_MLA
	ViewFlashAttention     = C.KVC_VIEW_FLASH_ATTENTION
	ViewFlashAttention2    = C.KVC_VIEW_FLASH_ATTENTION_2
	ViewVLLMKVFirst        = C.KVC_VIEW_VLLM_KV_FIRST
	ViewVLLMBlocksFirst    = C.KVC_VIEW_VLLM_BLOCKS_FIRST
	ViewVLLMMLA            = C.KVC_VIEW_VLLM_MLA
	ViewTensorRTLLM        = C.KVC_VIEW_TENSORRT_LLM
)

// GeometryConfig is kvc_geometry_config.
type GeometryConfig struct {
	StructSize     uint32
	Flags          uint32
	Layout         uint32
	Order          uint32
	TokensPerBlock uint32
	KernelTokens   uint32
	CapacityBlocks uint32
	Alignment      uint32
}

// Init sets the struct size and the library's defaults.
func (c *GeometryConfig) Init() {
	C.kvc_geometry_config_init((*C.kvc_geometry_config)(unsafe.Pointer(c)))
}

// BufferSpec is kvc_buffer_spec.
type BufferSpec struct {
	Layer         uint32
	Group         uint32
	Role          uint32
	DType         uint32
	Heads         uint32
	HeadDim       uint32
	ScaleTokens   uint32
	ScaleElements uint32
}

// Buffer is kvc_buffer.
type Buffer struct {
	Layer       uint32
	Group       uint32
	Role        uint32
	DType       uint32
	Heads       uint32
	Dims        uint32
	Rows        uint32
	ElementBits uint32
	BaseOffset  uint64
	PageOffset  uint64
	PageStride  uint64
	Bytes       uint64
	KernelBytes uint64
	RowStride   uint64
	HeadStride  uint64
	IndexScale  uint64
	IndexOffset uint64
	IndexBound  uint64
}

// Geometry is kvc_geometry.
type Geometry struct {
	PageBytes      uint64
	MemoryBytes    uint64
	WastedBytes    uint64
	PaddingPage    uint32
	TokensPerBlock uint32
	KernelTokens   uint32
	Expansion      uint32
	Layout         uint32
	Order          uint32
	Groups         uint32
	Pages          uint32
}

// TensorView is kvc_tensor_view.
type TensorView struct {
	Role        uint32
	DType       uint32
	ElementBits uint32
	Rank        uint32
	Dense       uint32
	Expansion   uint32
	BaseOffset  uint64
	IndexScale  uint64
	IndexOffset uint64
	Shape       [ViewRank]uint64
	Stride      [ViewRank]uint64
}

// GeometryCompute writes the place of specs[i] into buffers[i]; buffers must be
// as long as specs.
func GeometryCompute(config *GeometryConfig, specs []BufferSpec, buffers []Buffer, out *Geometry,
	err *Error) Status {
	_ = buffers[:len(specs)]
	return Status(C.kvc_geometry_compute((*C.kvc_geometry_config)(unsafe.Pointer(config)),
		C.uint32_t(len(specs)), (*C.kvc_buffer_spec)(unsafe.Pointer(unsafe.SliceData(specs))),
		(*C.kvc_buffer)(unsafe.Pointer(unsafe.SliceData(buffers))),
		(*C.kvc_geometry)(unsafe.Pointer(out)), err.c()))
}

// PageLayoutSet tells where the tokens of pages lie.
func (m Manager) PageLayoutSet(config *GeometryConfig, specs []BufferSpec, err *Error) Status {
	return Status(C.kvc_page_layout_set(m.c, (*C.kvc_geometry_config)(unsafe.Pointer(config)),
		C.uint32_t(len(specs)), (*C.kvc_buffer_spec)(unsafe.Pointer(unsafe.SliceData(specs))), err.c()))
}

// View writes the tensors of a layer as a consumer addresses them and returns
// how many there are.
func (g *Geometry) View(buffers []Buffer, layer, kind uint32, views *[ViewTensors]TensorView,
	err *Error) (int, Status) {
	var written C.uint32_t
	s := C.kvc_geometry_view((*C.kvc_geometry)(unsafe.Pointer(g)), C.uint32_t(len(buffers)),
		(*C.kvc_buffer)(unsafe.Pointer(unsafe.SliceData(buffers))), C.uint32_t(layer),
		C.kvc_view_kind(kind), (*C.kvc_tensor_view)(unsafe.Pointer(views)), &written, err.c())
	return int(written), Status(s)
}
