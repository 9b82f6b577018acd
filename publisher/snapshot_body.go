// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"io"

	"github.com/kvcast/kvcast/bindings"
	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// snapshotEvents and snapshotBlocks are what is read at a time. A snapshot is one
	// batch up to maxMessage, the batch limits do not hold for it: a REQ client reads
	// only the first batch of an answer, and a common client stops at the number
	// before the live one it holds.
	snapshotEvents = 1024
	snapshotBlocks = 8192
	// headRoom is kept before the events for the head, whose length depends on
	// how many there are: at most 1 + 9 + 5 bytes. rankRoom is for what follows.
	headRoom = 16
	rankRoom = 9
)

// snapshotBody is an encoded snapshot: a clear, then all that is announced as of
// the batch newest, parents first. If the first message has room for nothing but the
// clear, or nothing else to say, it has a second one: a lone clear could be an ordinary
// batch. It never changes.
type snapshotBody struct {
	newest uint64
	// messages are the payloads; empty is a batch without events, for the
	// numbers behind them.
	messages [][]byte
	empty    []byte
	encoder  *wire.Encoder
	ts       float64
	rank     uint64
	limit    int // bytes of a message
}

// messageWriter collects encoded events in messages of a limited size.
type messageWriter struct {
	of   *snapshotBody
	buf  []byte
	n    int
	list [][]byte
	// clear is the encoded clear with which the first message begins; nil in the
	// others.
	clear []byte
	// scratch is for write.
	scratch []byte
}

// write encodes events in pieces of a quarter of a message at most and appends
// them, so that none passes the limit: the validator has split what is larger.
func (w *messageWriter) write(events []event.Event) error {
	for len(events) > 0 {
		n, size := 1, estimateSize(events[0])
		for ; n < len(events); n++ {
			if size += estimateSize(events[n]); size > int64(w.of.limit/4) {
				break
			}
		}
		var err error
		if w.scratch, err = w.of.encoder.AppendEvents(w.scratch[:0], events[:n]); err != nil {
			return err
		}
		if err = w.add(w.scratch, n); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// add appends encoded events, which are not kept.
func (w *messageWriter) add(encoded []byte, events int) error {
	if w.n > 0 && len(w.buf)+len(encoded)+rankRoom > w.of.limit {
		if err := w.close(); err != nil {
			return err
		}
	}
	if w.buf == nil {
		w.buf = make([]byte, headRoom, headRoom+2*len(encoded))
	}
	w.buf = append(w.buf, encoded...)
	w.n += events
	return nil
}

// close ends a message.
func (w *messageWriter) close() error {
	if w.n == 0 {
		return nil
	}
	if w.n == 1 && w.clear != nil {
		w.buf = append(w.buf, w.clear...)
		w.n++
	}
	w.clear = nil
	m, err := w.of.message(w.buf, w.n)
	if err != nil {
		return err
	}
	w.list = append(w.list, m)
	w.buf, w.n = nil, 0
	return nil
}

// message makes a payload of events that begin at headRoom in buf.
func (b *snapshotBody) message(buf []byte, events int) ([]byte, error) {
	var room [headRoom]byte
	head, err := b.encoder.AppendHead(room[:0], b.ts, events)
	if err != nil {
		return nil, err
	}
	from := headRoom - len(head)
	copy(buf[from:], head)
	return b.encoder.AppendRank(buf, b.rank)[from:], nil
}

// encodeSnapshot reads a snapshot to its end. Events that most readers cannot
// take (risky), and what hangs on them, are in messages of their own behind all
// others, so that they take nothing else with them.
func encodeSnapshot(s *settings, from *bindings.Snapshot, newest uint64, ts float64, stop func() bool) (*snapshotBody, error) {
	encoder, err := wire.NewEncoder(s.wireConfig())
	if err != nil {
		return nil, err
	}
	v, err := newValidator(s)
	if err != nil {
		return nil, err
	}
	b := &snapshotBody{newest: newest, encoder: encoder, ts: ts, rank: uint64(s.Rank),
		limit: s.maxMessage}
	if b.empty, err = encoder.AppendBatch(nil, ts, nil, b.rank); err != nil {
		return nil, err
	}
	plain, risky := messageWriter{of: b}, messageWriter{of: b}
	if plain.clear, err = encoder.AppendEvents(nil, clearEvents); err != nil {
		return nil, err
	}
	if err = plain.add(plain.clear, 1); err != nil {
		return nil, err
	}
	behind := newBlockSet()
	var shaped, safe, apart []event.Event
	for {
		if stop() {
			return nil, errSnapshotsOver
		}
		batch, err := from.Next(snapshotEvents, snapshotBlocks)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		v.begin()
		shaped, safe, apart = shaped[:0], safe[:0], apart[:0]
		for _, ev := range batch.Events {
			// What may not be sent was not sent when it was stored.
			shaped, _ = v.shape(shaped, ev, true)
		}
		for _, ev := range shaped {
			if behind.takes(ev) {
				apart = append(apart, ev)
			} else {
				safe = append(safe, ev)
			}
		}
		if err = plain.write(safe); err != nil {
			return nil, err
		}
		if err = risky.write(apart); err != nil {
			return nil, err
		}
	}
	for _, w := range []*messageWriter{&plain, &risky} {
		if err := w.close(); err != nil {
			return nil, err
		}
		b.messages = append(b.messages, w.list...)
	}
	return b, nil
}

// blockSet are the blocks of risky events and of what hangs on them.
type blockSet struct {
	hashes  map[uint64]struct{}
	digests map[event.Digest]struct{}
}

func newBlockSet() *blockSet {
	return &blockSet{hashes: map[uint64]struct{}{}, digests: map[event.Digest]struct{}{}}
}

// takes says whether a store belongs to the set, and adds its blocks.
func (b *blockSet) takes(ev event.Event) bool {
	e, ok := ev.(*event.BlockStored)
	if !ok {
		return false
	}
	below := false
	if e.HasParent {
		if len(e.Digests) > 0 {
			_, below = b.digests[e.ParentDigest]
		} else {
			_, below = b.hashes[e.ParentHash]
		}
	}
	if !below && !risky(ev) {
		return false
	}
	for _, h := range e.Hashes {
		b.hashes[h] = struct{}{}
	}
	for _, d := range e.Digests {
		b.digests[d] = struct{}{}
	}
	return true
}
