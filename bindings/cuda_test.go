// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// TestCUDAWithoutADriver: the same binary runs where there is none, and says why
// there is no CUDA device. (On the fake driver and on GPUs the C++ conformance
// suite and the tests of the command line tool run.)
func TestCUDAWithoutADriver(t *testing.T) {
	config := bindings.Config{CapacityBlocks: 8, PageBytes: 4096, Device: bindings.DeviceCUDA}
	var cause *bindings.Error
	if _, err := bindings.OpenCUDA(); err == nil {
		t.Skip("this machine has a CUDA driver")
	} else if !errors.Is(err, bindings.ErrNoDevice) || !strings.Contains(err.Error(), "driver") {
		t.Fatalf("got %v, want ErrNoDevice and a reason", err)
	} else if errors.Is(err, bindings.CauseNotOpened) || errors.As(err, &cause) && cause.Cause == bindings.CauseNone {
		t.Fatalf("%v has no cause", err)
	}
	if _, err := bindings.NewManager(config); !errors.Is(err, bindings.ErrNoDevice) || !errors.Is(err, bindings.CauseNotOpened) {
		t.Errorf("a manager on no device: got %v", err)
	}
	if _, err := bindings.CUDAInfo(0); !errors.Is(err, bindings.ErrNoDevice) {
		t.Errorf("info: got %v", err)
	}
	if _, err := bindings.CUDAInfo(-1); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("info of GPU -1: got %v", err)
	}
	if _, err := bindings.CUDABudget(0, 4096, 1<<20, 0); !errors.Is(err, bindings.ErrNoDevice) {
		t.Errorf("budget: got %v", err)
	}
}

// TestCUDACallsOnTheHostDevice: what only a CUDA device has is refused in words,
// what every device has is told.
func TestCUDACallsOnTheHostDevice(t *testing.T) {
	m, err := bindings.NewManager(bindings.Config{CapacityBlocks: 8, PageBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.AdoptCUDAStream(0); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("adopt: got %v", err)
	}
	if _, err := m.CUDAStream(0); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("stream: got %v", err)
	}
	memory, err := m.DeviceMemory()
	if err != nil || memory.Base == 0 || memory.Bytes < 8*4096 || memory.PageBytes != 4096 {
		t.Errorf("memory: got %+v, %v", memory, err)
	}
}
