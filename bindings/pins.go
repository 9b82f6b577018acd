// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// Pin names pinned blocks. It carries a generation: one that was unpinned is
// ErrStaleHandle, never another pin. The zero value pins nothing.
type Pin uint64

// PinResult is what became of one prompt or sequence to pin.
type PinResult struct {
	// Err is nil, ErrInvalidArgument, ErrStaleHandle, ErrBadState (the sequence is
	// suspended), ErrNeverFits (more than Config.MaxPinnedPages) or ErrNotNow (more
	// than is left of them).
	Err error
	// Pin is 0 if there was nothing to pin.
	Pin Pin
	// Blocks that it pins.
	Blocks int
}

// PinPrompts pins the resident blocks of prompts, as a match would find them:
// until they are unpinned they are neither evicted nor counted as available. A block
// stays until all its pins are gone. After a reset, or when its scope is dropped, a
// pinned page is no block any more and is given up when it is unpinned. out must
// be at least as long as prompts.
func (m *Manager) PinPrompts(prompts []Prompt, out []PinResult) error {
	op := opPin
	if err := checkCounts(op.name, len(prompts), len(out)); err != nil {
		return err
	}
	if err := m.enter(op.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	tokens, err := sc.flatten(op.name, prompts)
	if err != nil {
		return err
	}
	sc.pinned = sized(sc.pinned, len(prompts))
	s := m.raw.PinPrompts(sc.prompts, tokens, sc.scopes, sc.bytes, sc.pinned, &sc.err)
	if s != cgo.OK {
		return callError(op.name, s, &sc.err)
	}
	pinResults(out, sc.pinned)
	return nil
}

// PinSequences pins the blocks of open sequences that are in the tree. out must
// be at least as long as ids.
func (m *Manager) PinSequences(ids []SequenceID, out []PinResult) error {
	op := opPin
	if err := checkCounts(op.name, len(ids), len(out)); err != nil {
		return err
	}
	if err := m.enter(op.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.ids, sc.pinned = sized(sc.ids, len(ids)), sized(sc.pinned, len(ids))
	for i, id := range ids {
		sc.ids[i] = uint64(id)
	}
	if s := m.raw.PinSequences(sc.ids, sc.pinned, &sc.err); s != cgo.OK {
		return callError(op.name, s, &sc.err)
	}
	pinResults(out, sc.pinned)
	return nil
}

func pinResults(out []PinResult, raw []cgo.PinResult) {
	for i := range raw {
		out[i] = PinResult{Err: opPin.item(raw[i].Status)}
		if raw[i].Status == cgo.OK {
			out[i].Pin, out[i].Blocks = Pin(raw[i].Pin), int(raw[i].PinnedBlocks)
		}
	}
}

// Unpin ends pins. errs[i] is nil or ErrStaleHandle; errs must be at least as
// long as pins.
func (m *Manager) Unpin(pins []Pin, errs []error) error {
	op := opUnpin
	if err := checkCounts(op.name, len(pins), len(errs)); err != nil {
		return err
	}
	if err := m.enter(op.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.ids, sc.status = sized(sc.ids, len(pins)), sized(sc.status, len(pins))
	for i, pin := range pins {
		sc.ids[i] = uint64(pin)
	}
	if s := m.raw.Unpin(sc.ids, sc.status, &sc.err); s != cgo.OK {
		return callError(op.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = op.item(s)
	}
	return nil
}

// DropItem names what is to leave the tree.
type DropItem struct {
	// Scope is that very scope; nil is the empty one.
	Scope *Scope
	// Every drops all scopes that have Scope's parts, with their values, and
	// perhaps others: all of an adapter, whatever the salts.
	Every bool
}

// DropResult is what became of one DropItem.
type DropResult struct {
	// Err is nil, ErrInvalidArgument or ErrOutOfMemory; then nothing changed.
	Err error
	// Scopes and Blocks that left the tree.
	Scopes, Blocks int
	// DetachedSequences were open: what they commit later is not reused.
	DetachedSequences int
	// FirstEvicted is as in GrowResult.
	FirstEvicted int
}

// DropScopes takes all blocks of scopes out of the tree, children first: an
// adapter was unloaded, a tenant has left. Open sequences are detached as by Reset;
// suspended ones go on and find nothing. It holds the manager's lock for a time in
// proportion to the whole tree. out must be at least as long as items; evicted, which
// may be nil, as in GrowTold.
func (m *Manager) DropScopes(items []DropItem, out []DropResult,
	evicted []EvictedBlock) ([]EvictedBlock, error) {
	op := opDrop
	if err := checkCounts(op.name, len(items), len(out)); err != nil {
		return nil, err
	}
	if err := m.enter(op.name); err != nil {
		return nil, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.scopes, sc.bytes = sc.scopes[:0], sc.bytes[:0]
	raw := make([]cgo.DropItem, len(items))
	for i := range items {
		raw[i].Scope = cgo.NoScope
		if items[i].Scope != nil {
			raw[i].Scope = uint32(len(sc.scopes))
			sc.addScope(items[i].Scope)
		}
		if items[i].Every {
			raw[i].Flags = cgo.DropEvery
		}
	}
	results := make([]cgo.DropResult, len(items))
	sc.evicted = sized(sc.evicted, min(len(evicted), math.MaxUint32))
	told, s := m.raw.DropScopes(raw, sc.scopes, sc.bytes, results, sc.evicted, &sc.err)
	if s != cgo.OK {
		return nil, callError(op.name, s, &sc.err)
	}
	for i := range results {
		r := &results[i]
		out[i] = DropResult{
			Err:               op.item(r.Status),
			Scopes:            int(r.DroppedScopes),
			Blocks:            int(r.DroppedBlocks),
			DetachedSequences: int(r.DetachedSequences),
			FirstEvicted:      -1,
		}
		if r.FirstEvicted != cgo.NotTold {
			out[i].FirstEvicted = int(r.FirstEvicted)
		}
	}
	return evictedBlocks(evicted, sc.evicted[:told]), nil
}
