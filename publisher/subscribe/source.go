// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/kvcast/kvcast/publisher/internal/zmtp"
)

const (
	// reconnect is the pause between two attempts to connect, growing up to
	// reconnectMax: a subscriber may be there before its publisher.
	reconnect    = 20 * time.Millisecond
	reconnectMax = 500 * time.Millisecond
	// dialTime is how long one attempt may take.
	dialTime = 10 * time.Second
	// The kernel's keep-alive finds a publisher's machine that is gone without a
	// word, so that the connection is made anew: after keepaliveIdle it asks
	// keepaliveCount times, every keepaliveInterval.
	keepaliveIdle     = 5 * time.Second
	keepaliveCount    = 3
	keepaliveInterval = 5 * time.Second
	// maxOther is what the frames of a message besides its longest may have together,
	// in bytes: a topic and a number.
	maxOther = 64 << 10
)

// source is one end of a connection that is made anew when it ends, until closed.
type source struct {
	network, address string // for net.Dial
	endpoint         string // as it was given
	ipv6             bool
	// limit is the longest frame, in bytes.
	limit int
	// request makes it a DEALER that sends these frames, once: when the connection
	// that took them ends, nothing more will come. Without them it is a SUB for topic.
	request [][]byte
	topic   string
	curve   *curve
}

// open begins to put what comes into an inbox, and returns what ends it. Without CURVE
// that is without ZeroMQ: libzmq up to 4.3.4 stops reading a connection when a queue is
// full, and if the peer then resets it and has sent a heartbeat before, aborts the
// process when the queue is read on, because it cannot be answered (assertion
// !_io_error). Here nobody reads a connection while its inbox is full, so that the
// network holds the peer back, and its end is found behind what it has sent.
func (s source) open(box *inbox) (end func() error, err error) {
	if s.curve != nil {
		return s.openZMQ(box)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, box)
	}()
	return func() error {
		cancel()
		box.close()
		<-done
		return nil
	}, nil
}

// run makes connections.
func (s source) run(ctx context.Context, box *inbox) {
	dialer := net.Dialer{Timeout: dialTime, KeepAliveConfig: net.KeepAliveConfig{Enable: true,
		Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount}}
	pause := reconnect
	for {
		asked, established := false, false
		conn, err := dialer.DialContext(ctx, s.network, s.address)
		if err == nil {
			established, asked, err = s.serve(ctx, conn, box)
		}
		if ctx.Err() != nil {
			return
		}
		if established {
			pause = reconnect
		}
		why := s.verdict(err)
		if why != nil {
			box.note(func(state *state) { state.down = why })
		}
		if why != nil || asked {
			return
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			pause = reconnectMax
			box.note(func(state *state) { state.trouble = &Error{"receive", err, ""} })
		}
		// Not all that have lost one publisher come back at once.
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/2)):
		}
		pause = min(2*pause, reconnectMax)
	}
}

// verdict says why no other attempt is made, nil if one is.
func (s source) verdict(err error) error {
	var broken *zmtp.Error
	var mechanism *zmtp.MechanismError
	var refused *zmtp.RefusedError
	switch {
	case errors.As(err, &broken):
		return &Error{"receive", ErrProtocol, broken.What}
	case errors.As(err, &mechanism) && mechanism.Mechanism == "CURVE":
		return &Error{"receive", ErrRefused, oneSided}
	case errors.As(err, &mechanism):
		return &Error{"receive", ErrRefused, fmt.Sprintf("it wants the mechanism %.20q", mechanism.Mechanism)}
	case errors.As(err, &refused) && refused.Reason != zmtp.Temporary:
		return &Error{"receive", ErrRefused, fmt.Sprintf("it says %.20q", refused.Reason)}
	}
	return nil
}

// serve reads a connection to its end. established: there was a handshake; asked: a
// request was sent.
func (s source) serve(ctx context.Context, conn net.Conn, box *inbox) (established, asked bool, err error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	kind := zmtp.Sub()
	if s.request != nil {
		kind = zmtp.Dealer()
	}
	c, err := zmtp.Handshake(conn, kind, s.limit)
	if err != nil {
		return false, false, err
	}
	// Whoever sees the subscription finds the connection known here.
	connection := 0
	box.note(func(state *state) {
		state.handshakes++
		connection = state.handshakes
	})
	if s.request != nil {
		err = c.Send(s.request...)
	} else {
		err = c.Send(append([]byte{1}, s.topic...))
	}
	if err != nil {
		return true, false, err
	}
	m := received{connection: connection}
	parts := zmtp.Message{Frames: m.frames[:]}
	for {
		if err := c.Receive(&parts, s.limit+maxOther); err != nil {
			return true, s.request != nil, err
		}
		if s.request == nil && !bytes.HasPrefix(m.frames[0], []byte(s.topic)) {
			continue // not asked for
		}
		if m.n, m.dropped = parts.N, parts.Dropped; !box.put(&m) {
			return true, s.request != nil, context.Canceled
		}
	}
}
