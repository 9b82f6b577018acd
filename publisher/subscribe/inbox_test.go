// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"runtime"
	"testing"
	"unsafe"
)

// What waits is counted with what holds it, however small the messages are, and however
// their sizes are rounded up.
func TestInboxCountsMemory(t *testing.T) {
	if n := unsafe.Sizeof(waiting{}); n > heldOverhead {
		t.Errorf("a message takes %d bytes, %d are counted", n, heldOverhead)
	}
	const most = 8 << 20
	for _, size := range []int{0, 1, 33, 1025, 9000, 33 << 10} {
		heap := func() int64 {
			var s runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&s)
			return int64(s.HeapAlloc)
		}
		before := heap()
		b := newInbox(make(chan struct{}, 1), 1<<30, most)
		for {
			m := received{n: 3}
			m.frames[0], m.frames[2] = make([]byte, size), make([]byte, size)
			if !b.offer(&m) {
				break
			}
		}
		if held := heap() - before; held > most+most/16 || held < most/2 {
			t.Errorf("size %d: %d bytes are held, %d may be", size, held, most)
		}
		// What was handed out takes nothing.
		for m := (received{}); b.state.left > 1; {
			b.take(&m)
		}
		if held := heap() - before; held > most/16 {
			t.Errorf("size %d: %d bytes are held for one message", size, held)
		}
		runtime.KeepAlive(b)
	}
}
