// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
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

// A client that needs another socket when the process has no descriptor left, or too
// few, says so, hands out what it has, and goes on when there are some again.
func TestRenewWithoutDescriptors(t *testing.T) {
	const hwm = 10
	for _, room := range []int{-1, 0, 1, 2} {
		name := fmt.Sprintf("room for %d", room)
		if room < 0 {
			name = "no room for long"
		}
		t.Run(name, func(t *testing.T) {
			listener, endpoint := listen(t)
			c := connect(t, ClientOptions{Endpoint: endpoint, HWM: hwm})
			peer := acceptZMTP(t, listener, "PUB")
			var flood []byte
			for i := range uint64(5000) {
				flood = append(wire.AppendSeq(append(flood, 1, 0, 1, 8), i), 0, 1, 'x')
			}
			peer.Write(flood)
			peer.SetLinger(0)
			peer.Close()
			end := time.Now().Add(deadline)
			for c.hung.IsZero() {
				if c.hungUp(c.watch); time.Now().After(end) {
					t.Fatal("no end of the connection")
				}
				time.Sleep(time.Millisecond)
			}
			c.hung = c.hung.Add(-hangUp) // ZeroMQ has had its time

			// The lowest numbers are taken: nothing that is closed makes room.
			most := uint64(3)
			if room >= 0 {
				most = 200
			}
			undo := limitFiles(t, most)
			undone := false
			var files []*os.File
			restore := func() {
				for _, f := range files {
					f.Close()
				}
				if undone {
					return
				}
				undone = true
				undo()
			}
			defer restore()
			for room >= 0 {
				f, err := os.Open(os.DevNull)
				if err != nil {
					break
				}
				files = append(files, f)
			}
			for range min(room, len(files)) {
				files[len(files)-1].Close()
				files = files[:len(files)-1]
			}
			messages, failed, begin := 0, 0, time.Now()
			for until := time.Now().Add(reconnectMax / 2); time.Now().Before(until); {
				m, err := c.Receive(10 * time.Millisecond)
				switch {
				case m != nil:
					if m.Seq != uint64(messages) {
						t.Fatalf("got %d, want %d", m.Seq, messages)
					}
					messages++
				case errors.Is(err, zmq.Errno(syscall.EMFILE)):
					failed++
				case !errors.Is(err, ErrTimeout):
					t.Fatal(err)
				}
				if (c.socket == nil) != (c.monitor == nil) {
					t.Fatal("half open")
				}
			}
			if messages < hwm {
				t.Errorf("%d messages, want %d", messages, hwm)
			}
			if most := 1 + int(time.Since(begin)/reconnectMax); room < 0 && (failed < 1 || failed > most || c.opened != 1+failed) {
				t.Errorf("failed %d times, opened %d times, want 1 to %d", failed, c.opened-1, most)
			}
			restore()

			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				peer := acceptZMTP(t, listener, "PUB")
				peer.Write(append(wire.AppendSeq([]byte{1, 0, 1, 8}, 7777), 0, 1, 'x'))
			}()
			for {
				m, err := c.Receive(10 * time.Millisecond)
				if err != nil && !errors.Is(err, ErrTimeout) && !errors.Is(err, zmq.Errno(syscall.EMFILE)) || time.Now().After(end) {
					t.Fatal(err)
				}
				if m != nil && m.Seq == 7777 {
					break
				}
			}
			<-accepted
		})
	}
}
