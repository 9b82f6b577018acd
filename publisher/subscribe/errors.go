// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"errors"
	"strconv"
)

var (
	// ErrMirrorFull: the stream announces more blocks, more different places or
	// longer hashes than the mirror is allowed to hold.
	ErrMirrorFull = errors.New("mirror is full")
	// ErrEndpoint: an endpoint that a subscriber cannot connect to.
	ErrEndpoint = errors.New("bad endpoint")
	// ErrOption: a field of the options has a value that it cannot have.
	ErrOption = errors.New("bad option")
	// ErrDescriptors: this process may open fewer files than ZeroMQ needs, which would
	// end the process for want of one.
	ErrDescriptors = errors.New("too few file descriptors")
	// ErrFrames: a message that is not topic, sequence number and payload.
	ErrFrames = errors.New("malformed message")
	// ErrTimeout: no message within the time given to Receive.
	ErrTimeout = errors.New("no message in time")
	// ErrProtocol: the publisher broke the transport protocol, or sent a frame
	// beyond the limit, and is not listened to any more.
	ErrProtocol = errors.New("connection given up: a frame beyond the limit, or no ZMTP")
	// ErrRefused: the publisher does not let us in, because of our key or because
	// only one side speaks CURVE.
	ErrRefused = errors.New("refused by the publisher")
	// ErrClosed: the client has been closed.
	ErrClosed = errors.New("client is closed")
)

// Error is an error of this package other than a Breach.
type Error struct {
	// Op is what was being done: "connect", "receive", "replay", "apply",
	// "close", "check".
	Op string
	// Err is one of the sentinels of this package or an error from below.
	Err error
	// Detail adds names and figures; may be empty.
	Detail string
}

// Error returns one line.
func (e *Error) Error() string {
	s := "subscribe: " + e.Op + ": " + e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the error below.
func (e *Error) Unwrap() error { return e.Err }

// Breach is a violation of the wire contract, found by a Verifier.
type Breach struct {
	// Seq is the number of the batch.
	Seq uint64
	// Event is the index of the event in its batch, or -1 for the batch.
	Event int
	// What says which rule is broken, and by which values.
	What string
}

// Error returns one line such as "batch 7, event 2: parent 5 is not announced".
func (b *Breach) Error() string {
	s := "batch " + strconv.FormatUint(b.Seq, 10)
	if b.Event >= 0 {
		s += ", event " + strconv.Itoa(b.Event)
	}
	return s + ": " + b.What
}
