// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Command serving is a scheduler with continuous batching, small enough to read: it
// admits requests, computes prompts, decodes token by token, suspends requests when
// pages are short and resumes them, all by one Manager.Step for each iteration. The
// engine (engine.go) is a fake that writes into the pages that the block table names
// and checks what it reads.
package main

import (
	"errors"
	"fmt"
	"log"

	"github.com/kvcast/kvcast/bindings"
)

const (
	block   = 4  // tokens
	pages   = 24 // too few for all requests at once
	rows    = 6  // of the block table: requests that run at once
	columns = 16
)

// request is one user's: its text grows until it has as many tokens as it wants.
type request struct {
	name string
	text []uint32 // prompt, then what was generated
	want int

	table    bindings.TableRow // with the sequence
	have     int               // tokens whose values are in the cache: committed
	computed int               // tokens whose values the last iteration computed
	opened   bindings.StepOp
	grown    bindings.StepOp
}

// scheduler keeps the requests in the order of their arrival.
type scheduler struct {
	m       *bindings.Manager
	engine  *engine
	step    bindings.Step
	freeRow []int

	waiting, running, asleep []*request
	full                     bool // a request found no page in the last iteration
	iterations, preempted    int
	reused, generated        int
}

// iterate does everything that a scheduler does between two forward passes.
func (s *scheduler) iterate() error {
	s.step.Reset()
	// What was computed is reusable from now on; whoever has all it wants goes.
	var stay []*request
	for _, r := range s.running {
		id := r.table.Sequence
		s.step.Commit(id, r.text[r.have:r.have+r.computed]...)
		r.have, r.computed = r.have+r.computed, 0
		if len(r.text) == r.want {
			s.step.Release(id)
			s.leave(r)
			fmt.Printf("%3d %s done: %d tokens\n", s.iterations, r.name, len(r.text))
			continue
		}
		stay = append(stay, r)
	}
	s.running = stay
	// Pages were short: the youngest makes room and goes on later.
	if n := len(s.running); s.full && n > 1 {
		r := s.running[n-1]
		s.step.Suspend(r.table.Sequence, false)
		s.running, s.asleep = s.running[:n-1], append([]*request{r}, s.asleep...)
		s.preempted++
		s.freeRow = append(s.freeRow, r.table.Row)
		s.step.Table(&r.table) // a suspended sequence has an empty row
		fmt.Printf("%3d %s suspended\n", s.iterations, r.name)
	}
	for _, r := range s.running {
		r.grown = s.step.Grow(r.table.Sequence, len(r.text))
		s.step.Table(&r.table)
	}
	// Who sleeps comes before who has not begun.
	resumed := s.wake()
	created := s.admit(resumed)
	if err := s.m.Step(&s.step); err != nil {
		return err
	}
	return s.settle(resumed, created)
}

// leave empties the row of a request that is done.
func (s *scheduler) leave(r *request) {
	r.table.Sequence = 0
	s.step.Table(&r.table)
	s.freeRow = append(s.freeRow, r.table.Row)
}

// wake tries to go on with one that was suspended.
func (s *scheduler) wake() *request {
	if s.full || len(s.asleep) == 0 || len(s.freeRow) == 0 {
		return nil
	}
	r := s.asleep[0]
	r.opened = s.step.Resume(r.table.Sequence)
	r.grown = s.step.Grow(r.table.Sequence, len(r.text))
	s.seat(r)
	return r
}

// admit tries to begin one.
func (s *scheduler) admit(resumed *request) *request {
	if s.full || resumed != nil || len(s.asleep) != 0 || len(s.waiting) == 0 || len(s.freeRow) == 0 {
		return nil
	}
	r := s.waiting[0]
	r.opened = s.step.Create(bindings.Prompt{Tokens: r.text, DeviceStream: s.engine.stream})
	r.table.Sequence = r.opened.Sequence()
	r.grown = s.step.Grow(r.table.Sequence, len(r.text))
	s.seat(r)
	return r
}

func (s *scheduler) seat(r *request) {
	n := len(s.freeRow) - 1
	r.table = bindings.TableRow{Sequence: r.table.Sequence, Row: s.freeRow[n]}
	s.freeRow = s.freeRow[:n]
	s.step.Table(&r.table)
}

// settle reads the results of the step and lets the engine compute.
func (s *scheduler) settle(resumed, created *request) error {
	if r := created; r != nil {
		opened := s.step.Created(r.opened)
		if opened.Err == nil {
			s.waiting, s.running = s.waiting[1:], append(s.running, r)
			r.have = opened.MatchedTokens
			s.reused += r.have
			fmt.Printf("%3d %s begins: %d of %d tokens are there\n", s.iterations, r.name, r.have, len(r.text))
		} else if !errors.Is(opened.Err, bindings.ErrNotNow) {
			return opened.Err
		} else {
			r.table.Sequence = 0
			s.freeRow = append(s.freeRow, r.table.Row)
		}
	}
	if r := resumed; r != nil {
		back := s.step.Resumed(r.opened)
		if back.Err == nil {
			s.asleep, s.running = s.asleep[1:], append(s.running, r)
			r.have = back.CommittedTokens
			fmt.Printf("%3d %s resumed: %d of %d tokens are there\n", s.iterations, r.name, r.have, len(r.text))
		} else if !errors.Is(back.Err, bindings.ErrNotNow) {
			return back.Err
		} else {
			s.freeRow = append(s.freeRow, r.table.Row)
		}
	}
	s.engine.update(s.step.Deltas())
	s.full = false
	for _, r := range s.running {
		switch err := s.step.Grown(r.grown).Err; {
		case err == nil:
			token, err := s.engine.forward(r.table.Row, r.text, r.have)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.computed = len(r.text) - r.have
			if len(r.text) < r.want {
				r.text = append(r.text, token)
				s.generated++
			}
		case errors.Is(err, bindings.ErrNotNow):
			s.full = true
		default:
			return err
		}
	}
	s.iterations++
	return nil
}

func run() (err error) {
	m, err := bindings.NewManager(bindings.Config{
		TokensPerBlock: block, CapacityBlocks: pages, MaxSequences: 16, PageBytes: 8, Poison: true,
		ResumeGatePermille: 900,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	e, err := newEngine(m)
	if err != nil {
		return err
	}
	s := &scheduler{m: m, engine: e, step: bindings.Step{Columns: columns}}
	for row := range rows {
		s.freeRow = append(s.freeRow, row)
	}
	// Two conversations of one tenant with the same beginning, and others.
	for i, shape := range []struct{ shared, own, want int }{
		{12, 4, 36}, {12, 6, 34}, {0, 9, 40}, {12, 2, 28}, {0, 16, 44}, {12, 8, 30},
	} {
		r := &request{name: string(rune('a' + i)), want: shape.want}
		for t := range shape.shared {
			r.text = append(r.text, uint32(t))
		}
		for t := range shape.own {
			r.text = append(r.text, uint32(1000*(i+1)+t))
		}
		s.waiting = append(s.waiting, r)
	}
	for len(s.waiting)+len(s.running)+len(s.asleep) > 0 {
		if s.iterations > 1000 {
			return errors.New("the scheduler does not get on")
		}
		if err := s.iterate(); err != nil {
			return err
		}
	}
	stats, err := m.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("%d iterations, %d tokens generated, %d prompt tokens reused, %d suspensions, %d blocks evicted\n",
		s.iterations, s.generated, s.reused, s.preempted, stats.EvictedBlocks)
	fmt.Printf("%d blocks read, each as it was written; %d pages live at the end\n", e.read, stats.LivePages)
	return m.Check()
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
