// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package ipcpath

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Names that lead to one place, by links, detours and from where we are.
func TestSame(t *testing.T) {
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	if err := errors.Join(os.Mkdir(in("real"), 0o700), os.Symlink("real", in("link")), os.Symlink("real/there", in("last")),
		os.Symlink("nowhere", in("broken"))); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", in("real/there"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Chdir(in("real"))
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"s", "s", true}, {"s", "./s", true}, {"s", "../real/s", true}, {"s", "../link/s", true}, {"s", in("real/s"), true},
		{in("link/s"), in("real/s"), true}, {in("link//s"), in("link/../real/s"), true}, {in("link/there"), "there", true},
		{"there", in("last"), true}, {in("last"), in("link/there"), true},
		{"s", "r", false}, {"s", "../s", false}, {in("link/s"), in("link/r"), false}, {"there", in("broken"), false},
		{in("broken/s"), in("broken/s"), true}, {in("broken/s"), in("nowhere/s"), false}, // nothing can be bound there
		{"@s", "@s", true}, {"@s", "s", false}, {"@s", "@./s", false}, {"s_dp1", "s", false},
	} {
		if Same(c.a, c.b) != c.want || Same(c.b, c.a) != c.want {
			t.Errorf("%s and %s: want %v", c.a, c.b, c.want)
		}
	}
}
