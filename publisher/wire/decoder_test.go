// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
)

// Hand-made bytes. cat joins strings and bytes; msgpack headers are written as
// escapes.
const (
	envelope3 = "\x93\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00" // ts 0.5
	cleared   = "\x81\xa4type\xb0AllBlocksCleared"
	hash9     = "\xcf\x11\x22\x33\x44\x55\x66\x77\x88"
	stored    = "\x88\xa4type\xabBlockStored\xacblock_hashes\x91" + hash9 + "\xb1parent_block_hash\xc0" +
		"\xa9token_ids\x94\x01\x02\x03\x04\xaablock_size\x04\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0"
)

// batchOf wraps events in an envelope with rank 0.
func batchOf(events ...string) []byte {
	b := appendArrayHeader([]byte(envelope3), len(events))
	for _, ev := range events {
		b = append(b, ev...)
	}
	return append(b, 0)
}

// wantError checks the sentinel, the offset and that the text is one line.
func wantError(t *testing.T, err error, sentinel error, offset int) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("error %v, want %v", err, sentinel)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%T is no *Error", err)
	}
	if e.Offset != offset {
		t.Errorf("%v: offset %d, want %d", err, e.Offset, offset)
	}
	if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "wire: ") {
		t.Errorf("text %q", err)
	}
}

// What makes the whole payload unreadable.
func TestDecodeRefuses(t *testing.T) {
	head := len(envelope3)
	deep := strings.Repeat("\x91", 20) + "\x00"
	for _, c := range []struct {
		name    string
		payload string
		limits  Limits
		err     error
		offset  int
	}{
		{"empty", "", Limits{}, ErrTruncated, 0},
		{"not an array", "\x80", Limits{}, ErrShape, 0},
		{"nil", "\xc0", Limits{}, ErrShape, 0},
		{"reserved byte", "\xc1", Limits{}, ErrReserved, 0},
		{"envelope of 0", "\x90", Limits{}, ErrShape, 0},
		{"envelope of 1", "\x91\x00", Limits{}, ErrShape, 0},
		{"ts is a string", "\x93\xa1x\x90\x00", Limits{}, ErrShape, 1},
		{"ts cut", "\x93\xcb\x00\x00", Limits{}, ErrTruncated, 1},
		{"events are nil", envelope3 + "\xc0\x00", Limits{}, ErrShape, head},
		{"events are a map", envelope3 + "\x80\x00", Limits{}, ErrShape, head},
		{"more events claimed than bytes", envelope3 + "\xdd\xff\xff\xff\xff", Limits{}, ErrTruncated, head},
		{"more elements claimed than bytes", "\xdd\xff\xff\xff\xff", Limits{}, ErrTruncated, 0},
		{"trailing", envelope3 + "\x90\x00\x00", Limits{}, ErrTrailing, head + 2},
		{"trailing behind two", "\x92\x00\x90\x00", Limits{}, ErrTrailing, 3},
		{"fourth element cut", "\x94\x00\x90\x00\xcd\x01", Limits{}, ErrTruncated, 4},
		{"too long", string(batchOf(stored)), Limits{MaxBytes: 50}, ErrLimit, -1},
		{"too many events", string(batchOf(cleared, cleared, cleared)), Limits{MaxEvents: 2}, ErrLimit, head},
		{"too many invalid", string(batchOf("\xc0", "\x80", cleared, "\x91\xa1x")), Limits{MaxInvalid: 2},
			ErrLimit, head + 1 + 2 + len(cleared)},
		{"nested too deeply", string(batchOf("\x82\xa4type\xb0AllBlocksCleared\xa1x" + deep)), Limits{},
			ErrDepth, head + 1 + len(cleared) + 2 + 13},
		{"depth is a limit", string(batchOf("\x82\xa4type\xb0AllBlocksCleared\xa1x\x91\x91\x91\x91\x00")), Limits{MaxDepth: 6},
			ErrDepth, head + 1 + len(cleared) + 2 + 3},
		{"reserved byte in a value", string(batchOf("\x82\xa4type\xb0AllBlocksCleared\xa1x\xc1")), Limits{},
			ErrReserved, head + 1 + len(cleared) + 2},
		{"hash list claims too much", envelope3 + "\x91\x83\xa4type\xacBlockRemoved\xacblock_hashes\xdd\x7f\xff\xff\xff\x01",
			Limits{}, ErrTruncated, head + 1 + 1 + 5 + 13 + 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Decode([]byte(c.payload), c.limits)
			if b != nil {
				t.Error("a batch beside an error")
			}
			wantError(t, err, c.err, c.offset)
		})
	}
}

// Every prefix of a payload is refused, by both.
func TestDecodeTruncated(t *testing.T) {
	for _, v := range loadVectors(t).Vectors {
		full := unhex(t, v.MapBatch)
		for n := range full {
			if _, err := Decode(full[:n:n], Limits{}); !errors.Is(err, ErrTruncated) {
				t.Errorf("%s cut at %d: %v", v.Name, n, err)
			}
			if err := Check(full[:n:n], Limits{}); !errors.Is(err, ErrTruncated) {
				t.Errorf("%s cut at %d: check: %v", v.Name, n, err)
			}
		}
	}
}

func replace(s, old, with string) string {
	if strings.Count(s, old) != 1 {
		panic("not exactly one " + old)
	}
	return strings.Replace(s, old, with, 1)
}

// An event that cannot be understood is marked; its neighbours are whole.
func TestDecodeIsolatesBadEvents(t *testing.T) {
	start := len(envelope3) + 1 + len(stored)
	long := "\xda\x01\x00" + strings.Repeat("m", 256)
	for _, c := range []struct {
		name   string
		event  string
		err    error
		key    string
		kind   Kind
		offset int // from the start of the event
	}{
		{"nil", "\xc0", ErrShape, "", KindUnknown, 0},
		{"number", "\x05", ErrShape, "", KindUnknown, 0},
		{"string", "\xa3abc", ErrShape, "", KindUnknown, 0},
		{"empty map", "\x80", ErrMissing, "type", KindUnknown, 1},
		{"empty array", "\x90", ErrMissing, "type", KindUnknown, 1},
		{"map without type", "\x81\xa1x\x01", ErrMissing, "type", KindUnknown, 1},
		{"type is a number", "\x81\xa4type\x01", ErrShape, "type", KindUnknown, 6},
		{"tag is nil", "\x91\xc0", ErrShape, "type", KindUnknown, 1},
		{"no hashes", replace(stored, "\xacblock_hashes", "\xacblock_hushes"), ErrMissing, "block_hashes", KindStored, 0},
		{"no parent", replace(stored, "\xb1parent", "\xb1porent"), ErrMissing, "parent_block_hash", KindStored, 0},
		{"no tokens", replace(stored, "\xa9token_ids", "\xa9token_idz"), ErrMissing, "token_ids", KindStored, 0},
		{"no block size", replace(stored, "\xaablock_size", "\xaablock_sise"), ErrMissing, "block_size", KindStored, 0},
		{"hash is a string", replace(stored, hash9, "\xa3abc"), ErrShape, "block_hashes", KindStored, 32},
		{"hash is a float", replace(stored, hash9, "\xca\x00\x00\x00\x00"), ErrShape, "block_hashes", KindStored, 32},
		{"hashes are nil", replace(stored, "\x91"+hash9, "\xc0"), ErrShape, "block_hashes", KindStored, 31},
		{"token is negative", replace(stored, "\x94\x01", "\x94\xff"), ErrRange, "token_ids", KindStored, 71},
		{"token is 2^32", replace(stored, "\x94\x01", "\x94\xcf\x00\x00\x00\x01\x00\x00\x00\x00"), ErrRange, "token_ids", KindStored, 71},
		{"token is nil", replace(stored, "\x94\x01", "\x94\xc0"), ErrShape, "token_ids", KindStored, 71},
		{"block size is negative", replace(stored, "size\x04", "size\xff"), ErrRange, "block_size", KindStored, 86},
		{"block size is nil", replace(stored, "size\x04", "size\xc0"), ErrShape, "block_size", KindStored, 86},
		{"LoRA id is negative", replace(stored, "lora_id\xc0", "lora_id\xff"), ErrRange, "lora_id", KindStored, 95},
		{"medium is a number", replace(stored, "\xa3GPU", "\x07"), ErrShape, "medium", KindStored, 103},
		{"medium is long", replace(stored, "\xa3GPU", long), ErrLimit, "medium", KindStored, 103},
		{"too many hashes", replace(stored, "\x91"+hash9, "\x95\x01\x02\x03\x04\x05"), ErrLimit, "block_hashes", KindStored, 31},
		{"too many tokens", replace(stored, "\x94\x01\x02\x03\x04", "\x99\x01\x02\x03\x04\x05\x06\x07\x08\x09"), ErrLimit, "token_ids", KindStored, 70},
		{"array of 4", "\x94\xabBlockStored\x91\x01\xc0\x90", ErrMissing, "block_size", KindStored, 13},
		{"removal array of 1", "\x91\xacBlockRemoved", ErrMissing, "block_hashes", KindRemoved, 14},
		{"removal without hashes", "\x82\xa4type\xacBlockRemoved\xa6medium\xa3GPU", ErrMissing, "block_hashes", KindRemoved, 0},
		{"bytes hash is long", replace(stored, hash9, "\xc5\x01\x00"+strings.Repeat("h", 256)), ErrLimit, "block_hashes", KindStored, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := NewDecoder(Limits{MaxString: 255, MaxHashes: 4, MaxTokens: 8})
			if err != nil {
				t.Fatal(err)
			}
			b, err := d.Decode(batchOf(stored, c.event, stored, cleared))
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Events) != 4 || !b.HasRank {
				t.Fatalf("%+v", b)
			}
			bad := b.Events[1]
			if bad.Err == nil {
				t.Fatalf("no error: %+v", bad)
			}
			wantError(t, bad.Err, c.err, start+c.offset)
			if e := bad.Err.(*Error); e.Key != c.key || e.Event != 1 || bad.Kind != c.kind || bad.Offset != start {
				t.Errorf("%v: key %q event %d kind %d offset %d", e, e.Key, e.Event, bad.Kind, bad.Offset)
			}
			if bad.Hashes != nil || bad.Tokens != nil || bad.Seen != 0 {
				t.Errorf("a bad event holds %+v", bad)
			}
			last := b.Remarks[len(b.Remarks)-1]
			if last.Kind != RemarkInvalidEvent || last.Event != 1 {
				t.Errorf("remarks %v", b.Remarks)
			}
			for _, i := range []int{0, 2} {
				ev := b.Events[i]
				if ev.Err != nil || ev.Kind != KindStored || ev.BlockSize != 4 || ev.Medium != "GPU" ||
					!reflect.DeepEqual(ev.Hashes, []Hash{{Bits: 0x1122334455667788}}) ||
					!reflect.DeepEqual(ev.Tokens, []uint32{1, 2, 3, 4}) {
					t.Errorf("event %d was harmed: %+v", i, ev)
				}
			}
			if b.Events[3].Kind != KindCleared {
				t.Errorf("event 3 was harmed: %+v", b.Events[3])
			}
		})
	}
}

// What is read although it does not conform.
func TestDecodeRemarks(t *testing.T) {
	head := len(envelope3)
	withKey := func(key string) string { return "\x89" + stored[1:] + key }
	at := head + 1 + len(stored) // a key appended to the first event
	for _, c := range []struct {
		name    string
		payload string
		want    []Remark
	}{
		{"nothing", string(batchOf(stored)), nil},
		{"two elements", "\x92" + envelope3[1:] + "\x90", []Remark{{RemarkShortEnvelope, -1, "", 0}}},
		{"five elements", "\x95" + envelope3[1:] + "\x90\x00\xc0\x91\x01", []Remark{{RemarkLongEnvelope, -1, "", head + 2}}},
		{"nil rank", envelope3 + "\x90\xc0", []Remark{{RemarkNilRank, -1, "data_parallel_rank", head + 1}}},
		{"negative rank", envelope3 + "\x90\xd1\xff\x00", []Remark{{RemarkNegativeRank, -1, "data_parallel_rank", head + 1}}},
		{"rank is a string", envelope3 + "\x90\xa10", []Remark{{RemarkBadValue, -1, "data_parallel_rank", head + 1}}},
		{"integer ts", "\x93\x01\x90\x00", []Remark{{RemarkTimestamp, -1, "ts", 1}}},
		{"negative integer ts", "\x93\xd0\x80\x90\x00", []Remark{{RemarkTimestamp, -1, "ts", 1}}},
		{"float32 ts", "\x93\xca\x3f\x00\x00\x00\x90\x00", []Remark{{RemarkTimestamp, -1, "ts", 1}}},
		{"infinite ts", "\x93\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00\x90\x00", []Remark{{RemarkTimestamp, -1, "ts", 1}}},
		{"unknown event, map", string(batchOf("\x82\xa1x\x91\xc0\xa4type\xa3New")), []Remark{{RemarkUnknownEvent, 0, "New", head + 1}}},
		{"unknown event, array", string(batchOf("\x92\xa3New\x91\xc0")), []Remark{{RemarkUnknownEvent, 0, "New", head + 1}}},
		{"unknown key", string(batchOf(withKey("\xa3new\x81\x01\x02"))), []Remark{{RemarkUnknownKey, 0, "new", at}}},
		{"key is a list", string(batchOf(withKey("\x91\x01\x02"))), []Remark{{RemarkUnknownKey, 0, "", at}}},
		{"key of another kind", string(batchOf("\x84\xa4type\xacBlockRemoved\xacblock_hashes\x91\x05\xa6medium\xa3GPU\xa9token_ids\x90")),
			[]Remark{{RemarkUnknownKey, 0, "token_ids", head + 1 + 1 + 5 + 13 + 13 + 2 + 7 + 4}}},
		{"duplicate key", string(batchOf(withKey("\xaablock_size\x08"))), []Remark{{RemarkDuplicateKey, 0, "block_size", at}}},
		{"duplicate type", string(batchOf(withKey("\xa4type\xa3New"))), []Remark{{RemarkDuplicateKey, 0, "type", at}}},
		{"extra elements", string(batchOf("\x95\xacBlockRemoved\x91\x05\xa3GPU\xc0\x01")),
			[]Remark{{RemarkExtraElements, 0, "", head + 1 + 1 + 13 + 2 + 4 + 1}}},
		{"no lora_id", string(batchOf(replace(stored, "\xa7lora_id\xc0", "\xa8locality\xc0"))), []Remark{{RemarkMissingKey, 0, "lora_id", head + 1}}},
		{"SGLang leaves medium and name out", string(batchOf("\x82\xa4type\xacBlockRemoved\xacblock_hashes\x91\x05")), nil},
		{"bad optional value", string(batchOf(withKey("\xa9group_idx\xff"))), []Remark{{RemarkBadValue, 0, "group_idx", at + 10}}},
		{"bad extra keys", string(batchOf(withKey("\xaaextra_keys\x91\x05"))), []Remark{{RemarkBadValue, 0, "extra_keys", at + 12}}},
		{"odd extra key", string(batchOf(withKey("\xaaextra_keys\x91\x93\x05\xa1a\x91\xa1b"))),
			[]Remark{{RemarkBadValue, 0, "extra_keys", at + 13}, {RemarkBadValue, 0, "extra_keys", at + 16}}},
		{"mm key without hash", string(batchOf(withKey("\xa7mm_keys\x91\x91\x81\xacstart_offset\x00"))), []Remark{{RemarkBadValue, 0, "mm_keys", at + 10}}},
		{"not UTF-8", string(batchOf(replace(stored, "\xa3GPU", "\xa3G\xffU"))), []Remark{{RemarkUTF8, 0, "medium", at - 15}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Decode([]byte(c.payload), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(b.Remarks, c.want) {
				t.Errorf("remarks %v, want %v", b.Remarks, c.want)
			}
			for _, r := range b.Remarks {
				if strings.Contains(r.String(), "\n") || strings.Contains(r.Kind.String(), "(") {
					t.Errorf("text %q", r.String())
				}
			}
			for _, ev := range b.Events {
				if ev.Err != nil {
					t.Error(ev.Err)
				}
			}
		})
	}
}

// The odd extra key goes, the good one stays.
func TestDecodeOddExtraKey(t *testing.T) {
	b, err := Decode(batchOf("\x89"+stored[1:]+"\xaaextra_keys\x91\x93\x05\xa1a\x92\xa1b\xff"), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]event.ExtraKey{{{Str: "a"}, {Item: "b", Offset: -1}}}
	if got := b.Events[0].Extra.ExtraKeys; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Remarks are bounded, and so is what they quote.
func TestDecodeRemarksBounded(t *testing.T) {
	long := "\xda\x01\x00" + strings.Repeat("k", 256) + "\x01"
	ev := "\xde\x00\x0b" + "\xa4type\xb0AllBlocksCleared" + strings.Repeat(long, 10)
	b, err := Decode(batchOf(ev), Limits{MaxRemarks: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Remarks) != 3 || b.RemarksDropped != 7 {
		t.Errorf("%d kept, %d dropped", len(b.Remarks), b.RemarksDropped)
	}
	if got := b.Remarks[0].Key; got != strings.Repeat("k", maxRemarkKey) {
		t.Errorf("key %q", got)
	}
}

func TestDecodeManyHashes(t *testing.T) {
	list := binary.BigEndian.AppendUint32([]byte{0xdd}, maxHashesPerEvent+1)
	list = append(list, bytes.Repeat([]byte{7}, maxHashesPerEvent+1)...)
	ev := "\x83\xa4type\xacBlockRemoved\xacblock_hashes" + string(list) + "\xa6medium\xa3GPU"
	b, err := Decode(batchOf(ev), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Remarks) != 1 || b.Remarks[0].Kind != RemarkTooManyHashes || len(b.Events[0].Hashes) != maxHashesPerEvent+1 {
		t.Errorf("%v, %d hashes", b.Remarks, len(b.Events[0].Hashes))
	}
}

// Hashes are the same value in whatever width they come, and differ by value.
func TestHashIdentity(t *testing.T) {
	list := "\x9c" + "\x05" + "\xcc\x05" + "\xd0\x05" + "\xcf\x00\x00\x00\x00\x00\x00\x00\x05" + "\xd3\x00\x00\x00\x00\x00\x00\x00\x05" +
		"\xff" + "\xd1\xff\xff" + "\xd3\xff\xff\xff\xff\xff\xff\xff\xff" + "\xcf\xff\xff\xff\xff\xff\xff\xff\xff" +
		"\xc4\x00" + "\xc4\x01\x05" + "\xc4\x08\xff\xff\xff\xff\xff\xff\xff\xff"
	b, err := Decode(batchOf("\x82\xa4type\xacBlockRemoved\xacblock_hashes"+list), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	five, minus := Hash{Bits: 5}, Hash{Bits: ^uint64(0), Kind: HashNegative}
	want := []Hash{five, five, five, five, five, minus, minus, minus, {Bits: ^uint64(0)},
		{Kind: HashBytes}, {Bits: 5 << 56, Kind: HashBytes, Raw: "\x05"},
		{Bits: ^uint64(0), Kind: HashBytes, Raw: "\xff\xff\xff\xff\xff\xff\xff\xff"}}
	if got := b.Events[0].Hashes; !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %v\nwant %v", got, want)
	}
	set := map[Hash]bool{}
	for _, h := range b.Events[0].Hashes {
		set[h] = true
	}
	if len(set) != 6 {
		t.Errorf("%d different hashes, want 6", len(set))
	}
	if HashOf(5, event.Signed64) != five || HashOf(minus.Bits, event.Signed64) != minus ||
		HashOf(minus.Bits, event.Unsigned64) != want[8] {
		t.Error("HashOf does not give what is decoded")
	}
}

// A batch is borrowed; its clone is not.
func TestDecodeBorrowed(t *testing.T) {
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Decode(batchOf(stored, stored, stored)); err != nil { // leaves room
		t.Fatal(err)
	}
	payload := batchOf(stored, "\x82\xa4type\xa3New\xa1x\x01")
	b, err := d.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if ev := b.Events[0]; cap(ev.Hashes) != 1 || cap(ev.Tokens) != 4 {
		t.Errorf("room for %d hashes and %d tokens: an append would overwrite the next event", cap(ev.Hashes), cap(ev.Tokens))
	}
	kept := b.Clone()
	if !reflect.DeepEqual(kept, b) {
		t.Errorf("clone %+v, want %+v", kept, b)
	}
	for i := range payload {
		payload[i] = 0xc1 // what aliased the payload would now be wrong
	}
	if b.Events[0].Medium != "GPU" || b.Events[1].Type != "New" || b.Remarks[0].Key != "New" {
		t.Errorf("aliases the payload: %+v", b)
	}
	other := replace(stored, "\x94\x01\x02\x03\x04", "\x94\x09\x09\x09\x09")
	if _, err := d.Decode(batchOf(replace(other, hash9, "\x07"))); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(kept.Events[0].Tokens, []uint32{1, 2, 3, 4}) || kept.Events[0].Hashes[0].Bits != 0x1122334455667788 ||
		kept.Remarks[0].Key != "New" {
		t.Errorf("the clone changed: %+v", kept)
	}
}

// A failed payload leaves nothing behind in the decoder.
func TestDecodeAfterFailure(t *testing.T) {
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	full := batchOf(stored, "\xc0", stored)
	for n := range full {
		if _, err := d.Decode(full[:n]); err == nil {
			t.Fatalf("cut at %d: no error", n)
		}
		b, err := d.Decode(batchOf(cleared))
		if err != nil {
			t.Fatal(err)
		}
		want := &Batch{TS: 0.5, HasRank: true, Events: []Event{
			{Kind: KindCleared, Type: "AllBlocksCleared", Seen: 1 << FieldType, Offset: len(envelope3) + 1},
		}, Remarks: []Remark{}}
		if len(b.Remarks) == 0 {
			b.Remarks = []Remark{}
		}
		if !reflect.DeepEqual(b, want) {
			t.Fatalf("after cut at %d: %+v", n, b)
		}
	}
}

// An event list cannot make the decoder keep the memory of one large batch.
func TestDecoderShrinks(t *testing.T) {
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	n := 8 * keepAtMost
	tokens := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n))
	tokens = append(tokens, make([]byte, n)...)
	large := batchOf(replace(stored, "\x94\x01\x02\x03\x04", string(tokens)))
	if _, err := d.Decode(large); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.Decode(batchOf(stored)); err != nil {
			t.Fatal(err)
		}
	}
	if cap(d.tokens.chunk) > keepAtMost {
		t.Errorf("keeps room for %d tokens", cap(d.tokens.chunk))
	}
}

// The string tokens of a repeated list do not outlive it: their indexes would
// point beyond the tokens.
func TestDecodeRepeatedTokens(t *testing.T) {
	first := replace(stored, "\x94\x01\x02\x03\x04", "\x94\x01\x02\x03\xa1h")
	b, err := Decode(batchOf("\x89"+first[1:]+"\xa9token_ids\x91\x05"), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if ev := b.Events[0]; !reflect.DeepEqual(ev.Tokens, []uint32{5}) || len(ev.Extra.StringTokens) != 0 {
		t.Errorf("%v %+v", ev.Tokens, ev.Extra)
	}
}

// Strings from the wire cannot fill the table of known strings.
func TestDecoderInternBounded(t *testing.T) {
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxInterned {
		medium := string(AppendSeq([]byte("\xa9m"), uint64(i)&0x7f|uint64(i)>>7<<8))
		b, err := d.Decode(batchOf(replace(stored, "\xa3GPU", medium)))
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Events[0].Medium; got != medium[1:] {
			t.Fatalf("medium %q, want %q", got, medium[1:])
		}
	}
	if len(d.strings) > maxInterned {
		t.Errorf("%d strings are kept", len(d.strings))
	}
}

// What a batch held is let go with the next one.
func TestDecoderLetsGo(t *testing.T) {
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Decode(batchOf("\x89" + replace(stored, hash9, "\xc4\x01h")[1:] + "\xa8locality\xa5LOCAL")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Decode(batchOf()); err != nil {
		t.Fatal(err)
	}
	if h, ev := d.hashes.chunk[:1][0], d.batch.Events[:1][0]; h.Raw != "" || ev.Extra != nil {
		t.Errorf("still holds %v and %v", h, ev.Extra)
	}
}

// Memory is bounded by a constant times the payload, whatever is claimed and
// whatever is there.
func TestDecodeMemory(t *testing.T) {
	// The smaller size is for lists that are refused by their length beyond it.
	for _, size := range []int{1 << 20, 4 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) { testDecodeMemory(t, size) })
	}
}

func testDecodeMemory(t *testing.T, size int) {
	fill := func(head, unit string) []byte {
		b := []byte(head)
		for len(b)+len(unit) <= size {
			b = append(b, unit...)
		}
		return b
	}
	headed := func(prefix, unit string, per int) string { // prefix, array32 of as many as fit
		n := uint32((size - len(prefix) - 5) / len(unit) / per)
		return string(fill(string(binary.BigEndian.AppendUint32([]byte(prefix+"\xdd"), n)), unit))
	}
	removed := "\x82\xa4type\xacBlockRemoved\xacblock_hashes"
	withKey := "\x89" + stored[1:]
	small := envelope3 + "\x91" + withKey
	for _, c := range []struct {
		name    string
		payload string
	}{
		{"claimed events", headed(envelope3, "\xc0", 1)},
		{"unknown events", headed(envelope3, "\x91\xa0", 1)},
		{"smallest good events", headed(envelope3, "\x92\xacBlockRemoved\x90", 1)},
		{"clears", headed(envelope3, "\x91\xb0AllBlocksCleared", 1)},
		{"claimed hashes", envelope3 + "\x91" + headed(removed, "\xa0", 1)},
		{"one-byte hashes", envelope3 + "\x91" + headed(removed, "\x00", 1) + "\x00"},
		{"empty bytes hashes", envelope3 + "\x91" + headed(removed, "\xc4\x00", 1)},
		{"tokens", headed(envelope3+"\x91"+stored[:70], "\x00", 1)},
		{"string tokens", headed(envelope3+"\x91"+stored[:70], "\xa0", 1)},
		{"nil extra keys", headed(small+"\xaaextra_keys", "\xc0", 1)},
		{"empty extra keys", headed(small+"\xaaextra_keys", "\x90", 1)},
		{"extra keys", headed(small+"\xaaextra_keys\x91", "\xa0", 1)},
		{"odd extra keys", headed(small+"\xaaextra_keys\x91", "\x00", 1)},
		{"bin extra keys", headed(small+"\xaaextra_keys\x91", "\xc4\x00", 1)},
		{"mm keys", headed(small+"\xa7mm_keys\x91", "\x80", 1)},
		{"real mm keys", headed(small+"\xa7mm_keys\x91", "\x81\xa4hash\xa0", 1)},
		{"nested claims", headed(small+"\xaaextra_keys", "\xdd\x00\x08\x00\x00", 1)},
		{"many unknown keys", string(binary.BigEndian.AppendUint32([]byte(envelope3+"\x91\xdf"), 100000)) + string(fill("\xa4type\xb0AllBlocksCleared", "\xa1k\x01"))},
		{"events of one-byte hashes", headed(envelope3, removed+"\xdc\xff\xff"+strings.Repeat("\x00", 0xffff), 1) + "\x00"},
		{"events of large lists", headed(envelope3, removed+"\xdd\x00\x02\x00\x00"+strings.Repeat("\x00", 1<<17), 1) + "\x00"},
		{"events that just miss the chunk", headed(envelope3, removed+"\x91\x00"+removed+"\xdc\x7f\xff"+strings.Repeat("\x00", 0x7fff), 1) + "\x00"},
		{"events of tokens", headed(envelope3, replace(stored, "\x94\x01\x02\x03\x04", "\xdd\x00\x08\x00\x00"+strings.Repeat("\x00", 1<<19)), 1) + "\x00"},
		{"events of string tokens", headed(envelope3, replace(stored, "\x94\x01\x02\x03\x04", "\xdd\x00\x08\x00\x00"+strings.Repeat("\xa0", 1<<19)), 1) + "\x00"},
		{"events of short string tokens", headed(envelope3, replace(stored, "\x94\x01\x02\x03\x04", "\xdc\x80\x00"+strings.Repeat("\xa2ab", 1<<15)), 1) + "\x00"},
		{"events with an extra", headed(envelope3, "\x9a\xabBlockStored\x90\xc0\x90\x01\xc0\xc0\xc0\xc0\x00", 1) + "\x00"},
		{"events of 16 tokens", headed(envelope3, replace(stored, "\x94\x01\x02\x03\x04", "\xdc\x00\x10"+strings.Repeat("\x00", 16)), 1) + "\x00"},
		{"short bytes hashes", envelope3 + "\x91" + headed(removed, "\xc4\x01a", 1) + "\x00"},
		{"repeated keys", string(binary.BigEndian.AppendUint32([]byte(envelope3+"\x91\xdf"), 200000)) + string(fill("\xa4type\xacBlockRemoved", "\xacblock_hashes\x92\x01\x02"))},
		{"random strings", headed(envelope3+"\x91\x82\xa4type\xabBlockStored\xa9token_ids", "\xa3\x01\x02\x03", 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload := []byte(c.payload)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b, err := Decode(payload, Limits{})
			runtime.ReadMemStats(&after)
			used := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes for a payload of %d (%.1fx); %v %v", used, len(payload), float64(used)/float64(len(payload)), b != nil, err)
			// What is charged, a third for what is left over in chunks, and a
			// little for remarks and errors.
			most := 4*(memoryFloor+memoryFactor*len(payload))/3 + 1<<20
			if most > 16*len(payload)+7<<20 {
				t.Fatal("the bound is not what it should be")
			}
			if used > uint64(most) {
				t.Errorf("%d bytes for a payload of %d", used, len(payload))
			}
		})
	}
}

func TestDecodeAllocations(t *testing.T) {
	e, err := NewEncoder(Config{})
	if err != nil {
		t.Fatal(err)
	}
	// 128 times 64 blocks of 16 tokens fill a chunk exactly.
	for _, blocks := range []int{1, 8, 63, 64, 65} {
		payload, err := e.AppendBatch(nil, 1, benchEvents(128, blocks), 0)
		if err != nil {
			t.Fatal(err)
		}
		decodeAllocations(t, payload)
	}
}

func decodeAllocations(t *testing.T, payload []byte) {
	t.Helper()
	d, err := NewDecoder(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() {
		if _, err := d.Decode(payload); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := Check(payload, Limits{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per check", n)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload string
		limits  Limits
		err     error
		offset  int
	}{
		{"scalar", "\x00", Limits{}, nil, 0},
		{"every scalar", "\x9c\x7f\xe0\xc0\xc2\xc3\xcc\x00\xcd\x00\x00\xce\x00\x00\x00\x00\xcf\x00\x00\x00\x00\x00\x00\x00\x00" +
			"\xd0\x00\xd1\x00\x00\x91\xd2\x00\x00\x00\x00", Limits{}, nil, 0},
		{"more scalars", "\x97\xd3\x00\x00\x00\x00\x00\x00\x00\x00\xca\x00\x00\x00\x00\xcb\x00\x00\x00\x00\x00\x00\x00\x00" +
			"\xa1a\xd9\x01a\xda\x00\x01a\xdb\x00\x00\x00\x01a", Limits{}, nil, 0},
		{"bins and exts", "\x9b\xc4\x01a\xc5\x00\x01a\xc6\x00\x00\x00\x01a\xc7\x01\x00a\xc8\x00\x01\x00a\xc9\x00\x00\x00\x01\x00a" +
			"\xd4\x00a\xd5\x00ab\xd6\x00abcd\xd7\x00abcdefgh\xd8\x00abcdefghabcdefgh", Limits{}, nil, 0},
		{"empty", "", Limits{}, ErrTruncated, 0},
		{"trailing", "\x00\x00", Limits{}, ErrTrailing, 1},
		{"reserved", "\x91\xc1", Limits{}, ErrReserved, 1},
		{"depth 16", strings.Repeat("\x91", 16) + "\x00", Limits{}, nil, 0},
		{"depth 17", strings.Repeat("\x91", 17) + "\x00", Limits{}, ErrDepth, 16},
		{"depth 17, empty", strings.Repeat("\x91", 16) + "\x90", Limits{}, ErrDepth, 16},
		{"depth 64", strings.Repeat("\x81\x00", 64) + "\x00", Limits{MaxDepth: 64}, nil, 0},
		{"depth 65", strings.Repeat("\x81\x00", 65) + "\x00", Limits{MaxDepth: 64}, ErrDepth, 128},
		{"size", "\xa3abc", Limits{MaxBytes: 3}, ErrLimit, -1},
		{"array claims too much", "\xdd\xff\xff\xff\xff\x00", Limits{}, ErrTruncated, 0},
		{"map claims too much", "\xdf\x00\x00\x00\x02\x00\x00\x00", Limits{}, ErrTruncated, 0},
		{"str claims too much", "\xdb\xff\xff\xff\xff\x00", Limits{}, ErrTruncated, 0},
		{"ext without its type", "\xc7\x00", Limits{}, ErrTruncated, 0},
		{"bin key", "\x82\x01\x01\xc4\x01a\x01", Limits{}, ErrShape, 3},
		{"list key", "\x81\x90\x01", Limits{}, ErrShape, 1},
		{"map key", "\x81\x80\x01", Limits{}, ErrShape, 1},
		{"ext key", "\x81\xd4\x00\x00\x01", Limits{}, ErrShape, 1},
		{"bin values, scalar keys", "\x82\x01\xc4\x01a\xc0\xc4\x01a", Limits{}, nil, 0},
		{"list behind a map value", "\x92\x81\x01\x91\xc4\x00\xc4\x00", Limits{}, nil, 0},
		{"bad limit", "\x00", Limits{MaxDepth: 65}, ErrConfig, -1},
		{"bad limit below", "\x00", Limits{MaxDepth: 5}, ErrConfig, -1},
		{"negative limit", "\x00", Limits{MaxString: -1}, ErrConfig, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check([]byte(c.payload), c.limits)
			if c.err == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, c.err, c.offset)
		})
	}
	if _, err := NewDecoder(Limits{MaxEvents: -1}); !errors.Is(err, ErrConfig) {
		t.Errorf("decoder: %v", err)
	}
	if _, err := Decode(batchOf(), Limits{MaxEvents: -1}); !errors.Is(err, ErrConfig) {
		t.Errorf("decode: %v", err)
	}
}
