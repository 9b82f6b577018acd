// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Prompts with items, from the allocator to a subscriber, in each form.
func TestMultimodalToSubscriber(t *testing.T) {
	const offset = 200000
	image := event.DigestToken
	for _, c := range []struct {
		form, acts MultimodalForm
		encoding   wire.Encoding
	}{
		{MultimodalTensorRT, MultimodalTensorRT, wire.Map}, {MultimodalExtraKeys, MultimodalExtraKeys, wire.Map},
		{MultimodalSuppress, MultimodalSuppress, wire.Map}, {MultimodalExtraKeys, MultimodalExtraKeys, wire.Array},
		{MultimodalExtraKeys, MultimodalExtraKeys, wire.ArrayShort}, {MultimodalSuppress, MultimodalSuppress, wire.Array},
		{MultimodalAuto, MultimodalTensorRT, wire.Map}, {MultimodalAuto, MultimodalSuppress, wire.Array},
		{MultimodalAuto, MultimodalSuppress, wire.ArrayShort},
	} {
		t.Run(string(c.form)+" "+c.encoding.String(), func(t *testing.T) {
			o := localOptions(t)
			o.Multimodal, o.MMTokenIDOffset, o.Encoding = c.form, offset, c.encoding
			stream, manager := newAllocator(t, o.StreamConfig(), bindings.Config{
				TokensPerBlock: 4, CapacityBlocks: 16, MaxDigests: 4,
			})
			p := mustNew(t, o)
			if err := p.Attach(stream); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			s := subscribe(t, p)
			tokens := []uint32{1, 2, 3, 4, 5, image(0), offset + 1, offset + 2, offset + 3, 6, 7, 8}
			sequence, err := manager.Open(bindings.Prompt{Tokens: tokens, Digests: []event.Digest{testDigest(3)}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sequence.Grow(len(tokens)); err != nil {
				t.Fatal(err)
			}
			// The item goes on in another event than the one it begins in.
			var id = []bindings.SequenceID{sequence.ID()}
			for _, part := range []bindings.CommitItem{
				{Sequence: id[0], Tokens: tokens[:8], Digests: []event.Digest{testDigest(3)}}, {Sequence: id[0], Tokens: tokens[8:]},
			} {
				result := make([]bindings.CommitResult, 1)
				if err := manager.Commit([]bindings.CommitItem{part}, result); err != nil || result[0].Err != nil {
					t.Fatal(err, result[0].Err)
				}
				mustFlush(t, p)
			}
			if err := sequence.Release(); err != nil {
				t.Fatal(err)
			}
			if err := manager.Reset(); err != nil {
				t.Fatal(err)
			}
			mustFlush(t, p)
			var events []wire.Event
			for {
				m := s.next()
				if isClear(m) {
					break
				}
				events = append(events, m.batch.Events...)
			}
			switch c.acts {
			case MultimodalSuppress:
				if st, err := stream.Stats(); len(events) != 1 || len(events[0].Hashes) != 1 || err != nil || st.MultimodalBlocksSuppressed != 2 {
					t.Errorf("%+v, %+v, %v", events, st, err)
				}
			case MultimodalTensorRT:
				if len(events) != 2 || len(events[0].Extra.StringTokens) != 1 || events[0].Extra.StringTokens[0].Value != hexOf(3) ||
					len(events[0].Extra.MMKeys[0]) != 0 || len(events[0].Extra.MMKeys[1]) != 1 || events[1].Extra.MMKeys[0][0].Hash != hexOf(3) ||
					events[1].Extra.MMKeys[0][0].StartOffset != 3 {
					t.Errorf("%+v", events)
				}
			default:
				if len(events) != 2 || !slices.Equal(events[0].Tokens, []uint32{1, 2, 3, 4, 5, offset, offset + 1, offset + 2}) ||
					events[0].Extra.ExtraKeys[1][0].Offset != 1 || events[1].Extra.ExtraKeys[0][0].Offset != -3 ||
					events[1].Extra.ExtraKeys[0][0].Item != hexOf(3) {
					t.Errorf("%+v", events)
				}
			}
		})
	}
}

// Lookups, hits and their release send nothing; a reset and the store after it
// come in this order, whether anybody flushes or not.
func TestLookupsAndResets(t *testing.T) {
	stream, manager := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16})
	p := mustNew(t, localOptions(t))
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	s := subscribe(t, p)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	compute(t, manager, tokens)
	if m := s.next(); m.seq != 1 || len(m.batch.Events) != 1 {
		t.Fatalf("%+v", m)
	}
	for range 3 {
		if err := manager.Probe([]bindings.Prompt{{Tokens: tokens}}, make([]bindings.ProbeResult, 1)); err != nil {
			t.Fatal(err)
		}
		sequence, err := manager.Open(bindings.Prompt{Tokens: tokens})
		if err != nil || sequence.MatchedTokens() == 0 {
			t.Fatal(err)
		}
		if err := sequence.Release(); err != nil {
			t.Fatal(err)
		}
		mustFlush(t, p)
	}
	if st := p.Stats(); st.NextSeq != 2 {
		t.Errorf("lookups have used %d numbers", st.NextSeq-2)
	}
	for i := range 20 {
		if err := manager.Reset(); err != nil {
			t.Fatal(err)
		}
		compute(t, manager, tokens)
		if m := s.next(); !isClear(m) {
			t.Fatalf("reset %d: %+v", i, m.batch.Events)
		}
		if m := s.next(); len(m.batch.Events) != 1 || m.batch.Events[0].Kind != wire.KindStored || len(m.batch.Events[0].Hashes) != 2 {
			t.Fatalf("reset %d: %+v", i, m.batch.Events)
		}
	}
}
