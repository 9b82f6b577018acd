// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withFiles is command for a process that may open so many files.
func withFiles(t *testing.T, files int, args ...string) *process {
	t.Helper()
	p := command(t, args...)
	p.Cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), p.Cmd.Path}, p.Cmd.Args[1:]...)
	p.Cmd.Path = "/bin/sh"
	return p
}

// Where ZeroMQ would end the process for want of a descriptor, there is one line instead,
// wherever the limit is; and from some limit on the run is as always.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	works := false
	for files := 10; files <= 40; files++ {
		p := withFiles(t, files, "replay", "--trace", traceFile, "--limit", "1", "--capacity-blocks", "1000",
			"--endpoint", "ipc://"+filepath.Join(folder, "s"), "--replay-endpoint", "ipc://"+filepath.Join(folder, "r"))
		p.Cmd.Stdout = &p.stdout
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		code := p.exit() // fails the test if a signal ended it
		said := p.stderr.String()
		switch {
		case code == 0 && said == "":
			works = true
		case works:
			t.Errorf("%d files: %d, %q, and it worked with fewer", files, code, said)
		case code != 2 || strings.Count(said, "\n") != 1 || p.stdout.Len() > 0 ||
			!strings.Contains(said, "too few file descriptors") && !strings.HasSuffix(said, "too many open files\n"):
			t.Errorf("%d files: %d, %q, %q", files, code, said, p.stdout.String())
		}
		if got := listFolder(t, folder); len(got) != 0 {
			t.Errorf("%d files: left behind %q", files, got)
		}
	}
	if !works {
		t.Error("40 files are not enough")
	}
}

// More connections than there are descriptors left do not end the process either, and
// when they have gone, a reader is served.
func TestNoDescriptorForConnections(t *testing.T) {
	t.Parallel()
	const files = 40
	p := withFiles(t, files, "replay", "--trace", traceFile, "--limit", "20", "--capacity-blocks", "2000", "--json",
		"--endpoint", "tcp://127.0.0.1:0", "--replay-endpoint", "tcp://127.0.0.1:0", "--hold", "1h")
	p.Cmd.Stderr = nil
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	live, replays, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(line, "kvcast: publishing on "), "\n"), ", replays on ")
	if !ok {
		t.Fatalf("got %q", line)
	}
	var sum replaySummary
	p.line(&sum)
	most := 0
	var connections []net.Conn
	for range 2 * files {
		for _, endpoint := range []string{live, replays} {
			c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			connections = append(connections, c)
		}
		most = max(most, len(listFolder(t, fmt.Sprintf("/proc/%d/fd", p.Process.Pid))))
	}
	if most < files-4 {
		t.Errorf("at most %d of %d descriptors were in use", most, files)
	}
	for _, c := range connections {
		c.Close()
	}
	tap := startPiped(t, "tap", live, "--replay", replays, "--verify", "--max-batches", fmt.Sprint(sum.Batches))
	var read tapLine
	for read.Type != "summary" {
		tap.line(&read)
	}
	tap.good()
	if !read.Verified.Good {
		t.Errorf("%+v", read.Verified)
	}
	p.signal(os.Interrupt)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
