// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import "time"

// replayRun is what a replay sends: batches in the order of their numbers.
type replayRun interface {
	// batch returns the batch at hand, false at the end. The payload is valid
	// until the next call of advance or release.
	batch() (seq uint64, payload []byte, ok bool)
	advance()
	// release gives up what is left.
	release()
}

// snapshotRun answers a request for numbers from start on with a snapshot, filled
// from the front: its messages at start, start+1, ..., then batches without events
// up to the number that the snapshot is of, if they are not too many.
type snapshotRun struct {
	answer   *snapshotAnswer // nil when given up, which is when its messages are sent
	messages [][]byte
	empty    []byte
	next     uint64
	last     uint64 // number of the last batch
	sent     int
	over     bool
}

// newSnapshotRun takes the use of the answer over, which is there and good; but
// not if there are fewer numbers from start on than messages, in which case it
// returns nil: a part of a snapshot would be taken for all of it.
func newSnapshotRun(a *snapshotAnswer, start uint64, padLimit int) *snapshotRun {
	b := a.body
	// A truncated history begins above start and ends at newest or before.
	numbers, used := b.newest-start+1, uint64(len(b.messages))
	if used > numbers {
		return nil
	}
	r := &snapshotRun{answer: a, messages: b.messages, empty: b.empty, next: start, last: b.newest}
	if numbers > uint64(padLimit) {
		r.last = start + used - 1
	}
	return r
}

func (r *snapshotRun) batch() (seq uint64, payload []byte, ok bool) {
	switch {
	case r.over:
		return 0, nil, false
	case r.sent < len(r.messages):
		return r.next, r.messages[r.sent], true
	}
	return r.next, r.empty, true
}

func (r *snapshotRun) advance() {
	if r.next == r.last {
		r.release()
		return
	}
	r.next++
	if r.sent < len(r.messages) {
		if r.sent++; r.sent == len(r.messages) {
			// A peer that takes its time with what follows must not keep others from
			// their snapshots.
			r.giveUp()
		}
	}
}

func (r *snapshotRun) release() {
	r.over = true
	r.giveUp()
}

// giveUp lets go of the snapshot. What is left are batches without events.
func (r *snapshotRun) giveUp() {
	r.sent = 0
	if r.answer != nil {
		r.answer.release()
		r.answer, r.messages = nil, nil
	}
}

// begin opens the run that answers a request, which may have to wait for a
// snapshot.
func (s *replayServer) begin(r *replay, now time.Time) {
	run, truncated := s.ring.open(r.start, s.policy)
	if truncated {
		s.counters.truncated.Add(1)
		if s.policy == TruncatedSnapshot {
			if s.hub != nil {
				r.wanted = s.hub.ask()
			}
			if r.wanted == nil {
				run, _ = s.ring.open(r.start, TruncatedSuffix)
			}
		}
	}
	r.run = &run
	r.asked = now
}

// waits says that a replay has to wait for its snapshot; one that has come or
// will not come becomes its run.
func (s *replayServer) waits(r *replay, now time.Time) bool {
	a := r.wanted
	if a == nil {
		return false
	}
	done := a.done()
	if !done && now.Sub(r.asked) < snapshotWait {
		// Not the peer's fault.
		r.progress, r.window = now, now
		r.resume = now.Add(snapshotPoll)
		return true
	}
	r.wanted = nil
	if done && a.err == nil {
		if run := newSnapshotRun(a, r.start, s.padLimit); run != nil {
			r.run, r.snapshot = run, snapshotUse{window: now, from: r.arrived()}
			return false
		}
	}
	a.release()
	run, _ := s.ring.open(r.start, TruncatedSuffix)
	r.run = &run
	return false
}
