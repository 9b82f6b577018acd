// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/bindings"
	reader "github.com/kvcast/kvcast/publisher/subscribe"
	"github.com/kvcast/kvcast/publisher/wire"
	"github.com/kvcast/kvcast/tests/seeds"
)

// longVariable makes some tests as long as can be wished: make test-long sets it.
const longVariable = "KVCAST_TEST_LONG"

// overloadFor is how long a publisher gets twice what it can take, for each size of the
// record buffer.
func overloadFor() time.Duration {
	switch {
	case os.Getenv(longVariable) != "":
		return 10 * time.Second
	case testing.Short():
		return 300 * time.Millisecond
	}
	return 2500 * time.Millisecond
}

// ledger keeps its own books of a cache whose stream cannot keep up. It is also the
// source of the publisher: as long as its lock is held, nothing is drained and nothing
// healed, so what the stream says can be compared with what the books say.
type ledger struct {
	t       *testing.T
	manager *bindings.Manager
	random  *rand.Rand
	*bindings.Drainer
	stream *bindings.Stream

	mu sync.Mutex
	// taken is signalled when the publisher has taken something, or found nothing.
	taken   *sync.Cond
	drained uint64 // blocks stored and removed that it has taken
	idle    bool   // it has found nothing the last time
	caught  bool   // nothing was pending at one time

	next    uint32 // token
	prompts []ledgerPrompt
	// Blocks that were stored; of those, the ones that were not announced at once, those
	// that went announced, and those that went before they were.
	stored, deferred, removed, gone uint64
}

// ledgerPrompt has been committed between two times.
type ledgerPrompt struct {
	tokens        []uint32
	before, after time.Time
}

const (
	// ledgerRun is the most blocks of a prompt.
	ledgerRun = 4
	// ledgerPace is the most prompts between two comparisons.
	ledgerPace = 100
)

func (l *ledger) Drain(maxEvents, maxBlocks int) (*bindings.Batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.Drainer.Drain(maxEvents, maxBlocks)
	if err == nil {
		l.drained += uint64(b.Blocks)
		l.idle = b.Blocks == 0 && b.RemainingBytes == 0 && b.PendingBlocks == 0
		l.caught = l.caught || b.PendingBlocks == 0
		l.taken.Signal()
	}
	return b, err
}

func (l *ledger) Stats() (bindings.StreamStats, error) { return l.stream.Stats() }

// use stores a prompt that nobody has in place of the oldest ones. The lock is held.
func (l *ledger) use() (blocks uint64) {
	l.t.Helper()
	p := ledgerPrompt{tokens: make([]uint32, 1+l.random.IntN(ledgerRun))}
	for i := range p.tokens {
		p.tokens[i] = l.next
		l.next++
	}
	sequence, err := l.manager.Open(bindings.Prompt{Tokens: p.tokens})
	if err != nil {
		l.t.Fatal(err)
	}
	grown := make([]bindings.GrowResult, 1)
	evicted, err := l.manager.GrowTold([]bindings.GrowItem{{Sequence: sequence.ID(), CapacityTokens: len(p.tokens)}}, grown,
		make([]bindings.EvictedBlock, ledgerRun))
	if err != nil || grown[0].Err != nil || len(evicted) != grown[0].EvictedBlocks {
		l.t.Fatal(err, grown[0])
	}
	for _, b := range evicted {
		if b.Announced {
			l.removed++
		} else {
			l.gone++
		}
	}
	p.before = time.Now()
	if _, err := sequence.Commit(p.tokens); err != nil {
		l.t.Fatal(err)
	}
	p.after = time.Now()
	l.stored += uint64(len(p.tokens))
	announced, silent := l.where(p)
	if announced+silent != uint64(len(p.tokens)) {
		l.t.Fatalf("%d and %d of %d blocks are there", announced, silent, len(p.tokens))
	}
	l.deferred += silent
	l.prompts = append(l.prompts, p)
	if err := sequence.Release(); err != nil {
		l.t.Fatal(err)
	}
	return uint64(len(p.tokens))
}

// where counts the blocks of a prompt that are there.
func (l *ledger) where(p ledgerPrompt) (announced, silent uint64) {
	l.t.Helper()
	blocks, err := l.manager.Residency(bindings.Prompt{Tokens: p.tokens, MustCompute: bindings.ComputeNothing}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, b := range blocks {
		if b.Announced {
			announced++
		} else {
			silent++
		}
	}
	return announced, silent
}

// judge holds the figures against the books.
func (l *ledger) judge(p *Publisher) bindings.StreamStats {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.compare(p)
}

// compare is judge where the lock is held.
func (l *ledger) compare(p *Publisher) bindings.StreamStats {
	l.t.Helper()
	var announced, pending uint64
	var oldest *ledgerPrompt
	kept := l.prompts[:0]
	for _, prompt := range l.prompts {
		a, s := l.where(prompt)
		if a+s == 0 {
			continue // evicted
		}
		kept = append(kept, prompt)
		announced, pending = announced+a, pending+s
		if s > 0 && oldest == nil {
			oldest = &kept[len(kept)-1]
		}
	}
	l.prompts = kept
	before := time.Now()
	st := p.Stats().Sink
	after := time.Now()
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"pending", st.PendingBlocks, pending},
		{"announced", st.AnnouncedBlocks, announced},
		{"deferred", st.DeferredBlocks, l.deferred},
		{"dropped events", st.DroppedEvents, l.deferred},
		{"deferred and evicted", st.DeferredEvictedBlocks, l.gone},
		{"removed unannounced", st.UnannouncedRemovals, l.gone},
		{"removed", st.RemovedBlocks, l.removed},
		{"healed", st.HealedBlocks, l.deferred - l.gone - pending},
		{"stored", st.StoredBlocks, l.stored - l.gone - pending},
		{"drained", st.DrainedStoredBlocks + st.DrainedRemovedBlocks, l.drained},
	} {
		if c.got != c.want {
			l.t.Errorf("%s: %d, the books say %d", c.what, c.got, c.want)
		}
	}
	switch age := st.OldestDeferred; {
	case oldest == nil:
		if age != 0 {
			l.t.Errorf("the oldest of no blocks has waited for %v", age)
		}
	case age < before.Sub(oldest.after) || age > after.Sub(oldest.before):
		l.t.Errorf("the oldest block has waited for %v, the books say %v to %v", age, before.Sub(oldest.after), after.Sub(oldest.before))
	}
	if l.t.Failed() {
		l.t.FailNow()
	}
	return st
}

// load stores so many blocks for each that the publisher takes, as long as it is told
// to, which is asked now and then when the figures have been compared. It never waits for
// time: what a publisher can take changes with what else the machine does.
func (l *ledger) load(p *Publisher, ratio float64, goOn func(bindings.StreamStats) bool) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.caught = false
	// Something to begin with: who has nothing takes nothing.
	allowed := float64(ledgerRun)
	seen := l.drained
	gain := func() {
		allowed += ratio * float64(l.drained-seen)
		seen = l.drained
	}
	for due := 0; ; due-- {
		for gain(); allowed <= 0; gain() {
			if l.taken.Wait(); l.idle {
				allowed += ledgerRun
			}
		}
		allowed -= float64(l.use())
		l.idle = false
		l.stream.Flush()
		if due == 0 {
			if !goOn(l.compare(p)) {
				return
			}
			due = 1 + l.random.IntN(ledgerPace)
		}
	}
}

// witness applies everything that comes to a mirror, until the last clear, which it does
// not apply.
func witness(s *subscriber) (*reader.Mirror, error) {
	mirror := reader.NewMirror(0)
	decoder, err := wire.NewDecoder(wire.Limits{})
	if err != nil {
		return nil, err
	}
	for next := uint64(0); ; next++ {
		frames, err := s.socket.RecvMessageBytes(0)
		if zmq.AsErrno(err) == zmq.ETERM || err != nil {
			return nil, err
		}
		m, err := wire.ParseMessage(frames)
		if err != nil || m.Seq != next {
			return nil, fmt.Errorf("number %d instead of %d: %w", m.Seq, next, err)
		}
		batch, err := decoder.Decode(m.Payload)
		if err != nil {
			return nil, err
		}
		if next > 0 && batch.Events[0].Kind == wire.KindCleared {
			return mirror, nil
		}
		if err := mirror.Apply(batch.Events); err != nil {
			return nil, err
		}
	}
}

// Overload ends. A publisher gets twice what it can take, and then half of it: what could
// not be announced is announced with the messages that the spare half makes, and within
// two seconds, however long it was too much. All the while the figures of the backlog are
// exact, whatever the size of the record buffer, and reading them drains nothing.
func TestOverloadEnds(t *testing.T) {
	for _, entries := range []int{1, 2, 16, 1000} {
		t.Run(fmt.Sprint(entries), func(t *testing.T) {
			t.Parallel() // nobody waits for time
			overloadEnds(t, entries)
		})
	}
}

func overloadEnds(t *testing.T, entries int) {
	const pages = 2000
	o := localOptions(t)
	// A message for each block: so a publisher is as slow as it can be.
	o.MaxEntries, o.MaxBlocksPerEvent, o.MaxBatchEvents, o.MaxBatchBlocks = entries, 1, 1, 1
	o.HWM, o.WaitSubscribers = 1<<24, 1
	bound := make(chan string, 1)
	o.OnBound = func(endpoint string) { bound <- endpoint }
	stream, manager := newAllocator(t, o.StreamConfig(), bindings.Config{TokensPerBlock: 1, CapacityBlocks: pages})
	drainer, err := stream.Claim()
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{t: t, manager: manager, random: rand.New(rand.NewPCG(seeds.Of(t), 8)), Drainer: drainer, stream: stream, next: 1}
	l.taken = sync.NewCond(&l.mu)
	p := mustNew(t, o)
	if err := p.Attach(l); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- p.Start(withPatience(t)) }()
	s := newSubscriber(t, nil).connect(<-bound, "")
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	var mirror *reader.Mirror
	var seen error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		mirror, seen = witness(s)
	}()
	t.Cleanup(func() { // before the subscriber's
		p.Close()
		<-ended
	})

	// A block that comes in place of an older one is two messages: one for each message
	// that is taken is twice what can be taken.
	begin := time.Now()
	var full bindings.StreamStats
	compared, longest := begin, time.Duration(0)
	l.load(p, 1, func(st bindings.StreamStats) bool {
		full = st
		longest = max(longest, time.Since(compared))
		compared = time.Now()
		took := time.Since(begin)
		if took > overloadFor()+patience {
			t.Errorf("this is no overload: %+v", full)
			return false
		}
		// Until blocks go that nobody has heard of, and for as long as was said.
		return took < overloadFor() || full.DeferredEvictedBlocks < pages
	})
	elapsed := time.Since(begin)
	rate := float64(full.DrainedStoredBlocks+full.DrainedRemovedBlocks) / elapsed.Seconds()
	// Half of what is taken is spare now: what waits, and what has come since the last
	// comparison, is told with as many messages again beside it.
	backlog := full.PendingBlocks + full.StoredBlocks - full.DrainedStoredBlocks + full.RemovedBlocks - full.DrainedRemovedBlocks
	most := 2 * (backlog + 2*ledgerPace*ledgerRun)
	var messages uint64
	// Between two comparisons there is little to do: if it took long, the machine did.
	limit := max(2*time.Second, 2*longest)
	begin = time.Now()
	l.load(p, 0.25, func(st bindings.StreamStats) bool {
		messages = st.DrainedStoredBlocks + st.DrainedRemovedBlocks - full.DrainedStoredBlocks - full.DrainedRemovedBlocks
		if took := time.Since(begin); !l.caught && (took > limit || messages > most) {
			t.Errorf("after %d messages (of %d) and %v (of %v) %d of %d blocks are pending", messages, most, took, limit,
				st.PendingBlocks, full.PendingBlocks)
			return false
		}
		return !l.caught
	})
	t.Logf("%d entries: %.0f messages/s; after %v of overload %d pending, %d deferred, %d healed, %d gone; healed in %v with %d messages (of %d)", entries, rate,
		elapsed, full.PendingBlocks, full.DeferredBlocks, full.HealedBlocks, full.DeferredEvictedBlocks, time.Since(begin), messages, most)
	mustFlush(t, p)
	if st := l.judge(p); st.PendingBlocks != 0 || st.BufferUsedBytes != 0 {
		t.Errorf("%+v", st)
	}
	want := patterns(t, manager, o.Hash)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if <-ended; seen != nil {
		t.Fatal(seen)
	}
	sameBlocks(t, "who has seen everything", mirror, want)
}
