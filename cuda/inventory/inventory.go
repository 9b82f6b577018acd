// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sentinels, matched with errors.Is. Every error of this package is an *Error
// that wraps one of them.
var (
	// ErrNoLibrary: NVML is not installed, so there is no NVIDIA driver either.
	ErrNoLibrary = errors.New("NVML library not found")
	// ErrNoDriver: the library is there and the kernel driver is not loaded.
	ErrNoDriver = errors.New("NVIDIA driver not loaded")
	// ErrNoPermission: the driver does not talk to this user.
	ErrNoPermission = errors.New("no permission to use the NVIDIA driver")
	// ErrNVML: any other refusal; Error.Code says which.
	ErrNVML = errors.New("NVML failure")
)

// Error says which NVML call failed.
type Error struct {
	// Op is the call, such as "init" or "GPU 1: name".
	Op string
	// Code is NVML's return code.
	Code int
	// Err is one of the sentinels of this package.
	Err error
}

// Error returns one line.
func (e *Error) Error() string {
	s := "inventory: " + e.Op + ": " + e.Err.Error()
	if errors.Is(e.Err, ErrNVML) {
		s += " (" + nvml.Return(e.Code).Error() + ")"
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }

// GPU is one device as the driver numbers them.
type GPU struct {
	Index int
	// Name is the product name, such as "NVIDIA H100 80GB HBM3".
	Name string
	// UUID names the device across restarts and orders of numbering.
	UUID string
	// PCIBusID is DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal.
	PCIBusID string
	// MemoryBytes is all memory of the device, 0 where the driver does not
	// tell: some integrated devices have none of their own.
	MemoryBytes uint64
	// ComputeMajor and ComputeMinor are the CUDA compute capability.
	ComputeMajor, ComputeMinor int
}

// Inventory is what a driver reports.
type Inventory struct {
	// DriverVersion is the driver's own, such as "550.54.15"; CUDAVersion the
	// newest CUDA version that it supports, such as "12.4".
	DriverVersion, CUDAVersion string
	GPUs                       []GPU
}

// List asks the driver. A machine with a driver and no GPU gives an empty list
// and no error. It may be called from any goroutine.
func List() (*Inventory, error) { return list(nvml.New()) }

func list(lib nvml.Interface) (inv *Inventory, err error) {
	if err := check("init", lib.Init()); err != nil {
		return nil, err
	}
	defer func() {
		if shutErr := check("shutdown", lib.Shutdown()); err == nil && shutErr != nil {
			inv, err = nil, shutErr
		}
	}()
	inv = &Inventory{}
	version, ret := lib.SystemGetDriverVersion()
	if err := check("driver version", ret); err != nil {
		return nil, err
	}
	inv.DriverVersion = version
	// NVML counts 1000 per major and 10 per minor version.
	cuda, ret := lib.SystemGetCudaDriverVersion()
	if err := check("CUDA version", ret); err != nil {
		return nil, err
	}
	inv.CUDAVersion = strconv.Itoa(cuda/1000) + "." + strconv.Itoa(cuda%1000/10)
	n, ret := lib.DeviceGetCount()
	if err := check("count", ret); err != nil {
		return nil, err
	}
	for i := range n {
		gpu, err := describe(lib, i)
		if err != nil {
			return nil, err
		}
		inv.GPUs = append(inv.GPUs, gpu)
	}
	return inv, nil
}

func describe(lib nvml.Interface, index int) (GPU, error) {
	g := GPU{Index: index}
	device, ret := lib.DeviceGetHandleByIndex(index)
	if err := check(fmt.Sprintf("GPU %d", index), ret); err != nil {
		return g, err
	}
	for _, query := range []struct {
		name string
		ask  func() nvml.Return
	}{
		{"name", func() (r nvml.Return) { g.Name, r = device.GetName(); return r }},
		{"UUID", func() (r nvml.Return) { g.UUID, r = device.GetUUID(); return r }},
		{"PCI", func() nvml.Return {
			pci, r := device.GetPciInfo()
			if r == nvml.SUCCESS {
				g.PCIBusID = busID(pci.BusId[:])
			}
			return r
		}},
		{"memory", func() nvml.Return {
			memory, r := device.GetMemoryInfo()
			if r == nvml.ERROR_NOT_SUPPORTED {
				return nvml.SUCCESS
			}
			g.MemoryBytes = memory.Total
			return r
		}},
		{"compute capability", func() (r nvml.Return) {
			g.ComputeMajor, g.ComputeMinor, r = device.GetCudaComputeCapability()
			return r
		}},
	} {
		if err := check(fmt.Sprintf("GPU %d: %s", index, query.name), query.ask()); err != nil {
			return g, err
		}
	}
	return g, nil
}

// busID converts a zero-terminated C string.
func busID(chars []int8) string {
	var s strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

func check(op string, ret nvml.Return) error {
	var sentinel error
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		sentinel = ErrNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		sentinel = ErrNoDriver
	case nvml.ERROR_NO_PERMISSION:
		sentinel = ErrNoPermission
	default:
		sentinel = ErrNVML
	}
	return &Error{Op: op, Code: int(ret), Err: sentinel}
}
