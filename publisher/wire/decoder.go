// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"

	"github.com/kvcast/kvcast/bindings/event"
)

// maxHashesPerEvent is invariant I8, the most that a reader is known to take.
const maxHashesPerEvent = 65536

// Decoder reads payloads in the map and the array forms of any engine. It
// keeps its memory between calls: in steady state it allocates only for what
// is rare (Extra, bytes hashes, new strings). Not safe for concurrent use.
type Decoder struct {
	lim     Limits
	r       reader
	batch   Batch
	hashes  arena[Hash]
	tokens  arena[uint32]
	strings map[string]string
	invalid int
	at      int // index of the event being read, -1 in the envelope
	// memory is what the parts of this batch may take all in all, room what of
	// it is left, in bytes.
	memory, room int
}

// NewDecoder returns a decoder, or ErrConfig.
func NewDecoder(l Limits) (*Decoder, error) {
	l, err := l.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Decoder{lim: l, strings: map[string]string{}}, nil
}

// Decode reads one payload with a decoder of its own; the caller owns the
// result.
func Decode(payload []byte, l Limits) (*Batch, error) {
	d, err := NewDecoder(l)
	if err != nil {
		return nil, err
	}
	return d.Decode(payload)
}

// Decode reads one payload. The batch is borrowed until the next call;
// Batch.Clone keeps it. It never aliases the payload.
//
// The error is an *Error and refuses the whole payload: it is not one
// well-formed msgpack value, is beyond a limit, or is not an envelope of a
// time and a list of events. An event that is well-formed msgpack but cannot
// be understood has Event.Err set and harms no other. Less than that is a
// Remark.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.reset(payload)
	if len(payload) > d.lim.MaxBytes {
		return nil, tooLong("decode", len(payload), d.lim.MaxBytes)
	}
	if err := d.envelope(); err != nil {
		return nil, err
	}
	return &d.batch, nil
}

func (d *Decoder) reset(payload []byte) {
	d.r = reader{b: payload, maxDepth: d.lim.MaxDepth}
	d.at, d.invalid = -1, 0
	d.memory = min(memoryFloor+memoryFactor*min(len(payload), d.lim.MaxMemory/memoryFactor), d.lim.MaxMemory)
	d.room = d.memory
	d.hashes.reset()
	d.tokens.reset()
	d.batch = Batch{Events: recycle(d.batch.Events), Remarks: recycle(d.batch.Remarks)}
}

const (
	// memoryFactor and memoryFloor bound what a batch may take besides
	// Limits.MaxMemory: small messages cannot ask for large memory. Of what
	// engines send, lists of removals in the array form, one short hash each,
	// take the most: 10 bytes for each byte of the payload. The floor is for
	// lists of small test numbers, which take 32.
	memoryFactor = 12
	memoryFloor  = 4 << 20
	// stringCost is what a string takes besides its bytes: they are rounded up.
	stringCost = 8
)

// The sizes of what is charged.
const (
	eventSize       = int(unsafe.Sizeof(Event{}))
	extraSize       = int(unsafe.Sizeof(Extra{}))
	hashSize        = int(unsafe.Sizeof(Hash{}))
	tokenSize       = int(unsafe.Sizeof(uint32(0)))
	stringTokenSize = int(unsafe.Sizeof(StringToken{}))
	listSize        = int(unsafe.Sizeof([]event.ExtraKey(nil)))
	extraKeySize    = int(unsafe.Sizeof(event.ExtraKey{}))
	mmKeySize       = int(unsafe.Sizeof(event.MMKey{}))
)

// charge takes n times size bytes off what the batch may still use, before
// they are allocated. Memory that is reused is charged like any other: whether
// a batch is read must not depend on the one before.
func (d *Decoder) charge(n, size int) error {
	if n > d.room/size {
		return errMemory
	}
	d.room -= n * size
	return nil
}

func (d *Decoder) remark(kind RemarkKind, key string, offset int) {
	if len(d.batch.Remarks) >= d.lim.MaxRemarks {
		d.batch.RemarksDropped++
		return
	}
	d.batch.Remarks = append(d.batch.Remarks, Remark{Kind: kind, Event: d.at, Key: key, Offset: offset})
}

// maxRemarkKey bounds the part of a name from the wire that a remark keeps.
const maxRemarkKey = 64

// remarkName is remark for a name from the wire. It is only copied when it is
// kept.
func (d *Decoder) remarkName(kind RemarkKind, name []byte, offset int) {
	if len(d.batch.Remarks) >= d.lim.MaxRemarks {
		d.batch.RemarksDropped++
		return
	}
	d.remark(kind, clip(name), offset)
}

func clip(s []byte) string {
	if len(s) > maxRemarkKey {
		s = s[:maxRemarkKey]
	}
	return string(s)
}

func (d *Decoder) fail(key string, offset int, err error) error {
	e := &Error{Op: "decode", Event: d.at, Key: key, Offset: offset, Err: err}
	if err == errMemory {
		e.Err, e.Detail = ErrLimit, fmt.Sprintf("the batch would take more than %d bytes of memory", d.memory)
	}
	return e
}

// The nesting of the contract: envelope, list of events, event. The values of
// an event stand inside that many lists and maps.
const (
	eventDepth = 2
	fieldDepth = 3
)

func (d *Decoder) envelope() error {
	n, p, err := d.r.array(0)
	if err != nil {
		return d.fail("", p, err)
	}
	if n < 2 {
		return &Error{Op: "decode", Event: -1, Offset: 0, Err: ErrShape,
			Detail: fmt.Sprintf("envelope of %d elements", n)}
	}
	ts, exact, next, err := d.r.number(p)
	if err != nil {
		return d.fail("ts", next, err)
	}
	if !exact || math.IsNaN(ts) || math.IsInf(ts, 0) {
		d.remark(RemarkTimestamp, "ts", p)
	}
	d.batch.TS = ts
	if p, err = d.events(next); err != nil {
		return err
	}
	if n == 2 {
		d.remark(RemarkShortEnvelope, "", 0)
	} else if p, err = d.rank(p); err != nil {
		return err
	}
	if n > 3 {
		d.remark(RemarkLongEnvelope, "", p)
	}
	for i := 3; i < n; i++ {
		if p, err = d.r.skip(p, 1); err != nil {
			return d.fail("", p, err)
		}
	}
	if p != len(d.r.b) {
		return d.fail("", p, ErrTrailing)
	}
	return nil
}

func (d *Decoder) rank(p int) (int, error) {
	const key = "data_parallel_rank"
	if d.r.isNil(p) {
		d.remark(RemarkNilRank, key, p)
		return p + 1, nil
	}
	v, negative, next, err := d.r.integer(p)
	switch {
	case err != nil && structural(err):
		return p, d.fail(key, p, err)
	case err != nil:
		d.remark(RemarkBadValue, key, p)
		if next, err = d.r.skip(p, 1); err != nil {
			return p, d.fail(key, next, err)
		}
	case negative:
		d.remark(RemarkNegativeRank, key, p)
	default:
		d.batch.Rank, d.batch.HasRank = v, true
	}
	return next, nil
}

func (d *Decoder) events(p int) (int, error) {
	n, next, err := d.r.array(p)
	if err != nil {
		return p, d.fail("events", next, err)
	}
	if n > d.lim.MaxEvents {
		return p, &Error{Op: "decode", Event: -1, Key: "events", Offset: p, Err: ErrLimit,
			Detail: fmt.Sprintf("%d events, at most %d", n, d.lim.MaxEvents)}
	}
	if err := d.charge(n, eventSize); err != nil {
		return p, d.fail("events", p, err)
	}
	if cap(d.batch.Events) < n {
		d.batch.Events = make([]Event, 0, n)
	}
	p = next
	for i := 0; i < n; i++ {
		d.at = i
		if p, err = d.event(p); err != nil {
			return p, err
		}
	}
	d.at = -1
	return p, nil
}

// event reads the event at p. Only what makes reading on impossible, or one
// invalid event too many, is an error.
func (d *Decoder) event(p int) (int, error) {
	d.batch.Events = append(d.batch.Events, Event{Offset: p})
	ev := &d.batch.Events[len(d.batch.Events)-1]
	next, key, err := d.body(ev, p)
	if err == nil && ev.Kind != KindUnknown {
		return next, nil
	}
	if err != nil {
		bad, badAt := d.fail(key, next, err), next
		if structural(err) {
			return p, bad
		}
		if next, err = d.r.skip(p, eventDepth); err != nil {
			return p, d.fail("", next, err)
		}
		*ev = Event{Kind: ev.Kind, Array: ev.Array, Type: ev.Type, Offset: p, Err: bad}
		d.remark(RemarkInvalidEvent, key, badAt)
	}
	if d.invalid++; d.invalid > d.lim.MaxInvalid {
		return p, &Error{Op: "decode", Event: d.at, Offset: p, Err: ErrLimit,
			Detail: fmt.Sprintf("more than %d unknown or invalid events", d.lim.MaxInvalid)}
	}
	return next, nil
}

// body reads one event in either form. On error it returns the place and the
// key concerned.
func (d *Decoder) body(ev *Event, p int) (int, string, error) {
	if p < len(d.r.b) {
		switch c := d.r.b[p]; {
		case c&0xf0 == 0x80, c == 0xde, c == 0xdf:
			return d.mapEvent(ev, p)
		case c&0xf0 == 0x90, c == 0xdc, c == 0xdd:
			return d.arrayEvent(ev, p)
		}
	}
	return p, "", d.r.wrongType(p)
}

// setType fills Kind and Type.
func (d *Decoder) setType(ev *Event, name []byte) {
	switch string(name) {
	case "BlockStored":
		ev.Kind, ev.Type = KindStored, "BlockStored"
	case "BlockRemoved":
		ev.Kind, ev.Type = KindRemoved, "BlockRemoved"
	case "AllBlocksCleared":
		ev.Kind, ev.Type = KindCleared, "AllBlocksCleared"
	default:
		ev.Kind, ev.Type = KindUnknown, clip(name)
	}
}

const (
	removedSet KeySet = 1<<FieldType | 1<<FieldBlockHashes | 1<<FieldMedium | 1<<FieldGroupIdx |
		1<<FieldLocality | 1<<FieldOwnership
	storedSet KeySet = 1<<numFields - 1
)

// keysOf is indexed by Kind.
var keysOf = [...]KeySet{
	KindUnknown: 0,
	KindStored:  storedSet,
	KindRemoved: removedSet,
	KindCleared: 1 << FieldType,
}

// fieldOf finds the field that a map key names.
func fieldOf(key []byte) (Field, bool) {
	switch string(key) {
	case "type":
		return FieldType, true
	case "block_hashes":
		return FieldBlockHashes, true
	case "parent_block_hash":
		return FieldParentBlockHash, true
	case "token_ids":
		return FieldTokenIDs, true
	case "block_size":
		return FieldBlockSize, true
	case "lora_id":
		return FieldLoRAID, true
	case "medium":
		return FieldMedium, true
	case "lora_name":
		return FieldLoRAName, true
	case "extra_keys":
		return FieldExtraKeys, true
	case "group_idx":
		return FieldGroupIdx, true
	case "kv_cache_spec_kind":
		return FieldSpecKind, true
	case "kv_cache_spec_sliding_window":
		return FieldSlidingWindow, true
	case "locality":
		return FieldLocality, true
	case "ownership":
		return FieldOwnership, true
	case "session_id":
		return FieldSessionID, true
	case "mm_keys":
		return FieldMMKeys, true
	case "cache_salt":
		return FieldCacheSalt, true
	}
	return 0, false
}

// mapEvent reads a tagged map. Keys may come in any order, but what they mean
// depends on the type; so that one is looked up first.
func (d *Decoder) mapEvent(ev *Event, p int) (int, string, error) {
	n, p, err := d.r.mapping(p)
	if err != nil {
		return p, "", err
	}
	at, err := d.findType(ev, p, n)
	if err != nil {
		return at, "type", err
	}
	if ev.Kind == KindUnknown {
		ev.Seen = 1 << FieldType
		d.remark(RemarkUnknownEvent, ev.Type, ev.Offset)
		for i := 0; i < 2*n; i++ {
			if p, err = d.r.skip(p, fieldDepth); err != nil {
				return p, "", err
			}
		}
		return p, "", nil
	}
	for i := 0; i < n; i++ {
		key := []byte(nil)
		keyAt := p
		if d.r.isStr(p) {
			key, p, err = d.r.str(p)
		} else {
			p, err = d.r.skip(p, fieldDepth)
		}
		if err != nil {
			return p, "", err
		}
		f, known := fieldOf(key)
		if !known || !keysOf[ev.Kind].Has(f) {
			d.remarkName(RemarkUnknownKey, key, keyAt)
			if p, err = d.r.skip(p, fieldDepth); err != nil {
				return p, clip(key), err
			}
			continue
		}
		if ev.Seen.Has(f) {
			d.remark(RemarkDuplicateKey, f.String(), keyAt)
		}
		ev.Seen |= 1 << f
		if p, err = d.field(ev, f, p); err != nil {
			return p, f.String(), err
		}
	}
	return d.complete(ev, p)
}

// findType looks for the first key "type" among the n entries at p. On error
// it returns the place.
func (d *Decoder) findType(ev *Event, p, n int) (int, error) {
	start := p
	for i := 0; i < n; i++ {
		var key []byte
		var err error
		if d.r.isStr(p) {
			key, p, err = d.r.str(p)
		} else {
			p, err = d.r.skip(p, fieldDepth)
		}
		if err != nil {
			return p, err
		}
		if string(key) == "type" {
			name, p, err := d.r.str(p)
			if err != nil {
				return p, err
			}
			d.setType(ev, name)
			return p, nil
		}
		if p, err = d.r.skip(p, fieldDepth); err != nil {
			return p, err
		}
	}
	return start, ErrMissing
}

// removedFields are the elements of a BlockRemoved array. Those of a
// BlockStored array are the fields 0 to FieldSlidingWindow in their order.
var removedFields = [...]Field{FieldType, FieldBlockHashes, FieldMedium, FieldGroupIdx}

const (
	storedArrayLen = int(FieldSlidingWindow) + 1
	// The shortest arrays that still say all that is needed.
	storedArrayMin  = int(FieldBlockSize) + 1
	removedArrayMin = 2
)

func (d *Decoder) arrayEvent(ev *Event, p int) (int, string, error) {
	ev.Array = true
	n, p, err := d.r.array(p)
	if err != nil {
		return p, "", err
	}
	if n == 0 {
		return p, "type", ErrMissing
	}
	name, p, err := d.r.str(p)
	if err != nil {
		return p, "type", err
	}
	d.setType(ev, name)
	ev.Seen = 1 << FieldType
	known := 1
	switch ev.Kind {
	case KindUnknown:
		d.remark(RemarkUnknownEvent, ev.Type, ev.Offset)
	case KindStored:
		if n < storedArrayMin {
			return p, Field(n).String(), ErrMissing
		}
		known = storedArrayLen
	case KindRemoved:
		if n < removedArrayMin {
			return p, removedFields[n].String(), ErrMissing
		}
		known = len(removedFields)
	}
	for i := 1; i < min(n, known); i++ {
		f := Field(i)
		if ev.Kind == KindRemoved {
			f = removedFields[i]
		}
		ev.Seen |= 1 << f
		if p, err = d.field(ev, f, p); err != nil {
			return p, f.String(), err
		}
	}
	if n > known && ev.Kind != KindUnknown {
		d.remark(RemarkExtraElements, "", p)
	}
	for i := known; i < n; i++ {
		if p, err = d.r.skip(p, fieldDepth); err != nil {
			return p, "", err
		}
	}
	return d.complete(ev, p)
}

// complete checks that what every reader needs was there.
func (d *Decoder) complete(ev *Event, p int) (int, string, error) {
	var need KeySet
	switch ev.Kind {
	case KindStored:
		need = 1<<FieldBlockHashes | 1<<FieldParentBlockHash | 1<<FieldTokenIDs | 1<<FieldBlockSize
		if !ev.Array && !ev.Seen.Has(FieldLoRAID) {
			d.remark(RemarkMissingKey, FieldLoRAID.String(), ev.Offset)
		}
	case KindRemoved:
		need = 1 << FieldBlockHashes
	}
	if missing := need &^ ev.Seen; missing != 0 {
		for f := FieldType; f < numFields; f++ {
			if missing.Has(f) {
				return ev.Offset, f.String(), ErrMissing
			}
		}
	}
	return p, "", nil
}

// field reads the value of f at p. A part without which an event cannot be
// understood is an error when it is wrong; another one is passed over with a
// remark.
func (d *Decoder) field(ev *Event, f Field, p int) (next int, err error) {
	if f <= FieldLoRAName {
		return d.mainField(ev, f, p)
	}
	if d.r.isNil(p) {
		return p + 1, nil
	}
	x := ev.Extra
	if x == nil {
		if err := d.charge(1, extraSize); err != nil {
			return p, err
		}
		x = new(Extra)
	}
	if next, err = d.extraField(x, f, p); err == nil {
		ev.Extra = x
		return next, nil
	}
	if structural(err) {
		return next, err
	}
	d.remark(RemarkBadValue, f.String(), next)
	return d.r.skip(p, fieldDepth)
}

func (d *Decoder) mainField(ev *Event, f Field, p int) (next int, err error) {
	switch f {
	case FieldType:
		// A repeated type does not count: the first one decided.
		return d.r.skip(p, fieldDepth)
	case FieldBlockHashes:
		return d.hashList(ev, p)
	case FieldParentBlockHash:
		if d.r.isNil(p) {
			ev.Parent, ev.HasParent = Hash{}, false
			return p + 1, nil
		}
		ev.Parent, next, err = d.hash(p)
		ev.HasParent = err == nil
		return next, err
	case FieldTokenIDs:
		return d.tokenList(ev, p)
	case FieldBlockSize:
		v, next, err := d.r.unsigned(p, math.MaxUint32)
		ev.BlockSize = uint32(v)
		return next, err
	case FieldLoRAID:
		if d.r.isNil(p) {
			ev.LoRAID, ev.HasLoRAID = 0, false
			return p + 1, nil
		}
		ev.LoRAID, next, err = d.r.unsigned(p, math.MaxUint64)
		ev.HasLoRAID = err == nil
		return next, err
	case FieldMedium:
		ev.Medium, ev.HasMedium, next, err = d.optString(p, f)
		return next, err
	default:
		ev.LoRAName, _, next, err = d.optString(p, f)
		return next, err
	}
}

func (d *Decoder) extraField(x *Extra, f Field, p int) (next int, err error) {
	switch f {
	case FieldExtraKeys:
		x.ExtraKeys, next, err = d.extraKeys(p)
	case FieldGroupIdx:
		x.GroupIdx, next, err = d.r.unsigned(p, math.MaxUint64)
		x.HasGroupIdx = err == nil
	case FieldSpecKind:
		x.SpecKind, next, err = d.string(p, f)
	case FieldSlidingWindow:
		x.SlidingWindow, next, err = d.r.unsigned(p, math.MaxUint64)
		x.HasWindow = err == nil
	case FieldLocality:
		x.Locality, next, err = d.string(p, f)
	case FieldOwnership:
		x.Ownership, next, err = d.string(p, f)
	case FieldSessionID:
		x.SessionID, next, err = d.string(p, f)
	case FieldMMKeys:
		x.MMKeys, next, err = d.mmKeys(p)
	default:
		x.CacheSalt, next, err = d.string(p, f)
	}
	return next, err
}

// Interned strings: the same few media, adapters and digests come all the time.
const (
	maxInternedLen = 64
	maxInterned    = 256
)

func (d *Decoder) intern(s []byte) string {
	if len(s) == 0 {
		return ""
	}
	if len(s) > maxInternedLen {
		return string(s)
	}
	if known, ok := d.strings[string(s)]; ok {
		return known
	}
	if len(d.strings) >= maxInterned {
		clear(d.strings)
	}
	v := string(s)
	d.strings[v] = v
	return v
}

func (d *Decoder) string(p int, f Field) (string, int, error) {
	s, next, err := d.r.str(p)
	if err != nil {
		return "", next, err
	}
	if len(s) > d.lim.MaxString {
		return "", p, ErrLimit
	}
	if err := d.chargeString(s); err != nil {
		return "", p, err
	}
	if !utf8.Valid(s) {
		d.remark(RemarkUTF8, f.String(), p)
	}
	return d.intern(s), next, nil
}

func (d *Decoder) chargeString(s []byte) error {
	if len(s) == 0 {
		return nil
	}
	return d.charge(1, len(s)+stringCost)
}

func (d *Decoder) optString(p int, f Field) (string, bool, int, error) {
	if d.r.isNil(p) {
		return "", false, p + 1, nil
	}
	s, next, err := d.string(p, f)
	return s, err == nil, next, err
}

// hash reads an integer of any format or a bin.
func (d *Decoder) hash(p int) (Hash, int, error) {
	if d.r.isBin(p) {
		s, next, err := d.r.bin(p)
		if err != nil {
			return Hash{}, next, err
		}
		if len(s) > d.lim.MaxString {
			return Hash{}, p, ErrLimit
		}
		if err := d.chargeString(s); err != nil {
			return Hash{}, p, err
		}
		return HashOfBytes(s), next, nil
	}
	bits, negative, next, err := d.r.integer(p)
	h := Hash{Bits: bits}
	if negative {
		h.Kind = HashNegative
	}
	return h, next, err
}

func (d *Decoder) hashList(ev *Event, p int) (int, error) {
	n, next, err := d.r.array(p)
	if err != nil {
		return next, err
	}
	if n > d.lim.MaxHashes {
		return p, ErrLimit
	}
	if n > maxHashesPerEvent {
		d.remark(RemarkTooManyHashes, FieldBlockHashes.String(), p)
	}
	if err := d.charge(n, hashSize); err != nil {
		return p, err
	}
	p = next
	out := d.hashes.take(n)
	b := d.r.b
	for i := range out {
		// Full width is the rule in our own streams.
		if len(b)-p >= intMax && (b[p] == 0xcf || b[p] == 0xd3) {
			h := binary.BigEndian.Uint64(b[p+1:])
			// 0xd3 and not 0xcf, and the sign bit set.
			out[i] = Hash{Bits: h, Kind: HashKind(b[p]>>2&1^1) & HashKind(h>>63)}
			p += intMax
			continue
		}
		if out[i], p, err = d.hash(p); err != nil {
			return p, err
		}
	}
	ev.Hashes = out
	return p, nil
}

// tokenRead says how a token is taken from the 8 bytes at its format byte:
// shifted left to drop that byte, then right to drop what follows. width 0
// stands for formats that take the slow way.
type tokenRead struct{ left, right, width uint8 }

var tokenReads = func() (t [256]tokenRead) {
	for c := range 0x80 {
		t[c] = tokenRead{0, 56, 1}
	}
	t[0xcc] = tokenRead{8, 56, 2}
	t[0xcd] = tokenRead{8, 48, 3}
	t[0xce] = tokenRead{8, 32, 5}
	return t
}()

func (d *Decoder) tokenList(ev *Event, p int) (int, error) {
	n, next, err := d.r.array(p)
	if err != nil {
		return next, err
	}
	if n > d.lim.MaxTokens {
		return p, ErrLimit
	}
	if err := d.charge(n, tokenSize); err != nil {
		return p, err
	}
	first := next
	p = first
	out := d.tokens.take(n)
	if ev.Extra != nil {
		ev.Extra.StringTokens = nil // a repeated key
	}
	texts := 0
	for i := 0; i < n; i++ {
		read, next := commonTokens(out[i:], d.r.b, p)
		if p, i = next, i+read; i == n {
			break
		}
		v, text, next, err := d.otherToken(p)
		if err != nil {
			return next, err
		}
		texts += text
		out[i] = v
		p = next
	}
	ev.Tokens = out
	if texts > 0 {
		return d.stringTokens(ev, first, texts)
	}
	return p, nil
}

// commonTokens reads tokens in the common formats and returns how many and the
// place of what comes next. Nearly all of a payload is read here: the function
// is small so that all it uses stays in registers.
func commonTokens(out []uint32, b []byte, p int) (read, next int) {
	for i := range out {
		if len(b)-p < wordSlack {
			return i, p
		}
		f := tokenReads[b[p]]
		if f.width == 0 {
			return i, p
		}
		w := binary.BigEndian.Uint64(b[p:])
		out[i] = uint32(w << (f.left & 63) >> (f.right & 63))
		p += int(f.width)
	}
	return len(out), p
}

// otherToken reads a token that is a string, or an integer of another format
// than most, or near the end of the payload. Of a string it returns 0 and text
// 1: strings are read in a second round, when it is known how many there are.
func (d *Decoder) otherToken(p int) (v uint32, text, next int, err error) {
	if d.r.isStr(p) {
		_, next, err = d.r.str(p)
		return 0, 1, next, err
	}
	wide, next, err := d.r.unsigned(p, math.MaxUint32)
	return uint32(wide), 0, next, err
}

// stringTokens reads the strings among the tokens of ev, whose list has its
// first element at p. The list has been read once and is well-formed.
func (d *Decoder) stringTokens(ev *Event, p, texts int) (int, error) {
	size := texts * stringTokenSize
	if ev.Extra == nil {
		size += extraSize
	}
	if err := d.charge(1, size); err != nil {
		return p, err
	}
	list := make([]StringToken, 0, texts)
	for i := range ev.Tokens {
		if !d.r.isStr(p) {
			p += int(scalarWidths[d.r.b[p]])
			continue
		}
		s, next, err := d.string(p, FieldTokenIDs)
		if err != nil {
			return next, err
		}
		list = append(list, StringToken{Index: i, Value: s})
		p = next
	}
	if ev.Extra == nil {
		ev.Extra = new(Extra)
	}
	ev.Extra.StringTokens = list
	return p, nil
}

// extraKeys reads a list with one entry per block, each nil or a mixed list.
// An element that is none of string, [string, int] and bin is dropped with a
// remark.
func (d *Decoder) extraKeys(p int) ([][]event.ExtraKey, int, error) {
	n, p, err := d.r.array(p)
	if err != nil {
		return nil, p, err
	}
	if err := d.charge(n, listSize); err != nil {
		return nil, p, err
	}
	entries := make([][]event.ExtraKey, n)
	for i := range entries {
		if d.r.isNil(p) {
			p++
			continue
		}
		var m int
		if m, p, err = d.r.array(p); err != nil {
			return nil, p, err
		}
		if err := d.charge(m, extraKeySize); err != nil {
			return nil, p, err
		}
		list := make([]event.ExtraKey, 0, m)
		for range m {
			k, next, err := d.extraKey(p)
			switch {
			case err == nil:
				list = append(list, k)
			case structural(err):
				return nil, next, err
			default:
				d.remark(RemarkBadValue, FieldExtraKeys.String(), p)
				if next, err = d.r.skip(p, fieldDepth+2); err != nil {
					return nil, next, err
				}
			}
			p = next
		}
		entries[i] = list
	}
	return entries, p, nil
}

func (d *Decoder) extraKey(p int) (k event.ExtraKey, next int, err error) {
	switch {
	case d.r.isStr(p):
		k.Str, next, err = d.string(p, FieldExtraKeys)
		return k, next, err
	case d.r.isBin(p):
		s, next, err := d.r.bin(p)
		if err == nil && len(s) > d.lim.MaxString {
			return k, p, ErrLimit
		}
		if err == nil {
			err = d.chargeString(s)
		}
		if err != nil {
			return k, next, err
		}
		k.Bin = append([]byte{}, s...)
		return k, next, nil
	}
	n, next, err := d.r.array(p)
	if err != nil {
		return k, next, err
	}
	if n != 2 {
		return k, p, ErrShape
	}
	if k.Item, next, err = d.string(next, FieldExtraKeys); err != nil {
		return k, next, err
	}
	k.Offset, next, err = d.r.signed(next)
	return k, next, err
}

func (d *Decoder) mmKeys(p int) ([][]event.MMKey, int, error) {
	n, p, err := d.r.array(p)
	if err != nil {
		return nil, p, err
	}
	if err := d.charge(n, listSize); err != nil {
		return nil, p, err
	}
	entries := make([][]event.MMKey, n)
	for i := range entries {
		if d.r.isNil(p) {
			p++
			continue
		}
		var m int
		if m, p, err = d.r.array(p); err != nil {
			return nil, p, err
		}
		if err := d.charge(m, mmKeySize); err != nil {
			return nil, p, err
		}
		entries[i] = make([]event.MMKey, m)
		for j := range entries[i] {
			if p, err = d.mmKey(&entries[i][j], p); err != nil {
				return nil, p, err
			}
		}
	}
	return entries, p, nil
}

func (d *Decoder) mmKey(k *event.MMKey, p int) (int, error) {
	start := p
	n, p, err := d.r.mapping(p)
	if err != nil {
		return p, err
	}
	hasHash := false
	for range n {
		var key []byte
		if key, p, err = d.r.str(p); err != nil {
			return p, err
		}
		switch string(key) {
		case "hash":
			k.Hash, p, err = d.string(p, FieldMMKeys)
			hasHash = err == nil
		case "start_offset":
			k.StartOffset, p, err = d.r.signed(p)
		case "uuid":
			k.UUID, k.HasUUID, p, err = d.optString(p, FieldMMKeys)
		case "type":
			p, err = d.r.skip(p, fieldDepth+3)
		default:
			d.remarkName(RemarkUnknownKey, key, p)
			p, err = d.r.skip(p, fieldDepth+3)
		}
		if err != nil {
			return p, err
		}
	}
	if !hasHash {
		return start, ErrMissing
	}
	return p, nil
}
