// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// serverPoll is how often a server that nobody asks looks whether it is to end.
const serverPoll = 20 * time.Millisecond

// replayEngine is an engine with a history from which it answers every request.
type replayEngine struct {
	*engine
	router *zmq.Socket
	legacy bool

	mu      sync.Mutex
	history map[int][]byte
}

func newReplayEngine(t *testing.T) (e *replayEngine, endpoint, replay string) {
	t.Helper()
	live, endpoint := newEngine(t)
	ctx, err := live.socket.Context()
	if err != nil {
		t.Fatal(err)
	}
	router, err := ctx.NewSocket(zmq.ROUTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { router.Close() })
	replay = "ipc://" + filepath.Join(shortTemp(t), "r")
	for _, err := range []error{router.SetLinger(0), router.SetRcvtimeo(deadline), router.SetSndtimeo(deadline), router.Bind(replay)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &replayEngine{engine: live, router: router, history: map[int][]byte{}}, endpoint, replay
}

// serve answers requests until the test ends. The router belongs to it.
func (e *replayEngine) serve() {
	e.t.Helper()
	if err := e.router.SetRcvtimeo(serverPoll); err != nil {
		e.t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	e.t.Cleanup(func() { close(end); <-ended })
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
			}
			frames, err := e.router.RecvMessageBytes(0)
			if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
				continue
			}
			if err == nil {
				err = e.answer(frames)
			}
			if err != nil {
				e.t.Error(err)
				return
			}
		}
	}()
}

// answer answers one request with what the history has when it is read.
func (e *replayEngine) answer(frames [][]byte) error {
	if len(frames) != 3 || len(frames[1]) > 0 || len(frames[2]) != 8 {
		return fmt.Errorf("not a request: %q", frames)
	}
	start := int(binary.BigEndian.Uint64(frames[2]))
	e.mu.Lock()
	history := maps.Clone(e.history)
	e.mu.Unlock()
	reply := func(topic string, seq uint64, payload []byte) error {
		parts := []any{frames[0], "", topic, binary.BigEndian.AppendUint64(nil, seq), payload}
		if e.legacy {
			parts = append(parts[:2], parts[3:]...)
		}
		_, err := e.router.SendMessage(parts...)
		return err
	}
	for _, seq := range slices.Sorted(maps.Keys(history)) {
		if seq < start {
			continue
		}
		if err := reply("kv", uint64(seq), history[seq]); err != nil {
			return err
		}
	}
	return reply("", 1<<64-1, nil)
}

// keep puts a batch into the history without sending it.
func (e *replayEngine) keep(seq int, payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history[seq] = payload
}

// become puts another history in the place of the one that there is.
func (e *replayEngine) become(history map[int][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history = history
}

// publish sends a batch that is in the history, as all are.
func (e *replayEngine) publish(seq int, payload []byte) {
	e.t.Helper()
	e.keep(seq, payload)
	e.batch(seq, payload)
}

// A late tap reads the history, in both dialects, and tells it from what is
// live. The first live batch comes as an answer too: only that shows that both
// are of one life.
func TestTapReplays(t *testing.T) {
	t.Parallel()
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy %t", legacy), func(t *testing.T) {
			engine, endpoint, replay := newReplayEngine(t)
			engine.legacy = legacy
			engine.keep(0, cleared)
			engine.keep(1, goldenRoot(t))
			engine.serve()
			mirror := filepath.Join(t.TempDir(), "mirror")
			tap := startPiped(t, "tap", endpoint, "--replay", replay, "--verify", "--max-batches", "5", "--mirror-out", mirror)
			engine.join()
			type line struct {
				tapLine
				Replayed bool `json:"replayed"`
				Received struct {
					Batches  int `json:"batches"`
					Replayed int `json:"replayed_batches"`
				} `json:"received"`
			}
			for i := range 5 {
				// Each one after the tap has said the one before.
				if i >= 2 {
					engine.publish(i, empty)
				}
				var l line
				tap.line(&l)
				if l.Type != "batch" || l.Seq != i || l.Replayed != (i <= 2) {
					t.Errorf("line %d: %+v", i, l)
				}
			}
			var end line
			tap.line(&end)
			tap.good()
			if end.Received.Batches != 5 || end.Received.Replayed != 3 || !end.Verified.Good || !end.Verified.Complete || end.Verified.VerifiedKeys != 1 {
				t.Errorf("ends with %+v", end)
			}
			if got := read(t, mirror); got != "8901721255985266736\n" {
				t.Errorf("mirror %q", got)
			}
		})
	}
}

// Gaps, restarts and what cannot be had again, as people read it.
func TestTapTellsReplays(t *testing.T) {
	t.Parallel()
	engine, endpoint, replay := newReplayEngine(t)
	for i, b := range [][]byte{cleared, empty, golden(t, "v06_stored_root_block")} {
		engine.keep(i, b)
	}
	engine.serve()
	mirror := filepath.Join(t.TempDir(), "mirror")
	tap := startRead(t, "tap", endpoint, "--replay", replay, "--mirror-out", mirror, "--max-batches", "12")
	engine.join()
	tap.until("       2  replayed  kv  stored   GPU      1 block  1234605616436508552  of 4 tokens under root")
	engine.keep(3, empty)
	engine.publish(4, empty) // 3 was lost on the way
	tap.until("       4  replayed  kv  empty")
	engine.publish(5, empty)
	tap.until("       5  kv  empty")
	engine.publish(8, empty) // 6 and 7 cannot be had
	tap.until("       8  replayed  kv  empty")
	// Killed; the next life has sent one batch more, and begins with a loss.
	engine.become(map[int][]byte{8: storedIn("\x07", "GPU"), 9: empty})
	engine.publish(7, empty) // ran back
	tap.until("       9  replayed  kv  empty")
	engine.publish(10, empty)
	tap.until("      10  replayed  kv  empty")
	engine.publish(11, empty)
	tap.rest()
	tap.good()
	want := "" +
		"       0  replayed  kv  cleared\n" +
		"       1  replayed  kv  empty\n" +
		"       2  replayed  kv  stored   GPU      1 block  1234605616436508552  of 4 tokens under root\n" +
		"       3  replayed  kv  empty\n" +
		"       4  replayed  kv  empty\n" +
		"       5  kv  empty\n" +
		"     gap  2 batches are missing before 8\n" +
		"       8  replayed  kv  empty\n" +
		" restart  batch 8 is another one now or cannot be had any more: beginning anew\n" +
		"     gap  7 batches are missing before 7\n" +
		"       7  replayed  kv  empty\n" +
		"       8  replayed  kv  stored   GPU      1 block  7  of 1 tokens under root\n" +
		"       9  replayed  kv  empty\n" +
		"      10  replayed  kv  empty\n" +
		"      11  kv  empty\n" +
		"   total  12 batches, 3 events, 2 blocks stored, 0 removed, 9 batches missing, 0 malformed\n" +
		"replayed  10 batches, 1 restarts, 0 failures\n"
	if out := tap.stdout.String(); !strings.HasPrefix(out, want) {
		t.Errorf("got %s\nwant %s", out, want)
	}
	if got := read(t, mirror); got != "7\n" {
		t.Errorf("mirror %q", got)
	}
}

// A history that is cut leaves a verifier with what it can know; a hole in what
// it has seen is a breach.
func TestTapVerifiesReplays(t *testing.T) {
	t.Parallel()
	engine, endpoint, replay := newReplayEngine(t)
	engine.keep(5, empty)
	engine.keep(6, golden(t, "v04_removed_one"))
	engine.serve()
	tap := start(t, "tap", endpoint, "--replay", replay, "--verify", "--max-batches", "3")
	engine.join()
	engine.publish(7, empty)
	tap.good()
	for _, want := range []string{"     gap  5 batches are missing before 5\n",
		"verified  batches 5 to 7 keep the contract; ", "; joined at 5: what was announced before is not known\n"} {
		if out := tap.stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}

	engine, endpoint, replay = newReplayEngine(t)
	engine.keep(0, cleared)
	engine.serve()
	tap = start(t, "tap", endpoint, "--replay", replay, "--verify")
	engine.join()
	engine.publish(3, empty)
	tap.wantLine(1, "kvcast: batch 3: the number before was 0: 2 batches are missing")
}

// Answers that are none are said; the tap goes on with what is live.
func TestTapTellsFailedReplays(t *testing.T) {
	t.Parallel()
	engine, endpoint, replay := newReplayEngine(t)
	tap := start(t, "tap", endpoint, "--replay", replay, "--max-batches", "1")
	engine.join()
	engine.publish(4, empty)
	for range 3 {
		frames, err := engine.router.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.router.SendMessage(frames[0], "no", "answer"); err != nil {
			t.Fatal(err)
		}
	}
	tap.good()
	failed := "  replay  failed: subscribe: replay: malformed message: 2 frames, the first of 2 bytes\n"
	want := strings.Repeat(failed, 3) + "     gap  4 batches are missing before 4\n       4  kv  empty\n"
	if out := tap.stdout.String(); !strings.HasPrefix(out, want) || !strings.Contains(out, "replayed  0 batches, 0 restarts, 3 failures\n") {
		t.Errorf("got %s\nwant %s", out, want)
	}
}

func TestTapRefusesReplayEndpoints(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"":                     `--replay "": want an endpoint`,
		"localhost:5657":       "no scheme",
		"tcp://*:5657":         "all interfaces",
		"tcp://127.0.0.1:0":    "the port must be 1 to 65535",
		"ipc:///nobody":        "is the endpoint of what is live",
		"tcp://127.0.0.1:5x\n": "control characters",
	} {
		start(t, "tap", "ipc:///nobody", "--replay", endpoint).wantLine(2, want)
	}
}
