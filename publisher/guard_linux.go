// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openDescriptors lists the descriptors of this process.
func openDescriptors() (list []int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, fd)
		}
	}
	return list
}

// reserve is what it takes to look at descriptors and to cut one off when the
// process may open no more. Its zero value does without.
type reserve struct {
	folder *os.File // nil if there is none
	spare  int      // stands for the folder, too, until it is needed
}

func newReserve() (r reserve) {
	folder, err := os.Open("/proc/self/fd")
	if err != nil {
		return r
	}
	spare, err := unix.FcntlInt(folder.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		folder.Close()
		return r
	}
	return reserve{folder, spare}
}

func (r reserve) close() {
	if r.folder != nil {
		r.folder.Close()
		unix.Close(r.spare)
	}
}

// list is openDescriptors.
func (r reserve) list() (list []int) {
	if r.folder == nil {
		return openDescriptors()
	}
	if _, err := r.folder.Seek(0, io.SeekStart); err != nil {
		return nil
	}
	names, _ := r.folder.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil {
			list = append(list, fd)
		}
	}
	return list
}

// cutOff is the function of that name. One goroutine at a time may call it.
func (r reserve) cutOff(c connection, ours func(int) bool) bool {
	if cutOff(c.fd, c.inode, ours) {
		return true
	}
	if r.folder == nil || unix.Dup3(c.fd, r.spare, unix.O_CLOEXEC) != nil {
		return false
	}
	defer unix.Dup3(int(r.folder.Fd()), r.spare, unix.O_CLOEXEC)
	return shutDown(r.spare, c.inode, ours)
}

// maxDescriptors is how many this process may have open.
func maxDescriptors() (n uint64, ok bool) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	return l.Cur, err == nil
}

// bytesReceived returns how much a TCP connection has brought since it began;
// of others the system does not know it.
func bytesReceived(fd int) (n uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_received, true
}

// bytesAcked returns how much of what a TCP connection has sent has arrived.
func bytesAcked(fd int) (n uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_acked, true
}

// bytesUnread returns how much memory takes what a socket of the machine's own has
// sent and its other side has not read; 0 if that is nothing.
func bytesUnread(fd int) (n int, ok bool) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	return n, err == nil
}
