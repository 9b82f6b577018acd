// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// lastLine parses the last line of a process that start has run.
func lastLine(t *testing.T, p *process, v any) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(p.stdout.String(), "\n"), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), v); err != nil {
		t.Fatalf("%v in %.500s", err, lines[len(lines)-1])
	}
}

// wantMirror compares the file of a tap with that of a replay.
func wantMirror(t *testing.T, mirror, resident string) {
	t.Helper()
	got, want := read(t, mirror), read(t, resident)
	if want == "" || got != want {
		t.Errorf("the mirror has %d blocks, the resident set %d, or others",
			strings.Count(got, "\n"), strings.Count(want, "\n"))
	}
}

// freePorts returns tcp endpoints whose ports nobody uses now.
func freePorts(t *testing.T, n int) (endpoints []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // after all have one
		endpoints = append(endpoints, "tcp://"+l.Addr().String())
	}
	return endpoints
}

// kill ends a process as nobody can prepare for.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	if err := p.Wait(); err == nil || p.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("%v: %v", p.Args, err)
	}
}

// A publisher is killed and another one begins at once on the same ports. Its
// blocks are of another size, so no hash is in both lives. The mirror of a tap
// is that of the second life, also when the tap was frozen until that life had
// passed the number at which it left the first one.
func TestKilledPublisher(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second int // requests
		frozen        bool
		running       bool // killed in mid-stream
	}{
		"behind the old number":            {first: 40, second: 2},
		"behind the old number, frozen":    {first: 40, second: 2, frozen: true},
		"past the old number, frozen":      {first: 2, second: 40, frozen: true},
		"past the old number":              {first: 2, second: 40},
		"killed in mid-stream":             {first: 2000, second: 20, running: true},
		"killed in mid-stream, and frozen": {first: 2000, second: 40, running: true, frozen: true},
	} {
		t.Run(name, func(t *testing.T) {
			folder := shortTemp(t)
			ports := freePorts(t, 2)
			resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
			publish := func(limit, size int, args ...string) *process {
				return startPiped(t, append([]string{"replay", "--trace", traceFile, "--limit", fmt.Sprint(limit),
					"--block-size", fmt.Sprint(size), "--endpoint", ports[0], "--replay-endpoint", ports[1],
					"--hold", "1h", "--tail-mark", "off", "--device", "host"}, args...)...)
			}
			tap := startPiped(t, "tap", ports[0], "--replay", ports[1], "--verify", "--mirror-out", mirror)
			var args []string
			if c.running {
				args = []string{"--speed", "10"}
			}
			first := publish(c.first, 16, append(args, "--wait-subscribers", "1")...)
			wanted := 5
			if !c.running {
				var s replaySummary
				first.line(&s)
				wanted = s.Batches
			}
			life := lifeReader{t: t, tap: tap}
			life.readTo(wanted - 1)
			if c.frozen {
				tap.signal(syscall.SIGSTOP)
			}
			first.kill()
			second := publish(c.second, 32, "--resident-out", resident)
			var s replaySummary
			second.line(&s)
			past := s.Batches > wanted
			if !c.running && past != (c.second > c.first) {
				t.Fatalf("the first life has %d batches, the second %d", wanted, s.Batches)
			}
			if c.frozen {
				tap.signal(syscall.SIGCONT)
			}
			life.readRestart()
			life.readTo(s.Batches - 1)
			second.signal(syscall.SIGTERM)
			second.good()
			tap.signal(syscall.SIGTERM)
			var end replayedLine
			tap.line(&end)
			tap.good()
			wantMirror(t, mirror, resident)
			if end.Type != "summary" || !end.Verified.Good || !end.Verified.Complete || end.Verified.Lives != 2 ||
				end.Received.Restarts != 1 || end.Received.Missing != 0 {
				t.Errorf("ends with %+v", end)
			}
		})
	}
}

// lifeReader reads what a tap says of one life after the other.
type lifeReader struct {
	t    *testing.T
	tap  *process
	next int
}

// readTo reads batches up to a number; all must be there, in order, and the
// first one is a clear alone.
func (r *lifeReader) readTo(last int) {
	r.t.Helper()
	for ; r.next <= last; r.next++ {
		var l replayedLine
		r.tap.line(&l)
		if l.Type != "batch" || l.Seq != r.next {
			r.t.Fatalf("got %s %d %s, want batch %d", l.Type, l.Seq, l.Text, r.next)
		}
		if l.Seq == 0 && (len(l.Events) != 1 || l.Events[0].Type != "AllBlocksCleared") {
			r.t.Fatalf("batch 0 holds %+v", l.Events)
		}
	}
}

// readRestart reads on to the note of a new life.
func (r *lifeReader) readRestart() {
	r.t.Helper()
	for {
		var l replayedLine
		r.tap.line(&l)
		switch {
		case l.Type == "restart":
			r.next = 0
			return
		case l.Type != "batch" || l.Seq != r.next:
			r.t.Fatalf("got %s %d %s, want batch %d or a restart", l.Type, l.Seq, l.Text, r.next)
		}
		r.next++
	}
}
