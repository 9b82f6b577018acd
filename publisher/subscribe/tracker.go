// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"math"
	"strings"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// maxAborts is how many reconnections in a row may cut requests short
	// before the stream goes on without an answer.
	maxAborts = 10
	// settleTime is how long after a handshake a subscription may take to
	// arrive. What was published before that came neither live nor, if the
	// request was quicker, as a replay; if nothing has come by then, it is asked
	// for.
	settleTime = 250 * time.Millisecond
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
	// stale: it may be from a life of the publisher that is over.
	stale bool
	// back: its number is not above that of the live message before.
	back bool
	// settled: no request is made for what is missing before it; one that was
	// made after it came has been answered.
	settled bool
}

// tracker decides what a Follower hands out and when it asks for replays. It
// has no sockets and no clock.
//
// A message that came before a request was made had been sent before, and with
// it all lower numbers: they are in the answer, or lost. See chain.go for what
// it takes to believe that a live message continues what is known.
type tracker struct {
	limits
	topic string
	asks  bool // there is somebody to ask

	// have: last is the newest number that was handed out, payload its bytes.
	have    bool
	last    uint64
	payload []byte
	// float: what was handed out last is a snapshot.
	float floating
	// chained: a live message is of the life of what was handed out.
	chained bool
	// probe: the next request is for the newest live message, because the one
	// for everything brought nothing.
	probe  bool
	misses int // answers in a row that lacked what had come live

	prev    uint64 // the live message before, if hasPrev
	hasPrev bool

	pending      []held
	pendingBytes int
	overflowed   bool // since the last request was made

	out []Item

	asked   uint64   // requests made
	request *request // the one under way
	// due: a request is to be made at dueAt; live messages wait for it.
	due      bool
	dueAt    time.Time
	tokens   int // requests that may be made now; one more at tokenAt + askEvery
	tokenAt  time.Time
	attempts int // failures in a row
	aborts   int // reconnections during a request, in a row

	// degraded: nobody answers; live goes on with its gaps until the whole
	// history can be had at rebuildAt or later.
	degraded  bool
	rebuildAt time.Time
	pause     time.Duration
	settleAt  time.Time // zero: nothing to settle

	// snapshots: an answer was one. mend: see mend.go.
	snapshots bool
	mend      mending

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
	if t.asks && !t.chained && !t.join() {
		return true
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
	case canAsk && !h.settled:
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
	t.mendSoon()
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
	t.misses = 0
	if !replayed {
		t.chained = true
		t.mend.pause = 0
	} else {
		t.stats.Replayed++
		if !m.legacy && !strings.HasPrefix(m.Topic, t.topic) {
			return // as live, where it does not even come
		}
	}
	t.out = append(t.out, Item{Kind: ItemBatch, Message: m, Replayed: replayed})
}

func (t *tracker) emitReset(reason ResetReason, seq uint64) {
	t.out = append(t.out, Item{Kind: ItemReset, Reason: reason, Before: t.last, HasBefore: t.have,
		Seq: seq})
	t.have, t.last, t.payload = false, 0, nil
	t.chained = false
	t.float = floating{}
	t.mend.left = 0
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

// live takes a message off the live socket; stale tells that it may have been
// left there by a connection before the one that is known of.
func (t *tracker) live(m *Message, stale bool) {
	if m.Seq == wire.EndSeq {
		t.mark()
		return
	}
	if !stale {
		// The subscription has arrived, and there will be a request.
		t.settleAt = time.Time{}
	}
	h := held{m: m, asked: t.asked, stale: stale, back: t.hasPrev && m.Seq <= t.prev}
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
	if !t.chained && !t.blocked() && !t.degraded {
		t.prove()
	}
}

// mark takes the mark of a new life, which follows on nothing and is followed
// by batch 0. As long as it is not known whose it is, answers tell better: it
// may be the last word of a life before the one whose history is here.
func (t *tracker) mark() {
	if t.asks && !t.degraded && !t.chained {
		return
	}
	t.dropPending()
	t.request, t.due = nil, false
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
	t.unchain()
	again = again || t.have
	t.settleAt = now.Add(t.settle)
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

// busy: what is handed out is behind what is known to be there.
func (t *tracker) busy() bool {
	return t.blocked() || len(t.out) > 0 || len(t.pending) > 0 || t.mend.left > 0 && !t.degraded ||
		t.asks && !t.degraded && !t.settleAt.IsZero()
}
