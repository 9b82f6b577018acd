// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// MatchHashes returns how many of the hashes of a prompt's blocks, from the first
// on, are announced in any medium: how much of the prompt can be reused over
// there, for a router that computes the engine's hashes.
func (m *Mirror) MatchHashes(hashes []wire.Hash) int {
	for i, h := range hashes {
		if m.find(h) == 0 {
			return i
		}
	}
	return len(hashes)
}

// TokenMirror is a Mirror that also finds blocks by their tokens, for a router
// that cannot compute the engine's hashes. It needs nothing of how an engine
// hashes: a block hangs on its parent's hash, as the stream tells it.
//
// Tokens are not kept; a block takes the same memory whatever its size is, about
// 200 bytes (300 with bytes hashes of 32 bytes), so that the limit on blocks is
// one on memory. What finds a block is a part of 128 bits of SHA-256: no
// publisher can make two things that are taken for each other.
type TokenMirror struct {
	*Mirror
}

// NewTokenMirror returns an empty mirror for up to maxBlocks blocks, as NewMirror
// does.
func NewTokenMirror(maxBlocks int) TokenMirror {
	m := NewMirror(maxBlocks)
	m.index = &tokenIndex{heads: map[name]uint32{}, hash: sha256.New()}
	return TokenMirror{m}
}

// Prompt is what a TokenMirror is asked for: tokens, and what must be equal for
// reuse besides them, in the form in which the stream has it.
//
// A stream may keep a part of that to itself, kvcast's salts for one. Blocks
// that differ only in this hang side by side on one parent; the one that was
// announced last is found.
type Prompt struct {
	// Tokens of the prompt. StringTokens are those that the stream has as strings,
	// by rising Index; what Tokens holds there makes no difference.
	Tokens       []uint32
	StringTokens []wire.StringToken
	// BlockSize is the number of tokens in a block, 0 = as in the store that came
	// last.
	BlockSize uint32
	// LoRAName, or LoRAID if there is no name but HasLoRAID, is the adapter.
	LoRAName  string
	LoRAID    uint64
	HasLoRAID bool
	// CacheSalt is the cache_salt of streams that tell it.
	CacheSalt string
	// ExtraKeys and MMKeys have an entry per block; what is missing is empty.
	ExtraKeys [][]event.ExtraKey
	MMKeys    [][]event.MMKey
}

// Match returns how many blocks of a prompt are announced in any medium, from the
// first on without a gap. A last block that is not full is not looked for, and
// neither can blocks be found that were announced without tokens.
func (m TokenMirror) Match(p Prompt) int {
	x := m.index
	size := int64(p.BlockSize)
	if size == 0 {
		size = int64(x.size)
	}
	if size == 0 {
		return 0
	}
	n := int(int64(len(p.Tokens)) / size)
	content := naming{x, int(size), p.Tokens, p.StringTokens, p.ExtraKeys, p.MMKeys}
	above := x.scope(p.LoRAName, p.LoRAID, p.HasLoRAID, p.CacheSalt)
	for i := range n {
		id := x.heads[content.next(i, above)]
		if id == 0 {
			return i
		}
		above = x.entries[id].self
	}
	return n
}

// name stands for something of any length: a part of its SHA-256.
type name [16]byte

// tokenIndex finds blocks by what is above them and their content.
type tokenIndex struct {
	heads   map[name]uint32 // the newest block of each name
	entries []entry         // by id
	size    uint32          // of the blocks that came last
	hash    hash.Hash
	buf     []byte
}

// entry is what the index holds of a block.
type entry struct {
	// place is the name under which the block is found, self stands for its hash:
	// it is above the blocks that hang on it. known = it is in heads.
	place, self name
	known       bool
	// newer and older are other blocks of the name, 0 = none.
	newer, older uint32
}

// What a name stands for. Each is written with its kind before it.
const (
	nameScope = iota
	nameInteger
	nameBytes
	nameBlock
)

func (x *tokenIndex) begin(kind byte) {
	x.hash.Reset()
	x.buf = append(x.buf[:0], kind)
}

// flushAt bounds the memory of what is being hashed.
const flushAt = 4 << 10

func (x *tokenIndex) flush() {
	if len(x.buf) >= flushAt {
		x.hash.Write(x.buf)
		x.buf = x.buf[:0]
	}
}

func (x *tokenIndex) number(n uint64) {
	x.buf = binary.LittleEndian.AppendUint64(x.buf, n)
	x.flush()
}

// text writes a string with its length, so that two in a row are not taken for
// another two.
func (x *tokenIndex) text(s string) {
	x.number(uint64(len(s)))
	for len(s) > 0 {
		n := min(len(s), flushAt)
		x.buf = append(x.buf, s[:n]...)
		s = s[n:]
		x.flush()
	}
}

func (x *tokenIndex) end() (n name) {
	x.hash.Write(x.buf)
	x.buf = x.hash.Sum(x.buf[:0])
	copy(n[:], x.buf)
	return n
}

// scope is what is above the first block.
func (x *tokenIndex) scope(lora string, id uint64, hasID bool, salt string) name {
	x.begin(nameScope)
	x.text(lora)
	if lora == "" && hasID {
		x.number(1)
		x.number(id)
	} else {
		x.number(0)
	}
	x.text(salt)
	return x.end()
}

// of stands for a hash. As everywhere here, the sign of an integer makes no
// difference.
func (x *tokenIndex) of(h wire.Hash) name {
	if h.Kind == wire.HashBytes {
		x.begin(nameBytes)
		x.text(h.Raw)
	} else {
		x.begin(nameInteger)
		x.number(h.Bits)
	}
	return x.end()
}

// naming names blocks of a run of tokens, one after another.
type naming struct {
	x       *tokenIndex
	size    int
	tokens  []uint32
	strings []wire.StringToken // from the next block on
	extra   [][]event.ExtraKey
	mm      [][]event.MMKey
}

// next names block i, which hangs on above. i may not run back.
func (c *naming) next(i int, above name) name {
	x := c.x
	x.begin(nameBlock)
	x.buf = append(x.buf, above[:]...)
	begin, end := i*c.size, (i+1)*c.size
	x.number(uint64(c.size))
	for len(c.strings) > 0 && c.strings[0].Index < begin {
		c.strings = c.strings[1:]
	}
	for at := begin; at < end; at++ {
		if len(c.strings) > 0 && c.strings[0].Index == at {
			// No token is that large.
			x.number(1 << 32)
			x.text(c.strings[0].Value)
			c.strings = c.strings[1:]
			continue
		}
		x.number(uint64(c.tokens[at]))
	}
	if i < len(c.extra) {
		x.number(uint64(len(c.extra[i])))
		for _, k := range c.extra[i] {
			x.text(k.Str)
			x.text(k.Item)
			x.number(uint64(k.Offset))
			x.text(string(k.Bin))
		}
	} else {
		x.number(0)
	}
	if i < len(c.mm) {
		x.number(uint64(len(c.mm[i])))
		for _, k := range c.mm[i] {
			x.text(k.Hash)
			x.number(uint64(k.StartOffset))
			x.text(k.UUID)
		}
	} else {
		x.number(0)
	}
	return x.end()
}

// storing names the blocks of an event; above is what is above its first one.
func (x *tokenIndex) storing(e *wire.Event) (c naming, above name) {
	c = naming{x: x, size: int(e.BlockSize), tokens: e.Tokens}
	salt := ""
	if e.Extra != nil {
		c.strings, c.extra, c.mm = e.Extra.StringTokens, e.Extra.ExtraKeys, e.Extra.MMKeys
		salt = e.Extra.CacheSalt
	}
	if e.BlockSize > 0 && len(e.Tokens) > 0 {
		x.size = e.BlockSize
	}
	if e.HasParent {
		return c, x.of(e.Parent)
	}
	return c, x.scope(e.LoRAName, e.LoRAID, e.HasLoRAID, salt)
}

// has reports whether block i of an event came with tokens.
func (c *naming) has(i int) bool {
	return c.size > 0 && i < len(c.tokens)/c.size
}

// add notes block id, unless it is there already, and returns what is above
// those that hang on it.
func (x *tokenIndex) add(id uint32, i int, h wire.Hash, c *naming, above name) name {
	for int(id) >= len(x.entries) {
		x.entries = append(x.entries, entry{})
	}
	e := &x.entries[id]
	if e.known {
		return e.self
	}
	self := x.of(h)
	if !c.has(i) {
		return self
	}
	place := c.next(i, above)
	older := x.heads[place]
	*e = entry{place: place, self: self, known: true, older: older}
	if older != 0 {
		x.entries[older].newer = id
	}
	x.heads[place] = id
	return self
}

// remove forgets a block.
func (x *tokenIndex) remove(id uint32) {
	if int(id) >= len(x.entries) || !x.entries[id].known {
		return
	}
	e := x.entries[id]
	x.entries[id] = entry{}
	if e.older != 0 {
		x.entries[e.older].newer = e.newer
	}
	switch {
	case e.newer != 0:
		x.entries[e.newer].older = e.older
	case e.older != 0:
		x.heads[e.place] = e.older
	default:
		delete(x.heads, e.place)
	}
}

func (x *tokenIndex) clear() {
	clear(x.heads)
	x.entries = x.entries[:0]
}
