// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// watched is a source that tells, to whoever listens at that moment, that a
// drain has found nothing: what is recorded next waits for the longest time.
type watched struct {
	Source
	idle chan struct{}
}

func newWatched(s Source) *watched { return &watched{s, make(chan struct{})} }

func (w *watched) Drain(maxEvents, maxBlocks int) (*bindings.Batch, error) {
	b, err := w.Source.Drain(maxEvents, maxBlocks)
	if err == nil && len(b.Events) == 0 && b.RemainingBytes == 0 && b.PendingBlocks == 0 {
		select {
		case w.idle <- struct{}{}:
		default:
		}
	}
	return b, err
}

// waitIdle returns right after a drain that found nothing.
func (w *watched) waitIdle(t *testing.T) {
	t.Helper()
	select {
	case <-w.idle:
	case <-time.After(patience):
		t.Fatal("the source is not drained")
	}
}

// delays are the values of FlushDelay for which the delay is measured, with
// the number of measurements and the most that the quickest of them may take.
// A busy machine adds to each measurement, never takes away, so the quickest
// one is the publisher's own doing; it may be the promised 100 ms, or for short
// delays a few times what was asked for.
var delays = []struct {
	delay, most time.Duration
	n           int
}{
	{0, 8 * time.Millisecond, 50},
	{5 * time.Millisecond, 25 * time.Millisecond, 30},
	{maxFlushDelay, 100 * time.Millisecond, 12},
}

// checkDelays judges measurements that each began right after a drain that
// found nothing.
func checkDelays(t *testing.T, delay, most time.Duration, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	best, median := took[0], took[len(took)/2]
	t.Logf("FlushDelay %v: best %v, median %v of %d", delay, best, median, len(took))
	if best > most {
		t.Errorf("FlushDelay %v: not once within %v: %v", delay, most, took)
	}
	// The pause is real: an idle publisher does not spin.
	if least := min(delay, maxPoll) / 2; median < least {
		t.Errorf("FlushDelay %v: median %v, want at least %v", delay, median, least)
	}
}

// What is recorded reaches a subscriber within the configured delay although
// nobody flushes, measured from the record to the receipt.
func TestDelayWithoutFlush(t *testing.T) {
	for _, c := range delays {
		t.Run(c.delay.String(), func(t *testing.T) {
			o := localOptions(t)
			o.FlushDelay = c.delay
			inner := newFakeSource()
			src := newWatched(inner)
			p := mustNew(t, o)
			if err := p.Attach(src); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			s := subscribe(t, p)
			took := make([]time.Duration, c.n)
			for i := range took {
				src.waitIdle(t)
				begin := time.Now()
				inner.record(removal(uint64(i)))
				m := s.next()
				took[i] = time.Since(begin)
				if len(m.batch.Events) != 1 || m.batch.Events[0].Hashes[0].Bits != uint64(i) {
					t.Fatalf("received %+v", m.batch.Events)
				}
			}
			checkDelays(t, c.delay, c.most, took)
		})
	}
}

// A reset of an idle cache is on the wire within the same delay: one clear,
// alone. Nobody flushes and nothing else is recorded.
func TestDelayOfReset(t *testing.T) {
	for _, c := range delays {
		t.Run(c.delay.String(), func(t *testing.T) {
			stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{
				TokensPerBlock: 4, CapacityBlocks: 16,
			})
			o := localOptions(t)
			o.FlushDelay = c.delay
			src := newWatched(stream)
			p := mustNew(t, o)
			if err := p.Attach(src); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			s := subscribe(t, p)
			took := make([]time.Duration, c.n)
			for i := range took {
				// Without a store in between there would be nothing to clear.
				compute(t, manager, []uint32{uint32(i), 1, 2, 3})
				if m := s.next(); len(m.batch.Events) != 1 || isClear(m) {
					t.Fatalf("received %+v, want a store", m.batch.Events)
				}
				src.waitIdle(t)
				begin := time.Now()
				if err := manager.Reset(); err != nil {
					t.Fatal(err)
				}
				m := s.next()
				took[i] = time.Since(begin)
				if !isClear(m) {
					t.Fatalf("received %+v, want a clear alone", m.batch.Events)
				}
			}
			checkDelays(t, c.delay, c.most, took)
			p.Close()
		})
	}
}
