// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"
)

// finish is what happens after Close: flush, last clear, linger.
func (o *owner) finish() {
	o.closing = true // so no resync begins: what waits goes first
	o.p.mu.Lock()
	closed := o.p.closedAt
	o.p.mu.Unlock()
	deadline := closed.Add(o.s.ShutdownTimeout)
	lingerEnd := deadline.Add(min(o.s.ShutdownTimeout, closeGrace-closeMargin))
	o.endReplay(deadline, lingerEnd)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		left := deadline.Sub(now)
		if left <= 0 {
			break
		}
		more, wait := o.step(now)
		if more {
			continue
		}
		if o.drained {
			break
		}
		timer.Reset(min(wait, left))
		select {
		case _, ok := <-o.wake:
			o.woken(ok)
		case <-timer.C:
		}
	}
	o.abandonResync()
	o.endSnapshots()
	o.abandon()
	if o.s.ClearOnClose {
		o.publishClear()
	}
	o.restartMark()
	for _, r := range o.flushes {
		r.done <- &Error{Op: "flush", Err: ErrClosed}
	}
	o.flushes = nil
	o.transport.close(max(min(o.s.ShutdownTimeout, time.Until(lingerEnd)), 0))
	o.waitReplay()
}

// abandon counts what is left in the queue as dropped.
func (o *owner) abandon() {
	o.p.mu.Lock()
	for {
		if _, ok := o.p.queue.pop(); !ok {
			break
		}
		o.p.stats.SendErrorDrops++
	}
	warning := o.p.dropWarningLocked()
	o.p.mu.Unlock()
	o.p.warn(warning)
}
