// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"github.com/kvcast/kvcast/bindings/event"
)

// shape appends to dst what is sent for one event: itself in most cases; one in
// the chosen form if it has multimodal items or a part that is not sent; several
// if it is too large; nothing if all of it is suppressed. The error says why the
// event must not be sent.
//
// What is appended shares the slices of ev. With reuse it is valid until the
// next call of begin, else for ever.
func (v *validator) shape(dst []event.Event, ev event.Event, reuse bool) ([]event.Event, error) {
	if v.asItIs(ev) {
		if err := v.check(ev); err != nil {
			return dst, err
		}
		return append(dst, ev), nil
	}
	v.changed = true
	v.reuse = reuse
	sent := ev
	if v.multimodal.follows(ev) {
		var err error
		if sent, err = v.multimodal.shape(v, ev); err != nil {
			return dst, err
		}
		if sent == nil {
			return dst, nil
		}
	}
	if err := v.check(sent); err != nil {
		return dst, err
	}
	if s, ok := sent.(*event.BlockStored); ok && (v.omitTokens || v.loraIDOnly && s.LoRAName != "") {
		sent = v.strip(s, sent != ev)
	}
	v.multimodal.sent(ev)
	if v.tooLarge(sent) {
		return v.split(dst, sent), nil
	}
	return append(dst, sent), nil
}

// asItIs says that an event has nothing that could be shaped: nearly all are so.
func (v *validator) asItIs(ev event.Event) bool {
	if !v.plain || len(v.multimodal.items) > 0 || len(v.multimodal.silent) > 0 {
		return false
	}
	switch e := ev.(type) {
	case *event.BlockStored:
		return e != nil && len(e.MMDigests) == 0 && e.Extra == nil && !v.tooLarge(ev)
	case *event.BlockRemoved:
		return e != nil && !v.tooLarge(ev)
	}
	return true
}

// strip leaves out what is not to be sent, in a copy unless e is one.
func (v *validator) strip(e *event.BlockStored, own bool) *event.BlockStored {
	if !own {
		e = v.copyStored(e)
	}
	if v.loraIDOnly {
		e.LoRAName = ""
	}
	if v.omitTokens {
		e.Tokens = nil
		if e.Extra != nil && e.Extra.HexTokens != nil {
			x := *e.Extra
			x.HexTokens = nil
			e.Extra = &x
		}
	}
	return e
}

// begin says that what has been shaped for reuse is not needed any more. changed
// is then whether an event since may differ from what the source has.
func (v *validator) begin() { v.usedStored, v.usedRemoved, v.changed = 0, 0, false }

// copyStored returns a copy that shares the slices.
func (v *validator) copyStored(e *event.BlockStored) *event.BlockStored {
	if !v.reuse {
		c := *e
		return &c
	}
	if v.usedStored == len(v.poolStored) {
		v.poolStored = append(v.poolStored, new(event.BlockStored))
	}
	c := v.poolStored[v.usedStored]
	v.usedStored++
	*c = *e
	return c
}

// copyRemoved is copyStored for removals. Reasons do not go on the wire, and the
// copy may be of a part.
func (v *validator) copyRemoved(e *event.BlockRemoved) *event.BlockRemoved {
	if !v.reuse {
		c := *e
		c.Reasons = nil
		return &c
	}
	if v.usedRemoved == len(v.poolRemoved) {
		v.poolRemoved = append(v.poolRemoved, new(event.BlockRemoved))
	}
	c := v.poolRemoved[v.usedRemoved]
	v.usedRemoved++
	*c = *e
	c.Reasons = nil
	return c
}

// tooLarge says whether an event is to be split.
func (v *validator) tooLarge(ev event.Event) bool {
	n := blockCount(ev)
	return n > v.maxBlocks || n > 1 && estimateSize(ev) > v.maxBytes
}

// split cuts an event into pieces of at most maxBlocks blocks and, if they have
// more than one, maxBytes bytes; each piece of a stored event hangs on the last
// block of the one before.
func (v *validator) split(dst []event.Event, ev event.Event) []event.Event {
	step := v.maxBlocks
	for from, n := 0, blockCount(ev); from < n; {
		step = min(step, n-from)
		c := v.piece(ev, from, from+step)
		for step > 1 && estimateSize(c) > v.maxBytes {
			step /= 2
			c = v.piece(ev, from, from+step)
		}
		dst = append(dst, c)
		from += step
	}
	return dst
}

// piece returns the part of the blocks from..to of an event that has any.
func (v *validator) piece(ev event.Event, from, to int) event.Event {
	if e, ok := ev.(*event.BlockStored); ok {
		return v.storedPiece(e, from, to)
	}
	e := ev.(*event.BlockRemoved)
	c := v.copyRemoved(e)
	c.Hashes = cut(e.Hashes, from, to, 1)
	c.Digests = cut(e.Digests, from, to, 1)
	return c
}

func (v *validator) storedPiece(e *event.BlockStored, from, to int) event.Event {
	c := v.copyStored(e)
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
		x.HexTokens = plain(cut(x.HexTokens, from, to, size))
		x.ExtraKeys = cut(x.ExtraKeys, from, to, 1)
		x.MMKeys = cut(x.MMKeys, from, to, 1)
		c.Extra = &x
	}
	return c
}

// plain returns nil in place of strings that are all empty: such a piece is text
// and need not be kept apart.
func plain(hex []string) []string {
	for _, s := range hex {
		if s != "" {
			return hex
		}
	}
	return nil
}

// cut returns the elements of the blocks from..to, or nil of nil.
func cut[T any](s []T, from, to, perBlock int) []T {
	if len(s) == 0 {
		return s
	}
	return s[from*perBlock : to*perBlock]
}

// risky says whether readers may lose the whole batch to this event: most know
// no strings among the token ids.
func risky(ev event.Event) bool {
	e, ok := ev.(*event.BlockStored)
	return ok && e.Extra != nil && e.Extra.HexTokens != nil
}

// batcher says where a batch ends. The zero value is at the beginning of one.
type batcher struct {
	events, blocks int
	bytes          int64
	risky, alone   bool
}

// ends says whether the batch ends before this event, which begins or joins one
// then.
func (b *batcher) ends(s *settings, ev event.Event) bool {
	_, clear := ev.(*event.AllBlocksCleared)
	n, size, dangerous := blockCount(ev), estimateSize(ev), risky(ev)
	ends := b.events > 0 && (clear || b.alone || dangerous != b.risky ||
		s.MaxBatchEvents > 0 && b.events >= s.MaxBatchEvents ||
		s.MaxBatchBlocks > 0 && b.blocks+n > s.MaxBatchBlocks || b.bytes+size > s.batchBytes())
	if ends {
		*b = batcher{}
	}
	b.events++
	b.blocks += n
	b.bytes += size
	b.risky, b.alone = dangerous, clear
	return ends
}

// batchBytes is how many bytes a live batch may have, eventBytes an event of more
// than one block.
func (s *settings) batchBytes() int64 { return int64(s.maxMessage/2 - headRoom - rankRoom) }
func (s *settings) eventBytes() int64 { return int64(s.maxMessage / 4) }
