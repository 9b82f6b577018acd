// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// snapshotPlay feeds a tracker with real batches and lists what comes out.
type snapshotPlay struct {
	t   *testing.T
	tr  *tracker
	now time.Time
	enc *wire.Encoder
}

func newSnapshotPlay(t *testing.T) *snapshotPlay {
	enc, err := wire.NewEncoder(wire.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1700000000, 0)
	l := limits{messages: 100, bytes: 1 << 20, attempts: 2, timeout: 5 * time.Second, settle: settleTime, answer: 1000}
	return &snapshotPlay{t: t, tr: newTracker(l, "", true, now), now: now, enc: enc}
}

// batch makes a message: c a clear, s a store, - nothing.
func (p *snapshotPlay) batch(seq uint64, ts float64, kinds string) *Message {
	var events []event.Event
	for i, k := range kinds {
		switch k {
		case 'c':
			events = append(events, &event.AllBlocksCleared{})
		case 's':
			events = append(events, &event.BlockStored{Hashes: []uint64{seq*100 + uint64(i) + 1}, BlockSize: 1, Tokens: []uint32{1}})
		case 'r':
			events = append(events, &event.BlockRemoved{Hashes: []uint64{1}})
		}
	}
	payload, err := p.enc.AppendBatch(nil, ts, events, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	return &Message{Seq: seq, Payload: payload}
}

func (p *snapshotPlay) wants(start uint64) {
	p.t.Helper()
	if got, ok := p.tr.wants(p.now); !ok || got != start {
		p.t.Fatalf("asks from %d, %v; want %d", got, ok, start)
	}
}

func (p *snapshotPlay) out(want string) {
	p.t.Helper()
	var list []string
	for {
		item, ok := p.tr.next()
		if !ok {
			break
		}
		list = append(list, describeSnapshotItem(item))
	}
	if got := strings.Join(list, " "); got != want {
		p.t.Fatalf("handed out %q, want %q", got, want)
	}
}

func describeSnapshotItem(i Item) string {
	if i.Kind == ItemReset {
		return fmt.Sprintf("reset%d", i.Reason)
	}
	s := describeItem(Item{Kind: i.Kind, Message: &Message{}, From: i.From, Lost: i.Lost})
	if i.Kind == ItemBatch {
		s = fmt.Sprint(i.Message.Seq)
		if i.Snapshot {
			s = "snapshot" + s
		} else if i.Replayed {
			s = "r" + s
		}
	}
	return s
}

// outrun leads a tracker to a gap behind a snapshot, whose follow-up begins too late.
func (p *snapshotPlay) outrun() {
	p.t.Helper()
	p.tr.answer(p.now, p.batch(0, 10, "css"))
	p.tr.end(p.now)
	p.out("snapshot0")
	p.tr.live(p.batch(200, 20, "s"), false)
	p.out("")
	p.wants(199)
	p.tr.answer(p.now, p.batch(205, 20.5, "s"))
	p.tr.answer(p.now, p.batch(206, 20.6, "s"))
	p.tr.end(p.now)
	p.out("gap200+5 r205 r206")
}

// A follower whose snapshot was outrun tells the gap, and asks for the whole state again by
// itself, with live messages going on meanwhile: at once, then after pauses, a few times, and
// once more at the next gap. It takes in what is whole and nothing else.
func TestSnapshotThatIsOutrun(t *testing.T) {
	p := newSnapshotPlay(t)
	p.wants(0)
	p.outrun()
	if !p.tr.busy() {
		t.Error("takes itself to be in step")
	}
	p.tr.live(p.batch(206, 20.6, "s"), false)
	p.tr.live(p.batch(207, 20.7, "s"), false)
	p.out("207")
	for try := range mendTries {
		p.wants(0)
		p.tr.live(p.batch(208+uint64(try), 21, "s"), false)
		p.out(fmt.Sprint(208 + try)) // not held up
		switch try % 3 {
		case 0: // its history begins behind what is known
			p.tr.answer(p.now, p.batch(205, 20.5, "s"))
		case 1:
			p.tr.end(p.now)
		default:
			p.tr.waited(p.now, p.tr.timeout)
		}
		p.out("")
		if try == mendTries-1 {
			break
		}
		pause := rebuildPause << try
		for _, d := range []time.Duration{0, pause - time.Nanosecond} {
			if start, ok := p.tr.wants(p.now.Add(d)); ok {
				t.Fatalf("try %d: asks from %d %v later", try, start, d)
			}
		}
		if got := p.tr.wake(p.now, time.Hour); got != pause {
			t.Errorf("try %d: wakes after %v, want %v", try, got, pause)
		}
		p.now = p.now.Add(pause)
	}
	p.now = p.now.Add(time.Hour)
	if start, ok := p.tr.wants(p.now); ok || p.tr.busy() {
		t.Fatalf("asks from %d after %d tries", start, mendTries)
	}
	if s := p.tr.stats; s.Failed != mendTries || s.Resets != 0 {
		t.Errorf("%+v", s)
	}

	// The next gap, and an answer that is whole.
	p.tr.live(p.batch(300, 30, "s"), false)
	p.out("")
	p.wants(212)
	p.tr.answer(p.now, p.batch(212, 21, "s")) // the last one, and then it runs out
	p.tr.answer(p.now, p.batch(300, 30, "s"))
	p.tr.end(p.now)
	p.out("gap213+87 r300")
	p.wants(0)
	p.tr.answer(p.now, p.batch(0, 31, "css"))
	p.tr.end(p.now)
	p.out("reset5 snapshot0")
	if s := p.tr.stats; s.Resets != 1 || s.Failed != mendTries {
		t.Errorf("%+v", s)
	}

	// Outrun again before anything came live: not at once.
	p.tr.live(p.batch(400, 40, "s"), false)
	p.out("")
	p.wants(399)
	p.tr.answer(p.now, p.batch(405, 40.5, "s"))
	p.tr.end(p.now)
	p.out("gap400+5 r405")
	if start, ok := p.tr.wants(p.now); ok {
		t.Fatalf("asks from %d at once", start)
	}
	p.now = p.now.Add(rebuildPause)
	p.wants(0)
}

// A new life whose numbers have not come to that of the snapshot of the old one answers
// nothing to a request from there, and has announced all that is there itself.
func TestSnapshotOfALifeThatIsOver(t *testing.T) {
	p := newSnapshotPlay(t)
	p.wants(0)
	p.tr.answer(p.now, p.batch(0, 10, "cs"))
	for seq := range uint64(50) {
		p.tr.answer(p.now, p.batch(1+seq, 10, ""))
	}
	p.tr.end(p.now)
	p.out("snapshot0")
	p.tr.live(p.batch(3, 11, "s"), false) // of the new life, over a relay
	p.out("")
	p.wants(50)
	p.tr.end(p.now)
	p.out("reset1")
	p.wants(0)
	for seq := range uint64(4) {
		p.tr.answer(p.now, p.batch(seq, 10.7+float64(seq)/10, "s"))
	}
	p.tr.end(p.now)
	p.out("r0 r1 r2 r3")
	if s := p.tr.stats; s.Resets != 1 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// A snapshot that ends early is followed by what is later than it, wherever that
// begins, and by nothing else.
func TestSnapshotThatEndsEarly(t *testing.T) {
	for _, c := range []struct {
		name string
		lost uint64 // live batches after the snapshot that did not come
	}{{"nothing lost", 0}, {"some lost", 5}} {
		t.Run(c.name, func(t *testing.T) {
			p := newSnapshotPlay(t)
			p.wants(0)
			// 100 is the newest that the snapshot holds.
			p.tr.live(p.batch(99, 9.9, "s"), false)
			p.tr.live(p.batch(100, 10, "s"), false)
			p.tr.answer(p.now, p.batch(0, 10, "css"))
			p.out("snapshot0")
			p.tr.answer(p.now, p.batch(1, 10, "s"))
			p.tr.end(p.now)
			p.out("snapshot1")
			next := 101 + c.lost
			p.tr.live(p.batch(next, 11, "s"), false)
			p.out("")
			p.wants(next - 1)
			if c.lost > 0 {
				// It begins after the snapshot: further back.
				p.tr.answer(p.now, p.batch(next-1, 10.9, "s"))
				p.out("")
				p.wants(next - 8)
			}
			for seq := uint64(next - 1 - 7*min(c.lost, 1)); seq <= next; seq++ {
				ts := 10.5
				switch {
				case seq <= 100:
					ts = float64(seq) / 10
				case seq == next:
					ts = 11
				}
				p.tr.answer(p.now, p.batch(seq, ts, "s"))
			}
			p.tr.end(p.now)
			var want []string
			for seq := uint64(101); seq <= next; seq++ {
				want = append(want, fmt.Sprintf("r%d", seq))
			}
			p.out(strings.Join(want, " "))
			// From here on it is an ordinary stream.
			p.tr.live(p.batch(next+1, 12, "s"), false)
			p.out(fmt.Sprint(next + 1))
			if s := p.tr.stats; s.Lost != 0 || s.Foreign != 0 || s.Resets != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// One that is filled up leads back to the stream by its last number.
func TestSnapshotThatIsFilledUp(t *testing.T) {
	p := newSnapshotPlay(t)
	p.wants(0)
	p.tr.answer(p.now, p.batch(0, 10, "cs"))
	for seq := uint64(1); seq <= 20; seq++ {
		p.tr.answer(p.now, p.batch(seq, 10, ""))
	}
	p.tr.end(p.now)
	p.out("snapshot0")
	p.tr.live(p.batch(22, 12, "s"), false)
	p.out("")
	p.wants(20)
	p.tr.answer(p.now, p.batch(20, 10, "r"))
	p.tr.answer(p.now, p.batch(21, 11, "s"))
	p.tr.answer(p.now, p.batch(22, 12, "s"))
	p.tr.end(p.now)
	p.out("r21 r22")
}

// A gap that the history does not reach across is closed by a snapshot, and so is
// the next one; another life shows as what it is.
func TestSnapshotAfterAGap(t *testing.T) {
	p := newSnapshotPlay(t)
	p.wants(0)
	p.tr.live(p.batch(1, 2, "s"), false)
	p.tr.answer(p.now, p.batch(0, 1, "c"))
	p.tr.answer(p.now, p.batch(1, 2, "s"))
	p.tr.end(p.now)
	p.out("r0 r1")
	p.tr.live(p.batch(50, 50, "s"), false)
	p.out("")
	p.wants(1)
	p.tr.answer(p.now, p.batch(1, 50, "cc")) // of nothing
	p.tr.end(p.now)
	p.out(fmt.Sprintf("reset%d snapshot1", ResetSnapshot))
	// The same again says that nothing has happened.
	p.tr.due, p.tr.dueAt = true, p.now
	p.wants(0)
	p.tr.answer(p.now, p.batch(0, 50, "cc"))
	p.tr.end(p.now)
	p.out("")
	p.tr.live(p.batch(1, 70, "s"), false)
	p.out("")
	p.wants(0)
	// All of it is later: another life.
	p.tr.answer(p.now, p.batch(0, 69, "c"))
	p.tr.answer(p.now, p.batch(1, 70, "s"))
	p.tr.end(p.now)
	p.out(fmt.Sprintf("reset%d r0 r1", ResetReplaced))
}

// What a snapshot may hold, and what may follow it.
func TestVerifierTakesSnapshots(t *testing.T) {
	p := newSnapshotPlay(t)
	decode := func(m *Message) *wire.Batch {
		b, err := wire.Decode(m.Payload, wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		batches string // kinds, one word for each batch
		plain   string // of the batch that follows
		want    string
	}{
		{"cs s", "s", ""},
		{"cc", "s", ""},
		{"cs", "c", ""},
		{"s", "s", "a snapshot begins with a store"},
		{"csc", "s", "a clear in the middle"},
		{"cr", "s", "does not only store"},
		{"cs", "cs", "a clear is not alone"},
	} {
		v := NewVerifier(VerifierOptions{})
		var err error
		for i, kinds := range strings.Fields(c.batches) {
			if err == nil {
				err = v.CheckSnapshot(uint64(i), decode(p.batch(uint64(i), 10, kinds)))
			}
		}
		if err == nil {
			// Any number may follow, once.
			err = v.Check(77, decode(p.batch(77, 11, c.plain)))
		}
		if err == nil {
			if v.Check(79, decode(p.batch(79, 12, ""))) == nil {
				t.Errorf("%v: a missing number is not seen", c)
			}
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
