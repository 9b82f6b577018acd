// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// All decoders' results are compared as JSON values: objects of an event's
// fields, integers as they are written in decimal, byte strings as {"$bytes": hex}.

// decodedBatch is what a decoder makes of a payload.
type decodedBatch struct {
	TS     json.Number      `json:"ts"`
	Rank   any              `json:"rank"`
	Events []map[string]any `json:"events"`
	Error  string           `json:"error"`
}

// want compares what a decoder has made with what was sent.
func (b decodedBatch) want(t *testing.T, who string, ts float64, rank any, events []map[string]any) {
	t.Helper()
	if b.Error != "" {
		t.Errorf("%s: %s", who, b.Error)
		return
	}
	if got, err := b.TS.Float64(); err != nil || got != ts {
		t.Errorf("%s: time %s, want %v", who, b.TS, ts)
	}
	if !reflect.DeepEqual(b.Rank, rank) {
		t.Errorf("%s: rank %v, want %v", who, b.Rank, rank)
	}
	if len(b.Events) != len(events) {
		t.Errorf("%s: %d events, want %d", who, len(b.Events), len(events))
		return
	}
	for i := range events {
		if !reflect.DeepEqual(b.Events[i], events[i]) {
			t.Errorf("%s: event %d: got %.600v\nwant %.600v", who, i, b.Events[i], events[i])
		}
	}
}

// unmark turns the marks of the vector file, {"$int": decimal}, into numbers.
func unmark(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v["$int"].(string); ok {
			return json.Number(text)
		}
		out := map[string]any{}
		for key, value := range v {
			out[key] = unmark(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = unmark(v[i])
		}
		return out
	}
	return v
}

// slots are the keys that an array has, in order, behind the tag.
var slots = map[wire.Encoding]map[string][]string{
	wire.Array: {
		"BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
			"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"},
		"BlockRemoved":     {"block_hashes", "medium", "group_idx"},
		"AllBlocksCleared": {},
	},
	wire.ArrayShort: {
		"BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
			"extra_keys"},
		"BlockRemoved":     {"block_hashes", "medium"},
		"AllBlocksCleared": {},
	},
}

// inArray has the fields of a map's event in the way of an array: all of them,
// nil when unset.
func inArray(e map[string]any, encoding wire.Encoding) map[string]any {
	if encoding == wire.Map {
		return e
	}
	out := map[string]any{"type": e["type"]}
	for _, key := range slots[encoding][e["type"].(string)] {
		out[key] = e[key]
	}
	return out
}

// fields has what a decoder must find of an event.
func fields(ev event.Event, form event.Form, encoding wire.Encoding) map[string]any {
	number := func(v uint64) json.Number { return json.Number(strconv.FormatUint(v, 10)) }
	text := func(s string, has bool) any {
		if !has {
			return nil
		}
		return s
	}
	hash := func(bits uint64) any {
		if form == event.Signed64 {
			return json.Number(strconv.FormatInt(int64(bits), 10))
		}
		return number(bits)
	}
	hashes := func(bits []uint64, digests []event.Digest) []any {
		out := []any{}
		for _, b := range bits {
			out = append(out, hash(b))
		}
		for _, d := range digests {
			out = append(out, map[string]any{"$bytes": hex.EncodeToString(d[:])})
		}
		return out
	}
	e := map[string]any{}
	set := func(key, value string) {
		if value != "" {
			e[key] = value
		}
	}
	switch ev := ev.(type) {
	case *event.AllBlocksCleared:
		e["type"] = "AllBlocksCleared"
	case *event.BlockRemoved:
		e["type"] = "BlockRemoved"
		e["block_hashes"] = hashes(ev.Hashes, ev.Digests)
		e["medium"] = text(ev.Medium, ev.HasMedium)
		if ev.HasGroupIdx {
			e["group_idx"] = number(ev.GroupIdx)
		}
		set("locality", ev.Locality)
		set("ownership", ev.Ownership)
	case *event.BlockStored:
		e["type"] = "BlockStored"
		e["block_hashes"] = hashes(ev.Hashes, ev.Digests)
		e["parent_block_hash"] = nil
		switch {
		case ev.HasParent && form == event.Bytes:
			e["parent_block_hash"] = map[string]any{"$bytes": hex.EncodeToString(ev.ParentDigest[:])}
		case ev.HasParent:
			e["parent_block_hash"] = hash(ev.ParentHash)
		}
		tokens := []any{}
		for i, token := range ev.Tokens {
			if ev.Extra != nil && ev.Extra.HexTokens != nil && ev.Extra.HexTokens[i] != "" {
				tokens = append(tokens, ev.Extra.HexTokens[i])
				continue
			}
			tokens = append(tokens, number(uint64(token)))
		}
		e["token_ids"] = tokens
		e["block_size"] = number(uint64(ev.BlockSize))
		e["lora_id"] = nil
		if ev.HasLoRAID {
			e["lora_id"] = number(ev.LoRAID)
		}
		e["medium"] = text(ev.Medium, ev.HasMedium)
		e["lora_name"] = text(ev.LoRAName, ev.LoRAName != "")
		if ev.Extra != nil {
			extraFields(e, ev.Extra, number, set)
		}
	default:
		panic(fmt.Sprintf("%T", ev))
	}
	return inArray(e, encoding)
}

func extraFields(e map[string]any, x *event.StoredExtra, number func(uint64) json.Number, set func(key, value string)) {
	signed := func(v int64) json.Number { return json.Number(strconv.FormatInt(v, 10)) }
	if x.ExtraKeys != nil {
		blocks := []any{}
		for _, keys := range x.ExtraKeys {
			if keys == nil {
				blocks = append(blocks, nil)
				continue
			}
			block := []any{}
			for _, k := range keys {
				switch {
				case k.Item != "":
					block = append(block, []any{k.Item, signed(k.Offset)})
				case k.Bin != nil:
					block = append(block, map[string]any{"$bytes": hex.EncodeToString(k.Bin)})
				default:
					block = append(block, k.Str)
				}
			}
			blocks = append(blocks, block)
		}
		e["extra_keys"] = blocks
	}
	if x.HasGroupIdx {
		e["group_idx"] = number(x.GroupIdx)
	}
	set("kv_cache_spec_kind", x.SpecKind)
	if x.HasWindow {
		e["kv_cache_spec_sliding_window"] = number(x.SlidingWindow)
	}
	set("locality", x.Locality)
	set("ownership", x.Ownership)
	set("session_id", x.SessionID)
	if x.MMKeys != nil {
		blocks := []any{}
		for _, keys := range x.MMKeys {
			block := []any{}
			for _, k := range keys {
				key := map[string]any{"type": "mm_key", "hash": k.Hash, "start_offset": signed(k.StartOffset)}
				if k.HasUUID {
					key["uuid"] = k.UUID
				}
				block = append(block, key)
			}
			blocks = append(blocks, block)
		}
		e["mm_keys"] = blocks
	}
}
