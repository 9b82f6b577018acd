// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
)

// mElastic is what an elastic pool is made of beside its pages in use.
type mElastic struct {
	most, least int
	limit       int             // pages from here on are doomed
	out         map[uint32]bool // pages that were withdrawn, below the total
	resizing    bool
	asked       int  // for how many pages the device is to have memory
	done        bool // and it has
	resizes     uint64
	moved       uint64
}

func (m *model) doomed(p *mPage) bool { return p.known && int(p.id) >= m.elastic.limit }

// gain is how many of the victims give a page that somebody can have.
func (m *model) gain(victims []*mBlock) int {
	gain := 0
	for _, b := range victims {
		if !m.doomed(b.page) {
			gain++
		}
	}
	return gain
}

// staying are the quarantined pages that can be had later.
func (m *model) staying() int {
	staying := 0
	for _, p := range m.quarantine {
		if !m.doomed(p) {
			staying++
		}
	}
	return staying
}

// inUse are the live, cached and quarantined pages by id; false if one has not been met.
func (m *model) inUse() (map[uint32]bool, bool) {
	used, all := map[uint32]bool{}, true
	add := func(pages ...*mPage) {
		for _, p := range pages {
			if p.known {
				used[p.id] = true
			}
			all = all && p.known
		}
	}
	add(m.quarantine...)
	for _, b := range m.resident {
		add(b.page)
	}
	for _, b := range m.tails {
		add(b.page)
	}
	for _, s := range m.sequences {
		add(s.pages...)
	}
	for _, h := range m.holds {
		add(h.sequence.pages...)
	}
	for _, pin := range m.pins {
		add(pin.pages...)
	}
	return used, all
}

func (m *model) countDoomed() int {
	used, _ := m.inUse()
	count := 0
	for id := range used {
		if int(id) >= m.elastic.limit {
			count++
		}
	}
	return count
}

// learn: the manager has said which page it is. Of several that a stream could have it may
// have taken another one than the model did: which one is left is not known then.
func (m *model) learn(p *mPage, id uint32) {
	p.id, p.known = id, true
	for _, q := range m.quarantine {
		if q.known && q.id == id {
			q.known = false
		}
	}
	m.owner[id] = p
}

func (m *model) ask(pages int) { m.elastic.asked, m.elastic.done = pages, false }

func (m *model) setTotal(total int) {
	e := &m.elastic
	for id := m.total; id < total; id++ {
		e.out[uint32(id)] = true
	}
	m.total = total
	maps.DeleteFunc(e.out, func(id uint32, _ bool) bool {
		if int(id) < min(e.limit, total) {
			m.free++
			return true
		}
		return int(id) >= total
	})
}

// settleMemory is what the manager does about memory at the beginning of most calls, and
// of each operation of those that make several: what one of them has given up is not asked
// for any more when the next one begins.
func (m *model) settleMemory() {
	e := &m.elastic
	if !e.resizing {
		return
	}
	if e.done {
		m.setTotal(e.asked)
	}
	end := e.limit
	used, _ := m.inUse()
	for id := range used {
		end = max(end, int(id)+1)
	}
	if end < e.asked {
		m.ask(end)
	}
	e.resizing = !e.done || m.total != e.limit
}

// resize: moves are copied on the device's own stream, copies.
func (m *model) resize(target, maxPages int, copies bindings.DeviceStream) (bindings.ResizeResult, []*mBlock) {
	e := &m.elastic
	m.settleMemory()
	if target != e.limit {
		e.resizes++
		used, _ := m.inUse()
		for id := target; id < min(e.limit, m.total); id++ {
			if !used[uint32(id)] && !e.out[uint32(id)] {
				e.out[uint32(id)] = true
				m.free--
			}
		}
		e.limit, e.resizing = target, true
		switch {
		case target > e.asked:
			m.ask(target)
		case e.done:
			m.setTotal(m.total)
		}
	}
	var r bindings.ResizeResult
	var victims []*mBlock
	if e.resizing {
		m.poll()
		if e.limit < m.total {
			victims = m.clearDoomed(maxPages, copies, &r)
		}
		m.settleMemory()
	}
	r.TargetPages, r.TotalPages, r.GrowingPages = e.limit, m.total, max(0, e.limit-m.total)
	r.DoomedPages, r.LeavingPages = m.countDoomed(), len(e.out)
	r.MovedPages, r.EvictedBlocks, r.Done = len(r.Moves), len(victims), !e.resizing
	return r, victims
}

func (m *model) clearDoomed(maxPages int, copies bindings.DeviceStream, r *bindings.ResizeResult) []*mBlock {
	cached := map[uint32]*mBlock{}
	for _, list := range m.lists {
		for _, b := range list {
			if m.doomed(b.page) {
				cached[b.page.id] = b
			}
		}
	}
	// What suspended sequences keep, and nobody else holds, by page.
	type place struct {
		s *mSequence
		i int
	}
	kept := map[uint32]place{}
	for _, s := range m.sequences {
		for i, p := range s.pages {
			if s.suspended && m.doomed(p) && p.holders == 1 {
				kept[p.id] = place{s, i}
			}
		}
	}
	r.HeldPages = m.countDoomed() - len(cached) - len(kept) - (len(m.quarantine) - m.staying())
	var victims []*mBlock
	for len(cached)+len(kept) > m.free+m.staying() && len(victims) < maxPages {
		first := m.victims(1, 0, true)
		if len(first) == 0 {
			break
		}
		b := first[0]
		m.countVictim(b)
		victims = append(victims, b)
		delete(cached, b.page.id)
		m.evict(b)
		m.giveUp(b.page)
	}
	// The last page first.
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(m.owner))) {
		b, at := cached[id], kept[id]
		if b == nil && at.s == nil {
			continue
		}
		if len(victims)+len(r.Moves) == maxPages {
			break
		}
		if m.free == 0 {
			r.HeldPages++
			continue
		}
		var old, written *mPage
		if b != nil {
			old, written = b.page, b.page
		} else {
			// What is kept may still be written by those who used it.
			old = at.s.pages[at.i]
			written = &mPage{ready: slices.Concat(old.ready, old.used)}
		}
		if slices.ContainsFunc(m.waitsFor([]*mPage{written}, 0), func(f mFence) bool { return m.streams[f.stream].steps }) {
			r.HeldPages++
			continue // what fills it waits for the host
		}
		after, _ := m.copyAfter(written, 0, copies)
		page := &mPage{block: b}
		m.queueCopy(old, page, 0, copies, after)
		used, _ := m.inUse()
		to := uint32(0)
		for used[to] || m.elastic.out[to] {
			to++
		}
		if b != nil {
			b.page = page
		} else {
			page.holders, old.holders = 1, 0
			at.s.pages[at.i] = page
		}
		m.learn(page, to)
		m.giveUp(old)
		m.free--
		m.elastic.moved++
		tokens := m.blockSize
		if b != nil && b.tail != nil {
			tokens = len(b.tail)
		}
		r.Moves = append(r.Moves, bindings.PageMove{From: id, To: to, Tokens: tokens})
	}
	return victims
}

// resize lets the pool be on its way to somewhere, with everything else between.
func (l *lockstep) resize(t *rapid.T) {
	e := &l.m.elastic
	if e.most == 0 {
		_, err := l.manager.Resize(l.m.total, 1, nil, nil)
		l.same("resize of a fixed pool", err, bindings.ErrInvalidArgument)
		return
	}
	if _, all := l.m.inUse(); !all {
		return // a page that was taken and given up within one step
	}
	l.worked()
	target := e.limit
	// Now and then to anywhere, or a little down, so that there is room to move to.
	switch rapid.IntRange(0, 2).Draw(t, "how far") {
	case 0:
		target = rapid.IntRange(e.least, e.most).Draw(t, "target")
	case 1:
		target = max(e.least, target-rapid.IntRange(1, 4).Draw(t, "less"))
	}
	maxPages := rapid.SampledFrom([]int{0, 1, 2, 5, 100, 100}).Draw(t, "at most")
	got, err := l.manager.Resize(target, maxPages, make([]bindings.PageMove, e.most),
		make([]bindings.EvictedBlock, e.most))
	l.same("resize", err, nil)
	want, victims := l.m.resize(target, maxPages, got.Copied.Stream)
	if got.Copied.Stream != 0 {
		l.equal("stream of moves", got.Copied.Stream, l.m.own)
	}
	if !slices.Equal(got.Moves, want.Moves) {
		l.t.Fatalf("moves %v, the model says %v", got.Moves, want.Moves)
	}
	l.told(got.Evicted, victims)
	got.Moves, got.Evicted, got.Copied = nil, nil, bindings.Fence{}
	want.Moves = nil
	if !equalResized(got, want) {
		l.t.Fatalf("resized\n got  %+v\n want %+v", got, want)
	}
}

func equalResized(a, b bindings.ResizeResult) bool {
	return a.TargetPages == b.TargetPages && a.TotalPages == b.TotalPages &&
		a.GrowingPages == b.GrowingPages && a.DoomedPages == b.DoomedPages &&
		a.HeldPages == b.HeldPages && a.LeavingPages == b.LeavingPages &&
		a.MovedPages == b.MovedPages && a.EvictedBlocks == b.EvictedBlocks && a.Done == b.Done
}
