// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Golden values: TensorRT-LLM's keys of tokens 0..3 and, below it, 4..7.
var (
	golden = [2]event.Digest{
		digest("7b894451a88bc03088bd0c44f01139922b089a1ab691d157c273185c78ca83b2"),
		digest("181684b4f09a9fc1689624a565bc5c9ed96cede3e0863cf373463b1a93c45369"),
	}
	goldenSigned = [2]uint64{8901721255985266736, 1735720619063549889}
	tokens       = [2][]uint32{{0, 1, 2, 3}, {4, 5, 6, 7}}
)

func digest(s string) (d event.Digest) {
	if n, err := hex.Decode(d[:], []byte(s)); err != nil || n != len(d) {
		panic(s)
	}
	return d
}

// store makes a BlockStored of golden blocks from..to in a form; 0..2 is both.
func store(form event.Form, from, to int) *event.BlockStored {
	e := &event.BlockStored{BlockSize: 4, Medium: "GPU", HasMedium: true}
	for i := from; i < to; i++ {
		if form == event.Bytes {
			e.Digests = append(e.Digests, golden[i])
		} else {
			e.Hashes = append(e.Hashes, wire.Reduce(golden[i], form))
		}
		e.Tokens = append(e.Tokens, tokens[i]...)
	}
	if from > 0 {
		e.HasParent = true
		if form == event.Bytes {
			e.ParentDigest = golden[from-1]
		} else {
			e.ParentHash = wire.Reduce(golden[from-1], form)
		}
	}
	return e
}

func remove(form event.Form, blocks ...int) *event.BlockRemoved {
	e := &event.BlockRemoved{Medium: "GPU", HasMedium: true}
	for _, i := range blocks {
		if form == event.Bytes {
			e.Digests = append(e.Digests, golden[i])
		} else {
			e.Hashes = append(e.Hashes, wire.Reduce(golden[i], form))
		}
	}
	return e
}

func cleared() *event.AllBlocksCleared { return &event.AllBlocksCleared{} }

// msg is a batch with its number; events go through the encoder and the
// decoder, as they would on their way.
type msg struct {
	seq    uint64
	ts     float64
	events []event.Event
}

func decode(t *testing.T, form event.Form, m msg) *wire.Batch {
	t.Helper()
	enc, err := wire.NewEncoder(wire.Config{Form: form})
	if err != nil {
		t.Fatal(err)
	}
	ts := m.ts
	if ts == 0 {
		ts = 1e9 + float64(m.seq)
	}
	payload, err := enc.AppendBatch(nil, ts, m.events, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := wire.Decode(payload, wire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func one(seq uint64, events ...event.Event) msg { return msg{seq: seq, events: events} }

func TestVerifierAcceptsEachForm(t *testing.T) {
	for form := event.Signed64; form <= event.Bytes; form++ {
		for _, told := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s told %v", FormName(form), told), func(t *testing.T) {
				v := NewVerifier(VerifierOptions{Form: form, HasForm: told})
				for _, m := range []msg{
					one(0, cleared()),
					one(1, store(form, 0, 1), store(form, 1, 2)),
					one(2),
					one(3, remove(form, 1), store(form, 1, 2), remove(form, 1, 0), store(form, 0, 2)),
				} {
					if err := v.Check(m.seq, decode(t, form, m)); err != nil {
						t.Fatal(err)
					}
				}
				want := Report{LastSeq: 3, Batches: 4, Events: 7, Clears: 1, Lives: 1, StoredBlocks: 5,
					RemovedBlocks: 3, VerifiedKeys: 5, Complete: true, Form: form, HasForm: true}
				if got := v.Report(); got != want {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
				patterns := []uint64{wire.Reduce(golden[0], form), wire.Reduce(golden[1], form)}
				slices.Sort(patterns)
				if got := v.Mirror().Patterns(); !slices.Equal(got, patterns) {
					t.Errorf("mirror %v, want %v", got, patterns)
				}
				if form == event.Signed64 && !slices.Contains(patterns, goldenSigned[0]) {
					t.Errorf("%v lacks the published hash", patterns)
				}
			})
		}
	}
}

func TestVerifierNamesTheBreach(t *testing.T) {
	const s = event.Signed64
	begin := one(0, cleared())
	edit := func(e *event.BlockStored, f func(*event.BlockStored)) *event.BlockStored { f(e); return e }
	for name, c := range map[string]struct {
		options VerifierOptions
		form    event.Form
		msgs    []msg
		want    string
	}{
		"gap":             {msgs: []msg{begin, one(1), one(4)}, want: "batch 4: the number before was 1: 2 batches are missing"},
		"repeated":        {msgs: []msg{begin, one(1), one(1)}, want: "batch 1: the number before was 1: the numbers run back"},
		"end mark":        {msgs: []msg{one(wire.EndSeq)}, want: "batch 18446744073709551615: the number is the end mark of replays"},
		"empty begin":     {msgs: []msg{one(0)}, want: "batch 0: a life begins with a batch of 0 events, not with one clear alone"},
		"store at begin":  {msgs: []msg{one(0, store(s, 0, 1))}, want: "batch 0: a life begins with a store, not with one clear alone"},
		"two at begin":    {msgs: []msg{one(0, cleared(), store(s, 0, 1))}, want: "batch 0: a life begins with a batch of 2 events, not with one clear alone"},
		"second life":     {msgs: []msg{begin, one(1, store(s, 0, 2)), one(0, remove(s, 1))}, want: "batch 0: a life begins with a removal, not with one clear alone"},
		"clear not alone": {msgs: []msg{begin, one(1, store(s, 0, 1), cleared())}, want: "batch 1, event 1: a clear is not alone in its batch, which has 2 events"},
		"time":            {msgs: []msg{begin, {1, 5, nil}}, want: "batch 1: the time 5.000000 is before that of the batch before, 1000000000.000000"},
		"parent unknown":  {msgs: []msg{begin, one(1, store(s, 1, 2))}, want: "batch 1, event 0: parent 8901721255985266736 is not announced"},
		"parent removed":  {msgs: []msg{begin, one(1, store(s, 0, 1), remove(s, 0), store(s, 1, 2))}, want: "batch 1, event 2: parent 8901721255985266736 is not announced"},
		"parent cleared":  {msgs: []msg{begin, one(1, store(s, 0, 1)), one(2, cleared()), one(3, store(s, 1, 2))}, want: "batch 3, event 0: parent 8901721255985266736 is not announced"},
		"parent of old life": {msgs: []msg{begin, one(1, store(s, 0, 1)), begin, one(1, store(s, 1, 2))},
			want: "batch 1, event 0: parent 8901721255985266736 is not announced"},
		"stored twice":     {msgs: []msg{begin, one(1, store(s, 0, 2), store(s, 1, 2))}, want: "batch 1, event 1: hash 1735720619063549889 is announced already"},
		"removed twice":    {msgs: []msg{begin, one(1, store(s, 0, 1), remove(s, 0, 0))}, want: "batch 1, event 1: hash 8901721255985266736 is removed but not announced"},
		"parent first":     {msgs: []msg{begin, one(1, store(s, 0, 2), remove(s, 0, 1))}, want: "batch 1, event 1: hash 8901721255985266736 is removed before a block that hangs on it"},
		"other medium":     {msgs: []msg{begin, one(1, store(s, 0, 1), &event.BlockRemoved{Hashes: goldenSigned[:1], Medium: "CPU", HasMedium: true})}, want: "batch 1, event 1: hash 8901721255985266736 is removed but not announced"},
		"twice in event":   {msgs: []msg{begin, one(1, edit(store(s, 0, 2), func(e *event.BlockStored) { e.Hashes = []uint64{5, 5} }))}, want: "batch 1, event 0: hash 5 is in the event twice"},
		"parent in event":  {msgs: []msg{begin, one(1, store(s, 0, 1), edit(store(s, 1, 2), func(e *event.BlockStored) { e.Hashes[0] = e.ParentHash }))}, want: "batch 1, event 1: hash 8901721255985266736 is in the event twice"},
		"few tokens":       {msgs: []msg{begin, one(1, edit(store(s, 0, 2), func(e *event.BlockStored) { e.Tokens = e.Tokens[1:] }))}, want: "batch 1, event 0: 7 tokens for 2 blocks of 4"},
		"no hashes":        {msgs: []msg{begin, one(1, &event.BlockRemoved{})}, want: "batch 1, event 0: no block hashes"},
		"block size 0":     {msgs: []msg{begin, one(1, edit(store(s, 0, 1), func(e *event.BlockStored) { e.BlockSize, e.Tokens = 0, nil }))}, want: "batch 1, event 0: block size 0"},
		"block size moves": {msgs: []msg{begin, one(1, store(s, 0, 1), edit(store(s, 1, 2), func(e *event.BlockStored) { e.BlockSize, e.Tokens = 2, e.Tokens[:2] }))}, want: "batch 1, event 1: block size 2, it was 4 before"},
		"LoRA id":          {msgs: []msg{begin, one(1, edit(store(s, 0, 1), func(e *event.BlockStored) { e.LoRAID, e.HasLoRAID = 1<<63, true }))}, want: "batch 1, event 0: LoRA id 9223372036854775808 is above 2^63-1"},
		"child token":      {msgs: []msg{begin, one(1, edit(store(s, 0, 2), func(e *event.BlockStored) { e.Tokens[7]++ }))}, want: "batch 1, event 0: hash 1735720619063549889 is not the key of its parent and tokens, "},
		"later child":      {msgs: []msg{begin, one(1, store(s, 0, 1)), one(2, edit(store(s, 1, 2), func(e *event.BlockStored) { e.Hashes[0]++ }))}, want: "batch 2, event 0: hash 1735720619063549890 is not the key of its parent and tokens, 1735720619063549889"},
		"told another":     {options: VerifierOptions{Form: event.Portable63, HasForm: true}, msgs: []msg{begin, one(1, store(s, 0, 1))}, want: "batch 1, event 0: hash 8901721255985266736 has the form signed64, it should be portable63"},
		"form moves":       {msgs: []msg{begin, one(1, store(s, 0, 1), remove(s, 0), store(event.Portable63, 0, 1))}, want: "batch 1, event 2: hash 4450860627992633368 has the form portable63, it should be signed64"},
		"told bytes":       {options: VerifierOptions{Form: event.Bytes, HasForm: true}, msgs: []msg{begin, one(1, store(s, 0, 1))}, want: "batch 1, event 0: hash 8901721255985266736 is an integer, it should be bytes"},
		"bytes child": {form: event.Bytes, msgs: []msg{begin, one(1, edit(store(event.Bytes, 0, 2), func(e *event.BlockStored) { e.Digests[1][31] ^= 1 }))},
			want: "batch 1, event 0: hash 0x181684b4f09a9fc1689624a565bc5c9ed96cede3e0863cf373463b1a93c45368 is not the key of its parent and tokens, 0x181684b4f09a9fc1689624a565bc5c9ed96cede3e0863cf373463b1a93c45369"},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewVerifier(c.options)
			var err error
			for i, m := range c.msgs {
				if err = v.Check(m.seq, decode(t, c.form, m)); err != nil && i != len(c.msgs)-1 {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			var breach *Breach
			if !errors.As(err, &breach) {
				t.Fatalf("got %v, want a *Breach", err)
			}
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
			if again := v.Check(breach.Seq+1, &wire.Batch{}); again != err {
				t.Errorf("then %v, want the first breach", again)
			}
		})
	}
}

// Chains whose keys cannot be recomputed are counted and otherwise checked as
// all others.
func TestVerifierForeignKeys(t *testing.T) {
	foreign := func(n int) []event.Event {
		e := &event.BlockStored{Hashes: []uint64{101, 102}, Tokens: make([]uint32, 8), BlockSize: 4}
		child := &event.BlockStored{Hashes: []uint64{103}, ParentHash: 102, HasParent: true,
			Tokens: make([]uint32, 4), BlockSize: 4}
		return []event.Event{e, child}[:n]
	}
	v := NewVerifier(VerifierOptions{})
	for _, m := range []msg{one(0, cleared()), one(1, foreign(2)...), one(2, store(event.Signed64, 0, 2))} {
		if err := v.Check(m.seq, decode(t, event.Signed64, m)); err != nil {
			t.Fatal(err)
		}
	}
	if r := v.Report(); r.VerifiedKeys != 2 || r.UnverifiedKeys != 3 {
		t.Errorf("%d verified, %d not, want 2 and 3", r.VerifiedKeys, r.UnverifiedKeys)
	}

	// A salted chain with byte hashes: the first key is taken on trust if the
	// form is given, everything after it is checked.
	salted := store(event.Bytes, 1, 2)
	salted.HasParent = false
	bad := &event.BlockStored{Digests: []event.Digest{golden[0]}, ParentDigest: golden[1], HasParent: true,
		Tokens: tokens[0], BlockSize: 4}
	v = NewVerifier(VerifierOptions{Form: event.Bytes, HasForm: true})
	for _, m := range []msg{one(0, cleared()), one(1, salted)} {
		if err := v.Check(m.seq, decode(t, event.Bytes, m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Check(2, decode(t, event.Bytes, one(2, bad))); err == nil ||
		!strings.Contains(err.Error(), "is not the key of its parent") {
		t.Errorf("got %v", err)
	}

	// Hashes of multimodal blocks depend on more than the token ids.
	mm := store(event.Signed64, 0, 2)
	mm.Extra = &event.StoredExtra{ExtraKeys: [][]event.ExtraKey{{{Item: "ab", Offset: 0}}, nil}}
	mm.Hashes[0] = 7
	v = NewVerifier(VerifierOptions{})
	for _, m := range []msg{one(0, cleared()), one(1, mm)} {
		if err := v.Check(m.seq, decode(t, event.Signed64, m)); err != nil {
			t.Fatal(err)
		}
	}
	if r := v.Report(); r.UnverifiedKeys != 2 {
		t.Errorf("%d unverified, want 2", r.UnverifiedKeys)
	}
}

func TestVerifierLoRAKeys(t *testing.T) {
	id := &event.BlockStored{BlockSize: 1, Tokens: []uint32{9}, LoRAID: 7, HasLoRAID: true}
	name := &event.BlockStored{BlockSize: 1, Tokens: []uint32{9}, LoRAID: 7, HasLoRAID: true, LoRAName: "ad"}
	// SHA-256(SHA-256(01, 7 as u64) 09000000) and SHA-256(SHA-256(04, 2 as
	// u32, "ad") 09000000), computed with another program.
	id.Hashes = []uint64{8035178138606496313}
	name.Hashes = []uint64{8196549191651376253}
	v := NewVerifier(VerifierOptions{Form: event.Signed64, HasForm: true})
	for _, m := range []msg{one(0, cleared()), one(1, id, name)} {
		if err := v.Check(m.seq, decode(t, event.Signed64, m)); err != nil {
			t.Fatal(err)
		}
	}
	if r := v.Report(); r.VerifiedKeys != 2 {
		t.Errorf("%d verified keys, want 2", r.VerifiedKeys)
	}
}

func TestVerifierJoinedLate(t *testing.T) {
	const s = event.Signed64
	v := NewVerifier(VerifierOptions{})
	for _, m := range []msg{
		one(40, store(s, 1, 2)), // the parent was announced before
		one(41, remove(s, 1, 0)),
		one(42, store(s, 0, 1)),
	} {
		if err := v.Check(m.seq, decode(t, s, m)); err != nil {
			t.Fatal(err)
		}
	}
	want := Report{FirstSeq: 40, LastSeq: 42, Batches: 3, Events: 3, Lives: 1, StoredBlocks: 2, RemovedBlocks: 2,
		VerifiedKeys: 1, UnverifiedKeys: 1, UnknownRemovals: 1, Form: s, HasForm: true}
	if got := v.Report(); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// From a clear on nothing is unknown any more.
	if err := v.Check(43, decode(t, s, one(43, cleared()))); err != nil {
		t.Fatal(err)
	}
	if err := v.Check(44, decode(t, s, one(44, remove(s, 0)))); err == nil {
		t.Error("a removal of an unknown block after a clear was accepted")
	}
}

// What would not fit in the mirror and no engine sends is a breach, not a limit
// of the reader.
func TestVerifierBoundsHashesAndPlaces(t *testing.T) {
	bin := func(n int) wire.Hash { return wire.HashOfBytes(bytes.Repeat([]byte{'x'}, n)) }
	stored := func(parent *wire.Hash, hashes ...wire.Hash) *wire.Batch {
		e := wire.Event{Kind: wire.KindStored, Hashes: hashes, Tokens: make([]uint32, len(hashes)), BlockSize: 1, Medium: "GPU", HasMedium: true}
		if parent != nil {
			e.Parent, e.HasParent = *parent, true
		}
		return &wire.Batch{TS: 2e9, Events: []wire.Event{e}}
	}
	removed := func(h wire.Hash) *wire.Batch {
		return &wire.Batch{TS: 2e9, Events: []wire.Event{{Kind: wire.KindRemoved, Hashes: []wire.Hash{h}}}}
	}
	empty, long, good := bin(0), bin(65), bin(64)
	for name, c := range map[string]struct {
		batch *wire.Batch
		want  string
	}{
		"64 bytes":         {stored(nil, good), ""},
		"1 byte":           {stored(nil, bin(1)), ""},
		"65 bytes":         {stored(nil, long), "a hash of 65 bytes, 1 to 64 are allowed"},
		"60000 bytes":      {stored(nil, bin(60000), bin(60000)), "a hash of 60000 bytes, 1 to 64 are allowed"},
		"0 bytes":          {stored(nil, empty), "a hash of 0 bytes, 1 to 64 are allowed"},
		"second of two":    {stored(nil, good, long), "a hash of 65 bytes, 1 to 64 are allowed"},
		"parent of 0":      {stored(&empty, good), "a hash of 0 bytes, 1 to 64 are allowed"},
		"parent of 65":     {stored(&long, good), "a hash of 65 bytes, 1 to 64 are allowed"},
		"removed 0 bytes":  {removed(empty), "a hash of 0 bytes, 1 to 64 are allowed"},
		"removed 65 bytes": {removed(long), "a hash of 65 bytes, 1 to 64 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewVerifier(VerifierOptions{})
			if err := v.Check(0, decode(t, 0, one(0, cleared()))); err != nil {
				t.Fatal(err)
			}
			wantBreach(t, v.Check(1, c.batch), 1, c.want)
		})
	}

	v := NewVerifier(VerifierOptions{})
	check := func(seq uint64, kind wire.Kind, place int, want string) {
		t.Helper()
		b := stored(nil, wire.Hash{Bits: uint64(place) + 1})
		e := &b.Events[0]
		e.Kind, e.Medium = kind, fmt.Sprint("m", place/2)
		e.Extra = &wire.Extra{GroupIdx: uint64(place % 2), HasGroupIdx: true}
		wantBreach(t, v.Check(seq, b), seq, want)
	}
	// Each life has places of its own.
	for life := range 2 {
		if err := v.Check(0, &wire.Batch{TS: 1e9, Events: []wire.Event{{Kind: wire.KindCleared}}}); err != nil {
			t.Fatal(err)
		}
		for i := range maxPlaces {
			check(uint64(i)+1, wire.KindStored, 1000*life+i, "")
		}
	}
	check(maxPlaces+1, wire.KindRemoved, 5000, "more than 64 pairs of medium and group")
}

// wantBreach checks for a breach in event 0 of the batch, or for none if want
// is empty.
func wantBreach(t *testing.T, err error, seq uint64, want string) {
	t.Helper()
	var b *Breach
	switch {
	case want == "" && err == nil:
	case want == "" || !errors.As(err, &b) || b.Seq != seq || b.Event != 0 || b.What != want:
		t.Errorf("got %v, want %q in event 0 of batch %d", err, want, seq)
	}
}

func TestVerifierUsesRemarks(t *testing.T) {
	v := NewVerifier(VerifierOptions{})
	if err := v.Check(0, decode(t, 0, one(0, cleared()))); err != nil {
		t.Fatal(err)
	}
	b := &wire.Batch{TS: 2e9, Remarks: []wire.Remark{{Kind: wire.RemarkUnknownKey, Key: "x"}}}
	if err := v.Check(1, b); err != nil {
		t.Errorf("an unknown key is an extension, got %v", err)
	}
	b.Remarks[0] = wire.Remark{Kind: wire.RemarkNilRank, Event: -1}
	if err := v.Check(2, b); err == nil || err.Error() != "batch 2: nil rank" {
		t.Errorf("got %v", err)
	}
}

func TestMirrorLimits(t *testing.T) {
	m := NewMirror(2)
	chain := &event.BlockStored{Hashes: []uint64{1, 2, 3}, Tokens: []uint32{1, 2, 3}, BlockSize: 1}
	if err := m.Apply(decode(t, 0, one(0, chain)).Events); !errors.Is(err, ErrMirrorFull) {
		t.Errorf("third block: %v", err)
	}
	if m.Len() != 2 {
		t.Errorf("%d blocks", m.Len())
	}
	m = NewMirror(0)
	for i := range maxPlaces + 1 {
		r := &event.BlockRemoved{Hashes: []uint64{1}, Medium: fmt.Sprint("m", i), HasMedium: true}
		err := m.Apply(decode(t, 0, one(0, r)).Events)
		if (i < maxPlaces) != (err == nil) {
			t.Errorf("place %d: %v", i, err)
		}
	}
	long := []wire.Event{{Kind: wire.KindStored, Hashes: []wire.Hash{wire.HashOfBytes(make([]byte, maxHashBytes+1))}}}
	if err := NewMirror(0).Apply(long); !errors.Is(err, ErrMirrorFull) {
		t.Errorf("long hash: %v", err)
	}
}

// The mirror follows streams that break the contract, and counts a block as
// gone when it has left its last place.
func TestMirrorFollowsAnything(t *testing.T) {
	const s = event.Signed64
	m := NewMirror(0)
	cpu := store(s, 0, 1)
	cpu.Medium = "CPU"
	steps := []struct {
		events []event.Event
		want   []uint64
	}{
		{[]event.Event{store(s, 1, 2), store(s, 1, 2)}, []uint64{goldenSigned[1]}},
		{[]event.Event{store(s, 0, 1), cpu, remove(s, 0, 0)}, []uint64{goldenSigned[1], goldenSigned[0]}},
		{[]event.Event{&event.BlockRemoved{Hashes: goldenSigned[:1], Medium: "CPU", HasMedium: true}}, []uint64{goldenSigned[1]}},
		{[]event.Event{cleared(), store(s, 0, 1)}, []uint64{goldenSigned[0]}},
		// An unset medium is the device.
		{[]event.Event{&event.BlockRemoved{Hashes: goldenSigned[:1]}}, nil},
	}
	for i, step := range steps {
		if err := m.Apply(decode(t, s, one(0, step.events...)).Events); err != nil {
			t.Fatal(err)
		}
		if got := m.Patterns(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

func TestFormNames(t *testing.T) {
	for f := event.Signed64; f <= event.Bytes; f++ {
		if got, ok := ParseForm(FormName(f)); !ok || got != f {
			t.Errorf("form %d is %q, which parses as %d, %v", f, FormName(f), got, ok)
		}
	}
	if _, ok := ParseForm("int"); ok || FormName(9) != "unknown" {
		t.Error("unknown forms are taken for known ones")
	}
}

// FuzzVerifier feeds payloads as they could come from anybody; nothing may
// panic, and mirror and verifier must agree as long as there is no breach.
func FuzzVerifier(f *testing.F) {
	enc, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		f.Fatal(err)
	}
	for _, events := range [][]event.Event{{cleared()}, {store(0, 0, 2), remove(0, 1)}} {
		payload, err := enc.AppendBatch(nil, 1, events, 0)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload, payload)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		v, m := NewVerifier(VerifierOptions{MaxBlocks: 100}), NewMirror(100)
		for i, payload := range [][]byte{first, second} {
			b, err := wire.Decode(payload, wire.Limits{MaxBytes: 1 << 16})
			if err != nil {
				return
			}
			if v.Check(uint64(i)+5, b) != nil {
				return
			}
			if err := m.Apply(b.Events); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(v.Mirror().Patterns(), m.Patterns()) {
				t.Fatal("the two mirrors differ")
			}
		}
	})
}
