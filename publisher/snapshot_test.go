// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// snapshotOptions are replayOptions with so short a history that it is truncated
// at once.
func snapshotOptions(t testing.TB) Options {
	o := replayOptions(t)
	o.BufferSteps = 4
	return o
}

// startWith starts a publisher of a new cache.
func startWith(t testing.TB, o Options, capacity int) (*Publisher, *bindings.Manager) {
	t.Helper()
	p, m, _ := startStream(t, mustNew(t, o), capacity)
	return p, m
}

func startStream(t testing.TB, p *Publisher, capacity int) (*Publisher, *bindings.Manager, *bindings.Stream) {
	t.Helper()
	stream, manager := newAllocator(t, bindings.StreamConfig{Form: p.settings.Hash},
		bindings.Config{TokensPerBlock: 4, CapacityBlocks: capacity})
	t.Cleanup(func() { p.Close() }) // before the stream
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	return p, manager, stream
}

// grow serves prompts that share beginnings, each in a batch of its own.
func grow(t testing.TB, p *Publisher, m *bindings.Manager, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		tokens := make([]uint32, 24)
		for k := range tokens {
			tokens[k] = uint32(k)
			if k >= 8 {
				tokens[k] = uint32(1000*i + k)
			}
		}
		compute(t, m, tokens)
		mustFlush(t, p)
	}
}

// patterns is what the tree holds.
func patterns(t testing.TB, m *bindings.Manager, form event.Form) []uint64 {
	t.Helper()
	resident, err := m.Resident(form)
	if err != nil {
		t.Fatal(err)
	}
	var list []uint64
	for _, b := range resident {
		list = append(list, b.Hash)
	}
	slices.Sort(list)
	return list
}

// applied decodes an answer and applies it as a reader does.
func applied(t testing.TB, run []replayed) *reader.Mirror {
	t.Helper()
	mirror := reader.NewMirror(0)
	for _, r := range run {
		apply(t, mirror, []byte(r.payload))
	}
	return mirror
}

func apply(t testing.TB, mirror *reader.Mirror, payload []byte) {
	t.Helper()
	b, err := wire.Decode(payload, wire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Remarks) > 0 {
		t.Errorf("%v", b.Remarks)
	}
	if err := mirror.Apply(b.Events); err != nil {
		t.Fatal(err)
	}
}

func sameBlocks(t testing.TB, what string, got *reader.Mirror, want []uint64) {
	t.Helper()
	if !slices.Equal(got.Patterns(), want) {
		t.Errorf("%s: %d blocks, want %d", what, got.Len(), len(want))
	}
}

// A request that reaches back beyond the ring is answered with all that is
// announced, at the number that was asked for, and then up to the newest.
func TestSnapshotFillsFromTheFront(t *testing.T) {
	t.Parallel() // waits for the next second
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			o := snapshotOptions(t)
			o.Hash = f.form
			p, m := startWith(t, o, 64)
			grow(t, p, m, 0, 20) // some of it has been evicted by the end
			want := patterns(t, m, f.form)
			newest := p.Stats().NextSeq - 1
			c := newDealer(t, p.ReplayEndpoint())
			for _, start := range []uint64{0, 3} {
				c.ask(start)
				run := c.run()
				var numbers []uint64
				for _, r := range run {
					numbers = append(numbers, r.seq)
				}
				wantNumbers(t, numbers, start, newest)
				sameBlocks(t, "all of it", applied(t, run), want)
				// Common clients stop at the number before the live one they hold,
				// which may be the second one.
				sameBlocks(t, "the first batch alone", applied(t, run[:1]), want)
				first, err := wire.Decode([]byte(run[0].payload), wire.Limits{})
				if err != nil || first.Events[0].Kind != wire.KindCleared {
					t.Fatalf("no clear first: %v", err)
				}
				known := map[wire.Hash]bool{}
				for _, e := range first.Events[1:] {
					if e.Kind != wire.KindStored || e.HasParent && !known[e.Parent] {
						t.Fatalf("%v under an unknown parent", e)
					}
					for _, h := range e.Hashes {
						known[h] = true
					}
				}
				for _, r := range run[1:] {
					if b, err := wire.Decode([]byte(r.payload), wire.Limits{}); err != nil || len(b.Events) != 0 || b.TS != first.TS {
						t.Fatalf("batch %d: %+v, %v", r.seq, b, err)
					}
				}
			}
			// What the ring still has comes from there.
			c.ask(newest - 3)
			wantNumbers(t, c.numbers(), newest-3, newest)
			if st := p.Stats(); st.Snapshots != 2 || st.ReplayTruncated != 2 || st.SnapshotErrors != 0 || st.ReplayAborted != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A REQ socket can read only the first message of an answer.
func TestSnapshotForREQ(t *testing.T) {
	p, m := startWith(t, snapshotOptions(t), 64)
	grow(t, p, m, 0, 10)
	c := newReplayClient(t, nil, zmq.REQ, p.ReplayEndpoint(), "")
	c.send(seqFrame(0))
	frames := c.receive() // the delimiter is the socket's business
	if len(frames) != 3 || binary.BigEndian.Uint64(frames[1]) != 0 {
		t.Fatalf("%q", frames)
	}
	mirror := reader.NewMirror(0)
	apply(t, mirror, frames[2])
	sameBlocks(t, "REQ", mirror, patterns(t, m, event.Signed64))
}

// A common client asks for what is before the live batch that it holds, and reads the answer
// to the number before that one, whatever may come then. With a snapshot it knows
// everything, also if there is but that one number, and the batches that it holds, which
// the snapshot may have in it, change nothing that is right.
func TestSnapshotForClientsThatStopBeforeTheirLiveBatch(t *testing.T) {
	for name, back := range map[string]uint64{"one number": 1, "some numbers": 3, "from the beginning": 0} {
		for _, more := range []int{0, 9} {
			t.Run(fmt.Sprintf("%s, %d behind it", name, more), func(t *testing.T) {
				t.Parallel() // each has a publisher and its second
				p, m := startWith(t, snapshotOptions(t), 64)
				grow(t, p, m, 0, 20)
				s := subscribe(t, p)
				grow(t, p, m, 100, 1)
				_, number, payload := s.nextFrames()
				held := [][]byte{payload}
				live := binary.BigEndian.Uint64(number)
				grow(t, p, m, 200, more) // so it is not in the ring, perhaps
				start := live - back
				if back == 0 {
					start = 0
				}
				c := newDealer(t, p.ReplayEndpoint())
				c.ask(start)
				blocks := map[wire.Hash]bool{}
				take := func(payload []byte) {
					t.Helper()
					b, err := wire.Decode(payload, wire.Limits{})
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range b.Events {
						if e.Kind == wire.KindCleared {
							clear(blocks)
						}
						for _, h := range e.Hashes {
							if blocks[h] = true; e.Kind == wire.KindRemoved {
								delete(blocks, h)
							}
						}
					}
				}
				for want := start; ; want++ {
					r := c.next()
					if r.seq != want {
						t.Fatalf("number %d, want %d", r.seq, want)
					}
					take([]byte(r.payload))
					if r.seq == live-1 {
						break
					}
				}
				c.close()
				for range more {
					_, _, payload := s.nextFrames()
					held = append(held, payload)
				}
				for _, payload := range held {
					take(payload)
				}
				// Where the ring had it all, it was the end of a history of which the client
				// has the beginning; here it has not.
				truncated := p.Stats().ReplayTruncated == 1
				if want := more > 0 || back == 0; truncated != want {
					t.Fatalf("truncated %v, want %v", truncated, want)
				}
				if truncated {
					compare(t, m, event.Signed64, blocks)
				}
			})
		}
	}
}

// Beyond the limit of filling up, a snapshot ends early.
func TestSnapshotPadLimit(t *testing.T) {
	t.Parallel() // waits for the next second
	o := snapshotOptions(t)
	o.ReplayPadLimit = 10
	p, m := startWith(t, o, 64)
	grow(t, p, m, 0, 20)
	newest := p.Stats().NextSeq - 1
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(newest - 9) // ten numbers
	wantNumbers(t, c.numbers(), newest-9, newest)
	c.ask(newest - 10)
	run := c.run()
	if len(run) != 1 || run[0].seq != newest-10 {
		t.Fatalf("%d batches", len(run))
	}
	sameBlocks(t, "early end", applied(t, run), patterns(t, m, event.Signed64))
}

// A snapshot that is too large for one message takes the next numbers.
func TestSnapshotOfSeveralMessages(t *testing.T) {
	p := mustNew(t, snapshotOptions(t))
	p.settings.maxMessage = 100000
	// Walked 8192 blocks at a time.
	_, m, _ := startStream(t, p, 30000)
	for i := range 5 {
		tokens := make([]uint32, 4*5000)
		for k := range tokens {
			tokens[k] = uint32(i + k)
		}
		compute(t, m, tokens)
		mustFlush(t, p)
	}
	for range 4 {
		compute(t, m, make([]uint32, 8)) // one batch, then nothing new
		if err := p.Resync(withPatience(t)); err != nil {
			t.Fatal(err)
		}
	}
	want := patterns(t, m, event.Signed64)
	newest := p.Stats().NextSeq - 1
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	run := c.run()
	if uint64(len(run)) != newest+1 {
		t.Fatalf("%d batches, newest is %d", len(run), newest)
	}
	filled := 0
	for _, r := range run {
		b, err := wire.Decode([]byte(r.payload), wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Events) > 0 {
			filled++
		}
	}
	if filled < 4 {
		t.Errorf("%d messages with events", filled)
	}
	sameBlocks(t, "several messages", applied(t, run), want)
	sameBlocks(t, "and no less", applied(t, run[:filled]), want)
	if applied(t, run[:filled-1]).Len() == len(want) {
		t.Error("the last one adds nothing")
	}
}

// A snapshot of more messages than there are numbers is not cut short, which would
// look like all of it, nor put into larger messages than readers take: what is kept
// is sent, and the cut shows.
func TestSnapshotWithoutNumbers(t *testing.T) {
	t.Parallel() // waits for the next second
	o := snapshotOptions(t)
	o.BufferSteps = 1
	p := mustNew(t, o)
	p.settings.maxMessage = 25000 // of which 5000 blocks take three
	_, m, _ := startStream(t, p, 6000)
	compute(t, m, make([]uint32, 4*5000))
	mustFlush(t, p)
	grow(t, p, m, 1, 20)
	want := patterns(t, m, event.Signed64)
	newest := p.Stats().NextSeq - 1
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(newest - 4)
	run := c.run()
	messages := 0
	for _, r := range run {
		if len(r.payload) > p.settings.maxMessage {
			t.Errorf("batch %d has %d bytes", r.seq, len(r.payload))
		}
		if len(r.payload) > 1000 {
			messages++
		}
	}
	if messages < 3 || messages > 5 {
		t.Fatalf("%d messages", messages)
	}
	sameBlocks(t, "enough numbers", applied(t, run), want)
	body := &snapshotBody{newest: 9, messages: [][]byte{{1}, {2}, {3}}, empty: []byte{0}}
	for n := uint64(1); n < 6; n++ {
		run := newSnapshotRun(&snapshotAnswer{body: body}, 10-n, 100)
		if (run != nil) != (n >= 3) {
			t.Errorf("%d numbers: %+v", n, run)
		}
	}
	c.ask(newest - 1) // two numbers
	wantNumbers(t, c.numbers(), newest, newest)
}

// All who ask at once share one snapshot, and there is at most one a second.
func TestSnapshotIsShared(t *testing.T) {
	t.Parallel() // waits for the next second
	p, m := startWith(t, snapshotOptions(t), 64)
	grow(t, p, m, 0, 10)
	const clients = 12
	list := make([]*replayClient, clients)
	for i := range list {
		list[i] = newDealer(t, p.ReplayEndpoint())
		list[i].ask(p.Stats().NextSeq - 1) // in the ring: the connection stands
		list[i].run()
	}
	begin := time.Now()
	rounds := 3
	for range rounds {
		for _, c := range list {
			c.ask(0)
		}
		for _, c := range list {
			sameBlocks(t, "shared", applied(t, c.run()), patterns(t, m, event.Signed64))
		}
	}
	took := time.Since(begin)
	st := p.Stats()
	if st.ReplayTruncated != clients*uint64(rounds) || st.Snapshots < uint64(rounds) ||
		st.Snapshots > 1+uint64(took/snapshotInterval) {
		t.Errorf("%d truncated replays, %d snapshots in %v", st.ReplayTruncated, st.Snapshots, took)
	}
}

// What is sent live while a snapshot is asked for and read makes it whole.
func TestSnapshotBesideLive(t *testing.T) {
	t.Parallel() // waits for the next second
	o := snapshotOptions(t)
	p, m := startWith(t, o, 64)
	grow(t, p, m, 0, 10)
	s := subscribe(t, p)
	c := newDealer(t, p.ReplayEndpoint())
	var run []replayed
	rounds := 6
	if testing.Short() {
		rounds = 2 // each waits for the second after the last snapshot
	}
	for i := range rounds {
		c.ask(0)
		grow(t, p, m, 100+10*i, 3)
		run = c.run()
		grow(t, p, m, 105+10*i, 3)
	}
	want := patterns(t, m, event.Signed64)
	newest := p.Stats().NextSeq - 1
	held := map[uint64][]byte{}
	for seq := uint64(0); seq != newest; {
		_, number, payload := s.nextFrames()
		seq = binary.BigEndian.Uint64(number)
		held[seq] = slices.Clone(payload)
	}
	// Those after it, and all that is held: applying some again is harmless.
	last := run[len(run)-1].seq
	for _, from := range []uint64{last + 1, 0} {
		mirror := applied(t, run)
		for seq := from; seq <= newest; seq++ {
			if payload, ok := held[seq]; ok {
				apply(t, mirror, payload)
			} else if seq > last {
				t.Fatalf("batch %d is missing", seq)
			}
		}
		sameBlocks(t, fmt.Sprintf("with live batches from %d", from), mirror, want)
	}
}

// Without snapshots the answer is a suffix: for a host's own events, and for a
// source that cannot tell.
func TestSnapshotWithoutASource(t *testing.T) {
	o := snapshotOptions(t)
	p := mustNew(t, o)
	mustStart(t, p)
	publishBatches(t, p, 9)
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	wantNumbers(t, c.numbers(), 6, 9)
	p, src := attached(t, snapshotOptions(t), nil)
	for i := range 9 {
		src.record(chain(uint64(10*i+1), 1))
		src.flush()
		mustFlush(t, p)
	}
	c = newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	wantNumbers(t, c.numbers(), 6, 9)
}

// A snapshot that cannot be made is replaced by what there is, and counted.
func TestSnapshotFails(t *testing.T) {
	o := snapshotOptions(t)
	warnings := make(chan string, 10)
	o.Warn = func(m string) { warnings <- m }
	p, m, stream := startStream(t, mustNew(t, o), 64)
	grow(t, p, m, 0, 10)
	m.Close()
	stream.Close()
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	wantNumbers(t, c.numbers(), 7, 10)
	if st := p.Stats(); st.SnapshotErrors != 1 || st.Snapshots != 0 {
		t.Errorf("%+v", st)
	}
	if len(warnings) != 1 {
		t.Errorf("%d warnings", len(warnings))
	}
}

// Close does not wait for snapshots that nobody can make any more.
func TestSnapshotAtClose(t *testing.T) {
	p, m := startWith(t, snapshotOptions(t), 64)
	grow(t, p, m, 0, 10)
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	c.run()
	// This one waits for the second to be over.
	c.ask(0)
	eventually(t, "request", func() bool { return p.Stats().ReplayTruncated == 2 })
	p.Close()
	if live := bindings.LiveHandles().Snapshots; live != 0 {
		t.Errorf("%d snapshots are open", live)
	}
}

// Whoever is sent the numbers behind a snapshot, however slowly, does not keep it.
func TestSnapshotLeavesBeforeTheNumbersBehindIt(t *testing.T) {
	body := &snapshotBody{newest: 9, messages: [][]byte{[]byte("a"), []byte("b")}, empty: []byte("e")}
	for _, end := range []struct {
		pad  int
		want string
	}{{100, "abeeeeee"}, {0, "ab"}} {
		h := newSnapshotHub()
		wanted := h.ask()
		h.take().finish(body, nil)
		run := newSnapshotRun(wanted, 2, end.pad)
		got := ""
		for {
			seq, payload, ok := run.batch()
			if !ok {
				break
			}
			if want := uint64(2 + len(got)); seq != want {
				t.Fatalf("number %d, want %d", seq, want)
			}
			if kept := len(got) < len(body.messages); (h.alive == 1) != kept {
				t.Errorf("%d in memory after %q", h.alive, got)
			}
			got += string(payload)
			run.advance()
		}
		run.release()
		if got != end.want || h.alive != 0 {
			t.Errorf("%q, want %q; %d in memory", got, end.want, h.alive)
		}
	}
}
