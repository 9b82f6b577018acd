// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package licences

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	root   = "../.."
	golden = "testdata/licences.txt"
)

var update = flag.Bool("update", false, "write "+golden)

// list is what "go list" says.
func list(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// packages are those that programs can be made of: all but what tests share.
func packages(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(strings.Fields(list(t, "./...")), func(name string) bool {
		return strings.Contains(name, "/kvcast/tests/")
	})
}

// modules returns the path and folder of each foreign module whose packages are compiled.
func modules(t *testing.T, args ...string) map[string]string {
	t.Helper()
	const form = `{{with .Module}}{{if not .Main}}{{.Path}}{{"\t"}}{{.Dir}}{{end}}{{end}}`
	found := map[string]string{}
	for line := range strings.Lines(list(t, append([]string{"-deps", "-f", form}, args...)...)) {
		if name, dir, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			found[name] = dir
		}
	}
	return found
}

// The list is part of the repository, so that a dependency that is new or has changed its licence is seen in review.
func TestDependencies(t *testing.T) {
	// The go command takes note of what a test opens, and so does not offer an old result when this has changed.
	if _, err := os.ReadFile(root + "/go.mod"); err != nil {
		t.Fatal(err)
	}
	shipped, all := modules(t, packages(t)...), modules(t, "-test", "./...")
	tagged := modules(t, "-tags", "cuda", "./cuda/...")
	if len(shipped) == 0 || len(all) <= len(shipped) {
		t.Fatalf("%d modules in programs, %d with tests: the list cannot be right", len(shipped), len(all))
	}
	var b strings.Builder
	b.WriteString("# Go modules, their licences, and whether programs, those with the tag cuda, or only tests are compiled with them.\n" +
		"# Besides, package publisher links libzmq, which is not shipped here: MPL-2.0 from 4.3.5 on, before that LGPL-3.0\n" +
		"# with an exception that permits linking.\n")
	for name, dir := range tagged {
		all[name] = dir
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		licence, err := OfModule(os.DirFS(all[name]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		use := "tests"
		if _, ok := tagged[name]; ok {
			use = "tag cuda"
		}
		if _, ok := shipped[name]; ok {
			use = "programs"
		}
		fmt.Fprintf(&b, "%-34s %-13s %s\n", name, licence, use)
	}
	if t.Failed() {
		return
	}
	t.Logf("\n%s", b.String())
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s differs; look at what changed, then run this test with -update. Now\n%swas\n%s", golden, b.String(), want)
	}
}

const (
	mit = `Copyright (c) 2020 Somebody
Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files, to deal in it.
The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED “AS IS”, WITHOUT WARRANTY OF ANY KIND.
`
	bsd2 = `Redistribution and use in source and binary forms are permitted:
  1. Redistributions of source code must retain the above copyright notice.
  2. Redistributions in binary form must reproduce the above
     copyright notice.
`
	bsd3 = bsd2 + `   * Neither the name nor the names of its contributors may be used to
     endorse or promote products derived from this software.
`
)

func TestRecognise(t *testing.T) {
	ours, err := os.ReadFile(root + "/LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"Apache", string(ours), "Apache-2.0"},
		{"MIT", mit, "MIT"},
		{"BSD with two clauses", bsd2, "BSD-2-Clause"},
		{"BSD with three clauses", bsd3, "BSD-3-Clause"},
		{"BSD with the advertising clause", bsd3 + "All advertising materials must display", ""},
		{"a title alone", "The MIT License (MIT)\nCopyright (c) 2020 Somebody\n", ""},
		{"another title alone", "Apache License\nVersion 2.0, January 2004\n", ""},
		{"GPL", "GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\nEveryone is permitted to copy", ""},
		{"MIT with a condition", mit + "\n\"Commons Clause\" License Condition v1.0", ""},
		{"two licences in one file", mit + bsd3, ""},
		{"nothing", "", ""},
	} {
		if got := Recognise(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOfModule(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
		err   string
	}{
		{"one file", map[string]string{"LICENSE": mit, "README": "x"}, "MIT", ""},
		{"two files", map[string]string{"LICENSE.txt": mit, "COPYING": bsd3}, "BSD-3-Clause AND MIT", ""},
		{"one known, one not", map[string]string{"LICENSE": mit, "LICENSE-GPL": "GNU"}, "", "LICENSE-GPL is no licence"},
		{"British spelling", map[string]string{"Licence.md": bsd2}, "BSD-2-Clause", ""},
		{"code that is called so", map[string]string{"licence.go": "package x", "LICENSE": mit}, "MIT", ""},
		{"none", map[string]string{"README": mit}, "", "no licence file"},
		{"deeper down", map[string]string{"sub/LICENSE": mit}, "", "no licence file"},
	} {
		fsys := fstest.MapFS{}
		for name, text := range c.files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		got, err := OfModule(fsys)
		if got != c.want || (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v; want %q, %q", c.name, got, err, c.want, c.err)
		}
	}
}
