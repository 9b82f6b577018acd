// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

// fakeServer is a publisher and replay server made of two sockets, which sends
// what the test tells it, in another life after restart.
type fakeServer struct {
	t            *testing.T
	pub, router  *zmq.Socket
	live, replay string // endpoints
	legacy       bool
	close        func()
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{t: t, live: "tcp://127.0.0.1:*", replay: "tcp://127.0.0.1:*"}
	s.start()
	t.Cleanup(func() { s.close() })
	return s
}

func (s *fakeServer) start() {
	s.t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		s.t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	open := func(kind zmq.Type, endpoint *string) *zmq.Socket {
		socket, err := ctx.NewSocket(kind)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, err := range []error{socket.SetLinger(0), socket.SetRcvtimeo(deadline), socket.SetSndtimeo(deadline),
			socket.SetSndhwm(100000), socket.Bind(*endpoint)} {
			if err != nil {
				s.t.Fatalf("%s: %v", *endpoint, err)
			}
		}
		if *endpoint, err = socket.GetLastEndpoint(); err != nil {
			s.t.Fatal(err)
		}
		return socket
	}
	s.pub, s.router = open(zmq.XPUB, &s.live), open(zmq.ROUTER, &s.replay)
	s.close = func() { s.pub.Close(); s.router.Close(); ctx.Term() }
}

// restart ends the life as a kill does and begins another on the same ports.
func (s *fakeServer) restart() {
	s.t.Helper()
	s.close()
	s.start()
}

// send sends a batch live.
func (s *fakeServer) send(life string, seq int) {
	s.t.Helper()
	send(s.t, s.pub, nil, wire.AppendSeq(nil, uint64(seq)), payload(life, seq))
}

func payload(life string, seq int) []byte { return fmt.Appendf(nil, "%s%d", life, seq) }

// request waits for a request and returns who made it and from where.
func (s *fakeServer) request() (peer []byte, start int) {
	s.t.Helper()
	frames, err := s.router.RecvMessageBytes(0)
	if err != nil {
		s.t.Fatalf("no request: %v", err)
	}
	if len(frames) != 3 || len(frames[1]) != 0 || len(frames[2]) != 8 {
		s.t.Fatalf("a request of the wrong shape: %q", frames)
	}
	return frames[0], int(binary.BigEndian.Uint64(frames[2]))
}

func (s *fakeServer) batch(peer []byte, seq uint64, payload []byte) {
	s.t.Helper()
	if s.legacy {
		send(s.t, s.router, peer, nil, wire.AppendSeq(nil, seq), payload)
		return
	}
	send(s.t, s.router, peer, nil, nil, wire.AppendSeq(nil, seq), payload)
}

// answer waits for a request from a number and answers with batches and an end.
func (s *fakeServer) answer(want int, life string, from, to int) {
	s.t.Helper()
	peer, start := s.request()
	if start != want {
		s.t.Fatalf("asked from %d, want %d", start, want)
	}
	for i := from; i <= to; i++ {
		s.batch(peer, uint64(i), payload(life, i))
	}
	s.batch(peer, wire.EndSeq, nil)
}

// follow connects and waits until the live subscription has arrived.
func (s *fakeServer) follow(o FollowerOptions) *Follower {
	s.t.Helper()
	o.Client.Endpoint, o.Replay = s.live, s.replay
	f, err := Follow(o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { f.Close() })
	// On a busy machine it would ask when a test does not expect it.
	f.tracker.settle = time.Hour
	awaitSubscription(s.t, s.pub)
	return f
}

// pump lets a follower work while the test acts, and stops when the test says.
type pump struct {
	items chan string
	quit  chan struct{}
	done  chan struct{}
	err   error
}

// pumped runs a follower in a goroutine of its own from now on.
func pumped(t *testing.T, f *Follower) *pump {
	p := &pump{items: make(chan string, 100000), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for {
			select {
			case <-p.quit:
				return
			default:
			}
			item, err := f.Next(10 * time.Millisecond)
			switch {
			case errors.Is(err, ErrTimeout):
			case errors.Is(err, ErrFrames):
				p.items <- "malformed"
			case err != nil:
				p.err = err
				return
			default:
				p.items <- describeItem(item)
			}
		}
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *pump) stop() {
	select {
	case <-p.quit:
	default:
		close(p.quit)
	}
	<-p.done
}

// want checks what is handed out next.
func (p *pump) want(t *testing.T, items ...string) {
	t.Helper()
	for i, want := range items {
		select {
		case got := <-p.items:
			if got != want {
				t.Fatalf("item %d: got %s, want %s", i, got, want)
			}
		case <-p.done:
			t.Fatalf("item %d: %v, want %s", i, p.err, want)
		case <-time.After(deadline):
			t.Fatalf("item %d: nothing, want %s", i, want)
		}
	}
}

// end stops the follower; nothing more must have been handed out.
func (p *pump) end(t *testing.T) {
	t.Helper()
	p.stop()
	select {
	case got := <-p.items:
		t.Fatalf("besides: %s", got)
	default:
	}
}

// Both dialects: a late joiner catches up, a gap is filled, live goes on.
func TestFollowerReplays(t *testing.T) {
	for name, legacy := range map[string]bool{"topic": false, "legacy": true} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.legacy = legacy
			f := s.follow(FollowerOptions{})
			p := pumped(t, f)
			s.answer(0, "A", 0, 2)
			p.want(t, "rA0", "rA1", "rA2")
			s.send("A", 3)
			s.answer(2, "A", 2, 3)
			p.want(t, "rA3")
			s.send("A", 4)
			p.want(t, "A4")
			s.send("A", 7)
			s.answer(4, "A", 4, 7)
			s.send("A", 8)
			p.want(t, "rA5", "rA6", "rA7", "A8")
			p.end(t)
			if got, want := f.Stats(), (FollowerStats{Requests: 3, Replayed: 7, Duplicates: 2}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if f.Busy() {
				t.Error("busy without work")
			}
			for range 2 {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := f.Next(deadline); !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		})
	}
}

// A publisher that was killed and began anew on the same ports: in all cases
// its first batches are read from the beginning.
func TestFollowerRestart(t *testing.T) {
	t.Run("behind the old number", func(t *testing.T) {
		s := newFakeServer(t)
		p := pumped(t, s.follow(FollowerOptions{}))
		s.answer(0, "A", 0, 5)
		p.want(t, "rA0", "rA1", "rA2", "rA3", "rA4", "rA5")
		s.restart()
		s.answer(5, "B", 0, -1)
		p.want(t, "reset:replaced")
		s.answer(0, "B", 0, 1)
		p.want(t, "rB0", "rB1")
		awaitSubscription(t, s.pub)
		s.send("B", 2)
		s.answer(1, "B", 1, 2)
		p.want(t, "rB2")
		s.send("B", 3)
		p.want(t, "B3")
		p.end(t)
	})
	t.Run("past the old number", func(t *testing.T) {
		s := newFakeServer(t)
		p := pumped(t, s.follow(FollowerOptions{}))
		s.answer(0, "A", 0, 1)
		p.want(t, "rA0", "rA1")
		s.restart()
		awaitSubscription(t, s.pub)
		s.send("B", 2) // exactly where the old life would go on
		s.answer(1, "B", 1, 2)
		p.want(t, "reset:replaced")
		s.answer(0, "B", 0, 2)
		p.want(t, "rB0", "rB1", "rB2")
		p.end(t)
	})
	t.Run("alone", func(t *testing.T) {
		pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
		f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		awaitSubscription(t, pub)
		p := pumped(t, f)
		for _, m := range []string{"A7", "A9", "C0", "B1"} {
			seq := uint64(m[1] - '0')
			send(t, pub, nil, wire.AppendSeq(nil, seq), []byte(m))
		}
		send(t, pub, nil, wire.AppendSeq(nil, wire.EndSeq), nil)
		send(t, pub, nil, wire.AppendSeq(nil, 0), []byte("D0"))
		p.want(t, "A7", "gap8+1", "A9", "reset:lower", "C0", "B1", "reset:mark", "D0")
		p.end(t)
	})
}

// A quiet publisher's last batches may have been sent between the answer and the
// arrival of the subscription; nothing live would tell.
func TestFollowerSettles(t *testing.T) {
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{})
	f.tracker.settle = settleTime
	p := pumped(t, f)
	s.answer(0, "A", 0, 1)
	s.answer(1, "A", 1, 2)
	p.want(t, "rA0", "rA1", "rA2")
	p.end(t)
}

// Another publisher's topics do not come in by way of a replay.
func TestFollowerTopic(t *testing.T) {
	s := newFakeServer(t)
	p := pumped(t, s.follow(FollowerOptions{Client: ClientOptions{Topic: "kv"}}))
	peer, _ := s.request()
	for i, topic := range []string{"kv@1", "other", "kv"} {
		send(t, s.router, peer, nil, []byte(topic), wire.AppendSeq(nil, uint64(i)), payload("A", i))
	}
	s.batch(peer, wire.EndSeq, nil)
	p.want(t, "rA0", "rA2")
	p.end(t)
}

// What comes from a replay server that means harm, or from none at all, is
// refused, and live goes on within the time-outs.
func TestFollowerHostileServer(t *testing.T) {
	end := wire.AppendSeq(nil, wire.EndSeq)
	for name, c := range map[string]struct {
		// act answers one request.
		act  func(s *fakeServer, peer []byte)
		want string // the failure
	}{
		"no answer":    {func(*fakeServer, []byte) {}, "no answer for 400ms"},
		"no end":       {func(s *fakeServer, p []byte) { s.batch(p, 0, payload("A", 0)) }, "no answer for 400ms"},
		"a huge frame": {func(s *fakeServer, p []byte) { s.batch(p, 0, make([]byte, 5000)) }, "frames may have 4000 bytes"},
		"backwards": {func(s *fakeServer, p []byte) {
			s.batch(p, 3, payload("A", 3))
			s.batch(p, 2, payload("A", 2))
		}, "asked from 3, got 2"},
		"end with a payload": {func(s *fakeServer, p []byte) { send(s.t, s.router, p, nil, nil, end, []byte("x")) },
			"an end mark with 1 bytes"},
		"two frames":      {func(s *fakeServer, p []byte) { send(s.t, s.router, p, nil, end) }, "2 frames"},
		"many frames":     {func(s *fakeServer, p []byte) { send(s.t, s.router, append([][]byte{p}, make([][]byte, 5000)...)...) }, "5000 frames"},
		"no delimiter":    {func(s *fakeServer, p []byte) { send(s.t, s.router, p, []byte("t"), end, nil) }, "the first of 1 bytes"},
		"a short number":  {func(s *fakeServer, p []byte) { send(s.t, s.router, p, nil, nil, end[:7], nil) }, "sequence frame of 7 bytes"},
		"number in place": {func(s *fakeServer, p []byte) { send(s.t, s.router, p, nil, []byte("topic"), nil, end) }, "sequence frame of 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			timeout := deadline
			if strings.HasPrefix(c.want, "no answer") {
				timeout = 400 * time.Millisecond // the request has to get there
			}
			f := s.follow(FollowerOptions{ReplayTimeout: timeout, ReplayAttempts: 2, Client: ClientOptions{MaxMessage: 4000}})
			s.send("A", 9)
			p := pumped(t, f)
			for range 2 {
				peer, _ := s.request()
				c.act(s, peer)
			}
			// Live goes on, whatever was taken from the answers.
			for live := false; !live; {
				select {
				case got := <-p.items:
					live = got == "A9"
				case <-p.done:
					t.Fatal(p.err)
				case <-time.After(deadline):
					t.Fatal("live is held up")
				}
			}
			s.send("A", 10)
			p.want(t, "A10")
			p.stop()
			if got := f.Stats(); got.Failed != 2 || !strings.Contains(got.LastFailure, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
		})
	}
}

// giveUpRequest lets a follower's request fail as a time-out does.
func giveUpRequest(t *testing.T, f *Follower) {
	t.Helper()
	if f.tracker.request == nil {
		t.Fatal("there is no request")
	}
	f.tracker.failed(time.Now(), "given up by the test")
}

// idle lets a follower work; there must be nothing to hand out.
func idle(t *testing.T, f *Follower) {
	t.Helper()
	if item, err := f.Next(time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Fatalf("got %v, %v", item, err)
	}
}

// An answer that was given up is not taken for the next one, even if it comes
// whole and late.
func TestFollowerStaleAnswer(t *testing.T) {
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{})
	idle(t, f)
	stale, _ := s.request()
	giveUpRequest(t, f)
	p := pumped(t, f)
	peer, _ := s.request()
	for i := range 3 {
		s.batch(stale, uint64(i), payload("X", i))
	}
	s.batch(stale, wire.EndSeq, nil)
	s.batch(peer, 0, payload("A", 0))
	s.batch(peer, wire.EndSeq, nil)
	p.want(t, "rA0")
	p.end(t)
}

// Gaps while nobody answers; once there is an answer the history is read anew.
func TestFollowerRebuilds(t *testing.T) {
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{ReplayAttempts: 1})
	s.send("A", 2)
	idle(t, f)
	s.request()
	giveUpRequest(t, f)
	p := pumped(t, f)
	p.want(t, "gap0+2", "A2")
	s.answer(0, "A", 0, 2)
	p.want(t, "reset:rebuilt", "rA0", "rA1", "rA2")
	s.send("A", 3)
	s.answer(2, "A", 2, 3)
	p.want(t, "rA3")
	s.send("A", 4)
	p.want(t, "A4")
	p.end(t)
}

// Live messages that mean harm.
func TestFollowerHostilePublisher(t *testing.T) {
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{MaxHeld: 10})
	p := pumped(t, f)
	s.answer(0, "A", 0, 0)
	p.want(t, "rA0")
	send(t, s.pub, nil, wire.AppendSeq(nil, wire.EndSeq), []byte("x")) // the end mark with a payload
	send(t, s.pub, []byte("two"), nil)
	s.send("A", 1)
	s.answer(0, "A", 0, 1)
	p.want(t, "malformed", "malformed", "rA1")
	// Numbers that run back, thousands of times, behind a request that nobody
	// answers yet: ten are kept.
	for i := range 5000 {
		s.send("A", 5000-i)
	}
	peer, start := s.request()
	if start != 1 {
		t.Fatalf("asked from %d", start)
	}
	s.batch(peer, 1, payload("A", 1))
	s.batch(peer, 2, payload("A", 2))
	p.want(t, "rA2")
	p.stop()
	if n := len(f.tracker.pending); n > 10 {
		t.Errorf("%d messages are held", n)
	}
}

// A flood that hands out nothing leaves the caller in time.
func TestFollowerKeepsTheWait(t *testing.T) {
	s := newFakeServer(t)
	f := s.follow(FollowerOptions{MaxHeld: 10})
	const sent = 5 * DefaultHWM
	for i := range sent {
		s.send("A", i)
	}
	if item, err := f.Next(time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Fatalf("got %v, %v", item, err)
	}
	if n := f.Stats().Overflows; n > sent/2 {
		t.Errorf("took in %d messages first", n)
	}
}

func TestFollowRefuses(t *testing.T) {
	const good = "tcp://127.0.0.1:5557"
	for want, o := range map[string]FollowerOptions{
		`subscribe: connect: bad endpoint: "nonsense": no scheme; want tcp:// or ipc://`:   {Client: ClientOptions{Endpoint: "nonsense"}, Replay: good},
		`subscribe: replay: bad endpoint: "tcp://h:0": the port must be 1 to 65535`:        {Client: ClientOptions{Endpoint: good}, Replay: "tcp://h:0"},
		`subscribe: replay: bad endpoint: "` + good + `": is the endpoint of what is live`: {Client: ClientOptions{Endpoint: good}, Replay: good},
		`subscribe: replay: bad endpoint: "tcp://A:05557": is the endpoint of what is live`: {
			Client: ClientOptions{Endpoint: "tcp://a:5557"}, Replay: "tcp://A:05557"},
		`subscribe: replay: bad endpoint: "ipc:///dev/../nobody": is the endpoint of what is live`: {
			Client: ClientOptions{Endpoint: "ipc:///nobody"}, Replay: "ipc:///dev/../nobody"},
	} {
		if _, err := Follow(o); !errors.Is(err, ErrEndpoint) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	_, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: good}, Replay: "ipc://" + longPath(200)})
	if !errors.Is(err, ErrEndpoint) || !strings.HasPrefix(err.Error(), "subscribe: replay: ") {
		t.Errorf("got %v, want ErrEndpoint", err)
	}
	// Nobody needs to be there, on either side.
	folder := t.TempDir()
	f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: "ipc://" + filepath.Join(folder, "l")},
		Replay: "ipc://" + filepath.Join(folder, "r"), ReplayTimeout: 20 * time.Millisecond, ReplayAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for end := time.Now().Add(deadline); f.Busy(); {
		if _, err := f.Next(10 * time.Millisecond); !errors.Is(err, ErrTimeout) || time.Now().After(end) {
			t.Fatalf("got %v, want ErrTimeout until it gives up", err)
		}
	}
}
