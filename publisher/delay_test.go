// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/publisher/wire"
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
// one is the publisher's own doing; it may be a few times what was asked for.
var delays = []struct {
	delay, most time.Duration
	n           int
}{
	{0, 8 * time.Millisecond, 50},
	{5 * time.Millisecond, 25 * time.Millisecond, 30},
	{maxFlushDelay, promisedDelay, 12},
}

// promisedDelay is after how long what is recorded is on the wire, whatever the
// settings.
const promisedDelay = 100 * time.Millisecond

// checkDelays judges measurements that each began right after a drain that found
// nothing. Each is within the promised delay or, on a machine that is slower than that,
// twice the longest before it; a machine that becomes so is forgiven one in twenty.
func checkDelays(t *testing.T, delay, most time.Duration, took []time.Duration) {
	t.Helper()
	late, longest := 0, time.Duration(0)
	for _, d := range took {
		if d > max(promisedDelay, 2*longest) {
			late++
		}
		longest = max(longest, d)
	}
	if late > (len(took)+19)/20 {
		t.Errorf("FlushDelay %v: %d beyond %v: %v", delay, late, promisedDelay, took)
	}
	slices.Sort(took)
	best, median := took[0], took[len(took)/2]
	t.Logf("FlushDelay %v: best %v, median %v, longest %v of %d", delay, best, median, longest, len(took))
	if best > most {
		t.Errorf("FlushDelay %v: not once within %v: %v", delay, most, took)
	}
	// The pause is real: an idle publisher does not spin.
	if least := min(delay, maxPoll) / 2; median < least {
		t.Errorf("FlushDelay %v: median %v, want at least %v", delay, median, least)
	}
}

// keptBatches is a transport that keeps what is sent.
type keptBatches struct {
	fakeTransport
	payloads [][]byte
}

func (k *keptBatches) send(seq, payload []byte) error {
	k.payloads = append(k.payloads, slices.Clone(payload))
	return k.fakeTransport.send(seq, payload)
}

// By a clock of the test's a reset of an idle cache is told within the promised delay,
// whatever the settings and however the moment is chosen, alone and before what is stored
// after it.
func TestResetOfAnIdleCacheByTheClock(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond, maxFlushDelay} {
		t.Run(delay.String(), func(t *testing.T) {
			stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16})
			options := localOptions(t)
			options.FlushDelay = delay
			p := mustNew(t, options)
			encoder, err := wire.NewEncoder(p.settings.wireConfig())
			if err != nil {
				t.Fatal(err)
			}
			sent := &keptBatches{}
			o := &owner{p: p, s: p.settings, transport: sent, encode: true, encoder: encoder, source: stream,
				validator: p.validator, config: p.settings.wireConfig()}
			now := time.Unix(1000, 0)
			// idle does what is to be done now, and returns for how long there is nothing.
			idle := func() time.Duration {
				for {
					more, wait := o.step(now)
					if !more {
						return wait
					}
				}
			}
			for round := range uint32(20) {
				compute(t, manager, []uint32{round, 1, 2, 3})
				now = now.Add(time.Duration(round) * 7 * time.Millisecond)
				wait := idle() // and then, when it is said not to look:
				if err := manager.Reset(); err != nil {
					t.Fatal(err)
				}
				compute(t, manager, []uint32{round, 5, 6, 7})
				before := len(sent.payloads)
				for begin := now; len(sent.payloads) < before+2; wait = idle() {
					if now = now.Add(wait); now.Sub(begin) > promisedDelay-10*time.Millisecond {
						t.Fatalf("round %d: not told %v later", round, now.Sub(begin))
					}
				}
				var kinds []wire.Kind
				for _, payload := range sent.payloads[before:] {
					b, err := wire.Decode(payload, wire.Limits{})
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range b.Events {
						kinds = append(kinds, e.Kind)
					}
				}
				if want := []wire.Kind{wire.KindCleared, wire.KindStored}; !slices.Equal(kinds, want) {
					t.Fatalf("round %d: %v in %d batches, want %v", round, kinds, len(sent.payloads)-before, want)
				}
			}
		})
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
