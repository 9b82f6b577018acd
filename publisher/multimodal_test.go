// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// testDigest is the i-th digest of these tests.
func testDigest(i byte) event.Digest {
	var d event.Digest
	for k := range d {
		d[k] = i
	}
	return d
}

func hexOf(i byte) string {
	d := testDigest(i)
	return hex.EncodeToString(d[:])
}

// blocksOf is a stored event with blocks of four tokens below parent (0: root).
// A negative token -i stands for the digest of testDigest(i).
func blocksOf(parent uint64, first uint64, tokens ...int) *event.BlockStored {
	e := &event.BlockStored{BlockSize: 4, Medium: "GPU", HasMedium: true, ParentHash: parent, HasParent: parent != 0}
	for i, t := range tokens {
		if i%4 == 0 {
			e.Hashes = append(e.Hashes, first+uint64(i/4))
		}
		if t < 0 {
			e.Tokens = append(e.Tokens, event.DigestToken(len(e.MMDigests)))
			e.MMDigests = append(e.MMDigests, testDigest(byte(-t)))
		} else {
			e.Tokens = append(e.Tokens, uint32(t))
		}
	}
	return e
}

// shaped runs events through a validator.
func shaped(t *testing.T, o Options, events ...event.Event) ([]*event.BlockStored, *validator) {
	t.Helper()
	s, err := o.check()
	if err != nil {
		t.Fatal(err)
	}
	v, err := newValidator(s)
	if err != nil {
		t.Fatal(err)
	}
	var out []event.Event
	for _, ev := range events {
		if out, err = v.shape(out, ev, false); err != nil {
			t.Fatal(err)
		}
	}
	var stored []*event.BlockStored
	for _, ev := range out {
		if e, ok := ev.(*event.BlockStored); ok {
			if len(e.MMDigests) != 0 {
				t.Errorf("digests are left: %+v", e)
			}
			stored = append(stored, e)
		}
	}
	return stored, v
}

// The items of a chain: one that goes on into the next block and the next event,
// is interrupted by text, and is followed by another one. 1000 is the offset.
func itemChain() []event.Event {
	return []event.Event{
		blocksOf(0, 1, 5, -1, 1001, 1002, 1003, 7, 1004, 1005), // block 2: 3, text, 4, 5
		blocksOf(2, 3, 1006, -2, 1001, 9, 10, 11, 12, 1000),    // block 3: the end of the first, then the second; block 4: text, the offset itself too
		blocksOf(4, 5, 1, 2, 1002, 3),                          // block 5: the second again
		blocksOf(0, 6, 1, 2, 3, 2000),                          // text at the root, whatever the ids
	}
}

func TestTensorRTForm(t *testing.T) {
	o := DefaultOptions()
	o.MMTokenIDOffset = 1000
	got, _ := shaped(t, o, itemChain()...)
	entry := func(i byte, offset int64) event.MMKey { return event.MMKey{Hash: hexOf(i), StartOffset: offset} }
	want := [][][]event.MMKey{
		{{entry(1, 0)}, {entry(1, 3), entry(1, 4)}},
		{{entry(1, 6), entry(2, 0)}, nil},
		{{entry(2, 2)}},
		{nil},
	}
	for i, e := range got {
		if e.Extra == nil || !reflect.DeepEqual(e.Extra.MMKeys, want[i]) {
			t.Errorf("event %d: %+v, want %+v", i, e.Extra, want[i])
		}
		if e.Extra.ExtraKeys != nil {
			t.Errorf("event %d has extra_keys", i)
		}
	}
	if hex := got[0].Extra.HexTokens; len(hex) != 8 || hex[1] != hexOf(1) || hex[0] != "" || hex[2] != "" {
		t.Errorf("%q", hex)
	}
	// A later position alone is a number.
	if got[2].Extra.HexTokens != nil || got[3].Extra.HexTokens != nil {
		t.Error("strings without a digest")
	}
	// Without the offset there are strings and no mm_keys.
	o.MMTokenIDOffset = -1
	got, _ = shaped(t, o, itemChain()...)
	if got[0].Extra.MMKeys != nil || got[0].Extra.HexTokens[1] != hexOf(1) || got[2].Extra != nil {
		t.Errorf("%+v", got[0].Extra)
	}
}

func TestExtraKeysForm(t *testing.T) {
	o := DefaultOptions()
	o.Multimodal, o.MMTokenIDOffset = MultimodalExtraKeys, 1000
	events := itemChain()
	got, _ := shaped(t, o, events...)
	pair := func(i byte, offset int64) event.ExtraKey { return event.ExtraKey{Item: hexOf(i), Offset: offset} }
	want := [][][]event.ExtraKey{
		{{pair(1, 1)}, {pair(1, -3)}},
		{{pair(1, -7), pair(2, 1)}, nil},
		{{pair(2, -7)}},
	}
	for i := range want {
		if !reflect.DeepEqual(got[i].Extra.ExtraKeys, want[i]) {
			t.Errorf("event %d: %+v, want %+v", i, got[i].Extra.ExtraKeys, want[i])
		}
		if got[i].Extra.HexTokens != nil || got[i].Extra.MMKeys != nil {
			t.Errorf("event %d: %+v", i, got[i].Extra)
		}
	}
	if got[3].Extra != nil {
		t.Errorf("text has %+v", got[3].Extra)
	}
	if want := []uint32{5, 1000, 1001, 1002, 1003, 7, 1004, 1005}; !slices.Equal(got[0].Tokens, want) {
		t.Errorf("tokens %v, want %v", got[0].Tokens, want)
	}
	if i, ok := event.IsDigestToken(events[0].(*event.BlockStored).Tokens[1]); !ok || i != 0 {
		t.Error("the source's tokens have been changed")
	}
	// With a placeholder all positions of items become it, and text stays.
	o.MMPlaceholderID = 99
	got, _ = shaped(t, o, itemChain()...)
	if want := []uint32{5, 99, 99, 99, 99, 7, 99, 99}; !slices.Equal(got[0].Tokens, want) {
		t.Errorf("tokens %v, want %v", got[0].Tokens, want)
	}
	if want := []uint32{1, 2, 3, 2000}; !slices.Equal(got[3].Tokens, want) {
		t.Errorf("tokens %v, want %v", got[3].Tokens, want)
	}
	// The LoRA's name comes first, in blocks of text too; with lora: id it does not.
	e := blocksOf(0, 1, 1, 2, 3, 4, -1, 2, 3, 4)
	e.LoRAID, e.HasLoRAID, e.LoRAName = 7, true, "ad"
	text := blocksOf(0, 9, 1, 2, 3, 5)
	text.LoRAID, text.HasLoRAID, text.LoRAName = 7, true, "ad"
	got, _ = shaped(t, o, e, text)
	name := event.ExtraKey{Str: "ad"}
	if !reflect.DeepEqual(got[0].Extra.ExtraKeys, [][]event.ExtraKey{{name}, {name, pair(1, 0)}}) ||
		!reflect.DeepEqual(got[1].Extra.ExtraKeys, [][]event.ExtraKey{{name}}) {
		t.Errorf("%+v %+v", got[0].Extra, got[1].Extra)
	}
	o.LoRAIDOnly = true
	got, _ = shaped(t, o, e, text)
	if !reflect.DeepEqual(got[0].Extra.ExtraKeys, [][]event.ExtraKey{nil, {pair(1, 0)}}) || got[1].Extra != nil ||
		got[0].LoRAName != "" || got[1].LoRAName != "" || got[0].LoRAID != 7 || e.LoRAName != "ad" {
		t.Errorf("%+v %+v", got[0], got[1])
	}
}

// The item of a block is forgotten with the block.
func TestItemsEnd(t *testing.T) {
	o := DefaultOptions()
	o.MMTokenIDOffset = 1000
	for name, end := range map[string]event.Event{"removed": removal(2), "cleared": &event.AllBlocksCleared{}} {
		got, v := shaped(t, o, blocksOf(0, 1, -1, 1001, 1002, 1003, 1004, 1005, 1006, 1007), end, blocksOf(2, 3, 1008, 1, 2, 3))
		if entries := got[1].Extra.MMKeys[0]; entries != nil {
			t.Errorf("%s: %v", name, entries)
		}
		if len(v.multimodal.items) > 1 {
			t.Errorf("%s: %d items are kept", name, len(v.multimodal.items))
		}
	}
	// An event that is refused leaves nothing behind.
	s, _ := o.check()
	v, err := newValidator(s)
	if err != nil {
		t.Fatal(err)
	}
	bad := blocksOf(0, 1, -1, 1001, 1002, 1003)
	bad.Medium = "\xff"
	if _, err := v.shape(nil, bad, false); !errors.Is(err, wire.ErrUTF8) || len(v.multimodal.items) != 0 {
		t.Errorf("%v, %d items", err, len(v.multimodal.items))
	}
}

// A block with an item, and all below it, are not told of, and neither is their
// end; what is above is.
func TestSuppressForm(t *testing.T) {
	o := DefaultOptions()
	o.Encoding = wire.Array // auto
	s, err := o.check()
	if err != nil {
		t.Fatal(err)
	}
	v, err := newValidator(s)
	if err != nil {
		t.Fatal(err)
	}
	run := func(ev event.Event) []event.Event {
		t.Helper()
		out, err := v.shape(nil, ev, false)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := run(blocksOf(0, 1, 1, 2, 3, 4, 1, -1, 3, 4, 1, 2, 3, 5))
	if len(first) != 1 || !slices.Equal(first[0].(*event.BlockStored).Hashes, []uint64{1}) || len(first[0].(*event.BlockStored).Tokens) != 4 {
		t.Fatalf("%+v", first)
	}
	if out := run(blocksOf(3, 4, 1, 2, 3, 4)); len(out) != 0 {
		t.Errorf("below an item: %+v", out)
	}
	if out := run(blocksOf(1, 5, 1, 2, 3, 4)); len(out) != 1 {
		t.Errorf("beside it: %+v", out)
	}
	if out := run(removal(4, 5, 3)); len(out) != 1 || !slices.Equal(out[0].(*event.BlockRemoved).Hashes, []uint64{5}) {
		t.Errorf("%+v", out)
	}
	if out := run(removal(2)); len(out) != 0 {
		t.Errorf("%+v", out)
	}
	if v.multimodal.suppressed != 3 || len(v.multimodal.silent) != 0 {
		t.Errorf("%d suppressed, %d left", v.multimodal.suppressed, len(v.multimodal.silent))
	}
	run(blocksOf(0, 8, -1, 1, 2, 3))
	run(&event.AllBlocksCleared{})
	if out := run(removal(8)); len(out) != 1 {
		t.Errorf("after a clear: %+v", out)
	}
}

// Digests that do not fit the tokens are no event, and those that have no form
// are not either.
func TestBadDigests(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Options)
		prepare func(*event.BlockStored)
	}{
		"too few":  {func(*Options) {}, func(e *event.BlockStored) { e.Tokens[1] = event.DigestToken(1) }},
		"too many": {func(*Options) {}, func(e *event.BlockStored) { e.Tokens[0] = 3 }},
		"no form":  {func(o *Options) { o.Multimodal = MultimodalExtraKeys }, func(*event.BlockStored) {}},
	} {
		o := DefaultOptions()
		c.change(&o)
		s, _ := o.check()
		v, err := newValidator(s)
		if err != nil {
			t.Fatal(err)
		}
		e := blocksOf(0, 1, -1, 2, 3, 4)
		c.prepare(e)
		if out, err := v.shape(nil, e, false); !errors.Is(err, wire.ErrMultimodal) || len(out) != 0 {
			t.Errorf("%s: %v, %+v", name, err, out)
		}
	}
}

// Strings among the tokens lose readers the whole batch, so they travel without
// text; the order stays, and a source's batch is cut as one of Publish.
func TestRiskyEventsTravelAlone(t *testing.T) {
	events := []event.Event{chain(1, 2), blocksOf(0, 10, -1, 1, 2, 3), blocksOf(0, 20, -2, 1, 2, 3), removal(1), chain(5, 1)}
	for i, ev := range events {
		if e, ok := ev.(*event.BlockStored); ok && e.BlockSize == 1 {
			events[i] = blocksOf(0, e.Hashes[0], 1, 2, 3, 4)
		}
	}
	want := [][]uint64{{1}, {10, 20}, {1, 5}}
	for _, attachedSource := range []bool{false, true} {
		o := localOptions(t)
		var p *Publisher
		var src *fakeSource
		if attachedSource {
			p, src = attached(t, o, nil)
		} else {
			p = mustNew(t, o)
			mustStart(t, p)
		}
		s := subscribe(t, p)
		if attachedSource {
			src.record(events...)
			src.flush()
		} else if err := p.Publish(events...); err != nil {
			t.Fatal(err)
		}
		for i, hashes := range want {
			m := s.next()
			var got []uint64
			strings := 0
			for _, e := range m.batch.Events {
				for _, h := range e.Hashes {
					got = append(got, h.Bits)
				}
				if e.Extra != nil {
					strings += len(e.Extra.StringTokens)
				}
			}
			if m.seq != uint64(1+i) || !slices.Equal(got, hashes) || (strings > 0) != (i == 1) {
				t.Errorf("attached %v: batch %d has %v and %d strings, want %v", attachedSource, m.seq, got, strings, hashes)
			}
		}
		p.Close()
		checkBalance(t, p.Stats(), true)
	}
}
