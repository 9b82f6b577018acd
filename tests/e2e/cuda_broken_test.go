// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// brokenVariable makes this program work on a GPU whose driver refuses all copies.
const brokenVariable = "KVCAST_TEST_BROKEN"

func brokenMain() int {
	if _, err := bindings.OpenCUDA(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 0
	for name, call := range map[string]func(*bindings.Manager, bindings.Prompt) error{
		"create": brokenCreate, "open": brokenOpen, "step": brokenStep,
	} {
		if err := withTail(call); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			code = 1
		}
	}
	return code
}

// withTail runs call on a manager that keeps a partly filled block, with a prompt that gets
// a copy of its first tokens. The manager must be closed afterwards, and nothing be left.
func withTail(call func(*bindings.Manager, bindings.Prompt) error) (err error) {
	m, err := bindings.NewManager(bindings.Config{Device: bindings.DeviceCUDA, CapacityBlocks: 32, PageBytes: 4096,
		PartialReuse: true, Copies: bindings.CopyEngine})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	stream, err := m.NewDeviceStream()
	if err != nil {
		return err
	}
	tokens := make([]uint32, 24)
	for i := range tokens {
		tokens[i] = uint32(i) + 1
	}
	s, err := m.Open(bindings.Prompt{Tokens: tokens, DeviceStream: stream})
	if err != nil {
		return err
	}
	if _, err := s.Grow(len(tokens)); err != nil {
		return err
	}
	if _, err := s.Commit(tokens); err != nil {
		return err
	}
	if err := s.Release(); err != nil {
		return err
	}
	return call(m, bindings.Prompt{Tokens: tokens[:22], DeviceStream: stream})
}

func refused(err error) error {
	if errors.Is(err, bindings.ErrDevice) {
		return nil
	}
	return fmt.Errorf("want %v, got %w", bindings.ErrDevice, err)
}

func brokenCreate(m *bindings.Manager, p bindings.Prompt) error {
	out := make([]bindings.CreateResult, 1)
	if err := refused(m.Create([]bindings.Prompt{p}, out)); err != nil {
		return err
	}
	if out[0].Err != nil || out[0].CopiedTokens == 0 {
		return fmt.Errorf("a sequence with copied tokens has been opened, but is not told: %+v", out[0])
	}
	return out[0].Sequence.Release()
}

func brokenOpen(m *bindings.Manager, p bindings.Prompt) error {
	_, err := m.Open(p)
	return refused(err)
}

func brokenStep(m *bindings.Manager, p bindings.Prompt) error {
	var step bindings.Step
	op := step.Create(p)
	if err := refused(m.Step(&step)); err != nil {
		return err
	}
	if !step.Executed() {
		return errors.New("the step says that it has not been executed")
	}
	created := step.Created(op)
	if created.Err != nil || created.CopiedTokens == 0 {
		return fmt.Errorf("a sequence with copied tokens has been opened, but is not told: %+v", created)
	}
	if err := created.Sequence.Release(); err != nil {
		return err
	}
	// One that finds the device lost when it begins executes nothing.
	step.Reset()
	step.Create(p)
	if err := refused(m.Step(&step)); err != nil {
		return err
	}
	if step.Executed() {
		return errors.New("a step on a device that is lost says that it has been executed")
	}
	return nil
}

// TestBrokenPromisesOnTheFakeCUDADriver: a call whose copy the driver refuses time and again
// has been carried out in the books; what it has opened can be given back, whichever it was.
func TestBrokenPromisesOnTheFakeCUDADriver(t *testing.T) {
	driver := fakeDriver(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	child := exec.CommandContext(ctx, program)
	child.Env = append(os.Environ(), brokenVariable+"=1", "LD_LIBRARY_PATH="+driver,
		"KVC_FAKECUDA=refuse=cuMemcpyDtoDAsync")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
