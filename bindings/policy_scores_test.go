// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// worths are blocks of one token each, and what the model says of them.
type worths struct {
	t        *testing.T
	m        *bindings.Manager
	scores   mScores
	requests int
	score    map[uint32]int
	prompts  []bindings.Prompt
	made     []bindings.CreateResult
	errs     []error
}

func newWorths(t *testing.T, blocks, tau, ghosts int) *worths {
	m, err := bindings.NewManager(bindings.Config{TokensPerBlock: 1, CapacityBlocks: blocks, MaxSequences: blocks + 1,
		Policy: bindings.PolicyLRFU, LRFUTau: tau, LRFUGhosts: ghosts, Seed: 1, ResumeGatePermille: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &worths{t: t, m: m, scores: mScores{on: true, tau: tau, ghosts: ghosts}, score: map[uint32]int{}}
}

func keyOf(token uint32) event.Digest { return sha256.Sum256([]byte{byte(token), byte(token >> 8)}) }

// use opens a sequence for each token, in order: each is a request.
func (w *worths) use(tokens ...uint32) []bindings.SequenceID {
	w.t.Helper()
	w.prompts, w.made = w.prompts[:0], w.made[:0]
	for i := range tokens {
		w.prompts = append(w.prompts, bindings.Prompt{Tokens: tokens[i : i+1], MustCompute: bindings.ComputeNothing})
		w.made = append(w.made, bindings.CreateResult{})
	}
	if err := w.m.Create(w.prompts, w.made); err != nil {
		w.t.Fatal(err)
	}
	var ids []bindings.SequenceID
	for i, r := range w.made {
		if r.Err != nil {
			w.t.Fatal(r.Err)
		}
		ids = append(ids, r.Sequence.ID())
		w.requests++
		w.scores.time = w.requests * halving / w.scores.tau
		score, known := w.score[tokens[i]]
		if known != (r.MatchedTokens == 1) {
			w.t.Fatalf("block %d: %d tokens matched", tokens[i], r.MatchedTokens)
		}
		if known {
			w.score[tokens[i]] = w.scores.used(score)
		}
	}
	for i, r := range w.made {
		if r.MatchedTokens == 1 {
			continue
		}
		if _, err := r.Sequence.Grow(1); err != nil {
			w.t.Fatal(err)
		}
		if _, err := r.Sequence.Commit(tokens[i : i+1]); err != nil {
			w.t.Fatal(err)
		}
		w.score[tokens[i]] = w.scores.entered(keyOf(tokens[i]))
	}
	return ids
}

func (w *worths) release(ids []bindings.SequenceID) {
	w.t.Helper()
	w.errs = append(w.errs[:0], make([]error, len(ids))...)
	if err := w.m.Release(ids, w.errs); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets so many requests pass that ask for nothing.
func (w *worths) pass(requests int) {
	w.t.Helper()
	for ; requests > 0; requests-- {
		s, err := w.m.Open(bindings.Prompt{})
		if err != nil {
			w.t.Fatal(err)
		}
		if err := s.Release(); err != nil {
			w.t.Fatal(err)
		}
		w.requests++
	}
	w.scores.time = w.requests * halving / w.scores.tau
}

// evict takes all pages: blocks go as the model says, of those that it does not tell apart
// the one that was let go first. released is that order.
func (w *worths) evict(released []uint32) {
	w.t.Helper()
	names := map[bindings.BlockID]uint32{}
	for _, token := range released {
		blocks, err := w.m.Residency(bindings.Prompt{Tokens: []uint32{token}, MustCompute: bindings.ComputeNothing}, nil)
		if err != nil || len(blocks) != 1 {
			w.t.Fatalf("block %d: %v, %v", token, blocks, err)
		}
		names[blocks[0].Block] = token
	}
	s, err := w.m.Open(bindings.Prompt{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.requests++
	w.scores.time = w.requests * halving / w.scores.tau
	items := []bindings.GrowItem{{Sequence: s.ID(), CapacityTokens: len(released)}}
	results := make([]bindings.GrowResult, 1)
	evicted := make([]bindings.EvictedBlock, len(released))
	evicted, err = w.m.GrowTold(items, results, evicted)
	if err != nil || results[0].Err != nil {
		w.t.Fatal(err, results[0].Err)
	}
	var got []uint32
	for _, e := range evicted {
		got = append(got, names[e.Block])
	}
	want := slices.Clone(released)
	slices.SortStableFunc(want, func(a, b uint32) int {
		return cmp.Compare(w.scores.level(w.score[a]), w.scores.level(w.score[b]))
	})
	if !slices.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		w.t.Errorf("block %d (worth %d) goes as number %d; the model has %d (worth %d) there",
			got[at], w.score[got[at]], at, want[at], w.score[want[at]])
	}
	for _, token := range want {
		w.scores.leaves(keyOf(token), w.score[token])
		delete(w.score, token)
	}
	if err := s.Release(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *worths) end() {
	w.t.Helper()
	if err := w.m.Check(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.m.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// TestScoresOfDistantUses: uses that are 7 to 9.5 halvings after the ones before, around the
// distance from which on those do not count any more. Among blocks that are not told apart
// it goes by when they were let go, which is the other way round here: so it shows where
// each range ends.
func TestScoresOfDistantUses(t *testing.T) {
	const blocks, tau = 2500, 1000
	w := newWorths(t, blocks, tau, ampleSets)
	all := tokensTo(blocks)
	w.release(w.use(all...))
	w.pass(7 * tau)
	slices.Reverse(all) // the last one has been used least long ago
	ids := w.use(all...)
	slices.Reverse(all)
	slices.Reverse(ids)
	w.release(ids)
	w.evict(all)
	w.end()
}

func tokensTo(n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(i + 1)
	}
	return all
}

// TestScoresOfOldUses: uses of 15 to 17.5 halvings ago; from sixteen on they are not told
// apart.
func TestScoresOfOldUses(t *testing.T) {
	const blocks, tau = 2500, 1000
	w := newWorths(t, blocks, tau, ampleSets)
	all := tokensTo(blocks)
	held := w.use(all...)
	for i := range held { // used one after the other, which they were not when they entered
		w.release(held[i : i+1])
		held[i] = w.use(all[i])[0]
	}
	w.pass(15 * tau)
	slices.Reverse(all)
	slices.Reverse(held)
	w.release(held)
	w.evict(all)
	w.end()
}

// TestScoresOfGhosts: more go than are remembered, in one set; what is worth least makes way.
// What they are worth when they have returned shows which those were.
func TestScoresOfGhosts(t *testing.T) {
	const blocks = 3 * oneSet
	w := newWorths(t, blocks, 1000, oneSet)
	all := tokensTo(blocks)
	for range 20 {
		for _, i := range []uint32{1, 5, 2, 2, 9, 1, 14, 20, 1, 7, 9, 23, 2, 1, 18, 17, 9, 1, 1} {
			w.release(w.use(i))
			w.pass(40)
		}
		w.release(w.use(all...))
		slices.Reverse(all)
		w.release(w.use(all...))
		w.evict(all)
	}
	w.end()
}

// TestScoresOfManyUses: so often that a block can be worth no more, and less often.
func TestScoresOfManyUses(t *testing.T) {
	const tau = 1 << 20
	uses := []int{1000, 300, 270, 240, 200, 20, 1, 3, 90}
	w := newWorths(t, len(uses), tau, ampleSets)
	var all []uint32
	batch := make([]uint32, 0, len(uses))
	for left := true; left; {
		left = false
		batch = batch[:0]
		for i := range uses {
			if uses[i] > 0 {
				uses[i]--
				left = true
				batch = append(batch, uint32(i+1))
			}
		}
		if left {
			w.release(w.use(batch...))
		}
	}
	for i := len(uses); i > 0; i-- {
		all = append(all, uint32(i))
	}
	w.release(w.use(all...))
	w.evict(all)
	w.end()
}
