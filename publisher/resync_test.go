// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// follow reads batches up to a number into a mirror; clears are alone.
func follow(t testing.TB, s *subscriber, mirror *reader.Mirror, to uint64) (clears int) {
	t.Helper()
	for {
		m := s.next()
		for _, e := range m.batch.Events {
			if e.Kind == wire.KindCleared {
				if clears++; len(m.batch.Events) != 1 {
					t.Errorf("batch %d: a clear in company", m.seq)
				}
			}
		}
		if err := mirror.Apply(m.batch.Events); err != nil {
			t.Fatal(err)
		}
		if m.seq == to {
			return clears
		}
	}
}

// A subscriber that comes late knows everything after a Resync, and nothing
// overtakes it while the cache is used.
func TestResync(t *testing.T) {
	o := localOptions(t)
	o.MaxBatchEvents = 3
	p, m := startWith(t, o, 64)
	if err := p.Resync(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	grow(t, p, m, 0, 12)
	s := subscribe(t, p)
	mirror := reader.NewMirror(0)
	done := make(chan error, 3)
	for range cap(done) {
		go func() { done <- p.Resync(withPatience(t)) }()
	}
	grow(t, p, m, 100, 12)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	mustFlush(t, p)
	clears := follow(t, s, mirror, p.Stats().NextSeq-1)
	sameBlocks(t, "late", mirror, patterns(t, m, event.Signed64))
	st := p.Stats()
	checkBalance(t, st, true)
	if st.Resyncs < 2 || st.Resyncs > 4 || clears != int(st.Resyncs)-1 {
		t.Errorf("%d resyncs, %d clears", st.Resyncs, clears)
	}
}

// When it may be called, and what it says.
func TestResyncErrors(t *testing.T) {
	p := mustNew(t, localOptions(t))
	check := func(want error) {
		t.Helper()
		if err := p.Resync(withPatience(t)); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	check(ErrNotStarted)
	mustStart(t, p)
	check(ErrNoSnapshots)
	p.Close()
	check(ErrClosed)
	if err := (*Publisher)(new(Publisher)).Resync(withPatience(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("zero value: %v", err)
	}
	p, _ = startWith(t, localOptions(t), 8)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Resync(over); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	//lint:ignore SA1012 that is the point
	if err := p.Resync(nil); !errors.Is(err, ErrOption) { //nolint:staticcheck
		t.Errorf("%v", err)
	}
	for key, set := range map[string]func(*Options){
		"on_loss":         func(o *Options) { o.OnLoss = LossResync },
		"resync_interval": func(o *Options) { o.ResyncInterval = time.Second },
	} {
		o := localOptions(t)
		set(&o)
		var e *Error
		if err := mustNew(t, o).Start(withPatience(t)); !errors.As(err, &e) || e.Key != key || !errors.Is(err, ErrOption) {
			t.Errorf("%s without a source: %v", key, err)
		}
		// Whoever publishes nothing at all needs no source for it.
		o.Disabled = true
		mustStart(t, mustNew(t, o))
	}
}

// When the next resync is due, by a clock of the test's.
func TestResyncTimes(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	asked := []*resyncRequest{{}}
	for name, c := range map[string]struct {
		r    resync
		now  int
		want bool
		wait time.Duration
	}{
		"never":               {resync{}, 9, false, noMark},
		"asked":               {resync{waiting: asked}, 9, true, 0},
		"asked before due":    {resync{waiting: asked, interval: time.Minute, next: at(60)}, 9, true, 0},
		"lost":                {resync{lost: true, due: at(9)}, 9, true, 0},
		"lost, not due":       {resync{lost: true, due: at(12)}, 9, false, 3 * time.Second},
		"timer":               {resync{interval: time.Minute, next: at(60)}, 60, true, 0},
		"timer, not due":      {resync{interval: time.Minute, next: at(60)}, 9, false, 51 * time.Second},
		"timer before a loss": {resync{interval: time.Minute, next: at(60), lost: true, due: at(70)}, 60, true, 0},
		"a loss before timer": {resync{interval: time.Minute, next: at(60), lost: true, due: at(20)}, 20, true, 0},
		"both later":          {resync{interval: time.Minute, next: at(60), lost: true, due: at(20)}, 15, false, 5 * time.Second},
	} {
		if begin, wait := c.r.wanted(at(c.now)); begin != c.want || c.want == (wait > 0) || !c.want && wait != c.wait {
			t.Errorf("%s: %v, %v", name, begin, wait)
		}
	}
	// Each resync, whoever asked for it, begins the interval anew.
	o := &owner{p: mustNew(t, localOptions(t)), s: &settings{}}
	o.resync.interval, o.resync.next = time.Minute, at(60)
	o.endResync(at(40), nil)
	if ok, wait := o.resync.wanted(at(60)); ok || wait != 40*time.Second {
		t.Errorf("after one at 40 s: %v, %v", ok, wait)
	}
	// A source that is over is asked no more.
	o.resync.lost = true
	o.endResync(at(100), bindings.ErrClosed)
	if ok, wait := o.resync.wanted(at(1000)); ok || wait != noMark {
		t.Errorf("after the end: %v, %v", ok, wait)
	}
}

// With an interval, whoever subscribes late and asks for nothing knows everything
// after one of them; and the cache may be idle or in use.
func TestResyncInterval(t *testing.T) {
	o := localOptions(t)
	o.ResyncInterval = time.Second
	p := mustNew(t, o)
	p.settings.ResyncInterval = 20 * time.Millisecond
	_, m, _ := startStream(t, p, 64)
	grow(t, p, m, 0, 12)
	for round := range 3 {
		s := subscribe(t, p)
		before := p.Stats().Resyncs
		eventually(t, "resync", func() bool { return p.Stats().Resyncs > before })
		grow(t, p, m, 100*(round+1), 2)
		// What the first resync tells that begins after all of it.
		want, from := patterns(t, m, event.Signed64), p.Stats().NextSeq
		mirror := reader.NewMirror(0)
		for clears := 0; clears == 0 || !slices.Equal(mirror.Patterns(), want); {
			m := s.next()
			if m.seq < from {
				continue
			}
			if isClear(m) {
				clears++
			}
			if clears > 1 {
				t.Fatalf("%d blocks after a resync, want %d", mirror.Len(), len(want))
			}
			if clears > 0 {
				if err := mirror.Apply(m.batch.Events); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.close()
		eventually(t, "end of the subscription", func() bool { return p.Stats().Subscriptions == 0 })
	}
	st := p.Stats()
	if st.SendErrorDrops != 0 || st.InvalidEvents != 0 {
		t.Errorf("%+v", st)
	}
	checkBalance(t, st, false)
}

// With on_loss a batch that could not be sent is followed by everything anew.
func TestResyncOnLoss(t *testing.T) {
	for _, policy := range []OnLoss{LossGap, LossResync} {
		t.Run(string(policy), func(t *testing.T) {
			o := localOptions(t)
			o.OnLoss, o.Warn = policy, nil
			p := mustNew(t, o)
			f := &fakeTransport{}
			p.newTransport = func() transport { return f }
			_, m, _ := startStream(t, p, 64)
			grow(t, p, m, 0, 3)
			f.setFail(errors.New("no room"))
			compute(t, m, []uint32{9, 9, 9, 9})
			if err := p.Flush(withPatience(t)); !errors.Is(err, ErrDropped) {
				t.Fatalf("%v", err)
			}
			f.setFail(nil)
			if policy == LossResync {
				eventually(t, "resync", func() bool { return p.Stats().Resyncs > 0 })
			} else {
				compute(t, m, []uint32{8, 8, 8, 8})
				mustFlush(t, p)
			}
			st := p.Stats()
			checkBalance(t, st, true)
			if (st.Resyncs > 0) != (policy == LossResync) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// countedSnapshots is a source of snapshots that has none.
type countedSnapshots struct{ asked int }

func (c *countedSnapshots) Snapshot() (*bindings.Snapshot, error) {
	c.asked++
	return nil, bindings.ErrClosed
}

// No resync begins after Close, whatever is due: it would take the time of what
// has been recorded, and could end half done.
func TestResyncAtClose(t *testing.T) {
	for _, closing := range []bool{true, false} {
		source := new(countedSnapshots)
		o := &owner{p: mustNew(t, localOptions(t)), s: &settings{}, snapshots: source, closing: closing}
		o.resync.lost, o.resync.interval = true, time.Second
		asked := &resyncRequest{done: make(chan error, 1)}
		o.resync.waiting = []*resyncRequest{asked}
		busy, wait := o.stepResync(time.Unix(1000, 0))
		if busy || wait != noMark || (source.asked == 0) != closing {
			t.Errorf("closing %v: %v, %v, asked %d times", closing, busy, wait, source.asked)
		}
		o.abandonResync()
		if err := <-asked.done; !errors.Is(err, ErrClosed) && closing || err == nil {
			t.Errorf("closing %v: %v", closing, err)
		}
	}
}

// heldSnapshots is a stream whose snapshots stay open for a while after they have been
// read, as if reading took so long.
type heldSnapshots struct {
	*bindings.Stream
	now, until time.Time // the last one is open until then
	hold       time.Duration
	pinned     int
}

func (h *heldSnapshots) Snapshot() (*bindings.Snapshot, error) {
	if h.now.Before(h.until) {
		return nil, bindings.ErrBusy
	}
	s, err := h.Stream.Snapshot()
	if err == nil {
		h.until = h.now.Add(h.hold)
		h.pinned++
	}
	return s, err
}

// Snapshots that replays ask for without pause, and resyncs that are, take turns, also
// when each snapshot takes longer than the pause between two. No step of the owner does
// more than pin one for each and send one message.
func TestResyncsAndSnapshotsTakeTurns(t *testing.T) {
	for name, c := range map[string]struct {
		hold time.Duration
		want string
	}{
		"slow snapshots":  {1500 * time.Millisecond, "SRSRSR"},
		"quick snapshots": {0, "SRRR"}, // at most one for replays a second
	} {
		t.Run(name, func(t *testing.T) {
			stream, m := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 1, CapacityBlocks: 64})
			compute(t, m, []uint32{1, 2, 3})
			p := mustNew(t, localOptions(t))
			encoder, err := wire.NewEncoder(p.settings.wireConfig())
			if err != nil {
				t.Fatal(err)
			}
			source := &heldSnapshots{Stream: stream, hold: c.hold}
			sent := &fakeTransport{}
			o := &owner{p: p, s: p.settings, transport: sent, encode: true, encoder: encoder, source: source,
				snapshots: source, hub: newSnapshotHub(), validator: p.validator, config: p.settings.wireConfig()}
			now := time.Unix(1000, 0)
			got := ""
			wanted, asked := o.hub.ask(), &resyncRequest{done: make(chan error, 1)}
			o.resync.waiting = []*resyncRequest{asked}
			for end := now.Add(20 * time.Second); len(got) < len(c.want); now = now.Add(50 * time.Millisecond) {
				if now.After(end) {
					t.Fatalf("%q in 20 s, want %q", got, c.want)
				}
				source.now = now
				pinned, messages := source.pinned, len(sent.numbers())
				o.step(now)
				if pinned, messages = source.pinned-pinned, len(sent.numbers())-messages; pinned > 2 || messages > 1 {
					t.Fatalf("one step has pinned %d snapshots and sent %d messages", pinned, messages)
				}
				o.hub.building.Wait()
				if wanted.done() {
					got += "S"
					wanted.release()
					wanted = o.hub.ask()
				}
				select {
				case err := <-asked.done:
					if err != nil {
						t.Fatal(err)
					}
					got += "R"
					o.resync.waiting = append(o.resync.waiting, asked)
				default:
				}
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			wanted.release()
			o.abandonResync()
		})
	}
}

// A publisher that takes over from another one announces what is there.
func TestStartOnANonEmptyCache(t *testing.T) {
	first, m, stream := startStream(t, mustNew(t, localOptions(t)), 64)
	grow(t, first, m, 0, 8)
	first.Close()
	compute(t, m, []uint32{5, 5, 5, 5}) // recorded, not drained

	o := localOptions(t)
	o.WaitSubscribers = 1
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p := mustNew(t, o)
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- p.Start(withPatience(t)) }()
	s := newSubscriber(t, nil).connect(<-bound, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	mustFlush(t, p)
	mirror := reader.NewMirror(0)
	if clears := follow(t, s, mirror, p.Stats().NextSeq-1); clears != 1 {
		t.Errorf("%d clears", clears)
	}
	sameBlocks(t, "taken over", mirror, patterns(t, m, event.Signed64))
	if st := p.Stats(); st.Resyncs != 0 {
		t.Errorf("%d resyncs", st.Resyncs)
	}

	// Somebody who keeps a snapshot open keeps the next one from starting.
	p.Close()
	snapshot, err := stream.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	p = mustNew(t, localOptions(t))
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(withPatience(t)); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("%v", err)
	}
	snapshot.Close()
	mustStart(t, p)
}
