// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvcast/kvcast/bindings"
)

// TestMain fails the run if a test left a native handle or a goroutine behind.
// Sanitizers cannot see a leaked handle: dead Go memory still points to it.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if live := bindings.LiveHandles(); live != (bindings.Handles{}) {
			fmt.Fprintf(os.Stderr, "native handles are still alive: %+v\n", live)
			code = 1
		}
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
