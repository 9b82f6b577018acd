// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/publisher/wire"
)

// A publisher that ends in order before a slow subscriber has read costs it nothing of
// what waits: over ipc, where the system reports that like a reset, not its queue; over
// tcp, where it does not, nothing at all. Then there is a successor.
func TestOrderlyEndKeepsTheQueue(t *testing.T) {
	const hwm = 1000
	for name, c := range map[string]struct {
		ipc        bool
		sent, want int
	}{
		"tcp, a full queue": {false, hwm + 50, hwm + 50},
		"ipc, a full queue": {true, hwm + 50, hwm},
		"ipc, not full":     {true, hwm - 50, hwm - 50},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := "tcp://127.0.0.1:*"
			if c.ipc {
				endpoint = "ipc://" + filepath.Join(t.TempDir(), "live")
			}
			publish := func() (*zmq.Socket, func()) {
				ctx, err := zmq.NewContext()
				if err != nil {
					t.Fatal(err)
				}
				ctx.SetRetryAfterEINTR(true)
				pub, err := ctx.NewSocket(zmq.XPUB)
				if err != nil {
					t.Fatal(err)
				}
				for _, err := range []error{pub.SetLinger(deadline), pub.SetRcvtimeo(deadline),
					pub.SetSndhwm(2 * hwm), pub.Bind(endpoint)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				if endpoint, err = pub.GetLastEndpoint(); err != nil {
					t.Fatal(err)
				}
				return pub, func() { pub.Close(); ctx.Term() }
			}
			pub, end := publish()
			client := connect(t, ClientOptions{Endpoint: endpoint, HWM: hwm})
			awaitSubscription(t, pub)
			for i := range c.sent {
				send(t, pub, nil, wire.AppendSeq(nil, uint64(i)), []byte("x"))
			}
			client.watch()
			fd := client.fd
			end() // all is handed to the system
			for until := time.Now().Add(deadline); c.ipc && c.sent > hwm && !ended(fd); time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("no end of the connection")
				}
			}
			pub, end = publish()
			defer end()
			next := 0
			for until := time.Now().Add(deadline); ; {
				m, err := client.Receive(time.Millisecond)
				if err != nil && !errors.Is(err, ErrTimeout) || time.Now().After(until) {
					t.Fatalf("behind %d messages: %v", next, err)
				}
				if m != nil && string(m.Payload) == "successor" {
					break
				}
				if m != nil {
					if m.Seq != uint64(next) {
						t.Fatalf("got %d, want %d", m.Seq, next)
					}
					next++
				}
				if next >= c.want {
					send(t, pub, nil, wire.AppendSeq(nil, 0), []byte("successor"))
				}
			}
			if next < c.want {
				t.Errorf("%d messages, want %d", next, c.want)
			}
		})
	}
}

// A local publisher that ends in order with heartbeats behind what it has sent does not
// take the subscriber's process with it: not when that reads, and not when all that
// waits is of other topics, which libzmq drops as soon as it is asked whether there is
// something to read.
func TestOrderlyEndBehindHeartbeats(t *testing.T) {
	const hwm = 100
	for name, topic := range map[string]string{"what was asked for": "kv", "other topics": "ot"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "live")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			c := connect(t, ClientOptions{Endpoint: "ipc://" + path, Topic: "kv", HWM: hwm})
			peer, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			shakeHands(t, peer, "PUB")
			// Its subscription, so that nothing is left unread and the end is in order.
			subscription := []byte("\x00\x03\x01kv")
			if _, err := io.ReadFull(peer, make([]byte, len(subscription))); err != nil {
				t.Fatal(err)
			}
			var flood []byte
			for i := range uint64(2 * hwm) {
				flood = append(append(flood, 1, 2), topic...)
				flood = append(wire.AppendSeq(append(flood, 1, 8), i), 0, 1, 'x')
				if i >= hwm {
					flood = append(flood, "\x04\x07\x04PING\x00\x00"...)
				}
			}
			if _, err := peer.Write(flood); err != nil {
				t.Fatal(err)
			}
			peer.Close()
			end := time.Now().Add(deadline)
			for c.fd < 0 || !ended(c.fd) {
				if c.event(); time.Now().After(end) {
					t.Fatal("no end of the connection")
				}
				time.Sleep(time.Millisecond)
			}
			next := uint64(0)
			for c.opened == 1 || len(c.left) > 0 {
				m, err := c.Receive(10 * time.Millisecond)
				if err != nil && !errors.Is(err, ErrTimeout) || m != nil && m.Seq != next || time.Now().After(end) {
					t.Fatalf("got %+v, %v, want %d", m, err, next)
				}
				if m != nil {
					next++
				}
			}
			if topic == "kv" && next != hwm {
				t.Errorf("%d messages, want %d", next, hwm)
			}
		})
	}
}

// It is looked at the connection after a time and after some messages, whichever is
// first, and after each one if the queue has room for few.
func TestLinkLooks(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	unix.Close(pair[1])
	later := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		hwm, taken int
		looked     time.Time
		want       bool
	}{
		"a time ago":      {DefaultHWM, 0, time.Now().Add(-time.Second), true},
		"just now":        {DefaultHWM, DefaultHWM/4 - 1, later, false},
		"many messages":   {DefaultHWM, DefaultHWM / 4, later, true},
		"small, none":     {10, 1, later, false},
		"small, two":      {10, 2, later, true},
		"one, none":       {1, 0, later, false},
		"one, the second": {1, 1, later, true},
	} {
		l := link{hwm: c.hwm, fd: pair[0], looked: c.looked, taken: c.taken}
		if got := l.hungUp(func() {}); got != c.want {
			t.Errorf("%s: seen %t, want %t", name, got, c.want)
		}
		if c.want && l.taken != 0 {
			t.Errorf("%s: counts on from %d", name, l.taken)
		}
	}
}
