// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package endcheck_test

import (
	"os"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/tests/endcheck"
)

func TestMain(m *testing.M) { os.Exit(endcheck.Run(m)) }

// tests stands for the tests of a binary.
type tests func() int

func (t tests) Run() int { return t() }

func TestRun(t *testing.T) {
	if code := endcheck.Run(tests(func() int { return 0 })); code != 0 {
		t.Errorf("clean tests end with %d", code)
	}
	if code := endcheck.Run(tests(func() int { return 2 })); code != 2 {
		t.Errorf("failed tests end with %d", code)
	}

	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if code := endcheck.Run(tests(func() int { return 0 })); code != 1 {
		t.Errorf("with a stream left open: %d", code)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}

	forever, ended := make(chan struct{}), make(chan struct{})
	started := make(chan struct{})
	code := endcheck.Run(tests(func() int {
		go func() { close(started); <-forever; close(ended) }()
		<-started
		return 0
	}))
	close(forever)
	<-ended
	if code != 1 {
		t.Errorf("with a goroutine left: %d", code)
	}
}
