// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// pool is a slow and obvious model of the allocator: blocks are found by
// parent and tokens, the least recently used block that nobody holds goes
// first, and a sequence that ends gives its blocks back from the last to the
// first.
type pool struct {
	size, capacity int
	free           int
	blocks         map[string]*block // by name: id of the parent, then the tokens
	ids            int
	idle           *list.List // blocks that nobody holds, least recently used first
	live           []*sequence
	stored         int
	evicted        int
}

type block struct {
	name  string
	id    int
	users int
	place *list.Element // in idle, when users is 0
}

// sequence holds blocks in order, and so many pages that belong to no block.
type sequence struct {
	held    []*block
	private int
}

func newPool(size, capacity int) *pool {
	return &pool{size: size, capacity: capacity, free: capacity, blocks: map[string]*block{}, idle: list.New()}
}

func (p *pool) name(parent int, tokens []uint32) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(parent))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

func (p *pool) hold(s *sequence, b *block) {
	if b.users == 0 {
		p.idle.Remove(b.place)
	}
	b.users++
	s.held = append(s.held, b)
}

func (p *pool) release(s *sequence) {
	p.free += s.private
	for i := len(s.held) - 1; i >= 0; i-- {
		b := s.held[i]
		if b.users--; b.users == 0 {
			b.place = p.idle.PushBack(b)
		}
	}
}

// serve takes a request with its first input tokens as the prompt, and returns
// the number of blocks found, or false if it can never fit.
func (p *pool) serve(tokens []uint32, input, concurrency int) (hits int, fits bool) {
	s := &sequence{}
	parent := 0
	for ; (hits+1)*p.size <= input; hits++ {
		b := p.blocks[p.name(parent, tokens[hits*p.size:(hits+1)*p.size])]
		if b == nil {
			break
		}
		p.hold(s, b)
		parent = b.id
	}
	pages := (len(tokens) + p.size - 1) / p.size
	if pages > p.capacity {
		p.release(s)
		return 0, false
	}
	need := pages - hits
	for p.free+p.idle.Len() < need {
		p.release(p.live[0])
		p.live = p.live[1:]
	}
	for p.free < need {
		victim := p.idle.Remove(p.idle.Front()).(*block)
		delete(p.blocks, victim.name)
		p.evicted++
		p.free++
	}
	p.free -= need
	for i := hits; i < len(tokens)/p.size; i++ {
		name := p.name(parent, tokens[i*p.size:(i+1)*p.size])
		b := p.blocks[name]
		if b == nil {
			p.ids++
			b = &block{name: name, id: p.ids, users: 1}
			p.blocks[name] = b
			p.stored++
			s.held = append(s.held, b)
		} else { // somebody else has stored the same: use theirs
			p.hold(s, b)
			p.free++
		}
		parent = b.id
	}
	if len(tokens)%p.size != 0 {
		s.private = 1
	}
	p.live = append(p.live, s)
	for len(p.live) >= concurrency {
		p.release(p.live[0])
		p.live = p.live[1:]
	}
	return hits, true
}

// The allocator's hits equal those of the model, block for block, while it
// evicts, with several sequences alive, with output tokens and with prompts
// that do not fit at all.
func TestHitsEqualSimulation(t *testing.T) {
	for _, c := range []struct {
		limit, capacity, concurrency int
		decode                       bool
		size                         int
		refuses                      bool // some requests are larger than the pool
	}{
		{limit: 200, capacity: 20000, concurrency: 1, size: 16},
		{limit: 120, capacity: 4000, concurrency: 1, size: 16, refuses: true},
		{limit: 300, capacity: 1000, concurrency: 1, size: 16, refuses: true},
		{limit: 150, capacity: 9000, concurrency: 4, size: 16},
		{limit: 150, capacity: 30000, concurrency: 16, decode: true, size: 16},
		{limit: 150, capacity: 9000, concurrency: 100, decode: true, size: 16}, // often no room
		{limit: 400, capacity: 1500, concurrency: 3, decode: true, size: 128},
		{limit: 1200, capacity: 900, concurrency: 1, size: 512},
		{limit: 60, capacity: 200000, concurrency: 1, size: 7},
		{limit: 1000, capacity: 100000, concurrency: 1, size: 16},
	} {
		name := fmt.Sprintf("capacity %d of %d, concurrency %d, decode %v", c.capacity, c.size, c.concurrency, c.decode)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.capacity == 100000 && testing.Short() {
				t.Skip("takes the model some seconds")
			}
			var want replaySummary
			model := newPool(c.size, c.capacity)
			for line, r := range readTrace(t, traceFile, c.limit) {
				tokens := r.sequenceTokens(line, c.decode)
				want.Requests++
				hits, fits := model.serve(tokens, r.InputLength, c.concurrency)
				if !fits {
					want.RefusedRequests++
					continue
				}
				want.HitBlocks += hits
				want.HitTokens += hits * c.size
				want.PromptBlocks += r.InputLength / c.size
				want.PromptTokens += r.InputLength
			}
			want.StoredBlocks, want.RemovedBlocks = model.stored, model.evicted
			want.ResidentBlocks = len(model.blocks)

			args := []string{"--trace", traceFile, "--limit", fmt.Sprint(c.limit),
				"--capacity-blocks", fmt.Sprint(c.capacity), "--block-size", fmt.Sprint(c.size),
				"--concurrency", fmt.Sprint(c.concurrency), "--publisher", "off", "--device", "host"}
			if c.decode {
				args = append(args, "--decode")
			}
			s := replay(t, args...)
			got := replaySummary{Requests: s.Requests, RefusedRequests: s.RefusedRequests, HitBlocks: s.HitBlocks,
				HitTokens: s.HitTokens, PromptBlocks: s.PromptBlocks, PromptTokens: s.PromptTokens,
				StoredBlocks: s.StoredBlocks, RemovedBlocks: s.RemovedBlocks, ResidentBlocks: s.ResidentBlocks}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if (want.RefusedRequests > 0) != c.refuses {
				t.Errorf("%d requests are refused", want.RefusedRequests)
			}
			if want.HitBlocks == 0 {
				t.Error("no hits: the case shows nothing")
			}
			if s.ReusableBlocks != s.ResidentBlocks {
				t.Errorf("the walk finds %d blocks, the count says %d", s.ReusableBlocks, s.ResidentBlocks)
			}
			// A stream that cannot keep up must not change what is found.
			for i, a := range args {
				if a == "off" {
					args[i] = "null"
				}
			}
			if with := replay(t, append(args, "--sink-blocks", "64")...); with.HitBlocks != want.HitBlocks {
				t.Errorf("%d hits with a stream, %d without", with.HitBlocks, want.HitBlocks)
			}
		})
	}
}

// With one block per hash id and room for all, what is found follows from the
// trace alone: the leading full blocks whose ids have been seen.
func TestHitsEqualTheTrace(t *testing.T) {
	t.Parallel()
	seen := map[uint64]bool{}
	var asked, hits int
	for _, r := range readTrace(t, traceFile, 0) {
		full := r.InputLength / 512
		asked += full
		hit := 0
		for hit < full && seen[r.HashIDs[hit]] {
			hit++
		}
		hits += hit
		for _, id := range r.HashIDs[:full] {
			seen[id] = true
		}
	}
	s := replay(t, "--trace", traceFile, "--block-size", "512", "--capacity-blocks", "200000", "--publisher", "off")
	if s.PromptBlocks != asked || s.HitBlocks != hits || s.RefusedRequests != 0 {
		t.Errorf("%d of %d blocks hit, the trace says %d of %d (refused %d)",
			s.HitBlocks, s.PromptBlocks, hits, asked, s.RefusedRequests)
	}
	if s.ResidentBlocks != len(seen) {
		t.Errorf("%d blocks resident, the trace has %d", s.ResidentBlocks, len(seen))
	}
	if !strings.HasPrefix(s.Device, "host") {
		t.Errorf("device %q", s.Device)
	}
}
