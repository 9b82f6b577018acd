// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// signalStorm sends a signal to the calling thread each millisecond until the
// test ends.
func signalStorm(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
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
		runtime.UnlockOSThread()
	})
}

// Signals that come more often than a wait is long do not make it endless, on a
// stream that is quiet and with a replay server that is silent.
func TestWaitsEndUnderSignals(t *testing.T) {
	const wait, most = 200 * time.Millisecond, 10 * time.Second
	for name, open := range map[string]func(t *testing.T) func() error{
		"client": func(t *testing.T) func() error {
			_, endpoint := newPublisher(t, "tcp://127.0.0.1:*")
			c := connect(t, ClientOptions{Endpoint: endpoint})
			return func() error { _, err := c.Receive(wait); return err }
		},
		"follower": func(t *testing.T) func() error {
			s := newFakeServer(t)
			f := s.follow(FollowerOptions{})
			return func() error { _, err := f.Next(wait); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			receive := open(t)
			signalStorm(t)
			// The thread that is shot at is the one that waits.
			timer := time.AfterFunc(most, func() { panic("waits for more than 10 s") })
			defer timer.Stop()
			begin := time.Now()
			if err := receive(); !errors.Is(err, ErrTimeout) {
				t.Errorf("got %v, want ErrTimeout", err)
			}
			if took := time.Since(begin); took < wait {
				t.Errorf("took only %v", took)
			}
		})
	}
}
