// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcast/kvcast/publisher/wire"
)

// What a reader in Go would declare, from the field lists of the wire contract:
// H is the type of a hash, T that of a token.
type (
	storedFields[H, T any] struct {
		Type          string    `msgpack:"type"`
		BlockHashes   []H       `msgpack:"block_hashes"`
		Parent        *H        `msgpack:"parent_block_hash"`
		TokenIDs      []T       `msgpack:"token_ids"`
		BlockSize     uint32    `msgpack:"block_size"`
		LoRAID        *uint64   `msgpack:"lora_id"`
		Medium        *string   `msgpack:"medium"`
		LoRAName      *string   `msgpack:"lora_name"`
		ExtraKeys     [][]any   `msgpack:"extra_keys"`
		GroupIdx      *uint64   `msgpack:"group_idx"`
		SpecKind      *string   `msgpack:"kv_cache_spec_kind"`
		SlidingWindow *uint64   `msgpack:"kv_cache_spec_sliding_window"`
		Locality      *string   `msgpack:"locality"`
		Ownership     *string   `msgpack:"ownership"`
		SessionID     *string   `msgpack:"session_id"`
		MMKeys        [][]mmKey `msgpack:"mm_keys"`
		CacheSalt     *string   `msgpack:"cache_salt"` // SGLang's
	}
	mmKey struct {
		Type        string  `msgpack:"type"`
		Hash        string  `msgpack:"hash"`
		StartOffset int64   `msgpack:"start_offset"`
		UUID        *string `msgpack:"uuid"`
	}
	removedFields[H any] struct {
		Type        string  `msgpack:"type"`
		BlockHashes []H     `msgpack:"block_hashes"`
		Medium      *string `msgpack:"medium"`
		GroupIdx    *uint64 `msgpack:"group_idx"`
		Locality    *string `msgpack:"locality"`
		Ownership   *string `msgpack:"ownership"`
	}
	clearedFields struct {
		Type string `msgpack:"type"`
	}
)

// goBatch decodes a payload with vmihailenco/msgpack: H int64, uint64 or []byte.
func goBatch[H any](payload []byte, encoding wire.Encoding) (b decodedBatch) {
	fail := func(err error) decodedBatch { return decodedBatch{Error: err.Error()} }
	var envelope []msgpack.RawMessage
	if err := msgpack.Unmarshal(payload, &envelope); err != nil {
		return fail(err)
	}
	var ts float64
	var rank *uint32
	var events []msgpack.RawMessage
	if len(envelope) != 3 {
		return fail(fmt.Errorf("an envelope of %d", len(envelope)))
	}
	for i, v := range []any{&ts, &events, &rank} {
		if len(envelope[i]) == 0 {
			continue // so it gives a nil
		}
		if err := msgpack.Unmarshal(envelope[i], v); err != nil {
			return fail(err)
		}
	}
	b.TS = json.Number(fmt.Sprint(ts))
	if rank != nil {
		b.Rank = json.Number(fmt.Sprint(*rank))
	}
	for _, raw := range events {
		e, err := goEvent[H](raw, encoding)
		if err != nil {
			return fail(err)
		}
		b.Events = append(b.Events, e)
	}
	return b
}

// goEvent decodes one event. An array is made a map of what its slots mean
// first, as a reader's own code would.
func goEvent[H any](raw msgpack.RawMessage, encoding wire.Encoding) (map[string]any, error) {
	var parts map[string]msgpack.RawMessage
	var tag string
	if encoding == wire.Map {
		if err := msgpack.Unmarshal(raw, &parts); err != nil {
			return nil, err
		}
		if err := msgpack.Unmarshal(parts["type"], &tag); err != nil {
			return nil, err
		}
	} else {
		var list []msgpack.RawMessage
		if err := msgpack.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		if err := msgpack.Unmarshal(list[0], &tag); err != nil {
			return nil, err
		}
		names := slots[encoding][tag]
		if len(list) != 1+len(names) {
			return nil, fmt.Errorf("%s has %d elements", tag, len(list))
		}
		parts = map[string]msgpack.RawMessage{"type": list[0]}
		for i, name := range names {
			parts[name] = list[1+i]
		}
		var err error
		if raw, err = msgpack.Marshal(parts); err != nil {
			return nil, err
		}
	}
	var v any
	switch tag {
	case "BlockStored":
		v = new(storedFields[H, uint32])
		// A string where a token should be is msgpack's a0-bf or d9.
		var tokens []msgpack.RawMessage
		if err := msgpack.Unmarshal(parts["token_ids"], &tokens); err != nil {
			return nil, err
		}
		for _, token := range tokens {
			if token[0]&0xe0 == 0xa0 || token[0] == 0xd9 {
				v = new(storedFields[H, any])
			}
		}
	case "BlockRemoved":
		v = new(removedFields[H])
	case "AllBlocksCleared":
		v = new(clearedFields)
	default:
		return nil, fmt.Errorf("a %q", tag)
	}
	d := msgpack.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields(true)
	if err := d.Decode(v); err != nil {
		return nil, err
	}
	e := map[string]any{}
	all := plain(reflect.ValueOf(v).Elem(), true).(map[string]any)
	for key := range parts {
		e[key] = all[key]
	}
	return e, nil
}

// plain makes a JSON value of what was decoded. Unset fields of an event (top)
// stay as nil, those of what is in it are left out.
func plain(v reflect.Value, top bool) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem(), false)
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			value := plain(v.Field(i), false)
			if value != nil || top {
				key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("msgpack"), ",")
				out[key] = value
			}
		}
		return out
	case reflect.Slice:
		if b, ok := v.Interface().([]byte); ok {
			return map[string]any{"$bytes": hex.EncodeToString(b)}
		}
		if v.IsNil() && v.Type() == reflect.TypeFor[[]any]() || v.IsNil() && v.Type() == reflect.TypeFor[[][]any]() {
			return nil
		}
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plain(v.Index(i), false)
		}
		return out
	case reflect.String:
		return v.String()
	}
	return json.Number(fmt.Sprint(v.Interface()))
}
