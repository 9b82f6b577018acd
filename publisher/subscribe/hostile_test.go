// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// A publisher that fills a subscriber's queue and then resets the connection
// must not take the subscriber's process with it: libzmq 4.3.4 asserts that a
// connection whose input it has stopped never fails, the next time it has
// something to write, and a ZMTP heartbeat is something to write.
func TestHangUpInAFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 6 s")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := connect(t, ClientOptions{Endpoint: "tcp://" + listener.Addr().String(), HWM: 10})
	frame := append([]byte{0, 9}, "some text"...)
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(deadline))
	// Once: a subscriber whose queue is full notices the end only when it reads.
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peer.SetDeadline(time.Now().Add(deadline))
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	// One step at a time, as libzmq wants it. Its command is as long as ours.
	for _, step := range []string{string(greeting), "\x04" + string(rune(len(ready))) + ready} {
		if _, err := io.WriteString(peer, step); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(peer, make([]byte, len(step))); err != nil {
			t.Fatalf("handshake: %v", err)
		}
	}
	peer.Write(bytes.Repeat(frame, 5000))
	peer.(*net.TCPConn).SetLinger(0)
	peer.Close()
	// The crash came with the first heartbeat, after 5 s.
	time.Sleep(6 * time.Second)
	if _, err := c.Receive(time.Millisecond); err == nil {
		t.Error("a message of one frame was taken for a batch")
	}
}
