// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math"
	"reflect"

	"github.com/shamaton/msgpack/v2"

	"github.com/kvcast/kvcast/bindings/event"
)

// EncodeStruct writes the same bytes as Encoder.AppendBatch, but by way of
// tagged structs and the general library shamaton/msgpack. It is the path of
// events that a host publishes itself, where ease of change counts more than
// speed, and the oracle for the hot encoder. It checks the same types and
// returns the same errors. Safe for concurrent use.
func EncodeStruct(c Config, ts float64, events []event.Event, rank uint64) ([]byte, error) {
	e, err := NewEncoder(c)
	if err != nil {
		return nil, err
	}
	if math.IsNaN(ts) || math.IsInf(ts, 0) {
		return nil, &Error{Op: "encode", Event: -1, Key: "ts", Offset: -1, Err: ErrTimestamp}
	}
	list := make([]any, len(events))
	for i, ev := range events {
		v, key, err := e.structOf(ev)
		if err != nil {
			return nil, e.refusal(i, key, err)
		}
		list[i] = v
	}
	marshal := msgpack.MarshalAsMap
	if c.Encoding != Map {
		marshal = msgpack.MarshalAsArray // of the structs' values; there are no others
	}
	out, err := marshal([]any{ts, list, rank})
	if err != nil {
		return nil, &Error{Op: "encode", Event: -1, Offset: -1, Err: ErrShape, Detail: err.Error()}
	}
	return out, nil
}

// The fields are written in their order, all of them; nil pointers, slices and
// interfaces become nil.
type (
	storedStruct struct {
		Type      string  `msgpack:"type"`
		Hashes    any     `msgpack:"block_hashes"`
		Parent    any     `msgpack:"parent_block_hash"`
		Tokens    any     `msgpack:"token_ids"`
		BlockSize uint32  `msgpack:"block_size"`
		LoRAID    *uint64 `msgpack:"lora_id"`
		Medium    *string `msgpack:"medium"`
		LoRAName  *string `msgpack:"lora_name"`
	}
	storedStructExtra struct {
		Type      string       `msgpack:"type"`
		Hashes    any          `msgpack:"block_hashes"`
		Parent    any          `msgpack:"parent_block_hash"`
		Tokens    any          `msgpack:"token_ids"`
		BlockSize uint32       `msgpack:"block_size"`
		LoRAID    *uint64      `msgpack:"lora_id"`
		Medium    *string      `msgpack:"medium"`
		LoRAName  *string      `msgpack:"lora_name"`
		ExtraKeys [][]any      `msgpack:"extra_keys"`
		GroupIdx  *uint64      `msgpack:"group_idx"`
		SpecKind  *string      `msgpack:"kv_cache_spec_kind"`
		Window    *uint64      `msgpack:"kv_cache_spec_sliding_window"`
		Locality  *string      `msgpack:"locality"`
		Ownership *string      `msgpack:"ownership"`
		SessionID *string      `msgpack:"session_id"`
		MMKeys    [][]mmStruct `msgpack:"mm_keys"`
	}
	removedStruct struct {
		Type      string  `msgpack:"type"`
		Hashes    any     `msgpack:"block_hashes"`
		Medium    *string `msgpack:"medium"`
		GroupIdx  *uint64 `msgpack:"group_idx,omitempty"`
		Locality  string  `msgpack:"locality,omitempty"`
		Ownership string  `msgpack:"ownership,omitempty"`
	}
	clearedStruct struct {
		Type string `msgpack:"type"`
	}
	mmStruct struct {
		Type   string  `msgpack:"type"`
		Hash   string  `msgpack:"hash"`
		Offset int64   `msgpack:"start_offset"`
		UUID   *string `msgpack:"uuid,omitempty"`
	}
)

// The same for the array forms, where a field's place is all that counts.
type (
	storedArray struct {
		Type      string
		Hashes    any
		Parent    any
		Tokens    any
		BlockSize uint32
		LoRAID    *uint64
		Medium    *string
		LoRAName  *string
		ExtraKeys [][]any
		GroupIdx  *uint64
		SpecKind  *string
		Window    *uint64
	}
	storedArrayShort struct {
		Type      string
		Hashes    any
		Parent    any
		Tokens    any
		BlockSize uint32
		LoRAID    *uint64
		Medium    *string
		LoRAName  *string
		ExtraKeys [][]any
	}
	removedArray struct {
		Type     string
		Hashes   any
		Medium   *string
		GroupIdx *uint64
	}
	removedArrayShort struct {
		Type   string
		Hashes any
		Medium *string
	}
)

// arrayOf returns the struct for the array form of what structOf has filled.
func (e *Encoder) arrayOf(b storedStruct, x *event.StoredExtra) any {
	if x == nil {
		x = new(event.StoredExtra)
	}
	short := storedArrayShort{
		b.Type, b.Hashes, b.Parent, b.Tokens, b.BlockSize, b.LoRAID, b.Medium, b.LoRAName, extraKeysValues(x.ExtraKeys),
	}
	if e.encoding == ArrayShort {
		return short
	}
	return storedArray{
		short.Type, short.Hashes, short.Parent, short.Tokens, short.BlockSize, short.LoRAID, short.Medium, short.LoRAName,
		short.ExtraKeys, optional(x.GroupIdx, x.HasGroupIdx), optional(x.SpecKind, x.SpecKind != ""),
		optional(x.SlidingWindow, x.HasWindow),
	}
}

// structOf returns a value that the library writes as the event.
func (e *Encoder) structOf(ev event.Event) (v any, key string, err error) {
	switch s := ev.(type) {
	case *event.BlockStored:
		if s == nil {
			break
		}
		if key, err := e.checkStored(s); err != nil {
			return nil, key, err
		}
		base := storedStruct{
			Type:      "BlockStored",
			Hashes:    e.hashesValue(s.Hashes, s.Digests),
			Tokens:    tokensValue(s),
			BlockSize: s.BlockSize,
			LoRAID:    optional(s.LoRAID, s.HasLoRAID),
			Medium:    optional(s.Medium, s.HasMedium),
			LoRAName:  optional(s.LoRAName, s.LoRAName != ""),
		}
		if s.HasParent {
			base.Parent = e.hashValue(s.ParentHash, &s.ParentDigest)
		}
		if e.encoding != Map {
			return e.arrayOf(base, s.Extra), "", nil
		}
		if s.Extra == nil {
			return base, "", nil
		}
		return storedWithExtra(base, s.Extra), "", nil
	case *event.BlockRemoved:
		if s == nil {
			break
		}
		if key, err := e.checkRemoved(s); err != nil {
			return nil, key, err
		}
		full := removedStruct{
			Type:      "BlockRemoved",
			Hashes:    e.hashesValue(s.Hashes, s.Digests),
			Medium:    optional(s.Medium, s.HasMedium),
			GroupIdx:  optional(s.GroupIdx, s.HasGroupIdx),
			Locality:  s.Locality,
			Ownership: s.Ownership,
		}
		switch e.encoding {
		case Array:
			return removedArray{full.Type, full.Hashes, full.Medium, full.GroupIdx}, "", nil
		case ArrayShort:
			return removedArrayShort{full.Type, full.Hashes, full.Medium}, "", nil
		}
		return full, "", nil
	case *event.AllBlocksCleared:
		if s != nil {
			return clearedStruct{Type: "AllBlocksCleared"}, "", nil
		}
	}
	return nil, "", ErrEventType
}

func optional[T any](v T, set bool) *T {
	if !set {
		return nil
	}
	return &v
}

// storedWithExtra returns a struct with exactly those optional keys that are
// set. The library's own omitempty does not serve here: it sizes the header of
// a map by the number of possible keys, and with 16 of them, of which fewer
// are set, it fails with a size mismatch (v2.4.0).
func storedWithExtra(b storedStruct, x *event.StoredExtra) any {
	full := storedStructExtra{
		Type: b.Type, Hashes: b.Hashes, Parent: b.Parent, Tokens: b.Tokens, BlockSize: b.BlockSize,
		LoRAID: b.LoRAID, Medium: b.Medium, LoRAName: b.LoRAName,
		GroupIdx:  optional(x.GroupIdx, x.HasGroupIdx),
		SpecKind:  optional(x.SpecKind, x.SpecKind != ""),
		Window:    optional(x.SlidingWindow, x.HasWindow),
		Locality:  optional(x.Locality, x.Locality != ""),
		Ownership: optional(x.Ownership, x.Ownership != ""),
		SessionID: optional(x.SessionID, x.SessionID != ""),
	}
	full.ExtraKeys = extraKeysValues(x.ExtraKeys)
	if x.MMKeys != nil {
		full.MMKeys = make([][]mmStruct, len(x.MMKeys))
		for i, entry := range x.MMKeys {
			full.MMKeys[i] = make([]mmStruct, len(entry))
			for j, k := range entry {
				full.MMKeys[i][j] = mmStruct{"mm_key", k.Hash, k.StartOffset, optional(k.UUID, k.HasUUID)}
			}
		}
	}
	src := reflect.ValueOf(full)
	var fields []reflect.StructField
	var values []reflect.Value
	for i := range src.NumField() {
		if i >= storedKeys && src.Field(i).IsNil() {
			continue
		}
		fields = append(fields, src.Type().Field(i))
		values = append(values, src.Field(i))
	}
	// The reflect package keeps one type per set of keys, at most 256.
	dst := reflect.New(reflect.StructOf(fields)).Elem()
	for i, v := range values {
		dst.Field(i).Set(v)
	}
	return dst.Interface()
}

func extraKeysValues(entries [][]event.ExtraKey) [][]any {
	if entries == nil {
		return nil
	}
	list := make([][]any, len(entries))
	for i, entry := range entries {
		list[i] = extraKeysValue(entry)
	}
	return list
}

func extraKeysValue(entry []event.ExtraKey) []any {
	if entry == nil {
		return nil
	}
	list := make([]any, len(entry))
	for i, k := range entry {
		switch {
		case k.Str != "":
			list[i] = k.Str
		case k.Item != "":
			list[i] = []any{k.Item, k.Offset}
		default:
			list[i] = k.Bin
		}
	}
	return list
}

func tokensValue(s *event.BlockStored) any {
	if s.Extra == nil || s.Extra.HexTokens == nil {
		return append([]uint32{}, s.Tokens...) // a nil slice would become nil
	}
	list := make([]any, len(s.Tokens))
	for i, t := range s.Tokens {
		if hex := s.Extra.HexTokens[i]; hex != "" {
			list[i] = hex
		} else {
			list[i] = t
		}
	}
	return list
}

func (e *Encoder) hashesValue(hashes []uint64, digests []event.Digest) any {
	if e.bytes {
		return append([]event.Digest{}, digests...)
	}
	list := make([]any, len(hashes))
	for i, h := range hashes {
		list[i] = e.hashValue(h, nil)
	}
	return list
}

func (e *Encoder) hashValue(h uint64, d *event.Digest) any {
	switch negative := h>>e.signShift != 0; {
	case e.bytes:
		return *d
	case !e.minimal:
		return fullHash{bits: h, negative: negative}
	case negative:
		return int64(h)
	default:
		return h
	}
}
