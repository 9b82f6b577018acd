// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// Larger events are split, each piece below the one before; batches close at
// their limits, counted after that. A source's events are cut as a host's.
func TestSplitAndLimits(t *testing.T) {
	for _, c := range []struct{ perEvent, events, blocks int }{
		{1, 0, 0}, {2, 0, 0}, {3, 2, 0}, {3, 0, 5}, {4, 3, 8}, {100, 0, 0}, {0, 0, 0},
	} {
		for _, attachedSource := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v attached %v", c, attachedSource), func(t *testing.T) {
				o := localOptions(t)
				o.MaxBlocksPerEvent, o.MaxBatchEvents, o.MaxBatchBlocks = c.perEvent, c.events, c.blocks
				var p *Publisher
				var src *fakeSource
				if attachedSource {
					p, src = attached(t, o, nil)
				} else {
					p = mustNew(t, o)
					mustStart(t, p)
				}
				s := subscribe(t, p)
				below := chain(100, 7)
				below.HasParent, below.ParentHash = true, 99
				gone := removal(1, 2, 3, 4, 5)
				gone.Reasons = []event.EvictedReason{event.EvictedTTL, event.EvictedCapacity} // whatever they are
				all := []event.Event{chain(1, 10), below, gone, &event.AllBlocksCleared{}}
				if attachedSource {
					src.record(all...)
					src.flush()
				} else if err := p.Publish(all...); err != nil {
					t.Fatal(err)
				}
				parents := map[uint64]uint64{101: 100, 100: 99}
				for h := uint64(2); h <= 10; h++ {
					parents[h] = h - 1
				}
				for h := uint64(102); h <= 106; h++ {
					parents[h] = h - 1
				}
				var stored, removed []uint64
				for {
					m := s.next()
					if isClear(m) {
						break
					}
					blocks := 0
					for _, e := range m.batch.Events {
						blocks += len(e.Hashes)
						if c.perEvent > 0 && len(e.Hashes) > c.perEvent {
							t.Errorf("an event of %d blocks", len(e.Hashes))
						}
						for i, h := range e.Hashes {
							if e.Kind == wire.KindRemoved {
								removed = append(removed, h.Bits)
								continue
							}
							stored = append(stored, h.Bits)
							if e.Tokens[i] != uint32(h.Bits) {
								t.Errorf("block %d has token %d", h.Bits, e.Tokens[i])
							}
						}
						if e.Kind == wire.KindStored {
							want, has := parents[e.Hashes[0].Bits]
							if e.HasParent != has || e.Parent.Bits != want {
								t.Errorf("block %d hangs on %v %d, want %v %d", e.Hashes[0].Bits, e.HasParent, e.Parent.Bits, has, want)
							}
						}
					}
					if c.events > 0 && len(m.batch.Events) > c.events ||
						c.blocks > 0 && len(m.batch.Events) > 1 && blocks > c.blocks {
						t.Errorf("a batch of %d events, %d blocks", len(m.batch.Events), blocks)
					}
				}
				want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 101, 102, 103, 104, 105, 106}
				if !slices.Equal(stored, want) || !slices.Equal(removed, []uint64{1, 2, 3, 4, 5}) {
					t.Errorf("stored %v, removed %v", stored, removed)
				}
				checkBalance(t, p.Stats(), false)
			})
		}
	}
}

// Prompts stay off the wire with token_ids: omit, names with lora: id; the
// source's own events do not change.
func TestLeftOut(t *testing.T) {
	for _, encoding := range []wire.Encoding{wire.Map, wire.Array, wire.ArrayShort} {
		o := localOptions(t)
		o.OmitTokens, o.LoRAIDOnly, o.Encoding, o.MaxBlocksPerEvent = true, true, encoding, 2
		p, src := attached(t, o, nil)
		s := subscribe(t, p)
		e := chain(1, 3)
		e.LoRAID, e.HasLoRAID, e.LoRAName = 4, true, "adapter"
		src.record(e)
		src.flush()
		_, _, payload := s.nextFrames()
		b, err := wire.Decode(payload, wire.Limits{})
		if err != nil || len(b.Events) != 2 {
			t.Fatalf("%v: %v, %d events", encoding, err, len(b.Events))
		}
		for i := range b.Events {
			got := &b.Events[i]
			if len(got.Tokens) != 0 || got.BlockSize != 1 || got.LoRAName != "" || got.LoRAID != 4 || !got.HasLoRAID {
				t.Errorf("%v: %+v", encoding, got)
			}
		}
		if len(e.Tokens) != 3 || e.LoRAName != "adapter" {
			t.Errorf("the source's event is %+v", e)
		}
		if st := p.Stats(); st.InvalidEvents != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// With token_ids: omit no token is in anything that anybody gets, live, kept for replays,
// in a snapshot or in what a resync tells; a salt never is.
func TestOmittedTokensAreNowhere(t *testing.T) {
	for _, omit := range []bool{false, true} {
		t.Run(fmt.Sprintf("omit %v", omit), func(t *testing.T) {
			o := snapshotOptions(t)
			o.OmitTokens = omit
			p, m := startWith(t, o, 64)
			s := subscribe(t, p)
			next := uint32(0)
			number, tenant := uint64(0x5d2e7f4196a8b3c4), []byte("a tenant's name")
			scopes := []*bindings.Scope{nil, {Salt: &number}, {SaltBytes: tenant}}
			tell := func() {
				t.Helper()
				tokens := make([]uint32, 8)
				for i := range tokens {
					tokens[i] = 0x4f3c2b00 + next
					next++
				}
				if err := serve(m, bindings.Prompt{Tokens: tokens, Scope: scopes[next/8%3]}); err != nil {
					t.Fatal(err)
				}
				mustFlush(t, p)
			}
			found := map[string]int{}
			look := func(way string, payload []byte) {
				t.Helper()
				if bytes.Contains(payload, []byte{0xce, 0x4f, 0x3c, 0x2b}) {
					found[way]++
				}
				if bytes.Contains(payload, tenant) || bytes.Contains(payload, binary.BigEndian.AppendUint64(nil, number)) ||
					bytes.Contains(payload, binary.LittleEndian.AppendUint64(nil, number)) {
					t.Errorf("%s: a salt", way)
				}
				if _, err := wire.Decode(payload, wire.Limits{}); err != nil {
					t.Fatal(err)
				}
			}
			live := func(way string) {
				t.Helper()
				for last := p.Stats().NextSeq - 1; ; {
					_, seq, payload := s.nextFrames()
					look(way, payload)
					if binary.BigEndian.Uint64(seq) == last {
						return
					}
				}
			}
			for range 9 {
				tell()
			}
			live("live")
			c := newDealer(t, p.ReplayEndpoint())
			for start, way := range map[uint64]string{p.Stats().NextSeq - 2: "replay", 0: "snapshot"} {
				c.ask(start)
				for _, r := range c.run() {
					look(way, []byte(r.payload))
				}
			}
			if st := p.Stats(); st.Snapshots != 1 || st.ReplayRequests != 2 {
				t.Errorf("%+v", st)
			}
			if err := p.Resync(withPatience(t)); err != nil {
				t.Fatal(err)
			}
			live("resync")
			if want := 4; omit && len(found) != 0 || !omit && len(found) != want {
				t.Errorf("tokens are in %v", found)
			}
		})
	}
}

// Splitting costs no allocation in the steady state either.
func TestNoAllocationsPerPiece(t *testing.T) {
	o := localOptions(t)
	o.MaxBlocksPerEvent, o.OmitTokens = 1, true
	s, err := o.check()
	if err != nil {
		t.Fatal(err)
	}
	v, verr := newValidator(s)
	if verr != nil {
		t.Fatal(verr)
	}
	events := []event.Event{chain(1, 30), removal(1, 2, 3, 4)}
	var out []event.Event
	if n := testing.AllocsPerRun(50, func() {
		v.begin()
		out = out[:0]
		for _, ev := range events {
			out, _ = v.shape(out, ev, true)
		}
	}); n != 0 || len(out) != 34 {
		t.Errorf("%v allocations, %d pieces", n, len(out))
	}
}
