// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
)

// mostLines is how long that program may be: it is to show how little a subscriber needs.
const mostLines = 30

// shown returns the program that docs/wire.md shows.
func shown(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "<!-- subscriber -->\n```python\n")
	program, _, ended := strings.Cut(after, "```\n")
	if !found || !ended {
		t.Fatal("docs/wire.md shows no subscriber")
	}
	if n := strings.Count(program, "\n"); n > mostLines {
		t.Errorf("the subscriber of docs/wire.md has %d lines, want at most %d", n, mostLines)
	}
	return program
}

// tells prints what the subscriber knows after each message.
const tells = `
import json
import os
import sys
import threading

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
for blocks in follow(os.environ["LIVE"], os.environ["PAST"]):
    print(json.dumps(sorted(blocks)), flush=True)
`

// The subscriber that docs/wire.md shows comes late to a publisher that keeps
// four batches, misses some live, sees the publisher end and begin anew, marks of that
// included, and each time comes to know exactly what can be reused.
func TestSubscriberInTheDocs(t *testing.T) {
	program := filepath.Join(t.TempDir(), "subscriber.py")
	if err := os.WriteFile(program, []byte(shown(t)+tells), 0o600); err != nil {
		t.Fatal(err)
	}
	base, past := freeEndpoints(t)
	w, live := newWorker(t, 0, base, past), newLine(t, base)
	w.options.BufferSteps, w.options.RestartMark = 4, true
	p := newPrompts(t, 1)
	serve := func(n int) {
		for range n {
			w.serve(p.next())
			w.flush()
		}
	}
	w.start(0)
	serve(60)

	h := startHelper(t, program, "LIVE="+live.endpoint, "PAST="+past)
	knows, over := make(chan []int64), make(chan struct{})
	defer close(over)
	go func() {
		defer close(knows)
		for {
			var hashes []int64
			line, err := h.out.ReadBytes('\n')
			if err != nil || json.Unmarshal(line, &hashes) != nil {
				return
			}
			select {
			case knows <- hashes:
			case <-over:
				return
			}
		}
	}()
	// A subscriber learns something only from a message: with more there is always one
	// more until it is in step.
	inStep := func(when string, more bool) {
		t.Helper()
		late := time.After(deadline)
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		if !more {
			again.Stop()
		}
		for {
			want := w.resident()
			select {
			case got, ok := <-knows:
				if !ok {
					t.Fatalf("%s: the subscriber ended: %s", when, h.stderr.tail())
				}
				if slices.Equal(got, want) {
					t.Logf("%s: %d blocks", when, len(got))
					return
				}
			case <-again.C:
				serve(1)
			case <-late:
				t.Fatalf("%s: not in step after %v: %s", when, deadline, h.stderr.tail())
			}
		}
	}
	inStep("late", true)
	serve(60)
	inStep("live", true)

	// What is missed is not announced again: the number of the next message alone tells.
	// (A prompt may bring nothing new.)
	serveSomething := func() {
		t.Helper()
		next := w.pub.Stats().NextSeq
		live.wait(next - 1)
		for w.pub.Stats().NextSeq == next {
			serve(1)
		}
		live.wait(w.pub.Stats().NextSeq - 1)
	}
	missed := 0
	for attempt := 0; missed == 0; attempt++ {
		if attempt == 100 {
			t.Fatal("nothing of what was lost stayed in the cache")
		}
		before := w.resident()
		live.wait(w.pub.Stats().NextSeq - 1)
		live.losing.Store(true)
		serveSomething()
		live.losing.Store(false)
		lost := w.resident()
		serveSomething()
		still := w.resident()
		for _, hash := range lost {
			if !slices.Contains(before, hash) && slices.Contains(still, hash) {
				missed++
			}
		}
	}
	t.Logf("%d messages were lost, with them %d blocks", live.lost.Load(), missed)
	inStep("behind a loss", false)

	w.kill()
	w.start(0)
	serve(20)
	inStep("in the next life", true)
	w.kill()
}

// resident is what the worker can reuse, as hashes in order.
func (w *worker) resident() (hashes []int64) {
	w.t.Helper()
	blocks, err := w.manager.Resident(event.Signed64)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range blocks {
		hashes = append(hashes, int64(b.Hash))
	}
	slices.Sort(hashes)
	return hashes
}
