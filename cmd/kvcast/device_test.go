// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kvcast/kvcast/cuda/inventory"
)

func TestChooseDevice(t *testing.T) {
	wrap := func(err error) error { return &inventory.Error{Op: "init", Err: err} }
	for name, c := range map[string]struct {
		asked string
		inv   *inventory.Inventory
		err   error
		want  string
	}{
		"asked for":  {asked: "host", want: "host"},
		"no library": {asked: "auto", err: wrap(inventory.ErrNoLibrary), want: "host (no NVIDIA driver)"},
		"no driver":  {asked: "auto", err: wrap(inventory.ErrNoDriver), want: "host (no NVIDIA driver)"},
		"permission": {asked: "auto", err: wrap(inventory.ErrNoPermission), want: "host (no permission to use the NVIDIA driver)"},
		"failure":    {asked: "auto", err: wrap(inventory.ErrNVML), want: "host (the NVIDIA driver does not answer)"},
		"no GPU":     {asked: "auto", inv: &inventory.Inventory{}, want: "host (no NVIDIA GPU)"},
		"GPU": {asked: "auto", inv: &inventory.Inventory{GPUs: []inventory.GPU{{Name: "x"}}},
			want: "host (NVIDIA GPU present, this build has no CUDA device)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseDevice(c.asked, func() (*inventory.Inventory, error) { return c.inv, c.err })
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := chooseDevice("cuda:0", nil); err == nil {
		t.Error("cuda:0 was accepted")
	}
}
