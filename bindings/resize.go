// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// PageMove is a block, or what a suspended sequence keeps, that a shrink gave another page.
type PageMove struct {
	From, To uint32
	// Tokens to be copied: TokensPerBlock, or fewer with Config.PartialReuse.
	Tokens int
}

// ResizeResult says how far a pool is on its way to its target.
type ResizeResult struct {
	TargetPages int
	// TotalPages as in Stats: those with memory that may be used or is being given back.
	TotalPages int
	// GrowingPages were asked of the device and are not there yet.
	GrowingPages int
	// DoomedPages are at or above the target and have not been withdrawn yet. HeldPages of
	// them are not cleared by more calls alone: others hold them, or there is no page that
	// they could move to, or what still writes them stands in the way. Exact below 65,536
	// doomed pages and 8,192 kept ones.
	DoomedPages, HeldPages int
	// LeavingPages have been withdrawn; the device has not taken their memory back yet.
	LeavingPages int
	// MovedPages and EvictedBlocks by this call.
	MovedPages, EvictedBlocks int
	// Moves and Evicted are these, in the caller's memory, if there was any.
	Moves   []PageMove
	Evicted []EvictedBlock
	// Copied has been reached when all Moves of this call have been copied; Stream 0 if the
	// device copies nothing.
	Copied Fence
	// Done: TotalPages is TargetPages, and nothing is on its way.
	Done bool
}

// Resize grows or shrinks an elastic pool (Config.MaxBlocks) to target pages, MinBlocks to
// MaxBlocks, as far as can be at once; it never waits, and no memory is mapped or unmapped
// on the caller's thread. Pages keep their ids and addresses.
//
// New pages join the free ones in later calls, when the device has memory for them (the
// host device: when it is advanced). If it has not enough, those stay that could be had,
// the target goes back to that, and the call that finds it, or the next one that asks for
// more pages than there are, is ErrOutOfMemory, once, with a result. On a GPU without
// virtual memory management (CUDADevice.VirtualMemory) there is memory for CapacityBlocks
// pages, for good: below that Resize keeps the books, beyond it finds not enough.
//
// When the pool shrinks, no new allocation takes a page at or above the target; cached
// blocks there move to free pages below it, or blocks are evicted where there is no room.
// One call moves and evicts at most maxPages pages together; so whoever shrinks calls
// again, say once a step, until Done. Live pages stay until they are released: a table never
// changes by it. What moves and evicted have room for bounds a call as well; nil: not wanted.
// Without PageBytes moves is needed: the engine copies what Moves says before
// anything that it does with pages of later calls.
func (m *Manager) Resize(target, maxPages int, moves []PageMove,
	evicted []EvictedBlock) (ResizeResult, error) {
	op := opResize
	if target < 0 || target > math.MaxUint32 || maxPages < 0 || maxPages > math.MaxUint32 {
		return ResizeResult{}, argumentError(op.name, "target is %d, maxPages %d", target, maxPages)
	}
	if err := m.enter(op.name); err != nil {
		return ResizeResult{}, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	// Never without memory: to the core that means that there is no bound.
	sc.moves = sized(sc.moves, max(1, min(len(moves), maxPages)))
	sc.evicted = sized(sc.evicted, max(1, min(len(evicted), maxPages)))
	moved, told := sc.moves[:min(len(moves), maxPages)], sc.evicted[:min(len(evicted), maxPages)]
	if moves == nil {
		moved = nil
	}
	if evicted == nil {
		told = nil
	}
	raw := &sc.resized
	*raw = cgo.ResizeResult{}
	s := m.raw.PoolResize(uint32(target), uint32(maxPages), moved, told, raw, &sc.err)
	r := ResizeResult{
		TargetPages:  int(raw.TargetPages),
		TotalPages:   int(raw.TotalPages),
		GrowingPages: int(raw.GrowingPages),
		DoomedPages:  int(raw.DoomedPages),
		HeldPages:    int(raw.HeldPages),
		LeavingPages: int(raw.LeavingPages),

		MovedPages:    int(raw.MovedPages),
		EvictedBlocks: int(raw.EvictedBlocks),
		Copied:        Fence{DeviceStream(raw.Copied.DeviceStream), raw.Copied.Position},
		Done:          raw.Done != 0,
	}
	if moves != nil {
		r.Moves = moves[:r.MovedPages]
		for i := range r.Moves {
			r.Moves[i] = PageMove{From: moved[i].From, To: moved[i].To, Tokens: int(moved[i].Tokens)}
		}
	}
	if evicted != nil {
		r.Evicted = evictedBlocks(evicted, told[:r.EvictedBlocks])
	}
	if s != cgo.OK {
		return r, callError(op.name, s, &sc.err)
	}
	return r, nil
}
