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
// set of pairs; with integer and with bytes hashes. Block n hangs on n-1, which
// need not be there, or is said to hang on something else.
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
				if rng.IntN(5) == 0 {
					e.HasParent, e.Parent = rng.IntN(2) == 0, hash(1+rng.Uint64N(40))
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

// Engines tell of copies in another medium without tokens and without a parent,
// before or after the block itself, and the copy may be what stays.
func TestMirrorOfCopiesWithoutAParent(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6}
	hashes := []wire.Hash{wire.HashOf(11, 0), wire.HashOf(12, 0), wire.HashOf(13, 0)}
	own := wire.Event{Kind: wire.KindStored, Hashes: hashes, Tokens: tokens, BlockSize: 2, Medium: "GPU", HasMedium: true}
	copies := wire.Event{Kind: wire.KindStored, Hashes: hashes[1:], BlockSize: 2, Medium: "CPU", HasMedium: true}
	gone := func(medium string) wire.Event {
		return wire.Event{Kind: wire.KindRemoved, Hashes: hashes[1:], Medium: medium, HasMedium: true}
	}
	for name, order := range map[string][]wire.Event{"after": {own, copies}, "before": {copies, own}} {
		for first, second := range map[string]string{"GPU": "CPU", "CPU": "GPU"} {
			m := NewTokenMirror(0)
			for i, step := range []struct {
				events []wire.Event
				want   int
			}{{order, 3}, {[]wire.Event{gone(first)}, 3}, {[]wire.Event{gone(second)}, 1}, {[]wire.Event{own}, 3}} {
				if err := m.Apply(step.events); err != nil {
					t.Fatal(err)
				}
				checkIndex(t, m)
				if got := m.MatchHashes(hashes); got != step.want {
					t.Errorf("%s, %s first, step %d: %d blocks by hash, want %d", name, first, i, got, step.want)
				}
				if got := m.Match(Prompt{Tokens: tokens}); got != step.want {
					t.Errorf("%s, %s first, step %d: %d blocks by tokens, want %d", name, first, i, got, step.want)
				}
			}
		}
	}
}
