// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"slices"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// Partly filled blocks in the model, and in its run: tails that stay when sequences are
// released, and copies of what a prompt has in common with them or with whole blocks.

// mMatch is what a create found.
type mMatch struct {
	err     error
	tokens  int // in all
	partial mPartial
}

// mPartial are tokens of a partly filled block, or of a part of a whole one.
type mPartial struct {
	from   *mBlock
	tokens int
	takes  bool     // the page itself
	after  []mFence // what the copy waits for
}

// everyBlock are whole ones and tails.
func (m *model) everyBlock() []*mBlock {
	all := slices.Clone(m.tails)
	for _, b := range m.resident {
		all = append(all, b)
	}
	return all
}

// newest are the 32 newest blocks and tails that follow a block, or that begin a scope.
func (m *model) newest(parent *mBlock, root event.Digest) []*mBlock {
	all := slices.DeleteFunc(m.everyBlock(), func(b *mBlock) bool {
		return b.parent != parent || b.scope.root != root
	})
	slices.SortFunc(all, func(a, b *mBlock) int { return b.born - a.born })
	return all[:min(len(all), 32)]
}

// text is what a block or a tail holds.
func (m *model) text(b *mBlock) []uint32 {
	if b.tail != nil {
		return b.tail
	}
	return m.known[b.key].tokens
}

func begins(whole, part []uint32) bool {
	return len(part) <= len(whole) && slices.Equal(whole[:len(part)], part)
}

// takePage takes one that work on the stream may have without an eviction: pages that
// only this stream can use come first, those with the oldest fences before the others.
func (m *model) takePage(stream bindings.DeviceStream) *mPage {
	oldest, position := -1, 0
	for i, p := range m.quarantine {
		if m.doomed(p) || !m.usableBy(p.used, stream) {
			continue
		}
		last := 0
		for _, f := range p.used {
			if f.stream == stream {
				last = max(last, f.position)
			}
		}
		if oldest < 0 || last < position {
			oldest, position = i, last
		}
	}
	if oldest >= 0 {
		m.quarantine = slices.Delete(m.quarantine, oldest, oldest+1)
	} else {
		m.free--
	}
	return &mPage{holders: 1}
}

// findPartial looks for the child that has most in common with what follows the match.
func (m *model) findPartial(scope *mScope, p *bindings.Prompt, found []*mBlock,
	copies bindings.DeviceStream) mPartial {
	if !m.partialReuse || p.MatchBackoff != 0 {
		return mPartial{}
	}
	var parent *mBlock
	if len(found) > 0 {
		parent = found[len(found)-1]
	}
	first := len(found) * m.blockSize
	rest := p.Tokens[min(first, max(first, len(p.Tokens))):]
	rest = rest[:max(0, len(rest)-leftToCompute(p.MustCompute))]
	var hit mPartial
	for _, child := range m.newest(parent, scope.root) {
		common := 0
		for text := m.text(child); common < min(len(text), len(rest)) && text[common] == rest[common]; {
			common++
		}
		if common > hit.tokens {
			hit = mPartial{from: child, tokens: common}
		}
	}
	if hit.tokens == 0 {
		return hit
	}
	m.poll()
	usable := func(page *mPage) bool { return !m.doomed(page) && m.usableBy(page.used, p.DeviceStream) }
	// Without a copy there is still the tail itself, if that is all of it.
	tail := mPartial{from: hit.from, tokens: hit.tokens, takes: true}
	if len(hit.from.tail) != hit.tokens {
		tail = mPartial{}
	}
	if m.free == 0 && !slices.ContainsFunc(m.quarantine, usable) {
		return tail
	}
	possible := true
	if hit.after, possible = m.copyAfter(hit.from.page, p.DeviceStream, copies); !possible {
		return tail
	}
	return hit
}

func (m *model) takePartial(s *mSequence, hit *mPartial, copies bindings.DeviceStream) {
	if hit.tokens == 0 {
		return
	}
	m.partialHits++
	m.partialTokens += uint64(hit.tokens)
	if hit.takes {
		page := hit.from.page
		m.hold(page)
		m.evict(hit.from)
		page.block = nil
		m.owner[page.id] = page
		s.pages = append(s.pages, page)
		m.notePeak()
		return
	}
	to := m.takePage(s.stream)
	m.queueCopy(hit.from.page, to, s.stream, copies, hit.after)
	s.pages = append(s.pages, to)
	// It has been used.
	m.hold(hit.from.page)
	m.use(hit.from)
	m.drop(hit.from.page, nil)
	m.notePeak()
}

// keepsTail: the tail would have become a block, and it is nobody else's.
func (m *model) keepsTail(s *mSequence) bool {
	full := s.committed / m.blockSize
	return m.partialReuse && !s.suspended && s.epoch == m.epoch && s.committed%m.blockSize != 0 &&
		len(s.blocks) == full && (s.stopBlocks < 0 || s.stopBlocks > full) && s.pages[full].holders == 1
}

// keepTail keeps it, before its page is dropped.
func (m *model) keepTail(s *mSequence, fences []mFence) {
	var parent, shorter *mBlock
	full := len(s.blocks)
	if full > 0 {
		parent = s.blocks[full-1]
	}
	tail := slices.Clone(s.tokens[full*m.blockSize:])
	for _, child := range m.newest(parent, s.scope.root) {
		if begins(m.text(child), tail) {
			return
		}
		if shorter == nil && begins(tail, m.text(child)) {
			shorter = child
		}
	}
	if shorter != nil {
		m.evict(shorter)
		m.giveUp(shorter.page)
	}
	m.births++
	b := &mBlock{parent: parent, scope: s.scope, page: s.pages[full], id: bindings.NoBlock,
		own: bindings.DefaultPriority, tail: tail, born: m.births, score: m.scores.time}
	if parent != nil {
		b.own, b.score = min(b.own, parent.own), parent.score
		parent.children++
	}
	b.listed = b.own
	b.page.block = b
	b.page.ready = append(b.page.ready, fences...)
	m.tails = append(m.tails, b)
	m.keptTails++
}

// supersede: a tail that begins a new block says nothing more.
func (m *model) supersede(b *mBlock, text []uint32) {
	for _, child := range m.newest(b.parent, b.scope.root) {
		if child.tail != nil && begins(text, child.tail) {
			m.evict(child)
			m.giveUp(child.page)
			return
		}
	}
}

// created compares a result of Create with the model's; nil if there is no sequence. What
// follows from the fences is the caller's, after all of the call.
func (l *lockstep) created(scope *mScope, p bindings.Prompt, r *bindings.CreateResult) (*mSequence, []mFence) {
	l.t.Helper()
	copies := l.m.own
	for _, f := range r.Waits {
		if copies == 0 && l.m.streams[f.Stream] == nil {
			copies = f.Stream
		}
	}
	s, matched, computed, waits := l.m.create(scope, p, copies)
	l.same("create", r.Err, matched.err)
	if s == nil {
		return nil, nil
	}
	s.id = r.Sequence.ID()
	l.equal("matched tokens", r.MatchedTokens, matched.tokens)
	l.equal("pending tokens", r.PendingTokens, computed.blocks*l.m.blockSize)
	l.equal("pending sequence", r.PendingSequence, computed.id())
	if matched.partial.takes {
		l.equal("copied tokens of a create", r.CopiedTokens, 0)
	} else if from := matched.partial.from; from == nil {
		l.equal("copied tokens of a create", r.CopiedTokens, 0)
	} else {
		l.equal("copied tokens of a create", r.CopiedTokens, matched.partial.tokens)
		l.equal("copied page of a create", r.CopiedFrom, from.page.id)
		page := s.pages[len(s.pages)-1]
		if l.m.owner[r.CopiedTo] != nil {
			l.t.Fatalf("a copy is in page %d, which belongs to another", r.CopiedTo)
		}
		l.m.learn(page, r.CopiedTo)
	}
	return s, waits
}
