// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// Context is a ZeroMQ context, for Options.Context.
type Context = zmq.Context

const (
	// maxPeerMessage bounds what a subscriber may send. A subscription is one
	// byte and a topic prefix.
	maxPeerMessage = 4 << 10
	// maxReads bounds the subscriptions taken in at one go, so that a peer that
	// floods us cannot hold up the stream.
	maxReads = 1024
)

// zmqTransport is an XPUB socket that binds, or connects to a subscriber.
type zmqTransport struct {
	settings *settings
	topic    []byte
	// shared says that ctx belongs to somebody else.
	shared bool
	ctx    *zmq.Context
	socket *zmq.Socket
	// frames is socket, for what is sent and read all the time.
	frames frameSocket
	peers  peers
	// guard and meter are nil without TCP connections.
	guard *guard
	meter *meter
	cuts  atomic.Uint64
	// gate is nil without CURVE, warn may be nil.
	gate *gate
	warn func(string)
	// place is where the socket is bound.
	place listener
}

// frameSocket is what send and subscriptions need of a socket.
type frameSocket interface {
	SendBytes(frame []byte, flags zmq.Flag) (int, error)
	RecvBytesWithMetadata(flags zmq.Flag, properties ...string) ([]byte, map[string]string, error)
}

func newZMQTransport(s *settings) *zmqTransport {
	topic := []byte(s.topic)
	shared := s.Context != nil
	return &zmqTransport{settings: s, topic: topic, shared: shared,
		place: listener{key: keyEndpoint, at: s.endpoint, shared: shared},
		peers: peers{topic: topic, inproc: s.endpoint.scheme == schemeInproc}}
}

func (t *zmqTransport) wantsPayload() bool { return true }

func (t *zmqTransport) open(ctx context.Context) (string, bool, error) {
	text, ipv6, exposed, err := t.place.resolve(ctx)
	if err != nil {
		return "", false, err
	}
	if t.ctx, err = openContext(t.settings.Context); err != nil {
		return "", false, err
	}
	if err = t.gate.enter(t.ctx, t.shared); err == nil {
		err = t.openSocket(ipv6)
	}
	if err == nil {
		if t.settings.Connect {
			exposed = false // nobody can come to us
			err = t.place.connect(t.socket, text)
		} else {
			err = t.place.bind(ctx, t.socket, text)
		}
	}
	var bound string
	switch {
	case err != nil:
	case t.settings.Connect:
		bound, t.peers.ours = t.place.at.String(), isConnectionFrom(text)
	default:
		bound, t.peers.ours, err = t.place.bound(t.socket)
	}
	if err != nil {
		t.close(0)
		return "", false, err
	}
	if t.place.at.scheme == schemeTCP && !t.settings.Connect {
		t.guard = newGuard(t.peers.ours, t.cutOff)
		t.meter = newMeter(subscriptionAllowance(t.settings.ZMTPHeartbeat, t.settings.WaitSubscribers), t.peers.ours, t.cutOff)
		t.peers.meter = t.meter
	}
	return bound, exposed, nil
}

func (t *zmqTransport) openSocket(ipv6 bool) (err error) {
	if t.socket, err = openSocket(t.ctx, zmq.XPUB); err != nil {
		return err
	}
	t.frames = t.socket
	o := &t.settings.Options
	s := t.socket
	return setOptions(append(t.gate.options(s), []socketOption{
		// The high-water mark holds only for what is bound after it.
		{"SNDHWM", func() error { return s.SetSndhwm(o.HWM) }},
		// Every subscription and its end is reported, whose they are with them;
		// a plain XPUB reports the first of several equal ones only.
		{"XPUB_VERBOSER", func() error { return s.SetXpubVerboser(1) }},
		// A connection whose queue is full is not read; if its peer hangs up
		// then, ZeroMQ 4.3.4 aborts the process at the next heartbeat or ping
		// (assertion !_io_error). So no queue is ever full; peers, meter
		// and guard bound what a connection can put into it.
		{"RCVHWM", func() error { return s.SetRcvhwm(0) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(maxPeerMessage) }},
		// Until close sets it, so that a failed Start cannot linger.
		{"LINGER", func() error { return s.SetLinger(0) }},
		{"IPV6", func() error { return s.SetIpv6(ipv6) }},
		{"HEARTBEAT_IVL", func() error { return s.SetHeartbeatIvl(o.ZMTPHeartbeat) }},
		{"HEARTBEAT_TIMEOUT", func() error { return s.SetHeartbeatTimeout(o.ZMTPTimeout) }},
	}...))
}

// send never waits: an XPUB drops for a peer whose queue is full. DONTWAIT says
// so again.
func (t *zmqTransport) send(seq, payload []byte) error {
	t.guard.enter()
	defer t.guard.leave()
	if err := t.sendFrame(t.topic, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	if err := t.sendFrame(seq, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	return t.sendFrame(payload, zmq.DONTWAIT)
}

func (t *zmqTransport) sendFrame(frame []byte, flags zmq.Flag) error {
	for {
		_, err := t.frames.SendBytes(frame, flags)
		if err == nil || zmq.AsErrno(err) != zmq.Errno(syscall.EINTR) {
			return err
		}
	}
}

// subscriptions reads the messages that an XPUB makes of subscriptions: a byte
// 1 or 0 (begin, end) and the prefix; anything else is a message of a peer that
// is no subscriber.
func (t *zmqTransport) subscriptions() (n int, more bool) {
	t.guard.enter()
	defer t.guard.leave()
	more = true
	for range maxReads {
		message, of, err := t.frames.RecvBytesWithMetadata(zmq.DONTWAIT, srcFD)
		if err != nil {
			if zmq.AsErrno(err) == zmq.Errno(syscall.EINTR) {
				continue
			}
			more = false
			break
		}
		if t.peers.take(message, of[srcFD]) {
			t.cutOff()
		}
	}
	return t.peers.count(), more
}

// cutOff says that a connection has been cut off.
func (t *zmqTransport) cutOff() {
	if n := t.cuts.Add(1); n&(n-1) == 0 && t.warn != nil {
		t.warn(fmt.Sprintf("%d connections cut off so far: a peer has sent more than a subscriber "+
			"needs, or there were too many", n))
	}
}

func (t *zmqTransport) close(linger time.Duration) {
	t.place.removeFile()
	if t.guard != nil {
		t.guard.stop()
		t.guard = nil
	}
	t.meter.stop()
	t.meter, t.peers.meter = nil, nil
	if t.socket != nil {
		retryEINTR(func() error { return t.socket.SetLinger(linger.Truncate(time.Millisecond)) })
		t.socket.Close()
		t.socket, t.frames = nil, nil
	}
	t.gate.leave(t.ctx)
	if t.ctx != nil && !t.shared {
		// The port is free when this returns, and not before.
		t.ctx.Term()
	}
	t.ctx = nil
}
