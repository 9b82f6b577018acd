// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
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

// bytesReceived returns how much a TCP connection has brought since it began;
// of others the system does not know it.
func bytesReceived(fd int) (n uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_received, true
}
