// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// deadline bounds everything that could hang; it is far beyond what any of it takes.
const deadline = 30 * time.Second

// together starts the functions at once and waits for all of them.
func together(t *testing.T, work ...func()) {
	t.Helper()
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for _, w := range work {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			w()
		}()
	}
	ready.Wait()
	close(start)
	finished := make(chan struct{})
	go func() {
		done.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(deadline):
		buf := make([]byte, 1<<20)
		t.Fatalf("still running after %v\n%s", deadline, buf[:runtime.Stack(buf, true)])
	}
}

// TestManyGoroutines: requests, probes, statistics, resets, drops of scopes, a
// pool that grows and shrinks, the host device and one drainer on one manager. It
// pins down that no call corrupts another's, that what the calls told adds up to the
// statistics, and that the mirror built by the drainer is the resident set once all
// is quiet.
func TestManyGoroutines(t *testing.T) {
	requests := 800
	if testing.Short() {
		requests = 300
	}
	// Eight pages of the pool to one of the system: memory does come and go.
	const least, most = 16, 96
	m, s := newPair(t, bindings.Config{CapacityBlocks: 64, MaxBlocks: most, MinBlocks: least,
		MaxSequences: 64, PageBytes: 512, Poison: true, ResumeGatePermille: 1000},
		bindings.StreamConfig{MaxEntries: 16})
	var running atomic.Int32
	var target, settled atomic.Int64 // pages that all go for, and had when it was done last
	target.Store(64)
	settled.Store(64)
	var grown, shrunk, moved, evicted, dropped atomic.Uint64
	// One step towards the target; says whether the pool is there.
	resize := func(maxPages int) bool {
		moves := make([]bindings.PageMove, maxPages)
		r, err := m.Resize(int(target.Load()), maxPages, moves, make([]bindings.EvictedBlock, maxPages))
		if err != nil {
			t.Error(err)
			return false
		}
		for _, move := range r.Moves {
			if int(move.From) < r.TargetPages || int(move.To) >= r.TargetPages {
				t.Errorf("a shrink to %d pages moved %d to %d", r.TargetPages, move.From, move.To)
			}
		}
		moved.Add(uint64(len(r.Moves)))
		evicted.Add(uint64(len(r.Evicted)))
		if !r.Done {
			return false
		}
		switch before := settled.Swap(int64(r.TotalPages)); {
		case r.TotalPages > int(before):
			grown.Add(1)
		case r.TotalPages < int(before):
			shrunk.Add(1)
		}
		return true
	}
	resized := func() bool { return grown.Load() > 0 && shrunk.Load() > 0 && moved.Load() > 0 }
	salt := uint64(1)
	scopes := []*bindings.Scope{nil, {LoRAName: "adapter"}, {LoRAName: "adapter", Salt: &salt},
		{SaltBytes: []byte("tenant")}}
	drop := func(item bindings.DropItem) {
		out := make([]bindings.DropResult, 1)
		told, err := m.DropScopes([]bindings.DropItem{item}, out, make([]bindings.EvictedBlock, most))
		if err != nil || out[0].Err != nil {
			t.Error(err, out[0].Err)
			return
		}
		if len(told) != out[0].Blocks {
			t.Errorf("told of %d blocks, dropped %d", len(told), out[0].Blocks)
		}
		dropped.Add(uint64(len(told)))
	}
	work := func(seed uint64) func() {
		running.Add(1)
		return func() {
			defer running.Add(-1)
			random := rand.New(rand.NewPCG(seed, 0))
			// Longer where the device's turn comes late.
			for n := 0; n < requests || n < 100*requests && !resized(); n++ {
				tokens := make([]uint32, random.IntN(40))
				for i := range tokens {
					tokens[i] = random.Uint32N(2)
				}
				scope := scopes[random.IntN(len(scopes))]
				q, err := m.Open(bindings.Prompt{Tokens: tokens, MustCompute: 1, Scope: scope})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := q.Grow(len(tokens)); err == nil {
					if _, err := q.Commit(tokens[q.MatchedTokens():]); err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, bindings.ErrNotNow) {
					t.Error(err)
				}
				end := q.Release
				if random.IntN(4) == 0 {
					end = q.Cancel
				}
				if err := end(); err != nil {
					t.Error(err)
				}
				s.Flush()
				// Mostly a new way begins at the end of one, sometimes in the middle.
				if resize(random.IntN(32)) && random.IntN(4) == 0 || random.IntN(100) == 0 {
					target.Store(int64(least + random.IntN(most-least+1)))
				}
				if random.IntN(10) == 0 {
					drop(bindings.DropItem{Scope: scope, Every: scope != nil && random.IntN(2) == 0})
				}
				if random.IntN(200) == 0 {
					if err := m.Reset(); err != nil {
						t.Error(err)
					}
				}
				runtime.Gosched() // to the device among others: without it no way ends
			}
		}
	}
	look := func() {
		prompts := []bindings.Prompt{{Tokens: make([]uint32, 40)}}
		out := make([]bindings.ProbeResult, 1)
		for running.Load() > 0 {
			if err := m.Probe(prompts, out); err != nil || out[0].Err != nil {
				t.Error(err, out[0].Err)
			}
			if _, err := m.Stats(); err != nil {
				t.Error(err)
			}
			if _, err := s.Stats(); err != nil {
				t.Error(err)
			}
			if err := m.Check(); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	}
	mirror := map[uint64]bool{}
	apply := func(b *bindings.Batch) {
		for _, e := range b.Events {
			switch e := e.(type) {
			case *bindings.BlockStored:
				for _, h := range e.Hashes {
					if mirror[h] {
						t.Errorf("%x stored twice", h)
					}
					mirror[h] = true
				}
				if e.HasParent && !mirror[e.ParentHash] {
					t.Errorf("%x stored before its parent", e.Hashes[0])
				}
			case *bindings.BlockRemoved:
				for _, h := range e.Hashes {
					if !mirror[h] {
						t.Errorf("%x removed and not stored", h)
					}
					delete(mirror, h)
				}
			case *bindings.AllBlocksCleared:
				clear(mirror)
			}
		}
	}
	drainer := func() {
		for running.Load() > 0 {
			b, err := s.Drain(0, 0)
			if err != nil {
				t.Error(err)
				return
			}
			apply(b)
			b.Release()
			select {
			case <-s.Wake():
			default:
				runtime.Gosched()
			}
		}
	}
	resets := func() {
		for running.Load() > 0 {
			if err := m.Reset(); err != nil {
				t.Error(err)
			}
			for range 50 {
				runtime.Gosched()
			}
		}
	}
	device := func() {
		for running.Load() > 0 {
			if _, err := m.HostAdvance(0, 3); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	}
	together(t, work(1), work(2), work(3), work(4), look, drainer, resets, device)
	stats, err := m.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]uint64{
		"stored":           stats.StoredBlocks,
		"matched":          stats.MatchedBlocks,
		"cancelled":        stats.CancelledSequences,
		"evicted by grows": stats.EvictedBlocks - min(stats.EvictedBlocks, evicted.Load()),
		"reset":            stats.ResetBlocks,
		"dropped":          dropped.Load(),
		"grown":            grown.Load(),
		"shrunk":           shrunk.Load(),
		"moved":            moved.Load(),
	} {
		if n == 0 {
			t.Errorf("%s: %d", name, n)
		}
	}
	if stats.DroppedBlocks != dropped.Load() || stats.MovedPages != moved.Load() ||
		stats.FailedResizes != 0 {
		t.Errorf("%d dropped, %d moved, %d failed; the calls told of %d and %d",
			stats.DroppedBlocks, stats.MovedPages, stats.FailedResizes, dropped.Load(), moved.Load())
	}
	for range 64 {
		b := drain(t, s)
		apply(b)
		// A drain that finds nothing heals, and what it healed comes with the next.
		quiet := len(b.Events) == 0 && b.PendingBlocks == 0 && b.RemainingBytes == 0
		b.Release()
		if quiet {
			break
		}
	}
	resident, err := m.Resident(event.Signed64)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resident {
		if !r.Announced || !mirror[r.Hash] {
			t.Errorf("resident %x: announced %v, in the mirror %v", r.Hash, r.Announced, mirror[r.Hash])
		}
	}
	if len(resident) != len(mirror) {
		t.Errorf("%d resident, %d in the mirror", len(resident), len(mirror))
	}
}

// TestSecondDrainer: of drains that overlap only one gets a batch, the others
// ErrBusy; nothing is delivered twice or lost.
func TestSecondDrainer(t *testing.T) {
	m, s := newPair(t, bindings.Config{CapacityBlocks: 4096}, bindings.StreamConfig{})
	const blocks = 2000
	for i := range blocks {
		store(t, m, []uint32{uint32(i), 1, 2, 3})
	}
	var got, busy atomic.Int64
	var turn sync.Mutex // makes "the next Drain" of one goroutine not the theft of another's batch
	drainer := func(polite bool) func() {
		return func() {
			for got.Load() < blocks {
				if polite {
					turn.Lock()
				}
				b, err := s.Drain(0, 64)
				switch {
				case errors.Is(err, bindings.ErrBusy):
					busy.Add(1)
				case err != nil:
					t.Error(err)
				case polite:
					got.Add(int64(b.Blocks))
					b.Release()
				}
				if polite {
					turn.Unlock()
				}
			}
		}
	}
	together(t, drainer(true), drainer(true))
	if got.Load() != blocks {
		t.Errorf("%d blocks delivered, want %d", got.Load(), blocks)
	}

	// Truly at once: one call is in native code for a while (it hashes 100k
	// blocks), another one comes.
	big, stream := newPair(t, bindings.Config{CapacityBlocks: 100000}, bindings.StreamConfig{MaxEntries: 100000})
	store(t, big, sequential(0, 400000))
	for attempt := 0; busy.Load() == 0 && attempt < 100; attempt++ {
		started := make(chan struct{})
		together(t, func() {
			close(started)
			if b, err := stream.Drain(0, 0); err == nil {
				b.Release()
			} else if errors.Is(err, bindings.ErrBusy) {
				busy.Add(1)
			} else {
				t.Error(err)
			}
		}, func() {
			<-started
			for range 10000 {
				b, err := stream.Drain(1, 1)
				if errors.Is(err, bindings.ErrBusy) {
					busy.Add(1)
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
			}
		})
		if busy.Load() == 0 {
			if err := big.Reset(); err != nil {
				t.Fatal(err)
			}
			store(t, big, sequential(0, 400000))
		}
	}
	if busy.Load() == 0 {
		t.Error("two drains never overlapped")
	}
}

// TestCloseManagerBesideCalls: calls in flight finish, later ones say ErrClosed.
func TestCloseManagerBesideCalls(t *testing.T) {
	for range 50 {
		s, err := bindings.NewStream(bindings.StreamConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		m := newManager(t, bindings.Config{CapacityBlocks: 16, Stream: s})
		call := func() {
			for {
				out := make([]bindings.ProbeResult, 1)
				err := m.Probe([]bindings.Prompt{{Tokens: sequential(0, 16)}}, out)
				if err == nil {
					err = m.Reset()
				}
				if errors.Is(err, bindings.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
		drains := func() {
			for {
				b, err := s.Drain(0, 0)
				if err == io.EOF {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
			}
		}
		closes := func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		together(t, call, call, drains, closes, closes)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseBoth: a manager and its stream may be closed at the same moment.
func TestCloseBoth(t *testing.T) {
	for range 200 {
		s, err := bindings.NewStream(bindings.StreamConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		m := newManager(t, bindings.Config{CapacityBlocks: 16, Stream: s})
		store(t, m, sequential(0, 16))
		closes := func(close func() error) func() {
			return func() {
				if err := close(); err != nil {
					t.Error(err)
				}
			}
		}
		together(t, closes(m.Close), closes(s.Close), closes(s.Close), s.Flush, func() {
			if b, err := s.Drain(0, 0); err == nil {
				b.Release()
			} else if err != io.EOF && !errors.Is(err, bindings.ErrClosed) && !errors.Is(err, bindings.ErrBusy) {
				t.Error(err)
			}
		})
	}
}

// TestStreamCloseWaits: Close returns only after the borrowed batch has been
// released, and refuses new drains meanwhile.
func TestStreamCloseWaits(t *testing.T) {
	s, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m := newManager(t, bindings.Config{CapacityBlocks: 16, Stream: s})
	store(t, m, sequential(0, 16))
	b := drain(t, s)
	var released atomic.Bool
	together(t, func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if !released.Load() {
			t.Error("closed while the batch was borrowed")
		}
	}, func() {
		// Close announces itself by a wake-up before it waits.
		select {
		case <-s.Wake():
		case <-time.After(deadline):
			t.Error("no wake-up")
		}
		if got := b.Events[0].(*bindings.BlockStored).Tokens[15]; got != 15 {
			t.Errorf("the borrowed batch holds %d", got)
		}
		released.Store(true)
		b.Release()
	})
	if _, err := s.Drain(0, 0); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("drain: %v", err)
	}
	// The manager goes on without its stream.
	store(t, m, sequential(100, 16))
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
