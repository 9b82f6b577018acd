// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
)

var encodings = []Encoding{Map, Array, ArrayShort}

// slotless lists, per encoding, the keys without a place. It is written out
// from the contract, independently of the code.
var slotless = map[Encoding][]Field{
	Array: {FieldLocality, FieldOwnership, FieldSessionID, FieldMMKeys},
	ArrayShort: {
		FieldGroupIdx, FieldSpecKind, FieldSlidingWindow, FieldLocality, FieldOwnership, FieldSessionID, FieldMMKeys,
	},
}

// fitting returns the event without the keys that the encoding has no place
// for, and the fields that were taken out.
func fitting(ev event.Event, encoding Encoding) (fits event.Event, taken []Field) {
	take := func(f Field, set bool) bool {
		set = set && slices.Contains(slotless[encoding], f)
		if set {
			taken = append(taken, f)
		}
		return set
	}
	switch v := ev.(type) {
	case *event.BlockRemoved:
		r := *v
		if take(FieldGroupIdx, r.HasGroupIdx) {
			r.GroupIdx, r.HasGroupIdx = 0, false
		}
		if take(FieldLocality, r.Locality != "") {
			r.Locality = ""
		}
		if take(FieldOwnership, r.Ownership != "") {
			r.Ownership = ""
		}
		return &r, taken
	case *event.BlockStored:
		if v.Extra == nil {
			return ev, nil
		}
		s, x := *v, *v.Extra
		if take(FieldGroupIdx, x.HasGroupIdx) {
			x.GroupIdx, x.HasGroupIdx = 0, false
		}
		if take(FieldSpecKind, x.SpecKind != "") {
			x.SpecKind = ""
		}
		if take(FieldSlidingWindow, x.HasWindow) {
			x.SlidingWindow, x.HasWindow = 0, false
		}
		if take(FieldLocality, x.Locality != "") {
			x.Locality = ""
		}
		if take(FieldOwnership, x.Ownership != "") {
			x.Ownership = ""
		}
		if take(FieldSessionID, x.SessionID != "") {
			x.SessionID = ""
		}
		if take(FieldMMKeys, x.MMKeys != nil) {
			x.MMKeys = nil
		}
		s.Extra = &x
		if x.ExtraKeys == nil && x.HexTokens == nil && !x.HasGroupIdx && x.SpecKind == "" && !x.HasWindow &&
			x.Locality == "" && x.Ownership == "" && x.SessionID == "" && x.MMKeys == nil {
			s.Extra = nil
		}
		return &s, taken
	}
	return ev, nil
}

// Each optional key in each encoding: written, or refused by the Checker and by
// both encoders with the key and the event named.
func TestEncodingSlots(t *testing.T) {
	with := func(x event.StoredExtra) event.Event {
		return &event.BlockStored{Hashes: []uint64{1}, Tokens: []uint32{7}, BlockSize: 1, Extra: &x}
	}
	removed := func(r event.BlockRemoved) event.Event {
		r.Hashes = []uint64{1}
		return &r
	}
	for _, c := range []struct {
		name  string
		ev    event.Event
		key   string
		array bool // has a place in array
		short bool // has a place in array-short
	}{
		{"nothing", with(event.StoredExtra{}), "", true, true},
		{"extra keys", with(event.StoredExtra{ExtraKeys: [][]event.ExtraKey{nil}}), "", true, true},
		{"hex tokens", with(event.StoredExtra{HexTokens: []string{"ff"}}), "", true, true},
		{"group 0", with(event.StoredExtra{HasGroupIdx: true}), "group_idx", true, false},
		{"group not set", with(event.StoredExtra{GroupIdx: 5}), "", true, true},
		{"kind", with(event.StoredExtra{SpecKind: "mamba"}), "kv_cache_spec_kind", true, false},
		{"window", with(event.StoredExtra{HasWindow: true}), "kv_cache_spec_sliding_window", true, false},
		{"locality", with(event.StoredExtra{Locality: "LOCAL"}), "locality", false, false},
		{"ownership", with(event.StoredExtra{Ownership: "o"}), "ownership", false, false},
		{"session", with(event.StoredExtra{SessionID: "s"}), "session_id", false, false},
		{"mm keys", with(event.StoredExtra{MMKeys: [][]event.MMKey{{{Hash: "h"}}}}), "mm_keys", false, false},
		{"empty mm keys", with(event.StoredExtra{MMKeys: [][]event.MMKey{{}}}), "mm_keys", false, false},
		{"removed", removed(event.BlockRemoved{}), "", true, true},
		{"removed group 0", removed(event.BlockRemoved{HasGroupIdx: true}), "group_idx", true, false},
		{"removed locality", removed(event.BlockRemoved{Locality: "REMOTE"}), "locality", false, false},
		{"removed ownership", removed(event.BlockRemoved{Ownership: "o"}), "ownership", false, false},
	} {
		for _, encoding := range encodings {
			t.Run(c.name+"/"+encoding.String(), func(t *testing.T) {
				config := Config{Encoding: encoding}
				good := encoding == Map || encoding == Array && c.array || encoding == ArrayShort && c.short
				events := []event.Event{&event.AllBlocksCleared{}, c.ev}
				got, hotErr := mustEncoder(t, config).AppendBatch([]byte("before"), 0, events, 0)
				_, structErr := EncodeStruct(config, 0, events, 0)
				checker, err := NewChecker(config)
				if err != nil {
					t.Fatal(err)
				}
				checkErr, onceErr := checker.Check(c.ev), config.CheckEvent(c.ev)
				if good {
					for _, err := range []error{hotErr, structErr, checkErr, onceErr} {
						if err != nil {
							t.Error(err)
						}
					}
					return
				}
				if string(got) != "before" {
					t.Errorf("result %q", got)
				}
				for i, err := range []error{hotErr, structErr, checkErr, onceErr} {
					wantError(t, err, ErrNoSlot, -1)
					index := 1
					if i >= 2 {
						index = -1
					}
					if e := err.(*Error); e.Key != c.key || e.Event != index || e.Detail != "in "+encoding.String()+" form" {
						t.Errorf("%v: event %d key %q, want %d %q", e, e.Event, e.Key, index, c.key)
					}
				}
				if err := CheckEvent(c.ev); err != nil {
					t.Errorf("map form: %v", err)
				}
			})
		}
	}
}

// A Checker made for a Config refuses the other kind of hashes.
func TestCheckerForm(t *testing.T) {
	tokens := []uint32{1}
	ints := []event.Event{
		&event.BlockStored{Hashes: []uint64{1}, Tokens: tokens, BlockSize: 1}, &event.BlockRemoved{Hashes: []uint64{1}},
	}
	bins := []event.Event{
		&event.BlockStored{Digests: make([]event.Digest, 1), Tokens: tokens, BlockSize: 1},
		&event.BlockRemoved{Digests: make([]event.Digest, 1)},
	}
	for form := event.Signed64; form <= event.Bytes; form++ {
		good, bad := ints, bins
		if form == event.Bytes {
			good, bad = bins, ints
		}
		c := Config{Form: form}
		for _, ev := range good {
			if err := c.CheckEvent(ev); err != nil {
				t.Errorf("form %d: %v", form, err)
			}
		}
		for _, ev := range bad {
			wantError(t, c.CheckEvent(ev), ErrHashForm, -1)
		}
	}
}

// Why blocks went is for the program that drains: no form has a place for it, and
// it is no reason to refuse an event.
func TestReasonsStayOffTheWire(t *testing.T) {
	reasons := []event.EvictedReason{event.EvictedScope, event.EvictedCapacity, event.EvictedTTL}
	for _, encoding := range encodings {
		for form := event.Signed64; form <= event.Bytes; form++ {
			plain := &event.BlockRemoved{Hashes: []uint64{1, 2, 3}, Medium: "GPU", HasMedium: true}
			if form == event.Bytes {
				plain.Hashes, plain.Digests = nil, []event.Digest{{1}, {2}, {3}}
			}
			config := Config{Encoding: encoding, Form: form}
			e, err := NewEncoder(config)
			if err != nil {
				t.Fatal(err)
			}
			want, err := e.AppendBatch(nil, 1.5, []event.Event{plain}, 3)
			if err != nil {
				t.Fatal(err)
			}
			for n := range len(reasons) + 1 {
				with := *plain
				with.Reasons = reasons[:n]
				if err := config.CheckEvent(&with); err != nil {
					t.Errorf("%v, form %d: %v", encoding, form, err)
				}
				if got, err := e.AppendBatch(nil, 1.5, []event.Event{&with}, 3); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v, form %d: %x, %v, want %x", encoding, form, got, err, want)
				}
			}
		}
	}
}

func TestEncodingConfig(t *testing.T) {
	for encoding, name := range map[Encoding]string{
		Map: "map", Array: "array", ArrayShort: "array-short", ArrayShort + 1: "encoding(3)",
	} {
		if encoding.String() != name {
			t.Errorf("%d: %q, want %q", encoding, encoding, name)
		}
	}
	for _, c := range []Config{{Encoding: ArrayShort + 1}, {Encoding: 255}, {Form: event.Bytes + 1}} {
		_, encoderErr := NewEncoder(c)
		_, structErr := EncodeStruct(c, 0, nil, 0)
		_, checkerErr := NewChecker(c)
		for _, err := range []error{encoderErr, structErr, checkerErr, c.CheckEvent(&event.AllBlocksCleared{})} {
			if !errors.Is(err, ErrConfig) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}
