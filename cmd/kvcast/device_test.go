// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cuda/inventory"
)

// absent is a machine without a driver.
func absent(int) (bindings.CUDADevice, error) {
	return bindings.CUDADevice{}, &bindings.Error{Op: "open CUDA", Status: bindings.StatusNoDevice,
		Cause: bindings.CauseAbsent, Detail: "libcuda.so.1 was not found; install the driver"}
}

// noCUDA is a machine whose driver cannot be used.
func noCUDA(int) (bindings.CUDADevice, error) {
	return bindings.CUDADevice{}, &bindings.Error{Op: "open CUDA", Status: bindings.StatusNoDevice,
		Cause: bindings.CauseTooOld, Detail: "the driver is too old"}
}

// twoGPUs is one with two of them.
func twoGPUs(ordinal int) (bindings.CUDADevice, error) {
	if ordinal > 1 {
		return bindings.CUDADevice{}, &bindings.Error{Op: "CUDA info", Status: bindings.StatusInvalidArgument,
			Detail: "there is no such device"}
	}
	return bindings.CUDADevice{Name: "Model X"}, nil
}

func TestChooseDevice(t *testing.T) {
	wrap := func(err error) error { return &inventory.Error{Op: "init", Err: err} }
	gpu := &inventory.Inventory{GPUs: []inventory.GPU{{Name: "x"}}}
	for name, c := range map[string]struct {
		asked string
		inv   *inventory.Inventory
		err   error
		open  func(int) (bindings.CUDADevice, error)
		want  choice
	}{
		"asked for":  {asked: "host", open: twoGPUs, want: choice{text: "host"}},
		"no library": {asked: "auto", err: wrap(inventory.ErrNoLibrary), open: absent, want: choice{text: "host (no NVIDIA driver)"}},
		"no driver":  {asked: "auto", err: wrap(inventory.ErrNoDriver), open: absent, want: choice{text: "host (no NVIDIA driver)"}},
		"permission": {asked: "auto", err: wrap(inventory.ErrNoPermission), open: absent, want: choice{text: "host (no permission to use the NVIDIA driver)"}},
		"failure":    {asked: "auto", err: wrap(inventory.ErrNVML), open: absent, want: choice{text: "host (the NVIDIA driver does not answer)"}},
		"no GPU":     {asked: "auto", inv: &inventory.Inventory{}, open: absent, want: choice{text: "host (no NVIDIA GPU)"}},
		"unusable, and no library": {asked: "auto", err: wrap(inventory.ErrNoLibrary), open: noCUDA,
			want: choice{text: "host (the driver is too old)"}},
		"unusable, and a failure": {asked: "auto", err: wrap(inventory.ErrNVML), open: noCUDA,
			want: choice{text: "host (the driver is too old)"}},
		"unusable, and no GPU": {asked: "auto", inv: &inventory.Inventory{}, open: noCUDA,
			want: choice{text: "host (the driver is too old)"}},
		"unusable": {asked: "auto", inv: gpu, open: noCUDA,
			want: choice{text: "host (NVIDIA GPU present, but the driver is too old)"}},
		"GPU": {asked: "auto", inv: gpu, open: twoGPUs, want: choice{bindings.DeviceCUDA, 0, "cuda:0 (Model X)"}},
		"GPU that NVML does not know": {asked: "auto", err: wrap(inventory.ErrNoLibrary), open: twoGPUs,
			want: choice{bindings.DeviceCUDA, 0, "cuda:0 (Model X)"}},
		"that GPU": {asked: "cuda:1", open: twoGPUs, want: choice{bindings.DeviceCUDA, 1, "cuda:1 (Model X)"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseDevice(c.asked, func() (*inventory.Inventory, error) { return c.inv, c.err }, c.open)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	for _, asked := range []string{"", "cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:00", "cuda:01", "cuda:+1", "cuda: 1", "cuda:0x1", "gpu"} {
		if _, err := chooseDevice(asked, nil, twoGPUs); err == nil || !strings.Contains(err.Error(), "want auto, host or cuda:N") {
			t.Errorf("%q: got %v", asked, err)
		}
	}
	for asked, want := range map[string]string{
		"cuda:2":                    "--device cuda:2: there is no such device",
		"cuda:65536":                "--device cuda:65536: there is no such device",
		"cuda:2147483648":           "--device cuda:2147483648: there is no such CUDA device",
		"cuda:99999999999999999999": "--device cuda:99999999999999999999: there is no such CUDA device",
	} {
		if _, err := chooseDevice(asked, nil, twoGPUs); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", asked, err, want)
		}
	}
	if _, err := chooseDevice("cuda:0", nil, noCUDA); err == nil || err.Error() != "--device cuda:0: the driver is too old" {
		t.Errorf("cuda:0: got %v", err)
	}
}
