// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// earlyCounts tells of clears before a drain can find them.
type earlyCounts struct {
	*bindings.Stream
	early uint64
}

func (e *earlyCounts) Stats() (bindings.StreamStats, error) {
	counts, err := e.Stream.Stats()
	counts.Clears += e.early
	return counts, err
}

// A reset of the cache does not wait for a resync that is under way: its clear is the very
// next message, however much is left, and what was recorded before it, and not yet sent,
// never is. Subscribers know what is there in the end, and later resyncs are whole.
func TestResetEndsAResync(t *testing.T) {
	const blocks, perBatch, later = 4000, 8, 100
	for name, early := range map[string]bool{"recorded": false, "counted before it can be drained": true} {
		t.Run(name, func(t *testing.T) {
			stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 1, CapacityBlocks: 2 * blocks})
			options := localOptions(t)
			options.MaxBatchBlocks = perBatch
			sent := &keptBatches{}
			o := ownerByHand(t, options, sent, stream)
			counts := &earlyCounts{Stream: stream}
			o.counts = counts
			now := time.Unix(1000, 0)
			// step returns what one step sends.
			step := func() []*wire.Batch {
				before := len(sent.payloads)
				o.step(now)
				return sent.decoded(t, before)
			}
			mirror := reader.NewMirror(0)
			idle := func() (clears int) {
				t.Helper()
				for quiet := 0; quiet < 3; {
					list := step()
					if quiet++; len(list) > 0 {
						quiet = 0
					}
					for _, b := range list {
						if len(b.Events) > 0 && b.Events[0].Kind == wire.KindCleared {
							clears++
						}
						if err := mirror.Apply(b.Events); err != nil {
							t.Fatal(err)
						}
					}
				}
				return clears
			}
			prompt := func(first uint32, n int) {
				tokens := make([]uint32, n)
				for i := range tokens {
					tokens[i] = first + uint32(i)
				}
				compute(t, manager, tokens)
			}
			done := make(chan error, 1)
			for round := range 3 {
				prompt(1, blocks)
				idle()
				o.resync.waiting = append(o.resync.waiting, &resyncRequest{done: done})
				// The clear of the resync, and a part of it.
				for i := range 5 {
					if list := step(); len(list) != 1 || (len(list[0].Events) > 0 && list[0].Events[0].Kind == wire.KindCleared) != (i == 0) {
						t.Fatalf("round %d: step %d of a resync sends %+v", round, i, list)
					}
				}
				prompt(1<<16, later) // recorded before the reset, and never told
				if early {
					counts.early = 1
					for range 3 {
						if list := step(); len(list) != 0 {
							t.Fatalf("round %d: before the clear of a reset %+v is sent", round, list)
						}
					}
				}
				if err := manager.Reset(); err != nil {
					t.Fatal(err)
				}
				counts.early = 0
				prompt(1<<17, later)
				list := step()
				if len(list) != 1 || len(list[0].Events) != 1 || list[0].Events[0].Kind != wire.KindCleared {
					t.Fatalf("round %d: the step after a reset sends %+v", round, list)
				}
				if err := mirror.Apply(list[0].Events); err != nil {
					t.Fatal(err)
				}
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
				default:
					t.Fatalf("round %d: whoever asked for the resync waits on", round)
				}
				if st := o.p.Stats(); o.resync.active() || bindings.LiveHandles().Snapshots != 0 || st.Resyncs != uint64(2*round+1) {
					t.Fatalf("round %d: it goes on: %+v", round, st)
				}
				if clears := idle(); clears != 0 || mirror.Len() != later {
					t.Fatalf("round %d: %d clears more, %d blocks, want %d", round, clears, mirror.Len(), later)
				}
				sameBlocks(t, "after the reset", mirror, patterns(t, manager, event.Signed64))
				// The next one is not cut short.
				o.resync.waiting = append(o.resync.waiting, &resyncRequest{done: done})
				if clears := idle(); clears != 1 {
					t.Fatalf("round %d: the next resync has %d clears", round, clears)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				sameBlocks(t, "after the next resync", mirror, patterns(t, manager, event.Signed64))
			}
		})
	}
}

// A stream that is closed before the clear of a reset has been drained ends the resync,
// with an error for whoever waits.
func TestResetThatIsNeverTold(t *testing.T) {
	stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 1, CapacityBlocks: 64})
	options := localOptions(t)
	options.MaxBatchBlocks = 1
	o := ownerByHand(t, options, &keptBatches{}, stream)
	counts := &earlyCounts{Stream: stream}
	o.counts = counts
	now := time.Unix(1000, 0)
	compute(t, manager, []uint32{1, 2, 3, 4, 5, 6, 7, 8})
	for range 12 {
		o.step(now)
	}
	asked := &resyncRequest{done: make(chan error, 1)}
	o.resync.waiting = []*resyncRequest{asked}
	o.step(now)
	counts.early = 1
	o.step(now)
	if !o.resync.reset {
		t.Fatal("the reset is not seen")
	}
	manager.Close()
	stream.Close()
	o.step(now)
	o.step(now)
	if o.resync.active() || o.source != nil {
		t.Errorf("it goes on: %+v", o.resync)
	}
	if err := <-asked.done; !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("%v", err)
	}
}
