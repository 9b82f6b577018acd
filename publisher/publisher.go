// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"reflect"
	"sync"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Source is where an attached publisher gets its events; *bindings.Stream is
// one. All calls of Drain come from one goroutine. A source with a method Claim
// as *bindings.Stream has it is claimed, so that nobody else can drain it.
type Source interface {
	// Drain returns what has been recorded, at most maxEvents events and
	// maxBlocks blocks (0 = no limit; one larger event comes alone, a clear
	// always does), without waiting. The batch is borrowed until its Release.
	// No events mean that there are none now; io.EOF and bindings.ErrClosed
	// mean that there will be none any more.
	Drain(maxEvents, maxBlocks int) (*bindings.Batch, error)
	// Wake delivers something when there may be events.
	Wake() <-chan struct{}
	// Form is the form of the hashes in the events.
	Form() event.Form
}

// claimer is a source that one drainer can have for itself.
type claimer interface {
	Claim() (*bindings.Drainer, error)
}

// sinkStats is a source that counts.
type sinkStats interface {
	Stats() (bindings.StreamStats, error)
}

// Publisher sends events to subscribers. Make one with [New]; the zero value
// acts as a closed one. All methods are safe for concurrent use.
type Publisher struct {
	settings *settings
	// epoch names this life.
	epoch uint64
	// gate is nil without CURVE.
	gate *gate
	// newTransport is replaced by tests that need a failing one.
	newTransport func() transport
	// newEncoder is replaced by tests that need a failing one: what passes the
	// checks before it can be encoded.
	newEncoder func(wire.Config) (batchEncoder, error)

	// publishMu makes Publish calls take turns; it protects validator.
	publishMu sync.Mutex
	validator *validator

	// queued (capacity 1) wakes the owner goroutine after Publish; flushes
	// carries the requests of Flush to it.
	queued  chan struct{}
	flushes chan *flushRequest
	// resyncs carries the requests of Resync.
	resyncs chan *resyncRequest
	// closing is closed by Close, done when all is over.
	closing, done chan struct{}

	warnMu sync.Mutex

	// mu protects what follows. It is held for some tens of nanoseconds at a
	// time, never while something is encoded or sent.
	mu     sync.Mutex
	state  State
	source Source
	// claim is the right to drain source, nil if it has no such thing.
	claim *bindings.Drainer
	// sink tells the statistics of source, nil if it has none.
	sink     sinkStats
	attempt  *startAttempt
	closedAt time.Time
	endpoint string
	// replayEndpoint is where replays are served.
	replayEndpoint string
	// ring is nil without replays and when all is over; replayCounters is nil
	// without replays.
	ring           *ring
	replayCounters *replayCounters
	// hub is nil without snapshots for replays.
	hub    *snapshotHub
	queue  queue
	stats  Stats
	warned uint64
}

// startAttempt is one run of Start. err is valid once done is closed.
type startAttempt struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// flushRequest is one call of Flush.
type flushRequest struct {
	// target: all batches of Publish with lower numbers must be gone.
	target uint64
	done   chan error
}

// New checks the options and returns a publisher, or an *Error that wraps
// ErrOption and names the key and the value at fault. It has no side effects:
// there is no socket and no goroutine before Start.
func New(o Options) (*Publisher, error) {
	s, err := o.check()
	if err != nil {
		return nil, err
	}
	v, verr := newValidator(s)
	if verr != nil {
		return nil, &Error{Op: "new", Err: ErrOption, Cause: verr} // check has passed it
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	p := &Publisher{
		settings:  s,
		epoch:     binary.LittleEndian.Uint64(b[:]),
		gate:      newGate(s.curve),
		validator: v,
		queued:    make(chan struct{}, 1),
		flushes:   make(chan *flushRequest),
		resyncs:   make(chan *resyncRequest),
		closing:   make(chan struct{}),
		done:      make(chan struct{}),
		state:     StateNew,
		queue:     queue{maxLen: o.MaxQueueSize, maxBytes: o.MaxQueueBytes},
	}
	p.newEncoder = func(c wire.Config) (batchEncoder, error) { return wire.NewEncoder(c) }
	p.newTransport = func() transport {
		if s.Kind == KindNull {
			return nullTransport{}
		}
		t := newZMQTransport(s)
		t.warn, t.gate = p.warn, p.gate
		return t
	}
	return p, nil
}

// Attach makes source the one source of this publisher. It comes before Start
// (else ErrStarted, ErrClosed) and once (else ErrAttached); the source must
// produce hashes in the form of Options.Hash (else ErrOption). The source
// remains the caller's, who closes it after the publisher. A source that can be
// claimed is claimed until the publisher is closed; if that fails, the error
// wraps the source's, such as bindings.ErrBusy or bindings.ErrClosed.
func (p *Publisher) Attach(source Source) error {
	if v := reflect.ValueOf(source); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return &Error{Op: "attach", Key: "source", Value: "nil", Err: ErrOption}
	}
	if p.settings == nil {
		return &Error{Op: "attach", Err: ErrClosed}
	}
	if form := source.Form(); form != p.settings.Hash {
		return &Error{Op: "attach", Key: "hash", Value: formName(p.settings.Hash), Err: ErrOption,
			Detail: fmt.Sprintf("the source produces %s", formName(form))}
	}
	if m, ok := source.(interface{ Multimodal() bindings.Multimodal }); ok &&
		m.Multimodal() == bindings.AnnounceMultimodal && p.settings.multimodal() == MultimodalExtraKeys && !p.settings.announces() {
		return &Error{Op: "attach", Key: "multimodal", Value: string(MultimodalExtraKeys), Err: ErrOption,
			Detail: "the source tells of multimodal blocks, and neither mm_token_id_offset nor mm_placeholder_id is set"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.overLocked():
		return &Error{Op: "attach", Err: ErrClosed}
	case p.state != StateNew:
		return &Error{Op: "attach", Err: ErrStarted}
	case p.source != nil:
		return &Error{Op: "attach", Err: ErrAttached}
	}
	p.sink, _ = source.(sinkStats)
	if c, ok := source.(claimer); ok {
		claim, err := c.Claim()
		if err != nil {
			p.sink = nil
			return &Error{Op: "attach", Err: err}
		}
		p.claim, source = claim, claim
	}
	p.source = source
	return nil
}

// overLocked says that nothing will happen any more.
func (p *Publisher) overLocked() bool {
	return p.state == "" || p.state == StateClosing || p.state == StateClosed
}

// releaseLocked lets others drain the source.
func (p *Publisher) releaseLocked() {
	if p.claim != nil {
		p.claim.Release()
		p.claim = nil
	}
}

func formName(f event.Form) string {
	switch f {
	case event.Signed64:
		return "signed64"
	case event.Unsigned64:
		return "unsigned64"
	case event.Portable63:
		return "portable63"
	case event.Bytes:
		return "bytes"
	}
	return fmt.Sprintf("form %d", f)
}

// Start binds both endpoints or neither, waits for Options.WaitSubscribers
// subscribers and sends the first clear; after it Publish and an attached source are served. A second
// Start does nothing, and one that runs beside another returns what that one
// returns. After Close it is ErrClosed.
//
// A Start that fails (ErrAddressInUse, ErrBind, ErrDescriptors, ErrTransport, or the error of
// ctx, which bounds all waiting) leaves nothing behind and may be repeated.
func (p *Publisher) Start(ctx context.Context) error {
	if ctx == nil {
		return &Error{Op: "start", Key: "context", Value: "nil", Err: ErrOption}
	}
	p.mu.Lock()
	switch p.state {
	case StateRunning:
		p.mu.Unlock()
		return nil
	case "", StateClosing, StateClosed:
		p.mu.Unlock()
		return &Error{Op: "start", Err: ErrClosed}
	case StateStarting:
		other := p.attempt
		p.mu.Unlock()
		select {
		case <-other.done:
			return other.err
		case <-ctx.Done():
			return &Error{Op: "start", Err: ctx.Err()}
		}
	}
	startCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	attempt := &startAttempt{cancel: cancel, done: make(chan struct{})}
	p.attempt = attempt
	p.state = StateStarting
	source := p.source
	p.mu.Unlock()

	go p.own(startCtx, attempt, source)
	<-attempt.done
	return attempt.err
}

// started ends an attempt. It returns whether the publisher is to be served
// now, and whether Close waits for the end of it.
func (p *Publisher) started(attempt *startAttempt, err error) (serve, closing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	closing = p.state == StateClosing
	switch {
	case closing && err != nil:
		// Close cancelled the waiting; that is the reason to name.
		err = &Error{Op: "start", Err: ErrClosed}
	case err != nil:
		p.state = StateNew
		p.endpoint, p.replayEndpoint = "", ""
		p.ring, p.replayCounters, p.hub = nil, nil, nil
		p.stats = Stats{}
	case !closing:
		p.state = StateRunning
	}
	attempt.err = err
	close(attempt.done)
	return err == nil, closing
}

// ended makes Close return.
func (p *Publisher) ended() {
	p.mu.Lock()
	p.state = StateClosed
	p.stats.Subscriptions = 0
	p.ring = nil
	p.releaseLocked()
	p.mu.Unlock()
	close(p.done)
}

// Flush returns when everything that was recorded before the call has been
// handed to the socket: with an attached source all its records, blocks whose
// announcement had been deferred included, with Publish all queued batches.
// While others keep recording it may also wait for what they add; ctx bounds
// it. ErrDropped says that batches could not be encoded or sent since the last
// Flush that was answered, ErrClosed that Close came first.
func (p *Publisher) Flush(ctx context.Context) error {
	if ctx == nil {
		return &Error{Op: "flush", Key: "context", Value: "nil", Err: ErrOption}
	}
	p.mu.Lock()
	var err error
	switch p.state {
	case StateNew, StateStarting:
		err = ErrNotStarted
	case "", StateClosing, StateClosed:
		err = ErrClosed
	}
	r := &flushRequest{target: p.stats.NextSeq, done: make(chan error, 1)}
	p.mu.Unlock()
	if err != nil {
		return &Error{Op: "flush", Err: err}
	}
	select {
	case p.flushes <- r:
	case <-p.done:
		return &Error{Op: "flush", Err: ErrClosed}
	case <-ctx.Done():
		return &Error{Op: "flush", Err: ctx.Err()}
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return &Error{Op: "flush", Err: ctx.Err()}
	}
}

// Endpoint returns the endpoint in the form in which it was given, with rank
// and real port. It is known as soon as Start has bound it, while Start still
// waits for subscribers, and empty before; for a null publisher always.
func (p *Publisher) Endpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoint
}

// ReplayEndpoint is Endpoint for replays: empty without Options.ReplayEndpoint.
func (p *Publisher) ReplayEndpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replayEndpoint
}

// Epoch returns the random number that names this life.
func (p *Publisher) Epoch() uint64 { return p.epoch }

// Topic returns the topic with its placeholders replaced.
func (p *Publisher) Topic() string {
	if p.settings == nil {
		return ""
	}
	return p.settings.topic
}

// Stats returns all counters as of one instant; those of Sink as of a moment
// before.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	sink := p.sink
	p.mu.Unlock()
	var counts bindings.StreamStats
	counted := false
	if sink != nil {
		c, err := sink.Stats() // fails when the stream is closed
		counts, counted = c, err == nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if counted {
		p.stats.Sink = counts
	}
	s := p.stats
	s.State = p.state
	s.Epoch = p.epoch
	s.DroppedBatches = s.QueueFullDrops + s.SendErrorDrops
	s.QueueDepth = p.queue.len
	s.QueueBytes = p.queue.bytes
	if p.gate != nil {
		s.RefusedPeers = p.gate.refused.Load()
	}
	if p.ring != nil {
		s.RingBatches, s.RingBytes = p.ring.size()
	}
	if c := p.replayCounters; c != nil {
		s.ReplayRequests, s.ReplayMalformed = c.requests.Load(), c.malformed.Load()
		s.ReplayTruncated, s.ReplayAborted = c.truncated.Load(), c.aborted.Load()
		s.ReplayBatches = c.batches.Load()
	}
	if h := p.hub; h != nil {
		s.Snapshots, s.SnapshotErrors = h.counters.made.Load(), h.counters.failed.Load()
	}
	return s
}

// Close ends the publisher: no more Publish, whatever waits is sent, then the
// last clear if Options.ClearOnClose says so; then the socket gets some time to
// deliver it. All of it takes at most Options.ShutdownTimeout + 1 s, whether
// subscribers read or not; what did not get out by then counts as a
// send-error drop (queue) or stays in the source. Replays under way get
// Options.ShutdownTimeout to finish, and no new ones are begun. When Close
// returns, the ports are free, unless Options.Context is shared. A Start that is under way is
// cancelled. Close may be called at any time and more than once; it always
// returns nil.
func (p *Publisher) Close() error {
	p.mu.Lock()
	switch p.state {
	case "":
		p.mu.Unlock()
		return nil
	case StateNew:
		p.state = StateClosed
		p.releaseLocked()
		close(p.closing)
		close(p.done)
	case StateStarting, StateRunning:
		if p.state == StateStarting {
			p.attempt.cancel()
		}
		p.state = StateClosing
		p.closedAt = time.Now()
		close(p.closing)
	}
	p.mu.Unlock()
	<-p.done
	return nil
}

// reserveLocked takes the next sequence number. The last number of all marks
// the end of a replay and never belongs to a batch.
func (p *Publisher) reserveLocked(op string) (uint64, error) {
	if p.stats.NextSeq == wire.EndSeq {
		return 0, &Error{Op: op, Err: ErrSequence}
	}
	p.stats.NextSeq++
	return p.stats.NextSeq - 1, nil
}

// burnLocked takes a number that no batch will have, for events left out.
func (p *Publisher) burnLocked(invalid int) error {
	if _, err := p.reserveLocked("publish"); err != nil {
		return err
	}
	p.stats.BurntNumbers++
	p.stats.InvalidEvents += uint64(invalid)
	return nil
}

// LatestEvents is the polling call of hosts written for an engine that can be
// asked for its events (TensorRT-LLM's get_latest_events): with a publisher all
// of them go to subscribers, so there are never any here, in whatever state.
func (p *Publisher) LatestEvents() []event.Event { return nil }

// dropWarningLocked returns a warning when the number of drops has reached the
// next power of two since the last one.
func (p *Publisher) dropWarningLocked() string {
	full, failed := p.stats.QueueFullDrops, p.stats.SendErrorDrops
	if bits.Len64(full+failed) <= bits.Len64(p.warned) {
		return ""
	}
	p.warned = full + failed
	return fmt.Sprintf("%d batches dropped so far (queue full %d, encoding or sending failed %d); "+
		"subscribers see gaps in the sequence", p.warned, full, failed)
}

func (p *Publisher) warn(message string) {
	if message == "" || p.settings.Warn == nil {
		return
	}
	p.warnMu.Lock()
	defer p.warnMu.Unlock()
	p.settings.Warn(message)
}
