// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"strconv"
	"strings"
)

// Sentinels, matched with errors.Is. Every error of this package is an *Error
// that wraps one of them, a context's error or the error of an attached source.
var (
	// ErrOption: a value in Options or an argument is missing or outside its
	// range. Key and Value of the Error say which one.
	ErrOption = errors.New("invalid option")
	// ErrNotStarted: Publish or Flush before Start has succeeded.
	ErrNotStarted = errors.New("publisher is not started")
	// ErrStarted: Attach after Start.
	ErrStarted = errors.New("publisher is started")
	// ErrAttached: a publisher has one source; Publish with an attached one, or
	// a second Attach.
	ErrAttached = errors.New("a source is attached")
	// ErrClosed: the publisher is closed.
	ErrClosed = errors.New("publisher is closed")
	// ErrQueueFull: the queue of Publish has no room; the new batch was dropped
	// and its number will be missing from the stream.
	ErrQueueFull = errors.New("queue is full")
	// ErrInvalidEvent: an event breaks an invariant of the wire contract and
	// was not sent. The error of package wire that says why is wrapped too.
	ErrInvalidEvent = errors.New("invalid event")
	// ErrAddressInUse: somebody else has the endpoint.
	ErrAddressInUse = errors.New("address in use")
	// ErrBind: the endpoint cannot be bound for another reason, such as a host
	// name that has no address or an address that this machine does not have.
	ErrBind = errors.New("cannot bind")
	// ErrConnect: ZeroMQ cannot connect to the endpoint. That nobody has bound it
	// yet is no error.
	ErrConnect = errors.New("cannot connect")
	// ErrTransport: ZeroMQ refused to create or configure a socket.
	ErrTransport = errors.New("transport failure")
	// ErrDescriptors: this process may open fewer files than ZeroMQ needs, which would
	// end the process for want of one.
	ErrDescriptors = errors.New("too few file descriptors")
	// ErrDropped: batches that a Flush waited for could not be encoded or sent.
	ErrDropped = errors.New("batches were dropped")
	// ErrNoSnapshots: a Resync without an attached source that can tell all that
	// is announced.
	ErrNoSnapshots = errors.New("the source has no snapshots")
	// ErrSequence: all sequence numbers are used up.
	ErrSequence = errors.New("sequence numbers are exhausted")
)

// Error says which operation failed and why.
type Error struct {
	// Op is the failed operation: "config", "new", "attach", "start", "publish", "flush",
	// "resync".
	Op string
	// Key and Value name the configuration value at fault, in the words of the
	// wire contract ("endpoint"); Key is empty when none is.
	Key, Value string
	// Err is one of the sentinels of this package, a context's error or that of
	// a source.
	Err error
	// Cause is the error underneath, or nil. It is unwrapped too.
	Cause error
	// Detail adds a reason or figures; may be empty.
	Detail string
}

// Error returns one line, such as
// `publisher: new: endpoint "tcp://h": invalid option: no port`.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("publisher: ")
	s.WriteString(e.Op)
	if e.Key != "" {
		s.WriteString(": ")
		s.WriteString(e.Key)
		s.WriteString(" ")
		s.WriteString(strconv.Quote(e.Value))
	}
	s.WriteString(": ")
	s.WriteString(e.Err.Error())
	if e.Detail != "" {
		s.WriteString(": ")
		s.WriteString(e.Detail)
	}
	if e.Cause != nil {
		s.WriteString(": ")
		s.WriteString(e.Cause.Error())
	}
	return s.String()
}

// Unwrap returns the sentinel and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// optionError is what validation returns.
func optionError(key, value, detail string) *Error {
	return &Error{Op: "new", Key: key, Value: value, Err: ErrOption, Detail: detail}
}
