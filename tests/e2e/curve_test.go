// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	zmq "github.com/pebbe/zmq4"
)

// A replay with keys and taps of every kind: the right one gets stream and
// history, whoever is not let in is told why, and whoever takes another key for
// the publisher's hears nothing.
func TestTapCurve(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	write := func(name, text string, mode fs.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pair := func(name string) (public, secret string) {
		p, s, err := zmq.NewCurveKeypair()
		if err != nil {
			t.Skipf("libzmq without CURVE: %v", err)
		}
		return write(name+".public", p, 0o644), write(name+".secret", s, 0o600)
	}
	serverPublic, serverSecret := pair("server")
	listedPublic, listedSecret := pair("listed")
	otherPublic, otherSecret := pair("other")
	allow := write("allow", "# routers\n"+strings.TrimSpace(read(t, listedPublic)), 0o644)
	live, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
	// It holds until it is told to end.
	replay := start(t, "replay", "--trace", traceFile, "--limit", "20", "--endpoint", live, "--replay-endpoint", history,
		"--curve-secret-key-file", serverSecret, "--curve-allow-file", allow, "--wait-subscribers", "1", "--hold", "10m")

	tap := func(args ...string) *process {
		return start(t, append([]string{"tap", live, "--replay", history}, args...)...)
	}
	const (
		unlisted = "kvcast: subscribe: receive: refused by the publisher: our key is not on its list\n"
		mismatch = "kvcast: subscribe: receive: refused by the publisher: one side speaks CURVE and the other does not\n"
	)
	// Before anybody has joined: none of these is a subscriber.
	tap("--curve-server-key-file", serverPublic, "--curve-secret-key-file", otherSecret).wantLine(2, unlisted)
	tap().wantLine(2, mismatch)
	start(t, "tap", live, "--curve-server-key-file", otherPublic, "--curve-secret-key-file", listedSecret,
		"--idle-exit", "2s", "--verify").wantLine(1, "nothing was received from "+live+"\n")

	right := []string{"--curve-server-key-file", serverPublic, "--curve-secret-key-file", listedSecret, "--verify"}
	first := startPiped(t, append([]string{"tap", live, "--replay", history, "--max-batches", "5"}, right...)...)
	var end tapLine
	for end.Type != "summary" {
		first.line(&end)
	}
	first.good()
	if end.Received.Batches != 5 || !end.Verified.Good || !end.Verified.Complete {
		t.Errorf("ends with %+v", end)
	}
	// All of this one's batches are history.
	late := tap(append(right, "--max-batches", "5")...)
	late.good()
	if out := late.stdout.String(); !strings.Contains(out, "replayed  5 batches, 0 restarts, 0 failures\n") {
		t.Errorf("got %s", out)
	}
	replay.signal(os.Interrupt)
	replay.exit()

	// Without keys over there.
	engine, endpoint := newEngine(t)
	start(t, "tap", endpoint, "--curve-server-key-file", serverPublic, "--curve-secret-key-file", listedSecret).wantLine(2, mismatch)
	engine.batch(0, cleared)

	for mode, want := range map[fs.FileMode]string{
		0o640: "others than its owner may use it: its mode is 0640",
		0o604: "others than its owner may use it: its mode is 0604",
	} {
		if err := os.Chmod(listedSecret, mode); err != nil {
			t.Fatal(err)
		}
		start(t, append([]string{"tap", live}, right...)...).wantLine(2, fmt.Sprintf("--curve-secret-key-file %q: %s\n", listedSecret, want))
	}
}
