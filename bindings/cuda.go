// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"bytes"
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// DeviceKind is a kind of device.
type DeviceKind uint32

// The kinds of devices.
const (
	DeviceHost DeviceKind = cgo.DeviceHost
	DeviceCUDA DeviceKind = cgo.DeviceCUDA
)

// CUDADevice tells of a GPU.
type CUDADevice struct {
	Name string
	// Capability is 10 x major + minor of its compute capability.
	Capability int
	// Multiprocessors that it has.
	Multiprocessors int
	// DriverVersion is 1000 x major + 10 x minor of the CUDA release that the
	// driver supports.
	DriverVersion int
	// TotalBytes of memory, and FreeBytes at the moment of asking.
	TotalBytes, FreeBytes uint64
	// VirtualMemory: memory can be mapped chunk by chunk, so that of a pool can grow and
	// shrink. Without it a pool keeps what it has at first, see Manager.Resize.
	VirtualMemory bool
	// BatchCopies: the driver makes many copies in one call.
	BatchCopies bool
}

// OpenCUDA opens the CUDA driver, once for the process, and returns how many
// GPUs it sees. Nothing of CUDA happens in a process that does not call it (or
// CUDAInfo, or CUDABudget). ErrNoDevice, and the error's Cause, say why there is none.
func OpenCUDA() (int, error) {
	var e cgo.Error
	devices, s := cgo.CUDAOpen(&e)
	if s != cgo.OK {
		return 0, callError("open CUDA", s, &e)
	}
	return int(devices), nil
}

// CUDAInfo tells of GPU ordinal.
func CUDAInfo(ordinal int) (CUDADevice, error) {
	const op = "CUDA info"
	if ordinal < 0 || ordinal > math.MaxInt32 {
		return CUDADevice{}, argumentError(op, "ordinal is %d", ordinal)
	}
	var e cgo.Error
	var raw cgo.CUDADevice
	if s := cgo.CUDADeviceGet(uint32(ordinal), &raw, &e); s != cgo.OK {
		return CUDADevice{}, callError(op, s, &e)
	}
	name, _, _ := bytes.Cut(raw.Name[:], []byte{0})
	return CUDADevice{
		Name:            string(name),
		Capability:      int(raw.Capability),
		Multiprocessors: int(raw.Multiprocessors),
		DriverVersion:   int(raw.DriverVersion),
		TotalBytes:      raw.TotalBytes,
		FreeBytes:       raw.FreeBytes,
		VirtualMemory:   raw.VirtualMemory != 0,
		BatchCopies:     raw.BatchCopies != 0,
	}, nil
}

// CUDABudget returns how many pages of pageBytes a budget buys on a GPU: size
// bytes, or a fraction in (0, 1] of what is free there now; the other is 0.
func CUDABudget(ordinal int, pageBytes, size uint64, freeFraction float64) (int, error) {
	const op = "CUDA budget"
	if ordinal < 0 || ordinal > math.MaxInt32 {
		return 0, argumentError(op, "ordinal is %d", ordinal)
	}
	var e cgo.Error
	pages, s := cgo.CUDABudget(uint32(ordinal), pageBytes, size, freeFraction, &e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return int(pages), nil
}

// AdoptCUDAStream makes a device stream on the caller's CUstream, which must
// live until DestroyDeviceStream and until its fences have been reached. 0 is
// the legacy NULL stream.
func (m *Manager) AdoptCUDAStream(stream uintptr) (DeviceStream, error) {
	const op = "adopt CUDA stream"
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	var e cgo.Error
	id, s := m.raw.CUDAStreamAdopt(stream, &e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return DeviceStream(id), nil
}

// CUDAStream is the CUstream of a device stream, for launching kernels.
func (m *Manager) CUDAStream(stream DeviceStream) (uintptr, error) {
	const op = "CUDA stream"
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	var e cgo.Error
	handle, s := m.raw.CUDAStreamGet(uint64(stream), &e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return handle, nil
}

// DeviceMemory is the pool's memory as kernels address it: page p is at
// Base + p x PageBytes. Bytes are the addresses: those of MaxBlocks pages if the pool is
// elastic, of CapacityBlocks where the device cannot map more. All is 0 when the manager
// keeps the books only.
type DeviceMemory struct {
	Base, Bytes, PageBytes uint64
}

// DeviceMemory tells where the pool's memory is.
func (m *Manager) DeviceMemory() (DeviceMemory, error) {
	const op = "device memory"
	if err := m.enter(op); err != nil {
		return DeviceMemory{}, err
	}
	defer m.leave()
	var e cgo.Error
	var raw cgo.DeviceMemory
	if s := m.raw.DeviceMemoryGet(&raw, &e); s != cgo.OK {
		return DeviceMemory{}, callError(op, s, &e)
	}
	return DeviceMemory{raw.Base, raw.Bytes, raw.PageBytes}, nil
}
