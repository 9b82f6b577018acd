// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// Role says what a buffer of a layer holds. A layer has each role at most once.
type Role uint32

// The roles. RoleCustom and the 15 numbers after it are the engine's own. Scales
// have the heads and the head size of what they scale.
const (
	RoleKey         Role = cgo.RoleKey
	RoleValue       Role = cgo.RoleValue
	RoleKeyScale    Role = cgo.RoleKeyScale
	RoleValueScale  Role = cgo.RoleValueScale
	RoleLatent      Role = cgo.RoleLatent
	RoleLatentScale Role = cgo.RoleLatentScale
	RoleRope        Role = cgo.RoleRope
	RoleCustom      Role = cgo.RoleCustom
)

// DType is the type of a buffer's elements.
type DType uint32

// The types of elements. Two FP4 values fill a byte.
const (
	BF16     DType = cgo.BF16
	FP16     DType = cgo.FP16
	FP32     DType = cgo.FP32
	FP8E4M3  DType = cgo.FP8E4M3
	FP8E5M2  DType = cgo.FP8E5M2
	Int8     DType = cgo.Int8
	FP4E2M1  DType = cgo.FP4E2M1
	FP8UE8M0 DType = cgo.FP8UE8M0
	Uint8    DType = cgo.Uint8
)

// Layout says how the buffers of all layers share the memory of the pool.
type Layout uint32

// The layouts: a page with the buffers of all layers in one run (the only one of
// memory that a manager owns), [layer][page][buffer] and [layer][buffer][page].
const (
	LayoutCoalesced Layout = cgo.LayoutCoalesced
	LayoutPerLayer  Layout = cgo.LayoutPerLayer
	LayoutPerBuffer Layout = cgo.LayoutPerBuffer
)

// Order is that of the dimensions inside a buffer of one page.
type Order uint32

// The orders: [token][head][dim] and [head][token][dim].
const (
	OrderNHD Order = cgo.OrderNHD
	OrderHND Order = cgo.OrderHND
)

// ViewKind names the kernels that address a layer's tensors.
type ViewKind uint32

// The kinds of views; docs/kernel-views.md has the formulas.
const (
	ViewFlashInfer         ViewKind = cgo.ViewFlashInfer
	ViewFlashInferCombined ViewKind = cgo.ViewFlashInferCombined
	ViewFlashInferMLA      ViewKind = cgo.ViewFlashInferMLA
	ViewFlashAttention     ViewKind = cgo.ViewFlashAttention
	ViewFlashAttention2    ViewKind = cgo.ViewFlashAttention2
	ViewVLLMKVFirst        ViewKind = cgo.ViewVLLMKVFirst
	ViewVLLMBlocksFirst    ViewKind = cgo.ViewVLLMBlocksFirst
	ViewVLLMMLA            ViewKind = cgo.ViewVLLMMLA
	ViewTensorRTLLM        ViewKind = cgo.ViewTensorRTLLM
)

// BufferSpec describes one buffer of one layer.
type BufferSpec struct {
	// Layer is the engine's id of it.
	Layer uint32
	// Group is below 64 and the same for all buffers of a layer.
	Group uint32
	Role  Role
	DType DType
	// Heads of keys and values, 1..65536; 1 for latents and their rope.
	Heads int
	// HeadDim is the number of elements of a head, 1..65536.
	HeadDim int
	// ScaleTokens share one scale: a divisor of the kernels' block; 0 = 1.
	ScaleTokens int
	// ScaleElements of a head share one scale: a divisor of HeadDim; 0 = all.
	ScaleElements int
}

// GeometryConfig describes the memory of a model's keys and values.
type GeometryConfig struct {
	// TokensPerBlock is the manager's; default 16.
	TokensPerBlock int
	// KernelTokens is the size of a block as kernels see it, a divisor of
	// TokensPerBlock; default TokensPerBlock.
	KernelTokens int
	// CapacityBlocks is the manager's, or the MaxBlocks of one whose pool is
	// elastic; default 20000.
	CapacityBlocks int
	// Alignment of each buffer and page, a power of two up to 2 MiB; default 16,
	// what kernels load at a time; 1 packs.
	Alignment int
	Layout    Layout
	Order     Order
	// Indexable pads, so that every buffer can be reached with an index scale alone.
	Indexable bool
	// PaddingPage adds a page behind the pool, for entries of tables that must
	// name a page although there is none. Its owner keeps it zero.
	PaddingPage bool
	// SplitRope gives a layer's rope a buffer by itself. Otherwise each token's
	// row is its latent followed by its rope.
	SplitRope bool
	Buffers   []BufferSpec
}

// Buffer is the place of one buffer; offsets are in bytes from the start of the
// pool. Offset has the formula.
type Buffer struct {
	Layer, Group uint32
	Role         Role
	DType        DType
	// Heads and Dims (elements of a head in a row) and Rows (of a kernel block).
	Heads, Dims, Rows int
	ElementBits       int
	// BaseOffset of the buffer in page 0; PageOffset is the part of it that is
	// the place in the page.
	BaseOffset, PageOffset uint64
	// PageStride from a page to the next.
	PageStride uint64
	// Bytes in one page (a latent and its rope in one row: of both), and of these
	// of one kernel block.
	Bytes, KernelBytes    uint64
	RowStride, HeadStride uint64
	// IndexScale and IndexOffset are for kernels that know no page stride: kernel
	// block i of page p has, in units of KernelBytes, index p*IndexScale*Expansion+i
	// from BaseOffset. Scale 0: none will do. Below IndexBound.
	IndexScale, IndexBound uint64
	// IndexOffset, added to p*IndexScale, leads there from BaseOffset-PageOffset,
	// unless it is NoIndex.
	IndexOffset uint64

	scaleTokens, scaleElements, kernelTokens uint64
}

// NoIndex in Buffer.IndexOffset: no index reaches the buffer from the pool's start.
const NoIndex = cgo.NoIndex

// Offset is the place of an element, in bits: 4-bit elements are half a byte.
// The arguments must be in range.
func (b *Buffer) Offset(page, token, head, dim int) (bits uint64) {
	t := uint64(token)
	return 8*(b.BaseOffset+uint64(page)*b.PageStride+t/b.kernelTokens*b.KernelBytes+
		t%b.kernelTokens/b.scaleTokens*b.RowStride+uint64(head)*b.HeadStride) +
		uint64(dim)/b.scaleElements*uint64(b.ElementBits)
}

// Geometry is where the bytes of a model's keys and values lie. It is immutable.
type Geometry struct {
	// PageBytes of memory belong to a page: Config.PageBytes with LayoutCoalesced.
	PageBytes uint64
	// MemoryBytes is the size of the pool, the padding page included.
	MemoryBytes uint64
	// WastedBytes of a page hold nothing, in the group that wastes most.
	WastedBytes uint64
	// Pages of the pool, the padding page included.
	Pages int
	// PaddingPage is its id, or -1.
	PaddingPage int
	// KernelTokens per kernel block, and Expansion kernel blocks per page.
	KernelTokens, Expansion int
	// Groups that have a buffer.
	Groups int
	// Buffers are in the order of the config's.
	Buffers []Buffer

	raw     cgo.Geometry
	buffers []cgo.Buffer
}

// TensorView is a tensor over the pool's memory.
type TensorView struct {
	// Role is RoleKey or RoleLatent for tensors that hold more than one.
	Role        Role
	DType       DType
	ElementBits int
	// Dense: the strides are those of a contiguous tensor.
	Dense bool
	// BaseOffset in bytes.
	BaseOffset uint64
	// Table is what a block table for this tensor must hold.
	Table TableFormat
	// Shape and Stride of each dimension, in elements of ElementBits (two FP4
	// values are one of 8).
	Shape, Stride []uint64
}

// NewGeometry computes where everything lies. ErrInvalidArgument names the field
// that cannot be.
func NewGeometry(config GeometryConfig) (*Geometry, error) {
	const op = "geometry"
	if err := checkABI(op); err != nil {
		return nil, err
	}
	raw, specs, err := config.rawAll(op)
	if err != nil {
		return nil, err
	}
	g := &Geometry{buffers: make([]cgo.Buffer, len(specs))}
	var e cgo.Error
	if s := cgo.GeometryCompute(&raw, specs, g.buffers, &g.raw, &e); s != cgo.OK {
		return nil, callError(op, s, &e)
	}
	g.PageBytes, g.MemoryBytes, g.WastedBytes = g.raw.PageBytes, g.raw.MemoryBytes, g.raw.WastedBytes
	g.Pages, g.Groups = int(g.raw.Pages), int(g.raw.Groups)
	g.KernelTokens, g.Expansion = int(g.raw.KernelTokens), int(g.raw.Expansion)
	g.PaddingPage = -1
	if g.raw.PaddingPage != cgo.NoPage {
		g.PaddingPage = int(g.raw.PaddingPage)
	}
	g.Buffers = make([]Buffer, len(g.buffers))
	for i := range g.buffers {
		r := &g.buffers[i]
		g.Buffers[i] = Buffer{
			Layer: r.Layer, Group: r.Group, Role: Role(r.Role), DType: DType(r.DType),
			Heads: int(r.Heads), Dims: int(r.Dims), Rows: int(r.Rows),
			ElementBits: int(r.ElementBits), BaseOffset: r.BaseOffset, PageOffset: r.PageOffset,
			PageStride: r.PageStride, Bytes: r.Bytes, KernelBytes: r.KernelBytes,
			RowStride: r.RowStride, HeadStride: r.HeadStride, IndexScale: r.IndexScale,
			IndexBound: r.IndexBound, IndexOffset: r.IndexOffset,
			scaleTokens:   uint64(max(1, config.Buffers[i].ScaleTokens)),
			scaleElements: uint64(config.Buffers[i].HeadDim) / uint64(r.Dims),
			kernelTokens:  uint64(g.raw.KernelTokens),
		}
	}
	return g, nil
}

// Buffer is the buffer of a layer and role, nil if there is none.
func (g *Geometry) Buffer(layer uint32, role Role) *Buffer {
	for i := range g.Buffers {
		if g.Buffers[i].Layer == layer && g.Buffers[i].Role == role {
			return &g.Buffers[i]
		}
	}
	return nil
}

// View gives the one or two tensors of a layer as the kernels address them.
// ErrInvalidArgument: the layer lacks a role, or the kernels cannot express the
// geometry; the text says what to change.
func (g *Geometry) View(layer uint32, kind ViewKind) ([]TensorView, error) {
	var raw [cgo.ViewTensors]cgo.TensorView
	var e cgo.Error
	n, s := g.raw.View(g.buffers, layer, uint32(kind), &raw, &e)
	if s != cgo.OK {
		return nil, callError("view", s, &e)
	}
	views := make([]TensorView, n)
	for i := range views {
		r := &raw[i]
		views[i] = TensorView{
			Role: Role(r.Role), DType: DType(r.DType), ElementBits: int(r.ElementBits),
			Dense: r.Dense != 0, BaseOffset: r.BaseOffset,
			Table: TableFormat{
				IndexScale:  int(r.IndexScale),
				IndexOffset: int(r.IndexOffset),
				Expansion:   int(r.Expansion),
			},
			Shape: r.Shape[:r.Rank:r.Rank], Stride: r.Stride[:r.Rank:r.Rank],
		}
	}
	return views, nil
}

func (c *GeometryConfig) raw(op string) (cgo.GeometryConfig, error) {
	var raw cgo.GeometryConfig
	raw.Init()
	for _, f := range []struct {
		name  string
		value int
		to    *uint32
	}{
		{"TokensPerBlock", c.TokensPerBlock, &raw.TokensPerBlock},
		{"KernelTokens", c.KernelTokens, &raw.KernelTokens},
		{"CapacityBlocks", c.CapacityBlocks, &raw.CapacityBlocks},
		{"Alignment", c.Alignment, &raw.Alignment},
	} {
		if err := set32(op, f.name, f.value, f.to); err != nil {
			return raw, err
		}
	}
	raw.Layout, raw.Order = uint32(c.Layout), uint32(c.Order)
	for _, f := range []struct {
		on   bool
		flag uint32
	}{
		{c.Indexable, cgo.GeometryIndexable},
		{c.PaddingPage, cgo.GeometryPaddingPage},
		{c.SplitRope, cgo.GeometrySplitRope},
	} {
		if f.on {
			raw.Flags |= f.flag
		}
	}
	return raw, nil
}

func (b *BufferSpec) raw(op string, i int) (cgo.BufferSpec, error) {
	raw := cgo.BufferSpec{Layer: b.Layer, Group: b.Group, Role: uint32(b.Role), DType: uint32(b.DType)}
	for _, f := range []struct {
		name  string
		value int
		to    *uint32
	}{
		{"Heads", b.Heads, &raw.Heads},
		{"HeadDim", b.HeadDim, &raw.HeadDim},
		{"ScaleTokens", b.ScaleTokens, &raw.ScaleTokens},
		{"ScaleElements", b.ScaleElements, &raw.ScaleElements},
	} {
		if f.value < 0 || f.value > math.MaxUint32 {
			return raw, argumentError(op, "buffer %d: %s is %d", i, f.name, f.value)
		}
		*f.to = uint32(f.value)
	}
	return raw, nil
}

func (c *GeometryConfig) rawAll(op string) (cgo.GeometryConfig, []cgo.BufferSpec, error) {
	raw, err := c.raw(op)
	if err != nil {
		return raw, nil, err
	}
	specs := make([]cgo.BufferSpec, len(c.Buffers))
	for i := range c.Buffers {
		if specs[i], err = c.Buffers[i].raw(op, i); err != nil {
			return raw, nil, err
		}
	}
	return raw, specs, nil
}

// SetPageLayout tells the manager where the tokens of its pages lie, as NewGeometry
// would place them, so that a copy of a partly filled page moves what its tokens take
// and not all of it. Once, before the first copy, or ErrBadState. ErrInvalidArgument for
// what is no geometry of the manager's pages.
func (m *Manager) SetPageLayout(config GeometryConfig) error {
	const op = "set page layout"
	raw, specs, err := config.rawAll(op)
	if err != nil {
		return err
	}
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.PageLayoutSet(&raw, specs, &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}
