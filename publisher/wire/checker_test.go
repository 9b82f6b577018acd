// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/tests/seeds"
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
		{"multimodal digests", good(func(s *event.BlockStored) { s.MMDigests = make([]event.Digest, 1) }), ErrMultimodal, "token_ids"},
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
		{"extra item", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0] = event.ExtraKey{Item: bad} }), ErrUTF8, "extra_keys"},
		{"mm hash", good(func(s *event.BlockStored) { s.Extra.MMKeys[1][0].Hash = bad }), ErrUTF8, "mm_keys"},
		{"mm uuid", good(func(s *event.BlockStored) { s.Extra.MMKeys[1][0].UUID = bad }), ErrUTF8, "mm_keys"},
		{"extra keys per block", good(func(s *event.BlockStored) { s.Extra.ExtraKeys = s.Extra.ExtraKeys[:1] }), ErrTokenCount, "extra_keys"},
		{"mm keys per block", good(func(s *event.BlockStored) { s.Extra.MMKeys = s.Extra.MMKeys[:1] }), ErrTokenCount, "mm_keys"},
		{"hex per token", good(func(s *event.BlockStored) { s.Extra.HexTokens = s.Extra.HexTokens[:7] }), ErrTokenCount, "token_ids"},
		{"empty extra key", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0] = event.ExtraKey{} }), ErrShape, "extra_keys"},
		{"double extra key", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0].Bin = []byte{1} }), ErrShape, "extra_keys"},
		{"extra key of nothing but an offset", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][0] = event.ExtraKey{Offset: 1} }), ErrShape, "extra_keys"},
		{"empty bin is a value", good(func(s *event.BlockStored) { s.Extra.ExtraKeys[1][1].Bin = []byte{} }), nil, ""},
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
	seeds.Rapid(t)
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

// What the Checker for a Config lets pass, both encoders write: one event must
// never take its neighbours with it. Most events here have something wrong with
// them. Many are drawn at a time, so that also a short run has all outcomes.
func TestCheckedEventsEncode(t *testing.T) {
	const atATime = 40
	drawn, passed, refused, noSlot := 0, map[Encoding]int{}, map[Encoding]int{}, map[Encoding]int{}
	seeds.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		for range atATime {
			drawn++
			ev := genMalformed(t)
			config := genConfig(t)
			if rapid.IntRange(0, 3).Draw(t, "form by chance") > 0 && (config.Form == event.Bytes) != hasDigests(ev) {
				if config.Form = event.Bytes; !hasDigests(ev) {
					config.Form = event.Signed64
				}
			}
			for _, config.Encoding = range encodings {
				switch err := checkedEncodes(t, config, ev); {
				case err == nil:
					passed[config.Encoding]++
				case errors.Is(err, ErrNoSlot):
					noSlot[config.Encoding]++
				default:
					refused[config.Encoding]++
				}
			}
		}
	})
	for _, encoding := range encodings {
		t.Logf("%v: of %d %d passed, %d were refused and %d had no place", encoding, drawn,
			passed[encoding], refused[encoding], noSlot[encoding])
		least := drawn / 100
		if passed[encoding] < least || refused[encoding] < least ||
			encoding != Map && noSlot[encoding] < least || encoding == Map && noSlot[encoding] != 0 {
			t.Errorf("%v: little is shown", encoding)
		}
	}
}

// checkedEncodes compares the Checker's verdict, which it returns, with what
// the encoders do.
func checkedEncodes(t *rapid.T, config Config, ev event.Event) error {
	c, err := NewChecker(config)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Check(ev)
	configured := errors.Is(err, ErrNoSlot) || errors.Is(err, ErrHashForm)
	// Only these two depend on the Config.
	if general := CheckEvent(ev); (err == nil) != (general == nil) && (general != nil || !configured) {
		t.Fatalf("%+v: %v, the zero value: %v", config, err, general)
	}
	got, hotErr := mustEncoder(t, config).AppendBatch(nil, 1, []event.Event{ev}, 0)
	want, structErr := EncodeStruct(config, 1, []event.Event{ev}, 0)
	if err != nil {
		if configured && (hotErr == nil || structErr == nil) {
			t.Fatalf("refused (%v), but encoded: %v, %v", err, hotErr, structErr)
		}
		return err
	}
	if hotErr != nil || structErr != nil {
		t.Fatalf("accepted, but: %v, %v", hotErr, structErr)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("encoders differ\n%x\n%x", got, want)
	}
	b, err := Decode(got, Limits{MaxString: 1 << 20})
	if err != nil || b.Events[0].Err != nil || len(b.Remarks) > 0 {
		t.Fatalf("accepted, but reads as %+v, %v", b, err)
	}
	return nil
}

func hasDigests(ev event.Event) bool {
	switch v := ev.(type) {
	case *event.BlockStored:
		return v != nil && len(v.Digests) > 0
	case *event.BlockRemoved:
		return v != nil && len(v.Digests) > 0
	}
	return false
}

// genMalformed draws an event in which each part is right or wrong by chance.
func genMalformed(t *rapid.T) event.Event {
	text := rapid.SampledFrom([]string{"", "", "GPU", "x", "\xff"})
	flag := func(label string) bool { return rapid.IntRange(0, 3).Draw(t, label) == 0 }
	count := func(label string, right int) int {
		if flag(label) {
			return rapid.IntRange(0, 4).Draw(t, label)
		}
		return right
	}
	var hashes []uint64
	var digests []event.Digest
	n := rapid.IntRange(0, 3).Draw(t, "blocks")
	for i := range n {
		if flag("digests") {
			digests = append(digests, event.Digest{byte(rapid.IntRange(0, 9).Draw(t, "digest"))})
		} else {
			hashes = append(hashes, uint64(count("hash", i)))
		}
	}
	switch rapid.IntRange(0, 5).Draw(t, "type") {
	case 0:
		return rapid.SampledFrom([]event.Event{nil, (*event.BlockStored)(nil), (*event.BlockRemoved)(nil),
			(*event.AllBlocksCleared)(nil), &event.AllBlocksCleared{}}).Draw(t, "odd")
	case 1:
		return &event.BlockRemoved{Hashes: hashes, Digests: digests, Medium: text.Draw(t, "medium"), HasMedium: flag("has medium"),
			GroupIdx: genUint64().Draw(t, "group"), HasGroupIdx: flag("has group"),
			Locality: text.Draw(t, "locality"), Ownership: text.Draw(t, "ownership")}
	}
	s := &event.BlockStored{Hashes: hashes, Digests: digests, ParentHash: genUint64().Draw(t, "parent"), HasParent: flag("has parent"),
		BlockSize: uint32(count("block size", 2)), LoRAID: genUint64().Draw(t, "lora"), HasLoRAID: flag("has lora"),
		LoRAName: text.Draw(t, "lora name"), Medium: text.Draw(t, "medium"), HasMedium: flag("has medium")}
	s.Tokens = make([]uint32, count("tokens", n*int(s.BlockSize)))
	if !flag("extra") {
		x := &event.StoredExtra{GroupIdx: genUint64().Draw(t, "group"), HasGroupIdx: flag("has group"), SpecKind: text.Draw(t, "kind"),
			SlidingWindow: genUint64().Draw(t, "window"), HasWindow: flag("has window"), Locality: text.Draw(t, "locality"),
			Ownership: text.Draw(t, "ownership"), SessionID: text.Draw(t, "session")}
		if !flag("extra keys") {
			x.ExtraKeys = make([][]event.ExtraKey, count("entries", n))
			for i := range x.ExtraKeys {
				for range rapid.IntRange(0, 2).Draw(t, "entry") {
					var k event.ExtraKey
					switch rapid.IntRange(0, 6).Draw(t, "key") {
					case 0, 1:
						k.Str = text.Draw(t, "str")
					case 2, 3:
						k.Item, k.Offset = text.Draw(t, "item"), int64(genUint64().Draw(t, "offset"))
					case 4:
						k.Bin = []byte{}
					case 5:
						k = event.ExtraKey{Str: text.Draw(t, "str"), Item: text.Draw(t, "item"), Bin: []byte{1}}
					}
					x.ExtraKeys[i] = append(x.ExtraKeys[i], k)
				}
			}
		}
		if !flag("mm keys") {
			x.MMKeys = make([][]event.MMKey, count("mm entries", n))
			for i := range x.MMKeys {
				for range rapid.IntRange(0, 2).Draw(t, "mm entry") {
					x.MMKeys[i] = append(x.MMKeys[i], event.MMKey{Hash: text.Draw(t, "mm hash"),
						StartOffset: int64(genUint64().Draw(t, "start")), UUID: text.Draw(t, "uuid"), HasUUID: flag("has uuid")})
				}
			}
		}
		if flag("hex tokens") {
			x.HexTokens = make([]string, count("hex", len(s.Tokens)))
			for i := range x.HexTokens {
				x.HexTokens[i] = text.Draw(t, "hex token")
			}
		}
		s.Extra = x
	}
	return s
}
