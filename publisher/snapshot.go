// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcast/kvcast/bindings"
)

const (
	// snapshotInterval is the least time between two snapshots: whoever asks
	// meanwhile gets the next one.
	snapshotInterval = time.Second
	// snapshotWait is how long a request waits for its snapshot. Then it gets what
	// it would get without snapshots.
	snapshotWait = 30 * time.Second
	// snapshotPoll is how often a replay looks whether its snapshot is there.
	snapshotPoll = 2 * time.Millisecond
	// maxSnapshots is how many may be in memory for replays: the newest, and one
	// that slower readers are still being sent.
	maxSnapshots = 2
)

// snapshotSource is a source that can tell all that it has announced, as of the
// last drain; *bindings.Stream and *bindings.Drainer are.
type snapshotSource interface {
	Snapshot() (*bindings.Snapshot, error)
}

// errSnapshotsOver answers who still waits for a snapshot at the end.
var errSnapshotsOver = errors.New("the publisher is closing")

// snapshotHub is where the replay server asks for snapshots and the owner
// goroutine makes them. One that has been asked for is pinned afterwards, so it
// holds whatever was sent before the request.
type snapshotHub struct {
	// wake (capacity 1) tells the owner that somebody asks.
	wake chan struct{}
	// wanted: there is a request that has not been pinned. stopping: no more
	// encoding.
	wanted, stopping atomic.Bool
	building         sync.WaitGroup
	counters         snapshotCounters

	mu      sync.Mutex
	pending *snapshotAnswer // asked for, not pinned
	closed  bool
	alive   int // pinned and still used
}

// snapshotCounters is what Stats tells of snapshots.
type snapshotCounters struct{ made, failed atomic.Uint64 }

func newSnapshotHub() *snapshotHub { return &snapshotHub{wake: make(chan struct{}, 1)} }

// snapshotAnswer is a snapshot that somebody has asked for.
type snapshotAnswer struct {
	hub *snapshotHub
	// users and pinned belong to the hub's mutex.
	users  int
	pinned bool
	// ready is closed when body or err is there.
	ready chan struct{}
	body  *snapshotBody
	err   error
}

// ask returns the next snapshot to be pinned; nil when there will be none. To be
// released.
func (h *snapshotHub) ask() *snapshotAnswer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if h.pending == nil {
		h.pending = &snapshotAnswer{hub: h, ready: make(chan struct{})}
		h.wanted.Store(true)
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
	h.pending.users++
	return h.pending
}

// release gives an answer up; with its last user it leaves the memory.
func (a *snapshotAnswer) release() {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	a.users--
	switch {
	case a.users > 0:
	case a.pinned:
		a.hub.alive--
	case a.hub.pending == a:
		a.hub.pending = nil
		a.hub.wanted.Store(false)
	}
}

// done says whether the answer is there.
func (a *snapshotAnswer) done() bool {
	select {
	case <-a.ready:
		return true
	default:
		return false
	}
}

// short says that somebody waits for a snapshot for which there is no room.
func (h *snapshotHub) short() bool {
	if !h.wanted.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending != nil && h.alive >= maxSnapshots
}

// used returns how many use an answer.
func (a *snapshotAnswer) used() int {
	a.hub.mu.Lock()
	defer a.hub.mu.Unlock()
	return a.users
}

// room says that another snapshot may be pinned.
func (h *snapshotHub) room() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending != nil && h.alive < maxSnapshots
}

// take makes the pending answer the owner's, who becomes a user of it; nil if
// nobody wants it any more.
func (h *snapshotHub) take() *snapshotAnswer {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.pending
	if a == nil {
		return nil
	}
	h.pending = nil
	h.wanted.Store(false)
	h.alive++
	a.pinned = true
	a.users++
	return a
}

// finish makes the answer known and gives the owner's use of it up.
func (a *snapshotAnswer) finish(body *snapshotBody, err error) {
	if err == nil {
		a.hub.counters.made.Add(1)
	} else if !errors.Is(err, errSnapshotsOver) {
		a.hub.counters.failed.Add(1)
	}
	a.body, a.err = body, err
	close(a.ready)
	a.release()
}

// end answers all who wait, and returns when nothing is being encoded any more.
// Later requests get nothing.
func (h *snapshotHub) end() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stopping.Store(true)
	if a := h.take(); a != nil {
		a.finish(nil, errSnapshotsOver)
	}
	h.building.Wait()
}

// answerSnapshots pins a snapshot if one is wanted and may be made now. It is
// called between two drains: everything that has been drained has its number by
// then. It returns for how long there is nothing to do.
func (o *owner) answerSnapshots(now time.Time) time.Duration {
	h := o.hub
	if h == nil || !h.wanted.Load() {
		return noMark
	}
	if wait := o.nextPin.Sub(now); wait > 0 {
		return wait
	}
	// While all blocks are being announced anew, the stream is behind its source.
	if o.resync.active() || o.resync.refused || !h.room() {
		return minPoll
	}
	snapshot, err := o.snapshots.Snapshot()
	if errors.Is(err, bindings.ErrBusy) {
		return minPoll // the one before is still being encoded
	}
	a := h.take()
	if a == nil {
		if err == nil {
			snapshot.Close()
		}
		return noMark
	}
	o.nextPin, o.resync.behind = now.Add(snapshotInterval), true
	if err != nil {
		a.finish(nil, err)
		o.p.warn("a snapshot for a replay could not be made: " + err.Error())
		return noMark
	}
	o.p.mu.Lock()
	newest := o.p.stats.NextSeq - 1
	o.p.mu.Unlock()
	ts := o.lastTS
	// What is sent from now on is later, by the smallest step that there is: that is
	// how readers tell what a snapshot holds already.
	o.lastTS = math.Nextafter(ts, math.Inf(1))
	h.building.Add(1)
	go func() {
		defer h.building.Done()
		body, err := encodeSnapshot(o.s, snapshot, newest, ts, h.stopping.Load)
		snapshot.Close()
		a.finish(body, err)
		if err != nil && !errors.Is(err, errSnapshotsOver) {
			o.p.warn("a snapshot for a replay could not be made: " + err.Error())
		}
	}()
	return noMark
}
