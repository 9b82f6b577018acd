// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// The benchmarks speak of blocks of 16 tokens, of trees that are full and of
// requests of 64 blocks; each works through the whole tree in turn, so that at
// 200k blocks neither tree nor tokens fit into a cache. What surrounds the call
// that is measured runs with the timer stopped.
const (
	benchBlock   = 16
	benchRequest = 64 // blocks
)

type bench struct {
	b      *testing.B
	m      *bindings.Manager
	s      *bindings.Stream // nil without events
	blocks int
	batch  int
	total  int // blocks the measured calls have handled
	timed  time.Duration

	prompts []bindings.Prompt
	created []bindings.CreateResult
	grow    []bindings.GrowItem
	grown   []bindings.GrowResult
	commit  []bindings.CommitItem
	commits []bindings.CommitResult
	ids     []bindings.SequenceID
	errs    []error
}

func newBench(b *testing.B, blocks, batch int, events bool) *bench {
	x := &bench{
		b: b, blocks: blocks, batch: batch,
		prompts: make([]bindings.Prompt, batch),
		created: make([]bindings.CreateResult, batch),
		grow:    make([]bindings.GrowItem, batch),
		grown:   make([]bindings.GrowResult, batch),
		commit:  make([]bindings.CommitItem, batch),
		commits: make([]bindings.CommitResult, batch),
		ids:     make([]bindings.SequenceID, batch),
		errs:    make([]error, batch),
	}
	for i := range x.prompts {
		x.prompts[i].Tokens = make([]uint32, benchBlock*benchRequest)
	}
	config := bindings.Config{TokensPerBlock: benchBlock, CapacityBlocks: blocks}
	if events {
		x.m, x.s = newPair(b, config, bindings.StreamConfig{MaxEntries: blocks})
	} else {
		x.m = newManager(b, config)
	}
	for r := 0; r*benchRequest*batch < blocks; r++ {
		x.text(r)
		x.create()
		x.growAll()
		x.commitAll()
		x.release()
		x.drain()
	}
	return x
}

func (x *bench) fail(err error) {
	if err != nil {
		x.b.Fatal(err)
	}
}

// text makes the prompts of a round; equal rounds give equal prompts.
func (x *bench) text(round int) {
	for i := range x.prompts {
		state := uint64(round*x.batch+i) * 0x9E3779B97F4A7C15
		for j := range x.prompts[i].Tokens {
			state = state*6364136223846793005 + 1442695040888963407
			x.prompts[i].Tokens[j] = uint32(state >> 40)
		}
	}
}

func (x *bench) create() {
	x.fail(x.m.Create(x.prompts, x.created))
	for i := range x.created {
		x.fail(x.created[i].Err)
		x.ids[i] = x.created[i].Sequence.ID()
	}
}

func (x *bench) growAll() {
	for i := range x.grow {
		x.grow[i] = bindings.GrowItem{Sequence: x.ids[i], CapacityTokens: benchBlock * benchRequest}
	}
	x.fail(x.m.Grow(x.grow, x.grown))
	for i := range x.grown {
		x.fail(x.grown[i].Err)
	}
}

func (x *bench) commitAll() {
	for i := range x.commit {
		x.commit[i] = bindings.CommitItem{
			Sequence: x.ids[i], Tokens: x.prompts[i].Tokens[x.created[i].MatchedTokens:],
		}
	}
	x.fail(x.m.Commit(x.commit, x.commits))
	for i := range x.commits {
		x.fail(x.commits[i].Err)
	}
}

func (x *bench) release() { x.fail(x.m.Release(x.ids, x.errs)) }

func (x *bench) drain() {
	for x.s != nil {
		batch, err := x.s.Drain(0, 0)
		x.fail(err)
		if len(batch.Events) == 0 {
			return
		}
		batch.Release()
	}
}

// measure times what handles so many blocks.
func (x *bench) measure(blocks int, call func()) {
	begin := time.Now()
	call()
	x.timed += time.Since(begin)
	x.total += blocks
}

func (x *bench) report() {
	x.b.ReportMetric(float64(x.timed.Nanoseconds())/float64(x.total), "ns/block")
	x.b.ReportMetric(float64(x.total)/x.timed.Seconds(), "blocks/s")
	x.b.ReportMetric(0, "ns/op") // a round has parts that are not measured
}

// sizes runs a benchmark for trees of 10k and 200k blocks and batches of 1, 16
// and (where the tree has room for them) 256 requests.
func sizes(b *testing.B, events bool, run func(b *testing.B, x *bench)) {
	for _, blocks := range []int{10_000, 200_000} {
		for _, batch := range []int{1, 16, 256} {
			if 4*batch*benchRequest > blocks && batch > 16 {
				continue
			}
			b.Run(fmt.Sprintf("blocks=%d/batch=%d", blocks, batch), func(b *testing.B) {
				x := newBench(b, blocks, batch, events)
				b.ReportAllocs()
				run(b, x)
				x.report()
			})
		}
	}
}

// BenchmarkMatch opens sequences whose prompts are all found.
func BenchmarkMatch(b *testing.B) {
	sizes(b, false, func(b *testing.B, x *bench) {
		rounds := x.blocks / (benchRequest * x.batch) / 2 // the older half has been evicted at the edge
		first := (x.blocks+benchRequest*x.batch-1)/(benchRequest*x.batch) - rounds
		for round := 0; b.Loop(); round++ {
			x.text(first + round%rounds)
			x.measure(x.batch*benchRequest, x.create)
			if x.created[0].MatchedTokens != benchBlock*benchRequest {
				b.Fatalf("matched %d tokens", x.created[0].MatchedTokens)
			}
			x.release()
		}
	})
}

// BenchmarkCommitEvict grows and commits new blocks in a full tree: each block
// costs the eviction of another.
func BenchmarkCommitEvict(b *testing.B) {
	for _, events := range []bool{false, true} {
		b.Run(fmt.Sprintf("events=%v", events), func(b *testing.B) {
			sizes(b, events, func(b *testing.B, x *bench) {
				for round := 1 << 20; b.Loop(); round++ {
					x.text(round)
					x.create()
					x.measure(x.batch*benchRequest, func() {
						x.growAll()
						x.commitAll()
					})
					x.release()
					x.drain()
				}
			})
		})
	}
}

// BenchmarkRelease gives held blocks back.
func BenchmarkRelease(b *testing.B) {
	sizes(b, false, func(b *testing.B, x *bench) {
		for round := 1 << 20; b.Loop(); round++ {
			x.text(round)
			x.create()
			x.growAll()
			x.commitAll()
			x.measure(x.batch*benchRequest, x.release)
		}
	})
}

// BenchmarkDrain drains what a round stored and evicted, keys included: per
// block one stored and one removed hash.
func BenchmarkDrain(b *testing.B) {
	sizes(b, true, func(b *testing.B, x *bench) {
		for round := 1 << 20; b.Loop(); round++ {
			x.text(round)
			x.create()
			x.growAll()
			x.commitAll()
			x.release()
			x.measure(x.batch*benchRequest, x.drain)
		}
	})
}

// BenchmarkFlush is what a scheduler pays at the end of each step.
func BenchmarkFlush(b *testing.B) {
	_, s := newPair(b, bindings.Config{CapacityBlocks: 4}, bindings.StreamConfig{})
	b.ReportAllocs()
	for b.Loop() {
		s.Flush()
	}
}

// BenchmarkCall is the price of crossing into native code and back: a probe
// that finds no scope, and a drain that finds nothing.
func BenchmarkCall(b *testing.B) {
	m, s := newPair(b, bindings.Config{CapacityBlocks: 4}, bindings.StreamConfig{})
	b.Run("probe", func(b *testing.B) {
		prompts, out := make([]bindings.Prompt, 1), make([]bindings.ProbeResult, 1)
		b.ReportAllocs()
		for b.Loop() {
			if err := m.Probe(prompts, out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("drain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Drain(0, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
