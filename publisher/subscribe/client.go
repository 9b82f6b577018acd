// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// DefaultHWM is the number of messages that may wait in this process. The
	// network and the publisher hold more of them; beyond all, messages are lost.
	DefaultHWM = 10000
	// DefaultHWMBytes is how many bytes may wait in this process: a second of what
	// a loaded engine publishes, many times over.
	DefaultHWMBytes = 64 << 20
	// DefaultMaxMessage is the longest frame taken from a publisher: the
	// longest payload that the decoder accepts unless told otherwise.
	DefaultMaxMessage = 32 << 20
	// mostMessage keeps sums of a message's frames within an int.
	mostMessage = 1 << 30
)

// ClientOptions configures a Client.
type ClientOptions struct {
	// Endpoint to connect to, tcp://HOST:PORT or ipc://PATH. HOST is an IPv4 address,
	// an IPv6 address in brackets, or a name, of which only IPv4 addresses are used.
	// Nobody needs to be there yet.
	Endpoint string
	// Topic is the prefix of the topics to receive; "" means all. It is text of at most
	// wire.MaxTopic bytes, as topics are.
	Topic string
	// HWM is the number of messages that may wait in this process and HWMBytes the bytes
	// with what holds them (a single message may be longer); then the connection is not read until some have
	// been taken, so that the rest waits in the network and at the publisher, which drops
	// what is beyond its own bound. With CURVE it is read on, and what comes meanwhile is
	// dropped here. MaxMessage is the longest frame in bytes, at most 1 GiB; a longer one
	// ends the connection for good. 0 means DefaultHWM, DefaultHWMBytes and DefaultMaxMessage.
	// No publisher makes this process hold more than HWMBytes and three times MaxMessage,
	// unless it has the key of CurveServerKeyFile: ZeroMQ has no bound for the number of
	// frames in a message.
	HWM, HWMBytes int
	MaxMessage    int
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
	case o.HWMBytes < 0:
		return optionError("HWMBytes", o.HWMBytes, "at least 0")
	case o.MaxMessage < 0 || o.MaxMessage > mostMessage:
		return optionError("MaxMessage", o.MaxMessage, fmt.Sprintf("0 to %d", mostMessage))
	}
	if why := wire.BadTopic(o.Topic); why != "" {
		return &Error{"connect", ErrOption, fmt.Sprintf("Topic %q: %s", o.Topic, why)}
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
	// connection is that of received.
	connection int
}

// Client receives live messages over a connection of its own. It connects again
// by itself when a publisher goes and comes back. One goroutine at a time may use
// it.
type Client struct {
	source source
	inbox  *inbox
	end    func() error // ends what fills the inbox; nil = closed
	// state is what watch has seen last, handshakes how often the client was connected.
	state
	curve *curve
	timer *time.Timer
}

// Connect begins to receive. It returns ErrEndpoint for an endpoint that cannot
// be right and ErrOption for a number or a file of a key that cannot, before it
// opens anything, and does not wait for the publisher.
func Connect(o ClientOptions) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s, err := checkEndpoint("connect", o.Endpoint)
	if err != nil {
		return nil, err
	}
	keys, err := loadCurve(&o)
	if err != nil {
		return nil, err
	}
	s.topic, s.limit, s.curve = o.Topic, cmp.Or(o.MaxMessage, DefaultMaxMessage), keys
	c := &Client{source: s, curve: keys, timer: time.NewTimer(0),
		inbox: newInbox(make(chan struct{}, 1), cmp.Or(o.HWM, DefaultHWM), cmp.Or(o.HWMBytes, DefaultHWMBytes))}
	if err := keys.begin(); err != nil {
		return nil, &Error{"connect", err, "context"}
	}
	if c.end, err = s.open(c.inbox); err != nil {
		keys.close()
		return nil, &Error{"connect", err, ""}
	}
	return c, nil
}

// Receive returns the next message, ErrTimeout after wait without one, or
// ErrFrames for a message of another shape, which is then dropped; the client
// stays usable after both, and after an error of the system, such as that there is no
// descriptor left for a new connection: it tries again. ErrProtocol says that the publisher
// has been given up, because of a frame beyond MaxMessage or because it speaks no ZMTP 3,
// and ErrRefused that the publisher does not let us in; all that it sent before has been
// returned, and no message will come any more.
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
		c.wait(left)
	}
}

// wait waits until something has happened, or the time is over.
func (c *Client) wait(d time.Duration) {
	c.timer.Reset(d)
	select {
	case <-c.inbox.wake:
	case <-c.timer.C:
	}
}

func (c *Client) closed() bool { return c.end == nil }

// poll returns the next message, nil if there is none yet, ErrFrames, or what keeps the
// system from making a connection.
func (c *Client) poll() (*Message, error) {
	var m received
	if !c.inbox.take(&m) {
		c.watch()
		err := c.trouble
		c.trouble = nil
		return nil, err
	}
	switch {
	case m.n != wire.LiveFrames:
		return nil, &Error{"receive", ErrFrames, fmt.Sprintf("%d frames, want %d", m.n, wire.LiveFrames)}
	case m.dropped:
		return nil, &Error{"receive", ErrFrames, fmt.Sprintf("more than %d bytes", c.source.limit+maxOther)}
	}
	seq, err := wire.ParseSeq(m.frames[1])
	if err != nil {
		return nil, &Error{"receive", ErrFrames, err.Error()}
	}
	return &Message{Topic: string(m.frames[0]), Seq: seq, Payload: m.frames[2], connection: m.connection}, nil
}

// idle tells a quiet publisher from one that has been given up and of which nothing
// waits.
func (c *Client) idle() error {
	c.watch()
	if err := c.over(); err != nil {
		return err
	}
	return &Error{"receive", ErrTimeout, ""}
}

// watch takes in what has happened to the connection.
func (c *Client) watch() {
	trouble := c.trouble
	if c.state = c.inbox.look(); c.trouble == nil {
		c.trouble = trouble // not told yet
	}
}

// stale tells that a message may be of a connection before the newest one that is known
// of.
func (c *Client) stale(m *Message) bool { return m.connection < c.handshakes }

// Lost reports that the publisher has been given up, or that a connection with CURVE has
// ended and it is not known yet whether it is made anew. Call Receive on: when what waits
// has been taken, and within about a second, it returns ErrProtocol or ErrRefused, or Lost
// is false.
func (c *Client) Lost() bool {
	if !c.closed() {
		c.watch()
	}
	return c.down != nil || !c.lost.IsZero()
}

// Close ends the connection. A second call does nothing.
func (c *Client) Close() error {
	if c.closed() {
		return nil
	}
	err := errors.Join(c.end(), c.curve.close())
	c.end = nil
	c.inbox.drop()
	if err != nil {
		return &Error{"close", err, ""}
	}
	return nil
}
