// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// attached starts a publisher with a source.
func attached(t testing.TB, o Options, f *fakeTransport) (*Publisher, *fakeSource) {
	t.Helper()
	p, src := mustNew(t, o), newFakeSource()
	if err := p.Attach(src); err != nil {
		t.Fatal(err)
	}
	if f != nil {
		p.newTransport = func() transport { return f }
	}
	mustStart(t, p)
	return p, src
}

func mustFlush(t testing.TB, p *Publisher) {
	t.Helper()
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
}

// What a source holds comes out in order, in batches within the limits, and
// what it held before Start comes after the first clear.
func TestSource(t *testing.T) {
	o := localOptions(t)
	o.MaxBatchEvents, o.MaxBatchBlocks, o.WaitSubscribers = 2, 10, 1
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p, src := mustNew(t, o), newFakeSource()
	if err := p.Attach(src); err != nil {
		t.Fatal(err)
	}
	src.record(chain(1, 3), removal(2), removal(3), &event.AllBlocksCleared{}, chain(10, 8), removal(10, 11, 12),
		chain(20, 50))
	result := make(chan error, 1)
	go func() { result <- p.Start(withPatience(t)) }()
	s := newSubscriber(t, nil).connect(<-bound, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	mustFlush(t, p)
	checkBalance(t, p.Stats(), true)
	src.record(removal(20)) // nobody flushes: Close finds it
	p.Close()
	var got []string
	for i := range 9 {
		m := s.next()
		if m.seq != uint64(i) {
			t.Fatalf("number %d, want %d", m.seq, i)
		}
		line := ""
		for _, ev := range m.batch.Events {
			line += fmt.Sprintf(" %d:%d", ev.Kind, len(ev.Hashes))
		}
		got = append(got, line[1:])
	}
	want := []string{"3:0", "1:3 2:1", "2:1", "3:0", "1:8", "2:3", "1:50", "2:1", "3:0"}
	if !slices.Equal(got, want) {
		t.Errorf("batches %q, want %q", got, want)
	}
}

// A wake-up is acted upon long before the delay is over.
func TestSourceWake(t *testing.T) {
	o := localOptions(t)
	o.FlushDelay = maxFlushDelay
	p, src := attached(t, o, nil)
	s := subscribe(t, p)
	took := make([]time.Duration, 50)
	for i := range took {
		begin := time.Now()
		src.record(removal(uint64(i)))
		src.flush()
		s.next()
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	t.Logf("median %v, longest %v", took[25], took[49])
	// The longest is the machine's; half of them are long only if nobody wakes up.
	if took[25] > maxPoll/2 {
		t.Errorf("wake-ups take %v", took)
	}
}

// Flush includes blocks whose announcement is deferred, which the source heals
// a few at a time.
func TestFlushHealsDeferred(t *testing.T) {
	f := &fakeTransport{}
	p, src := attached(t, localOptions(t), f)
	src.mu.Lock()
	for i := range 20 {
		src.pending = append(src.pending, chain(uint64(100*i), 1))
	}
	src.mu.Unlock()
	mustFlush(t, p)
	st := p.Stats()
	checkBalance(t, st, true)
	if st.PublishedEvents != 21 || st.PendingBlocks != 0 {
		t.Errorf("%+v", st)
	}
}

// neverHeals is a source with one deferred block for ever.
type neverHeals struct{ *fakeSource }

func (n neverHeals) Drain(int, int) (*bindings.Batch, error) {
	return &bindings.Batch{PendingBlocks: 1}, nil
}

func TestFlushIsBounded(t *testing.T) {
	o := localOptions(t)
	o.ShutdownTimeout = 50 * time.Millisecond
	p := mustNew(t, o)
	if err := p.Attach(neverHeals{newFakeSource()}); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush = %v", err)
	}
	if n := p.Stats().PendingBlocks; n != 1 {
		t.Errorf("%d pending blocks, want 1", n)
	}
	result := make(chan error, 1)
	go func() { result <- p.Flush(context.Background()) }()
	p.Close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Flush beside Close = %v", err)
	}
}

// A source that closes its wake channel is asked at intervals, not in a spin.
func TestSourceClosesWake(t *testing.T) {
	f := &fakeTransport{}
	p, src := attached(t, localOptions(t), f)
	close(src.wake)
	src.record(removal(1))
	mustFlush(t, p)
	src.mu.Lock()
	begin, before := time.Now(), src.drains
	src.mu.Unlock()
	eventually(t, "10 more drains", func() bool { src.mu.Lock(); defer src.mu.Unlock(); return src.drains >= before+10 })
	if took := time.Since(begin); took < 5*5*time.Millisecond {
		t.Errorf("10 drains in %v", took)
	}
}

// A source that has ended leaves a publisher that is idle until Close.
func TestSourceEnds(t *testing.T) {
	for name, end := range map[string]func(*fakeSource){
		"EOF":    func(s *fakeSource) { s.sealed = true },
		"closed": func(s *fakeSource) { s.err = fmt.Errorf("drain: %w", bindings.ErrClosed) },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeTransport{}
			p, src := attached(t, localOptions(t), f)
			src.record(removal(1), removal(2))
			mustFlush(t, p)
			src.mu.Lock()
			end(src)
			src.mu.Unlock()
			src.flush()
			drains := func() int { src.mu.Lock(); defer src.mu.Unlock(); return src.drains }
			eventually(t, "the source is let go", func() bool {
				before := drains()
				mustFlush(t, p)
				return drains() == before
			})
			if err := p.Publish(removal(3)); !errors.Is(err, ErrAttached) {
				t.Errorf("Publish = %v", err)
			}
			p.Close()
			if got := f.numbers(); !slices.Equal(got, []uint64{0, 1, 2}) {
				t.Errorf("sent %v", got)
			}
		})
	}
}

// A drain that fails for another reason is counted, told and tried again.
func TestSourceFails(t *testing.T) {
	o := localOptions(t)
	o.ShutdownTimeout = 2 * patience
	var warning atomic.Value
	o.Warn = func(m string) { warning.Store(m) }
	p, src := attached(t, o, &fakeTransport{})
	src.mu.Lock()
	src.err = errors.New("out of memory")
	src.mu.Unlock()
	src.record(removal(1))
	mustFlush(t, p)
	st := p.Stats()
	if st.SourceErrors != 1 || st.PublishedEvents != 2 {
		t.Errorf("%+v", st)
	}
	if m, _ := warning.Load().(string); !strings.Contains(m, "out of memory") {
		t.Errorf("warning %q", m)
	}
	// A failing source does not hold Close up.
	src.mu.Lock()
	src.err = errors.New("again")
	src.mu.Unlock()
	begin := time.Now()
	p.Close()
	if took := time.Since(begin); took > patience {
		t.Errorf("Close took %v", took)
	}
}

// Invalid events of a source are left out, and a number with them.
func TestSourceInvalidEvents(t *testing.T) {
	f := &fakeTransport{}
	p, src := attached(t, localOptions(t), f)
	dup := chain(1, 3)
	dup.Hashes[2] = 1
	src.record(removal(1), dup, removal(2), dup, removal(3))
	mustFlush(t, p)
	src.record(dup)
	mustFlush(t, p)
	p.Close()
	st := p.Stats()
	checkBalance(t, st, true)
	if st.InvalidEvents != 3 || st.BurntNumbers != 2 || st.PublishedEvents != 5 {
		t.Errorf("%+v", st)
	}
	if got := f.numbers(); !slices.Equal(got, []uint64{0, 2, 4}) {
		t.Errorf("sent %v", got)
	}
}

func TestSourceSequenceExhausted(t *testing.T) {
	o := localOptions(t)
	var warnings atomic.Int64
	o.Warn = func(string) { warnings.Add(1) }
	f := &fakeTransport{}
	p, src := attached(t, o, f)
	p.mu.Lock()
	p.stats.NextSeq = wire.EndSeq
	p.mu.Unlock()
	src.record(removal(1))
	mustFlush(t, p)
	p.Close()
	if got := f.numbers(); !slices.Equal(got, []uint64{0}) || warnings.Load() != 1 {
		t.Errorf("sent %v, %d warnings", got, warnings.Load())
	}
}

// A null publisher numbers and counts like the other, without a socket.
func TestNull(t *testing.T) {
	o := localOptions(t)
	o.Kind, o.Endpoint, o.WaitSubscribers = KindNull, "", 5
	p, src := attached(t, o, nil)
	src.record(chain(1, 3), removal(1), &event.AllBlocksCleared{})
	mustFlush(t, p)
	if p.Endpoint() != "" {
		t.Errorf("bound %q", p.Endpoint())
	}
	p.Close()
	st := p.Stats()
	checkBalance(t, st, true)
	if st.PublishedBatches != 4 || st.PublishedEvents != 5 || st.PublishedBytes != 0 || st.NextSeq != 4 {
		t.Errorf("%+v", st)
	}

	q := mustNew(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := q.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Start = %v", err)
	}
	mustStart(t, q)
	if err := q.Publish(chain(1, 1), chain(1, 0)); !errors.Is(err, ErrInvalidEvent) {
		t.Errorf("Publish = %v", err)
	}
	mustFlush(t, q)
	checkBalance(t, q.Stats(), true)
}

// recycled hands out the same batch again and again.
type recycled struct {
	*fakeSource
	batch, empty *bindings.Batch
	left         atomic.Int64
}

func newRecycled(events, blocks, tokensPerBlock int) *recycled {
	r := &recycled{fakeSource: newFakeSource(), batch: &bindings.Batch{}, empty: &bindings.Batch{}}
	for i := range events {
		e := &event.BlockStored{BlockSize: uint32(tokensPerBlock), Medium: "GPU", HasMedium: true,
			HasParent: true, ParentHash: uint64(i)<<32 | 1<<62}
		for b := range blocks {
			e.Hashes = append(e.Hashes, (uint64(i*blocks+b)+1)*0x9e3779b97f4a7c15)
		}
		for k := range blocks * tokensPerBlock {
			e.Tokens = append(e.Tokens, uint32((uint64(k)*0x9e3779b97f4a7c15)>>40)%128256)
		}
		r.batch.Events = append(r.batch.Events, e)
		r.batch.Blocks += blocks
	}
	return r
}

func (r *recycled) Drain(int, int) (*bindings.Batch, error) {
	if r.left.Add(-1) >= 0 {
		return r.batch, nil
	}
	r.left.Store(0)
	return r.empty, nil
}

// A drained batch costs no allocation of ours, kept for replays or not; zmq4
// takes one byte for an empty topic.
func TestNoAllocationsPerBatch(t *testing.T) {
	for name, ring := range map[string]*ring{"no ring": nil, "ring": newRing(50, 1<<20)} {
		t.Run(name, func(t *testing.T) {
			o := localOptions(t)
			o.Topic = "t"
			src := newRecycled(16, 20, 16)
			p := mustNew(t, o)
			tr := newZMQTransport(p.settings)
			if _, _, err := tr.open(withPatience(t)); err != nil {
				t.Fatal(err)
			}
			defer tr.close(0)
			encoder, err := wire.NewEncoder(wire.Config{})
			if err != nil {
				t.Fatal(err)
			}
			w := &owner{p: p, s: p.settings, transport: tr, encode: true, encoder: encoder, source: src,
				validator: p.validator, ring: ring, nextRead: time.Now().Add(time.Hour)}
			src.left.Store(1 << 40)
			for range 200 { // the ring fills
				w.step(time.Now())
			}
			if n := testing.AllocsPerRun(200, func() { w.step(time.Now()) }); n != 0 {
				t.Errorf("%v allocations per batch", n)
			}
			if st := p.Stats(); st.PublishedBatches != 401 || st.PublishedEvents != 401*16 {
				t.Errorf("%+v", st)
			}
		})
	}
}
