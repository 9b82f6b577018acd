// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// What blocks are worth in the model: with PolicyLRFU, as docs/allocator.md defines it.

const (
	halving = 128 // scores are logarithms, in these parts of a halving
	// Ghosts are in sets of eight. The model does not know which set a block belongs to:
	// there is one, or there are so many that none is ever full.
	oneSet, ampleSets = 8, 1 << 16
)

type mGhost struct {
	key   event.Digest
	score int
}

type mScores struct {
	on                bool
	tau, ghosts, time int
	left              []*mGhost // nil: a free place
}

// used is the score after a use now: two sums of powers of two add up; what is eight
// halvings smaller adds nothing.
func (x *mScores) used(score int) int {
	most, apart := max(score, x.time), float64(max(score, x.time)-min(score, x.time))/halving
	if apart < 8 {
		most += int(math.Round(halving * math.Log2(1+math.Exp2(-apart))))
	}
	return most
}

// entered is the score of a block that enters the tree; its ghost is one no more.
func (x *mScores) entered(key event.Digest) int {
	at := slices.IndexFunc(x.left, func(g *mGhost) bool { return g != nil && g.key == key })
	if at < 0 {
		return x.time
	}
	score := x.used(x.left[at].score)
	x.left[at] = nil
	return score
}

// leaves: a ghost takes the first free place, or that of the one worth least.
func (x *mScores) leaves(key event.Digest, score int) {
	if !x.on {
		return
	}
	at := slices.Index(x.left, nil)
	switch {
	case at >= 0:
	case len(x.left) < x.ghosts:
		at = len(x.left)
		x.left = append(x.left, nil)
	default:
		at = slices.Index(x.left, slices.MinFunc(x.left, func(a, b *mGhost) int { return a.score - b.score }))
	}
	x.left[at] = &mGhost{key, score}
}

// level is where a score stands: those within a sixteenth of a halving are not told apart,
// nor those more than sixteen halvings below a use now.
func (x *mScores) level(score int) int {
	if !x.on {
		return 0
	}
	const width = halving / 16
	return max(score/width, x.time/width-16*16)
}

// request counts a request, which is the time.
func (m *model) request() {
	m.created++
	m.scores.time = int(m.created) * halving / m.scores.tau
}

// queue puts a block into a list: behind all that are worth no more.
func (m *model) queue(list []*mBlock, b *mBlock) []*mBlock {
	at := len(list)
	for at > 0 && m.scores.level(list[at-1].score) > m.scores.level(b.score) {
		at--
	}
	return slices.Insert(list, at, b)
}

// use is a use of a block that is held.
func (m *model) use(b *mBlock) { b.score = m.scores.used(b.score) }

// levelPath: whatever used a block has used those before it.
func levelPath(path []*mBlock) {
	for i := len(path) - 1; i > 0; i-- {
		path[i-1].score = max(path[i-1].score, path[i].score)
	}
}

// comeBack: blocks that have gone are asked for again.
func (l *lockstep) comeBack(t *rapid.T) {
	ghosts := slices.DeleteFunc(slices.Clone(l.m.scores.left), func(g *mGhost) bool { return g == nil })
	if len(ghosts) == 0 || l.m.full() {
		return
	}
	b := l.m.known[ghosts[rapid.IntRange(0, len(ghosts)-1).Draw(t, "ghost")].key]
	scope, tokens := b.scope, []uint32(nil)
	for ; b != nil; b = l.m.known[b.parent] {
		tokens = slices.Insert(tokens, 0, b.tokens...)
	}
	l.serve(t, scope, tokens, true)
}

// pass lets time pass, which is counted in requests.
func (l *lockstep) pass(t *rapid.T) {
	if !l.m.scores.on {
		return
	}
	for range rapid.SampledFrom([]int{2, 8, 20}).Draw(t, "requests") {
		s := l.open(l.scopes[0], bindings.Prompt{})
		if s == nil {
			return
		}
		l.releaseAll([]*mSequence{s}, false)
	}
}
