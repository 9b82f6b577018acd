// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// loopBatches and loopWaiting are small, so that short inputs reach the ends of
	// ring and waiting list; loopPeers is more than the places of running answers.
	loopBatches = 6
	loopWaiting = 3
	loopPeers   = maxReplays + 8
	loopTopic   = "t"
)

// loopAnswer is an answer under way as a reader must see it: the numbers next to last,
// then the end.
type loopAnswer struct {
	of         *replay
	from       connection
	next, last uint64
	empty      bool
}

// loopModel follows a replay server by what section 10 of the wire contract promises.
type loopModel struct {
	t *testing.T
	s *replayServer
	f *fakeReplaySocket
	// What was fed and not read yet; nil is a malformed request.
	fed []*request
	// The batches that a new answer can draw on: oldest to newest, unless none.
	oldest, newest uint64
	none           bool
	numbers        uint64 // of batches so far, lost ones among them
	// asked is the last request read of an identity, open its answer.
	asked map[string]request
	open  map[string]*loopAnswer

	requests, malformed, batches, ends, truncated uint64
	sent, waits                                   int
}

func (m *loopModel) publish() {
	m.s.ring.push(m.numbers, pattern(m.numbers, 100))
	if m.none || m.numbers != m.newest+1 {
		m.oldest = m.numbers // a hole empties the ring
	}
	m.newest, m.none = m.numbers, false
	if m.newest-m.oldest >= loopBatches {
		m.oldest = m.newest - loopBatches + 1
	}
	m.numbers++
}

func (m *loopModel) feed(r *request, frames [][]byte, from connection) {
	m.fed = append(m.fed, r)
	m.f.in = append(m.f.in, fakeRequest{frames, from})
}

// answer is what a request gets if its answer begins now.
func (m *loopModel) answer(r request) (a *loopAnswer, truncated bool) {
	a = &loopAnswer{from: r.from, next: r.start, last: m.newest}
	switch {
	case m.none || r.start > m.newest:
		a.empty = true
	case r.start < m.oldest:
		truncated = true
		a.next, a.empty = m.oldest, m.s.policy == TruncatedEmpty
	}
	return a, truncated
}

// read notes the requests that a round has taken in.
func (m *loopModel) read(n int) {
	if n > maxRequestReads {
		m.t.Fatalf("%d requests read in one round", n)
	}
	for _, r := range m.fed[:n] {
		if r == nil {
			m.malformed++
			continue
		}
		m.requests++
		id := string(r.identity)
		m.asked[id] = *r
		// Nothing of an old answer may go to whoever has its identity now.
		if a := m.open[id]; a != nil && a.from != r.from {
			delete(m.open, id)
		}
	}
	m.fed = m.fed[n:]
}

// take checks one message against the answer that it belongs to.
func (m *loopModel) take(sent fakeSent) {
	id := sent.identity
	a := m.open[id]
	fits := func() bool {
		return a != nil && (sent.seq == wire.EndSeq && a.empty || !a.empty && sent.seq == a.next)
	}
	if !fits() {
		// The first one of an answer that has begun in this round, in the place of one
		// that was given up perhaps.
		begun := m.open[id] == nil || !slices.Contains(m.s.active, a.of)
		r, ok := m.asked[id]
		if !begun || !ok {
			m.t.Fatalf("%q gets %d in the middle of %+v", id, sent.seq, a)
		}
		var truncated bool
		if a, truncated = m.answer(r); truncated {
			m.truncated++
		}
		if !fits() {
			m.t.Fatalf("%q asked from %d and gets %d first, want %+v (batches %d to %d, none %v)",
				id, r.start, sent.seq, *a, m.oldest, m.newest, m.none)
		}
		m.open[id] = a
	}
	want := [][]byte{nil, []byte(loopTopic), seqFrame(sent.seq), nil}
	if sent.seq == wire.EndSeq {
		want[1] = nil
		m.ends++
		delete(m.open, id)
	} else {
		want[3] = pattern(sent.seq, 100)
		m.batches++
		a.empty = a.next == a.last
		a.next++
	}
	if m.s.dialect == ReplayLegacy {
		want = slices.Delete(want, 1, 2)
	}
	if !slices.EqualFunc(sent.frames, want, bytes.Equal) {
		m.t.Fatalf("%q gets the frames %x, want %x", id, sent.frames, want)
	}
}

// round lets the server make one round and checks all that came of it.
func (m *loopModel) round() {
	reads := m.f.reads
	if !m.s.round() {
		m.t.Fatal("the server has ended")
	}
	m.read(m.f.reads - reads)
	got := map[string]bool{}
	for _, sent := range m.f.sent[m.sent:] {
		if got[sent.identity] {
			m.t.Fatalf("%q gets two messages in one round", sent.identity)
		}
		got[sent.identity] = true
		m.take(sent)
	}
	m.sent = len(m.f.sent)

	// Answers that have begun and whose peers took nothing yet; and those that were given up.
	running := map[string]bool{}
	for _, r := range m.s.active {
		id := string(r.identity)
		if running[id] {
			m.t.Fatalf("two answers for %q run at once", id)
		}
		running[id] = true
		a := m.open[id]
		if a != nil && a.of == nil {
			a.of = r
		}
		if a == nil || a.of != r {
			var truncated bool
			if a, truncated = m.answer(m.asked[id]); truncated {
				m.truncated++
			}
			a.of = r
			m.open[id] = a
		}
	}
	maps.DeleteFunc(m.open, func(id string, _ *loopAnswer) bool { return !running[id] })

	waiting := map[string]bool{}
	for _, r := range m.s.waiting.requests {
		waiting[string(r.identity)] = true
	}
	c := m.s.counters
	aborted := c.aborted.Load()
	switch {
	case len(m.s.active) > maxReplays || len(m.s.waiting.requests) > loopWaiting:
		m.t.Fatalf("%d answers run, %d requests wait", len(m.s.active), len(m.s.waiting.requests))
	case len(waiting) != len(m.s.waiting.requests):
		m.t.Fatal("an identity waits twice")
	case c.requests.Load() != m.requests || c.malformed.Load() != m.malformed || c.batches.Load() != m.batches:
		m.t.Fatalf("counted %d requests, %d malformed, %d batches; %d, %d, %d were there",
			c.requests.Load(), c.malformed.Load(), c.batches.Load(), m.requests, m.malformed, m.batches)
	case m.requests != m.ends+aborted+uint64(len(running)+len(waiting)):
		m.t.Fatalf("%d requests, %d answered, %d aborted, %d run, %d wait", m.requests, m.ends, aborted, len(running), len(waiting))
	// An answer that is given up in the round in which it begins shows nothing.
	case c.truncated.Load() < m.truncated || c.truncated.Load() > m.truncated+aborted:
		m.t.Fatalf("counted %d truncated, saw %d of them", c.truncated.Load(), m.truncated)
	}
	for _, wait := range m.f.waits[m.waits:] {
		if wait >= 0 && (wait == 0 || wait > maxPause) || wait < 0 && len(running) > 0 {
			m.t.Fatalf("waits %v, %d answers run", wait, len(running))
		}
	}
	m.waits = len(m.f.waits)
}

// Whatever peers ask, in whatever order, beside batches that come and are lost, with
// queues that fill and peers that go: each answer is the contiguous run that the ring had
// when it began, with its end and no other message; what cannot be kept is bounded and
// counted; and when peers read again, everybody who waits is served.
func FuzzReplayLoop(f *testing.F) {
	// By hand: all at once, a hole, a queue that is full for too long.
	f.Add([]byte{0, 2, 9, 0, 1, 0, 0, 0, 2, 3, 0, 0, 3, 9, 0, 6, 8})
	f.Add([]byte{1, 2, 9, 5, 1, 0, 0, 1, 0, 0, 6, 1, 7, 31, 6, 2, 3, 1, 0, 1, 0, 6, 1})
	f.Add([]byte{2, 2, 3, 3, 2, 3, 0, 1, 0, 0, 2, 0, 0, 1, 4, 1, 1, 6, 5, 4, 1, 6, 3})
	// More peers than there are places, none of which takes anything: all places are held
	// and the list is full. Some go, one is handed over, one is slow to begin, and the
	// rest gets nothing for too long.
	crowd := []byte{0, 2, 9}
	for peer := range byte(loopPeers) {
		crowd = append(crowd, 5, peer, 0, 0, peer, 200, peer%2)
		if peer%loopWaiting == loopWaiting-1 {
			crowd = append(crowd, 6, 0) // takes up those that wait
		}
	}
	crowd = append(crowd, 6, 7, 6, 7, 0, 3, 200, 2, 5, 1, 5, 5, 2, 5, 6, 7, 0, 23, 200, 0, 0, 22, 200, 0, 6, 7)
	crowd = append(crowd, 5, 4, 4, 6, 7, 7, 29, 6, 7, 7, 31, 6, 7, 6, 7)
	f.Add(crowd)
	random := rand.New(rand.NewPCG(3, 14))
	for range 60 {
		seed := make([]byte, 40+random.IntN(400))
		for i := range seed {
			seed[i] = byte(random.Uint32())
		}
		f.Add(seed)
	}
	malformed := slices.DeleteFunc(slices.Sorted(maps.Keys(requestForms)), func(name string) bool { return requestForms[name].ok })

	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 2000)]
		next := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		kind := next()
		s, socket := newFakeServer(t, func(o *Options) {
			o.BufferSteps, o.Topic = loopBatches, loopTopic
			o.ReplayDialect = []ReplayDialect{ReplayTopic, ReplayLegacy}[kind&1]
			o.TruncatedHistory = []TruncatedHistory{TruncatedSuffix, TruncatedEmpty, TruncatedSnapshot}[kind>>1%3]
		}, 0)
		s.waiting.max = loopWaiting
		m := &loopModel{t: t, s: s, f: socket, none: true, asked: map[string]request{}, open: map[string]*loopAnswer{}}
		connections := []connection{{}, ownConnection(t), ownConnection(t)}
		peer := func() string { return fmt.Sprintf("peer %d", next()%loopPeers) }
		for len(data) > 0 {
			switch next() % 8 {
			case 0, 1: // a request near what is there
				r := request{identity: []byte(peer()), start: uint64(int64(m.numbers) + int64(int8(next()))/8)}
				how := next()
				r.from = connections[how>>1%3]
				frames := [][]byte{r.identity, nil, seqFrame(r.start)}
				if how&1 == 1 {
					frames = slices.Delete(frames, 1, 2)
				}
				m.feed(&r, frames, r.from)
			case 2:
				for range 1 + next()%10 {
					m.publish()
				}
			case 3: // one is lost
				m.numbers++
			case 4:
				m.feed(nil, splitFrames(requestForms[malformed[next()%len(malformed)]].frames), connection{})
			case 5: // how much a peer takes, or that it has gone
				id, n := peer(), next()%6
				delete(socket.room, id)
				socket.gone[id] = n == 5
				if n < 4 {
					socket.room[id] = n
				}
			case 6:
				for range 1 + next()%8 {
					m.round()
				}
			case 7:
				socket.clock = socket.clock.Add(time.Duration(next()%64) * time.Second)
			}
		}
		// Everybody reads again.
		clear(socket.room)
		for range 1000 {
			if m.round(); len(m.fed)+len(s.active)+len(s.waiting.requests) == 0 {
				break
			}
		}
		if len(m.fed)+len(s.active)+len(s.waiting.requests) > 0 || len(m.open) > 0 || s.ring.pinned != 0 {
			t.Fatalf("at rest %d are unread, %d run, %d wait, %d answers have no end, %d bytes are pinned",
				len(m.fed), len(s.active), len(s.waiting.requests), len(m.open), s.ring.pinned)
		}
	})
}
