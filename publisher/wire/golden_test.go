// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/kvcast/kvcast/bindings/event"
)

const vectorFile = "../../tests/vectors/wire_vectors.json"

// failer is what the helpers need of *testing.T, *testing.F and *rapid.T.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

type vector struct {
	Name        string           `json:"name"`
	TS          float64          `json:"ts"`
	Rank        *uint64          `json:"data_parallel_rank"`
	Dialect     string           `json:"dialect"`
	Events      []map[string]any `json:"events"`
	MapEvents   []string         `json:"map_event_hex"`
	MapBatch    string           `json:"map_batch_hex"`
	ArrayEvents []string         `json:"array_event_hex"`
	ArrayBatch  *string          `json:"array_batch_hex"`
}

type vectors struct {
	Vectors    []vector         `json:"vectors"`
	Reductions []map[string]any `json:"hash_reductions"`
	Full       struct {
		MapBatch string           `json:"map_batch_hex"`
		Events   []map[string]any `json:"events"`
	} `json:"full_width_hash_variant"`
	Frames struct {
		Topic  string   `json:"topic_utf8"`
		Seq    uint64   `json:"seq"`
		Live   []string `json:"live_pub"`
		End    []string `json:"replay_end_topic_dialect_as_seen_by_dealer"`
		Replay []string `json:"replay_reply_topic_dialect_as_seen_by_dealer"`
	} `json:"frames"`
}

func loadVectors(t failer) vectors {
	t.Helper()
	raw, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func unhex(t failer, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// number reads a JSON number or {"$int": "..."} as the Hash it stands for.
func number(t failer, v any) Hash {
	t.Helper()
	var s string
	switch v := v.(type) {
	case json.Number:
		s = v.String()
	case map[string]any:
		if raw, ok := v["$bytes"].(string); ok {
			return HashOfBytes(unhex(t, raw))
		}
		s, _ = v["$int"].(string)
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return Hash{Bits: u}
	}
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatalf("not a number: %v", v)
	}
	return Hash{Bits: uint64(i), Kind: HashNegative}
}

func uintOf(t failer, v any) uint64 { return number(t, v).Bits }

// decodedEvent builds from a vector's field values what the decoder must give.
func decodedEvent(t failer, v map[string]any) Event {
	t.Helper()
	var ev Event
	extra := func() *Extra {
		if ev.Extra == nil {
			ev.Extra = new(Extra)
		}
		return ev.Extra
	}
	ev.Type = v["type"].(string)
	ev.Kind = map[string]Kind{
		"BlockStored": KindStored, "BlockRemoved": KindRemoved, "AllBlocksCleared": KindCleared,
	}[ev.Type]
	for key, value := range v {
		if value == nil || key == "type" {
			continue
		}
		switch key {
		case "block_hashes":
			for _, h := range value.([]any) {
				ev.Hashes = append(ev.Hashes, number(t, h))
			}
		case "parent_block_hash":
			ev.Parent, ev.HasParent = number(t, value), true
		case "token_ids":
			ev.Tokens = []uint32{}
			for i, tok := range value.([]any) {
				if s, ok := tok.(string); ok {
					extra().StringTokens = append(extra().StringTokens, StringToken{i, s})
					ev.Tokens = append(ev.Tokens, 0)
					continue
				}
				ev.Tokens = append(ev.Tokens, uint32(uintOf(t, tok)))
			}
		case "block_size":
			ev.BlockSize = uint32(uintOf(t, value))
		case "lora_id":
			ev.LoRAID, ev.HasLoRAID = uintOf(t, value), true
		case "medium":
			ev.Medium, ev.HasMedium = value.(string), true
		case "lora_name":
			ev.LoRAName = value.(string)
		case "extra_keys":
			for _, entry := range value.([]any) {
				if entry != nil {
					t.Fatal("the vectors have nil extra keys only")
				}
				extra().ExtraKeys = append(extra().ExtraKeys, nil)
			}
		case "group_idx":
			extra().GroupIdx, extra().HasGroupIdx = uintOf(t, value), true
		case "kv_cache_spec_kind":
			extra().SpecKind = value.(string)
		case "kv_cache_spec_sliding_window":
			extra().SlidingWindow, extra().HasWindow = uintOf(t, value), true
		case "cache_salt":
			extra().CacheSalt = value.(string)
		case "mm_keys":
			for _, entry := range value.([]any) {
				list := []event.MMKey{}
				for _, m := range entry.([]any) {
					m := m.(map[string]any)
					k := event.MMKey{Hash: m["hash"].(string), StartOffset: int64(uintOf(t, m["start_offset"]))}
					k.UUID, k.HasUUID = m["uuid"].(string)
					list = append(list, k)
				}
				extra().MMKeys = append(extra().MMKeys, list)
			}
		default:
			t.Fatalf("vector has the key %q, which this test does not know", key)
		}
	}
	return ev
}

// toEvent turns a decoded event into the value that encodes to it.
func toEvent(t failer, d *Event) event.Event {
	t.Helper()
	var hashes []uint64
	var digests []event.Digest
	for _, h := range d.Hashes {
		if h.Kind == HashBytes {
			digests = append(digests, event.Digest([]byte(h.Raw)))
		} else {
			hashes = append(hashes, h.Bits)
		}
	}
	switch d.Kind {
	case KindCleared:
		return &event.AllBlocksCleared{}
	case KindRemoved:
		r := &event.BlockRemoved{Hashes: hashes, Digests: digests, Medium: d.Medium, HasMedium: d.HasMedium}
		if x := d.Extra; x != nil {
			r.GroupIdx, r.HasGroupIdx, r.Locality, r.Ownership = x.GroupIdx, x.HasGroupIdx, x.Locality, x.Ownership
		}
		return r
	case KindStored:
		s := &event.BlockStored{
			Hashes: hashes, Digests: digests, HasParent: d.HasParent, Tokens: d.Tokens,
			BlockSize: d.BlockSize, LoRAID: d.LoRAID, HasLoRAID: d.HasLoRAID, LoRAName: d.LoRAName,
			Medium: d.Medium, HasMedium: d.HasMedium,
		}
		if d.Parent.Kind == HashBytes {
			s.ParentDigest = event.Digest([]byte(d.Parent.Raw))
		} else {
			s.ParentHash = d.Parent.Bits
		}
		if x := d.Extra; x != nil {
			s.Extra = &event.StoredExtra{
				ExtraKeys: x.ExtraKeys, GroupIdx: x.GroupIdx, HasGroupIdx: x.HasGroupIdx,
				SpecKind: x.SpecKind, SlidingWindow: x.SlidingWindow, HasWindow: x.HasWindow,
				Locality: x.Locality, Ownership: x.Ownership, SessionID: x.SessionID, MMKeys: x.MMKeys,
			}
			if x.StringTokens != nil {
				s.Extra.HexTokens = make([]string, len(d.Tokens))
				for _, st := range x.StringTokens {
					s.Extra.HexTokens[st.Index] = st.Value
				}
			}
		}
		return s
	}
	t.Fatalf("event of kind %d", d.Kind)
	return nil
}

// formOf picks the form in which a vector's hashes can be written.
func formOf(evs []Event) event.Form {
	form := event.Signed64
	for _, ev := range evs {
		for _, h := range append([]Hash{ev.Parent}, ev.Hashes...) {
			switch {
			case h.Kind == HashBytes:
				return event.Bytes
			case h.Kind == HashUnsigned && h.Bits>>63 != 0:
				form = event.Unsigned64
			}
		}
	}
	return form
}

// wantBatch returns the payload that a vector must encode to, or nil where the
// vector has no array form.
func (v *vector) wantBatch(t failer, encoding Encoding) []byte {
	t.Helper()
	if encoding == Map {
		return unhex(t, v.MapBatch)
	}
	if v.ArrayBatch == nil {
		return nil
	}
	full := unhex(t, *v.ArrayBatch)
	if encoding == Array {
		return full
	}
	var events, short []byte
	for _, ev := range v.ArrayEvents {
		events = append(events, unhex(t, ev)...)
		short = append(short, shortArray(t, unhex(t, ev))...)
	}
	// The envelope, up to the list of at most 15 events, is 11 bytes long.
	rank, ok := bytes.CutPrefix(full[11:], events)
	if !ok {
		t.Fatal("the batch does not consist of its events")
	}
	return slices.Concat(full[:11], short, rank)
}

func TestGoldenEncode(t *testing.T) {
	for _, encoding := range encodings {
		t.Run(encoding.String(), func(t *testing.T) { goldenEncode(t, encoding) })
	}
}

func goldenEncode(t *testing.T, encoding Encoding) {
	matched := 0
	for _, v := range loadVectors(t).Vectors {
		if v.Dialect != "vllm" || v.Rank == nil {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			var decoded []Event
			var events []event.Event
			for _, raw := range v.Events {
				decoded = append(decoded, decodedEvent(t, raw))
			}
			for i := range decoded {
				events = append(events, toEvent(t, &decoded[i]))
			}
			c := Config{Encoding: encoding, Form: formOf(decoded), MinimalHashes: true}
			want := v.wantBatch(t, encoding)
			for i := range events {
				fits, taken := fitting(events[i], encoding)
				if len(taken) == 0 {
					continue
				}
				wantError(t, c.CheckEvent(events[i]), ErrNoSlot, -1)
				if want == nil {
					return // refused, and without an array form in the vectors
				}
				events[i] = fits
			}
			e, err := NewEncoder(c)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.AppendBatch([]byte("before"), v.TS, events, *v.Rank)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != "before"+string(want) {
				t.Errorf("encoder\n got %x\nwant %x", got[len("before"):], want)
			}
			got, err = EncodeStruct(c, v.TS, events, *v.Rank)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("struct path\n got %x\nwant %x", got, want)
			}
			matched++
		})
	}
	// One vector has multimodal keys and so no array form.
	if least := map[Encoding]int{Map: 15, Array: 14, ArrayShort: 14}[encoding]; matched < least {
		t.Errorf("only %d vectors were compared", matched)
	}
}

// compareEvent compares a decoded event with the field values of a vector;
// where it stands and which keys it had are no field values.
func compareEvent(t *testing.T, got, want Event) {
	t.Helper()
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	got.Seen, got.Offset, got.Array = 0, 0, false
	if len(got.Tokens)+len(want.Tokens) == 0 {
		got.Tokens, want.Tokens = nil, nil // an empty list may be a nil slice
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v %+v\nwant %+v %+v", got, got.Extra, want, want.Extra)
	}
}

func TestGoldenDecode(t *testing.T) {
	for _, v := range loadVectors(t).Vectors {
		for _, form := range []string{"map", "array"} {
			payload := v.MapBatch
			if form == "array" {
				if v.ArrayBatch == nil {
					continue
				}
				payload = *v.ArrayBatch
			}
			t.Run(v.Name+"/"+form, func(t *testing.T) {
				b, err := Decode(unhex(t, payload), Limits{})
				if err != nil {
					t.Fatal(err)
				}
				if err := Check(unhex(t, payload), Limits{}); err != nil {
					t.Error(err)
				}
				if b.TS != v.TS || b.HasRank != (v.Rank != nil) || b.HasRank && b.Rank != *v.Rank {
					t.Errorf("ts %v rank %v %v", b.TS, b.Rank, b.HasRank)
				}
				var remarks []Remark
				if v.Rank == nil {
					remarks = []Remark{{RemarkNilRank, -1, "data_parallel_rank", len(payload)/2 - 1}}
				}
				if !reflect.DeepEqual(b.Remarks, remarks) {
					t.Errorf("remarks %v, want %v", b.Remarks, remarks)
				}
				if len(b.Events) != len(v.Events) {
					t.Fatalf("%d events, want %d", len(b.Events), len(v.Events))
				}
				for i, ev := range b.Events {
					if ev.Array != (form == "array") {
						t.Errorf("event %d: array %v", i, ev.Array)
					}
					compareEvent(t, ev, decodedEvent(t, v.Events[i]))
				}
			})
		}
	}
}

// The single events of the vectors must be found at their place in the batch.
func TestGoldenOffsets(t *testing.T) {
	for _, v := range loadVectors(t).Vectors {
		payload := unhex(t, v.MapBatch)
		b, err := Decode(payload, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for i, ev := range b.Events {
			if !bytes.HasPrefix(payload[ev.Offset:], unhex(t, v.MapEvents[i])) {
				t.Errorf("%s: event %d is not at %d", v.Name, i, ev.Offset)
			}
		}
	}
}

// shortArray returns the array-short form of an event in the array form: its
// leading elements under a header of their own.
func shortArray(t failer, full []byte) []byte {
	t.Helper()
	keep := map[byte]int{0x9c: 9, 0x94: 3, 0x91: 1}[full[0]]
	if keep == 0 {
		t.Fatalf("event begins with %#x", full[0])
	}
	r := reader{b: full, maxDepth: maxDepth}
	p := 1
	for range keep {
		var err error
		if p, err = r.skip(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	return append([]byte{0x90 | byte(keep)}, full[1:p]...)
}

func TestGoldenArrayShort(t *testing.T) {
	for _, v := range loadVectors(t).Vectors {
		if v.ArrayBatch == nil || len(v.Events) != 1 {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			short := shortArray(t, unhex(t, v.ArrayEvents[0]))
			payload := append(unhex(t, "93cb41d954fc4020000091"), short...)
			b, err := Decode(append(payload, 0), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Remarks) != 0 {
				t.Errorf("remarks %v", b.Remarks)
			}
			want := decodedEvent(t, v.Events[0])
			if want.Extra != nil { // the group fields have no place here
				want.Extra = &Extra{ExtraKeys: want.Extra.ExtraKeys}
				if want.Extra.ExtraKeys == nil {
					want.Extra = nil
				}
			}
			compareEvent(t, b.Events[0], want)
		})
	}
}

func TestGoldenFullWidth(t *testing.T) {
	full := loadVectors(t).Full
	if len(full.Events) != 1 {
		t.Fatalf("%d events", len(full.Events))
	}
	want := unhex(t, full.MapBatch)
	decoded := decodedEvent(t, full.Events[0])
	events := []event.Event{toEvent(t, &decoded)}
	for _, form := range []event.Form{event.Signed64, event.Unsigned64, event.Portable63} {
		e, err := NewEncoder(Config{Form: form})
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.AppendBatch(nil, 1700000000.5, events, 0)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("form %d: %v\n got %x\nwant %x", form, err, got, want)
		}
		got, err = EncodeStruct(Config{Form: form}, 1700000000.5, events, 0)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("struct path, form %d: %v\n got %x\nwant %x", form, err, got, want)
		}
	}
	b, err := Decode(want, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	compareEvent(t, b.Events[0], decoded)
}

func TestGoldenReductions(t *testing.T) {
	reductions := loadVectors(t).Reductions
	if len(reductions) == 0 {
		t.Fatal("no reductions")
	}
	for _, r := range reductions {
		d := event.Digest(unhex(t, r["digest"].(string)))
		for form, key := range map[event.Form]string{
			event.Signed64: "i64_first8", event.Unsigned64: "u64_last8",
			event.Portable63: "portable63", event.Bytes: "u64_first8",
		} {
			want := number(t, r[key])
			if got := Reduce(d, form); got != want.Bits {
				t.Errorf("%x, form %d: %d, want %d", d, form, got, want.Bits)
			}
			if form != event.Bytes {
				if got := HashOf(Reduce(d, form), form); got != want {
					t.Errorf("%x, form %d: %v, want %v", d, form, got, want)
				}
			}
		}
		if got, want := HashOfBytes(d[:]).Bits, Reduce(d, event.Bytes); got != want {
			t.Errorf("%x: %d, want %d", d, got, want)
		}
	}
}

// portable63 has a second branch, for patterns below 2^32, that no real digest
// reaches by chance.
func TestReducePortableSmall(t *testing.T) {
	for first8, want := range map[uint64]uint64{
		0:                1 << 62,
		1:                1 << 62,
		1<<33 - 1:        1<<32 - 1 | 1<<62,
		1 << 33:          1 << 32,
		1<<64 - 1:        1<<63 - 1,
		1<<63 | 1<<33:    1<<62 | 1<<32,
		5<<1 | 1:         1<<62 | 5,
		1 << 63:          1 << 62,
		1<<63 + 1<<34:    1<<62 + 1<<33,
		1<<32 + 7<<1:     1<<62 | (1<<31 + 7),
		1<<33 + 1<<1 + 1: 1<<32 + 1,
	} {
		var d event.Digest
		copy(d[:], AppendSeq(nil, first8))
		if got := Reduce(d, event.Portable63); got != want {
			t.Errorf("%#x: %#x, want %#x", first8, got, want)
		}
	}
}

func TestGoldenFrames(t *testing.T) {
	f := loadVectors(t).Frames
	frames := func(hexes []string) (out [][]byte) {
		for _, h := range hexes {
			out = append(out, unhex(t, h))
		}
		return out
	}
	live := frames(f.Live)
	m, err := ParseMessage(live)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Topic) != f.Topic || m.Seq != f.Seq {
		t.Errorf("topic %q seq %d", m.Topic, m.Seq)
	}
	b, err := Decode(m.Payload, Limits{})
	if err != nil || len(b.Events) != 1 || b.Events[0].Kind != KindCleared {
		t.Errorf("payload: %v %+v", err, b)
	}
	if got := AppendSeq(nil, f.Seq); !bytes.Equal(got, live[1]) {
		t.Errorf("seq frame %x, want %x", got, live[1])
	}
	for _, at := range [][]string{f.End, f.Replay} {
		if len(at) != 1+LiveFrames {
			t.Fatalf("%d frames behind the delimiter", len(at))
		}
	}
	end, err := ParseMessage(frames(f.End[1:]))
	if err != nil || end.Seq != EndSeq || len(end.Payload) != 0 {
		t.Errorf("end: %v %+v", err, end)
	}
	reply, err := ParseMessage(frames(f.Replay[1:]))
	if err != nil || !reflect.DeepEqual(reply, m) {
		t.Errorf("replayed: %v %+v", err, reply)
	}
	for _, bad := range [][][]byte{nil, live[:2], append(live[:3:3], nil), {{}, {1}, {}}, {{}, make([]byte, 9), {}}} {
		if _, err := ParseMessage(bad); !errors.Is(err, ErrFrames) {
			t.Errorf("%x: %v", bad, err)
		}
	}
}
