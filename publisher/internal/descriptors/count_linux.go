// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package descriptors

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// count returns how many descriptors this process may have and how many of them it has.
func count() (limit, open uint64, ok bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0, 0, false
	}
	folder, err := os.Open("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return l.Cur, l.Cur, true
	}
	if err != nil {
		return 0, 0, false
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return 0, 0, false
	}
	for _, name := range names {
		// Those from before a limit was lowered are beyond it and take no place.
		if fd, err := strconv.ParseUint(name, 10, 64); err == nil && fd < l.Cur && fd != uint64(folder.Fd()) {
			open++
		}
	}
	return l.Cur, open, true
}
