// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// PendingOutcome says how a wait for blocks that another sequence computes ended.
type PendingOutcome uint32

const (
	// PendingCommitted: what the sequence waited for is reusable, or was a moment ago.
	PendingCommitted = PendingOutcome(cgo.PendingCommitted)
	// PendingGivenUp: nobody computes it any more, or not all of it.
	PendingGivenUp = PendingOutcome(cgo.PendingGivenUp)
)

// String is "committed" or "given up".
func (o PendingOutcome) String() string {
	switch o {
	case PendingCommitted:
		return "committed"
	case PendingGivenUp:
		return "given up"
	default:
		return "unknown outcome"
	}
}

// Waiter is a sequence whose wait (Prompt.Wait) is over: resume it.
type Waiter struct {
	Sequence SequenceID
	Outcome  PendingOutcome
}

var opWaiters = newOp("take waiters")

// TakeWaiters takes sequences whose waits are over and that have not been told of, as
// many as waiters has room for, in the order in which the waits ended, and returns the
// part of waiters that it has written. A Step tells them as well; each is told once.
func (m *Manager) TakeWaiters(waiters []Waiter) ([]Waiter, error) {
	if err := m.enter(opWaiters.name); err != nil {
		return nil, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.waiters = sized(sc.waiters, min(len(waiters), math.MaxUint32))
	count, s := m.raw.WaitersTake(sc.waiters, &sc.err)
	if s != cgo.OK {
		return nil, callError(opWaiters.name, s, &sc.err)
	}
	return appendWaiters(waiters[:0], sc.waiters[:count]), nil
}

func appendWaiters(dst []Waiter, raw []cgo.Waiter) []Waiter {
	for _, w := range raw {
		dst = append(dst, Waiter{SequenceID(w.Sequence), PendingOutcome(w.Outcome)})
	}
	return dst
}

// takeMore fills s.waiters beyond `used`, as far as there are any. What cannot be taken
// now is told by the next step.
func (s *Step) takeMore(m *Manager, used uint32) uint32 {
	for int(used) == len(s.waiters) {
		grown := make([]cgo.Waiter, max(16, 2*len(s.waiters)))
		copy(grown, s.waiters)
		s.waiters = grown
		more, status := m.raw.WaitersTake(s.waiters[used:], &s.flat.err)
		if status != cgo.OK {
			break
		}
		used += more
	}
	return used
}
