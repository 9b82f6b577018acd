// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && gctorture

package bindings_test

import (
	"flag"
	"runtime"
	"runtime/debug"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/tests/seeds"
)

// TestGCTorture runs the scripts and the model while the collector never rests:
// one goroutine collects without pause, GOGC is 1, and the scripts collect
// between any two operations. Memory that native code still reads, or a handle
// that a cleanup takes too early, does not survive that.
func TestGCTorture(t *testing.T) {
	before := debug.SetGCPercent(1)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	betweenOperations = runtime.GC
	t.Cleanup(func() {
		betweenOperations = func() {}
		close(stop)
		<-stopped
		debug.SetGCPercent(before)
	})
	if flag.Lookup("update").Value.String() == "false" {
		t.Run("scripts", TestScripts)
	}
	t.Run("model", func(t *testing.T) {
		setDefault(t, "rapid.checks", "2000")
		setDefault(t, "rapid.steps", "60")
		steps := 0
		seeds.Rapid(t)
		rapid.Check(t, runModel(&steps))
		t.Logf("%d operations", steps)
	})
}
