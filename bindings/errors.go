// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"errors"
	"fmt"

	"github.com/kvcast/kvcast/cgo"
)

// What went wrong; compare with errors.Is.
var (
	// ErrInvalidArgument: an argument can never be right.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrBadState: the call does not fit the object's state, such as a commit
	// of more tokens than the sequence has room for.
	ErrBadState = errors.New("bad state")
	// ErrStaleHandle: the id names nothing, or something released.
	ErrStaleHandle = errors.New("stale handle")
	// ErrNeverFits: the demand exceeds the whole pool; waiting cannot help.
	ErrNeverFits = errors.New("never fits")
	// ErrNotNow: the demand does not fit at this moment; retry after a release
	// or after a fence has been reached.
	ErrNotNow = errors.New("not now")
	// ErrBusy: another user holds the object.
	ErrBusy = errors.New("busy")
	// ErrClosed: the manager or stream has been closed.
	ErrClosed = errors.New("closed")
	// ErrOutOfMemory: host memory is exhausted.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrDevice: the device reported an error or was misused.
	ErrDevice = errors.New("device error")
	// ErrCorrupt: Check found a broken invariant.
	ErrCorrupt = errors.New("corrupt")
	// ErrInternal: a defect in the library.
	ErrInternal = errors.New("internal error")
	// ErrNoDevice: there is no such device, or no driver that can be used; the
	// error's Cause says why, its Detail also what helps.
	ErrNoDevice = errors.New("no device")
)

// Status says what kind of error an Error is.
type Status int32

// The kinds of errors. Up to StatusNoDevice the numbers are those of the C ABI
// and never change.
const (
	StatusInvalidArgument = Status(cgo.InvalidArgument)
	StatusBadState        = Status(cgo.BadState)
	StatusStaleHandle     = Status(cgo.StaleHandle)
	StatusNeverFits       = Status(cgo.NeverFits)
	StatusNotNow          = Status(cgo.NotNow)
	StatusBusy            = Status(cgo.Busy)
	StatusOutOfMemory     = Status(cgo.OutOfMemory)
	StatusDevice          = Status(cgo.DeviceError)
	StatusCorrupt         = Status(cgo.Corrupt)
	StatusInternal        = Status(cgo.Internal)
	StatusNoDevice        = Status(cgo.NoDevice)

	// StatusClosed is Go's own: the C ABI has no closed handles.
	StatusClosed Status = -1
)

// sentinel is the exported variable that stands for s.
func (s Status) sentinel() error {
	switch s {
	case StatusInvalidArgument:
		return ErrInvalidArgument
	case StatusBadState:
		return ErrBadState
	case StatusStaleHandle:
		return ErrStaleHandle
	case StatusNeverFits:
		return ErrNeverFits
	case StatusNotNow:
		return ErrNotNow
	case StatusBusy:
		return ErrBusy
	case StatusClosed:
		return ErrClosed
	case StatusOutOfMemory:
		return ErrOutOfMemory
	case StatusDevice:
		return ErrDevice
	case StatusCorrupt:
		return ErrCorrupt
	case StatusNoDevice:
		return ErrNoDevice
	default:
		return ErrInternal
	}
}

// String is the text of the sentinel that stands for s.
func (s Status) String() string { return s.sentinel().Error() }

// Error is the error type of this package.
type Error struct {
	// Op is the operation that failed, such as "grow".
	Op string
	// Status is the kind of error.
	Status Status
	// Detail is one line from where the error arose, or empty: the errors of
	// single items have none.
	Detail string
	// SystemCode is the errno or driver code behind the error, or 0.
	SystemCode int
	// Cause says why there is no device, if that is what the error is; else CauseNone.
	Cause Cause
}

// Error implements error.
func (e *Error) Error() string {
	s := "bindings: " + e.Op + ": " + e.Status.String()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.SystemCode != 0 {
		s += fmt.Sprintf(" (code %d)", e.SystemCode)
	}
	return s
}

// Unwrap gives the sentinel, so that errors.Is(err, ErrNotNow) and its like work.
func (e *Error) Unwrap() error { return e.Status.sentinel() }

// Is matches another *Error of the same kind, and of the same operation if
// that one names an operation; and the error's Cause, if it has one.
func (e *Error) Is(target error) bool {
	if cause, ok := target.(Cause); ok {
		return cause != CauseNone && cause == e.Cause
	}
	t, ok := target.(*Error)
	return ok && t.Status == e.Status && (t.Op == "" || t.Op == e.Op)
}

// op is an operation with the errors that its items may meet, made once so
// that refusing an item costs no allocation.
type op struct {
	name  string
	items [cgo.NoDevice + 1]*Error
}

func newOp(name string) *op {
	o := &op{name: name}
	for s := range o.items {
		o.items[s] = &Error{Op: name, Status: Status(s)}
	}
	return o
}

// The batch operations; constant once made.
var (
	opCreate  = newOp("create")
	opProbe   = newOp("probe")
	opGrow    = newOp("grow")
	opCommit  = newOp("commit")
	opRelease = newOp("release")

	opResidency = newOp("residency")
	opCancel    = newOp("cancel")
	opHold      = newOp("release held")
	opEndHold   = newOp("release hold")
	opSuspend   = newOp("suspend")
	opResume    = newOp("resume")
	opTruncate  = newOp("truncate")
	opFork      = newOp("fork")
	opStop      = newOp("stop")
	opRetain    = newOp("retain")
	opEnd       = newOp("end")
	opPin       = newOp("pin")
	opUnpin     = newOp("unpin")
	opDrop      = newOp("drop scopes")
	opResize    = newOp("resize")
)

// item is the error of one item, nil for OK.
func (o *op) item(s cgo.Status) error {
	if s == cgo.OK {
		return nil
	}
	if s < 0 || int(s) >= len(o.items) {
		return &Error{Op: o.name, Status: StatusInternal, Detail: fmt.Sprintf("unknown status %d", s)}
	}
	return o.items[s]
}

// callError makes the error of a whole call.
func callError(op string, s cgo.Status, e *cgo.Error) error {
	return &Error{Op: op, Status: Status(s), Detail: e.Text(), SystemCode: int(e.SystemCode), Cause: Cause(e.Cause)}
}

// argumentError refuses a call before it reaches the library.
func argumentError(op, format string, args ...any) error {
	return &Error{Op: op, Status: StatusInvalidArgument, Detail: fmt.Sprintf(format, args...)}
}

func closedError(op string) error { return &Error{Op: op, Status: StatusClosed} }
