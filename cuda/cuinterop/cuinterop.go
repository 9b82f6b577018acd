// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package cuinterop

import (
	"errors"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"
)

// A cu.Stream is a CUstream and nothing else: these fail to compile if it grows
// or shrinks.
var (
	_ [unsafe.Sizeof(cu.Stream{}) - unsafe.Sizeof(uintptr(0))]struct{}
	_ [unsafe.Sizeof(uintptr(0)) - unsafe.Sizeof(cu.Stream{})]struct{}
)

// InContext calls f on an OS thread on which ctx is current, and takes the
// context back afterwards. A manager that f creates with Config.CallersContext
// belongs to ctx, which must outlive it; its later calls may be made anywhere.
// The error is f's, or the driver's.
func InContext(ctx cu.CUContext, f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(ctx); err != nil {
		return err
	}
	defer func() {
		if _, popped := cu.PopCurrentCtx(); popped != nil {
			err = errors.Join(err, popped)
		}
	}()
	return f()
}

// Handle is a stream as Manager.AdoptCUDAStream takes it. The stream stays the
// caller's. cu.NoStream is the legacy NULL stream.
func Handle(stream cu.Stream) uintptr {
	return uintptr(unsafe.Pointer(stream.C()))
}

// Stream is a handle that Manager.CUDAStream has given. The stream stays the
// manager's: it must not be destroyed.
func Stream(handle uintptr) cu.Stream {
	return *(*cu.Stream)(unsafe.Pointer(&handle))
}

// Pointer is an address in device memory: DeviceMemory.Base, of a page, or of a
// DeviceTable.
func Pointer(address uint64) cu.DevicePtr {
	return cu.DevicePtr(address)
}
