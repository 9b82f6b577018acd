// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// newManager makes a manager of 4-token blocks that the test closes at its end.
func newManager(t testing.TB, config bindings.Config) *bindings.Manager {
	t.Helper()
	if config.TokensPerBlock == 0 {
		config.TokensPerBlock = 4
	}
	if config.Seed == 0 {
		config.Seed = 1
	}
	m, err := bindings.NewManager(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// newPair makes a manager with a stream, both closed at the end.
func newPair(t testing.TB, config bindings.Config, sc bindings.StreamConfig) (*bindings.Manager,
	*bindings.Stream) {
	t.Helper()
	s, err := bindings.NewStream(sc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close stream: %v", err)
		}
	})
	config.Stream = s
	return newManager(t, config), s
}

// sequential is first, first+1, ...
func sequential(first, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return tokens
}

func open(t testing.TB, m *bindings.Manager, p bindings.Prompt) *bindings.Sequence {
	t.Helper()
	s, err := m.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func grow(t testing.TB, s *bindings.Sequence, capacity int) {
	t.Helper()
	if _, err := s.Grow(capacity); err != nil {
		t.Fatal(err)
	}
}

func commit(t testing.TB, s *bindings.Sequence, tokens []uint32) bindings.CommitResult {
	t.Helper()
	r, err := s.Commit(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func release(t testing.TB, s *bindings.Sequence) {
	t.Helper()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
}

// store leaves the full blocks of tokens in the tree, held by nobody.
func store(t testing.TB, m *bindings.Manager, tokens []uint32) {
	t.Helper()
	s := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens})
	grow(t, s, len(tokens))
	commit(t, s, tokens[s.MatchedTokens():])
	release(t, s)
}

func drain(t testing.TB, s *bindings.Stream) *bindings.Batch {
	t.Helper()
	b, err := s.Drain(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestItemErrors: each status that an item can meet, and that the items beside
// it do not notice.
func TestItemErrors(t *testing.T) {
	long := strings.Repeat("x", 256)
	m := newManager(t, bindings.Config{CapacityBlocks: 4, MaxSequences: 3})
	full := open(t, m, bindings.Prompt{})
	grow(t, full, 12) // three of the four pages
	other := open(t, m, bindings.Prompt{})
	gone := open(t, m, bindings.Prompt{})
	release(t, gone)

	create := func(p bindings.Prompt) func() error {
		return func() error {
			out := make([]bindings.CreateResult, 1)
			if err := m.Create([]bindings.Prompt{p}, out); err != nil {
				return err
			}
			if out[0].Err == nil {
				release(t, &out[0].Sequence)
			} else if out[0].Sequence.ID() != 0 || out[0].MatchedTokens != 0 {
				t.Errorf("a failed item has a result: %+v", out[0])
			}
			return out[0].Err
		}
	}
	growBy := func(id bindings.SequenceID, capacity int) func() error {
		return func() error {
			out := make([]bindings.GrowResult, 1)
			if err := m.Grow([]bindings.GrowItem{{Sequence: id, CapacityTokens: capacity}}, out); err != nil {
				return err
			}
			return out[0].Err
		}
	}
	commitTo := func(id bindings.SequenceID, tokens ...uint32) func() error {
		return func() error {
			out := make([]bindings.CommitResult, 1)
			if err := m.Commit([]bindings.CommitItem{{Sequence: id, Tokens: tokens}}, out); err != nil {
				return err
			}
			return out[0].Err
		}
	}
	tooBig, id := uint64(1)<<63, uint64(math.MaxInt64)
	for _, test := range []struct {
		name string
		call func() error
		want error
	}{
		{"create", create(bindings.Prompt{Tokens: []uint32{1, math.MaxInt32}}), nil},
		{"create, largest LoRA id", create(bindings.Prompt{Scope: &bindings.Scope{LoRAID: &id}}), nil},
		{"create, token above 2^31", create(bindings.Prompt{Tokens: []uint32{1 << 31}}), bindings.ErrInvalidArgument},
		{"create, LoRA id above 2^63", create(bindings.Prompt{Scope: &bindings.Scope{LoRAID: &tooBig}}), bindings.ErrInvalidArgument},
		{"create, LoRA name too long", create(bindings.Prompt{Scope: &bindings.Scope{LoRAName: long}}), bindings.ErrInvalidArgument},
		{"create, LoRA name not UTF-8", create(bindings.Prompt{Scope: &bindings.Scope{LoRAName: "\xff"}}), bindings.ErrInvalidArgument},
		{"create, empty salt", create(bindings.Prompt{Scope: &bindings.Scope{SaltBytes: []byte{}}}), bindings.ErrInvalidArgument},
		{"create, long salt", create(bindings.Prompt{Scope: &bindings.Scope{SaltBytes: []byte(long)}}), bindings.ErrInvalidArgument},
		{"create, no such device stream", create(bindings.Prompt{DeviceStream: 12345}), bindings.ErrStaleHandle},
		{"grow to the same", growBy(full.ID(), 1), nil},
		{"grow, never fits", growBy(other.ID(), 17), bindings.ErrNeverFits},
		{"grow, not now", growBy(other.ID(), 8), bindings.ErrNotNow},
		{"grow, released", growBy(gone.ID(), 4), bindings.ErrStaleHandle},
		{"grow, never was", growBy(0, 4), bindings.ErrStaleHandle},
		{"commit nothing", commitTo(full.ID()), nil},
		{"commit without room", commitTo(other.ID(), 1), bindings.ErrBadState},
		{"commit, token above 2^31", commitTo(full.ID(), 1<<31), bindings.ErrInvalidArgument},
		{"commit, released", commitTo(gone.ID(), 1), bindings.ErrStaleHandle},
		{"release, released", gone.Release, bindings.ErrStaleHandle},
		{"release, zero view", bindings.Sequence{}.Release, bindings.ErrStaleHandle},
		{"pages, released", func() error { _, err := gone.Pages(nil); return err }, bindings.ErrStaleHandle},
		{"info, released", func() error { _, err := gone.Info(); return err }, bindings.ErrStaleHandle},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, _ := m.Stats()
			err := test.call()
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if test.want == nil {
				return
			}
			var e *bindings.Error
			if !errors.As(err, &e) || e.Op == "" || !errors.Is(err, &bindings.Error{Status: e.Status}) {
				t.Errorf("not an *Error with an operation: %#v", err)
			}
			// An item that fails leaves pages, tree and sequences as they were.
			after, _ := m.Stats()
			before.RefusedNotNow, before.RefusedNeverFits = after.RefusedNotNow, after.RefusedNeverFits
			if before != after {
				t.Errorf("stats changed\n from %+v\n to   %+v", before, after)
			}
		})
	}

	t.Run("create, all sequences open", func(t *testing.T) {
		last := open(t, m, bindings.Prompt{})
		if _, err := m.Open(bindings.Prompt{}); !errors.Is(err, bindings.ErrNotNow) {
			t.Errorf("error %v", err)
		}
		release(t, last)
	})
	t.Run("neighbours", func(t *testing.T) {
		out := make([]bindings.GrowResult, 3)
		err := m.Grow([]bindings.GrowItem{{gone.ID(), 4}, {other.ID(), 4}, {other.ID(), 400}}, out)
		if err != nil {
			t.Fatal(err)
		}
		if !errors.Is(out[0].Err, bindings.ErrStaleHandle) || out[1].Err != nil ||
			out[1].AddedPages != 1 || !errors.Is(out[2].Err, bindings.ErrNeverFits) {
			t.Errorf("results %+v", out)
		}
	})
	release(t, full)
	release(t, other)
}

// TestCallErrors: what is wrong with a call as a whole.
func TestCallErrors(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 4})
	s := open(t, m, bindings.Prompt{})
	defer release(t, s)
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	newManager(t, bindings.Config{Stream: stream})
	closed, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	fails := func(_ any, err error) error { return err }
	for _, test := range []struct {
		name string
		err  error
		want error
	}{
		{"create, results too short", m.Create(make([]bindings.Prompt, 2), make([]bindings.CreateResult, 1)), bindings.ErrInvalidArgument},
		{"create, negative MustCompute", m.Create([]bindings.Prompt{{MustCompute: -2}}, make([]bindings.CreateResult, 1)), bindings.ErrInvalidArgument},
		{"probe, results too short", m.Probe(make([]bindings.Prompt, 1), nil), bindings.ErrInvalidArgument},
		{"grow, results too short", m.Grow(make([]bindings.GrowItem, 1), nil), bindings.ErrInvalidArgument},
		{"grow, negative", fails(s.Grow(-1)), bindings.ErrInvalidArgument},
		{"commit, results too short", m.Commit(make([]bindings.CommitItem, 1), nil), bindings.ErrInvalidArgument},
		{"release, errors too short", m.Release(make([]bindings.SequenceID, 1), nil), bindings.ErrInvalidArgument},
		{"fences, answers too short", m.FencesReached(make([]bindings.Fence, 1), nil), bindings.ErrInvalidArgument},
		{"fence that was never handed out", m.FencesReached([]bindings.Fence{{Stream: 999, Position: 1}}, make([]bool, 1)), bindings.ErrInvalidArgument},
		{"advance, negative", fails(m.HostAdvance(0, -1)), bindings.ErrInvalidArgument},
		{"advance a stream that is not", fails(m.HostAdvance(77, 1)), bindings.ErrStaleHandle},
		{"destroy a stream that is not", m.DestroyDeviceStream(77), bindings.ErrStaleHandle},
		{"destroy the host", m.DestroyDeviceStream(0), bindings.ErrInvalidArgument},
		{"fill beyond the pool", m.HostFill(0, []bindings.Fill{{Page: 4}}), bindings.ErrInvalidArgument},
		{"read beyond the page", m.HostRead(0, 1, make([]byte, 8)), bindings.ErrInvalidArgument},
		{"resident, no such form", fails(m.Resident(9)), bindings.ErrInvalidArgument},
		{"drain, negative", fails(stream.Drain(-1, 0)), bindings.ErrInvalidArgument},
		{"new manager, negative", fails(bindings.NewManager(bindings.Config{CapacityBlocks: -1})), bindings.ErrInvalidArgument},
		{"new manager, block too large", fails(bindings.NewManager(bindings.Config{TokensPerBlock: 4097})), bindings.ErrInvalidArgument},
		{"new manager, pool too large", fails(bindings.NewManager(bindings.Config{CapacityBlocks: 1<<27 + 1})), bindings.ErrInvalidArgument},
		{"new manager, odd page", fails(bindings.NewManager(bindings.Config{PageBytes: 12})), bindings.ErrInvalidArgument},
		{"new manager, stream from nowhere", fails(bindings.NewManager(bindings.Config{Stream: new(bindings.Stream)})), bindings.ErrInvalidArgument},
		{"new manager, stream in use", fails(bindings.NewManager(bindings.Config{Stream: stream})), bindings.ErrBusy},
		{"new manager, stream closed", fails(bindings.NewManager(bindings.Config{Stream: closed})), bindings.ErrClosed},
		{"new stream, no such form", fails(bindings.NewStream(bindings.StreamConfig{Form: 4})), bindings.ErrInvalidArgument},
		{"new stream, negative", fails(bindings.NewStream(bindings.StreamConfig{MaxEntries: -1})), bindings.ErrInvalidArgument},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !errors.Is(test.err, test.want) {
				t.Fatalf("error %v, want %v", test.err, test.want)
			}
			var e *bindings.Error
			if !errors.As(test.err, &e) || e.Detail == "" && e.Status != bindings.StatusClosed {
				t.Errorf("no detail in %v", test.err)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	e := &bindings.Error{Op: "grow", Status: bindings.StatusNotNow, Detail: "why", SystemCode: 12}
	if got, want := e.Error(), "bindings: grow: not now: why (code 12)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if errors.Is(e, bindings.ErrNeverFits) || errors.Is(e, &bindings.Error{Op: "commit", Status: e.Status}) {
		t.Error("matches what it is not")
	}
	if !errors.Is(e, &bindings.Error{Op: "grow", Status: bindings.StatusNotNow}) {
		t.Error("does not match its like")
	}
}

// TestErrorCause: errors.Is finds why there is no device, beside that there is none.
func TestErrorCause(t *testing.T) {
	e := &bindings.Error{Op: "open CUDA", Status: bindings.StatusNoDevice, Cause: bindings.CauseTooOld}
	if !errors.Is(e, bindings.ErrNoDevice) || !errors.Is(e, bindings.CauseTooOld) {
		t.Error("does not match its own")
	}
	if errors.Is(e, bindings.CauseAbsent) || errors.Is(&bindings.Error{}, bindings.CauseNone) {
		t.Error("matches what it is not")
	}
	names := map[string]bool{}
	for cause := bindings.CauseNone; cause <= bindings.CauseForked+1; cause++ {
		if name := cause.Error(); name == "" || names[name] {
			t.Errorf("cause %d is called %q", uint32(cause), name)
		} else {
			names[name] = true
		}
	}
	if got := (bindings.CauseForked + 1).Error(); got != "cause 14" {
		t.Errorf("an unknown one is called %q", got)
	}
}

// TestClosed: after Close every call says so, and Close itself is idempotent.
func TestClosed(t *testing.T) {
	s, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m := newManager(t, bindings.Config{Stream: s})
	q := open(t, m, bindings.Prompt{})
	if err := m.Close(); !errors.Is(err, bindings.ErrBusy) {
		t.Fatalf("close with an open sequence: %v", err)
	}
	grow(t, q, 4) // it still works
	release(t, q)
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"create":         m.Create(make([]bindings.Prompt, 1), make([]bindings.CreateResult, 1)),
		"open":           fails(m.Open(bindings.Prompt{})),
		"probe":          m.Probe(make([]bindings.Prompt, 1), make([]bindings.ProbeResult, 1)),
		"grow":           fails(q.Grow(1)),
		"commit":         fails(q.Commit(nil)),
		"release":        q.Release(),
		"pages":          fails(q.Pages(nil)),
		"info":           fails(q.Info()),
		"reset":          m.Reset(),
		"stats":          fails(m.Stats()),
		"check":          m.Check(),
		"resident":       fails(m.Resident(event.Signed64)),
		"device stream":  fails(m.NewDeviceStream()),
		"destroy stream": m.DestroyDeviceStream(1),
		"fences":         m.FencesReached(nil, nil),
		"wait":           m.StreamWait(0, nil),
		"fill":           m.HostFill(0, nil),
		"advance":        fails(m.HostAdvance(0, 1)),
		"read":           m.HostRead(0, 0, nil),
	} {
		if !errors.Is(err, bindings.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Drain(0, 0); err != io.EOF {
		t.Errorf("drain: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Drain(0, 0); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("drain: %v", err)
	}
	if _, err := s.Stats(); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("stats: %v", err)
	}
	s.Flush() // harmless
}

// TestDrainAfterClose: what was recorded outlives the manager.
func TestDrainAfterClose(t *testing.T) {
	m, s := newPair(t, bindings.Config{}, bindings.StreamConfig{})
	store(t, m, sequential(0, 8))
	store(t, m, sequential(100, 4))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Wake():
	default:
		t.Error("Close did not wake the drainer")
	}
	blocks := 0
	for {
		b, err := s.Drain(1, 0)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		blocks += b.Blocks
	}
	if blocks != 3 {
		t.Errorf("%d blocks, want 3", blocks)
	}
	if _, err := s.Drain(0, 0); err != io.EOF {
		t.Errorf("drain again: %v", err)
	}
	stats, err := s.Stats()
	if err != nil || stats.Attached || stats.DrainedStoredBlocks != 3 {
		t.Errorf("stats %+v, %v", stats, err)
	}
}

// TestGoldenEvents holds the published keys for tokens 0..7 in blocks of four.
func TestGoldenEvents(t *testing.T) {
	m, s := newPair(t, bindings.Config{}, bindings.StreamConfig{})
	store(t, m, sequential(0, 8))
	b := drain(t, s)
	if len(b.Events) != 1 || b.Blocks != 2 {
		t.Fatalf("%d events, %d blocks", len(b.Events), b.Blocks)
	}
	e := b.Events[0].(*bindings.BlockStored)
	if want := []uint64{8901721255985266736, 1735720619063549889}; !slices.Equal(e.Hashes, want) {
		t.Errorf("hashes %d, want %d", e.Hashes, want)
	}
	if e.HasParent || e.BlockSize != 4 || !slices.Equal(e.Tokens, sequential(0, 8)) ||
		e.Medium != "GPU" || e.HasLoRAID || e.LoRAName != "" {
		t.Errorf("event %+v", e)
	}
	b.Release()
}

// TestBorrowedBatch: a batch and its events are visibly void after Release and
// after the next drain, and a clone is not.
func TestBorrowedBatch(t *testing.T) {
	for name, form := range map[string]event.Form{"hashes": event.Signed64, "digests": event.Bytes} {
		t.Run(name, func(t *testing.T) {
			m, s := newPair(t, bindings.Config{CapacityBlocks: 2}, bindings.StreamConfig{Form: form})
			store(t, m, sequential(0, 8))
			store(t, m, sequential(50, 8)) // evicts both
			void := func(b *bindings.Batch, stored *bindings.BlockStored, removed *bindings.BlockRemoved) {
				t.Helper()
				if b.Events != nil || b.Blocks != 0 {
					t.Errorf("the batch still has %d events", len(b.Events))
				}
				if stored.Hashes != nil || stored.Digests != nil || stored.Tokens != nil ||
					stored.BlockSize != 0 || removed != nil && removed.HasMedium {
					t.Errorf("the events are still set: %+v %+v", stored, removed)
				}
			}
			b := drain(t, s)
			if len(b.Events) != 3 {
				t.Fatalf("%d events", len(b.Events))
			}
			stored, removed := b.Events[0].(*bindings.BlockStored), b.Events[1].(*bindings.BlockRemoved)
			clone := b.Clone()
			b.Release()
			void(b, stored, removed)
			b.Release() // harmless

			store(t, m, sequential(90, 8))
			first := drain(t, s)
			stored = first.Events[1].(*bindings.BlockStored)
			second := drain(t, s) // takes the first one back
			void(first, stored, nil)
			if len(second.Events) != 0 {
				t.Errorf("%d events", len(second.Events))
			}
			first.Release() // must not give the second one back
			second.Release()

			kept := clone.Events[0].(*bindings.BlockStored)
			if clone.Blocks != 6 || !slices.Equal(kept.Tokens, sequential(0, 8)) ||
				len(kept.Hashes)+len(kept.Digests) != 2 ||
				len(clone.Events[1].(*bindings.BlockRemoved).Hashes)+len(clone.Events[1].(*bindings.BlockRemoved).Digests) != 2 {
				t.Errorf("the clone has changed: %+v", kept)
			}
			if r := clone.Events[1].(*bindings.BlockRemoved).Reasons; !slices.Equal(r, []bindings.EvictedReason{bindings.EvictedCapacity, bindings.EvictedCapacity}) {
				t.Errorf("the clone's blocks went for %v", r)
			}
			clone.Release()
			if len(clone.Events) != 3 {
				t.Error("releasing a clone emptied it")
			}
		})
	}
}

// TestDedup: two sequences compute the same blocks and share them after the
// second commit.
func TestDedup(t *testing.T) {
	m, s := newPair(t, bindings.Config{CapacityBlocks: 8}, bindings.StreamConfig{})
	tokens := sequential(0, 10)
	a, b := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens}), open(t, m, bindings.Prompt{Tokens: tokens})
	grow(t, a, 10)
	grow(t, b, 10)
	own, _ := b.Pages(nil)
	if r := commit(t, a, tokens); r.StoredBlocks != 2 || r.DeduplicatedBlocks != 0 || r.FirstChangedBlock != -1 || r.CommittedTokens != 10 {
		t.Errorf("first commit %+v", r)
	}
	if r := commit(t, b, tokens); r.StoredBlocks != 0 || r.DeduplicatedBlocks != 2 || r.FirstChangedBlock != 0 || r.CommittedTokens != 10 {
		t.Errorf("second commit %+v", r)
	}
	pa, _ := a.Pages(nil)
	pb, _ := b.Pages(nil)
	if !slices.Equal(pa[:2], pb[:2]) || pb[2] != own[2] || pa[2] == pb[2] {
		t.Errorf("pages %v and %v, before %v", pa, pb, own)
	}
	stats, _ := m.Stats()
	if stats.LivePages != 4 || stats.FreePages != 4 || stats.Blocks != 2 {
		t.Errorf("stats %+v", stats)
	}
	release(t, a)
	release(t, b)
	if got := drain(t, s); got.Blocks != 2 {
		t.Errorf("%d blocks announced, want 2", got.Blocks)
	} else {
		got.Release()
	}
}

// TestFences: a freed page is its own stream's at once and everybody else's
// only after its fence; a match says what to wait for.
func TestFences(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 2, PageBytes: 8, Poison: true, ResumeGatePermille: 1000})
	s1, err := m.NewDeviceStream()
	if err != nil {
		t.Fatal(err)
	}
	s2, err := m.NewDeviceStream()
	if err != nil {
		t.Fatal(err)
	}
	fill := func(q *bindings.Sequence, stream bindings.DeviceStream, value uint64) {
		t.Helper()
		pages, err := q.Pages(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			if err := m.HostFill(stream, []bindings.Fill{{Page: p, Value: value}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Uncommitted pages with writes on the way go into quarantine.
	a := open(t, m, bindings.Prompt{DeviceStream: s1})
	grow(t, a, 8)
	fill(a, s1, 1)
	release(t, a)
	if stats, _ := m.Stats(); stats.QuarantinedPages != 2 || stats.FreePages != 0 {
		t.Fatalf("stats %+v", stats)
	}
	b := open(t, m, bindings.Prompt{DeviceStream: s2})
	if r, err := b.Grow(4); !errors.Is(err, bindings.ErrNotNow) || r.LeavingPages != 2 {
		t.Errorf("another stream: %+v, %v", r, err)
	}
	c := open(t, m, bindings.Prompt{DeviceStream: s1})
	grow(t, c, 4) // the same stream takes one at once
	if n, err := m.HostAdvance(s1, 100); n != 2 || err != nil {
		t.Fatalf("executed %d, %v", n, err)
	}
	grow(t, b, 4) // and now the other one is free

	// A committed page carries its fence.
	fill(c, s1, 7)
	commit(t, c, sequential(0, 4))
	d := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: sequential(0, 4), DeviceStream: s2})
	waits := d.Waits(nil)
	if d.MatchedTokens() != 4 || len(waits) != 1 || waits[0].Stream != s1 {
		t.Fatalf("matched %d, waits %v", d.MatchedTokens(), waits)
	}
	done := make([]bool, 1)
	if err := m.FencesReached(waits, done); err != nil || done[0] {
		t.Errorf("reached before its time: %v, %v", done, err)
	}
	// What waits for it comes after it, whoever is asked to advance.
	if err := m.StreamWait(s2, waits); err != nil {
		t.Fatal(err)
	}
	fill(b, s2, 9)
	if n, err := m.HostAdvance(s2, 1); n != 1 || err != nil {
		t.Errorf("executed %d, %v", n, err)
	}
	if err := m.FencesReached(waits, done); err != nil || !done[0] {
		t.Errorf("not reached: %v, %v", done, err)
	}
	pages, _ := d.Pages(nil)
	word := make([]byte, 8)
	if err := m.HostRead(pages[0], 0, word); err != nil || !bytes.Equal(word, []byte{7, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("page holds %v, %v", word, err)
	}
	for _, q := range []*bindings.Sequence{b, c, d} {
		release(t, q)
	}
	if _, err := m.HostAdvance(0, 100); err != nil {
		t.Fatal(err)
	}
	for _, id := range []bindings.DeviceStream{s1, s2} {
		if err := m.DestroyDeviceStream(id); err != nil {
			t.Error(err)
		}
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// TestClaim: a stream has one drainer.
func TestClaim(t *testing.T) {
	stream, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	m := newManager(t, bindings.Config{Stream: stream})
	store(t, m, sequential(0, 8))
	borrowed, err := stream.Drain(0, 0)
	if err != nil || len(borrowed.Events) != 1 {
		t.Fatalf("%v, %v", borrowed, err)
	}
	if _, err := stream.Claim(); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("claim while a batch is borrowed: %v", err)
	}
	borrowed.Release()
	d, err := stream.Claim()
	if err != nil {
		t.Fatal(err)
	}
	if d.Form() != stream.Form() || d.Wake() != stream.Wake() {
		t.Error("the drainer is not the stream's")
	}
	store(t, m, sequential(100, 8))
	b, err := d.Drain(0, 0)
	if err != nil || len(b.Events) != 1 {
		t.Fatalf("%v, %v", b, err)
	}
	// Nobody else can take the batch back, or what comes next.
	if _, err := stream.Drain(0, 0); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("drain of a claimed stream: %v", err)
	}
	if _, err := stream.Claim(); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("second claim: %v", err)
	}
	if stored, ok := b.Events[0].(*bindings.BlockStored); !ok || len(stored.Hashes) != 2 {
		t.Errorf("the batch changed: %+v", b.Events[0])
	}
	// The right is given up before the batch is: it stays with whoever reads it.
	d.Release()
	d.Release()
	if _, err := d.Drain(0, 0); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("drain after release: %v", err)
	}
	for range 2 {
		if _, err := stream.Drain(0, 0); !errors.Is(err, bindings.ErrBusy) {
			t.Errorf("drain while another's batch is borrowed: %v", err)
		}
	}
	if _, err := stream.Claim(); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("claim while another's batch is borrowed: %v", err)
	}
	if len(b.Events) != 1 {
		t.Fatal("the batch was taken back")
	}
	if stored, ok := b.Events[0].(*bindings.BlockStored); !ok || len(stored.Hashes) != 2 || len(stored.Tokens) != 8 {
		t.Errorf("the batch changed: %+v", b.Events[0])
	}
	b.Release()
	if _, err := stream.Drain(0, 0); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Claim(); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("claim after close: %v", err)
	}
}

// TestQuarantineOfTwoStreams: a page that two streams have used is as good as
// free to the one that is left when the other has finished.
func TestQuarantineOfTwoStreams(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 2, PageBytes: 8, Poison: true})
	var streams [2]bindings.DeviceStream
	var users [2]*bindings.Sequence
	tokens := sequential(0, 4)
	for i := range streams {
		id, err := m.NewDeviceStream()
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = id
		users[i] = open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens, DeviceStream: id})
		grow(t, users[i], 4*(i+1)) // the second one has a page of its own beside the match
		pages, err := users[i].Pages(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.HostFill(id, []bindings.Fill{{Page: pages[i], Value: 1}}); err != nil {
			t.Fatal(err)
		}
		commit(t, users[i], tokens[users[i].MatchedTokens():])
	}
	for _, q := range users {
		release(t, q)
	}
	if err := m.Reset(); err != nil {
		t.Fatal(err)
	}
	if n, err := m.HostAdvance(streams[0], 100); n != 1 || err != nil {
		t.Fatalf("executed %d, %v", n, err)
	}
	q := open(t, m, bindings.Prompt{DeviceStream: streams[1]})
	if r, err := q.Grow(8); err != nil || r.AddedPages != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	release(t, q)
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// TestManyStreams: a sequence is told the fences of all streams, also of more
// than a result names by itself.
func TestManyStreams(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 16, PageBytes: 8})
	const streams = 7
	all := sequential(0, 4*streams)
	var last bindings.DeviceStream
	for i := range streams {
		id, err := m.NewDeviceStream()
		if err != nil {
			t.Fatal(err)
		}
		q := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: all, DeviceStream: id})
		grow(t, q, 4*(i+1))
		pages, _ := q.Pages(nil)
		if err := m.HostFill(id, []bindings.Fill{{Page: pages[i], Value: uint64(i)}}); err != nil {
			t.Fatal(err)
		}
		commit(t, q, all[4*i:4*i+4])
		release(t, q)
		last = id
	}
	q := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: all})
	waits := q.Waits(nil)
	if q.MatchedTokens() != len(all) || len(waits) != streams {
		t.Fatalf("matched %d, waits %v", q.MatchedTokens(), waits)
	}
	done := make([]bool, len(waits))
	reached := func() bool {
		if err := m.FencesReached(waits, done); err != nil {
			t.Fatal(err)
		}
		return !slices.Contains(done, false)
	}
	if _, err := m.HostAdvance(last, 1); err != nil || reached() {
		t.Errorf("reached with %d streams outstanding, %v", streams-1, err)
	}
	if n, err := m.HostAdvance(0, 1000); n != streams-1 || err != nil || !reached() {
		t.Errorf("executed %d, %v, reached %v", n, err, done)
	}
	release(t, q)
}

// TestScopes: each part of a scope separates, and a LoRA name takes its id's place.
func TestScopes(t *testing.T) {
	one, two := uint64(1), uint64(2)
	zero := uint64(0)
	m, s := newPair(t, bindings.Config{}, bindings.StreamConfig{})
	tokens := sequential(0, 4)
	scopes := []*bindings.Scope{
		nil, {LoRAID: &zero}, {LoRAID: &one}, {Salt: &zero}, {Salt: &one}, {LoRAID: &one, Salt: &one},
		{LoRAName: "a"}, {LoRAName: "b", LoRAID: &one}, {SaltBytes: []byte("a")}, {SaltBytes: []byte{0}},
	}
	for i, scope := range scopes {
		q := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens, Scope: scope})
		if q.MatchedTokens() != 0 {
			t.Errorf("scope %d finds another's blocks", i)
		}
		grow(t, q, 4)
		commit(t, q, tokens)
		release(t, q)
	}
	prompts := make([]bindings.Prompt, len(scopes)+1)
	for i, scope := range scopes {
		prompts[i] = bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens, Scope: scope}
	}
	// Another id under the same name: adapters are loaded in any order.
	prompts[len(scopes)] = bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: tokens, Scope: &bindings.Scope{LoRAName: "b", LoRAID: &two}}
	out := make([]bindings.ProbeResult, len(prompts))
	if err := m.Probe(prompts, out); err != nil {
		t.Fatal(err)
	}
	for i, r := range out {
		if r.Err != nil || r.MatchedTokens != 4 {
			t.Errorf("scope %d: %+v", i, r)
		}
	}
	b := drain(t, s)
	if b.Blocks != len(scopes) {
		t.Fatalf("%d blocks", b.Blocks)
	}
	seen := map[uint64]bool{}
	for i, e := range b.Events {
		e := e.(*bindings.BlockStored)
		want := scopes[i]
		if want == nil {
			want = &bindings.Scope{}
		}
		if e.LoRAName != want.LoRAName || e.HasLoRAID != (want.LoRAID != nil) || e.HasLoRAID && e.LoRAID != *want.LoRAID {
			t.Errorf("scope %d: event %+v", i, e)
		}
		seen[e.Hashes[0]] = true
	}
	if len(seen) != len(scopes) {
		t.Errorf("%d distinct hashes of %d", len(seen), len(scopes))
	}
	b.Release()
}

// TestReset: one clear alone, and detached sequences that go on.
func TestReset(t *testing.T) {
	m, s := newPair(t, bindings.Config{CapacityBlocks: 4}, bindings.StreamConfig{})
	store(t, m, sequential(0, 4))
	drain(t, s).Release()
	q := open(t, m, bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: sequential(0, 4)})
	grow(t, q, 8)
	if err := m.Reset(); err != nil {
		t.Fatal(err)
	}
	if r := commit(t, q, sequential(4, 4)); r.StoredBlocks != 0 || r.CommittedTokens != 8 {
		t.Errorf("commit after the reset: %+v", r)
	}
	if info, err := q.Info(); err != nil || !info.Detached || info.Pages != 2 {
		t.Errorf("info %+v, %v", info, err)
	}
	b := drain(t, s)
	if len(b.Events) != 1 {
		t.Fatalf("%d events", len(b.Events))
	}
	if _, ok := b.Events[0].(*bindings.AllBlocksCleared); !ok {
		t.Errorf("a %T", b.Events[0])
	}
	b.Release()
	release(t, q)
	if stats, _ := m.Stats(); stats.FreePages != 4 || stats.Blocks != 0 || stats.Resets != 1 {
		t.Errorf("stats %+v", stats)
	}
}

// TestResidentGrows: the slice for the answer grows to what the tree holds.
func TestResidentGrows(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 100})
	if got, err := m.Resident(event.Unsigned64); err != nil || len(got) != 0 {
		t.Fatalf("%v, %v", got, err)
	}
	store(t, m, sequential(0, 400))
	got, err := m.Resident(event.Unsigned64)
	if err != nil || len(got) != 100 {
		t.Fatalf("%d blocks, %v", len(got), err)
	}
	for _, b := range got {
		if b.Hash != wireHash(b.Digest, event.Unsigned64) || b.Announced {
			t.Errorf("block %+v", b)
		}
	}
}

// TestPagesAppends: Pages appends and keeps what is there.
func TestPagesAppends(t *testing.T) {
	m := newManager(t, bindings.Config{CapacityBlocks: 8})
	q := open(t, m, bindings.Prompt{})
	defer release(t, q)
	grow(t, q, 20)
	got, err := q.Pages([]uint32{77})
	if err != nil || len(got) != 6 || got[0] != 77 {
		t.Errorf("%v, %v", got, err)
	}
	roomy := make([]uint32, 1, 32)
	got, err = q.Pages(roomy)
	if err != nil || len(got) != 6 || &got[0] != &roomy[0] {
		t.Errorf("%v, %v: not in place", got, err)
	}
}

// TestWake: any number of flushes leave one wake-up.
func TestWake(t *testing.T) {
	_, s := newPair(t, bindings.Config{}, bindings.StreamConfig{Form: event.Portable63})
	if s.Form() != event.Portable63 || cap(s.Wake()) != 1 {
		t.Errorf("form %d, capacity %d", s.Form(), cap(s.Wake()))
	}
	for range 3 {
		s.Flush()
	}
	<-s.Wake()
	select {
	case <-s.Wake():
		t.Error("a second wake-up")
	default:
	}
}

// TestDeferredParents: a chain that overflows the record buffer goes on while
// part of it waits to be announced. There is room for the new block, but its
// parent comes first.
func TestDeferredParents(t *testing.T) {
	for drained := 1; drained <= 12; drained++ {
		m, s := newPair(t, bindings.Config{CapacityBlocks: 64, TokensPerBlock: 1},
			bindings.StreamConfig{MaxEntries: 12, MaxBlocksPerEvent: 1})
		q := open(t, m, bindings.Prompt{})
		grow(t, q, 64)
		commit(t, q, sequential(0, 32))
		if stats, err := s.Stats(); err != nil || stats.PendingBlocks < 16 {
			t.Fatalf("stats %+v, %v", stats, err)
		}
		announced := map[uint64]bool{}
		take := func(maxBlocks int) int {
			b, err := s.Drain(0, maxBlocks)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range b.Events {
				e := e.(*bindings.BlockStored)
				if e.HasParent && !announced[e.ParentHash] {
					t.Errorf("after %d: %x before its parent", drained, e.Hashes[0])
				}
				announced[e.Hashes[0]] = true
			}
			defer b.Release()
			return b.Blocks + int(b.RemainingBytes+b.PendingBlocks)
		}
		for i := range 16 {
			take(drained)
			commit(t, q, []uint32{uint32(100 + i)})
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
		}
		for range 64 {
			if take(0) == 0 {
				break
			}
		}
		if len(announced) != 48 {
			t.Errorf("after %d: %d blocks announced, want 48", drained, len(announced))
		}
		release(t, q)
	}
}
