// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvcast/kvcast/publisher/wire"
)

// DefaultMaxBlocks is the number of blocks that a Mirror holds unless told
// otherwise: at 16 tokens per block more than 128 million tokens, and about
// 1 GB of memory.
const DefaultMaxBlocks = 8 << 20

// maxPlaces bounds the pairs of medium and group in one stream. Real streams
// have a handful; a block keeps one bit for each.
const maxPlaces = 64

func tooManyPlaces() string {
	return fmt.Sprintf("more than %d pairs of medium and group", maxPlaces)
}

// defaultMedium is what readers take an unset medium for.
const defaultMedium = "GPU"

// maxHashBytes bounds a bytes hash. The longest digests in use have 32 bytes,
// and a block's name is held up to three times.
const maxHashBytes = 64

// place is where a block can be reused. The first one seen since the last clear
// gets bit 0.
type place struct {
	medium string
	group  uint64
}

// block is an announced block. Its id is its index in Mirror.blocks.
type block struct {
	places   uint64 // one bit per place; 0 = the id is free
	stamp    uint64 // the event that stored it last
	parent   uint32 // id of the block before it; 0 = none, or not known
	children uint32 // announced blocks that hang on this one
	// life counts the blocks that have had this id. A parent may go before its
	// child, against the contract, and leave its id to another block: then
	// parentLife, the parent's life when the child came, is not its life.
	life, parentLife uint32
	// hasParent is false at the root. keyed belongs to the verifier.
	hasParent, keyed bool
}

// Mirror holds which blocks a publisher has announced and not taken back. It
// follows any engine's stream: what contradicts the contract (a removal of
// something unknown, a second store) changes nothing and is no error.
type Mirror struct {
	// ids finds blocks by integer hash, byteIDs by bytes hash. How an integer
	// was signed makes no difference: a stream has one form.
	ids     map[uint64]uint32
	byteIDs map[string]uint32
	blocks  []block // [0] is never used
	free    []uint32
	places  map[place]uint
	max     int
	stamp   uint64
	index   *tokenIndex // of a TokenMirror; nil otherwise
	wrong   error       // what is wrong with the mirror itself, nil if nothing is
}

// NewMirror returns an empty mirror for up to maxBlocks blocks; 0 means
// DefaultMaxBlocks. More than 2^32-2 cannot be had. Of less than 0 the mirror takes
// nothing: Apply returns ErrOption.
func NewMirror(maxBlocks int) *Mirror {
	var wrong error
	if maxBlocks < 0 {
		wrong = &Error{"apply", ErrOption, fmt.Sprintf("maxBlocks %d: want at least 0", maxBlocks)}
	}
	if maxBlocks <= 0 {
		maxBlocks = DefaultMaxBlocks
	}
	return &Mirror{wrong: wrong, ids: map[uint64]uint32{}, byteIDs: map[string]uint32{}, blocks: make([]block, 1),
		places: map[place]uint{}, max: min(maxBlocks, math.MaxUint32-1)}
}

// Apply takes over the events of one batch, in order. It fails only with
// ErrMirrorFull; what came before the block that did not fit has been applied. A mirror
// that was made with a size that cannot be fails always, with ErrOption.
// The events are not kept.
func (m *Mirror) Apply(events []wire.Event) error {
	if m.wrong != nil {
		return m.wrong
	}
	for i := range events {
		e := &events[i]
		switch {
		case e.Err != nil:
		case e.Kind == wire.KindCleared:
			m.clear()
		case e.Kind == wire.KindStored:
			bit, err := m.bit(e)
			if err != nil {
				return err
			}
			m.stamp++
			if err := m.storeAll(e, bit); err != nil {
				return err
			}
		case e.Kind == wire.KindRemoved:
			bit, err := m.bit(e)
			if err != nil {
				return err
			}
			for _, h := range e.Hashes {
				m.remove(h, bit)
			}
		}
	}
	return nil
}

func (m *Mirror) storeAll(e *wire.Event, bit uint64) error {
	var content naming
	var above name
	if m.index != nil {
		content, above = m.index.storing(e)
	}
	parent, hasParent := m.find(e.Parent), e.HasParent
	for i, h := range e.Hashes {
		id, _, err := m.store(h, parent, hasParent, bit)
		if err != nil {
			return err
		}
		if m.index != nil {
			above = m.index.add(id, i, h, &content, above)
		}
		parent, hasParent = id, true
	}
	return nil
}

// Reset forgets everything, as a new life of the publisher demands.
func (m *Mirror) Reset() { m.clear() }

// Len is the number of different blocks, in all media together.
func (m *Mirror) Len() int { return len(m.ids) + len(m.byteIDs) }

// Has reports whether a block is announced in any medium.
func (m *Mirror) Has(h wire.Hash) bool { return m.find(h) != 0 }

// Patterns returns the 64-bit patterns of all blocks in rising order; for bytes
// hashes their first 8 bytes.
func (m *Mirror) Patterns() []uint64 {
	out := make([]uint64, 0, m.Len())
	for h := range m.ids {
		out = append(out, h)
	}
	for raw := range m.byteIDs {
		out = append(out, wire.HashOfBytes([]byte(raw)).Bits)
	}
	slices.Sort(out)
	return out
}

func (m *Mirror) clear() {
	clear(m.ids)
	clear(m.byteIDs)
	clear(m.places)
	m.blocks = m.blocks[:1]
	m.free = m.free[:0]
	if m.index != nil {
		m.index.clear()
	}
}

// find returns the id of a block, or 0.
func (m *Mirror) find(h wire.Hash) uint32 {
	if h.Kind == wire.HashBytes {
		return m.byteIDs[h.Raw]
	}
	return m.ids[h.Bits]
}

// bit returns the bit of an event's place, giving it one at first sight.
func (m *Mirror) bit(e *wire.Event) (uint64, error) {
	p := place{medium: e.Medium}
	if p.medium == "" {
		p.medium = defaultMedium
	}
	if e.Extra != nil {
		p.group = e.Extra.GroupIdx
	}
	n, ok := m.places[p]
	if !ok {
		n = uint(len(m.places))
		if n == maxPlaces {
			return 0, &Error{"apply", ErrMirrorFull, tooManyPlaces()}
		}
		m.places[p] = n
	}
	return 1 << n, nil
}

// What store and remove found.
type outcome int

const (
	done        outcome = iota
	unknown             // removal of a block that is not there
	again               // store of a block that is there already
	otherParent         // store of a block that is there under another parent
	hasChildren         // removal of a block that announced blocks hang on
)

// store adds a block to a place and returns its id. parent is the id of the
// block before it, 0 if that is not known or not there.
func (m *Mirror) store(h wire.Hash, parent uint32, hasParent bool, bit uint64) (uint32, outcome, error) {
	if id := m.find(h); id != 0 {
		b := &m.blocks[id]
		switch {
		case b.hasParent != hasParent, parent != 0 && m.parentOf(b) != 0 && parent != b.parent:
			// Where it is does not depend on what it is said to hang on: copies in
			// another medium are often told without a parent.
			b.places |= bit
			return id, otherParent, nil
		case b.places&bit != 0:
			return id, again, nil
		}
		b.places |= bit
		b.stamp = m.stamp
		return id, done, nil
	}
	if m.Len() >= m.max {
		return 0, done, &Error{"apply", ErrMirrorFull, fmt.Sprintf("%d blocks", m.max)}
	}
	if len(h.Raw) > maxHashBytes {
		return 0, done, &Error{"apply", ErrMirrorFull, fmt.Sprintf("a hash of %d bytes", len(h.Raw))}
	}
	id := m.newID()
	p := &m.blocks[parent]
	m.blocks[id] = block{places: bit, stamp: m.stamp, parent: parent, hasParent: hasParent,
		life: m.blocks[id].life + 1, parentLife: p.life}
	if parent != 0 {
		p.children++
	}
	if h.Kind == wire.HashBytes {
		m.byteIDs[h.Raw] = id
	} else {
		m.ids[h.Bits] = id
	}
	return id, done, nil
}

// parentOf returns the id of a block's parent, 0 if that is not there any more.
func (m *Mirror) parentOf(b *block) uint32 {
	if m.blocks[b.parent].life != b.parentLife {
		return 0
	}
	return b.parent
}

func (m *Mirror) newID() uint32 {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		return id
	}
	m.blocks = append(m.blocks, block{})
	return uint32(len(m.blocks) - 1)
}

// remove takes a block out of one place. It does so also when it returns
// hasChildren.
func (m *Mirror) remove(h wire.Hash, bit uint64) outcome {
	id := m.find(h)
	if id == 0 || m.blocks[id].places&bit == 0 {
		return unknown
	}
	b := &m.blocks[id]
	if b.places &^= bit; b.places != 0 {
		return done
	}
	if h.Kind == wire.HashBytes {
		delete(m.byteIDs, h.Raw)
	} else {
		delete(m.ids, h.Bits)
	}
	m.free = append(m.free, id)
	if m.index != nil {
		m.index.remove(id)
	}
	b.life++
	if p := m.parentOf(b); p != 0 {
		m.blocks[p].children--
	}
	if b.children > 0 {
		return hasChildren
	}
	return done
}
