// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

// mirror is what a subscriber knows, from bytes alone.
type mirror struct {
	t       testing.TB
	blocks  map[wire.Hash]bool
	stored  int
	removed int
	next    uint64
}

// take applies one batch and checks the order of numbers and of parents.
func (m *mirror) take(msg message) {
	m.t.Helper()
	if msg.seq != m.next {
		m.t.Fatalf("number %d, want %d", msg.seq, m.next)
	}
	m.next++
	for i := range msg.batch.Events {
		ev := &msg.batch.Events[i]
		switch ev.Kind {
		case wire.KindCleared:
			if len(msg.batch.Events) != 1 {
				m.t.Errorf("batch %d: a clear in company", msg.seq)
			}
			clear(m.blocks)
		case wire.KindStored:
			if ev.HasParent && !m.blocks[ev.Parent] {
				m.t.Errorf("batch %d: unknown parent %v", msg.seq, ev.Parent)
			}
			if len(ev.Tokens) != int(ev.BlockSize)*len(ev.Hashes) {
				m.t.Errorf("batch %d: %d tokens for %d blocks", msg.seq, len(ev.Tokens), len(ev.Hashes))
			}
			for _, h := range ev.Hashes {
				if m.blocks[h] {
					m.t.Errorf("batch %d: %v stored twice", msg.seq, h)
				}
				m.blocks[h] = true
				m.stored++
			}
		case wire.KindRemoved:
			for _, h := range ev.Hashes {
				if !m.blocks[h] {
					m.t.Errorf("batch %d: %v removed, but not there", msg.seq, h)
				}
				delete(m.blocks, h)
				m.removed++
			}
		}
	}
}

// newAllocator makes a stream and a manager that writes it.
func newAllocator(t testing.TB, s bindings.StreamConfig, m bindings.Config) (*bindings.Stream,
	*bindings.Manager) {
	t.Helper()
	stream, err := bindings.NewStream(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	m.Stream = stream
	manager, err := bindings.NewManager(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	return stream, manager
}

// compute serves one prompt from beginning to end.
func compute(t testing.TB, m *bindings.Manager, tokens []uint32) {
	t.Helper()
	if err := serve(m, bindings.Prompt{Tokens: tokens}); err != nil {
		t.Fatal(err)
	}
}

func serve(m *bindings.Manager, prompt bindings.Prompt) error {
	seq, err := m.Open(prompt)
	if err != nil {
		return err
	}
	if _, err = seq.Grow(len(prompt.Tokens)); err == nil {
		_, err = seq.Commit(prompt.Tokens[seq.MatchedTokens():])
	}
	return errors.Join(err, seq.Release())
}

// The allocator's own stream, attached: at each quiet point a subscriber knows
// exactly what the tree holds. The small buffer makes blocks be deferred all
// the time, which Flush must wait for.
func TestAllocatorToSubscriber(t *testing.T) {
	for _, f := range forms {
		for _, entries := range []int{8, 0} {
			t.Run(fmt.Sprintf("%s/%d", f.name, entries), func(t *testing.T) {
				allocatorToSubscriber(t, f.form, entries)
			})
		}
	}
}

func allocatorToSubscriber(t *testing.T, form event.Form, entries int) {
	const capacity = 96
	random := rand.New(rand.NewPCG(seeds.Of(t), 1))

	stream, manager := newAllocator(t, bindings.StreamConfig{Form: form, MaxEntries: entries},
		bindings.Config{TokensPerBlock: 4, CapacityBlocks: capacity})

	o := localOptions(t)
	o.Hash, o.WaitSubscribers, o.MaxBatchEvents = form, 1, 16
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	p := mustNew(t, o)
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- p.Start(withPatience(t)) }()
	s := newSubscriber(t, nil).connect(<-bound, "")
	if err := <-result; err != nil {
		t.Fatal(err)
	}

	m := &mirror{t: t, blocks: make(map[wire.Hash]bool)}
	for round := range 60 {
		var schedulers sync.WaitGroup
		for range 2 {
			own := rand.New(rand.NewPCG(random.Uint64(), 2))
			schedulers.Add(1)
			go func() {
				defer schedulers.Done()
				for range 15 {
					if err := useOneSequence(own, manager); err != nil {
						t.Error(err)
						return
					}
					stream.Flush()
				}
			}()
		}
		schedulers.Wait()
		if round%7 == 6 {
			if err := manager.Reset(); err != nil {
				t.Fatal(err)
			}
		}
		mustFlush(t, p)
		st := p.Stats()
		checkBalance(t, st, true)
		for m.next < st.NextSeq {
			m.take(s.next())
		}
		compare(t, manager, form, m.blocks)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	// Else the run has shown too little.
	st, err := stream.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if m.stored == 0 || m.removed == 0 || st.ClearedBlocks == 0 {
		t.Errorf("the subscriber saw %d stored and %d removed; stream %+v", m.stored, m.removed, st)
	}
	if entries > 0 && (st.DeferredBlocks == 0 || st.HealedBlocks == 0) {
		t.Errorf("no block was deferred and healed: %+v", st)
	}
	if uint64(m.stored) != st.DrainedStoredBlocks || uint64(m.removed) != st.DrainedRemovedBlocks {
		t.Errorf("the subscriber saw %d stored and %d removed; stream %+v", m.stored, m.removed, st)
	}
	p.Close()
	m.take(s.next())
	if len(m.blocks) != 0 {
		t.Errorf("%d blocks left after the last clear", len(m.blocks))
	}
}

// useOneSequence computes a prompt of up to 16 blocks from a small vocabulary,
// so that prompts share beginnings.
func useOneSequence(random *rand.Rand, m *bindings.Manager) error {
	tokens := make([]uint32, 4+random.IntN(60))
	for i := range tokens {
		tokens[i] = uint32(random.IntN(8) / 7 * (1 + i))
	}
	var scope *bindings.Scope
	if random.IntN(4) == 0 {
		scope = &bindings.Scope{LoRAName: "adapter"}
	}
	return serve(m, bindings.Prompt{Tokens: tokens, Scope: scope})
}

// compare holds a subscriber's set against the tree.
func compare(t *testing.T, m *bindings.Manager, form event.Form, got map[wire.Hash]bool) {
	t.Helper()
	resident, err := m.Resident(form)
	if err != nil {
		t.Fatal(err)
	}
	if len(resident) != len(got) {
		t.Errorf("the subscriber knows %d blocks, the tree holds %d", len(got), len(resident))
	}
	for _, b := range resident {
		h := hashOf(b, form)
		if form == event.Bytes && binary.BigEndian.Uint64(b.Digest[:]) != b.Hash {
			t.Errorf("%x is listed as %x", b.Digest, b.Hash)
		}
		if !got[h] {
			t.Errorf("the subscriber does not know %v", h)
		}
	}
}
