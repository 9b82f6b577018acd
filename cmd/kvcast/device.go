// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/kvcast/kvcast/cuda/inventory"
)

// chooseDevice resolves --device and says what was chosen and, if there was a
// choice, why. list is inventory.List.
func chooseDevice(asked string, list func() (*inventory.Inventory, error)) (string, error) {
	switch asked {
	case "host":
		return "host", nil
	case "auto":
		device, reason := autoDevice(list())
		return device + " (" + reason + ")", nil
	}
	return "", fmt.Errorf("--device %q: want auto or host", asked)
}

// autoDevice is the choice of --device auto and the reason, given what
// inventory.List has said.
func autoDevice(inv *inventory.Inventory, err error) (device, reason string) {
	return "host", whyHost(inv, err)
}

func whyHost(inv *inventory.Inventory, err error) string {
	switch {
	case errors.Is(err, inventory.ErrNoLibrary), errors.Is(err, inventory.ErrNoDriver):
		return "no NVIDIA driver"
	case errors.Is(err, inventory.ErrNoPermission):
		return "no permission to use the NVIDIA driver"
	case err != nil:
		return "the NVIDIA driver does not answer"
	case len(inv.GPUs) == 0:
		return "no NVIDIA GPU"
	default:
		return "NVIDIA GPU present, this build has no CUDA device"
	}
}
