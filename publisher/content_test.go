// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// servePrompt computes a prompt, with its digests, from beginning to end.
func servePrompt(t testing.TB, m *bindings.Manager, prompt bindings.Prompt) {
	t.Helper()
	seq, err := m.Open(prompt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := seq.Grow(len(prompt.Tokens)); err != nil {
		t.Fatal(err)
	}
	item := bindings.CommitItem{Sequence: seq.ID(), Tokens: prompt.Tokens[seq.MatchedTokens():], Digests: prompt.Digests}
	result := make([]bindings.CommitResult, 1)
	if err := m.Commit([]bindings.CommitItem{item}, result); err != nil || result[0].Err != nil {
		t.Fatal(err, result[0].Err)
	}
	if err := seq.Release(); err != nil {
		t.Fatal(err)
	}
}

// The same text as the name of an adapter, as a salt and as an item's digest, and
// the same number as an id and as a salt, are different things: their chains have
// hashes of their own, and go by themselves.
func TestEqualTextsKeepChainsApart(t *testing.T) {
	const blocks = 2
	const text = "0123456789abcdefghijklmnopqrstuv" // 32 bytes, as a digest
	const secret = "not to be seen on the wire"
	seven := uint64(7)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	image := slices.Clone(tokens)
	image[0] = event.DigestToken(0)
	plainText := bindings.Prompt{Tokens: tokens}
	item := bindings.Prompt{Tokens: image, Digests: []event.Digest{event.Digest([]byte(text))}}
	// Of each scope the prompts in it.
	kinds := []struct {
		scope   bindings.Scope
		prompts []bindings.Prompt
	}{
		{bindings.Scope{}, []bindings.Prompt{plainText, item}},
		{bindings.Scope{LoRAName: text}, []bindings.Prompt{plainText, item}},
		{bindings.Scope{SaltBytes: []byte(text)}, []bindings.Prompt{plainText, item}},
		{bindings.Scope{LoRAName: text, SaltBytes: []byte(text)}, []bindings.Prompt{plainText}},
		{bindings.Scope{LoRAName: hex.EncodeToString([]byte(text))}, []bindings.Prompt{plainText}},
		{bindings.Scope{SaltBytes: []byte(hex.EncodeToString([]byte(text)))}, []bindings.Prompt{plainText}},
		{bindings.Scope{LoRAID: &seven}, []bindings.Prompt{plainText}},
		{bindings.Scope{Salt: &seven}, []bindings.Prompt{plainText}},
		{bindings.Scope{LoRAID: &seven, Salt: &seven}, []bindings.Prompt{plainText}},
		{bindings.Scope{LoRAName: "7"}, []bindings.Prompt{plainText}},
		{bindings.Scope{SaltBytes: []byte("7")}, []bindings.Prompt{plainText}},
		{bindings.Scope{SaltBytes: []byte("\x07\x00\x00\x00\x00\x00\x00\x00")}, []bindings.Prompt{plainText}},
		// Where the one ends and the other begins.
		{bindings.Scope{LoRAName: "ab", SaltBytes: []byte("c")}, []bindings.Prompt{plainText}},
		{bindings.Scope{LoRAName: "a", SaltBytes: []byte("bc")}, []bindings.Prompt{plainText}},
		{bindings.Scope{SaltBytes: []byte(secret)}, []bindings.Prompt{plainText}},
	}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			o := localOptions(t)
			o.Hash = f.form
			p := mustNew(t, o)
			stream, m := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 4, CapacityBlocks: 64, MaxDigests: 4})
			t.Cleanup(func() { p.Close() })
			if err := p.Attach(stream); err != nil {
				t.Fatal(err)
			}
			mustStart(t, p)
			s := subscribe(t, p)
			mirror := reader.NewTokenMirror(0)
			read := func() {
				t.Helper()
				mustFlush(t, p)
				for newest := p.Stats().NextSeq - 1; ; {
					_, number, payload := s.nextFrames()
					if bytes.Contains(payload, []byte(secret)) {
						t.Error("a salt is on the wire")
					}
					b, err := wire.Decode(payload, wire.Limits{})
					if err == nil {
						err = mirror.Apply(b.Events)
					}
					if err != nil {
						t.Fatal(err)
					}
					if seq, _ := wire.ParseSeq(number); seq == newest {
						return
					}
				}
			}
			total := 0
			for _, k := range kinds {
				for _, prompt := range k.prompts {
					prompt.Scope = &k.scope
					servePrompt(t, m, prompt)
					total += blocks
				}
			}
			read()
			// wants checks what is matched, here and there, when the first `gone` scopes are.
			wants := func(gone int) {
				t.Helper()
				sameBlocks(t, "mirror", mirror.Mirror, patterns(t, m, f.form))
				told := map[string]int{} // what the stream tells of a prompt, if it is there
				name := func(k int, q bindings.Prompt) (reader.Prompt, string) {
					scope := kinds[k].scope
					out := reader.Prompt{Tokens: q.Tokens, LoRAName: scope.LoRAName}
					key := "name " + scope.LoRAName
					if scope.LoRAID != nil {
						out.LoRAID, out.HasLoRAID = *scope.LoRAID, true
						key += " id"
					}
					if len(q.Digests) > 0 {
						out.StringTokens = []wire.StringToken{{Index: 0, Value: hex.EncodeToString([]byte(text))}}
						key += " item"
					}
					return out, key
				}
				for k := gone; k < len(kinds); k++ {
					for _, q := range kinds[k].prompts {
						_, key := name(k, q)
						told[key] = blocks
					}
				}
				for k, kind := range kinds {
					for i, q := range kind.prompts {
						q.Scope, q.MustCompute = &kind.scope, bindings.ComputeNothing
						out := make([]bindings.ProbeResult, 1)
						if err := m.Probe([]bindings.Prompt{q}, out); err != nil || out[0].Err != nil {
							t.Fatal(err, out[0].Err)
						}
						want := blocks
						if k < gone {
							want = 0
						}
						if got := out[0].MatchedTokens / 4; got != want {
							t.Errorf("%d gone: the tree matches %d blocks of prompt %d of scope %d, want %d", gone, got, i, k, want)
						}
						ask, key := name(k, q)
						if got := mirror.Match(ask); got != told[key] {
							t.Errorf("%d gone: a router matches %d blocks of prompt %d of scope %d (%s), want %d", gone, got, i, k, key, told[key])
						}
					}
				}
			}
			if mirror.Len() != total {
				t.Errorf("%d different hashes of %d blocks", mirror.Len(), total)
			}
			wants(0)
			for k, kind := range kinds {
				dropped := make([]bindings.DropResult, 1)
				if _, err := m.DropScopes([]bindings.DropItem{{Scope: &kind.scope}}, dropped, nil); err != nil || dropped[0].Err != nil {
					t.Fatal(err, dropped[0].Err)
				}
				read()
				if total -= blocks * len(kind.prompts); mirror.Len() != total {
					t.Fatalf("scope %d dropped: %d blocks, want %d", k, mirror.Len(), total)
				}
				wants(k + 1)
			}
		})
	}
}

// However often a block is computed, forked, pinned and matched: one store when it
// first becomes reusable, one removal when it is so no more.
func TestOneStoreAndOneRemoval(t *testing.T) {
	o := localOptions(t)
	p, m := startWith(t, o, 12)
	s := subscribe(t, p)
	stores, removals := map[wire.Hash]int{}, map[wire.Hash]int{}
	read := func() (batches int) {
		t.Helper()
		mustFlush(t, p)
		for newest := p.Stats().NextSeq - 1; ; batches++ {
			if n := uint64(batches); n > newest {
				t.Fatal("too many batches")
			}
			msg := s.next()
			for _, e := range msg.batch.Events {
				for _, h := range e.Hashes {
					if e.Kind == wire.KindStored {
						stores[h]++
					} else {
						removals[h]++
					}
				}
			}
			if msg.seq == newest {
				return batches + 1
			}
		}
	}
	quiet := func(what string, from uint64) {
		t.Helper()
		mustFlush(t, p)
		if next := p.Stats().NextSeq; next != from {
			t.Errorf("%s: %d batches", what, next-from)
		}
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	// Four compute the same at once; the first to commit makes the blocks reusable.
	var seqs []*bindings.Sequence
	for range 4 {
		seq, err := m.Open(bindings.Prompt{Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seq.Grow(len(tokens)); err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	if _, err := seqs[0].Commit(tokens); err != nil {
		t.Fatal(err)
	}
	read()
	next := p.Stats().NextSeq
	for _, seq := range seqs[1:] {
		if r, err := seq.Commit(tokens); err != nil || r.StoredBlocks != 0 || r.DeduplicatedBlocks != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	forks := make([]bindings.ForkResult, 1)
	if err := m.Fork([]bindings.ForkItem{{Sequence: seqs[1].ID()}}, forks); err != nil || forks[0].Err != nil {
		t.Fatal(err, forks[0].Err)
	}
	pins := make([]bindings.PinResult, 1)
	if err := m.PinPrompts([]bindings.Prompt{{Tokens: tokens}}, pins); err != nil || pins[0].Err != nil {
		t.Fatal(err, pins[0].Err)
	}
	for _, seq := range seqs {
		if err := seq.Release(); err != nil {
			t.Fatal(err)
		}
	}
	compute(t, m, tokens) // a hit
	quiet("more copies, forks, pins and hits", next)
	errs := make([]error, 1)
	if err := m.Release([]bindings.SequenceID{forks[0].Sequence.ID()}, errs); err != nil || errs[0] != nil {
		t.Fatal(err, errs[0])
	}
	if err := m.Unpin([]bindings.Pin{pins[0].Pin}, errs); err != nil || errs[0] != nil {
		t.Fatal(err, errs[0])
	}
	quiet("the last of them let go", next)
	// Others need their pages, more than once.
	for i := range uint32(4) {
		other := make([]uint32, 48)
		for k := range other {
			other[k] = 1000*(i+1) + uint32(k)
		}
		compute(t, m, other)
		read()
	}
	if st, err := m.Stats(); err != nil || st.DeduplicatedBlocks < 6 || st.EvictedBlocks < 8 {
		t.Errorf("%+v, %v", st, err)
	}
	gone := 0
	for h, n := range stores {
		if n != 1 || removals[h] > 1 {
			t.Errorf("%v: %d stores, %d removals", h, n, removals[h])
		}
		gone += removals[h]
	}
	if left := len(patterns(t, m, event.Signed64)); gone+left != len(stores) || len(removals) != gone || gone < 8 {
		t.Errorf("%d stored, %d removed, %d left", len(stores), gone, left)
	}
}

// brokenEncoder fails as long as it is told to.
type brokenEncoder struct {
	*wire.Encoder
	broken *atomic.Bool
}

func (b brokenEncoder) AppendBatch(dst []byte, ts float64, events []event.Event, rank uint64) ([]byte, error) {
	if b.broken.Load() {
		return dst, errors.New("no words for it")
	}
	return b.Encoder.AppendBatch(dst, ts, events, rank)
}

// A batch that cannot be encoded is a gap, and with on_loss everything is told anew
// behind it, until that succeeds; the batch is in no replay.
func TestEncodeFailure(t *testing.T) {
	for _, policy := range []OnLoss{LossGap, LossResync} {
		t.Run(string(policy), func(t *testing.T) {
			o := replayOptions(t)
			o.OnLoss, o.Warn = policy, nil
			p := mustNew(t, o)
			var broken atomic.Bool
			p.newEncoder = func(c wire.Config) (batchEncoder, error) {
				encoder, err := wire.NewEncoder(c)
				return brokenEncoder{encoder, &broken}, err
			}
			_, m, _ := startStream(t, p, 64)
			grow(t, p, m, 0, 3)
			s := subscribe(t, p)
			mirror := reader.NewMirror(0)
			broken.Store(true)
			compute(t, m, []uint32{9, 9, 9, 9, 8, 8, 8, 8})
			if err := p.Flush(withPatience(t)); !errors.Is(err, ErrDropped) {
				t.Fatalf("%v", err)
			}
			lost := p.Stats().NextSeq - 1
			if policy == LossResync {
				// The first one fails as well, and is tried again.
				eventually(t, "a resync that fails", func() bool { return p.Stats().SendErrorDrops > 1 })
			}
			broken.Store(false)
			compute(t, m, []uint32{9, 9, 9, 9, 7, 7, 7, 7})
			if policy == LossResync {
				eventually(t, "resync", func() bool { return p.Stats().Resyncs > 0 })
			}
			if err := p.Flush(withPatience(t)); err != nil && (policy == LossGap || !errors.Is(err, ErrDropped)) {
				t.Fatal(err) // the resync that failed is told of
			}
			st := p.Stats()
			checkBalance(t, st, true)
			newest, want := st.NextSeq-1, patterns(t, m, event.Signed64)
			last := lost
			for last != newest {
				msg := s.next()
				if msg.seq <= lost {
					t.Fatalf("batch %d was sent", msg.seq)
				}
				last = msg.seq
				if err := mirror.Apply(msg.batch.Events); err != nil {
					t.Fatal(err)
				}
			}
			if policy == LossResync {
				sameBlocks(t, "after the resync", mirror, want)
			} else if mirror.Len() != 1 || st.SendErrorDrops != 1 {
				t.Errorf("%d blocks behind the gap; %+v", mirror.Len(), st)
			}
			c := newDealer(t, p.ReplayEndpoint())
			c.ask(lost)
			run := c.run()
			// The lost batch cannot be had, so this is a snapshot under its number.
			if run[0].seq != lost {
				t.Errorf("a replay from %d begins with %d", lost, run[0].seq)
			}
			sameBlocks(t, "replay", applied(t, run), want)
		})
	}
}
