// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

// serveItems serves a prompt in which -i stands for the digest of testDigest(i).
func serveItems(t testing.TB, m *bindings.Manager, tokens []int) {
	t.Helper()
	var prompt bindings.Prompt
	for _, token := range tokens {
		if token >= 0 {
			prompt.Tokens = append(prompt.Tokens, uint32(token))
			continue
		}
		prompt.Tokens = append(prompt.Tokens, bindings.DigestToken(len(prompt.Digests)))
		prompt.Digests = append(prompt.Digests, testDigest(byte(-token)))
	}
	seq, err := m.Open(prompt)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Release()
	if _, err := seq.Grow(len(tokens)); err != nil {
		t.Fatal(err)
	}
	from := seq.MatchedTokens()
	item := bindings.CommitItem{Sequence: seq.ID()}
	for _, token := range tokens[from:] {
		if token >= 0 {
			item.Tokens = append(item.Tokens, uint32(token))
			continue
		}
		item.Tokens = append(item.Tokens, bindings.DigestToken(len(item.Digests)))
		item.Digests = append(item.Digests, testDigest(byte(-token)))
	}
	results := make([]bindings.CommitResult, 1)
	if err := m.Commit([]bindings.CommitItem{item}, results); err != nil || results[0].Err != nil {
		t.Fatal(err, results[0].Err)
	}
}

// told is what a reader is told of one block.
type told struct {
	parent string
	tokens string
	extra  string
}

// blocksTold takes a store apart, block by block.
func blocksTold(e *wire.Event, into map[wire.Hash]told) {
	size := int(e.BlockSize)
	parent := "root"
	if e.HasParent {
		parent = fmt.Sprint(e.Parent)
	}
	for i, h := range e.Hashes {
		b := told{parent: parent, tokens: fmt.Sprint(e.Tokens[i*size : (i+1)*size])}
		if x := e.Extra; x != nil {
			for _, s := range x.StringTokens {
				if at := s.Index - i*size; at >= 0 && at < size {
					b.tokens += fmt.Sprint(at, s.Value)
				}
			}
			if x.ExtraKeys != nil {
				b.extra += fmt.Sprint(x.ExtraKeys[i])
			}
			if x.MMKeys != nil {
				b.extra += fmt.Sprint(x.MMKeys[i])
			}
		}
		if b.extra == "[]" {
			b.extra = ""
		}
		into[h] = b
		parent = fmt.Sprint(h)
	}
}

// What a snapshot tells of multimodal blocks is what was told of them live, with
// the items that go on from block to block; and events that most readers lose are
// where they take nothing else with them.
func TestSnapshotOfMultimodalBlocks(t *testing.T) {
	for _, form := range []MultimodalForm{MultimodalTensorRT, MultimodalExtraKeys} {
		t.Run(string(form), func(t *testing.T) {
			o := snapshotOptions(t)
			o.Multimodal, o.MMTokenIDOffset = form, 1000
			p := mustNew(t, o)
			stream, m := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 4, CapacityBlocks: 400})
			t.Cleanup(func() { p.Close() })
			if err := p.Attach(stream); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			s := subscribe(t, p)
			random := rand.New(rand.NewPCG(seeds.Of(t), 4))
			for range 25 {
				tokens := make([]int, 24)
				item, at := 0, 0
				for k := range tokens {
					switch {
					case k >= 4 && random.IntN(10) == 0:
						item, at = 1+random.IntN(3), 0
						tokens[k] = -item
					case item > 0 && random.IntN(6) > 0:
						at++
						tokens[k] = 1000 + at
					default:
						tokens[k] = random.IntN(2)
					}
				}
				serveItems(t, m, tokens)
				mustFlush(t, p)
			}
			newest := p.Stats().NextSeq - 1
			live := map[wire.Hash]told{}
			for seq := uint64(0); seq != newest; {
				msg := s.next()
				seq = msg.seq
				for i := range msg.batch.Events {
					if msg.batch.Events[i].Kind == wire.KindStored {
						blocksTold(&msg.batch.Events[i], live)
					}
				}
			}
			c := newDealer(t, p.ReplayEndpoint())
			c.ask(0)
			run := c.run()
			snapshot := map[wire.Hash]told{}
			risky, filled := 0, 0
			for n, r := range run {
				b, err := wire.Decode([]byte(r.payload), wire.Limits{})
				if err != nil {
					t.Fatal(err)
				}
				strings := 0
				for i := range b.Events {
					e := &b.Events[i]
					if e.Kind != wire.KindStored {
						continue
					}
					if e.Extra != nil && e.Extra.StringTokens != nil {
						strings++
					}
					if _, ok := snapshot[e.Parent]; e.HasParent && !ok {
						t.Fatalf("batch %d: unknown parent", n)
					}
					blocksTold(e, snapshot)
				}
				if len(b.Events) > 0 {
					filled++
				}
				if n == 0 && strings > 0 {
					t.Errorf("%d events with strings are with the others", strings)
				}
				risky += strings
			}
			if !reflect.DeepEqual(live, snapshot) {
				for h, want := range live {
					if got := snapshot[h]; got != want {
						t.Fatalf("%v: %+v, live it was %+v", h, got, want)
					}
				}
				t.Fatalf("%d blocks, live %d", len(snapshot), len(live))
			}
			if (risky > 0) != (form == MultimodalTensorRT) || filled != 1+min(risky, 1) {
				t.Errorf("%d events with strings, %d batches with events", risky, filled)
			}
		})
	}
}

// Where all that is announced is apart from the clear, because it is risky or too large
// for one message, the first batch is told from an ordinary clear all the same: who
// follows gets there, filled up or not.
func TestSnapshotWithNothingBesideTheClear(t *testing.T) {
	for _, c := range []struct {
		name       string
		limit, pad int
		items      bool
	}{
		{"risky, filled up", maxMessage, 65536, true},
		{"risky, early end", maxMessage, 0, true},
		{"large, filled up", 1, 65536, false},
		{"large, early end", 1, 0, false},
		{"both", 1, 65536, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			o := snapshotOptions(t)
			o.Multimodal, o.ReplayPadLimit = MultimodalTensorRT, c.pad
			if c.limit == 1 {
				o.BufferSteps = 12 // each block is a batch
			}
			p := mustNew(t, o)
			limitMessages(p, c.limit)
			stream, m := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 4, CapacityBlocks: 64})
			t.Cleanup(func() { p.Close() })
			if err := p.Attach(stream); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			use := func(n int) {
				t.Helper()
				for i := range n {
					tokens := []int{i, 1, 2, 3, 4, 5, 6, 7}
					if c.items {
						tokens[1] = -1
					}
					serveItems(t, m, tokens)
					mustFlush(t, p)
				}
			}
			use(8)
			f := newFollowed(t, p, nil)
			f.until("late", patterns(t, m, event.Signed64))
			use(12)
			f.until("behind", patterns(t, m, event.Signed64))
			if f.snapshots < 2 || f.gaps > 0 {
				t.Errorf("%d batches of snapshots, %d gaps", f.snapshots, f.gaps)
			}
			client := newDealer(t, p.ReplayEndpoint())
			client.ask(0)
			b, err := wire.Decode([]byte(client.run()[0].payload), wire.Limits{})
			if err != nil || len(b.Events) != 2 || b.Events[1].Kind != wire.KindCleared {
				t.Errorf("begins with %+v, %v", b, err)
			}
		})
	}
}
