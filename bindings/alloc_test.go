// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

// TestNoAllocations: a scheduler step with its drain allocates nothing once it
// has run a few times, whatever the outcome of its items.
func TestNoAllocations(t *testing.T) {
	m, s := newPair(t, bindings.Config{CapacityBlocks: 64}, bindings.StreamConfig{})
	const batch = 4
	name := bindings.Scope{LoRAName: "an adapter"}
	prompts := make([]bindings.Prompt, batch)
	created := make([]bindings.CreateResult, batch)
	probed := make([]bindings.ProbeResult, batch)
	grow := make([]bindings.GrowItem, batch)
	grown := make([]bindings.GrowResult, batch)
	commit := make([]bindings.CommitItem, batch)
	commits := make([]bindings.CommitResult, batch)
	ids := make([]bindings.SequenceID, batch)
	errs := make([]error, batch)
	fences, done := make([]bindings.Fence, 2), make([]bool, 2)
	next := uint32(0)
	texts := make([][]uint32, batch)
	for i := range texts {
		texts[i] = make([]uint32, 32)
	}
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	step := func() {
		for i := range prompts {
			for j := range texts[i] {
				texts[i][j] = next // new blocks each time, so that old ones are evicted
				next++
			}
			prompts[i] = bindings.Prompt{MustCompute: bindings.ComputeNothing, Tokens: texts[i]}
			if i == 0 {
				prompts[i].Scope = &name
			}
		}
		check(m.Create(prompts, created))
		check(m.Probe(prompts, probed))
		for i := range created {
			ids[i] = created[i].Sequence.ID()
			grow[i] = bindings.GrowItem{Sequence: ids[i], CapacityTokens: 32}
			commit[i] = bindings.CommitItem{Sequence: ids[i], Tokens: texts[i]}
		}
		check(m.Grow(grow, grown))
		check(m.Commit(commit, commits))
		grow[0].CapacityTokens = 1000 // a refusal is part of the steady state
		check(m.Grow(grow, grown))
		if grown[0].Err == nil || commits[1].StoredBlocks != 8 {
			t.Errorf("%+v %+v", grown[0], commits[1])
		}
		check(m.FencesReached(fences, done))
		check(m.Release(ids, errs))
		if _, err := created[0].Sequence.Grow(1); err == nil {
			t.Error("a released sequence grows")
		}
		s.Flush()
		for {
			b, err := s.Drain(0, 0)
			check(err)
			if len(b.Events) == 0 {
				break
			}
			b.Release()
		}
	}
	for range 20 { // until every array has found its size
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations in a step, want 0", n)
	}
	if n := testing.AllocsPerRun(100, s.Flush); n != 0 {
		t.Errorf("%v allocations in Flush, want 0", n)
	}
}

// TestLiveHandles: what is open is counted, and what was closed is not counted
// as leaked when it is collected.
func TestLiveHandles(t *testing.T) {
	before := bindings.LiveHandles()
	func() {
		s, err := bindings.NewStream(bindings.StreamConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		m, err := bindings.NewManager(bindings.Config{CapacityBlocks: 4, Stream: s})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		q := open(t, m, bindings.Prompt{})
		want := before
		want.Managers++
		want.Streams++
		want.Sequences++
		if got := bindings.LiveHandles(); got != want {
			t.Errorf("live handles %+v, want %+v", got, want)
		}
		release(t, q)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	for range 3 {
		runtime.GC()
	}
	if got := bindings.LiveHandles(); got != before {
		t.Errorf("live handles %+v, before %+v", got, before)
	}
}

// leakVariable asks the test binary to leak: see TestLeaked.
const leakVariable = "KVCAST_TEST_LEAK"

// TestLeaked: managers and streams that are collected open are counted. Their
// native memory stays lost, so a process of its own leaks them.
func TestLeaked(t *testing.T) {
	if os.Getenv(leakVariable) == "" {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestLeaked$", "-test.v")
		child.Env = append(os.Environ(), leakVariable+"=1")
		out, err := child.CombinedOutput()
		// TestMain fails the child, because it leaves handles alive.
		if err == nil || !bytes.Contains(out, []byte("LeakedManagers:1 LeakedStreams:1")) {
			t.Errorf("error %v, output:\n%s", err, out)
		}
		return
	}
	// Nobody closes it: that is the point.
	stream := func() (*bindings.Stream, error) { return bindings.NewStream(bindings.StreamConfig{}) }
	func() {
		s, err := stream()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bindings.NewManager(bindings.Config{CapacityBlocks: 4, Stream: s}); err != nil {
			t.Fatal(err)
		}
	}()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		runtime.GC() // cleanups run on a goroutine of their own some time later
		if got := bindings.LiveHandles(); got.LeakedManagers == 1 && got.LeakedStreams == 1 {
			return
		}
	}
	t.Error("the leak was not counted")
}
