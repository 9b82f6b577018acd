// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
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
	// sharedRetry is how long an occupied address is tried again on a shared
	// context, where nobody waits for the port of a closed socket to be free,
	// and sharedRetryStep is the pause between two tries.
	sharedRetry     = time.Second
	sharedRetryStep = 20 * time.Millisecond
	// probeTimeout bounds the question whether somebody listens on an ipc path;
	// the answer is local and comes at once.
	probeTimeout = 100 * time.Millisecond
	// maxReads bounds the subscriptions taken in at one go, so that a peer that
	// floods us cannot hold up the stream.
	maxReads = 1024
)

// zmqTransport is an XPUB socket that binds.
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
	guard  *guard // nil without connections
	cuts   atomic.Uint64
	// warn may be nil.
	warn func(string)
	// file is the socket file of an ipc endpoint, once it is bound.
	file os.FileInfo
}

// frameSocket is what send and subscriptions need of a socket.
type frameSocket interface {
	SendBytes(frame []byte, flags zmq.Flag) (int, error)
	RecvBytesWithMetadata(flags zmq.Flag, properties ...string) ([]byte, map[string]string, error)
}

func newZMQTransport(s *settings) *zmqTransport {
	topic := []byte(s.topic)
	return &zmqTransport{settings: s, topic: topic, shared: s.Context != nil,
		peers: peers{topic: topic, inproc: s.endpoint.scheme == schemeInproc}}
}

func (t *zmqTransport) wantsPayload() bool { return true }

func (t *zmqTransport) open(ctx context.Context) (string, bool, error) {
	text, ipv6, exposed, err := t.settings.endpoint.bindText(ctx)
	if err != nil {
		return "", false, t.bindError(ErrBind, err)
	}
	if t.ctx = t.settings.Context; !t.shared {
		if t.ctx, err = zmq.NewContext(); err != nil {
			return "", false, &Error{Op: "start", Err: ErrTransport, Cause: err}
		}
		t.ctx.SetRetryAfterEINTR(true)
	}
	if err = t.openSocket(ipv6); err == nil {
		err = t.bind(ctx, text)
	}
	var bound string
	if err == nil {
		bound, err = t.boundEndpoint()
	}
	if err != nil {
		t.close(0)
		return "", false, err
	}
	return bound, exposed, nil
}

func (t *zmqTransport) openSocket(ipv6 bool) (err error) {
	fail := func(what string, err error) error {
		return &Error{Op: "start", Err: ErrTransport, Cause: err, Detail: what}
	}
	err = retryEINTR(func() error { t.socket, err = t.ctx.NewSocket(zmq.XPUB); return err })
	if err != nil {
		t.socket = nil
		return fail("socket", err)
	}
	t.frames = t.socket
	o := &t.settings.Options
	s := t.socket
	for _, option := range []struct {
		name string
		set  func() error
	}{
		// The high-water mark holds only for what is bound after it.
		{"SNDHWM", func() error { return s.SetSndhwm(o.HWM) }},
		// Every subscription and its end is reported, whose they are with them;
		// a plain XPUB reports the first of several equal ones only.
		{"XPUB_VERBOSER", func() error { return s.SetXpubVerboser(1) }},
		// A connection whose queue is full is not read; if its peer hangs up
		// then, ZeroMQ 4.3.4 aborts the process at the next heartbeat or ping
		// (assertion !_io_error). So no queue is ever full; peers and guard
		// bound what a connection can put into it.
		{"RCVHWM", func() error { return s.SetRcvhwm(0) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(maxPeerMessage) }},
		// Until close sets it, so that a failed Start cannot linger.
		{"LINGER", func() error { return s.SetLinger(0) }},
		{"IPV6", func() error { return s.SetIpv6(ipv6) }},
		{"HEARTBEAT_IVL", func() error { return s.SetHeartbeatIvl(o.ZMTPHeartbeat) }},
		{"HEARTBEAT_TIMEOUT", func() error { return s.SetHeartbeatTimeout(o.ZMTPTimeout) }},
	} {
		if err := retryEINTR(option.set); err != nil {
			return fail("option "+option.name, err)
		}
	}
	return nil
}

func (t *zmqTransport) bind(ctx context.Context, text string) error {
	deadline := time.Now().Add(sharedRetry)
	for {
		err := t.tryBind(text)
		if err == nil {
			return nil
		}
		if err.Err != ErrAddressInUse || !t.shared || time.Now().After(deadline) {
			return err
		}
		timer := time.NewTimer(sharedRetryStep)
		select {
		case <-ctx.Done():
			timer.Stop()
			return &Error{Op: "start", Err: ctx.Err(), Cause: err}
		case <-timer.C:
		}
	}
}

func (t *zmqTransport) tryBind(text string) *Error {
	if t.settings.endpoint.scheme == schemeIPC {
		if err := probeIPC(t.settings.endpoint.name); err != nil {
			return t.bindError(ErrAddressInUse, err)
		}
	}
	err := retryEINTR(func() error { return t.socket.Bind(text) })
	switch {
	case err == nil:
		return nil
	case zmq.AsErrno(err) == zmq.EADDRINUSE:
		return t.bindError(ErrAddressInUse, nil)
	default:
		return t.bindError(ErrBind, err)
	}
}

func (t *zmqTransport) bindError(sentinel, cause error) *Error {
	return &Error{Op: "start", Key: "endpoint", Value: t.settings.endpoint.String(),
		Err: sentinel, Cause: cause}
}

// probeIPC returns an error if the path of an ipc endpoint is taken. ZeroMQ
// itself unlinks whatever is there before it binds: the socket of a living
// publisher as well as a file that only has this name.
func probeIPC(path string) error {
	if path == "*" {
		return nil // a name made up by ZeroMQ
	}
	if !strings.HasPrefix(path, "@") { // those have no file
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return nil // the bind will say it
		case info.Mode()&os.ModeSocket == 0:
			return fmt.Errorf("%s exists and is not a socket", path)
		}
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		conn.Close()
		return fmt.Errorf("somebody listens on %s", path)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil // left behind, or gone meanwhile
	}
	return err
}

// boundEndpoint returns the endpoint in the form in which it was given.
func (t *zmqTransport) boundEndpoint() (string, error) {
	e := t.settings.endpoint
	var last string
	err := retryEINTR(func() (err error) { last, err = t.socket.GetLastEndpoint(); return err })
	if err != nil {
		return "", &Error{Op: "start", Err: ErrTransport, Cause: err, Detail: "LAST_ENDPOINT"}
	}
	last = strings.TrimRight(last, "\x00")
	t.peers.ours = isConnectionTo(last)
	if e.scheme == schemeTCP {
		t.guard = newGuard(t.peers.ours, t.cutOff)
	}
	switch {
	case e.scheme == schemeIPC && e.name == "*":
		return last, nil
	case e.scheme != schemeTCP || e.port != 0:
		if e.scheme == schemeIPC && !strings.HasPrefix(e.name, "@") {
			t.file, _ = os.Lstat(e.name)
		}
		return e.String(), nil
	}
	return "tcp://" + e.host + last[strings.LastIndexByte(last, ':'):], nil
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
		t.warn(fmt.Sprintf("%d connections cut off so far: a peer has sent more than a subscriber needs", n))
	}
}

func (t *zmqTransport) close(linger time.Duration) {
	if t.file != nil {
		// ZeroMQ leaves it behind. While we listen no other publisher takes the
		// path, and what is there and not ours stays.
		if now, err := os.Lstat(t.settings.endpoint.name); err == nil && os.SameFile(t.file, now) {
			os.Remove(t.settings.endpoint.name)
		}
		t.file = nil
	}
	if t.guard != nil {
		t.guard.stop()
		t.guard = nil
	}
	if t.socket != nil {
		retryEINTR(func() error { return t.socket.SetLinger(linger.Truncate(time.Millisecond)) })
		t.socket.Close()
		t.socket, t.frames = nil, nil
	}
	if t.ctx != nil && !t.shared {
		// The port is free when this returns, and not before.
		t.ctx.Term()
	}
	t.ctx = nil
}

// retryEINTR repeats a call that a signal interrupted. Our own context does so
// by itself; whoever shares a context may have switched that off.
func retryEINTR(call func() error) error {
	for {
		err := call()
		if err == nil || zmq.AsErrno(err) != zmq.Errno(syscall.EINTR) {
			return err
		}
	}
}
