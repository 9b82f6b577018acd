// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/shamaton/msgpack/v2"

	"github.com/kvcast/kvcast/bindings/event"
)

// fataler is what ends a test.
type fataler interface {
	Fatalf(format string, args ...any)
}

// integer is an integer of whatever type a library has read it into.
type integer struct {
	negative bool
	bits     uint64
}

// plain gives values that a library has read one shape: integers as integer, maps by the
// text of their keys. Strings and bytes stay apart, and so do nil and what is empty.
func plain(t fataler, v any) any {
	switch v := v.(type) {
	case nil, string, float64:
		return v
	case []byte:
		return append([]byte{}, v...)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(t, v[i])
		}
		return list
	case map[any]any:
		m := make(map[string]any, len(v))
		for key, value := range v {
			name, ok := key.(string)
			if !ok {
				t.Fatalf("a key is %T", key)
			}
			m[name] = plain(t, value)
		}
		return m
	}
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanUint():
		return integer{bits: rv.Uint()}
	case rv.CanInt():
		return integer{rv.Int() < 0, uint64(rv.Int())}
	}
	t.Fatalf("a value is %T", v)
	return nil
}

func plainHash(h Hash) any {
	if h.Kind == HashBytes {
		return []byte(h.Raw)
	}
	return integer{h.Kind == HashNegative, h.Bits}
}

func plainInt(v int64) any { return integer{v < 0, uint64(v)} }

func optNumber(v uint64, set bool) any {
	if set {
		return integer{bits: v}
	}
	return nil
}

func optAny(s string, set bool) any {
	if set {
		return s
	}
	return nil
}

// listOf is nil when the list is.
func listOf[T any](list []T, value func(T) any) any {
	if list == nil {
		return nil
	}
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = value(v)
	}
	return out
}

// told is all that an event of our decoder says, as plain has it; what is not set is nil.
func told(ev *Event) map[string]any {
	m := map[string]any{"type": ev.Type}
	if ev.Kind == KindCleared {
		return m
	}
	x := ev.Extra
	if x == nil {
		x = new(Extra)
	}
	m["block_hashes"] = listOf(append([]Hash{}, ev.Hashes...), plainHash)
	m["medium"] = optAny(ev.Medium, ev.HasMedium)
	m["group_idx"] = optNumber(x.GroupIdx, x.HasGroupIdx)
	m["locality"] = optAny(x.Locality, x.Locality != "")
	m["ownership"] = optAny(x.Ownership, x.Ownership != "")
	if ev.Kind == KindRemoved {
		return m
	}
	if ev.HasParent {
		m["parent_block_hash"] = plainHash(ev.Parent)
	}
	tokens := make([]any, len(ev.Tokens))
	for i, token := range ev.Tokens {
		tokens[i] = integer{bits: uint64(token)}
	}
	for _, s := range x.StringTokens {
		tokens[s.Index] = s.Value
	}
	m["token_ids"] = tokens
	m["block_size"] = integer{bits: uint64(ev.BlockSize)}
	m["lora_id"] = optNumber(ev.LoRAID, ev.HasLoRAID)
	m["lora_name"] = optAny(ev.LoRAName, ev.LoRAName != "")
	m["kv_cache_spec_kind"] = optAny(x.SpecKind, x.SpecKind != "")
	m["kv_cache_spec_sliding_window"] = optNumber(x.SlidingWindow, x.HasWindow)
	m["session_id"] = optAny(x.SessionID, x.SessionID != "")
	m["cache_salt"] = optAny(x.CacheSalt, x.CacheSalt != "")
	m["extra_keys"] = listOf(x.ExtraKeys, func(entry []event.ExtraKey) any {
		return listOf(entry, func(k event.ExtraKey) any {
			switch {
			case k.Item != "":
				return []any{k.Item, plainInt(k.Offset)}
			case k.Bin != nil:
				return append([]byte{}, k.Bin...)
			}
			return k.Str
		})
	})
	m["mm_keys"] = listOf(x.MMKeys, func(entry []event.MMKey) any {
		return listOf(append([]event.MMKey{}, entry...), func(k event.MMKey) any {
			entry := map[string]any{"type": "mm_key", "hash": k.Hash, "start_offset": plainInt(k.StartOffset)}
			if k.HasUUID { // else it is left out
				entry["uuid"] = k.UUID
			}
			return entry
		})
	})
	return m
}

// foreignFault compares all that the general library reads with our decoder, and returns
// what differs, "" if nothing does.
func foreignFault(t fataler, foreign []any, b *Batch, encoding Encoding) string {
	read := plain(t, foreign).([]any)
	if want := []any{b.TS, integer{bits: b.Rank}}; len(read) != 3 || read[0] != want[0] || read[2] != want[1] {
		return fmt.Sprintf("the envelope is %v, want time and rank %v", read, want)
	}
	events := read[1].([]any)
	if len(events) != len(b.Events) {
		return fmt.Sprintf("%d events, want %d", len(events), len(b.Events))
	}
	for i, ev := range events {
		want := told(&b.Events[i])
		got, isMap := ev.(map[string]any)
		if isMap != (encoding == Map) {
			return fmt.Sprintf("event %d is %T in %v form", i, ev, encoding)
		}
		if !isMap {
			got = byName(t, ev.([]any), b.Events[i].Kind, encoding)
		}
		// What is left out is as good as nil.
		for name, value := range got {
			if !reflect.DeepEqual(value, want[name]) {
				return fmt.Sprintf("event %d: %s is %v, want %v", i, name, value, want[name])
			}
		}
		for name, value := range want {
			if got[name] == nil && value != nil {
				return fmt.Sprintf("event %d: no %s, want %v", i, name, value)
			}
		}
	}
	return ""
}

// byName gives the elements of an array event the names of their places.
func byName(t fataler, list []any, kind Kind, encoding Encoding) map[string]any {
	names := []string{"type"}
	switch kind {
	case KindStored:
		names = []string{
			"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
			"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
		}
		if encoding == ArrayShort {
			names = names[:9]
		}
	case KindRemoved:
		names = []string{"type", "block_hashes", "medium", "group_idx"}
		if encoding == ArrayShort {
			names = names[:3]
		}
	}
	if encoding == Map || len(list) != len(names) {
		t.Fatalf("array of %d elements in %v form, want %d", len(list), encoding, len(names))
	}
	m := map[string]any{}
	for i, name := range names {
		m[name] = list[i]
	}
	return m
}

// The comparison sees every part: a batch with all of them is altered in one place each
// time.
func TestForeignComparisonSees(t *testing.T) {
	stored := func() *event.BlockStored {
		return &event.BlockStored{Hashes: []uint64{1}, HasParent: true, ParentHash: 2, Tokens: []uint32{3, 0}, BlockSize: 2,
			HasLoRAID: true, LoRAID: 4, LoRAName: "l", HasMedium: true, Medium: "GPU",
			Extra: &event.StoredExtra{GroupIdx: 5, HasGroupIdx: true, SpecKind: "k", SlidingWindow: 6, HasWindow: true,
				Locality: "here", Ownership: "ours", SessionID: "s",
				ExtraKeys: [][]event.ExtraKey{{{Str: "a"}, {Item: "i", Offset: -7}, {Bin: []byte{8}}}},
				MMKeys:    [][]event.MMKey{{{Hash: "h", StartOffset: 9, HasUUID: true, UUID: "u"}}}, HexTokens: []string{"", "0a"}}}
	}
	removed := func() *event.BlockRemoved {
		return &event.BlockRemoved{Hashes: []uint64{1}, HasMedium: true, Medium: "GPU", Locality: "here", Ownership: "ours",
			GroupIdx: 5, HasGroupIdx: true}
	}
	encoder, err := NewEncoder(Config{Form: event.Unsigned64})
	if err != nil {
		t.Fatal(err)
	}
	type change struct {
		name string
		do   func(*event.BlockStored, *event.BlockRemoved)
	}
	for _, c := range []change{
		{"hashes", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Hashes[0]++ }},
		{"parent", func(s *event.BlockStored, _ *event.BlockRemoved) { s.ParentHash++ }},
		{"no parent", func(s *event.BlockStored, _ *event.BlockRemoved) { s.HasParent = false }},
		{"token", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Tokens[0]++ }},
		{"hex token", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.HexTokens[1] = "0b" }},
		{"block size", func(s *event.BlockStored, _ *event.BlockRemoved) { s.BlockSize++ }},
		{"LoRA id", func(s *event.BlockStored, _ *event.BlockRemoved) { s.LoRAID++ }},
		{"LoRA name", func(s *event.BlockStored, _ *event.BlockRemoved) { s.LoRAName = "" }},
		{"medium", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Medium = "CPU" }},
		{"group", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.HasGroupIdx = false }},
		{"kind", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.SpecKind = "l" }},
		{"window", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.SlidingWindow++ }},
		{"locality", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.Locality = "" }},
		{"ownership", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.Ownership = "theirs" }},
		{"session", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.SessionID = "t" }},
		{"string key", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.ExtraKeys[0][0].Str = "b" }},
		{"item", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.ExtraKeys[0][1].Item = "j" }},
		{"offset", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.ExtraKeys[0][1].Offset = 7 }},
		{"binary key", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.ExtraKeys[0][2].Bin[0]++ }},
		{"bytes as a string", func(s *event.BlockStored, _ *event.BlockRemoved) {
			s.Extra.ExtraKeys[0][2] = event.ExtraKey{Str: "\x08"}
		}},
		{"mm hash", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.MMKeys[0][0].Hash = "g" }},
		{"mm start", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.MMKeys[0][0].StartOffset++ }},
		{"mm uuid", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.MMKeys[0][0].UUID = "" }},
		{"no mm uuid", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.MMKeys[0][0].HasUUID = false }},
		{"no mm keys", func(s *event.BlockStored, _ *event.BlockRemoved) { s.Extra.MMKeys = nil }},
		{"removed hashes", func(_ *event.BlockStored, r *event.BlockRemoved) { r.Hashes = append(r.Hashes, 2) }},
		{"removed medium", func(_ *event.BlockStored, r *event.BlockRemoved) { r.HasMedium = false }},
		{"removed locality", func(_ *event.BlockStored, r *event.BlockRemoved) { r.Locality = "there" }},
		{"removed ownership", func(_ *event.BlockStored, r *event.BlockRemoved) { r.Ownership = "" }},
		{"removed group", func(_ *event.BlockStored, r *event.BlockRemoved) { r.GroupIdx++ }},
		{"nothing", nil},
	} {
		s, r := stored(), removed()
		ours, err := encoder.AppendBatch(nil, math.Pi, []event.Event{s, r}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c.do != nil {
			s, r = stored(), removed()
			c.do(s, r)
		}
		altered, err := encoder.AppendBatch(nil, math.Pi, []event.Event{s, r}, 1)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Decode(ours, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		var foreign []any
		if err := msgpack.UnmarshalAsMap(altered, &foreign); err != nil {
			t.Fatal(err)
		}
		fault := foreignFault(t, foreign, b, Map)
		if (fault != "") != (c.do != nil) {
			t.Errorf("%s: %q", c.name, fault)
		}
	}
}
