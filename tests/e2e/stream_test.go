// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/subscribe"
)

// tapEvent and tapLine are the parts of tap --json that the tests use. Numbers
// are kept as text: hashes do not fit a float64.
type tapEvent struct {
	Type      string            `json:"type"`
	Hashes    []json.RawMessage `json:"block_hashes"`
	Parent    json.RawMessage   `json:"parent_block_hash"`
	Tokens    []uint32          `json:"token_ids"`
	BlockSize int               `json:"block_size"`
	Medium    string            `json:"medium"`
	LoRAID    *uint64           `json:"lora_id"`
	LoRAName  string            `json:"lora_name"`
}

type tapLine struct {
	Type   string     `json:"type"`
	Text   string     `json:"text"`
	Seq    int        `json:"seq"`
	Topic  string     `json:"topic"`
	Events []tapEvent `json:"events"`

	// The summary.
	Received struct {
		Batches        int `json:"batches"`
		Events         int `json:"events"`
		StoredBlocks   int `json:"stored_blocks"`
		RemovedBlocks  int `json:"removed_blocks"`
		MissingBatches int `json:"missing_batches"`
		Malformed      int `json:"malformed"`
	} `json:"received"`
	Last *struct {
		Seq        int     `json:"seq"`
		TS         float64 `json:"ts"`
		FinalClear bool    `json:"final_clear"`
	} `json:"last"`
	MirrorBlocks *int `json:"mirror_blocks"`
	Verified     *struct {
		Good           bool   `json:"good"`
		Breach         string `json:"breach"`
		Complete       bool   `json:"complete"`
		Lives          int    `json:"lives"`
		VerifiedKeys   int    `json:"verified_keys"`
		UnverifiedKeys int    `json:"unverified_keys"`
		Hash           string `json:"hash"`
	} `json:"verified"`
}

// reader follows a stream by its own simple rules.
type reader struct {
	t        *testing.T
	form     string
	resident map[uint64]bool // by 64-bit pattern
	stored   int
	removed  int
	next     int
}

func newReader(t *testing.T, form string) *reader {
	return &reader{t: t, form: form, resident: map[uint64]bool{}}
}

// pattern is the number of a hash in resident-set files.
func (r *reader) pattern(raw json.RawMessage) uint64 {
	r.t.Helper()
	text := string(raw)
	if r.form == "bytes" {
		digest := strings.Trim(text, `"`)
		if len(digest) != 2+64 {
			r.t.Fatalf("%s is not a digest", text)
		}
		n, err := strconv.ParseUint(digest[2:18], 16, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		return n
	}
	if r.form == "signed64" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		return uint64(n)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.form == "portable63" && (n < 1<<32 || n >= 1<<63) {
		r.t.Errorf("%d is outside the range of portable63", n)
	}
	return n
}

// take checks one batch against what came before it.
func (r *reader) take(line tapLine) {
	r.t.Helper()
	if line.Type != "batch" || line.Seq != r.next {
		r.t.Fatalf("got %s %d %s, want batch %d", line.Type, line.Seq, line.Text, r.next)
	}
	r.next++
	if line.Seq == 0 && (len(line.Events) != 1 || line.Events[0].Type != "AllBlocksCleared") {
		r.t.Fatalf("batch 0 holds %+v", line.Events)
	}
	for _, e := range line.Events {
		switch e.Type {
		case "AllBlocksCleared":
			if len(line.Events) != 1 {
				r.t.Errorf("batch %d: a clear among others", line.Seq)
			}
			clear(r.resident)
		case "BlockStored":
			if len(e.Tokens) != len(e.Hashes)*e.BlockSize || e.BlockSize == 0 {
				r.t.Errorf("batch %d: %d tokens for %d blocks of %d", line.Seq, len(e.Tokens), len(e.Hashes), e.BlockSize)
			}
			if e.Parent != nil && !r.resident[r.pattern(e.Parent)] {
				r.t.Errorf("batch %d: unknown parent %s", line.Seq, e.Parent)
			}
			for _, h := range e.Hashes {
				p := r.pattern(h)
				if r.resident[p] {
					r.t.Errorf("batch %d: %d stored twice", line.Seq, p)
				}
				r.resident[p] = true
				r.stored++
			}
		case "BlockRemoved":
			for _, h := range e.Hashes {
				p := r.pattern(h)
				if !r.resident[p] {
					r.t.Errorf("batch %d: %d removed but not stored", line.Seq, p)
				}
				delete(r.resident, p)
				r.removed++
			}
		default:
			r.t.Errorf("batch %d: event %q", line.Seq, e.Type)
		}
		if e.Type != "AllBlocksCleared" && e.Medium != "GPU" {
			r.t.Errorf("batch %d: medium %q", line.Seq, e.Medium)
		}
	}
}

// list is the resident set as a file.
func (r *reader) list() string {
	var s strings.Builder
	for _, p := range slices.Sorted(maps.Keys(r.resident)) {
		fmt.Fprintln(&s, p)
	}
	return s.String()
}

// pair is a replay that holds at its end and a tap that verifies it.
type pair struct {
	replay, tap      *process
	resident, mirror string
	reader           *reader
}

func newPair(t *testing.T, form string, args ...string) *pair {
	t.Helper()
	return newPairFrom(t, form, traceFile, nil, args...)
}

// newPairFrom is newPair with another trace, which may be standard input.
func newPairFrom(t *testing.T, form, trace string, in *os.File, args ...string) *pair {
	t.Helper()
	folder := shortTemp(t)
	endpoint := "ipc://" + filepath.Join(folder, "s")
	p := &pair{resident: filepath.Join(folder, "resident"), mirror: filepath.Join(folder, "mirror"),
		reader: newReader(t, form)}
	// The subscriber is there first.
	p.tap = startPiped(t, "tap", endpoint, "--verify", "--mirror-out", p.mirror)
	p.replay = startPipedFrom(t, in, append([]string{"replay", "--trace", trace, "--hash", form,
		"--endpoint", endpoint, "--wait-subscribers", "1", "--resident-out", p.resident,
		"--hold", "1h", "--tail-mark", "off", "--device", "host"}, args...)...)
	return p
}

// newGroupedPair is a pair whose replay gets the requests in two groups. Nothing
// is evicted by those of the first one. Those of the second one come when all
// blocks of the first one have been announced, however small the record buffer
// is: so there is something to take back.
func newGroupedPair(t *testing.T, form string, capacity int, requests []request, args ...string) *pair {
	t.Helper()
	var groups [2]strings.Builder
	model := newPool(16, capacity)
	first := 0 // blocks of the first group
	for line, r := range requests {
		model.serve(r.sequenceTokens(line, false), r.InputLength, 1)
		group := &groups[1]
		if model.evicted == 0 {
			group, first = &groups[0], model.stored
		}
		if err := json.NewEncoder(group).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if first == 0 || model.evicted == 0 {
		t.Fatalf("%d requests make %d blocks before the first eviction of %d", len(requests), first, model.evicted)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := newPairFrom(t, form, "/dev/stdin", in, args...)
	in.Close()
	defer out.Close()
	write := func(group string) {
		out.SetWriteDeadline(time.Now().Add(deadline))
		if _, err := io.WriteString(out, group); err != nil {
			t.Fatal(err)
		}
	}
	write(groups[0].String())
	for p.reader.stored < first {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	write(groups[1].String())
	return p
}

// finish reads the summary of the replay, everything that the tap says up to
// the last batch, and ends both with signals. It checks what must hold for
// every pair and returns both summaries.
func (p *pair) finish(t *testing.T) (replaySummary, tapLine) {
	t.Helper()
	var s replaySummary
	p.replay.line(&s)
	for p.reader.next < s.Batches {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.replay.signal(syscall.SIGTERM)
	p.replay.good()
	p.tap.signal(os.Interrupt)
	var end tapLine
	p.tap.line(&end)
	p.tap.good()
	if end.Type != "summary" || end.Verified == nil || !end.Verified.Good || !end.Verified.Complete {
		t.Fatalf("the tap ends with %+v", end)
	}

	resident, mirror := read(t, p.resident), read(t, p.mirror)
	if resident != mirror {
		t.Errorf("the mirror of the tap differs from the resident set: %d and %d blocks",
			strings.Count(mirror, "\n"), strings.Count(resident, "\n"))
	}
	if own := p.reader.list(); own != resident {
		t.Errorf("the mirror of this test differs from the resident set: %d and %d blocks",
			strings.Count(own, "\n"), strings.Count(resident, "\n"))
	}
	if n := strings.Count(resident, "\n"); n != s.ReusableBlocks || n != s.ResidentBlocks || n != *end.MirrorBlocks || n == 0 {
		t.Errorf("the file has %d blocks, replay says %d and %d, tap %d", n, s.ReusableBlocks, s.ResidentBlocks, *end.MirrorBlocks)
	}
	if s.UnannouncedBlocks != 0 {
		t.Errorf("%d blocks are not announced", s.UnannouncedBlocks)
	}
	if s.StoredBlocks == 0 || s.StoredBlocks != p.reader.stored || s.StoredBlocks != end.Received.StoredBlocks {
		t.Errorf("stored: replay says %d, the stream has %d, tap says %d", s.StoredBlocks, p.reader.stored, end.Received.StoredBlocks)
	}
	if s.RemovedBlocks != p.reader.removed || s.RemovedBlocks != end.Received.RemovedBlocks {
		t.Errorf("removed: replay says %d, the stream has %d, tap says %d", s.RemovedBlocks, p.reader.removed, end.Received.RemovedBlocks)
	}
	if end.Verified.VerifiedKeys != s.StoredBlocks || end.Verified.UnverifiedKeys != 0 {
		t.Errorf("%d keys verified, %d not, of %d", end.Verified.VerifiedKeys, end.Verified.UnverifiedKeys, s.StoredBlocks)
	}
	if end.Received.MissingBatches != 0 || end.Received.Malformed != 0 || end.Received.Batches != s.Batches {
		t.Errorf("tap: %+v; replay sent %d batches", end, s.Batches)
	}
	return s, end
}

// For each hash form and for record buffers that are ample, far too small for
// a request, and smaller than a healing step: the mirror that a separate
// process builds from the bytes on the socket is the resident set.
func TestMirrorEqualsResidentSet(t *testing.T) {
	for _, form := range []string{"signed64", "unsigned64", "portable63", "bytes"} {
		for _, sink := range []int{50000, 64, 4} {
			t.Run(fmt.Sprintf("%s with %d", form, sink), func(t *testing.T) {
				t.Parallel()
				limit := 60
				if testing.Short() {
					limit = 15
				}
				args := []string{"--limit", fmt.Sprint(limit), "--capacity-blocks", "3000", "--sink-blocks", fmt.Sprint(sink)}
				var p *pair
				if sink < 100 {
					p = newGroupedPair(t, form, 3000, readTrace(t, traceFile, limit), args...)
				} else {
					p = newPair(t, form, args...)
				}
				s, end := p.finish(t)
				if s.RemovedBlocks == 0 {
					t.Error("nothing was removed: the case shows too little")
				}
				if sink < 100 && (s.DeferredBlocks == 0 || s.HealedBlocks == 0) {
					t.Errorf("the buffer never overflowed: %d deferred, %d healed", s.DeferredBlocks, s.HealedBlocks)
				}
				// Requests larger than the buffer came and went: everything
				// that was announced of them has its removal.
				if s.DeferredBlocks != s.HealedBlocks+s.DeferredEvicted {
					t.Errorf("%d deferred, but %d healed and %d evicted", s.DeferredBlocks, s.HealedBlocks, s.DeferredEvicted)
				}
				if s.StoredBlocks-s.RemovedBlocks != s.ResidentBlocks {
					t.Errorf("%d stored, %d removed, %d resident", s.StoredBlocks, s.RemovedBlocks, s.ResidentBlocks)
				}
				if end.Verified.Hash != form {
					t.Errorf("hash form %q", end.Verified.Hash)
				}
				if len(s.Epoch) != 16 || s.BytesPublished == 0 || s.WallSeconds <= 0 || s.SchedulerSeconds <= 0 || s.NsPerBlock <= 0 {
					t.Errorf("incomplete summary: %+v", s)
				}
			})
		}
	}
}

// The whole path over TCP, with sequences that overlap, output tokens and a
// topic, on a port that the system chooses.
func TestMirrorOverTCP(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	resident, mirror := filepath.Join(folder, "resident"), filepath.Join(folder, "mirror")
	p := &pair{resident: resident, mirror: mirror, reader: newReader(t, "signed64")}
	replay := command(t, "replay", "--trace", traceFile, "--limit", "40", "--capacity-blocks", "4000",
		"--concurrency", "3", "--decode", "--topic", "kv@pod@model", "--endpoint", "tcp://127.0.0.1:*", "--device", "host",
		"--wait-subscribers", "1", "--resident-out", resident, "--hold", "1h", "--tail-mark", "off", "--json")
	endpoint := startBound(t, replay)
	p.replay = replay
	p.tap = startPiped(t, "tap", endpoint, "--verify", "--topic", "kv@", "--mirror-out", mirror)
	s, end := p.finish(t)
	if s.Endpoint != endpoint {
		t.Errorf("endpoint %q, said before %q", s.Endpoint, endpoint)
	}
	if end.Verified.Hash != "signed64" {
		t.Errorf("tap found out the form %q", end.Verified.Hash)
	}
}

// A last clear, when asked for, is alone in the last batch and empties the
// mirror, while the resident set stays what it was.
func TestClearOnClose(t *testing.T) {
	t.Parallel()
	p := newPair(t, "signed64", "--limit", "5", "--clear-on-close")
	var s replaySummary
	p.replay.line(&s)
	p.replay.signal(syscall.SIGTERM)
	p.replay.good()
	for p.reader.next <= s.Batches {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.tap.signal(syscall.SIGTERM)
	p.tap.good()
	if got := read(t, p.mirror); got != "" || len(p.reader.resident) != 0 {
		t.Errorf("the mirror has %d blocks", strings.Count(got, "\n"))
	}
	if n := strings.Count(read(t, p.resident), "\n"); n != s.ResidentBlocks || n == 0 {
		t.Errorf("the resident set has %d blocks, want %d", n, s.ResidentBlocks)
	}
}

// A publisher that is started anew begins a new life, which a subscriber that
// stayed can follow.
func TestRestart(t *testing.T) {
	t.Parallel()
	p := newPair(t, "signed64", "--limit", "5")
	var s replaySummary
	p.replay.line(&s)
	p.replay.signal(syscall.SIGTERM)
	p.replay.good()
	for p.reader.next < s.Batches {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.reader = newReader(t, "signed64")
	args := slices.Clone(p.replay.Args[1:])
	args[slices.Index(args, "--limit")+1] = "8"
	p.replay = startPiped(t, args[:len(args)-1]...) // startPiped adds --json
	p.replay.line(&s)
	var told tapLine
	if p.tap.line(&told); told.Type != "restart" {
		t.Fatalf("got %s %d %s, want a restart", told.Type, told.Seq, told.Text)
	}
	for p.reader.next < s.Batches {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.replay.signal(syscall.SIGTERM)
	p.replay.good()
	p.tap.signal(os.Interrupt)
	var end tapLine
	p.tap.line(&end)
	p.tap.good()
	if end.Verified == nil || !end.Verified.Good || end.Verified.Lives != 2 {
		t.Errorf("the tap ends with %+v", end)
	}
	if read(t, p.mirror) != read(t, p.resident) {
		t.Error("the mirror differs from the resident set of the second life")
	}
}

// An interrupted replay ends in good order: what it has stored is published,
// and the resident set is written.
func TestInterruptedReplay(t *testing.T) {
	t.Parallel()
	// In real time the trace takes minutes.
	p := newPair(t, "signed64", "--speed", "1")
	for p.reader.stored == 0 {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.replay.signal(os.Interrupt)
	var s replaySummary
	p.replay.line(&s)
	p.replay.good()
	if !s.Interrupted || s.Requests == 0 || s.Requests >= 2000 || s.UnannouncedBlocks != 0 {
		t.Errorf("summary: %+v", s)
	}
	for p.reader.next < s.Batches {
		var line tapLine
		p.tap.line(&line)
		p.reader.take(line)
	}
	p.tap.signal(os.Interrupt)
	p.tap.good()
	if got := read(t, p.resident); got != read(t, p.mirror) || got == "" {
		t.Error("mirror and resident set differ")
	}
}

// So does one that waits for its trace, which comes through a pipe: each
// request is served when it is there.
func TestInterruptedPipe(t *testing.T) {
	t.Parallel()
	endpoint := "ipc://" + filepath.Join(shortTemp(t), "s")
	tap := startPiped(t, "tap", endpoint, "--verify")
	p := command(t, "replay", "--trace", "/dev/stdin", "--endpoint", endpoint, "--wait-subscribers", "1", "--json")
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd.Stdout = &p.stdout
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, "signed64")
	for i := range 3 {
		if _, err := fmt.Fprintf(in, `{"timestamp":0,"input_length":32,"output_length":0,"hash_ids":[%d]}`+"\n", i); err != nil {
			t.Fatal(err)
		}
		for r.stored < 2*(i+1) {
			var line tapLine
			tap.line(&line)
			r.take(line)
		}
	}
	p.signal(os.Interrupt)
	p.good()
	if s := p.summary(); !s.Interrupted || s.Requests != 3 || s.StoredBlocks != 6 {
		t.Errorf("summary: %+v", s)
	}
}

// Nothing is sent before as many have subscribed as were asked for.
func TestWaitSubscribers(t *testing.T) {
	t.Parallel()
	endpoint := "ipc://" + filepath.Join(shortTemp(t), "s")
	first, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	replay := startPiped(t, "replay", "--trace", traceFile, "--limit", "3", "--endpoint", endpoint,
		"--wait-subscribers", "2", "--hold", "1h", "--tail-mark", "off")
	if m, err := first.Receive(500 * time.Millisecond); !errors.Is(err, subscribe.ErrTimeout) {
		t.Fatalf("received %v, %v from a publisher that waits", m, err)
	}
	second := startPiped(t, "tap", endpoint, "--max-batches", "1")
	var line tapLine
	second.line(&line)
	if line.Type != "batch" || line.Seq != 0 {
		t.Errorf("the second subscriber begins with %+v", line)
	}
	second.good()
	if m, err := first.Receive(deadline); err != nil || m.Seq != 0 {
		t.Errorf("the first subscriber begins with %+v, %v", m, err)
	}
	replay.signal(os.Interrupt)
	replay.good()
}

// An interrupt ends a replay that waits for subscribers which never come.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	folder := shortTemp(t)
	out := filepath.Join(folder, "resident")
	replay := command(t, "replay", "--trace", traceFile, "--limit", "3", "--endpoint", "ipc://*",
		"--wait-subscribers", "1", "--resident-out", out)
	startBound(t, replay)
	replay.signal(os.Interrupt)
	if code := replay.exit(); code != 2 {
		t.Errorf("exit code %d", code)
	}
	if names := listFolder(t, folder); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Arrivals are spaced as in the trace, divided by --speed.
func TestSpeed(t *testing.T) {
	t.Parallel()
	one := request{InputLength: 20, HashIDs: []uint64{1}}
	late := one
	late.Timestamp = 600
	path := writeTrace(t, one, late)
	for speed, least := range map[string]float64{"1": 0.6, "3": 0.2, "0": 0} {
		s := replay(t, "--trace", path, "--publisher", "off", "--speed", speed)
		if s.WallSeconds < least {
			t.Errorf("speed %s: done after %g s, want at least %g", speed, s.WallSeconds, least)
		}
		if s.Requests != 2 || s.HitBlocks != 1 {
			t.Errorf("speed %s: %+v", speed, s)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	p := start(t, "version")
	p.good()
	q := start(t, "version", "--json")
	q.good()
	var v struct {
		Version string `json:"version"`
		ABI     int    `json:"abi_version"`
		ZMQ     string `json:"libzmq"`
	}
	if err := json.Unmarshal(q.stdout.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.ABI < 1 || v.ZMQ == "" || strings.Count(v.Version, ".") != 2 {
		t.Errorf("got %s", tail(&q.stdout))
	}
	if want := fmt.Sprintf("kvcast %s (ABI %d, ", v.Version, v.ABI); !strings.HasPrefix(p.stdout.String(), want) {
		t.Errorf("%q does not begin with %q", tail(&p.stdout), want)
	}
}
