// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/kvcast/kvcast/tests/seeds"
)

// pattern is a payload of n bytes that only this number has.
func pattern(seq uint64, n int) []byte {
	var b []byte
	for i := uint64(0); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, seq*0x9e3779b97f4a7c15+i)
	}
	return b[:n]
}

// readRun reads all that is left of a run and checks the payloads.
func readRun(t testing.TB, c *cursor, length map[uint64]int) (list []uint64) {
	t.Helper()
	for {
		seq, payload, ok := c.batch()
		if !ok {
			return list
		}
		if !bytes.Equal(payload, pattern(seq, length[seq])) {
			t.Fatalf("payload of %d is not its own", seq)
		}
		list = append(list, seq)
		c.advance()
	}
}

func sequence(from, to uint64) (list []uint64) {
	for ; from <= to; from++ {
		list = append(list, from)
	}
	return list
}

func equalNumbers(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestRingRuns(t *testing.T) {
	r := newRing(4, 0)
	lengths := make(map[uint64]int)
	open := func(start uint64, policy TruncatedHistory) ([]uint64, bool) {
		c, truncated := r.open(start, policy)
		return readRun(t, &c, lengths), truncated
	}
	push := func(seqs ...uint64) {
		for _, s := range seqs {
			lengths[s] = int(s)
			r.push(s, pattern(s, int(s)))
		}
	}
	check := func(start uint64, policy TruncatedHistory, want []uint64, wantTruncated bool) {
		t.Helper()
		if got, truncated := open(start, policy); !equalNumbers(got, want) || truncated != wantTruncated {
			t.Errorf("from %d, %s: %v, truncated %v, want %v, %v", start, policy, got, truncated, want, wantTruncated)
		}
	}
	check(0, TruncatedSuffix, nil, false) // nothing was ever sent
	push(0, 1, 2, 3)
	check(0, TruncatedSuffix, sequence(0, 3), false)
	check(3, TruncatedSuffix, sequence(3, 3), false)
	check(4, TruncatedSuffix, nil, false)
	check(1<<64-1, TruncatedSuffix, nil, false)
	push(4, 5)
	check(0, TruncatedSuffix, sequence(2, 5), true)
	check(1, TruncatedEmpty, nil, true)
	check(2, TruncatedEmpty, sequence(2, 5), false)
	// Nobody can be served across a hole, and what is behind it goes.
	push(8)
	check(5, TruncatedSuffix, sequence(8, 8), true)
	check(8, TruncatedEmpty, sequence(8, 8), false)
	push(9)
	check(0, TruncatedSuffix, sequence(8, 9), true)
	if n, bytes := r.size(); n != 2 || bytes != 17 {
		t.Errorf("%d batches, %d bytes", n, bytes)
	}
}

// By bytes the bound holds after each push, but for the newest batch, which
// stays even if it alone is too large.
func TestRingBytes(t *testing.T) {
	r := newRing(1000, 1000)
	lengths := make(map[uint64]int)
	for seq, n := range []int{300, 300, 300, 200, 999, 1, 1, 5000, 1000, 0, 0} {
		lengths[uint64(seq)] = n
		r.push(uint64(seq), pattern(uint64(seq), n))
		c, _ := r.open(0, TruncatedSuffix)
		run, total := readRun(t, &c, lengths), 0
		for i := len(run) - 1; i >= 0; i-- {
			total += lengths[run[i]]
		}
		if count, bytes := r.size(); count != len(run) || bytes != int64(total) {
			t.Errorf("after %d: %d batches, %d bytes, run %v", seq, count, bytes, run)
		}
		if total > 1000 && len(run) > 1 || len(run) == 0 || run[len(run)-1] != uint64(seq) {
			t.Errorf("after %d: run %v of %d bytes", seq, run, total)
		}
		if first := run[0]; first > 0 && total+lengths[first-1] <= 1000 {
			t.Errorf("after %d: %d has left without need", seq, first-1)
		}
	}
}

// Random pushes, holes and cursors against a plain list of what was pushed. A
// run stays what it was when it was opened, whatever the ring does meanwhile,
// and at the end nothing is pinned.
func TestRingAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seeds.Of(t), 0))
	rings := 60
	if testing.Short() {
		rings = 15
	}
	for range rings {
		maxBatches, maxBytes := 1+rnd.IntN(200), int64(rnd.IntN(3)*rnd.IntN(1<<20))
		r := newRing(maxBatches, maxBytes)
		type open struct {
			cursor
			want []uint64
		}
		var cursors []*open
		lengths := make(map[uint64]int)
		var model []uint64
		total, seq := int64(0), uint64(rnd.IntN(3))
		for range 600 {
			switch k := rnd.IntN(20); {
			case k < 14:
				if rnd.IntN(100) == 0 {
					seq += uint64(1 + rnd.IntN(3))
					model, total = nil, 0
				}
				n := rnd.IntN(2000)
				switch rnd.IntN(30) {
				case 0:
					n = rnd.IntN(200 << 10) // several of a chunk, or larger than one
				case 1:
					n = 0
				}
				lengths[seq] = n
				r.push(seq, pattern(seq, n))
				model, total = append(model, seq), total+int64(n)
				for len(model) > maxBatches || maxBytes > 0 && total > maxBytes && len(model) > 1 {
					total -= int64(lengths[model[0]])
					model = model[1:]
				}
				seq++
			case k < 16 && len(cursors) < maxReplays:
				start := uint64(rnd.IntN(int(seq) + 2))
				c, truncated := r.open(start, TruncatedSuffix)
				want := model
				for len(want) > 0 && want[0] < start {
					want = want[1:]
				}
				if wantTruncated := len(model) > 0 && start < model[0]; truncated != wantTruncated {
					t.Fatalf("from %d of %v: truncated %v", start, model, truncated)
				}
				cursors = append(cursors, &open{c, append([]uint64(nil), want...)})
			case len(cursors) > 0:
				i := rnd.IntN(len(cursors))
				c := cursors[i]
				for range 1 + rnd.IntN(60) {
					got, payload, ok := c.batch()
					if ok != (len(c.want) > 0) || ok && got != c.want[0] {
						t.Fatalf("batch %d %v, want %v", got, ok, c.want)
					}
					if !ok {
						break
					}
					if !bytes.Equal(payload, pattern(got, lengths[got])) {
						t.Fatalf("payload of %d is not its own", got)
					}
					c.want = c.want[1:]
					c.advance()
				}
				if k == 19 {
					c.release()
					c.release() // does no harm
					cursors = append(cursors[:i], cursors[i+1:]...)
				}
			}
			if count, bytes := r.size(); count != len(model) || bytes != total {
				t.Fatalf("%d batches, %d bytes; model %d, %d", count, bytes, len(model), total)
			}
			checkPinned(t, r)
		}
		for _, c := range cursors {
			if got := readRun(t, &c.cursor, lengths); !equalNumbers(got, c.want) {
				t.Fatalf("run %v, want %v", got, c.want)
			}
		}
		if r.pinned != 0 {
			t.Errorf("%d bytes pinned at the end", r.pinned)
		}
		for c := r.head; c != nil; c = c.next {
			if c.pins != 0 || c.live == 0 && c != r.tail {
				t.Errorf("chunk with %d pins and %d live batches", c.pins, c.live)
			}
		}
	}
}

// checkPinned checks what is only told by the chunks themselves.
func checkPinned(t *testing.T, r *ring) {
	t.Helper()
	live, bytes := 0, int64(0)
	for c := r.head; c != nil; c = c.next {
		live += c.live
		for i, rec := range c.records {
			if c != r.head || i >= r.first {
				bytes += int64(rec.end - rec.from)
			}
		}
		if c.next == nil && c != r.tail {
			t.Fatal("the list does not end at the tail")
		}
	}
	if live != r.count || bytes != r.bytes || r.pinned < 0 || len(r.free) > maxFree {
		t.Fatalf("live %d of %d, bytes %d of %d, pinned %d, free %d", live, r.count, bytes, r.bytes, r.pinned, len(r.free))
	}
}

// What only cursors keep is counted, and given up with them.
func TestRingPinned(t *testing.T) {
	r := newRing(10, 64<<10)
	r.push(0, make([]byte, 40<<10))
	c, _ := r.open(0, TruncatedSuffix)
	for seq := uint64(1); seq <= 2; seq++ {
		r.push(seq, make([]byte, 60<<10))
	}
	if r.pinned != minChunk || r.overPinned() {
		t.Errorf("%d bytes pinned", r.pinned)
	}
	d, _ := r.open(2, TruncatedSuffix)
	r.push(3, make([]byte, 60<<10))
	if r.pinned != 2*minChunk || !r.overPinned() {
		t.Errorf("%d bytes pinned", r.pinned)
	}
	c.release()
	if r.pinned != minChunk || r.overPinned() {
		t.Errorf("%d bytes pinned", r.pinned)
	}
	d.advance()
	if _, _, more := d.batch(); r.pinned != 0 || more {
		t.Errorf("%d bytes pinned, more %v", r.pinned, more)
	}
}

func TestRingPushAllocatesNothing(t *testing.T) {
	r := newRing(1000, 1<<20)
	payload := make([]byte, 20<<10)
	seq := uint64(0)
	push := func() {
		r.push(seq, payload)
		seq++
	}
	for range 500 {
		push()
	}
	if n := testing.AllocsPerRun(500, push); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}
