// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// startLarge starts a publisher whose ring holds more than the buffers of a
// connection do.
func startLarge(t testing.TB, o Options) *Publisher {
	t.Helper()
	p := mustNew(t, o)
	mustStart(t, p)
	for range 2000 {
		if err := p.Publish(chain(1<<40, 500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	return p
}

// connections counts the open connections to an endpoint.
func connections(endpoint string) (n int) {
	ours := isConnectionTo(endpoint)
	for _, fd := range openDescriptors() {
		listens, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
		if err == nil && listens == 0 && ours(fd) {
			n++
		}
	}
	return n
}

// A reader that ends half-way takes its replay with it: nothing stays pinned, no
// descriptor and no goroutine is left, others go on.
func TestReplayReaderKilled(t *testing.T) {
	p := startLarge(t, replayOptions(t))
	other := newDealer(t, p.ReplayEndpoint())
	other.ask(0)
	other.next()
	before := connections(p.ReplayEndpoint())
	goroutines := runtime.NumGoroutine()
	const killed = 20
	for i := range uint64(killed) {
		r := newRawReplayPeer(t, p.ReplayEndpoint(), "")
		r.ask(t, 0)
		if _, err := r.Read(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		// It is under way, and full.
		eventually(t, "requests", func() bool { return p.Stats().ReplayRequests == i+2 })
		r.reset()
	}
	eventually(t, "aborts", func() bool { return p.Stats().ReplayAborted == killed })
	wantNumbers(t, other.numbers(), 1, 2000)
	eventually(t, "descriptors", func() bool { return connections(p.ReplayEndpoint()) == before })
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	for i := range uint64(3) { // the places are free
		other.ask(2000 - i)
		wantNumbers(t, other.numbers(), 2000-i, 2000)
	}
	if p.ring.pinned != 0 {
		t.Errorf("%d bytes pinned", p.ring.pinned)
	}
}

// A reader that keeps its connection but reads nothing is cut off after 30 s,
// which frees what ZeroMQ keeps for it.
func TestReplayReaderStuck(t *testing.T) {
	var warnings atomic.Int64
	o := replayOptions(t)
	p := mustNew(t, o)
	socket, bound, _, err := openReplaySocket(withPatience(t), p.settings, nil, func(string) { warnings.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	r := newRing(10000, 0)
	for seq := range uint64(2000) {
		r.push(seq, pattern(seq, 10000))
	}
	var later atomic.Int64 // what the clock is ahead
	counters := new(replayCounters)
	s := newReplayServer(p.settings, socket, r, counters)
	s.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	go s.serve()
	defer func() {
		now := s.now()
		s.end(now, now)
		<-s.done
	}()
	stuck := newRawReplayPeer(t, bound, "")
	stuck.ask(t, 0)
	sent, same := uint64(0), 0
	eventually(t, "a full connection", func() bool {
		if n := counters.batches.Load(); n == 0 || n != sent {
			sent, same = n, 0
		}
		same++
		return same > 50 // several tries
	})
	later.Store(int64(29 * time.Second))
	c := newDealer(t, bound)
	c.ask(1990)
	wantNumbers(t, c.numbers(), 1990, 1999)
	if n := counters.aborted.Load(); n != 0 {
		t.Errorf("%d aborted after 29 s", n)
	}
	later.Store(int64(31 * time.Second))
	eventually(t, "abort", func() bool { return counters.aborted.Load() == 1 })
	eventually(t, "cut", func() bool { return connections(bound) == 1 })
	if warnings.Load() != 1 {
		t.Errorf("%d warnings", warnings.Load())
	}
	c.ask(1990)
	wantNumbers(t, c.numbers(), 1990, 1999)
}

// Peers that send without end are cut off, whatever it is that they send, and
// others are served meanwhile.
func TestReplayFloods(t *testing.T) {
	request := rawFrames(string(seqFrame(0)))
	for name, block := range map[string][]byte{
		"requests":  slices.Repeat(request, 1000),
		"malformed": slices.Repeat(rawFrames("x"), 1000),
		"empty":     slices.Repeat(rawFrames(""), 1000),
		// Frames of a message that never ends do not come out of ZeroMQ.
		"unfinished":       slices.Repeat([]byte("\x01\x00"), 1000),
		"unfinished, long": slices.Repeat([]byte("\x01\xff"+strings.Repeat("x", 255)), 100),
	} {
		t.Run(name, func(t *testing.T) {
			o := replayOptions(t)
			var cuts atomic.Int64
			o.Warn = func(m string) {
				if !strings.Contains(m, "cut off") {
					t.Errorf("warning: %s", m)
				}
				cuts.Add(1)
			}
			p := mustNew(t, o)
			mustStart(t, p)
			publishBatches(t, p, 100)
			honest := newDealer(t, p.ReplayEndpoint())
			flooded := make(chan int, 3)
			for range cap(flooded) {
				hostile := newRawReplayPeer(t, p.ReplayEndpoint(), "")
				go func() {
					sent := 0
					for {
						n, err := hostile.Write(block)
						sent += n
						if err != nil || sent > 1<<30 {
							flooded <- sent
							return
						}
					}
				}()
			}
			for range 20 {
				honest.ask(50)
				wantNumbers(t, honest.numbers(), 50, 100)
			}
			for range cap(flooded) {
				if sent := <-flooded; sent > 256<<20 {
					t.Errorf("not cut off after %d bytes", sent)
				} else {
					t.Logf("cut off after %d bytes", sent)
				}
			}
			eventually(t, "connections", func() bool { return connections(p.ReplayEndpoint()) == 1 })
			if cuts.Load() == 0 {
				t.Error("no warning")
			}
		})
	}
}

// Connections that take an identity over, fill up, send and reset: ZeroMQ must
// not abort the process, and whoever asks afterwards is served. Heartbeats of
// peers are answered.
func TestReplaySurvivesHandovers(t *testing.T) {
	o := replayOptions(t)
	o.Warn = nil
	o.ZMTPHeartbeat = time.Millisecond
	p := startLarge(t, o)
	ping := "\x04\x07\x04PING\x00\x00"
	var last rawReplayPeer
	for i := range 100 {
		r := newRawReplayPeer(t, p.ReplayEndpoint(), "one")
		r.ask(t, 0)
		if i > 0 {
			// The connection before is being given up, with its queue full.
			fmt.Fprint(last, ping)
			last.Write(rawFrames("x", string(seqFrame(0))))
			fmt.Fprint(last, ping)
			last.reset()
		}
		last = r
	}
	last.reset()
	c := newReplayClient(t, nil, zmq.DEALER, p.ReplayEndpoint(), "one")
	c.ask(1990)
	got := c.numbers()
	for len(got) > 0 && got[0] != 1990 {
		got = got[1:]
	}
	wantNumbers(t, got, 1990, 2000)
	raw := newRawReplayPeer(t, p.ReplayEndpoint(), "")
	fmt.Fprint(raw, ping)
	answer := make([]byte, 7)
	if _, err := raw.Read(answer); err != nil || string(answer) != "\x04\x05\x04PONG" {
		t.Errorf("%q, %v", answer, err)
	}
}

// The meter by itself: a burst is let through, the rate holds on, silence is
// counted apart, and a connection is cut once.
func TestMeter(t *testing.T) {
	fd, _ := newSocketPair(t)
	inode, _ := socketInode(fd)
	c := connection{fd, inode}
	received := uint64(0)
	now := time.Unix(1e9, 0)
	cuts := 0
	fresh := func() *meter {
		received, cuts = 0, 0
		return &meter{allowance: requestAllowance(), ours: func(int) bool { return true }, cut: func() { cuts++ }, known: make(map[uint64]*usage),
			received: func(int) (uint64, bool) { return received, true }}
	}
	over := func(m *meter) bool { return m.known[inode].cut }

	m := fresh()
	received = meterBurst
	m.message(c, now)
	for range 100 {
		now = now.Add(time.Second)
		received += meterRate
		m.message(c, now)
	}
	if over(m) {
		t.Error("cut off at the rate that is allowed")
	}
	received += 100
	m.message(c, now)
	if !over(m) {
		t.Error("not cut off above it")
	}

	m = fresh()
	for range 1000 { // a pause does not give more than one burst
		now = now.Add(time.Hour)
		m.message(c, now)
	}
	received += meterBurst + 1
	m.message(c, now)
	if !over(m) {
		t.Error("not cut off for a burst after a pause")
	}

	m = fresh()
	m.message(c, now)
	for received < meterSilent {
		now = now.Add(time.Second)
		received += 1 << 10
		m.sweep([]int{fd, -1}, now)
	}
	if over(m) {
		t.Error("cut off too early for silence")
	}
	now = now.Add(time.Second)
	received += meterSilent / 10 // the rest of the allowance, and what was forgiven
	m.sweep([]int{fd}, now)
	if !over(m) {
		t.Error("not cut off for silence")
	}
	m.sweep(nil, now)
	if m.sweep(nil, now); len(m.known) != 0 {
		t.Errorf("%d connections remembered", len(m.known))
	}

	// A subscriber is silent for a year, but for heartbeats.
	m = fresh()
	m.allowance = subscriptionAllowance(time.Second, 0)
	received = 64 << 20 // peers counts those
	m.message(c, now)
	for range 365 * 24 {
		now = now.Add(time.Hour)
		received += 3600 * (9 + 7) // its own, and answers to ours
		m.sweep([]int{fd}, now)
	}
	if over(m) {
		t.Error("cut off for heartbeats")
	}
	m.message(connection{}, now) // inproc
	(*meter)(nil).message(c, now)
	(*meter)(nil).stop()
}
