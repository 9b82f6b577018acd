// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo terminal: the end of a person and that of a program.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return person, program
}

// A person at a terminal sees a progress bar, which is gone at the end;
// standard output stays clean.
func TestProgressBar(t *testing.T) {
	t.Parallel()
	person, program := terminal(t)
	p := command(t, "replay", "--trace", traceFile, "--limit", "300", "--publisher", "null", "--json")
	p.Cmd.Stdout, p.Cmd.Stderr = &p.stdout, program
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close()
	shown := make(chan string)
	go func() {
		// Ends with EIO when the program has gone.
		b, _ := io.ReadAll(person)
		shown <- string(b)
	}()
	if code := p.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	text := <-shown
	if !strings.Contains(text, "replay") || !strings.Contains(text, "/300") {
		t.Errorf("no bar: %q", text)
	}
	if last := text[strings.LastIndexByte(text, '\r')+1:]; strings.TrimSpace(strings.TrimPrefix(last, "\x1b[K")) != "" {
		t.Errorf("the bar stays: %q", last)
	}
	if s := p.summary(); s.Requests != 300 {
		t.Errorf("%d requests", s.Requests)
	}
}

// Without a terminal there is none, and the summary for people has its rows.
func TestHumanSummary(t *testing.T) {
	t.Parallel()
	p := start(t, "replay", "--trace", traceFile, "--limit", "20", "--capacity-blocks", "2000", "--publisher", "null")
	p.good() // nothing on standard error
	out := p.stdout.String()
	for _, want := range []string{"requests    20, ", "of them refused: larger than the pool\n", "hits        ", " % of the blocks",
		"resident    ", "published   ", "ns per block\n", "device      host ("} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}
