// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

const (
	// After a loss the next resync begins minResyncGap after the end of the one
	// before at the earliest. The time doubles, up to maxResyncGap, when a resync
	// itself loses batches: what cannot be encoded now will not be in a second.
	minResyncGap = time.Second
	maxResyncGap = time.Minute
)

// resync announces everything anew: a clear alone, then all blocks, as ordinary
// batches. As long as it goes on nothing is drained, so that no event overtakes
// it; but when the cache is reset, what is left is moot, and the clear of the reset ends
// it.
type resync struct {
	// snapshot is what is being announced, nil when there is no resync; cleared:
	// the clear before it has been sent.
	snapshot *bindings.Snapshot
	cleared  bool
	// clears is how many clears the source had recorded when it last told one: a resync
	// ends when there are more. reset: there are, and the newest is to be told next.
	// recent: the last drain told one; there may have been another one by the time of
	// counting, so the next resync begins after the next drain.
	clears        uint64
	reset, recent bool
	// start: it is that of Start, which is not counted.
	start bool
	// behind: the last snapshot was one for replays. refused: that one was still being
	// read when this one was to begin, so the next is this one's: replays that are asked
	// for without pause would else keep it waiting for ever.
	behind, refused bool
	// lost: a loss is to be answered, not before due. lossy: the resync under way
	// has lost batches. gap is the time until due after it.
	lost, lossy bool
	due         time.Time
	gap         time.Duration
	// interval is after how long there is one in any case, 0 = never; next is when.
	interval time.Duration
	next     time.Time
	// waiting have asked for a resync, served are those whose it is.
	waiting, served []*resyncRequest
}

// resyncRequest is one call of Resync.
type resyncRequest struct{ done chan error }

// active says that the stream is behind its source.
func (r *resync) active() bool { return r.snapshot != nil || r.reset }

// loss notes that subscribers miss something.
func (r *resync) loss() {
	r.lost = true
	if r.active() {
		r.lossy = true
	}
}

// wanted says whether a resync is to begin, and if not, for how long it is not.
func (r *resync) wanted(now time.Time) (bool, time.Duration) {
	if len(r.waiting) > 0 {
		return true, 0
	}
	wait := noMark
	if r.lost {
		wait = r.due.Sub(now)
	}
	if r.interval > 0 {
		wait = min(wait, r.next.Sub(now))
	}
	return wait <= 0, wait
}

// announce prepares to tell, after the first clear, what the source has announced
// before this publisher's life.
func (o *owner) announce() error {
	if o.snapshots == nil && !o.s.Disabled {
		const detail = "it needs an attached source that has snapshots"
		if o.s.OnLoss == LossResync {
			return &Error{Op: "start", Key: "on_loss", Value: string(LossResync), Err: ErrOption, Detail: detail}
		}
		if o.s.ResyncInterval > 0 {
			return &Error{Op: "start", Key: keyResyncInterval, Value: o.s.ResyncInterval.String(),
				Err: ErrOption, Detail: detail}
		}
	}
	if o.snapshots == nil || !o.encode {
		return nil
	}
	snapshot, err := o.snapshots.Snapshot()
	if errors.Is(err, bindings.ErrClosed) {
		return nil // there is nothing to tell any more
	}
	if err != nil {
		return &Error{Op: "start", Err: err, Detail: "what has been announced cannot be told"}
	}
	o.resync.snapshot, o.resync.cleared, o.resync.start = snapshot, true, true
	o.resync.clears = o.recordedClears()
	return nil
}

// recordedClears is how many clears the source has recorded, told or not.
func (o *owner) recordedClears() uint64 {
	if o.counts == nil {
		return 0
	}
	counts, err := o.counts.Stats()
	if err != nil {
		return o.resync.clears // it is closed
	}
	return counts.Clears
}

// skipped says that a drained batch is not to be sent: while the clear of a reset is
// awaited, which is counted a moment before a drain finds it, whatever comes is older and
// would meet what an unfinished resync has told.
func (r *resync) skipped(events []event.Event) bool {
	return r.reset && !isCleared(events)
}

// isCleared says that a drained batch is a clear, which is always alone.
func isCleared(events []event.Event) bool {
	if len(events) != 1 {
		return false
	}
	_, ok := events[0].(*event.AllBlocksCleared)
	return ok
}

// stepResync does one piece of a resync; busy says that nothing else is to be
// done meanwhile. After Close none begins: what is recorded goes out instead, and
// nobody is left between a clear and the rest.
func (o *owner) stepResync(now time.Time) (busy bool, wait time.Duration) {
	r := &o.resync
	if !r.active() {
		if o.snapshots == nil || o.closing {
			return false, noMark
		}
		begin, wait := r.wanted(now)
		if !begin {
			return false, wait
		}
		if r.recent {
			return false, minPoll
		}
		snapshot, err := o.snapshots.Snapshot()
		if errors.Is(err, bindings.ErrBusy) {
			r.refused = r.behind
			return false, minPoll // one for a replay is still being encoded
		}
		r.behind, r.refused = false, false
		r.served, r.waiting = r.waiting, nil
		if err != nil {
			o.endResync(now, err)
			return false, noMark
		}
		r.snapshot, r.cleared, r.start, r.lost, r.lossy = snapshot, false, false, false, false
	}
	o.drained = false
	if r.snapshot != nil && o.recordedClears() > r.clears {
		r.close()
		// Whatever was lost of it does not matter any more.
		r.reset, r.lossy = true, false
	}
	if r.reset {
		return false, noMark // to be drained
	}
	if !r.cleared {
		o.publish(clearEvents, now)
		r.cleared = true
		return true, 0
	}
	b, err := r.snapshot.Next(o.s.MaxBatchEvents, o.s.MaxBatchBlocks)
	switch {
	case err == io.EOF:
		o.endResync(now, nil)
	case err != nil:
		o.endResync(now, err)
	default:
		o.publish(b.Events, now)
	}
	return true, 0
}

// endResync ends what stepResync has begun, or could not begin.
func (o *owner) endResync(now time.Time, err error) {
	r := &o.resync
	r.close()
	r.reset = false
	if err == nil && r.lossy {
		err = &Error{Op: "resync", Err: ErrDropped}
	}
	r.next = now.Add(r.interval)
	if errors.Is(err, bindings.ErrClosed) {
		// The source tells nothing any more, now or later.
		r.lost, r.interval = false, 0
	} else if err != nil {
		// Subscribers do not have everything: it is tried again.
		r.lost = o.s.OnLoss == LossResync
		r.gap = min(max(2*r.gap, minResyncGap), maxResyncGap)
		o.p.warn("a resync failed: " + err.Error())
	} else {
		r.gap = minResyncGap
		if !r.start {
			o.p.mu.Lock()
			o.p.stats.Resyncs++
			o.p.mu.Unlock()
		}
	}
	r.due = now.Add(r.gap)
	r.answer(err)
}

func (r *resync) close() {
	if r.snapshot != nil {
		r.snapshot.Close()
		r.snapshot = nil
	}
}

// answer tells those whose resync it was.
func (r *resync) answer(err error) {
	var known *Error
	if err != nil && !errors.As(err, &known) {
		err = &Error{Op: "resync", Err: err}
	}
	for _, q := range r.served {
		q.done <- err
	}
	r.served = nil
}

// abandonResync is for Close.
func (o *owner) abandonResync() {
	r := &o.resync
	r.close()
	r.reset = false
	r.served = append(r.served, r.waiting...)
	r.waiting = nil
	r.answer(&Error{Op: "resync", Err: ErrClosed})
}

// Resync sends a clear and then all announced blocks anew, as ordinary batches
// with new numbers, parents before children, and nothing else until they are
// sent: for subscribers that have lost something and cannot ask for a replay. It
// returns when all of it has been handed to the socket; ctx bounds the wait only.
// A reset of the cache ends it, with its clear: nothing else is there any more.
//
// ErrNoSnapshots: there is no attached source, or it cannot tell; ErrDropped:
// some of it could not be encoded or sent; ErrNotStarted, ErrClosed.
func (p *Publisher) Resync(ctx context.Context) error {
	if ctx == nil {
		return &Error{Op: "resync", Key: "context", Value: "nil", Err: ErrOption}
	}
	p.mu.Lock()
	var err error
	switch _, ok := p.source.(snapshotSource); {
	case p.overLocked():
		err = ErrClosed
	case p.state != StateRunning:
		err = ErrNotStarted
	case !ok:
		err = ErrNoSnapshots
	}
	p.mu.Unlock()
	if err != nil {
		return &Error{Op: "resync", Err: err}
	}
	r := &resyncRequest{done: make(chan error, 1)}
	select {
	case p.resyncs <- r:
	case <-p.done:
		return &Error{Op: "resync", Err: ErrClosed}
	case <-ctx.Done():
		return &Error{Op: "resync", Err: ctx.Err()}
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return &Error{Op: "resync", Err: ctx.Err()}
	}
}
