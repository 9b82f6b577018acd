// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// passing sends live batches, one at a time: each is with a subscriber before anything
// else happens. So those that are sent between two messages of an answer pass it there,
// and would never arrive if live batches waited for the reader of the answer.
type passing struct {
	t *testing.T
	s *subscriber
	// emit sends batch i, which is the next one.
	emit func(i int)
	next uint64
	sent int
	// payloads are what has come, in order; the last snapshot was of batch newest.
	payloads [][]byte
	newest   uint64
	// took is how long each was on its way; withheld is the longest time so far
	// between two wake-ups of a goroutine that only waits for a ticker, which is what
	// the machine itself keeps from a program, and excused what it was as each came.
	took, excused []time.Duration
	withheld      atomic.Int64
}

// startPassing needs a publisher that sends nothing of its own.
func startPassing(t *testing.T, p *Publisher, emit func(i int)) *passing {
	t.Helper()
	l := &passing{t: t, s: subscribe(t, p), emit: emit, next: p.Stats().NextSeq}
	quit, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(quit)
		<-ended
	})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-quit:
				return
			case <-ticker.C:
			}
			now := time.Now()
			l.withheld.Store(max(l.withheld.Load(), int64(now.Sub(last))))
			last = now
		}
	}()
	return l
}

// pass sends so many, one after the other has come.
func (l *passing) pass(n int) {
	l.t.Helper()
	for range n {
		begin := time.Now()
		l.emit(l.sent)
		l.take()
		l.took = append(l.took, time.Since(begin))
		l.excused = append(l.excused, time.Duration(l.withheld.Load()))
		l.sent++
	}
}

// take waits for the next batch.
func (l *passing) take() {
	l.t.Helper()
	_, seq, payload := l.s.nextFrames()
	if got, err := wire.ParseSeq(seq); err != nil || got != l.next {
		l.t.Fatalf("live batch %d, %v, want %d", got, err, l.next)
	}
	l.payloads = append(l.payloads, payload)
	l.next++
}

// takeAll takes what there is, when all has been published. That can be more than was
// sent: a drain may come between what is evicted for a block and the block.
func (l *passing) takeAll(p *Publisher) {
	l.t.Helper()
	for l.next < p.Stats().NextSeq {
		l.take()
	}
}

// since adds to what a snapshot holds the batches that came after it: it holds what was
// there then.
func (l *passing) since(mirror *reader.Mirror) *reader.Mirror {
	l.t.Helper()
	for _, payload := range l.payloads[uint64(len(l.payloads))-(l.next-1-l.newest):] {
		apply(l.t, mirror, payload)
	}
	return mirror
}

// judge compares each delay since the first usual ones with 50 ms, twice the longest of
// those, and twice what the machine had withheld by then.
func (l *passing) judge(usual int) {
	l.t.Helper()
	before, beside := longest(l.took[:usual]), l.took[usual:]
	for i, took := range beside {
		if bound := max(50*time.Millisecond, 2*before, 2*l.excused[usual+i]); took > bound {
			l.t.Errorf("live batch %d of %d took %v, more than %v", i, len(beside), took, bound)
		}
	}
	l.t.Logf("%d live batches: on their way for %v at most, before %v; the machine withheld %v at most",
		len(beside), longest(beside), before, time.Duration(l.withheld.Load()))
}

func longest(list []time.Duration) (d time.Duration) {
	for _, took := range list {
		d = max(d, took)
	}
	return d
}

// A slow reader gets all of a large ring, in order and with its end, while live
// batches go their way as before: one passes between any two messages of the answer.
func TestReplayToSlowReader(t *testing.T) {
	t.Parallel() // it mostly sleeps
	batches, blocks := 10000, 100
	if testing.Short() {
		batches, blocks = 250, 4000
	}
	o := replayOptions(t)
	o.BufferSteps = batches
	p := mustNew(t, o)
	mustStart(t, p)
	for i := range batches - 1 {
		if err := p.Publish(chain(uint64(i+1)<<32, blocks)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	live := startPassing(t, p, func(int) {
		if err := p.Publish(removal(1)); err != nil {
			t.Error(err)
		}
	})
	const usual = 50
	live.pass(usual)

	c := newDealer(t, p.ReplayEndpoint())
	last := live.next - 1
	first := last + 1 - uint64(batches)
	c.ask(0)
	var ahead uint64
	for want := first; ; want++ {
		m := c.next()
		begin := time.Now()
		if m.seq == wire.EndSeq {
			if want != last+1 {
				t.Errorf("the end comes after batch %d, want %d", want-1, last)
			}
			break
		}
		if m.seq != want {
			t.Fatalf("batch %d, want %d", m.seq, want)
		}
		live.pass(1)
		ahead = max(ahead, p.Stats().ReplayBatches-(want-first))
		if n := want - first; n%1000 == 0 && m.seq < uint64(batches) {
			b, err := wire.Decode([]byte(m.payload), wire.Limits{})
			if err != nil || len(b.Events) != 1 || len(b.Events[0].Hashes) != blocks {
				t.Errorf("batch %d: %v", m.seq, err)
			}
		}
		time.Sleep(time.Until(begin.Add(4 * time.Millisecond))) // one for each frame
	}
	t.Logf("%d batches, at most %d ahead of the reader", batches, ahead)
	if ahead > uint64(batches)*3/4 {
		t.Errorf("%d of %d batches were nowhere near the reader: nothing had to wait for it", ahead, batches)
	}
	live.judge(usual)
	mustFlush(t, p) // what has been received may not have been counted
	st := p.Stats()
	checkBalance(t, st, true)
	if st.ReplayAborted != 0 || st.ReplayRequests != 1 || p.ring.pinned != 0 {
		t.Errorf("%d bytes pinned, %+v", p.ring.pinned, st)
	}
}

// Nor does a snapshot hold up live batches, while it is made and while a slow reader is
// sent it: many pass between any two of its messages. They change what it tells of, and
// it stays as it was pinned.
//
// No single one may be delayed for longer than 50 ms or twice what the machine has
// withheld before the answer. A machine that becomes busy meanwhile has two more tries:
// what an answer does to live batches it does each time.
func TestLiveBatchesPassASnapshot(t *testing.T) {
	const blocks, size = 6000, 256
	p := mustNew(t, snapshotOptions(t))
	limitMessages(p, 512<<10)
	stream, m := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: size, CapacityBlocks: blocks})
	t.Cleanup(func() { p.Close() })
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	for i := range 6 {
		tokens := make([]uint32, blocks/6*size)
		for k := range tokens {
			tokens[k] = uint32(1<<20 + i<<16 + k%50000)
		}
		compute(t, m, tokens)
		mustFlush(t, p)
	}
	// Each evicts a block and stores another one.
	live := startPassing(t, p, func(i int) {
		tokens := make([]uint32, size)
		tokens[0] = uint32(i)
		compute(t, m, tokens)
		stream.Flush()
	})
	c := newDealer(t, p.ReplayEndpoint())
	const usual, tries, fixed = 50, 3, 50 * time.Millisecond
	for try := 1; ; try++ {
		begin := live.sent
		live.pass(usual)
		bound := max(fixed, 2*max(time.Duration(live.withheld.Load()), longest(live.took[begin:])))
		begin = live.sent
		mirror, passed := passSnapshot(t, p, live, c)
		took := longest(live.took[begin:])
		t.Logf("%d live batches beside it: on their way for %v at most, %v are granted", live.sent-begin, took, bound)
		if mirror.Len() != blocks {
			t.Errorf("%d blocks, want %d", mirror.Len(), blocks)
		}
		mustFlush(t, p)
		live.takeAll(p)
		sameBlocks(t, "with the batches since", live.since(mirror), patterns(t, m, event.Signed64))
		// The batch that was on its way, and one that was not.
		if took <= bound && passed >= 2 {
			return
		}
		if try == tries {
			t.Fatalf("each of %d times live batches were held up, the last time one for %v, more than %v, with %d while it was made",
				tries, took, bound, passed)
		}
	}
}

// passSnapshot asks for a snapshot and reads it slowly, with live batches beside it, and
// returns what it holds and how many live batches passed while it was made.
func passSnapshot(t *testing.T, p *Publisher, live *passing, c *replayClient) (holds *reader.Mirror, passed uint64) {
	t.Helper()
	const few = 8
	before := p.Stats()
	asked := live.next
	c.ask(0)
	for p.Stats().Snapshots == before.Snapshots {
		live.pass(1)
	}
	made := p.Stats().NextSeq
	var run []replayed
	var handed []uint64
	for {
		r := c.next()
		if r.seq == wire.EndSeq {
			break
		}
		if len(r.payload) > 1000 {
			live.pass(few)
			handed = append(handed, p.Stats().ReplayBatches-before.ReplayBatches)
		}
		run = append(run, r)
	}
	messages := len(handed)
	newest := run[len(run)-1].seq
	t.Logf("%d messages, of which %d had been handed over with the first; of batch %d, %d to %d were newest meanwhile",
		messages, handed[0], newest, asked-1, made-1)
	if messages < 8 || handed[0] > uint64(messages)/2 {
		t.Errorf("%d of %d messages had been handed over with the first: nothing had to wait for the reader", handed[0], messages)
	}
	if newest < asked-1 || newest >= made {
		t.Errorf("it is of batch %d, want %d to %d", newest, asked-1, made-1)
	}
	live.newest = newest
	return applied(t, run), made - 1 - newest
}
