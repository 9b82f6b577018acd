// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import "time"

// There is room for maxSnapshots snapshots. Peers that do not read what they have
// asked for must not keep others from theirs until they time out, so room is lent
// as places are (paceWindow): whoever lets less than snapshotPaceBytes arrive in a
// snapshotWindow loses its snapshot, but only to a request that waits for one. The
// buffers on the way take as much at first, so that request waits for two windows.
// Only readers of large snapshots hold any: one of up to maxUnacked, or of a
// single message, leaves with the last message that the socket takes.
const (
	snapshotWindow    = 5 * time.Second
	snapshotPaceBytes = 256 << 10
)

// snapshotUse is what a peer makes of the snapshot that it is being sent.
type snapshotUse struct {
	// Since window, what is beyond from has arrived; slow is what was found of the
	// window before.
	window time.Time
	from   uint64
	slow   bool
}

// judge ends a window that is over. One that was looked at late, because the
// server itself was held up, does not count against the peer.
func (u *snapshotUse) judge(arrived uint64, now time.Time, window time.Duration) {
	if length := now.Sub(u.window); length >= window {
		u.slow = length < 2*window && arrived-u.from < snapshotPaceBytes
		u.window, u.from = now, arrived
	}
}

// arrived is how many bytes the peer has got or, where that is not known, how many
// its queue has taken.
func (r *replay) arrived() uint64 {
	if r.acked > 0 {
		return r.acked
	}
	return r.total
}

// held returns the snapshot that a replay keeps in memory, nil if it keeps none.
func (r *replay) held() *snapshotAnswer {
	if r.wanted != nil {
		return r.wanted
	}
	if run, ok := r.run.(*snapshotRun); ok {
		return run.answer
	}
	return nil
}

// makeRoom takes a snapshot from peers that are all slow, for requests that wait for
// one. They are cut off, as in makePlace.
func (s *replayServer) makeRoom() {
	if s.hub == nil || !s.hub.short() {
		return
	}
	for _, first := range s.active {
		a := first.held()
		if a == nil || !s.idle(a) {
			continue
		}
		for i := len(s.active) - 1; i >= 0; i-- {
			if r := s.active[i]; r.held() == a {
				s.socket.cut(r.from)
				s.abort(i)
			}
		}
		return
	}
}

// idle says that all who use a snapshot are slow.
func (s *replayServer) idle(a *snapshotAnswer) bool {
	slow := 0
	for _, r := range s.active {
		if r.held() == a {
			if r.wanted != nil || !r.snapshot.slow {
				return false
			}
			slow++
		}
	}
	return slow == a.used()
}
