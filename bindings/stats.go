// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"sync/atomic"
	"time"

	"github.com/kvcast/kvcast/cgo"
)

// Stats are a manager's pages at one instant and its counts since it was made.
// Always LivePages + CachedPages + FreePages + QuarantinedPages + LeavingPages
// == TotalPages, also while the pool is resized.
type Stats struct {
	TotalPages       uint64
	LivePages        uint64 // held by open sequences
	CachedPages      uint64 // reusable, held by nobody: what can be evicted
	FreePages        uint64
	QuarantinedPages uint64 // given up, fence not reached yet
	LeavingPages     uint64 // withdrawn by a shrink, their memory not given back yet
	PeakLivePages    uint64

	Blocks    uint64 // in the tree
	Roots     uint64 // scopes in the tree
	Sequences uint64 // open
	// SuspendedSequences of the open ones, and the pages in their keeping.
	SuspendedSequences uint64
	KeptPages          uint64
	// Holds of released sequences that have not ended, and the pages in them.
	Holds     uint64
	HeldPages uint64

	CreatedSequences   uint64
	AskedBlocks        uint64 // full blocks of the prompts given to Create
	MatchedBlocks      uint64 // of those, found
	StoredBlocks       uint64 // blocks that entered the tree
	DeduplicatedBlocks uint64
	EvictedBlocks      uint64
	EvictedTTLBlocks   uint64 // of those: the time of a higher priority was up
	EvictedEndedBlocks uint64 // of those: the conversation was over
	ExpiredBlocks      uint64 // returned to the default priority
	DroppedBlocks      uint64 // that DropScopes took out of the tree

	Pins                 uint64
	PinnedPages          uint64 // a page counts once for each of its pins; they are live
	PeakPinnedPages      uint64
	PeakQuarantinedPages uint64

	ResetBlocks        uint64 // blocks that resets took out of the tree
	Resets             uint64
	RefusedNotNow      uint64 // grow items
	RefusedNeverFits   uint64
	RefusedGate        uint64 // sequences that the gate did not let become active
	ReclaimedPages     uint64 // kept pages that others needed
	CancelledSequences uint64

	ForkedSequences uint64

	Digests uint64 // different multimodal digests in use

	CopiedPages uint64 // inside the pool: tails of forks, PartialHits and MovedPages
	CopiedBytes uint64 // of these, by the device; 0 where the engine has the memory

	// MarkedBlocks == CommittedMarks + GivenUpMarks + PendingBlocks.
	PendingBlocks    uint64 // marked at this instant
	WaitingSequences uint64 // whose wait is not over
	MarkedBlocks     uint64
	CommittedMarks   uint64
	GivenUpMarks     uint64
	UnmarkedBlocks   uint64 // that were to be marked and found no room
	Waits            uint64 // begun
	// Config.PartialReuse: tails in the tree at this instant (not among Blocks), those that
	// entered it, sequences that matched tokens behind the last whole block, and these.
	PartialBlocks, KeptPartialBlocks, PartialHits, PartialHitTokens uint64

	// TargetPages is what Manager.Resize was told last, CapacityBlocks before. DoomedPages
	// are live, cached or quarantined at or above it.
	TargetPages, DoomedPages uint64
	MovedPages               uint64 // blocks that a shrink gave another page
	Resizes                  uint64 // changes of TargetPages
	FailedResizes            uint64 // growths that did not come to their end
	MappedBytes              uint64 // of memory behind pages; 0 without PageBytes
	// UnreturnedBytes were given up by a shrink, and the driver refused when they were to be
	// unmapped or taken back. Each later call that uses the GPU has it tried again.
	UnreturnedBytes uint64

	MetadataBytes uint64        // host memory of arenas and tables
	Prefault      time.Duration // what touching them took when the manager was made
}

// Stats reads them. It does not ask a GPU which fences have been reached: FencesReached does.
func (m *Manager) Stats() (Stats, error) {
	const op = "stats"
	if err := m.enter(op); err != nil {
		return Stats{}, err
	}
	defer m.leave()
	var raw cgo.Stats
	var e cgo.Error
	raw.Init()
	if s := m.raw.Stats(&raw, &e); s != cgo.OK {
		return Stats{}, callError(op, s, &e)
	}
	return Stats{
		TotalPages:         raw.TotalPages,
		LivePages:          raw.LivePages,
		CachedPages:        raw.CachedPages,
		FreePages:          raw.FreePages,
		QuarantinedPages:   raw.QuarantinedPages,
		LeavingPages:       raw.LeavingPages,
		PeakLivePages:      raw.PeakLivePages,
		Blocks:             raw.Blocks,
		Roots:              raw.Roots,
		Sequences:          raw.Sequences,
		CreatedSequences:   raw.CreatedSequences,
		AskedBlocks:        raw.AskedBlocks,
		MatchedBlocks:      raw.MatchedBlocks,
		StoredBlocks:       raw.StoredBlocks,
		DeduplicatedBlocks: raw.DeduplicatedBlocks,
		EvictedBlocks:      raw.EvictedBlocks,
		EvictedTTLBlocks:   raw.EvictedTTLBlocks,
		EvictedEndedBlocks: raw.EvictedEndedBlocks,
		ExpiredBlocks:      raw.ExpiredBlocks,
		DroppedBlocks:      raw.DroppedBlocks,

		Pins:                 raw.Pins,
		PinnedPages:          raw.PinnedPages,
		PeakPinnedPages:      raw.PeakPinnedPages,
		PeakQuarantinedPages: raw.PeakQuarantinedPages,

		ResetBlocks:        raw.ResetBlocks,
		Resets:             raw.Resets,
		RefusedNotNow:      raw.RefusedNotNow,
		RefusedNeverFits:   raw.RefusedNeverFits,
		SuspendedSequences: raw.SuspendedSequences,
		KeptPages:          raw.KeptPages,
		Holds:              raw.Holds,
		HeldPages:          raw.HeldPages,
		RefusedGate:        raw.RefusedGate,
		ReclaimedPages:     raw.ReclaimedPages,
		CancelledSequences: raw.CancelledSequences,
		ForkedSequences:    raw.ForkedSequences,
		Digests:            raw.Digests,
		CopiedPages:        raw.CopiedPages,
		CopiedBytes:        raw.CopiedBytes,

		PendingBlocks:     raw.PendingBlocks,
		WaitingSequences:  raw.WaitingSequences,
		MarkedBlocks:      raw.MarkedBlocks,
		CommittedMarks:    raw.CommittedMarks,
		GivenUpMarks:      raw.GivenUpMarks,
		UnmarkedBlocks:    raw.UnmarkedBlocks,
		PartialBlocks:     raw.PartialBlocks,
		KeptPartialBlocks: raw.KeptPartialBlocks,
		PartialHits:       raw.PartialHits,
		PartialHitTokens:  raw.PartialHitTokens,
		TargetPages:       raw.TargetPages,
		DoomedPages:       raw.DoomedPages,
		MovedPages:        raw.MovedPages,
		Resizes:           raw.Resizes,
		FailedResizes:     raw.FailedResizes,
		MappedBytes:       raw.MappedBytes,
		UnreturnedBytes:   raw.UnreturnedBytes,
		Waits:             raw.Waits,

		MetadataBytes: raw.MetadataBytes,
		Prefault:      time.Duration(raw.PrefaultNs),
	}, nil
}

// HistogramSlots is the number of slots of a histogram.
const HistogramSlots = cgo.HistogramSlots

// Histogram counts by powers of two: slot 0 is of the value 0, slot k of 2^(k-1)
// to 2^k - 1, the last one of all above.
type Histogram [HistogramSlots]uint64

// Histograms say how old blocks get. Time is counted in requests (sequences
// created).
type Histograms struct {
	// IdleAtReuse: how long ago the page was let go, of blocks found while nobody
	// held them.
	IdleAtReuse Histogram
	// IdleAtEviction: the same, of blocks evicted for their pages.
	IdleAtEviction Histogram
	// ReusesAtEviction: of these, how often they had been found.
	ReusesAtEviction Histogram
}

// Histograms reads them.
func (m *Manager) Histograms() (Histograms, error) {
	const op = "histograms"
	if err := m.enter(op); err != nil {
		return Histograms{}, err
	}
	defer m.leave()
	var raw cgo.Histograms
	var e cgo.Error
	raw.Init()
	if s := m.raw.Histograms(&raw, &e); s != cgo.OK {
		return Histograms{}, callError(op, s, &e)
	}
	return Histograms{raw.IdleAtReuse, raw.IdleAtEviction, raw.ReusesAtEviction}, nil
}

// StreamStats are a stream's counters. Always DeferredBlocks == HealedBlocks +
// DeferredEvictedBlocks + PendingBlocks and AnnouncedBlocks == StoredBlocks -
// RemovedBlocks - ClearedBlocks. Each value is exact; as a set they are exact
// when the manager is not running.
type StreamStats struct {
	Attached bool // a manager writes the stream

	StoredBlocks            uint64 // recorded as stored, healed ones included
	RemovedBlocks           uint64 // recorded as removed
	ClearedBlocks           uint64 // announced blocks that a clear ended
	Clears                  uint64
	DroppedEvents           uint64 // stores that did not fit or whose parent was unannounced
	DeferredBlocks          uint64 // of those: to be announced later
	HealedBlocks            uint64 // deferred, later announced
	DeferredEvictedBlocks   uint64 // deferred, gone before they could be announced
	PendingBlocks           uint64 // deferred at this instant
	UnannouncedRemovals     uint64 // blocks that went without having been announced
	PartialBlocksSuppressed uint64 // partly filled last blocks of released sequences
	AnnouncedBlocks         uint64 // announced at this instant
	HashCollisions          uint64 // announced blocks whose 64-bit wire hash was taken
	SupersededRecords       uint64 // skipped because a clear followed
	DrainedBatches          uint64 // non-empty ones
	DrainedEvents           uint64
	DrainedStoredBlocks     uint64
	DrainedRemovedBlocks    uint64
	MirrorBlocks            uint64
	BufferBytes             uint64 // size of the record buffer
	BufferUsedBytes         uint64 // of that, waiting for the drainer

	MultimodalBlocksSuppressed uint64 // stored, but not told of: SuppressMultimodal
	SuppressedBlocks           uint64 // such blocks in the tree at this instant
	// OldestDeferred is how long the oldest of PendingBlocks has waited; 0 if none has.
	OldestDeferred time.Duration

	// RemovedBlocks by reason (EvictedReason); always their sum.
	RemovedCapacityBlocks, RemovedTTLBlocks, RemovedEndedBlocks, RemovedScopeBlocks uint64
}

// Stats reads them; it may run beside Drain.
func (s *Stream) Stats() (StreamStats, error) {
	const op = "stream stats"
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return StreamStats{}, closedError(op)
	}
	var raw cgo.StreamStats
	var e cgo.Error
	raw.Init()
	if status := s.raw.Stats(&raw, &e); status != cgo.OK {
		return StreamStats{}, callError(op, status, &e)
	}
	return StreamStats{
		Attached:                   raw.Attached != 0,
		StoredBlocks:               raw.StoredBlocks,
		RemovedBlocks:              raw.RemovedBlocks,
		ClearedBlocks:              raw.ClearedBlocks,
		Clears:                     raw.Clears,
		DroppedEvents:              raw.DroppedEvents,
		DeferredBlocks:             raw.DeferredBlocks,
		HealedBlocks:               raw.HealedBlocks,
		DeferredEvictedBlocks:      raw.DeferredEvictedBlocks,
		PendingBlocks:              raw.PendingBlocks,
		UnannouncedRemovals:        raw.UnannouncedRemovals,
		PartialBlocksSuppressed:    raw.PartialBlocksSuppressed,
		AnnouncedBlocks:            raw.AnnouncedBlocks,
		HashCollisions:             raw.HashCollisions,
		SupersededRecords:          raw.SupersededRecords,
		DrainedBatches:             raw.DrainedBatches,
		DrainedEvents:              raw.DrainedEvents,
		DrainedStoredBlocks:        raw.DrainedStoredBlocks,
		DrainedRemovedBlocks:       raw.DrainedRemovedBlocks,
		MirrorBlocks:               raw.MirrorBlocks,
		BufferBytes:                raw.BufferBytes,
		BufferUsedBytes:            raw.BufferUsedBytes,
		MultimodalBlocksSuppressed: raw.MultimodalBlocksSuppressed,
		SuppressedBlocks:           raw.SuppressedBlocks,
		OldestDeferred:             time.Duration(raw.OldestDeferredNs),
		RemovedCapacityBlocks:      raw.RemovedCapacityBlocks,
		RemovedTTLBlocks:           raw.RemovedTTLBlocks,
		RemovedEndedBlocks:         raw.RemovedEndedBlocks,
		RemovedScopeBlocks:         raw.RemovedScopeBlocks,
	}, nil
}

// Handles counts what is alive in the process and what was lost.
type Handles struct {
	Managers, Sequences, Streams, Snapshots uint64
	// Managers, streams and snapshots that were garbage collected without Close.
	// Their native memory is still in use.
	LeakedManagers, LeakedStreams, LeakedSnapshots uint64
}

// Counted by cleanups only, for the whole process like the native counters.
var leakedManagers, leakedStreams, leakedSnapshots atomic.Uint64

// LiveHandles reads the counters. All are zero at the end of a clean program.
func LiveHandles() Handles {
	live := cgo.GetLiveHandles()
	return Handles{
		Managers:        live.Managers,
		Sequences:       live.Sequences,
		Streams:         live.Streams,
		Snapshots:       live.Snapshots,
		LeakedManagers:  leakedManagers.Load(),
		LeakedStreams:   leakedStreams.Load(),
		LeakedSnapshots: leakedSnapshots.Load(),
	}
}
