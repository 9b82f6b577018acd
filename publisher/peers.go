// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvcast/kvcast/publisher/wire"
)

const (
	// peerBudget bounds what one TCP connection may send us, peerMessage being the
	// price of a message beside its length. ZeroMQ keeps each subscription in
	// memory, whether the topic matches or not, at 30 to 60 bytes per byte of
	// the prefix: that makes it some tens of MiB for one connection. 16,000
	// short messages are a thousand times what a subscriber needs.
	peerBudget  = 1 << 20
	peerMessage = 64
	// srcFD is the property under which ZeroMQ gives a message the descriptor
	// of its connection (what ZMQ_SRCFD reads).
	srcFD = "__fd"
)

// peers knows which connections have asked for the topic. What an XPUB reports
// has the descriptor of the connection with it, except what ZeroMQ makes up
// when a connection ends, and except for inproc, which has no connections. So
// each connection counts once, only its own messages change what is known of
// it, and its end is seen at the descriptor, never believed.
type peers struct {
	topic []byte
	// inproc: peers are part of this process and cannot be told apart.
	inproc    bool
	anonymous int
	// ours says whether a descriptor is a connection to our endpoint: one that
	// has been closed may have become anything else.
	ours  func(fd int) bool
	known map[int]*peer // by descriptor
	// meter learns which connections have sent whole messages; nil without one.
	meter *meter
}

// peer is one connection.
type peer struct {
	inode uint64
	// prefixes is a set of lengths: all that matter are prefixes of one topic.
	prefixes [(wire.MaxTopic + 64) / 64]uint64
	// spent is the price of its messages since the budget was last looked at,
	// wire what they are long on the wire, at least.
	spent, wire int
	cut         bool
}

// take notes a message and the descriptor it came from, "" without one. It
// returns whether its connection was cut off for it.
func (s *peers) take(message []byte, descriptor string) (cut bool) {
	matches := len(message) > 0 && message[0] <= 1 && bytes.HasPrefix(s.topic, message[1:])
	if s.inproc {
		switch {
		case matches && message[0] == 1:
			s.anonymous++
		case matches && s.anonymous > 0:
			s.anonymous--
		}
		return false
	}
	fd, err := strconv.Atoi(descriptor)
	if err != nil {
		return false // a connection has ended; prune sees which
	}
	p := s.find(fd)
	if p == nil || p.cut {
		return false
	}
	s.meter.message(connection{fd, p.inode}, time.Now())
	p.wire += 2 + len(message)
	if p.spent += peerMessage + len(message); p.spent > peerBudget {
		// Messages of an earlier connection with this descriptor may have been
		// waiting; then this one cannot have sent so much.
		if received, ok := bytesReceived(fd); ok && received >= uint64(p.wire) {
			p.cut, p.prefixes = true, peer{}.prefixes
			return cutOff(fd, p.inode, s.ours)
		}
		p.spent, p.wire = 0, 0
	}
	if matches {
		n := len(message) - 1
		if message[0] == 1 {
			p.prefixes[n/64] |= 1 << (n % 64)
		} else {
			p.prefixes[n/64] &^= 1 << (n % 64)
		}
	}
	return false
}

// find returns the connection that a descriptor stands for, nil if it is none
// of ours any more.
func (s *peers) find(fd int) *peer {
	inode, ok := socketInode(fd)
	if p := s.known[fd]; ok && p != nil && p.inode == inode {
		return p
	}
	delete(s.known, fd)
	if !ok || !s.ours(fd) {
		return nil
	}
	if s.known == nil {
		s.known = make(map[int]*peer)
	}
	p := &peer{inode: inode}
	s.known[fd] = p
	return p
}

// count forgets the connections that have ended and returns the number of those
// that want the topic.
func (s *peers) count() int {
	n := s.anonymous
	for fd, p := range s.known {
		if inode, ok := socketInode(fd); !ok || inode != p.inode {
			delete(s.known, fd)
		} else if p.prefixes != (peer{}).prefixes {
			n++
		}
	}
	return n
}

// cutOff ends a connection as its peer would; ZeroMQ cannot do so. The
// duplicate keeps the descriptor from becoming another one between look and
// shutdown.
func cutOff(fd int, inode uint64, ours func(int) bool) bool {
	own, err := syscall.Dup(fd)
	if err != nil {
		return false
	}
	defer syscall.Close(own)
	return shutDown(own, inode, ours)
}

// shutDown does so through a duplicate.
func shutDown(own int, inode uint64, ours func(int) bool) bool {
	now, ok := socketInode(own)
	if !ok || now != inode || !ours(own) {
		return false
	}
	// What is still on its way is not waited for, on either side: the close that
	// follows resets the connection.
	syscall.SetsockoptLinger(own, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	return syscall.Shutdown(own, syscall.SHUT_RDWR) == nil
}

// socketInode returns what names a socket for as long as it is open.
func socketInode(fd int) (inode uint64, ok bool) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return 0, false
	}
	return st.Ino, true
}

// isConnectionTo returns what peers.ours needs for an endpoint as ZeroMQ tells it.
func isConnectionTo(bound string) func(fd int) bool { return isConnection(bound, syscall.Getsockname) }

// isConnectionFrom returns it for an endpoint that we are connected to.
func isConnectionFrom(remote string) func(fd int) bool {
	return isConnection(remote, syscall.Getpeername)
}

// isConnection returns whether the end that name tells of is at an endpoint.
func isConnection(endpoint string, name func(fd int) (syscall.Sockaddr, error)) func(fd int) bool {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	return func(fd int) bool {
		address, err := name(fd)
		if err != nil {
			return false
		}
		port := rest[strings.LastIndexByte(rest, ':')+1:]
		switch a := address.(type) {
		case *syscall.SockaddrInet4:
			return scheme == schemeTCP && strconv.Itoa(a.Port) == port
		case *syscall.SockaddrInet6:
			return scheme == schemeTCP && strconv.Itoa(a.Port) == port
		case *syscall.SockaddrUnix:
			return scheme == schemeIPC && a.Name == rest
		}
		return false
	}
}
