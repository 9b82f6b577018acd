// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// poisonedChild is set for the test below when it runs in a library that was
// built with -DKVC_POISON_DRAIN.
const poisonedChild = "KVC_TEST_POISONED_CHILD"

// TestStaleUseIsSeen keeps slices beyond the life of their batch, as a careless
// program would. In a build with -DKVC_POISON_DRAIN they must then hold nothing
// but the pattern. The test runs itself in such a build.
func TestStaleUseIsSeen(t *testing.T) {
	if os.Getenv(poisonedChild) == "" {
		if testing.Short() {
			t.Skip("builds the library once more")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		child := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^"+t.Name()+"$", ".")
		child.Env = append(os.Environ(), poisonedChild+"=1", "CGO_CXXFLAGS=-O2 -g -DKVC_POISON_DRAIN")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	m, s := newPair(t, bindings.Config{TokensPerBlock: 2, CapacityBlocks: 8}, bindings.StreamConfig{})
	store := func(tokens ...uint32) {
		q, err := m.Open(bindings.Prompt{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Grow(len(tokens)); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Commit(tokens); err != nil {
			t.Fatal(err)
		}
		if err := q.Release(); err != nil {
			t.Fatal(err)
		}
	}
	store(1, 2, 3, 4)
	batch := drain(t, s)
	stored, ok := batch.Events[0].(*bindings.BlockStored)
	if !ok || len(stored.Hashes) != 2 {
		t.Fatalf("events %v", batch.Events)
	}
	hashes, tokens, clone := stored.Hashes, stored.Tokens, batch.Clone()
	batch.Release()
	if stored.Hashes != nil || stored.Tokens != nil {
		t.Error("an event still has its slices after the release of its batch")
	}
	store(5, 6)
	drain(t, s).Release()
	if want := []uint64{0xDBDBDBDBDBDBDBDB, 0xDBDBDBDBDBDBDBDB}; !slices.Equal(hashes, want) {
		t.Errorf("stale hashes are %x", hashes)
	}
	if want := slices.Repeat([]uint32{0xDBDBDBDB}, 4); !slices.Equal(tokens, want) {
		t.Errorf("stale tokens are %x", tokens)
	}
	if kept := clone.Events[0].(*bindings.BlockStored); !slices.Equal(kept.Tokens, []uint32{1, 2, 3, 4}) {
		t.Errorf("a clone's tokens are %v", kept.Tokens)
	}
}
