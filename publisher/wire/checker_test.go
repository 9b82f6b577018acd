// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings/event"
)

func TestCheckEvent(t *testing.T) {
	good := func(edit func(*event.BlockStored)) *event.BlockStored {
		s := &event.BlockStored{
			Hashes: []uint64{1, 2}, ParentHash: 3, HasParent: true, Tokens: make([]uint32, 8), BlockSize: 4,
			LoRAID: math.MaxInt64, HasLoRAID: true, LoRAName: "adapter", Medium: "GPU", HasMedium: true,
			Extra: &event.StoredExtra{
				ExtraKeys: [][]event.ExtraKey{nil, {{Str: "a"}, {Bin: []byte{0xff}}}},
				MMKeys:    [][]event.MMKey{{}, {{Hash: "h"}}}, HexTokens: make([]string, 8),
			},
		}
		edit(s)
		return s
	}
	removed := func(edit func(*event.BlockRemoved)) *event.BlockRemoved {
		r := &event.BlockRemoved{Hashes: []uint64{1, 1}, Medium: "GPU", HasMedium: true}
		edit(r)
		return r
	}
	const bad = "\xff"
	for _, c := range []struct {
		name string
		ev   event.Event
		err  error
		key  string
	}{
		{"stored", good(func(*event.BlockStored) {}), nil, ""},
		{"at the root", good(func(s *event.BlockStored) { s.ParentHash, s.HasParent = 1, false }), nil, ""},
		{"LoRA id not set", good(func(s *event.BlockStored) { s.LoRAID, s.HasLoRAID = math.MaxUint64, false }), nil, ""},
		{"removed", removed(func(*event.BlockRemoved) {}), nil, ""}, // I1 is about stores
		{"cleared", &event.AllBlocksCleared{}, nil, ""},
		{"nil", nil, ErrEventType, ""},
		{"nil stored", (*event.BlockStored)(nil), ErrEventType, ""},
		{"nil removed", (*event.BlockRemoved)(nil), ErrEventType, ""},
		{"nil cleared", (*event.AllBlocksCleared)(nil), ErrEventType, ""},
		{"no hash", good(func(s *event.BlockStored) { s.Hashes, s.Tokens = nil, nil }), ErrNoHashes, "block_hashes"},
		{"both forms", good(func(s *event.BlockStored) { s.Digests = make([]event.Digest, 2) }), ErrHashForm, "block_hashes"},
		{"hash twice", good(func(s *event.BlockStored) { s.Hashes[1] = 1 }), ErrDuplicateHash, "block_hashes"},
		{"parent in list", good(func(s *event.BlockStored) { s.ParentHash = 2 }), ErrDuplicateHash, "block_hashes"},
		{"digest twice", good(func(s *event.BlockStored) { s.Hashes, s.Digests = nil, make([]event.Digest, 2) }), ErrDuplicateHash, "block_hashes"},
		{"parent digest", good(func(s *event.BlockStored) {
			s.Hashes, s.Digests, s.ParentDigest = nil, []event.Digest{{1}, {2}}, event.Digest{2}
		}), ErrDuplicateHash, "block_hashes"},
		{"token too few", good(func(s *event.BlockStored) { s.Tokens = s.Tokens[:7] }), ErrTokenCount, "token_ids"},
		{"no tokens", good(func(s *event.BlockStored) { s.Tokens = nil }), ErrTokenCount, "token_ids"},
		{"product beyond 32 bits", good(func(s *event.BlockStored) { s.BlockSize, s.Tokens = 1<<31, nil }), ErrTokenCount, "token_ids"},
		{"block size 0", good(func(s *event.BlockStored) { s.BlockSize, s.Tokens = 0, nil }), ErrBlockSize, "block_size"},
		{"LoRA id", good(func(s *event.BlockStored) { s.LoRAID++ }), ErrLoRAID, "lora_id"},
		{"medium", good(func(s *event.BlockStored) { s.Medium = bad }), ErrUTF8, "medium"},
		{"LoRA name", good(func(s *event.BlockStored) { s.LoRAName = bad }), ErrUTF8, "lora_name"},
		{"kind", good(func(s *event.BlockStored) { s.Extra.SpecKind = bad }), ErrUTF8, "kv_cache_spec_kind"},
		{"locality", good(func(s *event.BlockStored) { s.Extra.Locality = bad }), ErrUTF8, "locality"},
		{"ownership", good(func(s *event.BlockStored) { s.Extra.Ownership = bad }), ErrUTF8, "ownership"},
		{"session", good(func(s *event.BlockStored) { s.Extra.SessionID = bad }), ErrUTF8, "session_id"},
		{"hex token", good(func(s *event.BlockStored) { s.Extra.HexTokens[3] = bad }), ErrUTF8, "token_ids"},
		{"extra key", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0].Str = bad }), ErrUTF8, "extra_keys"},
		{"extra item", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0].Item = bad }), ErrUTF8, "extra_keys"},
		{"mm hash", good(func(s *event.BlockStored) { s.Extra.MMKeys[1][0].Hash = bad }), ErrUTF8, "mm_keys"},
		{"mm uuid", good(func(s *event.BlockStored) { s.Extra.MMKeys[1][0].UUID = bad }), ErrUTF8, "mm_keys"},
		{"extra keys per block", good(func(s *event.BlockStored) { s.Extra.ExtraKeys = s.Extra.ExtraKeys[:1] }), ErrTokenCount, "extra_keys"},
		{"mm keys per block", good(func(s *event.BlockStored) { s.Extra.MMKeys = s.Extra.MMKeys[:1] }), ErrTokenCount, "mm_keys"},
		{"hex per token", good(func(s *event.BlockStored) { s.Extra.HexTokens = s.Extra.HexTokens[:7] }), ErrTokenCount, "token_ids"},
		{"removes nothing", removed(func(r *event.BlockRemoved) { r.Hashes = nil }), ErrNoHashes, "block_hashes"},
		{"removes both forms", removed(func(r *event.BlockRemoved) { r.Digests = make([]event.Digest, 1) }), ErrHashForm, "block_hashes"},
		{"removed medium", removed(func(r *event.BlockRemoved) { r.Medium = bad }), ErrUTF8, "medium"},
		{"removed locality", removed(func(r *event.BlockRemoved) { r.Locality = bad }), ErrUTF8, "locality"},
		{"removed ownership", removed(func(r *event.BlockRemoved) { r.Ownership = bad }), ErrUTF8, "ownership"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckEvent(c.ev)
			if c.err == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, c.err, -1)
			if e := err.(*Error); e.Key != c.key {
				t.Errorf("%v: key %q, want %q", err, e.Key, c.key)
			}
		})
	}
}

// One Checker, reused over events of all sizes, agrees with a Go map.
func TestCheckerDuplicates(t *testing.T) {
	var c Checker
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(1, pairwiseMax+1), rapid.IntRange(pairwiseMax+1, 300)).Draw(t, "blocks")
		s := &event.BlockStored{BlockSize: 1, Tokens: make([]uint32, n), HasParent: rapid.Bool().Draw(t, "parent")}
		base := rapid.Uint64().Draw(t, "base")
		step := rapid.SampledFrom([]uint64{1, 1 << 32, 1 << 58, 0x9e3779b97f4a7c15}).Draw(t, "step")
		for i := range n {
			s.Hashes = append(s.Hashes, base+uint64(i)*step)
		}
		if rapid.Bool().Draw(t, "copy one") {
			i, j := rapid.IntRange(0, n-1).Draw(t, "from"), rapid.IntRange(0, n-1).Draw(t, "to")
			s.Hashes[j] = s.Hashes[i]
		}
		s.ParentHash = base + uint64(rapid.IntRange(-3, n+3).Draw(t, "parent at"))*step
		seen := map[uint64]bool{}
		if s.HasParent {
			seen[s.ParentHash] = true
		}
		duplicate := false
		for _, h := range s.Hashes {
			duplicate = duplicate || seen[h]
			seen[h] = true
		}
		digests := *s
		digests.Hashes = nil
		digest := func(h uint64) (d event.Digest) { copy(d[24:], AppendSeq(nil, h)); return d }
		for _, h := range s.Hashes {
			digests.Digests = append(digests.Digests, digest(h))
		}
		digests.ParentDigest = digest(s.ParentHash)
		for _, ev := range []event.Event{s, &digests} {
			if err := c.Check(ev); errors.Is(err, ErrDuplicateHash) != duplicate || err != nil && !duplicate {
				t.Fatalf("%T: %v, duplicate %v", ev, err, duplicate)
			}
		}
	})
}

// The first and the last hash of small and large events, as copy and as parent.
func TestCheckerParent(t *testing.T) {
	var c Checker
	for _, n := range []int{1, pairwiseMax, pairwiseMax + 1, 1000} {
		s := &event.BlockStored{BlockSize: 1, Tokens: make([]uint32, n), HasParent: true}
		d := *s
		for i := range n {
			s.Hashes = append(s.Hashes, uint64(i))
			d.Digests = append(d.Digests, event.Digest{byte(i), byte(i >> 8)})
		}
		for parent, want := range map[int]error{0: ErrDuplicateHash, n - 1: ErrDuplicateHash, n: nil} {
			s.ParentHash, d.ParentDigest = uint64(parent), event.Digest{byte(parent), byte(parent >> 8)}
			for _, ev := range []event.Event{s, &d} {
				if err := c.Check(ev); !errors.Is(err, want) {
					t.Errorf("%d blocks, parent %d: %v, want %v", n, parent, err, want)
				}
			}
		}
	}
}

// The stamps of the table run out after 2^32 large events.
func TestCheckerStampWraps(t *testing.T) {
	s := &event.BlockStored{BlockSize: 1, Tokens: make([]uint32, 100)}
	for i := range 100 {
		s.Hashes = append(s.Hashes, uint64(i))
	}
	var c Checker
	if err := c.Check(s); err != nil { // entries with stamp 1
		t.Fatal(err)
	}
	c.stamp = math.MaxUint32
	for i := range s.Hashes {
		s.Hashes[i] += 50 // half of them as before
	}
	if err := c.Check(s); err != nil {
		t.Fatal(err)
	}
	if c.stamp != 1 {
		t.Errorf("stamp %d", c.stamp)
	}
	s.Hashes[99] = s.Hashes[0]
	if err := c.Check(s); !errors.Is(err, ErrDuplicateHash) {
		t.Errorf("after the wrap: %v", err)
	}
}

func TestCheckerAllocations(t *testing.T) {
	var c Checker
	for _, blocks := range []int{1, 8, 9, 1000} {
		ev := benchEvents(1, blocks)[0]
		if n := testing.AllocsPerRun(20, func() {
			if err := c.Check(ev); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%d blocks: %v allocations", blocks, n)
		}
	}
	small := benchEvents(1, pairwiseMax)[0]
	if n := testing.AllocsPerRun(20, func() {
		if err := CheckEvent(small); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("CheckEvent: %v allocations", n)
	}
}
