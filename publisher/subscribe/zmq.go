// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/ipcpath"
	"github.com/kvcast/kvcast/publisher/internal/zmqwait"
	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// DefaultHWM is the number of messages that may wait in this process. The
	// publisher holds more of them; beyond both, messages are lost.
	DefaultHWM = 10000
	// DefaultMaxMessage is the longest frame taken from a publisher: the
	// longest payload that the decoder accepts unless told otherwise. ZeroMQ
	// ends the connection for good when a frame is longer. It has no bound for
	// the number of frames in a message, nor for the bytes of the messages that
	// wait: against a publisher that means harm, bound the process.
	DefaultMaxMessage = 32 << 20

	// reconnect is the pause between two attempts to connect, growing up to
	// reconnectMax: a subscriber may be there before its publisher.
	reconnect    = 20 * time.Millisecond
	reconnectMax = 500 * time.Millisecond
	// The kernel's keep-alive finds a publisher's machine that is gone without a
	// word, so that the connection is made anew: after keepaliveIdle it asks
	// keepaliveCount times, every keepaliveInterval. In seconds. ZMTP heartbeats
	// would do that too, but they let a publisher end our process: libzmq 4.3.4
	// asserts that a connection whose input it has stopped (the queue is full)
	// has not failed when the next heartbeat is written.
	keepaliveIdle     = 5
	keepaliveCount    = 3
	keepaliveInterval = 5

	// monitorName is in the client's own context. giveUp is how long after a
	// disconnection ZeroMQ may take to announce that it tries again, which it
	// does at once, unless the peer broke the protocol: then never.
	monitorName = "inproc://monitor"
	giveUp      = time.Second
	// hangUp is how long ZeroMQ may take to notice that a connection has ended, which
	// it does at once, unless it has stopped reading it.
	hangUp = time.Second
)

// ClientOptions configures a Client.
type ClientOptions struct {
	// Endpoint to connect to, tcp://HOST:PORT or ipc://PATH. Nobody needs to
	// be there yet.
	Endpoint string
	// Topic is the prefix of the topics to receive; "" means all.
	Topic string
	// HWM is the number of messages that may wait in this process, MaxMessage the
	// longest frame in bytes; 0 means DefaultHWM and DefaultMaxMessage. If so many wait
	// when a connection ends, what is still under way behind them may be lost; they
	// are not, and wait apart from those of the next connection.
	// Leave it in the thousands towards publishers that are not trusted: one that floods a
	// short queue, sends heartbeats and resets the connection can still meet the moment in
	// which libzmq up to 4.3.4 ends the process (an assertion that the client looks out for).
	HWM        int
	MaxMessage int
	// CurveServerKeyFile and CurveSecretKeyFile switch CURVE on, for replays of a
	// Follower too, and are set both or neither. The first holds the publisher's
	// public key and may be changed by its owner only, the second the subscriber's
	// secret key and may be used by its owner only; each alone, in Z85, or in a
	// certificate as CZMQ and PyZMQ write it. They are read once.
	CurveServerKeyFile, CurveSecretKeyFile string
}

// check returns ErrOption for what no client can be.
func (o ClientOptions) check() error {
	switch {
	case o.HWM < 0 || int64(o.HWM) > math.MaxInt32:
		return optionError("HWM", o.HWM, fmt.Sprintf("0 to %d", math.MaxInt32))
	case o.MaxMessage < 0:
		return optionError("MaxMessage", o.MaxMessage, "at least 0")
	}
	return nil
}

func optionError(field string, value any, want string) error {
	return &Error{"connect", ErrOption, fmt.Sprintf("%s %v: want %s", field, value, want)}
}

// Message is one live message. Its parts belong to the caller.
type Message struct {
	Topic   string
	Seq     uint64
	Payload []byte
	// legacy: of a replay in the dialect without topics.
	legacy bool
}

// Client receives live messages over a socket and a ZeroMQ context of its own.
// It connects again by itself when a publisher goes and comes back. One
// goroutine at a time may use it.
type Client struct {
	link
	ctx   *zmq.Context
	limit int // of a frame, in bytes
	// lost is when a connection ended, until ZeroMQ tries again.
	lost time.Time
	// handshakes counts how often the client was connected.
	handshakes int
	// stale is how many of the next messages at most may have come over a
	// connection before the newest one that is known of.
	stale int
	curve *curve
	// options and ipv6 are for opening once more, and opened counts how often.
	options ClientOptions
	ipv6    bool
	opened  int
	// left is what the socket before had in its queue. openAt is when to try again if
	// there is no socket, because it could not be replaced.
	left   []received
	openAt time.Time
	// refused is why the publisher does not let us in, "" = it may.
	refused string
}

// Connect begins to receive. It returns ErrEndpoint for an endpoint that cannot
// be right and ErrOption for a number or a file of a key that cannot, before it
// opens anything, and does not wait for the publisher.
func Connect(o ClientOptions) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	ipv6, err := checkEndpoint("connect", o.Endpoint)
	if err != nil {
		return nil, err
	}
	keys, err := loadCurve(&o)
	if err != nil {
		return nil, err
	}
	if o.HWM == 0 {
		o.HWM = DefaultHWM
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = DefaultMaxMessage
	}
	c := &Client{link: link{hwm: o.HWM}, limit: o.MaxMessage, curve: keys, options: o, ipv6: ipv6}
	if c.ctx, err = zmq.NewContext(); err != nil {
		return nil, &Error{"connect", err, "context"}
	}
	c.ctx.SetRetryAfterEINTR(true)
	if err := c.open(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) open() (err error) {
	o := &c.options
	c.fd, c.hung = -1, time.Time{}
	c.opened++
	monitor := fmt.Sprint(monitorName, c.opened) // that of a closed socket goes a moment later
	if c.socket, err = c.ctx.NewSocket(zmq.SUB); err != nil {
		c.socket = nil
		return &Error{"connect", err, "socket"}
	}
	s := c.socket
	for _, option := range []struct {
		name string
		set  func() error
	}{
		{"RCVHWM", func() error { return s.SetRcvhwm(o.HWM) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(int64(o.MaxMessage)) }},
		{"LINGER", func() error { return s.SetLinger(0) }},
		{"IPV6", func() error { return s.SetIpv6(c.ipv6) }},
		{"RECONNECT_IVL", func() error { return s.SetReconnectIvl(reconnect) }},
		{"RECONNECT_IVL_MAX", func() error { return s.SetReconnectIvlMax(reconnectMax) }},
		{"TCP_KEEPALIVE", func() error { return s.SetTcpKeepalive(1) }},
		{"TCP_KEEPALIVE_IDLE", func() error { return s.SetTcpKeepaliveIdle(keepaliveIdle) }},
		{"TCP_KEEPALIVE_CNT", func() error { return s.SetTcpKeepaliveCnt(keepaliveCount) }},
		{"TCP_KEEPALIVE_INTVL", func() error { return s.SetTcpKeepaliveIntvl(keepaliveInterval) }},
		{"SUBSCRIBE", func() error { return s.SetSubscribe(o.Topic) }},
		{"CURVE", func() error { return c.curve.apply(s) }},
	} {
		if err := option.set(); err != nil {
			return &Error{"connect", err, "option " + option.name}
		}
	}
	events := zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED |
		zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
	if err := s.Monitor(monitor, events); err != nil {
		return &Error{"connect", err, "monitor"}
	}
	if c.monitor, err = c.ctx.NewSocket(zmq.PAIR); err != nil {
		c.monitor = nil
		return &Error{"connect", err, "monitor"}
	}
	if err := c.monitor.Connect(monitor); err != nil {
		return &Error{"connect", err, "monitor"}
	}
	if err := s.Connect(o.Endpoint); err != nil {
		return &Error{"connect", ErrEndpoint, fmt.Sprintf("%q: %s", o.Endpoint, err)}
	}
	return nil
}

// Receive returns the next message, ErrTimeout after wait without one, or
// ErrFrames for a message of another shape, which is then dropped; the client
// stays usable after both, and after an error of the system, such as that there is no
// descriptor left for a new connection: it tries again twice a second. ErrProtocol says that ZeroMQ has given the publisher
// up, because of a frame beyond MaxMessage or because it speaks no ZMTP, and
// ErrRefused that the publisher does not let us in; no message will come any more.
// A publisher with another key than CurveServerKeyFile says looks as if it were
// not there.
func (c *Client) Receive(wait time.Duration) (*Message, error) {
	if c.closed() {
		return nil, &Error{"receive", ErrClosed, ""}
	}
	end := time.Now().Add(max(wait, time.Millisecond))
	for {
		m, err := c.poll()
		if err != nil || m != nil {
			return m, err
		}
		left := time.Until(end)
		if left <= 0 {
			return nil, c.idle()
		}
		if err := c.wait(left, c.socket); err != nil {
			return nil, err
		}
	}
}

// wait waits until there is something to read from one of the sockets that are there, or
// it is time to open one or to look at one, or the time is over. To ask a SUB socket
// whether it has something reads a message, and all in front of it of other topics: that
// is not done to one that has hung up.
func (c *Client) wait(d time.Duration, sockets ...*zmq.Socket) error {
	if c.socket == nil {
		d = min(d, time.Until(c.openAt))
	}
	if !c.hung.IsZero() {
		d = min(d, lookEvery)
	}
	there := slices.DeleteFunc(sockets, func(s *zmq.Socket) bool {
		return s == nil || s == c.socket && !c.hung.IsZero()
	})
	if err := zmqwait.Read(max(d, time.Millisecond), there...); err != nil {
		return &Error{"receive", err, "poll"}
	}
	return nil
}

func (c *Client) closed() bool { return c.ctx == nil }

// poll returns the next message, nil if there is none yet, or ErrFrames.
func (c *Client) poll() (*Message, error) {
	if len(c.left) == 0 {
		if c.socket == nil {
			if err := c.reopen(); err != nil || c.socket == nil {
				return nil, err
			}
		}
		if c.hungUp(c.watch) {
			if err := c.renew(); err != nil || len(c.left) == 0 {
				return nil, err
			}
		}
	}
	var m received
	if len(c.left) > 0 {
		m, c.left[0] = c.left[0], received{}
		if c.left = c.left[1:]; len(c.left) == 0 {
			c.left = nil
		}
	} else if err := c.read(&m); err != nil {
		return nil, &Error{"receive", err, ""}
	}
	if m.n == 0 {
		c.stale = 0
		return nil, nil
	}
	c.stale = max(c.stale-1, 0)
	if m.n != wire.LiveFrames {
		return nil, &Error{"receive", ErrFrames, fmt.Sprintf("%d frames, want %d", m.n, wire.LiveFrames)}
	}
	seq, err := wire.ParseSeq(m.frames[1])
	if err != nil {
		return nil, &Error{"receive", ErrFrames, err.Error()}
	}
	return &Message{Topic: string(m.frames[0]), Seq: seq, Payload: m.frames[2]}, nil
}

// renew waits a moment for ZeroMQ to notice the end. If it does not, the socket is
// replaced by another one. What waited in its queue is kept; what the connection had
// brought beyond is lost.
func (c *Client) renew() error {
	if time.Since(c.hung) < hangUp {
		return nil
	}
	var err error
	c.left, err = c.drain()
	err = errors.Join(err, c.close())
	c.openAt = time.Time{}
	if err != nil {
		return &Error{"receive", err, "a connection that has ended"}
	}
	return c.reopen()
}

// reopen opens the socket if it is time to. If that fails, nothing is left open.
func (c *Client) reopen() error {
	if time.Now().Before(c.openAt) {
		return nil
	}
	err := c.open()
	if err != nil {
		c.close()
		c.openAt = time.Now().Add(reconnectMax)
	}
	return err
}

// idle tells a quiet publisher from one that has been given up.
func (c *Client) idle() error {
	c.watch()
	if !c.lost.IsZero() && time.Since(c.lost) > giveUp {
		if c.refused != "" {
			return &Error{"receive", ErrRefused, c.refused}
		}
		return &Error{"receive", ErrProtocol, fmt.Sprintf("frames may have %d bytes", c.limit)}
	}
	return &Error{"receive", ErrTimeout, ""}
}

// watch takes in what has happened to the connection.
func (c *Client) watch() {
	for {
		kind, value, ok := c.event()
		if !ok {
			return
		}
		c.lost = time.Time{}
		switch kind {
		case zmq.EVENT_CONNECTED:
			c.refused = ""
		case zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
			c.refused = refusal(kind, value)
		case zmq.EVENT_DISCONNECTED:
			c.lost = time.Now()
		case zmq.EVENT_HANDSHAKE_SUCCEEDED:
			// What the connection before has left stays in the queue, in front
			// of what the new one brings, and all of it is there by now. There
			// is nothing left once the queue was empty, or as many have been
			// read as it can hold (twice, because its bound is not sharp).
			if c.handshakes++; c.handshakes > 1 {
				c.stale = len(c.left) + 2*c.hwm + 1
			}
			// Makes the socket do what it has been told: to subscribe anew. It also
			// reads, see wait.
			if !ended(c.fd) {
				c.socket.GetEvents()
			}
		}
	}
}

// Lost reports that a connection has ended and that it is not known yet whether
// ZeroMQ tries again. Call Receive on: within about a second it returns
// ErrProtocol or ErrRefused, or Lost is false. It holds what the last Receive without a
// message has found out.
func (c *Client) Lost() bool { return !c.lost.IsZero() }

// Close ends the connection and frees the context. A second call does nothing.
func (c *Client) Close() error {
	c.left = nil
	err := c.close()
	if c.ctx != nil {
		if termErr := c.ctx.Term(); err == nil {
			err = termErr
		}
		c.ctx = nil
	}
	if err != nil {
		return &Error{"close", err, ""}
	}
	return nil
}

// checkEndpoint refuses what ZeroMQ would take and then never connect, such as
// a wildcard or a port above 65535 (which it takes modulo 65536).
func checkEndpoint(op, text string) (ipv6 bool, err error) {
	bad := func(what string) (bool, error) {
		return false, &Error{op, ErrEndpoint, fmt.Sprintf("%q: %s", text, what)}
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return bad("control characters")
	}
	scheme, rest, ok := strings.Cut(text, "://")
	switch {
	case !ok:
		return bad("no scheme; want tcp:// or ipc://")
	case scheme == "ipc" && (rest == "" || rest == "*"):
		return bad("no path")
	case scheme == "ipc":
		return false, nil
	case scheme != "tcp":
		return bad("unknown scheme; want tcp:// or ipc:// in lower case")
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 || strings.HasSuffix(rest, "]") {
		return bad("no port")
	}
	host, digits := rest[:i], rest[i+1:]
	port, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil || digits[0] == '+':
		return bad("the port is not a number")
	case port == 0 || port > 65535:
		return bad("the port must be 1 to 65535")
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() {
			return bad("no IPv6 address in the brackets")
		}
		if addr.IsUnspecified() {
			return bad("an address of all interfaces cannot be connected to")
		}
		return true, nil
	}
	if addr, err := netip.ParseAddr(host); host == "*" || err == nil && addr.IsUnspecified() {
		return bad("an address of all interfaces cannot be connected to")
	}
	if host == "" {
		return bad("no host")
	}
	if strings.ContainsAny(host, ":/;@ ") {
		return bad("bad host")
	}
	return false, nil
}

// sameEndpoint tells whether two endpoints are one under whatever spelling. Names of
// hosts are not looked up.
func sameEndpoint(a, b string) bool {
	first, isPath := strings.CutPrefix(a, "ipc://")
	second, both := strings.CutPrefix(b, "ipc://")
	if isPath && both {
		return ipcpath.Same(first, second)
	}
	return spelled(a) == spelled(b)
}

// spelled writes the endpoints that differ in zeros before the port, or in the case
// of the host, alike.
func spelled(endpoint string) string {
	i := strings.LastIndexByte(endpoint, ':') + 1
	return strings.ToLower(endpoint[:i]) + strings.TrimLeft(endpoint[i:], "0")
}

// ZMQVersion returns the version of the ZeroMQ library that is linked.
func ZMQVersion() string {
	major, minor, patch := zmq.Version()
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// ZMQHasCurve reports whether that library speaks CURVE.
func ZMQHasCurve() bool { return zmq.HasCurve() }
