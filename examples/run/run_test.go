// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package run tests the demonstration script: with the real tool, and with a stand-in whose results are wrong in one
// way each.
package run

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newRoot makes a folder with the script where the repository has it, and returns the script.
func newRoot(t *testing.T) (root, script string) {
	t.Helper()
	root = t.TempDir()
	script = filepath.Join(root, "examples", "run", "run.sh")
	text, err := os.ReadFile("run.sh")
	if err != nil {
		t.Fatal(err)
	}
	data, err := filepath.Abs(filepath.Join("..", "..", "tests", "data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(script), filepath.Join(root, "bin"), filepath.Join(root, "tests")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(script, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(data, filepath.Join(root, "tests", "data")); err != nil {
		t.Fatal(err)
	}
	return root, script
}

func runScript(t *testing.T, script string) (output string, status int) {
	t.Helper()
	cmd := exec.Command(script)
	// An ipc:// path has room for about a hundred bytes, so not in the test's own, long folder.
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "CAPACITY_BLOCKS=", "SINK_BLOCKS=", "TRACE=")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// readSources lists the folders that the tool is built from. The go command takes note of what a test lists, and so
// does not offer an old result after an edit there.
func readSources(t *testing.T) {
	t.Helper()
	for _, folder := range []string{"native", "sink", "cuda", "cgo", "bindings", "publisher", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestDemonstration(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the tool and replays the whole shipped trace")
	}
	readSources(t)
	root, script := newRoot(t)
	build := exec.Command("go", "build", "-o", filepath.Join(root, "bin", "kvcast"), "github.com/kvcast/kvcast/cmd/kvcast")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, status := runScript(t, script)
	if status != 0 || !strings.Contains(out, "mirror equals resident set: yes") {
		t.Errorf("exit status %d\n%s", status, out)
	}
	t.Logf("%s", out)
}

// tool stands in for kvcast. The placeholders are what the cases change.
const tool = `#!/bin/sh
command=$1
while [ $# -gt 0 ]; do
  case $1 in
    --mirror-out) mirror=$2 ;;
    --resident-out) resident=$2 ;;
    --trace) [ -r "$2" ] || exit 2 ;;
  esac
  shift
done
if [ "$command" = tap ]; then
  printf 'MIRROR' >"$mirror"
  exit TAP_STATUS
fi
printf 'RESIDENT' >"$resident"
echo '{"requests":2000,"hit_blocks":25,"prompt_blocks":100,"stored_blocks":STORED,"removed_blocks":REMOVED,'
echo '"deferred_blocks":7,"healed_blocks":5,"deferred_evicted_blocks":2,"wall_seconds":1.5e-1,"scheduler_seconds":0.1,'
echo '"bytes_published":1000,"batches":4,UNANNOUNCED}'
exit REPLAY_STATUS
`

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change []string // pairs for strings.NewReplacer, before the good values
		status int
		says   string
	}{
		{"good", nil, 0, "mirror equals resident set: yes"},
		{"mirror lacks a block", []string{"MIRROR", `1\n`}, 1, "the mirror differs"},
		{"mirror has a block too many", []string{"MIRROR", `1\n2\n3\n`}, 1, "the mirror differs"},
		{"breach of the contract", []string{"TAP_STATUS", "1"}, 1, "breach"},
		{"replay fails", []string{"REPLAY_STATUS", "2"}, 1, "the replay failed"},
		{"nothing stored", []string{"STORED", "0"}, 1, "nothing was stored"},
		{"nothing removed", []string{"REMOVED", "0"}, 1, "nothing was removed"},
		{"nothing resident", []string{"MIRROR", "", "RESIDENT", ""}, 1, "nothing is resident"},
		{"unannounced blocks", []string{"UNANNOUNCED", `"unannounced_blocks":3`}, 1, "3 reusable blocks were never announced"},
		{"a figure is missing", []string{"UNANNOUNCED", `"other":0`}, 1, "did not report unannounced_blocks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, script := newRoot(t)
			text := strings.NewReplacer(append(c.change, "MIRROR", `1\n2\n`, "RESIDENT", `1\n2\n`, "TAP_STATUS", "0",
				"REPLAY_STATUS", "0", "STORED", "12", "REMOVED", "10", "UNANNOUNCED", `"unannounced_blocks":0`)...).Replace(tool)
			if err := os.WriteFile(filepath.Join(root, "bin", "kvcast"), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			out, status := runScript(t, script)
			if status != c.status || !strings.Contains(out, c.says) {
				t.Errorf("exit status %d, want %d and %q\n%s", status, c.status, c.says, out)
			}
		})
	}
	t.Run("no tool", func(t *testing.T) {
		_, script := newRoot(t)
		if out, status := runScript(t, script); status != 2 || !strings.Contains(out, "make run") {
			t.Errorf("exit status %d\n%s", status, out)
		}
	})
}
