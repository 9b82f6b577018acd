// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kvcast/kvcast/bindings"
)

// What each call does in each state is in a table of docs/publisher.md; this is the table.
func TestCallsByState(t *testing.T) {
	calls := []struct {
		name string
		do   func(*Publisher) error
		// before, during and after Start, and after Close; nil where it works.
		want [4]error
	}{
		{"Start", func(p *Publisher) error { return p.Start(context.Background()) }, [4]error{nil, nil, nil, ErrClosed}},
		{"Attach", func(p *Publisher) error { return p.Attach(newFakeSource()) }, [4]error{nil, ErrStarted, ErrStarted, ErrClosed}},
		{"Publish", func(p *Publisher) error { return p.Publish(removal(1)) }, [4]error{ErrNotStarted, ErrNotStarted, nil, ErrClosed}},
		{"Flush", func(p *Publisher) error { return p.Flush(context.Background()) }, [4]error{ErrNotStarted, ErrNotStarted, nil, ErrClosed}},
		{"Resync", func(p *Publisher) error { return p.Resync(context.Background()) },
			[4]error{ErrNotStarted, ErrNotStarted, ErrNoSnapshots, ErrClosed}},
		{"Close", (*Publisher).Close, [4]error{}},
	}
	for _, c := range calls {
		for i, state := range []State{StateNew, StateStarting, StateRunning, StateClosed} {
			if c.name == "Start" && state == StateStarting {
				continue // waits for the other one, see TestStartIsCancelled
			}
			t.Run(fmt.Sprintf("%s %s", c.name, state), func(t *testing.T) {
				o := localOptions(t)
				var p *Publisher
				var started <-chan error
				if state == StateStarting {
					p, _, started = startWaiting(t, context.Background(), o, 1)
				} else if p = mustNew(t, o); state == StateRunning {
					mustStart(t, p)
				} else if state == StateClosed {
					p.Close()
				}
				if st := p.Stats(); st.State != state {
					t.Fatalf("state %s", st.State)
				}
				next := p.Stats().NextSeq
				if err := c.do(p); !errors.Is(err, c.want[i]) {
					t.Errorf("%v, want %v", err, c.want[i])
				}
				if st := p.Stats(); c.want[i] != nil && (st.State != state || st.NextSeq != next) {
					t.Errorf("refused, but %+v", st)
				}
				p.Close()
				if started != nil {
					if err := <-started; !errors.Is(err, ErrClosed) {
						t.Errorf("Start: %v", err)
					}
				}
			})
		}
	}
}

func TestStates(t *testing.T) {
	p := mustNew(t, localOptions(t))
	if s := p.Stats(); s.State != StateNew || s.NextSeq != 0 || s.Epoch != p.Epoch() || s.Epoch == 0 {
		t.Errorf("%+v", s)
	}
	mustStart(t, p)
	mustStart(t, p) // does nothing
	if s := p.Stats(); s.NextSeq != 1 || s.State != StateRunning {
		t.Errorf("%+v", s)
	}
	p.Close()
	p.Close()
	if s := p.Stats(); s.NextSeq != 2 || s.State != StateClosed {
		t.Errorf("%+v", s)
	}
	if other := mustNew(t, localOptions(t)); other.Epoch() == p.Epoch() {
		t.Error("two lives have one epoch")
	}
}

// Everything at once, from every state: nothing hangs, panics or leaks, and
// whoever comes too late or too early gets the error that says so.
func TestLifecycleRaces(t *testing.T) {
	o := localOptions(t)
	for i := range 100 {
		// A stream, a source without snapshots, none.
		var source Source
		var stream *bindings.Stream
		var manager *bindings.Manager
		switch i % 4 {
		case 0:
			stream, manager = newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: 4, CapacityBlocks: 16})
			compute(t, manager, []uint32{1, 2, 3, 4})
			source = stream
		case 1:
			source = newFakeSource()
		}
		p := mustNew(t, o)
		if i%3 == 0 {
			p.newTransport = func() transport { return &fakeTransport{} }
		}
		ctx, cancel := context.WithCancel(context.Background())
		barrier := make(chan struct{})
		var users sync.WaitGroup
		start := func() error { return p.Start(ctx) }
		attach := func() error {
			if source == nil {
				return nil
			}
			return p.Attach(source)
		}
		resync := func() error { return p.Resync(ctx) }
		for _, use := range []struct {
			do  func() error
			may []error // besides nil
		}{
			{start, []error{ErrClosed, context.Canceled}},
			{start, []error{ErrClosed, context.Canceled}},
			{attach, []error{ErrStarted, ErrAttached, ErrClosed}},
			{attach, []error{ErrStarted, ErrAttached, ErrClosed}},
			{func() error { return p.Publish(removal(1)) }, []error{ErrNotStarted, ErrAttached, ErrClosed}},
			{func() error { return p.Flush(ctx) }, []error{ErrNotStarted, ErrClosed, context.Canceled}},
			{resync, []error{ErrNotStarted, ErrNoSnapshots, ErrClosed, context.Canceled}},
			{resync, []error{ErrNotStarted, ErrNoSnapshots, ErrClosed, context.Canceled}},
			{func() error { p.Stats(); p.Endpoint(); return nil }, nil},
			{p.Close, nil},
			{p.Close, nil},
			{func() error {
				if i%5 == 0 {
					cancel()
				}
				return nil
			}, nil},
		} {
			users.Add(1)
			go func() {
				defer users.Done()
				<-barrier
				err := use.do()
				if err != nil && !slices.ContainsFunc(use.may, func(known error) bool { return errors.Is(err, known) }) {
					t.Error(err)
				}
			}()
		}
		close(barrier)
		users.Wait()
		cancel()
		st := p.Stats()
		checkBalance(t, st, true)
		if st.State != StateClosed {
			t.Errorf("state %s", st.State)
		}
		if stream != nil {
			// Nobody keeps it.
			if claim, err := stream.Claim(); err != nil {
				t.Error(err)
			} else {
				claim.Release()
			}
			manager.Close()
			stream.Close()
		}
	}
}
