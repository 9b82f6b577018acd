// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// HoldID names a released sequence whose pages are still held. An ended one is
// ErrStaleHandle, never another hold.
type HoldID uint64

// HoldItem closes a sequence whose pages are still to be read, or written, from
// outside.
type HoldItem struct {
	Sequence SequenceID
	// Count is how often the hold must be released, at least 1: once by each
	// peer, say.
	Count int
	// Cancel ends the hold as Cancel does, not as Release.
	Cancel bool
}

// HoldResult is what became of one HoldItem.
type HoldResult struct {
	// Err is nil, ErrInvalidArgument, ErrBadState (suspended) or ErrStaleHandle.
	Err  error
	Hold HoldID
}

// ReleaseHeld closes active sequences and leaves their pages where they are until
// the hold has been released Count times; only then follows what a Release does.
// The sequence's id is stale at once. A hold counts among MaxSequences. out must
// be at least as long as items.
func (m *Manager) ReleaseHeld(items []HoldItem, out []HoldResult) error {
	if err := checkCounts(opHold.name, len(items), len(out)); err != nil {
		return err
	}
	for i := range items {
		if items[i].Count < 1 || items[i].Count > math.MaxUint32 {
			return argumentError(opHold.name, "item %d: Count is %d", i, items[i].Count)
		}
	}
	if err := m.enter(opHold.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.hold, sc.held = sized(sc.hold, len(items)), sized(sc.held, len(items))
	for i, item := range items {
		sc.hold[i] = cgo.HoldItem{Sequence: uint64(item.Sequence), Count: uint32(item.Count)}
		if item.Cancel {
			sc.hold[i].Flags = cgo.HoldCancel
		}
	}
	if s := m.raw.SequencesReleaseHeld(sc.hold, sc.held, &sc.err); s != cgo.OK {
		return callError(opHold.name, s, &sc.err)
	}
	for i := range sc.held {
		out[i] = HoldResult{Err: opHold.item(sc.held[i].Status), Hold: HoldID(sc.held[i].Hold)}
	}
	return nil
}

// ReleaseHolds releases each hold once. errs[i] is nil, ErrStaleHandle (released
// as often as it was counted, or never a hold) or ErrOutOfMemory (nothing was
// released); errs must be at least as long as holds.
func (m *Manager) ReleaseHolds(holds []HoldID, errs []error) error {
	if err := checkCounts(opEndHold.name, len(holds), len(errs)); err != nil {
		return err
	}
	if err := m.enter(opEndHold.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.ids, sc.status = sized(sc.ids, len(holds)), sized(sc.status, len(holds))
	for i, id := range holds {
		sc.ids[i] = uint64(id)
	}
	if s := m.raw.HoldsRelease(sc.ids, sc.status, &sc.err); s != cgo.OK {
		return callError(opEndHold.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = opEndHold.item(s)
	}
	return nil
}
