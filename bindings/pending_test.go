// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// A step tells all whose waits are over, however many: more than it had room for at
// first, and then without taking memory.
func TestStepTellsAllWaiters(t *testing.T) {
	const many = 100
	m, err := bindings.NewManager(bindings.Config{TokensPerBlock: 4, CapacityBlocks: 64, MaxSequences: many + 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	prompt := bindings.Prompt{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, Mark: true}
	waiting := prompt
	waiting.Wait = true
	prompts, created := make([]bindings.Prompt, many), make([]bindings.CreateResult, many)
	for i := range prompts {
		prompts[i] = waiting
	}
	ids, errs := make([]bindings.SequenceID, many), make([]error, many)
	var s bindings.Step
	round := func() {
		owner, err := m.Open(prompt)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Create(prompts, created); err != nil {
			t.Fatal(err)
		}
		for i, c := range created {
			if c.Err != nil || c.PendingTokens != 8 || c.PendingSequence != owner.ID() {
				t.Fatalf("created %+v", c)
			}
			ids[i] = c.Sequence.ID()
		}
		s.Reset()
		s.Cancel(owner.ID())
		if err := m.Step(&s); err != nil {
			t.Fatal(err)
		}
		if len(s.Waiters()) != many {
			t.Fatalf("told %d of %d", len(s.Waiters()), many)
		}
		for i, w := range s.Waiters() {
			if w.Sequence != ids[i] || w.Outcome != bindings.PendingGivenUp {
				t.Fatalf("waiter %d: %+v", i, w)
			}
		}
		if err := m.Cancel(ids, errs); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	round()
	// The owner's view and its prompts are the test's own.
	if n := testing.AllocsPerRun(10, round); n > 4 {
		t.Errorf("%v allocations in the steady state", n)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPendingOutcomesHaveNames(t *testing.T) {
	got := fmt.Sprint(bindings.PendingCommitted, bindings.PendingGivenUp, bindings.PendingOutcome(0))
	if got != "committed given up unknown outcome" {
		t.Error(got)
	}
}
