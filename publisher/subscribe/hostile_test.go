// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// listen returns a listener with a deadline and its endpoint.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(deadline))
	return listener, "tcp://" + listener.Addr().String()
}

// acceptZMTP takes a connection and shakes hands as a socket of some type. The
// peer's type must have as many letters.
func acceptZMTP(t *testing.T, listener net.Listener, socketType string) *net.TCPConn {
	t.Helper()
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	shakeHands(t, peer, socketType)
	return peer.(*net.TCPConn)
}

func shakeHands(t *testing.T, peer net.Conn, socketType string) {
	t.Helper()
	peer.SetDeadline(time.Now().Add(deadline))
	if err := greeted(peer, socketType); err != nil {
		t.Fatalf("handshake: %v", err)
	}
}

func greeted(peer net.Conn, socketType string) error {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(socketType))) + socketType
	if socketType == "ROUTER" {
		// Its peer, a DEALER, also sends an identity.
		ready += "\x08Identity\x00\x00\x00\x00"
	}
	// One step at a time, as libzmq wants it. Its command is as long as ours.
	for _, step := range []string{string(greeting), "\x04" + string(rune(len(ready))) + ready} {
		if _, err := io.WriteString(peer, step); err != nil {
			return err
		}
		if _, err := io.ReadFull(peer, make([]byte, len(step))); err != nil {
			return err
		}
	}
	return nil
}

// A connection that ends while the queue is full is noticed behind what it has brought: all
// that has arrived is handed out, in order, and then the next connection is read.
func TestHangUpInAFlood(t *testing.T) {
	const hwm, lives, batches = 10, 3, 500
	listener, endpoint := listen(t)
	c := connect(t, ClientOptions{Endpoint: endpoint, HWM: hwm})
	for life := range lives {
		peer := acceptZMTP(t, listener, "PUB")
		if _, err := io.ReadFull(peer, make([]byte, len("\x00\x01\x01"))); err != nil { // the subscription
			t.Fatal(err)
		}
		var flood []byte
		for i := range uint64(batches) {
			flood = wire.AppendSeq(append(flood, 1, 0, 1, 8), i)
			flood = append(append(flood, 0, 1, 'x'), ping...)
		}
		if _, err := peer.Write(flood); err != nil {
			t.Fatal(err)
		}
		peer.SetLinger(0)
		peer.Close()
		next := uint64(0)
		for end := time.Now().Add(deadline); next < batches; {
			m, err := c.Receive(time.Millisecond)
			if err != nil && !errors.Is(err, ErrTimeout) || time.Now().After(end) {
				t.Fatalf("life %d, behind %d: %v", life, next, err)
			}
			if m == nil {
				continue
			}
			if m.Seq != next || c.stale(m) {
				t.Fatalf("life %d: got %d, want %d", life, m.Seq, next)
			}
			next++
		}
	}
}

// The queue is bounded by messages and by bytes; a single message may be longer.
func TestQueueIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		o    ClientOptions
		size int
		want int
	}{
		"messages":   {ClientOptions{HWM: 7}, 10, 7},
		"bytes":      {ClientOptions{HWMBytes: 10000}, 2000, 5},
		"one longer": {ClientOptions{HWMBytes: 1000}, 5000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			pub, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
			c.o.Endpoint = endpoint
			client := connect(t, c.o)
			awaitSubscription(t, pub)
			const sent = 50
			for i := range uint64(sent) {
				send(t, pub, nil, wire.AppendSeq(nil, i), make([]byte, c.size))
			}
			waiting := func() int {
				client.inbox.mu.Lock()
				defer client.inbox.mu.Unlock()
				return client.inbox.state.left
			}
			for next := range uint64(sent) {
				for end := time.Now().Add(deadline); waiting() < min(c.want, sent-int(next)); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%d messages wait, want %d", waiting(), c.want)
					}
				}
				if n := waiting(); n > c.want {
					t.Fatalf("%d messages wait, want at most %d", n, c.want)
				}
				if m, err := client.Receive(deadline); err != nil || m.Seq != next {
					t.Fatalf("got %+v, %v, want %d", m, err, next)
				}
			}
		})
	}
}

// The same of a replay server: what had come is handed out, and live goes on.
func TestReplayHangsUpInAFlood(t *testing.T) {
	s := newFakeServer(t)
	listener, endpoint := listen(t)
	s.replay = endpoint
	f := s.follow(FollowerOptions{ReplayTimeout: 100 * time.Millisecond, ReplayAttempts: 2})
	idle(t, f)
	peer := acceptZMTP(t, listener, "ROUTER")
	if _, err := io.ReadFull(peer, make([]byte, len("\x01\x00\x00\x08")+8)); err != nil { // the request
		t.Fatal(err)
	}
	var flood []byte
	for i := range 5000 {
		flood = append(flood, 1, 0, 1, 0, 1, 8)
		flood = wire.AppendSeq(flood, uint64(i))
		flood = append(flood, 0, 1, 'x')
	}
	peer.Write(flood)
	peer.SetLinger(0)
	peer.Close()
	listener.Close()
	s.send("A", 5001)
	replayed := 0
	for end := time.Now().Add(deadline); ; {
		item, err := f.Next(10 * time.Millisecond)
		if err == nil && item.Kind == ItemBatch && item.Message.Seq == 5001 {
			break
		}
		if item.Replayed {
			replayed++
		}
		if err != nil && !errors.Is(err, ErrTimeout) || time.Now().After(end) {
			t.Fatalf("live does not go on: %v", err)
		}
	}
	if replayed < replayHWM {
		t.Errorf("%d batches of the answer", replayed)
	}
}
