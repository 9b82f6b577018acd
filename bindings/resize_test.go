// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// Lists that are there and have no room are a bound, not the lack of one.
func TestResizeWithEmptyLists(t *testing.T) {
	for name, c := range map[string]struct {
		moves   []bindings.PageMove
		evicted []bindings.EvictedBlock
		gone    int
	}{
		"no list":          {nil, nil, 4},
		"moves":            {[]bindings.PageMove{}, nil, 0},
		"evicted":          {nil, make([]bindings.EvictedBlock, 0, 8), 0},
		"both":             {[]bindings.PageMove{}, []bindings.EvictedBlock{}, 0},
		"room for two":     {nil, make([]bindings.EvictedBlock, 2), 2},
		"more than wanted": {make([]bindings.PageMove, 80), make([]bindings.EvictedBlock, 80), 4},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := newPair(t, bindings.Config{TokensPerBlock: 2, CapacityBlocks: 8, MaxBlocks: 8, MinBlocks: 2, PageBytes: 16},
				bindings.StreamConfig{})
			for i := range 8 {
				tokens := []uint32{uint32(100 + i), 1}
				q, err := m.Open(bindings.Prompt{Tokens: tokens, MustCompute: bindings.ComputeNothing})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := q.Grow(2); err != nil {
					t.Fatal(err)
				}
				if _, err := q.Commit(tokens); err != nil {
					t.Fatal(err)
				}
				if err := q.Release(); err != nil {
					t.Fatal(err)
				}
			}
			r, err := m.Resize(4, 64, c.moves, c.evicted)
			if err != nil || r.EvictedBlocks != c.gone || (c.evicted != nil && len(r.Evicted) != c.gone) {
				t.Errorf("%+v, %v; want %d blocks to go", r, err, c.gone)
			}
		})
	}
}
