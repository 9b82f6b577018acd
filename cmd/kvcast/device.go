// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cuda/inventory"
)

// cudaPageBytes is what a page of a replay takes of a GPU's memory. A replay
// computes nothing, so it is there to be allocated, not to be filled.
const cudaPageBytes = 4096

// choice is the device of a replay.
type choice struct {
	kind    bindings.DeviceKind
	ordinal int
	text    string // what was chosen and, if there was a choice, why
}

// openCUDA opens the driver and tells of a GPU.
func openCUDA(ordinal int) (bindings.CUDADevice, error) {
	if _, err := bindings.OpenCUDA(); err != nil {
		return bindings.CUDADevice{}, err
	}
	return bindings.CUDAInfo(ordinal)
}

// chooseDevice resolves --device. list is inventory.List, open is openCUDA.
func chooseDevice(asked string, list func() (*inventory.Inventory, error),
	open func(int) (bindings.CUDADevice, error)) (choice, error) {
	if asked == "host" {
		return choice{text: "host"}, nil
	}
	if asked == "auto" {
		inv, err := list()
		device, reason := autoDevice(inv, err, open)
		c := choice{text: device + " (" + reason + ")"}
		if device != "host" {
			c.kind = bindings.DeviceCUDA
		}
		return c, nil
	}
	number, ok := strings.CutPrefix(asked, "cuda:")
	ordinal, err := strconv.ParseUint(number, 10, 31)
	switch {
	case !ok, err != nil && !errors.Is(err, strconv.ErrRange), len(number) > 1 && number[0] == '0':
		return choice{}, fmt.Errorf("--device %q: want auto, host or cuda:N", asked)
	case err != nil:
		return choice{}, fmt.Errorf("--device %s: there is no such CUDA device", asked)
	}
	gpu, err := open(int(ordinal))
	if err != nil {
		return choice{}, fmt.Errorf("--device %s: %s", asked, detail(err))
	}
	return choice{bindings.DeviceCUDA, int(ordinal), asked + " (" + gpu.Name + ")"}, nil
}

// autoDevice is the choice of --device auto and the reason, given what
// inventory.List has said: GPU 0, if it can be used.
func autoDevice(inv *inventory.Inventory, err error,
	open func(int) (bindings.CUDADevice, error)) (device, reason string) {
	gpu, openErr := open(0)
	if openErr == nil {
		return "cuda:0", gpu.Name
	}
	return "host", whyHost(inv, err, openErr)
}

// noDriver is the reason where there is no libcuda at all.
const noDriver = "no NVIDIA driver"

// whyHost is what the CUDA driver has said. Only where there is none NVML, which lists GPUs
// and does nothing else, may know better.
func whyHost(inv *inventory.Inventory, err, openErr error) string {
	why := detail(openErr)
	switch {
	case err == nil && len(inv.GPUs) > 0:
		return "NVIDIA GPU present, but " + why
	case !errors.Is(openErr, bindings.CauseAbsent):
		return why
	case errors.Is(err, inventory.ErrNoLibrary), errors.Is(err, inventory.ErrNoDriver):
		return noDriver
	case errors.Is(err, inventory.ErrNoPermission):
		return "no permission to use the NVIDIA driver"
	case err != nil:
		return "the NVIDIA driver does not answer"
	default:
		return "no NVIDIA GPU"
	}
}

// detail is what the library said, without the operation.
func detail(err error) string {
	var e *bindings.Error
	if errors.As(err, &e) && e.Detail != "" {
		return e.Detail
	}
	return err.Error()
}
