// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

// The end of the terminal ends a replay in order, and no socket file stays behind; a
// second word of it, as a shell and the system both send one, changes nothing. What was
// begun so as to outlive its terminal does.
func TestReplayEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	for _, trap := range []string{"", `trap "" HUP; `} {
		folder := shortTemp(t)
		p := command(t, "replay", "--trace", traceFile, "--limit", "20", "--capacity-blocks", "2000", "--json",
			"--endpoint", "ipc://"+filepath.Join(folder, "s"), "--replay-endpoint", "ipc://"+filepath.Join(folder, "r"),
			"--hold", "1h")
		p.Cmd.Args = append([]string{"sh", "-c", trap + `exec "$0" "$@"`, p.Cmd.Path}, p.Cmd.Args[1:]...)
		p.Cmd.Path = "/bin/sh"
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.lines = bufio.NewScanner(out)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		var sum replaySummary
		p.line(&sum) // all is done; now it holds
		if got := listFolder(t, folder); len(got) != 2 {
			t.Errorf("files while it holds: %q", got)
		}
		outlives := trap != ""
		if ignores(t, p.Process.Pid, syscall.SIGHUP) != outlives {
			t.Errorf("%q: a hang-up is ignored: %v", trap, !outlives)
		}
		p.signal(syscall.SIGHUP)
		p.Process.Signal(syscall.SIGHUP) // it may be over
		if outlives {
			p.signal(os.Interrupt)
		}
		p.good()
		if got := listFolder(t, folder); len(got) != 0 {
			t.Errorf("left behind: %q", got)
		}
	}
}

var ignoredSignals = regexp.MustCompile(`(?m)^SigIgn:\s*([0-9a-f]+)$`)

// ignores tells whether a process ignores a signal.
func ignores(t *testing.T, pid int, s syscall.Signal) bool {
	t.Helper()
	found := ignoredSignals.FindStringSubmatch(read(t, fmt.Sprintf("/proc/%d/status", pid)))
	if found == nil {
		t.Fatal("no SigIgn")
	}
	mask, err := strconv.ParseUint(found[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask>>(s-1)&1 == 1
}
