// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// When empty batches are due, told by a clock of our own.
func TestMarksDue(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	m := marks{tail: time.Second, since: at(0), sent: at(0)}
	step := func(next uint64, ms int, want bool, wait time.Duration) {
		t.Helper()
		due, left := m.due(next, at(ms))
		if due != want || !due && left != wait {
			t.Errorf("at %d ms, number %d: due %v in %v, want %v in %v", ms, next, due, left, want, wait)
		}
		if due {
			m.marked, m.sent = next+1, at(ms)
		}
	}
	step(0, 0, false, noMark) // nothing was ever sent
	step(3, 500, false, time.Second)
	step(3, 1400, false, 100*time.Millisecond)
	step(4, 1450, false, time.Second) // one more, also one that was lost
	step(4, 2450, true, 0)
	step(5, 9000, false, noMark) // one mark, not more
	m.heartbeat = 3 * time.Second
	m.sent = at(9000)
	step(5, 9001, false, 2999*time.Millisecond)
	step(5, 12000, true, 0)
	step(6, 12000, false, 3*time.Second)
}

// A batch that was lost at the end shows within the delay of the tail mark, and
// nothing more comes after that.
func TestTailMark(t *testing.T) {
	o := localOptions(t)
	o.TailMark = true
	o.Warn = nil
	f := &fakeTransport{}
	p, src := mustNew(t, o), newFakeSource()
	p.settings.tailDelay = 20 * time.Millisecond
	p.newTransport = func() transport { return f }
	if err := p.Attach(src); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	// Behind the clear.
	eventually(t, "a mark", func() bool { return slices.Equal(f.numbers(), []uint64{0, 1}) })
	// An invalid event burns a number and is the last thing that happens.
	src.record(chain(1, 0))
	src.flush()
	eventually(t, "a mark after the loss", func() bool { return slices.Equal(f.numbers(), []uint64{0, 1, 3}) })
	src.record(removal(1))
	src.flush()
	eventually(t, "a batch and a mark", func() bool { return slices.Equal(f.numbers(), []uint64{0, 1, 3, 4, 5}) })
	time.Sleep(5 * p.settings.tailDelay) // gives a wrong mark a chance to show
	if got := f.numbers(); len(got) != 5 {
		t.Errorf("sent %v", got)
	}
	p.Close()
	st := p.Stats()
	checkBalance(t, st, true)
	if st.PublishedEvents != 3 || st.PublishedBatches != 6 { // two clears and a removal
		t.Errorf("%+v", st)
	}
}

// Heartbeats are empty batches with numbers, in the stream and in what is kept
// for replays.
func TestHeartbeat(t *testing.T) {
	o := replayOptions(t)
	o.Heartbeat = 10 * time.Millisecond
	p := mustNew(t, o)
	mustStart(t, p)
	s := subscribe(t, p)
	first := s.next()
	for i := range 3 {
		m := s.next()
		if m.seq != first.seq+1+uint64(i) || len(m.batch.Events) != 0 {
			t.Errorf("batch %d %+v after %d", m.seq, m.batch.Events, first.seq)
		}
	}
	p.Close()
	st := p.Stats()
	checkBalance(t, st, true)
	if st.PublishedEvents != 2 || st.PublishedBatches < 5 {
		t.Errorf("%+v", st)
	}
}

// While sending fails no marks are burnt either.
func TestMarksPause(t *testing.T) {
	o := localOptions(t)
	o.Heartbeat = time.Millisecond
	o.Warn = nil
	f := &fakeTransport{}
	p, _ := attached(t, o, f)
	begin := time.Now()
	f.setFail(errors.New("no"))
	eventually(t, "two failed ones", func() bool { return p.Stats().SendErrorDrops >= 2 })
	if took, drops := time.Since(begin), p.Stats().SendErrorDrops; took < time.Duration(drops-1)*failurePause {
		t.Errorf("%d failed in %v", drops, took)
	}
	p.Close()
	checkBalance(t, p.Stats(), true)
}

// The mark of a restart comes before batch 0 and as the last message, and has
// neither a number nor a place in the counts.
func TestRestartMark(t *testing.T) {
	o := localOptions(t)
	o.RestartMark, o.Topic = true, "kv"
	p, endpoint, result := startWaiting(t, withPatience(t), o, 1)
	s := newSubscriber(t, nil).connect(endpoint, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	mark := func() {
		t.Helper()
		topic, seq, payload := s.nextFrames()
		if string(topic) != "kv" || !slices.Equal(seq, wire.AppendSeq(nil, wire.EndSeq)) || len(payload) != 0 {
			t.Errorf("%q %x %x", topic, seq, payload)
		}
	}
	mark()
	s.nextClear(0)
	p.Close()
	s.nextClear(1)
	mark()
	if st := p.Stats(); st.PublishedBatches != 2 || st.NextSeq != 2 {
		t.Errorf("%+v", st)
	}
}

// Numbers that begin at a time are above all those of an earlier life, however
// soon it is restarted.
func TestFirstSeqTime(t *testing.T) {
	o := replayOptions(t)
	o.FirstSeq = FirstTime
	last := uint64(0)
	for range 2 {
		begin := uint64(time.Now().UnixMilli()) * seqPerMillisecond
		p := mustNew(t, o)
		mustStart(t, p)
		st := p.Stats()
		if st.FirstSeq < begin || st.FirstSeq%seqPerMillisecond != 0 || st.FirstSeq <= last && last != 0 {
			t.Errorf("begins at %d, want at least %d and above %d", st.FirstSeq, begin, last)
		}
		if err := p.Publish(chain(1, 1)); err != nil {
			t.Fatal(err)
		}
		mustFlush(t, p)
		p.Close()
		st = p.Stats()
		checkBalance(t, st, true)
		last = st.NextSeq - 1
		if last != st.FirstSeq+2 {
			t.Errorf("%+v", st)
		}
		// The next life begins in a later millisecond.
		eventually(t, "the next millisecond", func() bool { return uint64(time.Now().UnixMilli())*seqPerMillisecond > last })
	}
}

// A lookup is no event: what only matches and releases sends nothing, and a
// clear is told once.
func TestNothingWithoutFacts(t *testing.T) {
	o := localOptions(t)
	f := &fakeTransport{}
	p, src := attached(t, o, f)
	for range 3 {
		src.flush()
		mustFlush(t, p)
	}
	if got := f.numbers(); !slices.Equal(got, []uint64{0}) {
		t.Errorf("sent %v", got)
	}
	src.record(&event.AllBlocksCleared{}, chain(1, 1))
	mustFlush(t, p)
	if got := f.numbers(); !slices.Equal(got, []uint64{0, 1, 2}) {
		t.Errorf("sent %v", got)
	}
}
