// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/publisher/wire"
)

// Random events, most of them against the contract, in lock-step with a plain
// set of pairs; with integer and with bytes hashes. Block n always hangs on n-1,
// which need not be there.
func TestMirrorEqualsModel(t *testing.T) {
	const seed = 20240607
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type pair struct {
		pattern uint64
		place   int
	}
	media := []string{"GPU", "CPU", "STORAGE"}
	for round := range 40 {
		m, model := NewMirror(0), map[pair]bool{}
		hash := func(n uint64) wire.Hash { return wire.HashOf(n, 0) }
		if round%2 == 1 {
			hash = func(n uint64) wire.Hash {
				return wire.HashOfBytes([]byte{7: byte(n), 9: byte(n)})
			}
		}
		for step := range 400 {
			e := wire.Event{HasMedium: true}
			place := rng.IntN(len(media))
			e.Medium = media[place]
			switch k := rng.IntN(20); {
			case k == 0:
				e.Kind = wire.KindCleared
				clear(model)
			case k < 11:
				// A run of the chain 1, 2, 3, ..., 40.
				e.Kind = wire.KindStored
				from := 1 + rng.Uint64N(40)
				e.HasParent = from > 1
				if e.HasParent {
					e.Parent = hash(from - 1)
				}
				for n := from; n <= min(from+rng.Uint64N(5), 40); n++ {
					e.Hashes = append(e.Hashes, hash(n))
					model[pair{n, place}] = true
				}
			default:
				e.Kind = wire.KindRemoved
				for range 1 + rng.IntN(4) {
					n := 1 + rng.Uint64N(40)
					e.Hashes = append(e.Hashes, hash(n))
					delete(model, pair{n, place})
				}
			}
			if err := m.Apply([]wire.Event{e}); err != nil {
				t.Fatal(err)
			}
			want := map[uint64]bool{}
			for p := range model {
				want[p.pattern] = true
			}
			if got := m.Patterns(); !slices.Equal(got, slices.Sorted(maps.Keys(want))) || m.Len() != len(want) {
				t.Fatalf("round %d, step %d: %v, want %v", round, step, got, slices.Sorted(maps.Keys(want)))
			}
			if used := len(m.blocks) - 1 - len(m.free); used != m.Len() {
				t.Fatalf("round %d, step %d: %d ids in use for %d blocks", round, step, used, m.Len())
			}
		}
	}
}
