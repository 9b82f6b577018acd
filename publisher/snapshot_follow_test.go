// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

// followed is a follower with a verifier, read by one goroutine.
type followed struct {
	t        testing.TB
	f        *reader.Follower
	verifier *reader.Verifier
	// snapshots and gaps count what has come.
	snapshots, gaps, resets int
}

func newFollowed(t testing.TB, p *Publisher, change func(*reader.FollowerOptions)) *followed {
	t.Helper()
	o := reader.FollowerOptions{Client: reader.ClientOptions{Endpoint: p.Endpoint()}, Replay: p.ReplayEndpoint()}
	if change != nil {
		change(&o)
	}
	f, err := reader.Follow(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &followed{t: t, f: f, verifier: reader.NewVerifier(reader.VerifierOptions{})}
}

// take handles one item, if one comes.
func (f *followed) take(wait time.Duration) bool {
	f.t.Helper()
	item, err := f.f.Next(wait)
	if errors.Is(err, reader.ErrTimeout) {
		return false
	}
	if err != nil {
		f.t.Fatal(err)
	}
	switch item.Kind {
	case reader.ItemGap:
		f.gaps++
	case reader.ItemReset:
		f.resets++
		f.verifier.Reset()
	default:
		b, err := wire.Decode(item.Message.Payload, wire.Limits{})
		if err != nil {
			f.t.Fatal(err)
		}
		check := f.verifier.Check
		if item.Snapshot {
			f.snapshots++
			check = f.verifier.CheckSnapshot
		}
		if err := check(item.Message.Seq, b); err != nil {
			f.t.Fatalf("%v: %v; %+v", item, err, f.f.Stats())
		}
	}
	return true
}

// until reads until the follower knows exactly what the tree holds.
func (f *followed) until(what string, want []uint64) {
	f.t.Helper()
	end := time.Now().Add(patience)
	for {
		if !f.take(20*time.Millisecond) && slices.Equal(f.verifier.Mirror().Patterns(), want) {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s: %d blocks, want %d; %+v", what, f.verifier.Mirror().Len(), len(want), f.f.Stats())
		}
	}
}

// Whoever follows with a ring of four batches knows what the tree holds whenever
// it is quiet: joined late, far behind, across a resync and a change of publishers,
// and with snapshots that are filled up or end early. A verifier sees every batch.
func TestFollowThroughSnapshots(t *testing.T) {
	for _, c := range []struct {
		name string
		pad  int
	}{{"padded", 65536}, {"early end", 0}} {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seeds.Of(t), 3))
			o := snapshotOptions(t)
			o.ReplayPadLimit = c.pad
			o.Warn = nil
			p, m, stream := startStream(t, mustNew(t, o), 64)
			use := func(n int) {
				t.Helper()
				for range n {
					if err := useOneSequence(random, m); err != nil {
						t.Fatal(err)
					}
					mustFlush(t, p)
				}
			}
			use(30)
			early := newFollowed(t, p, nil)
			slow := newFollowed(t, p, func(o *reader.FollowerOptions) { o.MaxHeld = 3 })
			both := func(what string) {
				t.Helper()
				want := patterns(t, m, event.Signed64)
				early.until(what, want)
				slow.until(what+", slow", want)
			}
			both("late")
			rounds := 6
			if testing.Short() {
				rounds = 4 // the reset and the resync are among them
			}
			for round := range rounds {
				use(1 + random.IntN(4))
				both("a little")
				for range 10 {
					use(3)
					early.take(0)
				}
				both("far behind")
				if round == 2 {
					if err := m.Reset(); err != nil {
						t.Fatal(err)
					}
					mustFlush(t, p)
					both("reset")
				}
				if round == 3 {
					if err := p.Resync(withPatience(t)); err != nil {
						t.Fatal(err)
					}
					both("resync")
				}
			}
			t.Logf("%d snapshots; early %+v; slow %+v", p.Stats().Snapshots, early.f.Stats(), slow.f.Stats())
			if early.snapshots == 0 || slow.snapshots == 0 || p.Stats().Snapshots == 0 {
				t.Errorf("%d and %d snapshots were read", early.snapshots, slow.snapshots)
			}
			if early.gaps+slow.gaps > 0 {
				t.Errorf("%d and %d gaps", early.gaps, slow.gaps)
			}
			// Another publisher takes the endpoints and the stream over.
			o.Endpoint, o.ReplayEndpoint = p.Endpoint(), p.ReplayEndpoint()
			p.Close()
			for p = nil; p == nil; {
				next := mustNew(t, o)
				if err := next.Attach(stream); err != nil {
					t.Fatal(err)
				}
				if err := next.Start(withPatience(t)); errors.Is(err, ErrAddressInUse) {
					next.Close()
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				p = next
			}
			use(20)
			both("taken over")
		})
	}
}

// A cache that holds nothing is a snapshot of nothing.
func TestFollowASnapshotOfNothing(t *testing.T) {
	for _, pad := range []int{65536, 0} {
		o := snapshotOptions(t)
		o.ReplayPadLimit = pad
		p, m := startWith(t, o, 64)
		for i := range 6 {
			grow(t, p, m, i, 1)
			if err := m.Reset(); err != nil {
				t.Fatal(err)
			}
			mustFlush(t, p)
		}
		f := newFollowed(t, p, nil)
		f.until("nothing", nil)
		grow(t, p, m, 0, 1)
		f.until("something", patterns(t, m, event.Signed64))
		grow(t, p, m, 1, 8)
		f.until("more", patterns(t, m, event.Signed64))
		if f.gaps > 0 || !f.verifier.Report().Complete {
			t.Errorf("%d gaps, %+v", f.gaps, f.verifier.Report())
		}
	}
}

// The same while the cache never rests: blocks are deferred, evicted and reset,
// followers read as they please, and in the end all know the same.
func TestFollowThroughSnapshotsUnderLoad(t *testing.T) {
	load := 2 * time.Second
	if testing.Short() {
		load = time.Second
	}
	for _, pad := range []int{65536, 0} {
		random := rand.New(rand.NewPCG(seeds.Of(t), 5))
		o := snapshotOptions(t)
		o.ReplayPadLimit, o.MaxEntries, o.MaxBatchEvents = pad, 8, 4
		o.Warn = nil
		p := mustNew(t, o)
		stream, m := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 4, CapacityBlocks: 96})
		t.Cleanup(func() { p.Close() })
		if err := p.Attach(stream); err != nil {
			t.Fatal(err)
		}
		mustStart(t, p)
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			own := rand.New(rand.NewPCG(1, 6))
			for i := 0; ; i++ {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				err := useOneSequence(own, m)
				if i%500 == 499 {
					err = errors.Join(err, m.Reset())
				}
				if err != nil {
					stopped <- err
					return
				}
				stream.Flush()
			}
		}()
		// They come when the history is too short already.
		eventually(t, "batches", func() bool { return p.Stats().PublishedBatches > 50 })
		var all []*followed
		for i := range 4 {
			all = append(all, newFollowed(t, p, func(o *reader.FollowerOptions) {
				if i > 1 {
					o.MaxHeld = 3
				}
			}))
		}
		for end := time.Now().Add(load); time.Now().Before(end); {
			f := all[random.IntN(len(all))]
			for range random.IntN(200) {
				if !f.take(0) {
					break
				}
			}
			if random.IntN(2000) == 0 {
				if err := p.Resync(withPatience(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		close(stop)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		mustFlush(t, p)
		want := patterns(t, m, event.Signed64)
		snapshots := 0
		for _, f := range all {
			f.until("after the load", want)
			snapshots += f.snapshots
		}
		st := p.Stats()
		t.Logf("%d batches, %d snapshots, %d read, %d resyncs, %d deferred", st.PublishedBatches, st.Snapshots, snapshots,
			st.Resyncs, st.Sink.DeferredBlocks)
		if snapshots == 0 || st.Sink.DeferredBlocks == 0 {
			t.Error("the test shows too little")
		}
		p.Close()
	}
}
