// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"

	"github.com/kvcast/kvcast/publisher/wire"
)

// maxRequestFrames is the longest request: identity, delimiter, start. One more
// frame is kept of a longer one, so that it is seen to be too long.
const maxRequestFrames = 3

// parseRequest takes the frames of a request as a ROUTER sees them: identity,
// an optional delimiter, and the number of the first batch that is wanted, 8
// bytes big-endian. The identity is whatever ZeroMQ says it is. Anything else is
// malformed.
func parseRequest(frames [][]byte) (start uint64, ok bool) {
	switch n := len(frames); {
	case n < maxRequestFrames-1 || n > maxRequestFrames:
		return 0, false
	case n == maxRequestFrames && len(frames[1]) != 0:
		return 0, false
	default:
		start, err := wire.ParseSeq(frames[n-1])
		return start, err == nil
	}
}

// connection is what tells apart the connections over which requests come, and
// those from connections that have ended. Its zero value stands for inproc,
// where there are none.
type connection struct {
	fd    int
	inode uint64
}

// open says whether the connection has not ended, as far as can be known.
func (c connection) open() bool {
	if c == (connection{}) {
		return true
	}
	inode, ok := socketInode(c.fd)
	return ok && inode == c.inode
}

// request is a well-formed request that waits for its turn.
type request struct {
	identity []byte
	from     connection
	start    uint64
}

// waitingList holds the requests that wait: at most one for each identity, at
// most max in all, in the order in which they came.
type waitingList struct {
	max      int
	requests []request
}

// add puts a request at the end. It returns how many requests will get no
// answer: an earlier one of the same identity, those whose connections have
// ended, or r itself if the list is full.
func (w *waitingList) add(r request) (dropped int) {
	dropped = w.remove(r.identity)
	if len(w.requests) >= w.max {
		dropped += w.prune(func(r request) bool { return !r.from.open() })
	}
	if len(w.requests) >= w.max {
		return dropped + 1
	}
	w.requests = append(w.requests, r)
	return dropped
}

// remove drops the request of an identity.
func (w *waitingList) remove(identity []byte) int {
	return w.prune(func(r request) bool { return string(r.identity) == string(identity) })
}

// prune drops the requests for which gone holds.
func (w *waitingList) prune(gone func(request) bool) (n int) {
	kept := w.requests[:0]
	for _, r := range w.requests {
		if gone(r) {
			n++
		} else {
			kept = append(kept, r)
		}
	}
	clear(w.requests[len(kept):])
	w.requests = kept
	return n
}

// any reports whether ready holds for a request.
func (w *waitingList) any(ready func(request) bool) bool {
	return slices.ContainsFunc(w.requests, ready)
}

// take removes the first request for which ready holds.
func (w *waitingList) take(ready func(request) bool) (request, bool) {
	for i, r := range w.requests {
		if ready(r) {
			last := len(w.requests) - 1
			copy(w.requests[i:], w.requests[i+1:])
			w.requests[last] = request{}
			w.requests = w.requests[:last]
			return r, true
		}
	}
	return request{}, false
}
