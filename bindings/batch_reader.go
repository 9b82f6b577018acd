// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/cgo"
)

// batchReader makes events of what the library lends. One goroutine at a time
// uses it.
type batchReader struct {
	view  *cgo.BorrowedBatch // an allocation of its own, as cgo's pointer check wants
	names map[string]string
}

func newBatchReader() batchReader {
	return batchReader{view: new(cgo.BorrowedBatch), names: make(map[string]string)}
}

// keptNames bounds the interned LoRA names; a fleet has far fewer adapters.
const keptNames = 4096

// name turns borrowed bytes into a string, the same one each time.
func (r *batchReader) name(text []byte) string {
	if name, ok := r.names[string(text)]; ok { // does not allocate
		return name
	}
	if len(r.names) >= keptNames {
		clear(r.names)
	}
	name := string(text)
	r.names[name] = name
	return name
}

// The wire's words for the tiers.
func mediumName(medium uint16) string {
	switch medium {
	case cgo.MediumCPU:
		return "CPU"
	case cgo.MediumStorage:
		return "STORAGE"
	default:
		return "GPU"
	}
}

// fill makes the events of the view.
func (r *batchReader) fill(b *Batch) {
	raw := r.view.Events()
	hashes, tokens := r.view.Hashes(), r.view.Tokens()
	scopes, text := r.view.Scopes(), r.view.Strings()
	reasons := cgo.Reasons[event.EvictedReason](r.view)
	digests := cgo.Digests[event.Digest](r.view)
	parents := cgo.ParentDigests[event.Digest](r.view)
	multimodal := cgo.Multimodal[event.Digest](r.view)

	// Counted first: events point into these slices, which must not move.
	stored, removed := 0, 0
	for i := range raw {
		switch raw[i].Kind {
		case cgo.EventStored:
			stored++
		case cgo.EventRemoved:
			removed++
		}
	}
	b.events = sized(b.events, len(raw))
	b.stored = sized(b.stored, stored)
	b.removed = sized(b.removed, removed)
	stored, removed = 0, 0
	blocks := uint64(0)
	for i := range raw {
		e := &raw[i]
		end := e.HashOffset + e.HashCount
		blocks += e.HashCount
		switch e.Kind {
		case cgo.EventStored:
			o := &b.stored[stored]
			stored++
			*o = event.BlockStored{
				HasParent: e.Flags&cgo.EventHasParent != 0,
				Tokens:    tokens[e.TokenOffset:][:e.TokenCount:e.TokenCount],
				BlockSize: e.BlockSize,
				Medium:    mediumName(e.Medium),
				HasMedium: true,
			}
			if n := uint64(e.MultimodalCount); n != 0 {
				o.MMDigests = multimodal[e.MultimodalOffset:][:n:n]
			}
			if digests != nil {
				o.Digests = digests[e.HashOffset:end:end]
				o.ParentDigest = parents[i]
			} else {
				o.Hashes = hashes[e.HashOffset:end:end]
				o.ParentHash = e.ParentHash
			}
			scope := &scopes[e.Scope]
			if scope.Parts&cgo.ScopeLoRAID != 0 {
				o.LoRAID, o.HasLoRAID = scope.LoRAID, true
			}
			if scope.Parts&cgo.ScopeLoRAName != 0 {
				o.LoRAName = r.name(text[scope.LoRANameOffset:][:scope.LoRANameSize])
			}
			b.events[i] = o
		case cgo.EventRemoved:
			o := &b.removed[removed]
			removed++
			*o = event.BlockRemoved{Reasons: reasons[e.HashOffset:end:end], Medium: mediumName(e.Medium), HasMedium: true}
			if digests != nil {
				o.Digests = digests[e.HashOffset:end:end]
			} else {
				o.Hashes = hashes[e.HashOffset:end:end]
			}
			b.events[i] = o
		default:
			b.events[i] = cleared
		}
	}
	b.Events = b.events
	b.Blocks = int(blocks)
	b.RemainingBytes = r.view.RemainingBytes
	b.PendingBlocks = r.view.PendingBlocks
}
