// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"sync"
	"syscall"
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
	// A connection takes a descriptor of the process that we are a guest in, and
	// when there are none left ZeroMQ spins. So an endpoint may have one part in
	// connectionShare of them, between minConnections and maxConnections, far more
	// than a stream has readers.
	connectionShare = 4
	minConnections  = 16
	maxConnections  = 4096
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
	// connections is how many there may be.
	connections int
}

// requestAllowance is for those who ask for replays, subscriptionAllowance for
// subscribers, whose messages peers counts. heartbeat is our own interval;
// expected are the subscribers that Start waits for.
func requestAllowance() allowance {
	return allowance{burst: meterBurst, rate: meterRate, silent: meterSilent, silentRate: silentRate,
		connections: connectionLimit()}
}

func subscriptionAllowance(heartbeat time.Duration, expected int) allowance {
	a := allowance{silent: meterSilent, silentRate: silentRate,
		connections: max(connectionLimit(), expected+minConnections)}
	if heartbeat > 0 {
		a.silentRate += pongBytes / heartbeat.Seconds()
	}
	return a
}

func connectionLimit() int {
	n, ok := maxDescriptors()
	if !ok {
		return maxConnections
	}
	return int(min(max(n/connectionShare, minConnections), maxConnections))
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

	reserve     reserve // of watch
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
	// begun is when it was first looked at, asked that a message has come of it.
	begun time.Time
	asked bool
}

// newMeter begins to look after the connections that ours recognises; cut is
// called for each one that was cut off, by two goroutines.
func newMeter(a allowance, ours func(fd int) bool, cut func()) *meter {
	m := &meter{allowance: a, ours: ours, received: bytesReceived, cut: cut, known: make(map[uint64]*usage),
		reserve: newReserve(), quit: make(chan struct{}), ended: make(chan struct{})}
	go m.watch()
	return m
}

// stop ends it; m may be nil.
func (m *meter) stop() {
	if m != nil {
		close(m.quit)
		<-m.ended
		m.reserve.close()
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
		m.sweep(m.reserve.list(), begin)
		timer.Reset(max(sweepInterval, sweepShare*time.Since(begin)))
	}
}

// sweep looks at all connections, cuts off those that are too many, and forgets
// those that have ended.
func (m *meter) sweep(descriptors []int, now time.Time) {
	var open []connection
	for _, fd := range descriptors {
		if inode, ok := socketInode(fd); ok && m.ours(fd) && !listens(fd) {
			c := connection{fd, inode}
			m.look(c, now, false)
			open = append(open, c)
		}
	}
	for _, c := range m.tooMany(open) {
		if m.reserve.cutOff(c, m.ours) {
			m.cut()
		} else {
			m.spare(c)
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

// tooMany returns the connections above the number that there may be, and takes
// them for cut: first those that have not asked for anything, longest waiting
// first, for whoever wants something asks at once; then the newest ones.
func (m *meter) tooMany(open []connection) []connection {
	m.mu.Lock()
	defer m.mu.Unlock()
	open = slices.DeleteFunc(open, func(c connection) bool {
		u := m.known[c.inode]
		return u == nil || u.cut
	})
	n := len(open) - m.connections
	if m.connections == 0 || n <= 0 {
		return nil
	}
	slices.SortStableFunc(open, func(a, b connection) int {
		u, v := m.known[a.inode], m.known[b.inode]
		switch {
		case u.asked != v.asked && v.asked:
			return -1
		case u.asked != v.asked:
			return 1
		case u.asked:
			return v.begun.Compare(u.begun)
		default:
			return u.begun.Compare(v.begun)
		}
	})
	for _, c := range open[:n] {
		m.known[c.inode].cut = true
	}
	return open[:n]
}

// spare takes back that a connection is cut.
func (m *meter) spare(c connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.known[c.inode]; u != nil {
		u.cut = false
	}
}

// listens says whether a socket is one that accepts connections.
func listens(fd int) bool {
	n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	return err == nil && n != 0
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
		u = &usage{at: now, begun: now}
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
		u.silent, u.asked = 0, true
	}
	over := !u.cut && (m.burst > 0 && u.level > m.burst || u.silent > m.silent)
	u.cut = u.cut || over
	m.mu.Unlock()
	if over && cutOff(c.fd, c.inode, m.ours) {
		m.cut()
	}
}
