// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/wire"
)

// borders are the values at which msgpack changes the width of an integer, up to
// a largest one.
func borders(largest uint64) (out []uint64) {
	for _, v := range []uint64{0, 1, 127, 128, 255, 256, math.MaxUint16, 1 << 16, math.MaxInt32, 1 << 31, math.MaxUint32,
		1 << 32, 1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64} {
		if v <= largest {
			out = append(out, v)
		}
	}
	return out
}

// hashBorders are hashes at those values, in the range of a form.
func hashBorders(form event.Form) []uint64 {
	out := borders(math.MaxInt64)
	switch form {
	case event.Signed64:
		for _, v := range []int64{-1, -32, -33, -128, -129, math.MinInt16, math.MinInt16 - 1, math.MinInt32,
			math.MinInt32 - 1, math.MinInt64} {
			out = append(out, uint64(v))
		}
	case event.Unsigned64:
		out = append(out, 1<<63, math.MaxUint64)
	}
	return out
}

// texts have the lengths at which the width of a length changes; some are not
// ASCII.
func texts() []string {
	return []string{"a", "é", strings.Repeat("x", 31), strings.Repeat("x", 32), strings.Repeat("ü", 127) + "x",
		strings.Repeat("x", 256), strings.Repeat("y", math.MaxUint16), strings.Repeat("語", 21846)}
}

// maker makes events of one hash form and block size.
type maker struct {
	form event.Form
	size int
	next uint64
}

// stored is a store of n blocks, the hashes being new ones.
func (m *maker) stored(n int) *event.BlockStored {
	e := &event.BlockStored{BlockSize: uint32(m.size), Medium: "GPU", HasMedium: true}
	for range n {
		m.next++
		m.add(e, m.next<<33)
	}
	for i := range n * m.size {
		e.Tokens = append(e.Tokens, uint32(i))
	}
	return e
}

func (m *maker) add(e *event.BlockStored, bits uint64) {
	if m.form == event.Bytes {
		e.Digests = append(e.Digests, m.digest(bits))
	} else {
		e.Hashes = append(e.Hashes, bits)
	}
}

func (m *maker) digest(bits uint64) (d event.Digest) {
	for i := range d {
		d[i] = byte(bits >> (i % 8 * 8))
	}
	return d
}

func (m *maker) removed(bits ...uint64) *event.BlockRemoved {
	e := &event.BlockRemoved{Medium: "GPU", HasMedium: true, Hashes: bits}
	if m.form == event.Bytes {
		e.Hashes = nil
		for _, b := range bits {
			e.Digests = append(e.Digests, m.digest(b))
		}
	}
	return e
}

// batches have every optional field empty and set, and all values at the borders,
// for a block size of 2.
func (m *maker) batches(encoding wire.Encoding, minimal bool) (all [][]event.Event) {
	var batch []event.Event
	cut := func() { all, batch = append(all, batch), nil }
	stored := func(change func(e *event.BlockStored)) {
		e := m.stored(1)
		change(e)
		batch = append(batch, e)
	}
	// Hashes, parents.
	for _, bits := range hashBorders(m.form) {
		e := m.stored(0)
		m.add(e, bits)
		e.Tokens = []uint32{7, 8}
		batch = append(batch, e, m.removed(bits))
		stored(func(e *event.BlockStored) {
			e.HasParent, e.ParentHash = true, bits
			if m.form == event.Bytes {
				e.ParentHash, e.ParentDigest = 0, m.digest(bits)
			}
		})
	}
	cut()
	// Tokens, and the counts of blocks and tokens.
	for _, token := range borders(math.MaxUint32) { // all that a token may be
		stored(func(e *event.BlockStored) { e.Tokens[0] = uint32(token) })
	}
	for _, n := range []int{7, 8, 15, 16, 17} {
		batch = append(batch, m.stored(n))
	}
	cut()
	// How many there are is written alike in all forms of hashes.
	for _, n := range []int{1<<15 - 1, 1 << 15, 1<<16 - 1, 1 << 16} {
		if m.form == event.Signed64 && !minimal && !testing.Short() {
			batch = append(batch, m.stored(n))
			cut()
		}
	}
	// Names and numbers.
	for _, v := range borders(math.MaxInt64) {
		stored(func(e *event.BlockStored) { e.HasLoRAID, e.LoRAID = true, v })
	}
	for _, s := range texts() {
		stored(func(e *event.BlockStored) { e.HasLoRAID, e.LoRAID, e.LoRAName = true, 1, s })
		stored(func(e *event.BlockStored) { e.LoRAName = s })
	}
	for _, medium := range []string{"CPU", "STORAGE", "CPU_TIER1"} {
		stored(func(e *event.BlockStored) { e.Medium = medium })
		r := m.removed(5)
		r.Medium = medium
		batch = append(batch, r)
	}
	cut()
	for _, keys := range [][]event.ExtraKey{nil, {}, {{Str: "adapter"}}, {{Item: "ab", Offset: -129}, {Item: "cd", Offset: 0}},
		{{Item: "ab", Offset: math.MinInt64}, {Bin: []byte{0, 255}}, {Str: "ä"}}} {
		stored(func(e *event.BlockStored) { e.Extra = &event.StoredExtra{ExtraKeys: [][]event.ExtraKey{keys}} })
	}
	cut()
	if encoding != wire.ArrayShort {
		for _, v := range borders(math.MaxInt64) {
			stored(func(e *event.BlockStored) {
				e.Extra = &event.StoredExtra{HasGroupIdx: true, GroupIdx: v, SpecKind: "sliding_window", HasWindow: true,
					SlidingWindow: max(v, 1)}
			})
			r := m.removed(9)
			r.HasGroupIdx, r.GroupIdx = true, v
			batch = append(batch, r)
		}
		stored(func(e *event.BlockStored) {
			e.Extra = &event.StoredExtra{HasGroupIdx: true, SpecKind: "full_attention"}
		})
		cut()
	}
	if encoding == wire.Map {
		for i := range 8 {
			x := event.StoredExtra{}
			r := m.removed(11)
			if i&1 != 0 {
				x.Locality, r.Locality = "LOCAL", "REMOTE"
			}
			if i&2 != 0 {
				x.Ownership, r.Ownership = "owner", strings.Repeat("o", 40)
			}
			if i&4 != 0 {
				x.SessionID = "session"
			}
			stored(func(e *event.BlockStored) { e.Extra = &x })
			batch = append(batch, r)
		}
		cut()
		for _, keys := range [][]event.MMKey{{}, {{Hash: "00ff", StartOffset: 0}},
			{{Hash: "ab", StartOffset: 1 << 32, UUID: "u", HasUUID: true}, {Hash: "cd", StartOffset: 65536, HasUUID: true}}} {
			stored(func(e *event.BlockStored) {
				e.Extra = &event.StoredExtra{MMKeys: [][]event.MMKey{keys}, HexTokens: []string{strings.Repeat("0f", 32), ""}}
			})
		}
		cut()
	}
	return all
}

// heard is a message as decode.py has received and decoded it.
type heard struct {
	Topic   string       `json:"topic"`
	Seq     uint64       `json:"seq"`
	Width   int          `json:"width"`
	Hex     string       `json:"hex"`
	Msgspec decodedBatch `json:"msgspec"`
	Msgpack decodedBatch `json:"msgpack"`
}

// The stream of a publisher in each of its forms, taken off the network by
// pyzmq: three foreign decoders find in it what was published.
func TestLiveStream(t *testing.T) {
	h := startHelper(t, "decode.py")
	for _, encoding := range []wire.Encoding{wire.Map, wire.Array, wire.ArrayShort} {
		for _, form := range []event.Form{event.Signed64, event.Unsigned64, event.Portable63, event.Bytes} {
			for _, minimal := range []bool{false, true} {
				if minimal && form == event.Bytes {
					continue // it has no width
				}
				name := fmt.Sprintf("%s, form %d, minimal %t", encoding, form, minimal)
				ok := t.Run(name, func(t *testing.T) {
					h.t = t
					m := &maker{form: form, size: 2}
					liveStream(t, h, wire.Config{Encoding: encoding, Form: form, MinimalHashes: minimal}, m.batches(encoding, minimal))
				})
				if h.t = t; !ok {
					return // what the helper says next belongs to this one
				}
			}
		}
	}
	// A life has one block size.
	for _, size := range []int{1, 127, 128, 255, 256, math.MaxUint16, 1 << 16} {
		m := &maker{form: event.Signed64, size: size}
		liveStream(t, h, wire.Config{}, [][]event.Event{{m.stored(1)}})
	}
}

func liveStream(t *testing.T, h *helper, c wire.Config, all [][]event.Event) {
	t.Helper()
	const rank = 300
	folder, err := os.MkdirTemp("", "kv") // sockets' paths must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	o := publisher.DefaultOptions()
	o.Endpoint, o.WaitSubscribers, o.Topic = "ipc://"+folder+"/s", 1, "kv@{rank}@m"
	o.Encoding, o.Hash, o.MinimalHashes = c.Encoding, c.Form, c.MinimalHashes
	o.Rank, o.Ranks, o.TailMark, o.ClearOnClose = rank, rank+1, false, false
	p, err := publisher.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h.ask(map[string]any{"tap": fmt.Sprintf("%s_dp%d", o.Endpoint, rank), "count": 1 + len(all),
		"form": c.Encoding.String()}, &struct{}{})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	begin := float64(time.Now().Add(-deadline).Unix())
	for i, batch := range all {
		if err := p.Publish(batch...); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	decode := goBatch[int64]
	switch c.Form {
	case event.Unsigned64, event.Portable63:
		decode = goBatch[uint64]
	case event.Bytes:
		decode = goBatch[[]byte]
	}
	for seq, batch := range append([][]event.Event{{&event.AllBlocksCleared{}}}, all...) {
		var got heard
		h.hear(&got)
		if got.Topic != fmt.Sprintf("kv@%d@m", rank) || got.Seq != uint64(seq) || got.Width != 8 {
			t.Fatalf("message %d: topic %q, number %d of %d bytes", seq, got.Topic, got.Seq, got.Width)
		}
		payload, err := hex.DecodeString(got.Hex)
		if err != nil {
			t.Fatal(err)
		}
		ts, err := got.Msgspec.TS.Float64()
		if err != nil || ts < begin || ts > begin+10*deadline.Seconds() {
			t.Fatalf("message %d: time %s (%v) %s", seq, got.Msgspec.TS, err, got.Msgspec.Error)
		}
		var want []map[string]any
		for _, e := range batch {
			want = append(want, fields(e, c.Form, c.Encoding))
		}
		who := fmt.Sprintf("message %d: ", seq)
		got.Msgspec.want(t, who+"msgspec", ts, json.Number(fmt.Sprint(rank)), want)
		got.Msgpack.want(t, who+"msgpack-python", ts, json.Number(fmt.Sprint(rank)), want)
		decode(payload, c.Encoding).want(t, who+"vmihailenco", ts, json.Number(fmt.Sprint(rank)), want)
	}
}
