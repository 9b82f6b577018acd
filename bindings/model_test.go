// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// A slow, obvious model of the manager: maps and slices, keys by crypto/sha256,
// every list searched from its start. It follows design.md, not the C++ code.
// model_run_test.go drives it in lock-step with the real manager.

// mFence is a point on a modelled device stream, in operations submitted to it.
type mFence struct {
	stream   bindings.DeviceStream
	position int
}

// mPage is a physical page.
type mPage struct {
	id      uint32 // as the manager reported it
	known   bool   // it did
	holders int
	block   *mBlock  // nil: private to its holder
	ready   []mFence // when what it holds has been written
	used    []mFence // when those who let it go have finished with it
}

// mBlock is a block of the tree.
type mBlock struct {
	key      event.Digest
	parent   *mBlock // nil: hangs on the root
	scope    *mScope
	children int
	page     *mPage
	id       bindings.BlockID // once it has been seen, else NoBlock
	own      int              // its priority; -1: its conversation is over
	listed   int              // the priority it is listed under
	expired  bool             // its priority was higher, for a time
	tail     []uint32         // a tail that was kept: its tokens, and no key
	born     int              // the later the newer
	score    int              // what it is worth
}

// mPin holds a path.
type mPin struct {
	id    bindings.Pin
	pages []*mPage
}

// mTimer ends a block's priority at a tick of the library's clock.
type mTimer struct {
	tick  int
	block *mBlock
}

// mScope is a scope with what the model derives from it.
type mScope struct {
	scope *bindings.Scope
	root  event.Digest
}

// mSequence is an open sequence.
type mSequence struct {
	id        bindings.SequenceID
	stream    bindings.DeviceStream
	scope     *mScope
	tokens    []uint32 // committed
	blocks    []*mBlock
	pages     []*mPage
	matched   int
	epoch     int
	committed int
	// Of blocks to be committed, in the order of their positions.
	rules []mRule
	// No block from this one on becomes reusable; -1: no limit.
	stopBlocks int
	// While suspended, path has the tokens of the blocks in the tree and pages
	// what is kept of the rest.
	suspended, fresh, restKept bool
	suspendedAt                int
	backoff                    int // of a fresh one's match
	path                       []uint32
	matchBlocks                int // fresh: of the path, that may be matched
	willMark, awaits           bool
}

type mOp struct {
	wait  bool
	fence mFence
}

type mStream struct {
	queue     []mOp
	submitted int
	executed  int
	open      bool
	steps     bool // operations are steps, ended by the host
}

// mHold is a released sequence whose pages are held.
type mHold struct {
	id       bindings.HoldID
	sequence *mSequence
	count    int
	cancel   bool
}

// mKnown is what the model remembers of every block that ever existed, to
// judge events by.
type mKnown struct {
	digest event.Digest
	parent event.Digest
	isRoot bool // the parent is a root
	tokens []uint32
	scope  *mScope
}

type model struct {
	blockSize    int
	total        int
	maxSequences int
	gate         int // permille
	suspensions  int
	partialReuse bool
	maxDigests   int
	suppress     bool // the stream does not tell of digests
	births       int
	tails        []*mBlock
	scores       mScores

	resident   map[event.Digest]*mBlock
	known      map[event.Digest]*mKnown
	lists      [bindings.MaxPriority + 2][]*mBlock // cached, by listed + 1, least recently used first
	timers     []mTimer                            // in the order in which they were set
	pins       []mPin
	now        int // tick
	nowKnown   bool
	quarantine []*mPage // in the order in which they were given up
	free       int
	sequences  []*mSequence
	holds      []*mHold
	owner      map[uint32]*mPage // pages in use, by id
	epoch      int

	pending mPending
	elastic mElastic

	streams map[bindings.DeviceStream]*mStream
	order   []bindings.DeviceStream // of creation, for deterministic walks
	own     bindings.DeviceStream   // the device's own, for copies, once it is known

	// Counters with the names of bindings.Stats.
	created, asked, matched, stored, deduplicated, evicted, resetBlocks, resets uint64
	refusedNotNow, refusedNeverFits, peakLive, partial                          uint64
	expired, evictedTTL, evictedEnded, dropped, peakPinned                      uint64
	refusedGate, reclaimed, cancelled, forked, copied                           uint64
	keptTails, partialHits, partialTokens                                       uint64
	suppressedEver, silent                                                      uint64
}

func newModel(blockSize, total, maxSequences, gate, pending int) *model {
	return &model{
		blockSize:    blockSize,
		total:        total,
		maxSequences: maxSequences,
		gate:         gate,
		pending:      mPending{blockSize: blockSize, most: pending},
		scores:       mScores{tau: 1},
		free:         total,
		elastic:      mElastic{limit: total, asked: total, done: true, out: map[uint32]bool{}},
		resident:     map[event.Digest]*mBlock{},
		known:        map[event.Digest]*mKnown{},
		owner:        map[uint32]*mPage{},
		streams:      map[bindings.DeviceStream]*mStream{},
	}
}

// ---------------------------------------------------------------------- keys

// rootKey: SHA-256 of a mask byte and each present part; a LoRA name takes the
// id's place.
func rootKey(s *bindings.Scope) event.Digest {
	var mask byte
	var parts []byte
	text := func(b []byte) {
		parts = binary.LittleEndian.AppendUint32(parts, uint32(len(b)))
		parts = append(parts, b...)
	}
	if s != nil {
		if s.LoRAID != nil && s.LoRAName == "" {
			mask |= 1
			parts = binary.LittleEndian.AppendUint64(parts, *s.LoRAID)
		}
		if s.Salt != nil {
			mask |= 2
			parts = binary.LittleEndian.AppendUint64(parts, *s.Salt)
		}
		if s.LoRAName != "" {
			mask |= 4
			text([]byte(s.LoRAName))
		}
		if s.SaltBytes != nil {
			mask |= 8
			text(s.SaltBytes)
		}
	}
	return sha256.Sum256(append([]byte{mask}, parts...))
}

// blockKey: SHA-256 of the parent's key and the tokens as u32 little-endian, or the
// digests that tokens stand for.
func blockKey(parent event.Digest, tokens []uint32) event.Digest {
	message := slices.Clone(parent[:])
	for _, t := range tokens {
		if k, ok := event.IsDigestToken(t); ok {
			digest := testDigest(uint32(k))
			message = append(message, digest[:]...)
			continue
		}
		message = binary.LittleEndian.AppendUint32(message, t)
	}
	return sha256.Sum256(message)
}

// wireHash is section 5 of the wire contract; with Bytes the first 8 bytes.
func wireHash(key event.Digest, form event.Form) uint64 {
	first := binary.BigEndian.Uint64(key[:8])
	switch form {
	case event.Unsigned64:
		return binary.BigEndian.Uint64(key[24:])
	case event.Portable63:
		if p := first >> 1; p >= 1<<32 {
			return p
		}
		return first>>1 | 1<<62
	default:
		return first
	}
}

// -------------------------------------------------------------------- device

func (m *model) reached(f mFence) bool {
	return f.stream == 0 || m.streams[f.stream].executed >= f.position
}

// usableBy: whoever works on stream may use what the fences guard, because all
// of them have been reached or are on that very stream.
func (m *model) usableBy(fences []mFence, stream bindings.DeviceStream) bool {
	for _, f := range fences {
		if !m.reached(f) && (stream == 0 || f.stream != stream) {
			return false
		}
	}
	return true
}

// record takes a fence of everything submitted to the stream so far.
func (m *model) record(stream bindings.DeviceStream) []mFence {
	if stream == 0 {
		return nil
	}
	return []mFence{{stream, m.streams[stream].submitted}}
}

func (m *model) submit(stream bindings.DeviceStream, op mOp) {
	s := m.streams[stream]
	s.queue = append(s.queue, op)
	s.submitted++
	m.passWaits()
}

func (m *model) fill(stream bindings.DeviceStream) {
	if stream != 0 { // the host's own work is done at once
		m.submit(stream, mOp{})
	}
}

func (m *model) streamWait(stream bindings.DeviceStream, fences []mFence) {
	for _, f := range fences {
		if !m.reached(f) && f.stream != stream {
			m.submit(stream, mOp{wait: true, fence: f})
		}
	}
}

// passWaits lets go of waits that have nothing to wait for: they take no time.
func (m *model) passWaits() {
	for moved := true; moved; {
		moved = false
		for _, id := range m.order {
			s := m.streams[id]
			for len(s.queue) > 0 && s.queue[0].wait && m.reached(s.queue[0].fence) {
				s.queue = s.queue[1:]
				s.executed++
				moved = true
			}
		}
	}
}

// advance executes up to max fills of a stream and what they wait for.
func (m *model) advance(stream bindings.DeviceStream, max int) int {
	ran := 0
	for ; ran < max; ran++ {
		s := m.streams[stream]
		for len(s.queue) > 0 && s.queue[0].wait {
			s = m.streams[s.queue[0].fence.stream]
		}
		if len(s.queue) == 0 {
			break
		}
		s.queue = s.queue[1:]
		s.executed++
		m.passWaits()
	}
	return ran
}

// advanceAll executes everything.
func (m *model) advanceAll() int {
	ran := 0
	for _, id := range m.order {
		ran += m.advance(id, 1<<30)
	}
	return ran
}

// --------------------------------------------------------------------- pages

// endStep ends the steps of a stream up to one.
func (m *model) endStep(stream bindings.DeviceStream, step int) {
	s := m.streams[stream]
	s.executed = max(s.executed, min(step, s.submitted))
	m.passWaits()
}

// poll frees quarantined pages whose fences have been reached.
func (m *model) poll() {
	m.quarantine = slices.DeleteFunc(m.quarantine, func(p *mPage) bool {
		if !m.usableBy(p.used, 0) {
			return false
		}
		if m.doomed(p) {
			m.elastic.out[p.id] = true
		} else {
			m.free++
		}
		return true
	})
}

// giveUp ends the life of a page without holders.
func (m *model) giveUp(p *mPage) {
	if m.owner[p.id] == p { // what a step takes and gives back is never seen
		delete(m.owner, p.id)
	}
	p.block = nil
	p.used = append(p.used, p.ready...)
	p.ready = nil
	m.quarantine = append(m.quarantine, p)
	m.poll()
}

// hold: a held block leaves the eviction list.
func (m *model) hold(p *mPage) {
	p.holders++
	if p.holders > 1 {
		return
	}
	b := p.block
	m.leave(b)
	if b.own < 0 { // its conversation has begun again
		b.own = bindings.DefaultPriority
		b.listed = max(b.listed, b.own)
		raise(b)
	}
}

// join: into the list of its priority.
func (m *model) join(b *mBlock) { m.lists[b.listed+1] = m.queue(m.lists[b.listed+1], b) }

func (m *model) leave(b *mBlock) {
	list := m.lists[b.listed+1]
	i := slices.Index(list, b)
	m.lists[b.listed+1] = slices.Delete(list, i, i+1)
}

func (m *model) cached() int {
	all := 0
	for _, list := range m.lists {
		all += len(list)
	}
	return all
}

// settle: a block without children is listed under its own priority.
func (m *model) settle(b *mBlock) {
	if b.children != 0 || b.listed == b.own {
		return
	}
	if b.page.holders == 0 {
		m.leave(b)
		defer m.join(b)
	}
	b.listed = b.own
}

// raise: the blocks before one are listed under no lower priority.
func raise(b *mBlock) {
	for above := b.parent; above != nil; above = above.parent {
		above.listed = max(above.listed, b.listed)
	}
}

func (m *model) setTimer(b *mBlock, tick int) {
	m.timers = slices.DeleteFunc(m.timers, func(t mTimer) bool { return t.block == b })
	if tick == 0 {
		return
	}
	if m.nowKnown {
		tick = max(tick, m.now+1)
	}
	m.timers = append(m.timers, mTimer{tick, b})
}

func (m *model) setPriority(b *mBlock, priority, tick int) {
	m.setTimer(b, tick)
	b.own, b.expired = priority, false
	b.listed = max(b.listed, priority)
	if b.children == 0 {
		b.listed = priority
	}
	raise(b)
}

// mRule is what is said of later blocks, from a position on.
type mRule struct{ from, priority, tick int }

// rulesBefore are those that begin before a position.
func rulesBefore(rules []mRule, position int) []mRule {
	for i, r := range rules {
		if r.from >= position {
			return rules[:i]
		}
	}
	return rules
}

// retain: ticks are those of the library's clock, 0 is never. False if too much is said of
// later blocks.
func (m *model) retain(s *mSequence, first, end, priority, tick int) bool {
	m.settleMemory()
	if s.epoch != m.epoch {
		return true
	}
	if end == bindings.ToTheEnd {
		rules := slices.Clone(rulesBefore(s.rules, first))
		if len(rules) == 16 {
			rules = rules[max(len(rulesBefore(rules, len(s.blocks)*m.blockSize+1))-1, 0):]
		}
		if len(rules) == 16 {
			return false
		}
		s.rules = append(rules, mRule{first, priority, tick})
	}
	for i := len(s.blocks) - 1; i >= 0; i-- {
		if i*m.blockSize >= first && (end == bindings.ToTheEnd || i*m.blockSize < end) {
			m.setPriority(s.blocks[i], priority, tick)
		}
	}
	return true
}

func (m *model) pinned() int {
	all := 0
	for _, pin := range m.pins {
		all += len(pin.pages)
	}
	return all
}

// pin holds a path, if no more than limit pages are pinned then.
func (m *model) pin(path []*mBlock, limit int) ([]*mPage, error) {
	m.settleMemory()
	switch {
	case len(path) > limit:
		return nil, bindings.ErrNeverFits
	case len(path)+m.pinned() > limit:
		return nil, bindings.ErrNotNow
	}
	var pages []*mPage
	for _, b := range path {
		m.hold(b.page)
		pages = append(pages, b.page)
	}
	m.notePeak()
	m.peakPinned = max(m.peakPinned, uint64(m.pinned()+len(path)))
	return pages, nil
}

func (m *model) unpin(i int) {
	m.settleMemory()
	pages := m.pins[i].pages
	m.pins = slices.Delete(m.pins, i, i+1)
	for _, p := range slices.Backward(pages) {
		m.drop(p, nil)
	}
}

// dropRoot takes the scope with this root out of the tree.
func (m *model) dropRoot(root event.Digest) (blocks []*mBlock, detached int) {
	for more := true; more; {
		more = false
		for _, b := range m.everyBlock() {
			if b.scope.root != root || b.children != 0 {
				continue
			}
			more = true
			blocks = append(blocks, b)
			if b.tail == nil {
				m.dropped++
			}
			m.evict(b)
			b.page.block = nil
			if b.page.holders == 0 {
				m.giveUp(b.page)
			} else {
				m.owner[b.page.id] = b.page
			}
		}
	}
	for _, s := range m.byPlace() {
		if s.epoch == m.epoch && s.scope.root == root {
			m.pending.end(s, 0)
		}
		switch {
		case s.epoch != m.epoch || s.scope.root != root:
		case s.suspended:
			m.strip(s)
		default:
			s.epoch = -1 // of no tree
			detached++
		}
	}
	for _, h := range m.holds {
		if q := h.sequence; q.epoch == m.epoch && q.scope.root == root {
			q.epoch = -1
		}
	}
	return blocks, detached
}

// expire returns the number of blocks whose time is up.
func (m *model) expire(tick int) int {
	m.nowKnown = true
	if tick <= m.now {
		return 0
	}
	m.now = tick
	var due []mTimer
	m.timers = slices.DeleteFunc(m.timers, func(t mTimer) bool {
		if t.tick <= tick {
			due = append(due, t)
		}
		return t.tick <= tick
	})
	slices.SortStableFunc(due, func(a, b mTimer) int { return a.tick - b.tick })
	for _, t := range due {
		t.block.own, t.block.expired = bindings.DefaultPriority, true
		m.settle(t.block)
	}
	m.expired += uint64(len(due))
	return len(due)
}

// drop: without holders, a block joins the end of the eviction list and any
// other page is given up.
func (m *model) drop(p *mPage, fences []mFence) {
	p.used = append(p.used, fences...)
	p.holders--
	switch {
	case p.holders > 0:
	case p.block != nil:
		m.join(p.block)
	default:
		m.giveUp(p)
	}
}

func (m *model) live() int {
	return m.total - m.free - len(m.quarantine) - m.cached() - len(m.elastic.out)
}

func (m *model) notePeak() { m.peakLive = max(m.peakLive, uint64(m.live())) }

// waitsFor are the fences, at most one of each stream, that work on stream has
// to wait for before it reads the pages.
func (m *model) waitsFor(pages []*mPage, stream bindings.DeviceStream) []mFence {
	latest := map[bindings.DeviceStream]int{}
	for _, p := range pages {
		for _, f := range p.ready {
			if !m.reached(f) && f.stream != stream {
				latest[f.stream] = max(latest[f.stream], f.position)
			}
		}
	}
	var waits []mFence
	for _, id := range m.order {
		if position, ok := latest[id]; ok {
			waits = append(waits, mFence{id, position})
		}
	}
	return waits
}

// ----------------------------------------------------------------- sequences

// match is the chain of resident blocks that the tokens begin with.
func (m *model) match(scope *mScope, tokens []uint32, mustCompute, backoff int) []*mBlock {
	var found []*mBlock
	key := scope.root
	for n := m.blockSize; n <= len(tokens)-leftToCompute(mustCompute); n += m.blockSize {
		key = blockKey(key, tokens[n-m.blockSize:n])
		b := m.resident[key]
		if b == nil {
			break
		}
		found = append(found, b)
	}
	found = found[:max(0, len(found)-(backoff+m.blockSize-1)/m.blockSize)]
	return found
}

func leftToCompute(mustCompute int) int {
	switch mustCompute {
	case 0:
		return 1
	case bindings.ComputeNothing:
		return 0
	}
	return mustCompute
}

// gateOpen: somebody must always get on.
func (m *model) gateOpen() bool {
	if m.gate == 1000 {
		return true
	}
	for _, s := range m.sequences {
		if !s.suspended {
			return m.live()*1000 <= m.gate*min(m.elastic.limit, m.total)
		}
	}
	return true
}

func (m *model) full() bool { return len(m.sequences)+len(m.holds) >= m.maxSequences }

// take lets a sequence hold what was found for it, or found again.
func (m *model) take(s *mSequence, found []*mBlock, used bool) {
	s.blocks = found
	for _, b := range found {
		m.hold(b.page)
		if used {
			m.use(b)
		}
		s.pages = append(s.pages, b.page)
	}
	m.notePeak()
}

// create opens a sequence (without its id) and says what was matched and what
// to wait for; nil with the reason when it is refused. A copy that is not made on the
// sequence's stream is made on the device's own, copies.
func (m *model) create(scope *mScope, p bindings.Prompt,
	copies bindings.DeviceStream) (*mSequence, mMatch, mFound, []mFence) {
	m.settleMemory()
	if m.full() {
		return nil, mMatch{err: bindings.ErrNotNow}, mFound{}, nil
	}
	computed, resident := m.computed(scope, p.Tokens, p.MustCompute)
	suspended := p.Suspended || p.Wait && computed.blocks != 0
	if !suspended && !m.gateOpen() {
		m.refusedGate++
		return nil, mMatch{err: bindings.ErrNotNow}, mFound{}, nil
	}
	found := m.match(scope, p.Tokens, p.MustCompute, p.MatchBackoff)
	matched := mMatch{tokens: len(found) * m.blockSize}
	s := &mSequence{stream: p.DeviceStream, scope: scope, epoch: m.epoch, stopBlocks: -1}
	switch {
	case p.StopBefore == bindings.StopNow:
		s.stopBlocks = 0
	case p.StopBefore > 0:
		s.stopBlocks = p.StopBefore / m.blockSize
	}
	whole := p.Tokens[:len(p.Tokens)/m.blockSize*m.blockSize]
	path, mark := []uint32(nil), p.Mark && (suspended || len(whole)/m.blockSize > len(found))
	switch {
	case mark:
		path = slices.Clone(whole)
	case suspended:
		path = slices.Clone(p.Tokens[:m.limit(p.Tokens, p.MustCompute)*m.blockSize])
	}
	if err := m.fits(path); err != nil {
		if suspended {
			return nil, mMatch{err: err}, mFound{}, nil
		}
		mark = false // is only a hint
		m.pending.unmarked += uint64(len(whole)/m.blockSize - len(found))
	}
	m.request()
	m.asked += uint64(len(p.Tokens) / m.blockSize)
	var waits []mFence
	if suspended {
		s.suspended, s.fresh, s.backoff = true, true, p.MatchBackoff
		m.suspensions++
		s.suspendedAt = m.suspensions
		s.matchBlocks, s.willMark, s.awaits = m.limit(p.Tokens, p.MustCompute), mark, p.Wait
		s.path = path
		if p.Wait && computed.blocks != 0 {
			m.pending.await(s, computed, resident)
		}
	} else {
		matched.partial = m.findPartial(scope, &p, found, copies)
		matched.tokens += matched.partial.tokens
		m.take(s, found, true)
		m.takePartial(s, &matched.partial, copies)
		s.matched, s.committed = matched.tokens, matched.tokens
		s.tokens = slices.Clone(p.Tokens[:matched.tokens])
		m.matched += uint64(len(found))
		waits = m.waitsFor(s.pages, s.stream)
		if mark {
			m.pending.promise(s, whole)
		}
	}
	m.sequences = append(m.sequences, s)
	return s, matched, computed, waits
}

type mGrow struct {
	err            error
	added, evicted int
	// NotNow: bounds of the number of pages in the way.
	leaving int
	// Blocks that went, children before parents.
	victims []*mBlock
	// The block whose page is a copy now, -1: none; of which page, and when it is done
	// if that is not on the sequence's stream.
	copied int
	from   uint32
	wait   mFence
}

// grow: a copy that is not made on the sequence's stream is made on the device's own,
// copies.
func (m *model) grow(s *mSequence, capacityTokens int, copies bindings.DeviceStream) mGrow {
	m.settleMemory()
	if s.suspended {
		return mGrow{err: bindings.ErrBadState, copied: -1}
	}
	target := (capacityTokens + m.blockSize - 1) / m.blockSize
	need := max(0, target-len(s.pages))
	shares := capacityTokens > s.committed && m.sharesTail(s)
	if shares {
		need++ // the first of them takes the place of the page that is shared
	}
	if need == 0 {
		return mGrow{copied: -1}
	}
	if target > max(m.elastic.limit, m.total-len(m.elastic.out)) {
		m.refusedNeverFits++
		return mGrow{err: bindings.ErrNeverFits, copied: -1}
	}
	m.poll()
	own := 0
	for _, p := range m.quarantine {
		if !m.doomed(p) && m.usableBy(p.used, s.stream) {
			own++
		}
	}
	demand, victims, stripped, enough := m.plan(s.stream, need-own-m.free, nil)
	if !enough && shares && m.onlyKept(s) {
		if demand, victims, stripped, enough = m.plan(s.stream, need-1-own-m.free, m.tail(s)); enough {
			need, shares = need-1, false
		}
	}
	if !enough {
		m.refusedNotNow++
		victims = m.victims(max(0, need-own-m.free), s.stream, false)
		// All that nobody holds and that cannot be had is kept by fences; what is doomed
		// does not come.
		leaving := m.staying() - m.gain(victims) - own
		for _, list := range m.lists {
			leaving += m.gain(list)
		}
		return mGrow{err: bindings.ErrNotNow, leaving: leaving, copied: -1}
	}
	var after []mFence
	possible := true
	if shares {
		after, possible = m.copyAfter(m.tail(s), s.stream, copies)
	}
	if !possible {
		return mGrow{err: bindings.ErrNotNow, copied: -1}
	}
	for _, keeper := range stripped {
		m.reclaimed += uint64(len(keeper.pages))
		m.strip(keeper)
	}
	r := mGrow{added: need, evicted: len(victims), victims: victims, copied: -1}
	// The first of all takes the place of the one that is shared. That one may have no
	// holder left, of those that were stripped, and then it can be the next.
	give := func(p *mPage) {
		if shares && r.copied < 0 {
			m.makeCopy(s, p, copies, after, &r)
			return
		}
		s.pages = append(s.pages, p)
	}
	// Pages that only this stream can use come first, those with the oldest
	// fences before the others, then free ones, then those of the victims.
	for range need - demand {
		give(m.takePage(s.stream))
	}
	for _, b := range victims {
		m.countVictim(b)
		m.evict(b)
		if m.doomed(b.page) {
			m.giveUp(b.page)
		} else {
			give(&mPage{holders: 1})
		}
	}
	m.notePeak()
	return r
}

func (m *model) countVictim(b *mBlock) {
	if b.tail == nil {
		m.evicted++
		m.scores.leaves(b.key, b.score)
	}
	if b.own < 0 {
		m.evictedEnded++
	}
	if b.expired {
		m.evictedTTL++
	}
}

// evict takes a childless cached block out of the tree.
func (m *model) evict(b *mBlock) {
	if b.children != 0 {
		panic("the model evicts a block with children")
	}
	if b.tail == nil && m.suppressed(b) {
		m.silent++
	}
	if b.page.holders == 0 {
		m.leave(b)
	}
	m.setTimer(b, 0)
	if b.tail != nil {
		m.tails = slices.DeleteFunc(m.tails, func(other *mBlock) bool { return other == b })
	} else {
		delete(m.resident, b.key)
	}
	delete(m.owner, b.page.id)
	if b.parent != nil {
		b.parent.children--
		m.settle(b.parent)
	}
}

// victims are chosen one by one: the first that may go, in the order of the
// lists, skipping what another stream's fences guard. A block whose last child
// has been chosen and that was listed for its sake joins its own list. Those in doomed
// pages do not meet the demand, unless all do.
func (m *model) victims(demand int, stream bindings.DeviceStream, all bool) []*mBlock {
	lists := m.lists
	for i := range lists {
		lists[i] = slices.Clone(lists[i])
	}
	gone := map[*mBlock]int{}
	next := func() *mBlock {
		for i, list := range lists {
			for j, b := range list {
				if b.children == gone[b] && m.usableBy(b.page.ready, stream) &&
					m.usableBy(b.page.used, stream) {
					lists[i] = slices.Delete(list, j, j+1)
					return b
				}
			}
		}
		return nil
	}
	var victims []*mBlock
	for all && len(victims) < demand || !all && m.gain(victims) < demand {
		b := next()
		if b == nil {
			break
		}
		victims = append(victims, b)
		p := b.parent
		if p == nil {
			continue
		}
		gone[p]++
		if gone[p] != p.children || p.page.holders != 0 || p.listed == p.own {
			continue
		}
		from := &lists[p.listed+1]
		i := slices.Index(*from, p)
		*from = slices.Delete(*from, i, i+1)
		lists[p.own+1] = m.queue(lists[p.own+1], p)
	}
	return victims
}

type mCommit struct {
	err                  error
	stored, deduplicated int
	firstChanged         int
	waits                []mFence
}

// commit appends tokens; with a fence the pages were filled from outside.
func (m *model) commit(s *mSequence, tokens []uint32, filled *mFence) mCommit {
	m.settleMemory()
	r := mCommit{firstChanged: -1}
	if s.suspended || s.committed+len(tokens) > len(s.pages)*m.blockSize || len(tokens) > 0 && m.sharesTail(s) {
		r.err = bindings.ErrBadState
		return r
	}
	if r.err = m.fits(tokens); r.err != nil {
		return r
	}
	s.tokens = append(s.tokens, tokens...)
	first, inTail := s.committed/m.blockSize, s.committed%m.blockSize != 0
	s.committed += len(tokens)
	if filled != nil && len(tokens) > 0 && !m.reached(*filled) {
		for i := first; i*m.blockSize < s.committed; i++ {
			s.pages[i].ready = append(s.pages[i].ready, *filled)
		}
	}
	if s.epoch != m.epoch {
		return r // detached by a reset
	}
	var replaced []*mPage
	for i := first; i < s.committed/m.blockSize; i++ {
		// Behind a block that is not reusable none can be.
		if len(s.blocks) != i || s.stopBlocks >= 0 && i >= s.stopBlocks {
			break
		}
		parentKey, parent := s.scope.root, (*mBlock)(nil)
		if i > 0 {
			parent = s.blocks[i-1]
			parentKey = parent.key
		}
		text := s.tokens[i*m.blockSize:][:m.blockSize]
		key := blockKey(parentKey, text)
		if b := m.resident[key]; b != nil {
			// Somebody else was first: theirs for ours.
			m.hold(b.page)
			m.use(b)
			ours := s.pages[i]
			s.pages[i] = b.page
			m.drop(ours, m.record(s.stream))
			s.blocks = append(s.blocks, b)
			replaced = append(replaced, b.page)
			r.deduplicated++
			if r.firstChanged < 0 {
				r.firstChanged = i
			}
			continue
		}
		b := &mBlock{key: key, parent: parent, scope: s.scope, page: s.pages[i], id: bindings.NoBlock,
			own: bindings.DefaultPriority, listed: bindings.DefaultPriority}
		b.page.block = b
		if filled == nil || i == first && inTail {
			b.page.ready = append(b.page.ready, m.record(s.stream)...)
		}
		if parent != nil {
			parent.children++
		}
		m.births++
		b.born = m.births
		b.score = m.scores.entered(key)
		m.resident[key] = b
		s.blocks = append(s.blocks, b)
		raise(b)
		m.supersede(b, text)
		m.known[key] = &mKnown{
			digest: key, parent: parentKey, isRoot: parent == nil,
			tokens: slices.Clone(text), scope: s.scope,
		}
		if m.suppressed(b) {
			m.suppressedEver++
		}
		r.stored++
	}
	levelPath(s.blocks)
	for i := len(s.blocks) - 1; i >= first; i-- {
		rules := rulesBefore(s.rules, i*m.blockSize+1)
		if len(rules) == 0 {
			break
		}
		last := rules[len(rules)-1]
		m.setPriority(s.blocks[i], last.priority, last.tick)
	}
	m.pending.commit(s)
	m.stored += uint64(r.stored)
	m.deduplicated += uint64(r.deduplicated)
	r.waits = m.waitsFor(replaced, s.stream)
	return r
}

// release closes a sequence, last block first; ended: the conversation is over.
func (m *model) release(s *mSequence, cancel, ended bool) {
	m.settleMemory()
	m.pending.end(s, 0)
	m.pending.forget(s)
	if ended && s.epoch == m.epoch && !s.suspended {
		for i := len(s.blocks) - 1; i >= 0; i-- {
			b := s.blocks[i]
			if b.page.holders != 1 || i == len(s.blocks)-1 && b.children != 0 ||
				i < len(s.blocks)-1 && b.children != 1 {
				break
			}
			m.setTimer(b, 0)
			b.own, b.listed, b.expired = -1, -1, false
		}
	}
	i := slices.Index(m.sequences, s)
	m.sequences = slices.Delete(m.sequences, i, i+1)
	fences := m.record(s.stream)
	keeps := !cancel && !ended && m.keepsTail(s)
	for i := len(s.pages) - 1; i >= 0; i-- {
		if keeps && i == len(s.blocks) {
			m.keepTail(s, fences)
		}
		m.drop(s.pages[i], fences)
	}
	tail := s.committed%m.blockSize != 0 && (!s.suspended || s.restKept)
	if s.epoch == m.epoch && tail && !cancel {
		m.partial++
	}
	if cancel {
		m.cancelled++
	}
}

// releaseHeld turns a sequence into a hold.
func (m *model) releaseHeld(s *mSequence, count int, cancel bool, id bindings.HoldID) error {
	m.settleMemory()
	if s.suspended {
		return bindings.ErrBadState
	}
	m.pending.end(s, 0)
	i := slices.Index(m.sequences, s)
	m.sequences = slices.Delete(m.sequences, i, i+1)
	m.holds = append(m.holds, &mHold{id, s, count, cancel})
	return nil
}

// releaseHold counts down; at 0 follows the release.
func (m *model) releaseHold(h *mHold) {
	m.settleMemory()
	if h.count--; h.count > 0 {
		return
	}
	i := slices.Index(m.holds, h)
	m.holds = slices.Delete(m.holds, i, i+1)
	m.sequences = append(m.sequences, h.sequence)
	m.release(h.sequence, h.cancel, false)
}

// keepers are the suspended sequences with pages, the latest first.
func (m *model) keepers() []*mSequence {
	var keepers []*mSequence
	for _, s := range m.sequences {
		if s.suspended && len(s.pages) > 0 {
			keepers = append(keepers, s)
		}
	}
	slices.SortFunc(keepers, func(a, b *mSequence) int { return b.suspendedAt - a.suspendedAt })
	return keepers
}

// strip takes away what a suspended sequence keeps.
func (m *model) strip(s *mSequence) {
	for i := len(s.pages) - 1; i >= 0; i-- {
		m.drop(s.pages[i], nil)
	}
	s.pages, s.restKept = nil, false
}

func (m *model) suspend(s *mSequence, keep bool) error {
	m.settleMemory()
	if s.suspended {
		return bindings.ErrBadState
	}
	m.pending.end(s, 0)
	linked := 0
	if s.epoch == m.epoch {
		linked = len(s.blocks)
	}
	fences := m.record(s.stream)
	var rest []*mPage
	for i := len(s.pages) - 1; i >= 0; i-- {
		if keep && i >= linked {
			s.pages[i].used = append(s.pages[i].used, fences...)
			rest = slices.Insert(rest, 0, s.pages[i])
		} else {
			m.drop(s.pages[i], fences)
		}
	}
	s.path = slices.Clone(s.tokens[:linked*m.blockSize])
	s.pages, s.blocks, s.suspended, s.restKept = rest, nil, true, keep
	m.suspensions++
	s.suspendedAt = m.suspensions
	return nil
}

type mResume struct {
	err      error
	lost     int
	computed mFound
	waits    []mFence
}

func (m *model) resume(s *mSequence) mResume {
	m.settleMemory()
	if !s.suspended {
		return mResume{err: bindings.ErrBadState}
	}
	if !m.gateOpen() {
		m.refusedGate++
		return mResume{err: bindings.ErrNotNow}
	}
	var r mResume
	prompt := s.path
	if s.fresh {
		s.path = prompt[:s.matchBlocks*m.blockSize]
		resident := 0
		r.computed, resident = m.computed(s.scope, s.path, bindings.ComputeNothing)
		if s.awaits && r.computed.blocks != 0 {
			m.pending.await(s, r.computed, resident)
			s.path, r.err = prompt, bindings.ErrNotNow
			return r
		}
		m.pending.forget(s)
	}
	var found []*mBlock
	if s.epoch == m.epoch {
		found = m.match(s.scope, s.path, bindings.ComputeNothing, s.backoff)
	}
	whole := !s.fresh && len(found)*m.blockSize == len(s.path)
	if !whole || !s.restKept {
		m.strip(s)
		before := s.committed
		s.committed = len(found) * m.blockSize
		s.tokens = slices.Clone(s.path[:s.committed])
		if !s.fresh {
			r.lost = before - s.committed
		}
	}
	rest := s.pages
	s.pages = nil
	m.take(s, found, s.fresh)
	s.pages = append(s.pages, rest...)
	if s.fresh {
		s.matched = s.committed
		m.matched += uint64(len(found))
	}
	s.matched = min(s.matched, s.committed)
	marks := s.fresh && s.willMark
	s.suspended, s.fresh, s.restKept, s.path, s.backoff = false, false, false, nil, 0
	if marks {
		m.pending.promise(s, prompt)
	}
	r.waits = m.waitsFor(s.pages, s.stream)
	return r
}

func (m *model) truncate(s *mSequence, capacityTokens int) (int, error) {
	m.settleMemory()
	if s.suspended || capacityTokens < s.committed {
		return 0, bindings.ErrBadState
	}
	target := (capacityTokens + m.blockSize - 1) / m.blockSize
	fences := m.record(s.stream)
	freed := 0
	if len(s.pages) > target {
		m.pending.end(s, target)
	}
	for ; len(s.pages) > target; freed++ {
		m.drop(s.pages[len(s.pages)-1], fences)
		s.pages = s.pages[:len(s.pages)-1]
	}
	return freed, nil
}

func (m *model) stop(s *mSequence, position int) error {
	m.settleMemory()
	if s.suspended {
		return bindings.ErrBadState
	}
	if at := position / m.blockSize; s.stopBlocks < 0 || at < s.stopBlocks {
		s.stopBlocks = at
	}
	m.pending.end(s, s.stopBlocks)
	return nil
}

// reset empties the tree and detaches the open sequences.
func (m *model) reset() {
	m.resets++
	m.resetBlocks += uint64(len(m.resident))
	for _, s := range m.byPlace() {
		m.pending.end(s, 0)
	}
	// Suspended sequences go on in the new tree, without what they kept.
	for _, s := range m.sequences {
		if s.suspended && s.epoch == m.epoch {
			s.epoch++
			m.strip(s)
		}
	}
	m.epoch++
	for i, list := range m.lists {
		for _, b := range list {
			m.giveUp(b.page)
		}
		m.lists[i] = nil
	}
	m.timers = nil
	for _, b := range m.resident {
		b.page.block = nil
		if m.suppressed(b) {
			m.silent++
		}
	}
	clear(m.resident)
	m.tails = nil
}

// roots is the number of scopes with blocks or attached sequences.
func (m *model) roots() int {
	scopes := map[event.Digest]bool{}
	for _, b := range m.everyBlock() {
		scopes[b.scope.root] = true
	}
	for _, s := range m.sequences {
		if s.epoch == m.epoch {
			scopes[s.scope.root] = true
		}
	}
	for _, h := range m.holds {
		if h.sequence.epoch == m.epoch {
			scopes[h.sequence.scope.root] = true
		}
	}
	return len(scopes)
}
