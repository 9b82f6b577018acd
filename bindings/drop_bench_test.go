// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"fmt"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// BenchmarkDropScopes drops one scope of two that fill the tree between them:
// the time for which the manager's lock is held.
func BenchmarkDropScopes(b *testing.B) {
	for _, blocks := range []int{10_000, 200_000, 1_000_000} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			m, err := bindings.NewManager(bindings.Config{
				TokensPerBlock: 16, CapacityBlocks: blocks, Seed: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			scopes := [2]*bindings.Scope{{LoRAID: u64(1)}, {LoRAID: u64(2)}}
			const prompt = 64 // blocks
			tokens := make([]uint32, prompt*16)
			out := make([]bindings.DropResult, 1)
			for n, fill := uint32(0), 2; b.Loop(); fill = 1 {
				b.StopTimer()
				stats, err := m.Stats()
				if err != nil {
					b.Fatal(err)
				}
				for have := int(stats.Blocks); have+prompt <= blocks; have += prompt {
					n++
					for i := range tokens {
						tokens[i] = n + uint32(i)<<20
					}
					scope := scopes[1]
					if fill == 2 {
						scope = scopes[n%2]
					}
					s, err := m.Open(bindings.Prompt{Tokens: tokens, Scope: scope})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := s.Grow(len(tokens)); err != nil {
						b.Fatal(err)
					}
					if _, err := s.Commit(tokens); err != nil {
						b.Fatal(err)
					}
					if err := s.Release(); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if _, err := m.DropScopes([]bindings.DropItem{{Scope: scopes[1]}}, out, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(out[0].Blocks), "dropped-blocks")
		})
	}
}
