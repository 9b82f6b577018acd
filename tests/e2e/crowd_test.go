// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
)

// settlePatience is how long a subscriber may take to get back in step. It takes seconds,
// because there is one snapshot a second at most and requests are paced.
const settlePatience = 90 * time.Second

// sameBlocks compares what a subscriber knows with what a worker holds.
func sameBlocks(mirror *subscribe.Mirror, q quietPoint) error {
	got := mirror.Patterns()
	if slices.Equal(got, q.Resident) {
		return nil
	}
	missing := 0
	for _, h := range q.Resident {
		if _, ok := slices.BinarySearch(got, h); !ok {
			missing++
		}
	}
	return fmt.Errorf("the mirror has %d blocks, the tree %d; the mirror lacks %d of them", len(got), len(q.Resident), missing)
}

// bystander follows a stream as a router does: it joins late, falls behind, loses
// messages and connections, and has replays to make up for it.
type bystander struct {
	options  subscribe.FollowerOptions
	f        *subscribe.Follower
	verifier *subscribe.Verifier
	// ts is the time of the newest batch.
	ts   float64
	seen bystanderCounts
}

type bystanderCounts struct{ batches, snapshots, replayed, gaps, resets, lives int }

// join begins anew, as one who has just come.
func (b *bystander) join() (err error) {
	b.leave()
	b.verifier = subscribe.NewVerifier(subscribe.VerifierOptions{})
	b.ts = 0
	b.seen.lives++
	b.f, err = subscribe.Follow(b.options)
	return err
}

func (b *bystander) leave() {
	if b.f != nil {
		b.f.Close()
		b.f = nil
	}
}

// take handles one item, if one comes.
func (b *bystander) take(wait time.Duration) (bool, error) {
	item, err := b.f.Next(wait)
	if errors.Is(err, subscribe.ErrTimeout) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switch item.Kind {
	case subscribe.ItemGap:
		// What was lost is not known, so neither is what hangs on it.
		b.seen.gaps++
		b.verifier.Reset()
	case subscribe.ItemReset:
		b.seen.resets++
		b.verifier.Reset()
		b.ts = 0
	default:
		batch, err := wire.Decode(item.Message.Payload, wire.Limits{})
		if err != nil {
			return false, fmt.Errorf("%v: %w", item, err)
		}
		b.seen.batches++
		check := b.verifier.Check
		if item.Replayed {
			b.seen.replayed++
		}
		if item.Snapshot {
			b.seen.snapshots++
			check = b.verifier.CheckSnapshot
		}
		b.ts = batch.TS
		if err := check(item.Message.Seq, batch); err != nil {
			return false, fmt.Errorf("%v: %w; %+v", item, err, b.f.Stats())
		}
	}
	return true, nil
}

// knows says whether it knows exactly what a worker held at a quiet point, as of a time
// that is not before; or else what is different.
func (b *bystander) knows(q quietPoint) error {
	if b.ts < q.Time {
		return fmt.Errorf("it is at %f, not yet at %f", b.ts, q.Time)
	}
	return sameBlocks(b.verifier.Mirror(), q)
}

// crowd are the subscribers of one worker to whom things happen.
type crowd struct {
	random  *rand.Rand
	proxy   *proxy
	dropper *dropper
	others  map[string]*bystander
}

// newCrowd has all of them join.
func newCrowd(t *testing.T, random *rand.Rand, endpoint, replay string) *crowd {
	t.Helper()
	c := &crowd{random: random, proxy: newProxy(t, endpoint), dropper: newDropper(t, endpoint)}
	c.others = map[string]*bystander{
		"reconnects": {options: subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: c.proxy.endpoint}}},
		"drops":      {options: subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: c.dropper.endpoint}}},
		"delays":     {options: subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: endpoint, HWM: 1}, MaxHeld: 3}},
		"dies":       {options: subscribe.FollowerOptions{Client: subscribe.ClientOptions{Endpoint: endpoint}}},
	}
	for _, b := range c.others {
		b.options.Replay = replay
		// Those who ask a worker that is killed need not wait for long.
		b.options.ReplayTimeout = 2 * time.Second
		if err := b.join(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.leave)
	}
	return c
}

// pump lets the dropper pass on what has come, but for every eighth message.
func (c *crowd) pump() error {
	return c.dropper.pump(func() bool { return c.random.IntN(8) == 0 })
}

// disturb does to them what happens to subscribers.
func (c *crowd) disturb() error {
	if err := c.pump(); err != nil {
		return err
	}
	if c.random.IntN(10) == 0 {
		c.proxy.cut(false)
	}
	if c.random.IntN(20) == 0 {
		if err := c.others["dies"].join(); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.others)) {
		reads := c.random.IntN(40)
		if name == "delays" {
			continue // it sleeps until it has to know
		}
		for range reads {
			if some, err := c.others[name].take(0); err != nil {
				return fmt.Errorf("who %s: %w", name, err)
			} else if !some {
				break
			}
		}
	}
	return nil
}

// settle waits until all of them know what the worker holds. Nobody is waited for
// alone: most of the time somebody has to wait for a snapshot.
func (c *crowd) settle(q quietPoint) error {
	end := time.Now().Add(settlePatience)
	waiting := slices.Sorted(maps.Keys(c.others))
	for len(waiting) > 0 {
		if err := c.pump(); err != nil {
			return err
		}
		var still []string
		for _, name := range waiting {
			b := c.others[name]
			for wait := 5 * time.Millisecond; ; wait = 0 {
				some, err := b.take(wait)
				if err != nil {
					return fmt.Errorf("who %s: %w", name, err)
				}
				if !some || b.knows(q) == nil {
					break
				}
			}
			err := b.knows(q)
			if err != nil && time.Now().After(end) {
				return fmt.Errorf("who %s, not within %v: %w; %+v, %+v, busy %t", name, settlePatience, err, b.seen, b.f.Stats(), b.f.Busy())
			}
			if err != nil {
				still = append(still, name)
			}
		}
		waiting = still
	}
	return nil
}

// crowdCounts are those of several crowds.
type crowdCounts map[string]bystanderCounts

func (s crowdCounts) add(c *crowd) {
	for name, b := range c.others {
		counts := s[name]
		counts.add(b.seen)
		s[name] = counts
	}
}

func (s crowdCounts) log(t *testing.T) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		t.Logf("who %s: %+v", name, s[name])
	}
}

// judge says who has seen too little, unless the run is a short one.
func (s crowdCounts) judge(t *testing.T) {
	t.Helper()
	if testing.Short() {
		return
	}
	for name, c := range s {
		if c.snapshots == 0 || c.replayed == 0 {
			t.Errorf("who %s has seen no snapshot or no replay: %+v", name, c)
		}
	}
}

func (c *bystanderCounts) add(o bystanderCounts) {
	c.batches, c.snapshots, c.replayed = c.batches+o.batches, c.snapshots+o.snapshots, c.replayed+o.replayed
	c.gaps, c.resets, c.lives = c.gaps+o.gaps, c.resets+o.resets, c.lives+o.lives
}
