// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// readInterval is how often subscriptions are taken in while the publisher
	// runs. A subscription works from the next send on, read or not; reading is
	// for the statistics and costs a microsecond.
	readInterval = 50 * time.Millisecond
	// joinPoll is how often they are taken in while Start waits for them.
	joinPoll = time.Millisecond
	// failurePause follows a failed batch, so that a lasting failure does not
	// burn through everything that waits.
	failurePause = 100 * time.Millisecond
	// closeGrace is what Close may take beyond the shutdown timeout, and
	// closeMargin the part of it that is kept for the end of the context, in
	// which ZeroMQ frees what waits for dead peers and joins its threads.
	// Measured with 40 MB waiting, two cores, four busy loops beside it and the
	// race detector: 2 to 46 ms, and once, on a busier machine, 270 ms.
	closeGrace  = time.Second
	closeMargin = 500 * time.Millisecond
	// maxPoll is the longest pause between two drains of an idle source: what
	// is recorded at its beginning has to be on the wire within 100 ms, and
	// the way there takes a moment, too.
	maxPoll = maxFlushDelay - 20*time.Millisecond
	// maxKept is the largest encode buffer that is kept. An ordinary batch is
	// below 1 MiB; one huge event must not hold its memory for ever.
	maxKept = 8 << 20
)

// batchEncoder is *wire.Encoder.
type batchEncoder interface {
	AppendBatch(dst []byte, ts float64, events []event.Event, rank uint64) ([]byte, error)
}

// owner is the goroutine that owns the socket, with what only it may touch.
type owner struct {
	p         *Publisher
	s         *settings
	transport transport
	encode    bool
	encoder   batchEncoder
	config    wire.Config
	// ring and replay are nil without replays.
	ring   *ring
	replay *replayServer

	// drainTook is how long the last drain with events took, until it is counted.
	drainTook time.Duration

	// source is nil without one and once it has ended; wake is its channel.
	source    Source
	wake      <-chan struct{}
	validator *validator // of the source's events
	// snapshots is the source too, if it has any; hub is where replays ask for
	// them, nil without, and nextPin when the next one may be made. counts tells the
	// source's statistics, nil if it has none.
	snapshots snapshotSource
	counts    sinkStats
	hub       *snapshotHub
	nextPin   time.Time
	resync    resync
	// again says that the last drain was empty although records waited.
	again bool

	buffer []byte
	seq    [wire.SeqLen]byte
	// shaped is what is sent of a drained batch, suppressed what
	// validator.multimodal had suppressed when last looked.
	shaped     []event.Event
	suppressed uint64
	lastTS     float64
	pending    uint64

	marks   marks
	flushes []*flushRequest
	// toldDrops is how many failed batches a Flush has reported.
	toldDrops uint64
	// closing: no more pauses, nobody may wait for us.
	closing     bool
	pausedUntil time.Time
	nextRead    time.Time
	// drained says that nothing was left when last looked.
	drained bool
}

// own is the life of the owner goroutine: open, serve, finish.
func (p *Publisher) own(ctx context.Context, attempt *startAttempt, source Source) {
	o := &owner{
		p:         p,
		s:         p.settings,
		transport: p.newTransport(),
		config:    p.settings.wireConfig(),
		source:    source,
	}
	o.encode = o.transport.wantsPayload()
	if source != nil {
		o.wake = source.Wake()
		o.snapshots, _ = source.(snapshotSource)
		p.mu.Lock()
		o.counts = p.sink
		p.mu.Unlock()
		// The one that Publish would use: a publisher has one source.
		o.validator = p.validator
	}
	err := o.open(ctx)
	if err != nil {
		o.resync.close()
	}
	serve, closing := p.started(attempt, err)
	if serve {
		o.serve()
		o.finish()
	}
	if serve || closing {
		p.ended()
	}
}

// open binds, waits for subscribers and sends the first clear. On an error the
// endpoint is free again.
func (o *owner) open(ctx context.Context) error {
	var err error
	if o.encoder, err = o.p.newEncoder(o.config); err != nil {
		return &Error{Op: "start", Err: ErrOption, Cause: err} // New has checked it
	}
	if err := o.announce(); err != nil {
		return err
	}
	bound, exposed, err := o.transport.open(ctx)
	if err != nil {
		return err
	}
	if err := o.openReplay(ctx, bound, exposed); err != nil {
		o.transport.close(0)
		return err
	}
	if o.s.OnBound != nil && o.encode {
		o.s.OnBound(bound)
	}
	if err := o.waitSubscribers(ctx); err != nil {
		now := time.Now()
		o.endSnapshots()
		o.endReplay(now, now)
		o.transport.close(0)
		o.waitReplay()
		return err
	}
	now := time.Now()
	o.p.mu.Lock()
	o.p.stats.FirstSeq = o.s.firstSeq(now)
	o.p.stats.NextSeq = o.p.stats.FirstSeq
	o.marks.seen, o.marks.marked = o.p.stats.NextSeq, o.p.stats.NextSeq
	o.p.mu.Unlock()
	if o.marks.heartbeat = o.s.Heartbeat; o.marks.heartbeat > 0 {
		o.marks.heartbeat = max(o.marks.heartbeat, minPoll)
	}
	if o.s.TailMark {
		o.marks.tail = o.s.tailDelay
	}
	o.marks.since, o.marks.sent = now, now
	o.resync.interval, o.resync.next = o.s.ResyncInterval, now.Add(o.s.ResyncInterval)
	o.restartMark()
	if o.s.ClearOnStart {
		o.publishClear()
	}
	return nil
}

func (o *owner) waitSubscribers(ctx context.Context) error {
	if !o.encode {
		return ctxError(ctx)
	}
	timer := time.NewTimer(joinPoll)
	defer timer.Stop()
	for {
		if err := ctxError(ctx); err != nil {
			return err
		}
		n, more := o.readSubscriptions()
		if n >= o.s.WaitSubscribers {
			return nil
		}
		if more {
			continue
		}
		timer.Reset(joinPoll)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

func ctxError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: "start", Err: err}
	}
	return nil
}

func (o *owner) readSubscriptions() (n int, more bool) {
	n, more = o.transport.subscriptions()
	o.p.mu.Lock()
	o.p.stats.Subscriptions = n
	o.p.mu.Unlock()
	return n, more
}

// serve sends until Close.
func (o *owner) serve() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		more, wait := o.step(time.Now())
		if more {
			select {
			case r := <-o.p.flushes:
				o.flushes = append(o.flushes, r)
			case r := <-o.p.resyncs:
				o.resync.waiting = append(o.resync.waiting, r)
			case <-o.p.closing:
				return
			default:
			}
			continue
		}
		timer.Reset(min(wait, o.mark(time.Now())))
		select {
		case _, ok := <-o.wake:
			o.woken(ok)
		case <-o.snapshotsWanted():
		case r := <-o.p.resyncs:
			o.resync.waiting = append(o.resync.waiting, r)
		case <-o.p.queued:
		case r := <-o.p.flushes:
			o.flushes = append(o.flushes, r)
		case <-o.p.closing:
			return
		case <-timer.C:
		}
	}
}

// woken stops listening to a source that has closed its channel instead of
// ending; it is still asked at intervals.
func (o *owner) woken(ok bool) {
	if !ok {
		o.wake = nil
	}
}

// step does one piece of work, at most one batch. It returns whether there may
// be more to do at once, and otherwise for how long there is nothing.
func (o *owner) step(now time.Time) (more bool, wait time.Duration) {
	pin := o.answerSnapshots(now)
	more, wait = o.work(now)
	return more, min(wait, pin)
}

func (o *owner) work(now time.Time) (more bool, wait time.Duration) {
	if !o.closing && !now.Before(o.nextRead) {
		// What a flood has left is read between batches: left unread it would
		// fill the memory.
		if _, backlog := o.readSubscriptions(); backlog {
			defer func() { more = true }()
		} else {
			o.nextRead = now.Add(readInterval)
		}
	}
	pause := o.pausedUntil.Sub(now)
	if o.closing {
		pause = 0
	}
	next := noMark
	if pause <= 0 {
		var busy bool
		if busy, next = o.stepResync(now); busy {
			return true, 0
		}
	}
	if o.source == nil {
		more, wait = o.stepQueue(now, pause)
	} else if pause > 0 {
		more, wait = false, min(pause, readInterval)
	} else {
		more, wait = o.stepSource(now)
	}
	return more, min(wait, next)
}

func (o *owner) stepQueue(now time.Time, pause time.Duration) (more bool, wait time.Duration) {
	o.p.mu.Lock()
	var b queuedBatch
	empty := o.p.queue.len == 0
	if !empty && pause <= 0 {
		b, _ = o.p.queue.pop()
	}
	o.p.mu.Unlock()
	if empty {
		o.drained = true
		o.answerFlushes(1<<64 - 1)
		return false, readInterval
	}
	if pause > 0 {
		return false, min(pause, readInterval)
	}
	o.drained = false
	o.send(b.seq, b.events, now, false)
	o.answerFlushes(b.seq + 1)
	return true, 0
}

func (o *owner) stepSource(now time.Time) (more bool, wait time.Duration) {
	b, err := o.source.Drain(o.s.MaxBatchEvents, o.s.MaxBatchBlocks)
	if err != nil {
		return o.sourceFailed(err, now)
	}
	remaining, deferred := b.RemainingBytes, b.PendingBlocks
	if deferred != o.pending {
		o.setPending(deferred)
	}
	if o.resync.skipped(b.Events) {
		more = len(b.Events) > 0
		b.Release()
		return more, minPoll
	}
	if len(b.Events) > 0 {
		o.drained, o.again = false, false
		drained := time.Now()
		o.drainTook = drained.Sub(now)
		o.resync.recent = isCleared(b.Events)
		if o.resync.recent {
			o.resync.clears = o.recordedClears()
		}
		o.publish(b.Events, drained)
		b.Release()
		if o.resync.reset {
			o.endResync(drained, nil) // it was the clear
		}
		return true, 0
	}
	b.Release()
	o.resync.recent = false
	// An empty drain may have healed deferred blocks, whose records now wait.
	// Ask again at once, but do not spin on a record that is being written.
	if remaining > 0 && !o.again {
		o.again = true
		return true, 0
	}
	o.again = false
	if o.drained = remaining == 0 && deferred == 0; o.drained {
		o.answerFlushes(1<<64 - 1)
	}
	if remaining > 0 || len(o.flushes) > 0 || o.closing {
		return false, minPoll
	}
	return false, min(max(o.s.FlushDelay, minPoll), maxPoll)
}

// sourceFailed ends a source that is over and lets another one rest.
func (o *owner) sourceFailed(err error, now time.Time) (more bool, wait time.Duration) {
	if errors.Is(err, io.EOF) || errors.Is(err, bindings.ErrClosed) {
		o.endSource()
		if o.resync.reset {
			o.endResync(now, bindings.ErrClosed) // its clear never comes
		}
		return true, 0
	}
	o.p.mu.Lock()
	o.p.stats.SourceErrors++
	n := o.p.stats.SourceErrors
	o.p.mu.Unlock()
	if n&(n-1) == 0 {
		o.p.warn(fmt.Sprintf("%d failed drains so far, last: %v", n, err))
	}
	// Else Close would try until its time is over.
	o.drained = o.closing
	o.pausedUntil = now.Add(failurePause)
	return false, failurePause
}

func (o *owner) endSource() {
	o.source, o.wake = nil, nil
	o.resync.recent = false
	o.setPending(0)
}

func (o *owner) setPending(blocks uint64) {
	o.pending = blocks
	o.p.mu.Lock()
	o.p.stats.PendingBlocks = blocks
	o.p.mu.Unlock()
}

// answerFlushes answers the requests for which nothing below seq may wait.
func (o *owner) answerFlushes(seq uint64) {
	if len(o.flushes) == 0 {
		return
	}
	kept, answered := o.flushes[:0], []*flushRequest(nil)
	for _, r := range o.flushes {
		if r.target > seq {
			kept = append(kept, r)
		} else {
			answered = append(answered, r)
		}
	}
	clear(o.flushes[len(kept):])
	if o.flushes = kept; len(answered) == 0 {
		return
	}
	o.p.mu.Lock()
	drops := o.p.stats.SendErrorDrops - o.toldDrops
	o.toldDrops += drops
	o.p.mu.Unlock()
	var err error
	if drops > 0 {
		err = &Error{Op: "flush", Err: ErrDropped, Detail: fmt.Sprintf("%d of them", drops)}
	}
	for _, r := range answered {
		r.done <- err
	}
}
