// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
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

// digests counts those in use: of blocks, partly filled tails and paths of suspended
// sequences.
func (m *model) digests() uint64 {
	all := map[uint32]bool{}
	add := func(tokens []uint32) {
		for _, token := range tokens {
			if _, ok := event.IsDigestToken(token); ok {
				all[token] = true
			}
		}
	}
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
	return uint64(len(all))
}
