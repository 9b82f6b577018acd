// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// replayHWM is the number of messages of an answer that may wait here. The
	// rest waits at the server: the network holds it back.
	replayHWM = 64
	// replayHangUp is how long ZeroMQ may take to notice that a connection has ended. If
	// it would have, the rest of an answer is lost, and asked for again.
	replayHangUp = 50 * time.Millisecond
	// The frames of an answer in the topic and in the legacy dialect. The first
	// one is empty, the last three or two are those of a live message.
	topicFrames  = 4
	legacyFrames = 3
)

// errHungUp: the connection ended before the answer was read.
var errHungUp = errors.New("the connection ended")

// replayer makes requests for replays. Each has a socket of its own, so that
// what is still under way for the request before cannot be taken for an answer.
type replayer struct {
	ctx      *zmq.Context
	endpoint string
	ipv6     bool
	limit    int // of a frame, in bytes
	curve    *curve
	link
	// left is what is still to be read of a connection that has ended; over says that
	// there is nothing behind it.
	left []received
	over bool
	// asked counts the requests.
	asked int
}

// ask ends the request before and asks for the batches from a number on. It
// does not wait for the server.
func (r *replayer) ask(start uint64) error {
	r.drop()
	s, err := r.ctx.NewSocket(zmq.DEALER)
	if err != nil {
		return &Error{"replay", err, "socket"}
	}
	r.socket, r.hwm = s, replayHWM
	for _, option := range []struct {
		name string
		set  func() error
	}{
		{"RCVHWM", func() error { return s.SetRcvhwm(replayHWM) }},
		{"MAXMSGSIZE", func() error { return s.SetMaxmsgsize(int64(r.limit)) }},
		{"LINGER", func() error { return s.SetLinger(0) }},
		{"IPV6", func() error { return s.SetIpv6(r.ipv6) }},
		{"RECONNECT_IVL", func() error { return s.SetReconnectIvl(reconnect) }},
		{"RECONNECT_IVL_MAX", func() error { return s.SetReconnectIvlMax(reconnectMax) }},
		{"CURVE", func() error { return r.curve.apply(s) }},
	} {
		if err := option.set(); err != nil {
			return &Error{"replay", err, "option " + option.name}
		}
	}
	r.asked++
	if err := r.observe(r.ctx, fmt.Sprint(replayMonitorName, r.asked), zmq.EVENT_CONNECTED|zmq.EVENT_DISCONNECTED); err != nil {
		return &Error{"replay", err, "monitor"}
	}
	if err := s.Connect(r.endpoint); err != nil {
		return &Error{"replay", ErrEndpoint, fmt.Sprintf("%q: %s", r.endpoint, err)}
	}
	// The delimiter makes it what a REQ socket would send. Nothing waits yet,
	// so there is room.
	if _, err := s.SendMessageDontwait([]byte{}, wire.AppendSeq(nil, start)); err != nil {
		return &Error{"replay", err, "send"}
	}
	return nil
}

// drop ends the request.
func (r *replayer) drop() {
	r.close()
	r.left, r.over = nil, false
}

// asking says that there is a request whose answer has not ended.
func (r *replayer) asking() bool { return r.socket != nil || r.over }

// watch takes in what has happened to the connection.
func (r *replayer) watch() {
	for ok := true; ok; {
		_, _, ok = r.event()
	}
}

// next reads the next message, which has no frames if there is none yet. It returns
// errHungUp when the connection has ended and all of it has been read that can be.
func (r *replayer) next(m *received) error {
	if !r.over && r.hungUp(r.watch) {
		if time.Since(r.hung) < replayHangUp {
			return nil
		}
		var err error
		r.left, err = r.drain()
		if err = errors.Join(err, r.close()); err != nil {
			return err
		}
		r.over = true
	}
	switch {
	case len(r.left) > 0:
		*m, r.left = r.left[0], r.left[1:]
		return nil
	case r.over:
		return errHungUp
	}
	return r.link.read(m)
}

// read returns the next batch of the answer, nil if there is none yet,
// ErrFrames for what belongs to no answer, or errHungUp if no more will come. The end is a message with EndSeq.
func (r *replayer) read() (*Message, error) {
	var got received
	if err := r.next(&got); err != nil {
		return nil, &Error{"replay", err, ""}
	}
	if got.n == 0 {
		return nil, nil
	}
	n, frames := got.n, &got.frames
	m := &Message{}
	var seq []byte
	switch {
	case n == topicFrames && len(frames[0]) == 0:
		m.Topic, seq, m.Payload = string(frames[1]), frames[2], frames[3]
	case n == legacyFrames && len(frames[0]) == 0:
		seq, m.Payload = frames[1], frames[2]
	default:
		return nil, &Error{"replay", ErrFrames,
			fmt.Sprintf("%d frames, the first of %d bytes", n, len(frames[0]))}
	}
	var err error
	if m.Seq, err = wire.ParseSeq(seq); err != nil {
		return nil, &Error{"replay", ErrFrames, err.Error()}
	}
	if m.Seq == wire.EndSeq && len(m.Payload) > 0 {
		return nil, &Error{"replay", ErrFrames, fmt.Sprintf("an end mark with %d bytes", len(m.Payload))}
	}
	m.legacy = n == legacyFrames
	return m, nil
}

// await waits until there is something to read, live, of a replay or of the
// state of the connection, or the time is over.
func (c *Client) await(r *replayer, d time.Duration) error {
	if !r.hung.IsZero() {
		return c.wait(min(d, lookEvery), c.socket, c.monitor)
	}
	return c.wait(d, c.socket, c.monitor, r.socket)
}
