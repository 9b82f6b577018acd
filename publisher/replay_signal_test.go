// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Signals more frequent than the pauses for a full peer do not keep the server
// from trying it again: they would if each one began the pause anew.
func TestReplayPausesEndUnderSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	socket, _, _, err := openReplaySocket(withPatience(t), mustNew(t, replayOptions(t)).settings, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.close(0)
	defer socket.wake()
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
	defer func() {
		close(quit)
		<-ended
	}()
	timer := time.AfterFunc(patience, func() { panic("the wait does not end") })
	defer timer.Stop()
	const wait = 20 * maxPause
	begin := time.Now()
	if err := socket.wait(wait); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took < wait {
		t.Errorf("waited only for %v", took)
	}
}
