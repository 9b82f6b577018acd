// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

const (
	// EndSeq in the sequence frame of a replay answer marks its end (signed
	// -1). It is never the number of a live batch.
	EndSeq uint64 = 1<<64 - 1
	// SeqLen is the length of a sequence frame in bytes.
	SeqLen = 8
	// LiveFrames is the number of frames of a live message: topic, sequence,
	// payload.
	LiveFrames = 3
	// MaxTopic is the longest topic in bytes.
	MaxTopic = 255
)

// BadTopic returns why nobody may send a topic, or ask for topics that begin so, in a
// few words such as "not UTF-8"; "" for a good one. It judges the frame only: which
// topics a reader understands is the publisher's to know.
func BadTopic(topic string) string {
	switch {
	case len(topic) > MaxTopic:
		return fmt.Sprintf("%d bytes, want at most %d", len(topic), MaxTopic)
	case !utf8.ValidString(topic):
		return "not UTF-8"
	}
	return ""
}

// Message is a live message taken apart. Topic and Payload alias the frames.
type Message struct {
	Topic   []byte
	Seq     uint64
	Payload []byte
}

// AppendSeq appends the 8-byte big-endian sequence frame.
func AppendSeq(dst []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, seq)
}

// ParseSeq reads a sequence frame; any length but 8 is ErrFrames.
func ParseSeq(frame []byte) (uint64, error) {
	if len(frame) != SeqLen {
		return 0, &Error{Op: "parse", Event: -1, Offset: -1, Err: ErrFrames,
			Detail: fmt.Sprintf("sequence frame of %d bytes, want 8", len(frame))}
	}
	return binary.BigEndian.Uint64(frame), nil
}

// ParseMessage takes a live message apart; ErrFrames unless it has exactly
// three frames, the second of 8 bytes. EndSeq is returned like any other
// number: the caller knows whether it may come.
func ParseMessage(frames [][]byte) (Message, error) {
	if len(frames) != LiveFrames {
		return Message{}, &Error{Op: "parse", Event: -1, Offset: -1, Err: ErrFrames,
			Detail: fmt.Sprintf("%d frames, want 3", len(frames))}
	}
	seq, err := ParseSeq(frames[1])
	if err != nil {
		return Message{}, err
	}
	return Message{Topic: frames[0], Seq: seq, Payload: frames[2]}, nil
}
