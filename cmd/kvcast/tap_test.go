// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// acceptTap takes a connection of tap and lets it know a publisher.
func acceptTap(t *testing.T, listener *net.TCPListener) net.Conn {
	t.Helper()
	listener.SetDeadline(time.Now().Add(time.Minute))
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peer.SetDeadline(time.Now().Add(time.Minute))
	greeting := "\xff" + strings.Repeat("\x00", 8) + "\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	if _, err := io.WriteString(peer, greeting+"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"); err != nil {
		t.Fatal(err)
	}
	// What it sends: as much, and a subscription.
	if _, err := io.ReadFull(peer, make([]byte, 64+2+25+3)); err != nil {
		t.Fatal(err)
	}
	return peer
}

// Where there is no descriptor for a new connection tap says so once, and goes on when
// there is one again.
func TestTapWithoutDescriptors(t *testing.T) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	in, out := io.Pipe()
	defer in.Close()
	result := make(chan error, 1)
	go func() {
		err := tap(t.Context(), tapOptions{endpoint: "tcp://" + listener.Addr().String(), maxBatches: 1}, streams{out: out, err: io.Discard})
		out.CloseWithError(err)
		result <- err
	}()
	peer := acceptTap(t, listener)
	lines := bufio.NewScanner(in)

	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), " connect  failed: ") || !strings.HasSuffix(lines.Text(), "too many open files") {
		t.Fatalf("got %q, %v", lines.Text(), lines.Err())
	}
	// Two more attempts take as long at most.
	time.Sleep(2 * time.Second)
	restore()

	peer = acceptTap(t, listener)
	defer peer.Close()
	if _, err := io.WriteString(peer, "\x01\x00\x01\x08"+strings.Repeat("\x00", 8)+"\x00\x0c\x93\xcb"+strings.Repeat("\x00", 8)+"\x90\xc0"); err != nil {
		t.Fatal(err)
	}
	rest := ""
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	if err := <-result; err != nil || lines.Err() != nil || strings.Contains(rest, "failed") || !strings.Contains(rest, "total  1 batches") {
		t.Errorf("got %v, %q", err, rest)
	}
}
