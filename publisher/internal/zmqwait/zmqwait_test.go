// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package zmqwait

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// pair returns two connected sockets of a context, which repeats what a signal
// interrupts as all of ours do.
func pair(t *testing.T) (ctx *zmq.Context, a, b *zmq.Socket) {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	var sockets [2]*zmq.Socket
	for i := range sockets {
		if sockets[i], err = ctx.NewSocket(zmq.PAIR); err != nil {
			t.Fatal(err)
		}
		sockets[i].SetLinger(0)
	}
	t.Cleanup(func() {
		sockets[0].Close()
		sockets[1].Close()
		ctx.Term()
	})
	if err := sockets[0].Bind("inproc://pair"); err != nil {
		t.Fatal(err)
	}
	if err := sockets[1].Connect("inproc://pair"); err != nil {
		t.Fatal(err)
	}
	return ctx, sockets[0], sockets[1]
}

// storm sends a signal to the calling thread, which must be locked, each
// millisecond until the test ends.
func storm(t *testing.T) {
	t.Helper()
	thread := unix.Gettid()
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				unix.Tgkill(unix.Getpid(), thread, syscall.SIGURG)
			}
		}
	}()
	t.Cleanup(func() {
		close(quit)
		<-ended
	})
}

// Signals neither stretch a wait nor make it spin or fail.
func TestReadUnderSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, a, _ := pair(t)
	storm(t)
	const wait = 200 * time.Millisecond
	begin := time.Now()
	if err := Read(wait, a); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < wait || took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// A message that is there, one that comes, and one to another socket end a wait.
func TestReadEnds(t *testing.T) {
	_, a, b := pair(t)
	_, other, _ := pair(t)
	send := func() {
		if _, err := b.Send("x", 0); err != nil {
			t.Error(err)
		}
	}
	send()
	for range 2 { // it has not been taken
		if err := Read(-1, other, a); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := a.Recv(zmq.DONTWAIT); err != nil || s != "x" {
		t.Fatalf("%q, %v", s, err)
	}
	if err := Read(0, a); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(10 * time.Millisecond) // most likely within the wait
		send()
	}()
	if err := Read(-1, a, other); err != nil {
		t.Fatal(err)
	}
	if s, err := a.Recv(zmq.DONTWAIT); err != nil || s != "x" {
		t.Errorf("%q, %v", s, err)
	}
}

// The end of the context ends a wait.
func TestReadAfterTerm(t *testing.T) {
	ctx, a, _ := pair(t)
	result := make(chan error)
	go func() { result <- Read(-1, a) }()
	go ctx.Term() // returns when the sockets are closed
	select {
	case err := <-result:
		if zmq.AsErrno(err) != zmq.ETERM {
			t.Errorf("got %v, want ETERM", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
}
