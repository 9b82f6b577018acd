// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// maxReplays is how many replays run at once, and maxWaiting how many
	// requests may wait beside them.
	maxReplays = 16
	maxWaiting = 1024
	// maxRequestReads bounds the requests taken in between two rounds of sends.
	maxRequestReads = 64
	// minPause and maxPause bound the wait for a peer that takes nothing, which
	// doubles. Waiting for the socket to become writable would be a spin: it is
	// so as soon as any peer is.
	minPause = time.Millisecond
	maxPause = 10 * time.Millisecond
	// maxStall is how long a replay may make no progress.
	maxStall = 30 * time.Second
	// A place is lent to whoever uses it. Else as many peers as there are places,
	// each of which takes one message before every maxStall, would keep all others
	// out for ever. So progress is looked at in windows of paceWindow: who took
	// neither paceMessages nor paceBytes in its last one loses its place, but only
	// to a request that waits for it. A reader that sleeps 1 ms for each frame
	// takes 250 messages a second, one of ten frames a second 75 in a window, a
	// link of 64 KB/s 2 MB: all of them keep their places. What fills the buffers
	// on the way at first counts as taken, so a place may be held for two windows.
	paceWindow   = maxStall
	paceMessages = 15
	paceBytes    = 1 << 20
)

// replayCounters is what Stats tells of replays.
type replayCounters struct {
	requests, malformed, truncated, aborted, batches atomic.Uint64
}

// sendResult is what has become of a message.
type sendResult int

const (
	// sendDone: it is in the queue of its peer, whole.
	sendDone sendResult = iota
	// sendFull: the queue of the peer is full; nothing of it was taken.
	sendFull
	// sendGone: there is no such peer any more.
	sendGone
)

// replaySocket is what a replayServer needs of its socket. None of its methods
// waits but wait.
type replaySocket interface {
	// receive returns the frames of one message, at most maxRequestFrames and
	// one more, and the connection it came over; no frames if there is none. An
	// error means that the socket is of no use any more.
	receive() (frames [][]byte, from connection, err error)
	// send sends the frames, the first of which names the peer, as one message:
	// whole or not at all.
	send(frames [][]byte) sendResult
	// acked returns how many bytes of what was sent over a connection have
	// arrived at its other side, since it began; not ok if that is not known.
	acked(c connection) (n uint64, ok bool)
	// unread returns how much of what was sent over a connection waits in the system
	// for its other side; it is asked where acked does not know. 0 says little while
	// ZeroMQ may still have some. Not ok if that is not known either.
	unread(c connection) (n int, ok bool)
	// wait returns when a message can be received, after wake, or after timeout;
	// a negative one is none.
	wait(timeout time.Duration) error
	// wake ends a wait, also one that begins later. It is called once, by another
	// goroutine.
	wake()
	// cut ends a connection.
	cut(c connection)
	// close gives what has been sent up to linger to leave.
	close(linger time.Duration)
}

// replayServer answers requests for earlier batches. It is one goroutine with a
// socket of its own, which shares nothing with the sending of live batches but
// the ring.
type replayServer struct {
	socket   replaySocket
	ring     *ring
	counters *replayCounters
	dialect  ReplayDialect
	policy   TruncatedHistory
	// hub makes snapshots, nil without; padLimit bounds what is filled up.
	hub      *snapshotHub
	padLimit int
	// snapshotWindow is snapshotWindow but in tests.
	snapshotWindow time.Duration
	topic          []byte
	// now is time.Now.
	now func() time.Time

	active  []*replay
	waiting waitingList
	// handed is what has been handed to the socket for a connection, where it is known
	// what becomes of it. It is pruned when it has pruneAt entries.
	handed  map[connection]handedOver
	pruneAt int
	frames  [][]byte
	seq     [wire.SeqLen]byte

	// closing is closed by end, after the two times are set: until deadline the
	// replays that run may go on, until lingerEnd what was sent may leave.
	closing             chan struct{}
	endOnce             sync.Once
	deadline, lingerEnd time.Time
	// done is closed when the socket is.
	done chan struct{}
}

// replay is one answer under way.
type replay struct {
	identity []byte
	from     connection
	start    uint64
	run      replayRun
	// wanted is the snapshot that it waits for, since asked; nil when it does not.
	wanted *snapshotAnswer
	asked  time.Time
	// progress is when a message was last taken; pause and resume are for a peer
	// whose queue is full.
	progress, resume time.Time
	pause            time.Duration
	// acked is what had arrived over the connection when last looked, unread what
	// waited in the system, where only that is known.
	acked  uint64
	unread int
	// Since window began, messages and bytes have been taken; slow is what was
	// found of the window before.
	window          time.Time
	messages, bytes int
	slow            bool
	// total is the bytes of all messages taken, snapshot the use that is made of a
	// snapshot.
	total    uint64
	snapshot snapshotUse
}

// took notes a message that has been taken.
func (r *replay) took(bytes int, now time.Time) {
	r.progress, r.pause = now, 0
	r.messages++
	r.bytes += bytes
	r.total += uint64(bytes)
}

// judge ends a window that is over. One that was looked at late, because the
// server itself was held up, does not count against the peer.
func (r *replay) judge(now time.Time) {
	if length := now.Sub(r.window); length >= paceWindow {
		r.slow = length < 2*paceWindow && r.messages < paceMessages && r.bytes < paceBytes
		r.window, r.messages, r.bytes = now, 0, 0
	}
}

func newReplayServer(s *settings, socket replaySocket, r *ring, c *replayCounters) *replayServer {
	return &replayServer{
		socket: socket, ring: r, counters: c,
		dialect: s.ReplayDialect, policy: s.TruncatedHistory,
		padLimit: s.ReplayPadLimit, snapshotWindow: s.snapshotWindow, topic: []byte(s.topic),
		now: time.Now, waiting: waitingList{max: maxWaiting},
		handed: make(map[connection]handedOver), pruneAt: maxWaiting,
		closing: make(chan struct{}), done: make(chan struct{}),
	}
}

// end makes the server finish: requests that wait, and those that still come,
// are aborted, running replays go on until deadline. Done is closed by lingerEnd
// or earlier. It may be called more than once; the first call counts.
func (s *replayServer) end(deadline, lingerEnd time.Time) {
	s.endOnce.Do(func() {
		s.deadline, s.lingerEnd = deadline, lingerEnd
		close(s.closing)
		s.socket.wake()
	})
}

// serve is the life of the server.
func (s *replayServer) serve() {
	defer close(s.done)
	for s.round() {
	}
	for len(s.active) > 0 {
		s.abort(0)
	}
	s.dropped(len(s.waiting.requests))
	s.waiting.requests = nil
	linger := time.Duration(0)
	select {
	case <-s.closing:
		linger = max(0, time.Until(s.lingerEnd))
	default: // somebody has terminated a shared context
	}
	s.socket.close(linger)
}

// round reads requests, sends at most one message of each replay, and waits if
// there is nothing to do. It returns whether another round is to follow. The
// socket is read between all sends: ZeroMQ tells that a peer has gone only after
// all it has sent has been read.
func (s *replayServer) round() bool {
	more, err := s.readRequests()
	if err != nil {
		return false
	}
	now := s.now()
	select {
	case <-s.closing:
		s.dropped(len(s.waiting.requests))
		s.waiting.requests = s.waiting.requests[:0]
		if len(s.active) == 0 || !now.Before(s.deadline) {
			return false
		}
	default:
		s.makePlace()
		s.makeRoom()
		s.admit(now)
	}
	if s.ring.overPinned() {
		s.abortOldest()
	}
	wait := time.Duration(-1)
	for i := 0; i < len(s.active); {
		r := s.active[i]
		if !now.Before(r.resume) && !s.step(r, now) {
			s.remove(i)
			wait = 0 // somebody may be waiting for the place
			continue
		}
		if left := max(0, r.resume.Sub(now)); wait < 0 || left < wait {
			wait = left
		}
		i++
	}
	if more || wait == 0 {
		return true
	}
	return s.socket.wait(wait) == nil
}

// readRequests takes in what has come, up to a bound; more says whether
// something may be left.
func (s *replayServer) readRequests() (more bool, err error) {
	for range maxRequestReads {
		frames, from, err := s.socket.receive()
		if err != nil {
			return false, err
		}
		if len(frames) == 0 {
			return false, nil
		}
		start, ok := parseRequest(frames)
		if !ok {
			s.counters.malformed.Add(1)
			continue
		}
		s.counters.requests.Add(1)
		r := request{identity: frames[0], from: from, start: start}
		// An identity that comes over another connection has been handed over:
		// what is left of the old answer must not go to the new peer.
		if i := s.running(r.identity); i >= 0 && s.active[i].from != from {
			s.socket.cut(s.active[i].from)
			s.abort(i)
		}
		s.dropped(s.waiting.add(r))
	}
	return true, nil
}

// running returns the place of an identity's replay, or -1.
func (s *replayServer) running(identity []byte) int {
	for i, r := range s.active {
		if string(r.identity) == string(identity) {
			return i
		}
	}
	return -1
}

// makePlace takes the place of a slow replay for a request that could use it.
// The peer is cut off: it would wait for the rest for ever, and its queue would
// stay in memory.
func (s *replayServer) makePlace() {
	if len(s.active) < maxReplays || !s.waiting.any(s.ready) {
		return
	}
	for i, r := range s.active {
		if r.slow {
			s.socket.cut(r.from)
			s.abort(i)
			return
		}
	}
}

// ready says whether a request that waits may begin.
func (s *replayServer) ready(q request) bool { return s.running(q.identity) < 0 && q.from.open() }

// admit starts replays while there are places. An identity has one at a time.
func (s *replayServer) admit(now time.Time) {
	for len(s.active) < maxReplays {
		q, ok := s.waiting.take(func(q request) bool { return s.running(q.identity) < 0 })
		if !ok {
			return
		}
		r := &replay{identity: q.identity, from: q.from, start: q.start, progress: now, window: now}
		s.begin(r, now)
		s.active = append(s.active, r)
	}
}

// step sends the next message of a replay. It returns false when the replay is
// over.
func (s *replayServer) step(r *replay, now time.Time) bool {
	if !r.from.open() {
		s.dropped(1)
		return false
	}
	if s.waits(r, now) {
		return true
	}
	r.judge(now)
	seq, payload, more := r.run.batch()
	topic := s.topic
	if !more {
		seq, payload, topic = wire.EndSeq, nil, nil
	}
	frames := append(s.frames[:0], r.identity, nil)
	if s.dialect == ReplayTopic {
		frames = append(frames, topic)
	}
	s.frames = append(frames, wire.AppendSeq(s.seq[:0], seq), payload)
	result := sendFull
	full := s.full(r, now)
	r.snapshot.judge(r.arrived(), now, s.snapshotWindow)
	if !full {
		result = s.socket.send(s.frames)
	}
	switch result {
	case sendDone:
		s.note(r.from, s.frames[1:], now)
		r.took(len(payload), now)
		if !more {
			return false
		}
		s.counters.batches.Add(1)
		r.run.advance()
		return true
	case sendFull:
		if now.Sub(r.progress) >= maxStall {
			// Its queue would stay in memory for as long as the peer likes.
			s.socket.cut(r.from)
			s.dropped(1)
			return false
		}
		r.pause = min(max(2*r.pause, minPause), maxPause)
		r.resume = now.Add(r.pause)
		return true
	default:
		s.dropped(1)
		return false
	}
}

// abortOldest aborts the replay that keeps the oldest batches.
func (s *replayServer) abortOldest() {
	oldest, lowest := -1, uint64(0)
	for i, r := range s.active {
		if _, kept := r.run.(*cursor); !kept {
			continue
		}
		if seq, _, ok := r.run.batch(); ok && (oldest < 0 || seq < lowest) {
			oldest, lowest = i, seq
		}
	}
	if oldest >= 0 {
		s.abort(oldest)
	}
}

func (s *replayServer) abort(i int) {
	s.dropped(1)
	s.remove(i)
}

func (s *replayServer) remove(i int) {
	s.active[i].run.release()
	if a := s.active[i].wanted; a != nil {
		a.release()
	}
	last := len(s.active) - 1
	copy(s.active[i:], s.active[i+1:])
	s.active[last] = nil
	s.active = s.active[:last]
}

// dropped counts requests that get no answer, or not all of it.
func (s *replayServer) dropped(n int) {
	s.counters.aborted.Add(uint64(n))
}
