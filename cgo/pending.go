// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // The result arrays are written during the call only, and there are no callbacks.
// #cgo noescape kvc_waiters_take
// #cgo nocallback kvc_waiters_take
import "C"

import "unsafe"

// The outcomes of a wait.
const (
	PendingCommitted uint32 = C.KVC_PENDING_COMMITTED
	PendingGivenUp   uint32 = C.KVC_PENDING_GIVEN_UP
)

// Waiter is kvc_waiter.
type Waiter struct {
	Sequence uint64
	Outcome  uint32
	_        uint32
}

var (
	// kvc_waiter
	_ [0]struct{} = [unsafe.Sizeof(Waiter{}) - unsafe.Sizeof(C.kvc_waiter{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Waiter{}.Sequence) - unsafe.Offsetof(C.kvc_waiter{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Waiter{}.Sequence) - unsafe.Sizeof(C.kvc_waiter{}.sequence)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(Waiter{}.Outcome) - unsafe.Offsetof(C.kvc_waiter{}.outcome)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(Waiter{}.Outcome) - unsafe.Sizeof(C.kvc_waiter{}.outcome)]struct{}{}
)

// WaitersTake takes up to len(waiters) sequences whose waits are over.
func (m Manager) WaitersTake(waiters []Waiter, err *Error) (uint32, Status) {
	var count C.uint32_t
	s := C.kvc_waiters_take(m.c, C.uint32_t(len(waiters)),
		(*C.kvc_waiter)(unsafe.Pointer(unsafe.SliceData(waiters))), &count, err.c())
	return uint32(count), Status(s)
}
