// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
import "C"

import "unsafe"

// As layout.go, for what devices tell.
var (
	// kvc_device_memory
	_ [0]struct{} = [unsafe.Sizeof(DeviceMemory{}) - unsafe.Sizeof(C.kvc_device_memory{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DeviceMemory{}.Base) - unsafe.Offsetof(C.kvc_device_memory{}.base)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DeviceMemory{}.Base) - unsafe.Sizeof(C.kvc_device_memory{}.base)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DeviceMemory{}.Bytes) - unsafe.Offsetof(C.kvc_device_memory{}.bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DeviceMemory{}.Bytes) - unsafe.Sizeof(C.kvc_device_memory{}.bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(DeviceMemory{}.PageBytes) - unsafe.Offsetof(C.kvc_device_memory{}.page_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(DeviceMemory{}.PageBytes) - unsafe.Sizeof(C.kvc_device_memory{}.page_bytes)]struct{}{}

	// kvc_cuda_device
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}) - unsafe.Sizeof(C.kvc_cuda_device{})]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.TotalBytes) - unsafe.Offsetof(C.kvc_cuda_device{}.total_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.TotalBytes) - unsafe.Sizeof(C.kvc_cuda_device{}.total_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.FreeBytes) - unsafe.Offsetof(C.kvc_cuda_device{}.free_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.FreeBytes) - unsafe.Sizeof(C.kvc_cuda_device{}.free_bytes)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.DriverVersion) - unsafe.Offsetof(C.kvc_cuda_device{}.driver_version)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.DriverVersion) - unsafe.Sizeof(C.kvc_cuda_device{}.driver_version)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.Capability) - unsafe.Offsetof(C.kvc_cuda_device{}.capability)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.Capability) - unsafe.Sizeof(C.kvc_cuda_device{}.capability)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.Multiprocessors) - unsafe.Offsetof(C.kvc_cuda_device{}.multiprocessors)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.Multiprocessors) - unsafe.Sizeof(C.kvc_cuda_device{}.multiprocessors)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.VirtualMemory) - unsafe.Offsetof(C.kvc_cuda_device{}.virtual_memory)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.VirtualMemory) - unsafe.Sizeof(C.kvc_cuda_device{}.virtual_memory)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.BatchCopies) - unsafe.Offsetof(C.kvc_cuda_device{}.batch_copies)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.BatchCopies) - unsafe.Sizeof(C.kvc_cuda_device{}.batch_copies)]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(CUDADevice{}.Name) - unsafe.Offsetof(C.kvc_cuda_device{}.name)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(CUDADevice{}.Name) - unsafe.Sizeof(C.kvc_cuda_device{}.name)]struct{}{}
)
