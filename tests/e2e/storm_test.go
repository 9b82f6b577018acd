// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher"
	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

const (
	// stormBatches is how many batches a subscriber must see.
	stormBatches, shortStormBatches = 100_000, 5_000
	// stormInterval is that of the signals.
	stormInterval = time.Millisecond
	// stormLate is how many signals the sender may be behind its rate at the end.
	stormLate  = 100
	stormBlock = 4
	stormPages = 512
)

// From the allocator through the stream, the publisher and a real socket to a
// subscriber, while a signal comes every millisecond and the collector runs
// after every few kilobytes: no batch is lost, none comes twice, and the
// subscriber's mirror is the resident set. Signals interrupt system calls in Go,
// in the library and in ZeroMQ; SIGURG is the one that Go's runtime itself sends
// to goroutines. The collector takes whatever is held by C alone.
func TestSignalAndCollectorStorm(t *testing.T) {
	// Not parallel: signals and collector are the whole process's.
	batches := uint64(stormBatches)
	if testing.Short() {
		batches = shortStormBatches
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	manager, err := bindings.NewManager(bindings.Config{TokensPerBlock: stormBlock, CapacityBlocks: stormPages, Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })

	options := publisher.DefaultOptions()
	options.Endpoint = "tcp://127.0.0.1:0"
	options.WaitSubscribers = 1
	options.MaxBatchEvents = 1
	// A slow subscriber is not what this is about: everything may wait. A batch
	// is some 200 bytes.
	options.HWM = 4 * stormBatches
	options.Warn = func(m string) { t.Errorf("warning: %s", m) }
	bound := make(chan string, 1)
	options.OnBound = func(endpoint string) { bound <- endpoint }
	p, err := publisher.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- p.Start(ctx) }()
	var endpoint string
	select {
	case endpoint = <-bound:
	case err := <-started:
		t.Fatalf("start: %v", err)
	}
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: endpoint, HWM: options.HWM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := <-started; err != nil {
		t.Fatal(err)
	}

	reader := &stormReader{client: client, verifier: subscribe.NewVerifier(subscribe.VerifierOptions{})}
	read := make(chan error, 1)
	var reading sync.WaitGroup
	t.Cleanup(func() { cancel(); reading.Wait() })
	late, end := storm(t)
	reading.Go(func() { read <- reader.run(ctx) })

	random := rand.New(rand.NewPCG(seeds.Of(t), 0))
	// A machine that withholds the sender gets a longer run, until all signals that were
	// due have been sent.
	for requests := 1; p.Stats().NextSeq < batches || late() && p.Stats().NextSeq < 3*batches; requests++ {
		if err := stormRequest(manager, random); err != nil {
			t.Fatal(err)
		}
		stream.Flush()
		if requests%64 == 0 {
			// The record buffer never fills: what is recorded is what is sent.
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			// So little is allocated that the collector would often rest.
			runtime.GC()
			if len(read) > 0 {
				break // the reader has given up
			}
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	// The last clear ends the reading.
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	stats := p.Stats()
	select {
	case err := <-read:
		if err != nil {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatalf("the last clear, number %d, has not come", stats.NextSeq-1)
	}
	signals, elapsed, collections := end()
	t.Logf("%d batches of %d events in %v; %d signals, %d collections", reader.next, reader.events,
		elapsed.Round(time.Millisecond), signals, collections)
	if m, err := client.Receive(50 * time.Millisecond); !errors.Is(err, subscribe.ErrTimeout) {
		t.Errorf("after the last clear: %+v, %v", m, err)
	}

	// Else the run has shown too little.
	if signals < int(elapsed/stormInterval)-stormLate || collections < uint32(batches/500) {
		t.Errorf("%d signals and %d collections in %v are no storm", signals, collections, elapsed)
	}
	if reader.next < batches || reader.next != stats.NextSeq || stats.DroppedBatches != 0 || stats.BurntNumbers != 0 || stats.SourceErrors != 0 {
		t.Errorf("the subscriber got %d batches; publisher %+v", reader.next, stats)
	}
	resident, err := manager.Resident(event.Signed64)
	if err != nil {
		t.Fatal(err)
	}
	var want []uint64
	for _, b := range resident {
		want = append(want, b.Hash)
	}
	slices.Sort(want)
	if got := reader.mirror; !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("the mirror has %d blocks, the tree %d, or they differ", len(got), len(want))
	}
	report := reader.verifier.Report()
	streamed, err := stream.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if report.UnverifiedKeys != 0 || report.VerifiedKeys != streamed.StoredBlocks || streamed.RemovedBlocks == 0 {
		t.Errorf("verified %+v; stream %+v", report, streamed)
	}
}

// storm begins to send signals and to collect. late tells that signals are due that have
// not been sent; end ends both and says how much there was.
func storm(t *testing.T) (late func() bool, end func() (signals int, elapsed time.Duration, collections uint32)) {
	t.Helper()
	before := debug.SetGCPercent(1)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	begin, first := time.Now(), memory.NumGC
	stop := make(chan struct{})
	var sent atomic.Int64
	due := func() int64 { return int64(time.Since(begin) / stormInterval) }
	var sender sync.WaitGroup
	sender.Go(func() {
		ticker := time.NewTicker(stormInterval)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			// A ticker drops what comes while nobody waits for it. What is made up for
			// goes to one thread after the other: one takes a signal of a kind once.
			for n := sent.Load(); n < due(); n = sent.Add(1) {
				stormSignal(int(n))
			}
		}
	})
	var once sync.Once
	quiet := func() {
		once.Do(func() {
			close(stop)
			sender.Wait()
			debug.SetGCPercent(before)
		})
	}
	t.Cleanup(quiet)
	late = func() bool { return sent.Load() < due()-stormLate/2 }
	return late, func() (int, time.Duration, uint32) {
		elapsed := time.Since(begin)
		quiet()
		runtime.ReadMemStats(&memory)
		return int(sent.Load()), elapsed, memory.NumGC - first
	}
}

// stormSignal sends the n-th signal. The system gives one for the process to the main
// thread if that takes it; the others get theirs in turn.
func stormSignal(n int) {
	if n%2 == 0 {
		unix.Kill(os.Getpid(), unix.SIGURG)
	} else if threads, err := os.ReadDir("/proc/self/task"); err == nil && len(threads) > 0 {
		if id, err := strconv.Atoi(threads[n/2%len(threads)].Name()); err == nil {
			unix.Tgkill(os.Getpid(), id, unix.SIGURG) // it may be gone by now
		}
	}
}

// stormRequest serves a prompt of one to three blocks, most of them new, so
// that in a full pool stores and removals take turns and cannot be coalesced.
func stormRequest(m *bindings.Manager, random *rand.Rand) error {
	tokens := make([]uint32, stormBlock*(1+random.IntN(3)))
	for i := range tokens {
		tokens[i] = random.Uint32N(1 << 30)
	}
	if len(tokens) > stormBlock && random.IntN(2) == 0 {
		for i := range stormBlock { // one of a few common beginnings
			tokens[i] = uint32(i)
		}
		tokens[0] = random.Uint32N(16)
	}
	sequence, err := m.Open(bindings.Prompt{Tokens: tokens})
	if err != nil {
		return err
	}
	if _, err = sequence.Grow(len(tokens)); err == nil {
		_, err = sequence.Commit(tokens[sequence.MatchedTokens():])
	}
	return errors.Join(err, sequence.Release())
}

// stormReader follows the stream from the first to the last clear.
type stormReader struct {
	client   *subscribe.Client
	verifier *subscribe.Verifier
	next     uint64
	events   int
	mirror   []uint64 // before the last clear
}

func (r *stormReader) run(ctx context.Context) error {
	decoder, err := wire.NewDecoder(wire.Limits{})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		// How long this waits cannot be relied on: ZeroMQ begins to wait anew
		// after each signal.
		m, err := r.client.Receive(100 * time.Millisecond)
		switch {
		case errors.Is(err, subscribe.ErrTimeout):
			continue
		case err != nil:
			return err
		case m.Seq != r.next:
			return fmt.Errorf("number %d instead of %d", m.Seq, r.next)
		}
		r.next++
		batch, err := decoder.Decode(m.Payload)
		if err != nil {
			return fmt.Errorf("batch %d: %w", m.Seq, err)
		}
		r.events += len(batch.Events)
		last := m.Seq > 0 && len(batch.Events) > 0 && batch.Events[0].Kind == wire.KindCleared
		if last {
			r.mirror = r.verifier.Mirror().Patterns()
		}
		if err := r.verifier.Check(m.Seq, batch); err != nil || last {
			return err
		}
	}
	return fmt.Errorf("after batch %d: %w", r.next, ctx.Err())
}
