// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package cgo

// #include "kvcast/kvcast.h"
//
// // As for kvc_stream_drain: the library writes the caller's struct, keeps no
// // pointer to it and never calls back.
// #cgo noescape kvc_stream_snapshot_next
// #cgo nocallback kvc_stream_snapshot_next
import "C"

import "unsafe"

// Snapshot is a kvc_snapshot*. The zero value is the null handle.
type Snapshot struct{ c *C.kvc_snapshot }

// SnapshotOpen opens a snapshot of what the stream has announced. The handle is
// valid only with OK.
func (s Stream) SnapshotOpen(err *Error) (Snapshot, Status) {
	var o Snapshot
	status := C.kvc_stream_snapshot_open(s.c, &o.c, err.c())
	return o, Status(status)
}

// Next lends the next batch in out, which must be an allocation of its own, as
// for Drain. It is valid until the next Next or Close of the same snapshot.
func (o Snapshot) Next(maxEvents, maxBlocks uint64, out *BorrowedBatch, err *Error) Status {
	return Status(C.kvc_stream_snapshot_next(o.c, C.uint64_t(maxEvents), C.uint64_t(maxBlocks),
		(*C.kvc_borrowed_batch)(unsafe.Pointer(out)), err.c()))
}

// Close frees the snapshot.
func (o Snapshot) Close() { C.kvc_stream_snapshot_close(o.c) }
