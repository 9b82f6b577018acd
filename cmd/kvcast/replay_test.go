// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// runPatience bounds a run in these tests; it is far beyond what one takes.
const runPatience = 30 * time.Second

// background runs a command line in this process; its output can be read while
// it runs.
type background struct {
	out, err *bufio.Reader
	cancel   context.CancelFunc
	code     chan int
}

func startCommand(t *testing.T, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runPatience)
	outReader, outWriter := io.Pipe()
	errReader, errWriter := io.Pipe()
	b := &background{bufio.NewReader(outReader), bufio.NewReader(errReader), cancel, make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.code <- run(ctx, args, streams{outWriter, errWriter})
		outWriter.Close()
		errWriter.Close()
	}()
	t.Cleanup(func() {
		cancel()
		outReader.Close()
		errReader.Close()
		<-ended
	})
	return b
}

// The ports that were asked for are told, and what has been sent can be had
// again while the run holds, in the encoding that was asked for.
func TestReplayServesReplays(t *testing.T) {
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	if err := os.WriteFile(trace, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	// The first byte of a BlockStored: a map of 8 keys, arrays of 12 and 9.
	for encoding, first := range map[string]byte{"map": 0x88, "array": 0x9c, "array-short": 0x99} {
		t.Run(encoding, func(t *testing.T) {
			out := filepath.Join(folder, encoding)
			r := startCommand(t, "replay", "--trace", trace, "--endpoint", "tcp://127.0.0.1:0", "--replay-endpoint", "tcp://127.0.0.1:*",
				"--encoding", encoding, "--json", "--hold", "1h", "--device", "host", "--resident-out", out)
			note, err := r.err.ReadString('\n')
			said := regexp.MustCompile(`^kvcast: publishing on (tcp://127\.0\.0\.1:\d+), replays on (tcp://127\.0\.0\.1:\d+)\n$`).FindStringSubmatch(note)
			if err != nil || said == nil {
				t.Fatalf("%v, %q", err, note)
			}
			text, err := r.out.ReadString('\n')
			var s summary
			if err := errors.Join(err, json.Unmarshal([]byte(text), &s)); err != nil {
				t.Fatalf("%v in %q", err, text)
			}
			if s.Endpoint != said[1] || s.ReplayEndpoint != said[2] || s.Encoding != encoding || s.ReplayRequests != 0 || s.Batches != 2 {
				t.Errorf("%+v after %q", s, note)
			}
			follower, err := subscribe.Follow(subscribe.FollowerOptions{
				Client: subscribe.ClientOptions{Endpoint: said[1]}, Replay: said[2]})
			if err != nil {
				t.Fatal(err)
			}
			defer follower.Close()
			decoder, err := wire.NewDecoder(wire.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			verifier := subscribe.NewVerifier(subscribe.VerifierOptions{})
			for seq := uint64(0); seq < s.Batches; {
				item, err := follower.Next(runPatience)
				if err != nil {
					t.Fatal(err)
				}
				if item.Kind != subscribe.ItemBatch || !item.Replayed || item.Message.Seq != seq {
					t.Fatalf("got %+v, want batch %d", item, seq)
				}
				// The envelope, the time and the events' header come before it.
				if seq == 1 && item.Message.Payload[11] != first {
					t.Errorf("the event begins with %#x, want %#x", item.Message.Payload[11], first)
				}
				batch, err := decoder.Decode(item.Message.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if err := verifier.Check(seq, batch); err != nil {
					t.Fatal(err)
				}
				seq++
			}
			var mirror strings.Builder
			writePatterns(&mirror, verifier.Mirror().Patterns())
			if b, err := os.ReadFile(out); err != nil || string(b) != mirror.String() || mirror.Len() == 0 {
				t.Errorf("the mirror is %q, the resident set %q, %v", mirror.String(), b, err)
			}
			r.cancel()
			if code := <-r.code; code != exitGood {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// Endpoints that are as given need no words.
func TestReplayIsSilentOnKnownEndpoints(t *testing.T) {
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	if err := os.WriteFile(trace, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := func(name string) string { return "ipc://" + filepath.Join(folder, name) }
	code, _, text := runCommand(t.Context(), "replay", "--trace", trace, "--endpoint", socket("s"), "--replay-endpoint", socket("r"))
	if code != exitGood || text != "" {
		t.Errorf("%d, %q", code, text)
	}
	code, _, text = runCommand(t.Context(), "replay", "--trace", trace, "--endpoint", socket("s"), "--replay-endpoint", "tcp://127.0.0.1:0")
	if code != exitGood || !strings.HasPrefix(text, "kvcast: publishing on "+socket("s")+", replays on tcp://127.0.0.1:") ||
		strings.HasSuffix(text, ":0\n") {
		t.Errorf("%d, %q", code, text)
	}
}

// The ring keeps what the flags allow.
func TestReplayBufferFlags(t *testing.T) {
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	var text strings.Builder
	for range 40 {
		text.WriteString(oneRequest)
	}
	if err := os.WriteFile(trace, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, limit := range [][]string{{"--buffer-steps", "1"}, {"--replay-buffer-bytes", "1"}} {
		r := startCommand(t, append([]string{"replay", "--trace", trace, "--endpoint", "tcp://127.0.0.1:0", "--json",
			"--replay-endpoint", "tcp://127.0.0.1:0", "--hold", "1h", "--device", "host", "--truncated-history", "suffix"}, limit...)...)
		go io.Copy(io.Discard, r.err)
		line, err := r.out.ReadString('\n')
		var s summary
		if err := errors.Join(err, json.Unmarshal([]byte(line), &s)); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		follower, err := subscribe.Follow(subscribe.FollowerOptions{
			Client: subscribe.ClientOptions{Endpoint: s.Endpoint}, Replay: s.ReplayEndpoint})
		if err != nil {
			t.Fatal(err)
		}
		defer follower.Close()
		var batches []uint64
		for len(batches) == 0 || batches[len(batches)-1] < s.Batches-1 {
			item, err := follower.Next(runPatience)
			if err != nil {
				t.Fatal(err)
			}
			if item.Kind == subscribe.ItemBatch {
				batches = append(batches, item.Message.Seq)
			}
		}
		if len(batches) != 1 || s.Batches < 2 {
			t.Errorf("%v: batches %v of %d", limit, batches, s.Batches)
		}
		r.cancel()
		if code := <-r.code; code != exitGood {
			t.Errorf("exit code %d", code)
		}
	}
}
