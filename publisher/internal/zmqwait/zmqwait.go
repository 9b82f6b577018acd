// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package zmqwait

import (
	"math"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// Read returns when a message can be read from one of the sockets or, without
// an error, after d; a negative d is no limit. An error says that a socket is of
// no use any more, as after the end of its context. The caller owns the sockets.
//
// A wait inside ZeroMQ begins anew with each signal if the context is told to
// repeat what a signal interrupts, and fails if it is not. Signals may come more
// often than the wait is long: profilers send them, and so does the Go runtime.
func Read(d time.Duration, sockets ...*zmq.Socket) error {
	begin := time.Now()
	fds := make([]unix.PollFd, len(sockets))
	for i, s := range sockets {
		fd, err := s.GetFd()
		if err != nil {
			return err
		}
		fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	for {
		// The descriptor tells that something has happened, not that there is a
		// message, and not again what has been looked at.
		for _, s := range sockets {
			events, err := s.GetEvents()
			for err != nil && zmq.AsErrno(err) == zmq.Errno(syscall.EINTR) {
				events, err = s.GetEvents()
			}
			if err != nil {
				return err
			}
			if events&zmq.POLLIN != 0 {
				return nil
			}
		}
		timeout := -1
		if d >= 0 {
			left := d - time.Since(begin)
			if left <= 0 {
				return nil
			}
			// Rounded up: a wait that is over too early is a spin.
			timeout = int(min((left-1)/time.Millisecond+1, math.MaxInt32))
		}
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			return err
		}
	}
}
