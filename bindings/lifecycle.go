// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"github.com/kvcast/kvcast/cgo"
)

// SequenceState says whether a sequence holds its blocks. A released one has no
// state: its id is stale.
type SequenceState uint32

// The states of an open sequence.
const (
	// Suspended sequences hold no block. Only Resume, Release and Cancel work.
	Suspended = SequenceState(cgo.SequenceSuspended)
	// Active sequences hold their blocks and can grow and commit.
	Active = SequenceState(cgo.SequenceActive)
)

// String is "suspended" or "active".
func (s SequenceState) String() string {
	switch s {
	case Suspended:
		return "suspended"
	case Active:
		return "active"
	default:
		return "unknown state"
	}
}

// StopNow as Prompt.StopBefore makes no block of the sequence reusable.
const StopNow = -1

// SuspendItem suspends a sequence.
type SuspendItem struct {
	Sequence SequenceID
	// Keep leaves the pages that are not in the tree (the partly filled last
	// block, room, blocks that are not to be reused) with the sequence, unless
	// others need them; else they are given up.
	Keep bool
}

// ResumeResult is what became of one sequence.
type ResumeResult struct {
	// Err is nil, ErrNotNow (the gate, see Config.ResumeGatePermille, or with
	// Prompt.Wait an older sequence computes what comes next: PendingTokens),
	// ErrBadState (active already), ErrStaleHandle or ErrOutOfMemory; then
	// nothing changed.
	Err error
	// CommittedTokens survived; the sequence goes on behind them.
	CommittedTokens int
	// LostTokens were committed before and have to be computed anew.
	LostTokens int
	// PendingTokens and PendingSequence are, of a sequence that began suspended, as
	// in CreateResult.
	PendingTokens   int
	PendingSequence SequenceID
	// Waits are fences that the sequence's device stream must wait for before
	// it reads the pages. The slice's memory is reused if the result is.
	Waits []Fence
}

// TruncateItem gives room back.
type TruncateItem struct {
	Sequence SequenceID
	// CapacityTokens is the room to keep, at least what is committed.
	CapacityTokens int
}

// TruncateResult is what became of one TruncateItem.
type TruncateResult struct {
	// Err is nil, ErrBadState (less than what is committed, or suspended),
	// ErrStaleHandle or ErrOutOfMemory; then nothing changed.
	Err        error
	FreedPages int
}

// StopItem ends the making of reusable blocks.
type StopItem struct {
	Sequence SequenceID
	// StopBefore is a position: no further block that holds the token there
	// (counted from 0) or a later one is made reusable. 0: none at all.
	StopBefore int
}

// byID runs a call that takes ids and gives statuses.
func (m *Manager) byID(o *op, ids []SequenceID, errs []error,
	call func(m cgo.Manager, ids []uint64, status []cgo.Status, e *cgo.Error) cgo.Status) error {
	if err := checkCounts(o.name, len(ids), len(errs)); err != nil {
		return err
	}
	if err := m.enter(o.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.ids, sc.status = sized(sc.ids, len(ids)), sized(sc.status, len(ids))
	for i, id := range ids {
		sc.ids[i] = uint64(id)
	}
	if s := call(m.raw, sc.ids, sc.status, &sc.err); s != cgo.OK {
		return callError(o.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = o.item(s)
	}
	return nil
}

// Cancel closes sequences whose requests were given up: a Release by which
// nothing becomes reusable. Blocks that have been committed stay; cancelled
// before its first commit a sequence leaves no block and no event behind.
// errs[i] is nil or ErrStaleHandle; errs must be at least as long as ids.
func (m *Manager) Cancel(ids []SequenceID, errs []error) error {
	return m.byID(opCancel, ids, errs, cgo.Manager.SequencesCancel)
}

// Suspend lets active sequences lie: their blocks in the tree can be evicted,
// and the sequence remembers their tokens. Pages it keeps can be taken as well,
// those of the sequence suspended last first, once a Grow finds nothing else. A
// Reset takes them too. errs[i] is nil, ErrBadState (suspended already),
// ErrStaleHandle or ErrOutOfMemory; errs must be at least as long as items.
func (m *Manager) Suspend(items []SuspendItem, errs []error) error {
	if err := checkCounts(opSuspend.name, len(items), len(errs)); err != nil {
		return err
	}
	if err := m.enter(opSuspend.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.suspend, sc.status = sized(sc.suspend, len(items)), sized(sc.status, len(items))
	for i, item := range items {
		sc.suspend[i] = cgo.SuspendItem{Sequence: uint64(item.Sequence)}
		if item.Keep {
			sc.suspend[i].Flags = cgo.SuspendKeep
		}
	}
	if s := m.raw.SequencesSuspend(sc.suspend, sc.status, &sc.err); s != cgo.OK {
		return callError(opSuspend.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = opSuspend.item(s)
	}
	return nil
}

// Resume makes suspended sequences active again: it matches what they had
// committed (or their prompt, if they began suspended) and holds what it finds.
// Kept pages survive if all blocks before them did. It takes no page from the
// pool. out must be at least as long as ids.
func (m *Manager) Resume(ids []SequenceID, out []ResumeResult) error {
	if err := checkCounts(opResume.name, len(ids), len(out)); err != nil {
		return err
	}
	if err := m.enter(opResume.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.ids, sc.resumed = sized(sc.ids, len(ids)), sized(sc.resumed, len(ids))
	for i, id := range ids {
		sc.ids[i] = uint64(id)
	}
	if s := m.raw.SequencesResume(sc.ids, sc.resumed, &sc.err); s != cgo.OK {
		return callError(opResume.name, s, &sc.err)
	}
	for i := range sc.resumed {
		r := &sc.resumed[i]
		waits := out[i].Waits[:0]
		out[i] = ResumeResult{Err: opResume.item(r.Status), Waits: waits}
		out[i].PendingTokens, out[i].PendingSequence = int(r.PendingTokens), SequenceID(r.PendingSequence)
		if r.Status != cgo.OK {
			continue
		}
		out[i].CommittedTokens = int(r.CommittedTokens)
		out[i].LostTokens = int(r.LostTokens)
		out[i].Waits = m.appendWaits(waits, sc.ids[i], r.WaitCount, &r.Waits, sc)
	}
	return nil
}

// Truncate gives back room that was not committed (rejected speculative
// tokens), behind a fence on the sequence's device stream. out must be at least
// as long as items.
func (m *Manager) Truncate(items []TruncateItem, out []TruncateResult) error {
	if err := checkCounts(opTruncate.name, len(items), len(out)); err != nil {
		return err
	}
	for i := range items {
		if items[i].CapacityTokens < 0 {
			return argumentError(opTruncate.name, "item %d: CapacityTokens is %d", i,
				items[i].CapacityTokens)
		}
	}
	if err := m.enter(opTruncate.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.truncate, sc.truncated = sized(sc.truncate, len(items)), sized(sc.truncated, len(items))
	for i, item := range items {
		sc.truncate[i] = cgo.TruncateItem{
			Sequence:       uint64(item.Sequence),
			CapacityTokens: uint64(item.CapacityTokens),
		}
	}
	if s := m.raw.SequencesTruncate(sc.truncate, sc.truncated, &sc.err); s != cgo.OK {
		return callError(opTruncate.name, s, &sc.err)
	}
	for i := range sc.truncated {
		r := &sc.truncated[i]
		out[i] = TruncateResult{Err: opTruncate.item(r.Status), FreedPages: int(r.FreedPages)}
	}
	return nil
}

// Stop ends, from a position on, the making of reusable blocks; later commits
// beyond it succeed and create no block. The lowest position given to a sequence
// counts. errs[i] is nil, ErrBadState (suspended) or ErrStaleHandle; errs must be
// at least as long as items.
func (m *Manager) Stop(items []StopItem, errs []error) error {
	if err := checkCounts(opStop.name, len(items), len(errs)); err != nil {
		return err
	}
	for i := range items {
		if items[i].StopBefore < 0 {
			return argumentError(opStop.name, "item %d: StopBefore is %d", i, items[i].StopBefore)
		}
	}
	if err := m.enter(opStop.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.stop, sc.status = sized(sc.stop, len(items)), sized(sc.status, len(items))
	for i, item := range items {
		sc.stop[i] = cgo.StopItem{
			Sequence:   uint64(item.Sequence),
			StopBefore: uint64(item.StopBefore),
		}
	}
	if s := m.raw.SequencesStop(sc.stop, sc.status, &sc.err); s != cgo.OK {
		return callError(opStop.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = opStop.item(s)
	}
	return nil
}

// Cancel closes the sequence, and nothing becomes reusable by it. A second time
// it is ErrStaleHandle.
func (s Sequence) Cancel() error {
	if s.m == nil {
		return opCancel.item(cgo.StaleHandle)
	}
	ids, errs := [1]SequenceID{s.id}, [1]error{}
	if err := s.m.Cancel(ids[:], errs[:]); err != nil {
		return err
	}
	return errs[0]
}

// Suspend lets the sequence lie.
func (s Sequence) Suspend(keep bool) error {
	if s.m == nil {
		return opSuspend.item(cgo.StaleHandle)
	}
	items, errs := [1]SuspendItem{{s.id, keep}}, [1]error{}
	if err := s.m.Suspend(items[:], errs[:]); err != nil {
		return err
	}
	return errs[0]
}

// Resume makes the sequence active again.
func (s Sequence) Resume() (ResumeResult, error) {
	if s.m == nil {
		return ResumeResult{}, opResume.item(cgo.StaleHandle)
	}
	ids, out := [1]SequenceID{s.id}, [1]ResumeResult{}
	if err := s.m.Resume(ids[:], out[:]); err != nil {
		return ResumeResult{}, err
	}
	return out[0], out[0].Err
}

// Truncate gives back room beyond capacityTokens and returns the number of pages.
func (s Sequence) Truncate(capacityTokens int) (int, error) {
	if s.m == nil {
		return 0, opTruncate.item(cgo.StaleHandle)
	}
	items, out := [1]TruncateItem{{s.id, capacityTokens}}, [1]TruncateResult{}
	if err := s.m.Truncate(items[:], out[:]); err != nil {
		return 0, err
	}
	return out[0].FreedPages, out[0].Err
}

// Stop ends the making of reusable blocks from a position on.
func (s Sequence) Stop(stopBefore int) error {
	if s.m == nil {
		return opStop.item(cgo.StaleHandle)
	}
	items, errs := [1]StopItem{{s.id, stopBefore}}, [1]error{}
	if err := s.m.Stop(items[:], errs[:]); err != nil {
		return err
	}
	return errs[0]
}
