// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/hex"
	"fmt"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// multimodal writes events with digests among their tokens in the chosen form,
// or leaves them out. It belongs to one goroutine at a time, as its validator.
type multimodal struct {
	form MultimodalForm
	// offset and placeholder are -1 when unset.
	offset, placeholder int64
	loraIDOnly          bool

	// items holds, for each announced block below the beginning of an item, the
	// last item at its end. Only what is needed later is kept: nothing when
	// positions of items cannot be told from text.
	items map[blockID]item
	// next is what sent adds to items.
	next []placed
	// silent are the blocks that were suppressed, suppressed is how many so far.
	silent     map[blockID]struct{}
	suppressed uint64
	// none is lists of no items, for events of text.
	none [][]event.MMKey
}

// blockID is the hash of a block, in one of its two forms.
type blockID struct {
	hash   uint64
	digest event.Digest
}

// item is a multimodal item, and how many tokens before some place it begins.
type item struct {
	digest event.Digest
	since  int64
}

type placed struct {
	id blockID
	at item
}

func newMultimodal(s *settings) *multimodal {
	return &multimodal{form: s.multimodal(), offset: s.MMTokenIDOffset, placeholder: s.MMPlaceholderID,
		loraIDOnly: s.LoRAIDOnly, items: make(map[blockID]item), silent: make(map[blockID]struct{})}
}

// announces says whether the form has a way to write a digest.
func (o Options) announces() bool {
	switch o.multimodal() {
	case MultimodalTensorRT:
		return true
	case MultimodalExtraKeys:
		return o.MMTokenIDOffset >= 0 || o.MMPlaceholderID >= 0
	}
	return false
}

// StreamConfig returns how a stream for these options is made: it tells of
// multimodal blocks only if the publisher can write them (MultimodalExtraKeys
// needs MMTokenIDOffset or MMPlaceholderID for that), and counts those that it
// suppresses.
func (o Options) StreamConfig() bindings.StreamConfig {
	c := bindings.StreamConfig{Form: o.Hash, MaxEntries: o.MaxEntries, MaxBlocksPerEvent: o.MaxBlocksPerEvent}
	if o.announces() {
		c.Multimodal = bindings.AnnounceMultimodal
	}
	return c
}

// follows says whether an event may concern this type at all.
func (m *multimodal) follows(ev event.Event) bool {
	if len(m.items) > 0 || len(m.silent) > 0 {
		return true
	}
	e, ok := ev.(*event.BlockStored)
	if !ok || e == nil {
		return false
	}
	return len(e.MMDigests) > 0 || m.form == MultimodalTensorRT && m.offset >= 0 ||
		m.form == MultimodalExtraKeys && e.LoRAName != "" && !m.loraIDOnly
}

// shape returns the event in the chosen form, or nil if nothing is to be said.
func (m *multimodal) shape(v *validator, ev event.Event) (event.Event, error) {
	m.next = m.next[:0]
	switch e := ev.(type) {
	case *event.BlockStored:
		if e == nil {
			return ev, nil // check refuses it
		}
		return m.stored(v, e)
	case *event.BlockRemoved:
		if e == nil || len(m.silent) == 0 {
			return ev, nil
		}
		return m.removed(v, e), nil
	}
	return ev, nil
}

// sent notes what an event that is sent changes.
func (m *multimodal) sent(ev event.Event) {
	for _, p := range m.next {
		m.items[p.id] = p.at
	}
	m.next = m.next[:0]
	switch e := ev.(type) {
	case *event.BlockRemoved:
		if len(m.items) > 0 {
			for i := range blockCount(e) {
				delete(m.items, idOf(e.Hashes, e.Digests, i))
			}
		}
	case *event.AllBlocksCleared:
		clear(m.items)
		clear(m.silent)
	}
}

func idOf(hashes []uint64, digests []event.Digest, i int) blockID {
	if len(hashes) > 0 {
		return blockID{hash: hashes[i]}
	}
	return blockID{digest: digests[i]}
}

// parentOf returns the block above an event, if there is one.
func parentOf(e *event.BlockStored) (id blockID, ok bool) {
	if !e.HasParent {
		return id, false
	}
	if len(e.Hashes) > 0 {
		return blockID{hash: e.ParentHash}, true
	}
	return blockID{digest: e.ParentDigest}, true
}

// removed leaves out the blocks of which nothing was said.
func (m *multimodal) removed(v *validator, e *event.BlockRemoved) event.Event {
	c := *e
	c.Hashes, c.Digests = nil, nil
	n := blockCount(e)
	for i := range n {
		id := idOf(e.Hashes, e.Digests, i)
		if _, ok := m.silent[id]; ok {
			delete(m.silent, id)
			continue
		}
		if len(e.Hashes) > 0 {
			c.Hashes = append(c.Hashes, id.hash)
		} else {
			c.Digests = append(c.Digests, id.digest)
		}
	}
	switch blockCount(&c) {
	case n:
		return e
	case 0:
		return nil
	}
	return v.copyRemoved(&c)
}

// multimodalError is an event whose digests and tokens do not fit together.
func multimodalError(detail string) error {
	return &wire.Error{Op: "check event", Event: -1, Key: "token_ids", Offset: -1, Err: wire.ErrMultimodal, Detail: detail}
}

func (m *multimodal) stored(v *validator, e *event.BlockStored) (event.Event, error) {
	n, size := blockCount(e), int(e.BlockSize)
	if n == 0 || size == 0 || len(e.Tokens) != n*size || len(e.Hashes) > 0 && len(e.Digests) > 0 {
		return e, nil // check says what is wrong
	}
	digests := 0
	for _, t := range e.Tokens {
		if i, ok := event.IsDigestToken(t); ok && len(e.MMDigests) > 0 {
			if i >= len(e.MMDigests) {
				return nil, multimodalError(fmt.Sprintf("a token stands for digest %d of %d", i, len(e.MMDigests)))
			}
			digests++
		}
	}
	if digests < len(e.MMDigests) {
		return nil, multimodalError(fmt.Sprintf("%d digests, %d tokens stand for one", len(e.MMDigests), digests))
	}
	parent, hasParent := parentOf(e)
	if m.form == MultimodalSuppress {
		return m.suppress(v, e, parent, hasParent), nil
	}
	if digests > 0 && m.form == MultimodalExtraKeys && m.offset < 0 && m.placeholder < 0 {
		return nil, multimodalError("extra_keys needs mm_token_id_offset or mm_placeholder_id")
	}
	w := writer{m: m, e: e, size: size}
	if hasParent {
		w.last, w.known = m.items[parent]
	}
	if digests == 0 && !w.known {
		// Text alone.
		return m.text(v, e, n), nil
	}
	return w.write(v, n), nil
}

// text writes an event that has nothing to do with an item.
func (m *multimodal) text(v *validator, e *event.BlockStored, n int) event.Event {
	var x event.StoredExtra
	switch {
	case m.form == MultimodalTensorRT && m.offset >= 0:
		if len(m.none) < n {
			m.none = make([][]event.MMKey, n)
		}
		x.MMKeys = m.none[:n:n]
	case m.form == MultimodalExtraKeys && e.LoRAName != "" && !m.loraIDOnly:
		entry := []event.ExtraKey{{Str: e.LoRAName}}
		x.ExtraKeys = make([][]event.ExtraKey, n)
		for i := range x.ExtraKeys {
			x.ExtraKeys[i] = entry
		}
	default:
		return e
	}
	if e.Extra != nil {
		// A host has said itself what it wants to say.
		if e.Extra.MMKeys != nil || e.Extra.ExtraKeys != nil {
			return e
		}
		own := *e.Extra
		own.MMKeys, own.ExtraKeys = x.MMKeys, x.ExtraKeys
		x = own
	}
	c := v.copyStored(e)
	c.Extra = &x
	return c
}

// suppress cuts an event off before its first multimodal block, or below one.
func (m *multimodal) suppress(v *validator, e *event.BlockStored, parent blockID, hasParent bool) event.Event {
	n, size, keep := blockCount(e), int(e.BlockSize), -1
	if hasParent {
		if _, ok := m.silent[parent]; ok {
			keep = 0
		}
	}
	for i := 0; keep < 0 && i < len(e.Tokens) && len(e.MMDigests) > 0; i++ {
		if _, ok := event.IsDigestToken(e.Tokens[i]); ok {
			keep = i / size
		}
	}
	if keep < 0 {
		return e
	}
	for i := keep; i < n; i++ {
		m.silent[idOf(e.Hashes, e.Digests, i)] = struct{}{}
	}
	m.suppressed += uint64(n - keep)
	if keep == 0 {
		return nil
	}
	piece := v.storedPiece(e, 0, keep).(*event.BlockStored)
	piece.MMDigests = nil
	return piece
}

// writer writes one event.
type writer struct {
	m    *multimodal
	e    *event.BlockStored
	size int
	// last is the item before the place that has been reached, if known.
	last  item
	known bool
}

func (w *writer) write(v *validator, n int) event.Event {
	c := v.copyStored(w.e)
	c.MMDigests = nil
	x := new(event.StoredExtra)
	if c.Extra != nil {
		*x = *c.Extra
	}
	c.Extra = x
	tensorrt := w.m.form == MultimodalTensorRT
	if tensorrt {
		if len(w.e.MMDigests) > 0 {
			x.HexTokens = make([]string, len(c.Tokens))
		}
		if w.m.offset >= 0 {
			x.MMKeys = make([][]event.MMKey, n)
		}
	} else {
		x.ExtraKeys = make([][]event.ExtraKey, n)
		c.Tokens = append([]uint32(nil), c.Tokens...)
	}
	for b := range n {
		if tensorrt {
			w.tensorrt(b, x)
		} else {
			w.extraKeys(b, c, x)
		}
		if w.known {
			w.last.since += int64(w.size)
			if w.m.offset >= 0 {
				w.m.next = append(w.m.next, placed{idOf(w.e.Hashes, w.e.Digests, b), w.last})
			}
		}
	}
	return c
}

// begins notes that an item begins at position pos of a block.
func (w *writer) begins(index, pos int) string {
	w.last, w.known = item{digest: w.e.MMDigests[index], since: int64(-pos)}, true
	return hex.EncodeToString(w.last.digest[:])
}

// continues says whether a token is a later position of the last item.
func (w *writer) continues(token uint32) bool {
	return w.known && w.m.offset >= 0 && int64(token) > w.m.offset
}

// digest returns the digest that a token stands for.
func (w *writer) digest(token uint32) (int, bool) {
	i, ok := event.IsDigestToken(token)
	return i, ok && len(w.e.MMDigests) > 0
}

// tensorrt writes the digests of a block as strings, and an entry for each run of
// positions that begins in it.
func (w *writer) tensorrt(b int, x *event.StoredExtra) {
	running := false
	for pos, t := range w.e.Tokens[b*w.size : (b+1)*w.size] {
		if i, ok := w.digest(t); ok {
			text := w.begins(i, pos)
			x.HexTokens[b*w.size+pos] = text
			if x.MMKeys != nil {
				x.MMKeys[b] = append(x.MMKeys[b], event.MMKey{Hash: text})
			}
			running = true
			continue
		}
		positions := w.continues(t)
		if positions && !running {
			x.MMKeys[b] = append(x.MMKeys[b], event.MMKey{Hash: hex.EncodeToString(w.last.digest[:]),
				StartOffset: int64(t) - w.m.offset})
		}
		running = positions
	}
}

// extraKeys writes integers alone, and an entry for each item of the block.
func (w *writer) extraKeys(b int, c *event.BlockStored, x *event.StoredExtra) {
	var entry []event.ExtraKey
	if c.LoRAName != "" && !w.m.loraIDOnly {
		entry = append(entry, event.ExtraKey{Str: c.LoRAName})
	}
	named := false // the last item has its entry
	tokens := c.Tokens[b*w.size : (b+1)*w.size]
	for pos, t := range tokens {
		if i, ok := w.digest(t); ok {
			entry = append(entry, event.ExtraKey{Item: w.begins(i, pos), Offset: int64(pos)})
			named = true
			if w.m.placeholder >= 0 {
				tokens[pos] = uint32(w.m.placeholder)
			} else {
				tokens[pos] = uint32(w.m.offset)
			}
			continue
		}
		if !w.continues(t) {
			continue
		}
		if !named {
			entry = append(entry, event.ExtraKey{Item: hex.EncodeToString(w.last.digest[:]), Offset: -w.last.since})
			named = true
		}
		if w.m.placeholder >= 0 {
			tokens[pos] = uint32(w.m.placeholder)
		}
	}
	x.ExtraKeys[b] = entry
}
