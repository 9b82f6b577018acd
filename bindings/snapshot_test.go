// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// fill commits n blocks of one token each, as one chain.
func fillChain(t *testing.T, m *bindings.Manager, n int) {
	t.Helper()
	q := open(t, m, bindings.Prompt{})
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	if _, err := q.Grow(n); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Commit(tokens); err != nil {
		t.Fatal(err)
	}
	release(t, q)
}

func newSnapshotStream(t *testing.T) (*bindings.Manager, *bindings.Stream) {
	t.Helper()
	s, err := bindings.NewStream(bindings.StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m, err := bindings.NewManager(bindings.Config{CapacityBlocks: 64, TokensPerBlock: 1, Stream: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		s.Close()
	})
	return m, s
}

// TestSnapshotLife: what a snapshot tells does not depend on what happens to the
// stream, and its errors are the documented ones.
func TestSnapshotLife(t *testing.T) {
	m, s := newSnapshotStream(t)
	fillChain(t, m, 5)
	batch, err := s.Drain(0, 0)
	if err != nil || batch.Blocks != 5 {
		t.Fatalf("%d blocks, %v", batch.Blocks, err)
	}
	hashes := slices.Clone(batch.Events[0].(*event.BlockStored).Hashes)

	// Also while a batch is borrowed, which it does not take back.
	o, err := s.Snapshot()
	if err != nil || len(batch.Events) != 1 {
		t.Fatalf("%v, %d events", err, len(batch.Events))
	}
	batch.Release()
	if got := bindings.LiveHandles().Snapshots; got != 1 {
		t.Errorf("%d live snapshots", got)
	}
	if _, err := s.Snapshot(); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("a second snapshot: %v", err)
	}
	if err := m.Reset(); err != nil {
		t.Fatal(err)
	}
	if batch, err := s.Drain(0, 0); err != nil || len(batch.Events) != 1 {
		t.Fatalf("no clear: %v", err)
	} else {
		batch.Release()
	}
	if _, err := o.Next(-1, 0); !errors.Is(err, bindings.ErrInvalidArgument) {
		t.Errorf("a negative limit: %v", err)
	}
	first, err := o.Next(0, 2)
	if err != nil || first.Blocks != 2 || first.Events[0].(*event.BlockStored).HasParent {
		t.Fatalf("%+v, %v", first, err)
	}
	kept := first.Clone()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("a snapshot of a closed stream: %v", err)
	}
	second, err := o.Next(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	rest := second.Events[0].(*event.BlockStored)
	if rest.ParentHash != hashes[1] || !rest.HasParent || !slices.Equal(rest.Tokens, []uint32{2, 3, 4}) ||
		!slices.Equal(append(slices.Clone(kept.Events[0].(*event.BlockStored).Hashes), rest.Hashes...), hashes) {
		t.Errorf("the snapshot tells %+v", rest)
	}
	if _, err := o.Next(0, 0); err != io.EOF || len(second.Events) != 0 {
		t.Errorf("at the end %v, %d events of the batch before", err, len(second.Events))
	}
	for range 2 {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := o.Next(0, 0); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestSnapshotOfAClaimedStream: who has not claimed the stream gets none, as it
// gets no batches.
func TestSnapshotOfAClaimedStream(t *testing.T) {
	m, s := newSnapshotStream(t)
	fillChain(t, m, 3)
	claim, err := s.Claim()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(); !errors.Is(err, bindings.ErrBusy) {
		t.Errorf("a stream that is claimed: %v", err)
	}
	batch, err := claim.Drain(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	batch.Release()
	o, err := claim.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := o.Next(0, 0); err != nil || b.Blocks != 3 {
		t.Errorf("%+v, %v", b, err)
	}
	o.Close()
	claim.Release()
	if _, err := claim.Snapshot(); !errors.Is(err, bindings.ErrClosed) {
		t.Errorf("after Release: %v", err)
	}
}

// TestOldestDeferred: how long the oldest block that could not be announced has
// waited is known without draining, and is nothing once it has been told of.
func TestOldestDeferred(t *testing.T) {
	s, err := bindings.NewStream(bindings.StreamConfig{MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m, err := bindings.NewManager(bindings.Config{CapacityBlocks: 64, TokensPerBlock: 1, Stream: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	stats := func() bindings.StreamStats {
		t.Helper()
		got, err := s.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := stats().OldestDeferred; got != 0 {
		t.Errorf("%v before anything was deferred", got)
	}
	fillChain(t, m, 5)
	one := stats()
	two := stats()
	if one.PendingBlocks != 4 || one.OldestDeferred <= 0 || two.OldestDeferred < one.OldestDeferred {
		t.Errorf("%d pending, waiting for %v, then %v", one.PendingBlocks, one.OldestDeferred, two.OldestDeferred)
	}
	for range 64 {
		batch, err := s.Drain(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	if got := stats(); got.PendingBlocks != 0 || got.OldestDeferred != 0 || got.HealedBlocks != 4 {
		t.Errorf("healed: %d pending, waiting for %v", got.PendingBlocks, got.OldestDeferred)
	}
}
