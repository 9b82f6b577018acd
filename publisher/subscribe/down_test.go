// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// nobody is an endpoint at which there is nobody, so that a test can fill an inbox itself.
func nobody(t *testing.T) string { return "ipc://" + t.TempDir() + "/s" }

func putLive(t *testing.T, b *inbox, seq uint64) {
	t.Helper()
	m := received{n: wire.LiveFrames, connection: 1}
	m.frames[1], m.frames[2] = wire.AppendSeq(nil, seq), []byte{'x'}
	if !b.put(&m) {
		t.Fatal("no room")
	}
}

func giveUpOn(b *inbox, why error) {
	b.note(func(s *state) { s.down = &Error{"receive", why, ""} })
}

// That a publisher has been given up is told behind all that it has sent, also when both
// come between a look for messages and one for the end.
func TestDownBehindMessages(t *testing.T) {
	for _, why := range []error{ErrProtocol, ErrRefused} {
		c := connect(t, ClientOptions{Endpoint: nobody(t)})
		if m, err := c.poll(); m != nil || err != nil {
			t.Fatalf("got %+v, %v", m, err)
		}
		putLive(t, c.inbox, 7)
		giveUpOn(c.inbox, why)
		if err := c.idle(); !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v while a message waits", err)
		}
		if m, err := c.Receive(0); err != nil || m.Seq != 7 {
			t.Errorf("got %+v, %v", m, err)
		}
		if _, err := c.Receive(0); !errors.Is(err, why) {
			t.Errorf("got %v, want %v", err, why)
		}
	}
}

// A follower hands out what has come before it tells, though a request is under way.
func TestFollowerDownBehindMessages(t *testing.T) {
	for _, why := range []error{ErrProtocol, ErrRefused} {
		f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: nobody(t)}, Replay: nobody(t),
			ReplayTimeout: 20 * time.Millisecond, ReplayAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.client.inbox.note(func(s *state) { s.handshakes = 1 })
		for _, seq := range []uint64{5, 6, 7} {
			putLive(t, f.client.inbox, seq)
		}
		giveUpOn(f.client.inbox, why)
		next := uint64(5)
		for end := time.Now().Add(deadline); err == nil || errors.Is(err, ErrTimeout); {
			var item Item
			item, err = f.Next(0)
			if err == nil && item.Kind == ItemBatch {
				if item.Message.Seq != next {
					t.Errorf("got %d, want %d", item.Message.Seq, next)
				}
				next++
			}
			if time.Now().After(end) {
				t.Fatal("no error")
			}
		}
		if !errors.Is(err, why) || next != 8 {
			t.Errorf("got %v in front of %d", err, next)
		}
	}
}

// speak lets every peer that connects hear something, and reads what it says.
func speak(listener net.Listener, what string) {
	for {
		peer, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer peer.Close()
			io.WriteString(peer, what)
			io.Copy(io.Discard, peer)
		}()
	}
}

const (
	greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	publisherReady = "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
)

// Why a replay server can never answer is told at once, not as a time-out.
func TestReplayTellsWhy(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"PUB":           {greeting + publisherReady, `no ZMTP: a socket of type "PUB", want one of ["ROUTER" "REP" "DEALER"]`},
		"long type":     {greeting + "\x06\x00\x00\x00\x00\x00\x00\x10\x16\x05READY\x0bSocket-Type\x00\x00\x10\x00" + strings.Repeat("t", 4096), `a socket of type "tttttttttttttttttttt", want one of ["ROUTER" "REP" "DEALER"]`},
		"long frame":    {greeting + "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x02\x7f\x00\x00\x00\x00\x00\x00\x00", "no ZMTP: frames may have 33554432 bytes"},
		"HTTP":          {"HTTP/1.1 400 Bad Request\r\n\r\n", "no signature of ZMTP"},
		"CURVE":         {strings.Replace(greeting, "NULL\x00", "CURVE", 1), oneSided},
		"not let in":    {greeting + "\x04\x0a\x05ERROR\x03400", `refused by the publisher: it says "400"`},
		"no descriptor": {"", "too many open files"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, endpoint := listen(t)
			f, err := Follow(FollowerOptions{Client: ClientOptions{Endpoint: nobody(t)}, Replay: endpoint, ReplayTimeout: maxReplayTimeout})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if c.says == "" {
				// Instead of running out of them: another goroutine may need one.
				listener.Close()
				f.replayer.inbox.note(func(s *state) { s.trouble = &Error{"receive", syscall.EMFILE, ""} })
			} else {
				go speak(listener, c.says)
			}
			for end := time.Now().Add(deadline); f.Stats().Failed == 0; {
				if _, err := f.Next(10 * time.Millisecond); !errors.Is(err, ErrTimeout) || time.Now().After(end) {
					t.Fatal(err)
				}
			}
			if got := f.Stats().LastFailure; !strings.HasPrefix(got, "subscribe: replay: ") || !strings.HasSuffix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A refusal that may not last is none.
func TestRefusedForNow(t *testing.T) {
	listener, endpoint := listen(t)
	c := connect(t, ClientOptions{Endpoint: endpoint})
	for range 2 {
		peer, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(peer, greeting+"\x04\x0a\x05ERROR\x03300")
		defer peer.Close()
	}
	if _, err := c.Receive(0); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

// A publisher that is silent for longer than its heartbeat says is given up for gone.
func TestHeartbeatIsGoodForATime(t *testing.T) {
	listener, endpoint := listen(t)
	connect(t, ClientOptions{Endpoint: endpoint})
	for range 2 {
		peer := acceptZMTP(t, listener, "PUB")
		defer peer.Close()
		if _, err := io.WriteString(peer, "\x04\x07\x04PING\x00\x01"); err != nil {
			t.Fatal(err)
		}
	}
}
