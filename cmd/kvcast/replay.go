// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cmd/kvcast/internal/trace"
	"github.com/kvcast/kvcast/cuda/inventory"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
)

// interruptedFlush is how long an interrupted run may go on publishing what has
// been recorded.
const interruptedFlush = 5 * time.Second

// errInterrupted is for a run that had not yet done anything.
var errInterrupted = errors.New("interrupted before the first request")

// replay runs the command. Whatever can be found wrong is found before
// anything is bound, sent or written.
func replay(ctx context.Context, o replayOptions, std streams) (err error) {
	if err := o.check(ctx); err != nil {
		return err
	}
	device, err := chooseDevice(o.device, inventory.List, openCUDA)
	if err != nil {
		return err
	}
	if err := o.checkFiles(); err != nil {
		return err
	}
	requests, total, err := openTrace(ctx, o.trace, o.limit)
	if err != nil {
		return err
	}
	defer requests.close()
	var out *output
	if o.residentOut != "" {
		if out, err = createOutput(ctx, "resident-out", o.residentOut); err != nil {
			return err
		}
		defer out.discard()
	}
	r := &replayer{o: o, device: device, form: o.options.Hash, std: std, requests: requests, bar: newBar(std.err, total)}
	r.summary.Device = device.text
	defer func() {
		r.bar.finish()
		if closeErr := r.close(); err == nil {
			err = closeErr
		}
	}()
	if err := r.open(ctx); err != nil {
		return err
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.bar.finish()
	if out != nil {
		if err := out.commit(func(w io.Writer) error { return writePatterns(w, r.resident) }); err != nil {
			return err
		}
	}
	if err := r.summary.print(std.out, o.json); err != nil {
		return err
	}
	if o.hold > 0 && ctx.Err() == nil {
		wait(ctx, o.hold)
	}
	return nil
}

// wait returns after d or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// replayer is one run of replay.
type replayer struct {
	o        replayOptions
	device   choice
	form     event.Form
	std      streams
	requests *requestSource
	bar      *bar

	stream    *bindings.Stream // nil with --publisher off
	publisher *publisher.Publisher
	manager   *bindings.Manager
	metrics   *metricsServer // nil without --metrics
	// deviceStream is where the sequences of a CUDA device run, so that their
	// fences are the device's; 0 on the host.
	deviceStream bindings.DeviceStream

	// live are the open sequences, oldest first.
	live []bindings.SequenceID
	// The calls take arrays; these have one element and are reused.
	prompts   [1]bindings.Prompt
	created   [1]bindings.CreateResult
	grow      [1]bindings.GrowItem
	grown     [1]bindings.GrowResult
	commit    [1]bindings.CommitItem
	committed [1]bindings.CommitResult
	release   [1]error

	tokens    []uint32
	scheduler time.Duration
	started   time.Time

	summary  summary
	resident []uint64
}

// open makes stream, manager and publisher, in the order in which they need
// each other, and starts the publisher.
func (r *replayer) open(ctx context.Context) (err error) {
	options := r.o.options
	// Each value alone has been checked; what they ask for together need not fit
	// the machine.
	tooLarge := func(err error) error {
		return fmt.Errorf("--capacity-blocks %d, --sink-blocks %d: %w", r.o.capacity, options.MaxEntries, err)
	}
	config := bindings.Config{
		TokensPerBlock: r.o.blockSize,
		CapacityBlocks: r.o.capacity,
		MaxSequences:   r.o.concurrency + 1,
		// No gate: makeRoom ends the oldest sequence when room is short, so as
		// many as were asked for may be alive in a pool however full.
		ResumeGatePermille: 1000,
		LRFUTau:            r.o.lrfuTau,
		LRFUGhosts:         r.o.lrfuGhosts,
		Device:             r.device.kind,
		DeviceOrdinal:      r.device.ordinal,
	}
	if r.o.policy == policyLRFU {
		config.Policy = bindings.PolicyLRFU
	}
	if r.device.kind == bindings.DeviceCUDA {
		config.PageBytes = cudaPageBytes
	}
	if !r.o.off {
		options.Warn = func(message string) { r.bar.note("kvcast: warning: " + oneLine(message)) }
		options.OnBound = r.bound
		if r.publisher, err = publisher.New(options); err != nil {
			return err
		}
		r.stream, err = bindings.NewStream(options.StreamConfig())
		if err != nil {
			return tooLarge(err)
		}
		config.Stream = r.stream
	}
	if r.manager, err = bindings.NewManager(config); err != nil {
		// Memory of the host is the --sink-blocks' too.
		if r.device.kind == bindings.DeviceCUDA && errors.Is(err, bindings.ErrOutOfMemory) &&
			!strings.Contains(detail(err), "host memory") {
			return fmt.Errorf("--capacity-blocks %d: %s: lower it, or use --device host", r.o.capacity, detail(err))
		}
		return tooLarge(err)
	}
	if r.device.kind == bindings.DeviceCUDA {
		if r.deviceStream, err = r.manager.NewDeviceStream(); err != nil {
			return err
		}
	}
	if r.publisher == nil {
		return nil
	}
	if err := r.publisher.Attach(r.stream); err != nil {
		return err
	}
	if r.o.metrics != "" {
		if r.metrics, err = serveMetrics(r.o.metrics, r.publisher); err != nil {
			return err
		}
		r.bar.note("kvcast: figures on http://" + r.metrics.address() + "/metrics")
	}
	if err := r.publisher.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return byFlag(err)
	}
	return nil
}

// bound tells the endpoints to whoever cannot know them, and to a person.
func (r *replayer) bound(endpoint string) {
	replays := r.publisher.ReplayEndpoint()
	if endpoint == r.o.options.Endpoint && replays == r.o.options.ReplayEndpoint && !r.bar.terminal {
		return
	}
	text := "kvcast: publishing on " + endpoint
	if replays != "" {
		text += ", replays on " + replays
	}
	if n := r.o.options.WaitSubscribers; n > 0 {
		text += fmt.Sprintf(", waiting for %d subscribers", n)
	}
	r.bar.note(text)
}

// close ends what open began; it may be called in any state.
func (r *replayer) close() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	r.metrics.close()
	if r.publisher != nil {
		keep(r.publisher.Close())
	}
	if r.manager != nil {
		keep(r.releaseDownTo(0))
		keep(r.manager.Close())
	}
	if r.stream != nil {
		keep(r.stream.Close())
	}
	return first
}

// run serves all requests, or those before an interruption.
func (r *replayer) run(ctx context.Context) error {
	r.started = time.Now()
	// An interruption ends a read from a pipe, too.
	defer context.AfterFunc(ctx, r.requests.close)()
	for ctx.Err() == nil {
		req, err := r.requests.next()
		if err == io.EOF || err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		if r.o.speed > 0 {
			// A century and more is bounded to what a Duration can hold.
			at := time.Duration(min(float64(req.TimestampMS)*float64(time.Millisecond)/r.o.speed, 1<<62))
			if left := at - time.Since(r.started); left > 0 {
				if wait(ctx, left); ctx.Err() != nil {
					break
				}
			}
		}
		if err := r.serve(req); err != nil {
			return fmt.Errorf("request %d of the trace: %w", req.Index+1, err)
		}
		if r.stream != nil {
			r.stream.Flush()
		}
		r.bar.add()
	}
	return r.releaseDownTo(0)
}

// timed runs a call of the allocator on the scheduler's clock.
func (r *replayer) timed(call func() error) error {
	begin := time.Now()
	err := call()
	r.scheduler += time.Since(begin)
	return err
}

// serve takes one request from create to release.
func (r *replayer) serve(req *trace.Request) error {
	s := &r.summary
	r.tokens = trace.AppendPrompt(r.tokens[:0], req)
	input := len(r.tokens)
	if r.o.decode {
		r.tokens = trace.AppendOutput(r.tokens, req)
	}
	s.Requests++
	r.prompts[0] = bindings.Prompt{Tokens: r.tokens[:input], MustCompute: bindings.ComputeNothing,
		DeviceStream: r.deviceStream}
	if err := r.timed(func() error { return r.manager.Create(r.prompts[:], r.created[:]) }); err != nil {
		return err
	}
	if err := r.created[0].Err; err != nil {
		return err
	}
	id, matched := r.created[0].Sequence.ID(), r.created[0].MatchedTokens
	// All the room is taken at once, so that a request that can never fit is
	// refused before anything of it has been committed. Which blocks are
	// evicted is the same as with a second grow for the output: nothing joins
	// the eviction list in between.
	refused, err := r.makeRoom(id, len(r.tokens))
	r.live = append(r.live, id)
	if err != nil {
		return err
	}
	if refused {
		s.RefusedRequests++
		// Only this one: the others stay alive.
		return r.releaseAt(len(r.live) - 1)
	}
	if err := r.commitTokens(id, r.tokens[matched:input]); err != nil {
		return err
	}
	if err := r.commitTokens(id, r.tokens[input:]); err != nil {
		return err
	}
	size := r.o.blockSize
	s.PromptBlocks += uint64(input / size)
	s.HitBlocks += uint64(matched / size)
	s.PromptTokens += uint64(input)
	s.HitTokens += uint64(matched)
	s.OutputTokens += uint64(len(r.tokens) - input)
	s.SequenceBlocks += uint64(len(r.tokens) / size)
	return r.releaseDownTo(r.o.concurrency - 1)
}

// makeRoom grows a sequence, ending the oldest ones while there is no room.
func (r *replayer) makeRoom(id bindings.SequenceID, tokens int) (refused bool, err error) {
	r.grow[0] = bindings.GrowItem{Sequence: id, CapacityTokens: tokens}
	for {
		if err := r.timed(func() error { return r.manager.Grow(r.grow[:], r.grown[:]) }); err != nil {
			return false, err
		}
		switch err := r.grown[0].Err; {
		case err == nil:
			return false, nil
		case errors.Is(err, bindings.ErrNeverFits):
			return true, nil
		case errors.Is(err, bindings.ErrNotNow) && len(r.live) > 0:
			if err := r.releaseAt(0); err != nil {
				return false, err
			}
		default:
			return false, err
		}
	}
}

func (r *replayer) commitTokens(id bindings.SequenceID, tokens []uint32) error {
	if len(tokens) == 0 {
		return nil
	}
	r.commit[0] = bindings.CommitItem{Sequence: id, Tokens: tokens}
	if err := r.timed(func() error { return r.manager.Commit(r.commit[:], r.committed[:]) }); err != nil {
		return err
	}
	return r.committed[0].Err
}

// releaseDownTo ends the oldest sequences until n are left.
func (r *replayer) releaseDownTo(n int) error {
	for len(r.live) > n {
		if err := r.releaseAt(0); err != nil {
			return err
		}
	}
	return nil
}

func (r *replayer) releaseAt(i int) error {
	ids := [1]bindings.SequenceID{r.live[i]}
	r.live = slices.Delete(r.live, i, i+1)
	if err := r.timed(func() error { return r.manager.Release(ids[:], r.release[:]) }); err != nil {
		return err
	}
	return r.release[0]
}

// settle waits until everything is announced and published, and fills in the
// summary and the resident set.
func (r *replayer) settle(ctx context.Context) error {
	s := &r.summary
	s.Interrupted = ctx.Err() != nil
	if r.publisher != nil {
		flush, cancel := ctx, func() {}
		if s.Interrupted {
			flush, cancel = context.WithTimeout(context.Background(), interruptedFlush)
		}
		err := r.publisher.Flush(flush)
		cancel()
		if err != nil && !s.Interrupted && ctx.Err() == nil {
			return err
		}
		s.Interrupted = ctx.Err() != nil
	}
	s.WallSeconds = time.Since(r.started).Seconds()
	s.SchedulerSeconds = r.scheduler.Seconds()
	if s.SequenceBlocks > 0 {
		s.NsPerBlock = float64(r.scheduler.Nanoseconds()) / float64(s.SequenceBlocks)
	}
	if s.PromptBlocks > 0 {
		s.HitRate = float64(s.HitBlocks) / float64(s.PromptBlocks)
	}
	s.Publisher, s.Hash, s.BlockSize, s.CapacityBlocks = r.o.publisherName(), subscribe.FormName(r.form), r.o.blockSize, r.o.capacity
	s.Encoding = r.o.options.Encoding.String()

	pages, err := r.manager.Stats()
	if err != nil {
		return err
	}
	s.ResidentBlocks = pages.Blocks
	s.OpenSequences, s.LivePages = pages.Sequences, pages.LivePages
	if r.publisher == nil {
		// Without a stream the allocator's own counts take the place of what
		// has been announced.
		s.StoredBlocks, s.RemovedBlocks = pages.StoredBlocks, pages.EvictedBlocks
	} else if err := r.streamFigures(); err != nil {
		return err
	}
	blocks, err := r.manager.Resident(r.form)
	if err != nil {
		return err
	}
	s.ReusableBlocks = uint64(len(blocks))
	r.resident = make([]uint64, len(blocks))
	for i := range blocks {
		r.resident[i] = blocks[i].Hash
		if !blocks[i].Announced {
			s.UnannouncedBlocks++
		}
	}
	slices.Sort(r.resident)
	return nil
}

func (r *replayer) streamFigures() error {
	s := &r.summary
	events, err := r.stream.Stats()
	if err != nil {
		return err
	}
	s.StoredBlocks, s.RemovedBlocks = events.StoredBlocks, events.RemovedBlocks
	s.DeferredBlocks, s.HealedBlocks = events.DeferredBlocks, events.HealedBlocks
	s.DeferredEvictedBlocks, s.DroppedEvents = events.DeferredEvictedBlocks, events.DroppedEvents
	sent := r.publisher.Stats()
	s.Batches, s.Events, s.BytesPublished = sent.PublishedBatches, sent.PublishedEvents, sent.PublishedBytes
	s.DroppedBatches = sent.DroppedBatches
	s.Endpoint, s.ReplayEndpoint = r.publisher.Endpoint(), r.publisher.ReplayEndpoint()
	s.ReplayRequests, s.ReplayMalformed = sent.ReplayRequests, sent.ReplayMalformed
	s.ReplayTruncated, s.ReplayAborted = sent.ReplayTruncated, sent.ReplayAborted
	s.ReplayBatches = sent.ReplayBatches
	s.Epoch = fmt.Sprintf("%016x", r.publisher.Epoch())
	return nil
}
