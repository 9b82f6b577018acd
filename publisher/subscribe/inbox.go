// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"sync"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

// received is a message as it came: its first frames, and how many it has. dropped: some
// of those were too long together and are not there. connection is the number of the
// connection that brought it, or an earlier one if that is not known.
type received struct {
	frames     [wire.LiveFrames + 1][]byte
	n          int
	dropped    bool
	connection int
}

const (
	// The runtime rounds up what it allocates, by a seventh at most and in small steps up
	// to smallFrame, in whole pages beyond.
	smallFrame    = 32 << 10
	frameOverhead = 16
	framePage     = 8 << 10
)

// size is what it takes while it waits, in bytes.
func (m *received) size() int {
	n := heldOverhead
	for _, frame := range m.frames {
		switch c := cap(frame); {
		case c > smallFrame:
			n += (c + framePage - 1) / framePage * framePage
		case c > 0:
			n += c + c/7 + frameOverhead
		}
	}
	return n
}

// waiting is a message in a queue. Each has its own memory, so that what was handed
// out takes none.
type waiting struct {
	received
	next *waiting
}

// state is what is known of a connection.
type state struct {
	// handshakes counts how often there was one.
	handshakes int
	// down: no message will come any more, and why; nil = one may.
	down error
	// lost is when a connection ended of which it is not known yet whether it is made
	// anew; zero = there is none.
	lost time.Time
	// trouble is what keeps the system from making a connection, told once.
	trouble error
	// dropped counts messages for which there was no room.
	dropped uint64
	// left is how many messages wait. All that came before down are among them.
	left int
}

// over returns why no message will come any more, once none waits, else nil.
func (s *state) over() error {
	if s.left > 0 {
		return nil
	}
	return s.down
}

// inbox is where a source puts what it receives. Any goroutine may use it.
type inbox struct {
	// wake has a token when something has happened. Several inboxes may share it.
	wake chan struct{}
	// messages and bytes are what may wait; a single message may be longer.
	messages, bytes int

	mu     sync.Mutex
	room   sync.Cond // of those that wait in put
	first  *waiting
	last   *waiting // if first is not nil
	size   int      // bytes that wait
	closed bool
	state  state
}

func newInbox(wake chan struct{}, messages, bytes int) *inbox {
	b := &inbox{wake: wake, messages: messages, bytes: bytes}
	b.room.L = &b.mu
	return b
}

func (b *inbox) full() bool {
	n := b.state.left
	return n >= max(b.messages, 1) || n > 0 && b.size >= b.bytes
}

// put waits until there is room for a message; false if there never will be.
func (b *inbox) put(m *received) bool {
	b.mu.Lock()
	for b.full() && !b.closed {
		b.room.Wait()
	}
	ok := !b.closed
	if ok {
		b.add(m)
	}
	b.mu.Unlock()
	b.signal()
	return ok
}

// offer puts a message if there is room, and counts it if there is none.
func (b *inbox) offer(m *received) bool {
	b.mu.Lock()
	ok := !b.full() && !b.closed
	if ok {
		b.add(m)
	} else {
		b.state.dropped++
	}
	b.mu.Unlock()
	b.signal()
	return ok
}

func (b *inbox) add(m *received) {
	w := &waiting{received: *m}
	if b.first == nil {
		b.first = w
	} else {
		b.last.next = w
	}
	b.last = w
	b.state.left++
	b.size += m.size()
}

// take returns the message that has waited longest; false if there is none.
func (b *inbox) take(m *received) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.first
	if w == nil {
		return false
	}
	*m, b.first = w.received, w.next
	b.state.left--
	b.size -= m.size()
	b.room.Signal()
	return true
}

// look returns the state, and trouble only if it has not been told.
func (b *inbox) look() state {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	b.state.trouble = nil
	return s
}

// note changes the state.
func (b *inbox) note(change func(s *state)) {
	b.mu.Lock()
	change(&b.state)
	b.mu.Unlock()
	b.signal()
}

// close lets nothing wait for room any more. What is there stays there.
func (b *inbox) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.room.Broadcast()
}

// drop forgets what waits.
func (b *inbox) drop() {
	b.mu.Lock()
	b.first, b.last, b.size, b.state.left = nil, nil, 0, 0
	b.mu.Unlock()
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
