// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvcast/kvcast/bindings"
)

// caller are the calls on sequences that a step can make as well.
type caller interface {
	Create([]bindings.Prompt, []bindings.CreateResult) error
	GrowTold([]bindings.GrowItem, []bindings.GrowResult,
		[]bindings.EvictedBlock) ([]bindings.EvictedBlock, error)
	Fork([]bindings.ForkItem, []bindings.ForkResult) error
	Commit([]bindings.CommitItem, []bindings.CommitResult) error
	Truncate([]bindings.TruncateItem, []bindings.TruncateResult) error
	Stop([]bindings.StopItem, []error) error
	Suspend([]bindings.SuspendItem, []error) error
	Resume([]bindings.SequenceID, []bindings.ResumeResult) error
	Release([]bindings.SequenceID, []error) error
	Cancel([]bindings.SequenceID, []error) error
	End([]bindings.SequenceID, []error) error
	ReleaseHeld([]bindings.HoldItem, []bindings.HoldResult) error
	ReleaseHolds([]bindings.HoldID, []error) error
	Retain([]bindings.RetainItem, []error) error
	PinSequences([]bindings.SequenceID, []bindings.PinResult) error
	Unpin([]bindings.Pin, []error) error
	TablesDelta(bindings.TableFormat, []bindings.TableRow, int, []bindings.TableDelta,
		[]bindings.TableResult) (int, error)
}

// stepper lets calls with one item each be made by one Step. They are made twice:
// the first time they are only noted; after run the second time, which must be
// the same, gives their results.
type stepper struct {
	step bindings.Step
	done bool
	ops  []bindings.StepOp
	next int
}

func (x *stepper) run(m *bindings.Manager) error {
	x.done = true
	return m.Step(&x.step)
}

// take notes an operation, or says which one the call was.
func (x *stepper) take(add func() bindings.StepOp) (bindings.StepOp, bool) {
	if !x.done {
		x.ops = append(x.ops, add())
		return 0, false
	}
	x.next++
	return x.ops[x.next-1], true
}

func (x *stepper) err(errs []error, add func() bindings.StepOp) error {
	errs[0] = nil
	if op, ok := x.take(add); ok {
		errs[0] = x.step.Err(op)
	}
	return nil
}

// opened is the sequence of a create or fork that was just noted, or made.
func opened(c caller, made bindings.Sequence) bindings.SequenceID {
	if x, ok := c.(*stepper); ok && !x.done {
		return x.ops[len(x.ops)-1].Sequence()
	}
	return made.ID()
}

func (x *stepper) Create(prompts []bindings.Prompt, out []bindings.CreateResult) error {
	out[0] = bindings.CreateResult{}
	if op, ok := x.take(func() bindings.StepOp { return x.step.Create(prompts[0]) }); ok {
		out[0] = x.step.Created(op)
	}
	return nil
}

// GrowTold does not tell what there would have been no room for.
func (x *stepper) GrowTold(items []bindings.GrowItem, out []bindings.GrowResult,
	evicted []bindings.EvictedBlock) ([]bindings.EvictedBlock, error) {
	out[0] = bindings.GrowResult{CopiedBlock: -1}
	op, ok := x.take(func() bindings.StepOp {
		return x.step.Grow(items[0].Sequence, items[0].CapacityTokens)
	})
	if !ok {
		return nil, nil
	}
	out[0] = x.step.Grown(op)
	r := &out[0]
	if r.FirstEvicted < 0 || r.EvictedBlocks > len(evicted) {
		r.FirstEvicted = -1
		return evicted[:0], nil
	}
	n := copy(evicted, x.step.Evicted()[r.FirstEvicted:][:r.EvictedBlocks])
	r.FirstEvicted = 0
	return evicted[:n], nil
}

func (x *stepper) Commit(items []bindings.CommitItem, out []bindings.CommitResult) error {
	out[0] = bindings.CommitResult{FirstChangedBlock: -1}
	op, ok := x.take(func() bindings.StepOp {
		if items[0].Filled != nil || items[0].Digests != nil {
			return x.step.CommitItem(items[0])
		}
		return x.step.Commit(items[0].Sequence, items[0].Tokens...)
	})
	if ok {
		out[0] = x.step.Committed(op)
	}
	return nil
}

func (x *stepper) Fork(items []bindings.ForkItem, out []bindings.ForkResult) error {
	out[0] = bindings.ForkResult{}
	if op, ok := x.take(func() bindings.StepOp { return x.step.Fork(items[0]) }); ok {
		out[0] = x.step.Forked(op)
	}
	return nil
}

func (x *stepper) Truncate(items []bindings.TruncateItem, out []bindings.TruncateResult) error {
	out[0] = bindings.TruncateResult{}
	op, ok := x.take(func() bindings.StepOp {
		return x.step.Truncate(items[0].Sequence, items[0].CapacityTokens)
	})
	if ok {
		out[0] = x.step.Truncated(op)
	}
	return nil
}

func (x *stepper) Stop(items []bindings.StopItem, errs []error) error {
	return x.err(errs, func() bindings.StepOp {
		return x.step.Stop(items[0].Sequence, items[0].StopBefore)
	})
}

func (x *stepper) Suspend(items []bindings.SuspendItem, errs []error) error {
	return x.err(errs, func() bindings.StepOp {
		return x.step.Suspend(items[0].Sequence, items[0].Keep)
	})
}

func (x *stepper) Resume(ids []bindings.SequenceID, out []bindings.ResumeResult) error {
	out[0] = bindings.ResumeResult{}
	if op, ok := x.take(func() bindings.StepOp { return x.step.Resume(ids[0]) }); ok {
		out[0] = x.step.Resumed(op)
	}
	return nil
}

func (x *stepper) Release(ids []bindings.SequenceID, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.Release(ids[0]) })
}

func (x *stepper) Cancel(ids []bindings.SequenceID, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.Cancel(ids[0]) })
}

func (x *stepper) End(ids []bindings.SequenceID, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.End(ids[0]) })
}

func (x *stepper) ReleaseHeld(items []bindings.HoldItem, out []bindings.HoldResult) error {
	out[0] = bindings.HoldResult{}
	if op, ok := x.take(func() bindings.StepOp { return x.step.ReleaseHeld(items[0]) }); ok {
		out[0] = x.step.Held(op)
	}
	return nil
}

func (x *stepper) ReleaseHolds(holds []bindings.HoldID, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.ReleaseHold(holds[0]) })
}

func (x *stepper) Retain(items []bindings.RetainItem, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.Retain(items[0]) })
}

func (x *stepper) PinSequences(ids []bindings.SequenceID, out []bindings.PinResult) error {
	out[0] = bindings.PinResult{}
	if op, ok := x.take(func() bindings.StepOp { return x.step.Pin(ids[0]) }); ok {
		out[0] = x.step.Pinned(op)
	}
	return nil
}

func (x *stepper) Unpin(pins []bindings.Pin, errs []error) error {
	return x.err(errs, func() bindings.StepOp { return x.step.Unpin(pins[0]) })
}

func (x *stepper) TablesDelta(f bindings.TableFormat, rows []bindings.TableRow, columns int,
	deltas []bindings.TableDelta, out []bindings.TableResult) (int, error) {
	out[0] = bindings.TableResult{}
	x.step.Format, x.step.Columns = f, columns
	op, ok := x.take(func() bindings.StepOp { return x.step.Table(&rows[0]) })
	if !ok {
		return 0, nil
	}
	result, told := x.step.Told(op)
	out[0] = result
	return copy(deltas, told), nil
}

// calls are the manager's, or those of the step that is being made.
func (s *script) calls() caller {
	if s.step != nil {
		return s.step
	}
	return s.manager
}

// together makes several operations by one Step.
func (s *script) together(line string) (string, error) {
	options, operations, ok := strings.Cut(line, ":")
	if !ok {
		return "", fmt.Errorf("together [room=N]: OPERATION; OPERATION")
	}
	x := new(stepper)
	x.step.MaxEvicted = 1024
	if word := strings.Fields(options)[1:]; len(word) != 0 {
		x.step.MaxEvicted = number(strings.TrimPrefix(word[0], "room="))
	}
	run := func() (string, error) {
		s.step = x
		defer func() { s.step = nil }()
		var text strings.Builder
		for operation := range strings.SplitSeq(operations, ";") {
			out, err := s.run(operation)
			if err != nil {
				return "", err
			}
			text.WriteString(out)
		}
		if x.done && len(x.step.Waiters()) != 0 {
			text.WriteString("over: " + s.over(x.step.Waiters()) + "\n")
		}
		return text.String(), nil
	}
	sequences, pins, open := map[string]scriptSequence{}, maps.Clone(s.pins), slices.Clone(s.open)
	for name, q := range s.sequences {
		sequences[name] = *q
	}
	holds := map[string]scriptHold{}
	for name, h := range s.holds {
		holds[name] = *h
	}
	if _, err := run(); err != nil {
		return "", err
	}
	if err := x.run(s.manager); err != nil {
		return "", err
	}
	// As before, but names of sequences stay known: those that fail to be opened too.
	for name, q := range sequences {
		s.sequences[name] = &q
	}
	s.pins, s.open, s.holds = pins, open, map[string]*scriptHold{}
	for name, h := range holds {
		s.holds[name] = &h
	}
	return run()
}
