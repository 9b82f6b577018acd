// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// limitMessages is for a publisher that has not been started.
func limitMessages(p *Publisher, bytes int) {
	p.settings.maxMessage = bytes
	p.validator.maxBytes = p.settings.eventBytes()
}

// Blocks may be so large that a batch within the limits of events and blocks would
// be longer than readers take. No live batch is and no message of a snapshot, so a
// follower that takes no byte more gets in step and stays so.
func TestLargeBlocksReachFollowers(t *testing.T) {
	const limit, size = 20000, 512
	o := snapshotOptions(t)
	o.MaxBatchEvents, o.MaxBatchBlocks = 0, 0
	p := mustNew(t, o)
	limitMessages(p, limit)
	stream, m := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: size, CapacityBlocks: 200})
	t.Cleanup(func() { p.Close() })
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	serve := func(from uint32) {
		for i := range uint32(3) {
			tokens := make([]uint32, 40*size)
			for k := range tokens {
				tokens[k] = 1<<20 + from + i + uint32(k) // five bytes each
			}
			compute(t, m, tokens)
		}
		mustFlush(t, p)
	}
	serve(0)
	follow := func() *followed {
		return newFollowed(t, p, func(o *reader.FollowerOptions) { o.Client.MaxMessage = limit })
	}
	late := follow()
	late.until("late", patterns(t, m, event.Signed64))
	if late.snapshots < 100*size*5/limit || late.gaps > 0 {
		t.Errorf("%d batches of a snapshot, %d gaps", late.snapshots, late.gaps)
	}
	s := subscribe(t, p)
	gate := p.Stats().NextSeq
	serve(50000)
	newest := p.Stats().NextSeq - 1
	for seq := uint64(0); seq != newest; {
		message := s.next()
		if seq = message.seq; seq < gate {
			t.Fatalf("batch %d", seq)
		}
	}
	if newest-gate < 100*size*5/limit {
		t.Errorf("%d batches", newest-gate+1)
	}
	late.until("live", patterns(t, m, event.Signed64))
	if st := p.Stats(); st.DroppedBatches != 0 || st.BurntNumbers != 0 {
		t.Errorf("%+v", st)
	}
}

// What is split for its size stays whole, whatever takes the room; a single block
// cannot be split.
func TestSplitBySize(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(e *event.BlockStored)
		pieces int
	}{
		{"small", func(*event.BlockStored) {}, 1},
		{"tokens", func(e *event.BlockStored) {
			e.BlockSize, e.Tokens = 200, make([]uint32, 10*200)
		}, 10},
		{"extra keys", func(e *event.BlockStored) {
			e.Extra = &event.StoredExtra{ExtraKeys: make([][]event.ExtraKey, 10)}
			e.Extra.ExtraKeys[7] = []event.ExtraKey{{Str: strings.Repeat("x", 3000)}}
		}, 5},
		{"mm keys", func(e *event.BlockStored) {
			e.Extra = &event.StoredExtra{MMKeys: make([][]event.MMKey, 10)}
			for i := range e.Extra.MMKeys {
				e.Extra.MMKeys[i] = []event.MMKey{{Hash: strings.Repeat("a", 64)}, {Hash: strings.Repeat("b", 64)}}
			}
		}, 5},
	} {
		o := localOptions(t)
		o.Multimodal = MultimodalTensorRT
		s, err := o.check()
		if err != nil {
			t.Fatal(err)
		}
		s.maxMessage = 6000
		v, verr := newValidator(s)
		enc, eerr := wire.NewEncoder(s.wireConfig())
		if verr != nil || eerr != nil {
			t.Fatal(verr, eerr)
		}
		ev := chain(1, 10)
		c.change(ev)
		pieces, perr := v.shape(nil, ev, false)
		if perr != nil {
			t.Fatalf("%s: %v", c.name, perr)
		}
		var hashes []uint64
		for _, piece := range pieces {
			e := piece.(*event.BlockStored)
			if e.HasParent != (len(hashes) > 0) || e.HasParent && e.ParentHash != hashes[len(hashes)-1] {
				t.Errorf("%s: %+v after %v", c.name, e, hashes)
			}
			hashes = append(hashes, e.Hashes...)
			b, err := enc.AppendEvents(nil, []event.Event{piece})
			if err != nil || int64(len(b)) > estimateSize(piece) || len(e.Hashes) > 1 && int64(len(b)) > s.eventBytes() {
				t.Errorf("%s: %d blocks are %d bytes, %d expected at most, %v", c.name, len(e.Hashes), len(b), estimateSize(piece), err)
			}
		}
		if !slices.Equal(hashes, ev.Hashes) || len(pieces) != c.pieces {
			t.Errorf("%s: %d pieces, %v", c.name, len(pieces), hashes)
		}
	}
}
