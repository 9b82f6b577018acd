// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
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

// defaultMedium is what readers take an unset medium for.
const defaultMedium = "GPU"

// maxHashBytes bounds a bytes hash. The longest digests in use have 32 bytes,
// and a block's name is held up to three times.
const maxHashBytes = 64

// place is where a block can be reused. The first one seen gets bit 0.
type place struct {
	medium string
	group  uint64
}

type block struct {
	parent    wire.Hash
	places    uint64 // one bit per place
	children  uint32 // announced blocks that hang on this one
	hasParent bool
	counted   bool // its parent's children include it
}

// Mirror holds which blocks a publisher has announced and not taken back. It
// follows any engine's stream: what contradicts the contract (a removal of
// something unknown, a second store) changes nothing and is no error.
type Mirror struct {
	blocks map[wire.Hash]block
	places map[place]uint
	max    int
}

// NewMirror returns an empty mirror for up to maxBlocks blocks; 0 means
// DefaultMaxBlocks.
func NewMirror(maxBlocks int) *Mirror {
	if maxBlocks <= 0 {
		maxBlocks = DefaultMaxBlocks
	}
	return &Mirror{blocks: map[wire.Hash]block{}, places: map[place]uint{}, max: maxBlocks}
}

// Apply takes over the events of one batch, in order. It fails only with
// ErrMirrorFull; what came before the event that did not fit has been applied.
// Nothing of the events is kept.
func (m *Mirror) Apply(events []wire.Event) error {
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
			parent, hasParent := e.Parent, e.HasParent
			for _, h := range e.Hashes {
				if _, err := m.store(h, parent, hasParent, bit); err != nil {
					return err
				}
				parent, hasParent = h, true
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

// Len is the number of different blocks, in all media together.
func (m *Mirror) Len() int { return len(m.blocks) }

// Has reports whether a block is announced in any medium.
func (m *Mirror) Has(h wire.Hash) bool {
	_, ok := m.blocks[h]
	return ok
}

// Patterns returns the 64-bit patterns of all blocks in rising order; for bytes
// hashes their first 8 bytes.
func (m *Mirror) Patterns() []uint64 {
	out := make([]uint64, 0, len(m.blocks))
	for h := range m.blocks {
		out = append(out, h.Bits)
	}
	slices.Sort(out)
	return out
}

func (m *Mirror) clear() {
	clear(m.blocks)
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
			return 0, &Error{"apply", ErrMirrorFull,
				fmt.Sprintf("more than %d pairs of medium and group", maxPlaces)}
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

func (m *Mirror) store(h, parent wire.Hash, hasParent bool, bit uint64) (outcome, error) {
	b, ok := m.blocks[h]
	if ok {
		if b.hasParent != hasParent || hasParent && b.parent != parent {
			return otherParent, nil
		}
		if b.places&bit != 0 {
			return again, nil
		}
		b.places |= bit
		m.blocks[h] = b
		return done, nil
	}
	if len(m.blocks) >= m.max {
		return done, &Error{"apply", ErrMirrorFull, fmt.Sprintf("%d blocks", m.max)}
	}
	if len(h.Raw) > maxHashBytes {
		return done, &Error{"apply", ErrMirrorFull, fmt.Sprintf("a hash of %d bytes", len(h.Raw))}
	}
	b = block{places: bit, hasParent: hasParent}
	if hasParent {
		b.parent = parent
		if p, ok := m.blocks[parent]; ok {
			p.children++
			m.blocks[parent] = p
			b.counted = true
		}
	}
	m.blocks[h] = b
	return done, nil
}

// remove takes a block out of one place. It does so also when it returns
// hasChildren.
func (m *Mirror) remove(h wire.Hash, bit uint64) outcome {
	b, ok := m.blocks[h]
	if !ok || b.places&bit == 0 {
		return unknown
	}
	if b.places &^= bit; b.places != 0 {
		m.blocks[h] = b
		return done
	}
	delete(m.blocks, h)
	if b.counted {
		// The parent may have gone and come back meanwhile, without its
		// children: a contradiction, but no reason to count below zero.
		if p, ok := m.blocks[b.parent]; ok && p.children > 0 {
			p.children--
			m.blocks[b.parent] = p
		}
	}
	if b.children > 0 {
		return hasChildren
	}
	return done
}
