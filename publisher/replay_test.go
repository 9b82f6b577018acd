// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

// An answer has the frames of the live messages, in both dialects, however the
// request was put.
func TestReplayFrames(t *testing.T) {
	for _, dialect := range []ReplayDialect{ReplayTopic, ReplayLegacy} {
		t.Run(string(dialect), func(t *testing.T) {
			o := replayOptions(t)
			o.Topic, o.ReplayDialect, o.WaitSubscribers = "kv@pod@model", dialect, 1
			p, endpoint, result := startWaiting(t, withPatience(t), o, 1)
			s := newSubscriber(t, nil).connect(endpoint, "kv")
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			publishBatches(t, p, 3)
			var live [][3]string
			for range 4 {
				topic, seq, payload := s.nextFrames()
				live = append(live, [3]string{string(topic), string(seq), string(payload)})
			}
			check := func(what string, c *replayClient, delimiters int) {
				t.Helper()
				for i := 0; i <= len(live); i++ {
					want := make([]string, delimiters)
					switch {
					case i < len(live) && dialect == ReplayTopic:
						want = append(want, live[i][:]...)
					case i < len(live):
						want = append(want, live[i][1:]...)
					case dialect == ReplayTopic:
						want = append(want, "", strings.Repeat("\xff", 8), "")
					default:
						want = append(want, strings.Repeat("\xff", 8), "")
					}
					var got []string
					for _, f := range c.receive() {
						got = append(got, string(f))
					}
					if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
						t.Errorf("%s, message %d: %q, want %q", what, i, got, want)
					}
					if what == "REQ" {
						return // which reads one reply
					}
				}
			}
			c := newDealer(t, p.ReplayEndpoint())
			c.send("", seqFrame(0))
			check("DEALER", c, 1)
			c.send(seqFrame(0))
			check("DEALER without delimiter", c, 1)
			req := newReplayClient(t, nil, zmq.REQ, p.ReplayEndpoint(), "")
			req.send(seqFrame(0))
			check("REQ", req, 0)
			named := newReplayClient(t, nil, zmq.DEALER, p.ReplayEndpoint(), "a name")
			named.ask(0)
			check("DEALER with a name", named, 1)
			eventually(t, "four answers", func() bool { return p.Stats().ReplayBatches == 16 })
			if st := p.Stats(); st.ReplayRequests != 4 || st.ReplayTruncated+st.ReplayMalformed != 0 ||
				st.RingBatches != 4 || st.RingBytes != int64(st.PublishedBytes) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// What is no request gets no answer, is counted, and disturbs nobody.
func TestReplayMalformed(t *testing.T) {
	p := mustNew(t, replayOptions(t))
	mustStart(t, p)
	other := newDealer(t, p.ReplayEndpoint())
	n := uint64(0)
	for name, c := range requestForms {
		if c.ok || name == "one frame" { // which no peer can send
			continue
		}
		n++
		client := newDealer(t, p.ReplayEndpoint())
		var frames []any
		for _, f := range splitFrames(c.frames)[1:] {
			frames = append(frames, f)
		}
		client.send(frames...)
		eventually(t, name, func() bool { return p.Stats().ReplayMalformed == n })
		// The same peer is served, and it is its first message.
		client.ask(0)
		wantNumbers(t, client.numbers(), 0, 0)
		other.ask(0)
		wantNumbers(t, other.numbers(), 0, 0)
	}
	if st := p.Stats(); st.ReplayMalformed != n || st.ReplayRequests != 2*n || st.ReplayAborted != 0 {
		t.Errorf("%+v", st)
	}
}

// Where a run begins: at the number asked for, at the oldest, or nowhere.
func TestReplayHistory(t *testing.T) {
	for _, policy := range []TruncatedHistory{TruncatedSuffix, TruncatedEmpty} {
		t.Run(string(policy), func(t *testing.T) {
			o := replayOptions(t)
			o.BufferSteps, o.TruncatedHistory = 10, policy
			p := mustNew(t, o)
			mustStart(t, p)
			c := newDealer(t, p.ReplayEndpoint())
			c.ask(0)
			wantNumbers(t, c.numbers(), 0, 0) // the clear
			publishBatches(t, p, 9)
			c.ask(0)
			wantNumbers(t, c.numbers(), 0, 9)
			publishBatches(t, p, 1)
			c.ask(1)
			wantNumbers(t, c.numbers(), 1, 10)
			for _, start := range []uint64{11, 1 << 40, wire.EndSeq} {
				c.ask(start)
				if got := c.numbers(); len(got) != 0 {
					t.Errorf("from %d: %v", start, got)
				}
			}
			if st := p.Stats(); st.ReplayTruncated != 0 {
				t.Errorf("%+v", st)
			}
			c.ask(0)
			if got := c.numbers(); policy == TruncatedEmpty {
				if len(got) != 0 {
					t.Errorf("%v", got)
				}
			} else {
				wantNumbers(t, got, 1, 10)
			}
			if st := p.Stats(); st.ReplayTruncated != 1 || st.RingBatches != 10 || st.ReplayAborted != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// The bound by bytes, over a socket.
func TestReplayBytes(t *testing.T) {
	o := replayOptions(t)
	o.ReplayBufferBytes = 1000
	p := mustNew(t, o)
	mustStart(t, p)
	publishBatches(t, p, 100)
	st := p.Stats()
	if st.RingBytes > 1000 || st.RingBytes < 800 || st.RingBatches < 5 || st.RingBatches > 50 {
		t.Errorf("%+v", st)
	}
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	wantNumbers(t, c.numbers(), 101-uint64(st.RingBatches), 100)
	// One that is larger than all of it stays, alone.
	if err := p.Publish(chain(1, 500)); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	c.ask(0)
	wantNumbers(t, c.numbers(), 101, 101)
}

// A batch that was encoded can be replayed also if it could not be sent; one
// that never left the queue cannot, and a run starts behind it.
func TestReplayAfterLoss(t *testing.T) {
	o := replayOptions(t)
	o.Warn, o.MaxQueueSize, o.ClearOnClose = nil, 2, false
	p := mustNew(t, o)
	tr := &fakeTransport{gate: make(chan struct{}), inUse: make(chan struct{}, 1)}
	p.newTransport = func() transport { return tr }
	go func() { tr.gate <- struct{}{} }() // the clear
	mustStart(t, p)
	<-tr.inUse
	c := newDealer(t, p.ReplayEndpoint())
	tr.setFail(errors.New("broken"))
	for range 2 {
		if err := p.Publish(removal(1)); err != nil {
			t.Fatal(err)
		}
	}
	// Batch 1 is on its way into the socket, and in the ring before.
	<-tr.inUse
	c.ask(0)
	wantNumbers(t, c.numbers(), 0, 1)
	tr.gate <- struct{}{}
	<-tr.inUse
	tr.gate <- struct{}{}
	eventually(t, "two failures", func() bool { return p.Stats().SendErrorDrops == 2 })
	c.ask(0)
	wantNumbers(t, c.numbers(), 0, 2)
	if got := tr.numbers(); !equalNumbers(got, []uint64{0}) {
		t.Errorf("sent %v", got)
	}
	// 3 is with the socket, 4 and 5 wait, 6 is dropped.
	tr.setFail(nil)
	for seq := 3; seq <= 5; seq++ {
		if err := p.Publish(removal(1)); err != nil {
			t.Fatal(err)
		}
		if seq == 3 {
			<-tr.inUse
		}
	}
	if err := p.Publish(removal(1)); !errors.Is(err, ErrQueueFull) {
		t.Fatal(err)
	}
	close(tr.gate)
	if err := p.Flush(withPatience(t)); !errors.Is(err, ErrDropped) {
		t.Error(err)
	}
	c.ask(0)
	wantNumbers(t, c.numbers(), 0, 5)
	publishBatches(t, p, 2)
	c.ask(0)
	wantNumbers(t, c.numbers(), 7, 8)
	if st := p.Stats(); st.ReplayTruncated != 1 || st.QueueFullDrops != 1 {
		t.Errorf("%+v", st)
	}
}

// Start binds both endpoints or neither, and says which one it could not bind.
func TestStartBindsBothOrNeither(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	occupied := "tcp://" + taken.Addr().String()
	o := replayOptions(t)
	free := "ipc://" + filepath.Join(t.TempDir(), "live")
	for key, endpoints := range map[string][2]string{keyReplay: {free, occupied}, keyEndpoint: {occupied, free}} {
		o.Endpoint, o.ReplayEndpoint = endpoints[0], endpoints[1]
		p := mustNew(t, o)
		for range 2 {
			err := p.Start(withPatience(t))
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrAddressInUse) || e.Key != key || e.Value != occupied {
				t.Fatalf("%v", err)
			}
			if p.Endpoint() != "" || p.ReplayEndpoint() != "" || p.Stats().RingBatches != 0 {
				t.Errorf("%q %q", p.Endpoint(), p.ReplayEndpoint())
			}
			if _, err := os.Lstat(strings.TrimPrefix(free, "ipc://")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		}
	}
	// The same publisher can start once the endpoint is free.
	o.Endpoint, o.ReplayEndpoint = free, occupied
	p := mustNew(t, o)
	if err := p.Start(withPatience(t)); err == nil {
		t.Fatal("started")
	}
	taken.Close()
	eventually(t, "start", func() bool { return p.Start(context.Background()) == nil })
	if p.ReplayEndpoint() != occupied {
		t.Errorf("%q", p.ReplayEndpoint())
	}
}

// Every scheme, with the offset of the rank, and both ports free after Close.
func TestReplayEndpoints(t *testing.T) {
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctx.Term() })
	dir := t.TempDir()
	for name, c := range map[string]struct{ live, replay, want string }{
		"ipc":      {"tcp://127.0.0.1:0", "ipc://" + dir + "/replay", "ipc://" + dir + "/replay_dp1"},
		"inproc":   {"inproc://live", "inproc://replay", "inproc://replay_dp1"},
		"name":     {"tcp://127.0.0.1:0", "tcp://localhost:0", ""},
		"made up":  {"tcp://127.0.0.1:0", "ipc://*", ""},
		"mixed":    {"inproc://live", "tcp://127.0.0.1:0", ""},
		"abstract": {"tcp://127.0.0.1:0", "ipc://@kvcast-test-" + fmt.Sprint(os.Getpid()), ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := localOptions(t)
			o.Endpoint, o.ReplayEndpoint, o.Rank, o.Ranks = c.live, c.replay, 1, 2
			if name == "made up" {
				o.Rank, o.Ranks = 0, 1
			}
			var bound []string
			var p *Publisher
			o.OnBound = func(live string) { bound = append(bound, live, p.ReplayEndpoint()) }
			shared := strings.HasPrefix(c.live, "inproc")
			if shared {
				o.Context = ctx
			}
			for range 2 {
				p = mustNew(t, o)
				if got := p.ReplayEndpoint(); got != "" {
					t.Errorf("bound before Start: %s", got)
				}
				mustStart(t, p)
				at := p.ReplayEndpoint()
				if c.want != "" && at != c.want || len(bound) != 2 || bound[0] != p.Endpoint() || bound[1] != at {
					t.Errorf("bound %s, told %v", at, bound)
				}
				bound = nil
				client := newReplayClient(t, o.Context, zmq.DEALER, at, "")
				publishBatches(t, p, 2)
				client.ask(1)
				wantNumbers(t, client.numbers(), 1, 2)
				client.close()
				p.Close()
				if !shared && strings.HasPrefix(at, "tcp") {
					l, err := net.Listen("tcp", "127.0.0.1"+at[strings.LastIndexByte(at, ':'):])
					if err != nil {
						t.Errorf("port not free after Close: %v", err)
					} else {
						l.Close()
					}
				}
				if st := p.Stats(); st.RingBatches != 0 || st.RingBytes != 0 || st.ReplayBatches != 2 {
					t.Errorf("after Close: %+v", st)
				}
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// A replay endpoint that others can reach is warned about by itself.
func TestReplayExposedWarning(t *testing.T) {
	var mu sync.Mutex
	var warnings []string
	o := replayOptions(t)
	o.ReplayEndpoint = "tcp://*:0"
	o.Warn = func(m string) {
		mu.Lock()
		defer mu.Unlock()
		warnings = append(warnings, m)
	}
	p := mustNew(t, o)
	mustStart(t, p)
	mu.Lock()
	defer mu.Unlock()
	if len(warnings) != 1 || !strings.Contains(warnings[0], p.ReplayEndpoint()+" can be reached") {
		t.Errorf("%q", warnings)
	}
}

// Nothing is kept or bound without an endpoint, or by a null publisher.
func TestNoReplay(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"unset":       func(o *Options) { o.ReplayEndpoint = "" },
		"unset, off":  func(o *Options) { o.ReplayEndpoint, o.ReplayDialect = "", ReplayOff },
		"null":        func(o *Options) { o.Kind = KindNull },
		"null, ports": func(o *Options) { o.Kind, o.Endpoint, o.ReplayEndpoint = KindNull, "", "tcp://127.0.0.1:1" },
	} {
		t.Run(name, func(t *testing.T) {
			o := replayOptions(t)
			change(&o)
			p := mustNew(t, o)
			mustStart(t, p)
			publishBatches(t, p, 3)
			if st := p.Stats(); p.ReplayEndpoint() != "" || st.RingBatches != 0 || st.RingBytes != 0 || st.PublishedBatches != 4 {
				t.Errorf("%q %+v", p.ReplayEndpoint(), st)
			}
		})
	}
}

// Requests are answered while Start waits for subscribers, and Start can be
// given up then.
func TestReplayBeforeSubscribers(t *testing.T) {
	o := replayOptions(t)
	ctx, cancel := context.WithCancel(context.Background())
	p, _, result := startWaiting(t, ctx, o, 1)
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	if got := c.numbers(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if p.ReplayEndpoint() != "" || p.Stats().ReplayRequests != 0 {
		t.Errorf("%q %+v", p.ReplayEndpoint(), p.Stats())
	}
}

// A peer that comes back with its identity gets the answer to its own request,
// and the old answer is given up.
func TestReplayHandover(t *testing.T) {
	o := replayOptions(t)
	o.Warn = nil // the first connection is cut off
	p := startLarge(t, o)
	first := newReplayClient(t, nil, zmq.DEALER, p.ReplayEndpoint(), "one")
	first.ask(0)
	first.next() // under way, and far from its end
	second := newReplayClient(t, nil, zmq.DEALER, p.ReplayEndpoint(), "one")
	second.ask(1900)
	got := second.numbers()
	// Between the handover and the request some of the old answer may come.
	for len(got) > 0 && got[0] != 1900 {
		got = got[1:]
	}
	wantNumbers(t, got, 1900, 2000)
	eventually(t, "abort", func() bool { return p.Stats().ReplayAborted == 1 })
}

// Two requests over one connection are answered one after the other; a third one
// takes the place of the second.
func TestReplayOneAtATime(t *testing.T) {
	p := startLarge(t, replayOptions(t))
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	c.next()
	c.ask(5)
	c.ask(1990)
	eventually(t, "requests", func() bool { return p.Stats().ReplayRequests == 3 })
	wantNumbers(t, c.numbers(), 1, 2000)
	wantNumbers(t, c.numbers(), 1990, 2000)
	if st := p.Stats(); st.ReplayAborted != 1 {
		t.Errorf("%+v", st)
	}
}

// Close returns in time with a replay to a peer that takes nothing, and lets one
// finish that can.
func TestCloseDuringReplay(t *testing.T) {
	o := replayOptions(t)
	o.ShutdownTimeout = 2 * time.Second
	p := startLarge(t, o)
	dead := newRawReplayPeer(t, p.ReplayEndpoint(), "")
	dead.ask(t, 0)
	alive := newDealer(t, p.ReplayEndpoint())
	alive.ask(1)
	alive.next()
	closed := make(chan time.Duration)
	go func() {
		begin := time.Now()
		p.Close()
		closed <- time.Since(begin)
	}()
	wantNumbers(t, alive.numbers(), 2, 2000)
	if d := <-closed; d > o.ShutdownTimeout+closeGrace {
		t.Errorf("Close took %v", d)
	}
	if st := p.Stats(); st.ReplayAborted != 1 || st.ReplayRequests != 2 {
		t.Errorf("%+v", st)
	}
}

// The end of a shared context ends the server; Close returns as ever, and the
// context is free of us then.
func TestReplayContextTerminated(t *testing.T) {
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	o := replayOptions(t)
	o.Context, o.Warn, o.ClearOnClose = ctx, nil, false
	p := startLarge(t, o)
	stuck := newRawReplayPeer(t, p.ReplayEndpoint(), "")
	stuck.ask(t, 0)
	eventually(t, "replay", func() bool { return p.Stats().ReplayBatches > 0 })
	terminated := make(chan error, 1)
	go func() { terminated <- ctx.Term() }()
	eventually(t, "abort", func() bool { return p.Stats().ReplayAborted == 1 })
	p.Close()
	select {
	case err := <-terminated:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the context does not end")
	}
}
