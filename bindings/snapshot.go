// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"io"
	"runtime"
	"sync"

	"github.com/kvcast/kvcast/cgo"
)

// Snapshot is what a stream had announced at one moment: stored events, each
// block once, parents before their children. All methods may be called from any
// goroutine, beside drains and also after the stream has been closed.
type Snapshot struct {
	mu      sync.Mutex
	raw     cgo.Snapshot
	reader  batchReader
	batch   *Batch // what was lent last
	closed  bool
	cleanup runtime.Cleanup
	err     cgo.Error
}

// Snapshot pins what is announced as of the last drain, at once; it is read
// while drains go on. Who has heard all batches so far, and who hears a clear and
// all of the snapshot, know the same.
//
// As long as it is open, drains copy what they change of it: at most as much
// memory as the stream's mirror takes. ErrBusy: a drain is running, another
// snapshot is open, or somebody has claimed the stream; ErrOutOfMemory,
// ErrClosed. To be closed.
func (s *Stream) Snapshot() (*Snapshot, error) { return s.snapshot(nil) }

// Snapshot is Stream.Snapshot for the one who has claimed it; ErrClosed after
// Release.
func (d *Drainer) Snapshot() (*Snapshot, error) { return d.stream.snapshot(d) }

func (s *Stream) snapshot(who *Drainer) (*Snapshot, error) {
	const op = "snapshot"
	if err := s.enter(op, who); err != nil {
		return nil, err
	}
	var e cgo.Error
	raw, status := s.raw.SnapshotOpen(&e)
	s.mu.Lock()
	s.draining = false
	s.changed.Broadcast()
	s.mu.Unlock()
	runtime.KeepAlive(s)
	if status != cgo.OK {
		return nil, callError(op, status, &e)
	}
	o := &Snapshot{raw: raw, reader: newBatchReader(), batch: new(Batch)}
	o.cleanup = runtime.AddCleanup(o, func(struct{}) { leakedSnapshots.Add(1) }, struct{}{})
	return o, nil
}

// Next returns the next batch, of at most maxEvents events and maxBlocks block
// hashes (0 = no limit), and io.EOF when all has been told. The batch is borrowed
// until the next call or Close; its Release does nothing. Events are cut to fit.
// ErrOutOfMemory: nothing is lost, a later call goes on; ErrClosed.
func (o *Snapshot) Next(maxEvents, maxBlocks int) (*Batch, error) {
	const op = "snapshot"
	if maxEvents < 0 || maxBlocks < 0 {
		return nil, argumentError(op, "limits are %d events, %d blocks", maxEvents, maxBlocks)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, closedError(op)
	}
	o.batch.clear()
	status := o.raw.Next(uint64(maxEvents), uint64(maxBlocks), o.reader.view, &o.err)
	switch status {
	case cgo.OK:
		o.reader.fill(o.batch)
		return o.batch, nil
	case cgo.End:
		return nil, io.EOF
	}
	return nil, callError(op, status, &o.err)
}

// Close gives the snapshot up and takes back the batch that is borrowed from it;
// it waits for a Next that is under way. Closing again is harmless.
func (o *Snapshot) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.batch.clear()
	o.raw.Close()
	o.closed, o.raw = true, cgo.Snapshot{}
	o.cleanup.Stop()
	runtime.KeepAlive(o)
	return nil
}
