// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/publisher/wire"
)

// limitFiles lets the process open files with numbers below most only, and returns how
// to undo that.
func limitFiles(t *testing.T, most uint64) (undo func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
	}
	set(unix.Rlimit{Cur: most, Max: old.Max})
	return func() { set(old) }
}

// A client that cannot connect again because the process has no descriptor left says so,
// not more than twice a second, hands out what it has, and goes on when there are some again.
func TestReconnectWithoutDescriptors(t *testing.T) {
	const batches = 50
	listener, endpoint := listen(t)
	c := connect(t, ClientOptions{Endpoint: endpoint, HWM: 10})
	peer := acceptZMTP(t, listener, "PUB")
	var flood []byte
	for i := range uint64(batches) {
		flood = append(wire.AppendSeq(append(flood, 1, 0, 1, 8), i), 0, 1, 'x')
	}
	if _, err := peer.Write(flood); err != nil {
		t.Fatal(err)
	}
	undo := limitFiles(t, 3)
	undone := false
	restore := func() {
		if !undone {
			undone = true
			undo()
		}
	}
	defer restore()
	peer.Close()
	next, failed, begin := uint64(0), 0, time.Now()
	for end := begin.Add(deadline); failed < 2; {
		m, err := c.Receive(10 * time.Millisecond)
		switch {
		case m != nil:
			if m.Seq != next {
				t.Fatalf("got %d, want %d", m.Seq, next)
			}
			next++
		case errors.Is(err, syscall.EMFILE):
			failed++
		case !errors.Is(err, ErrTimeout) || time.Now().After(end):
			t.Fatal(err)
		}
	}
	if next != batches {
		t.Errorf("%d messages, want %d", next, batches)
	}
	if took := time.Since(begin); took < reconnectMax {
		t.Errorf("failed twice within %v", took)
	}
	restore()

	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		peer := acceptZMTP(t, listener, "PUB")
		peer.Write(append(wire.AppendSeq([]byte{1, 0, 1, 8}, 7777), 0, 1, 'x'))
	}()
	for end := time.Now().Add(deadline); ; {
		m, err := c.Receive(10 * time.Millisecond)
		if err != nil && !errors.Is(err, ErrTimeout) && !errors.Is(err, syscall.EMFILE) || time.Now().After(end) {
			t.Fatal(err)
		}
		if m != nil && m.Seq == 7777 {
			break
		}
	}
	<-accepted
}
