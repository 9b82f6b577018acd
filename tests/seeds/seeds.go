// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package seeds gives random tests their seeds. A plain run has the same ones each time: a
// failure of one in thousands of runs must not stop somebody whose change has no part in it.
// `make test-long` is where new ones are tried, and says which.
package seeds

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable names the environment variable that repeats a random test, or tries another
// seed: its value is the seed, such as a test has printed.
const Variable = "KVCAST_TEST_SEED"

// Fixed is the seed of a run that has not been given one.
const Fixed = 20240229

// rapidFlag is that of pgregory.net/rapid, and so is its meaning: 0 draws a seed.
const rapidFlag = "rapid.seed"

// Of returns the seed of a random test, Fixed or that of the environment, and prints it.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(Fixed)
	if text := os.Getenv(Variable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
	}
	t.Logf("seed %d (%s=%[1]d repeats the test)", seed, Variable)
	return seed
}

// Rapid gives the following rapid.Check, and those after it, a seed: that of -rapid.seed or
// of RAPID_SEED, else Fixed; and prints it. With -rapid.seed=0 it draws one. It must not be
// called while another test of rapid runs.
func Rapid(t testing.TB) {
	t.Helper()
	found := flag.Lookup(rapidFlag)
	if found == nil {
		t.Fatalf("no -%s: the test does not use rapid", rapidFlag)
	}
	if found.Value.String() == "0" {
		seed := uint64(Fixed)
		flag.Visit(func(f *flag.Flag) {
			if f == found { // given, as 0
				seed = rand.Uint64()
			}
		})
		if err := flag.Set(rapidFlag, strconv.FormatUint(max(seed, 1), 10)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %s (-%s=%[1]s repeats the test)", found.Value, rapidFlag)
}
