// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// forms are the hash forms with their names.
var forms = []struct {
	form event.Form
	name string
}{
	{event.Signed64, "signed64"}, {event.Unsigned64, "unsigned64"},
	{event.Portable63, "portable63"}, {event.Bytes, "bytes"},
}

// hashOf is the hash of a block of the tree as a subscriber sees it.
func hashOf(b bindings.ResidentBlock, form event.Form) wire.Hash {
	if form == event.Bytes {
		return wire.HashOfBytes(b.Digest[:])
	}
	return wire.HashOf(b.Hash, form)
}

// decodeAll drains a stream that nobody drains at the same time, and returns
// what a subscriber would decode.
func decodeAll(t *testing.T, stream *bindings.Stream) (events []wire.Event) {
	t.Helper()
	encoder, err := wire.NewEncoder(wire.Config{Form: stream.Form()})
	if err != nil {
		t.Fatal(err)
	}
	for {
		// Small batches, so that limits cut through the stores and removals.
		b, err := stream.Drain(2, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Events) == 0 {
			if b.RemainingBytes == 0 && b.PendingBlocks == 0 {
				b.Release()
				return events
			}
			b.Release()
			continue // the drain has healed something
		}
		payload, err := encoder.AppendBatch(nil, 1, b.Events, 0)
		b.Release()
		if err != nil {
			t.Fatal(err)
		}
		batch, err := wire.Decode(payload, wire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Remarks) > 0 {
			t.Errorf("remarks: %v", batch.Remarks)
		}
		events = append(events, batch.Events...)
	}
}

// A removal never gets lost: the record buffer is filled to its cap and beyond
// while nobody drains it, then everything is evicted, still undrained. What a
// subscriber decodes afterwards removes exactly the blocks that it was told of.
// The random tests come close to this only by chance.
func TestRemovalsOfFullSink(t *testing.T) {
	for _, f := range forms {
		for _, entries := range []int{1, 4, 64} {
			t.Run(fmt.Sprintf("%s/%d", f.name, entries), func(t *testing.T) {
				removalsOfFullSink(t, f.form, entries)
			})
		}
	}
}

func removalsOfFullSink(t *testing.T, form event.Form, entries int) {
	const size = 4
	capacity := 3*entries + 8
	stream, manager := newAllocator(t, bindings.StreamConfig{Form: form, MaxEntries: entries},
		bindings.Config{TokensPerBlock: size, CapacityBlocks: capacity})
	// Chains of different lengths that share a beginning, until no page is free.
	text := make([]uint32, 0, size*capacity)
	for i := 0; ; i++ {
		st, err := manager.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if st.FreePages == 0 {
			break
		}
		n := min(1+i%5, int(st.FreePages))
		tokens := append(text[:0], make([]uint32, size*n)...)
		for k := range tokens {
			tokens[k] = uint32(k)
		}
		if i > 0 { // not the first one, from its second block on
			for k := size * min(1, n-1); k < len(tokens); k++ {
				tokens[k] += uint32(1000 * i)
			}
		}
		compute(t, manager, tokens)
	}

	resident, err := manager.Resident(form)
	if err != nil {
		t.Fatal(err)
	}
	announced := make(map[wire.Hash]bool)
	for _, b := range resident {
		if b.Announced {
			announced[hashOf(b, form)] = true
		}
	}
	st, err := stream.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if len(resident) != capacity || len(announced) != entries ||
		st.StoredBlocks != uint64(entries) || st.PendingBlocks != uint64(capacity-entries) {
		t.Fatalf("%d blocks, %d of them announced, want %d and %d; stream %+v",
			len(resident), len(announced), capacity, entries, st)
	}

	// All pages for a sequence that never commits: every block goes.
	seq, err := manager.Open(bindings.Prompt{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := seq.Grow(size * capacity); err != nil {
		t.Fatal(err)
	}
	if err := seq.Release(); err != nil {
		t.Fatal(err)
	}
	if resident, err = manager.Resident(form); err != nil || len(resident) != 0 {
		t.Fatalf("%d blocks are left, %v", len(resident), err)
	}

	stored, removed := make(map[wire.Hash]bool), make(map[wire.Hash]bool)
	for _, e := range decodeAll(t, stream) {
		for _, h := range e.Hashes {
			switch {
			case e.Kind == wire.KindStored && !stored[h]:
				stored[h] = true
			case e.Kind == wire.KindRemoved && stored[h] && !removed[h]:
				removed[h] = true
			default:
				t.Errorf("%s of %v, stored before: %t, removed before: %t",
					e.Type, h, stored[h], removed[h])
			}
		}
	}
	if len(stored) != len(announced) || len(removed) != len(announced) {
		t.Errorf("%d stored, %d removed, want %d", len(stored), len(removed), len(announced))
	}
	for h := range announced {
		if !stored[h] || !removed[h] {
			t.Errorf("%v: stored %t, removed %t", h, stored[h], removed[h])
		}
	}
	if st, err = stream.Stats(); err != nil || st.RemovedBlocks != uint64(entries) ||
		st.DeferredEvictedBlocks != uint64(capacity-entries) || st.BufferUsedBytes != 0 {
		t.Errorf("stream %+v, %v", st, err)
	}
}
