// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package run tests the demonstration script: with the real tool, and with a
// stand-in whose results are wrong in one way each.
package run

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// newRoot makes a folder with the script where the repository has it, and
// returns the script.
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
	// An ipc:// path has room for about a hundred bytes, so not in the test's
	// own, long folder.
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "CAPACITY_BLOCKS=", "SINK_BLOCKS=", "TRACE=")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// readSources lists the folders that the tool is built from. The go command
// takes note of what a test lists, and so does not offer an old result after an
// edit there.
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
  echo 'verified  batches 0 to 3 keep the contract; VERIFIED'
  exit TAP_STATUS
fi
printf 'RESIDENT' >"$resident"
echo '{"requests":2000,"hit_blocks":25,"prompt_blocks":100,"stored_blocks":STORED,"removed_blocks":REMOVED,'
echo '"deferred_blocks":7,"healed_blocks":5,"deferred_evicted_blocks":2,"wall_seconds":1.5e-1,"scheduler_seconds":0.1,'
echo '"bytes_published":1000,"batches":4,UNANNOUNCED}'
exit REPLAY_STATUS
`

// standIn makes a root whose tool is the stand-in with some values changed, and
// returns the script.
func standIn(t *testing.T, change ...string) (script string) {
	t.Helper()
	root, script := newRoot(t)
	values := append(change, "MIRROR", `1\n2\n`, "RESIDENT", `1\n2\n`, "TAP_STATUS", "0",
		"VERIFIED", "keys of 12 blocks recomputed (signed64)", "REPLAY_STATUS", "0",
		"STORED", "12", "REMOVED", "10", "UNANNOUNCED", `"unannounced_blocks":0`)
	text := strings.NewReplacer(values...).Replace(tool)
	if err := os.WriteFile(filepath.Join(root, "bin", "kvcast"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// The output that README.md shows is that of the script, figures aside.
func TestReadmeShowsTheOutput(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(readme), "<!-- run -->\n```\n")
	shown, _, found := strings.Cut(shown, "```")
	if !found {
		t.Fatal("README.md has no block marked run")
	}
	out, status := runScript(t, standIn(t))
	if status != 0 {
		t.Fatalf("exit status %d\n%s", status, out)
	}
	// The figures come after an empty line.
	_, printed, found := strings.Cut(out, "\n\n")
	if !found {
		t.Fatalf("no empty line in\n%s", out)
	}
	figures := regexp.MustCompile(` *[0-9]+(\.[0-9]+)?`)
	plain := func(s string) string { return figures.ReplaceAllString(s, " #") }
	if got, want := plain(shown), plain(printed); got != want {
		t.Errorf("README.md shows, # standing for figures,\n%s\nthe script prints\n%s", got, want)
	}
	if n := strings.Count(printed, "\n"); n < 10 {
		t.Errorf("only %d lines:\n%s", n, printed)
	}
}

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
		{"keys not recomputed", []string{"VERIFIED",
			"keys of 3 blocks recomputed (signed64), of 9 not possible"}, 1, "not of all blocks"},
		{"other keys", []string{"VERIFIED", "keys of 0 blocks recomputed, of 12 not possible"}, 1,
			"not of all blocks"},
		{"fewer keys", []string{"VERIFIED", "keys of 11 blocks recomputed (signed64)"}, 1,
			"not of all blocks"},
		{"replay fails", []string{"REPLAY_STATUS", "2"}, 1, "the replay failed"},
		{"nothing stored", []string{"STORED", "0"}, 1, "nothing was stored"},
		{"nothing removed", []string{"REMOVED", "0"}, 1, "nothing was removed"},
		{"nothing resident", []string{"MIRROR", "", "RESIDENT", ""}, 1, "nothing is resident"},
		{"unannounced blocks", []string{"UNANNOUNCED", `"unannounced_blocks":3`}, 1, "3 reusable blocks were never announced"},
		{"a figure is missing", []string{"UNANNOUNCED", `"other":0`}, 1, "did not report unannounced_blocks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, status := runScript(t, standIn(t, c.change...))
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
