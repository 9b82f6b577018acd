// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// jsonPiece is how much of a line is put together before it is handed on.
const jsonPiece = 4 << 10

// jsonWriter writes the lines of tap --json piece by piece: put together as a
// whole, the line of a large batch would take several times what the batch
// does. An error of the writer below is kept there and returned by flush.
type jsonWriter struct {
	w *bufio.Writer
	b []byte
}

func (j *jsonWriter) flush() error {
	_, err := j.w.Write(j.b)
	j.b = j.b[:0]
	return err
}

func (j *jsonWriter) raw(s string) {
	j.b = append(j.b, s...)
	if len(j.b) >= jsonPiece {
		j.flush()
	}
}

func (j *jsonWriter) uint(v uint64) {
	j.b = strconv.AppendUint(j.b, v, 10)
	j.raw("")
}

func (j *jsonWriter) int(v int64) {
	j.b = strconv.AppendInt(j.b, v, 10)
	j.raw("")
}

// text writes a string; what is not UTF-8 becomes U+FFFD.
func (j *jsonWriter) text(s string) {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can always be written
	}
	j.b = append(j.b, quoted...)
	j.raw("")
}

// finite writes a number, or null for what JSON has no word for.
func (j *jsonWriter) finite(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		j.raw("null")
		return
	}
	j.b = strconv.AppendFloat(j.b, v, 'g', -1, 64)
	j.raw("")
}

// hash writes a number as it was sent (signed64: negative ones too), or of a
// hash of bytes a string of 0x and hexadecimal.
func (j *jsonWriter) hash(h wire.Hash) {
	if h.Kind == wire.HashBytes {
		j.raw(`"` + h.String() + `"`)
		return
	}
	j.raw(h.String())
}

// list writes n elements, each of them by one call.
func (j *jsonWriter) list(n int, element func(i int)) {
	j.raw("[")
	for i := range n {
		if i > 0 {
			j.raw(",")
		}
		element(i)
	}
	j.raw("]")
}

// optional writes a key and a string, unless it is empty.
func (j *jsonWriter) optional(key, value string) {
	if value != "" {
		j.raw(`,"` + key + `":`)
		j.text(value)
	}
}

func (j *jsonWriter) number(key string, value uint64, set bool) {
	if set {
		j.raw(`,"` + key + `":`)
		j.uint(value)
	}
}

// batch writes one line.
func (j *jsonWriter) batch(item subscribe.Item, b *wire.Batch) error {
	m := item.Message
	j.raw(`{"type":"batch","seq":`)
	j.uint(m.Seq)
	if item.Replayed {
		j.raw(`,"replayed":true`)
	}
	j.raw(`,"topic":`)
	j.text(m.Topic)
	j.raw(`,"ts":`)
	j.finite(b.TS)
	j.raw(`,"rank":`)
	if b.HasRank {
		j.uint(b.Rank)
	} else {
		j.raw("null")
	}
	j.raw(`,"events":`)
	j.list(len(b.Events), func(i int) { j.event(&b.Events[i]) })
	if len(b.Remarks) > 0 {
		j.raw(`,"remarks":`)
		j.list(len(b.Remarks), func(i int) { j.text(b.Remarks[i].String()) })
	}
	j.raw("}\n")
	return j.flush()
}

// event writes an object with the keys of the wire, those that were nil or
// empty left out.
func (j *jsonWriter) event(e *wire.Event) {
	j.raw(`{"type":`)
	j.text(e.Type)
	defer j.raw("}")
	if e.Err != nil {
		j.raw(`,"error":`)
		j.text(e.Err.Error())
		return
	}
	if len(e.Hashes) > 0 {
		j.raw(`,"block_hashes":`)
		j.list(len(e.Hashes), func(i int) { j.hash(e.Hashes[i]) })
	}
	x := e.Extra
	if x == nil {
		x = &wire.Extra{}
	}
	if e.HasParent {
		j.raw(`,"parent_block_hash":`)
		j.hash(e.Parent)
	}
	if len(e.Tokens) > 0 {
		j.raw(`,"token_ids":`)
		texts := x.StringTokens
		j.list(len(e.Tokens), func(i int) {
			if len(texts) > 0 && texts[0].Index == i {
				j.text(texts[0].Value)
				texts = texts[1:]
				return
			}
			j.uint(uint64(e.Tokens[i]))
		})
	}
	j.number("block_size", uint64(e.BlockSize), e.BlockSize != 0)
	j.number("lora_id", e.LoRAID, e.HasLoRAID)
	j.optional("medium", e.Medium)
	j.optional("lora_name", e.LoRAName)
	if x.ExtraKeys != nil {
		j.raw(`,"extra_keys":`)
		j.list(len(x.ExtraKeys), func(i int) { j.extraKeys(x.ExtraKeys[i]) })
	}
	j.number("group_idx", x.GroupIdx, x.HasGroupIdx)
	j.optional("kv_cache_spec_kind", x.SpecKind)
	j.number("kv_cache_spec_sliding_window", x.SlidingWindow, x.HasWindow)
	j.optional("locality", x.Locality)
	j.optional("ownership", x.Ownership)
	j.optional("session_id", x.SessionID)
	if x.MMKeys != nil {
		j.raw(`,"mm_keys":`)
		j.list(len(x.MMKeys), func(i int) { j.mmKeys(x.MMKeys[i]) })
	}
	j.optional("cache_salt", x.CacheSalt)
}

// extraKeys writes the entry of one block: null, or strings, pairs of item and
// offset, and bytes, these as {"$bytes": hexadecimal}.
func (j *jsonWriter) extraKeys(entry []event.ExtraKey) {
	if entry == nil {
		j.raw("null")
		return
	}
	j.list(len(entry), func(i int) {
		switch k := &entry[i]; {
		case k.Item != "":
			j.raw("[")
			j.text(k.Item)
			j.raw(",")
			j.int(k.Offset)
			j.raw("]")
		case k.Bin != nil:
			j.raw(`{"$bytes":"` + hex.EncodeToString(k.Bin) + `"}`)
		default:
			j.text(k.Str)
		}
	})
}

func (j *jsonWriter) mmKeys(entry []event.MMKey) {
	j.list(len(entry), func(i int) {
		k := &entry[i]
		j.raw(`{"type":"mm_key","hash":`)
		j.text(k.Hash)
		j.raw(`,"start_offset":`)
		j.int(k.StartOffset)
		if k.HasUUID {
			j.raw(`,"uuid":`)
			j.text(k.UUID)
		}
		j.raw("}")
	})
}
