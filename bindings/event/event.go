// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package event holds the values that travel from the allocator to the wire:
// BlockStored, BlockRemoved and AllBlocksCleared.
//
// It is a package of its own, pure Go and without cgo, so that the wire
// encoder and decoder can be used by programs that do not link the allocator.
// Package bindings re-exports the types under the same names.
package event

// Digest is a block key: SHA-256 over the parent's key and the block's tokens.
type Digest [32]byte

// DigestToken is the token that stands for the i-th of the digests that come with
// the tokens. i is below 2^31.
func DigestToken(i int) uint32 { return digestBit | uint32(i) }

// IsDigestToken tells the digest's index back; false: the token is a token id.
func IsDigestToken(token uint32) (int, bool) {
	return int(token &^ digestBit), token&digestBit != 0
}

const digestBit = 1 << 31

// Form says how a 64-bit hash pattern is to be read and written.
type Form uint8

// The wire hash forms. The numbers are those of kvc_hash_form.
const (
	// Signed64 is the first 8 digest bytes, big-endian, as two's complement.
	Signed64 Form = iota
	// Unsigned64 is the last 8 digest bytes, big-endian, unsigned.
	Unsigned64
	// Portable63 is first8>>1, with bit 62 set if the result is below 2^32.
	Portable63
	// Bytes is the whole digest, written as msgpack bin.
	Bytes
)

// Event is one of *BlockStored, *BlockRemoved and *AllBlocksCleared.
type Event interface{ isEvent() }

// BlockStored says that a chain of blocks became reusable in one medium.
//
// Values that come from an attached stream are reused: their slices alias
// native memory and are valid only until the batch is released.
type BlockStored struct {
	// Hashes are the wire hashes in chain order, as 64-bit patterns (for
	// Signed64 the two's-complement pattern). Empty with the Bytes form.
	Hashes []uint64
	// Digests take the place of Hashes with the Bytes form.
	Digests []Digest
	// ParentHash (ParentDigest with the Bytes form) is the block before the
	// first one; meaningful only if HasParent, else the parent is the root.
	ParentHash   uint64
	ParentDigest Digest
	HasParent    bool

	// Tokens holds BlockSize token ids for each block, in order. DigestToken(i)
	// stands for MMDigests[i].
	Tokens    []uint32
	BlockSize uint32
	// MMDigests are those of the multimodal items among the tokens, one for each
	// such token, in their order. Only a stream that announces multimodal blocks
	// has any, and the wire encoder takes no event that has.
	MMDigests []Digest

	// LoRAID is meaningful only if HasLoRAID; LoRAName "" means no name.
	LoRAID    uint64
	HasLoRAID bool
	LoRAName  string

	// Medium is the tier in wire words: GPU, CPU, STORAGE. HasMedium false
	// writes nil, which kvcast itself never does.
	Medium    string
	HasMedium bool

	// Extra holds what few events have; nil in nearly all of them.
	Extra *StoredExtra
}

// BlockRemoved says that blocks are no longer reusable in one medium.
type BlockRemoved struct {
	Hashes  []uint64
	Digests []Digest
	// Reasons says why each of them went, in their order; nil: unknown. A stream's
	// events have it, and it is for the program that drains: the wire has no place
	// for it, so a decoded event has none.
	Reasons   []EvictedReason
	Medium    string
	HasMedium bool

	// GroupIdx is written only if HasGroupIdx.
	GroupIdx    uint64
	HasGroupIdx bool
	// Locality and Ownership are written only if not empty.
	Locality, Ownership string
}

// AllBlocksCleared says that nothing announced before is reusable any more.
type AllBlocksCleared struct{}

// StoredExtra holds the optional keys of BlockStored. Empty strings, nil
// slices and false flags mean "not set".
type StoredExtra struct {
	// ExtraKeys has one entry per block when ExtraKeys != nil; an entry is nil
	// or a list of ExtraKey.
	ExtraKeys [][]ExtraKey

	GroupIdx      uint64
	HasGroupIdx   bool
	SpecKind      string
	SlidingWindow uint64
	HasWindow     bool

	Locality, Ownership, SessionID string

	// MMKeys has one list per block when MMKeys != nil.
	MMKeys [][]MMKey

	// HexTokens, when not nil, has one entry per token; a non-empty entry is
	// written as that string in place of the token id.
	HexTokens []string
}

// ExtraKey is one element of an extra_keys entry: exactly one field is set.
type ExtraKey struct {
	// Str is a plain string, such as a LoRA name.
	Str string
	// Item and Offset are a multimodal [item, offset] pair when Item != "".
	Item   string
	Offset int64
	// Bin is raw bytes, such as a prompt-embedding digest.
	Bin []byte
}

// MMKey is one entry of mm_keys.
type MMKey struct {
	Hash        string
	StartOffset int64
	UUID        string
	HasUUID     bool
}

func (*BlockStored) isEvent()      {}
func (*BlockRemoved) isEvent()     {}
func (*AllBlocksCleared) isEvent() {}
