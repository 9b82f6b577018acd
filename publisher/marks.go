// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// tailDelay is how long after the last batch the tail mark follows.
	tailDelay = time.Second
	// seqPerMillisecond is how many numbers a life that begins at a time may use
	// up per millisecond before it reaches those of a later life.
	seqPerMillisecond = 1024
	// noMark is the wait of a publisher that sends none; all others are shorter.
	noMark = time.Hour
)

// marks says when batches without events are due, which show that the stream is
// alive and whether the batches before were lost.
type marks struct {
	// tail and heartbeat are 0 when there is no such mark.
	tail, heartbeat time.Duration
	// seen is the next number when last looked, since when it has been that; and
	// marked the next number after the last empty batch.
	seen, marked uint64
	since        time.Time
	// sent is when the last batch was.
	sent time.Time
}

// due says whether an empty batch is to be sent, and if not, how long there is
// none. next is the next number, for which nothing waits.
func (m *marks) due(next uint64, now time.Time) (bool, time.Duration) {
	if next != m.seen {
		m.seen, m.since = next, now
	}
	wait := noMark
	if m.tail > 0 && next != m.marked {
		wait = min(wait, m.since.Add(m.tail).Sub(now))
	}
	if m.heartbeat > 0 {
		wait = min(wait, m.sent.Add(m.heartbeat).Sub(now))
	}
	return wait <= 0, wait
}

// mark sends an empty batch if one is due, and returns for how long none is. It
// is called when there is nothing else to send.
func (o *owner) mark(now time.Time) time.Duration {
	if o.marks.tail == 0 && o.marks.heartbeat == 0 || now.Before(o.pausedUntil) {
		return noMark
	}
	o.p.mu.Lock()
	if o.p.queue.len > 0 {
		o.p.mu.Unlock()
		return 0 // it has just come
	}
	due, wait := o.marks.due(o.p.stats.NextSeq, now)
	if !due {
		o.p.mu.Unlock()
		return wait
	}
	seq, err := o.p.reserveLocked("publish")
	if err == nil {
		o.p.stats.EnqueuedBatches++
	}
	o.p.mu.Unlock()
	if err != nil {
		o.marks.tail, o.marks.heartbeat = 0, 0
		return noMark
	}
	o.send(seq, nil, now, true)
	o.marks.sent = now // also one that failed: the next one is not due at once
	o.marks.marked = seq + 1
	return 0
}

// restartMark sends the mark of a new life, which has no number.
func (o *owner) restartMark() {
	if !o.s.RestartMark {
		return
	}
	if err := o.transport.send(wire.AppendSeq(o.seq[:0], wire.EndSeq), nil); err != nil {
		o.p.warn(fmt.Sprintf("the mark of a restart could not be sent: %v", err))
	}
}

// firstSeq is the number of the first batch of a life that begins now.
func (s *settings) firstSeq(now time.Time) uint64 {
	if s.FirstSeq == FirstTime {
		return uint64(max(now.UnixMilli(), 0)) * seqPerMillisecond
	}
	return 0
}
