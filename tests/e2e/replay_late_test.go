// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kvcast/kvcast/publisher/subscribe"
)

// replayedLine is a line of tap --json with what only replays have.
type replayedLine struct {
	tapLine
	Replayed bool `json:"replayed"`
	Received struct {
		Batches  int `json:"batches"`
		Replayed int `json:"replayed_batches"`
		Missing  int `json:"missing_batches"`
		Restarts int `json:"restarts"`
	} `json:"received"`
}

// A tap that comes when all is over reads the stream from its beginning: it
// keeps the contract and leaves the resident set, in both dialects.
func TestLateTapCatchesUp(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"topic", "legacy"} {
		t.Run(dialect, func(t *testing.T) {
			folder := shortTemp(t)
			live, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
			resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
			replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "40", "--capacity-blocks", "2000",
				"--endpoint", live, "--replay-endpoint", history, "--replay-dialect", dialect,
				"--resident-out", resident, "--hold", "1h", "--tail-mark", "off", "--device", "host", "--topic", "kv")
			var s replaySummary
			replay.line(&s)
			tap := start(t, "tap", live, "--replay", history, "--json", "--verify", "--mirror-out", mirror,
				"--idle-exit", "1s", "--topic", "kv")
			tap.good()
			replay.signal(syscall.SIGTERM)
			replay.good()
			wantMirror(t, mirror, resident)
			var end replayedLine
			lastLine(t, tap, &end)
			if end.Received.Batches != s.Batches || end.Received.Replayed != s.Batches || end.Received.Missing != 0 ||
				!end.Verified.Good || !end.Verified.Complete || end.Verified.VerifiedKeys != s.StoredBlocks || s.RemovedBlocks == 0 {
				t.Errorf("ends with %+v, replay with %+v", end, s)
			}
		})
	}
}

// A tap that joins while batches are published as fast as possible gets each
// number once, from a replay or live.
func TestTapJoinsInMidStream(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	live, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
	resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
	limit := 2000
	if testing.Short() {
		limit = 200
	}
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: live})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	replay := startPiped(t, "replay", "--trace", traceFile, "--limit", fmt.Sprint(limit), "--capacity-blocks", "4000",
		"--endpoint", live, "--replay-endpoint", history, "--wait-subscribers", "1",
		"--resident-out", resident, "--hold", "1h", "--tail-mark", "off", "--device", "host")
	if _, err := client.Receive(deadline); err != nil {
		t.Fatal(err)
	}
	tap := startPiped(t, "tap", live, "--replay", history, "--verify", "--mirror-out", mirror)
	var s replaySummary
	replay.line(&s)
	replayed := 0
	for next := 0; next < s.Batches; next++ {
		var l replayedLine
		if tap.line(&l); l.Type != "batch" || l.Seq != next {
			t.Fatalf("got %s %d %s, want batch %d", l.Type, l.Seq, l.Text, next)
		}
		if l.Replayed {
			replayed++
		}
	}
	replay.signal(syscall.SIGTERM)
	replay.good()
	tap.signal(syscall.SIGTERM)
	var end replayedLine
	tap.line(&end)
	tap.good()
	wantMirror(t, mirror, resident)
	t.Logf("%d of %d batches were replayed", replayed, s.Batches)
	if replayed == 0 || end.Received.Batches != s.Batches || !end.Verified.Good || !end.Verified.Complete || s.RemovedBlocks == 0 {
		t.Errorf("ends with %+v", end)
	}
}

// A ring that is shorter than the stream gives its newest part: the tap says
// what is missing, and claims no more than it knows.
func TestLateTapOfAShortRing(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	live, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
	const kept = 5
	replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "40", "--capacity-blocks", "2000",
		"--endpoint", live, "--replay-endpoint", history, "--buffer-steps", fmt.Sprint(kept), "--hold", "1h", "--tail-mark", "off", "--device", "host",
		"--truncated-history", "suffix")
	var s replaySummary
	replay.line(&s)
	if s.Batches <= kept {
		t.Fatalf("only %d batches", s.Batches)
	}
	tap := start(t, "tap", live, "--replay", history, "--json", "--verify", "--idle-exit", "1s")
	tap.good()
	replay.signal(syscall.SIGTERM)
	replay.good()
	var end replayedLine
	lastLine(t, tap, &end)
	if end.Received.Replayed != kept || end.Received.Missing != s.Batches-kept || !end.Verified.Good || end.Verified.Complete {
		t.Errorf("ends with %+v", end)
	}
}

// With snapshots it gives all that there is, whether the answer is filled up or
// ends early.
func TestLateTapGetsASnapshot(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"65536", "0"} {
		folder := shortTemp(t)
		live, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
		resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
		replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "40", "--capacity-blocks", "2000",
			"--endpoint", live, "--replay-endpoint", history, "--buffer-steps", "5", "--hold", "1h", "--device", "host",
			"--replay-pad-limit", limit, "--resident-out", resident)
		var s replaySummary
		replay.line(&s)
		tap := start(t, "tap", live, "--replay", history, "--json", "--verify", "--idle-exit", "1s", "--mirror-out", mirror)
		tap.good()
		replay.signal(syscall.SIGTERM)
		replay.good()
		var end replayedLine
		lastLine(t, tap, &end)
		if end.Received.Replayed == 0 || end.Received.Missing != 0 || !end.Verified.Good || !end.Verified.Complete {
			t.Errorf("limit %s: ends with %+v", limit, end)
		}
		wantMirror(t, mirror, resident)
	}
}

// A relay that drops every third batch, in runs of up to four: the tap gets
// each number once all the same, and nothing is missing.
func TestTapHealsLiveDrops(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	source, history := "ipc://"+filepath.Join(folder, "s"), "ipc://"+filepath.Join(folder, "r")
	resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: source})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// The tap is there before the first batch, which is in the pipe of the relay.
	engine, endpoint := newEngine(t)
	tap := startPiped(t, "tap", endpoint, "--replay", history, "--verify", "--mirror-out", mirror)
	engine.join()
	replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "60", "--capacity-blocks", "2000",
		"--endpoint", source, "--replay-endpoint", history, "--wait-subscribers", "1",
		"--resident-out", resident, "--hold", "1h", "--tail-mark", "off", "--device", "host")
	var s replaySummary
	replay.line(&s)
	dropped := 0
	for i := range s.Batches {
		m, err := client.Receive(deadline)
		if err != nil {
			t.Fatal(err)
		}
		if i%12 < 4 && i < s.Batches-1 {
			dropped++
			continue
		}
		engine.send([]byte(m.Topic), binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload)
	}
	if dropped < 4 {
		t.Fatalf("only %d of %d batches were dropped", dropped, s.Batches)
	}
	for next := 0; next < s.Batches; next++ {
		var l replayedLine
		if tap.line(&l); l.Type != "batch" || l.Seq != next {
			t.Fatalf("got %s %d %s, want batch %d", l.Type, l.Seq, l.Text, next)
		}
	}
	replay.signal(syscall.SIGTERM)
	replay.good()
	tap.signal(syscall.SIGTERM)
	var end replayedLine
	tap.line(&end)
	tap.good()
	wantMirror(t, mirror, resident)
	if end.Received.Replayed < dropped || end.Received.Missing != 0 || !end.Verified.Good || !end.Verified.Complete {
		t.Errorf("%d dropped, ends with %+v", dropped, end)
	}
}
