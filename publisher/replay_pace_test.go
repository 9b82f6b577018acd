// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// paced runs the server for a time of its own clock, in which each peer is given
// room for one message in each of its intervals.
func paced(s *replayServer, f *fakeReplaySocket, d time.Duration, every map[string]time.Duration) {
	next := make(map[string]time.Time)
	for id, interval := range every {
		next[id] = f.clock.Add(interval)
	}
	for end := f.clock.Add(d); f.clock.Before(end); {
		for id, interval := range every {
			if !f.clock.Before(next[id]) {
				f.room[id] = 1
				next[id] = next[id].Add(interval)
			}
		}
		if n := len(f.waits); n > 0 && f.waits[n-1] < 0 {
			return // nothing is left to do
		}
		s.round()
	}
}

// occupy fills all places with peers of one pace, over connections that are
// open.
func occupy(t *testing.T, s *replayServer, f *fakeReplaySocket, interval time.Duration) map[string]time.Duration {
	t.Helper()
	every := make(map[string]time.Duration)
	for i := range maxReplays {
		id := fmt.Sprintf("peer%02d", i)
		f.room[id], every[id] = 0, interval
		f.request(id, 0, ownConnection(t))
	}
	s.round()
	if len(s.active) != maxReplays {
		t.Fatalf("%d active", len(s.active))
	}
	return every
}

// Peers that take a message before each time-out and no more keep their places only while
// nobody waits for one; then as many go as are needed.
func TestReplayPlacesOfIdlersAreFreed(t *testing.T) {
	s, f := newFakeServer(t, nil, 1000)
	every := occupy(t, s, f, 14*time.Second) // paced may begin in the middle
	paced(s, f, 10*time.Minute, every)
	if n := s.counters.aborted.Load(); n != 0 || len(f.cuts) != 0 {
		t.Fatalf("%d aborted while nobody waited", n)
	}
	// A peer's second request waits for its first and takes nobody's place.
	f.request("peer03", 5, s.active[3].from)
	paced(s, f, time.Minute, every)
	if n := s.counters.aborted.Load(); n != 0 {
		t.Fatalf("%d aborted for a second request", n)
	}
	begin := f.clock
	for i := range 3 {
		f.request(fmt.Sprint("honest", i), 990, ownConnection(t))
	}
	for range 100 {
		s.round()
	}
	for i := range 3 {
		wantRun(t, f.received(fmt.Sprint("honest", i)), 990, 999)
	}
	if took := f.clock.Sub(begin); took > time.Second {
		t.Errorf("waited for %v", took)
	}
	if n := s.counters.aborted.Load(); n < 1 || n > 3 || len(f.cuts) != int(n) {
		t.Errorf("%d aborted, %d cut", n, len(f.cuts))
	}
}

// If the places were taken just now, a request waits for two windows at most.
func TestReplayRequestWaitsForTwoWindows(t *testing.T) {
	s, f := newFakeServer(t, nil, 1000)
	every := occupy(t, s, f, 29*time.Second)
	for id := range every {
		f.room[id] = 70 // what buffers take
	}
	f.request("honest", 990, ownConnection(t))
	paced(s, f, 2*paceWindow+time.Second, every)
	wantRun(t, f.received("honest"), 990, 999)
}

// Readers that are slow but read keep their places, whoever waits.
func TestReplaySlowReadersAreServed(t *testing.T) {
	for name, c := range map[string]struct {
		interval time.Duration
		batch, n int
	}{
		// 1 ms for each of the four frames of a message, and ten frames a second: for
		// longer than a window.
		"1 ms per frame":      {4 * time.Millisecond, 100, 10000},
		"ten frames a second": {400 * time.Millisecond, 100, 500},
		"64 KB/s":             {16 * time.Second, 1 << 20, 20},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := newFakeServer(t, nil, 0)
			n := c.n
			if testing.Short() {
				n = min(n, 1000)
			}
			payload := pattern(1, c.batch)
			for seq := range uint64(n) {
				s.ring.push(seq, payload)
			}
			every := occupy(t, s, f, c.interval)
			f.request("waits", uint64(n-1), ownConnection(t))
			paced(s, f, time.Duration(n+10)*(c.interval+maxPause), every)
			if n := s.counters.aborted.Load(); n != 0 {
				t.Errorf("%d aborted", n)
			}
			for id := range every {
				wantRun(t, f.received(id), 0, uint64(n-1))
				break
			}
			wantRun(t, f.received("waits"), uint64(n-1), uint64(n-1))
		})
	}
}

// A peer gets its next message when little is under way to it, whatever room its
// queue has, over all that it asks for; what arrives is progress.
func TestReplayWaitsForWhatIsUnderWay(t *testing.T) {
	s, f := newFakeServer(t, nil, 0)
	const batch, overhead = 300 << 10, 100
	for seq := range uint64(10) {
		s.ring.push(seq, pattern(seq, batch))
	}
	from := ownConnection(t)
	f.arrived = map[connection]uint64{from: 1000} // a handshake
	f.request("a", 7, from)
	for range 30 {
		s.round()
	}
	wantRun(t, f.received("a"), 7, 9) // it fits, but stays under way
	f.sent = nil
	f.request("a", 0, from)
	for range 30 {
		s.round()
	}
	if got := f.received("a"); len(got) != 1 {
		t.Fatalf("sent %v while three were under way", got)
	}
	for range 5 { // for longer than a stall
		end := f.clock.Add(20 * time.Second)
		f.arrived[from] += 10000
		for f.clock.Before(end) {
			s.round()
		}
	}
	if n := s.counters.aborted.Load(); n != 0 || len(f.received("a")) != 1 {
		t.Fatalf("%d aborted, sent %v", n, f.received("a"))
	}
	for range 9 {
		f.arrived[from] += batch + overhead
		for range 30 {
			s.round()
		}
	}
	f.arrived[from] += 4 * batch
	idle(t, s, f)
	wantRun(t, f.received("a"), 0, 9)
	// Those that have ended are forgotten.
	s.pruneAt = 1
	other := ownConnection(t)
	s.handed[connection{-1, 1}] = handedOver{bytes: 1}
	f.arrived[other] = 0
	f.request("b", 9, other)
	idle(t, s, f)
	if _, kept := s.handed[from]; len(s.handed) != 2 || !kept {
		t.Errorf("remembered: %v", s.handed)
	}
}

// Where it is only known what the system still has for a peer, an empty buffer is
// believed after a moment, and what changes in it is progress.
func TestReplayWaitsForWhatIsUnread(t *testing.T) {
	s, f := newFakeServer(t, nil, 0)
	const batch = 300 << 10
	for seq := range uint64(10) {
		s.ring.push(seq, pattern(seq, batch))
	}
	from := ownConnection(t)
	f.left = map[connection]int{from: 0}
	f.request("a", 0, from)
	for range 5 { // at once: ZeroMQ may have all of it
		s.round()
	}
	if got := f.received("a"); len(got) != 4 {
		t.Fatalf("sent %v before anything can have been read", got)
	}
	f.left[from] = 200 << 10
	for range 5 { // for longer than a stall, as long as it reads a little
		end := f.clock.Add(20 * time.Second)
		f.left[from]--
		for f.clock.Before(end) {
			s.round()
		}
	}
	if got := f.received("a"); len(got) != 4 || s.counters.aborted.Load() != 0 {
		t.Fatalf("sent %v, %d aborted", got, s.counters.aborted.Load())
	}
	f.left[from] = 0
	idle(t, s, f)
	wantRun(t, f.received("a"), 0, 9)
	// Who reads nothing at all is cut off.
	f.request("b", 0, from)
	for range 20 {
		s.round()
		f.left[from] = 1
	}
	idle(t, s, f)
	if s.counters.aborted.Load() != 1 || len(f.cuts) != 1 || f.cuts[0] != from {
		t.Errorf("%d aborted, %v cut", s.counters.aborted.Load(), f.cuts)
	}
}

// Peers that ask often and read nothing do not fill the memory, nor do they keep
// what they were given for ever.
func TestReplayQueuesAreBounded(t *testing.T) {
	t.Run("tcp", func(t *testing.T) {
		replayQueuesAreBounded(t, replayOptions(t), func(p *Publisher) func(uint64) {
			r := newRawReplayPeer(t, p.ReplayEndpoint(), "")
			r.SetReadBuffer(64 << 10)
			return func(start uint64) { r.ask(t, start) }
		})
	})
	t.Run("ipc", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("the system does not tell what is unread")
		}
		o := replayOptions(t)
		o.ReplayEndpoint = "ipc://" + filepath.Join(t.TempDir(), "r")
		replayQueuesAreBounded(t, o, func(p *Publisher) func(uint64) {
			return newDealer(t, p.ReplayEndpoint()).ask // whose queue holds little
		})
	})
}

func replayQueuesAreBounded(t *testing.T, o Options, peer func(*Publisher) func(start uint64)) {
	p := mustNew(t, o)
	mustStart(t, p)
	const blocks, batches, peers = 8000, 60, 10
	for i := range uint64(batches) {
		if err := p.Publish(chain(i<<32, blocks)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	_, kept := p.ring.size()
	size := kept / batches
	for range peers {
		ask := peer(p)
		for range 10 {
			ask(batches - 30)
		}
	}
	eventually(t, "requests", func() bool { return p.Stats().ReplayRequests == 10*peers })
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(1)
	wantNumbers(t, c.numbers(), 1, batches)
	handed := int64(p.Stats().ReplayBatches-batches) * size
	// What has arrived in the buffers of the peers is not in our memory.
	if most := int64(peers) * (2*maxUnacked + size); handed > most {
		t.Errorf("%d bytes handed over, want at most %d", handed, most)
	}
	t.Logf("%d bytes handed over to %d peers, batches of %d", handed, peers, size)
}
