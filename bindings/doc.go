// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package bindings is the Go API of kvcast: a KV-cache page allocator with a
// prefix tree (Manager), the sequences that use it (Sequence) and the stream
// of events that says which blocks became reusable and which went (Stream).
//
// # Words
//
// A page is a physical slot of KV memory, a block a run of tokens with a place
// in the prefix tree, a sequence one request's view of both. An event is what
// goes on the wire, a batch what one drain hands over.
//
// # Life of a sequence
//
// Create matches a prompt against the tree and holds the blocks it finds; Grow
// gives the sequence pages, evicting what nobody holds; Commit says that the
// KV values of further tokens exist, and each block that becomes full can be
// reused by others from then on; Release ends the sequence and leaves its
// blocks in the tree until their pages are needed.
//
// The calls take and fill slices, because one call into native code for a
// whole scheduler step costs as much as one for a single item. Items fail one
// by one: the error that a call returns speaks of the call as a whole, each
// item's own error stands in its result. In the steady state none of them
// allocates, as long as the caller reuses its result slices.
//
// # Events
//
// A Stream is created first and given to NewManager. One goroutine drains it.
// The events of a batch are borrowed: their slices alias native memory until
// the batch is released or the next one drained. Flush, called by the
// scheduler at the end of a step, wakes the drainer through Wake.
//
// # Errors, threads, lifetimes
//
// Errors are *Error values and match the package's sentinels with errors.Is.
// All methods may be called from any goroutine at any time, Close included; a
// call on something closed gives ErrClosed. Managers and streams hold native
// memory and must be closed. One that is garbage collected open is counted as
// leaked (LiveHandles), not freed.
package bindings
