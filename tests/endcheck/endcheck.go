// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package endcheck is the end of every test binary that can open native handles: nothing
// may outlive its tests. Sanitizers cannot see a leaked handle, because dead Go memory
// still points to it.
package endcheck

import (
	"fmt"
	"os"

	"go.uber.org/goleak"

	"github.com/kvcast/kvcast/bindings"
)

// Run runs the tests, for TestMain, and returns the exit code of the binary. Tests that
// passed fail after all if a native handle or a goroutine outlives them.
func Run(m interface{ Run() int }) int {
	code := m.Run()
	if code != 0 {
		return code // a failed test may leave anything behind
	}
	if live := bindings.LiveHandles(); live != (bindings.Handles{}) {
		fmt.Fprintf(os.Stderr, "FAIL: native handles are alive after the tests: %+v\n", live)
		code = 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = 1
	}
	return code
}
