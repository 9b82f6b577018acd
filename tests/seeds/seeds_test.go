// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package seeds_test

import (
	"flag"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/tests/seeds"
)

func TestOf(t *testing.T) {
	t.Setenv(seeds.Variable, "")
	if got := seeds.Of(t); got != seeds.Fixed {
		t.Errorf("without the variable: %d, want %d", got, seeds.Fixed)
	}
	t.Setenv(seeds.Variable, "77")
	if got := seeds.Of(t); got != 77 {
		t.Errorf("with 77 in the variable: %d", got)
	}
}

// drawn returns what rapid draws first, with the seed that the flag has.
func drawn(t *testing.T) uint64 {
	t.Helper()
	checks := flag.Lookup("rapid.checks").Value
	before := checks.String()
	defer func() { _ = checks.Set(before) }()
	_ = checks.Set("10") // of which -short leaves two
	var all uint64
	rapid.Check(t, func(t *rapid.T) { all = all*31 + rapid.Uint64().Draw(t, "number") })
	return all
}

func TestRapid(t *testing.T) {
	value := flag.Lookup("rapid.seed").Value
	before := value.String()
	t.Cleanup(func() { _ = value.Set(before) })

	// Set through the value, a flag does not count as given.
	_ = value.Set("0")
	seeds.Rapid(t)
	fixed := drawn(t)
	if want := strconv.Itoa(seeds.Fixed); value.String() != want {
		t.Fatalf("without the flag: seed %s, want %s", value, want)
	}
	if again := drawn(t); again != fixed {
		t.Error("the same seed draws something else")
	}
	seeds.Rapid(t)
	if again := drawn(t); again != fixed {
		t.Error("the next test has another seed")
	}

	_ = value.Set("78")
	seeds.Rapid(t)
	if value.String() != "78" {
		t.Fatalf("seed %s, the flag says 78", value)
	}
	if drawn(t) == fixed {
		t.Error("another seed draws the same")
	}

	// Now it is given, for good.
	if err := flag.Set("rapid.seed", "0"); err != nil {
		t.Fatal(err)
	}
	seeds.Rapid(t)
	first := value.String()
	_ = value.Set("0")
	seeds.Rapid(t)
	if first == "0" || first == value.String() {
		t.Errorf("-rapid.seed=0 draws %s and %s", first, value)
	}
}
