// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

func llama(layers int) bindings.GeometryConfig {
	var c bindings.GeometryConfig
	for layer := range layers {
		for _, role := range []bindings.Role{bindings.RoleKey, bindings.RoleValue} {
			c.Buffers = append(c.Buffers, bindings.BufferSpec{
				Layer: uint32(layer), Role: role, DType: bindings.BF16, Heads: 8, HeadDim: 128,
			})
		}
	}
	return c
}

// TestGeometry: each field arrives, checked against sums made by hand. The
// layouts themselves are the C++ tests' work.
func TestGeometry(t *testing.T) {
	config := llama(80)
	config.TokensPerBlock, config.KernelTokens, config.CapacityBlocks = 32, 16, 300000
	config.Order, config.PaddingPage = bindings.OrderHND, true
	g, err := bindings.NewGeometry(config)
	if err != nil {
		t.Fatal(err)
	}
	const buffer = 32 * 8 * 128 * 2
	if g.PageBytes != 160*buffer || g.MemoryBytes != 300001*160*buffer || g.WastedBytes != 0 ||
		g.Pages != 300001 || g.PaddingPage != 300000 || g.KernelTokens != 16 || g.Expansion != 2 ||
		g.Groups != 1 || len(g.Buffers) != 160 {
		t.Errorf("%+v", *g)
	}
	b := g.Buffer(79, bindings.RoleValue)
	if b == nil || b.BaseOffset != 159*buffer || b.PageOffset != 159*buffer ||
		b.PageStride != 160*buffer || b.Bytes != buffer || b.KernelBytes != buffer/2 ||
		b.RowStride != 256 || b.HeadStride != 16*256 || b.Rows != 16 || b.Dims != 128 ||
		b.Heads != 8 || b.ElementBits != 16 || b.IndexScale != 160 || b.IndexOffset != 159 ||
		b.IndexBound != (160*300001-159)*2 || b.DType != bindings.BF16 || b.Layer != 79 {
		t.Errorf("%+v", b)
	}
	if g.Buffer(79, bindings.RoleRope) != nil || g.Buffer(80, bindings.RoleKey) != nil {
		t.Error("a buffer that is not there is found")
	}

	views, err := g.View(79, bindings.ViewTensorRTLLM)
	if err != nil || len(views) != 2 {
		t.Fatal(views, err)
	}
	v := views[1]
	if v.Role != bindings.RoleValue || v.BaseOffset != 0 || v.ElementBits != 16 || !v.Dense ||
		v.Table.IndexScale != 160 || v.Table.IndexOffset != 159 || v.Table.Expansion != 2 ||
		fmt.Sprint(v.Shape, v.Stride) != "[96000320 8 16 128] [16384 2048 128 1]" {
		t.Errorf("%+v", v)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		page, token, head, dim := rng.IntN(g.Pages), rng.IntN(32), rng.IntN(8), rng.IntN(128)
		entry := (page*v.Table.IndexScale+v.Table.IndexOffset)*v.Table.Expansion + token/16
		at := v.BaseOffset*8 + 16*(uint64(entry)*v.Stride[0]+uint64(head)*v.Stride[1]+
			uint64(token%16)*v.Stride[2]+uint64(dim))
		if got := b.Offset(page, token, head, dim); got != at {
			t.Fatalf("page %d token %d head %d dim %d: at bit %d, the view says %d", page, token,
				head, dim, got, at)
		}
	}
	if b.Offset(g.Pages-1, 31, 7, 127) != (g.MemoryBytes-2)*8 {
		t.Error("the last element is not the pool's last")
	}
}

func TestGeometryRefusals(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(*bindings.GeometryConfig)
	}{
		{"specs[0].heads", func(c *bindings.GeometryConfig) { c.Buffers[0].Heads = 0 }},
		{"buffer 1: HeadDim is -1", func(c *bindings.GeometryConfig) { c.Buffers[1].HeadDim = -1 }},
		{"kernel_tokens", func(c *bindings.GeometryConfig) { c.KernelTokens = 7 }},
		{"Alignment is -1", func(c *bindings.GeometryConfig) { c.Alignment = -1 }},
		{"count", func(c *bindings.GeometryConfig) { c.Buffers = nil }},
	} {
		config := llama(2)
		c.spoil(&config)
		_, err := bindings.NewGeometry(config)
		if !errors.Is(err, bindings.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	g, err := bindings.NewGeometry(llama(2))
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.View(0, bindings.ViewTensorRTLLM)
	if !errors.Is(err, bindings.ErrInvalidArgument) || !strings.Contains(err.Error(), "HND") {
		t.Error(err)
	}
}

// ExampleNewGeometry gives a manager the pages that a model needs, and its
// kernels the tensors.
func ExampleNewGeometry() {
	config := bindings.GeometryConfig{CapacityBlocks: 1000}
	for layer := range uint32(32) {
		for _, role := range []bindings.Role{bindings.RoleKey, bindings.RoleValue} {
			config.Buffers = append(config.Buffers, bindings.BufferSpec{
				Layer: layer, Role: role, DType: bindings.BF16, Heads: 8, HeadDim: 128,
			})
		}
	}
	g, err := bindings.NewGeometry(config)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("bindings.Config.PageBytes:", g.PageBytes)
	views, err := g.View(31, bindings.ViewFlashInfer)
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range views {
		fmt.Println("at", v.BaseOffset, "shape", v.Shape, "strides", v.Stride)
	}
	// Output:
	// bindings.Config.PageBytes: 2097152
	// at 2031616 shape [1000 16 8 128] strides [1048576 1024 128 1]
	// at 2064384 shape [1000 16 8 128] strides [1048576 1024 128 1]
}
