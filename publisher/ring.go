// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import "sync"

const (
	// minChunk and maxChunk bound the size of a chunk, which is otherwise
	// 1/chunkShare of what the ring may hold. A batch that does not fit into the
	// rest of a chunk leaves it empty, so a chunk should be much larger than a
	// batch; what is kept beyond the bound is up to a chunk.
	minChunk   = 64 << 10
	maxChunk   = 2 << 20
	chunkShare = 32
	// maxFree is how many chunks wait for being used again. In steady state one
	// is given up for each one that is filled.
	maxFree = 2
)

// ring keeps the newest batches for replays: a contiguous run of numbers. One
// goroutine pushes; cursors read. Payloads are copied once, into chunks that
// are filled one after another and used again, so that a push allocates nothing
// in steady state and holds the lock for some tens of nanoseconds.
type ring struct {
	maxBatches int
	maxBytes   int64 // 0 = no limit
	chunkSize  int

	// What follows up to mu belongs to the goroutine that pushes.
	current *chunk // the newest, not full
	used    int    // bytes of it

	mu sync.Mutex
	// head is the chunk of the oldest batch, first the batch's place in it. The
	// chunks from there on are linked up to tail. nil while there is none.
	head, tail *chunk
	first      int
	count      int
	bytes      int64
	newest     uint64
	// pinned is the size of the chunks that only cursors keep.
	pinned int64
	free   []*chunk
}

// chunk holds payloads one behind the other. What records say is there does
// not change while a cursor pins the chunk.
type chunk struct {
	buf     []byte
	records []record
	next    *chunk
	// live is how many records are in the ring, pins how many cursors need any.
	live, pins int
}

// record is where the payload of a batch is.
type record struct {
	seq       uint64
	from, end int
}

func newRing(maxBatches int, maxBytes int64) *ring {
	size := int64(maxChunk)
	if maxBytes > 0 {
		size = min(max(maxBytes/chunkShare, minChunk), maxChunk)
	}
	return &ring{maxBatches: maxBatches, maxBytes: maxBytes, chunkSize: int(size)}
}

// push adds the newest batch and copies its payload. Older ones leave until the
// bounds hold, the newest never does. A number that is missing before it makes
// all older ones leave: nobody can be served across the hole.
func (r *ring) push(seq uint64, payload []byte) {
	c := r.current
	if c == nil || len(payload) > len(c.buf)-r.used {
		c = r.newChunk(len(payload))
		r.current, r.used = c, 0
	}
	// No record covers this part yet, so nobody reads it.
	from := r.used
	r.used += copy(c.buf[from:], payload)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 && seq != r.newest+1 {
		for r.count > 0 {
			r.evictLocked()
		}
	}
	switch {
	case r.tail == nil:
		r.head, r.first = c, 0
	case r.tail != c:
		r.tail.next = c
	}
	r.tail = c
	c.records = append(c.records, record{seq: seq, from: from, end: r.used})
	c.live++
	r.count++
	r.bytes += int64(len(payload))
	r.newest = seq
	r.trimLocked()
	for r.count > r.maxBatches || r.maxBytes > 0 && r.bytes > r.maxBytes && r.count > 1 {
		r.evictLocked()
	}
}

// newChunk returns an empty chunk for a payload of n bytes.
func (r *ring) newChunk(n int) *chunk {
	if n > r.chunkSize {
		return &chunk{buf: make([]byte, n)}
	}
	r.mu.Lock()
	if last := len(r.free) - 1; last >= 0 {
		c := r.free[last]
		r.free[last] = nil
		r.free = r.free[:last]
		r.mu.Unlock()
		return c
	}
	r.mu.Unlock()
	return &chunk{buf: make([]byte, r.chunkSize)}
}

// evictLocked takes the oldest batch out.
func (r *ring) evictLocked() {
	c := r.head
	rec := c.records[r.first]
	r.first++
	c.live--
	r.count--
	r.bytes -= int64(rec.end - rec.from)
	r.trimLocked()
}

// trimLocked drops the chunks in front that hold no batch any more. The newest
// chunk stays, because the next batch may go into it.
func (r *ring) trimLocked() {
	for r.head.live == 0 && r.head != r.tail {
		c := r.head
		r.head, r.first = c.next, 0
		if c.pins > 0 {
			r.pinned += int64(len(c.buf))
		} else {
			r.recycleLocked(c)
		}
	}
}

func (r *ring) recycleLocked(c *chunk) {
	c.next = nil
	if len(c.buf) == r.chunkSize && len(r.free) < maxFree {
		c.records = c.records[:0]
		r.free = append(r.free, c)
	}
}

// size returns the number of batches and the bytes of their payloads.
func (r *ring) size() (batches int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count, r.bytes
}

// overPinned says that replays keep more than they may of what has left the
// ring.
func (r *ring) overPinned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.maxBytes > 0 && r.pinned > r.maxBytes
}

// cursor reads a run of batches as it was when it was opened. One goroutine
// uses it, and calls release at the end.
type cursor struct {
	ring    *ring
	chunk   *chunk // nil: nothing is left
	end     *chunk // the last one
	records []record
	i       int
	last    uint64
}

// open returns a cursor over the batches from start to the newest. truncated
// says that the ring no longer has start; then the run begins at the oldest
// batch, or is empty unless the policy is TruncatedSuffix. Nothing at or above start is an
// empty run, too.
func (r *ring) open(start uint64, policy TruncatedHistory) (run cursor, truncated bool) {
	run.ring = r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 || start > r.newest {
		return run, false
	}
	oldest := r.newest - uint64(r.count-1)
	if start < oldest {
		if policy != TruncatedSuffix {
			return run, true
		}
		start, truncated = oldest, true
	}
	// Numbers are contiguous, so the distance is that of the records.
	c, i := r.head, r.first
	for skip := start - oldest; ; c, i = c.next, 0 {
		here := uint64(len(c.records) - i)
		if skip < here {
			i += int(skip)
			break
		}
		skip -= here
	}
	run.chunk, run.end, run.records, run.i, run.last = c, r.tail, c.records, i, r.newest
	for ; ; c = c.next {
		c.pins++
		if c == r.tail {
			return run, truncated
		}
	}
}

// batch returns the batch at the cursor, false at the end of the run. The
// payload is valid until the next call of advance or release.
func (c *cursor) batch() (seq uint64, payload []byte, ok bool) {
	if c.chunk == nil {
		return 0, nil, false
	}
	rec := c.records[c.i]
	return rec.seq, c.chunk.buf[rec.from:rec.end], true
}

// advance goes to the next batch.
func (c *cursor) advance() {
	if c.chunk == nil {
		return
	}
	if c.records[c.i].seq == c.last {
		c.release()
		return
	}
	if c.i++; c.i < len(c.records) {
		return
	}
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	done := c.chunk
	c.chunk = done.next
	c.records, c.i = c.chunk.records, 0
	c.ring.unpinLocked(done)
}

// release gives up what is left of the run.
func (c *cursor) release() {
	if c.chunk == nil {
		return
	}
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	for chunk := c.chunk; ; {
		next := chunk.next
		c.ring.unpinLocked(chunk)
		if chunk == c.end {
			break
		}
		chunk = next
	}
	c.chunk, c.end, c.records = nil, nil, nil
}

// unpinLocked forgets one cursor of a chunk.
func (r *ring) unpinLocked(c *chunk) {
	c.pins--
	if c.pins == 0 && c.live == 0 && c != r.tail {
		r.pinned -= int64(len(c.buf))
		r.recycleLocked(c)
	}
}
