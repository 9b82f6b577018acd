// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// Step is what a scheduler does in one step: operations of any kinds for any
// sequences, executed in order by one call of Manager.Step. Each of them does what
// the manager's method of its name does with one item, with the same arguments and
// errors; one that fails changes nothing and does not stop the others.
//
// A Step is made once and used again after Reset; then its steady state allocates
// nothing. One goroutine may use it at a time, and it must not be copied. The zero
// value is ready for use.
type Step struct {
	// Format and Columns are those of the block table that Table keeps up to date.
	Format  TableFormat
	Columns int
	// MaxEvicted is how many evicted blocks a step can tell of; 0: they are not
	// wanted. A Grow that would evict more than what is left of it gets ErrNotNow
	// and evicts nothing, and Grown says how many they would have been.
	MaxEvicted int

	m       *Manager // that has executed it
	ops     []cgo.Op
	tables  []cgo.Op // are put behind the others
	results []cgo.OpResult
	in      cgo.StepInput
	flat    scratch // the arrays that the operations point into
	scope   *Scope  // the last one in flat.scopes
	rows    []*TableRow
	tellers int // operations that may name fences of all streams
	growers int // operations that may name one fence
	wrong   *Error

	deltas  []TableDelta
	told    []EvictedBlock
	waits   []cgo.Fence
	fences  []Fence
	waiters []cgo.Waiter
	over    []Waiter
	again   []cgo.Op
	retried []cgo.OpResult
	retry   []int32
}

// StepOp names an operation of a step.
type StepOp int

// Table operations are counted by themselves, from here.
const firstTable StepOp = 1 << 30

// Sequence stands, in later operations of the same step, for the sequence that
// this Create or Fork opens. If that fails they do so with ErrStaleHandle.
func (o StepOp) Sequence() SequenceID { return SequenceID(cgo.StepResult | uint64(o)) }

// noSequence is an id that names nothing and never will.
const noSequence = cgo.StepResult - 1

var opStep = newOp("step")

// Reset forgets all operations and results, and keeps their memory.
func (s *Step) Reset() {
	s.ops, s.tables, s.results, s.rows = s.ops[:0], s.tables[:0], s.results[:0], s.rows[:0]
	s.flat.tokens, s.flat.scopes, s.flat.bytes = s.flat.tokens[:0], s.flat.scopes[:0], s.flat.bytes[:0]
	s.flat.prompts = s.flat.prompts[:0]
	s.scope, s.tellers, s.growers, s.wrong = nil, 0, 0, nil
	s.deltas, s.told, s.fences, s.over = s.deltas[:0], s.told[:0], s.fences[:0], s.over[:0]
}

// Len is the number of operations.
func (s *Step) Len() int {
	if len(s.results) != 0 {
		return len(s.results)
	}
	return len(s.ops) + len(s.tables)
}

func (s *Step) add(kind uint32) (*cgo.Op, StepOp) {
	s.ops = append(s.ops, cgo.Op{Kind: kind})
	return &s.ops[len(s.ops)-1], StepOp(len(s.ops) - 1)
}

func (s *Step) addID(kind uint32, id uint64) StepOp {
	op, at := s.add(kind)
	*op.Handle() = id
	return at
}

// refuse notes the first argument that can never be right.
func (s *Step) refuse(at StepOp, what string, value int) {
	if s.wrong == nil {
		s.wrong = argumentError(opStep.name, "operation %d: %s is %d", int(at), what, value).(*Error)
	}
}

// tokens appends to the tokens of the step and says where they begin.
func (s *Step) tokens(tokens []uint32) uint64 {
	at := len(s.flat.tokens)
	s.flat.tokens = append(s.flat.tokens, tokens...)
	return uint64(at)
}

// Create opens a sequence. The prompt's tokens are copied; its scope must stay as
// it is until Manager.Step.
func (s *Step) Create(p Prompt) StepOp {
	op, at := s.add(cgo.OpCreate)
	s.tellers++
	raw, bad, value := s.flat.prompt(&p, &s.scope)
	if bad != "" {
		s.refuse(at, bad, value)
	}
	raw.TokenOffset = s.tokens(p.Tokens)
	*op.Handle() = uint64(len(s.flat.prompts))
	s.flat.prompts = append(s.flat.prompts, raw)
	return at
}

// Grow gives a sequence room.
func (s *Step) Grow(id SequenceID, capacityTokens int) StepOp {
	op, at := s.add(cgo.OpGrow)
	s.growers++
	if capacityTokens < 0 {
		s.refuse(at, "capacityTokens", capacityTokens)
	}
	*op.Grow() = cgo.GrowItem{Sequence: uint64(id), CapacityTokens: uint64(capacityTokens)}
	return at
}

// Commit appends tokens, which are copied.
func (s *Step) Commit(id SequenceID, tokens ...uint32) StepOp {
	op, at := s.add(cgo.OpCommit)
	s.tellers++
	*op.Commit() = cgo.CommitItem{
		Sequence: uint64(id), TokenOffset: s.tokens(tokens), TokenCount: uint64(len(tokens)),
	}
	return at
}

// CommitItem is Commit for pages that were filled from outside, or with digests.
func (s *Step) CommitItem(item CommitItem) StepOp {
	at := s.Commit(item.Sequence, item.Tokens...)
	c := s.ops[at].Commit()
	c.DigestOffset, c.DigestCount = s.flat.addDigests(item.Digests)
	if f := item.Filled; f != nil {
		c.Flags = cgo.CommitFence
		c.Fence = cgo.Fence{DeviceStream: uint64(f.Stream), Position: f.Position}
	}
	return at
}

// Truncate gives back room that was not committed.
func (s *Step) Truncate(id SequenceID, capacityTokens int) StepOp {
	op, at := s.add(cgo.OpTruncate)
	if capacityTokens < 0 {
		s.refuse(at, "capacityTokens", capacityTokens)
	}
	*op.Truncate() = cgo.TruncateItem{Sequence: uint64(id), CapacityTokens: uint64(capacityTokens)}
	return at
}

// Stop ends, from a position on, the making of reusable blocks.
func (s *Step) Stop(id SequenceID, stopBefore int) StepOp {
	op, at := s.add(cgo.OpStop)
	if stopBefore < 0 {
		s.refuse(at, "stopBefore", stopBefore)
	}
	*op.Stop() = cgo.StopItem{Sequence: uint64(id), StopBefore: uint64(stopBefore)}
	return at
}

// Suspend lets a sequence lie.
func (s *Step) Suspend(id SequenceID, keep bool) StepOp {
	op, at := s.add(cgo.OpSuspend)
	*op.Suspend() = cgo.SuspendItem{Sequence: uint64(id)}
	if keep {
		op.Suspend().Flags = cgo.SuspendKeep
	}
	return at
}

// Resume makes a suspended sequence active again.
func (s *Step) Resume(id SequenceID) StepOp {
	s.tellers++
	return s.addID(cgo.OpResume, uint64(id))
}

// Release closes a sequence.
func (s *Step) Release(id SequenceID) StepOp { return s.addID(cgo.OpRelease, uint64(id)) }

// Cancel closes a sequence whose request was given up.
func (s *Step) Cancel(id SequenceID) StepOp { return s.addID(cgo.OpCancel, uint64(id)) }

// End closes a sequence whose conversation is over.
func (s *Step) End(id SequenceID) StepOp { return s.addID(cgo.OpEnd, uint64(id)) }

// ReleaseHeld closes a sequence and leaves its pages held.
func (s *Step) ReleaseHeld(item HoldItem) StepOp {
	op, at := s.add(cgo.OpHold)
	if item.Count < 0 || item.Count > math.MaxUint32 {
		s.refuse(at, "Count", item.Count)
	}
	*op.Hold() = cgo.HoldItem{Sequence: uint64(item.Sequence), Count: uint32(item.Count)}
	if item.Cancel {
		op.Hold().Flags = cgo.HoldCancel
	}
	return at
}

// ReleaseHold releases a hold once.
func (s *Step) ReleaseHold(hold HoldID) StepOp { return s.addID(cgo.OpReleaseHold, uint64(hold)) }

// Retain says how long blocks are worth keeping.
func (s *Step) Retain(item RetainItem) StepOp {
	op, at := s.add(cgo.OpRetain)
	raw, ok := item.raw()
	if !ok {
		s.refuse(at, "an argument of Retain is out of range; Priority", item.Priority)
	}
	*op.Retain() = raw
	return at
}

// Pin pins the blocks of a sequence that are in the tree.
func (s *Step) Pin(id SequenceID) StepOp { return s.addID(cgo.OpPin, uint64(id)) }

// Unpin lets a pin go.
func (s *Step) Unpin(pin Pin) StepOp { return s.addID(cgo.OpUnpin, uint64(pin)) }

// Table tells what makes the row the table of row.Sequence, as Manager.TablesDelta
// does, but as it is after the step: rows are told last. The row is written by
// Manager.Step, and so is row.Sequence if it stood for one that the step opens.
func (s *Step) Table(row *TableRow) StepOp {
	at := firstTable + StepOp(len(s.tables))
	if row.Row < 0 || row.Row > math.MaxUint32 {
		s.refuse(at, "Row", row.Row)
	}
	// A row that comes again is the same row.
	if row.at >= len(s.rows) || s.rows[row.at] != row {
		row.at = len(s.rows)
		s.rows = append(s.rows, row)
	}
	s.tables = append(s.tables, cgo.Op{Kind: cgo.OpTable})
	*s.tables[at-firstTable].Table() = cgo.OpTableItem{
		Sequence: uint64(row.Sequence), Row: uint32(row.Row), Cookie: uint32(row.at),
	}
	return at
}

// Step executes the operations of s, all of them in one crossing into native code
// and under one lock. An error of a single operation is in its result; an error of
// Step itself says that none was executed, unless Executed says otherwise: then a GPU has
// refused a copy that the step had promised, or not all tables could be told. What the results refer to (deltas,
// evicted blocks, fences) is the memory of s and is valid until its next Reset. A step
// is executed once: Reset it before it is filled again.
func (m *Manager) Step(s *Step) error {
	op := opStep.name
	if s.wrong != nil {
		return s.wrong
	}
	if len(s.results) != 0 {
		return argumentError(op, "the step has been executed; Reset it first")
	}
	if n := s.Len(); n >= int(firstTable) {
		return argumentError(op, "%d operations", n)
	}
	if s.Columns < 0 || s.Columns > math.MaxUint32 || s.MaxEvicted < 0 || s.MaxEvicted > math.MaxUint32 {
		return argumentError(op, "Columns is %d, MaxEvicted %d", s.Columns, s.MaxEvicted)
	}
	format, err := s.Format.raw(op)
	if err != nil {
		return err
	}
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	f := &s.flat
	s.in = cgo.StepInput{
		Tokens: f.tokens, Scopes: f.scopes, Bytes: f.bytes, Prompts: f.prompts, Format: format, Columns: uint32(s.Columns),
	}
	s.m = m
	s.ops = append(s.ops, s.tables...)
	s.results = sized(s.results, len(s.ops))
	f.cookies = sized(f.cookies, len(s.rows))
	for i, row := range s.rows {
		f.cookies[i] = row.cookie
	}
	f.evicted = sized(f.evicted, s.MaxEvicted)
	s.waiters = sized(s.waiters, max(16, cap(s.waiters)))
	// The device may have a stream of its own; a grow waits for no other one.
	s.waits = sized(s.waits, s.tellers*int(min(m.streams.Load()+1, maxStreams))+s.growers)
	s.deltas = sized(s.deltas, cap(s.deltas))
	if len(s.results) != 0 {
		s.results[0].Status = notWritten
	}
	used, status := cgo.Step(m.raw, s.ops, &s.in, s.results, f.cookies, s.deltas, f.evicted, s.waits, s.waiters, &f.err)
	var failed error
	if status != cgo.OK {
		failed = callError(op, status, &f.err)
	}
	if status != cgo.OK && (len(s.results) == 0 || s.results[0].Status == notWritten) {
		s.ops, s.results = s.ops[:len(s.ops)-len(s.tables)], s.results[:0]
		return failed
	}
	if used.Waiters != 0 {
		used.Waiters = s.takeMore(m, used.Waiters)
	}
	if status == cgo.OK && len(s.rows) != 0 {
		if used.Deltas, status = s.tellRest(m, used.Deltas); status != cgo.OK {
			failed = callError(op, status, &f.err)
		}
	}
	s.deltas = s.deltas[:used.Deltas]
	s.told = evictedBlocks(sized(s.told, int(used.Evicted)), f.evicted[:used.Evicted])
	s.fences = appendFences(s.fences[:0], s.waits[:used.Waits])
	s.over = appendWaiters(s.over[:0], s.waiters[:used.Waiters])
	for i, row := range s.rows {
		row.cookie = f.cookies[i]
		if uint64(row.Sequence)/cgo.StepResult == 1 {
			row.Sequence = SequenceID(row.cookie.Sequence)
		}
	}
	return failed
}

// Executed says that s has results. If Manager.Step has failed nevertheless, what they name
// is to be given back before the manager is closed.
func (s *Step) Executed() bool { return len(s.results) != 0 }

// notWritten stands in the first result until the library writes it; it is no status.
const notWritten = cgo.Status(-1)

// tellRest repeats the table operations that found no room, with room. They are the
// last ones and change nothing but their rows.
func (s *Step) tellRest(m *Manager, used uint32) (uint32, cgo.Status) {
	for {
		need := uint64(0)
		s.again, s.retry = s.again[:0], s.retry[:0]
		for i := len(s.ops) - len(s.tables); i < len(s.ops); i++ {
			r := &s.results[i]
			if r.Status != cgo.NotNow {
				continue
			}
			op := s.ops[i]
			if r.Sequence == 0 && *op.Handle() != 0 {
				r.Sequence = noSequence // what was to be opened has not been
			}
			*op.Handle() = r.Sequence
			s.again, s.retry = append(s.again, op), append(s.retry, int32(i))
			need += uint64(r.Tabled().Entries)
		}
		if len(s.again) == 0 {
			return used, cgo.OK
		}
		// Sequences may grow meanwhile.
		size := min(uint64(used)+need+need/4, math.MaxUint32)
		grown := make([]TableDelta, size)
		copy(grown, s.deltas[:used])
		s.deltas = grown
		s.retried = sized(s.retried, len(s.again))
		more, status := cgo.Step(m.raw, s.again, &s.in, s.retried, s.flat.cookies, s.deltas[used:],
			nil, nil, nil, &s.flat.err)
		if status != cgo.OK {
			return used, status
		}
		for k, i := range s.retry {
			r := &s.results[i]
			*r = s.retried[k]
			if t := r.Tabled(); t.FirstDelta != cgo.NotTold {
				t.FirstDelta += used
			}
		}
		used += more.Deltas
	}
}
