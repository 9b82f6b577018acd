// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// raw is a msgpack value with the byte that it begins with: some readers take the
// one form of a number and not the other.
type raw struct {
	code   byte
	kind   string // nil, int, float, str, bin, list, map
	bits   uint64 // of an int, in two's complement if negative
	neg    bool
	float  float64
	text   string // of a str or bin
	list   []raw
	fields map[string]raw
}

// readRaw reads one value with a decoder that is not ours.
func readRaw(payload []byte) (raw, error) {
	in := bytes.NewReader(payload)
	v, err := rawValue(msgpack.NewDecoder(in))
	if err == nil && in.Len() > 0 {
		err = fmt.Errorf("%d bytes are left over", in.Len())
	}
	return v, err
}

func rawValue(d *msgpack.Decoder) (v raw, err error) {
	if v.code, err = d.PeekCode(); err != nil {
		return v, err
	}
	c := v.code
	switch {
	case c == msgpcode.Nil:
		v.kind = "nil"
		err = d.DecodeNil()
	case msgpcode.IsFixedNum(c), c >= msgpcode.Uint8 && c <= msgpcode.Int64:
		v.kind = "int"
		if c >= msgpcode.NegFixedNumLow || c >= msgpcode.Int8 && c <= msgpcode.Int64 {
			var n int64
			n, err = d.DecodeInt64()
			v.bits, v.neg = uint64(n), n < 0
		} else {
			v.bits, err = d.DecodeUint64()
		}
	case c == msgpcode.Double:
		v.kind = "float"
		v.float, err = d.DecodeFloat64()
	case msgpcode.IsString(c):
		v.kind = "str"
		v.text, err = d.DecodeString()
	case msgpcode.IsBin(c):
		v.kind = "bin"
		var b []byte
		b, err = d.DecodeBytes()
		v.text = string(b)
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		v.kind = "list"
		var n int
		n, err = d.DecodeArrayLen()
		for ; n > 0 && err == nil; n-- {
			var e raw
			e, err = rawValue(d)
			v.list = append(v.list, e)
		}
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		v.kind, v.fields = "map", map[string]raw{}
		var n int
		n, err = d.DecodeMapLen()
		for ; n > 0 && err == nil; n-- {
			var key string
			if key, err = d.DecodeString(); err == nil {
				v.fields[key], err = rawValue(d)
			}
		}
	default:
		err = fmt.Errorf("a value that begins with %02x", c)
	}
	return v, err
}

// nine: the hash takes nine bytes.
func nine(h raw) bool { return h.code == msgpcode.Uint64 || h.code == msgpcode.Int64 }

// anyInteger, signed and unsigned are what readers declare hashes as.
func anyInteger(h raw) bool { return h.kind == "int" }
func signed(h raw) bool     { return h.kind == "int" && (h.neg || h.bits <= math.MaxInt64) }
func unsigned(h raw) bool   { return h.kind == "int" && !h.neg }

// eventSlots are where arrays have what maps have under these keys.
var eventSlots = map[string][]string{
	"BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys"},
	"BlockRemoved":     {"block_hashes", "medium"},
	"AllBlocksCleared": {},
}

// reader is a consumer that reads a stream. What it does not take it loses, with
// the whole batch.
type reader struct {
	consumer
	blocks map[uint64]bool
	lost   []error
	// clears are the batches of one clear that it has lost, strings and named the
	// tokens that were strings and the stores with a LoRA name.
	clears, strings, named, stores int
}

// take reads the payload of a batch.
func (r *reader) take(payload []byte) {
	before := map[uint64]bool{}
	for h := range r.blocks {
		before[h] = true
	}
	if err := r.batch(payload); err != nil {
		r.blocks = before
		if errors.Is(err, errNoClears) {
			r.clears++
		} else {
			r.lost = append(r.lost, err)
		}
	}
}

var errNoClears = errors.New("it knows no clears")

func (r *reader) batch(payload []byte) error {
	b, err := readRaw(payload)
	if err != nil {
		return err
	}
	switch {
	case b.kind != "list" || len(b.list) < r.envelope[0] || len(b.list) > r.envelope[1]:
		return fmt.Errorf("an envelope of %d, %s", len(b.list), b.kind)
	case b.list[0].kind != "float":
		return fmt.Errorf("the time is a %s (%02x)", b.list[0].kind, b.list[0].code)
	case b.list[1].kind != "list":
		return errors.New("no list of events")
	case b.list[2].kind != "int" || b.list[2].bits != matrixRank:
		return fmt.Errorf("the rank is %+v", b.list[2])
	}
	for _, e := range b.list[1].list {
		if err := r.event(e, len(b.list[1].list)); err != nil {
			return err
		}
	}
	return nil
}

// event reads one event of a batch of so many.
func (r *reader) event(e raw, events int) error {
	fields := e.fields
	switch {
	case e.kind == "map" && r.maps:
	case e.kind == "list" && r.arrays[0] > 0 && len(e.list) > 0:
		names := eventSlots[e.list[0].text]
		least, most := 1, 1
		switch e.list[0].text {
		case "BlockStored":
			least, most = r.arrays[0], r.most[0]
		case "BlockRemoved":
			least, most = r.arrays[1], r.most[1]
		}
		if len(e.list) < least || most > 0 && len(e.list) > most {
			return fmt.Errorf("a %s of %d", e.list[0].text, len(e.list))
		}
		fields = map[string]raw{"type": e.list[0]}
		for i, name := range names {
			if 1+i < len(e.list) {
				fields[name] = e.list[1+i]
			}
		}
	default:
		return fmt.Errorf("an event that is a %s of %d", e.kind, len(e.list))
	}
	switch fields["type"].text {
	case "AllBlocksCleared":
		if events != 1 {
			return errors.New("a clear in company")
		}
		if r.noClears {
			return errNoClears
		}
		clear(r.blocks)
		return nil
	case "BlockRemoved":
		hashes := fields["block_hashes"]
		if hashes.kind != "list" || fields["medium"].text != "GPU" {
			return fmt.Errorf("a removal of %s in %q", hashes.kind, fields["medium"].text)
		}
		for _, h := range hashes.list {
			if !r.hash(h) {
				return fmt.Errorf("a hash %+v", h)
			}
			delete(r.blocks, h.bits)
		}
		return nil
	case "BlockStored":
		return r.stored(fields)
	}
	return fmt.Errorf("a %q", fields["type"].text)
}

func (r *reader) stored(f map[string]raw) error {
	r.stores++
	hashes, parent, tokens := f["block_hashes"], f["parent_block_hash"], f["token_ids"]
	switch {
	case hashes.kind != "list" || len(hashes.list) == 0 || len(hashes.list) > 65536:
		return fmt.Errorf("%d hashes, %s", len(hashes.list), hashes.kind)
	case r.oneBlock && len(hashes.list) > 1:
		return fmt.Errorf("%d blocks in one event", len(hashes.list))
	case f["block_size"].kind != "int" || f["block_size"].bits != matrixBlock:
		return fmt.Errorf("a block size of %+v", f["block_size"])
	case tokens.kind != "list" || len(tokens.list) != matrixBlock*len(hashes.list):
		return fmt.Errorf("%d tokens, %s", len(tokens.list), tokens.kind)
	case f["medium"].text != "GPU":
		return fmt.Errorf("the medium is %+v", f["medium"])
	}
	at := map[uint64]bool{}
	switch parent.kind {
	case "nil":
	case "int":
		if !r.hash(parent) || parent.bits == 0 || r.parents != nil && !r.parents(parent) {
			return fmt.Errorf("a parent %+v", parent)
		}
		if !r.blocks[parent.bits] && !r.noClears {
			return fmt.Errorf("a parent that is not there, %x", parent.bits)
		}
		at[parent.bits] = true
	default:
		return fmt.Errorf("a parent that is a %s", parent.kind)
	}
	for _, h := range hashes.list {
		if !r.hash(h) {
			return fmt.Errorf("a hash %+v", h)
		}
		if at[h.bits] {
			return fmt.Errorf("hash %x twice", h.bits)
		}
		at[h.bits] = true
	}
	for _, token := range tokens.list {
		switch {
		case token.kind == "int" && !token.neg && token.bits <= math.MaxUint32:
		case token.kind == "str" && len(token.text) == 64 && r.hexTokens:
			r.strings++
		default:
			return fmt.Errorf("a token %+v", token)
		}
	}
	id, name := f["lora_id"], f["lora_name"]
	switch {
	case id.kind == "int" && id.bits == matrixLoRA && name.kind == "str" && name.text == matrixAdapter:
		r.named++
	case id.kind == "int" && id.bits == matrixLoRA && name.kind == "nil":
	case id.kind == "nil" && name.kind == "nil":
	default:
		return fmt.Errorf("LoRA %+v, %+v", id, name)
	}
	for _, h := range hashes.list {
		r.blocks[h.bits] = true
	}
	return nil
}
