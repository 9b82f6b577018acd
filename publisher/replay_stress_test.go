// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// liveTraffic publishes a batch each few milliseconds and measures how long each
// takes to a subscriber.
type liveTraffic struct {
	quit, ended chan struct{}
	// interval is the longest time so far between two wake-ups of a goroutine
	// that does nothing but wait for a ticker: what the machine itself withholds.
	// delay is the longest way of a batch since it was last set to 0, late the
	// longest of those that took longer than the machine accounts for, see
	// mostDelay. Nanoseconds.
	interval, delay, late atomic.Int64
	received              atomic.Int64
}

// mostDelay bounds the way of a live batch by what the machine has been seen to
// withhold until it arrived.
func (l *liveTraffic) mostDelay() int64 {
	return max(int64(50*time.Millisecond), 2*l.interval.Load())
}

const livePace = 5 * time.Millisecond

func startLive(t *testing.T, p *Publisher, s *subscriber) *liveTraffic {
	l := &liveTraffic{quit: make(chan struct{}), ended: make(chan struct{})}
	first := p.Stats().NextSeq
	sent := make(chan time.Time, 1<<20)
	go func() {
		ticker := time.NewTicker(livePace)
		defer ticker.Stop()
		last := time.Now()
		for {
			select {
			case <-l.quit:
				return
			case <-ticker.C:
			}
			now := time.Now()
			l.interval.Store(max(l.interval.Load(), int64(now.Sub(last))))
			last = now
		}
	}()
	go func() {
		defer close(sent)
		ticker := time.NewTicker(livePace)
		defer ticker.Stop()
		for {
			select {
			case <-l.quit:
				return
			case <-ticker.C:
			}
			sent <- time.Now()
			if err := p.Publish(removal(1)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	go func() {
		defer close(l.ended)
		for begin := range sent {
			_, seq, _ := s.nextFrames()
			delay := int64(time.Since(begin))
			l.delay.Store(max(l.delay.Load(), delay))
			if delay > l.mostDelay() {
				l.late.Store(max(l.late.Load(), delay))
			}
			if n, err := wire.ParseSeq(seq); err != nil || n != first {
				t.Errorf("live batch %d, %v, want %d", n, err, first)
				return
			}
			first++
			l.received.Add(1)
		}
	}()
	return l
}

func (l *liveTraffic) stop() {
	close(l.quit)
	<-l.ended
}

// A slow reader gets all of a large ring, in order and with its end, while live
// batches go their way as before.
func TestReplayToSlowReader(t *testing.T) {
	batches, warmUp := 10000, int64(200)
	if testing.Short() {
		batches, warmUp = 500, 50
	}
	o := replayOptions(t)
	o.BufferSteps = batches
	p := mustNew(t, o)
	mustStart(t, p)
	const blocks = 100
	for i := range batches - 1 {
		if err := p.Publish(chain(uint64(i+1)<<32, blocks)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	live := startLive(t, p, subscribe(t, p))
	eventually(t, "live batches", func() bool { return live.received.Load() >= warmUp })
	before := time.Duration(live.delay.Swap(0))
	live.late.Store(0)

	c := newDealer(t, p.ReplayEndpoint())
	begin := time.Now()
	// At least: a batch has its number before it is kept, and has been kept when it
	// has been sent.
	last := p.Stats().PublishedBatches - 1
	c.ask(0)
	var first, next uint64
	for n := 0; ; n++ {
		m := c.next()
		time.Sleep(4 * time.Millisecond) // one for each frame
		if m.seq == wire.EndSeq {
			break
		}
		switch {
		case n == 0:
			first = m.seq
		case m.seq != next:
			t.Fatalf("batch %d after %d", m.seq, next-1)
		}
		next = m.seq + 1
		if n%1000 == 0 && m.seq < uint64(batches) && m.seq > 0 {
			b, err := wire.Decode([]byte(m.payload), wire.Limits{})
			if err != nil || len(b.Events) != 1 || len(b.Events[0].Hashes) != blocks {
				t.Errorf("batch %d: %v", m.seq, err)
			}
		}
	}
	took := time.Since(begin)
	live.stop()
	mustFlush(t, p) // what has been received may not have been counted
	// Live batches have taken the place of some before the request came.
	if n := next - first; n != uint64(batches) || next <= last || first > uint64(batches) {
		t.Errorf("%d batches, %d to %d, want %d up to %d or more", n, first, next-1, batches, last)
	}
	t.Logf("%d batches in %v; live delay at most %v, before %v; the machine withheld at most %v; %d live batches",
		next-first, took, time.Duration(live.delay.Load()), before, time.Duration(live.interval.Load()),
		live.received.Load())
	if late := time.Duration(live.late.Load()); late != 0 {
		t.Errorf("a live batch took %v, more than 50ms and twice what the machine had withheld by then", late)
	}
	st := p.Stats()
	checkBalance(t, st, true)
	if st.ReplayAborted != 0 || st.ReplayRequests != 1 || p.ring.pinned != 0 {
		t.Errorf("%d bytes pinned, %+v", p.ring.pinned, st)
	}
}
