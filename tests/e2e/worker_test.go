// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/wire"
)

// workerConfig says what a worker is like. It can be written as JSON, for workers in
// processes of their own.
type workerConfig struct {
	Seed                     uint64
	Endpoint, ReplayEndpoint string
	Form                     event.Form
	Encoding                 wire.Encoding
	Multimodal               publisher.MultimodalForm
	Block, Pages, Entries    int
	Policy                   bindings.Policy
	Partial                  bool
	PadLimit, HWM            int
	BatchEvents, BatchBlocks int
	Steps                    int // batches that are kept for replays
	FirstSeq                 publisher.FirstSeq
	RestartMark              bool
	// Heartbeat and Timeout are those of ZMTP; 0 is none.
	Heartbeat, Timeout time.Duration
}

// drawWorker makes the n-th of several workers, which have all forms of hashes and all
// sizes of record buffers among them, down to one block.
func drawWorker(random *rand.Rand, n int) workerConfig {
	of := func(values ...int) int { return values[random.IntN(len(values))] }
	c := workerConfig{
		Seed: random.Uint64() | 1, Form: event.Form(n % 4), Entries: []int{1, 4, 2, 50000, 1, 16, 3, 1}[n%8],
		Encoding: wire.Encoding(n / 4 % 3), Block: of(1, 2, 4), Pages: of(12, 24, 64),
		Partial: random.IntN(2) == 0, PadLimit: of(0, 65536), HWM: 20000,
		BatchEvents: of(1, 4, 128), BatchBlocks: of(1, 8192), Steps: of(4, 4, 4, 64),
		FirstSeq: publisher.FirstZero, Policy: bindings.PolicyLRU,
	}
	c.Multimodal = publisher.MultimodalSuppress
	if c.Encoding == wire.Map {
		c.Multimodal = []publisher.MultimodalForm{publisher.MultimodalTensorRT, publisher.MultimodalExtraKeys}[random.IntN(2)]
	}
	if random.IntN(3) == 0 {
		c.Policy = bindings.PolicyLRFU
	}
	if random.IntN(3) == 0 {
		c.FirstSeq = publisher.FirstTime
	}
	c.RestartMark = random.IntN(3) == 0
	return c
}

// worker is a cache under a workload, with a publisher that can be paused.
type worker struct {
	*workload
	config    workerConfig
	stream    *bindings.Stream
	manager   *bindings.Manager
	publisher *publisher.Publisher
	gate      sync.Mutex // who holds it keeps the publisher from draining
	paused    bool
}

// gatedSource is a stream that is drained only while its gate is open.
type gatedSource struct {
	*bindings.Drainer
	stream *bindings.Stream
	gate   *sync.Mutex
}

func (g gatedSource) Drain(maxEvents, maxBlocks int) (*bindings.Batch, error) {
	g.gate.Lock()
	defer g.gate.Unlock()
	return g.Drainer.Drain(maxEvents, maxBlocks)
}

func (g gatedSource) Stats() (bindings.StreamStats, error) { return g.stream.Stats() }
func (g gatedSource) Multimodal() bindings.Multimodal      { return g.stream.Multimodal() }

// startWorker begins. Nothing is sent before somebody has subscribed to what bound is
// told of; bound may be nil.
func startWorker(ctx context.Context, c workerConfig, bound func(endpoint string)) (w *worker, err error) {
	w = &worker{config: c}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	o := publisher.DefaultOptions()
	o.Endpoint, o.ReplayEndpoint, o.BufferSteps = c.Endpoint, c.ReplayEndpoint, c.Steps
	o.Hash, o.Encoding, o.Multimodal = c.Form, c.Encoding, c.Multimodal
	o.LoRAIDOnly = c.Encoding != wire.Map
	if c.Multimodal != publisher.MultimodalSuppress {
		o.MMTokenIDOffset = 1000
	}
	o.MaxEntries, o.ReplayPadLimit, o.HWM = c.Entries, c.PadLimit, c.HWM
	o.MaxBatchEvents, o.MaxBatchBlocks = c.BatchEvents, c.BatchBlocks
	o.FirstSeq, o.RestartMark = c.FirstSeq, c.RestartMark
	o.ClearOnClose = false
	if bound != nil {
		o.OnBound, o.WaitSubscribers = bound, 1
	}
	o.ZMTPHeartbeat, o.ZMTPTimeout = c.Heartbeat, c.Timeout
	// The loss of the last batch before a silence shows soon.
	o.Heartbeat = 50 * time.Millisecond
	if w.stream, err = bindings.NewStream(o.StreamConfig()); err != nil {
		return w, err
	}
	config := bindings.Config{
		TokensPerBlock: c.Block, CapacityBlocks: c.Pages, MaxBlocks: c.Pages + c.Pages/2, MaxSequences: workloadSequences + 2,
		PageBytes: workloadPage, Seed: c.Seed, Policy: c.Policy, LRFUTau: 100, PartialReuse: c.Partial, Poison: true, Stream: w.stream,
	}
	if w.manager, err = bindings.NewManager(config); err != nil {
		return w, err
	}
	if w.workload, err = newWorkload(w.manager, c.Seed, config, true); err != nil {
		return w, err
	}
	if w.publisher, err = publisher.New(o); err != nil {
		return w, err
	}
	drainer, err := w.stream.Claim()
	if err != nil {
		return w, err
	}
	if err = w.publisher.Attach(gatedSource{drainer, w.stream, &w.gate}); err != nil {
		return w, err
	}
	return w, w.publisher.Start(ctx)
}

// run makes so many operations and tells the publisher after each.
func (w *worker) run(operations int) error {
	for range operations {
		if err := w.operate(); err != nil {
			return err
		}
		w.stream.Flush()
	}
	return nil
}

// store fills a large batch with blocks that nobody has, in place of older ones, and
// has it published.
func (w *worker) store(ctx context.Context) error {
	tokens := make([]uint32, w.config.Pages/4*w.config.Block)
	for i := range tokens {
		tokens[i] = w.random.Uint32N(1 << 30)
	}
	sequence, err := w.manager.Open(bindings.Prompt{Tokens: tokens})
	if err != nil {
		return err
	}
	if _, err = sequence.Grow(len(tokens)); err == nil {
		_, err = sequence.Commit(tokens)
	}
	if err = errors.Join(err, sequence.Release()); err != nil {
		return err
	}
	return w.publisher.Flush(ctx)
}

// pause keeps the publisher from draining, or no longer. While it is paused it does
// nothing at all.
func (w *worker) pause(paused bool) {
	if paused && !w.paused {
		w.gate.Lock()
	} else if !paused && w.paused {
		w.gate.Unlock()
	}
	w.paused = paused
}

// quietPoint is what a worker holds when nothing is under way.
type quietPoint struct {
	// NextSeq is the number of the next batch, which will be later than Time, in
	// seconds of the clock that batches have.
	NextSeq uint64
	Time    float64
	// Resident has the wire hashes of the blocks of which the stream tells, sorted.
	Resident []uint64
	Stats    quietStats
}

// quietStats are the figures by which tests judge whether they have shown enough.
type quietStats struct {
	Published, PublishedBytes, Snapshots, Truncated  uint64
	Stored, Removed, Cleared, Deferred, Healed, Gone uint64
	Suppressed                                       uint64
	Subscriptions                                    int
}

// quiet has everything published and compares what can be compared here.
func (w *worker) quiet(ctx context.Context) (q quietPoint, err error) {
	w.pause(false)
	if err := w.publisher.Flush(ctx); err != nil {
		return q, err
	}
	if err := w.manager.Check(); err != nil {
		return q, err
	}
	resident, err := w.manager.Resident(w.config.Form)
	if err != nil {
		return q, err
	}
	s := w.publisher.Stats()
	silent := uint64(0)
	for _, b := range resident {
		if b.Announced {
			q.Resident = append(q.Resident, b.Hash)
		} else {
			silent++
		}
	}
	slices.Sort(q.Resident)
	if silent != s.Sink.SuppressedBlocks || s.Sink.PendingBlocks != 0 || s.Sink.OldestDeferred != 0 {
		return q, fmt.Errorf("%d blocks are not announced: %+v", silent, s.Sink)
	}
	if w.config.Multimodal != publisher.MultimodalSuppress && silent != 0 {
		return q, fmt.Errorf("%d blocks are suppressed", silent)
	}
	if s.DroppedBatches+s.InvalidEvents+s.BurntNumbers+s.SourceErrors+s.SnapshotErrors != 0 {
		return q, fmt.Errorf("losses: %+v", s)
	}
	q.NextSeq, q.Time = s.NextSeq, float64(time.Now().UnixNano())/1e9
	q.Stats = quietStats{Published: s.PublishedBatches, PublishedBytes: s.PublishedBytes, Snapshots: s.Snapshots,
		Truncated: s.ReplayTruncated, Stored: s.Sink.StoredBlocks, Removed: s.Sink.RemovedBlocks, Cleared: s.Sink.ClearedBlocks,
		Deferred: s.Sink.DeferredBlocks, Healed: s.Sink.HealedBlocks, Gone: s.Sink.DeferredEvictedBlocks,
		Suppressed: s.Sink.MultimodalBlocksSuppressed, Subscriptions: s.Subscriptions}
	return q, nil
}

// close ends everything that has begun.
func (w *worker) close() error {
	var all error
	if w.workload != nil {
		all = w.finish()
	}
	w.pause(false)
	if w.publisher != nil {
		all = errors.Join(all, w.publisher.Close())
	}
	if w.manager != nil {
		all = errors.Join(all, w.manager.Close())
	}
	if w.stream != nil {
		all = errors.Join(all, w.stream.Close())
	}
	return all
}
