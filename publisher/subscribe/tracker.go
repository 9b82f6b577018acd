// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// askBurst and askEvery pace requests: so many at once, then one in that
	// time. What triggers them comes from outside.
	askBurst = 10
	askEvery = time.Second
	// maxAborts is how many reconnections in a row may cut requests short
	// before the stream goes on without an answer.
	maxAborts = 10
	// retryPause is the pause after a failed request, doubled with each.
	retryPause = 200 * time.Millisecond
	// rebuildPause is the pause between two tries to get the whole history,
	// doubled with each failure up to rebuildPauseMax.
	rebuildPause    = time.Second
	rebuildPauseMax = time.Minute
	// settleTime is how long after a handshake a subscription may take to
	// arrive. What was published before that came neither live nor, if the
	// request was quicker, as a replay; if nothing has come by then, it is asked
	// for.
	settleTime = 250 * time.Millisecond
	// answerTimeouts is the longest time for one answer, in time-outs. It stops
	// a server that always sends a little.
	answerTimeouts = 60
	// maxAnswer is the number of batches in one answer; no ring is longer.
	maxAnswer = 1 << 24
	// heldOverhead is what a waiting message takes besides its bytes.
	heldOverhead = 128
	// maxLoneClear is more than the size of a batch of one clear in any form.
	maxLoneClear = 1 << 10
)

// limits are the bounds of a tracker.
type limits struct {
	messages, bytes int
	attempts        int
	timeout         time.Duration
	settle          time.Duration
	answer          int // batches in one
}

// held is a live message that waits for its turn.
type held struct {
	m *Message
	// asked counts the requests that had been made when it came.
	asked uint64
	// back: its number is not above that of the live message before, or of the
	// first one, not above what a replay has brought.
	back bool
	// settled: a request made after it came has been answered; what is missing
	// before it was lost.
	settled bool
}

// request is a replay that is under way.
type request struct {
	start uint64
	// check: the first batch must be the last one that was handed out.
	check bool
	// background: live messages go on until there is an answer.
	background bool
	got        bool
	prev       uint64 // the newest number of the answer, if got
	count      int
	fresh      bool // something was handed out
	// idle and total are the time spent waiting: since the last batch, and in
	// all.
	idle, total time.Duration
}

// tracker decides what a Follower hands out and when it asks for replays. It
// has no sockets and no clock.
//
// A message that came before a request was made had been sent before, and with
// it all lower numbers: they are in the answer, or lost.
type tracker struct {
	limits
	topic string
	asks  bool // there is somebody to ask

	have    bool
	last    uint64
	payload []byte

	prev    uint64 // the live message before, if hasPrev
	hasPrev bool

	pending      []held
	pendingBytes int
	overflowed   bool // since the last request was made
	barren       bool // the last answer brought nothing, and live overflowed

	out []Item

	asked    uint64
	request  *request
	due      bool
	dueAt    time.Time
	tokens   int
	tokenAt  time.Time
	attempts int
	aborts   int

	// degraded: nobody answers; live goes on with its gaps until the whole
	// history can be had at rebuildAt or later.
	degraded  bool
	rebuildAt time.Time
	pause     time.Duration
	settleAt  time.Time // zero: nothing to settle

	stats FollowerStats
}

// newTracker begins with a request for everything, if there is somebody to ask.
func newTracker(l limits, topic string, asks bool, now time.Time) *tracker {
	return &tracker{limits: l, topic: topic, asks: asks, due: asks,
		tokens: askBurst, tokenAt: now, pause: rebuildPause}
}

// next returns what can be handed out now.
func (t *tracker) next() (Item, bool) {
	for len(t.out) == 0 {
		if !t.step() {
			return Item{}, false
		}
	}
	item := t.out[0]
	t.out[0] = Item{}
	if t.out = t.out[1:]; len(t.out) == 0 {
		t.out = nil
	}
	return item, true
}

// blocked: live messages wait for an answer.
func (t *tracker) blocked() bool {
	return t.due || t.request != nil && !t.request.background
}

// step deals with the oldest message that waits. It returns false if nothing
// has changed.
func (t *tracker) step() bool {
	if t.blocked() || len(t.pending) == 0 {
		return false
	}
	h := &t.pending[0]
	canAsk := t.asks && !t.degraded
	want := uint64(0)
	if t.have {
		want = t.last + 1 // below EndSeq: last is
	}
	switch {
	case h.back && t.have && canAsk:
		t.due = true
		return true
	case h.back && t.have:
		t.emitReset(ResetLower, h.m.Seq)
		h.back = false
		return true
	case t.have && h.m.Seq <= t.last:
		t.stats.Duplicates++
	case h.m.Seq == want:
		t.deliver(h.m, false)
	case canAsk && !h.settled && !t.barren:
		t.due = true
		return true
	default:
		t.gapBefore(h.m)
		t.deliver(h.m, false)
	}
	t.pop()
	return true
}

// gapBefore tells what is missing before a message above the number wanted.
func (t *tracker) gapBefore(m *Message) {
	from := uint64(0)
	if t.have {
		from = t.last + 1
	} else if !t.asks || loneClear(m.Payload) {
		// Without anybody to ask, whoever joins late has missed nothing of what
		// was promised; and before a clear nothing matters.
		return
	}
	lost := m.Seq - from
	if t.stats.Lost += lost; t.stats.Lost < lost {
		t.stats.Lost = math.MaxUint64
	}
	t.out = append(t.out, Item{Kind: ItemGap, From: from, Lost: lost})
}

// loneClear reports whether a batch is one clear and nothing else.
func loneClear(payload []byte) bool {
	if len(payload) > maxLoneClear {
		return false
	}
	b, err := wire.Decode(payload, wire.Limits{})
	return err == nil && len(b.Events) == 1 && b.Events[0].Kind == wire.KindCleared
}

func (t *tracker) deliver(m *Message, replayed bool) {
	t.have, t.last, t.payload = true, m.Seq, m.Payload
	t.barren = false
	if replayed {
		t.stats.Replayed++
		if !m.legacy && !strings.HasPrefix(m.Topic, t.topic) {
			return // as live, where it does not even come
		}
	}
	t.out = append(t.out, Item{Kind: ItemBatch, Message: m, Replayed: replayed})
}

func (t *tracker) emitReset(reason ResetReason, seq uint64) {
	t.out = append(t.out, Item{Kind: ItemReset, Reason: reason, Before: t.last, HasBefore: t.have, Seq: seq})
	t.have, t.last, t.payload = false, 0, nil
	t.barren = false
	t.stats.Resets++
}

func (t *tracker) pop() {
	t.pendingBytes -= t.pending[0].size()
	t.pending[0] = held{}
	if t.pending = t.pending[1:]; len(t.pending) == 0 {
		t.pending = nil
	}
}

func (t *tracker) dropPending() { t.pending, t.pendingBytes = nil, 0 }

func (h held) size() int { return len(h.m.Payload) + len(h.m.Topic) + heldOverhead }

// live takes a message off the live socket.
func (t *tracker) live(m *Message) {
	t.settleAt = time.Time{}
	if m.Seq == wire.EndSeq {
		t.mark()
		return
	}
	h := held{m: m, asked: t.asked, back: t.hasPrev && m.Seq <= t.prev}
	if !t.hasPrev && t.have && m.Seq <= t.last {
		// Known from a replay only: it may be what a replay has overtaken.
		h.back = true
	}
	t.prev, t.hasPrev = m.Seq, true
	t.pending = append(t.pending, h)
	t.pendingBytes += h.size()
	for len(t.pending) > 1 && (len(t.pending) > t.messages || t.pendingBytes > t.bytes) {
		if t.pending[0].back {
			t.pending[1].back = true
		}
		t.pop()
		t.overflowed = true
		t.stats.Overflows++
	}
}

// mark takes the mark of a new life, which follows on nothing and is followed
// by batch 0.
func (t *tracker) mark() {
	t.dropPending()
	t.request, t.due, t.degraded = nil, false, false
	t.attempts, t.aborts = 0, 0
	t.hasPrev = false
	t.emitReset(ResetMark, 0)
}

// connected is called after each handshake of the live connection; again tells
// that there was one before. What was replayed before the first one may be of
// another life too.
func (t *tracker) connected(now time.Time, again bool) {
	if !t.asks {
		return
	}
	again = again || t.have
	t.settleAt = now.Add(t.settle)
	if again && !t.have {
		// No last batch tells whether they are of the life that is there now;
		// if they are, they are in the answer.
		t.dropPending()
	}
	switch {
	case t.degraded:
		// Whoever is there now may be able to answer.
		if t.request != nil && again {
			t.request = nil
		}
		t.rebuildAt = now
	case !again:
	case t.request != nil:
		// It may have been sent to the one that is gone.
		t.request = nil
		if t.aborts++; t.aborts > maxAborts {
			t.degrade(now)
			return
		}
		t.due, t.dueAt = true, now
	case !t.due:
		t.due, t.dueAt = true, now
	}
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
	if !rebuild && (!t.due || now.Before(t.dueAt)) || !t.token(now) {
		return 0, false
	}
	t.due = false
	t.asked++
	t.overflowed = false
	t.request = &request{background: rebuild}
	if t.have && !rebuild {
		t.request.check, t.request.start = true, t.last
	}
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
	case t.asks && !t.settleAt.IsZero():
		earlier(t.settleAt)
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
	r.got, r.prev, r.idle = true, m.Seq, 0
	if first && r.background {
		// What is known is put together from pieces; this is whole.
		r.background = false
		t.degraded = false
		t.hasPrev = false
		if t.have {
			t.emitReset(ResetRebuilt, 0)
		}
	}
	if first && r.check {
		if m.Seq != t.last || !bytes.Equal(m.Payload, t.payload) {
			t.newLife(now)
		}
		return
	}
	if t.have && m.Seq > t.last+1 || !t.have && m.Seq > 0 {
		t.gapBefore(m)
	}
	t.deliver(m, true)
	r.fresh = true
}

// newLife begins anew with whoever sends now. What came live until now was sent
// before the next request is made, so its answer has it.
func (t *tracker) newLife(now time.Time) {
	t.emitReset(ResetReplaced, 0)
	t.dropPending()
	t.hasPrev = false
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
	case r.check && !r.got:
		t.newLife(now)
		return
	}
	t.request = nil
	t.degraded = false
	t.attempts, t.aborts = 0, 0
	t.pause = rebuildPause
	t.barren = !r.fresh && t.overflowed
	for i := range t.pending {
		if h := &t.pending[i]; h.asked < t.asked {
			h.settled, h.back = true, false
		}
	}
}

// failed gives up the request under way.
func (t *tracker) failed(now time.Time, why string) {
	t.stats.Failed++
	t.stats.LastFailure = why
	background := t.request.background
	t.request = nil
	if background {
		t.degrade(now)
		return
	}
	if t.attempts++; t.attempts >= t.limits.attempts {
		t.degrade(now)
		return
	}
	t.due, t.dueAt = true, now.Add(retryPause<<(t.attempts-1))
}

// degrade lets live go on alone.
func (t *tracker) degrade(now time.Time) {
	t.degraded, t.due = true, false
	t.attempts, t.aborts = 0, 0
	t.rebuildAt = now.Add(t.pause)
	t.pause = min(2*t.pause, rebuildPauseMax)
}

// busy: what is handed out is behind what is known to be there.
func (t *tracker) busy() bool {
	return t.blocked() || len(t.out) > 0 || len(t.pending) > 0 ||
		t.asks && !t.degraded && !t.settleAt.IsZero()
}
