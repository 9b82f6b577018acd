// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// driver is a stand-in for NVML with the given devices.
func driver(devices ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:                       func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:                   func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "550.54.15", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 12040, nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return devices[i], nvml.SUCCESS
		},
	}
}

func device(name string, memory uint64, memoryReturn nvml.Return) *mock.Device {
	return &mock.Device{
		GetNameFunc: func() (string, nvml.Return) { return name, nvml.SUCCESS },
		GetUUIDFunc: func() (string, nvml.Return) { return "GPU-" + name, nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var p nvml.PciInfo
			for i, c := range "00000000:0A:00.0" {
				p.BusId[i] = int8(c)
			}
			return p, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: memory}, memoryReturn
		},
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
	}
}

func TestListDescribesDevices(t *testing.T) {
	lib := driver(device("a", 80<<30, nvml.SUCCESS), device("b", 7, nvml.ERROR_NOT_SUPPORTED))
	got, err := list(lib)
	if err != nil {
		t.Fatal(err)
	}
	if got.DriverVersion != "550.54.15" || got.CUDAVersion != "12.4" {
		t.Errorf("got %+v", got)
	}
	want := []GPU{
		{0, "a", "GPU-a", "00000000:0A:00.0", 80 << 30, 9, 0},
		{1, "b", "GPU-b", "00000000:0A:00.0", 0, 9, 0},
	}
	if !slices.Equal(got.GPUs, want) {
		t.Errorf("got  %+v\nwant %+v", got.GPUs, want)
	}
	if n := len(lib.ShutdownCalls()); n != 1 {
		t.Errorf("%d calls of shutdown", n)
	}
}

func TestListErrors(t *testing.T) {
	lost := device("a", 1, nvml.ERROR_GPU_IS_LOST)
	for name, c := range map[string]struct {
		change func(*mock.Interface)
		want   error
		text   string
	}{
		"no library": {func(l *mock.Interface) { l.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND } },
			ErrNoLibrary, "inventory: init: NVML library not found"},
		"no driver": {func(l *mock.Interface) { l.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED } },
			ErrNoDriver, "inventory: init: NVIDIA driver not loaded"},
		"no permission": {func(l *mock.Interface) { l.InitFunc = func() nvml.Return { return nvml.ERROR_NO_PERMISSION } },
			ErrNoPermission, "inventory: init: no permission to use the NVIDIA driver"},
		"count": {func(l *mock.Interface) {
			l.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, ErrNVML, "inventory: count: NVML failure (ERROR_UNKNOWN)"},
		"lost device": {func(*mock.Interface) {}, ErrNVML, "inventory: GPU 0: memory: NVML failure (ERROR_GPU_IS_LOST)"},
		"shutdown": {func(l *mock.Interface) {
			l.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
			l.ShutdownFunc = func() nvml.Return { return nvml.ERROR_UNINITIALIZED }
		}, ErrNVML, "inventory: shutdown: NVML failure (ERROR_UNINITIALIZED)"},
	} {
		t.Run(name, func(t *testing.T) {
			lib := driver(lost)
			c.change(lib)
			inv, err := list(lib)
			var e *Error
			if inv != nil || !errors.Is(err, c.want) || !errors.As(err, &e) {
				t.Fatalf("got %v, %v", inv, err)
			}
			if err.Error() != c.text {
				t.Errorf("got  %s\nwant %s", err, c.text)
			}
		})
	}
}

// The wrapper itself must not need the library.
func TestListWithoutLibrary(t *testing.T) {
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(t.TempDir(), "libnvidia-ml.so.1")))
	if _, err := list(lib); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("got %v, want ErrNoLibrary", err)
	}
}

// On a machine with a driver this reads the real one.
func TestListHere(t *testing.T) {
	inv, err := List()
	if err != nil {
		t.Skipf("no NVIDIA driver here: %v", err)
	}
	for i, g := range inv.GPUs {
		if g.Index != i || g.Name == "" || g.UUID == "" || g.PCIBusID == "" || g.ComputeMajor == 0 {
			t.Errorf("incomplete: %+v", g)
		}
	}
	t.Logf("%+v", *inv)
}
