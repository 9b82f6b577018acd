// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

// longVariable makes some tests as long as can be wished: make test-long sets it.
const longVariable = "KVCAST_TEST_LONG"

func long() bool { return os.Getenv(longVariable) != "" }

// Operations of the random tests, all workers together.
const (
	soakOperations, shortSoakOperations, longSoakOperations = 90_000, 6_000, 1_000_000
	killOperations, shortKillOperations, longKillOperations = 10_000, 2_000, 100_000
	soakWorkers                                             = 8
)

// amount is how much of something a run has.
func amount(usual, short, most int) int {
	switch {
	case long():
		return most
	case testing.Short():
		return short
	}
	return usual
}

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// eyewitness receives every message and accepts no other: its mirror is right at each
// quiet point, at once.
type eyewitness struct {
	client   *subscribe.Client
	verifier *subscribe.Verifier
	next     uint64 // 0: none has come
}

// newEyewitness subscribes to what is live.
func newEyewitness(t *testing.T, endpoint string) *eyewitness {
	t.Helper()
	client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &eyewitness{client: client, verifier: subscribe.NewVerifier(subscribe.VerifierOptions{})}
}

// readTo reads up to a number.
func (e *eyewitness) readTo(ctx context.Context, last uint64) error {
	for e.next <= last {
		m, err := e.client.Receive(100 * time.Millisecond)
		if errors.Is(err, subscribe.ErrTimeout) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for %d, at %d: %w", last, e.next, err)
		}
		if m.Seq == wire.EndSeq { // the mark of a new life
			continue
		}
		batch, err := wire.Decode(m.Payload, wire.Limits{})
		if err != nil {
			return fmt.Errorf("batch %d: %w", m.Seq, err)
		}
		if err := e.verifier.Check(m.Seq, batch); err != nil {
			return err
		}
		e.next = m.Seq + 1
	}
	return nil
}

// soak is one worker with those who listen to it.
type soak struct {
	*crowd
	ctx     context.Context
	random  *rand.Rand
	worker  *worker
	witness eyewitness
	quiets  int
	last    quietPoint
}

func startSoak(ctx context.Context, t *testing.T, seed uint64, n int) (s *soak) {
	t.Helper()
	s = &soak{ctx: ctx, random: rand.New(rand.NewPCG(seed, uint64(n)))}
	c := drawWorker(s.random, n)
	if n%2 == 0 {
		c.Endpoint, c.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	} else {
		folder := shortTemp(t)
		c.Endpoint, c.ReplayEndpoint = "ipc://"+folder+"/s", "ipc://"+folder+"/r"
	}
	s.witness.verifier = subscribe.NewVerifier(subscribe.VerifierOptions{Form: c.Form, HasForm: true})
	var err error
	s.worker, err = startWorker(ctx, c, func(endpoint string) {
		client, err := subscribe.Connect(subscribe.ClientOptions{Endpoint: endpoint, HWM: c.HWM})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { client.Close() })
		s.witness.client = client
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.worker.close() })
	// What happens to subscribers hangs on when messages come; the operations do not.
	s.crowd = newCrowd(t, rand.New(rand.NewPCG(seed, uint64(100+n))), s.worker.publisher.Endpoint(), s.worker.publisher.ReplayEndpoint())
	return s
}

// round makes some operations, then everything is quiet for a moment.
func (s *soak) round(operations int) error {
	s.worker.pause(s.random.IntN(5) == 0)
	if err := s.worker.run(operations); err != nil {
		return err
	}
	s.worker.pause(false)
	if s.random.IntN(60) == 0 {
		if err := s.worker.publisher.Resync(s.ctx); err != nil {
			return err
		}
	}
	var err error
	if s.last, err = s.worker.quiet(s.ctx); err != nil {
		return err
	}
	if err := s.witness.readTo(s.ctx, s.last.NextSeq-1); err != nil {
		return fmt.Errorf("who sees everything: %w", err)
	}
	if err := sameBlocks(s.witness.verifier.Mirror(), s.last); err != nil {
		return fmt.Errorf("who sees everything: %w", err)
	}
	s.quiets++
	return s.disturb()
}

// run makes so many operations, with a settlement now and then.
func (s *soak) run(operations int) error {
	const between = 1500
	settled := 0
	for made := 0; made < operations; {
		n := min(operations-made, 1+s.random.IntN(120))
		if err := s.round(n); err != nil {
			return fmt.Errorf("after %d operations: %w", made+n, err)
		}
		if made += n; made-settled >= between || made == operations {
			if err := s.settle(s.last); err != nil {
				return fmt.Errorf("after %d operations: %w", made, err)
			}
			settled = made
		}
	}
	return nil
}

// What subscribers know is what the trees hold, at every quiet point of random
// operations of every kind, through real sockets: with record buffers down to one
// block, publishers that pause, histories of four batches, and subscribers that lose
// messages and connections, sleep, die and come anew.
func TestMirrorsEqualTrees(t *testing.T) {
	t.Parallel()
	drawn := seeds.Of(t)
	n := amount(soakOperations, shortSoakOperations, longSoakOperations) / soakWorkers
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	before := processorTime(t)
	begin := time.Now()
	soaks := make([]*soak, soakWorkers)
	for i := range soaks {
		soaks[i] = startSoak(ctx, t, drawn, i)
	}
	var running sync.WaitGroup
	for i, s := range soaks {
		running.Go(func() {
			// One failure ends them all.
			if err := s.run(n); err != nil && ctx.Err() == nil {
				t.Errorf("worker %d, %+v: %v", i, s.worker.config, err)
				cancel()
			}
		})
	}
	running.Wait()
	quiets, seen := 0, crowdCounts{}
	var total quietStats
	done := map[string]int{}
	dropped := 0
	for _, s := range soaks {
		quiets += s.quiets
		seen.add(s.crowd)
		total.add(s.last.Stats)
		for name, count := range s.worker.done {
			done[name] += count
		}
		dropped += s.dropper.dropped
	}
	t.Logf("%d operations and %d quiet points in %v, %v of processor time", n*soakWorkers, quiets,
		time.Since(begin).Round(time.Millisecond), (processorTime(t) - before).Round(time.Millisecond))
	t.Logf("%+v; %d messages dropped", total, dropped)
	seen.log(t)
	t.Logf("made: %v", done)
	if t.Failed() || testing.Short() {
		return
	}
	// Else it has shown too little.
	var never []string
	for _, k := range workloadKinds {
		if done[k.name] == 0 {
			never = append(never, k.name)
		}
	}
	if done[workloadMoves] == 0 {
		never = append(never, workloadMoves)
	}
	if len(never) > 0 {
		t.Errorf("never made: %s", strings.Join(never, ", "))
	}
	if total.Stored == 0 || total.Removed == 0 || total.Cleared == 0 || total.Healed == 0 || total.Gone == 0 || total.Suppressed == 0 ||
		total.Snapshots == 0 || dropped == 0 {
		t.Errorf("too little has happened: %+v, %d messages dropped", total, dropped)
	}
	seen.judge(t)
}

func (q *quietStats) add(o quietStats) {
	q.Published, q.PublishedBytes = q.Published+o.Published, q.PublishedBytes+o.PublishedBytes
	q.Snapshots, q.Truncated = q.Snapshots+o.Snapshots, q.Truncated+o.Truncated
	q.Stored, q.Removed, q.Cleared = q.Stored+o.Stored, q.Removed+o.Removed, q.Cleared+o.Cleared
	q.Deferred, q.Healed, q.Gone = q.Deferred+o.Deferred, q.Healed+o.Healed, q.Gone+o.Gone
	q.Suppressed, q.Subscriptions = q.Suppressed+o.Suppressed, q.Subscriptions+o.Subscriptions
}
