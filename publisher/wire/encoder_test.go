// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
)

func mustEncoder(t failer, c Config) *Encoder {
	t.Helper()
	e, err := NewEncoder(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Each width of a hash, in both width rules and every form, byte for byte.
func TestEncodeHashWidths(t *testing.T) {
	for _, c := range []struct {
		bits                          uint64
		signed, unsigned, full, fullU string
	}{
		{0, "00", "00", "cf0000000000000000", "cf0000000000000000"},
		{0x7f, "7f", "7f", "cf000000000000007f", "cf000000000000007f"},
		{0x80, "cc80", "cc80", "cf0000000000000080", "cf0000000000000080"},
		{0xff, "ccff", "ccff", "cf00000000000000ff", "cf00000000000000ff"},
		{0x100, "cd0100", "cd0100", "cf0000000000000100", "cf0000000000000100"},
		{0xffff, "cdffff", "cdffff", "cf000000000000ffff", "cf000000000000ffff"},
		{0x10000, "ce00010000", "ce00010000", "cf0000000000010000", "cf0000000000010000"},
		{0xffffffff, "ceffffffff", "ceffffffff", "cf00000000ffffffff", "cf00000000ffffffff"},
		{1 << 32, "cf0000000100000000", "cf0000000100000000", "cf0000000100000000", "cf0000000100000000"},
		{1<<63 - 1, "cf7fffffffffffffff", "cf7fffffffffffffff", "cf7fffffffffffffff", "cf7fffffffffffffff"},
		{1 << 63, "d38000000000000000", "cf8000000000000000", "d38000000000000000", "cf8000000000000000"},
		{^uint64(0), "ff", "cfffffffffffffffff", "d3ffffffffffffffff", "cfffffffffffffffff"},
		{^uint64(31), "e0", "cfffffffffffffffe0", "d3ffffffffffffffe0", "cfffffffffffffffe0"},
		{^uint64(32), "d0df", "cfffffffffffffffdf", "d3ffffffffffffffdf", "cfffffffffffffffdf"},
		{^uint64(127), "d080", "cfffffffffffffff80", "d3ffffffffffffff80", "cfffffffffffffff80"},
		{^uint64(128), "d1ff7f", "cfffffffffffffff7f", "d3ffffffffffffff7f", "cfffffffffffffff7f"},
		{^uint64(1<<15 - 1), "d18000", "cfffffffffffff8000", "d3ffffffffffff8000", "cfffffffffffff8000"},
		{^uint64(1 << 15), "d2ffff7fff", "cfffffffffffff7fff", "d3ffffffffffff7fff", "cfffffffffffff7fff"},
		{^uint64(1<<31 - 1), "d280000000", "cfffffffff80000000", "d3ffffffff80000000", "cfffffffff80000000"},
		{^uint64(1 << 31), "d3ffffffff7fffffff", "cfffffffff7fffffff", "d3ffffffff7fffffff", "cfffffffff7fffffff"},
	} {
		for _, w := range []struct {
			c    Config
			want string
		}{
			{Config{Form: event.Signed64, MinimalHashes: true}, c.signed},
			{Config{Form: event.Unsigned64, MinimalHashes: true}, c.unsigned},
			{Config{Form: event.Portable63, MinimalHashes: true}, c.unsigned},
			{Config{Form: event.Signed64}, c.full},
			{Config{Form: event.Unsigned64}, c.fullU},
			{Config{Form: event.Portable63}, c.fullU},
		} {
			// In the list and as a parent, which take different paths.
			ev := &event.BlockStored{Hashes: []uint64{c.bits}, ParentHash: c.bits, HasParent: true, BlockSize: 1, Tokens: []uint32{0}}
			got, err := mustEncoder(t, w.c).AppendBatch(nil, 0, []event.Event{ev}, 0)
			if err != nil {
				t.Fatal(err)
			}
			want := hex.EncodeToString([]byte(kHashes)) + "91" + w.want + hex.EncodeToString([]byte(kParent)) + w.want +
				hex.EncodeToString([]byte(kTokens))
			if !strings.Contains(hex.EncodeToString(got), want) {
				t.Errorf("%#x %+v: %x lacks %s", c.bits, w.c, got, want)
			}
			for encoding, head := range map[Encoding]string{Array: "9c", ArrayShort: "99"} {
				w.c.Encoding = encoding
				got, err := mustEncoder(t, w.c).AppendBatch(nil, 0, []event.Event{ev}, 0)
				if err != nil {
					t.Fatal(err)
				}
				want := head + hex.EncodeToString([]byte(vStored)) + "91" + w.want + w.want + "9100" + "01" + "c0"
				if !strings.Contains(hex.EncodeToString(got), want) {
					t.Errorf("%#x %+v: %x lacks %s", c.bits, w.c, got, want)
				}
			}
		}
	}
}

// Each width of a token.
func TestEncodeTokenWidths(t *testing.T) {
	tokens := []uint32{0, 1, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff}
	const want = "9d" + "00" + "01" + "7f" + "cc80" + "ccff" + "cd0100" + "cd7fff" + "cd8000" + "cdffff" +
		"ce00010000" + "ce7fffffff" + "ce80000000" + "ceffffffff"
	ev := &event.BlockStored{Hashes: []uint64{1}, Tokens: tokens, BlockSize: 13}
	got, err := mustEncoder(t, Config{}).AppendBatch(nil, 0, []event.Event{ev}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(hex.EncodeToString(got), hex.EncodeToString([]byte(kTokens))+want+hex.EncodeToString([]byte(kBlockSize))+"0d") {
		t.Errorf("%x lacks %s", got, want)
	}
	for bits := range 33 { // every bit length, against the plain form
		for _, tok := range []uint32{uint32(1<<bits - 1), uint32(uint64(1) << bits)} {
			b := make([]byte, 1+wordSlack)
			n := putTokens(b, 0, []uint32{tok})
			plain := appendUint(nil, uint64(tok))
			if !bytes.Equal(b[:n], plain) {
				t.Errorf("token %d: %x, want %x", tok, b[:n], plain)
			}
		}
	}
}

// Header widths of every list and string.
func TestEncodeHeaders(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536, 70000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			s := &event.BlockStored{
				Hashes: make([]uint64, n), Tokens: make([]uint32, n), BlockSize: 1,
				Medium: strings.Repeat("m", n), HasMedium: true, LoRAName: strings.Repeat("n", n),
			}
			r := &event.BlockRemoved{Hashes: make([]uint64, n), Medium: s.Medium, HasMedium: true}
			for i := range s.Hashes {
				s.Hashes[i], s.Tokens[i] = uint64(i), uint32(i)
			}
			events := []event.Event{s, r}
			for len(events) < min(n, 300) {
				events = append(events, &event.AllBlocksCleared{})
			}
			for _, encoding := range encodings {
				c := Config{Encoding: encoding, MinimalHashes: true}
				got, err := mustEncoder(t, c).AppendBatch(nil, 1, events, 1)
				if err != nil {
					t.Fatal(err)
				}
				want, err := EncodeStruct(c, 1, events, 1)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%v: encoders differ", encoding)
				}
				b, err := Decode(got, Limits{MaxString: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				if len(b.Events) != len(events) || len(b.Events[0].Hashes) != n || len(b.Events[0].Tokens) != n ||
					len(b.Events[0].Medium) != n || len(b.Events[0].LoRAName) != n {
					t.Errorf("%v: counts are lost", encoding)
				}
			}
		})
	}
}

// All 16 keys at once need the wider map header.
func TestEncodeSixteenKeys(t *testing.T) {
	s := &event.BlockStored{
		Hashes: []uint64{1}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU", HasMedium: true,
		Extra: &event.StoredExtra{
			ExtraKeys: [][]event.ExtraKey{nil}, HasGroupIdx: true, SpecKind: "sliding_window", SlidingWindow: 8,
			HasWindow: true, Locality: "LOCAL", Ownership: "o", SessionID: "s", MMKeys: [][]event.MMKey{{}},
		},
	}
	got, err := mustEncoder(t, Config{}).AppendBatch(nil, 0, []event.Event{s}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(got, []byte("\x91\xde\x00\x10"+kType)) {
		t.Errorf("no map header of 16: %x", got)
	}
	want, err := EncodeStruct(Config{}, 0, []event.Event{s}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("encoders differ\n%x\n%x", got, want)
	}
}

func TestEncodeRefuses(t *testing.T) {
	good := &event.BlockRemoved{Hashes: []uint64{1}}
	withExtra := func(x event.StoredExtra) *event.BlockStored {
		return &event.BlockStored{Hashes: []uint64{1}, Tokens: []uint32{1}, BlockSize: 1, Extra: &x}
	}
	for _, c := range []struct {
		name   string
		config Config
		ts     float64
		ev     event.Event
		err    error
		key    string
	}{
		{"NaN", Config{}, math.NaN(), good, ErrTimestamp, "ts"},
		{"infinite", Config{}, math.Inf(-1), good, ErrTimestamp, "ts"},
		{"nil event", Config{}, 0, nil, ErrEventType, ""},
		{"nil stored", Config{}, 0, (*event.BlockStored)(nil), ErrEventType, ""},
		{"nil removed", Config{}, 0, (*event.BlockRemoved)(nil), ErrEventType, ""},
		{"nil cleared", Config{}, 0, (*event.AllBlocksCleared)(nil), ErrEventType, ""},
		{"stored digests", Config{}, 0, &event.BlockStored{Digests: make([]event.Digest, 1)}, ErrHashForm, "block_hashes"},
		{"removed digests", Config{}, 0, &event.BlockRemoved{Digests: make([]event.Digest, 1)}, ErrHashForm, "block_hashes"},
		{"stored integers", Config{Form: event.Bytes}, 0, &event.BlockStored{Hashes: []uint64{1}}, ErrHashForm, "block_hashes"},
		{"removed integers", Config{Form: event.Bytes}, 0, good, ErrHashForm, "block_hashes"},
		{"hex tokens", Config{}, 0, withExtra(event.StoredExtra{HexTokens: []string{}}), ErrShape, "token_ids"},
		{"empty extra key", Config{}, 0, withExtra(event.StoredExtra{ExtraKeys: [][]event.ExtraKey{{{}}}}), ErrShape, "extra_keys"},
		{"double extra key", Config{}, 0, withExtra(event.StoredExtra{ExtraKeys: [][]event.ExtraKey{{{Str: "a", Item: "b"}}}}), ErrShape, "extra_keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := []event.Event{&event.AllBlocksCleared{}, c.ev}
			if c.config.Form != event.Bytes {
				events[0] = good
			}
			index := 1
			if c.key == "ts" {
				index = -1
			}
			got, err := mustEncoder(t, c.config).AppendBatch([]byte("before"), c.ts, events, 0)
			if string(got) != "before" {
				t.Errorf("result %q", got)
			}
			_, structErr := EncodeStruct(c.config, c.ts, events, 0)
			for _, err := range []error{err, structErr} {
				wantError(t, err, c.err, -1)
				if e := err.(*Error); e.Event != index || e.Key != c.key {
					t.Errorf("%v: event %d key %q", e, e.Event, e.Key)
				}
			}
		})
	}
	if _, err := NewEncoder(Config{Form: event.Bytes + 1}); !errors.Is(err, ErrConfig) {
		t.Errorf("form: %v", err)
	}
	if _, err := EncodeStruct(Config{Form: event.Bytes + 1}, 0, nil, 0); !errors.Is(err, ErrConfig) {
		t.Errorf("form: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	if tooLarge(0) || tooLarge(math.MaxUint32) || !tooLarge(math.MaxUint32+1) || !tooLarge(1<<40|5) {
		t.Error("the limit is not 2^32-1")
	}
}

// A reused buffer is enough: no allocation, and events are left as they were.
func TestEncodeAllocations(t *testing.T) {
	stored := benchEvents(16, 8)
	rich := &event.BlockStored{
		Hashes: []uint64{1}, Tokens: []uint32{0, 1 << 20}, BlockSize: 2,
		Extra: &event.StoredExtra{
			ExtraKeys: [][]event.ExtraKey{{{Str: "a"}, {Item: "b", Offset: -1000}, {Bin: []byte{1}}}},
			MMKeys:    [][]event.MMKey{{{Hash: "h", UUID: "u", HasUUID: true}}}, SpecKind: "mamba",
			HexTokens: []string{strings.Repeat("f", 64), ""},
		},
	}
	events := append(stored, rich, &event.AllBlocksCleared{},
		&event.BlockRemoved{Hashes: []uint64{1, 2}, HasGroupIdx: true, Locality: "LOCAL"})
	before := slices.Clone(rich.Tokens)
	all := events
	for _, c := range []Config{
		{}, {MinimalHashes: true}, {Form: event.Unsigned64}, {Encoding: Array}, {Encoding: Array, MinimalHashes: true},
		{Encoding: ArrayShort}, {Encoding: ArrayShort, MinimalHashes: true},
	} {
		events := slices.Clone(all)
		for i := range events {
			events[i], _ = fitting(events[i], c.Encoding)
		}
		e := mustEncoder(t, c)
		buf, err := e.AppendBatch(nil, 1, events, 7)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(50, func() {
			if buf, err = e.AppendBatch(buf[:0], 1, events, 7); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%+v: %v allocations per batch", c, n)
		}
	}
	if !slices.Equal(rich.Tokens, before) {
		t.Error("an event was changed")
	}
}

// Whatever room the buffer has, the bytes are the same: the room that an event
// asks for is enough also for its widest values.
func TestEncodeEveryRoom(t *testing.T) {
	widest := func(n int) []event.Event {
		s := &event.BlockStored{
			Hashes: make([]uint64, n), Tokens: make([]uint32, n), BlockSize: math.MaxUint32, HasParent: true, ParentHash: 1,
			HasLoRAID: true, LoRAID: math.MaxUint64, LoRAName: strings.Repeat("n", n), Medium: strings.Repeat("m", n), HasMedium: true,
		}
		for i := range s.Tokens {
			s.Tokens[i] = math.MaxUint32
		}
		r := &event.BlockRemoved{Hashes: s.Hashes, Medium: s.Medium, HasMedium: true, HasGroupIdx: true, Ownership: "o"}
		return []event.Event{s, r}
	}
	digests := make([]event.Digest, 7)
	// In the array forms the optional parts are written by index, too.
	groups := *widest(3)[0].(*event.BlockStored)
	groups.Extra = &event.StoredExtra{
		ExtraKeys: [][]event.ExtraKey{{{Str: strings.Repeat("e", 300)}}}, SpecKind: strings.Repeat("k", 300),
		GroupIdx: math.MaxUint64, HasGroupIdx: true, SlidingWindow: math.MaxUint64, HasWindow: true,
	}
	group := &event.BlockRemoved{
		Hashes: groups.Hashes, Medium: groups.Medium, HasMedium: true, GroupIdx: math.MaxUint64, HasGroupIdx: true,
	}
	hex := *widest(3)[0].(*event.BlockStored)
	hex.Extra = &event.StoredExtra{HexTokens: []string{strings.Repeat("f", 64), strings.Repeat("f", 500), ""}}
	for _, c := range []struct {
		name   string
		form   event.Form
		events []event.Event
		from   int // the least room, counted back from the length
	}{
		{"typical", event.Signed64, benchEvents(2, 3), 1 << 20},
		{"one", event.Signed64, widest(1), 1 << 20},
		{"widest", event.Signed64, widest(40), 1 << 20},
		{"widest stored, wide headers", event.Signed64, widest(1 << 16)[:1], 120},
		{"widest removed, wide headers", event.Signed64, widest(1 << 16)[1:], 120},
		{"hex tokens", event.Signed64, []event.Event{&hex}, 1 << 20},
		{"groups", event.Signed64, []event.Event{&groups}, 1 << 20},
		{"removed group", event.Signed64, []event.Event{group}, 1 << 20},
		{"digests", event.Bytes, []event.Event{
			&event.BlockStored{Digests: digests, HasParent: true}, &event.BlockRemoved{Digests: digests},
		}, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, encoding := range encodings {
				config := Config{Encoding: encoding, Form: c.form}
				events := slices.Clone(c.events)
				for i := range events {
					events[i], _ = fitting(events[i], encoding)
				}
				e := mustEncoder(t, config)
				want, err := EncodeStruct(config, 1, events, 7)
				if err != nil {
					t.Fatal(err)
				}
				for room := max(0, len(want)-c.from); room < len(want)+40; room++ {
					got, err := e.AppendBatch(make([]byte, 0, room), 1, events, 7)
					if err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%v, room %d: %v\n got %x\nwant %x", encoding, room, err, got, want)
					}
				}
			}
		})
	}
}
