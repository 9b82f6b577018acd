// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/zmqwait"
)

const (
	// replayHWM is the number of messages that may wait for one peer. They stay
	// in memory until it reads them or its connection ends, so there are few; a
	// reader that keeps up empties half of them within the shortest pause.
	replayHWM = 64
	// Without heartbeats the system looks after connections: one whose other
	// side does not answer, or takes nothing of what waits for it, ends after
	// replayMaxUnacked, and so does one that is idle and silent for keepIdle and
	// keepCount probes.
	replayMaxUnacked = maxStall
	keepIdle         = 15
	keepInterval     = 5
	keepCount        = 3
)

// zmqReplaySocket is a ROUTER that binds. Its context is not that of the live
// socket, unless a shared one is given, so that the I/O thread of live batches
// has nothing to do with replays.
type zmqReplaySocket struct {
	ctx    *zmq.Context
	shared bool
	socket *zmq.Socket
	// waker is one end of a pair; the goroutine that calls wake uses it. wakened
	// is the other end.
	waker, wakened *zmq.Socket
	place          listener
	inproc         bool
	ours           func(fd int) bool
	meter          *meter // nil without TCP connections
	cuts           atomic.Uint64
	gate           *gate // nil without CURVE
	warn           func(string)
	now            func() time.Time
}

// openReplaySocket binds. It returns the endpoint in the form in which it was
// given, with the real port, and whether other machines can reach it. A failed
// one leaves nothing behind.
func openReplaySocket(ctx context.Context, s *settings, gate *gate, warn func(string)) (_ *zmqReplaySocket, bound string,
	exposed bool, err error) {
	t := &zmqReplaySocket{
		shared: s.Context != nil,
		place:  listener{key: keyReplay, at: s.replay, shared: s.Context != nil},
		inproc: s.replay.scheme == schemeInproc,
		gate:   gate,
		warn:   warn,
		now:    time.Now,
	}
	text, ipv6, exposed, err := t.place.resolve(ctx)
	if err != nil {
		return nil, "", false, err
	}
	if t.ctx, err = openContext(s.Context); err != nil {
		return nil, "", false, err
	}
	if err = t.gate.enter(t.ctx, t.shared); err == nil {
		err = t.openSockets(ipv6)
	}
	if err == nil {
		err = t.place.bind(ctx, t.socket, text)
	}
	if err == nil {
		bound, t.ours, err = t.place.bound(t.socket)
	}
	if err != nil {
		if t.waker != nil {
			t.waker.Close()
		}
		t.close(0)
		return nil, "", false, err
	}
	if t.place.at.scheme == schemeTCP {
		t.meter = newMeter(requestAllowance(), t.ours, t.wasCut)
	}
	return t, bound, exposed, nil
}

func (t *zmqReplaySocket) openSockets(ipv6 bool) (err error) {
	if t.socket, err = openSocket(t.ctx, zmq.ROUTER); err != nil {
		return err
	}
	s := t.socket
	if err = setOptions(append(t.gate.options(s), []socketOption{
		{"SNDHWM", func() error { return s.SetSndhwm(replayHWM) }},
		// As for live batches: a connection whose queue is full is not read, and
		// ZeroMQ 4.3.4 then aborts the process if its peer resets it and a
		// heartbeat is due (assertion !_io_error). The same can come of a handover,
		// after which a connection is not read any more either while it still has
		// something to send. So no queue is ever full (what comes is read between
		// all sends, and the meter bounds it), and there are no heartbeats: the
		// system's own means find dead peers.
		{"RCVHWM", func() error { return s.SetRcvhwm(0) }},
		{"HEARTBEAT_IVL", func() error { return s.SetHeartbeatIvl(0) }},
		{"TCP_KEEPALIVE", func() error { return s.SetTcpKeepalive(1) }},
		{"TCP_KEEPALIVE_IDLE", func() error { return s.SetTcpKeepaliveIdle(keepIdle) }},
		{"TCP_KEEPALIVE_INTVL", func() error { return s.SetTcpKeepaliveIntvl(keepInterval) }},
		{"TCP_KEEPALIVE_CNT", func() error { return s.SetTcpKeepaliveCnt(keepCount) }},
		{"TCP_MAXRT", func() error { return s.SetTcpMaxrt(replayMaxUnacked) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(maxPeerMessage) }},
		{"LINGER", func() error { return s.SetLinger(0) }},
		{"IPV6", func() error { return s.SetIpv6(ipv6) }},
		// An error instead of silence when a peer is gone or its queue is full.
		{"ROUTER_MANDATORY", func() error { return s.SetRouterMandatory(1) }},
		// A peer that comes back with its identity is served, not ignored.
		{"ROUTER_HANDOVER", func() error { return s.SetRouterHandover(true) }},
	}...)); err != nil {
		return err
	}
	// The context may be shared with other publishers.
	name := "inproc://kvcast-replay-" + rand.Text()
	if t.wakened, err = openSocket(t.ctx, zmq.PAIR); err != nil {
		return err
	}
	if err = retryEINTR(func() error { return t.wakened.Bind(name) }); err != nil {
		return transportError("pair", err)
	}
	if t.waker, err = openSocket(t.ctx, zmq.PAIR); err != nil {
		return err
	}
	if err = retryEINTR(func() error { return t.waker.Connect(name) }); err != nil {
		return transportError("pair", err)
	}
	return nil
}

func (t *zmqReplaySocket) receive() (frames [][]byte, from connection, err error) {
	identity, _, err := t.receiveFrame()
	if err != nil {
		if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
			return nil, from, nil
		}
		return nil, from, err
	}
	frames = append(frames, identity)
	for {
		more := false
		if err = retryEINTR(func() (err error) { more, err = t.socket.GetRcvmore(); return err }); err != nil {
			return nil, from, err
		}
		if !more {
			break
		}
		// The rest of a message is there when its beginning is.
		frame, descriptor, err := t.receiveFrame()
		if err != nil {
			return nil, from, err
		}
		if len(frames) == 1 {
			// ZeroMQ 4.3.4 leaves it off the identity if the socket was polled.
			from = t.connectionOf(descriptor)
		}
		if len(frames) <= maxRequestFrames {
			frames = append(frames, frame)
		}
	}
	if from.fd >= 0 {
		t.meter.message(from, t.now())
	}
	return frames, from, nil
}

// receiveFrame returns a frame and the descriptor it came from, "" without one.
func (t *zmqReplaySocket) receiveFrame() (frame []byte, descriptor string, err error) {
	var of map[string]string
	err = retryEINTR(func() (err error) {
		frame, of, err = t.socket.RecvBytesWithMetadata(zmq.DONTWAIT, srcFD)
		return err
	})
	return frame, of[srcFD], err
}

// connectionOf returns the connection that a descriptor stands for, and one
// that is not open if it has ended. The descriptor may stand for another one by
// now; then ZeroMQ does not find the peer when it is answered.
func (t *zmqReplaySocket) connectionOf(descriptor string) connection {
	if t.inproc {
		return connection{}
	}
	if fd, err := strconv.Atoi(descriptor); err == nil {
		if inode, ok := socketInode(fd); ok && t.ours(fd) {
			return connection{fd, inode}
		}
	}
	return connection{fd: -1}
}

// send sends a message of several frames. Only the first one can be refused:
// ZeroMQ looks for the peer and for room then, and counts whole messages. If the
// peer goes after that it drops the rest in silence.
func (t *zmqReplaySocket) send(frames [][]byte) sendResult {
	for i, frame := range frames {
		flags := zmq.DONTWAIT
		if i < len(frames)-1 {
			flags |= zmq.SNDMORE
		}
		err := retryEINTR(func() error { _, err := t.socket.SendBytes(frame, flags); return err })
		if err == nil {
			continue
		}
		if i == 0 && zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
			return sendFull
		}
		return sendGone
	}
	return sendDone
}

func (t *zmqReplaySocket) acked(c connection) (n uint64, ok bool) {
	if c.fd <= 0 || t.place.at.scheme != schemeTCP {
		return 0, false
	}
	return bytesAcked(c.fd)
}

func (t *zmqReplaySocket) unread(c connection) (n int, ok bool) {
	if c.fd <= 0 || t.place.at.scheme != schemeIPC {
		return 0, false
	}
	return bytesUnread(c.fd)
}

func (t *zmqReplaySocket) wait(timeout time.Duration) error {
	if err := zmqwait.Read(timeout, t.socket, t.wakened); err != nil {
		return err
	}
	// What ends this wait must not end the next one.
	t.wakened.RecvBytes(zmq.DONTWAIT)
	return nil
}

func (t *zmqReplaySocket) wake() {
	// If it fails, the context has been terminated, which ends every wait.
	retryEINTR(func() error { _, err := t.waker.SendBytes(nil, zmq.DONTWAIT); return err })
	t.waker.Close()
}

func (t *zmqReplaySocket) cut(c connection) {
	if c.fd > 0 && cutOff(c.fd, c.inode, t.ours) {
		t.wasCut()
	}
}

// wasCut says that a connection has been cut off.
func (t *zmqReplaySocket) wasCut() {
	if n := t.cuts.Add(1); n&(n-1) == 0 && t.warn != nil {
		t.warn(fmt.Sprintf("%d connections to the replay endpoint cut off so far: a peer has sent more than "+
			"requests, has read nothing for %v or hardly anything while others waited, another one came with its "+
			"identity, or there were too many", n, maxStall))
	}
}

func (t *zmqReplaySocket) close(linger time.Duration) {
	t.place.removeFile()
	t.meter.stop()
	t.meter = nil
	if t.wakened != nil {
		t.wakened.Close()
	}
	if t.socket != nil {
		retryEINTR(func() error { return t.socket.SetLinger(linger.Truncate(time.Millisecond)) })
		t.socket.Close()
	}
	t.gate.leave(t.ctx)
	if t.ctx != nil && !t.shared {
		// The port is free when this returns, and not before.
		t.ctx.Term()
	}
}
