// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cgo"
)

// Stream is the event stream of one manager. One goroutine at a time drains
// it; all other methods may be called from any goroutine.
type Stream struct {
	raw        cgo.Stream
	form       event.Form
	multimodal Multimodal
	wake       chan struct{}

	mu       sync.Mutex
	changed  sync.Cond // draining, borrowed or closed changed
	draining bool      // a Drain is in native code; it owns next, reader and err
	borrowed *Batch    // what the caller holds, if anything
	borrower *Drainer  // who drained it; nil: without a claim
	drainer  *Drainer  // who has claimed the stream, if anybody
	closing  bool      // Close has been called
	closed   bool      // the handle is gone
	cleanup  runtime.Cleanup

	// Two batches take turns, so that one that has been overtaken by a drain
	// stays visibly empty while its successor is in use.
	batches [2]Batch
	next    int
	reader  batchReader
	err     cgo.Error
}

// NewStream makes a stream for Config.Stream.
func NewStream(config StreamConfig) (*Stream, error) {
	const op = "new stream"
	if err := checkABI(op); err != nil {
		return nil, err
	}
	raw, err := config.raw()
	if err != nil {
		return nil, err
	}
	var e cgo.Error
	handle, status := cgo.StreamCreate(&raw, &e)
	if status != cgo.OK {
		return nil, callError(op, status, &e)
	}
	s := &Stream{
		raw:        handle,
		form:       config.Form,
		multimodal: config.Multimodal,
		wake:       make(chan struct{}, 1),
		reader:     newBatchReader(),
	}
	s.changed.L = &s.mu
	for i := range s.batches {
		s.batches[i].stream = s
	}
	s.cleanup = runtime.AddCleanup(s, func(struct{}) { leakedStreams.Add(1) }, struct{}{})
	return s, nil
}

// Form is how the stream's keys become wire hashes.
func (s *Stream) Form() event.Form { return s.form }

// Multimodal is what the stream tells of blocks with digest tokens.
func (s *Stream) Multimodal() Multimodal { return s.multimodal }

// Flush wakes the drainer. A scheduler calls it at the end of a step; it never
// waits and never allocates. It may be called at any time, also after Close.
func (s *Stream) Flush() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is on its way already
	}
}

// Wake receives one value after one or more calls of Flush, and when the
// manager or the stream has been closed. It has the capacity 1 and is never
// closed.
func (s *Stream) Wake() <-chan struct{} { return s.wake }

// Drain takes up to maxEvents events with up to maxBlocks block hashes from
// the stream; 0 is no limit, and one larger event comes alone. An
// AllBlocksCleared always comes alone.
//
// The batch is borrowed until its Release or until the next Drain, which takes
// it back. A batch without events says that there is nothing now. io.EOF comes
// after the manager has been closed and everything has been drained. ErrBusy:
// another goroutine is draining, or somebody has claimed the stream, or has a
// batch from when it was claimed; ErrClosed: the stream has been closed.
func (s *Stream) Drain(maxEvents, maxBlocks int) (*Batch, error) {
	return s.drain(nil, maxEvents, maxBlocks)
}

// Drainer is the right to drain a stream, and nobody else has it.
type Drainer struct{ stream *Stream }

// Claim keeps all others from draining until the drainer is released: a second
// drainer would take batches that the first one never sees, and take back the
// one that it is reading. A publisher claims the stream it is attached to.
// ErrBusy: it is claimed or being drained or a batch is borrowed; ErrClosed.
func (s *Stream) Claim() (*Drainer, error) {
	const op = "claim"
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, closedError(op)
	case s.drainer != nil:
		return nil, &Error{Op: op, Status: StatusBusy, Detail: "the stream has been claimed"}
	case s.draining || s.borrowed != nil:
		return nil, &Error{Op: op, Status: StatusBusy, Detail: "another goroutine is draining"}
	}
	s.drainer = &Drainer{stream: s}
	return s.drainer, nil
}

// Drain is Stream.Drain for the one who has claimed it; ErrClosed after Release.
func (d *Drainer) Drain(maxEvents, maxBlocks int) (*Batch, error) {
	return d.stream.drain(d, maxEvents, maxBlocks)
}

// Wake is the stream's.
func (d *Drainer) Wake() <-chan struct{} { return d.stream.Wake() }

// Form is the stream's.
func (d *Drainer) Form() event.Form { return d.stream.Form() }

// Release gives the right up; a batch that is still borrowed stays so, and nobody
// drains until it is released. A second time it does nothing.
func (d *Drainer) Release() {
	d.stream.mu.Lock()
	defer d.stream.mu.Unlock()
	if d.stream.drainer == d {
		d.stream.drainer = nil
	}
}

// enter makes the caller the one who is in the native drain side; it ends with
// draining = false.
func (s *Stream) enter(op string, who *Drainer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing, who != s.drainer && who != nil:
		return closedError(op)
	case who != s.drainer:
		return &Error{Op: op, Status: StatusBusy, Detail: "the stream has been claimed"}
	case s.draining:
		return &Error{Op: op, Status: StatusBusy, Detail: "another goroutine is draining"}
	}
	s.draining = true
	return nil
}

func (s *Stream) drain(who *Drainer, maxEvents, maxBlocks int) (*Batch, error) {
	const op = "drain"
	if maxEvents < 0 || maxBlocks < 0 {
		return nil, argumentError(op, "limits are %d events, %d blocks", maxEvents, maxBlocks)
	}
	if err := s.enter(op, who); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.borrowed != nil && s.borrower != who {
		s.draining = false
		s.changed.Broadcast()
		s.mu.Unlock()
		return nil, &Error{Op: op, Status: StatusBusy, Detail: "a batch is borrowed by one who had claimed the stream"}
	}
	if s.borrowed != nil {
		s.borrowed.clear()
		s.borrowed = nil
	}
	b := &s.batches[s.next]
	s.next = 1 - s.next
	s.mu.Unlock()

	var err error
	status := s.raw.Drain(uint64(maxEvents), uint64(maxBlocks), s.reader.view, &s.err)
	switch status {
	case cgo.OK:
		s.reader.fill(b)
	case cgo.End:
		err = io.EOF
	default:
		err = callError(op, status, &s.err)
	}

	s.mu.Lock()
	s.draining = false
	if err == nil && len(b.Events) > 0 {
		s.borrowed, s.borrower = b, who
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	runtime.KeepAlive(s)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close waits until a borrowed batch has been released and a drain in flight
// has returned, then detaches the stream from its manager, which records
// nothing any more, and frees it. What has not been drained is lost. The
// goroutine that holds a batch must release it first, or Close waits for ever.
// Closing again is harmless.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.Flush()
	for s.draining || s.borrowed != nil {
		s.changed.Wait()
	}
	if s.closed { // by a Close that ran beside this one, or before it
		return nil
	}
	s.raw.Destroy()
	s.closed = true
	s.raw = cgo.Stream{}
	s.cleanup.Stop()
	runtime.KeepAlive(s)
	return nil
}

// Batch is what one Drain handed over. Its events, and every slice in them,
// are borrowed: read them before Release and before the next Drain, or keep a
// Clone. Afterwards Events is nil and the event values are zero.
type Batch struct {
	// Events in the order of the facts. The values are reused.
	Events []event.Event
	// Blocks is the number of block hashes in them.
	Blocks int
	// RemainingBytes of records wait behind this batch.
	RemainingBytes uint64
	// PendingBlocks are deferred: reusable, but not announced yet.
	PendingBlocks uint64

	stream  *Stream // nil for a clone
	events  []event.Event
	stored  []event.BlockStored
	removed []event.BlockRemoved
}

// There is only one such event.
var cleared event.Event = new(event.AllBlocksCleared)

// Release gives the batch back. A second time, and for clones, it does nothing.
func (b *Batch) Release() {
	s := b.stream
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.borrowed == b {
		b.clear()
		s.borrowed = nil
		s.changed.Broadcast()
	}
}

// clear makes a stale use of the batch or of an event visible.
func (b *Batch) clear() {
	clear(b.events)
	clear(b.stored)
	clear(b.removed)
	b.events, b.stored, b.removed = b.events[:0], b.stored[:0], b.removed[:0]
	b.Events, b.Blocks, b.RemainingBytes, b.PendingBlocks = nil, 0, 0, 0
}

// Clone is a deep copy that stays valid for ever.
func (b *Batch) Clone() *Batch {
	c := &Batch{
		Events:         make([]event.Event, len(b.Events)),
		Blocks:         b.Blocks,
		RemainingBytes: b.RemainingBytes,
		PendingBlocks:  b.PendingBlocks,
	}
	for i, e := range b.Events {
		switch e := e.(type) {
		case *event.BlockStored:
			// A stream's events have no Extra.
			stored := *e
			stored.Hashes = slices.Clone(e.Hashes)
			stored.Digests = slices.Clone(e.Digests)
			stored.Tokens = slices.Clone(e.Tokens)
			stored.MMDigests = slices.Clone(e.MMDigests)
			c.Events[i] = &stored
		case *event.BlockRemoved:
			removed := *e
			removed.Hashes = slices.Clone(e.Hashes)
			removed.Digests = slices.Clone(e.Digests)
			removed.Reasons = slices.Clone(e.Reasons)
			c.Events[i] = &removed
		default:
			c.Events[i] = e
		}
	}
	return c
}
