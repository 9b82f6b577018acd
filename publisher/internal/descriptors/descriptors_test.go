// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package descriptors

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const childVariable = "KVCAST_DESCRIPTORS_TEST"

// A process of its own, whose limit is lowered step by step: exactly from the point at
// which Needed descriptors cannot be opened any more it is said so, also when not even
// the look at what is open is possible.
func TestShort(t *testing.T) {
	if os.Getenv(childVariable) == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestShort$")
		child.Env = append(os.Environ(), childVariable+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	opened := 0
	for limit := uint64(64); limit > 2; limit-- {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
		text := Short() // may make the runtime open what it needs to wait
		var list []int
		for len(list) < Needed {
			fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				break
			}
			list = append(list, fd)
		}
		for _, fd := range list {
			unix.Close(fd)
		}
		if enough := len(list) == Needed; enough != (text == "") {
			t.Errorf("limit %d: %d could be opened, %q", limit, len(list), text)
		} else if enough {
			opened++
		} else if want := fmt.Sprintf("of %d open files", limit); !strings.Contains(text, want) {
			t.Errorf("limit %d: %q lacks %q", limit, text, want)
		}
	}
	if opened == 0 || opened > 60 {
		t.Errorf("enough at %d limits", opened)
	}
}
