// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// maxEventBlocks is the most hashes that one event may carry (a widely used
// reader refuses more); larger ones are split.
const maxEventBlocks = 65536

// maxMessage is the most bytes that a payload may have: the length up to which
// readers take a message by default. Live batches have half of it, so that a
// snapshot, whose messages are filled to three quarters at least, does not need more
// numbers than what it tells of took. Events are split at a quarter: only a single
// block could be larger.
const maxMessage = 32 << 20

// validator decides whether an event may be sent. It belongs to one goroutine
// at a time.
type validator struct {
	checker *wire.Checker
	// sizes holds the block size of each group, which is the same for the whole
	// life of a publisher.
	sizes map[group]uint32

	// How an event is shaped: see shape.
	multimodal             *multimodal
	loraIDOnly, omitTokens bool
	maxBlocks              int
	maxBytes               int64
	// plain: only multimodal items and size can make an event be shaped.
	plain, changed bool
	// The pools hold what begin has made free to be used again.
	reuse                   bool
	poolStored              []*event.BlockStored
	poolRemoved             []*event.BlockRemoved
	usedStored, usedRemoved int
}

// group is a group_idx, or its absence.
type group struct {
	index uint64
	set   bool
}

// newValidator returns a validator for what encoders of this configuration can
// write; an event that they refused would take its whole batch with it.
func newValidator(s *settings) (*validator, error) {
	checker, err := wire.NewChecker(s.wireConfig())
	if err != nil {
		return nil, err
	}
	v := &validator{checker: checker, sizes: make(map[group]uint32, 1), multimodal: newMultimodal(s),
		loraIDOnly: s.LoRAIDOnly, omitTokens: s.OmitTokens, maxBlocks: maxEventBlocks,
		maxBytes: s.eventBytes()}
	v.plain = !v.omitTokens && !v.loraIDOnly && v.multimodal.form != MultimodalExtraKeys &&
		(v.multimodal.form != MultimodalTensorRT || v.multimodal.offset < 0)
	if s.MaxBlocksPerEvent > 0 {
		v.maxBlocks = min(s.MaxBlocksPerEvent, maxEventBlocks)
	}
	return v, nil
}

// check returns nil or an error that says why the event must not be sent.
func (v *validator) check(ev event.Event) error {
	if err := v.checker.Check(ev); err != nil {
		return err
	}
	if stored, ok := ev.(*event.BlockStored); ok {
		return v.checkBlockSize(stored)
	}
	return nil
}

func (v *validator) checkBlockSize(e *event.BlockStored) error {
	var g group
	if e.Extra != nil && e.Extra.HasGroupIdx {
		g = group{e.Extra.GroupIdx, true}
	}
	size, known := v.sizes[g]
	if !known {
		v.sizes[g] = e.BlockSize
		return nil
	}
	if size != e.BlockSize {
		return &wire.Error{Op: "check event", Event: -1, Key: "block_size", Offset: -1,
			Err: wire.ErrBlockSize, Detail: "not the one of earlier events"}
	}
	return nil
}

// blockCount is the number of hashes of an event.
func blockCount(ev event.Event) int {
	switch e := ev.(type) {
	case *event.BlockStored:
		return len(e.Hashes) + len(e.Digests)
	case *event.BlockRemoved:
		return len(e.Hashes) + len(e.Digests)
	}
	return 0
}

// cloneEvent returns a copy that shares no slice with ev. What is no event stays
// as it is.
func cloneEvent(ev event.Event) event.Event {
	switch e := ev.(type) {
	case *event.BlockStored:
		if e == nil {
			return ev
		}
		c := *e
		c.Hashes = slices.Clone(e.Hashes)
		c.Digests = slices.Clone(e.Digests)
		c.Tokens = slices.Clone(e.Tokens)
		c.MMDigests = slices.Clone(e.MMDigests)
		if e.Extra != nil {
			x := *e.Extra
			x.HexTokens = slices.Clone(x.HexTokens)
			x.ExtraKeys = slices.Clone(x.ExtraKeys)
			for i, entry := range x.ExtraKeys {
				entry = slices.Clone(entry)
				for j := range entry {
					entry[j].Bin = slices.Clone(entry[j].Bin)
				}
				x.ExtraKeys[i] = entry
			}
			x.MMKeys = slices.Clone(x.MMKeys)
			for i := range x.MMKeys {
				x.MMKeys[i] = slices.Clone(x.MMKeys[i])
			}
			c.Extra = &x
		}
		return &c
	case *event.BlockRemoved:
		if e == nil {
			return ev
		}
		c := *e
		c.Hashes = slices.Clone(e.Hashes)
		c.Digests = slices.Clone(e.Digests)
		c.Reasons = nil // the wire has no place for them
		return &c
	}
	return ev // a clear has nothing to copy
}

// estimateSize is an upper bound of what an event takes in the payload, within a
// few per cent of it without extra keys.
func estimateSize(ev event.Event) int64 {
	// Keys, headers and small integers of a stored event.
	const fixed = 160
	switch e := ev.(type) {
	case *event.BlockStored:
		n := fixed + 9*len(e.Hashes) + 34*len(e.Digests) + 5*len(e.Tokens) + len(e.LoRAName) + len(e.Medium)
		if x := e.Extra; x != nil {
			n += 300 + len(x.SessionID) + len(x.Ownership) + len(x.Locality) + len(x.SpecKind) +
				5*(len(x.ExtraKeys)+len(x.MMKeys))
			for _, t := range x.HexTokens {
				n += len(t)
			}
			for _, entry := range x.ExtraKeys {
				for _, k := range entry {
					n += 16 + len(k.Str) + len(k.Item) + len(k.Bin)
				}
			}
			for _, entry := range x.MMKeys {
				for _, k := range entry {
					n += 80 + len(k.Hash) + len(k.UUID)
				}
			}
		}
		return int64(n)
	case *event.BlockRemoved:
		return int64(fixed + 9*len(e.Hashes) + 34*len(e.Digests) + len(e.Medium) + len(e.Locality) + len(e.Ownership))
	}
	return fixed
}
