// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// Multimodal digests in the model, where DigestToken(k) stands for the k-th test digest.

// tokens are what prompts and commits consist of.
func (l *lockstep) tokens(least, most int) *rapid.Generator[[]uint32] {
	of := []uint32{0, 1}
	if l.images {
		of = []uint32{0, 1, 0, 1, 0, 1, 0, 1, bindings.DigestToken(1), bindings.DigestToken(2), bindings.DigestToken(3)}
	}
	return rapid.SliceOfN(rapid.SampledFrom(of), least, most)
}

// items are prompts as a call takes them.
func items(prompts ...bindings.Prompt) []bindings.Prompt {
	made := make([]bindings.Prompt, len(prompts))
	for i, p := range prompts {
		made[i] = p
		made[i].Tokens, made[i].Digests = itemTokens(p.Tokens)
	}
	return made
}

func hasDigest(tokens []uint32) bool {
	return slices.ContainsFunc(tokens, func(token uint32) bool {
		_, ok := event.IsDigestToken(token)
		return ok
	})
}

// digests are those in use: of blocks, partly filled tails and paths of suspended sequences.
func (m *model) digests() map[uint32]bool {
	all := map[uint32]bool{}
	add := func(tokens []uint32) { addDigests(all, tokens) }
	for key := range m.resident {
		add(m.known[key].tokens)
	}
	for _, b := range m.tails {
		add(b.tail)
	}
	of := func(s *mSequence) {
		add(s.tokens[len(s.tokens)/m.blockSize*m.blockSize:])
		add(s.path)
	}
	for _, s := range m.sequences {
		of(s)
	}
	for _, h := range m.holds {
		of(h.sequence)
	}
	for _, p := range m.pending.promises {
		add(p.tokens)
	}
	return all
}

func addDigests(all map[uint32]bool, tokens []uint32) {
	for _, token := range tokens {
		if _, ok := event.IsDigestToken(token); ok {
			all[token] = true
		}
	}
}

// fits says whether there is room for the digests of an item beside those in use.
func (m *model) fits(tokens []uint32) error {
	if !hasDigest(tokens) {
		return nil
	}
	all := m.digests()
	alone := len(all) == 0
	addDigests(all, tokens)
	switch {
	case len(all) <= m.maxDigests:
		return nil
	case alone:
		return bindings.ErrNeverFits
	}
	return bindings.ErrNotNow
}

// suppressed: the stream does not tell of the block.
func (m *model) suppressed(b *mBlock) bool {
	for ; m.suppress && b != nil; b = b.parent {
		if hasDigest(m.known[b.key].tokens) {
			return true
		}
	}
	return false
}

// silence is the number of such blocks in the tree.
func (m *model) silence() int {
	n := 0
	if m.suppress {
		for _, b := range m.resident {
			if m.suppressed(b) {
				n++
			}
		}
	}
	return n
}

// commitSome commits to several sequences by one call.
func (l *lockstep) commitSome(t *rapid.T) {
	type commit struct {
		s      *mSequence
		tokens []uint32
		filled *mFence
	}
	var commits []commit
	var items []bindings.CommitItem
	for range rapid.IntRange(2, 4).Draw(t, "items") {
		s := l.pick(t)
		if s == nil || slices.ContainsFunc(commits, func(c commit) bool { return c.s == s }) {
			continue
		}
		n := l.drawCount(t, s)
		c := commit{s, l.next(t, s, l.tokens(n, n).Draw(t, "tokens")), l.drawFilled(t, s)}
		l.compute(s, c.tokens, c.filled)
		commits = append(commits, c)
		items = append(items, commitItem(s, c.tokens, c.filled))
	}
	if len(items) == 0 {
		return
	}
	out := make([]bindings.CommitResult, len(items))
	l.same("commit some", l.manager.Commit(items, out), nil)
	waits := make([][]mFence, len(items))
	for i, c := range commits {
		l.worked()
		waits[i] = l.committed(c.s, c.tokens, c.filled, &out[i])
	}
	// What the streams do next comes after all of the call, in the library too.
	for i, c := range commits {
		l.streamWait(c.s, out[i].Waits, waits[i])
	}
	for _, c := range commits {
		l.sequence(c.s)
	}
}
