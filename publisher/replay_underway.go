// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"maps"
	"time"
)

const (
	// maxUnacked is what may be under way to one peer before it gets its next
	// message. ZeroMQ bounds what waits for a peer by messages only, which may be
	// large; and what it has been given stays in memory when the replay is over,
	// also for whoever asked for a little, often, and reads nothing. At a round
	// trip of 100 ms it makes 10 MB/s.
	maxUnacked = 1 << 20
	// settleTime is how long after a message an empty buffer of the system is believed
	// to be all there is: ZeroMQ's I/O thread needs some microseconds to fill it
	// again. So ipc makes 1 GB/s at most.
	settleTime = time.Millisecond
)

// handedOver is what was handed to the socket for a connection.
type handedOver struct {
	// bytes is all of it where it is known how much arrives, else what may still be
	// under way; at is when the last of it was.
	bytes uint64
	at    time.Time
}

// full says that enough is under way to a peer. What arrives is progress, also
// if it is part of a message.
func (s *replayServer) full(r *replay, now time.Time) bool {
	if acked, ok := s.socket.acked(r.from); ok {
		if acked > r.acked {
			r.acked, r.progress, r.pause = acked, now, 0
		}
		h := s.handedTo(r.from)
		// Handshakes and answers to heartbeats arrive, too.
		h.bytes = max(h.bytes, acked)
		s.handed[r.from] = h
		return h.bytes-acked > maxUnacked
	}
	unread, ok := s.socket.unread(r.from)
	if !ok {
		return false
	}
	h := s.handedTo(r.from)
	if unread != r.unread {
		r.unread, r.progress, r.pause = unread, now, 0
	}
	if unread == 0 && now.Sub(h.at) >= settleTime {
		h.bytes = 0
	}
	s.handed[r.from] = h
	return h.bytes > maxUnacked
}

// handedTo makes room for an entry, which is empty if there is none yet.
func (s *replayServer) handedTo(c connection) handedOver {
	h, known := s.handed[c]
	if !known && len(s.handed) >= s.pruneAt {
		maps.DeleteFunc(s.handed, func(c connection, _ handedOver) bool { return !c.open() })
		s.pruneAt = 2*len(s.handed) + maxWaiting
	}
	return h
}

// note adds frames to what was handed over, with what ZMTP puts before each.
func (s *replayServer) note(c connection, frames [][]byte, now time.Time) {
	h, known := s.handed[c]
	if !known {
		return
	}
	for _, f := range frames {
		h.bytes += uint64(len(f)) + 2
		if len(f) > 255 {
			h.bytes += 7
		}
	}
	h.at = now
	s.handed[c] = h
}
