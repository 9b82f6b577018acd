// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/zmqwait"
)

const (
	// zapEndpoint is where ZeroMQ asks whether a peer may connect (ZeroMQ RFC 27),
	// one place in each context; zapVersion is that of the questions.
	zapEndpoint = "inproc://zeromq.zap.01"
	zapVersion  = "1.0"
	// zapDomain is that of our sockets.
	zapDomain = "kvcast"
	// zapFrames is a question about a CURVE peer: version, request, domain,
	// address, identity, mechanism, key.
	zapFrames = 7
)

func hasCurve() bool { return zmq.HasCurve() }

// curvePublic returns the public key that belongs to a secret one.
func curvePublic(secret string) (string, error) {
	public, err := zmq.AuthCurvePublic(secret)
	if err != nil {
		return "", errors.New("not a secret key")
	}
	return public, nil
}

// gate decides who may connect to the sockets of one publisher. A nil gate is
// open.
type gate struct {
	curve *curve
	// refused counts the peers that were turned away because of their key.
	refused atomic.Uint64

	mu sync.Mutex
	// handlers has one for each context, which the sockets in it share.
	handlers map[*zmq.Context]*zapHandler
}

func newGate(c *curve) *gate {
	if c == nil {
		return nil
	}
	return &gate{curve: c, handlers: make(map[*zmq.Context]*zapHandler)}
}

// options are those that a socket needs before it is bound; enter comes before.
func (g *gate) options(s *zmq.Socket) []socketOption {
	if g == nil {
		return nil
	}
	return []socketOption{
		{"CURVE_SERVER", func() error { return s.SetCurveServer(1) }},
		{"CURVE_SECRETKEY", func() error { return s.SetCurveSecretkey(g.curve.secret) }},
		// The handler answers for this domain only.
		{"ZAP_DOMAIN", func() error { return s.SetZapDomain(zapDomain) }},
	}
}

// enter makes sure that ctx has a handler. Without one ZeroMQ lets everybody in
// who knows our public key, so it comes before a socket is bound.
func (g *gate) enter(ctx *zmq.Context, shared bool) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.handlers[ctx]; h != nil {
		h.users++
		return nil
	}
	h, err := g.open(ctx, shared)
	if err != nil {
		return err
	}
	g.handlers[ctx] = h
	return nil
}

// leave comes after the socket has been closed. The handler of a context of our
// own ends with the context, that of a shared one with its last socket.
func (g *gate) leave(ctx *zmq.Context) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.handlers[ctx]
	if h == nil {
		return
	}
	if h.users--; h.users > 0 {
		return
	}
	delete(g.handlers, ctx)
	if h.waker != nil {
		retryEINTR(func() error { _, err := h.waker.SendBytes(nil, zmq.DONTWAIT); return err })
		h.waker.Close()
		<-h.done
	}
}

// zapHandler answers ZeroMQ's questions in one context, in a goroutine.
type zapHandler struct {
	gate   *gate
	socket *zmq.Socket
	// waker and wakened are a pair that ends the handler; nil in a context of our
	// own. waker belongs to the gate.
	waker, wakened *zmq.Socket
	users          int
	done           chan struct{}
}

// open binds a handler and starts it.
func (g *gate) open(ctx *zmq.Context, shared bool) (_ *zapHandler, err error) {
	h := &zapHandler{gate: g, users: 1, done: make(chan struct{})}
	defer func() {
		if err != nil {
			h.close()
			if h.waker != nil {
				h.waker.Close()
			}
		}
	}()
	if h.socket, err = openSocket(ctx, zmq.REP); err != nil {
		return nil, err
	}
	if err = setOptions([]socketOption{{"LINGER", func() error { return h.socket.SetLinger(0) }}}); err != nil {
		return nil, err
	}
	if err = retryEINTR(func() error { return h.socket.Bind(zapEndpoint) }); err != nil {
		if zmq.AsErrno(err) == zmq.EADDRINUSE {
			return nil, &Error{Op: "start", Key: "context", Value: zapEndpoint, Err: ErrAddressInUse,
				Detail: "the shared context has an authentication handler already"}
		}
		return nil, transportError("authentication handler", err)
	}
	if shared {
		name := "inproc://kvcast-zap-" + rand.Text()
		if h.wakened, err = openSocket(ctx, zmq.PAIR); err != nil {
			return nil, err
		}
		if err = retryEINTR(func() error { return h.wakened.Bind(name) }); err != nil {
			return nil, transportError("pair", err)
		}
		if h.waker, err = openSocket(ctx, zmq.PAIR); err != nil {
			return nil, err
		}
		if err = retryEINTR(func() error { return h.waker.Connect(name) }); err != nil {
			return nil, transportError("pair", err)
		}
	}
	go h.serve()
	return h, nil
}

// close is called by whoever owns the socket: the goroutine once it runs. The
// place of the handler is free at once; ZeroMQ closes sockets later.
func (h *zapHandler) close() {
	if h.socket != nil {
		retryEINTR(func() error { return h.socket.Unbind(zapEndpoint) })
	}
	for _, s := range []*zmq.Socket{h.socket, h.wakened} {
		if s != nil {
			s.Close()
		}
	}
}

// serve answers until it is woken or the context is terminated.
func (h *zapHandler) serve() {
	defer close(h.done)
	defer h.close()
	sockets := []*zmq.Socket{h.socket}
	if h.wakened != nil {
		sockets = append(sockets, h.wakened)
	}
	for {
		if err := zmqwait.Read(-1, sockets...); err != nil {
			return
		}
		if h.wakened != nil {
			if _, err := h.wakened.RecvBytes(zmq.DONTWAIT); err == nil {
				return
			}
		}
		var frames [][]byte
		err := retryEINTR(func() (err error) { frames, err = h.socket.RecvMessageBytes(zmq.DONTWAIT); return err })
		if zmq.AsErrno(err) == zmq.Errno(zmq.ETERM) {
			return
		}
		if err != nil {
			continue // nothing is there after all
		}
		retryEINTR(func() error { _, err := h.socket.SendMessage(h.answer(frames)); return err })
	}
}

// answer is the reply to a question: version, request, status, text, user,
// metadata.
func (h *zapHandler) answer(frames [][]byte) [][]byte {
	request := []byte(nil)
	if len(frames) > 1 {
		request = frames[1]
	}
	status, text := "400", "not on the list"
	if len(frames) == zapFrames && string(frames[0]) == zapVersion && string(frames[2]) == zapDomain &&
		string(frames[5]) == "CURVE" && h.gate.curve.admits(frames[6]) {
		status, text = "200", "OK"
	} else {
		h.gate.refused.Add(1)
	}
	return [][]byte{[]byte(zapVersion), request, []byte(status), []byte(text), nil, nil}
}
