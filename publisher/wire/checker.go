// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"unicode/utf8"

	"github.com/kvcast/kvcast/bindings/event"
)

// Checker tells whether an event may be published: it has at least one hash,
// and the invariants I1 (hashes differ from each other and from the parent),
// I2 (the tokens, and what else is given per block or token, fit the blocks),
// I4 (LoRA id), I6 (block size not 0) and I9 (UTF-8) hold. I3 holds by the
// type of a token. That block_size is one per group and life, and that parents
// are known, depends on earlier events and is not checked here.
//
// What Check accepts, both encoders can write: an event that the encoder refused
// would take the whole batch with it. A Checker from NewChecker answers for the
// Config that it was made for, and so also refuses hashes of another form and
// keys that have no place in the array forms.
//
// The zero value is ready, too: it answers for the map form and takes hashes of
// either form, which must then be that of the encoder. A Checker keeps its memory and allocates nothing in
// steady state; it must not be used by two goroutines at once.
type Checker struct {
	// table holds indexes into the hashes of one event, tagged with the stamp
	// of that event, so that it needs no clearing.
	table []slot
	stamp uint32
	seed  uint64

	encoding Encoding
	// refused is the kind of hashes that the form excludes.
	refused hashKind
}

// hashKind is one of the two lists in which an event may have its hashes.
type hashKind uint8

const (
	noKind hashKind = iota
	integerHashes
	digestHashes
)

// NewChecker returns a Checker for what encoders of this Config write, or
// ErrConfig.
func NewChecker(c Config) (*Checker, error) {
	if err := c.validate("checker"); err != nil {
		return nil, err
	}
	k := &Checker{encoding: c.Encoding, refused: digestHashes}
	if c.Form == event.Bytes {
		k.refused = integerHashes
	}
	return k, nil
}

type slot struct{ stamp, index uint32 }

// pairwiseMax is up to how many hashes all pairs are compared. Measured per
// hash: pairs 4.0 ns at 8 and 4.9 ns at 16, table 3.4 ns at 17.
const pairwiseMax = 8

// CheckEvent checks one event with a Checker of its own, the zero value. It
// allocates for an event of more than 8 blocks.
func CheckEvent(ev event.Event) error {
	var c Checker
	return c.Check(ev)
}

// CheckEvent checks one event with a Checker of its own, made for this Config.
// It allocates; its errors are those of NewChecker and of Check.
func (c Config) CheckEvent(ev event.Event) error {
	k, err := NewChecker(c)
	if err != nil {
		return err
	}
	return k.Check(ev)
}

// Check returns nil, or an *Error that wraps ErrEventType, ErrNoHashes,
// ErrHashForm, ErrShape, ErrNoSlot, ErrDuplicateHash, ErrTokenCount, ErrMultimodal,
// ErrLoRAID, ErrBlockSize or ErrUTF8.
func (c *Checker) Check(ev event.Event) error {
	switch v := ev.(type) {
	case *event.BlockStored:
		if v != nil {
			return c.stored(v)
		}
	case *event.BlockRemoved:
		if v != nil {
			return c.removed(v)
		}
	case *event.AllBlocksCleared:
		if v != nil {
			return nil
		}
	}
	return invalid("", ErrEventType, "")
}

func invalid(key string, err error, detail string) error {
	return &Error{Op: "check event", Event: -1, Key: key, Offset: -1, Err: err, Detail: detail}
}

// slots turns what the encoding's check found into an error.
func (c *Checker) slots(key string, err error) error {
	if err != nil {
		return invalid(key, err, c.encoding.detail(err))
	}
	return nil
}

// blocks returns the number of blocks.
func (c *Checker) blocks(hashes []uint64, digests []event.Digest) (int, error) {
	if len(hashes) != 0 && len(digests) != 0 {
		return 0, invalid("block_hashes", ErrHashForm, "integers and digests")
	}
	if tooLarge(len(hashes) | len(digests)) {
		return 0, invalid("block_hashes", ErrShape, "")
	}
	if c.refused == integerHashes && len(hashes) != 0 || c.refused == digestHashes && len(digests) != 0 {
		return 0, invalid("block_hashes", ErrHashForm, "")
	}
	n := len(hashes) + len(digests)
	if n == 0 {
		return 0, invalid("block_hashes", ErrNoHashes, "")
	}
	return n, nil
}

func (c *Checker) removed(r *event.BlockRemoved) error {
	if _, err := c.blocks(r.Hashes, r.Digests); err != nil {
		return err
	}
	if key, err := removedShape(r); err != nil {
		return invalid(key, err, "")
	}
	if err := c.slots(c.encoding.removedSlots(r)); err != nil {
		return err
	}
	if !utf8.ValidString(r.Medium) {
		return invalid("medium", ErrUTF8, "")
	}
	if !utf8.ValidString(r.Locality) {
		return invalid("locality", ErrUTF8, "")
	}
	if !utf8.ValidString(r.Ownership) {
		return invalid("ownership", ErrUTF8, "")
	}
	return nil
}

func (c *Checker) stored(s *event.BlockStored) error {
	n, err := c.blocks(s.Hashes, s.Digests)
	if err != nil {
		return err
	}
	if s.BlockSize == 0 {
		return invalid("block_size", ErrBlockSize, "")
	}
	if uint64(len(s.Tokens)) != uint64(n)*uint64(s.BlockSize) {
		return invalid("token_ids", ErrTokenCount,
			fmt.Sprintf("%d tokens for %d blocks of %d", len(s.Tokens), n, s.BlockSize))
	}
	if len(s.MMDigests) != 0 {
		return invalid("token_ids", ErrMultimodal, "")
	}
	if s.Extra != nil {
		if err := checkCounts(s, n); err != nil {
			return err
		}
	}
	if key, err := storedShape(s); err != nil {
		return invalid(key, err, "")
	}
	if err := c.slots(c.encoding.storedSlots(s)); err != nil {
		return err
	}
	if s.HasLoRAID && s.LoRAID > math.MaxInt64 {
		return invalid("lora_id", ErrLoRAID, "")
	}
	if !utf8.ValidString(s.Medium) {
		return invalid("medium", ErrUTF8, "")
	}
	if !utf8.ValidString(s.LoRAName) {
		return invalid("lora_name", ErrUTF8, "")
	}
	if s.Extra != nil {
		if err := checkStrings(s.Extra); err != nil {
			return err
		}
	}
	i := -1
	switch {
	case len(s.Digests) != 0:
		i = c.duplicateDigest(s.Digests, &s.ParentDigest, s.HasParent)
	case n <= pairwiseMax:
		i = duplicatePairwise(s.Hashes, s.ParentHash, s.HasParent)
	default:
		i = c.duplicate(s.Hashes, s.ParentHash, s.HasParent)
	}
	if i >= 0 {
		return invalid("block_hashes", ErrDuplicateHash, fmt.Sprintf("hash %d", i))
	}
	return nil
}

// duplicatePairwise returns the index of a hash that equals an earlier one or
// the parent, or -1.
func duplicatePairwise(hashes []uint64, parent uint64, hasParent bool) int {
	for i, h := range hashes {
		if hasParent && h == parent {
			return i
		}
		for _, g := range hashes[:i] {
			if g == h {
				return i
			}
		}
	}
	return -1
}

// reset prepares the table for n entries at a load of at most one half, and
// returns the shift that turns a mixed 64-bit number into a place.
func (c *Checker) reset(n int) (shift uint) {
	size := 64
	for shift = 58; size < 2*n; shift-- {
		size *= 2
	}
	if len(c.table) < size {
		c.table = make([]slot, size)
		c.stamp = 0
		// Hashes may come from outside: without a seed one could choose them so
		// that all fall into one run of the table.
		c.seed = rand.Uint64()
	}
	if c.stamp++; c.stamp == 0 { // wrapped: old stamps would come to life
		clear(c.table)
		c.stamp = 1
	}
	return shift
}

// place mixes all bits of h into the top ones.
func (c *Checker) place(h uint64, shift uint) uint64 {
	h ^= c.seed
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return ((h ^ h>>29) * 0xbf58476d1ce4e5b9) >> shift
}

func (c *Checker) duplicate(hashes []uint64, parent uint64, hasParent bool) int {
	shift := c.reset(len(hashes))
	table := c.table[:1<<(64-shift)]
	mask := uint64(len(table) - 1)
	for i, h := range hashes {
		if hasParent && h == parent {
			return i
		}
		at := c.place(h, shift)
		for table[at&mask].stamp == c.stamp {
			if hashes[table[at&mask].index] == h {
				return i
			}
			at++
		}
		table[at&mask] = slot{c.stamp, uint32(i)}
	}
	return -1
}

func (c *Checker) duplicateDigest(digests []event.Digest, parent *event.Digest, hasParent bool) int {
	shift := c.reset(len(digests))
	table := c.table[:1<<(64-shift)]
	mask := uint64(len(table) - 1)
	for i := range digests {
		if hasParent && digests[i] == *parent {
			return i
		}
		at := c.place(foldDigest(&digests[i]), shift)
		for table[at&mask].stamp == c.stamp {
			if digests[table[at&mask].index] == digests[i] {
				return i
			}
			at++
		}
		table[at&mask] = slot{c.stamp, uint32(i)}
	}
	return -1
}

// foldDigest takes all bytes into account: a host's digests need not be random
// in any part.
func foldDigest(d *event.Digest) uint64 {
	h := uint64(0)
	for i := 0; i < len(d); i += 8 {
		h = (h ^ binary.LittleEndian.Uint64(d[i:])) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// checkCounts compares what is given per block or token with n blocks.
func checkCounts(s *event.BlockStored, n int) error {
	x := s.Extra
	if x.ExtraKeys != nil && len(x.ExtraKeys) != n {
		return invalid("extra_keys", ErrTokenCount, fmt.Sprintf("%d entries for %d blocks", len(x.ExtraKeys), n))
	}
	if x.MMKeys != nil && len(x.MMKeys) != n {
		return invalid("mm_keys", ErrTokenCount, fmt.Sprintf("%d entries for %d blocks", len(x.MMKeys), n))
	}
	if x.HexTokens != nil && len(x.HexTokens) != len(s.Tokens) {
		return invalid("token_ids", ErrTokenCount,
			fmt.Sprintf("%d strings for %d tokens", len(x.HexTokens), len(s.Tokens)))
	}
	return nil
}

func checkStrings(x *event.StoredExtra) error {
	for _, f := range [...]struct{ key, value string }{
		{"kv_cache_spec_kind", x.SpecKind},
		{"locality", x.Locality},
		{"ownership", x.Ownership},
		{"session_id", x.SessionID},
	} {
		if !utf8.ValidString(f.value) {
			return invalid(f.key, ErrUTF8, "")
		}
	}
	for _, t := range x.HexTokens {
		if !utf8.ValidString(t) {
			return invalid("token_ids", ErrUTF8, "")
		}
	}
	for _, entry := range x.ExtraKeys {
		for i := range entry {
			if !utf8.ValidString(entry[i].Str) || !utf8.ValidString(entry[i].Item) {
				return invalid("extra_keys", ErrUTF8, "")
			}
		}
	}
	for _, entry := range x.MMKeys {
		for i := range entry {
			if !utf8.ValidString(entry[i].Hash) || !utf8.ValidString(entry[i].UUID) {
				return invalid("mm_keys", ErrUTF8, "")
			}
		}
	}
	return nil
}
