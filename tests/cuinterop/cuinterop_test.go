// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package cuinterop

import (
	"bytes"
	"errors"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/cuda/cuinterop"
)

// A program of gorgonia.org/cu has a context and a stream; a manager lives in
// the one and works on the other, and what its pages hold is read and written
// through that package.
func TestAManagerInTheContextOfAnotherPackage(t *testing.T) {
	if _, err := bindings.OpenCUDA(); err != nil {
		t.Fatal(err) // the tag says that there is a driver
	}
	device, err := cu.GetDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := device.MakeContext(cu.SchedAuto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the manager
		if err := ctx.Destroy(); err != nil {
			t.Error(err)
		}
	})
	// Making it has made it current here; from now on it is where it is needed.
	if _, err := cu.PopCurrentCtx(); err != nil {
		t.Fatal(err)
	}
	const pageBytes = 4096
	var manager *bindings.Manager
	config := bindings.Config{
		CapacityBlocks: 8, PageBytes: pageBytes, Device: bindings.DeviceCUDA, CallersContext: true,
	}
	if _, err := bindings.NewManager(config); err == nil {
		t.Fatal("a manager in the caller's context, without one")
	}
	broken := errors.New("f failed")
	if err := cuinterop.InContext(ctx, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("InContext: %v, want what f returned", err)
	}
	err = cuinterop.InContext(ctx, func() error {
		made, err := bindings.NewManager(config)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = made.Close() })
		manager = made
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var mine cu.Stream
	err = cuinterop.InContext(ctx, func() (err error) {
		mine, err = cu.MakeStream(cu.NonBlocking)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := manager.AdoptCUDAStream(cuinterop.Handle(mine))
	if err != nil {
		t.Fatal(err)
	}
	if handle, err := manager.CUDAStream(adopted); err != nil || cuinterop.Stream(handle) != mine {
		t.Errorf("the adopted stream is %v, %v, want %v", handle, err, mine)
	}
	if cuinterop.Handle(cu.NoStream) != 0 {
		t.Error("the NULL stream is not 0")
	}
	own, err := manager.NewDeviceStream()
	if err != nil {
		t.Fatal(err)
	}
	handle, err := manager.CUDAStream(own)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := manager.DeviceMemory()
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("page"), pageBytes/4)
	got := make([]byte, pageBytes)
	err = cuinterop.InContext(ctx, func() error {
		page := cuinterop.Pointer(memory.Base + 3*pageBytes)
		// In order on one stream, which is the manager's.
		on := cuinterop.Stream(handle)
		if err := cu.MemcpyHtoDAsync(page, unsafe.Pointer(&want[0]), pageBytes, on); err != nil {
			return err
		}
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&got[0]), page, pageBytes, on); err != nil {
			return err
		}
		return on.Synchronize()
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the page does not hold what was written")
	}
	for _, stream := range []bindings.DeviceStream{adopted, own} {
		if err := manager.DestroyDeviceStream(stream); err != nil {
			t.Error(err)
		}
	}
	if err := manager.Close(); err != nil {
		t.Error(err)
	}
	if err := cuinterop.InContext(ctx, func() error { return mine.Destroy() }); err != nil {
		t.Error(err)
	}
}
