// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// lookEvery is how often at least it is looked whether a connection has ended: a look
	// costs as much as a message. Messages look too, lookShare times while a queue is
	// read once: ZeroMQ goes on with a connection that it has stopped reading when half
	// of the queue has been read.
	lookEvery = time.Millisecond
	lookShare = 4
)

// link is a socket that connects, with its monitor. libzmq 4.3.4 stops reading a
// connection when the queue is full. If the connection ends then, libzmq, when the
// queue has been read far enough, goes on with what it had got from it, up to 8 KiB, and
// if there is a ZMTP heartbeat in that, aborts the process, because it cannot be
// answered (assertion !_io_error). So it is looked at the connection before messages are
// read. An end in order counts like a reset when the system reports it alike, as it does
// of a local connection: a heartbeat may be in front of it just the same.
//
// Between a look and what libzmq does about the next message it may still happen: that is
// microseconds, more on a busy machine, instead of however long the reader was away.
type link struct {
	socket, monitor *zmq.Socket
	hwm             int
	// fd is the descriptor of the connection, -1 = there is none or it is not known.
	// hung is when it was first seen to have ended, zero = it is alive.
	// looked is when it was last looked, taken how many messages were read since.
	fd           int
	hung, looked time.Time
	taken        int
}

// received is a message as it came: its first frames, and how many it has.
type received struct {
	frames [wire.LiveFrames + 1][]byte
	n      int
}

// event returns what has happened to the connection next; false if nothing has.
func (l *link) event() (kind zmq.Event, value int, ok bool) {
	if l.monitor == nil {
		return 0, 0, false
	}
	kind, _, value, err := l.monitor.RecvEvent(zmq.DONTWAIT)
	if err != nil {
		return 0, 0, false
	}
	switch kind {
	case zmq.EVENT_CONNECTED:
		l.fd = value
	case zmq.EVENT_DISCONNECTED:
		l.fd, l.hung = -1, time.Time{}
	}
	return kind, value, true
}

// hungUp says that the connection has ended and ZeroMQ has not noticed: it does at once,
// unless it has stopped reading. Nothing must be read then but by drain. watch takes in
// all events.
func (l *link) hungUp(watch func()) bool {
	now := time.Now()
	if l.hung.IsZero() && now.Sub(l.looked) < lookEvery && l.taken < max(l.hwm/lookShare, 1) {
		return false
	}
	l.looked, l.taken = now, 0
	if l.fd < 0 {
		watch()
	}
	if l.fd < 0 || !ended(l.fd) {
		l.hung = time.Time{}
		return false
	}
	// It may have been noticed by now.
	if watch(); l.fd < 0 {
		return false
	}
	if l.hung.IsZero() {
		l.hung = now
	}
	return true
}

// drain takes the queue of a link that is to be closed. libzmq is told of messages that
// have been read in steps of half the bound of the queue; it has none from now on, so
// it is told nothing and does not go on with the connection.
func (l *link) drain() ([]received, error) {
	if err := l.socket.SetRcvhwm(0); err != nil {
		return nil, err
	}
	var queue []received
	// The bound of a queue is not sharp, but no queue is twice as long.
	for range 2*l.hwm + 1 {
		var m received
		if err := l.read(&m); err != nil {
			return queue, err
		}
		if m.n == 0 {
			break
		}
		queue = append(queue, m)
	}
	return queue, nil
}

// read reads one message; it has no frames if there is none. They are read one by one: a
// message may have very many, and they are there as a whole once the first one is. Those
// that do not fit are dropped.
func (l *link) read(m *received) error {
	n := 0
	for more := true; more; n++ {
		frame, err := l.socket.RecvBytes(zmq.DONTWAIT)
		if err != nil {
			if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
				return nil
			}
			return err
		}
		if n < len(m.frames) {
			m.frames[n] = frame
		}
		if more, err = l.socket.GetRcvmore(); err != nil {
			return err
		}
	}
	m.n = n
	l.taken++
	return nil
}

// close ends the connection. A second call does nothing.
func (l *link) close() (err error) {
	for _, s := range []**zmq.Socket{&l.monitor, &l.socket} {
		if *s == nil {
			continue
		}
		if closeErr := (*s).Close(); err == nil {
			err = closeErr
		}
		*s = nil
	}
	l.fd, l.hung = -1, time.Time{}
	return err
}

// ended says that a connection was reset or closed by the peer: what the system reports
// of it whether it is being read or not.
func ended(fd int) bool {
	list := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(list, 0)
	return err == nil && n > 0 && list[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
