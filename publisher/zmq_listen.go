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
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/descriptors"
)

const (
	// sharedRetry is how long an occupied address is tried again on a shared
	// context, where nobody waits for the port of a closed socket to be free,
	// and sharedRetryStep is the pause between two tries.
	sharedRetry     = time.Second
	sharedRetryStep = 20 * time.Millisecond
	// probeTimeout bounds the question whether somebody listens on an ipc path;
	// the answer is local and comes at once.
	probeTimeout = 100 * time.Millisecond
)

// openContext returns shared, or a context of our own if there is none. Also a shared one
// has no threads before its first socket.
func openContext(shared *zmq.Context) (*zmq.Context, error) {
	if why := descriptors.Short(); why != "" {
		return nil, &Error{Op: "start", Err: ErrDescriptors, Detail: why}
	}
	if shared != nil {
		return shared, nil
	}
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, &Error{Op: "start", Err: ErrTransport, Cause: err}
	}
	ctx.SetRetryAfterEINTR(true)
	return ctx, nil
}

func openSocket(ctx *zmq.Context, kind zmq.Type) (s *zmq.Socket, err error) {
	err = retryEINTR(func() error { s, err = ctx.NewSocket(kind); return err })
	if err != nil {
		return nil, transportError("socket", err)
	}
	return s, nil
}

// socketOption sets one option of a socket.
type socketOption struct {
	name string
	set  func() error
}

func setOptions(options []socketOption) error {
	for _, o := range options {
		if err := retryEINTR(o.set); err != nil {
			return transportError("option "+o.name, err)
		}
	}
	return nil
}

func transportError(what string, err error) error {
	return &Error{Op: "start", Err: ErrTransport, Cause: err, Detail: what}
}

// listener is the place where a socket is bound.
type listener struct {
	// key is what errors call the endpoint.
	key string
	at  endpoint
	// shared says that the context belongs to somebody else.
	shared bool
	// file is the socket file of an ipc endpoint, once it is bound.
	file os.FileInfo
}

// resolve returns what endpoint.bindText does.
func (l *listener) resolve(ctx context.Context) (text string, ipv6, exposed bool, err error) {
	text, ipv6, exposed, err = l.at.bindText(ctx)
	if err != nil {
		return "", false, false, l.bindError(ErrBind, err)
	}
	return text, ipv6, exposed, nil
}

func (l *listener) bind(ctx context.Context, socket *zmq.Socket, text string) error {
	deadline := time.Now().Add(sharedRetry)
	for {
		err := l.tryBind(socket, text)
		if err == nil {
			return nil
		}
		if err.Err != ErrAddressInUse || !l.shared || time.Now().After(deadline) {
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

// connect is for an endpoint that somebody else binds, now or later.
func (l *listener) connect(socket *zmq.Socket, text string) error {
	if err := retryEINTR(func() error { return socket.Connect(text) }); err != nil {
		return &Error{Op: "start", Key: l.key, Value: l.at.String(), Err: ErrConnect, Cause: err}
	}
	return nil
}

func (l *listener) tryBind(socket *zmq.Socket, text string) *Error {
	if l.at.scheme == schemeIPC {
		if err := probeIPC(l.at.name); err != nil {
			return l.bindError(ErrAddressInUse, err)
		}
	}
	err := retryEINTR(func() error { return socket.Bind(text) })
	switch {
	case err == nil:
		return nil
	case zmq.AsErrno(err) == zmq.EADDRINUSE:
		return l.bindError(ErrAddressInUse, nil)
	default:
		return l.bindError(ErrBind, err)
	}
}

func (l *listener) bindError(sentinel, cause error) *Error {
	return &Error{Op: "start", Key: l.key, Value: l.at.String(), Err: sentinel, Cause: cause}
}

// bound returns the endpoint in the form in which it was given, with the real
// port, and what recognises the connections to it.
func (l *listener) bound(socket *zmq.Socket) (text string, ours func(fd int) bool, err error) {
	var last string
	err = retryEINTR(func() (err error) { last, err = socket.GetLastEndpoint(); return err })
	if err != nil {
		return "", nil, transportError("LAST_ENDPOINT", err)
	}
	last = strings.TrimRight(last, "\x00")
	ours = isConnectionTo(last)
	switch {
	case l.at.scheme == schemeIPC && l.at.name == "*":
		return last, ours, nil
	case l.at.scheme == schemeTCP && l.at.port == 0:
		return "tcp://" + l.at.host + last[strings.LastIndexByte(last, ':'):], ours, nil
	}
	if l.at.scheme == schemeIPC && !strings.HasPrefix(l.at.name, "@") {
		l.file, _ = os.Lstat(l.at.name)
	}
	return l.at.String(), ours, nil
}

// removeFile removes the socket file, which ZeroMQ leaves behind. While we
// listen no other publisher takes the path, and what is there and not ours
// stays.
func (l *listener) removeFile() {
	if l.file == nil {
		return
	}
	if now, err := os.Lstat(l.at.name); err == nil && os.SameFile(l.file, now) {
		os.Remove(l.at.name)
	}
	l.file = nil
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
