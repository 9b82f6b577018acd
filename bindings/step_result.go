// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"iter"

	"github.com/kvcast/kvcast/cgo"
)

// kindOps are the operations by their kinds, for the names in errors.
var kindOps = [...]*op{
	cgo.OpCreate: opCreate, cgo.OpGrow: opGrow, cgo.OpCommit: opCommit, cgo.OpTruncate: opTruncate,
	cgo.OpStop: opStop, cgo.OpSuspend: opSuspend, cgo.OpResume: opResume, cgo.OpRelease: opRelease,
	cgo.OpCancel: opCancel, cgo.OpEnd: opEnd, cgo.OpHold: opHold, cgo.OpReleaseHold: opEndHold,
	cgo.OpRetain: opRetain, cgo.OpPin: opPin, cgo.OpUnpin: opUnpin, cgo.OpTable: opDelta,
	cgo.OpFork: opFork,
}

// at is where the operation stands among all of an executed step.
func (s *Step) at(o StepOp) int {
	if o >= firstTable {
		return len(s.ops) - len(s.tables) + int(o-firstTable)
	}
	return int(o)
}

// result is that of an operation of the kind; asking for another kind's, or before
// Manager.Step, is a mistake in the program.
func (s *Step) result(o StepOp, kind uint32) *cgo.OpResult {
	r := &s.results[s.at(o)]
	if s.ops[s.at(o)].Kind != kind {
		panic("bindings: the operation of the step is of another kind")
	}
	return r
}

// Err is the error of an operation, nil if it was done.
func (s *Step) Err(o StepOp) error {
	r := &s.results[s.at(o)]
	if r.Status == cgo.OK {
		return nil
	}
	return kindOps[s.ops[s.at(o)].Kind].item(r.Status)
}

// Failed are the operations that were not done, with their errors.
func (s *Step) Failed() iter.Seq2[StepOp, error] {
	return func(yield func(StepOp, error) bool) {
		for i := range s.results {
			if s.results[i].Status == cgo.OK {
				continue
			}
			o := StepOp(i)
			if i >= len(s.ops)-len(s.tables) {
				o = firstTable + StepOp(i-(len(s.ops)-len(s.tables)))
			}
			if !yield(o, s.Err(o)) {
				return
			}
		}
	}
}

func (s *Step) waitsOf(r *cgo.OpResult) []Fence {
	if r.Status != cgo.OK || r.WaitCount == 0 {
		return nil
	}
	end := r.FirstWait + r.WaitCount
	return s.fences[r.FirstWait:end:end]
}

// Created is the result of a Create.
func (s *Step) Created(o StepOp) CreateResult {
	r := s.result(o, cgo.OpCreate)
	if r.Status != cgo.OK {
		return CreateResult{Err: s.Err(o)}
	}
	c := r.Created()
	matched := int(c.MatchedTokens)
	return CreateResult{
		Sequence:        Sequence{m: s.m, id: SequenceID(r.Sequence), matched: matched},
		MatchedTokens:   matched,
		PendingTokens:   int(c.PendingTokens),
		PendingSequence: SequenceID(c.PendingSequence),
		CopiedTokens:    int(c.CopiedTokens),
		CopiedFrom:      c.CopiedFrom,
		CopiedTo:        c.CopiedTo,
		Waits:           s.waitsOf(r),
	}
}

// Forked is the result of a Fork.
func (s *Step) Forked(o StepOp) ForkResult {
	r := s.result(o, cgo.OpFork)
	if r.Status != cgo.OK {
		return ForkResult{Err: s.Err(o)}
	}
	return ForkResult{
		Sequence:        Sequence{m: s.m, id: SequenceID(r.Sequence)},
		CommittedTokens: int(r.Number()),
		Waits:           s.waitsOf(r),
	}
}

// Grown is the result of a Grow. FirstEvicted is the place in Evicted.
func (s *Step) Grown(o StepOp) GrowResult {
	r := s.result(o, cgo.OpGrow)
	g := r.Grown()
	result := GrowResult{
		Err:           s.Err(o),
		AddedPages:    int(g.AddedPages),
		EvictedBlocks: int(g.EvictedBlocks),
		LeavingPages:  int(g.LeavingPages),
		FirstEvicted:  -1,
		CopiedBlock:   -1,
	}
	if g.FirstEvicted != cgo.NotTold {
		result.FirstEvicted = int(g.FirstEvicted)
	}
	if g.CopiedBlock != cgo.NoCopy && r.Status == cgo.OK {
		result.CopiedBlock, result.CopiedTokens = int(g.CopiedBlock), int(g.CopiedTokens)
		result.CopiedFrom, result.CopiedTo = g.CopiedFrom, g.CopiedTo
	}
	if waits := s.waitsOf(r); len(waits) != 0 {
		result.Wait = waits[0]
	}
	return result
}

// Committed is the result of a Commit or CommitItem.
func (s *Step) Committed(o StepOp) CommitResult {
	r := s.result(o, cgo.OpCommit)
	if r.Status != cgo.OK {
		return CommitResult{Err: s.Err(o), FirstChangedBlock: -1}
	}
	c := r.Committed()
	result := CommitResult{
		StoredBlocks:       int(c.StoredBlocks),
		DeduplicatedBlocks: int(c.DeduplicatedBlocks),
		FirstChangedBlock:  -1,
		CommittedTokens:    int(c.CommittedTokens),
		Waits:              s.waitsOf(r),
	}
	if c.FirstChangedBlock != cgo.NoBlock {
		result.FirstChangedBlock = int(c.FirstChangedBlock)
	}
	return result
}

// Resumed is the result of a Resume.
func (s *Step) Resumed(o StepOp) ResumeResult {
	r := s.result(o, cgo.OpResume)
	x := r.Resumed()
	return ResumeResult{
		Err:             s.Err(o),
		CommittedTokens: int(x.CommittedTokens),
		LostTokens:      int(x.LostTokens),
		PendingTokens:   int(x.PendingTokens),
		PendingSequence: SequenceID(x.PendingSequence),
		Waits:           s.waitsOf(r),
	}
}

// Truncated is the result of a Truncate.
func (s *Step) Truncated(o StepOp) TruncateResult {
	return TruncateResult{Err: s.Err(o), FreedPages: int(s.result(o, cgo.OpTruncate).Number())}
}

// Held is the result of a ReleaseHeld.
func (s *Step) Held(o StepOp) HoldResult {
	return HoldResult{Err: s.Err(o), Hold: HoldID(s.result(o, cgo.OpHold).Number())}
}

// Pinned is the result of a Pin.
func (s *Step) Pinned(o StepOp) PinResult {
	p := s.result(o, cgo.OpPin).Pinned()
	return PinResult{Err: s.Err(o), Pin: Pin(p.Pin), Blocks: int(p.PinnedBlocks)}
}

// Told is the result of a Table, with the row's triples.
func (s *Step) Told(o StepOp) (TableResult, []TableDelta) {
	r := s.result(o, cgo.OpTable)
	t := r.Tabled()
	result := TableResult{Err: s.Err(o), Entries: int(t.Entries), KVTokens: int(t.KVTokens)}
	if t.FirstDelta == cgo.NotTold {
		return result, nil
	}
	end := t.FirstDelta + t.Entries
	return result, s.deltas[t.FirstDelta:end:end]
}

// Deltas are the triples of all rows of the step; applied in order they make the
// rows the tables of their sequences.
func (s *Step) Deltas() []TableDelta { return s.deltas }

// Waiters are the sequences whose waits (Prompt.Wait) were over after the step and
// that had not been told: resume them.
func (s *Step) Waiters() []Waiter { return s.over }

// Evicted are the blocks that the step evicted, in the order of its operations,
// children before parents.
func (s *Step) Evicted() []EvictedBlock { return s.told }
