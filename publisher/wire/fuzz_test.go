// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/shamaton/msgpack/v2"

	"github.com/kvcast/kvcast/bindings/event"
)

func seed(f *testing.F) {
	for _, v := range loadVectors(f).Vectors {
		f.Add(unhex(f, v.MapBatch))
		if v.ArrayBatch != nil {
			f.Add(unhex(f, *v.ArrayBatch))
		}
	}
	rich := []event.Event{
		&event.BlockStored{
			Hashes: []uint64{1, 1 << 63}, HasParent: true, ParentHash: 7, Tokens: []uint32{0, 200, 70000, 1 << 31}, BlockSize: 2,
			Extra: &event.StoredExtra{
				ExtraKeys: [][]event.ExtraKey{nil, {{Str: "a"}, {Item: "b", Offset: -3}, {Bin: []byte{1, 2}}}},
				MMKeys:    [][]event.MMKey{{}, {{Hash: "h", StartOffset: 3, UUID: "u", HasUUID: true}}},
				HexTokens: []string{"ab", "", "", ""}, Locality: "LOCAL", SessionID: "s",
			},
		},
		&event.BlockRemoved{Hashes: []uint64{1}, HasGroupIdx: true, Ownership: "o"},
	}
	b, err := EncodeStruct(Config{}, 1, rich, 1<<40)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\x82\xc0\xd6\xff\x00\x00\x00\x00\x01\xc7\x0c\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
}

// Limits small enough for the fuzzer to reach.
var fuzzLimits = Limits{MaxDepth: 8, MaxEvents: 64, MaxHashes: 64, MaxTokens: 256, MaxString: 128, MaxInvalid: 4, MaxRemarks: 8}

// FuzzDecode: no input makes the decoder panic, reused memory makes no
// difference, what it accepts is well-formed, and what it understands survives
// being encoded again.
func FuzzDecode(f *testing.F) {
	seed(f)
	reused, err := NewDecoder(fuzzLimits)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		original := bytes.Clone(payload)
		b, err := reused.Decode(payload)
		fresh, freshErr := Decode(payload, fuzzLimits)
		if !bytes.Equal(payload, original) {
			t.Fatal("the payload was changed")
		}
		if !reflect.DeepEqual(err, freshErr) {
			t.Fatalf("reused: %v, fresh: %v", err, freshErr)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Offset > len(payload) || e.Error() == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		if !sameBatch(b, fresh) {
			t.Fatalf("reused %+v\nfresh %+v", b, fresh)
		}
		r := reader{b: payload, maxDepth: fuzzLimits.MaxDepth}
		if p, err := r.skip(0, 0); err != nil || p != len(payload) {
			t.Fatalf("accepted, but %v at %d", err, p)
		}
		if len(b.Remarks) > fuzzLimits.MaxRemarks || len(b.Events) > fuzzLimits.MaxEvents {
			t.Fatal("beyond the limits")
		}
		for i := range b.Events {
			ev := &b.Events[i]
			if ev.Offset <= 0 || ev.Offset >= len(payload) || len(ev.Hashes) > fuzzLimits.MaxHashes || len(ev.Tokens) > fuzzLimits.MaxTokens {
				t.Fatalf("event %d: %+v", i, ev)
			}
			if ev.Err == nil && ev.Kind != KindUnknown {
				reencode(t, ev)
			}
		}
	})
}

// sameBatch compares two batches, empty and nil lists being the same.
func sameBatch(a, b *Batch) bool {
	if len(a.Events) != len(b.Events) || len(a.Remarks) != len(b.Remarks) || a.RemarksDropped != b.RemarksDropped ||
		a.HasRank != b.HasRank || a.Rank != b.Rank || a.TS != b.TS && (a.TS == a.TS || b.TS == b.TS) {
		return false
	}
	for i := range a.Remarks {
		if a.Remarks[i] != b.Remarks[i] {
			return false
		}
	}
	for i := range a.Events {
		if !reflect.DeepEqual(flat(a.Events[i]), flat(b.Events[i])) {
			return false
		}
	}
	return true
}

// flat gives empty lists one shape.
func flat(ev Event) Event {
	if len(ev.Hashes) == 0 {
		ev.Hashes = nil
	}
	if len(ev.Tokens) == 0 {
		ev.Tokens = nil
	}
	return ev
}

// reencode encodes an event that one hash form can express and decodes it.
func reencode(t *testing.T, ev *Event) {
	form := event.Signed64
	all := append([]Hash{}, ev.Hashes...)
	if ev.HasParent {
		all = append(all, ev.Parent)
	}
	kinds := map[HashKind]bool{}
	large := false
	for _, h := range all {
		if h.Kind == HashBytes && len(h.Raw) != len(event.Digest{}) {
			return
		}
		kinds[h.Kind] = true
		large = large || h.Kind == HashUnsigned && h.Bits>>63 != 0
	}
	switch {
	case kinds[HashBytes] && len(kinds) == 1:
		form = event.Bytes
	case kinds[HashBytes], large && kinds[HashNegative]:
		return
	case large:
		form = event.Unsigned64
	}
	x := ev.Extra
	if x != nil {
		if x.CacheSalt != "" {
			return
		}
		for _, st := range x.StringTokens {
			if st.Value == "" {
				return
			}
		}
		for _, entry := range x.ExtraKeys {
			for _, k := range entry {
				if k.Str == "" && k.Item == "" && k.Bin == nil {
					return
				}
			}
		}
	}
	for _, encoding := range encodings {
		if fits, taken := fitting(toEvent(t, ev), encoding); len(taken) == 0 {
			encodeAgain(t, Config{Encoding: encoding, Form: form}, fits, ev)
		} else if _, err := mustEncoder(t, Config{Encoding: encoding, Form: form}).AppendBatch(nil, 0,
			[]event.Event{toEvent(t, ev)}, 0); !errors.Is(err, ErrNoSlot) {
			t.Fatalf("%v form: %v\n%+v", encoding, err, ev)
		}
	}
}

// encodeAgain encodes e, which was decoded as ev, and compares what is decoded
// of it with ev.
func encodeAgain(t *testing.T, c Config, e event.Event, ev *Event) {
	out, err := mustEncoder(t, c).AppendBatch(nil, 0, []event.Event{e}, 0)
	if err != nil {
		t.Fatalf("%v\n%+v", err, ev)
	}
	again, err := Decode(out, Limits{})
	if err != nil {
		t.Fatalf("%v\n%x", err, out)
	}
	got, want := flat(again.Events[0]), flat(*ev)
	for _, e := range []*Event{&got, &want} {
		e.Offset, e.Seen, e.Array = 0, 0, false
		if e.Extra != nil {
			x := *e.Extra
			x.MMKeys = slices.Clone(x.MMKeys)
			for i, entry := range x.MMKeys { // nil and empty are one here
				if len(entry) == 0 {
					x.MMKeys[i] = nil
				}
			}
			e.Extra = &x
			if reflect.DeepEqual(x, Extra{}) {
				e.Extra = nil
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("\n got %+v %+v\nwant %+v %+v", got, got.Extra, want, want.Extra)
	}
}

// FuzzCheck: what the pre-check lets through, the general library reads
// without a panic; and what our own decoder accepts, the pre-check accepts,
// map keys aside.
func FuzzCheck(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, payload []byte) {
		err := Check(payload, fuzzLimits)
		if err == nil {
			var v any
			// It may refuse extensions; it must not crash.
			_ = msgpack.UnmarshalAsMap(payload, &v)
		} else {
			var e *Error
			if !errors.As(err, &e) || e.Offset > len(payload) {
				t.Fatalf("%#v", err)
			}
		}
		if _, decErr := Decode(payload, fuzzLimits); decErr == nil && err != nil && !errors.Is(err, ErrShape) {
			t.Fatalf("decoded, but %v", err)
		}
	})
}
