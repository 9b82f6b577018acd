// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/kvcast/kvcast/bindings"
)

// Forks in the model, and in its run.

// tail is the page of the partly filled last block, nil if there is none.
func (m *model) tail(s *mSequence) *mPage {
	if s.suspended || s.committed%m.blockSize == 0 {
		return nil
	}
	return s.pages[s.committed/m.blockSize]
}

// sharesTail: somebody else holds it, so nobody may write it.
func (m *model) sharesTail(s *mSequence) bool {
	p := m.tail(s)
	return p != nil && p.holders > 1
}

// onlyKept: all others who hold it are suspended.
func (m *model) onlyKept(s *mSequence) bool {
	kept := 0
	for _, k := range m.keepers() {
		if slices.Contains(k.pages, m.tail(s)) {
			kept++
		}
	}
	return kept+1 == m.tail(s).holders
}

// fork opens a sequence (without its id) with what another has committed.
func (m *model) fork(s *mSequence, stream bindings.DeviceStream) (*mSequence, []mFence, error) {
	m.settleMemory()
	if s.suspended {
		return nil, nil, bindings.ErrBadState
	}
	if m.full() {
		return nil, nil, bindings.ErrNotNow
	}
	if !m.gateOpen() {
		m.refusedGate++
		return nil, nil, bindings.ErrNotNow
	}
	made := *s
	made.stream = stream
	made.willMark, made.awaits, made.path = false, false, nil // marks stay with whoever made them
	made.tokens, made.blocks, made.rules = slices.Clone(s.tokens), slices.Clone(s.blocks), slices.Clone(s.rules)
	made.pages = slices.Clone(s.pages[:(s.committed+m.blockSize-1)/m.blockSize])
	var fences []mFence
	if stream != s.stream {
		fences = m.record(s.stream)
	}
	for i, p := range made.pages {
		p.holders++
		if s.epoch != m.epoch || i >= len(s.blocks) {
			p.ready = append(p.ready, fences...)
		}
	}
	m.forked++
	m.sequences = append(m.sequences, &made)
	// The other's stream is waited for even if nothing is shared.
	return &made, m.waitsFor(append(slices.Clone(made.pages), &mPage{ready: fences}), stream), nil
}

// plan finds who gives demand pages: cached blocks, and suspended sequences where those
// are not enough; whoever keeps the page unshare gives up what it keeps in any case. It
// returns what is left to be evicted.
func (m *model) plan(stream bindings.DeviceStream, demand int,
	unshare *mPage) (int, []*mBlock, []*mSequence, bool) {
	demand = max(0, demand)
	victims := m.victims(demand, stream, false)
	if m.gain(victims) == demand && unshare == nil {
		return demand, victims, nil, true
	}
	// The last resort: what suspended sequences keep, the latest first.
	keepers := m.keepers()
	must := func(k *mSequence) bool { return unshare != nil && slices.Contains(k.pages, unshare) }
	slices.SortStableFunc(keepers, func(a, b *mSequence) int {
		switch {
		case must(a) == must(b):
			return 0
		case must(a):
			return -1
		}
		return 1
	})
	var stripped []*mSequence
	gain, less := 0, map[*mPage]int{}
	gives := func(p *mPage) bool {
		return p.holders == less[p] && !m.doomed(p) && m.usableBy(p.ready, stream) && m.usableBy(p.used, stream)
	}
	for _, keeper := range keepers {
		if !must(keeper) && m.gain(victims)+gain >= demand {
			break
		}
		for _, p := range keeper.pages {
			less[p]++
			if gives(p) {
				gain++
			}
		}
		stripped = append(stripped, keeper)
	}
	// Not who gives nothing.
	stripped = slices.DeleteFunc(stripped, func(k *mSequence) bool {
		return !must(k) && !slices.ContainsFunc(k.pages, gives)
	})
	if m.gain(victims)+gain < demand {
		return demand, nil, nil, false
	}
	demand = max(0, demand-gain)
	return demand, m.victims(demand, stream, false), stripped, true
}

// queues: work on the stream is queued on the device.
func (m *model) queues(stream bindings.DeviceStream) bool {
	return stream != 0 && !m.streams[stream].steps
}

// copyAfter are the fences that the copy of a page waits for, for a sequence on a stream;
// false if one is of a step, for which only the device's own stream can wait.
func (m *model) copyAfter(from *mPage, stream, copies bindings.DeviceStream) ([]mFence, bool) {
	if m.queues(stream) {
		after := m.waitsFor([]*mPage{from}, stream)
		return after, !slices.ContainsFunc(after, func(f mFence) bool { return m.streams[f.stream].steps })
	}
	if m.streams[copies] == nil {
		m.own = copies
		m.streams[copies] = &mStream{} // nobody else's work is on it
		m.order = append(m.order, copies)
	}
	after := m.waitsFor([]*mPage{from}, copies)
	if stream != 0 && m.streams[stream].executed != m.streams[stream].submitted {
		after = slices.DeleteFunc(after, func(f mFence) bool { return f.stream == stream })
		after = append(after, m.record(stream)...)
	}
	return after, true
}

// queueCopy lets the device copy one page to another, for a sequence on a stream. It
// returns the fence to wait for if that is not done on the stream itself.
func (m *model) queueCopy(from, to *mPage, stream, copies bindings.DeviceStream, after []mFence) mFence {
	on := stream
	if !m.queues(on) {
		on = copies
	}
	// In the order of the streams' slots, which are the low bits of their ids.
	slices.SortFunc(after, func(a, b mFence) int { return int(a.stream%64) - int(b.stream%64) })
	for _, f := range after {
		m.submit(on, mOp{wait: true, fence: f})
	}
	m.submit(on, mOp{})
	fence := m.record(on)
	from.used = append(from.used, fence...)
	m.copied++
	if on == stream {
		return mFence{}
	}
	to.ready = append(to.ready, fence...)
	return fence[0]
}

// makeCopy puts page in the place of the shared one.
func (m *model) makeCopy(s *mSequence, page *mPage, copies bindings.DeviceStream, after []mFence, r *mGrow) {
	old := m.tail(s)
	r.copied, r.from = s.committed/m.blockSize, old.id
	r.wait = m.queueCopy(old, page, s.stream, copies, after)
	s.pages[r.copied] = page
	m.drop(old, nil)
}

// everything ends all steps and executes all that is queued.
func (l *lockstep) everything() {
	l.same("all steps done", l.manager.StepDone(0, 1<<62), nil)
	for _, id := range l.m.order {
		if l.m.streams[id].steps {
			l.m.endStep(id, 1<<62)
		}
	}
	l.advanceAll()
}

// waitItself is for those whose kernels the manager does not see.
func (l *lockstep) waitItself(stream bindings.DeviceStream, waits bool) {
	if waits && !l.m.queues(stream) {
		l.everything()
	}
}

func (l *lockstep) copied(s *mSequence, r *bindings.GrowResult, want *mGrow) {
	l.t.Helper()
	l.equal("copied block", r.CopiedBlock, want.copied)
	l.equal("stream of a copy", r.Wait.Stream, want.wait.stream)
	if want.copied < 0 {
		return
	}
	l.equal("copied page", r.CopiedFrom, want.from)
	l.equal("copied tokens", r.CopiedTokens, s.committed%l.m.blockSize)
	page := s.pages[want.copied]
	if l.m.owner[r.CopiedTo] != nil {
		l.t.Fatalf("a copy is in page %d, which belongs to another", r.CopiedTo)
	}
	l.m.learn(page, r.CopiedTo)
}

func (l *lockstep) fork(t *rapid.T) {
	s := l.pick(t)
	if s == nil {
		return
	}
	l.worked()
	stream := s.stream
	if rapid.Bool().Draw(t, "on another stream") {
		stream = rapid.SampledFrom(l.openStreams()).Draw(t, "device stream")
	}
	out := make([]bindings.ForkResult, 1)
	l.same("fork", l.calls.of().Fork([]bindings.ForkItem{{Sequence: s.id, DeviceStream: stream}}, out), nil)
	r := &out[0]
	made, waits := l.forked(s, stream, r)
	if made == nil {
		return
	}
	l.streamWait(made, r.Waits, waits)
	l.waitItself(stream, len(r.Waits) > 0)
	l.sequence(made)
}

// forked judges a fork; it returns the new sequence, nil if there is none, and what is to
// be waited for.
func (l *lockstep) forked(s *mSequence, stream bindings.DeviceStream, r *bindings.ForkResult) (*mSequence, []mFence) {
	l.t.Helper()
	made, waits, err := l.m.fork(s, stream)
	l.same("fork", r.Err, err)
	if err != nil {
		return nil, nil
	}
	made.id = r.Sequence.ID()
	l.equal("forked tokens", r.CommittedTokens, made.committed)
	l.waits("fork", r.Waits, waits)
	return made, waits
}
