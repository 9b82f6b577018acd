// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import (
	"bytes"
	"unsafe"
)

// Status is kvc_status.
type Status int32

// The statuses of the ABI. The numbers never change.
const (
	OK              Status = C.KVC_OK
	InvalidArgument Status = C.KVC_INVALID_ARGUMENT
	BadState        Status = C.KVC_BAD_STATE
	StaleHandle     Status = C.KVC_STALE_HANDLE
	NeverFits       Status = C.KVC_NEVER_FITS
	NotNow          Status = C.KVC_NOT_NOW
	Busy            Status = C.KVC_BUSY
	End             Status = C.KVC_END
	OutOfMemory     Status = C.KVC_OUT_OF_MEMORY
	DeviceError     Status = C.KVC_DEVICE_ERROR
	Corrupt         Status = C.KVC_CORRUPT
	Internal        Status = C.KVC_INTERNAL
	NoDevice        Status = C.KVC_NO_DEVICE
)

// Name is the ABI's own short name of the status.
func (s Status) Name() string { return C.GoString(C.kvc_status_name(C.kvc_status(s))) }

// Cause is kvc_cause.
type Cause uint32

// The causes of NoDevice. The numbers never change.
const (
	CauseNone         Cause = C.KVC_CAUSE_NONE
	CauseNotOpened    Cause = C.KVC_CAUSE_NOT_OPENED
	CauseAbsent       Cause = C.KVC_CAUSE_ABSENT
	CauseBroken       Cause = C.KVC_CAUSE_BROKEN
	CauseTooOld       Cause = C.KVC_CAUSE_TOO_OLD
	CauseStub         Cause = C.KVC_CAUSE_STUB
	CauseForbidden    Cause = C.KVC_CAUSE_FORBIDDEN
	CauseNotReady     Cause = C.KVC_CAUSE_NOT_READY
	CauseMismatch     Cause = C.KVC_CAUSE_MISMATCH
	CauseIncompatible Cause = C.KVC_CAUSE_INCOMPATIBLE
	CauseNoGPU        Cause = C.KVC_CAUSE_NO_GPU
	CauseMPS          Cause = C.KVC_CAUSE_MPS
	CauseInitFailed   Cause = C.KVC_CAUSE_INIT_FAILED
	CauseForked       Cause = C.KVC_CAUSE_FORKED
)

// Error is kvc_error: filled by a call that does not return OK, otherwise left
// as it was.
type Error struct {
	Status     Status
	SystemCode int32
	Cause      Cause
	Message    [244]byte
}

// Text is the message up to its NUL.
func (e *Error) Text() string {
	text, _, _ := bytes.Cut(e.Message[:], []byte{0})
	return string(text)
}

// c is the view the ABI takes. A nil error is allowed there and here.
func (e *Error) c() *C.kvc_error { return (*C.kvc_error)(unsafe.Pointer(e)) }
