// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"time"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cgo"
)

// Priorities of blocks are 0 to MaxPriority, larger ones being kept longer.
const (
	DefaultPriority = cgo.DefaultPriority
	MaxPriority     = cgo.MaxPriority
)

// BlockID names a block of one manager's tree. It carries a generation, so no
// two blocks ever have the same one.
type BlockID uint64

// NoBlock stands where there is no block, such as before a prompt's first.
const NoBlock = BlockID(cgo.NoBlockID)

// EvictedReason says why a block left the tree; the one of package event.
type EvictedReason = event.EvictedReason

// The reasons.
const (
	// EvictedCapacity: its page was needed.
	EvictedCapacity = event.EvictedCapacity
	// EvictedTTL: so, and the time of a higher priority was up.
	EvictedTTL = event.EvictedTTL
	// EvictedEnded: so, and its conversation was over.
	EvictedEnded = event.EvictedEnded
	// EvictedScope: its scope was dropped.
	EvictedScope = event.EvictedScope
)

// Package event knows no cgo, so its numbers are written down a second time.
var (
	_ [0]struct{} = [EvictedCapacity - cgo.EvictedCapacity]struct{}{}
	_ [0]struct{} = [EvictedTTL - cgo.EvictedTTL]struct{}{}
	_ [0]struct{} = [EvictedEnded - cgo.EvictedEnded]struct{}{}
	_ [0]struct{} = [EvictedScope - cgo.EvictedScope]struct{}{}
)

// EvictedBlock is a block that left the tree.
type EvictedBlock struct {
	Block BlockID
	// Parent is the block before it, NoBlock if it was a prompt's first.
	Parent BlockID
	// Page held it; whoever evicted it has it now.
	Page   uint32
	Reason EvictedReason
	// Copies hold its content still, over all tiers: 0 with one tier.
	Copies int
	// Announced says that the stream had told of the block and tells of its
	// removal.
	Announced bool
	// Priority was its own; 0 if its conversation was over.
	Priority int
}

// BlockResidency is a block of a prompt that is resident.
type BlockResidency struct {
	Block BlockID
	// Copies hold its content, over all tiers: 1 with one tier.
	Copies int
	// Announced says that the stream has told of the block.
	Announced bool
	// Held says that somebody holds the block, so that it cannot be evicted.
	Held bool
}

// Residency appends the resident blocks of a prompt to dst, from the first one
// on. What is not found is not resident, nor is any block after it. Like Probe
// it changes nothing and is a hint.
func (m *Manager) Residency(p Prompt, dst []BlockResidency) ([]BlockResidency, error) {
	op := opResidency
	if err := m.enter(op.name); err != nil {
		return dst, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	prompts := [1]Prompt{p}
	tokens, err := sc.flatten(op.name, prompts[:])
	if err != nil {
		return dst, err
	}
	sc.residency = sized(sc.residency, len(p.Tokens)/m.block)
	var results [1]cgo.ResidencyResult
	s := m.raw.Residency(sc.prompts, tokens, sc.scopes, sc.bytes, sc.residency, results[:], &sc.err)
	if s != cgo.OK {
		return dst, callError(op.name, s, &sc.err)
	}
	if err := op.item(results[0].Status); err != nil {
		return dst, err
	}
	for _, b := range sc.residency[:results[0].ResidentBlocks] {
		dst = append(dst, BlockResidency{
			Block:     BlockID(b.Block),
			Copies:    int(b.Copies),
			Announced: b.Flags&cgo.BlockAnnounced != 0,
			Held:      b.Flags&cgo.BlockHeld != 0,
		})
	}
	return dst, nil
}

// evictedBlocks turns what a call told into dst, which is at least as long.
func evictedBlocks(dst []EvictedBlock, raw []cgo.EvictedBlock) []EvictedBlock {
	for i := range raw {
		b := &raw[i]
		dst[i] = EvictedBlock{
			Block:     BlockID(b.Block),
			Parent:    BlockID(b.Parent),
			Page:      b.Page,
			Reason:    EvictedReason(b.Reason),
			Copies:    int(b.Copies),
			Announced: b.Announced != 0,
			Priority:  int(b.Priority),
		}
	}
	return dst[:len(raw)]
}

// ToTheEnd as RetainItem.EndToken takes in blocks that are committed later.
const ToTheEnd = -1

// RetainItem says how long blocks of an open sequence are worth keeping.
type RetainItem struct {
	Sequence SequenceID
	// FirstToken and EndToken bound the blocks by their first tokens, EndToken
	// being at most what is committed or ToTheEnd.
	FirstToken, EndToken int
	// Priority is 0 to MaxPriority. A block is evicted only after its children, so
	// that it counts as much as the largest of them.
	Priority int
	// Expires is when the blocks return to the default priority, on the clock
	// that Expire is told; 0: never. It needs a priority above the default.
	Expires time.Duration
}

func (it *RetainItem) raw() (raw cgo.RetainItem, ok bool) {
	if it.FirstToken < 0 || it.EndToken < ToTheEnd || it.Expires < 0 ||
		it.Priority < 0 || it.Priority > MaxPriority {
		return raw, false
	}
	raw = cgo.RetainItem{
		Sequence:   uint64(it.Sequence),
		FirstToken: uint64(it.FirstToken),
		EndToken:   uint64(it.EndToken),
		ExpiresNs:  uint64(it.Expires),
		Priority:   uint32(it.Priority),
	}
	if it.EndToken == ToTheEnd {
		raw.EndToken = cgo.ToTheEnd
	}
	return raw, true
}

// Retain sets priorities. The last word counts, whoever shares a block. errs[i]
// is nil, ErrInvalidArgument, ErrBadState (the range ends beyond what is
// committed), ErrNotNow (16 ranges to the end that begin before this one are still
// ahead), ErrStaleHandle or ErrOutOfMemory; errs must be at least as long as items.
func (m *Manager) Retain(items []RetainItem, errs []error) error {
	op := opRetain
	if err := checkCounts(op.name, len(items), len(errs)); err != nil {
		return err
	}
	if err := m.enter(op.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.retain, sc.status = sized(sc.retain, len(items)), sized(sc.status, len(items))
	for i := range items {
		it := &items[i]
		raw, ok := it.raw()
		if !ok {
			return argumentError(op.name, "item %d: tokens %d to %d, priority %d, expires %d", i,
				it.FirstToken, it.EndToken, it.Priority, it.Expires)
		}
		sc.retain[i] = raw
	}
	if s := m.raw.SequencesRetain(sc.retain, sc.status, &sc.err); s != cgo.OK {
		return callError(op.name, s, &sc.err)
	}
	for i, s := range sc.status {
		errs[i] = op.item(s)
	}
	return nil
}

// End is Release for conversations that are over: the last blocks of a sequence
// that nobody else holds and that nothing else is built on go before all others
// when pages are short. If the conversation does go on, a match gives its blocks
// the default priority again.
func (m *Manager) End(ids []SequenceID, errs []error) error {
	return m.byID(opEnd, ids, errs, cgo.Manager.SequencesEnd)
}

// Expire tells the manager the time: blocks whose time is up return to the
// default priority. The manager has no clock of its own; now is on the one that
// RetainItem.Expires is on. A block is due at its time or up to 134 ms before it. Expire
// looks at no more than maxBlocks blocks (0: no limit) and says how many returned, and
// whether there may be more.
func (m *Manager) Expire(now time.Duration, maxBlocks int) (expired int, more bool, err error) {
	const op = "expire"
	if now < 0 || maxBlocks < 0 {
		return 0, false, argumentError(op, "now is %d, maxBlocks %d", now, maxBlocks)
	}
	if err := m.enter(op); err != nil {
		return 0, false, err
	}
	defer m.leave()
	var e cgo.Error
	n, more, s := m.raw.Expire(uint64(now), size32(maxBlocks), &e)
	if s != cgo.OK {
		return 0, false, callError(op, s, &e)
	}
	return int(n), more, nil
}
