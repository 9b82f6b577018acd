// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
)

// A share of the model's calls with one item are made by steps of one operation: nothing
// else may differ.

// stepCalls are calls that a step makes, if this has been drawn for the action.
type stepCalls struct {
	l       *lockstep
	through bool
	stepper stepper
	over    []bindings.Waiter // told by a step, and not judged yet
}

// draw decides for one action.
func (c *stepCalls) draw(t *rapid.T) {
	c.through = rapid.SampledFrom([]bool{true, false, false, false}).Draw(t, "by steps")
}

// of says who makes the next call.
func (c *stepCalls) of() caller {
	c.settle()
	if c.through {
		return c
	}
	return c.l.manager
}

// settle judges whose waits were over after a step: by now the model has made it, too.
func (c *stepCalls) settle() {
	if len(c.over) != 0 {
		c.l.over(c.over, len(c.over))
		c.over = c.over[:0]
	}
}

// once makes a call of the stepper's by a step.
func (c *stepCalls) once(call func(*stepper) error) error {
	x := &c.stepper
	x.step.Reset()
	x.ops, x.next, x.done = x.ops[:0], 0, false
	x.step.MaxEvicted = c.l.m.total
	if err := call(x); err != nil {
		return err
	}
	if err := x.run(c.l.manager); err != nil {
		return err
	}
	c.over = append(c.over, x.step.Waiters()...)
	return call(x)
}

func (c *stepCalls) Create(items []bindings.Prompt, out []bindings.CreateResult) error {
	return c.once(func(x *stepper) error { return x.Create(items, out) })
}

func (c *stepCalls) GrowTold(items []bindings.GrowItem, out []bindings.GrowResult, evicted []bindings.EvictedBlock) (told []bindings.EvictedBlock, err error) {
	err = c.once(func(x *stepper) error { told, err = x.GrowTold(items, out, evicted); return err })
	return told, err
}

func (c *stepCalls) Fork(items []bindings.ForkItem, out []bindings.ForkResult) error {
	return c.once(func(x *stepper) error { return x.Fork(items, out) })
}

func (c *stepCalls) Commit(items []bindings.CommitItem, out []bindings.CommitResult) error {
	return c.once(func(x *stepper) error { return x.Commit(items, out) })
}

func (c *stepCalls) Truncate(items []bindings.TruncateItem, out []bindings.TruncateResult) error {
	return c.once(func(x *stepper) error { return x.Truncate(items, out) })
}

func (c *stepCalls) Stop(items []bindings.StopItem, out []error) error {
	return c.once(func(x *stepper) error { return x.Stop(items, out) })
}

func (c *stepCalls) Suspend(items []bindings.SuspendItem, out []error) error {
	return c.once(func(x *stepper) error { return x.Suspend(items, out) })
}

func (c *stepCalls) Resume(items []bindings.SequenceID, out []bindings.ResumeResult) error {
	return c.once(func(x *stepper) error { return x.Resume(items, out) })
}

func (c *stepCalls) Release(items []bindings.SequenceID, out []error) error {
	return c.once(func(x *stepper) error { return x.Release(items, out) })
}

func (c *stepCalls) Cancel(items []bindings.SequenceID, out []error) error {
	return c.once(func(x *stepper) error { return x.Cancel(items, out) })
}

func (c *stepCalls) End(items []bindings.SequenceID, out []error) error {
	return c.once(func(x *stepper) error { return x.End(items, out) })
}

func (c *stepCalls) ReleaseHeld(items []bindings.HoldItem, out []bindings.HoldResult) error {
	return c.once(func(x *stepper) error { return x.ReleaseHeld(items, out) })
}

func (c *stepCalls) ReleaseHolds(items []bindings.HoldID, out []error) error {
	return c.once(func(x *stepper) error { return x.ReleaseHolds(items, out) })
}

func (c *stepCalls) Retain(items []bindings.RetainItem, out []error) error {
	return c.once(func(x *stepper) error { return x.Retain(items, out) })
}

func (c *stepCalls) PinSequences(items []bindings.SequenceID, out []bindings.PinResult) error {
	return c.once(func(x *stepper) error { return x.PinSequences(items, out) })
}

func (c *stepCalls) Unpin(items []bindings.Pin, out []error) error {
	return c.once(func(x *stepper) error { return x.Unpin(items, out) })
}

func (c *stepCalls) TablesDelta(f bindings.TableFormat, rows []bindings.TableRow, columns int, deltas []bindings.TableDelta, out []bindings.TableResult) (told int, err error) {
	err = c.once(func(x *stepper) error { told, err = x.TablesDelta(f, rows, columns, deltas, out); return err })
	return told, err
}
