// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/kvcast/kvcast/bindings/event"
)

// HashKind says what a hash was on the wire.
type HashKind uint8

const (
	// HashUnsigned is an integer >= 0, in whatever format it was written.
	HashUnsigned HashKind = iota
	// HashNegative is an integer below 0.
	HashNegative
	// HashBytes is a str of bytes (msgpack bin) of any length.
	HashBytes
)

// Hash is one block hash as it was seen. It is comparable and serves as a map
// key: two hashes are equal exactly if they are the same value on the wire, in
// whatever width they were written. It aliases nothing.
type Hash struct {
	// Bits is the 64-bit pattern, two's complement for HashNegative. For
	// HashBytes it holds the first 8 bytes, big-endian, zero-filled if there
	// are fewer; Reduce gives the same number for event.Bytes.
	Bits uint64
	// Kind says how Bits is to be read.
	Kind HashKind
	// Raw is the whole value of a HashBytes, and empty for integers.
	Raw string
}

// HashOf returns the Hash under which a 64-bit pattern of the given integer
// form is seen.
func HashOf(bits uint64, form event.Form) Hash {
	if form == event.Signed64 && bits>>63 != 0 {
		return Hash{Bits: bits, Kind: HashNegative}
	}
	return Hash{Bits: bits}
}

// HashOfBytes returns the Hash under which a bytes hash is seen.
func HashOfBytes(b []byte) Hash {
	return Hash{Bits: first8(b), Kind: HashBytes, Raw: string(b)}
}

func first8(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var w [8]byte
	copy(w[:], b)
	return binary.BigEndian.Uint64(w[:])
}

// String returns a decimal number, or 0x and hex digits for a HashBytes.
func (h Hash) String() string {
	switch h.Kind {
	case HashBytes:
		return "0x" + hex.EncodeToString([]byte(h.Raw))
	case HashNegative:
		return strconv.FormatInt(int64(h.Bits), 10)
	default:
		return strconv.FormatUint(h.Bits, 10)
	}
}

// Batch is one decoded payload.
type Batch struct {
	// TS is the time in Unix seconds.
	TS float64
	// Rank is the data-parallel rank; meaningful only if HasRank.
	Rank    uint64
	HasRank bool
	// Events are in the order of the facts.
	Events []Event
	// Remarks list what does not conform to the contract and could be read
	// nevertheless, in the order of the bytes; at most Limits.MaxRemarks.
	Remarks []Remark
	// RemarksDropped counts remarks beyond that number.
	RemarksDropped int
}

// Kind is the type of a decoded event.
type Kind uint8

const (
	// KindUnknown is an event of a type that this package does not know; only
	// Type is set.
	KindUnknown Kind = iota
	// KindStored is a BlockStored.
	KindStored
	// KindRemoved is a BlockRemoved.
	KindRemoved
	// KindCleared is an AllBlocksCleared.
	KindCleared
)

// Field names a part of an event.
type Field uint8

// KeySet is a set of Fields.
type KeySet uint32

// The fields of all event types, in the order of the contract.
const (
	FieldType Field = iota
	FieldBlockHashes
	FieldParentBlockHash
	FieldTokenIDs
	FieldBlockSize
	FieldLoRAID
	FieldMedium
	FieldLoRAName
	FieldExtraKeys
	FieldGroupIdx
	FieldSpecKind
	FieldSlidingWindow
	FieldLocality
	FieldOwnership
	FieldSessionID
	FieldMMKeys
	FieldCacheSalt // SGLang only
	numFields
)

var fieldNames = [numFields]string{
	"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
	"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	"locality", "ownership", "session_id", "mm_keys", "cache_salt",
}

// String returns the key as it is spelled on the wire.
func (f Field) String() string {
	if f < numFields {
		return fieldNames[f]
	}
	return "field(" + strconv.Itoa(int(f)) + ")"
}

// Has reports whether the set holds f.
func (s KeySet) Has(f Field) bool { return s>>f&1 != 0 }

// Event is one decoded event. Which fields mean something follows from Kind.
type Event struct {
	Kind Kind
	// Array reports the array form; otherwise the event was a map.
	Array bool
	// Seen tells which keys or elements were there, nil values included, and so
	// tells nil from absent.
	Seen KeySet
	// Type is the type as spelled on the wire.
	Type string
	// Offset is where the event begins in the payload.
	Offset int
	// Err, an *Error, is not nil if a part that matters could not be read: then
	// Kind, Type, Array and Offset are all that holds, and the other events of
	// the batch are not touched.
	Err error

	// Hashes are in chain order.
	Hashes []Hash
	// Parent is meaningful only if HasParent; else the first block is at the
	// root.
	Parent    Hash
	HasParent bool
	// Tokens holds the token ids; where StringTokens has an entry it is 0.
	Tokens    []uint32
	BlockSize uint32
	// LoRAID is meaningful only if HasLoRAID; LoRAName "" means none.
	LoRAID    uint64
	HasLoRAID bool
	LoRAName  string
	// Medium is meaningful only if HasMedium.
	Medium    string
	HasMedium bool

	// Extra is nil if none of its parts was set.
	Extra *Extra
}

// Extra holds the parts that few events have. Empty strings, nil slices and
// false flags mean that a part was absent or nil.
type Extra struct {
	// StringTokens are the tokens that were strings, by rising Index.
	StringTokens []StringToken
	// ExtraKeys has one entry per block; a nil entry was nil on the wire.
	ExtraKeys [][]event.ExtraKey
	// MMKeys has one list per block.
	MMKeys [][]event.MMKey

	GroupIdx      uint64
	HasGroupIdx   bool
	SpecKind      string
	SlidingWindow uint64
	HasWindow     bool

	Locality, Ownership, SessionID, CacheSalt string
}

// StringToken is a token that was a string: a multimodal digest in hex.
type StringToken struct {
	// Index is its place in Event.Tokens.
	Index int
	Value string
}

// RemarkKind names one way in which bytes do not conform.
type RemarkKind uint8

const (
	// RemarkShortEnvelope: the envelope has 2 elements, no rank.
	RemarkShortEnvelope RemarkKind = iota
	// RemarkLongEnvelope: the envelope has more than 3 elements; they were
	// skipped.
	RemarkLongEnvelope
	// RemarkNilRank: the rank is nil.
	RemarkNilRank
	// RemarkNegativeRank: the rank is below 0.
	RemarkNegativeRank
	// RemarkTimestamp: the time is not a float64, or not finite.
	RemarkTimestamp
	// RemarkUnknownEvent: an event of an unknown type was skipped.
	RemarkUnknownEvent
	// RemarkInvalidEvent: an event has Err set.
	RemarkInvalidEvent
	// RemarkUnknownKey: a map key that is not in the contract was skipped.
	RemarkUnknownKey
	// RemarkDuplicateKey: a key occurs again; which of the values the event
	// then holds is not defined.
	RemarkDuplicateKey
	// RemarkExtraElements: an array event is longer than the contract knows;
	// the rest was skipped.
	RemarkExtraElements
	// RemarkMissingKey: a map event lacks a key that is always present. medium
	// and lora_name are not remarked upon: SGLang leaves them out when unset.
	RemarkMissingKey
	// RemarkBadValue: an optional part has the wrong type or range and was
	// skipped.
	RemarkBadValue
	// RemarkUTF8: a string is not UTF-8; it was kept.
	RemarkUTF8
	// RemarkTooManyHashes: an event has more than 65,536 hashes (I8).
	RemarkTooManyHashes
	numRemarks
)

var remarkNames = [numRemarks]string{
	"envelope of 2 elements", "envelope of more than 3 elements", "nil rank", "negative rank",
	"timestamp is not a finite float64", "unknown event type", "invalid event", "unknown key",
	"duplicate key", "array with extra elements", "missing key", "bad value", "string is not UTF-8",
	"more than 65536 hashes",
}

// String returns a short description.
func (k RemarkKind) String() string {
	if k < numRemarks {
		return remarkNames[k]
	}
	return "remark(" + strconv.Itoa(int(k)) + ")"
}

// Remark is one thing that does not conform.
type Remark struct {
	Kind RemarkKind
	// Event is the index in Batch.Events, or -1 for the envelope.
	Event int
	// Key is the wire name concerned, or "". Names from the wire are cut to 64
	// bytes.
	Key string
	// Offset is the place in the payload.
	Offset int
}

// String returns one line.
func (r Remark) String() string {
	s := r.Kind.String()
	if r.Event >= 0 {
		s = "event " + strconv.Itoa(r.Event) + ": " + s
	}
	if r.Key != "" {
		s += " " + strconv.QuoteToASCII(r.Key)
	}
	return s + " at byte " + strconv.Itoa(r.Offset)
}

// Clone returns a copy that shares nothing with the decoder.
func (b *Batch) Clone() *Batch {
	c := *b
	c.Remarks = slices.Clone(b.Remarks)
	c.Events = slices.Clone(b.Events)
	for i := range c.Events {
		ev := &c.Events[i]
		// Extra and Err are made anew for each event and so need no copy.
		ev.Hashes = slices.Clone(ev.Hashes)
		ev.Tokens = slices.Clone(ev.Tokens)
	}
	return &c
}
