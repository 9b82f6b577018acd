// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// A publisher whose history is too short answers with a snapshot: a batch that
// begins with a clear and goes on with stores (or, if it has none, a second clear, so
// that it can be told from an ordinary one), perhaps more stores in the next ones, then batches without events up to the number that the snapshot is of, or
// the end mark at once (wire contract, section 10). So neither its numbers nor its
// bytes are those of the batches that came live. What tells the two apart is the
// time: a snapshot has that of the newest batch which it holds, and all later
// batches have a later one.
//
// After a snapshot the tracker floats: it knows what was announced at a time, but
// not under which number. It asks once more, for a history that begins at or before
// that time, and hands out what is later. That is an ordinary history, and its
// newest batch is one to compare later ones with.

const (
	// firstReach is how far before the oldest live message that waits the history
	// is asked for; if it does not begin early enough, maxReachFactor times as far.
	firstReach  = 1
	reachFactor = 8
)

// floating is what is known after a snapshot.
type floating struct {
	on bool
	ts float64
	// padded: batch seq, which had no events, stood for the one it is of.
	padded bool
	seq    uint64
	reach  uint64
}

// glance is what matters of an answer's batch here.
type glance struct {
	ts float64
	// empty: no events; snapshot: a clear, then stores or, if there is nothing to
	// store, another clear.
	empty, snapshot bool
}

func look(payload []byte) (c glance) {
	b, err := wire.Decode(payload, wire.Limits{})
	if err != nil {
		return glance{}
	}
	c.ts = b.TS
	switch n := len(b.Events); {
	case n == 0:
		c.empty = true
	case n > 1 && b.Events[0].Kind == wire.KindCleared:
		c.snapshot = true
		for i := range b.Events {
			c.snapshot = c.snapshot && b.Events[i].Kind != wire.KindRemoved
		}
	}
	return c
}

// timeOf is the time of a batch, which one that cannot be read has not.
func timeOf(payload []byte) float64 { return look(payload).ts }

// snapshot takes a batch of an answer that may be a snapshot; true if it is one.
func (t *tracker) snapshot(r *request, m *Message, first bool) bool {
	if first {
		c := look(m.Payload)
		r.snapshot, r.ts = c.snapshot, c.ts
		if !r.snapshot {
			return false
		}
		t.snapshots = true
		if r.same = t.float.on && c.ts == t.float.ts; r.same {
			return true // nothing has been sent since the one that is known
		}
		if t.have {
			t.emitReset(ResetSnapshot, 0)
		}
	}
	if !r.snapshot {
		return false
	}
	if r.same {
		return true
	}
	// Those without events only fill up the numbers.
	if !first && look(m.Payload).empty {
		r.padded = true
		return true
	}
	t.deliver(m, true)
	t.out[len(t.out)-1].Snapshot = true
	r.fresh = true
	return true
}

// floatFrom ends a snapshot: what waits is in it, or later.
func (t *tracker) floatFrom(r *request) {
	if !r.same {
		t.float = floating{on: true, ts: r.ts, reach: firstReach}
	}
	t.float.padded = r.padded
	t.float.seq = r.prev
	t.chained, t.payload = false, nil
	kept := t.pending[:0]
	for _, h := range t.pending {
		if timeOf(h.m.Payload) <= t.float.ts {
			t.stats.Duplicates++
			t.pendingBytes -= h.size()
		} else {
			kept = append(kept, h)
		}
	}
	clear(t.pending[len(kept):])
	t.pending = kept
}

// floatStart is the number from which a history is asked for that begins at or
// before the time that is known.
func (t *tracker) floatStart() uint64 {
	switch {
	case t.float.padded:
		return t.float.seq
	case len(t.pending) == 0 || t.pending[0].m.Seq < t.float.reach:
		return 0 // as at first: there may be a later snapshot
	}
	return t.pending[0].m.Seq - t.float.reach
}

// land takes a batch of such a history. It returns false if it has to be treated
// like any other.
func (t *tracker) land(now time.Time, r *request, m *Message, first bool) bool {
	if ts := timeOf(m.Payload); ts <= t.float.ts {
		// It is in the snapshot.
		t.have, t.last, t.payload = true, m.Seq, m.Payload
		r.reached = true
		return true
	}
	switch {
	case r.reached:
		t.float = floating{}
	case !first:
	case r.start > 0 && m.Seq == r.start:
		// It begins too late.
		t.float.reach *= reachFactor
		t.float.padded = false
		t.request = nil
		t.due, t.dueAt = true, now
		return true
	case r.start > 0:
		// There is no earlier one: something is lost.
		t.float = floating{}
		t.have, t.last = true, r.start
	default:
		// All of another life.
		t.emitReset(ResetReplaced, 0)
	}
	return false
}
