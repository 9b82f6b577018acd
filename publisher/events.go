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

// validator decides whether an event may be sent. It belongs to one goroutine
// at a time.
type validator struct {
	checker *wire.Checker
	// sizes holds the block size of each group, which is the same for the whole
	// life of a publisher.
	sizes map[group]uint32
}

// group is a group_idx, or its absence.
type group struct {
	index uint64
	set   bool
}

// newValidator returns a validator for what encoders of this configuration can
// write; an event that they refused would take its whole batch with it.
func newValidator(config wire.Config) (*validator, error) {
	checker, err := wire.NewChecker(config)
	if err != nil {
		return nil, err
	}
	return &validator{checker: checker, sizes: make(map[group]uint32, 1)}, nil
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

// cloneEvent returns a copy that shares no slice with ev.
func cloneEvent(ev event.Event) event.Event {
	switch e := ev.(type) {
	case *event.BlockStored:
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
		c := *e
		c.Hashes = slices.Clone(e.Hashes)
		c.Digests = slices.Clone(e.Digests)
		return &c
	default:
		return &event.AllBlocksCleared{}
	}
}

// splitEvent cuts a valid event into pieces of at most limit blocks; each piece
// of a stored event hangs on the last block of the one before. The pieces share
// the slices of ev.
func splitEvent(ev event.Event, limit int) []event.Event {
	n := blockCount(ev)
	if n <= limit {
		return []event.Event{ev}
	}
	var pieces []event.Event
	for from := 0; from < n; from += limit {
		to := min(from+limit, n)
		switch e := ev.(type) {
		case *event.BlockStored:
			pieces = append(pieces, storedPiece(e, from, to))
		case *event.BlockRemoved:
			c := *e
			c.Hashes = cut(e.Hashes, from, to, 1)
			c.Digests = cut(e.Digests, from, to, 1)
			pieces = append(pieces, &c)
		}
	}
	return pieces
}

func storedPiece(e *event.BlockStored, from, to int) event.Event {
	c := *e
	size := int(e.BlockSize)
	c.Hashes = cut(e.Hashes, from, to, 1)
	c.Digests = cut(e.Digests, from, to, 1)
	c.Tokens = cut(e.Tokens, from, to, size)
	if from > 0 {
		c.HasParent = true
		if len(e.Hashes) > 0 {
			c.ParentHash = e.Hashes[from-1]
		} else {
			c.ParentDigest = e.Digests[from-1]
		}
	}
	if e.Extra != nil {
		x := *e.Extra
		x.HexTokens = cut(x.HexTokens, from, to, size)
		x.ExtraKeys = cut(x.ExtraKeys, from, to, 1)
		x.MMKeys = cut(x.MMKeys, from, to, 1)
		c.Extra = &x
	}
	return &c
}

// cut returns the elements of the blocks from..to, or nil of nil.
func cut[T any](s []T, from, to, perBlock int) []T {
	if len(s) == 0 {
		return s
	}
	return s[from*perBlock : to*perBlock]
}

// estimateSize is an upper bound, within a few per cent, of what an event
// without extra keys takes in the payload; extra keys are estimated.
func estimateSize(ev event.Event) int64 {
	// Keys, headers and small integers of a stored event.
	const fixed = 160
	switch e := ev.(type) {
	case *event.BlockStored:
		n := fixed + 9*len(e.Hashes) + 34*len(e.Digests) + 5*len(e.Tokens) + len(e.LoRAName)
		if x := e.Extra; x != nil {
			n += 200 + len(x.SessionID) + len(x.Ownership)
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
					n += 48 + len(k.Hash) + len(k.UUID)
				}
			}
		}
		return int64(n)
	case *event.BlockRemoved:
		return int64(fixed + 9*len(e.Hashes) + 34*len(e.Digests) + len(e.Ownership))
	}
	return fixed
}
