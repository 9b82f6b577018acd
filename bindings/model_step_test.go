// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
)

// Steps in the run of the model: operations that are also drawn by themselves, made
// by one call. All of them are drawn before the first is made, so that some come to
// nothing; what they return is judged one by one, in their order, by what judges the
// single calls, and the sequences when all is done.

// mTarget is a sequence that is open before a step, or that an operation of it opens.
type mTarget struct {
	id        bindings.SequenceID
	s         *mSequence // nil: not open, or not yet
	committed int        // before the step
	// The pages that it had before the step are its own, and stay, as far as is drawn.
	keeps  bool
	closes bool // something that surely closes it has been drawn
}

// mWaiting is what a device stream has to wait for after a step.
type mWaiting struct {
	s    *mSequence
	got  []bindings.Fence
	want []mFence
}

// mStep is a step that is being drawn, and then judged.
type mStep struct {
	l       *lockstep
	step    bindings.Step
	targets []*mTarget
	judges  []func()
	rows    []func() // judge what is told last
	waiting []mWaiting
	itself  []bindings.DeviceStream // that the manager cannot make wait
	told    int                     // evicted blocks, by the operations so far
}

func (l *lockstep) together(t *rapid.T) {
	x := &mStep{l: l}
	x.step.Columns = max(l.m.total, l.m.elastic.most)
	for _, s := range l.m.sequences {
		x.targets = append(x.targets, &mTarget{id: s.id, s: s, committed: s.committed, keeps: !s.suspended})
	}
	for range rapid.SampledFrom([]int{1, 2, 4, 8, 12}).Draw(t, "operations") {
		x.draw(t)
	}
	// Room for whatever may go; too little is another rule, which scripts tell.
	x.step.MaxEvicted = max(l.m.total, l.m.elastic.most) * (len(x.judges) + 1)
	l.same("step", l.manager.Step(&x.step), nil)
	for _, judge := range x.judges {
		l.worked()
		l.m.settleMemory() // also where there is nobody to work on
		judge()
	}
	for _, judge := range x.rows {
		l.worked()
		judge()
	}
	l.equal("evicted blocks told", len(x.step.Evicted()), x.told)
	l.over(x.step.Waiters(), math.MaxInt)
	// Each row is compared after the action.
	for _, d := range x.step.Deltas() {
		l.tables.entries[d.Row][d.Column] = d.Value
	}
	// What the streams do next comes after all of the step, in the library too.
	for _, w := range x.waiting {
		l.streamWait(w.s, w.got, w.want)
	}
	for _, stream := range x.itself {
		l.waitItself(stream, true)
	}
	for _, s := range l.m.sequences {
		l.sequence(s)
	}
}

// open notes that an operation opens a sequence.
func (x *mStep) open(op bindings.StepOp) *mTarget {
	target := &mTarget{id: op.Sequence()}
	x.targets = append(x.targets, target)
	return target
}

// waits notes what a sequence's stream has to wait for.
func (x *mStep) waits(s *mSequence, got []bindings.Fence, want []mFence) {
	x.waiting = append(x.waiting, mWaiting{s, got, want})
}

// add notes what judges an operation if its sequence is open when it is made; if not it
// is stale.
func (x *mStep) add(target *mTarget, op bindings.StepOp, judge func(*mSequence)) {
	x.judges = append(x.judges, func() {
		if target.s == nil {
			x.l.same("an operation of a step for nobody", x.step.Err(op), bindings.ErrStaleHandle)
			return
		}
		judge(target.s)
	})
}

// draw draws one operation, or none if there is nothing to work on.
func (x *mStep) draw(t *rapid.T) {
	// What ends a sequence is rarer: the others need some that are open.
	kind := rapid.SampledFrom([]string{"create", "grow", "grow", "grow", "truncate", "commit", "commit",
		"commit", "commit", "suspend", "suspend", "resume", "resume", "fork", "retain", "pin", "unpin",
		"end hold", "tables", "stop or close"}).Draw(t, "kind")
	switch kind {
	case "create":
		x.create(t)
		return
	case "unpin":
		x.unpin(t)
		return
	case "end hold":
		x.endHold(t)
		return
	case "tables":
		x.tables()
		return
	case "commit":
		x.commit(t)
		return
	}
	if len(x.targets) == 0 {
		return
	}
	target := x.targets[rapid.IntRange(0, len(x.targets)-1).Draw(t, "sequence")]
	switch kind {
	case "grow":
		x.grow(t, target)
	case "truncate":
		x.truncate(t, target)
	case "suspend":
		target.keeps = false
		keep := rapid.Bool().Draw(t, "keep")
		op := x.step.Suspend(target.id, keep)
		x.add(target, op, func(s *mSequence) {
			x.l.same("suspend", x.step.Err(op), x.l.m.suspend(s, keep))
		})
	case "resume":
		target.keeps = false
		op := x.step.Resume(target.id)
		x.add(target, op, func(s *mSequence) {
			r := x.step.Resumed(op)
			x.waits(s, r.Waits, x.l.resumed(s, &r))
			if len(r.Waits) > 0 {
				x.itself = append(x.itself, s.stream)
			}
		})
	case "fork":
		x.fork(t, target)
	case "retain":
		x.retain(t, target)
	case "pin":
		op := x.step.Pin(target.id)
		x.add(target, op, func(s *mSequence) {
			r := x.step.Pinned(op)
			x.l.pinnedSequence(s, &r)
		})
	default:
		x.stopOrClose(t, target)
	}
}

func (x *mStep) create(t *rapid.T) {
	scope, prompt := x.l.drawRequest(t)
	op := x.step.Create(items(prompt)[0])
	target := x.open(op)
	x.judges = append(x.judges, func() {
		r := x.step.Created(op)
		s, waits := x.l.created(scope, prompt, &r)
		if s == nil {
			return
		}
		target.s = s
		x.l.waits("create", r.Waits, waits)
		x.waits(s, r.Waits, waits)
		if s.matched%x.l.m.blockSize != 0 {
			x.itself = append(x.itself, s.stream)
		}
	})
}

func (x *mStep) fork(t *rapid.T, from *mTarget) {
	stream := rapid.SampledFrom(x.l.openStreams()).Draw(t, "device stream")
	if from.s != nil && rapid.Bool().Draw(t, "on its stream") {
		stream = from.s.stream
	}
	op := x.step.Fork(bindings.ForkItem{Sequence: from.id, DeviceStream: stream})
	target := x.open(op)
	x.add(from, op, func(s *mSequence) {
		r := x.step.Forked(op)
		made, waits := x.l.forked(s, stream, &r)
		if made == nil {
			return
		}
		target.s = made
		x.waits(made, r.Waits, waits)
		if len(r.Waits) > 0 {
			x.itself = append(x.itself, stream)
		}
	})
}

func (x *mStep) grow(t *rapid.T, target *mTarget) {
	m := x.l.m
	capacity := target.committed + rapid.SampledFrom([]int{0, 1, 1, 2, 4, 12}).Draw(t, "room")*m.blockSize
	op := x.step.Grow(target.id, capacity)
	x.add(target, op, func(s *mSequence) {
		r := x.step.Grown(op)
		x.told = x.l.grown(s, capacity, &r, x.step.Evicted(), x.told)
		if r.Wait.Stream != 0 {
			x.itself = append(x.itself, s.stream)
		}
	})
}

func (x *mStep) truncate(t *rapid.T, target *mTarget) {
	target.keeps = false
	capacity := target.committed + rapid.IntRange(0, 2*x.l.m.blockSize).Draw(t, "room")
	op := x.step.Truncate(target.id, capacity)
	x.add(target, op, func(s *mSequence) {
		r := x.step.Truncated(op)
		x.l.truncated(s, capacity, &r)
	})
}

// commit: the fake engine's kernels are queued before the step, into pages that are
// known then and stay; once for each sequence.
func (x *mStep) commit(t *rapid.T) {
	var able []*mTarget
	for _, target := range x.targets {
		if target.s != nil && (target.closes || target.keeps && !x.l.m.sharesTail(target.s)) {
			able = append(able, target)
		}
	}
	if len(able) == 0 {
		return
	}
	target := rapid.SampledFrom(able).Draw(t, "sequence")
	s := target.s
	room := len(s.pages)*x.l.m.blockSize - s.committed
	if s.suspended {
		room = 1
	}
	n := rapid.SampledFrom([]int{0, min(1, room), room / 2, room, room}).Draw(t, "count")
	tokens := x.l.next(t, s, x.l.tokens(n, n).Draw(t, "tokens"))
	filled := x.l.drawFilled(t, s)
	if !target.closes {
		target.keeps = false
		x.l.compute(s, tokens, filled)
	}
	op := x.step.CommitItem(commitItem(s, tokens, filled))
	x.add(target, op, func(s *mSequence) {
		r := x.step.Committed(op)
		x.waits(s, r.Waits, x.l.committed(s, tokens, filled, &r))
	})
}

func (x *mStep) retain(t *rapid.T, target *mTarget) {
	item, ticks := x.l.drawRetain(t, target.committed)
	item.Sequence = target.id
	op := x.step.Retain(item)
	x.judges = append(x.judges, func() {
		switch {
		case target.s != nil:
			x.l.retained(target.s, item, ticks, x.step.Err(op))
		case neverRight(item):
			x.l.same("retain", x.step.Err(op), bindings.ErrInvalidArgument)
		default:
			x.l.same("retain", x.step.Err(op), bindings.ErrStaleHandle)
		}
	})
}

func (x *mStep) unpin(t *rapid.T) {
	m := x.l.m
	if len(m.pins) == 0 {
		return
	}
	id := rapid.SampledFrom(m.pins).Draw(t, "pin").id
	op := x.step.Unpin(id)
	x.judges = append(x.judges, func() {
		i := slices.IndexFunc(m.pins, func(p mPin) bool { return p.id == id })
		if i < 0 {
			x.l.same("unpin", x.step.Err(op), bindings.ErrStaleHandle)
			return
		}
		x.l.same("unpin", x.step.Err(op), nil)
		m.unpin(i)
	})
}

func (x *mStep) endHold(t *rapid.T) {
	m := x.l.m
	if len(m.holds) == 0 {
		return
	}
	h := rapid.SampledFrom(m.holds).Draw(t, "hold")
	op := x.step.ReleaseHold(h.id)
	x.judges = append(x.judges, func() {
		if h.count == 0 {
			x.l.same("end hold", x.step.Err(op), bindings.ErrStaleHandle)
			return
		}
		x.l.same("end hold", x.step.Err(op), nil)
		m.releaseHold(h)
	})
}

// tables brings all rows up to date, as a serving loop does.
func (x *mStep) tables() {
	for _, target := range x.targets {
		if target.s == nil {
			continue // has no row yet
		}
		op := x.step.Table(&x.l.tables.state[uint32(target.id)])
		x.rows = append(x.rows, func() {
			r, _ := x.step.Told(op)
			var want error
			if target.s == nil {
				want = bindings.ErrStaleHandle
			}
			x.l.same("table", r.Err, want)
		})
	}
}

func (x *mStep) stopOrClose(t *rapid.T, target *mTarget) {
	l := x.l
	kind := rapid.SampledFrom([]string{"stop", "release", "cancel", "end", "hold"}).Draw(t, "what")
	var op bindings.StepOp
	switch kind {
	case "stop":
		position := target.committed + rapid.IntRange(0, 2*l.m.blockSize).Draw(t, "position")
		op = x.step.Stop(target.id, position)
		x.add(target, op, func(s *mSequence) { l.same("stop", x.step.Err(op), l.m.stop(s, position)) })
		return
	case "hold":
		item := drawHold(t)
		item.Sequence = target.id
		op = x.step.ReleaseHeld(item)
		x.add(target, op, func(s *mSequence) {
			r := x.step.Held(op)
			if l.held(s, item, &r); r.Err == nil {
				target.s = nil
			}
		})
	case "release":
		op = x.step.Release(target.id)
	case "cancel":
		op = x.step.Cancel(target.id)
	default:
		op = x.step.End(target.id)
	}
	if kind != "hold" {
		x.add(target, op, func(s *mSequence) {
			l.same("close", x.step.Err(op), nil)
			l.stale = append(l.stale, s.id)
			l.m.release(s, kind == "cancel", kind == "end")
			target.s = nil
		})
	}
	target.keeps = false
	target.closes = target.closes || kind != "hold" // of a suspended one there is no hold
}
