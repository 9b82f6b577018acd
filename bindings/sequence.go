// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// SequenceID names a sequence of one manager. Ids carry a generation: one that
// was released is ErrStaleHandle, never another sequence.
type SequenceID uint64

// Scope is what must be equal for reuse besides the tokens. An absent part
// differs from a zero one.
type Scope struct {
	// LoRAID is below 2^63; nil: none.
	LoRAID *uint64
	// Salt separates tenants; nil: none. It never goes on the wire.
	Salt *uint64
	// LoRAName is UTF-8 of at most 255 bytes; "": none. It takes the id's place
	// in the block keys, so that the order in which adapters are loaded does
	// not change them.
	LoRAName string
	// SaltBytes is a salt of 1..255 bytes; nil: none. It never goes on the wire.
	SaltBytes []byte
}

// ComputeNothing as Prompt.MustCompute lets a match take the whole prompt.
const ComputeNothing = -1

// Prompt asks for a sequence.
type Prompt struct {
	// Tokens of the prompt, each below 2^31 or a DigestToken. They are read during
	// the call only.
	Tokens []uint32
	// Digests of multimodal items: DigestToken(i) among Tokens stands for
	// Digests[i]. Equal digests are equal tokens, whatever their places here; in a
	// block's key a digest contributes its 32 bytes. A prompt with a digest that no
	// block has matches up to the block before.
	Digests []Digest
	// Scope of the sequence; nil is the empty scope.
	Scope *Scope
	// MustCompute tokens at the end are left to compute even if they are found,
	// since a model needs at least one to go on. 0 is the default, 1; with
	// ComputeNothing a full hit may leave nothing.
	MustCompute int
	// DeviceStream is where the sequence's kernels will run; 0: none.
	DeviceStream DeviceStream
	// MatchBackoff tokens at the end of each match are left out, and with them
	// their blocks: for drafts that need the last ones computed anew.
	MatchBackoff int
	// Suspended lets the sequence begin suspended: it holds nothing until Resume
	// matches the prompt, and the gate does not stop it.
	Suspended bool
	// StopBefore is a position: no block that holds the token there (counted
	// from 0) or a later one is made reusable by the sequence. 0: no limit;
	// StopNow: no block at all.
	StopBefore int
	// Mark says that the sequence will compute and commit the whole blocks behind
	// its match: whoever asks for them meanwhile is told (PendingTokens).
	Mark bool
	// Wait lets the sequence begin suspended if an older one has marked the block
	// behind its match: PendingTokens is not 0 then. Resume it when Step.Waiters or
	// Manager.TakeWaiters names it. Without such a mark it is active.
	Wait bool
}

// CreateResult is what became of one prompt.
type CreateResult struct {
	// Err is nil, ErrInvalidArgument, ErrNotNow (MaxSequences are open, or
	// the gate of Config.ResumeGatePermille is closed), ErrStaleHandle (the
	// device stream), ErrDevice (a copy could not be queued) or ErrOutOfMemory; then
	// the rest is zero.
	Err error
	// Sequence is the view of the new sequence.
	Sequence Sequence
	// MatchedTokens were found: whole blocks that the sequence now holds and
	// that count as committed; with Config.PartialReuse also tokens behind these. With
	// Prompt.Suspended: what Resume would find now.
	MatchedTokens int
	// CopiedTokens, with Config.PartialReuse, are the last of MatchedTokens: those of a
	// block that is partly filled or partly in common, copied from the page CopiedFrom to
	// the sequence's last one, CopiedTo. Else 0. Who copies: see GrowResult.CopiedBlock.
	CopiedTokens         int
	CopiedFrom, CopiedTo uint32
	// PendingTokens behind what is resident are being computed by an older
	// sequence, PendingSequence: whole blocks, as far as a match could use them.
	PendingTokens   int
	PendingSequence SequenceID
	// Waits are fences that the sequence's device stream must wait for before
	// it reads the pages. The slice's memory is reused if the result is.
	Waits []Fence
}

// ProbeResult is what Create would find.
type ProbeResult struct {
	Err           error
	MatchedTokens int
	PendingTokens int // as in CreateResult
}

// GrowItem asks for room.
type GrowItem struct {
	Sequence SequenceID
	// CapacityTokens is the room the sequence must have; less than it has
	// changes nothing.
	CapacityTokens int
}

// GrowResult is what became of one GrowItem.
type GrowResult struct {
	// Err is nil, ErrNeverFits, ErrNotNow, ErrStaleHandle, ErrDevice (Poison: a
	// page was written after it had been given up; or a copy could not be queued) or
	// ErrOutOfMemory; with any of them nothing was evicted for the item.
	Err           error
	AddedPages    int
	EvictedBlocks int
	// LeavingPages, with ErrNotNow: pages that nobody holds, but that fences keep
	// from this sequence's stream, directly or through a block built on theirs; not
	// those that a shrink takes.
	LeavingPages int
	// FirstEvicted is where the item's evicted blocks begin in what GrowTold
	// returns; -1 if nothing was evicted or there was no room to tell it.
	FirstEvicted int
	// CopiedBlock is the block whose page was shared with a fork and is a copy now;
	// -1 if there is none, and then what follows is zero. The page that was shared is
	// CopiedFrom, the sequence's own now CopiedTo; they have the first CopiedTokens
	// tokens in common. Pages without memory (Config.PageBytes 0) are copied by the
	// engine, before anything else that it does with pages of later calls.
	CopiedBlock          int
	CopiedFrom, CopiedTo uint32
	CopiedTokens         int
	// Wait, if its Stream is not 0, is to be waited for before the copy is
	// used: it was not made on the sequence's own device stream.
	Wait Fence
}

// CommitItem appends tokens to a sequence.
type CommitItem struct {
	Sequence SequenceID
	// Tokens are read during the call only.
	Tokens []uint32
	// Filled, if not nil: the pages were filled from outside, by a transfer say,
	// and are ready at this fence, not where the sequence's device stream
	// stands. A fence of stream 0: they are ready now. It must come after all that
	// this stream has been given to write into them.
	Filled *Fence
	// Digests are what digest tokens among Tokens stand for, as in Prompt.
	Digests []Digest
}

// CommitResult is what became of one CommitItem.
type CommitResult struct {
	// Err is nil, ErrBadState (more than the capacity), ErrStaleHandle or
	// ErrInvalidArgument; then nothing changed.
	Err error
	// StoredBlocks are new in the tree.
	StoredBlocks int
	// DeduplicatedBlocks were there already; the sequence's page was given back
	// for theirs.
	DeduplicatedBlocks int
	// FirstChangedBlock is the lowest block whose page changed, -1 if none did.
	FirstChangedBlock int
	// CommittedTokens in all, the partly filled tail included.
	CommittedTokens int
	// Waits are the fences of the pages that took our pages' place. The slice's
	// memory is reused if the result is.
	Waits []Fence
}

// Create opens sequences: it matches the prompts against the tree and holds
// what it finds. It takes no page from the pool, but for one with
// Config.PartialReuse. out must be at least as long as prompts. If a GPU refuses a copy
// that Create has promised, it is ErrDevice, and sequences that out names have been
// opened all the same: release them before the manager is closed.
func (m *Manager) Create(prompts []Prompt, out []CreateResult) error {
	if err := checkCounts(opCreate.name, len(prompts), len(out)); err != nil {
		return err
	}
	if err := m.enter(opCreate.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	tokens, err := sc.flatten(opCreate.name, prompts)
	if err != nil {
		return err
	}
	sc.created = sized(sc.created, len(prompts))
	clear(sc.created) // as a failed call leaves them, unless it has opened sequences
	s := m.raw.SequencesCreate(sc.prompts, tokens, sc.scopes, sc.bytes, sc.created, &sc.err)
	if s == cgo.DeviceError {
		err = callError(opCreate.name, s, &sc.err)
	} else if s != cgo.OK {
		return callError(opCreate.name, s, &sc.err)
	}
	m.tellCreated(sc, out, err)
	return err
}

// tellCreated turns the results of a create into Go's. After a call that has failed,
// with err, those tell of sequences that name one.
func (m *Manager) tellCreated(sc *scratch, out []CreateResult, err error) {
	for i := range sc.created {
		r, o := &sc.created[i], &out[i]
		o.Waits = o.Waits[:0]
		o.Err = opCreate.item(r.Status)
		if o.Err == nil && r.Sequence == 0 {
			o.Err = err
		}
		if o.Err != nil {
			o.Sequence, o.MatchedTokens = Sequence{}, 0
			o.PendingTokens, o.PendingSequence = 0, 0
			o.CopiedTokens, o.CopiedFrom, o.CopiedTo = 0, 0, 0
			continue
		}
		o.CopiedTokens, o.CopiedFrom, o.CopiedTo = int(r.CopiedTokens), r.CopiedFrom, r.CopiedTo
		o.PendingTokens, o.PendingSequence = int(r.PendingTokens), SequenceID(r.PendingSequence)
		o.MatchedTokens = int(r.MatchedTokens)
		o.Sequence = Sequence{m: m, id: SequenceID(r.Sequence), matched: o.MatchedTokens}
		o.Waits = m.appendWaits(o.Waits, r.Sequence, r.WaitCount, &r.Waits, sc)
	}
}

// Probe looks up prompts and changes nothing, not even the order of eviction.
// Its answer is a hint: the tree may change while it looks.
func (m *Manager) Probe(prompts []Prompt, out []ProbeResult) error {
	if err := checkCounts(opProbe.name, len(prompts), len(out)); err != nil {
		return err
	}
	if err := m.enter(opProbe.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	tokens, err := sc.flatten(opProbe.name, prompts)
	if err != nil {
		return err
	}
	sc.probed = sized(sc.probed, len(prompts))
	s := m.raw.Probe(sc.prompts, tokens, sc.scopes, sc.bytes, sc.probed, &sc.err)
	if s != cgo.OK {
		return callError(opProbe.name, s, &sc.err)
	}
	for i := range sc.probed {
		r := &sc.probed[i]
		out[i] = ProbeResult{Err: opProbe.item(r.Status)}
		if r.Status == cgo.OK {
			out[i].MatchedTokens = int(r.MatchedTokens)
			out[i].PendingTokens = int(r.PendingTokens)
		}
	}
	return nil
}

// Grow gives sequences room, all or nothing for each item, evicting the least
// recently used blocks that nobody holds. Nothing is evicted unless the demand
// is met.
func (m *Manager) Grow(items []GrowItem, out []GrowResult) error {
	_, err := m.GrowTold(items, out, nil)
	return err
}

// GrowTold is Grow, and says which blocks went: in the memory of evicted, item
// by item, children before parents. The blocks of an item are told whole or not
// at all: the item's EvictedBlocks with FirstEvicted -1 says that they did not
// fit. As many entries as the items ask for pages always suffice.
func (m *Manager) GrowTold(items []GrowItem, out []GrowResult,
	evicted []EvictedBlock) ([]EvictedBlock, error) {
	if err := checkCounts(opGrow.name, len(items), len(out)); err != nil {
		return nil, err
	}
	for i := range items {
		if items[i].CapacityTokens < 0 {
			return nil, argumentError(opGrow.name, "item %d: CapacityTokens is %d", i,
				items[i].CapacityTokens)
		}
	}
	if err := m.enter(opGrow.name); err != nil {
		return nil, err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.grow = sized(sc.grow, len(items))
	for i := range items {
		sc.grow[i] = cgo.GrowItem{
			Sequence:       uint64(items[i].Sequence),
			CapacityTokens: uint64(items[i].CapacityTokens),
		}
	}
	sc.grown = sized(sc.grown, len(items))
	sc.evicted = sized(sc.evicted, min(len(evicted), math.MaxUint32))
	told, s := m.raw.SequencesGrow(sc.grow, sc.grown, sc.evicted, &sc.err)
	if s != cgo.OK {
		return nil, callError(opGrow.name, s, &sc.err)
	}
	for i := range sc.grown {
		r := &sc.grown[i]
		out[i] = GrowResult{
			Err:           opGrow.item(r.Status),
			AddedPages:    int(r.AddedPages),
			EvictedBlocks: int(r.EvictedBlocks),
			LeavingPages:  int(r.LeavingPages),
			FirstEvicted:  -1,
			CopiedBlock:   -1,
		}
		if r.FirstEvicted != cgo.NotTold {
			out[i].FirstEvicted = int(r.FirstEvicted)
		}
		if r.CopiedBlock != cgo.NoCopy {
			out[i].CopiedBlock, out[i].CopiedTokens = int(r.CopiedBlock), int(r.CopiedTokens)
			out[i].CopiedFrom, out[i].CopiedTo = r.CopiedFrom, r.CopiedTo
		}
		if r.WaitCount != 0 {
			out[i].Wait = Fence{Stream: DeviceStream(r.Wait.DeviceStream), Position: r.Wait.Position}
		}
	}
	return evictedBlocks(evicted, sc.evicted[:told]), nil
}

// Commit appends tokens whose KV values exist, or will once the sequence's
// device stream has done the work queued so far. Each block that becomes full
// becomes reusable.
func (m *Manager) Commit(items []CommitItem, out []CommitResult) error {
	if err := checkCounts(opCommit.name, len(items), len(out)); err != nil {
		return err
	}
	if err := m.enter(opCommit.name); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.commit, sc.tokens, sc.bytes = sized(sc.commit, len(items)), sc.tokens[:0], sc.bytes[:0]
	for i := range items {
		sc.commit[i] = cgo.CommitItem{
			Sequence:    uint64(items[i].Sequence),
			TokenOffset: uint64(len(sc.tokens)),
			TokenCount:  uint64(len(items[i].Tokens)),
		}
		if f := items[i].Filled; f != nil {
			sc.commit[i].Flags = cgo.CommitFence
			sc.commit[i].Fence = cgo.Fence{DeviceStream: uint64(f.Stream), Position: f.Position}
		}
		sc.commit[i].DigestOffset, sc.commit[i].DigestCount = sc.addDigests(items[i].Digests)
		if len(items) > 1 {
			sc.tokens = append(sc.tokens, items[i].Tokens...)
		}
	}
	tokens := sc.tokens
	if len(items) == 1 {
		tokens = items[0].Tokens // no need to copy
	}
	sc.commits = sized(sc.commits, len(items))
	if s := m.raw.SequencesCommit(sc.commit, tokens, sc.bytes, sc.commits, &sc.err); s != cgo.OK {
		return callError(opCommit.name, s, &sc.err)
	}
	for i := range sc.commits {
		r := &sc.commits[i]
		waits := out[i].Waits[:0]
		out[i] = CommitResult{Err: opCommit.item(r.Status), FirstChangedBlock: -1, Waits: waits}
		if r.Status != cgo.OK {
			continue
		}
		out[i].StoredBlocks = int(r.StoredBlocks)
		out[i].DeduplicatedBlocks = int(r.DeduplicatedBlocks)
		if r.FirstChangedBlock != cgo.NoBlock {
			out[i].FirstChangedBlock = int(r.FirstChangedBlock)
		}
		out[i].CommittedTokens = int(r.CommittedTokens)
		out[i].Waits = m.appendWaits(waits, sc.commit[i].Sequence, r.WaitCount, &r.Waits, sc)
	}
	return nil
}

// appendWaits appends the fences of a result; what does not fit it is asked for.
func (m *Manager) appendWaits(dst []Fence, id uint64, count uint32,
	first *[cgo.MaxWaits]cgo.Fence, sc *scratch) []Fence {
	if count <= cgo.MaxWaits {
		return appendFences(dst, first[:count])
	}
	sc.fences = sized(sc.fences, int(count))
	n, s := m.raw.SequenceWaits(id, sc.fences, &sc.err)
	if s != cgo.OK {
		// Closed by somebody else meanwhile: then nobody has to wait.
		return dst
	}
	return appendFences(dst, sc.fences[:n])
}

// Release closes sequences. Their committed blocks stay reusable; other pages
// go back to the pool behind a fence. errs[i] is nil or ErrStaleHandle; errs
// must be at least as long as ids.
func (m *Manager) Release(ids []SequenceID, errs []error) error {
	return m.byID(opRelease, ids, errs, cgo.Manager.SequencesRelease)
}

// SequenceInfo are the facts of one sequence.
type SequenceInfo struct {
	CommittedTokens int
	MatchedTokens   int
	CapacityTokens  int
	DeviceStream    DeviceStream
	// Pages is the number of pages the sequence has; suspended: has kept.
	Pages int
	// Detached after a reset: later commits create no block.
	Detached bool
	State    SequenceState
	// ReusableBlocks are the leading blocks that are in the tree.
	ReusableBlocks int
}

// Info reads the facts of a sequence.
func (m *Manager) Info(id SequenceID) (SequenceInfo, error) {
	info, _, err := m.get("info", id, 0, nil)
	return info, err
}

// Pages appends the pages of a sequence, in order, to dst; a suspended one shows
// none.
func (m *Manager) Pages(id SequenceID, dst []uint32) ([]uint32, error) {
	const op = "pages"
	for start := len(dst); ; {
		info, written, err := m.get(op, id, 0, dst[start:cap(dst)])
		if err != nil {
			return dst, err
		}
		if written >= info.Pages || info.State != Active {
			return dst[:start+written], nil
		}
		// Room for what there is now; the sequence may grow meanwhile.
		grown := make([]uint32, start, start+info.Pages+info.Pages/4)
		copy(grown, dst)
		dst = grown
	}
}

func (m *Manager) get(op string, id SequenceID, first uint32,
	pages []uint32) (SequenceInfo, int, error) {
	if err := m.enter(op); err != nil {
		return SequenceInfo{}, 0, err
	}
	defer m.leave()
	var raw cgo.SequenceInfo
	var e cgo.Error
	written, s := m.raw.SequenceGet(uint64(id), first, pages, &raw, &e)
	if s != cgo.OK {
		return SequenceInfo{}, 0, callError(op, s, &e)
	}
	return SequenceInfo{
		CommittedTokens: int(raw.CommittedTokens),
		MatchedTokens:   int(raw.MatchedTokens),
		CapacityTokens:  int(raw.CapacityTokens),
		DeviceStream:    DeviceStream(raw.DeviceStream),
		Pages:           int(raw.PageCount),
		Detached:        raw.Detached != 0,
		State:           SequenceState(raw.State),
		ReusableBlocks:  int(raw.ReusableBlocks),
	}, written, nil
}

// Sequence is a thin view of one sequence, for programs that handle them one
// by one. It is a small value and may be copied; all copies name the same
// sequence. Its methods are the manager's batch calls with a
// single item, whose error is returned.
type Sequence struct {
	m       *Manager
	id      SequenceID
	matched int
	waits   []Fence
}

// Open is Create with one prompt, whose error is returned. Release the sequence
// when the request ends.
func (m *Manager) Open(p Prompt) (*Sequence, error) {
	s := new(Sequence)
	prompts := [1]Prompt{p}
	var out [1]CreateResult
	if err := m.Create(prompts[:], out[:]); err != nil {
		if out[0].Sequence.m != nil {
			_ = out[0].Sequence.Release() // what went wrong has been said
		}
		return nil, err
	}
	if out[0].Err != nil {
		return nil, out[0].Err
	}
	s.m, s.id, s.matched = m, out[0].Sequence.id, out[0].MatchedTokens
	s.waits = out[0].Waits
	return s, nil
}

// ID is the sequence's id, for the batch calls.
func (s Sequence) ID() SequenceID { return s.id }

// MatchedTokens were found when the sequence was created.
func (s Sequence) MatchedTokens() int { return s.matched }

// Waits appends the fences that Open returned to dst. (Create reports them in
// its results.)
func (s Sequence) Waits(dst []Fence) []Fence { return append(dst, s.waits...) }

// Grow gives the sequence pages for capacityTokens tokens in all, the matched ones
// included.
func (s Sequence) Grow(capacityTokens int) (GrowResult, error) {
	if s.m == nil {
		return GrowResult{}, opGrow.item(cgo.StaleHandle)
	}
	items, out := [1]GrowItem{{s.id, capacityTokens}}, [1]GrowResult{}
	if err := s.m.Grow(items[:], out[:]); err != nil {
		return GrowResult{}, err
	}
	return out[0], out[0].Err
}

// Commit appends tokens. Those with digests take Manager.Commit.
func (s Sequence) Commit(tokens []uint32) (CommitResult, error) {
	if s.m == nil {
		return CommitResult{}, opCommit.item(cgo.StaleHandle)
	}
	items, out := [1]CommitItem{{Sequence: s.id, Tokens: tokens}}, [1]CommitResult{}
	if err := s.m.Commit(items[:], out[:]); err != nil {
		return CommitResult{}, err
	}
	return out[0], out[0].Err
}

// Pages appends the sequence's pages, in order, to dst.
func (s Sequence) Pages(dst []uint32) ([]uint32, error) {
	if s.m == nil {
		return dst, &Error{Op: "pages", Status: StatusStaleHandle}
	}
	return s.m.Pages(s.id, dst)
}

// Info reads the facts of the sequence.
func (s Sequence) Info() (SequenceInfo, error) {
	if s.m == nil {
		return SequenceInfo{}, &Error{Op: "info", Status: StatusStaleHandle}
	}
	return s.m.Info(s.id)
}

// Release closes the sequence. A second time it is ErrStaleHandle.
func (s Sequence) Release() error {
	if s.m == nil {
		return opRelease.item(cgo.StaleHandle)
	}
	ids, errs := [1]SequenceID{s.id}, [1]error{}
	if err := s.m.Release(ids[:], errs[:]); err != nil {
		return err
	}
	return errs[0]
}
