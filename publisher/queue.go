// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"

	"github.com/kvcast/kvcast/bindings/event"
)

// queuedBatch is a batch of Publish. Its events belong to the queue.
type queuedBatch struct {
	seq    uint64
	bytes  int64
	events []event.Event
}

// queue is a bounded ring of batches in the order of their numbers. The
// publisher's mutex protects it.
type queue struct {
	maxLen   int
	maxBytes int64
	bytes    int64
	len      int
	head     int
	ring     []queuedBatch
}

// fits says whether a batch may enter. A batch that alone is over the limit by
// size enters an empty queue; else it could never be sent.
func (q *queue) fits(bytes int64) bool {
	if q.len >= q.maxLen {
		return false
	}
	return q.len == 0 || q.maxBytes == 0 || q.bytes+bytes <= q.maxBytes
}

func (q *queue) push(b queuedBatch) {
	if q.len == len(q.ring) {
		grown := make([]queuedBatch, max(16, min(2*len(q.ring), q.maxLen)))
		n := copy(grown, q.ring[q.head:])
		copy(grown[n:], q.ring[:q.head])
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.len)%len(q.ring)] = b
	q.len++
	q.bytes += b.bytes
}

func (q *queue) pop() (queuedBatch, bool) {
	if q.len == 0 {
		return queuedBatch{}, false
	}
	b := q.ring[q.head]
	q.ring[q.head] = queuedBatch{}
	q.head = (q.head + 1) % len(q.ring)
	q.len--
	q.bytes -= b.bytes
	return b, true
}

// pending is a batch on its way into the queue. invalid events were left out
// of it; all of it is empty of events if none was left.
type pending struct {
	events  []event.Event
	bytes   int64
	invalid int
}

// assemble copies the valid events into batches within the limits; a clear goes
// alone. The error is that of the first invalid event.
func assemble(s *settings, v *validator, events []event.Event) (list []pending, firstErr error) {
	var open pending
	var at batcher
	var pieces []event.Event
	for i, ev := range events {
		var err error
		if pieces, err = v.shape(pieces[:0], cloneEvent(ev), false); err != nil {
			open.invalid++
			if firstErr == nil {
				firstErr = fmt.Errorf("event %d: %w", i, err)
			}
			continue
		}
		for _, piece := range pieces {
			if at.ends(s, piece) {
				list = append(list, open)
				open = pending{}
			}
			open.events = append(open.events, piece)
			open.bytes += estimateSize(piece)
		}
	}
	if len(open.events) > 0 || open.invalid > 0 {
		list = append(list, open)
	}
	return list, firstErr
}

// Publish hands over events of a host that has no Source. They are checked and
// copied before Publish returns, put into as few batches as the limits allow
// (a clear alone), numbered and queued; Publish never waits for the network.
//
// An event that breaks an invariant of the wire contract is left out, and a
// number is burnt so that the loss shows; the others are sent and the error
// wraps ErrInvalidEvent and what package wire says. What no event shows by itself
// is the host's care: that a parent has been stored and not removed since, and that
// a block is stored once until it is removed. A batch that finds the
// queue full is dropped and its number is never sent: ErrQueueFull. In a state
// other than running nothing happens but ErrNotStarted or ErrClosed; with an
// attached source it is ErrAttached. Safe for concurrent use; events of one
// call stay in order, and calls are ordered as they happen.
func (p *Publisher) Publish(events ...event.Event) error {
	p.publishMu.Lock()
	defer p.publishMu.Unlock()
	if err := p.mayPublish(); err != nil {
		return err
	}
	list, invalid := assemble(p.settings, p.validator, events)

	p.mu.Lock()
	p.stats.MultimodalBlocksSuppressed = p.validator.multimodal.suppressed
	if err := p.mayPublishLocked(); err != nil {
		p.mu.Unlock()
		return err
	}
	var failure error
	dropped := 0
	for i := range list {
		var ok bool
		if ok, failure = p.enqueueLocked(&list[i]); failure != nil {
			break
		} else if !ok {
			dropped++
		}
	}
	warning := p.dropWarningLocked()
	p.mu.Unlock()

	select {
	case p.queued <- struct{}{}:
	default:
	}
	p.warn(warning)
	switch {
	case failure != nil:
		return failure
	case dropped > 0:
		return &Error{Op: "publish", Err: ErrQueueFull, Cause: invalid,
			Detail: fmt.Sprintf("%d batches dropped", dropped)}
	case invalid != nil:
		return &Error{Op: "publish", Err: ErrInvalidEvent, Cause: invalid}
	}
	return nil
}

func (p *Publisher) mayPublish() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mayPublishLocked()
}

func (p *Publisher) mayPublishLocked() error {
	switch {
	case p.overLocked():
		return &Error{Op: "publish", Err: ErrClosed}
	case p.source != nil:
		return &Error{Op: "publish", Err: ErrAttached}
	case p.state != StateRunning:
		return &Error{Op: "publish", Err: ErrNotStarted}
	}
	return nil
}

// enqueueLocked gives a batch its number and its place in the queue, or drops
// it (false). Both happen under one lock, so that the order of the queue is the
// order of the numbers.
func (p *Publisher) enqueueLocked(b *pending) (ok bool, err error) {
	if b.invalid > 0 {
		if err := p.burnLocked(b.invalid); err != nil {
			return false, err
		}
	}
	if len(b.events) == 0 {
		return true, nil
	}
	fits := p.queue.fits(b.bytes)
	seq, err := p.reserveLocked("publish")
	if err != nil {
		return false, err
	}
	if !fits {
		p.stats.QueueFullDrops++
		return false, nil
	}
	p.stats.EnqueuedBatches++
	p.stats.EnqueuedEvents += uint64(len(b.events))
	p.queue.push(queuedBatch{seq: seq, bytes: b.bytes, events: b.events})
	return true, nil
}
