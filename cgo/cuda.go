// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // CUDA's handles are addresses in nobody's Go memory: they cross as numbers.
// static kvc_status adopt(kvc_manager* m, uintptr_t stream, uint64_t* out, kvc_error* error) {
//   return kvc_cuda_stream_adopt(m, (void*)stream, out, error);
// }
// static kvc_status handle(kvc_manager* m, uint64_t id, uintptr_t* stream, kvc_error* error) {
//   void* found = 0;
//   kvc_status status = kvc_cuda_stream_get(m, id, &found, error);
//   *stream = (uintptr_t)found;
//   return status;
// }
import "C"

import "unsafe"

// DeviceMemory is kvc_device_memory.
type DeviceMemory struct {
	Base      uint64
	Bytes     uint64
	PageBytes uint64
}

// CUDADevice is kvc_cuda_device.
type CUDADevice struct {
	TotalBytes      uint64
	FreeBytes       uint64
	DriverVersion   uint32
	Capability      uint32
	Multiprocessors uint32
	VirtualMemory   uint32
	BatchCopies     uint32
	_               uint32
	Name            [96]byte
}

// CUDAOpen opens the driver and returns how many GPUs the process sees.
func CUDAOpen(err *Error) (uint32, Status) {
	var devices C.uint32_t
	s := C.kvc_cuda_open(&devices, err.c())
	return uint32(devices), Status(s)
}

// CUDADeviceGet tells of a GPU.
func CUDADeviceGet(ordinal uint32, out *CUDADevice, err *Error) Status {
	return Status(C.kvc_cuda_device_get(C.uint32_t(ordinal),
		(*C.kvc_cuda_device)(unsafe.Pointer(out)), err.c()))
}

// CUDABudget returns the pages that bytes or a fraction of free memory buy.
func CUDABudget(ordinal uint32, pageBytes, bytes uint64, freeFraction float64, err *Error) (uint64, Status) {
	var pages C.uint64_t
	s := C.kvc_cuda_budget(C.uint32_t(ordinal), C.uint64_t(pageBytes), C.uint64_t(bytes),
		C.double(freeFraction), &pages, err.c())
	return uint64(pages), Status(s)
}

// CUDAStreamAdopt makes a device stream on the caller's CUstream.
func (m Manager) CUDAStreamAdopt(stream uintptr, err *Error) (uint64, Status) {
	var id C.uint64_t
	s := C.adopt(m.c, C.uintptr_t(stream), &id, err.c())
	return uint64(id), Status(s)
}

// CUDAStreamGet returns the CUstream of a device stream.
func (m Manager) CUDAStreamGet(id uint64, err *Error) (uintptr, Status) {
	var stream C.uintptr_t
	s := C.handle(m.c, C.uint64_t(id), &stream, err.c())
	return uintptr(stream), Status(s)
}

// DeviceMemoryGet tells where the pool's memory is.
func (m Manager) DeviceMemoryGet(out *DeviceMemory, err *Error) Status {
	return Status(C.kvc_device_memory_get(m.c, (*C.kvc_device_memory)(unsafe.Pointer(out)), err.c()))
}
