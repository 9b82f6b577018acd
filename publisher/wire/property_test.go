// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/shamaton/msgpack/v2"
	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/tests/seeds"
)

// edges are the numbers at which the width of an integer changes.
var edges = []uint64{
	0, 1, 31, 32, 33, 127, 128, 129, 255, 256, 32767, 32768, 32769, 65535, 65536,
	1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1,
}

func genUint64() *rapid.Generator[uint64] {
	return rapid.Custom(func(t *rapid.T) uint64 {
		v := rapid.SampledFrom(edges).Draw(t, "edge")
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return v
		case 1:
			return -v
		default:
			return rapid.Uint64().Draw(t, "uint64")
		}
	})
}

func genString() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringN(1, 40, -1).Draw(t, "string")
		if n := rapid.SampledFrom([]int{0, 0, 0, 31, 32, 255, 256, 65535, 65536}).Draw(t, "pad"); n > len(s) {
			s += strings.Repeat("x", n-len(s))
		}
		return s
	})
}

func genOptString() *rapid.Generator[string] {
	return rapid.OneOf(rapid.Just(""), genString())
}

// genCount draws list lengths, now and then at the changes of header width.
func genCount(t *rapid.T, label string) int {
	n := rapid.IntRange(0, 6).Draw(t, label)
	if n == 6 {
		n = rapid.SampledFrom([]int{15, 16, 17, 100}).Draw(t, label+" long")
	}
	return n
}

func genDigest() *rapid.Generator[event.Digest] {
	return rapid.Custom(func(t *rapid.T) event.Digest {
		return event.Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "digest"))
	})
}

func genExtra(t *rapid.T, tokens []uint32) *event.StoredExtra {
	x := &event.StoredExtra{
		SpecKind: genOptString().Draw(t, "kind"), Locality: genOptString().Draw(t, "locality"),
		Ownership: genOptString().Draw(t, "ownership"), SessionID: genOptString().Draw(t, "session"),
	}
	if rapid.Bool().Draw(t, "group") {
		x.GroupIdx, x.HasGroupIdx = genUint64().Draw(t, "group_idx"), true
	}
	if rapid.Bool().Draw(t, "window") {
		x.SlidingWindow, x.HasWindow = genUint64().Draw(t, "sliding"), true
	}
	if rapid.Bool().Draw(t, "extra keys") {
		x.ExtraKeys = make([][]event.ExtraKey, genCount(t, "entries"))
		for i := range x.ExtraKeys {
			if rapid.Bool().Draw(t, "nil entry") {
				continue
			}
			x.ExtraKeys[i] = make([]event.ExtraKey, genCount(t, "entry"))
			for j := range x.ExtraKeys[i] {
				k := &x.ExtraKeys[i][j]
				switch rapid.IntRange(0, 2).Draw(t, "extra key") {
				case 0:
					k.Str = genString().Draw(t, "str")
				case 1:
					k.Item, k.Offset = genString().Draw(t, "item"), int64(genUint64().Draw(t, "offset"))
				default:
					k.Bin = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bin")
				}
			}
		}
	}
	if rapid.Bool().Draw(t, "mm keys") {
		x.MMKeys = make([][]event.MMKey, genCount(t, "mm entries"))
		for i := range x.MMKeys {
			x.MMKeys[i] = make([]event.MMKey, genCount(t, "mm entry"))
			for j := range x.MMKeys[i] {
				k := &x.MMKeys[i][j]
				k.Hash, k.StartOffset = genString().Draw(t, "hash"), int64(genUint64().Draw(t, "start"))
				if k.HasUUID = rapid.Bool().Draw(t, "has uuid"); k.HasUUID {
					k.UUID = genOptString().Draw(t, "uuid")
				}
			}
		}
	}
	if len(tokens) > 0 && rapid.Bool().Draw(t, "hex tokens") {
		x.HexTokens = make([]string, len(tokens))
		for range rapid.IntRange(1, 3).Draw(t, "how many") {
			i := rapid.IntRange(0, len(tokens)-1).Draw(t, "which")
			x.HexTokens[i], tokens[i] = genString().Draw(t, "hex"), 0
		}
	}
	if reflect.DeepEqual(x, &event.StoredExtra{}) {
		return nil
	}
	return x
}

func genEvent(form event.Form) *rapid.Generator[event.Event] {
	return rapid.Custom(func(t *rapid.T) event.Event {
		var hashes []uint64
		var digests []event.Digest
		var medium string
		hasMedium := rapid.Bool().Draw(t, "has medium")
		if hasMedium {
			medium = rapid.OneOf(rapid.SampledFrom([]string{"GPU", "CPU", "STORAGE", ""}), genString()).Draw(t, "medium")
		}
		kind := rapid.IntRange(0, 7).Draw(t, "event kind")
		if kind == 0 {
			return &event.AllBlocksCleared{}
		}
		for range genCount(t, "hashes") {
			if form == event.Bytes {
				digests = append(digests, genDigest().Draw(t, "digest"))
			} else {
				hashes = append(hashes, genUint64().Draw(t, "hash"))
			}
		}
		if kind < 3 {
			r := &event.BlockRemoved{
				Hashes: hashes, Digests: digests, Medium: medium, HasMedium: hasMedium,
				Locality: genOptString().Draw(t, "locality"), Ownership: genOptString().Draw(t, "ownership"),
			}
			if rapid.Bool().Draw(t, "group") {
				r.GroupIdx, r.HasGroupIdx = genUint64().Draw(t, "group_idx"), true
			}
			return r
		}
		s := &event.BlockStored{
			Hashes: hashes, Digests: digests, Medium: medium, HasMedium: hasMedium,
			LoRAName: genOptString().Draw(t, "lora_name"), BlockSize: uint32(genUint64().Draw(t, "size")),
		}
		if s.HasParent = rapid.Bool().Draw(t, "parent"); s.HasParent {
			if form == event.Bytes {
				s.ParentDigest = genDigest().Draw(t, "parent digest")
			} else {
				s.ParentHash = genUint64().Draw(t, "parent hash")
			}
		}
		if s.HasLoRAID = rapid.Bool().Draw(t, "lora"); s.HasLoRAID {
			s.LoRAID = genUint64().Draw(t, "lora_id")
		}
		for range genCount(t, "tokens") {
			s.Tokens = append(s.Tokens, uint32(genUint64().Draw(t, "token")))
		}
		if rapid.Bool().Draw(t, "extra") {
			s.Extra = genExtra(t, s.Tokens)
		}
		return s
	})
}

func genConfig(t *rapid.T) Config {
	return Config{
		Encoding:      rapid.SampledFrom(encodings).Draw(t, "encoding"),
		Form:          event.Form(rapid.IntRange(int(event.Signed64), int(event.Bytes)).Draw(t, "form")),
		MinimalHashes: rapid.Bool().Draw(t, "minimal"),
	}
}

// settle gives empty lists one shape, so that DeepEqual can compare.
func settle(ev event.Event) event.Event {
	if s, ok := ev.(*event.BlockStored); ok && len(s.Tokens) == 0 {
		s.Tokens = nil
	}
	return ev
}

// What is encoded comes back, in every encoding and width, and both encoders and
// the general library agree.
func TestRoundTrip(t *testing.T) {
	dec, err := NewDecoder(Limits{MaxString: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	seeds.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		c := genConfig(t)
		ts := rapid.Float64Range(-math.MaxFloat64, math.MaxFloat64).Draw(t, "ts")
		rank := genUint64().Draw(t, "rank")
		events := rapid.SliceOfN(genEvent(c.Form), 0, 20).Draw(t, "events")
		for i := range events {
			events[i], _ = fitting(events[i], c.Encoding)
		}
		e, err := NewEncoder(c)
		if err != nil {
			t.Fatal(err)
		}
		// Buffers with and without room, with old contents that must not matter.
		buf := bytes.Repeat([]byte{0xa5}, rapid.IntRange(0, 3000).Draw(t, "room"))[:0]
		got, err := e.AppendBatch(buf, ts, events, rank)
		if err != nil {
			t.Fatal(err)
		}
		oracle, err := EncodeStruct(c, ts, events, rank)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, oracle) {
			t.Fatalf("encoders differ\n hot    %x\n struct %x", got, oracle)
		}
		if err := Check(got, Limits{}); err != nil {
			t.Fatal(err)
		}
		b, err := dec.Decode(got)
		if err != nil {
			t.Fatal(err)
		}
		if b.TS != ts || !b.HasRank || b.Rank != rank || len(b.Events) != len(events) || len(b.Remarks) != 0 {
			t.Fatalf("envelope: %+v", b)
		}
		for i := range events {
			if b.Events[i].Err != nil {
				t.Fatal(b.Events[i].Err)
			}
			if b.Events[i].Array != (c.Encoding != Map) {
				t.Fatalf("event %d: array %v", i, b.Events[i].Array)
			}
			if back := toEvent(t, &b.Events[i]); !reflect.DeepEqual(settle(back), settle(events[i])) {
				t.Fatalf("event %d\n got %#v\nwant %#v", i, back, events[i])
			}
		}
		var foreign []any
		if err := msgpack.UnmarshalAsMap(got, &foreign); err != nil {
			t.Fatalf("the general library cannot read it: %v", err)
		}
		if fault := foreignFault(t, foreign, b, c.Encoding); fault != "" {
			t.Fatal(fault)
		}
	})
}

// loose writes events as other engines might: any width, any key order, with
// additions.
type loose struct {
	t *rapid.T
	b []byte
}

func (l *loose) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(l.t, label) }

// header writes one of the forms that can hold n: fix below fixMax, then the
// wide forms from code, of 1, 2 and 4 bytes, of which skip are left out.
func (l *loose) header(n int, fix byte, fixMax int, code byte, skip int) {
	least := 0
	for _, limit := range [...]int{fixMax, 1 << 8, 1 << 16} {
		if n >= limit {
			least++
		}
	}
	if least <= skip && least > 0 {
		least = skip + 1
	}
	for {
		form := least + l.pick("header", 4-least)
		switch {
		case form == 0:
			l.b = append(l.b, fix|byte(n))
		case form <= skip:
			continue
		default:
			l.b = append(l.b, code+byte(form-1-skip))
			switch form {
			case 1:
				l.b = append(l.b, byte(n))
			case 2:
				l.b = binary.BigEndian.AppendUint16(l.b, uint16(n))
			default:
				l.b = binary.BigEndian.AppendUint32(l.b, uint32(n))
			}
		}
		return
	}
}

func (l *loose) array(n int) { l.header(n, 0x90, 16, 0xdc, 1) }
func (l *loose) mapp(n int)  { l.header(n, 0x80, 16, 0xde, 1) }
func (l *loose) str(s string) {
	l.header(len(s), 0xa0, 32, 0xd9, 0)
	l.b = append(l.b, s...)
}
func (l *loose) bin(s []byte) {
	l.header(len(s), 0, 0, 0xc4, 0)
	l.b = append(l.b, s...)
}
func (l *loose) null() { l.b = append(l.b, 0xc0) }

// int writes bits, read as two's complement if negative, in any format that
// can hold the value.
func (l *loose) int(bits uint64, negative bool) {
	unsigned := func(n int) {
		l.b = append(l.b, 0xcc+byte(n))
		l.b = append(l.b, binary.BigEndian.AppendUint64(nil, bits)[8-1<<n:]...)
	}
	signed := func(n int) {
		l.b = append(l.b, 0xd0+byte(n))
		l.b = append(l.b, binary.BigEndian.AppendUint64(nil, bits)[8-1<<n:]...)
	}
	for {
		n := l.pick("width", 5)
		if n == 4 { // fix
			if !negative && bits < 128 || negative && int64(bits) >= -32 {
				l.b = append(l.b, byte(bits))
				return
			}
			continue
		}
		size := 8 << n
		fitsUnsigned := !negative && (size == 64 || bits < 1<<size)
		v := int64(bits)
		fitsSigned := (negative || v >= 0) && (v >= math.MinInt64>>(64-size)) && (v <= math.MaxInt64>>(64-size))
		switch {
		case fitsUnsigned && (!fitsSigned || l.pick("sign", 2) == 0):
			unsigned(n)
		case fitsSigned:
			signed(n)
		default:
			continue
		}
		return
	}
}

func (l *loose) optString(s string, set bool) {
	if set {
		l.str(s)
	} else {
		l.null()
	}
}

// junk writes any value, to be passed over.
func (l *loose) junk(depth int) {
	switch kind := l.pick("junk", 9); {
	case kind == 0:
		l.null()
	case kind == 1:
		l.b = append(l.b, 0xc3)
	case kind == 2:
		l.str("type")
	case kind == 3:
		l.bin([]byte{0xc1, 0x93})
	case kind == 4:
		l.b = append(l.b, 0xcb, 1, 2, 3, 4, 5, 6, 7, 8)
	case kind == 5: // ext of every form
		forms := [][]byte{
			{0xd4, 1, 9}, {0xd5, 1, 9, 9}, {0xd6, 0xff, 1, 2, 3, 4}, append([]byte{0xd7, 1}, make([]byte, 8)...),
			append([]byte{0xd8, 1}, make([]byte, 16)...), {0xc7, 0, 5}, {0xc8, 0, 1, 5, 0xc1}, {0xc9, 0, 0, 0, 2, 5, 1, 1},
		}
		l.b = append(l.b, forms[l.pick("ext", len(forms))]...)
	case kind == 6 && depth < 8:
		n := l.pick("junk list", 4)
		l.array(n)
		for range n {
			l.junk(depth + 1)
		}
	case kind == 7 && depth < 8:
		n := l.pick("junk map", 4)
		l.mapp(n)
		for range 2 * n {
			l.junk(depth + 1)
		}
	default:
		v := genUint64().Draw(l.t, "junk int")
		l.int(v, v>>63 != 0)
	}
}

func (l *loose) hash(h Hash) {
	if h.Kind == HashBytes {
		l.bin([]byte(h.Raw))
		return
	}
	l.int(h.Bits, h.Kind == HashNegative)
}

// value writes the part f of an event; nil where it is not set.
func (l *loose) value(ev *Event, f Field) {
	x := ev.Extra
	if x == nil {
		x = new(Extra)
	}
	switch f {
	case FieldType:
		l.str(ev.Type)
	case FieldBlockHashes:
		l.array(len(ev.Hashes))
		for _, h := range ev.Hashes {
			l.hash(h)
		}
	case FieldParentBlockHash:
		if ev.HasParent {
			l.hash(ev.Parent)
		} else {
			l.null()
		}
	case FieldTokenIDs:
		l.array(len(ev.Tokens))
		strs := x.StringTokens
		for i, tok := range ev.Tokens {
			if len(strs) > 0 && strs[0].Index == i {
				l.str(strs[0].Value)
				strs = strs[1:]
			} else {
				l.int(uint64(tok), false)
			}
		}
	case FieldBlockSize:
		l.int(uint64(ev.BlockSize), false)
	case FieldLoRAID:
		if ev.HasLoRAID {
			l.int(ev.LoRAID, false)
		} else {
			l.null()
		}
	case FieldMedium:
		l.optString(ev.Medium, ev.HasMedium)
	case FieldLoRAName:
		l.optString(ev.LoRAName, ev.LoRAName != "")
	case FieldExtraKeys:
		if x.ExtraKeys == nil {
			l.null()
			return
		}
		l.array(len(x.ExtraKeys))
		for _, entry := range x.ExtraKeys {
			if entry == nil {
				l.null()
				continue
			}
			l.array(len(entry))
			for _, k := range entry {
				switch {
				case k.Item != "":
					l.array(2)
					l.str(k.Item)
					l.int(uint64(k.Offset), k.Offset < 0)
				case k.Bin != nil:
					l.bin(k.Bin)
				default:
					l.str(k.Str)
				}
			}
		}
	case FieldGroupIdx:
		if x.HasGroupIdx {
			l.int(x.GroupIdx, false)
		} else {
			l.null()
		}
	case FieldSlidingWindow:
		if x.HasWindow {
			l.int(x.SlidingWindow, false)
		} else {
			l.null()
		}
	case FieldSpecKind:
		l.optString(x.SpecKind, x.SpecKind != "")
	case FieldLocality:
		l.optString(x.Locality, x.Locality != "")
	case FieldOwnership:
		l.optString(x.Ownership, x.Ownership != "")
	case FieldSessionID:
		l.optString(x.SessionID, x.SessionID != "")
	case FieldCacheSalt:
		l.optString(x.CacheSalt, x.CacheSalt != "")
	case FieldMMKeys:
		if x.MMKeys == nil {
			l.null()
			return
		}
		l.array(len(x.MMKeys))
		for _, entry := range x.MMKeys {
			l.array(len(entry))
			for _, k := range entry {
				l.mapp(4)
				l.str("start_offset")
				l.int(uint64(k.StartOffset), k.StartOffset < 0)
				l.str("uuid")
				l.optString(k.UUID, k.HasUUID)
				l.str("hash")
				l.str(k.Hash)
				l.str("type")
				l.str("mm_key")
			}
		}
	}
}

// mapEvent writes the fields of the kind in any order, with unknown keys.
func (l *loose) mapEvent(ev *Event) (unknown int) {
	var fields []Field
	for f := FieldType; f < numFields; f++ {
		if keysOf[ev.Kind].Has(f) {
			fields = append(fields, f)
		}
	}
	fields = rapid.Permutation(fields).Draw(l.t, "order")
	unknown = l.pick("unknown keys", 3)
	l.mapp(len(fields) + unknown)
	for i := range unknown {
		if i == 0 {
			l.str("future")
		} else {
			l.int(7, false) // not even a string
		}
		l.junk(0)
	}
	for _, f := range fields {
		l.str(f.String())
		l.value(ev, f)
	}
	return unknown
}

// arrayEvent writes an array of 5 (2, 1) to all elements and perhaps more, and
// removes from ev what it has no place for.
func (l *loose) arrayEvent(ev *Event) (extra int) {
	fields := []Field{FieldType}
	least := 1
	switch ev.Kind {
	case KindRemoved:
		fields, least = removedFields[:], 2
	case KindStored:
		for f := FieldBlockHashes; f <= FieldSlidingWindow; f++ {
			fields = append(fields, f)
		}
		least = 5
	}
	n := least + l.pick("length", len(fields)-least+1)
	if n == len(fields) {
		extra = l.pick("more", 3)
	}
	l.array(n + extra)
	var has KeySet
	for _, f := range fields[:n] {
		has |= 1 << f
		l.value(ev, f)
	}
	for range extra {
		l.junk(0)
	}
	forget(ev, has)
	return extra
}

// forget clears what is not in the set.
func forget(ev *Event, has KeySet) {
	if !has.Has(FieldLoRAID) {
		ev.LoRAID, ev.HasLoRAID = 0, false
	}
	if !has.Has(FieldMedium) {
		ev.Medium, ev.HasMedium = "", false
	}
	if !has.Has(FieldLoRAName) {
		ev.LoRAName = ""
	}
	if ev.Extra == nil {
		return
	}
	x := *ev.Extra
	kept := Extra{StringTokens: x.StringTokens}
	if has.Has(FieldExtraKeys) {
		kept.ExtraKeys = x.ExtraKeys
	}
	if has.Has(FieldGroupIdx) {
		kept.GroupIdx, kept.HasGroupIdx = x.GroupIdx, x.HasGroupIdx
	}
	if has.Has(FieldSpecKind) {
		kept.SpecKind = x.SpecKind
	}
	if has.Has(FieldSlidingWindow) {
		kept.SlidingWindow, kept.HasWindow = x.SlidingWindow, x.HasWindow
	}
	ev.Extra = &kept
	if reflect.DeepEqual(kept, Extra{}) {
		ev.Extra = nil
	}
}

// Whatever widths, order, additions and array lengths are used, the decoder
// reads the same values.
func TestDecodeTolerant(t *testing.T) {
	dec, err := NewDecoder(Limits{MaxString: 1 << 20, MaxRemarks: 1000})
	if err != nil {
		t.Fatal(err)
	}
	seeds.Rapid(t)
	rapid.Check(t, func(t *rapid.T) {
		c := genConfig(t)
		c.Encoding = Map // the one that leaves nothing out
		events := rapid.SliceOfN(genEvent(c.Form), 0, 6).Draw(t, "events")
		e, err := NewEncoder(c)
		if err != nil {
			t.Fatal(err)
		}
		strict, err := e.AppendBatch(nil, 0.5, events, 3)
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := Decode(strict, Limits{MaxString: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		l := &loose{t: t}
		remarks := 0
		n := 2 + l.pick("envelope", 3)
		l.array(n)
		l.b = append(l.b, 0xca, 0x3f, 0, 0, 0) // float32 0.5: one remark
		remarks++
		l.array(len(events))
		array := make([]bool, len(events))
		for i := range wanted.Events {
			ev := &wanted.Events[i]
			if array[i] = rapid.Bool().Draw(t, "array form"); array[i] {
				if l.arrayEvent(ev) > 0 {
					remarks++
				}
			} else {
				remarks += l.mapEvent(ev)
			}
		}
		if n > 2 {
			l.int(3, false)
		}
		if n > 3 {
			l.junk(0)
		}
		if n != 3 {
			remarks++
		}
		b, err := dec.Decode(l.b)
		if err != nil {
			t.Fatalf("%v\n%x", err, l.b)
		}
		if b.TS != 0.5 || b.HasRank != (n > 2) || len(b.Events) != len(events) {
			t.Fatalf("envelope: %+v", b)
		}
		if len(b.Remarks) != remarks {
			t.Fatalf("remarks %v, want %d", b.Remarks, remarks)
		}
		for i := range b.Events {
			got, want := b.Events[i], wanted.Events[i]
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if got.Array != array[i] {
				t.Fatalf("event %d: array %v", i, got.Array)
			}
			got.Seen, got.Offset, got.Array = 0, 0, false
			want.Seen, want.Offset = 0, 0
			for _, ev := range []*Event{&got, &want} {
				if len(ev.Tokens) == 0 {
					ev.Tokens = nil
				}
				if len(ev.Hashes) == 0 {
					ev.Hashes = nil
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("event %d\n got %+v %+v\nwant %+v %+v", i, got, got.Extra, want, want.Extra)
			}
		}
	})
}
