// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"sync/atomic"
	"time"
)

const (
	// guardInterval is how often the guard looks.
	guardInterval = 20 * time.Millisecond
	// guardPatience is how long one call of ZeroMQ may take, ordinarily some
	// microseconds; ten thousand subscriptions at once take 10 ms.
	guardPatience = 100 * time.Millisecond
	// guardBytes is what a connection may bring during a call that takes longer.
	guardBytes = 32 << 10
)

// guard frees the owner goroutine from a call of ZeroMQ that a peer keeps from
// returning: an XPUB takes in all subscriptions of a connection before it
// returns, and goes on for as long as they arrive faster than it can note them.
// Only a look at the connections themselves shows who does it.
type guard struct {
	// entered is when the owner went into ZeroMQ, in nanoseconds since begin,
	// 0 while it is elsewhere.
	entered atomic.Int64
	begin   time.Time
	ours    func(fd int) bool
	cut     func()
	quit    chan struct{}
	ended   chan struct{}
}

// newGuard begins to watch over the connections that ours recognises; cut is
// called for each one that was cut off.
func newGuard(ours func(fd int) bool, cut func()) *guard {
	g := &guard{begin: time.Now(), ours: ours, cut: cut, quit: make(chan struct{}), ended: make(chan struct{})}
	go g.watch()
	return g
}

func (g *guard) stop() {
	close(g.quit)
	<-g.ended
}

// enter and leave surround the owner's calls of ZeroMQ; g may be nil.
func (g *guard) enter() {
	if g != nil {
		g.entered.Store(max(1, int64(time.Since(g.begin))))
	}
}

func (g *guard) leave() {
	if g != nil {
		g.entered.Store(0)
	}
}

func (g *guard) watch() {
	defer close(g.ended)
	ticker := time.NewTicker(guardInterval)
	defer ticker.Stop()
	var first map[uint64]uint64 // by inode, what had been received
	var during int64            // the call at whose beginning that was
	for {
		select {
		case <-g.quit:
			return
		case <-ticker.C:
		}
		entered := g.entered.Load()
		if entered == 0 || int64(time.Since(g.begin))-entered < int64(guardInterval) {
			continue
		}
		if during != entered {
			first, during = make(map[uint64]uint64), entered
		}
		late := int64(time.Since(g.begin))-entered > int64(guardPatience)
		for _, fd := range openDescriptors() {
			inode, isSocket := socketInode(fd)
			if !isSocket || !g.ours(fd) {
				continue
			}
			received, ok := bytesReceived(fd)
			if !ok {
				continue
			}
			if _, ok := first[inode]; !ok {
				first[inode] = received
			}
			if late && received > first[inode]+guardBytes && cutOff(fd, inode, g.ours) {
				first[inode] = received // once
				g.cut()
			}
		}
	}
}
