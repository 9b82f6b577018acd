// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"slices"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"pgregory.net/rapid"
)

// mPromise: owner computes the blocks begin..end-1 of tokens.
type mPromise struct {
	owner      *mSequence
	root       event.Digest
	tokens     []uint32
	begin, end int
}

// mWait: who waits until owner has committed its blocks up to until.
type mWait struct {
	who, owner  *mSequence
	from, until int
}

type mTold struct {
	who  *mSequence
	kept bool
}

// mPending are the promises and the waits, in the order in which they were made.
type mPending struct {
	blockSize, most                             int
	promises                                    []*mPromise
	waits                                       []mWait
	told                                        []mTold
	marked, committed, givenUp, unmarked, begun uint64
}

type mFound struct {
	owner  *mSequence
	blocks int
}

func (f mFound) id() bindings.SequenceID {
	if f.owner == nil {
		return 0
	}
	return f.owner.id
}

func (p *mPending) same(a, b []uint32, blocks int) bool {
	n := blocks * p.blockSize
	return min(len(a), len(b)) >= n && slices.Equal(a[:n], b[:n])
}

// find is the first promise of block at, and how far it goes.
func (p *mPending) find(root event.Digest, tokens []uint32, at, limit int) mFound {
	for _, q := range p.promises {
		if q.root != root || at < q.begin || at >= q.end {
			continue
		}
		end := at
		for end < min(limit, q.end) && p.same(tokens, q.tokens, end+1) {
			end++
		}
		if end > at {
			return mFound{q.owner, end - at}
		}
	}
	return mFound{}
}

func (p *mPending) of(s *mSequence) *mPromise {
	if i := slices.IndexFunc(p.promises, func(q *mPromise) bool { return q.owner == s }); i >= 0 {
		return p.promises[i]
	}
	return nil
}

func (p *mPending) size() int {
	all := 0
	for _, q := range p.promises {
		all += q.end - q.begin
	}
	return all
}

func (p *mPending) promise(s *mSequence, tokens []uint32) {
	begin, end := len(s.blocks), len(tokens)/p.blockSize
	if s.stopBlocks >= 0 {
		end = min(end, s.stopBlocks)
	}
	end = max(begin, end)
	count := min(end-begin, p.most-p.size())
	p.marked += uint64(count)
	p.unmarked += uint64(end - begin - count)
	if count > 0 {
		p.promises = append(p.promises, &mPromise{s, s.scope.root, slices.Clone(tokens), begin, begin + count})
	}
}

// commit: the owner has so many blocks in the tree now.
func (p *mPending) commit(s *mSequence) {
	q := p.of(s)
	if q == nil {
		return
	}
	linked := min(len(s.blocks), q.end)
	for q.begin < linked && p.same(s.tokens, q.tokens, q.begin+1) {
		q.begin++
		p.committed++
	}
	for _, w := range slices.Clone(p.waits) {
		if w.owner == s && w.until <= q.begin {
			p.tell(w.who, true)
		}
	}
	if q.begin < linked {
		p.end(s, q.begin)
	} else {
		p.prune()
	}
}

// end: block keep and those behind it will not come.
func (p *mPending) end(s *mSequence, keep int) {
	q := p.of(s)
	if q == nil {
		return
	}
	end := min(q.end, max(keep, q.begin))
	p.givenUp += uint64(q.end - end)
	q.end = end
	for _, w := range slices.Clone(p.waits) {
		if w.owner != s || w.until <= end {
			continue
		}
		if q.begin == end || end <= w.from {
			p.tell(w.who, false)
			continue
		}
		i := slices.IndexFunc(p.waits, func(x mWait) bool { return x.who == w.who })
		p.waits[i].until = end
	}
	p.prune()
}

func (p *mPending) prune() {
	p.promises = slices.DeleteFunc(p.promises, func(q *mPromise) bool { return q.begin == q.end })
}

func (p *mPending) await(s *mSequence, found mFound, from int) {
	w := mWait{s, found.owner, from, from + found.blocks}
	if slices.ContainsFunc(p.waits, func(x mWait) bool {
		return x.who == s && x.owner == w.owner && x.until == w.until
	}) {
		return
	}
	p.forget(s)
	p.waits = append(p.waits, w)
	p.begun++
}

func (p *mPending) forget(s *mSequence) {
	p.waits = slices.DeleteFunc(p.waits, func(w mWait) bool { return w.who == s })
	p.told = slices.DeleteFunc(p.told, func(t mTold) bool { return t.who == s })
}

func (p *mPending) tell(s *mSequence, kept bool) {
	p.forget(s)
	p.told = append(p.told, mTold{s, kept})
}

// byPlace: the library goes through sequences by their places.
func (m *model) byPlace() []*mSequence {
	return slices.SortedFunc(slices.Values(m.sequences), func(a, b *mSequence) int {
		return int(uint32(a.id)) - int(uint32(b.id))
	})
}

// limit is how many blocks of a prompt a match may take.
func (m *model) limit(tokens []uint32, mustCompute int) int {
	return max(0, len(tokens)-leftToCompute(mustCompute)) / m.blockSize
}

// computed is what an older sequence computes of a prompt.
func (m *model) computed(scope *mScope, tokens []uint32, mustCompute int) (found mFound, resident int) {
	resident = len(m.match(scope, tokens, mustCompute, 0))
	return m.pending.find(scope.root, tokens, resident, m.limit(tokens, mustCompute)), resident
}

// waiters takes those whose waits are over, up to room.
func (l *lockstep) waiters(room int) {
	l.t.Helper()
	l.calls.settle()
	got, err := l.manager.TakeWaiters(make([]bindings.Waiter, room))
	l.same("take waiters", err, nil)
	l.over(got, room)
}

// over judges what was told, in a room of that size, of those whose waits are over.
func (l *lockstep) over(got []bindings.Waiter, room int) {
	l.t.Helper()
	p := &l.m.pending
	l.equal("waits that are over", len(got), min(room, len(p.told)))
	for _, w := range got {
		outcome := bindings.PendingGivenUp
		if p.told[0].kept {
			outcome = bindings.PendingCommitted
		}
		l.equal("waiter", w, bindings.Waiter{Sequence: p.told[0].who.id, Outcome: outcome})
		p.told = p.told[1:]
	}
}

func (l *lockstep) takeWaiters(t *rapid.T) {
	l.worked()
	l.waiters(rapid.IntRange(0, 3).Draw(t, "room"))
}

// next is what a sequence commits next: mostly what it has promised.
func (l *lockstep) next(t *rapid.T, s *mSequence, tokens []uint32) []uint32 {
	q := l.m.pending.of(s)
	if q == nil || rapid.SampledFrom([]bool{true, false, false, false, false}).Draw(t, "break the promise") {
		return tokens
	}
	for i := range tokens {
		if at := s.committed + i; at < len(q.tokens) {
			tokens[i] = q.tokens[at]
		}
	}
	return tokens
}

// share: the second of two requests with a common beginning waits for the first.
func (l *lockstep) share(t *rapid.T) {
	l.worked()
	scope, tokens := l.drawPrompt(t)
	stream := rapid.SampledFrom(l.openStreams()).Draw(t, "device stream")
	must := rapid.IntRange(bindings.ComputeNothing, 2).Draw(t, "must compute")
	more := l.tokens(0, 2).Draw(t, "more")
	prompts := []bindings.Prompt{
		{Tokens: tokens, Scope: scope.scope, DeviceStream: stream, MustCompute: must, Mark: true},
		{Tokens: slices.Concat(tokens, more), Scope: scope.scope, MustCompute: must, Mark: true, Wait: true},
	}
	var made [2]*mSequence
	for i, p := range prompts {
		made[i] = l.open(scope, p)
	}
	first, second := made[0], made[1]
	if first == nil || first.suspended || l.m.pending.of(first) == nil || !l.growTo(first, len(tokens)) {
		return
	}
	for range 2 {
		room := len(first.pages)*l.m.blockSize - first.committed
		n := rapid.IntRange(0, room).Draw(t, "piece")
		l.commitTokens(first, l.next(t, first, make([]uint32, n)), nil)
	}
	l.waiters(rapid.IntRange(0, 1).Draw(t, "room"))
	if second != nil && second.suspended {
		l.resumeOne(second)
	}
}
