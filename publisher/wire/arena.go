// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package wire

import "unsafe"

// keepAtMost is how many elements may be kept for the next batch although most
// of them lay idle in the last one.
const keepAtMost = 1 << 16

// chunkBytes is the largest piece that an arena takes in advance.
const chunkBytes = 4 << 20

// arena hands out the lists of one batch. It never moves what it has handed
// out: lists in use would keep every old copy alive, so that growing by copying
// costs several times what is used.
type arena[T any] struct {
	chunk []T // up to its length handed out
	used  int // elements handed out since the last reset, in all chunks
}

// take returns n elements that nobody else has, without room behind them.
func (a *arena[T]) take(n int) []T {
	var zero T
	most := chunkBytes / int(unsafe.Sizeof(zero))
	a.used += n
	if n > cap(a.chunk)-len(a.chunk) {
		// A list that is large for a chunk has its own memory, so that at most a
		// quarter of a chunk is lost when the next one is begun.
		if n >= most/4 {
			return make([]T, n)
		}
		a.chunk = make([]T, 0, max(n, min(a.used, most)))
	}
	from := len(a.chunk)
	a.chunk = a.chunk[:from+n]
	return a.chunk[from : from+n : from+n]
}

// reset takes everything back. Whatever strings were in it are let go. The
// next batch finds room for as much as the last one took, unless that was more
// than a chunk.
func (a *arena[T]) reset() {
	var zero T
	switch used := a.used; {
	case used > cap(a.chunk) && used <= chunkBytes/int(unsafe.Sizeof(zero)):
		a.chunk = make([]T, 0, used)
	case cap(a.chunk) > keepAtMost && used < cap(a.chunk)/4:
		a.chunk = nil
	default:
		clear(a.chunk)
		a.chunk = a.chunk[:0]
	}
	a.used = 0
}

// recycle empties a slice, or drops it when one large batch left it far larger
// than what is used. Strings and pointers of the old batch are let go.
func recycle[T any](s []T) []T {
	if cap(s) > keepAtMost && len(s) < cap(s)/4 {
		return nil
	}
	clear(s)
	return s[:0]
}
