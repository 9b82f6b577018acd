// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvcast/kvcast/tests/endcheck"
)

func TestMain(m *testing.M) { os.Exit(endcheck.Run(m)) }

var update = flag.Bool("update", false, "write testdata/output.txt")

// The output is shown to readers of the project; it must be what the program
// prints, each time.
func TestOutput(t *testing.T) {
	const golden = "testdata/output.txt"
	program := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for range 3 {
		got, err := exec.Command(program).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, got)
		}
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
}
