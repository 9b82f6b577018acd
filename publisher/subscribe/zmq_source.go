// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/zmqwait"
)

const (
	// monitorName and quitName are in the client's own context, behind them a number.
	monitorName = "inproc://monitor"
	quitName    = "inproc://quit"
	// giveUp is how long after a disconnection ZeroMQ may take to announce that it tries
	// again, which it does at once, unless the peer broke the protocol: then never.
	giveUp = time.Second
	// monitored is what is told of a connection.
	monitored = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED |
		zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)

// zmqSource is a source with CURVE. Its socket has no high-water mark and is read
// whether there is room in the inbox or not: ZeroMQ never stops reading the connection,
// which is how a peer could abort the process (see source.open). What there is no room for
// is dropped, and an answer to a request ends there. A goroutine of its own reads it.
type zmqSource struct {
	source
	box                   *inbox
	socket, monitor, quit *zmq.Socket
	stop                  *zmq.Socket // of whoever ends it
	// handshakes counts connections. mixed: what is read may be of the one before, of
	// which ZeroMQ holds what it has brought, in front of what the new one brings; all of
	// that was there when the new one was told of, so it is over when nothing was there.
	handshakes int
	mixed      bool
	lost       time.Time
	refused    string
}

func (s source) openZMQ(box *inbox) (end func() error, err error) {
	z := &zmqSource{source: s, box: box}
	if err := z.connect(); err != nil {
		return nil, errors.Join(err, closeAll(z.monitor, z.socket, z.quit, z.stop))
	}
	var result error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := z.run(); err != nil {
			z.box.note(func(state *state) { state.down = &Error{"receive", err, ""} })
		}
		result = closeAll(z.monitor, z.socket, z.quit)
	}()
	return func() error {
		box.close()
		z.stop.SendBytes(nil, zmq.DONTWAIT) // fails only if it has ended
		<-done
		return errors.Join(z.stop.Close(), result)
	}, nil
}

// connect opens the sockets.
func (z *zmqSource) connect() (err error) {
	open := func(kind zmq.Type, s **zmq.Socket) {
		if err == nil {
			if *s, err = z.curve.ctx.NewSocket(kind); err != nil {
				*s = nil
			}
		}
	}
	kind := zmq.SUB
	if z.request != nil {
		kind = zmq.DEALER
	}
	open(kind, &z.socket)
	open(zmq.PAIR, &z.monitor)
	open(zmq.PAIR, &z.quit)
	open(zmq.PAIR, &z.stop)
	if err != nil {
		return err
	}
	z.curve.opened++
	monitor, quit := fmt.Sprint(monitorName, z.curve.opened), fmt.Sprint(quitName, z.curve.opened)
	s := z.socket
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"RCVHWM", func() error { return s.SetRcvhwm(0) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(int64(z.limit)) }},
		{"LINGER", func() error { return errors.Join(s.SetLinger(0), z.stop.SetLinger(0)) }},
		{"IPV6", func() error { return s.SetIpv6(z.ipv6) }},
		{"RECONNECT_IVL", func() error { return s.SetReconnectIvl(reconnect) }},
		{"RECONNECT_IVL_MAX", func() error { return s.SetReconnectIvlMax(reconnectMax) }},
		{"TCP_KEEPALIVE", func() error { return s.SetTcpKeepalive(1) }},
		{"TCP_KEEPALIVE_IDLE", func() error { return s.SetTcpKeepaliveIdle(int(keepaliveIdle / time.Second)) }},
		{"TCP_KEEPALIVE_CNT", func() error { return s.SetTcpKeepaliveCnt(keepaliveCount) }},
		{"TCP_KEEPALIVE_INTVL", func() error { return s.SetTcpKeepaliveIntvl(int(keepaliveInterval / time.Second)) }},
		{"SUBSCRIBE", func() error {
			if z.request != nil {
				return nil
			}
			return s.SetSubscribe(z.topic)
		}},
		{"CURVE", func() error { return z.curve.apply(s) }},
		{"monitor", func() error { return errors.Join(s.Monitor(monitor, monitored), z.monitor.Connect(monitor)) }},
		{"quit", func() error { return errors.Join(z.quit.Bind(quit), z.stop.Connect(quit)) }},
		{"connect", func() error { return s.Connect(z.endpoint) }},
		// Nothing waits yet, so there is room.
		{"request", func() error {
			for i, frame := range z.request {
				flags := zmq.DONTWAIT
				if i < len(z.request)-1 {
					flags |= zmq.SNDMORE
				}
				if _, err := s.SendBytes(frame, flags); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// closeAll closes the sockets that are there.
func closeAll(sockets ...*zmq.Socket) (err error) {
	for _, s := range sockets {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// run reads until it is told to end, or an answer is not taken any more.
func (z *zmqSource) run() error {
	for {
		var m received
		if err := z.read(&m); err != nil {
			return err
		}
		z.mixed = z.mixed && m.n > 0
		// What happened before the message came is known before it is looked at.
		z.watch()
		switch {
		case m.n == 0 && z.mixed: // there may be something of it by now
		case m.n == 0:
			wait := time.Duration(-1)
			if !z.lost.IsZero() {
				if wait = giveUp - time.Since(z.lost); wait <= 0 {
					z.giveUp()
					wait = -1
				}
			}
			if err := zmqwait.Read(wait, z.socket, z.monitor, z.quit); err != nil {
				return err
			}
		default:
			m.connection = z.handshakes
			if z.mixed {
				m.connection--
			}
			if !z.box.offer(&m) && z.request != nil {
				return nil
			}
		}
		if _, err := z.quit.RecvBytes(zmq.DONTWAIT); err == nil {
			return nil
		}
	}
}

// giveUp says that ZeroMQ does not connect again.
func (z *zmqSource) giveUp() {
	why := &Error{"receive", ErrProtocol, fmt.Sprintf("no ZMTP 3 with CURVE, or a frame of more than %d bytes", z.limit)}
	if z.refused != "" {
		why = &Error{"receive", ErrRefused, z.refused}
	}
	z.lost = time.Time{}
	z.box.note(func(state *state) { state.down, state.lost = why, z.lost })
}

// watch takes in what has happened to the connection.
func (z *zmqSource) watch() {
	for {
		kind, _, value, err := z.monitor.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			return
		}
		z.lost = time.Time{}
		switch kind {
		case zmq.EVENT_CONNECTED:
			z.refused = ""
		case zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
			z.refused = refusal(kind, value)
		case zmq.EVENT_DISCONNECTED:
			z.lost = time.Now()
		case zmq.EVENT_HANDSHAKE_SUCCEEDED:
			z.handshakes++
			z.mixed = z.handshakes > 1
			// Makes the socket do what it has been told: to subscribe anew.
			z.socket.GetEvents()
		}
		z.box.note(func(state *state) { state.handshakes, state.lost = z.handshakes, z.lost })
	}
}

// read reads one message; it has no frames if there is none. They are read one by one: a
// message may have very many, and they are there as a whole once the first one is. Those
// that do not fit are dropped.
func (z *zmqSource) read(m *received) error {
	n, size := 0, 0
	for more := true; more; n++ {
		frame, err := z.socket.RecvBytes(zmq.DONTWAIT)
		if err != nil {
			if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
				return nil
			}
			return err
		}
		if n < len(m.frames) {
			if size += len(frame); size > z.limit+maxOther {
				m.dropped = true
			} else {
				m.frames[n] = frame
			}
		}
		if more, err = z.socket.GetRcvmore(); err != nil {
			return err
		}
	}
	m.n = n
	return nil
}
