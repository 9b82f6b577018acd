// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// countUp are n tokens from first on.
func countUp(first, n int) []uint32 {
	text := make([]uint32, n)
	for i := range text {
		text[i] = uint32(first + i)
	}
	return text
}

// TestStepReuse: a step can be filled, executed and read again and again; a bad
// argument refuses the whole of it.
func TestStepReuse(t *testing.T) {
	m := newManager(t, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 8})
	s := bindings.Step{Columns: 8, MaxEvicted: 8}
	row := bindings.TableRow{Row: 3}
	created := s.Create(bindings.Prompt{Tokens: countUp(0, 8)})
	grown := s.Grow(created.Sequence(), 12)
	row.Sequence = created.Sequence()
	told := s.Table(&row)
	committed := s.Commit(created.Sequence(), countUp(0, 8)...)
	if n := s.Len(); n != 4 {
		t.Errorf("%d operations, want 4", n)
	}
	if err := m.Step(&s); err != nil {
		t.Fatal(err)
	}
	q := s.Created(created).Sequence
	if err := s.Err(created); err != nil || row.Sequence != q.ID() {
		t.Errorf("%v; the row's sequence is %x, want %x", err, row.Sequence, q.ID())
	}
	if r := s.Grown(grown); r.Err != nil || r.AddedPages != 3 || r.FirstEvicted != -1 {
		t.Errorf("grown %+v", r)
	}
	if r := s.Committed(committed); r.Err != nil || r.StoredBlocks != 2 || r.FirstChangedBlock != -1 {
		t.Errorf("committed %+v", r)
	}
	pages, err := m.Pages(q.ID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, deltas := s.Told(told)
	if r.Err != nil || r.Entries != 3 || len(deltas) != 3 || !slices.Equal(deltas, s.Deltas()) ||
		r.KVTokens != 8 {
		t.Fatalf("told %+v, %v of %v", r, deltas, s.Deltas())
	}
	for i, d := range deltas {
		if d != (bindings.TableDelta{Row: 3, Column: uint32(i), Value: int32(pages[i])}) {
			t.Errorf("delta %d is %+v, the page %d", i, d, pages[i])
		}
	}
	if err := m.Step(&s); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("executed again: %v", err)
	}

	s.Reset()
	s.Release(q.ID())
	s.Grow(q.ID(), -1)
	if err := m.Step(&s); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("a capacity of -1: %v", err)
	}
	if _, err := m.Info(q.ID()); err != nil {
		t.Errorf("nothing should have been done: %v", err)
	}

	s.Reset()
	again := s.Release(q.ID())
	twice := s.Release(q.ID())
	first, second := s.Table(&row), s.Table(&row)
	if err := m.Step(&s); err != nil {
		t.Fatal(err)
	}
	var failed []bindings.StepOp
	for o, err := range s.Failed() {
		if !errors.Is(err, bindings.ErrStaleHandle) {
			t.Errorf("operation %d: %v", o, err)
		}
		failed = append(failed, o)
	}
	if !slices.Equal(failed, []bindings.StepOp{twice, first, second}) {
		t.Errorf("failed %v", failed)
	}
	if s.Err(again) != nil || !errors.Is(s.Err(twice), bindings.ErrStaleHandle) {
		t.Errorf("released: %v, %v", s.Err(again), s.Err(twice))
	}
	if r, d := s.Told(first); !errors.Is(r.Err, bindings.ErrStaleHandle) || len(d) != 3 || d[0].Value != -1 {
		t.Errorf("the row of a released sequence: %+v %v", r, d)
	}
	if r, d := s.Told(second); !errors.Is(r.Err, bindings.ErrStaleHandle) || len(d) != 0 {
		t.Errorf("the same row again: %+v %v", r, d)
	}

	// What the blocks' eviction is told of.
	s.Reset()
	c := s.Create(bindings.Prompt{})
	g := s.Grow(c.Sequence(), 32)
	s.Release(c.Sequence())
	if err := m.Step(&s); err != nil {
		t.Fatal(err)
	}
	if r := s.Grown(g); r.EvictedBlocks != 2 || r.FirstEvicted != 0 || len(s.Evicted()) != 2 ||
		s.Evicted()[1].Parent != bindings.NoBlock || s.Evicted()[0].Parent != s.Evicted()[1].Block {
		t.Errorf("grown %+v, evicted %+v", r, s.Evicted())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	s.Reset()
	if err := m.Step(&s); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("a closed manager: %v", err)
	}
}

// TestStepManyFences: a result names all fences, not only the first few.
func TestStepManyFences(t *testing.T) {
	m := newManager(t, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16, PageBytes: 16})
	var s bindings.Step
	const streams = 6
	text := countUp(0, 4*streams)
	for i := range streams {
		stream, err := m.NewDeviceStream()
		if err != nil {
			t.Fatal(err)
		}
		s.Reset()
		c := s.Create(bindings.Prompt{Tokens: text[:4*i], MustCompute: bindings.ComputeNothing, DeviceStream: stream})
		s.Grow(c.Sequence(), 4*(i+1))
		if err := m.Step(&s); err != nil {
			t.Fatal(err)
		}
		id := s.Created(c).Sequence.ID()
		pages, err := m.Pages(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.HostFill(stream, []bindings.Fill{{Page: pages[i], Value: 1}}); err != nil {
			t.Fatal(err)
		}
		s.Reset()
		s.Commit(id, text[4*i:4*(i+1)]...)
		s.Release(id)
		if err := m.Step(&s); err != nil {
			t.Fatal(err)
		}
	}
	s.Reset()
	c := s.Create(bindings.Prompt{Tokens: text, MustCompute: bindings.ComputeNothing})
	s.Release(c.Sequence())
	if err := m.Step(&s); err != nil {
		t.Fatal(err)
	}
	if r := s.Created(c); r.MatchedTokens != 4*streams || len(r.Waits) != streams {
		t.Errorf("matched %d tokens, %d fences; want %d, %d", r.MatchedTokens, len(r.Waits), 4*streams, streams)
	}
}

// decode are sequences that have been matched and go on token by token.
type decode struct {
	tb   testing.TB
	m    *bindings.Manager
	ids  []bindings.SequenceID
	rows []bindings.TableRow
	have []int
	room []int
}

const decodeBlock = 16

func newDecode(tb testing.TB, n int) *decode {
	x := &decode{tb: tb, m: newManager(tb, bindings.Config{
		TokensPerBlock: decodeBlock, CapacityBlocks: 200_000, MaxSequences: n,
	})}
	x.ids, x.rows = make([]bindings.SequenceID, n), make([]bindings.TableRow, n)
	x.have, x.room = make([]int, n), make([]int, n)
	x.open()
	tb.Cleanup(x.release)
	return x
}

func (x *decode) fail(err error) {
	if err != nil {
		x.tb.Fatal(err)
	}
}

// open begins anew: prompts of different lengths, so that as many sequences come to
// need a page in each step.
func (x *decode) open() {
	var s bindings.Step
	for i := range x.ids {
		n := 256 + i%decodeBlock
		p := countUp(1000*i, n)
		c := s.Create(bindings.Prompt{Tokens: p})
		s.Grow(c.Sequence(), n)
		s.Commit(c.Sequence(), p...)
		x.have[i], x.room[i] = n, (n+decodeBlock-1)/decodeBlock*decodeBlock
		x.ids[i] = c.Sequence()
	}
	x.fail(x.m.Step(&s))
	for i := range x.ids {
		x.ids[i] = s.Created(bindings.StepOp(3 * i)).Sequence.ID()
		x.rows[i].Sequence, x.rows[i].Row = x.ids[i], i
	}
}

func (x *decode) release() { _ = x.m.Cancel(x.ids, make([]error, len(x.ids))) }

// anew is now and then called, so that the pool suffices.
func (x *decode) anew() {
	x.release()
	x.open()
}

// together decodes a token of each sequence in one step.
func (x *decode) together(s *bindings.Step, token uint32) {
	s.Reset()
	for i, id := range x.ids {
		if x.have[i] == x.room[i] {
			x.room[i] += decodeBlock
			s.Grow(id, x.room[i])
		}
		s.Commit(id, token)
		x.have[i]++
		s.Table(&x.rows[i])
	}
	x.fail(x.m.Step(s))
	for _, err := range s.Failed() {
		x.fail(err)
	}
}

// alone does the same by a call for each operation.
func (x *decode) alone(deltas []bindings.TableDelta, token uint32) {
	var grow [1]bindings.GrowItem
	var grown [1]bindings.GrowResult
	var commit [1]bindings.CommitItem
	var commits [1]bindings.CommitResult
	var told [1]bindings.TableResult
	text := [1]uint32{token}
	for i, id := range x.ids {
		if x.have[i] == x.room[i] {
			x.room[i] += decodeBlock
			grow[0] = bindings.GrowItem{Sequence: id, CapacityTokens: x.room[i]}
			x.fail(x.m.Grow(grow[:], grown[:]))
			x.fail(grown[0].Err)
		}
		commit[0] = bindings.CommitItem{Sequence: id, Tokens: text[:]}
		x.fail(x.m.Commit(commit[:], commits[:]))
		x.fail(commits[0].Err)
		x.have[i]++
		_, err := x.m.TablesDelta(bindings.TableFormat{}, x.rows[i:i+1], 4096, deltas, told[:])
		x.fail(err)
		x.fail(told[0].Err)
	}
}

// batched does it by one call for each kind.
type batched struct {
	grow    []bindings.GrowItem
	grown   []bindings.GrowResult
	commit  []bindings.CommitItem
	commits []bindings.CommitResult
	told    []bindings.TableResult
	deltas  []bindings.TableDelta
}

func (x *decode) batched(b *batched, token uint32) {
	text := []uint32{token}
	b.grow, b.commit = b.grow[:0], b.commit[:0]
	for i, id := range x.ids {
		if x.have[i] == x.room[i] {
			x.room[i] += decodeBlock
			b.grow = append(b.grow, bindings.GrowItem{Sequence: id, CapacityTokens: x.room[i]})
		}
		b.commit = append(b.commit, bindings.CommitItem{Sequence: id, Tokens: text})
		x.have[i]++
	}
	x.fail(x.m.Grow(b.grow, b.grown))
	x.fail(x.m.Commit(b.commit, b.commits))
	_, err := x.m.TablesDelta(bindings.TableFormat{}, x.rows, 4096, b.deltas, b.told)
	x.fail(err)
	for i := range b.commits {
		x.fail(b.commits[i].Err)
		x.fail(b.told[i].Err)
	}
}

// TestStepNoAllocations: neither filling, executing nor reading a step allocates.
func TestStepNoAllocations(t *testing.T) {
	x := newDecode(t, 32)
	s := bindings.Step{Columns: 4096, MaxEvicted: 64}
	salt := bindings.Scope{SaltBytes: []byte("a tenant")}
	text := countUp(0, 40)
	step := func() {
		s.Reset()
		for i, id := range x.ids {
			s.Grow(id, x.have[i]+1)
			s.Commit(id, 5)
			x.have[i]++
			s.Table(&x.rows[i])
		}
		c := s.Create(bindings.Prompt{Tokens: text, Scope: &salt, MustCompute: len(text)})
		q := c.Sequence()
		s.Grow(q, 40)
		s.Commit(q, text...)
		s.Suspend(q, true)
		resumed := s.Resume(q)
		s.Retain(bindings.RetainItem{Sequence: q, EndToken: bindings.ToTheEnd, Priority: 50})
		refused := s.Grow(q, 1<<40)
		closed := s.Cancel(q)
		x.fail(x.m.Step(&s))
		x.fail(s.Err(closed))
		failed := 0
		for range s.Failed() {
			failed++
		}
		if failed != 1 {
			for o, err := range s.Failed() {
				t.Fatalf("operation %d: %v", o, err)
			}
		}
		x.fail(s.Resumed(resumed).Err)
		if !errors.Is(s.Grown(refused).Err, bindings.ErrNeverFits) || s.Created(c).Err != nil {
			t.Error("another outcome")
		}
	}
	x.fail(x.m.Cancel(x.ids[:1], make([]error, 1))) // room for another
	x.ids, x.rows, x.have = x.ids[1:], x.rows[1:], x.have[1:]
	for range 40 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations in a step, want 0", n)
	}
}

// BenchmarkStep decodes a token of each of 256 sequences: a commit, a page now and
// then, the rows of the block table. Either in one step, or by a call for each
// kind, or by a call for each operation; in turn, so that the ratios are of one run.
func BenchmarkStep(b *testing.B) {
	const n = 256
	x := newDecode(b, n)
	s := bindings.Step{Columns: 4096}
	deltas := make([]bindings.TableDelta, 4096)
	all := batched{
		grown: make([]bindings.GrowResult, n), commits: make([]bindings.CommitResult, n),
		told: make([]bindings.TableResult, n), deltas: make([]bindings.TableDelta, 1<<17),
	}
	// The middle one of many turns: a machine has other things to do as well.
	const turns = 3 * 4096
	var took [3][]time.Duration
	forms := [...]func(uint32){
		func(token uint32) { x.together(&s, token) },
		func(token uint32) { x.batched(&all, token) },
		func(token uint32) { x.alone(deltas, token) },
	}
	for i := range took {
		took[i] = make([]time.Duration, 0, turns)
	}
	for _, f := range forms { // rows that have been told, arrays that have their size
		f(1)
	}
	b.ReportAllocs()
	round := 0
	for b.Loop() {
		if round++; round%5000 == 0 {
			x.anew()
			x.together(&s, 1)
		}
		form := round % len(forms)
		begin := time.Now()
		forms[form](uint32(round))
		if d := time.Since(begin); len(took[form]) < turns {
			took[form] = append(took[form], d)
		} else {
			took[form][round/len(forms)%turns] = d
		}
	}
	for i, name := range []string{"step", "batched", "alone"} {
		if len(took[i]) == 0 {
			return
		}
		slices.Sort(took[i])
		middle := float64(took[i][len(took[i])/2].Nanoseconds())
		b.ReportMetric(middle, "ns/"+name)
		if i == 0 {
			b.ReportMetric(middle/n, "ns/sequence")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// A scheduler step: one request goes on, another comes, and the rows of the block
// table follow.
func ExampleManager_Step() {
	m, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	step := bindings.Step{Columns: 8}
	rows := []bindings.TableRow{{Row: 0}, {Row: 1}}
	opened := step.Create(bindings.Prompt{Tokens: []uint32{1, 2, 3, 4, 5}})
	step.Grow(opened.Sequence(), 6)
	step.Commit(opened.Sequence(), 1, 2, 3, 4, 5)
	rows[0].Sequence = opened.Sequence()
	step.Table(&rows[0])
	if err := m.Step(&step); err != nil {
		log.Fatal(err)
	}
	first := step.Created(opened).Sequence.ID()
	fmt.Println(len(step.Deltas()), "entries")

	step.Reset()
	step.Commit(first, 6)
	tooMuch := step.Grow(first, 1000)
	opened = step.Create(bindings.Prompt{Tokens: []uint32{1, 2, 3, 4, 9}})
	step.Grow(opened.Sequence(), 5)
	rows[1].Sequence = opened.Sequence()
	step.Table(&rows[0])
	step.Table(&rows[1])
	if err := m.Step(&step); err != nil {
		log.Fatal(err)
	}
	second := step.Created(opened)
	fmt.Println(step.Err(tooMuch))
	fmt.Println("matched", second.MatchedTokens, "tokens,", len(step.Deltas()), "entries")

	step.Reset()
	step.Release(first)
	step.Release(second.Sequence.ID())
	if err := m.Step(&step); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 2 entries
	// bindings: grow: never fits
	// matched 4 tokens, 2 entries
}
