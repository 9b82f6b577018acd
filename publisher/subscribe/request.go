// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"fmt"
	"time"
)

const (
	// askBurst and askEvery pace requests: so many at once, then one in that
	// time. What triggers them comes from outside.
	askBurst = 10
	askEvery = time.Second
	// retryPause is the pause after a failed request, doubled with each until it
	// has been retryDoublings times.
	retryPause     = 200 * time.Millisecond
	retryDoublings = 4
	// rebuildPause is the pause between two tries to get the whole history,
	// doubled with each failure up to rebuildPauseMax.
	rebuildPause    = time.Second
	rebuildPauseMax = time.Minute
	// answerTimeouts is the longest time for one answer, in time-outs. It stops
	// a server that always sends a little.
	answerTimeouts = 60
	// maxAnswer is the number of batches in one answer; no ring is longer.
	maxAnswer = 1 << 24
)

// request is a replay that is under way.
type request struct {
	start uint64
	// check: the first batch must be the last one that was handed out.
	check bool
	// background: live messages go on until there is an answer.
	background bool
	// probe: for the newest live message, of which no answer has told yet.
	probe bool
	// mend: for the whole state behind a gap, see mend.go.
	mend  bool
	got   bool
	prev  uint64 // the newest number of the answer, if got
	count int
	fresh bool // something was handed out
	// See snapshot.go. snapshot: the answer is one, at time ts; same: it is the one
	// that is known; padded: it was filled up; reached: a floating tracker has found
	// a batch that it holds.
	snapshot, same, padded, reached bool
	ts                              float64
	// idle and total are the time spent waiting: since the last batch, and in
	// all.
	idle, total time.Duration
}

// wants returns the number to ask from when a request is to be made now, which
// is then under way.
func (t *tracker) wants(now time.Time) (uint64, bool) {
	if !t.asks || t.request != nil {
		return 0, false
	}
	if !t.due && !t.degraded && !t.settleAt.IsZero() && !now.Before(t.settleAt) {
		t.settleAt = time.Time{}
		t.due, t.dueAt = true, now
	}
	rebuild := t.degraded && !now.Before(t.rebuildAt)
	mend := !rebuild && !t.due && t.mendDue(now)
	if !rebuild && !mend && (!t.due || now.Before(t.dueAt)) || !t.token(now) {
		return 0, false
	}
	t.due = false
	t.asked++
	t.overflowed = false
	t.request = &request{background: rebuild || mend, mend: mend}
	switch {
	case rebuild || mend:
	case t.float.on:
		t.request.start = t.floatStart()
	case t.have:
		t.request.check, t.request.start = true, t.last
	case t.probe && len(t.pending) > 0:
		t.request.probe, t.request.start = true, t.pending[len(t.pending)-1].m.Seq
	}
	t.probe = false
	t.stats.Requests++
	return t.request.start, true
}

func (t *tracker) token(now time.Time) bool {
	if n := int(now.Sub(t.tokenAt) / askEvery); n > 0 {
		t.tokens = min(t.tokens+n, askBurst)
		t.tokenAt = t.tokenAt.Add(time.Duration(n) * askEvery)
	}
	if t.tokens == 0 {
		return false
	}
	t.tokens--
	return true
}

// wake returns how long nothing will happen by itself; never less than a
// millisecond, never more than most.
func (t *tracker) wake(now time.Time, most time.Duration) time.Duration {
	at := now.Add(most)
	earlier := func(u time.Time) {
		if u.Before(at) {
			at = u
		}
	}
	switch r := t.request; {
	case r != nil:
		earlier(now.Add(min(t.timeout-r.idle, answerTimeouts*t.timeout-r.total)))
	case t.asks && (t.due || t.degraded):
		u := t.dueAt
		if t.degraded {
			u = t.rebuildAt
		}
		if t.tokens == 0 && u.Before(t.tokenAt.Add(askEvery)) {
			u = t.tokenAt.Add(askEvery)
		}
		earlier(u)
	default:
		if t.asks && !t.settleAt.IsZero() {
			earlier(t.settleAt)
		}
		if t.mend.left > 0 {
			earlier(t.mend.at)
		}
	}
	return max(at.Sub(now), time.Millisecond)
}

// waited adds to the time that the request under way has taken, and gives it
// up when that was too long.
func (t *tracker) waited(now time.Time, d time.Duration) {
	r := t.request
	if r == nil {
		return
	}
	r.idle += d
	r.total += d
	switch {
	case r.idle >= t.timeout:
		t.failed(now, fmt.Sprintf("no answer for %v", t.timeout))
	case r.total >= answerTimeouts*t.timeout:
		t.failed(now, fmt.Sprintf("an answer that takes more than %v", answerTimeouts*t.timeout))
	}
}

// answer takes the next batch of the answer to the request under way.
func (t *tracker) answer(now time.Time, m *Message) {
	r := t.request
	r.count++
	switch {
	case m.Seq < r.start:
		t.failed(now, fmt.Sprintf("asked from %d, got %d", r.start, m.Seq))
		return
	case r.got && m.Seq <= r.prev:
		t.failed(now, fmt.Sprintf("batch %d after %d", m.Seq, r.prev))
		return
	case r.count > t.limits.answer:
		t.failed(now, fmt.Sprintf("an answer of more than %d batches", t.limits.answer))
		return
	}
	first := !r.got
	if first && r.mend {
		if !whole(m) {
			t.failed(now, "a history that begins too late")
			return
		}
		r.mend = false
		t.mended()
	}
	r.got, r.prev, r.idle = true, m.Seq, 0
	if first && r.background {
		// What is known is put together from pieces; this is whole.
		r.background = false
		t.degraded = false
		t.unchain()
		if t.have {
			t.emitReset(ResetRebuilt, 0)
		}
	}
	if first && r.check && m.Seq == t.last && bytes.Equal(m.Payload, t.payload) {
		return
	}
	if t.snapshot(r, m, first) {
		return
	}
	if t.float.on {
		if t.land(now, r, m, first) {
			return
		}
	}
	if first && r.check {
		t.newLife(now)
		return
	}
	if t.have && m.Seq > t.last+1 || !t.have && m.Seq > 0 {
		t.gapBefore(m)
	}
	t.deliver(m, true)
	r.fresh = true
}

// newLife begins anew with whoever sends now.
func (t *tracker) newLife(now time.Time) {
	t.emitReset(ResetReplaced, 0)
	t.unchain()
	t.request = nil
	t.due, t.dueAt = true, now
}

// end takes the end of the answer.
func (t *tracker) end(now time.Time) {
	r := t.request
	switch {
	case r.background && t.have:
		t.failed(now, "an answer without batches")
		return
	case (r.check || t.float.padded && r.start == t.float.seq) && !r.got:
		// Whoever answers has not come to a number that its predecessor has sent.
		t.newLife(now)
		return
	}
	t.request = nil
	t.degraded = false
	t.attempts, t.aborts = 0, 0
	switch {
	case r.snapshot:
		t.floatFrom(r)
	case r.reached:
		t.float = floating{}
	}
	t.pause = rebuildPause
	// Nothing new, and so much live meanwhile that some was dropped: it would
	// be so again.
	barren := t.chained && !r.fresh && t.overflowed
	if !t.chained {
		t.judge(now, r)
	}
	for i := range t.pending {
		h := &t.pending[i]
		if h.asked < t.asked {
			h.back = false
		}
		h.settled = h.settled || barren || h.asked < t.asked
	}
}

// failed gives up the request under way.
func (t *tracker) failed(now time.Time, why string) {
	t.stats.Failed++
	t.stats.LastFailure = why
	background, mend := t.request.background, t.request.mend
	t.request = nil
	if mend {
		t.mendLater(now)
		return
	}
	if background {
		t.degrade(now)
		return
	}
	if t.attempts++; t.attempts >= t.limits.attempts {
		t.degrade(now)
		return
	}
	t.due, t.dueAt = true, now.Add(retryPause<<min(t.attempts-1, retryDoublings))
}

// degrade lets live go on alone.
func (t *tracker) degrade(now time.Time) {
	t.degraded, t.due = true, false
	t.attempts, t.aborts, t.misses = 0, 0, 0
	t.rebuildAt = now.Add(t.pause)
	t.pause = min(2*t.pause, rebuildPauseMax)
}
