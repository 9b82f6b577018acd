// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOutputAppearsAsAWhole(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "out")
	names := func() (n []string) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			n = append(n, e.Name())
		}
		return n
	}
	o, err := createOutput("f", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before it is full: %v", err)
	}
	if err := o.commit(func(w io.Writer) error { return writePatterns(w, []uint64{0, 1<<64 - 1}) }); err != nil {
		t.Fatal(err)
	}
	o.discard() // must not take back what has been committed
	if b, err := os.ReadFile(path); err != nil || string(b) != "0\n18446744073709551615\n" {
		t.Errorf("got %q, %v", b, err)
	}

	// A failure in the middle leaves the file of before.
	if o, err = createOutput("f", path); err != nil {
		t.Fatal(err)
	}
	err = o.commit(func(w io.Writer) error {
		if _, err := io.WriteString(w, strings.Repeat("half", 10000)); err != nil {
			return err
		}
		return errors.New("boom")
	})
	if err == nil || err.Error() != "--f "+path+": boom" {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "0\n18446744073709551615\n" {
		t.Errorf("got %q", b)
	}
	if n := names(); len(n) != 1 {
		t.Errorf("left behind: %v", n)
	}

	// So does a run that never gets there.
	if o, err = createOutput("f", path); err != nil {
		t.Fatal(err)
	}
	if len(names()) != 2 {
		t.Errorf("no other name: %v", names())
	}
	o.discard()
	o.discard()
	if n := names(); len(n) != 1 {
		t.Errorf("left behind: %v", n)
	}
	(*output)(nil).discard()
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[2J\tc \u00fc\n"); got != "a b [2J c \u00fc" {
		t.Errorf("got %q", got)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{"GPU": "GPU", "a b": `"a b"`, "\x1b": `"\x1b"`, "ü": `"\u00fc"`, "": ""} {
		if got := plain(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestGrouped(t *testing.T) {
	for in, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1<<64 - 1: "18,446,744,073,709,551,615"} {
		if got := grouped(in); got != want {
			t.Errorf("%d: got %s, want %s", in, got, want)
		}
	}
}
