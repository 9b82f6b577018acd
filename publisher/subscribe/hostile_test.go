// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
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
			t.Fatal(err)
		}
		if _, err := io.ReadFull(peer, make([]byte, len(step))); err != nil {
			t.Fatalf("handshake: %v", err)
		}
	}
}

// A publisher that fills a subscriber's queue and then resets the connection
// must not take the subscriber's process with it: libzmq 4.3.4 asserts that a
// connection whose input it has stopped never fails, the next time it has
// something to write, and a ZMTP heartbeat is something to write.
func TestHangUpInAFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 6 s")
	}
	listener, endpoint := listen(t)
	c := connect(t, ClientOptions{Endpoint: endpoint, HWM: 10})
	frame := append([]byte{0, 9}, "some text"...)
	// Once: a subscriber whose queue is full notices the end only when it reads.
	peer := acceptZMTP(t, listener, "PUB")
	peer.Write(bytes.Repeat(frame, 5000))
	peer.SetLinger(0)
	peer.Close()
	// The crash came with the first heartbeat, after 5 s.
	time.Sleep(6 * time.Second)
	if _, err := c.Receive(time.Millisecond); err == nil {
		t.Error("a message of one frame was taken for a batch")
	}
}

// A publisher's own heartbeats are something to answer, too, when a subscriber reads on
// after the end: so it does not read what has come over such a connection, and makes
// another one.
func TestHangUpBehindHeartbeats(t *testing.T) {
	listener, endpoint := listen(t)
	c := connect(t, ClientOptions{Endpoint: endpoint, HWM: 10})
	message := func(seq uint64) []byte {
		return append(wire.AppendSeq([]byte{1, 0, 1, 8}, seq), 0, 1, 'x')
	}
	for life := range uint64(3) {
		accepted := make(chan *net.TCPConn, 1)
		go func() { accepted <- acceptZMTP(t, listener, "PUB") }()
		// Whoever reads comes to a new connection, and to what is sent over it; then
		// nobody reads for a while.
		var peer *net.TCPConn
		for end := time.Now().Add(deadline); ; {
			m, err := c.Receive(time.Millisecond)
			if err != nil && !errors.Is(err, ErrTimeout) || time.Now().After(end) {
				t.Fatalf("life %d: %v", life, err)
			}
			if m != nil && m.Seq == life {
				break
			}
			select {
			case peer = <-accepted:
				peer.Write(message(life))
			default:
			}
		}
		var flood []byte
		for i := range uint64(5000) {
			flood = append(flood, message(100+i)...)
			flood = append(flood, "\x04\x07\x04PING\x00\x00"...)
		}
		peer.Write(flood)
		// It has to be noticed that the connection was reset, by whom nobody tells.
		peer.SetLinger(0)
		peer.Close()
		time.Sleep(50 * time.Millisecond)
	}
	if c.opened < 3 {
		t.Error("the queue was never full")
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
