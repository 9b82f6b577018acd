// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// replayHWM and replayBytes are what of an answer may wait here. The rest waits
	// at the server: the network holds it back.
	replayHWM   = 64
	replayBytes = 4 << 20
	// curveReplayBytes is that with CURVE, where the network does not hold it back: a
	// snapshot of some million blocks. Of a longer answer the rest is lost, and asked
	// for again, if the reader is so far behind.
	curveReplayBytes = 256 << 20
	// The frames of an answer in the topic and in the legacy dialect. The first
	// one is empty, the last three or two are those of a live message.
	topicFrames  = 4
	legacyFrames = 3
)

// replayer makes requests for replays. Each has a connection of its own, so that
// what is still under way for the request before cannot be taken for an answer.
type replayer struct {
	source source
	wake   chan struct{}
	inbox  *inbox // nil: there is no request
	end    func() error
}

// ask ends the request before and asks for the batches from a number on. It
// does not wait for the server.
func (r *replayer) ask(start uint64) error {
	if err := r.drop(); err != nil {
		return &Error{"replay", err, ""}
	}
	messages, bytes := replayHWM, replayBytes
	if r.source.curve != nil {
		messages, bytes = maxAnswer, curveReplayBytes
	}
	box := newInbox(r.wake, messages, bytes)
	s := r.source
	// The delimiter makes it what a REQ socket would send.
	s.request = [][]byte{{}, wire.AppendSeq(nil, start)}
	end, err := s.open(box)
	if err != nil {
		return &Error{"replay", err, ""}
	}
	r.inbox, r.end = box, end
	return nil
}

// drop ends the request.
func (r *replayer) drop() error {
	if r.inbox == nil {
		return nil
	}
	end := r.end
	r.inbox, r.end = nil, nil
	return end()
}

// read returns the next batch of the answer, nil if there is none yet,
// ErrFrames for what belongs to no answer, or why there will be no more of it. The end is
// a message with EndSeq.
func (r *replayer) read() (*Message, error) {
	var got received
	if r.inbox == nil {
		return nil, nil
	}
	if !r.inbox.take(&got) {
		return nil, r.broken()
	}
	if got.dropped {
		return nil, &Error{"replay", ErrFrames, fmt.Sprintf("more than %d bytes", r.source.limit+maxOther)}
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

// broken returns why no answer will come, or not by itself soon, else nil.
func (r *replayer) broken() error {
	s := r.inbox.look()
	err := cmp.Or(s.over(), s.trouble)
	var e *Error
	if errors.As(err, &e) {
		return &Error{"replay", e.Err, e.Detail}
	}
	return err
}
