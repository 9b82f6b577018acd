// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // Fences are polled in every scheduler step. The library reads one array,
// // writes the other, keeps neither and never calls back.
// #cgo noescape kvc_device_fences_query
// #cgo nocallback kvc_device_fences_query
import "C"

import "unsafe"

// HostFill is kvc_host_fill.
type HostFill struct {
	Page  uint32
	_     uint32
	Value uint64
}

// DeviceStreamCreate creates a stream of the manager's device.
func (m Manager) DeviceStreamCreate(err *Error) (uint64, Status) {
	var id C.uint64_t
	s := C.kvc_device_stream_create(m.c, &id, err.c())
	return uint64(id), Status(s)
}

// DeviceStreamDestroy destroys it.
func (m Manager) DeviceStreamDestroy(id uint64, err *Error) Status {
	return Status(C.kvc_device_stream_destroy(m.c, C.uint64_t(id), err.c()))
}

// StepStreamCreate creates a stream whose fences are steps.
func (m Manager) StepStreamCreate(err *Error) (uint64, Status) {
	var id C.uint64_t
	s := C.kvc_step_stream_create(m.c, &id, err.c())
	return uint64(id), Status(s)
}

// StepBegin begins a step of a step stream, or of all.
func (m Manager) StepBegin(id, step uint64, err *Error) Status {
	return Status(C.kvc_step_begin(m.c, C.uint64_t(id), C.uint64_t(step), err.c()))
}

// StepDone ends the steps of a step stream, or of all, up to one.
func (m Manager) StepDone(id, step uint64, err *Error) Status {
	return Status(C.kvc_step_done(m.c, C.uint64_t(id), C.uint64_t(step), err.c()))
}

// DeviceFencesQuery sets done[i] to 1 if fences[i] has been reached, else to
// 0; done must be as long as fences.
func (m Manager) DeviceFencesQuery(fences []Fence, done []uint8, err *Error) Status {
	_ = done[:len(fences)]
	return Status(C.kvc_device_fences_query(m.c, C.uint32_t(len(fences)),
		(*C.kvc_fence)(unsafe.Pointer(unsafe.SliceData(fences))),
		(*C.uint8_t)(unsafe.SliceData(done)), err.c()))
}

// DeviceStreamWait makes later work of a stream wait for fences.
func (m Manager) DeviceStreamWait(id uint64, fences []Fence, err *Error) Status {
	return Status(C.kvc_device_stream_wait(m.c, C.uint64_t(id), C.uint32_t(len(fences)),
		(*C.kvc_fence)(unsafe.Pointer(unsafe.SliceData(fences))), err.c()))
}

// HostEnqueueFill queues fake kernels.
func (m Manager) HostEnqueueFill(id uint64, fills []HostFill, err *Error) Status {
	return Status(C.kvc_host_enqueue_fill(m.c, C.uint64_t(id), C.uint32_t(len(fills)),
		(*C.kvc_host_fill)(unsafe.Pointer(unsafe.SliceData(fills))), err.c()))
}

// HostAdvance executes queued operations and returns how many.
func (m Manager) HostAdvance(id, maxOps uint64, err *Error) (uint64, Status) {
	var executed C.uint64_t
	s := C.kvc_host_advance(m.c, C.uint64_t(id), C.uint64_t(maxOps), &executed, err.c())
	return uint64(executed), Status(s)
}

// HostRead reads len(dst) bytes of a page.
func (m Manager) HostRead(page uint32, offset uint64, dst []byte, err *Error) Status {
	return Status(C.kvc_host_read(m.c, C.uint32_t(page), C.uint64_t(offset),
		C.uint64_t(len(dst)), (*C.uint8_t)(unsafe.SliceData(dst)), err.c()))
}
