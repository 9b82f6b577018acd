// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"sync"
	"time"
)

const (
	// meterBurst and meterRate (bytes per second) are what a connection may send
	// to the replay socket: a leaky bucket. A request is 11 bytes on the wire, so
	// this is thousands at once and more than a thousand a second from then on.
	meterBurst = 128 << 10
	meterRate  = 16 << 10
	// meterSilent is what a connection may send without a message coming out of
	// ZeroMQ, which keeps an unfinished one in memory, at up to 64 bytes for one.
	// silentRate (bytes per second) is what of it is forgiven: a subscriber is
	// silent for weeks, but for its heartbeats. One of its own per second takes 16,
	// with the answers to ours at their default interval. An unfinished message
	// that comes so slowly takes 2 KiB of memory a second.
	meterSilent = 1 << 20
	silentRate  = 64
	// pongBytes is the answer to one of our heartbeats.
	pongBytes = 16
	// sweepInterval is how often all connections are looked at, and sweepShare
	// the part of the time that this may take at most: with very many
	// descriptors it is done less often.
	sweepInterval = 100 * time.Millisecond
	sweepShare    = 100
)

// allowance is what a meter lets a connection send; bytes, and bytes per second.
type allowance struct {
	// burst and rate are for everything; 0 = no bound.
	burst, rate float64
	// silent and silentRate are for what comes while no message comes out.
	silent, silentRate float64
}

// requestAllowance is for those who ask for replays, subscriptionAllowance for
// subscribers, whose messages peers counts. heartbeat is our own interval.
func requestAllowance() allowance {
	return allowance{burst: meterBurst, rate: meterRate, silent: meterSilent, silentRate: silentRate}
}

func subscriptionAllowance(heartbeat time.Duration) allowance {
	a := allowance{silent: meterSilent, silentRate: silentRate}
	if heartbeat > 0 {
		a.silentRate += pongBytes / heartbeat.Seconds()
	}
	return a
}

// meter cuts off the connections to one endpoint that send more than anybody
// needs. It asks the system what has arrived: messages show only what ZeroMQ has
// finished reading. Where the system does not tell (ipc, other systems), it does
// nothing.
type meter struct {
	allowance
	ours func(fd int) bool
	// received is bytesReceived.
	received func(fd int) (uint64, bool)
	cut      func()

	mu    sync.Mutex
	known map[uint64]*usage // by inode

	quit, ended chan struct{}
}

// usage is what a connection has sent.
type usage struct {
	at       time.Time
	received uint64
	// level is that of the leaky bucket, silent that of what has come since a
	// message last came out.
	level, silent float64
	cut, swept    bool
}

// newMeter begins to look after the connections that ours recognises; cut is
// called for each one that was cut off, by two goroutines.
func newMeter(a allowance, ours func(fd int) bool, cut func()) *meter {
	m := &meter{allowance: a, ours: ours, received: bytesReceived, cut: cut, known: make(map[uint64]*usage),
		quit: make(chan struct{}), ended: make(chan struct{})}
	go m.watch()
	return m
}

// stop ends it; m may be nil.
func (m *meter) stop() {
	if m != nil {
		close(m.quit)
		<-m.ended
	}
}

func (m *meter) watch() {
	defer close(m.ended)
	timer := time.NewTimer(sweepInterval)
	defer timer.Stop()
	for {
		select {
		case <-m.quit:
			return
		case <-timer.C:
		}
		begin := time.Now()
		m.sweep(openDescriptors(), begin)
		timer.Reset(max(sweepInterval, sweepShare*time.Since(begin)))
	}
}

// sweep looks at all connections and forgets those that have ended.
func (m *meter) sweep(descriptors []int, now time.Time) {
	for _, fd := range descriptors {
		if inode, ok := socketInode(fd); ok && m.ours(fd) {
			m.look(connection{fd, inode}, now, false)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for inode, u := range m.known {
		if !u.swept {
			delete(m.known, inode)
		}
		u.swept = false
	}
}

// message notes that a message has come from a connection.
func (m *meter) message(c connection, now time.Time) {
	if m != nil && c != (connection{}) {
		m.look(c, now, true)
	}
}

func (m *meter) look(c connection, now time.Time, message bool) {
	received, ok := m.received(c.fd)
	if !ok {
		return
	}
	m.mu.Lock()
	u := m.known[c.inode]
	if u == nil {
		u = &usage{at: now}
		m.known[c.inode] = u
	}
	u.swept = true
	if received >= u.received { // else two looks have overtaken one another
		passed, more := now.Sub(u.at).Seconds(), float64(received-u.received)
		u.level = max(0, u.level-passed*m.rate) + more
		u.silent = max(0, u.silent-passed*m.silentRate) + more
		u.at, u.received = now, received
	}
	if message {
		u.silent = 0
	}
	over := !u.cut && (m.burst > 0 && u.level > m.burst || u.silent > m.silent)
	u.cut = u.cut || over
	m.mu.Unlock()
	if over && cutOff(c.fd, c.inode, m.ours) {
		m.cut()
	}
}
