// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/kvcast/kvcast/bindings/event"
)

// Config chooses how an encoder writes events. The zero value is what kvcast
// sends by default: maps with signed hashes of full width.
type Config struct {
	// Encoding is the shape of the events: Map, Array or ArrayShort.
	Encoding Encoding
	// Form is the hash form of the stream; it is the same for the whole life
	// of a publisher (invariant I7).
	Form event.Form
	// MinimalHashes writes integer hashes in their smallest msgpack form. The
	// default writes all of them in 9 bytes, because there is a widely used
	// reader that refuses a message with a shorter hash. Ignored with
	// event.Bytes.
	MinimalHashes bool
}

func (c Config) validate(op string) error {
	if c.Encoding > ArrayShort {
		return &Error{Op: op, Event: -1, Offset: -1, Err: ErrConfig, Detail: c.Encoding.String()}
	}
	if c.Form > event.Bytes {
		return &Error{Op: op, Event: -1, Offset: -1, Err: ErrConfig,
			Detail: fmt.Sprintf("hash form %d", c.Form)}
	}
	return nil
}

// Encoder writes batches. It holds no state besides its configuration and may
// be used by several goroutines at once.
type Encoder struct {
	encoding Encoding
	minimal  bool
	bytes    bool
	// signShift is 63 where a set top bit means a negative number and 64 where
	// it does not; pattern>>signShift is then 1 exactly for a negative hash.
	signShift uint8
}

// NewEncoder returns an encoder, or ErrConfig.
func NewEncoder(c Config) (*Encoder, error) {
	if err := c.validate("encoder"); err != nil {
		return nil, err
	}
	e := &Encoder{encoding: c.Encoding, minimal: c.MinimalHashes, bytes: c.Form == event.Bytes, signShift: 64}
	if c.Form == event.Signed64 {
		e.signShift = 63
	}
	return e, nil
}

// Keys and constant values, each preceded by its msgpack header.
const (
	kType       = "\xa4type"
	kHashes     = "\xacblock_hashes"
	kParent     = "\xb1parent_block_hash"
	kTokens     = "\xa9token_ids"
	kBlockSize  = "\xaablock_size"
	kLoRAID     = "\xa7lora_id"
	kMedium     = "\xa6medium"
	kLoRAName   = "\xa9lora_name"
	kExtraKeys  = "\xaaextra_keys"
	kGroupIdx   = "\xa9group_idx"
	kSpecKind   = "\xb2kv_cache_spec_kind"
	kWindow     = "\xbckv_cache_spec_sliding_window"
	kLocality   = "\xa8locality"
	kOwnership  = "\xa9ownership"
	kSessionID  = "\xaasession_id"
	kMMKeys     = "\xa7mm_keys"
	kMMHash     = "\xa4hash"
	kMMOffset   = "\xacstart_offset"
	kMMUUID     = "\xa4uuid"
	vStored     = "\xabBlockStored"
	vRemoved    = "\xacBlockRemoved"
	vCleared    = "\xb0AllBlocksCleared"
	vMMKey      = "\xa6mm_key"
	storedHead  = kType + vStored + kHashes
	removedHead = kType + vRemoved + kHashes
	clearedMap  = "\x81" + kType + vCleared
)

const (
	storedKeys  = 8 // keys that every stored event has, type included
	removedKeys = 3

	// wordSlack lets the loops store whole 8-byte words at the end.
	wordSlack = 8
	// headerMax is the longest msgpack header of a list, map, str or bin.
	headerMax = 5
	// intMax is the longest msgpack integer.
	intMax = 9

	// storedFixed bounds a stored event without hashes, tokens and strings:
	// map header, keys, list headers, block_size and lora_id.
	storedFixed = headerMax + len(storedHead) + len(kParent) + len(kTokens) + len(kBlockSize) +
		len(kLoRAID) + len(kMedium) + len(kLoRAName) + 4*headerMax + 2*intMax + wordSlack
	removedFixed = headerMax + len(removedHead) + len(kMedium) + 2*headerMax + wordSlack
)

// AppendBatch appends the payload [ts, events, rank] to dst and returns the
// longer slice. ts is in Unix seconds; rank is the global data-parallel rank.
// It checks types only: any well-typed event in any order is written, also one
// that a publisher must refuse (Checker is for that). What the encoding has no
// place for is refused, not left out.
//
// Nothing is allocated when dst has room. The bytes between the length and the
// capacity of the result are scratch. On error the result is dst unchanged,
// and the error wraps ErrTimestamp, ErrEventType, ErrHashForm, ErrShape or
// ErrNoSlot.
// Events are read only and not kept.
func (e *Encoder) AppendBatch(dst []byte, ts float64, events []event.Event, rank uint64) ([]byte, error) {
	base := len(dst)
	dst, err := e.AppendHead(dst, ts, len(events))
	if err != nil {
		return dst, err
	}
	if dst, err = e.AppendEvents(dst, events); err != nil {
		return dst[:base], err
	}
	return e.AppendRank(dst, rank), nil
}

// AppendHead appends what stands before the events of a payload. With
// AppendEvents, called as often as needed for so many events in all, and
// AppendRank it makes the payload that AppendBatch makes, for whoever does not have
// all events at once.
func (e *Encoder) AppendHead(dst []byte, ts float64, events int) ([]byte, error) {
	if math.IsNaN(ts) || math.IsInf(ts, 0) {
		return dst, &Error{Op: "encode", Event: -1, Key: "ts", Offset: -1, Err: ErrTimestamp}
	}
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	return appendArrayHeader(dst, events), nil
}

// AppendRank appends what stands behind the events.
func (e *Encoder) AppendRank(dst []byte, rank uint64) []byte { return appendUint(dst, rank) }

// AppendEvents appends events one behind the other; see AppendBatch for what is
// checked. On error the result is dst unchanged.
func (e *Encoder) AppendEvents(dst []byte, events []event.Event) ([]byte, error) {
	base := len(dst)
	for i, ev := range events {
		var key string
		var err error
		switch v := ev.(type) {
		case *event.BlockStored:
			if v == nil {
				err = ErrEventType
				break
			}
			if key, err = e.checkStored(v); err != nil {
				break
			}
			if e.encoding == Map {
				dst = e.appendStored(dst, v)
			} else {
				dst = e.appendStoredArray(dst, v)
			}
		case *event.BlockRemoved:
			if v == nil {
				err = ErrEventType
				break
			}
			if key, err = e.checkRemoved(v); err != nil {
				break
			}
			if e.encoding == Map {
				dst = e.appendRemoved(dst, v)
			} else {
				dst = e.appendRemovedArray(dst, v)
			}
		case *event.AllBlocksCleared:
			if v == nil {
				err = ErrEventType
				break
			}
			if e.encoding == Map {
				dst = append(dst, clearedMap...)
			} else {
				dst = append(dst, clearedArray...)
			}
		default:
			err = ErrEventType
		}
		if err != nil {
			return dst[:base], e.refusal(i, key, err)
		}
	}
	return dst, nil
}

// refusal is the error for the event of index i.
func (e *Encoder) refusal(i int, key string, err error) error {
	return &Error{Op: "encode", Event: i, Key: key, Offset: -1, Err: err, Detail: e.encoding.detail(err)}
}

// tooLarge reports whether a length is beyond what msgpack can express. All
// lengths can be or-ed first: none is too large unless the result is.
func tooLarge(lengths int) bool { return uint64(lengths) > math.MaxUint32 }

// checkHashes refuses an event that holds the other kind of hashes.
func (e *Encoder) checkHashes(hashes []uint64, digests []event.Digest) (string, error) {
	if tooLarge(len(hashes) | len(digests)) {
		return "block_hashes", ErrShape
	}
	if e.bytes && len(hashes) != 0 || !e.bytes && len(digests) != 0 {
		return "block_hashes", ErrHashForm
	}
	return "", nil
}

func (e *Encoder) checkRemoved(r *event.BlockRemoved) (string, error) {
	if key, err := removedShape(r); err != nil {
		return key, err
	}
	if key, err := e.checkHashes(r.Hashes, r.Digests); err != nil {
		return key, err
	}
	return e.encoding.removedSlots(r)
}

// removedShape and storedShape refuse what cannot be written, whatever the form
// of the hashes. Checker refuses by them, too.
func removedShape(r *event.BlockRemoved) (string, error) {
	if tooLarge(len(r.Medium) | len(r.Locality) | len(r.Ownership)) {
		return "medium, locality, ownership", ErrShape
	}
	return "", nil
}

func (e *Encoder) checkStored(s *event.BlockStored) (string, error) {
	if key, err := e.checkHashes(s.Hashes, s.Digests); err != nil {
		return key, err
	}
	if key, err := storedShape(s); err != nil {
		return key, err
	}
	return e.encoding.storedSlots(s)
}

func storedShape(s *event.BlockStored) (string, error) {
	if tooLarge(len(s.Tokens)) {
		return "token_ids", ErrShape
	}
	if tooLarge(len(s.Medium) | len(s.LoRAName)) {
		return "medium, lora_name", ErrShape
	}
	if s.Extra == nil {
		return "", nil
	}
	return checkExtra(s)
}

// checkExtra refuses optional parts that cannot be written.
func checkExtra(s *event.BlockStored) (string, error) {
	x := s.Extra
	if x.HexTokens != nil && len(x.HexTokens) != len(s.Tokens) {
		return "token_ids", ErrShape
	}
	lengths := len(x.ExtraKeys) | len(x.MMKeys) | len(x.SpecKind) | len(x.Locality) |
		len(x.Ownership) | len(x.SessionID)
	for _, s := range x.HexTokens {
		lengths |= len(s)
	}
	for _, entry := range x.MMKeys {
		lengths |= len(entry)
		for i := range entry {
			lengths |= len(entry[i].Hash) | len(entry[i].UUID)
		}
	}
	for _, entry := range x.ExtraKeys {
		lengths |= len(entry)
		for i := range entry {
			lengths |= len(entry[i].Str) | len(entry[i].Item) | len(entry[i].Bin)
			set := 0
			if entry[i].Str != "" {
				set++
			}
			if entry[i].Item != "" {
				set++
			}
			if entry[i].Bin != nil {
				set++
			}
			if set != 1 {
				return "extra_keys", ErrShape
			}
		}
	}
	if tooLarge(lengths) {
		return "", ErrShape
	}
	return "", nil
}

func (e *Encoder) appendStored(dst []byte, s *event.BlockStored) []byte {
	// One growth for all that is long; the rest of the event is written by
	// index into the slice, the optional keys by append.
	dst = slices.Grow(dst, storedFixed+len(s.Medium)+len(s.LoRAName)+
		e.hashBound(len(s.Hashes)+1, len(s.Digests)+1)+5*len(s.Tokens))
	b, p := dst[:cap(dst)], len(dst)

	x := s.Extra
	keys := storedKeys
	if x != nil {
		keys += optionalKeys(x)
	}
	p = putMapHeader(b, p, keys)
	p += copy(b[p:], storedHead)
	p = e.putHashes(b, p, s.Hashes, s.Digests)
	p += copy(b[p:], kParent)
	if s.HasParent {
		p = e.putHash(b, p, s.ParentHash, &s.ParentDigest)
	} else {
		b[p] = 0xc0
		p++
	}
	p += copy(b[p:], kTokens)
	p = putArrayHeader(b, p, len(s.Tokens))
	if x == nil || x.HexTokens == nil {
		p = putTokens(b, p, s.Tokens)
	} else {
		dst = appendHexTokens(b[:p], s.Tokens, x.HexTokens)
		dst = slices.Grow(dst, storedFixed+len(s.Medium)+len(s.LoRAName))
		b, p = dst[:cap(dst)], len(dst)
	}
	p += copy(b[p:], kBlockSize)
	p = putUint(b, p, uint64(s.BlockSize))
	p += copy(b[p:], kLoRAID)
	p = putUintOrNil(b, p, s.LoRAID, s.HasLoRAID)
	p += copy(b[p:], kMedium)
	p = putStringOrNil(b, p, s.Medium, s.HasMedium)
	p += copy(b[p:], kLoRAName)
	p = putStringOrNil(b, p, s.LoRAName, s.LoRAName != "")
	if x == nil {
		return b[:p]
	}
	return appendExtra(b[:p], x)
}

func (e *Encoder) appendRemoved(dst []byte, r *event.BlockRemoved) []byte {
	dst = slices.Grow(dst, removedFixed+len(r.Medium)+e.hashBound(len(r.Hashes), len(r.Digests)))
	b, p := dst[:cap(dst)], len(dst)
	keys := removedKeys
	if r.HasGroupIdx {
		keys++
	}
	if r.Locality != "" {
		keys++
	}
	if r.Ownership != "" {
		keys++
	}
	b[p] = 0x80 | byte(keys)
	p++
	p += copy(b[p:], removedHead)
	p = e.putHashes(b, p, r.Hashes, r.Digests)
	p += copy(b[p:], kMedium)
	p = putStringOrNil(b, p, r.Medium, r.HasMedium)
	dst = b[:p]
	if keys == removedKeys {
		return dst
	}
	if r.HasGroupIdx {
		dst = append(dst, kGroupIdx...)
		dst = appendUint(dst, r.GroupIdx)
	}
	dst = appendStringKey(dst, kLocality, r.Locality)
	return appendStringKey(dst, kOwnership, r.Ownership)
}

// hashBound is the most bytes that the given number of hashes takes; only one
// of the two counts applies.
func (e *Encoder) hashBound(hashes, digests int) int {
	if e.bytes {
		return digests * (2 + len(event.Digest{}))
	}
	return hashes * intMax
}

func (e *Encoder) putHashes(b []byte, p int, hashes []uint64, digests []event.Digest) int {
	if e.bytes {
		p = putArrayHeader(b, p, len(digests))
		for i := range digests {
			p = putDigest(b, p, &digests[i])
		}
		return p
	}
	p = putArrayHeader(b, p, len(hashes))
	if e.minimal {
		for _, h := range hashes {
			p = e.putMinimalHash(b, p, h)
		}
		return p
	}
	shift := e.signShift
	for _, h := range hashes {
		w := b[p : p+intMax]
		// 0xcf (uint64) and 0xd3 (int64) differ by 4.
		w[0] = 0xcf + byte(h>>shift)<<2
		binary.BigEndian.PutUint64(w[1:], h)
		p += intMax
	}
	return p
}

func (e *Encoder) putHash(b []byte, p int, h uint64, d *event.Digest) int {
	switch {
	case e.bytes:
		return putDigest(b, p, d)
	case e.minimal:
		return e.putMinimalHash(b, p, h)
	}
	b[p] = 0xcf + byte(h>>e.signShift)<<2
	binary.BigEndian.PutUint64(b[p+1:], h)
	return p + intMax
}

func (e *Encoder) putMinimalHash(b []byte, p int, h uint64) int {
	if h>>e.signShift != 0 {
		return putNegative(b, p, int64(h))
	}
	return putUint(b, p, h)
}

func putDigest(b []byte, p int, d *event.Digest) int {
	b[p], b[p+1] = 0xc4, byte(len(d))
	return p + 2 + copy(b[p+2:], d[:])
}

// tokenForm says how a number of a given bit length is written: the format
// byte in front of it, how far header and number are shifted to the top of a
// 64-bit word, and how many bytes of the word count.
type tokenForm struct {
	prefix uint64
	shift  uint8
	width  uint8
}

// tokenForms is indexed by bit length. The table makes the choice of width
// free of branches: the ids of one vocabulary straddle two widths at random,
// and a mispredicted branch costs more than the whole token.
var tokenForms = func() (t [33]tokenForm) {
	for n := range t {
		switch {
		case n <= 7:
			t[n] = tokenForm{0, 56, 1}
		case n <= 8:
			t[n] = tokenForm{0xcc << 8, 48, 2}
		case n <= 16:
			t[n] = tokenForm{0xcd << 16, 40, 3}
		default:
			t[n] = tokenForm{0xce << 32, 24, 5}
		}
	}
	return t
}()

// putTokens needs wordSlack bytes more in b than it writes. Inlined, the loop
// would keep p on the stack of its large caller, and each token would wait for
// that store (measured at 8 blocks of 16 tokens: 32 instead of 26 ns per
// block; finding the width by three comparisons in place of the bit length
// takes 39).
//
//go:noinline
func putTokens(b []byte, p int, tokens []uint32) int {
	for _, t := range tokens {
		f := &tokenForms[bits.Len32(t)]
		binary.BigEndian.PutUint64(b[p:p+wordSlack], (f.prefix|uint64(t))<<(f.shift&63))
		p += int(f.width)
	}
	return p
}

func appendHexTokens(dst []byte, tokens []uint32, hex []string) []byte {
	for i, t := range tokens {
		if hex[i] != "" {
			dst = appendString(dst, hex[i])
		} else {
			dst = appendUint(dst, uint64(t))
		}
	}
	return dst
}

func optionalKeys(x *event.StoredExtra) int {
	n := 0
	for _, set := range [...]bool{
		x.ExtraKeys != nil, x.HasGroupIdx, x.SpecKind != "", x.HasWindow,
		x.Locality != "", x.Ownership != "", x.SessionID != "", x.MMKeys != nil,
	} {
		if set {
			n++
		}
	}
	return n
}

func appendExtra(dst []byte, x *event.StoredExtra) []byte {
	if x.ExtraKeys != nil {
		dst = append(dst, kExtraKeys...)
		dst = appendExtraKeysList(dst, x.ExtraKeys)
	}
	if x.HasGroupIdx {
		dst = append(dst, kGroupIdx...)
		dst = appendUint(dst, x.GroupIdx)
	}
	dst = appendStringKey(dst, kSpecKind, x.SpecKind)
	if x.HasWindow {
		dst = append(dst, kWindow...)
		dst = appendUint(dst, x.SlidingWindow)
	}
	dst = appendStringKey(dst, kLocality, x.Locality)
	dst = appendStringKey(dst, kOwnership, x.Ownership)
	dst = appendStringKey(dst, kSessionID, x.SessionID)
	if x.MMKeys != nil {
		dst = append(dst, kMMKeys...)
		dst = appendArrayHeader(dst, len(x.MMKeys))
		for _, entry := range x.MMKeys {
			dst = appendMMKeys(dst, entry)
		}
	}
	return dst
}

func appendExtraKeysList(dst []byte, list [][]event.ExtraKey) []byte {
	dst = appendArrayHeader(dst, len(list))
	for _, entry := range list {
		dst = appendExtraKeys(dst, entry)
	}
	return dst
}

func appendExtraKeys(dst []byte, entry []event.ExtraKey) []byte {
	if entry == nil {
		return append(dst, 0xc0)
	}
	dst = appendArrayHeader(dst, len(entry))
	for i := range entry {
		switch k := &entry[i]; {
		case k.Str != "":
			dst = appendString(dst, k.Str)
		case k.Item != "":
			dst = append(dst, 0x92)
			dst = appendString(dst, k.Item)
			dst = appendInt(dst, k.Offset)
		default:
			dst = appendBin(dst, k.Bin)
		}
	}
	return dst
}

func appendMMKeys(dst []byte, entry []event.MMKey) []byte {
	dst = appendArrayHeader(dst, len(entry))
	for i := range entry {
		k := &entry[i]
		if k.HasUUID {
			dst = append(dst, 0x84)
		} else {
			dst = append(dst, 0x83)
		}
		dst = append(dst, kType+vMMKey+kMMHash...)
		dst = appendString(dst, k.Hash)
		dst = append(dst, kMMOffset...)
		dst = appendInt(dst, k.StartOffset)
		if k.HasUUID {
			dst = append(dst, kMMUUID...)
			dst = appendString(dst, k.UUID)
		}
	}
	return dst
}
