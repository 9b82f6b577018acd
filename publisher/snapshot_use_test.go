// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
)

// Two peers that never read hold the two snapshots that there is room for. A third
// one does not wait until they time out, and gets all of its own.
func TestSnapshotPeersThatNeverReadKeepNobodyOut(t *testing.T) {
	o := snapshotOptions(t)
	o.Warn = nil // one of them is cut off
	p := mustNew(t, o)
	limitMessages(p, 1<<20)
	p.settings.snapshotWindow = 200 * time.Millisecond
	// More than the buffers on the way to a peer take.
	const blocks, size = 12000, 256
	stream, m := newAllocator(t, bindings.StreamConfig{}, bindings.Config{TokensPerBlock: size, CapacityBlocks: blocks})
	t.Cleanup(func() { p.Close() })
	if err := p.Attach(stream); err != nil {
		t.Fatal(err)
	}
	mustStart(t, p)
	for i := range 6 {
		tokens := make([]uint32, blocks/6*size)
		for k := range tokens {
			tokens[k] = uint32(1<<20 + i<<16 + k%50000)
		}
		compute(t, m, tokens)
		mustFlush(t, p)
	}
	want := patterns(t, m, event.Signed64)
	for i := range uint64(maxSnapshots) {
		r := newRawReplayPeer(t, p.ReplayEndpoint(), "")
		r.SetReadBuffer(64 << 10)
		r.ask(t, 0)
		eventually(t, "snapshot", func() bool { return p.Stats().Snapshots == i+1 })
	}
	eventually(t, "both are held", func() bool {
		p.hub.mu.Lock()
		defer p.hub.mu.Unlock()
		return p.hub.alive == maxSnapshots
	})
	begin := time.Now()
	c := newDealer(t, p.ReplayEndpoint())
	c.ask(0)
	sameBlocks(t, "third", applied(t, c.run()), want)
	took := time.Since(begin)
	if st := p.Stats(); st.Snapshots != maxSnapshots+1 || st.ReplayAborted != 1 || took >= snapshotWait {
		t.Errorf("%d snapshots, %d aborted, after %v", st.Snapshots, st.ReplayAborted, took)
	}
}

// Who holds a snapshot keeps it while it reads at a fair pace or while nobody waits
// for one; one that several use goes only when all of them are slow.
func TestSnapshotRoomIsLent(t *testing.T) {
	s, f := newFakeServer(t, nil, 0)
	for seq := range uint64(10) {
		s.ring.push(90+seq, pattern(seq, 10))
	}
	s.policy, s.hub, s.padLimit, s.snapshotWindow = TruncatedSnapshot, newSnapshotHub(), 100, snapshotWindow
	body := &snapshotBody{newest: 99, empty: []byte("e")}
	for range 50 {
		body.messages = append(body.messages, pattern(1, 100<<10))
	}
	f.arrived = make(map[connection]uint64)
	from := make(map[string]connection)
	ask := func(id string) {
		from[id] = ownConnection(t)
		f.arrived[from[id]] = 100
		f.request(id, 0, from[id])
	}
	made := func() {
		t.Helper()
		s.round()
		s.hub.take().finish(body, nil)
	}
	// run lets time go by, in which bytes arrive each second.
	run := func(d time.Duration, bytes map[string]uint64) {
		next := f.clock.Add(time.Second)
		for end := f.clock.Add(d); f.clock.Before(end); {
			if s.round(); !f.clock.Before(next) {
				next = next.Add(time.Second)
				for id, n := range bytes {
					f.arrived[from[id]] += n
				}
			}
		}
	}
	left := func() string {
		var ids []string
		for _, r := range s.active {
			ids = append(ids, string(r.identity))
		}
		slices.Sort(ids)
		return strings.Join(ids, "")
	}
	step := func(want string) {
		t.Helper()
		if got := left(); got != want {
			t.Fatalf("%q are served, want %q", got, want)
		}
	}
	ask("a")
	ask("b")
	made() // a and b share one
	ask("c")
	made()
	slow, fair := uint64(snapshotPaceBytes/10), uint64(snapshotPaceBytes/5+1000)
	run(12*time.Second, map[string]uint64{"a": fair, "b": slow, "c": fair})
	step("abc")
	ask("d")
	run(12*time.Second, map[string]uint64{"a": fair, "b": slow, "c": fair})
	step("abcd") // c is fair, and b shares with a
	if s.hub.short() != true || len(f.cuts) != 0 {
		t.Fatalf("short %v, %d cut", s.hub.short(), len(f.cuts))
	}
	run(12*time.Second, map[string]uint64{"a": slow, "b": slow, "c": fair})
	step("cd")
	if s.hub.short() || s.hub.alive != 1 || fmt.Sprint(f.cuts) != fmt.Sprint([]connection{from["b"], from["a"]}) {
		t.Fatalf("short %v, %d alive, cut %v of %v", s.hub.short(), s.hub.alive, f.cuts, from)
	}
	made()
	run(12*time.Second, map[string]uint64{"d": 0, "c": fair})
	step("cd") // nobody waits
	ask("e")
	run(3*time.Second, map[string]uint64{"c": fair})
	step("ce")
	for len(s.active) > 0 {
		s.abort(0)
	}
	if s.hub.alive != 0 {
		t.Errorf("%d in memory", s.hub.alive)
	}
}
