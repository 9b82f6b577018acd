// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// matchNode is a block of the model's forest.
type matchNode struct {
	parent  int // index, or -1 - scope at a root
	content int
}

const matchSize = 3

// The scopes of the forest. The last two differ in nothing that a stream tells.
var matchScopes = []Prompt{{}, {LoRAName: "a"}, {LoRAID: 7, HasLoRAID: true}, {LoRAID: 8, HasLoRAID: true}, {CacheSalt: "a"}, {}}

// matchContents are different in one thing each. Two places share each, so that
// blocks side by side may have the same.
var matchContents = []struct {
	tokens [matchSize]uint32
	text   string // in place of the second token
	extra  []event.ExtraKey
	mm     []event.MMKey
}{
	{tokens: [matchSize]uint32{1, 2, 3}},
	{tokens: [matchSize]uint32{1, 2, 4}},
	{tokens: [matchSize]uint32{1, 0, 3}, text: "ab"},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Str: "ab"}}},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Str: "a"}, {Str: "b"}}},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Item: "ab", Offset: -1}}},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Item: "ab", Offset: 1}}},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Bin: []byte("ab")}}},
	{tokens: [matchSize]uint32{1, 2, 3}, extra: []event.ExtraKey{{Bin: []byte("ac")}}},
	{tokens: [matchSize]uint32{1, 2, 3}, mm: []event.MMKey{{Hash: "ab", StartOffset: 2}}},
	{tokens: [matchSize]uint32{1, 2, 3}, mm: []event.MMKey{{Hash: "ab", StartOffset: 2, UUID: "c", HasUUID: true}}},
}

// matchPrompt puts contents one after another.
func matchPrompt(scope int, contents []int) Prompt {
	p := matchScopes[scope]
	for i, c := range contents {
		content := matchContents[c]
		if content.text != "" {
			p.StringTokens = append(p.StringTokens, wire.StringToken{Index: i*matchSize + 1, Value: content.text})
		}
		p.Tokens = append(p.Tokens, content.tokens[:]...)
		p.ExtraKeys = append(p.ExtraKeys, content.extra)
		p.MMKeys = append(p.MMKeys, content.mm)
	}
	return p
}

// matchModel finds blocks by looking at all of them.
type matchModel struct {
	forest []matchNode
	media  []int // bits, by node
	order  []int // when a node came with tokens, 0 = it has not
}

func (m *matchModel) match(scope int, contents []int) int {
	above := -1 - scope
	for depth, c := range contents {
		best := -1
		for n, node := range m.forest {
			same := node.parent == above || above < 0 && node.parent < 0 && told(node.parent) == told(above)
			if same && node.content == c && m.order[n] > 0 && (best < 0 || m.order[n] > m.order[best]) {
				best = n
			}
		}
		if best < 0 {
			return depth
		}
		above = best
	}
	return len(contents)
}

// told takes scopes that a stream does not tell apart for one.
func told(root int) int {
	if -1-root == len(matchScopes)-1 {
		return -1
	}
	return root
}

// path is a node and those above it, the root first.
func (m *matchModel) path(n int) (nodes, contents []int, scope int) {
	for ; n >= 0; n = m.forest[n].parent {
		nodes = append([]int{n}, nodes...)
		contents = append([]int{m.forest[n].content}, contents...)
	}
	return nodes, contents, -1 - n
}

// Random stores, removals in any order, clears and resets, in lock-step with a
// model that looks at everything; scopes and contents that differ in one thing.
func TestMatchEqualsModel(t *testing.T) {
	const seed = 20240919
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	deep, ambiguous := 0, 0
	for round := range 30 {
		hash := func(n int) wire.Hash { return wire.HashOf(uint64(n)<<60|uint64(n), event.Form(round%2)) }
		if round%3 == 2 {
			hash = func(n int) wire.Hash { return wire.HashOfBytes([]byte{7: byte(n), 31: 1}) }
		}
		model := &matchModel{}
		for n := range 60 {
			parent := -1 - rng.IntN(len(matchScopes))
			if n >= 12 {
				parent = rng.IntN(n)
			}
			model.forest = append(model.forest, matchNode{parent, rng.IntN(len(matchContents))})
		}
		model.media, model.order = make([]int, 60), make([]int, 60)
		m, order := NewTokenMirror(0), 0
		for step := range 400 {
			e := wire.Event{HasMedium: true, Medium: []string{"GPU", "CPU"}[rng.IntN(2)], BlockSize: matchSize}
			bit := 1
			if e.Medium == "CPU" {
				bit = 2
			}
			switch k := rng.IntN(60); {
			case k == 0:
				clear(model.media)
				clear(model.order)
				e.Kind = wire.KindCleared
				if rng.IntN(2) == 0 {
					m.Reset()
					continue
				}
			case k < 30:
				e.Kind = wire.KindStored
				nodes, contents, scope := model.path(rng.IntN(60))
				from := rng.IntN(len(nodes))
				p := matchPrompt(scope, contents[from:])
				if e.HasParent = from > 0; e.HasParent {
					e.Parent = hash(nodes[from-1])
				}
				e.Tokens = p.Tokens
				e.LoRAName, e.LoRAID, e.HasLoRAID = p.LoRAName, p.LoRAID, p.HasLoRAID
				e.Extra = &wire.Extra{StringTokens: p.StringTokens, ExtraKeys: p.ExtraKeys, MMKeys: p.MMKeys, CacheSalt: p.CacheSalt}
				with := len(nodes) - from
				if rng.IntN(4) == 0 { // an event may have fewer tokens than its blocks
					with = rng.IntN(with + 1)
					e.Tokens = e.Tokens[:with*matchSize]
				}
				for i, n := range nodes[from:] {
					e.Hashes = append(e.Hashes, hash(n))
					model.media[n] |= bit
					if model.order[n] == 0 && i < with {
						order++
						model.order[n] = order
					}
				}
			default:
				e.Kind = wire.KindRemoved
				for range 1 + rng.IntN(3) {
					n := rng.IntN(60)
					e.Hashes = append(e.Hashes, hash(n))
					if model.media[n] &^= bit; model.media[n] == 0 {
						model.order[n] = 0
					}
				}
			}
			if err := m.Apply([]wire.Event{e}); err != nil {
				t.Fatal(err)
			}
			checkIndex(t, m)
			for range 4 {
				nodes, contents, scope := model.path(rng.IntN(60))
				var hashes []wire.Hash
				want := 0
				for _, n := range nodes {
					hashes = append(hashes, hash(n))
				}
				for want < len(nodes) && model.media[nodes[want]] != 0 {
					want++
				}
				if got := m.MatchHashes(hashes); got != want {
					t.Fatalf("round %d, step %d: %d blocks by hash, want %d", round, step, got, want)
				}
				if rng.IntN(3) == 0 {
					contents[rng.IntN(len(contents))] = rng.IntN(len(matchContents))
				}
				if rng.IntN(5) == 0 {
					scope = rng.IntN(len(matchScopes))
				}
				p := matchPrompt(scope, contents)
				p.Tokens = append(p.Tokens, 1, 2) // the beginning of a block
				p.BlockSize = matchSize
				byTokens := model.match(scope, contents)
				if got := m.Match(p); got != byTokens {
					t.Fatalf("round %d, step %d: %d blocks of %v in scope %d, want %d", round, step, got, contents, scope, byTokens)
				}
				if byTokens > 2 {
					deep++
				}
				if byTokens != want {
					ambiguous++
				}
			}
		}
	}
	if deep < 1000 || ambiguous < 1000 {
		t.Errorf("%d deep matches and %d that differ from those by hash: too few", deep, ambiguous)
	}
}

// checkIndex holds the index against the blocks.
func checkIndex(t *testing.T, m TokenMirror) {
	t.Helper()
	x, found := m.index, 0
	for place, head := range x.heads {
		newer := uint32(0)
		for id := head; id != 0; id = x.entries[id].older {
			e := x.entries[id]
			if !e.known || e.place != place || e.newer != newer || m.blocks[id].places == 0 {
				t.Fatalf("block %d is %+v, %+v", id, e, m.blocks[id])
			}
			newer = id
			if found++; found > m.Len() {
				t.Fatalf("more than the %d blocks that there are", m.Len())
			}
		}
	}
	known := 0
	for id := range x.entries {
		if x.entries[id].known {
			known++
		}
	}
	if known != found || len(x.entries) > len(m.blocks) {
		t.Fatalf("%d blocks are known, %d are found; %d entries for %d", known, found, len(x.entries), len(m.blocks))
	}
}

// FuzzTokenMirror feeds what no publisher should send: any parent, circles,
// hashes again with other tokens, blocks of any size. Nothing is more than it may
// be, and every search ends.
func FuzzTokenMirror(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"))
	f.Add([]byte("\x01\x01\x02\x01\x01\x02\x01\x01\x02\x02\x02\x02"))
	rng := rand.New(rand.NewPCG(3, 0))
	for range 20 {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		const most = 12
		m := NewTokenMirror(most)
		for ; len(in) >= 6; in = in[6:] {
			e := wire.Event{BlockSize: uint32(in[1]) % 4, HasParent: in[2]&1 != 0, Parent: wire.HashOf(uint64(in[2]%16), 0)}
			for i := range in[3] % 5 {
				e.Hashes = append(e.Hashes, wire.HashOf(uint64((in[4]+i)%16), 0))
			}
			e.Tokens = make([]uint32, in[5]%16)
			switch in[0] % 8 {
			case 0:
				e.Kind = wire.KindCleared
			case 1, 2:
				e.Kind = wire.KindRemoved
			default:
				e.Kind = wire.KindStored
			}
			if in[0]&8 != 0 {
				e.Extra = &wire.Extra{StringTokens: []wire.StringToken{{Index: int(in[5]), Value: "x"}},
					ExtraKeys: [][]event.ExtraKey{nil}}
			}
			if err := m.Apply([]wire.Event{e}); err != nil && !errors.Is(err, ErrMirrorFull) {
				t.Fatal(err)
			}
			checkIndex(t, m)
			if m.Len() > most {
				t.Fatalf("%d blocks", m.Len())
			}
			if n := m.Match(Prompt{Tokens: make([]uint32, 64), BlockSize: 1}); n > most {
				t.Fatalf("%d blocks match of %d", n, most)
			}
		}
	})
}

// Before there was a store, and without a full block, nothing matches; the size
// of a block is that of the last store unless it is told.
func TestMatchBlockSize(t *testing.T) {
	m := NewTokenMirror(0)
	tokens := []uint32{1, 2, 3, 4}
	if n := m.Match(Prompt{Tokens: tokens}); n != 0 {
		t.Errorf("%d blocks of nothing", n)
	}
	e := wire.Event{Kind: wire.KindStored, Hashes: []wire.Hash{wire.HashOf(1, 0), wire.HashOf(2, 0)}, Tokens: tokens, BlockSize: 2}
	if err := m.Apply([]wire.Event{e}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    Prompt
		want int
	}{
		{Prompt{Tokens: tokens}, 2},
		{Prompt{Tokens: tokens, BlockSize: 2}, 2},
		{Prompt{Tokens: tokens, BlockSize: 4}, 0},
		{Prompt{Tokens: tokens, BlockSize: 1<<32 - 1}, 0},
		{Prompt{Tokens: tokens[:3]}, 1},
		{Prompt{Tokens: tokens[:1]}, 0},
		{Prompt{}, 0},
	} {
		if n := m.Match(c.p); n != c.want {
			t.Errorf("%+v: %d, want %d", c.p, n, c.want)
		}
	}
}

// Strings that stand in a row are not taken for others that make the same row.
func TestMatchTellsStringsApart(t *testing.T) {
	const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00" // as the number between the two
	m := NewTokenMirror(0)
	p := Prompt{Tokens: []uint32{1}, BlockSize: 1, MMKeys: [][]event.MMKey{{{Hash: "a" + zeros}}}}
	e := wire.Event{Kind: wire.KindStored, Hashes: []wire.Hash{wire.HashOf(1, 0)}, Tokens: p.Tokens, BlockSize: 1,
		Extra: &wire.Extra{MMKeys: p.MMKeys}}
	if err := m.Apply([]wire.Event{e}); err != nil {
		t.Fatal(err)
	}
	if n := m.Match(p); n != 1 {
		t.Errorf("%d blocks", n)
	}
	other := Prompt{Tokens: p.Tokens, BlockSize: 1, MMKeys: [][]event.MMKey{{{Hash: "a", UUID: zeros}}}}
	if n := m.Match(other); n != 0 {
		t.Errorf("%d blocks of another prompt", n)
	}
}

// A block takes what the documentation says, however many tokens it has and
// however long the strings are that come with it.
func TestTokenMirrorMemory(t *testing.T) {
	const blocks = 150_000 // just above what lets the maps grow
	for name, c := range map[string]struct {
		bytes bool
		size  int
		text  string
		most  uint64
	}{
		"integers":       {size: 16, most: 200},
		"bytes":          {size: 16, bytes: true, most: 300},
		"large, strings": {size: 512, text: strings.Repeat("x", 1000), most: 200},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewTokenMirror(blocks)
			tokens := make([]uint32, c.size)
			before := heap()
			for i := range blocks {
				h := wire.HashOf(uint64(i), 0)
				if c.bytes {
					h = wire.HashOfBytes(binary.BigEndian.AppendUint64(make([]byte, 24), uint64(i)))
				}
				tokens[0] = uint32(i)
				e := wire.Event{Kind: wire.KindStored, Hashes: []wire.Hash{h}, Tokens: tokens, BlockSize: uint32(c.size),
					LoRAName: fmt.Sprint(i, c.text)}
				if err := m.Apply([]wire.Event{e}); err != nil {
					t.Fatal(err)
				}
			}
			per := (heap() - before) / blocks
			t.Logf("%d bytes per block", per)
			if per > c.most {
				t.Errorf("%d bytes per block, want at most %d", per, c.most)
			}
			e := wire.Event{Kind: wire.KindStored, Hashes: []wire.Hash{wire.HashOf(1<<60, 0)}, Tokens: tokens, BlockSize: uint32(c.size)}
			if err := m.Apply([]wire.Event{e}); !errors.Is(err, ErrMirrorFull) {
				t.Errorf("one block more: %v", err)
			}
			checkIndex(t, m)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
