// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// replayHWM is the number of messages of an answer that may wait here. The
	// rest waits at the server: the network holds it back.
	replayHWM = 64
	// The frames of an answer in the topic and in the legacy dialect. The first
	// one is empty, the last three or two are those of a live message.
	topicFrames  = 4
	legacyFrames = 3
)

// replayer makes requests for replays. Each has a socket of its own, so that
// what is still under way for the request before cannot be taken for an answer.
type replayer struct {
	ctx      *zmq.Context
	endpoint string
	ipv6     bool
	limit    int // of a frame, in bytes
	curve    *curve
	link
}

// ask ends the request before and asks for the batches from a number on. It
// does not wait for the server.
func (r *replayer) ask(start uint64) error {
	r.drop()
	s, err := r.ctx.NewSocket(zmq.DEALER)
	if err != nil {
		return &Error{"replay", err, "socket"}
	}
	r.socket = s
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
}

// read returns the next batch of the answer, nil if there is none yet, or
// ErrFrames for what belongs to no answer. The end is a message with EndSeq.
func (r *replayer) read() (*Message, error) {
	var got received
	if err := r.link.read(&got); err != nil {
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
	return c.wait(d, c.socket, c.monitor, r.socket)
}
